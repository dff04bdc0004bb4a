/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/sim.h - a deterministic machine for caching policies: virtual clock, origin, disk tier, slots, loader workers, trainers.
 *
 *   struct sim_work      what is read: files; for each rank its reads, batches, epochs, and the hint that announces them
 *        |
 *   struct sim           the machine: events in virtual time (machine.c), requests (origin.c), readers (loader.c)
 *        | struct sim_policy_ops: events in, struct sched_action out, executed as fs/engine.c does
 *   policy_hintfs.c (struct sched itself)   policy_simple.c (what others do)
 *        |
 *   struct sim_result    seconds, bytes and stalls by epoch; bound.c has what they could have been at best
 *
 * Model. A rank's loader is PyTorch's: worker w takes batches w, w + N, ... of an epoch, each worker keeps `prefetch` of them in
 * hand, reads one after the other. The trainer takes batches in order and computes; ranks in lock step compute together. A
 * request of the origin waits `latency`, then the link carries overhead + bytes of one request after the other.
 *
 * Invariants
 *   1. Same work, configuration and seed: same result, bit for bit. No clock, no thread, no global.
 *   2. The machine checks what the scheduler promises and counts each breach in sim_result.breaches: slots and tier within budget,
 *      no page both in flight and evicted, no fetch of blocks in flight.
 *   3. A run ends: when all reads are done, when nothing can happen any more (is_deadlock) or after time_max_ns (is_deadlock).
 *
 * Callers: tools/sim/main.c, tests/sim. Thread safety: none needed, nothing is shared.
 */
#ifndef TOOLS_SIM_SIM_H
#define TOOLS_SIM_SIM_H

#include "sched/sched.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_SEC 1000000000ULL
#define SIM_MSEC 1000000ULL
#define SIM_USEC 1000ULL
#define SIM_NONE UINT32_MAX

/* ---- chance -------------------------------------------------------------------------------- */

struct sim_rng {
	uint64_t state;
};
uint64_t sim_rng_u64(struct sim_rng *r);
uint64_t sim_rng_below(struct sim_rng *r, uint64_t n);
double sim_rng_unit(struct sim_rng *r); /* [0, 1) */
void sim_rng_shuffle(struct sim_rng *r, uint32_t *v, size_t n);

/* ---- work ---------------------------------------------------------------------------------- */

struct sim_file {
	uint64_t size_bytes;
	bool is_missing;     /* the name is in a hint only */
	uint32_t first_page; /* set by sim_work_pages() */
};

struct sim_read {
	uint32_t file;
	uint64_t off_bytes, len_bytes; /* inside the file, len > 0 */
};

enum sim_hint_kind { SIM_HINT_ENTRY, SIM_HINT_MARK, SIM_HINT_REPLACE, SIM_HINT_CANCEL };
struct sim_hint {
	enum sim_hint_kind kind;
	enum sched_mark mark;
	uint64_t value;
	struct sched_entry entry;
	uint32_t epoch; /* written to the control file when this epoch (0-based, of what is read) begins */
};

struct sim_rank {
	struct sim_read *reads; /* owned, as all arrays here */
	size_t n_reads, cap_reads;
	size_t *batches; /* first read of batch i */
	size_t n_batches, cap_batches;
	size_t *epochs; /* first batch of epoch i */
	size_t n_epochs, cap_epochs;
	struct sim_hint *hints;
	size_t n_hints, cap_hints;
};

struct sim_work {
	struct sim_file *files;
	uint32_t n_files, cap_files;
	struct sim_rank *ranks;
	uint32_t n_ranks;
	uint64_t chunk_bytes; /* set by sim_work_pages() */
	uint32_t n_pages;
};

int sim_work_init(struct sim_work *w, uint32_t n_ranks) __attribute__((warn_unused_result));
void sim_work_finish(struct sim_work *w);
int sim_work_file(struct sim_work *w, uint64_t size_bytes, uint32_t *ret_file) __attribute__((warn_unused_result));
int sim_work_epoch(struct sim_work *w, uint32_t rank) __attribute__((warn_unused_result)); /* the next batch begins an epoch */
int sim_work_batch(struct sim_work *w, uint32_t rank) __attribute__((warn_unused_result)); /* the next read begins a batch */
int sim_work_read(struct sim_work *w, uint32_t rank, uint32_t file, uint64_t off, uint64_t len) __attribute__((warn_unused_result));
int sim_work_hint(struct sim_work *w, uint32_t rank, const struct sim_hint *h) __attribute__((warn_unused_result));
/* Hints that say exactly what is read; epoch e is written when epoch max(0, e - ahead) begins. */
int sim_work_hint_all(struct sim_work *w, uint32_t ahead) __attribute__((warn_unused_result));
/* Number pages for this chunk size. Call when all files are there. -E2BIG: more than 2^31 pages. */
int sim_work_pages(struct sim_work *w, uint64_t chunk_bytes) __attribute__((warn_unused_result));
size_t sim_batch_end(const struct sim_rank *r, size_t batch); /* one past its last read */
size_t sim_epoch_end(const struct sim_rank *r, size_t epoch); /* one past its last batch */

/* One page visited by one read: the merged order of all ranks, by (batch, rank). */
struct sim_visit {
	uint32_t page;
	uint32_t next;	/* next visit of the same page, SIM_NONE */
	uint32_t epoch;
	uint16_t b0, b1; /* blocks, both inside */
};
struct sim_visits {
	struct sim_visit *v;
	size_t n;
	size_t **of_read; /* [rank][read]: first visit of it */
	uint32_t n_ranks;
	uint32_t block_bytes;
};
int sim_visits_init(const struct sim_work *w, struct sim_visits *ret) __attribute__((warn_unused_result));
void sim_visits_finish(struct sim_visits *v);

/* ---- machine ---------------------------------------------------------------------------------- */

struct sim_config {
	uint32_t slots;	     /* pages in memory */
	uint32_t disk_pages; /* pages on the disk tier */
	uint64_t latency_ns;
	double latency_jitter; /* 0.2: latency x [0.8, 1.2) */
	double bandwidth_bytes_per_s;
	uint64_t overhead_ns; /* of the link, a request */
	uint32_t outstanding; /* requests under way at once */
	uint64_t disk_latency_ns;
	double disk_bytes_per_s;
	uint32_t workers; /* 0: the trainer reads by itself */
	uint32_t prefetch; /* batches in hand of each worker */
	uint64_t compute_ns; /* a batch */
	double compute_jitter;
	double copy_bytes_per_s; /* of a reader; 0: no time */
	uint32_t epochs_ahead;	 /* of the order that MIN and the windows know; SIM_NONE: all */
	bool is_names_unknown;	 /* names have to be resolved first, as in the daemon */
	bool is_overlapping;	 /* workers go on to the next epoch at once */
	bool is_independent;	 /* ranks do not wait for each other */
	uint32_t page_cache_pages; /* the kernel's, LRU: reads found there reach nobody; 0: none */
	uint32_t abandon_every;	 /* every n-th read that must wait is given up (a reader dies); 0: none */
	double fail_share;	 /* of requests that end in an error */
	uint64_t slow_from_ns, slow_to_ns; /* the origin gives a quarter of its bandwidth then */
	uint64_t inflight_bytes_max; /* of hintfs; 0: half the slots */
	uint64_t time_max_ns;	 /* 0: 400 days */
	uint64_t seed;
	void (*progress)(void *arg, uint64_t reads_done, uint64_t reads);
	void *progress_arg;
};
void sim_config_default(struct sim_config *c);

struct sim_epoch {
	double time_s, stall_s;
	uint64_t origin_bytes, needed_bytes, hit_bytes, disk_bytes, disk_write_bytes;
	uint64_t origin_reads;
};

struct sim_result {
	struct sim_epoch *epochs; /* owned */
	size_t n_epochs;
	struct sim_epoch total;
	double first_batch_s;
	double end_s; /* when the last trainer was through */
	uint64_t breaches;
	char breach[96]; /* the first one */
	bool is_deadlock;
	uint64_t frames_max;
	double bound_s;	      /* what sched_stats says at the end, policy hintfs */
	struct sched_stats sched;
};
void sim_result_finish(struct sim_result *r);

struct sim;

/* A policy: all calls but name may be NULL. */
struct sim_policy_ops {
	const char *name, *help;
	int (*create)(struct sim *m, void **ret_state);
	void (*destroy)(void *st);
	void (*hint)(void *st, uint32_t rank, const struct sim_hint *h, size_t n);
	void (*open)(void *st, uint32_t file, uint64_t reader);
	void (*close)(void *st, uint32_t file, uint64_t reader);
	void (*progress)(void *st, uint32_t rank, size_t read, size_t visit); /* before read() */
	void (*batch)(void *st, uint32_t rank, size_t batch);		      /* the trainer asks for it */
	void (*read)(void *st, uint32_t file, uint64_t off, uint64_t len, uint64_t reader, bool is_miss);
	void (*resolved)(void *st, uint32_t file, int err, uint64_t size_bytes);
	void (*fetched)(void *st, uint32_t file, uint64_t chunk_no, uint32_t off, uint32_t len, int err, uint64_t issued_ns);
	void (*shortage)(void *st, uint32_t n);
	void (*tier_has)(void *st, uint32_t file, uint64_t chunk_no, bool has);
	size_t (*step)(void *st, struct sched_action *out, size_t max);
	uint64_t (*next_ns)(void *st);
	void (*finish)(void *st, struct sim_result *res);
	bool is_bounded; /* slots are pages and the machine checks them; others count bytes by themselves */
};

extern const struct sim_policy_ops *const sim_policies[]; /* NULL at the end; hintfs first */
const struct sim_policy_ops *sim_policy_find(const char *name);

/* 0, -ENOMEM. A deadlock or a breach is in the result, not an error. */
int sim_run(const struct sim_work *w, const struct sim_config *cfg, const struct sim_policy_ops *policy, struct sim_result *ret)
	__attribute__((warn_unused_result));

/* ---- bounds: no policy can do better (notes: lower bounds) ---------------------------------------- */

struct sim_bound {
	double *time_s; /* [epoch], owned */
	uint64_t *bytes;
	size_t n_epochs;
	double total_s;
	uint64_t total_bytes;
	uint64_t min_misses, min_hits; /* visits, MIN with bypass at this capacity */
};
int sim_bound_init(const struct sim_work *w, const struct sim_config *cfg, struct sim_bound *ret) __attribute__((warn_unused_result));
void sim_bound_finish(struct sim_bound *b);

#endif
