/* SPDX-License-Identifier: Apache-2.0 */
/* Readers that go back in their order and say nothing (sched/rewind.c): fetched for again, and not more than that. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "tests/unit/sched/world.h"

#define MIB (1ULL << 20)
#define N 400u

static uint64_t misses(const struct world *w)
{
	struct sched_stats s;

	sched_stats_get(w->s, &s);
	return s.demand_misses;
}

/* Page numbers in an order that no read-ahead finds. */
static uint64_t page_of(uint32_t i)
{
	return (i * 149ULL + 7) % N;
}

static uint32_t order(struct world *w, uint32_t f, uint32_t n)
{
	uint32_t st;

	cr_assert_eq(sched_stream_create(w->s, &st), 0);
	for (uint32_t i = 0; i < n; i++) {
		const struct sched_entry e = {f, page_of(i) * MIB, MIB};

		cr_assert_eq(sched_stream_append(w->s, st, &e, 1), 1);
	}
	return st;
}

static void read_on(struct world *w, uint32_t f, uint32_t from, uint32_t to, uint64_t reader)
{
	for (uint32_t i = from; i < to; i++) {
		cr_assert(world_read(w, f, page_of(i) * MIB, MIB, reader));
		world_run(w, w->now_ns + 20000000);
	}
}

/* A file with an order of all its pages, the first n of them read by reader 1. Returns the stream. */
static uint32_t begin(struct world *w, uint32_t n, uint32_t *ret_file)
{
	struct sched_config cfg = world_config(32, 0);
	uint32_t st;

	world_open(w, &cfg);
	*ret_file = world_file(w, N * MIB, true);
	st = order(w, *ret_file, N);
	read_on(w, *ret_file, 0, n, 1);
	return st;
}

static void goes_back(uint32_t at, uint64_t reader)
{
	struct sched_stream_stats s;
	struct world w;
	uint64_t before;
	uint32_t f, st = begin(&w, at, &f);

	before = misses(&w);
	read_on(&w, f, 100, 300, reader);
	cr_assert_leq(misses(&w) - before, 16, "%lu misses after going back from %u", (unsigned long)(misses(&w) - before), at);
	cr_assert_eq(sched_stream_stats_get(w.s, st, &s), 0);
	cr_assert_eq(s.low, 300, "it is where the reader is: %lu", (unsigned long)s.low);
	world_close(&w);
}

Test(rewind, a_reader_goes_back)
{
	goes_back(220, 1);
}

Test(rewind, a_new_process_begins_again_when_the_list_is_through)
{
	goes_back(N, 2);
}

/* Somebody reads what was read, while the stream's own reader goes on: no reason to go anywhere. */
Test(rewind, a_second_reader_of_what_was_read_moves_nobody)
{
	struct sched_stream_stats s;
	struct world w;
	uint64_t before;
	uint32_t f, st = begin(&w, 200, &f);

	before = misses(&w);
	for (uint32_t i = 200; i < 390; i++) {
		read_on(&w, f, i, i + 1, 1);
		cr_assert(world_read(&w, f, page_of(i - 200) * MIB, MIB, 2));
	}
	cr_assert_eq(sched_stream_stats_get(w.s, st, &s), 0);
	cr_assert_eq(s.low, 390);
	cr_assert_leq(misses(&w) - before, 190 + 8, "only the second reader waits");
	world_close(&w);
}

/* Reads in no order at all: few searches, and the origin is asked for little more than what they read. */
Test(rewind, who_leaps_about_costs_a_window_now_and_then)
{
	struct world w;
	uint64_t before;
	uint32_t f;

	(void)begin(&w, 300, &f);
	before = w.origin_bytes;
	for (uint32_t k = 0; k < 30; k++) /* ten in order, somewhere before */
		read_on(&w, f, k * 97 % 280, k * 97 % 280 + 10, 1);
	cr_assert_leq(w.origin_bytes - before, 2 * 300 * MIB);
	world_close(&w);
}
