/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_book.c - between requests and the book (fs/book.h): what is noted of an immutable dataset, and the answers from it while the
 * origin is late or away.
 *
 * The origin is asked first, and the book when that call is late (data_answer_late), or failed in a way that says nothing of the
 * file. While the origin is known to be late the book comes first, so that not every look-up leaves a thread behind in it.
 */
#include "fs/data_i.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int data_book_create(struct data_view *v)
{
	struct hintfs *h = v->h;

	if (!h->opts.is_immutable || !engine_tier(h->engine))
		return 0;
	return book_create(engine_tier(h->engine), v->root_dev, &v->book);
}

int data_root_attr(struct data_view *v, struct origin_attr *ret)
{
	int rc;

	if (!v->h->is_origin_later) {
		rc = origin_stat(v->h->origin, "", false, ret);
		if (rc == 0)
			data_note(v, "", ret, NULL);
		return rc;
	}
	if (!v->book || !book_attr(v->book, "", ret))
		*ret = (struct origin_attr){
			.id = { .dev = v->root_dev, .ino = 1 }, .mode = S_IFDIR | 0555, .nlink = 2, .blksize = 4096,
			.uid = geteuid(), .gid = getegid(),
		};
	return 0;
}

bool data_is_away(int err)
{
	switch (err) {
	case -EIO:
	case -ENOTCONN:
	case -ECONNABORTED:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EHOSTUNREACH:
	case -EHOSTDOWN:
	case -ENETUNREACH:
	case -ENETDOWN:
	case -ETIMEDOUT:
	case -ESTALE:
	case -EREMOTEIO:
		return true;
	default:
		return false;
	}
}

bool data_is_book_first(struct data_view *v)
{
	return v->book && atomic_load(&v->is_late);
}

void data_note(struct data_view *v, const char *path, const struct origin_attr *attr, const char *link)
{
	if (v->book)
		book_note(v->book, path, attr, link);
}

void data_note_list(struct data_view *v, const char *path, uint64_t node_id)
{
	struct dirsnap *s = v->book ? dirsnap_find(v->snaps, node_id, NULL) : NULL;

	if (s)
		book_note_list(v->book, path, s);
}

/* ---- answers -------------------------------------------------------------------------------- */

static struct node *bind(struct data_view *v, struct node *parent, const char *name, const char *path, struct origin_attr *ret)
{
	struct node *old = NULL, *n;

	if (!book_attr(v->book, path, ret) || !data_is_shown(ret->mode))
		return NULL;
	n = node_bind(v->nodes, parent, name, strlen(name), ret, hfs_now_ns(), true, &old);
	data_superseded(v, old);
	return n;
}

static bool answer_lookup(struct data_req *r, const char *path)
{
	struct data_view *v = r->v;
	struct origin_attr attr;
	struct node *n = node_find(v->nodes, r->node, r->name_own, strlen(r->name_own), true);

	if (n)
		node_attr_get(v->nodes, n, &attr, NULL);
	else
		n = bind(v, r->node, r->name_own, path, &attr);
	if (!n)
		return false;
	data_answer_node(r, n, &attr);
	node_put(v->nodes, n);
	return true;
}

static bool answer_readlink(struct data_req *r, const char *path)
{
	char buf[PATH_MAX + 1];
	struct data_result res = { .bytes = buf };
	int64_t n = book_link(r->v->book, path, buf, PATH_MAX);

	if (n < 0)
		return false;
	buf[n] = '\0';
	res.bytes_len = (size_t)n;
	data_answer(r, 0, &res);
	return true;
}

static bool answer_opendir(struct data_req *r, const char *path)
{
	struct data_view *v = r->v;
	struct data_list l = { .v = v, .is_root = r->node_id == NODE_ROOT_ID };
	struct origin_attr attr;
	int rc = dirsnap_create(v->snaps, r->node_id, &l.snap);

	node_attr_get(v->nodes, r->node, &attr, NULL);
	l.dev = attr.id.dev;
	if (rc == 0)
		rc = book_list(v->book, path, data_list_one, &l);
	if (rc == 0)
		rc = dirsnap_publish(l.snap, hfs_now_ns());
	if (rc < 0) {
		dirsnap_put(l.snap);
		return false;
	}
	data_opendir_answer(r, l.snap);
	return true;
}

static bool answer(struct data_req *r, const char *path)
{
	bool is_answered = false;

	if (!r->v->book)
		return false;
	switch (r->op) {
	case DATA_LOOKUP:
		is_answered = answer_lookup(r, path);
		break;
	case DATA_READLINK:
		is_answered = answer_readlink(r, path);
		break;
	case DATA_OPENDIR:
		is_answered = answer_opendir(r, path);
		break;
	default:
		break;
	}
	if (is_answered)
		atomic_fetch_add(&r->v->h->late_metadata, 1);
	return is_answered;
}

bool data_book_first(struct data_req *r, const char *path)
{
	if (!path || !data_is_book_first(r->v) || !answer(r, path))
		return false;
	data_req_unref(r);
	return true;
}

bool data_book_instead(struct data_req *r, const char *path, int err)
{
	return path && data_is_away(err) && answer(r, path);
}

static void job_book(void *arg)
{
	struct data_req *r = arg;
	char *path = atomic_load(&r->is_answered) ? NULL : data_req_path(r);

	if (path)
		(void)answer(r, path);
	free(path);
	data_req_unref(r);
}

void data_book_park(struct data_req *r)
{
	if (!r->v->book)
		return;
	atomic_fetch_add(&r->refs, 1);
	if (meta_run(r->v->h->meta, job_book, r) < 0)
		data_req_unref(r);
}

bool data_book_plus(struct data_req *r, struct data_dirent *e)
{
	struct data_view *v = r->v;
	struct origin_attr attr;
	char *path = node_path(v->nodes, r->dir->node, e->name, strlen(e->name));
	struct node *n = path ? bind(v, r->dir->node, e->name, path, &attr) : NULL;

	free(path);
	if (!n)
		return false;
	data_fill_entry(v, &e->entry, n->id, &attr);
	e->ino = e->entry.ino;
	node_put(v->nodes, n);
	return true;
}
