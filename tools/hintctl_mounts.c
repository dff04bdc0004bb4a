/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_mounts.c - which hintfs mounts there are, asked of the kernel and not of them; bounded reads.
 */
#include "tools/hintctl_i.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- mountinfo --------------------------------------------------------------------------------------- */

/* \ooo of mountinfo, in place. */
static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' &&
		    s[3] <= '7') {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = '\0';
}

/* wanted NULL: any file system.
 * id parent major:minor root mountpoint options ... - fstype source superoptions */
static bool parse_row(char *line, struct mount_row *row, const char *wanted)
{
	char *dash = strstr(line, " - "), *save, *fstype, *source, *options, *field = NULL;

	if (!dash || sscanf(line, "%u %*u %u:%u", &row->id, &row->major, &row->minor) != 3)
		return false;
	*dash = '\0';
	fstype = strtok_r(dash + 3, " \n", &save);
	source = strtok_r(NULL, " \n", &save);
	options = strtok_r(NULL, " \n", &save);
	options = options ? strstr(options, "user_id=") : NULL;
	row->user_id = options ? (unsigned)strtoul(options + 8, NULL, 10) : 0;
	if (!fstype || !source || (wanted && strcmp(fstype, wanted) != 0))
		return false;
	field = strtok_r(line, " ", &save);
	for (int i = 0; field && i < 4; i++)
		field = strtok_r(NULL, " ", &save);
	if (!field)
		return false;
	unescape(field);
	unescape(source);
	row->mountpoint = strdup(field);
	row->source = strdup(source);
	return row->mountpoint && row->source;
}

static int read_rows(struct mounts *ret, const char *fstype)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	struct mounts m = {0};
	char *line = NULL;
	size_t cap = 0;
	int rc = f ? 0 : -errno;

	while (rc == 0 && getline(&line, &cap, f) >= 0) {
		struct mount_row row = {0}, *rows;

		if (!parse_row(line, &row, fstype)) {
			free(row.mountpoint);
			free(row.source);
			continue;
		}
		rows = reallocarray(m.rows, m.n + 1, sizeof(*rows));
		if (!rows) {
			rc = -ENOMEM;
			break;
		}
		m.rows = rows;
		m.rows[m.n++] = row;
	}
	free(line);
	if (f)
		fclose(f);
	if (rc < 0)
		mounts_finish(&m);
	else
		*ret = m;
	return rc;
}

int mounts_read(struct mounts *ret, bool is_control)
{
	return read_rows(ret, is_control ? "fuse.hintfs-ctl" : "fuse.hintfs");
}

int mounts_read_all(struct mounts *ret)
{
	return read_rows(ret, NULL);
}

void mounts_finish(struct mounts *m)
{
	for (size_t i = 0; i < m->n; i++) {
		free(m->rows[i].mountpoint);
		free(m->rows[i].source);
	}
	free(m->rows);
	*m = (struct mounts){0};
}

/* The topmost mount at the path: the last one listed. */
static const struct mount_row *find_exact(const struct mounts *m, const char *path)
{
	for (size_t i = m->n; i-- > 0;)
		if (strcmp(m->rows[i].mountpoint, path) == 0)
			return &m->rows[i];
	return NULL;
}

/* Absolute, links in the parents resolved; the last component is not touched, it may be a mount that hangs. */
static bool absolute(const char *arg, char out[PATH_MAX])
{
	char copy[PATH_MAX], dir[PATH_MAX], *slash;
	size_t len;

	if (strcmp(arg, ".") == 0)
		return getcwd(out, PATH_MAX) != NULL;
	if ((size_t)snprintf(copy, sizeof(copy), "%s", arg) >= sizeof(copy))
		return false;
	len = strlen(copy);
	while (len > 1 && copy[len - 1] == '/')
		copy[--len] = '\0';
	slash = strrchr(copy, '/');
	if (slash)
		*slash = '\0';
	if (!realpath(!slash ? "." : slash == copy ? "/" : copy, dir))
		return false;
	return (size_t)snprintf(out, PATH_MAX, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, slash ? slash + 1 : copy) <
	       PATH_MAX;
}

bool mounts_has(const struct mounts *m, const char *arg)
{
	char path[PATH_MAX];

	return find_exact(m, arg) || (absolute(arg, path) && find_exact(m, path));
}

const struct mount_row *mounts_find(const struct mounts *m, const char *arg)
{
	const struct mount_row *row;
	char path[PATH_MAX];

	if (!arg) {
		if (m->n == 1)
			return &m->rows[0];
		hfs_say(stderr, m->n == 0 ? "hintctl: no hintfs is mounted here; hintfs SOURCE MOUNTPOINT mounts one\n"
					  : "hintctl: there are several hintfs mounts: name the MOUNTPOINT (hintctl "
					    "list shows them)\n");
		return NULL;
	}
	row = find_exact(m, arg);
	if (!row && absolute(arg, path))
		row = find_exact(m, path);
	if (!row)
		hfs_say(stderr, "hintctl: %s is not the mountpoint of a hintfs; hintctl list shows those\n", arg);
	return row;
}

char *ctl_path(const struct mount_row *m, const char *name)
{
	const char *env = getenv("HINTFS_CTL");
	char *path;
	int n = env && *env ? asprintf(&path, "%s/%s", env, name) : asprintf(&path, "%s/.ctl/%s", m->mountpoint, name);

	return n < 0 ? NULL : path;
}

/* ---- reading with a deadline ----------------------------------------------------------------------------- */

struct bytes {
	char *s;
	size_t len, cap;
};

static bool bytes_read_some(struct bytes *b, int fd, ssize_t *ret_n)
{
	if (b->cap - b->len < 4096) {
		size_t cap = b->cap ? b->cap * 2 : 16384;
		char *s = realloc(b->s, cap);

		if (!s)
			return false;
		b->s = s;
		b->cap = cap;
	}
	*ret_n = read(fd, b->s + b->len, b->cap - b->len - 1);
	if (*ret_n > 0)
		b->len += (size_t)*ret_n;
	b->s[b->len] = '\0';
	return *ret_n >= 0 || errno == EINTR;
}

/* In the child: the first byte sent is 0, or the file's errno. */
static void copy_out(const char *path, int out)
{
	char buf[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char err = fd < 0 ? (unsigned char)errno : 0;
	ssize_t n = write(out, &err, 1);

	while (n > 0 && fd >= 0 && (n = read(fd, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			break;
	_exit(0);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int collect(int fd, unsigned timeout_ms, struct bytes *b)
{
	int64_t deadline = now_ms() + timeout_ms;

	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int64_t left = deadline - now_ms();
		ssize_t n;

		if (left <= 0)
			return -ETIMEDOUT;
		if (poll(&p, 1, (int)left) <= 0)
			continue;
		if (!bytes_read_some(b, fd, &n))
			return -ENOMEM;
		if (n == 0)
			return b->len == 0 ? -EIO : -(int)(unsigned char)b->s[0];
	}
}

char *bounded_read(const char *path, unsigned timeout_ms, int *ret_err)
{
	struct bytes b = {0};
	int fds[2], rc;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0) {
		*ret_err = -errno;
		return NULL;
	}
	pid = fork();
	if (pid == 0)
		copy_out(path, fds[1]);
	rc = pid < 0 ? -errno : 0;
	close(fds[1]);
	if (rc == 0)
		rc = collect(fds[0], timeout_ms, &b);
	close(fds[0]);
	if (pid > 0) {
		if (rc < 0)
			kill(pid, SIGKILL);
		waitpid(pid, NULL, rc == -ETIMEDOUT ? WNOHANG : 0); /* one that hangs in the kernel is left to init */
	}
	*ret_err = rc;
	if (rc < 0 || !b.s) {
		free(b.s);
		return NULL;
	}
	memmove(b.s, b.s + 1, b.len); /* with the NUL */
	return b.s;
}

/* ---- numbers for people --------------------------------------------------------------------------------------- */

char *format_count(char *buf, uint64_t n)
{
	char digits[24];
	size_t len = (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n), at = 0;

	for (size_t i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = digits[i];
	}
	buf[at] = '\0';
	return buf;
}

char *format_bytes(char *buf, double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t unit = 0;

	while (bytes >= 1024 && unit < 5) {
		bytes /= 1024;
		unit++;
	}
	snprintf(buf, 32,
		 unit == 0 || bytes >= 100 ? "%.0f %s"
		 : bytes >= 10		   ? "%.1f %s"
					   : "%.2f %s",
		 bytes, units[unit]);
	return buf;
}
