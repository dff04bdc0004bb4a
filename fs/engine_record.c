/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_record.c - accesses as they happen, as lines of the control grammar, for whoever has .ctl/record open.
 *
 * One ring of text for all readers; each has its own place in it. A reader that is overtaken goes on at the oldest whole line and
 * gets a comment line that says how many bytes it missed.
 */
#include "fs/engine_i.h"
#include "sched/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES (6u * 4096 + 64) /* a path of PATH_MAX bytes, a JSON escape of six for each, two numbers */

struct engine_record {
	struct engine *e;
	uint64_t at;
};

static void ring_put_locked(struct engine *e, const char *s, size_t n)
{
	size_t at = e->record_end % RECORD_BYTES, first = RECORD_BYTES - at < n ? RECORD_BYTES - at : n;

	memcpy(e->record + at, s, first);
	memcpy(e->record, s + first, n - first);
	e->record_end += n;
}

/* The line is made behind the ring. A path that no file can have is left out. */
void record_read(struct engine *e, const char *path, uint64_t off, uint64_t len)
{
	char *line;
	size_t n;

	if (len == 0)
		return; /* at the end of the file; written down, it would mean "to the end" */
	hfs_mutex_lock(&e->record_lock);
	if (e->record) {
		line = e->record + RECORD_BYTES;
		n = parse_path_quote(path, strlen(path), line, LINE_MAX_BYTES);
		if (n < LINE_MAX_BYTES - 64) {
			n += (size_t)snprintf(line + n, LINE_MAX_BYTES - n, "\t%llu\t%llu\n", (unsigned long long)off,
					      (unsigned long long)len);
			ring_put_locked(e, line, n);
		}
	}
	hfs_mutex_unlock(&e->record_lock);
}

int engine_record_open(struct engine *e, struct engine_record **ret)
{
	struct engine_record *r = calloc(1, sizeof(*r));
	int rc = r ? 0 : -ENOMEM;

	if (rc)
		return rc;
	r->e = e;
	hfs_mutex_lock(&e->record_lock);
	if (!e->record)
		e->record = malloc(RECORD_BYTES + LINE_MAX_BYTES);
	rc = e->record ? 0 : -ENOMEM;
	r->at = e->record_end;
	hfs_mutex_unlock(&e->record_lock);
	if (rc) {
		free(r);
		return rc;
	}
	atomic_fetch_add(&e->n_recorders, 1);
	*ret = r;
	return 0;
}

static char ring_at(const struct engine *e, uint64_t at)
{
	return e->record[at % RECORD_BYTES];
}

size_t engine_record_read(struct engine_record *r, char *buf, size_t cap)
{
	struct engine *e = r->e;
	size_t n = 0;

	hfs_mutex_lock(&e->record_lock);
	if (e->record_end - r->at > RECORD_BYTES) {
		uint64_t at = e->record_end - RECORD_BYTES;

		while (at < e->record_end && ring_at(e, at++) != '\n')
			;
		int k = snprintf(buf, cap, "# %llu bytes of record were lost: read faster\n", (unsigned long long)(at - r->at));
		n = k > 0 && (size_t)k < cap ? (size_t)k : 0;
		r->at = at;
	}
	while (n < cap && r->at < e->record_end)
		buf[n++] = ring_at(e, r->at++);
	hfs_mutex_unlock(&e->record_lock);
	return n;
}

bool engine_record_has_more(struct engine_record *r)
{
	bool has_more;

	hfs_mutex_lock(&r->e->record_lock);
	has_more = r->at < r->e->record_end;
	hfs_mutex_unlock(&r->e->record_lock);
	return has_more;
}

void engine_record_settle(struct engine *e)
{
	struct wait *done = NULL;

	engine_enter(e);
	engine_feed_locked(e, &done);
	engine_leave(e);
	engine_calls(e, done);
}

void engine_record_close(struct engine_record *r)
{
	if (!r)
		return;
	atomic_fetch_sub(&r->e->n_recorders, 1);
	free(r);
}
