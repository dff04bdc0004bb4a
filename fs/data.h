/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data.h - what scripts see of the mount: requests in, answers out, without FUSE.
 *
 * fs/fuse_data.c translates each FUSE request into a struct data_req, calls data_submit() and gets its answer
 * through reply(), exactly once, from any thread, with no lock held. A FUSE worker that calls data_submit() never waits:
 * what memory can answer is answered inside, the rest is parked (reads on their chunks, metadata on a metadata thread).
 *
 * Who answers a parked request: whoever claims it first (data_answer): the metadata thread or the chunk that brings
 * the result; the watch thread, with EINTR for a dying caller, or with the last snapshot if the origin is late; data_stop() with
 * ESHUTDOWN. A result that comes after that is undone and dropped.
 *
 * Freshness. A name's identity is asked from the origin at LOOKUP (attributes up to `revalidate` old are good) and again, with a
 * fresh open, at OPEN (unless nocto or immutable). An OPEN that finds another identity answers ESTALE; the kernel walks the path
 * again, and the LOOKUP that follows keeps the generation that it opened for the OPEN that comes next, which binds to it
 * unchecked. So an open never fails because the file is being replaced all the time (data_open.c).
 */
#ifndef FS_DATA_H
#define FS_DATA_H

#include "cache/base/err.h"
#include "cache/cache.h"
#include "fs/hintfs.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#define DATA_CTL_NAME ".ctl"
#define DATA_CTL_ID (UINT64_MAX - 1) /* node id of the symlink to the control session */

struct data_view;
struct data_handle;	/* an open file */
struct data_dir_handle; /* an open directory */
struct node;
struct dirsnap;

enum data_op {
	DATA_LOOKUP,
	DATA_GETATTR,
	DATA_READLINK,
	DATA_OPEN, /* -ENOSYS: the kernel need not ask any more, of no file (data_noopen.c) */
	DATA_READ, /* by the node; whether it is open is not asked */
	DATA_OPENDIR,
	DATA_READDIR,
	DATA_STATFS,
	DATA_GETXATTR,
	DATA_LISTXATTR,
};

struct data_entry {
	uint64_t node_id; /* 0: negative entry, or (READDIRPLUS) attributes not given */
	struct origin_attr attr;
	uint64_t ino; /* unique in the mount */
	double timeout_s;
};

struct data_dirent {
	const char *name; /* borrowed until reply returns */
	uint64_t ino, cookie;
	unsigned type; /* DT_* */
	struct data_entry entry; /* is_plus only */
};

struct data_result {
	struct data_entry entry;	   /* LOOKUP, GETATTR (node_id unused) */
	struct data_handle *handle;	   /* OPEN: owned by the receiver, data_release() */
	struct data_dir_handle *dir;	   /* OPENDIR: data_releasedir() */
	const struct iovec *iov;	   /* READ: readable during reply only */
	int iov_n;
	const struct data_dirent *dirents; /* READDIR */
	size_t dirents_n;
	const char *bytes;		   /* READLINK (NUL-terminated), xattrs */
	size_t bytes_len;		   /* xattrs with size 0: only this */
	struct statvfs statfs;
};

struct data_req {
	/* set by the caller of data_submit, const */
	enum data_op op;
	uint64_t node_id; /* LOOKUP: the parent */
	uint32_t tid;	  /* calling thread, 0: not visible from here */
	uint32_t uid, gid; /* its file system identity */
	const char *name; /* LOOKUP, GETXATTR: borrowed during data_submit */
	size_t size;	  /* READ, READDIR, xattrs */
	uint64_t off;	  /* READ; READDIR: cookie */
	bool is_plus;
	struct data_dir_handle *dir;
	/* bytes one directory entry takes in the answer */
	size_t (*dirent_bytes)(size_t name_len, bool is_plus);
	void (*reply)(struct data_req *r, int err, const struct data_result *res);
	bool (*was_interrupted)(const struct data_req *r); /* asked until the answer, under the view's lock; thread-safe */
	void *fuse; /* the caller's */

	/* private to fs/data*.c */
	struct data_view *v;
	uint64_t id, came_ns, started_ns;
	struct data_req *prev, *next;
	_Atomic bool is_answered;
	_Atomic int refs;
	uint64_t i_pass; /* of the watch thread that looked last */
	bool is_interrupted, is_listed, is_tried_late, is_dir_counted;
	char *name_own; /* owned */
	struct cred *cred; /* counted; set where the origin refused us as ourselves */
	struct node *node;
	struct cache_file *file; /* READ: counted */
	struct cache_read read;
};

int data_view_create(struct hintfs *h, struct data_view **ret_v);
/* Every parked request is answered with ESHUTDOWN; later ones too. The engine is shut down by its owner. */
void data_stop(struct data_view *v);
/*
 * After data_stop(), the end of the session's workers and engine_shutdown(): waits for those who are still answering, a thread of the
 * cache for one. False: not all have come back from the origin; view and session must stay.
 */
HFS_MUST_CHECK bool data_drain(struct data_view *v, unsigned wait_ms);
void data_view_destroy(struct data_view *v); /* after data_drain() returned true */

/* Zeroed, from a pool; NULL: no memory. Freed by the view after reply. */
struct data_req *data_req_new(struct data_view *v);
/* Returns the request's number for data_interrupt(). r may be gone when this returns. */
void data_submit(struct data_req *r);
void data_interrupt(struct data_view *v, uint64_t req_id);

void data_forget(struct data_view *v, uint64_t node_id, uint64_t nlookup);
/* After the kernel was told that OPENs are not needed it says nothing of those that were open, and h may be NULL or gone. */
void data_release(struct data_view *v, struct data_handle *h, uint32_t tid);
/* Before the first request: the kernel understands an OPEN that is answered ENOSYS. */
void data_can_no_open(struct data_view *v);
void data_releasedir(struct data_view *v, struct data_dir_handle *d);
size_t data_status(struct data_view *v, char *buf, size_t cap);

#endif
