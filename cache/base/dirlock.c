/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/dirlock.c - see dirlock.h.
 */
#include "cache/base/dirlock.h"

#include "cache/base/time.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAUSE_NS (5 * HFS_NS_PER_MS)

int dirlock_above(const char *dir, int64_t wait_ms)
{
	uint64_t until_ns = hfs_now_ns() + (uint64_t)wait_ms * HFS_NS_PER_MS;
	struct timespec pause = hfs_ns_to_timespec(PAUSE_NS);
	char parent[PATH_MAX];
	int fd;

	if (strlen(dir) >= sizeof(parent))
		return -1;
	strcpy(parent, dir);
	*strrchr(parent, '/') = '\0';
	fd = open(parent[0] ? parent : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || hfs_now_ns() >= until_ns) {
			close(fd);
			return -1;
		}
		nanosleep(&pause, NULL);
	}
	return fd;
}

int dirlock_hold(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The path is not asked: by now the next process's mount may lie there, and that process may be stopped. */
static bool is_last_holder(int hold)
{
	struct stat st;

	return flock(hold, LOCK_EX | LOCK_NB) == 0 && fstat(hold, &st) == 0 && st.st_nlink > 0;
}

void dirlock_remove(const char *dir, int hold, int64_t wait_ms)
{
	int above = hold < 0 ? -1 : dirlock_above(dir, wait_ms);

	/* No lock: somebody is starting there; it stays for them. rmdir: ENOTEMPTY, ENOENT: not ours to remove (any more). */
	if (above >= 0 && is_last_holder(hold))
		(void)rmdir(dir);
	if (above >= 0)
		close(above);
}
