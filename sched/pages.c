/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/pages.c - records of live pages, where they are found by (file, chunk number), and the state tree each is in.
 *
 * A file's first page stands in its record: most files have no more. Of a file of which an eighth has pages, or that an
 * order names over and over, all stand in an index by chunk number. The others are in a hash, so that a 9 TiB file of
 * which little is read costs nothing.
 *
 * Callers: everybody in sched/.
 * Invariants: 1 and 2 of sched_i.h are kept here, by sch_page_restate(); a page lives while a visit, a frame,
 * the tier, a pin or a demand refers to it; last[pg] is SCH_NONE as long as its next is.
 */
#include "sched/sched_i.h"

#define SPENT_LOOKS 4u
#define INDEX_PAGES_MIN 64u
#define INDEX_SHARE 8u	/* the index is smaller than the pages' records ... */
#define INDEX_ENTRIES 2u /* ... or costs at most 2 B an entry that names the file */

uint32_t sch_page_find(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	struct file *f = sch_file(s, file);
	const uint32_t *spot = f ? sch_page_spot(f, chunk_no) : NULL;

	if (spot)
		return *spot;
	if (!f || s->n_buckets == 0)
		return SCH_NONE;
	return sch_page_find_from(s, s->buckets[sch_page_bucket(s, file, chunk_no)], file, chunk_no);
}

/* ---- the hash ----------------------------------------------------------------------------------- */

static void chain_add(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	uint32_t *head = &s->buckets[sch_page_bucket(s, p->file, p->chunk_no)];

	p->hash_next = *head;
	*head = pg;
}

static void chain_remove(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	uint32_t *link = &s->buckets[sch_page_bucket(s, p->file, p->chunk_no)];

	while (*link != pg)
		link = &s->pages[*link].hash_next;
	*link = p->hash_next;
	s->n_chained--;
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
		const struct page *p = &s->pages[i];

		if (p->is_live && !sch_page_spot(&s->files[p->file], p->chunk_no))
			chain_add(s, i);
	}
	return 0;
}

/* ---- the index ------------------------------------------------------------------------------------ */

static bool index_pays(const struct file *f, uint64_t n)
{
	return f->n_pages >= INDEX_PAGES_MIN && n <= UINT32_MAX &&
	       (n <= (uint64_t)INDEX_SHARE * f->n_pages || n <= f->n_entries / INDEX_ENTRIES);
}

/* The page's number stands in the index from now on. Chunk 0's has the record; one past the end stays where it is. */
static void index_take(struct sched *s, uint32_t pg)
{
	const struct page *p = &s->pages[pg];

	if (p->chunk_no == 0 || sch_chunk_bytes(s, p->file, p->chunk_no) == 0)
		return;
	s->files[p->file].index[p->chunk_no] = pg;
	chain_remove(s, pg);
}

/* Once it pays. Without memory the pages stay where they are. */
static void index_make(struct sched *s, uint32_t file)
{
	struct file *f = &s->files[file];
	uint64_t n = f->size_bytes == SCHED_SIZE_UNKNOWN ? UINT64_MAX : (f->size_bytes - 1) / s->cfg.chunk_bytes + 1;

	if (f->n_index || !index_pays(f, n))
		return;
	f->index = malloc((size_t)n * sizeof(*f->index));
	if (!f->index)
		return;
	memset(f->index, 0xff, (size_t)n * sizeof(*f->index)); /* SCH_NONE */
	sch_file_each_page(s, file, index_take);
	f->n_index = (uint32_t)n; /* from here on pages are found there */
	s->n_indexed += n;
}

static void index_drop(struct sched *s, struct file *f)
{
	s->n_indexed -= f->n_index;
	free(f->index);
	f->index = NULL;
	f->n_index = 0;
}

/* ---- records -------------------------------------------------------------------------------------- */

static uint32_t page_alloc(struct sched *s)
{
	uint32_t pg = s->free_page, cap = s->cap_pages;

	if (pg != SCH_NONE) {
		s->free_page = s->pages[pg].hash_next;
		return pg;
	}
	if (sch_array_grow((void **)&s->last, &cap, s->n_pages + 1, sizeof(*s->last)) ||
	    sch_array_grow((void **)&s->pages, &s->cap_pages, s->n_pages + 1, sizeof(*s->pages)))
		return SCH_NONE;
	return s->n_pages++;
}

uint32_t sch_page_get(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t pg = sch_page_find(s, file, chunk_no);
	struct file *f = sch_file(s, file);
	uint32_t *spot;

	if (pg != SCH_NONE || !f)
		return pg;
	spot = sch_page_spot(f, chunk_no);
	if (!spot && s->n_chained >= s->n_buckets && pages_rehash(s))
		return SCH_NONE;
	pg = page_alloc(s);
	if (pg == SCH_NONE)
		return SCH_NONE;
	s->pages[pg] = (struct page){
		.chunk_no = chunk_no, .file = file, .next = SCH_NONE, .frame = SCH_NONE, .tree = T_NONE, .is_live = 1};
	s->last[pg] = SCH_NONE;
	if (spot) {
		*spot = pg;
	} else {
		chain_add(s, pg);
		s->n_chained++;
	}
	s->live_pages++;
	f->n_pages++;
	if (!spot)
		index_make(s, file);
	return pg;
}

void sch_page_put(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];
	struct file *f = &s->files[p->file];
	uint32_t *spot;

	if (!p->is_live || p->next != SCH_NONE || p->frame != SCH_NONE || p->ext_pins || p->wait_pins ||
	    (p->flags & (PG_TIER | PG_DEMAND | PG_ADMIT)))
		return;
	f->n_pages--;
	spot = sch_page_spot(f, p->chunk_no);
	if (spot)
		*spot = SCH_NONE;
	else
		chain_remove(s, pg);
	if (f->n_pages == 0)
		index_drop(s, f);
	s->live_pages--;
	p->is_live = 0;
	p->hash_next = s->free_page;
	s->free_page = pg;
}

void sch_pages_finish(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_files; i++)
		free(s->files[i].index);
	free(s->pages);
	free(s->last);
	free(s->buckets);
}

uint64_t sch_pages_bytes(const struct sched *s)
{
	return (uint64_t)s->cap_pages * (sizeof(*s->pages) + sizeof(*s->last)) +
	       ((uint64_t)s->n_buckets + s->n_indexed) * sizeof(uint32_t);
}

/* ---- state ------------------------------------------------------------------------------------------ */

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
		s->last[pg] = SCH_NONE;
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}
