/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_umount.c - umount; and who keeps a mount busy, read off /proc without touching the mount.
 */
#include "tools/hintctl_i.h"

#include "cache/base/dirlock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 5000u
#define END_SAY_MS 1000
#define END_MS 9000 /* a daemon ends within 5 s, unless a call to the kernel hangs */

/* ---- who keeps it busy ------------------------------------------------------------------------------------ */

/* The link leads to the mount: at it or below. readlink does not ask the file system. */
static bool leads_into(const struct mount_row *m, const char *link, char target[PATH_MAX])
{
	size_t len = strlen(m->mountpoint);
	ssize_t n = readlink(link, target, PATH_MAX - 1);

	if (n < 0)
		return false;
	target[n] = '\0';
	return strncmp(target, m->mountpoint, len) == 0 && (target[len] == '\0' || target[len] == '/');
}

static void print_user(const char *pid, const char *how, const char *what)
{
	char path[64], comm[64] = "?";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	f = fopen(path, "re");
	if (f) {
		if (!fgets(comm, sizeof(comm), f))
			strcpy(comm, "?");
		fclose(f);
	}
	comm[strcspn(comm, "\n")] = '\0';
	hfs_say(stderr, "  pid %s (%s): %s %s\n", pid, comm, how, what);
}

static unsigned scan_links(const struct mount_row *m, const char *pid)
{
	static const char *const links[][2] = {{"cwd", "works in"}, {"root", "has its root in"}, {"exe", "runs"}};
	char path[64], target[PATH_MAX];
	unsigned n = 0;

	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "/proc/%.20s/%s", pid, links[i][0]);
		if (leads_into(m, path, target)) {
			print_user(pid, links[i][1], target);
			n++;
		}
	}
	return n;
}

static unsigned scan_fds(const struct mount_row *m, const char *pid)
{
	char dir[64], path[96], target[PATH_MAX];
	unsigned n = 0;
	struct dirent *d;
	DIR *fds;

	snprintf(dir, sizeof(dir), "/proc/%.20s/fd", pid);
	fds = opendir(dir);
	while (fds && (d = readdir(fds)) != NULL) {
		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "%s/%.20s", dir, d->d_name);
		if (leads_into(m, path, target)) {
			print_user(pid, "has open", target);
			n++;
		}
	}
	if (fds)
		closedir(fds);
	return n;
}

static unsigned scan_maps(const struct mount_row *m, const char *pid)
{
	char path[64], *line = NULL, shown[PATH_MAX];
	unsigned major, minor, n = 0;
	size_t cap = 0;
	FILE *f;
	int at;

	snprintf(path, sizeof(path), "/proc/%.20s/maps", pid);
	f = fopen(path, "re");
	shown[0] = '\0';
	while (f && getline(&line, &cap, f) >= 0) {
		at = 0;
		if (sscanf(line, "%*s %*s %*s %x:%x %*u %n", &major, &minor, &at) != 2 || at == 0 ||
		    major != m->major || minor != m->minor)
			continue;
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(shown, line + at) != 0) {
			print_user(pid, "has mapped", line + at);
			snprintf(shown, sizeof(shown), "%s", line + at);
			n++;
		}
	}
	free(line);
	if (f)
		fclose(f);
	return n;
}

/* It has nothing of the mount yet but the way to it. */
static unsigned scan_waiters(const struct mount_row *m, const char *pid)
{
	char target[2 * PATH_MAX];

	if (!find_waiter(m, pid, target))
		return 0;
	print_user(pid, "waits for an answer about", target);
	return 1;
}

/* Whatever its kind: it is named after what the kernel has in its table. */
static unsigned scan_mounts(const struct mount_row *m)
{
	struct mounts inner;
	size_t len = strlen(m->mountpoint);
	unsigned n = 0;

	if (mounts_read_all(&inner) < 0)
		return 0;
	for (size_t i = 0; i < inner.n; i++) {
		const char *at = inner.rows[i].mountpoint;

		if (strncmp(at, m->mountpoint, len) == 0 && at[len] == '/') {
			hfs_say(stderr, "  a mount inside it, of %s: umount %s first\n", inner.rows[i].source, at);
			n++;
		}
	}
	mounts_finish(&inner);
	return n;
}

static void print_users(const struct mount_row *m)
{
	unsigned n = scan_mounts(m);
	struct dirent *d;
	DIR *proc = opendir("/proc");

	while (proc && (d = readdir(proc)) != NULL) {
		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		n += scan_links(m, d->d_name);
		n += scan_fds(m, d->d_name);
		n += scan_maps(m, d->d_name);
		n += scan_waiters(m, d->d_name);
	}
	if (proc)
		closedir(proc);
	if (n == 0)
		hfs_say(stderr, "  nobody that this user may look at: another user's process, or another mount "
				"namespace (a container)\n");
}

/* ---- umount ---------------------------------------------------------------------------------------------------- */

static int run_fusermount(const char *mountpoint, bool is_lazy)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", is_lazy ? "-uqz" : "-uq", "--", mountpoint, (char *)NULL);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return -ENOENT;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

static int detach(const char *mountpoint, bool is_lazy)
{
	if (geteuid() == 0)
		return umount2(mountpoint, UMOUNT_NOFOLLOW | (is_lazy ? MNT_DETACH : 0)) < 0 ? -errno : 0;
	return run_fusermount(mountpoint, is_lazy);
}

static bool is_gone(int err)
{
	return err == -ENOTCONN || err == -ECONNABORTED;
}

static bool is_dead(const char *mountpoint)
{
	int err;

	free(bounded_read(mountpoint, ANSWER_MS, &err));
	return is_gone(err);
}

/* ---- its daemon's end ------------------------------------------------------------------------------------------ */

static bool is_hintfs(long pid)
{
	char path[64], comm[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	if (!fgets(comm, sizeof(comm), f))
		comm[0] = '\0';
	fclose(f);
	return strncmp(comm, "hintfs", 6) == 0 || strncmp(comm, "mount.hintfs", 12) == 0;
}

/* A descriptor of the process that says it serves the mount; -1: it does not say, or it lives where we do not see it. */
static int open_daemon(const struct mount_row *m, long *ret_pid)
{
	struct status s;

	*ret_pid = 0;
	if (status_read(m, ANSWER_MS, &s) == 0) {
		*ret_pid = (long)status_number(&s, "pid");
		status_finish(&s);
	}
	return *ret_pid > 0 && is_hintfs(*ret_pid) ? (int)syscall(SYS_pidfd_open, *ret_pid, 0) : -1;
}

/* It is mounted elsewhere, too (mount --bind). */
static bool lives_on(const struct mount_row *m)
{
	struct mounts now;
	bool lives = false;

	if (mounts_read(&now, false) < 0)
		return false;
	for (size_t i = 0; i < now.n; i++)
		lives |= now.rows[i].major == m->major && now.rows[i].minor == m->minor;
	mounts_finish(&now);
	return lives;
}

/* Until then it holds its cache-dir, and writes to it. */
static void await_end(const struct mount_row *m, int daemon, long pid)
{
	struct pollfd p = {.fd = daemon, .events = POLLIN};

	if (daemon < 0 || lives_on(m) || poll(&p, 1, END_SAY_MS) != 0)
		return;
	hfs_say(stderr, "hintctl: %s: unmounted; waiting for its daemon (pid %ld) to end\n", m->mountpoint, pid);
	if (poll(&p, 1, END_MS) == 0)
		hfs_say(stderr,
			"hintctl: %s: its daemon (pid %ld) has not ended: it is mounted in another mount namespace (a container), or hangs "
			"in a call to the origin or the disk tier\n",
			m->mountpoint, pid);
}

/* dir lies in a runtime directory, where the daemon made it; ctl=DIR may be the user's own. */
static bool is_made_by_daemon(const char *dir)
{
	const char *slash = strrchr(dir, '/');

	return strncmp(dir, "/run/", 5) == 0 && slash - dir >= 7 && strncmp(slash - 7, "/hintfs", 7) == 0;
}

static void remove_directory(const char *dir)
{
	int hold = dirlock_hold(dir);

	dirlock_remove(dir, hold, 0);
	if (hold >= 0)
		close(hold);
}

/* A daemon that was killed leaves its control mount, too. Which one it was nobody knows any more: all that are dead go. */
static void detach_dead_controls(void)
{
	struct mounts controls;

	if (mounts_read(&controls, true) < 0)
		return;
	for (size_t i = 0; i < controls.n; i++) {
		const char *dir = controls.rows[i].mountpoint;

		if (!is_dead(dir))
			continue;
		if (detach(dir, true) < 0)
			hfs_say(stderr, "hintctl: %s: the control files of a daemon that is gone can't be unmounted; umount -l it\n", dir);
		else if (is_made_by_daemon(dir))
			remove_directory(dir);
	}
	mounts_finish(&controls);
}

static int say_busy(const struct mount_row *m)
{
	fprintf(stderr, "it is kept busy by\n");
	print_users(m);
	hfs_say(stderr, "end these, or detach it from the tree at once: hintctl umount --lazy %s\n", m->mountpoint);
	return EXIT_FAILED;
}

int verb_umount(const struct mount_row *m, bool is_lazy)
{
	int err, daemon = -1, rc;
	long pid = 0;

	if (geteuid() != 0 && m->user_id != getuid()) { /* fusermount3 does not say so */
		hfs_say(stderr, "hintctl: %s: the user who mounted it (uid %u), or root, can unmount it\n", m->mountpoint, m->user_id);
		return EXIT_FAILED;
	}
	free(bounded_read(m->mountpoint, ANSWER_MS, &err));
	if (!is_gone(err) && err != -ETIMEDOUT && !is_lazy)
		daemon = open_daemon(m, &pid);
	rc = detach(m->mountpoint, is_lazy);
	if (rc == 0 && is_gone(err))
		detach_dead_controls();
	if (rc == 0)
		await_end(m, daemon, pid);
	if (daemon >= 0)
		close(daemon);
	if (rc == 0)
		return EXIT_SUCCESS;
	if (rc == -ENOENT && geteuid() != 0) {
		hfs_say(stderr, "hintctl: fusermount3 is missing (package fuse3); as root: umount %s\n", m->mountpoint);
		return EXIT_FAILED;
	}
	hfs_say(stderr, "hintctl: %s: %s\n", m->mountpoint, strerror(-rc));
	return rc == -EBUSY ? say_busy(m) : EXIT_FAILED;
}
