/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/fds.c - descriptors of the origin: few, shared, closed early (law 6).
 *
 * 1. c->n_fds counts every descriptor from the reservation before its open to its close, and never exceeds fds_max.
 * 2. A descriptor is listed (oldest use first) while its file points to it. Detached ones are closed when the last
 *    user is done, always by a thread that may wait.
 * 3. Idle for 10 s: closed. An idle descriptor on NFS keeps a replaced file alive under its old name.
 */
#include "cache/cache_i.h"

#include "cache/base/err.h"
#include "cache/base/time.h"

#include <assert.h>
#include <stdlib.h>

static void unlist(struct cache *c, struct origin_fd *o)
{
	if (o->prev != NULL)
		o->prev->next = o->next;
	else
		c->fd_oldest = o->next;
	if (o->next != NULL)
		o->next->prev = o->prev;
	else
		c->fd_newest = o->prev;
	o->next = o->prev = NULL;
}

static void list_newest(struct cache *c, struct origin_fd *o)
{
	o->prev = c->fd_newest;
	o->next = NULL;
	if (o->prev != NULL)
		o->prev->next = o;
	else
		c->fd_oldest = o;
	c->fd_newest = o;
}

struct origin_fd *fd_get_locked(struct cache *c, struct cache_file *f)
{
	struct origin_fd *o = f->ofd;

	(void)c;
	if (o != NULL)
		o->n_users++;
	return o;
}

static void bury(struct cache *c, struct origin_fd *o)
{
	o->next = c->graveyard;
	c->graveyard = o;
	c->n_dead++;
}

static struct origin_fd *dead_take_locked(struct cache *c)
{
	struct origin_fd *list = c->graveyard;

	c->graveyard = NULL;
	c->n_dead = 0;
	return list;
}

void fd_put_locked(struct cache *c, struct origin_fd *o)
{
	assert(o->n_users > 0);
	o->n_users--;
	if (o->file == NULL) {
		if (o->n_users == 0)
			bury(c, o);
		return;
	}
	o->used_ns = hfs_now_ns();
	unlist(c, o);
	list_newest(c, o);
	if (o->n_users == 0)
		fetch_wake_fd_locked(c, NULL);
}

void fd_detach_locked(struct cache *c, struct origin_fd *o)
{
	unlist(c, o);
	o->file->ofd = NULL;
	o->file = NULL;
	if (o->n_users == 0)
		bury(c, o);
}

/* The one unused for longest, or NULL. */
static struct origin_fd *oldest_idle(struct cache *c)
{
	struct origin_fd *o = c->fd_oldest;

	while (o != NULL && o->n_users > 0)
		o = o->next;
	return o;
}

bool fd_reserve_locked(struct cache *c, struct batch *b)
{
	struct origin_fd *o;

	if (c->n_fds < c->fds_max) {
		c->n_fds++;
		return true;
	}
	o = oldest_idle(c);
	if (o == NULL)
		return false;
	unlist(c, o);
	o->file->ofd = NULL;
	o->file = NULL;
	o->is_traded = true; /* its place is the newcomer's: it is closed before that is opened */
	o->next = b->to_close;
	b->to_close = o;
	return true;
}

void fd_unreserve_locked(struct cache *c)
{
	c->n_fds--;
	fetch_wake_fd_locked(c, NULL);
}

struct origin_fd *fd_join_locked(struct cache *c, struct cache_file *f, int fd)
{
	struct origin_fd *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return NULL;
	o->fd = fd;
	o->n_users = 1;
	o->used_ns = hfs_now_ns();
	o->file = f;
	f->ofd = o;
	list_newest(c, o);
	return o;
}

void fd_close_list(struct cache *c, struct origin_fd *list)
{
	struct origin_fd *o;
	uint32_t n = 0;

	if (list == NULL)
		return;
	while ((o = list) != NULL) {
		list = o->next;
		(void)c->cfg.io->close(c->cfg.io->ctx, o->fd); /* read-only */
		n += !o->is_traded;
		free(o);
	}
	hfs_mutex_lock(&c->lock);
	c->n_fds -= n;
	fetch_wake_fd_locked(c, NULL);
	hfs_mutex_unlock(&c->lock);
}

void fd_close_dead(struct cache *c)
{
	struct origin_fd *list;

	hfs_mutex_lock(&c->lock);
	list = dead_take_locked(c);
	hfs_mutex_unlock(&c->lock);
	fd_close_list(c, list);
}

static void bury_main(void *arg)
{
	fd_close_dead(arg);
}

/* A job for each file that goes would wake a thread for each: the next visit that ends does it, or the tick if they all hang. */
static bool is_bury_left_to_visits(struct cache *c)
{
	bool is;

	hfs_mutex_lock(&c->lock);
	is = c->n_visitors > 0 && c->n_fds < c->fds_max / 2;
	hfs_mutex_unlock(&c->lock);
	return is;
}

void fd_bury_now(struct cache *c)
{
	/* Not taken (no memory, shutdown): the next tick or cache_destroy() does it. */
	int err = workq_run(c->workq, bury_main, c, false);

	(void)err;
}

void fd_bury(struct cache *c)
{
	if (!is_bury_left_to_visits(c))
		fd_bury_now(c);
}

/*
 * Descriptors that nobody needs any more. A close may wait (NFS), so a job that was left to this thread is given to another one
 * before; and for that to be seldom, they are closed a few at a time then.
 */
void fd_visit_end(struct cache *c, struct origin_fd *to_close)
{
	bool has_job = workq_tail_has_job(c->workq);
	struct origin_fd *dead = NULL;

	hfs_mutex_lock(&c->lock);
	c->n_visitors--;
	if (!has_job || c->n_dead >= DEAD_BATCH || c->n_fds >= c->fds_max / 2)
		dead = dead_take_locked(c);
	hfs_mutex_unlock(&c->lock);
	if (dead == NULL && to_close == NULL)
		return;
	workq_tail_end(c->workq);
	fd_close_list(c, to_close);
	fd_close_list(c, dead);
}

uint64_t fd_expire_locked(struct cache *c, uint64_t now_ns)
{
	struct origin_fd *o, *next;

	for (o = c->fd_oldest; o != NULL; o = next) {
		next = o->next;
		if (o->used_ns + FD_IDLE_NS > now_ns)
			return o->used_ns + FD_IDLE_NS;
		if (o->n_users == 0)
			fd_detach_locked(c, o);
	}
	return UINT64_MAX;
}

void cache_file_give_fd(struct cache *c, struct cache_file *f, int fd)
{
	struct origin_fd *o = calloc(1, sizeof(*o));
	struct batch b = {0};

	if (o == NULL) {
		(void)c->cfg.io->close(c->cfg.io->ctx, fd);
		return;
	}
	o->fd = fd;
	o->used_ns = hfs_now_ns();
	hfs_mutex_lock(&c->lock);
	if (c->is_stopping || f->ofd != NULL || !fd_reserve_locked(c, &b)) {
		c->n_fds++; /* over the limit for as long as its close takes */
		bury(c, o);
	} else {
		o->file = f;
		f->ofd = o;
		list_newest(c, o);
	}
	if (b.to_close != NULL) /* not here: this may be a thread that must not wait */
		bury(c, b.to_close);
	fetch_wake_fd_locked(c, f);
	bool has_dead = c->graveyard != NULL;
	hfs_mutex_unlock(&c->lock);
	if (has_dead)
		fd_bury(c);
	else
		workq_tick_soon(c->workq);
}
