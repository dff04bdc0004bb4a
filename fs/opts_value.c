/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/opts_value.c - see opts_value.h.
 */
#include "fs/opts_value.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define WORD_MAX 63
#define SECONDS_MAX 1e9

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Decimal digits at *text; moves it behind them. */
static int take_number(const char **text, uint64_t *ret)
{
	const char *p = *text;
	uint64_t n = 0;

	if (!is_digit(*p))
		return -EINVAL;
	for (; is_digit(*p); p++)
		if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
			return -ERANGE;
	*text = p;
	*ret = n;
	return 0;
}

/* "", "B", "K", "KB", "KiB" ... followed by rest: the power of two, or -EINVAL. */
static int unit_shift(const char *text, const char *rest)
{
	static const char units[] = "KMGT";
	const char *u = *text ? strchr(units, *text >= 'a' ? *text - 'a' + 'A' : *text) : NULL;
	int shift = 0;

	if (u) {
		shift = 10 * (int)(u - units + 1);
		text++;
		if (*text == 'i' && (text[1] == 'B' || text[1] == 'b'))
			text++;
	}
	if (*text == 'B' || *text == 'b')
		text++;
	return *text == '\0' || strcmp(text, rest) == 0 ? shift : -EINVAL;
}

static int parse_size(const char *text, const char *rest, uint64_t *ret)
{
	uint64_t n;
	int shift, r = take_number(&text, &n);

	if (r < 0)
		return r;
	shift = unit_shift(text, rest);
	if (shift < 0)
		return shift;
	if (__builtin_mul_overflow(n, 1ull << shift, &n) || n > INT64_MAX)
		return -ERANGE;
	*ret = n;
	return 0;
}

int opts_value_size(const char *text, uint64_t *ret_bytes)
{
	return parse_size(text, "", ret_bytes);
}

int opts_value_rate(const char *text, uint64_t *ret_bytes_per_s)
{
	return parse_size(text, "/s", ret_bytes_per_s);
}

int opts_value_seconds(const char *text, double *ret_s)
{
	size_t n = strspn(text, "0123456789.");
	double s;
	char *end;

	/* strtod alone would take hex, "inf", "nan" and exponents. */
	if (n == 0 || !is_digit(*text) || (text[n] != '\0' && strcmp(text + n, "s") != 0))
		return -EINVAL;
	s = strtod(text, &end);
	if (end != text + n)
		return -EINVAL;
	if (!(s <= SECONDS_MAX))
		return -ERANGE;
	*ret_s = s;
	return 0;
}

int opts_value_percent(const char *text, uint32_t *ret_pct)
{
	size_t n = strspn(text, "0123456789");
	uint32_t pct = 0;

	if (n == 0 || (text[n] != '\0' && strcmp(text + n, "%") != 0))
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		pct = pct * 10 + (uint32_t)(text[i] - '0');
		if (pct > 99)
			return -ERANGE;
	}
	*ret_pct = pct;
	return 0;
}

int opts_value_mode(const char *text, mode_t *ret_mode)
{
	unsigned mode = 0;

	if (*text == '\0')
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '7')
			return -EINVAL;
		mode = mode * 8 + (unsigned)(*text - '0');
		if (mode > 0666)
			return -ERANGE;
	}
	if (mode & ~0666u)
		return -ERANGE;
	*ret_mode = mode;
	return 0;
}

/* (uid_t)-1 and (gid_t)-1 mean "no change" to the kernel. */
static int parse_id(const char *text, uint64_t *ret)
{
	int r = take_number(&text, ret);

	if (r < 0)
		return r;
	if (*text != '\0')
		return -EINVAL;
	return *ret >= UINT32_MAX ? -ERANGE : 0;
}

int opts_value_uid(const char *text, uid_t *ret_uid)
{
	const struct passwd *pw;
	uint64_t id;
	int r;

	if (is_digit(*text)) {
		r = parse_id(text, &id);
		if (r == 0)
			*ret_uid = (uid_t)id;
		return r;
	}
	pw = *text ? getpwnam(text) : NULL;
	if (!pw)
		return -ENOENT;
	*ret_uid = pw->pw_uid;
	return 0;
}

int opts_value_gid(const char *text, gid_t *ret_gid)
{
	const struct group *gr;
	uint64_t id;
	int r;

	if (is_digit(*text)) {
		r = parse_id(text, &id);
		if (r == 0)
			*ret_gid = (gid_t)id;
		return r;
	}
	gr = *text ? getgrnam(text) : NULL;
	if (!gr)
		return -ENOENT;
	*ret_gid = gr->gr_gid;
	return 0;
}

const char *opts_value_size_text(uint64_t bytes, char *buf, size_t cap)
{
	static const char units[] = "\0KMGT";
	unsigned u = 0;

	while (u < 4 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		u++;
	}
	snprintf(buf, cap, "%llu%.1s", (unsigned long long)bytes, units + u);
	return buf;
}

static char fold(char c)
{
	return c == '_' ? '-' : c;
}

static size_t min2(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t opts_value_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	size_t rows[3][WORD_MAX + 1];
	size_t *two = rows[0], *one = rows[1], *now = rows[2], *t;

	if (la > WORD_MAX || lb > WORD_MAX)
		return SIZE_MAX;
	memset(rows, 0, sizeof(rows));
	for (size_t j = 0; j <= lb; j++)
		one[j] = j;
	for (size_t i = 1; i <= la; i++) {
		now[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			char x = fold(a[i - 1]), y = fold(b[j - 1]);

			now[j] = min2(min2(one[j], now[j - 1]) + 1, one[j - 1] + (x != y));
			if (i > 1 && j > 1 && x == fold(b[j - 2]) && fold(a[i - 2]) == y)
				now[j] = min2(now[j], two[j - 2] + 1);
		}
		t = two, two = one, one = now, now = t;
	}
	return one[lb];
}

/* ---- how much memory there is ---------------------------------------------------------------------- */

/* First number in a small file; 0 when there is none ("max", no such file). */
static uint64_t read_number(const char *path)
{
	char buf[64];
	uint64_t n = 0;
	const char *p = buf;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return 0;
	len = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (len <= 0)
		return 0;
	buf[len] = '\0';
	return take_number(&p, &n) == 0 ? n : 0;
}

static void lower(uint64_t *limit, uint64_t n)
{
	if (n && (*limit == 0 || n < *limit))
		*limit = n;
}

/* A limit anywhere above the group counts. Inside a container the path may be the host's and not exist: its parents, up
 * to the mount itself, are tried all the same. Unlimited v1 groups show a number near 2^63, above any RAM. */
static void lower_by_cgroup(uint64_t *limit, const char *base, const char *group, const char *file)
{
	char path[PATH_MAX], dir[PATH_MAX];
	char *slash;

	if (strlen(group) >= sizeof(dir))
		return;
	strcpy(dir, group);
	for (;;) {
		if ((size_t)snprintf(path, sizeof(path), "%s%s/%s", base, dir, file) < sizeof(path))
			lower(limit, read_number(path));
		slash = strrchr(dir, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* One line of /proc/self/cgroup: "hierarchy:controllers:path". */
static void lower_by_line(uint64_t *limit, char *line)
{
	char *controllers = strchr(line, ':'), *group, *one, *save;

	group = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!group)
		return;
	*controllers++ = '\0';
	*group++ = '\0';
	group[strcspn(group, "\n")] = '\0';
	if (*controllers == '\0') {
		lower_by_cgroup(limit, "/sys/fs/cgroup", group, "memory.max");
		lower_by_cgroup(limit, "/sys/fs/cgroup/unified", group, "memory.max");
	}
	for (one = strtok_r(controllers, ",", &save); one; one = strtok_r(NULL, ",", &save))
		if (strcmp(one, "memory") == 0)
			lower_by_cgroup(limit, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
}

uint64_t opts_value_memory_limit(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
	uint64_t limit = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
	char *line = NULL;
	size_t cap = 0;
	FILE *f = fopen("/proc/self/cgroup", "re");

	if (!f)
		return limit;
	while (getline(&line, &cap, f) > 0)
		lower_by_line(&limit, line);
	free(line);
	fclose(f);
	return limit;
}
