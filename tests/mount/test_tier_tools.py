# SPDX-License-Identifier: Apache-2.0
"""The disk tier's tools: hintctl warm and verify, and what status says of it."""
import json
import os
import signal

import pytest

from lib import env, pattern, procs, tree

CHUNK = tree.CHUNK
FILES, SIZE, SMALL = 6, 3 * CHUNK + 77, 20_000
ALL = FILES * (SIZE + SMALL)


def ctl(*args, timeout=60, **more):
    more.setdefault("env", dict(os.environ))
    return procs.run([env.binary("tools", "hintctl"), *args], timeout=timeout, **more)


@pytest.fixture
def origin(tmp):
    folder = os.path.join(tmp, "origin")
    pattern.make_many(folder, FILES, SIZE)
    pattern.make_many(os.path.join(folder, "small"), FILES, SMALL)
    open(os.path.join(folder, "empty"), "w").close()
    return folder


@pytest.fixture
def start(mount, slow, origin, tmp):
    far = slow(origin)

    def begin(size="128M", **opts):
        hfs = mount(far.path, memory="16M", cache_dir=os.path.join(tmp, "cache"), cache_size=size, cache_free="0", **opts)
        hfs.far, hfs.cache = far, os.path.join(tmp, "cache")
        procs.until(lambda: hfs.status()["tier_state"] == "on", 20, "adopted")
        return hfs
    return begin


def read_all(hfs):
    for i in range(FILES):
        pattern.check(hfs.p("f%04d" % i), i + 1, SIZE).ok()
        pattern.check(hfs.p("small", "f%04d" % i), i + 1, SMALL).ok()


def spoil(cache, ending, at):
    """One byte of each such file."""
    n = 0
    for top, _, names in os.walk(cache):
        for name in names:
            if name.endswith(ending):
                with open(os.path.join(top, name), "r+b") as f:
                    f.seek(at)
                    byte = f.read(1)
                    f.seek(at)
                    f.write(bytes([byte[0] ^ 1]))
                n += 1
    return n


def test_warm_fills_it_and_goes_on_where_it_was(start):
    hfs = start()
    out = ctl("warm", hfs.path, "f0000", "small").ok().text
    assert f"{1 + FILES} of {1 + FILES} files wholly" in out, out
    first = hfs.status()["origin_bytes"]
    assert SIZE + FILES * SMALL <= first < ALL
    assert f"{2 * FILES + 1} of {2 * FILES + 1} files wholly" in ctl("warm", hfs.path).ok().text
    hfs.far.reset()
    ctl("warm", hfs.path).ok()
    assert hfs.far.totals()["READ"] == 0, "all is there: nothing is read again"
    hfs.stop()
    hfs.far.reset()
    hfs = start()
    read_all(hfs)
    assert hfs.far.totals()["READ"] == 0 and hfs.status()["tier_hit_bytes"] >= ALL


def test_warm_by_an_order(start, tmp):
    hfs = start()
    order = os.path.join(tmp, "order")
    with open(order, "w") as f:
        f.write("# two files, many ranges\n@epoch 1\n" + "".join(f"f0001\t{k * 4096}\t4096\n" for k in range(50)) + "small/f0002\nf0001\n")
    assert "2 of 2 files wholly" in ctl("warm", hfs.path, "--order", order).ok().text
    assert hfs.far.counters()["f0001"]["READ"] > 0 and hfs.far.counters().get("f0003", {}).get("READ", 0) == 0


def test_warm_understands_an_order_as_the_daemon_does(start, origin, tmp):
    os.mkdir(os.path.join(origin, "odd"))
    for i, name in enumerate(("{a,b}", "tab\tbed")):
        pattern.make(os.path.join(origin, "odd", name), 90 + i, SMALL)
    hfs = start()
    order = os.path.join(tmp, "order")

    def warm(text, n):
        with open(order, "w") as f:
            f.write(text)
        result = ctl("warm", hfs.path, "--order", order)
        assert f"{n} of {n} files wholly" in result.text, (text, result.out, result.err)
        return result
    warm("f000{0..2}\n@batch 3\nf000{4,5}\n", 5).ok()
    warm("odd/{a,b}\n\"odd/tab\\tbed\"\n", 2).ok()  # that very name is there, so it is no pattern; a JSON string
    warm(f"@prefix /data\n/data/f0001\n{hfs.path}/f0002\n./small//f0003\n", 3).ok()
    warm("f0000\n@cancel\nf0001", 1).ok()
    warm("small/\n@repeat 5\n", FILES).ok()
    wrong = warm("@nonsense\nf0000\n../x\nf0001\tx\t1\n", 1)
    assert wrong.rc == 1 and [word in wrong.err for word in (b"line 1 col ", b"line 3 col ", b"line 4 col ")] == [True] * 3, wrong.err
    wrong = warm("f0000\n" + 70_000 * "x" + "\nf0001\n", 1)
    assert wrong.rc == 1 and b"line 2 col 1: line longer" in wrong.err, wrong.err
    assert b"nosuch: No such file" in warm("nosuch\nf0000\n", 1).err


def test_warm_of_more_than_there_is_room_for(start, origin):
    pattern.make(os.path.join(origin, "large"), 50, 40 * CHUNK)
    hfs = start(size="16M")
    result = ctl("warm", hfs.path)
    assert result.rc == 1 and b"the rest is not kept" in result.out, (result.rc, result.out, result.err)
    assert b"cache-size=, 16.0 MiB, is used up but for" in result.err, result.err
    assert ctl("warm", hfs.path, "nosuch").rc == 1
    read_all(hfs)


def test_warm_on_a_file_system_that_is_full(mount, origin, tmp):
    """It is not cache-size that is too small."""
    disk = os.path.join(tmp, "disk")
    os.mkdir(disk)
    procs.run(["mount", "-t", "tmpfs", "-o", "size=12M,mode=700", "none", disk], check=True)
    hfs = mount(origin, memory="16M", cache_dir=os.path.join(disk, "cache"), cache_size="64M", cache_free="20")
    result = ctl("warm", hfs.path)
    assert result.rc == 1 and b"the rest is not kept" in result.out, (result.rc, result.out, result.err)
    assert f"the file system of {disk}/cache has ".encode() in result.err and b"20 % that cache-free= keeps free" in result.err, result.err
    assert "times no room for more: cache-size=, or " in ctl("status", hfs.path).ok().text
    assert hfs.status()["tier_dir"] == f"{disk}/cache" and hfs.status()["tier_free_pct"] == 20
    hfs.stop()
    procs.run(["umount", disk], check=True)


def test_warm_is_interrupted(start):
    hfs = start()
    hfs.far.command("latency", "READ", "300ms")
    child = procs.Child([env.binary("tools", "hintctl"), "warm", hfs.path])
    procs.until(lambda: hfs.status()["origin_bytes"] > 0, 20, "it reads")
    os.kill(child.pid, signal.SIGINT)
    result = child.wait(20)
    assert result.rc == 130 and b"goes on from here" in result.out, (result.rc, result.out)
    hfs.far.command("latency", "READ", "0")
    ctl("warm", hfs.path).ok()


def test_warm_without_a_disk_tier(mount, origin):
    hfs = mount(origin)
    result = ctl("warm", hfs.path)
    assert result.rc == 1 and b"mount it with cache-dir=DIR,cache-size=SIZE" in result.err
    result = ctl("warm", hfs.path, "/etc/hostname")
    assert result.rc == 1 and b"not below" in result.err
    result = ctl("verify", hfs.path)
    assert result.rc == 1 and b"mounted without cache-dir=" in result.err


@pytest.mark.parametrize("how", ["mount", "directory"])
def test_verify_finds_what_is_bad_and_drops_it(start, how):
    hfs = start()
    ctl("warm", hfs.path).ok()
    if how == "mount":
        assert ", 0 bad" in ctl("verify", hfs.path).ok().text
        procs.until(lambda: hfs.status()["tier_unsynced_bytes"] == 0, 20, "synced")
        assert spoil(hfs.cache, ".d", CHUNK + 5) == FILES
        result = ctl("verify", hfs.path)
    else:
        busy = ctl("verify", hfs.cache)
        assert busy.rc == 1 and b"in use" in busy.err, busy.err
        hfs.stop()
        assert ", 0 bad" in ctl("verify", hfs.cache).ok().text
        assert spoil(hfs.cache, ".d", CHUNK + 5) == FILES
        result = ctl("verify", hfs.cache)
    assert result.rc == 3 and f"{FILES} bad" in result.text, (result.rc, result.out, result.err)
    if how == "mount":
        assert hfs.status()["tier_bad"] == FILES
        assert ctl("verify", hfs.path).ok()
        hfs.stop()
    else:
        assert ctl("verify", hfs.cache).ok()
    hfs.far.reset()
    hfs = start()
    read_all(hfs)
    assert hfs.status()["origin_bytes"] == FILES * CHUNK, "just the bad chunks"
    assert hfs.status()["tier_bad"] == 0


def test_verify_makes_no_cache(tmp):
    empty = os.path.join(tmp, "empty")
    os.mkdir(empty)
    result = ctl("verify", empty)
    assert result.rc == 1 and b"nor a hintfs cache" in result.err, result.err
    assert os.listdir(empty) == []


def test_status_says_where_bytes_came_from(start):
    hfs = start()
    ctl("warm", hfs.path).ok()
    hfs.stop()
    hfs = start()
    read_all(hfs)
    status = hfs.status()
    assert status["share_disk"] > 0.9 and status["share_origin"] == 0
    assert abs(status["share_disk"] + status["share_slots"] + status["share_origin"] - 1) < 0.001
    assert status["tier_cause"] == "none" and status["tier_size_bytes"] == 128 << 20
    assert status["tier_chunks"] == 4 * FILES and status["tier_files_small"] >= FILES
    found = json.loads(ctl("status", hfs.path, "--json").ok().out)
    for key in ("tier_state", "tier_bypass_hang", "tier_errors_io_error", "tier_skipped_full", "share_disk", "tier_bad", "stale"):
        assert key in found, key
    text = ctl("status", hfs.path).ok().text
    assert "disk tier  on;" in text and "came from" in text, text
