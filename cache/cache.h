/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/cache.h - bytes of origin files in memory slots: lookup, waiting, fetching.
 *
 * Knows no FUSE and no policy: *which* chunk is fetched or evicted is told from outside (fs/engine.c asks
 * sched). What it guarantees:
 *   1. A byte is readable only after its whole fetch arrived and the file's identity, read again after the
 *      data, was unchanged (publish after proof).
 *   2. One fetch per block, whoever asks (single flight). Waiters of a failed fetch all get its errno; nothing of it stays.
 *   3. A read is answered exactly (all its bytes) or with an errno.
 *   4. No function but the origin threads' own loop waits for the origin; none of the calls below blocks on I/O.
 *   5. Budgets are global and hard: slots, bytes in flight, descriptors.
 *   6. A hung origin file starves nobody: an origin call that is late (> 200 ms) counts no longer against the number of
 *      working threads (a new one is started, up to threads_max); while any call is late, a fetch first asks for the file's
 *      identity *without holding a slot*, and takes its slot only when that came back. One file never has more than three
 *      quarters of the threads at work, nor of the slots in flight.
 *   7. A parked read always has somebody who owes it what it lacks: an order under way, or the caller, who was told (by
 *      cache_read_submit() or cb.lost). A caller that forgets is told again after a second.
 *
 * Callbacks run on origin threads or on the caller's thread, always with no lock of the cache held.
 */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H

#include "cache/base/err.h"
#include "cache/identity.h"
#include "cache/origin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct cache;
struct tier;
struct cred;
struct cache_file; /* one generation of one origin file: identity + a path to reopen it; counted */

struct cache_fetch_result {
	struct cache_file *file; /* borrowed during the call */
	uint64_t chunk_no;
	uint32_t off_bytes, len_bytes; /* as asked in cache_fetch() */
	int err;		       /* 0: valid now. -ECANCELED: unfetched. -ESTALE: identity changed */
	uint64_t origin_bytes;	       /* bytes that really came from the origin */
	uint64_t issued_ns, done_ns;   /* CLOCK_MONOTONIC */
	bool is_tier_missed;	       /* the disk tier was asked and did not have it after all */
};

struct cache_callbacks {
	void *ctx;
	/* Each cache_fetch() that returned 0 gives exactly one call, after its waiters were answered. */
	void (*fetched)(void *ctx, const struct cache_fetch_result *r);
	/* The origin file behind this generation is no longer what it was: it is superseded. Once per file. */
	void (*changed)(void *ctx, struct cache_file *f);
	/* Answer to cache_resolve() of this path. err 0: file is a new reference that now belongs to the callee; fetched_err: outcome
	 * of the fetch of chunk 0 (only with is_small: size <= chunk; 1: no fetch was made because all was valid or size is 0). */
	void (*resolved)(void *ctx, uint64_t cookie, const char *path, int err, struct cache_file *file,
			 const struct origin_attr *attr, bool is_small, const struct cache_fetch_result *fetch);
	/* n more fetches have data to read and find no free slot: that many pages must be evicted. Calls add up. Told again
	 * after 100 ms without any progress. Any thread, no lock held. */
	void (*starved)(void *ctx, uint32_t n);
	/* A parked read needs these bytes, and no order brings them any more: its data were evicted, an order was
	 * cancelled, or the file dropped. The callee sees to it that a cache_fetch() follows, as after cache_read_submit().
	 * waited_ns: 0, or it was told before and nothing was ordered, and a read has waited for so long (a second at least).
	 * From an origin thread, no lock held. */
	void (*lost)(void *ctx, struct cache_file *f, uint64_t off_bytes, uint64_t len_bytes, uint64_t waited_ns);
	/* More slots are touched and usable: total usable now. From the pre-fault thread. */
	void (*slots_ready)(void *ctx, uint32_t slots);
	/* A disk that hangs keeps a slot that was lent to it (+1), or gave it back (-1): chunks have so many fewer. The two
	 * may come in either order. From an origin thread or one of the tier, no lock held. */
	void (*slots_lent)(void *ctx, int change);
};

struct cache_config {
	uint64_t memory_bytes; /* slot pool: memory_bytes / chunk_bytes slots */
	uint64_t chunk_bytes;  /* power of two, 64 KiB ... 16 MiB */
	uint32_t threads_max;  /* origin threads, started as needed (small stacks), stuck ones included; 0: 1,200 */
	uint32_t threads_working_max; /* at work at once, late ones not counted; 0: 64 */
	uint32_t fds_max;      /* origin descriptors kept; 0: from RLIMIT_NOFILE, reserve kept */
	uint64_t origin_timeout_ns; /* 0: wait as a hard NFS mount does */
	struct origin *origin; /* borrowed until cache_destroy */
	struct tier *tier;     /* the same; asked before the origin is. NULL: none */
	const struct cache_io *io;
	struct cache_callbacks cb;
};

int cache_create(const struct cache_config *cfg, struct cache **ret_c);
/* Fails all waiting reads with -ESHUTDOWN (their done is called), stops taking work. Never waits for the origin. */
void cache_shutdown(struct cache *c);
/* After shutdown: waits at most wait_ms for origin threads; false: some hang in the origin and c was left
 * allocated on purpose (the process is about to exit). */
bool cache_destroy(struct cache *c, unsigned wait_ms);

/* ---- files -------------------------------------------------------------------- */

/* The generation with this identity, made if new; +1 reference. path: where it can be reopened (copied; a newer path
 * replaces an older one). Hard links give the same cache_file. */
struct cache_file *cache_file_get(struct cache *c, const struct hfs_identity *id, const char *path);
void cache_file_ref(struct cache_file *f);
void cache_file_put(struct cache *c, struct cache_file *f);
const struct hfs_identity *cache_file_identity(const struct cache_file *f);
char *cache_file_path(struct cache *c, struct cache_file *f); /* where it was last seen; malloc'd, NULL: no memory */
bool cache_file_is_superseded(const struct cache_file *f);
/* Somebody found another identity at its path: slots and a descriptor on the old inode still serve it. Calls cb.changed. */
void cache_file_supersede(struct cache *c, struct cache_file *f);
/* Hand over a descriptor opened with origin_open() on exactly this identity: it joins the LRU (or is closed). */
void cache_file_give_fd(struct cache *c, struct cache_file *f, int fd);
/* Who may open it where we are refused (cred.h): opened again, it is as them. A prefetch that is refused is tried as the last one
 * named for any file. */
void cache_file_set_cred(struct cache *c, struct cache_file *f, struct cred *cr);
void cache_set_guest(struct cache *c, struct cred *cr);
struct cred *cache_guest_get(struct cache *c); /* +1 reference, or NULL */
/* A number of the caller's, 0xffffffff at first (the engine keeps the scheduler's file number there); atomic. */
uint32_t cache_file_tag(const struct cache_file *f);
void cache_file_set_tag(struct cache_file *f, uint32_t tag);

/* ---- reading -------------------------------------------------------------------- */

struct cache_read {
	/* set by the caller, const until done */
	struct cache_file *file; /* caller keeps a reference until done */
	uint64_t off_bytes;
	uint32_t len_bytes;	 /* off + len <= size; at most 16 MiB */
	/* Called exactly once. err 0: iov[0..n) are exactly len_bytes, readable during the call only, pinned. */
	void (*done)(struct cache_read *r, int err, const struct iovec *iov, int n);
	/* private to the cache; zero before submit */
	struct {
		void *parked; /* read.c's, while parked; guarded by the cache's lock */
	} i;
};

struct cache_range {
	uint64_t off_bytes, len_bytes;
};

/*
 * Serve from slots, or park. Returns 1: done was called (inside). 0: parked; *ret_missing is the smallest range that covers all
 * its blocks which are neither valid nor in flight (len 0: everything is on its way); the caller then sees to it that a
 * cache_fetch() of it follows (should none bring it after all, cb.lost says so). <0: not taken, done is not called (-ESHUTDOWN).
 * A parked read whose file has a fetch failing on any needed block is answered with that errno.
 * A read never keeps a slot pinned while it waits for another one, so few slots can't deadlock. When a chunk must go from
 * under it, the bytes are copied aside: for all reads together at most a quarter of memory_bytes (or 16 MiB if that is
 * more); beyond that they are fetched anew.
 */
int cache_read_submit(struct cache *c, struct cache_read *r, struct cache_range *ret_missing);
/*
 * True: r was parked and is withdrawn (done will not be called). False: done was called, or will be: also when submit is still
 * on its way (r->i must then be zero before): try again.
 */
bool cache_read_cancel(struct cache *c, struct cache_read *r);
/* What of a parked read is still neither valid nor in flight (after an eviction or a failed fetch of its neighbour). */
void cache_read_missing(struct cache *c, struct cache_read *r, struct cache_range *ret_missing);

/* ---- orders from the scheduler ---------------------------------------------------- */

/* Queue a fetch of blocks [off, off + len) of a chunk; off is block aligned, the end is block aligned or the chunk's end.
 * 0: queued, cb.fetched follows (also if all of it became valid through others). is_demand: before all prefetches;
 * prefetches by deadline. A demand for a queued prefetch of the same blocks pulls that forward.
 * -ESHUTDOWN; -ESTALE: superseded and no descriptor left. */
int cache_fetch(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t off_bytes, uint32_t len_bytes,
		bool is_demand, uint64_t deadline_ns);
void cache_unfetch(struct cache *c, struct cache_file *f, uint64_t chunk_no); /* queued prefetches of it: -ECANCELED */
/* The chunk leaves the table now; its slot is free when the last copy out of it ends. Blocks in flight are not affected:
 * waiters of them are still answered, then the slot goes. */
void cache_evict(struct cache *c, struct cache_file *f, uint64_t chunk_no);
/* No fetch of these blocks will come (cache_fetch() refused): reads that wait for the chunk get err, but those waiting for blocks in
 * flight only. */
void cache_file_fail(struct cache *c, struct cache_file *f, uint64_t chunk_no, int err);
/* As cache_evict() for every chunk of the file; what its parked reads were told they lack is told again, by cb.lost. */
void cache_file_drop(struct cache *c, struct cache_file *f);
/* Chunks in slots that no order is under way for, for a caller whose books may be wrong: at most n from *cursor (0 at first) on;
 * *cursor moves on, 0 again at the end. Each file is a new reference. */
struct cache_idle {
	struct cache_file *file;
	uint64_t chunk_no;
};
size_t cache_idle_list(struct cache *c, uint64_t *cursor, struct cache_idle *ret, size_t n);
/* Look a path up with a fresh open and, if it fits one chunk, fetch it whole in the same visit. Answer: cb.resolved. */
int cache_resolve(struct cache *c, const char *path, uint64_t cookie, uint64_t deadline_ns);

/* ---- the disk tier ------------------------------------------------------------------ */
/* Its names are the files' newest paths. All but cache_file_find() need cfg.tier. */

/* The generation with this identity, if it is known: a new reference, or NULL. */
struct cache_file *cache_file_find(struct cache *c, const struct hfs_identity *id);
/* In two steps, as the second one copies: the chunk's slot is held (quick, under the caller's locks if need be), -ENOENT: not wholly in
 * one now; then, with no lock, a copy is queued for the tier, as by tier_admit(), and the slot let go in any case. */
int cache_tier_hold(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t *ret_slot) HFS_MUST_CHECK;
int cache_tier_admit(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t slot, uint64_t cookie);
void cache_tier_drop(struct cache *c, struct cache_file *f, uint64_t chunk_no);
/* As tier_map(). */
uint64_t cache_tier_map(struct cache *c, struct cache_file *f, uint64_t *bits, size_t n_words);

/* ---- figures ------------------------------------------------------------------------- */

struct cache_stats {
	uint32_t slots_total, slots_ready, slots_used, slots_pinned;
	uint64_t inflight_bytes, origin_bytes, origin_reads, origin_errors, short_reads, retries, stale;
	uint64_t hit_bytes, miss_reads; /* miss: reads that had to wait */
	uint64_t parked_reads;		/* waiting now */
	uint64_t lost, overdue;		/* calls of cb.lost; overdue ones among them */
	uint64_t bounce_bytes;		/* copied aside now */
	uint64_t oldest_fetch_ns; /* age of the oldest origin call under way, 0: none */
	uint32_t threads, threads_busy, fds;
	uint64_t files;
};
void cache_stats_get(struct cache *c, struct cache_stats *ret);

#endif
