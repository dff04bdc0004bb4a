/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_kept.c - the extended attribute user.hintfs.kept_bytes of a file: how much of it is on the disk tier. Asked by name only,
 * never listed; answered from memory. hintctl warm goes by it.
 */
#include "fs/data_i.h"

#include "cache/base/arith.h"
#include "cache/tier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int kept_bytes(struct data_req *r, uint64_t *ret)
{
	uint64_t chunk = r->v->h->opts.chunk_bytes, size = r->node->attr.id.size_bytes, n = hfs_div_up(size, chunk), kept, last;
	struct tier *t = engine_tier(r->v->h->engine);
	size_t n_words = (size_t)hfs_div_up(n, 64);
	uint64_t few[4], *bits = n_words > 4 ? malloc(n_words * sizeof(*bits)) : few;
	char *path = data_req_path(r);
	int rc = bits && path ? 0 : -ENOMEM;

	*ret = 0;
	if (rc == 0 && n > 0) {
		kept = tier_map(t, &r->node->attr.id, path, bits, n_words);
		last = bits[(n - 1) / 64] >> ((n - 1) % 64) & 1;
		*ret = kept * chunk - (last ? n * chunk - size : 0);
	}
	if (bits != few)
		free(bits);
	free(path);
	return rc;
}

/* Answers, if it is that attribute, and there is a disk tier. */
bool data_kept(struct data_req *r)
{
	struct data_result res = { 0 };
	char text[24];
	uint64_t n;
	int rc;

	if (r->op != DATA_GETXATTR || strcmp(r->name, DATA_KEPT_NAME) != 0 || !engine_tier(r->v->h->engine))
		return false;
	rc = r->node->kind == S_IFREG ? kept_bytes(r, &n) : -ENODATA;
	if (rc == 0) {
		res.bytes = text;
		res.bytes_len = (size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
		if (r->size > 0 && res.bytes_len > r->size)
			rc = -ERANGE;
	}
	data_answer(r, rc, &res);
	return true;
}
