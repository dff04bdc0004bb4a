# SPDX-License-Identifier: Apache-2.0
"""The mount shows what the origin shows: the same tree seen by ordinary programs on both sides."""
import os
import resource

import pytest

from lib import env, mounts, procs, tree


@pytest.fixture
def origin(tmp):
    return tree.make(os.path.join(tmp, "origin"))


def on(folder, command, timeout=120):
    return procs.run(command, timeout=timeout, env={**os.environ, "D": os.fspath(folder), "LC_ALL": "C"})


def assert_same(origin, mounted, command, at_least):
    """Same output on both sides, and more than `at_least` bytes of it, so that the comparison means something."""
    want, got = on(origin, command).ok(), on(mounted, command)
    assert got.rc == 0, got.err[-2000:]
    assert len(want.out) > at_least
    if want.out != got.out:
        wants, gots = set(want.out.split(b"\0")), set(got.out.split(b"\0"))
        raise AssertionError(f"only at the origin {sorted(wants - gots)[:5]}, only in the mount {sorted(gots - wants)[:5]}")


@pytest.mark.parametrize("how", ["SHA", "STAT", "FIND", "TAR"])
def test_tree_is_the_same(mount, origin, how):
    hfs = mount(origin)
    assert_same(origin, hfs.path, getattr(tree, how), at_least=60)


def test_tree_is_the_same_again_and_warm(mount, origin):
    """Second look at the same mount: now from slots, page cache and snapshots."""
    hfs = mount(origin, memory="16M")
    for how in (tree.SHA, tree.FIND, tree.SHA, tree.STAT):
        assert_same(origin, hfs.path, how, at_least=60)


def test_tar_to_tar(mount, origin, tmp):
    hfs = mount(origin)
    copy = os.path.join(tmp, "copy")
    os.mkdir(copy)
    procs.run(f'set -o pipefail; tar -C "{hfs.path}" --format=posix --exclude=./huge -cf - . | tar -C "{copy}" -xpf -', timeout=60, check=True)
    plain = 'cd "$D" && find . -not -path "./huge*" -not -path . -printf "%p\\t%y\\t%m\\t%U\\t%G\\t%T@\\t%l\\0" | sort -z'
    assert_same(origin, copy, plain, at_least=1000)
    assert_same(origin, copy, tree.SHA, at_least=1000)


def test_rsync_second_run_reads_nothing(mount, origin, tmp):
    copy = os.path.join(tmp, "copy")
    rsync = ["rsync", "-aH", "--exclude=/huge", "--itemize-changes"]
    first = mount(origin)
    procs.run([*rsync, first.path + "/", copy], timeout=60, check=True)
    assert first.status()["origin_bytes"] > 3 * tree.CHUNK
    first.stop()
    second = mount(origin)
    again = procs.run([*rsync, second.path + "/", copy], timeout=60, check=True)
    assert again.out == b"", again.out
    assert second.status()["origin_bytes"] == 0
    # A change is seen, so the comparison above was one.
    os.utime(os.path.join(origin, "sizes", "4097"), ns=(5, 5))
    second.stop()
    third = mount(origin)
    assert b"4097" in procs.run([*rsync, third.path + "/", copy], timeout=60, check=True).out


@pytest.mark.parametrize("name", ["5GiB", "9TiB"])
def test_huge_files_by_windows(mount, origin, name):
    hfs = mount(origin)
    here, there = hfs.p("huge", name), os.path.join(origin, "huge", name)
    size = os.stat(there).st_size
    windows = set()
    for mark in [0, 1 << 31, 1 << 32, 1 << 40, size]:
        if mark <= size:
            windows.add((max(0, mark - 70_000), 140_003))
            windows.add((max(0, mark - 1), 2))
    for at, length in sorted(windows):
        for mode in ("pread", "mmap_shared", "direct"):
            procs.run([env.prog("mt_cmp"), mode, here, there, at, length], check=True)
    # and where nothing was written
    procs.run([env.prog("mt_cmp"), "pread", here, there, 3 << 30, 3 << 20], check=True)


def test_seek_hole_and_data_never_skip_data(mount, origin):
    """SEEK_DATA may be coarse, but it never jumps over a mark, and SEEK_HOLE never points into one."""
    hfs = mount(origin)
    script = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY); marks = [int(m) for m in sys.argv[2:]]; size = os.fstat(fd).st_size\n"
        "for m in marks:\n"
        "    assert os.lseek(fd, max(0, m - 100_000), os.SEEK_DATA) <= m, m\n"
        "    hole = os.lseek(fd, m, os.SEEK_HOLE)\n"
        "    assert hole >= min(m + 4099, size), (m, hole)\n"
        "print(len(marks))\n")
    for name in ("5GiB", "9TiB"):
        size = os.stat(os.path.join(origin, "huge", name)).st_size
        marks = tree.marks_of(size)
        got = procs.run(["python3", "-c", script, hfs.p("huge", name), *marks], check=True)
        assert int(got.out) == len(marks) >= 4


@pytest.fixture
def crowd(tmp):
    tree.make_crowd(os.path.join(tmp, "origin", "crowd"), 100_000)
    return os.path.join(tmp, "origin")


@pytest.mark.timeout(120)
def test_100000_entries_in_one_directory(mount, crowd):
    """Every name exactly once, whatever the buffer; then again, with the directory's snapshot known."""
    want = sorted(os.fsencode(n) for n in os.listdir(os.path.join(crowd, "crowd"))) + [b".", b".."]
    hfs = mount(crowd)
    for size in (300, 1024, 65536, 1024):
        got = procs.run([env.prog("mt_getdents"), size, hfs.p("crowd")], timeout=60, check=True).out.split(b"\0")
        assert got.pop() == b""
        assert len(got) == len(want), f"{len(got)} names with {size}-byte buffers, not {len(want)}"
        assert sorted(got) == sorted(want)
    assert_same(crowd, hfs.path, tree.FIND, at_least=5_000_000)


def test_small_buffers_and_long_names(mount, origin):
    hfs = mount(origin)
    want = sorted([*tree.NAMES, *[b"d" + n[:200] for n in tree.NAMES[:20]], b".", b".."])
    for size in (300, 1024, 65536):
        got = procs.run([env.prog("mt_getdents"), size, hfs.p("names")], check=True).out.split(b"\0")[:-1]
        assert sorted(got) == want


def test_seekdir_comes_back_to_the_same_entries(mount, origin):
    hfs = mount(origin)
    script = (
        "import ctypes, os, sys\n"
        "c = ctypes.CDLL(None, use_errno=True)\n"
        "class D(ctypes.Structure):\n"
        "    _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('len', ctypes.c_uint16), ('type', ctypes.c_uint8), ('name', ctypes.c_char * 256)]\n"
        "c.opendir.restype = ctypes.c_void_p; c.readdir.restype = ctypes.POINTER(D)\n"
        "c.readdir.argtypes = c.telldir.argtypes = c.rewinddir.argtypes = [ctypes.c_void_p]; c.telldir.restype = ctypes.c_long\n"
        "c.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]\n"
        "d = c.opendir(os.fsencode(sys.argv[1])); seen = []\n"
        "while True:\n"
        "    at = c.telldir(d); e = c.readdir(d)\n"
        "    if not e: break\n"
        "    seen.append((at, e.contents.name))\n"
        "for at, name in reversed(seen):\n"
        "    c.seekdir(d, at); assert c.readdir(d).contents.name == name, (at, name)\n"
        "c.rewinddir(d); assert c.readdir(d).contents.name == seen[0][1]\n"
        "print(len(seen))\n")
    got = procs.run(["python3", "-c", script, hfs.p("names")], check=True)
    assert int(got.out) == len(tree.NAMES) + 20 + 2


def test_ctl_is_found_but_not_listed(mount, origin):
    hfs = mount(origin)
    listed = procs.run(["ls", "-a", hfs.path], check=True).out.split()
    assert b".ctl" not in listed and b"sizes" in listed
    assert os.fsencode(os.path.realpath(hfs.opts["ctl"])) == procs.run(["readlink", hfs.p(".ctl")], check=True).out.strip()
    found = procs.run(["find", hfs.path, "-name", ".ctl*"], check=True).out.split()
    assert found == [os.fsencode(hfs.p("names", ".ctl2"))]


def test_special_files_neither_block_nor_act(mount, tmp):
    origin = os.path.join(tmp, "origin")
    os.mkdir(origin)
    tree.add_special(origin)
    with open(os.path.join(origin, "file"), "w") as f:
        f.write("here\n")
    hfs = mount(origin)
    for name in ("fifo", "null", "socket"):
        got = procs.run(["cat", hfs.p(name)], timeout=5)
        assert got.rc == 1 and got.out == b"", f"{name}: {got.out!r} {got.err!r}"
    assert procs.run(["cat", hfs.p("file")], check=True).out == b"here\n"


def test_symlinks_never_leave_by_our_hand(mount, tmp):
    """The link's text is passed on; what the client's kernel makes of it is the client's business, not a read of ours."""
    origin, outside = os.path.join(tmp, "origin"), os.path.join(tmp, "outside")
    os.mkdir(origin)
    with open(outside, "w") as f:
        f.write("outside")
    os.symlink("../outside", os.path.join(origin, "link"))
    os.mkdir(os.path.join(origin, "dir"))
    os.symlink("../..", os.path.join(origin, "dir", "up"))
    hfs = mount(origin)
    before = hfs.status()["origin_reads"]
    assert procs.run(["cat", hfs.p("link")]).rc == 1  # "../outside" from the mountpoint, where there is none
    assert procs.run(["readlink", hfs.p("link")], check=True).out == b"../outside\n"
    assert hfs.status()["origin_reads"] == before


def test_mounts_below_the_source_are_followed_with_unique_inodes(mount, tmp):
    origin = os.path.join(tmp, "origin")
    os.makedirs(os.path.join(origin, "sub"))
    procs.run(["mount", "-t", "tmpfs", "none", os.path.join(origin, "sub")], check=True)
    names = ["a", "sub/b", "sub/c"]
    for name in names:
        with open(os.path.join(origin, name), "w") as f:
            f.write(name)
    hfs = mount(origin)
    inodes = set()
    for name in names:
        assert procs.run(["cat", hfs.p(name)], check=True).out == name.encode()
        inodes.add(procs.run(["stat", "-c", "%i", hfs.p(name)], check=True).out)
    assert len(inodes) == len(names)


@pytest.mark.timeout(300)
def test_many_files_with_1024_descriptors(mount, tmp):
    """Law 6: no descriptor an inode. The whole tree is walked and read, nothing is missing, no error is logged."""
    origin = os.path.join(tmp, "origin")
    count = env.scaled(20_000, 200_000)
    tree.make_files(origin, count)

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    hfs = mount(origin, limits=limit)
    read = 'cd "$D" && find . -type f | LC_ALL=C sort | tee >(wc -l >&2) | xargs -P2 -n 2000 cat | wc -c'
    want, got = on(origin, read).ok(), on(hfs.path, read, timeout=240).ok()
    assert int(want.err) == count and want.out == got.out and want.err == got.err
    whole = 'cd "$D" && find . -type f | LC_ALL=C sort | xargs -n 2000 cat | sha256sum'
    assert on(origin, whole).ok().out == on(hfs.path, whole, timeout=240).ok().out
    assert hfs.descriptors() <= 1024
    assert b"Too many open files" not in hfs.log()
    assert hfs.status()["origin_errors"] == 0


def test_statfs_of_the_origin(mount, origin):
    hfs = mount(origin)
    form = "%S %b %c %l"
    want = procs.run(["stat", "-f", "-c", form, origin], check=True)
    assert procs.run(["stat", "-f", "-c", form, hfs.path], check=True).out == want.out
    assert mounts.find(hfs.path)[3].split(",")[0] == "ro"
