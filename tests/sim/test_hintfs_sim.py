# SPDX-License-Identifier: Apache-2.0
"""hintfs-sim as users call it: the answer's shape, that it is the same again, and what it says when it cannot."""
import json
import os
import random
import struct
import subprocess
import zlib

import pytest

BUILD = os.environ.get("HINTFS_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build"))
PROGRAM = os.path.join(BUILD, "tools", "hintfs-sim")
MIB = 1 << 20
KEYS = {"policy", "epoch", "time_s", "bound_time_s", "origin_bytes", "bound_bytes", "hit_bytes", "stall_s"}


def sim(*args, stdin=None):
    return subprocess.run([PROGRAM, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=120)


def rows(*args):
    p = sim(*args, "--json")
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.fixture
def ranges(tmp_path):
    """A file of 512 MiB, three epochs of a global shuffle in batches of 16."""
    r = random.Random(1)
    (tmp_path / "sizes").write_text(f"train.bin\t{512 * MIB}\n")
    lines = []
    for _ in range(3):
        lines.append("@epoch")
        for k, i in enumerate(r.sample(range(512), 512)):
            if k % 16 == 0:
                lines.append("@batch")
            lines.append(f"train.bin\t{i * MIB}\t{MIB}")
    (tmp_path / "order").write_text("\n".join(lines) + "\n")
    return [tmp_path / "order", "--sizes", tmp_path / "sizes", "--memory", "256M"]


def test_json(ranges):
    out = rows(*ranges, "--policy", "all")
    assert all(set(o) == KEYS for o in out)
    policies = {o["policy"] for o in out}
    assert {"hintfs", "lru", "random", "never-evict", "min", "ffcv-window3", "readahead-file"} <= policies
    assert len(out) == 3 * len(policies)
    for o in out:
        assert o["time_s"] >= o["bound_time_s"] * 0.999, o
        assert 0 <= o["hit_bytes"] <= 512 * MIB
    keep = [o for o in out if o["policy"] == "never-evict" and o["epoch"] == 2][0]
    assert keep["origin_bytes"] == keep["bound_bytes"] == 256 * MIB
    first = [o for o in out if o["policy"] == "hintfs" and o["epoch"] == 0][0]
    assert first["origin_bytes"] >= 512 * MIB


def test_same_again(ranges):
    args = [*ranges, "--policy", "all", "--jitter", "0.5", "--compute-jitter", "0.2"]
    assert sim(*args).stdout == sim(*args).stdout
    assert sim(*args, "--json").stdout != sim(*args, "--json", "--seed", "2").stdout


def test_table_and_picture(ranges, tmp_path):
    p = sim(*ranges, "--policy", "hintfs,lru", "--plot", tmp_path / "a.png")
    assert p.returncode == 0 and p.stderr == ""
    assert "x bound" in p.stdout and "no policy beats" in p.stdout and "hintfs" in p.stdout
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + n]
        assert struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + n
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert len(pixels) == height * (3 * width + 1) and b"\xcc\x33\x33" in pixels
    assert b"IEND" in chunks


def test_directory_patterns_and_repeat(tmp_path):
    """Real files; a pattern, a directory, a prefix, a repeated list: the same reads as written out in full."""
    data = tmp_path / "data" / "wds"
    data.mkdir(parents=True)
    for i in range(4):
        with open(data / f"s-{i:02d}.tar", "wb") as f:
            f.truncate((i + 1) * MIB)
    sizes = tmp_path / "sizes"
    sizes.write_text("".join(f"wds/s-{i:02d}.tar\t{i + 1}M\n" for i in range(4)))
    full = "".join(f"wds/s-{i:02d}.tar\n" for i in range(4))
    orders = {
        "full": full + "@epoch\n" + full,
        "pattern": "wds/s-{00..03}.tar\n@repeat 2\n",
        "directory": "wds/\n@repeat 2\n",
        "prefix": "@prefix /mnt/x\n" + full.replace("wds/", "/mnt/x/wds/") + "@repeat 2\n",
    }
    answers = set()
    for name, text in orders.items():
        (tmp_path / name).write_text(text)
        for where in (["--source", tmp_path / "data"], ["--sizes", sizes]):
            p = sim(tmp_path / name, *where, "--memory", "8M", "--json")
            assert p.returncode == 0, (name, p.stderr)
            answers.add(p.stdout)
    assert len(answers) == 1
    assert sim("-", "--sizes", sizes, "--memory", "8M", "--json", stdin=orders["full"]).stdout in answers


def test_absolute_paths_of_the_source(tmp_path):
    """As find writes them; through a symbolic link too; elsewhere: what to do is said."""
    data = tmp_path / "real"
    data.mkdir()
    for name in ("a", "b"):
        (data / name).write_bytes(b"x" * MIB)
    (tmp_path / "link").symlink_to(data)
    answers = set()
    for source, lines in ((data, "a\nb\n"), (data, f"{data}/a\n{data}/b\n"), (f"{data}//", f"{data}/a\n{data}//b\n"),
                          (tmp_path / "link", f"{tmp_path}/link/a\n{data}/b\n"), (data, f"@prefix /mnt/x\n/mnt/x/a\n{data}/b\n")):
        p = sim("-", "--source", source, "--memory", "4M", "--json", stdin=lines)
        assert p.returncode == 0, p.stderr
        answers.add(p.stdout)
    assert len(answers) == 1
    for more in (["--source", data], ["--sizes", tmp_path / "sizes"]):
        (tmp_path / "sizes").write_text("a\t1M\n")
        p = sim("-", *more, stdin="/mnt/data/a\n")
        assert p.returncode == 2 and "@prefix DIR" in p.stderr and "/mnt/data/a" in p.stderr
    assert sim("-", "--source", data, stdin=f"{data}x/a\n").returncode == 2


def test_nodes(ranges):
    one = rows(*ranges, "--policy", "hintfs")
    eight = rows(*ranges, "--policy", "hintfs", "--nodes", "8")
    assert len(eight) == len(one)
    assert eight[0]["origin_bytes"] * 7 < one[0]["origin_bytes"]
    p = sim(*ranges, "--nodes", "8")
    assert "8 nodes with hintfs: the origin carries" in p.stdout


def test_epochs_played_again(ranges):
    assert len(rows(*ranges, "--policy", "lru", "--epochs", "5")) == 5
    assert len(rows(*ranges, "--policy", "lru", "--epochs", "2")) == 2
    same = rows(*ranges, "--policy", "lru", "--epochs", "6")
    other = rows(*ranges, "--policy", "lru", "--epochs", "6", "--shuffle")
    assert same[:3] == other[:3] and same[3:] != other[3:]


def test_missing_names(ranges, tmp_path):
    order = tmp_path / "more"
    order.write_text("not/there.bin\n" + (tmp_path / "order").read_text())
    p = sim(order, *ranges[1:])
    assert p.returncode == 0
    assert "1 of 1537 entries name files that are not there" in p.stdout


@pytest.mark.parametrize("args,code,words", [
    ([], 1, ["no order given", "--help"]),
    (["ORDER"], 1, ["sizes are needed"]),
    (["ORDER", "--sizes", "SIZES", "--source", "/"], 1, ["one of --source DIR and --sizes FILE"]),
    (["ORDER", "--sizes", "SIZES", "--memmory", "1G"], 1, ["unknown option --memmory", "did you mean --memory?"]),
    (["ORDER", "--sizes", "SIZES", "--latency", "5"], 1, ["--latency: 5 is not", "1ms"]),
    (["ORDER", "--sizes", "SIZES", "--policy", "lruu"], 1, ["unknown policy lruu", "did you mean lru?"]),
    (["ORDER", "--sizes", "SIZES", "--memory", "1M"], 1, ["fewer than 4 chunks"]),
    (["ORDER", "--sizes", "SIZES", "--chunk", "3M"], 1, ["power of two"]),
    (["nowhere", "--sizes", "SIZES"], 2, ["order nowhere: No such file"]),
    (["ORDER", "--sizes", "nowhere"], 2, ["sizes nowhere", "PATH<TAB>BYTES"]),
    (["ORDER", "--sizes", "BAD"], 2, ["line 1", "PATH<TAB>BYTES"]),
    (["BAD", "--sizes", "SIZES"], 2, ["BAD, line 1", "column"]),
    (["ORDER", "--source", "/nonex"], 2, ["--source /nonex: No such file", "give the directory"]),
    (["ORDER", "--source", "SIZES"], 2, ["--source SIZES: not a directory"]),
    (["ORDER", "--source", "EMPTY"], 2, ["nothing to read", "check --source"]),
])
def test_errors(tmp_path, args, code, words):
    (tmp_path / "SIZES").write_text("a\t4M\n")
    (tmp_path / "ORDER").write_text("a\n")
    (tmp_path / "BAD").write_text("@bacth\n")
    (tmp_path / "EMPTY").mkdir()
    p = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert p.returncode == code, p.stderr
    for w in words:
        assert w in p.stderr, p.stderr
    assert p.stdout == ""


def test_help_and_policies():
    p = sim("--help")
    assert p.returncode == 0
    for w in ("usage: hintfs-sim ORDER", "--nodes", "--policy", "x bound", "Example"):
        assert w in p.stdout
    p = sim("--list-policies")
    assert p.returncode == 0 and "ffcv-window3" in p.stdout
