# SPDX-License-Identifier: Apache-2.0
"""Origin reads that fail, come short, or come once for many: errors reach every waiter and are never kept (laws 2, 5, 10)."""
import os
import signal

import pytest

from lib import env, pattern, procs, tree

SIZE = 6 * tree.CHUNK + 4321
MIDDLE = 3 * tree.CHUNK  # a chunk in the middle: [MIDDLE, MIDDLE + 1 MiB)
MIDDLE_RANGE = f"{MIDDLE}-{MIDDLE + tree.CHUNK}"


@pytest.fixture
def far(tmp, slow):
    folder = os.path.join(tmp, "origin")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "data"), 1, SIZE)
    pattern.make(os.path.join(folder, "other"), 2, SIZE)
    return slow(folder)


def stuck(way, path, file, count, stride, at_bytes=4096):
    return procs.Child([env.prog("mt_stuck"), way, path, file, 1, count, stride, at_bytes])


def read_at(path, at, length=4096):
    """A child that preads once: prints the length, or the errno's name."""
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
              "try: print(len(os.pread(fd, int(sys.argv[3]), int(sys.argv[2]))))\n"
              "except OSError as e: print(errno.errorcode[e.errno])\n")
    return procs.run(["python3", "-c", script, path, at, length], timeout=60, check=True).text.strip()


@pytest.mark.parametrize("name", ["EIO", "EACCES", "EBADMSG", "ENXIO"])
def test_a_failing_read_in_the_middle_gives_its_errno_and_is_not_kept(mount, far, name):
    rule = far.rule(glob="data", op="READ", errno=name, range=MIDDLE_RANGE)
    hfs = mount(far.path)
    result = pattern.check(hfs.p("data"), 1, SIZE)
    assert pattern.errno_of(result) == getattr(__import__("errno"), name), result.err
    assert read_at(hfs.p("data"), MIDDLE + 5000) == name
    assert read_at(hfs.p("data"), 0) == "4096"
    status = hfs.status()
    assert status["origin_errors"] > 0
    assert b"data" in hfs.log() and str(MIDDLE).encode() in hfs.log(), "the log line names path and offset"
    far.command("unrule", rule)
    pattern.check(hfs.p("data"), 1, SIZE).ok()


def test_end_of_file_where_there_is_none_is_an_error(mount, far):
    """The origin says 0 bytes in the middle of a file whose size is unchanged: EIO, never a short file."""
    far.rule(glob="data", op="READ", short=0, range=MIDDLE_RANGE)
    hfs = mount(far.path)
    result = pattern.check(hfs.p("data"), 1, SIZE)
    assert pattern.errno_of(result) in (5, 116), (result.rc, result.err)  # EIO, ESTALE
    assert read_at(hfs.p("data"), MIDDLE + 100) in ("EIO", "ESTALE")
    assert far.totals()["errors"] == 0 and hfs.status()["origin_errors"] > 0
    far.clear()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


@pytest.mark.parametrize("how", [{"short": 1000, "count": 1}, {"short": 4096, "every": 2}, {"short": 100_001}])
def test_short_reads_never_shorten_the_file(mount, far, how):
    """A short answer is asked again or is EIO; the bytes are right, and a second reading is."""
    far.rule(glob="data", op="READ", **how)
    hfs = mount(far.path)
    for _ in range(2):
        result = pattern.check(hfs.p("data"), 1, SIZE)
        assert result.rc == 0 or pattern.errno_of(result) == 5, (result.rc, result.err)
    assert any(r.returned < r.asked and r.offset + r.returned < SIZE for r in far.records(path="data")), "no short read"
    far.clear()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


@pytest.mark.parametrize("way", ["read", "direct"])
def test_an_error_reaches_all_waiters(mount, far, way):
    far.rule(glob="data", op="READ", errno="EREMOTEIO")
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    readers = [stuck(way, hfs.p("data"), 1, 4, 8192) for _ in range(2)]
    far.wait_hung(1)
    for reader in readers:
        procs.until(lambda r=reader: r.lines()[:1] == ["ready"], 10, "readers at work")
    far.unhang()
    for reader in readers:
        assert reader.wait(60).rc == 2
        assert sorted(reader.lines()[1:5]) == [f"{i} errno EREMOTEIO" for i in range(4)]
    far.clear()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


def test_an_error_in_a_mapping_is_sigbus_once(mount, far):
    far.rule(glob="data", op="READ", errno="EREMOTEIO")
    hfs = mount(far.path)
    assert stuck("mmap", hfs.p("data"), 1, 1, 0).wait(60).rc == -signal.SIGBUS
    far.clear()
    stuck("mmap", hfs.p("data"), 1, 6, tree.CHUNK).wait().ok()


def distinct_bytes(records):
    """(bytes fetched, bytes fetched at least once)"""
    spans, covered, last = sorted((r.offset, r.offset + r.returned) for r in records), 0, 0
    for begin, end in spans:
        covered += max(0, end - max(begin, last))
        last = max(last, end)
    return sum(e - b for b, e in spans), covered


@pytest.mark.parametrize("way", ["read", "direct", "mmap"])
def test_eight_readers_on_one_cold_block_cause_one_origin_read(mount, far, way):
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    # Eight at offset 0, three more close by: what these cause depends on who came first, but nothing comes twice.
    readers = [stuck(way, hfs.p("data"), 1, 1, 0) for _ in range(7)] + [stuck(way, hfs.p("data"), 1, 4, 16384)]
    far.wait_hung(1)
    for reader in readers:
        procs.until(lambda r=reader: r.lines()[:1] == ["ready"], 10, "readers at work")
    far.unhang()
    for reader in readers:
        reader.wait().ok()
    records = far.records(path="data")
    first = [r for r in records if r.offset < 4096]
    assert len(first) == 1, first
    fetched, distinct = distinct_bytes(records)
    assert fetched == distinct, records


def test_a_whole_cold_file_by_eight_readers_is_fetched_once(mount, far):
    far.command("latency", "READ", "2ms")
    hfs = mount(far.path, memory="64M")
    readers = [procs.Child([env.prog("mt_pattern"), "check", hfs.p("data"), 1, 1, SIZE]) for _ in range(4)]
    readers += [procs.Child([env.prog("mt_cmp"), "direct", hfs.p("data"), os.path.join(far.source, "data")]) for _ in range(4)]
    for reader in readers:
        reader.wait().ok()
    fetched, distinct = distinct_bytes(far.records(path="data"))
    assert fetched == distinct == SIZE


@pytest.mark.parametrize("way", ["read", "direct", "mmap"])
def test_a_killed_reader_strands_nobody(mount, far, way):
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    leader = stuck(way, hfs.p("data"), 1, 1, 0)
    far.wait_hung(1)
    followers = [stuck(other, hfs.p("data"), 1, 2, 8192) for other in ("read", "direct", "mmap")]
    for follower in followers:
        procs.until(lambda f=follower: f.lines() == ["ready"], 10, "followers at work")
    leader.kill()
    assert leader.wait(5).rc == -signal.SIGKILL
    late = stuck("read", hfs.p("data"), 1, 1, 0)
    procs.until(lambda: late.lines() == ["ready"], 10, "a reader that comes after the kill")
    far.unhang()
    for reader in (*followers, late):
        reader.wait().ok()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


def test_all_readers_killed_then_the_file_is_read(mount, far):
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    readers = [stuck(way, hfs.p("data"), 1, 4, tree.CHUNK) for way in ("read", "direct", "mmap")]
    far.wait_hung(1)
    for reader in readers:
        procs.until(lambda r=reader: r.lines() == ["ready"], 10, "readers at work")
        reader.kill()
    for reader in readers:
        assert reader.wait(5).rc == -signal.SIGKILL
    far.unhang()
    pattern.check(hfs.p("data"), 1, SIZE).ok()
    status = hfs.status()
    assert status["slots_pinned"] == 0 and status["inflight_bytes"] == 0


def test_a_kill_on_the_way_to_the_parking_place_is_not_lost(mount, far):
    """The kernel says only once that a caller wants to leave, maybe before the daemon has noted its request."""
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    fled = procs.run([env.prog("mt_flee"), hfs.p("data"), 5000, 40, 10], timeout=60)
    far.unhang()
    assert fled.text == "left 0\n" and fled.rc == 0
    pattern.check(hfs.p("data"), 1, SIZE).ok()


@pytest.mark.parametrize("op,name", [("LOOKUP", "EACCES"), ("OPEN", "EACCES"), ("OPEN", "ENFILE")])
def test_metadata_errors_are_passed_on_and_not_kept(mount, far, op, name):
    hfs = mount(far.path)
    far.rule(glob="data", op=op, errno=name)
    got = procs.run(["cat", hfs.p("data")], timeout=60)
    assert got.rc == 1 and got.out == b"", got.err
    assert os.strerror(getattr(__import__("errno"), name)).encode() in got.err
    far.clear()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


def test_a_directory_that_fails_is_not_shown_shortened(mount, tmp, slow):
    tree.make_crowd(os.path.join(tmp, "o", "crowd"), 2000)
    far = slow(os.path.join(tmp, "o"))
    hfs = mount(far.path)
    far.rule(glob="crowd", op="READDIR", errno="EACCES", skip=2)
    got = procs.run(["ls", hfs.p("crowd")], timeout=60)
    assert got.rc != 0, f"{len(got.out.split())} names and no error"
    far.clear()
    assert len(procs.run(["ls", hfs.p("crowd")], check=True).out.split()) == 2000


def test_random_trouble_never_gives_wrong_bytes(mount, far):
    """One read in 20 fails, one in 20 is short: what is read is right or EIO, and all of it is there afterwards."""
    far.command("seed", 42)
    far.rule(glob="*", op="READ", errno="EIO", prob=0.05)
    far.rule(glob="*", op="READ", short=5000, prob=0.05)
    hfs = mount(far.path, chunk="64K", memory="4M")
    for _ in range(env.scaled(4, 40)):
        for name, file in (("data", 1), ("other", 2)):
            result = pattern.check(hfs.p(name), file, SIZE)
            assert result.rc == 0 or pattern.errno_of(result) == 5, (result.rc, result.err)
    assert far.totals()["errors"] > 0
    far.clear()
    for name, file in (("data", 1), ("other", 2)):
        pattern.check(hfs.p(name), file, SIZE).ok()


def test_origin_counters_agree_with_the_origin(mount, far):
    hfs = mount(far.path)
    pattern.check(hfs.p("data"), 1, SIZE).ok()
    assert hfs.status()["origin_bytes"] == far.totals()["bytes"] == SIZE
