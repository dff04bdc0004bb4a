/* SPDX-License-Identifier: Apache-2.0 */
/* tests/unit/sched/world.c - see world.h. */
#include "tests/unit/sched/world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH (1u << 16)

#define CHECK(cond, ...)                                                                                               \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "world: %s (line %d): ", #cond, __LINE__);                                     \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static void *grow(void *p, uint32_t *cap, uint32_t need, size_t size)
{
	if (need <= *cap)
		return p;
	*cap = need * 2 < 64 ? 64 : need * 2;
	p = realloc(p, *cap * size);
	CHECK(p, "no memory");
	return p;
}

struct sched_config world_config(uint32_t slots, uint32_t disk_pages)
{
	return (struct sched_config){.chunk_bytes = 1u << 20,
				     .slots = slots,
				     .disk_pages = disk_pages,
				     .inflight_max = 64,
				     .inflight_bytes_max = 256u << 20};
}

void world_open(struct world *w, const struct sched_config *cfg)
{
	memset(w, 0, sizeof(*w));
	w->cfg = *cfg;
	w->slots = cfg->slots;
	w->now_ns = 1000000000;
	w->latency_ns = 1000000;
	w->bytes_per_s = 200000000;
	w->tier_ns_per_page = 200000;
	w->index = malloc(HASH * sizeof(uint32_t));
	CHECK(w->index, "no memory");
	memset(w->index, 0xff, HASH * sizeof(uint32_t));
	CHECK(sched_create(cfg, &w->s) == 0, "create");
}

void world_close(struct world *w)
{
	sched_destroy(w->s);
	free(w->sizes);
	free(w->pages);
	free(w->index);
	free(w->fetches);
	free(w->log);
	memset(w, 0, sizeof(*w));
}

uint32_t world_file(struct world *w, uint64_t size_bytes, bool is_known)
{
	w->sizes = realloc(w->sizes, (w->n_files + 1) * sizeof(uint64_t));
	CHECK(w->sizes, "no memory");
	w->sizes[w->n_files] = size_bytes;
	CHECK(sched_file_add(w->s, w->n_files, is_known ? size_bytes : SCHED_SIZE_UNKNOWN) == 0, "file_add");
	return w->n_files++;
}

uint32_t world_order(struct world *w, uint32_t file, uint64_t off, uint64_t len)
{
	const struct sched_entry e = {file, off, len};
	uint32_t st;

	CHECK(sched_stream_create(w->s, &st) == 0 && sched_stream_append(w->s, st, &e, 1) == 1, "no memory");
	return st;
}

static uint32_t page_id(struct world *w, uint32_t file, uint64_t chunk_no, bool may_add)
{
	uint32_t h = (uint32_t)((file * 0x9e3779b97f4a7c15ULL + chunk_no * 0xff51afd7ed558ccdULL) >> 40) & (HASH - 1);

	for (; w->index[h] != UINT32_MAX; h = (h + 1) & (HASH - 1))
		if (w->pages[w->index[h]].file == file && w->pages[w->index[h]].chunk_no == chunk_no)
			return w->index[h];
	if (!may_add)
		return UINT32_MAX;
	CHECK(w->n_pages < HASH / 2, "too many pages for this small world");
	w->pages = grow(w->pages, &w->cap_pages, w->n_pages + 1, sizeof(*w->pages));
	w->pages[w->n_pages] = (struct world_page){.file = file, .chunk_no = chunk_no};
	w->index[h] = w->n_pages;
	return w->n_pages++;
}

static uint32_t block_bytes(const struct world *w)
{
	uint64_t b = w->cfg.chunk_bytes / 256;

	return b > 4096 ? (uint32_t)b : 4096;
}

static void bits(const struct world *w, uint64_t *m, uint32_t off, uint32_t len, bool is_set)
{
	uint32_t bb = block_bytes(w);

	for (uint32_t b = off / bb; len && b <= (off + len - 1) / bb; b++) {
		if (is_set)
			m[b / 64] |= 1ULL << (b % 64);
		else
			m[b / 64] &= ~(1ULL << (b % 64));
	}
}

static bool bits_all(const struct world *w, const uint64_t *m, const uint64_t *m2, uint32_t off, uint32_t len)
{
	uint32_t bb = block_bytes(w);

	for (uint32_t b = off / bb; len && b <= (off + len - 1) / bb; b++)
		if (!((m[b / 64] | (m2 ? m2[b / 64] : 0)) >> (b % 64) & 1))
			return false;
	return true;
}

/* A fetch that is late holds no slot and does not count as outstanding. */
static bool is_late(const struct world *w, const struct world_fetch *f)
{
	return w->now_ns - f->issued_ns >= 200000000;
}

/* A name that is looked up and leads to more than one chunk, or to nothing, brings no data. */
static bool takes_slot(const struct world *w, const struct world_fetch *f)
{
	uint64_t size = w->sizes[w->pages[f->page].file];

	return !f->is_resolve || (size > 0 && size <= w->cfg.chunk_bytes);
}

static bool page_holds(const struct world *w, uint32_t id)
{
	const struct world_page *p = &w->pages[id];

	if (!p->is_here || (p->valid[0] | p->valid[1] | p->valid[2] | p->valid[3]))
		return p->is_here;
	for (uint32_t i = 0; i < w->n_fetches; i++)
		if (w->fetches[i].page == id && !is_late(w, &w->fetches[i]) && takes_slot(w, &w->fetches[i]))
			return true;
	return false;
}

uint32_t world_resident_pages(const struct world *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_pages; i++)
		n += page_holds(w, i);
	return n;
}

static uint32_t outstanding(const struct world *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_fetches; i++)
		n += !is_late(w, &w->fetches[i]) && takes_slot(w, &w->fetches[i]);
	return n;
}

static void log_add(struct world *w, const struct sched_action *a)
{
	w->log = grow(w->log, &w->cap_log, w->n_log + 1, sizeof(*w->log));
	w->log[w->n_log++] = (struct world_log){a->kind,      a->file,	    a->chunk_no, a->off_bytes, a->len_bytes,
						a->is_demand, a->from_tier, a->token,	 a->err};
}

static uint64_t transfer(struct world *w, uint64_t bytes)
{
	uint64_t start = w->link_free_ns > w->now_ns ? w->link_free_ns : w->now_ns;

	w->link_free_ns = start + bytes * 1000000000ULL / w->bytes_per_s;
	return w->link_free_ns + w->latency_ns;
}

static void do_fetch(struct world *w, const struct sched_action *a)
{
	uint32_t id = page_id(w, a->file, a->chunk_no, true);
	struct world_page *p = &w->pages[id];
	bool is_resolve = a->kind == SCHED_RESOLVE;
	struct world_fetch f = {.page = id,
				.off = a->off_bytes,
				.len = a->len_bytes,
				.issued_ns = w->now_ns,
				.is_demand = a->is_demand,
				.is_resolve = is_resolve,
				.from_tier = a->from_tier};

	for (uint32_t i = 0; i < w->n_fetches; i++) { /* said again as demand: pulled forward, still one fetch */
		if (w->fetches[i].page == id && w->fetches[i].is_resolve && !is_resolve && takes_slot(w, &w->fetches[i]) &&
		    a->is_demand) {
			w->fetches[i].is_demand = true; /* the look-up brings it */
			return;
		}
		if (w->fetches[i].page == id && w->fetches[i].off == f.off && w->fetches[i].len == f.len &&
		    w->fetches[i].is_resolve == is_resolve) {
			CHECK(a->is_demand, "a prefetch of %u:%" PRIu64 " twice", a->file, a->chunk_no);
			w->fetches[i].is_demand = true;
			w->fetches[i].is_cancelled = false;
			return;
		}
	}
	CHECK(a->len_bytes > 0 && a->off_bytes % block_bytes(w) == 0, "range %u+%u", a->off_bytes, a->len_bytes);
	CHECK(is_resolve || a->chunk_no * w->cfg.chunk_bytes + a->off_bytes + a->len_bytes <= w->sizes[a->file],
	      "past the end of file %u", a->file);
	CHECK(!a->from_tier || p->on_tier, "from the tier, which has not got it");
	p->is_here = true;
	p->n_flight++;
	if (is_resolve)
		f.len = (uint32_t)w->cfg.chunk_bytes;
	bits(w, p->flight, f.off, f.len, true);
	if (a->from_tier) {
		f.done_ns = w->now_ns + w->tier_ns_per_page;
		w->tier_bytes += f.len;
	} else {
		uint64_t n = is_resolve ? (w->sizes[a->file] <= w->cfg.chunk_bytes ? w->sizes[a->file] : 0) : f.len;

		f.done_ns = transfer(w, n);
		w->origin_bytes += n;
		w->n_fetched++;
	}
	if (w->fail_every && ++w->fetch_count % w->fail_every == 0)
		f.err = -EIO;
	w->fetches = grow(w->fetches, &w->cap_fetches, w->n_fetches + 1, sizeof(*w->fetches));
	w->fetches[w->n_fetches++] = f;
	CHECK(outstanding(w) <= w->cfg.inflight_max, "%u outstanding", outstanding(w));
	CHECK(world_resident_pages(w) <= w->slots, "%u pages for %u slots", world_resident_pages(w), w->slots);
}

static void do_evict(struct world *w, const struct sched_action *a)
{
	uint32_t id = page_id(w, a->file, a->chunk_no, false);
	struct world_page *p = &w->pages[id];

	CHECK(id != UINT32_MAX && p->is_here, "evict of %u:%" PRIu64 ", not resident", a->file, a->chunk_no);
	CHECK(p->n_flight == 0, "evict of %u:%" PRIu64 ", in flight", a->file, a->chunk_no);
	CHECK(p->pins == 0, "evict of %u:%" PRIu64 ", pinned", a->file, a->chunk_no);
	p->is_here = false;
	memset(p->valid, 0, sizeof(p->valid));
	w->n_evicted++;
}

static void do_unfetch(struct world *w, const struct sched_action *a)
{
	uint32_t id = page_id(w, a->file, a->chunk_no, false);

	for (uint32_t i = 0; i < w->n_fetches; i++) {
		struct world_fetch *f = &w->fetches[i];

		/* Only what has not begun to arrive can still be taken back. */
		if (f->page == id && f->off == a->off_bytes && f->done_ns > w->now_ns + w->latency_ns && !f->err) {
			f->is_cancelled = true;
			f->done_ns = w->now_ns + 1;
		}
	}
}

static void do_tier(struct world *w, const struct sched_action *a)
{
	uint32_t id = page_id(w, a->file, a->chunk_no, true), n = 0;
	struct world_page *p = &w->pages[id];

	if (a->kind == SCHED_TIER_DROP) {
		CHECK(p->on_tier, "drop of what is not on the tier");
		p->on_tier = false;
		return;
	}
	CHECK(p->is_here, "admission of a page that is not resident");
	p->on_tier = true;
	w->n_tier_writes++;
	for (uint32_t i = 0; i < w->n_pages; i++)
		n += w->pages[i].on_tier;
	CHECK(n <= w->cfg.disk_pages, "%u pages on a tier of %u", n, w->cfg.disk_pages);
}

static void execute(struct world *w, const struct sched_action *a)
{
	log_add(w, a);
	switch (a->kind) {
	case SCHED_FETCH:
	case SCHED_RESOLVE:
		do_fetch(w, a);
		break;
	case SCHED_EVICT:
		do_evict(w, a);
		break;
	case SCHED_UNFETCH:
		do_unfetch(w, a);
		break;
	case SCHED_TIER_ADMIT:
	case SCHED_TIER_DROP:
		do_tier(w, a);
		break;
	case SCHED_WAIT_DONE:
		break;
	}
}

void world_step(struct world *w)
{
	struct sched_action a[WORLD_ACTIONS];
	size_t n;

	do {
		n = sched_step(w->s, w->now_ns, a, WORLD_ACTIONS);
		for (size_t i = 0; i < n; i++)
			execute(w, &a[i]);
	} while (n == WORLD_ACTIONS);
}

static void serve(struct world *w)
{
	for (uint32_t i = 0; i < WORLD_WATCHES; i++) {
		struct world_watch *r = &w->watches[i];

		if (r->is_waiting && world_is_resident(w, r->file, r->off, r->len))
			r->is_waiting = false;
	}
}

static void land(struct world *w, uint32_t i)
{
	struct world_fetch f = w->fetches[i];
	struct world_page *p = &w->pages[f.page];
	int err = f.is_cancelled ? -ECANCELED : f.err;
	uint64_t size = w->sizes[p->file];

	if (takes_slot(w, &f) && !page_holds(w, f.page) && world_resident_pages(w) >= w->slots) {
		sched_shortage(w->s, 1, w->now_ns); /* it has data to come and no slot */
		w->fetches[i].done_ns = w->now_ns + 1000000;
		return;
	}
	w->fetches[i] = w->fetches[--w->n_fetches];
	p->n_flight--;
	bits(w, p->flight, f.off, f.len, false);
	if (f.is_resolve) {
		sched_file_resolved(w->s, p->file, size == UINT64_MAX ? -ENOENT : 0, size, SCHED_NO_FILE, w->now_ns);
		if (size == UINT64_MAX || size > w->cfg.chunk_bytes || size == 0) {
			p->is_here = p->n_flight > 0 || p->valid[0] | p->valid[1] | p->valid[2] | p->valid[3];
			return;
		}
		f.len = (uint32_t)size;
	}
	if (err == 0)
		bits(w, p->valid, f.off, f.len, true);
	else if (p->n_flight == 0 && !(p->valid[0] | p->valid[1] | p->valid[2] | p->valid[3]))
		p->is_here = false;
	serve(w);
	sched_fetched(w->s, p->file, p->chunk_no, f.off, f.len, err, f.issued_ns, w->now_ns);
}

bool world_event(struct world *w, uint64_t until_ns)
{
	uint64_t next = sched_next_ns(w->s);
	uint32_t which = UINT32_MAX;

	if (next <= w->now_ns)
		next = w->now_ns + 1000;
	for (uint32_t i = 0; !w->is_frozen && i < w->n_fetches; i++)
		if (w->fetches[i].done_ns <= next) {
			next = w->fetches[i].done_ns;
			which = i;
		}
	if (next > until_ns) {
		w->now_ns = until_ns;
		return false;
	}
	w->now_ns = next > w->now_ns ? next : w->now_ns;
	if (which != UINT32_MAX)
		land(w, which);
	world_step(w);
	return true;
}

void world_run(struct world *w, uint64_t until_ns)
{
	world_step(w);
	while (world_event(w, until_ns))
		;
	world_step(w);
}

static bool each_chunk(struct world *w, uint32_t file, uint64_t off, uint64_t len, bool with_flight)
{
	uint64_t end = off + len < w->sizes[file] ? off + len : w->sizes[file];

	while (off < end) {
		uint64_t c = off / w->cfg.chunk_bytes, at = off - c * w->cfg.chunk_bytes;
		uint64_t n = w->cfg.chunk_bytes - at < end - off ? w->cfg.chunk_bytes - at : end - off;
		uint32_t id = page_id(w, file, c, false);

		if (id == UINT32_MAX || !bits_all(w, w->pages[id].valid, with_flight ? w->pages[id].flight : NULL,
						  (uint32_t)at, (uint32_t)n))
			return false;
		off += n;
	}
	return true;
}

bool world_is_resident(struct world *w, uint32_t file, uint64_t off, uint64_t len)
{
	return each_chunk(w, file, off, len, false);
}

bool world_is_wanted(struct world *w, uint32_t file, uint64_t off, uint64_t len)
{
	return each_chunk(w, file, off, len, true);
}

void world_read_start(struct world *w, uint32_t file, uint64_t off, uint64_t len, uint64_t reader, uint32_t watch)
{
	w->watches[watch] = (struct world_watch){file, off, len, !world_is_resident(w, file, off, len)};
	sched_read(w->s, file, off, len, reader, !world_is_wanted(w, file, off, len), w->now_ns);
	world_step(w);
}

bool world_is_waiting(const struct world *w, uint32_t watch)
{
	return w->watches[watch].is_waiting;
}

bool world_read(struct world *w, uint32_t file, uint64_t off, uint64_t len, uint64_t reader)
{
	uint64_t limit = w->now_ns + 100000000000ULL;

	if (w->sizes[file] != UINT64_MAX)
		(void)!sched_file_add(w->s, file, w->sizes[file]);
	world_read_start(w, file, off, len, reader, 0);
	while (world_is_waiting(w, 0)) {
		if (!world_event(w, limit))
			return false;
		/* A fetch that failed or was dropped: the cache says so again. */
		if (world_is_waiting(w, 0) && !world_is_wanted(w, file, off, len))
			sched_read_again(w->s, file, off, len, w->now_ns);
		world_step(w);
	}
	return true;
}

uint32_t world_find(const struct world *w, enum sched_action_kind kind, uint32_t file, uint64_t chunk_no, uint32_t from)
{
	for (uint32_t i = from; i < w->n_log; i++)
		if (w->log[i].kind == kind && w->log[i].file == file && w->log[i].chunk_no == chunk_no)
			return i;
	return UINT32_MAX;
}
