/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/orders.c - every kind of order that training uses, against its bound: parts of epochs on one of many nodes, shards on
 * many ranks, samples inside pages, epochs that nobody announced.
 */
#include "tests/sim/simlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct figure {
	double time, bytes; /* of the epochs from `from` on, over their bound */
	double origin, needed, seconds, bound_bytes;
};

static struct figure measure(const struct sim_work *w, const struct sim_config *c, const char *policy, const char *what, size_t from)
{
	struct figure f = {0};
	struct sim_bound b;
	struct sim_result r;
	double bt = 0;

	simlib_run(w, c, policy, what, &r);
	simlib_need(sim_bound_init(w, c, &b));
	for (size_t e = from; e < r.n_epochs; e++) {
		f.seconds += r.epochs[e].time_s;
		f.origin += (double)r.epochs[e].origin_bytes;
		f.needed += (double)r.epochs[e].needed_bytes;
		bt += b.time_s[e];
		f.bound_bytes += (double)b.bytes[e];
	}
	f.time = simlib_ratio(f.seconds, bt);
	f.bytes = simlib_ratio(f.origin, f.bound_bytes);
	printf("  %-44s %-14s time %6.3f bytes %6.3f hits %.3f\n", what, policy, f.time, f.bytes, 1 - f.origin / f.needed);
	sim_bound_finish(&b);
	sim_result_finish(&r);
	return f;
}

/* One of 8 nodes, cache an eighth of the dataset, 4 further epochs known. MIN has 0.400; LRU 0.064. */
static void one_of_eight(void)
{
	static const uint32_t workers[] = {0, 4};
	struct sim_work w;

	simlib_node(&w, 16000, 65536, 60, 10, 8, 3);
	simlib_need(sim_work_hint_all(&w, 4));
	for (size_t i = 0; i < 2; i++) {
		struct sim_config c;
		struct figure f;

		sim_config_default(&c);
		c.slots = 2000;
		c.workers = workers[i];
		c.compute_ns = 10 * SIM_MSEC; /* 1 ms a page; the origin needs 0.33 ms */
		f = measure(&w, &c, "hintfs", i ? "1 of 8 nodes, 4 epochs ahead, 4 workers" : "1 of 8 nodes, 4 epochs ahead", 0);
		CHECK(1 - f.origin / f.needed >= 0.39, "hit share %.3f", 1 - f.origin / f.needed);
	}
	sim_work_finish(&w);
}

static void shards(bool is_shared, double share, double phi)
{
	struct simlib_shards s = {.files = 128, .ranks = 8, .workers = 4, .epochs = 4, .bytes = 32 * MIB, .batch_bytes = 4 * MIB,
				  .chunk_bytes = MIB, .seed = 5, .is_shared = is_shared};
	struct sim_config c;
	struct sim_work w;
	struct figure f;
	char what[64];

	simlib_shards(&w, &s);
	sim_config_default(&c);
	c.slots = (uint32_t)(share * s.files * 32);
	c.bandwidth_bytes_per_s = 800e6;
	c.latency_ns = 5 * SIM_MSEC;
	c.workers = s.workers;
	/* A step of all ranks consumes 8 batches, or one where all read the same. */
	c.compute_ns = (uint64_t)((is_shared ? 1 : 8) * 4.0 * (double)MIB / c.bandwidth_bytes_per_s * 1e9 / phi);
	c.compute_jitter = 0.1;
	snprintf(what, sizeof(what), "shards, 8 ranks x 4 workers%s, c %.2f phi %.2f", is_shared ? ", shared" : "", share, phi);
	f = measure(&w, &c, "hintfs", what, 1);
	CHECK(f.time <= 1.05, "%s: time %.3f of the bound", what, f.time);
	CHECK(f.bytes <= 1.05, "%s: bytes %.3f of the bound", what, f.bytes);
	sim_work_finish(&w);
}

/* Samples of 128 KiB, 8 ranks take every eighth: each page is wanted by all of them, and fetched once. */
static void ranks_merged(void)
{
	struct simlib_samples s = {.n = 8192, .ranks = 8, .epochs = 3, .batch = 8, .bytes = 131072, .page_bytes = MIB, .chunk_bytes = MIB,
				   .seed = 6};
	struct sim_config c;
	struct sim_work w;
	struct figure f;

	simlib_samples(&w, &s);
	simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
	sim_config_default(&c);
	c.slots = 1100; /* all of it fits */
	c.workers = 4;
	c.compute_ns = 100 * SIM_MSEC;
	f = measure(&w, &c, "hintfs", "samples, 8 ranks x 4 workers, all fits", 0);
	CHECK(f.origin <= 1.01 * 1024 * (double)MIB, "%.0f bytes fetched, the dataset has %.0f", f.origin, 1024 * (double)MIB);
	sim_work_finish(&w);
}

/*
 * 8 ranks begin at once, samples of 128 KiB: in the first epoch nearly every sample is in a page that nobody has asked for, and pages fetched
 * whole for what is read later keep others waiting. The link carries all of it in 0.8 of the time that the ranks compute.
 */
static void ranks_begin(uint32_t batch, uint32_t prefetch, uint64_t latency_ns, double time_max)
{
	struct simlib_samples s = {.n = 1024, .ranks = 8, .epochs = 3, .batch = batch, .bytes = 131072, .page_bytes = MIB, .chunk_bytes = MIB,
				   .seed = 6};
	struct sim_config c;
	struct sim_work w;
	struct sim_result r;
	double least;
	char what[64];

	simlib_samples(&w, &s);
	simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
	sim_config_default(&c);
	c.slots = 140;
	c.bandwidth_bytes_per_s = 100e6;
	c.latency_ns = latency_ns;
	c.workers = 4;
	c.prefetch = prefetch;
	c.compute_ns = (uint64_t)(8.0 * 131072 * batch / c.bandwidth_bytes_per_s / 0.8 * 1e9);
	c.is_independent = c.is_overlapping = true;
	snprintf(what, sizeof(what), "8 ranks begin, batches of %u, %.0f ms", batch, (double)latency_ns / 1e6);
	simlib_run(&w, &c, "hintfs", what, &r);
	least = 3.0 * 128 / batch * (double)c.compute_ns / 1e9;
	printf("  %-44s %-14s time %6.4f bytes %6.3f\n", what, "hintfs", r.end_s / least,
	       (double)r.total.origin_bytes / (128.0 * (double)MIB));
	CHECK(r.end_s <= time_max * least, "%s: time %.4f of what the ranks compute", what, r.end_s / least);
	CHECK(r.total.origin_bytes <= 128 * MIB, "%s: %llu bytes", what, (unsigned long long)r.total.origin_bytes);
	sim_result_finish(&r);
	sim_work_finish(&w);
}

/* Bytes of all samples, each rounded to the blocks that it touches. */
static double rounded(const struct simlib_samples *s)
{
	uint64_t per = s->page_bytes / s->bytes, blocks = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t at = i % per * s->bytes; /* pages begin at a block */

		blocks += (at + s->bytes - 1) / 4096 - at / 4096 + 1;
	}
	return (double)blocks * 4096;
}

/* 110 KB samples in 8 MiB pages, dataset 4 x cache: whole pages would cost tens of times the dataset. */
static void samples_in_pages(void)
{
	struct simlib_samples s = {.n = 80000, .ranks = 1, .epochs = 4, .batch = 64, .bytes = 110000, .page_bytes = 8 * MIB, .chunk_bytes = MIB,
				   .seed = 8};
	struct sim_config c;
	struct sim_work w;
	struct figure f;
	double least, all = (double)s.n * (double)s.bytes;

	simlib_samples(&w, &s);
	simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
	sim_config_default(&c);
	c.slots = (uint32_t)(s.n * s.bytes / MIB / 4);
	c.workers = 4;
	c.compute_ns = 64 * 400 * SIM_USEC;
	f = measure(&w, &c, "hintfs", "110 KB samples, 8 MiB pages, 4 x cache", 1);
	least = (s.epochs - 1) * rounded(&s) * (1 - (double)c.slots * (double)MIB / all);
	printf("  %-59s %.3f x ((N - C) + rounding to 4 KiB)\n", "", f.origin / least);
	CHECK(f.origin <= 1.10 * least, "%.3f x ((N - C) + rounding)", f.origin / least);
	sim_work_finish(&w);
}

/* Nobody writes an order, and each epoch has a new one: as good as never evicting, and no epoch is taken for the one before it. */
static void unannounced_new(uint32_t pages, uint32_t busy)
{
	struct sim_config c;
	struct sim_work w;
	struct figure bare, keep;
	char what[48];

	sim_config_default(&c);
	c.slots = pages / 2;
	c.workers = 4;
	c.latency_ns = 5 * SIM_MSEC;
	c.compute_ns = 16 * 3 * SIM_MSEC;
	snprintf(what, sizeof(what), "new order each epoch, %u pages", pages);
	simlib_pages(&w, pages, MIB, 5, 16, ORDER_SHUFFLED, 9);
	bare = measure(&w, &c, "hintfs-nohint", what, 1);
	keep = measure(&w, &c, "never-evict", what, 1);
	/* Pages in flight and those read this moment take slots; never-evict's are not counted. */
	CHECK(bare.origin <= (1.01 + busy / (double)c.slots) * keep.origin, "%.0f bytes, never-evict %.0f", bare.origin, keep.origin);
	CHECK(bare.seconds <= (1.02 + busy / (double)c.slots / 2) * keep.seconds, "%.2f s, never-evict %.2f", bare.seconds, keep.seconds);
	sim_work_finish(&w);
}

/* Nobody writes an order, and two read the same pages, the second a few behind: what was just read is worth a slot for a moment. */
static void unannounced_pair(void)
{
	const uint32_t n = 800, batch = 4;
	struct sim_rng rng = {31};
	struct sim_config c;
	struct sim_work w;
	struct figure f;
	uint32_t file, v[800];

	simlib_need(sim_work_init(&w, 2));
	simlib_need(sim_work_file(&w, n * MIB, &file));
	for (uint32_t i = 0; i < n; i++)
		v[i] = i;
	for (uint32_t e = 0; e < 4; e++) {
		sim_rng_shuffle(&rng, v, n);
		for (uint32_t rank = 0; rank < 2; rank++) {
			simlib_need(sim_work_epoch(&w, rank));
			for (uint32_t i = 0; i < n; i++) {
				if (i % batch == 0)
					simlib_need(sim_work_batch(&w, rank));
				/* The second begins with the last of the batches before. */
				simlib_need(sim_work_read(&w, rank, file, v[rank ? (i + n - batch) % n : i] * MIB, MIB));
			}
		}
	}
	simlib_need(sim_work_pages(&w, MIB));
	sim_config_default(&c);
	c.slots = n / 4;
	c.workers = 2;
	c.compute_ns = batch * 30 * SIM_MSEC;
	f = measure(&w, &c, "hintfs-nohint", "two readers, one a batch behind", 1);
	CHECK(f.origin <= 1.25 * 3 * (double)n * (double)MIB * 3 / 4, "%.0f bytes: pages come twice", f.origin);
	sim_work_finish(&w);
}

/* Nobody writes an order, and it is the same again: it is recognised. */
static void unannounced(void)
{
	struct sim_config c;
	struct sim_work w;
	struct figure hinted, bare;

	sim_config_default(&c);
	c.slots = 1500;
	c.workers = 4;
	c.latency_ns = 5 * SIM_MSEC;
	c.compute_ns = 16 * 3 * SIM_MSEC;
	simlib_pages(&w, 3000, MIB, 5, 16, ORDER_SAME, 9);
	simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
	hinted = measure(&w, &c, "hintfs", "same order each epoch, from the third on", 2);
	bare = measure(&w, &c, "hintfs-nohint", "same order each epoch, from the third on", 2);
	CHECK(bare.seconds <= 1.10 * hinted.seconds, "unannounced %.2f s, hinted %.2f s", bare.seconds, hinted.seconds);
	sim_work_finish(&w);
}

/* The same order three times, then new ones: what was replayed must not be believed for long. */
static void replay_ends(void)
{
	struct sim_work same, w;
	struct sim_config c;
	struct figure bare, keep;

	sim_config_default(&c);
	c.slots = 1500;
	c.workers = 4;
	c.compute_ns = 16 * 3 * SIM_MSEC;
	simlib_pages(&same, 3000, MIB, 3, 16, ORDER_SAME, 9);
	simlib_pages(&w, 3000, MIB, 4, 16, ORDER_SHUFFLED, 21);
	for (uint32_t e = 0; e < 4; e++) { /* behind the three, the four new ones */
		simlib_need(sim_work_epoch(&same, 0));
		for (size_t b = w.ranks[0].epochs[e]; b < sim_epoch_end(&w.ranks[0], e); b++) {
			simlib_need(sim_work_batch(&same, 0));
			for (size_t i = w.ranks[0].batches[b]; i < sim_batch_end(&w.ranks[0], b); i++)
				simlib_need(sim_work_read(&same, 0, 0, w.ranks[0].reads[i].off_bytes, MIB));
		}
	}
	bare = measure(&same, &c, "hintfs-nohint", "same order 3 times, then new ones", 3);
	keep = measure(&same, &c, "never-evict", "same order 3 times, then new ones", 3);
	CHECK(bare.origin <= 1.10 * keep.origin, "%.0f bytes, never-evict %.0f", bare.origin, keep.origin);
	CHECK(bare.seconds <= 1.10 * keep.seconds, "%.2f s, never-evict %.2f", bare.seconds, keep.seconds);
	sim_work_finish(&same);
	sim_work_finish(&w);
}

/* Memory holds a tenth, the disk four more: both count, the disk is filled once. */
static void disk_tier(void)
{
	struct sim_config c;
	struct sim_work w;
	struct figure f;
	struct sim_result r;

	simlib_pages(&w, 3000, MIB, 5, 16, ORDER_SHUFFLED, 10);
	simlib_need(sim_work_hint_all(&w, SIM_NONE - 1));
	sim_config_default(&c);
	c.slots = 300;
	c.disk_pages = 1200;
	c.workers = 4;
	c.compute_ns = 16 * 4 * SIM_MSEC;
	f = measure(&w, &c, "hintfs", "memory 0.1 + disk 0.4", 1);
	CHECK(f.bytes <= 1.05 + 300.0 / 1500, "bytes %.3f: more than what the disk alone explains", f.bytes);
	CHECK(f.time <= 1.05, "time %.3f", f.time);
	simlib_run(&w, &c, "hintfs", "disk writes", &r);
	CHECK(r.total.disk_write_bytes <= 1300 * MIB, "%.2f times the disk written in 5 epochs of permutations",
	      (double)r.total.disk_write_bytes / (1200 * (double)MIB));
	sim_result_finish(&r);
	sim_work_finish(&w);
}

int main(void)
{
	one_of_eight();
	shards(false, 0.5, 1.0);
	shards(false, 0.25, 2.0);
	shards(false, 0.1, 0.8);
	shards(true, 0.25, 1.0);
	ranks_merged();
	ranks_begin(1, 4, SIM_MSEC, 1.015);
	ranks_begin(1, 4, 4 * SIM_MSEC, 1.015);
	ranks_begin(1, 4, 16 * SIM_MSEC, 1.02);
	ranks_begin(8, 2, SIM_MSEC, 1.09); /* a worker reads its batch by itself, and four of them at a time */
	samples_in_pages();
	unannounced();
	unannounced_new(3000, 0);
	unannounced_new(400, 4);
	unannounced_new(128, 4);
	unannounced_pair();
	replay_ends();
	disk_tier();
	return simlib_end("orders");
}
