# SPDX-License-Identifier: Apache-2.0
"""hintctl on live mounts: what it prints is what the daemon says, its advice is right, a hung mount is no trap for it."""
import json
import os
import pty
import re
import signal
import subprocess

import pytest

from lib import env, mounts, procs


def ctl(*args, timeout=20, stdin=None, **more):
    more.setdefault("env", dict(os.environ))
    return procs.run([env.binary("tools", "hintctl"), *args], timeout=timeout, stdin=stdin, **more)


@pytest.fixture
def origin(tmp):
    root = os.path.join(tmp, "origin dir")
    os.makedirs(os.path.join(root, "a"))
    for i in range(20):
        with open(os.path.join(root, "a", f"f{i:02}"), "wb") as f:
            f.write(b"x" * 10000)
    return root


@pytest.fixture
def hfs(mount, origin):
    return mount(origin)


def test_help_teaches_and_mistakes_are_met():
    text = ctl("--help").ok().text
    for verb in ("list", "status", "order", "record", "umount"):
        assert f"hintctl {verb}" in text
    assert "HINTFS_CTL" in text
    assert ctl("status", "--help").ok().text.startswith("usage: hintctl status")
    for args, said in ((["statsu"], b"did you mean status?"), (["doctor"], b"not in this version"), (["--bogus"], b"--help"),
                       (["status", "a", "b"], b"b is one word too many; usage: hintctl status"),
                       (["list", "x"], b"x is one word too many"), (["order"], b"FILE"), ([], b"usage")):
        result = ctl(*args)
        assert result.rc == 2 and said in result.err, (args, result.rc, result.err)


def test_completions_know_every_verb():
    folder = os.path.join(env.ROOT, "tools", "completions")
    script = f"source {folder}/hintctl.bash; COMP_WORDS=(hintctl ''); COMP_CWORD=1; _hintctl; echo ${{COMPREPLY[*]}}"
    known = procs.run(["bash", "-c", script], timeout=10).ok().text.split()
    with open(os.path.join(folder, "_hintctl"), encoding="utf-8") as f:
        zsh = re.findall(r"^ +'(\w+):", f.read(), re.MULTILINE)
    verbs = set(re.findall(r"^  hintctl (\w+)", ctl("--help").ok().text, re.MULTILINE))
    assert set(known) == verbs | {"--help", "--version"} and set(zsh) == verbs, (known, zsh)
    script = f"source {folder}/hintctl.bash; COMP_WORDS=(hintctl warm --or); COMP_CWORD=2; _hintctl; echo ${{COMPREPLY[*]}}"
    assert procs.run(["bash", "-c", script], timeout=10).ok().text.split() == ["--order"]


def test_list_shows_the_data_mounts_only(hfs, origin):
    lines = ctl("list").ok().text.splitlines()
    mine = [line for line in lines if hfs.path in line]
    assert len(mine) == 1 and origin in mine[0] and " up " in mine[0]
    assert not any(hfs.ctl in line for line in lines)


def test_status_json_has_the_same_keys(hfs):
    hfs.order("a/f01\na/f02\n").ok()
    hfs.order("a/f03\n", stream="rank 0").ok()
    plain = hfs.status()
    found = json.loads(ctl("status", hfs.path, "--json").ok().out)
    assert [k for k in plain if not k.startswith("stream.")] == [k for k in found if k != "stream"]
    assert found["source"] == plain["source"] and found["mountpoint"] == hfs.path
    streams = {s["name"]: s for s in found["stream"]}
    assert set(streams) == {"default", "rank 0"} and streams["default"]["entries"] == 2 and streams["rank 0"]["entries"] == 1
    assert isinstance(found["rss_bytes"], int) and isinstance(found["uptime_s"], float)


def test_status_table(hfs):
    text = ctl("status", hfs.path).ok().text
    assert "all slots are\n             taken from the system at the start" in text, "why the process is larger than the slots in use"
    for word in ("origin", "readers", "prefetch", "memory", "MiB", "STREAM", "default"):
        assert word in text


def test_mountpoint_may_be_left_out_when_there_is_one(hfs, mount, origin):
    ctl("status").ok()
    ctl("status", ".", cwd=hfs.path).ok()
    mount(origin)
    result = ctl("status")
    assert result.rc == 1 and b"several" in result.err
    result = ctl("status", "/tmp")
    assert result.rc == 1 and b"not the mountpoint" in result.err


def test_hintfs_ctl_overrides(hfs):
    result = ctl("status", hfs.path, env={**os.environ, "HINTFS_CTL": "/nonexistent"})
    assert result.rc == 1 and b"no control files" in result.err
    ctl("status", hfs.path, env={**os.environ, "HINTFS_CTL": hfs.ctl}).ok()


def pending(hfs, name="order"):
    return procs.run(["cat", os.path.join(hfs.ctl, name)], timeout=10, check=True).text.split()


def test_order_from_file_and_stdin(hfs, tmp):
    path = os.path.join(tmp, "order")
    with open(path, "w") as f:
        f.writelines(f"a/f{i % 20:02}\n" for i in range(500))
    ctl("order", hfs.path, path).ok()
    assert len(pending(hfs)) == 500
    ctl("order", "-", stdin=b"a/f01\n").ok()
    assert pending(hfs) == ["a/f01"]
    ctl("order", "--append", "-", stdin=b"a/f02\n").ok()
    assert pending(hfs) == ["a/f01", "a/f02"]
    ctl("order", "--stream", "r0", "-", stdin=b"a/f03\n").ok()
    assert pending(hfs, "streams/r0") == ["a/f03"]


def test_order_of_a_stream_that_cannot_be(hfs):
    for name in ("", "a/b", "..", 129 * "x"):
        result = ctl("order", "--stream", name, "-", stdin=b"a/f01\n")
        assert result.rc == 2 and b"1 to 128 bytes and no slash" in result.err, (name, result.err)


def test_order_repeats_the_daemons_reason(hfs):
    result = ctl("order", "-", stdin=b"a/f01\n@bach\na/f02\n")
    text = result.err.decode()
    assert result.rc == 1 and "Invalid argument" in text
    assert "stream default line 2 col 1" in text and "did you mean @batch?" in text and "    ^" in text
    assert pending(hfs) == ["a/f01"]


def test_order_shows_a_bar_on_a_terminal(hfs, tmp):
    path = os.path.join(tmp, "order")
    with open(path, "w") as f:
        f.writelines(f"a/f{i % 20:02}\n" for i in range(5000))
    master, slave = pty.openpty()
    child = subprocess.Popen([env.binary("tools", "hintctl"), "order", hfs.path, path], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    assert child.wait(20) == 0
    said = os.read(master, 65536).decode()
    os.close(master)
    assert "##############################" in said and "taken in" in said, said


def test_check_says_what_it_means_and_changes_nothing(hfs, tmp):
    hfs.order("a/f05\n").ok()
    text = ("# comment\n@epoch 0\n@batch 0\na/f01\na/f02\t0\t5000\n@batch\na/f{03..05}\n./a/f01\t9999\t500\n@repeat 3\n"
            f"{hfs.path}/a/f06\n")
    result = ctl("order", "--check", hfs.path, "-", stdin=text.encode()).ok()
    assert "7 entries (2 ranges) of 6 distinct names" in result.text, result.text
    assert "53.7 KiB" in result.text and "read 3 times" in result.text  # 5 whole files, 5,000 bytes, 1 byte
    assert "2 batches, 1 epochs" in result.text and "no missing names, no bad lines" in result.text
    assert pending(hfs) == ["a/f05"]
    result = ctl("order", "--check", hfs.path, "-", stdin=b"a/none\n@bach\na/f01\t10000\t1\na\n../x\na/f01\n")
    assert result.rc == 1
    for said in ("missing: a/none", "line 2 col 1", "did you mean @batch?", "line 3", "ERANGE", "line 4", "EISDIR", "EXDEV"):
        assert said in result.err.decode(), said
    assert "1 missing names, 4 bad lines" in result.text
    result = ctl("order", "--check", hfs.path, "-", stdin=b"a/\n").ok()
    assert "20 entries" in result.text and "1 directories" in result.text and "195 KiB" in result.text


def test_umount_names_who_keeps_it_busy(hfs, child):
    holder = child(["python3", "-c",
                    "import mmap, os, sys, time\n"
                    "f = open(sys.argv[1] + '/a/f01', 'rb'); os.chdir(sys.argv[1] + '/a')\n"
                    "g = open('f02', 'rb'); m = mmap.mmap(g.fileno(), 0, prot=mmap.PROT_READ); g.close()\n"
                    "print('ready', flush=True); sys.stdin.read(); time.sleep(60)\n", hfs.path])
    procs.until(lambda: b"ready" in holder.out(), 10, "holder")
    result = ctl("umount", hfs.path)
    text = result.err.decode()
    assert result.rc == 1 and "busy" in text
    assert f"pid {holder.pid} (python3)" in text
    for how in (f"has open {hfs.path}/a/f01", f"works in {hfs.path}/a", f"has mapped {hfs.path}/a/f02"):
        assert how in text, text
    holder.kill()
    holder.proc.wait(10)
    procs.until(lambda: ctl("umount", hfs.path).rc == 0, 5, "unmounted")
    hfs.wait_end()
    hfs.judge()


def test_umount_names_what_is_mounted_inside(hfs, mount, origin):
    inner = mount(origin, mountpoint=hfs.p("a"))
    result = ctl("umount", hfs.path)
    assert result.rc == 1 and f"umount {hfs.path}/a first".encode() in result.err, result.err
    ctl("umount", inner.path).ok()
    inner.wait_end()
    inner.judge()


def test_umount_waits_for_the_daemons_end(hfs):
    assert hfs.status()["pid"] == hfs.pid
    ctl("umount", hfs.path).ok()
    assert hfs.proc.poll() is not None
    hfs.judge()


def test_umount_by_somebody_else(hfs):
    words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", env.binary("tools", "hintctl"), "umount", hfs.path]
    result = procs.run(words, timeout=20)
    assert result.rc == 1 and b"the user who mounted it (uid 0), or root, can unmount it" in result.err, result.err
    assert b"busy" not in result.err and mounts.is_mounted(hfs.path)


def test_umount_of_one_of_two_places(hfs, tmp):
    other = os.path.join(tmp, "other")
    os.mkdir(other)
    procs.run(["mount", "--bind", hfs.path, other], check=True)
    assert ctl("umount", other).ok().err == b"", "the daemon lives on, and is not waited for"
    assert not mounts.is_mounted(other) and hfs.status()["pid"] == hfs.pid


def test_a_stopped_daemon_is_no_trap(hfs):
    os.kill(hfs.pid, signal.SIGSTOP)
    try:
        assert "no answer" in ctl("list", timeout=20).ok().text
        result = ctl("status", hfs.path, timeout=20)
        assert result.rc == 1 and b"no answer" in result.err
        for words in (["order"], ["order", "--check"]):
            result = ctl(*words, hfs.path, "-", stdin=b"a/f01\n", timeout=20)
            assert result.rc == 1 and b"no answer from its daemon" in result.err, (words, result.err)
        for words in (["record"], ["warm"], ["verify"]):
            result = ctl(*words, hfs.path, timeout=20)
            assert result.rc == 1 and b"no answer from its daemon" in result.err, (words, result.err)
    finally:
        os.kill(hfs.pid, signal.SIGCONT)
    assert pending(hfs) == [], "nothing was done"


def test_an_order_that_is_not_taken_is_waited_for_with_a_word(hfs, child):
    """The daemon stops in the middle: the tool says what it waits for, and goes on when the daemon does."""
    read_fd, write_fd = os.pipe()
    sending = child(["bash", "-c", f'exec "$0" order "$1" - <&{read_fd}', env.binary("tools", "hintctl"), hfs.path], pass_fds=(read_fd,))
    os.close(read_fd)
    os.write(write_fd, b"a/f01\n")
    until_pending(hfs, ["a/f01"])
    os.kill(hfs.pid, signal.SIGSTOP)
    try:
        os.write(write_fd, b"a/f02\n")
        procs.until(lambda: b"does not take the order; still waiting" in sending.err(), 15, "a word")
    finally:
        os.kill(hfs.pid, signal.SIGCONT)
    os.close(write_fd)
    assert sending.wait(10).rc == 0
    assert pending(hfs) == ["a/f01", "a/f02"]


def until_pending(hfs, names):
    procs.until(lambda: pending(hfs) == names, 10, lambda: f"pending {pending(hfs)}")


def test_umount_after_kill9_takes_the_control_mount_too(hfs):
    hfs.expect_exit = -signal.SIGKILL
    os.kill(hfs.pid, signal.SIGKILL)
    hfs.wait_end()
    assert mounts.is_mounted(hfs.path) and mounts.is_mounted(hfs.ctl)
    ctl("umount", hfs.path).ok()
    hfs.judge()


def test_umount_names_who_waits_in_open(mount, slow, origin, child):
    far = slow(origin)
    hfs = mount(far.path)
    far.hang("*")
    waiting = [child(["cat", hfs.p("a", "f01")]), child(["python3", "-c", "import os; os.stat('f02')"], cwd=hfs.path)]
    far.wait_hung(1)
    result = ctl("umount", hfs.path)
    text = result.err.decode()
    assert result.rc == 1 and f"pid {waiting[0].pid} (cat): waits for an answer about {hfs.path}/a/f01" in text, text
    far.unhang()


def test_umount_lazy(hfs, child):
    holder = child(["bash", "-c", f"exec 5< {hfs.path}/a/f01; echo ready; exec sleep 60"])
    procs.until(lambda: b"ready" in holder.out() or not holder.is_running(), 10, "holder")
    ctl("umount", "--lazy", hfs.path).ok()
    holder.kill()
    hfs.wait_end()
    hfs.judge()
