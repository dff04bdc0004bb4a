/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/sched.c - the engine's border: creation, streams, events in, actions out.
 *
 * A step: fetches that hang stop counting; the order is materialised further; slots in excess are
 * emptied; waits; demands; prefetch for the order; read-ahead without one; the tier. All of it writes
 * actions into a queue of which the caller takes as many as it has room for.
 *
 * Callers: fs/engine.c, tools/sim. Not thread-safe. What a caller gives is not trusted: unknown numbers are
 * ignored or refused, sizes clipped, time that goes backwards stands still.
 */
#include "sched/sched_i.h"

#define ENTRIES_DEFAULT (16ULL << 20)
#define POSITIONS_DEFAULT (1ULL << 20)
#define READ_PAGES_MAX 4096u
#define CONCURRENCY_START 16u
#define PAUSE_NS (10 * SCH_SEC)

/* ---- small helpers ---------------------------------------------------------------------------- */

void sch_clock(struct sched *s, uint64_t now_ns)
{
	uint64_t waiting, readers;

	if (now_ns <= s->now_ns)
		return;
	waiting = (uint64_t)s->n_waiting + s->n_demands;
	readers = sch_max64(s->n_readers, 1);
	if (waiting < readers) /* one of several readers that waits stalls nobody for all of the time */
		s->clock_ns += (now_ns - s->now_ns) * (readers - waiting) / readers;
	if (waiting == 0)
		s->free_ns += now_ns - s->now_ns;
	for (int i = 0; s->n_waiting && i < SCHED_STALLS; i++)
		s->stall_ns[i] += (double)(now_ns - s->now_ns) * s->n_stalls[i];
	s->stall_ns[SCHED_STALL_SLOTS] += (double)(now_ns - s->now_ns) * s->n_demands;
	if (s->cfg.prefetch_bytes_per_s) {
		double rate = (double)s->cfg.prefetch_bytes_per_s;
		double most = rate / 10;

		s->tokens += (double)(now_ns - s->now_ns) * rate / (double)SCH_SEC;
		s->tokens = s->tokens < most ? s->tokens : most;
	}
	s->now_ns = now_ns;
}

/* Room for `need` elements; the array doubles. The new part is not initialised. */
int sch_array_grow(void **array, uint32_t *cap, uint32_t need, size_t size)
{
	uint64_t n = *cap ? *cap : 16;
	void *p;

	if (need <= *cap)
		return 0;
	while (n < need)
		n *= 2;
	if (n > UINT32_MAX - 1 || n > SIZE_MAX / size)
		return -ENOMEM;
	p = realloc(*array, (size_t)n * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = (uint32_t)n;
	return 0;
}

int sch_array_resize(void *array, uint32_t n, size_t size)
{
	void **a = array;
	void *p = realloc(*a, (size_t)n * size);

	if (!p)
		return -ENOMEM;
	*a = p;
	return 0;
}

bool sch_emit(struct sched *s, const struct sched_action *a)
{
	if (s->acts_head == s->n_acts)
		s->acts_head = s->n_acts = 0;
	if (sch_array_grow((void **)&s->acts, &s->cap_acts, s->n_acts + 1, sizeof(*s->acts)))
		return false;
	s->acts[s->n_acts++] = *a;
	if (a->kind != SCHED_WAIT_DONE)
		s->files[a->file].n_acts++;
	return true;
}

static struct sched_action act_take(struct sched *s)
{
	struct sched_action a = s->acts[s->acts_head++];

	if (a.kind != SCHED_WAIT_DONE)
		s->files[a.file].n_acts--;
	return a;
}

/* ---- life -------------------------------------------------------------------------------------- */

static int config_check(const struct sched_config *c)
{
	if (c->chunk_bytes < (64u << 10) || c->chunk_bytes > (16u << 20) || (c->chunk_bytes & (c->chunk_bytes - 1)))
		return -EINVAL;
	if (c->slots == 0 || c->slots > (1u << 28) || c->inflight_max == 0)
		return -EINVAL;
	return 0;
}

/* Far enough for next uses of one epoch and more; beyond it, keeping the oldest does as well. */
static uint32_t horizon_of(const struct sched *s)
{
	uint64_t n = 65536 + 16 * ((uint64_t)s->slots + s->cfg.disk_pages);

	return (uint32_t)sch_min64(n, s->cfg.positions_max);
}

int sched_create(const struct sched_config *cfg, struct sched **ret_s)
{
	struct sched *s;

	if (config_check(cfg))
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->cfg = *cfg;
	s->cfg.entries_max = sch_min64(cfg->entries_max ? cfg->entries_max : ENTRIES_DEFAULT, UINT32_MAX);
	s->cfg.positions_max = cfg->positions_max ? cfg->positions_max : POSITIONS_DEFAULT;
	s->cfg.positions_max = sch_min64(sch_max64(s->cfg.positions_max, 4096), 1u << 28);
	s->slots = cfg->slots;
	s->block_bytes = (uint32_t)sch_max64(4096, cfg->chunk_bytes / SCH_BLOCKS_MAX);
	s->blocks_per_page = (uint32_t)(cfg->chunk_bytes / s->block_bytes);
	s->chunk_shift = (uint32_t)__builtin_ctzll(cfg->chunk_bytes);
	s->block_shift = (uint32_t)__builtin_ctz(s->block_bytes);
	s->pos.rows.whole = (uint8_t)(s->blocks_per_page - 1);
	s->horizon = horizon_of(s);
	s->concurrency = sch_min32(CONCURRENCY_START, cfg->inflight_max);
	s->free_page = s->free_frame = s->free_fetch = s->free_seq = SCH_NONE;
	for (int i = 0; i < L_COUNT; i++)
		s->lists[i] = (struct list){SCH_NONE, SCH_NONE, 0};
	s->flight = s->seq_lru = (struct list){SCH_NONE, SCH_NONE, 0};
	s->fetch_sizes = cfg->chunk_bytes;
	s->next_ns = SCHED_NO_TIME;
	s->streams = calloc(SCHED_STREAMS_MAX + 1, sizeof(*s->streams));
	if (!s->streams || sch_least_create(NULL, &s->least)) {
		free(s->streams);
		free(s);
		return -ENOMEM;
	}
	*ret_s = s;
	return 0;
}

void sched_destroy(struct sched *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->n_streams; i++)
		sch_entries_finish(s, &s->streams[i]);
	sch_positions_finish(s);
	for (int t = 0; t < T_COUNT; t++)
		sch_bitmap_finish(&s->tree[t]);
	sch_bitmap_finish(&s->tier_tree);
	sch_wait_finish(s);
	sch_nohint_finish(s);
	sch_replay_finish(s);
	sch_tier_finish(s);
	free(s->streams);
	sch_pages_finish(s);
	free(s->files);
	free(s->frames);
	free(s->fetches);
	free(s->skipped);
	free(s->demands);
	sch_least_destroy(s->least);
	free(s->acts);
	free(s);
}

void sched_set_slots(struct sched *s, uint32_t slots)
{
	s->slots = sch_min32(sch_max32(slots, 1), 1u << 28);
	s->horizon = sch_max32(s->horizon, horizon_of(s));
	s->run_limit_ns = 0;
}

void sched_set_disk_pages(struct sched *s, uint32_t disk_pages)
{
	s->cfg.disk_pages = disk_pages;
	s->horizon = sch_max32(s->horizon, horizon_of(s));
	s->run_limit_ns = 0;
}

void sched_set_prefetch(struct sched *s, enum sched_prefetch mode)
{
	s->mode = mode;
}

/* ---- streams ------------------------------------------------------------------------------------ */

static bool stream_is_live(const struct sched *s, uint32_t stream)
{
	return stream < s->n_streams && s->streams[stream].is_live;
}

int sched_stream_create(struct sched *s, uint32_t *ret_stream)
{
	uint32_t i = 0;

	while (i < s->n_streams && s->streams[i].is_live)
		i++;
	if (i >= SCHED_STREAMS_MAX)
		return -ENOSPC;
	s->n_streams = sch_max32(s->n_streams, i + 1);
	sch_positions_settle(s); /* nothing of an earlier owner of the number */
	sch_progress_reset(&s->streams[i]);
	s->streams[i].n_own = 0;
	s->streams[i].first_own = s->streams[i].undone = SCH_NONE;
	s->streams[i].is_live = true;
	s->streams[i].is_replaced = false;
	*ret_stream = i;
	return 0;
}

static void stream_clear(struct sched *s, uint32_t stream)
{
	struct stream *st = &s->streams[stream];
	bool was_empty = st->n_entries == 0;

	sch_wait_stream_gone(s, stream);
	sch_entries_finish(s, st);
	if (!was_empty && sch_entries_others(s, stream) && !s->is_dirty)
		sch_positions_withdraw(s, stream);
	else if (!was_empty)
		s->is_dirty = true;
	sch_progress_reset(st);
	st->low = st->high = s->is_dirty ? 0 : s->pos.n;
	if (was_empty) { /* it has no positions: nothing is to be built again */
		st->is_replaced = false;
		return;
	}
	st->is_replaced = s->is_dirty;
	sch_positions_settle(s);
	sch_fetch_unwanted(s);
}

void sched_stream_destroy(struct sched *s, uint32_t stream)
{
	if (!stream_is_live(s, stream))
		return;
	stream_clear(s, stream);
	s->streams[stream].is_live = false;
}

void sched_stream_replace(struct sched *s, uint32_t stream)
{
	if (stream_is_live(s, stream))
		stream_clear(s, stream);
}

void sched_stream_cancel(struct sched *s, uint32_t stream)
{
	sched_stream_replace(s, stream);
}

/* ---- events --------------------------------------------------------------------------------------- */

/* The page was read: what was fetched ahead of it was useful; when all of it was read, it may go. */
static void read_frame(struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1, bool is_part)
{
	struct page *p = &s->pages[pg];
	struct frame *f;

	p->seen = s->access_clock;
	if (p->frame == SCH_NONE)
		return;
	f = &s->frames[p->frame];
	if (sch_blocks_any(&f->flight, b0, b1))
		s->late_bytes += (uint64_t)(b1 - b0 + 1) * s->block_bytes;
	s->useful_bytes += f->ahead_bytes;
	f->ahead_bytes = 0;
	f->read_hi = (uint16_t)sch_max32(f->read_hi, b1 + 1);
	sch_frame_seen(s, p->frame);
	/* The rest of what is read has to come, and no order keeps this until then. */
	if (is_part && p->next == SCH_NONE && f->done_stream == SCH_NONE && f->fetches == SCH_NONE)
		f->is_fresh = true;
	if (f->list == L_USED)
		sch_frame_list(s, p->frame, L_NONE); /* among the recent ones again */
	sch_page_restate(s, pg);
}

/* Is every block there or on its way because somebody waits? */
static bool read_is_covered(const struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1)
{
	const struct frame *f;
	struct blocks got;

	if (pg == SCH_NONE || s->pages[pg].frame == SCH_NONE)
		return false;
	f = &s->frames[s->pages[pg].frame];
	got = f->valid;
	for (uint32_t fe = f->fetches; fe != SCH_NONE; fe = s->fetches[fe].frame_next)
		if (s->fetches[fe].is_demand)
			sch_blocks_set(&got, s->fetches[fe].b0, s->fetches[fe].b1);
	return sch_blocks_all(&got, b0, b1);
}

static bool read_is_in_flight(const struct sched *s, uint32_t pg, uint32_t b0, uint32_t b1)
{
	return pg != SCH_NONE && s->pages[pg].frame != SCH_NONE &&
	       sch_blocks_any(&s->frames[s->pages[pg].frame].flight, b0, b1) && !read_is_covered(s, pg, b0, b1);
}

struct read {
	uint64_t off, end, reader;
	uint32_t file;
	bool is_miss;
};

/* What is not there must come. If all of it seems to be, the cache knows better. */
static bool read_demand(struct sched *s, const struct read *r, bool is_again)
{
	uint64_t c0 = r->off / s->cfg.chunk_bytes, c1 = (r->end - 1) / s->cfg.chunk_bytes;
	bool is_any = false;

	for (uint64_t c = c0; c <= c1; c++) {
		struct block_run b = sch_chunk_run(s, c, r->off, r->end);
		uint32_t pg = sch_page_find(s, r->file, c);

		if (!is_again && read_is_covered(s, pg, b.b0, b.b1))
			continue;
		if (!r->is_miss && !read_is_in_flight(s, pg, b.b0, b.b1))
			continue;
		sch_demand_add(s, &(struct demand){.chunk_no = c,
						   .file = r->file,
						   .done_stream = s->read_stream,
						   .b0 = (uint16_t)b.b0,
						   .b1 = (uint16_t)b.b1,
						   .is_part = c0 != c1,
						   .is_again = is_again,
						   .is_gone = s->read_is_gone});
		is_any = true;
	}
	return is_any;
}

/* The part of a read that is in one chunk, as the bound counts it. */
static void read_bound(struct sched *s, const struct read *r, uint64_t chunk_no, uint32_t b0, uint32_t b1)
{
	struct sch_least_read l = {.file_key = s->files[r->file].key,
				   .chunk_no = chunk_no,
				   .b0 = b0,
				   .b1 = b1,
				   .block_bytes = s->block_bytes,
				   .chunk_bytes = sch_chunk_bytes(s, r->file, chunk_no)};

	sch_least_note(s->least, &l, (uint64_t)s->slots + s->cfg.disk_pages);
}

static enum match read_match(struct sched *s, const struct read *r, bool *ret_is_slow)
{
	uint64_t c0 = r->off / s->cfg.chunk_bytes, c1 = (r->end - 1) / s->cfg.chunk_bytes;
	enum match best = MATCH_NO;

	*ret_is_slow = r->is_miss;
	for (uint64_t c = c0; c <= c1; c++) {
		struct block_run b = sch_chunk_run(s, c, r->off, r->end);
		uint32_t pg = sch_page_find(s, r->file, c);
		enum match m;

		read_bound(s, r, c, b.b0, b.b1);
		sch_grace_read(s, pg, r->file, c, b.b0);
		if (pg == SCH_NONE)
			continue;
		s->read_is_gone = s->read_is_gone || (s->pages[pg].flags & PG_GONE);
		*ret_is_slow = *ret_is_slow || read_is_in_flight(s, pg, b.b0, b.b1);
		m = sch_progress_read(s, pg, b.b0, b.b1, r->reader);
		best = m > best ? m : best;
		sch_positions_settle(s);
		pg = sch_page_find(s, r->file, c); /* done with its last visit, it may be gone */
		if (pg != SCH_NONE)
			read_frame(s, pg, b.b0, b.b1, r->is_miss && c0 != c1);
	}
	return best;
}

/* A reader that does something else for a while does not read slowly. */
static void read_time(struct sched *s)
{
	uint64_t gap = s->now_ns - s->read_ns, ran = s->clock_ns - s->read_clock_ns;

	if (s->read_ns && ran > PAUSE_NS) {
		gap -= sch_min64(ran, gap);
		ran = 0;
	}
	if (s->read_ns) {
		s->reading_ns += gap;
		s->ran_ns += sch_min64(ran, gap);
	}
	s->read_ns = s->now_ns;
	s->read_clock_ns = s->clock_ns;
}

void sched_read(struct sched *s, uint32_t file, uint64_t off_bytes, uint64_t len_bytes, uint64_t reader, bool is_miss,
		uint64_t now_ns)
{
	const struct file *f = sch_file(s, file);
	struct read r = {.off = off_bytes, .reader = reader, .file = file, .is_miss = is_miss};
	enum match match;
	bool is_slow;

	sch_clock(s, now_ns);
	if (!f || len_bytes == 0 || off_bytes >= f->size_bytes)
		return;
	len_bytes = sch_min64(len_bytes, f->size_bytes - off_bytes);
	r.end = off_bytes + sch_min64(len_bytes, READ_PAGES_MAX * s->cfg.chunk_bytes);
	if (r.end > (1ULL << 62))
		return;
	if (f->stale_in == s->rebuilds + 1)
		s->is_dirty = true; /* its size is news: visits must be right before one is matched */
	sch_positions_settle(s);
	read_time(s);
	s->needed_bytes += r.end - r.off;
	s->demand_misses += is_miss;
	s->read_stream = SCH_NONE;
	s->read_is_gone = false;
	match = read_match(s, &r, &is_slow);
	if (match == MATCH_NO)
		sch_progress_unmatched(s, file, r.off / s->cfg.chunk_bytes, reader);
	sch_nohint_read(s, file, r.off, r.end - r.off, match > MATCH_WEAK, is_slow);
	if (!read_demand(s, &r, false) && is_miss)
		read_demand(s, &r, true);
	sch_replay_note(s, file, r.off, r.end - r.off, match != MATCH_NO);
}

void sched_read_again(struct sched *s, uint32_t file, uint64_t off_bytes, uint64_t len_bytes, uint64_t now_ns)
{
	const struct file *f = sch_file(s, file);
	struct read r = {.off = off_bytes, .file = file, .is_miss = true};

	sch_clock(s, now_ns);
	if (!f || len_bytes == 0 || off_bytes >= f->size_bytes)
		return;
	r.end = off_bytes + sch_min64(sch_min64(len_bytes, f->size_bytes - off_bytes), READ_PAGES_MAX * s->cfg.chunk_bytes);
	if (r.end > (1ULL << 62))
		return;
	s->read_stream = SCH_NONE;
	s->read_is_gone = false;
	if (!read_demand(s, &r, false))
		read_demand(s, &r, true);
}

void sched_open(struct sched *s, uint32_t file, uint64_t reader, uint64_t now_ns)
{
	(void)file; /* opens are invisible where the kernel answers them itself: READs decide */
	(void)reader;
	sch_clock(s, now_ns);
}

void sched_close(struct sched *s, uint32_t file, uint64_t reader, uint64_t now_ns)
{
	(void)file;
	(void)reader;
	sch_clock(s, now_ns);
}

/* It came, and nobody here counts a slot for it: the second answer to what was asked for twice, or somebody else's order. */
static void fetched_unasked(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	struct sched_action a = {.kind = SCHED_EVICT, .file = file, .chunk_no = chunk_no};

	if (sch_file(s, file))
		(void)!sch_emit(s, &a);
}

void sched_fetched(struct sched *s, uint32_t file, uint64_t chunk_no, uint32_t off_bytes, uint32_t len_bytes, int err,
		   uint64_t issued_ns, uint64_t now_ns)
{
	uint32_t pg = sch_page_find(s, file, chunk_no), b0, b1;

	sch_clock(s, now_ns);
	if (pg == SCH_NONE && err >= 0)
		fetched_unasked(s, file, chunk_no);
	if (pg == SCH_NONE || off_bytes >= s->cfg.chunk_bytes)
		return;
	len_bytes = (uint32_t)sch_min64(len_bytes ? len_bytes : 1, s->cfg.chunk_bytes - off_bytes);
	b0 = off_bytes / s->block_bytes;
	b1 = (off_bytes + len_bytes - 1) / s->block_bytes;
	if (err >= 0 && s->pages[pg].frame == SCH_NONE)
		fetched_unasked(s, file, chunk_no);
	else
		sch_fetch_landed(s, pg, b0, b1, err, issued_ns);
}

void sched_shortage(struct sched *s, uint32_t n, uint64_t now_ns)
{
	sch_clock(s, now_ns);
	/*
	 * No slot is free: what the books do not hold, or hold for one of the n, late fetches hold. A state, not a sum: it is said
	 * again. One slot stays for whoever is next, else nothing would ever show that late ones have gone.
	 */
	s->shortage = sch_max32(s->shortage, (uint32_t)sch_min64((uint64_t)s->slots + n - sch_min32(s->held, s->slots), s->slots - 1));
	s->give_up = sch_min32(n, s->slots);
}

void sched_dropped(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t pg = sch_page_find(s, file, chunk_no);

	if (pg == SCH_NONE || s->pages[pg].frame == SCH_NONE)
		return;
	memset(&s->frames[s->pages[pg].frame].valid, 0, sizeof(struct blocks));
	if (s->frames[s->pages[pg].frame].fetches == SCH_NONE)
		sch_frame_free(s, s->pages[pg].frame);
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}

/* Found on the disk, not copied there from a slot: its first reader needs nothing from the origin. */
static void tier_bound(struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t blocks = sch_chunk_blocks(s, file, chunk_no);
	struct sch_least_read l = {.file_key = s->files[file].key, .chunk_no = chunk_no, .b1 = blocks ? blocks - 1 : 0};

	sch_least_adopt(s->least, &l);
}

void sched_tier_has(struct sched *s, uint32_t file, uint64_t chunk_no, bool has)
{
	uint32_t pg = has ? sch_page_get(s, file, chunk_no) : sch_page_find(s, file, chunk_no);

	if (pg == SCH_NONE)
		return;
	if (has && !(s->pages[pg].flags & PG_TIER)) /* else the news is that a copy is complete */
		tier_bound(s, file, chunk_no);
	s->pages[pg].flags &= (uint8_t)~PG_ADMIT;
	sch_tier_set(s, pg, has);
	sch_page_put(s, pg);
}

void sched_pin(struct sched *s, uint32_t file, uint64_t chunk_no, int delta)
{
	uint32_t pg = delta > 0 ? sch_page_get(s, file, chunk_no) : sch_page_find(s, file, chunk_no);
	int64_t n;

	if (pg == SCH_NONE)
		return;
	n = (int64_t)s->pages[pg].ext_pins + delta;
	s->ext_pinned -= s->pages[pg].ext_pins > 0;
	s->pages[pg].ext_pins = n < 0 ? 0 : (uint16_t)(n < UINT16_MAX ? n : UINT16_MAX);
	s->ext_pinned += s->pages[pg].ext_pins > 0;
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}

/* ---- actions ------------------------------------------------------------------------------------------ */

static void step_work(struct sched *s, size_t max)
{
	s->next_ns = SCHED_NO_TIME;
	sch_fetch_late(s);
	sch_positions_run(s);
	sch_fetch_failed_again(s);
	sch_evict_excess(s);
	if (s->mode == SCHED_PREFETCH_ON)
		sch_tier_run(s, max); /* before what makes room: the page that was just read is the first to go */
	sch_wait_run(s);
	sch_demand_run(s, max);
	if (s->mode != SCHED_PREFETCH_ON)
		return;
	if (s->n_demands == 0) { /* room that comes free is theirs first */
		sch_when_update(s);
		sch_fetch_run(s, max);
		sch_nohint_run(s, max);
	}
}

size_t sched_step(struct sched *s, uint64_t now_ns, struct sched_action *out, size_t max)
{
	size_t n = 0;

	sch_clock(s, now_ns);
	if (max == 0)
		return 0;
	if (s->n_acts - s->acts_head < max)
		step_work(s, max);
	while (n < max && s->acts_head < s->n_acts)
		out[n++] = act_take(s);
	return n;
}

uint64_t sched_next_ns(const struct sched *s)
{
	return s->acts_head < s->n_acts ? s->now_ns : s->next_ns;
}
