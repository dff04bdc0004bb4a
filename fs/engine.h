/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine.h - the only place where cache/ and sched/ meet: feeds reads, results and control lines to the scheduler as
 * events, and executes its actions on the cache. Runs without a mount.
 *
 * Names: the engine owns the table of file names (path relative to the root <-> number known to sched).
 *
 * Thread safety: every function, any thread. None waits for the origin. Callbacks are called without locks held.
 */
#ifndef FS_ENGINE_H
#define FS_ENGINE_H

#include "cache/cache.h"
#include "sched/sched.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct engine;
struct tier_config;
struct tier_stats;

struct engine_config {
	struct cache_config cache; /* cb and tier are filled in by the engine */
	/* The disk tier to make, which then is the engine's; chunk_bytes and cb are filled in. Read during create only. NULL: none. */
	const struct tier_config *tier;
	char *tier_why; /* if it cannot be made, one line: cause and cure */
	size_t tier_why_cap;
	uint64_t prefetch_bytes_per_s;
	uint64_t seed;
	/* Run fn(arg) where it may wait for the origin (meta_run). */
	int (*run)(void *ctx, void (*fn)(void *arg), void *arg);
	void *run_ctx;
	/* A generation was superseded (the kernel's entry may be expired). Any thread, no lock. */
	void (*changed)(void *ctx, struct cache_file *f);
	void *ctx;
};

int engine_create(const struct engine_config *cfg, struct engine **ret_e);
void engine_shutdown(struct engine *e);			 /* all waiting reads and waits end */
bool engine_destroy(struct engine *e, unsigned wait_ms); /* as cache_destroy */
struct cache *engine_cache(struct engine *e);
/* Where the origin refuses us: whoever writes an order is asked for by prefetches (cache_set_guest). */
void engine_guest_note(struct engine *e, uint32_t uid, uint32_t gid, uint32_t tid);
/* fn(arg) as that user, on this thread; -EACCES: there is none. */
int engine_as_guest(struct engine *e, int (*fn)(void *arg), void *arg);

/* ---- reading (fs/read.c) ---- */
/*
 * Park or serve; r->done is called exactly once (maybe inside). reader: thread or process id. may_bind: nobody has opened the file
 * (engine_file_bind), and it is what its path led to when that was last looked at: so the name can be taken from the file.
 */
void engine_read(struct engine *e, struct cache_read *r, uint64_t reader, bool may_bind);
bool engine_read_cancel(struct engine *e, struct cache_read *r);
/* Bind an open generation to its name; the number is counted: engine_file_unbind() when the last handle goes. */
int engine_file_bind(struct engine *e, struct cache_file *f, const char *path, uint64_t reader);
void engine_file_unbind(struct engine *e, struct cache_file *f, uint64_t reader);

/* Attributes seen at the origin for the path, which leads through no link: by a prefetch, or by the check of an order's line (at_ns: before it). */
void engine_attr_note(struct engine *e, const char *path, const struct origin_attr *attr, uint64_t at_ns);
/* The same again, if not older than since_ns: a LOOKUP or a check then needs no round trip. */
bool engine_attr_get(struct engine *e, const char *path, uint64_t since_ns, struct origin_attr *ret, uint64_t *ret_ns);

/* ---- control (fs/control.c) ---- */
/* Number of the name (made if new), one reference for the caller. path: relative, normalised (no leading ./, no //, no ..). -ENOMEM, -ENOSPC */
int engine_name_get(struct engine *e, const char *path, size_t len, uint32_t *ret_name);
void engine_name_put(struct engine *e, uint32_t name);
/* What is known of a name without asking the origin: 0 and size, -ENOENT missing, -EAGAIN not looked up yet. */
int engine_name_size(struct engine *e, uint32_t name, uint64_t *ret_size);
/* Copy the name's path; returns its length, as snprintf. */
size_t engine_name_path(struct engine *e, uint32_t name, char *buf, size_t cap);

/* Streams by number; the control session keeps the table of stream names. References of entries' names are taken by the
 * engine itself and given back when the entries go. */
int engine_stream_create(struct engine *e, uint32_t *ret_stream);
void engine_stream_destroy(struct engine *e, uint32_t stream);
void engine_stream_replace(struct engine *e, uint32_t stream);
void engine_stream_cancel(struct engine *e, uint32_t stream);
/* Append a run of entries in one go (a lock is taken once a run: use runs of up to 1,024). As sched_stream_append(). */
int64_t engine_stream_append(struct engine *e, uint32_t stream, const struct sched_entry *entries, size_t n);
int engine_stream_mark(struct engine *e, uint32_t stream, enum sched_mark mark, uint64_t value);
int engine_stream_stats(struct engine *e, uint32_t stream, struct sched_stream_stats *ret);
/* sched_windows_get(), by the numbers of streams. */
void engine_windows(struct engine *e, uint64_t ret[SCHED_STREAMS_MAX]);
/* As sched_list_begin() and sched_list_next(). */
int engine_stream_list(struct engine *e, uint32_t stream, struct sched_list *ret);
size_t engine_stream_items(struct engine *e, uint32_t stream, struct sched_list *at, struct sched_item *ret, size_t n);

/* done(arg, err) is called exactly once, from any thread, maybe inside. *ret_token identifies it for the cancel. */
int engine_wait_batch(struct engine *e, uint32_t stream, uint64_t batch, void (*done)(void *arg, int err), void *arg,
		      uint64_t *ret_token);
int engine_wait_file(struct engine *e, uint32_t name, void (*done)(void *arg, int err), void *arg, uint64_t *ret_token);
bool engine_wait_cancel(struct engine *e, uint64_t token); /* true: done will not be called */

void engine_prefetch_set(struct engine *e, enum sched_prefetch mode);
enum sched_prefetch engine_prefetch_get(struct engine *e);
void engine_stats(struct engine *e, struct cache_stats *ret_cache, struct sched_stats *ret_sched);
/* Pages that were given up because the scheduler did not know of them. */
uint64_t engine_shed_pages(struct engine *e);

/* NULL: there is none. */
struct tier *engine_tier(struct engine *e);
/* False: there is no disk tier. */
bool engine_tier_stats(struct engine *e, struct tier_stats *ret);

/* Accesses as they happen, in the control grammar, since the reader was opened; lost lines are counted in a comment line. */
struct engine_record;
int engine_record_open(struct engine *e, struct engine_record **ret);
/* Bytes copied; 0: nothing new (poll again); blocks never. */
size_t engine_record_read(struct engine_record *r, char *buf, size_t cap);
/* Is there something that this reader has not read? */
bool engine_record_has_more(struct engine_record *r);
/* All reads that were answered are in the record. */
void engine_record_settle(struct engine *e);
void engine_record_close(struct engine_record *r);

#endif
