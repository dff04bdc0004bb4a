# SPDX-License-Identifier: Apache-2.0
"""The command: what lies at the mountpoint and the control directory already, who else is there, where it may not work, mount(8)."""
import os
import shlex
import signal
import time

import pytest
from lib import env, mounts, procs
from lib.command import AS_USER, commands, hintfs, in_private_dev, refused, source  # noqa: F401 - fixtures

FUSERMOUNT = "fusermount3"


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


# ---- where it may not work ----

def test_no_fuse_device(hintfs, tmp):
    refused(in_private_dev(tmp, shlex.join(hintfs.argv())), 2, "no /dev/fuse", "modprobe fuse")


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


def _as_user(tmp, argv, conf=None):
    """argv as nobody, where /dev/fuse is anybody's and, if given, /etc/fuse.conf is `conf`."""
    script = AS_USER + shlex.join(argv)
    if conf is not None:
        path = os.path.join(tmp, "fuse.conf")
        with open(path, "w", encoding="utf-8") as f:
            f.write(conf)
        script = f"mount --bind {path} /etc/fuse.conf; {script}"
    return in_private_dev(tmp, script, more='mknod -m 666 "$T/fuse" c 10 229')


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
    assert _as_user(tmp, ["bash", "-ec", script]).ok().text.split() == ["5000", "gone"]


def test_what_a_user_may_not(hintfs, tmp):
    """What fusermount3 would refuse is refused in one line that says what helps."""
    os.chmod(tmp, 0o755)
    mine, roots = os.path.join(tmp, "mine"), os.path.join(tmp, "roots")
    os.mkdir(mine, 0o700)
    os.chown(mine, 65534, 65534)
    os.mkdir(roots, 0o755)
    os.mkdir(os.path.join(tmp, "ctl"))
    os.chown(os.path.join(tmp, "ctl"), 65534, 65534)
    argv = [env.binary("fs", "hintfs"), "--memory=16M", "--log=syslog", f"--ctl={tmp}/ctl/c"]
    refused(_as_user(tmp, [*argv, hintfs.source, roots], ""), 32, roots, "as root")
    for conf in ("", "#user_allow_other\n", "user_allow_other = 1\n", "mount_max = 1000\n"):
        refused(_as_user(tmp, [*argv, "--allow-other", hintfs.source, mine], conf), 32, "allow-other", "/etc/fuse.conf", "user_allow_other")
    for conf in ("user_allow_other\n", "mount_max = 1000\n  user_allow_other  # for us\n"):
        script = shlex.join([*argv, "--allow-other", hintfs.source, mine]) + f"; cat {mine}/dir/c | wc -c; {FUSERMOUNT} -u {mine}"
        assert _as_user(tmp, ["bash", "-ec", script], conf).ok().text.split() == ["5000"]


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
