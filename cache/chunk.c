/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/chunk.c - the table of chunks that have a slot, a fetch or a waiting read. Invariants in cache_i.h.
 *
 * A block that is waited for, and who owes it (invariant 5 of cache_i.h):
 *
 *   submit --> TOLD --cache_fetch()--> WANTED --published--> VALID --all others too--> answered
 *               ^  | overdue, or         | ended in vain       | evicted: no room to copy it aside, or
 *       cb.lost |  | file dropped        v                     v only some of the wait's blocks were there
 *               +--+<----------------- LOST (the chunk is in c->lost)
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
	ch->file_next = f->chunks;
	if (f->chunks != NULL)
		f->chunks->file_prev = ch;
	f->chunks = ch;
	return ch;
}

static void chunk_free_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock)
{
	struct chunk **at = chunk_bucket(c, ch->file, ch->no);

	while (*at != ch)
		at = &(*at)->hash_next;
	*at = ch->hash_next;
	if (ch->file_next != NULL)
		ch->file_next->file_prev = ch->file_prev;
	if (ch->file_prev != NULL)
		ch->file_prev->file_next = ch->file_next;
	else
		ch->file->chunks = ch->file_next;
	file_put_locked(c, ch->file);
	free(ch);
}

/* ---- who waits for what nobody brings ---- */

/* Blocks of the wait that are neither there nor owed. */
static struct bits wait_lost(const struct chunk *ch, const struct wait *w, const struct bits *wanted)
{
	struct bits lost = w->blocks;

	bits_remove(&lost, &ch->valid);
	bits_remove(&lost, wanted);
	bits_remove(&lost, &w->told);
	return lost;
}

void chunk_find_lost_locked(struct cache *c, struct chunk *ch)
{
	struct bits wanted, lost;

	if (ch->waits == NULL || ch->is_lost || c->is_stopping)
		return;
	wanted = chunk_wanted_locked(c, ch);
	for (const struct wait *w = ch->waits; w != NULL; w = w->next) {
		lost = wait_lost(ch, w, &wanted);
		if (bits_is_empty(&lost))
			continue;
		ch->is_lost = true;
		ch->lost_next = c->lost;
		c->lost = ch;
		fetch_token_locked(c);
		return;
	}
}

/* The whole wait, not just what it lacks: all of it is then ordered at one time, and none of it evicted for the rest. */
void chunk_tell_lost_locked(struct cache *c, struct chunk *ch, struct batch *b)
{
	struct bits wanted = chunk_wanted_locked(c, ch), lost;
	uint64_t from = UINT64_MAX, to = 0;

	for (struct wait *w = ch->waits; w != NULL; w = w->next) {
		lost = wait_lost(ch, w, &wanted);
		if (bits_is_empty(&lost))
			continue;
		bits_add(&w->told, &lost);
		from = hfs_min_u64(from, w->chunk_off);
		to = hfs_max_u64(to, (uint64_t)w->chunk_off + w->len);
	}
	b->overdue_ns = ch->overdue_ns;
	ch->overdue_ns = 0;
	if (to == 0)
		return;
	c->stats.lost++;
	c->stats.overdue += b->overdue_ns != 0;
	cache_file_ref(ch->file);
	b->lost_file = ch->file;
	b->lost = (struct cache_range){.off_bytes = (ch->no << c->chunk_shift) + from, .len_bytes = to - from};
}

/* ---- leaving ---- */

static void chunk_drop_data_locked(struct cache *c, struct chunk *ch) HFS_REQUIRES(c->lock)
{
	pool_release(c->pool, ch->slot);
	ch->slot = SLOT_NONE;
	ch->valid = (struct bits){{0}};
	chunk_find_lost_locked(c, ch);
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
		else if (ch->is_evicting && read_has_partial_locked(c, ch))
			chunk_drain_locked(c, ch);
		else if (ch->is_evicting)
			chunk_drop_data_locked(c, ch);
	}
	if (ch->fetches == NULL && slot_is_none(ch->slot))
		ch->is_evicting = false;
	if (slot_is_none(ch->slot) && ch->fetches == NULL && ch->waits == NULL && ch->n_holds == 0 &&
	    !ch->is_draining && !ch->is_lost)
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
	for (struct chunk *ch = f->chunks, *next; ch != NULL; ch = next) {
		next = ch->file_next;
		for (struct wait *w = ch->waits; w != NULL; w = w->next)
			w->told = (struct bits){{0}}; /* who owes it may have forgotten the file */
		chunk_find_lost_locked(c, ch);
		if (slot_is_none(ch->slot) && ch->fetches == NULL)
			continue;
		ch->is_evicting = true;
		chunk_settle_locked(c, ch);
	}
	bool has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (has_dead)
		fd_bury(c);
}

static bool is_idle(const struct chunk *ch)
{
	return !slot_is_none(ch->slot) && bits_is_empty(&ch->running) && ch->fetches == NULL && !ch->is_evicting;
}

static size_t n_idle(const struct chunk *bucket)
{
	size_t n = 0;

	for (; bucket != NULL; bucket = bucket->hash_next)
		n += is_idle(bucket);
	return n;
}

size_t cache_idle_list(struct cache *c, uint64_t *cursor, struct cache_idle *ret, size_t n)
{
	size_t k = 0;

	hfs_mutex_lock(&c->lock);
	/* Whole buckets; of one that is longer than n, its first. */
	for (; *cursor <= c->chunk_mask && k < n; ++*cursor) {
		if (k > 0 && k + n_idle(c->chunk_table[*cursor]) > n)
			break;
		for (struct chunk *ch = c->chunk_table[*cursor]; ch != NULL && k < n; ch = ch->hash_next) {
			if (!is_idle(ch))
				continue;
			cache_file_ref(ch->file);
			ret[k++] = (struct cache_idle){.file = ch->file, .chunk_no = ch->no};
		}
	}
	if (*cursor > c->chunk_mask)
		*cursor = 0;
	hfs_mutex_unlock(&c->lock);
	return k;
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
