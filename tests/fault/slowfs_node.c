/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths, nodes and open handles of slowfs. Called by slowfs_ops.c.
 *
 * A node is one inode seen under one path; its id in the FUSE protocol is its
 * address. When the path shows another inode (device, number or birth time
 * differ) it gets a new node, as a replaced file gets a new handle on NFS. Hard
 * links are separate nodes with the same st_ino.
 *
 * Lock: nodes->lock guards the table, path->current, node->handles, told_*,
 * is_dropped, dropped_no, handle->refs. No system call is made under it.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static uint64_t hash_text(const char *text, size_t len)
{
	uint64_t h = 14695981039346656037ull; /* FNV-1a */

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)text[i]) * 1099511628211ull;
	return h ^ (h >> 29);
}

static uint64_t stamp_ns(struct statx_timestamp t)
{
	return (uint64_t)t.tv_sec * SLOW_NS_PER_S + t.tv_nsec;
}

static uint64_t statx_dev(const struct statx *stx)
{
	return (uint64_t)stx->stx_dev_major << 32 | stx->stx_dev_minor;
}

static uint64_t statx_btime_ns(const struct statx *stx)
{
	return stx->stx_mask & STATX_BTIME ? stamp_ns(stx->stx_btime) : 0;
}

bool slow_node_is(const struct slow_node *n, const struct statx *stx)
{
	return n->dev == statx_dev(stx) && n->ino == stx->stx_ino &&
	       n->btime_ns == statx_btime_ns(stx);
}

static int grow_locked(struct slow_nodes *ns)
{
	size_t len = ns->table_len ? ns->table_len * 2 : 1024;
	struct slow_path **table = calloc(len, sizeof(*table));

	if (!table)
		return -ENOMEM;
	for (size_t i = 0; i < ns->table_len; i++) {
		for (struct slow_path *p = ns->table[i], *next; p; p = next) {
			next = p->next;
			p->next = table[p->hash & (len - 1)];
			table[p->hash & (len - 1)] = p;
		}
	}
	free(ns->table);
	ns->table = table;
	ns->table_len = len;
	return 0;
}

static struct slow_path *path_get_locked(struct slow_nodes *ns, const char *text)
{
	size_t len = strlen(text);
	uint64_t hash = hash_text(text, len);
	struct slow_path *p;

	for (p = ns->table[hash & (ns->table_len - 1)]; p; p = p->next)
		if (p->hash == hash && p->len == len && !memcmp(p->text, text, len))
			return p;
	if (ns->count >= ns->table_len && grow_locked(ns) < 0)
		return NULL;
	p = calloc(1, sizeof(*p) + len + 1);
	if (!p)
		return NULL;
	p->hash = hash;
	p->len = len;
	memcpy(p->text, text, len + 1);
	p->next = ns->table[hash & (ns->table_len - 1)];
	ns->table[hash & (ns->table_len - 1)] = p;
	ns->count++;
	return p;
}

struct slow_path *slow_nodes_path(struct slow_nodes *ns, const char *path)
{
	pthread_mutex_lock(&ns->lock);
	struct slow_path *p = path_get_locked(ns, path);
	pthread_mutex_unlock(&ns->lock);
	return p;
}

struct slow_node *slow_nodes_find(struct slow_nodes *ns, const char *path,
				  const struct statx *stx)
{
	struct slow_node *n = NULL;

	pthread_mutex_lock(&ns->lock);
	struct slow_path *p = path_get_locked(ns, path);
	if (!p)
		goto out;
	n = p->current;
	if (n && slow_node_is(n, stx))
		goto out;
	n = calloc(1, sizeof(*n));
	if (!n)
		goto out;
	n->path = p;
	n->dev = statx_dev(stx);
	n->ino = stx->stx_ino;
	n->btime_ns = statx_btime_ns(stx);
	n->generation = ++ns->next_generation;
	p->current = n;
out:
	pthread_mutex_unlock(&ns->lock);
	return n;
}

int slow_nodes_init(struct slow_nodes *ns, const struct statx *root)
{
	pthread_mutex_init(&ns->lock, NULL);
	if (grow_locked(ns) < 0)
		return -ENOMEM;
	ns->root = slow_nodes_find(ns, ".", root);
	return ns->root ? 0 : -ENOMEM;
}

struct slow_node *slow_nodes_get(struct slow_nodes *ns, fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? ns->root : (struct slow_node *)(uintptr_t)ino;
}

fuse_ino_t slow_nodes_id(struct slow_nodes *ns, const struct slow_node *n)
{
	return n == ns->root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)n;
}

bool slow_node_tell(struct slow_nodes *ns, struct slow_node *n,
		    const struct statx *stx)
{
	uint64_t mtime_ns = stamp_ns(stx->stx_mtime);
	uint64_t ctime_ns = stamp_ns(stx->stx_ctime);

	pthread_mutex_lock(&ns->lock);
	bool differs = !n->is_told || n->told_size != stx->stx_size ||
		       n->told_mtime_ns != mtime_ns || n->told_ctime_ns != ctime_ns;
	n->is_told = true;
	n->told_size = stx->stx_size;
	n->told_mtime_ns = mtime_ns;
	n->told_ctime_ns = ctime_ns;
	n->told_no += differs;
	n->is_dropped = n->is_dropped && !differs;
	pthread_mutex_unlock(&ns->lock);
	return differs;
}

bool slow_node_keeps(struct slow_nodes *ns, struct slow_handle *h)
{
	pthread_mutex_lock(&ns->lock);
	bool keeps = h->node->is_dropped;
	h->dropped_no = keeps ? 0 : h->node->told_no;
	pthread_mutex_unlock(&ns->lock);
	return keeps;
}

void slow_node_opened(struct slow_nodes *ns, struct slow_handle *h)
{
	pthread_mutex_lock(&ns->lock);
	if (h->dropped_no == h->node->told_no)
		h->node->is_dropped = true;
	pthread_mutex_unlock(&ns->lock);
}

void slow_nodes_attach(struct slow_nodes *ns, struct slow_node *n,
		       struct slow_handle *h)
{
	pthread_mutex_lock(&ns->lock);
	h->node = n;
	h->refs = 1;
	h->next = n->handles;
	n->handles = h;
	pthread_mutex_unlock(&ns->lock);
}

void slow_nodes_detach(struct slow_nodes *ns, struct slow_handle *h)
{
	pthread_mutex_lock(&ns->lock);
	for (struct slow_handle **at = &h->node->handles; *at; at = &(*at)->next) {
		if (*at == h) {
			*at = h->next;
			break;
		}
	}
	pthread_mutex_unlock(&ns->lock);
	slow_handle_put(ns, h);
}

struct slow_handle *slow_nodes_borrow(struct slow_nodes *ns, struct slow_node *n)
{
	pthread_mutex_lock(&ns->lock);
	struct slow_handle *h = n->handles;
	if (h)
		h->refs++;
	pthread_mutex_unlock(&ns->lock);
	return h;
}

void slow_handle_put(struct slow_nodes *ns, struct slow_handle *h)
{
	pthread_mutex_lock(&ns->lock);
	bool is_last = --h->refs == 0;
	pthread_mutex_unlock(&ns->lock);
	if (!is_last)
		return;
	if (h->dir)
		closedir(h->dir); /* owns fd */
	else
		close(h->fd);
	pthread_mutex_destroy(&h->dir_lock);
	free(h);
}

static struct timespec timespec_from(struct statx_timestamp t)
{
	return (struct timespec){ .tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec };
}

void slow_stat_from_statx(const struct statx *stx, struct stat *ret_st)
{
	*ret_st = (struct stat){
		.st_dev = makedev(stx->stx_dev_major, stx->stx_dev_minor),
		.st_ino = stx->stx_ino,
		.st_mode = stx->stx_mode,
		.st_nlink = stx->stx_nlink,
		.st_uid = stx->stx_uid,
		.st_gid = stx->stx_gid,
		.st_rdev = makedev(stx->stx_rdev_major, stx->stx_rdev_minor),
		.st_size = (off_t)stx->stx_size,
		.st_blksize = stx->stx_blksize,
		.st_blocks = (blkcnt_t)stx->stx_blocks,
		.st_atim = timespec_from(stx->stx_atime),
		.st_mtim = timespec_from(stx->stx_mtime),
		.st_ctim = timespec_from(stx->stx_ctime),
	};
}

int slow_path_join(const struct slow_path *parent, const char *name, char *out,
		   size_t out_len)
{
	bool is_top = !strcmp(parent->text, ".");
	int n = snprintf(out, out_len, "%s%s%s", is_top ? "" : parent->text,
			 is_top ? "" : "/", name);

	return n < 0 || (size_t)n >= out_len ? -ENAMETOOLONG : 0;
}

void slow_nodes_each(struct slow_nodes *ns,
		     void (*fn)(struct slow_path *p, void *arg), void *arg)
{
	pthread_mutex_lock(&ns->lock);
	size_t n = 0;
	struct slow_path **all = malloc((ns->count + 1) * sizeof(*all));
	for (size_t i = 0; all && i < ns->table_len; i++)
		for (struct slow_path *p = ns->table[i]; p; p = p->next)
			all[n++] = p;
	pthread_mutex_unlock(&ns->lock);
	for (size_t i = 0; i < n; i++)
		fn(all[i], arg);
	free(all);
}
