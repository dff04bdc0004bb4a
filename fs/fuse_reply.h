/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_reply.h - what both sessions need to talk to libfuse. The one place where a negative errno turns positive.
 */
#ifndef FS_FUSE_REPLY_H
#define FS_FUSE_REPLY_H

#include "cache/base/err.h"

#include <fuse_lowlevel.h>
#include <stdint.h>
#include <time.h>

/* err <= 0. */
int fuse_reply_errno(fuse_req_t req, int err);
struct timespec fuse_reply_time(int64_t ns);
/*
 * Work off INIT, before there are workers: the next one is started before a request is processed, and both look at what INIT
 * sets. Waits for it; an aborted or unmounted session is left for the loop to find. 0, -ENOMEM, or what the device said.
 */
HFS_MUST_CHECK int fuse_reply_init(struct fuse_session *se);
/*
 * Give the session's device up, whatever holds the mount: users of it get errors from then on. The number stays taken, by a pipe
 * that nobody reads, so a late answer by another thread fails and never lands in a file that was opened since.
 */
void fuse_reply_cut(struct fuse_session *se);
/*
 * The same, and libfuse forgets the mountpoint without unmounting it: it frees its copy of the path only in fuse_session_unmount(),
 * which would also unmount what lies there by now, perhaps the next daemon's mount, unless it finds its device dead (POLLERR).
 * Only when no thread will answer any more: this closes the number.
 */
void fuse_reply_forget_mount(struct fuse_session *se);

#endif
