/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/identity.h - which file, and which state of it, some bytes belong to.
 *
 * Two identities are the same file in the same state only if all five fields are equal. They
 * are compared for equality, never for order: clocks of servers run as they like.
 */
#ifndef CACHE_IDENTITY_H
#define CACHE_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

struct hfs_identity {
	uint64_t dev;	   /* of the origin file system, as statx gives it (major << 32 | minor) */
	uint64_t ino;
	uint64_t size_bytes;
	int64_t mtime_ns;  /* seconds * 1e9 + nanoseconds */
	int64_t ctime_ns;
};

static inline bool hfs_identity_equal(const struct hfs_identity *a, const struct hfs_identity *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size_bytes == b->size_bytes && a->mtime_ns == b->mtime_ns &&
	       a->ctime_ns == b->ctime_ns;
}

/* XXH3-64 of the five fields, little-endian, in the order of the struct. */
uint64_t hfs_identity_hash(const struct hfs_identity *id);

#endif
