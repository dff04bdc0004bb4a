/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/brute.c - see brute.h.
 *
 * Demand: states are sets of pages held after each use; all evictions are tried.
 * Time: breadth first over states (units passed are the depth): set held, page in flight and units left, position, units left of the
 * use under way. In each unit: optionally evict any pages and start a fetch if the link is free, then one unit passes.
 * Starting a use as soon as its page is there loses nothing, nor does evicting only at the moment a fetch starts.
 */
#include "tests/sim/brute.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SETS (1u << BRUTE_PAGES_MAX)

unsigned brute_demand(const uint8_t *uses, size_t n, unsigned slots)
{
	unsigned cost[SETS], next[SETS], best = ~0u;

	memset(cost, 0xff, sizeof(cost));
	cost[0] = 0;
	for (size_t i = 0; i < n; i++) {
		unsigned bit = 1u << uses[i];

		memset(next, 0xff, sizeof(next));
		for (unsigned set = 0; set < SETS; set++) {
			if (cost[set] == ~0u)
				continue;
			unsigned with = set | bit, c = cost[set] + !(set & bit);

			if ((unsigned)__builtin_popcount(with) <= slots) {
				next[with] = c < next[with] ? c : next[with];
				continue;
			}
			for (unsigned v = 0; v < BRUTE_PAGES_MAX; v++) {
				unsigned less = with & ~(1u << v);

				if ((set >> v & 1) && 1u << v != bit)
					next[less] = c < next[less] ? c : next[less];
			}
		}
		memcpy(cost, next, sizeof(cost));
	}
	for (unsigned set = 0; set < SETS; set++)
		best = cost[set] < best ? cost[set] : best;
	return best;
}

/* ---- time ------------------------------------------------------------------------------------ */

struct state {
	uint8_t held, page, left, pos, busy; /* page + 1 in flight, 0: none; units left of it; busy: units left of the use */
};

struct search {
	uint8_t *seen; /* bit set over packed states */
	struct state *now, *later;
	size_t n_now, n_later, cap;
	const uint8_t *uses;
	unsigned n, slots, fetch, use;
};

static size_t pack(const struct search *q, struct state s)
{
	return ((((size_t)s.held * (BRUTE_PAGES_MAX + 1) + s.page) * (q->fetch + 1) + s.left) * (q->n + 1) + s.pos) *
		       (q->use + 1) + s.busy;
}

static void push(struct search *q, struct state s)
{
	size_t k = pack(q, s);

	if (q->seen[k / 8] >> (k % 8) & 1)
		return;
	q->seen[k / 8] |= (uint8_t)(1u << (k % 8));
	if (q->n_later == q->cap)
		abort();
	q->later[q->n_later++] = s;
}

/* One unit passes. */
static void pass(struct search *q, struct state s)
{
	if (s.page && --s.left == 0) {
		s.held |= (uint8_t)(1u << (s.page - 1));
		s.page = 0;
	}
	if (s.busy && --s.busy == 0)
		s.pos++;
	push(q, s);
}

static void moves(struct search *q, struct state s)
{
	if (s.busy == 0 && s.pos < q->n && (s.held >> q->uses[s.pos] & 1))
		s.busy = (uint8_t)q->use; /* read now: the page may go at this very instant */
	pass(q, s);
	if (s.page)
		return;
	for (unsigned p = 0; p < BRUTE_PAGES_MAX; p++) {
		struct state t = s;

		if (s.held >> p & 1)
			continue;
		t.page = (uint8_t)(p + 1);
		t.left = (uint8_t)q->fetch;
		if ((unsigned)__builtin_popcount(s.held) < q->slots) {
			pass(q, t);
			continue;
		}
		for (unsigned v = 0; v < BRUTE_PAGES_MAX; v++) {
			if (!(s.held >> v & 1))
				continue;
			t.held = (uint8_t)(s.held & ~(1u << v));
			pass(q, t);
		}
	}
}

unsigned brute_time(const uint8_t *uses, size_t n, unsigned slots, unsigned fetch, unsigned use)
{
	struct search q = {.uses = uses, .n = (unsigned)n, .slots = slots, .fetch = fetch, .use = use};
	size_t all = (size_t)SETS * (BRUTE_PAGES_MAX + 1) * (fetch + 1) * (n + 1) * (use + 1);
	unsigned units = 0;
	bool is_found = false;

	q.cap = all;
	q.seen = calloc(all / 8 + 1, 1);
	q.now = malloc(all * sizeof(*q.now));
	q.later = malloc(all * sizeof(*q.later));
	if (!q.seen || !q.now || !q.later)
		abort();
	push(&q, (struct state){0});
	while (!is_found && q.n_later > 0) {
		struct state *t = q.now;

		q.now = q.later;
		q.n_now = q.n_later;
		q.later = t;
		q.n_later = 0;
		for (size_t i = 0; i < q.n_now && !is_found; i++)
			is_found = q.now[i].pos == n;
		for (size_t i = 0; i < q.n_now && !is_found; i++)
			moves(&q, q.now[i]);
		units += !is_found;
	}
	free(q.seen);
	free(q.now);
	free(q.later);
	return units;
}
