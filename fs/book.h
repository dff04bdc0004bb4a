/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book.h - what an immutable dataset looked like, kept on the disk tier: attributes, link targets, listings.
 *
 * While the origin answers it is only written, and nobody is told from it. When the origin is late, or away, what was seen before
 * (in this process's life or an earlier one's) is answered from it, so that what the disk tier holds can still be found and opened.
 *
 *  1. Only with `immutable`: then what was true of a file is true of it for ever.
 *  2. Noting never waits and never fails: what there is no room for is left out.
 *  3. What comes from it was proved by the tier, is of this dataset, and decodes; else it is not there.
 *
 * In memory: 8 bytes for each name whose attributes are on the disk; all of them only once the origin was late or away.
 * Callers: fs/data*.c. Thread safety: every function but create and destroy, any thread, no lock held.
 */
#ifndef FS_BOOK_H
#define FS_BOOK_H

#include "cache/origin.h"
#include "fs/dirsnap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct book;
struct tier;

/* origin_dev: st_dev of the origin's root now. */
int book_create(struct tier *t, uint64_t origin_dev, struct book **ret_b);
/* Writes out what was noted, for at most wait_ms; looks end. Idempotent. */
void book_stop(struct book *b, unsigned wait_ms);
void book_destroy(struct book *b); /* NULL is fine */

void book_note(struct book *b, const char *path, const struct origin_attr *attr, const char *link);
/* Takes a reference of its own. */
void book_note_list(struct book *b, const char *path, struct dirsnap *s);

/* These may wait for the cache's disk, bounded as tier_read() is; the first one for the whole book. */
bool book_attr(struct book *b, const char *path, struct origin_attr *ret);
/* Length of the target, not terminated, cut at cap; negative: not known. */
int64_t book_link(struct book *b, const char *path, char *buf, size_t cap);
/* 0: cb was called for each entry; else its negative errno, or -ENOENT. */
int book_list(struct book *b, const char *path, origin_list_cb cb, void *ctx);

struct book_stats {
	uint64_t noted, listed;	   /* kept in this process's life */
	uint64_t records;	   /* on the disk */
	uint64_t answered, missed; /* looks */
};
void book_stats_get(struct book *b, struct book_stats *ret);

#endif
