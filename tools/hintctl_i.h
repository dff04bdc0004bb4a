/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_i.h - shared by the hintctl*.c files only.
 *
 *   hintctl.c         verbs, help, finding the mount that is meant
 *   hintctl_mounts.c  mounts from /proc/self/mountinfo, bounded reads of control files
 *   hintctl_status.c  list and status: tables and JSON
 *   hintctl_order.c   order: sending with a progress bar, the daemon's answer
 *   hintctl_epochs.c  order --epochs: a recorded list becomes K epochs
 *   hintctl_record.c  record: what is read, as such a list
 *   hintctl_check.c   order --check
 *   hintctl_lines.c   an order file: its lines, the names of an entry
 *   hintctl_umount.c  umount, and who keeps it busy
 *   hintctl_wait.c    a word when it takes long; asked to stop; who waits inside a mount
 *   hintctl_verify.c  verify: of a mount by its daemon, of a cache directory by itself
 *   hintctl_warm.c    warm: reads files until the disk tier has them
 *   hintctl_bar.c     their progress bar
 *
 * A mount may hang or its daemon be stopped, so nothing here touches a path below a mountpoint but in a child with a
 * deadline (bounded_read) or where the user asked for just that (order, record).
 */
#ifndef TOOLS_HINTCTL_I_H
#define TOOLS_HINTCTL_I_H

#include "cache/base/log.h" /* hfs_say */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXIT_FAILED 1
#define EXIT_USAGE 2
#define EXIT_BAD 3 /* verify: something was bad, and dropped */

struct mount_row {
	char *mountpoint, *source; /* owned */
	unsigned id, major, minor, user_id; /* user_id: who mounted */
};

struct mounts {
	struct mount_row *rows; /* owned */
	size_t n;
};

/* hintfs data mounts (is_control: mounts of control files) of this namespace, in the order of mountinfo. 0 or negative errno. */
int mounts_read(struct mounts *ret, bool is_control) __attribute__((warn_unused_result));
/* The same, of mounts of any file system. */
int mounts_read_all(struct mounts *ret) __attribute__((warn_unused_result));
void mounts_finish(struct mounts *m);
/* The mount meant by arg (NULL: the only one). NULL: a message was printed. */
const struct mount_row *mounts_find(const struct mounts *m, const char *arg);

/* Is arg the mountpoint of one of them? Says nothing. */
bool mounts_has(const struct mounts *m, const char *arg);

/* Path of a control file, malloc'd: $HINTFS_CTL/NAME or MOUNTPOINT/.ctl/NAME. */
char *ctl_path(const struct mount_row *m, const char *name);
/* Whole file, read by a child that is given up after timeout_ms. malloc'd and NUL-terminated, or NULL and *ret_err. */
char *bounded_read(const char *path, unsigned timeout_ms, int *ret_err);

/* The daemon's figures. */
struct pair {
	char *key, *value; /* into the text */
};
struct status {
	char *text;	    /* owned */
	struct pair *pairs; /* owned */
	size_t n;
};
int status_read(const struct mount_row *m, unsigned timeout_ms, struct status *ret) __attribute__((warn_unused_result));
void status_finish(struct status *s);
const char *status_text(const struct status *s, const char *key); /* "0": it has no such figure */
double status_number(const struct status *s, const char *key);
const char *status_explain(int err); /* of status_read() */

/* 1,234,567 and 1.2 GiB into a buffer of at least 32 bytes; returns buf. */
char *format_count(char *buf, uint64_t n);
char *format_bytes(char *buf, double bytes);

/* False: not within a few seconds, and a message was printed. */
bool daemon_answers(const struct mount_row *m);
/* Until watch_end(): whenever nothing was heard of watch_progress() for some seconds, one line says that `what` is waited for. */
void watch_begin(const struct mount_row *m, const char *what);
void watch_progress(void);
void watch_end(void);
struct parse_line;
struct parse_error;
/* Lines without their LF. One that is too long is bad, and after it nothing comes. */
struct line_taker {
	void (*line)(void *ctx, uint64_t line_no, const char *line, size_t len);
	void (*bad)(void *ctx, uint64_t line_no, const char *begin, size_t len, const struct parse_error *e);
	void *ctx;
};
int lines_each(int fd, const struct line_taker *t) __attribute__((warn_unused_result)); /* 0, -EMSGSIZE, or negative errno */
/* The text and a caret, on stderr. */
void line_print_error(uint64_t line_no, const char *line, size_t len, const struct parse_error *e);
/* A name as written, relative to the mount: parse_path() with its roots. prefix: of @prefix, or NULL. */
int name_resolve(const struct mount_row *m, const char *prefix, const char *raw, size_t raw_len, char *scratch, const char **ret_path,
		 size_t *ret_len, struct parse_error *e) __attribute__((warn_unused_result));
/* One name as written; an error ends the entry. */
typedef int name_taker(void *ctx, const struct parse_line *p, const char *raw, size_t len, struct parse_error *e);
/* Of an entry: what its pattern stands for, or the name itself. 0, or negative errno and *e. */
int entry_each_name(const struct mount_row *m, const struct parse_line *p, name_taker *take, void *ctx, struct parse_error *e)
	__attribute__((warn_unused_result));
/* From here SIGINT and SIGTERM only ask for an end. is_once: the second one kills; and SIGHUP asks, too. */
void stop_catch(bool is_once);
bool stop_is_asked(void);
/* A thread of the process waits in a call with a path into the mount. */
bool find_waiter(const struct mount_row *m, const char *pid, char target[2 * PATH_MAX]);
/* All is drawn on stderr, if that is a terminal. */
struct bar {
	double begun_s, drawn_s;
	uint64_t first; /* done when it began */
	bool is_tty, has_rate;
};
void bar_begin(struct bar *b, uint64_t done, bool has_rate);
/* total 0 and no rate: nobody knows how much there will be. */
void bar_draw(struct bar *b, uint64_t done, uint64_t total, bool is_end);
double bar_rate(const struct bar *b, uint64_t done); /* a second */
double bar_elapsed_s(const struct bar *b);
bool bar_is_due(struct bar *b, double every_s, bool is_end); /* for those who draw themselves */

int verb_list(const struct mounts *m);
int verb_status(const struct mount_row *m, bool is_json);
/* epochs 0: the file as it is. */
int verb_order(const struct mount_row *m, const char *file, const char *stream, bool is_append, uint64_t epochs);
int verb_record(const struct mount_row *m, const char *file, bool is_one_epoch);

/* The whole of fd as a list of `epochs` epochs, malloc'd. 0; -EINVAL: a message was printed; or negative errno. */
int epochs_make(int fd, const char *file, uint64_t epochs, char **ret_text, size_t *ret_len)
	__attribute__((warn_unused_result));
int verb_check(const struct mount_row *m, const char *file);
/* arg: a mountpoint, a cache directory, or NULL. */
int verb_verify(const struct mounts *m, const char *arg);
/* order, n_paths 0: all of the mount. */
int verb_warm(const struct mount_row *m, const char *order, const char *const *paths, int n_paths);
int verb_umount(const struct mount_row *m, bool is_lazy);

#endif
