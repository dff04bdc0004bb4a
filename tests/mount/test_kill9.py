# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the daemon under load, then the same command again: it mounts, and all bytes are right."""
import os
import signal

from lib import env, mounts, pattern, procs, tree

SIZE = 8 * tree.CHUNK


def load(hfs, origin):
    """Readers that never end by themselves, and an order writer."""
    reading = [procs.Child(f'while :; do "{env.prog("mt_cmp")}" {way} "{hfs.p("data")}" "{origin}/data" || exit 9; done')
               for way in ("read", "direct", "mmap_shared")]
    order = "".join(f"data\t{i * 4096 % SIZE}\t4096\n" for i in range(20_000))
    return reading, procs.Child(["sh", "-c", f'while :; do cat > "{hfs.ctl}/order" || exit 9; done'], stdin=order.encode())


def test_the_same_command_mounts_again(mount, slow, tmp):
    origin = os.path.join(tmp, "origin")
    os.mkdir(origin)
    pattern.make(os.path.join(origin, "data"), 1, SIZE)
    far = slow(origin, latency="1ms")
    hfs = mount(far.path, memory="6M", start=False)
    for _ in range(env.scaled(5, 100)):
        hfs.start()
        before = far.totals()["READ"]
        reading, writer = load(hfs, origin)
        procs.until(lambda: far.totals()["READ"] > before + 5, 20, "load on the origin")
        os.kill(hfs.pid, signal.SIGKILL)
        hfs.proc.wait(10)
        for child in (*reading, writer):
            assert child.wait(10).rc != 0, "a reader that saw nothing of the death of the daemon"
        assert mounts.is_mounted(hfs.path), "the dead mount is what the next start has to clear"
    hfs.start()
    pattern.check(hfs.p("data"), 1, SIZE).ok()
    assert hfs.order("data\n").rc == 0
    assert len([row for row in mounts.table() if row[0] == hfs.path]) == 1, "dead mounts are left below"


def test_kill9_while_the_origin_hangs(mount, slow, tmp):
    origin = os.path.join(tmp, "origin")
    os.mkdir(origin)
    pattern.make(os.path.join(origin, "data"), 1, SIZE)
    far = slow(origin)
    hfs = mount(far.path)
    far.hang("*")
    reader = procs.Child([env.prog("mt_stuck"), "read", hfs.p("data"), 1, 1, 8, tree.CHUNK])
    far.wait_hung(1)
    os.kill(hfs.pid, signal.SIGKILL)
    hfs.proc.wait(10)
    assert reader.wait(5).rc != 0
    far.unhang()
    hfs.start()
    pattern.check(hfs.p("data"), 1, SIZE).ok()
