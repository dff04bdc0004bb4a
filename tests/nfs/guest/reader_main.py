# SPDX-License-Identifier: Apache-2.0
"""The process behind nfs.Reader: one JSON list a line in, one JSON value a line out. See nfs.py for the calls.

An errno comes back as its name. Content comes back as [version, size], or as text that says what is wrong with it.
"""
import errno
import json
import os
import sys

UNIT, PAGE = 16, 4096
held = {}


def judge(data, at=0):
    """[version, length] of bytes that begin at page-aligned offset `at` of a file made by nfs.content()."""
    versions = set()
    for start in range(0, len(data), PAGE):
        page = data[start:start + PAGE]
        unit = page[:UNIT]
        if page != (unit * (PAGE // UNIT))[:len(page)] or unit[:1] != b"v" or unit[8:9] != b"p":
            return f"wrong bytes at {at + start}: {page[:32]!r}"
        if int(unit[9:15]) != (at + start) // PAGE:
            return f"bytes of page {int(unit[9:15])} at {at + start}"
        versions.add(int(unit[1:8]))
    if len(versions) > 1:
        return f"mixed {sorted(versions)}"
    return [versions.pop() if versions else 0, len(data)]


def read_to_end(fd):
    parts, at = [], 0
    while part := os.pread(fd, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def cat(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        answer = judge(read_to_end(fd))
        return answer if isinstance(answer, str) or answer[1] == size else f"{answer[1]} bytes of {size}"
    finally:
        os.close(fd)


def hold(name, path):
    held[name] = os.open(path, os.O_RDONLY)
    return os.fstat(held[name]).st_size


def pread(name, at, size):
    """All of it, or the errno that stopped it: a read may end early before one, but never at 0 bytes before the file's end."""
    data, fault = b"", None
    while len(data) < size and not fault:
        try:
            part = os.pread(held[name], size - len(data), at + len(data))
        except OSError as error:
            fault = error
            break
        if not part:
            break
        data += part
    answer = judge(data, at)
    if fault and not isinstance(answer, str):
        raise fault
    return answer


def drop(name):
    os.close(held.pop(name))
    return 0


def drop_all():
    for name in list(held):
        drop(name)
    return 0


CALLS = {
    "cat": cat, "hold": hold, "pread": pread, "drop": drop, "drop_all": drop_all,
    "end": lambda name: os.lseek(held[name], 0, os.SEEK_END),
    "fsize": lambda name: os.fstat(held[name]).st_size,
    "size": lambda path: os.stat(path).st_size,
    "list": lambda path: sorted(os.listdir(path)),
    "drop_caches": lambda: open("/proc/sys/vm/drop_caches", "w").write("3"),
}

for line in sys.stdin:
    call, *args = json.loads(line)
    try:
        value = CALLS[call](*args)
    except OSError as error:
        value = errno.errorcode.get(error.errno, str(error))
    print(json.dumps(value), flush=True)
