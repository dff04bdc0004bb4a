/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/pack.c - from entries of the order to places in slots. Memory only, all of it under the loader's lock.
 *
 * Callers: workers (after an open, a fill, a release) and set_epoch.
 * Invariants: entries are packed in order, one by one; a slot is taken only when a sample for it is known; nothing is
 * ever cut short silently: it fits, it is split and flagged, or the batch fails with -EMSGSIZE and the bytes needed.
 */
#include "tools/preload/loader_i.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ---------------------------------------------------------------------- */

int file_put(struct hintfs_loader *l, struct file *f)
{
	int fd;

	if (--f->refs || f->state == FILE_OPENING || f->state == FILE_QUEUED)
		return -1;
	fd = f->fd;
	l->files[f->path] = NULL;
	l->n_files--;
	free(f);
	return fd;
}

struct file *file_queue_pop(struct hintfs_loader *l)
{
	struct file *f = l->open_head;

	if (!f)
		return NULL;
	l->open_head = f->next;
	if (!l->open_head)
		l->open_tail = &l->open_head;
	f->state = FILE_OPENING;
	return f;
}

/* The file of a path with one more reference; NULL: no room now, or no memory (*ret_err). */
static struct file *file_get(struct hintfs_loader *l, uint32_t path, int *ret_err)
{
	struct file *f = l->files[path];

	*ret_err = 0;
	if (f) {
		f->refs++;
		return f;
	}
	if (l->n_files >= l->max_files)
		return NULL;
	f = calloc(1, sizeof(*f));
	if (!f) {
		*ret_err = -ENOMEM;
		return NULL;
	}
	*f = (struct file){ .path = path, .refs = 1, .state = FILE_QUEUED, .fd = -1 };
	*l->open_tail = f;
	l->open_tail = &f->next;
	l->files[path] = f;
	l->n_files++;
	return f;
}

/* Queue the files of the entries ahead for opening. */
static void look_ahead(struct hintfs_loader *l)
{
	int err;

	while (l->look_pos < l->end_pos && l->look_pos - l->pack_pos < LOOK_MAX) {
		struct file *f = file_get(l, l->order.entries[l->look_pos].path, &err);

		if (!f) {
			/* With nothing else in work nobody would try again. */
			if (err && !l->n_files) {
				l->run = RUN_FAILED;
				l->run_err = err;
				snprintf(l->run_text, sizeof(l->run_text), "out of memory");
				pthread_cond_broadcast(&l->ready_cond);
			}
			return;
		}
		l->look[l->look_pos++ % LOOK_MAX] = f;
	}
}

/* Take back what no worker has yet of a slot that is being filled. */
static uint32_t slot_abandon(struct hintfs_loader *l, struct slot *s, int *fds)
{
	uint32_t n = 0;

	for (; s->take_no < s->n; s->take_no++, s->take_at = 0) {
		struct sample *m = &s->samples[s->take_no];
		int fd;

		m->left_bytes -= m->plan_bytes - s->take_at;
		if (!m->plan_bytes || m->left_bytes)
			continue;
		s->left--;
		fd = file_put(l, m->file);
		m->file = NULL;
		if (fd >= 0)
			fds[n++] = fd;
	}
	s->is_closed = s->is_stale = true;
	if (!s->left)
		slot_settle(l, s);
	return n;
}

uint32_t pack_abandon(struct hintfs_loader *l, int *fds)
{
	uint32_t n = 0, i;
	struct file *f;

	/* Files in the queue go with their last reference: take them off it first. */
	while ((f = file_queue_pop(l))) {
		f->state = FILE_BAD;
		f->err = -ECANCELED;
		if (f->refs)
			continue;
		if (f->fd >= 0)
			fds[n++] = f->fd;
		l->n_files--;
		free(f);
	}
	for (; l->pack_pos < l->look_pos; l->pack_pos++) {
		int fd = file_put(l, l->look[l->pack_pos % LOOK_MAX]);

		if (fd >= 0)
			fds[n++] = fd;
	}
	for (i = 0; i < l->n_slots; i++) {
		if (l->slots[i].state == SLOT_READY)
			slot_free(l, &l->slots[i]);
		else if (l->slots[i].state == SLOT_FILLING && !l->slots[i].is_stale)
			n += slot_abandon(l, &l->slots[i], fds + n);
	}
	l->cur = NULL;
	l->head_seq = l->fill_seq = l->tail_seq = l->settled_seq = 0;
	return n;
}

/* ---- slots ---------------------------------------------------------------------- */

void slot_fail(struct hintfs_loader *l, struct slot *s, int err, const char *fmt, ...)
{
	va_list ap;

	(void)l;
	if (s->err)
		return;
	s->err = err;
	va_start(ap, fmt);
	vsnprintf(s->err_text, ERROR_TEXT_BYTES, fmt, ap);
	va_end(ap);
}

/* FREE -> FILLING, at the end of the fifo. NULL: none is free. */
static struct slot *slot_take(struct hintfs_loader *l)
{
	uint32_t i;

	for (i = 0; i < l->n_slots; i++) {
		struct slot *s = &l->slots[i];

		if (s->state != SLOT_FREE)
			continue;
		s->state = SLOT_FILLING;
		s->is_closed = s->is_stale = s->has_bad = false;
		s->has_event_work = s->is_doubtful = false;
		s->n = s->take_no = s->left = 0;
		s->take_at = s->used_bytes = 0;
		s->err = 0;
		s->pub.seq = l->tail_seq;
		s->pub.epoch = l->epoch;
		s->pub.flags = l->is_continued ? HINTFS_BATCH_PARTIAL : 0;
		s->is_short = false;
		s->entries_end = l->pack_pos;
		l->fifo[l->tail_seq++ % l->n_slots] = i;
		return s;
	}
	l->is_starved = true;
	return NULL;
}

static bool list_has_marks(const struct hintfs_loader *l)
{
	const struct order_list *list = &l->order.lists[l->list_no];

	return list->group != list->group_end;
}

/* Close the current slot. is_end: the batch of the order ends with it too. */
static void cur_close(struct hintfs_loader *l, unsigned flags, bool is_end)
{
	struct slot *s = l->cur;

	s->pub.flags |= flags;
	s->pub.number = list_has_marks(l) ? l->order.groups[l->group_no].number :
			l->opts.batch_samples ? l->logical_no : s->pub.seq;
	s->entries_end = l->pack_pos;
	s->is_closed = true;
	l->cur = NULL;
	l->is_continued = !is_end;
	if (is_end) {
		l->logical_no++;
		l->logical_n = 0;
	}
	if (!s->left)
		slot_settle(l, s);
}

/* The loader cannot go on past this batch. */
static void cur_close_failed(struct hintfs_loader *l)
{
	cur_close(l, HINTFS_BATCH_PARTIAL, true);
	l->end_pos = l->pack_pos; /* nothing more is packed; the failure shows when the batch's turn comes */
}

/* ---- packing -------------------------------------------------------------------- */

/* What the entry at pack_pos comes to, its file being open or bad. */
struct want {
	int err; /* negative errno: cannot be read */
	uint64_t off_bytes, len_bytes;
};

static struct want entry_want(const struct order_entry *e, const struct file *f)
{
	struct want w = { .err = f->state == FILE_BAD ? f->err : 0, .off_bytes = e->off_bytes, .len_bytes = e->len_bytes };

	if (w.err)
		return w;
	if (e->len_bytes == ORDER_TO_END)
		w.len_bytes = f->size_bytes > e->off_bytes ? f->size_bytes - e->off_bytes : 0;
	if (e->off_bytes > f->size_bytes || w.len_bytes > f->size_bytes - e->off_bytes ||
	    (e->off_bytes && e->off_bytes == f->size_bytes))
		w.err = -ERANGE;
	return w;
}

/* Put a sample, or a piece of one, into the current slot. takes_ref: the slot gets a file reference of its own. */
static void sample_place(struct hintfs_loader *l, struct file *f, const struct want *w, uint64_t at, uint64_t len)
{
	struct slot *s = l->cur;
	uint32_t i = s->n;
	bool has_bytes = !w->err && len;

	s->offset[i] = s->used_bytes;
	s->length[i] = w->err ? 0 : len;
	s->sample_id[i] = l->pack_pos;
	s->source_offset[i] = w->off_bytes + at;
	s->status[i] = -w->err;
	s->sample_flags[i] = (at ? 0 : HINTFS_SAMPLE_FIRST) |
			     (w->err || at + len == w->len_bytes ? HINTFS_SAMPLE_FINAL : 0);
	s->samples[i] = (struct sample){ .file = has_bytes ? f : NULL, .plan_bytes = has_bytes ? len : 0,
					 .left_bytes = has_bytes ? len : 0 };
	if (has_bytes) {
		f->refs++;
		s->left++;
		s->used_bytes += (len + l->align - 1) & ~(uint64_t)(l->align - 1);
	}
	s->n++;
}

/* Done with the entry at pack_pos: on to the next. */
static void entry_advance(struct hintfs_loader *l)
{
	struct file *f = l->look[l->pack_pos % LOOK_MAX];

	l->pack_pos++;
	l->piece_at = 0;
	/* Still referred to by its sample, but for a bad or an empty one. Closing is I/O: left to a worker, by the queue. */
	if (f->refs == 1 && f->fd >= 0) {
		f->next = l->open_head;
		l->open_head = f;
		if (l->open_tail == &l->open_head)
			l->open_tail = &f->next;
		f->state = FILE_QUEUED;
		f->refs = 0;
		l->files[f->path] = NULL;
		return;
	}
	(void)file_put(l, f);
}

/* Does the batch of the order end before the entry at pack_pos? */
static bool batch_ends_here(struct hintfs_loader *l)
{
	const struct order_list *list = &l->order.lists[l->list_no];

	if (list_has_marks(l))
		return l->group_no + 1 < list->group_end && l->pack_pos >= l->order.groups[l->group_no + 1].first;
	return l->opts.batch_samples && l->logical_n >= l->opts.batch_samples;
}

static bool is_cut_by_bytes(const struct hintfs_loader *l)
{
	return !list_has_marks(l) && !l->opts.batch_samples;
}

/* Room for the sample in the current slot, or make it. False: come again (slot closed or failed). */
static bool room_make(struct hintfs_loader *l, uint64_t len, const char *path)
{
	struct slot *s = l->cur;
	bool is_split = l->opts.flags & HINTFS_OPEN_SPLIT;
	uint64_t rest = l->payload_cap - s->used_bytes;

	if (s->n < l->max_samples && len <= rest)
		return true;
	if (is_cut_by_bytes(l) && s->n) {
		cur_close(l, 0, true);
		return false;
	}
	if (len > l->payload_cap && !is_split) {
		slot_fail(l, s, -EMSGSIZE, "%s: a sample of %llu bytes does not fit a slot of %llu: set batch_bytes to at least %llu, or allow splitting",
			  path, (unsigned long long)len, (unsigned long long)l->payload_cap, (unsigned long long)len);
		cur_close_failed(l);
		return false;
	}
	if (!s->n)
		return true; /* a piece of an oversized sample begins the slot */
	if (!is_split) {
		slot_fail(l, s, -EMSGSIZE, "batch %llu needs more than a slot of %llu bytes and %u samples (at least %llu bytes, at entry %llu, %s)",
			  (unsigned long long)(list_has_marks(l) ? l->order.groups[l->group_no].number : l->logical_no),
			  (unsigned long long)l->payload_cap, l->max_samples, (unsigned long long)(s->used_bytes + len),
			  (unsigned long long)l->pack_pos, path);
		cur_close_failed(l);
		return false;
	}
	cur_close(l, HINTFS_BATCH_PARTIAL | HINTFS_BATCH_SPLIT, false);
	return false;
}

/* The entry at pack_pos cannot be read. True: it was dealt with and packing goes on. */
static bool entry_bad(struct hintfs_loader *l, struct file *f, const struct want *w, const char *path)
{
	if (l->opts.on_error == HINTFS_ON_ERROR_FAIL) {
		slot_fail(l, l->cur, w->err, "%s: %s (entry %llu, offset %llu)", path, strerrordesc_np(-w->err),
			  (unsigned long long)l->pack_pos, (unsigned long long)w->off_bytes);
		cur_close_failed(l);
		return false;
	}
	l->figures.bad_samples++;
	if (l->opts.on_error == HINTFS_ON_ERROR_MARK) {
		sample_place(l, f, w, 0, 0);
		l->cur->has_bad = true;
		l->logical_n++;
	} else {
		l->cur->pub.flags |= HINTFS_BATCH_PARTIAL;
	}
	entry_advance(l);
	return true;
}

/* Pack the entry at pack_pos, or a piece of it. False: nothing more can be done now. */
static bool entry_pack(struct hintfs_loader *l)
{
	struct file *f = l->look[l->pack_pos % LOOK_MAX];
	const char *path = order_path_text(&l->order, l->order.entries[l->pack_pos].path);
	struct want w;
	uint64_t len, rest;

	if (f->state != FILE_OPEN && f->state != FILE_BAD)
		return false;
	if (!l->piece_at && batch_ends_here(l)) {
		if (l->cur)
			cur_close(l, 0, true);
		else
			l->logical_n = 0;
		if (list_has_marks(l))
			l->group_no++;
		return true;
	}
	if (!l->cur && !(l->cur = slot_take(l)))
		return false;
	w = entry_want(&l->order.entries[l->pack_pos], f);
	/* A marked sample takes an item of the arrays like any other. */
	if (w.err && l->opts.on_error == HINTFS_ON_ERROR_MARK && !room_make(l, 0, path))
		return l->pack_pos < l->end_pos;
	if (w.err)
		return entry_bad(l, f, &w, path);
	len = w.len_bytes - l->piece_at;
	if (!room_make(l, len, path))
		return l->pack_pos < l->end_pos;
	rest = l->payload_cap - l->cur->used_bytes;
	if (len > rest)
		len = rest;
	sample_place(l, f, &w, l->piece_at, len);
	l->piece_at += len;
	if (l->piece_at == w.len_bytes) {
		l->logical_n++;
		entry_advance(l);
	}
	return true;
}

/* The list is packed to its end: close what is open. */
static void list_end(struct hintfs_loader *l)
{
	struct slot *s = l->cur;
	bool is_short = !list_has_marks(l) && (!l->opts.batch_samples || l->logical_n < l->opts.batch_samples);

	if (s && !s->n && !s->err) {
		/* All of it was skipped; being the last one taken, it can be given back without a trace. */
		l->cur = NULL;
		l->tail_seq--;
		slot_free(l, s);
	} else if (s) {
		s->is_short = is_short && l->opts.batch_samples;
		cur_close(l, HINTFS_BATCH_LAST | (is_short ? HINTFS_BATCH_PARTIAL : 0), true);
	}
	l->run = RUN_ENDED;
	pthread_cond_broadcast(&l->ready_cond);
}

void pack_begin(struct hintfs_loader *l, uint64_t first, uint64_t end)
{
	const struct order_list *list = &l->order.lists[l->list_no];

	l->look_pos = l->pack_pos = first;
	l->end_pos = end;
	l->cur = NULL;
	l->group_no = list->group;
	while (l->group_no + 1 < list->group_end && l->order.groups[l->group_no + 1].first <= first)
		l->group_no++;
	l->logical_no = 0;
	l->logical_n = 0;
	l->piece_at = 0;
	l->is_continued = false;
	l->head_seq = l->fill_seq = l->tail_seq = l->settled_seq = 0;
	l->settled_entries = first;
	l->run = RUN_ON;
}

void pack_run(struct hintfs_loader *l)
{
	l->is_starved = false;
	while (l->run == RUN_ON) {
		look_ahead(l);
		if (l->run != RUN_ON)
			return;
		if (l->pack_pos >= l->end_pos) {
			list_end(l);
			return;
		}
		if (l->pack_pos >= l->look_pos || !entry_pack(l))
			break;
	}
}
