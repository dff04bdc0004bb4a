/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/fetch.c - orders to fetch: the queue, joining, cancelling. States in cache_i.h; what a thread does with one:
 * visit.c.
 *
 * 1. Demand in the order it came, then prefetch by deadline. A file that has visits_max threads at work waits (WAIT_FILE)
 * until one of them is through: each visit's end wakes one.
 * 2. Every accepted order ends exactly once, by a callback from an origin thread (or from cache_shutdown()), never
 * inside the call that made it, so callers may hold their own locks.
 * 3. Each order that becomes QUEUED or ENDING, and each chunk to drain or lost, has one token in the work queue.
 */
#include "cache/cache_i.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists ---- */

void fetch_list_remove(struct fetch *f)
{
	struct fetch_list *l = f->list;

	if (l == NULL)
		return;
	if (f->prev != NULL)
		f->prev->next = f->next;
	else
		l->first = f->next;
	if (f->next != NULL)
		f->next->prev = f->prev;
	else
		l->last = f->prev;
	f->next = f->prev = NULL;
	f->list = NULL;
	l->n--;
}

/* Behind `at`; NULL: first. */
static void list_insert(struct fetch_list *l, struct fetch *at, struct fetch *f)
{
	assert(f->list == NULL);
	f->list = l;
	f->prev = at;
	f->next = at != NULL ? at->next : l->first;
	if (f->next != NULL)
		f->next->prev = f;
	else
		l->last = f;
	if (at != NULL)
		at->next = f;
	else
		l->first = f;
	l->n++;
}

void fetch_token_locked(struct cache *c)
{
	if (workq_run(c->workq, visit_main, c, true) == 0 || c->is_stopping)
		return;
	if (c->n_tokens_owed++ == 0) /* no memory: the watcher's next tick tries again */
		workq_tick_soon(c->workq);
}

void fetch_enqueue_locked(struct cache *c, struct fetch *f, bool is_front)
{
	struct fetch_list *l = f->is_demand || is_front ? &c->demand : &c->prefetch;
	struct fetch *at = l->last;

	fetch_list_remove(f);
	f->state = FETCH_QUEUED;
	if (is_front)
		at = NULL;
	else if (!f->is_demand) /* deadlines mostly come in order */
		while (at != NULL && at->deadline_ns > f->deadline_ns)
			at = at->prev;
	list_insert(l, at, f);
	fetch_token_locked(c);
}

static struct fetch_list *park_list(struct cache *c, enum fetch_state state)
{
	switch (state) {
	case FETCH_WAIT_FD:
		return &c->fd_wait;
	case FETCH_WAIT_SLOT:
		return &c->slot_wait;
	case FETCH_WAIT_FILE:
		return &c->file_wait;
	default:
		return NULL;
	}
}

void fetch_park_locked(struct cache *c, struct fetch *f, enum fetch_state state)
{
	struct fetch_list *l = park_list(c, state);
	struct fetch *at;

	f->state = state;
	if (l == NULL)
		return;
	at = l->last;
	if (f->is_demand) /* before all prefetches, behind other demand */
		while (at != NULL && !at->is_demand)
			at = at->prev;
	list_insert(l, at, f);
	if (state == FETCH_WAIT_FD && f->file != NULL)
		f->file->n_fd_waits++;
	if (state == FETCH_WAIT_FILE) {
		assert(f->file != NULL);
		f->file->n_filling_waits++;
	}
}

static void unpark_locked(struct fetch *f)
{
	if (f->state == FETCH_WAIT_FD && f->file != NULL)
		f->file->n_fd_waits--;
	if (f->state == FETCH_WAIT_FILE) {
		assert(f->file != NULL);
		f->file->n_filling_waits--;
	}
	fetch_list_remove(f);
}

static void slot_unwake_locked(struct cache *c, struct fetch *f) HFS_REQUIRES(c->lock)
{
	if (!f->is_slot_woken)
		return;
	f->is_slot_woken = false;
	c->n_slot_woken--;
}

/* First come, first served; but a file that has its share of threads, perhaps because it hangs, waits for one of these. */
static struct fetch *pick_locked(struct cache *c, struct fetch_list *l) HFS_REQUIRES(c->lock)
{
	struct fetch *f;

	while ((f = l->first) != NULL && f->file != NULL && f->file->n_visits >= c->visits_max) {
		fetch_list_remove(f);
		slot_unwake_locked(c, f);
		fetch_park_locked(c, f, FETCH_WAIT_FILE);
	}
	return f;
}

struct fetch *fetch_take_locked(struct cache *c)
{
	struct fetch *f = pick_locked(c, &c->demand);

	if (f == NULL)
		f = pick_locked(c, &c->prefetch);
	if (f == NULL)
		return NULL;
	fetch_list_remove(f);
	f->state = FETCH_RUNNING;
	slot_unwake_locked(c, f);
	return f;
}

void fetch_wake_fd_locked(struct cache *c, const struct cache_file *file)
{
	struct fetch *f, *next;

	if (file != NULL && file->n_fd_waits == 0)
		return;
	for (f = c->fd_wait.first; f != NULL; f = next) {
		next = f->next;
		/* A free descriptor number serves one; those whose file is being opened go on waiting for that. */
		if (file != NULL ? f->file != file : f->file != NULL && f->file->is_opening)
			continue;
		unpark_locked(f);
		fetch_enqueue_locked(c, f, true);
		if (file == NULL)
			return;
	}
}

void fetch_wake_file_locked(struct cache *c, const struct cache_file *file)
{
	struct fetch *f = c->file_wait.first;

	if (file->n_filling_waits == 0)
		return;
	while (f->file != file)
		f = f->next;
	unpark_locked(f);
	fetch_enqueue_locked(c, f, true);
}

void fetch_wake_slots_locked(struct cache *c)
{
	struct fetch *f;

	while ((f = c->slot_wait.first) != NULL && pool_slots_free(c->pool) > c->n_slot_woken) {
		fetch_list_remove(f);
		f->is_slot_woken = true;
		c->n_slot_woken++;
		c->starved_ns = hfs_now_ns();
		fetch_enqueue_locked(c, f, true);
	}
}

/* ---- chunks ---- */

void fetch_attach_locked(struct chunk *ch, struct fetch *f, uint32_t off_bytes, uint32_t len_bytes,
			 const struct bits *blocks)
{
	f->chunk = ch;
	f->chunk_no = ch->no;
	f->had_chunk = true;
	f->off_bytes = off_bytes;
	f->len_bytes = len_bytes;
	f->blocks = *blocks;
	f->chunk_next = ch->fetches;
	ch->fetches = f;
	ch->is_evicting = false; /* wanted again */
	for (struct wait *w = ch->waits; w != NULL; w = w->next)
		bits_remove(&w->told, blocks); /* what was owed is ordered */
}

static void detach_locked(struct fetch *f)
{
	struct fetch **at = &f->chunk->fetches;

	while (*at != f)
		at = &(*at)->chunk_next;
	*at = f->chunk_next;
	f->chunk_next = NULL;
}

/* The chunk is settled by the caller, who may be walking its fetches. */
void fetch_end_locked(struct cache *c, struct fetch *f, int err, struct batch *b)
{
	unpark_locked(f);
	slot_unwake_locked(c, f);
	if (f->chunk != NULL)
		detach_locked(f);
	if (f->chunk != NULL && err < 0)
		chunk_find_lost_locked(c, f->chunk);
	f->chunk = NULL;
	f->err = err;
	f->done_ns = hfs_now_ns();
	f->state = FETCH_ENDING;
	f->next = b->ended;
	b->ended = f;
	/* It may have been woken to take its file's share, and did not. */
	if (f->file != NULL && f->file->n_filling < c->filling_max && !c->is_stopping)
		fetch_wake_file_locked(c, f->file);
}

void fetch_review_locked(struct cache *c, struct fetch *f, struct batch *b)
{
	struct bits lack = f->blocks;

	bits_remove(&lack, &f->chunk->valid);
	if (bits_is_empty(&lack)) {
		fetch_end_locked(c, f, 0, b);
		return;
	}
	bits_remove(&lack, &f->chunk->running);
	if (bits_is_empty(&lack))
		f->state = FETCH_JOINED;
	else
		fetch_enqueue_locked(c, f, true);
}

void fetch_promote_locked(struct cache *c, struct chunk *ch, const struct bits *blocks)
{
	for (struct fetch *f = ch->fetches; f != NULL; f = f->chunk_next) {
		if (f->is_demand || !bits_meet(&f->blocks, blocks))
			continue;
		f->is_demand = true;
		if (f->state == FETCH_QUEUED && f->list == &c->prefetch) {
			fetch_list_remove(f); /* its token serves it in the new place */
			list_insert(&c->demand, c->demand.last, f);
		} else if (f->state == FETCH_WAIT_SLOT || f->state == FETCH_WAIT_FILE) {
			enum fetch_state state = f->state;

			unpark_locked(f);
			fetch_park_locked(c, f, state);
		}
	}
}

/* ---- orders ---- */

static struct fetch *fetch_new(bool is_demand, uint64_t deadline_ns)
{
	struct fetch *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	f->is_demand = is_demand;
	f->deadline_ns = deadline_ns;
	return f;
}

void fetch_free(struct cache *c, struct fetch *f)
{
	if (f->file != NULL)
		cache_file_put(c, f->file);
	free(f->path);
	free(f);
}

static bool is_order_sane(const struct cache *c, const struct cache_file *f, uint64_t chunk_no, uint32_t off_bytes,
			  uint32_t len_bytes)
{
	uint32_t chunk = chunk_len(c, f, chunk_no);
	uint64_t end = (uint64_t)off_bytes + len_bytes;

	return len_bytes != 0 && off_bytes % c->block_bytes == 0 && end <= chunk &&
	       (end % c->block_bytes == 0 || end == chunk);
}

/* The file is c->lock's until this returns; f was not seen by anybody yet. */
static int order_locked(struct cache *c, struct fetch *f, uint64_t chunk_no, uint32_t off_bytes, uint32_t len_bytes)
	HFS_REQUIRES(c->lock)
{
	struct bits blocks = chunk_blocks(c, off_bytes, len_bytes);
	struct chunk *ch;

	if (c->is_stopping)
		return -ESHUTDOWN;
	ch = chunk_get_locked(c, f->file, chunk_no);
	if (ch == NULL)
		return -ENOMEM;
	if (f->is_demand)
		fetch_promote_locked(c, ch, &blocks);
	fetch_attach_locked(ch, f, off_bytes, len_bytes, &blocks);
	fetch_enqueue_locked(c, f, false);
	return 0;
}

int cache_fetch(struct cache *c, struct cache_file *file, uint64_t chunk_no, uint32_t off_bytes, uint32_t len_bytes,
		bool is_demand, uint64_t deadline_ns)
{
	struct fetch *f;
	int err;

	if (!is_order_sane(c, file, chunk_no, off_bytes, len_bytes))
		return -EINVAL;
	f = fetch_new(is_demand, deadline_ns);
	if (f == NULL)
		return -ENOMEM;
	cache_file_ref(file);
	f->file = file;
	hfs_mutex_lock(&c->lock);
	err = order_locked(c, f, chunk_no, off_bytes, len_bytes);
	hfs_mutex_unlock(&c->lock);
	if (err < 0)
		fetch_free(c, f);
	return err;
}

int cache_resolve(struct cache *c, const char *path, uint64_t cookie, uint64_t deadline_ns)
{
	struct fetch *f = fetch_new(false, deadline_ns);
	int err = -ESHUTDOWN;

	if (f == NULL)
		return -ENOMEM;
	f->is_resolve = true;
	f->cookie = cookie;
	f->path = strdup(path);
	if (f->path == NULL) {
		fetch_free(c, f);
		return -ENOMEM;
	}
	hfs_mutex_lock(&c->lock);
	if (!c->is_stopping) {
		fetch_enqueue_locked(c, f, false);
		err = 0;
	}
	hfs_mutex_unlock(&c->lock);
	if (err < 0)
		fetch_free(c, f);
	return err;
}

static bool is_waited_for(const struct chunk *ch, const struct fetch *f)
{
	for (const struct wait *w = ch->waits; w != NULL; w = w->next)
		if (bits_meet(&w->blocks, &f->blocks))
			return true;
	return false;
}

void cache_unfetch(struct cache *c, struct cache_file *file, uint64_t chunk_no)
{
	struct fetch *f, *next;
	struct chunk *ch;

	hfs_mutex_lock(&c->lock);
	ch = chunk_find_locked(c, file, chunk_no);
	for (f = ch != NULL ? ch->fetches : NULL; f != NULL; f = next) {
		next = f->chunk_next;
		if (f->is_demand || f->is_resolve || is_waited_for(ch, f) ||
		    (f->state != FETCH_QUEUED && f->state != FETCH_WAIT_SLOT && f->state != FETCH_WAIT_FILE))
			continue;
		unpark_locked(f);
		slot_unwake_locked(c, f);
		f->state = FETCH_ENDING; /* stays with its chunk until a thread tells the caller */
		list_insert(&c->ending, c->ending.last, f);
		fetch_token_locked(c);
	}
	hfs_mutex_unlock(&c->lock);
}

void fetch_end_all_locked(struct cache *c, struct batch *b)
{
	struct fetch_list *lists[] = {&c->demand, &c->prefetch, &c->ending, &c->fd_wait, &c->slot_wait, &c->file_wait};
	struct chunk *ch, *next_ch;
	struct fetch *f, *next;

	for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		while ((f = lists[i]->first) != NULL) {
			ch = f->chunk;
			fetch_end_locked(c, f, f->state == FETCH_ENDING ? -ECANCELED : -ESHUTDOWN, b);
			if (ch != NULL)
				chunk_settle_locked(c, ch);
		}
	}
	for (uint64_t i = 0; i <= c->chunk_mask; i++) {
		for (ch = c->chunk_table[i]; ch != NULL; ch = next_ch) {
			next_ch = ch->hash_next;
			for (f = ch->fetches; f != NULL; f = next) {
				next = f->chunk_next;
				if (f->state == FETCH_JOINED)
					fetch_end_locked(c, f, -ESHUTDOWN, b);
			}
			chunk_settle_locked(c, ch);
		}
	}
}
