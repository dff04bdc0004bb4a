/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/least.c - MIN's bytes, as reading goes on: OPTgen (A. Jain, C. Lin: Back to the Future, ISCA 2016) over a sample of the
 * pages (fixed-size SHARDS: C. Waldspurger et al., FAST 2015).
 *
 *   reads of pages   A   B   C   A   ...       between two reads of a page (its interval) MIN either keeps it or not;
 *   gaps of time       0   1   2   3           kept[gap] = pages kept over the gap; A is kept over 0, 1, 2 if that leaves
 *                                              kept[0..2] <= capacity. Decided when the interval ends.
 *
 * Taking intervals by their end, as long as they fit, keeps as many as can be kept at all, and so misses as few as MIN with
 * bypass (a page just read needs no room after it was handed out). Pages count the same, whatever part of them is read: for pages read as a
 * whole the figure is exact, for parts of different sizes it is what MIN by count would fetch.
 *
 * Memory is bounded twice. Pages: only those with hash <= limit are looked at, against as large a part of the capacity; when
 * they are too many, limit and capacity halve. What is reported is the sample's share of misses times all bytes read. Time: a boundary
 * stands for `width` gaps, and what is asked is room on the average of them. When the axis is full, its first half goes if hardly any
 * page was last read there (their intervals then begin later: the figure gets smaller, never larger), else width doubles.
 *
 * Callers: sched.c, files.c, stats.c, tests. Invariants
 *  1. begin <= page.last <= now for every page; now - begin < n_times * width.
 *  2. kept[i] = max[n_times + i] + the adds of its ancestors = sum over its gaps of pages kept.
 *  3. shift = 0 <=> no page was ever left out.
 */
#include "sched/least.h"

#include "sched/sched_i.h"

#define PAGES_MAX 16384u /* share of hits right to sqrt(c * (1 - c) / 16384) = 0.4 % of all at most */
#define TIMES_MAX 32768u
#define START 64u
#define FEW 8u /* pages / FEW is hardly any */

struct least_page {
	uint64_t hash; /* 0: free */
	uint64_t last; /* gap that begins with its last read */
	struct blocks have;
};

struct sch_least {
	struct sch_least_limits limits;
	struct least_page *pages; /* open addressing, at most half full */
	uint32_t n_pages, cap_pages;
	uint64_t limit, last_hash;
	uint32_t shift;

	uint64_t begin, now, width;
	uint64_t *max, *add; /* tree over the boundaries of time: nodes 1 ... 2 * n_times - 1 */
	uint32_t n_times;

	uint64_t all_bytes, need_bytes, miss_bytes; /* all that was read; of the sample, times 1 << shift */
};

uint64_t sch_least_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

int sch_least_create(const struct sch_least_limits *limits, struct sch_least **ret_l)
{
	struct sch_least *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->limits = limits ? *limits : (struct sch_least_limits){PAGES_MAX, TIMES_MAX};
	l->cap_pages = sch_min32(START, l->limits.pages_max) * 2;
	l->n_times = sch_min32(START, l->limits.times_max);
	l->limit = UINT64_MAX;
	l->width = 1;
	l->pages = calloc(l->cap_pages, sizeof(*l->pages));
	l->max = calloc((size_t)l->n_times * 2, sizeof(*l->max));
	l->add = calloc((size_t)l->n_times * 2, sizeof(*l->add));
	if (!l->pages || !l->max || !l->add) {
		sch_least_destroy(l);
		return -ENOMEM;
	}
	*ret_l = l;
	return 0;
}

void sch_least_destroy(struct sch_least *l)
{
	if (!l)
		return;
	free(l->pages);
	free(l->max);
	free(l->add);
	free(l);
}

/* ---- time: a tree with sums over ranges and their maximum --------------------------------------------------- */

static void time_sum_up(struct sch_least *l)
{
	for (uint32_t i = l->n_times - 1; i > 0; i--)
		l->max[i] = sch_max64(l->max[2 * i], l->max[2 * i + 1]);
}

/* All adds into the leaves, which then say kept[]. time_sum_up() follows. */
static void time_push_down(struct sch_least *l)
{
	for (uint32_t i = 1; i < l->n_times; i++) {
		for (uint32_t c = 2 * i; c <= 2 * i + 1; c++) {
			l->max[c] += l->add[i];
			l->add[c] += l->add[i];
		}
		l->add[i] = 0;
	}
	memset(l->add + l->n_times, 0, l->n_times * sizeof(*l->add));
}

struct range {
	uint32_t from, to; /* leaves, both included */
	uint64_t value;
};

static void time_add(struct sch_least *l, uint32_t node, uint32_t lo, uint32_t hi, const struct range *r)
{
	uint32_t mid = lo + (hi - lo) / 2;

	if (r->from > hi || r->to < lo)
		return;
	if (r->from <= lo && hi <= r->to) {
		l->max[node] += r->value;
		l->add[node] += r->value;
		return;
	}
	time_add(l, 2 * node, lo, mid, r);
	time_add(l, 2 * node + 1, mid + 1, hi, r);
	l->max[node] = l->add[node] + sch_max64(l->max[2 * node], l->max[2 * node + 1]);
}

static uint64_t time_max(const struct sch_least *l, uint32_t node, uint32_t lo, uint32_t hi, const struct range *r)
{
	uint32_t mid = lo + (hi - lo) / 2;

	if (r->from > hi || r->to < lo)
		return 0;
	if (r->from <= lo && hi <= r->to)
		return l->max[node];
	return l->add[node] + sch_max64(time_max(l, 2 * node, lo, mid, r), time_max(l, 2 * node + 1, mid + 1, hi, r));
}

static bool time_grow(struct sch_least *l)
{
	uint32_t n = l->n_times * 2;
	uint64_t *max, *add;

	if (n > l->limits.times_max)
		return false;
	max = calloc((size_t)n * 2, sizeof(*max));
	add = calloc((size_t)n * 2, sizeof(*add));
	if (!max || !add) {
		free(max);
		free(add);
		return false;
	}
	memcpy(max + n, l->max + l->n_times, l->n_times * sizeof(*max));
	free(l->max);
	free(l->add);
	l->max = max;
	l->add = add;
	l->n_times = n;
	return true;
}

/* The first half of the axis goes, unless many pages still begin there. */
static bool time_forget(struct sch_least *l)
{
	uint64_t *kept = l->max + l->n_times, begin = l->begin + l->n_times / 2 * l->width;
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->cap_pages; i++)
		n += l->pages[i].hash && l->pages[i].last < begin;
	if (n > l->n_pages / FEW)
		return false;
	for (uint32_t i = 0; i < l->cap_pages; i++)
		l->pages[i].last = sch_max64(l->pages[i].last, begin);
	memmove(kept, kept + l->n_times / 2, l->n_times / 2 * sizeof(*kept));
	memset(kept + l->n_times / 2, 0, l->n_times / 2 * sizeof(*kept));
	l->begin = begin;
	return true;
}

static void time_widen(struct sch_least *l)
{
	uint64_t *kept = l->max + l->n_times;

	for (uint32_t i = 0; i < l->n_times / 2; i++)
		kept[i] = kept[2 * i] + kept[2 * i + 1];
	memset(kept + l->n_times / 2, 0, l->n_times / 2 * sizeof(*kept));
	l->width *= 2;
}

static void time_next(struct sch_least *l)
{
	l->now++;
	if (l->now - l->begin < l->n_times * l->width)
		return;
	time_push_down(l);
	if (!time_grow(l) && !time_forget(l))
		time_widen(l);
	time_sum_up(l);
}

/* Is there room for one page over the gaps [from, now)? Then it is taken. */
static bool time_keep(struct sch_least *l, uint64_t from, uint64_t capacity)
{
	uint64_t w = l->width, a = from - l->begin, b = l->now - l->begin;
	uint32_t last = l->n_times - 1, n = 0;
	struct range r[3];

	if (a == b)
		return true;
	if (a / w == (b - 1) / w) {
		r[n++] = (struct range){(uint32_t)(a / w), (uint32_t)(a / w), b - a};
	} else {
		uint64_t in = (a + w - 1) / w, out = b / w; /* boundaries that it covers: [in, out) */

		if (a % w)
			r[n++] = (struct range){(uint32_t)(a / w), (uint32_t)(a / w), w - a % w};
		if (in < out)
			r[n++] = (struct range){(uint32_t)in, (uint32_t)out - 1, w};
		if (b % w)
			r[n++] = (struct range){(uint32_t)out, (uint32_t)out, b % w};
	}
	for (uint32_t i = 0; i < n; i++)
		if (time_max(l, 1, 0, last, &r[i]) + r[i].value > capacity * w)
			return false;
	for (uint32_t i = 0; i < n; i++)
		time_add(l, 1, 0, last, &r[i]);
	return true;
}

/* ---- pages ------------------------------------------------------------------------------------------------------ */

static struct least_page *page_slot(struct least_page *pages, uint32_t cap, uint64_t hash)
{
	uint32_t i = (uint32_t)hash & (cap - 1); /* the upper bits say what is in the sample */

	while (pages[i].hash && pages[i].hash != hash)
		i = (i + 1) & (cap - 1);
	return &pages[i];
}

static bool page_grow(struct sch_least *l)
{
	uint32_t cap = l->cap_pages * 2;
	struct least_page *pages;

	if (cap > l->limits.pages_max * 2)
		return false;
	pages = calloc(cap, sizeof(*pages));
	if (!pages)
		return false;
	for (uint32_t i = 0; i < l->cap_pages; i++)
		if (l->pages[i].hash)
			*page_slot(pages, cap, l->pages[i].hash) = l->pages[i];
	free(l->pages);
	l->pages = pages;
	l->cap_pages = cap;
	return true;
}

static void page_remove(struct sch_least *l, uint32_t hole)
{
	uint32_t mask = l->cap_pages - 1;

	l->n_pages--;
	l->pages[hole].hash = 0;
	for (uint32_t i = (hole + 1) & mask; l->pages[i].hash; i = (i + 1) & mask) {
		uint32_t home = (uint32_t)l->pages[i].hash & mask;

		if (((i - home) & mask) < ((i - hole) & mask))
			continue;
		l->pages[hole] = l->pages[i];
		l->pages[i].hash = 0;
		hole = i;
	}
}

/* Half of the pages go, and with them half of what is kept and of the capacity. Needs no memory. */
static void page_halve(struct sch_least *l)
{
	l->limit >>= 1;
	l->shift++;
	for (uint32_t i = 0; i < l->cap_pages;)
		if (l->pages[i].hash > l->limit)
			page_remove(l, i); /* another one may have moved here */
		else
			i++;
	time_push_down(l);
	for (uint32_t i = 0; i < l->n_times; i++)
		l->max[l->n_times + i] /= 2;
	time_sum_up(l);
}

/* NULL: not in the sample. */
static struct least_page *page_get(struct sch_least *l, const struct sch_least_read *r, bool *ret_is_new)
{
	uint64_t hash = sch_least_mix(sch_least_mix(r->file_key) + r->chunk_no);
	struct least_page *p;

	hash = hash ? hash : 1;
	if (hash > l->limit)
		return NULL;
	p = page_slot(l->pages, l->cap_pages, hash);
	*ret_is_new = !p->hash;
	if (p->hash)
		return p;
	while (l->n_pages >= l->cap_pages / 2 && !page_grow(l))
		page_halve(l);
	if (hash > l->limit)
		return NULL;
	p = page_slot(l->pages, l->cap_pages, hash);
	*p = (struct least_page){.hash = hash, .last = l->now};
	l->n_pages++;
	return p;
}

static uint64_t blocks_bytes(const struct blocks *m, const struct sch_least_read *r)
{
	uint32_t n = (r->chunk_bytes + r->block_bytes - 1) / r->block_bytes;
	uint64_t bytes = 0;

	for (int w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		bytes += (uint64_t)__builtin_popcountll(m->w[w]) * r->block_bytes;
	if (n > 0 && n <= SCH_BLOCKS_MAX && sch_blocks_any(m, n - 1, n - 1))
		bytes -= (uint64_t)n * r->block_bytes - r->chunk_bytes;
	return bytes;
}

void sch_least_note(struct sch_least *l, const struct sch_least_read *r, uint64_t capacity_pages)
{
	struct blocks want = {{0}}, miss;
	struct least_page *p;
	uint64_t bytes;
	bool is_new;

	sch_blocks_set(&want, r->b0, r->b1);
	bytes = blocks_bytes(&want, r);
	l->all_bytes += bytes;
	p = page_get(l, r, &is_new);
	if (!p)
		return;
	if (p->hash != l->last_hash) {
		l->last_hash = p->hash;
		time_next(l); /* moves p->last, not p */
	}
	miss = want;
	if (!is_new && time_keep(l, p->last, capacity_pages >> l->shift)) {
		for (int w = 0; w < SCH_BLOCKS_MAX / 64; w++) {
			miss.w[w] &= ~p->have.w[w];
			p->have.w[w] |= want.w[w];
		}
	} else {
		p->have = want;
	}
	p->last = l->now;
	l->need_bytes += bytes << l->shift;
	l->miss_bytes += blocks_bytes(&miss, r) << l->shift;
}

void sch_least_adopt(struct sch_least *l, const struct sch_least_read *r)
{
	bool is_new;
	struct least_page *p = page_get(l, r, &is_new);

	if (p && is_new)
		sch_blocks_set(&p->have, r->b0, r->b1);
}

uint64_t sch_least_bytes(const struct sch_least *l)
{
	if (l->shift == 0 || l->need_bytes == 0)
		return l->miss_bytes;
	return (uint64_t)((double)l->all_bytes * ((double)l->miss_bytes / (double)l->need_bytes));
}

uint32_t sch_least_shift(const struct sch_least *l)
{
	return l->shift;
}
