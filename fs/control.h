/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control.h - the control files: what a write to `order` or `streams/N` means, what `status`, `errors`, `record`,
 * `metrics` say.
 *
 * Knows no libfuse: fs/fuse_ctl.c translates and replies. Runs without a mount (tests/unit/test_control.c).
 *
 * Invariants
 *   1. No function here waits for the origin, and none waits for anything of the data session. What needs the origin
 * (the first 16 names of an open, literal names with braces, `dir/`) goes to a metadata thread with the request parked.
 *   2. Every control_req that was handed over is answered by exactly one call of done(), maybe before the function
 * returns.
 *   3. Lines are accepted one by one, whole: what was accepted before a bad line stays, nothing of or after it does.
 *   4. A hint never changes what a read of the data session returns.
 *
 * Limits: CONTROL_FILES_MAX open files and as many more of those that only report, SCHED_STREAMS_MAX streams, stream names of CONTROL_NAME_MAX bytes, lines of
 * PARSE_LINE_MAX bytes, CONTROL_ERRORS_MAX kept errors, 64 MiB of names while one `dir/` is listed.
 *
 * Locks (ranks of cache/base/sync.h): c->lock (CONTROL_TABLE) is held for a few lines and never across a call of the
 * engine.
 */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct hintfs;
struct control;
struct control_file; /* one open file */

#define CONTROL_FILES_MAX 256u
#define CONTROL_NAME_MAX 128u
#define CONTROL_ERRORS_MAX 64u
#define CONTROL_CHECKED_MAX 16u /* entries of an open that are looked up at the origin at once */

enum control_kind {
	CONTROL_ROOT = 1,
	CONTROL_README,
	CONTROL_ORDER,
	CONTROL_STREAMS, /* the directory */
	CONTROL_STREAM,
	CONTROL_STATUS,
	CONTROL_ERRORS,
	CONTROL_PREFETCH,
	CONTROL_WAIT,
	CONTROL_RECORD,
	CONTROL_METRICS,
	CONTROL_VERIFY,
	CONTROL_KINDS,
};

/* What a name stands for. */
struct control_node {
	enum control_kind kind;
	uint32_t slot;	 /* CONTROL_STREAM: place in the table */
	uint32_t serial; /* CONTROL_STREAM: a removed and remade stream has another one */
};

struct control_req {
	/* set by the caller */
	/* result: bytes read or written, 0, or negative errno; data: what was read, borrowed during the call. Any
	 * thread. The request belongs to the caller again. */
	void (*done)(struct control_req *r, ssize_t result, const char *data);
	pid_t tid; /* of the caller, as the kernel tells it */
	uint32_t uid, gid;
	/* private */
	struct {
		struct control_req *next, *prev;
		uint64_t id;
		struct control_file *file;
		int job;
		char *data; /* owned copy while parked */
		size_t len;
		void *wait; /* owned: the engine's argument while it works on a wait */
		uint64_t token, poll_size;
		bool is_linked, has_token;
		_Atomic bool is_interrupted;
	} i;
};

int control_create(struct hintfs *h, struct control **ret_c);
/* Every parked request ends (-ESHUTDOWN), later ones fail at once. Waits at most wait_ms; false: some request is still
 * in other hands. */
bool control_shutdown(struct control *c, unsigned wait_ms);
void control_destroy(struct control *c); /* after a shutdown that returned true; NULL is fine */

/* ---- names ------------------------------------------------------------------------------------------- */

/* -ENOENT. parent: CONTROL_ROOT or CONTROL_STREAMS. */
int control_lookup(struct control *c, enum control_kind parent, const char *name, struct control_node *ret);
/* Make the stream if it is not there. -ENOENT: new names are possible in streams/ only; -EINVAL, -ENAMETOOLONG,
 * -ENOSPC. */
int control_make(struct control *c, enum control_kind parent, const char *name, struct control_node *ret);
/* rm of a stream: cancel and forget; open handles of it fail with -ECANCELED. -EPERM for anything else, -ENOENT. */
int control_remove(struct control *c, enum control_kind parent, const char *name);
bool control_node_exists(struct control *c, const struct control_node *n);
/* Names in a directory; cb returns 0 to go on. */
int control_list(struct control *c, enum control_kind dir,
		 int (*cb)(void *ctx, const char *name, const struct control_node *n), void *ctx);
/* 4: may be read, 2: may be written; before owner and mode are asked. */
unsigned control_access(enum control_kind kind);

/* ---- open files ---------------------------------------------------------------------------------------- */

/* flags as open(2): access mode, O_TRUNC, O_NONBLOCK. -EACCES, -ENFILE, -ENOENT, -ENOMEM, -ESHUTDOWN. */
int control_open(struct control *c, const struct control_node *n, int flags, struct control_file **ret_f);

/*
 * Requests. begin: r takes part, *ret_id names it for control_interrupt() from now on (a number, because a request may
 * end at any time); -ESHUTDOWN: not begun. A begun request must be handed to one of the three functions below it.
 */
int control_req_begin(struct control *c, struct control_req *r, uint64_t *ret_id);
void control_read(struct control_file *f, uint64_t off, size_t size, struct control_req *r);
/* data is borrowed until the function returns. */
void control_write(struct control_file *f, const char *data, size_t len, struct control_req *r);
/* A descriptor of the file was closed: the unfinished line of its writer is taken as a line. */
void control_flush(struct control_file *f, struct control_req *r);
void control_release(struct control_file *f);
/* ftruncate(fd, 0): as O_TRUNC at open. */
void control_file_truncate(struct control_file *f);
/* truncate(path, 0) */
int control_truncate(struct control *c, const struct control_node *n);

/* A signal came for the caller. A wait or a read of `record` ends with -EINTR at once; an order ends only if the caller
 * is dying. */
void control_interrupt(struct control *c, uint64_t id);

#endif
