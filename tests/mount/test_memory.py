# SPDX-License-Identifier: Apache-2.0
"""Budgets are hard (law 6): the daemon's memory stays below the formula, and does not creep.

slots + bytes in flight + 24 B an order entry and its interned names + 256 B a node that the kernel holds
+ directory snapshots (at most 64 MiB) + 64 MiB.
"""
import os

import pytest

from lib import env, pattern, procs, tree

MIB = 1 << 20

pytestmark = pytest.mark.skipif(bool(env.SANITIZER), reason="a sanitizer's shadow memory is no figure of ours")


def peak_bytes(hfs):
    with open(f"/proc/{hfs.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:"))


class Load:
    """A tree of many files and one long order over it."""

    def __init__(self, tmp, files, entries):
        self.folder, self.files, self.entries = os.path.join(tmp, "origin"), files, entries
        tree.make_files(self.folder, files)
        with open(os.path.join(self.folder, "big"), "wb") as f:
            f.truncate(4 << 30)
        names = [f"d{i // 1000:04d}/f{i:06d}" for i in range(files)]
        self.name_bytes = sum(len(n) + 64 for n in names)  # 64 B: what a hash table needs beside the text
        lines = [names[i % files] if i % 8 == 0 else f"big\t{i * 4096 % (4 << 30)}\t4096" for i in range(entries)]
        self.text = ("\n".join(lines) + "\n").encode()


@pytest.mark.timeout(300)
def test_resident_memory_stays_below_its_formula(mount, tmp):
    load = Load(tmp, env.scaled(20_000, 200_000), env.scaled(300_000, 1_281_167))
    hfs = mount(load.folder, memory="32M")
    assert hfs.order(load.text, timeout=60).rc == 0
    assert hfs.status()["pending_entries"] > load.entries // 2, "the order was not taken"
    flying = 0
    walk = procs.Child(f'cd "{hfs.path}" && find . -type f -name "f*" | xargs -P2 -n 1000 cat >/dev/null && ls -lR >/dev/null')
    read = procs.Child([env.prog("mt_cmp"), "pread", hfs.p("big"), os.path.join(load.folder, "big"), 0, 200 * MIB])
    while walk.is_running() or read.is_running():
        flying = max(flying, hfs.status()["inflight_bytes"])
    walk.wait(1).ok(), read.wait(1).ok()
    allowed = 32 * MIB + flying + 24 * load.entries + load.name_bytes + 256 * (load.files + 300) + 64 * MIB + 64 * MIB
    assert peak_bytes(hfs) <= allowed, f"{peak_bytes(hfs) / MIB:.1f} MiB of {allowed / MIB:.1f}"
    assert hfs.rss_bytes() >= 8 * MIB, "slots were in use, so they must show"


@pytest.mark.timeout(120)
def test_an_entry_costs_at_most_24_bytes(mount, tmp):
    """The difference that 100,000 and a million more entries make, all of one file."""
    folder = os.path.join(tmp, "o")
    os.mkdir(folder)
    with open(os.path.join(folder, "big"), "wb") as f:
        f.truncate(8 << 30)
    hfs = mount(folder, memory="8M")
    procs.run(f'echo off > "{hfs.ctl}/prefetch"', check=True)
    sizes = []
    for count in (100_000, 1_100_000):
        text = "".join(f"big\t{i * 4096}\t4096\n" for i in range(count)).encode()
        assert hfs.order(text, timeout=60).rc == 0
        assert hfs.status()["pending_entries"] == count
        sizes.append(hfs.rss_bytes())
    assert sizes[1] - sizes[0] <= 24 * 1_000_000 + 8 * MIB, sizes


@pytest.mark.timeout(200)
def test_memory_does_not_creep(mount, tmp):
    """The same order and the same readers again and again: after a few rounds nothing grows any more."""
    load = Load(tmp, 3000, 20_000)
    hfs = mount(load.folder, memory="8M")
    seen = []
    for _ in range(env.scaled(8, 60)):
        assert hfs.order(load.text).rc == 0
        procs.run(f'cd "{hfs.path}" && find . -type f -name "f*" | xargs -n 1000 cat >/dev/null', check=True)
        procs.run([env.prog("mt_cmp"), "direct", hfs.p("big"), os.path.join(load.folder, "big"), 0, 20 * MIB], check=True)
        seen.append(hfs.rss_bytes())
    assert hfs.order("@cancel\n").rc == 0
    assert seen[-1] - seen[3] <= 4 * MIB, [s // 1024 for s in seen]


def test_descriptors_do_not_creep(mount, tmp):
    folder = os.path.join(tmp, "o")
    pattern.make_many(folder, 300, 5000)
    hfs = mount(folder)
    procs.run(f'cat "{hfs.path}"/* | wc -c', check=True)
    first = hfs.descriptors()
    for _ in range(5):
        procs.run(f'cat "{hfs.path}"/* | wc -c; ls -lR "{hfs.path}"; cat "{hfs.ctl}/status"', check=True)
    assert hfs.descriptors() <= first + 16, (first, hfs.descriptors())
