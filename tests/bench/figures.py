#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of the README: each a ratio of interleaved runs on one machine, against a slow origin.

usage: figures.py [--rounds N] [--scratch DIR] [--json FILE] [FIGURE ...]      (no FIGURE: all; --list names them)

The slow origin is slowfs with 1 ms latency on every operation and 200 MB/s in all. Before every run all page
caches are dropped and the mounts are made anew; the clock starts before the first byte of the order is written. Medians of
the rounds are printed. Nothing is asserted: machines are shared and noisy, read the ratios.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("HINTFS_BUILD", os.path.join(ROOT, "build"))
sys.path.insert(0, os.path.join(ROOT, "tests", "fault"))
import slowfsctl  # noqa: E402

MB = 1000 * 1000
MIB = 1 << 20
LINK = 200 * MB
LATENCY_S = 0.001
PLAIN_THREADS = 32  # straight on the origin; twelve could saturate the link
FIGURES = {}


def figure(f):
    FIGURES[f.__name__] = f
    return f


def median(values):
    return statistics.median(values)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3\n")


def call(argv, **kw):
    return subprocess.run([os.fspath(a) for a in argv], check=True, **kw)


# --- data ---------------------------------------------------------------------------------------
class Data:
    """Directories of random bytes, made once."""

    def __init__(self, scratch):
        self.root = os.path.join(scratch, "data")

    def _make(self, name, build):
        path = os.path.join(self.root, name)
        if not os.path.exists(path + ".done"):
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
            build(path)
            with open(path + ".done", "w"):
                pass
        return path

    def shards(self, n=64, size=16 * MIB):
        def build(path):
            for i in range(n):
                with open(os.path.join(path, f"shard-{i:06d}.tar"), "wb") as f:
                    f.write(random.Random(i).randbytes(size))
        return self._make(f"shards-{n}-{size}", build)

    def big(self, size=4 << 30):
        def build(path):
            with open(os.path.join(path, "train.bin"), "wb") as f:
                for i in range(size // (16 * MIB)):
                    f.write(random.Random(i).randbytes(16 * MIB))
        return self._make(f"big-{size}", build)

    def small(self, n=20000, size=30000):
        def build(path):
            pool = random.Random(1).randbytes(4 * MIB)
            for i in range(n):
                folder = os.path.join(path, f"class{i % 20:02d}")
                if i < 20:
                    os.makedirs(folder)
                with open(os.path.join(folder, f"img{i:06d}.jpg"), "wb") as f:
                    f.write(pool[i:i + size])
        return self._make(f"small-{n}-{size}", build)


# --- mounts ---------------------------------------------------------------------------------------
class Bench:
    def __init__(self, scratch, rounds):
        self.scratch, self.rounds, self.data = scratch, rounds, Data(scratch)
        self.rows = []

    def path(self, *parts):
        return os.path.join(self.scratch, *parts)

    @contextlib.contextmanager
    def origin(self, source):
        mnt = self.path("origin")
        os.makedirs(mnt, exist_ok=True)
        drop_caches()
        with slowfsctl.SlowFS(source, mnt, latency="1ms", bandwidth=str(LINK), nfs_cache=True) as slow:
            yield slow

    @contextlib.contextmanager
    def mount(self, source, memory="256M", **opts):
        mnt, ctl = self.path("mnt"), self.path("ctl")
        for d in (mnt, ctl):
            os.makedirs(d, exist_ok=True)
        words = [f"memory={memory}", f"ctl={ctl}"] + [k.replace("_", "-") if v is True else f"{k}={v}" for k, v in opts.items()]
        log = open(self.path("daemon.log"), "ab")
        daemon = subprocess.Popen([os.path.join(BUILD, "fs", "hintfs"), "-f", "-o", ",".join(words), source, mnt],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 20
            while subprocess.run(["mountpoint", "-q", mnt]).returncode or not self.status(ctl).get("slots_total"):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"figures: the mount did not come up: see {self.path('daemon.log')}")
                time.sleep(0.01)
            self.wait_slots(ctl)
            yield Mount(self, mnt, ctl, daemon)
        finally:
            subprocess.run(["umount", mnt], stderr=subprocess.DEVNULL)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                subprocess.run(["umount", "-l", mnt])
            log.close()

    def status(self, ctl):
        try:
            with open(os.path.join(ctl, "status")) as f:
                return dict(line.split(None, 1) for line in f.read().splitlines() if " " in line)
        except OSError:
            return {}

    def wait_slots(self, ctl):
        """The pool is touched in the background; first touch is not what is measured."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            s = self.status(ctl)
            if s.get("slots_ready", s.get("slots_total")) == s.get("slots_total"):
                return
            time.sleep(0.01)

    def list_file(self, lines, name="list"):
        path = self.path(name)
        with open(path, "w") as f:
            f.writelines(line + "\n" for line in lines)
        return path

    def read(self, root, listing, threads=1, compute_ns=0, order_to=None, block=MIB, passes=1, is_direct=False):
        argv = [os.path.join(BUILD, "tests", "bench", "bench_reader"), "--threads", str(threads), "--block", str(block),
                "--compute-ns", str(compute_ns), "--passes", str(passes)]
        if is_direct:
            argv += ["--direct", "1"]
        if order_to:
            argv += ["--order-to", order_to]
        out = call(argv + [root, listing], stdout=subprocess.PIPE).stdout
        return json.loads(out)

    def row(self, name, value, asked, note=""):
        self.rows.append({"figure": name, "value": value, "asked": asked, "note": note})
        print(f"{name:<58} {value:>10.3f}   {asked:<12} {note}", flush=True)


class Mount:
    def __init__(self, bench, path, ctl, daemon):
        self.bench, self.path, self.ctl, self.daemon = bench, path, ctl, daemon
        self.order = os.path.join(ctl, "order")

    def status(self):
        return self.bench.status(self.ctl)


def shuffled(items, seed=7):
    items = list(items)
    random.Random(seed).shuffle(items)
    return items


# --- figures ------------------------------------------------------------------------------------------
def shards_case(b, compute_factor, kinds):
    """Seconds and origin bytes of each kind, a list a round."""
    source = b.data.shards()
    total = 64 * 16 * MIB
    compute_s = compute_factor * total / LINK
    readers = 2
    compute_ns = compute_s * readers / (total / MIB) * 1e9  # each reader has half of the bytes and works all the time
    listing = b.list_file(shuffled(sorted(os.listdir(source))))
    results = {k: [] for k in kinds}
    for _ in range(b.rounds):
        for kind in kinds:
            if kind == "local":
                call(["cat"] + [os.path.join(source, f) for f in os.listdir(source)], stdout=subprocess.DEVNULL)
                r = b.read(source, listing, readers, compute_ns)
                r["origin"] = 0
            elif kind == "direct":
                with b.origin(source) as slow:
                    r = b.read(b.path("origin"), listing, readers, compute_ns)
                    r["origin"] = slow.totals()["bytes"]
            else:
                with b.origin(source) as slow, b.mount(b.path("origin")) as m:
                    slow.reset()
                    r = b.read(m.path, listing, readers, compute_ns, order_to=m.order if kind == "hinted" else None)
                    r["origin"] = slow.totals()["bytes"]
                    r["status_origin"] = int(m.status().get("origin_bytes", 0))
            results[kind].append(r)
    return results, total


@figure
def shards_hinted_compute_bound(b):
    res, total = shards_case(b, 1.2, ["local", "hinted", "plain", "direct"])
    local = median([r["wall_s"] for r in res["local"]])
    hinted = median([r["wall_s"] for r in res["hinted"]])
    plain = median([r["wall_s"] for r in res["plain"]])
    direct = median([r["wall_s"] for r in res["direct"]])
    b.row("64 shards, order, compute=1.2x transfer: time/local", hinted / local, "<= 1.05", f"{hinted:.2f} s, local {local:.2f} s")
    b.row("  origin bytes / dataset", median([r["origin"] for r in res["hinted"]]) / total, "<= 1.01",
          f"status/slowfs {median([r['status_origin'] / max(r['origin'], 1) for r in res['hinted']]):.4f}")
    b.row("  without hints: time/local", plain / local, "<= 1.2", f"{plain:.2f} s")
    b.row("  without hints: time/direct origin", plain / direct, "<= 1.0", f"direct {direct:.2f} s")
    b.row("  without hints: origin bytes / dataset", median([r["origin"] for r in res["plain"]]) / total, "")


@figure
def shards_hinted_link_bound(b):
    res, total = shards_case(b, 1 / 1.2, ["hinted"])
    hinted = median([r["wall_s"] for r in res["hinted"]])
    b.row("64 shards, order, transfer=1.2x compute: time*link/bytes", hinted * LINK / total, "<= 1.08", f"{hinted:.2f} s")


def samples(n=8192, size=65536, file_size=4 << 30):
    places = random.Random(3).sample(range(file_size // size), n)
    return [f"train.bin\t{p * size}\t{size}" for p in places]


def plain_rate(b, source, listing):
    """Items a second of many readers straight on the slow origin: what the same machine can have of it without hintfs."""
    with b.origin(source):
        r = b.read(b.path("origin"), listing, PLAIN_THREADS, block=65536)
    return r["items"] / r["wall_s"]


@figure
def random_samples(b):
    source = b.data.big()
    lines = samples()
    listing = b.list_file(lines)
    link_rate = LINK / 65536
    rates, amps, plain_rates, direct = [], [], [], []
    for _ in range(b.rounds):
        with b.origin(source) as slow, b.mount(b.path("origin")) as m:
            slow.reset()
            r = b.read(m.path, listing, 1, order_to=m.order, block=65536)
            rates.append(r["items"] / r["wall_s"])
            amps.append(slow.totals()["bytes"] / r["bytes"])
        direct.append(plain_rate(b, source, listing))
    short = b.list_file(lines[:1024], "short")
    with b.origin(source) as slow, b.mount(b.path("origin")) as m:
        r = b.read(m.path, short, 1, block=65536)
        plain_rates.append(r["items"] / r["wall_s"])
    b.row("8,192 random 64 KiB samples, order: rate/link", median(rates) / link_rate, ">= 0.8",
          f"{median(rates):.0f}/s of {link_rate:.0f}/s; without hints {median(plain_rates):.0f}/s")
    b.row("  origin bytes / needed", median(amps), "<= 1.05")
    b.row(f"  {PLAIN_THREADS} plain readers of the origin: rate/link", median(direct) / link_rate, "printed", f"{median(direct):.0f}/s")


@figure
def small_files(b):
    source = b.data.small()
    names = shuffled(os.path.relpath(os.path.join(d, f), source) for d, _, fs in os.walk(source) for f in fs)
    listing = b.list_file(names)
    link_rate = LINK / 30000
    for opts, label, asked in (({"nocto": True}, "nocto", ">= 0.75"), ({}, "default", ""), ({"immutable": True}, "immutable", "")):
        rates, amps = [], []
        for _ in range(b.rounds if opts else 1):
            with b.origin(source) as slow, b.mount(b.path("origin"), **opts) as m:
                slow.reset()
                r = b.read(m.path, listing, 8, order_to=m.order, block=65536)
                rates.append(r["items"] / r["wall_s"])
                amps.append(slow.totals()["bytes"] / r["bytes"])
        b.row(f"20,000 x 30 KB files, order, 8 readers, {label}: rate/link", median(rates) / link_rate, asked,
              f"{median(rates):.0f}/s of {link_rate:.0f}/s, bytes {median(amps):.3f}")


@figure
def wrong_order(b):
    """Every line of the order is wrong: other shards than those that are read."""
    source = b.data.shards()
    names = shuffled(sorted(os.listdir(source)))
    listing = b.list_file(names[:32])
    wrong = b.list_file(names[32:], "wrong")
    times, plain, byte, plain_byte = [], [], [], []
    for _ in range(b.rounds):
        for is_wrong in (True, False):
            with b.origin(source) as slow, b.mount(b.path("origin")) as m:
                slow.reset()
                if is_wrong:
                    with open(wrong, "rb") as f, open(m.order, "wb") as o:
                        o.write(f.read())
                r = b.read(m.path, listing, 2)
                (times if is_wrong else plain).append(r["wall_s"])
                (byte if is_wrong else plain_byte).append(slow.totals()["bytes"])
    b.row("order wrong in every line: time / unhinted", median(times) / median(plain), "<= 1.25")
    b.row("  bytes / unhinted", median(byte) / median(plain_byte), "<= 2")


def build_peer(b, source):
    """A program against libfuse, from the sources of the subproject; None where they are not there."""
    fuse = os.path.join(ROOT, "subprojects", "fuse-3.17.2")
    built = os.path.join(BUILD, "subprojects", "fuse-3.17.2")
    source = os.path.join(ROOT, source)
    library, binary = os.path.join(built, "lib", "libfuse3.a"), b.path(os.path.basename(source)[:-2])
    if not os.path.exists(source) or not os.path.exists(library):
        return None
    call(["cc", "-O2", "-w", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", f"-I{fuse}/include", f"-I{built}", f"-I{fuse}", source, library,
          "-o", binary, "-lpthread", "-ldl", "-lrt"])
    return binary


def build_rival(b):
    return build_peer(b, "subprojects/fuse-3.17.2/example/passthrough_ll.c")


@contextlib.contextmanager
def peer_mount(b, argv, read_ahead_kb=None):
    """argv with the mount point for None."""
    mnt = b.path("rival")
    os.makedirs(mnt, exist_ok=True)
    p = subprocess.Popen([mnt if a is None else str(a) for a in argv], start_new_session=True)
    try:
        while subprocess.run(["mountpoint", "-q", mnt]).returncode:
            if p.poll() is not None:
                raise SystemExit(f"figures: {argv[0]} did not come up")
            time.sleep(0.01)
        if read_ahead_kb:
            dev = os.stat(mnt).st_dev
            with open(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb", "w") as f:
                f.write(f"{read_ahead_kb}\n")
        yield mnt
    finally:
        subprocess.run(["umount", mnt], check=False)
        p.wait()


def rival_argv(binary, source):
    return [binary, "-f", "-o", f"source={source},cache=always", None]


@figure
def page_cache_reread(b):
    """1 GiB in the page cache, read again; beside libfuse's passthrough_ll and ext4."""
    source = b.data.shards()
    listing = b.list_file(sorted(os.listdir(source)))
    ours, native, rival = [], [], []
    rival_bin = build_rival(b)
    for _ in range(b.rounds):
        drop_caches()
        b.read(source, listing)
        native.append(b.read(source, listing)["wall_s"])
        with b.mount(source, memory="256M") as m:
            b.read(m.path, listing)
            ours.append(b.read(m.path, listing)["wall_s"])
        if rival_bin:
            with peer_mount(b, rival_argv(rival_bin, source)) as mnt:
                b.read(mnt, listing)
                rival.append(b.read(mnt, listing)["wall_s"])
    if rival:
        b.row("re-read from the page cache: speed / passthrough_ll", median(rival) / median(ours), ">= 0.9")
    b.row("re-read from the page cache: speed / ext4", median(native) / median(ours), "printed")


@figure
def first_read_from_slots(b):
    """All of it in slots, nothing in the mount's page cache. Its peers get requests as large: passthrough_ll, whose file is in ext4's
    page cache, and a server that answers from its own memory, which is what the kernel allows."""
    source = b.data.shards(n=8)
    names = sorted(os.listdir(source))
    listing, data = b.list_file(names), b.list_file(["data"], "data-list")
    total = 8 * 16 * MIB
    times = {"hintfs": [], "native": [], "passthrough_ll": [], "memory_fs": []}
    peers = {"passthrough_ll": build_rival(b), "memory_fs": build_peer(b, "tests/bench/memory_fs.c")}
    for _ in range(b.rounds + 2):
        b.read(source, listing)
        times["native"].append(b.read(source, listing)["wall_s"])
        with b.mount(source, memory="512M") as m:
            with open(m.order, "w") as o:
                o.write(open(listing).read())
            with open(os.path.join(m.ctl, "wait"), "w") as w:
                w.write(names[-1] + "\n")
            times["hintfs"].append(b.read(m.path, listing)["wall_s"])
        if peers["passthrough_ll"]:
            b.read(source, listing)
            with peer_mount(b, rival_argv(peers["passthrough_ll"], source), read_ahead_kb=1024) as mnt:
                times["passthrough_ll"].append(b.read(mnt, listing)["wall_s"])
        if peers["memory_fs"]:
            with peer_mount(b, [peers["memory_fs"], None, total], read_ahead_kb=1024) as mnt:
                times["memory_fs"].append(b.read(mnt, data)["wall_s"])
    native = median(times["native"])
    for kind, label, asked in (("hintfs", "first read from slots: speed / native warm read", ">= 0.3"),
                               ("passthrough_ll", "  passthrough_ll's first read / native", "printed"),
                               ("memory_fs", "  first read answered from a server's memory / native", "printed")):
        if times[kind]:
            b.row(label, native / median(times[kind]), asked,
                  f"{total / median(times[kind]) / 1e9:.2f} GB/s, best {total / min(times[kind]) / 1e9:.2f}")
    if times["memory_fs"]:
        b.row("  first read from slots: speed / such a server", median(times["memory_fs"]) / median(times["hintfs"]), "printed")


@figure
def ingest(b):
    source = b.data.big()
    n = 1281167
    rng = random.Random(5)
    text = "".join(f"train.bin\t{rng.randrange(0, 4 << 30, 4096) % ((4 << 30) - 65536)}\t65536\n" for _ in range(n)).encode()
    times, per_entry = [], []
    for _ in range(b.rounds):
        with b.mount(source, memory="64M") as m:
            with open(os.path.join(m.ctl, "prefetch"), "w") as f:
                f.write("off\n")
            before = int(m.status().get("rss_bytes", 0))
            start = time.monotonic()
            with open(m.order, "wb", buffering=0) as o:
                view = memoryview(text)
                while view:
                    view = view[o.write(view[:MIB]):]
            times.append(time.monotonic() - start)
            s = m.status()
            assert int(s["pending_entries"]) == n, s["pending_entries"]
            per_entry.append((int(s["rss_bytes"]) - before) / n)
    b.row("1,281,167 ranges accepted, seconds", median(times), "<= 1", f"{n / median(times) / 1e6:.2f} M/s")
    b.row("  resident bytes an entry", median(per_entry), "<= 24")


def arguments(doc, known, rounds, scratch, more=()):
    """The command line of this program and of figures_grid.py: names out of `known`, the common options and `more`."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("names", nargs="*", metavar="NAME")
    ap.add_argument("--rounds", type=int, default=rounds)
    ap.add_argument("--scratch", default=scratch)
    ap.add_argument("--json")
    ap.add_argument("--list", action="store_true")
    for option, settings in more:
        ap.add_argument(option, **settings)
    args = ap.parse_args()
    if args.list:
        print("\n".join(known))
        sys.exit()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        ap.error(f"unknown: {unknown[0]}; known: {', '.join(known)}")
    os.makedirs(args.scratch, exist_ok=True)
    return args


def write_json(path, rows):
    if path:
        with open(path, "w") as f:
            json.dump(rows, f, indent=1)


def main():
    args = arguments(__doc__, FIGURES, 3, "/var/tmp/hintfs-figures")
    b = Bench(args.scratch, args.rounds)
    print(f"{'figure':<58} {'reached':>10}   {'asked':<12}")
    for name in args.names or FIGURES:
        FIGURES[name](b)
    write_json(args.json, b.rows)


if __name__ == "__main__":
    sys.modules["figures"] = sys.modules["__main__"]  # for those that register here
    import figures_ram  # noqa: E402,F401
    import figures_tier  # noqa: E402,F401
    main()
