/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/hints.c - tell the mount: the order of the epoch, and how far the loader has read.
 *
 * Callers: loader.c. One thread, because a write to the control file is I/O; everything else only sets a flag for it.
 * Without a control directory (any ordinary directory) there is no thread, and stats say "off: why".
 *
 * What is written: `@epoch`, the entries with explicit `@batch N` marks, then `@done batch N` each time the batches up to
 * N lie in the ring: reads that the kernel's page cache answered move the daemon's cursor too. Batches written are those of
 * the order, or of batch_samples; when the loader cuts by bytes and a length is not known before the file is opened,
 * that entry is a batch of its own. An epoch left early is cancelled by truncating the list. One that was read to its end is
 * written and marked, however short the time before the loader was closed; closing waits STOP_NS for that, and cancels then.
 *
 * Invariants: never more than one write in flight; the first failure turns hints off for good, with its reason; reading
 * goes on as if nothing happened.
 */
#include "tools/preload/loader_i.h"

#include "sched/parse.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUT_BYTES (256u << 10)
#define STOP_NS 2000000000u /* an epoch of a million entries takes a few hundred milliseconds */

struct hints {
	pthread_t thread;
	char path[4096]; /* const */
	bool is_stream;	 /* const: our own file below streams/ */
	/* guarded by the loader's lock */
	pthread_cond_t cond;
	bool is_stop, is_cancelled, has_epoch, is_off;
	uint64_t list_no, first; /* of the epoch to write */
	uint64_t stop_ns;	 /* after is_stop: until when */
	char state[192];
	/* the thread's */
	int fd;
	char *out;
	size_t out_len;
	uint64_t *ends; /* entries below: batch done */
	uint64_t *numbers;
	uint64_t n, cap, done; /* batches written, room, marked done */
	uint64_t written_end;  /* entry: the list's end */
};

/* ---- writing ---------------------------------------------------------------------- */

static int out_flush(struct hints *h)
{
	size_t at = 0;

	while (at < h->out_len) {
		ssize_t n = write(h->fd, h->out + at, h->out_len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
	}
	h->out_len = 0;
	return 0;
}

/* Append to the buffer, whole lines leaving it when it is full. */
static int out_add(struct hints *h, const char *text, size_t len)
{
	int err = 0;

	if (h->out_len + len > OUT_BYTES)
		err = out_flush(h);
	if (!err) {
		memcpy(h->out + h->out_len, text, len);
		h->out_len += len;
	}
	return err;
}

static int out_entry(struct hints *h, const struct order *o, const struct order_entry *e)
{
	char line[2 * PARSE_LINE_MAX];
	const char *path = order_path_text(o, e->path);
	size_t len = parse_path_quote(path, strlen(path), line, sizeof(line) - 64);

	if (len >= sizeof(line) - 64)
		return -EMSGSIZE;
	if (e->off_bytes || e->len_bytes != ORDER_TO_END)
		len += (size_t)snprintf(line + len, sizeof(line) - len, "\t%llu\t%llu", (unsigned long long)e->off_bytes,
					(unsigned long long)e->len_bytes);
	line[len++] = '\n';
	return out_add(h, line, len);
}

static int out_mark(struct hints *h, const char *word, uint64_t number)
{
	char line[64];

	return out_add(h, line, (size_t)snprintf(line, sizeof(line), "%s %llu\n", word, (unsigned long long)number));
}

/* Remember a batch that ends before entry `end`. */
static int batch_note(struct hints *h, uint64_t end, uint64_t number)
{
	if (h->n == h->cap) {
		uint64_t cap = h->cap ? h->cap * 2 : 256;
		uint64_t *ends = realloc(h->ends, cap * sizeof(*ends));
		uint64_t *numbers = ends ? realloc(h->numbers, cap * sizeof(*numbers)) : NULL;

		if (ends)
			h->ends = ends;
		if (numbers)
			h->numbers = numbers;
		if (!ends || !numbers)
			return -ENOMEM;
		h->cap = cap;
	}
	h->ends[h->n] = end;
	h->numbers[h->n++] = number;
	return 0;
}

/* Where the batch that begins at entry `at` ends, and its number. */
static uint64_t batch_end(const struct hintfs_loader *l, const struct order_list *list, uint64_t at, uint64_t *group,
			  uint64_t *number)
{
	uint64_t bytes = 0, end = at;

	if (list->group != list->group_end) {
		while (*group + 1 < list->group_end && l->order.groups[*group + 1].first <= at)
			++*group;
		*number = l->order.groups[*group].number;
		return *group + 1 < list->group_end ? l->order.groups[*group + 1].first : list->end;
	}
	if (l->opts.batch_samples)
		return list->end - at < l->opts.batch_samples ? list->end : at + l->opts.batch_samples;
	do {
		if (l->order.entries[end].len_bytes == ORDER_TO_END)
			return end == at ? at + 1 : end;
		bytes += l->order.entries[end++].len_bytes;
	} while (end < list->end && bytes < l->payload_cap);
	return end;
}

/* Is the list to be written (further)? REQUIRES lock. */
static bool is_wanted(const struct hintfs_loader *l, const struct order_list *list)
{
	const struct hints *h = l->hints;

	if (h->is_cancelled)
		return false;
	return !h->is_stop || (l->settled_entries >= list->end && sync_now_ns() < h->stop_ns);
}

static bool is_vain(struct hintfs_loader *l, const struct order_list *list)
{
	bool is;

	sync_lock(&l->lock);
	is = !is_wanted(l, list);
	sync_unlock(&l->lock);
	return is;
}

/* All entries of one batch, the notes among them. */
static int batch_write(struct hints *h, const struct order *o, uint64_t at, uint64_t end, uint64_t *note)
{
	int err = 0;

	for (; !err && at < end; at++) {
		for (; !err && *note < o->n_notes && o->notes[*note].at <= at; ++*note)
			err = out_add(h, o->notes[*note].text, strlen(o->notes[*note].text));
		if (!err)
			err = out_entry(h, o, &o->entries[at]);
	}
	return err;
}

static int list_write(struct hintfs_loader *l, uint64_t list_no, uint64_t first)
{
	struct hints *h = l->hints;
	const struct order_list *list = &l->order.lists[list_no];
	uint64_t at = first, group = list->group, number = 0, note = 0;
	int err;

	if (h->fd >= 0)
		close(h->fd);
	h->fd = open(h->path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY | (h->is_stream ? O_CREAT : 0), 0600);
	if (h->fd < 0)
		return -errno;
	h->n = h->done = h->out_len = 0;
	h->written_end = list->end;
	err = out_mark(h, "@epoch", list->label);
	while (!err && at < list->end) {
		uint64_t end = batch_end(l, list, at, &group, &number);

		err = out_mark(h, "@batch", number);
		if (!err)
			err = batch_write(h, &l->order, at, end, &note);
		if (!err)
			err = batch_note(h, end, number);
		number++;
		at = end;
		if (!err && (h->n & 1023) == 0 && is_vain(l, list)) {
			h->n = h->out_len = 0; /* to be cancelled */
			return 0;
		}
	}
	return err ? err : out_flush(h);
}

static int done_write(struct hints *h, uint64_t settled)
{
	uint64_t old = h->done;
	int err;

	while (h->done < h->n && h->ends[h->done] <= settled)
		h->done++;
	if (h->done == old)
		return 0;
	err = out_mark(h, "@done batch", h->numbers[h->done - 1]);
	return err ? err : out_flush(h);
}

/* Drop the list: ours alone is removed, the common one emptied. */
static void list_cancel(struct hints *h)
{
	int fd;

	if (h->fd >= 0)
		close(h->fd);
	h->fd = -1;
	h->n = h->done = h->out_len = 0;
	fd = open(h->path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY);
	if (fd >= 0)
		close(fd);
	if (h->is_stream)
		(void)unlink(h->path);
}

/* ---- the thread ------------------------------------------------------------------- */

static void off_note(struct hints *h, const char *what, int err)
{
	h->is_off = true;
	snprintf(h->state, sizeof(h->state), "off: %.100s: %s: %s", h->path, what, strerrordesc_np(-err));
}

/* One thing to do, the lock dropped meanwhile. False: nothing. REQUIRES lock. */
static bool hints_step(struct hintfs_loader *l)
{
	struct hints *h = l->hints;
	uint64_t settled = l->settled_entries, list_no = h->list_no, first = h->first;
	const char *what = "writing the order (see .ctl/errors)";
	int err;

	if (h->is_off)
		return false;
	if (h->has_epoch) {
		h->has_epoch = h->is_cancelled = false;
		sync_unlock(&l->lock);
		err = list_write(l, list_no, first);
		sync_lock(&l->lock);
	} else if (h->is_cancelled) {
		h->is_cancelled = false;
		sync_unlock(&l->lock);
		list_cancel(h);
		sync_lock(&l->lock);
		return true;
	} else if (h->done < h->n && h->ends[h->done] <= settled) {
		what = "marking a batch done";
		sync_unlock(&l->lock);
		err = done_write(h, settled);
		sync_lock(&l->lock);
	} else {
		return false;
	}
	if (err)
		off_note(h, what, err);
	return true;
}

static void *hints_main(void *loader)
{
	struct hintfs_loader *l = loader;
	struct hints *h = l->hints;

	sync_lock(&l->lock);
	while (!h->is_stop)
		if (!hints_step(l))
			sync_wait(&h->cond, &l->lock);
	/* The last marks, with the list before them where there was no time for it; or the cancelling of what will not be read. */
	h->has_epoch = h->has_epoch && is_wanted(l, &l->order.lists[h->list_no]);
	while (hints_step(l))
		;
	sync_unlock(&l->lock);
	if (!h->is_off && (h->done < h->n || !h->n || h->is_stream))
		list_cancel(h);
	if (h->fd >= 0)
		close(h->fd);
	return NULL;
}

void hints_epoch(struct hintfs_loader *l)
{
	struct hints *h = l->hints;

	if (!h)
		return;
	h->list_no = l->list_no;
	h->first = l->pack_pos;
	h->has_epoch = true;
	pthread_cond_signal(&h->cond);
}

void hints_progress(struct hintfs_loader *l)
{
	if (l->hints)
		pthread_cond_signal(&l->hints->cond);
}

void hints_cancel(struct hintfs_loader *l)
{
	if (!l->hints)
		return;
	l->hints->is_cancelled = true;
	l->hints->has_epoch = false;
	pthread_cond_signal(&l->hints->cond);
}

void hints_describe(struct hintfs_loader *l, char *text, size_t size)
{
	if (l->hints)
		snprintf(text, size, "%s", l->hints->state);
	else
		snprintf(text, size, "off: %s", l->hints_off);
}

/* ---- finding the file ------------------------------------------------------------- */

/* Where the control file is; 0 or negative errno with `why`. */
static int path_find(struct hintfs_loader *l, struct hints *h, char *why, size_t size)
{
	const char *env = secure_getenv("HINTFS_CTL");
	const char *dir = l->opts.ctl_dir ? l->opts.ctl_dir : env && *env ? env : NULL;
	const char *stream = l->opts.stream;
	char base[2048];
	struct stat st;
	int len;

	if (stream && (!*stream || strchr(stream, '/') || stream[0] == '.')) {
		snprintf(why, size, "'%.64s' is no name for a stream", stream);
		return -EINVAL;
	}
	len = dir ? snprintf(base, sizeof(base), "%s", dir) : snprintf(base, sizeof(base), "%s/.ctl", l->mount);
	if (len < 0 || (size_t)len >= sizeof(base)) {
		snprintf(why, size, "the control directory's path is too long");
		return -ENAMETOOLONG;
	}
	len = snprintf(h->path, sizeof(h->path), "%s/order", base);
	if (stat(h->path, &st) < 0 || !S_ISREG(st.st_mode)) {
		snprintf(why, size, "no control file %.100s (not a hintfs mount?)", h->path);
		return -ENOENT;
	}
	if (stream)
		len = snprintf(h->path, sizeof(h->path), "%s/streams/%s", base, stream);
	if (len < 0 || (size_t)len >= sizeof(h->path)) {
		snprintf(why, size, "the stream's path is too long");
		return -ENAMETOOLONG;
	}
	if (!stream && access(h->path, W_OK) < 0) {
		snprintf(why, size, "%.100s: %s", h->path, strerrordesc_np(errno));
		return -EACCES;
	}
	h->is_stream = stream != NULL;
	return 0;
}

static void hints_free(struct hints *h)
{
	free(h->out);
	free(h->ends);
	free(h->numbers);
	free(h);
}

int hints_start(struct hintfs_loader *l, char *why, size_t size)
{
	struct hints *h;
	int err;

	if (l->opts.flags & HINTFS_OPEN_NO_HINTS) {
		snprintf(why, size, "not asked for");
		return -ENOENT;
	}
	h = calloc(1, sizeof(*h));
	if (h)
		h->out = malloc(OUT_BYTES + 2 * PARSE_LINE_MAX);
	if (!h || !h->out) {
		free(h);
		snprintf(why, size, "out of memory");
		return -ENOMEM;
	}
	h->fd = -1;
	err = path_find(l, h, why, size);
	if (err)
		goto fail;
	sync_cond_init(&h->cond);
	snprintf(h->state, sizeof(h->state), "on: %.180s", h->path);
	l->hints = h;
	err = sync_thread_start(&h->thread, "hintfs-hints", hints_main, l);
	if (!err)
		return 0;
	snprintf(why, size, "no thread: %s", strerrordesc_np(-err));
	l->hints = NULL;
fail:
	hints_free(h);
	return err;
}

void hints_stop(struct hintfs_loader *l)
{
	struct hints *h = l->hints;

	if (!h)
		return;
	sync_lock(&l->lock);
	h->is_stop = true;
	h->stop_ns = sync_now_ns() + STOP_NS;
	pthread_cond_signal(&h->cond);
	sync_unlock(&l->lock);
	sync_check(pthread_join(h->thread, NULL));
	pthread_cond_destroy(&h->cond);
	l->hints = NULL;
	hints_free(h);
}
