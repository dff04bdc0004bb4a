/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/workq.c - see workq.h.
 *
 * A worker is IDLE (waits on `work`), BUSY, or ENDED (to be joined). The watcher thread finds late jobs and starts
 * threads in their place; it sleeps without a timeout while nothing runs and nothing is due.
 * n_woken counts idle threads that were signalled but have not yet taken the lock, so a burst of submits
 * wakes a thread each instead of the same one. They are signalled after the lock is gone, or they would wait for it at once.
 * n_claimed counts queued jobs that nobody was woken for, as the thread that submitted them is about to look for one. Should it be
 * held up all the same, the watcher sees to them.
 */
#include "cache/base/workq.h"
#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_NS (50 * HFS_NS_PER_MS)
#define IDLE_NS (10 * HFS_NS_PER_S)
#define SPARE_JOBS_MAX 1024

struct job {
	struct job *next;
	void (*fn)(void *arg);
	void *arg;
};

struct job_list {
	struct job *first, **last;
};

struct worker {
	struct workq *q;
	struct worker *next, *prev;
	pthread_t thread;
	_Atomic uint64_t since_ns; /* of the job under way; 0: idle */
	bool is_late, is_ended;	   /* guarded by q->lock */
	_Atomic bool has_claimed;  /* written under q->lock */
	bool is_in_tail;	   /* the thread's own */
};

struct workq {
	/* const after create */
	struct workq_config cfg;
	pthread_t watcher;

	struct hfs_mutex lock;
	struct hfs_cond work, watch, ended;
	/* guarded by lock */
	struct job_list demand, other;
	struct job *spare;
	uint32_t n_spare, n_queued;
	struct worker *workers;
	uint32_t n_threads, n_idle, n_woken, n_busy, n_claimed;
	bool is_stopping, is_watcher_deep, is_watcher_ended, is_start_failing, is_tick_wanted;
	uint64_t tick_ns;
	/* atomic, written under lock */
	_Atomic uint32_t n_late;
};

static _Thread_local struct worker *current;

static void list_add(struct job_list *l, struct job *j)
{
	j->next = NULL;
	*l->last = j;
	l->last = &j->next;
}

static struct job *list_take(struct job_list *l)
{
	struct job *j = l->first;

	if (j == NULL)
		return NULL;
	l->first = j->next;
	if (l->first == NULL)
		l->last = &l->first;
	return j;
}

static uint32_t n_working(const struct workq *q)
{
	return q->n_busy - atomic_load(&q->n_late);
}

static void job_free_locked(struct workq *q, struct job *j)
{
	if (q->n_spare >= SPARE_JOBS_MAX) {
		free(j);
		return;
	}
	j->next = q->spare;
	q->spare = j;
	q->n_spare++;
}

static struct job *take_locked(struct workq *q)
{
	struct job *j = list_take(&q->demand);

	if (j == NULL)
		j = list_take(&q->other);
	if (j != NULL)
		q->n_queued--;
	return j;
}

static void claim_drop_locked(struct workq *q, struct worker *w)
{
	q->n_claimed -= w->has_claimed;
	w->has_claimed = false;
}

static void worker_run_locked(struct workq *q, struct worker *w, struct job *j) HFS_REQUIRES(q->lock)
{
	void (*fn)(void *arg) = j->fn;
	void *arg = j->arg;

	job_free_locked(q, j);
	q->n_busy++;
	atomic_store(&w->since_ns, hfs_now_ns());
	if (q->is_watcher_deep) {
		q->is_watcher_deep = false;
		hfs_cond_signal(&q->watch);
	}
	hfs_mutex_unlock(&q->lock);
	fn(arg);
	w->is_in_tail = false;
	hfs_mutex_lock(&q->lock);
	claim_drop_locked(q, w);
	atomic_store(&w->since_ns, 0);
	q->n_busy--;
	if (w->is_late) {
		w->is_late = false;
		atomic_fetch_sub(&q->n_late, 1);
	}
}

/* False: nothing came for a while, or the end. One that could take a job at once stays: later there may be no thread to be had. */
static bool worker_wait_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	bool is_in_time;

	if (q->is_stopping)
		return false;
	q->n_idle++;
	is_in_time = hfs_cond_wait_until(&q->work, &q->lock, hfs_now_ns() + IDLE_NS);
	q->n_idle--;
	if (q->n_woken > 0)
		q->n_woken--;
	return is_in_time || q->n_queued > 0 || q->n_threads - atomic_load(&q->n_late) <= 1;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct workq *q = w->q;
	struct job *j;

	current = w;
	hfs_mutex_lock(&q->lock);
	for (;;) {
		if (n_working(q) < q->cfg.working_max && (j = take_locked(q)) != NULL)
			worker_run_locked(q, w, j);
		else if (!worker_wait_locked(q))
			break;
	}
	w->is_ended = true;
	q->n_threads--;
	hfs_cond_broadcast(&q->ended);
	hfs_cond_signal(&q->watch);
	hfs_mutex_unlock(&q->lock);
	return NULL;
}

static int thread_start(const struct workq *q, pthread_t *ret, void *(*main)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, old;
	size_t stack = q->cfg.stack_bytes != 0 ? q->cfg.stack_bytes : 256 * 1024;
	int err = pthread_attr_init(&attr);

	if (err != 0)
		return -err;
	(void)pthread_attr_setstacksize(&attr, stack);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(ret, &attr, main, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -err;
}

static void worker_unlink_locked(struct workq *q, struct worker *w)
{
	if (w->next != NULL)
		w->next->prev = w->prev;
	if (w->prev != NULL)
		w->prev->next = w->next;
	else
		q->workers = w->next;
}

/* pthread_create under the lock is bounded: it allocates one small stack. */
static int worker_start_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	struct worker *w = calloc(1, sizeof(*w));
	char name[16];
	int err = -ENOMEM;

	if (w != NULL) {
		w->q = q;
		w->next = q->workers;
		if (w->next != NULL)
			w->next->prev = w;
		q->workers = w;
		q->n_threads++;
		err = thread_start(q, &w->thread, worker_main, w);
		if (err < 0) {
			q->n_threads--;
			worker_unlink_locked(q, w);
			free(w);
		}
	}
	if (err < 0) {
		q->is_start_failing = true; /* the watcher tries again and logs it */
		return err;
	}
	(void)snprintf(name, sizeof(name), "%.15s", q->cfg.name);
	(void)pthread_setname_np(w->thread, name);
	return 0;
}

/* A job more is queued, or a late one freed its place: see to it that somebody takes it. True: signal q->work. */
static HFS_MUST_CHECK bool rouse_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	if (n_working(q) >= q->cfg.working_max)
		return false;
	if (q->n_idle > q->n_woken) {
		q->n_woken++;
		return true;
	}
	/* Threads that were started but have not begun yet count as neither idle nor busy. */
	if (q->n_threads < q->cfg.threads_max &&
	    q->n_queued > q->n_claimed + q->n_threads - q->n_busy - (q->n_idle - q->n_woken))
		(void)worker_start_locked(q);
	return false;
}

/* Does the calling thread take the job that was just queued? */
static bool claim_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	struct worker *w = current;

	if (w == NULL || w->q != q || !w->is_in_tail || w->has_claimed)
		return false;
	w->has_claimed = true;
	q->n_claimed++;
	return true;
}

static struct job *job_new_locked(struct workq *q)
{
	struct job *j = q->spare;

	if (j == NULL)
		return malloc(sizeof(*j));
	q->spare = j->next;
	q->n_spare--;
	return j;
}

int workq_run(struct workq *q, void (*fn)(void *arg), void *arg, bool is_demand)
{
	bool must_signal = false, must_watch = false;
	struct job *j;
	int err = 0;

	hfs_mutex_lock(&q->lock);
	if (q->is_stopping)
		err = -ESHUTDOWN;
	else if ((j = job_new_locked(q)) == NULL)
		err = -ENOMEM;
	if (err == 0) {
		j->fn = fn;
		j->arg = arg;
		list_add(is_demand ? &q->demand : &q->other, j);
		q->n_queued++;
		must_signal = !claim_locked(q) && rouse_locked(q);
		must_watch = q->is_watcher_deep;
		q->is_watcher_deep = false;
	}
	hfs_mutex_unlock(&q->lock);
	if (must_signal)
		hfs_cond_signal(&q->work);
	if (must_watch)
		hfs_cond_signal(&q->watch);
	return err;
}

void workq_tail_begin(struct workq *q)
{
	if (current != NULL && current->q == q)
		current->is_in_tail = true;
}

bool workq_tail_has_job(const struct workq *q)
{
	return current != NULL && current->q == q && atomic_load(&current->has_claimed);
}

void workq_tail_end(struct workq *q)
{
	struct worker *w = current;
	bool must_signal = false;

	if (w == NULL || w->q != q || !w->is_in_tail)
		return;
	w->is_in_tail = false;
	hfs_mutex_lock(&q->lock);
	if (w->has_claimed) {
		claim_drop_locked(q, w);
		must_signal = q->n_queued > 0 && rouse_locked(q);
	}
	hfs_mutex_unlock(&q->lock);
	if (must_signal)
		hfs_cond_signal(&q->work);
}

void workq_progress(struct workq *q)
{
	struct worker *w = current;

	if (w == NULL || w->q != q)
		return;
	atomic_store(&w->since_ns, hfs_now_ns());
	if (atomic_load(&q->n_late) == 0)
		return;
	hfs_mutex_lock(&q->lock);
	if (w->is_late) {
		w->is_late = false;
		atomic_fetch_sub(&q->n_late, 1);
	}
	hfs_mutex_unlock(&q->lock);
}

bool workq_is_any_late(const struct workq *q)
{
	return atomic_load(&q->n_late) != 0;
}

void workq_stats_get(struct workq *q, struct workq_stats *ret)
{
	uint64_t now_ns = hfs_now_ns(), since_ns;

	hfs_mutex_lock(&q->lock);
	*ret = (struct workq_stats){
		.threads = q->n_threads, .busy = q->n_busy, .late = atomic_load(&q->n_late), .queued = q->n_queued};
	for (struct worker *w = q->workers; w != NULL; w = w->next) {
		since_ns = atomic_load(&w->since_ns);
		if (since_ns != 0 && now_ns > since_ns && now_ns - since_ns > ret->oldest_ns)
			ret->oldest_ns = now_ns - since_ns;
	}
	hfs_mutex_unlock(&q->lock);
}

/* ---- the watcher ---- */

static void find_late_locked(struct workq *q, uint64_t now_ns) HFS_REQUIRES(q->lock)
{
	uint64_t since_ns;

	for (struct worker *w = q->workers; w != NULL; w = w->next) {
		since_ns = atomic_load(&w->since_ns);
		if (w->is_late || since_ns == 0 || now_ns < since_ns || now_ns - since_ns < q->cfg.late_ns)
			continue;
		w->is_late = true;
		claim_drop_locked(q, w);
		atomic_fetch_add(&q->n_late, 1);
	}
}

static void reap_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	struct worker *w = q->workers, *next;

	for (; w != NULL; w = next) {
		next = w->next;
		if (!w->is_ended)
			continue;
		worker_unlink_locked(q, w);
		pthread_join(w->thread, NULL); /* it has left the lock for good: no wait worth the name */
		free(w);
	}
}

static void start_missing_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	uint32_t n = q->n_queued;
	uint32_t before;

	q->is_start_failing = false;
	while (n-- > 0 && !q->is_start_failing) {
		before = q->n_threads + q->n_woken;
		if (rouse_locked(q))
			hfs_cond_signal(&q->work);
		if (q->n_threads + q->n_woken == before)
			break;
	}
}

static void watcher_sleep_locked(struct workq *q) HFS_REQUIRES(q->lock)
{
	uint64_t now_ns = hfs_now_ns();

	if (q->is_tick_wanted)
		return;
	if (q->n_busy > 0 || q->n_queued > 0) {
		(void)hfs_cond_wait_until(&q->watch, &q->lock, now_ns + WATCH_NS);
	} else if (q->tick_ns != UINT64_MAX) {
		q->is_watcher_deep = true;
		if (q->tick_ns > now_ns)
			(void)hfs_cond_wait_until(&q->watch, &q->lock, q->tick_ns);
		q->is_watcher_deep = false;
	} else {
		q->is_watcher_deep = true;
		hfs_cond_wait(&q->watch, &q->lock);
		q->is_watcher_deep = false;
	}
}

static void *watcher_main(void *arg)
{
	struct workq *q = arg;
	uint64_t (*tick)(void *ctx, uint64_t now_ns);
	bool has_failed;
	uint64_t tick_ns;

	hfs_mutex_lock(&q->lock);
	while (!q->is_stopping || q->n_queued > 0) {
		watcher_sleep_locked(q);
		reap_locked(q);
		find_late_locked(q, hfs_now_ns());
		start_missing_locked(q);
		has_failed = q->is_start_failing && !q->is_stopping;
		q->is_tick_wanted = false;
		tick = q->cfg.tick;
		hfs_mutex_unlock(&q->lock);
		if (has_failed)
			hfs_log_limited(HFS_LOG_WARNING,
					"%s: cannot start a thread, work waits for the others; "
					"raise the limit of processes (ulimit -u, pids.max)",
					q->cfg.name);
		tick_ns = tick != NULL ? tick(q->cfg.ctx, hfs_now_ns()) : UINT64_MAX;
		hfs_mutex_lock(&q->lock);
		q->tick_ns = tick_ns;
		if (q->is_stopping && q->n_threads > 0 && q->n_busy == q->n_threads &&
		    atomic_load(&q->n_late) == q->n_busy)
			break; /* all that is left hangs */
	}
	q->is_watcher_ended = true;
	hfs_cond_broadcast(&q->ended);
	hfs_mutex_unlock(&q->lock);
	return NULL;
}

void workq_tick_soon(struct workq *q)
{
	hfs_mutex_lock(&q->lock);
	q->is_tick_wanted = true;
	hfs_cond_signal(&q->watch);
	hfs_mutex_unlock(&q->lock);
}

/* ---- life ---- */

static void workq_free(struct workq *q)
{
	struct job *j;

	while ((j = q->spare) != NULL) {
		q->spare = j->next;
		free(j);
	}
	hfs_cond_finish(&q->work);
	hfs_cond_finish(&q->watch);
	hfs_cond_finish(&q->ended);
	hfs_mutex_finish(&q->lock);
	free(q);
}

int workq_create(const struct workq_config *cfg, struct workq **ret_q)
{
	struct workq *q = calloc(1, sizeof(*q));
	char name[16]; /* what the kernel takes */
	int err;

	if (q == NULL)
		return -ENOMEM;
	q->cfg = *cfg;
	if (q->cfg.late_ns == 0)
		q->cfg.late_ns = 200 * HFS_NS_PER_MS;
	q->demand.last = &q->demand.first;
	q->other.last = &q->other.first;
	q->tick_ns = UINT64_MAX;
	hfs_mutex_init(&q->lock, HFS_RANK_WORKQ);
	hfs_cond_init(&q->work);
	hfs_cond_init(&q->watch);
	hfs_cond_init(&q->ended);
	err = thread_start(q, &q->watcher, watcher_main, q);
	if (err < 0) {
		workq_free(q);
		return err;
	}
	(void)snprintf(name, sizeof(name), "%.13s-w", cfg->name); /* the watcher */
	(void)pthread_setname_np(q->watcher, name);
	hfs_mutex_lock(&q->lock);
	err = worker_start_locked(q);
	q->is_start_failing = false; /* said by the caller, who has no queue then */
	if (err < 0)
		q->cfg.tick = NULL; /* the caller is not ready for it */
	hfs_mutex_unlock(&q->lock);
	if (err < 0) {
		(void)workq_destroy(q, UINT_MAX); /* the watcher has nothing to wait for */
		return err;
	}
	*ret_q = q;
	return 0;
}

static struct job *take_all_locked(struct workq *q)
{
	struct job *first = NULL, **last = &first, *j;

	while ((j = take_locked(q)) != NULL) {
		j->next = NULL;
		*last = j;
		last = &j->next;
	}
	return first;
}

void workq_shutdown(struct workq *q)
{
	struct job *j, *dropped = NULL;

	hfs_mutex_lock(&q->lock);
	q->is_stopping = true;
	if (q->cfg.drop != NULL)
		dropped = take_all_locked(q);
	hfs_cond_broadcast(&q->work);
	hfs_cond_signal(&q->watch);
	hfs_mutex_unlock(&q->lock);
	while ((j = dropped) != NULL) {
		dropped = j->next;
		q->cfg.drop(q->cfg.ctx, j->fn, j->arg);
		free(j);
	}
}

bool workq_destroy(struct workq *q, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_ended;

	if (q == NULL)
		return true;
	workq_shutdown(q);
	hfs_mutex_lock(&q->lock);
	while ((q->n_threads > 0 || !q->is_watcher_ended) && hfs_cond_wait_until(&q->ended, &q->lock, deadline_ns))
		;
	is_ended = q->n_threads == 0 && q->is_watcher_ended;
	if (is_ended)
		reap_locked(q);
	hfs_mutex_unlock(&q->lock);
	if (!is_ended)
		return false;
	pthread_join(q->watcher, NULL);
	workq_free(q);
	return true;
}
