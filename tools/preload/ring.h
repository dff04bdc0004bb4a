/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/ring.h - the ring's memory: one sealed memfd, mapped shared, populated, page-locked if possible.
 *
 * Callers: loader.c. Every function is called with no lock held; registration and its undoing only from the thread
 * that has the device current.
 *
 *	memfd:  | slot 0: metadata block | payload | slot 1: metadata block | payload | ...
 *	chunks: |<------ <= 256 MiB, whole slots ------>|<------ ...   (or parts of one slot, when a slot is larger)
 *
 * Invariants:
 *  1. The memfd is sealed against growing, shrinking and further seals, so that a second mapper (the daemon, later) can
 *     write into it without fear of SIGBUS. Nothing has a name: a killed process leaves nothing behind.
 *  2. All pages are populated before they are locked: pinning untouched pages takes 100 times longer.
 *  3. Registration is all or nothing, in chunks of at most 256 MiB: larger calls stall other processes' CUDA calls
 *     and fail on some drivers. A copy to the device never crosses a chunk.
 *  4. Unregister comes before unmap. If CUDA refuses to unregister, the memory stays mapped for ever (is_leaked).
 */
#ifndef TOOLS_PRELOAD_RING_H
#define TOOLS_PRELOAD_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/preload/cuda_rt.h"

#define RING_PAGE_BYTES 4096u
#define RING_CHUNK_MAX_BYTES (256u << 20)

enum ring_backend { RING_HOST, RING_HOST_LOCKED, RING_CUDA, RING_FAKE };

struct ring {
	int fd;		/* owned */
	char *base;	/* owned mapping of `bytes` */
	uint64_t bytes; /* slots * slot_bytes */
	uint64_t slot_bytes; /* multiple of RING_PAGE_BYTES */
	uint32_t slots;
	enum ring_backend backend;
	uint64_t pinned_bytes;
	bool is_leaked;
};

/* Make and seal the memory. -ENOMEM, -EINVAL, -EOVERFLOW, or the system's errno. */
int ring_create(struct ring *r, uint32_t slots, uint64_t slot_bytes) __attribute__((warn_unused_result));

/* Put the pages on a NUMA node (-1: leave it to the system) and populate them. -ENOMEM. */
int ring_populate(struct ring *r, int numa_node) __attribute__((warn_unused_result));

/* Page-lock by CUDA. -ENODEV with reason: nothing stays registered (but see invariant 4). */
int ring_register(struct ring *r, const struct cuda_rt *rt, char *reason, size_t size) __attribute__((warn_unused_result));

/* Lock with mlock. 0 or negative errno; harmless if it fails. */
int ring_mlock(struct ring *r) __attribute__((warn_unused_result));

/* Undo ring_register. -ENODEV: some chunk stayed registered; the ring is leaked. */
int ring_unregister(struct ring *r, const struct cuda_rt *rt);

/* Unmap (unless leaked) and close. NULL and zeroed objects with fd -1 are fine. */
void ring_destroy(struct ring *r);

/* Bytes from offset `at` of a slot to the end of the chunk it lies in: how much one copy may take. */
uint64_t ring_chunk_rest(const struct ring *r, uint32_t slot_no, uint64_t at);

const char *ring_backend_name(enum ring_backend b);

#endif
