/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/pages.c - records of live pages, by (file, chunk number), and the state tree each is in.
 *
 * A hash of live pages rather than dense numbers a file: a 9 TiB file costs nothing, and a million
 * one-page files no more than a million pages of one file.
 *
 * Callers: everybody in sched/.
 * Invariants: 1 and 2 of sched_i.h are kept here, by sch_page_restate(); a page lives while a visit, a frame,
 * the tier, a pin or a demand refers to it.
 */
#include "sched/sched_i.h"

#define SPENT_LOOKS 4u

uint32_t sch_page_find(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	if (s->n_buckets == 0)
		return SCH_NONE;
	return sch_page_find_from(s, s->buckets[sch_page_bucket(s, file, chunk_no)], file, chunk_no);
}

static int pages_rehash(struct sched *s)
{
	uint32_t n = s->n_buckets ? s->n_buckets * 4 : 1024; /* each page comes by here a third of a time */
	uint32_t *b = malloc((size_t)n * sizeof(*b));

	if (!b)
		return -ENOMEM;
	memset(b, 0xff, (size_t)n * sizeof(*b));
	free(s->buckets);
	s->buckets = b;
	s->n_buckets = n;
	for (uint32_t i = 0; i < s->n_pages; i++) {
		struct page *p = &s->pages[i];
		uint32_t *head;

		if (!p->is_live)
			continue;
		head = &b[sch_page_bucket(s, p->file, p->chunk_no)];
		p->hash_next = *head;
		*head = i;
	}
	return 0;
}

static uint32_t page_alloc(struct sched *s)
{
	uint32_t pg = s->free_page;

	if (pg != SCH_NONE) {
		s->free_page = s->pages[pg].hash_next;
		return pg;
	}
	if (sch_array_grow((void **)&s->pages, &s->cap_pages, s->n_pages + 1, sizeof(*s->pages)))
		return SCH_NONE;
	return s->n_pages++;
}

uint32_t sch_page_get(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t pg = sch_page_find(s, file, chunk_no);
	uint32_t *head;

	if (pg != SCH_NONE || !sch_file(s, file))
		return pg;
	if (s->live_pages >= s->n_buckets && pages_rehash(s))
		return SCH_NONE;
	pg = page_alloc(s);
	if (pg == SCH_NONE)
		return SCH_NONE;
	head = &s->buckets[sch_page_bucket(s, file, chunk_no)];
	s->pages[pg] = (struct page){.chunk_no = chunk_no,
				     .file = file,
				     .hash_next = *head,
				     .next = SCH_NONE,
				     .last = SCH_NONE,
				     .frame = SCH_NONE,
				     .tree = T_NONE,
				     .is_live = 1};
	*head = pg;
	s->live_pages++;
	s->files[file].n_pages++;
	return pg;
}

void sch_page_put(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	uint32_t *link;

	if (!p->is_live || p->next != SCH_NONE || p->frame != SCH_NONE || p->ext_pins || p->wait_pins ||
	    (p->flags & (PG_TIER | PG_DEMAND | PG_ADMIT)))
		return;
	link = &s->buckets[sch_page_bucket(s, p->file, p->chunk_no)];
	while (*link != pg)
		link = &s->pages[*link].hash_next;
	*link = p->hash_next;
	s->files[p->file].n_pages--;
	s->live_pages--;
	p->is_live = 0;
	p->hash_next = s->free_page;
	s->free_page = pg;
}

void sch_page_untree(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];

	if (p->tree != T_NONE)
		sch_bitmap_clear(&s->tree[p->tree], p->next);
	p->tree = T_NONE;
	sch_tier_untree(s, pg);
}

/* Whether the stream of the page's next visit is one that we fetch and keep for. */
static bool page_is_wanted(const struct sched *s, const struct page *p)
{
	return p->next != SCH_NONE && sch_position_stream(s, p->next)->is_speculating;
}

/* It was fetched block by block, those were read, and soon others of it must come: what is there saves little of that. */
static bool page_is_spent(const struct sched *s, const struct page *p, const struct frame *f)
{
	uint32_t v = p->next;

	if (!f->is_spent)
		return false;
	for (uint32_t k = 0; v != SCH_NONE && k < SPENT_LOOKS; v = s->pos.next[v], k++) {
		struct block_run r = sch_position_blocks(s, v);

		if (!sch_blocks_all(&f->valid, r.b0, r.b1))
			return true;
	}
	return false;
}

/* Read, and nobody knows when it is needed again. If the tier has it, the copy in memory is the first to go. */
static enum frame_list list_used(const struct page *p)
{
	return p->flags & PG_TIER ? L_STALE : L_USED;
}

/* The order knows that nobody comes any more; without one, a moment's grace where that helps. */
static enum frame_list list_read(struct sched *s, const struct page *p, const struct frame *f)
{
	if (f->list == L_USED || f->done_stream != SCH_NONE)
		return list_used(p);
	if (f->list == L_RECENT)
		return L_RECENT;
	sch_grace_passed(s);
	return s->grace.is_off ? list_used(p) : L_RECENT;
}

static void page_restate_frame(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	struct frame *f = &s->frames[p->frame];
	enum frame_list list = L_NONE;
	bool is_wanted = page_is_wanted(s, p), is_idle = f->fetches == SCH_NONE;

	if (is_wanted) {
		struct block_run r = sch_position_blocks(s, p->next);

		if (sch_blocks_all(&f->valid, r.b0, r.b1)) {
			if (is_idle && !p->wait_pins && !p->ext_pins && !f->is_fresh) {
				if (page_is_spent(s, p, f))
					list = L_STALE;
				else
					p->tree = p->flags & PG_TIER ? T_BOTH : T_RAM;
			}
		} else if (!is_idle) {
			struct blocks both = f->valid;

			for (int w = 0; w < SCH_BLOCKS_MAX / 64; w++)
				both.w[w] |= f->flight.w[w];
			p->tree = sch_blocks_all(&both, r.b0, r.b1) ? T_FLIGHT : T_ABSENT;
		} else {
			p->tree = p->flags & PG_TIER ? T_DISK : T_ABSENT;
			list = L_STALE;
		}
	} else if (is_idle) {
		if (f->is_used)
			list = list_read(s, p, f);
		else /* named by a list that nobody trusts any more: worth nothing */
			list = p->next != SCH_NONE ? L_STALE : L_AHEAD;
	}
	if ((p->tree == T_ABSENT || p->tree == T_DISK) && (p->flags & PG_BAD))
		p->tree = T_NONE;
	if (p->tree < T_COUNT)
		sch_bitmap_set(&s->tree[p->tree], p->next);
	if (f->is_fresh)
		list = L_RECENT;
	if (!is_idle || p->wait_pins || p->ext_pins)
		list = L_NONE;
	sch_frame_list(s, p->frame, list);
}

/* It was in L_RECENT long enough: now its next use decides. */
static void page_settle(struct sched *s, uint32_t pg)
{
	struct frame *f = &s->frames[s->pages[pg].frame];

	sch_frame_list(s, s->pages[pg].frame, f->is_used ? list_used(&s->pages[pg]) : L_NONE);
	if (f->is_fresh) {
		f->is_fresh = f->is_part = false;
		sch_page_restate(s, pg);
	}
}

void sch_page_restate(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];

	sch_page_untree(s, pg);
	if (p->frame != SCH_NONE) {
		page_restate_frame(s, pg);
	} else if (page_is_wanted(s, p) && !(p->flags & PG_BAD)) {
		p->tree = p->flags & PG_TIER ? T_DISK : T_ABSENT;
		sch_bitmap_set(&s->tree[p->tree], p->next);
	}
	if (p->flags & PG_TIER)
		sch_tier_tree(s, pg);
	while (s->lists[L_RECENT].count > sch_recent_max(s))
		page_settle(s, s->frames[s->lists[L_RECENT].head].page);
}

/* Visits of a name that was looked up stood for the whole chunk: now they mean what their entries say, or nothing. */
void sch_page_clip(struct sched *s, uint32_t pg)
{
	uint32_t p = s->pages[pg].next, file = s->pages[pg].file, next;

	sch_page_untree(s, pg);
	for (; p != SCH_NONE; p = next) {
		const struct stream *st = sch_position_stream(s, p);
		struct span sp;

		next = s->pos.next[p];
		if (sch_position_is_done(s, p) || st->is_replaced)
			continue;
		sch_visit_span(s, st, sch_position_visit(s, p), &sp);
		if (sp.file == file && sp.n == 1 && sp.first == 0) {
			struct block_run r = sch_chunk_run(s, 0, sp.off, sp.end);

			if (!sch_rows_blocks_set(&s->pos.rows, p, r.b0, r.b1))
				continue;
		}
		sch_position_done(s, p); /* past the end, or no memory to say how far */
		if (!s->pages[pg].is_live)
			return;
	}
	sch_page_restate(s, pg);
}

void sch_page_next(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	uint32_t q = p->next;

	sch_page_untree(s, pg);
	while (q != SCH_NONE && sch_position_is_done(s, q))
		q = s->pos.next[q];
	p->next = q;
	p->flags &= (uint8_t)~PG_BAD;
	if (q == SCH_NONE)
		p->last = SCH_NONE;
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}
