/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/time.h - the daemon's one clock: CLOCK_MONOTONIC in nanoseconds.
 */
#ifndef CACHE_BASE_TIME_H
#define CACHE_BASE_TIME_H

#include <stdint.h>
#include <time.h>

#define HFS_NS_PER_MS UINT64_C(1000000)
#define HFS_NS_PER_S UINT64_C(1000000000)

static inline uint64_t hfs_now_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * HFS_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline struct timespec hfs_ns_to_timespec(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / HFS_NS_PER_S), .tv_nsec = (long)(ns % HFS_NS_PER_S)};
}

#endif
