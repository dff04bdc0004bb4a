/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_verify.c - verify: read and check all that a disk tier has, drop what is bad.
 *
 * Of a mount the daemon does it (control file `verify`), because it holds the lock; of a directory that no daemon uses, this process.
 */
#include "tools/hintctl_i.h"

#include "cache/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define READ_MS 5000u
#define ADOPT_MS (10u * 60 * 1000)
#define BUDGET_BYTES (UINT64_C(1) << 60) /* what is there is not to be culled */

static int say(const char *what, uint64_t bytes, uint64_t chunks, uint64_t bad, const char *state)
{
	char a[32], b[32], c[32];
	bool is_done = strcmp(state, "done") == 0;

	printf("%s: %s: %s in %s chunks and small files checked, %s bad%s\n", what, state, format_bytes(a, (double)bytes),
	       format_count(b, chunks), format_count(c, bad), bad > 0 ? ": dropped, read from the origin when they are needed" : "");
	return !is_done ? EXIT_FAILED : bad > 0 ? EXIT_BAD : EXIT_SUCCESS;
}

/* ---- of a mount ---- */

static int write_word(const char *path, const char *word)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), err = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, word, strlen(word)) < 0)
		err = -errno;
	close(fd);
	return err;
}

static uint64_t number(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static const char *why_not(int err)
{
	switch (err) {
	case -ENODEV:
		return "it has no disk tier to check: it was mounted without cache-dir=";
	case -EIO:
		return "its disk tier cannot be read now; hintctl status says why";
	case -ENOENT:
		return "no control file verify: the daemon is of an older version";
	case -EACCES:
	case -EPERM:
		return "not allowed: the control files belong to the one who mounted";
	default:
		return strerror(-err);
	}
}

static int watch(const struct mount_row *row, const char *path)
{
	struct bar bar;
	char *text, state[16] = "running";
	uint64_t done = 0, total = 0, chunks = 0, bad = 0;
	bool is_told = false;
	int err = 0;

	bar_begin(&bar, 0, true);
	while (strcmp(state, "running") == 0) {
		text = bounded_read(path, READ_MS, &err);
		if (!text) {
			hfs_say(stderr, "hintctl: %s: %s\n", row->mountpoint, why_not(err));
			return EXIT_FAILED;
		}
		if (sscanf(text, "state %15s", state) != 1)
			strcpy(state, "unknown");
		done = number(text, "done_bytes ");
		total = number(text, "total_bytes ");
		chunks = number(text, "done_chunks ");
		bad = number(text, "bad_chunks ");
		free(text);
		bar_draw(&bar, done, total, strcmp(state, "running") != 0);
		if (stop_is_asked() && !is_told) {
			is_told = true;
			(void)write_word(path, "stop\n");
		}
		if (strcmp(state, "running") == 0)
			(void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	return say(row->mountpoint, done, chunks, bad, state);
}

static int verify_mount(const struct mount_row *row)
{
	char *path = ctl_path(row, "verify");
	int err = path ? write_word(path, "start\n") : -ENOMEM, rc = EXIT_FAILED;

	stop_catch(false);
	if (err == 0 || err == -EALREADY) /* then the one that runs is watched */
		rc = watch(row, path);
	else
		hfs_say(stderr, "hintctl: %s: %s\n", row->mountpoint, why_not(err));
	free(path);
	return rc;
}

/* ---- of a directory ---- */

static bool on_progress(void *ctx, const struct tier_scrub_progress *p)
{
	bar_draw(ctx, p->done_bytes, p->total_bytes, false);
	return !stop_is_asked();
}

static int verify_dir(const char *dir)
{
	struct tier_config cfg = {.dir = dir, .size_bytes = BUDGET_BYTES, .chunk_bytes = 1u << 20};
	struct tier_scrub_progress last = {0};
	struct tier *t;
	struct bar bar;
	char why[1024] = "";
	int err = tier_create(&cfg, &t, why, sizeof(why));

	if (err < 0) {
		hfs_say(stderr, "hintctl: %s%s\n", why, err == -EBUSY ? "; of a mount: hintctl verify MOUNTPOINT" : "");
		return EXIT_FAILED;
	}
	stop_catch(false);
	err = tier_wait_adopted(t, ADOPT_MS) ? 0 : -ETIMEDOUT;
	bar_begin(&bar, 0, true);
	if (err == 0)
		err = tier_scrub(t, on_progress, &bar, &last);
	bar_draw(&bar, last.done_bytes, last.total_bytes, true);
	(void)tier_wait_idle(t, true, ADOPT_MS); /* the bad ones are gone from the disk, too */
	tier_shutdown(t);
	(void)tier_destroy(t, 5000);
	return say(dir, last.done_bytes, last.done_chunks, last.bad_chunks,
		   err == 0 ? "done" : err == -ECANCELED ? "stopped" : "failed");
}

/* Only one that is there is opened: a cache is not made here. 1, 0, or negative errno. */
static int is_cache_dir(const char *dir)
{
	char *path;
	struct stat st;
	int is;

	if (asprintf(&path, "%s/v1/tier", dir) < 0)
		return -ENOMEM;
	is = stat(path, &st) == 0 ? 1 : errno == EACCES ? -errno : 0;
	free(path);
	return is;
}

int verb_verify(const struct mounts *m, const char *arg)
{
	const struct mount_row *row;
	int is_dir = arg && !mounts_has(m, arg) ? is_cache_dir(arg) : -ENOENT;

	if (is_dir > 0)
		return verify_dir(arg);
	if (is_dir == 0)
		hfs_say(stderr,
			"hintctl: %s: neither the mountpoint of a hintfs (hintctl list shows those) nor a hintfs cache (what a mount has as "
			"cache-dir=)\n",
			arg);
	else if (is_dir != -ENOENT)
		hfs_say(stderr, "hintctl: %s: %s; a cache is verified by the user who mounts with it\n", arg, strerror(-is_dir));
	if (is_dir != -ENOENT)
		return EXIT_FAILED;
	row = mounts_find(m, arg);
	return row && daemon_answers(row) ? verify_mount(row) : EXIT_FAILED;
}
