/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/rate.c - what an origin (or the tier) gives: bytes a second while busy, latency, and how many
 * fetches it takes to get there.
 *
 * Throughput is bytes over busy time (at least one fetch outstanding), in windows of 8 fetches and 20 ms. The
 * number of outstanding fetches grows by half while that brings 5 % more, and shrinks by a fifth when latency has
 * doubled for nothing.
 *
 * Callers: frames.c. Invariant: 1 <= concurrency <= inflight_max.
 */
#include "sched/sched_i.h"

#define WINDOW_FETCHES 8u
#define WINDOW_NS (20 * SCH_MSEC)
#define CONCURRENCY_MIN 4u

void sch_rate_busy(struct rate *r, uint64_t now_ns, bool was_busy)
{
	if (was_busy && now_ns > r->win_last_ns)
		r->win_busy_ns += now_ns - r->win_last_ns;
	r->win_last_ns = now_ns;
}

static void rate_concurrency(struct sched *s, struct rate *r, double sample, double latency_ns)
{
	bool is_more = sample > 1.05 * r->best;

	if (is_more)
		r->best = sample;
	else
		r->best += (sample - r->best) / 16;
	if (r->win_was_full && (is_more || latency_ns < 1.5 * r->latency_ns))
		s->concurrency += s->concurrency / 2 + 1;
	else if (r->win_was_full && latency_ns > 4 * r->latency_ns)
		s->concurrency -= s->concurrency / 5;
	s->concurrency = sch_min32(sch_max32(s->concurrency, CONCURRENCY_MIN), s->cfg.inflight_max);
}

static void rate_sample(struct sched *s, struct rate *r, bool is_origin)
{
	double sample = (double)r->win_bytes * (double)SCH_SEC / (double)r->win_busy_ns;

	r->bytes_per_s = r->bytes_per_s > 0 ? r->bytes_per_s + (sample - r->bytes_per_s) * 0.3 : sample;
	if (is_origin)
		rate_concurrency(s, r, sample, r->win_latency_ns / r->win_count);
	r->overhead_bytes = r->bytes_per_s * r->latency_ns / (double)SCH_SEC / 8;
	r->win_bytes = r->win_busy_ns = 0;
	r->win_count = 0;
	r->win_latency_ns = 0;
	r->win_was_full = false;
}

void sch_rate_landed(struct sched *s, bool from_tier, uint32_t bytes, uint64_t latency_ns)
{
	struct rate *r = from_tier ? &s->tier : &s->origin;
	double lat = (double)latency_ns;

	/* The low ones tell what a request costs when nothing stands before it. */
	if (r->latency_ns <= 0 || lat < r->latency_ns)
		r->latency_ns = lat;
	else
		r->latency_ns += ((lat < 2 * r->latency_ns ? lat : 2 * r->latency_ns) - r->latency_ns) / 64;
	r->latency_avg_ns += (lat - r->latency_avg_ns) / 16;
	r->win_bytes += bytes;
	r->win_latency_ns += lat;
	r->win_count++;
	if (!from_tier && s->flight.count >= s->n_late + s->concurrency)
		r->win_was_full = true;
	/* The clock runs up to now: the fetch is still counted as outstanding here. */
	sch_rate_busy(r, s->now_ns, true);
	if (r->win_count >= WINDOW_FETCHES && r->win_busy_ns >= WINDOW_NS)
		rate_sample(s, r, !from_tier);
}
