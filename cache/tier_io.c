/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_io.c - the real system calls of the disk tier. errno turns negative here and nowhere else.
 */
#include "cache/tier_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int sys_openat(void *ctx, int dirfd, const char *name, int flags, mode_t mode)
{
	int fd = openat(dirfd, name, flags | O_CLOEXEC, mode);

	(void)ctx;
	return fd < 0 ? -errno : fd;
}

static int sys_close(void *ctx, int fd)
{
	(void)ctx;
	return close(fd) < 0 ? -errno : 0;
}

static int sys_fstat(void *ctx, int fd, struct stat *ret)
{
	(void)ctx;
	return fstat(fd, ret) < 0 ? -errno : 0;
}

static int sys_fstatat(void *ctx, int dirfd, const char *name, struct stat *ret, int flags)
{
	(void)ctx;
	return fstatat(dirfd, name, ret, flags) < 0 ? -errno : 0;
}

static ssize_t sys_pread(void *ctx, int fd, void *buf, size_t n, uint64_t off_bytes)
{
	ssize_t got = pread(fd, buf, n, (off_t)off_bytes);

	(void)ctx;
	return got < 0 ? -errno : got;
}

static ssize_t sys_pread_cached(void *ctx, int fd, const struct iovec *iov, int n_iov, uint64_t off_bytes)
{
	ssize_t got = preadv2(fd, iov, n_iov, (off_t)off_bytes, RWF_NOWAIT);

	(void)ctx;
	return got < 0 ? -errno : got;
}

static void sys_read_ahead(void *ctx, int fd, uint64_t off_bytes, uint64_t len_bytes)
{
	(void)ctx;
	(void)posix_fadvise(fd, (off_t)off_bytes, (off_t)len_bytes, POSIX_FADV_WILLNEED);
}

static ssize_t sys_pwrite(void *ctx, int fd, const void *buf, size_t n, uint64_t off_bytes)
{
	ssize_t put = pwrite(fd, buf, n, (off_t)off_bytes);

	(void)ctx;
	return put < 0 ? -errno : put;
}

static int sys_punch(void *ctx, int fd, uint64_t off_bytes, uint64_t len_bytes)
{
	int rc = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off_bytes, (off_t)len_bytes);

	(void)ctx;
	return rc < 0 ? -errno : 0;
}

static int sys_ftruncate(void *ctx, int fd, uint64_t size_bytes)
{
	(void)ctx;
	return ftruncate(fd, (off_t)size_bytes) < 0 ? -errno : 0;
}

static int sys_fdatasync(void *ctx, int fd)
{
	(void)ctx;
	return fdatasync(fd) < 0 ? -errno : 0;
}

static int sys_unlinkat(void *ctx, int dirfd, const char *name, int flags)
{
	(void)ctx;
	return unlinkat(dirfd, name, flags) < 0 ? -errno : 0;
}

static int sys_renameat(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	(void)ctx;
	return renameat(from_dirfd, from, to_dirfd, to) < 0 ? -errno : 0;
}

static int sys_mkdirat(void *ctx, int dirfd, const char *name, mode_t mode)
{
	(void)ctx;
	return mkdirat(dirfd, name, mode) < 0 ? -errno : 0;
}

static ssize_t sys_getdents(void *ctx, int fd, void *buf, size_t cap)
{
	long n = syscall(SYS_getdents64, fd, buf, cap);

	(void)ctx;
	return n < 0 ? -errno : (ssize_t)n;
}

static int sys_rewinddir(void *ctx, int fd)
{
	(void)ctx;
	return lseek(fd, 0, SEEK_SET) < 0 ? -errno : 0;
}

static int sys_fstatfs(void *ctx, int fd, struct statfs *ret)
{
	(void)ctx;
	return fstatfs(fd, ret) < 0 ? -errno : 0;
}

static int sys_fstatvfs(void *ctx, int fd, struct statvfs *ret)
{
	(void)ctx;
	return fstatvfs(fd, ret) < 0 ? -errno : 0;
}

static int sys_lock(void *ctx, int fd)
{
	int err;

	(void)ctx;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	err = errno;
	return err == EWOULDBLOCK ? -EAGAIN : -err;
}

const struct tier_io *tier_io_system(void)
{
	static const struct tier_io table = {
		.openat = sys_openat,
		.close = sys_close,
		.fstat = sys_fstat,
		.fstatat = sys_fstatat,
		.pread = sys_pread,
		.pread_cached = sys_pread_cached,
		.read_ahead = sys_read_ahead,
		.pwrite = sys_pwrite,
		.punch = sys_punch,
		.ftruncate = sys_ftruncate,
		.fdatasync = sys_fdatasync,
		.unlinkat = sys_unlinkat,
		.renameat = sys_renameat,
		.mkdirat = sys_mkdirat,
		.getdents = sys_getdents,
		.rewinddir = sys_rewinddir,
		.fstatfs = sys_fstatfs,
		.fstatvfs = sys_fstatvfs,
		.lock = sys_lock,
	};

	return &table;
}
