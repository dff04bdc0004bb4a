/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that wait, fetches that fail, waits, the tier, and orders that are wrong (law 9). */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/sched/check.h"
#include "tests/unit/sched/rnd.h"
#include "tests/unit/sched/world.h"

#define KIB 1024ULL
#define MIB (1ULL << 20)

/* ---- fetches that fail ----------------------------------------------------------------------------- */

static uint32_t count_fetches(const struct world *w, uint32_t file)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_log; i++)
		n += w->log[i].kind == SCHED_FETCH && w->log[i].file == file;
	return n;
}

Test(failure, is_tried_again_after_a_while_and_not_before)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f, g, st;

	world_open(&w, &cfg);
	f = world_file(&w, 8 * MIB, true);
	g = world_file(&w, MIB, true);
	w.fail_every = 1;
	st = world_order(&w, f, 0, 0);
	world_run(&w, w.now_ns + 500 * 1000000ULL);
	cr_assert_eq(count_fetches(&w, f), 8);
	/* What makes the visits be laid out anew is no news of the origin. */
	cr_assert_eq(sched_stream_append(w.s, st, &(struct sched_entry){g, 0, 0}, 1), 1);
	sched_stream_destroy(w.s, world_order(&w, g, 0, 0));
	world_run(&w, w.now_ns + 100 * 1000000ULL);
	cr_assert_eq(count_fetches(&w, f), 8);
	world_run(&w, w.now_ns + 1000 * 1000000ULL);
	cr_assert_eq(count_fetches(&w, f), 16, "all again after a second: %u", count_fetches(&w, f));
	world_run(&w, w.now_ns + 1000 * 1000000ULL);
	cr_assert_eq(count_fetches(&w, f), 16, "and then only after two");
	w.fail_every = 0;
	world_run(&w, w.now_ns + 2000 * 1000000ULL);
	cr_assert_eq(count_fetches(&w, f), 24);
	cr_assert(world_is_resident(&w, f, 0, 8 * MIB));
	world_close(&w);
}

Test(failure, a_reader_does_not_wait_for_the_next_try)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 4 * MIB, true);
	w.fail_every = 1;
	world_order(&w, f, 0, 0);
	world_run(&w, w.now_ns + 100 * 1000000ULL);
	w.fail_every = 0;
	cr_assert(world_read(&w, f, MIB, MIB, 1));
	cr_assert_eq(count_fetches(&w, f), 5, "%u", count_fetches(&w, f));
	world_close(&w);
}

/* ---- demand ---------------------------------------------------------------------------------- */

Test(demand, overtakes_prefetch)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f, g, at;

	world_open(&w, &cfg);
	f = world_file(&w, 1000 * MIB, true);
	g = world_file(&w, MIB, true);
	world_order(&w, f, 0, 0);
	world_step(&w);
	at = w.n_log;
	cr_assert_gt(at, 0);
	world_read_start(&w, g, 0, MIB, 9, 1);
	cr_assert_gt(w.n_log, at);
	cr_assert_eq(w.log[at].file, g, "at once, although the order has more to fetch");
	cr_assert(w.log[at].is_demand);
	world_close(&w);
}

Test(demand, first_in_first_out_when_there_is_no_slot)
{
	struct sched_config cfg = world_config(2, 0);
	struct world w;
	uint32_t f, last = 0;

	world_open(&w, &cfg);
	f = world_file(&w, 20 * MIB, true);
	for (uint32_t i = 0; i < 10; i++)
		world_read_start(&w, f, (19 - 2 * i) * MIB, 4096, i + 1, i + 1);
	world_run(&w, w.now_ns + 1000000000);
	for (uint32_t i = 0; i < 10; i++) {
		uint32_t at = world_find(&w, SCHED_FETCH, f, 19 - 2 * i, 0);

		cr_assert_neq(at, UINT32_MAX, "reader %u", i);
		cr_assert(i == 0 || at > last, "reader %u before the one that came earlier", i);
		cr_assert_not(world_is_waiting(&w, i + 1));
		last = at;
	}
	world_close(&w);
}

Test(demand, a_prefetch_on_its_way_is_pulled_forward)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f, at;

	world_open(&w, &cfg);
	f = world_file(&w, 64 * MIB, true);
	world_order(&w, f, 0, 0);
	world_step(&w);
	at = w.n_log;
	cr_assert_neq(world_find(&w, SCHED_FETCH, f, 3, 0), UINT32_MAX);
	world_read_start(&w, f, 3 * MIB, MIB, 1, 1);
	cr_assert_neq(world_find(&w, SCHED_FETCH, f, 3, at), UINT32_MAX, "said again");
	cr_assert(w.log[world_find(&w, SCHED_FETCH, f, 3, at)].is_demand);
	at = w.n_log;
	sched_read(w.s, f, 3 * MIB, MIB, 2, false, w.now_ns);
	world_step(&w);
	cr_assert_eq(world_find(&w, SCHED_FETCH, f, 3, at), UINT32_MAX, "once is enough");
	world_close(&w);
}

Test(demand, calls_prefetch_back_when_nothing_can_leave)
{
	struct sched_config cfg = world_config(4, 0);
	struct world w;
	uint32_t f, g, n = 0;

	world_open(&w, &cfg);
	w.latency_ns = 100000000;
	f = world_file(&w, 100 * MIB, true);
	g = world_file(&w, 100 * MIB, true);
	world_order(&w, f, 0, 0);
	world_step(&w);
	for (uint32_t i = 0; i < 3; i++)
		world_read_start(&w, g, 10 * i * MIB, 4096, i, i + 1);
	for (uint32_t i = 0; i < w.n_log; i++)
		n += w.log[i].kind == SCHED_UNFETCH;
	cr_assert_gt(n, 0);
	world_run(&w, w.now_ns + 1000000000);
	for (uint32_t i = 0; i < 3; i++)
		cr_assert_not(world_is_waiting(&w, i + 1));
	world_close(&w);
}

Test(demand, a_hung_origin_does_not_hold_the_slots)
{
	struct sched_config cfg = world_config(4, 0);
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 100 * MIB, true);
	w.is_frozen = true;
	for (uint32_t i = 0; i < 4; i++)
		world_read_start(&w, f, (10 * i + 5) * MIB, 4096, i, i + 1);
	cr_assert_eq(w.n_fetches, 4);
	world_read_start(&w, f, 90 * MIB, 4096, 9, 9);
	cr_assert_eq(w.n_fetches, 4, "no slot");
	world_run(&w, w.now_ns + 300000000);
	cr_assert_geq(w.n_fetches, 5, "the others are late: they count no more");
	w.is_frozen = false;
	world_run(&w, w.now_ns + 1000000000);
	for (uint32_t i = 0; i < 4; i++)
		cr_assert_not(world_is_waiting(&w, i + 1), "reader %u", i);
	cr_assert_not(world_is_waiting(&w, 9));
	check_invariants(w.s);
	world_close(&w);
}

/* ---- waits ---------------------------------------------------------------------------------------- */

static int answer(const struct world *w, uint64_t token)
{
	for (uint32_t i = 0; i < w->n_log; i++)
		if (w->log[i].kind == SCHED_WAIT_DONE && w->log[i].token == token)
			return w->log[i].err;
	return 1;
}

Test(wait, batch_and_file)
{
	struct sched_config cfg = world_config(16, 0);
	struct world w;
	uint32_t f, g, big, none, st;

	world_open(&w, &cfg);
	f = world_file(&w, 100 * MIB, true);
	g = world_file(&w, 5 * MIB, false);
	big = world_file(&w, 50 * MIB, true);
	none = world_file(&w, UINT64_MAX, false);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (uint32_t i = 0; i < 40; i++) {
		struct sched_entry e = {f, i * MIB, MIB};

		if (i % 4 == 0)
			cr_assert_eq(sched_stream_mark(w.s, st, SCHED_MARK_BATCH_NEXT, 0, w.now_ns), 0);
		cr_assert_eq(sched_stream_append(w.s, st, &e, 1), 1);
	}
	cr_assert_eq(sched_wait_batch(w.s, st, 7, 70, w.now_ns), 0);
	cr_assert_eq(sched_wait_batch(w.s, st, 11, 71, w.now_ns), 0);
	cr_assert_eq(sched_wait_file(w.s, g, 72, w.now_ns), 0);
	cr_assert_eq(sched_wait_file(w.s, big, 73, w.now_ns), 0);
	cr_assert_eq(sched_wait_file(w.s, none, 74, w.now_ns), 0);
	world_step(&w);
	cr_assert_eq(answer(&w, 70), 1, "not before it is there");
	cr_assert_lt(world_find(&w, SCHED_FETCH, f, 28, 0), world_find(&w, SCHED_FETCH, f, 0, 0), "at demand priority");
	world_run(&w, w.now_ns + 2000000000);
	cr_assert_eq(answer(&w, 70), 0);
	cr_assert_eq(answer(&w, 71), -ENOENT, "no such batch");
	cr_assert_eq(answer(&w, 72), 0);
	cr_assert_eq(answer(&w, 73), -ENOSPC, "50 MiB in 16 slots");
	cr_assert_eq(answer(&w, 74), -ENOENT);
	cr_assert_eq(sched_wait_batch(w.s, st, 9, 75, w.now_ns), 0);
	sched_stream_cancel(w.s, st);
	world_step(&w);
	cr_assert_eq(answer(&w, 75), -ECANCELED);
	check_invariants(w.s);
	world_close(&w);
}

/* ---- the tier ---------------------------------------------------------------------------------------- */

/* Permutations of a dataset: what the tier took stays, and is never fetched from the origin again. */
Test(tier, permutations_do_not_rewrite_it)
{
	struct sched_config cfg = world_config(16, 64);
	struct world w;
	uint32_t f, st, perm[4][128];
	uint64_t writes = 0, origin = 0;

	world_open(&w, &cfg);
	f = world_file(&w, 128 * MIB, true);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (int e = 0; e < 4; e++) {
		cr_assert_eq(sched_stream_mark(w.s, st, SCHED_MARK_EPOCH_NEXT, 0, w.now_ns), 0);
		for (uint32_t i = 0; i < 128; i++)
			perm[e][i] = i;
		for (uint32_t i = 127; i > 0; i--) {
			uint32_t j = rnd(i + 1), t = perm[e][i];

			perm[e][i] = perm[e][j];
			perm[e][j] = t;
		}
		for (uint32_t i = 0; i < 128; i++) {
			struct sched_entry x = {f, perm[e][i] * MIB, MIB};

			cr_assert_eq(sched_stream_append(w.s, st, &x, 1), 1);
		}
	}
	for (int e = 0; e < 4; e++) {
		for (uint32_t i = 0; i < 128; i++) {
			cr_assert(world_read(&w, f, perm[e][i] * MIB, MIB, 1));
			world_run(&w, w.now_ns + 10000000);
		}
		if (e == 1) {
			writes = w.n_tier_writes;
			origin = w.n_fetched;
		}
	}
	cr_assert_eq(w.n_tier_writes, writes, "%lu writes after it was full", (unsigned long)(w.n_tier_writes - writes));
	cr_assert_leq(w.n_fetched - origin, 2 * (128 - 64), "%lu fetches in two epochs",
		      (unsigned long)(w.n_fetched - origin));
	world_close(&w);
}

/* Two epochs that come again and again, by entries of `each` pages: the margin of an epoch is one, whatever the entries. */
static void repeated(uint32_t each)
{
	struct sched_config cfg = world_config(16, 64);
	uint32_t f, st, n = 128 / each, perm[2][128];
	struct world w;

	world_open(&w, &cfg);
	f = world_file(&w, 128 * MIB, true);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (int e = 0; e < 2; e++) {
		cr_assert_eq(sched_stream_mark(w.s, st, SCHED_MARK_EPOCH, (uint64_t)e, w.now_ns), 0);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t j = rnd(i + 1);

			perm[e][i] = perm[e][j];
			perm[e][j] = i;
		}
		for (uint32_t i = 0; i < n; i++) {
			struct sched_entry x = {f, perm[e][i] * each * MIB, each * MIB};

			cr_assert_eq(sched_stream_append(w.s, st, &x, 1), 1);
		}
	}
	cr_assert_eq(sched_stream_mark(w.s, st, SCHED_MARK_REPEAT, 3, w.now_ns), 0);
	for (uint32_t i = 0; i < 6 * 128; i++) {
		uint64_t chunk = perm[i / 128 % 2][i % 128 / each] * each + i % each;

		cr_assert(world_read(&w, f, chunk * MIB, MIB, 1));
		world_run(&w, w.now_ns + 10000000);
	}
	cr_assert_eq(w.n_tier_writes, 64, "entries of %u pages: %lu writes to a disk of 64", each, (unsigned long)w.n_tier_writes);
	world_close(&w);
}

Test(tier, repeated_epochs_do_not_rewrite_it)
{
	repeated(1);
	repeated(8);
}

/* ---- law 9 ---------------------------------------------------------------------------------------------- */

struct cost {
	double s;
	uint64_t bytes;
};

/* 64 files of 16 MiB, one reader at 1.2 x the transfer time; wrong: an order that names other files. */
static struct cost run_shards(bool is_wrong)
{
	struct sched_config cfg = world_config(64, 0);
	uint32_t f[32], g[32], st;
	uint64_t t0;
	struct cost c;
	struct world w;

	world_open(&w, &cfg);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (int i = 0; i < 32; i++) {
		f[i] = world_file(&w, 16 * MIB, true);
		g[i] = world_file(&w, 16 * MIB, true);
	}
	for (int i = 0; is_wrong && i < 32; i++) {
		struct sched_entry e = {g[i], 0, 0};

		cr_assert_eq(sched_stream_append(w.s, st, &e, 1), 1);
	}
	t0 = w.now_ns;
	for (int i = 0; i < 32; i++)
		for (uint64_t off = 0; off < 16 * MIB; off += 128 * KIB) {
			cr_assert(world_read(&w, f[i], off, 128 * KIB, 1));
			world_run(&w, w.now_ns + 786432);
		}
	c = (struct cost){(double)(w.now_ns - t0) / 1e9, w.origin_bytes};
	world_close(&w);
	return c;
}

/* One request in twenty is answered in 1 ms, the rest in 15: the least latency says 4 requests, the link holds 50. */
Test(rate, an_origin_whose_latency_varies)
{
	struct sched_config cfg = world_config(256, 0);
	struct sched_stats q;
	uint32_t f, st;
	uint64_t t0;
	struct world w;

	cfg.chunk_bytes = 64 * KIB;
	world_open(&w, &cfg);
	f = world_file(&w, 6000 * 64 * KIB, true);
	st = world_order(&w, f, 0, 0);
	t0 = w.now_ns;
	for (uint32_t i = 0; i < 6000; i++) {
		w.latency_ns = rnd(20) == 0 ? 1000000 : 15000000;
		cr_assert(world_read(&w, f, i * 64 * KIB, 64 * KIB, 1));
	}
	sched_stats_get(w.s, &q);
	cr_assert_geq(q.concurrency, 16, "%u", q.concurrency);
	cr_assert_leq(w.now_ns - t0, 8000000000ULL, "%.1f s", (double)(w.now_ns - t0) / 1e9);
	(void)st;
	world_close(&w);
}

/* The same for a reader at its own pace: what is late now and then is asked for early enough. */
Test(rate, latency_that_varies_makes_no_misses)
{
	struct sched_config cfg = world_config(256, 0);
	struct sched_stats q, before;
	uint32_t f;
	struct world w;

	cfg.chunk_bytes = 64 * KIB;
	world_open(&w, &cfg);
	f = world_file(&w, 6000 * 64 * KIB, true);
	world_order(&w, f, 0, 0);
	for (uint32_t i = 0; i < 6000; i++) {
		w.latency_ns = rnd(20) == 0 ? 1000000 : rnd(10) == 0 ? 20000000 : 5000000;
		if (i == 1000)
			sched_stats_get(w.s, &before);
		cr_assert(world_read(&w, f, i * 64 * KIB, 64 * KIB, 1));
		world_run(&w, w.now_ns + 1500000);
	}
	sched_stats_get(w.s, &q);
	q.prefetch_late_bytes -= before.prefetch_late_bytes;
	cr_assert_leq(q.prefetch_late_bytes, 50 * 64 * KIB, "late: %lu of 5000", (unsigned long)(q.prefetch_late_bytes / (64 * KIB)));
	world_close(&w);
}

Test(wrong, an_order_that_names_other_files)
{
	struct cost without = run_shards(false), wrong = run_shards(true);

	/* Virtual time: exact, not measured. */
	cr_assert_leq(wrong.s, 1.25 * without.s, "%.2f s, %.2f without", wrong.s, without.s);
	cr_assert_leq(wrong.bytes, 2 * without.bytes);
	cr_assert_leq(wrong.bytes, without.bytes + 64 * MIB, "one window");
}

/* Few slots, and a list that fills them with what nobody reads: files of one page, read at random. */
static uint64_t run_small_files(bool is_wrong)
{
	struct sched_config cfg = world_config(32, 0);
	uint32_t st, f[64];
	uint64_t n;
	struct world w;

	rng = RNG_START;
	world_open(&w, &cfg);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (int i = 0; i < 64; i++)
		f[i] = world_file(&w, MIB, true);
	for (int i = 0; is_wrong && i < 32; i++) {
		struct sched_entry e = {f[i], 0, 0};

		cr_assert_eq(sched_stream_append(w.s, st, &e, 1), 1);
	}
	if (is_wrong)
		cr_assert_eq(sched_stream_mark(w.s, st, SCHED_MARK_REPEAT, 50, w.now_ns), 0);
	world_run(&w, w.now_ns + 100000000);
	for (int i = 0; i < 300; i++) {
		cr_assert(world_read(&w, f[32 + rnd(32)], 0, MIB, 100 + i));
		world_run(&w, w.now_ns + 20000000);
	}
	n = w.n_fetched;
	world_close(&w);
	return n;
}

Test(wrong, a_repeated_list_in_few_slots)
{
	uint64_t without = run_small_files(false), wrong = run_small_files(true);

	cr_assert_eq(without, 32);
	cr_assert_leq(wrong, 2 * without, "%lu fetches, %lu without", (unsigned long)wrong, (unsigned long)without);
}

Test(wrong, a_reader_that_stops)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 10ULL << 30, true);
	world_order(&w, f, 0, 0);
	for (uint64_t off = 0; off < 10 * MIB; off += 128 * KIB)
		cr_assert(world_read(&w, f, off, 128 * KIB, 1));
	world_run(&w, w.now_ns + 60000000000);
	cr_assert_leq(w.origin_bytes, 10 * MIB + 64 * MIB, "at most one window");
	world_close(&w);
}

Test(wrong, a_tenth_is_skipped)
{
	struct sched_config cfg = world_config(64, 0);
	struct sched_stream_stats q;
	struct world w;
	uint32_t f, st;

	world_open(&w, &cfg);
	f = world_file(&w, 1000 * MIB, true);
	st = world_order(&w, f, 0, 0);
	for (uint32_t i = 0; i < 1000; i++) {
		if (i % 10 == 3)
			continue;
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
		world_run(&w, w.now_ns + 8000000);
	}
	cr_assert_eq(sched_stream_stats_get(w.s, st, &q), 0);
	cr_assert(q.is_speculating);
	cr_assert_geq(q.skipped, 80);
	cr_assert_leq(w.origin_bytes, 1010 * MIB, "what is skipped was fetched, nothing twice");
	world_close(&w);
}

/* The same, the second file first: what is between the marks is laid out again too. */
Test(wrong, unresolved_names_are_read_in_another_order)
{
	struct sched_config cfg = world_config(128, 0);
	struct sched_stream_stats q;
	struct sched_entry e[4];
	struct world w;
	uint32_t f[4], st;

	world_open(&w, &cfg);
	for (int i = 0; i < 4; i++) {
		f[i] = world_file(&w, 16 * MIB, false);
		e[i] = (struct sched_entry){f[i], 0, 0};
	}
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	cr_assert_eq(sched_stream_append(w.s, st, e, 4), 4);
	for (int i = 1; i >= 0; i--) { /* opened: the sizes are known in this order */
		cr_assert_eq(sched_file_add(w.s, f[i], 16 * MIB), 0);
		world_read_start(&w, f[i], 0, 128 * KIB, 1 + (uint64_t)i, (uint32_t)i);
	}
	cr_assert(world_read(&w, f[1], 0, MIB, 2));
	cr_assert(world_read(&w, f[0], 0, MIB, 1));
	for (uint32_t i = 1; i < 32; i++) {
		cr_assert(world_read(&w, f[i / 16], (i % 16) * MIB, MIB, 1 + i / 16));
		check_invariants(w.s);
	}
	world_run(&w, w.now_ns + 1000000000);
	cr_assert_eq(sched_stream_stats_get(w.s, st, &q), 0);
	cr_assert_eq(q.low, 2);
	cr_assert_eq(q.skipped, 0);
	cr_assert_eq(q.confidence, 1.0, "each read belongs to a visit");
	cr_assert_leq(w.origin_bytes, 64 * MIB);
	world_close(&w);
}

/* Readers that share a list and nothing else: some are slower, fall behind by far more than the others have in hand, and read on. */
Test(wrong, a_quarter_of_the_readers_is_slow)
{
	struct sched_config cfg = world_config(256, 0);
	struct sched_stream_stats q;
	uint32_t f, st, n_late = 0;
	struct sched_stats before, after;
	struct world w;

	world_open(&w, &cfg);
	f = world_file(&w, 4000 * MIB, true);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	for (uint32_t i = 0; i < 4000; i++) {
		struct sched_entry e = {f, i * MIB, MIB};

		cr_assert_eq(sched_stream_append(w.s, st, &e, 1), 1);
	}
	for (uint32_t i = 0; i < 3000; i++) {
		bool is_slow = i % 4 == 0 && i >= 200;

		if (i == 1500)
			sched_stats_get(w.s, &before);
		if (!is_slow)
			cr_assert(world_read(&w, f, i * MIB, MIB, 1 + i % 8));
		else if (i >= 600) /* 100 of its own entries behind its place: 400 of the list */
			cr_assert(world_read(&w, f, (i - 400) * MIB, MIB, 1 + i % 8));
		world_run(&w, w.now_ns + 6000000);
		cr_assert_eq(sched_stream_stats_get(w.s, st, &q), 0);
		n_late += !q.is_speculating;
	}
	sched_stats_get(w.s, &after);
	cr_assert_eq(n_late, 0, "trust is not lost");
	cr_assert_leq(after.demand_misses - before.demand_misses, 10, "it is prefetched for again");
	world_close(&w);
}

/* A second reader opens a file whose name was only a line of the order until now: all of it is prefetched at once. */
Test(wrong, an_unresolved_name_is_read_first)
{
	struct sched_config cfg = world_config(64, 0);
	struct sched_entry e[2];
	struct world w;
	uint32_t f, g, st;

	world_open(&w, &cfg);
	f = world_file(&w, 16 * MIB, false);
	g = world_file(&w, 16 * MIB, false);
	e[0] = (struct sched_entry){f, 0, 0};
	e[1] = (struct sched_entry){g, 0, 0};
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	cr_assert_eq(sched_stream_append(w.s, st, e, 2), 2);
	cr_assert(world_read(&w, f, 0, 128 * KIB, 1));
	cr_assert(world_read(&w, g, 0, 128 * KIB, 2));
	world_run(&w, w.now_ns + 1000000000);
	cr_assert_neq(world_find(&w, SCHED_FETCH, g, 15, 0), UINT32_MAX, "the whole file is named, not its first page");
	cr_assert_eq(w.origin_bytes, 32 * MIB);
	world_close(&w);
}

/* ---- the start ---------------------------------------------------------------------------------- */

static uint32_t fetches_of(const struct world *w, uint32_t file)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_log; i++)
		n += w->log[i].kind == SCHED_FETCH && w->log[i].file == file;
	return n;
}

/* The name of the third file is known before those of the first two: the link is not filled with it. */
Test(start, files_whose_turn_it_is_come_first)
{
	struct sched_config cfg = world_config(128, 0);
	struct sched_entry e[4];
	struct world w;
	uint32_t f[4], st;

	world_open(&w, &cfg);
	for (int i = 0; i < 4; i++) {
		f[i] = world_file(&w, 16 * MIB, i == 2);
		e[i] = (struct sched_entry){f[i], 0, 0};
	}
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	cr_assert_eq(sched_stream_append(w.s, st, e, 4), 4);
	world_step(&w);
	while (world_find(&w, SCHED_FETCH, f[0], 0, 0) == UINT32_MAX)
		cr_assert(world_event(&w, w.now_ns + 1000000000));
	cr_assert_leq(fetches_of(&w, f[2]), 2);
	cr_assert_leq(fetches_of(&w, f[0]), 4, "nobody knows the link yet");
	world_run(&w, w.now_ns + 1000000000);
	cr_assert_eq(w.origin_bytes, 64 * MIB);
	world_close(&w);
}

/* Two readers, each in a file of its own: what the second one comes to next is not behind the tail of the first file. */
Test(start, readers_inside_a_file_come_before_tails)
{
	struct sched_config cfg = world_config(128, 0);
	struct sched_entry e[2];
	struct world w;
	uint32_t f[2], st;

	world_open(&w, &cfg);
	for (int i = 0; i < 2; i++) {
		f[i] = world_file(&w, 32 * MIB, true);
		e[i] = (struct sched_entry){f[i], 0, 0};
	}
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
	cr_assert_eq(sched_stream_append(w.s, st, e, 2), 2);
	world_read_start(&w, f[0], 0, MIB, 1, 1);
	cr_assert(world_read(&w, f[1], 0, MIB, 2));
	world_run(&w, w.now_ns + 1000000000);
	for (uint64_t c = 1; c <= 4; c++)
		cr_assert_lt(world_find(&w, SCHED_FETCH, f[1], c, 0), world_find(&w, SCHED_FETCH, f[0], 16, 0));
	world_close(&w);
}

/* Files that are read without an order, to their ends: the next one is fetched whole from its first read on. */
Test(start, whole_files_are_learned)
{
	struct sched_config cfg = world_config(128, 0);
	struct world w;
	uint32_t f[8];

	for (int is_whole = 0; is_whole < 2; is_whole++) {
		world_open(&w, &cfg);
		for (int i = 0; i < 8; i++)
			f[i] = world_file(&w, 16 * MIB, true);
		for (uint32_t i = 0; i < 6; i++)
			for (uint64_t c = 0; c < (is_whole ? 16 : 1); c++)
				cr_assert(world_read(&w, f[i], c * MIB, MIB, 1));
		cr_assert(world_read(&w, f[6], 0, MIB, 1));
		world_run(&w, w.now_ns + 1000000000);
		cr_assert_eq(fetches_of(&w, f[6]), is_whole ? 16 : 1);
		world_close(&w);
	}
}
