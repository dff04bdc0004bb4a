/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/laws.c - law 9: a wrong hint is bounded. Time <= 1.25 x and bytes <= 2 x of the run without hints, plus one window
 * (the slots) once; never a deadlock, never a budget exceeded. Also readers that do what no hint says: die, skip, jump, overlap.
 */
#include "tests/sim/simlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 1200u
#define BATCH 16u
#define EPOCHS 4u
#define SLOTS 400u

struct order {
	uint32_t v[EPOCHS][N];
};

static void draw(struct order *o, uint64_t seed)
{
	struct sim_rng r = {seed};

	for (uint32_t i = 0; i < N; i++)
		o->v[0][i] = i;
	for (uint32_t e = 0; e < EPOCHS; e++) {
		if (e)
			memcpy(o->v[e], o->v[e - 1], sizeof(o->v[e]));
		sim_rng_shuffle(&r, o->v[e], N);
	}
}

enum { FILE_READ, FILE_OTHER, FILE_MISSING }; /* first of many */

static void world(struct sim_work *w, uint32_t ranks, uint32_t missing)
{
	uint32_t file;

	simlib_need(sim_work_init(w, ranks));
	simlib_need(sim_work_file(w, N * MIB, &file));
	simlib_need(sim_work_file(w, N * MIB, &file));
	for (uint32_t i = 0; i < missing; i++) {
		simlib_need(sim_work_file(w, MIB, &file));
		w->files[file].is_missing = true;
	}
}

/* What is read: rank 0, with a share of the samples left out, and `drop` samples at the end of each epoch. */
static void play(struct sim_work *w, const struct order *o, double skip, uint32_t drop)
{
	struct sim_rng r = {77};

	for (uint32_t e = 0; e < EPOCHS; e++) {
		simlib_need(sim_work_epoch(w, 0));
		for (uint32_t i = 0; i < N - drop; i++) {
			if (i % BATCH == 0)
				simlib_need(sim_work_batch(w, 0));
			if (skip > 0 && i % BATCH && sim_rng_unit(&r) < skip)
				continue;
			simlib_need(sim_work_read(w, 0, FILE_READ, o->v[e][i] * MIB, MIB));
		}
	}
}

static void mark(struct sim_work *w, uint32_t rank, enum sched_mark m, uint32_t epoch)
{
	struct sim_hint h = {.kind = SIM_HINT_MARK, .mark = m, .epoch = epoch};

	simlib_need(sim_work_hint(w, rank, &h));
}

static void entry(struct sim_work *w, uint32_t rank, uint32_t file, uint64_t page, uint32_t epoch)
{
	struct sim_hint h = {.kind = SIM_HINT_ENTRY, .entry = {file, page * MIB, MIB}, .epoch = epoch};

	simlib_need(sim_work_hint(w, rank, &h));
}

struct bend {
	double wrong;	   /* share of entries that name another page */
	uint32_t swap;	   /* entries are shuffled within so many */
	uint32_t upto;	   /* entries an epoch; 0: all */
	uint32_t shift;	   /* epochs late: epoch e is announced as e - shift was */
	uint32_t file;
	bool is_each_epoch; /* written when the epoch begins, in place of the list before */
};

static void hint(struct sim_work *w, uint32_t rank, const struct order *o, const struct bend *b)
{
	struct sim_rng r = {99};
	uint32_t v[N];

	for (uint32_t e = 0; e < EPOCHS; e++) {
		uint32_t when = b->is_each_epoch ? e : 0;

		if (b->is_each_epoch) {
			struct sim_hint h = {.kind = SIM_HINT_REPLACE, .epoch = e};

			simlib_need(sim_work_hint(w, rank, &h));
		}
		mark(w, rank, SCHED_MARK_EPOCH_NEXT, when);
		memcpy(v, o->v[e >= b->shift ? e - b->shift : 0], sizeof(v));
		for (uint32_t i = 0; b->swap && i < N; i += b->swap)
			sim_rng_shuffle(&r, v + i, N - i < b->swap ? N - i : b->swap);
		for (uint32_t i = 0; i < (b->upto ? b->upto : N); i++) {
			if (i % BATCH == 0)
				mark(w, rank, SCHED_MARK_BATCH_NEXT, when);
			if (b->wrong > 0 && sim_rng_unit(&r) < b->wrong)
				v[i] = (uint32_t)sim_rng_below(&r, N);
			entry(w, rank, b->file, v[i], when);
		}
	}
}

static void config(struct sim_config *c)
{
	sim_config_default(c);
	c->slots = SLOTS;
	c->workers = 4;
	c->latency_ns = 5 * SIM_MSEC;
	c->compute_ns = BATCH * 4 * SIM_MSEC;
}

static void compare(struct sim_work *w, const struct sim_config *c, const char *what, double reach)
{
	struct sim_result bare, hinted;
	double t, b, slack = (double)SLOTS * (double)MIB;

	simlib_need(sim_work_pages(w, MIB));
	simlib_run(w, c, "hintfs-nohint", what, &bare);
	simlib_run(w, c, "hintfs", what, &hinted);
	t = hinted.total.time_s / bare.total.time_s;
	b = (double)hinted.total.origin_bytes / (double)bare.total.origin_bytes;
	printf("  %-48s time x %.3f  bytes x %.3f\n", what, t, b);
	CHECK(t <= reach, "%s: %.2f s with the hint, %.2f s without", what, hinted.total.time_s, bare.total.time_s);
	CHECK((double)hinted.total.origin_bytes <= 2 * (double)bare.total.origin_bytes + slack, "%s: %.3f times the bytes", what, b);
	CHECK(hinted.total.needed_bytes == bare.total.needed_bytes || c->abandon_every, "%s: not the same reads", what);
	sim_result_finish(&bare);
	sim_result_finish(&hinted);
	sim_work_finish(w);
}

static void wrong_hints(void)
{
	static const struct {
		const char *what;
		struct bend b;
		bool is_other_order;
		double reach;
	} rows[] = {
		{"right", {.file = FILE_READ}, false, 1.0},
		{"right, written epoch by epoch", {.is_each_epoch = true}, false, 1.01},
		{"another order", {.file = FILE_READ}, true, 1.25},
		{"one epoch late", {.shift = 1}, false, 1.25},
		{"half of the entries wrong", {.wrong = 0.5}, false, 1.25},
		{"20 % wrong", {.wrong = 0.2}, false, 1.25},
		{"5 % wrong", {.wrong = 0.05}, false, 1.25},
		{"1 % wrong", {.wrong = 0.01}, false, 1.10},
		{"swapped within 2 batches", {.swap = 2 * BATCH}, false, 1.05},
		{"first half of each epoch only", {.upto = N / 2}, false, 1.25},
		{"one batch an epoch only", {.upto = BATCH}, false, 1.25},
		{"another dataset", {.file = FILE_OTHER}, true, 1.25},
	};
	struct order real, other;

	draw(&real, 1);
	draw(&other, 2);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct sim_config c;
		struct sim_work w;

		config(&c);
		world(&w, 1, 0);
		play(&w, &real, 0, 0);
		hint(&w, 0, rows[i].is_other_order ? &other : &real, &rows[i].b);
		compare(&w, &c, rows[i].what, rows[i].reach);
	}
}

static void missing_names(uint32_t n)
{
	struct order real;
	struct sim_config c;
	struct sim_work w;
	char what[64];

	draw(&real, 1);
	config(&c);
	world(&w, 1, n);
	play(&w, &real, 0, 0);
	for (uint32_t i = 0; i < n; i++)
		entry(&w, 0, FILE_MISSING + i, 0, 0);
	snprintf(what, sizeof(what), "%u names that do not exist", n);
	compare(&w, &c, what, 1.25);
}

/* A second stream, by somebody who does not read, says the opposite. */
static void contradiction(void)
{
	struct order real, other;
	struct sim_config c;
	struct sim_work w;
	struct bend none = {.file = FILE_READ};

	draw(&real, 1);
	draw(&other, 3);
	config(&c);
	world(&w, 2, 0);
	play(&w, &real, 0, 0);
	hint(&w, 0, &real, &none);
	hint(&w, 1, &other, &none);
	compare(&w, &c, "two streams that contradict each other", 1.25);
}

static void strange_readers(void)
{
	static const struct {
		const char *what;
		double skip;
		uint32_t drop, abandon;
		bool is_overlapping;
		double fail, reach;
	} rows[] = {
		{"10 % of the samples skipped", 0.10, 0, 0, false, 0, 1.10},
		{"30 % skipped", 0.30, 0, 0, false, 0, 1.25},
		{"last batch dropped", 0, BATCH, 0, false, 0, 1.05},
		{"next epoch before the end of this one", 0, 0, 0, true, 0, 1.05},
		{"every third waiting reader dies", 0, 0, 3, false, 0, 1.25},
		{"2 % of requests fail", 0, 0, 0, false, 0.02, 1.10},
	};
	struct bend none = {.file = FILE_READ};
	struct order real;

	draw(&real, 1);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct sim_config c;
		struct sim_work w;

		config(&c);
		c.is_overlapping = rows[i].is_overlapping;
		c.abandon_every = rows[i].abandon;
		c.fail_share = rows[i].fail;
		world(&w, 1, 0);
		play(&w, &real, rows[i].skip, rows[i].drop);
		hint(&w, 0, &real, &none);
		compare(&w, &c, rows[i].what, rows[i].reach);
	}
}

/* At 37 % of the second epoch the script starts again from a checkpoint: from the first batch of that epoch. */
static void seek_back(void)
{
	struct order real;
	struct sim_config c;
	struct sim_work w;
	struct bend none = {.file = FILE_READ};
	uint32_t cut = N * 37 / 100 / BATCH * BATCH;

	draw(&real, 1);
	config(&c);
	world(&w, 1, 0);
	for (uint32_t e = 0; e < EPOCHS; e++)
		for (uint32_t again = 0; again < (e == 1 ? 2u : 1u); again++) {
			simlib_need(sim_work_epoch(&w, 0));
			for (uint32_t i = 0; i < (e == 1 && !again ? cut : N); i++) {
				if (i % BATCH == 0)
					simlib_need(sim_work_batch(&w, 0));
				simlib_need(sim_work_read(&w, 0, FILE_READ, real.v[e][i] * MIB, MIB));
			}
		}
	hint(&w, 0, &real, &none);
	compare(&w, &c, "seek back at 37 % of the second epoch", 1.02);
}

/* The origin gives a quarter of its bandwidth for a minute, with latency that doubles and halves. */
static void slow_origin(void)
{
	struct order real;
	struct sim_config c;
	struct sim_work w;
	struct bend none = {.file = FILE_READ};

	draw(&real, 1);
	config(&c);
	c.slow_from_ns = 5 * SIM_SEC;
	c.slow_to_ns = 15 * SIM_SEC;
	c.latency_jitter = 0.9;
	c.compute_jitter = 0.5;
	world(&w, 1, 0);
	play(&w, &real, 0, 0);
	hint(&w, 0, &real, &none);
	compare(&w, &c, "a quarter of the bandwidth for 10 s, jitter", 1.10);
}

/* A file a sample, names looked up first, some of them gone: a dataset of images. */
static void small_files(void)
{
	struct sim_config c;
	struct sim_work w;
	struct sim_rng r = {5};
	uint32_t v[3000], file;

	config(&c);
	c.is_names_unknown = true;
	c.compute_ns = BATCH * SIM_MSEC;
	simlib_need(sim_work_init(&w, 1));
	for (uint32_t i = 0; i < 3000; i++) {
		simlib_need(sim_work_file(&w, 60000 + sim_rng_below(&r, 100000), &file));
		v[i] = file;
		w.files[file].is_missing = i % 10 == 9;
	}
	for (uint32_t e = 0; e < 3; e++) {
		struct sim_hint m = {.kind = SIM_HINT_MARK, .mark = SCHED_MARK_EPOCH_NEXT};
		uint32_t n = 0;

		sim_rng_shuffle(&r, v, 3000);
		simlib_need(sim_work_epoch(&w, 0));
		simlib_need(sim_work_hint(&w, 0, &m));
		for (uint32_t i = 0; i < 3000; i++) {
			struct sim_hint h = {.kind = SIM_HINT_ENTRY, .entry = {v[i], 0, 0}};

			simlib_need(sim_work_hint(&w, 0, &h));
			if (w.files[v[i]].is_missing)
				continue;
			if (n++ % BATCH == 0)
				simlib_need(sim_work_batch(&w, 0));
			simlib_need(sim_work_read(&w, 0, v[i], 0, w.files[v[i]].size_bytes));
		}
	}
	compare(&w, &c, "a file a sample, every tenth name gone", 1.0);
}

/* Very few slots: readers wait for more pages at once than there are. */
static void few_slots(void)
{
	struct order real;
	struct bend none = {.file = FILE_READ};

	draw(&real, 1);
	for (uint32_t slots = 1; slots <= 8; slots++) {
		struct sim_config c;
		struct sim_work w;
		char what[64];

		config(&c);
		c.slots = slots;
		c.workers = 8;
		world(&w, 1, 0);
		play(&w, &real, 0, 0);
		hint(&w, 0, &real, &none);
		snprintf(what, sizeof(what), "%u slots, 8 readers", slots);
		compare(&w, &c, what, 1.25);
	}
}

int main(void)
{
	wrong_hints();
	missing_names(simlib_is_full() ? 1000000 : 50000);
	contradiction();
	strange_readers();
	seek_back();
	slow_origin();
	small_files();
	few_slots();
	return simlib_end("laws");
}
