/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD: each look at the wall clock shows another time, ten years ahead or back by turns. The monotonic clock
 * is left alone. Used by tests/mount (test_hostile.py).
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

#define VISIBLE __attribute__((visibility("default"))) /* the project hides the rest */
#define JUMP_S (10L * 365 * 86400)

static long jump(void)
{
	static atomic_uint looks;

	return atomic_fetch_add(&looks, 1) % 2 ? JUMP_S : -JUMP_S;
}

VISIBLE int clock_gettime(clockid_t id, struct timespec *ts)
{
	static int (*_Atomic real)(clockid_t, struct timespec *);
	int (*call)(clockid_t, struct timespec *) = real;
	int rc;

	if (call == NULL)
		real = call = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	rc = call(id, ts);
	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += jump();
	return rc;
}

VISIBLE int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;

	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &ts) < 0)
		return -1;
	*tv = (struct timeval){ .tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000 };
	return 0;
}

VISIBLE time_t time(time_t *ret)
{
	struct timespec ts = { 0 };

	(void)clock_gettime(CLOCK_REALTIME, &ts);
	if (ret != NULL)
		*ret = ts.tv_sec;
	return ts.tv_sec;
}
