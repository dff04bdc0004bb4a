/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/paths.h - SOURCE and MOUNTPOINT as the command line gave them, made absolute and checked against each other, without ever
 * waiting for a dead server longer than a deadline. Caller: fs/opts.c.
 */
#ifndef FS_PATHS_H
#define FS_PATHS_H

#include "cache/base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum paths_problem {
	PATHS_OK,
	PATHS_SOURCE,		     /* err says why */
	PATHS_SOURCE_NOT_DIR,
	PATHS_MOUNTPOINT,	     /* err says why */
	PATHS_MOUNTPOINT_NOT_DIR,
	PATHS_SAME,		     /* one directory, maybe under two names */
	PATHS_SOURCE_BELOW,	     /* SOURCE lies inside MOUNTPOINT: the mount would hide it */
	PATHS_MOUNTPOINT_BELOW,	     /* MOUNTPOINT lies inside SOURCE: the mount would contain itself */
	PATHS_TIMEOUT,		     /* one of the two does not answer */
};

struct paths {
	enum paths_problem problem;
	int err; /* negative errno */
	char source[PATH_MAX], mountpoint[PATH_MAX]; /* absolute, no symlinks */
};

void paths_resolve(const char *source, const char *mountpoint, struct paths *ret);
/* The same for a SOURCE that need not be there: when it does not exist or does not answer, its path is taken as it is written. */
void paths_resolve_away(const char *source, const char *mountpoint, struct paths *ret);
/* path == dir, or path lies below dir; both absolute and normalised. */
bool paths_is_below(const char *path, const char *dir);
/*
 * Absolute form of a path whose last parts need not exist yet: symlinks of the part that exists are resolved. malloc'd.
 * 0, -ENOMEM, -ENAMETOOLONG, -EINVAL ("." or ".." behind the part that exists), or why the existing part can't be walked.
 */
HFS_MUST_CHECK int paths_absolute(const char *path, char **ret);

#endif
