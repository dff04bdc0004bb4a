# SPDX-License-Identifier: Apache-2.0
"""What a disk tier promises, at the requirement's own sizes with HINTFS_FULL=1: a daemon killed at any moment of filling and culling,
datasets that look alike in one cache directory, other people's directories, a control directory for a group.
"""
import os
import random
import signal
import stat

import pytest

from lib import env, pattern, procs, tree

CHUNK = tree.CHUNK
FILES, CHANGED, SIZE, SMALL = 20, 13, 2 * CHUNK + 4321, 20_000
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
SHARED_GID = 4242


def make_dataset(folder, first_seed=1):
    for i in range(FILES):
        pattern.make(os.path.join(folder, f"f{i:04d}"), first_seed + i, SIZE)
        pattern.make(os.path.join(folder, f"s{i:04d}"), first_seed + i, SMALL)


def check_all(hfs, first_seed=1):
    for i in range(FILES):
        pattern.check(hfs.p(f"f{i:04d}"), first_seed + i, SIZE).ok()
        pattern.check(hfs.p(f"s{i:04d}"), first_seed + i, SMALL).ok()


@pytest.mark.timeout(1800)
def test_kill9_at_random_moments_of_filling_and_culling(mount, tmp):
    """The cache holds half of the dataset, two thirds of which change every turn: it is always being filled and culled."""
    rng = random.Random(5)
    folder, cache, limit = os.path.join(tmp, "origin"), os.path.join(tmp, "cache"), FILES * SIZE // 2
    os.mkdir(folder)
    make_dataset(folder)
    hfs = mount(folder, memory="16M", cache_dir=cache, cache_size=str(limit), cache_free="0")
    culled = hits = 0
    for turn in range(env.scaled(8, 200)):
        for i in rng.sample(range(FILES), CHANGED):
            os.utime(os.path.join(folder, f"f{i:04d}"))
        names = [f"{hfs.path}/{kind}{i:04d}" for i in range(FILES) for kind in "fs"]
        rng.shuffle(names)
        before, amount = hfs.status()["needed_bytes"], rng.randrange(CHANGED * SIZE * 9 // 10)  # the rest is in the kernel's page cache
        reader = procs.Child("while :; do cat " + " ".join(f'"{n}"' for n in names) + " || exit 9; done > /dev/null")
        procs.until(lambda: hfs.status()["needed_bytes"] - before >= amount, 30, "read for a while")
        status = hfs.status()
        culled, hits = culled + status["tier_culled_bytes"] + status["tier_dropped"], hits + status["tier_hit_bytes"]
        os.kill(hfs.pid, signal.SIGKILL)
        hfs.proc.wait(10)
        assert reader.wait(20).rc != 0
        assert procs.du(cache) <= limit, (turn, procs.du(cache), limit)
        hfs.start()
        check_all(hfs)
    assert culled > 0 and hits > 0, (culled, hits)
    assert procs.du(cache) <= limit
    hfs.stop()


def test_two_datasets_that_look_alike_share_a_cache_directory(mount, tmp):
    """The same names, sizes and times in default mode, one after the other and back: never the other's bytes."""
    cache, folders = os.path.join(tmp, "cache"), [os.path.join(tmp, name) for name in ("one", "two")]
    for k, folder in enumerate(folders):
        os.mkdir(folder)
        make_dataset(folder, 1 + 100 * k)
        for name in os.listdir(folder):
            os.utime(os.path.join(folder, name), ns=(10 ** 18, 10 ** 18))
        os.utime(folder, ns=(10 ** 18, 10 ** 18))
    for k in (0, 1, 0, 1):
        hfs = mount(folders[k], memory="16M", cache_dir=cache, cache_size="256M", cache_free="0")
        procs.until(lambda h=hfs: h.status()["tier_state"] == "on", 20, "adopted", poll_s=0.03)
        procs.run([env.binary("tools", "hintctl"), "warm", hfs.path], timeout=60, check=True)
        check_all(hfs, 1 + 100 * k)
        status = hfs.status()
        hfs.stop()
    assert status["tier_hit_bytes"] > 0 and status["tier_bad"] == 0, status


def test_another_users_cache_directory_is_refused(mount, tmp):
    """Filled by one user it is not another's to use, be it root: one line with cause, and nothing in it is touched."""
    folder, cache = os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "f"), 1, SIZE)
    first = mount(folder, cache_dir=cache, cache_size="64M", cache_free="0")
    pattern.check(first.p("f"), 1, SIZE).ok()
    first.stop()
    procs.run(["chown", "-R", "65534:65534", cache], check=True)
    before = procs.run(["ls", "-lRn", "--full-time", cache], check=True).out
    second = mount(folder, start=False, expect_exit=2, cache_dir=cache, cache_size="64M", cache_free="0")
    second.spawn().wait_end(10)
    second.judge()
    assert cache.encode() in second.log() and second.log().count(b"\n") == 1, second.log()
    assert before == procs.run(["ls", "-lRn", "--full-time", cache], check=True).out


def test_a_control_directory_for_a_group(mount, tmp):
    """gid= and its 0660: members of the group write orders, nobody else does."""
    folder = os.path.join(tmp, "origin")
    os.chmod(tmp, 0o755)
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "f"), 1, SIZE)
    hfs = mount(folder, allow_other=True, gid=str(SHARED_GID), cache_dir=os.path.join(tmp, "cache"), cache_size="64M", cache_free="0")
    for place in (hfs.folder, os.path.dirname(hfs.path)):
        os.chmod(place, 0o755)
    order = os.path.join(hfs.ctl, "order")
    assert stat.S_IMODE(os.stat(order).st_mode) == 0o660 and os.stat(order).st_gid == SHARED_GID
    write = ["sh", "-c", f'echo f > "{order}"']
    assert procs.run([*AS_NOBODY, *write]).rc != 0
    assert hfs.status()["control_lines"] == 0
    procs.run(["setpriv", "--reuid=65534", f"--regid={SHARED_GID}", "--clear-groups", *write]).ok()
    procs.until(lambda: hfs.status()["control_lines"] == 1, 10, "the order was taken")
    pattern.check(hfs.p("f"), 1, SIZE).ok()
    hfs.stop()
