# SPDX-License-Identifier: Apache-2.0
"""A file changes on the server: what do an old handle and a new open show through hintfs?

A new open shows the new file at once, also where NFS goes on with the old one for 30 s. An old handle shows the old bytes
or ESTALE, never a mixture, never an early end of file.
"""
import os
import time

import pytest

from lib import env, procs
from nfs import content

MIB = 1 << 20
SIZE = 3 * MIB + 4096 + 100  # more than three chunks
OLD, NEW = [1, SIZE], [2, SIZE]


def old_or_stale(reader, name, size=SIZE, version=1):
    """All of a held file, from its end to its start: old bytes or ESTALE everywhere."""
    for at in range(size // MIB * MIB, -1, -MIB):
        seen = reader.call("pread", name, at, MIB)
        assert seen in ("ESTALE", [version, min(MIB, size - at)]), (at, seen)
    assert reader.call("fsize", name) == reader.call("end", name) == size


@pytest.fixture
def stage(nfs, shared):
    nfs.put("f", 1, SIZE)
    return shared


def test_replaced_with_nothing_open(nfs, stage):
    for version in range(2, 8):
        assert stage.one.cat(stage.path("f")) == [version - 1, SIZE]
        nfs.replace("f", version, SIZE)
    assert stage.one.cat(stage.path("f")) == [7, SIZE]


def test_replaced_while_held(nfs, stage):
    """NFS 4.2 opens the held file by its handle and shows the old one for 30 s."""
    assert stage.one.call("hold", "h", stage.path("f")) == SIZE
    assert stage.one.call("pread", "h", 0, 4096) == [1, 4096]
    for version in range(2, 8):
        nfs.replace("f", version, SIZE)
        assert stage.two.cat(stage.path("f")) == [version, SIZE]
        assert stage.two.call("hold", f"h{version}", stage.path("f")) == SIZE
    old_or_stale(stage.one, "h")
    for version in range(2, 7):
        old_or_stale(stage.two, f"h{version}", version=version)
    assert stage.two.call("pread", "h7", 2 * MIB, 4096) == [7, 4096]


@pytest.mark.parametrize("quiet", [False, True])
def test_rewritten_in_place(nfs, stage, quiet):
    """Same size; with mtime put back only ctime tells."""
    assert stage.one.cat(stage.path("f")) == OLD
    assert stage.one.call("hold", "h", stage.path("f")) == SIZE
    nfs.rewrite_quietly("f", 2) if quiet else nfs.put("f", 2, SIZE)
    assert stage.two.cat(stage.path("f")) == NEW
    old_or_stale(stage.one, "h")
    assert stage.two.cat(stage.path("f")) == NEW


@pytest.mark.parametrize("size", [SIZE - 2 * MIB, 0, SIZE + 2 * MIB + 5])
def test_another_size(nfs, stage, size):
    assert stage.one.call("hold", "h", stage.path("f")) == SIZE
    assert stage.one.call("pread", "h", MIB, 4096) == [1, 4096]
    nfs.put("f", 2, size)
    assert stage.two.cat(stage.path("f")) == [2 if size else 0, size]
    old_or_stale(stage.one, "h")
    assert stage.two.call("size", stage.path("f")) == size


def test_removed_while_held(nfs, stage):
    assert stage.one.call("hold", "h", stage.path("f")) == SIZE
    assert stage.one.call("pread", "h", 0, 4096) == [1, 4096]
    nfs.tick()
    os.remove(nfs.at_server("f"))
    assert stage.two.cat(stage.path("f")) == "ENOENT"
    begun = time.monotonic()
    while time.monotonic() < begun + 6:  # NFS 3 reads short first, and says ESTALE after 4 s
        old_or_stale(stage.one, "h")
        stage.one.call("drop_caches")
        nfs.tick()
    assert stage.two.cat(stage.path("f")) == "ENOENT"


def test_removed_and_made_again(nfs, stage):
    """The server gives the new file the old inode number."""
    assert stage.one.cat(stage.path("f")) == OLD
    before = os.stat(nfs.at_server("f"))
    same = 0
    for version in range(2, 6):
        nfs.tick()
        os.remove(nfs.at_server("f"))
        nfs.put("f", version, SIZE)
        os.utime(nfs.at_server("f"), ns=(before.st_atime_ns, before.st_mtime_ns))
        same += os.stat(nfs.at_server("f")).st_ino == before.st_ino
        assert stage.one.cat(stage.path("f")) == [version, SIZE]
    print("same inode number:", same, "of 4")


@pytest.mark.full
def test_removed_on_this_machine(nfs, stage):
    """The NFS client renames what it has open to .nfsXXXX; no reader of hintfs must keep one alive for long."""
    assert stage.one.cat(stage.path("f")) == OLD
    assert procs.run(["rm", os.path.join(nfs.path, "f")]).rc == 0
    assert stage.one.cat(stage.path("f")) == "ENOENT"
    procs.until(lambda: os.listdir(nfs.export) == [], 20, lambda: f"left: {os.listdir(nfs.export)}")


def test_appended_under_a_tail_reader(nfs, stage):
    """Every 100 ms a piece more: each open shows one size and all bytes up to there, and sizes only grow."""
    path, sizes = nfs.at_server("log"), []
    nfs.put("log", 1, 0)
    whole = content(1, 64 * 50_000)
    for step in range(1, env.scaled(12, 60)):
        with open(path, "ab") as f:
            f.write(whole[(step - 1) * 50_000:step * 50_000])
        seen = stage.one.cat(stage.path("log"))
        assert seen == [1, step * 50_000], (step, seen)
        sizes.append(seen[1])
        nfs.tick(), nfs.tick()
    assert sizes == sorted(set(sizes))


def test_names_that_come_and_go(nfs, stage):
    """A name that was looked for in vain, and listings: NFS itself knows of neither for 30 s."""
    assert stage.one.cat(stage.path("later")) == "ENOENT"
    assert stage.one.call("list", stage.path()) == ["f"]
    nfs.put("later", 5, 5000)
    procs.until(lambda: stage.one.cat(stage.path("later")) == [5, 5000], 3, "the new name is seen")
    procs.until(lambda: stage.one.call("list", stage.path()) == ["f", "later"], 3, "the new name is listed")
    os.remove(nfs.at_server("f"))
    procs.until(lambda: stage.one.call("list", stage.path()) == ["later"], 3, "the old name is gone")
    assert stage.one.cat(stage.path("f")) == "ENOENT"


def test_a_directory_is_replaced(nfs, stage):
    for version in range(1, 5):
        folder = nfs.at_server(f"d{version}")
        os.mkdir(folder)
        nfs.put(f"d{version}/g", version, 5000)
        if os.path.exists(nfs.at_server("dir")):
            os.rename(nfs.at_server("dir"), nfs.at_server(f"old{version}"))
        os.rename(folder, nfs.at_server("dir"))
        procs.until(lambda: stage.one.cat(stage.path("dir/g")) == [version, 5000], 3,
                    lambda: f"version {version}: {stage.one.cat(stage.path('dir/g'))}")


GAP_MS = 50  # this kernel's clock ticks every 10 ms (README.md, rule 1)
FIGURES = {"replace": 20, "overwrite": 5, "overwrite-mtime": 5, "resize": 5}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", FIGURES)
def test_changed_all_the_time(nfs, stage, how):
    """mt_identity of the mount suite: four openers and a holder, while the file changes under them."""
    rounds = env.scaled(FIGURES[how], 10 * FIGURES[how])
    result = procs.run([env.prog("mt_identity"), how, nfs.export, stage.path(), rounds, MIB + 4112, GAP_MS], timeout=100)
    assert result.rc == 0, (result.rc, result.out, result.err[-2000:])
