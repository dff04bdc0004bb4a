/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/small.c - the grid of tests/bench/figures_grid.py in virtual time: few slots, where each one that is filled before its turn
 * shows. 128 samples of 1 MiB, batches of 8 in the order, read one after the other by 4 workers, 16 ahead of the trainer.
 *
 * Seconds and origin bytes of 3 epochs together against their bounds; the first epoch is most of both. With 12 slots (c 0.1) and phi 0.8 an origin
 * taken for a quarter slower than it is (sched/when.c) is as slow as the reader: all slots are window, and the most that can be lost is the
 * 24 hits of 360 reads. What is asked of the mount is asked there.
 */
#include "tests/sim/simlib.h"

#include <stdio.h>

#define REACH 1.05
#define REACH_FEW 1.08
#define FEW_SLOTS 16u
#define N 128u
#define BATCH 8u
#define BANDWIDTH 100e6

/* The reads are batches of one; the order marks batches of BATCH. */
static void hint(struct sim_work *w)
{
	const struct sim_rank *r = &w->ranks[0];

	for (size_t i = 0; i < r->n_reads; i++) {
		struct sim_hint epoch = {.kind = SIM_HINT_MARK, .mark = SCHED_MARK_EPOCH_NEXT};
		struct sim_hint batch = {.kind = SIM_HINT_MARK, .mark = SCHED_MARK_BATCH_NEXT};
		struct sim_hint entry = {.kind = SIM_HINT_ENTRY,
					 .entry = {r->reads[i].file, r->reads[i].off_bytes, r->reads[i].len_bytes}};

		if (i % N == 0)
			simlib_need(sim_work_hint(w, 0, &epoch));
		if (i % BATCH == 0)
			simlib_need(sim_work_hint(w, 0, &batch));
		simlib_need(sim_work_hint(w, 0, &entry));
	}
}

static void point(const struct sim_work *w, double c, double phi)
{
	struct sim_config cfg;
	struct sim_bound b;
	struct sim_result r;
	double t = 0, bt = 0, tx, bx, reach;
	char what[64];

	sim_config_default(&cfg);
	cfg.slots = (uint32_t)(c * N);
	cfg.bandwidth_bytes_per_s = BANDWIDTH;
	cfg.latency_ns = SIM_MSEC;
	cfg.workers = 4;
	cfg.prefetch = 4;
	cfg.copy_bytes_per_s = 2e9;
	cfg.is_overlapping = true;
	cfg.compute_ns = (uint64_t)((double)MIB / BANDWIDTH * 1e9 / phi);
	snprintf(what, sizeof(what), "c %.2f phi %.2f", c, phi);
	simlib_run(w, &cfg, "hintfs", what, &r);
	simlib_need(sim_bound_init(w, &cfg, &b));
	for (size_t e = 0; e < r.n_epochs; e++) {
		t += r.epochs[e].time_s;
		bt += b.time_s[e];
	}
	tx = simlib_ratio(t, bt);
	bx = simlib_ratio((double)r.total.origin_bytes, (double)b.total_bytes);
	reach = cfg.slots <= FEW_SLOTS ? REACH_FEW : REACH;
	printf("%5.2f %5.2f   %6.3f %6.3f%s\n", c, phi, tx, bx, tx > REACH || bx > reach ? "  <--" : "");
	CHECK(tx <= REACH, "%s: %.3f of the bound in time", what, tx);
	CHECK(bx <= reach, "%s: %.3f of the bound in bytes", what, bx);
	sim_bound_finish(&b);
	sim_result_finish(&r);
}

int main(void)
{
	static const double cs[] = {0.1, 0.25, 0.5, 0.75, 0.9}, phis[] = {0.5, 0.8, 1.0, 1.25, 2, 4};
	struct sim_work w;

	simlib_pages(&w, N, MIB, 3, 1, ORDER_SHUFFLED, 11);
	hint(&w);
	printf("    c   phi     time  bytes   over their bounds\n");
	for (size_t i = 0; i < 5; i++)
		for (size_t k = 0; k < 6; k++)
			point(&w, cs[i], phis[k]);
	sim_work_finish(&w);
	return simlib_end("small");
}
