/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin.h - the directory that is mounted: every call here may block for as long as the
 * origin does. Called by origin threads and metadata threads, never by a FUSE worker.
 *
 * Paths are relative to the root, without a leading slash, "" is the root, bytes of any value but NUL;
 * longer than PATH_MAX is fine. Everything is opened beneath the root (openat2 with
 * RESOLVE_BENEATH | NO_MAGICLINKS | NO_SYMLINKS), regular files and directories only. Nothing is ever written.
 *
 * Thread safety: all functions, any thread. Descriptors returned are O_CLOEXEC and owned by the caller.
 */
#ifndef CACHE_ORIGIN_H
#define CACHE_ORIGIN_H

#include "cache/identity.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/statvfs.h>
#include <sys/types.h>

struct cache_io; /* cache/io.h: the table of system calls */
struct origin;

struct origin_attr {
	struct hfs_identity id;
	uint32_t mode, nlink, uid, gid, blksize;
	uint64_t blocks;
	int64_t atime_ns;
};

/* source: absolute path. Errors: -ENOENT, -ENOTDIR, -EACCES, ... */
int origin_create(const char *source, const struct cache_io *io, struct origin **ret_o);
/*
 * Without looking: the root is opened when somebody needs it, and as long as it cannot be, or is_it() says that something else lies
 * there, calls answer -EHOSTUNREACH (or hang, as that open does). st_dev of its files is ORIGIN_LATER_DEV, whatever it is then.
 */
#define ORIGIN_LATER_DEV UINT64_C(0xffffffff00000001)
int origin_create_later(const char *source, const struct cache_io *io, bool (*is_it)(void *ctx), void *ctx, struct origin **ret_o);
bool origin_is_there(const struct origin *o); /* its root was opened */
void origin_destroy(struct origin *o);
/* Where to run what may wait for the origin beside the caller: fn(arg), once. Negative errno: it will not. To be told before the
 * first open; without it opens make their calls one after the other. */
typedef int (*origin_run_fn)(void *ctx, void (*fn)(void *arg), void *arg);
void origin_set_runner(struct origin *o, origin_run_fn run, void *ctx);
/* st_dev of the root; true if the origin is NFS (its parent must be refreshed before an open). */
uint64_t origin_dev(const struct origin *o);

/* lstat. is_fresh: AT_STATX_FORCE_SYNC, else whatever the origin's client has cached, but for directories and missing names on NFS. */
int origin_stat(struct origin *o, const char *path, bool is_fresh, struct origin_attr *ret);
/* Fresh open for reading (close-to-open) and a forced statx of the descriptor. -EISDIR for a directory, -ELOOP for a
 * symlink, -ENXIO for anything else that is not a regular file. */
int origin_open(struct origin *o, const char *path, int *ret_fd, struct origin_attr *ret_attr);
/* The same but for the statx, which may be answered from an attribute cache: a round trip less for those who compare the identity
 * again after they have read. */
int origin_open_unproven(struct origin *o, const char *path, int *ret_fd, struct origin_attr *ret_attr);
int origin_stat_fd(struct origin *o, int fd, struct origin_attr *ret);
ssize_t origin_readlink(struct origin *o, const char *path, char *buf, size_t cap);
int origin_statfs(struct origin *o, struct statvfs *ret);
/* user.* only; -ENOTSUP otherwise. Sizes as getxattr(2)/listxattr(2). */
ssize_t origin_getxattr(struct origin *o, const char *path, const char *name, void *buf, size_t cap);
ssize_t origin_listxattr(struct origin *o, const char *path, char *buf, size_t cap);

/* Whole listing of a directory, without "." and "..", in the origin's order; names over 255 bytes, empty, or with a slash
 * are left out. cb returns 0 to go on, or a negative errno that is handed through. type is DT_*. */
typedef int (*origin_list_cb)(void *ctx, const char *name, size_t len, uint64_t ino, unsigned type);
int origin_list(struct origin *o, const char *path, origin_list_cb cb, void *ctx);

/* Follow relative symbolic links inside the root, at most 40 hops: the canonical path of a regular file or
 * directory (malloc'd, owned by the caller). -EXDEV leaves the root, -ELOOP, -ENOENT, ... */
int origin_realpath(struct origin *o, const char *path, char **ret_path, struct origin_attr *ret_attr);

#endif
