/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of /proc/self/mountinfo, whole, escaped and broken; and questions with a deadline.
 */
#include "fs/bounded.h"
#include "fs/mountinfo.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

Test(mountinfo, lines)
{
	struct mountinfo *m = calloc(1, sizeof(*m));

	cr_assert(mountinfo_parse("36 35 0:43 / /mnt/a\\040b\\011\\012\\134 ro,nosuid shared:1 master:2 - fuse.hintfs /src\\040x ro,user_id=0\n",
				  m));
	cr_assert_str_eq(m->mountpoint, "/mnt/a b\t\n\\");
	cr_assert_str_eq(m->fstype, "fuse.hintfs");
	cr_assert_str_eq(m->source, "/src x");
	cr_assert_eq(m->minor, 43);
	cr_assert(mountinfo_is_ours(m));
	cr_assert(mountinfo_parse("1 2 8:1 / / rw - ext4", m));
	cr_assert_str_eq(m->source, "");
	cr_assert(!mountinfo_is_ours(m));
	free(m);
}

/* Every cut of a good line is refused or understood, never read past its end (sanitizers look on). */
Test(mountinfo, cut_lines)
{
	static const char whole[] = "36 35 0:43 / /mnt/a\\040b rw shared:1 - fuse.hintfs src rw";
	struct mountinfo *m = calloc(1, sizeof(*m));

	for (size_t n = 0; n < sizeof(whole); n++) {
		char *cut = strndup(whole, n);
		bool has_type = n > strlen("36 35 0:43 / /mnt/a\\040b rw shared:1 - ");

		cr_assert_eq(mountinfo_parse(cut, m), has_type, "%s", cut);
		free(cut);
	}
	free(m);
}

Test(mountinfo, ours_by_name)
{
	struct mountinfo *m = calloc(1, sizeof(*m));

	strcpy(m->fstype, "fuse.hintfs-ctl");
	cr_assert(mountinfo_is_ours(m));
	strcpy(m->fstype, "fuse.hintfsx");
	cr_assert(!mountinfo_is_ours(m));
	strcpy(m->fstype, "fuse");
	cr_assert(!mountinfo_is_ours(m));
	free(m);
}

Test(mountinfo, the_root_is_mounted_and_a_new_name_is_not)
{
	struct mountinfo *m = calloc(1, sizeof(*m));

	cr_assert_eq(mountinfo_state("/proc", m), MOUNTINFO_FOREIGN);
	cr_assert_str_eq(m->fstype, "proc");
	cr_assert_eq(mountinfo_state("/no/such/place", m), MOUNTINFO_NONE);
	cr_assert_eq(mountinfo_find("/no/such/place", m), -ENOENT);
	free(m);
}

static void answer(const void *arg, void *ret)
{
	memset(ret, *(const char *)arg, 100000); /* more than a pipe holds */
}

static void hang(const void *arg, void *ret)
{
	(void)arg;
	(void)ret;
	for (;;)
		pause();
}

static void die(const void *arg, void *ret)
{
	(void)arg;
	(void)ret;
	raise(SIGKILL);
}

Test(bounded, answers_hangs_and_deaths)
{
	char *buf = calloc(1, 100000);

	cr_assert_eq(bounded_run(answer, "x", buf, 100000, 10000, NULL), 0);
	cr_assert(buf[0] == 'x' && buf[99999] == 'x');
	cr_assert_eq(bounded_run(hang, NULL, buf, 1, 50, NULL), -ETIMEDOUT);
	cr_assert_eq(bounded_run(die, NULL, buf, 1, 10000, NULL), -ECHILD);
	/* None of them is left behind. */
	cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
	cr_assert_eq(errno, ECHILD);
	free(buf);
}

Test(bounded, statfs)
{
	cr_assert_eq(bounded_statfs("/", 10000), 0);
	cr_assert_eq(bounded_statfs("/no/such/place", 10000), -ENOENT);
}
