/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/le.h - little-endian numbers in the byte arrays of on-disk structures. HFS_LE_PUT(raw->field, x), HFS_LE_GET(raw->field): field is
 * an array of 1 to 8 bytes; more bits than it has are cut off.
 */
#ifndef CACHE_BASE_LE_H
#define CACHE_BASE_LE_H

#include <stddef.h>
#include <stdint.h>

static inline void hfs_le_put(uint8_t *p, uint64_t x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(x >> (8 * i));
}

static inline uint64_t hfs_le_get(const uint8_t *p, size_t n)
{
	uint64_t x = 0;

	for (size_t i = 0; i < n; i++)
		x |= (uint64_t)p[i] << (8 * i);
	return x;
}

#define HFS_LE_PUT(field, x) hfs_le_put((field), (uint64_t)(x), sizeof(field))
#define HFS_LE_GET(field) hfs_le_get((field), sizeof(field))

#endif
