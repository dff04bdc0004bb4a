/* SPDX-License-Identifier: Apache-2.0 */
/* sched/pages: where a page is found, against a plain array: in the file's record, its index, a bucket. */
#include "sched/sched_i.h"
#include "tests/unit/sched/rnd.h"

#include <criterion/criterion.h>

#define CHUNK (1u << 20)
#define FILES 4u
#define CHUNKS 1500u

static struct sched *s;
static uint32_t pages[FILES][CHUNKS], n_live;

static void begin(uint64_t chunks)
{
	struct sched_config cfg = {.chunk_bytes = CHUNK, .slots = 64, .inflight_max = 4, .inflight_bytes_max = 4 * CHUNK};

	cr_assert_eq(sched_create(&cfg, &s), 0);
	for (uint32_t f = 0; f < FILES; f++)
		cr_assert_eq(sched_file_add(s, f, chunks * CHUNK - 7), 0);
	memset(pages, 0xff, sizeof(pages));
	n_live = 0;
}

static void compare(void)
{
	for (uint32_t f = 0; f < FILES; f++)
		for (uint32_t c = 0; c < CHUNKS; c++)
			cr_assert_eq(sch_page_find(s, f, c), pages[f][c], "chunk %u of %u", c, f);
	cr_assert_eq(s->live_pages, n_live);
}

static void take(uint32_t f, uint32_t c)
{
	uint32_t pg = sch_page_get(s, f, c);

	cr_assert_neq(pg, SCH_NONE);
	cr_assert(s->pages[pg].is_live && s->pages[pg].file == f && s->pages[pg].chunk_no == c);
	cr_assert(pages[f][c] == SCH_NONE || pages[f][c] == pg);
	n_live += pages[f][c] == SCH_NONE;
	pages[f][c] = pg;
}

static void drop(uint32_t f, uint32_t c)
{
	if (pages[f][c] == SCH_NONE)
		return;
	sch_page_put(s, pages[f][c]);
	pages[f][c] = SCH_NONE;
	n_live--;
}

static void drop_all(void)
{
	for (uint32_t f = 0; f < FILES; f++)
		for (uint32_t c = 0; c < CHUNKS; c++)
			drop(f, c);
}

Test(sched_pages, come_and_go_in_any_order)
{
	bool was_indexed = false;

	begin(CHUNKS);
	for (uint32_t round = 0; round < 40; round++) {
		uint32_t odds = round % 4 + 1; /* more come than go, and the other way round */

		for (uint32_t i = 0; i < 1000; i++) {
			uint32_t f = (uint32_t)rnd(FILES), c = (uint32_t)rnd(CHUNKS);

			if (rnd(5) < odds)
				take(f, c);
			else
				drop(f, c);
		}
		was_indexed |= s->n_indexed > 0;
		compare();
	}
	cr_assert(was_indexed);
	drop_all();
	compare();
	cr_assert_eq(s->n_indexed, 0, "nothing stays of files without pages");
	cr_assert_eq(s->n_chained, 0);
	sched_destroy(s);
}

Test(sched_pages, an_index_costs_less_than_the_pages_in_it)
{
	begin(1u << 23); /* 8 TiB */
	for (uint32_t c = 0; c < CHUNKS; c++)
		take(0, c);
	cr_assert_eq(s->n_indexed, 0);
	compare();
	drop_all();
	sched_destroy(s);
	begin(CHUNKS);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		take(0, c);
		cr_assert_leq(s->n_indexed, 8u * s->live_pages);
	}
	cr_assert_eq(s->n_indexed, CHUNKS);
	cr_assert_eq(s->n_chained, 0, "those that were in buckets are in it");
	drop_all();
	sched_destroy(s);
}

Test(sched_pages, a_file_that_grows_or_shrinks_keeps_those_it_has)
{
	begin(CHUNKS / 2);
	for (uint32_t c = 0; c < CHUNKS / 2; c++) {
		take(1, c);
		s->pages[pages[1][c]].wait_pins++; /* they outlive the change */
	}
	sched_file_changed(s, 1, (uint64_t)CHUNKS * CHUNK);
	for (uint32_t c = 0; c < CHUNKS; c++)
		take(1, c);
	compare();
	sched_file_changed(s, 1, CHUNK / 2);
	for (uint32_t c = CHUNKS / 2; c < CHUNKS; c++)
		pages[1][c] = SCH_NONE; /* nobody needed them */
	n_live = CHUNKS / 2;
	compare();
	for (uint32_t c = 0; c < CHUNKS / 2; c++)
		s->pages[pages[1][c]].wait_pins--;
	drop_all();
	compare();
	sched_destroy(s);
}

/* Other files' pages first, so that those of the one are looked for by chunk number; then, without them, one by one. */
static void index_of_a_file_in_an_order(bool is_alone)
{
	const struct sched_entry e = {2, 0, 0};
	uint32_t st;

	begin(CHUNKS);
	cr_assert_eq(sched_stream_create(s, &st), 0);
	for (uint32_t i = 0; i < 2 * CHUNKS; i++)
		cr_assert_eq(sched_stream_append(s, st, &e, 1), 1);
	for (uint32_t c = 0; c < CHUNKS; c++)
		if (!is_alone)
			take(0, c);
	cr_assert_eq(s->n_indexed, is_alone ? 0 : CHUNKS);
	for (uint32_t c = 0; c < 64; c++)
		take(2, CHUNKS - 1 - c * 20);
	cr_assert_eq(s->n_indexed, is_alone ? CHUNKS : 2 * CHUNKS);
	compare();
	cr_assert_eq(s->n_chained, 0);
	drop_all();
	compare();
	sched_destroy(s);
}

Test(sched_pages, a_file_that_an_order_names_often_has_its_index_at_once)
{
	index_of_a_file_in_an_order(true);
	index_of_a_file_in_an_order(false);
}
