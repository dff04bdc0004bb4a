/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse.h - the control grammar: bytes in, lines and their meaning out.
 *
 * Callers: fs/control_ingest.c, tools/hintctl, tools/preload, tests/fuzz. Pure: no I/O, clock, thread, lock or log.
 *
 * Three steps, each usable alone:
 *   parse_split_*    cuts a stream of writes into lines; a line may straddle writes
 *   parse_line       one line (without its LF) -> what it means, or an errno, a column and a message
 *   parse_path       a path as written -> relative to the mount's root
 * Patterns (`{a,b}`, `{0..9}`, `A::B`) are found by parse_line and expanded by sched/brace.h.
 *
 * Invariants
 *   1. Bytes, not characters: no locale, no encoding but in JSON strings.
 *   2. Nothing is written on failure but *ret_err.
 *   3. A result points into the line or into the caller's scratch; it lives as long as these.
 *   4. At most one pass over a line: linear in its length.
 *
 * Thread safety: no shared state; one struct parse_split, one caller at a time.
 */
#ifndef SCHED_PARSE_H
#define SCHED_PARSE_H

#include "sched/sched.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARSE_LINE_MAX 65536u  /* bytes of a line without its LF */
#define PARSE_MESSAGE_MAX 192u /* bytes of a message, NUL included */

enum parse_kind {
	PARSE_NOTHING, /* empty line or comment */
	PARSE_ENTRY,   /* path, off_bytes, len_bytes */
	PARSE_MARK,    /* mark, value */
	PARSE_CANCEL,  /* @cancel */
	PARSE_PREFIX,  /* @prefix: path is the directory, empty: no prefix any more */
};

struct parse_line {
	enum parse_kind kind;
	/* PARSE_ENTRY, PARSE_PREFIX. Not NUL-terminated, contains no NUL. Into the line, or into scratch for a JSON
	 * string. */
	const char *path;
	size_t path_len;
	bool is_json;	  /* was a JSON string: never expanded */
	bool has_pattern; /* contains '{' or "::": expand unless a file has that literal name */
	bool is_dir;	  /* ends in '/': all regular files below */
	bool has_range;	  /* offset and length were written */
	uint64_t off_bytes;
	uint64_t len_bytes; /* 0: to the end */
	/* PARSE_MARK. A bare `@done N` gives SCHED_MARK_DONE, `@done batch N` SCHED_MARK_DONE_BATCH. The grammar calls
	 * both a batch: where a list has no @batch marks, every entry is a batch of its own, so the caller turns DONE
	 * into DONE_BATCH where it has. */
	enum sched_mark mark;
	uint64_t value;
};

struct parse_error {
	int err;	 /* negative errno */
	unsigned column; /* 1-based byte where it went wrong */
	char message[PARSE_MESSAGE_MAX];
};
void parse_say(struct parse_error *e, int err, size_t column, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Fill *e and be the errno: return parse_fail(e, -EINVAL, column, "..."); */
#define parse_fail(e, err, ...) (parse_say((e), (err), __VA_ARGS__), (err))

/*
 * Parse one line without its LF. scratch: PARSE_LINE_MAX bytes for a decoded JSON string (may be NULL: then JSON names
 * are refused with -EINVAL). -EINVAL, -EMSGSIZE.
 */
int parse_line(const char *line, size_t len, char *scratch, struct parse_line *ret_line, struct parse_error *ret_err)
	__attribute__((warn_unused_result));

/* ---- paths ---------------------------------------------------------------------------------- */

struct parse_roots {
	const char *mount; /* absolute path of the mount, no trailing slash, always stripped; NULL: none */
	size_t mount_len;
	const char *prefix; /* of @prefix, no trailing slash, stripped first; NULL: none */
	size_t prefix_len;
};

/*
 * Make a path relative to the root: prefix and mount path stripped, no leading "./", no "//", no "." component, no
 * trailing slash. The root itself is "" (length 0). *ret_path points into `path` if nothing inside had to change, else
 * into scratch (at least len bytes). -EXDEV: a ".." component or another absolute path. Column in *ret_err counts from
 * the start of the path.
 */
int parse_path(const struct parse_roots *roots, const char *path, size_t len, char *scratch, const char **ret_path,
	       size_t *ret_len, struct parse_error *ret_err) __attribute__((warn_unused_result));

/*
 * A path as a first column that parses back to the same bytes: as it is, with "./" in front, or as a JSON string.
 * As snprintf: returns the length needed, writes at most cap bytes, NUL included.
 */
size_t parse_path_quote(const char *path, size_t len, char *buf, size_t cap);

/* ---- lines out of writes -------------------------------------------------------------------------- */

struct parse_split {
	char *tail; /* owned: the unfinished line, grown up to PARSE_LINE_MAX */
	size_t tail_len, tail_cap;
	bool is_tail_out; /* the tail was handed out as a line; forgotten at the next call */
	uint64_t line_no; /* 1-based number of the line handed out last */
};

void parse_split_init(struct parse_split *s);
void parse_split_finish(struct parse_split *s);
/*
 * Next whole line of data[*pos .. len). 1: *ret_line, *ret_len (valid until the next call, or while data lives),
 * *ret_start: where in data the line began (0 if in an earlier write), *pos is past its LF. 0: no whole line left, the
 * rest was kept, *pos = len. -EMSGSIZE (line_no and *ret_start name the line), -ENOMEM.
 */
int parse_split_next(struct parse_split *s, const char *data, size_t len, size_t *pos, const char **ret_line,
		     size_t *ret_len, size_t *ret_start) __attribute__((warn_unused_result));
/* The last line, one without an LF. 1: there is one; it is handed out once. 0: none. */
int parse_split_last(struct parse_split *s, const char **ret_line, size_t *ret_len);
/* Forget the unfinished line. */
void parse_split_drop(struct parse_split *s);

/* ---- small words --------------------------------------------------------------------------------- */

/* Decimal digits only, whole string. -EINVAL, -ERANGE (does not fit). */
int parse_u64(const char *s, size_t len, uint64_t *ret) __attribute__((warn_unused_result));
/* Decimal with an optional K M G T (powers of 1024), optional trailing B or iB. -EINVAL, -ERANGE. */
int parse_size(const char *s, size_t len, uint64_t *ret) __attribute__((warn_unused_result));
/* The nearest of n words to s, or NULL if none is near enough to be meant. */
const char *parse_nearest(const char *s, size_t len, const char *const *words, size_t n);

#endif
