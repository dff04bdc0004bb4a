/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/bound.c - what no policy can beat on this work and machine.
 *
 * Bytes of an epoch: what it needs, each block once, less what may have been there at its start (slots + disk). Where reads
 * cover whole pages: the misses of MIN with bypass at that capacity, which knows all epochs; their sum is the bound, a single epoch
 * may have fewer at the cost of another.
 * Seconds of an epoch: its computing; its bytes over the link, plus the link's overhead a request; in the first epoch, when nothing is
 * there, for every k also latency + bytes of the first k batches + the computing of the others (prefix). Page
 * visits of one batch may be carried in any order, so the prefix is taken at batch borders. And up to the end of each epoch the link
 * must have carried what was needed for the first time until then, and MIN's misses until then less one cache: what that adds is
 * counted to the epoch at whose end it is seen, so here too the sums are the bound.
 */
#include "sched/bitmap.h"
#include "tools/sim/sim_i.h"

static double link_s(const struct sim_config *c, uint64_t bytes, uint64_t requests)
{
	return (double)bytes / c->bandwidth_bytes_per_s + (double)requests * (double)c->overhead_ns / (double)SIM_SEC;
}

/* ---- MIN with bypass --------------------------------------------------------------------------------- */

static int min_replay(const struct sim_visits *v, uint32_t n_pages, uint64_t slots, struct sim_bound *b, uint64_t *misses)
{
	struct sch_bitmap tree;
	uint8_t *is_in = calloc((size_t)n_pages + 1, 1);
	uint64_t held = 0;
	int rc;

	sch_bitmap_init(&tree);
	rc = is_in ? sch_bitmap_reserve(&tree, (uint32_t)v->n + 1) : -ENOMEM;
	for (size_t i = 0; rc == 0 && i < v->n; i++) {
		uint32_t pg = v->v[i].page, next = v->v[i].next;

		if (is_in[pg]) {
			b->min_hits++;
			sch_bitmap_clear(&tree, (uint32_t)i);
			held--;
			is_in[pg] = 0;
		} else {
			b->min_misses++;
			misses[v->v[i].epoch]++;
		}
		if (next == SIM_NONE || slots == 0)
			continue;
		if (held == slots) {
			uint32_t far = sch_bitmap_last(&tree);

			if (far < next)
				continue;
			sch_bitmap_clear(&tree, far);
			is_in[v->v[far].page] = 0;
			held--;
		}
		sch_bitmap_set(&tree, next);
		is_in[pg] = 1;
		held++;
	}
	sch_bitmap_finish(&tree);
	free(is_in);
	return rc;
}

/* ---- an epoch -------------------------------------------------------------------------------------------- */

struct seen {
	struct sim_bits bits, ever;
	uint32_t epoch; /* + 1 */
};

struct need {
	uint64_t *bytes, *pages; /* [epoch]: distinct */
	double *prefix_s;	 /* epoch 0 only */
	uint64_t *fresh;	 /* [epoch]: bytes that no epoch before needed */
	uint64_t *misses;	 /* [epoch]: of MIN */
	bool is_whole;		 /* all reads cover whole pages */
};

static uint32_t page_len(const struct sim_work *w, uint32_t file, uint32_t page)
{
	uint64_t at = (uint64_t)(page - w->files[file].first_page) * w->chunk_bytes, left = w->files[file].size_bytes - at;

	return (uint32_t)(left < w->chunk_bytes ? left : w->chunk_bytes);
}

static uint64_t note(const struct sim_work *w, const struct sim_visits *v, struct seen *seen, const struct sim_visit *x,
		     uint32_t file, struct need *n)
{
	struct seen *s = &seen[x->page];
	uint32_t size = page_len(w, file, x->page), last = (size - 1) / v->block_bytes;
	uint64_t bytes = 0;

	if (s->epoch != x->epoch + 1) {
		memset(&s->bits, 0, sizeof(s->bits));
		s->epoch = x->epoch + 1;
		n->pages[x->epoch]++;
	}
	for (uint32_t i = x->b0; i <= x->b1; i++) {
		uint32_t len = i == last ? size - i * v->block_bytes : v->block_bytes;

		bytes += sim_bits_any(&s->bits, i, i) ? 0 : len;
		n->fresh[x->epoch] += sim_bits_any(&s->ever, i, i) ? 0 : len;
	}
	sim_bits_set(&s->bits, x->b0, x->b1);
	sim_bits_set(&s->ever, x->b0, x->b1);
	if (x->b0 != 0 || x->b1 != last || size != w->chunk_bytes)
		n->is_whole = false; /* of equal pages: else MIN is no bound */
	n->bytes[x->epoch] += bytes;
	return bytes;
}

static void batch_note(const struct sim_work *w, const struct sim_visits *v, struct seen *seen, uint32_t k, size_t b,
		       struct need *n)
{
	const struct sim_rank *r = &w->ranks[k];

	for (size_t i = r->batches[b]; i < sim_batch_end(r, b); i++) {
		size_t at = v->of_read[k][i];
		const struct sim_read *rd = &r->reads[i];
		uint64_t parts = (rd->off_bytes + rd->len_bytes - 1) / w->chunk_bytes - rd->off_bytes / w->chunk_bytes + 1;

		for (uint64_t p = 0; p < parts; p++)
			note(w, v, seen, &v->v[at + p], rd->file, n);
	}
}

static void needs(const struct sim_work *w, const struct sim_config *c, const struct sim_visits *v, struct seen *seen,
		  struct need *n, size_t batches)
{
	double comp = (double)c->compute_ns * (1 - c->compute_jitter) / (double)SIM_SEC;
	size_t first = sim_epoch_end(&w->ranks[0], 0);

	for (size_t b = 0; b < batches; b++) {
		for (uint32_t k = 0; k < w->n_ranks; k++)
			if (b < w->ranks[k].n_batches)
				batch_note(w, v, seen, k, b, n);
		if (b >= first)
			continue;
		double s = (double)c->latency_ns * (1 - c->latency_jitter) / (double)SIM_SEC +
			   link_s(c, n->bytes[0], n->pages[0]) + (double)(first - b) * comp;
		*n->prefix_s = s > *n->prefix_s ? s : *n->prefix_s;
	}
}

/* What the link must have carried by now. */
static uint64_t carried(const struct need *n, uint64_t fresh, uint64_t misses, uint64_t cap)
{
	uint64_t least = n->is_whole && misses > cap ? misses - cap : 0;

	return fresh > least ? fresh : least;
}

static void epochs(const struct sim_work *w, const struct sim_config *c, const struct need *n, struct sim_bound *b)
{
	uint64_t cap = ((uint64_t)c->slots + c->disk_pages) * w->chunk_bytes;
	/* The mean of the computing, not its least: with a thousand batches the difference is noise, and both sides have it. */
	double comp = (double)c->compute_ns / (double)SIM_SEC;

	/* Ranks in lock step wait for the slowest: the mean of the greatest of n uniform numbers. */
	if (!c->is_independent)
		comp *= 1 + c->compute_jitter * (w->n_ranks - 1.0) / (w->n_ranks + 1.0);
	uint64_t fresh = 0, misses = 0;

	for (size_t e = 0; e < b->n_epochs; e++) {
		uint64_t most = e ? cap : 0, least = n->bytes[e] > most ? n->bytes[e] - most : 0;
		uint64_t requests = (least + w->chunk_bytes - 1) / w->chunk_bytes;
		double batches = (double)(sim_epoch_end(&w->ranks[0], e) - w->ranks[0].epochs[e]);
		double t = batches * comp, l = link_s(c, least, requests);

		t = l > t ? l : t;
		if (e == 0 && *n->prefix_s > t)
			t = *n->prefix_s;
		fresh += n->fresh[e];
		misses += n->misses[e] * w->chunk_bytes;
		l = link_s(c, carried(n, fresh, misses, e + 1 == b->n_epochs ? 0 : cap), 0) - b->total_s;
		t = l > t ? l : t;
		if (n->is_whole)
			least = n->misses[e] * w->chunk_bytes;
		b->bytes[e] = least;
		b->time_s[e] = t;
		b->total_s += t;
		b->total_bytes += least;
	}
}

int sim_bound_init(const struct sim_work *w, const struct sim_config *c, struct sim_bound *b)
{
	struct sim_visits v;
	struct seen *seen;
	double prefix = 0;
	struct need n = {.is_whole = true, .prefix_s = &prefix};
	size_t batches = 0;
	int rc = sim_visits_init(w, &v);

	*b = (struct sim_bound){.n_epochs = w->ranks[0].n_epochs};
	if (rc)
		return rc;
	for (uint32_t k = 0; k < w->n_ranks; k++) {
		batches = w->ranks[k].n_batches > batches ? w->ranks[k].n_batches : batches;
		b->n_epochs = w->ranks[k].n_epochs > b->n_epochs ? w->ranks[k].n_epochs : b->n_epochs;
	}
	seen = calloc((size_t)w->n_pages + 1, sizeof(*seen));
	b->time_s = calloc(b->n_epochs + 1, sizeof(*b->time_s));
	b->bytes = calloc(b->n_epochs + 1, sizeof(*b->bytes));
	n.bytes = calloc(b->n_epochs + 1, sizeof(*n.bytes));
	n.pages = calloc(b->n_epochs + 1, sizeof(*n.pages));
	n.misses = calloc(b->n_epochs + 1, sizeof(*n.misses));
	n.fresh = calloc(b->n_epochs + 1, sizeof(*n.fresh));
	rc = -ENOMEM;
	if (seen && b->time_s && b->bytes && n.bytes && n.pages && n.misses && n.fresh)
		rc = min_replay(&v, w->n_pages, (uint64_t)c->slots + c->disk_pages, b, n.misses);
	if (rc == 0) {
		needs(w, c, &v, seen, &n, batches);
		b->n_epochs = w->ranks[0].n_epochs;
		epochs(w, c, &n, b);
	}
	free(seen);
	free(n.bytes);
	free(n.pages);
	free(n.misses);
	free(n.fresh);
	sim_visits_finish(&v);
	if (rc)
		sim_bound_finish(b);
	return rc;
}

void sim_bound_finish(struct sim_bound *b)
{
	free(b->time_s);
	free(b->bytes);
	*b = (struct sim_bound){0};
}
