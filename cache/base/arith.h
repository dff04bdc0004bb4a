/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/arith.h - checked arithmetic for sizes from outside, and chunk arithmetic. Header only, pure.
 */
#ifndef CACHE_BASE_ARITH_H
#define CACHE_BASE_ARITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False: the result does not fit, *ret is not written. */
static inline bool hfs_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return false;
	*ret = sum;
	return true;
}

static inline bool hfs_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return false;
	*ret = product;
	return true;
}

static inline bool hfs_is_pow2(uint64_t x)
{
	return x != 0 && (x & (x - 1)) == 0;
}

static inline uint64_t hfs_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t hfs_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* a - b, or 0. */
static inline uint64_t hfs_sub_floor_u64(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* align is a power of two. */
static inline uint64_t hfs_round_down(uint64_t x, uint64_t align)
{
	return x & ~(align - 1);
}

/* Saturates at the highest multiple of align that fits. */
static inline uint64_t hfs_round_up(uint64_t x, uint64_t align)
{
	uint64_t sum;

	return hfs_add_u64(x, align - 1, &sum) ? hfs_round_down(sum, align) : hfs_round_down(UINT64_MAX, align);
}

static inline uint64_t hfs_div_up(uint64_t x, uint64_t by)
{
	return x / by + (x % by != 0);
}

/* Unit of validity inside a chunk: at most 256 of them, never below a page. */
static inline uint32_t hfs_block_bytes(uint64_t chunk_bytes)
{
	return (uint32_t)hfs_max_u64(4096, chunk_bytes / 256);
}

/* Bytes of the file that lie in a chunk; 0 past the end. The last chunk is shorter. */
static inline uint32_t hfs_chunk_len(uint64_t size_bytes, uint64_t chunk_bytes, uint64_t chunk_no)
{
	uint64_t start;

	if (!hfs_mul_u64(chunk_no, chunk_bytes, &start) || start >= size_bytes)
		return 0;
	return (uint32_t)hfs_min_u64(chunk_bytes, size_bytes - start);
}

#endif
