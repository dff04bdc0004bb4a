/* SPDX-License-Identifier: Apache-2.0 */
/* The engine on a real directory: reads, orders, waits, new generations under parked reads, few slots, names given back. */
#include "fs/engine.h"
#include "fs/engine_i.h"
#include "tests/unit/engine_world.h"

#include <criterion/criterion.h>

#define CHUNK 65536u
#define BLOCK 4096u

static uint32_t names_used(struct engine *e)
{
	hfs_mutex_lock(&e->lock);
	uint32_t n = e->n_used;
	hfs_mutex_unlock(&e->lock);
	return n;
}

static uint32_t unscheduled(struct engine *e)
{
	hfs_mutex_lock(&e->lock);
	uint32_t n = e->n_unscheduled;
	hfs_mutex_unlock(&e->lock);
	return n;
}

static uint32_t name_of(struct engine_world *ew, const char *path)
{
	uint32_t name;

	cr_assert_eq(engine_name_get(ew->e, path, strlen(path), &name), 0);
	return name;
}

static void wait_hanging(struct engine_world *ew, long n)
{
	struct fake *fake = &ew->w.fake;

	hfs_mutex_lock(&fake->lock);
	while (fake->n_hanging < n)
		MUST(hfs_cond_wait_until(&fake->cond, &fake->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&fake->lock);
}

Test(engine, misses_then_hits)
{
	struct engine_world ew;
	struct cache_file *f;

	engine_world_open(&ew, 16, CHUNK);
	world_write(&ew.w, "f", 1, 1, 5 * CHUNK + 77);
	f = engine_world_get(&ew, "f", 1);
	for (uint32_t i = 0; i < 6; i++)
		cr_assert_eq(engine_world_read(&ew, f, i * CHUNK, i < 5 ? CHUNK : 77, 1, 1, 1), 0);
	uint64_t reads = engine_world_stats(&ew).origin_reads;
	cr_assert_gt(reads, 0);
	for (uint32_t i = 0; i < 6; i++)
		cr_assert_eq(engine_world_read(&ew, f, i * CHUNK, i < 5 ? CHUNK : 77, 1, 1, 1), 0);
	cr_assert_eq(engine_world_stats(&ew).origin_reads, reads, "all of it was there");
	cr_assert_eq(engine_world_read(&ew, f, 0, 5 * CHUNK + 77, 1, 1, 1), 0);
	cr_assert_eq(engine_world_read(&ew, f, 5, 0, 1, 1, 1), 0);
	engine_world_put(&ew, f, 1);
	engine_world_close(&ew);
}

/* An order is fetched before anybody reads; its waits end when all is there. */
struct waited {
	struct engine_world *ew;
	int err;
	bool is_done;
};

static void waited_done(void *arg, int err)
{
	struct waited *wd = arg;

	hfs_mutex_lock(&wd->ew->w.lock);
	cr_assert_not(wd->is_done);
	wd->is_done = true;
	wd->err = err;
	hfs_cond_broadcast(&wd->ew->w.cond);
	hfs_mutex_unlock(&wd->ew->w.lock);
}

static int waited_wait(struct waited *wd)
{
	struct world *w = &wd->ew->w;

	hfs_mutex_lock(&w->lock);
	while (!wd->is_done)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
	return wd->err;
}

Test(engine, waits_for_batches_and_files)
{
	struct engine_world ew;
	struct waited wd[4];
	struct sched_entry entry[3];
	uint64_t token;
	uint32_t st;

	engine_world_open(&ew, 16, CHUNK);
	world_write(&ew.w, "a", 1, 1, CHUNK);
	world_write(&ew.w, "b", 2, 1, 3 * CHUNK);
	for (unsigned i = 0; i < 4; i++)
		wd[i] = (struct waited){.ew = &ew};
	cr_assert_eq(engine_stream_create(ew.e, &st), 0);
	entry[0] = (struct sched_entry){.file = name_of(&ew, "a")};
	entry[1] = (struct sched_entry){.file = name_of(&ew, "b")};
	entry[2] = (struct sched_entry){.file = name_of(&ew, "missing")};
	cr_assert_eq(engine_stream_mark(ew.e, st, SCHED_MARK_BATCH, 0), 0);
	cr_assert_eq(engine_stream_append(ew.e, st, entry, 2), 2);
	cr_assert_eq(engine_wait_batch(ew.e, st, 0, waited_done, &wd[0], &token), 0);
	cr_assert_eq(waited_wait(&wd[0]), 0);
	cr_assert_eq(engine_wait_file(ew.e, entry[1].file, waited_done, &wd[1], &token), 0);
	cr_assert_eq(waited_wait(&wd[1]), 0);
	struct cache_file *f = engine_world_get(&ew, "b", 1);
	uint64_t reads = engine_world_stats(&ew).origin_reads;
	cr_assert_eq(engine_world_read(&ew, f, 0, 3 * CHUNK, 1, 2, 1), 0);
	cr_assert_eq(engine_world_stats(&ew).origin_reads, reads);
	cr_assert_eq(engine_wait_file(ew.e, entry[2].file, waited_done, &wd[2], &token), 0);
	cr_assert_eq(waited_wait(&wd[2]), -ENOENT);
	/* One that cannot end: the origin hangs. Withdrawn, it is not answered. */
	world_write(&ew.w, "c", 3, 1, 3 * CHUNK);
	struct cache_file *c = engine_world_get(&ew, "c", 1);
	atomic_store(&ew.w.fake.hang_ino, world_ino(&ew.w, "c"));
	uint32_t name = name_of(&ew, "c");
	cr_assert_eq(engine_wait_file(ew.e, name, waited_done, &wd[3], &token), 0);
	cr_assert(engine_wait_cancel(ew.e, token));
	cr_assert_not(engine_wait_cancel(ew.e, token));
	fake_unhang(&ew.w.fake);
	cr_assert_not(wd[3].is_done);
	engine_name_put(ew.e, name);
	for (unsigned i = 0; i < 3; i++)
		engine_name_put(ew.e, entry[i].file);
	engine_world_put(&ew, f, 1);
	engine_world_put(&ew, c, 1);
	engine_world_close(&ew);
}

/* ---- new generations ------------------------------------------------------------------------ */

/*
 * All slots are with a hung file, so that the demand for f's first generation stays in the scheduler's queue; then f is
 * replaced. The queue knows names, not generations: the read must not be lost.
 */
Test(engine, replaced_while_the_demand_is_queued)
{
	struct engine_world ew;
	struct cache_file *f, *g, *hung;
	static struct reader stuck[8], rd[4];

	engine_world_open(&ew, 4, CHUNK);
	world_write(&ew.w, "hung", 1, 1, 16 * CHUNK);
	world_write(&ew.w, "f", 2, 1, 8 * CHUNK);
	hung = engine_world_get(&ew, "hung", 1);
	f = engine_world_get(&ew, "f", 2);
	atomic_store(&ew.w.fake.hang_ino, world_ino(&ew.w, "hung"));
	for (unsigned i = 0; i < 8; i++)
		engine_reader_start(&stuck[i], &ew, hung, 2 * i * CHUNK, BLOCK, 1);
	wait_hanging(&ew, 1);
	for (unsigned i = 0; i < 4; i++)
		engine_reader_start(&rd[i], &ew, f, 2 * i * CHUNK + 5, CHUNK, 2);
	world_write(&ew.w, "f", 2, 2, 8 * CHUNK);
	cache_file_supersede(ew.w.cache, f);
	g = engine_world_get(&ew, "f", 3);
	cr_assert_neq(f, g);
	cr_assert_eq(engine_world_read(&ew, g, 3 * CHUNK, CHUNK, 3, 2, 2), 0);
	for (unsigned i = 0; i < 4; i++) {
		int err = engine_reader_wait(&rd[i]);

		cr_assert(err == 0 || err == -ESTALE, "%d", err);
		cr_assert(err != 0 || reader_matches(&rd[i], 2, 1), "its own version");
		reader_finish(&rd[i]);
	}
	fake_unhang(&ew.w.fake);
	for (unsigned i = 0; i < 8; i++) {
		cr_assert_eq(engine_reader_wait(&stuck[i]), 0);
		cr_assert(reader_matches(&stuck[i], 1, 1));
		reader_finish(&stuck[i]);
	}
	engine_world_put(&ew, hung, 1);
	engine_world_put(&ew, f, 2);
	engine_world_put(&ew, g, 3);
	engine_world_close(&ew);
}

/* An old generation is read on while the pool is full of pages that the scheduler knows: it makes room for it. */
Test(engine, an_old_generation_finds_room)
{
	struct engine_world ew;
	struct cache_file *f, *g, *full;

	engine_world_open(&ew, 4, CHUNK);
	world_write(&ew.w, "full", 1, 1, 8 * CHUNK);
	world_write(&ew.w, "f", 2, 1, 8 * CHUNK);
	full = engine_world_get(&ew, "full", 1);
	f = engine_world_get(&ew, "f", 2);
	/* As if "f" were another file now, but without a change of the first one's ctime, which is part of its identity. */
	world_write(&ew.w, "other", 2, 2, 8 * CHUNK);
	g = engine_world_get(&ew, "other", 3);
	cache_file_supersede(ew.w.cache, f);
	cr_assert_eq(engine_file_bind(ew.e, g, "f", 3), 0);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 8; i++)
			cr_assert_eq(engine_world_read(&ew, full, i * CHUNK, CHUNK, 1, 1, 1), 0);
		for (unsigned i = 0; i < 8; i++) {
			cr_assert_eq(engine_world_read(&ew, f, i * CHUNK, CHUNK, 2, 2, 1), 0);
			cr_assert_eq(engine_world_read(&ew, g, i * CHUNK, CHUNK, 3, 2, 2), 0);
		}
	}
	ENGINE_UNTIL(unscheduled(ew.e) == 0);
	engine_file_unbind(ew.e, g, 3);
	engine_world_put(&ew, full, 1);
	engine_world_put(&ew, f, 2);
	engine_world_put(&ew, g, 3);
	engine_world_close(&ew);
}

/* A page that came into a slot behind the scheduler's back holds it only until somebody needs it. */
Test(engine, slots_that_the_books_do_not_have)
{
	struct engine_world ew;
	struct cache_file *f, *g;

	engine_world_open(&ew, 2, CHUNK);
	world_write(&ew.w, "f", 1, 1, 4 * CHUNK);
	world_write(&ew.w, "g", 2, 1, 4 * CHUNK);
	f = engine_world_get(&ew, "f", 1);
	g = engine_world_get(&ew, "g", 1);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(engine_world_read(&ew, f, i * CHUNK, CHUNK, 1, 1, 1), 0);
		hfs_mutex_lock(&ew.e->lock);
		sched_dropped(ew.e->sched, cache_file_tag(f), i); /* now its books are wrong */
		hfs_mutex_unlock(&ew.e->lock);
	}
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(engine_world_read(&ew, g, i * CHUNK, CHUNK, 1, 2, 1), 0);
	engine_world_put(&ew, f, 1);
	engine_world_put(&ew, g, 1);
	engine_world_close(&ew);
}

/* Several pages of a closed file leave in one step: each of them gives its slot back, not just the first. */
Test(engine, pages_of_a_closed_file_leave_together)
{
	const uint32_t n = 4;
	struct engine_world ew;
	struct cache_file *f;
	char name[16];

	engine_world_open(&ew, n, CHUNK);
	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&ew.w, name, i, 1, n * CHUNK);
		f = engine_world_get(&ew, name, 1);
		cr_assert_eq(engine_world_read(&ew, f, 0, n * CHUNK, 1, i, 1), 0);
		engine_world_put(&ew, f, 1);
	}
	hfs_mutex_lock(&ew.e->lock);
	cr_assert_eq(ew.e->n_shed, 0, "the scheduler's books and the slots are the same");
	hfs_mutex_unlock(&ew.e->lock);
	engine_world_close(&ew);
}

/* ---- few slots -------------------------------------------------------------------------------- */

#define FILES 8u
#define SIZE (3u * 16 * CHUNK + 777)

struct crowd {
	struct engine_world *ew;
	struct cache_file *files[FILES];
	unsigned seed;
	_Atomic bool *is_over;
};

static void *crowd_main(void *arg)
{
	struct crowd *cr = arg;
	unsigned seed = cr->seed;

	for (unsigned i = 0; i < 150; i++) {
		unsigned no = (unsigned)rand_r(&seed) % FILES, kind = (unsigned)rand_r(&seed) % 3;
		uint64_t off = (uint64_t)rand_r(&seed) % SIZE;
		uint32_t max = kind == 0 ? 1 : kind == 1 ? 70000 : 1u << 20;

		MUST(engine_world_read(cr->ew, cr->files[no], off, (uint32_t)hfs_min_u64(max, SIZE - off), cr->seed, no, 1) ==
		     0);
	}
	return NULL;
}

/* A read of 17 chunks through 4 slots, by 16 threads at once, beside a long order. */
static void crowded(uint32_t slots, bool with_order)
{
	struct engine_world ew;
	struct crowd cr[16];
	pthread_t threads[16];
	char name[16];
	uint32_t st = 0, names[FILES];

	engine_world_open(&ew, slots, CHUNK);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&ew.w, name, i, 1, SIZE);
		cr[0].files[i] = engine_world_get(&ew, name, 1);
		names[i] = name_of(&ew, name);
	}
	if (with_order) {
		static struct sched_entry entries[5000];
		unsigned seed = 7;

		for (unsigned i = 0; i < 5000; i++)
			entries[i] = (struct sched_entry){.file = names[(unsigned)rand_r(&seed) % FILES],
							  .off_bytes = (uint64_t)rand_r(&seed) % (SIZE - 100000),
							  .len_bytes = 1 + (unsigned)rand_r(&seed) % 100000};
		cr_assert_eq(engine_stream_create(ew.e, &st), 0);
		cr_assert_eq(engine_stream_append(ew.e, st, entries, 5000), 5000);
	}
	for (unsigned i = 0; i < 16; i++) {
		memcpy(cr[i].files, cr[0].files, sizeof(cr[0].files));
		cr[i].ew = &ew;
		cr[i].seed = i + 1;
		MUST(pthread_create(&threads[i], NULL, crowd_main, &cr[i]) == 0);
	}
	for (unsigned i = 0; i < 16; i++)
		pthread_join(threads[i], NULL);
	struct cache_stats s = engine_world_stats(&ew);
	cr_assert_leq(s.slots_used, slots);
	ENGINE_UNTIL(engine_world_stats(&ew).slots_used == engine_world_sched_stats(&ew).resident_pages); /* none is forgotten */
	cr_assert_eq(s.parked_reads, 0);
	ENGINE_UNTIL(engine_world_stats(&ew).bounce_bytes == 0); /* freed after the answer */
	for (unsigned i = 0; i < FILES; i++) {
		engine_name_put(ew.e, names[i]);
		engine_world_put(&ew, cr[0].files[i], 1);
	}
	engine_world_close(&ew);
}

Test(engine, fewest_slots, .timeout = 120)
{
	crowded(4, false);
}

Test(engine, fewest_slots_and_a_long_order, .timeout = 120)
{
	crowded(4, true);
}

Test(engine, one_slot, .timeout = 120)
{
	crowded(1, true);
}

/* ---- names --------------------------------------------------------------------------------------- */

Test(engine, names_are_given_back)
{
	const uint32_t n = 20000;
	struct sched_entry *entries = calloc(n, sizeof(*entries));
	struct engine_world ew;
	char name[32];
	uint32_t st;

	engine_world_open(&ew, 4, CHUNK);
	engine_prefetch_set(ew.e, SCHED_PREFETCH_OFF); /* else all of them are looked up */
	cr_assert_eq(engine_stream_create(ew.e, &st), 0);
	for (unsigned round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < n; i++) {
			snprintf(name, sizeof(name), "dir%u/file%u", round, i);
			entries[i] = (struct sched_entry){.file = name_of(&ew, name)};
		}
		cr_assert_eq(engine_stream_append(ew.e, st, entries, n), n);
		for (uint32_t i = 0; i < n; i++)
			engine_name_put(ew.e, entries[i].file);
		cr_assert_eq(names_used(ew.e), n, "the order needs them");
		if (round == 1)
			engine_stream_replace(ew.e, st);
		else
			engine_stream_cancel(ew.e, st);
		ENGINE_UNTIL(names_used(ew.e) == 0);
	}
	cr_assert_leq(ew.e->n_names, n + 1, "numbers are used again");
	free(entries);
	engine_world_close(&ew);
}

/* What the look-up of a large file opened is what its data are read from, although its pages are laid out only after that. */
Test(engine, a_large_file_is_opened_once)
{
	struct engine_world ew;
	struct waited wd = {.ew = &ew};
	struct sched_entry entry;
	uint64_t token;
	uint32_t st;
	long opens;

	engine_world_open(&ew, 16, CHUNK);
	world_write(&ew.w, "b", 2, 1, 3 * CHUNK);
	opens = atomic_load(&ew.w.fake.n_open);
	cr_assert_eq(engine_stream_create(ew.e, &st), 0);
	entry = (struct sched_entry){.file = name_of(&ew, "b")};
	cr_assert_eq(engine_stream_append(ew.e, st, &entry, 1), 1);
	cr_assert_eq(engine_wait_file(ew.e, entry.file, waited_done, &wd, &token), 0);
	cr_assert_eq(waited_wait(&wd), 0);
	cr_assert_eq(atomic_load(&ew.w.fake.n_open) - opens, 1, "%ld opens", atomic_load(&ew.w.fake.n_open) - opens);
	engine_stream_replace(ew.e, st);
	engine_name_put(ew.e, entry.file);
	engine_world_close(&ew);
}

/* Generations and descriptors of files that nobody holds any more go with their last page. (Names stay as long as the
 * scheduler remembers the order of the reads.) */
Test(engine, files_leave_with_their_pages)
{
	struct engine_world ew;
	struct cache_file *f;
	char name[16];

	engine_world_open(&ew, 8, CHUNK);
	for (unsigned i = 0; i < 400; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&ew.w, name, i, 1, 1000);
		f = engine_world_get(&ew, name, 1);
		cr_assert_eq(engine_world_read(&ew, f, 0, 1000, 1, i, 1), 0);
		engine_world_put(&ew, f, 1);
	}
	ENGINE_UNTIL(engine_world_stats(&ew).files <= 8);
	engine_world_close(&ew);
}

Test(engine, shutdown_answers_all)
{
	static struct reader rd[10];
	struct engine_world ew;
	struct cache_file *f;
	struct waited wd;
	uint64_t token;

	engine_world_open(&ew, 4, CHUNK);
	world_write(&ew.w, "f", 1, 1, 20 * CHUNK);
	f = engine_world_get(&ew, "f", 1);
	uint32_t name = name_of(&ew, "f");
	wd = (struct waited){.ew = &ew};
	atomic_store(&ew.w.fake.hang_ino, world_ino(&ew.w, "f"));
	for (unsigned i = 0; i < 10; i++)
		engine_reader_start(&rd[i], &ew, f, 2 * i * CHUNK, CHUNK, 1);
	cr_assert_eq(engine_wait_file(ew.e, name, waited_done, &wd, &token), 0);
	cr_assert_eq(waited_wait(&wd), -ENOSPC, "20 chunks in 4 slots");
	wait_hanging(&ew, 1);
	engine_shutdown(ew.e);
	for (unsigned i = 0; i < 10; i++) {
		cr_assert(rd[i].is_done, "inside the shutdown");
		cr_assert_eq(rd[i].err, -ESHUTDOWN);
		reader_finish(&rd[i]);
	}
	fake_unhang(&ew.w.fake);
	engine_name_put(ew.e, name);
	engine_world_put(&ew, f, 1);
	engine_world_close(&ew);
}
