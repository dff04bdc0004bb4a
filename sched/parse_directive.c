/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse_directive.c - lines that begin with '@', one table row each; and the nearest word for "did you mean".
 */
#include "sched/parse.h"
#include "sched/parse_i.h"

#include <errno.h>
#include <string.h>

enum arg_kind { ARG_NONE, ARG_OPTIONAL, ARG_NUMBER, ARG_WINDOW, ARG_DONE, ARG_DIR };

struct directive {
	const char *word, *usage;
	enum arg_kind arg;
	enum parse_kind kind;
	enum sched_mark mark; /* ARG_OPTIONAL: with a number; the next enumerator below it is the bare form */
};

static const struct directive directives[] = {
	{"batch", "@batch [N]", ARG_OPTIONAL, PARSE_MARK, SCHED_MARK_BATCH},
	{"epoch", "@epoch [N]", ARG_OPTIONAL, PARSE_MARK, SCHED_MARK_EPOCH},
	{"repeat", "@repeat K", ARG_NUMBER, PARSE_MARK, SCHED_MARK_REPEAT},
	{"any", "@any", ARG_NONE, PARSE_MARK, SCHED_MARK_ANY},
	{"ordered", "@ordered", ARG_NONE, PARSE_MARK, SCHED_MARK_ORDERED},
	{"window", "@window SIZE, or @window N batches", ARG_WINDOW, PARSE_MARK, SCHED_MARK_WINDOW_BYTES},
	{"seek", "@seek N", ARG_NUMBER, PARSE_MARK, SCHED_MARK_SEEK},
	{"done", "@done N, or @done batch N", ARG_DONE, PARSE_MARK, SCHED_MARK_DONE},
	{"cancel", "@cancel", ARG_NONE, PARSE_CANCEL, SCHED_MARK_BATCH},
	{"prefix", "@prefix DIR", ARG_DIR, PARSE_PREFIX, SCHED_MARK_BATCH},
};
#define N_DIRECTIVES (sizeof(directives) / sizeof(directives[0]))

#define WORD_MAX 24u /* longer than any known word and its mistakes */

/* Edits (insert, drop, change, swap neighbours) between two short words. */
static unsigned edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	unsigned d[WORD_MAX + 1][WORD_MAX + 1];

	for (size_t i = 0; i <= a_len; i++) {
		for (size_t j = 0; j <= b_len; j++) {
			if (i == 0 || j == 0) {
				d[i][j] = (unsigned)(i + j);
				continue;
			}
			unsigned best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);

			if (d[i - 1][j] + 1 < best)
				best = d[i - 1][j] + 1;
			if (d[i][j - 1] + 1 < best)
				best = d[i][j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    d[i - 2][j - 2] + 1 < best)
				best = d[i - 2][j - 2] + 1;
			d[i][j] = best;
		}
	}
	return d[a_len][b_len];
}

const char *parse_nearest(const char *s, size_t len, const char *const *words, size_t n)
{
	const char *best = NULL;
	unsigned best_distance = len <= 3 ? 2 : 3; /* this far is another word, not a slip */

	if (len == 0 || len > WORD_MAX)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		size_t word_len = strlen(words[i]);

		if (word_len > WORD_MAX)
			continue;
		if (len >= 3 && word_len > len && memcmp(s, words[i], len) == 0)
			return words[i];
		unsigned distance = edit_distance(s, len, words[i], word_len);

		if (distance < best_distance) {
			best_distance = distance;
			best = words[i];
		}
	}
	return best;
}

static const struct directive *find_directive(const char *word, size_t len)
{
	for (size_t i = 0; i < N_DIRECTIVES; i++)
		if (strlen(directives[i].word) == len && memcmp(directives[i].word, word, len) == 0)
			return &directives[i];
	return NULL;
}

static int fail_unknown(const char *word, size_t len, struct parse_error *e)
{
	const char *words[N_DIRECTIVES], *near;
	int shown = (int)(len < 40 ? len : 40);

	for (size_t i = 0; i < N_DIRECTIVES; i++)
		words[i] = directives[i].word;
	near = parse_nearest(word, len, words, N_DIRECTIVES);
	if (near)
		return parse_fail(e, -EINVAL, 1, "\"@%.*s\": unknown directive (did you mean @%s?)", shown, word, near);
	return parse_fail(e, -EINVAL, 1, "\"@%.*s\": unknown directive (a name that begins with @ is written ./@...)",
			  shown, word);
}

struct words {
	const char *s[3];
	size_t len[3];
	unsigned n; /* 4: more than three */
};

static void cut_words(const char *s, const char *end, struct words *w)
{
	w->n = 0;
	while (s < end) {
		const char *from = s;

		while (s < end && *s != ' ' && *s != '\t')
			s++;
		if (s > from) {
			if (w->n == 3) {
				w->n = 4;
				return;
			}
			w->s[w->n] = from;
			w->len[w->n++] = (size_t)(s - from);
		} else {
			s++;
		}
	}
}

static bool word_is(const struct words *w, unsigned i, const char *word)
{
	return w->n > i && strlen(word) == w->len[i] && memcmp(word, w->s[i], w->len[i]) == 0;
}

/* The words after the directive's own into l; false: they do not fit its usage. */
static bool parse_args(const struct directive *d, const struct words *w, struct parse_line *l, unsigned *ret_bad)
{
	*ret_bad = 1;
	switch (d->arg) {
	case ARG_NONE:
		return w->n == 1;
	case ARG_OPTIONAL:
		if (w->n == 1)
			l->mark = d->mark == SCHED_MARK_BATCH ? SCHED_MARK_BATCH_NEXT : SCHED_MARK_EPOCH_NEXT;
		return w->n == 1 || (w->n == 2 && parse_u64(w->s[1], w->len[1], &l->value) == 0);
	case ARG_NUMBER:
		return w->n == 2 && parse_u64(w->s[1], w->len[1], &l->value) == 0 &&
		       (d->mark != SCHED_MARK_REPEAT || l->value > 0);
	case ARG_WINDOW:
		if (w->n == 2)
			return parse_size(w->s[1], w->len[1], &l->value) == 0 && l->value > 0;
		l->mark = SCHED_MARK_WINDOW_BATCHES;
		if (w->n != 3 || parse_u64(w->s[1], w->len[1], &l->value) < 0 || l->value == 0)
			return false;
		*ret_bad = 2;
		return word_is(w, 2, "batches") || word_is(w, 2, "batch");
	case ARG_DONE:
		if (w->n != 3)
			return w->n == 2 && parse_u64(w->s[1], w->len[1], &l->value) == 0;
		l->mark = SCHED_MARK_DONE_BATCH;
		if (!word_is(w, 1, "batch"))
			return false;
		*ret_bad = 2;
		return parse_u64(w->s[2], w->len[2], &l->value) == 0;
	case ARG_DIR:
		break;
	}
	return false;
}

static void parse_prefix_dir(const char *s, const char *end, struct parse_line *l)
{
	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	while (end > s + 1 && end[-1] == '/')
		end--;
	l->path = s;
	l->path_len = (size_t)(end - s);
}

int parse_directive(const char *line, size_t len, struct parse_line *ret_line, struct parse_error *ret_err)
{
	const char *end = line + len;
	const struct directive *d;
	struct words w;
	unsigned bad;

	cut_words(line + 1, end, &w);
	if (w.n == 0 || w.s[0] != line + 1)
		return parse_fail(ret_err, -EINVAL, 1, "expected a word right after @");
	d = find_directive(w.s[0], w.len[0]);
	if (!d)
		return fail_unknown(w.s[0], w.len[0], ret_err);
	ret_line->kind = d->kind;
	ret_line->mark = d->mark;
	if (d->arg == ARG_DIR) {
		parse_prefix_dir(w.s[0] + w.len[0], end, ret_line);
		if (memchr(ret_line->path, '\0', ret_line->path_len))
			return parse_fail(ret_err, -EINVAL, 1, "a path cannot contain a NUL byte");
		return 0;
	}
	if (parse_args(d, &w, ret_line, &bad))
		return 0;
	if (bad >= w.n || bad > 2)
		return parse_fail(ret_err, -EINVAL, len + 1, "usage: %s", d->usage);
	return parse_fail(ret_err, -EINVAL, (size_t)(w.s[bad] - line) + 1, "\"%.*s\": usage: %s",
			  (int)(w.len[bad] < 40 ? w.len[bad] : 40), w.s[bad], d->usage);
}
