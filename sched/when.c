/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/when.c - forestall: how far ahead fetching may run, so that it is late nowhere and early nowhere.
 *
 * From the frontier (the lowest high mark) on, missing bytes m are added up; at a distance of d positions the
 * reader arrives after d * tau. Where 1.25 m / B + 1.5 L + backlog (or mean latency and 6 deviations) >= d * tau the origin would be late if it idled
 * now, so fetching may run up to the last such place. Until B and tau are known it may run as
 * far as the window goes. Positions of one batch share a deadline, as far as its readers do read it at once: d counts from there.
 *
 * Callers: sched.c, fetch.c, nohint.c, positions.c. The bias of 1.25: notes: under-estimating the origin by
 * 15 % costs 10-15 % of time, over-estimating by 25 % nothing.
 */
#include "sched/sched_i.h"

#define EVALUATE_NS (10 * SCH_MSEC)
#define BY_BIT 512u
#define FLOOR 4u
#define TIER_FLOOR 4u
#define TIER_NS (10.0 * (double)SCH_MSEC)
#define TIER_JITTER 4.0
#define JITTER 6.0

/* Seconds of the merged order's reader a position, in ns; 0: not known. */
double sch_when_tau(const struct sched *s)
{
	double rate = 0;

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		if (!st->is_live || !st->is_speculating || st->low_visit >= sch_visits(st))
			continue;
		if (st->tau_ns > 0)
			rate += 1 / st->tau_ns;
		else if (st->n_matched > 0)
			return 0;
	}
	return rate > 0 ? 1 / rate : 0;
}

/* Where the readers are: the lowest high mark of those who have begun. */
static uint32_t when_frontier(const struct sched *s, uint32_t *ret_slack)
{
	uint32_t f = SCH_NONE;
	uint64_t slack = 0, shards = 0;

	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		if (!st->is_live || !st->is_speculating || st->low_visit >= sch_visits(st))
			continue;
		f = sch_min32(f, st->high);
		if (st->n_batches)
			slack += sch_stream_burst(st);
		/* Whole files read by several at once: when one ends, the head of any of the next files is due. */
		if (st->span_max > 1)
			shards += st->reorder_seen;
	}
	slack += sch_min64(shards, s->slots / 4);
	*ret_slack = (uint32_t)sch_min64(slack, s->horizon);
	return f == SCH_NONE ? s->pos.low : f;
}

uint64_t sch_when_deadline(const struct sched *s, uint32_t p)
{
	uint32_t slack, f = when_frontier(s, &slack);
	double tau = sch_when_tau(s);
	double d = p > f + slack ? p - f - slack : 0;

	if (tau <= 0)
		tau = 1000; /* no pace known: only the order of deadlines means something */
	d *= tau;
	return s->now_ns + (d < 1e15 ? (uint64_t)d : (uint64_t)1e15);
}

struct walk {
	double tau, need_ns_per_byte, fixed_ns, missing, each;
	uint32_t frontier;
};

static bool walk_is_late(struct walk *w, uint32_t p, uint32_t count)
{
	double d = p > w->frontier ? (double)(p - w->frontier) : 0;

	w->missing += count * w->each;
	return w->missing * w->need_ns_per_byte + w->fixed_ns >= d * w->tau;
}

/* Last place where the origin would be late. */
static uint32_t when_walk(const struct sched *s, struct walk *w)
{
	const struct sch_bitmap *a = &s->tree[T_ABSENT];
	uint32_t limit = 0, p = sch_bitmap_next(a, s->pos.low), n;

	for (n = 0; p != SCH_NONE && n < BY_BIT; n++, p = sch_bitmap_next(a, p + 1))
		if (walk_is_late(w, p, 1))
			limit = p;
	while (p != SCH_NONE) {
		uint64_t word = a->words[0][p / 64] & (~0ULL << (p % 64));
		uint32_t end = (p | 63u);

		if (walk_is_late(w, p, (uint32_t)__builtin_popcountll(word)))
			limit = end;
		if (end == UINT32_MAX)
			break;
		p = sch_bitmap_next(a, end + 1);
	}
	return limit;
}

/*
 * How far ahead the tier is read: as long as a read of it takes. The reader comes no faster than what the origin still has to bring on the way.
 * What is brought into memory sooner takes room from what neither of the two would hold else.
 */
static uint32_t when_tier(const struct sched *s, const struct walk *w)
{
	double tier_ns = TIER_NS + s->tier.latency_avg_ns + TIER_JITTER * s->tier.latency_dev_ns, pace_ns = w->tau, origin_ns, n;
	uint32_t far = (uint32_t)sch_min64((uint64_t)w->frontier + TIER_FLOOR + (uint64_t)(tier_ns / w->tau), s->pos.n);

	if (far <= w->frontier)
		return far;
	n = sch_bitmap_count(&s->tree[T_ABSENT], w->frontier, far) + sch_bitmap_count(&s->tree[T_FLIGHT], w->frontier, far);
	origin_ns = n * w->each * (double)SCH_SEC / s->origin.bytes_per_s / (far - w->frontier);
	pace_ns = pace_ns > origin_ns ? pace_ns : origin_ns;
	return (uint32_t)sch_min64(far, (uint64_t)w->frontier + TIER_FLOOR + (uint64_t)(tier_ns / pace_ns));
}

static void when_limits(struct sched *s, double tau)
{
	uint32_t slack;
	struct walk w = {.tau = tau, .each = (double)(s->fetch_sizes ? s->fetch_sizes : s->cfg.chunk_bytes)};
	double jitter_ns;

	w.frontier = when_frontier(s, &slack);
	w.need_ns_per_byte = 1.25 * (double)SCH_SEC / s->origin.bytes_per_s;
	w.fixed_ns = 1.5 * s->origin.latency_ns +
		     (double)s->flight_bytes * (double)SCH_SEC / s->origin.bytes_per_s;
	/* Where latency varies the least says little: nearly all come within six mean deviations. */
	jitter_ns = s->origin.latency_avg_ns + JITTER * s->origin.latency_dev_ns;
	w.fixed_ns = w.fixed_ns > jitter_ns ? w.fixed_ns : jitter_ns;
	w.frontier = (uint32_t)sch_min64((uint64_t)w.frontier + slack, s->pos.n);
	s->run_limit = sch_max32(when_walk(s, &w), w.frontier + FLOOR);
	s->tier_limit = when_tier(s, &w);
}

static void when_readers(struct sched *s)
{
	s->n_merged = s->n_readers = 0;
	for (uint32_t i = 0; i < s->n_streams; i++) {
		const struct stream *st = &s->streams[i];

		if (!st->is_live || !st->n_matched || st->low_visit >= sch_visits(st))
			continue;
		s->n_merged++;
		s->n_readers += st->n_readers;
	}
}

void sch_when_update(struct sched *s)
{
	double tau;

	if (s->run_limit_ns && s->now_ns - s->run_limit_ns < EVALUATE_NS &&
	    s->n_done_all - s->run_limit_done < sch_max64(16, (s->pos.n - s->pos.low) / 128)) {
		if (sch_bitmap_next(&s->tree[T_ABSENT], s->pos.low) != SCH_NONE)
			s->next_ns = sch_min64(s->next_ns, s->run_limit_ns + EVALUATE_NS);
		return;
	}
	when_readers(s);
	tau = sch_when_tau(s);
	s->run_limit_ns = s->now_ns ? s->now_ns : 1;
	s->run_limit_done = s->n_done_all;
	if (tau <= 0 || s->origin.bytes_per_s <= 0) {
		s->run_limit = s->tier_limit = s->pos.n;
		return;
	}
	when_limits(s, tau);
	if (sch_bitmap_next(&s->tree[T_ABSENT], s->pos.low) != SCH_NONE)
		s->next_ns = sch_min64(s->next_ns, s->run_limit_ns + EVALUATE_NS);
}
