/* SPDX-License-Identifier: Apache-2.0 */
/* The small helpers: checked arithmetic, blocks and chunks, escaping and rate limit of the log. */
#include "cache/base/arith.h"
#include "cache/base/log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Test(arith, overflow_is_told)
{
	uint64_t x = 7;

	cr_assert_not(hfs_add_u64(UINT64_MAX, 1, &x));
	cr_assert_not(hfs_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &x));
	cr_assert_eq(x, 7);
	cr_assert(hfs_add_u64(UINT64_MAX - 1, 1, &x));
	cr_assert_eq(x, UINT64_MAX);
	cr_assert_eq(hfs_round_up(UINT64_MAX, 4096), UINT64_MAX - 4095);
	cr_assert_eq(hfs_round_up(4097, 4096), 8192);
	cr_assert_eq(hfs_round_up(0, 4096), 0);
	cr_assert_eq(hfs_div_up(UINT64_MAX, 2), (UINT64_C(1) << 63));
}

Test(arith, chunks)
{
	cr_assert_eq(hfs_block_bytes(65536), 4096);
	cr_assert_eq(hfs_block_bytes(1 << 20), 4096);
	cr_assert_eq(hfs_block_bytes(16 << 20), 65536);
	cr_assert_eq(hfs_chunk_len(0, 65536, 0), 0);
	cr_assert_eq(hfs_chunk_len(65537, 65536, 0), 65536);
	cr_assert_eq(hfs_chunk_len(65537, 65536, 1), 1);
	cr_assert_eq(hfs_chunk_len(65536, 65536, 1), 0);
	cr_assert_eq(hfs_chunk_len(UINT64_MAX, 65536, UINT64_MAX / 2), 0);
}

Test(log, names_cannot_forge_lines)
{
	const char *const cases[][2] = {
		{"plain name.tar", "plain name.tar"},
		{"a\nhintfs: error: b", "a\\x0ahintfs: error: b"},
		{"\xc3\xa4\xe2\x82\xac", "\xc3\xa4\xe2\x82\xac"},
		{"\xff\xc3", "\\xff\\xc3"},
		{"\x1b[31m\x7f", "\\x1b[31m\\x7f"},
		{"\xc0\xaf\xed\xa0\x80", "\\xc0\\xaf\\xed\\xa0\\x80"},
		{"\xc2\x9b", "\\xc2\\x9b"},
	};
	char buf[128];

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_assert_str_eq(hfs_log_escape(buf, sizeof(buf), cases[i][0], strlen(cases[i][0])), cases[i][1]);
	for (size_t cap = 1; cap < 12; cap++) {
		memset(buf, 'x', sizeof(buf));
		hfs_log_escape(buf, cap, "\n\n\n\n", 4);
		cr_assert(strlen(buf) < cap);
		cr_assert_eq(buf[cap], 'x');
	}
}

static unsigned count_lines(const char *path, char *last, size_t cap)
{
	FILE *f = fopen(path, "r");
	unsigned n = 0;

	cr_assert_not_null(f);
	while (fgets(last, (int)cap, f) != NULL)
		n++;
	fclose(f);
	return n;
}

Test(log, file_and_limit)
{
	char path[] = "/tmp/hfs-log-XXXXXX", last[2048] = "";
	struct hfs_log_limit limit = {0};
	int fd = mkstemp(path);
	unsigned n;

	cr_assert(fd >= 0);
	close(fd);
	cr_assert_eq(hfs_log_open("/nonexistent/dir/log", HFS_LOG_INFO), -2);
	cr_assert_eq(hfs_log_open(path, HFS_LOG_INFO), 0);
	hfs_log(HFS_LOG_DEBUG, "not wanted");
	hfs_log(HFS_LOG_ERROR, "one %s", "tw\no");
	cr_assert_eq(count_lines(path, last, sizeof(last)), 1);
	cr_assert_str_eq(last, "hintfs: error: one tw\\x0ao\n");
	for (unsigned i = 0; i < 1000; i++)
		hfs_log_limited_at(&limit, HFS_LOG_WARNING, "storm %u", i);
	n = count_lines(path, last, sizeof(last));
	cr_assert(n >= 11 && n < 1000, "%u lines", n);
	limit.second = 1; /* another second begins */
	hfs_log_limited_at(&limit, HFS_LOG_WARNING, "after");
	count_lines(path, last, sizeof(last));
	cr_assert_not_null(strstr(last, "suppressed"), "%s", last);
	hfs_log_close();
	unlink(path);
}
