/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book_table.c - pages, the set of what is on the disk, and the index by path (book_i.h). Open addressing, at most half full.
 */
#include "fs/book_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CAP_FIRST 1024u

struct book_block *book_block_new(void)
{
	struct book_block *k = malloc(sizeof(*k));

	if (k) {
		k->next = NULL;
		k->no = k->n_records = 0;
		k->n_bytes = sizeof(struct book_raw_page);
		k->is_dirty = false;
		book_page_encode(k->data, 0);
	}
	return k;
}

const uint8_t *book_block_add(struct book_block *k, const struct book_record *r)
{
	size_t n = book_record_bytes(r);
	uint8_t *at = k->data + k->n_bytes;

	if (n > sizeof(k->data) - k->n_bytes)
		return NULL;
	book_record_encode(at, r);
	k->n_bytes += n;
	book_page_encode(k->data, ++k->n_records);
	k->is_dirty = true;
	return at;
}

/* ---- the set; 0 stands for a free slot, and for the number 0 by accident: then it is noted twice ---- */

/* Where x stands, or would. */
static uint64_t *set_slot(uint64_t *slots, size_t cap, uint64_t x)
{
	size_t i = x & (cap - 1);

	while (slots[i] != 0 && slots[i] != x)
		i = (i + 1) & (cap - 1);
	return &slots[i];
}

static int set_grow(struct book_set *s)
{
	size_t cap = s->cap ? s->cap * 2 : CAP_FIRST;
	uint64_t *slots = calloc(cap, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < s->cap; i++)
		if (s->slots[i] != 0)
			*set_slot(slots, cap, s->slots[i]) = s->slots[i];
	free(s->slots);
	s->slots = slots;
	s->cap = cap;
	return 0;
}

int book_set_add(struct book_set *s, uint64_t x)
{
	uint64_t *at;

	if (s->n * 2 >= s->cap)
		HFS_TRY(set_grow(s));
	at = set_slot(s->slots, s->cap, x);
	if (*at != 0)
		return 0;
	*at = x;
	s->n++;
	return 1;
}

void book_set_finish(struct book_set *s)
{
	free(s->slots);
	*s = (struct book_set){0};
}

/* ---- the index ---- */

static bool record_at(const uint8_t *at, struct book_record *ret)
{
	return book_record_decode(at, BOOK_NOTE_BYTES, ret) > 0; /* was decoded before, inside its page */
}

static struct book_slot *slot_of(const struct book_index *x, uint64_t hash, const char *path, size_t path_bytes)
{
	struct book_record r;

	for (size_t i = hash & (x->cap - 1);; i = (i + 1) & (x->cap - 1)) {
		struct book_slot *s = &x->slots[i];

		if (!s->at)
			return s;
		if (s->hash == hash && record_at(s->at, &r) && r.path_bytes == path_bytes && memcmp(r.path, path, path_bytes) == 0)
			return s;
	}
}

static int index_grow(struct book_index *x)
{
	struct book_index bigger = {.cap = x->cap ? x->cap * 2 : CAP_FIRST, .n = x->n};

	bigger.slots = calloc(bigger.cap, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < x->cap; i++) {
		size_t to = x->slots[i].hash & (bigger.cap - 1);

		if (!x->slots[i].at)
			continue;
		while (bigger.slots[to].at)
			to = (to + 1) & (bigger.cap - 1);
		bigger.slots[to] = x->slots[i];
	}
	free(x->slots);
	*x = bigger;
	return 0;
}

int book_index_put(struct book_index *x, const uint8_t *at, bool is_newer)
{
	struct book_record r;
	struct book_slot *s;
	uint64_t hash;

	if (!record_at(at, &r))
		return -EINVAL;
	if (x->n * 2 >= x->cap)
		HFS_TRY(index_grow(x));
	hash = XXH3_64bits(r.path, r.path_bytes);
	s = slot_of(x, hash, r.path, r.path_bytes);
	if (s->at && !is_newer)
		return 0;
	x->n += s->at == NULL;
	*s = (struct book_slot){.hash = hash, .at = at};
	return 0;
}

bool book_index_find(const struct book_index *x, const char *path, struct book_record *ret)
{
	size_t n = strlen(path);
	const struct book_slot *s;

	if (x->cap == 0)
		return false;
	s = slot_of(x, XXH3_64bits(path, n), path, n);
	return s->at && record_at(s->at, ret);
}

void book_index_finish(struct book_index *x)
{
	free(x->slots);
	*x = (struct book_index){0};
}
