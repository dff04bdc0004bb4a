/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/sched/check.c - see check.h. The numbers are those of sched/sched_i.h. */
#include "tests/unit/sched/check.h"

#include <stdio.h>

#include "sched/sched_i.h"

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "invariant: %s (check.c:%d)\n", #cond, __LINE__);                              \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static void check_page(const struct sched *s, uint32_t pg)
{
	const struct page *p = &s->pages[pg];

	if (!p->is_live)
		return;
	CHECK(sch_page_find(s, p->file, p->chunk_no) == pg);
	if (p->next != SCH_NONE) { /* 1 */
		CHECK(s->pos.page[p->next] == pg);
		CHECK(!sch_position_is_done(s, p->next));
		for (int t = 0; t < T_COUNT; t++)
			CHECK(sch_bitmap_has(&s->tree[t], p->next) == (p->tree == t));
	} else {
		CHECK(p->tree == T_NONE);
	}
	if (p->frame == SCH_NONE)
		return;
	CHECK(s->frames[p->frame].page == pg);
	if (p->tree == T_RAM || p->tree == T_BOTH || s->frames[p->frame].list != L_NONE) { /* 2 */
		CHECK(s->frames[p->frame].fetches == SCH_NONE);
		CHECK(p->wait_pins == 0 && p->ext_pins == 0);
	}
}

/* What a stream knows of where its positions are. */
static void check_own(const struct sched *s, uint32_t stream)
{
	const struct stream *st = &s->streams[stream];
	uint32_t n = 0;

	for (uint32_t p = 0; p < s->pos.n; p++) {
		if (sch_position_owner(s, p) != stream)
			continue;
		n++;
		CHECK(p >= st->first_own);
		CHECK(p >= st->undone || sch_position_is_done(s, p));
	}
	CHECK(n == st->n_own);
}

/* Positions of a stream are in the order of its visits, and need blocks that a page has. */
static void check_rows(const struct sched *s)
{
	static uint64_t visit[SCHED_STREAMS_MAX + 1];

	memset(visit, 0, sizeof(visit));
	for (uint32_t p = 0; p < s->pos.n && !s->is_dirty; p++) {
		uint32_t stream = sch_position_owner(s, p);
		struct block_run r = sch_position_blocks(s, p);

		CHECK(stream < s->n_streams || stream == SCH_NOBODY);
		CHECK(r.b0 <= r.b1 && r.b1 < s->blocks_per_page);
		if (stream == SCH_NOBODY)
			continue;
		CHECK(sch_position_visit(s, p) >= visit[stream]);
		visit[stream] = sch_position_visit(s, p);
		CHECK(visit[stream] < s->streams[stream].mat_visit + (s->streams[stream].mat_page > 0));
	}
}

static void check_positions(const struct sched *s)
{
	uint32_t bits = 0, trees = 0;

	for (uint32_t p = 0; p < s->pos.n; p++) {
		bits += !sch_position_is_done(s, p);
		if (!sch_position_is_done(s, p))
			CHECK(s->pages[s->pos.page[p]].is_live && s->pages[s->pos.page[p]].next <= p);
		if (s->pos.next[p] != SCH_NONE)
			CHECK(s->pos.next[p] > p && s->pos.page[s->pos.next[p]] == s->pos.page[p]);
		for (int t = 0; t < T_COUNT; t++)
			if (sch_bitmap_has(&s->tree[t], p)) {
				trees++;
				CHECK(s->pages[s->pos.page[p]].next == p && s->pages[s->pos.page[p]].tree == t);
			}
	}
	CHECK(trees <= bits);
	check_rows(s);
	for (uint32_t i = 0; i < s->n_streams && !s->is_dirty; i++) { /* 4 */
		const struct stream *st = &s->streams[i];

		if (!st->is_live)
			continue;
		CHECK(st->low <= st->high);
		for (uint32_t p = 0; p < st->low && p < s->pos.n; p++)
			CHECK(sch_position_owner(s, p) != i || sch_position_is_done(s, p));
		check_own(s, i);
	}
}

static void check_frames(const struct sched *s)
{
	uint32_t held = 0, live = 0, fetches = 0, waiting = 0;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->n_frames; i++) {
		const struct frame *f = &s->frames[i];
		struct blocks seen = {{0}};

		if (f->page == SCH_NONE)
			continue;
		live++;
		held += f->is_held;
		CHECK(s->pages[f->page].frame == i && s->pages[f->page].is_live);
		CHECK(f->fetches != SCH_NONE || !sch_blocks_empty(&f->valid));
		for (uint32_t fe = f->fetches; fe != SCH_NONE; fe = s->fetches[fe].frame_next) { /* 5 */
			const struct fetch *e = &s->fetches[fe];

			CHECK(e->frame == i);
			CHECK(!sch_blocks_any(&seen, e->b0, e->b1));
			sch_blocks_set(&seen, e->b0, e->b1);
			fetches++;
			waiting += e->is_demand;
			bytes += e->is_late ? 0 : e->bytes;
		}
		CHECK(memcmp(&seen, &f->flight, sizeof(seen)) == 0);
	}
	CHECK(live == s->live_frames && held == s->held); /* 3 */
	CHECK(fetches == s->flight.count && waiting == s->n_waiting && bytes == s->flight_bytes);
}

/* What is told of all streams at once, counted visit by visit. */
static void check_windows(const struct sched *s)
{
	uint64_t told[SCHED_STREAMS_MAX], counted[SCHED_STREAMS_MAX] = {0};

	for (uint32_t p = 0; p < s->pos.n; p++) {
		const struct page *pg = &s->pages[s->pos.page[p]];

		if (!sch_position_is_done(s, p) && p >= sch_position_stream(s, p)->low && pg->next == p &&
		    (pg->tree == T_RAM || pg->tree == T_BOTH || pg->tree == T_FLIGHT))
			counted[sch_position_owner(s, p)] += sch_position_bytes(s, p);
	}
	sched_windows_get(s, told);
	CHECK(memcmp(told, counted, sizeof(told)) == 0);
}

void check_invariants(const struct sched *s)
{
	for (uint32_t i = 0; i < s->n_pages; i++)
		check_page(s, i);
	check_positions(s);
	check_frames(s);
	check_windows(s);
}
