/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/brace.h - `{a,b}`, `{000..099}`, `{0..10..2}`, `A::B`: the names that a pattern stands for.
 *
 * Callers: fs/control_ingest.c, tools/hintctl, tools/preload. Pure.
 *
 * Rules are bash's (and Python braceexpand's where both agree): lists and sequences nest; the rightmost brace runs
 * fastest; a brace without a comma or a sequence, an empty `{}` and an unmatched brace are ordinary bytes; zero padding
 * to the wider end; the step's sign does not matter and 0 means 1; `::` separates whole patterns, before braces are
 * looked at. No escapes and no `$`.
 *
 * Invariants
 *   1. The number of results is known before the first one is made, and at most BRACE_RESULTS_MAX.
 *   2. Memory is linear in the pattern; results are made one at a time, any index in any order.
 *   3. Nesting is at most BRACE_DEPTH_MAX deep, so recursion is bounded.
 */
#ifndef SCHED_BRACE_H
#define SCHED_BRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BRACE_RESULTS_MAX 10000000u
#define BRACE_DEPTH_MAX 32u
#define BRACE_BYTES_MAX (UINT64_C(2) << 30) /* longest result x results: bounds the time of one line */

struct brace;

/* The pattern is copied. -ENOSPC: more results, levels or bytes than the limits above. -ENOMEM. */
int brace_create(const char *pattern, size_t len, struct brace **ret_b) __attribute__((warn_unused_result));
void brace_destroy(struct brace *b); /* NULL is fine */
/* How many results; 1: the pattern means itself, unless it holds a "::" with one side empty. */
uint64_t brace_count(const struct brace *b);
/* Result no. index (< count) into buf, not NUL-terminated. Returns its length; nothing past cap is written, so a length
 * > cap means that it was cut. */
size_t brace_result(const struct brace *b, uint64_t index, char *buf, size_t cap);

/* True if the bytes hold '{' or "::", so that an expansion could make a difference. */
bool brace_is_pattern(const char *s, size_t len);

#endif
