# SPDX-License-Identifier: Apache-2.0
"""The demonstration of tools/quickstart.sh: one dataset behind a slow origin, read three ways by the same program.

usage: demo.py ROOT BUILD     (in a mount namespace of its own, as root)

Each run has a fresh origin and a fresh mount, so nothing of the run before is in any cache; the backing files are dropped from
the page cache as well. The clock starts before the first byte of the order is written. Origin bytes are counted by the origin.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT, BUILD = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.join(ROOT, "tests", "fault"))
sys.path.insert(0, os.path.join(ROOT, "tools", "quickstart"))
import pictures   # noqa: E402
import slowfsctl  # noqa: E402

SHARDS, SHARD_BYTES = 40, 16 << 20
LINK_BYTES_S, LATENCY = 200_000_000, "1ms"
MEMORY = "160M"              # a quarter of the dataset: the order has to do the work, not the memory
COMPUTE_PER_TRANSFER = 1.2
HINTFS = os.path.join(BUILD, "fs", "hintfs")
PRELOAD = os.path.join(BUILD, "tools", "hintfs-preload")
READER = os.path.join(ROOT, "tools", "quickstart", "reader.py")
RUN_LIMIT_S = 120


def say(text=""):
    print(text, flush=True)


def drop_cache(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)  # dirty pages cannot be dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Demo:
    def __init__(self, folder):
        self.folder = folder
        self.data = os.path.join(folder, "data")
        self.order = os.path.join(folder, "order.txt")
        self.origin_path, self.mount_path = os.path.join(folder, "origin"), os.path.join(folder, "mnt")
        self.ctl_path, self.log_path = os.path.join(folder, "ctl"), os.path.join(folder, "hintfs.log")

    def make_dataset(self):
        names, self.samples, self.bytes = pictures.make(self.data, SHARDS, SHARD_BYTES)
        with open(self.order, "w") as f:
            f.write("\n".join(names) + "\n")
        os.mkdir(self.origin_path)
        os.mkdir(self.mount_path)
        self.transfer_s = self.bytes / LINK_BYTES_S
        self.pace_s = COMPUTE_PER_TRANSFER * self.transfer_s / self.samples
        self.bound_s = max(self.transfer_s, self.pace_s * self.samples)

    @contextlib.contextmanager
    def origin(self):
        """The dataset behind 1 ms and 200 MB/s; its client caches pages, and reads ahead the 128 KiB that Linux sets for an NFS mount."""
        drop_cache(self.data)
        slow = slowfsctl.SlowFS(self.data, self.origin_path, os.path.join(BUILD, "tests", "fault", "slowfs"),
                                latency=LATENCY, bandwidth=str(LINK_BYTES_S), page_cache=True, read_ahead="128Ki",
                                attr_timeout="60s", entry_timeout="60s")
        try:
            yield slow
        finally:
            slow.stop()

    @contextlib.contextmanager
    def mount(self):
        with open(self.log_path, "ab") as log:
            daemon = subprocess.Popen(
                [HINTFS, "-f", f"--memory={MEMORY}", f"--ctl={self.ctl_path}", self.origin_path, self.mount_path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 20
            while subprocess.run(["mountpoint", "-q", self.mount_path]).returncode or \
                    not os.path.exists(os.path.join(self.ctl_path, "status")):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("quickstart: hintfs did not start:\n" + self.log_tail())
                time.sleep(0.02)
            yield self.mount_path
        finally:
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                subprocess.run(["umount", "-l", self.mount_path], stderr=subprocess.DEVNULL)

    def log_tail(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()[-2000:]

    def write_order(self):
        with open(self.order, "rb") as source, open(os.path.join(self.mount_path, ".ctl", "order"), "wb") as order:
            shutil.copyfileobj(source, order)

    def read(self, folder, start):
        result = subprocess.run([sys.executable, READER, folder, self.order, repr(self.pace_s), repr(start)],
                                stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, start_new_session=True)
        if result.returncode:
            raise SystemExit(f"quickstart: the reader failed\n{self.log_tail() if os.path.exists(self.log_path) else ''}")
        return json.loads(result.stdout)

    def run(self, name, is_mounted, is_hinted):
        with self.origin() as slow, (self.mount() if is_mounted else contextlib.nullcontext(self.origin_path)) as folder:
            before = slow.totals()["bytes"]
            start = time.monotonic()
            if is_hinted:
                self.write_order()
            found = self.read(folder, start)
            found["origin_bytes"] = slow.totals()["bytes"] - before
        assert found["samples"] == self.samples, "samples are missing"
        say(f"  {name:<28}{found['epoch_s']:9.2f}{found['stall_s']:9.2f}{found['origin_bytes'] / 1e6:12.0f}"
            f"{found['epoch_s'] / self.bound_s:10.2f}")
        return found

    def preload(self):
        with self.origin(), self.mount() as folder:
            result = subprocess.run([PRELOAD, "--batch-bytes", "16M", "--ring", "4", "--workers", "4", folder, self.order],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=RUN_LIMIT_S,
                                    start_new_session=True)
        for line in result.stdout.splitlines():
            say("  " + line)
        if result.returncode:
            raise SystemExit(f"quickstart: hintfs-preload exited {result.returncode}\n{result.stderr[-2000:]}")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="hintfs-quickstart.", dir="/var/tmp")
    try:
        demo = Demo(folder)
        say(f"quickstart: making {SHARDS} tar shards of PNG pictures")
        demo.make_dataset()
        say(f"quickstart: {demo.bytes / 1e6:.0f} MB, {demo.samples} samples, behind a link of {LATENCY} and "
            f"{LINK_BYTES_S / 1e6:.0f} MB/s (read-ahead 128 KiB, as of an NFS mount); mount with memory={MEMORY}")
        say(f"quickstart: transfer takes {demo.transfer_s:.2f} s, compute {demo.pace_s * demo.samples:.2f} s: no epoch can be shorter "
            f"than {demo.bound_s:.2f} s\n")
        say(f"  {'one epoch, same reader':<28}{'epoch s':>9}{'stall s':>9}{'origin MB':>12}{'x bound':>10}")
        demo.run("straight from the origin", False, False)
        demo.run("mount, no hints", True, False)
        demo.run("mount, order written", True, True)
        say("\n  preload: the batches in page-locked host memory, in the same order, as fast as they come")
        demo.preload()
        say("\nquickstart: done; for your own data: tools/quickstart.sh SOURCE MOUNTPOINT")
    finally:
        for path in ("ctl", "mnt", "origin"):
            subprocess.run(["umount", "-l", os.path.join(folder, path)], stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


try:
    main()
except KeyboardInterrupt:
    say("\nquickstart: interrupted, cleaned up")
    sys.exit(130)
