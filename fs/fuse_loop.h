/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_loop.h - the threads that take requests from a session and work them off. Caller: fs/fuse_data.c, on a thread of its own.
 */
#ifndef FS_FUSE_LOOP_H
#define FS_FUSE_LOOP_H

#include "cache/base/err.h"

#include <fuse_lowlevel.h>

#define FUSE_LOOP_WORKERS_MAX 8
#define FUSE_LOOP_STARVED_MS 100 /* until a worker without memory for its buffer tries again */

/*
 * INIT, then all requests, until the session's mount is gone: returns when every worker is done. The caller is one of them, as many
 * as there are CPUs, at most seven, are started as needed. on_end: once, by the first who sees the end, others may still be at work. Takes no memory once it runs; where
 * there is none for further workers, fewer do the work.
 * 0: unmounted or told to stop; the device says ENODEV in both cases and when the connection was aborted. Else negative errno.
 */
HFS_MUST_CHECK int fuse_loop_run(struct fuse_session *se, void (*on_end)(void *arg), void *arg);

#endif
