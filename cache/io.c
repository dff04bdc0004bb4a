/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/io.c - the real system calls. errno turns negative here and nowhere else.
 */
#include "cache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/*
 * What a system call failed with, below 0. Numbers from 512 on are the kernel's own and never meant for a program, yet a file system
 * may let one through: an NFS mount that is taken off by force ends its calls with ERESTARTSYS. To whoever asked it is EIO.
 */
static int failed(void)
{
	return errno < 512 ? -errno : -EIO;
}

static int sys_openat2(void *ctx, int dirfd, const char *path, const struct open_how *how)
{
	long fd = syscall(SYS_openat2, dirfd, path, how, sizeof(*how));

	(void)ctx;
	return fd < 0 ? failed() : (int)fd;
}

static int sys_openat(void *ctx, int dirfd, const char *path, int flags)
{
	int fd = openat(dirfd, path, flags);

	(void)ctx;
	return fd < 0 ? failed() : fd;
}

static int sys_close(void *ctx, int fd)
{
	(void)ctx;
	return close(fd) < 0 ? failed() : 0;
}

static int sys_statx(void *ctx, int dirfd, const char *path, int flags, unsigned mask, struct statx *ret)
{
	(void)ctx;
	return statx(dirfd, path, flags, mask, ret) < 0 ? failed() : 0;
}

static ssize_t sys_preadv(void *ctx, int fd, const struct iovec *iov, int n, uint64_t off_bytes)
{
	ssize_t got = preadv(fd, iov, n, (off_t)off_bytes);

	(void)ctx;
	return got < 0 ? failed() : got;
}

static ssize_t sys_readlinkat(void *ctx, int dirfd, const char *path, char *buf, size_t cap)
{
	ssize_t n = readlinkat(dirfd, path, buf, cap);

	(void)ctx;
	return n < 0 ? failed() : n;
}

static ssize_t sys_getdents(void *ctx, int fd, void *buf, size_t cap)
{
	long n = syscall(SYS_getdents64, fd, buf, cap);

	(void)ctx;
	return n < 0 ? failed() : (ssize_t)n;
}

static int sys_fstatfs(void *ctx, int fd, struct statfs *ret)
{
	(void)ctx;
	return fstatfs(fd, ret) < 0 ? failed() : 0;
}

static int sys_fstatvfs(void *ctx, int fd, struct statvfs *ret)
{
	(void)ctx;
	return fstatvfs(fd, ret) < 0 ? failed() : 0;
}

static ssize_t sys_getxattr(void *ctx, const char *path, const char *name, void *buf, size_t cap)
{
	ssize_t n = getxattr(path, name, buf, cap);

	(void)ctx;
	return n < 0 ? failed() : n;
}

static ssize_t sys_listxattr(void *ctx, const char *path, char *buf, size_t cap)
{
	ssize_t n = listxattr(path, buf, cap);

	(void)ctx;
	return n < 0 ? failed() : n;
}

const struct cache_io *cache_io_system(void)
{
	static const struct cache_io table = {
		.openat2 = sys_openat2,
		.openat = sys_openat,
		.close = sys_close,
		.statx = sys_statx,
		.preadv = sys_preadv,
		.readlinkat = sys_readlinkat,
		.getdents = sys_getdents,
		.fstatfs = sys_fstatfs,
		.fstatvfs = sys_fstatvfs,
		.getxattr = sys_getxattr,
		.listxattr = sys_listxattr,
	};

	return &table;
}
