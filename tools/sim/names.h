/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/names.h - the files that an order names: path -> number and size, looked up below a directory or in a list.
 *
 * Callers: tools/sim/order.c. Invariant: numbers are dense, in the order in which names were first used.
 */
#ifndef TOOLS_SIM_NAMES_H
#define TOOLS_SIM_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAMES_NONE UINT32_MAX

struct name {
	char *path; /* owned */
	uint64_t size_bytes;
	uint32_t hash_next, file; /* number in the work, NAMES_NONE: not used yet */
	bool is_missing, is_listed;
};

struct names {
	struct name *v;
	uint32_t n, cap, *buckets, n_buckets;
	const char *source; /* borrowed; NULL: the list alone decides */
	bool has_list;
};

void names_finish(struct names *t);
/* Read lines PATH<TAB>BYTES. Negative errno; *ret_line: where. */
int names_read_sizes(struct names *t, const char *path, uint64_t *ret_line) __attribute__((warn_unused_result));
/* The index of a path, looked up if it is new. -ENOMEM. A path that is no regular file is there, marked missing. */
int names_get(struct names *t, const char *path, size_t len, uint32_t *ret) __attribute__((warn_unused_result));
/* All regular files below a directory (""; no trailing slash), sorted: fn(arg, index). */
int names_below(struct names *t, const char *dir, size_t len, int (*fn)(void *arg, uint32_t index), void *arg)
	__attribute__((warn_unused_result));

#endif
