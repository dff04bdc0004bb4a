/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/optimum.c - the scheduler against brute force on random tiny instances.
 *
 * Demand only (prefetch off): its fetches are as few as any policy's. With prefetch: its time is at most the optimum
 * and the fetches of two slots more. Instances: 2-6 pages, 2-4 slots, up to 12 uses; uniform, skewed, cyclic, permuted orders.
 */
#include "tests/sim/brute.h"
#include "tests/sim/simlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 65536ULL
#define UNIT_NS SIM_MSEC

struct instance {
	uint8_t uses[BRUTE_USES_MAX];
	uint32_t n, pages, slots, fetch, use;
};

static void draw(struct sim_rng *r, struct instance *t)
{
	uint32_t perm[BRUTE_PAGES_MAX], kind = (uint32_t)sim_rng_below(r, 4);

	t->pages = 2 + (uint32_t)sim_rng_below(r, 5);
	t->slots = 2 + (uint32_t)sim_rng_below(r, 3);
	t->n = 3 + (uint32_t)sim_rng_below(r, 10);
	t->fetch = 1 + (uint32_t)sim_rng_below(r, 4);
	t->use = 1 + (uint32_t)sim_rng_below(r, 3);
	for (uint32_t i = 0; i < t->pages; i++)
		perm[i] = i;
	for (uint32_t i = 0; i < t->n; i++) {
		if (kind == 3 && i % t->pages == 0)
			sim_rng_shuffle(r, perm, t->pages);
		t->uses[i] = (uint8_t)(kind == 0 ? sim_rng_below(r, t->pages) :
				       kind == 1 ? sim_rng_below(r, 1 + sim_rng_below(r, t->pages)) :
						   perm[i % t->pages]);
	}
}

static void work_of(const struct instance *t, struct sim_work *w)
{
	uint32_t file;

	simlib_need(sim_work_init(w, 1));
	simlib_need(sim_work_file(w, t->pages * PAGE, &file));
	for (uint32_t i = 0; i < t->n; i++) {
		simlib_need(sim_work_batch(w, 0));
		simlib_need(sim_work_read(w, 0, file, t->uses[i] * PAGE, PAGE));
	}
	simlib_need(sim_work_hint_all(w, SIM_NONE - 1));
	simlib_need(sim_work_pages(w, PAGE));
}

static void show(const struct instance *t, char *buf, size_t cap)
{
	int at = snprintf(buf, cap, "pages %u slots %u fetch %u use %u order", t->pages, t->slots, t->fetch, t->use);

	for (uint32_t i = 0; i < t->n; i++)
		at += snprintf(buf + at, cap - (size_t)at, " %u", t->uses[i]);
}

static void config_of(const struct instance *t, struct sim_config *c)
{
	sim_config_default(c);
	c->slots = t->slots;
	c->workers = 0;
	c->latency_ns = 0;
	c->bandwidth_bytes_per_s = (double)PAGE / (double)(t->fetch * UNIT_NS) * (double)SIM_SEC;
	c->compute_ns = t->use * UNIT_NS;
	c->inflight_bytes_max = t->slots * PAGE;
}

struct tally {
	uint64_t n, exact, worst_units;
	double sum_ratio;
};

static void one(const struct instance *t, struct tally *demand, struct tally *timed)
{
	struct sim_config c;
	struct sim_result r;
	struct sim_work w;
	char what[160];
	unsigned best;
	uint64_t got;

	show(t, what, sizeof(what));
	config_of(t, &c);
	work_of(t, &w);
	simlib_run(&w, &c, "hintfs-demand", what, &r);
	best = brute_demand(t->uses, t->n, t->slots);
	got = r.total.origin_bytes / PAGE;
	CHECK(got == best, "demand only: %llu fetches, %u are enough: %s", (unsigned long long)got, best, what);
	demand->n++;
	demand->exact += got == best;
	sim_result_finish(&r);

	simlib_run(&w, &c, "hintfs", what, &r);
	best = brute_time(t->uses, t->n, t->slots, t->fetch, t->use);
	got = (uint64_t)(r.total.time_s * 1e9 / (double)UNIT_NS + 0.5);
	CHECK(got >= best, "%llu units, less than the optimum of %u: brute force or machine is wrong: %s", (unsigned long long)got, best, what);
	CHECK(got <= best + 2 * t->fetch, "%llu units, optimum %u: %s", (unsigned long long)got, best, what);
	timed->n++;
	timed->exact += got == best;
	timed->worst_units = got - best > timed->worst_units ? got - best : timed->worst_units;
	timed->sum_ratio += (double)got / best;
	sim_result_finish(&r);
	sim_work_finish(&w);
}

int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : simlib_is_full() ? 100000 : 10000;
	struct sim_rng rng = {argc > 2 ? strtoull(argv[2], NULL, 10) : 11};
	struct tally demand = {0}, timed = {0};

	for (uint64_t i = 0; i < n && simlib_failures < 20; i++) {
		struct instance t;

		draw(&rng, &t);
		one(&t, &demand, &timed);
	}
	printf("demand only: %llu instances, %llu with the fewest fetches\n", (unsigned long long)demand.n,
	       (unsigned long long)demand.exact);
	printf("with prefetch: %llu instances, %llu in the shortest time, mean ratio %.4f, worst %llu units more\n",
	       (unsigned long long)timed.n, (unsigned long long)timed.exact, timed.sum_ratio / (double)timed.n,
	       (unsigned long long)timed.worst_units);
	return simlib_end("optimum");
}
