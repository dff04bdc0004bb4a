/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/tier.c - what the disk tier keeps.
 *
 *   absent --TIER_ADMIT--> asked --sched_tier_has(true)--> on the tier --TIER_DROP--> absent
 *
 * Admit while there is room. When full, replace the page with the farthest next use, and only if that is more
 * than one epoch later than the newcomer's: on permutations the SSD is then never rewritten. Pages without a known
 * next use are the first to go, the most recent first; a newcomer without one is not admitted.
 *
 * Callers: sched.c, frames.c (offer), pages.c (tree). Invariant: tier_pages + tier_admits <= disk_pages, but for
 * what the cache adopted by itself.
 */
#include "sched/sched_i.h"

#define OFFERS_MAX 1024u
#define ADMITS_MAX 64u

void sch_tier_finish(struct sched *s)
{
	free(s->tier_unknown);
	free(s->admit);
}

void sch_tier_tree(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];

	if (p->next != SCH_NONE) {
		sch_bitmap_set(&s->tier_tree, p->next);
		p->flags |= PG_TIER_TREE;
		return;
	}
	/* The stack may hold a page twice or one that has a next use again: it is checked when popped. */
	if (s->n_tier_unknown && s->tier_unknown[s->n_tier_unknown - 1] == pg)
		return;
	if (s->n_tier_unknown >= 4 * (s->cfg.disk_pages + 16)) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < s->n_pages; i++)
			if (s->pages[i].is_live && (s->pages[i].flags & PG_TIER) && s->pages[i].next == SCH_NONE &&
			    n < s->cap_tier_unknown)
				s->tier_unknown[n++] = i;
		s->n_tier_unknown = n;
	}
	if (!sch_array_grow((void **)&s->tier_unknown, &s->cap_tier_unknown, s->n_tier_unknown + 1, sizeof(uint32_t)))
		s->tier_unknown[s->n_tier_unknown++] = pg;
}

void sch_tier_untree(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];

	if (p->flags & PG_TIER_TREE)
		sch_bitmap_clear(&s->tier_tree, p->next);
	p->flags &= (uint8_t)~PG_TIER_TREE;
}

void sch_tier_set(struct sched *s, uint32_t pg, bool has)
{
	struct page *p = &s->pages[pg];

	if (has == ((p->flags & PG_TIER) != 0))
		return;
	sch_page_untree(s, pg);
	p->flags ^= PG_TIER;
	s->tier_pages += has ? 1 : (uint32_t)-1;
	sch_page_restate(s, pg);
}

/* A page became resident: it may be worth a place. */
void sch_tier_offer(struct sched *s, uint32_t pg)
{
	if (s->cfg.disk_pages == 0 || (s->pages[pg].flags & (PG_TIER | PG_ADMIT)))
		return;
	if (!s->admit) {
		s->admit = malloc(OFFERS_MAX * sizeof(*s->admit));
		if (!s->admit)
			return;
	}
	if (s->n_admit == OFFERS_MAX)
		return; /* it comes round again in the next epoch */
	s->admit[(s->admit_head + s->n_admit++) % OFFERS_MAX] = pg;
}

static bool tier_is_whole(const struct sched *s, uint32_t pg)
{
	const struct page *p = &s->pages[pg];
	uint32_t blocks;

	if (!p->is_live || p->frame == SCH_NONE || (p->flags & (PG_TIER | PG_ADMIT)))
		return false;
	blocks = sch_chunk_blocks(s, p->file, p->chunk_no);
	return blocks && sch_blocks_all(&s->frames[p->frame].valid, 0, blocks - 1);
}

void sched_tier_offer_again(struct sched *s, uint32_t max)
{
	for (uint32_t i = 0; i < s->n_frames && max > 0; i++) {
		uint32_t pg = s->frames[s->offer_at++ % s->n_frames].page;

		if (pg == SCH_NONE || !tier_is_whole(s, pg))
			continue;
		sch_tier_offer(s, pg);
		max--;
	}
}

/* Positions of an epoch: an entry may be a whole file of many pages. */
static uint32_t tier_epoch(const struct sched *s)
{
	uint64_t n = 0, laid_out = 0;

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];
		uint64_t visits = sch_visits(st), epochs;

		if (!st->is_live || visits == 0)
			continue;
		epochs = sch_visit_epoch(st, visits - 1) - sch_visit_epoch(st, 0) + 1;
		n += visits / epochs;
		laid_out += st->mat_visit - st->visit_base;
	}
	n = sch_min64(n, SCH_NONE) * sch_max64(s->pos.n / sch_max64(laid_out, 1), 1);
	return (uint32_t)sch_min64(n, SCH_NONE / 2);
}

/* The use of the page after the one that it was brought for: that one is served from the slot. */
static uint32_t tier_next_use(const struct sched *s, uint32_t pg)
{
	uint32_t p = s->pages[pg].next;

	if (p == SCH_NONE || s->frames[s->pages[pg].frame].is_used)
		return p;
	p = s->pos.next[p];
	while (p != SCH_NONE && sch_position_is_done(s, p))
		p = s->pos.next[p];
	return p;
}

static uint32_t tier_victim(struct sched *s, uint32_t newcomer)
{
	uint32_t next = tier_next_use(s, newcomer), p;

	if (next == SCH_NONE)
		return SCH_NONE;
	while (s->n_tier_unknown) {
		uint32_t pg = s->tier_unknown[s->n_tier_unknown - 1];

		if (pg < s->n_pages && s->pages[pg].is_live && (s->pages[pg].flags & PG_TIER) &&
		    s->pages[pg].next == SCH_NONE)
			return pg;
		s->n_tier_unknown--;
	}
	p = sch_bitmap_last(&s->tier_tree);
	if (p == SCH_NONE || (uint64_t)p <= (uint64_t)next + tier_epoch(s))
		return SCH_NONE;
	return s->pos.page[p];
}

static bool tier_drop(struct sched *s, uint32_t pg)
{
	struct sched_action a = {.kind = SCHED_TIER_DROP, .file = s->pages[pg].file, .chunk_no = s->pages[pg].chunk_no};

	if (!sch_emit(s, &a))
		return false;
	sch_tier_set(s, pg, false);
	sch_page_put(s, pg);
	return true;
}

static void tier_admit(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	struct sched_action a = {.kind = SCHED_TIER_ADMIT,
				 .file = p->file,
				 .chunk_no = p->chunk_no,
				 .len_bytes = sch_chunk_bytes(s, p->file, p->chunk_no)};

	if (sch_emit(s, &a))
		sch_tier_set(s, pg, true);
}

void sch_tier_run(struct sched *s, size_t max)
{
	for (uint32_t n = 0; s->n_admit && n < ADMITS_MAX && s->n_acts - s->acts_head < max; n++) {
		uint32_t pg = s->admit[s->admit_head], victim;

		s->admit_head = (s->admit_head + 1) % OFFERS_MAX;
		s->n_admit--;
		if (pg >= s->n_pages || !tier_is_whole(s, pg))
			continue;
		if (s->tier_pages >= s->cfg.disk_pages) {
			victim = tier_victim(s, pg);
			if (victim == SCH_NONE || !tier_drop(s, victim))
				continue;
		}
		tier_admit(s, pg);
	}
}
