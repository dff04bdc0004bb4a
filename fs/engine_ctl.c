/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_ctl.c - the engine as the control session sees it: streams, waits, figures. Thin: take the lock, hand over, run.
 */
#include "fs/engine_i.h"

#include "cache/cred.h"

#include <stdlib.h>

int engine_stream_create(struct engine *e, uint32_t *ret_stream)
{
	engine_enter(e);
	int rc = e->is_stopping ? -ESHUTDOWN : sched_stream_create(e->sched, ret_stream);
	engine_leave(e);
	return rc;
}

/* A list went: names that only it knew can go. */
static void sweep_start(struct engine *e)
{
	e->gc_left = e->n_names;
}

void engine_stream_destroy(struct engine *e, uint32_t stream)
{
	engine_enter(e);
	sched_stream_destroy(e->sched, stream);
	sweep_start(e);
	engine_leave(e);
}

void engine_stream_replace(struct engine *e, uint32_t stream)
{
	engine_enter(e);
	sched_stream_replace(e->sched, stream);
	sweep_start(e);
	engine_leave(e);
}

void engine_stream_cancel(struct engine *e, uint32_t stream)
{
	engine_enter(e);
	sched_stream_cancel(e->sched, stream);
	sweep_start(e);
	engine_leave(e);
}

int64_t engine_stream_append(struct engine *e, uint32_t stream, const struct sched_entry *entries, size_t n)
{
	engine_enter(e);
	int64_t rc = e->is_stopping ? -ESHUTDOWN : sched_stream_append(e->sched, stream, entries, n);
	engine_leave(e);
	return rc;
}

int engine_stream_mark(struct engine *e, uint32_t stream, enum sched_mark mark, uint64_t value)
{
	engine_enter(e);
	int rc = e->is_stopping ? -ESHUTDOWN : sched_stream_mark(e->sched, stream, mark, value, hfs_now_ns());
	engine_leave(e);
	return rc;
}

int engine_stream_stats(struct engine *e, uint32_t stream, struct sched_stream_stats *ret)
{
	hfs_mutex_lock(&e->lock);
	int rc = sched_stream_stats_get(e->sched, stream, ret);
	hfs_mutex_unlock(&e->lock);
	return rc;
}

void engine_windows(struct engine *e, uint64_t ret[SCHED_STREAMS_MAX])
{
	hfs_mutex_lock(&e->lock);
	sched_windows_get(e->sched, ret);
	hfs_mutex_unlock(&e->lock);
}

int engine_stream_list(struct engine *e, uint32_t stream, struct sched_list *ret)
{
	hfs_mutex_lock(&e->lock);
	int rc = sched_list_begin(e->sched, stream, ret);
	hfs_mutex_unlock(&e->lock);
	return rc;
}

size_t engine_stream_items(struct engine *e, uint32_t stream, struct sched_list *at, struct sched_item *ret, size_t n)
{
	hfs_mutex_lock(&e->lock);
	size_t k = sched_list_next(e->sched, stream, at, ret, n);
	hfs_mutex_unlock(&e->lock);
	return k;
}

/* ---- waits ------------------------------------------------------------------------------------ */

static int wait_tell(struct engine *e, struct wait *w)
{
	w->is_told = true;
	if (w->is_batch)
		return sched_wait_batch(e->sched, w->id, w->batch, w->token, hfs_now_ns());
	return sched_wait_file(e->sched, w->id, w->token, hfs_now_ns());
}

void waits_tell_locked(struct engine *e, struct wait **done)
{
	if (e->slots_ready < e->slots_total)
		return;
	for (struct wait **p = &e->waits, *w; (w = *p);) {
		w->err = w->is_told ? 0 : wait_tell(e, w);
		if (w->err < 0) {
			*p = w->next;
			w->next = *done;
			*done = w;
		} else {
			p = &w->next;
		}
	}
}

static int wait_add(struct engine *e, const struct wait *what, uint64_t *ret_token)
{
	struct wait *w = malloc(sizeof(*w));
	int rc = 0;

	if (!w)
		return -ENOMEM;
	engine_enter(e);
	*w = *what;
	w->next = e->waits;
	w->token = e->next_token++;
	*ret_token = w->token;
	if (e->is_stopping)
		rc = -ESHUTDOWN;
	else if (e->slots_ready >= e->slots_total)
		rc = wait_tell(e, w);
	if (rc < 0)
		free(w);
	else
		e->waits = w;
	engine_leave(e);
	return rc;
}

int engine_wait_batch(struct engine *e, uint32_t stream, uint64_t batch, void (*done)(void *arg, int err), void *arg,
		      uint64_t *ret_token)
{
	struct wait w = { .is_batch = true, .id = stream, .batch = batch, .done = done, .arg = arg };

	return wait_add(e, &w, ret_token);
}

int engine_wait_file(struct engine *e, uint32_t name, void (*done)(void *arg, int err), void *arg, uint64_t *ret_token)
{
	struct wait w = { .id = name, .done = done, .arg = arg };

	return wait_add(e, &w, ret_token);
}

bool engine_wait_cancel(struct engine *e, uint64_t token)
{
	struct wait *found = NULL;

	engine_enter(e);
	for (struct wait **p = &e->waits; *p; p = &(*p)->next) {
		if ((*p)->token == token) {
			found = *p;
			*p = found->next;
			break;
		}
	}
	if (found)
		sched_wait_cancel(e->sched, token);
	engine_leave(e);
	free(found);
	return found != NULL;
}

/* ---- figures ------------------------------------------------------------------------------------ */

void engine_prefetch_set(struct engine *e, enum sched_prefetch mode)
{
	engine_enter(e);
	e->prefetch = mode;
	sched_set_prefetch(e->sched, mode);
	engine_leave(e);
}

enum sched_prefetch engine_prefetch_get(struct engine *e)
{
	hfs_mutex_lock(&e->lock);
	enum sched_prefetch mode = e->prefetch;
	hfs_mutex_unlock(&e->lock);
	return mode;
}

void engine_stats(struct engine *e, struct cache_stats *ret_cache, struct sched_stats *ret_sched)
{
	cache_stats_get(e->cache, ret_cache);
	hfs_mutex_lock(&e->lock);
	sched_stats_get(e->sched, ret_sched);
	hfs_mutex_unlock(&e->lock);
}

uint64_t engine_shed_pages(struct engine *e)
{
	uint64_t n;

	hfs_mutex_lock(&e->lock);
	n = e->n_shed;
	hfs_mutex_unlock(&e->lock);
	return n;
}

/* ---- refused as ourselves ----------------------------------------------------------------------- */

void engine_guest_note(struct engine *e, uint32_t uid, uint32_t gid, uint32_t tid)
{
	struct cred *cr = cred_of_caller(uid, gid, tid);

	if (cr)
		cache_set_guest(e->cache, cr);
	cred_put(cr);
}

int engine_as_guest(struct engine *e, int (*fn)(void *arg), void *arg)
{
	struct cred *cr = cache_guest_get(e->cache);
	int rc = -EACCES;

	if (cr && cred_assume(cr) == 0) {
		rc = fn(arg);
		cred_drop(cr);
	}
	cred_put(cr);
	return rc;
}
