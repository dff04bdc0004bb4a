# SPDX-License-Identifier: Apache-2.0
"""What a restart over a filled disk tier costs: the origin's operations a file, and how soon the mount answers."""
import os
import signal
import time

import pytest

from lib import env, pattern, procs, tree

CHUNK = tree.CHUNK
TOOL = env.BUILD / "tests/fault/tier/tier_tool"


def test_one_check_of_identity_a_file(mount, slow, tmp):
    folder, n, size = os.path.join(tmp, "origin"), 40, CHUNK + 999
    pattern.make_many(folder, n, size)
    pattern.make_many(os.path.join(folder, "small"), n, 20_000)
    far = slow(folder)
    opts = {"memory": "32M", "cache_dir": os.path.join(tmp, "cache"), "cache_size": "256M", "cache_free": "0"}
    hfs = mount(far.path, **opts)
    procs.run([env.binary("tools", "hintctl"), "warm", hfs.path], timeout=60, check=True)
    hfs.stop()
    hfs = mount(far.path, **opts)
    procs.until(lambda: hfs.status()["tier_state"] == "on", 20, "adopted")
    far.reset()
    for i in range(n):
        pattern.check(hfs.p("f%04d" % i), i + 1, size).ok()
        pattern.check(hfs.p("small", "f%04d" % i), i + 1, 20_000).ok()
    counters = far.counters()
    assert far.totals()["READ"] == 0 and far.totals()["bytes"] == 0
    for path, count in counters.items():
        if os.path.isfile(os.path.join(folder, path)):
            assert count.get("OPEN", 0) <= 1, (path, count)


def in_background(mountpoint, source, cache):
    os.makedirs(mountpoint, exist_ok=True)
    return procs.run([env.binary("fs", "hintfs"), "-o", f"memory=16M,cache-dir={cache},cache-size=64M,log={mountpoint}.log,ctl={mountpoint}.ctl",
                      source, mountpoint], timeout=40)


def test_a_daemon_that_ends_is_waited_for(tmp):
    """Unmounted, the next command in the same script: no moment is too early."""
    source, mnt, cache = (os.path.join(tmp, name) for name in ("origin", "mnt", "cache"))
    pattern.make_many(source, 20, CHUNK)
    ctl = env.binary("tools", "hintctl")
    in_background(mnt, source, cache).ok()
    for _ in range(3):
        procs.run(["cat", *(os.path.join(mnt, "f%04d" % i) for i in range(20))], timeout=20, check=True)
        procs.run([ctl, "umount", mnt], timeout=20, check=True)
        procs.run([ctl, "verify", cache], timeout=20, check=True)
        in_background(mnt, source, cache).ok()
        procs.run(["umount", mnt], check=True)
        in_background(mnt, source, cache).ok()
    procs.run([ctl, "umount", mnt], timeout=20, check=True)


def test_a_daemon_that_hangs_gives_its_cache_away(mount, slow, tmp, child):
    """It was told to end, and a thread of it waits for the origin for ever."""
    folder, cache = os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
    pattern.make_many(folder, 2, CHUNK)
    far = slow(folder)
    first = mount(far.path, memory="32M", cache_dir=cache, cache_size="64M", cache_free="0")
    far.hang("f0000")
    child(["cat", first.p("f0000")])
    far.wait_hung(1)
    os.kill(first.pid, signal.SIGTERM)
    mnt = os.path.join(tmp, "mnt")
    in_background(mnt, folder, cache).ok()
    pattern.check(os.path.join(mnt, "f0001"), 2, CHUNK).ok()
    procs.run([env.binary("tools", "hintctl"), "umount", mnt], timeout=20, check=True)
    far.unhang()


def test_a_live_one_is_not(mount, tmp):
    folder, cache = os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
    os.mkdir(folder)
    hfs = mount(folder, memory="16M", cache_dir=cache, cache_size="64M")
    result = in_background(os.path.join(tmp, "mnt"), folder, cache)
    assert result.rc == 2 and f"in use by another hintfs (pid {hfs.pid}): unmount that one".encode() in result.err, result.err


def test_more_than_the_disk_has_is_said(tmp):
    folder, mnt = os.path.join(tmp, "origin"), os.path.join(tmp, "mnt")
    os.makedirs(folder)
    os.makedirs(mnt)
    argv = [env.binary("fs", "hintfs"), "-o", f"memory=16M,cache-dir={tmp}/cache,cache-size=999T,log={mnt}.log,ctl={mnt}.ctl", folder, mnt]
    result = procs.run(argv, timeout=20).ok()
    assert b"cache-size=999T: the file system of" in result.err and b"10 % stay free" in result.err, result.err
    procs.run([env.binary("tools", "hintctl"), "umount", mnt], timeout=20, check=True)


@pytest.mark.timeout(580)
@pytest.mark.skipif(bool(env.SANITIZER), reason="a time is asserted")
def test_it_answers_at_once_over_many_files(mount, tmp):
    """The requirement is a time: 2 s with 200,000 files in the cache and memory=6G."""
    n, folder, cache = env.scaled(40_000, 200_000), os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "one"), 1, CHUNK)
    procs.run([TOOL, f"--files={n}", "--bytes=1000", "--size=4294967296", cache, "fill"], timeout=500, check=True)
    begun = time.monotonic()
    hfs = mount(folder, memory="6G", cache_dir=cache, cache_size="4G", cache_free="0")
    took = time.monotonic() - begun
    pattern.check(hfs.p("one"), 1, CHUNK).ok()
    procs.until(lambda: hfs.status()["tier_state"] == "on", 60, lambda: f"adopted: {hfs.status()}", poll_s=0.05)
    assert hfs.status()["tier_files_small"] >= n, hfs.status()
    assert took <= 2, took
