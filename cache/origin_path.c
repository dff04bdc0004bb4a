/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin_path.c - from a relative path to a descriptor that is certain to lie beneath the root.
 *
 * 1. openat2 with RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS; where it is missing, one component at
 * a time with O_NOFOLLOW. ".." is refused before either.
 * 2. A path longer than the kernel takes in one call is walked in pieces.
 * 3. No descriptor but the returned one outlives a call.
 */
#include "cache/origin_i.h"

#include "cache/base/err.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define RACE_TRIES 16
#define PIECE_MAX (PATH_MAX - 1)
#define NFS_MAGIC 0x6969

void origin_fd_close(struct origin *o, int fd)
{
	if (fd >= 0)
		(void)o->io->close(o->io->ctx, fd); /* read-only: nothing can be lost */
}

int origin_path_check(const char *path)
{
	const char *p = path;
	size_t len;

	if (*p == '/')
		return -EXDEV;
	while (*p != '\0') {
		len = strcspn(p, "/");
		if (len > NAME_MAX)
			return -ENAMETOOLONG;
		if (len == 2 && p[0] == '.' && p[1] == '.')
			return -EXDEV;
		p += len;
		p += strspn(p, "/");
	}
	return 0;
}

/* One openat2; EAGAIN means a rename elsewhere made the kernel unsure, EXDEV that a directory was moved out of the root while it was
 * walked through (path has no ".." and no link is followed): the next walk finds what has its name now. */
static int open_beneath(struct origin *o, int dirfd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
	};
	int fd = -EAGAIN;

	for (int i = 0; i < RACE_TRIES && (fd == -EAGAIN || fd == -EXDEV); i++)
		fd = o->io->openat2(o->io->ctx, dirfd, path, &how);
	return fd;
}

/* Without openat2: every component by itself, none of them a link. path is short and is modified. */
static int open_by_component(struct origin *o, int dirfd, char *path, int flags)
{
	int fd = dirfd, next;
	char *p = path, *end;

	for (;;) {
		end = p + strcspn(p, "/");
		bool is_last = end[strspn(end, "/")] == '\0';
		char *rest = end + strspn(end, "/");

		*end = '\0';
		next = o->io->openat(o->io->ctx, fd, *p == '\0' ? "." : p,
				     is_last ? flags | O_NOFOLLOW | O_CLOEXEC
					     : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd != dirfd)
			origin_fd_close(o, fd);
		if (next < 0 || is_last)
			return next;
		fd = next;
		p = rest;
	}
}

static int open_piece(struct origin *o, int dirfd, char *path, int flags)
{
	if (o->has_openat2)
		return open_beneath(o, dirfd, *path == '\0' ? "." : path, flags);
	return open_by_component(o, dirfd, path, flags);
}

/* Length of the first piece: ends before a slash, at most PIECE_MAX. Components are <= NAME_MAX. */
static size_t piece_len(const char *path)
{
	size_t len = strlen(path);

	if (len < PIECE_MAX)
		return len;
	len = PIECE_MAX - 1;
	while (path[len] != '/')
		len--;
	return len;
}

int origin_path_open(struct origin *o, const char *path, int flags)
{
	char *piece;
	int root_fd, fd, next;
	size_t len;
	bool is_last;

	HFS_TRY(origin_path_check(path));
	HFS_TRY(fd = root_fd = origin_root(o));
	piece = malloc(PATH_MAX);
	if (piece == NULL)
		return -ENOMEM;
	if (flags & O_PATH)
		flags |= O_NOFOLLOW;
	do {
		len = piece_len(path);
		memcpy(piece, path, len);
		piece[len] = '\0';
		path += len;
		path += strspn(path, "/");
		is_last = *path == '\0';
		next = open_piece(o, fd, piece, is_last ? flags : O_PATH | O_DIRECTORY);
		if (fd != root_fd)
			origin_fd_close(o, fd);
		fd = next;
	} while (fd >= 0 && !is_last);
	free(piece);
	return fd;
}

/* ---- NFS: names are looked up afresh only after a forced look at their directory (notes: v4.2 opens by handle) ----
 */

static bool dev_lookup(struct origin *o, uint64_t dev, bool *ret_is_nfs)
{
	bool is_known = false;

	hfs_mutex_lock(&o->lock);
	for (unsigned i = 0; i < o->n_devs && !is_known; i++) {
		is_known = o->devs[i].dev == dev;
		*ret_is_nfs = o->devs[i].is_nfs;
	}
	hfs_mutex_unlock(&o->lock);
	return is_known;
}

static void dev_remember(struct origin *o, uint64_t dev, bool is_nfs)
{
	hfs_mutex_lock(&o->lock);
	if (o->n_devs < ORIGIN_DEVS_MAX) {
		o->devs[o->n_devs].dev = dev;
		o->devs[o->n_devs++].is_nfs = is_nfs;
	}
	hfs_mutex_unlock(&o->lock);
}

/* Is what fd stands for on NFS? No round trip once the device is known. */
bool origin_is_on_nfs(struct origin *o, int fd)
{
	struct origin_attr attr;
	struct statfs fs;
	bool is_nfs = false;

	if (origin_fd_stat(o, fd, AT_STATX_DONT_SYNC, &attr) < 0 || dev_lookup(o, attr.id.dev, &is_nfs))
		return is_nfs;
	if (o->io->fstatfs(o->io->ctx, fd, &fs) < 0)
		return false;
	is_nfs = (unsigned long)fs.f_type == NFS_MAGIC;
	dev_remember(o, attr.id.dev, is_nfs);
	return is_nfs;
}

static int refresh_parent(struct origin *o, const char *path)
{
	struct origin_attr attr;
	const char *slash = strrchr(path, '/');
	char *parent = strndup(path, slash != NULL ? (size_t)(slash - path) : 0);
	int fd, err;

	if (parent == NULL)
		return -ENOMEM;
	fd = origin_path_open(o, parent, O_PATH | O_DIRECTORY);
	free(parent);
	if (fd < 0)
		return fd;
	err = origin_fd_stat(o, fd, AT_STATX_FORCE_SYNC, &attr);
	origin_fd_close(o, fd);
	return err;
}

int origin_path_open_fresh(struct origin *o, const char *path)
{
	int fd = origin_path_open(o, path, O_PATH);
	int err;

	if (*path == '\0' || (fd < 0 && fd != -ENOENT && fd != -ESTALE))
		return fd;
	if (fd >= 0 ? !origin_is_on_nfs(o, fd) : !origin_is_on_nfs(o, origin_root(o)))
		return fd;
	origin_fd_close(o, fd);
	err = refresh_parent(o, path);
	return err < 0 ? err : origin_path_open(o, path, O_PATH);
}
