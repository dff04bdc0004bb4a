/* SPDX-License-Identifier: Apache-2.0 */
/* Trouble at the origin: errors reach all who wait, nothing of them is kept, a changed file is never mixed. */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>

#define CHUNK 65536u

static struct cache_stats stats(struct world *w)
{
	struct cache_stats st;

	cache_stats_get(w->cache, &st);
	return st;
}

Test(cache_faults, short_reads_are_read_on)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 8, CHUNK);
	world_write(&w, "f", 1, 1, 5 * CHUNK + 77);
	f = world_get(&w, "f");
	atomic_store(&w.fake.short_every, 1);
	cr_assert_eq(world_read(&w, f, 0, 5 * CHUNK + 77, 1, 1), 0);
	cr_assert(stats(&w).short_reads > 5);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_faults, early_end_of_an_unchanged_file_is_eio_and_is_not_kept)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	atomic_store(&w.fake.cut, 1);
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), -EIO);
	cr_assert_eq(stats(&w).slots_used, 0);
	cr_assert(stats(&w).retries > 0);
	atomic_store(&w.fake.cut, 0);
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), 0);
	cr_assert_not(cache_file_is_superseded(f));
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_faults, the_leaders_error_reaches_all_waiters)
{
	struct cache_file *f;
	struct reader rd[8];
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	atomic_store(&w.fake.fail_ino_err, -EACCES); /* not one that is tried again */
	atomic_store(&w.fake.fail_ino, world_ino(&w, "f"));
	atomic_store(&w.fake.hang_ino, world_ino(&w, "f"));
	for (int i = 0; i < 8; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f, 0, CHUNK), 0);
	fake_unhang(&w.fake);
	for (int i = 0; i < 8; i++) {
		cr_assert_eq(reader_wait(&rd[i]), -EACCES);
		reader_finish(&rd[i]);
	}
	cr_assert_eq(stats(&w).slots_used, 0);
	cr_assert_eq(stats(&w).origin_errors, 1);
	cr_assert_eq(w.fake.n_preadv, 1);
	atomic_store(&w.fake.fail_ino, 0);
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), 0, "the error was not kept");
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_faults, what_passes_is_tried_again)
{
	static const int errs[] = {-EIO,	 -EINTR,	-EAGAIN,     -ETIMEDOUT,
				   -ENETUNREACH, -EHOSTUNREACH, -ECONNRESET, -ENOMEM};
	struct cache_file *f;
	struct world w;

	world_open(&w, 16, CHUNK);
	world_write(&w, "f", 1, 1, 8 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 0, 1, 1, 1), 0);
	for (unsigned i = 0; i < 8; i++) {
		atomic_store(&w.fake.fail_err, errs[i]);
		atomic_store(&w.fake.fail_n, 1);
		atomic_store(&w.fake.fail_at, atomic_load(&w.fake.n_calls) + 1);
		cr_assert_eq(world_read(&w, f, i * CHUNK + 4096, 1, 1, 1), 0, "errno %d", errs[i]);
	}
	cr_assert_eq(stats(&w).retries, 8);
	cr_assert_eq(stats(&w).origin_errors, 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* ---- the N-th call fails ---- */

static void scenario(struct world *w, int want)
{
	struct cache_file *f;
	int err;

	f = world_get(w, "f");
	atomic_store(&w->fake.n_calls, 0);
	err = world_read(w, f, CHUNK - 100, 200, 1, 1); /* open, two chunks, proof */
	cr_assert(err == 0 || err == want, "read gave %d", err);
	cr_assert_not(cache_file_is_superseded(f));
	atomic_store(&w->fake.fail_at, 0);
	world_wait_fetched(w, w->n_ordered); /* a read that joins one under way shares its fate */
	cr_assert_eq(world_read(w, f, CHUNK - 100, 200, 1, 1), 0, "all is well again");
	world_wait_fetched(w, w->n_ordered);
	world_forget_residents(w);
	cache_file_put(w->cache, f);
}

Test(cache_faults, nth_call_fails_once_or_for_good)
{
	static const int errs[] = {-EIO, -EACCES, -EMFILE};
	struct world w;
	long n;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	for (unsigned e = 0; e < 3; e++) {
		for (int for_good = 0; for_good < 2; for_good++) {
			for (n = 1; n < 12; n++) {
				/* world_get() itself must not fail: arm after it, in scenario(), by n_calls. */
				atomic_store(&w.fake.fail_err, errs[e]);
				atomic_store(&w.fake.fail_n, for_good ? 1000000 : 1);
				atomic_store(&w.fake.n_calls, -1000);
				atomic_store(&w.fake.fail_at, n);
				scenario(&w, errs[e]);
			}
		}
	}
	world_close(&w);
}

/* ---- another file under the same name ---- */

static void replace_in_place(void *arg, int fd)
{
	struct world *w = arg;

	(void)fd;
	w->fake.on_preadv = NULL;
	/* Same inode, same length, between the data and its proof. */
	char path[256];
	snprintf(path, sizeof(path), "%s/f", w->dir);
	int out = open(path, O_WRONLY);
	MUST(out >= 0 && pwrite(out, "CHANGED!", 8, 0) == 8);
	close(out);
}

Test(cache_faults, changed_between_data_and_proof)
{
	struct cache_file *f, *g;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	w.fake.arg = &w;
	w.fake.on_preadv = replace_in_place;
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), -ESTALE);
	cr_assert(cache_file_is_superseded(f));
	cr_assert_eq(w.n_changed, 1);
	cr_assert_eq(stats(&w).slots_used, 0);
	cr_assert_eq(stats(&w).stale, 1);
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), -ESTALE);
	cr_assert_eq(w.n_changed, 1, "told once");
	g = world_get(&w, "f");
	cr_assert_neq(f, g);
	cr_assert_eq(world_read(&w, g, 8, CHUNK - 8, 1, 1), 0);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

Test(cache_faults, replaced_by_rename_serves_what_it_has)
{
	struct cache_file *f, *g;
	struct world w;

	world_open(&w, 8, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), 0);
	world_write(&w, "f", 1, 2, 2 * CHUNK);
	g = world_get(&w, "f");
	cr_assert_neq(f, g);
	cache_file_supersede(w.cache, f);
	cache_file_supersede(w.cache, f);
	cr_assert_eq(w.n_changed, 1);
	cr_assert_eq(world_read(&w, f, 0, CHUNK, 1, 1), 0, "from its slot");
	cr_assert_eq(world_read(&w, g, 0, 2 * CHUNK, 1, 2), 0);
	cr_assert_eq(world_read(&w, f, CHUNK, 1, 1, 1), -ESTALE, "its inode's ctime changed with the unlink");
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

Test(cache_faults, superseded_with_an_unchanged_descriptor)
{
	struct origin_attr attr;
	struct cache_file *f;
	struct world w;
	int fd;

	world_open(&w, 8, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(origin_open(w.origin, "f", &fd, &attr), 0);
	cache_file_give_fd(w.cache, f, fd);
	cache_file_supersede(w.cache, f); /* another name leads elsewhere; the inode is as it was */
	cr_assert_eq(world_read(&w, f, 0, 2 * CHUNK, 1, 1), 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_faults, gone_file_is_stale_and_a_found_one_is_current_again)
{
	struct cache_file *f, *again;
	char from[256], to[256];
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	snprintf(from, sizeof(from), "%s/f", w.dir);
	snprintf(to, sizeof(to), "%s/dir", w.dir);
	mkdir(to, 0755);
	cr_assert_eq(rename(from, strcat(to, "/f")), 0);
	cr_assert_eq(world_read(&w, f, 0, 10, 1, 1), -ESTALE);
	cr_assert(cache_file_is_superseded(f));
	again = cache_file_get(w.cache, cache_file_identity(f), "dir/f");
	cr_assert_eq(again, f, "one struct for one identity");
	cr_assert_not(cache_file_is_superseded(f));
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, again);
	world_close(&w);
}

Test(cache_faults, stale_handle_is_reopened_once)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 0, 10, 1, 1), 0);
	atomic_store(&w.fake.fail_err, -ESTALE);
	atomic_store(&w.fake.fail_n, 1);
	atomic_store(&w.fake.fail_at, atomic_load(&w.fake.n_calls) + 1);
	cr_assert_eq(world_read(&w, f, CHUNK, 10, 1, 1), 0);
	cr_assert_not(cache_file_is_superseded(f));
	cr_assert(stats(&w).fds <= 2, "%u descriptors", stats(&w).fds);
	/* For good: the generation is lost, not the daemon. */
	atomic_store(&w.fake.fail_ino_err, -ESTALE);
	atomic_store(&w.fake.fail_ino, world_ino(&w, "f"));
	cr_assert_eq(world_read(&w, f, CHUNK + 8192, 10, 1, 1), -ESTALE);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_faults, origin_timeout_answers_with_eio)
{
	struct cache_config cfg = {
		.memory_bytes = 4 * CHUNK, .chunk_bytes = CHUNK, .origin_timeout_ns = 100 * HFS_NS_PER_MS};
	struct cache_file *f;
	struct world w;

	world_open_cfg(&w, &cfg);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	atomic_store(&w.fake.hang_ino, world_ino(&w, "f"));
	cr_assert_eq(world_read(&w, f, 0, 10, 1, 1), -EIO);
	fake_unhang(&w.fake);
	world_wait_fetched(&w, 1);
	cr_assert_eq(world_read(&w, f, 0, 10, 1, 1), 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}
