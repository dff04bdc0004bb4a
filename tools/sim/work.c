/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/work.c - what is read: building it, numbering its pages, the merged list of page visits. Also chance.
 */
#include "tools/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- chance: xorshift64*, seeded through splitmix so that small seeds differ --------------------- */

uint64_t sim_rng_u64(struct sim_rng *r)
{
	uint64_t z = (r->state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

uint64_t sim_rng_below(struct sim_rng *r, uint64_t n)
{
	return n ? (uint64_t)(((unsigned __int128)sim_rng_u64(r) * n) >> 64) : 0;
}

double sim_rng_unit(struct sim_rng *r)
{
	return (double)(sim_rng_u64(r) >> 11) / 9007199254740992.0;
}

void sim_rng_shuffle(struct sim_rng *r, uint32_t *v, size_t n)
{
	for (size_t i = n; i > 1; i--) {
		size_t k = sim_rng_below(r, i);
		uint32_t t = v[i - 1];

		v[i - 1] = v[k];
		v[k] = t;
	}
}

/* ---- building ----------------------------------------------------------------------------------- */

static int grow(void *array, size_t *cap, size_t need, size_t size)
{
	size_t n = *cap ? *cap : 64;
	void *p;

	if (need <= *cap)
		return 0;
	while (n < need)
		n *= 2;
	p = reallocarray(*(void **)array, n, size);
	if (!p)
		return -ENOMEM;
	*(void **)array = p;
	*cap = n;
	return 0;
}

int sim_work_init(struct sim_work *w, uint32_t n_ranks)
{
	*w = (struct sim_work){.n_ranks = n_ranks};
	w->ranks = calloc(n_ranks, sizeof(*w->ranks));
	return w->ranks ? 0 : -ENOMEM;
}

void sim_work_finish(struct sim_work *w)
{
	for (uint32_t i = 0; w->ranks && i < w->n_ranks; i++) {
		free(w->ranks[i].reads);
		free(w->ranks[i].batches);
		free(w->ranks[i].epochs);
		free(w->ranks[i].hints);
	}
	free(w->ranks);
	free(w->files);
	*w = (struct sim_work){0};
}

int sim_work_file(struct sim_work *w, uint64_t size_bytes, uint32_t *ret_file)
{
	size_t cap = w->cap_files;
	int rc = grow(&w->files, &cap, (size_t)w->n_files + 1, sizeof(*w->files));

	if (rc)
		return rc;
	w->cap_files = (uint32_t)cap;
	w->files[w->n_files] = (struct sim_file){.size_bytes = size_bytes};
	*ret_file = w->n_files++;
	return 0;
}

int sim_work_epoch(struct sim_work *w, uint32_t rank)
{
	struct sim_rank *r = &w->ranks[rank];
	int rc = grow(&r->epochs, &r->cap_epochs, r->n_epochs + 1, sizeof(*r->epochs));

	if (rc)
		return rc;
	r->epochs[r->n_epochs++] = r->n_batches;
	return 0;
}

int sim_work_batch(struct sim_work *w, uint32_t rank)
{
	struct sim_rank *r = &w->ranks[rank];
	int rc = grow(&r->batches, &r->cap_batches, r->n_batches + 1, sizeof(*r->batches));

	if (rc == 0 && r->n_epochs == 0)
		rc = sim_work_epoch(w, rank);
	if (rc)
		return rc;
	r->batches[r->n_batches++] = r->n_reads;
	return 0;
}

int sim_work_read(struct sim_work *w, uint32_t rank, uint32_t file, uint64_t off, uint64_t len)
{
	struct sim_rank *r = &w->ranks[rank];
	int rc = grow(&r->reads, &r->cap_reads, r->n_reads + 1, sizeof(*r->reads));

	if (rc == 0 && r->n_batches == 0)
		rc = sim_work_batch(w, rank);
	if (rc)
		return rc;
	r->reads[r->n_reads++] = (struct sim_read){.file = file, .off_bytes = off, .len_bytes = len};
	return 0;
}

int sim_work_hint(struct sim_work *w, uint32_t rank, const struct sim_hint *h)
{
	struct sim_rank *r = &w->ranks[rank];
	int rc = grow(&r->hints, &r->cap_hints, r->n_hints + 1, sizeof(*r->hints));

	if (rc)
		return rc;
	r->hints[r->n_hints++] = *h;
	return 0;
}

static int hint_mark(struct sim_work *w, uint32_t rank, enum sched_mark mark, uint32_t epoch)
{
	struct sim_hint h = {.kind = SIM_HINT_MARK, .mark = mark, .epoch = epoch};

	return sim_work_hint(w, rank, &h);
}

static int hint_batch(struct sim_work *w, uint32_t rank, size_t batch, uint32_t when)
{
	const struct sim_rank *r = &w->ranks[rank];
	int rc = hint_mark(w, rank, SCHED_MARK_BATCH_NEXT, when);

	for (size_t i = r->batches[batch]; rc == 0 && i < sim_batch_end(r, batch); i++) {
		const struct sim_read *rd = &r->reads[i];
		struct sim_hint h = {.kind = SIM_HINT_ENTRY, .epoch = when,
				     .entry = {rd->file, rd->off_bytes, rd->len_bytes}};

		rc = sim_work_hint(w, rank, &h);
	}
	return rc;
}

int sim_work_hint_all(struct sim_work *w, uint32_t ahead)
{
	int rc = 0;

	for (uint32_t k = 0; k < w->n_ranks; k++) {
		const struct sim_rank *r = &w->ranks[k];

		for (size_t e = 0; rc == 0 && e < r->n_epochs; e++) {
			uint32_t when = e > ahead ? (uint32_t)(e - ahead) : 0;

			rc = hint_mark(w, k, SCHED_MARK_EPOCH_NEXT, when);
			for (size_t b = r->epochs[e]; rc == 0 && b < sim_epoch_end(r, e); b++)
				rc = hint_batch(w, k, b, when);
		}
	}
	return rc;
}

int sim_work_pages(struct sim_work *w, uint64_t chunk_bytes)
{
	uint64_t n = 0;

	w->chunk_bytes = chunk_bytes;
	for (uint32_t i = 0; i < w->n_files; i++) {
		w->files[i].first_page = (uint32_t)n;
		n += (w->files[i].size_bytes + chunk_bytes - 1) / chunk_bytes;
		if (n >= 1U << 31)
			return -E2BIG;
	}
	w->n_pages = (uint32_t)n;
	return 0;
}

size_t sim_batch_end(const struct sim_rank *r, size_t batch)
{
	return batch + 1 < r->n_batches ? r->batches[batch + 1] : r->n_reads;
}

size_t sim_epoch_end(const struct sim_rank *r, size_t epoch)
{
	return epoch + 1 < r->n_epochs ? r->epochs[epoch + 1] : r->n_batches;
}

/* ---- visits --------------------------------------------------------------------------------------- */

static size_t pages_of(const struct sim_read *rd, uint64_t chunk)
{
	return (size_t)((rd->off_bytes + rd->len_bytes - 1) / chunk - rd->off_bytes / chunk + 1);
}

static void visits_of_read(const struct sim_work *w, struct sim_visits *v, const struct sim_read *rd, uint32_t epoch)
{
	uint64_t chunk = w->chunk_bytes, at = rd->off_bytes, end = rd->off_bytes + rd->len_bytes;

	while (at < end) {
		uint64_t no = at / chunk, stop = (no + 1) * chunk < end ? (no + 1) * chunk : end;

		v->v[v->n++] = (struct sim_visit){.page = w->files[rd->file].first_page + (uint32_t)no,
						  .next = SIM_NONE,
						  .epoch = epoch,
						  .b0 = (uint16_t)((at - no * chunk) / v->block_bytes),
						  .b1 = (uint16_t)((stop - 1 - no * chunk) / v->block_bytes)};
		at = stop;
	}
}

static void visits_fill(const struct sim_work *w, struct sim_visits *v, size_t *epoch_of)
{
	size_t batches = 0;

	for (uint32_t k = 0; k < w->n_ranks; k++)
		batches = w->ranks[k].n_batches > batches ? w->ranks[k].n_batches : batches;
	for (size_t b = 0; b < batches; b++)
		for (uint32_t k = 0; k < w->n_ranks; k++) {
			const struct sim_rank *r = &w->ranks[k];

			if (b >= r->n_batches)
				continue;
			while (epoch_of[k] + 1 < r->n_epochs && r->epochs[epoch_of[k] + 1] <= b)
				epoch_of[k]++;
			for (size_t i = r->batches[b]; i < sim_batch_end(r, b); i++) {
				v->of_read[k][i] = v->n;
				visits_of_read(w, v, &r->reads[i], (uint32_t)epoch_of[k]);
			}
		}
}

static int visits_link(const struct sim_work *w, struct sim_visits *v)
{
	uint32_t *last = malloc(((size_t)w->n_pages + 1) * sizeof(*last));

	if (!last)
		return -ENOMEM;
	memset(last, 0xff, ((size_t)w->n_pages + 1) * sizeof(*last));
	for (size_t i = v->n; i-- > 0;) {
		v->v[i].next = last[v->v[i].page];
		last[v->v[i].page] = (uint32_t)i;
	}
	free(last);
	return 0;
}

int sim_visits_init(const struct sim_work *w, struct sim_visits *v)
{
	size_t n = 0, *epoch_of = calloc(w->n_ranks, sizeof(*epoch_of));
	int rc = -ENOMEM;

	*v = (struct sim_visits){.n_ranks = w->n_ranks};
	v->block_bytes = (uint32_t)(w->chunk_bytes / 256 < 4096 ? 4096 : w->chunk_bytes / 256);
	v->of_read = calloc(w->n_ranks, sizeof(*v->of_read));
	for (uint32_t k = 0; v->of_read && k < w->n_ranks; k++) {
		const struct sim_rank *r = &w->ranks[k];

		v->of_read[k] = malloc((r->n_reads + 1) * sizeof(**v->of_read));
		if (!v->of_read[k])
			goto out;
		for (size_t i = 0; i < r->n_reads; i++)
			n += pages_of(&r->reads[i], w->chunk_bytes);
	}
	v->v = calloc(n + 1, sizeof(*v->v));
	if (!epoch_of || !v->of_read || !v->v || n >= SIM_NONE)
		goto out;
	visits_fill(w, v, epoch_of);
	rc = visits_link(w, v);
out:
	free(epoch_of);
	if (rc)
		sim_visits_finish(v);
	return rc;
}

void sim_visits_finish(struct sim_visits *v)
{
	for (uint32_t k = 0; v->of_read && k < v->n_ranks; k++)
		free(v->of_read[k]);
	free(v->of_read);
	free(v->v);
	*v = (struct sim_visits){0};
}
