# SPDX-License-Identifier: Apache-2.0
"""Figures of the disk tier, registered with figures.py: a warm tier against its disk, filling against not, small files.

The tier is warmed by hintctl; then all mounts are made anew and all page caches dropped. Nothing of the origin is slow here but where a
figure says so.
"""
import os
import resource
import shutil
import subprocess

import figures as f

MIB = f.MIB
DEPTH = 8  # chunks of 1 MiB that the daemon reads at a time: large_reads_max() in cache/tier.c


def du(path):
    return int(subprocess.run(["du", "-s", "--block-size=1", path], check=True, stdout=subprocess.PIPE).stdout.split()[0])


def cache(b):
    path = b.path("cache")
    shutil.rmtree(path, ignore_errors=True)
    return path


def opts(path, **more):
    return {"cache_dir": path, "cache_size": "8G", "cache_free": "0", **more}


def warm(b, source, path, **more):
    """A tier that has all of source; its status then."""
    with b.mount(source, **opts(path, **more)) as m:
        f.call([os.path.join(f.BUILD, "tools", "hintctl"), "warm", m.path], stdout=subprocess.DEVNULL)
        return m.status()


def cold(b, root, listing, **kw):
    f.drop_caches()
    return b.read(root, listing, **kw)


@f.figure
def tier_warm_read(b):
    """1 GiB of shards from a warm tier, page cache dropped, verified; beside the same bytes read from that disk directly, and beside
    what can be had of the tier's own files with requests such as the daemon makes (1 MiB, as many at a time) and no mount."""
    source, path = b.data.shards(), cache(b)
    listing = b.list_file(sorted(os.listdir(source)))
    status = warm(b, source, path)
    b.row("memory of the tier's index, bytes a chunk", int(status["tier_index_bytes"]) / int(status["tier_chunks"]), "<= 64",
          f"{status['tier_chunks'].strip()} chunks of {status['tier_files_big'].strip()} files, on the mount")
    data = b.list_file(sorted(os.path.relpath(os.path.join(d, x), path) for d, _, fs in os.walk(path) for x in fs if x.endswith(".d")),
                       "tier-list")
    ours, raw, bound, alone, raw_alone = [], [], [], [], []
    for _ in range(b.rounds):
        bound.append(cold(b, path, data, threads=DEPTH, is_direct=True)["wall_s"])
        raw.append(cold(b, source, listing, threads=4)["wall_s"])
        with b.mount(source, **opts(path)) as m:
            ours.append(cold(b, m.path, listing, threads=4)["wall_s"])
            status = m.status()
        raw_alone.append(cold(b, source, listing)["wall_s"])
        with b.mount(source, **opts(path)) as m:
            alone.append(cold(b, m.path, listing)["wall_s"])
    b.row("warm disk tier, verified, cold page cache: speed / raw disk", f.median(raw) / f.median(ours), ">= 0.8",
          f"{f.median(ours):.2f} s, raw {f.median(raw):.2f} s; origin bytes {status['origin_bytes'].strip()}")
    b.row(f"  the tier's files without a mount, {DEPTH} x 1 MiB at a time: speed / raw disk", f.median(raw) / f.median(bound), "printed",
          f"{f.median(bound):.2f} s")
    b.row("  one reader, no hints: speed / raw disk", f.median(raw_alone) / f.median(alone), "printed", f"{f.median(alone):.2f} s")


@f.figure
def tier_filling(b):
    """The first epoch over the slow link, hinted, with the tier being filled and without one."""
    source = b.data.shards(n=32)
    listing = b.list_file(f.shuffled(sorted(os.listdir(source))))
    filling, plain = [], []
    for _ in range(b.rounds):
        for is_filling in (False, True):
            more = opts(cache(b)) if is_filling else {}
            with b.origin(source), b.mount(b.path("origin"), **more) as m:
                (filling if is_filling else plain).append(b.read(m.path, listing, 2, order_to=m.order)["wall_s"])
    b.row("first epoch, tier filling / without: time", f.median(filling) / f.median(plain), "<= 1.03",
          f"{f.median(filling):.2f} s, without {f.median(plain):.2f} s")


@f.figure
def tier_small_files(b):
    """20,000 files of 30 KB: space in packs, memory of the index, and a cold read beside ext4's own; and beside a FUSE server that has
    them all in memory and does nothing but answer LOOKUP and READ, as hintfs does (no OPEN, no RELEASE): the messages' own time."""
    source, path = b.data.small(), cache(b)
    names = [os.path.relpath(os.path.join(d, x), source) for d, _, fs in os.walk(source) for x in fs]
    listing = b.list_file(f.shuffled(names))
    status = warm(b, source, path, immutable=True)
    b.row("20,000 x 30 KB: tier space / bytes", du(path) / (len(names) * 30000), "<= 1.05")
    b.row("  memory of the index, bytes a file", int(status["tier_index_bytes"]) / len(names), "<= 200")
    # passthrough_ll keeps a descriptor for each of them: where it cannot have so many it does not come to the end.
    rival = f.build_rival(b) if resource.getrlimit(resource.RLIMIT_NOFILE)[1] > len(names) + 1000 else None
    bound = f.build_peer(b, "tests/bench/memory_fs.c")
    in_memory = b.list_file(f.shuffled([f"f{i}" for i in range(len(names))]), "memory-list")
    for threads in (8, 1):
        times = {kind: [] for kind in ("native", "order", "plain", "memory_fs", "passthrough_ll")}
        for _ in range(b.rounds):
            times["native"].append(cold(b, source, listing, threads=threads, block=65536)["wall_s"])
            for kind in ("order", "plain"):
                with b.mount(source, **opts(path, immutable=True)) as m:
                    times[kind].append(cold(b, m.path, listing, threads=threads, block=65536,
                                            order_to=m.order if kind == "order" else None)["wall_s"])
            if bound:
                with f.peer_mount(b, [bound, None, 30000, len(names)]) as mnt:
                    times["memory_fs"].append(cold(b, mnt, in_memory, threads=threads, block=65536)["wall_s"])
            if rival:  # the same cold files, and as little as a FUSE server can do with them
                with f.peer_mount(b, f.rival_argv(rival, source)) as mnt:
                    times["passthrough_ll"].append(cold(b, mnt, listing, threads=threads, block=65536)["wall_s"])
        native = f.median(times.pop("native"))
        for kind, asked in (("order", ">= 1.0" if threads == 8 else ""), ("plain", ""), ("memory_fs", "printed"), ("passthrough_ll", "printed")):
            if times[kind]:
                b.row(f"  cold, {threads} readers, {kind}: speed / cold ext4", native / f.median(times[kind]), asked,
                      f"{f.median(times[kind]):.2f} s, ext4 {native:.2f} s")
