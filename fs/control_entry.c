/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_entry.c - one entry line: the name behind a path, patterns, directories; the first names of an open are
 * looked up at the origin, later ones lazily by the scheduler (`missing`).
 *
 * Names are remembered by the handle (256 of them, the newest wins a place): a million ranges of a few files ask the
 * engine a few times. A name's reference is kept while it is remembered and, when it loses its place, until the run it
 * may be in is appended.
 */
#include "fs/control_i.h"

#include "cache/base/time.h"
#include "sched/brace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHECK_MS 1000u /* then an entry is accepted unchecked */
#define STREAM_ENTRIES (UINT64_C(16) << 20)
#define DIR_DEPTH_MAX 256u
#define DIR_ARENA_MAX (64u << 20)

/* ---- names ------------------------------------------------------------------------------------------------ */

static uint32_t hash_bytes(const char *s, size_t len)
{
	uint64_t h = 0x9e3779b97f4a7c15u ^ len, w;

	for (; len >= 8; s += 8, len -= 8) {
		memcpy(&w, s, 8);
		h = (h ^ w) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	w = 0;
	memcpy(&w, s, len);
	h = (h ^ w) * 0xff51afd7ed558ccdu;
	return (uint32_t)(h ^ h >> 32);
}

static struct cached_name *find_name(struct ingest *in, const char *path, size_t len, uint32_t hash)
{
	struct cached_name *n = &in->names[hash % CACHE_SLOTS];

	return n->path && n->hash == hash && n->len == len && memcmp(n->path, path, len) == 0 ? n : NULL;
}

static void forget_name(struct ingest_line *l, struct cached_name *n)
{
	if (!n->path)
		return;
	if (l->f->in->last == n)
		l->f->in->last = NULL;
	ingest_put_later(l, n->name);
	free(n->path);
	*n = (struct cached_name){0};
}

void ingest_names_drop(struct control_file *f)
{
	struct ingest *in = f->in;

	for (unsigned i = 0; i < CACHE_SLOTS; i++) {
		if (in->names[i].path)
			engine_name_put(f->c->h->engine, in->names[i].name);
		free(in->names[i].path);
	}
	for (uint32_t i = 0; i < in->n_puts; i++)
		engine_name_put(f->c->h->engine, in->puts[i]);
	in->n_puts = 0;
}

/* Remember path -> the number of real_path (the same, or where a symlink led). */
static int remember(struct ingest_line *l, const char *path, size_t len, uint32_t hash, const char *real_path,
		    size_t real_len, struct cached_name **ret)
{
	struct engine *e = l->f->c->h->engine;
	struct cached_name *n = &l->f->in->names[hash % CACHE_SLOTS];
	char *copy = malloc(len + 1);
	uint32_t name;
	int rc;

	if (!copy)
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	rc = engine_name_get(e, real_path, real_len, &name);
	if (rc < 0) {
		free(copy);
		return ingest_fail(l, rc, 1, "no room for another name: %s", strerror(-rc));
	}
	forget_name(l, n);
	memcpy(copy, path, len);
	copy[len] = '\0';
	*n = (struct cached_name){.path = copy, .len = (uint32_t)len, .hash = hash, .name = name};
	n->has_size = engine_name_size(e, name, &n->size_bytes) == 0;
	*ret = n;
	return 0;
}

/* ---- looking a name up at the origin ---------------------------------------------------------------------------- */

/* "9 names on one line": when the text has blanks and its first word alone exists. */
static void explain_missing(struct ingest_line *l, const char *path, size_t len)
{
	const char *blank = memchr(path, ' ', len);
	struct origin_answer a = {0};
	unsigned words = 1;

	ingest_say(l, -ENOENT, 1, "no such file at the origin: \"%.*s\"", (int)(len < 100 ? len : 100), path);
	if (!blank || blank == path)
		return;
	if (control_origin_ask(l->f->c, l->r, ORIGIN_REALPATH, path, (size_t)(blank - path), CHECK_MS, &a) == 0 &&
	    a.err == 0) {
		for (size_t i = 1; i < len; i++)
			words += path[i] == ' ' && path[i - 1] != ' ';
		ingest_say(l, -ENOENT, (size_t)(blank - path) + 1,
			   "%u names on one line? One a line: printf '%%s\\n' NAME ...", words);
	}
	control_origin_answer_finish(&a);
}

static int explain_check(struct ingest_line *l, const char *path, size_t len, int err)
{
	int shown = (int)(len < 100 ? len : 100);

	switch (err) {
	case -ENOENT:
	case -ENOTDIR:
	case -ENAMETOOLONG:
		explain_missing(l, path, len);
		return l->e.err;
	case -EXDEV:
		return ingest_fail(l, -EXDEV, 1, "\"%.*s\" is a symbolic link that leaves the mount", shown, path);
	case -ELOOP:
		return ingest_fail(l, -ELOOP, 1, "\"%.*s\": too many symbolic links", shown, path);
	case -EACCES:
	case -EPERM:
		return ingest_fail(l, err, 1, "\"%.*s\": the daemon may not read it", shown, path);
	default:
		return 0; /* trouble at the origin is no reason to refuse an order */
	}
}

/* The origin is slow or in trouble: the entry is taken as it is, and counted. */
static void count_unchecked(struct ingest_line *l, uint64_t n)
{
	atomic_fetch_add(&l->f->c->unchecked, n);
	atomic_fetch_add(&l->f->stream->unchecked_entries, n);
}

/* As the origin would be asked: what was seen of the path lately, by another stream's check perhaps. False: nothing. */
static bool attr_known(struct control *c, const char *path, size_t len, struct origin_attr *ret)
{
	uint64_t now_ns = hfs_now_ns(), max_ns = (uint64_t)(c->h->opts.revalidate_s * 1e9), at_ns;
	char *copy = strndup(path, len);
	bool is = copy && engine_attr_get(c->h->engine, copy, now_ns > max_ns ? now_ns - max_ns : 0, ret, &at_ns);

	free(copy);
	return is;
}

static int ask_name(struct ingest_line *l, const char *path, size_t len, struct origin_answer *ret)
{
	struct control *c = l->f->c;
	uint64_t at_ns = hfs_now_ns();
	int rc;

	if (attr_known(c, path, len, &ret->attr)) {
		ret->path = strndup(path, len);
		return ret->path ? 0 : -ENOMEM;
	}
	rc = control_origin_ask(c, l->r, ORIGIN_REALPATH, path, len, CHECK_MS, ret);
	if (rc == 0 && ret->err == 0 && strlen(ret->path) == len && memcmp(ret->path, path, len) == 0)
		engine_attr_note(c->h->engine, ret->path, &ret->attr, at_ns);
	return rc;
}

/* *ret NULL: not checked, the name is used as written. */
static int check_name(struct ingest_line *l, const char *path, size_t len, uint32_t hash, struct cached_name **ret)
{
	struct origin_answer a = {0};
	int rc = ask_name(l, path, len, &a);

	*ret = NULL;
	if (rc == -ETIMEDOUT || rc == -ENOMEM || rc == -EAGAIN) {
		l->f->in->is_unchecked = true;
		count_unchecked(l, 1);
		return 0;
	}
	if (rc < 0)
		return ingest_fail(l, rc, 1, rc == -EINTR ? "the writer was killed" : "hintfs is ending");
	if (a.err < 0) {
		rc = explain_check(l, path, len, a.err);
		if (rc == 0)
			count_unchecked(l, 1);
	} else if (S_ISDIR(a.attr.mode)) {
		rc = ingest_fail(l, -EISDIR, len + 1, "\"%.*s\" is a directory: write %.*s/ for all files below",
				 (int)(len < 70 ? len : 70), path, (int)(len < 70 ? len : 70), path);
	} else if (!S_ISREG(a.attr.mode)) {
		rc = ingest_fail(l, -EINVAL, 1, "\"%.*s\" is not a regular file", (int)(len < 100 ? len : 100), path);
	} else {
		rc = remember(l, path, len, hash, a.path, strlen(a.path), ret);
		if (rc == 0) {
			(*ret)->has_size = true;
			(*ret)->size_bytes = a.attr.id.size_bytes;
		}
	}
	control_origin_answer_finish(&a);
	return rc;
}

static bool is_checking(const struct ingest *in)
{
	return in->n_checked < CONTROL_CHECKED_MAX && !in->is_unchecked;
}

static int name_of(struct ingest_line *l, const char *path, size_t len, bool may_check, struct cached_name **ret)
{
	struct ingest *in = l->f->in;
	uint32_t hash = hash_bytes(path, len);
	struct cached_name *n = find_name(in, path, len, hash);

	if (!n && may_check && is_checking(in))
		HFS_TRY(check_name(l, path, len, hash, &n));
	else if (in->n_checked < CONTROL_CHECKED_MAX && in->is_unchecked && !n)
		count_unchecked(l, 1);
	if (!n)
		HFS_TRY(remember(l, path, len, hash, path, len, &n));
	if (may_check)
		in->n_checked++;
	*ret = n;
	return 0;
}

static int push(struct ingest_line *l, const struct parse_line *p, const struct cached_name *n)
{
	if (p->off_bytes > 0 && n->has_size && p->off_bytes >= n->size_bytes)
		return ingest_fail(l, -ERANGE, p->is_json ? 1 : p->path_len + 2,
				   "offset %llu is not below the file's size of %llu bytes",
				   (unsigned long long)p->off_bytes, (unsigned long long)n->size_bytes);
	ingest_accept(l);
	return ingest_run_push(l, n->name, p->off_bytes, p->len_bytes);
}

/* ---- directories
 * ------------------------------------------------------------------------------------------------------ */

struct dir_level {
	struct origin_answer a;
	size_t next;	 /* name to go on with */
	size_t path_len; /* of the directory, without a slash */
};

struct dir_walk {
	struct ingest_line *l;
	struct dir_level *levels; /* owned */
	unsigned depth;
	char *path; /* owned */
	size_t cap, arena_bytes;
	uint64_t n_files;
};

static int enter_dir(struct dir_walk *w, size_t path_len)
{
	struct dir_level *level = &w->levels[w->depth];
	int rc;

	if (w->depth == DIR_DEPTH_MAX)
		return ingest_fail(w->l, -ELOOP, 1, "more than %u directories deep", DIR_DEPTH_MAX);
	*level = (struct dir_level){.path_len = path_len};
	rc = control_origin_ask(w->l->f->c, w->l->r, ORIGIN_LIST, w->path, path_len, 0, &level->a);
	if (rc == 0)
		rc = level->a.err;
	w->depth++;
	w->arena_bytes += level->a.arena_bytes;
	if (rc == 0 && w->arena_bytes > DIR_ARENA_MAX)
		rc = -ENOSPC;
	if (rc == -EINTR || rc == -ESHUTDOWN)
		return ingest_fail(w->l, rc, 1, rc == -EINTR ? "the writer was killed" : "hintfs is ending");
	if (rc < 0)
		return ingest_fail(w->l, rc == -ENOTDIR ? -ENOENT : rc, 1, "cannot list \"%.*s/\": %s",
				   (int)(path_len < 100 ? path_len : 100), w->path, strerror(-rc));
	return 0;
}

static void leave_dir(struct dir_walk *w)
{
	struct dir_level *level = &w->levels[--w->depth];

	w->arena_bytes -= level->a.arena_bytes;
	control_origin_answer_finish(&level->a);
}

/* path[0..dir_len) + "/" + name; *ret_len the new length. */
static int join(struct dir_walk *w, size_t dir_len, const char *name, size_t *ret_len)
{
	size_t name_len = strlen(name), at = dir_len;

	if (dir_len + name_len + 2 > w->cap) {
		size_t cap = (dir_len + name_len + 2) * 2;
		char *path = realloc(w->path, cap);

		if (!path)
			return ingest_fail(w->l, -ENOMEM, 1, "out of memory");
		w->path = path;
		w->cap = cap;
	}
	if (at > 0)
		w->path[at++] = '/';
	memcpy(w->path + at, name, name_len);
	*ret_len = at + name_len;
	return 0;
}

static int push_file(struct dir_walk *w, size_t len)
{
	struct engine *e = w->l->f->c->h->engine;
	uint32_t name;
	int rc = engine_name_get(e, w->path, len, &name);

	if (rc < 0)
		return ingest_fail(w->l, rc, 1, "no room for another name: %s", strerror(-rc));
	ingest_accept(w->l);
	rc = ingest_run_push(w->l, name, 0, 0);
	ingest_put_later(w->l, name);
	w->n_files++;
	return rc;
}

static int walk_step(struct dir_walk *w)
{
	struct dir_level *level = &w->levels[w->depth - 1];
	const struct origin_name *n;
	size_t len = 0;

	if (level->next == level->a.n_names) {
		leave_dir(w);
		return 0;
	}
	n = &level->a.names[level->next++];
	if (level->path_len == 0 && strcmp(n->name, ".ctl") == 0)
		return 0; /* shadowed by the control files */
	HFS_TRY(join(w, level->path_len, n->name, &len));
	return n->is_dir ? enter_dir(w, len) : push_file(w, len);
}

static int real_dir(struct ingest_line *l, const char *path, size_t len, char **ret_path)
{
	struct origin_answer a = {0};
	int rc;

	if (len == 0) {
		*ret_path = strdup("");
		return *ret_path ? 0 : ingest_fail(l, -ENOMEM, 1, "out of memory");
	}
	rc = control_origin_ask(l->f->c, l->r, ORIGIN_REALPATH, path, len, 0, &a);
	if (rc < 0)
		return ingest_fail(l, rc, 1, rc == -EINTR ? "the writer was killed" : "the origin cannot be asked now");
	if (a.err == 0) {
		*ret_path = a.path;
		a.path = NULL;
	} else {
		rc = explain_check(l, path, len, a.err);
		if (rc == 0)
			rc = ingest_fail(l, a.err, 1, "cannot look the directory up: %s", strerror(-a.err));
	}
	control_origin_answer_finish(&a);
	return rc;
}

/* All regular files below, in the order of their paths' bytes, read while the walk goes on. */
static int ingest_dir(struct ingest_line *l, const char *path, size_t len)
{
	struct dir_walk w = {.l = l, .levels = calloc(DIR_DEPTH_MAX, sizeof(struct dir_level))};
	int rc;

	if (!w.levels)
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	rc = real_dir(l, path, len, &w.path);
	if (rc == 0) {
		w.cap = strlen(w.path);
		rc = enter_dir(&w, w.cap);
	}
	while (rc == 0 && w.depth > 0)
		rc = walk_step(&w);
	while (w.depth > 0)
		leave_dir(&w);
	if (rc == 0) {
		ingest_accept(l); /* an empty directory is an accepted line too */
		l->f->in->n_checked += w.n_files < CONTROL_CHECKED_MAX ? (uint32_t)w.n_files : CONTROL_CHECKED_MAX;
	}
	free(w.path);
	free(w.levels);
	return rc;
}

/* ---- patterns
 * ------------------------------------------------------------------------------------------------------------ */

static int normalise(struct ingest_line *l, const char *raw, size_t raw_len, const char **ret_path, size_t *ret_len)
{
	struct control_file *f = l->f;
	struct ingest *in = f->in;
	const struct parse_roots roots = {.mount = f->c->mount,
					  .mount_len = strlen(f->c->mount),
					  .prefix = in->prefix,
					  .prefix_len = in->prefix_len};
	char *scratch = ingest_scratch(in, 1);

	if (!scratch)
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	return parse_path(&roots, raw, raw_len, scratch, ret_path, ret_len, &l->e);
}

/* 1: a file has that literal name. Not knowing, a pattern is a pattern. */
static int is_literal(struct ingest_line *l, const char *raw, size_t raw_len)
{
	struct origin_answer a = {0};
	struct parse_error kept = l->e;
	const char *path = "";
	size_t len = 0;
	int rc;

	if (normalise(l, raw, raw_len, &path, &len) < 0) {
		l->e = kept;
		return 0;
	}
	rc = control_origin_ask(l->f->c, l->r, ORIGIN_REALPATH, path, len, CHECK_MS, &a);
	if (rc == -EINTR || rc == -ESHUTDOWN)
		return ingest_fail(l, rc, 1, rc == -EINTR ? "the writer was killed" : "hintfs is ending");
	rc = rc == 0 && a.err == 0;
	control_origin_answer_finish(&a);
	return rc;
}

static int one_name(struct ingest_line *l, const struct parse_line *p, const char *raw, size_t raw_len, bool may_check);

/* Is result no. i a path that can be taken? Looked at before the first one is, so that a line is taken whole or not at
 * all. */
static int check_result(struct ingest_line *l, const struct parse_line *p, const struct brace *b, uint64_t i, char *buf)
{
	size_t len = brace_result(b, i, buf, PARSE_LINE_MAX), path_len = 0;
	struct cached_name *n;
	const char *path = "";

	if (len > PARSE_LINE_MAX)
		return ingest_fail(l, -EMSGSIZE, 1, "a result of the pattern is longer than %u bytes", PARSE_LINE_MAX);
	if (len == 0)
		return ingest_fail(l, -EINVAL, 1, "a result of the pattern is empty");
	HFS_TRY(normalise(l, buf, len, &path, &path_len));
	if (buf[len - 1] == '/')
		return p->has_range ? ingest_fail(l, -EINVAL, p->path_len + 2, "a directory has no offset and length")
				    : 0;
	if (path_len == 0)
		return ingest_fail(l, -EISDIR, 1, "a result of the pattern is the root of the mount");
	if (!is_checking(l->f->in))
		return 0;
	return name_of(l, path, path_len, true, &n);
}

static int expand(struct ingest_line *l, const struct parse_line *p, const struct brace *b)
{
	struct control_file *f = l->f;
	uint64_t count = brace_count(b);
	char *buf = ingest_scratch(f->in, 2);
	struct sched_stream_stats stats = {0};

	if (!buf)
		return ingest_fail(l, -ENOMEM, 1, "out of memory");
	if (count == 0)
		return ingest_fail(l, -EINVAL, 1, "the pattern has no result");
	if (f->is_accepted || !f->is_trunc)
		(void)engine_stream_stats(f->c->h->engine, f->stream->engine_id, &stats);
	if (stats.entries + count > STREAM_ENTRIES)
		return ingest_fail(l, -ENOSPC, 1, "%llu names more than the stream may hold",
				   (unsigned long long)(stats.entries + count - STREAM_ENTRIES));
	for (uint64_t i = 0; i < count; i++)
		HFS_TRY(check_result(l, p, b, i, buf));
	for (uint64_t i = 0; i < count; i++) {
		if ((i & 4095) == 4095 && (atomic_load(&f->c->is_stopping) ||
					   (l->r && l->r->i.is_interrupted && control_is_dying(l->r->tid))))
			return ingest_fail(l, -EINTR, 1, "ended in the middle of the pattern");
		HFS_TRY(one_name(l, p, buf, brace_result(b, i, buf, PARSE_LINE_MAX), false));
	}
	return 0;
}

static int ingest_pattern(struct ingest_line *l, const struct parse_line *p)
{
	struct brace *b;
	int rc = is_literal(l, p->path, p->path_len);

	if (rc < 0)
		return rc;
	if (rc == 1)
		return one_name(l, p, p->path, p->path_len, true);
	rc = brace_create(p->path, p->path_len, &b);
	if (rc == -ENOSPC)
		return ingest_fail(l, rc, 1,
				   "the pattern has too many results (more than %u, or %u levels, or 2 GiB of names)",
				   BRACE_RESULTS_MAX, BRACE_DEPTH_MAX);
	if (rc < 0)
		return ingest_fail(l, rc, 1, "out of memory");
	rc = expand(l, p, b);
	brace_destroy(b);
	return rc;
}

/* ---- a line
 * ------------------------------------------------------------------------------------------------------------------ */

static int one_name(struct ingest_line *l, const struct parse_line *p, const char *raw, size_t raw_len, bool may_check)
{
	struct cached_name *n;
	const char *path = "";
	size_t len = 0;

	HFS_TRY(normalise(l, raw, raw_len, &path, &len));
	if (raw_len > 0 && raw[raw_len - 1] == '/')
		return ingest_dir(l, path, len);
	if (len == 0)
		return ingest_fail(l, -EISDIR, 1, "the root of the mount is a directory: write ./ for all files below");
	HFS_TRY(name_of(l, path, len, may_check, &n));
	l->f->in->last = n;
	return push(l, p, n);
}

static void remember_raw(struct ingest *in, const struct parse_line *p)
{
	if (p->path_len > in->last_raw_cap) {
		char *raw = realloc(in->last_raw, p->path_len * 2);

		if (!raw) {
			in->last = NULL;
			return;
		}
		in->last_raw = raw;
		in->last_raw_cap = p->path_len * 2;
	}
	memcpy(in->last_raw, p->path, p->path_len);
	in->last_raw_len = p->path_len;
}

int ingest_entry(struct ingest_line *l, const struct parse_line *p)
{
	struct ingest *in = l->f->in;
	int rc;

	if (in->last && in->last_raw_len == p->path_len && memcmp(in->last_raw, p->path, p->path_len) == 0) {
		in->n_checked += in->n_checked < CONTROL_CHECKED_MAX;
		return push(l, p, in->last);
	}
	in->last = NULL;
	if (p->has_pattern)
		rc = ingest_pattern(l, p);
	else
		rc = one_name(l, p, p->path, p->path_len, true);
	if (rc == 0 && !p->has_pattern && in->last)
		remember_raw(in, p);
	else
		in->last = NULL;
	return rc;
}

static bool has_special(const char *data, size_t len)
{
	return memchr(data, '{', len) || memmem(data, len, "::", 2) || memmem(data, len, "/\n", 2) ||
	       memmem(data, len, "/\"", 2) || memmem(data, len, "\\/\"", 3) || memmem(data, len, "u002f\"", 6) ||
	       memmem(data, len, "u002F\"", 6);
}

bool ingest_needs_origin(const struct ingest *in, const char *data, size_t len)
{
	const char *tail = in->split.tail;
	size_t tail_len = in->split.is_tail_out ? 0 : in->split.tail_len;

	if (is_checking(in))
		return true;
	/* The first bytes of data may complete the unfinished line to something special. */
	if (tail_len > 0 && len > 0 &&
	    (*tail == '"' || has_special(tail, tail_len) || (tail[tail_len - 1] == ':' && *data == ':') ||
	     (tail[tail_len - 1] == '/' && *data == '\n')))
		return true;
	return has_special(data, len);
}
