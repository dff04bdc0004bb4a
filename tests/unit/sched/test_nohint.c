/* SPDX-License-Identifier: Apache-2.0 */
/* Readers without an order (sched/nohint.c): what is read ahead of them, what stays, and what a crawl may not do. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/sched/check.h"
#include "tests/unit/sched/rnd.h"
#include "tests/unit/sched/world.h"

#define KIB 1024ULL
#define MIB (1ULL << 20)

Test(nohint, sequential_is_read_ahead)
{
	struct sched_config cfg = world_config(64, 0);
	struct sched_stats s;
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 64 * MIB, true);
	for (uint64_t off = 0; off < 64 * MIB; off += 128 * KIB) {
		cr_assert(world_read(&w, f, off, 128 * KIB, 1));
		world_run(&w, w.now_ns + 800000); /* the reader is slower than the origin */
	}
	sched_stats_get(w.s, &s);
	cr_assert_leq(s.demand_misses, 4);
	cr_assert_eq(w.origin_bytes, 64 * MIB, "each byte once");
	world_close(&w);
}

Test(nohint, two_streams_in_one_file)
{
	struct sched_config cfg = world_config(64, 0);
	struct sched_stats s;
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 128 * MIB, true);
	for (uint64_t off = 0; off < 32 * MIB; off += 128 * KIB) {
		cr_assert(world_read(&w, f, off, 128 * KIB, 1));
		cr_assert(world_read(&w, f, 64 * MIB + off, 128 * KIB, 1));
		world_run(&w, w.now_ns + 2000000);
	}
	sched_stats_get(w.s, &s);
	cr_assert_leq(s.demand_misses, 12, "%lu misses", (unsigned long)s.demand_misses);
	world_close(&w);
}

Test(nohint, random_reads_bring_only_their_blocks)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 4096 * MIB, true);
	for (int i = 0; i < 200; i++)
		cr_assert(world_read(&w, f, (1 + rnd(4000)) * MIB + rnd(200) * 4096, 16384, 1));
	cr_assert_leq(w.origin_bytes, 200 * 20480 + 4 * MIB);
	world_close(&w);
}

static void read_run(struct world *w, uint32_t f, uint64_t at, uint64_t bytes, uint32_t step)
{
	for (uint64_t done = 0; done < bytes; done += step) {
		cr_assert(world_read(w, f, at + done, step, 1));
		world_run(w, w->now_ns + 2000000);
	}
}

/* Samples of 384 KiB, three reads each, somewhere in the first so many MiB. */
static void read_samples(struct world *w, uint32_t f, int n, uint32_t mibs)
{
	for (int i = 0; i < n; i++)
		read_run(w, f, rnd(mibs) * MIB + 64 * KIB, 384 * KIB, 128 * KIB);
}

/* Samples that are several reads each, in pages larger than a sample: what the second read asks for is no scan. */
Test(nohint, samples_of_several_reads_bring_little_more_than_themselves)
{
	struct sched_config cfg = world_config(64, 0);
	uint64_t before;
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 4096 * MIB, true);
	read_samples(&w, f, 40, 4000);
	before = w.origin_bytes;
	read_samples(&w, f, 200, 4000);
	cr_assert_leq(w.origin_bytes - before, 220 * 384 * KIB);
	world_close(&w);
}

Test(nohint, a_scan_after_samples_is_read_ahead_of)
{
	struct sched_config cfg = world_config(64, 0);
	uint64_t before;
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 4096 * MIB, true);
	read_samples(&w, f, 40, 2000);
	before = w.origin_bytes;
	read_run(&w, f, 3000 * MIB, 8 * MIB, 128 * KIB);
	cr_assert_geq(w.origin_bytes - before, 12 * MIB);
	world_close(&w);
}

Test(nohint, the_tail_first_is_not_sequential)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f;

	world_open(&w, &cfg);
	f = world_file(&w, 100 * MIB, true);
	cr_assert(world_read(&w, f, 100 * MIB - 65536, 65536, 1));
	world_run(&w, w.now_ns + 100000000);
	cr_assert_leq(w.origin_bytes, 65536);
	world_close(&w);
}

/* Keep, do not recycle: of a dataset twice the slots, read over and over, half must stay. */
Test(nohint, retention_is_not_recency)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f[128];
	uint64_t before;

	world_open(&w, &cfg);
	for (int i = 0; i < 128; i++)
		f[i] = world_file(&w, MIB, true);
	for (int e = 0; e < 3; e++)
		for (int i = 0; i < 128; i++)
			cr_assert(world_read(&w, f[i], 0, MIB, 1));
	before = w.n_fetched;
	for (int i = 0; i < 128; i++)
		cr_assert(world_read(&w, f[i], 0, MIB, 1));
	cr_assert_leq(w.n_fetched - before, 90, "%lu of 128; recency would fetch all",
		      (unsigned long)(w.n_fetched - before));
	world_close(&w);
}

Test(nohint, a_crawl_does_not_push_out_what_an_order_names)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f, g[200], gone = 0;

	world_open(&w, &cfg);
	f = world_file(&w, 60 * MIB, true);
	for (int i = 0; i < 200; i++)
		g[i] = world_file(&w, MIB, true);
	world_order(&w, f, 0, 0);
	world_run(&w, w.now_ns + 2000000000);
	/* Somebody reads the order's beginning, so that it is trusted. */
	for (uint32_t i = 0; i < 20; i++)
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
	for (int i = 0; i < 200; i++)
		cr_assert(world_read(&w, g[i], 0, MIB, 2));
	for (uint32_t i = 20; i < 60; i++)
		gone += world_find(&w, SCHED_EVICT, f, i, 0) != UINT32_MAX;
	cr_assert_leq(gone, 4, "%u pages that the order names left for a crawl", gone);
	world_close(&w);
}
