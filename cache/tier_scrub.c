/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_scrub.c - read and verify all there is, drop what is bad. On the caller's thread
 * (hintctl verify of a directory), or on one of the tier's (a mount's control file).
 *
 * One shard of the index at a time is copied and sorted by where things lie, so packs are read forwards and the lock is held
 * for 1/256 of the whole at most. What comes or goes meanwhile may be missed.
 */
#include "cache/tier_i.h"

#include <stdlib.h>

struct item {
	uint64_t pack_no; /* 0: a big file */
	uint64_t off_bytes;
	uint64_t bytes;
	struct tier_key key;
};

struct scrub {
	struct tier *t;
	bool (*cb)(void *ctx, const struct tier_scrub_progress *p);
	void *ctx;
	struct tier_scrub_progress now;
};

static int by_place(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->pack_no != y->pack_no)
		return x->pack_no < y->pack_no ? -1 : 1;
	return x->off_bytes < y->off_bytes ? -1 : x->off_bytes > y->off_bytes;
}

static uint64_t count_all(struct tier *t)
{
	uint64_t bytes = 0;

	hfs_mutex_lock(&t->lock);
	for (const struct tier_obj *o = t->lru_first; o != NULL; o = o->lru_next) {
		const struct tier_big *b = (const struct tier_big *)o;

		bytes += o->is_pack ? ((const struct tier_pack *)o)->live_bytes : (uint64_t)b->n_present * b->chunk_bytes;
	}
	hfs_mutex_unlock(&t->lock);
	return bytes;
}

static int copy_shard(struct tier *t, uint32_t no, struct item **ret_items, uint32_t *ret_n)
{
	struct tier_shard *s = &t->shards[no];
	const struct tier_entry *e;
	uint32_t cap, n = 0;
	struct item *items;

	hfs_mutex_lock(&t->lock);
	cap = s->n_entries;
	hfs_mutex_unlock(&t->lock);
	items = malloc((cap + 1) * sizeof(*items));
	if (items == NULL)
		return -ENOMEM;
	hfs_mutex_lock(&t->lock);
	for (uint32_t h = 0; h < s->n_heads; h++) {
		for (uint32_t at = s->heads[h]; at != TIER_NONE && n < cap; at = e->next) {
			e = tier_entry_at(t, at);
			items[n++] = (struct item){.key = e->key,
						   .pack_no = e->is_big ? 0 : t->packs[e->small.pack]->pack_no,
						   .off_bytes = e->is_big ? 0 : e->small.off_bytes,
						   .bytes = e->id.size_bytes};
		}
	}
	hfs_mutex_unlock(&t->lock);
	qsort(items, n, sizeof(*items), by_place);
	*ret_items = items;
	*ret_n = n;
	return 0;
}

static int verify(struct scrub *s, struct tier_key key, uint64_t chunk_no, uint64_t bytes)
{
	int rc = tier_read_verify(s->t, key, chunk_no);

	if (rc < 0)
		return rc;
	s->now.done_bytes += bytes;
	s->now.done_chunks += rc != 1;
	s->now.bad_chunks += rc == 2;
	if (s->cb != NULL && !s->cb(s->ctx, &s->now))
		return -ECANCELED;
	return 0;
}

/* Chunks from the end to the beginning: the index finds the last below n. */
static int verify_big(struct scrub *s, struct tier_key key)
{
	uint32_t no = TIER_NONE - 1, bytes = 0;
	const struct tier_entry *e;

	for (;;) {
		hfs_mutex_lock(&s->t->lock);
		e = tier_entry_find(s->t, key);
		no = e == NULL || !e->is_big ? TIER_NONE : tier_big_last(e->big, no);
		if (no != TIER_NONE)
			bytes = hfs_chunk_len(e->id.size_bytes, e->big->chunk_bytes, no);
		hfs_mutex_unlock(&s->t->lock);
		if (no == TIER_NONE)
			return 0;
		HFS_TRY(verify(s, key, no, bytes));
	}
}

static int scrub_shard(struct scrub *s, uint32_t no)
{
	struct item *items = NULL;
	uint32_t n = 0;
	int err = copy_shard(s->t, no, &items, &n);

	for (uint32_t i = 0; err == 0 && i < n; i++)
		err = items[i].pack_no == 0 ? verify_big(s, items[i].key) : verify(s, items[i].key, 0, items[i].bytes);
	free(items);
	return err;
}

int tier_scrub(struct tier *t, bool (*cb)(void *ctx, const struct tier_scrub_progress *p), void *ctx,
	       struct tier_scrub_progress *ret)
{
	struct scrub s = {.t = t, .cb = cb, .ctx = ctx, .now = {.total_bytes = count_all(t)}};
	bool is_stopping;
	int err = 0;

	for (uint32_t no = 0; err == 0 && no < TIER_SHARDS; no++)
		err = scrub_shard(&s, no);
	hfs_mutex_lock(&t->lock);
	is_stopping = t->is_stopping;
	hfs_mutex_unlock(&t->lock);
	if (ret != NULL)
		*ret = s.now;
	return err < 0 && is_stopping ? -ECANCELED : err;
}

/* ---- in the background ---- */

static bool on_progress(void *ctx, const struct tier_scrub_progress *p)
{
	struct tier *t = ctx;
	bool may;

	workq_progress(t->bg); /* it is long, and does not hang */
	hfs_mutex_lock(&t->lock);
	t->scrub.now = *p;
	may = !t->is_scrub_ending && !t->is_stopping;
	hfs_mutex_unlock(&t->lock);
	return may;
}

static void scrub_main(void *arg)
{
	struct tier *t = arg;
	struct tier_scrub_progress last;
	int err = tier_scrub(t, on_progress, t, &last);

	hfs_mutex_lock(&t->lock);
	t->scrub.now = last;
	t->scrub.err = err;
	t->scrub.is_running = false;
	hfs_mutex_unlock(&t->lock);
}

int tier_scrub_begin(struct tier *t)
{
	int err;

	hfs_mutex_lock(&t->lock);
	err = t->scrub.is_running ? -EALREADY : t->state == TIER_OFF ? -EIO : workq_run(t->bg, scrub_main, t, false);
	if (err == 0) {
		t->scrub.is_running = true;
		t->scrub.n_begun++;
		t->scrub.now = (struct tier_scrub_progress){0};
		t->is_scrub_ending = false;
	}
	hfs_mutex_unlock(&t->lock);
	return err;
}

void tier_scrub_end(struct tier *t)
{
	hfs_mutex_lock(&t->lock);
	t->is_scrub_ending = true;
	hfs_mutex_unlock(&t->lock);
}

void tier_scrub_get(struct tier *t, struct tier_scrub_state *ret)
{
	hfs_mutex_lock(&t->lock);
	*ret = t->scrub;
	hfs_mutex_unlock(&t->lock);
}
