#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cold epoch of shards over NFS that netem makes slow: plain NFS, hintfs without hints, hintfs with the order. Prints the
medians and ratios; judges nothing but the bytes (guest/case_slow.py, which this runs in the guest with larger sizes).
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# The one that Debian's pytest belongs to, as in tests/run.sh.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.environ.get("HINTFS_BUILD", HERE.parents[1] / "build"), type=pathlib.Path)
    parser.add_argument("--vers", choices=["3", "4.2"], default="4.2")
    parser.add_argument("--delay-ms", type=int, default=10, help="of each packet: a round trip takes twice that")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tree = options.build.resolve() / "nfs-guest"
    made = subprocess.run([HERE / "guest-tree", tree], check=False)
    if made.returncode:
        return made.returncode
    with tempfile.TemporaryDirectory() as out:
        env = dict(os.environ, OUT=out, TIMEOUT="550", HINTFS_BUILD=str(options.build.resolve()), PYTHONDONTWRITEBYTECODE="1")
        for name in ("delay_ms", "shards", "shard_mib", "rounds"):
            env[f"SLOW_{name.upper()}"] = str(getattr(options, name))
        done = subprocess.run([HERE / "uml-nfs", "--vers", options.vers, "--tree", tree, "--", PYTHON, "-m", "pytest", "-q",
                               "-p", "no:cacheprovider", HERE / "guest" / "case_slow.py"], env=env, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        figures = pathlib.Path(out, "figures.txt")
        if done.returncode or not figures.exists():
            print(done.stdout)
            return done.returncode or 1
        rows = [line.split() for line in figures.read_text(encoding="utf-8").splitlines()]
    seconds = {how: statistics.median(float(row[row.index(how) + 1]) for row in rows) for how in rows[0][::2]}
    print(f"NFS {options.vers}, {2 * options.delay_ms} ms a round trip, {options.shards} x {options.shard_mib} MiB, cold, "
          f"median of {len(rows)}")
    for how, value in seconds.items():
        print(f"{how:9} {value:7.3f} s   {value / seconds['plain']:.3f} x plain NFS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
