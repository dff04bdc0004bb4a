/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/bench_reader.c - a plain reader at a fixed compute pace, as a training script is one.
 *
 * bench_reader [--threads N] [--block BYTES] [--compute-ns NS_PER_MIB] [--order-to FILE] [--passes N] [--direct 0|1] ROOT LIST
 *
 * LIST has a line per item, "path" (opened, read to its end, closed) or "path TAB offset TAB length" (pread; files stay open).
 * Item i belongs to thread i mod N; a thread takes its items in order. After every block it computes: sleeps until max(its last
 * deadline, now) + pace. The clock starts before the first byte of the order is written (--order-to).
 * --direct 1: whole files are read past the page cache, into huge pages, and all bytes are summed as a check of them would.
 * Prints one line of JSON: wall_s, stall_s (a thread's wall minus its compute, mean), bytes, items, sum (XOR of all words).
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGN (2u << 20) /* of a huge page */

struct item {
	const char *path;
	uint64_t off, len; /* len UINT64_MAX: whole file */
};

struct plan {
	const char *root, *order_to, *list_path;
	char *text;
	size_t text_len;
	struct item *items;
	size_t n_items;
	unsigned threads, passes;
	size_t block;
	bool is_direct;
	double compute_ns_per_byte;
	int root_fd;
};

struct reader {
	const struct plan *p;
	unsigned no;
	pthread_t thread;
	uint64_t bytes, items, sum, compute_ns, deadline_ns;
	char *buf;
	const char *open_path;
	int open_fd;
};

static void compute(struct reader *r, size_t bytes)
{
	uint64_t cost = (uint64_t)((double)bytes * r->p->compute_ns_per_byte), now = hfs_now_ns();

	if (cost == 0)
		return;
	r->compute_ns += cost;
	r->deadline_ns = (r->deadline_ns > now ? r->deadline_ns : now) + cost;
	bench_sleep_until(r->deadline_ns);
}

static void account(struct reader *r, size_t n)
{
	uint64_t word;

	for (size_t at = 0; at == 0 || (r->p->is_direct && at + sizeof(word) <= n); at += sizeof(word)) {
		memcpy(&word, r->buf + at, sizeof(word) < n ? sizeof(word) : n);
		r->sum ^= word;
	}
	r->bytes += n;
	compute(r, n);
}

static void read_file(struct reader *r, const struct item *it)
{
	int fd = openat(r->p->root_fd, it->path, O_RDONLY | O_CLOEXEC | (r->p->is_direct ? O_DIRECT : 0));
	ssize_t n;

	if (fd < 0)
		bench_die("open", it->path);
	while ((n = read(fd, r->buf, r->p->block)) > 0)
		account(r, (size_t)n);
	if (n < 0)
		bench_die("read", it->path);
	close(fd);
}

static void read_range(struct reader *r, const struct item *it)
{
	uint64_t done = 0;

	if (!r->open_path || strcmp(r->open_path, it->path)) {
		if (r->open_path)
			close(r->open_fd);
		r->open_path = it->path;
		r->open_fd = openat(r->p->root_fd, it->path, O_RDONLY | O_CLOEXEC);
		if (r->open_fd < 0)
			bench_die("open", it->path);
	}
	while (done < it->len) {
		uint64_t want = it->len - done < r->p->block ? it->len - done : r->p->block;
		ssize_t n = pread(r->open_fd, r->buf, want, (off_t)(it->off + done));

		if (n <= 0)
			bench_die("pread", it->path);
		done += (uint64_t)n;
		account(r, (size_t)n);
	}
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;
	const struct plan *p = r->p;

	for (unsigned pass = 0; pass < p->passes; pass++) {
		for (size_t i = r->no; i < p->n_items; i += p->threads) {
			if (p->items[i].len == UINT64_MAX)
				read_file(r, &p->items[i]);
			else
				read_range(r, &p->items[i]);
			r->items++;
		}
	}
	return NULL;
}

/* ---- the list ------------------------------------------------------------------------------ */

static void load(struct plan *p)
{
	struct stat st;
	int fd = open(p->list_path, O_RDONLY);
	size_t cap = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		bench_die("list", p->list_path);
	p->text_len = (size_t)st.st_size;
	p->text = malloc(p->text_len + 1);
	if (!p->text || read(fd, p->text, p->text_len) != (ssize_t)p->text_len)
		bench_die("list", p->list_path);
	close(fd);
	p->text[p->text_len] = '\0';
	for (char *line = strdup(p->text), *next; line && *line; line = next) {
		char *tab;

		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		else
			next = line + strlen(line);
		if (*line == '\0' || *line == '@' || *line == '#')
			continue;
		if (p->n_items == cap) {
			cap = cap ? cap * 2 : 1024;
			p->items = realloc(p->items, cap * sizeof(*p->items));
			if (!p->items)
				bench_die("memory", "");
		}
		struct item *it = &p->items[p->n_items++];
		*it = (struct item){ .path = line, .len = UINT64_MAX };
		tab = strchr(line, '\t');
		if (tab) {
			*tab = '\0';
			it->off = strtoull(tab + 1, &tab, 10);
			it->len = strtoull(tab + 1, NULL, 10);
		}
	}
}

static void write_order(const struct plan *p)
{
	int fd = open(p->order_to, O_WRONLY | O_TRUNC);
	size_t at = 0;

	if (fd < 0)
		bench_die("order", p->order_to);
	while (at < p->text_len) {
		ssize_t n = write(fd, p->text + at, p->text_len - at);

		if (n < 0)
			bench_die("order", p->order_to);
		at += (size_t)n;
	}
	if (close(fd) < 0)
		bench_die("order", p->order_to);
}

static int parse(struct plan *p, int argc, char **argv)
{
	int i = 1;

	*p = (struct plan){ .threads = 1, .passes = 1, .block = 1u << 20 };
	for (; i + 1 < argc && !strncmp(argv[i], "--", 2); i += 2) {
		const char *v = argv[i + 1];

		if (!strcmp(argv[i], "--threads"))
			p->threads = (unsigned)strtoul(v, NULL, 10);
		else if (!strcmp(argv[i], "--block"))
			p->block = strtoull(v, NULL, 10);
		else if (!strcmp(argv[i], "--compute-ns"))
			p->compute_ns_per_byte = strtod(v, NULL) / (1 << 20);
		else if (!strcmp(argv[i], "--order-to"))
			p->order_to = v;
		else if (!strcmp(argv[i], "--passes"))
			p->passes = (unsigned)strtoul(v, NULL, 10);
		else if (!strcmp(argv[i], "--direct"))
			p->is_direct = *v == '1';
		else
			return -EINVAL;
	}
	if (i + 2 != argc || p->threads == 0 || p->block == 0)
		return -EINVAL;
	p->root = argv[i];
	p->list_path = argv[i + 1];
	return 0;
}

int main(int argc, char **argv)
{
	struct plan p;
	struct reader *rs;
	uint64_t start, wall, bytes = 0, items = 0, sum = 0;
	double stall = 0;

	if (parse(&p, argc, argv) < 0) {
		fprintf(stderr, "bench_reader: see the head of bench_reader.c\n");
		return 2;
	}
	load(&p);
	rs = calloc(p.threads, sizeof(*rs));
	p.root_fd = open(p.root, O_RDONLY | O_DIRECTORY);
	if (!rs || p.root_fd < 0)
		bench_die("root", p.root);
	for (unsigned i = 0; i < p.threads; i++) {
		size_t cap = (p.block + ALIGN - 1) / ALIGN * ALIGN;

		rs[i] = (struct reader){ .p = &p, .no = i };
		if (posix_memalign((void **)&rs[i].buf, ALIGN, cap))
			bench_die("memory", "");
		if (p.is_direct)
			(void)madvise(rs[i].buf, cap, MADV_HUGEPAGE);
		memset(rs[i].buf, 1, cap); /* touched before the clock starts */
	}
	start = hfs_now_ns();
	if (p.order_to)
		write_order(&p);
	for (unsigned i = 0; i < p.threads; i++)
		pthread_create(&rs[i].thread, NULL, reader_main, &rs[i]);
	for (unsigned i = 0; i < p.threads; i++) {
		pthread_join(rs[i].thread, NULL);
		bytes += rs[i].bytes;
		items += rs[i].items;
		sum ^= rs[i].sum;
	}
	wall = hfs_now_ns() - start;
	for (unsigned i = 0; i < p.threads; i++)
		stall += ((double)wall - (double)rs[i].compute_ns) / p.threads / 1e9;
	printf("{\"wall_s\": %.6f, \"stall_s\": %.6f, \"bytes\": %llu, \"items\": %llu, \"sum\": \"%016llx\"}\n", (double)wall / 1e9,
	       stall, (unsigned long long)bytes, (unsigned long long)items, (unsigned long long)sum);
	return 0;
}
