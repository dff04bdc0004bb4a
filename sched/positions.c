/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/positions.c - the order that is laid out: links between the visits of a page, what is done, what is thrown
 * away.
 *
 * One order for the whole engine (lay.c merges the streams into it), so that next use, eviction and bounds hold for the
 * union of the ranks. It is only an index of the entries: a change that it cannot absorb at its end (a new list, a
 * seek, an alias, a size that became known) builds it again, a few milliseconds for the horizon at most.
 *
 * Appending position p of page x is O(1): link last[x] -> p; if x had no next visit, p is it.
 *
 * Callers: sched.c (step), progress.c (done). Invariants: 1 and 4 of sched_i.h; positions of one stream
 * are in the order of its visits; a rebuild keeps the visits between a stream's marks that are not done.
 */
#include "sched/sched_i.h"

#define READ_AHEAD 256u
#define PER_STEP 16384u	      /* positions a step materialises: half a millisecond */
#define DOUBLES_TO (1u << 18) /* positions; arrays beyond are moved without a copy, and room that is not used counts \
			       */
#define EXPAND_MAX 4096u      /* pages of a visit that is laid out between the marks */

void sch_positions_finish(struct sched *s)
{
	struct positions *q = &s->pos;

	free(q->page);
	free(q->next);
	sch_rows_finish(&q->rows);
	sch_bitmap_finish(&q->undone);
	memset(q, 0, sizeof(*q));
}

uint64_t sch_positions_bytes(const struct sched *s)
{
	uint64_t n = (uint64_t)s->pos.cap * 8 + sch_rows_bytes(&s->pos.rows) + sch_bitmap_bytes(&s->pos.undone) +
		     sch_bitmap_bytes(&s->tier_tree);

	for (int t = 0; t < T_COUNT; t++)
		n += sch_bitmap_bytes(&s->tree[t]);
	return n;
}

int sch_positions_grow(struct sched *s)
{
	struct positions *q = &s->pos;
	uint64_t cap = q->cap ? (uint64_t)q->cap + (q->cap < DOUBLES_TO ? q->cap : q->cap / 8) : 4096;

	cap = sch_min64(cap, (uint64_t)s->horizon * 2);
	if (cap <= q->cap)
		return -ENOSPC;
	if (sch_array_resize(&q->page, (uint32_t)cap, 4) || sch_array_resize(&q->next, (uint32_t)cap, 4) ||
	    sch_rows_reserve(&q->rows, (uint32_t)cap) || sch_bitmap_reserve(&q->undone, (uint32_t)cap) ||
	    sch_bitmap_reserve(&s->tier_tree, (uint32_t)cap))
		return -ENOMEM;
	for (int t = 0; t < T_COUNT; t++)
		if (sch_bitmap_reserve(&s->tree[t], (uint32_t)cap))
			return -ENOMEM;
	q->cap = (uint32_t)cap;
	return 0;
}

uint32_t sch_position_bytes(const struct sched *s, uint32_t p)
{
	struct block_run r = sch_position_blocks(s, p);

	return (r.b1 - r.b0 + 1) * s->block_bytes;
}

uint64_t sch_position_visit(const struct sched *s, uint32_t p)
{
	const struct row *w = &s->pos.rows.row[p / SCH_ROW];
	const struct row_mixed *m;

	if (w->stream != SCH_ROW_MIXED)
		return s->streams[w->stream].visit_base + w->visit + sch_row_steps(w->steps, p % SCH_ROW);
	m = &s->pos.rows.mixed[w->visit];
	return s->streams[m->stream[p % SCH_ROW]].visit_base + m->visit[p % SCH_ROW];
}

/* ---- append ---------------------------------------------------------------------------------- */

/* Positions [p, p + n) are the stream's, and not done. */
void sch_positions_own(struct sched *s, struct stream *st, uint32_t p, uint32_t n)
{
	s->pos.n = p + n;
	s->pos.n_laid += n;
	st->n_own += n;
	st->first_own = sch_min32(st->first_own, p);
	st->undone = sch_min32(st->undone, p);
	sch_bitmap_fill(&s->pos.undone, p, p + n);
}

/* Position p is the only visit to come of its page. */
void sch_position_first(struct sched *s, uint32_t p)
{
	struct page *pg = &s->pages[s->pos.page[p]];

	sch_page_untree(s, s->pos.page[p]);
	pg->next = p;
	sch_page_restate(s, s->pos.page[p]);
}

/* ---- rebuild ----------------------------------------------------------------------------------- */

/* Where the stream's materialisation goes on: at the first position that is thrown away. */
static void rebuild_cut(struct sched *s, uint32_t p)
{
	struct stream *st = sch_position_stream(s, p);
	const struct page *pg = &s->pages[s->pos.page[p]];
	struct span sp;

	st->mat_visit = sch_position_visit(s, p);
	sch_visit_span(s, st, st->mat_visit, &sp);
	st->mat_page = 0;
	if (sp.n && !sp.is_unknown && pg->file == sp.file && pg->chunk_no >= sp.first)
		st->mat_page = pg->chunk_no - sp.first;
}

/* Is a position between the marks still right: same file, same size? */
static bool rebuild_keeps(const struct sched *s, uint32_t p)
{
	const struct page *pg = &s->pages[s->pos.page[p]];
	const struct file *f = sch_file(s, pg->file);
	uint32_t blocks = sch_chunk_blocks(s, pg->file, pg->chunk_no);

	return f && f->alias == SCHED_NO_FILE && f->state != FILE_MISSING && sch_position_blocks(s, p).b1 < blocks;
}

/* One position stood for the visit, as its file's size was not known; now it is: the pages that it stands for. */
static bool rebuild_is_stale(const struct sched *s, uint32_t p, struct span *ret)
{
	const struct stream *st = sch_position_stream(s, p);
	const struct file *f = sch_file(s, s->pages[s->pos.page[p]].file);

	if (!f || f->stale_in != s->rebuilds + 1)
		return false;
	sch_visit_span(s, st, sch_position_visit(s, p), ret);
	return !ret->is_unknown && ret->n > 0;
}

/* Does position p stay? cut[] says for which streams the rest is thrown away. */
static bool rebuild_takes(struct sched *s, uint32_t p, uint32_t *cut)
{
	uint32_t stream = sch_position_owner(s, p);
	const struct stream *st = &s->streams[stream];
	struct span sp;

	if (!st->is_live || st->is_replaced || cut[stream] != SCH_NONE)
		return false;
	if (p >= st->high || (rebuild_is_stale(s, p, &sp) && sp.n > EXPAND_MAX)) {
		cut[stream] = p;
		rebuild_cut(s, p);
		return false;
	}
	return !sch_position_is_done(s, p) && rebuild_keeps(s, p);
}

/*
 * Readers overtake each other: a visit between the marks may be one whose pages were not known when it was laid out.
 * How many more positions are those?
 */
static uint32_t rebuild_extra(const struct sched *s, uint32_t p)
{
	struct span sp;

	return rebuild_is_stale(s, p, &sp) ? (uint32_t)sp.n - 1 : 0;
}

/* What a rebuild keeps, in arrays of its own. */
struct kept {
	uint32_t *page;
	struct rows rows;
	uint32_t n, cap;
};

/* Without memory for it a visit is read as if no order named it. */
static void kept_add(struct kept *k, uint32_t pg, const struct seat *x)
{
	if (pg == SCH_NONE || k->n == k->cap || sch_rows_put(&k->rows, k->n, x))
		return;
	k->page[k->n++] = pg;
}

/* Visits count from the stream's low mark again, so that 32 bits do. */
static void kept_position(struct sched *s, struct kept *k, uint32_t p)
{
	struct block_run r = sch_position_blocks(s, p);
	const struct stream *st = sch_position_stream(s, p);
	struct seat x = {.visit = (uint32_t)(sch_position_visit(s, p) - st->low_visit),
			 .stream = (uint16_t)sch_position_owner(s, p),
			 .b0 = (uint8_t)r.b0,
			 .b1 = (uint8_t)r.b1};
	struct span sp;

	if (!rebuild_is_stale(s, p, &sp)) {
		kept_add(k, s->pos.page[p], &x);
		return;
	}
	for (uint64_t i = 0; i < sp.n; i++) {
		sch_seat_blocks(s, &sp, sp.first + i, &x);
		kept_add(k, sch_page_get(s, sp.file, sp.first + i), &x);
	}
}

/* The visits that stay come to the front. */
static void rebuild_keep(struct sched *s)
{
	struct positions *q = &s->pos;
	struct kept k = {.rows = {.whole = q->rows.whole}};
	uint32_t cut[SCHED_STREAMS_MAX + 1], n = 0;
	uint64_t extra = 0;

	memset(cut, 0xff, sizeof(cut));
	for (uint32_t p = 0; p < q->n; p++)
		if (rebuild_takes(s, p, cut)) {
			extra += rebuild_extra(s, p);
			q->next[n++] = p; /* links are made anew: here is room to note them */
		}
	if (n + extra < UINT32_MAX)
		while (q->cap < n + extra && !sch_positions_grow(s))
			;
	k.cap = (uint32_t)sch_min64(n + extra, q->cap);
	k.page = malloc(((size_t)k.cap + 1) * sizeof(*k.page));
	if (!k.page || sch_rows_reserve(&k.rows, q->cap))
		k.cap = 0;
	for (uint32_t i = 0; i < n; i++)
		kept_position(s, &k, q->next[i]);
	if (k.n)
		memcpy(q->page, k.page, k.n * sizeof(*k.page));
	free(k.page);
	q->n = k.n;
	sch_rows_finish(&q->rows);
	q->rows = k.rows;
}

static void rebuild_clear(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++) {
		s->pages[i].next = s->last[i] = SCH_NONE;
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
	for (uint32_t p = 0, n = s->pos.n; p < n; p++) {
		struct stream *st = sch_position_stream(s, p);

		sch_positions_own(s, st, p, 1);
		sch_position_link(s, p, s->pos.page[p]);
		st->high = p + 1;
		st->gap++;
	}
}

static void positions_rebuild(struct sched *s)
{
	rebuild_keep(s);
	rebuild_clear(s);
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
	sch_positions_extend(s, &budget);
	positions_sweep(s);
}

void sch_positions_settle(struct sched *s)
{
	uint32_t budget = READ_AHEAD;

	if (s->is_dirty)
		positions_renew(s);
	positions_low(s);
	if (s->pos.n - s->pos.low < READ_AHEAD / 2)
		sch_positions_extend(s, &budget); /* a read may be quicker than the next step */
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
		has_more = sch_positions_extend(s, &budget);
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
 * The others' visits stay where they are, and their order with it, so that a thousand streams that go cost what they
 * have. What the room is worth that is left between them the next rebuild sees, which may wait a little.
 */
void sch_positions_withdraw(struct sched *s, uint32_t stream)
{
	struct positions *q = &s->pos;
	struct stream *st = &s->streams[stream];
	uint32_t p = st->first_own;

	for (uint32_t n = st->n_own; n > 0 && p < q->n; p++) {
		if (sch_position_owner(s, p) != stream)
			continue;
		n--;
		if (sch_position_is_done(s, p))
			continue;
		sch_bitmap_clear(&q->undone, p);
		if (s->pages[q->page[p]].next == p)
			sch_page_next(s, q->page[p]);
	}
	if (st->n_own)
		sch_rows_withdraw(&q->rows, st->first_own, p, stream);
	s->is_dirty_soon = s->is_dirty_soon || st->n_own > 0;
	s->run_limit_ns = 0;
	st->n_own = 0;
	st->first_own = st->undone = SCH_NONE;
}
