# SPDX-License-Identifier: Apache-2.0
"""Many small files under nocto or immutable: the kernel no longer sends OPEN and RELEASE, and all that they did still holds."""
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from lib import env, pattern, procs

SMALL = 30000
CHUNK = 65536
BIG = 40 * CHUNK + 100
FILES = 200  # more than the 128 that it takes
MODES = ["nocto", "immutable"]


def is_kernel_safe():
    """As data_no_open_is_safe() in fs/data_noopen.c, whose unit test says why."""
    major, minor, patch = map(int, re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", platform.release()).groups("0"))
    return (major, minor) < (6, 9) or (major, minor) > (6, 18) or (minor == 12 and patch >= 70) or (minor == 18 and patch >= 10)


pytestmark = pytest.mark.skipif(not is_kernel_safe(), reason="this kernel may dead-lock without OPENs, hintfs leaves them on")


@pytest.fixture
def folder(tmp):
    path = os.path.join(tmp, "o")
    pattern.make_many(path, FILES, SMALL)
    pattern.make(os.path.join(path, "big"), 1000, BIG)
    return path


def reads(hfs, first=0, last=FILES):
    """Small files, each opened by a name and compared with what was written."""
    for i in range(first, last):
        pattern.check(hfs.p("f%04d" % i), i + 1, SMALL).ok()


def switch(hfs, first=0):
    assert hfs.status()["opens"] == "unchecked"
    procs.run(["cat"] + [hfs.p("f%04d" % i) for i in range(first, first + 130)], check=True)
    assert hfs.status()["opens"] == "none"


def content(path):
    """The bytes, or the errno's name."""
    code = "import errno, sys\ntry: sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())\nexcept OSError as e: print(errno.errorcode[e.errno])"
    return procs.run([sys.executable, "-c", code, path], check=True).out


@pytest.mark.parametrize("mode", MODES)
def test_the_switch(mount, folder, probe, mode):
    """Files opened before it are read on after it, without a handle of theirs being left; files opened after it as ever."""
    hfs, one = mount(folder, chunk="64K", memory="16M", **{mode: True}), probe()
    for i in range(20):
        assert not isinstance(one.ask("hold", f"s{i}", hfs.p("f%04d" % i))[1], str)
    one.ask("hold", "big", hfs.p("big"))
    assert one.ask("pread", "big", 0, 4096)[1] == 4096
    assert hfs.status()["open_files"] == 21
    switch(hfs, 50)
    assert hfs.status()["open_files"] == 0
    assert hfs.log().count(b"opens none") == 1
    for i in range(20):
        assert one.ask("pread", f"s{i}", 0, SMALL)[1] == SMALL
    for at in range(0, BIG, CHUNK):
        assert one.ask("pread", "big", at, CHUNK)[1] == min(CHUNK, BIG - at)
    reads(hfs)
    pattern.check(hfs.p("big"), 1000, BIG).ok()
    assert hfs.status()["open_files"] == 0
    one.close()  # RELEASEs of handles that are gone, where the kernel sends any
    reads(hfs, 0, 30)


@pytest.mark.parametrize("way", ["read", "mmap", "direct"])
def test_every_way_to_read(mount, folder, way):
    """Open and mapped before the switch, read after it; and both after it."""
    hfs = mount(folder, chunk="64K", memory="16M", nocto=True)
    stuck = [env.prog("mt_stuck"), way, hfs.p("big"), 1000, 1, 30, CHUNK]
    procs.run(stuck, check=True)
    switch(hfs)
    procs.run(["sh", "-c", "echo 1 > /proc/sys/vm/drop_caches"])
    procs.run(stuck, check=True)
    pattern.check(hfs.p("big"), 1000, BIG).ok()


def test_default_mode_never_switches(mount, folder):
    hfs = mount(folder)
    reads(hfs)
    assert hfs.status()["opens"] == "checked"


@pytest.mark.parametrize("mode", MODES)
def test_large_files_never_switch(mount, tmp, mode):
    """Also with some small ones among them, and one small one opened over and over."""
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    for i in range(160):
        with open(os.path.join(folder, "f%04d" % i), "wb") as f:
            f.truncate(2 << 20 if i % 2 else 1000)
    hfs = mount(folder, **{mode: True})
    names = [hfs.p("f%04d" % i) for i in range(160)]
    procs.run(["head", "-qc1"] + names, check=True)
    procs.run(["head", "-qc1"] + names[:1] * 400, check=True)
    assert hfs.status()["opens"] == "unchecked"


@pytest.mark.parametrize("how", ["rename", "in place"])
def test_a_change_is_noticed_within_revalidate(mount, folder, how):
    """Whole old bytes or ESTALE until then, never a mixture; and what is new stays new."""
    hfs = mount(folder, nocto=True, revalidate="1")
    switch(hfs)
    for i in (3, 150, 199):  # read, read lately, never read
        name = "f%04d" % i
        old = os.path.join(folder, name)
        content(hfs.p(name)) if i < 199 else procs.run(["stat", hfs.p(name)], check=True)
        before = open(old, "rb").read()
        pattern.make(old if how == "in place" else old + ".new", 500 + i, SMALL + 1, 2)
        if how == "rename":
            os.rename(old + ".new", old)
        after = open(old, "rb").read()
        seen = []

        def is_new():
            seen.append(content(hfs.p(name)))
            return seen[-1] == after
        procs.until(is_new, 5, "new bytes")
        assert set(seen) <= {before, after, b"ESTALE\n"}, [len(s) for s in seen]
        pattern.check(hfs.p(name), 500 + i, SMALL + 1, 2).ok()


def test_what_a_prefetch_looked_up_is_no_younger_for_that(mount, folder):
    """The first look-up of a name finds what the order's look-up brought: valid for the rest of `revalidate`, not for all of it again."""
    hfs = mount(folder, nocto=True, revalidate="4")
    path = os.path.join(folder, "f0007")
    hfs.order("f0007\n")
    procs.until(lambda: int(hfs.status()["slots_used"]) > 0, 5, "the prefetch")
    known = time.monotonic()
    procs.until(lambda: time.monotonic() - known > 3, 5, "most of it to pass")
    os.stat(hfs.p("f0007"))
    pattern.make(path, 907, SMALL + 1, 2)
    changed = time.monotonic()
    procs.until(lambda: os.stat(hfs.p("f0007")).st_size == SMALL + 1, 10, "the new size")
    assert time.monotonic() - changed < 3  # else it would be 4


def test_an_old_descriptor_never_sees_the_new_file(mount, folder):
    """What it has is the old file, page by page; the rest is ESTALE."""
    hfs = mount(folder, chunk="64K", memory="16M", nocto=True, revalidate="1")
    switch(hfs)
    code = ("import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nos.pread(fd, 1 << 18, 0)\nprint('read', flush=True)\nsys.stdin.readline()\n"
            "for at in range(0, 1 << 22, 4096):\n    try:\n        b = os.pread(fd, 4096, at)\n    except OSError as e:\n        b = b'' if e.errno == 116 else None\n"
            "    sys.stdout.buffer.write(bytes([len(b) > 0]) + b.ljust(4096, b'-'))\n")
    with open(os.path.join(folder, "big"), "rb") as f:
        before = f.read()
    old = subprocess.Popen([sys.executable, "-c", code, hfs.p("big")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert old.stdout.readline() == b"read\n"
        pattern.make(os.path.join(folder, "new"), 1000, BIG, 2)
        os.rename(os.path.join(folder, "new"), os.path.join(folder, "big"))
        procs.until(lambda: pattern.check(hfs.p("big"), 1000, BIG, 2).rc == 0, 5, "the new file")
        out = old.communicate(b"\n", timeout=30)[0]
        assert old.returncode == 0
    finally:
        old.kill()
        old.wait()
    pages = [out[i * 4097 + 1:(i + 1) * 4097] if out[i * 4097] else None for i in range(len(out) // 4097)]
    known = [i for i, page in enumerate(pages) if page]
    assert len(pages) == 1024 and len(known) >= 64
    assert all(pages[i].rstrip(b"-") == before[i * 4096:(i + 1) * 4096].rstrip(b"-") for i in known)
    pattern.check(hfs.p("big"), 1000, BIG, 2).ok()


def test_writers_get_erofs(mount, folder):
    hfs = mount(folder, nocto=True)
    switch(hfs)
    code = ("import errno, os, sys\nfor flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT):\n"
            "    for name in ('f0001', 'f0199', 'big', 'none'):\n        try:\n            os.close(os.open(sys.argv[1] + '/' + name, flags))\n            print('open')\n"
            "        except OSError as e:\n            print(errno.errorcode[e.errno])")
    said = procs.run([sys.executable, "-c", code, hfs.path], check=True).text.split()
    assert len(said) == 16 and said.count("ENOENT") <= 3 and set(said) <= {"EROFS", "ENOENT"}, said
    assert [said[i] for i in range(16) if i % 4 != 3] == ["EROFS"] * 12, said
    reads(hfs, 0, 3)


def test_descriptors_and_memory_stay_bounded(mount, folder, tmp):
    """A thousand files held open cost the daemon no descriptor each, and small memory= is no obstacle."""
    many = os.path.join(folder, "many")
    pattern.make_many(many, 1000, 5000)
    hfs = mount(folder, chunk="64K", memory="2M", nocto=True)
    switch(hfs)
    code = ("import os, sys\nfds = [os.open(f'{sys.argv[1]}/f{i:04d}', os.O_RDONLY) for i in range(1000)]\n"
            "os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_DONTNEED)\nprint(sum(len(os.pread(fd, 9999, 0)) for fd in fds))\nprint('held', flush=True)\nsys.stdin.read()")
    held = subprocess.Popen([sys.executable, "-c", code, hfs.p("many")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)))
    try:
        assert held.stdout.readline() == b"5000000\n" and held.stdout.readline() == b"held\n"
        status = hfs.status()
        assert status["open_files"] == 0
        assert status["files"] <= 256 + status["slots_total"] + 64, status["files"]
        assert hfs.descriptors() < 512, hfs.descriptors()
    finally:
        held.kill()
        held.wait()
    for i in range(0, 1000, 50):
        pattern.check(os.path.join(hfs.p("many"), "f%04d" % i), i + 1, 5000).ok()


@pytest.mark.timeout(90)
def test_stuck_readers_die_and_the_rest_goes_on(mount, slow, folder, probe):
    far = slow(folder)
    hfs, one = mount(far.path, chunk="64K", memory="16M", nocto=True), probe()
    switch(hfs)
    far.hang("big", "op=READ")
    for way in ("read", "mmap", "direct"):
        child = procs.Child([env.prog("mt_stuck"), way, hfs.p("big"), 1000, 1, 30, CHUNK])
        procs.until(lambda c=child: c.lines() == ["ready"], 10, "readers at work")
        took, got = one.ask("open", hfs.p("f0150"))
        assert got == 4096
        child.signal(signal.SIGKILL)
        assert child.wait(10).rc == -signal.SIGKILL
    far.hang("*")
    assert one.ask("open", hfs.p("f0001"))[1] == 4096  # in the page cache: nothing is asked
    far.unhang()
    pattern.check(hfs.p("big"), 1000, BIG).ok()
    reads(hfs, 130, 140)


def test_an_order_is_followed(mount, slow, folder):
    """Reads alone tell how far the reader is: all of it fetched ahead and once, nothing pending at the end."""
    far = slow(folder, latency="1ms")
    hfs = mount(far.path, chunk="64K", memory="4M", nocto=True)
    names = ["f%04d" % (i * 77 % FILES) for i in range(FILES)]
    hfs.order("\n".join(names) + "\n").ok()
    for i in range(0, FILES, 20):
        procs.run(["cat"] + [hfs.p(n) for n in names[i:i + 20]], check=True)
    status = hfs.status()
    assert status["opens"] == "none"
    assert procs.until(lambda: hfs.status()["stream.default.pending"] == 0, 5, "the end of the order")
    assert status["needed_bytes"] == FILES * SMALL
    assert hfs.status()["origin_bytes"] <= 1.05 * FILES * SMALL, status["origin_bytes"]


def test_record_and_another_name(mount, folder, child):
    """Reads of files that nobody opened are recorded by their names; a hard link is the same bytes."""
    os.link(os.path.join(folder, "f0180"), os.path.join(folder, "other name"))
    hfs = mount(folder, nocto=True)
    switch(hfs)
    recorder = child(["cat", os.path.join(hfs.ctl, "record")])
    procs.until(lambda: any(p.endswith("/record") for p in procs.open_files(recorder.pid)), 10, "the recorder")
    reads(hfs, 181, 190)
    pattern.check(hfs.p("other name"), 181, SMALL).ok()
    pattern.check(hfs.p("f0180"), 181, SMALL).ok()
    procs.until(lambda: b"other name" in recorder.out() or b"f0180" in recorder.out(), 10, "its last line")
    said = recorder.out()
    assert all(b"f%04d\t0\t" % i in said for i in range(181, 190)), said


@pytest.mark.parametrize("mode", MODES)
def test_listings_and_stats_are_as_before(mount, folder, mode):
    hfs = mount(folder, **{mode: True})
    switch(hfs)
    assert len(procs.run(["ls", hfs.path], check=True).out.split()) == FILES + 1
    assert procs.run(["stat", "-c", "%s", hfs.p("f0190")], check=True).text == f"{SMALL}\n"
    assert procs.run(["readlink", hfs.p(".ctl")], check=True).text.strip() == hfs.ctl
    assert procs.run(["cat", hfs.p("none")]).rc == 1
    assert procs.run(["cat", hfs.path]).rc == 1  # a directory
