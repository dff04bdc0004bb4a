/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/mountinfo.c - see mountinfo.h.
 */
#include "fs/mountinfo.h"

#include "cache/base/log.h"
#include "fs/bounded.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

/* A live daemon answers statfs from its last snapshot within a second or so, whatever the origin does. */
#define STATFS_TIMEOUT_MS 5000

#define LINE_CAP 36864 /* 2 x 4 x PATH_MAX, and the rest */

#define OUR_FSTYPE "fuse.hintfs"

extern char **environ;

static bool is_octal(const char *p)
{
	return p[0] >= '0' && p[0] <= '3' && p[1] >= '0' && p[1] <= '7' && p[2] >= '0' && p[2] <= '7';
}

/* Next space-separated field of *line, unescaped into buf and cut to cap; false at the end of the line. */
static bool take_field(const char **line, char *buf, size_t cap)
{
	const char *p = *line;
	size_t n = 0;

	while (*p == ' ')
		p++;
	if (*p == '\0' || *p == '\n')
		return false;
	while (*p != '\0' && *p != '\n' && *p != ' ') {
		char c = *p++;

		if (c == '\\' && is_octal(p)) {
			c = (char)((p[0] - '0') * 64 + (p[1] - '0') * 8 + (p[2] - '0'));
			p += 3;
		}
		if (n + 1 < cap)
			buf[n++] = c;
	}
	buf[n] = '\0';
	*line = p;
	return true;
}

/* "36 35 98:0 /root /mountpoint opts [tags ...] - fstype source superopts" */
bool mountinfo_parse(const char *line, struct mountinfo *ret)
{
	char skip[PATH_MAX], device[32];

	for (int i = 0; i < 2; i++)
		if (!take_field(&line, skip, sizeof(skip)))
			return false;
	if (!take_field(&line, device, sizeof(device)) || !take_field(&line, skip, sizeof(skip)) ||
	    !take_field(&line, ret->mountpoint, sizeof(ret->mountpoint)))
		return false;
	if (sscanf(device, "%u:%u", &ret->major, &ret->minor) != 2)
		return false;
	do {
		if (!take_field(&line, skip, sizeof(skip)))
			return false;
	} while (strcmp(skip, "-") != 0);
	if (!take_field(&line, ret->fstype, sizeof(ret->fstype)))
		return false;
	if (!take_field(&line, ret->source, sizeof(ret->source)))
		ret->source[0] = '\0';
	return true;
}

/*
 * Lines of the table, without memory from the heap: a daemon that can get none has its mounts to take away. What a line has beyond
 * LINE_CAP, after two paths that are escaped throughout, is cut off.
 */
struct table {
	int fd;
	size_t n, at;
	char buf[4096];
	char line[LINE_CAP];
};

/* At the end of what is read: 0, and no more of it. */
static ssize_t fill(struct table *t)
{
	ssize_t n;

	do
		n = read(t->fd, t->buf, sizeof(t->buf));
	while (n < 0 && errno == EINTR);
	t->at = 0;
	t->n = n > 0 ? (size_t)n : 0;
	return n < 0 ? -errno : n;
}

/* 1: t->line is the next one; 0: there is none. */
static int take_line(struct table *t)
{
	size_t len = 0;

	for (;;) {
		ssize_t n = t->at < t->n ? 1 : fill(t);
		char c;

		if (n <= 0 && len == 0)
			return (int)n;
		c = n > 0 ? t->buf[t->at++] : '\n';
		if (c == '\n')
			break;
		if (len + 1 < sizeof(t->line))
			t->line[len++] = c;
	}
	t->line[len] = '\0';
	return 1;
}

int mountinfo_find(const char *path, struct mountinfo *ret)
{
	HFS_UNINITIALIZED struct mountinfo one;
	HFS_UNINITIALIZED struct table t;
	int r, found = -ENOENT;

	t.n = t.at = 0;
	t.fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	if (t.fd < 0)
		return -EIO;
	/* Later lines lie on top of earlier ones. */
	while ((r = take_line(&t)) > 0)
		if (mountinfo_parse(t.line, &one) && strcmp(one.mountpoint, path) == 0) {
			*ret = one;
			found = 0;
		}
	close(t.fd);
	return r < 0 ? r : found;
}

int mountinfo_above(const char *path, struct mountinfo *ret)
{
	char *at = strdup(path), *slash;
	int r = at ? -ENOENT : -ENOMEM;

	while (at && *at && (r = mountinfo_find(at, ret)) == -ENOENT && (slash = strrchr(at, '/')) != NULL)
		*slash = '\0';
	if (r == -ENOENT)
		r = mountinfo_find("/", ret);
	free(at);
	return r;
}

bool mountinfo_is_ours(const struct mountinfo *m)
{
	return strcmp(m->fstype, OUR_FSTYPE) == 0 || strncmp(m->fstype, OUR_FSTYPE "-", sizeof(OUR_FSTYPE)) == 0;
}

enum mountinfo_state mountinfo_state(const char *path, struct mountinfo *ret)
{
	if (mountinfo_find(path, ret) < 0)
		return MOUNTINFO_NONE;
	if (!mountinfo_is_ours(ret))
		return MOUNTINFO_FOREIGN;
	switch (bounded_statfs(path, STATFS_TIMEOUT_MS)) {
	case -ENOTCONN:
	case -ECONNABORTED:
		return MOUNTINFO_DEAD;
	case -ETIMEDOUT:
		return MOUNTINFO_STUCK;
	default:
		return MOUNTINFO_ALIVE;
	}
}

unsigned mountinfo_minor(const char *path)
{
	struct mountinfo m;

	return mountinfo_find(path, &m) == 0 && mountinfo_is_ours(&m) && m.major == 0 ? m.minor : 0;
}

bool mountinfo_is_cut(int fuse_fd)
{
	struct pollfd p = { .fd = fuse_fd, .events = POLLIN };

	return poll(&p, 1, 0) < 0 || (p.revents & (POLLERR | POLLNVAL));
}

static bool is_held(const char *path, unsigned minor, int fuse_fd)
{
	struct mountinfo m;

	if (minor == 0 || mountinfo_minor(path) != minor)
		return false;
	/* Connected: our number can't be anybody else's. */
	if (!mountinfo_is_cut(fuse_fd))
		return true;
	/* Not connected: aborted, and a dead mount is left; or unmounted, and what answers there is another's. */
	return mountinfo_state(path, &m) == MOUNTINFO_DEAD;
}

static int detach_by_helper(const char *path)
{
	char *argv[] = { (char *)"fusermount3", (char *)"-u", (char *)"-z", (char *)"-q", (char *)"--", (char *)path, NULL };
	int status = 0;
	pid_t pid;
	int r = posix_spawnp(&pid, "fusermount3", NULL, NULL, argv, environ);

	if (r != 0)
		return -r;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

int mountinfo_detach(const char *path)
{
	struct mountinfo m;
	int err;

	if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		return 0;
	err = errno;
	if ((err == EINVAL || err == ENOENT) && mountinfo_find(path, &m) < 0)
		return 0; /* somebody else was quicker */
	return err == EPERM ? detach_by_helper(path) : -err;
}

void mountinfo_detach_held(const char *path, unsigned minor, int fuse_fd)
{
	int r = is_held(path, minor, fuse_fd) ? mountinfo_detach(path) : 0;

	if (r < 0)
		hfs_log(HFS_LOG_ERROR, "%s: can't be unmounted: %s", path, strerror(-r));
}

int mountinfo_abort(unsigned minor)
{
	char path[64];
	int fd, r;

	snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", minor);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = write(fd, "1", 1) == 1 ? 0 : -errno;
	close(fd);
	return r;
}
