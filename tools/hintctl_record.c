/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_record.c - record: what is read, written down as a list that can be fed back, until Ctrl-C, until the mount
 * goes, or for one epoch.
 *
 * The daemon tells reads as they come. Here those that go on where the file's last read ended, nothing else between, become
 * one line, and epochs are told apart: an epoch is over when what comes was read before, RUN_MIN or more reads on end
 * (an eighth of the epoch up to RUN_MAX; a list of few reads: all of it), but for one in eight. While that is open the lines are held
 * back, as they belong to one epoch or to the next.
 *
 *   COUNTING --a read of something seen--> DOUBTING --enough of them--> the next epoch, COUNTING
 *                    ^---------- too much that is new ----'
 *
 * What the kernel's page cache answers is not seen by anybody.
 */
#include "tools/hintctl_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (64u * 1024)
#define BLOCK_SHIFT 12
#define RUN_MIN 8u
#define RUN_MAX 64u
#define POLL_MS 20
#define DRAW_S 0.2
#define LATE_MAX 64u /* four times what the daemon keeps */

struct seen_file {
	char *name;	/* owned: the first column as the daemon wrote it */
	uint64_t *bits; /* owned: blocks read in this epoch */
	uint64_t n_words, end;
};

struct line {
	uint32_t file;
	uint64_t off, len;
};

struct recorder {
	FILE *out;
	bool is_one_epoch, is_over;
	struct seen_file *files;
	uint32_t n_files, cap_files, *index, n_index; /* open addressing: file + 1 */
	struct line pending; /* len 0: none */
	struct line *held;   /* since DOUBTING */
	size_t n_held, cap_held;
	uint64_t starts, run_again, run_fresh; /* of this epoch; of the doubt */
	uint64_t reads, bytes, epochs, lost;
	struct bar bar;
};

/* ---- what was seen ------------------------------------------------------------------------------------ */

static uint32_t hash_of(const char *s, size_t len)
{
	uint64_t h = 0xcbf29ce484222325ULL;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)s[i]) * 0x100000001b3ULL;
	return (uint32_t)(h ^ h >> 32);
}

static uint32_t index_slot(const struct recorder *r, const char *name, size_t len)
{
	uint32_t i = hash_of(name, len) & (r->n_index - 1);

	while (r->index[i] && (strncmp(r->files[r->index[i] - 1].name, name, len) != 0 ||
			       r->files[r->index[i] - 1].name[len] != '\0'))
		i = (i + 1) & (r->n_index - 1);
	return i;
}

static int index_grow(struct recorder *r)
{
	uint32_t n = r->n_index ? r->n_index * 2 : 1024, *index;

	if (2 * (r->n_files + 1) <= r->n_index)
		return 0;
	index = calloc(n, sizeof(*index));
	if (!index)
		return -ENOMEM;
	free(r->index);
	r->index = index;
	r->n_index = n;
	for (uint32_t i = 0; i < r->n_files; i++)
		r->index[index_slot(r, r->files[i].name, strlen(r->files[i].name))] = i + 1;
	return 0;
}

static int file_get(struct recorder *r, const char *name, size_t len, uint32_t *ret)
{
	uint32_t slot;

	if (index_grow(r) < 0)
		return -ENOMEM;
	slot = index_slot(r, name, len);
	if (r->index[slot]) {
		*ret = r->index[slot] - 1;
		return 0;
	}
	if (r->n_files == r->cap_files) {
		uint32_t cap = r->cap_files ? r->cap_files * 2 : 256;
		struct seen_file *files = reallocarray(r->files, cap, sizeof(*files));

		if (!files)
			return -ENOMEM;
		r->files = files;
		r->cap_files = cap;
	}
	r->files[r->n_files] = (struct seen_file){.name = strndup(name, len)};
	if (!r->files[r->n_files].name)
		return -ENOMEM;
	*ret = r->n_files++;
	r->index[slot] = *ret + 1;
	return 0;
}

static bool is_seen(const struct seen_file *f, uint64_t off)
{
	uint64_t b = off >> BLOCK_SHIFT;

	return b / 64 < f->n_words && f->bits[b / 64] >> (b % 64) & 1;
}

static int see(struct seen_file *f, uint64_t off, uint64_t len)
{
	uint64_t last = (off + len - 1) >> BLOCK_SHIFT;

	if (last / 64 >= f->n_words) {
		uint64_t n = (last / 64 + 1) * 2, *bits = reallocarray(f->bits, n, sizeof(*bits));

		if (!bits)
			return -ENOMEM;
		memset(bits + f->n_words, 0, (n - f->n_words) * sizeof(*bits));
		f->bits = bits;
		f->n_words = n;
	}
	for (uint64_t b = off >> BLOCK_SHIFT; b <= last; b++)
		f->bits[b / 64] |= UINT64_C(1) << (b % 64);
	f->end = off + len;
	return 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void flush_pending(struct recorder *r)
{
	if (r->pending.len)
		fprintf(r->out, "%s\t%llu\t%llu\n", r->files[r->pending.file].name,
			(unsigned long long)r->pending.off, (unsigned long long)r->pending.len);
	r->pending.len = 0;
}

static void put_line(struct recorder *r, const struct line *l)
{
	if (r->pending.len && r->pending.file == l->file && r->pending.off + r->pending.len == l->off) {
		r->pending.len += l->len;
		return;
	}
	flush_pending(r);
	r->pending = *l;
}

static void put_epoch(struct recorder *r)
{
	flush_pending(r);
	fprintf(r->out, "@epoch %llu\n", (unsigned long long)r->epochs);
}

static void put_held(struct recorder *r)
{
	for (size_t i = 0; i < r->n_held; i++)
		put_line(r, &r->held[i]);
	r->n_held = 0;
	r->run_again = r->run_fresh = 0;
}

/* ---- epochs ---------------------------------------------------------------------------------------------- */

static uint64_t run_needed(const struct recorder *r)
{
	uint64_t n = r->starts / 8;

	n = n < RUN_MIN ? RUN_MIN : n > RUN_MAX ? RUN_MAX : n;
	return n < r->starts ? n : r->starts;
}

static int epoch_ends(struct recorder *r)
{
	int rc = 0;

	r->epochs++;
	if (r->is_one_epoch) {
		r->is_over = true;
		r->n_held = 0;
		return 0;
	}
	for (uint32_t i = 0; i < r->n_files; i++) {
		if (r->files[i].n_words)
			memset(r->files[i].bits, 0, r->files[i].n_words * sizeof(*r->files[i].bits));
		r->files[i].end = 0;
	}
	r->starts = r->run_again + r->run_fresh;
	put_epoch(r);
	for (size_t i = 0; i < r->n_held && rc == 0; i++)
		rc = see(&r->files[r->held[i].file], r->held[i].off, r->held[i].len);
	put_held(r);
	return rc;
}

static int hold(struct recorder *r, const struct line *l)
{
	if (r->n_held == r->cap_held) {
		size_t cap = r->cap_held ? r->cap_held * 2 : 256;
		struct line *held = reallocarray(r->held, cap, sizeof(*held));

		if (!held)
			return -ENOMEM;
		r->held = held;
		r->cap_held = cap;
	}
	r->held[r->n_held++] = *l;
	return 0;
}

/* A read that began somewhere: new to this epoch or not? */
static void count_start(struct recorder *r, bool is_again)
{
	if (!is_again && r->n_held == 0) {
		r->starts++;
		return;
	}
	if (is_again)
		r->run_again++;
	else
		r->run_fresh++;
}

static int take_read(struct recorder *r, const struct line *l)
{
	struct seen_file *f = &r->files[l->file];
	bool goes_on = f->end != 0 && l->off == f->end;
	int rc;

	if (!goes_on)
		count_start(r, is_seen(f, l->off));
	rc = see(f, l->off, l->len);
	if (rc < 0)
		return rc;
	if (r->run_again == 0) {
		put_line(r, l);
		return 0;
	}
	rc = hold(r, l);
	if (rc < 0)
		return rc;
	if (r->run_again >= run_needed(r) && r->run_fresh <= r->run_again / 8)
		return epoch_ends(r);
	if (r->run_fresh > 1 + r->run_again / 4) { /* a header, an index that was read again */
		r->starts += r->run_fresh;
		put_held(r);
	}
	return 0;
}

/* One line of the daemon's: NAME, TAB, offset, TAB, length; or a comment. */
static int take_line(struct recorder *r, const char *s, size_t len)
{
	const char *tab = memchr(s, '\t', len);
	unsigned long long off, n;
	struct line l;

	if (*s == '#') {
		r->lost += sscanf(s, "# %llu bytes of record were lost", &n) == 1 ? n : 0;
		flush_pending(r);
		fprintf(r->out, "%.*s\n", (int)len, s);
		return 0;
	}
	if (!tab || sscanf(tab + 1, "%llu\t%llu", &off, &n) != 2 || n == 0)
		return 0;
	if (file_get(r, s, (size_t)(tab - s), &l.file) < 0)
		return -ENOMEM;
	l.off = off;
	l.len = n;
	r->reads++;
	r->bytes += n;
	return take_read(r, &l);
}

/* Whole lines of buf; returns how many bytes they were, or negative errno. */
static ssize_t take_lines(struct recorder *r, char *buf, size_t len)
{
	size_t at = 0;
	char *lf;

	while (!r->is_over && (lf = memchr(buf + at, '\n', len - at)) != NULL) {
		size_t n = (size_t)(lf - (buf + at));
		int rc;

		*lf = '\0';
		rc = n > 0 ? take_line(r, buf + at, n) : 0;
		if (rc < 0)
			return rc;
		at += n + 1;
	}
	return (ssize_t)at;
}

/* ---- the run ------------------------------------------------------------------------------------------------ */

static void draw(struct recorder *r, bool is_end)
{
	char bytes[32], reads[32], files[32];

	if (!bar_is_due(&r->bar, DRAW_S, is_end))
		return;
	fprintf(stderr, "\r%s: %s reads, %s, %s files, epoch %llu%s   %s", is_end ? "recorded" : "recording",
		format_count(reads, r->reads), format_bytes(bytes, (double)r->bytes), format_count(files, r->n_files),
		(unsigned long long)(r->epochs + !r->is_over), r->run_again ? " (the next one?)" : "",
		is_end ? "\n" : "(Ctrl-C ends it)");
}

/* Reads until told to end, and then what is there already. 0, or the negative errno of the record. */
static int follow(struct recorder *r, int fd)
{
	const struct timespec nap = {.tv_nsec = POLL_MS * 1000000L};
	char *buf = malloc(2 * PIECE_BYTES);
	size_t have = 0;
	unsigned late = 0; /* pieces taken since we were told to end: a busy mount has always more */
	int rc = buf ? 0 : -ENOMEM;

	while (rc == 0 && !r->is_over && late < LATE_MAX) {
		ssize_t n = read(fd, buf + have, 2 * PIECE_BYTES - have), used;

		draw(r, false);
		late += stop_is_asked();
		if (n < 0 && errno == EAGAIN) {
			if (stop_is_asked())
				break;
			fflush(r->out);
			(void)nanosleep(&nap, NULL);
			continue;
		}
		if (n <= 0) {
			rc = n < 0 && errno != EINTR ? -errno : 0;
			if (n == 0)
				break;
			continue;
		}
		have += (size_t)n;
		used = take_lines(r, buf, have);
		if (used < 0) {
			rc = (int)used;
			break;
		}
		memmove(buf, buf + used, have - (size_t)used);
		have -= (size_t)used;
		if (have > PIECE_BYTES)
			have = 0; /* no line is that long */
	}
	free(buf);
	return rc;
}

static void recorder_finish(struct recorder *r)
{
	for (uint32_t i = 0; i < r->n_files; i++) {
		free(r->files[i].name);
		free(r->files[i].bits);
	}
	free(r->files);
	free(r->index);
	free(r->held);
}

/* The mount went: that is an end like others. */
static bool is_gone(int err)
{
	return err == -ESHUTDOWN || err == -ENOTCONN || err == -ECONNABORTED || err == -ENODEV;
}

static int finish(struct recorder *r, int rc, const char *file)
{
	bool is_bad_out;

	put_held(r);
	flush_pending(r);
	is_bad_out = ferror(r->out) || fflush(r->out) != 0;
	draw(r, true);
	if (is_bad_out) {
		hfs_say(stderr, "hintctl: %s: what was recorded cannot be written: %s\n", file ? file : "standard output",
			strerror(errno));
		return EXIT_FAILED;
	}
	if (rc < 0 && !is_gone(rc)) {
		hfs_say(stderr, "hintctl: the record ended: %s\n", strerror(-rc));
		return EXIT_FAILED;
	}
	if (r->lost)
		hfs_say(stderr, "hintctl: %llu bytes of lines came faster than they were taken; a comment says where\n",
			(unsigned long long)r->lost);
	if (r->reads == 0)
		hfs_say(stderr,
			"hintctl: nothing was read that the daemon saw. What the kernel's page cache has is read without it: begin with a fresh "
			"mount, or drop the page cache (as root: echo 1 > /proc/sys/vm/drop_caches)\n");
	else if (r->is_one_epoch && !r->is_over)
		hfs_say(stderr, "hintctl: ended before an epoch came round again: the record may be a part of one\n");
	return EXIT_SUCCESS;
}

int verb_record(const struct mount_row *m, const char *file, bool is_one_epoch)
{
	struct recorder r = {.is_one_epoch = is_one_epoch};
	char *path = ctl_path(m, "record");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1, rc;

	if (fd < 0) {
		hfs_say(stderr, "hintctl: %s: %s\n", path ? path : "record", strerror(errno));
		free(path);
		return EXIT_FAILED;
	}
	free(path);
	r.out = file ? fopen(file, "we") : stdout;
	if (!r.out) {
		hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(errno));
		close(fd);
		return EXIT_FAILED;
	}
	stop_catch(true); /* the second one kills: the mount may hang */
	bar_begin(&r.bar, 0, false);
	put_epoch(&r);
	rc = finish(&r, follow(&r, fd), file);
	close(fd);
	if (file && fclose(r.out) != 0)
		rc = EXIT_FAILED;
	recorder_finish(&r);
	return rc;
}
