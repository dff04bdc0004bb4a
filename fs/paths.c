/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/paths.c - see paths.h.
 *
 * Everything that touches a file system runs in a child (bounded_run). A path where something is mounted is not stat'ed: it is
 * a directory, and a dead mount of ours there (ENOTCONN) is for the caller to clear, not an error.
 */
#include "fs/paths.h"

#include "fs/bounded.h"
#include "fs/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longer than an NFS client's automounter or a server's fail-over of the good kind; shorter than a boot's patience. */
#define RESOLVE_TIMEOUT_MS 20000
#define AWAY_TIMEOUT_MS 5000 /* where the mount can do without it */

struct question {
	const char *source, *mountpoint;
};

bool paths_is_below(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	if (n == 1 && dir[0] == '/')
		return path[0] == '/';
	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Does any directory above path, or path itself, turn out to be *st? Finds bind mounts, which names do not show. */
static bool has_ancestor(const char *path, const struct stat *dir)
{
	char part[PATH_MAX];
	struct mountinfo m;
	struct stat st;
	char *slash;

	strcpy(part, path);
	for (;;) {
		/* Our own dead mount at the path itself answers nothing. */
		bool is_skipped = strcmp(part, path) == 0 && mountinfo_find(part, &m) == 0;

		if (!is_skipped && stat(part[0] ? part : "/", &st) == 0 && is_same(&st, dir))
			return true;
		slash = strrchr(part, '/');
		if (!slash || part[0] == '\0')
			return false;
		*slash = '\0';
	}
}

/* realpath + "is a directory"; a mounted path is not asked when is_mount_ok. */
static int resolve_one(const char *path, char *ret, struct stat *ret_st, bool is_mount_ok)
{
	struct mountinfo m;

	if (!realpath(path, ret))
		return -errno;
	if (is_mount_ok && mountinfo_find(ret, &m) == 0)
		return 1;
	if (stat(ret, ret_st) < 0)
		return -errno;
	return S_ISDIR(ret_st->st_mode) ? 0 : -ENOTDIR;
}

/* NULL: not looked at, its name has to do. */
static enum paths_problem relation(const struct paths *p, const struct stat *source, const struct stat *mountpoint)
{
	if (strcmp(p->source, p->mountpoint) == 0 || (mountpoint && is_same(source, mountpoint)))
		return PATHS_SAME;
	if (paths_is_below(p->source, p->mountpoint) || (mountpoint && has_ancestor(p->source, mountpoint)))
		return PATHS_SOURCE_BELOW;
	if (paths_is_below(p->mountpoint, p->source) || (source && has_ancestor(p->mountpoint, source)))
		return PATHS_MOUNTPOINT_BELOW;
	return PATHS_OK;
}

static void ask(const void *arg, void *answer)
{
	const struct question *q = arg;
	struct paths *p = answer;
	struct stat source, mountpoint;
	int r = resolve_one(q->source, p->source, &source, false);

	if (r < 0) {
		p->problem = r == -ENOTDIR && p->source[0] ? PATHS_SOURCE_NOT_DIR : PATHS_SOURCE;
		p->err = r;
		return;
	}
	r = resolve_one(q->mountpoint, p->mountpoint, &mountpoint, true);
	if (r < 0) {
		p->problem = r == -ENOTDIR ? PATHS_MOUNTPOINT_NOT_DIR : PATHS_MOUNTPOINT;
		p->err = r;
		return;
	}
	p->problem = relation(p, &source, r == 1 ? NULL : &mountpoint);
}

static void resolve_within(void (*fn)(const void *arg, void *answer), const char *source, const char *mountpoint,
			   unsigned timeout_ms, struct paths *ret)
{
	struct question q = { .source = source, .mountpoint = mountpoint };
	char say[2 * PATH_MAX + 64];
	int r;

	snprintf(say, sizeof(say), "hintfs: waiting for SOURCE %s (or MOUNTPOINT %s) to answer", source, mountpoint);
	r = bounded_run(fn, &q, ret, sizeof(*ret), timeout_ms, say);
	if (r < 0) {
		ret->problem = PATHS_TIMEOUT;
		ret->err = r;
	}
}

void paths_resolve(const char *source, const char *mountpoint, struct paths *ret)
{
	resolve_within(ask, source, mountpoint, RESOLVE_TIMEOUT_MS, ret);
}

/* A tail that does not exist yet: no "." or ".." in it, no double slashes. */
static int append_tail(char *to, const char *tail)
{
	size_t n = strlen(to);

	while (*tail) {
		size_t len = strcspn(tail, "/");

		if ((len == 1 && tail[0] == '.') || (len == 2 && tail[0] == '.' && tail[1] == '.'))
			return -EINVAL;
		if (len > 0) {
			if (n + len + 2 > PATH_MAX)
				return -ENAMETOOLONG;
			if (n == 0 || to[n - 1] != '/')
				to[n++] = '/';
			memcpy(to + n, tail, len);
			n += len;
			to[n] = '\0';
		}
		tail += len + (tail[len] == '/');
	}
	return 0;
}

static void ask_away(const void *arg, void *answer)
{
	const struct question *q = arg;
	struct paths *p = answer;
	struct stat mountpoint;
	int r = 0;

	if (q->source[0] != '/' && !getcwd(p->source, sizeof(p->source)))
		r = -errno;
	if (r == 0)
		r = append_tail(p->source, q->source);
	p->problem = r < 0 ? PATHS_SOURCE : PATHS_OK;
	if (r == 0 && (r = resolve_one(q->mountpoint, p->mountpoint, &mountpoint, true)) < 0)
		p->problem = r == -ENOTDIR ? PATHS_MOUNTPOINT_NOT_DIR : PATHS_MOUNTPOINT;
	p->err = r < 0 ? r : 0;
	if (p->problem == PATHS_OK)
		p->problem = relation(p, NULL, NULL);
}

void paths_resolve_away(const char *source, const char *mountpoint, struct paths *ret)
{
	resolve_within(ask, source, mountpoint, AWAY_TIMEOUT_MS, ret);
	if (ret->problem == PATHS_TIMEOUT || (ret->problem == PATHS_SOURCE && ret->err != -EACCES)) {
		memset(ret, 0, sizeof(*ret));
		resolve_within(ask_away, source, mountpoint, RESOLVE_TIMEOUT_MS, ret);
	}
}

static void ask_absolute(const void *arg, void *answer)
{
	const char *path = arg;
	struct paths *p = answer;
	char head[PATH_MAX];
	size_t cut = strlen(path);

	memcpy(head, path, cut + 1);
	while (!realpath(cut ? head : (path[0] == '/' ? "/" : "."), p->source)) {
		if (errno != ENOENT || cut == 0) {
			p->err = -errno;
			return;
		}
		while (cut > 0 && head[cut - 1] == '/')
			cut--;
		while (cut > 0 && head[cut - 1] != '/')
			cut--;
		head[cut] = '\0';
	}
	p->err = append_tail(p->source, path + cut);
}

int paths_absolute(const char *path, char **ret)
{
	struct paths *p;
	char say[PATH_MAX + 64];
	int r;

	if (strlen(path) >= PATH_MAX)
		return -ENAMETOOLONG;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	snprintf(say, sizeof(say), "hintfs: waiting for %s to answer", path);
	r = bounded_run(ask_absolute, path, p, sizeof(*p), RESOLVE_TIMEOUT_MS, say);
	if (r == 0)
		r = p->err;
	if (r == 0) {
		*ret = strdup(p->source);
		r = *ret ? 0 : -ENOMEM;
	}
	free(p);
	return r;
}
