/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_i.h - shared inside fs/engine*.c.
 *
 * One lock (rank HFS_RANK_ENGINE) guards the scheduler and the name table. Who has news for the scheduler (a read, a
 * fetch that ended) puts an event into a list of its own lock and then *pumps*: whoever finds no other thread pumping takes
 * the engine's lock, feeds all events, asks for actions and executes them (cache calls that queue work and never
 * wait), until no event is left. So a reader never waits behind another one's scheduling, and actions are executed in the
 * order they were decided. Callbacks to others are collected and made after the lock is gone.
 */
#ifndef FS_ENGINE_I_H
#define FS_ENGINE_I_H

#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "fs/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#define NAMES_BLOCK 4096u
#define NAMES_BLOCKS_MAX 16384u /* 64 Mi names */
#define NAME_NONE UINT32_MAX
#define ATTRS_SLOTS 8192u
#define ACTIONS_MAX 256u

/* A fetch that the scheduler ordered while the file was not open: carried out once it is resolved. */
struct orphan {
	struct orphan *next;
	struct sched_action a;
};

/* A name known to the scheduler. Guarded by the engine's lock. */
struct ename {
	char *path;		 /* owned; NULL: free */
	struct cache_file *file; /* counted; the generation the scheduler's pages belong to; NULL: not resolved now */
	struct orphan *orphans;
	uint32_t hash, hash_next, refs, n_bind;
	uint32_t n_acts; /* actions at hand that name it: what they need of it stays */
	bool is_resolving, is_missing, is_known;
	bool is_awaited; /* a large file that was just looked up: its generation stays until the scheduler, which lays its pages out first, fetches */
	bool is_asked; /* by a RESOLVE of the scheduler, which counts on its fetch being answered */
	uint64_t size_bytes; /* valid if is_known */
};

enum event_kind { EV_READ, EV_LOST, EV_FETCHED, EV_RESOLVED, EV_REALPATH, EV_CHANGED, EV_SLOTS, EV_SLOTS_LENT, EV_STARVED,
		  EV_TIER_ADMITTED, EV_TIER_LOST, EV_TIER_ADOPTED };

struct tier_news; /* engine_tier.c's */

struct event {
	enum event_kind kind;
	uint32_t name;
	bool is_miss, is_small, is_tier_missed;
	bool may_bind; /* READ, with file: as engine_read() */
	int err;
	struct cache_file *file; /* counted where set */
	uint64_t off_bytes, len_bytes, reader; /* READ; FETCHED: chunk number in off */
	uint32_t fetch_off, fetch_len;
	uint64_t asked_off, asked_len; /* READ: all of it; off and len are what is missing, if something is */
	uint64_t issued_ns, now_ns, size_bytes;
	uint64_t waited_ns; /* LOST: for what was told before and not ordered */
	char *path; /* REALPATH: owned */
	struct tier_news *news; /* TIER_ADMITTED, TIER_LOST: owned */
};

/* A page that waits for room in the tier's queue. */
struct tier_again {
	uint32_t name;
	uint64_t chunk_no;
};

/* No fetch of this will come: its reads are answered when the engine's lock is gone. */
struct failed {
	struct cache_file *file; /* counted */
	uint64_t chunk_no;
	int err;
};
#define FAILED_MAX 64u

/* An order for the cache that the scheduler does not know of. */
struct unscheduled {
	struct unscheduled *next;
	struct cache_file *file; /* not counted: compared only; the order itself holds it */
	uint64_t chunk_no;
	uint32_t off_bytes, len_bytes;
};

struct wait {
	struct wait *next;
	uint64_t token;
	void (*done)(void *arg, int err);
	void *arg;
	int err;
	/* what is waited for; the scheduler is told once all slots are there (else it would say that nothing fits) */
	bool is_batch, is_told;
	uint32_t id;
	uint64_t batch;
};

struct attr_slot {
	uint64_t hash[2], at_ns;
	struct origin_attr attr;
};

#define RECORD_BYTES (1u << 20)

struct engine {
	/* const after create */
	struct engine_config cfg;
	struct cache *cache;
	struct tier *tier; /* NULL: none */
	uint32_t block_bytes, slots_total;
	pthread_t timer;
	bool is_timer_started;

	struct hfs_mutex lock;
	/* guarded by lock */
	struct sched *sched;
	struct ename *blocks[NAMES_BLOCKS_MAX];
	uint32_t n_names;    /* numbers handed out so far */
	uint32_t *free_ids;
	uint32_t n_free, free_cap;
	uint32_t *buckets;
	uint32_t n_buckets, n_used;
	uint32_t gc_at, gc_left; /* names still to be looked at by the sweep */
	struct wait *waits;
	uint64_t next_token;
	enum sched_prefetch prefetch;
	uint32_t slots_ready;
	int32_t n_slots_lent; /* to a disk that hangs; below 0 when one was back before it was told */
	struct failed failed[FAILED_MAX];
	struct unscheduled *unscheduled;
	uint32_t n_unscheduled;	  /* the scheduler is told of fewer slots meanwhile */
	uint64_t moved_ns;	  /* when a fetch last succeeded */
	uint64_t starving_ns;	  /* since when fetches lack slots and nothing was evicted; 0: they do not */
	uint64_t n_shed;
	struct tier_again *tier_again;
	uint32_t n_tier_again;
	uint32_t tier_pages; /* as told to the scheduler */
	uint64_t tier_retry_ns, tier_delay_ns; /* pages were refused: when one of them is tried again; 0: none was */
	bool is_stopping;
	uint64_t next_ns, timer_ns; /* when the scheduler wants to be asked; until when the timer sleeps */
	struct hfs_cond timer_wake;

	struct hfs_mutex ev_lock; /* leaf */
	/* guarded by ev_lock */
	struct event *evs, *evs_spare;
	uint32_t n_evs, evs_cap, spare_cap;
	bool is_closed; /* events are dropped: the names are gone */

	_Atomic uint32_t n_failed; /* changed with the lock held */
	_Atomic uint32_t n_tier_copies; /* to be made, each holding a slot */
	_Atomic bool is_pumping;
	_Atomic bool has_events;

	struct hfs_mutex attr_lock; /* leaf */
	struct attr_slot *attrs;    /* guarded by attr_lock */

	struct hfs_mutex record_lock; /* leaf */
	/* guarded by record_lock */
	char *record;
	uint64_t record_end; /* bytes ever written */
	_Atomic uint32_t n_recorders;
};

/* engine.c */
/* None is lost: where there is no memory to leave it for the one who pumps, it is fed at once. No lock of the caller's may forbid the engine's. */
void engine_post(struct engine *e, const struct event *ev) HFS_EXCLUDES(e->lock);
/* All events that were posted. */
void engine_feed_locked(struct engine *e, struct wait **done) HFS_REQUIRES(e->lock);
void engine_pump(struct engine *e);
/* Ask the scheduler and execute, under the lock; waits that ended are moved to *done for engine_calls(). */
void engine_run_locked(struct engine *e, struct wait **done) HFS_REQUIRES(e->lock);
/* What was left for when the lock is gone: waits that ended, reads that fail. */
void engine_calls(struct engine *e, struct wait *done) HFS_EXCLUDES(e->lock);
/* Lock, unlock with running the scheduler and calling back. */
void engine_enter(struct engine *e) HFS_ACQUIRE(e->lock);
void engine_leave(struct engine *e) HFS_RELEASE(e->lock);

/* engine_names.c, all with the lock held */
struct ename *name_at(struct engine *e, uint32_t name);
int name_get_locked(struct engine *e, const char *path, size_t len, uint32_t *ret_name);
uint32_t name_find_locked(struct engine *e, const char *path, size_t len);
/* Give back what nobody needs: the open generation if no page is left, then the name. */
void name_trim_locked(struct engine *e, uint32_t name);
void names_sweep_locked(struct engine *e, uint32_t n);
void names_finish(struct engine *e);
/* F is what the name leads to now. Handles new generations and hard links; returns the number whose pages these are. */
uint32_t name_bind_locked(struct engine *e, uint32_t name, struct cache_file *f) HFS_REQUIRES(e->lock);
/* The same by path; the number bound to is not held. 0 or as name_get_locked(). */
int name_bind_path_locked(struct engine *e, const char *path, struct cache_file *f, uint32_t *ret_name) HFS_REQUIRES(e->lock);
void name_unresolve_locked(struct engine *e, uint32_t name); /* its generation is gone: look it up anew */

/* engine_events.c */
void engine_event_locked(struct engine *e, struct event *ev, struct wait **done) HFS_REQUIRES(e->lock);
void engine_execute_locked(struct engine *e, const struct sched_action *a, struct wait **done) HFS_REQUIRES(e->lock);

/* engine_tier.c */
int tier_begin(struct engine *e); /* before the cache is made */
uint32_t tier_pages_that_fit(struct engine *e);
void tier_event_locked(struct engine *e, struct event *ev, struct wait **done) HFS_REQUIRES(e->lock);
void tier_act_admit_locked(struct engine *e, const struct sched_action *a, struct wait **done) HFS_REQUIRES(e->lock);
void tier_act_drop_locked(struct engine *e, const struct sched_action *a) HFS_REQUIRES(e->lock);
/* What the tier refused is offered to it again, when it is time; returns when that is next. */
uint64_t tier_retry_locked(struct engine *e) HFS_REQUIRES(e->lock);
/* The name has a generation: tell the scheduler what the tier has of it. */
void tier_map_locked(struct engine *e, uint32_t name) HFS_REQUIRES(e->lock);

/* engine_ctl.c: tell the scheduler of waits that came before the slots were there */
void waits_tell_locked(struct engine *e, struct wait **done) HFS_REQUIRES(e->lock);

/* engine_record.c */
void record_read(struct engine *e, const char *path, uint64_t off, uint64_t len);

#endif
