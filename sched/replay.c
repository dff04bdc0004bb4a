/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/replay.c - nobody writes an order, but the last epoch's comes again (validation sets, loaders that do not shuffle,
 * scripts that forget set_epoch): then the log of that epoch is the order.
 *
 *   logging --HITS_MIN starts in the old sequence--> replaying: the log is a stream of our own, repeated
 *      ^ |  --as many starts out of sequence--> the log begins anew        |
 *      +-+------------------ that stream is not trusted any more ----------+
 *
 * An item is where a reader began, and how far it went on from there. Readers run side by side, so a start is in sequence when
 * it is within REORDER items of where the old epoch was, and within a sixteenth of that epoch: in a short one a new order
 * would be near everywhere.
 *
 * Callers: sched.c (reads that no list explains). Invariants: (1) each item holds its file by n_entries, so that its number is
 * not reused; (2) at most LOG_MAX items: a longer epoch is not remembered; (3) a written order ends the replay.
 */
#include "sched/sched_i.h"

#define LOG_MAX (1u << 18)
#define HITS_MIN 64u
#define REORDER 512u
#define REORDER_FEW 16u
#define AGAIN_MAX 256u
#define REPEATS (1u << 20)

struct log_item {
	uint64_t off, len;
	uint32_t file;
};

struct replay {
	struct log_item *v;
	uint32_t n, cap;
	uint32_t *index, n_index; /* open addressing: item + 1, by (file, off) */
	uint32_t expect, again, hits, fresh;
	uint32_t stream; /* SCH_NONE: logging */
	bool is_full;
};

static uint32_t index_slot(const struct replay *r, uint32_t file, uint64_t off)
{
	uint64_t h = (off ^ ((uint64_t)file << 40 | file)) * 0x9e3779b97f4a7c15ULL;
	uint32_t i = (uint32_t)(h >> 32) & (r->n_index - 1);

	while (r->index[i] && (r->v[r->index[i] - 1].file != file || r->v[r->index[i] - 1].off != off))
		i = (i + 1) & (r->n_index - 1);
	return i;
}

static bool index_grow(struct replay *r)
{
	uint32_t n = r->n_index ? r->n_index * 2 : 1024, *old = r->index;

	if (2 * (r->n + 1) <= r->n_index)
		return true;
	r->index = calloc(n, sizeof(*r->index));
	if (!r->index) {
		r->index = old;
		return false;
	}
	free(old);
	r->n_index = n;
	for (uint32_t i = 0; i < r->n; i++)
		r->index[index_slot(r, r->v[i].file, r->v[i].off)] = i + 1;
	return true;
}

static void log_clear(struct sched *s, struct replay *r)
{
	for (uint32_t i = 0; i < r->n; i++) {
		struct file *f = &s->files[r->v[i].file];

		f->n_entries--;
		s->n_missing_entries -= f->state == FILE_MISSING;
	}
	r->n = r->expect = r->again = r->hits = r->fresh = 0;
	if (r->index)
		memset(r->index, 0, (size_t)r->n_index * sizeof(*r->index));
	r->is_full = false;
}

static void log_add(struct sched *s, struct replay *r, uint32_t file, uint64_t off, uint64_t len)
{
	if (r->n == LOG_MAX || sch_array_grow((void **)&r->v, &r->cap, r->n + 1, sizeof(*r->v)) || !index_grow(r)) {
		r->is_full = true; /* until something comes again */
		return;
	}
	r->v[r->n] = (struct log_item){.off = off, .len = len, .file = file};
	r->index[index_slot(r, file, off)] = ++r->n;
	s->files[file].n_entries++;
	s->files[file].log_item = r->n;
}

void sch_replay_finish(struct sched *s)
{
	if (!s->replay)
		return;
	free(s->replay->v);
	free(s->replay->index);
	free(s->replay);
	s->replay = NULL;
}

/* ---- replaying --------------------------------------------------------------------------------- */

static void replay_start(struct sched *s, struct replay *r)
{
	uint32_t stream, at = r->expect;

	if (sched_stream_create(s, &stream))
		return;
	s->streams[stream].is_internal = true;
	for (uint32_t i = 0; i < r->n; i++) {
		struct sched_entry e = {.file = r->v[i].file, .off_bytes = r->v[i].off, .len_bytes = r->v[i].len};

		if (sched_stream_append(s, stream, &e, 1) != 1) {
			sched_stream_destroy(s, stream);
			return;
		}
	}
	if (sched_stream_mark(s, stream, SCHED_MARK_REPEAT, REPEATS, s->now_ns) ||
	    sched_stream_mark(s, stream, SCHED_MARK_SEEK, at, s->now_ns)) {
		sched_stream_destroy(s, stream);
		return;
	}
	r->stream = stream;
	log_clear(s, r);
}

static bool replay_is_over(const struct sched *s, const struct replay *r)
{
	const struct stream *st = &s->streams[r->stream];

	return !st->is_speculating || s->n_entries_all > st->n_entries;
}

static void replay_end(struct sched *s, struct replay *r)
{
	sched_stream_destroy(s, r->stream);
	s->streams[r->stream].is_internal = false;
	r->stream = SCH_NONE;
}

/* ---- logging ------------------------------------------------------------------------------------- */

/* A start that the log has: where? */
static void log_again(struct sched *s, struct replay *r, uint32_t item)
{
	uint32_t far = item > r->expect ? item - r->expect : r->expect - item;

	r->again++;
	if (far <= sch_min32(sch_max32(r->n / 16, REORDER_FEW), REORDER)) {
		r->hits++;
		r->expect = sch_max32(r->expect, item + 1);
	}
	if (r->hits >= HITS_MIN && r->hits >= r->again - r->again / 8 && !r->is_full)
		replay_start(s, r);
	else if (r->again >= AGAIN_MAX)
		log_clear(s, r);
}

static void log_note(struct sched *s, struct replay *r, uint32_t file, uint64_t off, uint64_t len)
{
	struct file *f = &s->files[file];
	uint32_t item = f->log_item, slot;

	if (item && off == f->log_end) { /* the reader goes on */
		f->log_end = off + len;
		if (r->again == 0 && item <= r->n && r->v[item - 1].file == file && r->v[item - 1].off + r->v[item - 1].len == off)
			r->v[item - 1].len += len;
		return;
	}
	f->log_end = off + len;
	slot = r->n_index ? index_slot(r, file, off) : 0;
	if (r->n_index && r->index[slot]) {
		f->log_item = r->index[slot];
		log_again(s, r, r->index[slot] - 1);
		return;
	}
	if (r->again && ++r->fresh > r->again)
		r->expect = r->again = r->hits = r->fresh = 0; /* it was no new epoch */
	log_add(s, r, file, off, len);
}

void sch_replay_note(struct sched *s, uint32_t file, uint64_t off, uint64_t len, bool is_explained)
{
	struct replay *r = s->replay;

	if (!r) {
		if (is_explained)
			return;
		r = s->replay = calloc(1, sizeof(*r));
		if (!r)
			return;
		r->stream = SCH_NONE;
	}
	if (r->stream != SCH_NONE) {
		if (!replay_is_over(s, r))
			return;
		replay_end(s, r);
	}
	if (!is_explained)
		log_note(s, r, file, off, len);
}
