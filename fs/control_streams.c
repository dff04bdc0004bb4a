/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_streams.c - the table of streams by name, and the pending list of one, read back in the control grammar.
 */
#include "fs/control_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_ITEMS 512u		      /* asked of the engine in one go */
#define SKIP_MAX_BYTES (16u << 20) /* made again for one read that jumps: it keeps a thread of the session that long */

/* ---- the table ------------------------------------------------------------------------------------------ */

/* No slash can come; control characters would break `status` and a terminal. */
static int check_name(const char *name)
{
	size_t len = strlen(name);

	if (len > CONTROL_NAME_MAX)
		return -ENAMETOOLONG;
	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '/')
			return -EINVAL;
	return 0;
}

static struct control_stream *find_locked(struct control *c, const char *name)
{
	for (uint32_t i = 0; i < c->n_streams; i++)
		if (c->streams[i] && strcmp(c->streams[i]->name, name) == 0)
			return c->streams[i];
	return NULL;
}

/* Put s into a free slot, unless another one of that name came first: then that one, with a reference. */
static struct control_stream *insert_locked(struct control *c, struct control_stream *s)
{
	struct control_stream *other = find_locked(c, s->name);
	uint32_t slot = 0;

	if (other) {
		other->refs++;
		return other;
	}
	while (slot < c->n_streams && c->streams[slot])
		slot++;
	if (slot == SCHED_STREAMS_MAX)
		return NULL;
	s->slot = slot;
	s->serial = ++c->last_serial;
	c->streams[slot] = s;
	if (slot == c->n_streams)
		c->n_streams++;
	return s;
}

static int make_stream(struct control *c, const char *name, struct control_stream **ret)
{
	struct control_stream *s = calloc(1, sizeof(*s)), *in;
	int rc;

	if (!s)
		return -ENOMEM;
	strcpy(s->name, name);
	s->refs = 2; /* the table's and the caller's */
	rc = engine_stream_create(c->h->engine, &s->engine_id);
	if (rc < 0) {
		free(s);
		return rc;
	}
	hfs_mutex_lock(&c->lock);
	in = insert_locked(c, s);
	hfs_mutex_unlock(&c->lock);
	if (in != s) {
		engine_stream_destroy(c->h->engine, s->engine_id);
		free(s);
	}
	*ret = in;
	return in ? 0 : -ENOSPC;
}

int control_stream_get(struct control *c, const char *name, bool make, struct control_stream **ret)
{
	struct control_stream *s;

	HFS_TRY(check_name(name));
	hfs_mutex_lock(&c->lock);
	s = find_locked(c, name);
	if (s)
		s->refs++;
	hfs_mutex_unlock(&c->lock);
	*ret = s;
	if (s)
		return 0;
	if (!make)
		return -ENOENT;
	return atomic_load(&c->is_stopping) ? -ESHUTDOWN : make_stream(c, name, ret);
}

struct control_stream *control_stream_of(struct control *c, const struct control_node *n)
{
	struct control_stream *s = NULL;

	hfs_mutex_lock(&c->lock);
	if (n->slot < c->n_streams && c->streams[n->slot] && c->streams[n->slot]->serial == n->serial) {
		s = c->streams[n->slot];
		s->refs++;
	}
	hfs_mutex_unlock(&c->lock);
	return s;
}

void control_stream_put(struct control *c, struct control_stream *s)
{
	unsigned left;

	hfs_mutex_lock(&c->lock);
	left = --s->refs;
	hfs_mutex_unlock(&c->lock);
	if (left > 0)
		return;
	engine_stream_destroy(c->h->engine, s->engine_id);
	free(s);
}

int control_remove(struct control *c, enum control_kind parent, const char *name)
{
	struct control_stream *s = NULL;
	struct control_node n;

	if (parent != CONTROL_STREAMS)
		return control_lookup(c, parent, name, &n) < 0 ? -ENOENT : -EPERM;
	hfs_mutex_lock(&c->lock);
	s = find_locked(c, name);
	if (s && s->slot != 0) {
		c->streams[s->slot] = NULL;
		atomic_store(&s->is_removed, true);
	}
	hfs_mutex_unlock(&c->lock);
	if (!s)
		return -ENOENT;
	if (s->slot == 0)
		return -EPERM; /* "default" is `order` too */
	engine_stream_cancel(c->h->engine, s->engine_id);
	control_stream_put(c, s);
	return 0;
}

/* ---- the pending list --------------------------------------------------------------------------------------- */

static void print_entry(struct control *c, FILE *out, const struct sched_entry *e)
{
	char small[1024], *path = small, *big = NULL;
	size_t len = engine_name_path(c->h->engine, e->file, small, sizeof(small)), quoted;

	if (len >= sizeof(small)) {
		big = malloc(len + 1);
		if (!big)
			return;
		path = big;
		engine_name_path(c->h->engine, e->file, big, len + 1);
	}
	quoted = parse_path_quote(path, len, NULL, 0);
	if (len > 0) {
		char *text = malloc(quoted + 1);

		if (text) {
			parse_path_quote(path, len, text, quoted + 1);
			fwrite(text, 1, quoted, out);
			if (e->off_bytes > 0 || e->len_bytes > 0)
				fprintf(out, "\t%llu\t%llu", (unsigned long long)e->off_bytes,
					(unsigned long long)e->len_bytes);
			fputc('\n', out);
		}
		free(text);
	}
	free(big);
}

static void print_mark(FILE *out, const struct sched_item *i)
{
	static const char *const words[][2] = {
		[SCHED_MARK_BATCH] = {"@batch", ""},
		[SCHED_MARK_EPOCH] = {"@epoch", ""},
		[SCHED_MARK_REPEAT] = {"@repeat", ""},
		[SCHED_MARK_ANY] = {"@any", NULL},
		[SCHED_MARK_ORDERED] = {"@ordered", NULL},
		[SCHED_MARK_WINDOW_BYTES] = {"@window", ""},
		[SCHED_MARK_WINDOW_BATCHES] = {"@window", " batches"},
		[SCHED_MARK_SEEK] = {"@seek", ""},
	};
	const char *const *w = words[i->mark];

	if (w[1])
		fprintf(out, "%s %llu%s\n", w[0], (unsigned long long)i->value, w[1]);
	else
		fprintf(out, "%s\n", w[0]);
}

/* Make the next part of the list; 0 items: the end. */
static int make_part(struct control_file *f, size_t *ret_n)
{
	struct control *c = f->c;
	struct sched_item items[LIST_ITEMS];
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	*ret_n = engine_stream_items(c->h->engine, f->stream->engine_id, &f->list, items, LIST_ITEMS);
	for (size_t i = 0; i < *ret_n; i++) {
		if (items[i].is_mark)
			print_mark(out, &items[i]);
		else
			print_entry(c, out, &items[i].entry);
	}
	if (fclose(out) != 0) {
		free(text);
		return -ENOMEM;
	}
	free(f->text);
	f->text = text;
	f->text_off += f->text_len;
	f->text_len = len;
	return 0;
}

static void rewind_list(struct control_file *f)
{
	f->list = f->list_begin;
	f->text_off = 0;
	f->text_len = 0;
}

/* The list is made while it is read, from where the reader of the data stood when its first byte was read: forwards, or anew. */
ssize_t control_stream_read(struct control_file *f, uint64_t off, size_t size, const char **ret_data)
{
	size_t n = 1, skipped = 0;

	if (atomic_load(&f->stream->is_removed))
		return -ECANCELED;
	if (off == 0 || !f->text) {
		HFS_TRY(engine_stream_list(f->c->h->engine, f->stream->engine_id, &f->list_begin));
		rewind_list(f);
	} else if (off < f->text_off) {
		rewind_list(f);
	}
	while (off >= f->text_off + f->text_len) {
		skipped += off > f->text_off + f->text_len ? f->text_len : 0;
		if (skipped > SKIP_MAX_BYTES)
			return -ESPIPE;
		HFS_TRY(make_part(f, &n));
		if (n == 0)
			return 0;
	}
	*ret_data = f->text + (off - f->text_off);
	n = (size_t)(f->text_off + f->text_len - off);
	return (ssize_t)(n > size ? size : n);
}
