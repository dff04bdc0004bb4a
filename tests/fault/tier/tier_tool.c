/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_tool.c - the disk tier on a real file system, driven by ../test_tier.py and by hand.
 *
 * tier_tool [options] DIR fill|read|drop|scrub|hold|bench|start     --files=N --bytes=N of each file  --from=N first file number  --gen=N
 *   --size=BYTES budget  --free=PCT  --chunk=BYTES  --dataset=TEXT  --apart=PATH  --threads=N
 * Prints "key value" lines; exit 0, 1 (wrong bytes or refused), 2 (usage). hold: prints "ready 1" and lives until stdin ends, a line
 * "read" or "fill" there does that.
 */
#include "tests/fault/tier/rig.h"

#include "cache/base/arith.h"
#include "cache/base/time.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tool {
	struct rig r;
	uint64_t bytes;
	uint32_t files, from, gen, threads;
	const char *dir, *apart;
	_Atomic uint32_t next;
	_Atomic uint64_t hits, chunks, read_bytes;
	double rate;
};

static void show(const char *key, uint64_t value)
{
	(void)printf("%s %llu\n", key, (unsigned long long)value);
	(void)fflush(stdout);
}

static struct rig_file file(const struct tool *x, uint32_t i)
{
	return (struct rig_file){.no = x->from + i, .gen = x->gen, .size = x->bytes};
}

static void fill(struct tool *x)
{
	const uint32_t chunk = x->r.cfg.chunk_bytes;
	uint8_t *data = rig_alloc(chunk);
	uint64_t refused = 0;
	char path[64];
	int err;

	for (uint32_t i = 0; i < x->files; i++) {
		struct rig_file f = file(x, i);
		struct hfs_identity id = rig_identity(&f);

		rig_path(&f, path);
		for (uint64_t c = 0; c * chunk < f.size; c++) {
			uint32_t len = hfs_chunk_len(f.size, chunk, c);

			rig_fill(&f, c * chunk, data, len);
			do {
				err = tier_admit(x->r.t, &id, path, c, data, len, 0);
				if (err == -EAGAIN)
					(void)tier_wait_idle(x->r.t, false, 20);
			} while (err == -EAGAIN && rig_stats(&x->r).state == TIER_ON);
			refused += err != 0 && err != -EEXIST;
		}
	}
	(void)tier_wait_idle(x->r.t, true, 60000);
	show("refused_at_once", refused);
	free(data);
}

static void *read_some(void *arg)
{
	struct tool *x = arg;
	const uint32_t chunk = x->r.cfg.chunk_bytes;
	uint8_t *data = rig_alloc(chunk);
	char path[64];
	uint32_t i;

	while ((i = atomic_fetch_add(&x->next, 1)) < x->files) {
		struct rig_file f = file(x, i);
		struct hfs_identity id = rig_identity(&f);

		rig_path(&f, path);
		for (uint64_t c = 0; c * chunk < f.size; c++) {
			uint32_t len = hfs_chunk_len(f.size, chunk, c);

			atomic_fetch_add(&x->chunks, 1);
			if (!tier_read(x->r.t, &id, path, c, 0, len, data))
				continue;
			rig_check(rig_is_right(&f, c * chunk, data, len < 4096 ? len : 4096) &&
					  rig_is_right(&f, c * chunk + len - 1, data + len - 1, 1),
				  "WRONG BYTES of file %u", f.no);
			atomic_fetch_add(&x->hits, 1);
			atomic_fetch_add(&x->read_bytes, len);
		}
	}
	free(data);
	return NULL;
}

static double in_threads(struct tool *x, void *(*fn)(void *arg))
{
	uint64_t start_ns = hfs_now_ns();
	pthread_t threads[64];

	atomic_store(&x->next, 0);
	atomic_store(&x->hits, 0);
	atomic_store(&x->chunks, 0);
	atomic_store(&x->read_bytes, 0);
	for (uint32_t i = 0; i < x->threads; i++)
		rig_check(pthread_create(&threads[i], NULL, fn, x) == 0, "thread");
	for (uint32_t i = 0; i < x->threads; i++)
		pthread_join(threads[i], NULL);
	return (double)(hfs_now_ns() - start_ns) / 1e9;
}

static void read_all(struct tool *x)
{
	double s = in_threads(x, read_some);

	x->rate = (double)x->read_bytes / s / 1e6;
	show("hits", x->hits);
	show("chunks", x->chunks);
	show("read_bytes", x->read_bytes);
	show("read_mb_per_s", (uint64_t)x->rate);
}

static void show_stats(struct tool *x)
{
	struct tier_stats s = rig_stats(&x->r);

	(void)printf("state %s\ncause %s\n", tier_state_name(s.state), tier_cause_name(s.cause));
	show("bytes", s.bytes);
	show("inodes", s.inodes);
	show("files_big", s.files_big);
	show("files_small", s.files_small);
	show("tier_chunks", s.chunks);
	show("index_bytes", s.index_bytes);
	show("bad", s.bad);
	show("admitted", s.admitted);
	show("skipped_full", s.skipped_full);
	show("culled_bytes", s.culled_bytes);
	show("errors_nospace", s.errors[TIER_CAUSE_NOSPC]);
	show("errors_io", s.errors[TIER_CAUSE_EIO]);
}

static void drop_page_cache(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	sync();
	if (fd < 0 || write(fd, "3", 1) != 1)
		(void)fputs("the page cache could not be dropped\n", stderr);
	if (fd >= 0)
		(void)close(fd);
}

/* ---- the same bytes without us ---- */

static void *read_raw(void *arg)
{
	struct tool *x = arg;
	const uint32_t chunk = x->r.cfg.chunk_bytes;
	uint8_t *data = rig_alloc(chunk);
	char path[512], name[64];
	ssize_t n;
	uint32_t i;
	int fd;

	while ((i = atomic_fetch_add(&x->next, 1)) < x->files) {
		struct rig_file f = file(x, i);

		rig_path(&f, name);
		(void)snprintf(path, sizeof(path), "%s.plain/%s", x->dir, strrchr(name, '/') + 1);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		rig_check(fd >= 0, "%s", path);
		for (uint64_t off = 0; (n = pread(fd, data, chunk, (off_t)off)) > 0; off += (uint64_t)n)
			atomic_fetch_add(&x->read_bytes, (uint64_t)n);
		(void)close(fd);
	}
	free(data);
	return NULL;
}

static void write_raw(struct tool *x)
{
	uint8_t *data = rig_alloc(x->bytes);
	char path[512], name[64];

	(void)snprintf(path, sizeof(path), "mkdir -p %s.plain", x->dir);
	rig_check(system(path) == 0, "mkdir");
	for (uint32_t i = 0; i < x->files; i++) {
		struct rig_file f = file(x, i);
		int fd;

		rig_path(&f, name);
		(void)snprintf(path, sizeof(path), "%s.plain/%s", x->dir, strrchr(name, '/') + 1);
		rig_fill(&f, 0, data, f.size);
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		rig_check(fd >= 0 && write(fd, data, f.size) == (ssize_t)f.size, "%s", path);
		(void)close(fd);
	}
	free(data);
}

static void bench(struct tool *x)
{
	double tier = 0, raw = 0, s;

	write_raw(x);
	fill(x);
	show_stats(x);
	for (int i = 0; i < 3; i++) {
		drop_page_cache();
		s = in_threads(x, read_raw);
		raw = (double)x->read_bytes / s / 1e6 > raw ? (double)x->read_bytes / s / 1e6 : raw;
		drop_page_cache();
		read_all(x);
		tier = x->rate > tier ? x->rate : tier;
	}
	show("raw_mb_per_s", (uint64_t)raw);
	show("tier_mb_per_s", (uint64_t)tier);
	(void)printf("tier_to_raw %.2f\n", tier / raw);
	(void)printf("space_ratio %.4f\n", (double)rig_stats(&x->r).bytes / ((double)x->bytes * x->files));
}

static void hold(struct tool *x)
{
	char line[64];

	show("ready", 1);
	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (strcmp(line, "read\n") == 0)
			read_all(x);
		else if (strcmp(line, "fill\n") == 0)
			fill(x);
		show_stats(x);
		show("done", 1);
	}
}

static int parse(struct tool *x, int argc, char **argv)
{
	static const struct option options[] = {{"files", 1, NULL, 'n'}, {"bytes", 1, NULL, 'b'},   {"from", 1, NULL, 'f'},
						{"gen", 1, NULL, 'g'},	 {"size", 1, NULL, 's'},    {"free", 1, NULL, 'p'},
						{"chunk", 1, NULL, 'c'}, {"dataset", 1, NULL, 'd'}, {"apart", 1, NULL, 'a'},
						{"threads", 1, NULL, 't'}, {NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		uint64_t n = optarg != NULL ? strtoull(optarg, NULL, 0) : 0;

		switch (c) {
		case 'n': x->files = (uint32_t)n; break;
		case 'b': x->bytes = n; break;
		case 'f': x->from = (uint32_t)n; break;
		case 'g': x->gen = (uint32_t)n; break;
		case 's': x->r.cfg.size_bytes = n; break;
		case 'p': x->r.cfg.free_pct = (uint32_t)n; break;
		case 'c': x->r.cfg.chunk_bytes = (uint32_t)n; break;
		case 'd': x->r.dataset = optarg; break;
		case 'a': x->apart = optarg; break;
		case 't': x->threads = (uint32_t)hfs_min_u64(hfs_max_u64(n, 1), 64); break;
		default: return -EINVAL;
		}
	}
	return argc - optind == 2 ? optind : -EINVAL;
}

static int perform(struct tool *x, const char *verb)
{
	struct tier_scrub_progress p;

	if (strcmp(verb, "start") == 0)
		return 0;
	if (strcmp(verb, "fill") == 0)
		fill(x);
	else if (strcmp(verb, "read") == 0)
		read_all(x);
	else if (strcmp(verb, "bench") == 0)
		bench(x);
	else if (strcmp(verb, "hold") == 0)
		hold(x);
	else if (strcmp(verb, "scrub") == 0 && tier_scrub(x->r.t, NULL, NULL, &p) == 0)
		show("scrubbed", p.done_chunks);
	else
		return 2;
	return 0;
}

int main(int argc, char **argv)
{
	static struct tool x = {.files = 10, .bytes = 100000, .gen = 1, .threads = 4};
	uint64_t start_ns = hfs_now_ns();
	char why[512] = "";
	int at, rc;

	rig_init(&x.r, NULL, NULL, UINT64_C(64) << 20);
	x.r.takes_care = false;
	at = parse(&x, argc, argv);
	if (at < 0)
		return 2;
	x.dir = x.r.cfg.dir = argv[at];
	if (x.apart != NULL) {
		x.r.cfg.apart = &x.apart;
		x.r.cfg.n_apart = 1;
	}
	if (rig_try_open(&x.r, why, sizeof(why)) < 0) {
		(void)printf("refused %s\n", why);
		return 1;
	}
	show("created_us", (hfs_now_ns() - start_ns) / 1000);
	rig_check(tier_wait_adopted(x.r.t, 60000) || strcmp(argv[at + 1], "hold") == 0, "adopted");
	show("adopted_us", (hfs_now_ns() - start_ns) / 1000);
	rc = perform(&x, argv[at + 1]);
	show_stats(&x);
	rig_close(&x.r);
	return rc;
}
