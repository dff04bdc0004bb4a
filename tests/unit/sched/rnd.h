/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/sched/rnd.h - numbers that are the same in each run: xorshift64 (Marsaglia 2003), a state a program. */
#ifndef TESTS_UNIT_SCHED_RND_H
#define TESTS_UNIT_SCHED_RND_H

#include <stdint.h>

#define RNG_START 88172645463325252ULL

static uint64_t rng = RNG_START;

/* 0 ... n - 1 */
static inline uint32_t rnd(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng % n);
}

#endif
