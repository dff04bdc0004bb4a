/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/progress.c - where the readers of a stream are: marks, reorder window, skips, trust, pace.
 *
 *        done            some done                   nobody was here yet
 *   ------------- L ------------------- H ------------------------------------
 *                 |<- <= reorder window ->|
 *
 * A read belongs to the first visit of its page that is not done and lies before H + reorder window (anywhere in
 * the bag under @any). It is done when its last block has been read. L follows; it jumps over visits that fall out
 * of the reorder window (dropped samples, what the kernel's page cache served). Reads that go on somewhere far
 * ahead (8 in one place) move the marks there; single ones do not.
 *
 * Trust is the share of recently read pages of the stream's readers that belonged to it: below 0.8 nothing is
 * fetched for it any more, above 0.95 it is again (law 9).
 *
 * Callers: sched.c (read), positions.c, entries.c (marks).
 */
#include "sched/sched_i.h"

#define REORDER_MIN 64u
#define JUMP_HITS 8u
#define TRUST_SHARE (1.0 / 128)
#define TRUST_SHARE_BACK (1.0 / 64)
#define TRUST_LOW 0.8
#define TRUST_HIGH 0.95
#define JUMP_COST 0.05 /* of trust: an order whose readers leap about is not one */
#define TRUST_SHARE_UNUSED (1.0 / 32)
/* Pages read that no list explains before a list nobody has used is doubted: at most so many, and a quarter of the slots. */
#define STRANGE_PAGES 16u
#define SKIPPED_MAX 4096u /* power of two */
#define LATE_HITS 4u
#define TAU_FIRST 4u /* positions for a first idea */
#define TAU_SAMPLE 16u
#define BURST_DECAY 8u
#define TAU_SAMPLE_MAX 4096u
#define CHAIN_MAX 32u
#define PARK_NS (5 * SCH_SEC)
#define PARK_MATCHES 512u

void sch_progress_reset(struct stream *st)
{
	st->visit_base = st->mat_visit = st->mat_page = 0;
	st->low_visit = st->high_visit = 0;
	st->low = st->high = st->gap = 0;
	st->reorder = REORDER_MIN;
	st->reorder_seen = 0;
	st->n_done = st->n_skipped = 0;
	st->cand = SCH_NONE;
	st->cand_hits = 0;
	sch_rewind_reset(st);
	st->is_win_stale = true;
	st->confidence = 1;
	st->n_matched = st->n_unmatched = 0;
	st->spent_bytes = 0;
	st->is_speculating = true;
	st->n_readers = 0;
	st->late_hits = 0;
	st->span_max = 0;
	st->matches_by_others = 0;
	st->tau_ns = 0;
	st->tau_count = 0;
	st->n_taus = 0;
	st->burst = 0;
	st->burst_seen = UINT32_MAX;
	st->is_replaced = true;
}

/* ---- readers ---------------------------------------------------------------------------- */

#define READERS_MAX (sizeof(((struct stream *)0)->readers) / sizeof(uint32_t))

/* Its place among the stream's readers; n_readers: none of them. */
static uint32_t stream_reader(const struct stream *st, uint64_t reader)
{
	uint32_t id = (uint32_t)(reader ^ reader >> 32), i = 0;

	if (!reader)
		return st->n_readers;
	while (i < st->n_readers && st->readers[i] != id)
		i++;
	return i;
}

static bool stream_has_reader(const struct stream *st, uint64_t reader)
{
	return stream_reader(st, reader) < st->n_readers;
}

static void stream_add_reader(struct stream *st, uint64_t reader, uint64_t visit)
{
	uint32_t i = stream_reader(st, reader);

	if (!reader)
		return;
	if (i == st->n_readers) {
		if (i == READERS_MAX) {
			memmove(st->readers, st->readers + 1, sizeof(st->readers) - sizeof(st->readers[0]));
			memmove(st->reader_visit, st->reader_visit + 1,
				sizeof(st->reader_visit) - sizeof(st->reader_visit[0]));
			i = --st->n_readers;
		}
		st->readers[i] = (uint32_t)(reader ^ reader >> 32);
		st->n_readers++;
	}
	st->reader_visit[i] = visit;
}

/* Pages of a visit, about. */
static uint64_t stream_per_visit(const struct sched *s, const struct stream *st)
{
	uint64_t visits = sch_max64(st->mat_visit - st->visit_base, 1);

	return sch_max64(sch_max64(s->pos.n / visits, st->span_max), 1);
}

/* Positions that the readers of this stream may have under way: 2 batches (or entries) each. */
static uint32_t stream_reorder(const struct sched *s, const struct stream *st)
{
	uint64_t per_visit = stream_per_visit(s, st), batch = 1, n;

	if (st->n_batches)
		batch = sch_max64(st->n_entries / st->n_batches, 1);
	n = 2 * sch_max64(st->n_readers, 1) * batch * per_visit;
	if (st->n_matched > 512) /* seen enough: follow what was seen */
		n = sch_min64(n, (uint64_t)st->reorder_seen * 3 / 2 + REORDER_MIN);
	n = sch_max64(n, (uint64_t)st->reorder_seen * 3 / 2);
	return (uint32_t)sch_min64(sch_max64(n, REORDER_MIN), s->horizon / 2);
}

/* ---- marks -------------------------------------------------------------------------------- */

static void stream_skip(struct sched *s, struct stream *st, uint32_t p)
{
	if (sch_position_is_done(s, p))
		return;
	sch_position_done(s, p);
	st->n_skipped++;
}

static uint64_t page_id(uint32_t file, uint64_t chunk_no)
{
	return ((uint64_t)file << 32 ^ chunk_no) + 1;
}

static struct skipped *skipped_at(struct sched *s, uint64_t id)
{
	return &s->skipped[(id * 0x9e3779b97f4a7c15ULL >> 32) & (SKIPPED_MAX - 1)];
}

/* Passed over, as it fell out of the reorder window. Its reader may be late only: remember it. */
static void stream_fall_out(struct sched *s, uint32_t stream, uint32_t p)
{
	const struct page *pg = &s->pages[s->pos.page[p]];
	struct skipped new = {page_id(pg->file, pg->chunk_no), sch_position_visit(s, p), stream};

	if (!s->skipped)
		s->skipped = calloc(SKIPPED_MAX, sizeof(*s->skipped));
	if (s->skipped)
		*skipped_at(s, new.id) = new;
	stream_skip(s, &s->streams[stream], p);
}

/* First visit of the stream at or after p, below which all are done, that is not; pos.n if there is none. */
static uint32_t stream_undone(struct sched *s, uint32_t stream, uint32_t p)
{
	struct stream *st = &s->streams[stream];

	if (st->undone == SCH_NONE)
		return s->pos.n;
	for (p = sch_bitmap_next(&s->pos.undone, sch_max32(p, st->undone)); p != SCH_NONE && p < s->pos.n;
	     p = sch_bitmap_next(&s->pos.undone, p + 1))
		if (sch_position_owner(s, p) == stream)
			return st->undone = p;
	st->undone = SCH_NONE; /* until one is laid out */
	return s->pos.n;
}

void sch_progress_low(struct sched *s, uint32_t stream)
{
	struct stream *st = &s->streams[stream];
	uint32_t p;

	st->reorder = stream_reorder(s, st);
	st->low = sch_max32(st->low, sch_min32(st->undone, st->high));
	while (st->low < st->high) {
		p = st->low;
		if (sch_position_owner(s, p) == stream && !sch_position_is_done(s, p)) {
			if (st->high - p <= st->reorder)
				break;
			stream_fall_out(s, stream, p);
		}
		st->low++;
	}
	if (st->low >= st->high) {
		st->gap = 0;
		st->low = st->high = stream_undone(s, stream, st->low);
	}
	st->low_visit = st->low < s->pos.n ? sch_position_visit(s, st->low) : st->mat_visit;
	st->high_visit = sch_max64(st->high_visit, st->low_visit);
}

/*
 * A batch is due at once only if its readers read it so: how many positions do they go on at twice the pace or more? Time in which
 * somebody waits does not end a burst: readers that are held up would read on.
 */
static void stream_burst(const struct sched *s, struct stream *st, uint32_t n)
{
	double ran = (double)(s->free_ns - st->burst_ns);

	if (st->burst && ran * 2 > st->burst * st->tau_ns) {
		uint32_t seen = sch_min32(st->burst_seen, sch_stream_batch(st));

		st->burst_seen = sch_max32(st->burst, seen - (seen + BURST_DECAY - 1) / BURST_DECAY);
		st->burst = 0;
	}
	if (st->burst == 0)
		st->burst_ns = s->free_ns;
	st->burst = sch_min32(st->burst + n, s->horizon);
}

static void stream_raise_high(struct sched *s, uint32_t stream, uint32_t p)
{
	struct stream *st = &s->streams[stream];

	if (p < st->high)
		return;
	stream_burst(s, st, p + 1 - st->high);
	for (uint32_t i = st->high; i <= p; i++)
		if (sch_position_owner(s, i) == stream && !sch_position_is_done(s, i))
			st->gap++;
	st->high = p + 1;
	st->high_visit = sch_position_visit(s, p) + 1;
	st->is_win_stale = true;
}

void sch_progress_arrive(struct sched *s, uint32_t stream, uint32_t p)
{
	stream_raise_high(s, stream, p);
	sch_progress_low(s, stream);
}

/* ---- trust ----------------------------------------------------------------------------------- */

static void stream_trust(struct sched *s, struct stream *st, bool is_hit)
{
	double share = st->is_speculating ? TRUST_SHARE : TRUST_SHARE_BACK;

	if (st->n_matched == 0) /* soon in doubt, and back with its first read */
		share = TRUST_SHARE_UNUSED;
	st->confidence += ((is_hit ? 1.0 : 0.0) - st->confidence) * share;
	if (is_hit && st->n_matched++ == 0)
		st->confidence = 1; /* what was read before it began says nothing */
	else if (!is_hit)
		st->n_unmatched++;
	if (is_hit)
		sch_rewind_matched(st);
	if (st->is_speculating && st->confidence < TRUST_LOW) {
		st->is_speculating = false;
		s->is_dirty = true;
	} else if (!st->is_speculating && st->confidence > TRUST_HIGH) {
		st->is_speculating = true;
		s->is_dirty = true;
	}
}

/* Trust counts pages, not the 128 KiB reads of one: is this one of the last few again? */
static bool page_is_counted(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint64_t id = page_id(file, chunk_no);

	for (uint32_t i = 0; i < SCH_STRANGE; i++)
		if (s->strange[i] == id)
			return true;
	s->strange[s->strange_at++ % SCH_STRANGE] = id;
	return false;
}

/* A reader that goes on from where it was, not one that leaps about in the list. */
static bool reader_goes_on(const struct stream *st, uint64_t reader, uint64_t visit)
{
	uint32_t i = stream_reader(st, reader);
	uint64_t batch = st->n_batches ? st->n_entries / st->n_batches : 1;
	uint64_t step_max = sch_max64(REORDER_MIN, 4 * st->n_readers * sch_min64(batch, REORDER_MIN));

	return i < st->n_readers && visit >= st->reader_visit[i] && visit - st->reader_visit[i] <= step_max;
}

/*
 * A read of a visit that had been passed over: its reader is slower than the others, and would stay behind the window for ever.
 * Make the window wide enough for it.
 */
static bool stream_is_late(struct sched *s, uint32_t file, uint64_t chunk_no, uint64_t reader)
{
	uint64_t id = page_id(file, chunk_no), behind;
	struct skipped *k = s->skipped ? skipped_at(s, id) : NULL;
	struct stream *st;

	if (!k || k->id != id)
		return false;
	k->id = 0;
	st = &s->streams[k->stream];
	if (!st->is_live || st->is_internal || k->visit >= st->low_visit || stream_reader(st, reader) == st->n_readers)
		return false; /* what was not written down, but only read once, must hold to the letter */
	st->late_hits = reader_goes_on(st, reader, k->visit) ? st->late_hits + 1 : 0;
	stream_add_reader(st, reader, k->visit);
	if (st->late_hits < LATE_HITS)
		return false;
	behind = (st->high_visit - k->visit + 1) * stream_per_visit(s, st);
	st->reorder_seen = (uint32_t)sch_max64(st->reorder_seen, sch_min64(behind, s->horizon / 2));
	st->n_skipped -= st->n_skipped > 0;
	st->last_match_ns = s->now_ns;
	(void)page_is_counted(s, file, chunk_no); /* the rest of the page is not strange either */
	stream_trust(s, st, true);
	return true;
}

void sch_progress_unmatched(struct sched *s, uint32_t file, uint64_t chunk_no, uint64_t reader)
{
	bool is_known = false;
	uint32_t strange = sch_min32(sch_max32(s->slots / 4, 2), STRANGE_PAGES);

	if (stream_is_late(s, file, chunk_no, reader) || page_is_counted(s, file, chunk_no))
		return;
	for (uint32_t i = 0; i < s->n_streams; i++)
		is_known = is_known || (s->streams[i].is_live && stream_has_reader(&s->streams[i], reader));
	for (uint32_t i = 0; i < s->n_streams; i++) {
		struct stream *st = &s->streams[i];

		if (!st->is_live || st->low_visit >= sch_visits(st))
			continue;
		if (is_known ? !stream_has_reader(st, reader) : st->n_matched > 0)
			continue; /* somebody else's reader */
		if (st->n_matched == 0 && ++st->n_unmatched < strange)
			continue;
		stream_trust(s, st, false);
	}
	for (uint32_t i = 0; i < s->n_streams; i++) /* a new process may be the one that begins again */
		if (is_known ? stream_has_reader(&s->streams[i], reader) : s->streams[i].n_matched > 0)
			sch_rewind_note(s, i, file, chunk_no);
}

/* A stream that is silent while others go on loses its claim until it is read again. */
static void stream_others(struct sched *s, const struct stream *me)
{
	for (uint32_t i = 0; i < s->n_streams; i++) {
		struct stream *st = &s->streams[i];

		if (!st->is_live || st == me || !st->is_speculating || st->low_visit >= sch_visits(st))
			continue;
		if (++st->matches_by_others < PARK_MATCHES || s->now_ns - st->last_match_ns < PARK_NS)
			continue;
		st->is_speculating = false;
		st->confidence = TRUST_HIGH; /* the next read of it brings it back */
		s->is_dirty = true;
	}
}

/* ---- reads ------------------------------------------------------------------------------------- */

/*
 * Positions of a sample: several batches, if the loader reads a batch at once each time the trainer has taken one. No more: until there is
 * a sample the reader counts as fast, and slots are filled before their turn.
 */
static uint32_t pace_sample(const struct stream *st)
{
	return sch_min32(sch_max32(TAU_SAMPLE, 4 * sch_stream_burst(st)), TAU_SAMPLE_MAX);
}

static double pace_median(const struct stream *st)
{
	double v[TAU_SAMPLES] = {0};
	uint32_t n = sch_min32(st->n_taus, TAU_SAMPLES);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = i;

		for (; k > 0 && v[k - 1] > st->taus[i]; k--)
			v[k] = v[k - 1];
		v[k] = st->taus[i];
	}
	return v[n / 2];
}

/*
 * A reader that waits is not a trainer that stalls: a loader's workers have batches in hand. A window in which somebody waited for
 * less than a quarter of the time is a sample of the pace. The median of some of them, as workers who start an epoch
 * read all that they may have in hand at once. Before the first sample time without anybody waiting must do: too fast,
 * so that too much is fetched rather than too little.
 */
static void stream_pace(struct sched *s, struct stream *st)
{
	uint32_t n = pace_sample(st);
	double wall, busy;

	if (st->tau_count == 0) {
		st->tau_clock_ns = s->clock_ns;
		st->tau_wall_ns = s->now_ns;
	}
	if (++st->tau_count <= (st->tau_ns > 0 ? n : (n = TAU_FIRST)))
		return;
	wall = (double)(s->now_ns - st->tau_wall_ns) / n;
	busy = (double)(s->clock_ns - st->tau_clock_ns) / n;
	if ((wall - busy) * 4 <= wall) {
		st->taus[st->n_taus++ % TAU_SAMPLES] = wall > 1 ? wall : 1;
		st->tau_ns = pace_median(st);
	} else if (st->n_taus == 0) {
		st->tau_ns = busy > 1 ? busy : 1;
	}
	st->tau_clock_ns = s->clock_ns;
	st->tau_wall_ns = s->now_ns;
	st->tau_count = 1;
}

static bool visit_is_any(const struct sched *s, uint32_t p)
{
	const struct stream *st = sch_position_stream(s, p);

	return st->n_spans && sch_entry_is_any(st, sch_visit_entry(st, sch_position_visit(s, p)));
}

static bool visit_is_near(const struct sched *s, uint32_t p)
{
	const struct stream *st = sch_position_stream(s, p);

	/* The next file of this stream begins behind those of all the others. */
	if (p < st->high || p - st->high < sch_max64(st->reorder, 2ULL * st->span_max * s->n_merged))
		return true;
	return st->low < s->pos.n && visit_is_any(s, p) && visit_is_any(s, st->low);
}

/* The visit that a read of blocks [b0, b1] belongs to; *ret_far: one that is too far ahead. */
static uint32_t visit_find(const struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, uint64_t reader,
			   uint32_t *ret_far)
{
	uint32_t found = SCH_NONE, n = 0;

	*ret_far = SCH_NONE;
	for (uint32_t p = s->pages[pg].next; p != SCH_NONE && n < CHAIN_MAX; p = s->pos.next[p], n++) {
		struct block_run r = sch_position_blocks(s, p);

		if (sch_position_is_done(s, p) || r.b1 < b0 || r.b0 > b1)
			continue;
		if (!visit_is_near(s, p)) {
			if (*ret_far == SCH_NONE)
				*ret_far = p;
			continue;
		}
		if (stream_has_reader(sch_position_stream(s, p), reader))
			return p;
		if (found == SCH_NONE)
			found = p;
	}
	return found;
}

static void visit_touch(struct sched *s, uint32_t p, uint32_t b1, uint64_t reader)
{
	uint32_t stream = sch_position_owner(s, p), pg = s->pos.page[p];
	struct stream *st = &s->streams[stream];

	if (!visit_is_any(s, p))
		stream_raise_high(s, stream, p);
	stream_add_reader(st, reader, sch_position_visit(s, p));
	st->last_match_ns = s->now_ns;
	st->matches_by_others = 0;
	st->cand = SCH_NONE;
	if (st->span_max > 1)
		sch_fetch_near(s, p);
	if (b1 < sch_position_blocks(s, p).b1)
		return;
	if (st->high > p) {
		uint32_t dist = st->high - p;

		if (dist > st->reorder_seen)
			st->reorder_seen = dist;
		else if (st->n_done % 512 == 0)
			st->reorder_seen -= st->reorder_seen / 8;
	}
	s->read_stream = stream;
	if (s->pages[pg].frame != SCH_NONE) {
		s->frames[s->pages[pg].frame].done_stream = stream;
		s->frames[s->pages[pg].frame].is_spent = true;
	}
	sch_position_done(s, p);
	stream_trust(s, st, true);
	stream_pace(s, st);
	if (st->low == p)
		sch_progress_low(s, stream);
}

/* The reads that led to a jump were of visits from here on: those are done. */
static void jump_done(struct sched *s, uint32_t stream, uint32_t from, uint32_t to)
{
	for (uint32_t p = from; p < to; p++) {
		uint32_t fr = s->pages[s->pos.page[p]].frame;

		if (sch_position_owner(s, p) == stream && fr != SCH_NONE && s->frames[fr].read_hi > sch_position_blocks(s, p).b1)
			sch_position_done(s, p);
	}
}

/* A read far ahead: is it the eighth in that place? Then the readers have moved on. */
static bool visit_jump(struct sched *s, uint32_t p)
{
	uint32_t stream = sch_position_owner(s, p);
	struct stream *st = &s->streams[stream];

	if (st->cand == SCH_NONE || p < st->cand || p - st->cand > st->reorder) {
		st->cand = p;
		st->cand_hits = 0;
	}
	if (++st->cand_hits < JUMP_HITS)
		return false;
	for (uint32_t i = st->low; i < st->cand; i++)
		if (sch_position_owner(s, i) == stream)
			stream_skip(s, st, i);
	st->low = sch_max32(st->low, st->cand);
	jump_done(s, stream, st->low, p);
	stream_raise_high(s, stream, p);
	st->gap = 0;
	st->cand = SCH_NONE;
	if (st->n_matched > 0)
		st->confidence -= JUMP_COST;
	sch_progress_low(s, stream);
	return true;
}

enum match sch_progress_read(struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, uint64_t reader)
{
	uint32_t far, p = visit_find(s, pg, b0, b1, reader, &far);
	struct stream *st;

	if (p == SCH_NONE && s->pages[pg].frame != SCH_NONE &&
	    s->frames[s->pages[pg].frame].done_stream != SCH_NONE)
		return MATCH_AGAIN;
	if (p == SCH_NONE && far != SCH_NONE && visit_jump(s, far))
		p = far;
	if (p == SCH_NONE)
		return MATCH_NO;
	st = sch_position_stream(s, p);
	stream_others(s, st);
	visit_touch(s, p, b1, reader);
	return st->is_speculating ? MATCH_YES : MATCH_WEAK;
}

/* ---- explicit marks ------------------------------------------------------------------------------ */

void sch_progress_seek(struct sched *s, uint32_t stream, uint64_t visit)
{
	struct stream *st = &s->streams[stream];

	st->visit_base = st->mat_visit = st->low_visit = st->high_visit = visit;
	st->mat_page = 0;
	st->low = st->high = st->gap = 0;
	st->cand = SCH_NONE;
	st->confidence = 1;
	st->is_speculating = true;
	st->spent_bytes = 0;
	st->is_replaced = true; /* its positions are thrown away */
	s->is_dirty = true;
	sch_positions_settle(s);
}

void sch_progress_done_to(struct sched *s, uint32_t stream, uint64_t visit)
{
	struct stream *st = &s->streams[stream];

	sch_positions_settle(s);
	if (visit <= st->low_visit)
		return;
	if (visit > st->mat_visit || (visit == st->mat_visit && st->mat_page)) {
		sch_progress_seek(s, stream, visit);
		return;
	}
	for (uint32_t p = st->low; p < s->pos.n; p++) {
		if (sch_position_owner(s, p) != stream)
			continue;
		if (sch_position_visit(s, p) >= visit)
			break;
		st->low = p + 1;
		sch_position_done(s, p);
	}
	st->high = sch_max32(st->high, st->low);
	st->confidence = 1;
	st->last_match_ns = s->now_ns;
	sch_progress_low(s, stream);
	if (!st->is_speculating) {
		st->is_speculating = true;
		s->is_dirty = true;
	}
}
