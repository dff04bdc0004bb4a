# SPDX-License-Identifier: Apache-2.0
"""A hostile place: low limits, stray signals, odd names, clocks that jump, a source that turns into something else.

Either it works, or one line says what, why and what helps, and nothing is left behind.
"""
import os
import random
import re
import shlex
import shutil
import signal

import pytest
from lib import env, mounts, pattern, procs, tree
from lib.command import commands, hintfs, in_private_dev, refused, source  # noqa: F401 - fixtures

CHUNK = tree.CHUNK
unsanitized = pytest.mark.skipif(bool(env.SANITIZER), reason="the sanitizer's own needs are above the limit, or its wrappers in the way")


# ---- limits ----

@unsanitized
def test_few_descriptors_are_refused_before_anything_is_mounted(hintfs):
    result = procs.run(f"ulimit -n 12; exec {shlex.join(hintfs.argv())}", timeout=30)
    refused(result, 2, "open files is 12", "ulimit -n")
    assert not mounts.is_mounted(hintfs.path) and not hintfs.pids()
    procs.run(f"ulimit -n 64; exec {shlex.join(hintfs.argv())}", timeout=30, check=True)
    assert procs.run(["cat", os.path.join(hintfs.path, "a")], check=True).text == "a" * 1000
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


def starve(hintfs, prefix):
    """One start with too little of something: it works and can be unmounted, or says why in words of its own and leaves nothing."""
    result = procs.run(f"{prefix} {shlex.join(hintfs.argv())}", timeout=60)
    said = result.err.decode()
    if result.rc == 0:
        assert mounts.is_mounted(hintfs.path), (prefix, said, hintfs.log())
        there = procs.run(["stat", "-f", hintfs.path], timeout=20)
        assert b"not connected" not in there.err, (prefix, there.err, hintfs.log())
        procs.run(["umount", hintfs.path], check=True)
    procs.until(lambda: not hintfs.pids(), 10, "end")
    assert not mounts.is_mounted(hintfs.path) and not mounts.is_mounted(hintfs.ctl), (prefix, said)
    assert result.rc == 0 or "hintfs: " in said and "bug" not in said and "signal" not in said, (prefix, said)
    return result.rc == 0


@unsanitized
@pytest.mark.timeout(150)
def test_too_little_address_space_leaves_no_dead_mount(hintfs):
    """Less and less: it fails at one place after the other, with the data mounted and the control files not, too."""
    works = [starve(hintfs, f"ulimit -v {limit_kib}; exec") for limit_kib in range(200_000, 30_000, -4_000)]
    assert works.count(False) > 10 and works[0]


def scarce(variable, n):
    return f"exec env LD_PRELOAD={env.BUILD}/tests/mount/mt_scarce.so {variable}={n}"


@unsanitized
@pytest.mark.timeout(150)
def test_the_nth_thread_that_cannot_be_started(hintfs):
    """Nor any after it. Where it starts all the same, it is of use."""
    works = [starve(hintfs, scarce("MT_THREADS", n)) for n in range(24)]
    first = works.index(True)
    assert first > 5 and all(works[first:]), works
    procs.run(f"{scarce('MT_THREADS', first)} {shlex.join(hintfs.argv())}", timeout=30, check=True)
    assert procs.run(["cat", os.path.join(hintfs.path, "a")], timeout=10, check=True).text == "a" * 1000
    assert procs.run(["grep", "-c", "version", os.path.join(hintfs.ctl, "status")], timeout=10).rc == 0
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


@unsanitized
@pytest.mark.timeout(150)
def test_the_nth_piece_of_memory_that_is_not_to_be_had(hintfs):
    """Nor any after it, to the end: what was mounted is taken away without any."""
    works = [starve(hintfs, scarce("MT_MALLOCS", n)) for n in range(1, 260, 6)]
    assert works.count(False) > 10 and works[-1], works


@pytest.mark.parametrize("options, cause", [("ro", "Read-only file system"), ("size=4k,nr_inodes=1", "No space left")])
def test_a_runtime_directory_that_takes_nothing(hintfs, options, cause):
    argv = [env.binary("fs", "hintfs"), "--memory=16M", "--log=syslog", hintfs.source, hintfs.path]
    result = procs.run(["unshare", "-m", "bash", "-c", f"mount -t tmpfs -o {options} none /run && exec {shlex.join(argv)}"], timeout=30)
    refused(result, 32, "/run/hintfs/", cause, "ctl=DIR")


# ---- signals ----

@pytest.mark.parametrize("name", ["SIGPIPE", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGXFSZ", "SIGCHLD", "SIGRTMIN",
                                  "SIGRTMAX"])
def test_a_signal_that_means_nothing_to_it_does_nothing(hintfs, name):
    hintfs.up()
    pid = hintfs.pid
    os.kill(pid, getattr(signal, name))
    for _ in range(2):
        assert procs.run(["cat", os.path.join(hintfs.path, "a")], check=True).text == "a" * 1000
    os.kill(pid, signal.SIGUSR1)
    procs.until(lambda: "status: up " in hintfs.log(), 5, "it read a signal sent later")
    procs.run(["umount", hintfs.path], check=True)
    hintfs.assert_ended()


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR])
def test_a_signal_that_would_kill_it_ends_it_in_order(hintfs, number):
    hintfs.up()
    os.kill(hintfs.pid, number)
    hintfs.assert_ended()
    assert "told to stop" in hintfs.log()


# ---- names ----

ODD = [b"new\nline", b"pct%s%n", b"\xff\xfe\x80", b" spaces ", b"-dash", b"tab\tx", b"back\\slash\\040", b"q\"uo'te", b"com,ma", b"eq=ual",
       b"\x01\x1b[31m", b"#hash"]


@pytest.mark.parametrize("name", ODD, ids=[repr(n)[2:-1] for n in ODD])
def test_odd_names_of_mountpoint_and_source(hintfs, name):
    """Mounted, read, hinted, listed and unmounted; what is said stays one line and holds no control character."""
    hintctl = env.binary("tools", "hintctl")
    place, there = os.path.join(os.fsencode(hintfs.path), name), os.path.join(os.fsencode(os.path.dirname(hintfs.source)), b"s" + name)
    os.mkdir(place)
    os.rename(hintfs.source, there)
    hintfs.source, hintfs.path = os.fsdecode(there), os.fsdecode(place)
    hintfs.up()
    script = 'test "$(cat "$1/a" | wc -c)" = 1000 && echo a > "$1/.ctl/order" && cat "$1/.ctl/status" > /dev/null'
    procs.run([b"sh", b"-c", script.encode(), b"sh", place], check=True)
    said = [procs.run([hintctl, "list"], check=True).out, procs.run([hintctl, "status", place], check=True).out.split(b"\n")[0]]
    again = hintfs()
    assert again.rc == 32
    for text in (*said, again.err):
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", text), text
    listed = [line for line in said[0].splitlines() if os.fsencode(os.path.dirname(hintfs.ctl)) in line]  # others may be mounted, too
    assert again.err.count(b"\n") == 1 and len(listed) == 1 and b"  up " in listed[0], (again.err, said)
    procs.run([hintctl, "umount", place], check=True)
    hintfs.assert_ended()


def test_an_option_cannot_forge_a_line(hintfs):
    result = procs.run([env.binary("fs", "hintfs"), "-o", "memory=1\nhintfs: mounted \x1b[31m", hintfs.source, hintfs.path])
    refused(result, 1, "memory=1\\x0ahintfs: mounted \\x1b[31m")


def test_a_very_long_mountpoint(hintfs):
    """No control directory can be named after it: that is said, and with ctl= it works."""
    deep = os.path.join(hintfs.path, *["d" * 200] * 18)
    os.makedirs(deep)
    hintfs.path = deep
    refused(procs.run([env.binary("fs", "hintfs"), "--memory=16M", hintfs.source, deep]), 1, "too long", "ctl=DIR")
    hintfs.up()
    procs.run(f"cat {deep}/dir/c && echo a > {deep}/.ctl/order", check=True)
    procs.run([env.binary("tools", "hintctl"), "umount", deep], check=True)
    hintfs.assert_ended()


# ---- clocks ----

@unsanitized
def test_a_wall_clock_that_jumps(mount, tmp):
    """Ten years ahead and back at every look: deadlines, revalidation and the disk tier go by the monotonic clock."""
    folder = os.path.join(tmp, "origin")
    pattern.make_many(folder, 4, CHUNK + 77)
    pattern.make_many(os.path.join(folder, "small"), 50, 3000)
    opts = {"cache_dir": os.path.join(tmp, "cache"), "cache_size": "64M", "cache_free": "0",
            "wrap": ["env", f"LD_PRELOAD={env.BUILD}/tests/mount/mt_clock.so"]}
    for turn in range(3):
        hfs = mount(folder, **opts)
        procs.until(lambda h=hfs: h.status()["tier_state"] == "on", 20, "adopted")
        names = [(f"f{i:04d}", i, CHUNK + 77) for i in range(4)] + [(f"small/f{i:04d}", i, 3000) for i in range(50)]
        hfs.order("".join(n[0] + "\n" for n in names)).ok()
        assert hfs.order("@nonsense\n").rc != 0, "an error line has the time in it"
        for name, i, size in names:
            pattern.check(hfs.p(name), i + 1, size).ok()
        want = sum(n[2] for n in names)
        if turn == 0:
            procs.until(lambda h=hfs: h.status()["tier_bytes"] >= want, 20, lambda h=hfs: f"kept: {h.status()}")
        else:
            assert hfs.status()["origin_bytes"] == 0 and hfs.status()["tier_bad"] == 0, hfs.status()
        hfs.stop()


# ---- a source that turns into something else ----

def write(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


@pytest.mark.parametrize("opts", [{}, {"nocto": True}])
def test_a_directory_becomes_a_link(mount, tmp, opts):
    """Within the lifetime of what the kernel knows of it, too, and also where the link leads to another one each time."""
    folder = os.path.join(tmp, "origin")
    for name in ("d/x", "d/k/z", "e/x", "e/new", "e/k/z", "e/k/deep/er"):
        write(folder, name, name)
    hfs = mount(folder, revalidate="600", **opts)
    look = procs.run(f"cat {hfs.path}/d/x {hfs.path}/d/k/z; ls {hfs.path}/d {hfs.path}/d/k", check=True)
    assert look.text == "d/xd/k/z" + f"{hfs.path}/d:\nk\nx\n\n{hfs.path}/d/k:\nz\n"
    os.rename(os.path.join(folder, "d"), os.path.join(folder, "old"))
    os.symlink("e", os.path.join(folder, "d"))
    for name in ("new", "k/deep/er"):  # not looked up before: nobody has an old answer
        assert procs.run(["cat", hfs.p("d", name)]).ok().text == "e/" + name
    assert procs.run(["ls", hfs.p("d") + "/"], check=True).text.split() == ["k", "new", "x"]
    assert procs.run(["cat", hfs.p("d/x")], check=True).text in ("e/x", "d/x" if opts else "e/x")


def test_source_moved_replaced_and_removed(mount, tmp):
    """The mount shows the directory that SOURCE was when it began, whatever bears its name later."""
    folder = os.path.join(tmp, "origin")
    write(folder, "sub/a", "first")
    hfs = mount(folder, revalidate="0")
    os.rename(folder, folder + ".moved")
    write(folder, "sub/a", "second")
    assert procs.run(["cat", hfs.p("sub/a")], check=True).text == "first"
    write(folder + ".moved", "sub/b", "later")
    assert procs.run(["cat", hfs.p("sub/b")], check=True).text == "later"
    shutil.rmtree(folder + ".moved")
    gone = procs.run(["cat", hfs.p("sub/b")], timeout=10)
    assert gone.rc == 1 and b"No such file" in gone.err
    assert procs.run(["cat", os.path.join(hfs.ctl, "status")]).rc == 0
    hfs.stop()


@pytest.mark.parametrize("opts", [{}, {"nocto": True}])
def test_a_mount_below_source_is_let_go(mount, tmp, opts):
    """Busy while a file of it is open, and for the 10 s that a descriptor at the origin is kept after its last use; not for ever."""
    folder = os.path.join(tmp, "origin")
    below = os.path.join(folder, "below")
    os.makedirs(below)
    procs.run(["mount", "-t", "tmpfs", "none", below], check=True)
    write(below, "d/a", "text")
    hfs = mount(folder, **opts)
    assert procs.run(f"ls {hfs.p('below/d')} && cat {hfs.p('below/d/a')}", check=True).text == "a\ntext"
    assert procs.run(["umount", below]).rc != 0
    procs.until(lambda: procs.run(["umount", below]).rc == 0, 25, "let go", poll_s=0.2)
    hfs.stop()


@pytest.mark.timeout(150)
def test_a_crowd_that_changes_while_it_is_listed(mount, tmp, child):
    """Entries that stay are listed once, each time; nobody sees one twice."""
    n = env.scaled(20_000, 100_000)
    crowd = os.path.join(tmp, "origin", "crowd")
    os.makedirs(crowd)
    fd = os.open(crowd, os.O_RDONLY | os.O_DIRECTORY)
    for i in range(n):
        os.close(os.open(f"e{i:06d}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    hfs = mount(os.path.dirname(crowd))
    lister = child(f"for i in 1 2 3 4 5 6; do ls -fU {hfs.path}/crowd || exit 9; echo /; done; ls -lU {hfs.path}/crowd > /dev/null; exit 0")
    rng, changes = random.Random(3), 0
    while lister.is_running():  # the lower half comes and goes
        old, new = f"e{rng.randrange(n // 2):06d}", f"x{rng.randrange(n):06d}"
        try:
            os.rename(old, new, src_dir_fd=fd, dst_dir_fd=fd)
        except FileNotFoundError:
            os.close(os.open(old, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
        changes += 1
    os.close(fd)
    lists = lister.wait(60).ok().text.split("/\n")[:-1]
    assert len(lists) == 6 and changes > 100
    stay = {f"e{i:06d}" for i in range(n // 2, n)}
    for text in lists:
        names = text.split()
        assert len(names) == len(set(names)) and stay <= set(names)
    hfs.stop()
