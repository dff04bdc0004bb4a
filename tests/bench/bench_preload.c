/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/bench_preload.c - how much of a bare pread loop the preload ring reaches, data in the page cache.
 *
 *	bench_preload DIR [ROUNDS [WORKERS]]
 *
 * Reads every regular file at the top of DIR (a mount, or any directory) three ways, in turn, ROUNDS times: a bare loop of WORKERS
 * threads with 1 MiB preads into a pre-touched ring of the loader's shape; libhintfs with as many workers; and a memcpy of
 * as many bytes within memory. A first pass, not counted, brings the files into the page cache. Prints medians and the
 * ratio preload / bare loop (goal: 0.9). Nothing is asserted.
 */
#include "tools/preload/hintfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE (1u << 20)
#define SLOT (16u << 20)
#define SLOTS 4u
#define FILES_MAX 4096u
#define ROUNDS_MAX 99u
#define WORKERS_MAX 64u

struct bench {
	const char *dir;
	int dir_fd;
	unsigned workers, rounds;
	char *names[FILES_MAX];
	uint64_t sizes[FILES_MAX];
	unsigned files;
	uint64_t bytes;
	char *ring; /* SLOT * SLOTS, touched */
	char *order;
	/* bare loop: next piece to read */
	atomic_uint_fast64_t next;
	int fds[FILES_MAX];
	uint64_t first_piece[FILES_MAX + 1];
	atomic_int failed;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_preload: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void files_find(struct bench *b)
{
	DIR *d = opendir(b->dir);
	struct dirent *e;
	struct stat st;
	size_t len = 0;

	if (!d)
		die(b->dir);
	b->dir_fd = dirfd(d); /* kept open with d until exit */
	while ((e = readdir(d)) && b->files < FILES_MAX) {
		if (fstatat(b->dir_fd, e->d_name, &st, 0) < 0 || !S_ISREG(st.st_mode) || !st.st_size)
			continue;
		b->names[b->files] = strdup(e->d_name);
		b->sizes[b->files] = (uint64_t)st.st_size;
		b->bytes += (uint64_t)st.st_size;
		b->first_piece[b->files + 1] = b->first_piece[b->files] + ((uint64_t)st.st_size + PIECE - 1) / PIECE;
		len += strlen(e->d_name) + 3;
		b->files++;
	}
	b->order = calloc(1, len + 1);
	if (!b->files || !b->order)
		die("no files");
	for (unsigned i = 0; i < b->files; i++)
		sprintf(b->order + strlen(b->order), "./%s\n", b->names[i]);
}

static void *bare_worker(void *arg)
{
	struct bench *b = arg;
	uint64_t piece;
	unsigned f = 0;

	while ((piece = atomic_fetch_add(&b->next, 1)) < b->first_piece[b->files]) {
		uint64_t off, want, got = 0;

		while (piece >= b->first_piece[f + 1])
			f++;
		off = (piece - b->first_piece[f]) * PIECE;
		want = b->sizes[f] - off < PIECE ? b->sizes[f] - off : PIECE;
		while (got < want) {
			ssize_t n = pread(b->fds[f], b->ring + piece % (SLOT / PIECE * SLOTS) * PIECE + got, want - got,
					  (off_t)(off + got));

			if (n <= 0) {
				atomic_store(&b->failed, 1);
				return NULL;
			}
			got += (uint64_t)n;
		}
	}
	return NULL;
}

static double bare_run(struct bench *b)
{
	pthread_t t[WORKERS_MAX];
	double start = now_s();
	unsigned i;

	atomic_store(&b->next, 0);
	for (i = 0; i < b->files; i++)
		if ((b->fds[i] = openat(b->dir_fd, b->names[i], O_RDONLY | O_CLOEXEC)) < 0)
			die(b->names[i]);
	for (i = 0; i < b->workers; i++)
		if (pthread_create(&t[i], NULL, bare_worker, b))
			die("thread");
	for (i = 0; i < b->workers; i++)
		pthread_join(t[i], NULL);
	for (i = 0; i < b->files; i++)
		close(b->fds[i]);
	if (atomic_load(&b->failed))
		die("read");
	return now_s() - start;
}

/* The loader is open and its ring touched before the clock starts, as the bare loop's ring is. */
static double preload_run(struct bench *b, struct hintfs_loader *l, uint64_t epoch)
{
	struct hintfs_batch *batch;
	uint64_t bytes = 0;
	double start = now_s();
	int r = hintfs_loader_set_epoch(l, epoch);

	while (!r && (r = hintfs_loader_next_batch(l, -1, &batch)) == 0) {
		for (uint32_t i = 0; i < batch->n; i++)
			bytes += batch->length[i];
		(void)hintfs_batch_release(batch, NULL);
	}
	if (r != 1 || bytes != b->bytes) {
		fprintf(stderr, "bench_preload: %s\n", r < 0 ? hintfs_last_error() : "bytes are missing");
		exit(1);
	}
	return now_s() - start;
}

static double memcpy_run(const struct bench *b)
{
	uint64_t half = (uint64_t)SLOT * SLOTS / 2, done = 0;
	double start = now_s();

	for (; done < b->bytes; done += PIECE)
		memcpy(b->ring + done % half, b->ring + half + done % half, b->bytes - done < PIECE ? b->bytes - done : PIECE);
	return now_s() - start;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int main(int argc, char **argv)
{
	static struct bench b;
	struct hintfs_opts o = HINTFS_OPTS_INIT;
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l;
	double bare[ROUNDS_MAX], pre[ROUNDS_MAX], copy[ROUNDS_MAX], mb, mp, mc;

	if (argc < 2) {
		fputs("usage: bench_preload DIR [ROUNDS [WORKERS]]\n", stderr);
		return 1;
	}
	b.dir = argv[1];
	b.rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 9;
	b.workers = argc > 3 ? (unsigned)atoi(argv[3]) : 2;
	if (!b.rounds || b.rounds > ROUNDS_MAX || !b.workers || b.workers > WORKERS_MAX)
		return 1;
	files_find(&b);
	b.ring = mmap(NULL, (size_t)SLOT * SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b.ring == MAP_FAILED)
		die("ring");
	(void)bare_run(&b); /* into the page cache */
	o.mount = b.dir;
	o.order_text = b.order;
	o.order_text_bytes = strlen(b.order);
	o.batch_bytes = SLOT;
	o.ring_slots = SLOTS;
	o.workers = b.workers;
	o.max_open_files = FILES_MAX;
	o.flags = HINTFS_OPEN_SPLIT | HINTFS_OPEN_NO_HINTS;
	if (hintfs_loader_open(&o, &l) < 0) {
		fprintf(stderr, "bench_preload: %s\n", hintfs_last_error());
		return 1;
	}
	for (unsigned i = 0; i < b.rounds; i++) {
		/* Who goes first alternates: the second finds the files warmer in the processor's caches. */
		if (i % 2)
			pre[i] = preload_run(&b, l, i);
		bare[i] = bare_run(&b);
		if (i % 2 == 0)
			pre[i] = preload_run(&b, l, i);
		copy[i] = memcpy_run(&b);
	}
	(void)hintfs_loader_stats(l, &s);
	(void)hintfs_loader_close(l);
	mb = median(bare, b.rounds);
	mp = median(pre, b.rounds);
	mc = median(copy, b.rounds);
	printf("preload: %u files, %.1f MB, %u workers, %u rounds, backend %s\n", b.files, (double)b.bytes / 1e6, b.workers,
	       b.rounds, s.backend);
	printf("bare pread loop  %.3f GB/s\nlibhintfs        %.3f GB/s\nmemcpy, 1 thread %.3f GB/s\n", (double)b.bytes / mb / 1e9,
	       (double)b.bytes / mp / 1e9, (double)b.bytes / mc / 1e9);
	printf("ratio preload / bare loop %.3f (goal 0.9)\n", mb / mp);
	return 0;
}
