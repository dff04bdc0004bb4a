# SPDX-License-Identifier: Apache-2.0
"""Child processes with deadlines. The test process itself never touches a path that may hang.

1. Every child is the leader of its own session, so its whole tree can be killed.
2. Every child is registered and killed when its test ends, whatever the test did.
3. Waiting is for an event with a deadline; nothing sleeps for a fixed time.
"""
import os
import select
import signal
import subprocess
import tempfile
import time

from . import env

_alive = []


class Expired(AssertionError):
    """A deadline passed."""


def until(predicate, timeout, what="condition", poll_s=0.01):
    """Return the first true value of predicate(); Expired after `timeout` seconds (stretched by sanitizers).

    what: text, or a function that gives it when the deadline has passed.
    """
    deadline = time.monotonic() + env.seconds(timeout)
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            said = what() if callable(what) else what
            raise Expired(f"not within {env.seconds(timeout):g} s: {said}")
        select.select([], [], [], poll_s)


class Result:
    def __init__(self, argv, rc, out, err, wall_s):
        self.argv, self.rc, self.out, self.err, self.wall_s = argv, rc, out, err, wall_s

    @property
    def text(self):
        return self.out.decode("utf-8", "surrogateescape")

    def ok(self):
        assert self.rc == 0, f"{_short(self.argv)} exited {self.rc}\n{self.out[-2000:]!r}\n{self.err[-2000:]!r}"
        return self


def _short(argv):
    text = argv if isinstance(argv, str) else " ".join(map(str, argv))
    return text if len(text) < 300 else text[:300] + "..."


class Child:
    """A started program whose output goes to unlinked files (no pipe can fill up and block it)."""

    def __init__(self, argv, stdin=None, **popen):
        self.argv = argv
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        shell = isinstance(argv, str)
        args = ["bash", "-c", argv] if shell else [a if isinstance(a, (str, bytes)) else os.fspath(a) if hasattr(a, "__fspath__") else str(a) for a in argv]
        pipe = subprocess.PIPE if stdin is not None else subprocess.DEVNULL
        self.started = time.monotonic()
        self.proc = subprocess.Popen(args, stdin=pipe, stdout=self._out, stderr=self._err, start_new_session=True, **popen)
        _alive.append(self)
        if stdin is not None:
            try:
                self.proc.stdin.write(stdin)
                self.proc.stdin.close()
            except BrokenPipeError:
                pass  # it ended early: its status says why

    @property
    def pid(self):
        return self.proc.pid

    def out(self):
        return os.pread(self._out.fileno(), 1 << 28, 0)

    def err(self):
        return os.pread(self._err.fileno(), 1 << 24, 0)

    def lines(self):
        return self.out().decode("utf-8", "surrogateescape").splitlines()

    def is_running(self):
        return self.proc.poll() is None

    def wait(self, timeout=30):
        """The Result; on a passed deadline the child is killed and Expired raised."""
        try:
            self.proc.wait(env.seconds(timeout))
        except subprocess.TimeoutExpired:
            state = task_states(self.pid)
            self.kill()
            raise Expired(
                f"{_short(self.argv)} did not end within {env.seconds(timeout):g} s\n"
                f"states {state}\nout {self.out()[-1000:]!r}\nerr {self.err()[-1000:]!r}") from None
        return Result(self.argv, self.proc.returncode, self.out(), self.err(), time.monotonic() - self.started)

    def signal(self, signum):
        os.kill(self.pid, signum)

    def kill(self):
        """SIGKILL to the whole session; does not wait for a process stuck in the kernel."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self):
        """After wait: a test that starts 10,000 programs must not keep their output open."""
        if self in _alive:
            _alive.remove(self)
        self._out.close()
        self._err.close()


def run(argv, timeout=30, stdin=None, check=False, **popen):
    child = Child(argv, stdin=stdin, **popen)
    result = child.wait(timeout)
    child.close()
    return result.ok() if check else result


def task_states(pid):
    """{tid: state letter} of a process, as the scheduler sees it."""
    states = {}
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/stat", "rb") as f:
                states[int(tid)] = f.read().rsplit(b")", 1)[1].split()[0].decode()
    except OSError:
        pass
    return states


def thread_names(pid):
    names = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/comm") as f:
                names.append(f.read().strip())
        except OSError:
            pass
    return names


def tasks_in(pid, function):
    """Thread ids whose kernel stack holds this function (root)."""
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/stack") as f:
                if function in f.read():
                    found.append(int(tid))
        except OSError:
            pass
    return found


def open_files(pid):
    """What the process's descriptors lead to, as text; an open() that is under way is not in it yet."""
    paths = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            paths.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    except OSError:
        pass
    return paths


def du(folder):
    """Bytes on disk, as du counts them. What goes away meanwhile (then du says so, and exits 1) does not count."""
    counted = run(["du", "-s", "--block-size=1", folder])
    assert all(line.endswith(b"No such file or directory") for line in counted.err.splitlines()), counted.err
    return int(counted.text.split()[0])


def kill_all():
    """End every child still alive; True when all of them are gone."""
    for child in _alive:
        if child.is_running():
            child.kill()
    deadline = time.monotonic() + 5
    for child in _alive:
        while child.is_running() and time.monotonic() < deadline:
            select.select([], [], [], 0.01)
    _alive[:] = [c for c in _alive if c.is_running()]
    return not _alive


def running():
    return [c for c in _alive if c.is_running()]
