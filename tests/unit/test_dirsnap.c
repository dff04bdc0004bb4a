/* SPDX-License-Identifier: Apache-2.0 */
/* Directory snapshots (fs/dirsnap.h): content, sharing, budget. */
#include "fs/dirsnap.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

static struct dirsnap *build(struct dirsnap_table *t, uint64_t node, unsigned n)
{
	struct dirsnap *s = NULL;
	char name[256];

	cr_assert_eq(dirsnap_create(t, node, &s), 0);
	for (unsigned i = 0; i < n; i++) {
		int len = snprintf(name, sizeof(name), "entry-%lu-%u", (unsigned long)node, i);

		cr_assert_eq(dirsnap_add(s, name, (size_t)len, 1000 + i, i % 2 ? DT_REG : DT_DIR), 0);
	}
	cr_assert_eq(dirsnap_publish(s, 42), 0);
	return s;
}

static void check(struct dirsnap *s, uint64_t node, unsigned n)
{
	char name[256];

	cr_assert_eq(dirsnap_count(s), n);
	for (unsigned i = 0; i < n; i++) {
		struct dirsnap_entry e;

		dirsnap_entry(s, i, &e);
		snprintf(name, sizeof(name), "entry-%lu-%u", (unsigned long)node, i);
		cr_assert_str_eq(e.name, name);
		cr_assert_eq(e.len, strlen(name));
		cr_assert_eq(e.ino, 1000 + i);
		cr_assert_eq(e.type, i % 2 ? DT_REG : DT_DIR);
	}
}

Test(dirsnap, the_last_listing_is_found_and_the_one_before_stays_right)
{
	struct dirsnap_table *t;
	uint64_t at = 0;

	cr_assert_eq(dirsnap_table_create(&t), 0);
	struct dirsnap *a = build(t, 7, 10), *b = build(t, 7, 20);
	struct dirsnap *f = dirsnap_find(t, 7, &at);
	cr_assert_eq(f, b);
	cr_assert_eq(at, 42);
	check(a, 7, 10);
	check(b, 7, 20);
	dirsnap_put(f);
	dirsnap_put(a);
	dirsnap_put(b);
	f = dirsnap_find(t, 7, NULL);
	cr_assert_eq(f, b, "kept for the day the origin hangs");
	dirsnap_put(f);
	cr_assert_null(dirsnap_find(t, 8, NULL));
	dirsnap_table_destroy(t);
}

Test(dirsnap, over_the_budget_old_ones_go_and_big_ones_leave_memory)
{
	struct dirsnap_table *t;
	struct dirsnap *held[12];
	const unsigned n = 200000; /* about 8 MB each */

	cr_assert_eq(dirsnap_table_create(&t), 0);
	for (unsigned i = 0; i < 12; i++) {
		held[i] = build(t, 100 + i, n);
		cr_assert_leq(dirsnap_bytes(t), DIRSNAP_BYTES_MAX);
	}
	for (unsigned i = 0; i < 12; i++) {
		check(held[i], 100 + i, n);
		dirsnap_put(held[i]);
	}
	dirsnap_put(build(t, 500, 1000));
	cr_assert_leq(dirsnap_bytes(t), DIRSNAP_BYTES_MAX);
	dirsnap_table_destroy(t);
}

Test(dirsnap, thousands_of_directories_are_bounded)
{
	struct dirsnap_table *t;

	cr_assert_eq(dirsnap_table_create(&t), 0);
	for (unsigned i = 0; i < 10000; i++)
		dirsnap_put(build(t, 1000 + i, 3));
	cr_assert_null(dirsnap_find(t, 1000, NULL), "the least recently used go");
	struct dirsnap *s = dirsnap_find(t, 10999, NULL);
	cr_assert_not_null(s);
	dirsnap_put(s);
	dirsnap_table_destroy(t);
}
