/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/cache.c - life, housekeeping and figures of the cache. The parts are named in cache_i.h.
 */
#include "cache/cache_i.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define THREADS_MAX 1200
#define THREADS_WORKING_MAX 64
#define STACK_BYTES (256 * 1024)
#define FDS_MIN 4
#define STARVED_AGAIN_NS (100 * HFS_NS_PER_MS)
#define FDS_MAX 8192

/* ---- telling ---- */

static void tell_fetch(struct cache *c, struct fetch *f)
{
	const struct cache_callbacks *cb = &c->cfg.cb;
	struct cache_fetch_result r = {
		.file = f->file,
		.chunk_no = f->chunk_no,
		.off_bytes = f->off_bytes,
		.len_bytes = f->len_bytes,
		.err = f->err,
		.origin_bytes = f->origin_bytes,
		.issued_ns = f->issued_ns != 0 ? f->issued_ns : f->done_ns,
		.done_ns = f->done_ns,
		.is_tier_missed = f->is_tier_missed,
	};
	struct cache_file *file = f->file;

	if (!f->is_resolve) {
		if (cb->fetched != NULL)
			cb->fetched(cb->ctx, &r);
		return;
	}
	if (cb->resolved == NULL)
		return;
	if (file == NULL || (f->err < 0 && !f->had_chunk)) {
		cb->resolved(cb->ctx, f->cookie, f->path, f->err < 0 ? f->err : -EIO, NULL, NULL, false, NULL);
		return;
	}
	if (f->err == 0 && !f->has_fetched)
		r.err = 1;
	f->file = NULL; /* the reference is the callee's now */
	cb->resolved(cb->ctx, f->cookie, f->path, 0, file, &f->attr, f->is_small, f->is_small ? &r : NULL);
}

static void tell_ended(struct cache *c, struct fetch *list)
{
	struct fetch *f, *in_order = NULL;

	while ((f = list) != NULL) {
		list = f->next;
		f->next = in_order;
		in_order = f;
	}
	while ((f = in_order) != NULL) {
		in_order = f->next;
		tell_fetch(c, f);
		fetch_free(c, f);
	}
}

static bool is_abandoned(struct cache *c)
{
	bool is;

	hfs_mutex_lock(&c->lock);
	is = c->is_abandoned;
	hfs_mutex_unlock(&c->lock);
	return is;
}

void slots_lent(struct cache *c, int change)
{
	if (!is_abandoned(c) && c->cfg.cb.slots_lent != NULL)
		c->cfg.cb.slots_lent(c->cfg.cb.ctx, change);
}

void batch_deliver(struct cache *c, struct batch *b)
{
	if (b->ready == NULL && b->ended == NULL && b->changed == NULL && b->n_starved == 0 &&
	    b->lost_file == NULL && b->n_lent == 0)
		return;
	if (is_abandoned(c))
		return;		  /* nobody is left to hear it; the process ends */
	workq_tail_begin(c->workq); /* what is told makes the next orders */
	if (b->n_lent != 0)
		slots_lent(c, (int)b->n_lent);
	if (b->changed != NULL) { /* first: who gets ESTALE may look again at once */
		if (c->cfg.cb.changed != NULL)
			c->cfg.cb.changed(c->cfg.cb.ctx, b->changed);
		cache_file_put(c, b->changed);
	}
	read_answer(c, b->ready);
	tell_ended(c, b->ended);
	if (b->lost_file != NULL) {
		if (c->cfg.cb.lost != NULL)
			c->cfg.cb.lost(c->cfg.cb.ctx, b->lost_file, b->lost.off_bytes, b->lost.len_bytes, b->overdue_ns);
		cache_file_put(c, b->lost_file);
	}
	if (b->n_starved != 0 && c->cfg.cb.starved != NULL)
		c->cfg.cb.starved(c->cfg.cb.ctx, b->n_starved);
}

static void slots_ready(void *ctx, uint32_t total, bool is_last)
{
	struct cache *c = ctx;
	uint32_t n_starved = 0;

	hfs_mutex_lock(&c->lock);
	fetch_wake_slots_locked(c);
	if (is_last && pool_slots_free(c->pool) == 0)
		n_starved = c->slot_wait.n;
	hfs_mutex_unlock(&c->lock);
	if (c->cfg.cb.slots_ready != NULL)
		c->cfg.cb.slots_ready(c->cfg.cb.ctx, total);
	if (n_starved != 0 && c->cfg.cb.starved != NULL)
		c->cfg.cb.starved(c->cfg.cb.ctx, n_starved);
}

/* ---- housekeeping ---- */

/* Orders wait for a slot and nothing has moved for a while: ask again, in case the first asking found nothing to evict.
 */
static uint32_t starving_locked(struct cache *c, uint64_t now_ns) HFS_REQUIRES(c->lock)
{
	if (c->slot_wait.n == 0 || pool_slots_free(c->pool) != 0 || pool_is_filling_up(c->pool) ||
	    now_ns < c->starved_ns + STARVED_AGAIN_NS)
		return 0;
	c->starved_ns = now_ns;
	return c->slot_wait.n;
}

static uint64_t tick(void *ctx, uint64_t now_ns)
{
	struct cache *c = ctx;
	uint64_t timeout_ns = c->cfg.origin_timeout_ns, next_ns;
	struct batch b = {0};
	bool has_dead;

	hfs_mutex_lock(&c->lock);
	while (c->n_tokens_owed > 0 && workq_run(c->workq, visit_main, c, true) == 0)
		c->n_tokens_owed--;
	next_ns = fd_expire_locked(c, now_ns);
	if (timeout_ns != 0 && now_ns > timeout_ns && c->parked != NULL)
		read_fail_all_locked(c, now_ns - timeout_ns, -EIO, &b);
	b.n_starved = starving_locked(c, now_ns);
	if (!c->is_stopping)
		read_overdue_locked(c, now_ns);
	next_ns = hfs_min_u64(next_ns, c->overdue_ns);
	if (c->n_tokens_owed != 0 || c->slot_wait.n != 0 || (timeout_ns != 0 && c->parked != NULL))
		next_ns = hfs_min_u64(next_ns, now_ns + 50 * HFS_NS_PER_MS);
	has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (b.ready != NULL) {
		hfs_log_limited(HFS_LOG_WARNING, "origin: no answer within origin-timeout; waiting reads get EIO");
		read_answer(c, b.ready);
	}
	if (b.n_starved != 0 && c->cfg.cb.starved != NULL)
		c->cfg.cb.starved(c->cfg.cb.ctx, b.n_starved);
	if (has_dead)
		fd_bury_now(c);
	return next_ns;
}

/* ---- life ---- */

static uint32_t default_fds(void)
{
	struct rlimit lim;
	uint64_t n = FDS_MAX;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY)
		n = lim.rlim_cur - hfs_min_u64(lim.rlim_cur, hfs_max_u64(128, lim.rlim_cur / 4));
	return (uint32_t)hfs_max_u64(FDS_MIN, hfs_min_u64(n, FDS_MAX));
}

static int tables_create(struct cache *c)
{
	struct pool_config pool = {.memory_bytes = c->cfg.memory_bytes,
				   .chunk_bytes = c->cfg.chunk_bytes,
				   .lock = &c->lock,
				   .ctx = c,
				   .ready = slots_ready};
	struct workq_config workq = {.name = "origin",
				     .threads_max = c->cfg.threads_max,
				     .working_max = c->cfg.threads_working_max,
				     .stack_bytes = STACK_BYTES,
				     .ctx = c,
				     .tick = tick,
				     .drop = NULL};
	uint64_t n = 1024;

	HFS_TRY(pool_create(&pool, &c->pool));
	while (n < 2 * (uint64_t)pool_slots_total(c->pool))
		n *= 2;
	c->chunk_table = calloc(n, sizeof(struct chunk *));
	if (c->chunk_table == NULL)
		return -ENOMEM;
	c->chunk_mask = n - 1;
	c->filling_max = pool_slots_total(c->pool);
	if (c->filling_max > 1)
		c->filling_max -= (uint32_t)hfs_div_up(c->filling_max, 4);
	c->visits_max = c->cfg.threads_working_max - c->cfg.threads_working_max / 4;
	c->bounce_max_bytes = hfs_max_u64(READ_BYTES_MAX, c->cfg.memory_bytes / 4);
	HFS_TRY(files_init(c));
	return workq_create(&workq, &c->workq);
}

static void cache_free(struct cache *c)
{
	free(c->chunk_table);
	files_finish(c);
	pool_destroy(c->pool);
	hfs_cond_finish(&c->backoff);
	hfs_mutex_finish(&c->lock);
	hfs_mutex_finish(&c->files_lock);
	free(c);
}

static bool is_config_sane(const struct cache_config *cfg)
{
	return hfs_is_pow2(cfg->chunk_bytes) && cfg->chunk_bytes >= 65536 && cfg->chunk_bytes <= (16U << 20) &&
	       cfg->origin != NULL && cfg->io != NULL;
}

int cache_create(const struct cache_config *cfg, struct cache **ret_c)
{
	struct cache *c;
	int err;

	if (!is_config_sane(cfg))
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->cfg = *cfg;
	if (c->cfg.threads_max == 0)
		c->cfg.threads_max = THREADS_MAX;
	if (c->cfg.threads_working_max == 0)
		c->cfg.threads_working_max = THREADS_WORKING_MAX;
	c->fds_max = cfg->fds_max != 0 ? cfg->fds_max : default_fds();
	c->block_bytes = hfs_block_bytes(cfg->chunk_bytes);
	c->chunk_shift = (unsigned)__builtin_ctzll(cfg->chunk_bytes);
	hfs_mutex_init(&c->lock, HFS_RANK_CACHE);
	hfs_mutex_init(&c->files_lock, HFS_RANK_FILE);
	hfs_cond_init(&c->backoff);
	err = tables_create(c);
	if (err == 0) {
		*ret_c = c; /* before the first callback */
		err = pool_start(c->pool);
	}
	if (err < 0) {
		(void)workq_destroy(c->workq, 1000);
		*ret_c = NULL;
		cache_free(c);
		return err;
	}
	workq_tick_soon(c->workq); /* from now on once a second: is an order overdue? */
	return 0;
}

void cache_shutdown(struct cache *c)
{
	struct batch b = {0};

	hfs_mutex_lock(&c->lock);
	if (!c->is_stopping) {
		c->is_stopping = true;
		read_fail_all_locked(c, UINT64_MAX, -ESHUTDOWN, &b);
		fetch_end_all_locked(c, &b);
		hfs_cond_broadcast(&c->backoff);
	}
	hfs_mutex_unlock(&c->lock);
	workq_shutdown(c->workq);
	read_answer(c, b.ready);
	tell_ended(c, b.ended);
}

static void drop_chunks(struct cache *c)
{
	struct chunk *ch;

	hfs_mutex_lock(&c->lock);
	assert(c->parked == NULL && pool_slots_pinned(c->pool) == 0 && c->stats.inflight_bytes == 0);
	for (uint64_t i = 0; i <= c->chunk_mask; i++) {
		while ((ch = c->chunk_table[i]) != NULL) {
			assert(ch->fetches == NULL && ch->waits == NULL);
			ch->is_draining = ch->is_lost = false;
			ch->valid = (struct bits){{0}};
			ch->n_holds = 0;
			chunk_settle_locked(c, ch);
		}
	}
	while (c->fd_oldest != NULL)
		fd_detach_locked(c, c->fd_oldest);
	hfs_mutex_unlock(&c->lock);
}

/* A tier that was told to stop may be about to end its reads, or its disk hangs. */
static bool are_loans_back(struct cache *c, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool are_back;

	hfs_mutex_lock(&c->lock);
	while (c->n_lent > 0 && hfs_cond_wait_until(&c->backoff, &c->lock, deadline_ns))
		;
	are_back = c->n_lent == 0;
	hfs_mutex_unlock(&c->lock);
	return are_back;
}

bool cache_destroy(struct cache *c, unsigned wait_ms)
{
	if (c == NULL)
		return true;
	cache_shutdown(c);
	pool_stop(c->pool);
	if (!workq_destroy(c->workq, wait_ms) || !are_loans_back(c, wait_ms)) {
		hfs_mutex_lock(&c->lock);
		c->is_abandoned = true;
		hfs_mutex_unlock(&c->lock);
		return false;
	}
	drop_chunks(c);
	fd_close_dead(c);
	if (c->n_files != 0)
		hfs_log(HFS_LOG_ERROR, "bug: %llu generations are still referred to at the end",
			(unsigned long long)c->n_files);
	cache_free(c);
	return true;
}

void cache_stats_get(struct cache *c, struct cache_stats *ret)
{
	struct workq_stats w;

	workq_stats_get(c->workq, &w);
	hfs_mutex_lock(&c->lock);
	*ret = c->stats;
	ret->slots_total = pool_slots_total(c->pool);
	ret->slots_ready = pool_slots_ready(c->pool);
	ret->slots_used = ret->slots_ready - pool_slots_free(c->pool);
	ret->slots_pinned = pool_slots_pinned(c->pool);
	ret->fds = c->n_fds;
	hfs_mutex_unlock(&c->lock);
	ret->oldest_fetch_ns = w.oldest_ns;
	ret->threads = w.threads;
	ret->threads_busy = w.busy;
	hfs_mutex_lock(&c->files_lock);
	ret->files = c->n_files;
	hfs_mutex_unlock(&c->files_lock);
}
