/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/fill.c - the worker threads: open files ahead, read pieces into slots, finish slots.
 *
 * Callers: loader.c starts fill_worker; pack.c calls slot_settle for slots that need no reading.
 * Invariants: system calls run without the lock; a piece writes only to its own bytes of its slot and the padding behind
 * its sample; the worker that brings the last piece settles the slot.
 */
#include "tools/preload/loader_i.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct piece {
	uint32_t sample_no;
	uint32_t len_bytes;
	uint64_t at; /* in the sample */
	int fd;
	int err; /* result */
};

/* Pieces of one slot that a worker reads in one go. */
struct run {
	struct slot *slot;
	uint32_t n;
	struct piece pieces[RUN_SAMPLES];
};

/* ---- handing out ------------------------------------------------------------------ */

/* Add the slot's next piece to the run. False: none left. */
static bool piece_take(struct slot *s, struct run *r, uint64_t *bytes)
{
	struct sample *m;
	uint64_t rest;
	struct piece *p;

	while (s->take_no < s->n && !s->samples[s->take_no].plan_bytes)
		s->take_no++;
	if (s->take_no >= s->n)
		return false;
	m = &s->samples[s->take_no];
	rest = m->plan_bytes - s->take_at;
	p = &r->pieces[r->n++];
	*p = (struct piece){ .sample_no = s->take_no, .at = s->take_at, .fd = m->file->fd,
			     .len_bytes = rest < PIECE_BYTES ? (uint32_t)rest : PIECE_BYTES };
	s->take_at += p->len_bytes;
	*bytes += p->len_bytes;
	if (s->take_at == m->plan_bytes) {
		s->take_no++;
		s->take_at = 0;
	}
	return true;
}

/* The oldest work there is. While others are idle one piece at a time, so that they get the next. */
static bool run_take(struct hintfs_loader *l, struct run *r)
{
	uint64_t bytes = 0;

	*r = (struct run){ 0 };
	while (l->fill_seq < l->tail_seq) {
		struct slot *s = &l->slots[l->fifo[l->fill_seq % l->n_slots]];

		r->slot = s;
		while (r->n < (l->idle_workers ? 1 : RUN_SAMPLES) && bytes < RUN_BYTES && piece_take(s, r, &bytes))
			;
		if (r->n)
			return true;
		if (!s->is_closed)
			return false;
		l->fill_seq++;
	}
	return false;
}

/* ---- reading ---------------------------------------------------------------------- */

/* Exactly len bytes, or an errno. A file that ends early was changed under the order: EIO. */
static int bytes_read(int fd, char *to, uint64_t len, uint64_t off)
{
	while (len) {
		ssize_t got = pread(fd, to, len, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			return -EIO;
		to += got;
		off += (uint64_t)got;
		len -= (uint64_t)got;
	}
	return 0;
}

static void run_read(const struct hintfs_loader *l, struct run *r)
{
	const struct slot *s = r->slot;
	uint32_t i;

	for (i = 0; i < r->n; i++) {
		struct piece *p = &r->pieces[i];
		uint64_t end = p->at + p->len_bytes;
		char *sample = s->base + l->meta_bytes + s->offset[p->sample_no];

		p->err = bytes_read(p->fd, sample + p->at, p->len_bytes, s->source_offset[p->sample_no] + p->at);
		/* Zero up to the next sample: nothing of an older batch shows. */
		if (end == s->samples[p->sample_no].plan_bytes)
			memset(sample + end, 0, ((end + l->align - 1) & ~(uint64_t)(l->align - 1)) - end);
	}
}

/* ---- finishing -------------------------------------------------------------------- */

void slot_free(struct hintfs_loader *l, struct slot *s)
{
	s->state = SLOT_FREE;
	if (l->idle_workers)
		pthread_cond_signal(&l->work_cond);
}

/* Zero what bad samples left behind, and leave them out if asked. A rare path: a memset under the lock. */
static void bad_samples_clean(struct hintfs_loader *l, struct slot *s)
{
	uint32_t i, to = 0;

	for (i = 0; i < s->n; i++) {
		if (s->status[i]) {
			memset(s->base + l->meta_bytes + s->offset[i], 0, s->samples[i].plan_bytes);
			s->length[i] = 0;
			if (l->opts.on_error == HINTFS_ON_ERROR_SKIP)
				continue;
		}
		s->offset[to] = s->offset[i];
		s->length[to] = s->length[i];
		s->sample_id[to] = s->sample_id[i];
		s->source_offset[to] = s->source_offset[i];
		s->status[to] = s->status[i];
		s->sample_flags[to++] = s->sample_flags[i];
	}
	if (to < s->n)
		s->pub.flags |= HINTFS_BATCH_PARTIAL;
	if (s->n_shown < s->n)
		s->n_shown = s->n;
	s->n = to;
}

/* Items of an earlier, longer use of the slot must not show behind this batch's. */
static void arrays_trim(struct slot *s)
{
	uint32_t old = s->n_shown > s->n ? s->n_shown - s->n : 0;

	memset(s->offset + s->n, 0, old * sizeof(*s->offset));
	memset(s->length + s->n, 0, old * sizeof(*s->length));
	memset(s->sample_id + s->n, 0, old * sizeof(*s->sample_id));
	memset(s->source_offset + s->n, 0, old * sizeof(*s->source_offset));
	memset(s->status + s->n, 0, old * sizeof(*s->status));
	memset(s->sample_flags + s->n, 0, old * sizeof(*s->sample_flags));
	s->n_shown = s->n;
}

static void header_write(struct slot *s)
{
	struct hintfs_batch_meta *m = (struct hintfs_batch_meta *)s->base;

	s->pub.n = s->n;
	s->pub.payload_bytes = s->used_bytes;
	m->seq = s->pub.seq;
	m->epoch = s->pub.epoch;
	m->number = s->pub.number;
	m->payload_bytes = s->used_bytes;
	m->n = s->n;
	m->flags = s->pub.flags;
}

/* Batches that are complete with all before them: what the daemon may count as read. */
static void settled_advance(struct hintfs_loader *l)
{
	uint64_t old = l->settled_seq;

	while (l->settled_seq < l->tail_seq) {
		const struct slot *s = &l->slots[l->fifo[l->settled_seq % l->n_slots]];

		if (s->state != SLOT_READY)
			break;
		l->settled_entries = s->entries_end;
		l->settled_seq++;
	}
	if (l->settled_seq != old)
		hints_progress(l);
}

void slot_settle(struct hintfs_loader *l, struct slot *s)
{
	if (s->is_stale) {
		slot_free(l, s);
		return;
	}
	if (s->has_bad)
		bad_samples_clean(l, s);
	arrays_trim(s);
	header_write(s);
	s->state = SLOT_READY;
	settled_advance(l);
	if (s->pub.seq == l->head_seq)
		pthread_cond_broadcast(&l->ready_cond);
}

static void sample_failed(struct hintfs_loader *l, struct slot *s, const struct piece *p)
{
	const char *path = order_path_text(&l->order, s->samples[p->sample_no].file->path);

	if (s->status[p->sample_no] || s->is_stale)
		return;
	s->status[p->sample_no] = -p->err;
	s->has_bad = true;
	l->figures.bad_samples++;
	if (l->opts.on_error == HINTFS_ON_ERROR_FAIL)
		slot_fail(l, s, p->err, "%s: %s (entry %llu, offset %llu)", path, strerrordesc_np(-p->err),
			  (unsigned long long)s->sample_id[p->sample_no],
			  (unsigned long long)(s->source_offset[p->sample_no] + p->at));
}

/* Book the run's results. Descriptors to close go to fds; returns how many. */
static uint32_t run_complete(struct hintfs_loader *l, struct run *r, int *fds)
{
	struct slot *s = r->slot;
	uint32_t i, n = 0;

	for (i = 0; i < r->n; i++) {
		struct piece *p = &r->pieces[i];
		struct sample *m = &s->samples[p->sample_no];

		if (p->err)
			sample_failed(l, s, p);
		else
			l->figures.filled_bytes += p->len_bytes;
		m->left_bytes -= p->len_bytes;
		if (m->left_bytes)
			continue;
		s->left--;
		fds[n] = file_put(l, m->file);
		m->file = NULL;
		n += fds[n] >= 0;
	}
	if (!s->left && s->is_closed)
		slot_settle(l, s);
	return n;
}

/* ---- opening ---------------------------------------------------------------------- */

/* O_NONBLOCK: a FIFO in the order must not stop a worker. Only regular files are read. */
static int file_open(int root_fd, const char *path, int *ret_fd, uint64_t *ret_size)
{
	int fd = openat(root_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	int err = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		err = -errno;
	else if (!S_ISREG(st.st_mode))
		err = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	if (err) {
		close(fd);
		return err;
	}
	*ret_fd = fd;
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

/* Open the file, or close it when it is in the queue for that. Called with the lock, returns with it. */
static void file_serve(struct hintfs_loader *l, struct file *f)
{
	const char *path = order_path_text(&l->order, f->path);
	bool is_close = f->fd >= 0;
	int fd = f->fd, err = 0, extra;
	uint64_t size = 0;

	sync_unlock(&l->lock);
	if (is_close)
		close(fd);
	else
		err = file_open(l->root_fd, path, &fd, &size);
	sync_lock(&l->lock);
	if (is_close) {
		l->n_files--;
		free(f);
		return;
	}
	f->fd = err ? -1 : fd;
	f->err = err;
	f->size_bytes = size;
	f->state = err ? FILE_BAD : FILE_OPEN;
	if (f->refs)
		return;
	/* Its epoch was left meanwhile: a reference taken and dropped frees it. */
	f->refs = 1;
	extra = file_put(l, f);
	if (extra >= 0) {
		sync_unlock(&l->lock);
		close(extra);
		sync_lock(&l->lock);
	}
}

/* ---- the thread ------------------------------------------------------------------- */

static void run_serve(struct hintfs_loader *l, struct run *r)
{
	int fds[RUN_SAMPLES];
	uint32_t n;

	sync_unlock(&l->lock);
	run_read(l, r);
	sync_lock(&l->lock);
	n = run_complete(l, r, fds);
	if (!n)
		return;
	sync_unlock(&l->lock);
	while (n)
		close(fds[--n]);
	sync_lock(&l->lock);
}

static void worker_wait(struct hintfs_loader *l)
{
	uint64_t start = sync_now_ns();
	bool is_starved = l->is_starved;

	l->idle_workers++;
	sync_wait(&l->work_cond, &l->lock);
	l->idle_workers--;
	if (is_starved)
		l->figures.wait_slot_ns += sync_now_ns() - start;
}

void *fill_worker(void *loader)
{
	struct hintfs_loader *l = loader;
	struct run r;

	sync_lock(&l->lock);
	while (l->run != RUN_STOP) {
		struct file *f = NULL;
		bool has_run;
		uint64_t start;

		pack_run(l);
		has_run = (l->run == RUN_ON || l->run == RUN_ENDED) && run_take(l, &r);
		if (!has_run && (l->run == RUN_ON || l->run == RUN_ENDED))
			f = file_queue_pop(l);
		if (!has_run && !f) {
			worker_wait(l);
			continue;
		}
		/* One thread wakes the next: as many as there is work for, without a stampede. */
		if (l->idle_workers && (l->open_head || l->fill_seq < l->tail_seq))
			pthread_cond_signal(&l->work_cond);
		l->busy_workers++;
		start = sync_now_ns();
		if (has_run)
			run_serve(l, &r);
		else
			file_serve(l, f);
		l->figures.fill_ns += sync_now_ns() - start;
		l->busy_workers--;
	}
	sync_unlock(&l->lock);
	return NULL;
}
