/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_threads.c - readers, writers, droppers, a scrubber and a short budget at once, for the sanitizers.
 * tier_threads [ROUNDS a thread] (1500).
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define SIZE (6 * MIB)
#define THREADS 6
#define FILES 60

struct world {
	struct rig r;
	struct disk *d;
	uint32_t rounds;
	_Atomic uint32_t gens[FILES];
	_Atomic uint64_t hits, puts;
	_Atomic bool is_over;
};

struct worker {
	struct world *w;
	pthread_t thread;
	uint64_t rng;
};

static struct rig_file pick(struct worker *x)
{
	uint32_t no = (uint32_t)(rig_next(&x->rng) % FILES), gen = atomic_load(&x->w->gens[no]);

	return (struct rig_file){.no = no, .gen = gen, .size = (no + gen) % 2 == 0 ? (2 + no % 5) * RIG_CHUNK + 9 : 3000 + 500 * no};
}

static void *work(void *arg)
{
	struct worker *x = arg;
	struct world *w = x->w;
	char path[64];

	for (uint32_t i = 0; i < w->rounds; i++) {
		struct rig_file f = pick(x);
		uint32_t c = (uint32_t)(rig_next(&x->rng) % rig_chunks(&f)), dice = (uint32_t)(rig_next(&x->rng) % 100);

		if (dice < 50)
			atomic_fetch_add(&w->hits, rig_get(&w->r, &f, c));
		else if (dice < 88)
			atomic_fetch_add(&w->puts, rig_admit(&w->r, &f, c) == 0);
		else if (dice < 94)
			rig_drop(&w->r, &f, c);
		else if (dice < 96)
			atomic_fetch_add(&w->gens[f.no], 1);
		else if (dice < 98) {
			rig_path(&f, path);
			tier_drop_file(w->r.t, path);
		} else
			rig_check(disk_used_max(w->d, true) <= SIZE, "du above the limit");
	}
	return NULL;
}

static void *scrub(void *arg)
{
	struct world *w = arg;

	while (!atomic_load(&w->is_over))
		rig_check(tier_scrub(w->r.t, NULL, NULL, NULL) == 0, "scrub");
	return NULL;
}

/* At rest. A tick may have culling go on between the two looks: then both are taken once more. */
static struct tier_stats counted_right(struct world *w)
{
	const uint64_t deadline_ns = hfs_now_ns() + RIG_WAIT_MS * HFS_NS_PER_MS;
	struct tier_stats s;
	uint64_t du;

	do {
		rig_idle(&w->r, true);
		s = rig_stats(&w->r);
		du = disk_used(w->d);
	} while (s.bytes != du && hfs_now_ns() < deadline_ns);
	rig_check(s.bytes == du, "counted right: %llu, du %llu", (unsigned long long)s.bytes, (unsigned long long)du);
	return s;
}

int main(int argc, char **argv)
{
	struct world *w = rig_alloc(sizeof(*w));
	struct worker workers[THREADS];
	pthread_t scrubber;
	uint64_t seed = rig_seed();

	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	w->rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 1500;
	w->d = disk_new(64 * MIB, 10000);
	rig_init(&w->r, DISK_DIR, disk_io(w->d), SIZE);
	w->r.cfg.fds_max = 16;
	w->r.cfg.error_window_ns = UINT64_C(60) * 1000000000;
	for (int round = 0; round < 3; round++) {
		rig_open(&w->r);
		atomic_store(&w->is_over, false);
		for (int i = 0; i < THREADS; i++) {
			workers[i] = (struct worker){.w = w, .rng = seed + (uint64_t)(round * THREADS + i)};
			rig_check(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "thread");
		}
		rig_check(pthread_create(&scrubber, NULL, scrub, w) == 0, "thread");
		for (int i = 0; i < THREADS; i++)
			pthread_join(workers[i].thread, NULL);
		atomic_store(&w->is_over, true);
		pthread_join(scrubber, NULL);
		struct tier_stats s = counted_right(w);

		rig_check(s.bad == 0, "nothing was bad: %llu", (unsigned long long)s.bad);
		rig_check(s.state == TIER_ON, "no trouble");
		rig_close(&w->r);
		rig_check(disk_fds(w->d) == 0, "no descriptor is left");
	}
	rig_check(w->hits > 100 && w->puts > 100, "it did something: %llu hits", (unsigned long long)w->hits);
	(void)printf("ok: %llu hits, %llu admissions\n", (unsigned long long)w->hits, (unsigned long long)w->puts);
	disk_free(w->d);
	free(w);
	return 0;
}
