/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_dir.c - OPENDIR, READDIR, READDIRPLUS over snapshots (dirsnap.h).
 *
 * Cookies: 1 behind ".", 2 behind "..", i + 3 behind entry i. READDIRPLUS gives attributes for what it can stat in PLUS_NS
 * and plain entries behind that, so a slow origin makes a listing slower by a bounded amount only.
 */
#include "fs/data_i.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLUS_NS 100000000ull
#define FIRST_COOKIE 2u

/* ---- OPENDIR ------------------------------------------------------------------------- */

/* Takes the reference of s. False: the request had been answered. */
bool data_opendir_answer(struct data_req *r, struct dirsnap *s)
{
	struct data_view *v = r->v;
	struct data_dir_handle *d = calloc(1, sizeof(*d));
	struct data_result res = { .dir = d };

	if (!d) {
		dirsnap_put(s);
		return data_answer(r, -ENOMEM, NULL);
	}
	atomic_init(&d->refs, 1);
	d->snap = s;
	d->node = r->node;
	node_ref(v->nodes, d->node);
	atomic_fetch_add(&v->n_dirs, 1);
	hfs_mutex_lock(&v->lock);
	d->next = v->dirs;
	if (d->next)
		d->next->prev = d;
	v->dirs = d;
	hfs_mutex_unlock(&v->lock);
	if (data_answer(r, 0, &res))
		return true;
	data_releasedir(v, d);
	return false;
}

void data_releasedir(struct data_view *v, struct data_dir_handle *d)
{
	hfs_mutex_lock(&v->lock);
	*(d->prev ? &d->prev->next : &v->dirs) = d->next;
	if (d->next)
		d->next->prev = d->prev;
	hfs_mutex_unlock(&v->lock);
	atomic_fetch_sub(&v->n_dirs, 1);
	data_dir_unref(v, d);
}

void data_dir_unref(struct data_view *v, struct data_dir_handle *d)
{
	if (atomic_fetch_sub(&d->refs, 1) != 1)
		return;
	dirsnap_put(d->snap);
	node_put(v->nodes, d->node);
	free(d);
}

int data_list_one(void *arg, const char *name, size_t len, uint64_t ino, unsigned type)
{
	struct data_list *l = arg;

	if (type != DT_REG && type != DT_DIR && type != DT_LNK && type != DT_UNKNOWN)
		return 0;
	if (l->is_root && len == strlen(DATA_CTL_NAME) && !memcmp(name, DATA_CTL_NAME, len)) {
		hfs_log_limited(HFS_LOG_WARNING, "\"%s\" of the source is hidden by the control link", DATA_CTL_NAME);
		return 0;
	}
	struct hfs_identity id = { .dev = l->dev, .ino = ino };
	return dirsnap_add(l->snap, name, len, data_ino(l->v, &id), type);
}

static void job_opendir(void *arg)
{
	struct data_req *r = arg;
	struct data_view *v = r->v;
	struct data_list l = { .v = v, .is_root = r->node_id == NODE_ROOT_ID };
	struct origin_attr attr;
	char *path = data_req_path(r);
	int rc;

	if (data_book_first(r, path)) {
		free(path);
		return;
	}
	rc = path ? dirsnap_create(v->snaps, r->node_id, &l.snap) : -ENOMEM;
	node_attr_get(v->nodes, r->node, &attr, NULL);
	l.dev = attr.id.dev;
	if (rc == 0)
		rc = data_origin_list(r, path, data_list_one, &l);
	if (rc == 0)
		rc = dirsnap_publish(l.snap, hfs_now_ns());
	if (rc == 0) {
		data_note_list(v, path, r->node_id);
		data_opendir_answer(r, l.snap);
	} else {
		dirsnap_put(l.snap);
		if (!data_book_instead(r, path, rc))
			data_answer(r, data_walk_anew(r, rc), NULL);
	}
	free(path);
	data_job_done(r);
}

void data_opendir(struct data_req *r)
{
	struct data_view *v = r->v;

	if (r->node->kind != S_IFDIR) {
		data_answer(r, -ENOTDIR, NULL);
		return;
	}
	if (v->h->opts.is_immutable) {
		struct dirsnap *s = dirsnap_find(v->snaps, r->node_id, NULL);

		if (s) {
			data_opendir_answer(r, s);
			return;
		}
	}
	data_park_meta(r, job_opendir);
}

/* ---- READDIR --------------------------------------------------------------------------- */

static void dot_entry(struct data_req *r, uint64_t i, struct data_dirent *e)
{
	struct node *n = r->dir->node;
	struct origin_attr attr;

	if (i == 1 && n->parent)
		n = n->parent;
	node_attr_get(r->v->nodes, n, &attr, NULL);
	*e = (struct data_dirent){ .name = i ? ".." : ".", .type = DT_DIR, .cookie = i + 1 };
	e->ino = data_ino(r->v, &attr.id);
}

/* As many entries from the cookie on as the answer has room for. */
static int collect(struct data_req *r, struct data_dirent **ret, size_t *ret_n)
{
	size_t n = 0, cap = 0, bytes = 0, total = dirsnap_count(r->dir->snap) + FIRST_COOKIE;
	struct data_dirent *v = NULL;

	for (uint64_t i = r->off; i < total; i++) {
		struct dirsnap_entry se = { .name = i ? ".." : ".", .len = (uint16_t)(i + 1) };

		if (i >= FIRST_COOKIE)
			dirsnap_entry(r->dir->snap, i - FIRST_COOKIE, &se);
		bytes += r->dirent_bytes(se.len, r->is_plus);
		if (bytes > r->size)
			break;
		if (n == cap) {
			struct data_dirent *w = realloc(v, (cap = cap ? cap * 2 : 32) * sizeof(*v));

			if (!w) {
				free(v);
				return -ENOMEM;
			}
			v = w;
		}
		if (i < FIRST_COOKIE)
			dot_entry(r, i, &v[n++]);
		else
			v[n++] = (struct data_dirent){ .name = se.name, .ino = se.ino, .cookie = i + 1, .type = se.type };
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

/* Attributes from a node that is known; counted for the kernel. */
static bool plus_known(struct data_req *r, struct data_dirent *e, uint64_t since_ns)
{
	struct data_view *v = r->v;
	struct node *n = node_find(v->nodes, r->dir->node, e->name, strlen(e->name), true);
	struct origin_attr attr;
	uint64_t at_ns;

	if (!n)
		return false;
	node_attr_get(v->nodes, n, &attr, &at_ns);
	bool is_good = at_ns >= since_ns;
	if (is_good)
		data_fill_entry(v, &e->entry, n->id, &attr);
	else
		node_forget(v->nodes, n->id, 1);
	node_put(v->nodes, n);
	return is_good;
}

static void plus_stat(struct data_req *r, struct data_dirent *e)
{
	struct data_view *v = r->v;
	struct node *old = NULL, *n = NULL;
	struct origin_attr attr;
	char *path = node_path(v->nodes, r->dir->node, e->name, strlen(e->name));

	if (path && data_origin_stat(r, path, false, &attr) == 0 && data_is_shown(attr.mode)) {
		data_note(v, path, &attr, NULL);
		n = node_bind(v->nodes, r->dir->node, e->name, strlen(e->name), &attr, hfs_now_ns(), true, &old);
	}
	free(path);
	if (!n)
		return; /* gone meanwhile, or no memory: a plain entry */
	data_superseded(v, old);
	data_fill_entry(v, &e->entry, n->id, &attr);
	e->ino = e->entry.ino;
	node_put(v->nodes, n);
}

static void answer_dirents(struct data_req *r, struct data_dirent *ents, size_t n)
{
	struct data_result res = { .dirents = ents, .dirents_n = n };
	struct data_view *v = r->v;

	if (!data_answer(r, 0, &res)) {
		for (size_t i = 0; i < n; i++) {
			if (ents[i].entry.node_id)
				node_forget(v->nodes, ents[i].entry.node_id, 1);
		}
	}
}

static void job_readdirplus(void *arg)
{
	struct data_req *r = arg;
	struct data_dirent *ents = NULL;
	uint64_t start_ns = hfs_now_ns(), fresh_ns = hfs_sub_floor_u64(start_ns, r->v->revalidate_ns);
	size_t n = 0;
	int rc = collect(r, &ents, &n);

	if (rc < 0) {
		data_answer(r, rc, NULL);
		goto out;
	}
	for (size_t i = 0; i < n && !atomic_load(&r->is_answered); i++) {
		if (ents[i].cookie <= FIRST_COOKIE || plus_known(r, &ents[i], fresh_ns))
			continue;
		if (data_is_book_first(r->v))
			(void)data_book_plus(r, &ents[i]);
		else if (hfs_now_ns() - start_ns < PLUS_NS)
			plus_stat(r, &ents[i]);
	}
	answer_dirents(r, ents, n);
out:
	free(ents);
	data_job_done(r);
}

/* From memory alone: plain entries, and (is_plus) the attributes of the nodes that are known, however old. */
void data_readdir_known(struct data_req *r)
{
	struct data_dirent *ents = NULL;
	size_t n = 0;
	int rc = collect(r, &ents, &n);

	if (rc < 0) {
		data_answer(r, rc, NULL);
		return;
	}
	for (size_t i = 0; r->is_plus && i < n; i++) {
		if (ents[i].cookie > FIRST_COOKIE)
			plus_known(r, &ents[i], 0);
	}
	answer_dirents(r, ents, n);
	free(ents);
}

void data_readdir(struct data_req *r)
{
	atomic_fetch_add(&r->dir->refs, 1);
	r->is_dir_counted = true;
	if (r->is_plus)
		data_park_meta(r, job_readdirplus);
	else
		data_readdir_known(r);
}
