/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/ctldir.h - the directory that the control session is mounted on: its name, its making, its end.
 *
 * By default /run/hintfs/NAME for root and $XDG_RUNTIME_DIR/hintfs/NAME for others, NAME being the mountpoint escaped as
 * `systemd-escape --path` does. Callers: fs/opts.c (name), fs/main.c. Works before the daemon has threads, and at its end.
 */
#ifndef FS_CTLDIR_H
#define FS_CTLDIR_H

#include "cache/base/err.h"

#include <stdbool.h>
#include <stdio.h>

/* malloc'd. -EINVAL: not an absolute path; -ENOMEM. */
HFS_MUST_CHECK int ctldir_escape(const char *path, char **ret_name);
/* malloc'd. -ENOENT: no runtime directory; -ENAMETOOLONG: the escaped name is over 255 bytes. */
HFS_MUST_CHECK int ctldir_default(const char *mountpoint, char **ret_dir);

/*
 * Make dir usable as a mountpoint: made if missing (with its parents when is_default: a user who names it makes them), refused if it
 * holds anything, a dead mount of ours taken away; one whose daemon is
 * just ending is waited for. Others must be able to walk to it when is_shared. *ret_is_made: it is ours to remove.
 * *ret_lock (-1: none) keeps an ending daemon from removing it: close it when something is mounted there.
 * On failure one line was written to err. 0 or negative errno.
 */
HFS_MUST_CHECK int ctldir_prepare(const char *dir, bool is_default, bool is_shared, bool *ret_is_made, int *ret_lock, FILE *err);

#endif
