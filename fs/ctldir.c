/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/ctldir.c - see ctldir.h.
 */
#include "fs/ctldir.h"

#include "cache/base/dirlock.h"
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "fs/mountinfo.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT_BASE "/run"

#define ENDING_MS	UINT64_C(6000) /* a daemon ends within 5 s of its unmount */
#define STARTING_MS	10000	       /* behind other starts: each holds the lock until it is mounted */

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '_' || c == '.';
}

static char *put_escaped(char *to, char c)
{
	static const char hex[] = "0123456789abcdef";

	*to++ = '\\';
	*to++ = 'x';
	*to++ = hex[(unsigned char)c >> 4];
	*to++ = hex[(unsigned char)c & 15];
	return to;
}

int ctldir_escape(const char *path, char **ret_name)
{
	char *name, *to;

	if (path[0] != '/')
		return -EINVAL;
	name = to = malloc(strlen(path) * 4 + 2);
	if (!name)
		return -ENOMEM;
	while (*path) {
		size_t len;

		path += strspn(path, "/");
		len = strcspn(path, "/");
		if (len > 0 && to != name)
			*to++ = '-';
		for (; len > 0; len--, path++)
			to = is_plain(*path) && !(to == name && *path == '.') ? (*to = *path, to + 1) : put_escaped(to, *path);
	}
	if (to == name)
		*to++ = '-';
	*to = '\0';
	*ret_name = name;
	return 0;
}

/* $XDG_RUNTIME_DIR, or what it would be; NULL: neither. */
static const char *user_base(char *buf, size_t cap)
{
	const char *env = getenv("XDG_RUNTIME_DIR");
	struct stat st;

	if (env && env[0] == '/')
		return env;
	snprintf(buf, cap, "/run/user/%u", (unsigned)getuid());
	return lstat(buf, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid() ? buf : NULL;
}

int ctldir_default(const char *mountpoint, char **ret_dir)
{
	char buf[64], *name;
	const char *base = getuid() == 0 ? ROOT_BASE : user_base(buf, sizeof(buf));
	int r;

	if (!base)
		return -ENOENT;
	r = ctldir_escape(mountpoint, &name);
	if (r < 0)
		return r;
	if (strlen(name) > NAME_MAX)
		r = -ENAMETOOLONG;
	else if (asprintf(ret_dir, "%s/hintfs/%s", base, name) < 0)
		r = -ENOMEM;
	free(name);
	return r;
}

/* mkdir -p of everything above the last part. What is there already may well be read-only. */
static int make_parents(const char *dir, mode_t mode)
{
	char path[PATH_MAX];
	mode_t old;
	int r = 0;

	if (strlen(dir) >= sizeof(path))
		return -ENAMETOOLONG;
	strcpy(path, dir);
	old = umask(0);
	for (char *p = path + 1; r == 0 && (p = strchr(p, '/')) != NULL; p++) {
		*p = '\0';
		if (mkdir(path, mode) < 0 && errno != EEXIST) {
			r = -errno;
			if (r == -EROFS && access(path, F_OK) == 0)
				r = 0;
		}
		*p = '/';
	}
	umask(old);
	return r;
}

/* What hintfs makes carries the sticky bit, so that the daemon after one that was killed knows whose it is. */
static bool is_marked(const struct stat *st)
{
	mode_t mode = st->st_mode & 07777;

	return st->st_uid == geteuid() && (mode == (S_ISVTX | 0755) || mode == (S_ISVTX | 0700));
}

/* What cannot be looked into is not known to hold anything. */
static bool holds_entries(const char *dir)
{
	DIR *d = opendir(dir);
	const struct dirent *e;
	bool holds = false;

	while (d && !holds && (e = readdir(d)))
		holds = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	if (d)
		closedir(d);
	return holds;
}

/* 0: ours, made now or by an earlier daemon; 1: somebody else made it. */
static int make(const char *dir, bool is_shared)
{
	mode_t old = umask(0);
	struct stat st;
	int r = mkdir(dir, S_ISVTX | (is_shared ? 0755 : 0700)) < 0 ? -errno : 0;

	umask(old);
	if (r != -EEXIST)
		return r;
	if (lstat(dir, &st) < 0)
		return -errno;
	/* A symlink there could be anybody's. */
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	if (holds_entries(dir))
		return -ENOTEMPTY;
	return is_marked(&st) ? 0 : 1;
}

/* Until the mount table changes, or until_ns. False: no more time. */
static bool await_mount_change(int table_fd, uint64_t until_ns)
{
	struct pollfd p = { .fd = table_fd, .events = POLLPRI };
	uint64_t now_ns = hfs_now_ns();

	if (table_fd < 0 || now_ns >= until_ns)
		return false;
	(void)poll(&p, 1, (int)((until_ns - now_ns) / HFS_NS_PER_MS) + 1);
	return true;
}

/* A mount of ours whose daemon is gone goes away; one that answers may be ending, as its data mount was just unmounted;
 * anything else mounted there is in the way. */
static int clear(const char *dir, FILE *err)
{
	uint64_t until_ns = hfs_now_ns() + ENDING_MS * HFS_NS_PER_MS;
	int table_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC), r = 0;
	enum mountinfo_state state;
	struct mountinfo m;

	while (r == 0 && (state = mountinfo_state(dir, &m)) != MOUNTINFO_NONE) {
		if (state == MOUNTINFO_DEAD) {
			r = mountinfo_detach(dir);
			if (r < 0)
				hfs_say(err, "hintfs: control directory %s: a dead mount lies there and can't be removed (%s); umount -l it\n",
					dir, strerror(-r));
		} else if (state == MOUNTINFO_FOREIGN) {
			hfs_say(err, "hintfs: control directory %s: a file system (%s) is mounted there; give another ctl=DIR\n", dir,
				m.fstype);
			r = -EBUSY;
		} else if (!await_mount_change(table_fd, until_ns)) {
			hfs_say(err, "hintfs: control directory %s: in use by another hintfs; give another ctl=DIR, or end that one\n", dir);
			r = -EBUSY;
		}
	}
	if (table_fd >= 0)
		close(table_fd);
	return r;
}

static int refuse(const char *dir, int r, FILE *err)
{
	const char *cure = r == -ENOTEMPTY ? "it holds files, which the control files would hide; give an empty one with ctl=DIR"
			   : r == -ENOENT  ? "the directory above it does not exist; make that first, or give another one with ctl=DIR"
					   : NULL;

	if (cure)
		hfs_say(err, "hintfs: control directory %s: %s\n", dir, cure);
	else
		hfs_say(err, "hintfs: control directory %s: %s; give another one with ctl=DIR\n", dir, strerror(-r));
	return r;
}

int ctldir_prepare(const char *dir, bool is_default, bool is_shared, bool *ret_is_made, int *ret_lock, FILE *err)
{
	int lock, r = clear(dir, err);

	if (r < 0)
		return r;
	if (is_default)
		r = make_parents(dir, is_shared ? 0755 : 0700);
	lock = r < 0 ? -1 : dirlock_above(dir, STARTING_MS);
	if (lock >= 0 && (r = clear(dir, err)) < 0) { /* somebody may have started while we waited for the lock */
		close(lock);
		return r;
	}
	if (r == 0)
		r = make(dir, is_shared);
	if (r < 0) {
		if (lock >= 0)
			close(lock);
		return refuse(dir, r, err);
	}
	*ret_is_made = r == 0;
	*ret_lock = lock;
	return 0;
}
