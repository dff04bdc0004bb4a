/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/sched_i.h - what the files of sched/ share. Nobody outside includes it.
 *
 *   struct stream (entries.c)     the written order: 16 B an entry, marks beside
 *        | materialised over a horizon, streams merged (positions.c)
 *   struct positions              one page visit each: page, next visit of the page, blocks
 *        | page.next = first visit not done
 *   struct page (pages.c)         a page that is named, resident, in flight, pinned or on the tier
 *        | page.frame
 *   struct frame (frames.c)       the slot's contents: valid and in-flight blocks
 *        | frame.fetches
 *   struct fetch (frames.c)       a FETCH (or RESOLVE) that has not been answered
 *
 * State of a page, as seen by its first visit that is not done (page_restate() in pages.c decides):
 *
 *   T_ABSENT --fetch--> T_FLIGHT --fetched--> T_RAM --evict--> T_ABSENT
 *                                             T_RAM --copied to the tier--> T_BOTH --evict--> T_DISK
 *   T_DISK   --fetch--> T_FLIGHT --fetched--> T_BOTH
 *
 * The tree of the state has a bit at page.next. A resident page without a next visit is in a list of
 * frames instead: L_RECENT (read just now), then L_USED (read), L_AHEAD (fetched, not read yet), L_STALE (its next visit wants blocks
 * that are not there).
 *
 * Invariants
 *  1. A page has at most one bit in the state trees, at page.next; page.next is its lowest
 *     position without a done bit.
 *  2. A frame is in a list or its page is in T_RAM or T_BOTH only if nothing is in flight for it and nobody pins it:
 *     what the two hold is exactly what may be evicted.
 *  3. held = frames that count as a slot (all but those whose fetches are all late and that hold nothing);
 *     a FETCH never makes it exceed slots.
 *  4. pos.low <= the low mark of every stream that speculates; every position below a stream's low mark that
 *     belongs to it is done.
 *  5. A fetch record covers exactly the in-flight bits it set; two records of one frame never overlap.
 *  6. A demand leaves the queue only when the blocks are valid or a FETCH marked as demand covers them.
 */
#ifndef SCHED_SCHED_I_H
#define SCHED_SCHED_I_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sched/bitmap.h"
#include "sched/least.h"
#include "sched/sched.h"

#define SCH_BLOCKS_MAX 256
#define SCH_SEC 1000000000ULL
#define SCH_MSEC 1000000ULL
#define SCH_STRANGE 16
#define SCH_NEAR_MAX 64u
#define SCH_NOBODY SCHED_STREAMS_MAX /* one stream more than there can be: it is never live */
#define SCH_RESOLVES_MAX 64 /* 5 round trips of 1 ms each: 6,600 names/s need 33 */

static inline uint64_t sch_min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t sch_max64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t sch_min32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t sch_max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* ---- blocks of a page: 256 bits ------------------------------------------------ */

struct blocks {
	uint64_t w[SCH_BLOCKS_MAX / 64];
};

void sch_blocks_set(struct blocks *m, uint32_t b0, uint32_t b1); /* both ends inside */
void sch_blocks_clear(struct blocks *m, uint32_t b0, uint32_t b1);
bool sch_blocks_all(const struct blocks *m, uint32_t b0, uint32_t b1);
bool sch_blocks_any(const struct blocks *m, uint32_t b0, uint32_t b1);
bool sch_blocks_empty(const struct blocks *m);
/* First run of set bits at or after `from`; false if there is none. */
bool sch_blocks_run(const struct blocks *m, uint32_t from, uint32_t *ret_b0, uint32_t *ret_b1);

/* ---- files ------------------------------------------------------------------------ */

enum file_state { FILE_FREE, FILE_UNKNOWN, FILE_RESOLVING, FILE_KNOWN, FILE_MISSING };

struct file {
	uint64_t size_bytes;
	uint64_t key; /* stays with the data, whatever number they have; see sched_file_key_set() */
	uint32_t alias;	     /* entries that name this file mean that one; SCHED_NO_FILE: none */
	uint32_t n_pages;    /* page records */
	uint32_t n_frames;   /* of them resident or in flight */
	uint32_t n_entries;  /* entries of streams that name it */
	uint32_t n_aliased;  /* files whose alias leads here */
	uint32_t n_acts;     /* actions that name it and have not been handed out */
	uint32_t seq;	     /* first sequential reader (nohint.c), SCH_NONE */
	uint32_t touch_epoch;
	uint32_t log_item; /* replay.c: item + 1 that the last read belongs to */
	uint32_t run_4k;   /* mean length of its sequential reads that ended, in 4 KiB */
	uint64_t log_end;  /* replay.c: where that read ended */
	uint32_t stale_in; /* rebuild round in which its visits are not what its entries say, + 1 */
	uint8_t state;
	uint8_t random;	   /* not 0: reads so far were random: extents only; see RANDOM_DEEP */
	uint8_t strange;   /* reads in a row that continued nothing */
	uint8_t n_runs;	   /* how many run_4k is the mean of; at most RUNS_MANY */
	/* Where its pages are (pages.c): that of chunk 0, those of the chunks below n_index; the rest is in buckets. */
	uint32_t first_page, n_index;
	uint32_t *index;
};

/* ---- streams ------------------------------------------------------------------------ */

struct entry { /* 16 B each: the budget is 24 with everything */
	uint32_t file;
	uint32_t len; /* ENTRY_LEN_WIDE: in the side table */
	uint64_t off;
};
#define ENTRY_LEN_WIDE UINT32_MAX
#define ENTRY_BLOCK 4096u

struct wide_len {
	uint64_t entry, len;
};
struct batch_run { /* batches from ordinal `first` on are numbered base, base + 1, ... */
	uint32_t first;
	uint32_t epoch; /* ordinal of the @epoch mark it stands under */
	uint64_t base;
};
struct epoch_mark {
	uint64_t entry;
	uint64_t label;
	uint32_t batch; /* ordinal of the first batch under it */
};
struct any_span {
	uint64_t from, to; /* entries; to = UINT64_MAX while open */
};
struct repeat { /* (what came before + entries up to `end`) * times */
	uint64_t begin, end, times;
	uint64_t unit;	 /* visits of one pass */
	uint64_t visits; /* of all passes */
	uint64_t epochs_unit; /* epoch boundaries in one pass, its own end included */
};
#define REPEATS_MAX 32
#define TAU_SAMPLES 9u

#define REWIND_READS 8u
struct back {
	uint64_t chunk_no;
	uint32_t file;
};

struct stream {
	bool is_live, is_internal, is_replaced;

	struct entry **blocks;
	uint64_t n_blocks;
	uint64_t n_entries;
	struct wide_len *wide;
	uint32_t n_wide, cap_wide;
	uint32_t *batch_start; /* entry where batch ordinal i begins */
	uint32_t n_batches, cap_batches;
	struct batch_run *runs;
	uint32_t n_runs, cap_runs;
	struct epoch_mark *epochs;
	uint32_t n_epochs, cap_epochs;
	struct any_span *spans;
	uint32_t n_spans, cap_spans;
	struct repeat repeats[REPEATS_MAX];
	uint32_t n_repeats;

	uint64_t window_bytes, window_batches; /* 0: none */

	/* what is materialised: the next page of the next visit */
	uint64_t mat_visit;
	uint64_t mat_page;   /* pages of mat_visit already there */
	uint64_t visit_base; /* positions hold visit - visit_base */
	uint32_t n_own;	     /* its positions, done ones included ... */
	uint32_t first_own;  /* ... and the lowest of them; SCH_NONE if there are none */
	uint32_t undone;     /* none of its positions below is not done; SCH_NONE: none at all */

	/* progress, in positions */
	uint32_t low, high;
	uint32_t gap;	    /* own positions in [low, high) that are not done */
	uint32_t reorder;   /* how far high may be beyond low */
	uint32_t reorder_seen;
	uint32_t span_max; /* pages of the largest visit: a reader has one under way */
	uint64_t low_visit, high_visit;
	uint64_t n_done, n_skipped;
	uint32_t cand; /* first far position that reads seem to have jumped to */
	uint32_t cand_hits;
	uint64_t blocked_in;  /* fetch round in which it had all it may have */
	uint64_t spent_bytes; /* fetched for it and not read since: at most one window (law 9) */
	uint32_t win_limit; /* first position past @window */
	uint32_t win_unknown; /* first position in it whose file has no known size; SCH_NONE */
	bool is_win_stale;

	double confidence;
	uint64_t n_matched, n_unmatched;
	bool is_speculating;
	uint64_t last_match_ns;
	uint64_t matches_by_others;
	uint32_t readers[64];
	uint64_t reader_visit[64]; /* where each of them is */
	uint32_t late_hits;	   /* reads in a row that go on where their reader was, of visits passed over */
	uint32_t n_readers;

	/* rewind.c: pages read that are no visit to come, with none between them that is */
	struct back back[REWIND_READS]; /* ring */
	uint32_t n_back, back_wait;	/* so many of them, and they are looked for among what is done */

	double tau_ns; /* a position; 0: unknown */
	uint64_t tau_clock_ns, tau_wall_ns;
	double taus[TAU_SAMPLES]; /* ring of samples */
	uint32_t n_taus;
	uint32_t tau_count;
	uint32_t burst;	     /* positions that the high mark has gone on at a stroke */
	uint32_t burst_seen; /* the most of late */
	uint64_t burst_ns;   /* on free_ns: when it began */
};

/* Positions that are due at once: a batch if there are marks, as far as the readers do read it at once. */
#define SCH_BATCH_UNKNOWN 16u
static inline uint32_t sch_stream_batch(const struct stream *st)
{
	return st->n_batches ? (uint32_t)sch_min64(st->n_entries / st->n_batches, UINT32_MAX / 8) : SCH_BATCH_UNKNOWN;
}

static inline uint32_t sch_stream_burst(const struct stream *st)
{
	uint32_t batch = sch_stream_batch(st);

	return st->n_batches ? sch_min32(batch, sch_max32(st->burst, st->burst_seen)) : batch;
}

/* Whether what was just read is read again soon by somebody else: else no slot is kept for that (grace.c). */
#define GRACE_PAGES 16u
struct grace {
	uint64_t gone[GRACE_PAGES]; /* ring of pages that left a slot lately, read: ids */
	uint32_t gone_hi[GRACE_PAGES]; /* highest block of it that was read + 1 */
	uint32_t gone_at;
	uint32_t passed, again; /* pages read without an order, and how many of them a second time at once */
	bool is_off;
};

struct skipped {
	uint64_t id; /* of the page; 0: none */
	uint64_t visit;
	uint32_t stream;
};

/* ---- positions ------------------------------------------------------------------------ */

/* rows.c: what of a position is the same, or counts on, from the one before; see there */
#define SCH_ROW 16u
#define SCH_ROW_MIXED UINT16_MAX

struct row { /* 16 positions, 12 B */
	uint32_t visit;	 /* of the first position; SCH_ROW_MIXED: index in mixed */
	uint32_t part;	 /* index in part; SCH_NONE: all need their whole pages */
	uint16_t stream; /* of all of them */
	uint16_t steps;	 /* bit i: position i is the visit after the one of position i - 1, else it is the same */
};
struct row_mixed {
	uint32_t visit[SCH_ROW];
	uint16_t stream[SCH_ROW];
};
struct row_part {
	uint8_t b0[SCH_ROW], b1[SCH_ROW];
};
struct rows {
	struct row *row;
	struct row_mixed *mixed;
	struct row_part *part;
	uint32_t cap, n_mixed, cap_mixed, n_part, cap_part;
	uint32_t last; /* visit of the position written last */
	uint8_t whole; /* the last block of a whole page */
};

struct seat { /* a position, all but its page */
	uint32_t visit;	 /* - visit_base of its stream */
	uint16_t stream; /* SCH_NOBODY: withdrawn, and done */
	uint8_t b0, b1;	 /* blocks that it needs */
};

struct positions { /* structure of arrays: 8.75 B a position, up to 8 more where the rows are not plain, and a bit in each tree */
	uint32_t *page;
	uint32_t *next; /* next visit of the same page */
	struct rows rows;
	struct sch_bitmap undone;
	uint32_t n, cap, low;
	uint64_t n_laid; /* positions laid out so far, again or for the first time: what the work is */
};

/* ---- pages ---------------------------------------------------------------------------- */

enum page_tree { T_ABSENT, T_FLIGHT, T_RAM, T_BOTH, T_DISK, T_COUNT, T_NONE = T_COUNT };

enum {
	PG_TIER = 1,	  /* the tier has the whole page */
	PG_TIER_TREE = 2, /* its bit in tier_tree is set (at next) */
	PG_DEMAND = 4,	  /* in the demand queue */
	PG_ADMIT = 8,	  /* admission asked for, not answered */
	PG_BAD = 16,	  /* the last fetch of it failed: only demand tries again, or all of them after a while */
	PG_GONE = 32,	  /* fetched ahead and evicted unread */
};

struct page { /* 40 B */
	uint64_t chunk_no;
	uint32_t file;
	uint32_t hash_next; /* chain of the bucket, or of the free list */
	uint32_t next;	    /* first visit not done; the last one that is laid out is in sched.last */
	uint32_t frame;
	uint32_t seen; /* access clock at the last read, 0: never; for ageing */
	uint16_t ext_pins; /* by those outside */
	uint16_t wait_pins;
	uint8_t tree;
	uint8_t flags;
	uint8_t is_live;
};

/* ---- frames and fetches ------------------------------------------------------------------ */

enum frame_list { L_USED, L_RECENT, L_AHEAD, L_STALE, L_COUNT, L_NONE = L_COUNT };

struct frame {
	struct blocks valid, flight;
	uint32_t page; /* SCH_NONE: free */
	uint32_t prev, next;
	uint32_t fetches; /* chain of records */
	uint32_t ahead_bytes; /* fetched before anybody asked, not read yet */
	uint32_t done_stream; /* stream whose visit was the last to be done here */
	uint16_t read_hi;     /* highest block read + 1 */
	uint8_t list;
	bool is_part;	/* a read over several chunks waits for it */
	bool is_fresh;	/* came for such a read: it stands in L_RECENT for a while, whatever its next use */
	bool is_held;	/* counts as a slot */
	bool is_spent;	/* visits were done since something was fetched into it */
	bool is_used;	/* read since it was filled */
};

struct fetch {
	uint64_t issued_ns;
	uint32_t frame;
	uint32_t frame_next; /* chain of the frame */
	uint32_t prev, next; /* by issue time, or free list */
	uint32_t bytes;
	uint16_t b0, b1;
	bool is_demand, is_late, from_tier, is_resolve, is_unfetched;
	uint8_t stall; /* enum sched_stall, if is_demand */
};

struct list {
	uint32_t head, tail, count;
};

struct demand {
	uint64_t chunk_no;
	uint32_t file;
	uint32_t done_stream; /* whose visit this read has finished; SCH_NONE */
	uint16_t b0, b1;
	bool is_part;  /* of a read over several chunks */
	bool is_again; /* the cache wants it although we thought that it was there or on its way */
	bool is_gone;  /* it had been there, unread: PG_GONE before the read was matched */
};

/* ---- readers without an order (nohint.c) ----------------------------------------------- */

struct seq {
	uint64_t begin, end; /* what was read: end = where the next read is expected */
	uint64_t ahead;	     /* asked for up to here */
	uint64_t got;	     /* bytes of its reads: less than end - begin where it steps over some */
	uint64_t window;
	uint64_t last_ns;
	uint32_t file;
	uint32_t file_next; /* chain of the file */
	uint32_t prev, next; /* LRU of all */
	uint32_t n_reads;
	bool is_whole; /* fetch to the end of the file */
	bool is_through; /* read to its end */
};

/* ---- waits -------------------------------------------------------------------------------- */

struct wait {
	uint64_t token;
	uint64_t v0, v1; /* visits */
	uint64_t visit, page; /* cursor: everything before is resident and pinned */
	uint64_t ordinal;     /* pages before the cursor */
	uint64_t n_pages;
	uint32_t stream; /* SCH_NONE: a file */
	uint32_t file;
	bool is_active, is_over;
	int err;
	uint32_t *pinned; /* by ordinal: page id, SCH_NONE while it is not there */
};

/* ---- rates ---------------------------------------------------------------------------------- */

struct rate {
	double bytes_per_s;    /* 0: unknown */
	double latency_ns;     /* the least of the last seconds; 0: unknown */
	double latency_avg_ns; /* of all */
	double latency_dev_ns; /* how far from it they are */
	double min_ns, min_before_ns; /* least latency of this spell and of the one before */
	double net_ns, net_before_ns; /* the same for latency without what the request's own bytes take */
	uint64_t min_since_ns;
	uint64_t win_busy_ns, win_bytes, win_last_ns;
	uint32_t win_count;
	bool win_was_full;
	double overhead_bytes; /* bytes the link carries in one request's overhead */
	uint32_t drain; /* fetches to land until the queue is dry and the least latency measured */

	/* concurrency by trial: what is measured at `boost`, against before_per_s at the boost before */
	double boost, boost_before, before_per_s;
	uint64_t trial_ns, trial_bytes;
	uint32_t trial_count, hold; /* measurements until the next trial */
	bool is_trial, is_down;
};

struct sched {
	struct sched_config cfg;
	uint32_t block_bytes, blocks_per_page;
	uint32_t chunk_shift, block_shift; /* 1 << those are chunk_bytes and block_bytes */
	uint32_t slots;
	enum sched_prefetch mode;
	uint64_t now_ns;

	struct file *files;
	uint32_t n_files;

	struct stream *streams; /* SCHED_STREAMS_MAX and SCH_NOBODY; memory that no stream used yet is none */
	uint32_t n_streams;
	uint64_t n_entries_all, n_missing_entries;

	struct positions pos;
	bool is_dirty;	     /* positions must be built again */
	bool is_dirty_soon;  /* the same, but it may wait a little */
	uint64_t rebuilt_ns;
	uint32_t rebuilds;
	uint32_t n_merged, n_readers; /* streams that are read now, and their readers, as of the last look (when.c) */
	uint32_t horizon;

	struct page *pages;
	uint32_t *last; /* of each page, its last visit that is laid out, SCH_NONE: none to come; most pages' records are left alone */
	uint32_t n_pages, cap_pages, free_page, live_pages;
	uint32_t *buckets;
	uint32_t n_buckets, n_chained; /* pages in them */
	uint64_t n_indexed;	       /* chunks that have a place in the index of their file */
	struct sch_bitmap tree[T_COUNT];
	struct sch_bitmap tier_tree;
	uint32_t tier_pages, tier_admits;
	uint32_t *tier_unknown; /* stack of pages on the tier without next use; may be stale */
	uint32_t n_tier_unknown, cap_tier_unknown;
	uint32_t admit_from; /* frames looked at for admission */
	uint32_t *admit;     /* pages to be admitted, FIFO ring */
	uint32_t admit_head, n_admit;
	uint32_t offer_at; /* frame that sched_tier_offer_again() looks at next; wraps */

	struct frame *frames;
	uint32_t n_frames, cap_frames, free_frame, live_frames, held;
	struct list lists[L_COUNT];
	struct fetch *fetches;
	uint32_t n_fetches, cap_fetches, free_fetch;
	struct list flight; /* by issue time */
	uint32_t n_late, n_resolving, n_unfetching, tier_flight;
	uint64_t flight_bytes;
	uint64_t bad_ns, bad_wait_ns; /* when pages whose fetch failed are tried again (0: there are none), and how long that was */
	bool has_partial; /* pages were fetched block by block */
	uint32_t shortage; /* slots that late fetches hold or want */
	uint32_t give_up;  /* pages to go because fetches wait for slots that only late ones hold else */

	uint32_t first_name; /* fetch.c: visits behind it wait for names */
	uint32_t near[SCH_NEAR_MAX]; /* positions that readers in the middle of a file come to next, absent */
	uint32_t n_near, near_in;    /* near_in: the rebuild round they are from */

	struct demand *demands; /* ring */
	uint32_t demand_head, n_demands, cap_demands;
	uint32_t n_waiting; /* demand fetches in flight */
	uint32_t n_stalls[SCHED_STALLS]; /* of these, by cause */
	uint8_t stall; /* cause of the demand fetches that are being issued */
	double stall_ns[SCHED_STALLS];
	uint64_t read_ns, read_clock_ns; /* the last read */
	uint64_t reading_ns, ran_ns;	 /* between first and last read; of it, nobody waited */

	struct rate origin, tier;
	uint32_t concurrency;
	uint64_t flight_enough; /* so many bytes outstanding keep the link busy; 0: not known */
	uint64_t clock_ns;  /* runs while nobody waits */
	uint64_t clock_seen_ns;
	uint64_t free_ns; /* runs while nobody at all waits */
	uint32_t run_limit; /* forestall: prefetch up to here (T_ABSENT) */
	uint32_t tier_limit;
	uint64_t run_limit_ns;
	uint64_t run_limit_done;
	uint64_t n_done_all, fetch_round;
	double tokens;
	uint64_t tokens_ns;

	struct seq *seqs;
	uint32_t n_seqs, cap_seqs, free_seq;
	struct list seq_lru;
	uint32_t access_clock; /* page reads without an order */
	uint64_t touched_pages, touched_before; /* size of what is read without an order, in pages */
	uint32_t touch_epoch, touch_since;
	uint32_t n_begun, n_through; /* large files read from their beginning lately; of these to their end */

	struct replay *replay; /* replay.c */
	uint32_t read_stream; /* whose visit the read under way has finished */
	bool read_is_gone;    /* of a page that was evicted unread: done with its last visit, the page's record goes */
	struct grace grace;
	struct skipped *skipped; /* visits passed over lately, by hash; NULL: none yet */
	uint64_t strange[SCH_STRANGE]; /* pages last read that no list explains */
	uint32_t strange_at;

	struct wait *waits;
	uint32_t n_waits, cap_waits;
	uint64_t wait_pages;
	uint32_t ext_pinned; /* pages that others pin */

	struct sched_action *acts; /* not handed out yet */
	uint32_t acts_head, n_acts, cap_acts;
	uint64_t next_ns;

	uint64_t needed_bytes, demand_misses, useful_bytes, late_bytes, wasted_bytes;
	struct sch_least *least; /* MIN's bytes for what was read */
	uint64_t fetch_sizes; /* moving average of bytes a prefetch */
};

/* sched.c */
void sch_clock(struct sched *s, uint64_t now_ns);
bool sch_emit(struct sched *s, const struct sched_action *a) __attribute__((warn_unused_result));
int sch_array_grow(void **array, uint32_t *cap, uint32_t need, size_t size) __attribute__((warn_unused_result));
/* Exactly n elements; array: the address of the pointer. */
int sch_array_resize(void *array, uint32_t n, size_t size) __attribute__((warn_unused_result));

/* files.c */
/* NULL: not declared */
static inline struct file *sch_file(const struct sched *s, uint32_t file)
{
	if (file >= s->n_files || s->files[file].state == FILE_FREE)
		return NULL;
	return &s->files[file];
}
/* What entries that name `file` mean. One step: aliases are kept flat. */
static inline uint32_t sch_file_target(const struct sched *s, uint32_t file)
{
	const struct file *f = sch_file(s, file);

	return f && f->alias != SCHED_NO_FILE && sch_file(s, f->alias) ? f->alias : file;
}
uint32_t sch_chunk_bytes(const struct sched *s, uint32_t file, uint64_t chunk_no);
uint32_t sch_chunk_blocks(const struct sched *s, uint32_t file, uint64_t chunk_no);
/* Every live page of the file, by number or by a walk over all, whichever is less. */
void sch_file_each_page(struct sched *s, uint32_t file, void (*fn)(struct sched *s, uint32_t pg));

/* entries.c */
void sch_entries_finish(struct sched *s, struct stream *st);
bool sch_entries_others(const struct sched *s, uint32_t stream); /* other streams have visits laid out and not done */
bool sch_entry_get(const struct stream *st, uint64_t entry, struct sched_entry *ret);
uint64_t sch_visits(const struct stream *st);
uint64_t sch_visit_entry(const struct stream *st, uint64_t visit);
uint64_t sch_visit_epoch(const struct stream *st, uint64_t visit);
uint32_t sch_entry_batch(const struct stream *st, uint64_t entry); /* ordinal; SCH_NONE before the first */
uint64_t sch_batch_number(const struct stream *st, uint32_t ordinal);
bool sch_entry_is_any(const struct stream *st, uint64_t entry);
/* Visits [v0, v1) of the batch with this number at or after `from`. */
bool sch_batch_find(const struct stream *st, uint64_t number, uint64_t from, uint64_t *ret_v0, uint64_t *ret_v1);
/* Pages [first, first + n) of the visit and its byte range; n = 0: nothing there. */
struct span {
	uint32_t file;
	uint64_t off, end; /* bytes; end clipped to the file */
	uint64_t first, n;
	bool is_unknown; /* size not known: one page stands for it */
};
void sch_visit_span(const struct sched *s, const struct stream *st, uint64_t visit, struct span *ret);

/* pages.c */
uint32_t sch_page_find(const struct sched *s, uint32_t file, uint64_t chunk_no);
/* Where it is looked for, if there are buckets at all. */
static inline uint32_t sch_page_bucket(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint64_t h = (chunk_no + ((uint64_t)file << 32 | file) * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;

	return (uint32_t)(h >> 32) & (s->n_buckets - 1);
}
/* Where the number of the file's page stands by itself; NULL: look in its bucket. */
static inline uint32_t *sch_page_spot(struct file *f, uint64_t chunk_no)
{
	if (chunk_no == 0)
		return &f->first_page;
	return chunk_no < f->n_index ? &f->index[chunk_no] : NULL;
}
/* Along the chain of a bucket, from pg on. */
static inline uint32_t sch_page_find_from(const struct sched *s, uint32_t pg, uint32_t file, uint64_t chunk_no)
{
	while (pg != SCH_NONE && (s->pages[pg].file != file || s->pages[pg].chunk_no != chunk_no))
		pg = s->pages[pg].hash_next;
	return pg;
}
uint32_t sch_page_get(struct sched *s, uint32_t file, uint64_t chunk_no); /* SCH_NONE: no memory */
void sch_page_put(struct sched *s, uint32_t pg);	  /* free it if nothing refers to it */
void sch_pages_finish(struct sched *s);
uint64_t sch_pages_bytes(const struct sched *s);
void sch_page_untree(struct sched *s, uint32_t pg);
void sch_page_restate(struct sched *s, uint32_t pg);
void sch_page_clip(struct sched *s, uint32_t pg); /* the file's size became known: fit its visits */
void sch_page_next(struct sched *s, uint32_t pg); /* its next visit was done: move on */

/* lay.c */
/* Blocks of the page that the visit needs. */
void sch_seat_blocks(const struct sched *s, const struct span *sp, uint64_t chunk_no, struct seat *x);
bool sch_positions_extend(struct sched *s, uint32_t *budget); /* false: there is nothing left to do, or no room for it */

/* positions.c */
int sch_positions_grow(struct sched *s) __attribute__((warn_unused_result));
/* Positions [p, p + n) are the stream's, and not done. */
void sch_positions_own(struct sched *s, struct stream *st, uint32_t p, uint32_t n);
void sch_position_first(struct sched *s, uint32_t p); /* it is the only visit to come of its page */
/* Link position p of page pg, whose own fields are set, behind the other visits of its page. */
static inline void sch_position_link(struct sched *s, uint32_t p, uint32_t pg)
{
	uint32_t last = s->last[pg];

	s->pos.next[p] = SCH_NONE;
	s->last[pg] = p;
	if (last != SCH_NONE)
		s->pos.next[last] = p;
	else
		sch_position_first(s, p);
}
void sch_positions_finish(struct sched *s);
void sch_positions_run(struct sched *s);
void sch_positions_settle(struct sched *s); /* nothing may refer to positions that are out of date */
void sch_position_done(struct sched *s, uint32_t p);
void sch_positions_withdraw(struct sched *s, uint32_t stream); /* its list was dropped: without laying out the others anew */
static inline bool sch_position_is_done(const struct sched *s, uint32_t p)
{
	return !(s->pos.undone.words[0][p / 64] >> (p % 64) & 1);
}
uint32_t sch_position_bytes(const struct sched *s, uint32_t p);
uint64_t sch_position_visit(const struct sched *s, uint32_t p);
static inline uint32_t sch_position_owner(const struct sched *s, uint32_t p)
{
	const struct row *w = &s->pos.rows.row[p / SCH_ROW];

	return w->stream != SCH_ROW_MIXED ? w->stream : s->pos.rows.mixed[w->visit].stream[p % SCH_ROW];
}
static inline struct stream *sch_position_stream(const struct sched *s, uint32_t p)
{
	return &s->streams[sch_position_owner(s, p)];
}
struct block_run { /* blocks of a page, both ends inside */
	uint32_t b0, b1;
};
/* Those of the chunk that bytes [off, end) of its file touch; some of them are in it. */
static inline struct block_run sch_chunk_run(const struct sched *s, uint64_t chunk_no, uint64_t off, uint64_t end)
{
	uint64_t at = chunk_no << s->chunk_shift;
	uint64_t from = off > at ? off - at : 0, to = sch_min64(end - at, s->cfg.chunk_bytes);

	return (struct block_run){(uint32_t)(from >> s->block_shift), (uint32_t)((to - 1) >> s->block_shift)};
}
static inline struct block_run sch_position_blocks(const struct sched *s, uint32_t p)
{
	const struct rows *r = &s->pos.rows;
	uint32_t part = r->row[p / SCH_ROW].part;

	if (part == SCH_NONE)
		return (struct block_run){0, r->whole};
	return (struct block_run){r->part[part].b0[p % SCH_ROW], r->part[part].b1[p % SCH_ROW]};
}
uint64_t sch_positions_bytes(const struct sched *s);

/* rows.c */
/* How many of bits 1 ... i are set. */
static inline uint32_t sch_row_steps(uint16_t steps, uint32_t i)
{
	uint32_t v = steps & ((2u << i) - 1);

	if (steps == 0xfffe) /* one after the other, mostly */
		return i;
	v -= v >> 1 & 0x5555;
	v = (v & 0x3333) + (v >> 2 & 0x3333);
	v = (v + (v >> 4)) & 0x0f0f;
	return (v + (v >> 8)) & 0x1f;
}
void sch_rows_finish(struct rows *r);
uint64_t sch_rows_bytes(const struct rows *r);
int sch_rows_reserve(struct rows *r, uint32_t n) __attribute__((warn_unused_result)); /* n positions */
/* The position after the one that was written last, or 0 to begin again; there is room. -ENOMEM: it is not there. */
int sch_rows_put(struct rows *r, uint32_t p, const struct seat *x) __attribute__((warn_unused_result));
/* The same for n visits of whole pages, one after the other; returns how many found memory. */
uint32_t sch_rows_run(struct rows *r, uint32_t p, uint32_t n, uint32_t stream, uint32_t visit);
/* The stream's positions in [from, to) are SCH_NOBODY's. */
void sch_rows_withdraw(struct rows *r, uint32_t from, uint32_t to, uint32_t stream);
int sch_rows_blocks_set(struct rows *r, uint32_t p, uint32_t b0, uint32_t b1) __attribute__((warn_unused_result));

/* progress.c */
enum match { MATCH_NO, MATCH_WEAK /* by a list that is not trusted */, MATCH_AGAIN, MATCH_YES };
enum match sch_progress_read(struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, uint64_t reader);
void sch_progress_unmatched(struct sched *s, uint32_t file, uint64_t chunk_no, uint64_t reader);
void sch_progress_done_to(struct sched *s, uint32_t stream, uint64_t visit); /* visits below are done */
void sch_progress_seek(struct sched *s, uint32_t stream, uint64_t visit);
void sch_progress_low(struct sched *s, uint32_t stream);
void sch_progress_reset(struct stream *st);
void sch_progress_park(struct sched *s);

/* A read has come to position p. */
void sch_progress_arrive(struct sched *s, uint32_t stream, uint32_t p);

/* rewind.c */
void sch_rewind_reset(struct stream *st);
void sch_rewind_matched(struct stream *st);
void sch_rewind_note(struct sched *s, uint32_t stream, uint32_t file, uint64_t chunk_no);

/* frames.c */
uint32_t sch_frame_new(struct sched *s, uint32_t pg); /* SCH_NONE: no memory; the caller made room */
void sch_frame_free(struct sched *s, uint32_t fr);
void sch_frame_list(struct sched *s, uint32_t fr, enum frame_list list);
uint32_t sch_fetch_add(struct sched *s, uint32_t fr, uint32_t b0, uint32_t b1, bool is_demand);
void sch_fetch_remove(struct sched *s, uint32_t fe);
uint64_t sch_late_ns(const struct sched *s); /* a fetch outstanding for longer is late */
void sch_fetch_late(struct sched *s);
void sch_fetch_failed_again(struct sched *s); /* after a while pages whose fetch failed are tried again */
void sch_fetch_landed(struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, int err, uint64_t issued_ns);

/* evict.c */
enum evict_for { EVICT_FOR_DEMAND, EVICT_FOR_ORDER, EVICT_FOR_GUESS };
bool sch_evict_room(struct sched *s, enum evict_for who, uint32_t position);
bool sch_evict_frame(struct sched *s, uint32_t fr);
void sch_evict_excess(struct sched *s);
uint32_t sch_reserve(const struct sched *s);
/* How many pages are kept because a reader got them a moment ago: a read over two chunks needs both. */
static inline uint32_t sch_recent_max(const struct sched *s)
{
	return s->slots < 4 ? 1 : sch_min32(sch_max32(s->slots / 4, 2), 16);
}
void sch_frame_seen(struct sched *s, uint32_t fr); /* if all that is valid was read, it is used */

/* Will a fetch of the page take one more slot? Not if it holds one; a page whose fetches are all late does not. */
static inline bool sch_page_takes_slot(const struct sched *s, uint32_t pg)
{
	return s->pages[pg].frame == SCH_NONE || !s->frames[s->pages[pg].frame].is_held;
}

/* demand.c */
void sch_demand_add(struct sched *s, const struct demand *d);
void sch_demand_run(struct sched *s, size_t max);

/* fetch.c */
enum fetch_for { FETCH_AHEAD, FETCH_DEMAND, FETCH_AGAIN /* said again, although it is on its way as demand */ };
int sch_fetch_page(struct sched *s, uint32_t pg, const struct blocks *want, enum fetch_for who, uint64_t deadline_ns);
void sch_fetch_wanted(struct sched *s, uint32_t pg, uint32_t p, struct blocks *want);
void sch_fetch_run(struct sched *s, size_t max);
bool sch_fetch_starts(const struct sched *s);
void sch_fetch_near(struct sched *s, uint32_t p); /* a reader is at visit p */
void sch_windows_stale(struct sched *s);
bool sch_fetch_may(struct sched *s, bool is_demand, uint32_t bytes);
void sch_fetch_unwanted(struct sched *s); /* after a list was dropped: call its fetches back */
int sch_fetch_resolve(struct sched *s, uint32_t pg, bool is_demand, uint64_t deadline_ns);

/* when.c */
void sch_when_update(struct sched *s);
uint64_t sch_when_deadline(const struct sched *s, uint32_t p);
double sch_when_tau(const struct sched *s);

/* rate.c */
void sch_rate_busy(struct rate *r, uint64_t now_ns, bool was_busy);
void sch_rate_landed(struct sched *s, bool from_tier, uint32_t bytes, uint64_t latency_ns);

/* nohint.c */
void sch_nohint_finish(struct sched *s);
void sch_nohint_read(struct sched *s, uint32_t file, uint64_t off, uint64_t len, bool is_hinted, bool is_slow);
bool sch_nohint_is_sequential(const struct sched *s, uint32_t file, uint64_t off);
void sch_nohint_run(struct sched *s, size_t max);
void sch_nohint_forget(struct sched *s, uint32_t file);

/* grace.c */
void sch_grace_passed(struct sched *s);
void sch_grace_gone(struct sched *s, uint32_t pg);
/* Blocks from b0 on of page pg (SCH_NONE: it has no record) are read: were they, a moment ago? */
void sch_grace_read(struct sched *s, uint32_t pg, uint32_t file, uint64_t chunk_no, uint32_t b0);

/* replay.c */
void sch_replay_finish(struct sched *s);
void sch_replay_note(struct sched *s, uint32_t file, uint64_t off, uint64_t len, bool is_explained);

/* wait.c */
void sch_wait_run(struct sched *s);
void sch_wait_finish(struct sched *s);
void sch_wait_stream_gone(struct sched *s, uint32_t stream);

/* tier.c */
void sch_tier_set(struct sched *s, uint32_t pg, bool has);
void sch_tier_tree(struct sched *s, uint32_t pg);
void sch_tier_untree(struct sched *s, uint32_t pg);
void sch_tier_offer(struct sched *s, uint32_t pg);
void sch_tier_run(struct sched *s, size_t max);
void sch_tier_finish(struct sched *s);

#endif
