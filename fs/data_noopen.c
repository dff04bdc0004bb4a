/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data_noopen.c - reads without OPEN and RELEASE: many small files cost two messages less each.
 *
 * An OPEN that is answered ENOSYS tells the kernel once and for all that this mount needs none: from then on open() and close() send
 * nothing, for no file. That is only right where an OPEN is not what finds a changed file, under `nocto` and `immutable`: there the
 * name's and attributes' lifetime does, with a LOOKUP. So it is done there, once the dataset is seen to be one of small files.
 *
 * 1. It is final, for the connection. The flag and the emptying of view->handles are one step under view->lock: no handle is linked
 *    after it, and none is closed twice, whether the kernel still sends RELEASE for those open then (up to 6.18) or not.
 * 2. A READ asks only for the node (data_read.c), so what was open before goes on.
 * 3. Nothing is held per node or per open file: a READ takes the generation by its identity, with its slots and its descriptor, if
 *    anybody still has it, else makes it; a superseded one of which nothing is left gives ESTALE. `recent` keeps those read last, as
 *    handles did, so that a file is not opened anew at the origin for each READ when few slots let none of its pages stay.
 */
#include "fs/data_i.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>

#define NO_OPEN_FILES 128u
#define NO_OPEN_SMALL_BYTES (1u << 20)

/* ---- when ------------------------------------------------------------------------------------- */

/*
 * Distinct files, so that a configuration file that is opened over and over does not count. Of large files an open is nothing beside
 * their READs, and a dataset of shards with a small file beside each had better show its opens: three quarters must be small.
 */
bool data_no_open_is_due(uint32_t n_opened, uint32_t n_small)
{
	return n_opened >= NO_OPEN_FILES && (uint64_t)n_small * 4 >= (uint64_t)n_opened * 3;
}

/*
 * Kernels from 6.9 on could dead-lock without OPENs: memory reclaim evicts an inode whose read-ahead it waits for (mended by "fuse: fix
 * readahead reclaim deadlock", 6.19, and in the stable series 6.12 and 6.18 early in 2026). There is nothing else to tell them by.
 */
bool data_no_open_is_safe(const char *release)
{
	unsigned major, minor, patch = 0;

	if (sscanf(release, "%u.%u.%u", &major, &minor, &patch) < 2)
		return false;
	if (major != 6)
		return major > 6 || (major == 3 && minor >= 16) || major == 4 || major == 5;
	if (minor < 9 || minor > 18)
		return true;
	return (minor == 12 && patch >= 70) || (minor == 18 && patch >= 10);
}

void data_can_no_open(struct data_view *v)
{
	struct utsname un;

	if (data_is_unchecked(v) && uname(&un) == 0 && data_no_open_is_safe(un.release))
		atomic_store(&v->can_no_open, true);
}

const char *data_no_open_word(const struct data_view *v)
{
	if (atomic_load(&v->is_no_open))
		return "none";
	return data_is_unchecked(v) ? "unchecked" : "checked";
}

/* ---- the files read last ------------------------------------------------------------------------ */

static void recent_note(struct data_view *v, struct cache_file *f)
{
	_Atomic(struct cache_file *) *at = &v->recent[hfs_identity_hash(cache_file_identity(f)) % RECENT_FILES];

	if (atomic_load(at) == f)
		return;
	cache_file_ref(f);
	f = atomic_exchange(at, f);
	if (f)
		cache_file_put(engine_cache(v->h->engine), f);
}

void data_recent_drop(struct data_view *v)
{
	for (unsigned i = 0; i < RECENT_FILES; i++) {
		struct cache_file *f = atomic_exchange(&v->recent[i], NULL);

		if (f)
			cache_file_put(engine_cache(v->h->engine), f);
	}
}

/* ---- OPEN and READ --------------------------------------------------------------------------------- */

/* The kernel may never say that these are closed. */
static void stop_opens(struct data_view *v)
{
	struct data_handle *h, *next;

	hfs_mutex_lock(&v->lock);
	bool was = atomic_exchange(&v->is_no_open, true);
	h = v->handles;
	v->handles = NULL;
	hfs_mutex_unlock(&v->lock);
	if (!was)
		hfs_log(HFS_LOG_INFO, "%s: small files: the kernel opens files by itself from now on (status: opens none)",
			v->h->opts.mountpoint);
	for (; h; h = next) {
		next = h->next;
		recent_note(v, h->file);
		data_handle_close(v, h, 0);
	}
}

bool data_no_open(struct data_req *r)
{
	struct data_view *v = r->v;

	if (!atomic_load(&v->can_no_open))
		return false;
	if (!atomic_load(&v->is_no_open) && node_first_open(v->nodes, r->node)) {
		bool is_small = r->node->attr.id.size_bytes < NO_OPEN_SMALL_BYTES;
		uint32_t n_small = atomic_fetch_add(&v->n_opened_small, is_small) + is_small;

		if (data_no_open_is_due(atomic_fetch_add(&v->n_opened, 1) + 1, n_small))
			stop_opens(v);
	}
	if (!atomic_load(&v->is_no_open))
		return false;
	data_answer(r, -ENOSYS, NULL);
	return true;
}

int data_unopened_file(struct data_req *r)
{
	struct data_view *v = r->v;
	struct cache *c = engine_cache(v->h->engine);
	struct cache_file *f = cache_file_find(c, &r->node->attr.id);

	if (!f && r->node->is_superseded)
		return -ESTALE;
	if (!f) {
		char *path = data_req_path(r);

		f = path ? cache_file_get(c, &r->node->attr.id, path) : NULL;
		free(path);
	}
	if (!f)
		return -ENOMEM;
	data_caller_bind(r, f, false, r->node->attr.mode);
	recent_note(v, f);
	r->file = f;
	return 0;
}
