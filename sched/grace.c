/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/grace.c - is what was just read worth a slot for a moment?
 *
 * Without an order nobody knows who comes next. Several readers of one file, a little apart, read each page again at once: a page that
 * was read stays for a moment (L_RECENT). Where epochs are shuffled nobody does, and those slots are what never-evict would fill with
 * pages that do come again: a quarter of them when there are few. So it is counted: of some pages read, how many were
 * read again before GRACE_PAGES others were? They count as well where they had to be fetched again, so that grace comes back.
 *
 * Callers: sched.c (reads), pages.c (lists), evict.c. Invariant: pages of a read that waits for several are not concerned (is_fresh).
 */
#include "sched/sched_i.h"

#define GRACE_SAMPLE 64u
#define GRACE_SHARE 8u

static uint64_t grace_id(uint32_t file, uint64_t chunk_no)
{
	return ((uint64_t)file << 32 ^ chunk_no) + 1;
}

/* A page was read to the end of what is there, and no order knows what comes. */
void sch_grace_passed(struct sched *s)
{
	struct grace *g = &s->grace;

	if (++g->passed < GRACE_SAMPLE)
		return;
	g->is_off = g->again * GRACE_SHARE < g->passed;
	g->passed = g->again = 0;
}

void sch_grace_gone(struct sched *s, uint32_t pg)
{
	const struct page *p = &s->pages[pg];
	struct grace *g = &s->grace;

	if (!s->frames[p->frame].is_used)
		return;
	g->gone[g->gone_at % GRACE_PAGES] = grace_id(p->file, p->chunk_no);
	g->gone_hi[g->gone_at++ % GRACE_PAGES] = s->frames[p->frame].read_hi;
}

void sch_grace_read(struct sched *s, uint32_t pg, uint32_t file, uint64_t chunk_no, uint32_t b0)
{
	struct grace *g = &s->grace;
	uint64_t id = grace_id(file, chunk_no);

	if (pg != SCH_NONE && s->pages[pg].frame != SCH_NONE) {
		const struct page *p = &s->pages[pg];

		g->again += p->seen && s->access_clock - p->seen < GRACE_PAGES && b0 < s->frames[p->frame].read_hi;
		return;
	}
	for (uint32_t i = 0; i < GRACE_PAGES; i++) {
		if (g->gone[i] != id || b0 >= g->gone_hi[i])
			continue;
		g->gone[i] = 0;
		g->again++;
	}
}
