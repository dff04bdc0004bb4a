/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse_split.c - lines out of writes; contract in parse.h.
 */
#include "sched/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void parse_split_init(struct parse_split *s)
{
	*s = (struct parse_split){0};
}

void parse_split_finish(struct parse_split *s)
{
	free(s->tail);
	*s = (struct parse_split){0};
}

void parse_split_drop(struct parse_split *s)
{
	s->tail_len = 0;
	s->is_tail_out = false;
}

static int tail_add(struct parse_split *s, const char *data, size_t n)
{
	if (s->tail_len + n > s->tail_cap) {
		size_t cap = s->tail_cap ? s->tail_cap : 256;
		char *tail;

		while (cap < s->tail_len + n)
			cap *= 2;
		tail = realloc(s->tail, cap);
		if (!tail)
			return -ENOMEM;
		s->tail = tail;
		s->tail_cap = cap;
	}
	if (n > 0)
		memcpy(s->tail + s->tail_len, data, n);
	s->tail_len += n;
	return 0;
}

int parse_split_next(struct parse_split *s, const char *data, size_t len, size_t *pos, const char **ret_line,
		     size_t *ret_len, size_t *ret_start)
{
	size_t start = *pos, n;
	const char *lf;
	int rc;

	if (s->is_tail_out)
		parse_split_drop(s);
	if (start == len)
		return 0;
	lf = memchr(data + start, '\n', len - start);
	n = lf ? (size_t)(lf - data) - start : len - start;
	if (s->tail_len + n > PARSE_LINE_MAX) {
		s->line_no++;
		*ret_start = start;
		return -EMSGSIZE;
	}
	if (s->tail_len == 0 && lf) {
		*ret_line = data + start;
		*ret_len = n;
	} else {
		rc = tail_add(s, data + start, n);
		if (rc < 0) {
			*ret_start = start;
			return rc;
		}
		if (!lf) {
			*pos = len;
			return 0;
		}
		s->is_tail_out = true;
		*ret_line = s->tail;
		*ret_len = s->tail_len;
	}
	s->line_no++;
	*ret_start = start;
	*pos = start + n + 1;
	return 1;
}

int parse_split_last(struct parse_split *s, const char **ret_line, size_t *ret_len)
{
	if (s->is_tail_out)
		parse_split_drop(s);
	if (s->tail_len == 0)
		return 0;
	s->is_tail_out = true;
	s->line_no++;
	*ret_line = s->tail;
	*ret_len = s->tail_len;
	return 1;
}
