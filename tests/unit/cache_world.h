/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/cache_world.h - a real directory with pattern files, a table of system calls that misbehaves on order, a
 * cache on top, and the smallest possible engine (fetch what is missing, evict the oldest). For tests of cache/, header
 * only.
 */
#ifndef TESTS_CACHE_WORLD_H
#define TESTS_CACHE_WORLD_H

#include "cache/base/arith.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "cache/cache.h"
#include "cache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED_FN __attribute__((unused))
#define WAIT_NS (60 * HFS_NS_PER_S) /* deadline of every wait: reaching it is a failure */

/* A check that works in Criterion and in a plain main(): it ends the process. */
#define MUST(x)                                                                 \
	do {                                                                    \
		if (!(x)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			abort();                                                \
		}                                                               \
	} while (0)

/* ---- pattern ---- */

static inline uint64_t pattern_word(unsigned file, unsigned version, uint64_t off_bytes)
{
	return (uint64_t)version << 56 | (uint64_t)file << 40 | off_bytes / 8;
}

static inline uint8_t pattern_byte(unsigned file, unsigned version, uint64_t off_bytes)
{
	return (uint8_t)(pattern_word(file, version, off_bytes) >> (8 * (off_bytes % 8)));
}

/* ---- system calls that misbehave ---- */

struct fake {
	struct cache_io io;
	struct hfs_mutex lock;
	struct hfs_cond cond;
	/* the calls from fail_at on, fail_n of them, give fail_err; 0: none */
	_Atomic long n_calls, fail_at, fail_n;
	_Atomic int fail_err;
	_Atomic long n_preadv, n_open, n_statx, n_forced, n_close, n_hanging;
	_Atomic bool has_old_attrs; /* only a forced statx tells the true mtime */
	_Atomic uint64_t hang_ino, fail_ino; /* preadv of this file */
	_Atomic int fail_ino_err;
	_Atomic long short_every; /* every n-th preadv gives half */
	_Atomic int cut;	  /* preadv gives 0 */
	void (*on_preadv)(void *arg, int fd);
	void *arg;
	_Atomic bool has_openat2;
};

static inline bool fake_fails(struct fake *f, int *ret_err)
{
	long n = atomic_fetch_add(&f->n_calls, 1) + 1;
	long at = atomic_load(&f->fail_at);

	if (at == 0 || n < at || n >= at + atomic_load(&f->fail_n))
		return false;
	*ret_err = atomic_load(&f->fail_err);
	return true;
}

#define FAKE_CALL(ctx, call)          \
	struct fake *f = (ctx);       \
	int fake_err;                 \
	if (fake_fails(f, &fake_err)) \
		return fake_err;      \
	return cache_io_system()->call

static inline int fake_openat2(void *ctx, int dirfd, const char *path, const struct open_how *how)
{
	if (!atomic_load(&((struct fake *)ctx)->has_openat2))
		return -ENOSYS;
	FAKE_CALL(ctx, openat2)(NULL, dirfd, path, how);
}

static inline int fake_openat(void *ctx, int dirfd, const char *path, int flags)
{
	atomic_fetch_add(&((struct fake *)ctx)->n_open, 1);
	FAKE_CALL(ctx, openat)(NULL, dirfd, path, flags);
}

static inline int fake_close(void *ctx, int fd)
{
	atomic_fetch_add(&((struct fake *)ctx)->n_close, 1);
	return cache_io_system()->close(NULL, fd);
}

static inline void fake_maybe_hang(struct fake *f, int fd)
{
	uint64_t ino = atomic_load(&f->hang_ino);
	struct stat st;

	if (ino == 0 || fstat(fd, &st) < 0 || st.st_ino != ino)
		return;
	hfs_mutex_lock(&f->lock);
	f->n_hanging++;
	hfs_cond_broadcast(&f->cond);
	while (atomic_load(&f->hang_ino) == ino)
		hfs_cond_wait(&f->cond, &f->lock);
	f->n_hanging--;
	hfs_mutex_unlock(&f->lock);
}

static UNUSED_FN void fake_unhang(struct fake *f)
{
	hfs_mutex_lock(&f->lock);
	atomic_store(&f->hang_ino, 0);
	hfs_cond_broadcast(&f->cond);
	hfs_mutex_unlock(&f->lock);
}

static inline int fake_statx(void *ctx, int dirfd, const char *path, int flags, unsigned mask, struct statx *ret)
{
	struct fake *f = ctx;
	bool is_forced = flags & AT_STATX_FORCE_SYNC;
	int err;

	atomic_fetch_add(&f->n_statx, 1);
	atomic_fetch_add(&f->n_forced, is_forced);
	if (is_forced)
		fake_maybe_hang(ctx, dirfd);
	if (fake_fails(f, &err))
		return err;
	err = cache_io_system()->statx(NULL, dirfd, path, flags, mask, ret);
	if (err == 0 && !is_forced && atomic_load(&f->has_old_attrs))
		ret->stx_mtime.tv_sec--;
	return err;
}

static inline ssize_t fake_preadv(void *ctx, int fd, const struct iovec *iov, int n, uint64_t off_bytes)
{
	struct fake *f = ctx;
	long every = atomic_load(&f->short_every);
	long no = atomic_fetch_add(&f->n_preadv, 1) + 1;
	struct iovec half = *iov;
	ssize_t got;
	struct stat st;
	int err;

	fake_maybe_hang(f, fd);
	if (fake_fails(f, &err))
		return err;
	if (atomic_load(&f->fail_ino) != 0 && fstat(fd, &st) == 0 && st.st_ino == atomic_load(&f->fail_ino))
		return atomic_load(&f->fail_ino_err);
	if (atomic_load(&f->cut))
		return 0;
	if (every != 0 && no % every == 0 && iov->iov_len > 1) {
		half.iov_len /= 2;
		return cache_io_system()->preadv(NULL, fd, &half, 1, off_bytes);
	}
	got = cache_io_system()->preadv(NULL, fd, iov, n, off_bytes);
	if (f->on_preadv != NULL)
		f->on_preadv(f->arg, fd);
	return got;
}

static inline ssize_t fake_readlinkat(void *ctx, int dirfd, const char *path, char *buf, size_t cap)
{
	FAKE_CALL(ctx, readlinkat)(NULL, dirfd, path, buf, cap);
}

static inline ssize_t fake_getdents(void *ctx, int fd, void *buf, size_t cap)
{
	FAKE_CALL(ctx, getdents)(NULL, fd, buf, cap);
}

static inline int fake_fstatfs(void *ctx, int fd, struct statfs *ret)
{
	FAKE_CALL(ctx, fstatfs)(NULL, fd, ret);
}

static inline int fake_fstatvfs(void *ctx, int fd, struct statvfs *ret)
{
	FAKE_CALL(ctx, fstatvfs)(NULL, fd, ret);
}

static inline ssize_t fake_getxattr(void *ctx, const char *path, const char *name, void *buf, size_t cap)
{
	FAKE_CALL(ctx, getxattr)(NULL, path, name, buf, cap);
}

static inline ssize_t fake_listxattr(void *ctx, const char *path, char *buf, size_t cap)
{
	FAKE_CALL(ctx, listxattr)(NULL, path, buf, cap);
}

static UNUSED_FN void fake_init(struct fake *f)
{
	memset(f, 0, sizeof(*f));
	hfs_mutex_init(&f->lock, HFS_RANK_LEAF);
	hfs_cond_init(&f->cond);
	atomic_store(&f->has_openat2, true);
	f->io = (struct cache_io){
		.ctx = f,
		.openat2 = fake_openat2,
		.openat = fake_openat,
		.close = fake_close,
		.statx = fake_statx,
		.preadv = fake_preadv,
		.readlinkat = fake_readlinkat,
		.getdents = fake_getdents,
		.fstatfs = fake_fstatfs,
		.fstatvfs = fake_fstatvfs,
		.getxattr = fake_getxattr,
		.listxattr = fake_listxattr,
	};
}

/* ---- the world ---- */

struct resident {
	struct resident *next;
	struct cache_file *file;
	uint64_t chunk_no;
};

struct world {
	char dir[128];
	struct fake fake;
	struct origin *origin;
	struct cache *cache;
	uint64_t chunk_bytes;

	struct hfs_mutex lock; /* rank ENGINE */
	struct hfs_cond cond;
	/* guarded by lock */
	uint64_t n_events; /* whatever may change what a read lacks */
	uint64_t n_fetched, n_fetched_ok, n_changed, n_ordered, n_evicted, n_starved;
	uint64_t n_lost, n_overdue;
	struct cache_range lost; /* the last one */
	int last_err;
	uint32_t slots_ready;
	struct resident *oldest, **newest;
	uint32_t n_resident, n_pledged, slots; /* pledged: ordered, not yet resident */
	struct {
		bool is_there, is_small, has_fetch;
		int err, fetch_err;
		struct cache_file *file;
		struct origin_attr attr;
	} resolved;
};

static inline void world_evict_locked(struct world *w)
{
	struct resident *r = w->oldest;

	w->oldest = r->next;
	if (w->oldest == NULL)
		w->newest = &w->oldest;
	w->n_resident--;
	w->n_evicted++;
	w->n_events++;
	cache_evict(w->cache, r->file, r->chunk_no);
	cache_file_put(w->cache, r->file);
	free(r);
	hfs_cond_broadcast(&w->cond);
}

static inline bool world_is_resident_locked(struct world *w, struct cache_file *f, uint64_t chunk_no)
{
	for (struct resident *r = w->oldest; r != NULL; r = r->next)
		if (r->file == f && r->chunk_no == chunk_no)
			return true;
	return false;
}

static inline void world_fetched(void *ctx, const struct cache_fetch_result *r)
{
	struct world *w = ctx;
	struct resident *res;

	hfs_mutex_lock(&w->lock);
	w->n_fetched++;
	w->n_events++;
	w->n_pledged--;
	w->last_err = r->err;
	if (r->err == 0) {
		w->n_fetched_ok++;
		if (!world_is_resident_locked(w, r->file, r->chunk_no)) {
			res = malloc(sizeof(*res));
			MUST(res != NULL);
			cache_file_ref(r->file);
			*res = (struct resident){.file = r->file, .chunk_no = r->chunk_no};
			*w->newest = res;
			w->newest = &res->next;
			w->n_resident++;
		}
		while (w->n_resident > 0 && w->n_starved > 0) {
			w->n_starved--;
			world_evict_locked(w);
		}
	}
	hfs_cond_broadcast(&w->cond);
	hfs_mutex_unlock(&w->lock);
}

static inline void world_changed(void *ctx, struct cache_file *f)
{
	struct world *w = ctx;

	(void)f;
	hfs_mutex_lock(&w->lock);
	w->n_changed++;
	hfs_cond_broadcast(&w->cond);
	hfs_mutex_unlock(&w->lock);
}

static inline void world_starved(void *ctx, uint32_t n)
{
	struct world *w = ctx;

	hfs_mutex_lock(&w->lock);
	w->n_starved += n;
	while (w->n_resident > 0 && w->n_starved > 0) {
		w->n_starved--;
		world_evict_locked(w);
	}
	hfs_mutex_unlock(&w->lock);
}

/* Only noted: reader_wait() asks itself. */
static inline void world_lost(void *ctx, struct cache_file *f, uint64_t off, uint64_t len, uint64_t waited_ns)
{
	struct world *w = ctx;

	(void)f;
	hfs_mutex_lock(&w->lock);
	w->n_lost++;
	w->n_overdue += waited_ns != 0;
	w->lost = (struct cache_range){.off_bytes = off, .len_bytes = len};
	w->n_events++;
	hfs_cond_broadcast(&w->cond);
	hfs_mutex_unlock(&w->lock);
}

static inline void world_slots_ready(void *ctx, uint32_t slots)
{
	struct world *w = ctx;

	hfs_mutex_lock(&w->lock);
	w->slots_ready = slots;
	hfs_cond_broadcast(&w->cond);
	hfs_mutex_unlock(&w->lock);
}

static inline void world_resolved(void *ctx, uint64_t cookie, const char *path, int err, struct cache_file *file,
				  const struct origin_attr *attr, bool is_small, const struct cache_fetch_result *fetch)
{
	struct world *w = ctx;

	(void)cookie;
	(void)path;
	hfs_mutex_lock(&w->lock);
	w->resolved.is_there = true;
	w->resolved.err = err;
	w->resolved.file = file;
	w->resolved.is_small = is_small;
	w->resolved.has_fetch = fetch != NULL;
	w->resolved.fetch_err = fetch != NULL ? fetch->err : 0;
	if (attr != NULL)
		w->resolved.attr = *attr;
	hfs_cond_broadcast(&w->cond);
	hfs_mutex_unlock(&w->lock);
}

static UNUSED_FN void world_write(struct world *w, const char *name, unsigned file, unsigned version, uint64_t size)
{
	char path[512], tmp[512 + 8];
	uint64_t buf[512], off = 0;
	size_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", w->dir, name);
	snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	while (off < size) {
		for (unsigned i = 0; i < 512; i++)
			buf[i] = pattern_word(file, version, off + 8 * i);
		n = (size_t)hfs_min_u64(sizeof(buf), size - off);
		MUST(write(fd, buf, n) == (ssize_t)n);
		off += n;
	}
	close(fd);
	MUST(rename(tmp, path) == 0);
}

/* slots: of chunk_bytes. The engine of this world keeps resident + ordered chunks within them unless starved. */
static UNUSED_FN void world_open_cfg(struct world *w, const struct cache_config *extra)
{
	struct cache_config cfg = *extra;

	memset(w, 0, sizeof(*w));
	hfs_mutex_init(&w->lock, HFS_RANK_ENGINE);
	hfs_cond_init(&w->cond);
	w->newest = &w->oldest;
	snprintf(w->dir, sizeof(w->dir), "%s/hfs-cache-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	MUST(mkdtemp(w->dir) != NULL);
	fake_init(&w->fake);
	MUST(origin_create(w->dir, &w->fake.io, &w->origin) == 0);
	cfg.origin = w->origin;
	cfg.io = &w->fake.io;
	cfg.cb = (struct cache_callbacks){.ctx = w,
					  .fetched = world_fetched,
					  .changed = world_changed,
					  .resolved = world_resolved,
					  .starved = world_starved,
					  .lost = world_lost,
					  .slots_ready = world_slots_ready};
	w->chunk_bytes = cfg.chunk_bytes;
	w->slots = (uint32_t)(cfg.memory_bytes / cfg.chunk_bytes);
	MUST(cache_create(&cfg, &w->cache) == 0);
	hfs_mutex_lock(&w->lock);
	while (w->slots_ready < w->slots)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
}

static UNUSED_FN void world_open(struct world *w, uint32_t slots, uint64_t chunk_bytes)
{
	struct cache_config cfg = {.memory_bytes = slots * chunk_bytes, .chunk_bytes = chunk_bytes};

	world_open_cfg(w, &cfg);
}

static inline int world_rm(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static UNUSED_FN void world_forget_residents(struct world *w)
{
	hfs_mutex_lock(&w->lock);
	while (w->n_resident > 0)
		world_evict_locked(w);
	hfs_mutex_unlock(&w->lock);
}

static UNUSED_FN void world_close(struct world *w)
{
	struct cache_stats st;

	cache_shutdown(w->cache);
	hfs_mutex_lock(&w->lock);
	while (w->n_pledged > 0)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
	world_forget_residents(w);
	cache_stats_get(w->cache, &st);
	MUST(st.inflight_bytes == 0 && st.parked_reads == 0);
	MUST(cache_destroy(w->cache, 10000));
	origin_destroy(w->origin);
	nftw(w->dir, world_rm, 16, FTW_DEPTH | FTW_PHYS);
	hfs_cond_finish(&w->cond);
	hfs_mutex_finish(&w->lock);
	hfs_cond_finish(&w->fake.cond);
	hfs_mutex_finish(&w->fake.lock);
}

static UNUSED_FN struct cache_file *world_get(struct world *w, const char *name)
{
	struct origin_attr attr;
	struct cache_file *f;

	MUST(origin_stat(w->origin, name, true, &attr) == 0);
	f = cache_file_get(w->cache, &attr.id, name);
	MUST(f != NULL);
	return f;
}

static UNUSED_FN uint64_t world_ino(struct world *w, const char *name)
{
	struct origin_attr attr;

	MUST(origin_stat(w->origin, name, true, &attr) == 0);
	return attr.id.ino;
}

/* ---- orders ---- */

/* One order, accounted for like a scheduler would: makes room first if it can. */
static UNUSED_FN int world_fetch(struct world *w, struct cache_file *f, uint64_t chunk_no, uint32_t off, uint32_t len,
				 bool is_demand)
{
	int err;

	hfs_mutex_lock(&w->lock);
	while (w->n_resident > 0 && w->n_resident + w->n_pledged >= w->slots)
		world_evict_locked(w);
	w->n_pledged++;
	w->n_ordered++;
	hfs_mutex_unlock(&w->lock);
	err = cache_fetch(w->cache, f, chunk_no, off, len, is_demand, hfs_now_ns());
	if (err < 0) {
		hfs_mutex_lock(&w->lock);
		w->n_pledged--;
		hfs_mutex_unlock(&w->lock);
	}
	return err;
}

static UNUSED_FN void world_fetch_range(struct world *w, struct cache_file *f, const struct cache_range *m)
{
	uint64_t off = m->off_bytes, end = m->off_bytes + m->len_bytes, no, in, len;

	while (off < end) {
		no = off / w->chunk_bytes;
		in = off % w->chunk_bytes;
		len = hfs_min_u64(w->chunk_bytes - in, end - off);
		(void)world_fetch(w, f, no, (uint32_t)in, (uint32_t)len, true);
		off += len;
	}
}

/* ---- reads ---- */

struct reader {
	struct cache_read r;
	struct world *w;
	uint8_t *buf;
	int err;
	bool is_done;
};

static inline void reader_done(struct cache_read *r, int err, const struct iovec *iov, int n)
{
	struct reader *rd = (struct reader *)r;
	size_t off = 0;

	for (int i = 0; err == 0 && i < n; i++) {
		MUST(off + iov[i].iov_len <= r->len_bytes);
		memcpy(rd->buf + off, iov[i].iov_base, iov[i].iov_len);
		off += iov[i].iov_len;
	}
	MUST(err != 0 || off == r->len_bytes);
	hfs_mutex_lock(&rd->w->lock);
	MUST(!rd->is_done);
	rd->is_done = true;
	rd->err = err;
	hfs_cond_broadcast(&rd->w->cond);
	hfs_mutex_unlock(&rd->w->lock);
}

/* Submits and orders what is missing. As cache_read_submit(). */
static UNUSED_FN int reader_start(struct reader *rd, struct world *w, struct cache_file *f, uint64_t off, uint32_t len)
{
	struct cache_range missing;
	int got;

	*rd = (struct reader){.w = w, .buf = malloc(len + 1)};
	MUST(rd->buf != NULL);
	rd->r.file = f;
	rd->r.off_bytes = off;
	rd->r.len_bytes = len;
	rd->r.done = reader_done;
	got = cache_read_submit(w->cache, &rd->r, &missing);
	if (got == 0)
		world_fetch_range(w, f, &missing);
	return got;
}

/* Waits for the answer; orders again what an eviction took from under the read. */
static UNUSED_FN int reader_wait(struct reader *rd)
{
	struct world *w = rd->w;
	struct cache_range missing;
	uint64_t seen;

	hfs_mutex_lock(&w->lock);
	while (!rd->is_done) {
		seen = w->n_events;
		hfs_mutex_unlock(&w->lock);
		cache_read_missing(w->cache, &rd->r, &missing);
		world_fetch_range(w, rd->r.file, &missing);
		hfs_mutex_lock(&w->lock);
		while (!rd->is_done && w->n_events == seen)
			MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	}
	hfs_mutex_unlock(&w->lock);
	return rd->err;
}

static UNUSED_FN bool reader_matches(const struct reader *rd, unsigned file, unsigned version)
{
	for (uint32_t i = 0; i < rd->r.len_bytes; i++)
		if (rd->buf[i] != pattern_byte(file, version, rd->r.off_bytes + i))
			return false;
	return true;
}

static UNUSED_FN void reader_finish(struct reader *rd)
{
	free(rd->buf);
	rd->buf = NULL;
}

/* All in one; the errno of the read. */
static UNUSED_FN int world_read(struct world *w, struct cache_file *f, uint64_t off, uint32_t len, unsigned file,
				unsigned version)
{
	struct reader rd;
	int err = reader_start(&rd, w, f, off, len);

	if (err >= 0)
		err = reader_wait(&rd);
	if (err == 0)
		MUST(reader_matches(&rd, file, version));
	reader_finish(&rd);
	return err;
}

static UNUSED_FN void world_wait_fetched(struct world *w, uint64_t n)
{
	hfs_mutex_lock(&w->lock);
	while (w->n_fetched < n)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
}

#endif
