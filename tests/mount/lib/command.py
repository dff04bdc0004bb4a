# SPDX-License-Identifier: Apache-2.0
"""`hintfs` in the background, as its own command: what test_command*.py and others share. A file imports the fixtures it uses."""
import os
import signal

import pytest

from . import env, mounts, procs


class Command:
    """`hintfs` in the background: one source, one mountpoint, one control directory; found again by its arguments."""

    def __init__(self, folder, source):
        self.source, self.path, self.ctl = source, os.path.join(folder, "mnt"), os.path.join(folder, "ctl")
        self.log_path = os.path.join(folder, "hintfs.log")
        os.makedirs(self.path)

    def argv(self, *options, program=None):
        if not any(o.startswith("--ctl") or "ctl=" in o for o in options):
            options += (f"--ctl={self.ctl}",)
        if not any("log=" in o for o in options):
            options += (f"--log={self.log_path}",)
        return [program or env.binary("fs", "hintfs"), "--memory=16M", *options, self.source, self.path]

    def __call__(self, *options, timeout=60, **popen):
        return procs.run(self.argv(*options), timeout=timeout, **popen)

    def up(self, *options):
        self(*options).ok()
        return self

    def pids(self):
        """Live processes of this mount; a zombie has no arguments."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")[:-1]
            except OSError:
                continue
            if words and os.fsencode(self.path) in words and b"hintfs" in os.path.basename(words[0]):
                found.append(int(pid))
        return found

    @property
    def pid(self):
        found = self.pids()
        assert len(found) == 1, f"processes of {self.path}: {found}"
        return found[0]

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def assert_ended(self, timeout=5):
        """Nothing is left: process, both mounts, the control directory that hintfs made."""
        procs.until(lambda: not self.pids(), timeout, lambda: f"end of {self.pids()}: {self.log()[-2000:]}")
        assert not mounts.is_mounted(self.path)
        assert not mounts.is_mounted(self.ctl)
        assert not os.path.exists(self.ctl)

    def free(self):
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        for path in (self.path, self.ctl):
            while (row := mounts.find(path)) is not None:
                mounts.abort(row[1])
                mounts.detach(path)
        if os.path.isdir(self.ctl) and not os.listdir(self.ctl):
            os.rmdir(self.ctl)  # a default one lies outside of the test's folder


@pytest.fixture
def source(tmp):
    path = os.path.join(tmp, "source")
    os.makedirs(os.path.join(path, "dir"))
    for name in ("a", "b", "dir/c"):
        with open(os.path.join(path, name), "w") as f:
            f.write(name * 1000)
    return path


@pytest.fixture
def commands(build, tmp, slow):
    """commands(SOURCE) -> Command, in a folder of its own"""
    made = []

    def make(source):
        folder = os.path.join(tmp, f"command{len(made)}")
        os.makedirs(folder)
        made.append(Command(folder, source))
        return made[-1]
    yield make
    procs.kill_all()
    for one in made:
        one.free()


@pytest.fixture
def hintfs(commands, source):
    return commands(source)


def refused(result, code, *words):
    assert result.rc == code, (result.rc, result.err)
    text = result.err.decode()
    assert text.count("\n") == 1 and text.startswith("hintfs: "), text
    for word in words:
        assert word in text, (word, text)


PRIVATE_DEV = """
set -e
mount -t tmpfs none "$T"
for f in null zero random urandom; do touch "$T/$f"; mount --bind "/dev/$f" "$T/$f"; done
{more}
mount --rbind "$T" /dev
"""


def in_private_dev(tmp, script, more="", timeout=60):
    """Run a script in a mount namespace whose /dev holds what `more` puts there ($T)."""
    dev = os.path.join(tmp, "dev")
    os.makedirs(dev, exist_ok=True)
    text = PRIVATE_DEV.format(more=more) + script
    return procs.run(["unshare", "-m", "bash", "-c", text], timeout=timeout, env={**os.environ, "T": dev})


AS_USER = "setpriv --reuid=65534 --regid=65534 --clear-groups env "
