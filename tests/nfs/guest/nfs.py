# SPDX-License-Identifier: Apache-2.0
"""The NFS server and mount of the guest, files whose bytes name their version, and readers in processes of their own.

1. Changes are made on the server's side (Server.at_server), as another machine would make them, and are TICK_S apart from what came
   before: within one tick of the server's clock NFS itself cannot tell versions apart.
2. The test process never reads from a mount: a Reader does, with a deadline.
"""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

from lib import env, procs

NFS, EXPORT, CACHE = os.environ["NFS"], os.environ["EXPORT"], os.environ["CACHE"]
NFSCTL = os.environ["NFSCTL"]
VERS = os.environ["NFS_VERS"]
IS_V3 = VERS == "3"
TICK_S = 0.05
PAGE, UNIT = 4096, 16


def content(version, size):
    pages = ((b"v%07dp%06d\n" % (version, i)) * (PAGE // UNIT) for i in range((size + PAGE - 1) // PAGE))
    return b"".join(pages)[:size]


def ctl(*words, timeout=60):
    return procs.run([NFSCTL, *words], timeout=timeout, check=True)


class Server:
    def __init__(self, name):
        self.name = re.sub(r"\W", "_", name)
        self.export = os.path.join(EXPORT, self.name)
        shutil.rmtree(self.export, ignore_errors=True)
        os.mkdir(self.export)
        os.chmod(self.export, 0o755)
        self.path = os.path.join(NFS, self.name)
        self.is_up = True
        self._mounts = []
        self._exported = "rw,no_root_squash"

    # ---- the server ----
    def stop(self):
        ctl("stop")
        self.is_up = False

    def start(self):
        """As it was at boot."""
        if not self.is_up:
            ctl("start")
            self.is_up = True
        if self._exported != "rw,no_root_squash":
            self.exports("rw,no_root_squash")

    def finish(self):
        """The server runs, and nothing of this case is mounted."""
        self.start()
        for point in self._mounts:
            procs.run(["umount", "-f", "-l", point])
        self._mounts = []

    def exports(self, options):
        ctl("export", options)
        self._exported = options

    def unexport(self):
        """Every file handle is stale until exports() is called."""
        procs.run(["exportfs", "-ua"], check=True)
        procs.run(["exportfs", "-f"], check=True)
        self._exported = ""

    def mounted(self, options):
        """A further mount of the export with other options: the path of this case's folder there."""
        point = f"/mnt/more{time.monotonic_ns()}"
        ctl("mount", point, f"vers={VERS},{options}")
        self._mounts.append(point)
        return os.path.join(point, self.name)

    @staticmethod
    def end_calls(point):
        """What waits there for the server now ends with an error; a mount in use stays."""
        procs.run(["umount", "-f", point])

    # ---- files, on the server's side ----
    def at_server(self, name):
        return os.path.join(self.export, name)

    def put(self, name, version, size, mode=0o644):
        """Write anew, or over what is there, in place."""
        self.tick()
        path = self.at_server(name)
        with open(path, "r+b" if os.path.exists(path) else "wb") as f:
            f.write(content(version, size))
            f.truncate()
        os.chmod(path, mode)
        return path

    def replace(self, name, version, size):
        self.tick()
        with open(self.at_server(".new"), "wb") as f:
            f.write(content(version, size))
        os.rename(self.at_server(".new"), self.at_server(name))

    def rewrite_quietly(self, name, version):
        """In place, same size, mtime put back: only ctime tells."""
        path = self.at_server(name)
        before = os.stat(path)
        self.put(name, version, before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @staticmethod
    def tick():
        select.select([], [], [], TICK_S)

    def operations(self, point=NFS):
        """{operation: how often this mount has asked the server for it}"""
        text = pathlib.Path("/proc/self/mountstats").read_text(encoding="utf-8")
        part = re.search(rf"mounted on {re.escape(point)} with fstype nfs.*?(?=\ndevice |\Z)", text, re.S)[0]
        part = part.split("per-op statistics")[1]
        return {name: int(count) for name, count in re.findall(r"^\s*(\w+): (\d+)", part, re.M)}


class Reader:
    """Calls of reader_main.py, each with a deadline: cat(path), hold(name, path), pread(name, at, size), end(name), ...

    ask() begins one, answer() ends it, call() does both.
    """

    def __init__(self, uid=None, groups=()):
        def become():
            os.setsid()
            if uid is not None:
                os.setgroups(list(groups))
                os.setgid(uid)
                os.setuid(uid)
        here = pathlib.Path(__file__).with_name("reader_main.py")
        self.proc = subprocess.Popen([sys.executable, "-S", "-E", str(here)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, preexec_fn=become)
        self._left = b""

    def ask(self, *words):
        self.proc.stdin.write(json.dumps(words).encode() + b"\n")
        self.proc.stdin.flush()
        self._words = words

    def has_answer(self, timeout=0):
        return bool(b"\n" in self._left or select.select([self.proc.stdout], [], [], timeout)[0])

    def answer(self, timeout=20):
        deadline = time.monotonic() + env.seconds(timeout)
        while b"\n" not in self._left:
            if not select.select([self.proc.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise procs.Expired(f"{self._words}: no answer within {env.seconds(timeout):g} s")
            more = os.read(self.proc.stdout.fileno(), 65536)
            assert more, f"{self._words}: the reader died"
            self._left += more
        line, self._left = self._left.split(b"\n", 1)
        return json.loads(line)

    def call(self, *words, timeout=20):
        self.ask(*words)
        return self.answer(timeout)

    def cat(self, path, timeout=20):
        return self.call("cat", path, timeout=timeout)

    def kill(self, timeout=5):
        """SIGKILL; seconds until it was gone."""
        begun = time.monotonic()
        self.proc.kill()
        self.proc.wait(env.seconds(timeout))
        return time.monotonic() - begun

    def close(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            pass
