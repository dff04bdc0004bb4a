#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Known orders on a mount, against what no policy can beat: seconds and origin bytes over their bounds.

usage: figures_grid.py [--scratch DIR] [--json FILE] [--rounds N] [--part K/N] [CASE ...]      (no CASE: all; --list)

grid     global shuffle of 1 MiB samples, cache share c x transfer / compute phi (asked: time <= 1.10, bytes <= 1.08)
samples  110 KB samples in a file of 8 MiB pages, dataset 4 x cache (bytes <= 1.10 x ((N - C) + rounding to 4 KiB))
ranks    8 ranks x 4 workers, an order per rank, shared pages (bytes: each once; time <= 1.05)
nohint   nobody writes an order: the same each epoch, a new one each epoch

The slow origin is slowfs, 1 ms and 100 MB/s. Loaders read with O_DIRECT, so that only slots count as cache; they
hold 16 samples a rank at most, in order, by 4 threads; the trainer computes at a fixed pace. Bounds of one rank come
from hintfs-sim. The clock starts before the first byte of the order is written. Rounds are interleaved; medians.
"""
import json
import os
import random
import statistics
import subprocess
import tempfile
import time

from figures import BUILD, MB, MIB, Bench, arguments, write_json
import slowfsctl

LINK = 100 * MB
SHARES, PHIS = (0.1, 0.25, 0.5, 0.75, 0.9), (0.5, 0.8, 1.0, 1.25, 2, 4)
AHEAD, WORKERS = 16, 4


def load(b, path, ranks, tau_s, is_direct=True):
    """Read and train; the lists were written before."""
    lists = []
    for k, reads in enumerate(ranks):
        lists.append(b.list_file((f"{off}\t{n}" for off, n in reads), f"rank{k}"))
    argv = [os.path.join(BUILD, "tests", "bench", "bench_loader"), "--workers", str(WORKERS), "--ahead", str(AHEAD), "--tau-ns",
            str(int(tau_s * 1e9)), "--direct", "1" if is_direct else "0", path] + lists
    return lambda: json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)["wall_s"]


def play(b, mount, name, ranks, tau_s, texts):
    """Seconds from the first byte of the orders to the last sample."""
    run = load(b, os.path.join(mount.path, name), ranks, tau_s)
    begun = time.monotonic()
    for stream, text in texts.items():
        target = mount.order if stream is None else os.path.join(mount.ctl, "streams", stream)
        with open(target, "w") as f:
            f.write(text)
    run()
    return time.monotonic() - begun


def order_text(name, epochs, batch):
    lines = []
    for e, reads in enumerate(epochs):
        lines.append(f"@epoch {e}")
        for i, (off, n) in enumerate(reads):
            if i % batch == 0:
                lines.append(f"@batch {i // batch}")
            lines.append(f"{name}\t{off}\t{n}")
    return "\n".join(lines) + "\n"


def bounds(name, size, text, memory, tau_s):
    """Of all epochs: least seconds, least bytes, and what the simulator says that hintfs takes."""
    with tempfile.NamedTemporaryFile("w") as sizes:
        sizes.write(f"{name}\t{size}\n")
        sizes.flush()
        plain = "".join(line for line in text.splitlines(True) if not line.startswith("@batch"))
        out = subprocess.run([os.path.join(BUILD, "tools", "hintfs-sim"), "-", "--sizes", sizes.name, "--memory", str(memory), "--latency", "1ms",
                              "--bandwidth", str(LINK), "--workers", "0", "--batch-bytes", "0", "--compute-per-batch", f"{int(tau_s * 1e9)}ns",
                              "--policy", "hintfs", "--json"], input=plain, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = json.loads(out)
    return tuple(sum(r[k] for r in rows) for k in ("bound_time_s", "bound_bytes", "time_s", "origin_bytes"))


class Grid(Bench):
    def __init__(self, scratch, rounds):
        super().__init__(scratch, rounds)
        self.cells = []

    def origin(self, source):
        os.makedirs(self.path("origin"), exist_ok=True)
        return slowfsctl.SlowFS(source, self.path("origin"), latency="1ms", bandwidth=str(LINK))

    def file(self, size):
        def build(path):
            with open(os.path.join(path, "train.bin"), "wb") as f:
                for i in range(0, size, 16 * MIB):
                    f.write(random.Random(i).randbytes(min(16 * MIB, size - i)))
        return self.data._make(f"grid-{size}", build)

    def once(self, size, memory, ranks, tau_s, texts):
        source = self.file(size)
        with self.origin(source) as far, self.mount(far.mountpoint, memory=str(memory), immutable=True) as m:
            seconds = play(self, m, "train.bin", ranks, tau_s, texts)
            status = m.status()
        return seconds, int(status["origin_bytes"]), status

    def say(self, case, what, time_x, bytes_x, note):
        self.cells.append({"case": case, "cell": what, "time": time_x, "bytes": bytes_x, "note": note})
        print(f"{case:<8} {what:<26} time {time_x:6.3f}  bytes {bytes_x:6.3f}   {note}", flush=True)


def grid(b, part, parts):
    n, epochs = 128, 3
    r = random.Random(11)
    orders = [[(i * MIB, MIB) for i in r.sample(range(n), n)] for _ in range(epochs)]
    text = order_text("train.bin", orders, 8)
    cells = [(c, phi) for phi in PHIS for c in SHARES]
    for k, (c, phi) in enumerate(cells):
        if k % parts != part:
            continue
        tau_s, memory = MIB / LINK / phi, int(c * n) * MIB
        least_s, least, sim_s, sim_bytes = bounds("train.bin", n * MIB, text, memory, tau_s)
        got = [b.once(n * MIB, memory, [sum(orders, [])], tau_s, {None: text}) for _ in range(b.rounds)]
        s, moved = statistics.median(g[0] for g in got), statistics.median(g[1] for g in got)
        st = got[-1][2]
        b.say("grid", f"c {c:4.2f} phi {phi:4.2f}", s / least_s, moved / least,
              f"{s:.2f} s of {least_s:.2f}; sim {sim_s / least_s:.3f} {sim_bytes / least:.3f}; misses {st['demand_misses']}, "
              f"wasted {int(st['prefetch_wasted_bytes']) // MIB} MiB, late {int(st['prefetch_late_bytes']) // MIB} MiB")


def samples(b, part, parts):
    """110,000 bytes each, none over the border of an 8 MiB page, as FFCV writes them."""
    per, pages, size = 8 * MIB // 110000, 64, 110000  # at a quarter of that the window is a large part of the cache
    r = random.Random(12)
    where = [(p * 8 * MIB + i * size, size) for p in range(pages) for i in range(per)]
    orders = [r.sample(where, len(where)) for _ in range(3)]
    text = order_text("train.bin", orders, 16)
    memory = pages * 8 * MIB // 4
    tau_s = size / LINK / 0.8
    got = [b.once(pages * 8 * MIB, memory, [sum(orders, [])], tau_s, {None: text}) for _ in range(b.rounds)]
    rounded = sum(-(-(off + n) // 4096) * 4096 - off // 4096 * 4096 for off, n in where)
    share = memory / (len(where) * size)
    least = rounded * (1 + 2 * (1 - share))
    least_s = max(3 * len(where) * tau_s, least / LINK)
    s, moved = statistics.median(g[0] for g in got), statistics.median(g[1] for g in got)
    b.say("samples", "110 KB, 4 x cache", s / least_s, moved / least, f"{s:.2f} s, {moved / MIB:.0f} MiB of {least / MIB:.0f}")


def ranks(b, part, parts):
    """Samples of 128 KiB, dealt out to 8 ranks: each 1 MiB page is wanted by several."""
    n, size, r = 128, 131072, random.Random(13)
    orders = [[(i * size, size) for i in r.sample(range(n * 8), n * 8)] for _ in range(3)]
    each = [[[e[k] for k in range(g, len(e), 8)] for e in orders] for g in range(8)]
    tau_s = 8 * size / LINK / 0.8
    warm = os.path.join(b.file(n * MIB), "train.bin")
    for memory, what in ((140 * MIB, "all fits"), (n * MIB // 2, "half fits")):
        texts = {f"rank{g}": order_text("train.bin", each[g], 8) for g in range(8)}
        got = [b.once(n * MIB, memory, [sum(e, []) for e in each], tau_s, texts) for _ in range(b.rounds)]
        s, moved = statistics.median(g[0] for g in got), statistics.median(g[1] for g in got)
        kept = min(n * MIB, memory)
        least = n * MIB + 2 * (n * MIB - kept)
        least_s = max(3 * n * tau_s, least / LINK)
        with open(warm, "rb") as f:  # the same loader on the file itself, in the page cache: what the machine allows
            f.read()
        local = load(b, warm, [sum(e, []) for e in each], tau_s, is_direct=False)()
        b.say("ranks", f"8 x 4 workers, {what}", s / least_s, moved / least,
              f"{s:.2f} s, {moved / MIB:.0f} MiB of {least / MIB:.0f}; local file, warm {local / least_s:.3f}")


def nohint(b, part, parts):
    n, r = 128, random.Random(14)
    first = [(i * MIB, MIB) for i in r.sample(range(n), n)]
    news = [[(i * MIB, MIB) for i in r.sample(range(n), n)] for _ in range(4)]
    memory, tau_s = n * MIB // 2, MIB / LINK / 0.8
    keep = n * MIB + 3 * n * MIB // 2
    for what, orders in (("same order", [first] * 4), ("new order", news)):
        bare = b.once(n * MIB, memory, [sum(orders, [])], tau_s, {})
        hinted = b.once(n * MIB, memory, [sum(orders, [])], tau_s, {None: order_text("train.bin", orders, 8)})
        b.say("nohint", what + ", 4 epochs", bare[0] / hinted[0], bare[1] / keep,
              f"time over the hinted run's {hinted[0]:.2f} s, bytes over never-evict; hinted bytes {hinted[1] / keep:.3f}")


CASES = {f.__name__: f for f in (grid, samples, ranks, nohint)}


def main():
    args = arguments(__doc__, CASES, 1, "/var/tmp/hintfs-grid",
                     [("--part", {"default": "0/1", "help": "K/N: every N-th cell of the grid, from the K-th on"})])
    part, parts = map(int, args.part.split("/"))
    b = Grid(args.scratch, args.rounds)
    for name in args.names or CASES:
        CASES[name](b, part, parts)
    write_json(args.json, b.cells)


if __name__ == "__main__":
    main()
