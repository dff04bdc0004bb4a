# SPDX-License-Identifier: Apache-2.0
"""An immutable dataset whose origin hangs, is stopped or is not there: what the disk tier had of it is still listed and read.

The tree is judged by what find(1) prints of every name, and every byte is compared with the pattern.
"""
import os

import pytest

from lib import pattern, procs, tree

CHUNK = tree.CHUNK
FILES, SIZE, SMALL = 5, 2 * CHUNK + 4321, 20_000
ALL = FILES * (SIZE + SMALL)


def make_dataset(folder):
    pattern.make_many(folder, FILES, SIZE)
    pattern.make_many(os.path.join(folder, "sub", "small"), FILES, SMALL)
    open(os.path.join(folder, "sub", "empty"), "w").close()
    os.mkdir(os.path.join(folder, "nothing"))
    os.symlink("sub/small/f0001", os.path.join(folder, "link"))
    os.chmod(os.path.join(folder, "f0002"), 0o640)


def look(hfs, timeout=60):
    """Every name with its type, size, mode, links, times and target, sorted."""
    found = procs.run(["find", hfs.path, "-printf", "%P|%y|%s|%m|%n|%i|%T@|%C@|%l\n"], timeout=timeout, check=True)
    return sorted(found.text.splitlines())


def read_all(hfs):
    for i in range(FILES):
        pattern.check(hfs.p("f%04d" % i), i + 1, SIZE).ok()
        pattern.check(hfs.p("sub", "small", "f%04d" % i), i + 1, SMALL).ok()
    pattern.check(hfs.p("link"), 2, SMALL).ok()


class Stage:
    def __init__(self, mount, slow, tmp):
        self.mount, self.slow, self.folder = mount, slow, os.path.join(tmp, "origin")
        self.cache = os.path.join(tmp, "cache")
        os.mkdir(self.folder)
        make_dataset(self.folder)
        self.far = slow(self.folder)

    def start(self, **opts):
        return self.mount(self.far.path, memory="32M", immutable=True, cache_dir=self.cache, cache_size="128M",
                          cache_free="0", **opts)

    def fill(self):
        """One run while all is well; what it saw."""
        hfs = self.start()
        seen = look(hfs)
        read_all(hfs)
        procs.until(lambda: hfs.status()["tier_bytes"] >= ALL, 20, lambda: f"kept: {hfs.status()}", poll_s=0.05)
        hfs.stop()
        return seen


@pytest.fixture
def stage(mount, slow, tmp):
    return Stage(mount, slow, tmp)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("when", ["while mounted", "before"])
def test_a_hung_origin(stage, when):
    seen = stage.fill()
    if when == "before":
        stage.far.hang("*")
    hfs = stage.start()
    stage.far.hang("*")
    assert look(hfs) == seen
    read_all(hfs)
    status = hfs.status()
    assert status["late_metadata"] > 0 and status["origin_bytes"] == 0, status
    stage.far.unhang()
    read_all(hfs)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["stopped", "directory gone", "server killed"])
def test_an_origin_that_is_not_there(stage, how):
    seen = stage.fill()
    if how == "server killed":  # while mounted
        hfs = stage.start()
        look(hfs)
        stage.far.die()
    else:
        stage.far.go()
        if how == "directory gone":
            os.rmdir(stage.far.path)
        hfs = stage.start()
    assert look(hfs) == seen
    read_all(hfs)
    assert hfs.status()["origin_bytes"] == 0
    assert procs.run(["df", hfs.path], timeout=10).rc == 0
    hfs.stop()


@pytest.mark.timeout(120)
def test_an_origin_that_comes_later(stage):
    seen = stage.fill()
    stage.far.go()
    hfs = stage.start()
    assert look(hfs) == seen
    pattern.make(os.path.join(stage.folder, "nothing", "new"), 99, SMALL)  # never seen: from the origin only
    again = stage.slow(stage.folder, mountpoint=stage.far.path)
    procs.until(lambda: pattern.check(hfs.p("nothing", "new"), 99, SMALL).rc == 0, 20, "the origin is there again", poll_s=0.1)
    read_all(hfs)
    assert again.totals()["READ"] == 1


def test_another_origin_at_that_place_is_not_taken_for_it(stage, tmp):
    """Same names, sizes and times; another server."""
    stage.fill()
    stage.far.go()
    other = os.path.join(tmp, "other")
    os.mkdir(other)
    for i in range(FILES):
        before = os.stat(os.path.join(stage.folder, "f%04d" % i))
        path = pattern.make(os.path.join(other, "f%04d" % i), i + 1, SIZE, version=2)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    stage.slow(other, mountpoint=stage.far.path)
    hfs = stage.start()
    for i in range(FILES):
        pattern.check(hfs.p("f%04d" % i), i + 1, SIZE, 2).ok()
    assert hfs.status()["tier_hit_bytes"] < CHUNK and "sub" not in "".join(look(hfs))


def test_without_a_record_it_is_refused(stage):
    stage.far.go()
    os.rmdir(stage.far.path)
    hfs = stage.mount(stage.far.path, start=False, expect_exit=2, immutable=True, cache_dir=stage.cache, cache_size="128M")
    hfs.spawn().wait_end(20)
    hfs.judge()
    assert b"not there" in hfs.log() and hfs.log().count(b"\n") == 1, hfs.log()


def test_not_immutable_is_as_before(stage):
    stage.fill()
    stage.far.go()
    os.rmdir(stage.far.path)
    hfs = stage.mount(stage.far.path, start=False, expect_exit=1, cache_dir=stage.cache, cache_size="128M")
    hfs.spawn().wait_end(20)
    hfs.judge()


def test_damage_to_what_was_noted(stage):
    """Garbage in every pack: names are missing, nothing is wrong, and with the origin there all is well."""
    seen = stage.fill()
    packs = [os.path.join(top, name) for top, _, names in os.walk(stage.cache) for name in names if name.endswith(".p")]
    assert packs
    for path in packs:
        size = os.path.getsize(path)
        with open(path, "r+b") as f:
            for at in range(4096, size, 4096):
                f.seek(at)
                block = f.read(64)
                if block.strip(b"\0"):
                    f.seek(at)
                    f.write(bytes(b ^ 0x5a for b in block))
    hfs = stage.start()
    stage.far.hang("*")
    # What was lost waits for the origin, as on any hard mount.
    found = procs.run(["timeout", "-s", "KILL", "5", "find", hfs.path, "-maxdepth", "1", "-printf", "%P|%y|%s\n"], timeout=20)
    plain = {tuple(line.split("|")[:3]) for line in seen}
    for line in found.text.splitlines():
        assert tuple(line.split("|")) in plain, line
    stage.far.unhang()
    procs.until(lambda: look(hfs) == seen, 20, "all is listed", poll_s=0.2)
    read_all(hfs)
