/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_errors.c - the last 64 rejected lines, each with who, where, why, and a caret under the place.
 *
 *   12:31:07 pid 4711 (python3) stream default line 3 col 2: "@bach 17": unknown directive (did you mean @batch?)
 *       @bach 17
 *       ^
 */
#include "fs/control_i.h"

#include "cache/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXCERPT_BYTES 160u /* of a long line, around the column */
#define WORD_MAX 200u	   /* of what should have been a word */

void control_errors_init(struct control_errors *r)
{
	*r = (struct control_errors){0};
	hfs_mutex_init(&r->lock, HFS_RANK_LEAF);
}

void control_errors_finish(struct control_errors *r)
{
	control_errors_clear(r);
	hfs_mutex_finish(&r->lock);
}

/* Bytes as they are where a terminal can show them; one column each, so that the caret fits. */
static void print_excerpt(FILE *out, const char *line, size_t len, size_t column)
{
	size_t at = column > 0 ? column - 1 : 0, from = 0, to = len, caret = 0;

	if (at > len)
		at = len;
	if (len > EXCERPT_BYTES) {
		from = at > EXCERPT_BYTES / 2 ? at - EXCERPT_BYTES / 2 : 0;
		to = len - from > EXCERPT_BYTES ? from + EXCERPT_BYTES : len;
	}
	fputs(from > 0 ? "    ..." : "    ", out);
	for (size_t i = from; i < to; i++) {
		unsigned char c = (unsigned char)line[i];

		fputc(c == '\t' ? ' ' : c < 0x20 || c == 0x7f ? '?' : c, out);
		if (i < at && (c & 0xc0) != 0x80)
			caret++;
	}
	fputs(to < len ? "...\n    " : "\n    ", out);
	fprintf(out, "%s%*s^\n", from > 0 ? "   " : "", (int)caret, "");
}

static char *format(const struct control_error *w)
{
	char comm[32], escaped[4 * sizeof(comm)], *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	time_t now = time(NULL);
	struct tm tm;
	pid_t tgid;

	if (!out)
		return NULL;
	control_who(w->tid, &tgid, comm);
	localtime_r(&now, &tm);
	fprintf(out, "%02d:%02d:%02d pid %d (%s) %s%s", tm.tm_hour, tm.tm_min, tm.tm_sec, (int)tgid,
		hfs_log_escape(escaped, sizeof(escaped), comm, strlen(comm)), w->line_no ? "stream " : "", w->stream);
	if (w->line_no)
		fprintf(out, " line %llu", (unsigned long long)w->line_no);
	fprintf(out, " col %u: %s [%s]\n", w->e->column, w->e->message, strerrorname_np(-w->e->err));
	if (w->line)
		print_excerpt(out, w->line, w->line_len, w->e->column);
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

void control_errors_add(struct control_errors *r, const struct control_error *what)
{
	char *text = format(what), *old;

	hfs_log_limited(HFS_LOG_WARNING, "control line rejected: %.*s", text ? (int)strcspn(text, "\n") : 0,
			text ? text : "");
	hfs_mutex_lock(&r->lock);
	old = r->text[r->next];
	r->text[r->next] = text;
	r->next = (r->next + 1) % CONTROL_ERRORS_MAX;
	r->total++;
	hfs_mutex_unlock(&r->lock);
	free(old);
}

size_t control_word_len(const char *data, size_t len)
{
	while (len > 0 && (data[len - 1] == '\n' || data[len - 1] == ' '))
		len--;
	return len;
}

int control_word_refused(struct control_errors *r, pid_t tid, const char *file, const char *word, size_t len, int err, const char *why)
{
	struct parse_error e;

	parse_say(&e, err, 1, "%s", why);
	control_errors_add(r, &(struct control_error){
				      .tid = tid, .stream = file, .line = word, .line_len = len < WORD_MAX ? len : WORD_MAX, .e = &e});
	return err;
}

void control_errors_clear(struct control_errors *r)
{
	char *old[CONTROL_ERRORS_MAX];

	hfs_mutex_lock(&r->lock);
	memcpy(old, r->text, sizeof(old));
	memset(r->text, 0, sizeof(r->text));
	hfs_mutex_unlock(&r->lock);
	for (unsigned i = 0; i < CONTROL_ERRORS_MAX; i++)
		free(old[i]);
}

void control_errors_print(struct control_errors *r, FILE *out)
{
	hfs_mutex_lock(&r->lock);
	for (unsigned i = 0; i < CONTROL_ERRORS_MAX; i++) {
		const char *text = r->text[(r->next + i) % CONTROL_ERRORS_MAX];

		if (text)
			fputs(text, out);
	}
	hfs_mutex_unlock(&r->lock);
}
