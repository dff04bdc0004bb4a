/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin_aside.c - a forced look at a file in another thread, while the caller opens it: one round trip instead of two.
 *
 * 1. The look begins after the call that it is part of, so what it sees is no older than that.
 * 2. Nobody waits for a thread that has not begun: the look is *taken* once, by the helping thread or by the caller who gives it
 *    up; a caller waits only for a look that is with the origin.
 * 3. The descriptor is the caller's: it outlives origin_aside_end(), and who comes later finds the look taken and leaves it alone.
 * 4. Only where it pays: where forced looks took longer, of late, than waking a thread does.
 *
 * Called by origin.c. The lock is a leaf.
 */
#include "cache/origin_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#define WORTH_NS 300000u /* two wake-ups on a busy machine; a round trip of 1 ms is worth it, a local disk never is */

struct aside {
	/* const after create */
	struct origin *o;
	int fd; /* borrowed until origin_aside_end() */

	_Atomic int refs; /* the caller's and the job's */
	_Atomic bool is_taken;

	struct hfs_mutex lock; /* rank LEAF */
	struct hfs_cond done;
	/* guarded by lock */
	bool is_done;
	int err;
	struct origin_attr attr;
};

static void aside_put(struct aside *a)
{
	if (atomic_fetch_sub(&a->refs, 1) != 1)
		return;
	hfs_cond_finish(&a->done);
	hfs_mutex_finish(&a->lock);
	free(a);
}

static void aside_main(void *arg)
{
	struct aside *a = arg;
	struct origin_attr attr = {0};

	if (!atomic_exchange(&a->is_taken, true)) {
		int err = origin_fd_stat(a->o, a->fd, AT_STATX_FORCE_SYNC, &attr);

		hfs_mutex_lock(&a->lock);
		a->err = err;
		a->attr = attr;
		a->is_done = true;
		hfs_cond_signal(&a->done);
		hfs_mutex_unlock(&a->lock);
	}
	aside_put(a);
}

static struct aside *aside_new(struct origin *o, int fd)
{
	struct aside *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return NULL;
	a->o = o;
	a->fd = fd;
	atomic_init(&a->refs, 2);
	hfs_mutex_init(&a->lock, HFS_RANK_LEAF);
	hfs_cond_init(&a->done);
	return a;
}

struct aside *origin_aside_begin(struct origin *o, int fd)
{
	struct aside *a;

	if (o->run == NULL || atomic_load(&o->forced_ns) < WORTH_NS)
		return NULL;
	a = aside_new(o, fd);
	if (a != NULL && o->run(o->run_ctx, aside_main, a) < 0) {
		aside_put(a);
		aside_put(a);
		a = NULL;
	}
	return a;
}

int origin_aside_end(struct aside *a, struct origin_attr *ret)
{
	int err = -ECANCELED;

	if (a == NULL)
		return err;
	if (atomic_exchange(&a->is_taken, true)) {
		hfs_mutex_lock(&a->lock);
		while (!a->is_done)
			hfs_cond_wait(&a->done, &a->lock);
		err = a->err;
		if (err == 0)
			*ret = a->attr;
		hfs_mutex_unlock(&a->lock);
	}
	aside_put(a);
	return err;
}

void origin_set_runner(struct origin *o, origin_run_fn run, void *ctx)
{
	o->run = run;
	o->run_ctx = ctx;
}

void origin_aside_learn(struct origin *o, uint64_t took_ns)
{
	uint64_t mean_ns = atomic_load(&o->forced_ns);

	/* A mean over about eight; threads that overwrite each other's share lose nothing that matters. */
	atomic_store(&o->forced_ns, mean_ns == 0 ? took_ns : mean_ns - mean_ns / 8 + took_ns / 8);
}
