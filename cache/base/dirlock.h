/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/dirlock.h - a directory that processes mount on and remove again, without one taking it from under another.
 *
 * Whoever removes a directory takes what is mounted on it in *other* mount namespaces away, which nothing tells of but these locks.
 * Two, both flock(2), which all namespaces see: whoever starts there holds the directory above, exclusively, until it is
 * mounted; and each process that mounts on it holds the directory itself, shared, for its life. It is removed by the last of these, with
 * the lock above. Callers: fs/ctldir.c; hintctl, for daemons that were killed.
 */
#ifndef CACHE_BASE_DIRLOCK_H
#define CACHE_BASE_DIRLOCK_H

#include "cache/base/err.h"

#include <stdint.h>

/* The directory above dir (an absolute path); who waits longer than wait_ms goes without. A descriptor to close, or -1: no lock. */
int dirlock_above(const char *dir, int64_t wait_ms);
/* The directory itself, shared. A descriptor to close, or -1: not possible. */
int dirlock_hold(const char *dir);
/* Remove it, if hold (of dirlock_hold(), which stays open) is the last one on it and nobody starts there. */
void dirlock_remove(const char *dir, int hold, int64_t wait_ms);

#endif
