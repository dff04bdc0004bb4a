/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/io.h - the system calls whose failure hintfs must survive, as a table. The daemon uses cache_io_system();
 * tests put their own in its place (the N-th call fails, a read comes short, a call hangs).
 *
 * Each returns what the system call returns, or a negative errno. ctx is the table's own.
 */
#ifndef CACHE_IO_H
#define CACHE_IO_H

#include <linux/openat2.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>

struct cache_io {
	void *ctx;
	/* -ENOSYS: the kernel is older than 5.6, or a filter forbids it. */
	int (*openat2)(void *ctx, int dirfd, const char *path, const struct open_how *how);
	int (*openat)(void *ctx, int dirfd, const char *path, int flags);
	int (*close)(void *ctx, int fd);
	int (*statx)(void *ctx, int dirfd, const char *path, int flags, unsigned mask, struct statx *ret);
	ssize_t (*preadv)(void *ctx, int fd, const struct iovec *iov, int n, uint64_t off_bytes);
	ssize_t (*readlinkat)(void *ctx, int dirfd, const char *path, char *buf, size_t cap);
	ssize_t (*getdents)(void *ctx, int fd, void *buf, size_t cap); /* struct dirent64 */
	int (*fstatfs)(void *ctx, int fd, struct statfs *ret);
	int (*fstatvfs)(void *ctx, int fd, struct statvfs *ret);
	ssize_t (*getxattr)(void *ctx, const char *path, const char *name, void *buf, size_t cap);
	ssize_t (*listxattr)(void *ctx, const char *path, char *buf, size_t cap);
};

const struct cache_io *cache_io_system(void);

#endif
