# SPDX-License-Identifier: Apache-2.0
"""The disk tier before a real NFS server: what a restart costs on the wire, counted by the NFS client itself."""
import os

import pytest

from lib import procs
from nfs import CACHE

MIB = 1 << 20
SIZE, SMALL, FILES = 2 * MIB + 4321, 20_000, 6
ALL = FILES * (SIZE + SMALL)


@pytest.fixture
def stage(nfs, mount, reader):
    class Stage:
        one = reader()
        source = nfs.mounted("hard")
        point = os.path.dirname(source)
        opts = {"memory": "16M", "cache_dir": os.path.join(CACHE, nfs.name), "cache_size": "128M", "cache_free": 0}

        def start(self):
            hfs = mount(self.source, **self.opts)
            procs.until(lambda: hfs.status()["tier_state"] == "on", 20, lambda: f"tier: {hfs.status()}")
            return hfs

        def read_all(self, hfs, changed=()):
            for i in range(FILES):
                assert self.one.cat(hfs.p(f"f{i}")) == [9 if f"f{i}" in changed else i, SIZE]
                assert self.one.cat(hfs.p(f"s{i}")) == [9 if f"s{i}" in changed else i, SMALL]

    for i in range(FILES):
        nfs.put(f"f{i}", i, SIZE)
        nfs.put(f"s{i}", i, SMALL)
        for name in (f"f{i}", f"s{i}"):  # not of this moment: young files are not kept at once
            os.utime(nfs.at_server(name), (1_600_000_000, 1_600_000_000))
    return Stage()


def filled(hfs, amount=ALL):
    procs.until(lambda: hfs.status()["tier_bytes"] >= amount, 20, lambda: f"kept: {hfs.status()}")


def test_a_restart_reads_nothing_over_the_wire(nfs, stage):
    hfs = stage.start()
    stage.read_all(hfs)
    filled(hfs)
    hfs.stop()
    before = nfs.operations(stage.point)
    assert before["READ"] > 0
    hfs = stage.start()
    stage.one.call("drop_caches")  # the NFS client's pages too: nothing but the tier can answer
    stage.read_all(hfs)
    after = nfs.operations(stage.point)
    status = hfs.status()
    assert after["READ"] == before["READ"] and status["origin_bytes"] == 0, (before, after)
    assert status["tier_hit_bytes"] >= ALL and status["tier_bad"] == 0
    asked = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    print("operations for", 2 * FILES, "files after the restart:", asked)
    assert asked.get("OPEN", 0) + asked.get("OPEN_NOATTR", 0) <= 2 * FILES, asked


def test_only_what_changed_comes_again(nfs, stage):
    hfs = stage.start()
    stage.read_all(hfs)
    filled(hfs)
    hfs.stop()
    nfs.rewrite_quietly("f1", 9)
    nfs.replace("s2", 9, SMALL)
    hfs = stage.start()
    stage.read_all(hfs, changed=("f1", "s2"))
    assert hfs.status()["origin_bytes"] == SIZE + SMALL
    nfs.rewrite_quietly("f3", 9)  # and while we are up
    stage.read_all(hfs, changed=("f1", "s2", "f3"))
    assert hfs.status()["origin_bytes"] == 2 * SIZE + SMALL


def test_killed_and_started_again(nfs, stage):
    hfs = stage.start()
    stage.read_all(hfs)
    filled(hfs)
    hfs.proc.kill()
    hfs.proc.wait(10)
    hfs.start()
    procs.until(lambda: hfs.status()["tier_state"] == "on", 20, lambda: f"tier: {hfs.status()}")
    stage.read_all(hfs)
    assert hfs.status()["tier_bad"] == 0
