/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_ingest.c - writes to a stream: lines are taken one by one, entries collected in runs, marks applied
 * between them.
 *
 * A file's ingest state belongs to whoever claimed the file. A write that cannot need the origin is worked off on the
 * session's thread; any other one on a metadata thread, with the request parked.
 *
 * A bad line: what came before it is appended, the writer is told the count up to it (its retry gets the errno), the
 * handle is poisoned: every later write fails the same way, so nothing is half applied without being seen.
 *
 * The unfinished last line is taken at FLUSH, if the process that closes is the one that wrote it and was not killed,
 * or at RELEASE.
 */
#include "fs/control_i.h"

#include "cache/base/time.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- small tools ------------------------------------------------------------------------------------------ */

void ingest_say(struct ingest_line *l, int err, size_t column, const char *fmt, ...)
{
	va_list ap;

	l->e.err = err;
	l->e.column = (unsigned)column;
	va_start(ap, fmt);
	vsnprintf(l->e.message, sizeof(l->e.message), fmt, ap);
	va_end(ap);
}

char *ingest_scratch(struct ingest *in, unsigned which)
{
	if (!in->scratch[which])
		in->scratch[which] = malloc(PARSE_LINE_MAX + 64);
	return in->scratch[which];
}

static int ingest_of(struct control_file *f, struct ingest **ret)
{
	if (!f->in) {
		f->in = calloc(1, sizeof(*f->in));
		if (!f->in)
			return -ENOMEM;
		parse_split_init(&f->in->split);
	}
	*ret = f->in;
	return 0;
}

void control_ingest_destroy(struct control_file *f)
{
	struct ingest *in = f->in;

	if (!in)
		return;
	ingest_names_drop(f);
	parse_split_finish(&in->split);
	for (unsigned i = 0; i < 3; i++)
		free(in->scratch[i]);
	free(in->last_raw);
	free(in->prefix);
	free(in);
	f->in = NULL;
}

void ingest_accept(struct ingest_line *l)
{
	struct control_file *f = l->f;

	if (f->is_accepted)
		return;
	f->is_accepted = true;
	if (!f->is_trunc)
		return;
	engine_stream_replace(f->c->h->engine, f->stream->engine_id);
	atomic_store(&f->stream->has_batches, false);
}

/* ---- runs of entries ---------------------------------------------------------------------------------------- */

static void give_names_back(struct control_file *f)
{
	struct ingest *in = f->in;

	for (uint32_t i = 0; i < in->n_puts; i++)
		engine_name_put(f->c->h->engine, in->puts[i]);
	in->n_puts = 0;
}

int ingest_run_flush(struct ingest_line *l)
{
	struct control_file *f = l->f;
	struct ingest *in = f->in;
	uint32_t n = in->n_run;
	int64_t taken = 0;

	in->n_run = 0;
	if (n > 0)
		taken = engine_stream_append(f->c->h->engine, f->stream->engine_id, in->run, n);
	give_names_back(f);
	if (taken == n)
		return 0;
	l->is_run_error = true;
	l->run_start = in->run_start[taken > 0 ? taken : 0];
	l->run_line_no = in->run_line[taken > 0 ? taken : 0];
	if (taken >= 0 || taken == -ENOSPC)
		return ingest_fail(l, -ENOSPC, 1,
				   "the stream is full: it holds as many entries as it may (16 Mi by default); @cancel "
				   "it, write the next "
				   "epochs later, or use @repeat");
	return ingest_fail(l, (int)taken, 1, "the entry was not taken: %s", strerror(-(int)taken));
}

int ingest_run_push(struct ingest_line *l, uint32_t name, uint64_t off_bytes, uint64_t len_bytes)
{
	struct ingest *in = l->f->in;
	uint32_t i;

	if (in->n_run == RUN_MAX || in->n_puts >= 2 * RUN_MAX)
		HFS_TRY(ingest_run_flush(l));
	i = in->n_run++;
	in->run[i] = (struct sched_entry){.file = name, .off_bytes = off_bytes, .len_bytes = len_bytes};
	in->run_start[i] = (uint32_t)l->start;
	in->run_line[i] = in->split.line_no;
	return 0;
}

/* The name's reference goes with the run: an entry that waits in it must not lose its name. */
void ingest_put_later(struct ingest_line *l, uint32_t name)
{
	struct ingest *in = l->f->in;

	assert(in->n_puts < PUTS_MAX);
	in->puts[in->n_puts++] = name;
}

/* ---- lines ---------------------------------------------------------------------------------------------------------
 */

/* Where reading is says nothing about the list: `echo '@done 3' > order` keeps it, although it opened with O_TRUNC. */
static bool is_cursor(enum sched_mark mark)
{
	return mark == SCHED_MARK_SEEK || mark == SCHED_MARK_DONE || mark == SCHED_MARK_DONE_BATCH;
}

static int apply_mark(struct ingest_line *l, const struct parse_line *p)
{
	struct control_stream *s = l->f->stream;
	enum sched_mark mark = p->mark;
	int rc;

	if (mark == SCHED_MARK_DONE && atomic_load(&s->has_batches))
		mark = SCHED_MARK_DONE_BATCH;
	HFS_TRY(ingest_run_flush(l));
	if (is_cursor(mark))
		l->f->has_cursor = true;
	else
		ingest_accept(l);
	rc = engine_stream_mark(l->f->c->h->engine, s->engine_id, mark, p->value);
	if (rc == -EINVAL)
		return ingest_fail(l, rc, 1,
				   "this makes no sense here: the number is out of range for the list so far");
	if (rc < 0)
		return ingest_fail(l, rc, 1, "not taken: %s", strerror(-rc));
	if (mark == SCHED_MARK_BATCH || mark == SCHED_MARK_BATCH_NEXT)
		atomic_store(&s->has_batches, true);
	return 0;
}

static int apply_cancel(struct ingest_line *l)
{
	struct control_stream *s = l->f->stream;

	HFS_TRY(ingest_run_flush(l));
	ingest_accept(l);
	engine_stream_cancel(l->f->c->h->engine, s->engine_id);
	atomic_store(&s->has_batches, false);
	return 0;
}

static int apply_prefix(struct ingest_line *l, const struct parse_line *p)
{
	struct ingest *in = l->f->in;
	char *prefix = strndup(p->path, p->path_len);

	if (!prefix)
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	free(in->prefix);
	in->prefix = prefix;
	in->prefix_len = p->path_len;
	in->last = NULL; /* the same text may mean another path now */
	return 0;
}

static int apply_line(struct ingest_line *l)
{
	struct ingest *in = l->f->in;
	struct parse_line p;

	if (l->len > 0 && *l->text == '"' && !ingest_scratch(in, 0))
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	HFS_TRY(parse_line(l->text, l->len, in->scratch[0], &p, &l->e));
	switch (p.kind) {
	case PARSE_ENTRY:
		return ingest_entry(l, &p);
	case PARSE_MARK:
		return apply_mark(l, &p);
	case PARSE_CANCEL:
		return apply_cancel(l);
	case PARSE_PREFIX:
		return apply_prefix(l, &p);
	case PARSE_NOTHING:
		break;
	}
	return 0;
}

/* A bad line is told to the ring, and the handle refuses all that follows. */
static void reject(struct ingest_line *l, uint64_t line_no, const char *text, size_t len)
{
	struct control_file *f = l->f;

	atomic_fetch_add(&f->c->rejected, 1);
	atomic_fetch_add(&f->stream->rejected_lines, 1);
	f->in->poison = l->e.err == -EINTR ? -ECANCELED : l->e.err;
	parse_split_drop(&f->in->split);
	control_errors_add(&f->c->errors, &(struct control_error){.tid = l->r ? l->r->tid : 0,
								  .stream = f->stream->name,
								  .line_no = line_no,
								  .line = text,
								  .line_len = len,
								  .e = &l->e});
}

/* As reject(), for the line that e is about: the one under way, or one whose entry waited in the run. data: the write,
 * or NULL. */
static size_t reject_line(struct ingest_line *l, const char *data, size_t len)
{
	const char *text = l->text, *lf;
	size_t rest = l->len;

	if (!l->is_run_error) {
		reject(l, l->f->in->split.line_no, text, rest);
		return l->start;
	}
	if (data) {
		text = data + l->run_start;
		rest = len - l->run_start;
	}
	lf = text && rest > 0 ? memchr(text, '\n', rest) : NULL;
	reject(l, l->run_line_no, text, lf ? (size_t)(lf - text) : rest);
	return l->run_start;
}

static int check_state(struct control_file *f)
{
	if (atomic_load(&f->c->is_stopping))
		return -ESHUTDOWN;
	if (atomic_load(&f->stream->is_removed))
		return -ECANCELED;
	return f->in->poison;
}

/* The count of accepted bytes, or the errno where that is 0. REQUIRES the claim. */
static ssize_t ingest_data(struct control_file *f, const char *data, size_t len, struct control_req *r)
{
	struct ingest *in = f->in;
	struct ingest_line l = {.f = f, .r = r, .text = ""};
	size_t pos = 0, bad = 0;
	uint64_t lines = 0;
	int rc = check_state(f), next;

	if (rc < 0)
		return rc;
	for (;;) {
		next = parse_split_next(&in->split, data, len, &pos, &l.text, &l.len, &l.start);
		if (next != 1)
			break;
		rc = apply_line(&l);
		if (rc < 0)
			break;
		if ((++lines & 1023) == 0 && (rc = check_state(f)) < 0) {
			ingest_say(&l, rc, 1, "%s", rc == -ECANCELED ? "the stream was removed" : "hintfs is ending");
			break;
		}
	}
	atomic_fetch_add(&f->stream->accepted_lines, lines);
	atomic_fetch_add(&f->c->lines, lines);
	if (next < 0) {
		rc = next;
		if (rc == -EMSGSIZE)
			ingest_say(&l, rc, 1, "line longer than %u bytes", PARSE_LINE_MAX);
		else
			ingest_say(&l, rc, 1, "out of memory");
		l.text = data + l.start;
		l.len = len - l.start;
	}
	if (!l.is_run_error) {
		struct ingest_line end =
			l; /* what the good lines before left in the run; an error of theirs comes first */

		if (ingest_run_flush(&end) < 0) {
			l = end;
			rc = l.e.err;
		}
	}
	if (rc < 0) {
		bad = reject_line(&l, data, len);
	} else {
		in->has_tail_of = in->split.tail_len > 0 && !in->split.is_tail_out;
		in->tail_tid = r ? r->tid : 0;
		return (ssize_t)len;
	}
	return bad > 0 ? (ssize_t)bad : rc;
}

/* The line without an LF, at the end of a writer or of the file. */
static int ingest_last(struct control_file *f, struct control_req *r)
{
	struct ingest_line l = {.f = f, .r = r, .text = ""};
	struct ingest *in = f->in;
	int rc = check_state(f);

	in->has_tail_of = false;
	if (parse_split_last(&in->split, &l.text, &l.len) == 0 || rc < 0) {
		parse_split_drop(&in->split);
		return rc;
	}
	rc = apply_line(&l);
	if (rc == 0)
		rc = ingest_run_flush(&l);
	if (rc < 0) {
		(void)reject_line(&l, NULL, 0);
	} else {
		atomic_fetch_add(&f->stream->accepted_lines, 1);
		atomic_fetch_add(&f->c->lines, 1);
	}
	return rc;
}

/* ---- write
 * ------------------------------------------------------------------------------------------------------------- */

static void write_job(void *arg)
{
	struct control_req *r = arg;
	struct control_file *f = r->i.file;
	struct control *c = f->c;
	ssize_t n;

	control_file_get(f);
	control_file_claim(f);
	n = ingest_data(f, r->i.data, r->i.len, r);
	control_file_unclaim(f);
	control_req_end(c, r, n, NULL);
	control_file_put(f);
}

void control_ingest_write(struct control_file *f, const char *data, size_t len, struct control_req *r)
{
	struct control *c = f->c;
	struct ingest *in;
	ssize_t n;

	if (!atomic_exchange(&f->is_writer_noted, true))
		engine_guest_note(c->h->engine, r->uid, r->gid, (uint32_t)r->tid);
	if (control_file_try_claim(f)) {
		n = ingest_of(f, &in);
		if (n < 0 || !ingest_needs_origin(in, data, len)) {
			if (n == 0)
				n = ingest_data(f, data, len, r);
			control_file_unclaim(f);
			control_req_end(c, r, n, NULL);
			return;
		}
		control_file_unclaim(f);
	}
	r->i.data = malloc(len ? len : 1);
	if (!r->i.data) {
		control_req_end(c, r, -ENOMEM, NULL);
		return;
	}
	memcpy(r->i.data, data, len);
	r->i.len = len;
	control_req_dispatch(r, write_job);
}

/* ---- flush and release
 * -------------------------------------------------------------------------------------------------------- */

static bool is_same_process(pid_t a, pid_t b)
{
	pid_t a_tgid, b_tgid;
	char comm[32];

	if (a == b || a <= 0 || b <= 0)
		return true;
	control_who(a, &a_tgid, comm);
	control_who(b, &b_tgid, comm);
	return a_tgid == b_tgid;
}

static void flush_job(void *arg)
{
	struct control_req *r = arg;
	struct control_file *f = r->i.file;
	struct control *c = f->c;
	int rc;

	control_file_get(f);
	control_file_claim(f);
	rc = ingest_last(f, r);
	control_file_unclaim(f);
	control_req_end(c, r, rc, NULL);
	control_file_put(f);
}

/*
 * Shells flush before they write, and a forked child that ends flushes what its parent is still writing: only the
 * writer's own close ends its line. A killed writer leaves whole lines only.
 */
void control_ingest_flush(struct control_file *f, struct control_req *r)
{
	bool has_last = false;

	if (control_file_try_claim(f)) {
		struct ingest *in = f->in;

		if (in && in->has_tail_of && is_same_process(in->tail_tid, r->tid)) {
			if (control_was_killed(r->tid)) {
				parse_split_drop(&in->split);
				in->has_tail_of = false;
			}
			has_last = in->has_tail_of;
		}
		control_file_unclaim(f);
	}
	if (has_last)
		control_req_dispatch(r, flush_job);
	else
		control_req_end(f->c, r, 0, NULL);
}

/* `: >` cancels; so does an order of nothing but comments. After a bad first line the old list stays. */
static void cancel_if_empty(struct control_file *f)
{
	if (!f->is_trunc || f->is_accepted || f->has_cursor || (f->in && f->in->poison < 0) || atomic_load(&f->c->is_stopping) ||
	    atomic_load(&f->stream->is_removed))
		return;
	engine_stream_cancel(f->c->h->engine, f->stream->engine_id);
	atomic_store(&f->stream->has_batches, false);
}

static void release_job(void *arg)
{
	struct control_file *f = arg;
	struct control *c = f->c;

	control_file_claim(f);
	(void)ingest_last(f, NULL); /* nobody is left to be told; the ring has it */
	cancel_if_empty(f);
	control_file_unclaim(f);
	control_file_put(f);
	hfs_mutex_lock(&c->lock);
	c->n_jobs--;
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
}

void control_ingest_release(struct control_file *f)
{
	struct control *c = f->c;

	if (f->in && f->in->has_tail_of && f->in->poison == 0 && !atomic_load(&c->is_stopping)) {
		hfs_mutex_lock(&c->lock);
		c->n_jobs++;
		hfs_mutex_unlock(&c->lock);
		if (meta_run(c->h->meta, release_job, f) == 0)
			return;
		hfs_mutex_lock(&c->lock);
		c->n_jobs--;
		hfs_mutex_unlock(&c->lock);
	}
	cancel_if_empty(f);
	control_file_put(f);
}
