/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/engine/engine_nomem.c - the engine without memory.
 *
 * 1. Its list of events cannot grow, never or now and then: every event reaches the scheduler all the same, in order. Nothing is told
 *    again by the cache, nothing stays in flight.
 * 2. The N-th allocation of a run fails, for N = 1 until a run meets no failure: every read ends, with its bytes or -ENOMEM, and
 *    afterwards all is as ever.
 *
 * engine_nomem [STRIDE]: of 2, every STRIDE-th N only. Seen are the calls of fs/, cache/ and sched/ and of the test, which makes its
 * own before it arms the fault (tests/fault/nomem.h).
 */
#include "fs/engine.h"
#include "fs/engine_i.h"
#include "tests/fault/nomem.h"
#include "tests/unit/engine_world.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 65536u
#define BIG_CHUNKS 40u
#define SMALL 12u
#define READS (BIG_CHUNKS + SMALL)

static _Atomic uint32_t events_every; /* of the growths of the list of events, so many fail but one; 0: none */
static _Atomic uint64_t n_growths;

static bool growth_fails(size_t n)
{
	uint32_t every = atomic_load(&events_every);

	return every && n % (256 * sizeof(struct event)) == 0 && atomic_fetch_add(&n_growths, 1) % every != every - 1;
}

/* ---- a life ---------------------------------------------------------------------------------- */

struct life {
	struct engine_world ew;
	struct cache_file *big, *small[SMALL];
	struct reader rd[READS];
};

static void life_begin(struct life *l, uint32_t slots)
{
	char name[16];

	engine_world_open(&l->ew, slots, CHUNK);
	world_write(&l->ew.w, "big", 100, 1, BIG_CHUNKS * CHUNK);
	l->big = engine_world_get(&l->ew, "big", 1);
	for (unsigned i = 0; i < SMALL; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		world_write(&l->ew.w, name, i, 1, 5000);
		l->small[i] = engine_world_get(&l->ew, name, 1);
	}
	for (unsigned i = 0; i < READS; i++) {
		l->rd[i] = (struct reader){.w = &l->ew.w, .buf = malloc(CHUNK + 1)};
		MUST(l->rd[i].buf != NULL);
	}
}

static void life_end(struct life *l)
{
	for (unsigned i = 0; i < READS; i++)
		free(l->rd[i].buf);
	for (unsigned i = 0; i < SMALL; i++)
		engine_world_put(&l->ew, l->small[i], 1);
	engine_world_put(&l->ew, l->big, 1);
	engine_world_close(&l->ew);
}

/* As a rank writes its order; a name or a list without memory is refused, which is an answer too. */
static void order(struct life *l)
{
	struct sched_entry entries[1 + SMALL];
	uint32_t st, n = 0;
	char name[16];

	if (engine_stream_create(l->ew.e, &st) < 0)
		return;
	for (unsigned i = 0; i <= SMALL; i++) {
		snprintf(name, sizeof(name), i ? "s%u" : "big", i - 1);
		if (engine_name_get(l->ew.e, name, strlen(name), &entries[n].file) < 0)
			continue;
		entries[n].off_bytes = entries[n].len_bytes = 0;
		n++;
	}
	(void)engine_stream_append(l->ew.e, st, entries, n);
	for (unsigned i = 0; i < n; i++)
		engine_name_put(l->ew.e, entries[i].file);
}

/* All of it at once, a reader each. */
static void read_all(struct life *l, bool may_fail)
{
	for (unsigned i = 0; i < READS; i++) {
		struct reader *rd = &l->rd[i];

		rd->is_done = false;
		rd->r = (struct cache_read){.done = reader_done, .len_bytes = CHUNK};
		if (i < BIG_CHUNKS) {
			rd->r.file = l->big;
			rd->r.off_bytes = (uint64_t)i * CHUNK;
		} else {
			rd->r.file = l->small[i - BIG_CHUNKS];
			rd->r.len_bytes = 5000;
		}
		engine_read(l->ew.e, &rd->r, i, false);
	}
	for (unsigned i = 0; i < READS; i++) {
		int err = engine_reader_wait(&l->rd[i]);

		MUST(err == 0 || (may_fail && err == -ENOMEM));
		MUST(err != 0 || reader_matches(&l->rd[i], i < BIG_CHUNKS ? 100 : i - BIG_CHUNKS, 1));
	}
}

static void settle(struct life *l)
{
	uint64_t until_ns = hfs_now_ns() + WAIT_NS;

	while (engine_world_sched_stats(&l->ew).inflight_pages > 0 || engine_world_stats(&l->ew).inflight_bytes > 0) {
		MUST(hfs_now_ns() < until_ns && "fetches whose end the scheduler was never told");
		usleep(1000);
	}
}

/* ---- what fails --------------------------------------------------------------------------------- */

static void events_cannot_wait(uint32_t every)
{
	struct life *l = calloc(1, sizeof(*l));

	MUST(l != NULL);
	atomic_store(&nomem.n_failed, 0);
	atomic_store(&events_every, every);
	life_begin(l, 2 * READS);
	order(l);
	read_all(l, false);
	settle(l);
	MUST(engine_world_stats(&l->ew).lost == 0 && "the cache had to tell the scheduler again");
	MUST(atomic_load(&nomem.n_failed) > 0);
	life_end(l);
	atomic_store(&events_every, 0);
	free(l);
}

static uint64_t nth(uint64_t at, uint32_t slots)
{
	struct life *l = calloc(1, sizeof(*l));

	MUST(l != NULL);
	life_begin(l, slots);
	atomic_store(&nomem.n_calls, 0);
	atomic_store(&nomem.n_failed, 0);
	atomic_store(&nomem.fail_at, at);
	order(l);
	read_all(l, true);
	atomic_store(&nomem.fail_at, 0);
	read_all(l, false);
	settle(l);
	life_end(l);
	free(l);
	return atomic_load(&nomem.n_failed);
}

int main(int argc, char **argv)
{
	const uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	uint64_t at;

	MUST(stride > 0 && hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0);
	nomem.realloc_fails = growth_fails;
	for (uint32_t every = 1; every <= 3; every++)
		for (int i = 0; i < 5; i++)
			events_cannot_wait(every == 1 ? UINT32_MAX : every);
	for (uint32_t slots = 8; slots <= 2 * READS; slots += 2 * READS - 8) {
		at = 1 + (uint64_t)getpid() % stride;
		while (nth(at, slots) > 0)
			at += stride;
		MUST(at > 50);
		printf("%u slots: up to allocation %llu\n", slots, (unsigned long long)at);
	}
	puts("ok");
	return 0;
}
