/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/policy_simple.c - what others do, behind the interface that the scheduler has.
 *
 *   replacement  LRU | random | keep what came first (MinIO) | most often used by this node (NoPFS) | farthest next use (MIN)
 *   look-ahead   none | the next 64 visits | 3 batches (FFCV) | the rest of the file
 *
 * One cache of slots + disk pages, counted in the bytes that are really there, the disk as fast as memory, and what is on its way
 * not counted: every choice flatters these policies. A page gets its place when it arrives; the victim may be the page
 * itself (bypass). Without look-ahead exactly the missing blocks are fetched; look-ahead fetches whole pages.
 *
 * Invariants: (1) used <= cap after each arrival; (2) a page is in one container: the LRU list, the tree of next uses, the stack of those
 * whose next use nobody knows, or the array that random picks from; (3) pages that are read at this instant are not evicted before
 * the reader has them: the machine serves readers first.
 */
#include "sched/bitmap.h"
#include "tools/sim/sim_i.h"

enum rule { RULE_LRU, RULE_RANDOM, RULE_KEEP, RULE_FREQUENCY, RULE_MIN };
enum ahead { AHEAD_NONE, AHEAD_64, AHEAD_BATCHES, AHEAD_FILE };

#define AHEAD_VISITS 64u
#define AHEAD_N_BATCHES 3u

struct spage {
	uint32_t prev, next; /* LRU or unknown list; random: prev = index in the array */
	uint32_t use;	     /* next visit known to come, SIM_NONE */
	uint32_t count;	     /* FREQUENCY: uses in all */
	uint32_t file;
	uint32_t blocks; /* held */
	bool is_in, is_in_tree, is_flight, is_chosen;
};

struct list {
	uint32_t head, tail;
};

struct simple {
	struct sim *m;
	enum rule rule;
	enum ahead ahead;
	struct spage *pages;
	struct list lru; /* head: most recent */
	uint32_t *array;
	uint32_t n_array;
	struct sch_bitmap tree; /* visits that are the next use of a page held */
	uint64_t used, cap;	/* blocks */
	struct sim_rng rng;
	uint32_t epoch; /* highest that was reached */
	size_t ahead_to; /* visits below were asked for */
	struct sched_action *acts; /* ring would do; drained in each step */
	size_t n_acts, cap_acts, acts_at;
};

static void emit(struct simple *s, enum sched_action_kind kind, uint32_t page, uint32_t off, uint32_t len, bool is_demand)
{
	if (s->n_acts == s->cap_acts) {
		size_t cap = s->cap_acts ? s->cap_acts * 2 : 256;
		void *p = reallocarray(s->acts, cap, sizeof(*s->acts));

		if (!p) {
			s->m->is_out_of_memory = true;
			return;
		}
		s->acts = p;
		s->cap_acts = cap;
	}
	uint32_t file = s->pages[page].file;
	s->acts[s->n_acts++] = (struct sched_action){.kind = kind, .file = file, .chunk_no = page - s->m->work->files[file].first_page,
						     .off_bytes = off, .len_bytes = len, .is_demand = is_demand};
}

/* ---- containers ------------------------------------------------------------------------------------ */

static void lru_push(struct simple *s, uint32_t pg)
{
	struct spage *p = &s->pages[pg];

	p->prev = SIM_NONE;
	p->next = s->lru.head;
	*(s->lru.head == SIM_NONE ? &s->lru.tail : &s->pages[s->lru.head].prev) = pg;
	s->lru.head = pg;
}

static void lru_remove(struct simple *s, uint32_t pg)
{
	const struct spage *p = &s->pages[pg];

	*(p->prev == SIM_NONE ? &s->lru.head : &s->pages[p->prev].next) = p->next;
	*(p->next == SIM_NONE ? &s->lru.tail : &s->pages[p->next].prev) = p->prev;
}

/* Visit v is known if its epoch is: epochs_ahead of the one being read. */
static uint32_t known(const struct simple *s, uint32_t v)
{
	uint64_t horizon = s->m->cfg.epochs_ahead == SIM_NONE ? UINT64_MAX : (uint64_t)s->epoch + s->m->cfg.epochs_ahead;

	return v != SIM_NONE && s->m->visits.v[v].epoch <= horizon ? v : SIM_NONE;
}

static void put_in(struct simple *s, uint32_t pg)
{
	struct spage *p = &s->pages[pg];

	if (s->rule == RULE_RANDOM) {
		p->prev = s->n_array;
		s->array[s->n_array++] = pg;
	} else if (s->rule == RULE_MIN && known(s, p->use) != SIM_NONE) {
		sch_bitmap_set(&s->tree, p->use);
		p->is_in_tree = true;
	} else {
		lru_push(s, pg);
	}
	p->is_in = true;
}

static void take_out(struct simple *s, uint32_t pg)
{
	struct spage *p = &s->pages[pg];

	if (s->rule == RULE_RANDOM) {
		s->array[p->prev] = s->array[--s->n_array];
		s->pages[s->array[p->prev]].prev = p->prev;
	} else if (p->is_in_tree) {
		sch_bitmap_clear(&s->tree, p->use);
		p->is_in_tree = false;
	} else {
		lru_remove(s, pg);
	}
	p->is_in = false;
}

static uint32_t victim(struct simple *s, uint32_t incoming)
{
	switch (s->rule) {
	case RULE_LRU:
		return s->lru.tail;
	case RULE_RANDOM: {
		uint32_t pg = s->array[sim_rng_below(&s->rng, s->n_array)];

		return pg == incoming && s->n_array > 1 ? victim(s, incoming) : pg;
	}
	case RULE_KEEP:
	case RULE_FREQUENCY:
		return incoming;
	case RULE_MIN:
		if (s->lru.head != SIM_NONE)
			return s->lru.head; /* nobody knows its next use: keep the oldest of those */
		return s->m->visits.v[sch_bitmap_last(&s->tree)].page;
	}
	return incoming;
}

static void evict(struct simple *s, uint32_t pg)
{
	take_out(s, pg);
	s->used -= s->pages[pg].blocks;
	s->pages[pg].blocks = 0;
	emit(s, SCHED_EVICT, pg, 0, 0, false);
}

static bool is_admitted(const struct simple *s, uint32_t pg)
{
	return s->rule != RULE_FREQUENCY || s->pages[pg].is_chosen;
}

/* ---- events ------------------------------------------------------------------------------------------ */

static void ask(struct simple *s, uint32_t pg, bool is_demand)
{
	const struct sim *m = s->m;
	struct spage *p = &s->pages[pg];
	uint32_t file = p->file, no = pg - m->work->files[file].first_page;

	if (p->is_flight || p->is_in)
		return;
	p->is_flight = true;
	emit(s, SCHED_FETCH, pg, 0, sim_chunk_len(m, file, no), is_demand);
}

static void ahead_visits(struct simple *s, size_t to)
{
	const struct sim_visits *v = &s->m->visits;

	for (; s->ahead_to < to && s->ahead_to < v->n && known(s, (uint32_t)s->ahead_to) != SIM_NONE; s->ahead_to++)
		ask(s, v->v[s->ahead_to].page, false);
}

static void epoch_reached(struct simple *s, uint32_t epoch)
{
	if (epoch <= s->epoch)
		return;
	s->epoch = epoch;
	if (s->rule != RULE_MIN)
		return;
	for (uint32_t pg = s->lru.head, next; pg != SIM_NONE; pg = next) {
		next = s->pages[pg].next;
		if (known(s, s->pages[pg].use) != SIM_NONE) {
			take_out(s, pg);
			put_in(s, pg);
		}
	}
}

static void simple_progress(void *st, uint32_t rank, size_t read, size_t visit)
{
	struct simple *s = st;
	const struct sim_visit *v = &s->m->visits.v[visit];
	struct spage *p = &s->pages[v->page];
	bool is_in = p->is_in;

	(void)rank;
	(void)read;
	epoch_reached(s, v->epoch);
	if (is_in && s->rule == RULE_MIN)
		take_out(s, v->page);
	p->use = v->next;
	if (is_in && s->rule == RULE_MIN)
		put_in(s, v->page);
	if (s->ahead == AHEAD_64) {
		s->ahead_to = visit > s->ahead_to ? visit : s->ahead_to;
		ahead_visits(s, visit + AHEAD_VISITS);
	}
}

static void simple_batch(void *st, uint32_t rank, size_t batch)
{
	struct simple *s = st;
	const struct sim *m = s->m;
	const struct sim_rank *r = &m->work->ranks[rank];
	size_t last = batch + AHEAD_N_BATCHES;

	if (s->ahead != AHEAD_BATCHES)
		return;
	for (size_t b = batch; b <= last && b < r->n_batches; b++)
		for (size_t i = r->batches[b]; i < sim_batch_end(r, b); i++) {
			size_t v = m->visits.of_read[rank][i], end = v + (r->reads[i].off_bytes + r->reads[i].len_bytes - 1) /
									     m->work->chunk_bytes -
							       r->reads[i].off_bytes / m->work->chunk_bytes + 1;

			if (m->visits.v[v].epoch != m->visits.v[m->visits.of_read[rank][r->batches[batch]]].epoch)
				return; /* a new epoch begins with nothing */
			for (; v < end; v++)
				ask(s, m->visits.v[v].page, b == batch);
		}
}

static void simple_read(void *st, uint32_t file, uint64_t off, uint64_t len, uint64_t reader, bool is_miss)
{
	struct simple *s = st;
	const struct sim *m = s->m;
	uint64_t no = off / m->work->chunk_bytes;
	uint32_t pg = sim_page(m, file, no), bb = m->visits.block_bytes, size = sim_chunk_len(m, file, no);

	(void)reader;
	if (s->rule == RULE_LRU && s->pages[pg].is_in) {
		lru_remove(s, pg);
		lru_push(s, pg);
	}
	if (is_miss && s->ahead != AHEAD_NONE && !s->pages[pg].is_in) {
		s->pages[pg].is_flight = false; /* the machine says that it is not */
		ask(s, pg, true);
	} else if (is_miss) {
		uint32_t from = (uint32_t)(off % m->work->chunk_bytes) / bb * bb;
		uint32_t to = (uint32_t)((off - no * m->work->chunk_bytes + len + bb - 1) / bb) * bb;

		emit(s, SCHED_FETCH, pg, from, (to < size ? to : size) - from, true);
	}
	if (s->ahead == AHEAD_FILE) {
		uint64_t pages = (m->work->files[file].size_bytes + m->work->chunk_bytes - 1) / m->work->chunk_bytes;
		uint64_t most = s->cap / (m->work->chunk_bytes / bb) / 4 + 1;

		for (uint64_t i = no + 1; i < pages && i <= no + most; i++)
			ask(s, sim_page(m, file, i), false);
	}
}

/* FFCV: a page is dropped when its last batch of this epoch is over; nothing is kept for the next. */
static bool is_dead(const struct simple *s, uint32_t pg)
{
	uint32_t use = s->pages[pg].use;

	return s->ahead == AHEAD_BATCHES && (use == SIM_NONE || s->m->visits.v[use].epoch != s->epoch);
}

static void simple_fetched(void *st, uint32_t file, uint64_t chunk_no, uint32_t off, uint32_t len, int err, uint64_t issued_ns)
{
	struct simple *s = st;
	struct sim *m = s->m;
	uint32_t pg = sim_page(m, file, chunk_no), fr = m->pages[pg].frame;
	struct spage *p = &s->pages[pg];

	(void)off;
	(void)len;
	(void)issued_ns;
	p->is_flight = false;
	if (err || fr == SIM_NONE)
		return;
	if (!is_admitted(s, pg) && !p->is_in) {
		if (m->frames[fr].n_fetches == 0)
			emit(s, SCHED_EVICT, pg, 0, 0, false);
		return;
	}
	uint32_t blocks = sim_bits_count(&m->frames[fr].valid);
	s->used += blocks - p->blocks;
	p->blocks = blocks;
	if (!p->is_in)
		put_in(s, pg);
	while (s->used > s->cap) {
		uint32_t v = victim(s, pg);

		if (m->pages[v].frame != SIM_NONE && m->frames[m->pages[v].frame].n_fetches)
			break; /* more of it is coming */
		evict(s, v);
	}
}

static size_t simple_step(void *st, struct sched_action *out, size_t max)
{
	struct simple *s = st;
	size_t n = 0;

	while (n < max && s->acts_at < s->n_acts)
		out[n++] = s->acts[s->acts_at++];
	if (s->acts_at == s->n_acts)
		s->acts_at = s->n_acts = 0;
	return n;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void simple_destroy(void *st)
{
	struct simple *s = st;

	free(s->pages);
	free(s->array);
	free(s->acts);
	sch_bitmap_finish(&s->tree);
	free(s);
}

static int by_count(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* The pages that this node uses most often in all its epochs, as many as fit. */
static int choose(struct simple *s)
{
	const struct sim *m = s->m;
	uint32_t n = m->work->n_pages;
	uint64_t *v = malloc(((size_t)n + 1) * sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < m->visits.n; i++)
		s->pages[m->visits.v[i].page].count++;
	for (uint32_t i = 0; i < n; i++)
		v[i] = (uint64_t)s->pages[i].count << 32 | i;
	qsort(v, n, sizeof(*v), by_count);
	for (uint64_t i = 0; i < n && i < s->cap / (m->work->chunk_bytes / m->visits.block_bytes); i++)
		s->pages[(uint32_t)v[i]].is_chosen = true;
	free(v);
	return 0;
}

static int simple_create(struct sim *m, void **ret, enum rule rule, enum ahead ahead)
{
	struct simple *s = calloc(1, sizeof(*s));
	uint32_t n = m->work->n_pages;

	if (!s)
		return -ENOMEM;
	*ret = s;
	s->m = m;
	s->rule = rule;
	s->ahead = ahead;
	s->rng.state = m->cfg.seed ^ 0x5eed;
	s->lru = (struct list){SIM_NONE, SIM_NONE};
	s->cap = ((uint64_t)m->cfg.slots + m->cfg.disk_pages) * (m->work->chunk_bytes / m->visits.block_bytes);
	s->pages = calloc((size_t)n + 1, sizeof(*s->pages));
	s->array = calloc((size_t)n + 1, sizeof(*s->array));
	sch_bitmap_init(&s->tree);
	if (!s->pages || !s->array || sch_bitmap_reserve(&s->tree, (uint32_t)m->visits.n + 1))
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		s->pages[i].use = SIM_NONE;
	for (uint32_t f = 0; f < m->work->n_files; f++)
		for (uint32_t i = m->work->files[f].first_page;
		     i < (f + 1 < m->work->n_files ? m->work->files[f + 1].first_page : n); i++)
			s->pages[i].file = f;
	return rule == RULE_FREQUENCY ? choose(s) : 0;
}

/* FFCV frees a slot after the page's last batch, which is looked at when the trainer takes the next batch. */
static void window_batch(void *st, uint32_t rank, size_t batch)
{
	struct simple *s = st;
	struct sim *m = s->m;

	for (uint32_t pg = s->lru.tail, prev; pg != SIM_NONE; pg = prev) {
		const struct frame *f = m->pages[pg].frame == SIM_NONE ? NULL : &m->frames[m->pages[pg].frame];

		prev = s->pages[pg].prev;
		if (f && sim_bits_empty(&f->fresh) && f->n_fetches == 0 && is_dead(s, pg))
			evict(s, pg);
	}
	simple_batch(st, rank, batch);
}

#define SIMPLE(id, rule, ahead) \
	static int create_##id(struct sim *m, void **ret) { return simple_create(m, ret, rule, ahead); }
SIMPLE(lru, RULE_LRU, AHEAD_NONE)
SIMPLE(random, RULE_RANDOM, AHEAD_NONE)
SIMPLE(keep, RULE_KEEP, AHEAD_NONE)
SIMPLE(frequency, RULE_FREQUENCY, AHEAD_NONE)
SIMPLE(min, RULE_MIN, AHEAD_NONE)
SIMPLE(lru64, RULE_LRU, AHEAD_64)
SIMPLE(min64, RULE_MIN, AHEAD_64)
SIMPLE(window, RULE_LRU, AHEAD_BATCHES)
SIMPLE(file, RULE_LRU, AHEAD_FILE)

#define OPS(id, title, text)                                                                                                        \
	static const struct sim_policy_ops ops_##id = {.name = title,                                                               \
						       .help = text,                                                                \
						       .create = create_##id,                                                       \
						       .destroy = simple_destroy,                                                   \
						       .progress = simple_progress,                                                 \
						       .batch = simple_batch,                                                       \
						       .read = simple_read,                                                         \
						       .fetched = simple_fetched,                                                   \
						       .step = simple_step}
OPS(lru, "lru", "least recently used, on demand (rclone, JuiceFS, about the page cache)");
OPS(random, "random", "random replacement, on demand");
OPS(keep, "never-evict", "what came first stays (CoorDL's MinIO), on demand");
OPS(frequency, "frequency", "what this node uses most often stays (NoPFS), on demand");
OPS(min, "min", "Belady's MIN with bypass, on demand: fewest fetches, no look-ahead");
OPS(lru64, "lru-window64", "LRU, and the next 64 pages of the order ahead");
OPS(min64, "min-window64", "MIN, and the next 64 pages of the order ahead");
OPS(file, "readahead-file", "LRU, and the rest of the file ahead");
static const struct sim_policy_ops ops_window = {.name = "ffcv-window3",
						 .help = "FFCV's process cache: 3 batches ahead, nothing kept between epochs",
						 .create = create_window,
						 .destroy = simple_destroy,
						 .progress = simple_progress,
						 .batch = window_batch,
						 .read = simple_read,
						 .fetched = simple_fetched,
						 .step = simple_step};

extern const struct sim_policy_ops sim_policy_hintfs, sim_policy_nohint, sim_policy_demand;
const struct sim_policy_ops *const sim_policies[] = {&sim_policy_hintfs, &sim_policy_nohint, &sim_policy_demand, &ops_lru, &ops_random, &ops_keep,
						     &ops_frequency, &ops_min, &ops_lru64, &ops_min64, &ops_window, &ops_file,
						     NULL};

const struct sim_policy_ops *sim_policy_find(const char *name)
{
	for (size_t i = 0; sim_policies[i]; i++)
		if (strcmp(sim_policies[i]->name, name) == 0)
			return sim_policies[i];
	return NULL;
}
