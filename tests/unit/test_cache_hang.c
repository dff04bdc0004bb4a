/* SPDX-License-Identifier: Apache-2.0 */
/* A hung file starves nobody; shutdown does not wait for it; descriptors and memory stay inside their limits. */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>
#include <sys/resource.h>

#define CHUNK 65536u

static struct cache_stats stats(struct world *w)
{
	struct cache_stats st;

	cache_stats_get(w->cache, &st);
	return st;
}

static void wait_hanging(struct world *w, long n)
{
	hfs_mutex_lock(&w->fake.lock);
	while (w->fake.n_hanging < n)
		MUST(hfs_cond_wait_until(&w->fake.cond, &w->fake.lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->fake.lock);
}

/* 900 reads of a hung file's different places, each with its own order, on 16 slots; a scheduler that counts late
 * fetches as holding nothing goes on ordering, and so does this one. */
Test(cache_hang, nine_hundred_stuck_reads_and_a_healthy_file, .timeout = 120)
{
	static struct reader rd[900];
	struct cache_file *f, *g;
	struct world w;

	world_open(&w, 16, CHUNK);
	world_write(&w, "hung", 1, 1, 900 * CHUNK);
	world_write(&w, "well", 2, 1, 40 * CHUNK);
	f = world_get(&w, "hung");
	g = world_get(&w, "well");
	cr_assert_eq(world_read(&w, f, 0, 1, 1, 1), 0); /* a descriptor is there */
	world_wait_fetched(&w, 1);
	world_forget_residents(&w);
	atomic_store(&w.fake.hang_ino, world_ino(&w, "hung"));
	/* The first is late before the others come: they must not take a slot each. */
	for (unsigned i = 0; i < 8; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f, i * CHUNK, 100), 0);
	wait_hanging(&w, 1);
	hfs_mutex_lock(&w.lock);
	uint64_t until_ns = hfs_now_ns() + 300 * HFS_NS_PER_MS;
	while (hfs_cond_wait_until(&w.cond, &w.lock, until_ns))
		;
	hfs_mutex_unlock(&w.lock);
	for (unsigned i = 8; i < 900; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f, i * CHUNK, 100), 0);
	for (unsigned i = 0; i < 40; i++)
		cr_assert_eq(world_read(&w, g, i * CHUNK, 5000, 2, 1), 0);
	cr_assert_eq(stats(&w).parked_reads, 900);
	cr_assert(stats(&w).slots_used <= 16);
	fake_unhang(&w.fake);
	for (unsigned i = 0; i < 900; i++) {
		cr_assert_eq(reader_wait(&rd[i]), 0, "read %u", i);
		cr_assert(reader_matches(&rd[i], 1, 1));
		reader_finish(&rd[i]);
	}
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

/* All at once, so that none is known to be late yet: still some slots are left for others. */
Test(cache_hang, a_hung_file_never_holds_all_slots)
{
	static struct reader rd[16];
	struct cache_file *f, *g;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "hung", 1, 1, 16 * CHUNK);
	world_write(&w, "well", 2, 1, 8 * CHUNK);
	f = world_get(&w, "hung");
	g = world_get(&w, "well");
	cr_assert_eq(world_read(&w, f, 0, 1, 1, 1), 0);
	world_wait_fetched(&w, 1);
	world_forget_residents(&w);
	atomic_store(&w.fake.hang_ino, world_ino(&w, "hung"));
	for (unsigned i = 0; i < 16; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f, i * CHUNK, CHUNK), 0);
	wait_hanging(&w, 1);
	for (unsigned i = 0; i < 8; i++)
		cr_assert_eq(world_read(&w, g, i * CHUNK, CHUNK, 2, 1), 0);
	fake_unhang(&w.fake);
	for (unsigned i = 0; i < 16; i++) {
		cr_assert_eq(reader_wait(&rd[i]), 0);
		cr_assert(reader_matches(&rd[i], 1, 1));
		reader_finish(&rd[i]);
	}
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

Test(cache_hang, shutdown_answers_and_leaves_the_stuck_thread)
{
	struct cache_file *f;
	struct reader rd;
	struct world w;
	struct cache_range missing;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 4 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 0, 1, 1, 1), 0);
	atomic_store(&w.fake.hang_ino, world_ino(&w, "f"));
	cr_assert_eq(reader_start(&rd, &w, f, CHUNK, 3 * CHUNK), 0);
	wait_hanging(&w, 1);
	cache_shutdown(w.cache);
	cr_assert(rd.is_done, "answered inside the shutdown");
	cr_assert_eq(rd.err, -ESHUTDOWN);
	cr_assert_eq(cache_read_submit(w.cache, &rd.r, &missing), -ESHUTDOWN);
	cr_assert_eq(cache_fetch(w.cache, f, 1, 0, CHUNK, true, 0), -ESHUTDOWN);
	cr_assert_not(cache_destroy(w.cache, 10), "one thread hangs in the origin");
	fake_unhang(&w.fake);
	/* w.cache is lost on purpose: the process ends here. */
	reader_finish(&rd);
	_exit(0);
}

Test(cache_hang, many_files_under_a_small_descriptor_limit)
{
	struct rlimit lim = {.rlim_cur = 160, .rlim_max = 160};
	struct cache_file *f;
	struct world w;
	char name[32];

	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
	world_open(&w, 64, CHUNK);
	for (unsigned i = 0; i < 600; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&w, name, i, 1, 1000);
	}
	for (unsigned i = 0; i < 600; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		f = world_get(&w, name);
		cr_assert_eq(world_read(&w, f, 0, 1000, i, 1), 0);
		cr_assert(stats(&w).fds <= 40, "%u", stats(&w).fds);
		cache_file_put(w.cache, f);
	}
	cr_assert(stats(&w).files <= 64, "only those with a slot: %llu", (unsigned long long)stats(&w).files);
	world_wait_fetched(&w, 600);
	world_forget_residents(&w);
	cr_assert_eq(stats(&w).files, 0, "nothing is left of a file that nobody holds");
	world_close(&w);
}

Test(cache_hang, more_parallel_files_than_descriptors)
{
	struct cache_config cfg = {.memory_bytes = 64 * CHUNK, .chunk_bytes = CHUNK, .fds_max = 4};
	static struct reader rd[60];
	struct cache_file *f[60];
	struct world w;
	char name[32];

	world_open_cfg(&w, &cfg);
	for (unsigned i = 0; i < 60; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&w, name, i, 1, 5000);
		f[i] = world_get(&w, name);
	}
	for (unsigned i = 0; i < 60; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f[i], 0, 5000), 0);
	for (unsigned i = 0; i < 60; i++) {
		cr_assert_eq(reader_wait(&rd[i]), 0);
		cr_assert(reader_matches(&rd[i], i, 1));
		cr_assert(stats(&w).fds <= 4);
		reader_finish(&rd[i]);
		cache_file_put(w.cache, f[i]);
	}
	world_close(&w);
}
