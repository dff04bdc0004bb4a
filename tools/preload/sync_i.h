/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/sync_i.h - mutex and condition variable that abort on misuse; monotonic deadlines; threads without signals.
 *
 * Used by: the files of tools/preload only (the library may not depend on the daemon's folders).
 * Invariant: a pthread error here is a bug, never a condition to handle.
 */
#ifndef TOOLS_PRELOAD_SYNC_I_H
#define TOOLS_PRELOAD_SYNC_I_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static inline void sync_check(int err)
{
	if (err)
		abort();
}

static inline void sync_mutex_init(pthread_mutex_t *m)
{
	sync_check(pthread_mutex_init(m, NULL));
}

static inline void sync_cond_init(pthread_cond_t *c)
{
	pthread_condattr_t a;

	sync_check(pthread_condattr_init(&a));
	sync_check(pthread_condattr_setclock(&a, CLOCK_MONOTONIC));
	sync_check(pthread_cond_init(c, &a));
	sync_check(pthread_condattr_destroy(&a));
}

static inline void sync_lock(pthread_mutex_t *m)
{
	sync_check(pthread_mutex_lock(m));
}

static inline void sync_unlock(pthread_mutex_t *m)
{
	sync_check(pthread_mutex_unlock(m));
}

static inline uint64_t sync_now_ns(void)
{
	struct timespec t;

	sync_check(clock_gettime(CLOCK_MONOTONIC, &t));
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Wait until woken or until the monotonic time deadline_ns. False: the deadline has passed. */
static inline bool sync_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns)
{
	struct timespec t = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
			      .tv_nsec = (long)(deadline_ns % 1000000000u) };
	int err = pthread_cond_timedwait(c, m, &t);

	if (err == ETIMEDOUT)
		return false;
	sync_check(err);
	return true;
}

/*
 * Start a thread that takes no signals: they belong to the application's threads. name: at most 15 bytes.
 * 0 or a negative errno.
 */
static inline int sync_thread_start(pthread_t *ret_thread, const char *name, void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	sync_check(pthread_sigmask(SIG_SETMASK, &all, &old));
	err = pthread_create(ret_thread, NULL, run, arg);
	sync_check(pthread_sigmask(SIG_SETMASK, &old, NULL));
	if (!err)
		(void)pthread_setname_np(*ret_thread, name);
	return -err;
}

static inline void sync_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	sync_check(pthread_cond_wait(c, m));
}

#endif
