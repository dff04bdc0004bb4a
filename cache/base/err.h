/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/err.h - the error convention: 0 or a count, or a negative errno. Header only; used everywhere.
 */
#ifndef CACHE_BASE_ERR_H
#define CACHE_BASE_ERR_H

#include <errno.h>

/* A large array on a hot path, written before it is read: the build clears all others (-ftrivial-auto-var-init). */
#if defined(__has_attribute) && __has_attribute(uninitialized)
#define HFS_UNINITIALIZED __attribute__((uninitialized))
#else
#define HFS_UNINITIALIZED
#endif

#define HFS_MUST_CHECK __attribute__((warn_unused_result))

/* The one macro that may hide a return: hand a negative errno through. */
#define HFS_TRY(expr)                        \
	do {                                 \
		int hfs_try_err_ = (expr);   \
		if (hfs_try_err_ < 0)        \
			return hfs_try_err_; \
	} while (0)

#endif
