/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/rewind.c - readers that go back in their order without a word (@seek): a loader that begins the epoch again, a step repeated
 * from a checkpoint, a list that is read once more.
 *
 * What was read is done, so such reads belong to no visit to come. The last REWIND_READS pages of that kind, with no other between them,
 * are looked for among the visits before the low mark: where nearly all of them stand close together the readers are, and the stream
 * goes on from there. A search costs some nanoseconds a visit: after each one, twice as many strange pages must come before the next,
 * half as many again after MATCHES_HALVE that were right. So an order that is wrong costs a few searches, and one window for each (law 9).
 *
 * Callers: progress.c.
 */
#include "sched/sched_i.h"

#define REWIND_HITS (REWIND_READS - 1)
#define LOOK_BACK (2ULL << 20)
#define SPAN_MIN 8u
#define WAIT_MAX (1u << 30)
#define MATCHES_HALVE 256u
#define CONFIDENCE 0.9 /* then: as after a few wrong reads */

void sch_rewind_reset(struct stream *st)
{
	st->n_back = 0;
	st->back_wait = REWIND_READS;
}

void sch_rewind_matched(struct stream *st)
{
	st->n_back = 0;
	if (st->n_matched % MATCHES_HALVE == 0 && st->back_wait > REWIND_READS)
		st->back_wait /= 2;
}

/* The read that the visit may be: which of them, or REWIND_READS. */
static uint32_t back_index(const struct stream *st, const struct span *sp)
{
	uint32_t i = 0;

	while (i < REWIND_READS && (st->back[i].file != sp->file || st->back[i].chunk_no - sp->first >= sp->n))
		i++;
	return i;
}

static uint32_t back_count(const uint64_t *at, uint64_t v, uint64_t span)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < REWIND_READS; i++)
		n += at[i] && at[i] + span > v;
	return n;
}

/* The visits of the reads, + 1: the last place where nearly all of them are within `span`. False: nowhere. */
static bool rewind_find(const struct sched *s, const struct stream *st, uint64_t *ret_from, uint64_t *ret_to)
{
	uint64_t end = st->low_visit, from = end > LOOK_BACK ? end - LOOK_BACK : 0, at[REWIND_READS] = {0};
	uint64_t span = sch_max64(sch_min64((uint64_t)st->reorder_seen + SPAN_MIN, (end - from) / 8), SPAN_MIN);
	bool is_found = false;

	for (uint64_t v = from; v < end; v++) {
		struct span sp;
		uint32_t i;

		sch_visit_span(s, st, v, &sp);
		i = sp.n ? back_index(st, &sp) : REWIND_READS;
		if (i == REWIND_READS)
			continue;
		for (; i < REWIND_READS; i++)
			if (st->back[i].file == sp.file && st->back[i].chunk_no - sp.first < sp.n)
				at[i] = v + 1;
		if (back_count(at, v + 1, span) < REWIND_HITS)
			continue;
		is_found = true;
		*ret_to = v;
		*ret_from = v;
		for (i = 0; i < REWIND_READS; i++)
			if (at[i] && at[i] + span > v + 1)
				*ret_from = sch_min64(*ret_from, at[i] - 1);
	}
	return is_found;
}

/* The reads that led here are done. */
static void rewind_done(struct sched *s, uint32_t stream, uint64_t to)
{
	const struct stream *st = &s->streams[stream];
	uint32_t last = SCH_NONE;

	for (uint32_t p = st->low; p < s->pos.n; p++) {
		const struct page *pg = &s->pages[s->pos.page[p]];
		struct span sp = {.file = pg->file, .first = pg->chunk_no, .n = 1};

		if (sch_position_owner(s, p) != stream || sch_position_is_done(s, p))
			continue;
		if (sch_position_visit(s, p) > to)
			break;
		if (back_index(st, &sp) == REWIND_READS)
			continue;
		sch_position_done(s, p);
		last = p;
	}
	if (last != SCH_NONE)
		sch_progress_arrive(s, stream, last);
}

void sch_rewind_note(struct sched *s, uint32_t stream, uint32_t file, uint64_t chunk_no)
{
	struct stream *st = &s->streams[stream];
	uint64_t from, to;

	if (!st->is_live || st->is_internal || st->low_visit == 0)
		return;
	st->back[st->n_back++ % REWIND_READS] = (struct back){.chunk_no = chunk_no, .file = file};
	if (st->n_back < st->back_wait)
		return;
	st->back_wait = sch_min32(st->back_wait * 2, WAIT_MAX);
	if (!rewind_find(s, st, &from, &to))
		return;
	sch_progress_seek(s, stream, from);
	st->confidence = CONFIDENCE;
	rewind_done(s, stream, to);
	st->n_back = 0;
}
