/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_open.c - OPEN and RELEASE, and how an OPEN that was answered ESTALE finds its new generation.
 *
 * The kernel repeats the walk once after an ESTALE, so the second OPEN must not fail for yet another replacement. Two small
 * tables (guarded by view->lock; entries die by themselves, STALE_NS and NOTE_NS):
 *   notes  {thread, path, since}: this thread's OPEN of the path got ESTALE; `since` is when that OPEN came. By path, as
 *          the directories above are looked up again too and may have become other nodes.
 *   kept   {node, generation with a descriptor, fresh}: a LOOKUP of a noted path opened the file at `fresh` and found
 *          this generation.
 * An OPEN by a noted thread of a kept node binds to it without asking if fresh >= since: the content is not older than the
 * caller's open(). It need not be the same thread's LOOKUP: threads that look one name up at a time share
 * the answer to one of them, so a LOOKUP that finds a note newer than itself asks the origin again before it answers.
 * A note dies with the open() it was made in, with the answer to its OPEN; else the thread's
 * next open() would be judged by the time of an earlier one, and could bind to what is stale by now. A LOOKUP that fails
 * may be the end of the open(), or be repeated (the kernel asks again after a failed revalidation): after it, only a LOOKUP of the
 * same thread gives the note a time again.
 */
#include "fs/data_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINCE_NEVER UINT64_MAX

/* ---- notes and kept generations ------------------------------------------------------------ */

static struct stale_note *note_find_locked(struct data_view *v, uint32_t tid, const char *path)
{
	uint64_t now_ns = hfs_now_ns();

	for (unsigned i = 0; v->n_stale && i < STALE_SLOTS; i++) {
		struct stale_note *s = &v->notes[i];

		if (s->until_ns > now_ns && s->tid == tid && !strcmp(s->path, path))
			return s;
	}
	return NULL;
}

static void note_clear_locked(struct data_view *v, struct stale_note *s)
{
	free(s->path);
	*s = (struct stale_note){ 0 };
	v->n_stale--;
}

/* Takes path, which may be NULL: then there was no memory for it. */
static void note_add(struct data_view *v, const struct data_req *r, char *path)
{
	struct stale_note *s;

	if (!path)
		return;
	hfs_mutex_lock(&v->lock);
	s = note_find_locked(v, r->tid, path);
	for (unsigned i = 0; !s && i < STALE_SLOTS; i++) {
		if (v->notes[i].until_ns == 0)
			s = &v->notes[i];
	}
	if (!s) { /* full: the oldest goes */
		s = &v->notes[0];
		for (unsigned i = 1; i < STALE_SLOTS; i++) {
			if (v->notes[i].until_ns < s->until_ns)
				s = &v->notes[i];
		}
	}
	if (s->until_ns)
		note_clear_locked(v, s);
	*s = (struct stale_note){ .until_ns = hfs_now_ns() + NOTE_NS, .since_ns = r->came_ns, .tid = r->tid, .path = path };
	v->n_stale++;
	hfs_cond_signal(&v->wake);
	hfs_mutex_unlock(&v->lock);
}

static bool has_stale(struct data_view *v)
{
	hfs_mutex_lock(&v->lock);
	bool has = v->n_stale > 0;
	hfs_mutex_unlock(&v->lock);
	return has;
}

/*
 * This thread's open() is decided, without a note's help. A thread is in one open() at a time: a note of another path is of an earlier
 * one, which met a symbolic link on its second way. Threads that we cannot see are all number 0.
 */
static void stale_forget(const struct data_req *r, const char *path)
{
	struct data_view *v = r->v;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; v->n_stale && i < STALE_SLOTS; i++) {
		struct stale_note *s = &v->notes[i];

		if (s->until_ns && s->tid == r->tid && (s->tid || !strcmp(s->path, path)))
			note_clear_locked(v, s);
	}
	hfs_mutex_unlock(&v->lock);
}

/* This thread's LOOKUP of the path failed: whether its open() goes on is not known. */
void data_stale_failed(struct data_view *v, uint32_t tid, const char *path)
{
	hfs_mutex_lock(&v->lock);
	struct stale_note *s = note_find_locked(v, tid, path);
	if (s)
		s->since_ns = SINCE_NEVER;
	hfs_mutex_unlock(&v->lock);
}

enum stale data_stale_expected(struct data_view *v, const char *path)
{
	uint64_t now_ns = hfs_now_ns();
	size_t len = strlen(path);
	enum stale is = STALE_NO;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; v->n_stale && is != STALE_IT && i < STALE_SLOTS; i++) {
		const struct stale_note *s = &v->notes[i];

		if (s->until_ns <= now_ns || strncmp(s->path, path, len))
			continue;
		if (s->path[len] == '\0')
			is = STALE_IT;
		else if (s->path[len] == '/')
			is = STALE_BELOW;
	}
	hfs_mutex_unlock(&v->lock);
	return is;
}

bool data_stale_lookup(struct data_req *r)
{
	if (!has_stale(r->v))
		return false;
	const char *name = r->name_own ? r->name_own : r->name; /* name is the caller's, gone once the request is parked */
	char *path = node_path(r->v->nodes, r->node, name, strlen(name));
	bool is = !path || data_stale_expected(r->v, path) != STALE_NO;
	free(path);
	return is;
}

uint64_t data_stale_newest_ns(struct data_view *v, const char *path)
{
	uint64_t now_ns = hfs_now_ns(), newest_ns = 0;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; v->n_stale && i < STALE_SLOTS; i++) {
		const struct stale_note *s = &v->notes[i];

		if (s->until_ns > now_ns && s->since_ns != SINCE_NEVER && s->since_ns > newest_ns && !strcmp(s->path, path))
			newest_ns = s->since_ns;
	}
	hfs_mutex_unlock(&v->lock);
	return newest_ns;
}

void data_stale_keep(struct data_req *r, const char *path, uint64_t node_id, struct cache_file *f, uint64_t fresh_ns)
{
	struct data_view *v = r->v;
	struct stale_kept *k = &v->kept[0];
	struct cache_file *drop;

	hfs_mutex_lock(&v->lock);
	struct stale_note *s = note_find_locked(v, r->tid, path);
	if (s && s->since_ns == SINCE_NEVER)
		s->since_ns = fresh_ns;
	for (unsigned i = 0; i < STALE_SLOTS; i++) {
		if (v->kept[i].node_id == node_id) {
			k = &v->kept[i];
			break;
		}
		if (v->kept[i].until_ns < k->until_ns)
			k = &v->kept[i];
	}
	drop = k->file;
	if (!drop)
		v->n_stale++;
	/* A LOOKUP that began earlier and ends later makes what is known of the generation no older. */
	if (k->node_id == node_id && k->fresh_ns > fresh_ns)
		fresh_ns = k->fresh_ns;
	*k = (struct stale_kept){ .until_ns = hfs_now_ns() + STALE_NS, .fresh_ns = fresh_ns, .node_id = node_id, .file = f };
	hfs_cond_signal(&v->wake);
	hfs_mutex_unlock(&v->lock);
	if (drop)
		cache_file_put(engine_cache(v->h->engine), drop);
}

/* May this thread's OPEN bind to the node without asking? Its note has done its work then. */
static bool stale_take(const struct data_req *r)
{
	struct data_view *v = r->v;
	char *path = has_stale(v) ? node_path(v->nodes, r->node, NULL, 0) : NULL;
	bool is = false;

	if (!path)
		return false;
	hfs_mutex_lock(&v->lock);
	struct stale_note *s = note_find_locked(v, r->tid, path);
	for (unsigned i = 0; s && !is && i < STALE_SLOTS; i++)
		is = v->kept[i].file && v->kept[i].node_id == r->node_id && v->kept[i].fresh_ns >= s->since_ns;
	if (is)
		note_clear_locked(v, s);
	hfs_mutex_unlock(&v->lock);
	free(path);
	return is;
}

void data_stale_sweep(struct data_view *v, uint64_t now_ns, bool is_all)
{
	struct cache_file *drop[STALE_SLOTS];
	unsigned n = 0;

	hfs_mutex_lock(&v->lock);
	for (unsigned i = 0; i < STALE_SLOTS; i++) {
		struct stale_note *s = &v->notes[i];
		struct stale_kept *k = &v->kept[i];

		if (s->until_ns && (is_all || s->until_ns <= now_ns))
			note_clear_locked(v, s);
		if (k->file && (is_all || k->until_ns <= now_ns)) {
			drop[n++] = k->file;
			*k = (struct stale_kept){ 0 };
			v->n_stale--;
		}
	}
	hfs_mutex_unlock(&v->lock);
	for (unsigned i = 0; i < n; i++)
		cache_file_put(engine_cache(v->h->engine), drop[i]);
}

/* ---- OPEN ------------------------------------------------------------------------------------ */

/* False: the kernel was told meanwhile that OPENs are not needed. It would never close this one. */
static bool handle_link(struct data_view *v, struct data_handle *h)
{
	hfs_mutex_lock(&v->lock);
	bool is_late = v->is_no_open;
	if (!is_late) {
		h->next = v->handles;
		if (h->next)
			h->next->prev = h;
		v->handles = h;
	}
	hfs_mutex_unlock(&v->lock);
	return !is_late;
}

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
	data_caller_bind(r, f, fd >= 0, r->node->attr.mode);
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
	if (!handle_link(v, h)) {
		data_handle_close(v, h, r->tid);
		return -ENOSYS;
	}
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
	note_add(v, r, node_path(v->nodes, r->node, NULL, 0));
	atomic_fetch_add(&v->h->stale_opens, 1);
	data_answer(r, -ESTALE, NULL);
}

static void job_open(void *arg)
{
	struct data_req *r = arg;
	struct origin_attr attr;
	char *path = data_req_path(r);
	int fd = -1, rc = path ? data_origin_open(r, path, &fd, &attr) : -ENOMEM;
	bool is_anew = rc < 0 && data_walk_anew(r, rc) == -ESTALE;

	if (rc == 0 && hfs_identity_equal(&attr.id, &r->node->attr.id)) {
		stale_forget(r, path);
		answer_open(r, path, fd);
		fd = -1;
	} else if (rc == 0 || rc == -EISDIR || rc == -ELOOP || rc == -ENXIO || is_anew) {
		answer_estale(r);
	} else {
		stale_forget(r, path ? path : "");
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

	if (r->node->kind != S_IFREG) {
		data_answer(r, r->node->kind == S_IFDIR ? -EISDIR : -ELOOP, NULL);
		return;
	}
	bool is_bound = stale_take(r);
	if (!is_bound && r->node->is_superseded) {
		answer_estale(r);
		return;
	}
	if (!is_bound && !data_is_unchecked(v)) {
		data_park_meta(r, job_open);
		return;
	}
	if (data_no_open(r))
		return;
	char *path = data_req_path(r);
	if (path)
		answer_open(r, path, -1);
	else
		data_answer(r, -ENOMEM, NULL);
	free(path);
}

void data_release(struct data_view *v, struct data_handle *h, uint32_t tid)
{
	hfs_mutex_lock(&v->lock);
	bool is_ours = h && !v->is_no_open; /* else it was closed then */
	if (is_ours) {
		*(h->prev ? &h->prev->next : &v->handles) = h->next;
		if (h->next)
			h->next->prev = h->prev;
	}
	hfs_mutex_unlock(&v->lock);
	if (is_ours)
		data_handle_close(v, h, tid);
}

void data_handle_close(struct data_view *v, struct data_handle *h, uint32_t tid)
{
	engine_file_unbind(v->h->engine, h->file, tid);
	struct cache_file *f = node_close(v->nodes, h->node);
	if (f)
		cache_file_put(engine_cache(v->h->engine), f);
	node_put(v->nodes, h->node);
	atomic_fetch_sub(&v->n_open, 1);
	free(h);
}
