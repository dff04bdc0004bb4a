/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/sched/check.h - the invariants of sched/sched_i.h, looked at from inside. */
#ifndef TESTS_UNIT_SCHED_CHECK_H
#define TESTS_UNIT_SCHED_CHECK_H

#include "sched/sched.h"

/* Aborts with a line on stderr if one does not hold. */
void check_invariants(const struct sched *s);

#endif
