/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_index.c - what the tier holds, in memory: 80 bytes and a list head for a path, two bits for a chunk.
 *
 * Entries live in slabs that never move; a shard is a table of list heads that doubles by itself, so that growth never
 * holds the lock for more than 1/256 of the whole. All functions need t->lock.
 */
#include "cache/tier_i.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct tier_shard *shard_of(struct tier *t, struct tier_key key)
{
	return &t->shards[key.lo % TIER_SHARDS];
}

static uint32_t *head_of(struct tier_shard *s, struct tier_key key)
{
	return &s->heads[(key.lo >> 8) & (s->n_heads - 1)];
}

struct tier_entry *tier_entry_at(struct tier *t, uint32_t no)
{
	return &t->slabs[no / TIER_SLAB][no % TIER_SLAB];
}

struct tier_entry *tier_entry_find(struct tier *t, struct tier_key key)
{
	struct tier_shard *s = shard_of(t, key);
	struct tier_entry *e;

	hfs_mutex_assert_held(&t->lock);
	if (s->n_heads == 0)
		return NULL;
	for (uint32_t no = *head_of(s, key); no != TIER_NONE; no = e->next) {
		e = tier_entry_at(t, no);
		if (tier_key_equal(e->key, key))
			return e;
	}
	return NULL;
}

/* Failing to grow only makes lists longer, but there must be a first table. */
static bool shard_grow(struct tier *t, struct tier_shard *s)
{
	struct tier_shard bigger = {.n_heads = s->n_heads == 0 ? 16 : s->n_heads * 2, .n_entries = s->n_entries};
	struct tier_entry *e;
	uint32_t next, *head;

	bigger.heads = malloc(bigger.n_heads * sizeof(*bigger.heads));
	if (bigger.heads == NULL)
		return s->n_heads != 0;
	memset(bigger.heads, 0xff, bigger.n_heads * sizeof(*bigger.heads));
	for (uint32_t i = 0; i < s->n_heads; i++) {
		for (uint32_t no = s->heads[i]; no != TIER_NONE; no = next) {
			e = tier_entry_at(t, no);
			next = e->next;
			head = head_of(&bigger, e->key);
			e->next = *head;
			*head = no;
		}
	}
	free(s->heads);
	*s = bigger;
	return true;
}

static bool slab_add(struct tier *t)
{
	uint32_t cap = t->slabs_cap == 0 ? 64 : t->slabs_cap * 2;
	struct tier_entry *slab, **slabs;

	if (t->n_slabs >= TIER_NONE / TIER_SLAB - 1)
		return false;
	if (t->n_slabs == t->slabs_cap) {
		slabs = realloc(t->slabs, cap * sizeof(struct tier_entry *));
		if (slabs == NULL)
			return false;
		t->slabs = slabs;
		t->slabs_cap = cap;
	}
	slab = malloc(TIER_SLAB * sizeof(*slab));
	if (slab == NULL)
		return false;
	for (uint32_t i = 0; i < TIER_SLAB; i++) {
		slab[i].next = t->free_entry;
		t->free_entry = t->n_slabs * TIER_SLAB + i;
	}
	t->slabs[t->n_slabs++] = slab;
	return true;
}

struct tier_entry *tier_entry_add(struct tier *t, struct tier_key key)
{
	struct tier_shard *s = shard_of(t, key);
	struct tier_entry *e;
	uint32_t no, *head;

	hfs_mutex_assert_held(&t->lock);
	if (s->n_entries >= s->n_heads && !shard_grow(t, s))
		return NULL;
	if (t->free_entry == TIER_NONE && !slab_add(t))
		return NULL;
	no = t->free_entry;
	e = tier_entry_at(t, no);
	t->free_entry = e->next;
	head = head_of(s, key);
	*e = (struct tier_entry){.key = key, .next = *head, .small.pack = TIER_NONE};
	*head = no;
	s->n_entries++;
	return e;
}

void tier_entry_remove(struct tier *t, struct tier_entry *e)
{
	struct tier_shard *s = shard_of(t, e->key);
	uint32_t *at = head_of(s, e->key);
	uint32_t no;

	hfs_mutex_assert_held(&t->lock);
	if (!e->is_big)
		tier_entry_leave(t, e);
	while (tier_entry_at(t, *at) != e)
		at = &tier_entry_at(t, *at)->next;
	no = *at;
	*at = e->next;
	e->next = t->free_entry;
	t->free_entry = no;
	s->n_entries--;
}

static uint32_t number_of(struct tier *t, const struct tier_entry *e)
{
	uint32_t no = shard_of(t, e->key)->heads == NULL ? TIER_NONE : *head_of(shard_of(t, e->key), e->key);

	while (tier_entry_at(t, no) != e)
		no = tier_entry_at(t, no)->next;
	return no;
}

void tier_entry_join(struct tier *t, struct tier_entry *e, struct tier_pack *p, uint32_t off_bytes)
{
	uint32_t no = number_of(t, e);

	e->small.pack = p->index;
	e->small.off_bytes = off_bytes;
	e->pack_prev = TIER_NONE;
	e->pack_next = p->first;
	if (p->first != TIER_NONE)
		tier_entry_at(t, p->first)->pack_prev = no;
	p->first = no;
	p->n_live++;
	p->live_bytes += tier_item_total(e->path_bytes, e->id.size_bytes);
	t->stats.files_small++;
}

void tier_entry_leave(struct tier *t, struct tier_entry *e)
{
	struct tier_pack *p;

	if (e->small.pack == TIER_NONE)
		return;
	p = t->packs[e->small.pack];
	*(e->pack_prev != TIER_NONE ? &tier_entry_at(t, e->pack_prev)->pack_next : &p->first) = e->pack_next;
	if (e->pack_next != TIER_NONE)
		tier_entry_at(t, e->pack_next)->pack_prev = e->pack_prev;
	p->n_live--;
	p->live_bytes -= tier_item_total(e->path_bytes, e->id.size_bytes);
	t->stats.files_small--;
	e->small.pack = TIER_NONE;
}

int tier_dataset_index(struct tier *t, uint64_t dataset)
{
	for (uint32_t i = 0; i < t->n_datasets; i++)
		if (t->datasets[i] == dataset)
			return (int)i;
	if (t->n_datasets == TIER_DATASETS_MAX)
		return -ENOSPC;
	t->datasets[t->n_datasets] = dataset;
	return (int)t->n_datasets++;
}

/* ---- chunks of a big file ---- */

static uint64_t bit_of(uint32_t chunk_no)
{
	return UINT64_C(1) << (chunk_no % 64);
}

static struct tier_leaf *leaf_of(const struct tier_big *b, uint64_t chunk_no)
{
	return chunk_no / TIER_LEAF_CHUNKS < b->n_leaves ? b->leaves[chunk_no / TIER_LEAF_CHUNKS] : NULL;
}

bool tier_big_has(const struct tier_big *b, uint64_t chunk_no)
{
	const struct tier_leaf *l = leaf_of(b, chunk_no);

	return l != NULL && (l->present[chunk_no % TIER_LEAF_CHUNKS / 64] & bit_of((uint32_t)chunk_no)) != 0;
}

static int leaf_make(struct tier_big *b, uint32_t no)
{
	struct tier_leaf **leaves;
	uint32_t n = no + 1;

	if (n > b->n_leaves) {
		if (b->n_leaves > 0)
			n = (uint32_t)hfs_max_u64(
				n, hfs_min_u64(b->n_leaves * 2, hfs_div_up(b->n_chunks, TIER_LEAF_CHUNKS)));
		leaves = realloc(b->leaves, n * sizeof(struct tier_leaf *));
		if (leaves == NULL)
			return -ENOMEM;
		memset(leaves + b->n_leaves, 0, (n - b->n_leaves) * sizeof(struct tier_leaf *));
		b->leaves = leaves;
		b->n_leaves = n;
	}
	if (b->leaves[no] == NULL)
		b->leaves[no] = calloc(1, sizeof(struct tier_leaf));
	return b->leaves[no] != NULL ? 0 : -ENOMEM;
}

int tier_big_set(struct tier *t, struct tier_big *b, uint32_t chunk_no)
{
	struct tier_leaf *l;

	hfs_mutex_assert_held(&t->lock);
	assert(chunk_no < b->n_chunks);
	HFS_TRY(leaf_make(b, chunk_no / TIER_LEAF_CHUNKS));
	l = leaf_of(b, chunk_no);
	if ((l->present[chunk_no % TIER_LEAF_CHUNKS / 64] & bit_of(chunk_no)) != 0)
		return 0;
	l->present[chunk_no % TIER_LEAF_CHUNKS / 64] |= bit_of(chunk_no);
	b->n_present++;
	t->stats.chunks++;
	return 0;
}

bool tier_big_clear(struct tier *t, struct tier_big *b, uint32_t chunk_no)
{
	struct tier_leaf *l = leaf_of(b, chunk_no);
	uint32_t w = chunk_no % TIER_LEAF_CHUNKS / 64;

	hfs_mutex_assert_held(&t->lock);
	if (l == NULL || (l->present[w] & bit_of(chunk_no)) == 0)
		return false;
	if ((l->verified[w] & bit_of(chunk_no)) != 0)
		b->n_verified--;
	l->present[w] &= ~bit_of(chunk_no);
	l->verified[w] &= ~bit_of(chunk_no);
	b->n_present--;
	t->stats.chunks--;
	return true;
}

void tier_big_verify(struct tier_big *b, uint32_t chunk_no)
{
	struct tier_leaf *l = leaf_of(b, chunk_no);
	uint32_t w = chunk_no % TIER_LEAF_CHUNKS / 64;

	if (l == NULL || (l->present[w] & bit_of(chunk_no)) == 0 || (l->verified[w] & bit_of(chunk_no)) != 0)
		return;
	l->verified[w] |= bit_of(chunk_no);
	b->n_verified++;
}

uint32_t tier_big_last(const struct tier_big *b, uint32_t below)
{
	uint32_t leaf_no = b->n_leaves;

	if (below / TIER_LEAF_CHUNKS < leaf_no)
		leaf_no = below / TIER_LEAF_CHUNKS + 1;
	while (leaf_no-- > 0) {
		if (b->leaves[leaf_no] == NULL)
			continue;
		for (uint32_t i = TIER_LEAF_CHUNKS; i-- > 0;) {
			uint32_t no = leaf_no * TIER_LEAF_CHUNKS + i;

			if (no < below && tier_big_has(b, no))
				return no;
		}
	}
	return TIER_NONE;
}

/* ---- operations ---- */

static struct tier_op **bucket_of(struct tier *t, const struct tier_obj *o, uint64_t where)
{
	uint64_t x = ((uint64_t)(uintptr_t)o >> 4) + where * UINT64_C(0x9e3779b97f4a7c15);

	return &t->ops[(x ^ x >> 32) % TIER_OP_BUCKETS];
}

void tier_op_begin(struct tier *t, struct tier_op *op, struct tier_obj *o, uint64_t where, enum tier_op_kind kind)
{
	struct tier_op **head = bucket_of(t, o, where);

	hfs_mutex_assert_held(&t->lock);
	*op = (struct tier_op){.next = *head, .obj = o, .where = where, .kind = kind};
	*head = op;
	o->n_users++;
}

void tier_op_end(struct tier *t, struct tier_op *op)
{
	struct tier_op **at = bucket_of(t, op->obj, op->where);

	hfs_mutex_assert_held(&t->lock);
	while (*at != op)
		at = &(*at)->next;
	*at = op->next;
	tier_obj_release_locked(t, op->obj);
	if (op->kind == TIER_OP_READ && t->drops != NULL)
		tier_care_soon_locked(t);
}

bool tier_op_busy(struct tier *t, const struct tier_obj *o, uint64_t where, int kind)
{
	for (struct tier_op *op = *bucket_of(t, o, where); op != NULL; op = op->next)
		if (op->obj == o && op->where == where && (kind < 0 || (int)op->kind == kind))
			return true;
	return false;
}

/* ---- figures, end ---- */

uint64_t tier_index_bytes(const struct tier *t)
{
	uint64_t n = (uint64_t)t->n_slabs * TIER_SLAB * sizeof(struct tier_entry) + t->slabs_cap * sizeof(void *) +
		     t->packs_cap * sizeof(void *);

	for (uint32_t i = 0; i < TIER_SHARDS; i++)
		n += t->shards[i].n_heads * sizeof(uint32_t);
	for (const struct tier_obj *o = t->lru_first; o != NULL; o = o->lru_next) {
		const struct tier_big *b = (const struct tier_big *)o;

		if (o->is_pack) {
			n += sizeof(struct tier_pack);
			continue;
		}
		n += sizeof(*b) + b->n_leaves * sizeof(void *);
		for (uint32_t i = 0; i < b->n_leaves; i++)
			n += b->leaves[i] != NULL ? sizeof(struct tier_leaf) : 0;
	}
	return n;
}

void tier_index_finish(struct tier *t)
{
	for (uint32_t i = 0; i < TIER_SHARDS; i++)
		free(t->shards[i].heads);
	for (uint32_t i = 0; i < t->n_slabs; i++)
		free(t->slabs[i]);
	free(t->slabs);
	free(t->packs);
}
