# SPDX-License-Identifier: Apache-2.0
"""TFRecord files read from beginning to end, a new order of files each epoch, 4 at a time in turn (TensorFlow's interleave)."""
import os
import random

import tfrecord

import trace

FILES, RECORDS = 32, 40


def make(root):
    for k in range(FILES):
        writer = tfrecord.TFRecordWriter(os.path.join(root, f"train-{k:05}-of-{FILES:05}.tfrecord"))
        for i in range(RECORDS):
            writer.write({"image": (trace.random_bytes(k * RECORDS + i, 40000, 110000), "byte")})
        writer.close()


def epoch(root, e):
    files = sorted(os.listdir(root))
    random.shuffle(files)
    open_ones, n = [], 0
    while files or open_ones:
        while files and len(open_ones) < 4:
            open_ones.append(tfrecord.tfrecord_loader(os.path.join(root, files.pop()), None, {"image": "byte"}))
        one = open_ones.pop(0)
        sample = next(one, None)
        if sample is not None:
            open_ones.append(one)
            n += 1
    assert n == FILES * RECORDS


trace.record("tfrecord", make, epoch)
