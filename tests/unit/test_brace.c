/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/test_brace.c - pattern expansion (sched/brace.h) against bash itself and against its limits.
 */
#include "sched/brace.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void join(const char *pattern, char *out, size_t cap)
{
	struct brace *b;
	size_t n = 0;

	cr_assert_eq(brace_create(pattern, strlen(pattern), &b), 0, "%s", pattern);
	for (uint64_t i = 0; i < brace_count(b); i++) {
		n += brace_result(b, i, out + n, cap - n);
		cr_assert_lt(n + 1, cap);
		out[n++] = '\n';
	}
	out[n] = '\0';
	brace_destroy(b);
}

static const char *const patterns[] = {
	"plain",
	"{a,b}",
	"x{a,b}y",
	"{a,b}{c,d}",
	"{a,{b,c}d,}e",
	"{a,b",
	"a,b}",
	"{a}",
	"{}",
	"a{}b",
	"{},{a,b}",
	"{{a,b}",
	"{a,b}}",
	"{a{b,c}",
	"{{},x}",
	"{,}",
	"a{,b}c",
	"{{1..3},x}",
	"{1..3}",
	"{3..1}",
	"{01..10}",
	"{1..010}",
	"{000..099}",
	"{-01..2}",
	"{-1..1}",
	"{0..10..2}",
	"{10..0..3}",
	"{0..10..-2}",
	"{0..3..0}",
	"{1..1}",
	"{a..e}",
	"{e..a..2}",
	"{1..a}",
	"{a..1}",
	"{1..2..x}",
	"{1..}",
	"{..2}",
	"{1...3}",
	"{aa..bb}",
	"s-{000000..000012}.tar",
	"{x,{y,{z,w}1}2}3",
	"{a,b}{1..3}{,x}",
	"{a,{b}",
	"{{a},b}",
	"{a,b}c}d{e,f}",
	"{+1..3}",
	"{5..-5..5}",
	"{A..C}{1,2}",
	"{a,b},{c,d}",
	"a{b{c,d}e,f}g",
	"{{a..c},{1..2}}",
	"{a,b,}",
	"{,a}{,b}",
};

/* bash drops words that are empty, so the lines are compared without empty ones. */
static void drop_empty(char *s)
{
	char *to = s;

	for (char *line = s; *line;) {
		char *lf = strchr(line, '\n');
		size_t n = (size_t)(lf - line) + 1;

		if (n > 1) {
			memmove(to, line, n);
			to += n;
		}
		line += n;
	}
	*to = '\0';
}

Test(brace, same_as_bash)
{
	static char ours[1 << 16], theirs[1 << 16], command[512];

	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		snprintf(command, sizeof(command), "bash -c 'printf \"%%s\\n\" %s'", patterns[i]);
		FILE *p = popen(command, "r");
		size_t n = fread(theirs, 1, sizeof(theirs) - 1, p);

		theirs[n] = '\0';
		cr_assert_eq(pclose(p), 0);
		join(patterns[i], ours, sizeof(ours));
		drop_empty(ours);
		drop_empty(theirs);
		cr_assert_str_eq(ours, theirs, "%s:\nours\n%sbash\n%s", patterns[i], ours, theirs);
	}
}

Test(brace, double_colon_separates_patterns)
{
	static const char *const cases[][2] = {
		{"a::b", "a\nb\n"},
		{"x{1..2}::y{a,b}", "x1\nx2\nya\nyb\n"},
		{"{a::b}", "{a\nb}\n"},
		{"{a,b::c}", "{a,b\nc}\n"},
		{"a::", "a\n"},
		{"::a", "a\n"},
		{"a::::b", "a\nb\n"},
		{"a:::b", "a\n:b\n"},
		{"::", ""},
		{"a:b", "a:b\n"},
	};
	char out[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		join(cases[i][0], out, sizeof(out));
		cr_assert_str_eq(out, cases[i][1], "%s: %s", cases[i][0], out);
	}
}

static int create_rc(const char *pattern, uint64_t *ret_count)
{
	struct brace *b = NULL;
	int rc = brace_create(pattern, strlen(pattern), &b);

	if (rc == 0)
		*ret_count = brace_count(b);
	brace_destroy(b);
	return rc;
}

Test(brace, limits)
{
	uint64_t n = 0;
	static char deep[65537], long_list[65537];

	cr_assert_eq(create_rc("{1..10000000}", &n), 0);
	cr_assert_eq(n, 10000000);
	cr_assert_eq(create_rc("{1..10000001}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{1..4000}{1..4000}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{1..9999999}::{1..2}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{1..999999999999999999}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{-999999999999999999..999999999999999999}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{1..9223372036854775807}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{-9223372036854775807..9223372036854775807}", &n), -ENOSPC);
	cr_assert_eq(create_rc("{9223372036854775807..9223372036854775806}{9..1..9223372036854775807}", &n), 0);
	cr_assert_eq(n, 2);
	cr_assert_eq(create_rc("{1..9223372036854775808}", &n), 0); /* no number of 64 bits: ordinary bytes */
	cr_assert_eq(n, 1);
	cr_assert_eq(create_rc("{1..9999999999999999999999}", &n), 0); /* no number: ordinary bytes */
	cr_assert_eq(n, 1);
	/* as deep as a line can be: refused or literal, never a crash; 65,536 bytes in linear time */
	memset(deep, '{', 65536);
	cr_assert_eq(create_rc(deep, &n), 0);
	cr_assert_eq(n, 1);
	memset(deep + 32768, '}', 32768);
	cr_assert_eq(create_rc(deep, &n), 0);
	cr_assert_eq(n, 1);
	for (size_t i = 0; i < 65536; i += 3)
		memcpy(deep + i, i < 32768 ? "{a," : "}}}", i + 3 <= 65536 ? 3 : 1);
	cr_assert_eq(create_rc(deep, &n), -ENOSPC);
	for (size_t i = 0; i < 65536; i++)
		long_list[i] = i == 0 ? '{' : i == 65535 ? '}' : i % 2 ? 'a' : ',';
	cr_assert_eq(create_rc(long_list, &n), 0);
	cr_assert_eq(n, 32768);
	/* few bytes of pattern, many bytes of names: the product is bounded too */
	memset(deep, 'x', 60000);
	strcpy(deep + 60000, "{1..1000000}");
	cr_assert_eq(create_rc(deep, &n), -ENOSPC);
}

Test(brace, short_buffer_is_safe)
{
	struct brace *b;
	char buf[4] = "???";

	cr_assert_eq(brace_create("abc{1,22}def", 12, &b), 0);
	cr_assert_eq(brace_result(b, 1, buf, 2), 8);
	cr_assert_eq(memcmp(buf, "ab?", 3), 0);
	cr_assert_eq(brace_result(b, 0, NULL, 0), 7);
	brace_destroy(b);
}
