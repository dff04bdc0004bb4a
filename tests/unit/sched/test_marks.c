/* SPDX-License-Identifier: Apache-2.0 */
/* Each mark changes what is fetched or evicted, and in which order, so that it can be seen. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "sched/sched_i.h"
#include "tests/unit/sched/check.h"
#include "tests/unit/sched/world.h"

#define MIB (1ULL << 20)

static struct world w;
static uint32_t st, f;

static void setup(uint32_t slots, uint32_t chunks)
{
	struct sched_config cfg = {
		.chunk_bytes = MIB, .slots = slots, .inflight_max = 64, .inflight_bytes_max = 256 * MIB};

	world_open(&w, &cfg);
	f = world_file(&w, chunks * MIB, true);
	cr_assert_eq(sched_stream_create(w.s, &st), 0);
}

static void add(uint32_t chunk)
{
	struct sched_entry e = {f, chunk * MIB, MIB};

	cr_assert_eq(sched_stream_append(w.s, st, &e, 1), 1);
}

static void add_all(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		add(i);
}

static int mark(enum sched_mark m, uint64_t value)
{
	return sched_stream_mark(w.s, st, m, value, w.now_ns);
}

static void settle(void)
{
	world_run(&w, w.now_ns + 1000000000);
}

static bool was_fetched(uint32_t chunk, uint32_t from)
{
	return world_find(&w, SCHED_FETCH, f, chunk, from) != UINT32_MAX;
}

static struct sched_stream_stats stats(void)
{
	struct sched_stream_stats q;

	cr_assert_eq(sched_stream_stats_get(w.s, st, &q), 0);
	return q;
}

Test(marks, window_in_bytes)
{
	setup(64, 40);
	cr_assert_eq(mark(SCHED_MARK_WINDOW_BYTES, 5 * MIB), 0);
	add_all(0, 40);
	settle();
	cr_assert(was_fetched(4, 0));
	cr_assert_not(was_fetched(5, 0), "5 MiB ahead and no more");
	cr_assert(world_read(&w, f, 0, MIB, 1));
	settle();
	cr_assert(was_fetched(5, 0), "the window moves with the reader");
	cr_assert_not(was_fetched(6, 0));
	cr_assert_eq(mark(SCHED_MARK_WINDOW_BYTES, 9 * MIB), 0);
	settle();
	cr_assert(was_fetched(9, 0), "a wider one at once");
	world_close(&w);
}

Test(marks, window_in_batches)
{
	setup(64, 40);
	cr_assert_eq(mark(SCHED_MARK_WINDOW_BATCHES, 2), 0);
	for (uint32_t i = 0; i < 40; i++) {
		if (i % 4 == 0)
			cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
		add(i);
	}
	settle();
	cr_assert(was_fetched(11, 0), "the batch that is read and two more");
	cr_assert_not(was_fetched(12, 0));
	world_close(&w);
}

/* The list comes in pieces, as writes arrive: fetching has begun before the window ends in what is known. */
Test(marks, window_of_a_list_in_pieces)
{
	for (int by_batch = 0; by_batch < 2; by_batch++) {
		setup(64, 40);
		cr_assert_eq(mark(by_batch ? SCHED_MARK_WINDOW_BATCHES : SCHED_MARK_WINDOW_BYTES, by_batch ? 2 : 5 * MIB), 0);
		for (uint32_t i = 0; i < 40; i += 4) {
			cr_assert_eq(mark(SCHED_MARK_BATCH, i / 4), 0);
			add_all(i, i + 4);
			world_step(&w);
		}
		settle();
		cr_assert(was_fetched(4, 0));
		cr_assert_not(was_fetched(by_batch ? 12 : 5, 0), "by %s", by_batch ? "batches" : "bytes");
		world_close(&w);
	}
}

Test(marks, seek)
{
	setup(8, 40);
	add_all(0, 40);
	cr_assert_eq(mark(SCHED_MARK_SEEK, 30), 0);
	settle();
	cr_assert_eq(w.log[0].chunk_no, 30);
	cr_assert_not(was_fetched(0, 0));
	cr_assert_eq(stats().low, 30);
	cr_assert_eq(mark(SCHED_MARK_SEEK, 3), 0, "backward too");
	settle();
	cr_assert(was_fetched(3, 0));
	cr_assert_not(was_fetched(2, 0));
	cr_assert_eq(mark(SCHED_MARK_SEEK, 41), -EINVAL);
	world_close(&w);
}

Test(marks, done)
{
	setup(8, 40);
	add_all(0, 40);
	settle();
	cr_assert_not(was_fetched(15, 0), "8 slots");
	cr_assert_eq(mark(SCHED_MARK_DONE, 9), 0);
	settle();
	cr_assert(was_fetched(15, 0), "what was said to be read makes room");
	cr_assert_eq(stats().low, 10);
	cr_assert_eq(mark(SCHED_MARK_DONE, 40), -EINVAL);
	world_close(&w);
}

Test(marks, done_batch)
{
	setup(8, 40);
	for (uint32_t i = 0; i < 40; i++) {
		if (i % 10 == 0)
			cr_assert_eq(mark(SCHED_MARK_BATCH, 100 + i / 10), 0);
		add(i);
	}
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 101), 0);
	settle();
	cr_assert_eq(w.log[0].chunk_no, 20);
	cr_assert_eq(stats().batch, 102);
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 7), -EINVAL, "no such batch");
	world_close(&w);
}

Test(marks, batches_are_numbered_per_epoch)
{
	uint64_t n = 0;

	setup(8, 40);
	for (uint32_t e = 0; e < 2; e++) {
		cr_assert_eq(mark(SCHED_MARK_EPOCH, 5 + e), 0);
		for (uint32_t i = 0; i < 20; i++) {
			if (i % 5 == 0)
				cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
			add(e * 20 + i);
		}
	}
	cr_assert_eq(stats().epoch, 5);
	for (uint32_t i = 0; i < 26; i++)
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
	cr_assert_eq(stats().epoch, 6);
	cr_assert_eq(stats().batch, 1);
	/* Past batch 2 of this epoch: not of the one before. */
	n = w.n_log;
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 2), 0);
	settle();
	cr_assert_eq(stats().low, 35);
	cr_assert_not(was_fetched(34, (uint32_t)n) && !was_fetched(35, 0));
	world_close(&w);
}

/* A trainer reports batches that its loader has read long ago: of this epoch, or the last ones of the epoch before. */
Test(marks, done_batch_that_is_behind_the_readers)
{
	setup(8, 40);
	for (uint32_t e = 0; e < 2; e++) {
		cr_assert_eq(mark(SCHED_MARK_EPOCH, e), 0);
		for (uint32_t i = 0; i < 20; i++) {
			if (i % 2 == 0)
				cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
			add(e * 20 + i);
		}
	}
	for (uint32_t i = 0; i < 8; i++)
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 1), 0);
	cr_assert_eq(stats().low, 8, "batch 1 of this epoch, not of the next");
	for (uint32_t i = 8; i < 22; i++)
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 9), 0);
	cr_assert_eq(stats().low, 22, "the last batch of the epoch before");
	cr_assert_eq(mark(SCHED_MARK_DONE_BATCH, 3), 0);
	cr_assert_eq(stats().low, 28);
	world_close(&w);
}

/* An epoch mark orders ranks that have not the same number of batches in an epoch. */
Test(marks, epoch_orders_ranks)
{
	uint32_t other;
	struct sched_entry e = {0};

	setup(64, 40);
	cr_assert_eq(sched_stream_create(w.s, &other), 0);
	for (uint32_t i = 0; i < 8; i++) { /* 4 batches an epoch */
		if (i % 4 == 0)
			cr_assert_eq(mark(SCHED_MARK_EPOCH_NEXT, 0), 0);
		cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
		add(i);
	}
	for (uint32_t i = 0; i < 4; i++) { /* 2 batches an epoch */
		if (i % 2 == 0)
			cr_assert_eq(sched_stream_mark(w.s, other, SCHED_MARK_EPOCH_NEXT, 0, 0), 0);
		cr_assert_eq(sched_stream_mark(w.s, other, SCHED_MARK_BATCH_NEXT, 0, 0), 0);
		e = (struct sched_entry){f, (20 + i) * MIB, MIB};
		cr_assert_eq(sched_stream_append(w.s, other, &e, 1), 1);
	}
	settle();
	cr_assert_gt(world_find(&w, SCHED_FETCH, f, 22, 0), world_find(&w, SCHED_FETCH, f, 3, 0),
		     "the second epoch comes after all of the first");
	cr_assert_lt(world_find(&w, SCHED_FETCH, f, 20, 0), world_find(&w, SCHED_FETCH, f, 1, 0));
	world_close(&w);
}

/* What comes again is kept: the repeat is known, though it is not written out. */
Test(marks, repeat)
{
	setup(8, 12);
	add_all(0, 12);
	cr_assert_eq(mark(SCHED_MARK_REPEAT, 3), 0);
	cr_assert_eq(mark(SCHED_MARK_REPEAT, 0), -EINVAL);
	for (uint32_t e = 0; e < 3; e++)
		for (uint32_t i = 0; i < 12; i++) {
			cr_assert(world_read(&w, f, i * MIB, MIB, 1), "pass %u chunk %u", e, i);
			world_run(&w, w.now_ns + 50000000);
		}
	cr_assert_eq(stats().pending, 0);
	cr_assert_eq(stats().entries, 12);
	/* 12 + 2 x (12 - 8) at best, and a few before the pace is known; LRU would fetch all 36. */
	cr_assert_leq(w.n_fetched, 28, "%lu fetches", (unsigned long)w.n_fetched);
	world_close(&w);
}

Test(marks, repeats_nest)
{
	setup(64, 12);
	add(0);
	cr_assert_eq(mark(SCHED_MARK_REPEAT, 2), 0);
	add(1);
	cr_assert_eq(mark(SCHED_MARK_REPEAT, 2), 0);
	add(2);
	static const uint32_t seq[] = {0, 0, 1, 0, 0, 1, 2};

	cr_assert_eq(stats().pending, 7);
	for (uint32_t i = 0; i < 7; i++) {
		cr_assert(world_read(&w, f, seq[i] * MIB, MIB, 1));
		cr_assert_eq(stats().low, i + 1, "visit %u", i);
	}
	world_close(&w);
}

/* In a bag any entry may be the next: a read far ahead is one of it and moves no cursor over the others. */
Test(marks, any)
{
	setup(16, 400);
	cr_assert_eq(mark(SCHED_MARK_ANY, 0), 0);
	add_all(0, 300);
	cr_assert_eq(mark(SCHED_MARK_ORDERED, 0), 0);
	add_all(300, 400);
	settle();
	for (uint32_t i = 0; i < 20; i++)
		cr_assert(world_read(&w, f, (280 - i) * MIB, MIB, 1));
	cr_assert_eq(stats().low, 0, "entry 0 may still come");
	cr_assert_eq(stats().skipped, 0);
	cr_assert_gt(stats().confidence, 0.99);
	world_close(&w);

	/* The same without the mark: the readers have jumped. */
	setup(16, 400);
	add_all(0, 400);
	settle();
	for (uint32_t i = 0; i < 20; i++)
		cr_assert(world_read(&w, f, (280 + i) * MIB, MIB, 1));
	cr_assert_geq(stats().low, 280);
	cr_assert_gt(stats().skipped, 200);
	world_close(&w);
}

Test(marks, cancel)
{
	uint32_t at;

	setup(8, 40);
	add_all(0, 40);
	settle();
	sched_stream_cancel(w.s, st);
	at = w.n_log;
	settle();
	cr_assert_eq(stats().entries, 0);
	for (uint32_t i = at; i < w.n_log; i++)
		cr_assert_neq(w.log[i].kind, SCHED_FETCH, "nothing is fetched for a list that is gone");
	world_close(&w);
}

Test(marks, a_new_list_keeps_what_both_name)
{
	uint32_t at;

	setup(16, 40);
	add_all(0, 8);
	settle();
	cr_assert_eq(w.n_fetched, 8);
	sched_stream_replace(w.s, st);
	at = w.n_log;
	add_all(4, 12);
	settle();
	for (uint32_t c = 4; c < 8; c++)
		cr_assert_not(was_fetched(c, at), "chunk %u was there", c);
	cr_assert(was_fetched(8, at));
	cr_assert_eq(w.n_fetched, 12);
	world_close(&w);
}

Test(marks, appending_while_reading)
{
	setup(16, 100);
	for (uint32_t i = 0; i < 100; i++) {
		add(i);
		cr_assert(world_read(&w, f, i * MIB, MIB, 1));
	}
	cr_assert_eq(w.n_fetched, 100);
	cr_assert_eq(stats().pending, 0);
	check_invariants(w.s);
	world_close(&w);
}

/* A file of .ctl/streams begins with a new list, which replaces none: the others' positions stay as they are. */
Test(marks, new_streams_do_not_lay_out_the_others_anew)
{
	struct sched_config cfg = world_config(64, 0);
	struct world w;
	uint32_t f, st, before = 0;

	world_open(&w, &cfg);
	f = world_file(&w, 256 * MIB, true);
	for (uint32_t i = 0; i < 256; i++) {
		struct sched_entry x = {f, i * MIB, MIB};

		cr_assert_eq(sched_stream_create(w.s, &st), 0);
		sched_stream_replace(w.s, st);
		cr_assert_eq(sched_stream_append(w.s, st, &x, 1), 1);
		world_step(&w);
		before = i == 0 ? w.s->rebuilds : before;
	}
	/* What an order changes in the middle may be built again, but not for each. */
	cr_assert_leq(w.s->rebuilds - before, 8, "built again %u times", w.s->rebuilds - before);
	for (uint32_t i = 0; i < 256; i++)
		cr_assert(world_read(&w, f, i * MIB, MIB, i + 1));
	cr_assert_eq(w.origin_bytes, 256 * MIB);
	world_close(&w);
}

/* Streams that get a new list, or go, cost what they have, not what all have: positions laid out are counted, on a clock that stands. */
Test(marks, streams_that_go_do_not_lay_out_the_others_anew)
{
	enum { STREAMS = 200, PAGES = 16 };
	struct sched_config cfg = world_config(8, 0);
	uint32_t f, st[STREAMS], rebuilds;
	struct world w;
	uint64_t laid;

	world_open(&w, &cfg);
	sched_set_prefetch(w.s, SCHED_PREFETCH_OFF);
	f = world_file(&w, STREAMS * PAGES * MIB, true);
	for (uint32_t i = 0; i < STREAMS; i++) {
		cr_assert_eq(sched_stream_create(w.s, &st[i]), 0);
		for (uint32_t k = 0; k < PAGES; k++) {
			struct sched_entry x = {f, ((uint64_t)i * PAGES + k) * MIB, MIB};

			cr_assert_eq(sched_stream_append(w.s, st[i], &x, 1), 1);
		}
	}
	world_step(&w);
	cr_assert_eq(w.s->pos.n, STREAMS * PAGES);
	laid = w.s->pos.n_laid;
	rebuilds = w.s->rebuilds;
	for (uint32_t i = 0; i < STREAMS; i++) { /* the same page first in all new lists */
		struct sched_entry x = {f, 0, MIB};

		sched_stream_replace(w.s, st[i]);
		cr_assert_eq(sched_stream_append(w.s, st[i], &x, 1), 1);
		world_step(&w);
		if (i % 32 == 0)
			check_invariants(w.s);
	}
	cr_assert_leq(w.s->pos.n_laid - laid, 2 * STREAMS, "new lists: %lu laid out", w.s->pos.n_laid - laid);
	for (uint32_t i = 0; i + 1 < STREAMS; i++) {
		sched_stream_destroy(w.s, st[i]);
		world_step(&w);
		if (i % 32 == 0)
			check_invariants(w.s);
	}
	cr_assert_leq(w.s->pos.n_laid - laid, 2 * STREAMS, "gone: %lu laid out", w.s->pos.n_laid - laid);
	cr_assert_eq(w.s->rebuilds, rebuilds);
	cr_assert_eq(sched_file_is_idle(w.s, f), false);
	sched_stream_destroy(w.s, st[STREAMS - 1]);
	world_step(&w);
	cr_assert_eq(w.s->live_pages, 0, "%u pages stay of lists that are gone", w.s->live_pages);
	check_invariants(w.s);
	world_close(&w);
}

/* A number that is given again finds nothing of its earlier owner, although the others were not laid out anew. */
Test(marks, a_stream_number_given_again_begins_anew)
{
	struct sched_config cfg = world_config(64, 0);
	uint32_t f, a, b, c;
	struct world w;

	world_open(&w, &cfg);
	f = world_file(&w, 64 * MIB, true);
	cr_assert_eq(sched_stream_create(w.s, &a), 0);
	cr_assert_eq(sched_stream_create(w.s, &b), 0);
	for (uint32_t i = 0; i < 32; i++) {
		struct sched_entry x = {f, i * MIB, MIB}, y = {f, (32 + i) * MIB, MIB};

		cr_assert_eq(sched_stream_append(w.s, a, &x, 1), 1);
		cr_assert_eq(sched_stream_append(w.s, b, &y, 1), 1);
	}
	sched_set_prefetch(w.s, SCHED_PREFETCH_OFF);
	world_step(&w);
	sched_stream_destroy(w.s, a);
	cr_assert_eq(sched_stream_create(w.s, &c), 0);
	cr_assert_eq(c, a);
	for (uint32_t i = 32; i-- > 0;) {
		struct sched_entry x = {f, i * MIB, MIB};

		cr_assert_eq(sched_stream_append(w.s, c, &x, 1), 1);
	}
	world_step(&w);
	check_invariants(w.s);
	sched_set_prefetch(w.s, SCHED_PREFETCH_ON);
	for (uint32_t i = 0; i < 32; i++) {
		cr_assert(world_read(&w, f, (31 - i) * MIB, MIB, 1));
		cr_assert(world_read(&w, f, (32 + i) * MIB, MIB, 2));
		check_invariants(w.s);
	}
	cr_assert_eq(w.origin_bytes, 64 * MIB);
	cr_assert_eq(w.s->streams[c].n_unmatched + w.s->streams[b].n_unmatched, 0);
	world_close(&w);
}

/* ---- the list given back ---- */

/* Write what stream `from` says of itself to `to`. text: the marks as letters with numbers, entries as numbers. */
static void say_again(uint32_t from, uint32_t to, char *text, size_t cap)
{
	static const char letters[] = "?b?eraowWS";
	struct sched_list at;
	struct sched_item i[3];
	size_t n, len = 0;

	text[0] = '\0';
	cr_assert_eq(sched_list_begin(w.s, from, &at), 0);
	do {
		n = sched_list_next(w.s, from, &at, i, 3);
		for (size_t k = 0; k < n; k++) {
			if (i[k].is_mark)
				cr_assert_eq(sched_stream_mark(w.s, to, i[k].mark, i[k].value, w.now_ns), 0);
			else
				cr_assert_eq(sched_stream_append(w.s, to, &i[k].entry, 1), 1);
			if (i[k].is_mark)
				len += (size_t)snprintf(text + len, cap - len, "%c%lu ", letters[i[k].mark], (unsigned long)i[k].value);
			else
				len += (size_t)snprintf(text + len, cap - len, "%lu ", (unsigned long)(i[k].entry.off_bytes / MIB));
			cr_assert_lt(len, cap);
		}
	} while (n == 3);
}

static uint64_t label_of(const struct stream *q, uint64_t entry)
{
	uint64_t label = UINT64_MAX;

	for (uint32_t k = 0; k < q->n_epochs && q->epochs[k].entry <= entry; k++)
		label = q->epochs[k].label;
	return label;
}

static uint64_t number_of(const struct stream *q, uint64_t entry)
{
	uint32_t b = sch_entry_batch(q, entry);

	return b == SCH_NONE ? UINT64_MAX : sch_batch_number(q, b);
}

/* All that is still to be read means the same in both. */
static void check_same(uint32_t one, uint32_t other, const char *text)
{
	const struct stream *a = &w.s->streams[one], *b = &w.s->streams[other];
	uint64_t skipped = a->low_visit - b->low_visit;

	cr_assert_eq(sch_visits(a) - a->low_visit, sch_visits(b) - b->low_visit, "%s", text);
	for (uint64_t v = a->low_visit; v < sch_visits(a); v++) {
		uint64_t x = sch_visit_entry(a, v), y = sch_visit_entry(b, v - skipped);
		struct sched_entry ex, ey;

		cr_assert(sch_entry_get(a, x, &ex) && sch_entry_get(b, y, &ey));
		cr_assert_eq(ex.off_bytes, ey.off_bytes, "%s", text);
		cr_assert_eq(sch_entry_is_any(a, x), sch_entry_is_any(b, y), "%s", text);
		cr_assert_eq(number_of(a, x), number_of(b, y), "visit %lu: %s", (unsigned long)v, text);
		cr_assert_eq(label_of(a, x), label_of(b, y), "%s", text);
		cr_assert_eq(sch_visit_epoch(a, v) - sch_visit_epoch(a, a->low_visit),
			     sch_visit_epoch(b, v - skipped) - sch_visit_epoch(b, b->low_visit), "%s", text);
	}
	cr_assert(a->low_visit == sch_visits(a) ||
		  (a->window_bytes == b->window_bytes && a->window_batches == b->window_batches));
}

Test(marks, the_list_given_back)
{
	char text[4096];
	uint32_t other;

	setup(64, 12);
	cr_assert_eq(sched_stream_create(w.s, &other), 0);
	cr_assert_eq(mark(SCHED_MARK_WINDOW_BATCHES, 4), 0);
	cr_assert_eq(mark(SCHED_MARK_EPOCH, 7), 0);
	cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
	add_all(0, 2);
	cr_assert_eq(mark(SCHED_MARK_BATCH_NEXT, 0), 0);
	add(2);
	cr_assert_eq(mark(SCHED_MARK_ANY, 0), 0);
	add_all(3, 5);
	cr_assert_eq(mark(SCHED_MARK_ORDERED, 0), 0);
	add(5);
	say_again(st, other, text, sizeof(text));
	cr_assert_str_eq(text, "W4 e7 b0 0 1 b1 2 a0 3 4 o0 5 ");
	check_same(st, other, text);
	cr_assert_eq(mark(SCHED_MARK_SEEK, 4), 0);
	sched_stream_replace(w.s, other);
	say_again(st, other, text, sizeof(text));
	cr_assert_str_eq(text, "W4 a0 e7 b1 4 o0 5 ");
	check_same(st, other, text);
	cr_assert_eq(mark(SCHED_MARK_REPEAT, 3), 0);
	cr_assert_eq(mark(SCHED_MARK_SEEK, 10), 0);
	sched_stream_replace(w.s, other);
	say_again(st, other, text, sizeof(text));
	cr_assert_str_eq(text, "W4 e7 b0 0 1 b1 2 a0 3 4 o0 5 r3 S10 ");
	check_same(st, other, text);
	world_close(&w);
}

Test(marks, any_list_given_back)
{
	static const enum sched_mark kinds[] = {SCHED_MARK_BATCH_NEXT, SCHED_MARK_BATCH, SCHED_MARK_EPOCH_NEXT, SCHED_MARK_EPOCH,
						SCHED_MARK_ANY, SCHED_MARK_ORDERED, SCHED_MARK_WINDOW_BYTES, SCHED_MARK_REPEAT};
	uint64_t seed = 1;
	char text[8192];
	uint32_t other;

	setup(64, 60);
	cr_assert_eq(sched_stream_create(w.s, &other), 0);
	for (unsigned round = 0; round < 400; round++) {
		unsigned n_repeats = 0;

		sched_stream_replace(w.s, st);
		sched_stream_replace(w.s, other);
		for (unsigned k = 0; k < 40; k++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			unsigned draw = (unsigned)(seed >> 33), kind = draw / 16 % 8;

			if (draw % 2)
				add(draw / 2 % 60);
			else if (kinds[kind] != SCHED_MARK_REPEAT || (round % 2 && n_repeats++ < 2))
				cr_assert_eq(mark(kinds[kind], 2 + draw / 128 % 3), 0);
		}
		uint64_t visits = sch_visits(&w.s->streams[st]);
		cr_assert_eq(mark(SCHED_MARK_SEEK, (seed >> 40) % (visits + 1)), 0);
		say_again(st, other, text, sizeof(text));
		check_same(st, other, text);
	}
	world_close(&w);
}
