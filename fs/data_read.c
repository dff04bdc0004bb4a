/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_read.c - READ: exact bytes or an errno (law 2).
 */
#include "fs/data_i.h"

#include <errno.h>
#include <stddef.h>
#include <sys/stat.h>

#define READ_BYTES_MAX (16u << 20)

static void read_done(struct cache_read *cr, int err, const struct iovec *iov, int n)
{
	struct data_req *r = (struct data_req *)((char *)cr - offsetof(struct data_req, read));
	struct data_result res = { .iov = iov, .iov_n = n };

	atomic_fetch_add(&r->v->stall_ns, hfs_now_ns() - r->started_ns);
	data_answer(r, err, &res);
	data_req_unref(r); /* the cache's */
}

void data_read(struct data_req *r)
{
	struct data_result res = { 0 };

	if (!r->node || r->node->kind != S_IFREG) {
		data_answer(r, -EISDIR, NULL);
		return;
	}
	uint64_t size = r->node->attr.id.size_bytes;
	size_t len = r->size < READ_BYTES_MAX ? r->size : READ_BYTES_MAX;

	if (r->off >= size || len == 0) {
		data_answer(r, 0, &res);
		return;
	}
	if (len > size - r->off)
		len = (size_t)(size - r->off);
	bool is_opened = r->file != NULL;
	int rc = is_opened ? 0 : data_unopened_file(r);
	if (rc < 0) {
		data_answer(r, rc, NULL);
		return;
	}
	r->read = (struct cache_read){
		.file = r->file, .off_bytes = r->off, .len_bytes = (uint32_t)len, .done = read_done
	};
	atomic_fetch_add(&r->refs, 1);
	if (!data_list_add(r, true)) {
		data_req_unref(r);
		return;
	}
	engine_read(r->v->h->engine, &r->read, r->tid, !is_opened && !r->node->is_superseded);
}
