/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/tables.c - hit shares of known policies, as derived and measured by others: within 0.01, or the machine is wrong.
 *
 * Table 1: 20,000 items, permutations, 14 epochs of which the first 4 and the last do not count. c = cache / dataset.
 * Table 2: one of 8 nodes, 16,000 items, each epoch another eighth; 60 epochs, all count, the cold ones too.
 */
#include "tests/sim/simlib.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOLERANCE 0.01
#define PAGE 4096ULL /* the machine wants 64 KiB pages at least where the scheduler takes part; here it does not */

static double hits(const struct sim_work *w, double c, uint32_t items, const char *policy, uint32_t ahead, size_t from, size_t to)
{
	struct sim_config cfg;
	struct sim_result r;
	uint64_t origin = 0, needed = 0;

	sim_config_default(&cfg);
	cfg.slots = (uint32_t)lround(c * items);
	cfg.workers = 0;
	cfg.epochs_ahead = ahead;
	cfg.compute_ns = 1000;
	simlib_run(w, &cfg, policy, "table", &r);
	for (size_t e = from; e < to && e < r.n_epochs; e++) {
		origin += r.epochs[e].origin_bytes;
		needed += r.epochs[e].needed_bytes;
	}
	sim_result_finish(&r);
	return 1 - (double)origin / (double)needed;
}

static void row(const char *name, const double *is, const double *want, size_t n)
{
	printf("  %-22s", name);
	for (size_t i = 0; i < n; i++) {
		printf(" %.3f", is[i]);
		CHECK(fabs(is[i] - want[i]) <= TOLERANCE, "%s, column %zu: %.4f, should be %.3f", name, i + 1, is[i], want[i]);
	}
	printf("\n");
}

static void table1(void)
{
	static const double c[] = {0.10, 0.25, 0.35, 0.50, 0.65, 0.75, 0.90};
	static const struct {
		const char *name, *policy;
		enum simlib_order order;
		double want[7];
	} rows[] = {
		{"LRU", "lru", ORDER_SHUFFLED, {0.005, 0.034, 0.069, 0.152, 0.281, 0.401, 0.669}},
		{"random", "random", ORDER_SHUFFLED, {0.010, 0.070, 0.140, 0.283, 0.464, 0.602, 0.833}},
		{"never evict", "never-evict", ORDER_SHUFFLED, {0.100, 0.250, 0.350, 0.500, 0.650, 0.750, 0.900}},
		{"MIN", "min", ORDER_SHUFFLED, {0.100, 0.250, 0.350, 0.500, 0.650, 0.750, 0.900}},
		{"LRU, same order", "lru", ORDER_SAME, {0, 0, 0, 0, 0, 0, 0}},
		{"random, same order", "random", ORDER_SAME, {0.000, 0.020, 0.070, 0.202, 0.393, 0.545, 0.807}},
	};
	uint32_t items = 20000;
	struct sim_work w[2];

	simlib_pages(&w[ORDER_SHUFFLED], items, PAGE, 14, 1, ORDER_SHUFFLED, 1);
	simlib_pages(&w[ORDER_SAME], items, PAGE, 14, 1, ORDER_SAME, 2);
	printf("hit shares, c =          0.10  0.25  0.35  0.50  0.65  0.75  0.90\n");
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		double is[7];

		for (size_t i = 0; i < 7; i++)
			is[i] = hits(&w[rows[k].order], c[i], items, rows[k].policy, SIM_NONE, 4, 13);
		row(rows[k].name, is, rows[k].want, 7);
	}
	sim_work_finish(&w[0]);
	sim_work_finish(&w[1]);
}

static void table2(void)
{
	static const double c[] = {0.05, 0.125, 0.25, 0.50};
	static const struct {
		const char *name, *policy;
		uint32_t ahead;
		double want[4];
	} rows[] = {
		{"LRU", "lru", 0, {0.010, 0.064, 0.195, 0.445}},
		{"random", "random", 0, {0.018, 0.081, 0.201, 0.448}},
		{"never evict", "never-evict", 0, {0.049, 0.122, 0.242, 0.472}},
		{"frequency", "frequency", SIM_NONE, {0.080, 0.182, 0.326, 0.568}},
		{"MIN", "min", SIM_NONE, {0.246, 0.402, 0.558, 0.734}},
		{"MIN, 1 further epoch", "min", 1, {0.153, 0.218, 0.324, 0.528}},
		{"MIN, 2", "min", 2, {0.235, 0.291, 0.385, 0.568}},
		{"MIN, 4", "min", 4, {0.245, 0.400, 0.477, 0.625}},
		{"MIN, 8", "min", 8, {0.245, 0.403, 0.558, 0.695}},
	};
	uint32_t items = 16000;
	struct sim_work w;

	simlib_node(&w, items, PAGE, 60, 1, 8, 3);
	printf("one of 8 nodes, c =      0.05  0.125 0.25  0.50\n");
	for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
		double is[4];

		for (size_t i = 0; i < 4; i++)
			is[i] = hits(&w, c[i], items, rows[k].policy, rows[k].ahead, 0, 60);
		row(rows[k].name, is, rows[k].want, 4);
	}
	sim_work_finish(&w);
}

int main(void)
{
	table1();
	table2();
	return simlib_end("tables");
}
