/* SPDX-License-Identifier: Apache-2.0 */
/* tests/bench/bench.h - what the benchmarks' readers share. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include "cache/base/time.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((noreturn)) static inline void bench_die(const char *what, const char *name)
{
	fprintf(stderr, "%s: %s %s: %s\n", program_invocation_short_name, what, name, strerror(errno));
	exit(2);
}

static inline void bench_sleep_until(uint64_t deadline_ns)
{
	struct timespec ts = hfs_ns_to_timespec(deadline_ns);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

#endif
