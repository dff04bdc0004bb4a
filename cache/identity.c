/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/identity.c - see identity.h.
 */
#include "cache/identity.h"

#include <xxhash.h>

static void put_le64(unsigned char *p, uint64_t x)
{
	for (int i = 0; i < 8; i++)
		p[i] = (unsigned char)(x >> (8 * i));
}

uint64_t hfs_identity_hash(const struct hfs_identity *id)
{
	unsigned char raw[40];

	put_le64(raw, id->dev);
	put_le64(raw + 8, id->ino);
	put_le64(raw + 16, id->size_bytes);
	put_le64(raw + 24, (uint64_t)id->mtime_ns);
	put_le64(raw + 32, (uint64_t)id->ctime_ns);
	return XXH3_64bits(raw, sizeof(raw));
}
