/* SPDX-License-Identifier: Apache-2.0 */
/* Nobody is stranded: what a parked read needs is owed by an order or by the caller, and else it is told again. */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>

#define CHUNK 65536u
#define BLOCK 4096u

/* Parks a read without ordering anything. */
static struct cache_range park(struct reader *rd, struct world *w, struct cache_file *f, uint64_t off, uint32_t len)
{
	struct cache_range missing;

	*rd = (struct reader){.w = w, .buf = malloc(len)};
	rd->r = (struct cache_read){.file = f, .off_bytes = off, .len_bytes = len, .done = reader_done};
	MUST(cache_read_submit(w->cache, &rd->r, &missing) == 0);
	return missing;
}

static void wait_lost(struct world *w, uint64_t n)
{
	hfs_mutex_lock(&w->lock);
	while (w->n_lost < n)
		MUST(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
}

static void assert_last_lost(struct world *w, uint64_t off, uint64_t len)
{
	hfs_mutex_lock(&w->lock);
	cr_expect_eq(w->lost.off_bytes, off, "%llu", (unsigned long long)w->lost.off_bytes);
	cr_expect_eq(w->lost.len_bytes, len, "%llu", (unsigned long long)w->lost.len_bytes);
	hfs_mutex_unlock(&w->lock);
}

static struct cache_stats stats(struct world *w)
{
	struct cache_stats st;

	cache_stats_get(w->cache, &st);
	return st;
}

static void finish(struct reader *rd, unsigned file)
{
	cr_assert_eq(reader_wait(rd), 0);
	cr_assert(reader_matches(rd, file, 1));
	reader_finish(rd);
}

/* Block 0 is there and blocks 1 to 3 are owed by the caller; then the chunk is evicted. */
Test(cache_lost, blocks_that_were_there_when_the_read_came)
{
	struct cache_range missing;
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 1, 0, BLOCK, true), 0);
	world_wait_fetched(&w, 1);
	missing = park(&rd, &w, f, CHUNK, 4 * BLOCK);
	cr_assert_eq(missing.off_bytes, CHUNK + BLOCK);
	cr_assert_eq(missing.len_bytes, 3 * BLOCK);
	world_forget_residents(&w);
	wait_lost(&w, 1);
	assert_last_lost(&w, CHUNK, 4 * BLOCK); /* all of it, so that it comes at one time */
	/* What was told first does not help any more ... */
	cr_assert_eq(world_fetch(&w, f, 1, BLOCK, 3 * BLOCK, true), 0);
	world_wait_fetched(&w, 2);
	cr_assert_eq(stats(&w).parked_reads, 1);
	/* ... what was told then does. */
	cr_assert_eq(world_fetch(&w, f, 1, 0, 4 * BLOCK, true), 0);
	finish(&rd, 1);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* Evicted while an order for the rest is under way: it is told when, and only what, nobody brings. */
Test(cache_lost, evicted_while_the_rest_is_in_flight)
{
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 0, 0, BLOCK, true), 0);
	world_wait_fetched(&w, 1);
	(void)park(&rd, &w, f, 0, CHUNK);
	atomic_store(&w.fake.hang_ino, world_ino(&w, "f"));
	cr_assert_eq(world_fetch(&w, f, 0, BLOCK, CHUNK - BLOCK, true), 0);
	hfs_mutex_lock(&w.fake.lock);
	while (w.fake.n_hanging == 0)
		MUST(hfs_cond_wait_until(&w.fake.cond, &w.fake.lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w.fake.lock);
	cache_evict(w.cache, f, 0);
	cr_assert_eq(stats(&w).lost, 0, "block 0 is there and the rest comes");
	fake_unhang(&w.fake);
	finish(&rd, 1);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* A scheduler that forgets the file forgets its demand too. */
Test(cache_lost, dropped_file)
{
	struct cache_file *f, *g;
	struct reader rd, other;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 3 * CHUNK);
	world_write(&w, "g", 2, 1, 3 * CHUNK);
	f = world_get(&w, "f");
	g = world_get(&w, "g");
	(void)park(&rd, &w, f, CHUNK + 5, 100);
	(void)park(&other, &w, g, 0, 100);
	cr_assert_eq(stats(&w).lost, 0);
	cache_file_drop(w.cache, f);
	wait_lost(&w, 1);
	assert_last_lost(&w, CHUNK + 5, 100);
	cr_assert_eq(stats(&w).lost, 1, "g's read is still owed");
	cr_assert_eq(w.n_overdue, 0);
	finish(&rd, 1);
	finish(&other, 2);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

/* A caller that forgets is told again, and again. */
Test(cache_lost, overdue)
{
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 3 * CHUNK);
	f = world_get(&w, "f");
	(void)park(&rd, &w, f, 7, CHUNK);
	wait_lost(&w, 4); /* two chunks, two times */
	cr_assert(w.n_overdue >= 4);
	finish(&rd, 1);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* Copies of what was evicted from under reads are bounded; the read that gets none fetches anew. */
Test(cache_lost, bounded_copies)
{
	static struct reader rd[3];
	const uint32_t len = 12u << 20, chunk = 1u << 20;
	struct cache_file *f;
	struct world w;

	world_open(&w, 8, chunk);
	world_write(&w, "f", 1, 1, len);
	f = world_get(&w, "f");
	for (unsigned i = 0; i < 3; i++)
		(void)park(&rd[i], &w, f, 0, len);
	cr_assert_eq(world_fetch(&w, f, 0, 0, chunk, true), 0);
	world_wait_fetched(&w, 1);
	world_forget_residents(&w);
	wait_lost(&w, 1);
	assert_last_lost(&w, 0, chunk);
	cr_assert_eq(stats(&w).bounce_bytes, len, "room for one: 16 MiB");
	for (unsigned i = 0; i < 3; i++)
		finish(&rd[i], 1);
	cr_assert_eq(stats(&w).bounce_bytes, 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* Chunks in slots that nothing is under way for, each once, in any number of steps. */
Test(cache_lost, idle_chunks)
{
	struct cache_idle idle[2];
	struct cache_file *f;
	uint64_t cursor = 0;
	unsigned seen = 0;
	struct world w;
	size_t n;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 4 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(cache_idle_list(w.cache, &cursor, idle, 2), 0, "nothing is there");
	cr_assert_eq(cursor, 0);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(world_fetch(&w, f, i, 0, CHUNK, true), 0);
	world_wait_fetched(&w, 3);
	do {
		n = cache_idle_list(w.cache, &cursor, idle, 2);
		cr_assert_leq(n, 2);
		for (size_t i = 0; i < n; i++) {
			cr_assert_eq(idle[i].file, f);
			cr_assert_not(seen & 1u << idle[i].chunk_no);
			seen |= 1u << idle[i].chunk_no;
			cache_file_put(w.cache, idle[i].file);
		}
	} while (cursor != 0);
	cr_assert_eq(seen, 7);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* Before any of its calls counts as late: a hung file leaves threads to others. */
Test(cache_lost, a_hung_file_never_holds_all_threads)
{
	struct cache_config cfg = {
		.memory_bytes = 32 * CHUNK, .chunk_bytes = CHUNK, .threads_max = 100, .threads_working_max = 4};
	static struct reader rd[12];
	struct cache_file *f, *g;
	struct world w;

	world_open_cfg(&w, &cfg);
	world_write(&w, "hung", 1, 1, 24 * CHUNK);
	world_write(&w, "well", 2, 1, 8 * CHUNK);
	f = world_get(&w, "hung");
	g = world_get(&w, "well");
	cr_assert_eq(world_read(&w, f, 0, 1, 1, 1), 0);
	atomic_store(&w.fake.hang_ino, world_ino(&w, "hung"));
	for (unsigned i = 0; i < 12; i++) /* not adjacent: a visit each */
		cr_assert_eq(reader_start(&rd[i], &w, f, 2 * i * CHUNK + BLOCK, BLOCK), 0);
	hfs_mutex_lock(&w.fake.lock);
	while (w.fake.n_hanging < 3)
		MUST(hfs_cond_wait_until(&w.fake.cond, &w.fake.lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w.fake.lock);
	for (unsigned i = 0; i < 8; i++)
		cr_assert_eq(world_read(&w, g, i * CHUNK, CHUNK, 2, 1), 0);
	hfs_mutex_lock(&w.fake.lock);
	cr_assert_eq(w.fake.n_hanging, 3, "three quarters, late or not: %ld", w.fake.n_hanging);
	hfs_mutex_unlock(&w.fake.lock);
	fake_unhang(&w.fake);
	for (unsigned i = 0; i < 12; i++)
		finish(&rd[i], 1);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}
