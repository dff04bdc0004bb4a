# SPDX-License-Identifier: Apache-2.0
"""The command: what it says and how it exits, the ready pipe, what lies at the mountpoint already, signals, ends.

The options' own table is in tests/unit/test_opts.c; here are the daemon in the background and its process life.
"""
import fcntl
import os
import select
import shlex
import shutil
import signal
import socket
import time

import pytest
from lib import env, mounts, procs

FUSERMOUNT = "fusermount3"


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


# ---- what it says ----

def test_the_mount_helper_has_a_help_of_its_own(build, tmp):
    helper = os.path.join(tmp, "mount.hintfs")
    os.symlink(env.binary("fs", "hintfs"), helper)
    out = procs.run([helper, "--help"], check=True).text
    assert "usage: mount.hintfs SOURCE MOUNTPOINT" in out and "-f                      fake" in out
    assert "-f: " not in out and "-d: " not in out and "memory=SIZE" in out


def test_help_and_version(build):
    out = procs.run([env.binary("fs", "hintfs"), "--help"], check=True).text
    assert "memory=SIZE" in out and "Examples:" in out
    assert procs.run([env.binary("fs", "hintfs"), "-V"], check=True).text.startswith("hintfs ")


@pytest.mark.parametrize("words, says", [
    (["--memry=64M"], "did you mean 'memory'?"),
    (["-o", "cache-dir=/x"], "cache-dir=/x without cache-size="),
    (["--memory=3M"], "less than one reader needs"),
    (["--chunk=3M"], "power of two"),
])
def test_usage_is_exit_1(hintfs, words, says):
    refused(hintfs(*words), 1, says)
    assert not mounts.is_mounted(hintfs.path) and not hintfs.pids()
    assert not os.path.exists(hintfs.ctl)


def test_paths_that_are_not_there(hintfs):
    hintfs.source += "x"
    refused(hintfs(), 1, "SOURCE", "No such file")
    hintfs.source = hintfs.source[:-1]
    hintfs.path += "x"
    refused(hintfs(), 1, "MOUNTPOINT", "mkdir -p")


def test_log_that_cannot_be_opened_is_exit_2(hintfs, tmp):
    refused(hintfs(f"--log={tmp}/no/dir/log"), 2, "log file", "log=FILE")
    assert not mounts.is_mounted(hintfs.path)


def test_source_inside_mountpoint_by_another_name(commands, source, tmp):
    """A bind mount hides that the mountpoint lies in the source."""
    hintfs = commands(source)
    bind = os.path.join(tmp, "bind")
    os.mkdir(bind)
    procs.run(["mount", "--bind", source, bind], check=True)
    hintfs.path = os.path.join(bind, "dir")
    refused(hintfs(), 1, "contain itself")
    mounts.detach(bind)


# ---- ready means ready ----

def test_ready_when_it_returns(hintfs):
    hintfs.up()
    procs.run(["mountpoint", "-q", hintfs.path], check=True)
    listing = "cd \"$D\" && find . | sort"
    there = procs.run(listing, env={**os.environ, "D": hintfs.path}, check=True).text
    assert there == procs.run(listing, env={**os.environ, "D": hintfs.source}, check=True).text
    assert procs.run(["cat", os.path.join(hintfs.path, "dir/c")], check=True).text == "dir/c" * 1000
    row = mounts.find(hintfs.path)
    assert row[2] == "fuse.hintfs" and row[4] == hintfs.source
    assert {"ro", "nosuid", "nodev"} <= set(row[3].split(","))
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def test_noexec(hintfs):
    hintfs.up("-o", "noexec")
    assert "noexec" in mounts.find(hintfs.path)[3].split(",")


@pytest.mark.skipif(not shutil.which("mount.fuse", path="/sbin:/usr/sbin:/bin:/usr/bin"), reason="no mount.fuse here (package fuse3)")
def test_mounted_through_mount_fuse(hintfs):
    """fstab's `hintfs#SOURCE MOUNTPOINT fuse`: mount.fuse adds "rw,dev,suid" by itself."""
    what = f"{env.binary('fs', 'hintfs')}#{hintfs.source}"
    options = f"memory=16M,ctl={hintfs.ctl},log={hintfs.log_path},_netdev,nofail"
    procs.run(["mount", "-t", "fuse", what, hintfs.path, "-o", options], timeout=60).ok()
    row = mounts.find(hintfs.path)
    assert row[2] == "fuse.hintfs" and {"ro", "nosuid", "nodev"} <= set(row[3].split(","))
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def test_command_leaves_no_pipe_open(hintfs):
    """Whoever reads the command's output, or any other inherited descriptor, sees its end when the command returns."""
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)
    result = hintfs(pass_fds=(write_fd,))
    os.close(write_fd)
    result.ok()
    assert select.select([read_fd], [], [], env.seconds(5))[0], "the daemon keeps an inherited pipe open"
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)


def test_daemon_as_a_process(hintfs):
    """Own session, root as working directory, stdio nowhere, no children, /dev/fuse close-on-exec, full descriptor limit."""
    hintfs.up()
    pid = hintfs.pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) == pid
    for fd in "012":
        assert os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/null"
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/children") as f:
            assert f.read().split() == []
    devices = [fd for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}") == "/dev/fuse"]
    assert len(devices) >= 2, "one for the data, one for the control files"
    for fd in devices:
        with open(f"/proc/{pid}/fdinfo/{fd}") as f:
            flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
        assert flags & os.O_CLOEXEC
    with open(f"/proc/{pid}/limits") as f:
        soft, hard = next(line.split()[3:5] for line in f if line.startswith("Max open files"))
    assert soft == hard


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_started_with_closed_stdio(hintfs, closed):
    """Its own descriptors must not get the numbers that become /dev/null when it is ready."""
    procs.run(f"exec {shlex.join(hintfs.argv())} {closed}", timeout=20, check=True)
    for fd in "012":
        assert os.readlink(f"/proc/{hintfs.pid}/fd/{fd}") == "/dev/null"
    os.kill(hintfs.pid, signal.SIGTERM)
    hintfs.assert_ended()


def test_limit_on_file_sizes(hintfs):
    """A log that reaches the limit costs its lines only; the pool is memory, which the limit does not mean."""
    with open(hintfs.log_path, "w") as log:
        log.write("x" * (32 << 20))
    for limit_kib in (32768, 8):
        procs.run(f"ulimit -f {limit_kib}; exec " + shlex.join(hintfs.argv()), timeout=30).ok()
        assert procs.run(["cat", os.path.join(hintfs.path, "a")], check=True).text == "a" * 1000
        procs.run(["umount", hintfs.path], check=True)
        hintfs.assert_ended()


def test_foreground_logs_to_stderr_and_ends_by_signal(mount, source):
    daemon = mount(source)
    assert b"mounted at" in daemon.log()
    daemon.stop("term")
    assert b"told to stop" in daemon.log()


# ---- what lies there already ----

def test_of_several_that_start_at_a_time_one_wins(hintfs):
    argv = [env.binary("fs", "hintfs"), "-o", f"memory=4M,ctl={hintfs.ctl},log={hintfs.log_path}", hintfs.source, hintfs.path]
    started = [procs.Child(argv) for _ in range(6)]
    codes = sorted(child.wait(60).rc for child in started)
    assert codes == [0, 32, 32, 32, 32, 32], [child.err() for child in started]
    with open("/proc/self/mountinfo") as f:
        assert [line.split()[4] for line in f].count(hintfs.path) == 1
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def test_mounted_twice(hintfs):
    hintfs.up()
    first = hintfs.pid
    refused(hintfs(), 32, "already mounted", "umount")
    assert hintfs.pid == first
    procs.run(["ls", hintfs.path], check=True)


def test_mount_that_does_not_answer(hintfs):
    """A stopped daemon is not a dead one: refused within the command's own deadline, and nothing is taken away."""
    hintfs.up()
    pid = hintfs.pid
    os.kill(pid, signal.SIGSTOP)
    refused(hintfs(), 32, "does not answer", "umount -l")
    os.kill(pid, signal.SIGCONT)
    procs.run(["stat", "-f", hintfs.path], check=True)


def test_foreign_mount(hintfs):
    procs.run(["mount", "-t", "tmpfs", "none", hintfs.path], check=True)
    refused(hintfs(), 32, "tmpfs", "another MOUNTPOINT")
    assert mounts.find(hintfs.path)[2] == "tmpfs"
    mounts.detach(hintfs.path)


def test_control_directory_in_use(commands, source):
    first, second = commands(source), commands(source)
    first.up()
    second.ctl = first.ctl
    refused(second(), 32, "in use by another hintfs", "ctl=DIR")
    procs.run(["cat", os.path.join(first.ctl, "status")], check=True)
    second.ctl = second.path + "-other"


def test_control_directory_that_holds_files(hintfs):
    os.mkdir(hintfs.ctl)
    with open(os.path.join(hintfs.ctl, "thesis"), "w") as f:
        f.write("years")
    refused(hintfs(), 32, hintfs.ctl, "holds files", "empty one")
    assert os.listdir(hintfs.ctl) == ["thesis"]
    os.remove(os.path.join(hintfs.ctl, "thesis"))
    hintfs.up()
    procs.run(["umount", hintfs.path], check=True)
    procs.until(lambda: not hintfs.pids(), 5, "ended")
    os.rmdir(hintfs.ctl)


def test_control_directory_without_a_parent(hintfs):
    hintfs.ctl = os.path.join(os.path.dirname(hintfs.ctl), "no", "such")
    refused(hintfs(), 32, "the directory above it does not exist", "make that first")
    assert not os.path.exists(os.path.dirname(hintfs.ctl))


def test_control_directory_of_somebody_else_stays(hintfs):
    os.mkdir(hintfs.ctl)
    hintfs.up()
    procs.run(["umount", hintfs.path], check=True)
    procs.until(lambda: not hintfs.pids(), 5, "end")
    assert os.listdir(hintfs.ctl) == []
    os.rmdir(hintfs.ctl)


def test_two_on_one_source_and_files_below(commands, source):
    first, second = commands(source), commands(source)
    open(os.path.join(first.path, "hidden"), "w").close()
    first.up()
    second.up()
    for one in (first, second):
        assert procs.run(["ls", one.path], check=True).text.split() == ["a", "b", "dir"]
    procs.run(["umount", first.path], check=True)
    first.assert_ended()
    assert os.listdir(first.path) == ["hidden"]
    procs.run(["ls", second.path], check=True)


def test_killed_and_mounted_again(hintfs):
    """Also with an open file and a reader's folder on the dead mount, and several times over."""
    for _ in range(3):
        hintfs.up()
        holder = procs.Child("exec 3<\"$F\"; echo ready; exec sleep 1000", env={**os.environ, "F": os.path.join(hintfs.path, "a")})
        procs.until(lambda: holder.lines() == ["ready"], 10, "open file")
        os.kill(hintfs.pid, signal.SIGKILL)
        procs.until(lambda: not hintfs.pids(), 5, "death")
        assert procs.run(["stat", "-f", hintfs.path]).rc != 0
    hintfs.up()
    procs.run(["cat", os.path.join(hintfs.path, "a")], check=True)
    assert len([r for r in mounts.table() if r[0] in (hintfs.path, hintfs.ctl)]) == 2
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def test_unmounted_and_mounted_again_at_once(hintfs):
    """The daemon that is still ending takes neither the new mount nor the new control directory away."""
    for _ in range(10):
        hintfs.up()
        procs.run(["umount", hintfs.path], check=True)
    hintfs.up()
    procs.until(lambda: len(hintfs.pids()) == 1, 10, "ends of the earlier daemons")
    assert mounts.is_mounted(hintfs.path) and mounts.is_mounted(hintfs.ctl)
    procs.run(["stat", "-f", hintfs.path], check=True)
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def namespace_of(tmp, name, script):
    """A shell in a mount namespace of its own; it goes on, line by line, as its FIFO is written to."""
    fifo = os.path.join(tmp, name)
    os.mkfifo(fifo)
    shell = procs.Child(["unshare", "-m", "--propagation", "private", "bash", "-c", f"exec 9<>{fifo}; " + script])

    def go():
        with open(fifo, "w") as f:
            f.write("go\n")
    return shell, go


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_mount_namespaces_with_the_same_mountpoint(hintfs, tmp, first_to_end):
    """They share the control directory but not the mounts on it: the end of one leaves the other one's control files alone."""
    script = (f"{shlex.join(hintfs.argv())} && echo up; read -u 9 l; cat {hintfs.path}/.ctl/status >/dev/null && echo fine; "
              f"read -u 9 l; umount {hintfs.path} && until ! mountpoint -q {hintfs.ctl}; do :; done; echo down; read -u 9 l")
    both = []
    for name in ("one", "two"):
        both.append(namespace_of(tmp, name, script))
        procs.until(lambda: both[-1][0].lines() == ["up"], 20, lambda: f"mount: {both[-1][0].err()}")
    assert len(hintfs.pids()) == 2
    (ending, end), (staying, stay) = both[first_to_end], both[1 - first_to_end]
    end()
    procs.until(lambda: ending.lines() == ["up", "fine"], 10, "first look")
    end()
    procs.until(lambda: len(hintfs.pids()) == 1, 10, "its end")
    assert os.path.isdir(hintfs.ctl)
    stay()
    procs.until(lambda: len(staying.lines()) == 2, 10, lambda: f"the other's control files: {staying.lines()} {staying.err()}")
    stay()
    procs.until(lambda: staying.lines() == ["up", "fine", "down"], 10, "unmounted")
    hintfs.assert_ended()
    for _, go in both:
        go()


def _state(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def test_slow_to_end_with_a_successor(hintfs):
    """A daemon that needs longer to end than its guard allows leaves the next mount at its place alone."""
    for _ in range(12):
        hintfs.up()
        old, minor = hintfs.pid, mounts.find(hintfs.path)[1]
        # What it has to free keeps it at work after its control files are gone.
        procs.run(f"yes 'a\t0\t10' | head -n 2000000 > {hintfs.ctl}/order", timeout=60, check=True)
        procs.run(["umount", hintfs.path], check=True)
        procs.until(lambda: not mounts.is_mounted(hintfs.ctl), 10, "control files gone", poll_s=0)
        try:
            os.kill(old, signal.SIGSTOP)
            is_stopped = procs.until(lambda: _state(old) in "TZX" and _state(old), 5, "stop or end") == "T"
        except (ProcessLookupError, FileNotFoundError):
            is_stopped = False
        if not is_stopped:
            continue  # it was quicker
        stopped_s = time.monotonic()
        hintfs.up()
        if mounts.find(hintfs.path)[1] == minor:
            break
        # Somebody else on the machine got the number: then nothing can be mistaken, and nothing is proved.
        os.kill(old, signal.SIGCONT)
        procs.run(["umount", hintfs.path], check=True)
        procs.until(lambda: not hintfs.pids(), 10, "both ends")
    else:
        pytest.skip("it always ended before it could be stopped, or others took its number")
    new = next(pid for pid in hintfs.pids() if pid != old)
    procs.until(lambda: time.monotonic() > stopped_s + 4.5, 10, "the old guard's time to be over")
    os.kill(old, signal.SIGCONT)
    procs.until(lambda: hintfs.pids() == [new], 10,
                lambda: f"end of the old one: {old}, new {new}, there {hintfs.pids()}; {hintfs.log()[-1500:]}")
    procs.run(["cat", os.path.join(hintfs.path, "a"), os.path.join(hintfs.ctl, "status")], check=True)
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


@pytest.mark.parametrize("is_killed", [False, True])
def test_default_control_directory(hintfs, is_killed):
    """/run/hintfs/<escaped mountpoint>, which everybody may walk to; gone at the end, after a kill with `hintctl umount`."""
    procs.run([env.binary("fs", "hintfs"), "--memory=16M", f"--log={hintfs.log_path}", hintfs.source, hintfs.path], check=True)
    hintfs.ctl = "/run/hintfs/" + hintfs.path.strip("/").replace("-", "\\x2d").replace("/", "-")
    assert mounts.is_mounted(hintfs.ctl), mounts.table()
    assert os.stat("/run/hintfs").st_mode & 0o777 == 0o755
    assert procs.run(["readlink", os.path.join(hintfs.path, ".ctl")], check=True).text.strip() == hintfs.ctl
    if is_killed:
        os.kill(hintfs.pid, signal.SIGKILL)
        procs.until(lambda: not hintfs.pids(), 5, "killed")
        procs.run([env.binary("tools", "hintctl"), "umount", hintfs.path], check=True)
    else:
        procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


# ---- ends ----

@pytest.mark.parametrize("how", [["umount"], [FUSERMOUNT, "-u"]])
def test_unmounted_from_outside(hintfs, how):
    hintfs.up()
    procs.run([*how, hintfs.path], check=True)
    hintfs.assert_ended()
    assert "unmounted from outside" in hintfs.log()


def test_aborted_connection(hintfs):
    hintfs.up()
    mounts.abort(mounts.find(hintfs.path)[1])
    hintfs.assert_ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it(hintfs, number):
    hintfs.up()
    os.kill(hintfs.pid, number)
    hintfs.assert_ended()


def test_signal_ends_it_with_a_busy_mount(hintfs):
    """A shell inside and an open file: the mount's name goes, the daemon ends, the holder gets errors and nothing hangs."""
    hintfs.up()
    holder = procs.Child("cd \"$D\" && exec 3<a && echo ready && read -r line < \"$P\"; cat <&3 >/dev/null",
                         env={**os.environ, "D": hintfs.path, "P": _fifo(hintfs)})
    procs.until(lambda: holder.lines() == ["ready"], 10, "holder")
    os.kill(hintfs.pid, signal.SIGTERM)
    hintfs.assert_ended()
    with open(hintfs.path + ".fifo", "w") as f:
        f.write("go\n")
    holder.wait(10)


def _fifo(hintfs):
    path = hintfs.path + ".fifo"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("interrupt", ["any", "ignore"])
def test_signal_ends_it_with_a_hung_origin(commands, slow, source, interrupt):
    origin = slow(source, interrupt=interrupt)
    hintfs = commands(origin.path).up()
    origin.hang("*")
    readers = [procs.Child(["cat", os.path.join(hintfs.path, name)]) for name in ("a", "b", "dir/c")]
    origin.wait_hung(1)
    pid = hintfs.pid
    os.kill(pid, signal.SIGTERM)
    # Threads in the kernel's hands may outlive it where the origin ignores interrupts: the mounts and readers may not.
    procs.until(lambda: not mounts.is_mounted(hintfs.path) and not mounts.is_mounted(hintfs.ctl), 5, "both mounts gone")
    for reader in readers:
        assert reader.wait(5).rc != 0
    if interrupt == "any":
        hintfs.assert_ended()
    origin.unhang()
    hintfs.assert_ended()


def test_second_signal(commands, slow, source):
    origin = slow(source, interrupt="ignore")
    hintfs = commands(origin.path).up()
    origin.hang("*")
    reader = procs.Child(["cat", os.path.join(hintfs.path, "a")])
    origin.wait_hung(1)
    for _ in range(2):
        try:
            os.kill(hintfs.pid, signal.SIGTERM)
        except (AssertionError, ProcessLookupError):
            break  # gone already
    procs.until(lambda: not mounts.is_mounted(hintfs.path), 5, "mount gone")
    assert reader.wait(5).rc != 0
    origin.unhang()
    hintfs.assert_ended()


def test_stopped_before_it_is_ready_leaves_nothing(hintfs):
    """The command is killed at some moment of its start: no half mount without a daemon, and the next start works."""
    child = procs.Child(hintfs.argv())
    procs.until(lambda: hintfs.pids() or not child.is_running(), 10, "start")
    child.kill()
    child.wait(10)
    # Either the daemon was ready before its parent died (then it lives on), or it ends by itself.
    procs.until(lambda: not hintfs.pids() or mounts.is_mounted(hintfs.path), 10, "decision")
    for pid in hintfs.pids():
        os.kill(pid, signal.SIGTERM)
    procs.until(lambda: not hintfs.pids(), 10, "end")
    hintfs.up()
    procs.run(["ls", hintfs.path], check=True)


# ---- log ----

def test_log_file_reopened_and_status_line(hintfs):
    hintfs.up()
    assert "mounted at" in hintfs.log()
    os.rename(hintfs.log_path, hintfs.log_path + ".1")
    os.kill(hintfs.pid, signal.SIGHUP)
    procs.until(lambda: os.path.exists(hintfs.log_path), 5, "new log file")
    os.kill(hintfs.pid, signal.SIGUSR1)
    procs.until(lambda: "status: up " in hintfs.log(), 5, "status line")
    assert procs.run(["ls", hintfs.path]).rc == 0


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


def test_log_to_syslog(hintfs, tmp):
    path = os.path.join(tmp, "log.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(env.seconds(10))
        in_private_dev(tmp, shlex.join(hintfs.argv("--log=syslog")) + f"\numount {hintfs.path}\n",
                       more=f'touch "$T/log" "$T/fuse"; mount --bind /dev/fuse "$T/fuse"; mount --bind {path} "$T/log"').ok()
        said = b""
        while b"mounted at" not in said:
            said = s.recv(65536)
        assert b"hintfs" in said
    procs.until(lambda: not hintfs.pids(), 10, "end")


def filled(fd):
    """A pipe that takes no more; returns how many bytes it took."""
    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(fd, False)
    n = 0
    try:
        while True:
            n += os.write(fd, b"#" * 1024)
    except BlockingIOError:
        pass
    os.set_blocking(fd, True)
    return n


@pytest.mark.parametrize("log", ["fifo", "stderr"])
def test_a_log_that_nobody_reads_keeps_nobody_waiting(hintfs, tmp, child, log):
    """From the first line on there is no room. When it is read again the next line comes, and says what was lost."""
    fifo = os.path.join(tmp, "fifo")
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    n = filled(end)
    if log == "fifo":
        hintfs(f"--log={fifo}", timeout=20).ok()
    else:
        daemon = child(["bash", "-c", shlex.join(hintfs.argv("-f", "-d", "--log=stderr")) + f" 2> {fifo}"])
        procs.until(lambda: mounts.is_mounted(hintfs.path), 20, "mounted")
    procs.run(["cat", hintfs.path + "/a", hintfs.path + "/dir/c", hintfs.path + "/.ctl/status"], timeout=10).ok()
    pid = hintfs.pids()[-1]
    os.kill(pid, signal.SIGUSR1)  # a status line
    read = os.read(end, n)
    os.set_blocking(end, False)

    def status_line():
        nonlocal read
        os.kill(pid, signal.SIGUSR1)
        try:
            read += os.read(end, 65536)
        except BlockingIOError:
            pass
        return b"status: up " in read
    procs.until(status_line, 10, lambda: f"a status line: {read[n:]}")
    assert b"lines of this log were lost" in read
    procs.run(["umount", hintfs.path], timeout=10).ok()
    hintfs.assert_ended()
    if log == "stderr":
        daemon.wait(5).ok()
    os.close(end)


def test_a_fifo_without_a_reader_is_a_log(hintfs, tmp):
    fifo = os.path.join(tmp, "fifo")
    os.mkfifo(fifo)
    hintfs(f"--log={fifo}", timeout=20).ok()
    with open(fifo, "rb", buffering=0) as f:
        assert b"mounted at" in f.read(65536)
    procs.run(["umount", hintfs.path], timeout=10).ok()
    hintfs.assert_ended()


# ---- where it may not work ----

def test_no_fuse_device(hintfs, tmp):
    refused(in_private_dev(tmp, shlex.join(hintfs.argv())), 2, "no /dev/fuse", "modprobe fuse")


AS_USER = "setpriv --reuid=65534 --regid=65534 --clear-groups env "


def test_user_without_access_to_the_device(hintfs, tmp):
    os.chmod(tmp, 0o755)
    result = in_private_dev(tmp, AS_USER + shlex.join(hintfs.argv("--log=syslog", f"--ctl={tmp}/c")),
                            more='mknod -m 600 "$T/fuse" c 10 229')
    refused(result, 2, "/dev/fuse may not be opened", "as root")


def test_user_without_fusermount(hintfs, tmp):
    os.chmod(tmp, 0o755)
    result = in_private_dev(tmp, AS_USER + "PATH=/nowhere " + shlex.join(hintfs.argv("--log=syslog", f"--ctl={tmp}/c")),
                            more='mknod -m 666 "$T/fuse" c 10 229')
    refused(result, 2, "fusermount3 is missing", "package fuse3")


def test_user_without_runtime_directory(hintfs, tmp):
    os.chmod(tmp, 0o755)
    argv = [env.binary("fs", "hintfs"), "--log=syslog", hintfs.source, hintfs.path]
    result = in_private_dev(tmp, AS_USER + "-u XDG_RUNTIME_DIR " + shlex.join(argv), more='mknod -m 666 "$T/fuse" c 10 229')
    refused(result, 1, "XDG_RUNTIME_DIR", "ctl=DIR")


def test_user_mounts(hintfs, tmp):
    """Through fusermount3: mounts, reads, ends, nothing left."""
    os.chmod(tmp, 0o755)
    home = os.path.join(tmp, "home")
    os.mkdir(home)
    os.mkdir(os.path.join(home, "mnt"))
    for path in (home, os.path.join(home, "mnt")):
        os.chown(path, 65534, 65534)
    argv = [env.binary("fs", "hintfs"), "--memory=16M", "--log=syslog", hintfs.source, os.path.join(home, "mnt")]
    script = (f"cd {home}; export XDG_RUNTIME_DIR={home}; {shlex.join(argv)}; cat mnt/dir/c | wc -c; "
              f"test -d hintfs/*; {FUSERMOUNT} -u mnt; until test -z \"$(ls hintfs)\"; do :; done; echo gone")
    result = in_private_dev(tmp, AS_USER + "bash -ec " + shlex.quote(script), more='mknod -m 666 "$T/fuse" c 10 229').ok()
    assert result.text.split() == ["5000", "gone"]


# ---- mount(8) ----

def _helper(tmp):
    """mount.hintfs as it is installed: the same program by another name."""
    folder = os.path.join(tmp, "sbin")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "mount.hintfs")
    if not os.path.exists(path):
        os.symlink(env.binary("fs", "hintfs"), path)
    return path


def test_as_mount_helper(hintfs, tmp):
    helper = _helper(tmp)
    options = f"rw,_netdev,nofail,user,x-systemd.automount,memory=16M,ctl={hintfs.ctl},log={hintfs.log_path}"
    result = procs.run([helper, hintfs.source, hintfs.path, "-v", "-o", options], timeout=60).ok()
    assert result.err == b""
    procs.run(["cat", os.path.join(hintfs.path, "a")], check=True)
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()
    # "fake" checks and does nothing
    procs.run([helper, hintfs.source, hintfs.path, "-f", "-o", options], check=True)
    assert not mounts.is_mounted(hintfs.path)
    refused(procs.run([helper, hintfs.source, hintfs.path, "-o", "rw,memroy=1G"]), 1, "did you mean 'memory'?")


def test_mount_dash_t(hintfs, tmp):
    """mount(8) and fstab find the helper in /sbin; a layer over it puts it there, in a namespace that ends with the test."""
    folder = os.path.dirname(_helper(tmp))
    sbin = os.path.realpath("/sbin")
    fstab = os.path.join(tmp, "fstab")
    options = f"memory=16M,_netdev,ctl={hintfs.ctl},log={hintfs.log_path}"
    with open(fstab, "w") as f:
        f.write(f"{hintfs.source} {hintfs.path} hintfs {options} 0 0\n")
    script = f"""
    mount -t overlay -o lowerdir={folder}:{sbin} overlay {sbin} || exit 77
    set -e
    mount -t hintfs -o {options} {hintfs.source} {hintfs.path}
    cat {hintfs.path}/dir/c | wc -c
    umount {hintfs.path}
    until ! test -e {hintfs.ctl}; do :; done
    mount -T {fstab} {hintfs.path}
    cat {hintfs.path}/dir/c | wc -c
    umount {hintfs.path}
    """
    result = procs.run(["unshare", "-m", "bash", "-c", script], timeout=60)
    if result.rc == 77:
        pytest.skip("no overlay file system on this kernel")
    assert result.ok().text.split() == ["5000", "5000"]


# ---- an origin that hangs from the start ----

@pytest.mark.full
@pytest.mark.timeout(90)
def test_source_that_does_not_answer(commands, slow, source):
    origin = slow(source)
    hintfs = commands(os.path.join(origin.path, "dir"))
    origin.hang("*")
    result = hintfs(timeout=60)
    assert result.rc == 1
    assert [word in line for word, line in zip(("waiting for SOURCE", "does not answer"), result.err.decode().splitlines())] == [True, True]
    origin.unhang()
    hintfs.up()


@pytest.mark.parametrize("op", ["LOOKUP", "STATFS"])
def test_a_wait_for_source_is_told_and_ends_with_the_command(commands, slow, source, op):
    """Before the daemon is forked (a look-up) and after (its first statfs): a word, and no process is left when the command is killed."""
    origin = slow(source)
    hintfs = commands(os.path.join(origin.path, "dir"))
    origin.hang("*", f"op={op}")
    command = procs.Child(hintfs.argv())
    procs.until(lambda: b"waiting for SOURCE" in command.err(), 15, lambda: f"a word: {command.err()}")
    assert command.is_running() and origin.hung() > 0
    os.kill(command.pid, signal.SIGTERM)
    procs.until(lambda: not hintfs.pids(), 5, lambda: f"left: {hintfs.pids()}")
    origin.unhang()
    assert not mounts.is_mounted(hintfs.path)
    hintfs.up()


@pytest.mark.skipif(bool(env.SANITIZER), reason="sanitizers have threads of their own")
def test_threads_bear_names(hintfs):
    """Whoever looks with top or gdb sees what a thread is for; only the main one is called as the program."""
    hintfs.up()
    for _ in range(20):
        procs.run(["ls", "-lR", hintfs.path], check=True)
    names = procs.thread_names(hintfs.pid)
    assert names.count("hintfs") == 1, names
    assert 2 <= names.count("hfs-fuse") <= 9 and "hfs-data" not in names, names  # eight workers and who waits for their end


@pytest.mark.skipif(bool(env.SANITIZER), reason="sanitizers have threads of their own")
def test_no_more_workers_than_cpus_can_use(hintfs):
    """Two on one CPU, however many ask: the kernel wakes one for each request, whether another is about to come back or not."""
    all_cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cpus)})
    try:
        hintfs.up()
        look = f"for i in $(seq 1500); do test -e {hintfs.path}/dir/none$r.$i; done"
        procs.run(["bash", "-c", f"for r in $(seq 8); do ({look}) & done; wait"], timeout=60, check=True)
        names = procs.thread_names(hintfs.pid)
    finally:
        os.sched_setaffinity(0, all_cpus)
    assert names.count("hfs-fuse") <= 3, names  # and who waits for their end
