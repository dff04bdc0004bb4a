# SPDX-License-Identifier: Apache-2.0
"""The disk tier (cache-dir=): what a remount, a changed file, a killed daemon and a small budget cost at the origin, and that
the bytes are right every time. The origin's own counters (slowfs) say what was fetched; each figure is that of data, not of look-ups.
"""
import mmap
import os
import random
import signal

import pytest

from lib import env, pattern, procs, tree

CHUNK = tree.CHUNK
FILES, SIZE = 12, 2 * CHUNK + 4321  # more than two chunks each
SMALL = 20_000


def make_dataset(folder):
    pattern.make_many(folder, FILES, SIZE)
    pattern.make_many(os.path.join(folder, "small"), FILES, SMALL)


def read_all(hfs, changed=None):
    for i in range(FILES):
        version = 2 if i == changed else 1
        pattern.check(hfs.p("f%04d" % i), i + 1, SIZE, version).ok()
        pattern.check(hfs.p("small", "f%04d" % i), i + 1, SMALL).ok()


def when_kept(hfs, least_bytes, timeout=20):
    """Until so much is on the disk tier (admissions are written in the background)."""
    procs.until(lambda: hfs.status()["tier_bytes"] >= least_bytes, timeout, lambda: f"kept: {hfs.status()}", poll_s=0.05)


class Stage:
    def __init__(self, mount, slow, tmp, link=None, **opts):
        self.mount, self.folder, self.cache = mount, os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
        os.mkdir(self.folder)
        self.opts = {"memory": "64M", "cache_dir": self.cache, "cache_size": "128M", "cache_free": "0", **opts}
        self.far = slow(self.folder, **(link or {}))

    def start(self, **opts):
        """A daemon whose tier has adopted what there is."""
        hfs = self.mount(self.far.path, **{**self.opts, **opts})
        procs.until(lambda: hfs.status()["tier_state"] == "on", 20, lambda: f"tier: {hfs.status()}", poll_s=0.03)
        return hfs


@pytest.fixture
def stage(mount, slow, tmp):
    return lambda **opts: Stage(mount, slow, tmp, **opts)


ALL = FILES * (SIZE + SMALL)


def test_a_remount_reads_nothing_from_the_origin(stage):
    s = stage()
    make_dataset(s.folder)
    hfs = s.start()
    read_all(hfs)
    assert hfs.status()["origin_bytes"] == ALL
    when_kept(hfs, ALL)
    hfs.stop()
    s.far.reset()
    hfs = s.start()
    read_all(hfs)
    status = hfs.status()
    assert s.far.totals()["READ"] == 0 and status["origin_bytes"] == 0, (s.far.totals(), status)
    assert status["tier_hit_bytes"] >= ALL and status["tier_bad"] == 0, status
    hfs.stop("term")


def test_only_a_changed_file_is_fetched_again(stage):
    s = stage()
    make_dataset(s.folder)
    hfs = s.start()
    read_all(hfs)
    when_kept(hfs, ALL)
    hfs.stop()
    path = os.path.join(s.folder, "f0003")
    before = os.stat(path)
    with open(pattern.make(path + ".2", 4, SIZE, version=2), "rb") as new, open(path, "r+b") as old:
        old.write(new.read())
    os.unlink(path + ".2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(path)
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    s.far.reset()
    hfs = s.start()
    read_all(hfs, changed=3)
    assert {r.path for r in s.far.records()} == {"f0003"}
    assert hfs.status()["origin_bytes"] == SIZE
    when_kept(hfs, ALL)
    hfs.stop()
    s.far.reset()
    hfs = s.start()
    read_all(hfs, changed=3)
    assert s.far.totals()["READ"] == 0, "the new version was kept"


def test_small_files_that_the_tier_has_are_not_opened_for_an_order(stage):
    s = stage()
    make_dataset(s.folder)
    hfs = s.start()
    read_all(hfs)
    when_kept(hfs, ALL)
    hfs.stop()
    for changed in (None, 3):
        if changed is not None:
            pattern.make(os.path.join(s.folder, "small", "f%04d" % changed), changed + 1, SMALL, version=2)
        hfs = s.start(immutable=True)  # readers open nothing
        s.far.reset()
        hfs.order("".join("small/f%04d\n" % i for i in range(FILES)))
        n_changed = int(changed is not None)
        procs.until(lambda: hfs.status()["slots_used"] == FILES, 20, lambda: f"fetched: {hfs.status()}")
        for i in range(FILES):
            pattern.check(hfs.p("small", "f%04d" % i), i + 1, SMALL, 2 if i == changed else 1).ok()
        totals = s.far.totals()
        assert totals["OPEN"] == n_changed and totals["READ"] == n_changed, totals
        hfs.stop()


def test_a_file_changed_while_mounted(stage):
    s = stage()
    make_dataset(s.folder)
    hfs = s.start()
    read_all(hfs)
    when_kept(hfs, ALL)
    path = os.path.join(s.folder, "f0005")
    pattern.make(path + ".2", 6, SIZE, version=2)
    os.rename(path + ".2", path)
    read_all(hfs, changed=5)
    hfs.stop()
    hfs = s.start()
    read_all(hfs, changed=5)


def test_kill9_in_the_middle(stage):
    s = stage()
    make_dataset(s.folder)
    hfs = s.start()
    for turn in range(env.scaled(4, 40)):
        for path in procs.run(["find", s.folder, "-type", "f"], check=True).text.split():
            os.utime(path)  # another generation of each: all is fetched and kept anew
        before = hfs.status()["origin_bytes"]
        reader = procs.Child(f'while :; do cat "{hfs.path}"/f* "{hfs.path}"/small/* || exit 9; done > /dev/null')
        procs.until(lambda: hfs.status()["origin_bytes"] >= before + ALL * (turn % 4 + 1) // 5, 20, "something was fetched")
        os.kill(hfs.pid, signal.SIGKILL)
        hfs.proc.wait(10)
        assert reader.wait(10).rc != 0
        hfs.start()
        read_all(hfs)
    hfs.stop()


def test_two_daemons_share_no_cache_dir(stage):
    s = stage()
    make_dataset(s.folder)
    first = s.start()
    second = s.mount(s.far.path, start=False, expect_exit=2, **s.opts)
    second.spawn().wait_end(10)
    second.judge()
    assert s.cache.encode() in second.log() and second.log().count(b"\n") == 1, second.log()
    read_all(first)


@pytest.mark.parametrize("where", ["mount", "source", "above", "foreign"])
def test_places_that_are_refused(mount, tmp, where):
    source, other = os.path.join(tmp, "o", "source"), os.path.join(tmp, "other")
    os.makedirs(source)
    os.mkdir(other)
    with open(os.path.join(other, "mine"), "w") as f:
        f.write("x")
    hfs = mount(source, start=False, expect_exit=1)
    place = {"mount": hfs.p("cache"), "source": os.path.join(source, "cache"), "above": os.path.join(tmp, "o"), "foreign": other}[where]
    hfs.argv[2:2] = ["-o", f"cache-dir={place},cache-size=64M"]
    hfs.expect_exit = 1 if where in ("mount", "source") else 2
    hfs.spawn().wait_end(10)
    hfs.judge()
    assert place.encode() in hfs.log() and hfs.log().count(b"\n") == 1, hfs.log()
    assert os.listdir(other) == ["mine"] and not os.listdir(source)


@pytest.mark.parametrize("opts", [{"cache_size": "64M"}, {"cache_free": "5"}, {"cache_dir": "/nowhere/at/all"},
                                  {"cache_dir": "/nowhere/at/all", "cache_size": "1M"},
                                  {"cache_dir": "/nowhere/at/all", "cache_size": "64M", "cache_free": "100"}])
def test_options_that_do_not_fit_together(mount, tmp, opts):
    hfs = mount(tmp, mountpoint=os.path.join(tmp, "..", os.path.basename(tmp) + ".m"), start=False, expect_exit=1, **opts)
    try:
        hfs.spawn().wait_end(10)
        hfs.judge()
        assert b"cache-" in hfs.log() and hfs.log().count(b"\n") == 1, hfs.log()
    finally:
        os.rmdir(hfs.path)


def test_budget_holds_under_a_larger_dataset(stage):
    s = stage(cache_size="16M", memory="8M")
    make_dataset(s.folder)
    pattern.make(os.path.join(s.folder, "big"), 77, 24 * CHUNK)
    hfs = s.start()

    def passed():
        for name in ["big", *(f"f{i:04d}" for i in range(FILES)), *(f"small/f{i:04d}" for i in range(FILES))]:
            procs.run([env.prog("mt_cmp"), "direct", hfs.p(name), os.path.join(s.folder, name)]).ok()  # past the page cache
        assert procs.du(s.cache) <= 16 << 20 and hfs.status()["tier_bytes"] <= 16 << 20
        return hfs.status()["tier_bytes"] >= 11 << 20

    procs.until(passed, 40, lambda: f"the budget is hardly used: {hfs.status()}")  # what the queue has no room for comes again


EPOCH_PAGES = 512


@pytest.mark.timeout(240)
def test_hinted_epochs_go_to_the_disk(stage, tmp):
    """Memory for an eighth of the file, disk for three eighths: each further epoch needs what neither holds, and little more."""
    # A page takes 8 ms on the link: what a busy machine adds to that changes little of what has to be fetched ahead.
    s = stage(memory="64M", cache_size="192M", link={"latency": "1ms", "bandwidth": "128M"})
    pattern.make(os.path.join(s.folder, "big"), 9, EPOCH_PAGES * CHUNK)
    hfs = s.start()
    shares, hits = [], []
    epochs = [random.Random(seed).sample(range(EPOCH_PAGES), EPOCH_PAGES) for seed in (1, 2, 3)]
    hfs.order("".join(f"@epoch {e}\n" + "".join(f"big\t{p * CHUNK}\t{CHUNK}\n" for p in order)
                      for e, order in enumerate(epochs))).ok()
    before = 0
    for order in epochs:
        fd = os.open(hfs.p("big"), os.O_RDONLY | os.O_DIRECT)
        origin = os.open(os.path.join(s.folder, "big"), os.O_RDONLY)
        try:
            buf = mmap.mmap(-1, CHUNK)
            for p in order:
                assert os.preadv(fd, [buf], p * CHUNK) == CHUNK
                assert buf[:] == os.pread(origin, CHUNK, p * CHUNK), p
        finally:
            os.close(fd), os.close(origin)
        now = hfs.status()["origin_bytes"]
        shares.append((now - before) / (EPOCH_PAGES * CHUNK))
        before = now
        hits.append(hfs.status()["tier_hit_bytes"] // CHUNK)
    print("pages from the disk, in all:", *hits)
    print("origin bytes by epoch, of the file:", *(f"{share:.3f}" for share in shares), hfs.status())
    # Of 512 pages 64 + 186 are held: 0.512 is what MIN needs. By recency it would be more than 0.8.
    slack = 0.15 if env.SANITIZER else 0
    # What comes for the next epoch before this one is read to its end counts here: at most the 8 pages on their way and as many ahead.
    later = shares[1:]
    assert shares[0] <= 1.02 + slack and sum(later) / len(later) <= 0.55 + slack and max(later) <= 0.55 + 16 / EPOCH_PAGES + slack, shares
    assert procs.du(s.cache) <= 192 << 20


@pytest.mark.parametrize("chunk, size", [("1M", "4M"), ("16M", "128M")])
def test_a_budget_of_few_chunks_holds_many_small_files(mount, tmp, chunk, size):
    """It counted as full with the first ones: as many as whole chunks would fit."""
    n, folder = 300, os.path.join(tmp, "origin")
    pattern.make_many(folder, n, 1000)
    hfs = mount(folder, memory="64M", chunk=chunk, cache_dir=os.path.join(tmp, "cache"), cache_size=size, cache_free="0")
    procs.until(lambda: hfs.status()["tier_state"] == "on", 20, "adopted")
    for i in range(n):
        pattern.check(hfs.p("f%04d" % i), i + 1, 1000).ok()
    procs.until(lambda: hfs.status()["tier_files_small"] >= n, 20, lambda: f"kept: {hfs.status()}", poll_s=0.05)
