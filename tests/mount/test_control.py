# SPDX-License-Identifier: Apache-2.0
"""The control files as shells, tools and programs use them: what is taken, what is refused, how it is said, who may (design §5).

The errno table is gone through with every client: an error must reach the caller by the write itself.
"""
import errno
import os
import re
import shutil
import signal
import subprocess

import pytest

from lib import env, procs

NOBODY = 65534


@pytest.fixture
def origin(tmp):
    """50 files of 10,000 bytes in a/, links, a directory below, names that need care."""
    root = os.path.join(tmp, "origin")
    os.makedirs(os.path.join(root, "a", "sub"))
    for i in range(50):
        with open(os.path.join(root, "a", f"f{i:02}"), "wb") as f:
            f.write(bytes([i]) * 10000)
    for name in ("a/sub/x", "a/sub-0", "lit{1,2}", "with space", "tab\tname", "#hash", "@at", '"quote', "p::q"):
        with open(os.path.join(root, name), "wb") as f:
            f.write(b"y" * 100)
    os.symlink("a/f07", os.path.join(root, "link"))
    os.symlink("a", os.path.join(root, "dirlink"))
    os.symlink("/etc/passwd", os.path.join(root, "outside"))
    with open(os.path.join(root, "big"), "wb") as f:
        f.truncate(1 << 30)
    return root


@pytest.fixture
def hfs(mount, origin):
    return mount(origin)


def put(hfs, data, target="order", mode="wb", check=True):
    """Write from a Python child with one write(2) a piece; returns the errno's name or 'ok'."""
    flags = os.O_WRONLY | (os.O_TRUNC if mode == "wb" else os.O_APPEND) | (os.O_CREAT if target.startswith("streams/") else 0)
    script = ("import errno,os,sys\n"
              "data = sys.stdin.buffer.read(); fd = os.open(sys.argv[1], int(sys.argv[2]), 0o600); at = 0\n"
              "try:\n"
              "    while at < len(data): at += os.write(fd, data[at:at + (1 << 20)])\n"
              "    os.close(fd); print('ok', at)\n"
              "except OSError as e: print(errno.errorcode[e.errno], at)\n")
    data = data if isinstance(data, bytes) else os.fsencode(data)
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, target), str(flags)], stdin=data, timeout=60)
    result.ok()
    name, at = result.text.split()
    if check:
        assert name == "ok", (name, at, errors(hfs))
    return name, int(at)


def pending(hfs, target="order"):
    out = procs.run(["cat", os.path.join(hfs.ctl, target)], timeout=20, check=True).text
    assert out == "" or out.endswith("\n")
    return out.split("\n")[:-1]


def errors(hfs):
    return procs.run(["cat", os.path.join(hfs.ctl, "errors")], timeout=10, check=True).text


def shell(hfs, text, how="bash", **more):
    return procs.run([how, "-c", text], timeout=30, env={**os.environ, "CTL": hfs.ctl, "MNT": hfs.path, **more})


# ---- the errno table, from every client ----

ROWS = [
    ("unknown word", b"@bach 17\n", errno.EINVAL, "did you mean @batch?"),
    ("bad number", b"a/f01\tx\t1\n", errno.EINVAL, "bad offset"),
    ("column count", b"a/f01\t1\n", errno.EINVAL, "2 columns"),
    ("carriage return", b"a/f01\r\n", errno.EINVAL, "CR"),
    ("member", b"a/f01\tmember=x\n", errno.EINVAL, "not yet supported"),
    ("key", b"a/f01\tkey=x\n", errno.EINVAL, "not yet supported"),
    ("missing", b"a/none\n", errno.ENOENT, "a/none"),
    ("names on one line", b"a/f01 a/f02 a/f03\n", errno.ENOENT, "3 names on one line"),
    ("dot dot", b"../x\n", errno.EXDEV, '".."'),
    ("absolute", b"/etc/passwd\n", errno.EXDEV, "@prefix"),
    ("link out", b"outside\n", errno.EXDEV, "leaves the mount"),
    ("directory", b"a\n", errno.EISDIR, "a/"),
    ("past the end", b"a/f01\t10000\t1\n", errno.ERANGE, "10000"),
    ("line too long", b"x" * 65537 + b"\n", errno.EMSGSIZE, "65536"),
    ("expansion too large", b"a/{1..4000}{1..4000}\n", errno.ENOSPC, "too many results"),
]

C_SOURCE = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    static char buf[1 << 20];
    ssize_t n, w;
    size_t at, len;
    int fd;
    (void)argc;
    for (at = 0; (n = read(0, buf + at, sizeof(buf) - at)) > 0; at += (size_t)n)
        ;
    len = at;
    fd = open(argv[1], O_WRONLY | O_TRUNC);
    for (at = 0; fd >= 0 && at < len; at += (size_t)w)
        if ((w = write(fd, buf + at, len - at)) < 0)
            break;
    if (fd < 0 || at < len) {
        fprintf(stderr, "%s\n", strerror(errno));
        return 1;
    }
    return close(fd) != 0;
}
"""


@pytest.fixture
def c_client(tmp):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    path = os.path.join(tmp, "client")
    with open(path + ".c", "w") as f:
        f.write(C_SOURCE)
    procs.run([compiler, "-o", path, path + ".c"], timeout=60).ok()
    return path


CLIENTS = {
    "bash": ["bash", "-c", 'printf %s "$TEXT" > "$T"'],
    "dash": ["dash", "-c", 'printf %s "$TEXT" > "$T"'],
    "cat": ["bash", "-c", 'cat "$D" > "$T"'],
    "tee": ["bash", "-c", 'tee "$T" < "$D" > /dev/null'],
    "cp": ["bash", "-c", 'cp "$D" "$T"'],
    "dd": ["bash", "-c", 'dd if="$D" of="$T" bs=512 status=none'],
    "python": ["python3", "-c", "import os\nwith open(os.environ['T'], 'w', newline='') as f: f.write(open(os.environ['D'], newline='').read())"],
    "awk": ["bash", "-c", """LC_ALL=C awk '{ printf "%s\\n", $0 > ENVIRON["T"] } END { exit close(ENVIRON["T"]) != 0 }' "$D" """],
}


def run_client(name, hfs, data, tmp, c_client=None, target="order"):
    path = os.path.join(tmp, "data")
    with open(path, "wb") as f:
        f.write(data)
    values = {**os.environ, "LC_ALL": "C.UTF-8", "T": os.path.join(hfs.ctl, target), "D": path}
    if name == "c":
        return procs.run([c_client, values["T"]], stdin=data, timeout=30, env=values)
    if name in ("bash", "dash"):
        values["TEXT"] = data.decode()
    return procs.run(CLIENTS[name], timeout=30, env=values)


@pytest.mark.parametrize("client", [*CLIENTS, "c"])
def test_every_row_reaches_every_client(hfs, tmp, client, c_client):
    for what, data, code, reason in ROWS:
        put(hfs, "a/f49\n")
        result = run_client(client, hfs, data, tmp, c_client)
        assert result.rc != 0, (client, what)
        said = os.strerror(code)
        if client == "dash":
            said = "I/O error"  # all it ever says: errors has the rest
        assert said in result.err.decode("utf-8", "replace"), (client, what, result.err)
        assert pending(hfs) == ["a/f49"], (client, what, "the old list stays when the first line is bad")
        text = errors(hfs)
        block = text[text.rindex(" stream default line 1 col "):]
        assert f"[{errno.errorcode[code]}]" in block and reason in block, (client, what, block)
        assert re.search(r"\n    .*\n +\^\n$", block), (what, block)


@pytest.mark.parametrize("client", [*CLIENTS, "c"])
def test_every_client_can_write_an_order(hfs, tmp, client, c_client):
    lines = [f"a/f{i % 50:02}" for i in range(3000)]
    assert run_client(client, hfs, ("\n".join(lines) + "\n").encode(), tmp, c_client).rc == 0
    assert pending(hfs) == lines


def test_the_error_names_who_and_where(hfs):
    result = shell(hfs, 'echo $$; printf "a/f01\\n\\na/f02\\tzz\\t1\\n" > "$CTL/order"')
    pid = int(result.text.split()[0])
    assert result.rc != 0
    first, text, caret = errors(hfs).splitlines()[-3:]
    assert re.match(rf"\d\d:\d\d:\d\d pid {pid} \(bash\) stream default line 3 col 7: bad offset", first), first
    assert text == "    a/f02 zz 1" and caret == "    " + " " * 6 + "^"
    assert pending(hfs) == ["a/f01"], "good lines before the bad one stay"
    shell(hfs, ': > "$CTL/errors"').ok()
    assert errors(hfs) == ""


def test_the_ring_keeps_64(hfs):
    for i in range(70):
        put(hfs, f"@zz{i}\n", check=False)
    text = errors(hfs)
    assert text.count("unknown directive") == 64 and '"@zz69"' in text and '"@zz5"' not in text and '"@zz6"' in text


# ---- bad lines in the middle, poisoned handles, killed writers ----

def test_bad_line_20001_of_40000(hfs):
    good = [f"a/f{i % 50:02}\t{i % 9000}\t7" for i in range(40000)]
    lines = good[:]
    lines[20000] = "@bach"
    code, at = put(hfs, "\n".join(lines) + "\n", check=False)
    assert code == "EINVAL" and at == len("\n".join(lines[:20000])) + 1, "the count says exactly how far it went"
    assert len(pending(hfs)) == 20000
    assert "stream default line 20001 col 1" in errors(hfs)
    assert hfs.status()["stream.default.entries"] == 20000


def test_a_bad_handle_stays_bad(hfs):
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC); said = []\n"
              "for text in (b'a/f01\\n', b'@bach\\na/f02\\n', b'a/f03\\n', b'a/f04\\n'):\n"
              "    try: said.append(str(os.write(fd, text)))\n"
              "    except OSError as e: said.append(errno.errorcode[e.errno])\n"
              "print(*said)\n")
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=20).ok()
    assert result.text.split() == ["6", "EINVAL", "EINVAL", "EINVAL"]
    assert pending(hfs) == ["a/f01"]


def test_lines_straddle_writes(hfs):
    data = b"".join(b"a/f%02d\t%d\t11\n" % (i % 50, i) for i in range(3000))
    for piece in (1, 7, 511, 4096):
        procs.run(["dd", f"of={hfs.ctl}/order", f"bs={piece}", "iflag=fullblock", "status=none"], stdin=data, timeout=60).ok()
        assert "\n".join(pending(hfs)).encode() + b"\n" == data, piece


def test_killed_writer_leaves_whole_lines_only(hfs):
    script = ("import os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)\n"
              "os.write(fd, b'a/f01\\na/f02\\na/f0'); print('written', flush=True); os.read(0, 1)\n")
    child = subprocess.Popen(["python3", "-c", script, os.path.join(hfs.ctl, "order")], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"written\n"
    child.kill()
    child.wait(10)
    procs.until(lambda: hfs.status()["stream.default.entries"] == 2, 5, "two entries")
    assert pending(hfs) == ["a/f01", "a/f02"]
    put(hfs, "a/f03\n", mode="ab")  # a request after the RELEASE of the killed one
    assert pending(hfs) == ["a/f01", "a/f02", "a/f03"] and errors(hfs) == ""


def test_a_forked_child_does_not_end_its_parents_line(hfs):
    script = ("import os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC)\n"
              "os.write(fd, b'a/f0')\n"
              "if os.fork() == 0: os._exit(0)\n"
              "os.wait(); os.write(fd, b'5\\n'); os.close(fd)\n")
    procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=20).ok()
    assert pending(hfs) == ["a/f05"] and errors(hfs) == ""


def test_last_line_without_lf(hfs):
    shell(hfs, 'printf "a/f01\\na/f02" > "$CTL/order"').ok()
    assert pending(hfs) == ["a/f01", "a/f02"]
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC); os.write(fd, b'@bach')\n"
              "try: os.close(fd); print('ok')\n"
              "except OSError as e: print(errno.errorcode[e.errno])\n")
    assert procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=20).ok().text.strip() == "EINVAL"
    assert "@bach" in errors(hfs)
    assert pending(hfs) == ["a/f01", "a/f02"]


# ---- replace, append, cancel ----

@pytest.mark.parametrize("how", ["bash", "dash"])
def test_redirections_mean_what_they_say(hfs, how):
    assert shell(hfs, 'echo a/f01 > "$CTL/order"', how).rc == 0
    assert shell(hfs, 'echo a/f02 >> "$CTL/order"', how).rc == 0
    assert pending(hfs) == ["a/f01", "a/f02"]
    assert shell(hfs, '{ echo a/f03; echo a/f04; } > "$CTL/order"', how).rc == 0
    assert pending(hfs) == ["a/f03", "a/f04"]
    assert shell(hfs, ': >> "$CTL/order"', how).rc == 0
    assert pending(hfs) == ["a/f03", "a/f04"]
    assert shell(hfs, ': > "$CTL/order"', how).rc == 0
    assert pending(hfs) == []
    assert shell(hfs, '(echo "# nothing"; echo) > "$CTL/order"', how).rc == 0
    assert hfs.status()["stream.default.entries"] == 0


@pytest.mark.parametrize("line", ["@done 3", "@seek 4", "@done batch 0"])
def test_a_cursor_line_replaces_nothing(hfs, line):
    """`echo '@done 3' > order` says where reading is; the list stays."""
    put(hfs, "".join(f"@batch {i}\na/f{i:02}\n" if "batch" in line else f"a/f{i:02}\n" for i in range(10)))
    put(hfs, line + "\n")
    assert hfs.status()["stream.default.entries"] == 10
    assert hfs.status()["stream.default.low"] > 0
    put(hfs, "a/f20\n")
    assert hfs.status()["stream.default.entries"] == 1


def test_ftruncate_replaces_and_truncate_cancels(hfs):
    put(hfs, "a/f01\n")
    script = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY); os.ftruncate(fd, 0); os.write(fd, b'a/f02\\n'); os.close(fd)"
    procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=20).ok()
    assert pending(hfs) == ["a/f02"]
    procs.run(["python3", "-c", "import os, sys; os.truncate(sys.argv[1], 0)", os.path.join(hfs.ctl, "order")], timeout=20).ok()
    assert pending(hfs) == []


def test_cancel_and_prefix(hfs):
    put(hfs, "a/f01\n@cancel\na/f02\n")
    assert pending(hfs) == ["a/f02"]
    put(hfs, f"@prefix /data/set\n/data/set/a/f03\n{hfs.path}/a/f04\n./a//f05\n@prefix\na/f06\n")
    assert pending(hfs) == ["a/f03", "a/f04", "a/f05", "a/f06"]
    assert put(hfs, "@prefix /data/set\n/data/setting/a/f03\n", check=False)[0] == "EXDEV"


def test_tools_that_replace_by_rename_fail_cleanly(hfs, tmp):
    put(hfs, "a/f01\n")
    with open(os.path.join(tmp, "new"), "w") as f:
        f.write("a/f02\n")
    for text in ('sed -i s/1/2/ "$CTL/order"', 'mv "$NEW" "$CTL/order"', 'mv "$CTL/order" "$CTL/other"', 'mkdir "$CTL/d"',
                 'rm "$CTL/order"', 'ln "$CTL/order" "$CTL/l"', 'ln -s x "$CTL/l"', 'rmdir "$CTL/streams"', 'mkfifo "$CTL/p"',
                 'chmod 666 "$CTL/order"', 'mkdir "$CTL/streams/d"', 'rm "$CTL/streams/default"', 'echo x > "$CTL/status"',
                 'sed -i s/1/2/ "$CTL/streams/default"'):
        result = shell(hfs, text, NEW=os.path.join(tmp, "new"))
        assert result.rc != 0, text
        assert b"not implemented" not in result.err and b"Input/output" not in result.err, (text, result.err)
    assert pending(hfs) == ["a/f01"]
    assert shell(hfs, 'echo x > "$CTL/ordr"').err.endswith(b"No such file or directory\n")


# ---- names ----

def test_patterns_directories_links_and_odd_names(hfs):
    put(hfs, "a/f{08..10}\na/f01::a/f02\n{a/f03,a/f04}\t5\t6\n")
    assert pending(hfs) == ["a/f08", "a/f09", "a/f10", "a/f01", "a/f02", "a/f03\t5\t6", "a/f04\t5\t6"]
    put(hfs, "lit{1,2}\np::q\n")
    assert pending(hfs) == ['"lit{1,2}"', '"p::q"'], "a file of that literal name wins"
    below = [f"a/f{i:02}" for i in range(50)]
    put(hfs, "a/\n")
    assert pending(hfs) == sorted([*below, "a/sub-0", "a/sub/x"])
    put(hfs, "dirlink/\n")
    assert len(pending(hfs)) == 52
    put(hfs, "./\n")
    names = procs.run(["find", hfs.path, "-type", "f", "-printf", "%P\\0"], timeout=20).ok().out.split(b"\0")[:-1]
    assert len(pending(hfs)) == len(names)
    put(hfs, "link\n")
    assert pending(hfs) == ["a/f07"], "a symbolic link is the file that it leads to"
    put(hfs, 'with space\n"tab\\tname"\n./#hash\n./@at\n./"quote\n"#hash"\n')
    assert pending(hfs) == ["with space", '"tab\\tname"', "./#hash", "./@at", './"quote', "./#hash"]
    text = "\n".join(pending(hfs)) + "\n"
    put(hfs, text)
    assert "\n".join(pending(hfs)) + "\n" == text, "what is read can be written"


def test_only_the_first_names_are_checked_at_once(hfs):
    put(hfs, "".join(f"a/f{i:02}\n" for i in range(16)) + "a/none\na/f17\n")
    assert len(pending(hfs)) == 18
    procs.until(lambda: hfs.status()["missing_entries"] == 1, 10, "the missing name is counted")
    assert put(hfs, "".join(f"a/f{i:02}\n" for i in range(15)) + "a/none\n", check=False)[0] == "ENOENT"


def test_a_pattern_is_taken_whole_or_not_at_all(hfs):
    put(hfs, "a/f01\n")
    assert put(hfs, "a/f{48..52}\n", mode="ab", check=False)[0] == "ENOENT"
    assert pending(hfs) == ["a/f01"]


# ---- streams ----

def test_streams_come_and_go(hfs):
    put(hfs, "a/f01\n", "streams/rank0")
    put(hfs, "a/f02\na/f03\n", "streams/rank 1")
    assert shell(hfs, 'ls "$CTL/streams"').ok().text.split("\n")[:-1] == ["default", "rank 1", "rank0"]
    assert pending(hfs, "streams/rank 1") == ["a/f02", "a/f03"]
    status = hfs.status()
    assert status["streams"] == 3 and status["stream.rank0.entries"] == 1 and status["stream.rank\\0401.entries"] == 2
    put(hfs, "a/f05\n")
    assert pending(hfs, "streams/default") == ["a/f05"], "order and streams/default are one"
    shell(hfs, 'rm "$CTL/streams/rank0"').ok()
    assert hfs.status()["streams"] == 2
    assert shell(hfs, 'cat "$CTL/streams/rank0"').rc != 0
    name = "n" * 129
    assert b"File name too long" in shell(hfs, f'echo a/f01 > "$CTL/streams/{name}"').err
    assert shell(hfs, f'echo a/f01 > "$CTL/streams/{name[:128]}"').rc == 0


def test_a_removed_stream_cancels_its_writer(hfs):
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); os.write(fd, b'a/f01\\n'); os.unlink(sys.argv[1])\n"
              "try: os.write(fd, b'a/f02\\n'); print('ok')\n"
              "except OSError as e: print(errno.errorcode[e.errno])\n")
    path = os.path.join(hfs.ctl, "streams", "gone")
    assert procs.run(["python3", "-c", script, path], timeout=20).ok().text.strip() == "ECANCELED"
    put(hfs, "a/f03\n", "streams/gone")
    assert pending(hfs, "streams/gone") == ["a/f03"], "a new stream of that name starts empty"


def test_two_streams_at_once(hfs):
    """Two writers, interleaved in pieces that cut lines: neither sees the other."""
    data = ["".join(f"a/f{i % 50:02}\t{i}\t{k + 1}\n" for i in range(9000)) for k in range(2)]
    children = [subprocess.Popen(["dd", f"of={hfs.ctl}/streams/s{k}", "bs=300", "status=none"], stdin=subprocess.PIPE)
                for k in range(2)]
    for at in range(0, max(map(len, data)), 300):
        for k in range(2):
            children[k].stdin.write(data[k][at:at + 300].encode())
            children[k].stdin.flush()
    for k in range(2):
        children[k].stdin.close()
        assert children[k].wait(30) == 0
        assert "\n".join(pending(hfs, f"streams/s{k}")) + "\n" == data[k]


def test_handles_have_a_limit(hfs):
    script = ("import errno, os, resource, sys\n"
              "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); fds = []\n"
              "try:\n"
              "    while len(fds) < 1000: fds.append(os.open(sys.argv[1], os.O_RDONLY))\n"
              "except OSError as e: print(errno.errorcode[e.errno], len(fds))\n")
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "status")], timeout=30).ok()
    assert result.text.split() == ["ENFILE", "256"]
    procs.until(lambda: procs.run(["cat", os.path.join(hfs.ctl, "status")], timeout=5).rc == 0, 5, "handles are given back")
    script += "for name in ('status', 'errors', 'README'): os.close(os.open(os.path.dirname(sys.argv[1]) + '/' + name, os.O_RDONLY))\n"
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=30).ok()
    assert result.text.split() == ["ENFILE", "256"], "and yet what is going on can be seen"


def test_streams_have_a_limit(hfs):
    script = ("import errno, os, sys\n"
              "n = 1\n"
              "try:\n"
              "    while n < 3000: os.close(os.open(f'{sys.argv[1]}/streams/s{n}', os.O_WRONLY | os.O_CREAT)); n += 1\n"
              "except OSError as e: print(errno.errorcode[e.errno], n)\n")
    result = procs.run(["python3", "-c", script, hfs.ctl], timeout=50).ok()
    assert result.text.split() == ["ENOSPC", "1024"] and "1,024 streams" in procs.run(["cat", f"{hfs.ctl}/README"], timeout=5).text


@pytest.mark.parametrize("read", [0, 4])
def test_what_is_read_is_the_same_order(hfs, read):
    """Also half through it, in words that the daemon takes."""
    text = "@window 4 batches\n@epoch 3\n@batch 0\na/f01\na/f02\n@batch 1\na/f03\n@any\na/f04\na/f05\n@ordered\na/f06\t10\t20\n"
    put(hfs, text.encode())
    assert "\n".join(pending(hfs)) + "\n" == text
    put(hfs, f"@seek {read}\n".encode(), mode="ab")
    said = pending(hfs)
    put(hfs, ("\n".join(said) + "\n").encode(), target="streams/again")
    assert pending(hfs, "streams/again") == said
    assert read == 0 or said == ["@window 4 batches", "@any", "@epoch 3", "@batch 1", "a/f05", "@ordered", "a/f06\t10\t20"]
    put(hfs, b"@repeat 3\n@seek 8\n", mode="ab")
    said = pending(hfs)
    assert said == [*text.split("\n")[:-1], "@repeat 3", "@seek 8"]
    put(hfs, ("\n".join(said) + "\n").encode(), target="streams/again")
    assert pending(hfs, "streams/again") == said and hfs.status()["stream.again.pending"] == 10


def test_a_list_is_read_like_any_file(hfs):
    put(hfs, "".join(f"a/f{i % 50:02}\n" for i in range(20000)).encode())
    whole = shell(hfs, 'cat "$CTL/order"').ok().out
    for text, said in (('head -c1 "$CTL/order"', whole[:1]), ('head -n2 "$CTL/order"', whole[:12]), ('tail -n1 "$CTL/order"', whole[-6:]),
                       ('tail -c3 "$CTL/order"', whole[-3:]), ('head -c5 "$CTL/status"', b"versi"),
                       ('dd if="$CTL/order" bs=6 skip=15000 count=1 status=none', whole[90000:90006])):
        result = shell(hfs, text)
        assert result.rc == 0 and result.out == said and result.err == b"", (text, result)
    script = ("import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); a = os.pread(fd, 100, 60000); b = os.pread(fd, 10, 0)\n"
              "os.lseek(fd, 60000, 0); sys.exit(not (os.read(fd, 100) == a and len(a) == 100 and os.pread(fd, 10, 120000) == b''))")
    procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=20).ok()


def test_a_pattern_beyond_all_numbers(hfs):
    name, _ = put(hfs, b"a/f{1..9223372036854775807}\n", check=False)
    assert name == "ENOSPC", errors(hfs)


def test_entries_have_a_limit(hfs):
    """16 Mi of them: @repeat is for more."""
    script = ("import errno, os, sys\n"
              "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_TRUNC); data = b'big\\t1\\t1\\n' * (1 << 17); n = 0\n"
              "try:\n"
              "    while n < 200: os.write(fd, data); n += 1\n"
              "except OSError as e: print(errno.errorcode[e.errno], n)\n")
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order")], timeout=60).ok()
    assert result.text.split() == ["ENOSPC", "128"]
    assert "the stream is full" in errors(hfs)
    assert hfs.status()["stream.default.entries"] == 1 << 24
    shell(hfs, ': > "$CTL/order"').ok()


# ---- status, README, prefetch, record, metrics, wait ----

KEYS = ("version source mode uptime_s origin_bytes origin_reads origin_errors needed_bytes demand_misses stall_s "
        "prefetch_useful_bytes prefetch_late_bytes prefetch_wasted_bytes slots_total slots_used slots_pinned inflight_bytes "
        "rss_bytes tier_state tier_bytes tier_inodes tier_hit_bytes tier_bad tier_bypass stale late_metadata streams "
        "pending_entries missing_entries bound_s bound_bytes").split()


def test_status_has_its_keys_in_order_and_each_once(hfs, origin):
    text = procs.run(["cat", os.path.join(hfs.ctl, "status")], timeout=5).ok().text
    keys = [line.split(" ")[0] for line in text.splitlines()]
    assert len(keys) == len(set(keys)), [k for k in keys if keys.count(k) > 1]
    assert [k for k in keys if k in KEYS] == KEYS
    status = hfs.status()
    assert status["source"] == origin and status["rss_bytes"] > 1 << 20 and status["slots_total"] == 64
    for key, value in status.items():
        assert isinstance(value, (int, float)) or key in ("version", "source", "mountpoint", "mode", "tier_state", "prefetch", "opens"), key


def test_status_holds_against_the_bounds(hfs, origin):
    keys = set(hfs.status())
    assert {"origin_ratio", "bound_ratio", "bound_sample", "read_time_s", "bound_time_s", "time_ratio"} <= keys
    assert {f"stall_{cause}_s" for cause in ("late", "tier", "slots", "evicted", "behind", "unnamed")} <= keys


def test_status_read_twice_through_one_descriptor_is_fresh(hfs):
    script = ("import os, sys\n"
              "f = open(sys.argv[1]); a = f.read(); f.seek(0); b = f.read(); print(a != b, len(a) > 500, len(b) > 500)\n"
              "fd = os.open(sys.argv[1], os.O_RDONLY); whole = b''\n"
              "while True:\n"
              "    part = os.read(fd, 100)\n"
              "    if not part: break\n"
              "    whole += part\n"
              "print(whole.startswith(b'version ') and whole.endswith(b'\\n'))\n")
    assert procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "status")], timeout=20).ok().text.split() == ["True"] * 4


def test_readme_teaches(hfs):
    text = procs.run(["cat", os.path.join(hfs.ctl, "README")], timeout=5).ok().text
    assert len(text.splitlines()) <= 45 and "%%" not in text and max(map(len, text.splitlines())) < 132
    for word in ("@batch", "@epoch", "@repeat", "@any", "@ordered", "@window", "@seek", "@done", "@cancel", "@prefix", "EXDEV"):
        assert word in text


def test_prefetch_reads_back(hfs):
    for word in ("off", "pause", "on"):
        shell(hfs, f'echo {word} > "$CTL/prefetch"').ok()
        assert shell(hfs, 'cat "$CTL/prefetch"').ok().text == word + "\n"
    assert shell(hfs, 'echo maybe > "$CTL/prefetch"').rc != 0 and "expected on, off or pause" in errors(hfs)


def test_record_follows_in_the_grammar(hfs, child):
    record = os.path.join(hfs.ctl, "record")
    reader = child(["cat", record])
    # Before that it would miss the only reads there are: a second time the page cache answers.
    procs.until(lambda: record in procs.open_files(reader.pid), 10, "record is open")
    procs.run(["cat", hfs.p("a", "f01"), hfs.p("a", "f02")], timeout=20).ok()
    procs.until(lambda: b"a/f01" in reader.out() and b"a/f02" in reader.out(), 10, lambda: f"recorded: {reader.out()!r}")
    reader.proc.send_signal(signal.SIGINT)  # default action: it leaves although nothing comes
    reader.proc.wait(5)
    put(hfs, b"\n".join(l for l in reader.out().split(b"\n")[:-1]) + b"\n")


def test_metrics_are_prometheus_text(hfs):
    text = procs.run(["cat", os.path.join(hfs.ctl, "metrics")], timeout=5).ok().text
    for line in text.splitlines():
        assert re.match(r"# (HELP|TYPE) hintfs_[a-z_]+ |hintfs_[a-z_]+\{mount=\"[^\"]+\"\} [0-9.e+-]+$", line), line
    assert "hintfs_origin_bytes_total" in text


def test_wait_returns_when_resident(hfs):
    put(hfs, "@batch 0\na/f01\na/f02\n@batch 1\na/f03\n")
    for text in ("batch 0", "stream default batch 1", "a/f03", "./a/f04"):
        shell(hfs, f'echo "{text}" > "$CTL/wait"').ok()
    before = hfs.status()["origin_bytes"]
    procs.run(["cat", *[hfs.p("a", f"f{i:02}") for i in (1, 2, 3, 4)]], timeout=20).ok()
    assert hfs.status()["origin_bytes"] == before, "what was waited for is in memory"
    for text, code in (("a/none", "No such file"), ("batch x", "Invalid"), ("stream nobody batch 1", "No such file"),
                       ("batch 77", "No such file"), ("../x", "cross-device")):
        result = shell(hfs, f'echo "{text}" > "$CTL/wait"')
        assert result.rc != 0 and code in result.err.decode(), (text, result.err)
    assert shell(hfs, 'echo big > "$CTL/wait"').err.endswith(b"No space left on device\n"), "it can never fit"


def test_waits_do_not_wait_for_each_other_and_can_be_left(mount, slow, origin, child):
    far = slow(origin)
    hfs = mount(far.path)
    procs.run(["cat", hfs.p("a", "f01")], timeout=20).ok()
    far.hang()
    waits = [child(["bash", "-c", f'echo a/f{i:02} > "{hfs.ctl}/wait"']) for i in (10, 11, 12)]
    procs.until(lambda: all(w.proc.poll() is None and procs_in_write(w.pid) for w in waits), 10, "three waits are parked")
    shell(hfs, 'echo a/f01 > "$CTL/wait"').ok()
    hfs.status()
    for w in waits:
        w.proc.send_signal(signal.SIGTERM)
    for w in waits:
        assert w.proc.wait(5) != 0
    far.unhang()


def procs_in_write(pid):
    try:
        with open(f"/proc/{pid}/syscall") as f:
            return f.read().startswith("1 ")
    except OSError:
        return False


# ---- the origin hangs ----

def test_an_order_is_accepted_unchecked_while_the_origin_hangs(mount, slow, origin):
    far = slow(origin)
    hfs = mount(far.path)
    far.hang()
    put(hfs, "a/f01\na/none\n" * 20)
    assert len(pending(hfs)) == 40
    assert hfs.status()["control_unchecked"] > 0 and hfs.status()["stream.default.unchecked_entries"] > 0
    far.unhang()


def test_a_writer_that_waits_for_a_hung_directory_can_be_killed(mount, slow, origin, child):
    far = slow(origin)
    hfs = mount(far.path)
    far.hang()
    writer = child(["bash", "-c", f'echo a/ > "{hfs.ctl}/order"'])
    procs.until(lambda: procs_in_write(writer.pid), 10, "the write is parked")
    put(hfs, "a/f01\n", "streams/other")
    hfs.status()
    writer.proc.kill()
    writer.proc.wait(5)
    far.unhang()
    procs.until(lambda: hfs.status()["stream.default.entries"] == 0, 5)


def test_the_daemon_ends_while_writers_wait(mount, slow, origin, child):
    far = slow(origin)
    hfs = mount(far.path)
    far.hang()
    children = [child(["bash", "-c", f'echo a/ > "{hfs.ctl}/order"']), child(["bash", "-c", f'echo a/f20 > "{hfs.ctl}/wait"']),
                child(["cat", os.path.join(hfs.ctl, "record")])]
    procs.until(lambda: all(procs_in_write(c.pid) for c in children[:2]), 10, "two writers are parked")
    hfs.stop("term")
    for c in children:
        c.proc.wait(5)
    far.unhang()


# ---- who may ----

def as_nobody(text, **more):
    def drop():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return procs.run(["bash", "-c", text], timeout=20, preexec_fn=drop, env={**os.environ, **more})


def test_another_user_needs_permission(mount, origin, tmp):
    os.chmod(tmp, 0o755)
    closed = mount(origin)
    os.chmod(os.path.dirname(closed.path), 0o755)
    assert b"Permission denied" in as_nobody('echo a/f01 > "$CTL/order"', CTL=closed.ctl).err
    assert as_nobody('cat "$CTL/status"', CTL=closed.ctl).rc != 0
    mine = mount(origin, uid=NOBODY, gid=NOBODY)
    os.chmod(os.path.dirname(mine.path), 0o755)
    as_nobody('echo a/f01 > "$CTL/order" && echo a/f02 > "$CTL/streams/r0" && rm "$CTL/streams/r0" && cat "$CTL/status"',
              CTL=mine.ctl).ok()
    assert pending(mine) == ["a/f01"]
    assert procs.run(["stat", "-c", "%u %g %a", os.path.join(mine.ctl, "order")], timeout=5).text.split()[:2] == [str(NOBODY)] * 2


def test_a_group_may_write(mount, origin, tmp):
    os.chmod(tmp, 0o755)
    hfs = mount(origin, gid=NOBODY)
    os.chmod(os.path.dirname(hfs.path), 0o755)
    assert procs.run(["stat", "-c", "%a", os.path.join(hfs.ctl, "order")], timeout=5).text.strip() == "660"
    as_nobody('echo a/f01 > "$CTL/order"', CTL=hfs.ctl).ok()
    assert pending(hfs) == ["a/f01"]


def test_in_a_container(hfs, tmp, origin):
    """Two volumes bound into another mount namespace, the data read-only: the order is written through the second one."""
    put(hfs, "a/f01\n")
    text = """
      mkdir -p "$R/data" "$R/ctl"
      mount --bind "$MNT" "$R/data" && mount -o remount,bind,ro "$R/data" && mount --bind "$CTL" "$R/ctl" || exit 1
      umount "$MNT" "$CTL" 2>/dev/null
      test "$(cat "$R/data/a/f01" | wc -c)" = 10000 || exit 2
      printf '@prefix %s\\n%s/a/f02\\n' "$R/data" "$R/data" > "$R/ctl/order" || exit 3
      echo x > "$R/data/new" && exit 4
      echo a/f02 > "$R/ctl/wait" || exit 5
      cat "$R/ctl/status" > /dev/null
    """
    result = procs.run(["unshare", "-m", "--propagation", "private", "bash", "-c", text], timeout=30,
                       env={**os.environ, "R": os.path.join(tmp, "container"), "MNT": hfs.path, "CTL": hfs.ctl})
    assert result.rc == 0, (result.rc, result.err)
    assert pending(hfs) == ["a/f02"]


def test_ctl_is_found_but_not_listed(hfs):
    assert ".ctl" not in procs.run(["ls", "-a", hfs.path], timeout=10).ok().text.split()
    shell(hfs, 'echo a/f09 > "$MNT/.ctl/order"').ok()
    assert pending(hfs) == ["a/f09"]


# ---- hostile bytes ----

def test_garbage_never_breaks_it(hfs):
    script = ("import os, random, sys\n"
              "rng = random.Random(5); refused = 0\n"
              "words = [b'@batch', b'@window', b'{', b'}', b',', b'..', b'::', b'\\t', b'\\n', b'\"', b'\\\\u00', b'a/f01', b'/',\n"
              "         b'\\r', b'\\0', b'9' * 30]\n"
              "for i in range(120):\n"
              "    data = bytes(rng.randrange(256) for _ in range(500)) if i % 2 else \\\n"
              "        b''.join(rng.choice(words) for _ in range(rng.randrange(1, 200)))\n"
              "    fd = os.open(sys.argv[1 + i % 2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)\n"
              "    try: os.write(fd, data); os.close(fd)\n"
              "    except OSError: refused += 1\n"
              "print(refused)\n")
    result = procs.run(["python3", "-c", script, os.path.join(hfs.ctl, "order"), os.path.join(hfs.ctl, "streams", "g")], timeout=50)
    assert int(result.ok().text) > 20
    hfs.status()
    put(hfs, "a/f01\n")
    assert pending(hfs) == ["a/f01"]


def test_ingest_is_fast_enough_to_be_used(hfs):
    """No time is asserted (tests/bench does that figure); the memory is: 24 bytes an entry."""
    count = 1281167 if env.IS_FULL else 300000
    data = b"".join(b"big\t%d\t8192\n" % ((i * 7919) % (1 << 29)) for i in range(count))
    put(hfs, data)
    status = hfs.status()
    assert status["stream.default.entries"] == count
    assert status["entry_bytes"] <= 24 * count + (1 << 20), status["entry_bytes"] / count
    assert len(pending(hfs)) == count


def test_status_tells_of_what_went_astray(hfs):
    """Counters of reads whose fetch was lost, or late although nothing moved, and of pages nobody knew of: there, and 0."""
    status = hfs.status()
    assert [status[key] for key in ("lost", "overdue", "shed")] == [0, 0, 0]


def test_what_one_stream_asked_the_next_knows(mount, slow, origin):
    """8 ranks name the same files: the origin is asked for each once, not once a stream."""
    far = slow(origin)
    hfs = mount(far.path, immutable=True)
    put(hfs, "@prefix /x\n")  # the root has been looked at
    text = "".join(f"a/f{i:02}\n" for i in range(8))

    def asked():
        return sum(r.op in ("LOOKUP", "GETATTR") and r.path == "a" for r in far.records(op=None))

    def opened():
        return sum(row["OPEN"] for path, row in far.counters().items() if path in text)

    put(hfs, text, "streams/rank0")
    procs.until(lambda: opened() == 8, 10, "the prefetch of all")
    procs.until(lambda: hfs.status()["inflight_bytes"] in (0, "0"), 10, "its end")
    before = asked()
    for rank in range(1, 8):
        put(hfs, text, f"streams/rank{rank}")
    assert asked() == before
    assert put(hfs, "a/f99\n", "streams/rank8", check=False)[0] == "ENOENT"
