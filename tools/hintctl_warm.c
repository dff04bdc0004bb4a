/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_warm.c - warm: fill the disk tier with files, so that later runs need the origin no more.
 *
 *   list (walk, or an order) --> pass: read what is not kept wholly --> look again --> pass ... --> all kept, or nothing moves any more
 *
 * Files are read through the mount; what the daemon keeps of each is asked by an extended attribute (fs/data_kept.c), so it goes on
 * where an earlier one ended, and what the tier's queue had no room for is read again. Pages that a pass left in the kernel's
 * cache are dropped, as a read from there would not reach the daemon.
 */
#include "tools/hintctl_i.h"

#include "sched/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define READERS 4
#define PIECE_BYTES (1u << 20)
#define KEPT_NAME "user.hintfs.kept_bytes"
#define PASSES_IDLE_MAX 3 /* without a byte more, one second apart */
#define EXIT_INTERRUPTED 130
#define ANSWER_MS 5000u

struct target {
	char *path; /* owned; absolute */
	uint64_t size, kept;
	bool is_bad; /* said so already */
};

struct warm {
	const struct mount_row *row;
	struct target *targets; /* owned */
	size_t n, cap;
	uint64_t total, n_failed;
	struct bar bar;
	_Atomic size_t next;
	_Atomic uint64_t kept; /* as last asked, of all */
	_Atomic uint64_t n_errors;
};

/* ---- the list ---- */

static int add(struct warm *w, const char *path, uint64_t size)
{
	if (w->n == w->cap) {
		size_t cap = w->cap ? w->cap * 2 : 256;
		struct target *t = reallocarray(w->targets, cap, sizeof(*t));

		if (!t)
			return -ENOMEM;
		w->targets = t;
		w->cap = cap;
	}
	w->targets[w->n] = (struct target){.path = strdup(path), .size = size};
	if (!w->targets[w->n].path)
		return -ENOMEM;
	w->n++;
	w->total += size;
	return 0;
}

static void complain(struct warm *w, const char *path, int err)
{
	w->n_failed++;
	hfs_say(stderr, "hintctl: %s: %s\n", path, strerror(err));
}

static int add_tree(struct warm *w, const char *path)
{
	char *const roots[] = {(char *)(uintptr_t)path, NULL};
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
	FTSENT *e;
	int err = tree ? 0 : -errno;

	while (err == 0 && !stop_is_asked() && (e = fts_read(tree))) {
		if (e->fts_info == FTS_F)
			err = add(w, e->fts_path, (uint64_t)e->fts_statp->st_size);
		else if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS)
			complain(w, e->fts_path, e->fts_errno);
	}
	if (tree)
		fts_close(tree);
	return err;
}

/* As it is in an order or on the command line: below the mount, or absolute. */
static int add_word(struct warm *w, const char *word)
{
	char *path = NULL;
	int err;

	if (word[0] == '/')
		return add_tree(w, word);
	if (asprintf(&path, "%s/%s", w->row->mountpoint, word) < 0)
		return -ENOMEM;
	err = add_tree(w, path);
	free(path);
	return err;
}

/* ---- an order ---- */

struct reading {
	struct warm *w;
	char *prefix; /* owned; of @prefix */
	char *last;   /* owned; the name before, which an order of ranges repeats */
	int err;      /* no memory, not about a line */
	char json[PARSE_LINE_MAX], plain[PARSE_LINE_MAX];
};

static int take_name(void *ctx, const struct parse_line *p, const char *raw, size_t raw_len, struct parse_error *e)
{
	struct reading *r = ctx;
	const char *path;
	char *full;
	size_t len;

	(void)p;
	if (name_resolve(r->w->row, r->prefix, raw, raw_len, r->plain, &path, &len, e) < 0)
		return e->err;
	if (r->last && strlen(r->last) == len && memcmp(r->last, path, len) == 0)
		return 0;
	free(r->last);
	r->last = strndup(path, len);
	if (!r->last || asprintf(&full, "%s/%s", r->w->row->mountpoint, r->last) < 0) {
		r->err = -ENOMEM;
	} else {
		r->err = add_tree(r->w, full);
		free(full);
	}
	return r->err < 0 ? parse_fail(e, r->err, 1, "the name cannot be looked up") : 0;
}

static void forget_all(struct warm *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->targets[i].path);
	w->n = 0;
	w->total = 0;
}

static void bad_line(void *ctx, uint64_t line_no, const char *line, size_t len, const struct parse_error *e)
{
	struct reading *r = ctx;

	r->w->n_failed++;
	line_print_error(line_no, line, len, e);
}

/* Marks say when, which is all the same here. */
static void take_line(void *ctx, uint64_t line_no, const char *line, size_t len)
{
	struct reading *r = ctx;
	struct parse_line p;
	struct parse_error e;
	bool is_good = parse_line(line, len, r->json, &p, &e) == 0;

	if (is_good && p.kind == PARSE_CANCEL) {
		forget_all(r->w);
		free(r->last);
		r->last = NULL;
	} else if (is_good && p.kind == PARSE_PREFIX) {
		free(r->prefix);
		r->prefix = strndup(p.path, p.path_len);
	} else if (is_good && p.kind == PARSE_ENTRY && !stop_is_asked()) {
		is_good = entry_each_name(r->w->row, &p, take_name, r, &e) == 0;
	}
	if (!is_good)
		bad_line(r, line_no, line, len, &e);
}

/* The files of an order, whole. A bad line is said and passed over: there is no order to be kept. */
static int add_order(struct warm *w, const char *file)
{
	bool is_stdin = strcmp(file, "-") == 0;
	int fd = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC), rc;
	struct reading *r;

	if (fd < 0)
		return -errno;
	r = calloc(1, sizeof(*r));
	if (r) {
		r->w = w;
		rc = lines_each(fd, &(struct line_taker){.line = take_line, .bad = bad_line, .ctx = r});
		rc = r->err < 0 ? r->err : rc == -EMSGSIZE ? 0 : rc;
		free(r->prefix);
		free(r->last);
		free(r);
	} else {
		rc = -ENOMEM;
	}
	if (!is_stdin)
		close(fd);
	return rc;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct target *)a)->path, ((const struct target *)b)->path);
}

/* An order names a file many times. */
static void remove_twins(struct warm *w)
{
	size_t to = 0;

	if (w->n == 0)
		return;
	qsort(w->targets, w->n, sizeof(*w->targets), by_path);
	for (size_t i = 1; i < w->n; i++) {
		if (strcmp(w->targets[i].path, w->targets[to].path) == 0) {
			w->total -= w->targets[i].size;
			free(w->targets[i].path);
		} else {
			w->targets[++to] = w->targets[i];
		}
	}
	w->n = to + 1;
}

/* ---- a pass ---- */

static int kept_of(const char *path, uint64_t *ret)
{
	char text[32] = {0};

	if (getxattr(path, KEPT_NAME, text, sizeof(text) - 1) < 0)
		return -errno;
	*ret = strtoull(text, NULL, 10);
	return 0;
}

static int read_whole(const struct target *t, char *buf)
{
	int fd = open(t->path, O_RDONLY | O_CLOEXEC), err = fd < 0 ? -errno : 0;
	uint64_t off = 0;
	ssize_t n = 1;

	if (fd < 0)
		return err;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	while (n > 0 && !stop_is_asked()) {
		n = pread(fd, buf, PIECE_BYTES, (off_t)off);
		if (n < 0)
			err = -errno;
		off += n > 0 ? (uint64_t)n : 0;
	}
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return err;
}

static void warm_one(struct warm *w, struct target *t, char *buf)
{
	uint64_t kept = t->kept;
	int err = kept_of(t->path, &kept);

	if (err == 0 && kept < t->size) {
		err = read_whole(t, buf);
		if (err == 0)
			err = kept_of(t->path, &kept);
	}
	if (err < 0 && !t->is_bad && !stop_is_asked()) {
		if (w->bar.is_tty)
			fputc('\r', stderr);
		hfs_say(stderr, "hintctl: %s: %s\n", t->path, strerror(-err));
		t->is_bad = true;
		atomic_fetch_add(&w->n_errors, 1);
	}
	atomic_fetch_add(&w->kept, kept - t->kept); /* may be less than before: modulo 2^64 */
	t->kept = kept;
}

static void *reader(void *arg)
{
	struct warm *w = arg;
	char *buf = malloc(PIECE_BYTES);
	size_t i;

	while (buf && !stop_is_asked() && (i = atomic_fetch_add(&w->next, 1)) < w->n)
		if (w->targets[i].kept < w->targets[i].size && !w->targets[i].is_bad)
			warm_one(w, &w->targets[i], buf);
	free(buf);
	return NULL;
}

/* The readers know when they are done; this thread only draws. */
static void pass(struct warm *w)
{
	pthread_t threads[READERS];
	unsigned n = 0;

	atomic_store(&w->next, 0);
	while (n < READERS && pthread_create(&threads[n], NULL, reader, w) == 0)
		n++;
	while (n > 0 && !stop_is_asked() && atomic_load(&w->next) < w->n) {
		bar_draw(&w->bar, atomic_load(&w->kept), w->total, false);
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	}
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	bar_draw(&w->bar, atomic_load(&w->kept), w->total, false);
}

static void ask_all(struct warm *w)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < w->n && !stop_is_asked(); i++) {
		if (!w->targets[i].is_bad)
			(void)kept_of(w->targets[i].path, &w->targets[i].kept);
		sum += w->targets[i].kept;
	}
	atomic_store(&w->kept, sum);
}

static int run(struct warm *w)
{
	uint64_t before;
	int n_idle = 0;

	ask_all(w);
	bar_begin(&w->bar, atomic_load(&w->kept), true);
	while (!stop_is_asked() && atomic_load(&w->kept) < w->total && n_idle < PASSES_IDLE_MAX) {
		before = atomic_load(&w->kept);
		pass(w);
		ask_all(w); /* what was queued when its file was asked */
		n_idle = atomic_load(&w->kept) > before ? 0 : n_idle + 1;
		if (n_idle > 0 && !stop_is_asked())
			(void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	}
	bar_draw(&w->bar, atomic_load(&w->kept), w->total, true);
	return stop_is_asked() ? EXIT_INTERRUPTED
	       : w->n_failed + atomic_load(&w->n_errors) > 0 || atomic_load(&w->kept) < w->total ? EXIT_FAILED
												: EXIT_SUCCESS;
}

/* Why the rest is not kept: its state, the file system that it lies on, or the budget. */
static void say_why(const struct warm *w, uint64_t missing)
{
	struct status s;
	const char *dir;
	double budget;
	char a[32], b[32];

	if (status_read(w->row, ANSWER_MS, &s) < 0)
		return;
	dir = status_text(&s, "tier_dir");
	budget = status_number(&s, "tier_size_bytes") - status_number(&s, "tier_bytes");
	if (strcmp(status_text(&s, "tier_state"), "on") != 0)
		hfs_say(stderr, "hintctl: %s: the disk tier in %s is %s (%s); the daemon's log says more\n", w->row->mountpoint, dir,
			status_text(&s, "tier_state"), status_text(&s, "tier_cause"));
	else if (status_number(&s, "tier_room_inodes") < 1)
		hfs_say(stderr, "hintctl: %s: the file system of %s has no inodes left above the %s %% that cache-free= keeps free\n",
			w->row->mountpoint, dir, status_text(&s, "tier_free_pct"));
	else if (status_number(&s, "tier_room_bytes") < (double)missing && status_number(&s, "tier_room_bytes") < budget)
		hfs_say(stderr,
			"hintctl: %s: the file system of %s has %s left above the %s %% that cache-free= keeps free: make room there, or "
			"give a smaller cache-free=\n",
			w->row->mountpoint, dir, format_bytes(a, status_number(&s, "tier_room_bytes")), status_text(&s, "tier_free_pct"));
	else
		hfs_say(stderr, "hintctl: %s: cache-size=, %s, is used up but for %s: give more, or warm less\n", w->row->mountpoint,
			format_bytes(a, status_number(&s, "tier_size_bytes")), format_bytes(b, budget > 0 ? budget : 0));
	status_finish(&s);
}

static void say_end(const struct warm *w, int rc)
{
	uint64_t kept = atomic_load(&w->kept), n_whole = 0;
	char a[32], b[32], c[32], d[32], e[32];

	for (size_t i = 0; i < w->n; i++)
		n_whole += w->targets[i].kept >= w->targets[i].size;
	printf("%s: %s of %s kept, %s of %s files wholly; %s/s%s\n", w->row->mountpoint, format_bytes(a, (double)kept),
	       format_bytes(b, (double)w->total), format_count(c, n_whole), format_count(d, w->n),
	       format_bytes(e, bar_rate(&w->bar, kept)),
	       rc == EXIT_INTERRUPTED ? "; interrupted: the same command goes on from here"
	       : kept < w->total      ? "; the rest is not kept"
				      : "");
	if (rc != EXIT_INTERRUPTED && kept < w->total) {
		fflush(stdout);
		say_why(w, w->total - kept);
	}
}

static void say_no_tier(const struct mount_row *row, const char *path)
{
	size_t len = strlen(row->mountpoint);

	if (strncmp(path, row->mountpoint, len) != 0 || (path[len] != '/' && path[len] != '\0'))
		hfs_say(stderr, "hintctl: %s: not below %s: give paths relative to the mount, or its own\n", path, row->mountpoint);
	else
		hfs_say(stderr,
			"hintctl: %s: it has no disk tier to fill: mount it with cache-dir=DIR,cache-size=SIZE (what is read without one stays "
			"in memory while there is room)\n",
			row->mountpoint);
}

int verb_warm(const struct mount_row *row, const char *order, const char *const *paths, int n_paths)
{
	struct warm w = {.row = row};
	uint64_t kept;
	int err = 0, rc = EXIT_FAILED;

	stop_catch(false);
	if (order)
		err = add_order(&w, order);
	for (int i = 0; err == 0 && i < n_paths; i++)
		err = add_word(&w, paths[i]);
	if (err == 0 && !order && n_paths == 0)
		err = add_tree(&w, row->mountpoint);
	remove_twins(&w);
	if (err < 0)
		hfs_say(stderr, "hintctl: %s: %s\n", order ? order : row->mountpoint, strerror(-err));
	else if (w.n > 0 && kept_of(w.targets[0].path, &kept) < 0)
		say_no_tier(row, w.targets[0].path);
	else
		say_end(&w, rc = run(&w));
	forget_all(&w);
	free(w.targets);
	return rc;
}
