/* SPDX-License-Identifier: Apache-2.0 */
/* The written order decides what is fetched, in which order, and what leaves; against the optimum where there is one. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/sched/check.h"
#include "tests/unit/sched/rnd.h"
#include "tests/unit/sched/world.h"

#define MIB (1ULL << 20)

static uint32_t stream(struct world *w)
{
	uint32_t st;

	cr_assert_eq(sched_stream_create(w->s, &st), 0);
	return st;
}

static void append(struct world *w, uint32_t st, uint32_t file, uint64_t off, uint64_t len)
{
	struct sched_entry e = {file, off, len};

	cr_assert_eq(sched_stream_append(w->s, st, &e, 1), 1);
}

/* Fewest loads when each miss must load: every choice of victim, by sets of resident pages. */
static uint32_t optimum(const uint32_t *seq, uint32_t n, uint32_t pages, uint32_t slots)
{
	uint32_t best[64], next[64], least = UINT32_MAX;

	memset(best, 0xff, sizeof(best));
	best[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		memset(next, 0xff, sizeof(next));
		for (uint32_t set = 0; set < 1u << pages; set++) {
			uint32_t with = set | 1u << seq[i];

			if (best[set] == UINT32_MAX)
				continue;
			if (set == with || (uint32_t)__builtin_popcount(with) <= slots) {
				uint32_t cost = best[set] + (set != with);

				next[with] = cost < next[with] ? cost : next[with];
				continue;
			}
			for (uint32_t v = 0; v < pages; v++)
				if ((set >> v & 1) && best[set] + 1 < next[with & ~(1u << v)])
					next[with & ~(1u << v)] = best[set] + 1;
		}
		memcpy(best, next, sizeof(best));
	}
	for (uint32_t set = 0; set < 1u << pages; set++)
		least = best[set] < least ? best[set] : least;
	return least;
}

Test(order, demand_only_is_the_optimum)
{
	for (int round = 0; round < 12000; round++) {
		uint32_t pages = 2 + rnd(5), slots = 1 + rnd(4), n = 1 + rnd(14), seq[16], st, f;
		struct sched_config cfg = world_config(slots, 0);
		struct world w;

		world_open(&w, &cfg);
		sched_set_prefetch(w.s, SCHED_PREFETCH_OFF);
		f = world_file(&w, pages * MIB, true);
		st = stream(&w);
		for (uint32_t i = 0; i < n; i++) {
			seq[i] = rnd(pages);
			append(&w, st, f, seq[i] * MIB, MIB);
		}
		for (uint32_t i = 0; i < n; i++)
			cr_assert(world_read(&w, f, seq[i] * MIB, MIB, 1));
		cr_assert_eq(w.origin_bytes / MIB, optimum(seq, n, pages, slots), "round %d: %u pages, %u slots, %u reads",
			     round, pages, slots, n);
		world_close(&w);
	}
}

Test(order, fetched_in_order_and_adjacent)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t st, f[4];

	world_open(&w, &cfg);
	st = stream(&w);
	for (int i = 0; i < 4; i++)
		f[i] = world_file(&w, 4 * MIB, true);
	for (int i = 3; i >= 0; i--)
		append(&w, st, f[i], 0, 0);
	world_run(&w, w.now_ns + 1000000000);
	cr_assert_eq(w.n_fetched, 16);
	for (uint32_t i = 0; i < 16; i++) {
		cr_assert_eq(w.log[i].kind, SCHED_FETCH);
		cr_assert_eq(w.log[i].file, f[3 - i / 4], "fetch %u", i);
		cr_assert_eq(w.log[i].chunk_no, i % 4);
		cr_assert_eq(w.log[i].len, MIB);
	}
	world_close(&w);
}

/* A window full of what comes next stays: nothing needed earlier leaves for something needed later. */
Test(order, no_harm)
{
	struct sched_config cfg = world_config(16, 0);
	struct world w;
	uint32_t st, f;

	world_open(&w, &cfg);
	f = world_file(&w, 200 * MIB, true);
	st = stream(&w);
	append(&w, st, f, 0, 0);
	world_run(&w, w.now_ns + 5000000000);
	cr_assert_eq(w.n_evicted, 0, "a full window is healthy");
	cr_assert(w.n_fetched <= 16 && w.n_fetched >= 14);
	for (uint32_t c = 0; c < 100; c++) {
		uint32_t from = w.n_log;

		cr_assert(world_read(&w, f, c * MIB, MIB, 1));
		world_run(&w, w.now_ns + 20000000);
		for (uint32_t i = from; i < w.n_log; i++)
			if (w.log[i].kind == SCHED_EVICT)
				cr_assert(w.log[i].chunk_no <= c, "chunk %lu left while %u was read",
					  (unsigned long)w.log[i].chunk_no, c);
	}
	cr_assert_leq(w.n_fetched, 116);
	check_invariants(w.s);
	world_close(&w);
}

/* Next uses known: the page that is needed soonest again stays, the farthest leaves. */
Test(order, farthest_next_use_leaves)
{
	struct sched_config cfg = world_config(2, 0);
	struct world w;
	uint32_t st, f;
	static const uint32_t seq[] = {0, 1, 2, 0, 1};

	world_open(&w, &cfg);
	sched_set_prefetch(w.s, SCHED_PREFETCH_OFF);
	f = world_file(&w, 3 * MIB, true);
	st = stream(&w);
	for (int i = 0; i < 5; i++)
		append(&w, st, f, seq[i] * MIB, MIB);
	for (int i = 0; i < 3; i++)
		cr_assert(world_read(&w, f, seq[i] * MIB, MIB, 1));
	cr_assert_neq(world_find(&w, SCHED_EVICT, f, 1, 0), UINT32_MAX, "1 comes after 0 again");
	cr_assert_eq(world_find(&w, SCHED_EVICT, f, 0, 0), UINT32_MAX);
	world_close(&w);
}

Test(order, samples_come_as_extents)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t st, f;
	uint64_t off[300];

	world_open(&w, &cfg);
	f = world_file(&w, 4096 * MIB, true);
	st = stream(&w);
	for (int i = 0; i < 300; i++) {
		off[i] = rnd(4096) * MIB + rnd(15) * 65536;
		append(&w, st, f, off[i], 65536);
	}
	for (int i = 0; i < 300; i++)
		cr_assert(world_read(&w, f, off[i], 65536, 1));
	cr_assert_leq(w.origin_bytes, 300 * 65536 * 105 / 100);
	world_close(&w);
}

/* Many small pieces of one chunk, soon: the chunk is cheaper. */
Test(order, dense_samples_come_as_chunks)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t st, f;

	world_open(&w, &cfg);
	f = world_file(&w, 32 * MIB, true);
	st = stream(&w);
	for (int i = 0; i < 32; i++)
		for (int k = 0; k < 16; k++)
			append(&w, st, f, i * MIB + (uint64_t)(k * 7 % 16) * 65536, 61440);
	world_run(&w, w.now_ns + 2000000000);
	for (uint32_t i = 0; i < w.n_log; i++)
		cr_assert_eq(w.log[i].len, MIB, "action %u: %u bytes", i, w.log[i].len);
	cr_assert_eq(w.n_fetched, 32);
	world_close(&w);
}

Test(order, names_are_looked_up_and_missing_ones_passed_over)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t st, n = 0;
	struct sched_stream_stats q;

	world_open(&w, &cfg);
	st = stream(&w);
	for (uint32_t i = 0; i < 100; i++)
		append(&w, st, world_file(&w, i % 5 == 4 ? UINT64_MAX : i % 5 == 3 ? 3 * MIB : 30000, false), 0, 0);
	for (uint32_t i = 0; i < 100; i++)
		if (w.sizes[i] != UINT64_MAX)
			for (uint64_t off = 0; off < w.sizes[i]; off += MIB)
				cr_assert(world_read(&w, i, off, MIB, 1), "file %u", i);
	world_run(&w, w.now_ns + 1000000000);
	for (uint32_t i = 0; i < w.n_log; i++)
		n += w.log[i].kind == SCHED_RESOLVE;
	cr_assert(n >= 90 && n <= 100, "each name once, but those that were opened before: %u", n);
	cr_assert_eq(w.origin_bytes, 60 * 30000 + 20 * 3 * MIB, "each byte once");
	cr_assert_eq(sched_stream_stats_get(w.s, st, &q), 0);
	cr_assert_eq(q.missing, 20);
	cr_assert_eq(q.pending, 0);
	world_close(&w);
}

/* What bounds look-ups is how many the link takes, not the page that each has room for. */
Test(order, names_are_looked_up_as_many_at_a_time_as_the_link_takes)
{
	const uint32_t n = 4000, size = 30000;
	struct sched_config cfg = world_config(n, 0);
	uint64_t begun_ns, alone_ns = 2000000;
	struct world w;
	uint32_t st;

	world_open(&w, &cfg);
	w.latency_ns = alone_ns;
	w.bytes_per_s = 200000000;
	st = stream(&w);
	for (uint32_t i = 0; i < n; i++)
		append(&w, st, world_file(&w, size, false), 0, 0);
	begun_ns = w.now_ns;
	while (w.n_fetched < n && w.now_ns - begun_ns < n * alone_ns)
		world_run(&w, w.now_ns + 1000000);
	cr_assert_eq(w.n_fetched, n);
	cr_assert_lt(w.now_ns - begun_ns, n / 8 * alone_ns, "more than 8 side by side");
	world_close(&w);
}

Test(order, an_alias_means_its_target)
{
	struct sched_config cfg = world_config(16, 0);
	struct world w;
	uint32_t st, link, target;

	world_open(&w, &cfg);
	target = world_file(&w, 4 * MIB, true);
	link = world_file(&w, 4 * MIB, false);
	st = stream(&w);
	append(&w, st, link, 0, 0);
	sched_file_resolved(w.s, link, 0, 4 * MIB, target, w.now_ns);
	world_run(&w, w.now_ns + 1000000000);
	for (uint32_t c = 0; c < 4; c++) {
		cr_assert_neq(world_find(&w, SCHED_FETCH, target, c, 0), UINT32_MAX);
		cr_assert_eq(world_find(&w, SCHED_FETCH, link, c, 0), UINT32_MAX);
	}
	cr_assert_not(sched_file_is_idle(w.s, target));
	cr_assert_not(sched_file_is_idle(w.s, link));
	sched_stream_destroy(w.s, st);
	cr_assert(sched_file_is_idle(w.s, link));
	sched_file_forget(w.s, link);
	world_close(&w);
}

Test(order, a_changed_file_is_fetched_again)
{
	struct sched_config cfg = world_config(16, 0);
	struct world w;
	uint32_t st, f, at;

	world_open(&w, &cfg);
	f = world_file(&w, 4 * MIB, true);
	st = stream(&w);
	append(&w, st, f, 0, 0);
	world_run(&w, w.now_ns + 1000000000);
	at = w.n_log;
	for (uint32_t i = 0; i < w.n_pages; i++) { /* the cache drops them */
		w.pages[i].is_here = false;
		memset(w.pages[i].valid, 0, sizeof(w.pages[i].valid));
	}
	w.sizes[f] = 2 * MIB;
	sched_file_changed(w.s, f, 2 * MIB);
	world_run(&w, w.now_ns + 1000000000);
	cr_assert_neq(world_find(&w, SCHED_FETCH, f, 1, at), UINT32_MAX);
	cr_assert_eq(world_find(&w, SCHED_FETCH, f, 2, at), UINT32_MAX, "the file has two chunks now");
	world_close(&w);
}

/* Ranks that share a file: each byte comes once, in the order of batches, not of arrival. */
Test(order, ranks_are_merged_by_batch)
{
	struct sched_config cfg = world_config(48, 0);
	struct world w;
	uint32_t st[4], f, n = 64;

	world_open(&w, &cfg);
	f = world_file(&w, 256 * MIB, true);
	for (uint32_t r = 0; r < 4; r++) {
		st[r] = stream(&w);
		for (uint32_t i = 0; i < n; i++) {
			cr_assert_eq(sched_stream_mark(w.s, st[r], SCHED_MARK_BATCH_NEXT, 0, w.now_ns), 0);
			append(&w, st[r], f, (i * 4 + r) * MIB, MIB);
		}
	}
	world_step(&w);
	for (uint32_t i = 0; i < w.n_log; i++)
		cr_assert_eq(w.log[i].chunk_no, i, "fetch %u", i);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t r = 0; r < 4; r++)
			cr_assert(world_read(&w, f, (i * 4 + r) * MIB, MIB, r + 1));
	cr_assert_eq(w.origin_bytes, 256 * MIB);
	world_close(&w);
}

Test(order, entries_are_compact)
{
	struct sched_config cfg = world_config(64, 0);
	struct sched_stats s;
	struct world w;
	uint32_t st, f;
	struct sched_entry e[1000];
	uint64_t n = 1281000;

	world_open(&w, &cfg);
	f = world_file(&w, 1ULL << 40, true);
	st = stream(&w);
	for (uint64_t i = 0; i < n; i += 1000) {
		for (int k = 0; k < 1000; k++)
			e[k] = (struct sched_entry){f, (uint64_t)rnd(1u << 24) * 65536, 110000};
		cr_assert_eq(sched_stream_append(w.s, st, e, 1000), 1000);
	}
	world_step(&w);
	sched_stats_get(w.s, &s);
	cr_assert_leq(s.entry_bytes, 24 * n, "%lu bytes an entry", (unsigned long)(s.entry_bytes / n));
	cr_assert_eq(s.pending_entries, n);
	world_close(&w);
}
