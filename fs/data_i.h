/* SPDX-License-Identifier: Apache-2.0 */
/* fs/data_i.h - shared inside fs/data*.c. */
#ifndef FS_DATA_I_H
#define FS_DATA_I_H

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "cache/cred.h"
#include "fs/book.h"
#include "fs/data.h"
#include "fs/dirsnap.h"
#include "fs/engine.h"
#include "fs/node.h"

#include <pthread.h>

#define LATE_NS 1000000000ull	   /* a metadata call is late after this ... */
#define LATE_GRACE_NS 20000000ull  /* ... or after this, while another one is late already */
#define WATCH_NS 20000000ull	   /* period of the watch thread while there is something to watch */
#define STALE_NS 5000000000ull	   /* how long the LOOKUP after an ESTALE keeps its descriptor for the OPEN */
#define NOTE_NS 60000000000ull	   /* how long an OPEN's ESTALE is remembered, at most: a slow origin needs its time */
#define STALE_SLOTS 1024u
#define DEVS_MAX 256u
#define RECENT_FILES 256u

/* See data_open.c. until_ns 0: free. */
struct stale_note {
	uint64_t until_ns, since_ns;
	uint32_t tid;
	char *path; /* owned */
};
struct stale_kept {
	uint64_t until_ns, fresh_ns, node_id;
	struct cache_file *file; /* counted; NULL: free */
};

struct data_view {
	/* const after create */
	struct hintfs *h;
	struct node_table *nodes;
	struct dirsnap_table *snaps;
	struct book *book; /* NULL: not immutable, or no disk tier */
	pthread_t watch;
	double timeout_s; /* of entries and attributes */
	uint64_t revalidate_ns;
	uint64_t origin_timeout_ns; /* 0: none */
	uint64_t root_dev;

	struct hfs_mutex lock; /* rank HFS_RANK_SESSION */
	struct hfs_cond wake;
	/* guarded by lock */
	struct data_req *metas, *reads; /* parked */
	struct data_req *pool;
	struct data_handle *handles; /* open ones: the kernel sends no RELEASE when the mount is torn down */
	struct data_dir_handle *dirs;
	uint32_t pool_n;
	uint32_t n_metas, n_reads, n_interrupted;
	uint32_t n_live; /* requests: parked, being worked off, or being answered by somebody */
	bool is_stopping, is_watch_idle;
	struct stale_note notes[STALE_SLOTS];
	struct stale_kept kept[STALE_SLOTS];
	uint32_t n_stale; /* used ones of both */
	uint64_t devs[DEVS_MAX]; /* origin devices below the root's, for unique inode numbers */
	uint32_t n_devs;
	struct statvfs statfs;
	bool has_statfs;

	_Atomic uint64_t next_id;
	_Atomic uint64_t stall_ns; /* sum over READs of the time they were parked, read-ahead included */
	_Atomic uint32_t n_open, n_dirs;
	/* data_noopen.c */
	_Atomic bool can_no_open; /* set before the first OPEN */
	_Atomic bool is_no_open;  /* written under lock, with handles emptied for ever */
	_Atomic uint32_t n_opened, n_opened_small;
	_Atomic(struct cache_file *) recent[RECENT_FILES]; /* counted: read lately, without an OPEN */
	_Atomic bool is_squashed; /* some caller was let in where we are refused */
	_Atomic bool is_late; /* some metadata call has been out for LATE_NS */
};

struct data_handle {
	struct node *node;	 /* counted */
	struct cache_file *file; /* borrowed from the node while it is open */
	struct data_handle *prev, *next; /* of view->handles; guarded by view->lock */
};

struct data_dir_handle {
	_Atomic int refs;	/* the kernel's, and one of each request: a late listing can outlive the RELEASE */
	struct node *node;	/* counted */
	struct dirsnap *snap;	/* counted */
	struct data_dir_handle *prev, *next;
};

/* A listing on its way into a snapshot. */
struct data_list {
	struct data_view *v;
	struct dirsnap *snap;
	uint64_t dev; /* of the directory: entries of a plain directory are on it */
	bool is_root;
};

/* Claim and answer. False: somebody else had; res is then still the caller's to undo. */
bool data_answer(struct data_req *r, int err, const struct data_result *res);
/* List as parked, with a reference for the job, and run fn(r) on a metadata thread; fn ends with data_job_done(r). */
void data_park_meta(struct data_req *r, void (*fn)(void *r));
void data_job_done(struct data_req *r);
void data_req_unref(struct data_req *r);
bool data_list_add(struct data_req *r, bool is_read); /* false: stopping, answered */
char *data_req_path(struct data_req *r); /* of r->node, with r->name_own if it has one; malloc'd */

void data_fill_entry(struct data_view *v, struct data_entry *e, uint64_t node_id, const struct origin_attr *attr);
uint64_t data_ino(struct data_view *v, const struct hfs_identity *id);
bool data_is_shown(uint32_t mode); /* regular file, directory, symlink */
void data_superseded(struct data_view *v, struct node *old); /* takes the reference */
int data_walk_anew(struct data_req *r, int err); /* data_meta.c; on a metadata thread. -ESTALE or err */

/* data_caller.c: as origin_*(), once more as the caller where we are refused. */
int data_origin_open(struct data_req *r, const char *path, int *ret_fd, struct origin_attr *ret_attr);
int data_origin_stat(struct data_req *r, const char *path, bool is_fresh, struct origin_attr *ret_attr);
int data_origin_list(struct data_req *r, const char *path, origin_list_cb cb, void *ctx);
ssize_t data_origin_readlink(struct data_req *r, const char *path, char *buf, size_t cap);
ssize_t data_origin_xattr(struct data_req *r, const char *path, char *buf); /* r->op, r->name_own, r->size */
struct cred *data_caller(struct data_req *r); /* borrowed from r; NULL: as cred_of_caller() */
/* The file's later opens are made as this caller if it takes that. is_checked: it was just opened. */
void data_caller_bind(struct data_req *r, struct cache_file *f, bool is_checked, uint32_t mode);

/* data_meta.c */
void data_answer_node(struct data_req *r, struct node *n, const struct origin_attr *attr);
void data_answer_attr(struct data_req *r);
void data_lookup(struct data_req *r);
void data_getattr(struct data_req *r);
void data_readlink(struct data_req *r);
void data_statfs(struct data_req *r);
void data_xattr(struct data_req *r);
/* data_book.c */
int data_book_create(struct data_view *v);
/* At the start: the root as the origin has it; or as the book does, if the origin is away. */
int data_root_attr(struct data_view *v, struct origin_attr *ret);
/* An error that says nothing of the file: the origin itself does not answer. */
bool data_is_away(int err);
/* The origin is late now, and there is a book: ask that first. */
bool data_is_book_first(struct data_view *v);
void data_note(struct data_view *v, const char *path, const struct origin_attr *attr, const char *link);
void data_note_list(struct data_view *v, const char *path, uint64_t node_id);
/*
 * On a metadata thread; false: the request is not answered. path: of what is asked for, NULL: no memory. The first one before the
 * origin is asked: if it is late, and then the job is over (data_job_done() is not called: the origin is no less late for that);
 * the second one after the origin said err: if that is no answer.
 */
bool data_book_first(struct data_req *r, const char *path);
bool data_book_instead(struct data_req *r, const char *path, int err);
/* From the watch thread: a metadata thread asks the book. */
void data_book_park(struct data_req *r);
/* The entry's attributes, counted for the kernel. */
bool data_book_plus(struct data_req *r, struct data_dirent *e);

/* data_kept.c */
#define DATA_KEPT_NAME "user.hintfs.kept_bytes"
bool data_kept(struct data_req *r);

/* data_open.c */
/* nocto, immutable: an OPEN asks the origin nothing. */
static inline bool data_is_unchecked(const struct data_view *v)
{
	return v->h->opts.is_nocto || v->h->opts.is_immutable;
}
void data_open(struct data_req *r);
void data_handle_close(struct data_view *v, struct data_handle *h, uint32_t tid); /* out of view->handles already */
enum stale { STALE_NO, STALE_BELOW, STALE_IT };
/* Was an OPEN of this path (STALE_IT), or of one below it, answered ESTALE a moment ago? Then a LOOKUP must ask the origin afresh. */
enum stale data_stale_expected(struct data_view *v, const char *path);
/* The same, of the name that this LOOKUP is for; costs nothing as long as there is no such OPEN at all. */
bool data_stale_lookup(struct data_req *r);
/* When the newest OPEN came that such a note is of; 0: none. Who looks the name up for it must have begun later. */
uint64_t data_stale_newest_ns(struct data_view *v, const char *path);
void data_stale_failed(struct data_view *v, uint32_t tid, const char *path);
/* A fresh open by this LOOKUP, begun at fresh_ns, found this generation behind the node; takes the reference. */
void data_stale_keep(struct data_req *r, const char *path, uint64_t node_id, struct cache_file *f, uint64_t fresh_ns);
void data_stale_sweep(struct data_view *v, uint64_t now_ns, bool is_all);
/* data_noopen.c */
/* Are these files, so many of them smaller than NO_OPEN_SMALL_BYTES, such that OPENs are not worth their messages? */
bool data_no_open_is_due(uint32_t n_opened, uint32_t n_small);
/* May this kernel (uname -r) be told so? */
bool data_no_open_is_safe(const char *release);
/* An OPEN that needs no question to the origin: true: answered, with -ENOSYS. */
bool data_no_open(struct data_req *r);
const char *data_no_open_word(const struct data_view *v);
/* r->file of a node that nobody has opened: 0 or an errno. */
HFS_MUST_CHECK int data_unopened_file(struct data_req *r);
void data_recent_drop(struct data_view *v); /* all of them; no request is under way */
/* data_dir.c */
void data_opendir(struct data_req *r);
void data_readdir(struct data_req *r);
int data_list_one(void *list, const char *name, size_t len, uint64_t ino, unsigned type); /* of a struct data_list */
bool data_opendir_answer(struct data_req *r, struct dirsnap *s);
void data_dir_unref(struct data_view *v, struct data_dir_handle *d);
void data_readdir_known(struct data_req *r);
/* data_read.c */
void data_read(struct data_req *r);
/* From the last snapshot, when the origin is late: false if there is none. Answers through data_answer. */
bool data_answer_late(struct data_req *r);

#endif
