/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_lines.c - an order file as the daemon reads it: its lines, and the names that an entry stands for.
 *
 * Callers: hintctl_check.c, hintctl_warm.c. What a line means is said by sched/parse.h alone.
 */
#include "tools/hintctl_i.h"

#include "sched/brace.h"
#include "sched/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES (256u * 1024)

static int take_piece(const struct line_taker *t, struct parse_split *s, const char *buf, size_t len)
{
	size_t pos = 0, line_len, start;
	struct parse_error e;
	const char *line;
	int rc;

	while ((rc = parse_split_next(s, buf, len, &pos, &line, &line_len, &start)) == 1)
		t->line(t->ctx, s->line_no, line, line_len);
	if (rc == -EMSGSIZE) {
		parse_say(&e, rc, 1, "line longer than 65,536 bytes; nothing after it was looked at");
		t->bad(t->ctx, s->line_no, buf + start, len - start, &e);
	}
	return rc;
}

int lines_each(int fd, const struct line_taker *t)
{
	char *buf = malloc(PIECE_BYTES);
	struct parse_split s;
	const char *line;
	size_t len;
	ssize_t n = -1;
	int rc = buf ? 0 : -ENOMEM;

	parse_split_init(&s);
	while (rc == 0 && !stop_is_asked() && (n = read(fd, buf, PIECE_BYTES)) > 0)
		rc = take_piece(t, &s, buf, (size_t)n);
	if (rc == 0 && n < 0 && !stop_is_asked())
		rc = -errno;
	if (rc == 0 && parse_split_last(&s, &line, &len) == 1)
		t->line(t->ctx, s.line_no, line, len);
	parse_split_finish(&s);
	free(buf);
	return rc;
}

void line_print_error(uint64_t line_no, const char *line, size_t len, const struct parse_error *e)
{
	int shown = (int)(len < 160 ? len : 160);

	hfs_say(stderr, "line %llu col %u: %s [%s]\n", (unsigned long long)line_no, e->column, e->message, strerrorname_np(-e->err));
	fputs("    ", stderr);
	for (int i = 0; i < shown; i++) {
		unsigned char ch = (unsigned char)line[i];

		fputc(ch == '\t' ? ' ' : ch < 0x20 || ch == 0x7f ? '?' : ch, stderr);
	}
	fprintf(stderr, "%s\n    %*s^\n", len > 160 ? "..." : "", (int)(e->column > 160 ? 160 : e->column) - 1, "");
}

int name_resolve(const struct mount_row *m, const char *prefix, const char *raw, size_t raw_len, char *scratch, const char **ret_path,
		 size_t *ret_len, struct parse_error *e)
{
	const struct parse_roots roots = {.mount = m->mountpoint,
					  .mount_len = strlen(m->mountpoint),
					  .prefix = prefix,
					  .prefix_len = prefix ? strlen(prefix) : 0};

	return parse_path(&roots, raw, raw_len, scratch, ret_path, ret_len, e);
}

/* A file of that very name: no pattern then. */
static bool is_literal(const struct mount_row *m, const char *raw, size_t len)
{
	struct stat st;
	char *full;
	bool is;

	if (asprintf(&full, "%s/%.*s", m->mountpoint, (int)len, raw) < 0)
		return false;
	is = stat(full, &st) == 0 && S_ISREG(st.st_mode);
	free(full);
	return is;
}

int entry_each_name(const struct mount_row *m, const struct parse_line *p, name_taker *take, void *ctx, struct parse_error *e)
{
	struct brace *b;
	char *name;
	int rc = 0;

	if (!p->has_pattern || is_literal(m, p->path, p->path_len))
		return take(ctx, p, p->path, p->path_len, e);
	rc = brace_create(p->path, p->path_len, &b);
	if (rc < 0)
		return parse_fail(e, rc, 1, "the pattern has too many results");
	name = malloc(PARSE_LINE_MAX);
	if (!name)
		rc = parse_fail(e, -ENOMEM, 1, "out of memory");
	for (uint64_t i = 0; rc == 0 && i < brace_count(b) && !stop_is_asked(); i++) {
		size_t len = brace_result(b, i, name, PARSE_LINE_MAX);

		if (len > PARSE_LINE_MAX || len == 0)
			rc = parse_fail(e, len ? -EMSGSIZE : -EINVAL, 1, "a result of the pattern is empty or too long");
		else
			rc = take(ctx, p, name, len, e);
	}
	free(name);
	brace_destroy(b);
	return rc;
}
