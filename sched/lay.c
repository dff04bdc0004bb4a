/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/lay.c - entries become positions, as far as the horizon; streams are merged into one order.
 *
 * By (epoch, batch, stream) if all of them have batch marks, else by expected time (visits ahead x tau). A quantum of
 * one stream at a time; positions are laid out in groups, whose pages are looked up side by side.
 *
 * Callers: positions.c. Invariants: 1 of sched_i.h; positions of one stream are in the order of its visits; what
 * found no room is what its stream goes on with.
 */
#include "sched/sched_i.h"

#include "cache/base/err.h"

#define QUANTUM 16u /* visits of one stream in a row when several are merged */
#define QUANTUM_ALONE 512u
#define UNTRUSTED_MAX 4096u
#define SPAN_COUNTED 4096u
#define GROUP 64u /* positions laid out side by side: more misses than a CPU has under way, few enough for its L1 */

/* Blocks of the page that the visit needs. */
void sch_seat_blocks(const struct sched *s, const struct span *sp, uint64_t chunk_no, struct seat *x)
{
	struct block_run r = sch_chunk_run(s, chunk_no, sp->off, sp->end);

	x->b0 = (uint8_t)r.b0;
	x->b1 = (uint8_t)r.b1;
}

/*
 * Pages of later visits lie anywhere in memory, and each leads to the next place to look at: where its number stands, its
 * last visit, the link behind that. A group of them goes these ways side by side (group prefetching: Chen, Ailamaki,
 * Gibbons, Mowry, "Improving hash join performance through prefetching", ICDE 2004).
 */
struct lay {
	uint64_t chunk_no;
	const uint32_t *at; /* where the number of its page stands; NULL: it is not known */
	uint32_t file, page;
	bool is_chain; /* what stands there is the first page of its bucket */
	struct seat seat;
};
struct group {
	struct lay lay[GROUP];
	uint32_t n;
	bool is_run; /* visits one after the other, of whole pages */
};

/* Look the pages up, make records for those that have none. How many there are memory and room for. */
static uint32_t group_pages(struct sched *s, struct group *g)
{
	uint32_t n = g->n;

	for (uint32_t i = 0; i < n; i++) {
		struct lay *l = &g->lay[i];

		l->page = l->at ? *l->at : SCH_NONE;
		if (l->is_chain && l->page != SCH_NONE)
			__builtin_prefetch(&s->pages[l->page]);
		else if (l->page != SCH_NONE)
			__builtin_prefetch(&s->last[l->page], 1);
	}
	for (uint32_t i = 0; i < n; i++) {
		struct lay *l = &g->lay[i];

		if (l->is_chain)
			l->page = sch_page_find_from(s, l->page, l->file, l->chunk_no);
		if (l->page != SCH_NONE && s->last[l->page] != SCH_NONE)
			__builtin_prefetch(&s->pos.next[s->last[l->page]], 1);
	}
	while (s->pos.cap - s->pos.n < n && !sch_positions_grow(s))
		;
	n = sch_min32(n, s->pos.cap - s->pos.n);
	for (uint32_t i = 0; i < n; i++) {
		struct lay *l = &g->lay[i];

		if (l->page == SCH_NONE)
			l->page = sch_page_get(s, l->file, l->chunk_no); /* one before may have made it */
		if (l->page == SCH_NONE)
			return i;
	}
	return n;
}

static uint32_t group_rows(struct sched *s, const struct group *g, uint32_t n)
{
	if (n && g->is_run) {
		const struct seat *x = &g->lay[0].seat;

		return sch_rows_run(&s->pos.rows, s->pos.n, n, x->stream, x->visit);
	}
	for (uint32_t i = 0; i < n; i++)
		if (sch_rows_put(&s->pos.rows, s->pos.n + i, &g->lay[i].seat))
			return i;
	return n;
}

/* Lay the group out. What finds no room its stream comes to again. */
static int group_lay(struct sched *s, struct stream *st, struct group *g)
{
	struct positions *q = &s->pos;
	uint32_t n, p0 = q->n;
	struct span sp;
	int err;

	if (g->n == 0)
		return 0;
	n = group_rows(s, g, group_pages(s, g));
	err = n < g->n ? -ENOSPC : 0;
	if (n) {
		sch_positions_own(s, st, p0, n);
		for (uint32_t i = 0; i < n; i++) {
			q->page[p0 + i] = g->lay[i].page;
			sch_position_link(s, p0 + i, g->lay[i].page);
		}
		if (st->win_limit == SCH_NONE && (st->window_bytes || st->window_batches))
			st->is_win_stale = true; /* it was too short for the window to end in it: maybe it does now */
	}
	if (err) {
		st->mat_visit = st->visit_base + g->lay[n].seat.visit;
		sch_visit_span(s, st, st->mat_visit, &sp);
		st->mat_page = g->lay[n].chunk_no - sp.first;
	}
	g->n = 0;
	g->is_run = true;
	return err;
}

/* There is room for it. */
static inline void group_add(const struct sched *s, struct group *g, uint32_t file, uint64_t chunk_no,
			     const struct seat *x)
{
	struct lay *l = &g->lay[g->n];
	struct file *f = sch_file(s, file);
	bool is_whole = x->b0 == 0 && x->b1 == s->pos.rows.whole;

	g->is_run = g->is_run && is_whole && (g->n == 0 || x->visit == l[-1].seat.visit + 1);
	l->chunk_no = chunk_no;
	l->file = file;
	l->seat = *x;
	l->at = f ? sch_page_spot(f, chunk_no) : NULL;
	l->is_chain = !l->at && s->n_buckets;
	if (l->is_chain)
		l->at = &s->buckets[sch_page_bucket(s, file, chunk_no)];
	if (l->at)
		__builtin_prefetch(l->at);
	g->n++;
}

/* Most visits are of one page of a file that is known. Takes such a one into the group; false: it is another kind. */
static inline bool visit_plain(const struct sched *s, const struct stream *st, const struct entry *e, struct seat *x,
			       struct group *g)
{
	const struct file *f = sch_file(s, e->file);
	uint64_t off = e->off, last, within = s->cfg.chunk_bytes - 1;

	if (!f || f->alias != SCHED_NO_FILE || f->state != FILE_KNOWN || off >= f->size_bytes ||
	    e->len == ENTRY_LEN_WIDE || st->mat_page)
		return false;
	last = (e->len && e->len < f->size_bytes - off ? off + e->len : f->size_bytes) - 1;
	if ((off ^ last) >> s->chunk_shift)
		return false;
	x->b0 = (uint8_t)((off & within) >> s->block_shift);
	x->b1 = (uint8_t)((last & within) >> s->block_shift);
	group_add(s, g, e->file, off >> s->chunk_shift, x);
	return true;
}

/* Any visit: its next pages, as many as the budget allows. */
static int visit_any(struct sched *s, struct stream *st, struct seat *x, struct group *g, uint32_t *budget)
{
	struct span sp;

	sch_visit_span(s, st, st->mat_visit, &sp);
	st->span_max = sch_max32(st->span_max, (uint32_t)sch_min64(sp.n, SPAN_COUNTED));
	while (st->mat_page < sp.n && *budget > 0) {
		if (g->n == GROUP) {
			int err = group_lay(s, st, g);

			if (err)
				return err;
		}
		sch_seat_blocks(s, &sp, sp.first + st->mat_page, x);
		group_add(s, g, sp.file, sp.first + st->mat_page, x);
		st->mat_page++;
		--*budget;
	}
	if (*budget > 0)
		--*budget; /* a visit of nothing costs time too */
	if (st->mat_page >= sp.n) {
		st->mat_visit++;
		st->mat_page = 0;
	}
	return 0;
}

/* ---- merge ------------------------------------------------------------------------------------ */

static bool stream_has_more(const struct stream *st)
{
	/* A list nobody trusts is kept only as far as reads may match it again. */
	return st->is_live && st->mat_visit < sch_visits(st) &&
	       (st->is_speculating || st->mat_visit < st->low_visit + UNTRUSTED_MAX);
}

struct merge_key {
	uint64_t epoch, batch;
	double time;
};

/* tau: sch_when_tau(), asked once for all streams. */
static struct merge_key stream_key(const struct stream *st, bool by_batch, double tau)
{
	struct merge_key k = {0};

	if (by_batch) {
		uint32_t b = sch_entry_batch(st, sch_visit_entry(st, st->mat_visit));

		k.epoch = sch_visit_epoch(st, st->mat_visit);
		k.batch = b == SCH_NONE ? 0 : sch_batch_number(st, b) + 1;
		return k;
	}
	k.time = (double)(st->mat_visit - st->low_visit) * (st->tau_ns > 0 ? st->tau_ns : tau);
	if (tau <= 0)
		k.time = (double)(st->mat_visit - st->low_visit);
	return k;
}

static bool key_less(const struct merge_key *a, const struct merge_key *b)
{
	if (a->epoch != b->epoch)
		return a->epoch < b->epoch;
	if (a->batch != b->batch)
		return a->batch < b->batch;
	return a->time < b->time;
}

/* Streams that have more, the one whose turn it is on top; of equal ones the lowest number. */
struct merge {
	struct merge_item {
		struct merge_key key;
		uint32_t stream;
	} heap[SCHED_STREAMS_MAX];
	uint32_t n, n_unbatched;
	double tau;
};

static bool item_less(const struct merge_item *a, const struct merge_item *b)
{
	if (key_less(&a->key, &b->key))
		return true;
	return !key_less(&b->key, &a->key) && a->stream < b->stream;
}

static void merge_sink(struct merge *m, uint32_t at)
{
	struct merge_item it = m->heap[at];
	uint32_t child;

	while ((child = 2 * at + 1) < m->n) {
		if (child + 1 < m->n && item_less(&m->heap[child + 1], &m->heap[child]))
			child++;
		if (!item_less(&m->heap[child], &it))
			break;
		m->heap[at] = m->heap[child];
		at = child;
	}
	m->heap[at] = it;
}

static void merge_begin(const struct sched *s, struct merge *m)
{
	m->n = m->n_unbatched = 0;
	for (uint32_t i = 0; i < s->n_streams; i++) {
		if (!stream_has_more(&s->streams[i]))
			continue;
		m->heap[m->n++].stream = i;
		m->n_unbatched += s->streams[i].n_batches == 0;
	}
	if (m->n <= 1)
		return;
	m->tau = m->n_unbatched ? sch_when_tau(s) : 0;
	for (uint32_t k = 0; k < m->n; k++)
		m->heap[k].key = stream_key(&s->streams[m->heap[k].stream], m->n_unbatched == 0, m->tau);
	for (uint32_t k = m->n / 2; k-- > 0;)
		merge_sink(m, k);
}

/* The stream on top was taken further. */
static void merge_next(const struct sched *s, struct merge *m)
{
	const struct stream *st = &s->streams[m->heap[0].stream];

	if (!stream_has_more(st)) {
		bool was_last = st->n_batches == 0 && m->n_unbatched == 1;

		m->n_unbatched -= st->n_batches == 0;
		m->heap[0] = m->heap[--m->n];
		if (was_last && m->n > 1) {
			merge_begin(s, m); /* by batches from here on */
			return;
		}
	} else if (m->n > 1) {
		m->heap[0].key = stream_key(st, m->n_unbatched == 0, m->tau);
	}
	if (m->n > 1)
		merge_sink(m, 0);
}

static bool positions_want_more(const struct sched *s)
{
	return s->pos.n - s->pos.low < s->horizon;
}

/* Entries of the batch that holds `entry`. The stream has batches. */
static void batch_around(const struct stream *st, uint64_t entry, uint64_t *ret_from, uint64_t *ret_to)
{
	uint32_t b = sch_entry_batch(st, entry), after = b == SCH_NONE ? 0 : b + 1;

	*ret_from = b == SCH_NONE ? 0 : st->batch_start[b];
	*ret_to = after < st->n_batches ? st->batch_start[after] : UINT64_MAX;
}

/* Some visits of one stream, of one batch. */
static int stream_extend(struct sched *s, uint32_t stream, uint32_t quantum, uint32_t *budget)
{
	HFS_UNINITIALIZED struct group g; /* large */
	struct stream *st = &s->streams[stream];
	struct seat x = {.stream = (uint16_t)stream};
	uint64_t from = 0, to = UINT64_MAX;
	int err = 0;

	g.n = 0;
	g.is_run = true;
	if (st->n_batches)
		batch_around(st, sch_visit_entry(st, st->mat_visit), &from, &to);
	for (uint32_t k = 0; k < quantum && *budget > 0 && !err && stream_has_more(st); k++) {
		uint64_t entry = st->n_repeats ? sch_visit_entry(st, st->mat_visit) : st->mat_visit;

		if (k && st->mat_page == 0 && (entry < from || entry >= to))
			break;
		if (g.n == GROUP)
			err = group_lay(s, st, &g);
		if (!err && st->mat_visit - st->visit_base >= UINT32_MAX)
			err = -ENOSPC;
		if (err)
			break;
		x.visit = (uint32_t)(st->mat_visit - st->visit_base);
		if (visit_plain(s, st, &st->blocks[entry / ENTRY_BLOCK][entry % ENTRY_BLOCK], &x, &g)) {
			st->mat_visit++;
			st->span_max = sch_max32(st->span_max, 1);
			*budget -= sch_min32(*budget, 2); /* as much as any other */
		} else {
			err = visit_any(s, st, &x, &g, budget);
		}
	}
	if (group_lay(s, st, &g) < 0)
		err = -ENOSPC;
	return err;
}

bool sch_positions_extend(struct sched *s, uint32_t *budget)
{
	HFS_UNINITIALIZED struct merge m; /* large, and this is called at each step */

	if (!positions_want_more(s))
		return false;
	merge_begin(s, &m);
	for (; *budget > 0 && positions_want_more(s); merge_next(s, &m))
		if (m.n == 0 || stream_extend(s, m.heap[0].stream, m.n == 1 ? QUANTUM_ALONE : QUANTUM, budget) < 0)
			return false;
	return *budget == 0 && positions_want_more(s);
}
