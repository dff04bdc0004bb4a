# SPDX-License-Identifier: Apache-2.0
"""Pattern files (prog/pat.h) by mt_pattern, always in a child: the path may hang."""
import os
import re

from . import env, procs


def make(path, file, size, version=1):
    procs.run([env.prog("mt_pattern"), "make", path, file, version, size], timeout=120, check=True)
    return path


def check(path, file, size, version=1, timeout=60):
    """Result of a whole read: rc 0 right, 1 wrong bytes or size, 2 an errno (see errno_of)."""
    return procs.run([env.prog("mt_pattern"), "check", path, file, version, size], timeout=timeout)


def errno_of(result):
    """The errno that a client program ended with, or 0."""
    found = re.search(rb"errno (\d+)\s*$", result.err)
    return int(found[1]) if result.rc == 2 and found else 0


def make_many(folder, count, size, version=1, name="f%04d"):
    """count files of one size; file number i is its file id + 1."""
    os.makedirs(folder, exist_ok=True)
    for i in range(count):
        make(os.path.join(folder, name % i), i + 1, size, version)
