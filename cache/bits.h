/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/bits.h - 256 bits, one a block of a chunk. Header only, pure.
 */
#ifndef CACHE_BITS_H
#define CACHE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#define BITS_MAX 256

struct bits {
	uint64_t w[BITS_MAX / 64];
};

static inline struct bits bits_range(unsigned first, unsigned n)
{
	struct bits b = {{0}};

	for (unsigned i = 0, word = 0; word < BITS_MAX / 64; word++, i += 64) {
		unsigned from = first > i ? first - i : 0;
		unsigned to = first + n > i ? first + n - i : 0;

		if (from >= 64 || to == 0 || to <= from)
			continue;
		b.w[word] = (to >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << to) - 1) & ~((UINT64_C(1) << from) - 1);
	}
	return b;
}

static inline bool bits_is_empty(const struct bits *b)
{
	return (b->w[0] | b->w[1] | b->w[2] | b->w[3]) == 0;
}

static inline void bits_add(struct bits *b, const struct bits *more)
{
	for (int i = 0; i < BITS_MAX / 64; i++)
		b->w[i] |= more->w[i];
}

static inline void bits_remove(struct bits *b, const struct bits *less)
{
	for (int i = 0; i < BITS_MAX / 64; i++)
		b->w[i] &= ~less->w[i];
}

static inline bool bits_meet(const struct bits *a, const struct bits *b)
{
	return ((a->w[0] & b->w[0]) | (a->w[1] & b->w[1]) | (a->w[2] & b->w[2]) | (a->w[3] & b->w[3])) != 0;
}

/* Is all of `part` in `b`? */
static inline bool bits_cover(const struct bits *b, const struct bits *part)
{
	return ((part->w[0] & ~b->w[0]) | (part->w[1] & ~b->w[1]) | (part->w[2] & ~b->w[2]) |
		(part->w[3] & ~b->w[3])) == 0;
}

/* First run of set bits at or after `from`: its start (BITS_MAX: none), its length in *ret_n. */
static inline unsigned bits_next_run(const struct bits *b, unsigned from, unsigned *ret_n)
{
	unsigned i = from, end;

	while (i < BITS_MAX && !(b->w[i / 64] >> (i % 64) & 1)) {
		if (b->w[i / 64] >> (i % 64) == 0)
			i = (i / 64 + 1) * 64;
		else
			i += (unsigned)__builtin_ctzll(b->w[i / 64] >> (i % 64));
	}
	end = i;
	while (end < BITS_MAX && (b->w[end / 64] >> (end % 64) & 1))
		end++;
	*ret_n = end - i;
	return i;
}

#endif
