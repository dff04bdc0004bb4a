/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/grid.c - global shuffle of 1 MiB samples: seconds and origin bytes against their bounds, over cache share c and
 * transfer / compute phi. The full grid with HINTFS_FULL=1, else every other point and fewer samples.
 *
 * Each of the first epoch, and of all later ones together, must be within 1.05 of its bound.
 * The origin gives 200 MB/s after 5 ms; computing takes transfer / phi. An epoch of N samples is N * max(tau, F) at least.
 */
#include "tests/sim/simlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REACH 1.05
#define BANDWIDTH 200e6

struct figure {
	double first_t, first_b, later_t, later_b, total_b;
};

static void measure(const struct sim_work *w, const struct sim_config *c, const char *policy, const char *what, struct figure *f)
{
	struct sim_bound b;
	struct sim_result r;
	double t = 0, bt = 0, by = 0, bb = 0;

	simlib_run(w, c, policy, what, &r);
	simlib_need(sim_bound_init(w, c, &b));
	for (size_t e = 1; e < r.n_epochs; e++) {
		t += r.epochs[e].time_s;
		bt += b.time_s[e];
		by += (double)r.epochs[e].origin_bytes;
		bb += (double)b.bytes[e];
	}
	*f = (struct figure){.first_t = simlib_ratio(r.epochs[0].time_s, b.time_s[0]),
			     .first_b = simlib_ratio((double)r.epochs[0].origin_bytes, (double)b.bytes[0]),
			     .later_t = simlib_ratio(t, bt),
			     .later_b = simlib_ratio(by, bb),
			     .total_b = simlib_ratio((double)r.total.origin_bytes, (double)b.total_bytes)};
	sim_bound_finish(&b);
	sim_result_finish(&r);
}

static void point(const struct sim_work *w, uint32_t n, uint32_t batch, uint32_t workers, double c, double phi, const char *policy)
{
	struct sim_config cfg;
	struct figure f;
	char what[64];

	sim_config_default(&cfg);
	cfg.slots = (uint32_t)(c * n);
	cfg.bandwidth_bytes_per_s = BANDWIDTH;
	cfg.latency_ns = 5 * SIM_MSEC;
	cfg.workers = workers;
	cfg.compute_ns = (uint64_t)((double)MIB / BANDWIDTH * 1e9 / phi * batch);
	snprintf(what, sizeof(what), "c %.2f phi %.2f batch %u workers %u", c, phi, batch, workers);
	measure(w, &cfg, policy, what, &f);
	printf("%5.2f %5.2f %6u %7u   %6.3f %6.3f   %6.3f %6.3f%s\n", c, phi, batch, workers, f.first_t, f.first_b, f.later_t,
	       f.later_b, f.first_t > REACH || f.later_t > REACH || f.first_b > REACH || f.later_b > REACH ? "  <--" : "");
	if (strcmp(policy, "hintfs"))
		return;
	CHECK(f.first_t <= REACH, "%s: first epoch takes %.3f of its bound", what, f.first_t);
	CHECK(f.later_t <= REACH, "%s: later epochs take %.3f of their bound", what, f.later_t);
	CHECK(f.first_b <= REACH, "%s: first epoch fetches %.3f of its bound", what, f.first_b);
	CHECK(f.later_b <= REACH, "%s: later epochs fetch %.3f of their bound", what, f.later_b);
}

int main(int argc, char **argv)
{
	static const double cs[] = {0.1, 0.25, 0.5, 0.75, 0.9}, phis[] = {0.5, 0.8, 1.0, 1.25, 2, 4};
	static const struct {
		uint32_t batch, workers;
	} loaders[] = {{1, 0}, {16, 4}};
	const char *policy = argc > 1 ? argv[1] : "hintfs";
	uint32_t n = argc > 2 ? (uint32_t)atoi(argv[2]) : simlib_is_full() ? 8000 : 3000;

	printf("policy %s, %u samples of 1 MiB, %d epochs; ratio to the bound\n", policy, n, 5);
	printf("    c   phi  batch workers   first epoch     later epochs\n                            time  bytes     time  bytes\n");
	for (size_t l = 0; l < 2; l++) {
		struct sim_work w;

		simlib_pages(&w, n, MIB, 5, loaders[l].batch, ORDER_SHUFFLED, 7);
		simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
		for (size_t i = 0; i < 5; i++)
			for (size_t k = 0; k < 6; k++)
				if (simlib_is_full() || (i + k + l) % 2 == 0)
					point(&w, n, loaders[l].batch, loaders[l].workers, cs[i], phis[k], policy);
		sim_work_finish(&w);
	}
	return simlib_end("grid");
}
