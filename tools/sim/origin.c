/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/origin.c - requests: queued (demand first, then by deadline, as cache/fetch.c does), started when one of the outstanding
 * places is free, delayed by the latency, carried one after the other by the link; and the disk tier, a serial device too.
 *
 *   QUEUED --place free--> STARTED --latency--> arrived --link free--> done
 *      |--UNFETCH, nobody waits--> answered -ECANCELED
 */
#include "tools/sim/sim_i.h"

static uint32_t fetch_new(struct sim *m)
{
	uint32_t fe = m->free_fetch;

	if (fe != SIM_NONE) {
		m->free_fetch = m->fetches[fe].next_free;
		return fe;
	}
	if (m->n_fetches == m->cap_fetches) {
		uint32_t cap = m->cap_fetches ? m->cap_fetches * 2 : 256;
		void *p = reallocarray(m->fetches, cap, sizeof(*m->fetches));
		void *q = p ? reallocarray(m->queue, cap, sizeof(*m->queue)) : NULL;

		m->fetches = p ? p : m->fetches;
		m->queue = q ? q : m->queue;
		if (!q)
			return SIM_NONE;
		m->cap_fetches = cap;
	}
	return m->n_fetches++;
}

static void fetch_free(struct sim *m, uint32_t fe)
{
	m->fetches[fe].state = FETCH_FREE;
	m->fetches[fe].next_free = m->free_fetch;
	m->free_fetch = fe;
}

static bool is_before(const struct fetch *a, const struct fetch *b)
{
	if (a->is_demand != b->is_demand)
		return a->is_demand;
	if (!a->is_demand && a->deadline_ns != b->deadline_ns)
		return a->deadline_ns < b->deadline_ns;
	return a->seq < b->seq;
}

static void queue_remove(struct sim *m, uint32_t at)
{
	m->queue[at] = m->queue[--m->n_queue];
	m->fetches[m->queue[at]].queue_at = at;
}

static uint64_t link_ns(const struct sim *m, uint64_t from_ns, uint32_t len)
{
	double bw = m->cfg.bandwidth_bytes_per_s;

	if (from_ns >= m->cfg.slow_from_ns && from_ns < m->cfg.slow_to_ns)
		bw /= 4;
	return m->cfg.overhead_ns + (uint64_t)((double)len * (double)SIM_SEC / bw);
}

static void disk_start(struct sim *m, uint32_t fe)
{
	struct fetch *f = &m->fetches[fe];
	uint64_t ready = m->now_ns + m->cfg.disk_latency_ns;
	uint64_t at = ready > m->disk_free_ns ? ready : m->disk_free_ns;

	f->state = FETCH_STARTED;
	f->issued_ns = m->now_ns;
	m->disk_free_ns = at + (uint64_t)((double)f->len * (double)SIM_SEC / m->cfg.disk_bytes_per_s);
	sim_event(m, m->disk_free_ns, EV_FETCHED, fe);
}

static void origin_start(struct sim *m)
{
	while (m->n_started < m->cfg.outstanding && m->n_queue > 0) {
		uint32_t best = 0;

		for (uint32_t i = 1; i < m->n_queue; i++)
			if (is_before(&m->fetches[m->queue[i]], &m->fetches[m->queue[best]]))
				best = i;
		uint32_t fe = m->queue[best];
		struct fetch *f = &m->fetches[fe];

		queue_remove(m, best);
		f->state = FETCH_STARTED;
		f->issued_ns = m->now_ns;
		m->n_started++;
		uint64_t trips = f->is_resolve ? 2 : 1; /* the look-up, then the data */
		sim_event(m, m->now_ns + trips * sim_jitter(m, m->cfg.latency_ns, m->cfg.latency_jitter), EV_ARRIVE, fe);
	}
}

void sim_fetch_add(struct sim *m, const struct sched_action *a, bool is_resolve)
{
	uint32_t fe = fetch_new(m);

	if (fe == SIM_NONE) {
		m->is_out_of_memory = true;
		return;
	}
	m->fetches[fe] = (struct fetch){.deadline_ns = a->deadline_ns, .seq = m->seq++, .chunk_no = a->chunk_no, .file = a->file,
					.page = is_resolve ? SIM_NONE : sim_page(m, a->file, a->chunk_no),
					.off = a->off_bytes, .len = a->len_bytes, .state = FETCH_QUEUED,
					.is_demand = a->is_demand, .from_tier = a->from_tier, .is_resolve = is_resolve};
	if (!is_resolve && a->from_tier && m->pages[m->fetches[fe].page].tier == TIER_HAS) {
		disk_start(m, fe);
		return;
	}
	m->fetches[fe].from_tier = false;
	m->fetches[fe].queue_at = m->n_queue;
	m->queue[m->n_queue++] = fe;
	origin_start(m);
}

/* The bytes are asked for by a reader now. */
void sim_fetch_promote(struct sim *m, uint32_t page, uint32_t b0, uint32_t b1)
{
	uint32_t bb = m->visits.block_bytes;

	for (uint32_t i = 0; i < m->n_queue; i++) {
		struct fetch *f = &m->fetches[m->queue[i]];

		if (f->page == page && f->off / bb <= b1 && (f->off + f->len - 1) / bb >= b0)
			f->is_demand = true;
	}
}

static void flight_end(struct sim *m, const struct fetch *f)
{
	struct frame *fr;

	if (f->page == SIM_NONE || m->pages[f->page].frame == SIM_NONE)
		return;
	fr = &m->frames[m->pages[f->page].frame];
	sim_bits_clear(&fr->flight, f->off / m->visits.block_bytes, (f->off + f->len - 1) / m->visits.block_bytes);
	fr->n_fetches--;
}

static void frame_trim(struct sim *m, uint32_t page)
{
	uint32_t fr = page == SIM_NONE ? SIM_NONE : m->pages[page].frame;

	if (fr != SIM_NONE && m->frames[fr].n_fetches == 0 && sim_bits_empty(&m->frames[fr].valid))
		sim_frame_put(m, page);
}

static void answer(struct sim *m, const struct fetch *f, int err)
{
	if (m->ops->fetched)
		m->ops->fetched(m->policy, f->file, f->chunk_no, f->off, f->len, err, f->issued_ns);
}

void sim_fetch_cancel(struct sim *m, uint32_t file, uint64_t chunk_no)
{
	uint32_t page = sim_page(m, file, chunk_no);

	if (m->pages[page].waiters != SIM_NONE)
		return;
	for (uint32_t i = 0; i < m->n_queue;) {
		uint32_t fe = m->queue[i];
		struct fetch f = m->fetches[fe];

		if (f.page != page || f.is_demand) {
			i++;
			continue;
		}
		queue_remove(m, i);
		fetch_free(m, fe);
		flight_end(m, &f);
		frame_trim(m, page);
		answer(m, &f, -ECANCELED);
	}
}

void sim_fetch_arrived(struct sim *m, uint32_t fe)
{
	struct fetch *f = &m->fetches[fe];
	uint64_t at = m->now_ns > m->link_free_ns ? m->now_ns : m->link_free_ns;

	m->link_free_ns = at + link_ns(m, at, f->len);
	sim_event(m, m->link_free_ns, EV_FETCHED, fe);
}

void sim_fetch_orphan(struct sim *m, uint32_t page)
{
	for (uint32_t i = 0; i < m->n_fetches; i++)
		if (m->fetches[i].state != FETCH_FREE && !m->fetches[i].is_resolve && m->fetches[i].page == page)
			m->fetches[i].is_orphan = true;
}

/* A look-up brought the whole page: fetches of it that have not started end here, without a request. */
static void queued_end(struct sim *m, uint32_t page)
{
	for (uint32_t i = 0; i < m->n_queue;) {
		uint32_t fe = m->queue[i];
		struct fetch f = m->fetches[fe];

		if (f.page != page) {
			i++;
			continue;
		}
		queue_remove(m, i);
		fetch_free(m, fe);
		if (!f.is_orphan)
			flight_end(m, &f);
		f.issued_ns = m->now_ns;
		answer(m, &f, 0);
		i = 0; /* the answer may have changed the queue */
	}
	if (m->pages[page].frame != SIM_NONE)
		m->frames[m->pages[page].frame].is_doubled = m->frames[m->pages[page].frame].n_fetches > 0;
}

static void resolve_done(struct sim *m, const struct fetch *f)
{
	const struct sim_file *file = &m->work->files[f->file];
	int err = file->is_missing ? -ENOENT : 0;
	bool is_small = !err && file->size_bytes <= m->work->chunk_bytes;

	m->is_resolved[f->file] = 1;
	m->is_resolving[f->file] = 0;
	m->ops->resolved(m->policy, f->file, err, file->size_bytes);
	if (!is_small)
		return;
	uint32_t page = sim_page(m, f->file, 0), fr = sim_frame_get(m, page);
	if (fr == SIM_NONE)
		return;
	uint32_t last = sim_chunk_blocks(m, f->len) - 1;
	for (uint32_t b = 0; b <= last; b++)
		if (!sim_bits_any(&m->frames[fr].valid, b, b))
			sim_bits_set(&m->frames[fr].fresh, b, b);
	sim_bits_set(&m->frames[fr].valid, 0, last);
	sim_page_wake(m, page);
	answer(m, f, 0);
	queued_end(m, page);
}

static void data_done(struct sim *m, struct fetch *f, int err)
{
	uint32_t bb = m->visits.block_bytes, fr = m->pages[f->page].frame;

	if (f->is_orphan) {
		answer(m, f, err);
		return;
	}
	flight_end(m, f);
	if (fr == SIM_NONE) {
		sim_breach(m, "page left while in flight", f->file, f->chunk_no);
	} else if (err == 0) {
		sim_bits_set(&m->frames[fr].valid, f->off / bb, (f->off + f->len - 1) / bb);
		if (!f->from_tier)
			sim_bits_set(&m->frames[fr].fresh, f->off / bb, (f->off + f->len - 1) / bb);
		sim_page_wake(m, f->page);
	} else {
		frame_trim(m, f->page);
	}
	if (m->ops->shortage && m->ops->is_bounded && m->live_frames > m->cfg.slots)
		m->ops->shortage(m->policy, m->live_frames - m->cfg.slots);
	answer(m, f, err);
	sim_page_again(m, f->page);
}

void sim_fetch_done(struct sim *m, uint32_t fe)
{
	struct fetch f = m->fetches[fe];
	struct sim_epoch *e = sim_epoch_now(m);
	int err = 0;

	fetch_free(m, fe);
	if (f.from_tier) {
		e->disk_bytes += f.len;
	} else {
		m->n_started--;
		e->origin_bytes += f.len;
		e->origin_reads++;
		if (m->cfg.fail_share > 0 && sim_rng_unit(&m->rng) < m->cfg.fail_share)
			err = -EIO;
	}
	if (f.is_resolve)
		resolve_done(m, &f);
	else
		data_done(m, &f, err);
	origin_start(m);
}

/* ---- disk tier ------------------------------------------------------------------------------- */

void sim_tier_admit(struct sim *m, uint32_t file, uint64_t chunk_no)
{
	uint32_t page = sim_page(m, file, chunk_no), len = sim_chunk_len(m, file, chunk_no);
	struct page *p = &m->pages[page];

	if (p->frame == SIM_NONE || !sim_bits_all(&m->frames[p->frame].valid, 0, sim_chunk_blocks(m, len) - 1)) {
		sim_breach(m, "admission of a page that is not whole", file, chunk_no);
		m->ops->tier_has(m->policy, file, chunk_no, false);
		return;
	}
	if (p->tier != TIER_NONE) {
		sim_breach(m, "admission of a page that the tier has", file, chunk_no);
		return;
	}
	p->tier = TIER_WRITING;
	if (++m->tier_pages > m->cfg.disk_pages)
		sim_breach(m, "tier over its budget", file, chunk_no);
	uint64_t at = m->now_ns > m->disk_free_ns ? m->now_ns : m->disk_free_ns;
	m->disk_free_ns = at + (uint64_t)((double)len * (double)SIM_SEC / m->cfg.disk_bytes_per_s);
	sim_epoch_now(m)->disk_write_bytes += len;
	sim_event(m, m->disk_free_ns, EV_TIER_WRITTEN, page);
}

static uint32_t file_of(const struct sim *m, uint32_t page)
{
	uint32_t lo = 0, hi = m->work->n_files;

	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (m->work->files[mid].first_page <= page)
			lo = mid;
		else
			hi = mid;
	}
	return lo; /* empty files share first_page with the next one, which is the higher index */
}

void sim_tier_written(struct sim *m, uint32_t page)
{
	struct page *p = &m->pages[page];
	uint32_t file = file_of(m, page);
	bool has = p->tier == TIER_WRITING;

	p->tier = has ? TIER_HAS : TIER_NONE;
	m->ops->tier_has(m->policy, file, page - m->work->files[file].first_page, has);
}

void sim_tier_drop(struct sim *m, uint32_t file, uint64_t chunk_no)
{
	struct page *p = &m->pages[sim_page(m, file, chunk_no)];

	if (p->tier == TIER_HAS)
		p->tier = TIER_NONE;
	else if (p->tier == TIER_WRITING)
		p->tier = TIER_DROPPED;
	else {
		sim_breach(m, "drop of a page that the tier has not", file, chunk_no);
		return;
	}
	m->tier_pages--;
}
