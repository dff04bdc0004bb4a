/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fault/nomem.c - see nomem.h. */
#include "tests/fault/nomem.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);

struct nomem nomem;

static bool fails(void)
{
	uint64_t at = atomic_load(&nomem.fail_at), n;

	if (at == 0 || (nomem.is_spared != NULL && nomem.is_spared()))
		return false;
	n = atomic_fetch_add(&nomem.n_calls, 1) + 1;
	if (n != at && !(n > at && atomic_load(&nomem.is_sticky)))
		return false;
	atomic_fetch_add(&nomem.n_failed, 1);
	return true;
}

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
	if (nomem.realloc_fails != NULL && nomem.realloc_fails(n)) {
		atomic_fetch_add(&nomem.n_failed, 1);
		return NULL;
	}
	return fails() ? NULL : __real_realloc(p, n);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}
