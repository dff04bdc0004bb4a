/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_io.h - the system calls of the disk tier, as a table: cache/io.h's sister for a disk that is written to.
 * The daemon uses tier_io_system(); tests put their own in its place (the N-th call fails, a call hangs, the power goes).
 *
 * Each returns what the system call returns, or a negative errno. ctx is the table's own. Any thread.
 */
#ifndef CACHE_TIER_IO_H
#define CACHE_TIER_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>

struct tier_io {
	void *ctx;
	int (*openat)(void *ctx, int dirfd, const char *name, int flags, mode_t mode); /* dirfd may be AT_FDCWD */
	int (*close)(void *ctx, int fd);
	int (*fstat)(void *ctx, int fd, struct stat *ret);
	int (*fstatat)(void *ctx, int dirfd, const char *name, struct stat *ret, int flags);
	ssize_t (*pread)(void *ctx, int fd, void *buf, size_t n, uint64_t off_bytes);
	/* Only what is in memory: -EAGAIN, or fewer bytes, when the disk would be waited for. NULL: nothing ever is. */
	ssize_t (*pread_cached)(void *ctx, int fd, const struct iovec *iov, int n_iov, uint64_t off_bytes);
	void (*read_ahead)(void *ctx, int fd, uint64_t off_bytes, uint64_t len_bytes); /* NULL: not done */
	ssize_t (*pwrite)(void *ctx, int fd, const void *buf, size_t n, uint64_t off_bytes);
	int (*punch)(void *ctx, int fd, uint64_t off_bytes, uint64_t len_bytes); /* keeps the size */
	int (*ftruncate)(void *ctx, int fd, uint64_t size_bytes);
	int (*fdatasync)(void *ctx, int fd);
	int (*unlinkat)(void *ctx, int dirfd, const char *name, int flags);
	int (*renameat)(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to);
	int (*mkdirat)(void *ctx, int dirfd, const char *name, mode_t mode);
	ssize_t (*getdents)(void *ctx, int fd, void *buf, size_t cap); /* struct dirent64 */
	int (*rewinddir)(void *ctx, int fd);
	int (*fstatfs)(void *ctx, int fd, struct statfs *ret);
	int (*fstatvfs)(void *ctx, int fd, struct statvfs *ret);
	int (*lock)(void *ctx, int fd); /* exclusive, for the life of fd; -EAGAIN: another has it */
};

const struct tier_io *tier_io_system(void);

#endif
