/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/control/stress_control.c - the control files without a mount, from many threads at once: writers of
 * several streams, waits, reads of record and status, interrupts that come at any time, streams removed under their
 * writers, and at last a shutdown in the middle of it all. For the sanitizers; also checks that each request is
 * answered exactly once and that what a writer was told is what the stream holds.
 *
 * exit: 0 passed, 1 failed
 */
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "cache/io.h"
#include "fs/control.h"
#include "fs/engine.h"
#include "fs/hintfs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 40
#define WRITERS 4
#define ROUNDS 30
#define CHECK(x) ((x) ? (void)0 : fail(__LINE__, #x))

static void fail(int line, const char *what)
{
	fprintf(stderr, "stress_control.c:%d: %s\n", line, what);
	_exit(1);
}

struct bench {
	struct hintfs h;
	struct control *c;
	_Atomic bool is_over, is_stopping;
	_Atomic uint64_t last_id; /* of a request under way: food for the interrupter */
	_Atomic unsigned answers;
};

/* A request and its answer, waited for as a FUSE client does. */
struct call {
	struct control_req r; /* first */
	struct bench *b;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool is_done;
	ssize_t result;
	char data[4096];
};

static void on_done(struct control_req *r, ssize_t result, const char *data)
{
	struct call *call = (struct call *)r;

	pthread_mutex_lock(&call->lock);
	CHECK(!call->is_done);
	call->is_done = true;
	call->result = result;
	if (data && result > 0)
		memcpy(call->data, data, (size_t)result < sizeof(call->data) ? (size_t)result : sizeof(call->data));
	atomic_fetch_add(&call->b->answers, 1);
	pthread_cond_signal(&call->cond);
	pthread_mutex_unlock(&call->lock);
}

static bool call_begin(struct bench *b, struct call *call)
{
	uint64_t id;

	memset(call, 0, sizeof(*call));
	pthread_mutex_init(&call->lock, NULL);
	pthread_cond_init(&call->cond, NULL);
	call->b = b;
	call->r.done = on_done;
	call->r.tid = getpid();
	if (control_req_begin(b->c, &call->r, &id) < 0)
		return false;
	atomic_store(&b->last_id, id);
	return true;
}

static ssize_t call_wait(struct call *call)
{
	pthread_mutex_lock(&call->lock);
	while (!call->is_done)
		pthread_cond_wait(&call->cond, &call->lock);
	pthread_mutex_unlock(&call->lock);
	pthread_mutex_destroy(&call->lock);
	pthread_cond_destroy(&call->cond);
	return call->result;
}

static ssize_t do_write(struct bench *b, struct control_file *f, const char *text, size_t len)
{
	struct call call;

	if (!call_begin(b, &call))
		return -ESHUTDOWN;
	control_write(f, text, len, &call.r);
	return call_wait(&call);
}

static ssize_t do_read(struct bench *b, struct control_file *f, uint64_t off, char *buf, size_t size)
{
	struct call call;
	ssize_t n;

	if (!call_begin(b, &call))
		return -ESHUTDOWN;
	control_read(f, off, size, &call.r);
	n = call_wait(&call);
	if (n > 0)
		memcpy(buf, call.data, (size_t)n < sizeof(call.data) ? (size_t)n : sizeof(call.data));
	return n;
}

static void do_close(struct bench *b, struct control_file *f)
{
	struct call call;

	if (call_begin(b, &call)) {
		control_flush(f, &call.r);
		call_wait(&call);
	}
	control_release(f);
}

static int open_name(struct bench *b, enum control_kind dir, const char *name, int flags, struct control_file **ret)
{
	struct control_node n;
	int rc = control_make(b->c, dir, name, &n);

	return rc < 0 ? rc : control_open(b->c, &n, flags, ret);
}

/* ---- the threads ---------------------------------------------------------------------------------------------- */

struct writer {
	struct bench *b;
	unsigned no;
};

/* Orders of growing length in pieces that cut lines; what was taken is read back. */
static void *write_orders(void *arg)
{
	struct writer *w = arg;
	char name[16], text[8192], back[4096];
	struct control_file *f;

	snprintf(name, sizeof(name), "rank%u", w->no);
	for (unsigned round = 0; round < ROUNDS && !atomic_load(&w->b->is_over); round++) {
		size_t len = 0, at = 0, piece = 7 + round * 13;
		unsigned lines = 20 + round;

		for (unsigned i = 0; i < lines; i++)
			len += (size_t)sprintf(text + len, "f%02u\t%u\t%u\n", (i + w->no) % FILES, i, w->no + 1);
		if (open_name(w->b, CONTROL_STREAMS, name, O_RDWR | O_TRUNC, &f) < 0)
			break;
		while (at < len) {
			size_t n = len - at < piece ? len - at : piece;
			ssize_t taken = do_write(w->b, f, text + at, n);

			if (taken < 0) {
				CHECK(taken == -ESHUTDOWN || taken == -EINTR || taken == -ECANCELED);
				break;
			}
			at += (size_t)taken;
			CHECK((size_t)taken == n || atomic_load(&w->b->is_stopping)); /* cut short by the end only */
		}
		if (at == len) {
			ssize_t n = do_read(w->b, f, 0, back, sizeof(back));

			CHECK(n == -ESHUTDOWN || (n > 0 && memcmp(back, text, (size_t)n) == 0));
		}
		do_close(w->b, f);
	}
	return NULL;
}

/* A stream that comes and goes while somebody writes to it. */
static void *make_and_remove(void *arg)
{
	struct bench *b = arg;
	struct control_file *f;

	while (!atomic_load(&b->is_over)) {
		ssize_t n;

		if (open_name(b, CONTROL_STREAMS, "brief", O_WRONLY | O_TRUNC, &f) < 0)
			break;
		n = do_write(b, f, "f01\nf02\n", 8);
		CHECK(n == 8 || n < 0 || atomic_load(&b->is_stopping));
		(void)control_remove(b->c, CONTROL_STREAMS, "brief");
		n = do_write(b, f, "f03\nf04", 7);
		CHECK(n == -ECANCELED || n == -ESHUTDOWN);
		do_close(b, f);
	}
	return NULL;
}

static void *wait_for_files(void *arg)
{
	struct bench *b = arg;
	struct control_file *f;
	char line[32];

	if (open_name(b, CONTROL_ROOT, "wait", O_WRONLY, &f) < 0)
		return NULL;
	for (unsigned i = 0; !atomic_load(&b->is_over); i++) {
		size_t len = (size_t)sprintf(line,
					     i % 5 == 4	  ? "batch %u\n"
					     : i % 7 == 6 ? "none%u\n"
							  : "f%02u\n",
					     i % FILES);
		ssize_t n = do_write(b, f, line, len);

		CHECK(n == (ssize_t)len || n == -EINTR || n == -ESHUTDOWN || n == -ENOENT || n == -ECANCELED);
	}
	do_close(b, f);
	return NULL;
}

static void *read_texts(void *arg)
{
	static const char *const names[] = {"status", "errors", "metrics", "README", "prefetch", "order"};
	struct bench *b = arg;
	char buf[4096];

	for (unsigned i = 0; !atomic_load(&b->is_over); i++) {
		struct control_file *f;
		ssize_t n = 1;

		if (open_name(b, CONTROL_ROOT, names[i % 6], O_RDONLY, &f) < 0)
			break;
		for (uint64_t off = 0; n > 0; off += (uint64_t)n)
			n = do_read(b, f, off, buf, sizeof(buf));
		CHECK(n == 0 || n == -ESHUTDOWN);
		do_close(b, f);
	}
	return NULL;
}

/* Nobody reads data here, so these reads end by interrupts or at the end. */
static void *read_record(void *arg)
{
	struct bench *b = arg;
	struct control_file *f;
	char buf[4096];
	ssize_t n = 0;

	if (open_name(b, CONTROL_ROOT, "record", O_RDONLY, &f) < 0)
		return NULL;
	while (!atomic_load(&b->is_over) && n != -ESHUTDOWN) {
		n = do_read(b, f, 0, buf, sizeof(buf));
		CHECK(n > 0 || n == -EINTR || n == -ESHUTDOWN);
	}
	do_close(b, f);
	return NULL;
}

static void *interrupt_all(void *arg)
{
	struct bench *b = arg;
	struct timespec pause = {.tv_nsec = 20000};

	while (!atomic_load(&b->is_over)) {
		uint64_t last = atomic_load(&b->last_id);

		for (uint64_t id = last > 8 ? last - 8 : 0; id <= last; id++)
			control_interrupt(b->c, id);
		nanosleep(&pause, NULL); /* paces the food of the others; nothing waits for it */
	}
	return NULL;
}

/* ---- set-up
 * ---------------------------------------------------------------------------------------------------------- */

static void make_origin(char *dir)
{
	char path[128];

	CHECK(mkdtemp(dir) != NULL);
	for (unsigned i = 0; i < FILES; i++) {
		int fd;

		snprintf(path, sizeof(path), "%s/f%02u", dir, i);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && ftruncate(fd, 8192) == 0);
		close(fd);
	}
}

static void remove_origin(const char *dir)
{
	char path[128];

	for (unsigned i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "%s/f%02u", dir, i);
		unlink(path);
	}
	rmdir(dir);
}

static void set_up(struct bench *b, const char *dir)
{
	struct engine_config cfg = {.cache = {.memory_bytes = 16 << 20, .chunk_bytes = 1 << 20}, .seed = 1};

	b->h.opts.source = strdup(dir);
	b->h.opts.mountpoint = strdup("/mnt/none");
	b->h.started_ns = hfs_now_ns();
	b->h.io = cache_io_system();
	CHECK(origin_create(dir, b->h.io, &b->h.origin) == 0);
	cfg.cache.origin = b->h.origin;
	cfg.cache.io = b->h.io;
	CHECK(engine_create(&cfg, &b->h.engine) == 0);
	CHECK(meta_create(&b->h.meta) == 0);
	CHECK(control_create(&b->h, &b->c) == 0);
}

static void tear_down(struct bench *b)
{
	engine_shutdown(b->h.engine);
	meta_shutdown(b->h.meta);
	CHECK(control_shutdown(b->c, 5000));
	CHECK(meta_destroy(b->h.meta, 5000));
	control_destroy(b->c);
	CHECK(engine_destroy(b->h.engine, 5000));
	origin_destroy(b->h.origin);
	free(b->h.opts.source);
	free(b->h.opts.mountpoint);
}

int main(void)
{
	(void)!hfs_log_open("stderr", HFS_LOG_ERROR); /* rejected lines are part of the plan */
	char dir[] = "/tmp/hintfs-stress-control.XXXXXX";
	struct bench *b = calloc(1, sizeof(*b));
	struct writer writers[WRITERS];
	pthread_t threads[WRITERS + 5];
	unsigned n = 0;

	CHECK(b != NULL);
	make_origin(dir);
	set_up(b, dir);
	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){b, i};
		CHECK(pthread_create(&threads[n++], NULL, write_orders, &writers[i]) == 0);
	}
	CHECK(pthread_create(&threads[n++], NULL, make_and_remove, b) == 0);
	CHECK(pthread_create(&threads[n++], NULL, wait_for_files, b) == 0);
	CHECK(pthread_create(&threads[n++], NULL, read_texts, b) == 0);
	CHECK(pthread_create(&threads[n++], NULL, read_record, b) == 0);
	CHECK(pthread_create(&threads[n++], NULL, interrupt_all, b) == 0);
	for (unsigned i = 0; i < WRITERS - 1; i++) /* the last one meets the shutdown */
		pthread_join(threads[i], NULL);
	atomic_store(&b->is_stopping, true);
	CHECK(control_shutdown(b->c, 10000));
	atomic_store(&b->is_over, true);
	for (unsigned i = WRITERS - 1; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("%u requests, each answered once\n", atomic_load(&b->answers));
	tear_down(b);
	remove_origin(dir);
	free(b);
	return 0;
}
