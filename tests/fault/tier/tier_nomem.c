/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_nomem.c - the N-th allocation fails, once or from then on, for N = 1 until a life of the tier meets no
 * failure: no crash, no wrong byte, no wait without end, and the next life finds everything in order.
 *
 * tier_nomem [STRIDE]: every STRIDE-th N only. Seen are the calls of the cache and of the tests; the tests' own are let
 * through (tests/fault/nomem.h).
 */
#include "tests/fault/nomem.h"
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define SIZE (5 * MIB)

static bool is_ours(void)
{
	return rig_is_allocating;
}

static struct rig_file file(uint32_t i, uint32_t gen)
{
	return (struct rig_file){.no = i, .gen = gen, .size = i % 2 == 0 ? 5 * RIG_CHUNK + 11 : 40000};
}

static void live(struct rig *r)
{
	for (uint32_t i = 0; i < 24; i++) {
		struct rig_file f = file(i, i < 4 ? 2 : 1);

		for (uint32_t c = 0; c < rig_chunks(&f); c++)
			(void)rig_admit(r, &f, c);
		(void)rig_get_all(r, &f);
		rig_drop(r, &f, 0);
		rig_check(disk_used_max((void *)r->cfg.io->ctx, true) <= SIZE, "du above the limit");
	}
	(void)tier_wait_idle(r->t, true, 100);
	(void)tier_scrub(r->t, NULL, NULL, NULL);
}

static void prepare(struct disk *d, struct rig *r)
{
	rig_init(r, DISK_DIR, disk_io(d), SIZE);
	rig_open(r);
	for (uint32_t i = 0; i < 8; i++) {
		struct rig_file f = file(i, 1);

		rig_put(r, &f);
	}
	rig_close(r);
}

static uint64_t run(uint64_t nth, bool for_good)
{
	struct disk *d = disk_new(32 * MIB, 1000);
	struct rig r;
	char why[256];

	prepare(d, &r);
	(void)disk_used_max(d, true);
	atomic_store(&nomem.n_calls, 0);
	atomic_store(&nomem.n_failed, 0);
	atomic_store(&nomem.is_sticky, for_good);
	atomic_store(&nomem.fail_at, nth);
	if (rig_try_open(&r, why, sizeof(why)) == 0) {
		(void)tier_wait_adopted(r.t, 20);
		live(&r);
		rig_check(tier_destroy(r.t, RIG_WAIT_MS), "it ends");
	}
	atomic_store(&nomem.fail_at, 0);
	rig_open(&r);
	for (uint32_t i = 0; i < 24; i++) {
		for (uint32_t gen = 1; gen <= 2; gen++) {
			struct rig_file f = file(i, gen);

			(void)rig_get_all(&r, &f);
		}
	}
	struct rig_file fresh = file(1000, 1);

	rig_put(&r, &fresh);
	rig_check(rig_get_all(&r, &fresh) == rig_chunks(&fresh), "the next life works");
	rig_idle(&r, true);
	rig_check(rig_stats(&r).bytes == disk_used(d), "and counts right");
	rig_close(&r);
	rig_check(disk_fds(d) == 0, "no descriptor is left");
	disk_free(d);
	return atomic_load(&nomem.n_failed);
}

int main(int argc, char **argv)
{
	const uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	uint64_t seed = rig_seed(), nth, failed;

	nomem.is_spared = is_ours;
	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	for (int for_good = 0; for_good < 2; for_good++) {
		for (nth = 1 + rig_next(&seed) % stride;; nth += stride) {
			failed = run(nth, for_good);
			if (failed == 0)
				break;
		}
		rig_check(nth > 50, "the fault was met in %llu calls only", (unsigned long long)nth);
		(void)printf("%s: up to allocation %llu\n", for_good ? "for good" : "once", (unsigned long long)nth);
		(void)fflush(stdout);
	}
	(void)puts("ok");
	return 0;
}
