/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier.h - the disk tier: chunks of origin files kept on a local disk, over restarts, never trusted.
 *
 * Knows no FUSE and no policy: *what* to admit or drop is told from outside. Callers: origin threads (cache/fetch.c,
 * visit.c), fs/engine.c, hintctl verify. Format on disk: docs/disk_format.md.
 *
 *  1. tier_read() gives exactly the bytes that were admitted for this dataset, path, identity and chunk number, proved by a
 *     checksum bound to all of these in this very call; otherwise false. Never an error, never other bytes.
 *  2. Nothing on disk is trusted: any subset, order or mutation of what was written ends in a miss, which is counted, and
 *     the space is used again.
 *  3. No call waits for the disk longer than read_wait_ns; a disk that hangs costs a reader one such delay, later ones none.
 *     All disk I/O runs on threads of the tier, except inside tier_create().
 *  4. The budget is held before the write, counted as du counts: allocated blocks of data, index, packs, temporaries and
 *     directories. So is the free-space reserve, of blocks and of inodes.
 *  5. Nothing that is being read or is pinned is removed. A file that was passed through is unlinked, never punched.
 *  6. Only files that carry our names in our own directory are ever written, renamed or removed.
 *
 * Memory: the index (80 bytes and a list head for a path, 2 bits for a chunk), queue_max + 16 copies of a chunk, and those of
 * reads that hang.
 *
 * Thread safety: all functions but create and destroy, any thread, with no lock of rank >= TIER held. Callbacks come from
 * threads of the tier with no lock held.
 */
#ifndef CACHE_TIER_H
#define CACHE_TIER_H

#include "cache/base/err.h"
#include "cache/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tier;
struct tier_io; /* cache/tier_io.h: the table of system calls */

struct tier_callbacks {
	void *ctx;
	/* Answer to each tier_admit() that returned 0, exactly once. err 0: on disk, readable. -ENOSPC: no room (must_free()
	 * was asked before), -EEXIST: was there already, -ECANCELED: shutdown; -EIO and others: trouble, bypassed. */
	void (*admitted)(void *ctx, uint64_t cookie, int err);
	/* An admission needs so many bytes (or, bytes 0, an inode) more than there is room for. True: the callee will make
	 * room by tier_drop(). False, or NULL: the tier drops by its own order: dead space, then what nobody used in the
	 * life of this process, oldest first; what was used is kept, and the admission fails with -ENOSPC. */
	bool (*must_free)(void *ctx, uint64_t bytes);
	/* A chunk is no longer in the tier although nobody dropped it (bad, culled, trouble); UINT64_MAX: none of the file.
	 * Of another dataset's files nothing is said. May be NULL. */
	void (*lost)(void *ctx, const struct hfs_identity *id, uint64_t chunk_no);
	/* Adoption is complete: lookups are exact, admission begins. May be NULL. */
	void (*adopted)(void *ctx);
};

struct tier_config {
	const char *dir;	 /* created 0700 when its parent exists */
	const void *dataset;	 /* bytes that name the origin (mount source, root path, fsid); copied */
	size_t dataset_bytes;
	const char *source;	 /* path of the origin's root, by which the cache recalls dataset; NULL: never */
	bool is_source_away;	 /* dataset is a guess, or none: what was recorded for source holds */
	uint64_t origin_dev;	 /* st_dev of the origin's root now: stored as 0, so that a remount changes nothing */
	uint64_t size_bytes;	 /* budget, as du counts; at least 4 MiB */
	uint32_t free_pct;	 /* of blocks and of inodes to leave free on that file system, 0-99 */
	uint32_t chunk_bytes;	 /* power of two, 64 KiB ... 16 MiB */
	const char *const *apart; /* paths that must be neither equal to, above nor below dir (source, mountpoint) */
	size_t n_apart;
	const struct tier_io *io; /* NULL: the system's */
	struct tier_callbacks cb;
	/* Zero: the default. */
	uint32_t queue_max;	 /* admissions waiting, each a copy of a chunk: 16, at most 64 MiB, at least 2 */
	uint32_t fds_max;	 /* descriptors kept: 128 */
	uint32_t read_threads_max; /* stuck ones included: 64 */
	uint64_t read_wait_ns;	 /* 1 s: what a hung disk may cost a reader, once */
	uint64_t write_wait_ns;	 /* 30 s: a write or sync that takes longer is a hang */
	uint64_t sync_ns;	 /* 5 s */
	uint64_t sync_bytes;	 /* 256 MiB */
	uint64_t check_ns;	 /* 1 s: is the directory still ours, how much is free */
	uint64_t error_window_ns; /* 60 s: 3 errors inside it open the breaker */
	uint64_t probe_ns;	 /* 1 s: first probe after trouble; doubles up to 64 times that */
};

/* ret_why (of why_cap bytes, may be NULL): on failure one line, cause and cure. Never waits for the size of the cache. */
int tier_create(const struct tier_config *cfg, struct tier **ret_t, char *ret_why, size_t why_cap) HFS_MUST_CHECK;
/* Takes no more work, drops the queue (-ECANCELED), wakes readers (miss). Never waits for the disk. Idempotent. */
void tier_shutdown(struct tier *t);
/* After shutdown: writes out what is not on disk yet, at most wait_ms. False: the disk hangs and t was left allocated on
 * purpose (the process is about to exit; the kernel drops the lock). NULL is fine. */
bool tier_destroy(struct tier *t, unsigned wait_ms);

/* ---- chunks ---- */

/* Cheap, from memory. False: surely a miss. True: worth a tier_read(). */
bool tier_lookup(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no);
/* Is a small file of this path there, of whatever generation? Cheap, from memory; false also where it is not known yet. */
bool tier_has_small(struct tier *t, const char *path);
/* Which chunks are there: bit c of bits (n_words of 64) for chunk c. Returns how many. From memory; while adopting it may be fewer than
 * tier_read() will find. For the owner of the policy, when it learns of a file. */
uint64_t tier_map(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t *bits, size_t n_words);
/* [off, off + len) of the chunk; the whole chunk is verified. True: buf holds the bytes; false: buf is undefined. */
bool tier_read(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, uint32_t off_bytes,
	       uint32_t len_bytes, void *buf);
/* The whole chunk straight into buf, which lies at a multiple of TIER_LOAN_ALIGN and has room for the chunk's length rounded up to one;
 * disk, buffer and nothing between, where the disk's file system allows. TIER_LENT: a miss, and the disk may still write there:
 * loan->back(ctx, arg) comes once, from a thread of the tier, perhaps before this returns, when buf is the caller's again. */
#define TIER_LOAN_ALIGN 4096
struct tier_loan {
	void (*back)(void *ctx, void *arg);
	void *ctx, *arg;
};
enum tier_got { TIER_MISS, TIER_HIT, TIER_LENT };
enum tier_got tier_read_into(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, void *buf,
			     const struct tier_loan *loan) HFS_MUST_CHECK;
/* Queue a whole chunk (len = its exact length in the file). data is copied before the call returns. 0: cb.admitted follows.
 * -EAGAIN: the queue is full or adoption is not complete; -EEXIST: it is there; -EROFS: bypassed now; -ENAMETOOLONG, -EFBIG,
 * -EINVAL: never possible; -ENOMEM; -ESHUTDOWN. */
int tier_admit(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, const void *data,
	       uint32_t len_bytes, uint64_t cookie) HFS_MUST_CHECK;
/* How many more admissions would be answered now, with a place in the queue or a refusal; 0: cb.admitted or cb.adopted comes before. */
uint32_t tier_room(struct tier *t);
/* Forget now, give the space back in the background (after readers of it have ended). Not there: nothing; an admission that still
 * waits in the queue is not called back. Of small files whole blocks come back; a pack that is mostly dead goes whole (cb.lost) when
 * space gets short. */
void tier_drop(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no);
/* All chunks that are kept for the path, of whatever generation. */
void tier_drop_file(struct tier *t, const char *path);

/* Is this the dataset that the tier was made for, or that it recalled? */
bool tier_is_dataset(const struct tier *t, const void *dataset, size_t dataset_bytes);

/* ---- notes: small things of the owner's, kept, checked, counted and culled as small files are ---- */

#define TIER_NOTE_BYTES_MAX 61440
/* name begins with "//", as no path does. Replaces an earlier one. Errors as tier_admit(); cb.admitted comes with cookie 0. */
int tier_note_put(struct tier *t, const char *name, const void *data, uint32_t len_bytes) HFS_MUST_CHECK;
/* Bytes copied, -ENOENT: there is none, or it cannot be read now. buf: of TIER_NOTE_BYTES_MAX. Waits as tier_read() does. */
int64_t tier_note_get(struct tier *t, const char *name, void *buf) HFS_MUST_CHECK;
/* Its length by the index; 0: there is none. */
uint32_t tier_note_size(struct tier *t, const char *name);
/* Until all notes that are there are known: long before all else is adopted. */
bool tier_wait_notes(struct tier *t, unsigned wait_ms);

/* ---- passthrough ---- */

/* A descriptor (O_RDONLY, of the caller's to close) on a data file that is complete and was verified chunk by chunk in this
 * process's life; -ENOENT otherwise; -EOPNOTSUPP: a small file, kept in a pack. Pinned until tier_passthrough_close(). */
int tier_passthrough_open(struct tier *t, const struct hfs_identity *id, const char *path, int *ret_fd) HFS_MUST_CHECK;
void tier_passthrough_close(struct tier *t, const struct hfs_identity *id, const char *path);

/* ---- care ---- */

struct tier_scrub_progress {
	uint64_t done_bytes, total_bytes, done_chunks, bad_chunks;
};
/* Reads and verifies everything, drops what is bad. cb (may be NULL) returns false to stop. 0, -ECANCELED (stopped, shutdown),
 * -EIO (tier off). On the caller's thread, which may wait. ret (may be NULL): the last state. */
int tier_scrub(struct tier *t, bool (*cb)(void *ctx, const struct tier_scrub_progress *p), void *ctx,
	       struct tier_scrub_progress *ret);

/* The same on a thread of the tier. 0: begun; -EALREADY: one is under way; -EIO: the tier is off; -ESHUTDOWN, -ENOMEM. */
int tier_scrub_begin(struct tier *t) HFS_MUST_CHECK;
void tier_scrub_end(struct tier *t); /* soon; none: nothing */
struct tier_scrub_state {
	bool is_running;
	int err; /* of the last one that ended, as tier_scrub() */
	uint64_t n_begun;
	struct tier_scrub_progress now; /* of the one that runs, or ended last */
};
void tier_scrub_get(struct tier *t, struct tier_scrub_state *ret);

enum tier_state {
	TIER_ADOPTING, /* reads are served; not all is known yet, nothing is admitted */
	TIER_ON,
	TIER_READONLY, /* verified reads only; probed to come back */
	TIER_OFF,      /* bypass; probed to come back */
};
const char *tier_state_name(enum tier_state s);

enum tier_cause { /* why something was bypassed */
	TIER_CAUSE_NONE,
	TIER_CAUSE_EIO, /* and any errno without a name of its own */
	TIER_CAUSE_NOSPC,
	TIER_CAUSE_DQUOT,
	TIER_CAUSE_ROFS,
	TIER_CAUSE_HANG,
	TIER_CAUSE_GONE, /* directory vanished or was replaced */
	TIER_CAUSE_N,
};
const char *tier_cause_name(enum tier_cause c);

struct tier_stats {
	enum tier_state state;
	enum tier_cause cause;			/* of state READONLY, OFF */
	uint64_t bytes, inodes, size_bytes;	/* as du counts */
	uint64_t room_bytes, room_inodes;	/* that the file system has above the reserve, as last looked at */
	uint64_t files_big, files_small, chunks; /* chunks: of big files */
	uint64_t index_bytes;			/* memory of the index */
	uint64_t hits, hit_bytes, misses;
	uint64_t bad;				/* records, headers or data that failed their check */
	uint64_t admitted, admitted_bytes, skipped_queue, skipped_full, dropped, culled_bytes;
	uint64_t bypassed[TIER_CAUSE_N];	/* reads and admissions not even tried, by cause */
	uint64_t errors[TIER_CAUSE_N];		/* failed system calls, by cause */
	uint64_t read_timeouts;			/* readers who waited in vain */
	uint64_t unsynced_bytes;
	uint32_t queued;
};
void tier_stats_get(struct tier *t, struct tier_stats *ret);

/* ---- for tests and hintctl: events to wait for, with a deadline ---- */

/* Until nothing is queued, no drop or cull is pending and (need_synced) all is on disk. False: not within wait_ms. */
bool tier_wait_idle(struct tier *t, bool need_synced, unsigned wait_ms);
bool tier_wait_state(struct tier *t, enum tier_state s, unsigned wait_ms);
bool tier_wait_adopted(struct tier *t, unsigned wait_ms);

#endif
