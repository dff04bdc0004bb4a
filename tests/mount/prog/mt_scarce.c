/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD: from the N-th call of a process on, pthread_create (MT_THREADS=N) or malloc, calloc and realloc
 * (MT_MALLOCS=N) fail. A forked child counts on. Used by tests/mount (test_hostile.py).
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define VISIBLE __attribute__((visibility("default"))) /* the project hides the rest */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static atomic_long mallocs_left = -1, threads_left = -1; /* negative: no limit */

__attribute__((constructor)) static void begin(void)
{
	const char *mallocs = getenv("MT_MALLOCS"), *threads = getenv("MT_THREADS");

	if (threads != NULL)
		threads_left = strtol(threads, NULL, 10);
	if (mallocs != NULL)
		mallocs_left = strtol(mallocs, NULL, 10);
}

static bool take(atomic_long *left)
{
	long n = *left;

	while (n > 0 && !atomic_compare_exchange_weak(left, &n, n - 1))
		;
	return n != 0;
}

static bool take_malloc(void)
{
	if (take(&mallocs_left))
		return true;
	errno = ENOMEM;
	return false;
}

VISIBLE void *malloc(size_t n)
{
	return take_malloc() ? __libc_malloc(n) : NULL;
}

VISIBLE void *calloc(size_t n, size_t size)
{
	return take_malloc() ? __libc_calloc(n, size) : NULL;
}

VISIBLE void *realloc(void *p, size_t n)
{
	return take_malloc() ? __libc_realloc(p, n) : NULL;
}

VISIBLE int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	static int (*_Atomic real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	int (*call)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = real;

	if (call == NULL)
		real = call = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	return take(&threads_left) ? call(thread, attr, fn, arg) : EAGAIN;
}
