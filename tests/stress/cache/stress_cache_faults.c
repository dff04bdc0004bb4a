/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/cache/stress_cache_faults.c - the origin fails, cuts, hangs and recovers at random under readers and
 * look-ups, and the cache is shut down in the middle. Every read is answered exactly once: right bytes, or the errno of
 * a fault that was made. Exit 0 or an abort with a line.
 */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <pthread.h>

#define FILES 8
#define READERS 12
#define ROUNDS 6
#define SLOTS 6
#define CHUNK 65536u
#define SIZE (9 * CHUNK + 123)

static struct world world;
static struct cache_file *files[FILES];
static _Atomic bool is_over;
static _Atomic uint64_t n_right, n_failed;

static bool is_expected(int err)
{
	return err == -EIO || err == -EACCES || err == -ESTALE || err == -ESHUTDOWN;
}

static void *reader_main(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg, no;
	struct reader rd;
	uint64_t off;
	int err;

	while (!atomic_load(&is_over)) {
		no = (unsigned)rand_r(&seed) % FILES;
		off = (uint64_t)rand_r(&seed) % SIZE;
		err = reader_start(&rd, &world, files[no], off,
				   (uint32_t)hfs_min_u64(SIZE - off, 1 + (unsigned)rand_r(&seed) % (2 * CHUNK)));
		if (err >= 0)
			err = reader_wait(&rd);
		MUST(err == 0 || is_expected(err));
		MUST(err != 0 || reader_matches(&rd, no, 1));
		*(err == 0 ? &n_right : &n_failed) += 1;
		reader_finish(&rd);
	}
	return NULL;
}

static void wait_reads(uint64_t n)
{
	uint64_t until_ns = hfs_now_ns() + WAIT_NS, want = n_right + n_failed + n;

	hfs_mutex_lock(&world.lock);
	while (n_right + n_failed < want)
		MUST(hfs_cond_wait_until(&world.cond, &world.lock, until_ns));
	hfs_mutex_unlock(&world.lock);
}

/* One kind of trouble after the other, each for as long as some reads take. */
static void trouble(unsigned round)
{
	struct fake *f = &world.fake;
	char name[16];

	snprintf(name, sizeof(name), "f%u", round % FILES);
	switch (round % 4) {
	case 0:
		atomic_store(&f->hang_ino, cache_file_identity(files[round % FILES])->ino);
		wait_reads(1);
		fake_unhang(f);
		break;
	case 1:
		atomic_store(&f->fail_ino_err, -EACCES);
		atomic_store(&f->fail_ino, cache_file_identity(files[round % FILES])->ino);
		wait_reads(100);
		atomic_store(&f->fail_ino, 0);
		break;
	case 2:
		atomic_store(&f->fail_err, -EIO);
		atomic_store(&f->fail_n, 3);
		atomic_store(&f->fail_at, atomic_load(&f->n_calls) + 5);
		wait_reads(100);
		break;
	default:
		atomic_store(&f->short_every, 2);
		wait_reads(100);
		atomic_store(&f->short_every, 0);
		break;
	}
	wait_reads(50);
}

int main(void)
{
	pthread_t readers[READERS];
	char name[16];

	world_open(&world, SLOTS, CHUNK);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&world, name, i, 1, SIZE);
		files[i] = world_get(&world, name);
	}
	for (uintptr_t i = 0; i < READERS; i++)
		MUST(pthread_create(&readers[i], NULL, reader_main, (void *)(i + 1)) == 0);
	for (unsigned i = 0; i < ROUNDS * 4; i++)
		trouble(i);
	/* All readers are under way: the end comes without a word. */
	cache_shutdown(world.cache);
	atomic_store(&is_over, true);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	for (unsigned i = 0; i < FILES; i++)
		cache_file_put(world.cache, files[i]);
	world_close(&world);
	printf("%llu right, %llu failed\n", (unsigned long long)n_right, (unsigned long long)n_failed);
	MUST(n_right > 0 && n_failed > 0);
	return 0;
}
