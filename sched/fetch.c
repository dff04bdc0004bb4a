/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/fetch.c - from absent to in flight: what is fetched for the order, whole pages or extents.
 *
 * The next page is the lowest bit of T_ABSENT or T_DISK, up to the limits that when.c sets and the stream's
 * @window. It gets a slot only from a page that is needed later (evict.c). No victim: stop, a full
 * window is a healthy state.
 *
 * Whole chunk if chunk <= u + n * o: u bytes of n extents of it are needed inside the horizon, o is what the
 * link carries in one request's overhead. Extents are merged across gaps below o.
 *
 * Callers: sched.c (step), demand.c, nohint.c, wait.c. Invariants 3 and 5 of sched_i.h.
 */
#include "sched/sched_i.h"

#define CHAIN_MAX 512u
#define TINY_SLOTS 16u
#define TINY_RATIO 1.5
#define HORIZON_MIN 16u
#define HURRY_VISITS 64u
#define KEEP_WINDOW_MIN 32u
#define SKIPS_MAX 4096u
#define NAME_SKIPS 64u
#define OVERHEAD_UNKNOWN 32768.0
#define DEMAND_SHARE 8u /* of inflight_max: kept from prefetch */
/* Data outstanding until the first rate is known: a link that serves in turn makes the first demands wait for all of it. */
#define START_BYTES (4ULL << 20)
#define FLIGHT_PAGES 2u
#define NEAR_PAGES 4u
#define BEHIND_NAMES 2u /* fetches outstanding of files whose turn comes after a name that is being looked up */

/* Bytes under way, n of the fetches left out that have a page's room and bring less, or from elsewhere. */
static uint64_t flight_without(const struct sched *s, uint64_t n)
{
	return s->flight_bytes - sch_min64(s->flight_bytes, n * s->cfg.chunk_bytes);
}

bool sch_fetch_may(struct sched *s, bool is_demand, uint32_t bytes)
{
	uint32_t out = s->flight.count - s->n_late, max = s->cfg.inflight_max;

	if (!is_demand) {
		max -= sch_min32(sch_min32(max / DEMAND_SHARE, 4), max - 1);
		max = sch_min32(max, s->concurrency);
	}
	if (out >= max)
		return false;
	if (is_demand) /* bounded by the slots; a reader waits in any case */
		return true;
	if (s->flight_bytes + bytes > s->cfg.inflight_bytes_max && out > 0)
		return false;
	/*
	 * As many whole pages as there were extents are a queue that the next reader stands behind. A name that is looked up has a
	 * page's room, but most bring a small file or nothing: what bounds them is their number.
	 */
	if (s->flight_enough &&
	    flight_without(s, s->n_resolving) >= sch_max64(s->flight_enough, FLIGHT_PAGES * s->cfg.chunk_bytes))
		return false;
	if (!s->cfg.prefetch_bytes_per_s)
		return true;
	if (s->tokens >= 0)
		return true;
	s->next_ns = sch_min64(s->next_ns, s->now_ns + SCH_MSEC +
						   (uint64_t)(-s->tokens * (double)SCH_SEC /
							      (double)s->cfg.prefetch_bytes_per_s));
	return false;
}

static double fetch_overhead(const struct sched *s)
{
	double o = s->origin.overhead_bytes > 0 ? s->origin.overhead_bytes : OVERHEAD_UNKNOWN;

	return o < (double)s->cfg.chunk_bytes / 8 ? o : (double)s->cfg.chunk_bytes / 8;
}

/*
 * How far the next uses of a page count when it is weighed: everything if what is named fits into the slots, else as far
 * as the window is wide now. When this visit is done, one that is farther away makes the page the next victim.
 */
static uint32_t fetch_horizon(const struct sched *s, uint32_t p)
{
	uint64_t window = p > s->pos.low ? p - s->pos.low : 0;

	if (s->live_pages <= (uint64_t)s->slots + s->cfg.disk_pages)
		return SCH_NONE;
	window = sch_max64(sch_min64(window, s->slots) * 7 / 8, HORIZON_MIN);
	return (uint32_t)sch_min64(p + window, SCH_NONE - 1);
}

/*
 * What is named does not fit, and its visits are scattered: a page fetched block by block comes again and again, a whole page that stays
 * comes once. Which ones stay does not matter, that they stay does: those that find room without pushing anything out. The
 * window keeps what the requests under way need; most of the page must be named.
 */
static uint32_t fetch_keep_window(const struct sched *s)
{
	return sch_min32(sch_max32(KEEP_WINDOW_MIN, 3 * s->concurrency), s->slots / 4);
}

static bool fetch_may_keep(const struct sched *s, uint32_t p, uint32_t blocks)
{
	uint32_t idle = s->lists[L_STALE].count + s->lists[L_USED].count, n = 0, b0, b1 = 0;
	struct blocks all = {0};

	if (s->held - sch_min32(idle, s->held) + fetch_keep_window(s) >= s->slots)
		return false;
	for (uint32_t k = 0; p != SCH_NONE && k < CHAIN_MAX; p = s->pos.next[p], k++) {
		struct block_run r = sch_position_blocks(s, p);

		if (!sch_position_is_done(s, p))
			sch_blocks_set(&all, r.b0, r.b1);
	}
	for (uint32_t b = 0; sch_blocks_run(&all, b, &b0, &b1); b = b1 + 1)
		n += b1 - b0 + 1;
	return n >= blocks - blocks / 4;
}

/* Blocks that visit p and those after it up to `to` need, and how many: in bytes, runs. */
struct need {
	struct blocks blocks;
	uint32_t bytes, runs;
};

static void fetch_need(const struct sched *s, uint32_t p, uint32_t to, struct need *ret)
{
	uint32_t b0, b1 = 0;

	*ret = (struct need){0};
	for (uint32_t k = 0; p != SCH_NONE && p <= to && k < CHAIN_MAX; p = s->pos.next[p], k++) {
		struct block_run r = sch_position_blocks(s, p);

		if (!sch_position_is_done(s, p))
			sch_blocks_set(&ret->blocks, r.b0, r.b1);
	}
	for (uint32_t b = 0; sch_blocks_run(&ret->blocks, b, &b0, &b1); b = b1 + 1) {
		ret->bytes += (b1 - b0 + 1) * s->block_bytes;
		ret->runs++;
	}
}

/*
 * A reader waits, or would if he began now: whole pages for what is read much later keep the others waiting. So only what is near, if
 * requests of that size are no waste. Not asked is whether the link keeps up with the readers: all begin by reading ahead as far as
 * they may, and how fast they are is seen only where they do not wait.
 */
static bool fetch_is_hurried(const struct sched *s, const struct need *near, double whole_bytes)
{
	double o = fetch_overhead(s);

	if (near->bytes < near->runs * o || near->bytes + near->runs * o >= whole_bytes)
		return false;
	return s->n_waiting || s->n_demands || s->origin.bytes_per_s <= 0 || sch_when_tau(s) <= 0;
}

/* Blocks of the page that visit p and those soon after it need, or all of them. */
void sch_fetch_wanted(struct sched *s, uint32_t pg, uint32_t p, struct blocks *want)
{
	uint32_t to = fetch_horizon(s, p), blocks = sch_chunk_blocks(s, s->pages[pg].file, s->pages[pg].chunk_no);
	double o = fetch_overhead(s), whole_bytes = (double)blocks * s->block_bytes;
	struct need all, near;

	fetch_need(s, p, to, &all);
	*want = all.blocks;
	if (to == SCH_NONE) {
		fetch_need(s, p, p + HURRY_VISITS, &near);
		if (fetch_is_hurried(s, &near, whole_bytes)) {
			*want = near.blocks;
			return;
		}
	}
	if (blocks && (whole_bytes <= (double)all.bytes + (all.runs > 1 ? all.runs : 0) * o || fetch_may_keep(s, p, blocks)))
		sch_blocks_set(want, 0, blocks - 1);
}

/* Bridge gaps below o where nothing is there or on its way. */
static void fetch_bridge(const struct sched *s, const struct frame *f, struct blocks *missing)
{
	uint32_t gap_max = (uint32_t)(fetch_overhead(s) / s->block_bytes), b0, b1, c0, c1;

	if (!sch_blocks_run(missing, 0, &b0, &b1))
		return;
	while (b1 + 1 < SCH_BLOCKS_MAX && sch_blocks_run(missing, b1 + 1, &c0, &c1)) {
		if (c0 - b1 - 1 <= gap_max && !sch_blocks_any(&f->valid, b1 + 1, c0 - 1) &&
		    !sch_blocks_any(&f->flight, b1 + 1, c0 - 1))
			sch_blocks_set(missing, b1 + 1, c0 - 1);
		b1 = c1;
	}
}

static bool fetch_emit(struct sched *s, uint32_t fe, enum sched_action_kind kind, uint64_t deadline_ns)
{
	const struct fetch *f = &s->fetches[fe];
	const struct page *p = &s->pages[s->frames[f->frame].page];
	uint32_t off = f->b0 * s->block_bytes, size = sch_chunk_bytes(s, p->file, p->chunk_no);
	struct sched_action a = {.kind = kind,
				 .file = p->file,
				 .chunk_no = p->chunk_no,
				 .off_bytes = off,
				 /* A name stood for a whole chunk: its size may have become known since. */
				 .len_bytes = sch_min32(f->bytes, size > off ? size - off : 0),
				 .is_demand = f->is_demand,
				 .from_tier = f->from_tier,
				 .deadline_ns = deadline_ns};

	return sch_emit(s, &a);
}

/* A reader waits for what is on its way as a prefetch: say it again, louder. */
static int fetch_promote(struct sched *s, uint32_t fr, const struct blocks *want, bool is_again)
{
	for (uint32_t fe = s->frames[fr].fetches; fe != SCH_NONE; fe = s->fetches[fe].frame_next) {
		struct fetch *f = &s->fetches[fe];

		if (!sch_blocks_any(want, f->b0, f->b1) || (f->is_demand && !is_again))
			continue;
		if (!f->is_demand) {
			s->n_waiting++;
			f->stall = f->from_tier ? SCHED_STALL_TIER : SCHED_STALL_LATE;
			s->n_stalls[f->stall]++;
		}
		f->is_demand = true;
		/* A name is asked for once; when it is known by other ways, its data are like any other. */
		if (f->is_resolve && s->files[s->pages[s->frames[fr].page].file].state != FILE_KNOWN)
			continue;
		if (!fetch_emit(s, fe, SCHED_FETCH, s->now_ns))
			return -ENOMEM;
	}
	return 0;
}

static uint32_t fetch_one(struct sched *s, uint32_t fr, uint32_t b0, uint32_t b1, bool is_demand, uint64_t deadline_ns)
{
	uint32_t fe = sch_fetch_add(s, fr, b0, b1, is_demand);

	if (fe == SCH_NONE)
		return SCH_NONE;
	if (!fetch_emit(s, fe, SCHED_FETCH, deadline_ns)) {
		sch_fetch_remove(s, fe);
		return SCH_NONE;
	}
	if (!is_demand)
		s->tokens -= s->fetches[fe].bytes;
	s->has_partial = s->has_partial || s->fetches[fe].bytes < s->cfg.chunk_bytes;
	return fe;
}

/* Blocks of `want` that are neither there nor on their way, bridged, inside the file. */
static void fetch_missing(struct sched *s, uint32_t fr, const struct blocks *want, struct blocks *ret)
{
	const struct page *p = &s->pages[s->frames[fr].page];
	uint32_t blocks = sch_chunk_blocks(s, p->file, p->chunk_no);

	*ret = *want;
	for (int w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		ret->w[w] &= ~(s->frames[fr].valid.w[w] | s->frames[fr].flight.w[w]);
	fetch_bridge(s, &s->frames[fr], ret);
	if (blocks < SCH_BLOCKS_MAX)
		sch_blocks_clear(ret, blocks, SCH_BLOCKS_MAX - 1);
}

/*
 * Fetch what is missing of `want`. The caller made room for a frame if the page has none. 0: all of it is there or on
 * its way; -EAGAIN: some, no more fetches may be outstanding; -ENOMEM.
 */
int sch_fetch_page(struct sched *s, uint32_t pg, const struct blocks *want, enum fetch_for who, uint64_t deadline_ns)
{
	uint32_t fr = s->pages[pg].frame, b0, b1 = 0;
	bool is_demand = who != FETCH_AHEAD;
	struct blocks missing;
	int err = 0;

	if (fr == SCH_NONE)
		fr = sch_frame_new(s, pg);
	if (fr == SCH_NONE)
		return -ENOMEM;
	if (is_demand)
		err = fetch_promote(s, fr, want, who == FETCH_AGAIN);
	fetch_missing(s, fr, want, &missing);
	for (uint32_t b = 0; !err && b < SCH_BLOCKS_MAX && sch_blocks_run(&missing, b, &b0, &b1); b = b1 + 1) {
		if (!sch_fetch_may(s, is_demand, (b1 - b0 + 1) * s->block_bytes))
			err = -EAGAIN;
		else if (fetch_one(s, fr, b0, b1, is_demand, deadline_ns) == SCH_NONE)
			err = -ENOMEM;
	}
	if (s->frames[fr].fetches == SCH_NONE && sch_blocks_empty(&s->frames[fr].valid))
		sch_frame_free(s, fr);
	sch_page_restate(s, pg);
	return err;
}

/* Ask for the name; its page stands for the slot. */
int sch_fetch_resolve(struct sched *s, uint32_t pg, bool is_demand, uint64_t deadline_ns)
{
	uint32_t fr = sch_frame_new(s, pg), fe = SCH_NONE;

	if (fr != SCH_NONE)
		fe = sch_fetch_add(s, fr, 0, s->blocks_per_page - 1, is_demand);
	if (fe != SCH_NONE) {
		s->fetches[fe].is_resolve = true;
		s->n_resolving++;
		if (fetch_emit(s, fe, SCHED_RESOLVE, deadline_ns)) {
			s->files[s->pages[pg].file].state = FILE_RESOLVING;
			sch_page_restate(s, pg);
			return 0;
		}
		sch_fetch_remove(s, fe);
	}
	if (fr != SCH_NONE)
		sch_frame_free(s, fr);
	sch_page_restate(s, pg);
	return -ENOMEM;
}

/* ---- in the order's turn --------------------------------------------------------------------- */

/* A number that differs between batches, also of different passes. */
static uint64_t window_batch(const struct stream *st, uint64_t visit)
{
	return sch_visit_epoch(st, visit) << 32 | sch_entry_batch(st, sch_visit_entry(st, visit));
}

/* First position past the stream's @window: bytes or batches ahead of its low mark. */
static bool position_is_known(const struct sched *s, uint32_t p)
{
	return s->files[s->pages[s->pos.page[p]].file].state == FILE_KNOWN;
}

static void window_update(struct sched *s, uint32_t stream)
{
	struct stream *st = &s->streams[stream];
	uint64_t bytes = 0, batches = 0, visit = UINT64_MAX, batch = UINT64_MAX;

	st->is_win_stale = false;
	st->win_limit = st->win_unknown = SCH_NONE;
	if (!st->window_bytes && !st->window_batches)
		return;
	for (uint32_t p = st->low; p < s->pos.n; p++) {
		bool is_first = bytes == 0;

		if (sch_position_owner(s, p) != stream || sch_position_is_done(s, p))
			continue;
		bytes += sch_position_bytes(s, p);
		if (st->win_unknown == SCH_NONE && !position_is_known(s, p))
			st->win_unknown = p;
		if (st->window_batches && sch_position_visit(s, p) != visit) {
			visit = sch_position_visit(s, p);
			batches += window_batch(st, visit) != batch;
			batch = window_batch(st, visit);
		}
		if (!is_first && ((st->window_bytes && bytes > st->window_bytes) ||
				  (st->window_batches && batches > st->window_batches + 1))) {
			st->win_limit = p;
			return;
		}
	}
}

/* A size became known: windows of bytes end elsewhere now. */
void sch_windows_stale(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_streams; i++)
		s->streams[i].is_win_stale = s->streams[i].is_win_stale || s->streams[i].window_bytes;
}

static bool fetch_is_allowed(struct sched *s, uint32_t p)
{
	struct stream *st = sch_position_stream(s, p);

	if (st->is_win_stale)
		window_update(s, sch_position_owner(s, p));
	/* Behind a name whose size nobody knows a window of bytes may have ended already: names are looked up, no data comes. */
	if (st->window_bytes && p > st->win_unknown && position_is_known(s, p))
		return false;
	return p < st->win_limit && st->spent_bytes < (uint64_t)s->slots * s->cfg.chunk_bytes;
}

static uint32_t fetch_next(const struct sched *s, uint32_t from)
{
	uint32_t a = sch_bitmap_next(&s->tree[T_ABSENT], from);
	uint32_t d = sch_bitmap_next(&s->tree[T_DISK], from);

	if (a != SCH_NONE && a > s->run_limit)
		a = SCH_NONE;
	if (d != SCH_NONE && d > s->tier_limit)
		d = SCH_NONE;
	return sch_min32(a, d);
}

/*
 * Blocks of a page have to come some time or other: to have them early is worth a whole page that stays only as far as the
 * requests under way reach.
 */
static bool fetch_may_push(const struct sched *s, uint32_t pg, uint32_t p, const struct blocks *want)
{
	uint32_t blocks = sch_chunk_blocks(s, s->pages[pg].file, s->pages[pg].chunk_no);
	uint32_t high = sch_max32(sch_position_stream(s, p)->high, s->pos.low);

	if (s->held < s->slots || s->lists[L_STALE].count || s->lists[L_USED].count)
		return true;
	if (!blocks || sch_blocks_all(want, 0, blocks - 1))
		return true;
	return p <= high || p - high <= 4 * s->concurrency;
}

/*
 * Few slots and an origin that is slower than the reader: each fetch counts. A page that is read before p and then not until
 * after what would have to leave now is the better victim (MIN's, at p): wait until it was read. With many slots the two hardly differ.
 */
static bool fetch_should_wait(const struct sched *s, uint32_t p)
{
	uint32_t v = sch_bitmap_last(&s->tree[T_RAM]), q;
	double tau = sch_when_tau(s);

	if (s->slots > TINY_SLOTS || s->held < s->slots || s->lists[L_STALE].count || s->lists[L_USED].count)
		return false;
	if (v == SCH_NONE || v <= p || sch_bitmap_last(&s->tree[T_BOTH]) != SCH_NONE || s->origin.latency_ns < TINY_RATIO * tau)
		return false;
	q = sch_bitmap_last(&s->tree[T_FLIGHT]);
	if (q != SCH_NONE && q > v)
		return true; /* a reader waits for it, and then it is not needed until after v */
	for (int t = T_FLIGHT; t <= T_RAM; t++)
		for (q = sch_bitmap_next(&s->tree[t], s->pos.low); q < p; q = sch_bitmap_next(&s->tree[t], q + 1))
			if (s->pos.next[q] > v) /* SCH_NONE as well */
				return true;
	return false;
}

/* The first visit whose name is being looked up, or whose pages are not laid out yet; SCH_NONE: there is none. */
static uint32_t fetch_first_name(const struct sched *s)
{
	uint32_t p = s->n_resolving ? sch_bitmap_next(&s->tree[T_FLIGHT], s->pos.low) : SCH_NONE;

	for (; p != SCH_NONE; p = sch_bitmap_next(&s->tree[T_FLIGHT], p + 1)) {
		const struct page *pg = &s->pages[s->pos.page[p]];
		uint32_t fe = s->frames[pg->frame].fetches;

		if (s->files[pg->file].state == FILE_RESOLVING && fe != SCH_NONE && !s->fetches[fe].is_late)
			return p;
	}
	return SCH_NONE;
}

/* Nobody knows the link yet: is what is under way enough to measure it? What comes from the disk tier is not on the link. */
bool sch_fetch_starts(const struct sched *s)
{
	return s->origin.bytes_per_s <= 0 && flight_without(s, (uint64_t)s->n_resolving + s->tier_flight) >= START_BYTES;
}

/*
 * What is fetched now keeps later demands waiting. Whose turn is before it is not known to be long: at the start the third file may
 * be the first whose name is known, and all that the link takes would be its.
 */
static bool fetch_is_early(const struct sched *s, uint32_t p)
{
	uint32_t data = s->flight.count - sch_min32(s->flight.count, s->n_late + s->n_resolving), most = BEHIND_NAMES;

	if (s->origin.bytes_per_s > 0)
		most = sch_max32(s->concurrency / 2, BEHIND_NAMES);
	return sch_fetch_starts(s) || (p > s->first_name && data >= most);
}

/* 1: fetched or asked for; 0: not this one; negative: stop. */
static int fetch_visit(struct sched *s, uint32_t p)
{
	uint32_t pg = s->pos.page[p], file = s->pages[pg].file;
	bool is_name = s->files[file].state == FILE_UNKNOWN;
	struct blocks want;

	if (is_name && s->n_resolving >= SCH_RESOLVES_MAX)
		return 0;
	/* Its size became known: what stands for the name is one page of many, and the rest of the window lies before it. */
	if (s->files[file].stale_in == s->rebuilds + 1) {
		s->first_name = sch_min32(s->first_name, p);
		return 0;
	}
	if (!is_name && fetch_is_early(s, p))
		return 0;
	if (!sch_fetch_may(s, false, is_name ? (uint32_t)s->cfg.chunk_bytes : sch_position_bytes(s, p)))
		return -EAGAIN;
	if (!is_name)
		sch_fetch_wanted(s, pg, p, &want);
	if (sch_page_takes_slot(s, pg)) {
		if ((!is_name && !fetch_may_push(s, pg, p, &want)) || fetch_should_wait(s, p))
			return -ENOSPC;
		if (!sch_evict_room(s, EVICT_FOR_ORDER, p))
			return -ENOSPC;
	}
	if (is_name) {
		s->first_name = sch_min32(s->first_name, p);
		return sch_fetch_resolve(s, pg, false, sch_when_deadline(s, p)) ? -ENOMEM : 1;
	}
	sch_position_stream(s, p)->spent_bytes += sch_position_bytes(s, p);
	return sch_fetch_page(s, pg, &want, FETCH_AHEAD, sch_when_deadline(s, p)) ? -EAGAIN : 1;
}

static uint32_t fetch_streams(const struct sched *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_streams; i++)
		n += s->streams[i].is_live && s->streams[i].is_speculating && s->streams[i].low < s->pos.n;
	return n;
}

/* Not allowed now; true if that is so for every stream that has visits left: the search may end. */
static bool fetch_block(struct sched *s, uint32_t p, uint32_t *left)
{
	struct stream *st = sch_position_stream(s, p);

	if (st->blocked_in != s->fetch_round && *left)
		--*left;
	st->blocked_in = s->fetch_round;
	return *left == 0;
}

/* A reader is in the middle of a file: what comes next in it is needed sooner than the tails of files whose turn was before. */
void sch_fetch_near(struct sched *s, uint32_t p)
{
	uint32_t ahead = sch_min32(NEAR_PAGES, s->slots / 8), end = sch_min32(s->pos.n, p + 1 + ahead);
	uint32_t stream = sch_position_owner(s, p);
	uint64_t visit = sch_position_visit(s, p);

	if (s->near_in != s->rebuilds)
		s->n_near = 0;
	s->near_in = s->rebuilds;
	for (uint32_t q = p + 1; q < end && s->n_near < SCH_NEAR_MAX; q++) {
		uint8_t tree = s->pages[s->pos.page[q]].tree;

		if (sch_position_owner(s, q) != stream || sch_position_visit(s, q) != visit)
			return;
		if ((tree == T_ABSENT || tree == T_DISK) && s->pages[s->pos.page[q]].next == q)
			s->near[s->n_near++] = q;
	}
}

static void fetch_near_run(struct sched *s, size_t max)
{
	uint32_t n = s->near_in == s->rebuilds ? s->n_near : 0, kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t p = s->near[i];
		const struct page *pg = &s->pages[s->pos.page[p]];
		int done = 0;

		if (sch_position_is_done(s, p) || pg->next != p || (pg->tree != T_ABSENT && pg->tree != T_DISK))
			continue;
		if (s->n_acts - s->acts_head < max)
			done = fetch_is_allowed(s, p) ? fetch_visit(s, p) : -ENOSPC;
		if (done == 0 || done == -EAGAIN) /* not now */
			s->near[kept++] = p;
	}
	s->n_near = kept;
}

/*
 * What a visit that is passed over counts among SKIPS_MAX. A name is passed over only while all look-ups are busy: then an order of
 * new names is not to be walked far at each step.
 */
static uint32_t fetch_skip(const struct sched *s, uint32_t p)
{
	return s->files[s->pages[s->pos.page[p]].file].state == FILE_UNKNOWN ? NAME_SKIPS : 1;
}

void sch_fetch_run(struct sched *s, size_t max)
{
	uint32_t skips = 0, left, p;

	s->first_name = SCH_NONE;
	fetch_near_run(s, max);
	s->first_name = fetch_first_name(s);
	p = fetch_next(s, s->pos.low);
	s->fetch_round++;
	left = p == SCH_NONE ? 0 : fetch_streams(s);
	while (p != SCH_NONE && skips < SKIPS_MAX && s->n_acts - s->acts_head < max) {
		if (!fetch_is_allowed(s, p)) {
			skips++;
			if (fetch_block(s, p, &left))
				break;
		} else {
			int done = fetch_visit(s, p);

			if (done < 0)
				break;
			skips += done ? 0 : fetch_skip(s, p);
		}
		p = fetch_next(s, p + 1);
	}
}

/* A list was dropped: prefetches that only it wanted and that have not started need not start. */
void sch_fetch_unwanted(struct sched *s)
{
	for (uint32_t fe = s->flight.head; fe != SCH_NONE; fe = s->fetches[fe].next) {
		struct fetch *f = &s->fetches[fe];
		const struct page *p = &s->pages[s->frames[f->frame].page];

		if (f->is_demand || f->is_unfetched || f->is_resolve || f->is_late || p->next != SCH_NONE)
			continue;
		if (!fetch_emit(s, fe, SCHED_UNFETCH, s->now_ns))
			return;
		f->is_unfetched = true;
		s->n_unfetching++;
	}
}
