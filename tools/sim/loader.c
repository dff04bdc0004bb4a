/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/loader.c - who reads: trainers take batches in order and compute, workers read what was dispatched to them.
 *
 * A worker: IDLE --batch dispatched--> READING --blocks not there--> WAITING --they came--> READING --end--> IDLE
 *           READING --served, copying takes time--> COPYING --> READING
 * Reading what is there takes no time but the copy.
 */
#include "tools/sim/sim_i.h"

uint64_t sim_jitter(struct sim *m, uint64_t ns, double share)
{
	if (share <= 0)
		return ns;
	return (uint64_t)((double)ns * (1 - share + 2 * share * sim_rng_unit(&m->rng)));
}

/* ---- the kernel's page cache: whole pages, LRU --------------------------------------------------- */

static void pc_unlink(struct sim *m, uint32_t pg)
{
	struct page *p = &m->pages[pg];

	*(p->pc_prev == SIM_NONE ? &m->pc_head : &m->pages[p->pc_prev].pc_next) = p->pc_next;
	*(p->pc_next == SIM_NONE ? &m->pc_tail : &m->pages[p->pc_next].pc_prev) = p->pc_prev;
	p->is_cached = 0;
	m->pc_count--;
}

static void pc_touch(struct sim *m, uint32_t pg)
{
	struct page *p = &m->pages[pg];

	if (!m->cfg.page_cache_pages)
		return;
	if (p->is_cached)
		pc_unlink(m, pg);
	else if (m->pc_count == m->cfg.page_cache_pages)
		pc_unlink(m, m->pc_tail);
	p->pc_prev = SIM_NONE;
	p->pc_next = m->pc_head;
	*(m->pc_head == SIM_NONE ? &m->pc_tail : &m->pages[m->pc_head].pc_prev) = pg;
	m->pc_head = pg;
	p->is_cached = 1;
	m->pc_count++;
}

/* ---- dispatch ---------------------------------------------------------------------------------------- */

void sim_worker_wake(struct sim *m, uint32_t w)
{
	struct worker *k = &m->workers[w];

	if (k->is_runnable)
		return;
	k->is_runnable = true;
	m->runnable[(m->run_head + m->n_runnable++) % m->n_workers] = w;
}

static size_t worker_first(const struct sim *m, const struct worker *k, size_t *epoch)
{
	const struct sim_rank *r = &m->work->ranks[k->rank];

	for (; *epoch < r->n_epochs; ++*epoch)
		if (r->epochs[*epoch] + k->index < sim_epoch_end(r, *epoch))
			return r->epochs[*epoch] + k->index;
	return SIZE_MAX;
}

/* The batch after `batch` that is this worker's: the epochs are dealt out anew, each from worker 0. */
static size_t worker_next(const struct sim *m, const struct worker *k)
{
	const struct sim_rank *r = &m->work->ranks[k->rank];
	size_t next = k->batch + m->ranks[k->rank].n_workers, lo = 0, hi = r->n_epochs;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (r->epochs[mid] <= k->batch)
			lo = mid;
		else
			hi = mid;
	}
	if (next < sim_epoch_end(r, lo))
		return next;
	lo++;
	return worker_first(m, k, &lo);
}

static void feed_hints(struct sim *m, uint32_t rank, size_t epoch)
{
	const struct sim_rank *r = &m->work->ranks[rank];
	size_t from = m->ranks[rank].hints_fed, to = from;

	while (to < r->n_hints && r->hints[to].epoch <= epoch)
		to++;
	m->ranks[rank].hints_fed = to;
	if (to > from && m->ops->hint)
		m->ops->hint(m->policy, rank, r->hints + from, to - from);
}

static void dispatch(struct sim *m, uint32_t rank)
{
	const struct sim_rank *r = &m->work->ranks[rank];
	struct rank *k = &m->ranks[rank];
	size_t limit = m->cfg.workers ? k->taken + (size_t)m->cfg.workers * m->cfg.prefetch : k->taken + 1;
	size_t end = m->cfg.is_overlapping ? r->n_batches : sim_epoch_end(r, k->dispatch_epoch);

	limit = limit < end ? limit : end;
	if (limit <= k->dispatched)
		return;
	k->dispatched = limit;
	for (uint32_t i = 0; i < k->n_workers; i++)
		if (m->workers[k->first_worker + i].state == W_IDLE)
			sim_worker_wake(m, k->first_worker + i);
}

/* ---- trainers -------------------------------------------------------------------------------------------- */

static bool is_batch_ready(const struct sim *m, const struct trainer *t)
{
	for (uint32_t k = t->rank0; k < t->rank0 + t->n_ranks; k++)
		if (t->batch < m->work->ranks[k].n_batches && !m->ranks[k].is_ready[t->batch])
			return false;
	return true;
}

static void trainer_take(struct sim *m, uint32_t ti)
{
	struct trainer *t = &m->trainers[ti];

	if (t->is_computing || t->is_done || !is_batch_ready(m, t))
		return;
	uint64_t longest = 0;
	for (uint32_t k = t->rank0; k < t->rank0 + t->n_ranks; k++) {
		if (t->batch >= m->work->ranks[k].n_batches)
			continue;
		uint64_t ns = sim_jitter(m, m->cfg.compute_ns, m->cfg.compute_jitter);

		longest = ns > longest ? ns : longest;
		m->ranks[k].taken = t->batch + 1;
		if (m->cfg.workers)
			dispatch(m, k);
	}
	if (ti == 0 && t->batch == 0)
		m->res->first_batch_s = (double)m->now_ns / (double)SIM_SEC;
	t->is_computing = true;
	t->computed_ns += longest;
	sim_event(m, m->now_ns + longest, EV_COMPUTED, ti);
}

static void trainer_ask(struct sim *m, uint32_t ti)
{
	struct trainer *t = &m->trainers[ti];

	for (uint32_t k = t->rank0; k < t->rank0 + t->n_ranks; k++) {
		const struct sim_rank *r = &m->work->ranks[k];
		struct rank *rk = &m->ranks[k];

		if (t->batch == 0 && r->n_batches == 0)
			feed_hints(m, k, SIZE_MAX); /* somebody who writes an order and reads nothing */
		if (t->batch >= r->n_batches)
			continue;
		while (rk->epoch < r->n_epochs && r->epochs[rk->epoch] <= t->batch) {
			rk->dispatch_epoch = rk->epoch;
			feed_hints(m, k, rk->epoch++);
		}
		if (m->ops->batch)
			m->ops->batch(m->policy, k, t->batch);
		dispatch(m, k);
	}
	sim_policy_run(m);
	trainer_take(m, ti);
}

static void epoch_close(struct sim *m, struct trainer *t)
{
	struct sim_epoch *e = sim_epoch_now(m);

	e->time_s = (double)(m->now_ns - t->epoch_began_ns) / (double)SIM_SEC;
	e->stall_s = e->time_s - (double)t->computed_ns / (double)SIM_SEC;
	t->epoch_began_ns = m->now_ns;
	t->computed_ns = 0;
	if (m->epoch + 1 < m->res->n_epochs)
		m->epoch++;
}

void sim_trainer_computed(struct sim *m, uint32_t ti)
{
	struct trainer *t = &m->trainers[ti];
	const struct sim_rank *r0 = &m->work->ranks[t->rank0];
	size_t batches = 0;

	t->is_computing = false;
	t->batch++;
	for (uint32_t k = t->rank0; k < t->rank0 + t->n_ranks; k++)
		batches = m->work->ranks[k].n_batches > batches ? m->work->ranks[k].n_batches : batches;
	if (t->epoch < r0->n_epochs &&
	    t->batch == (t->epoch + 1 == r0->n_epochs ? batches : sim_epoch_end(r0, t->epoch))) {
		t->epoch++;
		if (ti == 0)
			epoch_close(m, t);
	}
	if (t->batch >= batches) {
		t->is_done = true;
		m->trainers_done++;
		return;
	}
	trainer_ask(m, ti);
}

/* ---- workers ------------------------------------------------------------------------------------------------- */

static uint64_t reader_of(const struct sim *m, const struct worker *k)
{
	return 1000 + (uint64_t)(k - m->workers);
}

static void worker_open(struct sim *m, struct worker *k, uint32_t file)
{
	if (k->file == file)
		return;
	if (k->file != SIM_NONE && m->ops->close)
		m->ops->close(m->policy, k->file, reader_of(m, k));
	k->file = file;
	m->is_resolved[file] = true;
	if (m->ops->open)
		m->ops->open(m->policy, file, reader_of(m, k));
}

static void batch_end(struct sim *m, struct worker *k)
{
	struct rank *r = &m->ranks[k->rank];

	r->is_ready[k->batch] = 1;
	k->has_batch = false;
	size_t done = k->batch;
	k->batch = worker_next(m, k);
	for (uint32_t t = 0; t < m->n_trainers; t++)
		if (k->rank >= m->trainers[t].rank0 && k->rank < m->trainers[t].rank0 + m->trainers[t].n_ranks &&
		    m->trainers[t].batch == done)
			trainer_take(m, t);
}

static bool batch_begin(struct sim *m, struct worker *k)
{
	if (k->batch == SIZE_MAX || k->batch >= m->ranks[k->rank].dispatched) {
		k->state = W_IDLE;
		return false;
	}
	k->state = W_READING;
	k->has_batch = true;
	k->read = m->work->ranks[k->rank].batches[k->batch];
	k->part = 0;
	return true;
}

/* What is read next, clipped to one page. */
struct part {
	uint64_t off, len, chunk_no;
	uint32_t file;
	const struct sim_visit *v;
	bool is_last;
};

static void part_get(const struct sim *m, const struct worker *k, struct part *p)
{
	const struct sim_read *rd = &m->work->ranks[k->rank].reads[k->read];
	uint64_t chunk = m->work->chunk_bytes, first = rd->off_bytes / chunk, end = rd->off_bytes + rd->len_bytes;

	p->v = &m->visits.v[m->visits.of_read[k->rank][k->read] + k->part];
	p->file = rd->file;
	p->chunk_no = first + k->part;
	p->off = k->part ? p->chunk_no * chunk : rd->off_bytes;
	p->is_last = end <= (p->chunk_no + 1) * chunk;
	p->len = (p->is_last ? end : (p->chunk_no + 1) * chunk) - p->off;
}

static void served(struct sim *m, const struct part *p, bool is_page_cache)
{
	struct sim_epoch *e = sim_epoch_now(m);
	struct frame *f = m->pages[p->v->page].frame == SIM_NONE ? NULL : &m->frames[m->pages[p->v->page].frame];
	uint32_t fresh = 0, n = p->v->b1 - p->v->b0 + 1u;

	e->needed_bytes += p->len;
	if (!is_page_cache && f) {
		for (uint32_t b = p->v->b0; b <= p->v->b1; b++)
			fresh += sim_bits_any(&f->fresh, b, b);
		sim_bits_clear(&f->fresh, p->v->b0, p->v->b1);
	}
	e->hit_bytes += p->len * (n - fresh) / n;
	if (p->len == sim_chunk_len(m, p->file, p->chunk_no))
		pc_touch(m, p->v->page);
}

static void part_advance(struct sim *m, struct worker *k, const struct part *p)
{
	if (!p->is_last) {
		k->part++;
	} else {
		k->part = 0;
		k->read++;
		if (++m->reads_done % 65536 == 0 && m->cfg.progress)
			m->cfg.progress(m->cfg.progress_arg, m->reads_done, m->reads_all);
	}
	if (m->cfg.copy_bytes_per_s > 0) {
		k->state = W_COPYING;
		sim_event(m, m->now_ns + (uint64_t)((double)p->len * (double)SIM_SEC / m->cfg.copy_bytes_per_s), EV_WORKER,
			  (uint32_t)(k - m->workers));
	}
}

/* Ask for blocks that are not there. Only the missing range is reported, as the daemon does. */
static void part_miss(struct sim *m, struct worker *k, const struct part *p)
{
	const struct frame *f = m->pages[p->v->page].frame == SIM_NONE ? NULL : &m->frames[m->pages[p->v->page].frame];
	uint32_t lo = SIM_NONE, hi = 0, bb = m->visits.block_bytes;
	uint64_t base = p->chunk_no * m->work->chunk_bytes, from = p->off, to = p->off + p->len;

	for (uint32_t b = p->v->b0; b <= p->v->b1; b++)
		if (!f || (!sim_bits_any(&f->valid, b, b) && !sim_bits_any(&f->flight, b, b))) {
			lo = lo == SIM_NONE ? b : lo;
			hi = b;
		}
	if (lo != SIM_NONE) {
		from = base + (uint64_t)lo * bb > from ? base + (uint64_t)lo * bb : from;
		to = base + (uint64_t)(hi + 1) * bb < to ? base + (uint64_t)(hi + 1) * bb : to;
	}
	if (m->ops->read)
		m->ops->read(m->policy, p->file, from, to - from, reader_of(m, k), lo != SIM_NONE);
	sim_fetch_promote(m, p->v->page, p->v->b0, p->v->b1);
}

static void worker_wait(struct sim *m, struct worker *k, const struct part *p)
{
	k->state = W_WAITING;
	k->wait_page = p->v->page;
	k->b0 = p->v->b0;
	k->b1 = p->v->b1;
	k->next_waiter = m->pages[k->wait_page].waiters;
	m->pages[k->wait_page].waiters = (uint32_t)(k - m->workers);
}

static void waiter_unlink(struct sim *m, uint32_t w)
{
	uint32_t *p = &m->pages[m->workers[w].wait_page].waiters;

	while (*p != w)
		p = &m->workers[*p].next_waiter;
	*p = m->workers[w].next_waiter;
}

static void worker_read(struct sim *m, struct worker *k)
{
	struct part p;
	size_t visit;

	part_get(m, k, &p);
	worker_open(m, k, p.file);
	visit = (size_t)(p.v - m->visits.v);
	if (m->pages[p.v->page].is_cached) {
		served(m, &p, true);
		part_advance(m, k, &p);
		return;
	}
	if (m->ops->progress)
		m->ops->progress(m->policy, k->rank, k->read, visit);
	uint32_t fr = m->pages[p.v->page].frame;
	if (fr != SIM_NONE && sim_bits_all(&m->frames[fr].valid, p.v->b0, p.v->b1)) {
		served(m, &p, false);
		if (m->ops->read)
			m->ops->read(m->policy, p.file, p.off, p.len, reader_of(m, k), false);
		part_advance(m, k, &p);
		sim_policy_run(m);
		return;
	}
	bool is_given_up = m->cfg.abandon_every && ++m->waits % m->cfg.abandon_every == 0;
	if (!is_given_up)
		worker_wait(m, k, &p); /* before the policy runs: what is waited for is not cancelled */
	part_miss(m, k, &p);
	sim_policy_run(m);
	if (is_given_up)
		part_advance(m, k, &p);
}

static void worker_run(struct sim *m, struct worker *k)
{
	for (;;) {
		if (k->state == W_WAITING || k->state == W_COPYING)
			return;
		if (!k->has_batch && !batch_begin(m, k))
			return;
		if (k->read >= sim_batch_end(&m->work->ranks[k->rank], k->batch))
			batch_end(m, k);
		else
			worker_read(m, k);
	}
}

void sim_workers_run(struct sim *m)
{
	while (m->n_runnable > 0) {
		struct worker *k = &m->workers[m->runnable[m->run_head]];

		m->run_head = (m->run_head + 1) % m->n_workers;
		m->n_runnable--;
		k->is_runnable = false;
		worker_run(m, k);
	}
}

void sim_worker_copied(struct sim *m, uint32_t w)
{
	m->workers[w].state = W_READING;
	sim_worker_wake(m, w);
}

void sim_page_wake(struct sim *m, uint32_t page)
{
	uint32_t fr = m->pages[page].frame, w = m->pages[page].waiters;

	while (w != SIM_NONE) {
		struct worker *k = &m->workers[w];
		uint32_t next = k->next_waiter;

		if (sim_bits_all(&m->frames[fr].valid, k->b0, k->b1)) {
			struct part p;

			waiter_unlink(m, w);
			part_get(m, k, &p);
			served(m, &p, false);
			k->state = W_READING;
			part_advance(m, k, &p);
			if (k->state == W_READING)
				sim_worker_wake(m, w);
		}
		w = next;
	}
}

void sim_page_again(struct sim *m, uint32_t page)
{
	for (uint32_t w = m->pages[page].waiters; w != SIM_NONE; w = m->workers[w].next_waiter) {
		struct worker *k = &m->workers[w];
		const struct frame *f = m->pages[page].frame == SIM_NONE ? NULL : &m->frames[m->pages[page].frame];
		bool is_coming = f != NULL;

		for (uint32_t b = k->b0; is_coming && b <= k->b1; b++)
			is_coming = sim_bits_any(&f->valid, b, b) || sim_bits_any(&f->flight, b, b);
		if (!is_coming) {
			struct part p;

			part_get(m, k, &p);
			part_miss(m, k, &p);
		}
	}
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static int loader_ranks(struct sim *m)
{
	uint32_t each = m->cfg.workers ? m->cfg.workers : 1;

	for (uint32_t k = 0; k < m->work->n_ranks; k++) {
		struct rank *r = &m->ranks[k];

		r->is_ready = calloc(m->work->ranks[k].n_batches + 1, 1);
		if (!r->is_ready)
			return -ENOMEM;
		r->first_worker = k * each;
		r->n_workers = each;
		for (uint32_t i = 0; i < each; i++) {
			struct worker *w = &m->workers[k * each + i];
			size_t epoch = 0;

			*w = (struct worker){.rank = k, .index = i, .file = SIM_NONE, .wait_page = SIM_NONE};
			w->batch = worker_first(m, w, &epoch);
		}
		m->reads_all += m->work->ranks[k].n_reads;
	}
	return 0;
}

int sim_loader_init(struct sim *m)
{
	uint32_t n = m->work->n_ranks;

	m->n_workers = n * (m->cfg.workers ? m->cfg.workers : 1);
	m->n_trainers = m->cfg.is_independent ? n : 1;
	m->workers = calloc(m->n_workers, sizeof(*m->workers));
	m->runnable = calloc(m->n_workers, sizeof(*m->runnable));
	m->ranks = calloc(n, sizeof(*m->ranks));
	m->trainers = calloc(m->n_trainers, sizeof(*m->trainers));
	m->pc_head = m->pc_tail = SIM_NONE;
	if (!m->workers || !m->runnable || !m->ranks || !m->trainers)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->n_trainers; i++) {
		m->trainers[i].rank0 = i;
		m->trainers[i].n_ranks = m->cfg.is_independent ? 1 : n;
	}
	return loader_ranks(m);
}

void sim_loader_finish(struct sim *m)
{
	for (uint32_t k = 0; m->ranks && k < m->work->n_ranks; k++)
		free(m->ranks[k].is_ready);
	free(m->workers);
	free(m->runnable);
	free(m->ranks);
	free(m->trainers);
}

void sim_loader_start(struct sim *m)
{
	for (uint32_t i = 0; i < m->n_trainers; i++)
		trainer_ask(m, i);
}
