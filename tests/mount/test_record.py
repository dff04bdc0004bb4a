# SPDX-License-Identifier: Apache-2.0
"""record: what is read comes back as a list; fed back, the next run like it misses nothing; `order --epochs`.

Readers use O_DIRECT: what the kernel's page cache answers nobody can record.
"""
import os
import pty
import random
import signal
import subprocess
import sys

import pytest

from lib import env, procs, tree

CHUNK = 65536
FILES = 64

READER = r"""
import mmap, os, sys
root, listing, seconds = sys.argv[1], sys.argv[2], sys.argv[3:]
buf = mmap.mmap(-1, 1 << 20)
CHUNK = 65536
def status():
    with open(root + "/.ctl/status") as f:
        return dict(l.split(None, 1) for l in f.read().splitlines() if " " in l)
for line in open(listing, "rb").read().split(b"\0")[:-1]:
    if seconds: # not before something is there or on its way
        while True:
            s = status()
            if int(s["stream.default.window_bytes"]) >= CHUNK or int(s["stream.default.pending"]) == 0:
                break
    fd = os.open(os.path.join(os.fsencode(root), line), os.O_RDONLY | os.O_DIRECT)
    at = 0
    while True:
        n = os.preadv(fd, [buf], at)
        if n <= 0:
            break
        at += n
    os.close(fd)
"""


def ctl(*args, timeout=30, stdin=None):
    return procs.run([env.binary("tools", "hintctl"), *args], timeout=timeout, stdin=stdin)


class Bench:
    def __init__(self, tmp, child):
        self.tmp, self.child, self.n = tmp, child, 0

    def reader(self, root, names, *more):
        """A started reader of these names, in this order."""
        self.n += 1
        path = os.path.join(self.tmp, f"names{self.n}")
        with open(path, "wb") as f:
            f.write(b"".join(os.fsencode(n) + b"\0" for n in names))
        return self.child([sys.executable, "-c", READER, root, path, *more])

    def read(self, root, names, *more, timeout=60):
        self.reader(root, names, *more).wait(timeout).ok()

    def recorder(self, hfs, *args):
        """A started record, open for sure: its first line is there."""
        self.n += 1
        path = os.path.join(self.tmp, f"record{self.n}")
        one = self.child([env.binary("tools", "hintctl"), "record", hfs.path, "-o", path, *args])
        one.path = path
        procs.until(lambda: content(path).startswith(b"@epoch 0\n") or not one.is_running(), 10, "the record's first line")
        return one


def content(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return b""


def entries(path):
    """[(name, offset, length)], without marks and comments."""
    rows = [line.split(b"\t") for line in content(path).splitlines() if line and line[:1] not in b"@#"]
    return [(os.fsdecode(r[0]), int(r[1]), int(r[2])) for r in rows]


def ended(recorder, how=signal.SIGINT):
    recorder.signal(how)
    return recorder.wait(10).ok()


@pytest.fixture
def bench(tmp, child):
    return Bench(tmp, child)


@pytest.fixture
def origin(tmp):
    root = os.path.join(tmp, "origin")
    os.makedirs(root)
    data = random.Random(1).randbytes(CHUNK)
    for i in range(FILES):
        with open(os.path.join(root, f"f{i:04}"), "wb") as f:
            f.write(data)
    return root


def order_of(seed, n=FILES):
    names = [f"f{i:04}" for i in range(n)]
    random.Random(seed).shuffle(names)
    return names


def test_a_recorded_epoch_fed_back_misses_nothing(bench, mount, slow, origin):
    """Twice as much as the slots hold, two epochs: recorded without hints, then fed to a new mount."""
    order = order_of(3)
    far = slow(origin, latency="1ms")
    first = mount(far.path, chunk=str(CHUNK), memory="2M")
    recorder = bench.recorder(first, "--epoch")
    bench.read(first.path, order + order)
    recorder.wait(10).ok()  # by itself: the epoch came round again
    assert entries(recorder.path) == [(n, 0, CHUNK) for n in order]
    assert first.status()["demand_misses"] >= FILES
    first.stop()
    far.reset()
    second = mount(far.path, chunk=str(CHUNK), memory="2M")
    ctl("order", second.path, "--epochs", "2", recorder.path).ok()
    assert second.status()["pending_entries"] == 2 * FILES
    bench.read(second.path, order + order, "paced")
    status = second.status()
    assert status["demand_misses"] == 0, status["demand_misses"]
    assert status["pending_entries"] == 0
    least = (2 * FILES - status["slots_total"]) * CHUNK
    assert status["origin_bytes"] <= 1.08 * least + 2 * CHUNK, (status["origin_bytes"], least)


def test_epochs_of_other_orders_are_told_apart(bench, mount, origin):
    hfs = mount(origin, chunk=str(CHUNK), memory="2M")
    recorder = bench.recorder(hfs)
    orders = [order_of(seed) for seed in range(4)]
    # an index that is read again now and then is no new epoch
    bench.read(hfs.path, sum([o[:20] + o[:2] + o[20:40] + o[:1] + o[40:] for o in orders], []))
    ended(recorder)
    parts = content(recorder.path).split(b"@epoch ")[1:]
    assert [p.split(b"\n", 1)[0] for p in parts] == [b"0", b"1", b"2", b"3"]
    for part, o in zip(parts, orders):
        order = o[:20] + o[:2] + o[20:40] + o[:1] + o[40:]
        names = [line.split(b"\t")[0].decode() for line in part.splitlines()[1:]]
        assert len(names) == len(order)
        # A read that slots answer is told after the answer: those that came meanwhile may be told before it.
        assert sorted(names) == sorted(order)
        assert all(n in order[max(0, i - 8):i + 9] for i, n in enumerate(names)), (names, order)


def test_two_readers_and_two_recorders(bench, mount, tmp):
    root = os.path.join(tmp, "big")
    os.makedirs(root)
    sizes = {"a.bin": 5 * (1 << 20) + 17, "b.bin": 3 * (1 << 20), "c.bin": 1}
    for name, size in sizes.items():
        with open(os.path.join(root, name), "wb") as f:
            f.write(os.urandom(size))
    hfs = mount(root)
    recorders = [bench.recorder(hfs), bench.recorder(hfs)]
    readers = [bench.reader(hfs.path, ["a.bin"]), bench.reader(hfs.path, ["b.bin", "c.bin"])]
    for r in readers:
        r.wait(30).ok()
    for r in recorders:
        ended(r)
    assert content(recorders[0].path) == content(recorders[1].path)
    found = entries(recorders[0].path)
    for name, size in sizes.items():
        at = 0
        for _, off, n in [e for e in found if e[0] == name]:
            assert off == at, (name, found)
            at += n
        assert at == size
    assert len(found) <= 12, "what goes on is one line"


def test_names_of_any_bytes_come_back(bench, mount, tmp):
    root = os.fsencode(os.path.join(tmp, "odd"))
    os.makedirs(os.path.join(root, b"d\n\xff"))
    names = [n for n in tree.NAMES] + [b"d\n\xff/" + n for n in tree.NAMES]
    for name in names:
        with open(os.path.join(root, name), "wb") as f:
            f.write(b"x" * 100)
    hfs = mount(os.fsdecode(root))
    recorder = bench.recorder(hfs)
    bench.read(hfs.path, names)
    ended(recorder)
    assert len(entries(recorder.path)) == len(names)
    check = ctl("order", "--check", hfs.path, recorder.path).ok().text
    assert f"{len(names)} entries" in check and f"of {len(names)} distinct names" in check, check
    ctl("order", hfs.path, recorder.path).ok()
    assert hfs.status()["pending_entries"] == len(names)
    bench.read(hfs.path, names)
    status = hfs.status()
    assert status["pending_entries"] == 0 and status["missing_entries"] == 0
    assert content(os.path.join(hfs.ctl, "errors")) == b""


def test_it_ends_when_the_mount_goes(bench, mount, origin):
    hfs = mount(origin, chunk=str(CHUNK))
    recorder = bench.recorder(hfs, "--epoch")
    names = order_of(1)[:10]
    bench.read(hfs.path, names)
    hfs.stop()
    result = recorder.wait(10).ok()
    assert b"may be a part of one" in result.err
    assert [e[0] for e in entries(recorder.path)] == names


def test_the_last_reads_are_recorded_when_the_mount_goes(bench, mount, origin, child):
    """A recorder that was not at work when they came, one that waits in its read and one that takes a few bytes at a time."""
    hfs = mount(origin, chunk=str(CHUNK))
    recorder = bench.recorder(hfs)
    record = os.path.join(hfs.ctl, "record")
    waiting = child(["cat", record])
    slow_one = child(["dd", f"if={record}", "bs=7", "status=none"])
    procs.until(lambda: all(any("/record" in p for p in procs.open_files(r.pid)) for r in (waiting, slow_one)), 10, "all have it open")
    names = order_of(1)[:100]
    for one in (recorder, slow_one):
        one.signal(signal.SIGSTOP)
    bench.read(hfs.path, names)
    unmount = child(["umount", hfs.path])
    procs.until(lambda: b"unmounted from outside" in hfs.log(), 10, "the mount has gone")
    for one in (recorder, slow_one):
        one.signal(signal.SIGCONT)
    unmount.wait(10).ok()
    hfs.wait_end()
    recorder.wait(10).ok()
    lines = "".join(f"{n}\t0\t{CHUNK}\n" for n in names).encode()
    assert content(recorder.path) == b"@epoch 0\n" + lines
    assert waiting.wait(10).out == lines and slow_one.wait(10).out == lines


def test_standard_output_progress_and_trouble(bench, mount, origin, tmp, child):
    hfs = mount(origin, chunk=str(CHUNK))
    plain = child([env.binary("tools", "hintctl"), "record", hfs.path])
    procs.until(lambda: plain.out() or not plain.is_running(), 10, "first line")
    bench.read(hfs.path, ["f0001"])
    assert ended(plain, signal.SIGTERM).out == b"@epoch 0\nf0001\t0\t%d\n" % CHUNK
    result = ctl("record", hfs.path, "-o", os.path.join(tmp, "none", "there"))
    assert result.rc == 1 and b"No such file" in result.err
    master, slave = pty.openpty()
    shown = subprocess.Popen([env.binary("tools", "hintctl"), "record", hfs.path, "-o", os.path.join(tmp, "shown")],
                             stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    while b"Ctrl-C ends it" not in said:
        said += os.read(master, 65536)
    shown.send_signal(signal.SIGINT)
    assert shown.wait(10) == 0
    while b"drop_caches)" not in said:
        said += os.read(master, 65536)
    os.close(master)
    assert b"recorded: 0 reads" in said and b"nothing was read that the daemon saw" in said and b"drop_caches" in said, said


def test_signals_in_a_burst_are_one(bench, mount, origin):
    """timeout(1) sends its signal to the process and to its group."""
    hfs = mount(origin)
    recorder = bench.recorder(hfs)
    bench.read(hfs.path, ["f0001", "f0002"])
    for _ in range(200):
        if recorder.is_running():
            recorder.signal(signal.SIGINT)
    recorder.wait(10).ok()
    assert [e[0] for e in entries(recorder.path)] == ["f0001", "f0002"], content(recorder.path)


def test_lines_that_were_overtaken_are_counted(bench, mount, tmp):
    """The daemon keeps a megabyte of lines for who is slow; a comment says what is not there."""
    root = os.path.join(tmp, "long")
    os.makedirs(root)
    names = [f"{i:04}".ljust(250, "n") for i in range(100)]
    for name in names:
        with open(os.path.join(root, name), "wb") as f:
            f.write(b"y")
    hfs = mount(root)
    recorder = bench.recorder(hfs)
    recorder.signal(signal.SIGSTOP)
    bench.read(hfs.path, names * 60)
    recorder.signal(signal.SIGCONT)
    procs.until(lambda: b"bytes of record were lost" in content(recorder.path), 10, "the comment")
    result = ended(recorder)
    assert b"came faster than they were taken" in result.err
    assert all(e[0] in names and e[1:] == (0, 1) for e in entries(recorder.path)), "whole lines only"
    ctl("order", "--check", hfs.path, recorder.path).ok()


# ---- order --epochs ------------------------------------------------------------------------------------
def pending(hfs):
    return procs.run(["cat", os.path.join(hfs.ctl, "order")], timeout=10, check=True).text.splitlines()


def names_of(lines):
    return [line.split("\t")[0] for line in lines if not line.startswith("@")]


def test_epochs_of_one_and_of_several(mount, origin, tmp):
    hfs = mount(origin)
    one = b"# c\n@epoch 0\nf0001\t0\t10\nf0002"
    ctl("order", "--epochs", "3", "-", hfs.path, stdin=one).ok()  # FILE MOUNTPOINT
    assert hfs.status()["pending_entries"] == 6
    several = b"@epoch 0\nf0001\nf0002\n@epoch 1\n@batch\nf0003\n@epoch 2\n"
    ctl("order", hfs.path, "--epochs", "4", "-", stdin=several).ok()
    assert names_of(pending(hfs)) == ["f0001", "f0002", "f0003", "f0003", "f0003"]
    ctl("order", hfs.path, "--epochs", "1", "-", stdin=several).ok()
    assert names_of(pending(hfs)) == ["f0001", "f0002"]
    for text, said in ((b"f0001\n@repeat 2\n", b"@repeat already"), (b"# nothing\n@epoch 0\n", b"names nothing")):
        result = ctl("order", hfs.path, "--epochs", "2", "-", stdin=text)
        assert result.rc == 1 and said in result.err
        assert names_of(pending(hfs)) == ["f0001", "f0002"], "the list is left alone"
    for bad in ("0", "x", "1000001"):
        result = ctl("order", hfs.path, "--epochs", bad, os.path.join(tmp, "none"))
        assert result.rc == 2 and b"whole number" in result.err
    assert ctl("order", hfs.path, "--epochs", "2", "--check", os.path.join(tmp, "none")).rc == 2
