/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_open.c - OPEN and RELEASE, and the table that leads an OPEN answered ESTALE to its new generation.
 *
 * The table (view->stale, guarded by view->lock): OPEN finds another identity -> slot {thread, parent, name}; the LOOKUP of
 * the same thread and name opens afresh and leaves node id and descriptor in the slot; the OPEN of that node by that thread
 * takes the descriptor and asks nothing. Slots and descriptors die after a second.
 */
#include "fs/data_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the ESTALE table --------------------------------------------------------------------- */

/* Empties a slot; returns its descriptor to be closed without the lock, or -1. */
static int stale_clear_locked(struct data_view *v, struct stale_slot *s)
{
	int fd = s->fd;

	free(s->name);
	*s = (struct stale_slot){ .fd = -1 };
	v->n_stale--;
	return fd;
}

static struct stale_slot *stale_find_locked(struct data_view *v, uint32_t tid, uint64_t parent_id, const char *name)
{
	uint64_t now_ns = hfs_now_ns();

	for (unsigned i = 0; v->n_stale && i < STALE_SLOTS; i++) {
		struct stale_slot *s = &v->stale[i];

		if (s->until_ns > now_ns && s->tid == tid && s->parent_id == parent_id && !strcmp(s->name, name))
			return s;
	}
	return NULL;
}

static void stale_note(struct data_view *v, uint32_t tid, uint64_t parent_id, const char *name)
{
	char *copy = strdup(name);
	struct stale_slot *s;
	int fd = -1;

	if (!copy)
		return;
	hfs_mutex_lock(&v->lock);
	s = stale_find_locked(v, tid, parent_id, name);
	for (unsigned i = 0; !s && i < STALE_SLOTS; i++) {
		if (v->stale[i].until_ns == 0)
			s = &v->stale[i];
	}
	if (!s) { /* full: the oldest goes */
		s = &v->stale[0];
		for (unsigned i = 1; i < STALE_SLOTS; i++) {
			if (v->stale[i].until_ns < s->until_ns)
				s = &v->stale[i];
		}
	}
	if (s->until_ns)
		fd = stale_clear_locked(v, s);
	*s = (struct stale_slot){ .until_ns = hfs_now_ns() + STALE_NS, .parent_id = parent_id, .tid = tid, .fd = -1, .name = copy };
	v->n_stale++;
	hfs_cond_signal(&v->wake);
	hfs_mutex_unlock(&v->lock);
	if (fd >= 0)
		close(fd);
}

bool data_stale_expected(struct data_view *v, uint32_t tid, uint64_t parent_id, const char *name)
{
	hfs_mutex_lock(&v->lock);
	bool is = stale_find_locked(v, tid, parent_id, name) != NULL;
	hfs_mutex_unlock(&v->lock);
	return is;
}

void data_stale_keep(struct data_view *v, uint32_t tid, uint64_t parent_id, const char *name, uint64_t node_id, int fd)
{
	int drop = fd;

	hfs_mutex_lock(&v->lock);
	struct stale_slot *s = stale_find_locked(v, tid, parent_id, name);
	if (s) {
		drop = s->fd;
		s->fd = fd;
		s->node_id = node_id;
		s->until_ns = hfs_now_ns() + STALE_NS;
	}
	hfs_mutex_unlock(&v->lock);
	if (drop >= 0)
		close(drop);
}

/* The descriptor that a LOOKUP left for this thread's OPEN of the node, or -1. */
static int stale_take(struct data_view *v, uint32_t tid, uint64_t node_id)
{
	int fd = -1;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; v->n_stale && fd < 0 && i < STALE_SLOTS; i++) {
		struct stale_slot *s = &v->stale[i];

		if (s->until_ns && s->fd >= 0 && s->tid == tid && s->node_id == node_id) {
			s->node_id = 0;
			fd = stale_clear_locked(v, s);
		}
	}
	hfs_mutex_unlock(&v->lock);
	return fd;
}

void data_stale_sweep(struct data_view *v, uint64_t now_ns, bool is_all)
{
	int fds[STALE_SLOTS];
	unsigned n = 0;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; i < STALE_SLOTS; i++) {
		struct stale_slot *s = &v->stale[i];

		if (s->until_ns && (is_all || s->until_ns <= now_ns)) {
			fds[n] = stale_clear_locked(v, s);
			n += fds[n] >= 0;
		}
	}
	hfs_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

/* Make the handle; fd (may be -1) is open on exactly this generation and changes hands. */
static int handle_create(struct data_req *r, const char *path, int fd, struct data_handle **ret_h)
{
	struct data_view *v = r->v;
	struct cache *c = engine_cache(v->h->engine);
	struct data_handle *h = calloc(1, sizeof(*h));
	struct cache_file *f = h ? cache_file_get(c, &r->node->attr.id, path) : NULL;

	if (!f) {
		free(h);
		if (fd >= 0)
			close(fd);
		return -ENOMEM;
	}
	if (fd >= 0)
		cache_file_give_fd(c, f, fd);
	if (!node_open(v->nodes, r->node, f, &h->file))
		cache_file_put(c, f);
	int rc = engine_file_bind(v->h->engine, h->file, path, r->tid);
	if (rc < 0) {
		f = node_close(v->nodes, r->node);
		if (f)
			cache_file_put(c, f);
		free(h);
		return rc;
	}
	h->node = r->node;
	node_ref(v->nodes, h->node);
	atomic_fetch_add(&v->n_open, 1);
	hfs_mutex_lock(&v->lock);
	h->next = v->handles;
	if (h->next)
		h->next->prev = h;
	v->handles = h;
	hfs_mutex_unlock(&v->lock);
	*ret_h = h;
	return 0;
}

static void answer_open(struct data_req *r, const char *path, int fd)
{
	struct data_result res = { 0 };
	int rc = handle_create(r, path, fd, &res.handle);

	if (!data_answer(r, rc, &res) && rc == 0)
		data_release(r->v, res.handle, r->tid);
}

static void answer_estale(struct data_req *r)
{
	struct data_view *v = r->v;

	node_supersede(v->nodes, r->node);
	node_ref(v->nodes, r->node);
	data_superseded(v, r->node);
	stale_note(v, r->tid, r->node->parent->id, r->node->name);
	atomic_fetch_add(&v->h->stale_opens, 1);
	data_answer(r, -ESTALE, NULL);
}

static void job_open(void *arg)
{
	struct data_req *r = arg;
	struct origin_attr attr;
	char *path = data_req_path(r);
	int fd = -1, rc = path ? origin_open(r->v->h->origin, path, &fd, &attr) : -ENOMEM;

	if (rc == 0 && hfs_identity_equal(&attr.id, &r->node->attr.id)) {
		answer_open(r, path, fd);
		fd = -1;
	} else if (rc == 0 || rc == -EISDIR || rc == -ELOOP || rc == -ENXIO || rc == -ESTALE) {
		answer_estale(r);
	} else {
		data_answer(r, rc, NULL);
	}
	if (fd >= 0)
		close(fd);
	free(path);
	data_job_done(r);
}

void data_open(struct data_req *r)
{
	struct data_view *v = r->v;
	int fd;

	if (r->node->kind != S_IFREG) {
		data_answer(r, r->node->kind == S_IFDIR ? -EISDIR : -ELOOP, NULL);
		return;
	}
	fd = stale_take(v, r->tid, r->node_id);
	if (fd < 0 && r->node->is_superseded) {
		answer_estale(r);
		return;
	}
	if (fd < 0 && !v->h->opts.is_nocto && !v->h->opts.is_immutable) {
		data_park_meta(r, job_open);
		return;
	}
	char *path = data_req_path(r);
	if (!path) {
		if (fd >= 0)
			close(fd);
		data_answer(r, -ENOMEM, NULL);
		return;
	}
	answer_open(r, path, fd);
	free(path);
}

void data_release(struct data_view *v, struct data_handle *h, uint32_t tid)
{
	hfs_mutex_lock(&v->lock);
	*(h->prev ? &h->prev->next : &v->handles) = h->next;
	if (h->next)
		h->next->prev = h->prev;
	hfs_mutex_unlock(&v->lock);
	engine_file_unbind(v->h->engine, h->file, tid);
	struct cache_file *f = node_close(v->nodes, h->node);
	if (f)
		cache_file_put(engine_cache(v->h->engine), f);
	node_put(v->nodes, h->node);
	atomic_fetch_sub(&v->n_open, 1);
	free(h);
}
