/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book_i.h - shared inside fs/book*.c: the thread's side (book.c) and what is known in memory (book_table.c).
 *
 *   note --> fresh --(the thread: new?)--> page --(full, or the round ends)--> a note of the tier
 *                                            \-- with an index: kept in memory, too
 */
#ifndef FS_BOOK_I_H
#define FS_BOOK_I_H

#include "cache/base/err.h"
#include "cache/base/sync.h"
#include "fs/book.h"
#include "fs/book_format.h"

/* A page in memory. */
struct book_block {
	struct book_block *next;
	uint32_t no, n_records;
	size_t n_bytes; /* head included */
	bool is_dirty;
	uint8_t data[BOOK_NOTE_BYTES];
};

struct book_block *book_block_new(void); /* NULL: no memory */
/* Where the record stands now; NULL: no room. */
const uint8_t *book_block_add(struct book_block *k, const struct book_record *r);

/* Numbers that were met. */
struct book_set {
	uint64_t *slots;
	size_t cap, n;
};
int book_set_add(struct book_set *s, uint64_t x); /* 1: new; 0: there already; -ENOMEM */
void book_set_finish(struct book_set *s);

/* Path -> record, which must outlive it. */
struct book_index {
	struct book_slot {
		uint64_t hash;
		const uint8_t *at; /* NULL: free */
	} *slots;
	size_t cap, n;
};
int book_index_put(struct book_index *x, const uint8_t *at, bool is_newer); /* is_newer: replaces another of its path */
bool book_index_find(const struct book_index *x, const char *path, struct book_record *ret);
void book_index_finish(struct book_index *x);

#endif
