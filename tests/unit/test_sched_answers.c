/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that cross with later decisions: what the scheduler counts is what the caller holds. */
#include "sched/sched.h"

#include <criterion/criterion.h>
#include <errno.h>

#define MIB (1u << 20)

static struct sched_action acts[64];
static size_t n_acts;
static uint64_t now_ns = 1000;

static void step(struct sched *s)
{
	now_ns += 1000;
	n_acts = sched_step(s, now_ns, acts, 64);
	cr_assert_lt(n_acts, 64);
}

static bool has(enum sched_action_kind kind, uint32_t file, bool is_demand)
{
	for (size_t i = 0; i < n_acts; i++)
		if (acts[i].kind == kind && acts[i].file == file && (kind != SCHED_FETCH || acts[i].is_demand == is_demand))
			return true;
	return false;
}

static void answer(struct sched *s, uint32_t file, int err)
{
	now_ns += 1000;
	sched_fetched(s, file, 0, 0, MIB, err, now_ns - 1, now_ns);
}

static struct sched *two_slots(void)
{
	struct sched_config cfg = {
		.chunk_bytes = MIB, .slots = 2, .inflight_max = 64, .inflight_bytes_max = 64 * MIB, .seed = 1};
	struct sched *s;

	cr_assert_eq(sched_create(&cfg, &s), 0);
	for (uint32_t f = 0; f < 3; f++)
		cr_assert_eq(sched_file_add(s, f, MIB), 0);
	return s;
}

/*
 * A prefetch is called back for the sake of a demand, then somebody reads it and it is asked for again, as demand: the end of
 * the first order (-ECANCELED) is not the end of the second, whose page would be in a slot that nobody counts.
 */
Test(sched_answers, called_back_and_asked_for_again)
{
	struct sched_entry order[2] = {{.file = 0}, {.file = 1}};
	struct sched *s = two_slots();
	struct sched_stats st;
	uint32_t stream;

	cr_assert_eq(sched_stream_create(s, &stream), 0);
	cr_assert_eq(sched_stream_append(s, stream, order, 2), 2);
	step(s);
	cr_assert(has(SCHED_FETCH, 0, false));
	if (!has(SCHED_FETCH, 1, false))
		step(s);
	cr_assert(has(SCHED_FETCH, 1, false));
	sched_read(s, 2, 0, MIB, 7, true, now_ns);
	step(s);
	cr_assert(has(SCHED_UNFETCH, 1, false), "no room else");
	sched_read(s, 1, 0, MIB, 8, false, now_ns);
	answer(s, 0, 0);
	step(s);
	cr_assert(has(SCHED_EVICT, 0, false));
	cr_assert(has(SCHED_FETCH, 2, true));
	cr_assert(has(SCHED_FETCH, 1, true), "asked for again");
	answer(s, 1, -ECANCELED);
	sched_stats_get(s, &st);
	cr_assert_eq(st.inflight_pages, 2, "the second order is still out");
	answer(s, 2, 0);
	answer(s, 1, 0);
	sched_stats_get(s, &st);
	cr_assert_eq(st.resident_pages, 2);
	cr_assert_eq(st.inflight_pages, 0);
	sched_destroy(s);
}

/* What comes and is not counted is given back. */
Test(sched_answers, what_nobody_asked_for_is_given_back)
{
	struct sched *s = two_slots();

	answer(s, 1, 0);
	step(s);
	cr_assert(has(SCHED_EVICT, 1, false));
	answer(s, 1, -EIO);
	step(s);
	cr_assert_eq(n_acts, 0, "nothing came");
	sched_destroy(s);
}

/* It is told again what a reader needs: fetched, but no second read. */
Test(sched_answers, read_again)
{
	struct sched *s = two_slots();
	struct sched_stats st;

	sched_read(s, 0, 0, MIB, 7, true, now_ns);
	step(s);
	cr_assert(has(SCHED_FETCH, 0, true));
	answer(s, 0, 0);
	sched_read_again(s, 0, 0, MIB, now_ns);
	step(s);
	cr_assert(has(SCHED_FETCH, 0, true), "the cache knows better than the books");
	sched_stats_get(s, &st);
	cr_assert_eq(st.demand_misses, 1);
	cr_assert_eq(st.needed_bytes, MIB);
	answer(s, 0, 0);
	step(s);
	cr_assert_not(has(SCHED_FETCH, 0, true));
	sched_read_again(s, 0, MIB, 1, now_ns);
	sched_read_again(s, 99, 0, 1, now_ns);
	step(s);
	cr_assert_eq(n_acts, 0);
	sched_destroy(s);
}

/* ---- fetches that hang ------------------------------------------------------------------------- */

static struct sched *four_slots(void)
{
	struct sched_config cfg = {
		.chunk_bytes = MIB, .slots = 4, .inflight_max = 64, .inflight_bytes_max = 64 * MIB, .seed = 1};
	struct sched *s;

	cr_assert_eq(sched_create(&cfg, &s), 0);
	cr_assert_eq(sched_file_add(s, 0, 8 * MIB), 0); /* hangs */
	for (uint32_t f = 1; f < 40; f++)
		cr_assert_eq(sched_file_add(s, f, MIB), 0);
	return s;
}

/* Three chunks of a file hang in their slots, in time they are late. */
static void hang(struct sched *s, uint64_t wait_ns)
{
	for (uint64_t c = 0; c < 3; c++)
		sched_read(s, 0, 2 * c * MIB, 4096, 10 + c, true, now_ns);
	step(s);
	cr_assert(has(SCHED_FETCH, 0, true));
	now_ns += wait_ns;
	step(s);
}

/* One slot is left, and a page is in it: who waits next gets it, though the books count the late ones for nothing. */
Test(sched_answers, the_last_slot_goes_to_who_waits)
{
	struct sched *s = four_slots();

	hang(s, 300000000);
	for (uint32_t f = 1; f < 6; f++) {
		sched_read(s, f, 0, MIB, 7, true, now_ns);
		step(s);
		cr_assert(has(SCHED_FETCH, f, true));
		if (f > 1) { /* the cache has no slot for it */
			bool is_given = has(SCHED_EVICT, f - 1, false);

			sched_shortage(s, 1, now_ns);
			step(s);
			cr_assert(is_given || has(SCHED_EVICT, f - 1, false), "file %u", f);
		}
		answer(s, f, 0);
		step(s);
	}
	sched_destroy(s);
}

/* An origin that hung for long and came back: when it hangs again, that is seen as soon as the first time. */
Test(sched_answers, a_hang_is_forgotten)
{
	struct sched *s = four_slots();

	for (uint32_t f = 1; f < 33; f++) {
		sched_read(s, f, 0, MIB, 7, true, now_ns);
		step(s);
		cr_assert(has(SCHED_FETCH, f, true));
		now_ns += 5000000000;
		sched_fetched(s, f, 0, 0, MIB, 0, now_ns - 5000000000, now_ns);
		step(s);
	}
	hang(s, 2000000000);
	sched_read(s, 0, 6 * MIB, 4096, 20, true, now_ns); /* hangs too */
	step(s);
	now_ns += 2000000000;
	step(s);
	sched_read(s, 33, 0, MIB, 7, true, now_ns);
	step(s);
	cr_assert(has(SCHED_FETCH, 33, true));
	sched_destroy(s);
}
