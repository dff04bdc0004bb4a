/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/sync.c - see sync.h.
 */
#include "cache/base/sync.h"
#include "cache/base/time.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not the logger: it uses these locks itself. */
static void check(int err, const char *call)
{
	if (err == 0)
		return;
	fprintf(stderr, "hintfs: bug: %s: %s\n", call, strerror(err));
	abort();
}

#ifdef HFS_DEBUG
#define HELD_MAX 16
/* What this thread holds, in the order it was taken. */
static _Thread_local struct {
	unsigned n;
	struct hfs_mutex *m[HELD_MAX];
} held;
static _Thread_local uint64_t self_no;
static uint64_t next_no;

static uint64_t self(void)
{
	if (self_no == 0)
		self_no = __atomic_add_fetch(&next_no, 1, __ATOMIC_RELAXED);
	return self_no;
}

static void die(const struct hfs_mutex *m, const char *what)
{
	fprintf(stderr, "hintfs: bug: lock of rank %d: %s\n", (int)m->rank, what);
	abort();
}

static void debug_before_lock(struct hfs_mutex *m)
{
	for (unsigned i = 0; i < held.n; i++) {
		if (held.m[i] == m)
			die(m, "taken twice");
		if (held.m[i]->rank >= m->rank)
			die(m, "taken while one of the same or a higher rank is held");
	}
	if (held.n == HELD_MAX)
		die(m, "too many locks held");
}

static void debug_locked(struct hfs_mutex *m)
{
	__atomic_store_n(&m->owner, self(), __ATOMIC_RELAXED);
	held.m[held.n++] = m;
}

static void debug_before_unlock(struct hfs_mutex *m)
{
	unsigned i = held.n;

	if (__atomic_load_n(&m->owner, __ATOMIC_RELAXED) != self())
		die(m, "given back by a thread that does not hold it");
	while (i > 0 && held.m[i - 1] != m)
		i--;
	if (i == 0)
		die(m, "not in this thread's list");
	memmove(&held.m[i - 1], &held.m[i], (held.n - i) * sizeof(held.m[0]));
	held.n--;
	__atomic_store_n(&m->owner, 0, __ATOMIC_RELAXED);
}
#else
#define debug_before_lock(m) ((void)(m))
#define debug_locked(m) ((void)(m))
#define debug_before_unlock(m) ((void)(m))
#endif

void hfs_mutex_init(struct hfs_mutex *m, enum hfs_rank rank)
{
	pthread_mutexattr_t attr;

	memset(m, 0, sizeof(*m));
	m->rank = rank;
	check(pthread_mutexattr_init(&attr), "pthread_mutexattr_init");
#ifdef __GLIBC__
	/* Held for a few lines each: who waits looks again for a moment before it goes to sleep (two switches, and two wake-ups). */
	check(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP), "pthread_mutexattr_settype");
#endif
	check(pthread_mutex_init(&m->m, &attr), "pthread_mutex_init");
	check(pthread_mutexattr_destroy(&attr), "pthread_mutexattr_destroy");
}

void hfs_mutex_finish(struct hfs_mutex *m)
{
	check(pthread_mutex_destroy(&m->m), "pthread_mutex_destroy");
}

HFS_NO_TSA void hfs_mutex_lock(struct hfs_mutex *m)
{
	debug_before_lock(m);
	check(pthread_mutex_lock(&m->m), "pthread_mutex_lock");
	debug_locked(m);
}

HFS_NO_TSA void hfs_mutex_unlock(struct hfs_mutex *m)
{
	debug_before_unlock(m);
	check(pthread_mutex_unlock(&m->m), "pthread_mutex_unlock");
}

HFS_NO_TSA void hfs_mutex_assert_held(struct hfs_mutex *m)
{
#ifdef HFS_DEBUG
	if (__atomic_load_n(&m->owner, __ATOMIC_RELAXED) != self())
		die(m, "must be held here");
#else
	(void)m;
#endif
}

void hfs_assert_no_locks(void)
{
#ifdef HFS_DEBUG
	if (held.n != 0)
		die(held.m[0], "held over a callback");
#endif
}

void hfs_cond_init(struct hfs_cond *c)
{
	pthread_condattr_t attr;

	check(pthread_condattr_init(&attr), "pthread_condattr_init");
	check(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC), "pthread_condattr_setclock");
	check(pthread_cond_init(&c->c, &attr), "pthread_cond_init");
	check(pthread_condattr_destroy(&attr), "pthread_condattr_destroy");
}

void hfs_cond_finish(struct hfs_cond *c)
{
	check(pthread_cond_destroy(&c->c), "pthread_cond_destroy");
}

HFS_NO_TSA void hfs_cond_wait(struct hfs_cond *c, struct hfs_mutex *m)
{
	debug_before_unlock(m);
	check(pthread_cond_wait(&c->c, &m->m), "pthread_cond_wait");
	debug_locked(m);
}

HFS_NO_TSA bool hfs_cond_wait_until(struct hfs_cond *c, struct hfs_mutex *m, uint64_t deadline_ns)
{
	struct timespec ts = hfs_ns_to_timespec(deadline_ns);
	int err;

	debug_before_unlock(m);
	err = pthread_cond_timedwait(&c->c, &m->m, &ts);
	debug_locked(m);
	if (err == ETIMEDOUT)
		return false;
	check(err, "pthread_cond_timedwait");
	return true;
}

void hfs_cond_signal(struct hfs_cond *c)
{
	check(pthread_cond_signal(&c->c), "pthread_cond_signal");
}

void hfs_cond_broadcast(struct hfs_cond *c)
{
	check(pthread_cond_broadcast(&c->c), "pthread_cond_broadcast");
}
