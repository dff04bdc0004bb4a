# SPDX-License-Identifier: Apache-2.0
"""Trouble of the cache's disk under a live mount: every byte stays right, nobody gets an error, one warning is logged, and the
tier comes back when the trouble is over. Its own disk is a small file system (loop, tmpfs), or fails by a shim (fault/tier/shim.c).
"""
import os
import random
import shutil

import pytest

from lib import env, mounts, pattern, procs, tree

CHUNK = tree.CHUNK
FILES, SIZE, SMALL = 8, 2 * CHUNK + 4321, 20_000
ALL = FILES * (SIZE + SMALL)
SHIM = env.BUILD / "tests/fault/tier/tier_shim.so"
unsanitized = pytest.mark.skipif(bool(env.SANITIZER), reason="the sanitizer's own wrappers and the shim exclude each other")


class Stage:
    def __init__(self, mount, slow, tmp):
        self.mount, self.tmp, self.folder = mount, tmp, os.path.join(tmp, "origin")
        self.disk = os.path.join(tmp, "disk")
        self.cache = os.path.join(self.disk, "cache")
        self.ctl = os.path.join(tmp, "shim")
        os.mkdir(self.disk, 0o700)
        pattern.make_many(self.folder, FILES, SIZE)
        pattern.make_many(os.path.join(self.folder, "small"), FILES, SMALL)
        self.far = slow(self.folder)

    def put(self, *args):
        """A file system on the disk's place."""
        procs.run(["mount", *args, self.disk], check=True)
        os.chmod(self.disk, 0o700)

    def loop(self, megabytes):
        image = os.path.join(self.tmp, "image")
        with open(image, "wb") as f:
            f.truncate(megabytes << 20)
        procs.run(["mkfs.ext4", "-q", "-F", image], check=True)
        self.put("-o", "loop", image)

    def fault(self, mode, per_cent=100):
        with open(self.ctl, "r+b" if os.path.exists(self.ctl) else "wb") as f:
            f.write(bytes([mode, per_cent]) + (b"" if os.path.getsize(self.ctl) >= 4096 else bytes(4094)))

    def start(self, shim=False, source=None, **opts):
        wrap = []
        if shim:
            self.fault(0)
            wrap = ["env", f"LD_PRELOAD={SHIM}", f"SHIM_DIR={self.cache}", f"SHIM_CTL={self.ctl}"]
        opts = {"cache_size": "128M", "cache_free": "0", "memory": "8M", "wrap": wrap, **opts}
        hfs = self.mount(source or self.far.path, cache_dir=self.cache, **opts)
        self.until_state(hfs, "on")
        return hfs

    def until_state(self, hfs, *states, timeout=40):
        procs.until(lambda: hfs.status()["tier_state"] in states, timeout, lambda: f"{states}: {hfs.status()}", poll_s=0.05)

    def pass_over(self, hfs, timeout=60):
        """Every byte, past the page cache."""
        for i in range(FILES):
            for name in ("f%04d" % i, "small/f%04d" % i):
                procs.run([env.prog("mt_cmp"), "direct", hfs.p(name), os.path.join(self.folder, name)], timeout=timeout).ok()


@pytest.fixture
def stage(mount, slow, tmp):
    s = Stage(mount, slow, tmp)
    yield s
    mounts.clear_below(s.disk) if not any(d.is_running() for d in mount.made) else None


def warnings(hfs):
    return [line for line in hfs.log().splitlines() if b"warning: disk cache" in line and b" now, files are read" in line]


def fill(stage, hfs):
    def passed():
        stage.pass_over(hfs)
        return hfs.status()["tier_bytes"] >= ALL
    procs.until(passed, 40, lambda: f"it fills: {hfs.status()}")


def test_read_only_and_back(stage):
    stage.loop(64)
    hfs = stage.start(cache_size="40M")
    fill(stage, hfs)
    procs.until(lambda: hfs.status()["tier_unsynced_bytes"] == 0, 20, "synced")
    # As a disk with errors does it: at once, whoever has files open (a plain remount would be refused).
    procs.run(f"echo 1 > /sys/fs/ext4/$(basename $(findmnt -no SOURCE {stage.disk}))/trigger_fs_error", timeout=10)
    procs.run(["mount", "-o", "remount,ro", stage.disk], timeout=10)
    pattern.make(os.path.join(stage.folder, "new"), 60, SIZE)
    before = hfs.status()["tier_hit_bytes"]

    def noticed():
        pattern.check(hfs.p("new"), 60, SIZE).ok()
        os.utime(os.path.join(stage.folder, "new"))  # another generation: it is admitted anew
        return hfs.status()["tier_state"] in ("read-only", "off")
    if os.statvfs(stage.disk).f_flag & os.ST_RDONLY:
        procs.until(noticed, 40, lambda: f"noticed: {hfs.status()}", poll_s=0.1)
    else:
        pytest.skip("this kernel does not turn the file system read-only")
    stage.pass_over(hfs)
    status = hfs.status()
    assert len(warnings(hfs)) == 1 and status["tier_errors_read_only"] > 0, (hfs.log(), status)
    assert status["tier_state"] == "off" or status["tier_hit_bytes"] > before, status


@unsanitized
def test_read_only_by_its_calls(stage):
    """The same on any kernel: writes give EROFS, reads go on."""
    hfs = stage.start(shim=True)
    fill(stage, hfs)
    before = hfs.status()["tier_hit_bytes"]
    stage.fault(3)
    pattern.make(os.path.join(stage.folder, "new"), 60, SIZE)

    def noticed():
        os.utime(os.path.join(stage.folder, "new"))  # another generation: it is admitted anew
        pattern.check(hfs.p("new"), 60, SIZE).ok()
        return hfs.status()["tier_state"] in ("read-only", "off")
    procs.until(noticed, 40, lambda: f"noticed: {hfs.status()}", poll_s=0.1)
    stage.pass_over(hfs)
    status = hfs.status()
    assert len(warnings(hfs)) == 1 and status["tier_errors_read_only"] > 0, (hfs.log(), status)
    assert status["tier_state"] == "read-only" and status["tier_hit_bytes"] > before, status
    stage.fault(0)
    stage.until_state(hfs, "on")
    stage.pass_over(hfs)
    hfs.stop()


def test_directory_gone_and_back(stage):
    hfs = stage.start()
    fill(stage, hfs)
    os.rename(stage.cache, stage.cache + ".away")
    stage.until_state(hfs, "off")
    stage.pass_over(hfs)
    os.mkdir(stage.cache, 0o700)  # another one in its place: left alone
    stage.pass_over(hfs)
    status = hfs.status()
    assert status["tier_state"] == "off" and status["tier_cause"] == "gone" and status["tier_bypass_gone"] > 0, status
    assert os.listdir(stage.cache) == [] and len(warnings(hfs)) == 1, hfs.log()
    os.rmdir(stage.cache)
    os.rename(stage.cache + ".away", stage.cache)
    stage.until_state(hfs, "on")
    before = hfs.status()["tier_hit_bytes"]
    stage.pass_over(hfs)
    assert hfs.status()["tier_hit_bytes"] > before


def test_directory_removed(stage):
    hfs = stage.start()
    fill(stage, hfs)
    shutil.rmtree(stage.cache)
    stage.until_state(hfs, "off")
    stage.pass_over(hfs)
    assert len(warnings(hfs)) == 1


@pytest.mark.timeout(120)
def test_a_small_disk(stage):
    """The budget is larger than the disk."""
    stage.loop(64)
    pattern.make(os.path.join(stage.folder, "big"), 77, 70 * CHUNK)
    hfs = stage.start(cache_size="1G")
    for _ in range(3):
        procs.run([env.prog("mt_cmp"), "direct", hfs.p("big"), os.path.join(stage.folder, "big")]).ok()
        stage.pass_over(hfs)
    status = hfs.status()
    assert status["tier_bad"] == 0 and status["tier_bytes"] > 16 << 20, status
    assert len(warnings(hfs)) <= 1, hfs.log()


def test_few_inodes(stage):
    stage.put("-t", "tmpfs", "-o", "size=64M,nr_inodes=64", "none")
    pattern.make_many(os.path.join(stage.folder, "many"), 60, CHUNK + 1)
    hfs = stage.start(cache_size="60M")
    for _ in range(2):
        for i in range(60):
            name = "many/f%04d" % i
            procs.run([env.prog("mt_cmp"), "direct", hfs.p(name), os.path.join(stage.folder, name)]).ok()
        stage.pass_over(hfs)
    st = os.statvfs(stage.disk)
    assert hfs.status()["tier_inodes"] <= 64 and st.f_ffree >= 0 and len(warnings(hfs)) <= 1, (hfs.status(), hfs.log())
    assert hfs.status()["tier_hit_bytes"] > 0


def test_a_disk_filled_by_somebody_else(stage):
    stage.put("-t", "tmpfs", "-o", "size=48M", "none")
    hfs = stage.start(cache_size="40M", cache_free="5")
    fill(stage, hfs)
    other = os.path.join(stage.disk, "other")
    procs.run(["dd", "if=/dev/zero", f"of={other}", "bs=1M", "count=100"], timeout=30)  # until it is full
    for _ in range(2):
        for i in range(FILES):
            os.utime(os.path.join(stage.folder, "f%04d" % i))  # all is to be admitted anew
        stage.pass_over(hfs)
    free = os.statvfs(stage.disk)
    procs.until(lambda: os.statvfs(stage.disk).f_bavail > 0, 20, "it gave way")
    assert len(warnings(hfs)) <= 1, (hfs.log(), free)
    os.unlink(other)
    stage.until_state(hfs, "on", timeout=90)
    fill(stage, hfs)


@pytest.mark.parametrize("trouble", ["full", "gone"])
def test_what_was_refused_is_taken_when_the_trouble_is_over(stage, trouble):
    """Without another read: what is in memory stays there, and is not fetched a second time."""
    stage.put("-t", "tmpfs", "-o", "size=48M", "none")
    hfs = stage.start(cache_size="40M", cache_free="5")
    other = os.path.join(stage.disk, "other")
    if trouble == "full":
        procs.run(["dd", "if=/dev/zero", f"of={other}", "bs=1M", "count=100"], timeout=30)
    else:
        os.rename(stage.cache, stage.cache + ".away")
        stage.until_state(hfs, "off")
    before = hfs.status()
    pattern.check(hfs.p("f0000"), 1, SIZE).ok()
    procs.until(lambda: hfs.status()["tier_skipped_full" if trouble == "full" else "tier_bypass_gone"] > 0, 20, "refused")
    if trouble == "full":
        os.unlink(other)
    else:
        os.rename(stage.cache + ".away", stage.cache)
    procs.until(lambda: hfs.status()["tier_admitted_bytes"] - before["tier_admitted_bytes"] >= SIZE, 40,
                lambda: f"taken: {hfs.status()}")
    assert hfs.status()["origin_bytes"] - before["origin_bytes"] == SIZE


@unsanitized
@pytest.mark.parametrize("per_cent", [10, 100])
def test_input_output_errors(stage, per_cent):
    hfs = stage.start(shim=True)
    fill(stage, hfs)
    stage.fault(1, per_cent)
    for _ in range(3):
        stage.pass_over(hfs)
    status = hfs.status()
    assert status["tier_errors_io_error"] > 0, status
    if per_cent == 100:
        stage.until_state(hfs, "read-only", "off")
        for _ in range(2):
            stage.pass_over(hfs)
        assert len(warnings(hfs)) == 1, hfs.log()
    stage.fault(0)
    stage.until_state(hfs, "on")
    fill(stage, hfs)


@unsanitized
def test_a_hanging_disk_costs_one_bounded_delay(stage):
    hfs = stage.start(shim=True)
    fill(stage, hfs)
    stage.fault(2)
    took = [procs.run([env.prog("mt_cmp"), "direct", hfs.p("f%04d" % i), os.path.join(stage.folder, "f%04d" % i)],
                      timeout=20).ok().wall_s for i in range(FILES)]
    status = hfs.status()
    assert status["tier_state"] == "off" and status["tier_cause"] == "hang" and status["tier_read_timeouts"] >= 1, status
    # One wait of a second for all of them together; what is in slots needs none.
    assert sum(took) < 3 and sorted(took)[-2] < 1, took
    assert len(warnings(hfs)) == 1 and status["tier_bypass_hang"] > 0, (hfs.log(), status)
    stage.fault(0)
    stage.until_state(hfs, "on")
    stage.pass_over(hfs)
    hfs.stop()


@unsanitized
def test_a_hanging_disk_keeps_some_slots_at_most(stage):
    """Fewest slots, and more readers than that: what is read from the disk when it hangs must not be all of them."""
    hfs = stage.start(shim=True, memory="4M")
    fill(stage, hfs)
    stage.fault(2)
    children = [procs.Child([env.prog("mt_cmp"), "direct", hfs.p("f%04d" % i), os.path.join(stage.folder, "f%04d" % i)])
                for i in range(FILES)]
    for child in children:
        child.wait(20).ok()
    stage.fault(0)
    stage.until_state(hfs, "on")
    stage.pass_over(hfs)
    hfs.stop()


@unsanitized
def test_a_hanging_disk_does_not_hold_up_the_end(stage):
    hfs = stage.start(shim=True)
    fill(stage, hfs)
    stage.fault(2)
    pattern.check(hfs.p("f0000"), 1, SIZE).ok()
    hfs.stop("term")
    stage.fault(0)


def dates_changed(folder, n, rng):
    """Some files are another generation from now on, of the same bytes."""
    for i in rng.sample(range(n), 20):
        os.utime(os.path.join(folder, f"{i:05d}"))


@pytest.mark.timeout(env.scaled(240, 7200))
@pytest.mark.parametrize("mode, passes", [("nocto", env.scaled(4, 100)), ("default", env.scaled(4, 10))])
def test_budget_with_many_small_files_and_readers(stage, mode, passes):
    """Files of 1 KiB, and 8 readers forward and backward with 4 slots, files open while culled: du never says more than the limit,
    nobody gets an error. In default mode some files change all the time.
    """
    n, limit, rng = env.scaled(4_000, 50_000), 4 << 20, random.Random(6)
    many = os.path.join(stage.folder, "many")
    os.mkdir(many)
    procs.run([env.prog("mt_passes"), "make", many, n], check=True)
    opts = {"nocto": True, "revalidate": "7200"} if mode == "nocto" else {}
    hfs = stage.start(cache_size=str(limit), chunk="64K", memory="256K", source=stage.folder, **opts)
    children = [procs.Child([env.prog("mt_passes"), "read", hfs.p("many"), n, passes, k, 8, hfs.p(".ctl/streams")]) for k in range(8)]
    most = 0

    def ended():
        nonlocal most
        most = max(most, procs.du(stage.cache))
        assert most <= limit, most
        if mode == "default":
            dates_changed(many, n, rng)
        return all(c.proc.poll() is not None for c in children)
    procs.until(ended, env.scaled(200, 7000), "readers ended", poll_s=0.1)  # with nocto 14 million opens at full size
    done, again = (sum(column) for column in zip(*(map(int, c.wait(5).ok().text.split()) for c in children)))
    assert done == n * sum(8 if p % 4 == 3 else 1 for p in range(passes))
    assert mode == "default" or again == 0
    status = hfs.status()
    print(mode, "files read", done, "changed under the reader", again, "du at most", most, "of", limit, {k: v for k, v in status.items() if k.startswith("tier_")})
    assert most > limit * 7 // 8, "the limit was hardly used"
    assert status["tier_dropped"] > 0 and status["tier_admitted_bytes"] >= env.scaled(1 << 20, limit), status
    assert status["tier_bad"] == 0 and status["tier_hits"] > 0, status
