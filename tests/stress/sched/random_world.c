/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/stress/sched/random_world.c - random events in any order, in a world that keeps the books.
 *
 * Several readers wait at once; lists are written, replaced, repeated, cancelled, marked; fetches fail, the origin stops,
 * pages are dropped, pinned, put on the tier; the number of slots changes. What must hold at every action is in world.c,
 * the invariants of the engine in check.c; and every reader that waits gets its bytes in the end.
 *
 * Usage: random_world [rounds [seed]]; exit 0 or 1 (or abort).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/sched/check.h"
#include "tests/unit/sched/world.h"

#define READERS 8
#define FILES 24
#define STREAMS 4

struct reader {
	uint32_t file;
	uint64_t off, len, since_ns;
	bool is_waiting;
};

struct play {
	struct world w;
	uint64_t rng;
	struct reader readers[READERS];
	uint32_t streams[STREAMS];
	bool has_stream[STREAMS];
	uint64_t token;
	struct {
		uint32_t file;
		uint64_t chunk_no;
	} pins[4];
	uint32_t n_pins;
	bool is_healthy; /* no failures from now on */
};

static uint64_t rnd(struct play *p, uint64_t n)
{
	p->rng ^= p->rng << 13;
	p->rng ^= p->rng >> 7;
	p->rng ^= p->rng << 17;
	return n ? p->rng % n : 0;
}

static uint64_t random_size(struct play *p)
{
	uint64_t chunk = p->w.cfg.chunk_bytes;

	switch (rnd(p, 8)) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX; /* a name that does not exist */
	case 2:
		return chunk * rnd(p, 40) + rnd(p, 3) - 1 + (rnd(p, 2) ? 0 : 4096) + 1;
	case 3:
		return chunk + rnd(p, 2);
	default:
		return rnd(p, chunk * 6) + 1;
	}
}

static void open_play(struct play *p)
{
	struct sched_config cfg = {.chunk_bytes = 65536u << rnd(p, 3),
				   .slots = (uint32_t)(rnd(p, 3) ? 1 + rnd(p, 40) : 1 + rnd(p, 4)),
				   .disk_pages = (uint32_t)(rnd(p, 2) ? 0 : rnd(p, 60)),
				   .inflight_max = (uint32_t)(1 + rnd(p, 32)),
				   .inflight_bytes_max = (1 + rnd(p, 64)) << 17,
				   .positions_max = rnd(p, 2) ? 0 : 4096,
				   .prefetch_bytes_per_s = rnd(p, 4) ? 0 : 50000000};

	world_open(&p->w, &cfg);
	for (int i = 0; i < FILES; i++)
		world_file(&p->w, random_size(p), rnd(p, 2) && p->w.n_files);
	for (uint32_t i = 0; i < FILES; i++) /* a size that does not exist is not known either */
		if (p->w.sizes[i] != UINT64_MAX && rnd(p, 2))
			(void)!sched_file_add(p->w.s, i, p->w.sizes[i]);
	p->w.fail_every = rnd(p, 3) ? 0 : (uint32_t)(2 + rnd(p, 20));
}

static void range(struct play *p, uint32_t file, uint64_t *off, uint64_t *len)
{
	uint64_t size = p->w.sizes[file], chunk = p->w.cfg.chunk_bytes;

	if (size == UINT64_MAX || size == 0)
		size = 1;
	*off = rnd(p, 3) ? rnd(p, size) : 0;
	*len = rnd(p, 3) ? rnd(p, chunk) + 1 : rnd(p, 4) * chunk;
}

static void op_read(struct play *p)
{
	uint32_t i = (uint32_t)rnd(p, READERS);
	struct reader *r = &p->readers[i];

	if (r->is_waiting)
		return;
	if (rnd(p, 3) == 0 || r->off + r->len >= p->w.sizes[r->file]) {
		r->file = (uint32_t)rnd(p, FILES);
		range(p, r->file, &r->off, &r->len);
	} else {
		r->off += r->len; /* go on */
	}
	if (p->w.sizes[r->file] == UINT64_MAX || r->off >= p->w.sizes[r->file])
		return;
	r->len = r->len ? r->len : 4096;
	if (r->len > 2 * p->w.cfg.chunk_bytes)
		r->len = 2 * p->w.cfg.chunk_bytes;
	if (p->w.slots < 4 && r->off / p->w.cfg.chunk_bytes != (r->off + r->len - 1) / p->w.cfg.chunk_bytes)
		r->len = p->w.cfg.chunk_bytes - r->off % p->w.cfg.chunk_bytes;
	(void)!sched_file_add(p->w.s, r->file, p->w.sizes[r->file]);
	r->is_waiting = true;
	r->since_ns = p->w.now_ns;
	world_read_start(&p->w, r->file, r->off, r->len, i + 1, i + 1);
}

static void op_append(struct play *p, uint32_t k)
{
	struct sched_entry e[16];
	size_t n = rnd(p, 16) + 1;

	for (size_t i = 0; i < n; i++) {
		e[i] = (struct sched_entry){.file = (uint32_t)rnd(p, FILES)};
		if (rnd(p, 2))
			range(p, e[i].file, &e[i].off_bytes, &e[i].len_bytes);
	}
	if (sched_stream_append(p->w.s, p->streams[k], e, n) != (int64_t)n)
		abort();
}

static void op_stream(struct play *p)
{
	uint32_t k = (uint32_t)rnd(p, STREAMS);

	if (!p->has_stream[k]) {
		if (sched_stream_create(p->w.s, &p->streams[k]))
			abort();
		p->has_stream[k] = true;
	}
	switch (rnd(p, 16)) {
	case 0:
		sched_stream_destroy(p->w.s, p->streams[k]);
		p->has_stream[k] = false;
		break;
	case 1:
		sched_stream_replace(p->w.s, p->streams[k]);
		break;
	case 2:
		sched_stream_cancel(p->w.s, p->streams[k]);
		break;
	case 3:
	case 4:
	case 5:
	case 6:
		(void)!sched_stream_mark(p->w.s, p->streams[k], (enum sched_mark)rnd(p, 12), rnd(p, 40), p->w.now_ns);
		break;
	default:
		op_append(p, k);
		break;
	}
}

static void op_wait(struct play *p)
{
	uint32_t k = (uint32_t)rnd(p, STREAMS);

	switch (rnd(p, 3)) {
	case 0:
		if (p->has_stream[k])
			(void)!sched_wait_batch(p->w.s, p->streams[k], rnd(p, 4), ++p->token, p->w.now_ns);
		break;
	case 1:
		(void)!sched_wait_file(p->w.s, (uint32_t)rnd(p, FILES), ++p->token, p->w.now_ns);
		break;
	default:
		sched_wait_cancel(p->w.s, rnd(p, p->token + 1));
		break;
	}
}

static struct world_page *random_page(struct play *p)
{
	return p->w.n_pages ? &p->w.pages[rnd(p, p->w.n_pages)] : NULL;
}

static void op_cache(struct play *p)
{
	struct world_page *g = random_page(p);

	if (!g)
		return;
	switch (rnd(p, 4)) {
	case 0:
		if (g->is_here && g->n_flight == 0 && g->pins == 0) {
			g->is_here = false;
			memset(g->valid, 0, sizeof(g->valid));
			sched_dropped(p->w.s, g->file, g->chunk_no);
		}
		break;
	case 1:
		if (g->on_tier) {
			g->on_tier = false;
			sched_tier_has(p->w.s, g->file, g->chunk_no, false);
		}
		break;
	case 2:
		if (p->n_pins < 4 && p->n_pins + 3 < p->w.slots) {
			g->pins++;
			sched_pin(p->w.s, g->file, g->chunk_no, 1);
			p->pins[p->n_pins].file = g->file;
			p->pins[p->n_pins++].chunk_no = g->chunk_no;
		}
		break;
	default:
		if (p->n_pins) {
			p->n_pins--;
			for (uint32_t i = 0; i < p->w.n_pages; i++)
				if (p->w.pages[i].file == p->pins[p->n_pins].file &&
				    p->w.pages[i].chunk_no == p->pins[p->n_pins].chunk_no)
					p->w.pages[i].pins--;
			sched_pin(p->w.s, p->pins[p->n_pins].file, p->pins[p->n_pins].chunk_no, -1);
		}
		break;
	}
}

static void op_world(struct play *p)
{
	uint32_t slots;

	switch (rnd(p, 5)) {
	case 0:
		p->w.is_frozen = !p->is_healthy && rnd(p, 4) == 0;
		break;
	case 1:
		sched_set_prefetch(p->w.s, (enum sched_prefetch)(p->is_healthy ? 0 : rnd(p, 3)));
		break;
	case 2:
		slots = (uint32_t)(p->n_pins + 4 + rnd(p, 30));
		if (slots < p->w.slots && world_resident_pages(&p->w) > slots)
			break; /* the books would have to know which pages still are to go */
		p->w.slots = slots;
		sched_set_slots(p->w.s, slots);
		break;
	default:
		world_event(&p->w, p->w.now_ns + rnd(p, 20000000));
		break;
	}
}

/* Readers whose bytes are there go on; those whose fetch failed say so again. */
static void serve(struct play *p)
{
	for (uint32_t i = 0; i < READERS; i++) {
		struct reader *r = &p->readers[i];

		if (!r->is_waiting)
			continue;
		if (!world_is_waiting(&p->w, i + 1)) {
			r->is_waiting = false;
			continue;
		}
		if (!world_is_wanted(&p->w, r->file, r->off, r->len) && p->w.n_fetches == 0)
			sched_read(p->w.s, r->file, r->off, r->len, i + 1, true, p->w.now_ns);
	}
	world_step(&p->w);
}

/* One reader after the other: each gets its bytes, whatever the others asked for. */
static int finish(struct play *p)
{
	p->is_healthy = true;
	p->w.is_frozen = false;
	p->w.fail_every = 0;
	for (uint32_t i = 0; i < p->w.n_fetches; i++)
		p->w.fetches[i].err = 0;
	for (uint32_t i = 0; i < READERS; i++) {
		struct reader *r = &p->readers[i];

		if (r->is_waiting && !world_read(&p->w, r->file, r->off, r->len, i + 1)) {
			fprintf(stderr, "reader %u waits for ever (%u slots, %u here, %u pins, %u in flight): file %u %" PRIu64 "+%" PRIu64 "\n", i,
				p->w.slots, world_resident_pages(&p->w), p->n_pins, p->w.n_fetches, r->file,
				r->off, r->len);
			for (uint32_t k = p->w.n_log > 12 ? p->w.n_log - 12 : 0; k < p->w.n_log; k++)
				fprintf(stderr, "  action %d file %u chunk %" PRIu64 " %u+%u demand %d err %d\n",
					(int)p->w.log[k].kind, p->w.log[k].file, p->w.log[k].chunk_no, p->w.log[k].off,
					p->w.log[k].len, p->w.log[k].is_demand, p->w.log[k].err);
			return 1;
		}
	}
	return 0;
}

static int play(uint64_t seed, uint32_t events)
{
	struct play p = {.rng = seed * 0x9e3779b97f4a7c15ULL + 1};
	int err;

	open_play(&p);
	for (uint32_t i = 0; i < events; i++) {
		switch (rnd(&p, 8)) {
		case 0:
			op_stream(&p);
			break;
		case 1:
			if (rnd(&p, 4) == 0)
				op_wait(&p);
			break;
		case 2:
			if (rnd(&p, 2))
				op_cache(&p);
			break;
		case 3:
			op_world(&p);
			break;
		default:
			op_read(&p);
			break;
		}
		world_event(&p.w, p.w.now_ns + rnd(&p, 3000000));
		serve(&p);
		if (i % 16 == 0)
			check_invariants(p.w.s);
	}
	err = finish(&p);
	check_invariants(p.w.s);
	world_close(&p.w);
	return err;
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 300;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

	for (uint64_t i = 0; i < rounds; i++) {
		if (getenv("VERBOSE"))
			fprintf(stderr, "seed %" PRIu64 "\n", seed + i);
		if (play(seed + i, 600)) {
			fprintf(stderr, "seed %" PRIu64 "\n", seed + i);
			return 1;
		}
	}
	return 0;
}
