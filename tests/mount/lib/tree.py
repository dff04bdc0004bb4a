# SPDX-License-Identifier: Apache-2.0
"""The tree of the differential tests, made at the origin, and the commands it is compared by.

1. Everything is made from a fixed seed: two runs make the same bytes.
2. Files above HUGE are sparse and are compared by windows round their marks only.
"""
import os
import random
import socket

CHUNK = 1 << 20
HUGE = 1 << 30
GIB, TIB = 1 << 30, 1 << 40

SIZES = [0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17]
NAMES = [
    b"plain", b"with space", b" leading", b"trailing ", b"new\nline", b"tab\there", b"@epoch", b"#comment", b"-rf",
    b'"quoted"', b"'single'", b"back\\slash", b"star*", b"{a,b}", b"{000..003}.tar", b"dollar$HOME", b"\xff\xfe\x80",
    b"cut\xc3", b"\xe4\xb8\xad\xe6\x96\x87", b"e\xcc\x81", b"\xc3\xa9", b".hidden", b"..double", b"...", b"ctl", b".ctl2",
    b"UPPER", b"upper", b"\x01\x7f", b"cr\r", b"n" * 255, b"\xc3\xa9" * 127 + b"x",
]


def _write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def _sizes(root, rng):
    os.mkdir(os.path.join(root, b"sizes"))
    for size in SIZES:
        _write(os.path.join(root, b"sizes", b"%d" % size), rng.randbytes(size))


def _names(root, rng):
    folder = os.path.join(root, b"names")
    os.mkdir(folder)
    for i, name in enumerate(NAMES):
        _write(os.path.join(folder, name), rng.randbytes(i))
    for name in NAMES[:20]:
        os.mkdir(os.path.join(folder, b"d" + name[:200]))
        _write(os.path.join(folder, b"d" + name[:200], name), name)


def _links(root):
    folder = os.path.join(root, b"links")
    os.makedirs(os.path.join(folder, b"sub"))
    _write(os.path.join(folder, b"target"), b"the target\n")
    for name, text in [(b"relative", b"target"), (b"up", b"../sizes/4096"), (b"to-dir", b"sub"), (b"dangling", b"nowhere"),
                       (b"absolute", b"/etc/hostname"), (b"loop-a", b"loop-b"), (b"loop-b", b"loop-a"), (b"self", b"self"),
                       (b"chain", b"relative"), (b"odd", b"\xff\n \t"), (b"outside", b"../../../../../etc/hostname"),
                       (b"long", b"x/" * 2000 + b"y"), (b"dot", b".")]:
        os.symlink(text, os.path.join(folder, name))
    for name in (b"hard1", b"sub/hard2"):
        os.link(os.path.join(folder, b"target"), os.path.join(folder, name))


def _attributes(root, rng):
    folder = os.path.join(root, b"attributes")
    os.mkdir(folder)
    for mode in (0o000, 0o400, 0o444, 0o600, 0o644, 0o755, 0o777):
        path = os.path.join(folder, b"mode%03o" % mode)
        _write(path, rng.randbytes(10))
        os.chmod(path, mode)
    for i, ns in enumerate([1, 999_999_999, 1_000_000_000_123_456_789, 2**32 * 10**9 + 7, -3_600_000_000_001]):
        path = os.path.join(folder, b"time%d" % i)
        _write(path, b"t")
        os.utime(path, ns=(ns, ns))
    _write(os.path.join(folder, b"owner"), b"o")
    os.chown(os.path.join(folder, b"owner"), 12345, 54321)
    os.mkdir(os.path.join(folder, b"empty-dir"))
    os.makedirs(os.path.join(folder, *[b"deep%d" % i for i in range(60)]))


def marks_of(size):
    """Offsets in a huge sparse file where data lies, each 4 KiB + 3 bytes long and unaligned."""
    near = [0, 1 << 31, 1 << 32, 1 << 40, size - 4099]
    return sorted({max(0, m - 2050) for m in near if m < size})


def make_huge(path, size, rng):
    with open(path, "wb") as f:
        f.truncate(size)
        for at in marks_of(size):
            f.seek(at)
            f.write(rng.randbytes(min(4099, size - at)))


def make(root):
    """The whole tree below `root` (but not the big directory); returns it."""
    rng = random.Random(20240607)
    raw = os.fsencode(root)
    os.makedirs(raw)
    _sizes(raw, rng)
    _names(raw, rng)
    _links(raw)
    _attributes(raw, rng)
    os.mkdir(os.path.join(raw, b"huge"))
    make_huge(os.path.join(raw, b"huge", b"5GiB"), 5 * GIB, rng)
    make_huge(os.path.join(raw, b"huge", b"9TiB"), 9 * TIB, rng)
    return root


def add_special(root):
    """What a mount must neither follow nor block on."""
    os.mkfifo(os.path.join(root, "fifo"))
    os.mknod(os.path.join(root, "null"), 0o020666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as s:
        where = os.getcwd()
        os.chdir(root)  # the name of a socket is short
        s.bind("socket")
        os.chdir(where)


def make_crowd(folder, count):
    """One directory with `count` entries of several kinds."""
    os.makedirs(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for i in range(count):
        if i % 1000 == 999:
            os.mkdir(f"entry-{i:06d}", dir_fd=fd)
        elif i % 1000 == 998:
            os.symlink("x", f"entry-{i:06d}", dir_fd=fd)
        else:
            os.close(os.open(f"entry-{i:06d}-{'x' * (i % 97)}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def make_files(folder, count, per_dir=1000):
    """Many small files, each with its number in it."""
    for i in range(count):
        if i % per_dir == 0:
            sub = os.path.join(folder, f"d{i // per_dir:04d}")
            os.makedirs(sub)
            fd = os.open(sub, os.O_RDONLY | os.O_DIRECTORY)
        f = os.open(f"f{i:06d}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
        os.write(f, b"%08d" % i * (1 + i % 40))
        os.close(f)
        if i % per_dir == per_dir - 1 or i == count - 1:
            os.close(fd)


# ---- commands; $D is the root ----
SHA = 'cd "$D" && find . -type f -size -1000M -print0 | LC_ALL=C sort -z | xargs -0r sha256sum -z'
FIND = 'cd "$D" && find . -printf "%p\\t%y\\t%s\\t%b\\t%i\\t%n\\t%m\\t%U\\t%G\\t%T@\\t%C@\\t%l\\0" | LC_ALL=C sort -z'
STAT = ('cd "$D" && find . -print0 | LC_ALL=C sort -z | '
        'xargs -0r stat --printf="%n\\t%F\\t%s\\t%i\\t%h\\t%a\\t%u\\t%g\\t%Y\\t%y\\t%z\\0"')
TAR = 'cd "$D" && tar --sort=name --exclude=./huge --exclude=./crowd -cf - . | sha256sum'
