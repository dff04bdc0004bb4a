/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/identity.c - see identity.h.
 */
#include "cache/identity.h"

#include "cache/base/le.h"

#include <xxhash.h>

uint64_t hfs_identity_hash(const struct hfs_identity *id)
{
	unsigned char raw[40];

	hfs_le_put(raw, id->dev, 8);
	hfs_le_put(raw + 8, id->ino, 8);
	hfs_le_put(raw + 16, id->size_bytes, 8);
	hfs_le_put(raw + 24, (uint64_t)id->mtime_ns, 8);
	hfs_le_put(raw + 32, (uint64_t)id->ctime_ns, 8);
	return XXH3_64bits(raw, sizeof(raw));
}
