/* SPDX-License-Identifier: Apache-2.0 */
/* The growing work queue: order, growth past stuck jobs, limits, shutdown that waits for nobody. */
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "cache/base/workq.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#define WAIT_NS (60 * HFS_NS_PER_S)

struct gate {
	struct hfs_mutex lock;
	struct hfs_cond cond;
	unsigned n_in, n_done, n_dropped, order[64], n_order;
	bool is_open;
};

static void gate_init(struct gate *g)
{
	*g = (struct gate){0};
	hfs_mutex_init(&g->lock, HFS_RANK_LEAF);
	hfs_cond_init(&g->cond);
}

static void gate_wait_for(struct gate *g, unsigned *what, unsigned n)
{
	hfs_mutex_lock(&g->lock);
	while (*what < n)
		cr_assert(hfs_cond_wait_until(&g->cond, &g->lock, hfs_now_ns() + WAIT_NS), "%u of %u", *what, n);
	hfs_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
	hfs_mutex_lock(&g->lock);
	g->is_open = true;
	hfs_cond_broadcast(&g->cond);
	hfs_mutex_unlock(&g->lock);
}

static void stuck(void *arg)
{
	struct gate *g = arg;

	hfs_mutex_lock(&g->lock);
	g->n_in++;
	hfs_cond_broadcast(&g->cond);
	while (!g->is_open)
		hfs_cond_wait(&g->cond, &g->lock);
	g->n_done++;
	hfs_cond_broadcast(&g->cond);
	hfs_mutex_unlock(&g->lock);
}

struct numbered {
	struct gate *gate;
	unsigned no;
};

static void note(void *arg)
{
	struct numbered *n = arg;

	hfs_mutex_lock(&n->gate->lock);
	n->gate->order[n->gate->n_order++] = n->no;
	hfs_cond_broadcast(&n->gate->cond);
	hfs_mutex_unlock(&n->gate->lock);
}

Test(workq, demand_before_others_each_in_order)
{
	struct workq_config cfg = {.name = "t", .threads_max = 1, .working_max = 1};
	struct numbered n[8];
	struct workq *q;
	struct gate g;

	gate_init(&g);
	cr_assert_eq(workq_create(&cfg, &q), 0);
	cr_assert_eq(workq_run(q, stuck, &g, true), 0);
	gate_wait_for(&g, &g.n_in, 1);
	for (unsigned i = 0; i < 8; i++) {
		n[i] = (struct numbered){&g, i};
		cr_assert_eq(workq_run(q, note, &n[i], i % 2 != 0), 0);
	}
	gate_open(&g);
	gate_wait_for(&g, &g.n_order, 8);
	for (unsigned i = 0; i < 8; i++)
		cr_assert_eq(g.order[i], i < 4 ? 2 * i + 1 : 2 * (i - 4), "place %u has %u", i, g.order[i]);
	cr_assert(workq_destroy(q, 10000));
}

Test(workq, grows_past_stuck_jobs_up_to_its_limit)
{
	struct workq_config cfg = {
		.name = "t", .threads_max = 12, .working_max = 2, .stack_bytes = 128 * 1024, .late_ns = HFS_NS_PER_MS};
	struct workq_stats st;
	struct workq *q;
	struct gate g;

	gate_init(&g);
	cr_assert_eq(workq_create(&cfg, &q), 0);
	for (unsigned i = 0; i < 30; i++)
		cr_assert_eq(workq_run(q, stuck, &g, false), 0);
	gate_wait_for(&g, &g.n_in, 12);
	workq_stats_get(q, &st);
	cr_assert_eq(st.threads, 12);
	cr_assert_eq(st.queued, 18);
	cr_assert(st.oldest_ns > 0);
	gate_open(&g);
	gate_wait_for(&g, &g.n_done, 30);
	cr_assert(workq_destroy(q, 10000));
}

static void progressing(void *arg)
{
	struct numbered *n = arg;

	for (int i = 0; i < 100000; i++)
		workq_progress((struct workq *)(void *)n->gate);
	atomic_store((_Atomic unsigned *)&n->no, 1);
}

Test(workq, progress_from_outside_a_job_is_harmless)
{
	struct workq_config cfg = {.name = "t", .threads_max = 2, .working_max = 2};
	struct numbered n;
	struct workq *q;

	cr_assert_eq(workq_create(&cfg, &q), 0);
	n = (struct numbered){(void *)q, 0};
	workq_progress(q);
	cr_assert_eq(workq_run(q, progressing, &n, true), 0);
	cr_assert(workq_destroy(q, 60000));
	cr_assert_eq(n.no, 1, "a job that was queued before the shutdown still runs when there is no drop");
}

static void drop(void *ctx, void (*fn)(void *arg), void *arg)
{
	struct gate *g = ctx;

	(void)arg;
	cr_assert(fn == stuck);
	g->n_dropped++;
}

Test(workq, shutdown_drops_what_waits_and_leaves_the_stuck_one)
{
	struct workq_config cfg = {.name = "t", .threads_max = 1, .working_max = 1, .drop = drop};
	struct workq *q;
	struct gate g;

	gate_init(&g);
	cfg.ctx = &g;
	cr_assert_eq(workq_create(&cfg, &q), 0);
	cr_assert_eq(workq_run(q, stuck, &g, true), 0);
	gate_wait_for(&g, &g.n_in, 1);
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(workq_run(q, stuck, &g, false), 0);
	workq_shutdown(q);
	cr_assert_eq(g.n_dropped, 5);
	cr_assert_eq(workq_run(q, stuck, &g, true), -ESHUTDOWN);
	cr_assert_not(workq_destroy(q, 50), "one job still runs");
	gate_open(&g);
	cr_assert(workq_destroy(q, 10000));
	cr_assert_eq(g.n_done, 1);
}

static uint64_t tick_count(void *ctx, uint64_t now_ns)
{
	struct gate *g = ctx;

	hfs_mutex_lock(&g->lock);
	g->n_in++;
	hfs_cond_broadcast(&g->cond);
	hfs_mutex_unlock(&g->lock);
	return now_ns + HFS_NS_PER_MS;
}

Test(workq, ticks_when_it_was_asked_to)
{
	struct workq_config cfg = {.name = "t", .threads_max = 1, .working_max = 1, .tick = tick_count};
	struct workq *q;
	struct gate g;

	gate_init(&g);
	cfg.ctx = &g;
	cr_assert_eq(workq_create(&cfg, &q), 0);
	workq_tick_soon(q);
	gate_wait_for(&g, &g.n_in, 5);
	cr_assert(workq_destroy(q, 10000));
}

Test(workq, destroy_of_nothing)
{
	cr_assert(workq_destroy(NULL, 0));
}

/* ---- jobs that follow upon jobs ---- */

struct follower {
	struct workq *q;
	struct gate *gate;
	pthread_t ran_on, submitted_on;
	bool ends_tail, gets_stuck, had_job;
};

static void follow_2(void *arg)
{
	struct follower *f = arg;

	f->ran_on = pthread_self();
	hfs_mutex_lock(&f->gate->lock);
	f->gate->n_order++;
	hfs_cond_broadcast(&f->gate->cond);
	hfs_mutex_unlock(&f->gate->lock);
}

static void follow_1(void *arg)
{
	struct follower *f = arg;

	f->submitted_on = pthread_self();
	workq_tail_begin(f->q);
	cr_assert(!workq_tail_has_job(f->q));
	cr_assert_eq(workq_run(f->q, follow_2, f, true), 0);
	f->had_job = workq_tail_has_job(f->q);
	if (f->ends_tail)
		workq_tail_end(f->q);
	cr_assert(!f->ends_tail || !workq_tail_has_job(f->q));
	if (f->gets_stuck)
		stuck(f->gate);
}

static void follow(struct follower *f)
{
	struct workq_config cfg = {.name = "t", .threads_max = 4, .working_max = 2};
	struct gate g;

	gate_init(&g);
	f->gate = &g;
	cr_assert_eq(workq_create(&cfg, &f->q), 0);
	cr_assert_eq(workq_run(f->q, follow_1, f, true), 0);
	gate_wait_for(&g, &g.n_order, 1); /* while the first job is stuck, where it gets stuck */
	gate_open(&g);
	cr_assert(workq_destroy(f->q, 10000));
	cr_assert(f->had_job);
}

Test(workq, the_thread_of_a_tail_takes_what_it_submitted)
{
	for (int i = 0; i < 200; i++) {
		struct follower f = {.ends_tail = false};

		follow(&f);
		cr_assert(pthread_equal(f.ran_on, f.submitted_on)); /* no other thread is there, and none was started */
	}
}

Test(workq, a_tail_that_ends_gives_its_job_away)
{
	struct follower f = {.ends_tail = true, .gets_stuck = true};

	follow(&f);
	cr_assert(!pthread_equal(f.ran_on, f.submitted_on));
}

Test(workq, a_tail_that_is_held_up_strands_nobody)
{
	struct follower f = {.gets_stuck = true};

	follow(&f);
	cr_assert(!pthread_equal(f.ran_on, f.submitted_on));
}
