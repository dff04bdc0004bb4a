/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin_dir.c - whole listings, and following relative links inside the root.
 */
#include "cache/origin_i.h"

#include "cache/base/err.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BUF_BYTES (64 * 1024)
#define REALPATH_MAX (1024 * 1024) /* of a path with the links in it unrolled */

static bool is_listable(const char *name, size_t len)
{
	if (len == 0 || len > NAME_MAX || memchr(name, '/', len) != NULL)
		return false;
	return !(name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')));
}

/* One buffer of getdents; its records come from a file system that may be anybody's. */
static int list_buffer(const char *buf, size_t n, origin_list_cb cb, void *ctx)
{
	const size_t head = offsetof(struct dirent64, d_name);
	const struct dirent64 *d;
	size_t len;

	for (size_t i = 0; i < n; i += d->d_reclen) {
		d = (const struct dirent64 *)(const void *)(buf + i);
		if (n - i <= head || d->d_reclen <= head || d->d_reclen > n - i)
			return -EIO;
		len = strnlen(d->d_name, d->d_reclen - head);
		if (len == d->d_reclen - head)
			return -EIO;
		if (is_listable(d->d_name, len))
			HFS_TRY(cb(ctx, d->d_name, len, d->d_ino, d->d_type));
	}
	return 0;
}

int origin_list(struct origin *o, const char *path, origin_list_cb cb, void *ctx)
{
	int fd = origin_path_open(o, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
	char *buf = NULL;
	ssize_t n;
	int err = 0;

	if (fd < 0)
		return fd;
	buf = malloc(LIST_BUF_BYTES);
	if (buf == NULL)
		err = -ENOMEM;
	while (err == 0) {
		n = o->io->getdents(o->io->ctx, fd, buf, LIST_BUF_BYTES);
		if (n <= 0) {
			err = (int)n;
			break;
		}
		err = list_buffer(buf, (size_t)n, cb, ctx);
	}
	free(buf);
	origin_fd_close(o, fd);
	return err;
}

/* ---- realpath ---- */

/* done: canonical so far, no links in it; todo: what is left. Both owned, NUL-terminated. */
struct walk {
	struct origin *o;
	char *done, *todo;
	size_t done_len;
	unsigned links;
	struct origin_attr attr; /* of done */
};

static int walk_up(struct walk *w)
{
	char *slash;

	if (w->done_len == 0)
		return -EXDEV;
	slash = strrchr(w->done, '/');
	w->done_len = slash != NULL ? (size_t)(slash - w->done) : 0;
	w->done[w->done_len] = '\0';
	return origin_stat(w->o, w->done, false, &w->attr);
}

/* done = done/name */
static int walk_push(struct walk *w, const char *name, size_t len)
{
	char *longer;

	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	if (w->done_len + len + 2 > REALPATH_MAX)
		return -ENAMETOOLONG;
	longer = realloc(w->done, w->done_len + len + 2);
	if (longer == NULL)
		return -ENOMEM;
	w->done = longer;
	if (w->done_len > 0)
		w->done[w->done_len++] = '/';
	memcpy(w->done + w->done_len, name, len);
	w->done_len += len;
	w->done[w->done_len] = '\0';
	return 0;
}

/* done is a link that was pushed last: take it off again and put its text before rest. */
static int walk_link(struct walk *w, size_t base_len, const char *rest)
{
	char target[PATH_MAX];
	ssize_t n = origin_readlink(w->o, w->done, target, sizeof(target));
	char *todo;

	if (n < 0)
		return (int)n;
	if (++w->links > ORIGIN_LINKS_MAX)
		return -ELOOP;
	if (n == 0 || (size_t)n >= sizeof(target))
		return n == 0 ? -ENOENT : -ENAMETOOLONG;
	if (target[0] == '/')
		return -EXDEV;
	if (strlen(rest) + (size_t)n + 2 > REALPATH_MAX)
		return -ENAMETOOLONG;
	todo = malloc((size_t)n + strlen(rest) + 2);
	if (todo == NULL)
		return -ENOMEM;
	memcpy(todo, target, (size_t)n);
	todo[n] = '/';
	strcpy(todo + n + 1, rest);
	free(w->todo);
	w->todo = todo;
	w->done_len = base_len;
	w->done[base_len] = '\0';
	return 0;
}

static int walk_step(struct walk *w, const char *name, size_t len, const char *rest)
{
	size_t base_len = w->done_len;

	if (len == 1 && name[0] == '.')
		return 0;
	if (len == 2 && name[0] == '.' && name[1] == '.')
		return walk_up(w);
	HFS_TRY(walk_push(w, name, len));
	HFS_TRY(origin_stat(w->o, w->done, false, &w->attr));
	if (S_ISLNK(w->attr.mode))
		return walk_link(w, base_len, rest);
	return *rest != '\0' && !S_ISDIR(w->attr.mode) ? -ENOTDIR : 0;
}

static int walk_all(struct walk *w)
{
	char *at = w->todo, *before, *rest;
	size_t len;

	for (;;) {
		at += strspn(at, "/");
		if (*at == '\0')
			return 0;
		len = strcspn(at, "/");
		rest = at + len + strspn(at + len, "/");
		before = w->todo;
		HFS_TRY(walk_step(w, at, len, rest));
		at = w->todo != before ? w->todo : rest;
	}
}

int origin_realpath(struct origin *o, const char *path, char **ret_path, struct origin_attr *ret_attr)
{
	struct walk w = {.o = o, .done = strdup(""), .todo = strdup(path)};
	int err = w.done == NULL || w.todo == NULL ? -ENOMEM : 0;

	if (err == 0 && *path == '/')
		err = -EXDEV;
	if (err == 0)
		err = walk_all(&w);
	if (err == 0 && (w.links > 0 || w.done_len == 0)) /* the last step may have been a link to "." */
		err = origin_stat(o, w.done, false, &w.attr);
	if (err == 0 && !S_ISREG(w.attr.mode) && !S_ISDIR(w.attr.mode))
		err = -ENXIO;
	free(w.todo);
	if (err < 0) {
		free(w.done);
		return err;
	}
	*ret_path = w.done;
	*ret_attr = w.attr;
	return 0;
}
