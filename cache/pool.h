/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/pool.h - the slots: a fixed number of chunk-sized pieces of memory, in one mapping.
 * Used by chunk.c (which slot belongs to which chunk), visit.c (fills) and read.c (copies out).
 *
 *                take                 published
 *      FREE ------------> FILLING ----------------> VALID <---- pin / unpin ----> PINNED
 *       ^                    |                        |                             |
 *       |      release       |        release         |      release, then the      |
 *       +--------------------+------------------------+------- last unpin ----------+
 *
 * FILLING and VALID differ only in the chunk's bits (a slot can be both, block by block); PINNED is n_pins > 0.
 *
 * 1. A slot is handed out only after each of its pages was touched: no fault, and no SIGBUS, on the data path.
 * 2. Touching happens in the background, lowest slot first; cb ready() tells how many are usable.
 * 3. A slot released while pinned is free when the last pin goes. Nobody writes to a pinned, released slot.
 *
 * Locks: none of its own for slots: every call marked "locked" is serialised by the cache's one lock, as is ready().
 */
#ifndef CACHE_POOL_H
#define CACHE_POOL_H

#include "cache/base/sync.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

struct slot_no {
	uint32_t no;
};
#define SLOT_NONE ((struct slot_no){UINT32_MAX})

static inline bool slot_is_none(struct slot_no s)
{
	return s.no == UINT32_MAX;
}

struct pool_config {
	uint64_t memory_bytes, chunk_bytes;
	struct hfs_mutex *lock; /* the cache's; taken by the pre-fault thread to hand slots in */
	void *ctx;
	/* From the pre-fault thread, no lock held: n more slots can be taken, total now. is_last: no more will come. */
	void (*ready)(void *ctx, uint32_t total, bool is_last);
};

int pool_create(const struct pool_config *cfg, struct pool **ret_p);
int pool_start(struct pool *p); /* begin to touch */
/* Stops and joins the pre-fault thread. Idempotent. */
void pool_stop(struct pool *p);
void pool_destroy(struct pool *p);
uint32_t pool_slots_total(const struct pool *p);

/* locked: */
struct slot_no pool_take(struct pool *p); /* SLOT_NONE: none is free */
void pool_release(struct pool *p, struct slot_no s);
void pool_pin(struct pool *p, struct slot_no s);
/* True: that freed a slot. */
bool pool_unpin(struct pool *p, struct slot_no s);
uint32_t pool_slots_ready(const struct pool *p);
uint32_t pool_slots_free(const struct pool *p);
uint32_t pool_slots_pinned(const struct pool *p);
bool pool_is_filling_up(const struct pool *p); /* more slots become ready by themselves */

/* Constant: any thread. */
void *pool_slot_data(const struct pool *p, struct slot_no s);

#endif
