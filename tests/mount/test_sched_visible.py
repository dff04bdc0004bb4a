# SPDX-License-Identifier: Apache-2.0
"""What control lines do, seen from the origin: the order of fetches and evictions in slowfs's log.

Files are one chunk long, so that a READ at the origin names what was fetched. Readers use O_DIRECT, so that every read
reaches the daemon. That something is *not* fetched can only be seen by waiting until the origin has been quiet for a while.
"""
import concurrent.futures
import os
import random
import time

import pytest

from lib import env, pattern, procs, tree

CHUNK = 65536
FILES = 64
QUIET_S = 0.4
# Chunks of @window where an order is looked at. Without one as many fetches are under way as the link was seen to carry, and how many of
# those overtake a thread that is kept from running has no bound but that; with one nothing is fetched that stands farther behind what is done.
WINDOW = 8


def name(i):
    return "f%04d" % i


def names(*indices):
    return "".join(name(i) + "\n" for i in indices)


class Stage:
    def __init__(self, far, hfs, folder):
        self.far, self.hfs, self.folder = far, hfs, folder

    def write(self, text, append=True):
        result = self.hfs.order(text, append=append)
        assert result.rc == 0, result.err

    def read(self, i):
        """One file, past the page cache."""
        procs.run([env.prog("mt_cmp"), "direct", self.hfs.p(name(i)), os.path.join(self.folder, name(i)), 0, CHUNK], check=True)

    def fetched(self):
        """Numbers of the files fetched so far, in order of arrival at the origin (again when fetched again)."""
        return [int(r.path[1:]) for r in self.far.records() if r.path.startswith("f")]

    def when_fetched(self, *indices, timeout=20):
        procs.until(lambda: set(indices) <= set(self.fetched()), timeout,
                    lambda: f"fetched {self.fetched()[-40:]}, not {sorted(set(indices) - set(self.fetched()))[:20]}", poll_s=0.03)
        return self.fetched()

    def when_quiet(self, timeout=20):
        """The numbers, once no READ has come for a while and none is under way."""
        seen = [None, time.monotonic()]

        def is_quiet():
            now = self.far.totals()
            state = (now["READ"], now["parallel_reads"], now["hung"], now["queued"])
            if state != seen[0]:
                seen[:] = [state, time.monotonic()]
            return state[1:] == (0, 0, 0) and time.monotonic() - seen[1] >= env.seconds(QUIET_S)

        procs.until(is_quiet, timeout, lambda: f"the origin is never quiet: {seen[0]}", poll_s=0.03)
        return self.fetched()

    def wait(self, text, timeout=20):
        """Write to .ctl/wait: returns when it is resident."""
        return procs.run(f'echo "{text}" > "{self.hfs.ctl}/wait"', timeout=timeout)


@pytest.fixture
def stage(mount, slow, tmp):
    folder = os.path.join(tmp, "origin")
    pattern.make_many(folder, FILES, CHUNK)

    def made(memory="16M", latency="1ms", link=None, **opts):
        far = slow(folder, latency=latency, **(link or {}))
        return Stage(far, mount(far.path, chunk=str(CHUNK), memory=str(memory), **opts), folder)

    return made


def slips(seen, wanted):
    """For each first appearance in `seen`: how many that stand before it in `wanted` are still to come."""
    ahead = {i: at for at, i in enumerate(wanted)}
    left, missing = sorted(ahead.values()), []
    for i in dict.fromkeys(seen):
        missing.append(left.index(ahead[i]))
        left.remove(ahead[i])
    return missing


def test_the_judge_of_order():
    assert slips([0, 1, 2, 2, 0, 3], range(4)) == [0, 0, 0, 0]
    assert slips([1, 2, 3, 0], range(4)) == [1, 1, 1, 0], "one was kept waiting"
    assert slips([3, 2, 1, 0], range(4)) == [3, 2, 1, 0]
    assert slips([2, 0, 1], [2, 0, 1]) == [0, 0, 0]


def walk(s, lines, fetched):
    """Nobody reads: each time all of the window has come, it is said to be done. What fetched() gives at the end."""
    def came(count):
        procs.until(lambda: len(set(fetched())) >= count, 20, lambda: f"{count} fetched: {fetched()}", poll_s=0.03)

    s.write(f"@window {WINDOW * CHUNK}\n" + "".join(lines), append=False)
    for done in range(WINDOW, len(lines), WINDOW):
        came(done)
        s.write(f"@done {done - 1}\n")
    came(len(lines))
    s.when_quiet()
    return fetched()


@pytest.mark.parametrize("seed", [1, 2])
def test_files_are_fetched_in_the_written_order(stage, seed):
    s = stage()
    order = list(range(FILES))
    random.Random(seed).shuffle(order)
    seen = walk(s, [names(i) for i in order], s.fetched)
    assert sorted(seen) == sorted(order), "each file once"
    assert max(slips(seen, order)) <= WINDOW
    assert max(slips(seen, range(FILES))) > WINDOW, "and not in the order of names"


def test_ranges_are_fetched_in_the_written_order(stage, tmp):
    """Offsets into one big file, backwards."""
    s = stage()
    pattern.make(os.path.join(s.folder, "big"), 5, 32 * CHUNK)
    order = list(range(31, -1, -1))
    seen = walk(s, [f"big\t{i * CHUNK}\t{CHUNK}\n" for i in order], lambda: [r.offset // CHUNK for r in s.far.records(path="big")])
    assert sorted(seen) == list(range(32)) and max(slips(seen, order)) <= WINDOW


def test_replacing_the_list_drops_what_only_the_old_one_wanted(stage):
    s = stage(latency="20ms")
    s.write(f"@window {WINDOW * CHUNK}\n" + names(*range(32)), append=False)
    s.when_fetched(0)
    s.write(names(*range(63, 40, -1)), append=False)
    s.when_fetched(*range(63, 40, -1))
    seen = s.when_quiet()
    assert not set(range(WINDOW + 1, 32)) & set(seen), seen


def test_window_caps_how_far_ahead_is_fetched(stage):
    s = stage()
    s.write(f"@window {4 * CHUNK}\n" + names(*range(FILES)), append=False)
    assert sorted(set(s.when_quiet())) == [0, 1, 2, 3]
    for i in range(3):
        s.read(i)
    s.when_fetched(4, 5, 6)
    assert sorted(set(s.when_quiet())) in (list(range(7)), list(range(8)))
    free = stage()
    free.write(names(*range(FILES)), append=False)
    free.when_fetched(*range(FILES))


def test_window_in_batches(stage):
    s = stage()
    text = "".join(f"@batch {b}\n" + names(*range(4 * b, 4 * b + 4)) for b in range(FILES // 4))
    s.write("@window 2 batches\n" + text, append=False)
    assert sorted(set(s.when_quiet())) in (list(range(8)), list(range(12)))  # two ahead of, or after, the one being read
    for i in range(8):
        s.read(i)
    seen = set(s.when_quiet())
    assert set(range(16)) <= seen and max(seen) < 20, sorted(seen)


@pytest.mark.parametrize("mark", ["@seek 40", "@done 40"])
def test_seek_and_done_move_the_fetches(stage, mark):
    s = stage()
    s.write(f"@window {4 * CHUNK}\n" + names(*range(FILES)), append=False)
    assert sorted(set(s.when_quiet())) == [0, 1, 2, 3]
    s.write(mark + "\n")
    s.when_fetched(41, 42, 43)
    seen = set(s.when_quiet())
    assert not seen & set(range(5, 39)) and not seen & set(range(46, FILES)), sorted(seen)


def test_seek_goes_back_too(stage):
    """After reading on, @seek 0 begins again: what has left memory is fetched again."""
    s = stage(memory=8 * CHUNK)
    s.write(f"@window {4 * CHUNK}\n" + names(*range(40)), append=False)
    for i in range(24):
        s.read(i)
    s.when_quiet()
    s.far.reset()
    s.write("@seek 0\n")
    # What was read first is still there (of dead pages the oldest are kept); the fetches go on from there.
    for i in range(4):
        s.read(i)
    s.when_fetched(5, 6)
    assert set(s.when_quiet()) <= set(range(4 + 4 + 1)), s.fetched()


def test_a_reader_that_goes_back_is_followed(stage):
    """No @seek is written: after some reads the fetches go on from where the reader is, and no reader has to wait."""
    s = stage(memory=16 * CHUNK)
    s.write(f"@window {4 * CHUNK}\n" + names(*range(FILES)), append=False)
    for i in range(48):
        s.read(i)
    s.when_quiet()
    s.far.reset()
    for i in range(20, 30):
        s.read(i)
    s.when_fetched(30, 31, 32)
    assert max(i for i in s.when_quiet() if i < 48) < 36, s.fetched()


def test_done_batch_moves_the_fetches(stage):
    s = stage()
    text = "".join(f"@batch {b}\n" + names(*range(4 * b, 4 * b + 4)) for b in range(FILES // 4))
    s.write(f"@window {4 * CHUNK}\n" + text, append=False)
    assert sorted(set(s.when_quiet())) == [0, 1, 2, 3]
    s.write("@done batch 7\n")
    s.when_fetched(32, 33, 34, 35)
    seen = set(s.when_quiet())
    assert not seen & set(range(5, 32)) and not seen & set(range(37, FILES)), sorted(seen)


def test_done_frees_what_was_held_for_it(stage):
    """Few slots, all filled with the head of the list: nothing more comes until the head is said to be done."""
    s = stage(memory=8 * CHUNK)
    s.write(names(*range(FILES)), append=False)
    first = s.when_quiet()
    assert len(set(first)) <= 8 and set(first) == set(range(len(set(first)))), first
    s.write("@done 4\n")
    last = len(set(first))
    s.when_fetched(last, last + 1)
    assert 0 not in s.when_quiet()[len(first):], "what is done is not fetched again"


def test_cancel_stops_the_fetches(stage):
    s = stage(latency="30ms")
    s.write(names(*range(FILES)), append=False)
    s.when_fetched(0)
    s.write("@cancel\n")
    seen = s.when_quiet()
    assert len(set(seen)) < FILES and s.hfs.status()["pending_entries"] == 0, len(seen)
    s.write(names(63), append=False)
    s.when_fetched(63)


JUMP = 150  # beyond every reorder window: in an ordered list, several reads here mean that the reader is here


def read_far_ahead(s, mark):
    """A list of 200 chunks of one file with a window of four; the reader takes numbers 150 to 161, then 0 to 2."""
    big = pattern.make(os.path.join(s.folder, "big"), 5, 200 * CHUNK)
    s.write(f"@window {4 * CHUNK}\n{mark}\n" + "".join(f"big\t{i * CHUNK}\t{CHUNK}\n" for i in range(200)), append=False)
    s.when_quiet()
    for i in (*range(JUMP, JUMP + 12), 0, 1, 2):
        procs.run([env.prog("mt_cmp"), "direct", s.hfs.p("big"), big, i * CHUNK, CHUNK, CHUNK], check=True)
    s.when_quiet()
    return {r.offset // CHUNK for r in s.far.records(path="big")}


def test_any_order_is_served_by_a_bag(stage):
    """In a list the fetches follow the reader who leaps; in a bag nothing is passed over, the rest comes in its turn."""
    in_bag, in_line = read_far_ahead(stage(), "@any"), read_far_ahead(stage(), "@ordered")
    assert {4, 5, 6} <= in_bag and not in_bag & set(range(JUMP + 12, 200)), sorted(in_bag)
    assert in_line & set(range(JUMP + 12, 200)) and not {5, 6} <= in_line, sorted(in_line)


def test_repeat_brings_the_list_again(stage):
    """Few slots: near the end of the first round the head is fetched again, before anybody reads it."""
    s, once = stage(memory=8 * CHUNK), stage(memory=8 * CHUNK)
    s.write(names(*range(20)) + "@repeat 2\n", append=False)
    once.write(names(*range(20)), append=False)
    for one in (s, once):
        for i in range(20):
            one.read(i)
    procs.until(lambda: s.fetched().count(0) + s.fetched().count(1) >= 3 or len(s.fetched()) > 20, 20,
                lambda: f"head again: {s.fetched()}")
    again = s.when_quiet()[20:]
    assert again and min(again) < 4, again
    assert len(once.when_quiet()) == 20, once.fetched()
    for i in range(20):
        s.read(i)


def test_epoch_counts_batches_anew(stage):
    """`wait batch 1` after the first epoch is done means batch 1 of the second: its files come before their turn."""
    def play(separator):
        s = stage()
        first = "@batch 0\n" + names(*range(8)) + "@batch 1\n" + names(*range(8, 16))
        second = "@batch 0\n" + names(*range(16, 40)) + "@batch 1\n" + names(*range(40, 44))
        s.write(f"@window {2 * CHUNK}\n@epoch 0\n" + first + separator + second, append=False)
        s.when_quiet()
        s.write("@done 1\n")  # in a list with @batch the number is that of a batch, of the current epoch
        s.when_fetched(16)
        assert s.wait("stream default batch 1").rc == 0
        return s.when_quiet()

    seen = play("@epoch 1\n")
    assert {40, 41, 42, 43} <= set(seen) and not set(range(20, 40)) & set(seen), seen


def test_batches_are_what_a_wait_names(stage):
    """A wait for a batch far beyond the window brings its files before their turn, and returns when they are there."""
    s = stage()
    text = "".join(f"@batch {b}\n" + names(*range(4 * b, 4 * b + 4)) for b in range(FILES // 4))
    s.write(f"@window {4 * CHUNK}\n" + text, append=False)
    s.when_quiet()
    assert s.wait("stream default batch 10").rc == 0
    seen = s.fetched()
    assert {40, 41, 42, 43} <= set(seen), seen
    assert not set(s.when_quiet()) & set(range(8, 40)), seen
    before = len(s.fetched())
    for i in range(40, 44):
        s.read(i)
    assert not set(s.when_quiet()[before:]) & {40, 41, 42, 43}, "what was waited for is resident"


def test_wait_for_a_path(stage):
    s = stage()
    assert s.wait(name(50)).rc == 0
    assert 50 in s.fetched()
    count = s.fetched().count(50)
    s.read(50)
    assert s.fetched().count(50) == count


def test_prefetch_off_and_on(stage):
    s = stage()
    procs.run(f'echo off > "{s.hfs.ctl}/prefetch"', check=True)
    s.write(names(*range(FILES)), append=False)
    assert s.when_quiet() == []
    procs.run(f'echo on > "{s.hfs.ctl}/prefetch"', check=True)
    s.when_fetched(*range(FILES))


def test_two_streams_share_the_window(stage):
    """Two ranks, one list each: neither starves, and what both name is fetched once."""
    s = stage(memory=24 * CHUNK)
    assert s.hfs.order(names(*range(0, 30)), stream="rank0").rc == 0
    assert s.hfs.order(names(*range(20, 50)), stream="rank1").rc == 0
    for i in range(30):
        s.read(i)
        s.read(20 + i)
    seen = s.when_quiet()
    assert set(range(50)) <= set(seen)
    assert len(seen) <= 50 + 10, f"{len(seen)} fetches for 50 files"


def test_evicted_is_what_is_needed_last(stage):
    """A cycle longer than memory: the least recently used page is the next one needed, so LRU would fetch everything again."""
    s = stage(memory=16 * CHUNK)
    rounds, files = 4, 24
    s.write(names(*range(files)) * rounds, append=False)
    for _ in range(rounds):
        for i in range(files):
            s.read(i)
    seen = s.when_quiet()
    lru = rounds * files
    assert len(seen) <= lru - (rounds - 1) * 6, f"{len(seen)} fetches; the least recently used order needs {lru}"
    assert set(seen) == set(range(files))


@pytest.mark.timeout(90)
@pytest.mark.parametrize("window", ["", "@window 8M\n"])
def test_a_reader_that_stops_costs_one_window(mount, slow, tmp, window):
    """10 GiB are written down, 10 MiB are read: what comes on top is one window (law 9)."""
    folder = os.path.join(tmp, "big")
    os.mkdir(folder)
    for i in range(10):
        with open(os.path.join(folder, f"shard{i}"), "wb") as f:
            f.truncate(1 << 30)
    far = slow(folder)
    hfs = mount(far.path, memory="32M")
    s = Stage(far, hfs, folder)
    s.write(window + "shard{0..9}\n", append=False)
    procs.run([env.prog("mt_cmp"), "read", hfs.p("shard0"), os.path.join(folder, "shard0"), 0, 10 * tree.CHUNK], check=True)
    s.when_quiet(timeout=30)
    limit = 10 + (8 if window else 32) + 4
    assert 10 * tree.CHUNK <= far.totals()["bytes"] <= limit * tree.CHUNK, far.totals()["bytes"] / tree.CHUNK


@pytest.mark.timeout(90)
def test_an_order_that_is_wrong_in_every_line(stage):
    """Nobody reads what is written down: bytes at most twice those without hints, and demand is served all the same."""
    plain, misled = stage(memory=16 * CHUNK), stage(memory=16 * CHUNK)
    misled.write(names(*range(32)) + "@repeat 50\n", append=False)
    rng = random.Random(3)
    reads = [rng.randrange(32, 64) for _ in range(200)]
    for i in reads:
        plain.read(i)
        misled.read(i)
    without, with_it = len(plain.when_quiet()), len(misled.when_quiet())
    assert without > 50 and with_it <= 2 * without, (without, with_it)
    assert misled.hfs.status()["prefetch_wasted_bytes"] > 0


def test_demand_overtakes_prefetch(stage):
    """A read of a file that no order names does not wait behind the queue of the order."""
    s = stage(latency="15ms")
    s.write(names(*range(60)), append=False)
    s.when_fetched(0)
    s.read(63)
    seen = s.fetched()
    assert 63 in seen[:60] and seen.index(63) < 50, seen
    s.when_fetched(*range(60))


# ---- status against the bounds ----

CAUSES = ("late", "tier", "slots", "evicted", "behind", "unnamed")


def causes(status):
    return {c: status[f"stall_{c}_s"] for c in CAUSES}


def test_a_stall_without_an_order_is_of_pages_that_nobody_named(stage):
    s = stage(latency="20ms")
    for i in (5, 50, 23, 41, 9):
        s.read(i)
    st = s.hfs.status()
    waited = causes(st)
    assert waited["unnamed"] >= 5 * 0.02 and sum(waited.values()) == pytest.approx(waited["unnamed"], abs=0.01), waited
    assert st["bound_bytes"] == st["needed_bytes"] == st["origin_bytes"] == 5 * CHUNK
    assert st["bound_ratio"] == st["origin_ratio"] == 1
    assert st["bound_s"] == 0, "no order, nothing to come"
    assert 0 < st["bound_time_s"] <= st["read_time_s"] and st["time_ratio"] >= 1


def test_a_stall_with_prefetch_off_is_of_pages_that_an_order_names(stage):
    s = stage(latency="20ms")
    with open(os.path.join(s.hfs.ctl, "prefetch"), "w") as f:
        f.write("off")
    s.write(names(*range(8)), append=False)
    for i in range(8):
        s.read(i)
    waited = causes(s.hfs.status())
    assert waited["behind"] >= 7 * 0.02 and waited["behind"] > 0.8 * sum(waited.values()), waited


def test_a_stall_for_what_is_on_its_way_is_late(stage):
    s = stage(link={"bandwidth": "128K"})  # half a second a file, one after the other
    s.write(names(*range(8)), append=False)
    procs.until(lambda: s.far.totals()["parallel_reads"] > 0, 20, "a fetch is under way", poll_s=0.01)
    for i in range(8):
        s.read(i)
    waited = causes(s.hfs.status())
    assert waited["late"] > 0 and waited["unnamed"] == waited["tier"] == waited["evicted"] == 0, waited
    assert s.hfs.status()["bound_s"] == 0, "all of it was read"


def test_a_stall_for_what_the_disk_tier_has_is_of_the_tier(stage, tmp):
    """8 files, 4 slots, all on the disk: read again, and nothing is read ahead."""
    s = stage(memory="256K", immutable=True, cache_dir=os.path.join(tmp, "cache"), cache_size="64M", cache_free=0)
    for i in range(8):
        s.read(i)
        procs.until(lambda: s.hfs.status()["tier_bytes"] >= (i + 1) * CHUNK, 20, "the page is on the disk", poll_s=0.02)
    with open(os.path.join(s.hfs.ctl, "prefetch"), "w") as f:
        f.write("off")
    before = s.hfs.status()
    for i in range(8):
        s.read(i)
    st = s.hfs.status()
    waited = {c: v - causes(before)[c] for c, v in causes(st).items()}
    assert st["tier_hit_bytes"] > before["tier_hit_bytes"] and st["origin_bytes"] == before["origin_bytes"]
    assert waited.pop("tier") > 0, waited
    waited.pop("slots")  # the moment in which the page before is told to go
    assert not any(waited.values()), waited


def test_a_stall_of_more_readers_than_slots_is_of_slots(stage):
    s = stage(memory="256K", latency="100ms")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(s.read, range(16)))
    waited = causes(s.hfs.status())
    assert waited["slots"] >= 0.1, waited
    assert waited["tier"] == waited["evicted"] == waited["behind"] == 0, waited


def test_a_stall_for_what_was_evicted_unread_is_of_evicted(stage):
    """Readers of other files take half of the slots from an order that nobody reads."""
    s = stage(memory="1M", latency="20ms")
    s.write(names(*range(16)), append=False)
    s.when_fetched(*range(16))
    s.when_quiet()
    with open(os.path.join(s.hfs.ctl, "prefetch"), "w") as f:
        f.write("off")
    for i in range(40, 56):
        s.read(i)
    before = causes(s.hfs.status())
    assert before["unnamed"] > 0 and before["evicted"] == 0, before
    for i in range(15, -1, -1):
        s.read(i)
    waited = causes(s.hfs.status())
    assert waited["evicted"] >= 0.02 and waited["behind"] == waited["tier"] == 0, waited
