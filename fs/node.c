/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/node.c - see node.h. Two chained hash tables over the same nodes, by id and by (parent, name), doubled when full.
 * Callers: fs/data*.c.
 */
#include "fs/node.h"

#include "cache/base/sync.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define BUCKETS_FIRST 1024u

struct node_table {
	struct hfs_mutex lock;
	/* guarded by lock */
	struct node **by_id, **by_name;
	uint64_t n_buckets; /* power of two, of both tables */
	uint64_t next_id;
	struct node *root;
	struct node *kept_oldest, *kept_newest; /* held by nobody */
	uint64_t kept_max;			/* const */
	struct node_stats stats;
};

static uint32_t name_hash(const struct node *parent, const char *name, size_t len)
{
	return (uint32_t)XXH3_64bits_withSeed(name, len, parent->id);
}

static struct node **id_bucket(struct node_table *t, uint64_t id)
{
	return &t->by_id[(id * 0x9e3779b97f4a7c15ull >> 20) & (t->n_buckets - 1)];
}

static struct node **name_bucket(struct node_table *t, uint32_t hash)
{
	return &t->by_name[hash & (t->n_buckets - 1)];
}

static size_t node_bytes(size_t name_len)
{
	return sizeof(struct node) + name_len + 1;
}

static struct node *node_new(const char *name, size_t len, const struct origin_attr *attr, uint64_t now_ns)
{
	struct node *n = calloc(1, node_bytes(len));

	if (!n)
		return NULL;
	n->kind = attr->mode & S_IFMT;
	n->attr = *attr;
	n->attr_ns = now_ns;
	n->name_len = (uint16_t)len;
	memcpy(n->name, name, len);
	return n;
}

int node_table_create(const struct origin_attr *root, uint64_t kept_max, struct node_table **ret_t)
{
	struct node_table *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	hfs_mutex_init(&t->lock, HFS_RANK_NODE);
	t->kept_max = kept_max;
	t->n_buckets = BUCKETS_FIRST;
	t->by_id = calloc(t->n_buckets, sizeof(*t->by_id));
	t->by_name = calloc(t->n_buckets, sizeof(*t->by_name));
	t->root = node_new("", 0, root, 0);
	if (!t->by_id || !t->by_name || !t->root) {
		node_table_destroy(t, NULL);
		return -ENOMEM;
	}
	t->root->id = NODE_ROOT_ID;
	t->root->refs = 1;
	t->root->nlookup = 1;
	t->next_id = NODE_ROOT_ID + 1;
	*id_bucket(t, NODE_ROOT_ID) = t->root;
	t->stats.nodes = 1;
	*ret_t = t;
	return 0;
}

void node_table_destroy(struct node_table *t, struct cache *c)
{
	if (!t)
		return;
	for (uint64_t b = 0; t->by_id && b < t->n_buckets; b++) {
		struct node *n = t->by_id[b];

		while (n) {
			struct node *next = n->id_next;

			if (n->file)
				cache_file_put(c, n->file);
			if (n != t->root)
				free(n);
			n = next;
		}
	}
	free(t->root);
	free(t->by_id);
	free(t->by_name);
	hfs_mutex_finish(&t->lock);
	free(t);
}

/* Doubling moves the nodes, not their memory; on ENOMEM the table stays as it is, only slower. */
static void table_grow_locked(struct node_table *t)
{
	uint64_t old_n = t->n_buckets;
	struct node **ids = calloc(old_n * 2, sizeof(*ids)), **names = calloc(old_n * 2, sizeof(*names));
	struct node **old_ids = t->by_id, **old_names = t->by_name;

	if (!ids || !names) {
		free(ids);
		free(names);
		return;
	}
	t->by_id = ids;
	t->by_name = names;
	t->n_buckets = old_n * 2;
	for (uint64_t b = 0; b < old_n; b++) {
		for (struct node *n = old_ids[b], *next; n; n = next) {
			next = n->id_next;
			n->id_next = *id_bucket(t, n->id);
			*id_bucket(t, n->id) = n;
		}
		for (struct node *n = old_names[b], *next; n; n = next) {
			next = n->name_next;
			n->name_next = *name_bucket(t, n->name_hash);
			*name_bucket(t, n->name_hash) = n;
		}
	}
	free(old_ids);
	free(old_names);
}

static struct node *id_find_locked(struct node_table *t, uint64_t id)
{
	struct node *n = *id_bucket(t, id);

	while (n && n->id != id)
		n = n->id_next;
	return n;
}

static struct node *name_find_locked(struct node_table *t, const struct node *parent, const char *name, size_t len,
				     uint32_t hash)
{
	struct node *n = *name_bucket(t, hash);

	while (n && !(n->name_hash == hash && n->parent == parent && n->name_len == len && !memcmp(n->name, name, len)))
		n = n->name_next;
	return n;
}

static void name_remove_locked(struct node_table *t, struct node *n)
{
	if (n->is_superseded || !n->parent)
		return;
	for (struct node **p = name_bucket(t, n->name_hash); *p; p = &(*p)->name_next) {
		if (*p == n) {
			*p = n->name_next;
			break;
		}
	}
	n->name_next = NULL;
	n->is_superseded = true;
	t->stats.superseded++;
}

static void kept_add_locked(struct node_table *t, struct node *n)
{
	n->is_kept = true;
	n->kept_prev = t->kept_newest;
	n->kept_next = NULL;
	*(n->kept_prev ? &n->kept_prev->kept_next : &t->kept_oldest) = n;
	t->kept_newest = n;
	t->stats.kept++;
}

/* Somebody holds it again, or it goes. */
static void kept_remove_locked(struct node_table *t, struct node *n)
{
	if (!n->is_kept)
		return;
	*(n->kept_prev ? &n->kept_prev->kept_next : &t->kept_oldest) = n->kept_next;
	*(n->kept_next ? &n->kept_next->kept_prev : &t->kept_newest) = n->kept_prev;
	n->is_kept = false;
	n->kept_prev = n->kept_next = NULL;
	t->stats.kept--;
}

/* Free what nobody holds; its parent, if any. */
static struct node *node_free_locked(struct node_table *t, struct node *n)
{
	struct node *parent = n->parent;

	assert(!n->file && n->n_open == 0);
	name_remove_locked(t, n);
	for (struct node **p = id_bucket(t, n->id); *p; p = &(*p)->id_next) {
		if (*p == n) {
			*p = n->id_next;
			break;
		}
	}
	t->stats.nodes--;
	t->stats.superseded--;
	t->stats.bytes -= node_bytes(n->name_len);
	free(n);
	return parent;
}

/* Nobody may hold the node any more: then keep it, or free it, and then its parent, and so on upwards. */
static void node_release_locked(struct node_table *t, struct node *n)
{
	while (n && n->refs == 0 && n->nlookup == 0) {
		if (t->kept_max > 0 && !n->is_superseded) {
			kept_add_locked(t, n);
			if (t->stats.kept <= t->kept_max)
				return;
			n = t->kept_oldest;
			kept_remove_locked(t, n);
		}
		n = node_free_locked(t, n);
		if (n)
			n->refs--;
	}
}

static struct node *get_locked(struct node_table *t, uint64_t id)
{
	struct node *n = id_find_locked(t, id);

	if (n) {
		kept_remove_locked(t, n);
		n->refs++;
	}
	return n;
}

struct node *node_get(struct node_table *t, uint64_t id)
{
	hfs_mutex_lock(&t->lock);
	struct node *n = get_locked(t, id);
	hfs_mutex_unlock(&t->lock);
	return n;
}

struct node *node_get_open(struct node_table *t, uint64_t id, struct cache_file **ret_f)
{
	hfs_mutex_lock(&t->lock);
	struct node *n = get_locked(t, id);
	*ret_f = n ? n->file : NULL;
	if (*ret_f)
		cache_file_ref(*ret_f);
	hfs_mutex_unlock(&t->lock);
	return n;
}

bool node_first_open(struct node_table *t, struct node *n)
{
	hfs_mutex_lock(&t->lock);
	bool is_first = !n->was_opened;
	n->was_opened = true;
	hfs_mutex_unlock(&t->lock);
	return is_first;
}

void node_ref(struct node_table *t, struct node *n)
{
	hfs_mutex_lock(&t->lock);
	n->refs++;
	hfs_mutex_unlock(&t->lock);
}

void node_put(struct node_table *t, struct node *n)
{
	if (!n)
		return;
	hfs_mutex_lock(&t->lock);
	assert(n->refs > 0);
	n->refs--;
	node_release_locked(t, n);
	hfs_mutex_unlock(&t->lock);
}

void node_forget(struct node_table *t, uint64_t id, uint64_t nlookup)
{
	hfs_mutex_lock(&t->lock);
	struct node *n = id_find_locked(t, id);
	if (n && n != t->root && !n->is_kept) {
		uint64_t k = nlookup < n->nlookup ? nlookup : n->nlookup;

		n->nlookup -= k;
		t->stats.lookups -= k;
		node_release_locked(t, n);
	}
	hfs_mutex_unlock(&t->lock);
}

/* Files and links: all of the identity. Directories: the inode only, their times move all the time. */
static bool is_same_generation(const struct node *n, const struct origin_attr *a)
{
	if (n->kind != (a->mode & S_IFMT))
		return false;
	if (S_ISDIR(a->mode))
		return n->attr.id.dev == a->id.dev && n->attr.id.ino == a->id.ino;
	return hfs_identity_equal(&n->attr.id, &a->id);
}

static void node_add_locked(struct node_table *t, struct node *n, struct node *parent, uint32_t hash)
{
	n->id = t->next_id++;
	n->parent = parent;
	n->name_hash = hash;
	parent->refs++;
	if (++t->stats.nodes > t->n_buckets)
		table_grow_locked(t);
	t->stats.bytes += node_bytes(n->name_len);
	n->id_next = *id_bucket(t, n->id);
	*id_bucket(t, n->id) = n;
	n->name_next = *name_bucket(t, hash);
	*name_bucket(t, hash) = n;
}

static struct node *count_locked(struct node_table *t, struct node *n, bool is_lookup)
{
	kept_remove_locked(t, n);
	n->refs++;
	if (is_lookup) {
		n->nlookup++;
		t->stats.lookups++;
	}
	return n;
}

struct node *node_bind(struct node_table *t, struct node *parent, const char *name, size_t name_len,
		       const struct origin_attr *attr, uint64_t now_ns, bool is_lookup, struct node **ret_old)
{
	uint32_t hash = name_hash(parent, name, name_len);
	struct node *fresh = NULL, *n;

	*ret_old = NULL;
	hfs_mutex_lock(&t->lock);
	n = name_find_locked(t, parent, name, name_len, hash);
	if (n && is_same_generation(n, attr)) {
		if (S_ISDIR(attr->mode))
			n->attr = *attr;
		n->attr_ns = now_ns;
		count_locked(t, n, is_lookup);
		goto out;
	}
	fresh = node_new(name, name_len, attr, now_ns);
	if (!fresh) {
		n = NULL;
		goto out;
	}
	if (n) {
		kept_remove_locked(t, n);
		n->refs++;
		name_remove_locked(t, n);
		*ret_old = n;
	}
	node_add_locked(t, fresh, parent, hash);
	n = count_locked(t, fresh, is_lookup);
out:
	hfs_mutex_unlock(&t->lock);
	return n;
}

struct node *node_find(struct node_table *t, struct node *parent, const char *name, size_t name_len, bool is_lookup)
{
	uint32_t hash = name_hash(parent, name, name_len);

	hfs_mutex_lock(&t->lock);
	struct node *n = name_find_locked(t, parent, name, name_len, hash);
	if (n)
		count_locked(t, n, is_lookup);
	hfs_mutex_unlock(&t->lock);
	return n;
}

void node_supersede(struct node_table *t, struct node *n)
{
	hfs_mutex_lock(&t->lock);
	name_remove_locked(t, n);
	hfs_mutex_unlock(&t->lock);
}

void node_attr_get(struct node_table *t, struct node *n, struct origin_attr *ret, uint64_t *ret_ns)
{
	hfs_mutex_lock(&t->lock);
	*ret = n->attr;
	if (ret_ns)
		*ret_ns = n->attr_ns;
	hfs_mutex_unlock(&t->lock);
}

void node_attr_set(struct node_table *t, struct node *n, const struct origin_attr *attr, uint64_t now_ns)
{
	hfs_mutex_lock(&t->lock);
	if (n->kind == S_IFDIR && S_ISDIR(attr->mode))
		n->attr = *attr;
	n->attr_ns = now_ns;
	hfs_mutex_unlock(&t->lock);
}

char *node_path(struct node_table *t, struct node *n, const char *name, size_t name_len)
{
	size_t len = name ? name_len : 0, at;
	char *path;

	hfs_mutex_lock(&t->lock);
	for (struct node *p = n; p->parent; p = p->parent)
		len += p->name_len + 1u;
	path = malloc(len + 1);
	if (path) {
		at = len;
		path[at] = '\0';
		if (name) {
			at -= name_len;
			memcpy(path + at, name, name_len);
		} else if (at > 0) {
			at = --len; /* no slash behind the last component */
			path[at] = '\0';
		}
		for (struct node *p = n; p->parent; p = p->parent) {
			if (at < len)
				path[--at] = '/';
			at -= p->name_len;
			memcpy(path + at, p->name, p->name_len);
		}
	}
	hfs_mutex_unlock(&t->lock);
	return path;
}

bool node_open(struct node_table *t, struct node *n, struct cache_file *f, struct cache_file **ret_used)
{
	bool is_first;

	hfs_mutex_lock(&t->lock);
	is_first = n->n_open++ == 0;
	if (is_first)
		n->file = f;
	*ret_used = n->file;
	hfs_mutex_unlock(&t->lock);
	return is_first;
}

struct cache_file *node_close(struct node_table *t, struct node *n)
{
	struct cache_file *f = NULL;

	hfs_mutex_lock(&t->lock);
	assert(n->n_open > 0);
	if (--n->n_open == 0) {
		f = n->file;
		n->file = NULL;
	}
	hfs_mutex_unlock(&t->lock);
	return f;
}

struct cache_file *node_file_ref(struct node_table *t, struct node *n)
{
	hfs_mutex_lock(&t->lock);
	struct cache_file *f = n->file;
	if (f)
		cache_file_ref(f);
	hfs_mutex_unlock(&t->lock);
	return f;
}

void node_stats_get(struct node_table *t, struct node_stats *ret)
{
	hfs_mutex_lock(&t->lock);
	*ret = t->stats;
	hfs_mutex_unlock(&t->lock);
}
