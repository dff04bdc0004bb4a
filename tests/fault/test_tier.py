# SPDX-License-Identifier: Apache-2.0
"""The disk tier on real file systems: small ones, full ones, shared ones, other people's directories.

Drives tier/tier_tool, whose reads end with 1 on a wrong byte. Mounts happen in a mount namespace of its own.
"""
import ctypes
import functools
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

import pytest

SUITE_LIMIT_S = 900
KIB, MIB = 1024, 1 << 20
HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("HINTFS_BUILD") or os.environ.get("BUILD") or HERE.parents[1] / "build")
TOOL = BUILD / "tests/fault/tier/tier_tool"
IS_ROOT = os.geteuid() == 0

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL} is not built")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="mounting needs root")


def parse(text):
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def tool(directory, verb, ok=True, **options):
    args = [str(TOOL)] + [f"--{k}={v}" for k, v in options.items()] + [str(directory), verb]
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    assert "WRONG" not in done.stderr and "FAILED" not in done.stderr, done.stderr
    if ok:
        assert done.returncode == 0, done.stdout + done.stderr
    out = parse(done.stdout)
    out["stderr"] = done.stderr
    return out


class Hold:
    """A tier that stays open; say("read") and say("fill") make it work and give its figures."""

    def __init__(self, directory, prefix=(), **options):
        args = list(prefix) + [str(TOOL)] + [f"--{k}={v}" for k, v in options.items()] + [str(directory), "hold"]
        self.p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.until("ready 1")

    def until(self, last):
        lines = []
        for line in self.p.stdout:
            lines.append(line)
            if line.strip() == last:
                return parse("".join(lines))
        raise AssertionError("it ended: " + "".join(lines) + self.p.stderr.read())

    def say(self, what):
        self.p.stdin.write(what + "\n")
        self.p.stdin.flush()
        return self.until("done 1")

    def close(self):
        out, err = self.p.communicate(timeout=60)
        assert self.p.returncode == 0, out + err
        return err

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.p.kill()
        if self.p.poll() is None:
            self.close() if kind is None else self.p.wait()


def du(directory):
    return int(subprocess.run(["du", "-s", "-B1", str(directory)], stdout=subprocess.PIPE, check=True).stdout.split()[0])


@pytest.fixture
def cache(tmp_path):
    os.chmod(tmp_path, 0o700)
    return tmp_path / "cache"


@functools.cache
def private_namespace():
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:  # CLONE_NEWNS
        pytest.skip("no mount namespace of our own: " + os.strerror(ctypes.get_errno()))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@pytest.fixture
def mounted(tmp_path):
    """Gives mount(type, *args): a fresh file system in this process's own namespace."""
    if not IS_ROOT:
        pytest.skip("mounting needs root")
    private_namespace()
    points = []

    def mount(*args):
        point = tmp_path / f"m{len(points)}"
        point.mkdir(mode=0o700)
        done = subprocess.run(["mount", *args, str(point)], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            pytest.skip(f"mount {args}: {done.stderr.strip()}")
        points.append(point)
        os.chmod(point, 0o700)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", "-l", str(point)], check=False)


def ext4(tmp_path, mounted, size):
    image = tmp_path / "image"
    with open(image, "wb") as f:
        f.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return mounted("-o", "loop", str(image))


# ---- what it keeps ----

def test_restart(cache):
    tool(cache, "fill", files=50, bytes=200000)
    tool(cache, "fill", files=50, bytes=20000, **{"from": 100})
    out = tool(cache, "read", files=50, bytes=200000)
    assert out["hits"] == out["chunks"] and out["bad"] == "0"
    out = tool(cache, "read", files=50, bytes=20000, **{"from": 100})
    assert out["hits"] == out["chunks"] and out["bad"] == "0"
    assert int(out["bytes"]) == du(cache)
    assert tool(cache, "read", files=50, bytes=20000, gen=2, **{"from": 100})["hits"] == "0"


def test_modes_are_private(cache):
    old = os.umask(0)
    try:
        tool(cache, "fill", files=5, bytes=200000)
        tool(cache, "fill", files=5, bytes=2000, **{"from": 100})
    finally:
        os.umask(old)
    for top, dirs, files in os.walk(cache):
        assert stat.S_IMODE(os.stat(top).st_mode) == 0o700, top
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(top, name)).st_mode) == 0o600, name


def test_two_datasets(cache):
    tool(cache, "fill", files=10, bytes=100000, dataset="a")
    assert tool(cache, "read", files=10, bytes=100000, dataset="b")["hits"] == "0"
    tool(cache, "fill", files=10, bytes=100000, dataset="b")
    for name in "ab":
        assert tool(cache, "read", files=10, bytes=100000, dataset=name)["hits"] == "20"


def test_another_chunk_size(cache):
    """Files that were kept under another chunk size are misses, or still good; a scrub can read them all."""
    tool(cache, "fill", files=5, bytes=3000000, chunk=MIB, size=100 * MIB)
    tool(cache, "fill", files=5, bytes=900000, chunk=MIB, size=100 * MIB, **{"from": 100})
    tool(cache, "fill", files=5, bytes=20000, chunk=MIB, size=100 * MIB, **{"from": 200})
    out = tool(cache, "scrub", chunk=64 * KIB, size=100 * MIB)
    assert out["scrubbed"] == "25" and out["bad"] == "0"
    for start, size, hits in ((0, 3000000, 0), (100, 900000, 0), (200, 20000, 5)):
        out = tool(cache, "read", files=5, bytes=size, chunk=64 * KIB, size=100 * MIB, **{"from": start})
        assert int(out["hits"]) == hits and out["bad"] == "0"
    tool(cache, "fill", files=5, bytes=900000, chunk=64 * KIB, size=100 * MIB, **{"from": 100})
    out = tool(cache, "read", files=5, bytes=900000, chunk=64 * KIB, size=100 * MIB, **{"from": 100})
    assert out["hits"] == out["chunks"]
    assert int(out["bytes"]) == du(cache)


def test_many_small_files_start_at_once(cache):
    """A start costs the same however much is cached; 200,000 files are known a moment later."""
    files = 20000 if os.environ.get("HINTFS_SAN") else 200000
    tool(cache, "fill", files=files, bytes=700, size=1 << 30)
    out = tool(cache, "start", size=1 << 30)
    print("created_us", out["created_us"], "adopted_us", out["adopted_us"], "index_bytes", out["index_bytes"])
    assert out["files_small"] == str(files)
    assert int(out["index_bytes"]) <= 200 * files
    out = tool(cache, "read", files=2000, bytes=700, size=1 << 30, **{"from": files - 2000})
    assert out["hits"] == "2000"


def test_fifty_thousand_small_files_in_a_small_budget(cache):
    out = tool(cache, "fill", files=50000, bytes=1024, size=16 * MIB)
    assert int(out["skipped_full"]) > 0
    assert du(cache) <= 16 * MIB and int(out["bytes"]) == du(cache)
    for start in range(100000, 400000, 100000):  # each process's files push out those of the one before
        out = tool(cache, "fill", files=20000, bytes=1024, size=16 * MIB, **{"from": start})
        assert du(cache) <= 16 * MIB and int(out["culled_bytes"]) > 0
        assert int(tool(cache, "read", files=20000, bytes=1024, size=16 * MIB, **{"from": start})["hits"]) > 5000


# ---- small and full file systems ----

@needs_root
def test_ext4_of_64_mib(tmp_path, mounted):
    cache = ext4(tmp_path, mounted, 64 * MIB) / "cache"
    with Hold(cache, files=300, bytes=300000, size=1 << 30, free=10) as hold:
        hold.say("fill")
        out = hold.say("read")
        assert int(out["hits"]) > 100 and out["state"] == "on" and out["errors_io"] == "0"
        v = os.statvfs(cache)
        assert v.f_bavail >= v.f_blocks * 9 // 100, "the reserve is kept"
    out = tool(cache, "read", files=300, bytes=300000, size=1 << 30, free=10)
    assert int(out["hits"]) > 100 and out["bad"] == "0"


@needs_root
def test_tmpfs_with_64_inodes(mounted):
    cache = mounted("-t", "tmpfs", "-o", "nr_inodes=64,size=64m", "none") / "cache"
    for free in (10, 0):
        out = tool(cache, "fill", files=100, bytes=100000, free=free)
        assert out["state"] == "on" and 10 < int(out["files_big"]) < 32
        out = tool(cache, "read", files=100, bytes=100000, free=free)
        assert int(out["hits"]) >= int(out["files_big"]) > 10
        out = tool(cache, "fill", files=500, bytes=1000, free=free, **{"from": 1000})
        assert out["state"] == "on"


@needs_root
def test_somebody_else_fills_the_disk(tmp_path, mounted):
    top = ext4(tmp_path, mounted, 64 * MIB)
    with Hold(top / "cache", files=100, bytes=300000, size=1 << 30, free=5) as hold:
        hold.say("fill")
        before = int(hold.say("read")["hits"])
        assert before > 50
        with open(top / "other", "wb") as f:  # all room at one blow: step by step it would take what is given back meanwhile, too
            v = os.statvfs(top)
            try:
                os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_frsize)
            except OSError:
                pass
        for _ in range(200):  # it gives room back until the reserve is there again; reads go on
            out = hold.say("read")
            v = os.statvfs(top)
            if int(out["culled_bytes"]) > 0 and v.f_bavail >= v.f_blocks * 4 // 100:
                break
        else:
            raise AssertionError(f"nothing was given back: {out}")
        os.unlink(top / "other")
        for _ in range(200):
            if int(hold.say("fill")["files_big"]) == 100:
                break
        assert hold.say("read")["hits"] == "500"


# ---- mischief ----

def one(cache, ending):
    return next(p for p in sorted((cache / "v1").rglob("*" + ending)))


@pytest.mark.parametrize("ending", [".d", ".i", ".p"])
@pytest.mark.parametrize("what", ["symlink", "fifo", "directory", "hardlink", "unreadable", "empty"])
def test_replaced(cache, tmp_path, ending, what):
    tool(cache, "fill", files=6, bytes=200000)
    tool(cache, "fill", files=6, bytes=20000, **{"from": 100})
    victim = one(cache, ending)
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine" * 1000)
    if what == "hardlink":
        os.link(victim, tmp_path / "other-name")
    elif what == "unreadable":
        os.chmod(victim, 0)
    else:
        victim.unlink()
        if what == "symlink":
            victim.symlink_to(precious)
        elif what == "fifo":
            os.mkfifo(victim)
        elif what == "directory":
            victim.mkdir()
            (victim / "file").write_bytes(b"mine")
        else:
            victim.touch()
    for attempt in range(2):
        big = tool(cache, "read", files=6, bytes=200000)
        small = tool(cache, "read", files=6, bytes=20000, **{"from": 100})
        if attempt == 0 and what != "unreadable":  # root reads it all the same
            assert int(big["hits"]) + int(small["hits"]) < 30
        tool(cache, "fill", files=6, bytes=200000)
        tool(cache, "fill", files=6, bytes=20000, **{"from": 100})
    big = tool(cache, "read", files=6, bytes=200000)
    assert int(big["hits"]) >= 20, "all but the one whose name is taken"
    assert precious.read_bytes() == b"mine" * 1000
    if what == "directory":
        assert (victim / "file").read_bytes() == b"mine", "what is not ours stays"


def test_vanishes_while_in_use(cache):
    with Hold(cache, files=20, bytes=100000) as hold:
        hold.say("fill")
        shutil.rmtree(cache)
        for _ in range(500):
            out = hold.say("read")
            if out["state"] == "off":
                break
        out = hold.say("read")
        assert out["state"] == "off" and out["cause"] == "gone" and out["hits"] == "0"
        hold.say("fill")
        assert not cache.exists(), "nothing is made anew behind the user's back"
    assert len(re.findall("warning.*it is bypassed", hold.p.stderr.read() if not hold.p.stderr.closed else "")) <= 1


# ---- refusals: cause and cure ----

def refused(directory, words, **options):
    out = tool(directory, "start", ok=False, **options)
    assert "refused" in out, out
    for word in words:
        assert word in out["refused"], out["refused"]


def test_two_daemons(cache):
    with Hold(cache) as hold:
        refused(cache, ["in use by another hintfs", f"pid {hold.p.pid}", "of its own"])
    tool(cache, "start")


def test_not_empty(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "thesis.tex").write_text("years")
    refused(mine, ["not empty", "choose an empty directory"])
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]
    (mine / "hintfs-cache").write_text("a file of mine with that name by chance, and long enough to tell" * 3)
    refused(mine, ["not empty"])
    assert (mine / "thesis.tex").read_text() == "years"


def test_missing_parent(tmp_path):
    refused(tmp_path / "no" / "such", ["cannot be used", "choose a writable directory"])


def test_open_to_others(tmp_path):
    d = tmp_path / "d"
    d.mkdir()
    os.chmod(d, 0o755)
    (d / "thesis.tex").write_text("years")
    refused(d, ["not empty and is no hintfs cache"])  # chmod would be the wrong cure
    (d / "thesis.tex").unlink()
    refused(d, ["mode 0755", "chmod 700"])
    os.chmod(d, 0o700)
    os.chmod(tmp_path, 0o777)
    refused(d, ["changed by everybody", "chmod +t"])
    os.chmod(tmp_path, 0o1777)
    tool(d, "start")


@needs_root
def test_somebody_elses(tmp_path):
    d = tmp_path / "d"
    d.mkdir(mode=0o700)
    os.chown(d, 12345, 12345)
    refused(d, ["belongs to uid 12345", "of your own"])
    os.chown(d, 0, 0)
    tool(d, "start")
    for p in [d, *d.rglob("*")]:
        os.chown(p, 12345, 12345)
    refused(d, ["belongs to uid 12345", "of your own"])  # and not: no cache


def test_apart(tmp_path):
    os.chmod(tmp_path, 0o700)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True, mode=0o700)
    for d in (source, source / "cache", tmp_path):
        refused(d, ["lie one inside the other"], apart=source)
        assert not (d / "lock").exists()
    tool(tmp_path / "beside", "start", apart=source)
    (tmp_path / "link").symlink_to(source)
    refused(tmp_path / "link" / "cache2", ["lie one inside the other"], apart=source)


def test_budget_too_small(cache):
    refused(cache, ["cache-size=1000000 is too small"], size=1000000)
    assert not cache.exists()


# ---- other formats ----

def test_other_version_is_set_aside_and_removed(cache, tmp_path):
    tool(cache, "fill", files=5, bytes=100000)
    other = cache / "v7" / "deep" / "deeper"
    other.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (other / "link").symlink_to(precious)
    (other / "dirlink").symlink_to(tmp_path)
    for i in range(1000):
        (other / f"f{i}").write_bytes(b"x" * 100)
    (cache / "notes.txt").write_text("not of the cache")
    with Hold(cache, files=5, bytes=100000) as hold:
        for _ in range(500):
            out = hold.say("read")
            if not list(cache.glob("trash-*")):
                break
        assert not list(cache.glob("trash-*")) and not (cache / "v7").exists()
        assert out["hits"] == "10", "our own version is not touched"
    assert precious.read_bytes() == b"mine" and (cache / "notes.txt").exists()


@pytest.mark.parametrize("damage", [b"", b"garbage", b"HFSTIER2" + bytes(56)])
def test_other_format_of_this_version(cache, damage):
    tool(cache, "fill", files=5, bytes=100000)
    (cache / "v1" / "tier").write_bytes(damage)
    out = tool(cache, "read", files=5, bytes=100000)
    assert out["hits"] == "0"
    tool(cache, "fill", files=5, bytes=100000)
    assert tool(cache, "read", files=5, bytes=100000)["hits"] == "10"


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
