/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/engine/stress_engine.c - readers of all sizes, orders that come and go, files that are replaced, withdrawn reads
 * and waits, prefetch switched on and off: at once, on few slots. No read stays parked for more than STUCK_NS, every byte is of
 * the generation that was asked for, and no slot is forgotten. Exit 0 or an abort with a line.
 *
 * usage: stress_engine [READS [SLOTS [CHUNK_BYTES]]]   READS: of each thread
 */
#include "fs/engine.h"
#include "fs/engine_i.h"
#include "tests/unit/engine_world.h"

#include <pthread.h>

#define FILES 6u
#define READERS 12u
#define STUCK_NS (20 * HFS_NS_PER_S)

struct gen {
	struct cache_file *file;
	unsigned version;
};

static struct engine_world ew;
static pthread_mutex_t gens_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gen gens[FILES]; /* guarded by gens_lock */
static uint64_t sizes[FILES];
static uint32_t names[FILES];
static unsigned n_reads = 300;
static _Atomic bool is_over;
static _Atomic uint64_t n_ok, n_stale, n_cancelled, n_replaced, n_orders, n_waits;

static void name_of(unsigned no, char *buf, size_t cap)
{
	snprintf(buf, cap, "file%u", no);
}

/* ---- readers -------------------------------------------------------------------------------- */

static struct gen gen_take(unsigned no)
{
	struct gen g;

	pthread_mutex_lock(&gens_lock);
	g = gens[no];
	cache_file_ref(g.file);
	pthread_mutex_unlock(&gens_lock);
	return g;
}

static int wait_at_most(struct reader *rd)
{
	uint64_t until_ns = hfs_now_ns() + STUCK_NS;

	hfs_mutex_lock(&rd->w->lock);
	while (!rd->is_done)
		MUST(hfs_cond_wait_until(&rd->w->cond, &rd->w->lock, until_ns) && "a read is stuck");
	hfs_mutex_unlock(&rd->w->lock);
	return rd->err;
}

static void one_read(unsigned *seed, uint64_t reader)
{
	unsigned no = (unsigned)rand_r(seed) % FILES, kind = (unsigned)rand_r(seed) % 4;
	struct gen g = gen_take(no);
	uint64_t off = (uint64_t)rand_r(seed) % sizes[no];
	uint64_t max = kind == 0 ? 1 : kind == 1 ? 5000 : kind == 2 ? 70000 : 17 * ew.w.chunk_bytes;
	struct reader rd;
	int err;

	engine_reader_start(&rd, &ew, g.file, off, (uint32_t)hfs_min_u64(max, sizes[no] - off), reader);
	if (rand_r(seed) % 16 == 0 && engine_read_cancel(ew.e, &rd.r)) {
		n_cancelled++;
	} else {
		err = wait_at_most(&rd);
		MUST(err == 0 || err == -ESTALE);
		MUST(err != 0 || reader_matches(&rd, no, g.version));
		*(err == 0 ? &n_ok : &n_stale) += 1;
	}
	reader_finish(&rd);
	cache_file_put(ew.w.cache, g.file);
}

static void *reader_main(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (unsigned i = 0; i < n_reads; i++)
		one_read(&seed, (uintptr_t)arg);
	return NULL;
}

/* ---- the others ------------------------------------------------------------------------------- */

static void replace(unsigned no)
{
	struct gen old, new;
	char name[32];

	name_of(no, name, sizeof(name));
	pthread_mutex_lock(&gens_lock);
	old = gens[no];
	new.version = old.version + 1;
	world_write(&ew.w, name, no, new.version, sizes[no]);
	new.file = engine_world_get(&ew, name, 99);
	gens[no] = new;
	pthread_mutex_unlock(&gens_lock);
	cache_file_supersede(ew.w.cache, old.file);
	engine_world_put(&ew, old.file, 99);
	n_replaced++;
}

static void *replacer_main(void *arg)
{
	unsigned seed = 4711;

	(void)arg;
	while (!is_over) {
		replace((unsigned)rand_r(&seed) % FILES);
		usleep(2000); /* a pace, nothing is waited for */
	}
	return NULL;
}

static void wait_done(void *arg, int err)
{
	(void)err;
	atomic_fetch_add((_Atomic uint64_t *)arg, 1);
}

static void *orderer_main(void *arg)
{
	_Atomic uint64_t n_done = 0;
	uint64_t n_told = 0, token;
	unsigned seed = 99;
	uint32_t st;

	(void)arg;
	MUST(engine_stream_create(ew.e, &st) == 0);
	while (!is_over) {
		struct sched_entry entry[200];

		for (unsigned i = 0; i < 200; i++) {
			unsigned no = (unsigned)rand_r(&seed) % FILES;
			uint64_t off = (uint64_t)rand_r(&seed) % sizes[no];

			entry[i] = (struct sched_entry){.file = names[no],
							.off_bytes = off,
							.len_bytes = hfs_min_u64(sizes[no] - off, (unsigned)rand_r(&seed) % 100000)};
		}
		MUST(engine_stream_append(ew.e, st, entry, 200) == 200);
		if (engine_wait_file(ew.e, names[(unsigned)rand_r(&seed) % FILES], wait_done, &n_done, &token) == 0) {
			n_told++;
			if (rand_r(&seed) % 2 == 0 && engine_wait_cancel(ew.e, token))
				n_told--;
			n_waits++;
		}
		engine_prefetch_set(ew.e, (enum sched_prefetch)((unsigned)rand_r(&seed) % 4 == 0));
		if (rand_r(&seed) % 3 == 0)
			engine_stream_cancel(ew.e, st);
		n_orders++;
		usleep(1000); /* a pace, nothing is waited for */
	}
	engine_prefetch_set(ew.e, SCHED_PREFETCH_ON);
	engine_stream_destroy(ew.e, st);
	ENGINE_UNTIL(n_done == n_told); /* a wait is never forgotten either */
	return NULL;
}

/* ---- */

static void setup(uint32_t slots, uint64_t chunk_bytes)
{
	char name[32];

	engine_world_open(&ew, slots, chunk_bytes);
	for (unsigned no = 0; no < FILES; no++) {
		name_of(no, name, sizeof(name));
		sizes[no] = no == 0 ? 1000 : (no * 9 + 1) * chunk_bytes + 777 * no;
		world_write(&ew.w, name, no, 1, sizes[no]);
		gens[no] = (struct gen){.file = engine_world_get(&ew, name, 99), .version = 1};
		MUST(engine_name_get(ew.e, name, strlen(name), &names[no]) == 0);
	}
}

/* All is quiet: who holds a slot is known to the scheduler. */
static void judge(uint32_t slots)
{
	struct cache_stats st;

	ENGINE_UNTIL(engine_world_stats(&ew).inflight_bytes == 0);
	st = engine_world_stats(&ew);
	printf("ok %llu stale %llu cancelled %llu replaced %llu orders %llu waits %llu lost %llu overdue %llu shed %llu\n",
	       (unsigned long long)n_ok, (unsigned long long)n_stale, (unsigned long long)n_cancelled,
	       (unsigned long long)n_replaced, (unsigned long long)n_orders, (unsigned long long)n_waits,
	       (unsigned long long)st.lost, (unsigned long long)st.overdue, (unsigned long long)ew.e->n_shed);
	MUST(st.parked_reads == 0 && st.bounce_bytes == 0 && st.slots_used <= slots);
	ENGINE_UNTIL(engine_world_stats(&ew).slots_used == engine_world_sched_stats(&ew).resident_pages);
}

int main(int argc, char **argv)
{
	pthread_t readers[READERS], replacer, orderer;
	uint32_t slots = argc > 2 ? (uint32_t)atoi(argv[2]) : 4;

	n_reads = argc > 1 ? (unsigned)atoi(argv[1]) : n_reads;
	setup(slots, argc > 3 ? strtoull(argv[3], NULL, 0) : 65536);
	MUST(pthread_create(&replacer, NULL, replacer_main, NULL) == 0);
	MUST(pthread_create(&orderer, NULL, orderer_main, NULL) == 0);
	for (uintptr_t i = 0; i < READERS; i++)
		MUST(pthread_create(&readers[i], NULL, reader_main, (void *)(i + 1)) == 0);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	atomic_store(&is_over, true);
	pthread_join(replacer, NULL);
	pthread_join(orderer, NULL);
	judge(slots);
	for (unsigned no = 0; no < FILES; no++) {
		engine_name_put(ew.e, names[no]);
		engine_world_put(&ew, gens[no].file, 99);
	}
	engine_world_close(&ew);
	return 0;
}
