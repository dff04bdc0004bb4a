# SPDX-License-Identifier: Apache-2.0
"""slowfs as an origin for these tests: the process, and its control socket (tests/fault/README.md has the commands).

Options are slowfs's own, with `_` for `-`: Slow(folder, source, latency="1ms", bandwidth="200M", attr_cache=True).
"""
import collections
import os
import signal
import socket
import subprocess

from . import env, mounts, procs

Record = collections.namedtuple("Record", "seq start_ns end_ns op path offset asked returned err")


def _escape(word):
    return "".join(c if "!" <= c <= "~" and c != "\\" else "\\x%02x" % b
                   for b in os.fsencode(word) for c in [chr(b)])


def _unescape(text):
    out, i = bytearray(), 0
    raw = text.encode()
    while i < len(raw):
        if raw[i:i + 2] == b"\\x":
            out.append(int(raw[i + 2:i + 4], 16))
            i += 4
        elif raw[i:i + 2] == b"\\\\":
            out += b"\\"
            i += 2
        else:
            out.append(raw[i])
            i += 1
    return os.fsdecode(bytes(out))


class Slow:
    def __init__(self, folder, source, mountpoint=None, **opts):
        self.source = os.fspath(source)
        self.path = os.fspath(mountpoint or os.path.join(folder, "mnt"))
        os.makedirs(self.path, exist_ok=True)
        self.ctl_path = os.path.join(folder, "ctl")
        self.log_path = os.path.join(folder, "slowfs.log")
        self.argv = [env.binary("tests", "fault", "slowfs"), f"--ctl={self.ctl_path}"]
        for name, value in opts.items():
            name = "--" + name.replace("_", "-")
            for one in value if isinstance(value, (list, tuple)) else [value]:
                self.argv.append(name if one is True else f"{name}={one}")
        self.argv += [self.source, self.path]
        self.proc = None
        self._judged = False

    def start(self, timeout=10):
        ready_r, ready_w = os.pipe()
        watch_r, self._watch = os.pipe()  # closed with this process: slowfs never outlives the tests
        self.argv[1:1] = [f"--ready-fd={ready_w}", f"--watch-fd={watch_r}"]
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                         pass_fds=(ready_w, watch_r), start_new_session=True)
        os.close(ready_w)
        os.close(watch_r)
        ready = os.read(ready_r, 1)
        os.close(ready_r)
        assert ready, f"slowfs did not start: {self.log()!r}"
        procs.until(lambda: mounts.is_mounted(self.path), timeout, "slowfs mounted")
        self.minor = mounts.find(self.path)[1]
        return self

    @property
    def pid(self):
        return self.proc.pid

    def log(self):
        with open(self.log_path, "rb") as f:
            return f.read()

    def p(self, *parts):
        return os.path.join(self.path, *parts)

    def command(self, *words, timeout=30):
        """Lines of the answer; AssertionError with slowfs's text when it says no."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(env.seconds(timeout))
            s.connect(self.ctl_path)
            s.sendall((" ".join(_escape(str(w)) for w in words) + "\n").encode())
            with s.makefile("r", encoding="ascii") as answer:
                head = answer.readline().rstrip("\n")
                assert head.startswith("ok "), f"slowfs: {words}: {head}"
                return [answer.readline().rstrip("\n") for _ in range(int(head[3:]))]

    # ---- faults ----
    def hang(self, glob="*", *more):
        self.command("hang", glob, *more)

    def unhang(self, glob=None):
        self.command("unhang", *([glob] if glob else []))

    def rule(self, **words):
        """rule(glob='a*', op='read', errno='EIO') -> id"""
        words = {"from" if k == "from_" else k: v for k, v in words.items()}
        return int(self.command("rule", *[f"{k}={v}" for k, v in words.items()])[0])

    def clear(self):
        self.command("clear")

    def wait_hung(self, count, timeout=10):
        self.command("wait-hung", count, f"{env.seconds(timeout)}s", timeout=timeout + 5)

    def hung(self):
        return len(self.command("hung"))

    # ---- what happened ----
    def reset(self):
        self.command("reset")

    def records(self, op="READ", path=None, since=0):
        rows = []
        for line in self.command("log", since):
            f = line.split("\t")
            rows.append(Record(int(f[0]), int(f[1]), int(f[2]), f[3], _unescape(f[4]), *map(int, f[5:9])))
        return [r for r in rows if (op is None or r.op == op) and (path is None or r.path == path)]

    def seq(self):
        return self.totals()["seq"]

    def totals(self):
        return {k: int(v) for k, v in (line.split("\t") for line in self.command("totals"))}

    def counters(self):
        """{path: {op: count, 'bytes': n, 'errors': n}}"""
        head, *rows = [line.split("\t") for line in self.command("counters")]
        return {_unescape(r[0]): dict(zip(head[1:], map(int, r[1:]))) for r in rows}

    # ---- the end ----
    def die(self):
        """Killed, with its mount still there: every call in it fails with ENOTCONN."""
        self._judged = True
        os.killpg(self.pid, signal.SIGKILL)
        self.proc.wait(10)

    def go(self):
        """Unmounted and ended, before the test is."""
        self.finish()
        self.free()
        self.proc = None

    def finish(self):
        if self._judged:
            return
        self._judged = True
        assert self.proc.poll() is None, f"slowfs died with {self.proc.returncode}: {self.log()!r}"

    def free(self):
        if self.proc is None:
            return
        os.close(self._watch)
        try:
            self.proc.wait(3)
        except subprocess.TimeoutExpired:
            mounts.abort(self.minor)
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.proc.wait(10)
        if mounts.is_mounted(self.path):
            mounts.detach(self.path)
