/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_wait.c - `wait`: a write that returns when a batch or a file is resident; `record`: accesses as they
 * happen.
 *
 *   batch 17                 of the stream "default"
 *   stream rank0 batch 17
 *   PATH                     as in an order; ./batch 17 for a file of that name
 *
 * One line a write: of several, the first is waited for and the writer is told how far that went, so that it comes
 * again.
 */
#include "fs/control_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct wait_line {
	struct ingest_line l; /* for the message */
	char stream[CONTROL_NAME_MAX + 1];
	bool is_batch;
	uint64_t batch;
	const char *path;
	size_t path_len;
	char scratch[4096], path_scratch[4096];
};

/* The text after `word` and blanks, or NULL. */
static const char *after_word(const char *s, const char *end, const char *word)
{
	size_t n = strlen(word);

	if ((size_t)(end - s) <= n || memcmp(s, word, n) != 0 || s[n] != ' ')
		return NULL;
	for (s += n; s < end && *s == ' '; s++)
		;
	return s;
}

static int parse_path_line(struct wait_line *w, struct control *c)
{
	const struct parse_roots roots = {.mount = c->mount, .mount_len = strlen(c->mount)};
	struct parse_line p;

	if (w->l.len >= sizeof(w->scratch))
		return parse_fail(&w->l.e, -EMSGSIZE, sizeof(w->scratch), "line too long");
	HFS_TRY(parse_line(w->l.text, w->l.len, w->scratch, &p, &w->l.e));
	if (p.kind != PARSE_ENTRY || p.has_range || p.is_dir)
		return parse_fail(&w->l.e, -EINVAL, 1, "expected \"batch N\", \"stream NAME batch N\", or the path of one file");
	HFS_TRY(parse_path(&roots, p.path, p.path_len, w->path_scratch, &w->path, &w->path_len, &w->l.e));
	return w->path_len > 0 ? 0 : parse_fail(&w->l.e, -EISDIR, 1, "a directory");
}

static int parse_wait(struct wait_line *w, struct control *c)
{
	const char *s = w->l.text, *end = s + w->l.len, *at = after_word(s, end, "stream"), *batch = NULL;

	strcpy(w->stream, "default");
	if (at) {
		/* The name may hold blanks: what counts is the last " batch ". */
		for (const char *p = at; (p = memmem(p, (size_t)(end - p), " batch ", 7)) != NULL; p++)
			batch = p;
		if (!batch || batch == at || (size_t)(batch - at) > CONTROL_NAME_MAX)
			return parse_fail(&w->l.e, -EINVAL, (size_t)(at - s) + 1, "usage: stream NAME batch N");
		memcpy(w->stream, at, (size_t)(batch - at));
		w->stream[batch - at] = '\0';
		at = batch + 7;
	} else {
		at = after_word(s, end, "batch");
	}
	if (!at)
		return parse_path_line(w, c);
	w->is_batch = true;
	if (parse_u64(at, (size_t)(end - at), &w->batch) < 0)
		return parse_fail(&w->l.e, -EINVAL, (size_t)(at - s) + 1, "bad number: expected \"batch N\"");
	return 0;
}

static void explain(struct wait_line *w, int err)
{
	const char *why = err == -ENOSPC      ? "it cannot fit into the slots: a larger memory= or smaller batches"
			  : err == -ENOENT    ? (w->is_batch ? "no such batch in the list" : "no such file")
			  : err == -ECANCELED ? "the list was dropped or replaced meanwhile"
					      : "the wait failed";

	parse_say(&w->l.e, err, 1, "%s", why);
}

static void log_error(struct control *c, struct wait_line *w, pid_t tid)
{
	control_errors_add(
		&c->errors,
		&(struct control_error){
			.tid = tid, .stream = "wait", .line = w->l.text, .line_len = w->l.len, .e = &w->l.e});
}

/* The engine's answer. The request is found by its number: an interrupt may have ended it. */
struct wait_done {
	struct control *c;
	uint64_t id;
	uint32_t name; /* a reference, so that the engine does not forget a name that only a wait knows */
	bool has_name;
};

void control_wait_free(void *wait)
{
	struct wait_done *d = wait;

	if (d && d->has_name)
		engine_name_put(d->c->h->engine, d->name);
	free(d);
}

static void log_late_error(struct control *c, struct control_req *r, int err)
{
	struct wait_line w = {.l = {.text = r->i.data, .len = r->i.len}};

	w.is_batch = r->i.len > 6 && (memcmp(r->i.data, "batch ", 6) == 0 || memcmp(r->i.data, "stream", 6) == 0);
	explain(&w, err);
	log_error(c, &w, r->tid);
}

static void wait_done(void *arg, int err)
{
	struct wait_done *d = arg;
	struct control *c = d->c;
	struct control_req *r;

	hfs_mutex_lock(&c->lock);
	r = control_req_find_locked(c, d->id);
	if (r) {
		r->i.job = JOB_NONE; /* ours: interrupt and shutdown leave it alone */
		r->i.has_token = false;
	}
	hfs_mutex_unlock(&c->lock);
	if (!r) {
		control_wait_free(d);
		return;
	}
	if (err < 0 && err != -EINTR && err != -ESHUTDOWN)
		log_late_error(c, r, err);
	control_req_end(c, r, err < 0 ? err : (ssize_t)r->i.poll_size, NULL);
}

/* Ask the engine; -errno: it refused and will not call. */
static int ask_engine(struct control *c, struct wait_line *w, struct wait_done *d, uint64_t *ret_token)
{
	struct control_stream *s;
	int rc;

	if (w->is_batch) {
		HFS_TRY(control_stream_get(c, w->stream, false, &s));
		rc = engine_wait_batch(c->h->engine, s->engine_id, w->batch, wait_done, d, ret_token);
		control_stream_put(c, s);
		return rc;
	}
	HFS_TRY(engine_name_get(c->h->engine, w->path, w->path_len, &d->name));
	d->has_name = true;
	return engine_wait_file(c->h->engine, d->name, wait_done, d, ret_token);
}

/* Note the token so that an interrupt can withdraw the wait; one that came before is dealt with here. */
static void wait_parked(struct control *c, uint64_t id, uint64_t token)
{
	struct control_req *r;
	bool is_interrupted = false;

	hfs_mutex_lock(&c->lock);
	r = control_req_find_locked(c, id);
	if (r && r->i.job == JOB_WAIT) {
		r->i.token = token;
		r->i.has_token = true;
		is_interrupted = r->i.is_interrupted || atomic_load(&c->is_stopping);
	}
	hfs_mutex_unlock(&c->lock);
	if (is_interrupted)
		control_interrupt(c, id);
}

void control_wait_write(struct control_file *f, const char *data, size_t len, struct control_req *r)
{
	struct control *c = f->c;
	const char *lf = memchr(data, '\n', len);
	struct wait_line w = {.l = {.text = data, .len = lf ? (size_t)(lf - data) : len}};
	struct wait_done *d = malloc(sizeof(*d));
	uint64_t token, id = r->i.id;
	int rc = d ? parse_wait(&w, c) : -ENOMEM;

	if (rc == 0) {
		r->i.data = strndup(data, w.l.len);
		r->i.len = r->i.data ? strlen(r->i.data) : 0;
		rc = r->i.data ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		if (rc != -ENOMEM)
			log_error(c, &w, r->tid);
		free(d);
		control_req_end(c, r, rc, NULL);
		return;
	}
	*d = (struct wait_done){.c = c, .id = id};
	r->i.wait = d;
	r->i.poll_size = w.l.len + (lf != NULL);
	hfs_mutex_lock(&c->lock);
	r->i.job = JOB_WAIT;
	hfs_mutex_unlock(&c->lock);
	rc = ask_engine(c, &w, d, &token); /* from here r may be gone, unless the engine refused */
	if (rc < 0) {
		explain(&w, rc);
		log_error(c, &w, r->tid);
		hfs_mutex_lock(&c->lock);
		r->i.job = JOB_NONE;
		hfs_mutex_unlock(&c->lock);
		control_req_end(c, r, rc, NULL);
		return;
	}
	wait_parked(c, id, token);
}

size_t control_record_read(struct control_file *f, char *buf, size_t cap)
{
	return engine_record_read(f->record, buf, cap);
}
