/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/list.c - a stream's list given back in the words that it was written in, so that writing them again says the same order.
 *
 * Without a repeat, or past the last one, it begins at the entry that is next, with the marks that hold there. While a repeat goes on
 * the list is given whole, and a @seek behind it: what is left of a pass cannot be said otherwise.
 *
 * Callers: fs/engine_ctl.c. All marks stand before the entry they were written before; of those at one entry repeats come first, as the
 * end of a repeat and an @epoch there mean the same in either order, and an epoch before the first batch under it.
 */
#include "sched/sched_i.h"

enum stage { WINDOW, ANY, EPOCH_BEFORE, BATCH, EPOCH_BEHIND, BODY, SEEK, END };

static const struct stream *stream_of(const struct sched *s, uint32_t stream)
{
	return stream < s->n_streams && s->streams[stream].is_live ? &s->streams[stream] : NULL;
}

/* Where an any-span begins or ends; UINT64_MAX: nowhere (yet). */
static uint64_t edge_at(const struct stream *st, uint32_t edge)
{
	if (edge / 2 >= st->n_spans)
		return UINT64_MAX;
	return edge % 2 ? st->spans[edge / 2].to : st->spans[edge / 2].from;
}

static uint64_t epoch_at(const struct stream *st, uint32_t epoch)
{
	return epoch < st->n_epochs ? st->epochs[epoch].entry : UINT64_MAX;
}

static uint64_t batch_at(const struct stream *st, uint32_t batch)
{
	return batch < st->n_batches ? st->batch_start[batch] : UINT64_MAX;
}

static uint64_t repeat_at(const struct stream *st, uint32_t repeat)
{
	return repeat < st->n_repeats ? st->repeats[repeat].end : UINT64_MAX;
}

/* How many of the sorted table stand before the entry. */
static uint32_t count_before(const struct stream *st, uint64_t (*at)(const struct stream *st, uint32_t i), uint32_t n, uint64_t entry)
{
	uint32_t lo = 0, hi = n;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (at(st, mid) < entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

int sched_list_begin(const struct sched *s, uint32_t stream, struct sched_list *ret)
{
	const struct stream *st = stream_of(s, stream);
	uint64_t visits;

	if (!st)
		return -ENOENT;
	visits = sch_visits(st);
	*ret = (struct sched_list){.stage = st->low_visit >= visits ? END : WINDOW};
	if (st->n_repeats && st->low_visit < st->repeats[st->n_repeats - 1].visits) {
		ret->seek = st->low_visit;
		return 0;
	}
	ret->entry = sch_visit_entry(st, st->low_visit);
	ret->repeat = st->n_repeats;
	ret->edge = count_before(st, edge_at, 2 * st->n_spans, ret->entry);
	ret->epoch = count_before(st, epoch_at, st->n_epochs, ret->entry);
	ret->batch = count_before(st, batch_at, st->n_batches, ret->entry);
	return 0;
}

static bool put_mark(struct sched_item *ret, enum sched_mark mark, uint64_t value)
{
	*ret = (struct sched_item){.is_mark = true, .mark = mark, .value = value};
	return true;
}

/* The epoch that holds where the list begins stands before its batch, or, none of its own batches having come yet, behind it. */
static bool put_epoch(const struct stream *st, const struct sched_list *at, bool is_before, struct sched_item *ret)
{
	const struct epoch_mark *e;

	if (at->epoch == 0 || at->epoch > st->n_epochs)
		return false;
	e = &st->epochs[at->epoch - 1];
	return (e->batch < at->batch) == is_before && put_mark(ret, SCHED_MARK_EPOCH, e->label);
}

/* One of the marks that hold where the list begins, if there is one. */
static bool put_head(const struct stream *st, const struct sched_list *at, struct sched_item *ret)
{
	switch ((enum stage)at->stage) {
	case WINDOW:
		if (st->window_bytes)
			return put_mark(ret, SCHED_MARK_WINDOW_BYTES, st->window_bytes);
		return st->window_batches && put_mark(ret, SCHED_MARK_WINDOW_BATCHES, st->window_batches);
	case ANY:
		return at->edge % 2 && put_mark(ret, SCHED_MARK_ANY, 0);
	case EPOCH_BEFORE:
		return put_epoch(st, at, true, ret);
	case BATCH:
		return at->batch > 0 && at->batch <= st->n_batches &&
		       put_mark(ret, SCHED_MARK_BATCH, sch_batch_number(st, at->batch - 1));
	case EPOCH_BEHIND:
		return put_epoch(st, at, false, ret);
	default:
		return false;
	}
}

static bool put_body(const struct stream *st, struct sched_list *at, struct sched_item *ret)
{
	if (repeat_at(st, at->repeat) <= at->entry)
		return put_mark(ret, SCHED_MARK_REPEAT, st->repeats[at->repeat++].times);
	if (edge_at(st, at->edge) <= at->entry)
		return put_mark(ret, at->edge++ % 2 ? SCHED_MARK_ORDERED : SCHED_MARK_ANY, 0);
	if (epoch_at(st, at->epoch) <= at->entry && st->epochs[at->epoch].batch <= at->batch)
		return put_mark(ret, SCHED_MARK_EPOCH, st->epochs[at->epoch++].label);
	if (batch_at(st, at->batch) <= at->entry) {
		at->batch++;
		return put_mark(ret, SCHED_MARK_BATCH, sch_batch_number(st, at->batch - 1));
	}
	*ret = (struct sched_item){0};
	return sch_entry_get(st, at->entry++, &ret->entry);
}

size_t sched_list_next(const struct sched *s, uint32_t stream, struct sched_list *at, struct sched_item *ret, size_t n)
{
	const struct stream *st = stream_of(s, stream);
	size_t k = 0;

	while (st && k < n && at->stage != END) {
		bool is_put = at->stage == BODY	  ? put_body(st, at, &ret[k])
			      : at->stage == SEEK ? at->seek > 0 && put_mark(&ret[k], SCHED_MARK_SEEK, at->seek)
						  : put_head(st, at, &ret[k]);

		at->stage += at->stage != BODY || !is_put;
		k += is_put;
	}
	return k;
}
