# SPDX-License-Identifier: Apache-2.0
"""Law 3: one version per open file, never a mixture, never stale data under a new open (judged by mt_identity)."""
import ctypes
import os
import subprocess
import sys

import pytest

from lib import env, pattern, procs, tree
from lib.probe import Probe

BYTES = 5 * 256 * 1024 + 4096 + 16  # more than five chunks of 256 KiB

ORIGINS = {
    "plain": None,
    "slowfs": {},
    "slowfs-attr-cache": {"attr_cache": True},
    "slowfs-latency": {"latency": "1ms"},
    "slowfs-cached": {"attr_cache": True, "page_cache": True},
}


def figures(result):
    words = result.text.split()
    return dict(zip(words[::2], map(int, words[1::2])))


def play(mount, slow, tmp, how, kind, rounds, **opts):
    """One run of mt_identity; its figures after exit 0."""
    folder = os.path.join(tmp, "origin")
    os.makedirs(folder)
    pattern.make(os.path.join(folder, "data"), 7, BYTES)  # so that the mount has seen one from the start
    source = folder if ORIGINS[kind] is None else slow(folder, **ORIGINS[kind]).path
    hfs = mount(source, chunk="256K", memory="16M", **opts)
    result = procs.run([env.prog("mt_identity"), how, folder, hfs.path, rounds, BYTES], timeout=150)
    assert result.rc == 0, (result.rc, result.out, result.err[-2000:])
    return figures(result), hfs


def test_the_judge_finds_a_mixture(tmp):
    """A plain folder is its own origin: overwriting in place is then seen through old handles, and must be found."""
    for how in ("overwrite", "resize"):
        result = procs.run([env.prog("mt_identity"), how, tmp, tmp, 10, BYTES])
        assert result.rc == 1 and (b"mixed" in result.err or b"bytes" in result.err), result.err
    assert procs.run([env.prog("mt_identity"), "replace", tmp, tmp, 10, BYTES]).rc == 0


def test_the_judge_finds_a_stale_file(tmp):
    old, new = os.path.join(tmp, "old"), os.path.join(tmp, "new")
    os.mkdir(old), os.mkdir(new)
    pattern.make(os.path.join(old, "data"), 7, BYTES)
    for how in ("replace", "overwrite"):
        result = procs.run([env.prog("mt_identity"), how, new, old, 10, BYTES])
        assert result.rc == 1 and b"stale" in result.err, result.err


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ORIGINS)
def test_replaced_by_rename_every_20_ms(mount, slow, tmp, kind):
    seen, _ = play(mount, slow, tmp, "replace", kind, env.scaled(200, 1000))
    assert seen["complete"] > 20 and seen["held"] > 100, seen


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ORIGINS)
@pytest.mark.parametrize("how", ["overwrite", "overwrite-mtime", "resize"])
def test_changed_in_place(mount, slow, tmp, how, kind):
    rounds = env.scaled(200 if kind == "plain" else 50, 200)
    seen, _ = play(mount, slow, tmp, how, kind, rounds)
    assert seen["complete"] >= 5 * rounds and seen["held"] >= rounds, seen


@pytest.mark.timeout(180)
def test_replaced_while_stats_walk_by(mount, slow, tmp):
    """find and stat over the file all the while: attribute traffic must not switch a node's version."""
    folder = os.path.join(tmp, "origin")
    os.makedirs(folder)
    pattern.make(os.path.join(folder, "data"), 7, BYTES)
    hfs = mount(slow(folder, attr_cache=True).path, chunk="256K", memory="16M")
    walker = procs.Child(f'while :; do ls -l "{hfs.path}" && stat "{hfs.p("data")}" || exit 9; done >/dev/null 2>&1')
    result = procs.run([env.prog("mt_identity"), "resize", folder, hfs.path, env.scaled(40, 200), BYTES], timeout=150)
    assert result.rc == 0, (result.out, result.err[-2000:])
    assert walker.is_running(), "ls or stat failed"


SWAPPED_OPENS = """
import os, sys, threading
path, stop, opened, bad, seen = sys.argv[1], threading.Event(), threading.Event(), [], [0]
def versions():
    while not stop.is_set():
        lowest = committed[0]
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as e:
            bad.append(f"open: {e}")
            opened.set()
            return
        try:
            version = int(os.read(fd, 100))
            if version < lowest:
                bad.append(f"stale: {version} for {lowest}")
        except OSError as e:
            if e.errno != 116:
                bad.append(f"read: {e}")
        os.close(fd)
        seen[0] += 1
        opened.set()
committed = [0]
threads = [threading.Thread(target=versions) for _ in range(4)]
for t in threads: t.start()
for line in sys.stdin:
    committed[0] = int(line)
    opened.clear()
    if bad: break
    opened.wait()
    print(line, end="", flush=True)
stop.set()
for t in threads: t.join()
print(seen[0], bad[:3])
sys.exit(bool(bad))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("revalidate", ["1", "0", "0.03"])
def test_the_directory_is_replaced_with_the_file(mount, tmp, revalidate):
    """The second walk after an ESTALE meets another directory node: still no open() fails, and none shows an older version."""
    folder, spare = os.path.join(tmp, "o"), os.path.join(tmp, "spare")
    libc = ctypes.CDLL(None, use_errno=True)

    def make(path, version):
        os.makedirs(path)
        with open(os.path.join(path, "f"), "w") as f:
            f.write(str(version).rjust(1 + version % 7))

    make(os.path.join(folder, "a", "d"), 0)
    hfs = mount(folder, revalidate=revalidate)
    openers = subprocess.Popen([sys.executable, "-c", SWAPPED_OPENS, hfs.p("a", "d", "f")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for version in range(1, env.scaled(200, 1000)):
            make(spare, version)
            swapped = libc.renameat2(-100, spare.encode(), -100, os.path.join(folder, "a", "d").encode(), 2)  # RENAME_EXCHANGE
            assert swapped == 0, os.strerror(ctypes.get_errno())
            os.rename(spare, f"{tmp}/old{version}")  # whoever has walked into it may go on there
            openers.stdin.write(f"{version}\n")
            openers.stdin.flush()
            answer = openers.stdout.readline()  # the version once somebody has opened it since, or what went wrong
            assert answer == f"{version}\n", answer
        out, _ = openers.communicate(timeout=env.seconds(30))
    finally:
        openers.kill()
    assert openers.returncode == 0 and int(out.split()[0]) > 100, out


def test_a_failed_open_leaves_nothing_behind(mount, slow, tmp):
    """A thread's open() fails after its ESTALE; what others look up meanwhile must not answer its next open()."""
    folder = os.path.join(tmp, "origin")
    os.makedirs(folder)

    def put(size):
        with open(os.path.join(folder, "new"), "wb") as f:
            f.write(b"x" * size)
        os.rename(os.path.join(folder, "new"), os.path.join(folder, "f"))

    put(1000)
    far = slow(folder)
    hfs = mount(far.path, revalidate="60")
    one, two = Probe(), Probe()
    try:
        assert one.ask("cat", hfs.p("f"))[1] == two.ask("cat", hfs.p("f"))[1] == 1000
        put(2000)
        far.rule(glob="f", op="OPEN", skip=1, count=2, errno="EACCES")  # not that of the OPEN, both of the walk after its ESTALE
        assert one.ask("cat", hfs.p("f"))[1] == "EACCES", " ".join(f"{r.op}:{r.err}" for r in far.records(op=None))
        assert two.ask("cat", hfs.p("f"))[1] == 2000
        put(3000)
        assert one.ask("cat", hfs.p("f"))[1] == 3000
    finally:
        one.close()
        two.close()


def content(path):
    return procs.run(["cat", path], check=True).out


@pytest.mark.parametrize("opts", [{}, {"revalidate": "0"}, {"nocto": True, "revalidate": "1"}])
def test_a_change_is_noticed_without_an_open(mount, tmp, opts):
    """stat shows a new size within `revalidate`, new and removed names appear and go; with nocto the bytes follow too."""
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    path = os.path.join(folder, "f")
    for name in ("f", "gone"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("first")
    hfs = mount(folder, **opts)
    assert content(hfs.p("f")) == content(hfs.p("gone")) == b"first"
    assert procs.run(["stat", hfs.p("later")]).rc == 1
    with open(path + ".new", "w") as f:
        f.write("second version")
    os.rename(path + ".new", path)
    os.remove(os.path.join(folder, "gone"))
    with open(os.path.join(folder, "later"), "w") as f:
        f.write("x")
    if not opts.get("nocto"):
        assert content(hfs.p("f")) == b"second version"
    procs.until(lambda: procs.run(["stat", "-c", "%s", hfs.p("f")]).out == b"14\n", 5, "new size")
    procs.until(lambda: content(hfs.p("f")) == b"second version", 5, "new bytes")
    procs.until(lambda: procs.run(["stat", hfs.p("later")]).rc == 0, 5, "new name")
    procs.until(lambda: procs.run(["stat", hfs.p("gone")]).rc == 1, 5, "removed name")
    assert procs.run(["ls", hfs.path], check=True).out.split() == [b"f", b"later"]


def test_immutable_means_what_it_says(mount, slow, tmp):
    """No revalidation: after the first look, opens and stats of a known file cost the origin nothing."""
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "data"), 1, tree.CHUNK)
    far = slow(folder)
    hfs = mount(far.path, immutable=True)
    pattern.check(hfs.p("data"), 1, tree.CHUNK).ok()
    far.reset()
    for _ in range(20):
        pattern.check(hfs.p("data"), 1, tree.CHUNK).ok()
        procs.run(["stat", hfs.p("data")], check=True)
    counts = far.totals()
    assert counts["OPEN"] == counts["READ"] == counts["GETATTR"] == 0, counts


def test_every_open_checks_the_origin(mount, slow, tmp):
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "data"), 1, tree.CHUNK)
    far = slow(folder)
    hfs = mount(far.path, revalidate="1000")
    pattern.check(hfs.p("data"), 1, tree.CHUNK).ok()
    far.reset()
    for _ in range(10):
        pattern.check(hfs.p("data"), 1, tree.CHUNK).ok()
    counts = far.totals()
    assert counts["READ"] == 0 and counts["OPEN"] + counts["GETATTR"] >= 10, counts


def test_a_removed_file_stays_readable_through_its_handle(mount, tmp, until):
    """unlink at the origin while a descriptor is open: the old bytes or ESTALE, never zeros, never a short file."""
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    size = 4 * tree.CHUNK
    pattern.make(os.path.join(folder, "data"), 1, size)
    hfs = mount(folder)
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_RDONLY); first = os.pread(fd, 4096, 0); print('open', flush=True)\n"
              "sys.stdin.readline()\n"
              "seen = set()\n"
              "for at in range(0, int(sys.argv[2]), 1 << 20):\n"
              "    try: seen.add(len(os.pread(fd, 4096, at)))\n"
              "    except OSError as e: seen.add(errno.errorcode[e.errno])\n"
              "assert os.pread(fd, 4096, 0) == first and os.fstat(fd).st_size == int(sys.argv[2])\n"
              "print(sorted(map(str, seen)), flush=True)\n")
    go_r, go_w = os.pipe()
    reader = procs.Child(["bash", "-c", f'exec python3 -c "$0" "$@" <&{go_r}', script, hfs.p("data"), str(size)],
                         pass_fds=(go_r,))
    until(lambda: reader.lines() == ["open"], 10, "reader has it open")
    os.remove(os.path.join(folder, "data"))
    os.write(go_w, b"\n")
    os.close(go_w), os.close(go_r)
    reader.wait(20).ok()
    assert reader.lines()[1] in ("['4096']", "['4096', 'ESTALE']"), reader.lines()
    procs.until(lambda: procs.run(["cat", hfs.p("data")]).rc == 1, 5, "a new open fails")
