/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/source.h - what lies at SOURCE, asked before there are threads, with a deadline where the mount can do without it.
 *
 * Whose data the disk tier keeps goes by names which outlive a reboot: what is mounted where SOURCE lies, and SOURCE. That a
 * file is still the same one is its identity's to say. Caller: fs/main.c.
 */
#ifndef FS_SOURCE_H
#define FS_SOURCE_H

#include "cache/base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct source {
	const char *path; /* borrowed */
	/* It cannot be entered, does not answer, or is an empty directory: perhaps only the place where it is mounted. */
	bool is_away;
	size_t dataset_bytes; /* 0: not known */
	char dataset[2 * PATH_MAX + 128];
};

/* may_be_away: look at it with a deadline; else nothing is asked of it here. 0, or why mountinfo can't be read. */
HFS_MUST_CHECK int source_look(const char *path, bool may_be_away, struct source *ret);

#endif
