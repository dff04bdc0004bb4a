# SPDX-License-Identifier: Apache-2.0
"""What the make_*.py scripts here share: a dataset, a mount, a real loader that reads it, and what hintctl record saw.

usage: HINTFS_BUILD=... python3 make_LOADER.py     (root; writes LOADER.order and LOADER.sizes beside the script)

Each epoch begins with empty page caches: else the second one is read from them and nobody sees it. Reads are as the
kernel sends them, read-ahead included, in order of arrival; a mark @epoch stands where the script says that an epoch begins.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("HINTFS_BUILD", os.path.join(HERE, "..", "..", "..", "build"))


def random_bytes(seed, low, high):
    r = random.Random(seed)
    return r.randbytes(r.randrange(low, high))


def until(predicate):
    while not predicate():
        time.sleep(0.02)


def record(name, make, epoch, epochs=3):
    """make(folder) writes the dataset; epoch(folder, e) reads it once, in a process of its own."""
    if sys.argv[1:2] == ["epoch"]:  # the process that reads
        random.seed(int(sys.argv[3]))
        epoch(sys.argv[2], int(sys.argv[3]))
        return
    scratch = tempfile.mkdtemp(prefix="hintfs-trace.", dir="/var/tmp")
    source, mnt, ctl = (os.path.join(scratch, d) for d in ("source", "mnt", "ctl"))
    for d in (source, mnt, ctl):
        os.makedirs(d)
    make(source)
    parts = []
    for e in range(epochs):
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")
        subprocess.run([os.path.join(BUILD, "fs", "hintfs"), "-o", f"memory=16M,immutable,ctl={ctl}", source, mnt], check=True)
        out = os.path.join(scratch, f"epoch{e}")
        recorder = subprocess.Popen([os.path.join(BUILD, "tools", "hintctl"), "record", mnt, "-o", out])
        until(lambda: os.path.exists(out) and os.path.getsize(out))
        subprocess.run([sys.executable, os.path.abspath(sys.argv[0]), "epoch", mnt, str(e)], check=True)
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait() == 0
        until(lambda: subprocess.run(["umount", mnt], stderr=subprocess.DEVNULL).returncode == 0)
        with open(out) as f:
            parts.append("".join([f"@epoch {e}\n"] + [line for line in f if not line.startswith("@")]))
    with open(os.path.join(HERE, name + ".order"), "w") as f:
        f.writelines(parts)
    with open(os.path.join(HERE, name + ".sizes"), "w") as f:
        for folder, _, files in sorted(os.walk(source)):
            for one in sorted(files):
                path = os.path.join(folder, one)
                f.write(f"{os.path.relpath(path, source)}\t{os.path.getsize(path)}\n")
    shutil.rmtree(scratch)
    print(name, [p.count("\n") - 1 for p in parts], "reads")
