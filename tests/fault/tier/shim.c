/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/shim.c - LD_PRELOAD for a daemon: its cache disk fails or hangs, as the first bytes of a file say.
 *
 * SHIM_DIR: reads, writes and syncs of files below it are concerned. SHIM_CTL: a file of at least 8 bytes:
 *   [0] 0: all is well; 1: EIO; 2: hang until that is no longer so; 3: writes give EROFS     [1] per cent of the calls (of 1 only)
 * Caller: tests/mount/test_tier_breaker.py.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT ssize_t pread64(int fd, void *buf, size_t n, off64_t off);
EXPORT ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t off);
EXPORT ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t off, size_t cap);
EXPORT int fdatasync(int fd);

/* NULL: no fault. */
static const _Atomic uint8_t *control(void)
{
	static const _Atomic uint8_t *_Atomic mapped;
	const _Atomic uint8_t *p = atomic_load(&mapped);
	const char *path = getenv("SHIM_CTL");
	int fd;

	if (p != NULL || path == NULL)
		return p;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return NULL;
	atomic_store(&mapped, p);
	return p;
}

static int is_ours(int fd)
{
	char proc[40], path[4096];
	const char *dir = getenv("SHIM_DIR");
	ssize_t n;

	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	n = readlink(proc, path, sizeof(path) - 1);
	if (n < 0 || dir == NULL)
		return 0;
	path[n] = '\0';
	return strncmp(path, dir, strlen(dir)) == 0;
}

/* 0, or -1 and errno. */
static int meet(int fd)
{
	static _Atomic uint64_t calls;
	const _Atomic uint8_t *c = control();
	int saved = errno;

	if (c == NULL || atomic_load(&c[0]) == 0 || !is_ours(fd)) {
		errno = saved;
		return 0;
	}
	while (atomic_load(&c[0]) == 2)
		(void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	errno = saved;
	/* Spread evenly, so that a low percentage meets short runs too. */
	if (atomic_load(&c[0]) == 1 && atomic_fetch_add(&calls, 1) * 37 % 100 < atomic_load(&c[1])) {
		errno = EIO;
		return -1;
	}
	return 0;
}

static int is_readonly(int fd)
{
	const _Atomic uint8_t *c = control();

	return c != NULL && atomic_load(&c[0]) == 3 && is_ours(fd);
}

ssize_t pread64(int fd, void *buf, size_t n, off64_t off)
{
	ssize_t (*next)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");

	return meet(fd) < 0 ? -1 : next(fd, buf, n, off);
}

ssize_t __pread64_chk(int fd, void *buf, size_t n, off64_t off, size_t cap)
{
	ssize_t (*next)(int, void *, size_t, off64_t, size_t) = dlsym(RTLD_NEXT, "__pread64_chk");

	return meet(fd) < 0 ? -1 : next(fd, buf, n, off, cap);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t off)
{
	ssize_t (*next)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");

	if (is_readonly(fd)) {
		errno = EROFS;
		return -1;
	}
	return meet(fd) < 0 ? -1 : next(fd, buf, n, off);
}

int fdatasync(int fd)
{
	int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");

	return meet(fd) < 0 ? -1 : next(fd);
}
