/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/cache/stress_cache.c - readers, an evictor, a prefetcher, withdrawals and new generations at once, on
 * few slots. Every byte that a read gives must be of the generation it asked for. Exit 0 or an abort with a line.
 *
 * usage: stress_cache [ROUNDS [SLOTS [CHUNK_BYTES]]]
 */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <pthread.h>

#define FILES 6
#define READERS 16

struct gen {
	struct cache_file *file;
	unsigned version;
};

static struct world world;
static pthread_mutex_t gens_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gen gens[FILES];
static uint64_t sizes[FILES];
static _Atomic bool is_over;
static _Atomic uint64_t n_ok, n_stale, n_cancelled;

static struct gen gen_take(unsigned no)
{
	struct gen g;

	pthread_mutex_lock(&gens_lock);
	g = gens[no];
	cache_file_ref(g.file);
	pthread_mutex_unlock(&gens_lock);
	return g;
}

static void name_of(unsigned no, char *buf, size_t cap)
{
	snprintf(buf, cap, "file%u", no);
}

static void renew(unsigned no)
{
	struct cache_file *old;
	char name[32];

	name_of(no, name, sizeof(name));
	pthread_mutex_lock(&gens_lock);
	old = gens[no].file;
	gens[no].version++;
	world_write(&world, name, no, gens[no].version, sizes[no]);
	gens[no].file = world_get(&world, name);
	pthread_mutex_unlock(&gens_lock);
	if (old != NULL)
		cache_file_put(world.cache, old);
}

static void one_read(unsigned *seed)
{
	unsigned no = (unsigned)rand_r(seed) % FILES;
	struct gen g = gen_take(no);
	uint64_t off = (uint64_t)rand_r(seed) % sizes[no];
	uint32_t max = (uint32_t)hfs_min_u64(sizes[no] - off, 3 * world.chunk_bytes);
	uint32_t len = rand_r(seed) % 4 == 0 ? max : (uint32_t)hfs_min_u64(max, 1 + (unsigned)rand_r(seed) % 20000);
	struct reader rd;
	int err = reader_start(&rd, &world, g.file, off, len);

	MUST(err >= 0);
	if (err == 0 && rand_r(seed) % 16 == 0 && cache_read_cancel(world.cache, &rd.r)) {
		n_cancelled++;
	} else {
		err = reader_wait(&rd);
		MUST(err == 0 || err == -ESTALE);
		MUST(err != 0 || reader_matches(&rd, no, g.version));
		*(err == 0 ? &n_ok : &n_stale) += 1;
	}
	reader_finish(&rd);
	cache_file_put(world.cache, g.file);
}

static void *reader_main(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	long rounds = 0;

	while (!atomic_load(&is_over)) {
		one_read(&seed);
		rounds++;
	}
	return (void *)rounds;
}

static void *meddler_main(void *arg)
{
	unsigned seed = 77;
	struct gen g;
	unsigned no;
	uint64_t chunk;

	(void)arg;
	while (!atomic_load(&is_over)) {
		no = (unsigned)rand_r(&seed) % FILES;
		chunk = (uint64_t)rand_r(&seed) % hfs_div_up(sizes[no], world.chunk_bytes);
		g = gen_take(no);
		switch (rand_r(&seed) % 4) {
		case 0:
			cache_evict(world.cache, g.file, chunk);
			hfs_mutex_lock(&world.lock); /* readers look again */
			world.n_events++;
			hfs_cond_broadcast(&world.cond);
			hfs_mutex_unlock(&world.lock);
			break;
		case 1:
			cache_unfetch(world.cache, g.file, chunk);
			break;
		default:
			hfs_mutex_lock(&world.lock);
			while (world.n_pledged >= world.slots)
				MUST(hfs_cond_wait_until(&world.cond, &world.lock, hfs_now_ns() + WAIT_NS));
			hfs_mutex_unlock(&world.lock);
			(void)world_fetch(&world, g.file, chunk, 0, hfs_chunk_len(sizes[no], world.chunk_bytes, chunk),
					  false);
			break;
		}
		cache_file_put(world.cache, g.file);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 60;
	uint32_t slots = argc > 2 ? (uint32_t)atol(argv[2]) : 8;
	uint64_t chunk_bytes = argc > 3 ? (uint64_t)atol(argv[3]) : 65536;
	pthread_t readers[READERS], meddler;

	world_open(&world, slots, chunk_bytes);
	for (unsigned i = 0; i < FILES; i++) {
		sizes[i] = i == 0 ? 100 : i * 5 * chunk_bytes / 2 + i * 4093;
		renew(i);
	}
	atomic_store(&world.fake.short_every, 7);
	for (uintptr_t i = 0; i < READERS; i++)
		MUST(pthread_create(&readers[i], NULL, reader_main, (void *)(i + 1)) == 0);
	MUST(pthread_create(&meddler, NULL, meddler_main, NULL) == 0);
	for (long i = 0; i < rounds; i++) {
		uint64_t want = n_ok + n_stale + 100;
		uint64_t until_ns = hfs_now_ns() + WAIT_NS;

		hfs_mutex_lock(&world.lock);
		while (n_ok + n_stale < want)
			MUST(hfs_cond_wait_until(&world.cond, &world.lock, until_ns));
		hfs_mutex_unlock(&world.lock);
		renew((unsigned)i % FILES);
	}
	atomic_store(&is_over, true);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	pthread_join(meddler, NULL);
	for (unsigned i = 0; i < FILES; i++)
		cache_file_put(world.cache, gens[i].file);
	world_close(&world);
	printf("%llu reads, %llu stale, %llu withdrawn\n", (unsigned long long)n_ok, (unsigned long long)n_stale,
	       (unsigned long long)n_cancelled);
	return 0;
}
