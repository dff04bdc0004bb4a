/* SPDX-License-Identifier: Apache-2.0 */
/* The slot pool: touched before use, pins outlive a release, nothing is handed out twice. */
#include "cache/pool.h"
#include "cache/base/time.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct hfs_mutex lock;
static struct hfs_cond cond;
static uint32_t total;
static bool is_last;

static void ready(void *ctx, uint32_t n, bool last)
{
	(void)ctx;
	hfs_mutex_lock(&lock);
	cr_assert(n >= total);
	total = n;
	is_last = last;
	hfs_cond_broadcast(&cond);
	hfs_mutex_unlock(&lock);
}

static struct pool *start(uint64_t slots, uint64_t chunk)
{
	struct pool_config cfg = {.memory_bytes = slots * chunk, .chunk_bytes = chunk, .lock = &lock, .ready = ready};
	struct pool *p;

	hfs_mutex_init(&lock, HFS_RANK_CACHE);
	hfs_cond_init(&cond);
	cr_assert_eq(pool_create(&cfg, &p), 0);
	cr_assert(slot_is_none(pool_take(p)), "nothing is usable before it was touched");
	cr_assert(pool_is_filling_up(p));
	cr_assert_eq(pool_start(p), 0);
	hfs_mutex_lock(&lock);
	while (!is_last)
		cr_assert(hfs_cond_wait_until(&cond, &lock, hfs_now_ns() + 60 * HFS_NS_PER_S));
	hfs_mutex_unlock(&lock);
	return p;
}

Test(pool, all_slots_once_and_apart)
{
	struct pool *p = start(300, 131072);
	bool seen[300] = {false};
	struct slot_no s;

	cr_assert_eq(total, 300);
	for (unsigned i = 0; i < 300; i++) {
		s = pool_take(p);
		cr_assert(s.no < 300 && !seen[s.no]);
		seen[s.no] = true;
		memset(pool_slot_data(p, s), (int)(s.no & 0xff), 131072);
	}
	cr_assert(slot_is_none(pool_take(p)));
	for (uint32_t i = 0; i < 300; i++) {
		const uint8_t *d = pool_slot_data(p, (struct slot_no){i});

		cr_assert(d[0] == (i & 0xff) && d[131071] == (i & 0xff));
	}
	pool_destroy(p);
}

Test(pool, pinned_slot_is_free_only_after_the_last_unpin)
{
	struct pool *p = start(1, 65536);
	struct slot_no s = pool_take(p);

	pool_pin(p, s);
	pool_pin(p, s);
	cr_assert_eq(pool_slots_pinned(p), 1);
	pool_release(p, s);
	cr_assert(slot_is_none(pool_take(p)));
	cr_assert_not(pool_unpin(p, s));
	cr_assert(slot_is_none(pool_take(p)));
	cr_assert(pool_unpin(p, s));
	cr_assert_eq(pool_slots_pinned(p), 0);
	cr_assert_eq(pool_take(p).no, s.no);
	pool_pin(p, s);
	cr_assert_not(pool_unpin(p, s), "still taken");
	pool_release(p, s);
	cr_assert_eq(pool_slots_free(p), 1);
	pool_destroy(p);
}

Test(pool, stop_while_touching)
{
	struct pool_config cfg = {.memory_bytes = 1 << 28, .chunk_bytes = 1 << 20, .lock = &lock, .ready = ready};
	struct pool *p;

	hfs_mutex_init(&lock, HFS_RANK_CACHE);
	hfs_cond_init(&cond);
	cr_assert_eq(pool_create(&cfg, &p), 0);
	cr_assert_eq(pool_start(p), 0);
	pool_stop(p);
	pool_stop(p);
	pool_destroy(p);
	pool_destroy(NULL);
}

Test(pool, less_than_a_slot)
{
	struct pool_config cfg = {.memory_bytes = 65535, .chunk_bytes = 65536, .lock = &lock, .ready = ready};
	struct pool *p;

	cr_assert_eq(pool_create(&cfg, &p), -EINVAL);
}

/* Is the kernel asked for huge pages there? False as well: it has none. */
static bool is_huge_wanted(const void *at)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from = 0, to = 0;
	bool is_here = false, is_wanted = false;
	char line[4096];

	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			is_here = (unsigned long)at >= from && (unsigned long)at < to;
		else if (is_here && strncmp(line, "VmFlags:", 8) == 0)
			is_wanted = strstr(line, " hg") != NULL;
	}
	cr_assert_eq(fclose(f), 0);
	return is_wanted;
}

/* A disk reads straight into slots: each is to be as few pieces of memory as can be. */
Test(pool, slots_lie_in_huge_pages)
{
	struct pool *p = start(33, 1 << 20);

	cr_assert_eq((uintptr_t)pool_slot_data(p, (struct slot_no){0}) % (2 << 20), 0);
	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0)
		cr_assert(is_huge_wanted(pool_slot_data(p, (struct slot_no){16})));
	pool_destroy(p);
}
