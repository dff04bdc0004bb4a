/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/engine_world.h - an engine without a mount on a real temporary directory, with the system calls and the reads of
 * cache_world.h (whose own cache is not opened). For tests of fs/engine*.c, header only.
 */
#ifndef TESTS_ENGINE_WORLD_H
#define TESTS_ENGINE_WORLD_H

#include "fs/engine.h"
#include "tests/unit/cache_world.h"

#include <pthread.h>

struct engine_world {
	struct world w; /* dir, fake, origin; lock and cond of the readers; w.cache is the engine's */
	struct engine *e;
	_Atomic uint32_t n_changed;
};

static inline void engine_world_changed(void *ctx, struct cache_file *f)
{
	struct engine_world *ew = ctx;

	(void)f;
	atomic_fetch_add(&ew->n_changed, 1);
}

static UNUSED_FN void engine_world_open(struct engine_world *ew, uint32_t slots, uint64_t chunk_bytes)
{
	struct engine_config cfg = {.seed = 1, .changed = engine_world_changed, .ctx = ew};
	struct world *w = &ew->w;
	struct cache_stats st;

	memset(ew, 0, sizeof(*ew));
	hfs_mutex_init(&w->lock, HFS_RANK_NODE); /* not held over calls of the engine */
	hfs_cond_init(&w->cond);
	w->newest = &w->oldest;
	snprintf(w->dir, sizeof(w->dir), "%s/hfs-engine-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	MUST(mkdtemp(w->dir) != NULL);
	fake_init(&w->fake);
	MUST(origin_create(w->dir, &w->fake.io, &w->origin) == 0);
	w->chunk_bytes = chunk_bytes;
	w->slots = slots;
	cfg.cache = (struct cache_config){.memory_bytes = slots * chunk_bytes,
					  .chunk_bytes = chunk_bytes,
					  .origin = w->origin,
					  .io = &w->fake.io};
	MUST(engine_create(&cfg, &ew->e) == 0);
	w->cache = engine_cache(ew->e);
	do /* the pool is touched in the background; nothing here depends on when, but on that it ends */
		cache_stats_get(w->cache, &st);
	while (st.slots_ready < slots && sched_yield() == 0);
}

static UNUSED_FN void engine_world_close(struct engine_world *ew)
{
	struct world *w = &ew->w;

	engine_shutdown(ew->e);
	MUST(engine_destroy(ew->e, 10000));
	origin_destroy(w->origin);
	nftw(w->dir, world_rm, 16, FTW_DEPTH | FTW_PHYS);
	hfs_cond_finish(&w->cond);
	hfs_mutex_finish(&w->lock);
	hfs_cond_finish(&w->fake.cond);
	hfs_mutex_finish(&w->fake.lock);
}

/* As an open does: a fresh look, the generation bound to its name, its descriptor kept. */
static UNUSED_FN struct cache_file *engine_world_get(struct engine_world *ew, const char *name, uint64_t reader)
{
	struct origin_attr attr;
	struct cache_file *f;
	int fd;

	MUST(origin_open(ew->w.origin, name, &fd, &attr) == 0);
	f = cache_file_get(ew->w.cache, &attr.id, name);
	MUST(f != NULL);
	cache_file_give_fd(ew->w.cache, f, fd);
	MUST(engine_file_bind(ew->e, f, name, reader) == 0);
	return f;
}

static UNUSED_FN void engine_world_put(struct engine_world *ew, struct cache_file *f, uint64_t reader)
{
	engine_file_unbind(ew->e, f, reader);
	cache_file_put(ew->w.cache, f);
}

static UNUSED_FN void engine_reader_start(struct reader *rd, struct engine_world *ew, struct cache_file *f, uint64_t off,
					  uint32_t len, uint64_t reader)
{
	*rd = (struct reader){.w = &ew->w, .buf = malloc(len + 1)};
	MUST(rd->buf != NULL);
	rd->r = (struct cache_read){.file = f, .off_bytes = off, .len_bytes = len, .done = reader_done};
	engine_read(ew->e, &rd->r, reader, false);
}

/* Nothing but waiting: whoever forgets a read fails here. */
static UNUSED_FN int engine_reader_wait(struct reader *rd)
{
	struct world *w = rd->w;
	uint64_t until_ns = hfs_now_ns() + WAIT_NS;

	hfs_mutex_lock(&w->lock);
	while (!rd->is_done)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, until_ns));
	hfs_mutex_unlock(&w->lock);
	return rd->err;
}

static UNUSED_FN int engine_world_read(struct engine_world *ew, struct cache_file *f, uint64_t off, uint32_t len,
				       uint64_t reader, unsigned file, unsigned version)
{
	struct reader rd;
	int err;

	engine_reader_start(&rd, ew, f, off, len, reader);
	err = engine_reader_wait(&rd);
	MUST(err != 0 || reader_matches(&rd, file, version));
	reader_finish(&rd);
	return err;
}

static UNUSED_FN struct cache_stats engine_world_stats(struct engine_world *ew)
{
	struct cache_stats st;
	struct sched_stats ss;

	engine_stats(ew->e, &st, &ss);
	return st;
}

static UNUSED_FN struct sched_stats engine_world_sched_stats(struct engine_world *ew)
{
	struct cache_stats st;
	struct sched_stats ss;

	engine_stats(ew->e, &st, &ss);
	return ss;
}

/* Until the test holds; each look is a round through the engine's lock, so this is no busy wait for time. */
#define ENGINE_UNTIL(cond)                                                            \
	do {                                                                          \
		uint64_t until_ns_ = hfs_now_ns() + WAIT_NS;                          \
		while (!(cond)) {                                                     \
			MUST(hfs_now_ns() < until_ns_);                               \
			(void)usleep(500);                                            \
		}                                                                     \
	} while (0)

#endif
