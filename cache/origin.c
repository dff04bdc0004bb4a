/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin.c - see origin.h: life, attributes, opens.
 *
 * An open goes O_PATH first, looks at the type (which never changes for an inode: no round trip), and only then opens
 * for reading through /proc/self/fd: a FIFO or device of the origin is never opened.
 */
#include "cache/origin_i.h"

#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/time.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STALE_TRIES 32
#define PROC_PATH_MAX 32

static int64_t stamp_ns(const struct statx_timestamp *t)
{
	int64_t ns;

	/* Years beyond 2262 do not fit: wrap, since stamps are compared for equality only. */
	(void)__builtin_mul_overflow((int64_t)t->tv_sec, INT64_C(1000000000), &ns);
	(void)__builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns);
	return ns;
}

static void attr_from_statx(const struct statx *stx, struct origin_attr *ret)
{
	*ret = (struct origin_attr){
		.id = {.dev = (uint64_t)stx->stx_dev_major << 32 | stx->stx_dev_minor,
		       .ino = stx->stx_ino,
		       .size_bytes = stx->stx_size,
		       .mtime_ns = stamp_ns(&stx->stx_mtime),
		       .ctime_ns = stamp_ns(&stx->stx_ctime)},
		.mode = stx->stx_mode,
		.nlink = stx->stx_nlink,
		.uid = stx->stx_uid,
		.gid = stx->stx_gid,
		.blksize = stx->stx_blksize,
		.blocks = stx->stx_blocks,
		.atime_ns = stamp_ns(&stx->stx_atime),
	};
}

int origin_fd_stat(struct origin *o, int fd, int flags, struct origin_attr *ret)
{
	uint64_t since_ns = flags & AT_STATX_FORCE_SYNC ? hfs_now_ns() : 0;
	struct statx stx;

	HFS_TRY(o->io->statx(o->io->ctx, fd, "", AT_EMPTY_PATH | flags, STATX_BASIC_STATS, &stx));
	if (since_ns != 0)
		origin_aside_learn(o, hfs_now_ns() - since_ns);
	attr_from_statx(&stx, ret);
	if (ret->id.dev == o->real_dev)
		ret->id.dev = o->root_dev;
	return 0;
}

int origin_stat_fd(struct origin *o, int fd, struct origin_attr *ret)
{
	return origin_fd_stat(o, fd, AT_STATX_FORCE_SYNC, ret);
}

static int stat_once(struct origin *o, const char *path, bool is_fresh, struct origin_attr *ret)
{
	int fd = is_fresh ? origin_path_open_fresh(o, path) : origin_path_open(o, path, O_PATH);
	bool must_refresh = false;
	int err;

	if (fd == -ENOENT && !is_fresh && origin_is_on_nfs(o, origin_root(o)))
		return stat_once(o, path, true, ret);
	if (fd < 0)
		return fd;
	err = origin_fd_stat(o, fd, is_fresh ? AT_STATX_FORCE_SYNC : 0, ret);
	if (err == 0 && !is_fresh && S_ISDIR(ret->mode) && *path != '\0')
		must_refresh = origin_is_on_nfs(o, fd);
	origin_fd_close(o, fd);
	return must_refresh ? stat_once(o, path, true, ret) : err;
}

/* ESTALE: see origin_open(). An NFS client goes on with a missing name and with a directory that was replaced for 30 s, and an
 * open beneath that directory would follow it: these two are asked for anew even if not is_fresh. */
int origin_stat(struct origin *o, const char *path, bool is_fresh, struct origin_attr *ret)
{
	int err = -ESTALE;

	for (int try = 0; try < STALE_TRIES && err == -ESTALE; try++)
		err = stat_once(o, path, is_fresh, ret);
	return err;
}

static int check_regular(uint32_t mode)
{
	if (S_ISREG(mode))
		return 0;
	return S_ISDIR(mode) ? -EISDIR : S_ISLNK(mode) ? -ELOOP : -ENXIO;
}

/* A second descriptor for reading on what path_fd stands for. */
static int reopen(struct origin *o, int path_fd, const char *path)
{
	char proc[PROC_PATH_MAX];
	int flags = O_RDONLY | O_NOCTTY | O_NONBLOCK;
	int fd;

	(void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", path_fd);
	fd = o->io->openat(o->io->ctx, AT_FDCWD, proc, flags | O_CLOEXEC);
	/* No /proc here, or replaced since the walk (then only an open by path makes the kernel ask for the name anew); the caller's
	 * stat of the descriptor decides. */
	if (fd == -ENOENT || fd == -ESTALE)
		fd = origin_path_open(o, path, flags | O_NOFOLLOW);
	return fd;
}

/*
 * What path_fd stands for, opened, and its attributes. Where those are to be forced, that is done meanwhile, as both are the same inode:
 * they are taken if the descriptor's own, as known here, are none others; else it is asked (another file by now, or changed since).
 */
static int open_and_stat(struct origin *o, int path_fd, const char *path, int stat_flags, int *ret_fd, struct origin_attr *ret)
{
	struct aside *a = stat_flags & AT_STATX_FORCE_SYNC ? origin_aside_begin(o, path_fd) : NULL;
	struct origin_attr seen;
	int fd = reopen(o, path_fd, path);
	bool is_seen = origin_aside_end(a, &seen) == 0;

	if (fd < 0)
		return fd;
	*ret_fd = fd;
	if (is_seen && origin_fd_stat(o, fd, AT_STATX_DONT_SYNC, ret) == 0 && hfs_identity_equal(&seen.id, &ret->id)) {
		*ret = seen;
		return 0;
	}
	return origin_fd_stat(o, fd, stat_flags, ret);
}

/*
 * *seen: what earlier tries saw last. An identity counts only if it was seen before the open too: a client of the origin that keeps the
 * pages it has, as it knows of no change yet, would give them under an identity that came about after that. Looking before costs
 * nothing: what the walk brought, or is known here, will do; where that is old, the next try has this one's.
 */
static int open_once(struct origin *o, const char *path, int stat_flags, struct hfs_identity *seen, int *ret_fd, struct origin_attr *ret_attr)
{
	int path_fd = origin_path_open_fresh(o, path);
	struct origin_attr before;
	int fd = -1, err;

	if (path_fd < 0)
		return path_fd;
	err = origin_fd_stat(o, path_fd, AT_STATX_DONT_SYNC, &before);
	if (err == 0)
		err = check_regular(before.mode);
	if (err == 0)
		err = open_and_stat(o, path_fd, path, stat_flags, &fd, ret_attr);
	if (err == 0)
		err = check_regular(ret_attr->mode);
	if (err == 0 && !hfs_identity_equal(&ret_attr->id, &before.id) && !hfs_identity_equal(&ret_attr->id, seen)) {
		*seen = ret_attr->id;
		err = -ESTALE;
	}
	origin_fd_close(o, path_fd);
	if (err < 0) {
		origin_fd_close(o, fd);
		return err;
	}
	*ret_fd = fd;
	return 0;
}

/* A network file system says ESTALE when the file is replaced between the walk and the open, and again if that happens again:
 * a file that is replaced all the time can be opened all the same. */
static int open_patiently(struct origin *o, const char *path, int stat_flags, int *ret_fd, struct origin_attr *ret_attr)
{
	struct hfs_identity seen = {0};
	int err = -ESTALE;

	for (int try = 0; try < STALE_TRIES && err == -ESTALE; try++)
		err = open_once(o, path, stat_flags, &seen, ret_fd, ret_attr);
	return err;
}

int origin_open(struct origin *o, const char *path, int *ret_fd, struct origin_attr *ret_attr)
{
	return open_patiently(o, path, AT_STATX_FORCE_SYNC, ret_fd, ret_attr);
}

int origin_open_unproven(struct origin *o, const char *path, int *ret_fd, struct origin_attr *ret_attr)
{
	return open_patiently(o, path, AT_STATX_SYNC_AS_STAT, ret_fd, ret_attr);
}

ssize_t origin_readlink(struct origin *o, const char *path, char *buf, size_t cap)
{
	int fd = origin_path_open(o, path, O_PATH);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = o->io->readlinkat(o->io->ctx, fd, "", buf, cap);
	origin_fd_close(o, fd);
	return n == -ENOENT ? -EINVAL : n; /* what the kernel says to "" on something else than a link */
}

int origin_statfs(struct origin *o, struct statvfs *ret)
{
	int fd = origin_root(o);

	return fd < 0 ? fd : o->io->fstatvfs(o->io->ctx, fd, ret);
}

/* ---- extended attributes: by /proc/self/fd, as an O_PATH descriptor takes no fgetxattr ---- */

static int xattr_open(struct origin *o, const char *path, char proc[PROC_PATH_MAX])
{
	struct origin_attr attr;
	int fd = origin_path_open(o, path, O_PATH);
	int err;

	if (fd < 0)
		return fd;
	err = origin_fd_stat(o, fd, AT_STATX_DONT_SYNC, &attr);
	if (err == 0 && !S_ISREG(attr.mode) && !S_ISDIR(attr.mode))
		err = -ENOTSUP; /* user.* exists on files and directories only */
	if (err < 0) {
		origin_fd_close(o, fd);
		return err;
	}
	(void)snprintf(proc, PROC_PATH_MAX, "/proc/self/fd/%d", fd);
	return fd;
}

static bool is_user_xattr(const char *name)
{
	return strncmp(name, "user.", 5) == 0;
}

ssize_t origin_getxattr(struct origin *o, const char *path, const char *name, void *buf, size_t cap)
{
	char proc[PROC_PATH_MAX];
	ssize_t n;
	int fd;

	if (!is_user_xattr(name))
		return -ENOTSUP;
	fd = xattr_open(o, path, proc);
	if (fd < 0)
		return fd;
	n = o->io->getxattr(o->io->ctx, proc, name, buf, cap);
	origin_fd_close(o, fd);
	return n;
}

/* Squeeze the names that are not user.* out of a list; its new length. */
static size_t keep_user_names(char *list, size_t len)
{
	size_t out = 0, name_len;

	for (size_t i = 0; i < len; i += name_len) {
		name_len = strnlen(list + i, len - i) + 1;
		if (i + name_len > len)
			break;
		if (!is_user_xattr(list + i))
			continue;
		memmove(list + out, list + i, name_len);
		out += name_len;
	}
	return out;
}

/* The whole list, as sizes can only be told after the filter; malloc'd. */
static ssize_t list_all(struct origin *o, const char *proc, char **ret_list)
{
	size_t cap = 65536; /* XATTR_LIST_MAX of Linux */
	char *list = malloc(cap);
	ssize_t n;

	if (list == NULL)
		return -ENOMEM;
	n = o->io->listxattr(o->io->ctx, proc, list, cap);
	if (n < 0) {
		free(list);
		return n;
	}
	*ret_list = list;
	return n;
}

ssize_t origin_listxattr(struct origin *o, const char *path, char *buf, size_t cap)
{
	char proc[PROC_PATH_MAX];
	int fd = xattr_open(o, path, proc);
	char *list = NULL;
	ssize_t n;

	if (fd < 0)
		return fd;
	n = list_all(o, proc, &list);
	origin_fd_close(o, fd);
	if (n < 0)
		return n;
	n = (ssize_t)keep_user_names(list, (size_t)n);
	if (cap != 0 && (size_t)n > cap)
		n = -ERANGE;
	else if (cap != 0)
		memcpy(buf, list, (size_t)n);
	free(list);
	return n;
}

/* ---- life ---- */

static bool probe_openat2(const struct cache_io *io, int root_fd)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
	int fd = io->openat2(io->ctx, root_fd, ".", &how);

	if (fd >= 0)
		(void)io->close(io->ctx, fd);
	return fd != -ENOSYS && fd != -EPERM; /* EPERM: container filters older than the call */
}

/* Takes fd over. */
static int take_root(struct origin *o, int fd)
{
	struct origin_attr attr;
	struct statx stx;
	bool has_openat2 = probe_openat2(o->io, fd), is_first;
	int err = o->io->statx(o->io->ctx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx);

	if (err < 0) {
		origin_fd_close(o, fd);
		return err;
	}
	attr_from_statx(&stx, &attr);
	hfs_mutex_lock(&o->lock);
	is_first = atomic_load(&o->root_fd) < 0;
	if (is_first) {
		o->real_dev = attr.id.dev;
		o->has_openat2 = has_openat2;
		if (o->source == NULL)
			o->root_dev = attr.id.dev;
		atomic_store(&o->root_fd, fd);
	}
	hfs_mutex_unlock(&o->lock);
	if (!is_first)
		origin_fd_close(o, fd);
	return 0;
}

static int open_root(struct origin *o, const char *source)
{
	return o->io->openat(o->io->ctx, AT_FDCWD, source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int origin_root(struct origin *o)
{
	int fd = atomic_load(&o->root_fd);

	if (fd >= 0)
		return fd;
	fd = open_root(o, o->source);
	if (fd < 0)
		return -EHOSTUNREACH;
	if (!o->is_it(o->is_it_ctx)) {
		origin_fd_close(o, fd);
		return -EHOSTUNREACH;
	}
	if (take_root(o, fd) < 0)
		return -EHOSTUNREACH;
	hfs_log_limited(HFS_LOG_INFO, "origin %s: it is there now", o->source);
	return atomic_load(&o->root_fd);
}

bool origin_is_there(const struct origin *o)
{
	return atomic_load(&o->root_fd) >= 0;
}

static struct origin *origin_new(const struct cache_io *io)
{
	struct origin *o = calloc(1, sizeof(*o));

	if (o != NULL) {
		o->io = io;
		atomic_init(&o->root_fd, -1);
		hfs_mutex_init(&o->lock, HFS_RANK_ORIGIN);
	}
	return o;
}

int origin_create(const char *source, const struct cache_io *io, struct origin **ret_o)
{
	struct origin *o = origin_new(io);
	int err;

	if (o == NULL)
		return -ENOMEM;
	err = open_root(o, source);
	if (err >= 0)
		err = take_root(o, err);
	if (err < 0) {
		origin_destroy(o);
		return err;
	}
	*ret_o = o;
	return 0;
}

int origin_create_later(const char *source, const struct cache_io *io, bool (*is_it)(void *ctx), void *ctx, struct origin **ret_o)
{
	struct origin *o = origin_new(io);

	if (o == NULL)
		return -ENOMEM;
	o->source = strdup(source);
	if (o->source == NULL) {
		origin_destroy(o);
		return -ENOMEM;
	}
	o->is_it = is_it;
	o->is_it_ctx = ctx;
	o->root_dev = ORIGIN_LATER_DEV;
	*ret_o = o;
	return 0;
}

void origin_destroy(struct origin *o)
{
	if (o == NULL)
		return;
	origin_fd_close(o, atomic_load(&o->root_fd));
	hfs_mutex_finish(&o->lock);
	free(o->source);
	free(o);
}

uint64_t origin_dev(const struct origin *o)
{
	return o->root_dev;
}
