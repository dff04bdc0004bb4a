/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/file.c - generations: one struct for each identity that somebody refers to.
 *
 * 1. A generation is in the table from its creation until its last reference goes; both happen under files_lock, so
 *    a get never revives one that is being freed.
 * 2. One that is found again by a fresh look is current again (its path was moved away and back).
 * Lock: files_lock; c->lock may be held around the _locked calls.
 */
#include "cache/cache_i.h"

#include "cache/base/err.h"
#include "cache/cred.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MIN 256

int files_init(struct cache *c)
{
	c->files = calloc(FILES_MIN, sizeof(struct cache_file *));
	if (c->files == NULL)
		return -ENOMEM;
	c->files_mask = FILES_MIN - 1;
	return 0;
}

void files_finish(struct cache *c)
{
	cred_put(c->guest);
	free(c->files);
}

/* Twice as wide; a table that cannot grow is only slower. */
static void grow_locked(struct cache *c)
{
	uint64_t n = (c->files_mask + 1) * 2, at;
	struct cache_file **wider = calloc(n, sizeof(struct cache_file *));
	struct cache_file *f;

	if (wider == NULL)
		return;
	for (uint64_t i = 0; i <= c->files_mask; i++) {
		while ((f = c->files[i]) != NULL) {
			c->files[i] = f->hash_next;
			at = hfs_identity_hash(&f->id) & (n - 1);
			f->hash_next = wider[at];
			wider[at] = f;
		}
	}
	free(c->files);
	c->files = wider;
	c->files_mask = n - 1;
}

static struct cache_file *find_locked(struct cache *c, const struct hfs_identity *id, uint64_t hash)
{
	struct cache_file *f = c->files[hash & c->files_mask];

	while (f != NULL && !hfs_identity_equal(&f->id, id))
		f = f->hash_next;
	return f;
}

static struct cache_file *file_new(const struct hfs_identity *id, const char *path)
{
	struct cache_file *f = calloc(1, sizeof(*f));

	if (f == NULL)
		return NULL;
	f->path = strdup(path);
	if (f->path == NULL) {
		free(f);
		return NULL;
	}
	f->id = *id;
	atomic_init(&f->refs, 1);
	atomic_init(&f->tag, UINT32_MAX);
	return f;
}

static void file_free(struct cache_file *f)
{
	if (f == NULL)
		return;
	cred_put(f->cred);
	free(f->path);
	free(f);
}

static void insert_locked(struct cache *c, struct cache_file *f, uint64_t hash)
{
	if (c->n_files > c->files_mask)
		grow_locked(c);
	f->hash_next = c->files[hash & c->files_mask];
	c->files[hash & c->files_mask] = f;
	c->n_files++;
}

/* A reference to the one that is there, with the newer path. */
static void revive_locked(struct cache_file *f, const char *path)
{
	char *newer = strcmp(f->path, path) != 0 ? strdup(path) : NULL;

	if (newer != NULL) {
		free(f->path);
		f->path = newer;
	}
	atomic_fetch_add(&f->refs, 1);
	atomic_store(&f->is_superseded, false);
}

struct cache_file *cache_file_find(struct cache *c, const struct hfs_identity *id)
{
	struct cache_file *f;

	hfs_mutex_lock(&c->files_lock);
	f = find_locked(c, id, hfs_identity_hash(id));
	if (f != NULL)
		cache_file_ref(f);
	hfs_mutex_unlock(&c->files_lock);
	return f;
}

struct cache_file *cache_file_get(struct cache *c, const struct hfs_identity *id, const char *path)
{
	uint64_t hash = hfs_identity_hash(id);
	struct cache_file *f;

	hfs_mutex_lock(&c->files_lock);
	f = find_locked(c, id, hash);
	if (f == NULL) {
		f = file_new(id, path);
		if (f != NULL)
			insert_locked(c, f, hash);
	} else {
		revive_locked(f, path);
	}
	hfs_mutex_unlock(&c->files_lock);
	return f;
}

void cache_file_ref(struct cache_file *f)
{
	atomic_fetch_add(&f->refs, 1);
}

/* True: another reference is left for certain and ours is gone. */
static bool put_fast(struct cache_file *f)
{
	uint32_t n = atomic_load(&f->refs);

	while (n > 1)
		if (atomic_compare_exchange_weak(&f->refs, &n, n - 1))
			return true;
	return false;
}

/* True: f left the table and is the caller's to free. */
static bool put_slow(struct cache *c, struct cache_file *f)
{
	struct cache_file **at;
	bool is_last;

	hfs_mutex_lock(&c->files_lock);
	is_last = atomic_fetch_sub(&f->refs, 1) == 1;
	if (is_last) {
		at = &c->files[hfs_identity_hash(&f->id) & c->files_mask];
		while (*at != f)
			at = &(*at)->hash_next;
		*at = f->hash_next;
		c->n_files--;
	}
	hfs_mutex_unlock(&c->files_lock);
	return is_last;
}

void file_put_locked(struct cache *c, struct cache_file *f)
{
	if (put_fast(f) || !put_slow(c, f))
		return;
	if (f->ofd != NULL)
		fd_detach_locked(c, f->ofd);
	file_free(f);
}

void cache_file_put(struct cache *c, struct cache_file *f)
{
	bool has_fd;

	if (put_fast(f) || !put_slow(c, f))
		return;
	hfs_mutex_lock(&c->lock);
	has_fd = f->ofd != NULL;
	if (has_fd)
		fd_detach_locked(c, f->ofd);
	hfs_mutex_unlock(&c->lock);
	file_free(f);
	if (has_fd)
		fd_bury(c);
}

char *cache_file_path(struct cache *c, struct cache_file *f)
{
	char *copy;

	hfs_mutex_lock(&c->files_lock);
	copy = strdup(f->path);
	hfs_mutex_unlock(&c->files_lock);
	return copy;
}

static void set_cred_locked(struct cred **at, struct cred *cr)
{
	cred_put(*at);
	*at = cred_get(cr);
}

void cache_file_set_cred(struct cache *c, struct cache_file *f, struct cred *cr)
{
	hfs_mutex_lock(&c->files_lock);
	set_cred_locked(&f->cred, cr);
	set_cred_locked(&c->guest, cr);
	hfs_mutex_unlock(&c->files_lock);
}

void cache_set_guest(struct cache *c, struct cred *cr)
{
	hfs_mutex_lock(&c->files_lock);
	set_cred_locked(&c->guest, cr);
	hfs_mutex_unlock(&c->files_lock);
}

/* Who to be when we are refused: for this file, or (NULL) for one that nobody has opened yet. +1 reference. */
struct cred *file_cred(struct cache *c, const struct cache_file *f)
{
	struct cred *cr;

	hfs_mutex_lock(&c->files_lock);
	cr = cred_get(f != NULL && f->cred != NULL ? f->cred : c->guest);
	hfs_mutex_unlock(&c->files_lock);
	return cr;
}

struct cred *cache_guest_get(struct cache *c)
{
	return file_cred(c, NULL);
}

const struct hfs_identity *cache_file_identity(const struct cache_file *f)
{
	return &f->id;
}

bool cache_file_is_superseded(const struct cache_file *f)
{
	return atomic_load(&f->is_superseded);
}

bool file_supersede(struct cache_file *f)
{
	return !atomic_exchange(&f->is_superseded, true);
}

void cache_file_supersede(struct cache *c, struct cache_file *f)
{
	if (file_supersede(f) && c->cfg.cb.changed != NULL)
		c->cfg.cb.changed(c->cfg.cb.ctx, f);
}

uint32_t cache_file_tag(const struct cache_file *f)
{
	return atomic_load(&f->tag);
}

void cache_file_set_tag(struct cache_file *f, uint32_t tag)
{
	atomic_store(&f->tag, tag);
}
