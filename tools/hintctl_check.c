/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_check.c - order --check: parses the order as the daemon does, looks its names up in the mount, and says
 * what it means. Changes nothing; all bad lines are shown, not only the first one.
 */
#include "tools/hintctl_i.h"

#include "sched/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_MAX 20u

/* A name that was looked up: open addressing, the order's names are few or many but never removed. */
struct known {
	char *path; /* owned; NULL: free */
	int err;    /* 0, or why it cannot be read */
	uint64_t size;
};

struct check {
	const struct mount_row *m;
	struct known *names; /* owned */
	size_t n_names, cap_names;
	char *prefix; /* owned */
	uint64_t lines, entries, ranges, bytes, batches, epochs, repeat, missing, bad, dirs, cancels;
	bool in_batch;
	uint64_t line_no;
	char scratch[2][PARSE_LINE_MAX + 64];
};

/* ---- messages ------------------------------------------------------------------------------------------ */

static void complain(void *ctx, uint64_t line_no, const char *line, size_t len, const struct parse_error *e)
{
	struct check *c = ctx;

	if (++c->bad <= SHOWN_MAX)
		line_print_error(line_no, line, len, e);
}

/* ---- names ------------------------------------------------------------------------------------------------ */

static size_t hash_path(const char *s, size_t len)
{
	uint64_t h = 1469598103934665603u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)s[i]) * 1099511628211u;
	return (size_t)(h ^ h >> 32);
}

static struct known *find_slot(struct check *c, const char *path, size_t len)
{
	for (size_t i = hash_path(path, len) & (c->cap_names - 1);; i = (i + 1) & (c->cap_names - 1))
		if (!c->names[i].path || (strlen(c->names[i].path) == len && memcmp(c->names[i].path, path, len) == 0))
			return &c->names[i];
}

static bool grow(struct check *c)
{
	struct known *old = c->names;
	size_t old_cap = c->cap_names;

	if (c->n_names * 2 < c->cap_names)
		return true;
	c->cap_names = old_cap ? old_cap * 2 : 1024;
	c->names = calloc(c->cap_names, sizeof(*c->names));
	if (!c->names) {
		c->names = old;
		c->cap_names = old_cap;
		return false;
	}
	for (size_t i = 0; i < old_cap; i++)
		if (old[i].path)
			*find_slot(c, old[i].path, strlen(old[i].path)) = old[i];
	free(old);
	return true;
}

static int stat_name(const struct check *c, const char *path, uint64_t *ret_size)
{
	char *full;
	struct stat st;
	int rc;

	if (asprintf(&full, "%s/%s", c->m->mountpoint, path) < 0)
		return -ENOMEM;
	rc = stat(full, &st) < 0 ? -errno : S_ISDIR(st.st_mode) ? -EISDIR : S_ISREG(st.st_mode) ? 0 : -EINVAL;
	free(full);
	*ret_size = rc == 0 ? (uint64_t)st.st_size : 0;
	return rc;
}

static struct known *look_up(struct check *c, const char *path, size_t len)
{
	struct known *k;

	if (!grow(c))
		return NULL;
	k = find_slot(c, path, len);
	if (k->path)
		return k;
	k->path = strndup(path, len);
	if (!k->path)
		return NULL;
	c->n_names++;
	k->err = stat_name(c, k->path, &k->size);
	if (k->err < 0 && k->err != -EISDIR) {
		if (++c->missing <= SHOWN_MAX)
			hfs_say(stderr, "line %llu: missing: %s\n", (unsigned long long)c->line_no, k->path);
	}
	return k;
}

/* ---- entries --------------------------------------------------------------------------------------------------- */

static struct check *walking; /* nftw() hands nothing through */

static int count_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path;
	(void)ftw;
	if (type == FTW_F && S_ISREG(st->st_mode)) {
		walking->entries++;
		walking->bytes += (uint64_t)st->st_size;
	}
	return 0;
}

static int take_dir(struct check *c, const char *path, size_t len, struct parse_error *e)
{
	char *full;
	int rc;

	if (asprintf(&full, "%s/%.*s", c->m->mountpoint, (int)len, path) < 0)
		return parse_fail(e, -ENOMEM, 1, "out of memory");
	c->dirs++;
	walking = c;
	rc = nftw(full, count_file, 32, FTW_PHYS) < 0 ? -errno : 0;
	free(full);
	return rc < 0 ? parse_fail(e, rc, 1, "the directory cannot be listed") : 0;
}

static int take_name(void *ctx, const struct parse_line *p, const char *raw, size_t raw_len, struct parse_error *e)
{
	struct check *c = ctx;
	const struct known *k;
	const char *path;
	size_t len;
	uint64_t n;

	if (name_resolve(c->m, c->prefix, raw, raw_len, c->scratch[1], &path, &len, e) < 0)
		return e->err;
	if (raw_len > 0 && raw[raw_len - 1] == '/')
		return take_dir(c, path, len, e);
	k = len > 0 ? look_up(c, path, len) : NULL;
	if (len > 0 && !k)
		return parse_fail(e, -ENOMEM, 1, "out of memory");
	if (!k || k->err == -EISDIR)
		return parse_fail(e, -EISDIR, raw_len + 1, "a directory: write a slash after it for all files below");
	c->entries++;
	c->ranges += p->has_range;
	if (k->err < 0)
		return 0; /* counted once a name, as missing */
	if (p->off_bytes > 0 && p->off_bytes >= k->size)
		return parse_fail(e, -ERANGE, p->path_len + 2, "the offset is not below the file's size");
	n = k->size - p->off_bytes;
	c->bytes += p->len_bytes > 0 && p->len_bytes < n ? p->len_bytes : n;
	return 0;
}

static void take_mark(struct check *c, const struct parse_line *p)
{
	c->batches += p->mark == SCHED_MARK_BATCH || p->mark == SCHED_MARK_BATCH_NEXT;
	c->epochs += p->mark == SCHED_MARK_EPOCH || p->mark == SCHED_MARK_EPOCH_NEXT;
	if (p->mark == SCHED_MARK_REPEAT)
		c->repeat = p->value;
}

static void take_cancel(struct check *c)
{
	c->cancels++;
	c->entries = c->ranges = c->bytes = c->batches = c->epochs = c->dirs = 0;
	c->repeat = 1;
}

static void take_line(void *ctx, uint64_t line_no, const char *line, size_t len)
{
	struct check *c = ctx;
	struct parse_line p;
	struct parse_error e;

	c->line_no = line_no;
	c->lines++;
	watch_progress();
	if (parse_line(line, len, c->scratch[0], &p, &e) < 0) {
		complain(c, line_no, line, len, &e);
		return;
	}
	if (p.kind == PARSE_MARK)
		take_mark(c, &p);
	else if (p.kind == PARSE_CANCEL)
		take_cancel(c);
	if (p.kind == PARSE_PREFIX) {
		free(c->prefix);
		c->prefix = strndup(p.path, p.path_len);
	}
	if (p.kind == PARSE_ENTRY && entry_each_name(c->m, &p, take_name, c, &e) < 0)
		complain(c, line_no, line, len, &e);
}

static void report(const struct check *c)
{
	char a[32], b[32];

	printf("%s lines: %s entries", format_count(a, c->lines), format_count(b, c->entries));
	printf(" (%s ranges)", format_count(a, c->ranges));
	printf(" of %s distinct names, %s", format_count(a, c->n_names), format_bytes(b, (double)c->bytes));
	if (c->repeat > 1)
		printf(", read %s times", format_count(a, c->repeat));
	printf("\n%s batches, %s epochs", c->batches ? format_count(a, c->batches) : "no",
	       c->epochs ? format_count(b, c->epochs) : "no");
	if (c->dirs)
		printf(", %s directories", format_count(a, c->dirs));
	printf("\n%s missing names, ", c->missing ? format_count(a, c->missing) : "no");
	printf("%s bad lines%s\n", c->bad ? format_count(b, c->bad) : "no",
	       c->bad ? ": the daemon would stop at the first one" : "");
	if (c->bad > SHOWN_MAX || c->missing > SHOWN_MAX)
		printf("(the first %u of each are shown)\n", SHOWN_MAX);
}

int verb_check(const struct mount_row *m, const char *file)
{
	bool is_stdin = strcmp(file, "-") == 0;
	int fd = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC), rc;
	struct check *c = calloc(1, sizeof(*c));

	if (fd < 0 || !c) {
		hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(errno));
		free(c);
		return EXIT_FAILED;
	}
	c->m = m;
	c->repeat = 1;
	if (daemon_answers(m)) {
		watch_begin(m, "a look-up there is not answered");
		rc = lines_each(fd, &(struct line_taker){.line = take_line, .bad = complain, .ctx = c});
		watch_end();
	} else {
		rc = -ETIMEDOUT;
		goto out;
	}
	if (rc < 0 && rc != -EMSGSIZE)
		hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(-rc));
	report(c);
out:
	rc = rc < 0 || c->bad > 0 || c->missing > 0 ? EXIT_FAILED : EXIT_SUCCESS;
	for (size_t i = 0; i < c->cap_names; i++)
		free(c->names[i].path);
	free(c->names);
	free(c->prefix);
	free(c);
	if (!is_stdin)
		close(fd);
	return rc;
}
