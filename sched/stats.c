/* SPDX-License-Identifier: Apache-2.0 */
/* sched/stats.c - what the engine knows, for status and tests. Callers: fs/engine.c, tools/sim. */
#include "sched/sched_i.h"

static uint64_t stats_memory(const struct sched *s)
{
	uint64_t n = sch_positions_bytes(s) + sch_pages_bytes(s);

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		n += st->n_blocks * (ENTRY_BLOCK * sizeof(struct entry) + 2 * sizeof(void *));
		n += (uint64_t)st->cap_wide * sizeof(struct wide_len) + (uint64_t)st->cap_batches * 4;
		n += (uint64_t)st->cap_runs * sizeof(struct batch_run);
		n += (uint64_t)st->cap_epochs * sizeof(struct epoch_mark);
		n += (uint64_t)st->cap_spans * sizeof(struct any_span);
	}
	return n;
}

/* The least time for what the written orders name and is not done: compute, or the bytes that must come. What is guessed, an epoch
 * like the last one, is none. */
static double stats_bound_s(const struct sched *s)
{
	double by_reader = 0, by_origin = 0;
	uint64_t absent = 0;
	bool is_any = false;

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];
		double t;

		if (!st->is_live || st->is_internal || st->low_visit >= sch_visits(st))
			continue;
		is_any = true;
		t = (double)(sch_visits(st) - st->low_visit) * st->tau_ns / (double)SCH_SEC;
		by_reader = t > by_reader ? t : by_reader;
	}
	if (!is_any || s->origin.bytes_per_s <= 0)
		return by_reader;
	for (uint32_t p = sch_bitmap_next(&s->tree[T_ABSENT], s->pos.low); p != SCH_NONE; p = sch_bitmap_next(&s->tree[T_ABSENT], p + 1))
		absent += sch_position_stream(s, p)->is_internal ? 0 : sch_position_bytes(s, p);
	by_origin = (double)absent / s->origin.bytes_per_s;
	return by_reader > by_origin ? by_reader : by_origin;
}

/* The least time for what was read so far. The origin's rate is what it gave lately, so what it says is no more than what was taken. */
static double stats_bound_read_s(const struct sched *s)
{
	double ran = (double)s->ran_ns / (double)SCH_SEC, all = (double)s->reading_ns / (double)SCH_SEC, origin = 0;

	if (s->origin.bytes_per_s > 0)
		origin = (double)sch_least_bytes(s->least) / s->origin.bytes_per_s;
	origin = origin < all ? origin : all;
	return ran > origin ? ran : origin;
}

void sched_stats_get(const struct sched *s, struct sched_stats *ret)
{
	*ret = (struct sched_stats){.needed_bytes = s->needed_bytes,
				    .demand_misses = s->demand_misses,
				    .prefetch_useful_bytes = s->useful_bytes,
				    .prefetch_late_bytes = s->late_bytes,
				    .prefetch_wasted_bytes = s->wasted_bytes,
				    .inflight_bytes = s->flight_bytes,
				    .entry_bytes = stats_memory(s),
				    .origin_bytes_per_s = s->origin.bytes_per_s,
				    .origin_latency_s = s->origin.latency_ns / (double)SCH_SEC,
				    .bound_bytes = sch_least_bytes(s->least),
				    .bound_shift = sch_least_shift(s->least),
				    .bound_s = stats_bound_s(s),
				    .read_s = (double)s->reading_ns / (double)SCH_SEC,
				    .bound_read_s = stats_bound_read_s(s),
				    .concurrency = s->concurrency};
	ret->missing_entries = s->n_missing_entries;
	for (int i = 0; i < SCHED_STALLS; i++)
		ret->stall_s[i] = s->stall_ns[i] / (double)SCH_SEC;
	for (uint32_t i = 0; i < s->n_frames; i++) {
		if (s->frames[i].page == SCH_NONE)
			continue;
		if (s->frames[i].fetches != SCH_NONE)
			ret->inflight_pages += s->frames[i].is_held;
		else
			ret->resident_pages++;
	}
	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		if (!st->is_live || st->is_internal)
			continue;
		ret->pending_entries += sch_visits(st) - sch_min64(st->low_visit, sch_visits(st));
	}
}

/* Counted when somebody asks: names that do not exist are rare. */
static uint64_t stream_missing(const struct sched *s, const struct stream *st)
{
	uint64_t n = 0;

	for (uint64_t i = 0; s->n_missing_entries && i < st->n_entries; i++) {
		const struct file *f = sch_file(s, st->blocks[i / ENTRY_BLOCK][i % ENTRY_BLOCK].file);

		n += f && f->state == FILE_MISSING;
	}
	return n;
}

int sched_stream_stats_get(const struct sched *s, uint32_t stream, struct sched_stream_stats *ret)
{
	const struct stream *st;
	uint64_t entry;
	uint32_t batch;

	if (stream >= s->n_streams || !s->streams[stream].is_live)
		return -ENOENT;
	st = &s->streams[stream];
	*ret = (struct sched_stream_stats){.entries = st->n_entries,
					   .pending = sch_visits(st) - sch_min64(st->low_visit, sch_visits(st)),
					   .missing = stream_missing(s, st),
					   .skipped = st->n_skipped,
					   .low = st->low_visit,
					   .high = sch_max64(st->high_visit, st->low_visit),
					   .tau_s = st->tau_ns / (double)SCH_SEC,
					   .confidence = st->confidence,
					   .is_speculating = st->is_speculating};
	if (sch_visits(st) > 0) {
		uint64_t v = sch_min64(st->low_visit, sch_visits(st) - 1);

		entry = sch_visit_entry(st, v);
		batch = sch_entry_batch(st, entry);
		ret->epoch = sch_visit_epoch(st, v);
		if (st->n_epochs && st->n_repeats == 0 && ret->epoch > 0)
			ret->epoch = st->epochs[ret->epoch - 1].label;
		ret->batch = batch == SCH_NONE ? 0 : sch_batch_number(st, batch);
	}
	return 0;
}

void sched_windows_get(const struct sched *s, uint64_t ret[SCHED_STREAMS_MAX])
{
	static const enum page_tree here[] = {T_FLIGHT, T_RAM, T_BOTH};

	memset(ret, 0, SCHED_STREAMS_MAX * sizeof(*ret));
	for (unsigned t = 0; t < sizeof(here) / sizeof(here[0]); t++) {
		const struct sch_bitmap *b = &s->tree[here[t]];

		for (uint32_t p = sch_bitmap_next(b, 0); p != SCH_NONE; p = sch_bitmap_next(b, p + 1))
			if (sch_position_owner(s, p) < SCHED_STREAMS_MAX && p >= sch_position_stream(s, p)->low)
				ret[sch_position_owner(s, p)] += sch_position_bytes(s, p);
	}
}
