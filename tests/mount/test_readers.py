# SPDX-License-Identifier: Apache-2.0
"""Every way to read gives the same bytes; every way to change something gives EROFS."""
import os

import pytest

from lib import env, pattern, procs, tree

MODES = [
    "read", "pread", "readv", "splice", "sendfile", "copy_file_range", "direct", "mmap_shared", "mmap_private", "mmap_populate",
    "mmap_backwards", "madv_random", "madv_sequential", "madv_willneed", "madv_dontneed", "madv_populate_read",
    "madv_hugepage", "madv_cold", "madv_pageout", "fadv_random", "fadv_sequential", "fadv_willneed", "fadv_dontneed",
    "fadv_noreuse", "readahead", "io_uring"]
SIZE = 2 * tree.CHUNK + 12345


def cmp(*args, timeout=60):
    return procs.Child([env.prog("mt_cmp"), *args], env={**os.environ, "MT_TMP": "/var/tmp"})


def test_all_ways_of_the_program_are_tried():
    assert procs.run([env.prog("mt_cmp"), "modes"], check=True).text.split() == MODES


def test_checker_sees_what_is_wrong(tmp):
    """The judges of this suite are not blind: wrong words of each kind, one wrong byte, a wrong end."""
    procs.run([env.prog("mt_pattern"), "selftest"], check=True)
    one, two = os.path.join(tmp, "one"), os.path.join(tmp, "two")
    pattern.make(one, 1, SIZE)
    pattern.make(two, 1, SIZE)
    with open(two, "r+b") as f:
        f.seek(SIZE - 7)
        f.write(b"\0")
    for mode in MODES:
        assert cmp(mode, one, one).wait().rc == 0, mode
        assert cmp(mode, one, two).wait().rc == 1, mode
    os.truncate(two, SIZE - 1)
    for mode in MODES:
        assert cmp(mode, one, two).wait().rc == 1, mode
    assert pattern.check(one, 1, SIZE, version=2).rc == 1


@pytest.fixture
def origin(tmp):
    folder = os.path.join(tmp, "origin")
    os.mkdir(folder)
    for i, mode in enumerate(MODES):
        pattern.make(os.path.join(folder, mode), i + 1, SIZE)
    return folder


def test_every_way_cold_and_warm(mount, origin):
    """Cold: each way on a file of its own. Warm: all of them on one file."""
    hfs = mount(origin, memory="24M")
    for mode in MODES:
        cmp(mode, hfs.p(mode), os.path.join(origin, mode)).wait().ok()
    for mode in MODES:
        cmp(mode, hfs.p("read"), os.path.join(origin, "read")).wait().ok()
    assert hfs.status()["origin_bytes"] >= len(MODES) * SIZE


@pytest.mark.parametrize("chunk", ["64K", "1M", "4M"])
def test_odd_blocks_and_ranges(mount, origin, chunk):
    hfs = mount(origin, chunk=chunk, memory="64M")
    ranges = [(0, 1), (4095, 2), (65535, 65538), (tree.CHUNK - 1, 2), (tree.CHUNK - 4097, 3 * 4096), (SIZE - 1, 1),
              (SIZE - 5, 100), (123456, 1_000_000)]
    for block in (1 << 20, 4096, 7777):
        for i, (at, length) in enumerate(ranges):
            mode = ["pread", "mmap_shared", "direct", "readv", "splice", "io_uring"][i % 6]
            name = MODES[(i + block) % len(MODES)]
            cmp(mode, hfs.p(name), os.path.join(origin, name), at, length, block).wait().ok()


def test_eight_processes_at_once(mount, slow, origin):
    """Different ways on one file, and every process on files of the others, all cold, few slots."""
    far = slow(origin, latency="1ms")
    hfs = mount(far.path, memory="16M")
    ways = ["read", "pread", "direct", "mmap_shared", "mmap_backwards", "io_uring", "sendfile", "madv_random"]
    running = [cmp(way, hfs.p("read"), os.path.join(origin, "read")) for way in ways]
    for child in running:
        child.wait(60).ok()
    running = []
    for k in range(8):
        files = MODES[k:] + MODES[:k]
        script = "".join(f'"{env.prog("mt_cmp")}" {ways[(k + i) % 8]} "{hfs.p(f)}" "{origin}/{f}" || exit 1\n'
                         for i, f in enumerate(files))
        running.append(procs.Child(script))
    for child in running:
        child.wait(100).ok()


EDGES = """
import mmap, os, sys
SIZE = int(sys.argv[3])
def tried(call, *args):
    try: return call(*args)
    except OSError as e: return e.errno
def look(path):
    fd = os.open(path, os.O_RDONLY); direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    seen = []
    for at in (0, max(0, SIZE - 4097), max(0, SIZE - 1), SIZE, SIZE + 1, SIZE + 4096, 2**31, 2**32, 2**40, 2**62, 2**63 - 1):
        for n in (0, 1, 2, 4096, 200_000):
            seen.append((at, n, tried(os.pread, fd, n, at)))
            seen.append((at, n, os.lseek(fd, at, os.SEEK_SET) if at <= 2**42 else 0, tried(os.read, fd, n) if at <= 2**42 else 0))
    for at in (SIZE // 4096 * 4096, (SIZE // 4096 + 1) * 4096, 2**40):
        buf = mmap.mmap(-1, 8192)
        seen.append((at, "direct", tried(os.preadv, direct, [buf], at), buf[:]))
    seen += [os.lseek(fd, 0, os.SEEK_END), tried(os.lseek, fd, SIZE, os.SEEK_DATA), tried(os.lseek, fd, SIZE + 1, os.SEEK_HOLE)]
    if SIZE:
        m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        seen.append((len(m), m[-1]))
    return seen
here, there = look(sys.argv[1]), look(sys.argv[2])
for a, b in zip(here, there):
    if a != b: sys.exit(f"mount {str(a)[:200]} origin {str(b)[:200]}")
print(len(here))
"""


@pytest.mark.parametrize("size", [0, 1, 4096, tree.CHUNK, SIZE])
def test_end_of_file_edges(mount, tmp, size):
    """Reads at, round and far beyond the end answer as at the origin, errors included; cold, then warm."""
    folder = os.path.join(tmp, "edges")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "f"), 1, size)
    hfs = mount(folder)
    for _ in range(2):
        got = procs.run(["python3", "-c", EDGES, hfs.p("f"), os.path.join(folder, "f"), size], check=True)
        assert int(got.out) > 100


def test_past_the_end_a_mapping_is_zero_then_sigbus(mount, origin):
    hfs = mount(origin)
    script = ("import ctypes, mmap, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_RDONLY); size = os.fstat(fd).st_size\n"
              "c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p\n"
              "c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\n"
              "p = c.mmap(None, size + 8192, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)\n"
              "end = (size + 4095) // 4096 * 4096\n"
              "assert ctypes.string_at(p + size, end - size) == bytes(end - size)\n"
              "print('zero', flush=True); ctypes.string_at(p + end, 1)\n")
    got = procs.run(["python3", "-c", script, hfs.p("mmap_shared")])
    assert got.out == b"zero\n" and got.rc == -7, (got.rc, got.err)


# ---- nothing can be changed ----
POSIX_FIRST = {"fd_write": "EBADF", "fd_pwrite": "EBADF", "fd_ftruncate": "EINVAL", "fd_fallocate": "EBADF",
               "fd_fallocate_punch": "EBADF", "fd_copy_file_range": "EBADF", "fd_mmap_shared_write": "EACCES"}


@pytest.fixture
def changeable(tmp):
    folder = os.path.join(tmp, "change")
    os.makedirs(os.path.join(folder, "full", "x"))
    os.mkdir(os.path.join(folder, "empty"))
    with open(os.path.join(folder, "file"), "w") as f:
        f.write("contents")
    os.setxattr(os.path.join(folder, "file"), "user.key", b"value")
    os.symlink("file", os.path.join(folder, "link"))
    return folder


def rofs(folder, prefix=()):
    lines = procs.run([*prefix, env.prog("mt_rofs"), folder], check=True).text.splitlines()
    return dict(line.split() for line in lines)


def test_every_change_is_erofs(mount, changeable):
    hfs = mount(changeable)
    before = procs.run(tree.FIND, env={**os.environ, "D": changeable}, check=True).out
    answers = rofs(hfs.path)
    assert len(answers) > 50
    want = {call: POSIX_FIRST.get(call, "EROFS") for call in answers}
    want["fd_setflags"] = answers["fd_setflags"] if answers["fd_setflags"] in ("EROFS", "ENOTTY", "EOPNOTSUPP") else "EROFS"
    assert answers == want
    assert procs.run(tree.FIND, env={**os.environ, "D": changeable}, check=True).out == before
    assert procs.run(tree.FIND, env={**os.environ, "D": hfs.path}, check=True).out == before


def test_the_list_of_changes_is_real(changeable):
    """On a writable file system the same calls succeed, or find their work done by another one."""
    answers = rofs(changeable)
    assert sum(a == "OK" for a in answers.values()) > 20 and "EROFS" not in answers.values()


def test_erofs_for_other_users_too(mount, changeable):
    """LMDB opens its lock file for writing and goes on only if the answer is exactly EROFS."""
    os.chmod(changeable, 0o755)
    os.chmod(os.path.dirname(changeable), 0o755)
    hfs = mount(changeable, allow_other=True)
    os.chmod(hfs.folder, 0o755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    copy = os.path.join(os.path.dirname(changeable), "mt_rofs")
    procs.run(["cp", env.prog("mt_rofs"), copy], check=True)
    os.chmod(copy, 0o755)
    answers = dict(line.split() for line in procs.run([*nobody, copy, hfs.path], check=True).text.splitlines())
    for call in ("open_wronly", "open_rdwr", "open_creat_new", "open_creat_excl_new", "open_creat_wronly_old", "mkdir",
                 "unlink", "rename_file", "symlink", "access_w", "truncate"):
        assert answers[call] == "EROFS", (call, answers[call])


def test_permissions_of_other_users(mount, changeable):
    os.chmod(os.path.dirname(changeable), 0o755)
    os.chmod(os.path.join(changeable, "file"), 0o600)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    private = mount(changeable)
    os.chmod(private.folder, 0o755)
    assert procs.run([*nobody, "ls", private.path]).rc != 0
    shared = mount(changeable, allow_other=True)
    os.chmod(shared.folder, 0o755)
    assert procs.run([*nobody, "ls", shared.path], check=True).out.split() == [b"empty", b"file", b"full", b"link"]
    denied = procs.run([*nobody, "cat", shared.p("file")])
    assert denied.rc == 1 and b"Permission denied" in denied.err
    assert procs.run(["cat", shared.p("file")], check=True).out == b"contents"


LOCKS = """
import errno, fcntl, os, sys
def tried(call, *args):
    try: call(*args); return 0
    except OSError as e: return e.errno
fd = os.open(sys.argv[1], os.O_RDONLY); other = os.open(sys.argv[1], os.O_RDONLY)
print(tried(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB), tried(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB),
      tried(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB), tried(fcntl.flock, fd, fcntl.LOCK_UN),
      tried(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB), tried(fcntl.flock, fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
      tried(fcntl.flock, other, fcntl.LOCK_UN), tried(fcntl.lockf, fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
      tried(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB), tried(fcntl.lockf, fd, fcntl.LOCK_UN))
"""


def test_locks_work_as_on_a_local_disk(mount, origin):
    hfs = mount(origin)
    want = procs.run(["python3", "-c", LOCKS, os.path.join(origin, "read")], check=True).out
    assert procs.run(["python3", "-c", LOCKS, hfs.p("read")], check=True).out == want
    assert want.split()[:6] == [b"0", b"0", b"11", b"0", b"0", b"11"]


def test_attributes_for_clients(mount, changeable):
    """st_blksize is what Python reads in; setuid bits do not pass; xattrs are passed on or plainly not supported."""
    os.chmod(os.path.join(changeable, "file"), 0o4755)
    hfs = mount(changeable)
    assert procs.run(["stat", "-c", "%o %a", hfs.p("file")], check=True).out == b"1048576 755\n"
    script = ("import errno, os, sys\n"
              "try: print(os.listxattr(sys.argv[1]), os.getxattr(sys.argv[1], 'user.key'))\n"
              "except OSError as e: print(errno.errorcode[e.errno])\n")
    got = procs.run(["python3", "-c", script, hfs.p("file")], check=True).text.strip()
    assert got in ("['user.key'] b'value'", "EOPNOTSUPP", "ENOTSUP"), got
    missing = procs.run(["python3", "-c", script.replace("user.key", "user.none"), hfs.p("file")], check=True).text.strip()
    assert missing in ("ENODATA", "EOPNOTSUPP", "ENOTSUP"), missing


def test_programs_run_from_the_mount(mount, tmp):
    folder = os.path.join(tmp, "bin")
    os.mkdir(folder)
    procs.run(["cp", "/bin/echo", folder], check=True)
    hfs = mount(folder)
    assert procs.run([hfs.p("echo"), "from the mount"], check=True).out == b"from the mount\n"


def test_unmount_while_a_file_is_open_is_busy_then_works(mount, origin, until):
    hfs = mount(origin)
    holder = procs.Child(["sh", "-c", f'exec 3<"{hfs.p("read")}"; echo open; exec cat'], stdin=None)
    until(lambda: holder.lines() == ["open"] or not holder.is_running(), 5, "holder")
    busy = procs.Child(["sh", "-c", f'exec 3<"{hfs.p("read")}"; umount "{hfs.path}" 2>&1'])
    assert busy.wait().rc != 0
    assert hfs.is_running()
