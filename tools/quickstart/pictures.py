# SPDX-License-Identifier: Apache-2.0
"""A sample dataset: tar shards of real PNG pictures with labels, made with the standard library alone.

Called by demo.py. The same seed gives the same bytes.
"""
import io
import os
import random
import struct
import tarfile
import zlib

SIDE = 256      # pixels
PICTURES = 160  # different ones; shards draw from them
# Differences between neighbouring pixels: small ones make a smooth texture, and a file of about 100 KB.
DELTAS = bytes((value % 24 - 12) & 0xFF for value in range(256))


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(rng):
    """One PNG file, 8 bits RGB. Rows use the filter "Sub": their bytes are differences to the pixel on the left."""
    rows = b"".join(b"\x01" + rng.randbytes(SIDE * 3).translate(DELTAS) for _ in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 1)) + _chunk(b"IEND", b""))


def _add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def make(folder, shards, shard_bytes, seed=1):
    """Write shard-000000.tar ... ; returns (names in a shuffled order, number of samples, bytes)."""
    rng = random.Random(seed)
    pictures = [picture(rng) for _ in range(PICTURES)]
    os.makedirs(folder)
    samples = total = 0
    names = [f"shard-{n:06d}.tar" for n in range(shards)]
    for name in names:
        path = os.path.join(folder, name)
        with tarfile.open(path, "w") as tar:
            while tar.offset < shard_bytes:
                data = rng.choice(pictures)
                _add(tar, f"{samples:08d}.png", data)
                _add(tar, f"{samples:08d}.cls", b"%d\n" % (zlib.crc32(data) % 1000))
                samples += 1
        total += os.path.getsize(path)
    rng.shuffle(names)
    return names, samples, total
