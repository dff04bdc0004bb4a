# SPDX-License-Identifier: Apache-2.0
"""One mounted hintfs: start, wait until it answers, look into it, end it, judge its exit and its log.

1. The daemon runs with -f in a session of its own; its stdout and stderr are the log.
2. stop() ends it by an ordinary unmount or by SIGTERM and asserts exit code 0 and a clean log.
3. free() never fails and never hangs: connections are aborted, mounts detached, the process killed.
"""
import os
import re
import signal
import subprocess

from . import env, mounts, procs

FORBIDDEN = re.compile(
    rb"assert|Sanitizer|runtime error:|panic|BUG|invariant|double free|corrupt|stack smashing|Segmentation|Aborted", re.I)


def option_args(opts):
    """{'memory': '64M', 'immutable': True, 'ctl': None} -> ['-o', 'memory=64M,immutable']"""
    parts = []
    for name, value in opts.items():
        if value is None or value is False:
            continue
        name = name.replace("_", "-")
        parts.append(name if value is True else f"{name}={value}")
    return ["-o", ",".join(parts)] if parts else []


class Hintfs:
    def __init__(self, folder, source, mountpoint=None, expect_exit=0, limits=None, wrap=(), **opts):
        self.folder, self.source = folder, os.fspath(source)
        self.path = os.fspath(mountpoint or os.path.join(folder, "mnt"))
        os.makedirs(self.path, exist_ok=True)
        self.log_path = os.path.join(folder, "daemon.log")
        opts.setdefault("ctl", os.path.join(folder, "ctl"))
        opts.setdefault("memory", "64M")
        self.opts, self.expect_exit = opts, expect_exit
        self.ctl = opts["ctl"] or os.path.join(self.path, ".ctl")
        self.argv = [*wrap, env.binary("fs", "hintfs"), "-f", *option_args(opts), self.source, self.path]
        self._limits = limits
        self._judged = False
        self.proc = None
        self.minor = None

    # ---- life ----
    def spawn(self):
        """Start without waiting for the mount."""
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=self._limits)
        return self

    def start(self, timeout=20):
        self.spawn()
        procs.until(self._is_ready, timeout, lambda: f"mount of {self.path}: {self.log()[-2000:]!r}")
        self.minor = mounts.find(self.path)[1]
        return self

    def _is_ready(self):
        if self.proc.poll() is not None:
            raise AssertionError(f"hintfs ended with {self.proc.returncode} before it was ready: {self.log()[-3000:]!r}")
        if not mounts.is_mounted(self.path):
            return False
        return procs.run(["cat", os.path.join(self.path, ".ctl", "status")], timeout=5).rc == 0

    @property
    def pid(self):
        return self.proc.pid

    def log(self):
        try:
            with open(self.log_path, "rb") as f:
                return f.read()
        except FileNotFoundError:
            return b""

    def is_running(self):
        return self.proc is not None and self.proc.poll() is None

    def stop(self, how="umount", timeout=5):
        """End it in an orderly way; exit code and log are judged."""
        if how == "umount":
            self._unmount()
        elif how == "term":
            self.proc.send_signal(signal.SIGTERM)
        else:
            raise ValueError(how)
        self.wait_end(timeout)
        self.judge()

    def _unmount(self):
        last = []

        def tried():
            last[:] = [procs.run(["umount", self.path], timeout=20)]
            return last[0].rc == 0 or not mounts.is_mounted(self.path)
        # The kernel drops the last reference of a closed file a moment after close() returned: busy may pass.
        procs.until(tried, 5, lambda: f"umount {self.path}: {last and last[0].err!r}", poll_s=0.05)

    def wait_end(self, timeout=5):
        try:
            self.proc.wait(env.seconds(timeout))
        except subprocess.TimeoutExpired:
            raise procs.Expired(
                f"hintfs did not end within {env.seconds(timeout):g} s; threads {procs.thread_names(self.pid)}; "
                f"log {self.log()[-2000:]!r}") from None

    def judge(self):
        """Exit code as expected, nothing forbidden in the log, nothing left mounted."""
        self._judged = True
        assert self.proc.returncode == self.expect_exit, \
            f"hintfs exited {self.proc.returncode}, not {self.expect_exit}: {self.log()[-3000:]!r}"
        log = self.log().replace(os.fsencode(os.path.dirname(self.folder)), b"")  # letters drawn by lot, which may be a forbidden word
        hit = FORBIDDEN.search(log)
        assert not hit, f"the daemon's log holds {hit[0]!r}: {log[max(0, hit.start() - 300):hit.end() + 2000]!r}"
        assert not mounts.is_mounted(self.path), "the data mount is still there"
        if self.opts["ctl"]:
            assert not mounts.is_mounted(self.opts["ctl"]), "the control mount is still there"

    def finish(self):
        """At the end of a test: the orderly stop, unless the test did it itself."""
        if self.proc is None or self._judged:
            return
        if self.is_running():
            self.stop()
        else:
            self.judge()

    def free(self):
        for path in filter(None, (self.opts["ctl"], self.path)):
            row = mounts.find(path)
            if row:
                mounts.abort(row[1])
                mounts.detach(path)
        if self.is_running():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                self.proc.wait(10)
            except subprocess.TimeoutExpired:
                pass

    # ---- looking into it ----
    def p(self, *parts):
        return os.path.join(self.path, *parts)

    def status(self, timeout=5):
        """.ctl/status as a dict; numbers become int or float."""
        text = procs.run(["cat", os.path.join(self.ctl, "status")], timeout=timeout, check=True).text
        return parse_status(text)

    def order(self, text, stream=None, append=False, timeout=30):
        """Write control lines from a child; returns its Result (rc 0, or 1 with the errno's name in err)."""
        data = text if isinstance(text, bytes) else os.fsencode(text)
        target = os.path.join(self.ctl, "order" if stream is None else f"streams/{stream}")
        return procs.run(f'exec cat {">>" if append else ">"} "$T"', stdin=data, timeout=timeout,
                         env={**os.environ, "T": target})

    def rss_bytes(self):
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS:"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


def parse_status(text):
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        for kind in (int, float, str):
            try:
                found[key] = kind(value)
                break
            except ValueError:
                pass
    return found
