#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain training reader that knows nothing of hintfs: opens tar shards in the order of a list, reads picture and label of
each sample, and computes for a fixed time on it.

usage: reader.py FOLDER LIST PACE_S [START]

Computing is an absolute schedule, as on an accelerator: sample n is computed when it is there and sample n - 1 is done, for
PACE_S seconds; the reader may be QUEUE samples ahead (as a data loader's queue). Stall is the time the accelerator had nothing
to do. Prints one JSON object.
"""
import collections
import json
import os
import sys
import tarfile
import time

QUEUE = 64


def samples(folder, names):
    for name in names:
        with tarfile.open(os.path.join(folder, name)) as tar:
            picture = None
            for member in tar:
                data = tar.extractfile(member).read()
                if member.name.endswith(".png"):
                    picture = data
                else:
                    yield picture, int(data)


def main():
    folder, list_path, pace_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    start = float(sys.argv[4]) if len(sys.argv) > 4 else time.monotonic()
    with open(list_path) as f:
        names = f.read().split()
    busy_until, stall_s, count, size = start, 0.0, 0, 0
    queue = collections.deque()
    for picture, _label in samples(folder, names):
        assert picture[:8] == b"\x89PNG\r\n\x1a\n" and picture[-8:-4] == b"IEND", "not a whole picture"
        now = time.monotonic()
        stall_s += max(0.0, now - busy_until)
        busy_until = max(now, busy_until) + pace_s
        count, size = count + 1, size + len(picture)
        queue.append(busy_until)
        if len(queue) > QUEUE:
            time.sleep(max(0.0, queue.popleft() - time.monotonic()))
    time.sleep(max(0.0, busy_until - time.monotonic()))
    json.dump({"epoch_s": time.monotonic() - start, "stall_s": stall_s, "samples": count, "bytes": size}, sys.stdout)


main()
