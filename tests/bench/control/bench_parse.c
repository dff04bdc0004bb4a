/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/control/bench_parse.c - lines parsed a second on one core: range lines of a few files, of many files, and
 * names alone, fed in pieces of 1 MiB as cat or Python do. Prints; asserts nothing.
 */
#include "sched/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINES 1281167u

static char scratch[PARSE_LINE_MAX], path_scratch[PARSE_LINE_MAX];

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t put_short_range(char *out, unsigned i)
{
	return (size_t)sprintf(out, "train.bin\t%u\t8192\n", i * 3u);
}

static size_t put_long_range(char *out, unsigned i)
{
	return (size_t)sprintf(out, "/mnt/data/imagenet/train/shard-%06u.tar\t%u\t113664\n", i % 1000, i * 113u);
}

static size_t put_name(char *out, unsigned i)
{
	return (size_t)sprintf(out, "imagenet/train/n%08u/n01440764_%010u.JPEG\n", i % 1000, i);
}

static size_t parse_all(const char *text, size_t total)
{
	const struct parse_roots roots = {.mount = "/mnt/data", .mount_len = 9};
	struct parse_split s;
	size_t lines = 0;

	parse_split_init(&s);
	for (size_t at = 0; at < total; at += 1 << 20) {
		size_t n = total - at < 1 << 20 ? total - at : 1 << 20, pos = 0, len, start, path_len;
		const char *line, *path;
		struct parse_line l;
		struct parse_error e;

		while (parse_split_next(&s, text + at, n, &pos, &line, &len, &start) == 1)
			lines += parse_line(line, len, scratch, &l, &e) == 0 &&
				 parse_path(&roots, l.path, l.path_len, path_scratch, &path, &path_len, &e) == 0;
	}
	parse_split_finish(&s);
	return lines;
}

int main(void)
{
	static const struct {
		const char *what;
		size_t (*put)(char *out, unsigned i);
	} cases[] = {
		{"ranges, short path", put_short_range},
		{"ranges, long path", put_long_range},
		{"names", put_name},
	};
	char *text = malloc((size_t)LINES * 96);

	if (!text)
		return 1;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t len = 0, lines;
		double begin, seconds;

		for (unsigned k = 0; k < LINES; k++)
			len += cases[i].put(text + len, k);
		begin = now_s();
		lines = parse_all(text, len);
		seconds = now_s() - begin;
		printf("parse %-20s %7zu lines %6.1f MB  %6.2f M lines/s  %6.0f MB/s\n", cases[i].what, lines,
		       (double)len / 1e6, (double)lines / seconds / 1e6, (double)len / seconds / 1e6);
	}
	free(text);
	return 0;
}
