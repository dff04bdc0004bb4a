/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/order_parse.c - control-file text to an order. The grammar itself is sched/parse.h and sched/brace.h;
 * here only what needs a file system: literal names before patterns, and directories.
 *
 * Callers: loader.c, at open, before any thread exists.
 */
#include "tools/preload/order.h"

#include "sched/brace.h"
#include "sched/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct parsing {
	struct order *order;
	const struct order_source *src;
	char mount_real[4096];	 /* "" if unknown */
	char prefix[ORDER_PATH_MAX + 1];
	char scratch[PARSE_LINE_MAX];	  /* JSON strings */
	char path_scratch[PARSE_LINE_MAX]; /* cleaned paths */
	struct parse_error err;
};

/* Relative to the mount: its real path is stripped, or the path that the caller gave. */
static int path_clean(struct parsing *p, const char *path, size_t len, const char **ret_path, size_t *ret_len)
{
	const char *mounts[2] = { p->mount_real, p->src->mount };
	int i, err = -EXDEV;

	for (i = 0; i < 2 && err == -EXDEV; i++) {
		struct parse_roots roots = { .mount = mounts[i] && *mounts[i] == '/' ? mounts[i] : NULL,
					     .prefix = *p->prefix ? p->prefix : NULL, .prefix_len = strlen(p->prefix) };

		roots.mount_len = roots.mount ? strlen(roots.mount) : 0;
		while (roots.mount_len > 1 && roots.mount[roots.mount_len - 1] == '/')
			roots.mount_len--;
		err = parse_path(&roots, path, len, p->path_scratch, ret_path, ret_len, &p->err);
	}
	return err;
}

/* One path without patterns: a file's range, or a directory. */
static int path_add(struct parsing *p, const char *path, size_t len, const struct parse_line *line)
{
	bool is_dir = len && path[len - 1] == '/';
	const char *clean;
	size_t clean_len;
	char dir[ORDER_PATH_MAX + 1];
	int64_t id;
	int err = path_clean(p, path, len, &clean, &clean_len);

	if (err)
		return err;
	if (is_dir) {
		if (clean_len > ORDER_PATH_MAX)
			return -ENAMETOOLONG;
		memcpy(dir, clean, clean_len);
		dir[clean_len] = '\0';
		return order_directory_add(p->order, p->src->root_fd, dir);
	}
	id = order_path(p->order, clean, clean_len);
	if (id < 0)
		return (int)id;
	return order_entry_add(p->order, (uint32_t)id, line->off_bytes, line->len_bytes);
}

static bool is_literal(struct parsing *p, const struct parse_line *line)
{
	const char *clean;
	size_t len;
	char name[ORDER_PATH_MAX + 1];
	struct stat st;

	if (path_clean(p, line->path, line->path_len, &clean, &len) < 0 || !len || len > ORDER_PATH_MAX)
		return false;
	memcpy(name, clean, len);
	name[len] = '\0';
	return fstatat(p->src->root_fd, name, &st, 0) == 0;
}

static int pattern_add(struct parsing *p, const struct parse_line *line)
{
	struct brace *b;
	char name[ORDER_PATH_MAX + 2];
	uint64_t i;
	int err = brace_create(line->path, line->path_len, &b);

	if (err)
		return err;
	for (i = 0; !err && i < brace_count(b); i++) {
		size_t len = brace_result(b, i, name, sizeof(name));

		if (len)
			err = len > sizeof(name) ? -ENAMETOOLONG : path_add(p, name, len, line);
	}
	brace_destroy(b);
	return err;
}

static int mark_add(struct order *o, const struct parse_line *line)
{
	char note[sizeof(o->notes[0].text)];

	switch (line->mark) {
	case SCHED_MARK_BATCH_NEXT:
		return order_batch(o, NULL);
	case SCHED_MARK_BATCH:
		return order_batch(o, &line->value);
	case SCHED_MARK_EPOCH_NEXT:
		return order_epoch(o, NULL);
	case SCHED_MARK_EPOCH:
		return order_epoch(o, &line->value);
	case SCHED_MARK_REPEAT:
		return order_repeat(o, line->value);
	case SCHED_MARK_SEEK:
		order_seek(o, line->value);
		return 0;
	case SCHED_MARK_DONE:
		if (o->n_groups)
			order_done_batch(o, line->value);
		else
			order_seek(o, line->value == UINT64_MAX ? line->value : line->value + 1);
		return 0;
	case SCHED_MARK_DONE_BATCH:
		order_done_batch(o, line->value);
		return 0;
	case SCHED_MARK_ANY:
		return order_note(o, "@any\n");
	case SCHED_MARK_ORDERED:
		return order_note(o, "@ordered\n");
	case SCHED_MARK_WINDOW_BYTES:
		snprintf(note, sizeof(note), "@window %llu\n", (unsigned long long)line->value);
		return order_note(o, note);
	case SCHED_MARK_WINDOW_BATCHES:
		snprintf(note, sizeof(note), "@window %llu batches\n", (unsigned long long)line->value);
		return order_note(o, note);
	}
	return -EINVAL;
}

static int line_add(struct parsing *p, const char *text, size_t len)
{
	struct parse_line line;
	int err = parse_line(text, len, p->scratch, &line, &p->err);

	if (err)
		return err;
	switch (line.kind) {
	case PARSE_NOTHING:
		return 0;
	case PARSE_ENTRY:
		if (line.has_pattern && !line.is_json && !is_literal(p, &line))
			return pattern_add(p, &line);
		return path_add(p, line.path, line.path_len, &line);
	case PARSE_MARK:
		return mark_add(p->order, &line);
	case PARSE_CANCEL:
		order_clear(p->order);
		return 0;
	case PARSE_PREFIX:
		if (line.path_len > ORDER_PATH_MAX)
			return -ENAMETOOLONG;
		memcpy(p->prefix, line.path, line.path_len);
		while (line.path_len > 1 && p->prefix[line.path_len - 1] == '/')
			line.path_len--;
		p->prefix[line.path_len] = '\0';
		return 0;
	}
	return -EINVAL;
}

/* All lines of the text, a last one without LF included. */
static int text_add(struct parsing *p, struct parse_split *s, const char *text, size_t bytes)
{
	size_t pos = 0, len, start;
	const char *line;
	int r, err;

	while ((r = parse_split_next(s, text, bytes, &pos, &line, &len, &start)) == 1) {
		err = line_add(p, line, len);
		if (err)
			return err;
	}
	if (r < 0)
		return r;
	if (parse_split_last(s, &line, &len) == 1)
		return line_add(p, line, len);
	return 0;
}

int order_parse(struct order *o, const struct order_source *src, const char *text, size_t bytes, char *error,
		size_t error_size)
{
	struct parsing *p = calloc(1, sizeof(*p));
	struct parse_split split;
	int err;

	if (!p) {
		snprintf(error, error_size, "out of memory");
		return -ENOMEM;
	}
	p->order = o;
	p->src = src;
	if (!src->mount || !realpath(src->mount, p->mount_real))
		p->mount_real[0] = '\0';
	parse_split_init(&split);
	err = text_add(p, &split, text, bytes);
	if (err)
		snprintf(error, error_size, "line %llu:%u: %s", (unsigned long long)split.line_no,
			 p->err.err ? p->err.column : 1, p->err.err ? p->err.message : strerrordesc_np(-err));
	parse_split_finish(&split);
	free(p);
	if (!err)
		order_seal(o);
	return err;
}
