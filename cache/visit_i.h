/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/visit_i.h - shared by visit.c and visit_tier.c: the run of one visit.
 */
#ifndef CACHE_VISIT_I_H
#define CACHE_VISIT_I_H

#include "cache/cache_i.h"

#define PIECES_MAX 64
#define RUN_FETCHES_MAX 16

struct piece {
	uint64_t off_bytes;
	uint8_t *buf;
	uint32_t len;
};

struct figures {
	uint64_t reads, bytes, short_reads, retries;
};

/* One visit: fetches of adjacent chunks of one file, read together. */
struct run {
	struct cache_file *file; /* counted by the fetches */
	struct origin_fd *ofd;
	struct fetch *fetches[RUN_FETCHES_MAX];
	struct bits sets[RUN_FETCHES_MAX]; /* blocks being read for each */
	unsigned n;
	struct piece pieces[PIECES_MAX];
	unsigned n_pieces;
	uint64_t bytes;
	bool has_reopened;
	bool is_lent; /* its slot, to a tier whose disk hangs */
	struct figures fig;
};

/* ---- visit.c ---- */
/* f's blocks become running, in a slot. False: parked, or others were quicker. */
bool run_begin_locked(struct cache *c, struct fetch *f, struct run *run, struct batch *b) HFS_REQUIRES(c->lock);
/* What was begun is valid (err 0) or has failed: reads are answered, fetches end. */
void run_finish_locked(struct cache *c, struct run *run, int err, struct batch *b) HFS_REQUIRES(c->lock);

/* ---- visit_tier.c ---- */
/* A name that the tier has a small file of. True: looked at (a forced statx, f->attr), and its bytes are there. False: to be opened. */
bool visit_look_up_kept(struct cache *c, struct fetch *f) HFS_EXCLUDES(c->lock);
/* True: the fetch is dealt with, or parked. False: it is the origin's, nothing is begun. May leave the lock. */
bool run_from_tier_locked(struct cache *c, struct fetch *f, struct run *run, struct batch *b) HFS_REQUIRES(c->lock);

#endif
