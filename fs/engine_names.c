/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_names.c - names known to the scheduler: path <-> number <-> generation. Everything here needs the engine's lock.
 *
 * A number lives while anybody needs it: the control session (refs), open handles (n_bind), a fetch on its way, or the scheduler
 * (entries of an order, resident pages: sched_file_is_idle). Numbers are given back by name_trim_locked() where
 * the last of these is seen to go, and by a sweep after a list was dropped.
 *
 * Hard links: one generation, several names. The pages belong to the first name; the others are aliases of it.
 */
#include "fs/engine_i.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BUCKETS_FIRST 4096u

struct ename *name_at(struct engine *e, uint32_t name)
{
	return &e->blocks[name / NAMES_BLOCK][name % NAMES_BLOCK];
}

static int buckets_grow(struct engine *e)
{
	uint32_t n = e->n_buckets ? e->n_buckets * 2 : BUCKETS_FIRST;
	uint32_t *b = malloc(n * sizeof(*b));

	if (!b)
		return e->n_buckets ? 0 : -ENOMEM; /* a full table is only slower */
	memset(b, 0xff, n * sizeof(*b));
	for (uint32_t i = 0; i < e->n_names; i++) {
		struct ename *m = name_at(e, i);

		if (m->path) {
			m->hash_next = b[m->hash & (n - 1)];
			b[m->hash & (n - 1)] = i;
		}
	}
	free(e->buckets);
	e->buckets = b;
	e->n_buckets = n;
	return 0;
}

static uint32_t hash_path(const char *path, size_t len)
{
	return (uint32_t)XXH3_64bits(path, len);
}

uint32_t name_find_locked(struct engine *e, const char *path, size_t len)
{
	uint32_t hash = hash_path(path, len), i = e->n_buckets ? e->buckets[hash & (e->n_buckets - 1)] : NAME_NONE;

	while (i != NAME_NONE) {
		struct ename *m = name_at(e, i);

		if (m->hash == hash && !strncmp(m->path, path, len) && m->path[len] == '\0')
			return i;
		i = m->hash_next;
	}
	return NAME_NONE;
}

static int number_new(struct engine *e, uint32_t *ret)
{
	if (e->n_free > 0) {
		*ret = e->free_ids[--e->n_free];
		return 0;
	}
	if (e->n_names / NAMES_BLOCK >= NAMES_BLOCKS_MAX)
		return -ENOSPC;
	if (e->n_names % NAMES_BLOCK == 0 && !e->blocks[e->n_names / NAMES_BLOCK]) {
		struct ename *b = calloc(NAMES_BLOCK, sizeof(*b));

		if (!b)
			return -ENOMEM;
		e->blocks[e->n_names / NAMES_BLOCK] = b;
	}
	*ret = e->n_names++;
	return 0;
}

/* With one reference. */
static int name_new(struct engine *e, const char *path, size_t len, uint32_t *ret_name)
{
	char *copy = malloc(len + 1);
	uint32_t name = NAME_NONE, hash = hash_path(path, len);
	int rc;

	if (!copy)
		return -ENOMEM;
	memcpy(copy, path, len);
	copy[len] = '\0';
	rc = e->n_used >= e->n_buckets ? buckets_grow(e) : 0;
	if (rc == 0)
		rc = number_new(e, &name);
	if (rc == 0) {
		rc = sched_file_add(e->sched, name, SCHED_SIZE_UNKNOWN);
		if (rc < 0 && e->n_free < e->free_cap)
			e->free_ids[e->n_free++] = name;
	}
	if (rc < 0) {
		free(copy);
		return rc;
	}
	sched_file_key_set(e->sched, name, XXH3_64bits(path, len)); /* numbers are given again, paths stay */
	*name_at(e, name) = (struct ename){ .path = copy, .hash = hash, .refs = 1 };
	name_at(e, name)->hash_next = e->buckets[hash & (e->n_buckets - 1)];
	e->buckets[hash & (e->n_buckets - 1)] = name;
	e->n_used++;
	*ret_name = name;
	return 0;
}

int name_get_locked(struct engine *e, const char *path, size_t len, uint32_t *ret_name)
{
	uint32_t name = name_find_locked(e, path, len);

	if (name == NAME_NONE)
		return name_new(e, path, len, ret_name);
	name_at(e, name)->refs++;
	*ret_name = name;
	return 0;
}

static void name_remove(struct engine *e, uint32_t name)
{
	struct ename *m = name_at(e, name);
	uint32_t *p = &e->buckets[m->hash & (e->n_buckets - 1)];

	while (*p != name)
		p = &name_at(e, *p)->hash_next;
	*p = m->hash_next;
	sched_file_forget(e->sched, name);
	free(m->path);
	*m = (struct ename){ 0 };
	e->n_used--;
	if (e->n_free == e->free_cap) {
		uint32_t cap = e->free_cap ? e->free_cap * 2 : 1024;
		uint32_t *ids = realloc(e->free_ids, cap * sizeof(*ids));

		if (!ids)
			return; /* the number is lost, nothing else */
		e->free_ids = ids;
		e->free_cap = cap;
	}
	e->free_ids[e->n_free++] = name;
}

static void file_drop(struct engine *e, struct ename *m)
{
	struct cache_file *f = m->file;

	m->file = NULL;
	if (f)
		cache_file_put(e->cache, f);
}

void name_trim_locked(struct engine *e, uint32_t name)
{
	struct ename *m = name_at(e, name);

	if (!m->path || m->n_bind > 0 || m->n_acts > 0 || m->is_resolving || m->orphans)
		return;
	/* The disk tier is asked by identity. */
	if (m->file && sched_file_frames(e->sched, name) == 0 &&
	    ((!e->tier && !m->is_awaited) || sched_file_is_idle(e->sched, name)))
		file_drop(e, m);
	if (m->refs == 0 && !m->file && sched_file_is_idle(e->sched, name))
		name_remove(e, name);
}

void names_sweep_locked(struct engine *e, uint32_t n)
{
	for (; n > 0 && e->gc_left > 0; n--, e->gc_left--) {
		if (e->gc_at >= e->n_names)
			e->gc_at = 0;
		if (e->gc_at < e->n_names)
			name_trim_locked(e, e->gc_at++);
	}
}

void name_unresolve_locked(struct engine *e, uint32_t name)
{
	struct ename *m = name_at(e, name);

	if (m->file)
		cache_file_drop(e->cache, m->file);
	file_drop(e, m);
	m->is_known = false;
	sched_file_changed(e->sched, name, SCHED_SIZE_UNKNOWN);
}

uint32_t name_bind_locked(struct engine *e, uint32_t name, struct cache_file *f)
{
	struct ename *m = name_at(e, name);
	uint64_t size = cache_file_identity(f)->size_bytes, now_ns = hfs_now_ns();
	uint32_t owner = cache_file_tag(f);

	if (owner != NAME_NONE && owner != name && name_at(e, owner)->file == f) {
		if (m->file)
			name_unresolve_locked(e, name);
		sched_file_resolved(e->sched, name, 0, size, owner, now_ns);
		return owner;
	}
	if (m->file != f) {
		if (m->file) {
			cache_file_drop(e->cache, m->file);
			file_drop(e, m);
			sched_file_changed(e->sched, name, size);
		} else if (m->is_known && m->size_bytes != size) {
			sched_file_changed(e->sched, name, size);
		} else {
			sched_file_resolved(e->sched, name, 0, size, SCHED_NO_FILE, now_ns);
		}
		cache_file_ref(f);
		m->file = f;
		cache_file_set_tag(f, name);
		if (e->tier)
			tier_map_locked(e, name);
	}
	m->is_missing = false;
	m->is_known = true;
	m->size_bytes = size;
	return name;
}

int name_bind_path_locked(struct engine *e, const char *path, struct cache_file *f, uint32_t *ret_name)
{
	uint32_t name;
	int rc = name_get_locked(e, path, strlen(path), &name);

	if (rc < 0)
		return rc;
	*ret_name = name_bind_locked(e, name, f);
	name_at(e, name)->refs--;
	if (*ret_name != name)
		name_trim_locked(e, name);
	return 0;
}

void names_finish(struct engine *e)
{
	for (uint32_t i = 0; i < e->n_names; i++) {
		struct ename *m = name_at(e, i);

		while (m->orphans) {
			struct orphan *o = m->orphans;

			m->orphans = o->next;
			free(o);
		}
		file_drop(e, m);
		free(m->path);
	}
	e->n_names = 0; /* a late answer to a look-up finds none */
	for (uint32_t b = 0; b < NAMES_BLOCKS_MAX; b++)
		free(e->blocks[b]);
	free(e->buckets);
	free(e->free_ids);
	memset(e->blocks, 0, sizeof(e->blocks));
	e->buckets = NULL;
	e->free_ids = NULL;
	e->n_names = e->n_buckets = e->n_used = e->n_free = e->free_cap = 0;
	e->gc_left = 0;
}

/* ---- for the control session ---------------------------------------------------------------- */

int engine_name_get(struct engine *e, const char *path, size_t len, uint32_t *ret_name)
{
	hfs_mutex_lock(&e->lock);
	int rc = e->is_stopping ? -ESHUTDOWN : name_get_locked(e, path, len, ret_name);
	hfs_mutex_unlock(&e->lock);
	return rc;
}

void engine_name_put(struct engine *e, uint32_t name)
{
	hfs_mutex_lock(&e->lock);
	assert(name_at(e, name)->refs > 0);
	name_at(e, name)->refs--;
	name_trim_locked(e, name);
	hfs_mutex_unlock(&e->lock);
}

int engine_name_size(struct engine *e, uint32_t name, uint64_t *ret_size)
{
	hfs_mutex_lock(&e->lock);
	struct ename *m = name_at(e, name);
	int rc = m->is_missing ? -ENOENT : m->is_known ? 0 : -EAGAIN;
	if (rc == 0)
		*ret_size = m->size_bytes;
	hfs_mutex_unlock(&e->lock);
	return rc;
}

size_t engine_name_path(struct engine *e, uint32_t name, char *buf, size_t cap)
{
	size_t len = 0;

	hfs_mutex_lock(&e->lock);
	if (name < e->n_names && name_at(e, name)->path) {
		const char *path = name_at(e, name)->path;

		len = strlen(path);
		if (cap > 0) {
			size_t n = len < cap - 1 ? len : cap - 1;

			memcpy(buf, path, n);
			buf[n] = '\0';
		}
	}
	hfs_mutex_unlock(&e->lock);
	return len;
}

/* ---- attributes that prefetches and checks brought -------------------------------------------------------- */

static struct attr_slot *attr_slot(struct engine *e, const char *path, uint64_t hash[2])
{
	XXH128_hash_t h = XXH3_128bits(path, strlen(path));

	hash[0] = h.low64;
	hash[1] = h.high64;
	return &e->attrs[h.low64 % ATTRS_SLOTS];
}

void engine_attr_note(struct engine *e, const char *path, const struct origin_attr *attr, uint64_t at_ns)
{
	uint64_t hash[2];
	struct attr_slot *s = attr_slot(e, path, hash);

	hfs_mutex_lock(&e->attr_lock);
	if (s->at_ns <= at_ns || s->hash[0] != hash[0] || s->hash[1] != hash[1])
		*s = (struct attr_slot){ .hash = { hash[0], hash[1] }, .at_ns = at_ns, .attr = *attr };
	hfs_mutex_unlock(&e->attr_lock);
}

bool engine_attr_get(struct engine *e, const char *path, uint64_t since_ns, struct origin_attr *ret, uint64_t *ret_ns)
{
	uint64_t hash[2];
	struct attr_slot *s = attr_slot(e, path, hash);
	bool is;

	hfs_mutex_lock(&e->attr_lock);
	is = s->at_ns > since_ns && s->hash[0] == hash[0] && s->hash[1] == hash[1];
	if (is) {
		*ret = s->attr;
		*ret_ns = s->at_ns;
	}
	hfs_mutex_unlock(&e->attr_lock);
	return is;
}
