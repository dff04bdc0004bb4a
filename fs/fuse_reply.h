/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_reply.h - what both sessions need to talk to libfuse. The one place where a negative errno turns positive.
 */
#ifndef FS_FUSE_REPLY_H
#define FS_FUSE_REPLY_H

#include <fuse_lowlevel.h>
#include <stdint.h>
#include <time.h>

/* err <= 0. */
int fuse_reply_errno(fuse_req_t req, int err);
struct timespec fuse_reply_time(int64_t ns);
/* "major:minor" of the topmost mount at the path, as /proc/self/mountinfo has it; malloc'd, NULL if none. */
char *fuse_reply_mount_dev(const char *mountpoint);

#endif
