/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse_path.c - names as written: relative to the root, out of JSON, and back into a first column.
 */
#include "sched/parse.h"
#include "sched/brace.h"
#include "sched/parse_i.h"

#include <errno.h>
#include <string.h>

/* ---- relative to the root ------------------------------------------------------------------------ */

/* Strip dir from the front; true if it was there as whole components. Leading slashes of the rest go too. */
static bool strip_dir(const char **path, size_t *len, const char *dir, size_t dir_len)
{
	const char *p = *path;
	size_t n = *len;

	if (!dir || dir_len == 0 || n < dir_len || memcmp(p, dir, dir_len) != 0)
		return false;
	if (n > dir_len && p[dir_len] != '/' && dir[dir_len - 1] != '/')
		return false;
	p += dir_len;
	n -= dir_len;
	while (n > 0 && *p == '/') {
		p++;
		n--;
	}
	*path = p;
	*len = n;
	return true;
}

/* True if the path is already as parse_path() would make it: the common case, one pass. */
static bool is_normal(const char *p, size_t len)
{
	if (len == 0)
		return true;
	if (*p == '/' || p[len - 1] == '/' || *p == '.')
		return false;
	for (const char *slash = p; (slash = memchr(slash, '/', len - (size_t)(slash - p))) != NULL; slash++)
		if (slash[1] == '/' || slash[1] == '.')
			return false;
	return true;
}

/* Copy the components, leaving out empty ones and ".". A ".." fails. */
static int copy_components(const char *p, size_t len, char *out, size_t *ret_len)
{
	size_t n = 0;

	for (size_t i = 0; i < len;) {
		const char *slash = memchr(p + i, '/', len - i);
		size_t part = slash ? (size_t)(slash - (p + i)) : len - i;

		if (part == 2 && p[i] == '.' && p[i + 1] == '.')
			return -EXDEV;
		if (part > 0 && !(part == 1 && p[i] == '.')) {
			if (n > 0)
				out[n++] = '/';
			memcpy(out + n, p + i, part);
			n += part;
		}
		i += part + 1;
	}
	*ret_len = n;
	return 0;
}

int parse_path(const struct parse_roots *roots, const char *path, size_t len, char *scratch, const char **ret_path,
	       size_t *ret_len, struct parse_error *ret_err)
{
	const char *p = path;
	size_t n = len;

	if (roots->prefix_len > 0 && strip_dir(&p, &n, roots->prefix, roots->prefix_len))
		;
	else if (n > 0 && *p == '/' && !strip_dir(&p, &n, roots->mount, roots->mount_len))
		return parse_fail(
			ret_err, -EXDEV, 1,
			"an absolute path that is not below the mount %.*s%s(another path in a container? write "
			"@prefix DIR first)",
			(int)(roots->mount_len < 60 ? roots->mount_len : 60), roots->mount ? roots->mount : "",
			roots->mount ? " " : "");
	if (is_normal(p, n)) {
		*ret_path = p;
		*ret_len = n;
		return 0;
	}
	if (copy_components(p, n, scratch, ret_len) < 0)
		return parse_fail(ret_err, -EXDEV, (size_t)(p - path) + 1,
				  "\"..\" could leave the mount: write the path without it");
	*ret_path = scratch;
	return 0;
}

/* ---- JSON strings ---------------------------------------------------------------------------------- */

static int hex4(const char *s, const char *end, unsigned *ret)
{
	unsigned value = 0;

	if (end - s < 4)
		return -EINVAL;
	for (int i = 0; i < 4; i++) {
		char c = s[i];
		unsigned digit = c >= '0' && c <= '9'	? (unsigned)(c - '0')
				 : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
				 : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
							: 16;

		if (digit > 15)
			return -EINVAL;
		value = value << 4 | digit;
	}
	*ret = value;
	return 0;
}

static size_t put_utf8(char *out, unsigned c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		out[0] = (char)(0xc0 | c >> 6);
		out[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		out[0] = (char)(0xe0 | c >> 12);
		out[1] = (char)(0x80 | (c >> 6 & 0x3f));
		out[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | c >> 18);
	out[1] = (char)(0x80 | (c >> 12 & 0x3f));
	out[2] = (char)(0x80 | (c >> 6 & 0x3f));
	out[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/*
 * The digits after "\u" at *s. A lone \udc80 ... \udcff is the byte 0x80 ... 0xff: what Python's json.dumps makes of a
 * name that is not UTF-8 (surrogateescape). Other lone surrogates and NUL are refused.
 */
static int decode_u(const char **s, const char *end, char *out, size_t *n)
{
	unsigned c, low;

	if (hex4(*s, end, &c) < 0 || c == 0)
		return -EINVAL;
	*s += 4;
	if (c >= 0xd800 && c < 0xdc00) {
		if (end - *s < 6 || (*s)[0] != '\\' || (*s)[1] != 'u' || hex4(*s + 2, end, &low) < 0 || low < 0xdc00 ||
		    low > 0xdfff)
			return -EINVAL;
		*s += 6;
		c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
	} else if (c >= 0xdc80 && c <= 0xdcff) {
		out[(*n)++] = (char)(c & 0xff);
		return 0;
	} else if (c >= 0xdc00 && c <= 0xdfff) {
		return -EINVAL;
	}
	*n += put_utf8(out + *n, c);
	return 0;
}

int parse_json_string(const char *line, size_t len, char *out, size_t *ret_len, size_t *ret_used,
		      struct parse_error *ret_err)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *s = line + 1, *end = line + len, *esc, *at;
	size_t n = 0;

	if (!out)
		return parse_fail(ret_err, -EINVAL, 1, "a JSON string is not accepted here");
	while (s < end && *s != '"') {
		if ((unsigned char)*s < 0x20)
			return parse_fail(ret_err, -EINVAL, (size_t)(s - line) + 1,
					  "a control character inside a JSON string: write it as \\u%04x",
					  (unsigned char)*s);
		if (*s != '\\') {
			out[n++] = *s++;
			continue;
		}
		at = s++;
		esc = s < end && *s ? strchr(from, *s) : NULL;
		if (esc) {
			out[n++] = to[esc - from];
			s++;
		} else if (s < end && *s == 'u') {
			s++;
			if (decode_u(&s, end, out, &n) < 0)
				return parse_fail(ret_err, -EINVAL, (size_t)(at - line) + 1,
						  "bad \\u escape in a JSON string");
		} else {
			return parse_fail(ret_err, -EINVAL, (size_t)(at - line) + 1, "unknown escape in a JSON string");
		}
	}
	if (s == end)
		return parse_fail(
			ret_err, -EINVAL, len + 1,
			"the JSON string has no closing quote (a name that begins with \" is written ./\"...)");
	*ret_len = n;
	*ret_used = (size_t)(s - line) + 1;
	return 0;
}

/* ---- back into a first column ------------------------------------------------------------------------ */

static bool needs_json(const char *path, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)path[i] < 0x20)
			return true;
	return brace_is_pattern(path, len);
}

size_t parse_path_quote(const char *path, size_t len, char *buf, size_t cap)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = 0;

#define PUT(c) (n + 1 < cap ? (void)(buf[n] = (c)) : (void)0, (void)n++)
	if (!needs_json(path, len)) {
		if (len > 0 && (*path == '#' || *path == '@' || *path == '"')) {
			PUT('.');
			PUT('/');
		}
		for (size_t i = 0; i < len; i++)
			PUT(path[i]);
	} else {
		PUT('"');
		for (size_t i = 0; i < len; i++) {
			unsigned char c = (unsigned char)path[i];

			if (c == '"' || c == '\\') {
				PUT('\\');
				PUT((char)c);
			} else if (c == '\n' || c == '\t') {
				PUT('\\');
				PUT(c == '\n' ? 'n' : 't');
			} else if (c < 0x20) {
				const char *digits = "\\u00";

				for (; *digits; digits++)
					PUT(*digits);
				PUT(hex[c >> 4]);
				PUT(hex[c & 15]);
			} else {
				PUT((char)c);
			}
		}
		PUT('"');
	}
#undef PUT
	if (cap > 0)
		buf[n < cap ? n : cap - 1] = '\0';
	return n;
}
