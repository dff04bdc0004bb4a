/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/demand.c - readers that wait: first in, first out, before any prefetch.
 *
 *   sched_read(is_miss) --sch_demand_add--> queue --sch_demand_run--> FETCH is_demand --> sched_fetched()
 *
 * A demand stays in the queue while there is no slot (then a prefetch that has not started is called back) or
 * no room among the outstanding fetches. One that is already on its way as a prefetch is emitted again as demand, so
 * that the cache pulls it forward.
 *
 * Callers: sched.c, wait.c. Invariant 6 of sched_i.h: nothing else takes a demand out of the queue.
 */
#include "sched/sched_i.h"

#define CROWD_FRAMES 16u
#define SPLIT_MIN (256u << 10) /* a rest of the chunk below this is not worth a request of its own */

static struct demand *demand_at(struct sched *s, uint32_t i)
{
	return &s->demands[(s->demand_head + i) & (s->cap_demands - 1)];
}

static int demand_grow(struct sched *s)
{
	uint32_t cap = s->cap_demands ? s->cap_demands * 2 : 256;
	struct demand *d = malloc((size_t)cap * sizeof(*d));

	if (!d)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n_demands; i++)
		d[i] = *demand_at(s, i);
	free(s->demands);
	s->demands = d;
	s->cap_demands = cap;
	s->demand_head = 0;
	return 0;
}

void sch_demand_add(struct sched *s, const struct demand *new)
{
	uint32_t pg = sch_page_get(s, new->file, new->chunk_no);

	for (uint32_t i = 0; pg != SCH_NONE && (s->pages[pg].flags & PG_DEMAND) && i < s->n_demands; i++) {
		struct demand *d = demand_at(s, i);

		if (d->file != new->file || d->chunk_no != new->chunk_no)
			continue;
		d->b0 = (uint16_t)sch_min32(d->b0, new->b0);
		d->b1 = (uint16_t)sch_max32(d->b1, new->b1);
		d->is_again = d->is_again || new->is_again;
		d->is_part = d->is_part || new->is_part;
		d->is_gone = d->is_gone || new->is_gone;
		return;
	}
	if (s->n_demands == s->cap_demands && demand_grow(s))
		return;
	*demand_at(s, s->n_demands++) = *new;
	if (pg != SCH_NONE)
		s->pages[pg].flags |= PG_DEMAND;
}

static void demand_pop(struct sched *s)
{
	struct demand d = *demand_at(s, 0);
	uint32_t pg = sch_page_find(s, d.file, d.chunk_no);

	s->demand_head = (s->demand_head + 1) & (s->cap_demands - 1);
	s->n_demands--;
	if (pg == SCH_NONE)
		return;
	s->pages[pg].flags &= (uint8_t)~PG_DEMAND;
	sch_page_put(s, pg);
}

/* Everything is in flight or pinned: call back the prefetch that is needed last. */
static void demand_unfetch(struct sched *s)
{
	uint32_t p = sch_bitmap_last(&s->tree[T_FLIGHT]);

	for (uint32_t n = 0; p != SCH_NONE && n < 64 && s->n_unfetching < s->n_demands; n++) {
		uint32_t pg = s->pos.page[p], fe = s->frames[s->pages[pg].frame].fetches;

		for (; fe != SCH_NONE; fe = s->fetches[fe].frame_next) {
			struct fetch *f = &s->fetches[fe];
			struct sched_action a = {.kind = SCHED_UNFETCH,
						 .file = s->pages[pg].file,
						 .chunk_no = s->pages[pg].chunk_no,
						 .off_bytes = f->b0 * s->block_bytes,
						 .len_bytes = f->bytes};

			if (f->is_demand || f->is_unfetched || f->is_resolve || f->is_late || !sch_emit(s, &a))
				continue;
			f->is_unfetched = true;
			s->n_unfetching++;
		}
		p = p ? sch_bitmap_prev(&s->tree[T_FLIGHT], p - 1) : SCH_NONE;
	}
}

/*
 * The blocks to bring: what is asked for, and what the order will ask for soon. True if the rest of the chunk is
 * right too, because the read is sequential: it comes as a fetch of its own, so that the reader need not wait for it.
 */
static bool demand_want(struct sched *s, const struct demand *d, uint32_t pg, struct blocks *want)
{
	const struct page *p = &s->pages[pg];
	uint64_t off = d->chunk_no * s->cfg.chunk_bytes + (uint64_t)d->b0 * s->block_bytes;
	uint32_t blocks = sch_chunk_blocks(s, d->file, d->chunk_no);

	memset(want, 0, sizeof(*want));
	sch_blocks_set(want, d->b0, d->b1);
	/* The read itself is done in the books: this is the visit after it. Far ones are not a demand's matter. */
	if (p->next != SCH_NONE && sch_position_stream(s, p->next)->is_speculating && p->next >= s->pos.low &&
	    p->next - s->pos.low < sch_max32(s->slots / 4, 1)) {
		sch_fetch_wanted(s, pg, p->next, want);
		sch_blocks_set(want, d->b0, d->b1);
		return false;
	}
	if (blocks == 0 || s->mode == SCHED_PREFETCH_OFF || !sch_nohint_is_sequential(s, d->file, off))
		return false;
	if ((blocks - 1 - d->b1 + d->b0) * (uint64_t)s->block_bytes >= SPLIT_MIN)
		return true;
	sch_blocks_set(want, 0, blocks - 1);
	return false;
}

/* The cache says that what we took for valid is not. */
static void demand_distrust(struct sched *s, const struct demand *d, uint32_t pg)
{
	struct frame *f;

	if (!d->is_again || s->pages[pg].frame == SCH_NONE)
		return;
	f = &s->frames[s->pages[pg].frame];
	if (sch_blocks_all(&f->valid, d->b0, d->b1))
		sch_blocks_clear(&f->valid, d->b0, d->b1);
}

/* A read that was the last of its visit is done in the books: then the demand says whose it was. */
static enum sched_stall demand_cause(const struct sched *s, const struct demand *d, uint32_t pg)
{
	const struct page *p = &s->pages[pg];

	if (d->is_gone || (p->flags & PG_GONE))
		return SCHED_STALL_EVICTED;
	if (d->done_stream != SCH_NONE || (p->next != SCH_NONE && p->next < s->pos.low + (uint64_t)s->slots))
		return SCHED_STALL_BEHIND;
	return SCHED_STALL_UNNAMED;
}

/* 1: satisfied, 0: must wait. */
static int demand_issue(struct sched *s, struct demand *d)
{
	uint32_t pg = sch_page_get(s, d->file, d->chunk_no);
	struct blocks want;
	bool with_rest;
	int err;

	if (pg == SCH_NONE)
		return sch_file(s, d->file) ? 0 : 1;
	if (!sch_fetch_may(s, true, (uint32_t)s->cfg.chunk_bytes))
		return 0;
	demand_distrust(s, d, pg);
	if (sch_page_takes_slot(s, pg) && !sch_evict_room(s, EVICT_FOR_DEMAND, SCH_NONE)) {
		demand_unfetch(s);
		return 0;
	}
	s->pages[pg].flags &= (uint8_t)~PG_BAD;
	s->pages[pg].seen = s->access_clock; /* when it was read it had no record perhaps */
	s->stall = (uint8_t)demand_cause(s, d, pg);
	with_rest = demand_want(s, d, pg, &want);
	err = sch_fetch_page(s, pg, &want, d->is_again ? FETCH_AGAIN : FETCH_DEMAND, s->now_ns);
	d->is_again = false;
	if (s->pages[pg].frame != SCH_NONE) { /* the reader that waits has it read when it comes */
		struct frame *f = &s->frames[s->pages[pg].frame];

		f->read_hi = (uint16_t)sch_max32(f->read_hi, d->b1 + 1u);
		f->is_part = f->is_part || d->is_part;
		if (d->done_stream != SCH_NONE)
			f->done_stream = d->done_stream;
	}
	if (err == 0 && with_rest) {
		sch_blocks_set(&want, 0, sch_chunk_blocks(s, d->file, d->chunk_no) - 1);
		(void)!sch_fetch_page(s, pg, &want, FETCH_AHEAD, s->now_ns); /* what does not come now is asked for */
	}
	return err == 0;
}

/*
 * Half of the slots wait for the origin, much of it for this file, which may hang: others go first, and what is resident is not
 * given up for more of it. It goes on when some of its fetches come, or are late and count no longer.
 */
static bool demand_crowds(const struct sched *s, const struct demand *d)
{
	const struct file *f = sch_file(s, d->file);

	return f && f->n_frames >= CROWD_FRAMES && s->flight.count - s->n_late >= s->slots / 2;
}

/* To the end of the queue. */
static void demand_rotate(struct sched *s)
{
	struct demand d = *demand_at(s, 0);

	s->demand_head = (s->demand_head + 1) & (s->cap_demands - 1);
	*demand_at(s, s->n_demands - 1) = d;
}

void sch_demand_run(struct sched *s, size_t max)
{
	uint32_t turns = s->n_demands;

	while (s->n_demands && s->n_acts - s->acts_head < max) {
		if (demand_crowds(s, demand_at(s, 0))) {
			if (turns-- == 0)
				break;
			demand_rotate(s);
			continue;
		}
		if (!demand_issue(s, demand_at(s, 0)))
			break;
		demand_pop(s);
	}
}
