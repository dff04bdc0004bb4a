/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/rows.c - which visit of which stream a position is, and the blocks that it needs: 12 B for 16 positions.
 *
 * Written one by one that would be 8 B a position. But positions next to each other are mostly visits of one stream,
 * one after the other, of whole pages: of a row of 16 the first visit, a bit at each position that begins another one,
 * and the stream say all. A row where streams are mixed, or where visits were left out, has a record of its own for
 * them; so has one with visits of parts of pages.
 *
 * Callers: positions.c writes; everybody in sched/ reads, by the inline functions in sched_i.h.
 * Invariants: rows are written in the order of positions; `mixed` and `part` are referred to by one row each.
 */
#include "sched/sched_i.h"

#define FEW 64u /* records to begin with */

void sch_rows_finish(struct rows *r)
{
	free(r->row);
	free(r->mixed);
	free(r->part);
	*r = (struct rows){.whole = r->whole};
}

uint64_t sch_rows_bytes(const struct rows *r)
{
	return (uint64_t)r->cap * sizeof(*r->row) + (uint64_t)r->cap_mixed * sizeof(*r->mixed) +
	       (uint64_t)r->cap_part * sizeof(*r->part);
}

static uint32_t row_visit(const struct row *w, uint32_t i)
{
	return w->visit + sch_row_steps(w->steps, i);
}

/* Room for one more record; by an eighth at a time, as room that is not used counts. */
static int records_grow(void *array, uint32_t *cap, uint32_t n, size_t size)
{
	uint32_t more = n < FEW ? FEW : n + n / 8;

	if (n < *cap)
		return 0;
	if (sch_array_resize(array, more, size))
		return -ENOMEM;
	*cap = more;
	return 0;
}

/* Write out the first n positions of the row. */
static int row_mix(struct rows *r, struct row *w, uint32_t n)
{
	struct row_mixed *m;

	if (records_grow(&r->mixed, &r->cap_mixed, r->n_mixed, sizeof(*r->mixed)))
		return -ENOMEM;
	m = &r->mixed[r->n_mixed];
	memset(m, 0, sizeof(*m));
	for (uint32_t i = 0; i < n; i++) {
		m->visit[i] = row_visit(w, i);
		m->stream[i] = w->stream;
	}
	w->visit = r->n_mixed++;
	w->stream = SCH_ROW_MIXED;
	return 0;
}

static int row_part(struct rows *r, struct row *w)
{
	if (w->part != SCH_NONE)
		return 0;
	if (records_grow(&r->part, &r->cap_part, r->n_part, sizeof(*r->part)))
		return -ENOMEM;
	memset(r->part[r->n_part].b0, 0, SCH_ROW);
	memset(r->part[r->n_part].b1, r->whole, SCH_ROW);
	w->part = r->n_part++;
	return 0;
}

int sch_rows_reserve(struct rows *r, uint32_t n)
{
	uint32_t n_rows = n / SCH_ROW + (n % SCH_ROW != 0);

	if (n_rows <= r->cap)
		return 0;
	if (sch_array_resize(&r->row, n_rows, sizeof(*r->row)))
		return -ENOMEM;
	r->cap = n_rows;
	return 0;
}

int sch_rows_put(struct rows *r, uint32_t p, const struct seat *x)
{
	uint32_t i = p % SCH_ROW;
	struct row *w = &r->row[p / SCH_ROW];

	if (i == 0)
		*w = (struct row){.visit = x->visit, .part = SCH_NONE, .stream = x->stream};
	else if (w->stream == x->stream && x->visit - r->last <= 1)
		w->steps |= (uint16_t)((x->visit - r->last) << i);
	else if (w->stream != SCH_ROW_MIXED && row_mix(r, w, i))
		return -ENOMEM;
	if (w->stream == SCH_ROW_MIXED) {
		r->mixed[w->visit].visit[i] = x->visit;
		r->mixed[w->visit].stream[i] = x->stream;
	}
	r->last = x->visit;
	if (w->part == SCH_NONE && x->b0 == 0 && x->b1 == r->whole)
		return 0;
	return sch_rows_blocks_set(r, p, x->b0, x->b1);
}

/* Bits from ... to - 1. */
static uint16_t row_bits(uint32_t from, uint32_t to)
{
	return (uint16_t)(((1u << to) - 1) & ~((1u << from) - 1));
}

uint32_t sch_rows_run(struct rows *r, uint32_t p, uint32_t n, uint32_t stream, uint32_t visit)
{
	uint32_t done = 0;

	while (done < n) {
		uint32_t i = (p + done) % SCH_ROW, to = sch_min32(SCH_ROW, i + n - done), v = visit + done;
		struct row *w = &r->row[(p + done) / SCH_ROW];

		if (i == 0) {
			*w = (struct row){
				.visit = v, .part = SCH_NONE, .stream = (uint16_t)stream, .steps = row_bits(1, to)};
		} else if (w->stream == stream && v == r->last + 1 && w->part == SCH_NONE) {
			w->steps |= row_bits(i, to);
		} else {
			struct seat x = {.visit = v, .stream = (uint16_t)stream, .b1 = r->whole};

			if (sch_rows_put(r, p + done, &x))
				return done;
			to = i + 1;
		}
		done += to - i;
		r->last = visit + done - 1;
	}
	return n;
}

int sch_rows_blocks_set(struct rows *r, uint32_t p, uint32_t b0, uint32_t b1)
{
	struct row *w = &r->row[p / SCH_ROW];

	if (row_part(r, w))
		return -ENOMEM;
	r->part[w->part].b0[p % SCH_ROW] = (uint8_t)b0;
	r->part[w->part].b1[p % SCH_ROW] = (uint8_t)b1;
	return 0;
}

void sch_rows_withdraw(struct rows *r, uint32_t from, uint32_t to, uint32_t stream)
{
	for (uint32_t k = from / SCH_ROW; k < to / SCH_ROW + (to % SCH_ROW != 0); k++) {
		struct row *w = &r->row[k];
		uint32_t n = sch_min32(SCH_ROW, to - k * SCH_ROW);

		if (w->stream == stream)
			w->stream = SCH_NOBODY;
		for (uint32_t i = 0; w->stream == SCH_ROW_MIXED && i < n; i++)
			if (r->mixed[w->visit].stream[i] == stream)
				r->mixed[w->visit].stream[i] = SCH_NOBODY;
	}
}
