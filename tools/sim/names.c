/* SPDX-License-Identifier: Apache-2.0 */
/* tools/sim/names.c - see names.h. */
#include "tools/sim/names.h"

#include "sched/parse.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t hash_of(const char *s, size_t len)
{
	uint64_t h = 0xcbf29ce484222325ULL;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)s[i]) * 0x100000001b3ULL;
	return h ^ (h >> 32);
}

void names_finish(struct names *t)
{
	for (uint32_t i = 0; i < t->n; i++)
		free(t->v[i].path);
	free(t->v);
	free(t->buckets);
	*t = (struct names){0};
}

static int rehash(struct names *t)
{
	uint32_t n = t->n_buckets ? t->n_buckets * 2 : 4096, *b = malloc((size_t)n * sizeof(*b));

	if (!b)
		return -ENOMEM;
	memset(b, 0xff, (size_t)n * sizeof(*b));
	for (uint32_t i = 0; i < t->n; i++) {
		uint32_t *head = &b[hash_of(t->v[i].path, strlen(t->v[i].path)) & (n - 1)];

		t->v[i].hash_next = *head;
		*head = i;
	}
	free(t->buckets);
	t->buckets = b;
	t->n_buckets = n;
	return 0;
}

static uint32_t find(const struct names *t, const char *path, size_t len)
{
	uint32_t i = t->n_buckets ? t->buckets[hash_of(path, len) & (t->n_buckets - 1)] : NAMES_NONE;

	while (i != NAMES_NONE && (strlen(t->v[i].path) != len || memcmp(t->v[i].path, path, len) != 0))
		i = t->v[i].hash_next;
	return i;
}

static int add(struct names *t, const char *path, size_t len, uint32_t *ret)
{
	if (t->n >= t->n_buckets && rehash(t))
		return -ENOMEM;
	if (t->n == t->cap) {
		uint32_t cap = t->cap ? t->cap * 2 : 1024;
		void *p = reallocarray(t->v, cap, sizeof(*t->v));

		if (!p)
			return -ENOMEM;
		t->v = p;
		t->cap = cap;
	}
	struct name *m = &t->v[t->n];
	*m = (struct name){.path = strndup(path, len), .file = NAMES_NONE};
	if (!m->path)
		return -ENOMEM;
	uint32_t *head = &t->buckets[hash_of(path, len) & (t->n_buckets - 1)];
	m->hash_next = *head;
	*head = t->n;
	*ret = t->n++;
	return 0;
}

static void look_up(const struct names *t, struct name *m)
{
	char full[PATH_MAX];
	struct stat st;

	m->is_missing = true;
	if (!t->source || (size_t)snprintf(full, sizeof(full), "%s/%s", t->source, m->path) >= sizeof(full))
		return;
	if (stat(full, &st) != 0 || !S_ISREG(st.st_mode))
		return;
	m->is_missing = false;
	m->size_bytes = (uint64_t)st.st_size;
}

int names_get(struct names *t, const char *path, size_t len, uint32_t *ret)
{
	uint32_t i = find(t, path, len);
	int rc = 0;

	if (i == NAMES_NONE) {
		rc = add(t, path, len, &i);
		if (rc == 0)
			look_up(t, &t->v[i]);
	}
	*ret = i;
	return rc;
}

int names_read_sizes(struct names *t, const char *path, uint64_t *ret_line)
{
	FILE *f = fopen(path, "re");
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;

	*ret_line = 0;
	if (!f)
		return -errno;
	while (rc == 0 && (n = getline(&line, &cap, f)) >= 0) {
		char *tab;
		uint64_t size;
		uint32_t i;

		++*ret_line;
		if (n > 0 && line[n - 1] == '\n')
			line[--n] = 0;
		tab = memrchr(line, '\t', (size_t)n);
		if (n == 0 || line[0] == '#')
			continue;
		if (!tab || tab == line || parse_size(tab + 1, (size_t)(line + n - tab - 1), &size)) {
			rc = -EINVAL;
			break;
		}
		rc = names_get(t, line, (size_t)(tab - line), &i);
		if (rc == 0) {
			t->v[i].size_bytes = size;
			t->v[i].is_missing = false;
			t->v[i].is_listed = true;
		}
	}
	if (rc == 0 && ferror(f))
		rc = -EIO;
	free(line);
	fclose(f);
	t->has_list = true;
	return rc;
}

/* ---- directories ------------------------------------------------------------------------------- */

struct found {
	char **v;
	size_t n, cap;
	int rc;
};

static int found_add(struct found *f, const char *path)
{
	if (f->n == f->cap) {
		size_t cap = f->cap ? f->cap * 2 : 256;
		void *p = reallocarray(f->v, cap, sizeof(*f->v));

		if (!p)
			return -ENOMEM;
		f->v = p;
		f->cap = cap;
	}
	f->v[f->n] = strdup(path);
	return f->v[f->n++] ? 0 : -ENOMEM;
}

/* nftw() has no argument for us; the program has one thread and walks one directory at a time. */
static struct found *walk_found;
static size_t walk_skip;

static int walk_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)at;
	return kind == FTW_F ? found_add(walk_found, path + walk_skip) : 0;
}

static int walk(const struct names *t, const char *dir, size_t len, struct found *f)
{
	char full[PATH_MAX];

	if ((size_t)snprintf(full, sizeof(full), "%s/%.*s", t->source, (int)len, dir) >= sizeof(full))
		return -ENAMETOOLONG;
	size_t n = strlen(full);
	if (len == 0)
		full[--n] = 0;
	walk_found = f;
	walk_skip = strlen(t->source) + 1;
	int rc = nftw(full, walk_one, 16, FTW_PHYS);
	walk_found = NULL;
	return rc == -1 ? -errno : rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int names_below(struct names *t, const char *dir, size_t len, int (*fn)(void *arg, uint32_t index), void *arg)
{
	struct found f = {0};
	int rc = t->source ? walk(t, dir, len, &f) : 0;

	for (uint32_t i = 0; rc == 0 && !t->source && i < t->n; i++)
		if (t->v[i].is_listed && (len == 0 || (strncmp(t->v[i].path, dir, len) == 0 && t->v[i].path[len] == '/')))
			rc = found_add(&f, t->v[i].path);
	if (rc == 0 && f.n == 0)
		rc = -ENOENT;
	if (f.n)
		qsort(f.v, f.n, sizeof(*f.v), by_name);
	for (size_t i = 0; i < f.n; i++) {
		uint32_t k;

		if (rc == 0)
			rc = names_get(t, f.v[i], strlen(f.v[i]), &k);
		if (rc == 0)
			rc = fn(arg, k);
		free(f.v[i]);
	}
	free(f.v);
	return rc;
}
