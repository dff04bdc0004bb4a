/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/mountinfo.h - what is mounted where, read from /proc/self/mountinfo and never from the file systems themselves; and
 * the removal of mounts that a daemon which was killed left behind. Callers: fs/paths.c, fs/ctldir.c, fs/life.c, fs/main.c.
 */
#ifndef FS_MOUNTINFO_H
#define FS_MOUNTINFO_H

#include "cache/base/err.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct mountinfo {
	unsigned major, minor;
	char fstype[64];	   /* "fuse.hintfs", cut if longer */
	char source[PATH_MAX];	   /* as given to mount(2), unescaped, cut if longer */
	char mountpoint[PATH_MAX]; /* unescaped */
};

enum mountinfo_state {
	MOUNTINFO_NONE,	   /* nothing is mounted there */
	MOUNTINFO_FOREIGN, /* something that is not ours */
	MOUNTINFO_ALIVE,   /* ours, answers */
	MOUNTINFO_DEAD,	   /* ours, its daemon is gone: ENOTCONN (or aborted: ECONNABORTED) */
	MOUNTINFO_STUCK,   /* ours, no answer within the deadline */
};

/* Parse one line; false: not of that form. Unescapes \ooo. */
bool mountinfo_parse(const char *line, struct mountinfo *ret);
/* The topmost mount at exactly this absolute path. 0, -ENOENT, or why mountinfo can't be read. */
HFS_MUST_CHECK int mountinfo_find(const char *path, struct mountinfo *ret);
/* The mount that an absolute path without symbolic links lies on. */
HFS_MUST_CHECK int mountinfo_above(const char *path, struct mountinfo *ret);
/* Ours: fstype fuse.hintfs or fuse.hintfs-something. */
bool mountinfo_is_ours(const struct mountinfo *m);
/* *ret is filled unless the answer is NONE. */
enum mountinfo_state mountinfo_state(const char *path, struct mountinfo *ret);

/* Device number of the topmost mount at path, if it is ours, for mountinfo_detach_held(); 0: none. */
unsigned mountinfo_minor(const char *path);
/* The device of a FUSE mount that is gone, or was aborted: what has its number now may be another's. fuse_fd -1: false. */
bool mountinfo_is_cut(int fuse_fd);

/*
 * Take the topmost mount at path away, busy or not (users keep what they hold; new look-ups see what is below).
 * Root by umount2(MNT_DETACH), others by fusermount3 -u -z. 0 or negative errno.
 */
HFS_MUST_CHECK int mountinfo_detach(const char *path);
/*
 * The same, if it is still the mount with this number, whose FUSE device is open as fuse_fd; else nothing. The kernel gives the number of
 * a mount that is gone to the next one, which may be another daemon's at the same place: so the connection is asked, too. What
 * goes wrong is logged.
 */
void mountinfo_detach_held(const char *path, unsigned minor, int fuse_fd);
/* Ask the kernel to end the FUSE connection (all waiting users get ECONNABORTED), where fusectl is mounted and allows it. */
HFS_MUST_CHECK int mountinfo_abort(unsigned minor);

#endif
