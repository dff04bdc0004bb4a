/* SPDX-License-Identifier: Apache-2.0 */
/* The origin: nothing outside the root is ever opened, with openat2 and without; types, long paths, links, listings. */
#include "cache/origin_i.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <sys/xattr.h>

struct place {
	char dir[64];
	struct fake fake;
	struct origin *o;
};

static void at(const struct place *p, const char *name, char *buf, size_t cap)
{
	snprintf(buf, cap, "%s/%s", p->dir, name);
}

static void put(const struct place *p, const char *name, const char *text)
{
	char path[256];
	int fd;

	at(p, name, path, sizeof(path));
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	cr_assert(fd >= 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void link_to(const struct place *p, const char *name, const char *target)
{
	char path[256];

	at(p, name, path, sizeof(path));
	cr_assert_eq(symlink(target, path), 0);
}

static void make_dir(const struct place *p, const char *name)
{
	char path[256];

	at(p, name, path, sizeof(path));
	cr_assert_eq(mkdir(path, 0755), 0);
}

static void place_open(struct place *p, bool has_openat2)
{
	char path[256];

	strcpy(p->dir, "/tmp/hfs-origin-XXXXXX");
	cr_assert_not_null(mkdtemp(p->dir));
	fake_init(&p->fake);
	atomic_store(&p->fake.has_openat2, has_openat2);
	make_dir(p, "root");
	put(p, "secret", "outside");
	make_dir(p, "root/d");
	put(p, "root/d/f", "inside");
	link_to(p, "root/up", "../secret");
	link_to(p, "root/abs", "/etc/passwd");
	link_to(p, "root/dirlink", "d");
	link_to(p, "root/d/flink", "f");
	link_to(p, "root/d/far", "../dirlink/./flink");
	link_to(p, "root/loop", "loop");
	link_to(p, "root/dot", ".");
	link_to(p, "root/out", "d/../../root/d/f");
	at(p, "root/fifo", path, sizeof(path));
	cr_assert_eq(mkfifo(path, 0600), 0);
	at(p, "root", path, sizeof(path));
	cr_assert_eq(origin_create(path, &p->fake.io, &p->o), 0);
}

static void place_close(struct place *p)
{
	origin_destroy(p->o);
	nftw(p->dir, world_rm, 16, FTW_DEPTH | FTW_PHYS);
}

static int try_open(struct place *p, const char *path)
{
	struct origin_attr attr;
	int fd, err = origin_open(p->o, path, &fd, &attr);

	if (err == 0) {
		cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
		close(fd);
	}
	return err;
}

Test(origin, opens_beneath_the_root_only)
{
	static const struct {
		const char *path;
		int err;
	} cases[] = {
		{"d/f", 0},
		{"d//f", 0},
		{"d/./f", 0},
		{"", -EISDIR},
		{"d", -EISDIR},
		{"fifo", -ENXIO},
		{"up", -ELOOP},
		{"abs", -ELOOP},
		{"dirlink/f", -ELOOP},
		{"d/flink", -ELOOP},
		{"../secret", -EXDEV},
		{"d/../d/f", -EXDEV},
		{"/etc/passwd", -EXDEV},
		{"nothing", -ENOENT},
		{"d/f/x", -ENOTDIR},
		{"loop", -ELOOP},
	};
	struct place p;

	for (int has = 0; has < 2; has++) {
		place_open(&p, has != 0);
		for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			int err = try_open(&p, cases[i].path);
			/* Without openat2 a link in the middle is "not a directory". */
			bool is_same = err == cases[i].err ||
				       (!has && strcmp(cases[i].path, "dirlink/f") == 0 && err == -ENOTDIR);

			cr_assert(is_same, "openat2 %d, %s: %d", has, cases[i].path, err);
		}
		place_close(&p);
	}
}

Test(origin, stat_is_lstat_and_names_have_limits)
{
	char name[NAME_MAX + 2];
	struct origin_attr attr;
	struct place p;

	place_open(&p, true);
	cr_assert_eq(origin_stat(p.o, "up", true, &attr), 0);
	cr_assert(S_ISLNK(attr.mode));
	cr_assert_eq(origin_stat(p.o, "", false, &attr), 0);
	cr_assert(S_ISDIR(attr.mode));
	cr_assert_eq(attr.id.dev, origin_dev(p.o));
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	cr_assert_eq(origin_stat(p.o, name, false, &attr), -ENAMETOOLONG);
	place_close(&p);
}

/* Directories nested deeper than PATH_MAX, made by relative calls. */
static size_t make_deep(struct place *p, char *path, size_t cap)
{
	char name[201], root[256];
	size_t len = 0;
	int fd, next;

	memset(name, 'a', 200);
	name[200] = '\0';
	at(p, "root", root, sizeof(root));
	fd = open(root, O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < 50 && len + 210 < cap; i++) {
		cr_assert_eq(mkdirat(fd, name, 0755), 0);
		next = openat(fd, name, O_RDONLY | O_DIRECTORY);
		cr_assert(next >= 0);
		close(fd);
		fd = next;
		len += (size_t)sprintf(path + len, "%s/", name);
	}
	next = openat(fd, "end", O_WRONLY | O_CREAT, 0644);
	cr_assert(next >= 0);
	close(next);
	close(fd);
	strcpy(path + len, "end");
	return len + 3;
}

Test(origin, paths_longer_than_the_kernel_takes)
{
	static char path[12000];
	struct place p;

	for (int has = 0; has < 2; has++) {
		place_open(&p, has != 0);
		cr_assert(make_deep(&p, path, sizeof(path)) > 2 * PATH_MAX);
		cr_assert_eq(try_open(&p, path), 0);
		strcat(path, "x");
		cr_assert_eq(try_open(&p, path), -ENOENT);
		origin_destroy(p.o);
		char cmd[128];
		snprintf(cmd, sizeof(cmd), "rm -rf '%s'", p.dir);
		cr_assert_eq(system(cmd), 0);
	}
}

Test(origin, realpath_follows_relative_links_inside)
{
	static const struct {
		const char *path, *real;
		int err;
	} cases[] = {
		{"d/f", "d/f", 0},     {"dirlink/f", "d/f", 0}, {"d/far", "d/f", 0},
		{"dot", "", 0},	       {"dot/dot/d/", "d", 0},	{"", "", 0},
		{"up", NULL, -EXDEV},  {"abs", NULL, -EXDEV},	{"loop", NULL, -ELOOP},
		{"out", NULL, -EXDEV}, {"d/f/", "d/f", 0},	{"d/f/x", NULL, -ENOTDIR},
		{"no", NULL, -ENOENT}, {"d/../d/f", "d/f", 0},	{"fifo", NULL, -ENXIO},
		{"..", NULL, -EXDEV},
	};
	struct origin_attr attr;
	struct place p;
	char *real;
	int err;

	place_open(&p, true);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		real = NULL;
		err = origin_realpath(p.o, cases[i].path, &real, &attr);
		cr_assert_eq(err, cases[i].err, "%s: %d", cases[i].path, err);
		if (err == 0)
			cr_assert_str_eq(real, cases[i].real, "%s: %s", cases[i].path, real);
		free(real);
	}
	place_close(&p);
}

struct listing {
	unsigned n, stop_at;
	char names[32][64];
};

static int list_cb(void *ctx, const char *name, size_t len, uint64_t ino, unsigned type)
{
	struct listing *l = ctx;

	(void)ino;
	(void)type;
	cr_assert(len < 64);
	memcpy(l->names[l->n], name, len);
	l->names[l->n++][len] = '\0';
	return l->n == l->stop_at ? -ENOMEM : 0;
}

Test(origin, lists_all_and_hands_errors_through)
{
	struct listing l = {0};
	struct place p;

	place_open(&p, true);
	cr_assert_eq(origin_list(p.o, "", list_cb, &l), 0);
	cr_assert_eq(l.n, 8);
	l = (struct listing){.stop_at = 3};
	cr_assert_eq(origin_list(p.o, "", list_cb, &l), -ENOMEM);
	cr_assert_eq(l.n, 3);
	cr_assert_eq(origin_list(p.o, "d/f", list_cb, &l), -ENOTDIR);
	atomic_store(&p.fake.fail_err, -EIO);
	atomic_store(&p.fake.fail_n, 1000);
	atomic_store(&p.fake.fail_at, atomic_load(&p.fake.n_calls) + 2);
	l = (struct listing){0};
	cr_assert_eq(origin_list(p.o, "", list_cb, &l), -EIO);
	atomic_store(&p.fake.fail_at, 0);
	place_close(&p);
}

Test(origin, readlink_statfs_xattr)
{
	struct statvfs vfs;
	char buf[256], path[256];
	struct place p;
	ssize_t n;

	place_open(&p, true);
	n = origin_readlink(p.o, "up", buf, sizeof(buf));
	cr_assert_eq(n, 9);
	cr_assert_eq(memcmp(buf, "../secret", 9), 0);
	cr_assert_eq(origin_readlink(p.o, "d", buf, sizeof(buf)), -EINVAL);
	cr_assert_eq(origin_statfs(p.o, &vfs), 0);
	cr_assert_eq(origin_getxattr(p.o, "d/f", "security.selinux", buf, sizeof(buf)), -ENOTSUP);
	cr_assert_eq(origin_getxattr(p.o, "up", "user.x", buf, sizeof(buf)), -ENOTSUP);
	at(&p, "root/d/f", path, sizeof(path));
	if (setxattr(path, "user.x", "value", 5, 0) == 0) {
		cr_assert_eq(origin_getxattr(p.o, "d/f", "user.x", buf, sizeof(buf)), 5);
		cr_assert_eq(origin_listxattr(p.o, "d/f", NULL, 0), 7);
		cr_assert_eq(origin_listxattr(p.o, "d/f", buf, 3), -ERANGE);
		cr_assert_eq(origin_listxattr(p.o, "d/f", buf, sizeof(buf)), 7);
		cr_assert_str_eq(buf, "user.x");
	}
	place_close(&p);
}

Test(origin, failing_call_leaks_no_descriptor)
{
	struct origin_attr attr;
	struct place p;
	int fd, err, next_before, next;

	place_open(&p, true);
	atomic_store(&p.fake.fail_err, -EIO);
	atomic_store(&p.fake.fail_n, 1);
	next_before = dup(0);
	close(next_before);
	for (long nth = 1;; nth++) {
		long calls = atomic_load(&p.fake.n_calls);

		atomic_store(&p.fake.fail_at, calls + nth);
		err = origin_open(p.o, "d/f", &fd, &attr);
		if (err == 0) {
			close(fd);
			if (atomic_load(&p.fake.n_calls) < calls + nth)
				break;
		} else {
			cr_assert_eq(err, -EIO);
		}
		next = dup(0);
		close(next);
		cr_assert_eq(next, next_before, "call %ld", nth);
	}
	atomic_store(&p.fake.fail_at, 0);
	place_close(&p);
}

/* ---- the forced look beside the open ---- */

#define ROUND_TRIP_NS (1000 * 1000)

struct job {
	void (*fn)(void *arg);
	void *arg;
};

static void *job_main(void *arg)
{
	struct job j = *(struct job *)arg;

	free(arg);
	j.fn(j.arg);
	return NULL;
}

static int run_in_thread(void *ctx, void (*fn)(void *arg), void *arg)
{
	struct job *j = malloc(sizeof(*j));
	pthread_t thread;

	(void)ctx;
	cr_assert_not_null(j);
	*j = (struct job){fn, arg};
	cr_assert_eq(pthread_create(&thread, NULL, job_main, j), 0);
	pthread_detach(thread);
	return 0;
}

static int run_later(void *ctx, void (*fn)(void *arg), void *arg)
{
	*(struct job *)ctx = (struct job){fn, arg};
	return 0;
}

static int run_never(void *ctx, void (*fn)(void *arg), void *arg)
{
	(void)fn;
	(void)arg;
	(*(int *)ctx)++;
	return -EAGAIN;
}

static int told_statx(void *ctx, int dirfd, const char *path, int flags, unsigned mask, struct statx *ret)
{
	struct fake *f = ctx;
	int err = fake_statx(ctx, dirfd, path, flags, mask, ret);

	hfs_mutex_lock(&f->lock);
	hfs_cond_broadcast(&f->cond);
	hfs_mutex_unlock(&f->lock);
	return err;
}

/* The open for reading comes back only after the look has been made. */
static int late_openat(void *ctx, int dirfd, const char *path, int flags)
{
	struct fake *f = ctx;
	uint64_t until_ns = hfs_now_ns() + 10 * HFS_NS_PER_S;
	bool is_in_time = true;

	hfs_mutex_lock(&f->lock);
	while (is_in_time && atomic_load(&f->n_forced) == 0)
		is_in_time = hfs_cond_wait_until(&f->cond, &f->lock, until_ns);
	hfs_mutex_unlock(&f->lock);
	return is_in_time ? fake_openat(ctx, dirfd, path, flags) : -ETIMEDOUT;
}

static void place_open_far(struct place *p, origin_run_fn run, void *ctx)
{
	place_open(p, true);
	p->fake.io.statx = told_statx;
	origin_set_runner(p->o, run, ctx);
	origin_aside_learn(p->o, ROUND_TRIP_NS);
}

Test(origin, a_far_origin_is_looked_at_while_the_file_is_opened)
{
	struct place p;

	place_open_far(&p, run_in_thread, NULL);
	p.fake.io.openat = late_openat;
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_eq(atomic_load(&p.fake.n_forced), 1);
	place_close(&p);
}

Test(origin, a_look_that_the_descriptor_does_not_bear_out_is_not_taken)
{
	struct place p;

	place_open_far(&p, run_in_thread, NULL);
	p.fake.io.openat = late_openat;
	atomic_store(&p.fake.has_old_attrs, true);
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_geq(atomic_load(&p.fake.n_forced), 3); /* the first open was made before its identity was known */
	place_close(&p);
}

Test(origin, an_open_waits_for_no_look_that_has_not_begun)
{
	struct place p;
	struct job left = {0};
	int n_asked = 0;

	place_open_far(&p, run_later, &left);
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_eq(atomic_load(&p.fake.n_forced), 1);
	cr_assert_not_null(left.fn);
	left.fn(left.arg); /* comes too late and leaves everything alone */
	cr_assert_eq(atomic_load(&p.fake.n_forced), 1);
	origin_set_runner(p.o, run_never, &n_asked);
	origin_aside_learn(p.o, 8 * ROUND_TRIP_NS); /* the last one was quick */
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_eq(n_asked, 1);
	cr_assert_eq(atomic_load(&p.fake.n_forced), 2);
	place_close(&p);
}

Test(origin, a_near_origin_is_asked_in_one_thread)
{
	struct place p;
	int n_asked = 0;

	place_open(&p, true);
	origin_set_runner(p.o, run_never, &n_asked);
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_eq(n_asked, 0);
	place_close(&p);
}

/* ---- an identity that came about after the open ---- */

static _Atomic int n_changes; /* that are to come, one an open */

/* The file is written to when the open is through. */
static int overtaken_openat(void *ctx, int dirfd, const char *path, int flags)
{
	int fd = fake_openat(ctx, dirfd, path, flags);
	char proc[64];
	int out;

	if (fd >= 0 && atomic_load(&n_changes) > 0) {
		atomic_fetch_sub(&n_changes, 1);
		snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
		out = open(proc, O_WRONLY | O_APPEND);
		cr_assert(out >= 0);
		cr_assert_eq(write(out, "!", 1), 1);
		close(out);
	}
	return fd;
}

Test(origin, an_open_is_no_older_than_the_identity_that_it_gives)
{
	struct origin_attr attr;
	struct place p;
	int fd;

	place_open(&p, true);
	p.fake.io.openat = overtaken_openat;
	for (int changes = 0, opens; changes < 4; changes++) {
		atomic_store(&n_changes, changes);
		atomic_store(&p.fake.n_open, 0);
		atomic_store(&p.fake.n_statx, 0);
		cr_assert_eq(origin_open(p.o, "d/f", &fd, &attr), 0);
		close(fd);
		opens = changes + 1;
		cr_assert_eq(atomic_load(&n_changes), 0);
		cr_assert_eq(attr.id.size_bytes, strlen("inside") + (size_t)(changes * (changes + 1) / 2));
		cr_assert_eq(atomic_load(&p.fake.n_open), opens, "%d changes: %ld opens", changes, atomic_load(&p.fake.n_open));
	}
	atomic_store(&n_changes, 1000);
	cr_assert_eq(origin_open(p.o, "d/f", &fd, &attr), -ESTALE);
	place_close(&p);
}

/* What an attribute cache has need not be true: what the first try saw is, and was seen before the second. */
Test(origin, a_look_of_an_earlier_try_is_one_before_the_open)
{
	struct place p;

	place_open(&p, true);
	atomic_store(&p.fake.has_old_attrs, true);
	atomic_store(&p.fake.n_open, 0);
	cr_assert_eq(try_open(&p, "d/f"), 0);
	cr_assert_eq(atomic_load(&p.fake.n_open), 2);
	cr_assert_eq(atomic_load(&p.fake.n_forced), 2);
	place_close(&p);
}
