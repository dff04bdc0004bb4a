/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/evict.c - which page leaves a slot.
 *
 * Order of victims: blocks of no use to the next visit (L_STALE); read and without a known next use, the most recent
 * first (L_USED: keeping the oldest is what makes never-evict of it, while the just read page sits in the
 * kernel's page cache); then by who asks:
 *   for the order: the farthest next use, never one needed before the page to be fetched (do no harm);
 *   for a guess (read-ahead without an order): what an order names only within a sixteenth of the slots;
 *   for a reader who waits: guesses beyond a quarter of the slots, the farthest next use, whatever it is, all guesses,
 *   and last what was read a moment ago (L_RECENT).
 * Ageing: a page that was not read while everything else was, twice over, belongs to a dataset that is over.
 *
 * Callers: fetch.c, demand.c, nohint.c, sched.c. Invariants 2 and 3 of sched_i.h.
 */
#include "sched/sched_i.h"

#define PARTIAL_LOOKS 16u

/* Slots that prefetch does not fill with what cannot be evicted, so that a miss finds room at once. */
uint32_t sch_reserve(const struct sched *s)
{
	if (s->slots < 8)
		return s->slots > 2 ? 1 : 0;
	return sch_min32(sch_max32(s->slots / 16, 2), 32);
}

bool sch_evict_frame(struct sched *s, uint32_t fr)
{
	struct frame *f = &s->frames[fr];
	uint32_t pg = f->page;
	struct sched_action a = {.kind = SCHED_EVICT, .file = s->pages[pg].file, .chunk_no = s->pages[pg].chunk_no};

	if (!sch_emit(s, &a))
		return false;
	s->wasted_bytes += f->ahead_bytes;
	sch_grace_gone(s, pg);
	if (f->ahead_bytes)
		s->pages[pg].flags |= PG_GONE;
	sch_frame_free(s, fr);
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
	return true;
}

static uint32_t victim_used(const struct sched *s)
{
	uint32_t head = s->lists[L_USED].head;
	uint64_t dataset;

	if (head == SCH_NONE)
		return SCH_NONE;
	dataset = sch_max64(sch_max64(s->touched_pages, s->touched_before), s->slots);
	dataset = sch_min64(dataset, (uint64_t)s->slots * 64);
	if (s->access_clock - s->pages[s->frames[head].page].seen > 2 * dataset + s->slots)
		return head;
	return s->lists[L_USED].tail;
}

static bool frame_is_whole(const struct sched *s, uint32_t fr)
{
	const struct page *p = &s->pages[s->frames[fr].page];
	uint32_t blocks = sch_chunk_blocks(s, p->file, p->chunk_no);

	return blocks && sch_blocks_all(&s->frames[fr].valid, 0, blocks - 1);
}

/*
 * What the tier holds as well costs the origin nothing when it goes, as long as there is time to read it from there: the farthest such
 * page. It makes memory and disk hold different pages.
 */
static uint32_t victim_both(const struct sched *s, uint32_t after)
{
	uint32_t p = sch_bitmap_last(&s->tree[T_BOTH]), ram = sch_bitmap_last(&s->tree[T_RAM]);

	if (p == SCH_NONE || (after != SCH_NONE && p <= after))
		return SCH_NONE;
	if (s->mode == SCHED_PREFETCH_ON && p > s->tier_limit)
		return p;
	return ram == SCH_NONE || p > ram ? p : SCH_NONE;
}

/* The farthest next use. Among the farthest few rather one of which only some blocks are there: less comes again. */
static uint32_t victim_order(const struct sched *s, uint32_t after)
{
	uint32_t p = sch_bitmap_last(&s->tree[T_RAM]), last = p, both = victim_both(s, after);

	if (both != SCH_NONE)
		return s->pages[s->pos.page[both]].frame;
	for (uint32_t k = 0; k < PARTIAL_LOOKS && p != SCH_NONE && (after == SCH_NONE || p > after); k++) {
		uint32_t fr = s->pages[s->pos.page[p]].frame;

		if (!s->has_partial || !frame_is_whole(s, fr))
			return fr;
		p = p > 0 ? sch_bitmap_prev(&s->tree[T_RAM], p - 1) : SCH_NONE;
	}
	if (last == SCH_NONE || (after != SCH_NONE && last <= after))
		return SCH_NONE;
	return s->pages[s->pos.page[last]].frame;
}

/* An old guess for a new one; and a sixteenth of the slots is theirs, also where an order names everything else. */
static uint32_t victim_guess(const struct sched *s)
{
	uint32_t guesses = s->lists[L_AHEAD].count + s->lists[L_RECENT].count;

	if (s->lists[L_AHEAD].count > s->slots / 2)
		return s->lists[L_AHEAD].head;
	if (guesses < s->slots / 16)
		return victim_order(s, SCH_NONE);
	return SCH_NONE;
}

/* Lists that nobody has used, while pages are read that none of them explains. */
static bool order_is_doubted(const struct sched *s)
{
	bool is_strange = false;

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		if (!st->is_live || !st->is_speculating || st->low_visit >= sch_visits(st))
			continue;
		if (st->n_matched > 0)
			return false;
		is_strange = is_strange || st->n_unmatched > 0;
	}
	return is_strange;
}

static uint32_t victim_pick(const struct sched *s, enum evict_for who, uint32_t position)
{
	uint32_t fr = s->lists[L_STALE].head;

	/* Half of the slots are theirs who read, until it is clear whether the list means them (law 9). */
	if (fr == SCH_NONE && s->lists[L_USED].count + s->lists[L_RECENT].count < s->slots / 2 && order_is_doubted(s)) {
		if (who == EVICT_FOR_ORDER)
			return SCH_NONE;
		if (who == EVICT_FOR_DEMAND)
			fr = victim_order(s, SCH_NONE);
	}
	if (fr == SCH_NONE)
		fr = victim_used(s);
	if (fr != SCH_NONE)
		return fr;
	if (who == EVICT_FOR_GUESS)
		return victim_guess(s);
	if (who == EVICT_FOR_ORDER) {
		if (s->lists[L_AHEAD].count > s->slots / 4)
			return s->lists[L_AHEAD].head;
		return victim_order(s, position);
	}
	if (s->lists[L_AHEAD].count > s->slots / 4)
		return s->lists[L_AHEAD].head;
	fr = victim_order(s, SCH_NONE);
	if (fr == SCH_NONE)
		fr = s->lists[L_AHEAD].head;
	return fr != SCH_NONE ? fr : s->lists[L_RECENT].head;
}

/*
 * Room for one more slot. What prefetch leaves to readers is not empty slots but ones that can be emptied at once: all
 * but what is in flight or pinned.
 */
bool sch_evict_room(struct sched *s, enum evict_for who, uint32_t position)
{
	uint64_t busy = (uint64_t)(s->flight.count - s->n_late) + s->ext_pinned + s->wait_pages;

	if (who != EVICT_FOR_DEMAND && busy + sch_reserve(s) >= s->slots)
		return false;
	while (s->held + s->shortage >= s->slots) {
		uint32_t fr = victim_pick(s, who, position);

		if (fr == SCH_NONE || !sch_evict_frame(s, fr))
			return false;
	}
	return true;
}

/* Slots were taken away, or late fetches came back and want theirs: theirs are kept for them. */
void sch_evict_excess(struct sched *s)
{
	uint32_t n = s->n_late ? s->give_up : 0;

	s->give_up = 0;
	s->shortage = sch_min32(s->shortage, s->n_late);
	while (n > 0 || s->held + s->shortage > s->slots) {
		uint32_t fr = victim_pick(s, EVICT_FOR_DEMAND, SCH_NONE);

		if (fr == SCH_NONE || !sch_evict_frame(s, fr))
			break;
		n -= n > 0;
	}
}
