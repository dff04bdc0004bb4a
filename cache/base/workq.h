/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/workq.h - threads for calls that may hang: a queue of jobs, and as many threads as it takes.
 * Used by the cache's origin threads and by fs/meta.c.
 *
 * 1. A job that runs for more than late_ns is *late*: it no longer counts as working, so another thread may
 *    take its place. Working (busy and not late) threads <= working_max, all threads <= threads_max.
 * 2. Demand jobs start before others; each kind in the order it came.
 * 3. One submit wakes at most one thread, and none for what the submitting thread itself can take next (workq_tail_begin()).
 *    Threads idle for 10 s end, but for the last that is not late. One is there from the start: jobs can be run, if more
 *    slowly, where no further thread is to be had.
 * 4. Shutdown never waits for a job. workq_destroy() joins only threads that have ended.
 *
 * Any thread may call anything but create and destroy. Threads run with all signals blocked.
 */
#ifndef CACHE_BASE_WORKQ_H
#define CACHE_BASE_WORKQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct workq;

struct workq_config {
	const char *name; /* of the threads, <= 12 characters; borrowed for ever */
	uint32_t threads_max, working_max;
	size_t stack_bytes; /* 0: 256 KiB */
	uint64_t late_ns;   /* 0: 200 ms */
	void *ctx;	    /* for the two below */
	/* From the watching thread, no lock held, must not block: about every 50 ms while a job runs, and at the time
	 * it returned last (CLOCK_MONOTONIC; UINT64_MAX: only while jobs run). May be NULL. */
	uint64_t (*tick)(void *ctx, uint64_t now_ns);
	/* What happens at shutdown to a job that has not begun. NULL: it still runs when a thread is free. */
	void (*drop)(void *ctx, void (*fn)(void *arg), void *arg);
};

struct workq_stats {
	uint32_t threads, busy, late, queued;
	uint64_t oldest_ns; /* age of the job that runs longest, 0: none */
};

int workq_create(const struct workq_config *cfg, struct workq **ret_q) __attribute__((warn_unused_result));
/* fn(arg) runs on a thread, once. -ESHUTDOWN, -ENOMEM: it will not. Blocks never. */
int workq_run(struct workq *q, void (*fn)(void *arg), void *arg, bool is_demand) __attribute__((warn_unused_result));
/* Called by a job between two calls that may hang: lateness is counted from here. */
void workq_progress(struct workq *q);
/* Is any job late now? One atomic load. */
bool workq_is_any_late(const struct workq *q);
/*
 * From here to the end of the calling job, or to workq_tail_end(), it does not wait: the first job that it submits meanwhile is
 * left to its own thread, which takes the next one then. Saves a wake-up and a switch for each job that another one follows.
 */
void workq_tail_begin(struct workq *q);
void workq_tail_end(struct workq *q);
/* Is there such a job? */
bool workq_tail_has_job(const struct workq *q);
void workq_stats_get(struct workq *q, struct workq_stats *ret);
/* Make the watching thread call tick soon. */
void workq_tick_soon(struct workq *q);

void workq_shutdown(struct workq *q); /* idempotent */
/* After shutdown. False: some job still ran after wait_ms and q was left allocated on purpose. NULL is fine. */
bool workq_destroy(struct workq *q, unsigned wait_ms);

#endif
