/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/bench_loader.c - ranks of a training job, each with a trainer and workers that read ahead of it in order.
 *
 * bench_loader [--workers N] [--ahead N] [--tau-ns NS] [--direct 0|1] FILE LIST...
 *
 * A LIST for each rank, with a line for each sample: "offset TAB length". A worker takes the rank's next sample as soon as it is less than
 * --ahead samples before the trainer; the trainer takes them in order and computes --tau-ns for each: until max(its last
 * deadline, now) + tau. --direct 1 (the default): past the page cache, in units of 4 KiB.
 * Prints one line of JSON: wall_s, stall_s (of the rank that waited longest), bytes.
 *
 * In C, as 32 workers and 8 trainers in Python want more of two cores than what they measure.
 */
#include "tests/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096u
#define WORKERS_MAX 64u

struct job {
	const char *path;
	unsigned workers, ahead;
	uint64_t tau_ns;
	bool is_direct;
};

struct sample {
	uint64_t off, len;
};

struct rank {
	const struct job *job;
	struct sample *v;
	size_t n, next, used; /* with lock */
	bool *is_ready;
	uint64_t bytes, stall_ns;
	pthread_mutex_t lock;
	pthread_cond_t came, taken; /* for the trainer; for the workers */
	pthread_t trainer, worker[WORKERS_MAX];
};

static bool rank_take(struct rank *r, size_t *ret_i)
{
	bool is_any;

	pthread_mutex_lock(&r->lock);
	while (r->next < r->n && r->next >= r->used + r->job->ahead)
		pthread_cond_wait(&r->taken, &r->lock);
	is_any = r->next < r->n;
	*ret_i = r->next;
	r->next += is_any;
	pthread_mutex_unlock(&r->lock);
	return is_any;
}

static void sample_read(const struct rank *r, int fd, char *buf, const struct sample *one)
{
	uint64_t low = one->off / BLOCK * BLOCK, high = (one->off + one->len + BLOCK - 1) / BLOCK * BLOCK, at = low;

	while (at < one->off + one->len) {
		ssize_t n = pread(fd, buf + (at - low), high - at, (off_t)at);

		if (n <= 0)
			bench_die("read", r->job->path);
		at += (uint64_t)n;
	}
}

static void *worker_main(void *arg)
{
	struct rank *r = arg;
	int fd = open(r->job->path, O_RDONLY | (r->job->is_direct ? O_DIRECT : 0));
	uint64_t cap = 0;
	char *buf = NULL;
	size_t i;

	if (fd < 0)
		bench_die("open", r->job->path);
	for (i = 0; i < r->n; i++)
		cap = r->v[i].len > cap ? r->v[i].len : cap;
	if (posix_memalign((void **)&buf, BLOCK, cap + 2 * BLOCK))
		bench_die("memory", "");
	while (rank_take(r, &i)) {
		sample_read(r, fd, buf, &r->v[i]);
		pthread_mutex_lock(&r->lock);
		r->is_ready[i] = true;
		r->bytes += r->v[i].len;
		pthread_cond_signal(&r->came);
		pthread_mutex_unlock(&r->lock);
	}
	free(buf);
	close(fd);
	return NULL;
}

static void *trainer_main(void *arg)
{
	struct rank *r = arg;
	uint64_t deadline_ns = hfs_now_ns(), now;

	for (size_t i = 0; i < r->n; i++) {
		pthread_mutex_lock(&r->lock);
		while (!r->is_ready[i])
			pthread_cond_wait(&r->came, &r->lock);
		r->used = i + 1;
		pthread_cond_broadcast(&r->taken);
		pthread_mutex_unlock(&r->lock);
		now = hfs_now_ns();
		r->stall_ns += now > deadline_ns ? now - deadline_ns : 0;
		deadline_ns = (now > deadline_ns ? now : deadline_ns) + r->job->tau_ns;
		bench_sleep_until(deadline_ns);
	}
	return NULL;
}

static void rank_load(struct rank *r, const struct job *job, const char *path)
{
	FILE *f = fopen(path, "r");
	unsigned long long off, len;
	size_t cap = 0;

	if (!f)
		bench_die("list", path);
	*r = (struct rank){.job = job, .lock = PTHREAD_MUTEX_INITIALIZER, .came = PTHREAD_COND_INITIALIZER, .taken = PTHREAD_COND_INITIALIZER};
	while (fscanf(f, "%llu %llu", &off, &len) == 2) {
		if (r->n == cap) {
			cap = cap ? 2 * cap : 1024;
			r->v = realloc(r->v, cap * sizeof(*r->v));
			if (!r->v)
				bench_die("memory", path);
		}
		r->v[r->n++] = (struct sample){off, len};
	}
	fclose(f);
	r->is_ready = calloc(r->n + 1, sizeof(*r->is_ready));
	if (!r->is_ready)
		bench_die("memory", path);
}

static int parse(struct job *j, int argc, char **argv)
{
	int i = 1;

	*j = (struct job){.workers = 4, .ahead = 16, .is_direct = true};
	for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
		const char *v = argv[i + 1];

		if (!strcmp(argv[i], "--workers"))
			j->workers = (unsigned)strtoul(v, NULL, 10);
		else if (!strcmp(argv[i], "--ahead"))
			j->ahead = (unsigned)strtoul(v, NULL, 10);
		else if (!strcmp(argv[i], "--tau-ns"))
			j->tau_ns = strtoull(v, NULL, 10);
		else if (!strcmp(argv[i], "--direct"))
			j->is_direct = *v == '1';
		else
			return -EINVAL;
	}
	if (i + 2 > argc || j->workers == 0 || j->workers > WORKERS_MAX || j->ahead == 0)
		return -EINVAL;
	j->path = argv[i];
	return i + 1;
}

int main(int argc, char **argv)
{
	struct job job;
	int first = parse(&job, argc, argv), n = argc - first;
	uint64_t start, bytes = 0, stall = 0;
	struct rank *ranks;

	if (first < 0) {
		fprintf(stderr, "bench_loader: see the head of bench_loader.c\n");
		return 2;
	}
	ranks = calloc((size_t)n, sizeof(*ranks));
	if (!ranks)
		bench_die("memory", "");
	for (int k = 0; k < n; k++)
		rank_load(&ranks[k], &job, argv[first + k]);
	start = hfs_now_ns();
	for (int k = 0; k < n; k++) {
		for (unsigned i = 0; i < job.workers; i++)
			if (pthread_create(&ranks[k].worker[i], NULL, worker_main, &ranks[k]))
				bench_die("thread", "");
		if (pthread_create(&ranks[k].trainer, NULL, trainer_main, &ranks[k]))
			bench_die("thread", "");
	}
	for (int k = 0; k < n; k++) {
		pthread_join(ranks[k].trainer, NULL);
		for (unsigned i = 0; i < job.workers; i++)
			pthread_join(ranks[k].worker[i], NULL);
		bytes += ranks[k].bytes;
		stall = ranks[k].stall_ns > stall ? ranks[k].stall_ns : stall;
	}
	printf("{\"wall_s\": %.6f, \"stall_s\": %.6f, \"bytes\": %llu}\n", (double)(hfs_now_ns() - start) / 1e9, (double)stall / 1e9,
	       (unsigned long long)bytes);
	return 0;
}
