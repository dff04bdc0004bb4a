# SPDX-License-Identifier: Apache-2.0
"""Mount table and FUSE connections, read from /proc and /sys only: nothing here can hang on a dead mount."""
import ctypes
import os
import subprocess

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MNT_DETACH = 0x20000, 2
FUSECTL = "/sys/fs/fuse/connections"


def private_namespace():
    """Give this process a mount namespace of its own, so that no test mount is ever seen outside."""
    if _libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare: the mount suite needs root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if not find(FUSECTL):
        subprocess.run(["mount", "-t", "fusectl", "none", FUSECTL], check=False)


def _unescape(field):
    out, i = bytearray(), 0
    raw = field.encode("utf-8", "surrogateescape")
    while i < len(raw):
        if raw[i:i + 1] == b"\\" and raw[i + 1:i + 4].isdigit():
            out.append(int(raw[i + 1:i + 4], 8))
            i += 4
        else:
            out.append(raw[i])
            i += 1
    return os.fsdecode(bytes(out))


def table():
    """[(mountpoint, minor, fstype, options, source)] of this namespace, in mount order."""
    rows = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            left, right = line.rstrip("\n").split(" - ", 1)
            fields, tail = left.split(" "), right.split(" ")
            minor = int(fields[2].split(":")[1])
            rows.append((_unescape(fields[4]), minor, tail[0], fields[5] + "," + tail[2], _unescape(tail[1])))
    return rows


def find(mountpoint):
    """The last mount on this path, or None."""
    path = os.fspath(mountpoint)
    return next((row for row in reversed(table()) if row[0] == path), None)


def is_mounted(mountpoint):
    return find(mountpoint) is not None


def abort(minor):
    """End a FUSE connection: every request in it fails, no process stays stuck in it. Only while it is mounted here: the
    kernel gives the number of one that went to the next mount on the machine, perhaps another run's."""
    if all(row[1] != minor for row in table()):
        return
    try:
        with open(f"{FUSECTL}/{minor}/abort", "w") as f:
            f.write("1")
    except OSError:
        pass


def detach(mountpoint):
    _libc.umount2(os.fsencode(mountpoint), MNT_DETACH)


def waiting(minor):
    """Requests that the kernel holds for this connection (parked or queued)."""
    try:
        with open(f"{FUSECTL}/{minor}/waiting") as f:
            return int(f.read())
    except OSError:
        return 0


def clear_below(folder):
    """Abort and detach everything mounted at or below `folder`; returns what was there."""
    prefix = os.fspath(folder)
    rows = [r for r in table() if r[0] == prefix or r[0].startswith(prefix + "/")]
    for mountpoint, minor, fstype, _, _ in reversed(rows):
        if fstype.startswith("fuse"):
            abort(minor)
        detach(mountpoint)
    return [r[0] for r in rows]
