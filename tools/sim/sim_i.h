/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/sim_i.h - shared inside tools/sim: the machine's insides.
 *
 *   machine.c  events, actions, frames, results      origin.c  requests to origin and disk
 *   loader.c   trainers, workers, reads
 */
#ifndef TOOLS_SIM_SIM_I_H
#define TOOLS_SIM_SIM_I_H

#include "tools/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct sim_bits {
	uint64_t w[4];
};

/* Bits [b0, b1], both inside, as word i of the mask. */
static inline uint64_t sim_bits_mask(uint32_t i, uint32_t b0, uint32_t b1)
{
	uint32_t lo = i * 64, hi = lo + 63;

	if (b0 > hi || b1 < lo)
		return 0;
	b0 = b0 > lo ? b0 - lo : 0;
	b1 = b1 < hi ? b1 - lo : 63;
	return (~0ULL >> (63 - (b1 - b0))) << b0;
}
static inline void sim_bits_set(struct sim_bits *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t i = b0 / 64; i <= b1 / 64; i++)
		m->w[i] |= sim_bits_mask(i, b0, b1);
}
static inline void sim_bits_clear(struct sim_bits *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t i = b0 / 64; i <= b1 / 64; i++)
		m->w[i] &= ~sim_bits_mask(i, b0, b1);
}
static inline bool sim_bits_any(const struct sim_bits *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t i = b0 / 64; i <= b1 / 64; i++)
		if (m->w[i] & sim_bits_mask(i, b0, b1))
			return true;
	return false;
}
static inline bool sim_bits_all(const struct sim_bits *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t i = b0 / 64; i <= b1 / 64; i++)
		if (~m->w[i] & sim_bits_mask(i, b0, b1))
			return false;
	return true;
}
static inline bool sim_bits_empty(const struct sim_bits *m)
{
	return !(m->w[0] | m->w[1] | m->w[2] | m->w[3]);
}
static inline uint32_t sim_bits_count(const struct sim_bits *m)
{
	return (uint32_t)(__builtin_popcountll(m->w[0]) + __builtin_popcountll(m->w[1]) + __builtin_popcountll(m->w[2]) +
			  __builtin_popcountll(m->w[3]));
}

enum event_kind { EV_ARRIVE, EV_FETCHED, EV_TIER_WRITTEN, EV_COMPUTED, EV_WORKER };
struct event {
	uint64_t at_ns, seq;
	enum event_kind kind;
	uint32_t who;
};

struct frame {
	struct sim_bits valid, flight, fresh; /* fresh: came from the origin and was not read since */
	uint32_t page, next_free;
	uint32_t n_fetches;
	bool is_doubled; /* a look-up brought what a fetch is bringing too */
};

enum tier_state { TIER_NONE, TIER_WRITING, TIER_DROPPED /* while it was written */, TIER_HAS };
struct page {
	uint32_t frame; /* SIM_NONE */
	uint32_t waiters; /* chain of workers */
	uint32_t pc_prev, pc_next; /* kernel's page cache */
	uint8_t tier, is_cached;
};

enum fetch_state { FETCH_FREE, FETCH_QUEUED, FETCH_STARTED };
struct fetch {
	uint64_t deadline_ns, issued_ns, seq;
	uint64_t chunk_no;
	uint32_t file, page, off, len;
	uint32_t next_free, queue_at;
	enum fetch_state state;
	bool is_demand, from_tier, is_resolve;
	bool is_orphan; /* its page left meanwhile */
};

enum worker_state { W_IDLE, W_READING, W_WAITING, W_COPYING };
struct worker {
	enum worker_state state;
	uint32_t rank, index;
	uint32_t next_waiter, wait_page;
	size_t batch; /* being read, or the next one of its own */
	size_t read, part; /* cursor: read of the batch, page of the read */
	uint32_t file; /* open, SIM_NONE */
	uint16_t b0, b1;
	bool has_batch, is_runnable;
};

struct rank {
	size_t dispatched; /* batches [0, dispatched) were given out */
	size_t taken;	   /* batches the trainer has taken */
	uint8_t *is_ready; /* [batch] */
	size_t hints_fed, epoch; /* epoch whose hints were fed last + 1 */
	size_t dispatch_epoch;
	uint32_t first_worker, n_workers;
};

struct trainer {
	uint32_t rank0, n_ranks;
	size_t batch; /* being waited for or computed */
	bool is_computing, is_done;
	size_t epoch;
	uint64_t epoch_began_ns, computed_ns;
};

struct sim {
	const struct sim_work *work;
	struct sim_config cfg;
	const struct sim_policy_ops *ops;
	void *policy;
	struct sim_visits visits;
	struct sim_rng rng;
	uint64_t now_ns, seq;

	struct event *heap;
	size_t n_heap, cap_heap;
	uint64_t timer_ns;

	struct page *pages;
	struct frame *frames;
	uint32_t n_frames, cap_frames, free_frame, live_frames, max_frames;
	struct fetch *fetches;
	uint32_t n_fetches, cap_fetches, free_fetch;
	uint32_t *queue; /* fetches that wait for one of the outstanding places */
	uint32_t n_queue, cap_queue, n_started;
	uint64_t link_free_ns, disk_free_ns;
	uint32_t tier_pages;
	uint8_t *is_resolved, *is_resolving; /* [file] */

	struct worker *workers;
	uint32_t n_workers;
	struct rank *ranks;
	struct trainer *trainers;
	uint32_t n_trainers, trainers_done;
	uint32_t *runnable; /* ring */
	uint32_t run_head, n_runnable;
	uint32_t pc_head, pc_tail, pc_count;
	uint64_t waits; /* reads that had to wait */
	uint64_t reads_done, reads_all;

	struct sim_result *res;
	size_t epoch; /* of trainer 0 */
	bool is_out_of_memory;
};

/* machine.c */
void sim_event(struct sim *m, uint64_t at_ns, enum event_kind kind, uint32_t who);
void sim_breach(struct sim *m, const char *what, uint32_t file, uint64_t chunk_no);
void sim_policy_run(struct sim *m);
uint32_t sim_frame_get(struct sim *m, uint32_t page);
void sim_frame_put(struct sim *m, uint32_t page);
uint32_t sim_chunk_len(const struct sim *m, uint32_t file, uint64_t chunk_no);
uint32_t sim_chunk_blocks(const struct sim *m, uint32_t page_len);
static inline uint32_t sim_page(const struct sim *m, uint32_t file, uint64_t chunk_no)
{
	return m->work->files[file].first_page + (uint32_t)chunk_no;
}
static inline struct sim_epoch *sim_epoch_now(struct sim *m) { return &m->res->epochs[m->epoch]; }

/* origin.c */
void sim_fetch_add(struct sim *m, const struct sched_action *a, bool is_resolve);
void sim_fetch_cancel(struct sim *m, uint32_t file, uint64_t chunk_no);
void sim_fetch_promote(struct sim *m, uint32_t page, uint32_t b0, uint32_t b1);
void sim_fetch_arrived(struct sim *m, uint32_t fe);
void sim_fetch_done(struct sim *m, uint32_t fe);
void sim_fetch_orphan(struct sim *m, uint32_t page);
void sim_tier_admit(struct sim *m, uint32_t file, uint64_t chunk_no);
void sim_tier_written(struct sim *m, uint32_t page);
void sim_tier_drop(struct sim *m, uint32_t file, uint64_t chunk_no);

/* loader.c */
int sim_loader_init(struct sim *m);
void sim_loader_finish(struct sim *m);
void sim_loader_start(struct sim *m);
void sim_worker_wake(struct sim *m, uint32_t w);
void sim_workers_run(struct sim *m);
void sim_page_wake(struct sim *m, uint32_t page); /* waiters whose blocks are there */
void sim_page_again(struct sim *m, uint32_t page); /* waiters whose blocks are neither there nor coming: ask again */
void sim_trainer_computed(struct sim *m, uint32_t t);
void sim_worker_copied(struct sim *m, uint32_t w);
uint64_t sim_jitter(struct sim *m, uint64_t ns, double share);

#endif
