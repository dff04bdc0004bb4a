# SPDX-License-Identifier: Apache-2.0
"""Kinds of origin: identity, changes and errors are right on each, not only on the disk the other cases use.

A kind that this machine does not have is skipped. NFS has a suite of its own (tests/nfs).
"""
import os

import pytest

from lib import pattern, procs, tree

SIZE = 2 * tree.CHUNK + 4321
ABSENT = "this machine cannot mount it: "


def mounted(kind, point, *options):
    os.makedirs(point, exist_ok=True)
    done = procs.run(["mount", *options, point])
    if done.rc != 0:
        pytest.skip(f"{kind}: {ABSENT}{done.err[-200:]!r}")
    return point


def make_plain(tmp, slow):
    folder = os.path.join(tmp, "origin")
    os.mkdir(folder)
    return folder, folder


def make_ext4(tmp, slow, inode_bytes=256):
    """inode_bytes=128: times of whole seconds, as on file systems of old."""
    image = os.path.join(tmp, "ext4.img")
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    procs.run(["mkfs.ext4", "-q", "-F", "-I", str(inode_bytes), image], check=True)
    point = mounted("ext4", os.path.join(tmp, "ext4"), "-o", "loop", image)
    return point, point


def make_ext4_seconds(tmp, slow):
    return make_ext4(tmp, slow, 128)


def make_tmpfs(tmp, slow):
    point = mounted("tmpfs", os.path.join(tmp, "tmpfs"), "-t", "tmpfs", "-o", "size=64m", "tmpfs")
    return point, point


def make_overlay(tmp, slow):
    """The dataset lies in the lower layer; what changes is copied up, and gets another inode there."""
    parts = {name: os.path.join(tmp, name) for name in ("lower", "upper", "work")}
    for path in parts.values():
        os.mkdir(path)
    populate(parts["lower"])
    options = ",".join(f"{key}={parts[name]}" for key, name in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")))
    point = mounted("overlay", os.path.join(tmp, "overlay"), "-t", "overlay", "-o", options, "overlay")
    return point, point


def make_fuse(tmp, slow):
    folder = os.path.join(tmp, "behind")
    os.mkdir(folder)
    return slow(folder).path, folder


KINDS = {"plain": make_plain, "ext4": make_ext4, "ext4-seconds": make_ext4_seconds, "tmpfs": make_tmpfs,
         "overlay": make_overlay, "fuse": make_fuse}


def populate(folder):
    for i in range(3):
        pattern.make(os.path.join(folder, f"f{i}"), i + 1, SIZE)
    os.makedirs(os.path.join(folder, "d"), exist_ok=True)
    pattern.make(os.path.join(folder, "d", "g"), 9, 5000)


@pytest.fixture(params=KINDS)
def origin(request, tmp, slow):
    """(where hintfs looks, where changes are made)"""
    source, behind = KINDS[request.param](tmp, slow)
    if not os.path.exists(os.path.join(behind, "f0")) and request.param != "overlay":
        populate(behind)
    return source, behind


def test_identity_and_change(mount, origin):
    """Everything is as it is there; each kind of change is seen by the next open; nothing else is fetched again."""
    source, behind = origin
    hfs = mount(source)
    for i in range(3):
        pattern.check(hfs.p(f"f{i}"), i + 1, SIZE).ok()
        there, here = os.stat(os.path.join(source, f"f{i}")), procs.run(["stat", "-c", "%i %s %Y", hfs.p(f"f{i}")], check=True)
        assert here.text.split() == [str(there.st_ino), str(there.st_size), str(int(there.st_mtime))]
    before = hfs.status()["origin_bytes"]
    pattern.make(os.path.join(behind, "new"), 1, SIZE, version=2)
    os.rename(os.path.join(behind, "new"), os.path.join(behind, "f0"))  # another inode
    pattern.check(hfs.p("f0"), 1, SIZE, version=2).ok()
    os.remove(os.path.join(behind, "f1"))
    assert pattern.errno_of(pattern.check(hfs.p("f1"), 2, SIZE)) == 2
    pattern.make(os.path.join(behind, "f1"), 2, SIZE - tree.CHUNK, version=3)  # made again, and shorter
    procs.until(lambda: pattern.check(hfs.p("f1"), 2, SIZE - tree.CHUNK, version=3).rc == 0, 5, "f1 is back")
    pattern.check(hfs.p("f2"), 3, SIZE).ok()
    assert hfs.status()["origin_bytes"] - before == SIZE + SIZE - tree.CHUNK, "f2 did not come again"


def test_the_same_identity_after_a_restart(mount, origin, tmp):
    """The disk tier knows the files again: no origin data the second time."""
    source, behind = origin
    for name in ("f0", "f1", "f2"):  # not of this moment, which could change unseen
        os.utime(os.path.join(behind, name), (1_600_000_000, 1_600_000_000))
    opts = {"cache_dir": os.path.join(tmp, "cache"), "cache_size": "64M", "cache_free": 0, "memory": "16M"}
    for turn in range(2):
        hfs = mount(source, **opts)
        procs.until(lambda: hfs.status()["tier_state"] == "on", 20, lambda: f"tier: {hfs.status()}")
        for i in range(3):
            pattern.check(hfs.p(f"f{i}"), i + 1, SIZE).ok()
        assert hfs.status()["origin_bytes"] == (0 if turn else 3 * SIZE)
        procs.until(lambda: hfs.status()["tier_bytes"] >= 3 * SIZE, 20, lambda: f"kept: {hfs.status()}")
        hfs.stop()


def test_errors(mount, origin):
    source, _ = origin
    hfs = mount(source)
    for path, errno in ((("absent",), 2), (("f0", "below"), 20), (("d",), 21), (("n" * 256,), 36)):
        result = pattern.check(hfs.p(*path), 1, SIZE)
        assert pattern.errno_of(result) == errno, (path, result.rc, result.err)
    for command in ('echo > "$F"', 'rm "$F"', 'chmod 600 "$F"', 'mv "$F" "$F.2"'):
        assert procs.run(command, env={**os.environ, "F": hfs.p("f0"), "LC_ALL": "C"}).err.count(b"Read-only file system") == 1
    pattern.check(hfs.p("f0"), 1, SIZE).ok()
    pattern.check(hfs.p("d", "g"), 9, 5000).ok()


def test_several_kinds_below_one_source(mount, tmp):
    """Mounts below the source are followed; the same inode number on two of them is two files."""
    source = os.path.join(tmp, "origin")
    os.makedirs(source)
    for name in ("one", "two"):
        mounted("tmpfs", os.path.join(source, name), "-t", "tmpfs", "tmpfs")
        pattern.make(os.path.join(source, name, "f"), 1 if name == "one" else 2, SIZE)
    hfs = mount(source)
    numbers = set()
    for number, name in ((1, "one"), (2, "two")):
        pattern.check(hfs.p(name, "f"), number, SIZE).ok()
        numbers.add(procs.run(["stat", "-c", "%i", hfs.p(name, "f")], check=True).text)
    assert len(numbers) == 2
