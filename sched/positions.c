/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/positions.c - entries become page visits over a horizon; streams are merged into one order.
 *
 * One order for the whole engine: streams are merged when their visits are materialised, by
 * (epoch, batch, stream) if all of them have batch marks, else by expected time (visits ahead x tau). Next use,
 * eviction and bounds then hold for the union of the ranks. What has been materialised is only an index of the
 * entries, so a change that the order cannot absorb at its end (a new list, a seek, an alias, a
 * size that became known) builds it again: a few milliseconds for the horizon, at most.
 *
 * Appending position p of page x is O(1): link last[x] -> p; if x had no next visit, p is it.
 *
 * Callers: sched.c (step), progress.c (done). Invariants: 1 and 4 of sched_i.h; positions of one stream
 * are in the order of its visits; a rebuild keeps the visits between a stream's marks that are not done.
 */
#include "sched/sched_i.h"

#include "cache/base/err.h"

#define QUANTUM 16u	   /* visits of one stream in a row when several are merged */
#define UNTRUSTED_MAX 4096u
#define SPAN_COUNTED 4096u
#define PREFETCH 12u
#define READ_AHEAD 256u
#define PER_STEP 16384u	   /* positions a step materialises: half a millisecond */
#define DOUBLES_TO (1u << 18) /* positions; arrays beyond are moved without a copy, and room that is not used counts */
#define EXPAND_MAX 4096u   /* pages of a visit that is laid out between the marks */

void sch_positions_finish(struct sched *s)
{
	struct positions *q = &s->pos;

	free(q->page);
	free(q->next);
	free(q->visit);
	free(q->stream);
	free(q->b0);
	free(q->b1);
	sch_bitmap_finish(&q->undone);
	memset(q, 0, sizeof(*q));
}

uint64_t sch_positions_bytes(const struct sched *s)
{
	uint64_t n = (uint64_t)s->pos.cap * 16 + sch_bitmap_bytes(&s->pos.undone) + sch_bitmap_bytes(&s->tier_tree);

	for (int t = 0; t < T_COUNT; t++)
		n += sch_bitmap_bytes(&s->tree[t]);
	return n;
}

static int array_resize(void *array, uint32_t n, size_t size)
{
	void **a = array;
	void *p = realloc(*a, (size_t)n * size);

	if (!p)
		return -ENOMEM;
	*a = p;
	return 0;
}

static int positions_grow(struct sched *s)
{
	struct positions *q = &s->pos;
	uint64_t cap = q->cap ? (uint64_t)q->cap + (q->cap < DOUBLES_TO ? q->cap : q->cap / 8) : 4096;

	cap = sch_min64(cap, (uint64_t)s->horizon * 2);
	if (cap <= q->cap)
		return -ENOSPC;
	if (array_resize(&q->page, (uint32_t)cap, 4) || array_resize(&q->next, (uint32_t)cap, 4) ||
	    array_resize(&q->visit, (uint32_t)cap, 4) || array_resize(&q->stream, (uint32_t)cap, 2) ||
	    array_resize(&q->b0, (uint32_t)cap, 1) || array_resize(&q->b1, (uint32_t)cap, 1) ||
	    sch_bitmap_reserve(&q->undone, (uint32_t)cap) || sch_bitmap_reserve(&s->tier_tree, (uint32_t)cap))
		return -ENOMEM;
	for (int t = 0; t < T_COUNT; t++)
		if (sch_bitmap_reserve(&s->tree[t], (uint32_t)cap))
			return -ENOMEM;
	q->cap = (uint32_t)cap;
	return 0;
}

uint32_t sch_position_bytes(const struct sched *s, uint32_t p)
{
	return ((uint32_t)s->pos.b1[p] - s->pos.b0[p] + 1) * s->block_bytes;
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Link position p, whose own fields are set, behind the other visits of its page. */
static void position_link(struct sched *s, uint32_t p)
{
	struct page *pg = &s->pages[s->pos.page[p]];
	struct stream *st = sch_position_stream(s, p);

	s->pos.next[p] = SCH_NONE;
	s->pos.n_laid++;
	st->n_own++;
	st->first_own = sch_min32(st->first_own, p);
	st->undone = sch_min32(st->undone, p);
	sch_bitmap_set(&s->pos.undone, p);
	if (pg->next != SCH_NONE) {
		s->pos.next[pg->last] = p;
		pg->last = p;
		return;
	}
	sch_page_untree(s, s->pos.page[p]);
	pg->next = pg->last = p;
	sch_page_restate(s, s->pos.page[p]);
}

/* Blocks of the page that the visit needs. */
static void position_blocks(struct sched *s, uint32_t p, const struct span *sp, uint64_t chunk_no)
{
	uint64_t at = chunk_no * s->cfg.chunk_bytes;
	uint64_t from = sp->off > at ? sp->off - at : 0;
	uint64_t to = sch_min64(sp->end - at, s->cfg.chunk_bytes);

	s->pos.b0[p] = (uint8_t)(from / s->block_bytes);
	s->pos.b1[p] = (uint8_t)((to - 1) / s->block_bytes);
}

static int position_append(struct sched *s, uint32_t stream, uint64_t visit, const struct span *sp, uint64_t chunk_no)
{
	struct positions *q = &s->pos;
	struct stream *st = &s->streams[stream];
	uint32_t pg, p;

	if (q->n == q->cap && positions_grow(s))
		return -ENOSPC;
	if (visit - st->visit_base >= UINT32_MAX)
		return -ENOSPC;
	pg = sch_page_get(s, sp->file, chunk_no);
	if (pg == SCH_NONE)
		return -ENOMEM;
	p = q->n++;
	q->page[p] = pg;
	q->visit[p] = (uint32_t)(visit - st->visit_base);
	q->stream[p] = (uint16_t)stream;
	position_blocks(s, p, sp, chunk_no);
	position_link(s, p);
	if (st->win_limit == SCH_NONE && (st->window_bytes || st->window_batches))
		st->is_win_stale = true; /* the list was too short for the window to end in it: maybe it does now */
	return 0;
}

/* Materialise up to `budget` positions of the stream's next visit. 1: something was done, 0: nothing left. */
static int stream_visit(struct sched *s, uint32_t stream, uint32_t *budget)
{
	struct stream *st = &s->streams[stream];
	struct span sp;

	if (st->mat_visit >= sch_visits(st))
		return 0;
	sch_visit_span(s, st, st->mat_visit, &sp);
	st->span_max = sch_max32(st->span_max, (uint32_t)sch_min64(sp.n, SPAN_COUNTED));
	/* Pages of later visits lie anywhere in memory: have them on the way. */
	sch_page_prefetch(s, st, st->mat_visit + PREFETCH);
	while (st->mat_page < sp.n && *budget > 0) {
		int err = position_append(s, stream, st->mat_visit, &sp, sp.first + st->mat_page);

		if (err)
			return err;
		st->mat_page++;
		--*budget;
	}
	if (*budget > 0)
		--*budget; /* a visit of nothing costs time too */
	if (st->mat_page < sp.n)
		return 1;
	st->mat_visit++;
	st->mat_page = 0;
	return 1;
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

/* Returns false when there is nothing left to do or no room for it. */
static bool positions_extend(struct sched *s, uint32_t *budget)
{
	HFS_UNINITIALIZED struct merge m; /* large, and this is called at each step */

	if (!positions_want_more(s))
		return false;
	merge_begin(s, &m);
	for (; *budget > 0 && positions_want_more(s); merge_next(s, &m)) {
		uint32_t i, b0;

		if (m.n == 0)
			return false;
		i = m.heap[0].stream;
		b0 = sch_entry_batch(&s->streams[i], sch_visit_entry(&s->streams[i], s->streams[i].mat_visit));
		for (uint32_t k = 0; k < QUANTUM && *budget > 0 && stream_has_more(&s->streams[i]); k++) {
			struct stream *st = &s->streams[i];

			if (k && st->n_batches && st->mat_page == 0 &&
			    sch_entry_batch(st, sch_visit_entry(st, st->mat_visit)) != b0)
				break;
			if (stream_visit(s, i, budget) < 0)
				return false;
		}
	}
	return *budget == 0 && positions_want_more(s);
}

/* ---- rebuild ----------------------------------------------------------------------------------- */

/* Where the stream's materialisation goes on: at the first position that is thrown away. */
static void rebuild_cut(struct sched *s, uint32_t p)
{
	struct stream *st = sch_position_stream(s, p);
	struct span sp;

	st->mat_visit = st->visit_base + s->pos.visit[p];
	sch_visit_span(s, st, st->mat_visit, &sp);
	st->mat_page = 0;
	if (sp.n && !sp.is_unknown && s->pages[s->pos.page[p]].file == sp.file &&
	    s->pages[s->pos.page[p]].chunk_no >= sp.first)
		st->mat_page = s->pages[s->pos.page[p]].chunk_no - sp.first;
}

/* Is a position between the marks still right: same file, same size? */
static bool rebuild_keeps(const struct sched *s, uint32_t p)
{
	const struct page *pg = &s->pages[s->pos.page[p]];
	const struct file *f = sch_file(s, pg->file);
	uint32_t blocks = sch_chunk_blocks(s, pg->file, pg->chunk_no);

	return f && f->alias == SCHED_NO_FILE && f->state != FILE_MISSING && s->pos.b1[p] < blocks;
}

/* One position stood for the visit, as its file's size was not known; now it is: the pages that it stands for. */
static bool rebuild_is_stale(const struct sched *s, uint32_t p, struct span *ret)
{
	const struct stream *st = sch_position_stream(s, p);
	const struct file *f = sch_file(s, s->pages[s->pos.page[p]].file);

	if (!f || f->stale_in != s->rebuilds + 1)
		return false;
	sch_visit_span(s, st, st->visit_base + s->pos.visit[p], ret);
	return !ret->is_unknown && ret->n > 0;
}

/* Move the visits that stay to the front. cut[] says for which streams the rest is thrown away. */
static void rebuild_compact(struct sched *s, uint32_t *cut)
{
	struct positions *q = &s->pos;
	uint32_t n = 0;

	for (uint32_t i = 0; i < q->n; i++) {
		struct stream *st = sch_position_stream(s, i);
		struct span sp;

		if (!st->is_live || st->is_replaced || cut[q->stream[i]] != SCH_NONE)
			continue;
		if (i >= st->high || (rebuild_is_stale(s, i, &sp) && sp.n > EXPAND_MAX)) {
			cut[q->stream[i]] = i;
			rebuild_cut(s, i);
			continue;
		}
		if (sch_position_is_done(s, i) || !rebuild_keeps(s, i))
			continue;
		q->page[n] = q->page[i];
		q->visit[n] = q->visit[i];
		q->stream[n] = q->stream[i];
		q->b0[n] = q->b0[i];
		q->b1[n] = q->b1[i];
		n++;
	}
	q->n = n;
}

/* Room for `extra` more positions, and their pages. */
static int expand_prepare(struct sched *s, uint32_t extra)
{
	struct span sp;

	while (s->pos.n + extra > s->pos.cap) {
		int err = positions_grow(s);

		if (err)
			return err;
	}
	for (uint32_t p = 0; p < s->pos.n; p++)
		for (uint64_t k = 0; rebuild_is_stale(s, p, &sp) && k < sp.n; k++)
			if (sch_page_get(s, sp.file, sp.first + k) == SCH_NONE)
				return -ENOMEM;
	return 0;
}

/*
 * Readers overtake each other: a visit between the marks may be one whose pages were not known when it was laid out. Without memory
 * for them they are read as if no order named them.
 */
static void rebuild_expand(struct sched *s)
{
	struct positions *q = &s->pos;
	uint32_t extra = 0, to;
	struct span sp;

	for (uint32_t p = 0; p < q->n; p++)
		if (rebuild_is_stale(s, p, &sp))
			extra += (uint32_t)sp.n - 1;
	if (extra == 0 || expand_prepare(s, extra))
		return;
	to = q->n + extra;
	for (uint32_t p = q->n; p-- > 0;) {
		bool is_stale = rebuild_is_stale(s, p, &sp);

		for (uint64_t k = is_stale ? sp.n : 1; k-- > 0;) {
			to--;
			q->visit[to] = q->visit[p];
			q->stream[to] = q->stream[p];
			q->page[to] = is_stale ? sch_page_find(s, sp.file, sp.first + k) : q->page[p];
			q->b0[to] = q->b0[p];
			q->b1[to] = q->b1[p];
			if (is_stale)
				position_blocks(s, to, &sp, sp.first + k);
		}
	}
	q->n += extra;
}

static void rebuild_clear(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++) {
		s->pages[i].next = s->pages[i].last = SCH_NONE;
		s->pages[i].tree = T_NONE;
		s->pages[i].flags &= (uint8_t)~PG_TIER_TREE;
	}
	for (int t = 0; t < T_COUNT; t++)
		sch_bitmap_zero(&s->tree[t]);
	sch_bitmap_zero(&s->tier_tree);
	sch_bitmap_zero(&s->pos.undone);
}

static void rebuild_marks(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_streams; i++) {
		struct stream *st = &s->streams[i];

		st->low = 0;
		st->high = 0;
		st->gap = 0;
		st->n_own = 0;
		st->first_own = st->undone = SCH_NONE;
		st->cand = SCH_NONE;
		st->cand_hits = 0;
		st->is_win_stale = true;
		st->is_replaced = false;
	}
	for (uint32_t p = 0; p < s->pos.n; p++) {
		struct stream *st = sch_position_stream(s, p);

		position_link(s, p);
		st->high = p + 1;
		st->gap++;
	}
}

static void positions_rebuild(struct sched *s)
{
	uint32_t cut[SCHED_STREAMS_MAX + 1];

	memset(cut, 0xff, sizeof(cut));
	rebuild_compact(s, cut);
	rebuild_expand(s);
	rebuild_clear(s);
	/* Visits count from the stream's low mark again, so that 32 bits do. */
	for (uint32_t p = 0; p < s->pos.n; p++) {
		struct stream *st = sch_position_stream(s, p);

		s->pos.visit[p] = (uint32_t)(st->visit_base + s->pos.visit[p] - st->low_visit);
	}
	for (uint32_t i = 0; i < s->n_streams; i++)
		s->streams[i].visit_base = s->streams[i].low_visit;
	s->pos.low = 0;
	rebuild_marks(s);
	for (uint32_t i = 0; i < s->n_pages; i++)
		if (s->pages[i].is_live && s->pages[i].next == SCH_NONE)
			sch_page_restate(s, i);
	s->is_dirty = s->is_dirty_soon = false;
	s->rebuilds++;
	s->rebuilt_ns = s->now_ns;
	s->run_limit_ns = 0;
}

/* Pages that only the old positions named; after the new ones had their turn. */
static void positions_sweep(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++)
		if (s->pages[i].is_live)
			sch_page_put(s, i);
}

/* The lowest low mark of the streams that count. */
static void positions_low(struct sched *s)
{
	uint32_t low = SCH_NONE;

	for (uint32_t i = 0; i < s->n_streams; i++)
		if (s->streams[i].is_live && s->streams[i].is_speculating)
			low = sch_min32(low, s->streams[i].low);
	s->pos.low = sch_min32(low, s->pos.n);
}

static void positions_renew(struct sched *s)
{
	uint32_t budget = sch_min32(s->horizon, 1u << 18);

	positions_rebuild(s);
	positions_extend(s, &budget);
	positions_sweep(s);
}

void sch_positions_settle(struct sched *s)
{
	uint32_t budget = READ_AHEAD;

	if (s->is_dirty)
		positions_renew(s);
	positions_low(s);
	if (s->pos.n - s->pos.low < READ_AHEAD / 2)
		positions_extend(s, &budget); /* a read may be quicker than the next step */
}

void sch_positions_run(struct sched *s)
{
	uint32_t budget = PER_STEP, before;
	bool has_more;

	for (uint32_t i = 0; i < s->n_streams; i++)
		if (s->streams[i].is_live && !s->is_dirty)
			sch_progress_low(s, i);
	positions_low(s);
	if (s->is_dirty_soon && s->now_ns - s->rebuilt_ns >= 2 * SCH_MSEC + (uint64_t)s->pos.n * 500)
		s->is_dirty = true;
	else if (s->is_dirty_soon)
		s->next_ns = sch_min64(s->next_ns, s->rebuilt_ns + 2 * SCH_MSEC + (uint64_t)s->pos.n * 500);
	if (!s->is_dirty && s->pos.low > s->horizon / 2 && s->pos.n + PER_STEP > s->pos.cap &&
	    s->pos.cap >= s->horizon * 2)
		s->is_dirty = true; /* the front half is done: make room */
	sch_positions_settle(s);
	before = s->pos.n;
	has_more = false;
	if (before - s->pos.low < s->horizon - s->horizon / 8) /* in bites, not one for each that is done */
		has_more = positions_extend(s, &budget);
	if (s->pos.n != before && s->run_limit >= before)
		s->run_limit_ns = 0;
	if (has_more)
		s->next_ns = s->now_ns;
	positions_low(s);
}

void sch_position_done(struct sched *s, uint32_t p)
{
	uint32_t pg = s->pos.page[p];
	struct stream *st = sch_position_stream(s, p);

	if (sch_position_is_done(s, p))
		return;
	sch_bitmap_clear(&s->pos.undone, p);
	st->n_done++;
	s->n_done_all++;
	st->is_win_stale = true;
	st->spent_bytes -= sch_min64(st->spent_bytes, sch_position_bytes(s, p));
	if (p >= st->low && p < st->high && st->gap)
		st->gap--;
	if (s->pages[pg].next == p) {
		/* The bit is at p: take it away before the link moves on. */
		sch_page_next(s, pg);
	}
}

/*
 * The others' visits stay where they are, and their order with it, so that a thousand streams that go cost what they have. What
 * the room is worth that is left between them the next rebuild sees, which may wait a little.
 */
void sch_positions_withdraw(struct sched *s, uint32_t stream)
{
	struct positions *q = &s->pos;
	struct stream *st = &s->streams[stream];

	for (uint32_t p = st->first_own, n = st->n_own; n > 0 && p < q->n; p++) {
		if (q->stream[p] != stream)
			continue;
		n--;
		q->stream[p] = SCH_NOBODY;
		if (sch_position_is_done(s, p))
			continue;
		sch_bitmap_clear(&q->undone, p);
		if (s->pages[q->page[p]].next == p)
			sch_page_next(s, q->page[p]);
	}
	s->is_dirty_soon = s->is_dirty_soon || st->n_own > 0;
	s->run_limit_ns = 0;
	st->n_own = 0;
	st->first_own = st->undone = SCH_NONE;
}
