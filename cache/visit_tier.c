/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/visit_tier.c - chunks from the disk tier into slots, and from slots to it.
 *
 * 1. The generation asked for is one that was seen at the origin, and the tier proves its bytes (tier.h, 1): a hit needs no
 *    descriptor and no call of the origin.
 * 2. A miss leaves nothing behind: the order then goes on as if the tier had not been asked, and does not ask again.
 * 3. Only valid bytes of a slot go to the tier, copied under a pin.
 * 4. A whole chunk is read straight into its slot, which is pinned meanwhile. If the disk hangs, the chunk gets another slot and
 *    that one comes back to the pool when the disk has let go of it; whoever plans with the slots is told of both. At most half
 *    of the slots are lent at a time.
 * 5. A small file that the tier has is not even opened when its name comes near: it is looked at, and that is all its bytes need.
 * 6. As the tier verifies chunks as a whole, it is asked for whole ones: what was ordered of it and the rest.
 *
 * Callers: visit.c; fs/engine*.c. Lock: not held while the tier reads or copies.
 */
#include "cache/visit_i.h"

#include "cache/base/err.h"
#include "cache/tier.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- from it ---- */

/* From a thread of the tier. */
static void loan_back(void *ctx, void *arg)
{
	struct cache *c = ctx;
	const struct slot_no slot = {(uint32_t)(uintptr_t)arg};

	hfs_mutex_lock(&c->lock);
	if (pool_unpin(c->pool, slot))
		fetch_wake_slots_locked(c);
	hfs_mutex_unlock(&c->lock);
	slots_lent(c, -1);
	hfs_mutex_lock(&c->lock);
	c->n_lent--; /* last: then the cache may go */
	hfs_cond_broadcast(&c->backoff);
	hfs_mutex_unlock(&c->lock);
}

/* The slot, if all of the chunk is to come into it, and the others would do for everybody should the disk hang. */
static struct slot_no whole_slot_locked(const struct cache *c, const struct run *run) HFS_REQUIRES(c->lock)
{
	const struct chunk *ch = run->fetches[0]->chunk;

	if (c->n_lent >= pool_slots_total(c->pool) / 2)
		return SLOT_NONE;
	return run->n_pieces == 1 && run->pieces[0].len == chunk_len(c, ch->file, ch->no) ? ch->slot : SLOT_NONE;
}

/* No lock. */
static bool read_whole(struct cache *c, struct run *run, const char *path, struct slot_no slot)
{
	const struct tier_loan loan = {.back = loan_back, .ctx = c, .arg = (void *)(uintptr_t)slot.no};
	uint64_t no = run->pieces[0].off_bytes >> c->chunk_shift;
	enum tier_got got = tier_read_into(c->cfg.tier, &run->file->id, path, no, run->pieces[0].buf, &loan);

	run->is_lent = got == TIER_LENT;
	workq_progress(c->workq);
	return got == TIER_HIT;
}

static bool read_pieces(struct cache *c, const struct run *run, const char *path)
{
	bool is_hit = true;

	for (unsigned i = 0; i < run->n_pieces && is_hit; i++) {
		const struct piece *p = &run->pieces[i];
		uint64_t no = p->off_bytes >> c->chunk_shift;

		is_hit = tier_read(c->cfg.tier, &run->file->id, path, no, (uint32_t)(p->off_bytes - (no << c->chunk_shift)),
				   p->len, p->buf);
	}
	workq_progress(c->workq);
	return is_hit;
}

/* One fetch's run, as if it had not begun. */
static void run_undo_locked(struct cache *c, struct run *run, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct fetch *f = run->fetches[0], *next;
	struct chunk *ch = f->chunk;

	if (run->is_lent) { /* nothing of it is valid */
		pool_release(c->pool, ch->slot);
		ch->slot = SLOT_NONE;
		b->n_lent++;
	}
	c->stats.inflight_bytes -= run->bytes;
	f->origin_bytes -= run->bytes;
	f->has_fetched = false;
	run->n = run->n_pieces = 0;
	run->bytes = 0;
	ch->n_holds++;
	bits_remove(&ch->running, &run->sets[0]);
	if (bits_is_empty(&ch->running)) {
		ch->file->n_filling--;
		fetch_wake_file_locked(c, ch->file);
	}
	for (struct fetch *other = ch->fetches; other != NULL; other = next) {
		next = other->chunk_next;
		if (other->state == FETCH_JOINED)
			fetch_review_locked(c, other, b);
	}
	ch->n_holds--;
	chunk_settle_locked(c, ch); /* f keeps it */
}

/* What f lacks is begun: reads it, with the lock left. */
static bool read_run_locked(struct cache *c, struct run *run, const char *path) HFS_REQUIRES(c->lock)
{
	const struct slot_no slot = whole_slot_locked(c, run);
	bool is_hit;

	if (!slot_is_none(slot)) {
		pool_pin(c->pool, slot);
		c->n_lent++;
	}
	hfs_mutex_unlock(&c->lock);
	is_hit = slot_is_none(slot) ? read_pieces(c, run, path) : read_whole(c, run, path, slot);
	hfs_mutex_lock(&c->lock);
	if (!slot_is_none(slot) && !run->is_lent) {
		c->n_lent--;
		(void)pool_unpin(c->pool, slot); /* the chunk has it still */
	}
	return is_hit;
}

bool run_from_tier_locked(struct cache *c, struct fetch *f, struct run *run, struct batch *b)
{
	const struct bits ordered = f->blocks;
	struct bits all;
	bool is_hit = false;
	char *path;

	if (c->cfg.tier == NULL || f->is_tier_tried)
		return false;
	path = cache_file_path(c, f->file);
	if (path == NULL || !tier_lookup(c->cfg.tier, &f->file->id, path, f->chunk->no))
		goto done;
	all = chunk_blocks(c, 0, chunk_len(c, f->file, f->chunk->no));
	bits_add(&f->blocks, &all);
	if (!run_begin_locked(c, f, run, b)) {
		f->blocks = ordered;
		is_hit = true;
		goto done;
	}
	f->is_tier_tried = true;
	cache_file_ref(run->file); /* the fetch may end below */
	is_hit = read_run_locked(c, run, path);
	if (is_hit) {
		f->origin_bytes -= run->bytes;
		run_finish_locked(c, run, 0, b);
	} else {
		f->is_tier_missed = true;
		f->blocks = ordered;
		run_undo_locked(c, run, b);
	}
	file_put_locked(c, run->file);
done:
	free(path);
	return is_hit;
}

bool visit_look_up_kept(struct cache *c, struct fetch *f)
{
	struct tier *t = c->cfg.tier;

	return t != NULL && tier_has_small(t, f->path) && origin_stat(c->cfg.origin, f->path, true, &f->attr) == 0 &&
	       S_ISREG(f->attr.mode) && f->attr.id.size_bytes <= c->cfg.chunk_bytes &&
	       tier_lookup(t, &f->attr.id, f->path, 0);
}

/* ---- to it ---- */

/* The chunk's slot, pinned, if it holds all of it. */
static struct slot_no pin_whole(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t len_bytes)
{
	struct bits lack = chunk_blocks(c, 0, len_bytes);
	struct slot_no slot = SLOT_NONE;
	struct chunk *ch;

	hfs_mutex_lock(&c->lock);
	ch = chunk_find_locked(c, f, chunk_no);
	if (ch != NULL && !slot_is_none(ch->slot)) {
		bits_remove(&lack, &ch->valid);
		if (bits_is_empty(&lack)) {
			slot = ch->slot;
			pool_pin(c->pool, slot);
		}
	}
	hfs_mutex_unlock(&c->lock);
	return slot;
}

int cache_tier_hold(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t *ret_slot)
{
	struct slot_no slot = pin_whole(c, f, chunk_no, chunk_len(c, f, chunk_no));

	if (slot_is_none(slot))
		return -ENOENT;
	*ret_slot = slot.no;
	return 0;
}

int cache_tier_admit(struct cache *c, struct cache_file *f, uint64_t chunk_no, uint32_t slot_no, uint64_t cookie)
{
	const struct slot_no slot = {slot_no};
	uint32_t len_bytes = chunk_len(c, f, chunk_no);
	char *path = cache_file_path(c, f);
	int err;

	err = path == NULL ? -ENOMEM
			   : tier_admit(c->cfg.tier, &f->id, path, chunk_no, pool_slot_data(c->pool, slot), len_bytes, cookie);
	free(path);
	hfs_mutex_lock(&c->lock);
	if (pool_unpin(c->pool, slot))
		fetch_wake_slots_locked(c);
	hfs_mutex_unlock(&c->lock);
	return err;
}

void cache_tier_drop(struct cache *c, struct cache_file *f, uint64_t chunk_no)
{
	char *path = cache_file_path(c, f);

	if (path != NULL)
		tier_drop(c->cfg.tier, &f->id, path, chunk_no);
	free(path);
}

uint64_t cache_tier_map(struct cache *c, struct cache_file *f, uint64_t *bits, size_t n_words)
{
	char *path = cache_file_path(c, f);
	uint64_t n = 0;

	if (path != NULL)
		n = tier_map(c->cfg.tier, &f->id, path, bits, n_words);
	free(path);
	return n;
}
