/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/bounded.c - see bounded.h.
 */
#include "fs/bounded.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t now_ms(void)
{
	return (int64_t)(hfs_now_ns() / HFS_NS_PER_MS);
}

static void write_all(int fd, const char *buf, size_t len)
{
	while (len > 0) {
		ssize_t n = write(fd, buf, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		buf += n;
		len -= (size_t)n;
	}
}

int bounded_poll(int fd, int64_t timeout_ms, const char *say, FILE *err)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t until_ms = now_ms() + timeout_ms, say_ms = say ? now_ms() + BOUNDED_SAY_MS : until_ms;

	for (;;) {
		int64_t left = (say_ms < until_ms ? say_ms : until_ms) - now_ms();
		int r = poll(&p, 1, left > 0 ? (int)left : 0);

		if (r > 0)
			return 1;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r == 0 && say_ms >= until_ms)
			return 0;
		if (r == 0) {
			hfs_say(err, "%s\n", say);
			say_ms = until_ms;
		}
	}
}

static int read_all(int fd, char *buf, size_t len, int64_t until_ms, const char *say)
{
	while (len > 0) {
		ssize_t n;
		int r = bounded_poll(fd, until_ms - now_ms(), say, stderr);

		if (r <= 0)
			return r < 0 ? r : -ETIMEDOUT;
		n = read(fd, buf, len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -ECHILD;
		buf += n;
		len -= (size_t)n;
	}
	return 0;
}

/* After a kill: a child that hangs in the kernel cannot be waited for, it is left to init. */
static void reap(pid_t pid, int r)
{
	if (r != -ETIMEDOUT) {
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		return;
	}
	kill(pid, SIGKILL);
	for (int64_t until = now_ms() + 200; now_ms() < until;) {
		struct timespec pause = { .tv_nsec = 5000000 };

		if (waitpid(pid, NULL, WNOHANG) != 0)
			return;
		nanosleep(&pause, NULL);
	}
}

int bounded_run(void (*fn)(const void *arg, void *answer), const void *arg, void *answer, size_t len, unsigned timeout_ms,
		const char *say)
{
	int64_t until_ms = now_ms() + timeout_ms;
	pid_t self = getpid();
	char few[64], *buf = len <= sizeof(few) ? few : malloc(len); /* little can be asked without memory, too */
	int fds[2], r;
	pid_t pid;

	if (!buf)
		return -ENOMEM;
	if (pipe2(fds, O_CLOEXEC) < 0) {
		r = -errno;
		goto out;
	}
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		/* Whoever is told to stop waiting takes us along. */
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != self)
			_exit(0);
		memset(buf, 0, len);
		fn(arg, buf);
		write_all(fds[1], buf, len);
		_exit(0);
	}
	r = pid < 0 ? -errno : 0;
	close(fds[1]);
	if (pid > 0) {
		r = read_all(fds[0], buf, len, until_ms, say);
		reap(pid, r);
	}
	close(fds[0]);
	if (r == 0)
		memcpy(answer, buf, len);
out:
	if (buf != few)
		free(buf);
	return r;
}

static void ask_statfs(const void *arg, void *answer)
{
	struct statfs sfs;
	int err = statfs(arg, &sfs) < 0 ? -errno : 0;

	memcpy(answer, &err, sizeof(err));
}

int bounded_statfs(const char *path, unsigned timeout_ms)
{
	int err = 0;
	int r = bounded_run(ask_statfs, path, &err, sizeof(err), timeout_ms, NULL);

	return r < 0 ? r : err;
}
