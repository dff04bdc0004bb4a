/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/chunk.c - the table of chunks that have a slot, a fetch or a waiting read. Invariants in cache_i.h.
 */
#include "cache/cache_i.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"

#include <assert.h>
#include <stdlib.h>

static struct chunk **chunk_bucket(struct cache *c, const struct cache_file *f, uint64_t no)
{
	uint64_t h = ((uintptr_t)f >> 4) * UINT64_C(0x9e3779b97f4a7c15) + no * UINT64_C(0xd6e8feb86659fd93);

	return &c->chunk_table[(h ^ h >> 32) & c->chunk_mask];
}

struct chunk *chunk_find_locked(struct cache *c, const struct cache_file *f, uint64_t no)
{
	struct chunk *ch = *chunk_bucket(c, f, no);

	while (ch != NULL && (ch->file != f || ch->no != no))
		ch = ch->hash_next;
	return ch;
}

struct chunk *chunk_get_locked(struct cache *c, struct cache_file *f, uint64_t no)
{
	struct chunk *ch = chunk_find_locked(c, f, no);
	struct chunk **bucket;

	if (ch != NULL)
		return ch;
	ch = calloc(1, sizeof(*ch));
	if (ch == NULL)
		return NULL;
	cache_file_ref(f);
	ch->file = f;
	ch->no = no;
	ch->slot = SLOT_NONE;
	bucket = chunk_bucket(c, f, no);
	ch->hash_next = *bucket;
	*bucket = ch;
	return ch;
}

static void chunk_free_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock)
{
	struct chunk **at = chunk_bucket(c, ch->file, ch->no);

	while (*at != ch)
		at = &(*at)->hash_next;
	*at = ch->hash_next;
	file_put_locked(c, ch->file);
	free(ch);
}

static void chunk_drop_data_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock)
{
	pool_release(c->pool, ch->slot);
	ch->slot = SLOT_NONE;
	ch->valid = (struct bits){{0}};
	fetch_wake_slots_locked(c);
}

static void chunk_drain_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock)
{
	if (ch->is_draining)
		return;
	ch->is_draining = true;
	ch->drain_next = c->drain;
	c->drain = ch;
	fetch_token_locked(c);
}

void chunk_settle_locked(struct cache *c, struct chunk *ch)
{
	/* Orders that have not begun do not keep the data: one that waits for a slot would wait for ever. */
	if (!slot_is_none(ch->slot) && bits_is_empty(&ch->running)) {
		if (bits_is_empty(&ch->valid))
			chunk_drop_data_locked(c, ch);
		else if (ch->is_evicting && read_has_partial_locked(ch))
			chunk_drain_locked(c, ch);
		else if (ch->is_evicting)
			chunk_drop_data_locked(c, ch);
	}
	if (ch->fetches == NULL && slot_is_none(ch->slot))
		ch->is_evicting = false;
	if (slot_is_none(ch->slot) && ch->fetches == NULL && ch->waits == NULL && ch->n_holds == 0 && !ch->is_draining)
		chunk_free_locked(c, ch);
}

void cache_evict(struct cache *c, struct cache_file *f, uint64_t chunk_no)
{
	struct chunk *ch;
	bool has_dead;

	hfs_mutex_lock(&c->lock);
	ch = chunk_find_locked(c, f, chunk_no);
	if (ch != NULL && (!slot_is_none(ch->slot) || ch->fetches != NULL)) {
		ch->is_evicting = true;
		chunk_settle_locked(c, ch);
	}
	has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (has_dead)
		fd_bury(c);
}

uint32_t chunk_len(const struct cache *c, const struct cache_file *f, uint64_t no)
{
	return hfs_chunk_len(f->id.size_bytes, c->cfg.chunk_bytes, no);
}

struct bits chunk_blocks(const struct cache *c, uint32_t off_bytes, uint32_t len_bytes)
{
	uint32_t first = off_bytes / c->block_bytes;
	uint64_t end = hfs_div_up((uint64_t)off_bytes + len_bytes, c->block_bytes);

	return bits_range(first, (unsigned)(end - first));
}

struct bits chunk_wanted_locked(struct cache *c, const struct chunk *ch)
{
	struct bits wanted = ch->running;

	(void)c;
	for (const struct fetch *f = ch->fetches; f != NULL; f = f->chunk_next)
		if (f->state != FETCH_ENDING)
			bits_add(&wanted, &f->blocks);
	return wanted;
}

void cache_file_drop(struct cache *c, struct cache_file *f)
{
	hfs_mutex_lock(&c->lock);
	for (uint64_t i = 0; i <= c->chunk_mask; i++) {
		for (struct chunk *ch = c->chunk_table[i], *next; ch != NULL; ch = next) {
			next = ch->hash_next;
			if (ch->file != f || (slot_is_none(ch->slot) && ch->fetches == NULL))
				continue;
			ch->is_evicting = true;
			chunk_settle_locked(c, ch);
		}
	}
	bool has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (has_dead)
		fd_bury(c);
}

void cache_file_fail(struct cache *c, struct cache_file *f, uint64_t chunk_no, int err)
{
	struct batch b = {0};

	hfs_mutex_lock(&c->lock);
	struct chunk *ch = chunk_find_locked(c, f, chunk_no);
	if (ch != NULL) {
		struct bits wanted = chunk_wanted_locked(c, ch), lost = bits_range(0, BITS_MAX);

		bits_remove(&lost, &wanted);
		read_fail_locked(c, ch, &lost, err, &b);
		chunk_settle_locked(c, ch);
	}
	bool has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	read_answer(c, b.ready);
	if (has_dead) /* the caller may be a thread that must not wait for a close */
		fd_bury(c);
}
