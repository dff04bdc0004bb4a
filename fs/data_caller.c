/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_caller.c - calls of the origin for a request: as the daemon, and where it is refused once more as the caller (cache/cred.h).
 *
 * Called by the jobs of fs/data_*.c, on metadata threads. A call in between the two is never seen by anybody else: the
 * thread is the caller for the time of one call.
 */
#include "fs/data_i.h"

#include <sys/stat.h>

struct cred *data_caller(struct data_req *r)
{
	if (!r->cred)
		r->cred = cred_of_caller(r->uid, r->gid, r->tid);
	return r->cred;
}

/* Refused as ourselves: from here on the thread is the caller. */
static bool become(struct data_req *r, int err)
{
	return cred_is_refusal(err) && data_caller(r) && cred_assume(r->cred) == 0;
}

static void come_back(struct data_req *r, int err)
{
	cred_drop(r->cred);
	if (err >= 0)
		atomic_store(&r->v->is_squashed, true);
}

int data_origin_open(struct data_req *r, const char *path, int *ret_fd, struct origin_attr *ret_attr)
{
	int rc = origin_open(r->v->h->origin, path, ret_fd, ret_attr);

	if (become(r, rc)) {
		rc = origin_open(r->v->h->origin, path, ret_fd, ret_attr);
		come_back(r, rc);
	}
	return rc;
}

int data_origin_stat(struct data_req *r, const char *path, bool is_fresh, struct origin_attr *ret_attr)
{
	int rc = origin_stat(r->v->h->origin, path, is_fresh, ret_attr);

	if (become(r, rc)) {
		rc = origin_stat(r->v->h->origin, path, is_fresh, ret_attr);
		come_back(r, rc);
	}
	return rc;
}

int data_origin_list(struct data_req *r, const char *path, origin_list_cb cb, void *ctx)
{
	int rc = origin_list(r->v->h->origin, path, cb, ctx);

	if (become(r, rc)) { /* refused at its open: nothing has been listed yet */
		rc = origin_list(r->v->h->origin, path, cb, ctx);
		come_back(r, rc);
	}
	return rc;
}

ssize_t data_origin_readlink(struct data_req *r, const char *path, char *buf, size_t cap)
{
	ssize_t n = origin_readlink(r->v->h->origin, path, buf, cap);

	if (become(r, (int)n)) {
		n = origin_readlink(r->v->h->origin, path, buf, cap);
		come_back(r, (int)n);
	}
	return n;
}

static ssize_t xattr_once(struct data_req *r, const char *path, char *buf)
{
	struct origin *o = r->v->h->origin;

	return r->op == DATA_GETXATTR ? origin_getxattr(o, path, r->name_own, buf, r->size) : origin_listxattr(o, path, buf, r->size);
}

ssize_t data_origin_xattr(struct data_req *r, const char *path, char *buf)
{
	ssize_t n = xattr_once(r, path, buf);

	if (become(r, (int)n)) {
		n = xattr_once(r, path, buf);
		come_back(r, (int)n);
	}
	return n;
}

void data_caller_bind(struct data_req *r, struct cache_file *f, bool is_checked, uint32_t mode)
{
	/* Not opened now: the fetch will do it, and may be refused where not everybody may read. */
	if (!is_checked && (atomic_load(&r->v->is_squashed) || !(mode & S_IROTH)))
		(void)data_caller(r);
	if (r->cred)
		cache_file_set_cred(engine_cache(r->v->h->engine), f, r->cred);
}
