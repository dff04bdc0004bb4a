/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_wait.c - nobody waits without a word: is the daemon answering at all, and a line when it takes long; Ctrl-C; who waits
 * in open() or a look-up inside a mount, which shows in none of the links of /proc.
 *
 * Invariant: one watch in the life of the process.
 */
#include "tools/hintctl_i.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_TIMEOUT_MS 5000
#define SAY_S 5u
#define TWICE_MS 300

bool daemon_answers(const struct mount_row *m)
{
	char *path = ctl_path(m, "prefetch");
	int err = -ENOMEM;
	char *text = path ? bounded_read(path, ANSWER_TIMEOUT_MS, &err) : NULL;

	free(path);
	free(text);
	if (err != -ETIMEDOUT)
		return true; /* any other trouble has its own message where it matters */
	hfs_say(stderr,
		"hintctl: %s: no answer from its daemon within %d s: is it stopped (ps -C hintfs -o pid,stat), or the machine out of "
		"memory? Nothing was done\n",
		m->mountpoint, ANSWER_TIMEOUT_MS / 1000);
	return false;
}

static struct watch {
	pthread_mutex_t lock;
	pthread_cond_t is_changed; /* by CLOCK_MONOTONIC */
	struct timespec due;	   /* guarded, as is_on */
	bool is_on;		   /* something is to be said when it is due */
	bool has_thread;
	char said[PATH_MAX + 128]; /* const while the thread runs */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *watch_main(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&watch.lock);
	for (;;) {
		if (!watch.is_on) {
			pthread_cond_wait(&watch.is_changed, &watch.lock);
			continue;
		}
		struct timespec due = watch.due; /* may move while we wait */
		if (pthread_cond_timedwait(&watch.is_changed, &watch.lock, &due) != ETIMEDOUT || !watch.is_on ||
		    due.tv_sec != watch.due.tv_sec || due.tv_nsec != watch.due.tv_nsec)
			continue;
		watch.is_on = false;
		(void)!write(STDERR_FILENO, watch.said, strlen(watch.said));
	}
	return NULL;
}

static void set_watch(bool is_on)
{
	pthread_mutex_lock(&watch.lock);
	watch.is_on = is_on;
	clock_gettime(CLOCK_MONOTONIC, &watch.due);
	watch.due.tv_sec += SAY_S;
	pthread_mutex_unlock(&watch.lock);
	pthread_cond_signal(&watch.is_changed);
}

static bool start_watch(void)
{
	pthread_condattr_t attr;
	sigset_t all, before;
	pthread_t thread;
	bool is_begun;

	if (pthread_condattr_init(&attr) != 0 || pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
	    pthread_cond_init(&watch.is_changed, &attr) != 0)
		return false;
	sigfillset(&all); /* signals are the main thread's: they end its calls */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	is_begun = pthread_create(&thread, NULL, watch_main, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (is_begun)
		pthread_detach(thread);
	return is_begun;
}

/* By a thread: a call that waits for the daemon runs no signal handler until it is answered. It lives as long as the process. */
void watch_begin(const struct mount_row *m, const char *what)
{
	if (watch.has_thread)
		return; /* one wait a process: its words are the thread's */
	snprintf(watch.said, sizeof(watch.said), "hintctl: %s: %s; still waiting (Ctrl-C gives up)\n", m->mountpoint, what);
	watch.has_thread = start_watch();
	watch_progress();
}

void watch_progress(void)
{
	if (watch.has_thread)
		set_watch(true);
}

void watch_end(void)
{
	if (watch.has_thread)
		set_watch(false);
}

/* ---- asked to stop -------------------------------------------------------------------------------------------------- */

static atomic_bool is_stop_asked; /* lock-free: set by a signal */
static atomic_bool is_second_deadly;
static _Atomic int64_t asked_ms;

/* timeout(1) sends one signal twice, to the process and to its group: these are one. */
static void on_stop(int signo)
{
	struct timespec now;
	int64_t now_ms;

	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
	if (!atomic_exchange(&is_stop_asked, true)) {
		atomic_store(&asked_ms, now_ms);
	} else if (atomic_load(&is_second_deadly) && now_ms - atomic_load(&asked_ms) > TWICE_MS) {
		signal(signo, SIG_DFL);
		raise(signo);
	}
}

void stop_catch(bool is_once)
{
	struct sigaction act = {.sa_handler = on_stop};

	atomic_store(&is_second_deadly, is_once);
	if (is_once)
		sigaction(SIGHUP, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
}

bool stop_is_asked(void)
{
	return atomic_load(&is_stop_asked);
}

/* ---- who waits in a system call with a path ------------------------------------------------------------------------ */

/* Which argument of the call is a path: 0, 1, or -1: none we know. */
static int path_argument(long nr)
{
	static const long at[] = {SYS_openat,	  SYS_newfstatat, SYS_statx,	  SYS_faccessat,
				  SYS_readlinkat, SYS_execveat,	  SYS_name_to_handle_at,
#ifdef SYS_openat2
				  SYS_openat2,
#endif
#ifdef SYS_faccessat2
				  SYS_faccessat2,
#endif
	};
	static const long plain[] = {SYS_chdir, SYS_execve, SYS_statfs, SYS_getxattr, SYS_listxattr,
#ifdef SYS_open
				     SYS_open,	SYS_stat,   SYS_lstat,	SYS_access,   SYS_readlink,
#endif
	};

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		if (at[i] == nr)
			return 1;
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (plain[i] == nr)
			return 0;
	return -1;
}

static bool read_string(const char *task, unsigned long long addr, char path[PATH_MAX])
{
	char name[96];
	ssize_t n = -1;
	int fd;

	snprintf(name, sizeof(name), "%s/mem", task);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = pread(fd, path, PATH_MAX, (off_t)addr); /* less where memory ends */
		close(fd);
	}
	return n > 0 && memchr(path, '\0', (size_t)n);
}

/* The directory that a relative path starts from. */
static bool read_base(const char *task, int argument, long dir_fd, char base[PATH_MAX])
{
	char link[96];
	ssize_t n;

	if (argument == 0 || dir_fd == AT_FDCWD)
		snprintf(link, sizeof(link), "%s/cwd", task);
	else
		snprintf(link, sizeof(link), "%s/fd/%ld", task, dir_fd);
	n = readlink(link, base, PATH_MAX - 1);
	if (n >= 0)
		base[n] = '\0';
	return n >= 0;
}

/* "257 0xffffff9c 0x7ffc... ..." of a thread that waits in the kernel; "running" of another. */
static bool waits_inside(const struct mount_row *m, const char *task, char target[2 * PATH_MAX])
{
	unsigned long long args[2];
	char name[96], path[PATH_MAX], base[PATH_MAX] = "";
	size_t len = strlen(m->mountpoint);
	long nr;
	int argument;
	FILE *f;
	int n;

	snprintf(name, sizeof(name), "%s/syscall", task);
	f = fopen(name, "re");
	if (!f)
		return false;
	n = fscanf(f, "%ld %llx %llx", &nr, &args[0], &args[1]);
	fclose(f);
	argument = n == 3 ? path_argument(nr) : -1;
	if (argument < 0 || !read_string(task, args[argument], path))
		return false;
	if (path[0] != '/' && !read_base(task, argument, (long)(int)args[0], base))
		return false;
	snprintf(target, 2 * PATH_MAX, "%s%s%s", base, base[0] ? "/" : "", path);
	return strncmp(target, m->mountpoint, len) == 0 && (target[len] == '\0' || target[len] == '/');
}

bool find_waiter(const struct mount_row *m, const char *pid, char target[2 * PATH_MAX])
{
	char dir[64], task[96];
	bool is_found = false;
	struct dirent *d;
	DIR *tasks;

	snprintf(dir, sizeof(dir), "/proc/%.20s/task", pid);
	tasks = opendir(dir);
	while (tasks && !is_found && (d = readdir(tasks)) != NULL) {
		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		snprintf(task, sizeof(task), "%s/%.20s", dir, d->d_name);
		is_found = waits_inside(m, task, target);
	}
	if (tasks)
		closedir(tasks);
	return is_found;
}
