/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_nth.c - the N-th system call fails, for N = 1 until a run meets no failure any more.
 *
 * A scenario passes through start, adoption, filling, replacing, dropping, culling, sync, shutdown. Whatever fails: no wrong byte, no
 * crash, no wait without end, no descriptor left, du within the limit; and after the fault everything works again.
 * tier_nth [STRIDE]: every STRIDE-th N only (the order of calls differs between runs, so all N are met in time).
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define SIZE (5 * MIB)

static const struct rig_file BIG = {.no = 1, .gen = 1, .size = 5 * RIG_CHUNK + 4321};
static const struct rig_file BIG2 = {.no = 1, .gen = 2, .size = 5 * RIG_CHUNK + 4321};
static const struct rig_file SMALL = {.no = 2, .gen = 1, .size = 30001};
static const struct rig_file SMALL2 = {.no = 2, .gen = 2, .size = 30002};

static struct rig_file other(uint32_t i)
{
	return (struct rig_file){.no = 100 + i, .gen = 1, .size = i % 2 == 0 ? 9 * RIG_CHUNK : 50000};
}

static void prepare(struct disk *d)
{
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), SIZE);
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	for (uint32_t i = 0; i < 6; i++) {
		struct rig_file f = other(i);

		rig_put(&r, &f);
	}
	rig_close(&r);
}

static void get_everything(struct rig *r)
{
	(void)rig_get_all(r, &BIG);
	(void)rig_get_all(r, &BIG2);
	(void)rig_get_all(r, &SMALL);
	(void)rig_get_all(r, &SMALL2);
	for (uint32_t i = 0; i < 12; i++) {
		struct rig_file f = other(i);

		(void)rig_get_all(r, &f);
	}
}

/* With the fault armed. */
static void live(struct disk *d)
{
	char why[512];
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), SIZE);
	if (rig_try_open(&r, why, sizeof(why)) < 0) {
		rig_check(why[0] != '\0', "a refusal says why");
		return;
	}
	/* It may stay unadopted (and come back by a probe): that is no reason to wait. */
	(void)tier_wait_adopted(r.t, 20);
	get_everything(&r);
	rig_put(&r, &BIG2);
	rig_put(&r, &SMALL2);
	rig_drop(&r, &BIG2, 1);
	rig_drop(&r, &SMALL2, 0);
	for (uint32_t i = 6; i < 12; i++) {
		struct rig_file f = other(i);

		rig_put(&r, &f);
		rig_check(disk_used_max(d, true) <= SIZE, "du above the limit");
	}
	get_everything(&r);
	(void)tier_scrub(r.t, NULL, NULL, NULL);
	rig_idle(&r, true);
	rig_check(tier_destroy(r.t, RIG_WAIT_MS), "it ends");
}

static void recover(struct disk *d)
{
	struct rig r;

	disk_fail_reset(d);
	rig_init(&r, DISK_DIR, disk_io(d), SIZE);
	rig_open(&r);
	get_everything(&r);
	(void)rig_get_all(&r, &BIG);
	struct rig_file fresh = {.no = 7777, .gen = 1, .size = 3 * RIG_CHUNK};

	rig_put(&r, &fresh);
	rig_check(rig_get_all(&r, &fresh) == 3, "after the fault it works");
	rig_idle(&r, true);
	rig_check(rig_stats(&r).bytes == disk_used(d), "and counts right: %llu, du %llu", (unsigned long long)rig_stats(&r).bytes,
		  (unsigned long long)disk_used(d));
	rig_close(&r);
	rig_check(disk_fds(d) == 0, "no descriptor is left");
}

static uint64_t run(uint64_t nth, int err, bool is_sticky, bool is_short)
{
	struct disk *d = disk_new(32 * MIB, 1000);
	uint64_t failed;

	prepare(d);
	disk_fail_reset(d);
	disk_short(d, is_short);
	(void)disk_used_max(d, true);
	disk_fail_nth(d, nth, err, is_sticky);
	live(d);
	failed = disk_failed(d);
	recover(d);
	disk_free(d);
	return failed;
}

int main(int argc, char **argv)
{
	static const struct {
		int err;
		bool is_sticky;
	} kinds[] = {{-EIO, false}, {-EIO, true}, {-ENOSPC, false}, {-ENOSPC, true}, {-EDQUOT, true}, {-EROFS, true}, {-EINTR, false}};
	const uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	uint64_t runs = 0, met = 0, seed = rig_seed(), nth, failed;

	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		for (nth = 1 + rig_next(&seed) % stride;; nth += stride) {
			failed = run(nth, kinds[k].err, kinds[k].is_sticky, k % 3 == 2);
			runs++;
			met += failed > 0;
			if (failed == 0)
				break;
		}
		rig_check(nth > 100, "the fault was met in %llu calls only", (unsigned long long)nth);
		(void)printf("%s%s: up to call %llu\n", strerror(-kinds[k].err), kinds[k].is_sticky ? " for good" : "",
			     (unsigned long long)nth);
		(void)fflush(stdout);
	}
	(void)printf("ok: %llu runs, %llu met their fault\n", (unsigned long long)runs, (unsigned long long)met);
	return 0;
}
