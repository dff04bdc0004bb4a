/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/brute.h - the optimum of tiny instances by looking at everything. No code of the scheduler or the simulator in it.
 *
 * Pages 0 .. BRUTE_PAGES_MAX - 1, a sequence of uses, C slots. Time is in units: a fetch takes `fetch` units on a serial link,
 * a use takes `use` units and needs its page there as it begins: reading copies it.
 */
#ifndef TESTS_SIM_BRUTE_H
#define TESTS_SIM_BRUTE_H

#include <stddef.h>
#include <stdint.h>

#define BRUTE_PAGES_MAX 8
#define BRUTE_USES_MAX 16

/* Fewest fetches when a page is fetched only as it is used (so that every page passes through a slot). */
unsigned brute_demand(const uint8_t *uses, size_t n, unsigned slots);
/* Least units until the last use has ended, with fetches of any page at any time; a page in flight takes a slot. */
unsigned brute_time(const uint8_t *uses, size_t n, unsigned slots, unsigned fetch, unsigned use);

#endif
