/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/least.h - the least bytes that had to come from the origin for what was read so far, with this much memory.
 *
 * What MIN (Belady, with bypass) would have fetched, found while reading goes on; see least.c for how. Pure; not thread-safe.
 */
#ifndef SCHED_LEAST_H
#define SCHED_LEAST_H

#include <stdint.h>

struct sch_least;

/* Bounds of memory; powers of two, at least 2. Pages: 48 to 96 B each, boundaries of time: 32 B each. */
struct sch_least_limits {
	uint32_t pages_max, times_max;
};

/* Blocks b0 ... b1 (both included) of a page of chunk_bytes; the last block of the page may be shorter than block_bytes. */
struct sch_least_read {
	uint64_t file_key, chunk_no; /* the key stays with the file's data, whatever number it has just now */
	uint32_t b0, b1;
	uint32_t block_bytes, chunk_bytes;
};

/* NULL: the usual bounds. */
int sch_least_create(const struct sch_least_limits *limits, struct sch_least **ret_l) __attribute__((warn_unused_result));
void sch_least_destroy(struct sch_least *l); /* NULL is fine */
void sch_least_note(struct sch_least *l, const struct sch_least_read *r, uint64_t capacity_pages);
/* These blocks are there without having come from the origin in this life (disk tier). */
void sch_least_adopt(struct sch_least *l, const struct sch_least_read *r);
uint64_t sch_least_bytes(const struct sch_least *l);
/* One page in 1 << this is looked at; 0: all, and the figure is exact for pages that are read as a whole. */
uint32_t sch_least_shift(const struct sch_least *l);
uint64_t sch_least_mix(uint64_t x); /* splitmix64's finaliser: a key from numbers */

#endif
