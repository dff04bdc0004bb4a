/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse.c - meaning of one control line; contract in parse.h. Directives are in parse_directive.c, paths in
 * parse_path.c, the cutting into lines in parse_split.c.
 */
#include "sched/parse.h"
#include "sched/brace.h"
#include "sched/parse_i.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void parse_say(struct parse_error *e, int err, size_t column, const char *fmt, ...)
{
	va_list ap;

	e->err = err;
	e->column = (unsigned)column;
	va_start(ap, fmt);
	vsnprintf(e->message, sizeof(e->message), fmt, ap);
	va_end(ap);
}

int parse_u64(const char *s, size_t len, uint64_t *ret)
{
	uint64_t value = 0;

	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		unsigned digit = (unsigned char)s[i] - '0';

		if (digit > 9)
			return -EINVAL;
		if (i >= 19 && (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
				__builtin_add_overflow(value, (uint64_t)digit, &value)))
			return -ERANGE;
		if (i < 19)
			value = value * 10 + digit;
	}
	*ret = value;
	return 0;
}

int parse_size(const char *s, size_t len, uint64_t *ret)
{
	static const char units[] = "KMGT";
	size_t digits = 0;
	uint64_t value;
	int rc;

	while (digits < len && s[digits] >= '0' && s[digits] <= '9')
		digits++;
	rc = parse_u64(s, digits, &value);
	if (rc < 0)
		return rc;
	s += digits;
	len -= digits;
	if (len > 0 && *s) {
		const char *unit = strchr(units, *s >= 'a' && *s <= 'z' ? *s - 'a' + 'A' : *s);

		if (unit) {
			if (__builtin_mul_overflow(value, UINT64_C(1) << (10 * (unit - units + 1)), &value))
				return -ERANGE;
			s++;
			len--;
			if (len > 0 && *s == 'i') {
				s++;
				len--;
				if (len == 0)
					return -EINVAL;
			}
		}
	}
	if (len > 1 || (len == 1 && *s != 'B'))
		return -EINVAL;
	*ret = value;
	return 0;
}

/* Columns two and three of an entry: `member=...`, `key=...`, or offset and length. */
static int parse_range(const char *line, const char *tab, const char *end, struct parse_line *l, struct parse_error *e)
{
	const char *off = tab + 1, *tab2 = memchr(off, '\t', (size_t)(end - off));
	const char *len = tab2 ? tab2 + 1 : end;
	size_t off_len = (size_t)((tab2 ? tab2 : end) - off), len_len = (size_t)(end - len);
	const char *tab3;

	if ((off_len >= 7 && memcmp(off, "member=", 7) == 0) || (off_len >= 4 && memcmp(off, "key=", 4) == 0))
		return parse_fail(e, -EINVAL, (size_t)(off - line) + 1,
				  "%s not yet supported: name the whole shard, or give offset and length",
				  *off == 'm' ? "member=" : "key=");
	if (!tab2)
		return parse_fail(e, -EINVAL, (size_t)(end - line) + 1,
				  "2 columns: expected a path alone, or path, offset and length separated by TAB");
	tab3 = memchr(len, '\t', len_len);
	if (tab3)
		return parse_fail(e, -EINVAL, (size_t)(tab3 - line) + 1,
				  "more than 3 columns: expected path, offset, length");
	if (parse_u64(off, off_len, &l->off_bytes) < 0 || l->off_bytes > INT64_MAX)
		return parse_fail(e, -EINVAL, (size_t)(off - line) + 1,
				  "bad offset: expected a decimal number of bytes below 2^63");
	if (len_len == 1 && *len == '-')
		l->len_bytes = 0;
	else if (parse_u64(len, len_len, &l->len_bytes) < 0 || l->len_bytes > INT64_MAX)
		return parse_fail(e, -EINVAL, (size_t)(len - line) + 1,
				  "bad length: expected a decimal number of bytes below 2^63, or - for the rest");
	l->has_range = true;
	return 0;
}

static int parse_entry(const char *line, size_t len, char *scratch, struct parse_line *l, struct parse_error *e)
{
	const char *end = line + len, *tab;
	int rc = 0;

	if (*line == '"') {
		size_t used;

		rc = parse_json_string(line, len, scratch, &l->path_len, &used, e);
		if (rc < 0)
			return rc;
		l->path = scratch;
		l->is_json = true;
		tab = line + used;
		if (tab < end && *tab != '\t')
			return parse_fail(e, -EINVAL, used + 1, "expected TAB or end of line after the closing quote");
	} else {
		tab = memchr(line, '\t', len);
		if (!tab)
			tab = end;
		l->path = line;
		l->path_len = (size_t)(tab - line);
		l->has_pattern = brace_is_pattern(l->path, l->path_len);
		if (memchr(l->path, '\0', l->path_len))
			return parse_fail(e, -EINVAL, strlen(line) + 1, "a path cannot contain a NUL byte");
	}
	if (l->path_len == 0)
		return parse_fail(e, -EINVAL, 1, "the path is empty");
	l->kind = PARSE_ENTRY;
	l->is_dir = l->path[l->path_len - 1] == '/';
	if (tab < end)
		rc = parse_range(line, tab, end, l, e);
	if (rc == 0 && l->is_dir && l->has_range)
		return parse_fail(e, -EINVAL, (size_t)(tab - line) + 2, "a directory has no offset and length");
	return rc;
}

int parse_line(const char *line, size_t len, char *scratch, struct parse_line *ret_line, struct parse_error *ret_err)
{
	struct parse_line l = {.kind = PARSE_NOTHING};
	int rc = 0;

	if (len > PARSE_LINE_MAX)
		return parse_fail(ret_err, -EMSGSIZE, PARSE_LINE_MAX + 1, "line longer than %u bytes", PARSE_LINE_MAX);
	if (len > 0 && line[len - 1] == '\r' && *line != '#')
		return parse_fail(ret_err, -EINVAL, len,
				  "the line ends in CR: written with Windows line ends? Lines end in LF alone "
				  "(a name that ends in CR is written as a JSON string)");
	if (len > 0 && *line == '@')
		rc = parse_directive(line, len, &l, ret_err);
	else if (len > 0 && *line != '#')
		rc = parse_entry(line, len, scratch, &l, ret_err);
	if (rc == 0)
		*ret_line = l;
	return rc;
}
