# SPDX-License-Identifier: Apache-2.0
"""The fewest slots that the command accepts: slower, never wrong, never stuck (law 6)."""
import os
import random

import pytest

from lib import env, pattern, procs, tree

FILES, SIZE = 8, 3 * tree.CHUNK + 777


@pytest.fixture
def origin(tmp):
    folder = os.path.join(tmp, "origin")
    pattern.make_many(folder, FILES, SIZE)
    return folder


def fewest(mount, origin, chunk_bytes):
    """The smallest budget that is not refused, in chunks; a refusal is exit 1 and names the option."""
    for chunks in range(1, 65):
        hfs = mount(origin, start=False, memory=str(chunks * chunk_bytes), chunk=str(chunk_bytes))
        hfs.spawn()
        procs.until(lambda: not hfs.is_running() or hfs._is_ready(), 20, "started or refused")
        if hfs.is_running():
            return chunks, hfs
        assert hfs.proc.returncode == 1 and b"memory" in hfs.log(), hfs.log()
        hfs.expect_exit = 1
    raise AssertionError("64 chunks were refused")


def readers(hfs, origin, rounds):
    """16 processes: each reads pieces of all files at places of its own, in several ways."""
    ways = ["pread", "direct", "mmap_shared", "io_uring"]
    started = []
    for k in range(16):
        rng = random.Random(k)
        lines = []
        for _ in range(rounds):
            name = "f%04d" % rng.randrange(FILES)
            at, length = rng.randrange(SIZE), rng.choice([1, 5000, 70_000, 1_500_000])
            lines.append(f'"{env.prog("mt_cmp")}" {ways[k % 4]} "{hfs.p(name)}" "{origin}/{name}" {at} {length} || exit 1')
        started.append(procs.Child("\n".join(lines)))
    return started


@pytest.mark.timeout(150)
@pytest.mark.parametrize("chunk", [65536, tree.CHUNK])
def test_progress_with_the_fewest_slots(mount, slow, origin, chunk):
    far = slow(origin, latency="500us")
    count, hfs = fewest(mount, far.path, chunk)
    assert count <= 16, f"{count} chunks are no small number"
    order = random.Random(1)
    lines = "".join(f"f{order.randrange(FILES):04d}\t{order.randrange(SIZE)}\t{order.choice([1, 4096, 100000])}\n"
                    for _ in range(20_000))
    assert hfs.order(lines).rc == 0
    for reader in readers(hfs, origin, env.scaled(15, 100)):
        reader.wait(120).ok()
    status = hfs.status()
    assert status["slots_total"] <= count and status["slots_pinned"] == 0, status


@pytest.mark.timeout(120)
def test_four_chunks_with_sixteen_parked_readers(mount, slow, origin):
    """More places wanted at once than there are slots, all while the origin hangs; then all come."""
    far = slow(origin)
    hfs = mount(far.path, memory=str(4 * tree.CHUNK))
    far.hang("*", "op=READ")
    parked = [procs.Child([env.prog("mt_stuck"), way, hfs.p("f%04d" % i), i + 1, 1, 3, tree.CHUNK])
              for i in range(FILES) for way in ("read", "direct")]
    far.wait_hung(1)
    for child in parked:
        procs.until(lambda c=child: c.lines() == ["ready"], 10, "readers at work")
    assert hfs.order("".join(f"f{i % FILES:04d}\n" for i in range(1000))).rc == 0
    far.unhang()
    for child in parked:
        child.wait(60).ok()
    far.hang("f0000", "op=READ")
    waiting = procs.Child([env.prog("mt_stuck"), "direct", hfs.p("f0000"), 1, 1, 4, tree.CHUNK, 512])
    for i in range(1, FILES):
        pattern.check(hfs.p("f%04d" % i), i + 1, SIZE).ok()
    far.unhang()
    waiting.wait(30).ok()
