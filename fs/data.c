/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/data.c - the life of a request (see data.h): pool, list of parked ones, claiming, watch thread.
 *
 * A parked request has two references: its place in the list, given back by whoever claims it, and its job (the
 * metadata thread, or the cache for a read). The watch thread looks at parked requests every 20 ms while there is
 * something to look at: interrupted ones (is the caller dying?) and metadata ones (is the origin late?).
 */
#include "fs/data_i.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOL_MAX 2048u
#define SIGPND_KILL (1ull << 8) /* bit of SIGKILL (9) in SigPnd */
#define WATCH_BATCH 64
#define KEPT_NODE_SHARE 16384u /* immutable: forgotten nodes of about 256 B may take 1/64 of memory= */
#define BOOK_END_MS 500u

/* ---- requests ------------------------------------------------------------------- */

struct data_req *data_req_new(struct data_view *v)
{
	struct data_req *r;

	hfs_mutex_lock(&v->lock);
	r = v->pool;
	if (r) {
		v->pool = r->next;
		v->pool_n--;
	}
	v->n_live++;
	hfs_mutex_unlock(&v->lock);
	if (!r)
		r = malloc(sizeof(*r));
	if (!r) {
		hfs_mutex_lock(&v->lock);
		v->n_live--;
		hfs_mutex_unlock(&v->lock);
		return NULL;
	}
	memset(r, 0, sizeof(*r));
	r->v = v;
	atomic_init(&r->refs, 1);
	r->came_ns = hfs_now_ns();
	r->id = atomic_fetch_add(&v->next_id, 1);
	return r;
}

void data_req_unref(struct data_req *r)
{
	struct data_view *v = r->v;

	if (atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	if (r->node)
		node_put(v->nodes, r->node);
	if (r->is_dir_counted)
		data_dir_unref(v, r->dir);
	if (r->file)
		cache_file_put(engine_cache(v->h->engine), r->file);
	free(r->name_own);
	cred_put(r->cred);
	hfs_mutex_lock(&v->lock);
	if (v->pool_n < POOL_MAX) {
		r->next = v->pool;
		v->pool = r;
		v->pool_n++;
		r = NULL;
	}
	if (--v->n_live == 0 && v->is_stopping)
		hfs_cond_broadcast(&v->wake);
	hfs_mutex_unlock(&v->lock); /* v may be gone */
	free(r);
}

static struct data_req **list_head(struct data_view *v, bool is_read)
{
	return is_read ? &v->reads : &v->metas;
}

static void list_remove_locked(struct data_view *v, struct data_req *r)
{
	bool is_read = r->op == DATA_READ;

	if (!r->is_listed)
		return;
	*(r->prev ? &r->prev->next : list_head(v, is_read)) = r->next;
	if (r->next)
		r->next->prev = r->prev;
	r->prev = r->next = NULL;
	r->is_listed = false;
	(*(is_read ? &v->n_reads : &v->n_metas))--;
	if (r->is_interrupted)
		v->n_interrupted--;
}

static void mark_interrupted_locked(struct data_view *v, struct data_req *r)
{
	if (r->is_interrupted)
		return;
	r->is_interrupted = true;
	v->n_interrupted++;
	hfs_cond_signal(&v->wake);
}

bool data_list_add(struct data_req *r, bool is_read)
{
	struct data_view *v = r->v;
	bool is_stopping;

	r->started_ns = hfs_now_ns();
	hfs_mutex_lock(&v->lock);
	is_stopping = v->is_stopping;
	if (!is_stopping) {
		struct data_req **head = list_head(v, is_read);

		r->next = *head;
		r->prev = NULL;
		if (r->next)
			r->next->prev = r;
		*head = r;
		r->is_listed = true;
		(*(is_read ? &v->n_reads : &v->n_metas))++;
		if (!is_read && v->is_watch_idle)
			hfs_cond_signal(&v->wake);
		/* An interrupt that came before the listing found nothing, and the kernel sends no second one. */
		if (r->was_interrupted(r))
			mark_interrupted_locked(v, r);
	}
	hfs_mutex_unlock(&v->lock);
	if (is_stopping)
		data_answer(r, -ESHUTDOWN, NULL);
	return !is_stopping;
}

bool data_answer(struct data_req *r, int err, const struct data_result *res)
{
	static const struct data_result nothing;
	struct data_view *v = r->v;

	if (atomic_exchange(&r->is_answered, true))
		return false;
	hfs_mutex_lock(&v->lock);
	list_remove_locked(v, r);
	hfs_mutex_unlock(&v->lock);
	r->reply(r, err, res ? res : &nothing);
	data_req_unref(r);
	return true;
}

void data_job_done(struct data_req *r)
{
	atomic_store(&r->v->is_late, false); /* some metadata call came back */
	data_req_unref(r);
}

void data_park_meta(struct data_req *r, void (*fn)(void *r))
{
	atomic_fetch_add(&r->refs, 1);
	if (!data_list_add(r, false)) {
		data_req_unref(r);
		return;
	}
	int rc = meta_run(r->v->h->meta, fn, r);
	if (rc < 0) {
		data_answer(r, rc, NULL);
		data_req_unref(r);
	}
}

char *data_req_path(struct data_req *r)
{
	return node_path(r->v->nodes, r->node, r->name_own, r->name_own ? strlen(r->name_own) : 0);
}

/* ---- attributes ------------------------------------------------------------------- */

bool data_is_shown(uint32_t mode)
{
	return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode);
}

/* Inode numbers as at the origin; on other file systems mounted below it, made distinct by the device's place in a list. */
uint64_t data_ino(struct data_view *v, const struct hfs_identity *id)
{
	uint64_t place = 0;

	if (id->dev == v->root_dev)
		return id->ino;
	hfs_mutex_lock(&v->lock);
	while (place < v->n_devs && v->devs[place] != id->dev)
		place++;
	if (place == v->n_devs && v->n_devs < DEVS_MAX)
		v->devs[v->n_devs++] = id->dev;
	hfs_mutex_unlock(&v->lock);
	if (place == DEVS_MAX || id->ino >> 48)
		return hfs_identity_hash(&(struct hfs_identity){ .dev = id->dev, .ino = id->ino });
	return id->ino ^ (place + 1) << 48;
}

void data_fill_entry(struct data_view *v, struct data_entry *e, uint64_t node_id, const struct origin_attr *attr)
{
	e->node_id = node_id;
	e->attr = *attr;
	e->ino = data_ino(v, &attr->id);
	e->timeout_s = v->timeout_s;
}

void data_superseded(struct data_view *v, struct node *old)
{
	struct cache_file *f = NULL;

	if (!old)
		return;
	f = node_file_ref(v->nodes, old);
	if (f) {
		cache_file_supersede(engine_cache(v->h->engine), f);
		cache_file_put(engine_cache(v->h->engine), f);
	}
	node_put(v->nodes, old);
}

/* ---- watch thread ------------------------------------------------------------------- */

/* Is the calling thread about to die? SIGKILL, or a signal with default action, shows as SIGKILL pending in every thread. */
static bool is_dying(uint32_t tid)
{
	char path[40], buf[2048];
	unsigned long long pending = 0;
	FILE *f;

	if (tid == 0)
		return true; /* a caller we cannot see: better free it than hold it for ever */
	snprintf(path, sizeof(path), "/proc/%u/status", tid);
	f = fopen(path, "re");
	if (!f)
		return true;
	while (fgets(buf, sizeof(buf), f)) {
		if (sscanf(buf, "SigPnd: %llx", &pending) == 1)
			break;
	}
	fclose(f);
	return pending & SIGPND_KILL;
}

static void answer_eintr(struct data_req *r)
{
	if (r->op == DATA_READ) {
		if (!engine_read_cancel(r->v->h->engine, &r->read))
			return; /* its data is arriving this moment */
		data_answer(r, -EINTR, NULL);
		data_req_unref(r); /* the cache's reference */
	} else {
		data_answer(r, -EINTR, NULL);
	}
}

/* Up to WATCH_BATCH requests of a list that match, each with a reference. */
static size_t collect_locked(struct data_req *head, bool (*match)(struct data_req *, uint64_t), uint64_t arg,
			     struct data_req **out)
{
	size_t n = 0;

	for (struct data_req *r = head; r && n < WATCH_BATCH; r = r->next) {
		if (match(r, arg)) {
			atomic_fetch_add(&r->refs, 1);
			out[n++] = r;
		}
	}
	return n;
}

static size_t collect(struct data_view *v, struct data_req **list, bool (*match)(struct data_req *r, uint64_t arg), uint64_t arg,
		      struct data_req **ret)
{
	size_t n;

	hfs_mutex_lock(&v->lock);
	n = collect_locked(*list, match, arg, ret);
	hfs_mutex_unlock(&v->lock);
	return n;
}

static bool answer_late(struct data_req *r)
{
	bool is = data_answer_late(r);

	if (is)
		atomic_fetch_add(&r->v->h->late_metadata, 1);
	return is;
}

static bool match_interrupted(struct data_req *r, uint64_t pass)
{
	if (!r->is_interrupted || r->i_pass == pass)
		return false;
	r->i_pass = pass;
	return true;
}

static bool match_late(struct data_req *r, uint64_t before_ns)
{
	if (r->is_tried_late || r->started_ns > before_ns)
		return false;
	r->is_tried_late = true;
	return true;
}

static void watch_interrupted(struct data_view *v, uint64_t pass)
{
	struct data_req *batch[WATCH_BATCH];
	size_t n;

	do {
		n = collect(v, &v->reads, match_interrupted, pass, batch);
		if (n == 0)
			n = collect(v, &v->metas, match_interrupted, pass, batch);
		for (size_t i = 0; i < n; i++) {
			if (is_dying(batch[i]->tid))
				answer_eintr(batch[i]);
			data_req_unref(batch[i]);
		}
	} while (n > 0);
}

static void watch_late(struct data_view *v, uint64_t now_ns)
{
	struct data_req *batch[WATCH_BATCH];
	struct cache_stats cs;
	bool is_late = false;
	size_t n;

	hfs_mutex_lock(&v->lock);
	for (struct data_req *r = v->metas; r && !is_late; r = r->next)
		is_late = now_ns - r->started_ns > LATE_NS;
	hfs_mutex_unlock(&v->lock);
	if (!is_late && !atomic_load(&v->is_late)) {
		cache_stats_get(engine_cache(v->h->engine), &cs);
		is_late = cs.oldest_fetch_ns > LATE_NS;
	}
	if (is_late)
		atomic_store(&v->is_late, true);
	do {
		uint64_t age = atomic_load(&v->is_late) ? LATE_GRACE_NS : LATE_NS;

		n = collect(v, &v->metas, match_late, now_ns - age, batch);
		for (size_t i = 0; i < n; i++) {
			(void)answer_late(batch[i]);
			data_req_unref(batch[i]);
		}
	} while (n == WATCH_BATCH);
}

static bool match_overdue(struct data_req *r, uint64_t before_ns)
{
	return r->started_ns <= before_ns;
}

/* origin-timeout: whoever cannot be answered from a snapshot gets EIO. */
static void watch_overdue(struct data_view *v, uint64_t before_ns)
{
	struct data_req *batch[WATCH_BATCH];
	size_t n;

	do {
		n = collect(v, &v->metas, match_overdue, before_ns, batch);
		for (size_t i = 0; i < n; i++) {
			if (!answer_late(batch[i]) && data_answer(batch[i], -EIO, NULL))
				hfs_log_limited(HFS_LOG_WARNING, "origin: no answer within origin-timeout; waiting calls get EIO");
			data_req_unref(batch[i]);
		}
	} while (n > 0);
}

static void *watch_main(void *arg)
{
	struct data_view *v = arg;
	uint64_t pass = 0;

	pthread_setname_np(pthread_self(), "hfs-watch");
	hfs_mutex_lock(&v->lock);
	while (!v->is_stopping) {
		if (v->n_metas == 0 && v->n_interrupted == 0 && v->n_stale == 0) {
			v->is_watch_idle = true;
			hfs_cond_wait(&v->wake, &v->lock);
			v->is_watch_idle = false;
			continue;
		}
		hfs_cond_wait_until(&v->wake, &v->lock, hfs_now_ns() + WATCH_NS);
		if (v->is_stopping)
			break;
		bool has_interrupted = v->n_interrupted > 0, has_metas = v->n_metas > 0, has_stale = v->n_stale > 0;
		hfs_mutex_unlock(&v->lock);
		if (has_interrupted)
			watch_interrupted(v, ++pass);
		if (has_metas)
			watch_late(v, hfs_now_ns());
		if (has_metas && v->origin_timeout_ns > 0)
			watch_overdue(v, hfs_sub_floor_u64(hfs_now_ns(), v->origin_timeout_ns));
		if (has_stale)
			data_stale_sweep(v, hfs_now_ns(), false);
		hfs_mutex_lock(&v->lock);
	}
	hfs_mutex_unlock(&v->lock);
	return NULL;
}

void data_interrupt(struct data_view *v, uint64_t req_id)
{
	hfs_mutex_lock(&v->lock);
	struct data_req *r = v->reads;
	while (r && r->id != req_id)
		r = r->next;
	if (!r)
		for (r = v->metas; r && r->id != req_id; r = r->next)
			;
	if (r)
		mark_interrupted_locked(v, r);
	hfs_mutex_unlock(&v->lock);
}

/* ---- the view ------------------------------------------------------------------------- */

void data_submit(struct data_req *r)
{
	struct data_view *v = r->v;

	if (r->op != DATA_STATFS && r->node_id != DATA_CTL_ID) {
		r->node = r->op == DATA_READ ? node_get_open(v->nodes, r->node_id, &r->file) : node_get(v->nodes, r->node_id);
		if (!r->node) {
			data_answer(r, -ESTALE, NULL);
			return;
		}
	}
	switch (r->op) {
	case DATA_LOOKUP:
		data_lookup(r);
		break;
	case DATA_GETATTR:
		data_getattr(r);
		break;
	case DATA_READLINK:
		data_readlink(r);
		break;
	case DATA_OPEN:
		data_open(r);
		break;
	case DATA_READ:
		data_read(r);
		break;
	case DATA_OPENDIR:
		data_opendir(r);
		break;
	case DATA_READDIR:
		data_readdir(r);
		break;
	case DATA_STATFS:
		data_statfs(r);
		break;
	case DATA_GETXATTR:
	case DATA_LISTXATTR:
		data_xattr(r);
		break;
	}
}

void data_forget(struct data_view *v, uint64_t node_id, uint64_t nlookup)
{
	if (node_id != DATA_CTL_ID)
		node_forget(v->nodes, node_id, nlookup);
}

int data_view_create(struct hintfs *h, struct data_view **ret_v)
{
	struct data_view *v = calloc(1, sizeof(*v));
	struct origin_attr root;
	int rc;

	if (!v)
		return -ENOMEM;
	v->h = h;
	v->revalidate_ns = (uint64_t)(h->opts.revalidate_s * 1e9);
	v->timeout_s = h->opts.revalidate_s;
	v->origin_timeout_ns = (uint64_t)(h->opts.origin_timeout_s * 1e9);
	v->root_dev = origin_dev(h->origin);
	hfs_mutex_init(&v->lock, HFS_RANK_SESSION);
	hfs_cond_init(&v->wake);
	rc = data_book_create(v);
	if (!rc)
		rc = data_root_attr(v, &root);
	if (!rc) /* umount(8) asks for it first, and must get an answer whatever the origin does by then */
		v->has_statfs = h->is_origin_later || origin_statfs(h->origin, &v->statfs) == 0;
	if (!rc)
		rc = node_table_create(&root, h->opts.is_immutable ? h->opts.memory_bytes / KEPT_NODE_SHARE : 0, &v->nodes);
	if (!rc)
		rc = dirsnap_table_create(&v->snaps);
	if (!rc)
		rc = -pthread_create(&v->watch, NULL, watch_main, v);
	if (rc) {
		book_destroy(v->book);
		dirsnap_table_destroy(v->snaps);
		node_table_destroy(v->nodes, NULL);
		hfs_cond_finish(&v->wake);
		hfs_mutex_finish(&v->lock);
		free(v);
		return rc;
	}
	*ret_v = v;
	return 0;
}

static bool match_all(struct data_req *r, uint64_t arg)
{
	(void)r;
	(void)arg;
	return true;
}

void data_stop(struct data_view *v)
{
	struct data_req *batch[WATCH_BATCH];
	bool was_stopping;
	size_t n;

	hfs_mutex_lock(&v->lock);
	was_stopping = v->is_stopping;
	v->is_stopping = true;
	hfs_cond_broadcast(&v->wake);
	hfs_mutex_unlock(&v->lock);
	if (was_stopping)
		return;
	pthread_join(v->watch, NULL);
	do {
		n = collect(v, &v->metas, match_all, 0, batch);
		for (size_t i = 0; i < n; i++) {
			data_answer(batch[i], -ESHUTDOWN, NULL);
			data_req_unref(batch[i]);
		}
	} while (n > 0);
	if (v->book)
		book_stop(v->book, BOOK_END_MS);
}

bool data_drain(struct data_view *v, unsigned wait_ms)
{
	uint64_t until_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_empty;

	hfs_mutex_lock(&v->lock);
	while (v->n_live > 0 && hfs_now_ns() < until_ns)
		hfs_cond_wait_until(&v->wake, &v->lock, until_ns);
	is_empty = v->n_live == 0;
	hfs_mutex_unlock(&v->lock);
	return is_empty;
}

void data_view_destroy(struct data_view *v)
{
	if (!v)
		return;
	data_stop(v);
	assert(v->n_live == 0);
	data_stale_sweep(v, 0, true);
	while (v->handles)
		data_release(v, v->handles, 0);
	data_recent_drop(v);
	while (v->dirs)
		data_releasedir(v, v->dirs);
	book_destroy(v->book);
	dirsnap_table_destroy(v->snaps);
	node_table_destroy(v->nodes, engine_cache(v->h->engine));
	while (v->pool) {
		struct data_req *r = v->pool;

		v->pool = r->next;
		free(r);
	}
	hfs_cond_finish(&v->wake);
	hfs_mutex_finish(&v->lock);
	free(v);
}

size_t data_status(struct data_view *v, char *buf, size_t cap)
{
	struct node_stats ns;
	uint32_t reads, metas;
	int n;

	node_stats_get(v->nodes, &ns);
	hfs_mutex_lock(&v->lock);
	reads = v->n_reads;
	metas = v->n_metas;
	hfs_mutex_unlock(&v->lock);
	n = snprintf(buf, cap,
		     "stall_s %.3f\nnodes %llu\nnodes_superseded %llu\nnodes_kept %llu\nopen_files %u\nopen_dirs %u\nparked_reads %u\n"
		     "parked_metadata %u\ndirsnap_bytes %llu\nopens %s\n",
		     (double)atomic_load(&v->stall_ns) / 1e9, (unsigned long long)ns.nodes, (unsigned long long)ns.superseded,
		     (unsigned long long)ns.kept,
		     atomic_load(&v->n_open),
		     atomic_load(&v->n_dirs), reads, metas, (unsigned long long)dirsnap_bytes(v->snaps), data_no_open_word(v));
	return n < 0 ? 0 : (size_t)n;
}
