/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/meta.c - metadata calls to the origin, on threads of their own: a hung origin stops these, never a FUSE worker.
 */
#include "fs/hintfs.h"

#include "cache/base/workq.h"

#include <errno.h>
#include <stdlib.h>

#define THREADS_MAX 1200 /* most of them stuck in a hung origin */
#define WORKING_MAX 64

struct meta {
	struct workq *q;
};

int meta_create(struct meta **ret_m)
{
	struct workq_config cfg = { .name = "hfs-meta", .threads_max = THREADS_MAX, .working_max = WORKING_MAX };
	struct meta *m = calloc(1, sizeof(*m));
	int rc = m ? workq_create(&cfg, &m->q) : -ENOMEM;

	if (rc < 0) {
		free(m);
		return rc;
	}
	*ret_m = m;
	return 0;
}

int meta_run(struct meta *m, void (*fn)(void *arg), void *arg)
{
	return workq_run(m->q, fn, arg, true);
}

int meta_run_aside(struct meta *m, void (*fn)(void *arg), void *arg)
{
	return workq_is_any_late(m->q) ? -EAGAIN : workq_run(m->q, fn, arg, true);
}

void meta_shutdown(struct meta *m)
{
	workq_shutdown(m->q);
}

bool meta_destroy(struct meta *m, unsigned wait_ms)
{
	if (m && workq_destroy(m->q, wait_ms)) {
		free(m);
		return true;
	}
	return m == NULL;
}
