/* SPDX-License-Identifier: Apache-2.0 */
/* The least bytes (sched/least.c): equal to MIN with bypass played by looking ahead, and near it when only a sample is looked at. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "sched/least.h"
#include "tests/unit/sched/rnd.h"

#define PAGE 65536u
#define BLOCK 4096u
#define NEVER UINT32_MAX

static void note(struct sch_least *l, uint64_t page, uint32_t capacity)
{
	struct sch_least_read r = {page / 7, page % 7, 0, PAGE / BLOCK - 1, BLOCK, PAGE};

	sch_least_note(l, &r, capacity);
}

static uint64_t least_of(const uint32_t *trace, uint32_t n, uint32_t capacity, const struct sch_least_limits *limits,
			 uint32_t *ret_shift)
{
	struct sch_least *l;
	uint64_t bytes;

	cr_assert_eq(sch_least_create(limits, &l), 0);
	for (uint32_t i = 0; i < n; i++)
		note(l, trace[i], capacity);
	bytes = sch_least_bytes(l);
	*ret_shift = sch_least_shift(l);
	sch_least_destroy(l);
	return bytes;
}

/* MIN with bypass; reads of one page in a row are one visit. Of what is held and what was just read, the page that is read again last goes. */
static uint64_t min_misses(const uint32_t *trace, uint32_t n, uint32_t n_pages, uint32_t capacity)
{
	uint32_t *next = malloc(n * sizeof(*next)), *at = malloc(n_pages * sizeof(*at));
	uint32_t *held = malloc((n_pages + 1) * sizeof(*held)), *use = calloc(n_pages, sizeof(*use));
	bool *is_held = calloc(n_pages, sizeof(*is_held));
	uint32_t n_held = 0;
	uint64_t misses = 0;
	uint32_t *visits = malloc(n * sizeof(*visits)), n_visits = 0;

	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || trace[i] != trace[i - 1])
			visits[n_visits++] = trace[i];
	trace = visits;
	n = n_visits;
	memset(at, 0xff, n_pages * sizeof(*at));
	for (uint32_t i = n; i-- > 0;) {
		next[i] = at[trace[i]];
		at[trace[i]] = i;
	}
	for (uint32_t i = 0; i < n; i++) {
		uint32_t x = trace[i], worst = 0;

		use[x] = next[i];
		misses += !is_held[x];
		if (!is_held[x])
			held[n_held++] = x;
		is_held[x] = true;
		if (n_held <= capacity)
			continue;
		for (uint32_t k = 1; k < n_held; k++)
			worst = use[held[k]] > use[held[worst]] ? k : worst;
		is_held[held[worst]] = false;
		held[worst] = held[--n_held];
	}
	free(visits);
	free(next);
	free(at);
	free(held);
	free(use);
	free(is_held);
	return misses;
}

/* Kinds of trace: any page, a few hot ones, a new permutation each epoch, the same order each epoch. */
static void trace_make(uint32_t *trace, uint32_t n, uint32_t n_pages, uint32_t kind)
{
	for (uint32_t i = 0; i < n; i++)
		trace[i] = kind == 0 ? rnd(n_pages) : kind == 1 ? rnd(rnd(n_pages) + 1) : i % n_pages;
	for (uint32_t from = 0; kind == 2 && from < n; from += n_pages)
		for (uint32_t k = (n - from < n_pages ? n - from : n_pages) - 1; k > 0; k--) {
			uint32_t j = rnd(k + 1), x = trace[from + k];

			trace[from + k] = trace[from + j];
			trace[from + j] = x;
		}
}

Test(least, equals_min_on_every_small_trace)
{
	uint32_t trace[400], shift;

	for (uint32_t t = 0; t < 4000; t++) {
		uint32_t n = 1 + rnd(400), n_pages = 1 + rnd(60), capacity = rnd(n_pages + 2);

		trace_make(trace, n, n_pages, t % 4);
		uint64_t got = least_of(trace, n, capacity, NULL, &shift) / PAGE, want = min_misses(trace, n, n_pages, capacity);

		cr_assert_eq(got, want,
			     "trace %u: %u reads of %u pages, %u held: %lu, MIN %lu", t, n, n_pages, capacity,
			     (unsigned long)got, (unsigned long)want);
		cr_assert_eq(shift, 0);
	}
}

/* 6 epochs of 4,000 pages; memory for 512 pages and 2,048 boundaries: one page in 8 or 16. Error below 3 % of all that was read. */
Test(least, a_sample_is_near)
{
	const struct sch_least_limits few = {512, 2048};
	uint32_t n = 24000, n_pages = 4000, shift;
	uint32_t *trace = malloc(n * sizeof(*trace));

	for (uint32_t kind = 0; kind < 4; kind++)
		for (uint32_t capacity = n_pages / 8; capacity < n_pages; capacity += n_pages / 4) {
			double got, want;

			trace_make(trace, n, n_pages, kind);
			got = (double)least_of(trace, n, capacity, &few, &shift) / PAGE;
			want = (double)min_misses(trace, n, n_pages, capacity);
			cr_assert_geq(shift, 3);
			cr_assert_leq(abs((int)(got - want)), (int)(0.03 * n), "kind %u, %u held: %.0f, MIN %.0f", kind, capacity,
				      got, want);
		}
	free(trace);
}

/* All pages, but only 64 boundaries for thousands of reads. */
Test(least, coarse_time_is_near)
{
	const struct sch_least_limits coarse = {4096, 64};
	uint32_t n = 3000, n_pages = 100, shift;
	uint32_t *trace = malloc(n * sizeof(*trace));

	for (uint32_t kind = 0; kind < 4; kind++) {
		double got, want;

		trace_make(trace, n, n_pages, kind);
		got = (double)least_of(trace, n, 40, &coarse, &shift) / PAGE;
		want = (double)min_misses(trace, n, n_pages, 40);
		cr_assert_eq(shift, 0);
		cr_assert_leq(abs((int)(got - want)), (int)(0.05 * n), "kind %u: %.0f, MIN %.0f", kind, got, want);
	}
	free(trace);
}

Test(least, counts_blocks_once_and_the_short_last_one_as_it_is)
{
	struct sch_least_read a = {1, 0, 0, 3, BLOCK, PAGE}, b = {1, 0, 2, 5, BLOCK, PAGE}, end = {1, 1, 0, 1, BLOCK, 5000};
	struct sch_least *l;

	cr_assert_eq(sch_least_create(NULL, &l), 0);
	sch_least_note(l, &a, 8);
	sch_least_note(l, &b, 8);
	cr_assert_eq(sch_least_bytes(l), 6 * BLOCK);
	sch_least_note(l, &end, 8);
	cr_assert_eq(sch_least_bytes(l), 6 * BLOCK + 5000);
	sch_least_note(l, &a, 8);
	cr_assert_eq(sch_least_bytes(l), 6 * BLOCK + 5000, "still there");
	sch_least_destroy(l);
}

Test(least, what_the_disk_had_is_not_needed)
{
	struct sch_least_read r = {1, 0, 0, 15, BLOCK, PAGE};
	struct sch_least *l;

	cr_assert_eq(sch_least_create(NULL, &l), 0);
	sch_least_adopt(l, &r);
	note(l, 100, 4);
	sch_least_note(l, &r, 4);
	cr_assert_eq(sch_least_bytes(l), PAGE, "page 100 alone");
	sch_least_destroy(l);
}
