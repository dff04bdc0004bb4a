/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/wait.c - wait until a batch or a file is resident as a whole.
 *
 *   queued --fits--> active: pages come as demands, each that is there is pinned --all there--> WAIT_DONE
 *
 * Waits are served first in, first out, as many at a time as fit into the slots together, so that two
 * of them can never hold each other's room. What cannot fit at all is answered -ENOSPC.
 *
 * Callers: sched.c. Invariant: wait_pages (of the active ones) + reserve + pinned pages <= slots after each step.
 */
#include "sched/sched_i.h"

#define WAITS_MAX 65536u
#define ASK_AHEAD 64u

static uint32_t wait_capacity(const struct sched *s)
{
	uint32_t keep = sch_max32(sch_reserve(s), 1);

	return s->slots > keep ? s->slots - keep : (s->slots == 1 ? 1 : 0);
}

/* What pinned batches leave of it now. */
static uint32_t wait_room(const struct sched *s)
{
	uint32_t all = wait_capacity(s);

	return all > s->ext_pinned ? all - s->ext_pinned : 0;
}

static int wait_add(struct sched *s, const struct wait *w)
{
	if (s->n_waits >= WAITS_MAX ||
	    sch_array_grow((void **)&s->waits, &s->cap_waits, s->n_waits + 1, sizeof(*s->waits)))
		return -ENOMEM;
	s->waits[s->n_waits++] = *w;
	return 0;
}

/* 0: accepted (the answer comes as an action, also when it is an error); negative: no answer follows. */
int sched_wait_batch(struct sched *s, uint32_t stream, uint64_t batch, uint64_t token, uint64_t now_ns)
{
	struct wait w = {.token = token, .stream = stream, .file = SCHED_NO_FILE};
	struct stream *st;

	sch_clock(s, now_ns);
	if (stream >= s->n_streams || !s->streams[stream].is_live)
		return -ENOENT;
	sch_positions_settle(s);
	st = &s->streams[stream];
	if (!sch_batch_find(st, batch, st->low_visit, &w.v0, &w.v1)) {
		w.is_over = true;
		w.err = -ENOENT;
	}
	w.visit = w.v0;
	return wait_add(s, &w);
}

int sched_wait_file(struct sched *s, uint32_t file, uint64_t token, uint64_t now_ns)
{
	struct wait w = {.token = token, .stream = SCH_NONE, .file = file, .v1 = 1};

	sch_clock(s, now_ns);
	if (!sch_file(s, file))
		return -ENOENT;
	return wait_add(s, &w);
}

static void wait_unpin(struct sched *s, struct wait *w)
{
	for (uint64_t i = 0; w->pinned && i < w->n_pages; i++) {
		uint32_t pg = w->pinned[i];

		if (pg == SCH_NONE)
			continue;
		s->pages[pg].wait_pins--;
		sch_page_restate(s, pg);
		sch_page_put(s, pg);
	}
	free(w->pinned);
	w->pinned = NULL;
	if (w->is_active)
		s->wait_pages -= w->n_pages;
	w->is_active = false;
}

static void wait_end(struct sched *s, struct wait *w, int err)
{
	wait_unpin(s, w);
	w->is_over = true;
	w->err = err;
}

void sched_wait_cancel(struct sched *s, uint64_t token)
{
	for (uint32_t i = 0; i < s->n_waits;) {
		if (s->waits[i].token != token) {
			i++;
			continue;
		}
		wait_unpin(s, &s->waits[i]);
		memmove(&s->waits[i], &s->waits[i + 1], (size_t)(s->n_waits - i - 1) * sizeof(*s->waits));
		s->n_waits--;
	}
}

void sch_wait_stream_gone(struct sched *s, uint32_t stream)
{
	for (uint32_t i = 0; i < s->n_waits; i++)
		if (!s->waits[i].is_over && s->waits[i].stream == stream)
			wait_end(s, &s->waits[i], -ECANCELED);
}

void sch_wait_finish(struct sched *s)
{
	for (uint32_t i = 0; i < s->n_waits; i++)
		free(s->waits[i].pinned);
	free(s->waits);
}

/* Byte range of visit v of what is waited for. */
static void wait_span(const struct sched *s, const struct wait *w, uint64_t v, struct span *ret)
{
	const struct file *f;

	if (w->stream != SCH_NONE) {
		sch_visit_span(s, &s->streams[w->stream], v, ret);
		return;
	}
	*ret = (struct span){.file = sch_file_target(s, w->file)};
	f = sch_file(s, ret->file);
	if (!f || f->state == FILE_MISSING || f->size_bytes == 0)
		return;
	ret->is_unknown = f->size_bytes == SCHED_SIZE_UNKNOWN;
	ret->end = ret->is_unknown ? s->cfg.chunk_bytes : f->size_bytes;
	ret->n = (ret->end - 1) / s->cfg.chunk_bytes + 1;
}

/* Names first: how many pages it is can be known only after them. Returns false while one is unknown. */
static bool wait_measure(struct sched *s, struct wait *w)
{
	bool is_known = true;
	uint64_t n = 0;

	for (uint64_t v = w->v0; v < w->v1; v++) {
		struct span sp;
		uint32_t pg;

		wait_span(s, w, v, &sp);
		n += sp.n;
		if (n > s->slots)
			break;
		if (!sp.is_unknown)
			continue;
		is_known = false;
		if (s->files[sp.file].state != FILE_UNKNOWN || s->n_resolving >= SCH_RESOLVES_MAX ||
		    !sch_fetch_may(s, true, (uint32_t)s->cfg.chunk_bytes))
			continue;
		pg = sch_page_get(s, sp.file, 0);
		if (pg == SCH_NONE || s->pages[pg].frame != SCH_NONE || !sch_evict_room(s, EVICT_FOR_DEMAND, SCH_NONE))
			continue;
		(void)!sch_fetch_resolve(s, pg, true, s->now_ns); /* no memory: the next step tries again */
		sch_page_put(s, pg);
	}
	w->n_pages = n;
	return is_known || n > wait_capacity(s);
}

static bool wait_start(struct sched *s, struct wait *w)
{
	const struct file *f = w->stream == SCH_NONE ? sch_file(s, sch_file_target(s, w->file)) : NULL;

	if (w->stream == SCH_NONE && (!f || f->state == FILE_MISSING)) {
		wait_end(s, w, -ENOENT);
		return true;
	}
	if (!wait_measure(s, w))
		return true; /* goes on when the names are known; later waits need not stand behind it */
	if (w->n_pages > wait_capacity(s)) {
		wait_end(s, w, -ENOSPC);
		return true;
	}
	if (s->wait_pages + w->n_pages > wait_room(s))
		return false;
	w->pinned = malloc((size_t)(w->n_pages + 1) * sizeof(*w->pinned));
	if (!w->pinned)
		return false;
	memset(w->pinned, 0xff, (size_t)(w->n_pages + 1) * sizeof(*w->pinned));
	s->wait_pages += w->n_pages;
	w->is_active = true;
	return true;
}

static bool blocks_are_here(const struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1)
{
	return pg != SCH_NONE && s->pages[pg].frame != SCH_NONE &&
	       sch_blocks_all(&s->frames[s->pages[pg].frame].valid, b0, b1);
}

static bool blocks_are_asked(const struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1)
{
	struct blocks got;

	if (pg == SCH_NONE || s->pages[pg].frame == SCH_NONE)
		return false;
	got = s->frames[s->pages[pg].frame].valid;
	for (uint32_t fe = s->frames[s->pages[pg].frame].fetches; fe != SCH_NONE; fe = s->fetches[fe].frame_next)
		if (s->fetches[fe].is_demand)
			sch_blocks_set(&got, s->fetches[fe].b0, s->fetches[fe].b1);
	return sch_blocks_all(&got, b0, b1);
}

/* One page: resident and pinned, or asked for. */
static bool wait_page(struct sched *s, struct wait *w, const struct span *sp, uint64_t chunk_no, uint64_t ordinal)
{
	struct block_run b = sch_chunk_run(s, chunk_no, sp->off, sp->end);
	uint32_t pg = sch_page_find(s, sp->file, chunk_no);

	if (blocks_are_here(s, pg, b.b0, b.b1)) {
		if (ordinal < w->n_pages && w->pinned[ordinal] == SCH_NONE && s->pages[pg].wait_pins < UINT16_MAX) {
			w->pinned[ordinal] = pg;
			s->pages[pg].wait_pins++;
			sch_page_restate(s, pg);
		}
		return true;
	}
	if (!blocks_are_asked(s, pg, b.b0, b.b1))
		sch_demand_add(s, &(struct demand){.chunk_no = chunk_no,
						   .file = sp->file,
						   .done_stream = SCH_NONE,
						   .b0 = (uint16_t)b.b0,
						   .b1 = (uint16_t)b.b1});
	return false;
}

/* Advance over what is there, ask for the next pages. */
static void wait_advance(struct sched *s, struct wait *w)
{
	uint64_t v = w->visit, page = w->page, ordinal = w->ordinal;
	bool is_here = true;

	for (uint32_t asked = 0; v < w->v1 && asked < ASK_AHEAD;) {
		struct span sp;

		wait_span(s, w, v, &sp);
		for (; page < sp.n && asked < ASK_AHEAD; page++, ordinal++) {
			if (wait_page(s, w, &sp, sp.first + page, ordinal))
				continue;
			if (is_here) {
				w->visit = v;
				w->page = page;
				w->ordinal = ordinal;
			}
			is_here = false;
			asked++;
		}
		if (page >= sp.n) {
			page = 0;
			v++;
		}
	}
	if (is_here && v >= w->v1)
		wait_end(s, w, 0);
}

/* Slots went away or were pinned by others: the youngest wait stands back. */
static void wait_yield(struct sched *s)
{
	for (uint32_t i = s->n_waits; i-- > 0 && s->wait_pages > wait_room(s);) {
		if (!s->waits[i].is_active)
			continue;
		wait_unpin(s, &s->waits[i]);
		s->waits[i].visit = s->waits[i].v0;
		s->waits[i].page = s->waits[i].ordinal = 0;
	}
}

void sch_wait_run(struct sched *s)
{
	bool may_start = true;
	uint32_t i, n = 0;

	wait_yield(s);

	for (i = 0; i < s->n_waits; i++) {
		struct wait *w = &s->waits[i];

		if (!w->is_over && !w->is_active && may_start)
			may_start = wait_start(s, w);
		if (w->is_active)
			wait_advance(s, w);
	}
	for (i = 0; i < s->n_waits; i++) {
		struct sched_action a = {.kind = SCHED_WAIT_DONE, .token = s->waits[i].token, .err = s->waits[i].err};

		if (s->waits[i].is_over && sch_emit(s, &a))
			continue;
		s->waits[n++] = s->waits[i];
	}
	s->n_waits = n;
}
