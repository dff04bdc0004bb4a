/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_meta.c - names and attributes: LOOKUP, GETATTR, READLINK, STATFS, xattrs; and the answers from the last
 * snapshot for all metadata when the origin is late.
 *
 * Every job_*() runs on a metadata thread and may block as long as the origin does. It collects its result in locals, claims the
 * request with data_answer(), and undoes what it did if somebody else had claimed it.
 */
#include "fs/data_i.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XATTR_BYTES_MAX 65536u
#define LOOKUPS_MAX 8 /* of one request, while others' OPENs find the file replaced */

static bool is_ctl_name(const struct data_req *r)
{
	return r->node_id == NODE_ROOT_ID && !strcmp(r->name, DATA_CTL_NAME);
}

/* The symlink to the control session: found by LOOKUP, absent from READDIR. */
static void ctl_attr(struct data_view *v, struct data_result *res)
{
	struct origin_attr a = {
		.id = { .dev = v->root_dev, .ino = DATA_CTL_ID, .size_bytes = strlen(v->h->opts.ctl_dir) },
		.mode = S_IFLNK | 0777,
		.nlink = 1,
		.uid = v->h->opts.ctl_uid,
		.gid = v->h->opts.ctl_gid,
		.blksize = 4096,
	};

	data_fill_entry(v, &res->entry, DATA_CTL_ID, &a);
}

static void answer_negative(struct data_req *r)
{
	struct data_result res = { .entry.timeout_s = r->v->timeout_s };

	data_answer(r, 0, &res);
}

/*
 * Answer with a node that was counted for the kernel; take the count back if the answer came too late. age_ns: of what is known; the
 * kernel's entry does not outlive the promise of `revalidate`.
 */
static void answer_node_aged(struct data_req *r, struct node *n, const struct origin_attr *attr, uint64_t age_ns)
{
	struct data_view *v = r->v;
	struct data_result res = { 0 };

	data_fill_entry(v, &res.entry, n->id, attr);
	res.entry.timeout_s = (double)hfs_sub_floor_u64(v->revalidate_ns, age_ns) / 1e9;
	uint64_t id = n->id;
	if (!data_answer(r, 0, &res))
		node_forget(v->nodes, id, 1);
}

void data_answer_node(struct data_req *r, struct node *n, const struct origin_attr *attr)
{
	answer_node_aged(r, n, attr, 0);
}

/* ---- LOOKUP --------------------------------------------------------------------------- */

/*
 * The origin met something else where a directory was, which the kernel holds for one as long as `revalidate` allows. Its name goes,
 * so that the walk which the kernel repeats after an ESTALE finds what lies there now.
 */
int data_walk_anew(struct data_req *r, int err)
{
	struct data_view *v = r->v;
	int rc = err;

	if (err != -ELOOP && err != -ENOTDIR)
		return err;
	for (struct node *n = r->node; n->parent; n = n->parent) { /* each is held by the one below */
		char *path = n->kind == S_IFDIR ? node_path(v->nodes, n, NULL, 0) : NULL;
		struct origin_attr attr;

		if (path && data_origin_stat(r, path, false, &attr) == 0 && !S_ISDIR(attr.mode)) {
			node_supersede(v->nodes, n);
			rc = -ESTALE;
		}
		free(path);
	}
	return rc;
}

/* The LOOKUP that follows an ESTALE: open afresh and keep the descriptor for the OPEN to come. */
static int lookup_fresh(struct data_req *r, const char *path, struct origin_attr *attr, int *ret_fd)
{
	int rc = data_origin_open(r, path, ret_fd, attr);

	if (rc == -EISDIR || rc == -ELOOP || rc == -ENXIO)
		rc = data_origin_stat(r, path, true, attr);
	return rc;
}

/* For the OPEN that follows: the generation, with its descriptor. */
static void keep_generation(struct data_req *r, const struct node *n, const char *path, int fd,
			    uint64_t fresh_ns)
{
	struct data_view *v = r->v;
	struct cache *c = engine_cache(v->h->engine);
	struct cache_file *f = cache_file_get(c, &n->attr.id, path);

	if (!f) {
		close(fd);
		return;
	}
	data_caller_bind(r, f, true, n->attr.mode);
	cache_file_give_fd(c, f, fd);
	data_stale_keep(r, path, n->id, f, fresh_ns);
}

/*
 * What the origin has at the path; *ret_fd is open on it if some OPEN waits for that. The kernel lets threads share one LOOKUP of a
 * name: one whose OPEN was answered ESTALE only after we began must not get what we saw before.
 */
static int ask_origin(struct data_req *r, const char *path, struct origin_attr *attr, int *ret_fd, uint64_t *ret_came_ns)
{
	struct data_view *v = r->v;
	int rc;

	for (int i = 0;; i++) {
		*ret_came_ns = hfs_now_ns();
		enum stale is_stale = data_stale_expected(v, path);
		if (is_stale == STALE_IT)
			rc = lookup_fresh(r, path, attr, ret_fd);
		else
			rc = data_origin_stat(r, path, is_stale == STALE_BELOW, attr);
		if (i == LOOKUPS_MAX || data_stale_newest_ns(v, path) <= *ret_came_ns)
			return rc;
		if (*ret_fd >= 0)
			close(*ret_fd);
		*ret_fd = -1;
	}
}

static void job_lookup(void *arg)
{
	struct data_req *r = arg;
	struct data_view *v = r->v;
	struct origin_attr attr;
	struct node *old = NULL, *n;
	uint64_t came_ns;
	int fd = -1, rc = -ENOMEM;
	char *path = data_req_path(r);

	if (!path)
		goto fail;
	if (data_stale_expected(v, path) == STALE_NO && data_book_first(r, path)) {
		free(path);
		return;
	}
	rc = ask_origin(r, path, &attr, &fd, &came_ns);
	if (rc == 0 && !data_is_shown(attr.mode))
		rc = -ENOENT;
	if (rc < 0)
		goto fail;
	data_note(v, path, &attr, NULL);
	n = node_bind(v->nodes, r->node, r->name_own, strlen(r->name_own), &attr, hfs_now_ns(), true, &old);
	if (!n) {
		rc = -ENOMEM;
		goto fail;
	}
	data_superseded(v, old);
	if (fd >= 0)
		keep_generation(r, n, path, fd, came_ns);
	fd = -1;
	data_answer_node(r, n, &attr);
	node_put(v->nodes, n);
	goto out;
fail:
	if (path)
		data_stale_failed(v, r->tid, path);
	if (rc == -ENOENT) {
		n = node_find(v->nodes, r->node, r->name_own, strlen(r->name_own), false);
		if (n) {
			node_supersede(v->nodes, n);
			data_superseded(v, n);
		}
		answer_negative(r);
	} else if (!data_book_instead(r, path, rc)) {
		data_answer(r, data_walk_anew(r, rc), NULL);
	}
out:
	if (fd >= 0)
		close(fd);
	free(path);
	data_job_done(r);
}

/* What memory knows and is fresh enough: a node looked up or listed a moment ago, or a file just prefetched. */
static bool lookup_from_memory(struct data_req *r)
{
	struct data_view *v = r->v;
	uint64_t now_ns = hfs_now_ns(), at_ns;
	struct origin_attr attr;
	struct node *old = NULL, *n = node_find(v->nodes, r->node, r->name, strlen(r->name), true);

	if (n) {
		node_attr_get(v->nodes, n, &attr, &at_ns);
		if (now_ns - at_ns < v->revalidate_ns) {
			answer_node_aged(r, n, &attr, now_ns - at_ns);
			node_put(v->nodes, n);
			return true;
		}
		node_forget(v->nodes, n->id, 1);
		node_put(v->nodes, n);
	}
	char *path = node_path(v->nodes, r->node, r->name, strlen(r->name));
	if (!path)
		return false;
	bool is_known = engine_attr_get(v->h->engine, path, hfs_sub_floor_u64(now_ns, v->revalidate_ns), &attr, &at_ns);
	if (is_known)
		data_note(v, path, &attr, NULL);
	free(path);
	if (!is_known)
		return false;
	n = node_bind(v->nodes, r->node, r->name, strlen(r->name), &attr, at_ns, true, &old);
	if (!n)
		return false;
	data_superseded(v, old);
	answer_node_aged(r, n, &attr, hfs_sub_floor_u64(now_ns, at_ns));
	node_put(v->nodes, n);
	return true;
}

void data_lookup(struct data_req *r)
{
	struct data_result res = { 0 };

	if (is_ctl_name(r)) {
		ctl_attr(r->v, &res);
		data_answer(r, 0, &res);
		return;
	}
	if (strlen(r->name) > NAME_MAX) {
		data_answer(r, -ENAMETOOLONG, NULL);
		return;
	}
	if (!data_stale_lookup(r) && lookup_from_memory(r))
		return;
	r->name_own = strdup(r->name);
	if (!r->name_own) {
		data_answer(r, -ENOMEM, NULL);
		return;
	}
	data_park_meta(r, job_lookup);
}

/* ---- GETATTR ---------------------------------------------------------------------------- */

void data_answer_attr(struct data_req *r)
{
	struct data_result res = { 0 };
	struct origin_attr attr;

	node_attr_get(r->v->nodes, r->node, &attr, NULL);
	data_fill_entry(r->v, &res.entry, r->node->id, &attr);
	data_answer(r, 0, &res);
}

static void job_getattr(void *arg)
{
	struct data_req *r = arg;
	struct data_view *v = r->v;
	struct origin_attr attr;
	struct origin_attr known;
	char *path = data_req_path(r);
	int rc = path ? data_origin_stat(r, path, false, &attr) : -ENOMEM;

	node_attr_get(v->nodes, r->node, &known, NULL);
	if (rc == 0 && r->node_id != NODE_ROOT_ID &&
	    (!S_ISDIR(attr.mode) || attr.id.dev != known.id.dev || attr.id.ino != known.id.ino)) {
		node_supersede(v->nodes, r->node);
		rc = -ESTALE;
	}
	if (rc < 0 && v->book && data_is_away(rc)) {
		data_answer_attr(r);
	} else if (rc < 0) {
		data_answer(r, rc == -ENOENT ? -ESTALE : data_walk_anew(r, rc), NULL);
	} else {
		data_note(v, path, &attr, NULL);
		node_attr_set(v->nodes, r->node, &attr, hfs_now_ns());
		data_answer_attr(r);
	}
	free(path);
	data_job_done(r);
}

void data_getattr(struct data_req *r)
{
	struct data_view *v = r->v;
	struct data_result res = { 0 };
	struct origin_attr attr;
	uint64_t at_ns;

	if (r->node_id == DATA_CTL_ID) {
		ctl_attr(v, &res);
		data_answer(r, 0, &res);
		return;
	}
	node_attr_get(v->nodes, r->node, &attr, &at_ns);
	if (!S_ISDIR(attr.mode) || (at_ns && hfs_now_ns() - at_ns < v->revalidate_ns))
		data_answer_attr(r); /* a generation never changes */
	else
		data_park_meta(r, job_getattr);
}

/* ---- READLINK, STATFS ----------------------------------------------------------------------- */

static void job_readlink(void *arg)
{
	struct data_req *r = arg;
	char buf[PATH_MAX + 1];
	struct data_result res = { .bytes = buf };
	char *path = data_req_path(r);
	ssize_t n;

	if (data_book_first(r, path)) {
		free(path);
		return;
	}
	n = path ? data_origin_readlink(r, path, buf, PATH_MAX) : -ENOMEM;
	if (n >= 0) {
		buf[n] = '\0';
		res.bytes_len = (size_t)n;
		data_note(r->v, path, &r->node->attr, buf);
	}
	if (!data_book_instead(r, path, (int)n))
		data_answer(r, n < 0 ? data_walk_anew(r, (int)n) : 0, &res);
	free(path);
	data_job_done(r);
}

void data_readlink(struct data_req *r)
{
	if (r->node_id == DATA_CTL_ID) {
		const char *dir = r->v->h->opts.ctl_dir;
		struct data_result res = { .bytes = dir, .bytes_len = strlen(dir) };

		data_answer(r, 0, &res);
		return;
	}
	data_park_meta(r, job_readlink);
}

/* The last one that was seen. */
static bool late_statfs(struct data_req *r)
{
	struct data_result res = { 0 };
	bool has;

	hfs_mutex_lock(&r->v->lock);
	has = r->v->has_statfs;
	res.statfs = r->v->statfs;
	hfs_mutex_unlock(&r->v->lock);
	return has && data_answer(r, 0, &res);
}

static void job_statfs(void *arg)
{
	struct data_req *r = arg;
	struct data_view *v = r->v;
	struct data_result res = { 0 };
	int rc = origin_statfs(v->h->origin, &res.statfs);

	if (rc == 0) {
		hfs_mutex_lock(&v->lock);
		v->statfs = res.statfs;
		v->has_statfs = true;
		hfs_mutex_unlock(&v->lock);
	}
	if (!data_is_away(rc) || !late_statfs(r))
		data_answer(r, rc, &res);
	data_job_done(r);
}

void data_statfs(struct data_req *r)
{
	data_park_meta(r, job_statfs);
}

/* ---- xattrs ------------------------------------------------------------------------------------ */

static void job_xattr(void *arg)
{
	struct data_req *r = arg;
	struct data_result res = { 0 };
	char *path = node_path(r->v->nodes, r->node, NULL, 0), *buf = NULL;
	ssize_t n = -ENOMEM;

	if (r->size > 0)
		buf = malloc(r->size);
	if (path && (buf || r->size == 0))
		n = data_origin_xattr(r, path, buf);
	if (n >= 0) {
		res.bytes = buf;
		res.bytes_len = (size_t)n;
	}
	data_answer(r, n < 0 ? (int)n : 0, &res);
	free(buf);
	free(path);
	data_job_done(r);
}

void data_xattr(struct data_req *r)
{
	if (r->node_id != DATA_CTL_ID && data_kept(r))
		return;
	if (r->node_id == DATA_CTL_ID || (r->op == DATA_GETXATTR && strncmp(r->name, "user.", 5))) {
		data_answer(r, -ENOTSUP, NULL);
		return;
	}
	if (r->op == DATA_GETXATTR && !(r->name_own = strdup(r->name))) {
		data_answer(r, -ENOMEM, NULL);
		return;
	}
	if (r->size > XATTR_BYTES_MAX)
		r->size = XATTR_BYTES_MAX;
	data_park_meta(r, job_xattr);
}

/* ---- the origin is late ---------------------------------------------------------------------------- */

static bool late_lookup(struct data_req *r)
{
	struct data_view *v = r->v;
	struct origin_attr attr;
	struct node *n;

	if (data_stale_lookup(r))
		return false; /* the caller was told that what we know is old */
	n = node_find(v->nodes, r->node, r->name_own, strlen(r->name_own), true);
	if (!n)
		return false;
	node_attr_get(v->nodes, n, &attr, NULL);
	data_answer_node(r, n, &attr);
	node_put(v->nodes, n);
	return true;
}

static bool late_opendir(struct data_req *r)
{
	struct dirsnap *s = dirsnap_find(r->v->snaps, r->node_id, NULL);

	return s && data_opendir_answer(r, s);
}

bool data_answer_late(struct data_req *r)
{
	switch (r->op) {
	case DATA_LOOKUP:
		if (late_lookup(r))
			return true;
		if (!data_stale_lookup(r))
			data_book_park(r);
		return false;
	case DATA_READLINK:
		data_book_park(r);
		return false;
	case DATA_GETATTR:
		data_answer_attr(r);
		return true;
	case DATA_STATFS:
		return late_statfs(r);
	case DATA_OPENDIR:
		if (late_opendir(r))
			return true;
		data_book_park(r);
		return false;
	case DATA_READDIR:
		data_readdir_known(r);
		return true;
	default:
		return false; /* never seen, or content: it waits */
	}
}
