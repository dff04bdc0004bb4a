/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/hintfs.h - the daemon's one context: made by main.c, handed to every session. No globals.
 */
#ifndef FS_HINTFS_H
#define FS_HINTFS_H

#include "fs/opts.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct origin;
struct data_session;	/* fs/fuse_data.c */
struct control_session; /* fs/fuse_ctl.c */
struct meta;		/* fs/meta.c: origin metadata calls off the FUSE workers */

struct hintfs {
	struct hfs_opts opts;
	const struct cache_io *io;
	struct origin *origin;
	struct engine *engine;
	struct meta *meta;
	struct data_session *data;
	struct control_session *ctl;
	uint64_t started_ns;
	bool is_origin_later; /* at the start it was away: const after create */
	_Atomic bool is_stopping;
	_Atomic uint64_t late_metadata, stale_opens; /* figures of `status` kept here */
};

/* ---- meta.c: run fn(arg) on a metadata thread; never blocks. Threads are added while the others are stuck. */
int meta_create(struct meta **ret_m);
int meta_run(struct meta *m, void (*fn)(void *arg), void *arg);
/* The same for half of a call that the caller could make by itself: -EAGAIN while something is late, or a hung origin would cost two
 * threads a call. */
int meta_run_aside(struct meta *m, void (*fn)(void *arg), void *arg);
void meta_shutdown(struct meta *m); /* queued work is run with nobody waiting; never joins stuck threads */
bool meta_destroy(struct meta *m, unsigned wait_ms); /* false: a thread hangs in the origin; m is left allocated on purpose */

/* ---- fuse_data.c: the session that scripts see (lead) */
/* Mount and be ready to serve; the kernel answers from here on once data_session_start() runs. Errors name object and cause in the log. */
int data_session_create(struct hintfs *h, struct data_session **ret);
/* Start its worker threads; returns at once. on_end(arg) is called from a session thread when the mount is gone (unmounted from outside or aborted). */
int data_session_start(struct data_session *s, void (*on_end)(void *arg), void *arg);
/* Its FUSE device, borrowed until it is destroyed. */
int data_session_fd(const struct data_session *s);
/* Answer every parked request with an errno, unmount (detach if busy), stop threads. Within 5 s whatever the origin does. Idempotent. */
void data_session_stop(struct data_session *s);
/* After the stop, and engine_shutdown(): the last answers by other threads. False: some hang in the origin, s must stay. */
bool data_session_drain(struct data_session *s, unsigned wait_ms);
void data_session_destroy(struct data_session *s); /* after data_session_drain() returned true */
/* Text lines for .ctl/status added by the session (nodes, parked requests ...): as snprintf. */
size_t data_session_status(struct data_session *s, char *buf, size_t cap);

/* ---- fuse_ctl.c: the control session (same life as above); mounted at opts.ctl_dir */
int control_session_create(struct hintfs *h, struct control_session **ret);
int control_session_start(struct control_session *s);
int control_session_fd(const struct control_session *s);
void control_session_stop(struct control_session *s);
void control_session_destroy(struct control_session *s);

#endif
