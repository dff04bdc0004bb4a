/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/life.h - the daemon as a process: going into the background, telling the parent, signals, and an end that comes in time.
 * Caller: fs/main.c.
 *
 *   parent                       child
 *   life_fork ------------------> setsid, chdir("/")
 *   life_parent waits            signals blocked, sessions made, threads started
 *        <---- 'R' ------------- life_ready: stdio to /dev/null   (or life_failed: exit code; or it dies)
 *   statfs of the mount
 *   exit 0                       life_wait ... stop
 *
 * Invariants:
 *   1. The fork comes before any thread.
 *   2. The parent exits 0 only after the mount answered it. What went wrong before that was printed by the child, whose
 *      stderr is the parent's until life_ready().
 *   3. Signals are blocked in all threads and read by the main thread only. While the daemon stops, the guard thread reads them.
 *   4. Nothing here waits for a thread that may hang in the origin.
 */
#ifndef FS_LIFE_H
#define FS_LIFE_H

#include "cache/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum life_event {
	LIFE_STOP,	 /* SIGTERM, SIGINT; SIGQUIT, SIGXCPU, SIGPWR, which would leave a dead mount */
	LIFE_ENDED,	 /* the mount is gone: unmounted from outside, or aborted */
	LIFE_REOPEN_LOG, /* SIGHUP */
	LIFE_STATUS,	 /* SIGUSR1 */
};

struct life {
	int signal_fd, end_fd; /* owned */
};

/* Before any thread: limits, environment, signal mask. 0 or negative errno. */
HFS_MUST_CHECK int life_init(struct life *l);
void life_finish(struct life *l);
/* Waits for the next event. */
enum life_event life_wait(struct life *l);
/* For data_session_start(): makes life_wait() return LIFE_ENDED. arg: struct life. Any thread. */
void life_on_end(void *arg);

/* > 0: in the parent, the child's pid; *ret_fd is what it will say. 0: in the child; *ret_fd goes to life_ready or life_failed.
 * Negative errno. */
HFS_MUST_CHECK pid_t life_fork(int *ret_fd);
/* The parent's part: returns its exit code (enum hfs_exit). Closes fd. */
int life_parent(pid_t child, int fd, const char *source, const char *mountpoint, FILE *err);
/* The child gets this signal should the parent die: SIGKILL from the fork on, for it may hang in the origin; 0: none. */
void life_tie(int signal_no);
/* The child's: all is well / exit code. fd -1 (foreground): nothing to tell. -EPIPE: the parent is gone. */
HFS_MUST_CHECK int life_ready(int fd);
void life_failed(int fd, int exit_code);

/* What has to go in any case. paths borrowed for the life of the process; ctl_dir NULL: not there (any more). */
struct life_mounts {
	const char *mountpoint, *ctl_dir;
	unsigned mount_minor, ctl_minor; /* of our FUSE connections; 0: unknown */
	int mount_fd, ctl_fd;		 /* their devices, borrowed until is_stopped; -1: none */
	_Atomic bool is_stopped; /* both sessions are unmounted: what lies there by now with our numbers may be a successor's */
	bool is_ctl_dir_ours;
	int ctl_hold; /* of dirlock_hold(); -1: none. Stays open to the end of the process */
};

/* Note which connections are ours, after they were mounted. */
void life_mounts_note(struct life_mounts *m, int mount_fd, int ctl_fd);
/* From here the process ends after timeout_ms, or at a second SIGTERM or SIGINT, with life_leave(m, false, 0). 0 or negative errno. */
HFS_MUST_CHECK int life_guard(struct life *l, const struct life_mounts *m, unsigned timeout_ms);
/* Both sessions have unmounted in an orderly way: what answers at their places is the next daemon's, only dead mounts go. */
void life_clean(const struct life_mounts *m);
/*
 * Take away what is left of our mounts, and the control directory: with is_stopped, or where users have unmounted already, only
 * what is dead. Gives up all FUSE devices, which threads that hang in the origin would keep (their numbers stay taken); _exit.
 */
__attribute__((noreturn)) void life_leave(const struct life_mounts *m, bool is_stopped, int exit_code);

#endif
