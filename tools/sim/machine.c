/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/machine.c - virtual time: events in order, the policy's actions executed as fs/engine.c does, frames counted.
 *
 * Order inside one instant: what happened reaches the machine first (data is there, readers are served), then the policy hears of it
 * and acts, then readers go on.
 */
#include "tools/sim/sim_i.h"

#include <stdio.h>

#define ACTIONS_MAX 256u
#define DAYS_400_NS (400ULL * 86400 * SIM_SEC)
#define TIMER_MIN_NS 1000 /* a policy that wants to be asked again at once does not stop the clock */
#define LATE_NS (200 * SIM_MSEC) /* sched.h: a fetch this old no longer holds a slot */

void sim_config_default(struct sim_config *c)
{
	*c = (struct sim_config){.slots = 1024,
				 .latency_ns = SIM_MSEC,
				 .bandwidth_bytes_per_s = 200e6,
				 .outstanding = 64,
				 .disk_latency_ns = 100 * SIM_USEC,
				 .disk_bytes_per_s = 2e9,
				 .workers = 8,
				 .prefetch = 2,
				 .compute_ns = 50 * SIM_MSEC,
				 .epochs_ahead = SIM_NONE,
				 .seed = 1};
}

/* ---- event heap ---------------------------------------------------------------------------------- */

static bool event_before(const struct event *a, const struct event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

void sim_event(struct sim *m, uint64_t at_ns, enum event_kind kind, uint32_t who)
{
	struct event ev = {.at_ns = at_ns, .seq = m->seq++, .kind = kind, .who = who};
	size_t i = m->n_heap;

	if (m->n_heap == m->cap_heap) {
		size_t cap = m->cap_heap ? m->cap_heap * 2 : 256;
		void *p = reallocarray(m->heap, cap, sizeof(*m->heap));

		if (!p) {
			m->is_out_of_memory = true;
			return;
		}
		m->heap = p;
		m->cap_heap = cap;
	}
	m->n_heap++;
	for (; i > 0 && event_before(&ev, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
		m->heap[i] = m->heap[(i - 1) / 2];
	m->heap[i] = ev;
}

static struct event event_pop(struct sim *m)
{
	struct event top = m->heap[0], last = m->heap[--m->n_heap];
	size_t i = 0;

	for (;;) {
		size_t c = 2 * i + 1;

		if (c >= m->n_heap)
			break;
		if (c + 1 < m->n_heap && event_before(&m->heap[c + 1], &m->heap[c]))
			c++;
		if (!event_before(&m->heap[c], &last))
			break;
		m->heap[i] = m->heap[c];
		i = c;
	}
	m->heap[i] = last;
	return top;
}

/* ---- frames -------------------------------------------------------------------------------------------- */

void sim_breach(struct sim *m, const char *what, uint32_t file, uint64_t chunk_no)
{
	if (m->res->breaches++ == 0)
		snprintf(m->res->breach, sizeof(m->res->breach), "%s: file %u page %llu at %.6f s", what, file,
			 (unsigned long long)chunk_no, (double)m->now_ns / (double)SIM_SEC);
}

uint32_t sim_chunk_len(const struct sim *m, uint32_t file, uint64_t chunk_no)
{
	uint64_t left = m->work->files[file].size_bytes - chunk_no * m->work->chunk_bytes;

	return (uint32_t)(left < m->work->chunk_bytes ? left : m->work->chunk_bytes);
}

uint32_t sim_chunk_blocks(const struct sim *m, uint32_t page_len)
{
	return (page_len + m->visits.block_bytes - 1) / m->visits.block_bytes;
}

uint32_t sim_frame_get(struct sim *m, uint32_t page)
{
	uint32_t fr = m->pages[page].frame;

	if (fr != SIM_NONE)
		return fr;
	fr = m->free_frame;
	if (fr != SIM_NONE) {
		m->free_frame = m->frames[fr].next_free;
	} else {
		if (m->n_frames == m->cap_frames) {
			uint32_t cap = m->cap_frames ? m->cap_frames * 2 : 256;
			void *p = reallocarray(m->frames, cap, sizeof(*m->frames));

			if (!p) {
				m->is_out_of_memory = true;
				return SIM_NONE;
			}
			m->frames = p;
			m->cap_frames = cap;
		}
		fr = m->n_frames++;
	}
	m->frames[fr] = (struct frame){.page = page};
	m->pages[page].frame = fr;
	m->live_frames++;
	m->max_frames = m->live_frames > m->max_frames ? m->live_frames : m->max_frames;
	return fr;
}

void sim_frame_put(struct sim *m, uint32_t page)
{
	uint32_t fr = m->pages[page].frame;

	m->frames[fr].page = SIM_NONE;
	m->frames[fr].next_free = m->free_frame;
	m->free_frame = fr;
	m->pages[page].frame = SIM_NONE;
	m->live_frames--;
}

/* Slots are over budget: unless late fetches, which no longer count, account for it. */
static void budget_check(struct sim *m, uint32_t file, uint64_t chunk_no)
{
	uint32_t late = 0;

	if (!m->ops->is_bounded || m->live_frames <= m->cfg.slots)
		return;
	for (uint32_t i = 0; i < m->n_fetches; i++) {
		const struct fetch *f = &m->fetches[i];

		if (f->state == FETCH_STARTED && m->now_ns - f->issued_ns >= LATE_NS)
			late++;
		else if (f->state == FETCH_QUEUED && m->now_ns > f->deadline_ns)
			late += m->n_started && m->now_ns - m->fetches[i].deadline_ns >= LATE_NS;
	}
	if (m->live_frames - m->cfg.slots > late)
		sim_breach(m, "slots over budget", file, chunk_no);
}

/* ---- actions ---------------------------------------------------------------------------------------------- */

/* A demand for what is on its way already: pulled forward, nothing else. */
static bool is_joined(const struct frame *f, uint32_t b0, uint32_t b1)
{
	for (uint32_t b = b0; b <= b1; b++)
		if (!sim_bits_any(&f->flight, b, b))
			return false;
	return true;
}

static void act_fetch(struct sim *m, const struct sched_action *a)
{
	uint32_t page = sim_page(m, a->file, a->chunk_no), bb = m->visits.block_bytes, fr;
	uint32_t b0 = a->off_bytes / bb, b1 = a->len_bytes ? (a->off_bytes + a->len_bytes - 1) / bb : b0;
	uint32_t size = sim_chunk_len(m, a->file, a->chunk_no);

	if (!a->len_bytes || a->off_bytes % bb || a->off_bytes + a->len_bytes > size) {
		sim_breach(m, "fetch outside its page", a->file, a->chunk_no);
		return;
	}
	fr = sim_frame_get(m, page);
	if (fr == SIM_NONE)
		return;
	if (a->is_demand)
		sim_fetch_promote(m, page, b0, b1);
	if (is_joined(&m->frames[fr], b0, b1))
		return; /* the answer to what is under way is the answer to this */
	if (sim_bits_any(&m->frames[fr].flight, b0, b1))
		sim_breach(m, "fetch of blocks in flight", a->file, a->chunk_no);
	sim_bits_set(&m->frames[fr].flight, b0, b1);
	m->frames[fr].n_fetches++;
	budget_check(m, a->file, a->chunk_no);
	sim_fetch_add(m, a, false);
}

static void act_evict(struct sim *m, const struct sched_action *a)
{
	uint32_t page = sim_page(m, a->file, a->chunk_no), fr = m->pages[page].frame;

	if (fr == SIM_NONE) {
		/* Where a look-up and a fetch brought the same, the second answer is given back although nothing came of it. */
		if (!m->cfg.is_names_unknown)
			sim_breach(m, "eviction of a page that is not there", a->file, a->chunk_no);
		return;
	}
	if (m->frames[fr].n_fetches && m->frames[fr].is_doubled) {
		sim_fetch_orphan(m, page); /* as the cache: what is on its way ends nowhere */
	} else if (m->frames[fr].n_fetches) {
		sim_breach(m, "eviction of a page in flight", a->file, a->chunk_no);
		return;
	}
	sim_frame_put(m, page);
	sim_page_again(m, page);
}

/* The file may have been opened since the name was written: then there is nothing to look up. */
static void act_resolve(struct sim *m, const struct sched_action *a)
{
	const struct sim_file *f = &m->work->files[a->file];
	bool is_small = !f->is_missing && f->size_bytes <= m->work->chunk_bytes;
	struct sched_action data = *a;

	data.chunk_no = 0;
	data.off_bytes = 0;
	data.len_bytes = is_small ? (uint32_t)f->size_bytes : 0;
	data.is_demand = a->is_demand;
	data.from_tier = false;
	if (!m->is_resolved[a->file]) {
		if (!m->is_resolving[a->file])
			sim_fetch_add(m, &data, true);
		m->is_resolving[a->file] = 1;
		return;
	}
	m->ops->resolved(m->policy, a->file, f->is_missing ? -ENOENT : 0, f->size_bytes);
	if (is_small)
		act_fetch(m, &data);
}

static void execute(struct sim *m, const struct sched_action *a)
{
	switch (a->kind) {
	case SCHED_FETCH:
		act_fetch(m, a);
		break;
	case SCHED_EVICT:
		act_evict(m, a);
		break;
	case SCHED_UNFETCH:
		sim_fetch_cancel(m, a->file, a->chunk_no);
		break;
	case SCHED_RESOLVE:
		act_resolve(m, a);
		break;
	case SCHED_TIER_ADMIT:
		sim_tier_admit(m, a->file, a->chunk_no);
		break;
	case SCHED_TIER_DROP:
		sim_tier_drop(m, a->file, a->chunk_no);
		break;
	case SCHED_WAIT_DONE:
		break; /* nobody in here waits for batches */
	}
}

void sim_policy_run(struct sim *m)
{
	struct sched_action acts[ACTIONS_MAX];
	size_t n;

	if (!m->ops->step)
		return;
	do {
		n = m->ops->step(m->policy, acts, ACTIONS_MAX);
		for (size_t i = 0; i < n; i++)
			execute(m, &acts[i]);
	} while (n > 0);
	m->timer_ns = m->ops->next_ns ? m->ops->next_ns(m->policy) : SCHED_NO_TIME;
	if (m->timer_ns != SCHED_NO_TIME && m->timer_ns <= m->now_ns)
		m->timer_ns = m->now_ns + TIMER_MIN_NS;
}

/* ---- the loop ------------------------------------------------------------------------------------------------ */

static void handle(struct sim *m, const struct event *ev)
{
	switch (ev->kind) {
	case EV_ARRIVE:
		sim_fetch_arrived(m, ev->who);
		return;
	case EV_FETCHED:
		sim_fetch_done(m, ev->who);
		break;
	case EV_TIER_WRITTEN:
		sim_tier_written(m, ev->who);
		break;
	case EV_COMPUTED:
		sim_trainer_computed(m, ev->who);
		break;
	case EV_WORKER:
		sim_worker_copied(m, ev->who);
		break;
	}
	sim_policy_run(m);
	sim_workers_run(m);
}

static void machine_loop(struct sim *m)
{
	uint64_t end_ns = m->cfg.time_max_ns ? m->cfg.time_max_ns : DAYS_400_NS;

	sim_loader_start(m);
	sim_workers_run(m);
	while (m->trainers_done < m->n_trainers && !m->is_out_of_memory) {
		bool is_timer = m->timer_ns != SCHED_NO_TIME && (m->n_heap == 0 || m->timer_ns < m->heap[0].at_ns);

		if ((!is_timer && m->n_heap == 0) || m->now_ns > end_ns) {
			m->res->is_deadlock = true;
			return;
		}
		if (is_timer) {
			m->now_ns = m->timer_ns;
			sim_policy_run(m);
			sim_workers_run(m);
		} else {
			struct event ev = event_pop(m);

			m->now_ns = ev.at_ns;
			handle(m, &ev);
		}
	}
}

static void totals(struct sim_result *res)
{
	for (size_t i = 0; i < res->n_epochs; i++) {
		const struct sim_epoch *e = &res->epochs[i];
		struct sim_epoch *t = &res->total;

		t->time_s += e->time_s;
		t->stall_s += e->stall_s;
		t->origin_bytes += e->origin_bytes;
		t->origin_reads += e->origin_reads;
		t->needed_bytes += e->needed_bytes;
		t->hit_bytes += e->hit_bytes;
		t->disk_bytes += e->disk_bytes;
		t->disk_write_bytes += e->disk_write_bytes;
	}
}

static int machine_init(struct sim *m)
{
	uint32_t n = m->work->n_pages;
	int rc = sim_visits_init(m->work, &m->visits);

	if (rc)
		return rc;
	m->free_frame = m->free_fetch = SIM_NONE;
	m->timer_ns = SCHED_NO_TIME;
	m->rng.state = m->cfg.seed;
	m->pages = calloc((size_t)n + 1, sizeof(*m->pages));
	m->is_resolved = calloc((size_t)m->work->n_files + 1, 1);
	m->is_resolving = calloc((size_t)m->work->n_files + 1, 1);
	m->res->n_epochs = m->work->ranks[0].n_epochs;
	m->res->epochs = calloc(m->res->n_epochs + 1, sizeof(*m->res->epochs));
	if (!m->pages || !m->is_resolved || !m->is_resolving || !m->res->epochs)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		m->pages[i].frame = m->pages[i].waiters = SIM_NONE;
	if (!m->cfg.is_names_unknown)
		memset(m->is_resolved, 1, m->work->n_files);
	rc = sim_loader_init(m);
	if (rc == 0 && m->ops->create)
		rc = m->ops->create(m, &m->policy);
	return rc;
}

int sim_run(const struct sim_work *w, const struct sim_config *cfg, const struct sim_policy_ops *policy, struct sim_result *res)
{
	struct sim *m = calloc(1, sizeof(*m));
	int rc = -ENOMEM;

	*res = (struct sim_result){0};
	if (!m)
		return rc;
	m->work = w;
	m->cfg = *cfg;
	m->ops = policy;
	m->res = res;
	rc = machine_init(m);
	if (rc)
		goto out;
	machine_loop(m);
	rc = m->is_out_of_memory ? -ENOMEM : 0;
	totals(res);
	res->frames_max = m->max_frames;
	res->end_s = (double)m->now_ns / (double)SIM_SEC;
	if (policy->finish)
		policy->finish(m->policy, res);
out:
	if (policy->destroy && m->policy)
		policy->destroy(m->policy);
	sim_loader_finish(m);
	sim_visits_finish(&m->visits);
	free(m->heap);
	free(m->pages);
	free(m->frames);
	free(m->fetches);
	free(m->queue);
	free(m->is_resolved);
	free(m->is_resolving);
	free(m);
	if (rc)
		sim_result_finish(res);
	return rc;
}

void sim_result_finish(struct sim_result *r)
{
	free(r->epochs);
	r->epochs = NULL;
}
