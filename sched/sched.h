/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/sched.h - the scheduler: what to fetch, when, and what to evict.
 *
 * Pure: no I/O, no clock, no thread, no lock, no log, no global. Events and the
 * time go in, an array of actions comes out of sched_step(). The daemon
 * (fs/engine.c) and the simulator (tools/sim) drive the same code.
 *
 * Terms. A *file* is a number chosen by the caller (dense, reusable after
 * sched_file_forget). A *page* is chunk_no of a file, chunk_bytes long, the last one
 * shorter. A *block* is the unit of validity inside a page:
 * max(4096, chunk_bytes / 256) bytes. An *entry* is one line of an order: a byte range of
 * a file. A *position* is one page visit that an entry compiles to. A *stream* is one
 * order with its own cursor. A *slot* holds one page (whole, or some blocks of it).
 *
 * Slot accounting. resident + in-flight pages <= slots at all times. sched_step() emits
 * EVICT before the FETCH that needs the room. The caller executes an EVICT at once (the
 * page leaves the table; memory still being copied out is freed a moment later), so
 * an EVICT cannot be refused.
 *
 * Thread safety: none; the caller serialises all calls on one struct sched.
 * Errors: 0 or negative errno, as everywhere.
 */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCHED_SIZE_UNKNOWN UINT64_MAX
#define SCHED_NO_TIME UINT64_MAX
#define SCHED_NO_FILE UINT32_MAX

struct sched;

struct sched_config {
	uint64_t chunk_bytes;	     /* power of two, 64 KiB ... 16 MiB */
	uint32_t slots;		     /* slots usable now; sched_set_slots() changes it */
	uint32_t disk_pages;	     /* pages the disk tier may hold; 0: no tier */
	uint32_t inflight_max;	     /* most fetches outstanding (adaptive below it) */
	uint64_t inflight_bytes_max; /* most bytes outstanding */
	uint64_t entries_max;	     /* per stream; 0: 16 Mi */
	uint64_t positions_max;	     /* positions materialised ahead, all streams; 0: 1 Mi */
	uint64_t prefetch_bytes_per_s; /* 0: unlimited */
	uint64_t seed;		     /* any randomness comes from here */
};

int sched_create(const struct sched_config *cfg, struct sched **ret_s) __attribute__((warn_unused_result));
void sched_destroy(struct sched *s); /* NULL is fine */

enum sched_prefetch { SCHED_PREFETCH_ON, SCHED_PREFETCH_OFF, SCHED_PREFETCH_PAUSE };
void sched_set_slots(struct sched *s, uint32_t slots); /* may shrink: EVICTs follow */
void sched_set_disk_pages(struct sched *s, uint32_t disk_pages); /* a smaller number holds for newcomers */
void sched_set_prefetch(struct sched *s, enum sched_prefetch mode);

/* ---- files ---------------------------------------------------------------- */

/*
 * Declare a file. size_bytes may be SCHED_SIZE_UNKNOWN (a name from an order that nobody
 * has looked up yet): the scheduler asks with RESOLVE when the name comes near its turn.
 * Declaring a known file again is harmless (a size that was unknown is filled in).
 */
int sched_file_add(struct sched *s, uint32_t file, uint64_t size_bytes) __attribute__((warn_unused_result));

/* What tells its data from others' in the books of bound_bytes, also after the number was forgotten and another one given. Without it
 * the number does. */
void sched_file_key_set(struct sched *s, uint32_t file, uint64_t key);

/*
 * Answer to RESOLVE (or news without one). err < 0: the name does not exist or cannot be
 * used; its entries are passed over and counted missing (asked again when the list is
 * replaced). alias_of != SCHED_NO_FILE: the name leads, through symbolic links, to that file;
 * entries naming `file` from now on mean `alias_of`.
 */
void sched_file_resolved(struct sched *s, uint32_t file, int err, uint64_t size_bytes, uint32_t alias_of,
			 uint64_t now_ns);

/* The file has a new generation: every page of it is absent now, in-flight ones included
 * (their sched_fetched() still comes and is ignored). */
void sched_file_changed(struct sched *s, uint32_t file, uint64_t size_bytes);

/* True if no stream, page, fetch or action that is still to be handed out refers to the number: the caller may forget and
 * reuse it. */
bool sched_file_is_idle(const struct sched *s, uint32_t file);
/* Pages of the file that are resident or in flight, and actions about it that are still to be handed out. */
uint32_t sched_file_frames(const struct sched *s, uint32_t file);
/* Is this page resident or in flight in the scheduler's books? */
bool sched_page_is_held(const struct sched *s, uint32_t file, uint64_t chunk_no);
void sched_file_forget(struct sched *s, uint32_t file); /* REQUIRES sched_file_is_idle */

/* ---- streams: the written order --------------------------------------------- */

struct sched_entry {
	uint32_t file;
	uint64_t off_bytes;
	uint64_t len_bytes; /* 0: to the end of the file */
};

enum sched_mark {
	SCHED_MARK_BATCH_NEXT,	  /* bare @batch: next number */
	SCHED_MARK_BATCH,	  /* value: number */
	SCHED_MARK_EPOCH_NEXT,
	SCHED_MARK_EPOCH,	  /* value: label */
	SCHED_MARK_REPEAT,	  /* value: the list so far is meant value times in all */
	SCHED_MARK_ANY,		  /* following entries are an unordered bag */
	SCHED_MARK_ORDERED,
	SCHED_MARK_WINDOW_BYTES,  /* value: cap on bytes ahead of the reader */
	SCHED_MARK_WINDOW_BATCHES,
	SCHED_MARK_SEEK,	  /* value: position (0-based entry) that is next */
	SCHED_MARK_DONE,	  /* value: entry; reading is past it */
	SCHED_MARK_DONE_BATCH,	  /* value: batch of the current epoch; reading is past it */
};

/* Streams are numbered by the scheduler, at most SCHED_STREAMS_MAX at a time. */
#define SCHED_STREAMS_MAX 1024
int sched_stream_create(struct sched *s, uint32_t *ret_stream) __attribute__((warn_unused_result));
void sched_stream_destroy(struct sched *s, uint32_t stream);
/* Start a new list: entries appended from now on replace the old ones; pages that both
 * name stay resident, queued fetches only the old one wanted are dropped. */
void sched_stream_replace(struct sched *s, uint32_t stream);
void sched_stream_cancel(struct sched *s, uint32_t stream); /* empty list */
/* Append n entries of declared files. Returns how many were taken (a prefix), or -ENOSPC if
 * none could be. Safe while reading goes on; O(1) per entry. */
int64_t sched_stream_append(struct sched *s, uint32_t stream, const struct sched_entry *e, size_t n)
	__attribute__((warn_unused_result));
/* -EINVAL: value makes no sense here; -ENOSPC. */
int sched_stream_mark(struct sched *s, uint32_t stream, enum sched_mark mark, uint64_t value, uint64_t now_ns)
	__attribute__((warn_unused_result));

/* Wait until a batch of the current (or next, if not begun) epoch, or a file, is resident.
 * Answered by the action WAIT_DONE with `token` (err 0; -ENOSPC: cannot fit; -ECANCELED: list dropped;
 * -ENOENT: no such batch, or the file is missing). The pages waited for are fetched at demand priority. */
int sched_wait_batch(struct sched *s, uint32_t stream, uint64_t batch, uint64_t token, uint64_t now_ns);
int sched_wait_file(struct sched *s, uint32_t file, uint64_t token, uint64_t now_ns);
void sched_wait_cancel(struct sched *s, uint64_t token);

/* ---- events ----------------------------------------------------------------- */

/*
 * A READ of [off, off + len) reached the daemon. reader: any number that tells readers apart
 * (0: unknown). is_miss: some of it is neither resident nor wanted yet as the cache sees it, and
 * a reader waits: sched_step() emits FETCHes (is_demand) that cover it, as soon as there is room,
 * before any prefetch. The scheduler takes the cache's word over its own picture.
 */
void sched_read(struct sched *s, uint32_t file, uint64_t off_bytes, uint64_t len_bytes, uint64_t reader, bool is_miss,
		uint64_t now_ns);
/* A reader that was told of before still waits for these bytes after a failed, cancelled or dropped fetch or an eviction: as
 * a miss, but not another read. */
void sched_read_again(struct sched *s, uint32_t file, uint64_t off_bytes, uint64_t len_bytes, uint64_t now_ns);
void sched_open(struct sched *s, uint32_t file, uint64_t reader, uint64_t now_ns);
void sched_close(struct sched *s, uint32_t file, uint64_t reader, uint64_t now_ns);

/* Result of one FETCH action. err < 0: nothing became valid. issued_ns: when the request left. */
void sched_fetched(struct sched *s, uint32_t file, uint64_t chunk_no, uint32_t off_bytes, uint32_t len_bytes, int err,
		   uint64_t issued_ns, uint64_t now_ns);
/* n fetches under way have data to come, and no slot is free: give up that many pages (EVICTs follow), and take it that late
 * fetches hold what nobody else does. Happens when fetches hang in their slots, or had been late and come back: a fetch outstanding for more than 200 ms (and 20 average latencies) is *late* and no longer counts against inflight_max
 * nor as holding a slot, so that a hung file cannot stop the others. */
void sched_shortage(struct sched *s, uint32_t n, uint64_t now_ns);
/* The cache dropped the page by itself (memory trouble): it is absent now. */
void sched_dropped(struct sched *s, uint32_t file, uint64_t chunk_no);
/* The disk tier holds / no longer holds the whole page (adoption, admission done, trouble). */
void sched_tier_has(struct sched *s, uint32_t file, uint64_t chunk_no, bool has);
/* The tier refused pages, and may have room by now: at most max of the resident pages that it lacks are considered once more, in
 * turn from call to call (a page is otherwise offered when it becomes resident, which may be once for all). */
void sched_tier_offer_again(struct sched *s, uint32_t max);
/* A page that somebody outside keeps in place (pinned batches): never a victim until released. */
void sched_pin(struct sched *s, uint32_t file, uint64_t chunk_no, int delta);

/* ---- actions ---------------------------------------------------------------- */

enum sched_action_kind {
	SCHED_FETCH,	  /* bring [off, off+len) of the page into its slot */
	SCHED_EVICT,	  /* the page leaves its slot */
	SCHED_UNFETCH,	  /* a prefetch that has not started is no longer wanted; if it has, it completes. The answer is sched_fetched(-ECANCELED) or the normal one */
	SCHED_RESOLVE,	  /* look the file's name up; answer with sched_file_resolved(). A file of at most one chunk is
			     fetched in the same visit: the scheduler counts one slot for it and the caller follows
			     sched_file_resolved() with sched_fetched(chunk 0) */
	SCHED_WAIT_DONE,  /* token, err */
	SCHED_TIER_ADMIT, /* copy the resident page to the disk tier, in the background */
	SCHED_TIER_DROP,  /* the page leaves the disk tier */
};

struct sched_action {
	enum sched_action_kind kind;
	uint32_t file;
	uint64_t chunk_no;
	uint32_t off_bytes; /* inside the chunk, block aligned */
	uint32_t len_bytes; /* whole chunk: chunk length */
	bool is_demand;	    /* somebody waits */
	bool from_tier;
	int err;	      /* WAIT_DONE */
	uint64_t token;	      /* WAIT_DONE */
	uint64_t deadline_ns; /* when it will be needed; order of the prefetch queue */
};

/*
 * What to do now. Writes at most max actions and returns how many; call again while it returns
 * max. Cheap when nothing changed. sched_next_ns(): when to call again at the latest although
 * no event comes (SCHED_NO_TIME: never).
 */
size_t sched_step(struct sched *s, uint64_t now_ns, struct sched_action *out, size_t max);
uint64_t sched_next_ns(const struct sched *s);

/* ---- what it knows ------------------------------------------------------------ */

/* Why readers wait, as far as it can be told apart; docs/hintfs.8.scd says it to users. */
enum sched_stall {
	SCHED_STALL_LATE,    /* for a fetch that was begun ahead of them */
	SCHED_STALL_TIER,    /* for a read of the disk tier */
	SCHED_STALL_SLOTS,   /* before a fetch: no slot may be emptied, or too many fetches are outstanding */
	SCHED_STALL_EVICTED, /* for what had been there, unread, and was evicted */
	SCHED_STALL_BEHIND,  /* for what an order names and nobody had begun to fetch */
	SCHED_STALL_UNNAMED, /* for what no order names */
	SCHED_STALLS,
};

struct sched_stats {
	uint64_t needed_bytes;		/* by finished positions and demand reads */
	uint64_t demand_misses;
	uint64_t prefetch_useful_bytes; /* fetched ahead and then read */
	uint64_t prefetch_late_bytes;	/* asked for while in flight */
	uint64_t prefetch_wasted_bytes; /* evicted or dropped unread */
	uint64_t resident_pages, inflight_pages, inflight_bytes;
	uint64_t pending_entries, missing_entries;
	uint64_t entry_bytes;		/* memory of all entries and positions */
	double origin_bytes_per_s, origin_latency_s; /* moving averages */
	uint64_t bound_bytes;		/* least origin bytes for what was read so far, with this memory and disk: see least.h */
	uint32_t bound_shift;		/* of a sample of one page in 1 << bound_shift */
	double bound_s;			/* least time for the known order from now (0: no order) */
	double read_s;			/* that reading took so far, without pauses of more than 10 s */
	double bound_read_s;		/* least time for that: what readers took themselves, or bound_bytes at the origin's rate */
	double stall_s[SCHED_STALLS];	/* of fetches that somebody waited for; two readers of one page count once */
	uint32_t concurrency;		/* fetches allowed outstanding now */
};
void sched_stats_get(const struct sched *s, struct sched_stats *ret);

struct sched_stream_stats {
	uint64_t entries, pending, missing, skipped;
	uint64_t low, high;  /* L: lowest entry not done; H: highest touched + 1 */
	uint64_t epoch, batch; /* where the reader is */
	double tau_s;	       /* seconds a position */
	double confidence;     /* matched reads / reads, recent */
	bool is_speculating;   /* false: confidence too low, prefetch stopped */
};
int sched_stream_stats_get(const struct sched *s, uint32_t stream, struct sched_stream_stats *ret);
/* Ahead of the readers of each stream now: bytes resident or in flight, not yet read. Of all at once, in the time that one takes. */
void sched_windows_get(const struct sched *s, uint64_t ret[SCHED_STREAMS_MAX]);

/*
 * The list of a stream from where its reader is, item by item, such that writing the items again says the same order. Changes made
 * meanwhile may show or not.
 */
struct sched_list { /* where it is being read; a copy goes on from there on its own */
	uint64_t entry, seek;
	uint32_t stage, repeat, edge, epoch, batch;
};
struct sched_item {
	bool is_mark;
	enum sched_mark mark; /* with numbers: never one of the _NEXT */
	uint64_t value;
	struct sched_entry entry;
};
int sched_list_begin(const struct sched *s, uint32_t stream, struct sched_list *ret) __attribute__((warn_unused_result));
/* How many: fewer than n at the end only. */
size_t sched_list_next(const struct sched *s, uint32_t stream, struct sched_list *at, struct sched_item *ret, size_t n);

#endif
