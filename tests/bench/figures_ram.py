# SPDX-License-Identifier: Apache-2.0
"""RAM is spent once: a dataset larger than the RAM of its memory cgroup, registered with figures.py.

Daemon and reader share a cgroup (v1 or v2) of LIMIT bytes; the kernel's page cache of the mount is charged to it as the slots are. 512 MiB
are read three times, each time in a new order of samples of 1 MiB, through the page cache. What counts is what the origin gave in
the second and third epoch, and who holds the RAM at the end.
"""
import contextlib
import os
import random
import sys

import figures as f

MIB = f.MIB
FILE, LIMIT, EPOCHS = 512 * MIB, 256 * MIB, 3


def cgroup_root():
    """(folder, limit file) of a memory controller that we may use, or None."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(root, f"hintfs-bench-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        if os.path.exists(os.path.join(folder, limit)):
            return folder, limit
        os.rmdir(folder)
    return None


def put(folder, name, value):
    with open(os.path.join(folder, name), "w") as out:
        out.write(str(value))


@contextlib.contextmanager
def inside(limit_bytes):
    """This process and what it starts, in a cgroup of its own; ends where it came from."""
    found = cgroup_root()
    if not found:
        sys.exit("figures_ram: no memory cgroup can be made here: run as root, with the memory controller")
    folder, limit = found
    try:
        put(folder, limit, limit_bytes)
        put(folder, "cgroup.procs", os.getpid())
        yield folder
    finally:
        put(os.path.dirname(folder), "cgroup.procs", os.getpid())
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def held(folder):
    """Bytes of files in the page cache, slots (shared memory) apart; and the slots."""
    with open(os.path.join(folder, "memory.stat")) as stat:
        words = dict(line.split() for line in stat)
    shmem = int(words.get("total_shmem", words.get("shmem", 0)))
    return int(words.get("total_cache", words.get("file", 0))) - shmem, shmem


def epochs():
    return [random.Random(e).sample(range(FILE // MIB), FILE // MIB) for e in range(EPOCHS)]


def read_epoch(path, order):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    buf = bytearray(MIB)
    for i in order:
        if os.preadv(fd, [buf], i * MIB) != MIB:
            raise SystemExit(f"figures_ram: {path}: short read")
    os.close(fd)


def play(path, counted):
    """Origin bytes an epoch."""
    out = []
    for order in epochs():
        before = counted()
        read_epoch(path, order)
        out.append(counted() - before)
    return out


def run(b, slow, memory, is_hinted):
    with inside(LIMIT) as folder, b.mount(slow.mountpoint, memory=memory) as m:
        if is_hinted:
            with open(m.order, "w") as out:
                for e, order in enumerate(epochs()):
                    out.write(f"@epoch {e}\n" + "".join(f"train.bin\t{i * MIB}\t{MIB}\n" for i in order))
        got = play(os.path.join(m.path, "train.bin"), lambda: int(m.status()["origin_bytes"]))
        return got, held(folder)


@f.figure
def ram_once(b):
    """Three shuffled epochs of 512 MiB with 256 MiB of RAM: origin bytes of the later ones, by how the RAM is split."""
    source = b.data.big(FILE)
    for memory, is_hinted in [(memory, is_hinted) for is_hinted in (False, True) for memory in ("16M", "64M", "128M", "192M")]:
        runs = []
        for _ in range(b.rounds):
            with b.origin(source) as slow:
                runs.append(run(b, slow, memory, is_hinted))
        later = f.median([(got[1] + got[2]) / (2 * FILE) for got, _ in runs])
        first = f.median([got[0] / FILE for got, _ in runs])
        cache, slots = (f.median([h[i] for _, h in runs]) / MIB for i in (0, 1))
        b.row(f"RAM 256 MiB, memory={memory}, {'hinted' if is_hinted else 'no hints'}: later epochs' bytes / file", later, "-",
              f"first {first:.3f}; at the end page cache {cache:.0f} MiB, slots {slots:.0f} MiB")
