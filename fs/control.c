/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control.c - the control files as a whole: names of the root, open files, requests; contract in control.h.
 *
 * A request: begun (linked into c->reqs) -> answered at once, or parked -> ended by exactly one owner:
 *   JOB_INGEST  the metadata thread that works on it
 *   JOB_WAIT    the engine's answer, or the interrupt that withdrew it from the engine
 *   JOB_RECORD  whoever unlinks it under c->lock: the poller, an interrupt, the shutdown
 */
#include "fs/control.h"
#include "fs/control_i.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_LEFT_MS 1000u /* a reader of record has so long for what is left at the end; it looks every few ms */
#define RECORD_LOOK_MS 5u
#define RECORD_POLL_MS 50u /* the engine has no wake-up for it; a person reading along does not notice */

static const struct {
	const char *name;
	enum control_kind kind;
} root_names[] = {
	{"README", CONTROL_README}, {"order", CONTROL_ORDER},	{"streams", CONTROL_STREAMS},
	{"status", CONTROL_STATUS}, {"errors", CONTROL_ERRORS}, {"prefetch", CONTROL_PREFETCH},
	{"wait", CONTROL_WAIT},	    {"record", CONTROL_RECORD}, {"metrics", CONTROL_METRICS},
	{"verify", CONTROL_VERIFY},
};
#define N_ROOT_NAMES (sizeof(root_names) / sizeof(root_names[0]))

/* ---- life ------------------------------------------------------------------------------------------------ */

static void *poll_records(void *arg);

int control_create(struct hintfs *h, struct control **ret_c)
{
	struct control *c = calloc(1, sizeof(*c));
	struct control_stream *s;
	int rc;

	if (!c)
		return -ENOMEM;
	c->h = h;
	hfs_mutex_init(&c->lock, HFS_RANK_CONTROL_TABLE);
	hfs_cond_init(&c->cond);
	control_errors_init(&c->errors);
	c->mount = strdup(h->opts.mountpoint ? h->opts.mountpoint : "");
	rc = c->mount ? control_stream_get(c, "default", true, &s) : -ENOMEM;
	if (rc == 0)
		control_stream_put(c, s);
	if (rc == 0)
		rc = -pthread_create(&c->poller, NULL, poll_records, c);
	if (rc < 0) {
		atomic_store(&c->is_stopping, true);
		control_destroy(c);
		return rc;
	}
	c->has_poller = true;
	*ret_c = c;
	return 0;
}

void control_destroy(struct control *c)
{
	if (!c)
		return;
	for (struct control_file *f = c->files, *next; f; f = next) { /* no RELEASE comes of a mount that went while they were open */
		next = f->next;
		f->refs = 1;
		control_file_put(f);
	}
	for (uint32_t i = 0; i < c->n_streams; i++)
		if (c->streams[i])
			control_stream_put(c, c->streams[i]);
	control_errors_finish(&c->errors);
	hfs_cond_finish(&c->cond);
	hfs_mutex_finish(&c->lock);
	free(c->mount);
	free(c);
}

/* A wait or a read of record, still linked: NULL when there is none. The waits are withdrawn from the engine. */
static struct control_req *next_parked(struct control *c);
static bool record_try(struct control_req *r);

static bool has_unread_record_locked(const struct control *c)
{
	for (const struct control_file *f = c->files; f; f = f->next)
		if (f->record && f->refs > 0 && engine_record_has_more(f->record))
			return true;
	return false;
}

/* The mount has ended: who records it gets the last of it too. The session and the poller are still at work. */
static void let_records_end(struct control *c)
{
	uint64_t until_ns = hfs_now_ns() + RECORD_LEFT_MS * HFS_NS_PER_MS;

	engine_record_settle(c->h->engine);
	hfs_mutex_lock(&c->lock);
	while (has_unread_record_locked(c) && hfs_now_ns() < until_ns)
		(void)hfs_cond_wait_until(&c->cond, &c->lock, hfs_now_ns() + RECORD_LOOK_MS * HFS_NS_PER_MS);
	hfs_mutex_unlock(&c->lock);
}

bool control_shutdown(struct control *c, unsigned wait_ms)
{
	struct control_req *r;
	uint64_t deadline;
	bool is_quiet;

	if (!atomic_load(&c->is_stopping) && c->h->engine)
		let_records_end(c);
	deadline = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	hfs_mutex_lock(&c->lock);
	atomic_store(&c->is_stopping, true);
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
	if (c->has_poller) {
		pthread_join(c->poller, NULL);
		c->has_poller = false;
	}
	while ((r = next_parked(c)) != NULL)
		if (r->i.job != JOB_RECORD || !record_try(r))
			control_req_end(c, r, -ESHUTDOWN, NULL);
	hfs_mutex_lock(&c->lock);
	while ((c->reqs || c->n_jobs > 0) && hfs_cond_wait_until(&c->cond, &c->lock, deadline))
		;
	is_quiet = !c->reqs && c->n_jobs == 0;
	hfs_mutex_unlock(&c->lock);
	return is_quiet;
}

/* ---- names --------------------------------------------------------------------------------------------------- */

int control_lookup(struct control *c, enum control_kind parent, const char *name, struct control_node *ret)
{
	struct control_stream *s;

	if (parent == CONTROL_STREAMS) {
		HFS_TRY(control_stream_get(c, name, false, &s));
		*ret = (struct control_node){.kind = CONTROL_STREAM, .slot = s->slot, .serial = s->serial};
		control_stream_put(c, s);
		return 0;
	}
	for (size_t i = 0; parent == CONTROL_ROOT && i < N_ROOT_NAMES; i++) {
		if (strcmp(root_names[i].name, name) == 0) {
			*ret = (struct control_node){.kind = root_names[i].kind};
			return 0;
		}
	}
	return -ENOENT;
}

int control_make(struct control *c, enum control_kind parent, const char *name, struct control_node *ret)
{
	struct control_stream *s;

	if (parent != CONTROL_STREAMS)
		return control_lookup(c, parent, name, ret);
	HFS_TRY(control_stream_get(c, name, true, &s));
	*ret = (struct control_node){.kind = CONTROL_STREAM, .slot = s->slot, .serial = s->serial};
	control_stream_put(c, s);
	return 0;
}

bool control_node_exists(struct control *c, const struct control_node *n)
{
	struct control_stream *s;

	if (n->kind != CONTROL_STREAM)
		return n->kind >= CONTROL_ROOT && n->kind < CONTROL_KINDS;
	s = control_stream_of(c, n);
	if (s)
		control_stream_put(c, s);
	return s != NULL;
}

static int list_streams(struct control *c, int (*cb)(void *ctx, const char *name, const struct control_node *n),
			void *ctx)
{
	int rc = 0;

	for (uint32_t slot = 0; rc == 0; slot++) {
		struct control_node n = {.kind = CONTROL_STREAM, .slot = slot};
		char name[CONTROL_NAME_MAX + 1];
		bool is_end, is_free = true;

		hfs_mutex_lock(&c->lock);
		is_end = slot >= c->n_streams;
		if (!is_end && c->streams[slot]) {
			is_free = false;
			n.serial = c->streams[slot]->serial;
			memcpy(name, c->streams[slot]->name, sizeof(name));
		}
		hfs_mutex_unlock(&c->lock);
		if (is_end)
			break;
		if (!is_free)
			rc = cb(ctx, name, &n);
	}
	return rc;
}

int control_list(struct control *c, enum control_kind dir,
		 int (*cb)(void *ctx, const char *name, const struct control_node *n), void *ctx)
{
	int rc = 0;

	if (dir == CONTROL_STREAMS)
		return list_streams(c, cb, ctx);
	for (size_t i = 0; rc == 0 && i < N_ROOT_NAMES; i++)
		rc = cb(ctx, root_names[i].name, &(struct control_node){.kind = root_names[i].kind});
	return rc;
}

unsigned control_access(enum control_kind kind)
{
	switch (kind) {
	case CONTROL_README:
	case CONTROL_STATUS:
	case CONTROL_RECORD:
	case CONTROL_METRICS:
		return 4;
	default:
		return 6;
	}
}

/* ---- open files -------------------------------------------------------------------------------------------------- */

void control_file_get(struct control_file *f)
{
	hfs_mutex_lock(&f->c->lock);
	f->refs++;
	hfs_mutex_unlock(&f->c->lock);
}

/* Files that say what is going on can be opened also when all others are used up. */
static unsigned is_report(enum control_kind kind)
{
	return kind != CONTROL_ORDER && kind != CONTROL_STREAM && kind != CONTROL_WAIT && kind != CONTROL_RECORD;
}

void control_file_put(struct control_file *f)
{
	struct control *c = f->c;
	unsigned left;

	hfs_mutex_lock(&c->lock);
	left = --f->refs;
	hfs_mutex_unlock(&c->lock);
	if (left > 0)
		return;
	control_ingest_destroy(f);
	if (f->record)
		engine_record_close(f->record);
	if (f->stream)
		control_stream_put(c, f->stream);
	hfs_mutex_lock(&c->lock);
	c->n_files[is_report(f->kind)]--;
	*f->at = f->next;
	if (f->next)
		f->next->at = f->at;
	hfs_mutex_unlock(&c->lock);
	free(f->text);
	free(f);
}

bool control_file_try_claim(struct control_file *f)
{
	bool is_mine;

	hfs_mutex_lock(&f->c->lock);
	is_mine = !f->is_busy;
	f->is_busy = true;
	hfs_mutex_unlock(&f->c->lock);
	return is_mine;
}

void control_file_claim(struct control_file *f)
{
	hfs_mutex_lock(&f->c->lock);
	while (f->is_busy)
		hfs_cond_wait(&f->c->cond, &f->c->lock);
	f->is_busy = true;
	hfs_mutex_unlock(&f->c->lock);
}

void control_file_unclaim(struct control_file *f)
{
	hfs_mutex_lock(&f->c->lock);
	f->is_busy = false;
	hfs_cond_broadcast(&f->c->cond);
	hfs_mutex_unlock(&f->c->lock);
}

static int open_stream(struct control *c, const struct control_node *n, struct control_file *f)
{
	if (n->kind == CONTROL_ORDER)
		return control_stream_get(c, "default", true, &f->stream);
	f->stream = control_stream_of(c, n);
	return f->stream ? 0 : -ENOENT;
}

static int open_record(struct control *c, struct control_file *f)
{
	struct engine_record *record;

	HFS_TRY(engine_record_open(c->h->engine, &record));
	hfs_mutex_lock(&c->lock); /* the shutdown may be looking at all files */
	f->record = record;
	hfs_mutex_unlock(&c->lock);
	return 0;
}

static int open_kind(struct control *c, const struct control_node *n, int flags, struct control_file *f)
{
	switch (n->kind) {
	case CONTROL_ORDER:
	case CONTROL_STREAM:
		f->is_trunc = f->is_writer && (flags & O_TRUNC);
		return open_stream(c, n, f);
	case CONTROL_RECORD:
		return open_record(c, f);
	case CONTROL_ERRORS:
		if (f->is_writer && (flags & O_TRUNC))
			control_errors_clear(&c->errors);
		return 0;
	case CONTROL_ROOT:
	case CONTROL_STREAMS:
		return -EISDIR;
	default:
		return 0;
	}
}

int control_open(struct control *c, const struct control_node *n, int flags, struct control_file **ret_f)
{
	struct control_file *f = calloc(1, sizeof(*f));
	unsigned access = control_access(n->kind);
	bool has_room;
	int rc;

	if (!f)
		return -ENOMEM;
	f->c = c;
	f->kind = n->kind;
	f->refs = 1;
	f->is_reader = (flags & O_ACCMODE) != O_WRONLY;
	f->is_writer = (flags & O_ACCMODE) != O_RDONLY;
	f->is_nonblock = flags & O_NONBLOCK;
	hfs_mutex_lock(&c->lock);
	has_room = c->n_files[is_report(f->kind)] < CONTROL_FILES_MAX;
	c->n_files[is_report(f->kind)] += has_room;
	if (has_room) {
		f->next = c->files;
		f->at = &c->files;
		if (f->next)
			f->next->at = &f->next;
		c->files = f;
	}
	hfs_mutex_unlock(&c->lock);
	if (!has_room) {
		free(f);
		return -ENFILE;
	}
	if (atomic_load(&c->is_stopping))
		rc = -ESHUTDOWN;
	else if ((f->is_reader && !(access & 4)) || (f->is_writer && !(access & 2)))
		rc = -EACCES;
	else
		rc = open_kind(c, n, flags, f);
	if (rc < 0) {
		f->is_trunc = false;
		control_file_put(f);
		return rc;
	}
	*ret_f = f;
	return 0;
}

void control_release(struct control_file *f)
{
	if (f->stream && f->is_writer)
		control_ingest_release(f);
	else
		control_file_put(f);
}

void control_file_truncate(struct control_file *f)
{
	if (f->kind == CONTROL_ERRORS)
		control_errors_clear(&f->c->errors);
	if (!f->stream || !f->is_writer || !control_file_try_claim(f))
		return;
	f->is_trunc = true;
	f->is_accepted = f->has_cursor = false;
	control_file_unclaim(f);
}

int control_truncate(struct control *c, const struct control_node *n)
{
	struct control_file f = {.c = c};

	if (n->kind == CONTROL_ERRORS)
		control_errors_clear(&c->errors);
	if (n->kind != CONTROL_ORDER && n->kind != CONTROL_STREAM)
		return 0;
	HFS_TRY(open_stream(c, n, &f));
	engine_stream_cancel(c->h->engine, f.stream->engine_id);
	atomic_store(&f.stream->has_batches, false);
	control_stream_put(c, f.stream);
	return 0;
}

/* ---- requests
 * -------------------------------------------------------------------------------------------------------- */

int control_req_begin(struct control *c, struct control_req *r, uint64_t *ret_id)
{
	bool is_in;

	memset(&r->i, 0, sizeof(r->i));
	hfs_mutex_lock(&c->lock);
	is_in = !atomic_load(&c->is_stopping);
	if (is_in) {
		*ret_id = r->i.id = ++c->last_req_id;
		r->i.is_linked = true;
		r->i.next = c->reqs;
		if (c->reqs)
			c->reqs->i.prev = r;
		c->reqs = r;
	}
	hfs_mutex_unlock(&c->lock);
	return is_in ? 0 : -ESHUTDOWN;
}

static void unlink_locked(struct control *c, struct control_req *r)
{
	if (!r->i.is_linked)
		return;
	if (r->i.prev)
		r->i.prev->i.next = r->i.next;
	else
		c->reqs = r->i.next;
	if (r->i.next)
		r->i.next->i.prev = r->i.prev;
	r->i.is_linked = false;
}

void control_req_end(struct control *c, struct control_req *r, ssize_t result, const char *data)
{
	char *own = r->i.data;
	void *wait = r->i.wait;

	hfs_mutex_lock(&c->lock);
	unlink_locked(c, r);
	c->n_jobs++; /* until done() is back: a shutdown waits for it */
	hfs_mutex_unlock(&c->lock);
	r->i.data = NULL;
	r->i.wait = NULL;
	r->done(r, result, data);
	free(own);
	control_wait_free(wait);
	hfs_mutex_lock(&c->lock);
	c->n_jobs--;
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
}

struct control_req *control_req_find_locked(struct control *c, uint64_t id)
{
	struct control_req *r = c->reqs;

	while (r && r->i.id != id)
		r = r->i.next;
	return r;
}

void control_req_dispatch(struct control_req *r, void (*fn)(void *req))
{
	struct control *c = r->i.file->c;
	int rc;

	hfs_mutex_lock(&c->lock);
	r->i.job = JOB_INGEST;
	hfs_mutex_unlock(&c->lock);
	rc = meta_run(c->h->meta, fn, r);
	if (rc < 0)
		control_req_end(c, r, rc, NULL);
}

static struct control_req *next_parked(struct control *c)
{
	struct control_req *r, *found = NULL;
	uint64_t id = 0, token = 0;

	for (;;) {
		hfs_mutex_lock(&c->lock);
		for (r = c->reqs; r && r->i.job != JOB_RECORD && !(r->i.job == JOB_WAIT && r->i.has_token);
		     r = r->i.next)
			;
		if (r && r->i.job == JOB_RECORD) {
			unlink_locked(c, r);
			found = r;
		} else if (r) {
			id = r->i.id;
			token = r->i.token;
			r->i.has_token = false;
		}
		hfs_mutex_unlock(&c->lock);
		if (!r || found)
			return found;
		if (!engine_wait_cancel(c->h->engine, token))
			continue; /* its answer is on the way */
		hfs_mutex_lock(&c->lock);
		found = control_req_find_locked(c, id);
		if (found)
			unlink_locked(c, found);
		hfs_mutex_unlock(&c->lock);
		if (found)
			return found;
	}
}

void control_interrupt(struct control *c, uint64_t id)
{
	struct control_req *r, *ended = NULL;
	uint64_t token = 0;
	bool is_wait = false;

	hfs_mutex_lock(&c->lock);
	r = control_req_find_locked(c, id);
	if (r) {
		r->i.is_interrupted = true;
		is_wait = r->i.job == JOB_WAIT && r->i.has_token;
		token = r->i.token;
		if (is_wait)
			r->i.has_token = false;
		if (r->i.job == JOB_RECORD) {
			unlink_locked(c, r);
			ended = r;
		}
		hfs_cond_broadcast(&c->cond);
	}
	hfs_mutex_unlock(&c->lock);
	if (is_wait && engine_wait_cancel(c->h->engine, token)) {
		hfs_mutex_lock(&c->lock);
		ended = control_req_find_locked(c, id);
		if (ended)
			unlink_locked(c, ended);
		hfs_mutex_unlock(&c->lock);
	}
	if (ended) {
		atomic_fetch_add(&c->interrupted, 1);
		control_req_end(c, ended, -EINTR, NULL);
	}
}

/* ---- reading
 * ------------------------------------------------------------------------------------------------------------ */

static int make_text(struct control_file *f)
{
	struct control *c = f->c;
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	switch (f->kind) {
	case CONTROL_README:
		control_print_readme(c, out);
		break;
	case CONTROL_STATUS:
		control_print_status(c, out);
		break;
	case CONTROL_ERRORS:
		control_errors_print(&c->errors, out);
		break;
	case CONTROL_METRICS:
		control_print_metrics(c, out);
		break;
	case CONTROL_VERIFY:
		control_print_verify(c, out);
		break;
	case CONTROL_PREFETCH: {
		enum sched_prefetch mode = engine_prefetch_get(c->h->engine);

		fputs(mode == SCHED_PREFETCH_ON ? "on\n" : mode == SCHED_PREFETCH_OFF ? "off\n" : "pause\n", out);
		break;
	}
	default:
		break;
	}
	if (fclose(out) != 0) {
		free(text);
		return -ENOMEM;
	}
	free(f->text);
	f->text = text;
	f->text_len = len;
	return 0;
}

/* A text is made when its first byte is read, so that it is of one moment, and again at every later read from 0. */
static ssize_t read_text(struct control_file *f, uint64_t off, size_t size, const char **ret_data)
{
	if (off == 0 || !f->text)
		HFS_TRY(make_text(f));
	if (off >= f->text_len)
		return 0;
	*ret_data = f->text + off;
	return (ssize_t)(size < f->text_len - off ? size : f->text_len - off);
}

/* Hand what the recorder has to a parked read; false: nothing yet. */
static bool record_try(struct control_req *r)
{
	struct control *c = r->i.file->c;
	size_t cap = r->i.poll_size < 65536 ? r->i.poll_size : 65536;
	char *buf = malloc(cap ? cap : 1);
	size_t n = buf ? control_record_read(r->i.file, buf, cap) : 0;

	if (n > 0 || !buf)
		control_req_end(c, r, buf ? (ssize_t)n : -ENOMEM, buf);
	free(buf);
	return n > 0 || !buf;
}

static void read_record(struct control_file *f, size_t size, struct control_req *r)
{
	struct control *c = f->c;
	bool is_interrupted;

	r->i.poll_size = size;
	if (record_try(r))
		return;
	if (f->is_nonblock) {
		control_req_end(c, r, -EAGAIN, NULL);
		return;
	}
	hfs_mutex_lock(&c->lock);
	r->i.job = JOB_RECORD;
	is_interrupted = r->i.is_interrupted;
	if (is_interrupted)
		unlink_locked(c, r);
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
	if (is_interrupted)
		control_req_end(c, r, -EINTR, NULL);
}

/* REQUIRES the claim, gives it up. */
static void read_claimed(struct control_file *f, uint64_t off, size_t size, struct control_req *r)
{
	const char *data = NULL;
	ssize_t n;

	if (f->stream)
		n = control_stream_read(f, off, size, &data);
	else if (f->kind == CONTROL_WAIT)
		n = 0;
	else
		n = read_text(f, off, size, &data);
	/* The data lives in f: answer before the claim is given up, with a reference in case that is the last use of f.
	 */
	control_file_get(f);
	control_req_end(f->c, r, n, data);
	control_file_unclaim(f);
	control_file_put(f);
}

static void read_job(void *arg)
{
	struct control_req *r = arg;

	control_file_claim(r->i.file);
	read_claimed(r->i.file, r->i.token, r->i.poll_size, r);
}

void control_read(struct control_file *f, uint64_t off, size_t size, struct control_req *r)
{
	r->i.file = f;
	if (f->kind == CONTROL_RECORD) {
		read_record(f, size, r);
	} else if (control_file_try_claim(f)) {
		read_claimed(f, off, size, r);
	} else { /* another thread is in the same descriptor */
		r->i.token = off;
		r->i.poll_size = size;
		control_req_dispatch(r, read_job);
	}
}

static uint64_t next_record_locked(struct control *c, uint64_t after)
{
	uint64_t id = 0;

	for (struct control_req *r = c->reqs; r; r = r->i.next)
		if (r->i.job == JOB_RECORD && r->i.id > after && (id == 0 || r->i.id < id))
			id = r->i.id;
	return id;
}

/* Reads of record wait here. A request is taken out of the list while it is tried, so that only one ends it. */
static void *poll_records(void *arg)
{
	struct control *c = arg;
	uint64_t id = 0;

	pthread_setname_np(pthread_self(), "hfs-record");
	hfs_mutex_lock(&c->lock);
	while (!atomic_load(&c->is_stopping)) {
		struct control_req *r;

		id = next_record_locked(c, id);
		if (id == 0) {
			if (next_record_locked(c, 0) != 0)
				hfs_cond_wait_until(&c->cond, &c->lock, hfs_now_ns() + RECORD_POLL_MS * HFS_NS_PER_MS);
			else
				hfs_cond_wait(&c->cond, &c->lock);
			continue;
		}
		r = control_req_find_locked(c, id);
		r->i.job = JOB_TRYING;
		hfs_mutex_unlock(&c->lock);
		if (record_try(r)) {
			hfs_mutex_lock(&c->lock);
			continue;
		}
		hfs_mutex_lock(&c->lock);
		r->i.job = JOB_RECORD;
		if (!r->i.is_interrupted)
			continue;
		unlink_locked(c, r);
		hfs_mutex_unlock(&c->lock);
		control_req_end(c, r, -EINTR, NULL);
		hfs_mutex_lock(&c->lock);
	}
	hfs_mutex_unlock(&c->lock);
	return NULL;
}

/* ---- writing
 * ---------------------------------------------------------------------------------------------------------------- */

/* `prefetch`: on | off | pause, one word a write. */
static ssize_t write_prefetch(struct control_file *f, const char *data, size_t len, pid_t tid)
{
	static const char *const words[] = {"on", "off", "pause"};
	static const enum sched_prefetch modes[] = {SCHED_PREFETCH_ON, SCHED_PREFETCH_OFF, SCHED_PREFETCH_PAUSE};
	size_t n = control_word_len(data, len);

	for (size_t i = 0; i < 3; i++) {
		if (strlen(words[i]) == n && memcmp(words[i], data, n) == 0) {
			engine_prefetch_set(f->c->h->engine, modes[i]);
			return (ssize_t)len;
		}
	}
	return control_word_refused(&f->c->errors, tid, "prefetch", data, n, -EINVAL, "expected on, off or pause");
}

void control_write(struct control_file *f, const char *data, size_t len, struct control_req *r)
{
	struct control *c = f->c;

	r->i.file = f;
	if (f->stream)
		control_ingest_write(f, data, len, r);
	else if (f->kind == CONTROL_WAIT)
		control_wait_write(f, data, len, r);
	else if (f->kind == CONTROL_PREFETCH)
		control_req_end(c, r, write_prefetch(f, data, len, r->tid), NULL);
	else if (f->kind == CONTROL_VERIFY)
		control_req_end(c, r, control_write_verify(f, data, len, r->tid), NULL);
	else
		control_req_end(c, r, -EINVAL, NULL); /* errors: may only be truncated */
}

void control_flush(struct control_file *f, struct control_req *r)
{
	r->i.file = f;
	if (f->stream && f->is_writer)
		control_ingest_flush(f, r);
	else
		control_req_end(f->c, r, 0, NULL);
}
