/* SPDX-License-Identifier: Apache-2.0 */
/* sched/bitmap: against a plain array, at the edges of words and levels, and while it grows. */
#include "sched/bitmap.h"
#include "tests/unit/sched/rnd.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void compare(const struct sch_bitmap *b, const uint8_t *has, uint32_t n, uint32_t at)
{
	uint32_t next = SCH_NONE, prev = SCH_NONE, count = 0, end = n - at < 200 ? n : at + rnd(200);

	for (uint32_t i = at; i < n && next == SCH_NONE; i++)
		if (has[i])
			next = i;
	for (uint32_t i = at + 1; i-- > 0 && prev == SCH_NONE;)
		if (has[i])
			prev = i;
	cr_assert_eq(sch_bitmap_next(b, at), next, "next(%u) of %u", at, n);
	cr_assert_eq(sch_bitmap_prev(b, at), prev, "prev(%u) of %u", at, n);
	cr_assert_eq(sch_bitmap_has(b, at), has[at] != 0);
	for (uint32_t i = at; i < end; i++)
		count += has[i];
	cr_assert_eq(sch_bitmap_count(b, at, end), count, "count from %u to %u of %u", at, end, n);
}

Test(bitmap, like_an_array)
{
	static const uint32_t sizes[] = {1, 63, 64, 65, 4095, 4096, 4097, 300000};

	for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
		uint32_t n = sizes[k];
		uint8_t *has = calloc(n, 1);
		struct sch_bitmap b;

		sch_bitmap_init(&b);
		cr_assert_eq(sch_bitmap_reserve(&b, n), 0);
		for (int i = 0; i < 4000; i++) {
			uint32_t at = rnd(n);

			if (i % 16 == 0) {
				uint32_t to = at + 1 + rnd(n - at < 5000 ? n - at : 5000);

				sch_bitmap_fill(&b, at, to);
				memset(has + at, 1, to - at);
			} else if (rnd(3) == 0) {
				sch_bitmap_set(&b, at);
				has[at] = 1;
			} else {
				sch_bitmap_clear(&b, at);
				has[at] = 0;
			}
			if (n <= 5000 || i % 100 == 0)
				compare(&b, has, n, rnd(n));
		}
		sch_bitmap_zero(&b);
		cr_assert_eq(sch_bitmap_last(&b), SCH_NONE);
		sch_bitmap_finish(&b);
		free(has);
	}
}

Test(bitmap, growing_keeps_members)
{
	struct sch_bitmap b;

	sch_bitmap_init(&b);
	cr_assert_eq(sch_bitmap_last(&b), SCH_NONE);
	for (uint32_t n = 1; n < 400000; n = n * 3 + 1) {
		cr_assert_eq(sch_bitmap_reserve(&b, n), 0);
		sch_bitmap_set(&b, n - 1);
		cr_assert_eq(sch_bitmap_next(&b, 0), 0);
		cr_assert_eq(sch_bitmap_last(&b), n - 1);
	}
	cr_assert_eq(sch_bitmap_next(&b, 400000), SCH_NONE, "past the end");
	sch_bitmap_finish(&b);
}
