/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_events.c - what an event means to the scheduler, and what its actions mean to the cache. Lock held throughout.
 *
 * A generation that is no longer its name's (m->file != f) is not scheduled: a miss on it is fetched at once, and its slot
 * given back when the waiters have been served. So is what a read still waits for although the scheduler was asked for it long ago.
 * While such orders are under way the scheduler is told of fewer slots, so that it makes room for them.
 */
#include "fs/engine_i.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define STARVING_NS (450 * HFS_NS_PER_MS) /* the cache says it again every 100 ms; a busy machine alone takes some */
#define OVERDUE_STILL_NS HFS_NS_PER_S
#define OVERDUE_MAX_NS (20 * HFS_NS_PER_S)

static bool is_current(struct engine *e, uint32_t name, const struct cache_file *f)
{
	return name != NAME_NONE && name_at(e, name)->file == f;
}

static uint32_t chunk_len(const struct engine *e, uint64_t size, uint64_t chunk_no)
{
	uint64_t at = chunk_no * e->cfg.cache.chunk_bytes, left = size - at;

	return (uint32_t)(left < e->cfg.cache.chunk_bytes ? left : e->cfg.cache.chunk_bytes);
}

/* ---- events ------------------------------------------------------------------------------- */

/* At most three quarters: the others need some too. */
static void slots_tell(struct engine *e)
{
	uint32_t most = e->slots_ready - (e->slots_ready + 3) / 4;
	uint32_t n = e->n_unscheduled + (uint32_t)(e->n_slots_lent > 0 ? e->n_slots_lent : 0);

	n = n < most ? n : most;
	sched_set_slots(e->sched, e->slots_ready - n);
}

static int order_unscheduled(struct engine *e, struct cache_file *f, uint64_t chunk_no, uint32_t off, uint32_t len)
{
	struct unscheduled *u = malloc(sizeof(*u));
	int rc = u ? cache_fetch(e->cache, f, chunk_no, off, len, true, 0) : -ENOMEM;

	if (rc < 0) {
		free(u);
		return rc;
	}
	*u = (struct unscheduled){
		.next = e->unscheduled, .file = f, .chunk_no = chunk_no, .off_bytes = off, .len_bytes = len
	};
	e->unscheduled = u;
	e->n_unscheduled++;
	slots_tell(e);
	return 0;
}

/* One answer more; an order of the scheduler for the same blocks cannot be told apart, and need not be. */
static void unscheduled_ended(struct engine *e, const struct event *ev)
{
	struct unscheduled **p = &e->unscheduled, *u;

	while ((u = *p) && (u->file != ev->file || u->chunk_no != ev->off_bytes || u->off_bytes != ev->fetch_off ||
			    u->len_bytes != ev->fetch_len))
		p = &u->next;
	if (!u)
		return;
	*p = u->next;
	free(u);
	e->n_unscheduled--;
	slots_tell(e);
}

/* With more of them than this the rest are asked for again by the cache. */
static void fail_later(struct engine *e, struct cache_file *f, uint64_t chunk_no, int err)
{
	uint32_t n = atomic_load(&e->n_failed);

	if (n == FAILED_MAX)
		return;
	cache_file_ref(f);
	e->failed[n] = (struct failed){ .file = f, .chunk_no = chunk_no, .err = err };
	atomic_store(&e->n_failed, n + 1);
}

/* A miss on an old generation: just its blocks, now. */
static void read_unscheduled(struct engine *e, const struct event *ev)
{
	uint64_t size = cache_file_identity(ev->file)->size_bytes, chunk = e->cfg.cache.chunk_bytes;
	uint64_t at = ev->off_bytes, end = ev->off_bytes + ev->len_bytes;

	while (at < end) {
		uint64_t no = at / chunk;
		uint32_t len = chunk_len(e, size, no), from = (uint32_t)(at % chunk) / e->block_bytes * e->block_bytes;
		uint64_t to = end - no * chunk;

		to = (to + e->block_bytes - 1) / e->block_bytes * e->block_bytes;
		if (to > len)
			to = len;
		int rc = order_unscheduled(e, ev->file, no, from, (uint32_t)(to - from));
		if (rc < 0)
			fail_later(e, ev->file, no, rc);
		at = (no + 1) * chunk;
	}
}

/* As if it were opened, but for that it stays only as long as the scheduler has pages of it. */
static void read_bind(struct engine *e, struct event *ev) HFS_REQUIRES(e->lock)
{
	char *path = cache_file_path(e->cache, ev->file);

	if (path)
		(void)name_bind_path_locked(e, path, ev->file, &ev->name); /* else it is read without a name */
	free(path);
}

static void on_read(struct engine *e, struct event *ev) HFS_REQUIRES(e->lock)
{
	if (ev->may_bind && ev->file && !is_current(e, ev->name, ev->file))
		read_bind(e, ev);
	if (ev->name != NAME_NONE && name_at(e, ev->name)->path && atomic_load(&e->n_recorders) > 0)
		record_read(e, name_at(e, ev->name)->path, ev->asked_off, ev->asked_len);
	if (ev->is_miss && !is_current(e, ev->name, ev->file)) {
		read_unscheduled(e, ev);
		return;
	}
	if (ev->name == NAME_NONE || !name_at(e, ev->name)->path)
		return;
	sched_read(e->sched, ev->name, ev->off_bytes, ev->len_bytes, ev->reader, ev->is_miss, ev->now_ns);
}

/*
 * What was said of these bytes before no longer holds. The scheduler may have good reason to be late with them, few slots or a
 * slow origin; if nothing comes at all, or not these for very long, it is not waited for.
 */
static void on_lost(struct engine *e, struct event *ev)
{
	bool is_moving = ev->now_ns < e->moved_ns + OVERDUE_STILL_NS;

	if (!is_current(e, ev->name, ev->file))
		read_unscheduled(e, ev);
	else if (ev->waited_ns == 0)
		sched_read_again(e->sched, ev->name, ev->off_bytes, ev->len_bytes, ev->now_ns);
	else if (!is_moving || ev->waited_ns > OVERDUE_MAX_NS)
		read_unscheduled(e, ev);
}

static void on_fetched(struct engine *e, struct event *ev)
{
	if (ev->err >= 0)
		e->moved_ns = ev->now_ns;
	if (e->unscheduled)
		unscheduled_ended(e, ev);
	/* An answer that concerns another generation than the scheduler's would be taken for one about its pages. */
	if (!is_current(e, ev->name, ev->file)) {
		cache_evict(e->cache, ev->file, ev->off_bytes);
		return;
	}
	if (ev->is_tier_missed)
		sched_tier_has(e->sched, ev->name, ev->off_bytes, false);
	sched_fetched(e->sched, ev->name, ev->off_bytes, ev->fetch_off, ev->fetch_len, ev->err, ev->issued_ns, ev->now_ns);
	if (ev->err < 0)
		name_trim_locked(e, ev->name);
}

/* Pages in slots that the scheduler does not know of, and so will never give up. */
static void shed_unknown(struct engine *e)
{
	struct cache_idle idle[64];
	uint64_t cursor = 0;

	do {
		size_t n = cache_idle_list(e->cache, &cursor, idle, 64);

		for (size_t i = 0; i < n; i++) {
			uint32_t name = cache_file_tag(idle[i].file);

			if (!is_current(e, name, idle[i].file) || !sched_page_is_held(e->sched, name, idle[i].chunk_no)) {
				cache_evict(e->cache, idle[i].file, idle[i].chunk_no);
				e->n_shed++;
			}
			cache_file_put(e->cache, idle[i].file);
		}
	} while (cursor != 0);
}

/*
 * Fetches lack slots. The scheduler gives up pages; if none was given up for a while although it was told, look whether it
 * knows of all that hold slots.
 */
static void on_starved(struct engine *e, const struct event *ev)
{
	sched_shortage(e->sched, ev->name, ev->now_ns);
	if (e->starving_ns == 0)
		e->starving_ns = ev->now_ns;
	if (ev->now_ns < e->starving_ns + STARVING_NS)
		return;
	shed_unknown(e);
	e->starving_ns = 0;
}

static void orphans_run(struct engine *e, uint32_t name, int err, uint64_t now_ns)
{
	struct ename *m = name_at(e, name);
	struct orphan *o = m->orphans;

	m->orphans = NULL;
	while (o) {
		struct orphan *next = o->next;
		int rc = err;

		if (rc == 0)
			rc = cache_fetch(e->cache, m->file, o->a.chunk_no, o->a.off_bytes, o->a.len_bytes, o->a.is_demand,
					 o->a.deadline_ns);
		if (rc < 0)
			sched_fetched(e->sched, name, o->a.chunk_no, o->a.off_bytes, o->a.len_bytes, rc, now_ns, now_ns);
		free(o);
		o = next;
	}
}

struct realpath_job {
	struct engine *e;
	uint32_t name;
	char *path;
};

/* Runs where it may wait for the origin. */
static void job_realpath(void *arg)
{
	struct realpath_job *j = arg;
	struct origin_attr attr = { 0 };
	struct event ev = { .kind = EV_REALPATH, .name = j->name };

	ev.err = origin_realpath(j->e->cfg.cache.origin, j->path, &ev.path, &attr);
	if (ev.err == 0 && (attr.mode & 0170000) != DTTOIF(DT_REG))
		ev.err = -EISDIR;
	ev.size_bytes = attr.id.size_bytes;
	ev.now_ns = hfs_now_ns();
	engine_post(j->e, &ev);
	engine_pump(j->e);
	free(j->path);
	free(j);
}

/* The name is a symbolic link (or leads through one): find out where it ends. */
static int realpath_start(struct engine *e, uint32_t name)
{
	struct realpath_job *j = calloc(1, sizeof(*j));

	if (!j || !(j->path = strdup(name_at(e, name)->path))) {
		free(j);
		return -ENOMEM;
	}
	j->e = e;
	j->name = name;
	int rc = e->cfg.run ? e->cfg.run(e->cfg.run_ctx, job_realpath, j) : -ELOOP;
	if (rc < 0) {
		free(j->path);
		free(j);
	}
	return rc;
}

static void resolve_failed(struct engine *e, uint32_t name, int err, uint64_t now_ns)
{
	struct ename *m = name_at(e, name);

	m->is_resolving = m->is_asked = false;
	m->is_missing = true;
	orphans_run(e, name, err, now_ns);
	sched_file_resolved(e->sched, name, err, 0, SCHED_NO_FILE, now_ns);
	name_trim_locked(e, name);
}

static void on_resolved(struct engine *e, struct event *ev) HFS_REQUIRES(e->lock)
{
	struct ename *m = name_at(e, ev->name);
	int fetch_err = -(int)ev->off_bytes;

	if (ev->err == -ELOOP && realpath_start(e, ev->name) == 0)
		return;
	if (ev->err < 0) {
		resolve_failed(e, ev->name, ev->err, ev->now_ns);
		return;
	}
	m->is_resolving = false;
	bool was_known = m->is_known && m->orphans;
	uint32_t owner = name_bind_locked(e, ev->name, ev->file);
	if (!was_known && owner == ev->name)
		sched_file_resolved(e->sched, ev->name, 0, ev->size_bytes, SCHED_NO_FILE, ev->now_ns);
	if (ev->is_small && m->is_asked) {
		if (owner != ev->name && !sched_page_is_held(e->sched, owner, 0))
			cache_evict(e->cache, ev->file, 0);
		sched_fetched(e->sched, ev->name, 0, 0, ev->fetch_len, owner == ev->name ? fetch_err : -ECANCELED,
			      ev->issued_ns, ev->now_ns);
	}
	m->is_awaited = !ev->is_small && owner == ev->name;
	m->is_asked = false;
	orphans_run(e, ev->name, owner == ev->name ? 0 : -ECANCELED, ev->now_ns);
	name_trim_locked(e, ev->name);
}

static void on_realpath(struct engine *e, struct event *ev)
{
	uint32_t target = NAME_NONE;
	int rc = ev->err;

	if (rc == 0)
		rc = name_get_locked(e, ev->path, strlen(ev->path), &target);
	free(ev->path);
	if (rc < 0) {
		resolve_failed(e, ev->name, rc, ev->now_ns);
		return;
	}
	name_at(e, ev->name)->is_resolving = name_at(e, ev->name)->is_asked = false;
	sched_file_resolved(e->sched, ev->name, 0, ev->size_bytes, target, ev->now_ns);
	orphans_run(e, ev->name, -ECANCELED, ev->now_ns);
	name_at(e, target)->refs--;
	name_trim_locked(e, target);
	name_trim_locked(e, ev->name);
}

static void on_changed(struct engine *e, struct event *ev)
{
	if (is_current(e, ev->name, ev->file))
		name_unresolve_locked(e, ev->name);
}

void engine_event_locked(struct engine *e, struct event *ev, struct wait **done)
{
	switch (ev->kind) {
	case EV_READ:
		on_read(e, ev);
		break;
	case EV_LOST:
		on_lost(e, ev);
		break;
	case EV_FETCHED:
		on_fetched(e, ev);
		break;
	case EV_RESOLVED:
		on_resolved(e, ev);
		break;
	case EV_REALPATH:
		on_realpath(e, ev);
		break;
	case EV_CHANGED:
		on_changed(e, ev);
		break;
	case EV_SLOTS:
		e->slots_ready = ev->name;
		slots_tell(e);
		waits_tell_locked(e, done);
		break;
	case EV_SLOTS_LENT:
		e->n_slots_lent += ev->err;
		slots_tell(e);
		break;
	case EV_STARVED:
		on_starved(e, ev);
		break;
	case EV_TIER_ADMITTED:
	case EV_TIER_LOST:
	case EV_TIER_ADOPTED:
		tier_event_locked(e, ev, done);
		break;
	}
	if (ev->file)
		cache_file_put(e->cache, ev->file);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void resolve(struct engine *e, uint32_t name, uint64_t deadline_ns)
{
	struct ename *m = name_at(e, name);
	int rc;

	if (m->is_resolving)
		return;
	m->is_resolving = true;
	rc = cache_resolve(e->cache, m->path, name, deadline_ns);
	if (rc < 0)
		resolve_failed(e, name, rc, hfs_now_ns());
}

static void act_fetch(struct engine *e, const struct sched_action *a)
{
	struct ename *m = name_at(e, a->file);
	int rc;

	m->is_awaited = false;
	if (m->file) {
		rc = cache_fetch(e->cache, m->file, a->chunk_no, a->off_bytes, a->len_bytes, a->is_demand, a->deadline_ns);
	} else {
		struct orphan *o = malloc(sizeof(*o));

		rc = o ? 0 : -ENOMEM;
		if (o) {
			*o = (struct orphan){ .next = m->orphans, .a = *a };
			m->orphans = o;
			resolve(e, a->file, a->deadline_ns);
		}
	}
	if (rc < 0) {
		uint64_t now_ns = hfs_now_ns();

		sched_fetched(e->sched, a->file, a->chunk_no, a->off_bytes, a->len_bytes, rc, now_ns, now_ns);
		if (a->is_demand && m->file)
			fail_later(e, m->file, a->chunk_no, rc);
	}
}

/* The file may have been opened since the name was written: then there is nothing to look up. */
static void act_resolve(struct engine *e, const struct sched_action *a)
{
	struct ename *m = name_at(e, a->file);
	uint64_t now_ns = hfs_now_ns();

	if (!m->file || m->is_resolving) {
		m->is_asked = true;
		resolve(e, a->file, a->deadline_ns);
		return;
	}
	uint64_t size = cache_file_identity(m->file)->size_bytes;
	sched_file_resolved(e->sched, a->file, 0, size, SCHED_NO_FILE, now_ns);
	if (size > e->cfg.cache.chunk_bytes)
		return;
	int rc = size ? cache_fetch(e->cache, m->file, 0, 0, (uint32_t)size, false, a->deadline_ns) : 0;
	if (rc < 0 || size == 0)
		sched_fetched(e->sched, a->file, 0, 0, (uint32_t)size, rc, now_ns, now_ns);
}

static void act_wait_done(struct engine *e, const struct sched_action *a, struct wait **done)
{
	for (struct wait **p = &e->waits; *p; p = &(*p)->next) {
		struct wait *w = *p;

		if (w->token == a->token) {
			*p = w->next;
			w->err = a->err;
			w->next = *done;
			*done = w;
			return;
		}
	}
}

void engine_execute_locked(struct engine *e, const struct sched_action *a, struct wait **done)
{
	switch (a->kind) {
	case SCHED_FETCH:
		act_fetch(e, a);
		break;
	case SCHED_EVICT:
		if (name_at(e, a->file)->file)
			cache_evict(e->cache, name_at(e, a->file)->file, a->chunk_no);
		e->starving_ns = 0;
		break;
	case SCHED_UNFETCH:
		if (name_at(e, a->file)->file)
			cache_unfetch(e->cache, name_at(e, a->file)->file, a->chunk_no);
		break;
	case SCHED_RESOLVE:
		act_resolve(e, a);
		break;
	case SCHED_WAIT_DONE:
		act_wait_done(e, a, done);
		break;
	case SCHED_TIER_ADMIT:
		tier_act_admit_locked(e, a, done);
		break;
	case SCHED_TIER_DROP:
		tier_act_drop_locked(e, a);
		break;
	}
}
