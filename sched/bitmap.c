/* SPDX-License-Identifier: Apache-2.0 */
/* sched/bitmap.c - 64-ary bitmap tree; see sched/bitmap.h. */
#include "sched/bitmap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void sch_bitmap_init(struct sch_bitmap *b)
{
	memset(b, 0, sizeof(*b));
}

void sch_bitmap_finish(struct sch_bitmap *b)
{
	for (int k = 0; k < SCH_BITMAP_LEVELS; k++)
		free(b->words[k]);
	memset(b, 0, sizeof(*b));
}

/* Grow one level to n words; the new words are zero. */
static int bitmap_level_grow(struct sch_bitmap *b, uint32_t level, uint32_t n)
{
	uint64_t *w;

	if (n <= b->n_words[level])
		return 0;
	w = realloc(b->words[level], (size_t)n * sizeof(*w));
	if (!w)
		return -ENOMEM;
	memset(w + b->n_words[level], 0, (size_t)(n - b->n_words[level]) * sizeof(*w));
	b->words[level] = w;
	b->n_words[level] = n;
	return 0;
}

int sch_bitmap_reserve(struct sch_bitmap *b, uint32_t capacity)
{
	uint32_t n = capacity, level = 0;

	if (capacity <= b->capacity)
		return 0;
	do {
		n = n / 64 + (n % 64 != 0);
		if (bitmap_level_grow(b, level, n))
			return -ENOMEM;
		level++;
	} while (n > 1);
	/* A level that is new above old ones takes over what its words say. */
	for (uint32_t k = 1; k < level; k++)
		for (uint32_t w = 0; w < b->n_words[k - 1]; w++)
			if (b->words[k - 1][w])
				b->words[k][w / 64] |= 1ULL << (w % 64);
	b->levels = level;
	b->capacity = capacity;
	return 0;
}

void sch_bitmap_zero(struct sch_bitmap *b)
{
	for (uint32_t k = 0; k < b->levels; k++)
		memset(b->words[k], 0, (size_t)b->n_words[k] * sizeof(uint64_t));
}

void sch_bitmap_set(struct sch_bitmap *b, uint32_t i)
{
	for (uint32_t k = 0; k < b->levels; k++, i /= 64) {
		uint64_t *w = &b->words[k][i / 64];
		bool was_zero = *w == 0;

		*w |= 1ULL << (i % 64);
		if (!was_zero)
			return;
	}
}

void sch_bitmap_fill(struct sch_bitmap *b, uint32_t from, uint32_t to)
{
	for (uint32_t k = 0; k < b->levels; k++) { /* [from, to]: both ends inside */
		uint32_t last = k ? to : to - 1;

		for (uint32_t w = from / 64; w <= last / 64; w++) {
			uint64_t word = ~0ULL;

			if (w == from / 64)
				word &= ~0ULL << (from % 64);
			if (w == last / 64)
				word &= ~0ULL >> (63 - last % 64);
			b->words[k][w] |= word;
		}
		from /= 64;
		to = last / 64;
	}
}

void sch_bitmap_clear(struct sch_bitmap *b, uint32_t i)
{
	for (uint32_t k = 0; k < b->levels; k++, i /= 64) {
		uint64_t *w = &b->words[k][i / 64];

		*w &= ~(1ULL << (i % 64));
		if (*w)
			return;
	}
}

bool sch_bitmap_has(const struct sch_bitmap *b, uint32_t i)
{
	return i < b->capacity && (b->words[0][i / 64] >> (i % 64) & 1);
}

/* From bit i of `level`, which is set, down to the lowest (or highest) member below it. */
static uint32_t bitmap_descend(const struct sch_bitmap *b, uint32_t level, uint32_t i, bool is_low)
{
	while (level-- > 0) {
		uint64_t w = b->words[level][i];

		i = i * 64 + (is_low ? (uint32_t)__builtin_ctzll(w) : 63 - (uint32_t)__builtin_clzll(w));
	}
	return i;
}

uint32_t sch_bitmap_next(const struct sch_bitmap *b, uint32_t i)
{
	if (i >= b->capacity)
		return SCH_NONE;
	for (uint32_t k = 0; k < b->levels; k++) {
		uint32_t word = i / 64;
		uint64_t w;

		if (word >= b->n_words[k])
			return SCH_NONE;
		w = b->words[k][word] & (~0ULL << (i % 64));
		if (w)
			return bitmap_descend(b, k, word * 64 + (uint32_t)__builtin_ctzll(w), true);
		i = word + 1;
	}
	return SCH_NONE;
}

uint32_t sch_bitmap_prev(const struct sch_bitmap *b, uint32_t i)
{
	if (b->capacity == 0)
		return SCH_NONE;
	if (i >= b->capacity)
		i = b->capacity - 1;
	for (uint32_t k = 0; k < b->levels; k++) {
		uint32_t word = i / 64;
		uint64_t w = b->words[k][word] & (~0ULL >> (63 - i % 64));

		if (w)
			return bitmap_descend(b, k, word * 64 + 63 - (uint32_t)__builtin_clzll(w), false);
		if (word == 0)
			return SCH_NONE;
		i = word - 1;
	}
	return SCH_NONE;
}

uint32_t sch_bitmap_last(const struct sch_bitmap *b)
{
	return sch_bitmap_prev(b, SCH_NONE);
}

uint32_t sch_bitmap_count(const struct sch_bitmap *b, uint32_t from, uint32_t to)
{
	uint32_t n = 0;

	for (uint32_t i = from; i < to; i = (i | 63u) + 1) {
		uint64_t word = b->words[0][i / 64] & ~0ULL << (i % 64);

		if ((i | 63u) >= to)
			word &= (1ULL << (to % 64)) - 1;
		n += (uint32_t)__builtin_popcountll(word);
	}
	return n;
}

uint64_t sch_bitmap_bytes(const struct sch_bitmap *b)
{
	uint64_t n = 0;

	for (uint32_t k = 0; k < b->levels; k++)
		n += (uint64_t)b->n_words[k] * sizeof(uint64_t);
	return n;
}
