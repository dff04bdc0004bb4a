/* SPDX-License-Identifier: Apache-2.0 */
/* When the kernel is told that OPENs are not needed (fs/data_noopen.c): the rule alone; the rest is tests/mount/test_no_open.py. */
#include "fs/data_i.h"

#include <criterion/criterion.h>

Test(noopen, three_quarters_of_128_files_must_be_small)
{
	cr_assert_not(data_no_open_is_due(0, 0));
	cr_assert_not(data_no_open_is_due(127, 127));
	cr_assert(data_no_open_is_due(128, 128));
	cr_assert(data_no_open_is_due(128, 96));
	cr_assert_not(data_no_open_is_due(128, 95));
	cr_assert_not(data_no_open_is_due(1000000, 749999), "large files first: they count for ever");
	cr_assert(data_no_open_is_due(1000000, 750000));
	cr_assert_not(data_no_open_is_due(UINT32_MAX, UINT32_MAX / 2));
	cr_assert(data_no_open_is_due(UINT32_MAX, UINT32_MAX));
}

Test(noopen, kernels_that_could_dead_lock_are_left_alone)
{
	static const struct {
		const char *release;
		bool is_safe;
	} rows[] = {
		{ "3.15.0", false },	 { "3.16.0", true },	{ "4.19.0-27-amd64", true }, { "5.14.0-427.el9.x86_64", true },
		{ "6.1.0-37-amd64", true }, { "6.8.12", true },	{ "6.9.0", false },	     { "6.11.5", false },
		{ "6.12.0-55.el10", false }, { "6.12.69", false }, { "6.12.70", true },     { "6.17.13", false },
		{ "6.18.9", false },	 { "6.18.44-x", true }, { "6.18-rc3", false },	     { "6.19.0", true },
		{ "7.0", true },	 { "", false },		{ "x", false },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		cr_assert_eq(data_no_open_is_safe(rows[i].release), rows[i].is_safe, "%s", rows[i].release);
}
