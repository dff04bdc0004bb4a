/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/dirsnap.c - see dirsnap.h. Callers: fs/data_dir.c.
 *
 * A snapshot is two arrays: records of variable length (ino, type, length, name, NUL) one after another, and their
 * offsets. Both are trimmed at publish.
 */
#include "fs/dirsnap.h"

#include "cache/base/sync.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEPT_MAX 4096u /* directories whose last listing is kept */
#define BUCKETS 1024u

struct dirsnap {
	struct dirsnap_table *table;
	uint64_t node_id, at_ns;
	char *data; /* owned: malloc'd, or mapped if is_mapped */
	uint32_t *offsets; /* owned; units: bytes / 8 */
	size_t n, offsets_cap, data_len, data_cap;
	bool is_mapped, is_kept;
	/* guarded by the table's lock */
	uint32_t refs;
	uint64_t charged;
	struct dirsnap *hash_next, *lru_prev, *lru_next;
};

struct dirsnap_table {
	struct hfs_mutex lock;
	/* guarded by lock */
	struct dirsnap *buckets[BUCKETS];
	struct dirsnap *lru_first, *lru_last; /* first: most recent */
	uint32_t n_kept;
	uint64_t bytes;
};

struct record {
	uint64_t ino;
	uint16_t len;
	uint8_t type;
	char name[];
};

int dirsnap_table_create(struct dirsnap_table **ret_t)
{
	struct dirsnap_table *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	hfs_mutex_init(&t->lock, HFS_RANK_LEAF);
	*ret_t = t;
	return 0;
}

int dirsnap_create(struct dirsnap_table *t, uint64_t node_id, struct dirsnap **ret_s)
{
	struct dirsnap *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->table = t;
	s->node_id = node_id;
	s->refs = 1;
	*ret_s = s;
	return 0;
}

static int grow(void **p, size_t *cap, size_t need, size_t elem)
{
	size_t want = *cap ? *cap * 2 : 64;
	void *q;

	if (need <= *cap)
		return 0;
	while (want < need)
		want *= 2;
	q = realloc(*p, want * elem);
	if (!q)
		return -ENOMEM;
	*p = q;
	*cap = want;
	return 0;
}

int dirsnap_add(struct dirsnap *s, const char *name, size_t len, uint64_t ino, unsigned type)
{
	size_t bytes = (offsetof(struct record, name) + len + 1 + 7) & ~(size_t)7;
	struct record *r;
	int rc;

	rc = grow((void **)&s->offsets, &s->offsets_cap, s->n + 1, sizeof(*s->offsets));
	if (!rc)
		rc = grow((void **)&s->data, &s->data_cap, s->data_len + bytes, 1);
	if (rc)
		return rc;
	if ((s->data_len + bytes) / 8 > UINT32_MAX)
		return -EOVERFLOW;
	r = (struct record *)(s->data + s->data_len);
	memset(r, 0, bytes);
	r->ino = ino;
	r->len = (uint16_t)len;
	r->type = (uint8_t)type;
	memcpy(r->name, name, len);
	s->offsets[s->n++] = (uint32_t)(s->data_len / 8);
	s->data_len += bytes;
	return 0;
}

/* Move the records to an unlinked file: its pages can be reclaimed. */
static int spill(struct dirsnap *s)
{
	const char *dir = getenv("TMPDIR");
	int fd = open(dir && *dir ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char *map = MAP_FAILED;
	int rc;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)s->data_len) == 0)
		map = mmap(NULL, s->data_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rc = map == MAP_FAILED ? -errno : 0;
	close(fd);
	if (rc)
		return rc;
	memcpy(map, s->data, s->data_len);
	free(s->data);
	s->data = map;
	s->data_cap = s->data_len;
	s->is_mapped = true;
	return 0;
}

static void trim(struct dirsnap *s)
{
	void *p = s->n ? realloc(s->offsets, s->n * sizeof(*s->offsets)) : NULL;

	if (p)
		s->offsets = p;
	p = s->data_len ? realloc(s->data, s->data_len) : NULL;
	if (p)
		s->data = p;
}

static void dirsnap_free(struct dirsnap *s)
{
	if (s->is_mapped)
		munmap(s->data, s->data_len);
	else
		free(s->data);
	free(s->offsets);
	free(s);
}

static struct dirsnap **bucket(struct dirsnap_table *t, uint64_t node_id)
{
	return &t->buckets[(node_id * 0x9e3779b97f4a7c15ull >> 40) % BUCKETS];
}

static void lru_unlink_locked(struct dirsnap_table *t, struct dirsnap *s)
{
	*(s->lru_prev ? &s->lru_prev->lru_next : &t->lru_first) = s->lru_next;
	*(s->lru_next ? &s->lru_next->lru_prev : &t->lru_last) = s->lru_prev;
	s->lru_prev = s->lru_next = NULL;
}

static void lru_push_locked(struct dirsnap_table *t, struct dirsnap *s)
{
	s->lru_next = t->lru_first;
	*(t->lru_first ? &t->lru_first->lru_prev : &t->lru_last) = s;
	t->lru_first = s;
}

/* Drop one reference; the last one hands the snapshot back for freeing outside the lock. */
static struct dirsnap *unref_locked(struct dirsnap_table *t, struct dirsnap *s)
{
	assert(s->refs > 0);
	if (--s->refs > 0)
		return NULL;
	t->bytes -= s->charged;
	return s;
}

static struct dirsnap *unkeep_locked(struct dirsnap_table *t, struct dirsnap *s)
{
	for (struct dirsnap **p = bucket(t, s->node_id); *p; p = &(*p)->hash_next) {
		if (*p == s) {
			*p = s->hash_next;
			break;
		}
	}
	lru_unlink_locked(t, s);
	s->is_kept = false;
	t->n_kept--;
	return unref_locked(t, s);
}

static struct dirsnap *find_locked(struct dirsnap_table *t, uint64_t node_id)
{
	struct dirsnap *s = *bucket(t, node_id);

	while (s && s->node_id != node_id)
		s = s->hash_next;
	return s;
}

int dirsnap_publish(struct dirsnap *s, uint64_t now_ns)
{
	struct dirsnap_table *t = s->table;
	struct dirsnap *dead[2] = { NULL, NULL };
	uint64_t bytes;
	bool is_over;

	trim(s);
	s->at_ns = now_ns;
	bytes = sizeof(*s) + s->data_len + s->n * sizeof(*s->offsets);
	hfs_mutex_lock(&t->lock);
	while (t->bytes + bytes > DIRSNAP_BYTES_MAX && t->lru_last) {
		struct dirsnap *d = unkeep_locked(t, t->lru_last);

		hfs_mutex_unlock(&t->lock);
		if (d)
			dirsnap_free(d);
		hfs_mutex_lock(&t->lock);
	}
	is_over = t->bytes + bytes > DIRSNAP_BYTES_MAX;
	if (!is_over)
		s->charged = bytes;
	t->bytes += s->charged;
	hfs_mutex_unlock(&t->lock);
	if (is_over && s->data_len)
		(void)spill(s); /* no temporary file: memory it is, better over budget than wrong */

	hfs_mutex_lock(&t->lock);
	struct dirsnap *old = find_locked(t, s->node_id);
	if (old)
		dead[0] = unkeep_locked(t, old);
	if (t->n_kept >= KEPT_MAX)
		dead[1] = unkeep_locked(t, t->lru_last);
	s->refs++;
	s->is_kept = true;
	s->hash_next = *bucket(t, s->node_id);
	*bucket(t, s->node_id) = s;
	lru_push_locked(t, s);
	t->n_kept++;
	hfs_mutex_unlock(&t->lock);
	for (int i = 0; i < 2; i++) {
		if (dead[i])
			dirsnap_free(dead[i]);
	}
	return 0;
}

void dirsnap_put(struct dirsnap *s)
{
	struct dirsnap *dead;

	if (!s)
		return;
	hfs_mutex_lock(&s->table->lock);
	dead = unref_locked(s->table, s);
	hfs_mutex_unlock(&s->table->lock);
	if (dead)
		dirsnap_free(dead);
}

struct dirsnap *dirsnap_find(struct dirsnap_table *t, uint64_t node_id, uint64_t *ret_ns)
{
	hfs_mutex_lock(&t->lock);
	struct dirsnap *s = find_locked(t, node_id);
	if (s) {
		s->refs++;
		lru_unlink_locked(t, s);
		lru_push_locked(t, s);
		if (ret_ns)
			*ret_ns = s->at_ns;
	}
	hfs_mutex_unlock(&t->lock);
	return s;
}

size_t dirsnap_count(const struct dirsnap *s)
{
	return s->n;
}

void dirsnap_entry(const struct dirsnap *s, size_t i, struct dirsnap_entry *ret)
{
	const struct record *r = (const struct record *)(s->data + (size_t)s->offsets[i] * 8);

	assert(i < s->n);
	*ret = (struct dirsnap_entry){ .name = r->name, .len = r->len, .type = r->type, .ino = r->ino };
}

uint64_t dirsnap_bytes(struct dirsnap_table *t)
{
	hfs_mutex_lock(&t->lock);
	uint64_t b = t->bytes;
	hfs_mutex_unlock(&t->lock);
	return b;
}

void dirsnap_table_destroy(struct dirsnap_table *t)
{
	if (!t)
		return;
	while (t->lru_last) {
		struct dirsnap *d = unkeep_locked(t, t->lru_last);

		if (d)
			dirsnap_free(d);
	}
	assert(t->bytes == 0);
	hfs_mutex_finish(&t->lock);
	free(t);
}
