/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/bitmap.h - a set of integers below a capacity as a 64-ary tree of bitmaps.
 *
 * Level 0 holds one bit a member; a bit of level k + 1 says that a word of level k is not zero.
 * set, clear, first-at-or-after and last-at-or-before touch one word a level: four levels hold 16 Mi.
 *
 * Callers: sched/pages.c (one tree a page state), sched/when.c, sched/evict.c.
 * Invariants: (1) a bit of level k + 1 is set exactly if its word of level k is not zero;
 * (2) no bit at or past the capacity is set.
 */
#ifndef SCHED_BITMAP_H
#define SCHED_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

#define SCH_BITMAP_LEVELS 6
#define SCH_NONE UINT32_MAX

struct sch_bitmap {
	uint64_t *words[SCH_BITMAP_LEVELS];
	uint32_t n_words[SCH_BITMAP_LEVELS];
	uint32_t levels;
	uint32_t capacity;
};

void sch_bitmap_init(struct sch_bitmap *b);
void sch_bitmap_finish(struct sch_bitmap *b);
/* Make room for members below capacity; never shrinks, keeps the members. */
int sch_bitmap_reserve(struct sch_bitmap *b, uint32_t capacity) __attribute__((warn_unused_result));
void sch_bitmap_zero(struct sch_bitmap *b);
void sch_bitmap_set(struct sch_bitmap *b, uint32_t i);   /* i < capacity */
void sch_bitmap_fill(struct sch_bitmap *b, uint32_t from, uint32_t to); /* [from, to), from < to <= capacity */
void sch_bitmap_clear(struct sch_bitmap *b, uint32_t i); /* i < capacity */
bool sch_bitmap_has(const struct sch_bitmap *b, uint32_t i);
/* Lowest member >= i, highest member <= i, highest of all; SCH_NONE if there is none. */
uint32_t sch_bitmap_next(const struct sch_bitmap *b, uint32_t i);
uint32_t sch_bitmap_prev(const struct sch_bitmap *b, uint32_t i);
uint32_t sch_bitmap_last(const struct sch_bitmap *b);
uint32_t sch_bitmap_count(const struct sch_bitmap *b, uint32_t from, uint32_t to); /* in [from, to), to <= capacity */
uint64_t sch_bitmap_bytes(const struct sch_bitmap *b);

#endif
