/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/loader_i.h - the loader's inside, shared by loader.c (API, life cycle), open.c, pack.c (entries to batches),
 * fill.c (worker threads), device.c (CUDA side of a slot) and hints.c (control file).
 *
 * Path of a sample:  entry -> look (its file is queued for opening) -> open (worker) -> pack (placed in a slot)
 *                    -> fill (workers, pieces of <= 1 MiB, oldest batch first) -> batch READY -> caller -> release
 *
 * Slot states, and the function that takes each arrow:
 *
 *	FREE --pack.c:slot_take--> FILLING --fill.c:slot_settle--> READY --next_batch--> OUT
 *	OUT --release--> FREE, or DRAINING when the device may still read it
 *	DRAINING --device.c:drain_poll--> FREE, or LOST when the device cannot say
 *	FILLING, READY --set_epoch--> FREE (a FILLING one when its last piece is back: is_stale)
 *
 * Invariants:
 *  1. A slot has one owner: pack and the workers (FILLING), the loader (FREE, READY, DRAINING, LOST), the caller (OUT).
 *  2. Batches are numbered by seq; batch seq sits in fifo[seq % slots] from slot_take to next_batch, and
 *     head_seq <= fill_seq <= tail_seq <= head_seq + slots.
 *  3. Pieces are handed to workers in (seq, sample, offset) order, so batch k is complete before k + 1 but for reads in
 *     progress; batches are handed out in seq order always.
 *  4. A file is open while an entry in the look window or an unfinished sample refers to it, and no longer.
 *
 * Locks: one mutex, `lock`, guards everything marked so. No I/O and no CUDA call under it, and no allocation but a
 * struct file. hints.c and device.c's keeper copy what they need and drop it first.
 */
#ifndef TOOLS_PRELOAD_LOADER_I_H
#define TOOLS_PRELOAD_LOADER_I_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "tools/preload/cuda_rt.h"
#include "tools/preload/hintfs.h"
#include "tools/preload/order.h"
#include "tools/preload/ring.h"
#include "tools/preload/sync_i.h"

#define LOOK_MAX 1024u		  /* entries whose files are opened ahead of packing */
#define PIECE_BYTES (1u << 20)	  /* one pread: the mount's largest request */
#define RUN_SAMPLES 8u		  /* small samples that one worker takes at a time, when all are busy */
#define RUN_BYTES (256u << 10)
#define ERROR_TEXT_BYTES 512u
#define FILES_MAX 4096u		  /* open at once, at most */

enum file_state { FILE_QUEUED, FILE_OPENING, FILE_OPEN, FILE_BAD };

/* One open file. Guarded by lock; fd, size, err are constant from FILE_OPEN/FILE_BAD on. */
struct file {
	struct file *next; /* open queue */
	uint32_t path;
	uint32_t refs;
	enum file_state state;
	int fd;
	int err; /* negative errno, FILE_BAD */
	uint64_t size_bytes;
};

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_OUT, SLOT_DRAINING, SLOT_LOST };

/* The loader's side of a sample in a slot. */
struct sample {
	struct file *file; /* a reference, until left_bytes is 0 */
	uint64_t plan_bytes; /* room taken in the payload */
	uint64_t left_bytes; /* not read yet */
};

struct slot {
	struct hintfs_batch pub; /* first: a batch pointer is a slot pointer */
	struct hintfs_loader *loader;
	uint32_t slot_no;
	char *base;
	/* writable views of pub's arrays, in the slot's metadata block */
	uint64_t *offset, *length, *sample_id, *source_offset;
	int32_t *status;
	uint32_t *sample_flags;
	struct sample *samples; /* owned, max_samples */
	/* guarded by loader->lock */
	enum slot_state state;
	bool is_closed; /* nothing more is packed into it */
	bool is_stale;	/* of an epoch that was left */
	bool is_short;	/* the last batch of batch_samples, with fewer */
	bool has_bad;	/* a status is set: slot_settle has work to do */
	uint32_t n;
	uint32_t n_shown; /* items of the arrays that an earlier use may have left behind */
	uint32_t take_no; /* next sample with bytes to hand to a worker */
	uint64_t take_at; /* and where in it */
	uint32_t left;	  /* samples not finished */
	uint64_t used_bytes;
	uint64_t entries_end; /* all entries below are in this or earlier batches */
	int err;	  /* negative errno of the first bad sample, HINTFS_ON_ERROR_FAIL */
	char *err_text;	  /* owned, ERROR_TEXT_BYTES */
	/* device side: the caller's while OUT, the keeper's while DRAINING */
	cu_event event;
	bool has_event_work; /* something was recorded since the slot was filled */
	bool is_doubtful;    /* device work was queued but could not be recorded */
};

enum run_state { RUN_ON, RUN_ENDED, RUN_FAILED, RUN_CANCELLED, RUN_STOP };

struct hints;

struct hintfs_loader {
	/* const after open */
	struct hintfs_opts opts;
	pid_t pid;
	struct order order;
	int root_fd;
	char *mount; /* owned */
	struct ring ring;
	uint64_t meta_bytes, payload_cap;
	uint32_t max_samples, align;
	uint32_t n_slots, n_workers, max_files;
	struct slot *slots;	/* owned */
	struct file **files;	/* owned: path -> file or NULL; guarded by lock */
	pthread_t *workers;	/* owned */
	uint32_t n_workers_started;
	struct hints *hints;	/* owned or NULL */
	char hints_off[160];	/* why hints is NULL */

	/* guarded by lock */
	pthread_mutex_t lock;
	pthread_cond_t work_cond;  /* workers: something to open or fill */
	pthread_cond_t ready_cond; /* callers: head batch, end, failure */
	enum run_state run;
	int run_err;
	char run_text[ERROR_TEXT_BYTES];
	uint64_t epoch, list_no;
	uint64_t generation; /* counts set_epoch: late results of an old epoch are dropped */
	uint32_t idle_workers;
	uint32_t n_lost; /* slots */
	uint32_t busy_workers;
	bool is_starved; /* pack wants a slot and has none */
	/* look window */
	uint64_t look_pos, pack_pos, end_pos; /* entries: queued up to, packed up to, list's end */
	struct file *look[LOOK_MAX];	      /* of entry e at e % LOOK_MAX, for pack_pos <= e < look_pos */
	struct file *open_head, **open_tail;
	uint32_t n_files; /* queued, opening or open */
	/* packing */
	struct slot *cur;	 /* FILLING and not closed, or NULL */
	uint64_t group_no;	 /* of pack_pos, when the list has marks */
	uint64_t logical_no;	 /* batch of the order being packed, without marks */
	uint32_t logical_n;	 /* samples packed of it (a split does not reset it) */
	uint64_t piece_at;	 /* bytes of entry pack_pos packed already (split) */
	bool is_continued;	 /* the next slot goes on with the same batch of the order */
	/* ring order */
	uint32_t *fifo; /* owned: seq % slots -> slot */
	uint64_t head_seq, fill_seq, tail_seq;
	uint64_t settled_seq;	 /* batches below are READY or further */
	uint64_t settled_entries;
	/* figures */
	struct hintfs_stats figures; /* the counters of it */

	/* device side */
	struct cuda_rt rt;     /* const after open */
	bool has_rt;	       /* const after open: rt may be called */
	atomic_bool is_cuda_on; /* copies may be queued */
	pthread_t keeper;
	bool has_keeper;
	pthread_cond_t keeper_cond; /* with lock */
	bool is_keeper_ready;	    /* guarded by lock: registration was tried */
	bool is_keeper_stop;
	int keeper_result;	    /* of close */
	uint32_t n_draining;
	char reason[256];	    /* guarded by lock */
};

/* loader.c: set this thread's last error and return err */
int loader_error(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* open.c: check and complete the options; how many files at once; mount, order, slot size and ring. Half-built on failure */
int open_opts(const struct hintfs_opts *given, struct hintfs_opts *o);
uint32_t open_files_limit(uint32_t asked);
int open_build(struct hintfs_loader *l);

/* pack.c; all REQUIRE lock */
void pack_begin(struct hintfs_loader *l, uint64_t first, uint64_t end);
void pack_run(struct hintfs_loader *l);
/*
 * Leave the epoch: drop the look window, and every slot that no caller holds (those with reads in progress as soon as
 * these are back). Descriptors to close go to fds (room for FILES_MAX). Returns how many.
 */
uint32_t pack_abandon(struct hintfs_loader *l, int *fds);
/* Drop one reference; returns a descriptor to close outside the lock, or -1. */
int file_put(struct hintfs_loader *l, struct file *f);
struct file *file_queue_pop(struct hintfs_loader *l);
void slot_fail(struct hintfs_loader *l, struct slot *s, int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* fill.c */
void *fill_worker(void *loader);
/* REQUIRES lock: all samples are in and nothing more comes: READY, or FREE if stale. */
void slot_settle(struct hintfs_loader *l, struct slot *s);
void slot_free(struct hintfs_loader *l, struct slot *s);

/* device.c */
int device_start(struct hintfs_loader *l);
int device_stop(struct hintfs_loader *l);
int device_copy(struct hintfs_loader *l, struct slot *s, void *dst, uint64_t cap, void *stream, unsigned flags);
/* Before the slot may be refilled: record the stream. True: the device may still read it. */
bool device_release(struct hintfs_loader *l, struct slot *s, void *stream);

/* hints.c */
int hints_start(struct hintfs_loader *l, char *why, size_t size);
void hints_epoch(struct hintfs_loader *l); /* REQUIRES lock: the list changed */
void hints_progress(struct hintfs_loader *l); /* REQUIRES lock: settled_entries grew */
void hints_cancel(struct hintfs_loader *l); /* REQUIRES lock */
void hints_stop(struct hintfs_loader *l);
void hints_describe(struct hintfs_loader *l, char *text, size_t size); /* REQUIRES lock */

#endif
