/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/sched/hostile.c - any event with any numbers in any order: no crash, no broken invariant, no memory
 * without bound. Nothing here keeps the books: answers come for what was never asked, sizes change, time
 * jumps back, numbers do not exist.
 *
 * Usage: hostile [rounds [seed]]; exit 0 or 1 (or abort).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/sched/check.h"

#define FILES 40
#define MEMORY_MAX (64u << 20)

static uint64_t rng;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return n ? rng % n : rng;
}

/* Small numbers mostly, the edges sometimes. */
static uint64_t number(void)
{
	static const uint64_t edges[] = {0, 1, 65535, 65536, 65537, UINT32_MAX, 1ULL << 40, 1ULL << 62, UINT64_MAX - 1,
					 UINT64_MAX};

	return rnd(4) ? rnd(4u << 20) : edges[rnd(sizeof(edges) / sizeof(edges[0]))];
}

static uint64_t now(void)
{
	static uint64_t t = 1;

	t += rnd(3) ? rnd(1000000) : rnd(100) ? 0 : 10000000000ULL;
	return rnd(20) ? t : rnd(t);
}

static void streams(struct sched *s)
{
	struct sched_entry e[8];
	uint32_t id = (uint32_t)rnd(rnd(20) ? 6 : 0);

	for (int i = 0; i < 8; i++)
		e[i] = (struct sched_entry){(uint32_t)rnd(rnd(20) ? FILES : 0), number(), number()};
	switch (rnd(8)) {
	case 0:
		(void)!sched_stream_create(s, &id);
		break;
	case 1:
		if (rnd(4) == 0)
			sched_stream_destroy(s, id);
		break;
	case 2:
		if (rnd(4) == 0)
			sched_stream_replace(s, id);
		break;
	case 3:
	case 4:
		(void)!sched_stream_mark(s, id, (enum sched_mark)rnd(14), rnd(2) ? rnd(50) : number(), now());
		break;
	default:
		(void)!sched_stream_append(s, id, e, rnd(9));
		break;
	}
}

static void files(struct sched *s)
{
	uint32_t file = (uint32_t)rnd(FILES);

	switch (rnd(6)) {
	case 0:
		(void)!sched_file_add(s, file, number());
		break;
	case 1:
		sched_file_changed(s, file, number());
		break;
	case 2:
		if (sched_file_is_idle(s, file))
			sched_file_forget(s, file);
		break;
	default:
		sched_file_resolved(s, file, rnd(4) ? 0 : -ENOENT, number(),
				    rnd(4) ? SCHED_NO_FILE : (uint32_t)rnd(FILES + 2), now());
		break;
	}
}

static void events(struct sched *s)
{
	uint32_t file = (uint32_t)rnd(rnd(50) ? FILES : 0);

	switch (rnd(8)) {
	case 0:
	case 1:
	case 2:
		sched_read(s, file, number(), number(), rnd(5), rnd(2), now());
		break;
	case 3:
		sched_fetched(s, file, rnd(50), (uint32_t)number(), (uint32_t)number(), rnd(3) ? 0 : -EIO, rnd(2) ? now() : 0,
			      now());
		break;
	case 4:
		sched_dropped(s, file, rnd(50));
		sched_tier_has(s, file, rnd(50), rnd(2));
		break;
	case 5:
		sched_pin(s, file, rnd(50), (int)rnd(5) - 2);
		sched_shortage(s, (uint32_t)number(), now());
		break;
	case 6:
		(void)!sched_wait_batch(s, (uint32_t)rnd(6), rnd(8), rnd(100), now());
		(void)!sched_wait_file(s, file, rnd(100), now());
		break;
	default:
		sched_wait_cancel(s, rnd(100));
		sched_set_prefetch(s, (enum sched_prefetch)rnd(3));
		if (rnd(10) == 0)
			sched_set_slots(s, (uint32_t)rnd(100));
		break;
	}
}

/* Some of what is asked for is answered, late and out of order. */
static void step(struct sched *s)
{
	struct sched_action a[32];
	size_t n = sched_step(s, now(), a, 1 + rnd(32));

	for (size_t i = 0; i < n; i++) {
		if (rnd(8) == 0)
			continue;
		if (a[i].kind == SCHED_FETCH || a[i].kind == SCHED_UNFETCH)
			sched_fetched(s, a[i].file, a[i].chunk_no, a[i].off_bytes, a[i].len_bytes,
				      rnd(10) ? 0 : -ECANCELED, UINT64_MAX, now());
		else if (a[i].kind == SCHED_RESOLVE)
			sched_file_resolved(s, a[i].file, rnd(4) ? 0 : -ENOENT, rnd(200000), SCHED_NO_FILE, now());
		else if (a[i].kind == SCHED_TIER_ADMIT && rnd(3) == 0)
			sched_tier_has(s, a[i].file, a[i].chunk_no, false);
	}
}

static int play(uint64_t seed)
{
	struct sched_config cfg;
	struct sched_stats st;
	struct sched *s;

	rng = seed * 0x9e3779b97f4a7c15ULL + 1;
	cfg = (struct sched_config){.chunk_bytes = 65536,
				    .slots = (uint32_t)(1 + rnd(60)),
				    .disk_pages = (uint32_t)rnd(30),
				    .inflight_max = (uint32_t)(1 + rnd(20)),
				    .inflight_bytes_max = number(),
				    .entries_max = rnd(2) ? 0 : 100,
				    .positions_max = 4096,
				    .prefetch_bytes_per_s = rnd(3) ? 0 : number()};
	if (sched_create(&cfg, &s))
		return 1;
	for (uint32_t i = 0; i < FILES; i++)
		(void)!sched_file_add(s, i, rnd(3) ? rnd(1u << 20) : number());
	for (int i = 0; i < 1500; i++) {
		struct sched_stream_stats q;

		if (rnd(3) == 0)
			streams(s);
		else if (rnd(6) == 0)
			files(s);
		else
			events(s);
		if (rnd(2))
			step(s);
		(void)sched_next_ns(s);
		sched_stats_get(s, &st);
		(void)sched_stream_stats_get(s, (uint32_t)rnd(6), &q);
		if (st.entry_bytes > MEMORY_MAX) {
			fprintf(stderr, "%" PRIu64 " bytes of entries and positions\n", st.entry_bytes);
			return 1;
		}
		if (i % 64 == 0)
			check_invariants(s);
	}
	sched_destroy(s);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 300;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

	for (uint64_t i = 0; i < rounds; i++) {
		if (getenv("VERBOSE"))
			fprintf(stderr, "seed %" PRIu64 "\n", seed + i);
		if (play(seed + i)) {
			fprintf(stderr, "seed %" PRIu64 "\n", seed + i);
			return 1;
		}
	}
	return 0;
}
