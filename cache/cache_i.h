/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/cache_i.h - what the files of cache/ share: the tables, and who may touch them.
 *
 *   file.c   generations by identity; descriptors (one LRU, law 6)
 *   chunk.c  (file, chunk_no) -> slot, valid and running blocks, fetches and reads that hang on it; what is lost
 *   read.c   serving, parking, answering reads
 *   fetch.c  orders: the queue, joining, cancelling
 *   visit.c  what an origin thread does with one order; visit_tier.c: what of it the disk tier does
 *   cache.c  life, housekeeping, figures
 *
 * Locks. c->lock (rank CACHE) guards everything but the table of generations, which has files_lock (rank
 * FILE, may be taken under c->lock). Neither is held over I/O, a copy of data or a callback: what is to be told is
 * collected in a struct batch under the lock and delivered by batch_deliver() without it.
 *
 * A fetch:
 *             +--------------------------- requeue ---------------------------+
 *             v                                                              |
 *   new --> QUEUED --(a thread takes it)--> RUNNING --+-- no descriptor --> WAIT_FD
 *             |                                       +-- no slot --------> WAIT_SLOT
 *             |                                       +-- file's share --> WAIT_FILE
 *             | unfetch                               +-- others read it -> JOINED
 *             v                                       v
 *           ENDING --------(callback)-------------> gone
 *
 * 1. Blocks are in `running` from the moment a slot was taken until they are published or have failed; only one fetch
 * runs a block (single flight).
 * 2. A chunk has a slot if and only if it has valid or running blocks.
 * 3. A chunk is in the table while it has a slot, a fetch, a wait or a hold.
 * 4. Bytes of a block are written only while it runs and read only while it is valid; valid never turns off while the
 *    chunk keeps its slot.
 * 5. Nobody is stranded: each block that a parked read lacks is running, in an order that has not ended, or told to the
 *    caller, who then owes an order (wait.told); else its chunk is in c->lost and a thread is about to tell. What can break
 *    this (data dropped, an order that ends in vain, a dropped file) calls chunk_find_lost_locked().
 */
#ifndef CACHE_CACHE_I_H
#define CACHE_CACHE_I_H

#include "cache/base/sync.h"
#include "cache/base/workq.h"
#include "cache/bits.h"
#include "cache/cache.h"
#include "cache/io.h"
#include "cache/pool.h"

#include <stdatomic.h>

#define READ_BYTES_MAX (UINT32_C(16) << 20)
#define DEAD_BATCH 16u
#define FD_IDLE_NS (UINT64_C(10) * 1000 * 1000 * 1000)

struct chunk;
struct fetch;
struct parked;

/* An open descriptor of the origin, shared by the visits of its file. Guarded by c->lock; fd is const. */
struct origin_fd {
	struct origin_fd *next, *prev; /* in c->fd_lru while its file points to it, else in a list to close */
	struct cache_file *file;       /* NULL: detached; closed when n_users is 0 */
	int fd;
	uint32_t n_users;
	bool is_traded; /* no longer counted in n_fds */
	uint64_t used_ns;
};

struct cache_file {
	/* const after create */
	struct hfs_identity id;
	/* atomic */
	_Atomic uint32_t refs; /* reaches 0 only under files_lock */
	_Atomic uint32_t tag;
	_Atomic bool is_superseded;
	/* guarded by c->lock */
	bool is_opening; /* a visit opens it; others wait in fd_wait */
	uint32_t n_visits; /* threads at work on it */
	uint32_t n_fd_waits;
	uint32_t n_filling; /* chunks with running blocks: at most c->filling_max */
	uint32_t n_filling_waits;
	struct origin_fd *ofd;
	struct chunk *chunks; /* by file_next */
	/* guarded by c->files_lock */
	struct cache_file *hash_next;
	char *path;
	struct cred *cred; /* counted; who was let in last where we are refused, or NULL */
};

struct chunk {
	struct chunk *hash_next, *file_next, *file_prev;
	struct cache_file *file; /* counted */
	uint64_t no;
	struct slot_no slot;
	uint32_t n_holds;
	bool is_evicting; /* its data goes when nothing runs and its waits have what is valid; off when no order is left */
	bool is_draining; /* in c->drain */
	struct chunk *drain_next;
	bool is_lost;	 /* in c->lost */
	uint64_t overdue_ns; /* what was told is not ordered although a read has waited for so long; 0: not so */
	struct chunk *lost_next;
	struct bits valid, running;
	struct fetch *fetches; /* by chunk_next */
	struct wait *waits;
};

/* What a parked read wants of one chunk. */
enum wait_state {
	WAIT_PARKED,  /* in chunk->waits */
	WAIT_COPYING, /* its slot is pinned, a thread copies to the bounce buffer */
	WAIT_HAVE,    /* in the bounce buffer */
	WAIT_PINNED,  /* being answered straight from the slot */
};

struct wait {
	struct wait *next, *prev;
	struct parked *p;
	struct chunk *chunk; /* while PARKED */
	struct slot_no slot; /* while COPYING or PINNED */
	struct bits blocks;
	struct bits told; /* lacking ones that the caller was told of and has not ordered yet */
	uint32_t chunk_off, read_off, len;
	enum wait_state state;
};

struct parked {
	struct parked *next, *prev; /* c->parked, then a batch's ready list */
	struct cache_read *r;	    /* not to be touched once taken and answered, or orphan */
	uint8_t *bounce;
	uint64_t since_ns;
	uint32_t len_bytes, n_waits, n_copying;
	bool is_taken;	/* in some batch, to be answered */
	bool is_orphan; /* answered or withdrawn: freed by whoever copies last */
	int err;
	struct wait waits[];
};

enum fetch_state {
	FETCH_QUEUED,
	FETCH_RUNNING,
	FETCH_JOINED,
	FETCH_WAIT_FD,
	FETCH_WAIT_SLOT,
	FETCH_WAIT_FILE, /* its file has its share of slots in flight, or of threads at work, already */
	FETCH_ENDING,
};

struct fetch_list {
	struct fetch *first, *last;
	uint32_t n;
};

struct fetch {
	struct fetch *next, *prev;
	struct fetch_list *list; /* the one it is in, or NULL */
	enum fetch_state state;
	struct cache_file *file; /* counted; NULL: a name not opened yet */
	struct chunk *chunk;	 /* NULL: a name not opened yet, or ended */
	uint64_t chunk_no;
	bool had_chunk;
	struct fetch *chunk_next;
	struct bits blocks;
	uint32_t off_bytes, len_bytes;
	bool is_demand, is_resolve, is_slot_woken;
	bool is_tier_tried, is_tier_missed; /* the tier was asked for it; in vain */
	bool is_probed;	  /* its file's identity was seen in an earlier or in this visit */
	bool has_fetched; /* some of it was read, by this or by the one it joined */
	int err;
	uint64_t deadline_ns, issued_ns, done_ns, origin_bytes;
	/* is_resolve only */
	char *path;
	uint64_t cookie;
	struct origin_attr attr;
	bool is_small;
};

/* What must be told, collected under the lock. */
struct batch {
	struct parked *ready;
	struct fetch *ended;
	struct cache_file *changed; /* counted */
	struct origin_fd *to_close; /* by next */
	uint32_t n_starved;
	uint32_t n_lent; /* left to the tier */
	struct cache_file *lost_file; /* counted */
	struct cache_range lost;
	uint64_t overdue_ns;
};

struct cache {
	/* const after create */
	struct cache_config cfg;
	uint32_t block_bytes;
	unsigned chunk_shift;
	struct pool *pool;
	struct workq *workq;
	struct chunk **chunk_table;
	uint64_t chunk_mask;
	uint32_t fds_max;
	uint32_t filling_max; /* of one file: if it hangs, the others have some slots left ... */
	uint32_t visits_max;  /* ... and some threads */
	uint64_t bounce_max_bytes;

	struct hfs_mutex lock;
	struct hfs_cond backoff; /* a visit sleeps before it tries again; shutdown wakes it */
	/* guarded by lock */
	bool is_stopping, is_abandoned;
	struct fetch_list demand, prefetch, ending, fd_wait, slot_wait, file_wait;
	uint32_t n_slot_woken, n_tokens_owed;
	uint32_t n_lent; /* slots that a tier reads into */
	uint64_t starved_ns; /* something last happened to slot_wait */
	struct chunk *drain, *lost;
	uint64_t overdue_ns; /* when to look for overdue orders next */
	struct parked *parked;
	struct origin_fd *fd_oldest, *fd_newest;
	struct origin_fd *graveyard; /* to be closed by a thread that may wait */
	uint32_t n_dead;	     /* in there */
	uint32_t n_fds;		     /* open, opening or to be closed */
	uint32_t n_visitors;	     /* threads on a visit: each empties the graveyard when it leaves */
	struct cache_stats stats;

	struct hfs_mutex files_lock;
	/* guarded by files_lock */
	struct cache_file **files;
	uint64_t files_mask, n_files;
	struct cred *guest; /* counted, or NULL: who was let in last where we are refused */
};

/* ---- file.c ---- */
int files_init(struct cache *c);
void files_finish(struct cache *c);
/* Drops a reference while c->lock is held; a descriptor goes to the graveyard. */
void file_put_locked(struct cache *c, struct cache_file *f) HFS_REQUIRES(c->lock);
struct cred *file_cred(struct cache *c, const struct cache_file *f) HFS_EXCLUDES(c->files_lock);
/* True the first time: cb.changed is due. */
bool file_supersede(struct cache_file *f);

/* ---- fds.c ---- */
struct origin_fd *fd_get_locked(struct cache *c, struct cache_file *f) HFS_REQUIRES(c->lock);
void fd_put_locked(struct cache *c, struct origin_fd *ofd) HFS_REQUIRES(c->lock);
/* Reserve room for one more; false: all are in use. May put an idle one on b->to_close. */
bool fd_reserve_locked(struct cache *c, struct batch *b) HFS_REQUIRES(c->lock);
void fd_unreserve_locked(struct cache *c) HFS_REQUIRES(c->lock);
/* A reserved descriptor becomes f's (counted as used once); NULL: no memory (then fd is the caller's to close). */
struct origin_fd *fd_join_locked(struct cache *c, struct cache_file *f, int fd) HFS_REQUIRES(c->lock);
void fd_detach_locked(struct cache *c, struct origin_fd *ofd) HFS_REQUIRES(c->lock);
/* Closes what is in the list; without the lock. */
void fd_close_list(struct cache *c, struct origin_fd *list) HFS_EXCLUDES(c->lock);
/* Puts idle ones in the graveyard; when to come back, UINT64_MAX: never. */
uint64_t fd_expire_locked(struct cache *c, uint64_t now_ns) HFS_REQUIRES(c->lock);
/* See to it that the graveyard is emptied by an origin thread: soon, or within a second if there is room for others. */
void fd_bury(struct cache *c) HFS_EXCLUDES(c->lock);
void fd_bury_now(struct cache *c) HFS_EXCLUDES(c->lock);
/* The calling thread's visit, counted in n_visitors, is over. */
void fd_visit_end(struct cache *c, struct origin_fd *to_close) HFS_EXCLUDES(c->lock);
/* Empty the graveyard, here and now: a close may wait. */
void fd_close_dead(struct cache *c) HFS_EXCLUDES(c->lock);

/* ---- chunk.c ---- */
struct chunk *chunk_find_locked(struct cache *c, const struct cache_file *f, uint64_t no) HFS_REQUIRES(c->lock);
struct chunk *chunk_get_locked(struct cache *c, struct cache_file *f, uint64_t no) HFS_REQUIRES(c->lock);
/* After a change: drop what is to be evicted, free what nobody needs. ch may be gone afterwards. */
void chunk_settle_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock);
uint32_t chunk_len(const struct cache *c, const struct cache_file *f, uint64_t no);
struct bits chunk_blocks(const struct cache *c, uint32_t off_bytes, uint32_t len_bytes);
/* Blocks some fetch is to bring, running or not. */
struct bits chunk_wanted_locked(struct cache *c, const struct chunk *ch) HFS_REQUIRES(c->lock);
/* Does a read wait here for blocks that nobody brings or owes? Then a thread is to tell. */
void chunk_find_lost_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock);
/* What they are, if it is so still, into the batch; now the caller owes them. */
void chunk_tell_lost_locked(struct cache *c, struct chunk *ch, struct batch *b) HFS_REQUIRES(c->lock);

/* ---- read.c ---- */
/* Reads that have all they need go to b->ready. */
void read_wake_locked(struct cache *c, struct chunk *ch, struct batch *b) HFS_REQUIRES(c->lock);
/* Reads that need one of `failed` (and do not have it) go to b->ready with err. */
void read_fail_locked(struct cache *c, struct chunk *ch, const struct bits *failed, int err, struct batch *b)
	HFS_REQUIRES(c->lock);
/* All parked reads; since <= before_ns only. */
void read_fail_all_locked(struct cache *c, uint64_t before_ns, int err, struct batch *b) HFS_REQUIRES(c->lock);
/* Reads that were told of what they lack some time ago, and nothing was ordered: told anew, as overdue. */
void read_overdue_locked(struct cache *c, uint64_t now_ns) HFS_REQUIRES(c->lock);
/* Does a read wait here for bytes that are valid now (because it lacks others), and is there room to copy them? */
bool read_has_partial_locked(const struct cache *c, const struct chunk *ch) HFS_REQUIRES(c->lock);
/* Copy those bytes away so that the chunk can go. Leaves the lock and takes it again. */
void read_drain_locked(struct cache *c, struct chunk *ch, struct batch *b) HFS_REQUIRES(c->lock);
void read_answer(struct cache *c, struct parked *list) HFS_EXCLUDES(c->lock);

/* ---- fetch.c ---- */
void fetch_list_remove(struct fetch *f);
void fetch_enqueue_locked(struct cache *c, struct fetch *f, bool is_front) HFS_REQUIRES(c->lock);
void fetch_park_locked(struct cache *c, struct fetch *f, enum fetch_state state) HFS_REQUIRES(c->lock);
struct fetch *fetch_take_locked(struct cache *c) HFS_REQUIRES(c->lock);
/* Ends it: b->ended. */
void fetch_end_locked(struct cache *c, struct fetch *f, int err, struct batch *b) HFS_REQUIRES(c->lock);
/* All of it valid: ends; running elsewhere: JOINED; else queued again. */
void fetch_review_locked(struct cache *c, struct fetch *f, struct batch *b) HFS_REQUIRES(c->lock);
/* Somebody waits for these blocks of the chunk now: queued fetches of them turn into demand. */
void fetch_promote_locked(struct cache *c, struct chunk *ch, const struct bits *blocks) HFS_REQUIRES(c->lock);
void fetch_attach_locked(struct chunk *ch, struct fetch *f, uint32_t off_bytes, uint32_t len_bytes,
			 const struct bits *blocks);
void fetch_free(struct cache *c, struct fetch *f) HFS_EXCLUDES(c->lock);
/* Waiting fetches whose descriptor or slot may be there now are queued again. */
void fetch_wake_fd_locked(struct cache *c, const struct cache_file *f) HFS_REQUIRES(c->lock);
void fetch_wake_slots_locked(struct cache *c) HFS_REQUIRES(c->lock);
void fetch_wake_file_locked(struct cache *c, const struct cache_file *f) HFS_REQUIRES(c->lock);
/* Shutdown: ends all orders that no thread has in hand. */
void fetch_end_all_locked(struct cache *c, struct batch *b) HFS_REQUIRES(c->lock);
/* One more thing to do for an origin thread. */
void fetch_token_locked(struct cache *c) HFS_REQUIRES(c->lock);

/* ---- visit.c ---- */
void visit_main(void *arg); /* a job of the work queue; arg is the cache */

/* ---- cache.c ---- */
void batch_deliver(struct cache *c, struct batch *b) HFS_EXCLUDES(c->lock);
void slots_lent(struct cache *c, int change) HFS_EXCLUDES(c->lock);

#endif
