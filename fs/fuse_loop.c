/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_loop.c - see fuse_loop.h.
 *
 *   receiving --a request--> working --> receiving
 *       \-- no memory for the buffer --> starved --FUSE_LOOP_STARVED_MS--> receiving
 *
 * libfuse's own loop (fuse_session_loop_mt) ends the session, and with it the mount, when a worker that it adds gets no memory for its
 * buffer. Nor can it be run again then: it cancels workers that may just have taken a request, which nobody would answer.
 *
 * 1. A worker that begins to work and leaves nobody receiving starts another one, up to one more than there are CPUs. None of them
 *    ever waits, and the kernel wakes one for each request although another is about to come back for it: with eight on two CPUs
 *    20,000 small files cost two and a half times as many sleeps of theirs, and 10 to 20 % more time.
 * 2. Who waits for the device is woken by its end alone: on_end() must see to it, if it is not the end that was seen.
 */
#include "fs/fuse_loop.h"

#include "cache/base/log.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "fs/fuse_reply.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

struct loop {
	/* const */
	struct fuse_session *se;
	void (*on_end)(void *arg);
	void *arg;
	unsigned workers_max;
	struct hfs_mutex lock;
	/* guarded by lock */
	pthread_t threads[FUSE_LOOP_WORKERS_MAX - 1];
	unsigned n_threads; /* started, the caller of fuse_loop_run() not counted */
	unsigned n_receiving;
	uint64_t retry_ns; /* no thread is started before */
	bool has_served, is_ended;
	int err;
};

static void *worker_main(void *arg);

static void end(struct loop *l, int err)
{
	bool is_first;

	fuse_session_exit(l->se);
	hfs_mutex_lock(&l->lock);
	is_first = !l->is_ended;
	l->is_ended = true;
	if (is_first)
		l->err = err;
	hfs_mutex_unlock(&l->lock);
	if (is_first && l->on_end)
		l->on_end(l->arg);
}

/* False: there was never any, so this session cannot begin. */
static bool starve(struct loop *l)
{
	bool is_start;

	hfs_mutex_lock(&l->lock);
	is_start = !l->has_served && l->n_receiving == 1;
	l->n_receiving--;
	hfs_mutex_unlock(&l->lock);
	if (is_start)
		return false;
	hfs_log_limited(HFS_LOG_WARNING, "no memory for one more buffer of requests; fewer threads answer them meanwhile");
	(void)poll(NULL, 0, FUSE_LOOP_STARVED_MS);
	hfs_mutex_lock(&l->lock);
	l->n_receiving++;
	hfs_mutex_unlock(&l->lock);
	return true;
}

/* pthread_create under the lock is bounded: it allocates one stack. */
static void begin_work(struct loop *l)
{
	uint64_t now_ns;
	int rc;

	hfs_mutex_lock(&l->lock);
	l->has_served = true;
	if (--l->n_receiving == 0 && l->n_threads < l->workers_max - 1 && !l->is_ended && (now_ns = hfs_now_ns()) >= l->retry_ns) {
		rc = pthread_create(&l->threads[l->n_threads], NULL, worker_main, l);
		l->n_threads += rc == 0;
		l->n_receiving += rc == 0;
		if (rc != 0) {
			l->retry_ns = now_ns + HFS_NS_PER_S;
			hfs_log_limited(HFS_LOG_WARNING, "one more thread for requests cannot be started (%s); %u answer them meanwhile",
					strerror(rc), l->n_threads + 1);
		}
	}
	hfs_mutex_unlock(&l->lock);
}

static void end_work(struct loop *l)
{
	hfs_mutex_lock(&l->lock);
	l->n_receiving++;
	hfs_mutex_unlock(&l->lock);
}

/* They come in bursts, are done at once, and need no further threads. */
static bool is_forget(const struct fuse_buf *buf)
{
	uint32_t opcode;

	if ((buf->flags & FUSE_BUF_IS_FD) || buf->size < sizeof(struct fuse_in_header))
		return false;
	opcode = ((const struct fuse_in_header *)buf->mem)->opcode;
	return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET;
}

static void process(struct loop *l, struct fuse_buf *buf)
{
	bool is_work = !is_forget(buf);

	if (is_work)
		begin_work(l);
	fuse_session_process_buf(l->se, buf);
	if (is_work)
		end_work(l);
}

static void work(struct loop *l)
{
	struct fuse_buf buf = {0};
	int rc = 1;

	while (rc > 0 && !fuse_session_exited(l->se)) {
		rc = fuse_session_receive_buf(l->se, &buf);
		if (rc > 0)
			process(l, &buf);
		else if (rc == -EINTR || rc == -EAGAIN || (rc == -ENOMEM && starve(l)))
			rc = 1;
	}
	free(buf.mem);
	end(l, rc < 0 ? rc : 0);
}

static void *worker_main(void *arg)
{
	work(arg); /* its name is inherited */
	return NULL;
}

/* Nobody starts a worker any more: l->is_ended. */
static void join_all(struct loop *l)
{
	unsigned n;

	hfs_mutex_lock(&l->lock);
	n = l->n_threads;
	hfs_mutex_unlock(&l->lock);
	while (n > 0)
		pthread_join(l->threads[--n], NULL);
}

static unsigned workers_max(void)
{
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0 || CPU_COUNT(&cpus) >= FUSE_LOOP_WORKERS_MAX)
		return FUSE_LOOP_WORKERS_MAX;
	return (unsigned)CPU_COUNT(&cpus) + 1;
}

int fuse_loop_run(struct fuse_session *se, void (*on_end)(void *arg), void *arg)
{
	struct loop l = {.se = se, .on_end = on_end, .arg = arg, .workers_max = workers_max(), .n_receiving = 1};
	int rc;

	hfs_mutex_init(&l.lock, HFS_RANK_LEAF);
	rc = fuse_reply_init(se);
	if (rc < 0)
		end(&l, rc);
	work(&l);
	join_all(&l);
	hfs_mutex_finish(&l.lock);
	return l.err;
}
