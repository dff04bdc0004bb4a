/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/sim/simlib.h - orders of the shapes that tests need, checks that count, runs that must not fail.
 */
#ifndef TESTS_SIM_SIMLIB_H
#define TESTS_SIM_SIMLIB_H

#include "tools/sim/sim.h"

#define MIB (1024ULL * 1024)

extern unsigned simlib_failures;
/* Count a failure and say so; the program exits 1 at the end. */
#define CHECK(cond, ...) simlib_check((cond), __FILE__, __LINE__, #cond, __VA_ARGS__)
void simlib_check(bool ok, const char *file, int line, const char *cond, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
int simlib_end(const char *name);
bool simlib_is_full(void); /* HINTFS_FULL=1: the whole grid, the big numbers */

/* Run or die of no memory. Breaches and deadlocks are failures, with `what` to find them by. */
void simlib_run(const struct sim_work *w, const struct sim_config *c, const char *policy, const char *what, struct sim_result *r);
void simlib_need(int rc); /* exits if rc < 0 */

enum simlib_order { ORDER_SHUFFLED, ORDER_SAME };
/* One file of n pages, each epoch a permutation (or the same one), `batch` pages a batch; 1 rank. */
void simlib_pages(struct sim_work *w, uint32_t n, uint64_t page_bytes, uint32_t epochs, uint32_t batch, enum simlib_order order,
		  uint64_t seed);
/* The same, but this node is one of `nodes`: it sees every nodes-th batch. */
void simlib_node(struct sim_work *w, uint32_t n, uint64_t page_bytes, uint32_t epochs, uint32_t batch, uint32_t nodes, uint64_t seed);
/* n files of `bytes`, dealt out to the ranks anew each epoch (or each rank reads all, is_shared); each worker has its own file open
 * and reads it from the beginning; a batch is the next `batch_bytes` of one worker's file. Hints: whole files, in order. */
struct simlib_shards {
	uint32_t files, ranks, workers, epochs;
	uint64_t bytes, batch_bytes, chunk_bytes, seed;
	bool is_shared;
};
void simlib_shards(struct sim_work *w, const struct simlib_shards *s);
/* One file of n samples of `bytes`, not straddling `page_bytes` (FFCV); a permutation an epoch, dealt out to the ranks. */
struct simlib_samples {
	uint32_t n, ranks, epochs, batch;
	uint64_t bytes, page_bytes, chunk_bytes, seed;
};
void simlib_samples(struct sim_work *w, const struct simlib_samples *s);
double simlib_ratio(double a, double b);

#endif
