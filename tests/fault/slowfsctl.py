#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start and control slowfs, the slow origin of the tests.

As a module:  with SlowFS(source, mountpoint, latency="1ms", bandwidth="200M") as origin: ...
As a command: slowfsctl.py SOCKET 'hang *'     (the answer's lines go to stdout)
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

INT_FIELDS = ("seq", "start_ns", "end_ns", "offset", "asked", "returned", "err")
LOG_FIELDS = ("seq", "start_ns", "end_ns", "op", "path", "offset", "asked", "returned", "err")
PENDING = -1  # err of a request that is not answered yet


class SlowError(Exception):
    """slowfs refused a command, a wait ran out, or slowfs did not start."""


def escape(text):
    """A word for the socket: bytes that would end it, or are a backslash, as \\xHH.

    A backslash that quotes a glob character stays one: write it in the glob yourself."""
    raw = os.fsencode(text)
    if not raw:
        raise ValueError("empty word")
    return "".join(chr(c) if 0x20 < c < 0x7F and c != 0x5C else f"\\x{c:02x}" for c in raw)


def quote_glob(path):
    """A glob that matches exactly this path."""
    return re.sub(rb"([\\*?\[])", rb"\\\1", os.fsencode(path))


def unescape(text):
    """The path, as os.fsdecode() gives it."""
    raw = re.sub(rb"\\(x[0-9a-f]{2}|\\)",
                 lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1][1:], 16)]),
                 text.encode("ascii"))
    return os.fsdecode(raw)


class Control:
    """One connection to the socket; not for several threads at once."""

    def __init__(self, path, timeout=60):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(os.fspath(path))
        self.file = self.socket.makefile("rw", encoding="ascii", newline="\n")

    def close(self):
        self.file.close()
        self.socket.close()

    def command(self, line):
        """Lines of the answer; SlowError if it is an error."""
        self.file.write(line + "\n")
        self.file.flush()
        head = self.file.readline().rstrip("\n")
        if not head:
            raise SlowError(f"{line}: connection closed")
        word, _, rest = head.partition(" ")
        if word != "ok":
            raise SlowError(f"{line}: {rest}")
        return [self.file.readline().rstrip("\n") for _ in range(int(rest))]


class SlowFS:
    """A mounted slowfs. Options are those of the command, with _ for -:
    SlowFS(src, mnt, latency="1ms", attr_cache=True, rule=["op=READ errno=EIO"])."""

    def __init__(self, source, mountpoint, binary=None, **options):
        self.source, self.mountpoint = os.fspath(source), os.fspath(mountpoint)
        self.folder = tempfile.mkdtemp(prefix="slowfs-")
        self.ctl_path = os.path.join(self.folder, "ctl")
        self.process = self.watch = self.control = None
        try:
            self._start(binary or find_binary(), options)
        except BaseException:
            self.stop()
            raise

    def _start(self, binary, options):
        ready_r, ready_w = os.pipe()
        watch_r, self.watch = os.pipe()
        argv = [os.fspath(binary), f"--ctl={self.ctl_path}", f"--ready-fd={ready_w}",
                f"--watch-fd={watch_r}"]
        for name, value in options.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            for one in values:
                flag = "--" + name.replace("_", "-")
                if one is True:
                    argv.append(flag)
                elif one is not None and one is not False:
                    argv.append(f"{flag}={one}")
        try:
            self.process = subprocess.Popen(
                argv + [self.source, self.mountpoint], pass_fds=(ready_w, watch_r),
                stdin=subprocess.DEVNULL, start_new_session=True)
        finally:
            os.close(ready_w)
            os.close(watch_r)
        with os.fdopen(ready_r, "rb") as ready:
            if not ready.read(1):  # ends when slowfs does
                raise SlowError(f"slowfs did not start, exit {self.process.wait()}")
        self.control = Control(self.ctl_path)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    def stop(self, timeout=10):
        """Ends slowfs by SIGTERM and removes the mount; its exit status."""
        status = None
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                subprocess.run(["umount", "-l", self.mountpoint], check=False)
        if self.process is not None:
            status = self.process.returncode
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None
        shutil.rmtree(self.folder, ignore_errors=True)
        return status

    def command(self, line):
        return self.control.command(line)

    # --- speed ---
    def latency(self, value, ops="all"):
        """value: "1ms" or a number of milliseconds; ops: all, meta, read, LOOKUP,OPEN…"""
        self.command(f"latency {ops} {value}")

    def bandwidth(self, value):
        """Bytes/s, or "200M" (powers of 1000); 0 for no limit."""
        self.command(f"bandwidth {value}")

    def timeout(self, which, value):
        """Kernel cache life of attr, entry or dir for answers from now on, seconds."""
        self.command(f"timeout {which} {value}")

    # --- hang ---
    def hang(self, glob="*", interruptible=True, ops=None, mode=None):
        """interruptible: a killed reader is let go; mode: kill, any or ignore."""
        mode = mode or ("kill" if interruptible else "ignore")
        self.command(f"hang {escape(glob)} {mode}" + (f" op={ops}" if ops else ""))

    def unhang(self, glob=None):
        """Lets all (or the hangs made with this very glob) go on; how many requests did."""
        return int(self.command("unhang" + (f" {escape(glob)}" if glob else ""))[0])

    def hung(self):
        """The parked requests as (seq, op, path, offset, size)."""
        rows = [line.split("\t") for line in self.command("hung")]
        return [(int(r[0]), r[1], unescape(r[2]), int(r[3]), int(r[4])) for r in rows]

    def wait_hung(self, n=1, timeout=10):
        """Returns when at least n requests are parked."""
        self.command(f"wait-hung {n} {timeout}s")

    def wait_hung_max(self, n=0, timeout=10):
        """Returns when at most n requests are parked."""
        self.command(f"wait-hung-max {n} {timeout}s")

    def wait_op(self, ops, n, timeout=10):
        """Returns when n requests of these operations have arrived since the reset."""
        self.command(f"wait-op {ops} {n} {timeout}s")

    def wait_handles_max(self, n=0, timeout=10):
        """Returns when at most n files and directories are open (close is asynchronous)."""
        self.command(f"wait-handles-max {n} {timeout}s")

    # --- faults ---
    def rule(self, glob="*", ops="READ", **action):
        """One of errno="EIO", short=4096, delay="10ms"; and prob= every= skip= count=
        range="LO-HI". The rule's number."""
        words = [f"op={ops}", f"glob={escape(glob)}"]
        words += [f"{key}={value}" for key, value in action.items()]
        return int(self.command("rule " + " ".join(words))[0])

    def unrule(self, number):
        self.command(f"unrule {number}")

    def rules(self):
        """{number: hits}"""
        rows = [line.split("\t") for line in self.command("rules")]
        return {int(r[0]): int(r[-1].partition("=")[2]) for r in rows}

    def clear(self):
        """Removes all rules."""
        self.command("clear")

    def seed(self, n):
        self.command(f"seed {n}")

    # --- figures ---
    def counters(self, glob=None):
        """{path: {"OPEN": n, "READ": n, …, "bytes": n, "errors": n}}"""
        lines = self.command("counters" + (f" {escape(glob)}" if glob else ""))
        names = lines[0].split("\t")[1:]
        return {unescape(path): dict(zip(names, map(int, values)))
                for path, *values in (line.split("\t") for line in lines[1:])}

    def totals(self):
        return {k: int(v) for k, v in (line.split("\t") for line in self.command("totals"))}

    def log(self, since=0, limit=None):
        """Records in order of arrival, as dicts with LOG_FIELDS; err -1 is pending."""
        records = []
        for line in self.command(f"log {since}" + (f" {limit}" if limit is not None else "")):
            record = dict(zip(LOG_FIELDS, line.split("\t")))
            record.update((f, int(record[f])) for f in INT_FIELDS)
            record["path"] = unescape(record["path"])
            records.append(record)
        return records

    def seq(self):
        """Number of the last record, for log(since=…)."""
        return self.totals()["seq"]

    def reset(self):
        """Counters to zero, log empty; seq goes on."""
        self.command("reset")


def start(source, mountpoint, **options):
    return SlowFS(source, mountpoint, **options)


def find_binary():
    """$SLOWFS, else tests/fault/slowfs of $BUILD or of build/ in the source."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    build = (os.environ.get("HINTFS_BUILD") or os.environ.get("BUILD")
             or os.path.join(root, "build"))
    return os.environ.get("SLOWFS") or os.path.join(build, "tests", "fault", "slowfs")


def main(argv):
    if len(argv) < 3:
        print("usage: slowfsctl.py SOCKET COMMAND…", file=sys.stderr)
        return 2
    control = Control(argv[1], timeout=None)
    try:
        for line in argv[2:]:
            for answer in control.command(line):
                print(answer)
    except SlowError as error:
        print(f"slowfsctl: {error}", file=sys.stderr)
        return 1
    finally:
        control.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
