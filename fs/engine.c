/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine.c - see engine.h and engine_i.h: life, pump, timer, reads.
 */
#include "fs/engine_i.h"

#include "cache/tier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_FIRST 256u
#define PUMP_ROUNDS_MAX 16 /* then the timer thread goes on: a reader's thread is not kept for ever */
#define SWEEP_NAMES 512u
#define TIER_END_MS 2000 /* for what is not on disk yet */
#define TIMER_IDLE_NS (1000 * HFS_NS_PER_MS)

/* ---- events -------------------------------------------------------------------------- */

static void event_drop(struct engine *e, const struct event *ev)
{
	if (ev->file)
		cache_file_put(e->cache, ev->file);
	free(ev->path);
	free(ev->news);
}

/* False: no memory for it. */
static bool events_put(struct engine *e, const struct event *ev, bool *ret_is_closed)
{
	bool is_taken;

	hfs_mutex_lock(&e->ev_lock);
	if (e->n_evs == e->evs_cap && !e->is_closed) {
		uint32_t cap = e->evs_cap ? e->evs_cap * 2 : EVENTS_FIRST;
		struct event *p = realloc(e->evs, cap * sizeof(*p));

		if (p) {
			e->evs = p;
			e->evs_cap = cap;
		}
	}
	*ret_is_closed = e->is_closed;
	is_taken = e->n_evs < e->evs_cap && !e->is_closed;
	if (is_taken) {
		e->evs[e->n_evs++] = *ev;
		atomic_store(&e->has_events, true);
	}
	hfs_mutex_unlock(&e->ev_lock);
	return is_taken;
}

static uint32_t events_take(struct engine *e, struct event **ret)
{
	uint32_t n, cap;

	hfs_mutex_lock(&e->ev_lock);
	n = e->n_evs;
	*ret = e->evs;
	cap = e->evs_cap;
	e->evs = e->evs_spare;
	e->evs_cap = e->spare_cap;
	e->evs_spare = *ret;
	e->spare_cap = cap;
	e->n_evs = 0;
	atomic_store(&e->has_events, false);
	hfs_mutex_unlock(&e->ev_lock);
	return n;
}

/* The spare list is this thread's until the next take, which needs the engine's lock too. */
void engine_feed_locked(struct engine *e, struct wait **done)
{
	struct event *evs;
	uint32_t n = events_take(e, &evs);

	for (uint32_t i = 0; i < n; i++)
		engine_event_locked(e, &evs[i], done);
}

static void pump_once_locked(struct engine *e, struct wait **done) HFS_REQUIRES(e->lock)
{
	engine_feed_locked(e, done);
	if (e->gc_left > 0)
		names_sweep_locked(e, SWEEP_NAMES);
	engine_run_locked(e, done);
}

/* It cannot be left for others: fed by this thread, behind those that were left before. */
static void post_now(struct engine *e, struct event *ev)
{
	struct wait *done = NULL;
	bool is_closed;

	hfs_mutex_lock(&e->lock);
	engine_feed_locked(e, &done);
	hfs_mutex_lock(&e->ev_lock);
	is_closed = e->is_closed;
	hfs_mutex_unlock(&e->ev_lock);
	if (!is_closed) /* nor is it before this lock is given back */
		engine_event_locked(e, ev, &done);
	engine_run_locked(e, &done);
	hfs_mutex_unlock(&e->lock);
	if (is_closed)
		event_drop(e, ev);
	engine_calls(e, done);
}

void engine_post(struct engine *e, const struct event *ev)
{
	struct event own = *ev;
	bool is_closed;

	if (events_put(e, ev, &is_closed))
		return;
	if (is_closed)
		event_drop(e, &own);
	else
		post_now(e, &own);
}

/*
 * In the scheduler's books all of them are done already: a page of a name whose last page is to be evicted may have others
 * before it. So none of these names gives its generation back before its last action was executed.
 */
static void actions_run_locked(struct engine *e, const struct sched_action *acts, size_t n, struct wait **done)
	HFS_REQUIRES(e->lock)
{
	for (size_t i = 0; i < n; i++)
		if (acts[i].kind != SCHED_WAIT_DONE)
			name_at(e, acts[i].file)->n_acts++;
	for (size_t i = 0; i < n; i++) {
		engine_execute_locked(e, &acts[i], done);
		if (acts[i].kind != SCHED_WAIT_DONE && --name_at(e, acts[i].file)->n_acts == 0)
			name_trim_locked(e, acts[i].file);
	}
}

void engine_run_locked(struct engine *e, struct wait **done)
{
	HFS_UNINITIALIZED struct sched_action acts[ACTIONS_MAX]; /* 12 KiB, a call for each event */
	uint64_t retry_ns;
	size_t n;

	if (e->is_stopping)
		return;
	retry_ns = tier_retry_locked(e);
	do {
		n = sched_step(e->sched, hfs_now_ns(), acts, ACTIONS_MAX);
		actions_run_locked(e, acts, n, done);
	} while (n == ACTIONS_MAX);
	e->next_ns = sched_next_ns(e->sched);
	if (retry_ns < e->next_ns)
		e->next_ns = retry_ns;
	if (e->gc_left > 0)
		e->next_ns = 0;
	if (e->next_ns < e->timer_ns)
		hfs_cond_signal(&e->timer_wake);
}

static void failed_call(struct engine *e)
{
	HFS_UNINITIALIZED struct failed failed[FAILED_MAX];
	uint32_t n;

	hfs_mutex_lock(&e->lock);
	n = atomic_load(&e->n_failed);
	memcpy(failed, e->failed, n * sizeof(*failed));
	atomic_store(&e->n_failed, 0);
	hfs_mutex_unlock(&e->lock);
	for (uint32_t i = 0; i < n; i++) {
		cache_file_fail(e->cache, failed[i].file, failed[i].chunk_no, failed[i].err);
		cache_file_put(e->cache, failed[i].file);
	}
}

void engine_calls(struct engine *e, struct wait *done)
{
	if (atomic_load(&e->n_failed) > 0)
		failed_call(e);
	while (done) {
		struct wait *w = done;

		done = w->next;
		w->done(w->arg, w->err);
		free(w);
	}
}

void engine_pump(struct engine *e)
{
	for (int round = 0; atomic_load(&e->has_events); round++) {
		struct wait *done = NULL;

		if (atomic_exchange(&e->is_pumping, true))
			return; /* that thread looks again when it is through */
		hfs_mutex_lock(&e->lock);
		if (round < PUMP_ROUNDS_MAX) {
			pump_once_locked(e, &done);
		} else {
			e->next_ns = 0;
			hfs_cond_signal(&e->timer_wake);
		}
		hfs_mutex_unlock(&e->lock);
		atomic_store(&e->is_pumping, false);
		engine_calls(e, done);
		if (round >= PUMP_ROUNDS_MAX)
			return;
	}
}

void engine_enter(struct engine *e)
{
	hfs_mutex_lock(&e->lock);
}

void engine_leave(struct engine *e)
{
	struct wait *done = NULL;

	engine_run_locked(e, &done);
	hfs_mutex_unlock(&e->lock);
	engine_calls(e, done);
	engine_pump(e);
}

static void *timer_main(void *arg)
{
	struct engine *e = arg;

	pthread_setname_np(pthread_self(), "hfs-engine");
	hfs_mutex_lock(&e->lock);
	while (!e->is_stopping) {
		uint64_t now_ns = hfs_now_ns(), until = now_ns + TIMER_IDLE_NS;
		struct wait *done = NULL;

		if (e->next_ns > now_ns) {
			e->timer_ns = e->next_ns < until ? e->next_ns : until;
			hfs_cond_wait_until(&e->timer_wake, &e->lock, e->timer_ns);
			e->timer_ns = 0;
			continue;
		}
		e->next_ns = SCHED_NO_TIME;
		if (e->gc_left > 0)
			names_sweep_locked(e, SWEEP_NAMES);
		engine_run_locked(e, &done);
		hfs_mutex_unlock(&e->lock);
		engine_calls(e, done);
		engine_pump(e);
		hfs_mutex_lock(&e->lock);
	}
	hfs_mutex_unlock(&e->lock);
	return NULL;
}

/* ---- callbacks of the cache: any thread, no lock ------------------------------------------ */

static void on_fetched(void *ctx, const struct cache_fetch_result *r)
{
	struct engine *e = ctx;
	struct event ev = { .kind = EV_FETCHED,
			    .name = cache_file_tag(r->file),
			    .file = r->file,
			    .err = r->err,
			    .off_bytes = r->chunk_no,
			    .fetch_off = r->off_bytes,
			    .fetch_len = r->len_bytes,
			    .issued_ns = r->issued_ns,
			    .now_ns = r->done_ns,
			    .is_tier_missed = r->is_tier_missed };

	cache_file_ref(r->file);
	engine_post(e, &ev);
	engine_pump(e);
}

static void on_changed(void *ctx, struct cache_file *f)
{
	struct engine *e = ctx;
	struct event ev = { .kind = EV_CHANGED, .name = cache_file_tag(f), .file = f, .now_ns = hfs_now_ns() };

	cache_file_ref(f);
	engine_post(e, &ev);
	engine_pump(e);
	if (e->cfg.changed)
		e->cfg.changed(e->cfg.ctx, f);
}

static void on_resolved(void *ctx, uint64_t cookie, const char *path, int err, struct cache_file *file,
			const struct origin_attr *attr, bool is_small, const struct cache_fetch_result *fetch)
{
	struct engine *e = ctx;
	struct event ev = { .kind = EV_RESOLVED, .name = (uint32_t)cookie, .err = err, .file = file, .now_ns = hfs_now_ns() };

	if (err == 0) {
		ev.size_bytes = attr->id.size_bytes;
		ev.is_small = is_small;
		ev.reader = 0;
		if (fetch) {
			ev.fetch_len = fetch->len_bytes;
			ev.issued_ns = fetch->issued_ns;
			ev.off_bytes = fetch->err < 0 ? (uint64_t)-fetch->err : 0;
		}
		if (!fetch || fetch->err >= 0) /* else what was seen at the open was not proven by the data */
			engine_attr_note(e, path, attr, ev.now_ns);
	}
	engine_post(e, &ev);
	engine_pump(e);
}

static void on_lost(void *ctx, struct cache_file *f, uint64_t off_bytes, uint64_t len_bytes, uint64_t waited_ns)
{
	struct engine *e = ctx;
	struct event ev = { .kind = EV_LOST,
			    .name = cache_file_tag(f),
			    .file = f,
			    .off_bytes = off_bytes,
			    .len_bytes = len_bytes,
			    .is_miss = true,
			    .waited_ns = waited_ns,
			    .now_ns = hfs_now_ns() };

	cache_file_ref(f);
	engine_post(e, &ev);
	engine_pump(e);
}

static void on_slots_ready(void *ctx, uint32_t slots)
{
	struct event ev = { .kind = EV_SLOTS, .name = slots, .now_ns = hfs_now_ns() };

	engine_post(ctx, &ev);
	engine_pump(ctx);
}

static void on_slots_lent(void *ctx, int change)
{
	struct event ev = { .kind = EV_SLOTS_LENT, .err = change, .now_ns = hfs_now_ns() };

	engine_post(ctx, &ev);
	engine_pump(ctx);
}

static void on_starved(void *ctx, uint32_t n)
{
	struct event ev = { .kind = EV_STARVED, .name = n, .now_ns = hfs_now_ns() };

	engine_post(ctx, &ev);
	engine_pump(ctx);
}

/* ---- reading ---------------------------------------------------------------------------------- */

void engine_read(struct engine *e, struct cache_read *r, uint64_t reader, bool may_bind)
{
	struct cache_file *f = r->file;
	struct event ev = { .kind = EV_READ,
			    .name = cache_file_tag(f),
			    .off_bytes = r->off_bytes,
			    .len_bytes = r->len_bytes,
			    .asked_off = r->off_bytes,
			    .asked_len = r->len_bytes,
			    .reader = reader,
			    .may_bind = may_bind && !cache_file_is_superseded(f) };
	struct cache_range missing = { 0 };

	cache_file_ref(f); /* r and its file may be gone when the call returns */
	int rc = cache_read_submit(e->cache, r, &missing);
	if (rc < 0) {
		r->done(r, rc, NULL, 0);
		cache_file_put(e->cache, f);
		return;
	}
	ev.now_ns = hfs_now_ns();
	ev.is_miss = rc == 0 && missing.len_bytes > 0;
	if (ev.is_miss) {
		ev.file = f;
		ev.off_bytes = missing.off_bytes;
		ev.len_bytes = missing.len_bytes;
	} else if (ev.may_bind && ev.name == NAME_NONE) { /* of the news of its fetch this may be the first */
		ev.file = f;
	} else {
		cache_file_put(e->cache, f);
	}
	engine_post(e, &ev);
	engine_pump(e);
}

bool engine_read_cancel(struct engine *e, struct cache_read *r)
{
	return cache_read_cancel(e->cache, r);
}

int engine_file_bind(struct engine *e, struct cache_file *f, const char *path, uint64_t reader)
{
	uint32_t name;
	int rc;

	hfs_mutex_lock(&e->lock);
	rc = name_bind_path_locked(e, path, f, &name);
	if (rc == 0) {
		name_at(e, name)->n_bind++;
		sched_open(e->sched, name, reader, hfs_now_ns());
	}
	engine_leave(e);
	return rc;
}

void engine_file_unbind(struct engine *e, struct cache_file *f, uint64_t reader)
{
	uint32_t name = cache_file_tag(f);

	hfs_mutex_lock(&e->lock);
	assert(name != NAME_NONE && name_at(e, name)->n_bind > 0);
	name_at(e, name)->n_bind--;
	sched_close(e->sched, name, reader, hfs_now_ns());
	name_trim_locked(e, name);
	engine_leave(e);
}

/* ---- life ----------------------------------------------------------------------------------------- */

static int engine_init(struct engine *e)
{
	struct sched_config sc = { .chunk_bytes = e->cfg.cache.chunk_bytes,
				   .slots = 1, /* more as they are touched: on_slots_ready */
				   .inflight_max = 1024, /* demand; prefetch adapts far below */
				   .inflight_bytes_max = e->cfg.cache.memory_bytes / 2,
				   .prefetch_bytes_per_s = e->cfg.prefetch_bytes_per_s,
				   .seed = e->cfg.seed };

	e->slots_total = (uint32_t)(e->cfg.cache.memory_bytes / e->cfg.cache.chunk_bytes);
	e->attrs = calloc(ATTRS_SLOTS, sizeof(*e->attrs));
	if (!e->attrs)
		return -ENOMEM;
	if (e->cfg.tier) {
		HFS_TRY(tier_begin(e));
		sc.disk_pages = tier_pages_that_fit(e);
	}
	HFS_TRY(sched_create(&sc, &e->sched));
	e->cfg.cache.cb = (struct cache_callbacks){ .ctx = e,
						    .fetched = on_fetched,
						    .changed = on_changed,
						    .resolved = on_resolved,
						    .lost = on_lost,
						    .slots_ready = on_slots_ready,
						    .slots_lent = on_slots_lent,
						    .starved = on_starved };
	HFS_TRY(cache_create(&e->cfg.cache, &e->cache));
	int rc = -pthread_create(&e->timer, NULL, timer_main, e);
	e->is_timer_started = rc == 0;
	return rc;
}

int engine_create(const struct engine_config *cfg, struct engine **ret_e)
{
	struct engine *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return -ENOMEM;
	e->cfg = *cfg;
	e->block_bytes = (uint32_t)(cfg->cache.chunk_bytes / 256 < 4096 ? 4096 : cfg->cache.chunk_bytes / 256);
	e->next_ns = SCHED_NO_TIME;
	e->next_token = 1;
	hfs_mutex_init(&e->lock, HFS_RANK_ENGINE);
	hfs_mutex_init(&e->ev_lock, HFS_RANK_LEAF);
	hfs_mutex_init(&e->attr_lock, HFS_RANK_LEAF);
	hfs_mutex_init(&e->record_lock, HFS_RANK_LEAF);
	hfs_cond_init(&e->timer_wake);
	hfs_mutex_lock(&e->lock); /* news of the first threads has to wait for the rest */
	rc = engine_init(e);
	hfs_mutex_unlock(&e->lock);
	if (rc) {
		engine_shutdown(e);
		engine_destroy(e, 0);
		return rc;
	}
	*ret_e = e;
	return 0;
}

void engine_shutdown(struct engine *e)
{
	struct wait *waits;

	hfs_mutex_lock(&e->lock);
	e->is_stopping = true;
	waits = e->waits;
	e->waits = NULL;
	hfs_cond_broadcast(&e->timer_wake);
	hfs_mutex_unlock(&e->lock);
	for (struct wait *w = waits; w; w = w->next)
		w->err = -ESHUTDOWN;
	engine_calls(e, waits);
	if (e->is_timer_started)
		pthread_join(e->timer, NULL);
	e->is_timer_started = false;
	if (e->cache)
		cache_shutdown(e->cache);
	if (e->tier)
		tier_shutdown(e->tier);
}

bool engine_destroy(struct engine *e, unsigned wait_ms)
{
	struct wait *done = NULL;

	if (!e)
		return true;
	/* The cache's workers may still call back until cache_destroy() has seen them end, the tier's until tier_destroy() has. */
	hfs_mutex_lock(&e->ev_lock);
	e->is_closed = true;
	hfs_mutex_unlock(&e->ev_lock);
	hfs_mutex_lock(&e->lock);
	pump_once_locked(e, &done); /* events hold references */
	names_finish(e);
	e->gc_left = 0;
	while (e->unscheduled) {
		struct unscheduled *u = e->unscheduled;

		e->unscheduled = u->next;
		free(u);
	}
	hfs_mutex_unlock(&e->lock);
	engine_calls(e, done);
	if (e->cache && !cache_destroy(e->cache, wait_ms))
		return false;
	if (e->tier && !tier_destroy(e->tier, TIER_END_MS))
		return false;
	sched_destroy(e->sched);
	free(e->evs);
	free(e->evs_spare);
	free(e->attrs);
	free(e->record);
	free(e->tier_again);
	hfs_cond_finish(&e->timer_wake);
	hfs_mutex_finish(&e->record_lock);
	hfs_mutex_finish(&e->attr_lock);
	hfs_mutex_finish(&e->ev_lock);
	hfs_mutex_finish(&e->lock);
	free(e);
	return true;
}

struct cache *engine_cache(struct engine *e)
{
	return e->cache;
}
