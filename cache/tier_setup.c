/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_setup.c - the directory of the cache: made, checked, locked; refused with cause and cure.
 *
 * What is not plainly ours is left alone: only an empty directory, or one with our marker, is taken. What another version left
 * below the marker is renamed to trash-*, and removed in the background.
 */
#include "cache/tier_i.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCK_LIVE_NS   HFS_NS_PER_S	  /* one that was just unmounted has said by then that it ends */
#define LOCK_ENDING_NS (10 * HFS_NS_PER_S) /* a daemon ends within 5 s */
#define LOCK_SAY_NS    HFS_NS_PER_S
#define LOCK_PAUSE_NS  (10 * HFS_NS_PER_MS)

struct why {
	char *text;
	size_t cap;
};

static int refuse(const struct why *why, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int refuse(const struct why *why, int err, const char *fmt, ...)
{
	va_list args;

	if (why->text != NULL && why->cap > 0) {
		va_start(args, fmt);
		(void)vsnprintf(why->text, why->cap, fmt, args);
		va_end(args);
	}
	return err;
}

/* Names that may be there before the marker is: of a fresh file system, or of a start that was cut off. */
static bool is_overlooked(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "lost+found") == 0 ||
	       strcmp(name, TIER_MARKER_NAME) == 0;
}

/* 1, 0 or an error. */
static int has_entries(struct tier *t, int fd)
{
	char buf[4096] __attribute__((aligned(8)));
	ssize_t n;

	HFS_TRY(t->io->rewinddir(t->io->ctx, fd));
	while ((n = t->io->getdents(t->io->ctx, fd, buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);

			at += d->d_reclen;
			if (!is_overlooked(d->d_name))
				return 1;
		}
	}
	return (int)n;
}

static int open_dir(struct tier *t, int dirfd, const char *name, int extra_flags)
{
	return t->io->openat(t->io->ctx, dirfd, name, O_RDONLY | O_DIRECTORY | extra_flags, 0);
}

static int check_owner(const struct why *why, const char *dir, const struct stat *st)
{
	if (st->st_uid != geteuid())
		return refuse(why, -EPERM, "cache-dir %s belongs to uid %u, not to uid %u who mounts: use a directory of your own", dir,
			      (unsigned)st->st_uid, (unsigned)geteuid());
	return 0;
}

static int check_mode(struct tier *t, const struct why *why, const char *dir, const struct stat *st)
{
	struct stat up;

	if ((st->st_mode & 077) != 0)
		return refuse(why, -EPERM, "cache-dir %s may be entered by others (mode %04o) and would show them the data: chmod 700 it",
			      dir, (unsigned)st->st_mode & 07777);
	HFS_TRY(t->io->fstatat(t->io->ctx, t->fd_dir, "..", &up, 0));
	if ((up.st_mode & S_IWOTH) != 0 && (up.st_mode & S_ISVTX) == 0)
		return refuse(why, -EPERM, "the directory above cache-dir %s can be changed by everybody (mode %04o): choose another place, or chmod +t it",
			      dir, (unsigned)up.st_mode & 07777);
	return 0;
}

static int check_fs(struct tier *t, const struct why *why, const char *dir)
{
	struct statfs s;

	HFS_TRY(t->io->fstatfs(t->io->ctx, t->fd_dir, &s));
	if (s.f_type == NFS_SUPER_MAGIC || s.f_type == 0x517b /* SMB */ || s.f_type == 0x00c36400 /* Ceph */)
		return refuse(why, -EINVAL, "cache-dir %s is itself on a network file system: choose a directory on a local disk", dir);
	return 0;
}

/* Is `a` the directory `ino` of `dev`, or below it? */
static int is_below(struct tier *t, int fd, dev_t dev, ino_t ino)
{
	struct stat st, before = {0};
	int at = fd, up, err = 0;

	for (int depth = 0; depth < 4096; depth++) {
		err = t->io->fstat(t->io->ctx, at, &st);
		if (err < 0 || (st.st_dev == dev && st.st_ino == ino)) {
			err = err < 0 ? err : 1;
			break;
		}
		if (depth > 0 && st.st_dev == before.st_dev && st.st_ino == before.st_ino)
			break; /* the root */
		before = st;
		up = open_dir(t, at, "..", O_PATH);
		if (at != fd)
			(void)t->io->close(t->io->ctx, at);
		at = up;
		if (at < 0)
			return at;
	}
	if (at != fd)
		(void)t->io->close(t->io->ctx, at);
	return err;
}

/* Before anything is made: nothing may be made in the source. dir_fd: the directory, or the one it would be made in. */
static int check_apart(struct tier *t, const struct tier_config *cfg, const struct why *why, int dir_fd, bool is_there)
{
	struct stat dir, other;
	int fd, in, out, err;

	HFS_TRY(t->io->fstat(t->io->ctx, dir_fd, &dir));

	for (size_t i = 0; i < cfg->n_apart; i++) {
		if (cfg->is_source_away && cfg->apart[i] == cfg->source) /* might hang; its name was compared */
			continue;
		fd = open_dir(t, AT_FDCWD, cfg->apart[i], O_PATH);
		if (fd == -ENOENT)
			continue;
		if (fd < 0)
			return refuse(why, fd, "cannot look at %s: %s", cfg->apart[i], strerror(-fd));
		err = t->io->fstat(t->io->ctx, fd, &other);
		in = err < 0 ? err : is_below(t, dir_fd, other.st_dev, other.st_ino);
		out = err < 0 || !is_there ? err : is_below(t, fd, dir.st_dev, dir.st_ino);
		(void)t->io->close(t->io->ctx, fd);
		if (in > 0 || out > 0)
			return refuse(why, -EINVAL, "cache-dir %s and %s lie one inside the other: choose a cache-dir apart from both source and mountpoint",
				      cfg->dir, cfg->apart[i]);
	}
	return 0;
}

/* ---- marker and lock ---- */

/* 1: it has our marker. 0: it is empty, but perhaps for half a marker of a start that was cut off. Changes nothing. */
static int find_marker(struct tier *t, const struct why *why, const char *dir)
{
	const size_t n = sizeof(TIER_MARKER_TEXT) - 1;
	char text[sizeof(TIER_MARKER_TEXT)] = {0};
	struct stat st = {0};
	int fd = t->io->openat(t->io->ctx, t->fd_dir, TIER_MARKER_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0), err;
	bool is_other = fd < 0 && fd != -ENOENT;

	if (fd >= 0) {
		err = tier_check_file(t, fd, &st);
		is_other = err < 0 || (uint64_t)st.st_size > n;
		if (err == 0)
			err = tier_read_full(t, fd, text, n, 0);
		(void)t->io->close(t->io->ctx, fd);
		if (err == 0 && memcmp(text, TIER_MARKER_TEXT, n) == 0)
			return 1;
		if (err != -ENODATA && err != -EBADMSG && err != 0)
			return err;
	}
	err = is_other ? 1 : has_entries(t, t->fd_dir);
	if (err > 0)
		err = refuse(why, -ENOTEMPTY, "cache-dir %s is not empty and is no hintfs cache: choose an empty directory, or one that does not exist yet",
			     dir);
	return err;
}

static int make_marker(struct tier *t)
{
	const size_t n = sizeof(TIER_MARKER_TEXT) - 1;
	int fd, err = t->io->unlinkat(t->io->ctx, t->fd_dir, TIER_MARKER_NAME, 0);

	if (err < 0 && err != -ENOENT)
		return err;
	fd = t->io->openat(t->io->ctx, t->fd_dir, TIER_MARKER_NAME, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fd;
	err = tier_write_full(t, fd, TIER_MARKER_TEXT, n, 0);
	if (err == 0) /* before anything else is there: without it the directory is refused */
		err = t->io->fdatasync(t->io->ctx, fd);
	if (err == 0)
		err = t->io->fdatasync(t->io->ctx, t->fd_dir);
	(void)t->io->close(t->io->ctx, fd);
	if (err < 0)
		(void)t->io->unlinkat(t->io->ctx, t->fd_dir, TIER_MARKER_NAME, 0);
	return err;
}

/* "pid 12", and " ending" when it was told to. */
static void read_holder(struct tier *t, char text[64])
{
	ssize_t n = t->io->pread(t->io->ctx, t->fd_lock, text, 63, 0);

	text[n > 0 ? n : 0] = '\0';
	text[strspn(text, "pid 0123456789eng")] = '\0';
	if (text[0] == '\0')
		strcpy(text, "pid unknown");
}

/* The kernel's lock goes with its process: of one that is just ending, which is waited for. */
static int await_lock(struct tier *t, const char *dir, char holder[64], bool *ret_is_ending)
{
	const struct timespec pause = hfs_ns_to_timespec(LOCK_PAUSE_NS);
	uint64_t begun_ns = hfs_now_ns(), waited_ns;
	bool is_said = false;
	int err;

	while ((err = t->io->lock(t->io->ctx, t->fd_lock)) == -EAGAIN) {
		read_holder(t, holder);
		*ret_is_ending = strstr(holder, TIER_LOCK_ENDING) != NULL;
		waited_ns = hfs_now_ns() - begun_ns;
		if (waited_ns >= (*ret_is_ending ? LOCK_ENDING_NS : LOCK_LIVE_NS))
			break;
		if (waited_ns >= LOCK_SAY_NS && !is_said) {
			hfs_log(HFS_LOG_WARNING, "cache-dir %s: waiting for the hintfs that used it (%s)", dir, holder);
			is_said = true;
		}
		(void)nanosleep(&pause, NULL);
	}
	return err;
}

/* The text is for people, and for who waits; the lock itself is the kernel's. */
static int write_holder(struct tier *t, const char *state)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "pid %ld%s\n", (long)getpid(), state);
	return tier_write_full(t, t->fd_lock, text, strlen(text), 0);
}

void tier_say_ending_main(void *arg)
{
	(void)write_holder(arg, " " TIER_LOCK_ENDING);
}

static int take_lock(struct tier *t, const struct why *why, const char *dir)
{
	bool is_ending = false;
	char holder[64] = {0};
	struct stat st;
	int err;

	t->fd_lock = t->io->openat(t->io->ctx, t->fd_dir, TIER_LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (t->fd_lock < 0)
		return t->fd_lock;
	HFS_TRY(tier_check_file(t, t->fd_lock, &st));
	err = await_lock(t, dir, holder, &is_ending);
	if (err == -EAGAIN && is_ending)
		return refuse(why, -EBUSY,
			      "cache-dir %s is still held by a hintfs that was told to end (%s): does its origin or this disk hang? "
			      "End it, or give another cache-dir",
			      dir, holder);
	if (err == -EAGAIN)
		return refuse(why, -EBUSY,
			      "cache-dir %s is in use by another hintfs (%s): unmount that one, or give each mount a cache-dir of its own",
			      dir, holder);
	if (err < 0)
		return refuse(why, err, "cache-dir %s cannot be locked (%s): choose a directory on a local disk", dir, strerror(-err));
	t->lock_ino = st.st_ino;
	HFS_TRY(t->io->ftruncate(t->io->ctx, t->fd_lock, 0));
	return write_holder(t, "");
}

/* ---- versions ---- */

static int set_aside(struct tier *t, const char *name)
{
	char trash[TIER_NAME_CAP];

	(void)snprintf(trash, sizeof(trash), TIER_TRASH_PREFIX "%016llx", (unsigned long long)tier_random());
	hfs_log(HFS_LOG_INFO, "disk cache %s: %s is of another format, it is removed in the background", t->dir, name);
	return t->io->renameat(t->io->ctx, t->fd_dir, name, t->fd_dir, trash);
}

static bool is_version_name(const char *name)
{
	return name[0] == 'v' && name[1] != '\0' && strspn(name + 1, "0123456789") == strlen(name + 1);
}

static int set_aside_others(struct tier *t)
{
	char buf[4096] __attribute__((aligned(8)));
	ssize_t n;

	HFS_TRY(t->io->rewinddir(t->io->ctx, t->fd_dir));
	while ((n = t->io->getdents(t->io->ctx, t->fd_dir, buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);

			at += d->d_reclen;
			if (is_version_name(d->d_name) && strcmp(d->d_name, TIER_VERSION_DIR) != 0)
				HFS_TRY(set_aside(t, d->d_name));
		}
	}
	return (int)n;
}

static int make_dir(struct tier *t, int dirfd, const char *name)
{
	struct stat st;
	int fd = t->io->mkdirat(t->io->ctx, dirfd, name, 0700), err;

	if (fd < 0 && fd != -EEXIST)
		return fd;
	fd = open_dir(t, dirfd, name, O_NOFOLLOW);
	if (fd < 0)
		return fd;
	err = t->io->fstat(t->io->ctx, fd, &st);
	if (err == 0 && (st.st_uid != geteuid() || (st.st_mode & 077) != 0))
		err = -EPERM;
	if (err < 0)
		(void)t->io->close(t->io->ctx, fd);
	return err < 0 ? err : fd;
}

/* 0: read. -EBADMSG: there is none, or of another format. */
static int read_top(struct tier *t)
{
	struct tier_raw_top raw;
	struct stat st;
	int fd = t->io->openat(t->io->ctx, t->fd_version, "tier", O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0), err;

	if (fd < 0)
		return fd == -ENOENT || fd == -ELOOP ? -EBADMSG : fd;
	err = tier_check_file(t, fd, &st);
	if (err == 0)
		err = tier_read_full(t, fd, &raw, sizeof(raw), 0);
	if (err == -ENODATA || (err == 0 && !tier_top_decode(&raw, sizeof(raw), &t->salt)))
		err = -EBADMSG;
	(void)t->io->close(t->io->ctx, fd);
	return err;
}

static int write_top(struct tier *t)
{
	struct tier_raw_top raw;
	int fd = t->io->openat(t->io->ctx, t->fd_version, "tier", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600), err;

	if (fd < 0)
		return fd;
	t->salt = tier_random();
	tier_top_encode(&raw, t->salt);
	err = tier_write_full(t, fd, &raw, sizeof(raw), 0);
	if (err == 0) /* all else is worthless without it */
		err = t->io->fdatasync(t->io->ctx, fd);
	(void)t->io->close(t->io->ctx, fd);
	return err;
}

static int open_version(struct tier *t)
{
	int err;

	for (int i = 0; i < 2; i++) {
		HFS_TRY(t->fd_version = make_dir(t, t->fd_dir, TIER_VERSION_DIR));
		err = has_entries(t, t->fd_version);
		if (err >= 0)
			err = err == 0 ? write_top(t) : read_top(t);
		if (err != -EBADMSG)
			break;
		(void)t->io->close(t->io->ctx, t->fd_version);
		t->fd_version = -1;
		HFS_TRY(set_aside(t, TIER_VERSION_DIR));
	}
	HFS_TRY(err);
	(void)t->io->unlinkat(t->io->ctx, t->fd_version, "probe", 0); /* of a process that died */
	HFS_TRY(t->fd_files = make_dir(t, t->fd_version, "files"));
	HFS_TRY(t->fd_packs = make_dir(t, t->fd_version, "packs"));
	return 0;
}

static int check_place(struct tier *t, const struct tier_config *cfg, const struct why *why)
{
	char *parent = strdup(cfg->dir);
	int fd, err;

	if (parent == NULL)
		return -ENOMEM;
	fd = open_dir(t, AT_FDCWD, cfg->dir, O_PATH);
	if (fd == -ENOENT) {
		fd = open_dir(t, AT_FDCWD, dirname(parent), O_PATH);
		err = fd < 0 ? fd : check_apart(t, cfg, why, fd, false);
	} else {
		err = fd < 0 ? fd : check_apart(t, cfg, why, fd, true);
	}
	if (fd >= 0)
		(void)t->io->close(t->io->ctx, fd);
	free(parent);
	return err;
}

static int setup(struct tier *t, const struct tier_config *cfg, const struct why *why)
{
	struct stat st;
	int err, is_marked;

	if (cfg->n_apart > 0)
		HFS_TRY(check_place(t, cfg, why));
	err = t->io->mkdirat(t->io->ctx, AT_FDCWD, cfg->dir, 0700);
	if (err < 0 && err != -EEXIST)
		return err;
	HFS_TRY(t->fd_dir = open_dir(t, AT_FDCWD, cfg->dir, 0));
	HFS_TRY(t->io->fstat(t->io->ctx, t->fd_dir, &st));
	t->dir_dev = st.st_dev;
	t->dir_ino = st.st_ino;
	HFS_TRY(check_owner(why, cfg->dir, &st));
	HFS_TRY(is_marked = find_marker(t, why, cfg->dir)); /* before: the mode of a directory of other things is not to be changed */
	HFS_TRY(check_mode(t, why, cfg->dir, &st));
	HFS_TRY(check_fs(t, why, cfg->dir));
	if (!is_marked)
		HFS_TRY(make_marker(t));
	HFS_TRY(take_lock(t, why, cfg->dir));
	HFS_TRY(set_aside_others(t));
	HFS_TRY(open_version(t));
	if (!tier_origins_begin(t, cfg))
		return refuse(why, -ENOENT, "SOURCE %s is not there, and cache-dir %s has nothing of it: bring it back, or mount once while it is there",
			      cfg->source, cfg->dir);
	return 0;
}

int tier_setup(struct tier *t, const struct tier_config *cfg, char *text, size_t cap)
{
	const struct why why = {.text = text, .cap = cap};
	int err;

	if (text != NULL && cap > 0)
		text[0] = '\0';
	if (cfg->chunk_bytes < 65536 || cfg->chunk_bytes > (UINT32_C(16) << 20) || !hfs_is_pow2(cfg->chunk_bytes) ||
	    cfg->free_pct > 99)
		return refuse(&why, -EINVAL, "chunk must be a power of two from 64K to 16M, and cache-free below 100");
	if (cfg->size_bytes < hfs_max_u64(UINT64_C(4) << 20, 4 * (uint64_t)cfg->chunk_bytes))
		return refuse(&why, -EINVAL, "cache-size=%llu is too small to hold anything: at least 4M and four chunks",
			      (unsigned long long)cfg->size_bytes);
	err = setup(t, cfg, &why);
	if (err < 0 && (text == NULL || cap == 0 || text[0] == '\0'))
		(void)refuse(&why, err, "cache-dir %s cannot be used: %s; choose a writable directory on a local disk", cfg->dir,
			     strerror(-err));
	return err;
}
