/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/bounded.h - ask a file system that may hang, with a deadline.
 *
 * A path may lie on a dead NFS server or on a FUSE mount whose daemon is stopped; a stat() there can wait for ever, and
 * not even SIGKILL helps. So the question is asked by a child, which can be given up. Callers: fs/paths.c,
 * fs/mountinfo.c, fs/life.c, all before the daemon has threads (or in the waiting parent).
 */
#ifndef FS_BOUNDED_H
#define FS_BOUNDED_H

#include "cache/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Run fn(arg, answer) in a child; what it left in answer[0..len) is copied back. 0; -ETIMEDOUT: the child was killed and, if
 * it hangs in the kernel, left behind for init; -ECHILD: it died without an answer; other: no child could be made.
 * say (may be NULL): a line for stderr if it takes longer than BOUNDED_SAY_MS. The child does not outlive the caller.
 */
#define BOUNDED_SAY_MS 2000
HFS_MUST_CHECK int bounded_run(void (*fn)(const void *arg, void *answer), const void *arg, void *answer,
						    size_t len, unsigned timeout_ms, const char *say);

/*
 * Until fd can be read, or the time is over: 1, 0 or negative errno. say (may be NULL): a line for err if it takes longer than
 * BOUNDED_SAY_MS.
 */
HFS_MUST_CHECK int bounded_poll(int fd, int64_t timeout_ms, const char *say, FILE *err);

/* statfs() of a path, which always asks the file system itself: 0, its negative errno, or -ETIMEDOUT. */
HFS_MUST_CHECK int bounded_statfs(const char *path, unsigned timeout_ms);

#endif
