/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/cleanup.h - free and close at the end of a scope. Never for locks.
 */
#ifndef CACHE_BASE_CLEANUP_H
#define CACHE_BASE_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

static inline void hfs_cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void hfs_cleanup_close(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

#define HFS_AUTOFREE __attribute__((cleanup(hfs_cleanup_free)))
#define HFS_AUTOCLOSE __attribute__((cleanup(hfs_cleanup_close)))

/* Give the value away: the scope no longer frees or closes it. */
#define HFS_STEAL_PTR(p)                         \
	({                                       \
		__typeof__(p) hfs_stolen_ = (p); \
		(p) = NULL;                      \
		hfs_stolen_;                     \
	})

static inline int hfs_steal_fd(int *fd)
{
	int stolen = *fd;

	*fd = -1;
	return stolen;
}

#endif
