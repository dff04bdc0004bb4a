/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/rate.c - what an origin (or the tier) gives: bytes a second while busy, latency, and how many
 * fetches it takes to get there.
 *
 * Throughput is bytes over busy time (at least one fetch outstanding), in windows of 8 fetches and 20 ms. The
 * number of outstanding fetches is twice what that rate holds at the least latency, which is looked for again every 5 s
 * with few of them. Where latency varies that is too little, and fewer fetches give a lower rate: so now and then more are tried, and
 * kept if they bring more, or less, if it brings no less.
 *
 * Callers: frames.c. Invariant: 1 <= concurrency <= inflight_max.
 */
#include "sched/sched_i.h"

#define WINDOW_FETCHES 8u
#define WINDOW_NS (20 * SCH_MSEC)
#define CONCURRENCY_MIN 4u
#define MIN_NS (5 * SCH_SEC)
#define NET_SHARE 16
#define DRAIN_SHARE 8u
#define TRIAL_FETCHES 32u
#define TRIAL_STEP 1.5
#define TRIAL_GAIN 1.1
#define TRIAL_LOSS 0.95
#define BOOST_MAX 16.0
#define HOLD 32u
#define DECAY 8u

void sch_rate_busy(struct rate *r, uint64_t now_ns, bool was_busy)
{
	if (was_busy && now_ns > r->win_last_ns)
		r->win_busy_ns += now_ns - r->win_last_ns;
	r->win_last_ns = now_ns;
}

static double trial_clamp(double boost)
{
	return boost < 1 ? 1 : boost > BOOST_MAX ? BOOST_MAX : boost;
}

/* A trial is over: keep what it tried? Up: if it brought more; down: if nothing was lost. */
static void trial_end(struct rate *r, double per_s)
{
	bool is_up = r->boost > r->boost_before;
	bool is_kept = per_s > r->before_per_s * (is_up ? TRIAL_GAIN : TRIAL_LOSS);

	r->is_trial = false;
	r->hold = is_kept ? 0 : HOLD;
	if (is_kept)
		return;
	r->boost = r->boost_before;
	r->is_down = is_up && r->boost > 1; /* the other way next time: what was kept may have been chance */
	if (r->is_down)
		r->hold = 1;
}

static void trial_begin(struct rate *r, double per_s)
{
	r->before_per_s = per_s;
	r->boost_before = r->boost;
	r->boost = trial_clamp(r->is_down ? r->boost / TRIAL_STEP : r->boost * TRIAL_STEP);
	r->is_trial = r->boost != r->boost_before;
	r->hold = r->is_trial ? 0 : HOLD;
}

/* Only while the number of fetches is what limits: otherwise nothing can be learned. */
static void rate_trial(struct sched *s, struct rate *r)
{
	double per_s;

	if (r->boost < 1)
		r->boost = r->boost_before = 1;
	if (!r->win_was_full)
		return;
	r->trial_ns += r->win_busy_ns;
	r->trial_bytes += r->win_bytes;
	r->trial_count += r->win_count;
	if (r->trial_count < sch_max32(TRIAL_FETCHES, 2 * s->concurrency))
		return;
	per_s = (double)r->trial_bytes * (double)SCH_SEC / (double)r->trial_ns;
	if (r->is_trial)
		trial_end(r, per_s);
	else if (r->hold > 0)
		r->hold--;
	if (!r->is_trial && r->hold == 0)
		trial_begin(r, per_s);
	r->trial_ns = r->trial_bytes = r->trial_count = 0;
}

/*
 * Twice what the link holds at its least latency. Where the origin gives more to more requests, the rate grows, and
 * with it this figure, until it does not; a serial origin stays at a few. Every fetch in flight is a slot
 * that keeps nothing.
 */
static void rate_concurrency(struct sched *s, const struct rate *r, double sample)
{
	double rate = r->win_was_full && sample > r->bytes_per_s ? sample : r->bytes_per_s;
	double each = (double)r->win_bytes / r->win_count;
	double n = each > 0 ? 2 * rate * r->latency_ns / (double)SCH_SEC / each + 2 : CONCURRENCY_MIN;
	uint32_t to;

	n = (n > CONCURRENCY_MIN ? n : CONCURRENCY_MIN) * r->boost;
	to = n < 65536 ? (uint32_t)n : 65536;
	if (!r->win_was_full && to < s->concurrency) /* too few requests to tell; but one sample by chance is not for ever */
		to = s->concurrency - (s->concurrency - to + DECAY - 1) / DECAY;
	s->concurrency = sch_min32(sch_max32(to, CONCURRENCY_MIN), s->cfg.inflight_max);
	s->flight_enough = (uint64_t)(s->concurrency * each);
}

/*
 * An eighth of what the link carries in the least time that a request took besides its own bytes: requests are under way side by side. A
 * page's own time on the link would make whole pages look cheap, the more so the more of them are fetched.
 */
static double rate_overhead(const struct rate *r)
{
	double net_ns = r->net_ns < r->net_before_ns ? r->net_ns : r->net_before_ns, least_ns = r->latency_ns / NET_SHARE;

	return r->bytes_per_s * (net_ns > least_ns ? net_ns : least_ns) / (double)SCH_SEC / 8;
}

static void rate_sample(struct sched *s, struct rate *r, bool is_origin)
{
	double sample = (double)r->win_bytes * (double)SCH_SEC / (double)r->win_busy_ns;

	if (r->bytes_per_s > 0) {
		r->bytes_per_s += (sample - r->bytes_per_s) * 0.3;
	} else { /* until now what their own bytes took was not known */
		double own_ns = (double)r->win_bytes / r->win_count * (double)SCH_SEC / sample;

		r->bytes_per_s = sample;
		r->net_ns -= own_ns < r->net_ns ? own_ns : r->net_ns;
	}
	if (is_origin && r->drain == 0) {
		rate_trial(s, r);
		rate_concurrency(s, r, sample);
	}
	r->overhead_bytes = rate_overhead(r);
	r->win_bytes = r->win_busy_ns = 0;
	r->win_count = 0;
	r->win_was_full = false;
}

/*
 * A queue of our own making looks like latency, and would be allowed to grow with it: now and then let it run dry, until
 * all that is in flight and a few more have come.
 */
static void rate_drain(struct sched *s, struct rate *r)
{
	r->drain = s->flight.count + WINDOW_FETCHES;
	s->concurrency = sch_max32(s->concurrency / DRAIN_SHARE, CONCURRENCY_MIN);
}

void sch_rate_landed(struct sched *s, bool from_tier, uint32_t bytes, uint64_t latency_ns)
{
	struct rate *r = from_tier ? &s->tier : &s->origin;
	double lat = (double)latency_ns, net = lat;

	if (r->bytes_per_s > 0)
		net -= bytes * (double)SCH_SEC / r->bytes_per_s;
	if (r->drain > 0)
		r->drain--;
	/* The least of the last 5 to 10 s tells what a request costs when nothing stands before it. */
	if (s->now_ns - r->min_since_ns > MIN_NS || r->min_since_ns == 0) {
		if (r->min_since_ns && !from_tier)
			rate_drain(s, r);
		r->min_before_ns = r->min_since_ns ? r->min_ns : lat;
		r->net_before_ns = r->min_since_ns ? r->net_ns : net;
		r->min_ns = lat;
		r->net_ns = net;
		r->min_since_ns = s->now_ns;
	}
	r->min_ns = lat < r->min_ns ? lat : r->min_ns;
	r->net_ns = net < r->net_ns ? net : r->net_ns;
	r->latency_ns = r->min_ns < r->min_before_ns ? r->min_ns : r->min_before_ns;
	/* One that hung says little about the others: else nobody would be called late for a long time after. */
	if (latency_ns > sch_late_ns(s))
		lat = (double)sch_late_ns(s) / 10;
	r->latency_avg_ns += (lat - r->latency_avg_ns) / 16;
	r->latency_dev_ns += ((lat > r->latency_avg_ns ? lat - r->latency_avg_ns : r->latency_avg_ns - lat) - r->latency_dev_ns) / 16;
	r->win_bytes += bytes;
	r->win_count++;
	/* Before the first sample something else limits: START_BYTES. */
	if (!from_tier && (s->flight.count >= s->n_late + s->concurrency || r->bytes_per_s <= 0))
		r->win_was_full = true;
	/* The clock runs up to now: the fetch is still counted as outstanding here. */
	sch_rate_busy(r, s->now_ns, true);
	if (r->win_count >= WINDOW_FETCHES && r->win_busy_ns >= WINDOW_NS)
		rate_sample(s, r, !from_tier);
}
