/* SPDX-License-Identifier: Apache-2.0 */
/* tests/sim/simlib.c - see simlib.h. */
#include "tests/sim/simlib.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned simlib_failures;

void simlib_check(bool ok, const char *file, int line, const char *cond, const char *fmt, ...)
{
	va_list ap;

	if (ok)
		return;
	simlib_failures++;
	printf("FAILED %s:%d: %s: ", file, line, cond);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

int simlib_end(const char *name)
{
	printf("%s: %s\n", name, simlib_failures ? "FAILED" : "ok");
	return simlib_failures ? 1 : 0;
}

bool simlib_is_full(void)
{
	const char *v = getenv("HINTFS_FULL");

	return v && strcmp(v, "1") == 0;
}

void simlib_need(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "cannot go on: %s\n", strerror(-rc));
	exit(1);
}

void simlib_run(const struct sim_work *w, const struct sim_config *c, const char *policy, const char *what, struct sim_result *r)
{
	simlib_need(sim_run(w, c, sim_policy_find(policy), r));
	CHECK(!r->is_deadlock, "%s, %s: nothing can happen any more, and readers wait", policy, what);
	CHECK(r->breaches == 0, "%s, %s: %llu breaches, the first: %s", policy, what, (unsigned long long)r->breaches, r->breach);
}

static uint32_t *numbers(uint32_t n)
{
	uint32_t *v = malloc((n + 1ULL) * sizeof(*v));

	simlib_need(v ? 0 : -12);
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	return v;
}

void simlib_node(struct sim_work *w, uint32_t n, uint64_t page_bytes, uint32_t epochs, uint32_t batch, uint32_t nodes, uint64_t seed)
{
	uint32_t file, *v = numbers(n), each = n / nodes;
	struct sim_rng rng = {seed};

	simlib_need(sim_work_init(w, 1));
	simlib_need(sim_work_file(w, n * page_bytes, &file));
	for (uint32_t e = 0; e < epochs; e++) {
		sim_rng_shuffle(&rng, v, n);
		simlib_need(sim_work_epoch(w, 0));
		for (uint32_t i = 0; i < each; i++) {
			if (i % batch == 0)
				simlib_need(sim_work_batch(w, 0));
			simlib_need(sim_work_read(w, 0, file, v[i] * page_bytes, page_bytes));
		}
	}
	free(v);
	simlib_need(sim_work_pages(w, page_bytes));
}

void simlib_pages(struct sim_work *w, uint32_t n, uint64_t page_bytes, uint32_t epochs, uint32_t batch, enum simlib_order order,
		  uint64_t seed)
{
	uint32_t file, *v = numbers(n);
	struct sim_rng rng = {seed};

	simlib_need(sim_work_init(w, 1));
	simlib_need(sim_work_file(w, n * page_bytes, &file));
	sim_rng_shuffle(&rng, v, n);
	for (uint32_t e = 0; e < epochs; e++) {
		if (order == ORDER_SHUFFLED)
			sim_rng_shuffle(&rng, v, n);
		simlib_need(sim_work_epoch(w, 0));
		for (uint32_t i = 0; i < n; i++) {
			if (i % batch == 0)
				simlib_need(sim_work_batch(w, 0));
			simlib_need(sim_work_read(w, 0, file, v[i] * page_bytes, page_bytes));
		}
	}
	free(v);
	simlib_need(sim_work_pages(w, page_bytes));
}

static void rank_shards(struct sim_work *w, const struct simlib_shards *s, uint32_t rank, const uint32_t *v, uint32_t n, uint32_t step)
{
	uint32_t next[64], file[64];
	uint64_t at[64], left = 1;

	for (uint32_t k = 0; k < s->workers; k++) {
		next[k] = k;
		at[k] = s->bytes;
	}
	while (left) {
		left = 0;
		for (uint32_t k = 0; k < s->workers; k++) {
			uint64_t len;

			if (at[k] == s->bytes) {
				if ((uint64_t)next[k] * step >= n)
					continue;
				file[k] = v[next[k] * step];
				next[k] += s->workers;
				at[k] = 0;
			}
			left++;
			len = s->bytes - at[k] < s->batch_bytes ? s->bytes - at[k] : s->batch_bytes;
			simlib_need(sim_work_batch(w, rank));
			simlib_need(sim_work_read(w, rank, file[k], at[k], len));
			at[k] += len;
		}
	}
}

void simlib_shards(struct sim_work *w, const struct simlib_shards *s)
{
	uint32_t *v = numbers(s->files), file, step = s->is_shared ? 1 : s->ranks;
	struct sim_rng rng = {s->seed};

	simlib_need(sim_work_init(w, s->ranks));
	for (uint32_t i = 0; i < s->files; i++)
		simlib_need(sim_work_file(w, s->bytes, &file));
	for (uint32_t e = 0; e < s->epochs; e++) {
		sim_rng_shuffle(&rng, v, s->files);
		for (uint32_t k = 0; k < s->ranks; k++) {
			uint32_t first = s->is_shared ? 0 : k;
			struct sim_hint mark = {.kind = SIM_HINT_MARK, .mark = SCHED_MARK_EPOCH_NEXT};

			simlib_need(sim_work_epoch(w, k));
			simlib_need(sim_work_hint(w, k, &mark));
			for (uint32_t i = first; i < s->files; i += step) {
				struct sim_hint h = {.kind = SIM_HINT_ENTRY, .entry = {v[i], 0, 0}};

				simlib_need(sim_work_hint(w, k, &h));
			}
			rank_shards(w, s, k, v + first, s->files - first, step);
		}
	}
	free(v);
	simlib_need(sim_work_pages(w, s->chunk_bytes));
}

void simlib_samples(struct sim_work *w, const struct simlib_samples *s)
{
	uint32_t *v = numbers(s->n), file;
	uint64_t per = s->page_bytes / s->bytes;
	struct sim_rng rng = {s->seed};

	simlib_need(sim_work_init(w, s->ranks));
	simlib_need(sim_work_file(w, (s->n + per - 1) / per * s->page_bytes, &file));
	for (uint32_t e = 0; e < s->epochs; e++) {
		sim_rng_shuffle(&rng, v, s->n);
		for (uint32_t k = 0; k < s->ranks; k++) {
			simlib_need(sim_work_epoch(w, k));
			for (uint32_t i = k, j = 0; i < s->n; i += s->ranks, j++) {
				if (j % s->batch == 0)
					simlib_need(sim_work_batch(w, k));
				simlib_need(sim_work_read(w, k, file, v[i] / per * s->page_bytes + v[i] % per * s->bytes, s->bytes));
			}
		}
	}
	free(v);
	simlib_need(sim_work_pages(w, s->chunk_bytes));
}

double simlib_ratio(double a, double b)
{
	return b > 0 ? a / b : a > 0 ? 1e9 : 1;
}
