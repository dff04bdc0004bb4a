/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/frames.c - what the slots hold, and the fetches that have not been answered.
 *
 *   (no frame) --sch_frame_new--> in flight --sch_fetch_landed--> resident --sch_evict_frame--> (no frame)
 *                                    |  late: not held any more      ^
 *                                    +-------------------------------+
 *
 * Callers: fetch.c, demand.c, evict.c, files.c, pages.c (lists). Invariants 2, 3 and 5 of sched_i.h.
 */
#include "sched/sched_i.h"

#define LATE_NS (200 * SCH_MSEC)
#define BAD_MIN_NS SCH_SEC
#define BAD_MAX_NS (64 * SCH_SEC)

/* ---- lists -------------------------------------------------------------------------------- */

static void list_remove(struct sched *s, struct list *l, uint32_t fr)
{
	struct frame *f = &s->frames[fr];

	if (f->prev != SCH_NONE)
		s->frames[f->prev].next = f->next;
	else
		l->head = f->next;
	if (f->next != SCH_NONE)
		s->frames[f->next].prev = f->prev;
	else
		l->tail = f->prev;
	l->count--;
}

static void list_append(struct sched *s, struct list *l, uint32_t fr)
{
	struct frame *f = &s->frames[fr];

	f->prev = l->tail;
	f->next = SCH_NONE;
	if (l->tail != SCH_NONE)
		s->frames[l->tail].next = fr;
	else
		l->head = fr;
	l->tail = fr;
	l->count++;
}

/* Staying in a list keeps the place in it: the order is that of arrival. */
void sch_frame_list(struct sched *s, uint32_t fr, enum frame_list list)
{
	struct frame *f = &s->frames[fr];

	if (f->list == list)
		return;
	if (f->list != L_NONE)
		list_remove(s, &s->lists[f->list], fr);
	f->list = (uint8_t)list;
	if (list != L_NONE)
		list_append(s, &s->lists[list], fr);
}

/* Was all that is valid read? Then it may go. */
void sch_frame_seen(struct sched *s, uint32_t fr)
{
	struct frame *f = &s->frames[fr];
	uint32_t b0, b1 = 0, last = 0;

	for (uint32_t b = 0; sch_blocks_run(&f->valid, b, &b0, &b1); b = b1 + 1)
		last = b1 + 1;
	f->is_used = last > 0 && f->read_hi >= last;
}

/* ---- frames --------------------------------------------------------------------------------- */

/* Whether it counts as a slot: something valid, or a fetch that is not late. */
static void frame_hold(struct sched *s, uint32_t fr)
{
	struct frame *f = &s->frames[fr];
	bool is_held = !sch_blocks_empty(&f->valid);

	for (uint32_t fe = f->fetches; fe != SCH_NONE && !is_held; fe = s->fetches[fe].frame_next)
		is_held = !s->fetches[fe].is_late;
	if (is_held != f->is_held)
		s->held += is_held ? 1 : (uint32_t)-1;
	f->is_held = is_held;
}

uint32_t sch_frame_new(struct sched *s, uint32_t pg)
{
	uint32_t fr = s->free_frame;

	if (fr != SCH_NONE) {
		s->free_frame = s->frames[fr].next;
	} else {
		if (sch_array_grow((void **)&s->frames, &s->cap_frames, s->n_frames + 1, sizeof(*s->frames)))
			return SCH_NONE;
		fr = s->n_frames++;
	}
	s->frames[fr] = (struct frame){.page = pg,
				       .prev = SCH_NONE,
				       .next = SCH_NONE,
				       .fetches = SCH_NONE,
				       .done_stream = SCH_NONE,
				       .list = L_NONE};
	s->live_frames++;
	s->files[s->pages[pg].file].n_frames++;
	s->pages[pg].frame = fr;
	return fr;
}

void sch_frame_free(struct sched *s, uint32_t fr)
{
	struct frame *f = &s->frames[fr];

	sch_page_untree(s, f->page);
	sch_frame_list(s, fr, L_NONE);
	if (f->is_held)
		s->held--;
	s->pages[f->page].frame = SCH_NONE;
	s->files[s->pages[f->page].file].n_frames--;
	f->page = SCH_NONE;
	f->is_held = false;
	f->next = s->free_frame;
	s->free_frame = fr;
	s->live_frames--;
}

/* ---- fetches ----------------------------------------------------------------------------------- */

static void flight_append(struct sched *s, uint32_t fe)
{
	struct fetch *f = &s->fetches[fe];

	f->prev = s->flight.tail;
	f->next = SCH_NONE;
	if (f->prev != SCH_NONE)
		s->fetches[f->prev].next = fe;
	else
		s->flight.head = fe;
	s->flight.tail = fe;
	s->flight.count++;
}

static void flight_remove(struct sched *s, uint32_t fe)
{
	struct fetch *f = &s->fetches[fe];

	if (f->prev != SCH_NONE)
		s->fetches[f->prev].next = f->next;
	else
		s->flight.head = f->next;
	if (f->next != SCH_NONE)
		s->fetches[f->next].prev = f->prev;
	else
		s->flight.tail = f->prev;
	s->flight.count--;
}

uint32_t sch_fetch_add(struct sched *s, uint32_t fr, uint32_t b0, uint32_t b1, bool is_demand)
{
	uint32_t fe = s->free_fetch, pg = s->frames[fr].page;
	uint32_t len = sch_chunk_bytes(s, s->pages[pg].file, s->pages[pg].chunk_no);
	struct fetch *f;

	if (fe != SCH_NONE) {
		s->free_fetch = s->fetches[fe].next;
	} else {
		if (sch_array_grow((void **)&s->fetches, &s->cap_fetches, s->n_fetches + 1, sizeof(*s->fetches)))
			return SCH_NONE;
		fe = s->n_fetches++;
	}
	f = &s->fetches[fe];
	*f = (struct fetch){.issued_ns = s->now_ns,
			    .frame = fr,
			    .frame_next = s->frames[fr].fetches,
			    .b0 = (uint16_t)b0,
			    .b1 = (uint16_t)b1,
			    .is_demand = is_demand,
			    .from_tier = (s->pages[pg].flags & PG_TIER) != 0,
			    .stall = s->pages[pg].flags & PG_TIER ? SCHED_STALL_TIER : s->stall};
	f->bytes = sch_min32((b1 + 1) * s->block_bytes, len) - sch_min32(b0 * s->block_bytes, len);
	sch_rate_busy(f->from_tier ? &s->tier : &s->origin, s->now_ns,
		      f->from_tier ? s->tier_flight > 0 : s->flight.count > s->tier_flight);
	flight_append(s, fe);
	s->frames[fr].fetches = fe;
	sch_blocks_set(&s->frames[fr].flight, b0, b1);
	s->flight_bytes += f->bytes;
	s->n_waiting += is_demand;
	s->n_stalls[f->stall] += is_demand;
	s->tier_flight += f->from_tier;
	frame_hold(s, fr);
	return fe;
}

void sch_fetch_remove(struct sched *s, uint32_t fe)
{
	struct fetch *f = &s->fetches[fe];
	struct frame *fr = &s->frames[f->frame];
	uint32_t *link = &fr->fetches;

	sch_rate_busy(f->from_tier ? &s->tier : &s->origin, s->now_ns, true);
	while (*link != fe)
		link = &s->fetches[*link].frame_next;
	*link = f->frame_next;
	sch_blocks_clear(&fr->flight, f->b0, f->b1);
	flight_remove(s, fe);
	if (!f->is_late)
		s->flight_bytes -= f->bytes;
	s->n_waiting -= f->is_demand;
	s->n_stalls[f->stall] -= f->is_demand;
	s->n_late -= f->is_late;
	s->shortage -= f->is_late && s->shortage;
	s->n_resolving -= f->is_resolve;
	s->n_unfetching -= f->is_unfetched;
	s->tier_flight -= f->from_tier;
	frame_hold(s, f->frame);
	f->next = s->free_fetch;
	s->free_fetch = fe;
}

uint64_t sch_late_ns(const struct sched *s)
{
	return sch_max64(LATE_NS, (uint64_t)(20 * s->origin.latency_avg_ns));
}

/* Fetches that hang stop counting, so that they do not stop the others. */
void sch_fetch_late(struct sched *s)
{
	uint64_t limit = sch_late_ns(s);
	uint32_t fe = s->flight.head;

	while (fe != SCH_NONE && s->fetches[fe].issued_ns + limit <= s->now_ns) {
		if (!s->fetches[fe].is_late) {
			s->fetches[fe].is_late = true;
			s->n_late++;
			s->flight_bytes -= s->fetches[fe].bytes;
			frame_hold(s, s->fetches[fe].frame);
		}
		fe = s->fetches[fe].next;
	}
	if (fe != SCH_NONE)
		s->next_ns = sch_min64(s->next_ns, s->fetches[fe].issued_ns + limit);
}

static bool fetch_matches(const struct fetch *f, uint32_t b0, uint32_t b1, uint64_t issued_ns)
{
	if (issued_ns < f->issued_ns)
		return false; /* the answer to an older request: the file has changed since */
	if (f->is_resolve)
		return b0 == 0;
	return f->b0 >= b0 && f->b1 <= b1;
}

static void frame_fill(struct sched *s, uint32_t fr, const struct fetch *f, uint32_t b1)
{
	struct frame *to = &s->frames[fr];
	uint32_t bytes = sch_min32(f->bytes, (b1 + 1) * s->block_bytes - f->b0 * s->block_bytes);
	bool is_ahead = !f->is_demand;

	b1 = sch_min32(b1, f->b1);
	sch_blocks_set(&to->valid, f->b0, b1);
	to->is_spent = f->is_demand; /* its visit was done when the reader asked */
	if (is_ahead)
		to->ahead_bytes += bytes;
	else
		to->is_fresh = to->is_part;
	sch_frame_seen(s, fr);
	sch_rate_landed(s, f->from_tier, bytes, s->now_ns - f->issued_ns);
	if (!f->from_tier)
		s->fetch_sizes = (s->fetch_sizes * 15 + bytes) / 16;
}

/* Not at once again, and not never: an origin that was away comes back, a file that nobody may read does not. */
static void fetch_failed(struct sched *s, uint32_t pg)
{
	s->pages[pg].flags |= PG_BAD;
	if (s->bad_ns)
		return;
	s->bad_wait_ns = s->bad_wait_ns ? sch_min64(2 * s->bad_wait_ns, BAD_MAX_NS) : BAD_MIN_NS;
	s->bad_ns = s->now_ns + s->bad_wait_ns;
}

/* Their turn again. None left: the trouble is over. */
void sch_fetch_failed_again(struct sched *s)
{
	uint32_t n = 0;

	if (!s->bad_ns)
		return;
	if (s->now_ns < s->bad_ns) {
		s->next_ns = sch_min64(s->next_ns, s->bad_ns);
		return;
	}
	for (uint32_t pg = 0; pg < s->n_pages; pg++) {
		if (!s->pages[pg].is_live || !(s->pages[pg].flags & PG_BAD))
			continue;
		s->pages[pg].flags &= (uint8_t)~PG_BAD;
		sch_page_restate(s, pg);
		n++;
	}
	s->bad_ns = 0;
	s->bad_wait_ns = n ? s->bad_wait_ns : 0;
}

void sch_fetch_landed(struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, int err, uint64_t issued_ns)
{
	uint32_t fr = s->pages[pg].frame, fe, next;
	bool is_mine = false;

	if (fr == SCH_NONE)
		return;
	for (fe = s->frames[fr].fetches; fe != SCH_NONE; fe = next) {
		next = s->fetches[fe].frame_next;
		if (!fetch_matches(&s->fetches[fe], b0, b1, issued_ns))
			continue;
		if (err == -ECANCELED && s->fetches[fe].is_unfetched && s->fetches[fe].is_demand) {
			/* Called back, and then a reader came and it was asked for again: that answer is still to come. */
			s->fetches[fe].is_unfetched = false;
			s->n_unfetching--;
			continue;
		}
		is_mine = true;
		if (err >= 0)
			frame_fill(s, fr, &s->fetches[fe], b1);
		sch_fetch_remove(s, fe);
	}
	if (!is_mine)
		return;
	if (err < 0 && err != -ECANCELED)
		fetch_failed(s, pg);
	else if (err >= 0)
		s->pages[pg].flags &= (uint8_t)~(PG_BAD | PG_GONE);
	if (s->frames[fr].fetches == SCH_NONE && sch_blocks_empty(&s->frames[fr].valid))
		sch_frame_free(s, fr);
	sch_page_restate(s, pg);
	if (err >= 0)
		sch_tier_offer(s, pg);
	sch_page_put(s, pg);
}
