/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/order.c - see order.h.
 *
 * Two passes: lines into a flat list of items (entries with numbers of files, marks), then the list is played into the
 * work: what is read, batch by batch, this node's part of it, and the same as a hint.
 */
#include "tools/sim/order.h"

#include "sched/brace.h"
#include "sched/parse.h"
#include "tools/sim/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define READS_MAX (200u << 20)
#define RESULT_MAX 4096u

enum item_kind { ITEM_READ, ITEM_BATCH, ITEM_EPOCH };
struct item {
	enum item_kind kind;
	uint32_t name;
	uint64_t off, len;
};

struct loader {
	const struct order_options *o;
	struct order_info *info;
	struct names names;
	struct item *v;
	size_t n, cap;
	char *prefix, *scratch, *path_scratch;
	char *roots[2]; /* owned: --source as written, as it really is; NULL where there is none */
	size_t prefix_len;
	uint64_t line_no;
	struct parse_line line; /* whose paths are being pushed */
	bool has_batches;
};

static int fail(struct loader *l, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct loader *l, int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->info->message, sizeof(l->info->message), fmt, ap);
	va_end(ap);
	return rc;
}

static int push(struct loader *l, struct item it)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 4096;
		void *p = cap <= READS_MAX ? reallocarray(l->v, cap, sizeof(*l->v)) : NULL;

		if (!p)
			return fail(l, -ENOMEM, "%s, line %" PRIu64 ": more than %u entries, or no memory: simulate fewer epochs at once",
				    l->o->order, l->line_no, READS_MAX);
		l->v = p;
		l->cap = cap;
	}
	l->v[l->n++] = it;
	return 0;
}

/* ---- lines --------------------------------------------------------------------------------------- */

static int push_name(void *arg, uint32_t index)
{
	struct loader *l = arg;
	const struct name *m = &l->names.v[index];
	uint64_t off = l->line.has_range ? l->line.off_bytes : 0, len = l->line.has_range ? l->line.len_bytes : 0;

	l->info->entries++;
	if (m->is_missing) {
		l->info->missing++;
		return 0;
	}
	if (off >= m->size_bytes && m->size_bytes > 0)
		return fail(l, -ERANGE, "%s, line %" PRIu64 ": offset %" PRIu64 " is past the end of %s (%" PRIu64
			    " bytes): was the order made for another version of the dataset?",
			    l->o->order, l->line_no, off, m->path, m->size_bytes);
	if (len == 0 || len > m->size_bytes - off)
		len = m->size_bytes - off;
	return len ? push(l, (struct item){ITEM_READ, index, off, len}) : 0;
}

/* Absolute paths are those below --source, as it was written or as it really is. */
static void take_source(struct loader *l, const char *path, size_t len, struct parse_roots *roots)
{
	for (size_t i = 0; i < 2; i++) {
		const char *dir = l->roots[i];
		size_t n = dir ? strlen(dir) : 0;

		if (n == 0 || len <= n || memcmp(path, dir, n) != 0 || path[n] != '/')
			continue;
		roots->mount = dir;
		roots->mount_len = n;
		return;
	}
}

static int source_roots(struct loader *l)
{
	struct stat st;
	size_t n;

	if (!l->o->source)
		return 0;
	if (stat(l->o->source, &st) < 0)
		return fail(l, -errno, "--source %s: %s; give the directory that holds the dataset, or its --sizes", l->o->source, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return fail(l, -ENOTDIR, "--source %s: not a directory; give the one that holds the dataset", l->o->source);
	l->roots[0] = strdup(l->o->source);
	l->roots[1] = realpath(l->o->source, NULL); /* NULL: the names will be missing, and said to be */
	if (!l->roots[0])
		return -ENOMEM;
	n = strlen(l->roots[0]);
	while (n > 1 && l->roots[0][n - 1] == '/')
		l->roots[0][--n] = '\0';
	return 0;
}

static int push_path(struct loader *l, const char *path, size_t len)
{
	struct parse_roots roots = {.prefix = l->prefix, .prefix_len = l->prefix_len};
	struct parse_error err;
	const char *rel;
	size_t rel_len;
	uint32_t index;
	int rc;

	take_source(l, path, len, &roots);
	rc = parse_path(&roots, path, len, l->path_scratch, &rel, &rel_len, &err);
	if (rc == -EXDEV && len > 0 && *path == '/')
		return fail(l, rc, "%s, line %" PRIu64 ": %.*s is an absolute path that is not below %s: begin the order with the line "
			    "`@prefix DIR`, DIR being where the dataset was mounted when the order was made",
			    l->o->order, l->line_no, (int)(len < 100 ? len : 100), path, l->o->source ? l->o->source : "a --source");
	if (rc)
		return fail(l, rc, "%s, line %" PRIu64 ": %s", l->o->order, l->line_no, err.message);
	if (l->line.is_dir) {
		rc = names_below(&l->names, rel, rel_len, push_name, l);
		if (rc && !l->info->message[0])
			fail(l, rc, "%s, line %" PRIu64 ": directory %.*s: %s", l->o->order, l->line_no, (int)rel_len, rel, strerror(-rc));
		return rc;
	}
	rc = names_get(&l->names, rel, rel_len, &index);
	return rc ? rc : push_name(l, index);
}

static bool is_literal(struct loader *l, const struct parse_line *p)
{
	uint32_t index;

	return names_get(&l->names, p->path, p->path_len, &index) == 0 && !l->names.v[index].is_missing;
}

static int push_pattern(struct loader *l, const struct parse_line *p)
{
	struct brace *b;
	char buf[RESULT_MAX];
	int rc = brace_create(p->path, p->path_len, &b);

	if (rc)
		return fail(l, rc, "%s, line %" PRIu64 ": the pattern stands for too many names, or nests too deep", l->o->order, l->line_no);
	for (uint64_t i = 0; rc == 0 && i < brace_count(b); i++) {
		size_t n = brace_result(b, i, buf, sizeof(buf));

		rc = n <= sizeof(buf) ? push_path(l, buf, n) : -ENAMETOOLONG;
	}
	brace_destroy(b);
	return rc;
}

/* The list so far is meant `times` times in all. */
static int repeat(struct loader *l, uint64_t times)
{
	size_t n = l->n;
	bool has_epochs = n > 0 && l->v[0].kind == ITEM_EPOCH;
	int rc = 0;

	if (times > 1 && n > READS_MAX / times)
		return fail(l, -E2BIG, "%s, line %" PRIu64 ": repeated %" PRIu64 " times that is too long to simulate: repeat it less often",
			    l->o->order, l->line_no, times);
	for (uint64_t k = 1; k < times && rc == 0; k++) {
		if (!has_epochs)
			rc = push(l, (struct item){.kind = ITEM_EPOCH});
		for (size_t i = 0; rc == 0 && i < n; i++)
			rc = push(l, l->v[i]);
	}
	return rc;
}

static int take_mark(struct loader *l, const struct parse_line *p)
{
	switch (p->mark) {
	case SCHED_MARK_BATCH_NEXT:
	case SCHED_MARK_BATCH:
		l->has_batches = true;
		return push(l, (struct item){.kind = ITEM_BATCH});
	case SCHED_MARK_EPOCH_NEXT:
	case SCHED_MARK_EPOCH:
		return push(l, (struct item){.kind = ITEM_EPOCH});
	case SCHED_MARK_REPEAT:
		return repeat(l, p->value);
	default:
		return 0; /* windows and cursors: not simulated */
	}
}

static int take_line(struct loader *l, const char *text, size_t len)
{
	struct parse_error err;
	struct parse_line p;
	int rc = parse_line(text, len, l->scratch, &p, &err);

	if (rc)
		return fail(l, rc, "%s, line %" PRIu64 ", column %u: %s", l->o->order, l->line_no, err.column, err.message);
	l->line = p;
	switch (p.kind) {
	case PARSE_NOTHING:
		return 0;
	case PARSE_MARK:
		return take_mark(l, &p);
	case PARSE_CANCEL:
		l->n = 0;
		return 0;
	case PARSE_PREFIX:
		free(l->prefix);
		l->prefix = p.path_len ? strndup(p.path, p.path_len) : NULL;
		l->prefix_len = l->prefix ? p.path_len : 0;
		return 0;
	case PARSE_ENTRY:
		return p.has_pattern && !p.is_json && !is_literal(l, &p) ? push_pattern(l, &p) : push_path(l, p.path, p.path_len);
	}
	return 0;
}

static int read_lines(struct loader *l)
{
	FILE *f = strcmp(l->o->order, "-") ? fopen(l->o->order, "re") : stdin;
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	int rc = 0;

	if (!f)
		return fail(l, -errno, "order %s: %s: give the path of a control file, as written to .ctl/order", l->o->order, strerror(errno));
	while (rc == 0 && (n = getline(&line, &cap, f)) >= 0) {
		l->line_no++;
		if (n > 0 && line[n - 1] == '\n')
			n--;
		rc = take_line(l, line, (size_t)n);
	}
	if (rc == 0 && ferror(f))
		rc = fail(l, -EIO, "order %s: reading failed: %s", l->o->order, strerror(errno));
	free(line);
	if (f != stdin)
		fclose(f);
	l->info->lines = l->line_no;
	return rc;
}

/* ---- into the work ------------------------------------------------------------------------------------ */

struct player {
	struct loader *l;
	struct sim_work *w;
	uint64_t batch; /* of the epoch, of all nodes */
	bool is_mine, has_batch;
};

static int file_of(struct player *p, uint32_t name, uint32_t *ret)
{
	struct name *m = &p->l->names.v[name];
	int rc = 0;

	if (m->file == NAMES_NONE) {
		rc = sim_work_file(p->w, m->size_bytes, &m->file);
		p->l->info->dataset_bytes += m->size_bytes;
	}
	*ret = m->file;
	return rc;
}

static int batch_begin(struct player *p)
{
	p->is_mine = p->batch++ % p->l->o->nodes == 0;
	p->has_batch = true;
	return p->is_mine ? sim_work_batch(p->w, 0) : 0;
}

static int epoch_begin(struct player *p)
{
	p->batch = 0;
	p->has_batch = false;
	return sim_work_epoch(p->w, 0);
}

static int play_item(struct player *p, const struct item *it)
{
	uint32_t file;
	int rc = 0;

	if (it->kind == ITEM_EPOCH)
		return epoch_begin(p);
	if (it->kind == ITEM_BATCH || !p->l->has_batches || !p->has_batch)
		rc = batch_begin(p);
	if (rc || it->kind != ITEM_READ)
		return rc;
	rc = file_of(p, it->name, &file); /* also of other nodes: it is part of the dataset */
	if (rc || !p->is_mine)
		return rc;
	return sim_work_read(p->w, 0, file, it->off, it->len);
}

/* Files cut into batches: each worker has its own file open, batches come from the workers in turn. */
static int play_cut(struct player *p, const struct item *v, size_t n)
{
	uint32_t workers = p->l->o->workers ? p->l->o->workers : 1;
	struct item *open = calloc(workers, sizeof(*open));
	size_t *next = calloc(workers, sizeof(*next)), left = workers;
	uint64_t step = p->l->o->batch_bytes, mine = 0;
	int rc = open && next ? 0 : -ENOMEM;

	for (uint32_t k = 0; rc == 0 && k < workers; k++)
		next[k] = (size_t)k * p->l->o->nodes;
	while (rc == 0 && left > 0) {
		left = 0;
		for (uint32_t k = 0; rc == 0 && k < workers; k++) {
			uint32_t file;

			if (open[k].len == 0) {
				if (next[k] >= n)
					continue;
				open[k] = v[next[k]];
				next[k] += (size_t)workers * p->l->o->nodes;
			}
			left++;
			mine = open[k].len < step ? open[k].len : step;
			rc = file_of(p, open[k].name, &file);
			rc = rc ? rc : sim_work_batch(p->w, 0);
			rc = rc ? rc : sim_work_read(p->w, 0, file, open[k].off, mine);
			open[k].off += mine;
			open[k].len -= mine;
		}
	}
	free(open);
	free(next);
	return rc;
}

static int hint_mark(struct sim_work *w, enum sched_mark mark, uint32_t epoch)
{
	struct sim_hint h = {.kind = SIM_HINT_MARK, .mark = mark, .epoch = epoch};

	return sim_work_hint(w, 0, &h);
}

/* What the script of this node would write: its batches, or its whole files. */
static int hint_items(struct player *p, const struct item *v, size_t n, uint32_t epoch)
{
	uint32_t ahead = p->l->o->hint_epochs, when = ahead == SIM_NONE || epoch <= ahead ? 0 : epoch - ahead;
	uint64_t entry = 0, batch = 0;
	bool is_mine = true;
	int rc = hint_mark(p->w, SCHED_MARK_EPOCH_NEXT, when);

	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct sim_hint h = {.kind = SIM_HINT_ENTRY, .epoch = when};

		if (v[i].kind == ITEM_BATCH) {
			is_mine = batch++ % p->l->o->nodes == 0;
			rc = is_mine ? hint_mark(p->w, SCHED_MARK_BATCH_NEXT, when) : 0;
			continue;
		}
		if (!p->l->has_batches)
			is_mine = entry++ % p->l->o->nodes == 0;
		if (!is_mine)
			continue;
		rc = file_of(p, v[i].name, &h.entry.file);
		h.entry.off_bytes = v[i].off;
		h.entry.len_bytes = v[i].len;
		rc = rc ? rc : sim_work_hint(p->w, 0, &h);
	}
	return rc;
}

static int play_epoch(struct player *p, const struct item *v, size_t n, uint32_t epoch)
{
	int rc = epoch_begin(p);

	for (size_t i = 0; rc == 0 && i < n && !p->l->info->is_cut; i++)
		rc = play_item(p, &v[i]);
	if (rc == 0 && p->l->info->is_cut)
		rc = play_cut(p, v, n);
	return rc ? rc : hint_items(p, v, n, epoch);
}

/* The reads of an epoch in a new order, the batches where they were. */
static void shuffle(struct item *v, size_t n, struct sim_rng *r)
{
	for (size_t i = n; i > 1; i--) {
		size_t k = sim_rng_below(r, i);
		struct item t = v[i - 1];

		if (t.kind != ITEM_READ || v[k].kind != ITEM_READ)
			continue;
		v[i - 1] = v[k];
		v[k] = t;
	}
}

static size_t epoch_end(const struct loader *l, size_t from)
{
	while (from < l->n && l->v[from].kind != ITEM_EPOCH)
		from++;
	return from;
}

static int play(struct loader *l, struct sim_work *w)
{
	struct player p = {.l = l, .w = w};
	struct sim_rng rng = {l->o->seed};
	uint64_t longest = 0;
	uint32_t e = 0, want = l->o->epochs;
	int rc = 0;

	for (size_t i = 0; i < l->n; i++)
		longest = l->v[i].kind == ITEM_READ && l->v[i].len > longest ? l->v[i].len : longest;
	l->info->is_cut = !l->has_batches && l->o->batch_bytes && longest > l->o->batch_bytes;
	for (bool is_again = false; rc == 0; is_again = true) {
		uint32_t before = e;

		for (size_t i = 0; rc == 0 && i < l->n && (!want || e < want);) {
			size_t from = l->v[i].kind == ITEM_EPOCH ? i + 1 : i, end = epoch_end(l, from);

			if (is_again && l->o->is_shuffled)
				shuffle(l->v + from, end - from, &rng);
			if (end > from)
				rc = play_epoch(&p, l->v + from, end - from, e++);
			i = end;
		}
		if (e >= want || e == before)
			break;
	}
	return rc;
}

static int work_check(struct loader *l, struct sim_work *w)
{
	l->info->files = w->n_files;
	l->info->reads = w->ranks[0].n_reads;
	l->info->epochs = w->ranks[0].n_epochs;
	l->info->batches = w->ranks[0].n_batches;
	if (w->ranks[0].n_reads == 0)
		return fail(l, -ENODATA, "%s: nothing to read: %" PRIu64 " entries, %" PRIu64
			    " of them of files that are not in the source: check --source, or --sizes and @prefix",
			    l->o->order, l->info->entries, l->info->missing);
	return 0;
}

int order_load(const struct order_options *o, struct sim_work *w, struct order_info *info)
{
	struct loader l = {.o = o, .info = info, .names = {.source = o->source}};
	uint64_t line;
	int rc;

	*info = (struct order_info){0};
	rc = sim_work_init(w, 1);
	l.scratch = malloc(PARSE_LINE_MAX + 64);
	l.path_scratch = malloc(PARSE_LINE_MAX + 64);
	if (rc || !l.scratch || !l.path_scratch)
		rc = -ENOMEM;
	if (rc == 0 && o->sizes) {
		rc = names_read_sizes(&l.names, o->sizes, &line);
		if (rc)
			fail(&l, rc, "sizes %s, line %" PRIu64 ": %s: each line is PATH<TAB>BYTES, as `find . -type f -printf '%%P\\t%%s\\n'` writes it",
			     o->sizes, line, strerror(-rc));
	}
	rc = rc ? rc : source_roots(&l);
	rc = rc ? rc : read_lines(&l);
	rc = rc ? rc : play(&l, w);
	rc = rc ? rc : work_check(&l, w);
	rc = rc ? rc : sim_work_pages(w, o->chunk_bytes);
	if (rc && !info->message[0])
		fail(&l, rc, "%s: %s", o->order, strerror(-rc));
	names_finish(&l.names);
	free(l.v);
	free(l.prefix);
	free(l.roots[0]);
	free(l.roots[1]);
	free(l.scratch);
	free(l.path_scratch);
	if (rc)
		sim_work_finish(w);
	return rc;
}
