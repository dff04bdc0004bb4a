/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/ctldir.c - see ctldir.h.
 */
#include "fs/ctldir.h"

#include "fs/mountinfo.h"
#include "fs/paths.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT_BASE "/run"

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

/* mkdir -p of everything above the last part. */
static int make_parents(const char *dir, mode_t mode)
{
	char path[PATH_MAX];

	if (strlen(dir) >= sizeof(path))
		return -ENAMETOOLONG;
	strcpy(path, dir);
	for (char *p = path + 1; (p = strchr(p, '/')) != NULL; p++) {
		*p = '\0';
		if (mkdir(path, mode) < 0 && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return 0;
}

/* 0: made or there; 1: it was there. */
static int make(const char *dir, bool is_shared)
{
	mode_t old = umask(0), mode = is_shared ? 0755 : 0700;
	struct stat st;
	int r = make_parents(dir, mode);

	if (r == 0 && mkdir(dir, mode) < 0)
		r = errno == EEXIST ? 1 : -errno;
	umask(old);
	/* A symlink there could be anybody's. */
	if (r == 1 && lstat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
		r = -ENOTDIR;
	return r;
}

/* A mount of ours whose daemon is gone goes away; anything else mounted there is in the way. */
static int clear(const char *dir, FILE *err)
{
	struct mountinfo m;
	int r;

	for (;;) {
		switch (mountinfo_state(dir, &m)) {
		case MOUNTINFO_NONE:
			return 0;
		case MOUNTINFO_DEAD:
			r = mountinfo_detach(dir);
			if (r == 0)
				continue;
			fprintf(err, "hintfs: control directory %s: a dead mount lies there and can't be removed (%s); umount -l it\n", dir,
				strerror(-r));
			return r;
		case MOUNTINFO_FOREIGN:
			fprintf(err, "hintfs: control directory %s: a file system (%s) is mounted there; give another ctl=DIR\n", dir,
				m.fstype);
			return -EBUSY;
		default:
			fprintf(err, "hintfs: control directory %s: in use by another hintfs; give another ctl=DIR, or end that one\n", dir);
			return -EBUSY;
		}
	}
}

/* A directory that the default rule names was made by a hintfs, this one or one that was killed. */
static bool is_default_place(const char *dir)
{
	char base[64];
	const char *user = getuid() == 0 ? ROOT_BASE : user_base(base, sizeof(base));
	size_t n = user ? strlen(user) : 0;

	return n > 0 && strncmp(dir, user, n) == 0 && strncmp(dir + n, "/hintfs/", 8) == 0 && !strchr(dir + n + 8, '/');
}

int ctldir_prepare(const char *dir, bool is_shared, bool *ret_is_made, FILE *err)
{
	int r = clear(dir, err);

	if (r < 0)
		return r;
	r = make(dir, is_shared);
	if (r < 0) {
		fprintf(err, "hintfs: control directory %s: %s; give another one with ctl=DIR\n", dir, strerror(-r));
		return r;
	}
	*ret_is_made = r == 0 || is_default_place(dir);
	return 0;
}

void ctldir_remove(const char *dir)
{
	/* EBUSY (mounted), ENOTEMPTY, ENOENT: not ours to remove (any more). */
	(void)rmdir(dir);
}
