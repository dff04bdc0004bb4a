/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/life.c - see life.h.
 */
#include "fs/life.h"

#include "cache/base/dirlock.h"
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "cache/tier_format.h"
#include "fs/bounded.h"
#include "fs/mountinfo.h"
#include "fs/opts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_TIMEOUT_MS  60000 /* the child makes two mounts and a slot pool */
#define ANSWER_TIMEOUT_MS 20000
#define END_TIMEOUT_MS	  6000
#define REMOVE_MS	  500 /* behind somebody who is starting there */

/* Variables that would load foreign code into the helpers the daemon starts (fusermount3). */
static const char *const unset_names[] = { "LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH" };

static int64_t now_ms(void)
{
	return (int64_t)(hfs_now_ns() / HFS_NS_PER_MS);
}

static void life_signals(sigset_t *set)
{
	static const int numbers[] = { SIGTERM, SIGINT, SIGQUIT, SIGXCPU, SIGPWR, SIGHUP, SIGUSR1 };

	sigemptyset(set);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigaddset(set, numbers[i]);
}

/* What would end the process by default, without a word, and leave a dead mount: nothing asks us for these. */
static void ignore_foreign_signals(void)
{
	static const int numbers[] = { SIGPIPE, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
				       SIGXFSZ /* a log or a disk tier that may not grow is an error, not the end */ };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		signal(numbers[i], SIG_IGN);
	for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
		signal(number, SIG_IGN);
}

static void raise_nofile(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r); /* less means fewer cached descriptors, nothing else */
	}
}

int life_init(struct life *l)
{
	sigset_t set;
	int r;

	l->signal_fd = l->end_fd = -1;
	for (size_t i = 0; i < sizeof(unset_names) / sizeof(unset_names[0]); i++)
		unsetenv(unset_names[i]);
	raise_nofile();
	ignore_foreign_signals();
	signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would hide fusermount3's exit status */
	life_signals(&set);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	if (l->signal_fd < 0)
		return -errno;
	l->end_fd = eventfd(0, EFD_CLOEXEC);
	if (l->end_fd < 0) {
		r = -errno;
		life_finish(l);
		return r;
	}
	return 0;
}

void life_finish(struct life *l)
{
	if (l->signal_fd >= 0)
		close(l->signal_fd);
	if (l->end_fd >= 0)
		close(l->end_fd);
	l->signal_fd = l->end_fd = -1;
}

enum life_event life_wait(struct life *l)
{
	struct pollfd p[2] = { { .fd = l->signal_fd, .events = POLLIN }, { .fd = l->end_fd, .events = POLLIN } };
	struct signalfd_siginfo si;

	for (;;) {
		if (poll(p, 2, -1) < 0)
			continue;
		/* A signal first: an unmount that comes with it is part of the same end. */
		if (p[0].revents && read(l->signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
			if (si.ssi_signo == SIGHUP)
				return LIFE_REOPEN_LOG;
			return si.ssi_signo == SIGUSR1 ? LIFE_STATUS : LIFE_STOP;
		}
		if (p[1].revents)
			return LIFE_ENDED;
	}
}

void life_on_end(void *arg)
{
	struct life *l = arg;
	uint64_t one = 1;

	/* The counter cannot overflow: it is written once a session. */
	while (write(l->end_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* ---- parent and child -------------------------------------------------------------------------------- */

/* Whoever reads the other end of a pipe that the caller left open would wait for the daemon's end. */
static void close_inherited(int but_fd)
{
	if (but_fd > 3)
		(void)close_range(3, (unsigned)but_fd - 1, 0); /* kernels before 5.9 keep them open, as daemons do there */
	(void)close_range((unsigned)but_fd + 1, ~0u, 0);
}

void life_tie(int signal_no)
{
	(void)prctl(PR_SET_PDEATHSIG, signal_no); /* fails for numbers that are no signals only */
}

pid_t life_fork(int *ret_fd)
{
	pid_t pid, self = getpid();
	int fds[2], r;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		r = -errno;
		close(fds[0]);
		close(fds[1]);
		return r;
	}
	*ret_fd = pid ? fds[0] : fds[1];
	close(pid ? fds[1] : fds[0]);
	if (pid == 0) {
		life_tie(SIGKILL);
		if (getppid() != self)
			_exit(HFS_EXIT_SYSTEM);
		close_inherited(fds[1]);
		(void)setsid(); /* cannot fail in a new process */
		if (chdir("/") < 0)
			_exit(HFS_EXIT_SYSTEM);
	}
	return pid;
}

/* The child's word: 'R', 'F' and an exit code; 0 bytes: it died; -1: the deadline passed. */
static ssize_t hear(int fd, unsigned char word[2], const char *source, FILE *err)
{
	char say[PATH_MAX + 64];
	ssize_t n;

	snprintf(say, sizeof(say), "hintfs: waiting for SOURCE %s to answer", source);
	if (bounded_poll(fd, READY_TIMEOUT_MS, say, err) <= 0)
		return -1;
	do
		n = read(fd, word, 2);
	while (n < 0 && errno == EINTR);
	return n;
}

static int child_died(pid_t child, FILE *err)
{
	int status = 0;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return HFS_EXIT_SYSTEM;
	if (WIFSIGNALED(status))
		hfs_say(err, "hintfs: the daemon was killed by signal %d (%s) before it was ready; see the log\n", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == 0)
		hfs_say(err, "hintfs: the daemon was told to stop before it was ready\n");
	return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : HFS_EXIT_SYSTEM;
}

/* What was asked to end has ended, or the guard's time is over. */
static void await_end(pid_t child)
{
	struct pollfd p = { .fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN };

	kill(child, SIGTERM);
	if (p.fd < 0)
		return;
	while (poll(&p, 1, END_TIMEOUT_MS) < 0 && errno == EINTR)
		;
	close(p.fd);
}

int life_parent(pid_t child, int fd, const char *source, const char *mountpoint, FILE *err)
{
	unsigned char word[2] = { 0, 0 };
	ssize_t n = hear(fd, word, source, err);
	int r;

	close(fd);
	if (n < 0) {
		hfs_say(err, "hintfs: the daemon was not ready within %d s and was killed; does SOURCE answer?\n", READY_TIMEOUT_MS / 1000);
		kill(child, SIGKILL);
		return HFS_EXIT_SYSTEM;
	}
	if (n == 0)
		return child_died(child, err);
	if (word[0] == 'F')
		return word[1];
	r = bounded_statfs(mountpoint, ANSWER_TIMEOUT_MS);
	if (r == 0 && mountinfo_minor(mountpoint) == 0)
		r = -ENOTCONN; /* what answered is the directory below: the daemon has ended again */
	if (r == 0)
		return HFS_EXIT_OK;
	hfs_say(err, "hintfs: %s was mounted but does not answer (%s) and is unmounted again; see the log\n", mountpoint, strerror(-r));
	await_end(child);
	return HFS_EXIT_MOUNT;
}

static int tell(int fd, const unsigned char *word, size_t len)
{
	ssize_t n;

	do
		n = write(fd, word, len);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int life_ready(int fd)
{
	static const unsigned char word[] = { 'R' };
	int null, r;

	if (fd < 0)
		return 0;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	r = null < 0 ? -errno : 0;
	for (int i = 0; i <= 2 && r == 0; i++)
		r = dup2(null, i) < 0 ? -errno : 0;
	if (null > 2)
		close(null);
	if (r == 0)
		r = tell(fd, word, sizeof(word));
	close(fd);
	return r;
}

void life_failed(int fd, int exit_code)
{
	unsigned char word[] = { 'F', (unsigned char)exit_code };

	if (fd < 0)
		return;
	(void)tell(fd, word, sizeof(word)); /* nobody left to hear it: then it does not matter */
	close(fd);
}

/* ---- the end --------------------------------------------------------------------------------------------- */

void life_mounts_note(struct life_mounts *m, int mount_fd, int ctl_fd)
{
	m->mount_fd = mount_fd;
	m->ctl_fd = ctl_fd;
	m->mount_minor = m->mountpoint ? mountinfo_minor(m->mountpoint) : 0;
	m->ctl_minor = m->ctl_dir && ctl_fd >= 0 ? mountinfo_minor(m->ctl_dir) : 0;
}

static void take_away(const char *path, unsigned minor, bool is_dead_only)
{
	struct mountinfo m;
	int r;

	if (!path || minor == 0 || mountinfo_minor(path) != minor)
		return;
	/* The number alone is no proof once the mount is gone. */
	if (is_dead_only && mountinfo_state(path, &m) != MOUNTINFO_DEAD)
		return;
	/* First the abort, which frees users of a mount that is held: after the detach the number may be another's. */
	if (!is_dead_only && (r = mountinfo_abort(minor)) < 0 && r != -ENOENT)
		hfs_log(HFS_LOG_WARNING, "%s: connection can't be aborted (%s); its users may wait on", path, strerror(-r));
	r = mountinfo_detach(path);
	if (r < 0)
		hfs_log(HFS_LOG_ERROR, "%s: still mounted, can't be detached (%s); umount -l it", path, strerror(-r));
}

static bool is_shared_with_the_next(const char *target, size_t len)
{
	static const char lock[] = "/" TIER_LOCK_NAME;
	const size_t n = sizeof(lock) - 1;

	return (len == 9 && memcmp(target, "/dev/fuse", 9) == 0) || (len >= n && memcmp(target + len - n, lock, n) == 0);
}

/*
 * A thread that hangs in the origin keeps the descriptor table alive behind _exit, and with it the connection, and the lock of the
 * disk tier, where each byte is verified whoever wrote it. Other threads use these numbers meanwhile, so none is closed, which would
 * give it to the next open(): /dev/null takes its place at once. (A file of the origin named like the lock: nobody reads it any more.)
 * The plain system call, because TSan holds that a number which is replaced under its users is a mistake.
 */
static void close_shared(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_Alignas(struct dirent64) char buf[2048]; /* no opendir(): there may be no memory */
	const struct dirent64 *e;
	char target[PATH_MAX];
	ssize_t got, n;

	while (null >= 0 && dir >= 0 && (got = getdents64(dir, buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at < got; at += e->d_reclen) {
			e = (const struct dirent64 *)(const void *)(buf + at);
			n = readlinkat(dir, e->d_name, target, sizeof(target));
			if (n > 0 && is_shared_with_the_next(target, (size_t)n))
				(void)syscall(SYS_dup3, null, (int)strtol(e->d_name, NULL, 10), O_CLOEXEC);
		}
	}
	if (dir >= 0)
		close(dir);
	if (null >= 0)
		close(null);
}

static void clean(const struct life_mounts *m, bool is_ctl_dead, bool is_mount_dead)
{
	take_away(m->ctl_dir, m->ctl_minor, is_ctl_dead);
	take_away(m->mountpoint, m->mount_minor, is_mount_dead);
	if (m->is_ctl_dir_ours && m->ctl_dir)
		dirlock_remove(m->ctl_dir, m->ctl_hold, REMOVE_MS);
}

void life_clean(const struct life_mounts *m)
{
	clean(m, true, true);
}

void life_leave(const struct life_mounts *m, bool is_stopped, int exit_code)
{
	bool is_ctl_dead = is_stopped || mountinfo_is_cut(m->ctl_fd), is_mount_dead = is_stopped || mountinfo_is_cut(m->mount_fd);

	if (atomic_load(&m->is_stopped)) /* the numbers may have been closed before we looked at them */
		is_ctl_dead = is_mount_dead = true;
	close_shared();
	clean(m, is_ctl_dead, is_mount_dead);
	_exit(exit_code);
}

struct guard {
	const struct life_mounts *mounts;
	int signal_fd;
	unsigned timeout_ms;
};

static void *guard_main(void *arg)
{
	struct guard g = *(struct guard *)arg;
	struct pollfd p = { .fd = g.signal_fd, .events = POLLIN };
	int64_t until = now_ms() + g.timeout_ms;
	struct signalfd_siginfo si;

	pthread_setname_np(pthread_self(), "hfs-guard");
	free(arg);
	for (;;) {
		int64_t left = until - now_ms();

		if (left <= 0)
			break;
		if (poll(&p, 1, (int)left) > 0 && read(g.signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si) &&
		    si.ssi_signo != SIGHUP && si.ssi_signo != SIGUSR1)
			break;
	}
	life_leave(g.mounts, atomic_load(&g.mounts->is_stopped), HFS_EXIT_OK);
}

int life_guard(struct life *l, const struct life_mounts *m, unsigned timeout_ms)
{
	struct guard *g = malloc(sizeof(*g));
	pthread_t thread;
	int r;

	if (!g)
		return -ENOMEM;
	*g = (struct guard){ .mounts = m, .signal_fd = l->signal_fd, .timeout_ms = timeout_ms };
	r = pthread_create(&thread, NULL, guard_main, g);
	if (r != 0) {
		free(g);
		return -r;
	}
	pthread_detach(thread);
	return 0;
}
