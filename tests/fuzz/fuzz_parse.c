/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fuzz/fuzz_parse.c - the control grammar on arbitrary bytes: splitter, lines, paths, patterns, quoting.
 *
 * With libFuzzer (-Dfuzzer=true, clang) a fuzz target; otherwise a program that replays the files and folders it is
 * given. Checked: results lie inside the input or the scratch, errors carry a message and a column, a quoted path
 * parses back to the same bytes, the same text cut into other pieces gives the same lines.
 */
#include "sched/brace.h"
#include "sched/parse.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
	fprintf(stderr, "fuzz_parse.c:%d: %s\n", line, what);
	abort();
}

static void check_pattern(const char *s, size_t len)
{
	char out[512];
	struct brace *b;
	int rc = brace_create(s, len, &b);

	CHECK(rc == 0 || rc == -ENOSPC);
	if (rc < 0)
		return;
	CHECK(brace_count(b) <= BRACE_RESULTS_MAX);
	for (uint64_t i = 0; i < brace_count(b); i += 1 + brace_count(b) / 64)
		CHECK(brace_result(b, i, out, sizeof(out)) <= len + 32);
	brace_destroy(b);
}

static void check_quote(const char *path, size_t len)
{
	static char quoted[PARSE_LINE_MAX * 6 + 3], back_scratch[PARSE_LINE_MAX];
	size_t n = parse_path_quote(path, len, quoted, sizeof(quoted)), at = 0;
	struct parse_line l;
	struct parse_error e;

	CHECK(n < sizeof(quoted));
	if (n > PARSE_LINE_MAX || len == 0)
		return;
	CHECK(parse_line(quoted, n, back_scratch, &l, &e) == 0 && l.kind == PARSE_ENTRY && !l.has_pattern);
	if (!l.is_json && l.path_len == len + 2)
		at = 2;
	CHECK(l.path_len == len + at && memcmp(l.path + at, path, len) == 0);
}

static void check_line(const char *line, size_t len)
{
	static char scratch[PARSE_LINE_MAX], path_scratch[PARSE_LINE_MAX];
	const struct parse_roots roots = {.mount = "/m", .mount_len = 2, .prefix = "p", .prefix_len = 1};
	struct parse_line l;
	struct parse_error e = {0};
	const char *path;
	size_t path_len;
	int rc = parse_line(line, len, scratch, &l, &e);

	if (rc < 0) {
		CHECK(e.err == rc && e.column >= 1 && e.column <= len + 1 && e.message[0]);
		return;
	}
	if (l.kind != PARSE_ENTRY && l.kind != PARSE_PREFIX)
		return;
	CHECK((l.path >= line && l.path + l.path_len <= line + len) ||
	      (l.path >= scratch && l.path + l.path_len <= scratch + sizeof(scratch)));
	CHECK(!memchr(l.path, '\0', l.path_len));
	if (l.kind == PARSE_PREFIX)
		return;
	if (l.has_pattern)
		check_pattern(l.path, l.path_len);
	rc = parse_path(&roots, l.path, l.path_len, path_scratch, &path, &path_len, &e);
	CHECK(rc == 0 || (rc == -EXDEV && e.message[0]));
	if (rc == 0) {
		CHECK(path_len <= l.path_len && (path_len == 0 || (path[0] != '/' && path[path_len - 1] != '/')));
		CHECK(!memmem(path, path_len, "//", 2) && !(path_len >= 2 && memcmp(path, "./", 2) == 0));
		if (path_len == 0 || path[path_len - 1] != '\r')
			check_quote(path, path_len);
	}
}

/* All lines in pieces of `piece` bytes; their number and a checksum of their bytes. */
static uint64_t cut(const char *text, size_t size, size_t piece, bool is_checked)
{
	struct parse_split s;
	const char *line;
	size_t len, start;
	uint64_t sum = 0;

	parse_split_init(&s);
	for (size_t at = 0; at < size; at += piece) {
		size_t n = size - at < piece ? size - at : piece, pos = 0;
		int rc;

		while ((rc = parse_split_next(&s, text + at, n, &pos, &line, &len, &start)) == 1) {
			if (is_checked)
				check_line(line, len);
			sum = sum * 31 + len;
			for (size_t i = 0; i < len; i++)
				sum = sum * 31 + (unsigned char)line[i];
		}
		if (rc < 0) {
			CHECK(rc == -EMSGSIZE);
			parse_split_finish(&s);
			return 0;
		}
	}
	if (parse_split_last(&s, &line, &len) == 1) {
		if (is_checked)
			check_line(line, len);
		sum = sum * 31 + len + 1;
	}
	parse_split_finish(&s);
	return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;

	if (size == 0)
		return 0;
	CHECK(cut(text, size, size, true) == cut(text, size, 1 + size % 7, false));
	return 0;
}

#ifndef HFS_LIBFUZZER
static int replay(const char *path)
{
	char name[4096];
	struct dirent *d;
	DIR *dir = opendir(path);
	int n = 0;

	if (dir) {
		while ((d = readdir(dir)) != NULL) {
			if (d->d_name[0] == '.')
				continue;
			snprintf(name, sizeof(name), "%s/%s", path, d->d_name);
			n += replay(name);
		}
		closedir(dir);
		return n;
	}
	FILE *f = fopen(path, "rb");
	static uint8_t buf[1 << 20];

	if (!f) {
		perror(path);
		exit(1);
	}
	LLVMFuzzerTestOneInput(buf, fread(buf, 1, sizeof(buf), f));
	fclose(f);
	return 1;
}

int main(int argc, char **argv)
{
	int n = 0;

	for (int i = 1; i < argc; i++)
		n += replay(argv[i]);
	printf("%d inputs replayed\n", n);
	return n > 0 ? 0 : 1;
}
#endif
