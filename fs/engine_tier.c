/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/engine_tier.c - the disk tier between cache and scheduler: what goes to it, what it has, how much it may hold.
 *
 * The scheduler decides (TIER_ADMIT, TIER_DROP) and believes that an admission succeeds; what comes of it is told as an event.
 * 1. Whatever the tier says, a wrong belief costs a miss, never a byte: visit.c asks it anew for every order.
 * 2. While the scheduler counts a page of a name on the tier, the name keeps its generation (name_trim_locked): the tier
 *    is asked by identity.
 * 3. The tier is made before the cache and ends after it, whose threads read from it; its own threads' news is ignored
 *    once the engine is stopping.
 *
 * Lock: the engine's, but for the callbacks and those that say otherwise.
 */
#include "fs/engine_i.h"

#include "cache/base/arith.h"
#include "cache/tier.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_MAX 1024u	      /* admissions that wait for room in the tier's queue */
#define MAP_CHUNKS_MAX (1u << 20) /* of one file, told to the scheduler when it becomes known */
#define RETRY_MIN_NS (1000 * HFS_NS_PER_MS) /* doubles up to 64 times: what one try costs, a copy of a chunk, is then nothing */
#define PAGES_MIN 16u /* on the tier, before their average counts */
#define PAGE_MIN_BYTES 256u /* small files lie in packs: with a name and a head even an empty one takes about so much */

struct tier_news {
	struct hfs_identity id;
	uint32_t name; /* not of lost */
	uint64_t chunk_no;
};

/* ---- callbacks of the tier: its threads, no lock --------------------------------------------------------- */

static void tell(struct engine *e, enum event_kind kind, struct tier_news *news, int err)
{
	struct event ev = { .kind = kind, .news = news, .err = err, .now_ns = hfs_now_ns() };

	engine_post(e, &ev);
	engine_pump(e);
}

static void on_admitted(void *ctx, uint64_t cookie, int err)
{
	if (cookie != 0) /* else a note, which the scheduler knows nothing of */
		tell(ctx, EV_TIER_ADMITTED, (struct tier_news *)(uintptr_t)cookie, err);
}

static void lost(struct engine *e, const struct tier_news *news) HFS_REQUIRES(e->lock);

/* As engine_post() does with what it has no memory for. */
static void lost_now(struct engine *e, const struct tier_news *news)
{
	struct wait *done = NULL;

	engine_enter(e);
	engine_feed_locked(e, &done);
	if (!e->is_stopping)
		lost(e, news);
	engine_leave(e);
	engine_calls(e, done);
}

static void on_lost(void *ctx, const struct hfs_identity *id, uint64_t chunk_no)
{
	struct tier_news own = { .id = *id, .name = NAME_NONE, .chunk_no = chunk_no };
	struct tier_news *news = malloc(sizeof(*news));

	if (!news) {
		lost_now(ctx, &own);
		return;
	}
	*news = own;
	tell(ctx, EV_TIER_LOST, news, 0);
}

static void on_adopted(void *ctx)
{
	tell(ctx, EV_TIER_ADOPTED, NULL, 0);
}

/* ---- how much fits ----------------------------------------------------------------------------------------- */

/* The scheduler counts pages, the tier bytes: what pages take there on the average decides. */
uint32_t tier_pages_that_fit(struct engine *e)
{
	uint64_t chunk = e->cfg.cache.chunk_bytes, bytes, pages;
	struct tier_stats st;

	tier_stats_get(e->tier, &st);
	bytes = st.size_bytes - st.size_bytes / 64 - 2 * chunk; /* directories, the index; what is on its way */
	pages = st.chunks + st.files_small;
	/* Where not even so many whole ones fit, the average counts as soon as those are there: they may be small files. */
	uint64_t whole = hfs_max_u64(1, bytes / (chunk + 4096));
	uint64_t each = pages >= hfs_min_u64(PAGES_MIN, whole) ? st.bytes / pages : chunk + 4096;
	uint64_t n = bytes / (each > PAGE_MIN_BYTES ? each : PAGE_MIN_BYTES);
	return (uint32_t)(n < 1 ? 1 : n < UINT32_MAX / 64 ? n : UINT32_MAX / 64);
}

static void fit_again(struct engine *e)
{
	uint32_t n = tier_pages_that_fit(e);

	if (n != e->tier_pages)
		sched_set_disk_pages(e->sched, n);
	e->tier_pages = n;
}

/* ---- admissions ---------------------------------------------------------------------------------------------- */

/* A copy that is to be made when the engine's lock is gone: a megabyte takes as long as hundreds of events. */
struct copy {
	struct engine *e;
	struct cache_file *file; /* counted */
	struct tier_news *news;	 /* owned until the tier has it */
	uint32_t slot;
};

static void copy_out(void *arg, int err)
{
	struct copy *y = arg;
	struct engine *e = y->e;
	int rc = cache_tier_admit(e->cache, y->file, y->news->chunk_no, y->slot, (uint64_t)(uintptr_t)y->news);

	(void)err;
	atomic_fetch_sub(&e->n_tier_copies, 1);
	cache_file_put(e->cache, y->file);
	if (rc < 0) /* the tier will say nothing */
		tell(e, EV_TIER_ADMITTED, y->news, rc);
	free(y);
}

static int copy_later(struct engine *e, uint32_t name, uint64_t chunk_no, struct wait **done)
{
	struct cache_file *f = name_at(e, name)->file;
	struct tier_news *news = malloc(sizeof(*news));
	struct copy *y = malloc(sizeof(*y));
	struct wait *w = calloc(1, sizeof(*w));
	int rc = news && y && w ? 0 : -ENOMEM;

	if (rc == 0) {
		*news = (struct tier_news){ .id = *cache_file_identity(f), .name = name, .chunk_no = chunk_no };
		*y = (struct copy){ .e = e, .file = f, .news = news };
		rc = cache_tier_hold(e->cache, f, chunk_no, &y->slot);
	}
	if (rc < 0) {
		free(news);
		free(y);
		free(w);
		return rc;
	}
	cache_file_ref(f);
	atomic_fetch_add(&e->n_tier_copies, 1);
	w->done = copy_out;
	w->arg = y;
	w->next = *done;
	*done = w;
	return 0;
}

/* -EAGAIN: later. Anything else is told to the scheduler here or by an event. */
static int admit(struct engine *e, uint32_t name, uint64_t chunk_no, struct wait **done)
{
	int rc = name_at(e, name)->file ? 0 : -ENOENT;

	if (rc == 0 && tier_room(e->tier) <= atomic_load(&e->n_tier_copies))
		return -EAGAIN; /* nothing is held for a queue that is full */
	if (rc == 0)
		rc = copy_later(e, name, chunk_no, done);
	if (rc < 0)
		sched_tier_has(e->sched, name, chunk_no, false);
	return rc;
}

/* The queue has room again, or adoption is complete. What was evicted meanwhile has its turn when it comes again. */
static void admit_again(struct engine *e, struct wait **done)
{
	uint32_t i = 0;

	while (i < e->n_tier_again && admit(e, e->tier_again[i].name, e->tier_again[i].chunk_no, done) != -EAGAIN)
		i++;
	e->n_tier_again -= i;
	if (i > 0)
		memmove(e->tier_again, e->tier_again + i, e->n_tier_again * sizeof(*e->tier_again));
}

static void remember(struct engine *e, uint32_t name, uint64_t chunk_no)
{
	if (!e->tier_again)
		e->tier_again = malloc(AGAIN_MAX * sizeof(*e->tier_again));
	if (e->tier_again && e->n_tier_again < AGAIN_MAX)
		e->tier_again[e->n_tier_again++] = (struct tier_again){ .name = name, .chunk_no = chunk_no };
	else
		sched_tier_has(e->sched, name, chunk_no, false);
}

void tier_act_admit_locked(struct engine *e, const struct sched_action *a, struct wait **done)
{
	if (e->n_tier_again > 0 || admit(e, a->file, a->chunk_no, done) == -EAGAIN)
		remember(e, a->file, a->chunk_no);
}

void tier_act_drop_locked(struct engine *e, const struct sched_action *a)
{
	struct ename *m = name_at(e, a->file);

	if (m->file)
		cache_tier_drop(e->cache, m->file, a->chunk_no);
	else if (m->path) /* no page of it is on the tier any more, for all that the scheduler knows */
		tier_drop_file(e->tier, m->path);
}

/* ---- refusals ------------------------------------------------------------------------------------------------- */

/* For the state of the disk (full, in trouble), which passes, and not for the page's own. */
static bool is_passing(int err)
{
	return err < 0 && err != -EEXIST && err != -ENOENT && err != -ENAMETOOLONG && err != -EFBIG && err != -EINVAL;
}

/*
 * A page that stays resident is not offered a second time by itself, so a tier that had trouble would never get what is read
 * most. After a refusal one page is tried now and then; as soon as any is taken, all have their turn.
 */
static void refusal_note(struct engine *e, int err)
{
	if (is_passing(err) && e->tier_retry_ns == 0) {
		e->tier_delay_ns = RETRY_MIN_NS;
		e->tier_retry_ns = hfs_now_ns() + e->tier_delay_ns;
	} else if (err == 0 && e->tier_retry_ns != 0) {
		e->tier_retry_ns = 0;
		sched_tier_offer_again(e->sched, UINT32_MAX);
	}
}

uint64_t tier_retry_locked(struct engine *e)
{
	uint64_t now_ns;

	if (e->tier_retry_ns == 0)
		return SCHED_NO_TIME;
	now_ns = hfs_now_ns();
	if (now_ns >= e->tier_retry_ns) {
		e->tier_delay_ns = hfs_min_u64(2 * e->tier_delay_ns, 64 * RETRY_MIN_NS);
		e->tier_retry_ns = now_ns + e->tier_delay_ns;
		sched_tier_offer_again(e->sched, 1);
	}
	return e->tier_retry_ns;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void admitted(struct engine *e, const struct tier_news *news, int err, struct wait **done)
{
	struct cache_file *f = news->name < e->n_names ? name_at(e, news->name)->file : NULL;

	refusal_note(e, err);
	if (!f || !hfs_identity_equal(cache_file_identity(f), &news->id)) {
		; /* it is about a generation that the name has no more */
	} else if (err == -EAGAIN) {
		remember(e, news->name, news->chunk_no); /* others were faster */
	} else {
		sched_tier_has(e->sched, news->name, news->chunk_no, err == 0 || err == -EEXIST);
		name_trim_locked(e, news->name);
	}
	fit_again(e);
	admit_again(e, done);
}

static void lost(struct engine *e, const struct tier_news *news)
{
	struct cache_file *f = cache_file_find(e->cache, &news->id);
	uint32_t name = f ? cache_file_tag(f) : NAME_NONE;
	uint64_t n = hfs_div_up(news->id.size_bytes, e->cfg.cache.chunk_bytes);

	if (name != NAME_NONE && name_at(e, name)->file == f) {
		if (news->chunk_no != UINT64_MAX)
			sched_tier_has(e->sched, name, news->chunk_no, false);
		for (uint64_t i = 0; news->chunk_no == UINT64_MAX && i < n && i < MAP_CHUNKS_MAX; i++)
			sched_tier_has(e->sched, name, i, false);
		name_trim_locked(e, name);
	}
	if (f)
		cache_file_put(e->cache, f);
}

void tier_map_locked(struct engine *e, uint32_t name)
{
	struct cache_file *f = name_at(e, name)->file;
	uint64_t n = f ? hfs_div_up(cache_file_identity(f)->size_bytes, e->cfg.cache.chunk_bytes) : 0;
	uint64_t few[4], *bits = few;
	size_t words;

	if (n == 0)
		return;
	words = (size_t)((n < MAP_CHUNKS_MAX ? n : MAP_CHUNKS_MAX) + 63) / 64;
	if (words > sizeof(few) / sizeof(few[0]))
		bits = malloc(words * sizeof(*bits));
	if (!bits)
		return; /* found there when it is fetched */
	if (cache_tier_map(e->cache, f, bits, words) > 0)
		for (uint64_t i = 0; i < words * 64 && i < n; i++)
			if (bits[i / 64] >> (i % 64) & 1)
				sched_tier_has(e->sched, name, i, true);
	if (bits != few)
		free(bits);
}

void tier_event_locked(struct engine *e, struct event *ev, struct wait **done)
{
	if (!e->is_stopping) {
		switch (ev->kind) {
		case EV_TIER_ADMITTED:
			admitted(e, ev->news, ev->err, done);
			break;
		case EV_TIER_LOST:
			lost(e, ev->news);
			break;
		default:
			for (uint32_t i = 0; i < e->n_names; i++)
				tier_map_locked(e, i);
			fit_again(e);
			admit_again(e, done);
			break;
		}
	}
	free(ev->news);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int tier_begin(struct engine *e)
{
	struct tier_config cfg = *e->cfg.tier;

	cfg.chunk_bytes = (uint32_t)e->cfg.cache.chunk_bytes;
	cfg.cb = (struct tier_callbacks){ .ctx = e, .admitted = on_admitted, .lost = on_lost, .adopted = on_adopted };
	e->cfg.tier = NULL; /* the caller's */
	HFS_TRY(tier_create(&cfg, &e->tier, e->cfg.tier_why, e->cfg.tier_why_cap));
	e->cfg.cache.tier = e->tier;
	return 0;
}

struct tier *engine_tier(struct engine *e)
{
	return e->tier;
}

bool engine_tier_stats(struct engine *e, struct tier_stats *ret)
{
	if (e->tier)
		tier_stats_get(e->tier, ret);
	return e->tier != NULL;
}
