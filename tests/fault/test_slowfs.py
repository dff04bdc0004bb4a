# SPDX-License-Identifier: Apache-2.0
"""slowfs keeps what README.md promises. Live mounts: needs root and /dev/fuse.

Whatever reads the mount while it may hang is a child process; the test itself only waits for
events with a deadline. Times are printed or bounded from below (a delay was at least asked for).
"""
import concurrent.futures
import contextlib
import errno
import mmap
import os
import random
import resource
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slowfsctl  # noqa: E402
from slowfsctl import PENDING, SlowError, SlowFS  # noqa: E402

KIB, MIB = 1024, 1 << 20
DEADLINE_S = 60

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"),
                                reason="mounting needs root and /dev/fuse")


@pytest.fixture(autouse=True)
def deadline():
    def expired(signum, frame):
        raise TimeoutError(f"test not done within {DEADLINE_S} s")
    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(DEADLINE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def src(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


@pytest.fixture
def mount(tmp_path, src):
    """mount(**options) -> SlowFS on src; all are stopped at the end."""
    point = tmp_path / "mnt"
    point.mkdir()
    with contextlib.ExitStack() as stack:
        def start(**options):
            fs = stack.enter_context(SlowFS(src, point, **options))
            fs.path = point
            return fs
        yield start


def write(path, size, seed=0):
    data = random.Random(seed).randbytes(size)
    path.write_bytes(data)
    return data


def children(paths, how=None):
    """A child for each path that opens it, reads all, and leaves by 0, its errno, or 255."""
    def read(path):
        fd = os.open(path, os.O_RDONLY)
        while os.read(fd, 64 * KIB):
            pass
    pids = []
    for path in paths:
        pid = os.fork()
        if pid == 0:
            signal.alarm(0)
            status = 255
            try:
                (how or read)(path)
                status = 0
            except OSError as error:
                status = error.errno
            finally:
                os._exit(status)
        pids.append(pid)
    return pids


def outcome(pid, timeout_s=20):
    """Exit status of a child, or minus its signal."""
    fd = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([fd], [], [], timeout_s)
        assert ready, f"process {pid} still there after {timeout_s} s"
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_running(pid):
    return os.waitpid(pid, os.WNOHANG) == (0, 0)


def records(fs, op, path=None, since=0):
    return [r for r in fs.log(since) if r["op"] == op and path in (None, r["path"])]


def aligned(size):
    """Page-aligned memory, so that 1 MiB needs one READ."""
    return mmap.mmap(-1, size)


# ---- a faithful pass-through ----

ODD_NAMES = [b"plain", b"with space", b"new\nline", b"tab\tname", b"@at", b"#hash", b"-dash",
             b'"quote', b"back\\slash", b"st*r[x]?", b"\xff\xfe\x80", b"n" * 255, b".hidden"]


def make_tree(src):
    root = os.fsencode(src)
    sub = os.path.join(root, b"sub", b"deeper")
    os.makedirs(sub)
    for i, name in enumerate(ODD_NAMES):
        with open(os.path.join(sub, name), "wb") as f:
            f.write(random.Random(i).randbytes([0, 1, 4095, 4096, 4097, 100000][i % 6]))
        os.utime(os.path.join(sub, name), ns=(1, 10**18 + i))
    os.link(os.path.join(sub, b"plain"), os.path.join(root, b"hard"))
    os.symlink(b"sub/deeper/plain", os.path.join(root, b"soft"))
    os.symlink(b"/nowhere/\xff", os.path.join(root, b"broken"))
    os.mkfifo(os.path.join(root, b"fifo"), 0o640)
    os.chmod(os.path.join(sub, b"@at"), 0o4751)
    with open(os.path.join(root, b"sparse"), "wb") as f:
        f.truncate(5 << 30)
        f.seek(3 << 30)
        f.write(b"mark")
    os.setxattr(os.path.join(root, b"hard"), b"user.note", b"val\0ue")


def describe(path):
    s = os.lstat(path)
    keys = ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns",
            "st_ctime_ns", "st_blocks")
    about = {k: getattr(s, k) for k in keys}
    if stat.S_ISLNK(s.st_mode):
        about["link"] = os.readlink(path)
    if stat.S_ISREG(s.st_mode):
        about["xattr"] = {n: os.getxattr(path, n) for n in os.listxattr(path)}
        with open(path, "rb") as f:
            about["data"] = f.read() if s.st_size < MIB else (f.seek(3 << 30), f.read(8))
    return about


def walk(root):
    found = {}
    for folder, dirs, files in os.walk(root):
        for name in dirs + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = describe(path)
    return found


def test_tree_is_the_same(src, mount):
    make_tree(src)
    fs = mount()
    want, got = walk(os.fsencode(src)), walk(os.fsencode(fs.path))
    assert len(want) == len(ODD_NAMES) + 7
    assert got == want
    fs.wait_handles_max(0)
    counted = fs.counters()
    for name in ODD_NAMES:
        assert counted[os.fsdecode(b"sub/deeper/" + name)]["OPEN"] == 1


def test_seek_data_and_hole(src, mount):
    make_tree(src)
    fs = mount()
    with open(fs.path / "sparse", "rb") as f, open(src / "sparse", "rb") as g:
        assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == os.lseek(g.fileno(), 0, os.SEEK_DATA) > 0
        assert os.lseek(f.fileno(), 3 << 30, os.SEEK_HOLE) == os.lseek(g.fileno(), 3 << 30, os.SEEK_HOLE)


def test_big_directory_lists_each_name_once(src, mount):
    names = {f"file-{i:05}" for i in range(5000)}
    for name in names:
        (src / name).touch()
    fs = mount()
    listed = os.listdir(fs.path)
    assert len(listed) == len(names) and set(listed) == names


def test_every_change_is_refused(src, mount):
    write(src / "a", 10)
    fs = mount()
    changes = [lambda p: os.open(p, os.O_WRONLY), lambda p: os.open(p, os.O_RDWR), os.unlink,
               lambda p: os.truncate(p, 0), lambda p: os.chmod(p, 0o777),
               lambda p: os.rename(p, str(p) + "x"), lambda p: os.utime(p),
               lambda p: os.mkdir(str(p) + "d"), lambda p: os.setxattr(p, "user.a", b"b")]
    for change in changes:
        with pytest.raises(OSError) as caught:
            change(fs.path / "a")
        assert caught.value.errno == errno.EROFS
    assert (src / "a").stat().st_size == 10


def test_few_descriptors_are_enough_for_many_files(src, mount):
    for i in range(1500):
        write(src / f"f{i}", 100, i)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fs = mount()
    resource.prlimit(fs.pid, resource.RLIMIT_NOFILE, (64, 64))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    for i in range(1500):
        assert (fs.path / f"f{i}").read_bytes() == (src / f"f{i}").read_bytes()
    assert fs.totals()["errors"] == 0
    fs.wait_handles_max(0)
    assert len(os.listdir(f"/proc/{fs.pid}/fd")) < 40


MODES = ["read", "pread", "readv", "mmap-shared", "mmap-private", "direct", "sendfile", "splice",
         "copy_file_range", "uring"]


@pytest.mark.parametrize("page_cache", [False, True])
def test_every_way_of_reading(src, mount, page_cache):
    pattern = os.path.join(os.path.dirname(os.path.dirname(slowfsctl.find_binary())),
                           "lib", "pattern")
    expect = ["--id", "3", "--version", "4"]
    subprocess.run([pattern, "make", src / "p", "3000001", *expect], check=True)
    fs = mount(page_cache=page_cache)
    for mode in MODES:
        for more in ([], ["--block", "65536", "--random", "1"]):
            done = subprocess.run([pattern, "read", fs.path / "p", "--mode", mode, *expect, *more],
                                  capture_output=True, text=True, timeout=30)
            if mode == "uring" and done.returncode == 77:
                continue
            assert done.returncode == 0, f"{mode}: {done.stdout}{done.stderr}"


# ---- what arrives is what was asked ----

def test_a_read_arrives_as_it_was_asked(src, mount):
    data = write(src / "a", 8 * MIB)
    fs = mount()
    offsets = random.Random(1).sample(range(0, 8 * MIB - 64 * KIB, 4096), 100)
    buf = aligned(MIB)
    with open(fs.path / "a", "rb", buffering=0) as f:
        since = fs.seq()
        for at in offsets:
            assert os.pread(f.fileno(), 64 * KIB, at) == data[at:at + 64 * KIB]
        got = [(r["offset"], r["asked"], r["returned"]) for r in records(fs, "READ", "a", since)]
        assert got == [(at, 64 * KIB, 64 * KIB) for at in offsets]
        since = fs.seq()
        assert os.preadv(f.fileno(), [buf], 3 * MIB) == MIB and buf[:] == data[3 * MIB:4 * MIB]
        got = [(r["offset"], r["asked"]) for r in records(fs, "READ", "a", since)]
        assert got == [(3 * MIB, MIB)]
    assert fs.counters()["a"]["READ"] == 101
    assert fs.counters()["a"]["bytes"] == fs.totals()["bytes"] == 100 * 64 * KIB + MIB


def test_log_is_ordered_and_keeps_the_last(src, mount):
    write(src / "a", 64 * KIB)
    fs = mount(log_size=64)
    with open(fs.path / "a", "rb", buffering=0) as f:
        for i in range(200):
            os.pread(f.fileno(), 10, i)
        log = fs.log()
        assert len(log) == 64
        seqs = [r["seq"] for r in log]
        assert seqs == list(range(seqs[0], seqs[0] + 64))
        assert [r["offset"] for r in log] == list(range(136, 200))
        assert all(r["start_ns"] <= r["end_ns"] for r in log)
        assert fs.log(since=seqs[-3])[0]["offset"] == 198 and len(fs.log(since=seqs[0], limit=5)) == 5
        fs.reset()
        assert fs.log() == [] and fs.totals()["READ"] == 0 and fs.counters() == {}
        os.pread(f.fileno(), 10, 7)
        assert [(r["seq"] > seqs[-1], r["offset"]) for r in fs.log()] == [(True, 7)]


# ---- speed ----

def test_latency_is_at_least_what_was_set(src, mount):
    write(src / "a", 64 * KIB)
    fs = mount(latency="1ms")
    with open(fs.path / "a", "rb", buffering=0) as f:
        start = time.monotonic()
        for i in range(64):
            os.pread(f.fileno(), 1024, i * 1024)
        took = time.monotonic() - start
    print(f"64 reads of 1 ms: {took * 1000:.1f} ms")
    assert took >= 0.064
    by_op = {}
    for r in fs.log():
        by_op.setdefault(r["op"], []).append(r["end_ns"] - r["start_ns"])
    for op in ("LOOKUP", "GETATTR", "OPEN", "READ"):
        assert min(by_op[op]) >= 1_000_000, op


def test_latency_of_one_class(src, mount):
    write(src / "a", 1000)
    (src / "link").symlink_to("a")
    fs = mount(latency_meta="20ms")
    fs.latency("40ms", "READLINK,STATFS")
    (fs.path / "a").read_bytes()
    os.readlink(fs.path / "link")
    os.statvfs(fs.path)
    os.listdir(fs.path)
    slowest, fastest = {}, {}
    for r in fs.log():
        took = r["end_ns"] - r["start_ns"]
        fastest[r["op"]] = min(took, fastest.get(r["op"], took))
        slowest[r["op"]] = max(took, slowest.get(r["op"], took))
    assert min(fastest[op] for op in ("LOOKUP", "OPEN", "OPENDIR", "READDIR")) >= 20_000_000
    assert min(fastest[op] for op in ("READLINK", "STATFS")) >= 40_000_000
    assert "READ" in slowest
    print(f"READ without latency: {slowest['READ'] / 1e6:.3f} ms")


def test_latencies_overlap(src, mount):
    data = write(src / "a", 400 * 1024)
    fs = mount()
    with open(fs.path / "a", "rb", buffering=0) as f:
        fs.latency("300ms", "READ")
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(400) as pool:
            got = list(pool.map(lambda i: os.pread(f.fileno(), 1024, i * 1024), range(400)))
        print(f"400 reads of 300 ms at once: {time.monotonic() - start:.3f} s")
    assert b"".join(got) == data
    totals = fs.totals()
    assert totals["max_parallel_reads"] > 100  # far more than slowfs has threads
    assert totals["parallel_reads"] == totals["queued"] == 0
    assert len(os.listdir(f"/proc/{fs.pid}/task")) < 20


def test_bandwidth_is_shared_and_not_exceeded(src, mount):
    write(src / "a", 8 * MIB)
    fs = mount(latency="1ms")
    fs.bandwidth("20M")
    assert fs.totals()["bandwidth"] == 20_000_000
    with open(fs.path / "a", "rb", buffering=0) as f:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: os.pread(f.fileno(), 64 * KIB, i * 64 * KIB), range(128)))
        reads = records(fs, "READ", "a")
        assert sum(r["returned"] for r in reads) == 8 * MIB
        took = (max(r["end_ns"] for r in reads) - min(r["start_ns"] for r in reads)) / 1e9
        ideal = 0.001 + 8 * MIB / 20e6
        print(f"8 MiB at 20 MB/s: {took:.4f} s, {took / ideal:.4f} of the link's time")
        assert took >= ideal
        fs.bandwidth(0)
        assert os.pread(f.fileno(), 10, 0) and fs.totals()["bandwidth"] == 0


def test_delay_rule_makes_a_straggler(src, mount):
    write(src / "a", 8192)
    write(src / "b", 8192)
    fs = mount()
    fs.rule("a", delay="50ms", range="4096-", every=2)
    with open(fs.path / "a", "rb", buffering=0) as f:
        for at in (0, 4096, 4096, 4096, 4096):
            os.pread(f.fileno(), 100, at)
    with open(fs.path / "b", "rb", buffering=0) as f:
        os.pread(f.fileno(), 100, 4096)
    took = [r["end_ns"] - r["start_ns"] for r in records(fs, "READ", "a")]
    assert took[2] >= 50_000_000 and took[4] >= 50_000_000
    assert list(fs.rules().values()) == [2]


# ---- hang ----

def test_hang_and_unhang(src, mount):
    want = write(src / "slow-a", 100 * KIB)
    write(src / "quick", 100 * KIB)
    fs = mount()
    write(src / "slow-b", 10)
    write(src / "slow-c", 10)
    fs.hang("slow-*")
    pids = children([fs.path / f"slow-{c}" for c in "abc"])  # one directory, three LOOKUPs at once
    fs.wait_hung(3)
    assert {(op, path) for _, op, path, _, _ in fs.hung()} == {("LOOKUP", f"slow-{c}") for c in "abc"}
    assert [r["err"] for r in records(fs, "LOOKUP", "slow-a")] == [PENDING]
    assert outcome(children([fs.path / "quick"])[0]) == 0
    assert all(is_running(pid) for pid in pids)
    assert fs.unhang("other") == 0 and fs.totals()["hung"] == 3
    assert fs.unhang("slow-*") == 3
    assert [outcome(pid) for pid in pids] == [0, 0, 0]
    assert (fs.path / "slow-a").read_bytes() == want


def test_hang_of_reads_only_shows_the_file_as_it_is_after(src, mount):
    (src / "a").write_bytes(b"old")
    fs = mount()
    with open(fs.path / "a", "rb", buffering=0) as f:
        fs.hang("*", ops="READ")
        assert os.fstat(f.fileno()).st_size == 3 and os.listdir(fs.path) == ["a"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(os.pread, f.fileno(), 10, 0)
            fs.wait_hung(1)
            (src / "a").write_bytes(b"new")
            fs.unhang()
            assert answer.result(20) == b"new"


def test_a_hang_catches_what_is_delayed(src, mount):
    write(src / "a", 10)
    fs = mount()
    fd = os.open(fs.path / "a", os.O_RDONLY)
    fs.latency("200ms", "READ")
    pid = children([fd], lambda n: os.pread(n, 10, 0))[0]
    fs.wait_op("READ", 1)
    fs.hang("a")
    fs.wait_hung(1)
    assert is_running(pid)
    fs.unhang()
    assert outcome(pid) == 0
    os.close(fd)


def test_200_hung_readers_are_killed(src, mount):
    write(src / "a", MIB)
    fs = mount()
    with open(fs.path / "a", "rb", buffering=0) as f:
        fs.hang("*")
        pids = children([f.fileno()] * 200, lambda n: os.pread(n, 64 * KIB, 0))
        fs.wait_hung(200)
        start = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [outcome(pid) for pid in pids] == [-signal.SIGKILL] * 200
        print(f"200 hung readers gone after {time.monotonic() - start:.3f} s")
        fs.wait_hung_max(0)
        assert [r["err"] for r in records(fs, "READ", "a")] == [errno.EINTR] * 200
        fs.unhang()
        assert len(f.read(100)) == 100


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_killed_in_open_and_in_direct_read(src, mount, flags):
    write(src / "a", MIB)
    fs = mount()

    def read(path):
        os.preadv(os.open(path, os.O_RDONLY | flags), [aligned(4096)], 0)
    for op in ("LOOKUP", "OPEN", "READ"):
        fs.hang("a", ops=op)
        pid = children([fs.path / "a"], read)[0]
        fs.wait_hung(1)
        os.kill(pid, signal.SIGKILL)
        assert outcome(pid) == -signal.SIGKILL
        fs.wait_hung_max(0)
        fs.unhang()
    fs.wait_handles_max(0)


def test_ignored_interrupt(src, mount):
    write(src / "a", 10)
    write(src / "b", 10)
    fs = mount()
    fs.hang("a", interruptible=False)
    fs.hang("b", interruptible=True)
    stuck, freed = children([fs.path / "a", fs.path / "b"])
    fs.wait_hung(2)
    os.kill(stuck, signal.SIGKILL)
    os.kill(freed, signal.SIGKILL)
    assert outcome(freed) == -signal.SIGKILL  # its interrupt came after the other's
    assert is_running(stuck) and [path for _, _, path, _, _ in fs.hung()] == ["a"]
    fs.unhang()
    assert outcome(stuck) == -signal.SIGKILL


def reader_with_handler(fd):
    """Reads once with a handler that changes nothing; Python repeats a call that EINTR ended."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)  # the handler is there: proven before the read
    assert os.pread(fd, 10, 0)


def test_harmless_signal_as_on_a_hard_mount(src, mount):
    write(src / "a", 10)
    write(src / "b", 10)
    fs = mount()
    fd = os.open(fs.path / "a", os.O_RDONLY)
    fs.hang("*", mode="kill")
    pid, other = children([fd], reader_with_handler) + children([fs.path / "b"])
    fs.wait_hung(2)
    os.kill(pid, signal.SIGUSR1)
    os.kill(other, signal.SIGKILL)
    assert outcome(other) == -signal.SIGKILL
    assert is_running(pid)
    fs.unhang()
    assert outcome(pid) == 0
    assert [r["err"] for r in records(fs, "READ", "a")] == [0]
    os.close(fd)


def test_any_signal_interrupts_in_mode_any(src, mount):
    write(src / "a", 10)
    fs = mount()
    fd = os.open(fs.path / "a", os.O_RDONLY)
    fs.hang("*", mode="any")
    pid = children([fd], reader_with_handler)[0]
    fs.wait_hung(1)
    os.kill(pid, signal.SIGUSR1)
    fs.wait_op("READ", 2)  # Python asks again
    fs.wait_hung(1)
    fs.unhang()
    assert outcome(pid) == 0
    assert [r["err"] for r in records(fs, "READ", "a")] == [errno.EINTR, 0]
    os.close(fd)


def test_stop_with_hung_readers(src, mount):
    write(src / "a", MIB)
    fs = mount()
    f = os.open(fs.path / "a", os.O_RDONLY)
    fs.hang("*", interruptible=False)
    pids = children([f] * 50, lambda n: os.pread(n, 10, 0)) + children([fs.path / "a"])
    fs.wait_hung(51)
    start = time.monotonic()
    assert fs.stop() == 0
    print(f"stopped with 51 hung requests after {time.monotonic() - start:.3f} s")
    ended = [outcome(pid) for pid in pids]
    assert set(ended) <= {errno.ECONNABORTED, errno.ENOTCONN}
    os.close(f)
    assert os.listdir(fs.path) == []


def test_stops_when_its_starter_is_gone(src, mount):
    fs = mount()
    os.close(fs.watch)
    fs.watch = None
    assert fs.process.wait(20) == 0
    assert not os.path.ismount(fs.path)


def test_ends_when_it_is_unmounted(src, mount):
    fs = mount()
    subprocess.run(["umount", fs.path], check=True, timeout=20)
    assert fs.process.wait(20) == 0


# ---- faults ----

def read_errno(path, size=10, offset=0):
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.pread(fd, size, offset)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def test_errors_by_path_op_and_count(src, mount):
    for name in ("a", "b", "c"):
        write(src / name, 10)
    fs = mount(rule="glob=c op=OPEN errno=EACCES")
    number = fs.rule("a", errno="EIO", count=2)
    assert [read_errno(fs.path / "a") for _ in range(4)] == [errno.EIO, errno.EIO, 0, 0]
    assert fs.rules()[number] == 2
    assert read_errno(fs.path / "b") == 0 and read_errno(fs.path / "c") == errno.EACCES
    fs.rule("*", ops="STATFS,READLINK", errno="ETIMEDOUT")
    with pytest.raises(OSError, match="timed out"):
        os.statvfs(fs.path)
    assert fs.counters("a")["a"]["errors"] == 2
    fs.clear()
    assert read_errno(fs.path / "c") == 0 and os.statvfs(fs.path)
    number = fs.rule("a", errno="116")
    assert read_errno(fs.path / "a") == errno.ESTALE
    fs.unrule(number)
    assert read_errno(fs.path / "a") == 0


def test_errors_by_offset_range(src, mount):
    write(src / "a", 64 * KIB)
    fs = mount()
    fs.rule("a", errno="EIO", range="8K-12K")
    bad = [at for at in range(0, 64 * KIB, 4096) if read_errno(fs.path / "a", 4096, at)]
    assert bad == [8192]
    assert read_errno(fs.path / "a", 4097, 4096) == errno.EIO
    assert read_errno(fs.path / "a", 4096, 4096) == 0


def test_every_nth_skip_and_probability(src, mount):
    write(src / "a", 10)
    fs = mount()
    number = fs.rule("a", errno="EIO", skip=2, every=3)
    got = [read_errno(fs.path / "a") for _ in range(11)]
    assert [i for i, e in enumerate(got) if e] == [4, 7, 10]
    fs.unrule(number)

    def draw(seed):
        fs.clear()
        fs.seed(seed)
        fs.rule("a", errno="EIO", prob=0.3)
        return [read_errno(fs.path / "a") for _ in range(200)]
    first = draw(7)
    assert 20 < sum(map(bool, first)) < 100
    assert draw(7) == first != draw(8)


def test_short_read_in_the_middle(src, mount):
    data = write(src / "a", 100 * KIB)
    fs = mount()
    fs.rule("a", short=1000, range="8192-", count=1)
    with open(fs.path / "a", "rb", buffering=0) as f:
        assert os.pread(f.fileno(), 4096, 0) == data[:4096]
        assert os.pread(f.fileno(), 4096, 8192) == data[8192:9192]
        assert os.pread(f.fileno(), 4096, 8192) == data[8192:8192 + 4096]
    last = records(fs, "READ", "a")[1]
    assert (last["asked"], last["returned"], last["err"]) == (4096, 1000, 0)


def test_bad_commands_are_refused(src, mount):
    fs = mount()
    for line in ("nonsense", "latency all", "latency read 5x", "latency FROB 1ms", "hang",
                 "hang a sometimes", "rule op=READ", "rule errno=EWHAT", "rule errno=EIO short=3",
                 "rule errno=EIO prob=2", "rule errno=EIO every=0", "unrule 99", "bandwidth fast",
                 "log x", "wait-hung", "wait-op", "timeout attr", ""):
        with pytest.raises(SlowError):
            fs.command(line)
    with pytest.raises(SlowError, match="timeout"):
        fs.wait_hung(1, timeout=0.01)
    assert fs.command("ping") == [str(fs.pid)]


def test_command_line_form(src, mount):
    fs = mount()
    tool = os.path.join(os.path.dirname(slowfsctl.__file__), "slowfsctl.py")
    run = subprocess.run([sys.executable, tool, fs.ctl_path, "hang x", "ping"], text=True,
                         capture_output=True, timeout=20)
    assert (run.returncode, run.stdout) == (0, f"{fs.pid}\n")
    run = subprocess.run([sys.executable, tool, fs.ctl_path, "frob"], text=True,
                         capture_output=True, timeout=20)
    assert run.returncode == 1 and "unknown command" in run.stderr


def test_refuses_bad_options(src, tmp_path):
    for options in ({"latency": "1x"}, {"frob": True}, {"rule": "errno=EWHAT"}, {"bandwidth": "-1"}):
        with pytest.raises(SlowError, match="did not start"):
            SlowFS(src, tmp_path, **options)
    with pytest.raises(SlowError, match="did not start"):
        SlowFS(src / "absent", tmp_path)


# ---- what changes at the source ----

def stat_sync(path):
    """Size by statx(AT_STATX_FORCE_SYNC)."""
    return int(subprocess.run(["stat", "--cached=never", "-c", "%s", path], check=True, text=True,
                              capture_output=True, timeout=20).stdout)


@pytest.mark.parametrize("page_cache", [False, True])
def test_the_origin_is_truthful(src, mount, page_cache):
    a = src / "a"
    a.write_bytes(b"one")
    fs = mount(page_cache=page_cache)
    held = open(fs.path / "a", "rb", buffering=0)
    assert os.pread(held.fileno(), 10, 0) == b"one"
    for i in range(20):
        text = b"text %d" % i
        if i % 2:
            (src / "new").write_bytes(text)
            os.rename(src / "new", a)
        else:
            a.write_bytes(text)
        assert os.stat(fs.path / "a").st_size == len(text)
        assert (fs.path / "a").read_bytes() == text
        assert os.stat(fs.path / "a").st_ino == a.stat().st_ino
    os.unlink(a)
    assert not os.path.exists(fs.path / "a") and os.listdir(fs.path) == []
    # the first rename left the held file behind, rewritten once in place before
    assert os.pread(held.fileno(), 10, 0) == b"text 0"
    assert os.fstat(held.fileno()).st_nlink == 0
    held.close()


@pytest.mark.parametrize("page_cache", [False, True])
def test_attribute_cache_mode(src, mount, page_cache):
    a = src / "a"
    a.write_bytes(b"one")
    fs = mount(attr_cache=True, page_cache=page_cache)
    with open(fs.path / "a", "rb", buffering=0) as f:
        assert os.fstat(f.fileno()).st_size == 3 and f.read() == b"one"
        a.write_bytes(b"longer")
        assert os.fstat(f.fileno()).st_size == 3  # stale, as from an attribute cache
        assert os.stat(fs.path / "a").st_size == 3
        assert stat_sync(fs.path / "a") == 6
    a.write_bytes(b"longest of all")
    assert os.stat(fs.path / "a").st_size == 6
    with open(fs.path / "a", "rb", buffering=0) as f:  # close-to-open
        assert os.fstat(f.fileno()).st_size == 14 and f.read() == b"longest of all"
    (src / "new").write_bytes(b"renamed")
    os.rename(src / "new", a)
    assert os.stat(fs.path / "a").st_size == 14
    assert (fs.path / "a").read_bytes() == b"renamed"
    assert os.stat(fs.path / "a").st_ino == a.stat().st_ino


def test_pages_go_also_when_only_attributes_told_of_the_change(src, mount):
    path = os.path.join(src, "kept")
    with open(path, "wb") as f:
        f.write(b"1" * 8192)
    fs = mount(page_cache=True)
    seen = os.path.join(fs.path, "kept")
    with open(seen, "rb") as f:
        assert f.read() == b"1" * 8192
    st = os.stat(path)
    with open(path, "r+b") as f:
        f.write(b"2" * 8192)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert os.stat(seen).st_ctime_ns == os.stat(path).st_ctime_ns  # the kernel knows, and drops nothing: mtime and size are the same
    with open(seen, "rb") as f:
        assert f.read() == b"2" * 8192


def test_page_cache_mode_keeps_pages_until_a_change(src, mount):
    data = write(src / "a", 256 * KIB)
    fs = mount(page_cache=True, read_ahead="1M")
    assert (fs.path / "a").read_bytes() == data
    first = fs.totals()
    assert (fs.path / "a").read_bytes() == data
    assert fs.totals()["READ"] == first["READ"] and first["bytes"] == 256 * KIB
    changed = write(src / "a", 256 * KIB, 1)
    os.utime(src / "a", ns=(0, 12345))
    assert (fs.path / "a").read_bytes() == changed
    assert fs.totals()["bytes"] == 512 * KIB
