# SPDX-License-Identifier: Apache-2.0
"""The server is away, and comes back: who waits, who can be killed, who gets which errno, what stays readable.

Each case mounts NFS anew with the options it needs; actimeo=1 makes the client forget attributes within a second, so that an outage
is felt as it would be after a minute.
"""
import os
import select
import signal
import time

import pytest

from lib import env, mounts, procs

MIB = 1 << 20
SIZE = 3 * MIB + 4096 + 100
FRESH = "hard,actimeo=1"


def pause(seconds):
    """Attributes grow old: the passing of time itself is the event."""
    select.select([], [], [], seconds)


def wait_in_origin(hfs, reader):
    """Until the reader's request is with the daemon, and stays there."""
    procs.until(lambda: mounts.waiting(hfs.minor) > 0, 10, "a request waits")
    assert not reader.has_answer()


def test_hard_waits_and_goes_on(nfs, mount, reader):
    """Reads of what is not there yet wait; a reader can be killed meanwhile; afterwards all bytes are right."""
    nfs.put("f", 1, SIZE)
    nfs.put("g", 2, SIZE)
    nfs.put("k", 3, SIZE)
    hfs = mount(nfs.mounted(FRESH), memory="16M")
    one, two, three = reader(), reader(), reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    assert one.call("pread", "h", 0, 4096) == [1, 4096]
    nfs.stop()
    one.ask("pread", "h", 2 * MIB, 4096)
    two.ask("cat", hfs.p("g"))
    wait_in_origin(hfs, one)
    three.ask("cat", hfs.p("k"))  # not g: who looks up what another is looking up waits in the kernel, for that one
    pause(1.5)
    assert not one.has_answer() and not two.has_answer()
    assert three.kill() < env.seconds(2)
    nfs.start()
    assert one.answer(60) == [1, 4096]
    assert two.answer(60) == [2, SIZE]
    assert one.cat(hfs.p("f")) == [1, SIZE]


def test_immutable_needs_no_server(nfs, mount, reader):
    """What was read stays readable, by old handles and new opens, for as long as the outage lasts; what was not, waits."""
    for i in range(4):
        nfs.put(f"f{i}", i, SIZE)
    hfs = mount(nfs.mounted(FRESH), memory="32M", immutable=True)
    one, two = reader(), reader()
    for i in range(3):
        assert one.cat(hfs.p(f"f{i}")) == [i, SIZE]
    assert one.call("hold", "h", hfs.p("f1")) == SIZE
    assert one.call("size", hfs.p("f3")) == SIZE
    nfs.stop()
    pause(2.5)  # plain NFS hangs from now on, cached pages or not
    two.call("drop_caches")
    for i in range(3):
        assert two.cat(hfs.p(f"f{i}"), timeout=10) == [i, SIZE]
    assert one.call("pread", "h", MIB, MIB, timeout=10) == [1, MIB]
    assert one.call("size", hfs.p("f3"), timeout=10) == SIZE
    two.ask("cat", hfs.p("f3"))
    wait_in_origin(hfs, two)
    nfs.start()
    assert two.answer(60) == [3, SIZE]


def test_immutable_from_the_disk(nfs, mount, reader, tmp):
    """The same after a restart, from the disk tier: the names are looked up once while the server is there."""
    from nfs import CACHE
    for i in range(3):
        nfs.put(f"f{i}", i, SIZE)
        nfs.put(f"s{i}", i, 20_000)
    source = nfs.mounted(FRESH)
    opts = {"memory": "16M", "immutable": True, "cache_dir": os.path.join(CACHE, nfs.name), "cache_size": "128M", "cache_free": 0}
    pause(2.1)  # files younger than that are not kept on disk before they were looked at again
    hfs = mount(source, **opts)
    one = reader()
    total = 3 * (SIZE + 20_000)
    for i in range(3):
        assert one.cat(hfs.p(f"f{i}")) == [i, SIZE] and one.cat(hfs.p(f"s{i}")) == [i, 20_000]
    procs.until(lambda: hfs.status()["tier_bytes"] >= total, 20, lambda: f"kept: {hfs.status()}")
    hfs.stop()
    hfs = mount(source, **opts)
    procs.until(lambda: hfs.status()["tier_state"] == "on", 20, lambda: f"tier: {hfs.status()}")
    for i in range(3):
        assert one.call("size", hfs.p(f"f{i}")) == SIZE and one.call("size", hfs.p(f"s{i}")) == 20_000
    nfs.stop()
    pause(2.5)
    for i in range(3):
        assert one.cat(hfs.p(f"f{i}"), timeout=10) == [i, SIZE] and one.cat(hfs.p(f"s{i}"), timeout=10) == [i, 20_000]
    assert hfs.status()["origin_bytes"] == 0
    nfs.start()


def test_soft_gives_an_errno_and_keeps_nothing_of_it(nfs, mount, reader):
    for name, version in (("f", 1), ("g", 2)):
        nfs.put(name, version, SIZE)
    hfs = mount(nfs.mounted("soft,actimeo=1"), memory="16M")
    one, two = reader(), reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    assert one.call("pread", "h", 0, 4096) == [1, 4096]
    nfs.stop()
    one.ask("pread", "h", 2 * MIB, 4096)
    two.ask("cat", hfs.p("g"))
    assert one.answer(60) in ("EIO", "ETIMEDOUT") and two.answer(60) in ("EIO", "ETIMEDOUT")
    assert one.call("pread", "h", 0, 4096) == [1, 4096]
    nfs.start()
    assert two.cat(hfs.p("g"), timeout=60) == [2, SIZE]
    assert one.call("pread", "h", 2 * MIB, 4096, timeout=60) in ([1, 4096], "ESTALE")
    assert one.cat(hfs.p("f"), timeout=60) == [1, SIZE]
    assert hfs.status()["origin_errors"] >= 1


def test_origin_timeout(nfs, mount, reader):
    """On a hard mount: reads, opens and look-ups alike get EIO after SECS, and all is well afterwards."""
    for name, version in (("f", 1), ("g", 2)):
        nfs.put(name, version, SIZE)
    hfs = mount(nfs.mounted(FRESH), memory="16M", origin_timeout=2)
    one, two, three = reader(), reader(), reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    assert three.cat(hfs.p("g")) == [2, SIZE]
    nfs.stop()
    pause(1.5)
    begun = time.monotonic()
    one.ask("pread", "h", 2 * MIB, 4096)
    two.ask("cat", hfs.p("never-seen"))
    three.ask("cat", hfs.p("g"))
    assert [r.answer(20) for r in (one, two, three)] == ["EIO"] * 3
    assert time.monotonic() - begun >= 1.5
    nfs.start()
    assert two.cat(hfs.p("never-seen"), timeout=60) == "ENOENT"
    assert three.cat(hfs.p("g"), timeout=60) == [2, SIZE]
    assert one.call("pread", "h", 2 * MIB, 4096, timeout=60) in ([1, 4096], "ESTALE")
    assert one.cat(hfs.p("f"), timeout=60) == [1, SIZE]


def test_calls_ended_by_force(nfs, mount, reader):
    """umount -f ends what waits for the server with a number that no program knows; to our readers it is EIO. An origin is asked
    more than once (again without readahead; for what the name is by now), so it takes more than one."""
    nfs.put("f", 1, SIZE)
    nfs.put("g", 2, SIZE)
    source = nfs.mounted(FRESH)
    hfs = mount(source, memory="16M")
    one, two = reader(), reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    nfs.stop()
    pause(1.5)
    one.ask("pread", "h", 2 * MIB, 4096)
    two.ask("cat", hfs.p("g"))
    wait_in_origin(hfs, one)

    def both_ended():
        nfs.end_calls(os.path.dirname(source))
        return one.has_answer() and two.has_answer()

    procs.until(both_ended, 30, "both calls end", poll_s=0.2)
    assert one.answer() == "EIO" and two.answer() == "EIO"
    nfs.start()
    assert two.cat(hfs.p("g"), timeout=60) == [2, SIZE]


def test_the_end_during_an_outage(nfs, mount, reader):
    """SIGTERM ends the daemon within 5 s while its calls hang in the origin; its readers get an errno."""
    nfs.put("f", 1, SIZE)
    hfs = mount(nfs.mounted(FRESH), memory="16M")
    one = reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    nfs.stop()
    one.ask("pread", "h", MIB, 4096)
    wait_in_origin(hfs, one)
    hfs.proc.send_signal(signal.SIGTERM)
    hfs.wait_end(6)
    hfs.judge()
    assert one.answer(10) in ("ESHUTDOWN", "ECONNABORTED", "ENOTCONN", "EIO")


def test_a_handle_gone_stale_is_opened_again(nfs, mount, reader):
    """The export is withdrawn and given back: the client's handles are stale, the files are the same. Nothing that was read
    meanwhile is kept, and a new open works at once."""
    for name, version in (("f", 1), ("g", 2)):
        nfs.put(name, version, SIZE)
    hfs = mount(nfs.mounted(FRESH), memory="16M")
    one, two = reader(), reader()
    assert one.call("hold", "h", hfs.p("f")) == SIZE
    assert one.call("pread", "h", 0, 4096) == [1, 4096]
    nfs.unexport()
    pause(1.2)
    assert one.call("pread", "h", MIB, 4096, timeout=30) in ("ESTALE", "EIO", "EACCES", "EPERM")
    assert two.cat(hfs.p("g"), timeout=30) in ("ESTALE", "EIO", "EACCES", "EPERM", "ENOENT")
    nfs.exports("rw,no_root_squash")
    procs.until(lambda: two.cat(hfs.p("g"), timeout=30) == [2, SIZE], 15, lambda: f"g is back: {two.cat(hfs.p('g'))}", poll_s=0.2)
    assert two.cat(hfs.p("f"), timeout=30) == [1, SIZE]
    assert one.call("pread", "h", 2 * MIB, 4096, timeout=30) in ([1, 4096], "ESTALE")
