/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_i.h - shared by the fs/control*.c files only.
 *
 *   control.c          files, requests, names of the root; the thread that polls `record`
 *   control_streams.c  the table of streams; reading a pending list
 *   control_ingest.c   writes to a stream: lines, marks, errors, first and last lines
 *   control_entry.c    one entry line: names, patterns, directories, checks
 *   control_origin.c   questions to the origin, with a deadline or until the writer dies
 *   control_errors.c   the ring of rejected lines
 *   control_text.c     README, status, metrics
 *   control_wait.c     `wait` and `record`
 */
#ifndef FS_CONTROL_I_H
#define FS_CONTROL_I_H

#include "cache/base/err.h"
#include "cache/base/sync.h"
#include "fs/control.h"
#include "fs/engine.h"
#include "fs/hintfs.h"
#include "sched/parse.h"

#include <stdatomic.h>
#include <stdio.h>

/* ---- streams ------------------------------------------------------------------------------------------------ */

struct control_stream {
	char name[CONTROL_NAME_MAX + 1]; /* const */
	uint32_t engine_id;		 /* const */
	uint32_t serial;		 /* const */
	uint32_t slot;			 /* const */
	unsigned refs;			 /* c->lock */
	_Atomic bool is_removed;
	_Atomic bool has_batches; /* its list holds @batch marks */
	_Atomic uint64_t accepted_lines, rejected_lines, unchecked_entries;
};

/* ---- errors --------------------------------------------------------------------------------------------------- */

struct control_errors {
	struct hfs_mutex lock;		/* LEAF */
	char *text[CONTROL_ERRORS_MAX]; /* owned */
	unsigned next;
	uint64_t total;
};

struct control_error {
	pid_t tid;
	const char *stream; /* or the file's name */
	uint64_t line_no;   /* 0: none */
	const char *line;
	size_t line_len;
	const struct parse_error *e;
};

void control_errors_init(struct control_errors *r);
void control_errors_finish(struct control_errors *r);
void control_errors_add(struct control_errors *r, const struct control_error *what);
/* What was written to a file that takes a word, without the blanks and newlines behind it: its length. */
size_t control_word_len(const char *data, size_t len);
/* Note that such a word was refused, and why. Returns err. */
int control_word_refused(struct control_errors *r, pid_t tid, const char *file, const char *word, size_t len, int err, const char *why);
void control_errors_clear(struct control_errors *r);
void control_errors_print(struct control_errors *r, FILE *out);

/* What a request under way waits for; c->lock. */
enum control_job {
	JOB_NONE,   /* its thread is still in control_*() */
	JOB_INGEST, /* a metadata thread */
	JOB_WAIT,   /* the engine */
	JOB_RECORD, /* the poller's next look */
	JOB_TRYING, /* the poller is looking */
};

/* ---- the whole -------------------------------------------------------------------------------------------------- */

struct control {
	struct hintfs *h; /* const */
	char *mount;	  /* owned, const */
	struct control_errors errors;
	_Atomic bool is_stopping;
	_Atomic uint64_t lines, rejected, unchecked, interrupted;

	struct hfs_mutex lock; /* CONTROL_TABLE; guards all below */
	struct hfs_cond cond;  /* a claim was given up, an origin call came back, a request ended, stopping */
	struct control_stream *streams[SCHED_STREAMS_MAX];
	uint32_t n_streams, last_serial;
	uint32_t n_files[2]; /* [1]: of those that only report */
	struct control_file *files;
	struct control_req *reqs; /* under way */
	uint64_t last_req_id;
	uint32_t n_jobs; /* handed to metadata threads, not yet back */
	pthread_t poller;
	bool has_poller;
};

/* ---- open files ----------------------------------------------------------------------------------------------------
 */

#define RUN_MAX 1024u		    /* entries appended to the engine in one go */
#define PUTS_MAX (2 * RUN_MAX + 64) /* a line gives back at most two names, the checked ones of a pattern 16 */
#define CACHE_SLOTS 256u	    /* names remembered by a handle */

struct cached_name {
	char *path; /* owned; NULL: free slot */
	uint32_t len, hash;
	uint32_t name; /* a reference of the engine's */
	bool has_size;
	uint64_t size_bytes;
};

struct ingest {
	struct parse_split split;
	struct sched_entry run[RUN_MAX];
	uint32_t run_start[RUN_MAX]; /* where in the write its line began */
	uint64_t run_line[RUN_MAX];
	uint32_t puts[PUTS_MAX]; /* names to give back after the append */
	uint32_t n_run, n_puts;
	struct cached_name names[CACHE_SLOTS];
	struct cached_name *last; /* of the line before, while it is cached */
	char *last_raw;		  /* owned: its path as written */
	size_t last_raw_len, last_raw_cap;
	char *scratch[3]; /* owned, made on demand: JSON, path, expansion */
	char *prefix;	  /* owned */
	size_t prefix_len;
	uint32_t n_checked;
	bool is_unchecked; /* the origin did not answer in time: no more questions */
	int poison;	   /* errno of a bad line: every later write */
	bool has_tail_of;  /* tail_tid wrote the unfinished line */
	pid_t tail_tid;
};

struct control_file {
	struct control_file *next, **at; /* in c->files; c->lock */
	struct control *c;
	enum control_kind kind;
	bool is_reader, is_writer, is_nonblock;
	_Atomic bool is_writer_noted; /* engine_guest_note() */
	unsigned refs;		       /* c->lock */
	bool is_busy;		       /* c->lock: somebody is in its ingest state */
	struct control_stream *stream; /* counted; ORDER, STREAM */
	struct engine_record *record;  /* owned; RECORD */
	/* owned by whoever claimed the file */
	bool is_trunc, is_accepted; /* O_TRUNC; a line of a list was accepted since */
	bool has_cursor;	    /* @seek or @done came since: then closing is no cancel */
	struct ingest *in;	    /* owned, made at the first write */
	/* reading; owned by whoever claimed the file */
	char *text; /* owned: snapshot of a text file, or the part of the pending list that was made last */
	size_t text_len;
	uint64_t text_off;		    /* where in a list that part begins */
	struct sched_list list_begin, list; /* as a reader at 0 found it; behind the part */
};

/* control.c */
void control_file_get(struct control_file *f);
void control_file_put(struct control_file *f);
bool control_file_try_claim(struct control_file *f);
void control_file_claim(struct control_file *f); /* waits: never on a session's thread */
void control_file_unclaim(struct control_file *f);
/* Unlink and call done. The caller owns the request: nobody else may end it. */
void control_req_end(struct control *c, struct control_req *r, ssize_t result, const char *data);
/* Run fn(r) on a metadata thread. On failure the request was ended. */
void control_req_dispatch(struct control_req *r, void (*fn)(void *req));
struct control_req *control_req_find_locked(struct control *c, uint64_t id);

/* control_streams.c */
int control_stream_get(struct control *c, const char *name, bool make, struct control_stream **ret);
struct control_stream *control_stream_of(struct control *c, const struct control_node *n); /* +1, NULL */
void control_stream_put(struct control *c, struct control_stream *s);
ssize_t control_stream_read(struct control_file *f, uint64_t off, size_t size, const char **ret_data);

/* control_ingest.c */
void control_ingest_write(struct control_file *f, const char *data, size_t len, struct control_req *r);
void control_ingest_flush(struct control_file *f, struct control_req *r);
void control_ingest_release(
	struct control_file *f); /* the last part of a file's life; may hand over to a metadata thread */
void control_ingest_destroy(struct control_file *f);

/* One line under way, for control_entry.c */
struct ingest_line {
	struct control_file *f;
	struct control_req *r; /* NULL: the last line, at release */
	const char *text;
	size_t len;
	size_t start;
	struct parse_error e;
	bool is_run_error; /* e is about an entry that was collected before: of the line below */
	size_t run_start;
	uint64_t run_line_no;
};

void ingest_say(struct ingest_line *l, int err, size_t column, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Say why, and be the errno: return ingest_fail(l, -EINVAL, column, "..."); */
#define ingest_fail(l, err, ...) (ingest_say((l), (err), __VA_ARGS__), (err))
char *ingest_scratch(struct ingest *in, unsigned which);
/* The line is good: the list it starts is begun. */
void ingest_accept(struct ingest_line *l);
/* Append what is collected. On failure l says which line's entry did not fit (is_run_error). */
int ingest_run_flush(struct ingest_line *l);
int ingest_run_push(struct ingest_line *l, uint32_t name, uint64_t off_bytes, uint64_t len_bytes);
void ingest_put_later(struct ingest_line *l, uint32_t name);

/* control_entry.c */
int ingest_entry(struct ingest_line *l, const struct parse_line *p);
void ingest_names_drop(struct control_file *f);
/* True if the bytes may hold a line that needs the origin. */
bool ingest_needs_origin(const struct ingest *in, const char *data, size_t len);

/* control_origin.c */
enum origin_question { ORIGIN_REALPATH, ORIGIN_LIST };

struct origin_name {
	const char *name; /* into the answer */
	bool is_dir;
};

struct origin_answer {
	int err;
	char *path; /* REALPATH: canonical; owned */
	struct origin_attr attr;
	struct origin_name *names; /* LIST: sorted as their full paths sort; owned */
	size_t n_names;
	char *arena; /* owned */
	size_t arena_bytes;
};

/*
 * Ask, on a metadata thread, and wait at most timeout_ms (0: as long as the caller lives). -ETIMEDOUT: no answer in
 * time. -EINTR: the caller is dying. -ESHUTDOWN. Else 0 and the answer, whose err may be set. Never on a session's
 * thread.
 */
int control_origin_ask(struct control *c, struct control_req *r, enum origin_question q, const char *path, size_t len,
		       unsigned timeout_ms, struct origin_answer *ret);
void control_origin_answer_finish(struct origin_answer *a);
/* SIGKILL is pending for the thread, or it is gone. */
bool control_is_dying(pid_t tid);
/* tgid and name of a thread, as far as /proc tells. */
void control_who(pid_t tid, pid_t *ret_tgid, char comm[32]);
/* The thread is on its way out because a signal killed it. */
bool control_was_killed(pid_t tid);

/* control_text.c */
void control_print_readme(struct control *c, FILE *out);
void control_print_status(struct control *c, FILE *out);
void control_print_metrics(struct control *c, FILE *out);

/* control_verify.c */
void control_print_verify(struct control *c, FILE *out);
ssize_t control_write_verify(struct control_file *f, const char *data, size_t len, pid_t tid);

/* control_wait.c */
void control_wait_write(struct control_file *f, const char *data, size_t len, struct control_req *r);
void control_wait_free(void *wait); /* what a request kept for the engine; NULL is fine */
/* 0: nothing new. */
size_t control_record_read(struct control_file *f, char *buf, size_t cap);

#endif
