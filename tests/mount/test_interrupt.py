# SPDX-License-Identifier: Apache-2.0
"""Signals and parked reads: a dying reader leaves within a second on every path, other signals break nothing (§4)."""
import os
import signal
import time

import pytest

from lib import env, pattern, procs, tree

SIZE = 6 * tree.CHUNK


@pytest.fixture
def far(tmp, slow):
    folder = os.path.join(tmp, "origin")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "data"), 1, SIZE)
    pattern.make(os.path.join(folder, "other"), 2, SIZE)
    return slow(folder)


def stuck(way, path, file=1, count=1):
    return procs.Child([env.prog("mt_stuck"), way, path, file, 1, count, 65536])


def ends_within(child, limit_s):
    """Seconds until the process is gone; the requirement itself is a time here."""
    begun = time.monotonic()
    child.wait(10)
    took = time.monotonic() - begun
    assert took <= env.seconds(limit_s), f"gone after {took:.2f} s"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("way", ["read", "mmap", "direct"])
def test_a_dying_reader_leaves_within_a_second(mount, far, way, signum):
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    readers = [stuck(way, hfs.p("data"), count=n) for n in (1, 3)]
    far.wait_hung(1)
    for reader in readers:
        procs.until(lambda r=reader: r.lines() == ["ready"], 10, "readers at work")
        procs.until(lambda r=reader: set(procs.task_states(r.pid).values()) <= {"D", "S"}, 10, "readers asleep")
    for reader in readers:
        reader.signal(signum)
        ends_within(reader, 1)
    assert far.hung() >= 1
    far.unhang()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


def test_killed_in_open_and_stat_and_readdir(mount, far):
    """Metadata calls are freed too."""
    hfs = mount(far.path)
    far.hang("*")
    children = [procs.Child(["cat", hfs.p("data")]), procs.Child(["stat", hfs.p("other")]), procs.Child(["ls", hfs.path])]
    far.wait_hung(1)
    for child in children:
        child.signal(signal.SIGKILL)
        ends_within(child, 1)
    far.unhang()
    pattern.check(hfs.p("data"), 1, SIZE).ok()


@pytest.mark.parametrize("restart", [0, 1])
@pytest.mark.parametrize("way", ["read", "direct", "mmap", "write"])
def test_an_alarm_every_millisecond_breaks_nothing(mount, far, way, restart):
    """Reads of a cold file from an origin that takes 20 ms: each of them waits through many signals."""
    far.command("latency", "READ", "20ms")
    hfs = mount(far.path, chunk="256K", memory="16M")
    result = procs.run([env.prog("mt_signals"), way, restart, hfs.p("data"), 1, 1, SIZE], timeout=40)
    assert result.rc == 0, (result.rc, result.err)
    assert int(result.text.split()[1]) >= 5, result.text


@pytest.mark.parametrize("way", ["read", "direct"])
def test_an_alarm_while_hung_then_right(mount, far, way):
    """The origin hangs for a while with the alarm on: the read waits, and is right afterwards."""
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    reader = procs.Child([env.prog("mt_signals"), way, 0, hfs.p("data"), 1, 1, SIZE])
    far.wait_hung(1)
    begun = time.monotonic()
    procs.until(lambda: time.monotonic() - begun > 1 or not reader.is_running(), 3, "a second of signals")
    assert reader.is_running(), (reader.out(), reader.err())
    far.unhang()
    result = reader.wait(30).ok()
    assert int(result.text.split()[1]) >= 1


def test_a_stopped_reader_goes_on(mount, far):
    """SIGSTOP and SIGCONT (a shell's Ctrl-Z) round a parked read."""
    far.hang("data", "op=READ")
    hfs = mount(far.path)
    readers = [stuck(way, hfs.p("data"), count=2) for way in ("read", "direct", "mmap")]
    far.wait_hung(1)
    for reader in readers:
        procs.until(lambda r=reader: r.lines() == ["ready"], 10, "readers at work")
        reader.signal(signal.SIGSTOP)
    for reader in readers:
        reader.signal(signal.SIGCONT)
    far.unhang()
    for reader in readers:
        reader.wait().ok()
