/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/test_control.c - the control files without a mount (fs/control.h) on the real engine and a small origin:
 * what a write returns, what stays, what is said, interrupts, removed streams, the end.
 */
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "cache/io.h"
#include "fs/control.h"
#include "fs/engine.h"
#include "fs/hintfs.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hintfs h;
static struct control *c;
static char dir[64];

struct call {
	struct control_req r; /* first */
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned n_done;
	ssize_t result;
	char data[65536];
};
static struct call call = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void on_done(struct control_req *r, ssize_t result, const char *data)
{
	struct call *k = (struct call *)r;

	pthread_mutex_lock(&k->lock);
	k->n_done++;
	k->result = result;
	if (data && result > 0)
		memcpy(k->data, data, (size_t)result);
	pthread_cond_signal(&k->cond);
	pthread_mutex_unlock(&k->lock);
}

static uint64_t begin(void)
{
	uint64_t id = 0;

	call.n_done = 0;
	call.r.done = on_done;
	call.r.tid = getpid();
	cr_assert_eq(control_req_begin(c, &call.r, &id), 0);
	return id;
}

static ssize_t finish(void)
{
	pthread_mutex_lock(&call.lock);
	while (call.n_done == 0)
		pthread_cond_wait(&call.cond, &call.lock);
	pthread_mutex_unlock(&call.lock);
	cr_assert_eq(call.n_done, 1);
	return call.result;
}

static struct control_file *open_file(enum control_kind parent, const char *name, int flags)
{
	struct control_node n;
	struct control_file *f = NULL;

	cr_assert_eq(control_make(c, parent, name, &n), 0);
	cr_assert_eq(control_open(c, &n, flags, &f), 0);
	return f;
}

static ssize_t put(struct control_file *f, const char *text)
{
	begin();
	control_write(f, text, strlen(text), &call.r);
	return finish();
}

static ssize_t flush(struct control_file *f)
{
	begin();
	control_flush(f, &call.r);
	return finish();
}

static const char *get(enum control_kind parent, const char *name)
{
	static char text[1 << 20];
	struct control_file *f = open_file(parent, name, O_RDONLY);
	size_t at = 0;

	do {
		begin();
		control_read(f, at, sizeof(call.data), &call.r);
		cr_assert_geq(finish(), 0);
		memcpy(text + at, call.data, (size_t)call.result);
		at += (size_t)call.result;
	} while (call.result > 0);
	text[at] = '\0';
	control_release(f);
	return text;
}

static void order_is(const char *want)
{
	const char *have = get(CONTROL_ROOT, "order");

	cr_assert_str_eq(have, want, "%s", have);
}

static void make_file(const char *name, unsigned bytes)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, bytes) == 0);
	close(fd);
}

static void set_up(void)
{
	struct engine_config cfg = {.cache = {.memory_bytes = 16 << 20, .chunk_bytes = 1 << 20}, .seed = 1};
	char path[128];

	cr_assert_eq(hfs_log_open("stderr", HFS_LOG_ERROR), 0);
	strcpy(dir, "/tmp/hintfs-unit-control.XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	for (char name[] = "f0"; name[1] <= '9'; name[1]++)
		make_file(name, 1000);
	make_file("has{a,b}", 10);
	snprintf(path, sizeof(path), "%s/sub", dir);
	cr_assert_eq(mkdir(path, 0700), 0);
	make_file("sub/b", 1);
	make_file("sub/a", 1);
	h = (struct hintfs){.io = cache_io_system(), .started_ns = hfs_now_ns()};
	h.opts.source = dir;
	h.opts.mountpoint = (char[]){"/mnt/d"};
	cr_assert_eq(origin_create(dir, h.io, &h.origin), 0);
	cfg.cache.origin = h.origin;
	cfg.cache.io = h.io;
	cr_assert_eq(engine_create(&cfg, &h.engine), 0);
	cr_assert_eq(meta_create(&h.meta), 0);
	cr_assert_eq(control_create(&h, &c), 0);
}

static void tear_down(void)
{
	char command[128];

	engine_shutdown(h.engine);
	meta_shutdown(h.meta);
	cr_assert(control_shutdown(c, 5000));
	cr_assert(meta_destroy(h.meta, 5000)); /* its last jobs let go of control files */
	control_destroy(c);
	cr_assert(engine_destroy(h.engine, 5000));
	origin_destroy(h.origin);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(control, .init = set_up, .fini = tear_down);

Test(control, errno_table)
{
	static const struct {
		const char *line;
		int err;
		const char *reason;
	} rows[] = {
		{"@bach 1\n", -EINVAL, "did you mean @batch?"},
		{"f1\tx\t1\n", -EINVAL, "bad offset"},
		{"f1\t1\n", -EINVAL, "2 columns"},
		{"f1\r\n", -EINVAL, "CR"},
		{"none\n", -ENOENT, "none"},
		{"f1 f2\n", -ENOENT, "2 names on one line"},
		{"sub/none/x\n", -ENOENT, "no such file"},
		{"f1/x\n", -ENOENT, "no such file"},
		{"none/\n", -ENOENT, "no such file"},
		{"f1/\n", -ENOENT, "cannot list"},
		{"../x\n", -EXDEV, "\"..\""},
		{"/etc/passwd\n", -EXDEV, "/mnt/d"},
		{"sub\n", -EISDIR, "sub/"},
		{"./\tx\n", -EINVAL, "2 columns"},
		{"/mnt/d\n", -EISDIR, "root of the mount"},
		{"f1\t1000\t1\n", -ERANGE, "1000 bytes"},
		{"{1..4000}{1..4000}\n", -ENOSPC, "too many results"},
		{"::\n", -EINVAL, "no result"},
		{"{f1,}\n", -EINVAL, "empty"},
		{"{f1,../x}\n", -EXDEV, "\"..\""},
		{"{f1,none}\n", -ENOENT, "none"},
		{"@repeat 0\n", -EINVAL, "usage"},
	};
	struct control_file *f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_TRUNC);

	cr_assert_eq(put(f, "f9\n"), 3);
	control_release(f);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_TRUNC);
		cr_assert_eq(put(f, rows[i].line), rows[i].err, "%s%zd", rows[i].line, call.result);
		cr_assert_eq(put(f, "f1\n"), rows[i].err, "the handle is poisoned");
		cr_assert_eq(flush(f), 0);
		control_release(f);
		order_is("f9\n");
		cr_assert(strstr(get(CONTROL_ROOT, "errors"), rows[i].reason), "%s", rows[i].line);
		cr_assert_eq(control_truncate(c, &(struct control_node){.kind = CONTROL_ERRORS}), 0);
		cr_assert_str_empty(get(CONTROL_ROOT, "errors"));
	}
}

Test(control, short_count_up_to_the_bad_line)
{
	struct control_file *f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_TRUNC);

	cr_assert_eq(put(f, "f1\n# c\nf2\n@bach\nf3\n"), 10);
	cr_assert_eq(put(f, "@bach\nf3\n"), -EINVAL);
	control_release(f);
	order_is("f1\nf2\n");
	f = open_file(CONTROL_ROOT, "order", O_WRONLY);
	cr_assert_eq(put(f, "f3\n@ba"), 6); /* the bad line began in a write that was taken */
	cr_assert_eq(put(f, "ch\nf4\n"), -EINVAL);
	control_release(f);
	order_is("f1\nf2\nf3\n");
}

Test(control, replace_append_cancel)
{
	struct control_file *f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_TRUNC);

	cr_assert_eq(flush(f), 0); /* bash flushes before it writes */
	cr_assert_eq(put(f, "f1\n"), 3);
	cr_assert_eq(put(f, "f2\nf"), 4);
	cr_assert_eq(put(f, "3"), 1);
	cr_assert_eq(flush(f), 0);
	control_release(f);
	order_is("f1\nf2\nf3\n");
	f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_APPEND);
	cr_assert_eq(put(f, "{f4,f5}\nsub/\nhas{a,b}\n"), 22);
	control_release(f);
	order_is("f1\nf2\nf3\nf4\nf5\nsub/a\nsub/b\n\"has{a,b}\"\n");
	f = open_file(CONTROL_ROOT, "order", O_RDONLY);
	control_release(f);
	f = open_file(CONTROL_ROOT, "order", O_WRONLY | O_TRUNC);
	cr_assert_eq(put(f, "# only this\n"), 12);
	order_is("f1\nf2\nf3\nf4\nf5\nsub/a\nsub/b\n\"has{a,b}\"\n");
	control_release(f);
	order_is("");
}

Test(control, many_entries_in_one_write_come_out_in_order)
{
	static char text[200000];
	struct control_file *f = open_file(CONTROL_STREAMS, "big", O_WRONLY | O_TRUNC);
	size_t len = 0;

	for (unsigned i = 0; i < 10000; i++)
		len += (size_t)sprintf(text + len, "f%u\t%u\t%u\n", i % 10, i % 999 + 1, i + 1);
	cr_assert_eq(put(f, text), (ssize_t)len);
	control_release(f);
	cr_assert_str_eq(get(CONTROL_STREAMS, "big"), text);
}

Test(control, a_removed_stream)
{
	struct control_file *f = open_file(CONTROL_STREAMS, "s", O_WRONLY | O_CREAT);
	struct control_node n;

	cr_assert_eq(put(f, "f1\n"), 3);
	cr_assert_eq(control_remove(c, CONTROL_STREAMS, "s"), 0);
	cr_assert_eq(put(f, "f2\n"), -ECANCELED);
	control_release(f);
	cr_assert_eq(control_lookup(c, CONTROL_STREAMS, "s", &n), -ENOENT);
	cr_assert_eq(control_remove(c, CONTROL_STREAMS, "s"), -ENOENT);
	cr_assert_eq(control_remove(c, CONTROL_STREAMS, "default"), -EPERM);
	cr_assert_eq(control_remove(c, CONTROL_ROOT, "order"), -EPERM);
	cr_assert_eq(control_make(c, CONTROL_STREAMS, "a\nb", &n), -EINVAL);
	cr_assert_eq(control_make(c, CONTROL_ROOT, "new", &n), -ENOENT);
}

Test(control, streams_have_a_limit)
{
	struct control_node n;
	char name[16];
	unsigned made = 1; /* default */
	int rc = 0;

	while (rc == 0 && made <= SCHED_STREAMS_MAX) {
		snprintf(name, sizeof(name), "s%u", made);
		rc = control_make(c, CONTROL_STREAMS, name, &n);
		made += rc == 0;
	}
	cr_assert_eq(rc, -ENOSPC);
	cr_assert_eq(made, SCHED_STREAMS_MAX);
	cr_assert_eq(control_remove(c, CONTROL_STREAMS, "s5"), 0);
	cr_assert_eq(control_make(c, CONTROL_STREAMS, "again", &n), 0);
}

Test(control, wait_and_interrupt)
{
	struct control_file *f = open_file(CONTROL_ROOT, "wait", O_WRONLY), *r;
	uint64_t id;

	cr_assert_eq(put(f, "f1\n"), 3);
	cr_assert_eq(put(f, "f2"), 2);
	cr_assert_eq(put(f, "f3\nf4\n"), 3, "one line a write");
	cr_assert_eq(put(f, "none\n"), -ENOENT);
	cr_assert_eq(put(f, "stream s batch 1\n"), -ENOENT);
	cr_assert_eq(put(f, "batch\n"), -ENOENT); /* a file of that name might exist */
	cr_assert_eq(put(f, "batch x\n"), -EINVAL);
	cr_assert_eq(put(f, "f1\t0\t1\n"), -EINVAL);
	control_release(f);
	r = open_file(CONTROL_ROOT, "record", O_RDONLY);
	id = begin();
	control_read(r, 0, 4096, &call.r);
	control_interrupt(c, id);
	cr_assert_eq(finish(), -EINTR);
	control_interrupt(c, id); /* nobody any more */
	id = begin();
	control_interrupt(c, id); /* before it is handed over */
	control_read(r, 0, 4096, &call.r);
	cr_assert_eq(finish(), -EINTR);
	control_release(r);
}

Test(control, the_end_answers_everybody)
{
	struct control_file *r = open_file(CONTROL_ROOT, "record", O_RDONLY);
	struct control_node n = {.kind = CONTROL_STATUS};
	struct control_file *f;
	uint64_t id;

	begin();
	control_read(r, 0, 4096, &call.r);
	cr_assert(control_shutdown(c, 5000));
	cr_assert_eq(finish(), -ESHUTDOWN);
	cr_assert_eq(control_req_begin(c, &call.r, &id), -ESHUTDOWN);
	cr_assert_eq(control_open(c, &n, O_RDONLY, &f), -ESHUTDOWN);
	control_release(r);
}

Test(control, access_and_kinds)
{
	struct control_file *f;
	struct control_node n;

	cr_assert_eq(control_lookup(c, CONTROL_ROOT, "status", &n), 0);
	cr_assert_eq(control_open(c, &n, O_WRONLY, &f), -EACCES);
	cr_assert_eq(control_lookup(c, CONTROL_ROOT, "streams", &n), 0);
	cr_assert_eq(control_open(c, &n, O_RDONLY, &f), -EISDIR);
	cr_assert(!control_node_exists(c, &(struct control_node){.kind = CONTROL_STREAM, .slot = 7, .serial = 9}));
	cr_assert(strstr(get(CONTROL_ROOT, "status"), "\nstream.default.entries 0\n"));
	cr_assert(strstr(get(CONTROL_ROOT, "metrics"), "hintfs_origin_bytes_total{mount=\"/mnt/d\"} 0\n"));
	f = open_file(CONTROL_ROOT, "prefetch", O_WRONLY);
	cr_assert_eq(put(f, "pause\n"), 6);
	cr_assert_eq(put(f, "stop\n"), -EINVAL);
	control_release(f);
	cr_assert_str_eq(get(CONTROL_ROOT, "prefetch"), "pause\n");
}
