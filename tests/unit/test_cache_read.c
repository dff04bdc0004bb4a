/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and fetches on a healthy origin: exactness, single flight, extents, wide reads, eviction, withdrawal. */
#include "cache/cache.h"
#include "tests/unit/cache_world.h"

#include <criterion/criterion.h>
#include <pthread.h>

#define CHUNK 65536u

static struct cache_stats stats(struct world *w)
{
	struct cache_stats st;

	cache_stats_get(w->cache, &st);
	return st;
}

Test(cache_read, every_edge_of_every_size)
{
	static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5};
	struct cache_file *f;
	struct world w;
	char name[16];

	world_open(&w, 8, CHUNK);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		snprintf(name, sizeof(name), "f%u", i);
		world_write(&w, name, i, 1, sizes[i]);
		f = world_get(&w, name);
		for (uint64_t off = 0; off <= sizes[i]; off += off < 2 || off + 3 > sizes[i] ? 1 : sizes[i] - off - 2)
			for (uint64_t end = off; end <= sizes[i];
			     end += end < off + 2 || end + 3 > sizes[i] ? 1 : sizes[i] - end - 2)
				cr_assert_eq(world_read(&w, f, off, (uint32_t)(end - off), i, 1), 0);
		cr_assert_eq(world_read(&w, f, sizes[i], 1, i, 1), -EINVAL, "past the end is the caller's bug");
		cache_file_put(w.cache, f);
	}
	world_close(&w);
}

Test(cache_read, second_read_is_a_hit_and_costs_no_origin_read)
{
	struct cache_file *f;
	struct world w;
	struct reader rd;
	long before;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 0, 2 * CHUNK, 1, 1), 0);
	world_wait_fetched(&w, w.n_ordered); /* told after the last unpin */
	before = w.fake.n_preadv;
	cr_assert_eq(reader_start(&rd, &w, f, 100, CHUNK), 1);
	cr_assert(rd.is_done && rd.err == 0 && reader_matches(&rd, 1, 1));
	reader_finish(&rd);
	cr_assert_eq(w.fake.n_preadv, before);
	cr_assert_eq(stats(&w).hit_bytes, CHUNK);
	cr_assert_eq(stats(&w).slots_used, 2);
	cr_assert_eq(stats(&w).slots_pinned, 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* Both hold the file while its data is on its way, so that nothing is left to luck. */
static void hang(struct world *w, const char *name)
{
	atomic_store(&w->fake.hang_ino, world_ino(w, name));
}

static void wait_hanging(struct world *w, long n)
{
	hfs_mutex_lock(&w->fake.lock);
	while (w->fake.n_hanging < n)
		MUST(hfs_cond_wait_until(&w->fake.cond, &w->fake.lock, hfs_now_ns() + WAIT_NS));
	hfs_mutex_unlock(&w->fake.lock);
}

static void give_fd(struct world *w, struct cache_file *f, const char *name)
{
	struct origin_attr attr;
	int fd;

	MUST(origin_open(w->origin, name, &fd, &attr) == 0);
	cache_file_give_fd(w->cache, f, fd);
}

Test(cache_read, eight_readers_of_a_cold_block_cost_one_origin_read)
{
	struct cache_range missing;
	struct cache_file *f;
	struct reader rd[8];
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	give_fd(&w, f, "f");
	hang(&w, "f");
	for (int i = 0; i < 8; i++)
		cr_assert_eq(reader_start(&rd[i], &w, f, 4096 * (uint64_t)i, 4096 * 2), 0);
	/* A read of what is on its way asks for nothing. */
	cache_read_missing(w.cache, &rd[3].r, &missing);
	cr_assert_eq(missing.len_bytes, 0);
	fake_unhang(&w.fake);
	for (int i = 0; i < 8; i++) {
		cr_assert_eq(reader_wait(&rd[i]), 0);
		cr_assert(reader_matches(&rd[i], 1, 1));
		reader_finish(&rd[i]);
	}
	cr_assert_eq(stats(&w).origin_bytes, 4096 * 9, "no byte twice");
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, same_block_single_preadv)
{
	struct cache_file *f;
	struct reader rd[8];
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	give_fd(&w, f, "f");
	hang(&w, "f");
	for (int i = 0; i < 8; i++) {
		cr_assert_eq(reader_start(&rd[i], &w, f, 0, CHUNK), 0);
		cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, i % 2 != 0), 0); /* everybody orders it once more */
	}
	fake_unhang(&w.fake);
	for (int i = 0; i < 8; i++) {
		cr_assert_eq(reader_wait(&rd[i]), 0);
		reader_finish(&rd[i]);
	}
	world_wait_fetched(&w, w.n_ordered);
	cr_assert_eq(w.n_fetched_ok, w.n_ordered, "each order is answered");
	cr_assert_eq(w.fake.n_preadv, 1);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, extents_bring_only_their_blocks)
{
	struct cache_range missing;
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 4, 1 << 20);
	world_write(&w, "f", 1, 1, 1 << 20);
	f = world_get(&w, "f");
	cr_assert_eq(world_read(&w, f, 8192, 4096, 1, 1), 0);
	cr_assert_eq(world_read(&w, f, 16384 + 5, 10, 1, 1), 0);
	cr_assert_eq(stats(&w).origin_bytes, 8192);
	cr_assert_eq(stats(&w).slots_used, 1);
	rd = (struct reader){.w = &w, .buf = malloc(20480)};
	rd.r = (struct cache_read){.file = f, .off_bytes = 8000, .len_bytes = 12000, .done = reader_done};
	cr_assert_eq(cache_read_submit(w.cache, &rd.r, &missing), 0);
	cr_assert_eq(missing.off_bytes, 4096);
	cr_assert_eq(missing.len_bytes, 12288, "to the end of the block before the valid one: %llu",
		     (unsigned long long)missing.len_bytes);
	world_fetch_range(&w, f, &missing);
	cr_assert_eq(reader_wait(&rd), 0);
	cr_assert(reader_matches(&rd, 1, 1));
	reader_finish(&rd);
	cr_assert_eq(stats(&w).origin_bytes, 4 * 4096, "the valid block between was not read again");
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, more_holes_than_one_visit_takes)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 4, 1 << 20);
	world_write(&w, "f", 1, 1, 1 << 20);
	f = world_get(&w, "f");
	for (unsigned i = 0; i < 256; i += 2) {
		cr_assert_eq(world_fetch(&w, f, 0, i * 4096, 4096, false), 0);
		world_wait_fetched(&w, i / 2 + 1);
	}
	cr_assert_eq(world_fetch(&w, f, 0, 0, 1 << 20, true), 0);
	world_wait_fetched(&w, 129);
	cr_assert_eq(w.last_err, 0);
	cr_assert_eq(stats(&w).origin_bytes, 1 << 20);
	cr_assert_eq(world_read(&w, f, 0, 1 << 20, 1, 1), 0);
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, bad_orders_are_refused)
{
	struct cache_file *f;
	struct world w;

	world_open(&w, 4, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK + 100);
	f = world_get(&w, "f");
	cr_assert_eq(cache_fetch(w.cache, f, 0, 1, 4096, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, 0, 0, 100, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, 0, 0, CHUNK + 4096, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, 1, 0, 101, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, 2, 0, 4096, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, UINT64_MAX, 0, 4096, true, 0), -EINVAL);
	cr_assert_eq(cache_fetch(w.cache, f, 0, 0, 0, true, 0), -EINVAL);
	cr_assert_eq(world_fetch(&w, f, 1, 0, 100, true), 0);
	world_wait_fetched(&w, 1);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* ---- eviction ---- */

struct pinned {
	struct cache_read r;
	struct world *w;
	struct cache_file *file;
	uint8_t seen[2];
};

static void evict_inside(struct cache_read *r, int err, const struct iovec *iov, int n)
{
	struct pinned *p = (struct pinned *)r;
	const uint8_t *data = iov[0].iov_base;
	struct cache_stats st;

	cr_assert(err == 0 && n == 1);
	p->seen[0] = data[9];
	cache_evict(p->w->cache, p->file, 0);
	st = stats(p->w);
	cr_assert_eq(st.slots_pinned, 1);
	cr_assert_eq(st.slots_used, 1, "the slot is not free while it is being copied from");
	p->seen[1] = data[9];
}

Test(cache_read, evicted_while_pinned)
{
	struct cache_range missing;
	struct cache_file *f;
	struct pinned p;
	struct world w;

	world_open(&w, 1, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, true), 0);
	world_wait_fetched(&w, 1);
	p = (struct pinned){.w = &w, .file = f};
	p.r = (struct cache_read){.file = f, .len_bytes = 100, .done = evict_inside};
	cr_assert_eq(cache_read_submit(w.cache, &p.r, &missing), 1);
	cr_assert_eq(p.seen[0], pattern_byte(1, 1, 9));
	cr_assert_eq(p.seen[1], pattern_byte(1, 1, 9));
	cr_assert_eq(stats(&w).slots_used, 0);
	p.r.done = evict_inside;
	cr_assert_eq(cache_read_submit(w.cache, &p.r, &missing), 0, "it left the table at once");
	cr_assert(cache_read_cancel(w.cache, &p.r));
	cr_assert_not(cache_read_cancel(w.cache, &p.r));
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, a_wide_read_survives_the_eviction_of_its_first_half)
{
	struct cache_range missing;
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 1, CHUNK); /* the two halves are never there together */
	world_write(&w, "f", 1, 1, 2 * CHUNK);
	f = world_get(&w, "f");
	rd = (struct reader){.w = &w, .buf = malloc(2 * CHUNK)};
	rd.r = (struct cache_read){.file = f, .len_bytes = 2 * CHUNK, .done = reader_done};
	cr_assert_eq(cache_read_submit(w.cache, &rd.r, &missing), 0);
	cr_assert_eq(missing.len_bytes, 2 * CHUNK);
	cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, true), 0);
	world_wait_fetched(&w, 1);
	cr_assert_eq(world_fetch(&w, f, 1, 0, CHUNK, true), 0); /* evicts chunk 0 */
	cr_assert_eq(reader_wait(&rd), 0);
	cr_assert(reader_matches(&rd, 1, 1));
	reader_finish(&rd);
	cr_assert_eq(stats(&w).origin_bytes, 2 * CHUNK, "chunk 0 was kept aside, not read again");
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, evicted_in_flight_still_answers)
{
	struct cache_file *f;
	struct reader rd;
	struct world w;

	world_open(&w, 2, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	give_fd(&w, f, "f");
	hang(&w, "f");
	cr_assert_eq(reader_start(&rd, &w, f, 0, CHUNK), 0);
	wait_hanging(&w, 1);
	cache_evict(w.cache, f, 0);
	fake_unhang(&w.fake);
	cr_assert_eq(reader_wait(&rd), 0);
	cr_assert(reader_matches(&rd, 1, 1));
	reader_finish(&rd);
	world_wait_fetched(&w, 1);
	cr_assert_eq(stats(&w).slots_used, 0, "then the slot goes");
	cache_file_put(w.cache, f);
	world_close(&w);
}

Test(cache_read, withdrawn_read_is_never_answered)
{
	struct cache_file *f;
	struct reader rd[2];
	struct world w;

	world_open(&w, 2, CHUNK);
	world_write(&w, "f", 1, 1, CHUNK);
	f = world_get(&w, "f");
	give_fd(&w, f, "f");
	hang(&w, "f");
	cr_assert_eq(reader_start(&rd[0], &w, f, 0, CHUNK), 0);
	cr_assert_eq(reader_start(&rd[1], &w, f, 0, 10), 0);
	wait_hanging(&w, 1);
	cr_assert(cache_read_cancel(w.cache, &rd[0].r)); /* the leader */
	fake_unhang(&w.fake);
	cr_assert_eq(reader_wait(&rd[1]), 0);
	cr_assert_not(rd[0].is_done);
	cr_assert_not(cache_read_cancel(w.cache, &rd[1].r));
	reader_finish(&rd[0]);
	reader_finish(&rd[1]);
	cache_file_put(w.cache, f);
	world_close(&w);
}

/* ---- the queue ---- */

Test(cache_read, unfetch_drops_what_has_not_begun_and_spares_what_is_waited_for)
{
	struct cache_config cfg = {
		.memory_bytes = 8 * CHUNK, .chunk_bytes = CHUNK, .threads_max = 1, .threads_working_max = 1};
	struct cache_file *f, *g;
	struct reader rd;
	struct world w;

	world_open_cfg(&w, &cfg);
	world_write(&w, "f", 1, 1, CHUNK);
	world_write(&w, "g", 2, 1, 4 * CHUNK);
	f = world_get(&w, "f");
	g = world_get(&w, "g");
	give_fd(&w, f, "f");
	hang(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, true), 0);
	wait_hanging(&w, 1); /* the only thread */
	cr_assert_eq(world_fetch(&w, g, 0, 0, CHUNK, false), 0);
	cr_assert_eq(world_fetch(&w, g, 1, 0, CHUNK, false), 0);
	rd = (struct reader){.w = &w, .buf = malloc(CHUNK)};
	rd.r = (struct cache_read){.file = g, .off_bytes = CHUNK, .len_bytes = 5, .done = reader_done};
	struct cache_range missing;
	cr_assert_eq(cache_read_submit(w.cache, &rd.r, &missing), 0);
	cr_assert_eq(missing.len_bytes, 0, "it is on its way");
	cache_unfetch(w.cache, g, 0);
	cache_unfetch(w.cache, g, 1);
	cache_unfetch(w.cache, f, 0);
	fake_unhang(&w.fake);
	cr_assert_eq(reader_wait(&rd), 0);
	cr_assert(reader_matches(&rd, 2, 1));
	world_wait_fetched(&w, 3);
	cr_assert_eq(w.n_fetched_ok, 2, "g's chunk 0 was cancelled");
	reader_finish(&rd);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

static struct {
	uint64_t order[16];
	unsigned n;
} seen;

static void note_order(void *ctx, const struct cache_fetch_result *r)
{
	seen.order[seen.n++] = r->chunk_no;
	world_fetched(ctx, r);
}

Test(cache_read, demand_first_then_by_deadline_and_a_reader_pulls_forward)
{
	struct cache_config cfg = {
		.memory_bytes = 16 * CHUNK, .chunk_bytes = CHUNK, .threads_max = 1, .threads_working_max = 1};
	static const uint64_t expected[] = {0, 10, 4, 8, 6, 2};
	struct cache_file *f, *g;
	struct reader rd;
	struct world w;

	world_open_cfg(&w, &cfg);
	/* The callback table was copied: count through a second cache of our own. */
	cache_shutdown(w.cache);
	cr_assert(cache_destroy(w.cache, 10000));
	cfg.origin = w.origin;
	cfg.io = &w.fake.io;
	cfg.cb = (struct cache_callbacks){.ctx = &w, .fetched = note_order, .slots_ready = world_slots_ready};
	cr_assert_eq(cache_create(&cfg, &w.cache), 0);
	world_write(&w, "f", 1, 1, CHUNK);
	world_write(&w, "g", 2, 1, 12 * CHUNK);
	f = world_get(&w, "f");
	g = world_get(&w, "g");
	give_fd(&w, f, "f");
	hang(&w, "f");
	w.n_pledged = 6;
	cr_assert_eq(cache_fetch(w.cache, f, 0, 0, CHUNK, true, 0), 0);
	wait_hanging(&w, 1);
	cr_assert_eq(cache_fetch(w.cache, g, 2, 0, CHUNK, false, 400), 0);
	cr_assert_eq(cache_fetch(w.cache, g, 4, 0, CHUNK, false, 900), 0);
	cr_assert_eq(cache_fetch(w.cache, g, 6, 0, CHUNK, false, 300), 0);
	cr_assert_eq(cache_fetch(w.cache, g, 8, 0, CHUNK, false, 100), 0);
	cr_assert_eq(cache_fetch(w.cache, g, 10, 0, CHUNK, true, 0), 0);
	cr_assert_eq(reader_start(&rd, &w, g, 4 * CHUNK, 1), 0); /* pulls 4 forward, behind 10 */
	fake_unhang(&w.fake);
	cr_assert_eq(reader_wait(&rd), 0);
	world_wait_fetched(&w, 6);
	for (unsigned i = 0; i < 6; i++)
		cr_assert_eq(seen.order[i], expected[i], "place %u: chunk %llu", i, (unsigned long long)seen.order[i]);
	reader_finish(&rd);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

Test(cache_read, neighbours_that_wait_together_are_read_together)
{
	struct cache_config cfg = {
		.memory_bytes = 16 * CHUNK, .chunk_bytes = CHUNK, .threads_max = 1, .threads_working_max = 1};
	struct cache_file *f, *g;
	struct world w;
	long before;

	world_open_cfg(&w, &cfg);
	world_write(&w, "f", 1, 1, CHUNK);
	world_write(&w, "g", 2, 1, 8 * CHUNK);
	f = world_get(&w, "f");
	g = world_get(&w, "g");
	give_fd(&w, f, "f");
	give_fd(&w, g, "g");
	hang(&w, "f");
	cr_assert_eq(world_fetch(&w, f, 0, 0, CHUNK, true), 0);
	wait_hanging(&w, 1);
	before = w.fake.n_preadv;
	for (unsigned i = 0; i < 8; i++)
		cr_assert_eq(world_fetch(&w, g, i, 0, CHUNK, false), 0);
	fake_unhang(&w.fake);
	world_wait_fetched(&w, 9);
	cr_assert_eq(w.n_fetched_ok, 9);
	cr_assert_eq(w.fake.n_preadv, before + 1);
	cr_assert_eq(world_read(&w, g, 0, 8 * CHUNK, 2, 1), 0);
	cache_file_put(w.cache, f);
	cache_file_put(w.cache, g);
	world_close(&w);
}

/* ---- few slots ---- */

struct roamer {
	struct world *w;
	struct cache_file *f;
	unsigned seed;
};

static void *roam(void *arg)
{
	struct roamer *r = arg;

	for (int i = 0; i < 60; i++) {
		uint64_t off = (uint64_t)rand_r(&r->seed) % (30 * CHUNK);

		MUST(world_read(r->w, r->f, off, 1 + (uint32_t)rand_r(&r->seed) % (3 * CHUNK), 1, 1) == 0);
	}
	return NULL;
}

Test(cache_read, sixteen_readers_on_the_fewest_slots_get_on)
{
	struct roamer r[16];
	pthread_t t[16];
	struct cache_file *f;
	struct world w;

	for (uint32_t slots = 1; slots <= 4; slots += 3) {
		world_open(&w, slots, CHUNK);
		world_write(&w, "f", 1, 1, 34 * CHUNK);
		f = world_get(&w, "f");
		for (unsigned i = 0; i < 16; i++) {
			r[i] = (struct roamer){&w, f, i + 1};
			cr_assert_eq(pthread_create(&t[i], NULL, roam, &r[i]), 0);
		}
		for (unsigned i = 0; i < 16; i++)
			pthread_join(t[i], NULL);
		cache_file_put(w.cache, f);
		world_close(&w);
	}
}
