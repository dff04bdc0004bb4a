# SPDX-License-Identifier: Apache-2.0
"""The command: what it says and how it exits, the ready pipe, signals, ends, the log.

The options' own table is in tests/unit/test_opts.c; here are the daemon in the background and its process life.
"""
import fcntl
import os
import select
import shlex
import shutil
import signal
import socket

import pytest
from lib import env, mounts, procs
from lib.command import commands, hintfs, in_private_dev, refused, source  # noqa: F401 - fixtures

FUSERMOUNT = "fusermount3"


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
