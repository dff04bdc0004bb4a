# SPDX-License-Identifier: Apache-2.0
"""Slow NFS: netem delays each packet of the guest's network. Bytes are judged; times are printed, never asserted."""
import os
import time

import pytest

from lib import procs

MIB = 1 << 20


def setting(name, default):
    """figures.py asks for other sizes."""
    return int(os.environ.get(f"SLOW_{name}", default))


DELAY_MS, SHARDS, SIZE, ROUNDS = setting("DELAY_MS", 20), setting("SHARDS", 6), setting("SHARD_MIB", 4) * MIB, setting("ROUNDS", 1)


@pytest.fixture
def delay():
    procs.run(["modprobe", "sch_netem"])
    done = procs.run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", f"{DELAY_MS}ms", "limit", "100000"])
    if done.rc != 0:
        pytest.skip(f"no netem: {done.err!r}")
    yield
    procs.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)


def epoch(reader, folder, names):
    begun = time.monotonic()
    for i, name in names:
        assert reader.cat(os.path.join(folder, name), timeout=60) == [i, SIZE]
    return time.monotonic() - begun


@pytest.mark.timeout(500)
def test_an_epoch_with_order(nfs, mount, reader, delay):
    names = [(i, f"shard-{i:03d}.tar") for i in range(SHARDS)]
    for i, name in names:
        nfs.put(name, i, SIZE)
    one = reader()
    for _ in range(ROUNDS):
        seconds = {"plain": epoch(one, nfs.mounted("hard,nosharecache"), names)}  # a client of its own each: nothing is cached
        for how in ("unhinted", "hinted"):
            hfs = mount(nfs.mounted("hard,nosharecache"), memory="64M")
            if how == "hinted":
                hfs.order("".join(name + "\n" for _, name in names)).ok()
            seconds[how] = epoch(one, hfs.path, names)
            assert hfs.status()["origin_bytes"] == SHARDS * SIZE, "each byte once"
            hfs.stop()
        line = " ".join(f"{how} {value:.3f}" for how, value in seconds.items())
        print("cold epoch, seconds:", line)
        with open(os.path.join(os.environ["OUT"], "figures.txt"), "a", encoding="utf-8") as f:
            f.write(line + "\n")
