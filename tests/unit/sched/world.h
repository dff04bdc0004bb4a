/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/sched/world.h - a small world round the scheduler: a cache that executes its actions, an origin with
 * latency and serial bandwidth, a virtual clock, and the checks that must hold at every action.
 *
 * Checked always (abort with a line on stderr): resident + in-flight pages <= slots; no EVICT of a page that is
 * in flight, pinned or not resident; a FETCH lies inside its file; at most inflight_max outstanding.
 */
#ifndef TESTS_UNIT_SCHED_WORLD_H
#define TESTS_UNIT_SCHED_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/sched.h"

#define WORLD_ACTIONS 64

struct world_page {
	uint32_t file;
	uint64_t chunk_no;
	uint64_t valid[4], flight[4];
	uint32_t n_flight;
	uint32_t pins;
	bool is_here; /* holds a slot */
	bool on_tier;
};

struct world_fetch {
	uint32_t page;
	uint32_t off, len;
	uint64_t issued_ns, done_ns;
	bool is_demand, is_resolve, is_cancelled, from_tier;
	int err;
};

struct world_log {
	enum sched_action_kind kind;
	uint32_t file;
	uint64_t chunk_no;
	uint32_t off, len;
	bool is_demand, from_tier;
	uint64_t token;
	int err;
};

/* A reader that waits: answered when its bytes are there, before anything can be evicted. */
struct world_watch {
	uint32_t file;
	uint64_t off, len;
	bool is_waiting;
};
#define WORLD_WATCHES 64

struct world {
	struct sched *s;
	struct sched_config cfg;
	uint64_t now_ns;
	uint64_t latency_ns, bytes_per_s, link_free_ns;
	uint64_t tier_ns_per_page;
	uint64_t *sizes; /* of files: the truth */
	uint32_t n_files;
	uint32_t slots;
	struct world_page *pages;
	uint32_t n_pages, cap_pages;
	uint32_t *index; /* hash by (file, chunk) */
	struct world_fetch *fetches;
	uint32_t n_fetches, cap_fetches;
	struct world_log *log;
	uint32_t n_log, cap_log;
	uint64_t origin_bytes, tier_bytes, n_evicted, n_fetched, n_tier_writes;
	uint32_t fail_every; /* every n-th fetch fails; 0: none */
	uint32_t fetch_count;
	struct world_watch watches[WORLD_WATCHES];
	bool is_frozen; /* the origin does not answer */
};

/* Pages of 1 MiB, 64 fetches and 256 MiB outstanding at most. */
struct sched_config world_config(uint32_t slots, uint32_t disk_pages);
void world_open(struct world *w, const struct sched_config *cfg);
/* A stream with one entry. */
uint32_t world_order(struct world *w, uint32_t file, uint64_t off, uint64_t len);
void world_close(struct world *w);
uint32_t world_file(struct world *w, uint64_t size_bytes, bool is_known);
/* Take and execute the actions that are due now. */
void world_step(struct world *w);
/* Let time go on to the next event, at most to until_ns. False if there was none. */
bool world_event(struct world *w, uint64_t until_ns);
void world_run(struct world *w, uint64_t until_ns);
bool world_is_resident(struct world *w, uint32_t file, uint64_t off, uint64_t len);
/* Is every byte there or on its way? */
bool world_is_wanted(struct world *w, uint32_t file, uint64_t off, uint64_t len);
/* Read as a reader does: returns when the bytes are there. False: no progress for 100 s of virtual time. */
bool world_read(struct world *w, uint32_t file, uint64_t off, uint64_t len, uint64_t reader);
/* The report of a read that does not wait, and whether it (number `watch`) still does. */
void world_read_start(struct world *w, uint32_t file, uint64_t off, uint64_t len, uint64_t reader, uint32_t watch);
bool world_is_waiting(const struct world *w, uint32_t watch);
uint32_t world_resident_pages(const struct world *w);
/* Index in the log of the first action of that kind on that page at or after `from`; UINT32_MAX: none. */
uint32_t world_find(const struct world *w, enum sched_action_kind kind, uint32_t file, uint64_t chunk_no, uint32_t from);

#endif
