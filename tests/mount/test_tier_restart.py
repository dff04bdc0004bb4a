# SPDX-License-Identifier: Apache-2.0
"""What a restart over a filled disk tier costs: the origin's operations a file, and how soon the mount answers."""
import os
import time

import pytest

from lib import env, pattern, procs, tree

CHUNK = tree.CHUNK
TOOL = env.BUILD / "tests/fault/tier/tier_tool"


def test_one_check_of_identity_a_file(mount, slow, tmp):
    folder, n, size = os.path.join(tmp, "origin"), 40, CHUNK + 999
    pattern.make_many(folder, n, size)
    pattern.make_many(os.path.join(folder, "small"), n, 20_000)
    far = slow(folder)
    opts = {"memory": "32M", "cache_dir": os.path.join(tmp, "cache"), "cache_size": "256M", "cache_free": "0"}
    hfs = mount(far.path, **opts)
    procs.run([env.binary("tools", "hintctl"), "warm", hfs.path], timeout=60, check=True)
    hfs.stop()
    hfs = mount(far.path, **opts)
    procs.until(lambda: hfs.status()["tier_state"] == "on", 20, "adopted")
    far.reset()
    for i in range(n):
        pattern.check(hfs.p("f%04d" % i), i + 1, size).ok()
        pattern.check(hfs.p("small", "f%04d" % i), i + 1, 20_000).ok()
    counters = far.counters()
    assert far.totals()["READ"] == 0 and far.totals()["bytes"] == 0
    for path, count in counters.items():
        if os.path.isfile(os.path.join(folder, path)):
            assert count.get("OPEN", 0) <= 1, (path, count)


@pytest.mark.timeout(580)
@pytest.mark.skipif(bool(env.SANITIZER), reason="a time is asserted")
def test_it_answers_at_once_over_many_files(mount, tmp):
    """The requirement is a time: 2 s with 200,000 files in the cache and memory=6G."""
    n, folder, cache = env.scaled(40_000, 200_000), os.path.join(tmp, "origin"), os.path.join(tmp, "cache")
    os.mkdir(folder)
    pattern.make(os.path.join(folder, "one"), 1, CHUNK)
    procs.run([TOOL, f"--files={n}", "--bytes=1000", "--size=4294967296", cache, "fill"], timeout=500, check=True)
    begun = time.monotonic()
    hfs = mount(folder, memory="6G", cache_dir=cache, cache_size="4G", cache_free="0")
    took = time.monotonic() - begun
    pattern.check(hfs.p("one"), 1, CHUNK).ok()
    procs.until(lambda: hfs.status()["tier_state"] == "on", 60, lambda: f"adopted: {hfs.status()}", poll_s=0.05)
    assert hfs.status()["tier_files_small"] >= n, hfs.status()
    assert took <= 2, took
