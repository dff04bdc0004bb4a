/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/test_parse.c - the control grammar (sched/parse.h): tables of lines, paths and writes.
 */
#include "sched/parse.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static char scratch[PARSE_LINE_MAX];

/* ---- lines that are accepted ------------------------------------------------------------------------- */

struct good_line {
	const char *line;
	struct parse_line want;
};

#define ENTRY(p) .kind = PARSE_ENTRY, .path = p, .path_len = sizeof(p) - 1
#define MARK(m, v) .kind = PARSE_MARK, .mark = SCHED_MARK_##m, .value = v

static const struct good_line good_lines[] = {
	{"", {.kind = PARSE_NOTHING}},
	{"# anything\r", {.kind = PARSE_NOTHING}},
	{"a.tar", {ENTRY("a.tar")}},
	{"with space .tar ", {ENTRY("with space .tar ")}},
	{"mid\rdle", {ENTRY("mid\rdle")}},
	{"train.bin\t1048576\t8192", {ENTRY("train.bin"), .has_range = true, .off_bytes = 1048576, .len_bytes = 8192}},
	{"train.bin\t7\t-", {ENTRY("train.bin"), .has_range = true, .off_bytes = 7}},
	{"train.bin\t0\t0", {ENTRY("train.bin"), .has_range = true}},
	{"f\t9223372036854775807\t1", {ENTRY("f"), .has_range = true, .off_bytes = INT64_MAX, .len_bytes = 1}},
	{"dir/", {ENTRY("dir/"), .is_dir = true}},
	{"/", {ENTRY("/"), .is_dir = true}},
	{"s-{0..9}.tar", {ENTRY("s-{0..9}.tar"), .has_pattern = true}},
	{"a::b", {ENTRY("a::b"), .has_pattern = true}},
	{"./#x", {ENTRY("./#x")}},
	{"-x", {ENTRY("-x")}},
	{"\xff\xfe", {ENTRY("\xff\xfe")}},
	{"\"a\\tb\\n.tar\"", {ENTRY("a\tb\n.tar"), .is_json = true}},
	{"\"{x,y}\"", {ENTRY("{x,y}"), .is_json = true}},
	{"\"\\u00e9\\ud83d\\ude00\\/\\\\\\\"\"", {ENTRY("\xc3\xa9\xf0\x9f\x98\x80/\\\""), .is_json = true}},
	{"\"\\udcff\\udc80\"", {ENTRY("\xff\x80"), .is_json = true}},
	{"\"\xff\"\t1\t2", {ENTRY("\xff"), .is_json = true, .has_range = true, .off_bytes = 1, .len_bytes = 2}},
	{"@batch", {MARK(BATCH_NEXT, 0)}},
	{"@batch 17", {MARK(BATCH, 17)}},
	{"@batch\t17 ", {MARK(BATCH, 17)}},
	{"@epoch", {MARK(EPOCH_NEXT, 0)}},
	{"@epoch 3", {MARK(EPOCH, 3)}},
	{"@repeat 2", {MARK(REPEAT, 2)}},
	{"@any", {MARK(ANY, 0)}},
	{"@ordered", {MARK(ORDERED, 0)}},
	{"@window 8G", {MARK(WINDOW_BYTES, UINT64_C(8) << 30)}},
	{"@window 512", {MARK(WINDOW_BYTES, 512)}},
	{"@window 4 batches", {MARK(WINDOW_BATCHES, 4)}},
	{"@seek 0", {MARK(SEEK, 0)}},
	{"@done 17", {MARK(DONE, 17)}},
	{"@done batch 18446744073709551615", {MARK(DONE_BATCH, UINT64_MAX)}},
	{"@cancel", {.kind = PARSE_CANCEL}},
	{"@prefix /data/image net/", {.kind = PARSE_PREFIX, .path = "/data/image net", .path_len = 15}},
	{"@prefix", {.kind = PARSE_PREFIX, .path = "", .path_len = 0}},
};

static void check_good(const struct good_line *g)
{
	struct parse_line l;
	struct parse_error e = {0};
	const struct parse_line *w = &g->want;

	cr_assert_eq(parse_line(g->line, strlen(g->line), scratch, &l, &e), 0, "%s: %s", g->line, e.message);
	cr_assert_eq(l.kind, w->kind, "%s", g->line);
	if (w->kind == PARSE_ENTRY || w->kind == PARSE_PREFIX) {
		cr_assert_eq(l.path_len, w->path_len, "%s: %zu", g->line, l.path_len);
		cr_assert_eq(memcmp(l.path, w->path, w->path_len), 0, "%s", g->line);
	}
	cr_assert_eq(l.is_json, w->is_json, "%s", g->line);
	cr_assert_eq(l.has_pattern, w->has_pattern, "%s", g->line);
	cr_assert_eq(l.is_dir, w->is_dir, "%s", g->line);
	cr_assert_eq(l.has_range, w->has_range, "%s", g->line);
	cr_assert_eq(l.off_bytes, w->off_bytes, "%s", g->line);
	cr_assert_eq(l.len_bytes, w->len_bytes, "%s", g->line);
	if (w->kind == PARSE_MARK) {
		cr_assert_eq(l.mark, w->mark, "%s", g->line);
		cr_assert_eq(l.value, w->value, "%s", g->line);
	}
}

Test(parse, accepts_every_form)
{
	for (size_t i = 0; i < sizeof(good_lines) / sizeof(good_lines[0]); i++)
		check_good(&good_lines[i]);
}

/* ---- lines that are refused --------------------------------------------------------------------------- */

static const struct {
	const char *line;
	unsigned column;
	const char *message; /* a part of it */
} bad_lines[] = {
	{"@bach 17", 1, "did you mean @batch?"},
	{"@cansel", 1, "did you mean @cancel?"},
	{"@rep 3", 1, "did you mean @repeat?"},
	{"@zzzzzz", 1, "./@"},
	{"@", 1, "word right after"},
	{"@ batch", 1, "word right after"},
	{"@batch x", 8, "usage: @batch [N]"},
	{"@batch 1 2", 8, "usage"},
	{"@batch -1", 8, "usage"},
	{"@batch 18446744073709551616", 8, "usage"},
	{"@repeat", 8, "usage: @repeat K"},
	{"@repeat 0", 9, "usage"},
	{"@any thing", 6, "usage: @any"},
	{"@window", 8, "usage: @window SIZE"},
	{"@window 0", 9, "usage"},
	{"@window 8X", 9, "usage"},
	{"@window 18446744073709551615K", 9, "usage"},
	{"@window 4 bananas", 11, "usage"},
	{"@done", 6, "usage"},
	{"@done batch", 7, "usage"},
	{"@done batch x", 13, "usage"},
	{"@cancel now", 9, "usage"},
	{"file\r", 5, "CR"},
	{"file\t1\t2\r", 9, "CR"},
	{"file\t1", 7, "2 columns"},
	{"file\t1\t2\t3", 9, "more than 3 columns"},
	{"file\tx\t2", 6, "bad offset"},
	{"file\t\t2", 6, "bad offset"},
	{"file\t+1\t2", 6, "bad offset"},
	{"file\t 1\t2", 6, "bad offset"},
	{"file\t9223372036854775808\t2", 6, "bad offset"},
	{"file\t1\tx", 8, "bad length"},
	{"file\t1\t", 8, "bad length"},
	{"file\t1\t-1", 8, "bad length"},
	{"\t1\t2", 1, "empty"},
	{"dir/\t0\t1", 6, "directory"},
	{"s.tar\tmember=a.jpg", 7, "member= not yet supported"},
	{"s.tar\tkey=a", 7, "key= not yet supported"},
	{"\"abc", 5, "closing quote"},
	{"\"abc\\", 5, "escape"},
	{"\"a\\q\"", 3, "escape"},
	{"\"a\\u12\"", 3, "\\u"},
	{"\"a\\u0000\"", 3, "\\u"},
	{"\"a\\ud800x\"", 3, "\\u"},
	{"\"a\\udc00\"", 3, "\\u"},
	{"\"a\tb\"", 3, "control character"},
	{"\"a\"b", 4, "expected TAB"},
	{"\"\"", 1, "empty"},
};

Test(parse, refuses_with_column_and_reason)
{
	for (size_t i = 0; i < sizeof(bad_lines) / sizeof(bad_lines[0]); i++) {
		const char *line = bad_lines[i].line;
		struct parse_line l = {.path = "untouched"};
		struct parse_error e = {0};

		cr_assert_eq(parse_line(line, strlen(line), scratch, &l, &e), -EINVAL, "%s", line);
		cr_assert_eq(e.err, -EINVAL);
		cr_assert_eq(e.column, bad_lines[i].column, "%s: column %u", line, e.column);
		cr_assert(strstr(e.message, bad_lines[i].message), "%s: %s", line, e.message);
		cr_assert_str_eq(l.path, "untouched");
	}
}

Test(parse, nul_and_length)
{
	struct parse_line l;
	struct parse_error e;
	char *line = malloc(PARSE_LINE_MAX + 1);

	cr_assert_eq(parse_line("a\0b", 3, scratch, &l, &e), -EINVAL);
	cr_assert_eq(e.column, 2);
	memset(line, 'x', PARSE_LINE_MAX + 1);
	cr_assert_eq(parse_line(line, PARSE_LINE_MAX, scratch, &l, &e), 0);
	cr_assert_eq(parse_line(line, PARSE_LINE_MAX + 1, scratch, &l, &e), -EMSGSIZE);
	cr_assert_eq(parse_line("\"a\"", 3, NULL, &l, &e), -EINVAL);
	free(line);
}

/* ---- paths ---------------------------------------------------------------------------------------------- */

static const struct {
	const char *mount, *prefix, *in, *out; /* out NULL: -EXDEV */
} paths[] = {
	{"/mnt/d", NULL, "a/b", "a/b"},
	{"/mnt/d", NULL, "./a//b/./c", "a/b/c"},
	{"/mnt/d", NULL, "a/b/", "a/b"},
	{"/mnt/d", NULL, ".hidden/x", ".hidden/x"},
	{"/mnt/d", NULL, "..x/.../y", "..x/.../y"},
	{"/mnt/d", NULL, "/mnt/d/a", "a"},
	{"/mnt/d", NULL, "/mnt/d", ""},
	{"/mnt/d", NULL, "/mnt/d//./", ""},
	{"/mnt/d", NULL, "./#x", "#x"},
	{"/mnt/d", NULL, "/mnt/data", NULL},
	{"/mnt/d", NULL, "/etc/passwd", NULL},
	{"/mnt/d", NULL, "..", NULL},
	{"/mnt/d", NULL, "a/../b", NULL},
	{"/mnt/d", NULL, "a/..", NULL},
	{"/mnt/d", NULL, "/mnt/d/../x", NULL},
	{NULL, NULL, "/a", NULL},
	{"/mnt/d", "/data/in", "/data/in/x", "x"},
	{"/mnt/d", "/data/in", "/data/input", NULL},
	{"/mnt/d", "/data/in", "/mnt/d/x", "x"},
	{"/mnt/d", "data", "data/x", "x"},
	{"/mnt/d", "data", "other/x", "other/x"},
	{"/mnt/d", "/", "/x/y", "x/y"},
	{"/mnt/d", "/data", "/data/../x", NULL},
};

Test(parse, paths_become_relative)
{
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct parse_roots roots = {
			.mount = paths[i].mount,
			.mount_len = paths[i].mount ? strlen(paths[i].mount) : 0,
			.prefix = paths[i].prefix,
			.prefix_len = paths[i].prefix ? strlen(paths[i].prefix) : 0,
		};
		struct parse_error e = {0};
		const char *out;
		size_t len;
		int rc = parse_path(&roots, paths[i].in, strlen(paths[i].in), scratch, &out, &len, &e);

		cr_assert_eq(rc, paths[i].out ? 0 : -EXDEV, "%s: %d", paths[i].in, rc);
		if (rc == 0) {
			cr_assert_eq(len, strlen(paths[i].out), "%s", paths[i].in);
			cr_assert_eq(memcmp(out, paths[i].out, len), 0, "%s", paths[i].in);
		} else {
			cr_assert_gt(strlen(e.message), 10);
		}
	}
}

Test(parse, quoted_names_parse_back)
{
	static const char *const names[] = {"plain",	    "#x",    "@x",   "\"x",  "a\tb",	 "a\nb",
					    "\x01\x1f\\\"", "{a,b}", "a::b", "cr\r", "\xff\x80", "x y"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct parse_roots roots = {0};
		struct parse_line l;
		struct parse_error e;
		char quoted[256], tight[4];
		const char *out;
		size_t n = parse_path_quote(names[i], strlen(names[i]), quoted, sizeof(quoted)), len;

		cr_assert_eq(n, strlen(quoted));
		cr_assert_eq(parse_path_quote(names[i], strlen(names[i]), tight, sizeof(tight)), n);
		cr_assert_eq(strncmp(tight, quoted, sizeof(tight) - 1), 0);
		cr_assert_eq(parse_line(quoted, n, scratch, &l, &e), 0, "%s", quoted);
		cr_assert(!l.has_pattern);
		static char scratch2[256];
		cr_assert_eq(parse_path(&roots, l.path, l.path_len, scratch2, &out, &len, &e), 0);
		cr_assert_eq(len, strlen(names[i]), "%s", quoted);
		cr_assert_eq(memcmp(out, names[i], len), 0, "%s", quoted);
	}
}

/* ---- lines out of writes ------------------------------------------------------------------------------------ */

/* Cut the text into pieces of `piece` bytes and glue the lines together again with '|'. */
static void cut(const char *text, size_t piece, char *out)
{
	struct parse_split s;
	const char *line;
	size_t len, start, total = strlen(text);

	parse_split_init(&s);
	*out = '\0';
	for (size_t at = 0; at < total; at += piece) {
		size_t n = total - at < piece ? total - at : piece, pos = 0;
		int rc;

		while ((rc = parse_split_next(&s, text + at, n, &pos, &line, &len, &start)) == 1) {
			strncat(out, line, len);
			strcat(out, "|");
			cr_assert_leq(pos, n);
		}
		cr_assert_eq(rc, 0);
		cr_assert_eq(pos, n);
	}
	if (parse_split_last(&s, &line, &len) == 1) {
		strncat(out, line, len);
		strcat(out, "!");
	}
	cr_assert_eq(parse_split_last(&s, &line, &len), 0);
	parse_split_finish(&s);
}

Test(parse, lines_straddle_writes)
{
	char out[256];

	for (size_t piece = 1; piece < 20; piece++) {
		cut("first\n\nthird line\nlast", piece, out);
		cr_assert_str_eq(out, "first||third line|last!", "piece %zu: %s", piece, out);
		cut("a\nb\n", piece, out);
		cr_assert_str_eq(out, "a|b|", "piece %zu: %s", piece, out);
	}
}

Test(parse, a_line_has_a_limit_across_writes)
{
	struct parse_split s;
	const char *line;
	size_t len, start, pos;
	char *big = malloc(PARSE_LINE_MAX + 16);

	memset(big, 'x', PARSE_LINE_MAX + 16);
	parse_split_init(&s);
	pos = 0;
	cr_assert_eq(parse_split_next(&s, big, PARSE_LINE_MAX, &pos, &line, &len, &start), 0);
	pos = 0;
	cr_assert_eq(parse_split_next(&s, "\n", 1, &pos, &line, &len, &start), 1);
	cr_assert_eq(len, PARSE_LINE_MAX);
	pos = 0;
	cr_assert_eq(parse_split_next(&s, big, PARSE_LINE_MAX, &pos, &line, &len, &start), 0);
	pos = 0;
	cr_assert_eq(parse_split_next(&s, "y\n", 2, &pos, &line, &len, &start), -EMSGSIZE);
	cr_assert_eq(start, 0);
	cr_assert_eq(s.line_no, 2);
	parse_split_drop(&s);
	memcpy(big, "ok\n", 3);
	pos = 0;
	cr_assert_eq(parse_split_next(&s, big, PARSE_LINE_MAX + 16, &pos, &line, &len, &start), 1);
	cr_assert_eq(parse_split_next(&s, big, PARSE_LINE_MAX + 16, &pos, &line, &len, &start), -EMSGSIZE);
	cr_assert_eq(start, 3);
	parse_split_finish(&s);
	free(big);
}

/* ---- small words ------------------------------------------------------------------------------------------------ */

Test(parse, numbers_and_sizes)
{
	uint64_t v;

	cr_assert_eq(parse_u64("18446744073709551615", 20, &v), 0);
	cr_assert_eq(v, UINT64_MAX);
	cr_assert_eq(parse_u64("18446744073709551616", 20, &v), -ERANGE);
	cr_assert_eq(parse_u64("99999999999999999999", 20, &v), -ERANGE);
	cr_assert_eq(parse_u64("000000000000000000000000000007", 30, &v), 0);
	cr_assert_eq(v, 7);
	cr_assert_eq(parse_u64("", 0, &v), -EINVAL);
	cr_assert_eq(parse_size("8g", 2, &v), 0);
	cr_assert_eq(v, UINT64_C(8) << 30);
	cr_assert_eq(parse_size("3KiB", 4, &v), 0);
	cr_assert_eq(v, 3072);
	cr_assert_eq(parse_size("5B", 2, &v), 0);
	cr_assert_eq(v, 5);
	cr_assert_eq(parse_size("5Ki", 3, &v), -EINVAL);
	cr_assert_eq(parse_size("5KK", 3, &v), -EINVAL);
	cr_assert_eq(parse_size("G", 1, &v), -EINVAL);
	cr_assert_eq(parse_size("99999999T", 9, &v), -ERANGE);
}
