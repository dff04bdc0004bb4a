/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/read.c - reads: served from slots, or parked on the chunks they lack.
 *
 * A parked read has one wait for each chunk it touches. A wait is PARKED (in its chunk's list, whether its bytes are
 * valid already or not), HAVE (its bytes were copied to the bounce buffer, because the chunk had to go first), or, when
 * the read is complete, PINNED.
 *
 * 1. A read is complete when each wait is HAVE or its blocks are valid. Then, in one step under the lock, it leaves
 *    all lists and pins what it needs; nobody else can answer or withdraw it from there on (done exactly once).
 * 2. While it is parked it pins nothing: slots are never held by a reader that waits for another slot.
 * 3. Bytes are copied only when a chunk is evicted from under a read that still lacks another one: usually none. The
 *    copies of all reads are at most c->bounce_max_bytes; beyond that a chunk goes without, its blocks are lost (chunk.c)
 *    and come again. Who has a buffer keeps it until it is answered, so these get on.
 * 4. The path of a hit allocates nothing.
 */
#include "cache/cache_i.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OVERDUE_NS HFS_NS_PER_S
#define CHUNKS_MAX (READ_BYTES_MAX / 65536 + 1) /* chunks are at least 64 KiB */

/* The part of a read that lies in one chunk. */
struct part {
	uint64_t chunk_no;
	uint32_t chunk_off, read_off, len;
};

static struct part part_at(const struct cache *c, const struct cache_read *r, uint32_t read_off)
{
	uint64_t at = r->off_bytes + read_off;
	struct part p = {.chunk_no = at >> c->chunk_shift,
			 .chunk_off = (uint32_t)(at & (c->cfg.chunk_bytes - 1)),
			 .read_off = read_off};

	p.len = (uint32_t)hfs_min_u64(c->cfg.chunk_bytes - p.chunk_off, r->len_bytes - read_off);
	return p;
}

static unsigned n_chunks(const struct cache *c, const struct cache_read *r)
{
	uint64_t last = r->off_bytes + r->len_bytes - 1;

	return (unsigned)((last >> c->chunk_shift) - (r->off_bytes >> c->chunk_shift) + 1);
}

/* ---- hits ---- */

/* What a hit holds: arrays on the caller's stack, one element a chunk. */
struct hit {
	int n;
	struct iovec *iov;
	struct slot_no *slots;
};

/* True: all of it is valid; slots are set, not yet pinned. */
static bool hit_find_locked(struct cache *c, const struct cache_read *r, struct hit *h) HFS_REQUIRES(c->lock)
{
	struct chunk *ch;
	struct bits blocks;
	struct part p;

	h->n = 0;
	for (uint32_t off = 0; off < r->len_bytes; off += p.len) {
		p = part_at(c, r, off);
		ch = chunk_find_locked(c, r->file, p.chunk_no);
		if (ch == NULL)
			return false;
		blocks = chunk_blocks(c, p.chunk_off, p.len);
		if (!bits_cover(&ch->valid, &blocks))
			return false;
		h->slots[h->n] = ch->slot;
		h->iov[h->n].iov_base = (uint8_t *)pool_slot_data(c->pool, ch->slot) + p.chunk_off;
		h->iov[h->n++].iov_len = p.len;
	}
	return true;
}

static void hit_answer(struct cache *c, struct cache_read *r, struct hit *h) HFS_EXCLUDES(c->lock)
{
	bool is_freed = false;

	r->done(r, 0, h->iov, h->n);
	hfs_mutex_lock(&c->lock);
	for (int i = 0; i < h->n; i++)
		is_freed |= pool_unpin(c->pool, h->slots[i]);
	if (is_freed)
		fetch_wake_slots_locked(c);
	hfs_mutex_unlock(&c->lock);
}

/* ---- parking ---- */

static void wait_link(struct chunk *ch, struct wait *w)
{
	w->chunk = ch;
	w->prev = NULL;
	w->next = ch->waits;
	if (w->next != NULL)
		w->next->prev = w;
	ch->waits = w;
}

static void wait_unlink(struct wait *w)
{
	if (w->next != NULL)
		w->next->prev = w->prev;
	if (w->prev != NULL)
		w->prev->next = w->next;
	else if (w->chunk != NULL)
		w->chunk->waits = w->next;
	w->next = w->prev = NULL;
	w->chunk = NULL;
}

static void parked_link_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	p->prev = NULL;
	p->next = c->parked;
	if (p->next != NULL)
		p->next->prev = p;
	c->parked = p;
	c->stats.parked_reads++;
}

static void parked_unlink_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	if (p->next != NULL)
		p->next->prev = p->prev;
	if (p->prev != NULL)
		p->prev->next = p->next;
	else
		c->parked = p->next;
	c->stats.parked_reads--;
}

static void parked_free_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	if (p->bounce != NULL)
		c->stats.bounce_bytes -= p->len_bytes;
	free(p->bounce);
	free(p);
}

/* Nobody but a copying thread refers to p any more. */
static void parked_let_go_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	p->is_orphan = true;
	if (p->n_copying == 0)
		parked_free_locked(c, p);
}

/* Takes p's waits out of their chunks; `skip` is settled by the caller, who may be walking its waits. */
static void leave_chunks_locked(struct cache *c, struct parked *p, const struct chunk *skip) HFS_REQUIRES(c->lock)
{
	struct chunk *ch;

	for (uint32_t i = 0; i < p->n_waits; i++) {
		ch = p->waits[i].chunk;
		if (ch == NULL)
			continue;
		wait_unlink(&p->waits[i]);
		if (ch != skip)
			chunk_settle_locked(c, ch);
	}
}

static struct parked *parked_new_locked(struct cache *c, struct cache_read *r) HFS_REQUIRES(c->lock)
{
	unsigned n = n_chunks(c, r);
	struct parked *p = calloc(1, sizeof(*p) + n * sizeof(p->waits[0]));
	struct chunk *ch;
	struct part part;
	struct wait *w;

	if (p == NULL)
		return NULL;
	p->r = r;
	p->len_bytes = r->len_bytes;
	p->since_ns = hfs_now_ns();
	for (uint32_t off = 0; off < r->len_bytes; off += part.len) {
		part = part_at(c, r, off);
		ch = chunk_get_locked(c, r->file, part.chunk_no);
		if (ch == NULL)
			break;
		w = &p->waits[p->n_waits++];
		w->p = p;
		w->blocks = chunk_blocks(c, part.chunk_off, part.len);
		w->chunk_off = part.chunk_off;
		w->read_off = part.read_off;
		w->len = part.len;
		wait_link(ch, w);
	}
	if (p->n_waits == n)
		return p;
	leave_chunks_locked(c, p, NULL);
	free(p);
	return NULL;
}

/* What p lacks and nobody brings; from now on the caller owes it. */
static void missing_locked(struct cache *c, struct parked *p, struct cache_range *ret) HFS_REQUIRES(c->lock)
{
	uint64_t from = UINT64_MAX, to = 0, base;
	struct bits lack, wanted;
	unsigned at, n;

	for (uint32_t i = 0; i < p->n_waits; i++) {
		struct wait *w = &p->waits[i];

		if (w->state != WAIT_PARKED)
			continue;
		lack = w->blocks;
		wanted = chunk_wanted_locked(c, w->chunk);
		bits_remove(&lack, &w->chunk->valid);
		bits_remove(&lack, &wanted);
		w->told = lack;
		base = w->chunk->no << c->chunk_shift;
		for (at = bits_next_run(&lack, 0, &n); n > 0; at = bits_next_run(&lack, at + n, &n)) {
			from = hfs_min_u64(from, base + (uint64_t)at * c->block_bytes);
			to = hfs_max_u64(to, base + (uint64_t)(at + n) * c->block_bytes);
		}
	}
	to = hfs_min_u64(to, p->r->file->id.size_bytes);
	*ret = (struct cache_range){.off_bytes = to > 0 ? from : 0, .len_bytes = to > 0 ? to - from : 0};
}

static int park_locked(struct cache *c, struct cache_read *r, struct cache_range *ret_missing) HFS_REQUIRES(c->lock)
{
	struct parked *p = parked_new_locked(c, r);
	struct bits lack;

	if (p == NULL)
		return -ENOMEM;
	r->i.parked = p;
	parked_link_locked(c, p);
	c->stats.miss_reads++;
	missing_locked(c, p, ret_missing);
	for (uint32_t i = 0; i < p->n_waits; i++) {
		lack = p->waits[i].blocks;
		bits_remove(&lack, &p->waits[i].chunk->valid);
		if (!bits_is_empty(&lack))
			fetch_promote_locked(c, p->waits[i].chunk, &lack);
	}
	return 0;
}

static bool is_request_sane(const struct cache_read *r)
{
	uint64_t end;

	return r->len_bytes <= READ_BYTES_MAX && hfs_add_u64(r->off_bytes, r->len_bytes, &end) &&
	       end <= r->file->id.size_bytes;
}

static int submit(struct cache *c, struct cache_read *r, struct hit *h, struct cache_range *ret_missing)
	HFS_EXCLUDES(c->lock)
{
	int err = 0;
	bool is_hit;

	hfs_mutex_lock(&c->lock);
	r->i.parked = NULL; /* here: an impatient caller's cancel may look already */
	is_hit = hit_find_locked(c, r, h);
	if (c->is_stopping) {
		err = -ESHUTDOWN;
	} else if (is_hit) {
		for (int i = 0; i < h->n; i++)
			pool_pin(c->pool, h->slots[i]);
		c->stats.hit_bytes += r->len_bytes;
	} else {
		err = park_locked(c, r, ret_missing);
	}
	hfs_mutex_unlock(&c->lock);
	if (err < 0 || !is_hit)
		return err;
	hit_answer(c, r, h);
	return 1;
}

/* Apart, so that the usual read does not clear 5 KiB of stack. */
static __attribute__((noinline)) int submit_wide(struct cache *c, struct cache_read *r, struct cache_range *ret_missing)
{
	struct iovec iov[CHUNKS_MAX];
	struct slot_no slots[CHUNKS_MAX];
	struct hit h = {.iov = iov, .slots = slots};

	return submit(c, r, &h, ret_missing);
}

int cache_read_submit(struct cache *c, struct cache_read *r, struct cache_range *ret_missing)
{
	struct iovec iov[2];
	struct slot_no slots[2];
	struct hit h = {.iov = iov, .slots = slots};

	if (!is_request_sane(r))
		return -EINVAL;
	*ret_missing = (struct cache_range){0};
	if (r->len_bytes == 0) {
		r->done(r, 0, NULL, 0);
		return 1;
	}
	return n_chunks(c, r) <= 2 ? submit(c, r, &h, ret_missing) : submit_wide(c, r, ret_missing);
}

bool cache_read_cancel(struct cache *c, struct cache_read *r)
{
	struct parked *p;
	bool has_dead;

	hfs_mutex_lock(&c->lock);
	p = r->i.parked;
	if (p != NULL) {
		r->i.parked = NULL;
		parked_unlink_locked(c, p);
		leave_chunks_locked(c, p, NULL);
		parked_let_go_locked(c, p);
	}
	has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (has_dead)
		fd_bury(c);
	return p != NULL;
}

void cache_read_missing(struct cache *c, struct cache_read *r, struct cache_range *ret_missing)
{
	*ret_missing = (struct cache_range){0};
	hfs_mutex_lock(&c->lock);
	if (r->i.parked != NULL)
		missing_locked(c, r->i.parked, ret_missing);
	hfs_mutex_unlock(&c->lock);
}

/* ---- answering ---- */

static bool is_complete_locked(const struct parked *p)
{
	for (uint32_t i = 0; i < p->n_waits; i++) {
		const struct wait *w = &p->waits[i];

		if (w->state == WAIT_COPYING)
			return false;
		if (w->state == WAIT_PARKED && !bits_cover(&w->chunk->valid, &w->blocks))
			return false;
	}
	return true;
}

/* p leaves all lists, pins what it needs (err 0), and is nobody else's from here on. skip: as above. */
static void ready_locked(struct cache *c, struct parked *p, const struct chunk *skip, int err, struct batch *b)
	HFS_REQUIRES(c->lock)
{
	for (uint32_t i = 0; err == 0 && i < p->n_waits; i++) {
		struct wait *w = &p->waits[i];

		if (w->state != WAIT_PARKED)
			continue;
		w->slot = w->chunk->slot;
		w->state = WAIT_PINNED;
		pool_pin(c->pool, w->slot);
	}
	leave_chunks_locked(c, p, skip);
	parked_unlink_locked(c, p);
	p->r->i.parked = NULL;
	p->is_taken = true;
	p->err = err;
	p->next = b->ready;
	b->ready = p;
}

void read_wake_locked(struct cache *c, struct chunk *ch, struct batch *b)
{
	struct wait *w, *next;

	for (w = ch->waits; w != NULL; w = next) {
		next = w->next; /* stays: a read has one wait a chunk */
		if (bits_cover(&ch->valid, &w->blocks) && is_complete_locked(w->p))
			ready_locked(c, w->p, ch, 0, b);
	}
}

void read_fail_locked(struct cache *c, struct chunk *ch, const struct bits *failed, int err, struct batch *b)
{
	struct wait *w, *next;
	struct bits lack;

	for (w = ch->waits; w != NULL; w = next) {
		next = w->next;
		lack = w->blocks;
		bits_remove(&lack, &ch->valid);
		if (bits_meet(&lack, failed))
			ready_locked(c, w->p, ch, err, b);
	}
}

void read_fail_all_locked(struct cache *c, uint64_t before_ns, int err, struct batch *b)
{
	struct parked *p, *next;

	for (p = c->parked; p != NULL; p = next) {
		next = p->next;
		if (p->since_ns <= before_ns)
			ready_locked(c, p, NULL, err, b);
	}
}

void read_overdue_locked(struct cache *c, uint64_t now_ns)
{
	if (now_ns < c->overdue_ns)
		return;
	c->overdue_ns = now_ns + OVERDUE_NS;
	for (struct parked *p = c->parked; p != NULL; p = p->next) {
		if (p->since_ns + OVERDUE_NS > now_ns)
			continue;
		for (uint32_t i = 0; i < p->n_waits; i++) {
			struct wait *w = &p->waits[i];

			if (w->state != WAIT_PARKED || bits_is_empty(&w->told))
				continue;
			w->told = (struct bits){{0}};
			w->chunk->overdue_ns = hfs_max_u64(w->chunk->overdue_ns, now_ns - p->since_ns);
			chunk_find_lost_locked(c, w->chunk);
		}
	}
}

static int parked_iov(struct cache *c, const struct parked *p, struct iovec *iov)
{
	for (uint32_t i = 0; i < p->n_waits; i++) {
		const struct wait *w = &p->waits[i];

		iov[i].iov_len = w->len;
		iov[i].iov_base = w->state == WAIT_HAVE ? p->bounce + w->read_off
							: (uint8_t *)pool_slot_data(c->pool, w->slot) + w->chunk_off;
	}
	return (int)p->n_waits;
}

static void parked_end_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	bool is_freed = false;

	for (uint32_t i = 0; i < p->n_waits; i++)
		if (p->waits[i].state == WAIT_PINNED)
			is_freed |= pool_unpin(c->pool, p->waits[i].slot);
	if (is_freed)
		fetch_wake_slots_locked(c);
	parked_let_go_locked(c, p);
}

void read_answer(struct cache *c, struct parked *list)
{
	struct iovec iov[CHUNKS_MAX];
	struct parked *p;
	int n;

	hfs_assert_no_locks();
	for (p = list; p != NULL; p = p->next) {
		n = p->err == 0 ? parked_iov(c, p, iov) : 0;
		p->r->done(p->r, p->err, n > 0 ? iov : NULL, n);
	}
	if (list == NULL)
		return;
	hfs_mutex_lock(&c->lock);
	while ((p = list) != NULL) {
		list = p->next;
		parked_end_locked(c, p);
	}
	hfs_mutex_unlock(&c->lock);
}

/* ---- a chunk leaves from under reads that have only part of what they need ---- */

static struct wait *next_partial_locked(const struct cache *c, const struct chunk *ch) HFS_REQUIRES(c->lock)
{
	for (struct wait *w = ch->waits; w != NULL; w = w->next)
		if (bits_cover(&ch->valid, &w->blocks) &&
		    (w->p->bounce != NULL || c->stats.bounce_bytes + w->p->len_bytes <= c->bounce_max_bytes))
			return w;
	return NULL;
}

bool read_has_partial_locked(const struct cache *c, const struct chunk *ch)
{
	return next_partial_locked(c, ch) != NULL;
}

static bool bounce_ensure_locked(struct cache *c, struct parked *p) HFS_REQUIRES(c->lock)
{
	if (p->bounce != NULL)
		return true;
	p->bounce = malloc(p->len_bytes);
	if (p->bounce == NULL)
		return false;
	c->stats.bounce_bytes += p->len_bytes;
	return true;
}

/* One wait: pinned, copied without the lock, unpinned. */
static void copy_away_locked(struct cache *c, struct chunk *ch, struct wait *w, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct parked *p = w->p;

	w->slot = ch->slot;
	w->state = WAIT_COPYING;
	p->n_copying++;
	wait_unlink(w);
	pool_pin(c->pool, w->slot);
	hfs_mutex_unlock(&c->lock);
	memcpy(p->bounce + w->read_off, (uint8_t *)pool_slot_data(c->pool, w->slot) + w->chunk_off, w->len);
	hfs_mutex_lock(&c->lock);
	(void)pool_unpin(c->pool, w->slot); /* the chunk still holds the slot */
	w->state = WAIT_HAVE;
	p->n_copying--;
	if (p->is_orphan)
		parked_let_go_locked(c, p);
	else if (!p->is_taken && is_complete_locked(p))
		ready_locked(c, p, ch, 0, b);
}

void read_drain_locked(struct cache *c, struct chunk *ch, struct batch *b)
{
	struct wait *w;

	while ((w = next_partial_locked(c, ch)) != NULL) {
		if (bounce_ensure_locked(c, w->p))
			copy_away_locked(c, ch, w, b);
		else
			ready_locked(c, w->p, ch, -ENOMEM, b);
	}
}
