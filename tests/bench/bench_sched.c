/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/bench_sched.c - what the scheduler costs: ns and bytes an entry and a position. Prints, asserts nothing.
 *
 * Usage: bench_sched [million positions]. An epoch of distinct 1 MiB pages, repeated ten times by entries that name the
 * same pages in other orders: steps through the file (strided), or at random (shuffled). Ingest; materialisation over
 * the whole length, first into memory that the kernel has yet to give, then once more, as after a seek; a replay of
 * reads and fetches.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sched/sched_i.h" /* the number of positions */

#define MIB (1ULL << 20)

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* pure code: its CPU time is what it costs */
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t rng = 88172645463325252ULL;

static uint64_t rnd(uint64_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng % n;
}

static struct sched *open_sched(uint32_t slots, uint64_t positions)
{
	struct sched_config cfg = {.chunk_bytes = MIB,
				   .slots = slots,
				   .inflight_max = 64,
				   .inflight_bytes_max = 256 * MIB,
				   .positions_max = positions};
	struct sched *s;

	if (sched_create(&cfg, &s))
		exit(1);
	return s;
}

/* Page that entry i of n names. */
static uint64_t page_of(uint64_t i, uint64_t pages, const uint32_t *shuffle)
{
	return shuffle ? shuffle[i] : (i * 7919 + i / pages * 13) % pages;
}

/* A new permutation of all pages for each epoch; the caller frees it. */
static uint32_t *shuffle_make(uint64_t n, uint64_t pages)
{
	uint32_t *v = malloc(n * sizeof(*v));

	if (!v)
		exit(1);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t first = i / pages * pages, k = first + rnd(i - first + 1); /* Fisher-Yates, inside out */

		v[i] = v[k];
		v[k] = (uint32_t)(i - first);
	}
	return v;
}

/* Entries of 10 epochs over n / 10 pages; returns the stream. */
static uint32_t ingest(struct sched *s, uint64_t n, const uint32_t *shuffle)
{
	struct sched_entry e[4096];
	uint32_t st;
	uint64_t pages = n / 10 ? n / 10 : 1, i = 0;

	if (sched_file_add(s, 0, pages * MIB) || sched_stream_create(s, &st))
		exit(1);
	while (i < n) {
		size_t k = 0;

		for (; k < 4096 && i < n; k++, i++)
			e[k] = (struct sched_entry){0, page_of(i, pages, shuffle) * MIB, MIB};
		if (sched_stream_append(s, st, e, k) != (int64_t)k)
			exit(1);
	}
	return st;
}

/* Answer everything at once: the time is the scheduler's. */
static uint64_t drain(struct sched *s, uint64_t now_ns)
{
	struct sched_action a[64];
	uint64_t n_acts = 0;
	size_t n;

	do {
		n = sched_step(s, now_ns, a, 64);
		for (size_t i = 0; i < n; i++)
			if (a[i].kind == SCHED_FETCH)
				sched_fetched(s, a[i].file, a[i].chunk_no, a[i].off_bytes, a[i].len_bytes, 0, now_ns,
					      now_ns + 1000);
		n_acts += n;
	} while (n == 64);
	return n_acts;
}

/* As far as it goes: seven eighths of the horizon at the least. Returns positions laid out. */
static uint64_t lay_out(struct sched *s)
{
	uint64_t before = s->pos.n_laid, laid = UINT64_MAX;

	for (uint64_t i = 0; s->pos.n_laid != laid; i++) {
		laid = s->pos.n_laid;
		drain(s, i);
	}
	return laid - before;
}

static void bench_positions(uint64_t n, bool is_shuffled)
{
	/* The horizon follows from the slots: enough of them to hold all n in view. */
	struct sched *s = open_sched((uint32_t)(n / 14 + 1), 2 * n);
	uint32_t *shuffle = is_shuffled ? shuffle_make(n, n / 10 ? n / 10 : 1) : NULL, stream;
	struct sched_stats st;
	double t0 = now_s(), t1, t2;
	uint64_t before, bytes, laid;
	const char *how = is_shuffled ? "shuffled" : "strided";

	stream = ingest(s, n, shuffle);
	t1 = now_s();
	sched_stats_get(s, &st);
	before = st.entry_bytes;
	sched_set_prefetch(s, SCHED_PREFETCH_OFF);
	printf("ingest       %-9s %10" PRIu64 " entries    %6.1f ns, %5.1f B an entry\n", how, n,
	       (t1 - t0) / (double)n * 1e9, (double)before / (double)n);
	t1 = now_s();
	laid = lay_out(s);
	t2 = now_s();
	sched_stats_get(s, &st);
	bytes = st.entry_bytes - before;
	printf("materialise  %-9s %10" PRIu64
	       " positions  %6.1f ns, %5.1f B a position (pages included, a tenth of %" PRIu64 ")\n",
	       how, laid, (t2 - t1) / (double)laid * 1e9, (double)bytes / (double)laid, n);
	if (sched_stream_mark(s, stream, SCHED_MARK_SEEK, 0, 0))
		exit(1);
	t1 = now_s();
	laid = lay_out(s);
	printf("again        %-9s %10" PRIu64 " positions  %6.1f ns\n", how, laid, (now_s() - t1) / (double)laid * 1e9);
	sched_destroy(s);
	free(shuffle);
}

static void bench_replay(uint64_t n)
{
	struct sched *s = open_sched(4096, 0);
	uint64_t pages = n / 10 ? n / 10 : 1, acts = 0, now_ns = 1;
	double t0;

	ingest(s, n, NULL);
	acts += drain(s, now_ns);
	t0 = now_s();
	for (uint64_t i = 0; i < n; i++) {
		now_ns += 100000;
		sched_read(s, 0, (i * 7919 + i / pages * 13) % pages * MIB, MIB, 1, false, now_ns);
		acts += drain(s, now_ns);
	}
	printf("read + step  %10" PRIu64 " reads      %6.1f ns a read, %.2f actions a read\n", n,
	       (now_s() - t0) / (double)n * 1e9, (double)acts / (double)n);
	sched_destroy(s);
}

static void bench_random(uint64_t n)
{
	struct sched *s = open_sched(4096, 0);
	uint64_t now_ns = 1;
	double t0;

	if (sched_file_add(s, 0, 1ULL << 42))
		exit(1);
	t0 = now_s();
	for (uint64_t i = 0; i < n; i++) {
		now_ns += 100000;
		sched_read(s, 0, rnd(1u << 22) * MIB + 65536, 16384, 1, true, now_ns);
		drain(s, now_ns);
	}
	printf("no order     %10" PRIu64 " misses     %6.1f ns a miss\n", n, (now_s() - t0) / (double)n * 1e9);
	sched_destroy(s);
}

int main(int argc, char **argv)
{
	uint64_t n = (argc > 1 ? strtoull(argv[1], NULL, 10) : 10) * 1000000;

	bench_positions(n ? n : 1000, false);
	bench_positions(n ? n : 1000, true);
	bench_replay(n / 10 ? n / 10 : 1000);
	bench_random(n / 20 ? n / 20 : 1000);
	return 0;
}
