/* SPDX-License-Identifier: Apache-2.0
 *
 * When a request of slowfs runs. Called by the FUSE callbacks (submit) and the
 * control socket (hang, unhang, wait).
 *
 *   submit ──hang matches──> HUNG(arrived) ──unhang──┐
 *     │                                              v
 *     │                                     timer heap (due_ns)
 *     └────────────────────────────────────────> ^ │ due
 *                                                │ v
 *             HUNG(due) <──hang matches──── finish ──> run
 *                 └────────unhang: due at once───┘
 *   park() makes HUNG, release_locked() ends it, heap_push/pop_locked() the
 *   heap, finish() the run. An interrupt gives forced_err and due at once.
 *
 * Virtual link: a READ of n bytes leaves it at
 *   max(arrival + latency, time the link is free) + n / bandwidth,
 * and the link is free from then on. That is arithmetic on planned times, so
 * late wake-ups never add up.
 *
 * Threads: all alike. One leads: it takes requests from the device and sleeps until
 * the next one comes or is due. What is due it runs itself; it hands the lead on before
 * it, when the run is long (those that come meanwhile would get a later time of arrival)
 * or others are late. Else it comes back to lead: most requests are over sooner
 * than another thread is awake. Should such a run be held up all the same (a slow backing
 * disk), the watch thread wakes another leader.
 *
 * Invariant: a request is in exactly one of heap, hung list, or the hands of one
 * thread. The interrupt function gets no pointer to it but finds it by its
 * fuse_req_t, which libfuse keeps alive meanwhile.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Delays below this are not worth an interrupt registration (two locks). */
#define INTR_MIN_DELAY_NS 50000000ull
#define INTR_POLL_NS 20000000ull
/* A run of more bytes than this (some 50 us) is no business of the leader, nor is any
 * while others are so late that one thread seems to be too few. */
#define SHORT_RUN_BYTES 131072
#define LATE_NS 500000ull
#define UNLED_MAX_NS 5000000ull
/* Requests taken in a row before those that are due. */
#define TAKE_MAX 32

int slow_queue_init(struct slow_queue *q)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&q->follow, &attr);
	pthread_cond_init(&q->event, &attr);
	pthread_condattr_destroy(&attr);
	q->heap_cap = 4096;
	q->heap = malloc(q->heap_cap * sizeof(*q->heap));
	q->intr_check_ns = UINT64_MAX;
	q->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return q->heap && q->wake_fd >= 0 ? 0 : -ENOMEM;
}

/* One at a time: who was called takes the lead, or finds that it is taken. */
static void call_follower_locked(struct slow_queue *q)
{
	if (q->is_called || !q->followers)
		return;
	q->is_called = true;
	pthread_cond_signal(&q->follow);
}

/* There is something new to wait for: whoever leads, or would, looks again. */
static void rouse_locked(struct slow_queue *q)
{
	const uint64_t one = 1;

	if (!q->has_leader) {
		call_follower_locked(q);
	} else if (q->is_lead_asleep && !q->is_roused) {
		q->is_roused = write(q->wake_fd, &one, sizeof(one)) == (ssize_t)sizeof(one);
	}
}

/* ---- heap, all under q->lock ---- */

static bool before(const struct slow_req *a, const struct slow_req *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void heap_put(struct slow_queue *q, struct slow_req *r, size_t at)
{
	q->heap[at] = r;
	r->heap_at = at;
}

static void heap_up(struct slow_queue *q, struct slow_req *r, size_t at)
{
	while (at && before(r, q->heap[(at - 1) / 2])) {
		heap_put(q, q->heap[(at - 1) / 2], at);
		at = (at - 1) / 2;
	}
	heap_put(q, r, at);
}

static void heap_down(struct slow_queue *q, struct slow_req *r, size_t at)
{
	for (size_t kid; (kid = at * 2 + 1) < q->heap_len; at = kid) {
		if (kid + 1 < q->heap_len && before(q->heap[kid + 1], q->heap[kid]))
			kid++;
		if (!before(q->heap[kid], r))
			break;
		heap_put(q, q->heap[kid], at);
	}
	heap_put(q, r, at);
}

static bool heap_push_locked(struct slow_queue *q, struct slow_req *r)
{
	if (q->heap_len == q->heap_cap) {
		struct slow_req **bigger =
			reallocarray(q->heap, q->heap_cap * 2, sizeof(*bigger));
		if (!bigger)
			return false;
		q->heap = bigger;
		q->heap_cap *= 2;
	}
	r->order = q->next_order++;
	heap_up(q, r, q->heap_len++);
	if (q->heap[0] == r)
		rouse_locked(q);
	return true;
}

static struct slow_req *heap_pop_locked(struct slow_queue *q)
{
	struct slow_req *top = q->heap[0];
	struct slow_req *last = q->heap[--q->heap_len];

	if (q->heap_len)
		heap_down(q, last, 0);
	return top;
}

/* ---- hang ---- */

static const struct slow_hang *hang_for_locked(const struct slow_queue *q,
					       const struct slow_req *r)
{
	for (const struct slow_hang *h = q->hangs; h; h = h->next)
		if (h->ops & SLOW_MASK(r->op) && slow_glob_match(h->glob, r->path))
			return h;
	return NULL;
}

static void unlink_hung_locked(struct slow_queue *q, struct slow_req *r)
{
	if (r->prev)
		r->prev->next = r->next;
	else
		q->hung = r->next;
	if (r->next)
		r->next->prev = r->prev;
	q->hung_count--;
}

static void link_hung_locked(struct slow_queue *q, struct slow_req *r)
{
	r->prev = NULL;
	r->next = q->hung;
	if (q->hung)
		q->hung->prev = r;
	q->hung = r;
	q->hung_count++;
}

static void want_intr_check_locked(struct slow_queue *q, uint64_t at_ns)
{
	if (at_ns >= q->intr_check_ns)
		return;
	q->intr_check_ns = at_ns;
	rouse_locked(q);
}

static void on_interrupt(fuse_req_t req, void *data)
{
	struct slow_queue *q = &((struct slowfs *)data)->queue;
	struct slow_req *r;
	size_t i = 0;

	pthread_mutex_lock(&q->lock);
	for (r = q->hung; r && r->req != req; r = r->next)
		;
	for (; !r && i < q->heap_len; i++)
		if (q->heap[i]->req == req)
			r = q->heap[i];
	if (r) {
		r->is_interrupted = true;
		want_intr_check_locked(q, 0);
	}
	pthread_mutex_unlock(&q->lock);
}

/* Parks r if a hang matches; false: the caller goes on with it. */
static bool park(struct slowfs *sf, struct slow_req *r)
{
	struct slow_queue *q = &sf->queue;

	if (!atomic_load(&q->hang_rules) || r->forced_err)
		return false;
	/* not under q->lock: it may call on_interrupt, which takes it */
	fuse_req_interrupt_func(r->req, on_interrupt, sf);
	pthread_mutex_lock(&q->lock);
	const struct slow_hang *h = hang_for_locked(q, r);
	if (h && !atomic_load(&sf->stopping)) {
		r->intr = h->intr;
		link_hung_locked(q, r);
		if (fuse_req_interrupted(r->req)) {
			r->is_interrupted = true;
			want_intr_check_locked(q, 0);
		}
		pthread_cond_broadcast(&q->event);
	} else {
		h = NULL;
	}
	pthread_mutex_unlock(&q->lock);
	return h != NULL;
}

/* ---- delay ---- */

/* Bytes that r will move over the link: what the file has now. */
static uint64_t link_bytes(const struct slow_req *r)
{
	struct stat st;

	if (fstat(r->handle->fd, &st) < 0 || (uint64_t)st.st_size <= r->offset)
		return 0;
	uint64_t left = (uint64_t)st.st_size - r->offset;
	return left < r->size ? left : r->size;
}

static uint64_t plan_link_locked(struct slow_queue *q, uint64_t from_ns,
				 uint64_t bytes, uint64_t bandwidth)
{
	uint64_t start = from_ns > q->link_free_ns ? from_ns : q->link_free_ns;
	uint64_t took = (uint64_t)((unsigned __int128)bytes * SLOW_NS_PER_S / bandwidth);

	return q->link_free_ns = start + took;
}

/* The backing file's own disk is no part of the origin that we stand for: its pages are on their way during the delay. What is
 * answered is read after it all the same. */
static void warm_pages(const struct slow_req *r, uint64_t bytes)
{
	if (bytes)
		(void)posix_fadvise(r->handle->fd, (off_t)r->offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

/* Plans r, for at once if there is no delay; false: no memory, it stays with the caller. */
static bool schedule(struct slowfs *sf, struct slow_req *r)
{
	struct slow_queue *q = &sf->queue;
	uint64_t latency = atomic_load_explicit(&sf->latency_ns[r->op],
						memory_order_relaxed) +
			   slow_rules_delay_ns(&sf->rules, r);
	uint64_t bandwidth = r->op == SLOW_READ ? atomic_load(&sf->bandwidth) : 0;
	uint64_t bytes = bandwidth ? link_bytes(r) : 0;

	r->stage = SLOW_STAGE_DUE;
	if (atomic_load(&sf->stopping))
		latency = bandwidth = bytes = 0;
	r->due_ns = slow_now_ns() + latency;
	if (latency >= INTR_MIN_DELAY_NS) {
		r->intr = (enum slow_intr)atomic_load(&sf->intr);
		fuse_req_interrupt_func(r->req, on_interrupt, sf);
	}
	if (latency)
		warm_pages(r, bytes);
	pthread_mutex_lock(&q->lock);
	if (bandwidth)
		r->due_ns = plan_link_locked(q, r->due_ns, bytes, bandwidth);
	bool is_queued = heap_push_locked(q, r);
	if (is_queued && latency >= INTR_MIN_DELAY_NS && fuse_req_interrupted(r->req)) {
		r->is_interrupted = true; /* it came before r could be found */
		want_intr_check_locked(q, 0);
	}
	pthread_mutex_unlock(&q->lock);
	return is_queued;
}

/* r is due: run it unless a hang has come meanwhile. */
static void finish(struct slowfs *sf, struct slow_req *r)
{
	int err = r->forced_err;

	if (err)
		slow_ops_fail(sf, r, err);
	else if (!park(sf, r))
		slow_ops_run(sf, r);
	else
		return;
	if (atomic_load(&sf->queue.waiters))
		slow_queue_notify(sf);
}

void slow_queue_submit(struct slowfs *sf, struct slow_req *r)
{
	slow_log_start(&sf->log, r);
	r->stage = SLOW_STAGE_ARRIVED;
	if (!park(sf, r) && !schedule(sf, r))
		finish(sf, r);
	else if (atomic_load(&sf->queue.waiters))
		slow_queue_notify(sf);
}

/* A hung request goes on: to the delay it has not had yet, or to its run. */
static void release_locked(struct slowfs *sf, struct slow_req *r)
{
	struct slow_queue *q = &sf->queue;
	uint64_t bandwidth = r->op == SLOW_READ ? atomic_load(&sf->bandwidth) : 0;

	unlink_hung_locked(q, r);
	r->due_ns = 0;
	if (r->stage == SLOW_STAGE_ARRIVED && !r->forced_err) {
		r->due_ns = slow_now_ns() + atomic_load(&sf->latency_ns[r->op]);
		if (bandwidth)
			r->due_ns = plan_link_locked(q, r->due_ns, r->size, bandwidth);
		r->stage = SLOW_STAGE_DUE;
	}
	if (!heap_push_locked(q, r)) {
		/* out of memory: park it again, the next unhang retries */
		link_hung_locked(q, r);
	}
}

/* ---- interrupts ---- */

/* Is the thread that made the request being killed? Its number comes from the
 * kernel; a thread that has gone cannot be waiting, so there it counts as yes. */
static bool is_being_killed(pid_t tid)
{
	char name[40], line[128];
	unsigned long long bits = 0;
	bool is_found = false;

	snprintf(name, sizeof(name), "/proc/%d/status", tid);
	FILE *f = tid > 0 ? fopen(name, "re") : NULL;
	if (!f)
		return true;
	while (!is_found && fgets(line, sizeof(line), f))
		is_found = sscanf(line, "SigPnd: %llx", &bits) == 1;
	fclose(f);
	return !is_found || bits & 1ull << (9 - 1);
}

struct victim {
	struct slow_req *r; /* compared, not followed, until found again */
	uint64_t seq;
	pid_t tid;
	enum slow_intr intr;
};

static size_t collect_victims_locked(struct slow_queue *q, struct victim **ret_list)
{
	size_t n = 0;
	struct victim *list = malloc((q->hung_count + q->heap_len + 1) * sizeof(*list));

	for (struct slow_req *r = q->hung; list && r; r = r->next)
		if (r->is_interrupted && r->intr != SLOW_INTR_IGNORE)
			list[n++] = (struct victim){ r, r->seq, fuse_req_ctx(r->req)->pid, r->intr };
	for (size_t i = 0; list && i < q->heap_len; i++) {
		struct slow_req *r = q->heap[i];
		if (r->is_interrupted && r->intr != SLOW_INTR_IGNORE && !r->forced_err)
			list[n++] = (struct victim){ r, r->seq, fuse_req_ctx(r->req)->pid, r->intr };
	}
	*ret_list = list;
	return n;
}

/* Ends v with EINTR if it is still where it was. */
static void end_victim_locked(struct slowfs *sf, const struct victim *v)
{
	struct slow_queue *q = &sf->queue;

	for (struct slow_req *r = q->hung; r; r = r->next) {
		if (r == v->r && r->seq == v->seq) {
			r->forced_err = EINTR;
			release_locked(sf, r);
			return;
		}
	}
	for (size_t i = 0; i < q->heap_len; i++) {
		struct slow_req *r = q->heap[i];
		if (r == v->r && r->seq == v->seq) {
			r->forced_err = EINTR;
			r->due_ns = 0;
			heap_up(q, r, i);
			rouse_locked(q);
			return;
		}
	}
}

/* Called with the lock, drops it to read /proc. */
static void check_interrupts_locked(struct slowfs *sf)
{
	struct slow_queue *q = &sf->queue;
	struct victim *list;
	size_t alive = 0, n;

	q->intr_check_ns = UINT64_MAX;
	n = collect_victims_locked(q, &list);
	pthread_mutex_unlock(&q->lock);
	for (size_t i = 0; i < n; i++)
		if (list[i].intr == SLOW_INTR_KILL && !is_being_killed(list[i].tid))
			list[i].r = NULL;
	pthread_mutex_lock(&q->lock);
	for (size_t i = 0; i < n; i++) {
		if (list[i].r)
			end_victim_locked(sf, &list[i]);
		else
			alive++;
	}
	free(list);
	if (alive || !list)
		want_intr_check_locked(q, slow_now_ns() + INTR_POLL_NS);
}

/* ---- threads ---- */

/* Takes what the device has; false: the session has ended. */
static bool take_requests(struct slowfs *sf, struct fuse_buf *buf)
{
	int rc = 1;

	for (unsigned i = 0; i < TAKE_MAX && rc > 0; i++) {
		rc = fuse_session_receive_buf(sf->session, buf);
		if (rc > 0)
			fuse_session_process_buf(sf->session, buf);
		else if (rc == -EINTR)
			rc = 1;
	}
	return rc > 0 || rc == -EAGAIN;
}

/* Until then, the next request, or a word from another thread. */
static void sleep_locked(struct slowfs *sf, uint64_t until_ns)
{
	struct slow_queue *q = &sf->queue;
	struct pollfd fds[] = {
		{ .fd = fuse_session_fd(sf->session), .events = POLLIN },
		{ .fd = q->wake_fd, .events = POLLIN },
	};
	uint64_t now_ns = slow_now_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0, word;
	struct timespec left = {
		.tv_sec = (time_t)(left_ns / SLOW_NS_PER_S),
		.tv_nsec = (long)(left_ns % SLOW_NS_PER_S),
	};

	q->is_lead_asleep = true;
	pthread_mutex_unlock(&q->lock);
	(void)ppoll(fds, 2, until_ns == UINT64_MAX ? NULL : &left, NULL);
	pthread_mutex_lock(&q->lock);
	q->is_lead_asleep = false;
	if (q->is_roused)
		q->is_roused = read(q->wake_fd, &word, sizeof(word)) != (ssize_t)sizeof(word);
}

static struct slow_req *lead_locked(struct slowfs *sf, struct fuse_buf *buf)
{
	struct slow_queue *q = &sf->queue;
	struct slow_req *r = NULL;

	while (!r && !q->is_ended) {
		pthread_mutex_unlock(&q->lock);
		bool goes_on = take_requests(sf, buf);
		pthread_mutex_lock(&q->lock);
		uint64_t now_ns = slow_now_ns();
		uint64_t next_ns = q->heap_len ? q->heap[0]->due_ns : UINT64_MAX;
		if (!goes_on)
			q->is_ended = true;
		else if (q->intr_check_ns <= now_ns)
			check_interrupts_locked(sf);
		else if (next_ns <= now_ns)
			r = heap_pop_locked(q);
		else
			sleep_locked(sf, next_ns < q->intr_check_ns ? next_ns : q->intr_check_ns);
	}
	return r;
}

/* Leads until a request is due, and takes it; NULL: the end. */
static struct slow_req *next_due(struct slowfs *sf, struct fuse_buf *buf)
{
	struct slow_queue *q = &sf->queue;
	struct slow_req *r = NULL;

	pthread_mutex_lock(&q->lock);
	while (q->has_leader && !q->is_ended) {
		q->followers++;
		pthread_cond_wait(&q->follow, &q->lock);
		q->followers--;
		q->is_called = false;
	}
	if (!q->is_ended) {
		q->has_leader = true;
		atomic_store(&q->unled_ns, 0);
		r = lead_locked(sf, buf);
		q->has_leader = false;
	}
	uint64_t now_ns = slow_now_ns();
	atomic_store(&q->unled_ns, now_ns);
	if (!r)
		pthread_cond_broadcast(&q->follow);
	else if (r->size > SHORT_RUN_BYTES || (q->heap_len && q->heap[0]->due_ns + LATE_NS < now_ns))
		call_follower_locked(q);
	pthread_mutex_unlock(&q->lock);
	return r;
}

static void *thread_main(void *arg)
{
	struct slowfs *sf = arg;
	struct fuse_buf buf = { 0 };
	struct slow_req *r;

	prctl(PR_SET_TIMERSLACK, 1);
	while ((r = next_due(sf, &buf)))
		finish(sf, r);
	free(buf.mem);
	return NULL;
}

static void *watch_main(void *arg)
{
	struct slow_queue *q = &((struct slowfs *)arg)->queue;
	const struct timespec pause = { .tv_nsec = UNLED_MAX_NS };

	prctl(PR_SET_NAME, "slowfs-watch");
	for (;;) {
		uint64_t since_ns = atomic_load(&q->unled_ns);

		if (since_ns && slow_now_ns() - since_ns >= UNLED_MAX_NS) {
			pthread_mutex_lock(&q->lock);
			if (!q->has_leader)
				call_follower_locked(q);
			pthread_mutex_unlock(&q->lock);
		}
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
	}
	return NULL;
}

static int thread_start(struct slowfs *sf, void *(*main)(void *))
{
	pthread_t thread;
	int err = pthread_create(&thread, NULL, main, sf);

	if (!err)
		pthread_detach(thread);
	return -err;
}

int slow_queue_serve(struct slowfs *sf)
{
	int fd = fuse_session_fd(sf->session), err = thread_start(sf, watch_main);

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		err = -errno;
	for (unsigned i = 1; i < sf->threads && !err; i++)
		err = thread_start(sf, thread_main);
	if (!err)
		thread_main(sf);
	return err;
}

/* ---- control ---- */

int slow_queue_hang(struct slowfs *sf, const char *glob, unsigned ops,
		    enum slow_intr intr)
{
	struct slow_queue *q = &sf->queue;
	struct slow_hang *h = malloc(sizeof(*h) + strlen(glob) + 1);

	if (!h)
		return -ENOMEM;
	h->ops = ops;
	h->intr = intr;
	strcpy(h->glob, glob);
	pthread_mutex_lock(&q->lock);
	h->next = q->hangs;
	q->hangs = h;
	atomic_fetch_add(&q->hang_rules, 1);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

static size_t release_unmatched_locked(struct slowfs *sf)
{
	struct slow_req *oldest = sf->queue.hung;
	size_t n = 0;

	while (oldest && oldest->next)
		oldest = oldest->next;
	/* newest first in the list: go backwards to keep the order of arrival */
	for (struct slow_req *r = oldest, *prev; r; r = prev) {
		prev = r->prev;
		if (hang_for_locked(&sf->queue, r))
			continue;
		release_locked(sf, r);
		n++;
	}
	return n;
}

size_t slow_queue_unhang(struct slowfs *sf, const char *glob)
{
	struct slow_queue *q = &sf->queue;

	pthread_mutex_lock(&q->lock);
	for (struct slow_hang **at = &q->hangs; *at;) {
		struct slow_hang *h = *at;
		if (glob && strcmp(glob, h->glob)) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		free(h);
		atomic_fetch_sub(&q->hang_rules, 1);
	}
	size_t n = release_unmatched_locked(sf);
	pthread_mutex_unlock(&q->lock);
	return n;
}

void slow_queue_set_bandwidth(struct slowfs *sf, uint64_t bytes_per_s)
{
	pthread_mutex_lock(&sf->queue.lock);
	atomic_store(&sf->bandwidth, bytes_per_s);
	sf->queue.link_free_ns = 0; /* what was planned keeps its time */
	pthread_mutex_unlock(&sf->queue.lock);
}

void slow_queue_drain(struct slowfs *sf)
{
	struct slow_queue *q = &sf->queue;

	pthread_mutex_lock(&q->lock);
	atomic_store(&sf->stopping, true);
	while (q->hung) {
		struct slow_req *r = q->hung;
		r->forced_err = ECONNABORTED;
		release_locked(sf, r);
		if (q->hung == r)
			break; /* no memory to queue it; the closing mount ends it */
	}
	for (size_t i = 0; i < q->heap_len; i++)
		q->heap[i]->due_ns = 0; /* order is kept by `order` well enough */
	rouse_locked(q);
	pthread_mutex_unlock(&q->lock);
}

void slow_queue_print_hung(struct slowfs *sf, FILE *out, size_t *ret_lines)
{
	struct slow_queue *q = &sf->queue;
	size_t n = 0;

	pthread_mutex_lock(&q->lock);
	for (struct slow_req *r = q->hung; r; r = r->next, n++) {
		fprintf(out, "%llu\t%s\t", (unsigned long long)r->seq, slow_op_name(r->op));
		slow_print_escaped(out, r->path->text);
		fprintf(out, "\t%llu\t%llu\n", (unsigned long long)r->offset,
			(unsigned long long)r->size);
	}
	pthread_mutex_unlock(&q->lock);
	*ret_lines = n;
}

void slow_queue_notify(struct slowfs *sf)
{
	pthread_mutex_lock(&sf->queue.lock);
	pthread_cond_broadcast(&sf->queue.event);
	pthread_mutex_unlock(&sf->queue.lock);
}

bool slow_queue_wait(struct slowfs *sf, uint64_t deadline_ns,
		     bool (*pred)(struct slowfs *, void *), void *arg)
{
	struct slow_queue *q = &sf->queue;
	struct timespec t = {
		.tv_sec = (time_t)(deadline_ns / SLOW_NS_PER_S),
		.tv_nsec = (long)(deadline_ns % SLOW_NS_PER_S),
	};
	int err = 0;

	atomic_fetch_add(&q->waiters, 1);
	pthread_mutex_lock(&q->lock);
	bool is_true = pred(sf, arg);
	while (!is_true && err != ETIMEDOUT) {
		err = pthread_cond_timedwait(&q->event, &q->lock, &t);
		is_true = pred(sf, arg);
	}
	pthread_mutex_unlock(&q->lock);
	atomic_fetch_sub(&q->waiters, 1);
	return is_true;
}
