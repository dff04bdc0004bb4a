/* SPDX-License-Identifier: Apache-2.0 */
/* Names to generations, with the whole of a small file in the same visit; the table of generations. */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>

#define CHUNK 65536u

static void resolve(struct world *w, const char *path)
{
	memset(&w->resolved, 0, sizeof(w->resolved));
	cr_assert_eq(cache_resolve(w->cache, path, 7, 0), 0);
	hfs_mutex_lock(&w->lock);
	while (!w->resolved.is_there)
		cr_assert(hfs_cond_wait_until(&w->cond, &w->lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->lock);
}

Test(cache_resolve, small_files_come_along)
{
	struct cache_stats st;
	struct reader rd;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "small", 1, 1, 30000);
	resolve(&w, "small");
	cr_assert_eq(w.resolved.err, 0);
	cr_assert(w.resolved.is_small && w.resolved.has_fetch);
	cr_assert_eq(w.resolved.fetch_err, 0);
	cr_assert_eq(w.resolved.attr.id.size_bytes, 30000);
	cr_assert_eq(reader_start(&rd, &w, w.resolved.file, 0, 30000), 1, "a hit");
	cr_assert(reader_matches(&rd, 1, 1));
	reader_finish(&rd);
	cache_stats_get(w.cache, &st);
	cr_assert_eq(st.origin_reads, 1);
	cache_file_put(w.cache, w.resolved.file);
	resolve(&w, "small");
	cr_assert_eq(w.resolved.fetch_err, 1, "all was valid");
	cache_stats_get(w.cache, &st);
	cr_assert_eq(st.origin_reads, 1);
	cache_evict(w.cache, w.resolved.file, 0);
	cache_file_put(w.cache, w.resolved.file);
	cache_stats_get(w.cache, &st);
	cr_assert_eq(st.files, 0);
	world_close(&w);
}

/* A new small file: what the open's own look says, be it from a cache, is proven by the one look after the data. */
Test(cache_resolve, one_forced_look_a_new_small_file)
{
	struct world w;
	long before;

	world_open(&w, 4, CHUNK);
	world_write(&w, "small", 1, 1, 30000);
	world_write(&w, "big", 2, 1, CHUNK + 1);
	before = atomic_load(&w.fake.n_forced);
	resolve(&w, "small");
	cr_assert_eq(w.resolved.fetch_err, 0);
	cr_assert_eq(atomic_load(&w.fake.n_forced) - before, 1);
	cache_file_put(w.cache, w.resolved.file);
	resolve(&w, "small"); /* no data is read now */
	cr_assert_eq(w.resolved.fetch_err, 1);
	cr_assert_eq(atomic_load(&w.fake.n_forced) - before, 2);
	cache_evict(w.cache, w.resolved.file, 0);
	cache_file_put(w.cache, w.resolved.file);
	resolve(&w, "big");
	cr_assert_eq(atomic_load(&w.fake.n_forced) - before, 3);
	cache_file_put(w.cache, w.resolved.file);
	world_close(&w);
}

/* The attribute cache of the origin's client is old: nothing is published under what it says. */
Test(cache_resolve, an_old_look_proves_nothing)
{
	struct reader rd;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "small", 1, 1, 30000);
	atomic_store(&w.fake.has_old_attrs, true);
	resolve(&w, "small");
	cr_assert_eq(w.resolved.err, 0);
	cr_assert_eq(w.resolved.fetch_err, -ESTALE);
	cr_assert(cache_file_is_superseded(w.resolved.file));
	cr_assert_neq(reader_start(&rd, &w, w.resolved.file, 0, 30000), 1, "nothing of it is there");
	reader_finish(&rd);
	cache_file_put(w.cache, w.resolved.file);
	atomic_store(&w.fake.has_old_attrs, false);
	resolve(&w, "small");
	cr_assert_eq(w.resolved.fetch_err, 0);
	cache_evict(w.cache, w.resolved.file, 0);
	cache_file_put(w.cache, w.resolved.file);
	world_close(&w);
}

Test(cache_resolve, big_empty_missing_and_odd)
{
	char path[256];
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "big", 1, 1, CHUNK + 1);
	world_write(&w, "empty", 2, 1, 0);
	snprintf(path, sizeof(path), "%s/link", w.dir);
	cr_assert_eq(symlink("big", path), 0);
	snprintf(path, sizeof(path), "%s/dir", w.dir);
	cr_assert_eq(mkdir(path, 0755), 0);
	resolve(&w, "big");
	cr_assert_eq(w.resolved.err, 0);
	cr_assert(!w.resolved.is_small && !w.resolved.has_fetch);
	cache_file_put(w.cache, w.resolved.file);
	resolve(&w, "empty");
	cr_assert(w.resolved.is_small && w.resolved.fetch_err == 1);
	cache_file_put(w.cache, w.resolved.file);
	resolve(&w, "nothing");
	cr_assert_eq(w.resolved.err, -ENOENT);
	resolve(&w, "link");
	cr_assert_eq(w.resolved.err, -ELOOP);
	resolve(&w, "dir");
	cr_assert_eq(w.resolved.err, -EISDIR);
	resolve(&w, "../x");
	cr_assert_eq(w.resolved.err, -EXDEV);
	world_close(&w);
}

Test(cache_resolve, found_but_unreadable)
{
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "small", 1, 1, 3000);
	atomic_store(&w.fake.fail_ino_err, -EACCES);
	atomic_store(&w.fake.fail_ino, world_ino(&w, "small"));
	resolve(&w, "small");
	cr_assert_eq(w.resolved.err, 0);
	cr_assert_eq(w.resolved.fetch_err, -EACCES);
	cache_file_put(w.cache, w.resolved.file);
	world_close(&w);
}

Test(cache_resolve, waits_for_a_slot)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 1, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	world_write(&w, "small", 2, 1, 3000);
	f = world_get(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, true), 0);
	world_wait_fetched(&w, 1);
	resolve(&w, "small"); /* starved() evicts f */
	cr_assert_eq(w.resolved.fetch_err, 0);
	cr_assert_eq(w.n_evicted, 1);
	cache_evict(w.cache, w.resolved.file, 0);
	cache_file_put(w.cache, w.resolved.file);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_resolve, many_generations_one_struct_each)
{
	struct hfs_identity id = {.dev = 1, .size_bytes = 10};
	static struct cache_file *f[5000];
	struct cache_stats st;
	struct world w;

	world_open(&w, 1, CHUNK);
	for (unsigned i = 0; i < 5000; i++) {
		id.ino = i;
		f[i] = cache_file_get(w.cache, &id, "a path");
		cr_assert_eq(cache_file_tag(f[i]), UINT32_MAX);
		cache_file_set_tag(f[i], i);
	}
	for (unsigned i = 0; i < 5000; i++) {
		id.ino = i;
		cr_assert_eq(cache_file_get(w.cache, &id, "another"), f[i]);
		cr_assert_eq(cache_file_tag(f[i]), i);
		cr_assert(hfs_identity_equal(cache_file_identity(f[i]), &id));
		cache_file_put(w.cache, f[i]);
	}
	cache_stats_get(w.cache, &st);
	cr_assert_eq(st.files, 5000);
	for (unsigned i = 0; i < 5000; i++)
		cache_file_put(w.cache, f[i]);
	cache_stats_get(w.cache, &st);
	cr_assert_eq(st.files, 0);
	world_close(&w);
}
