/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book.c - see book.h. A thread of its own does all that waits: it reads what is there, writes what is new, a round every two seconds.
 *
 * 1. A record that was written is not written again (the set), until its file changes.
 * 2. Pages are read from the last to the first, so the newest record of a path is met first. A page all of which was superseded goes.
 * 3. The index is made when it is first asked for; from then on what is noted goes there, too, in its round.
 *
 * Lock: b->lock (LEAF) for the fields below "guarded"; never held over a call of the tier. The rest is the thread's.
 */
#include "fs/book_i.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ROUND_NS (2 * HFS_NS_PER_S)
#define AWAIT_NS (10 * HFS_NS_PER_S) /* a look for the index */
#define FRESH_MAX 256u		     /* pages that wait; what comes beyond is left out */
#define FULL_MAX 256u
#define JOBS_MAX 1024u
#define PAGES_MAX (1u << 20)
#define GAP_MAX 4096u	 /* pages that may be missing in a row */
#define PARTS_MAX 4096u	 /* of a listing */
#define PUT_TRIES 2000u	 /* of 5 ms, while the tier's queue is full */

struct list_job {
	struct list_job *next;
	struct dirsnap *snap; /* counted */
	char path[];
};

struct book {
	/* const after create */
	struct tier *tier;
	uint64_t origin_dev;
	pthread_t thread;

	struct hfs_mutex lock;
	struct hfs_cond changed;
	/* guarded by lock */
	struct book_block *fresh, *fresh_last;
	struct list_job *jobs, *jobs_last;
	uint32_t n_fresh, n_jobs;
	bool wants_index, has_index, is_stopping, is_ended;
	struct book_index index;
	struct book_block *kept; /* what the index leads into */
	struct book_stats stats;

	/* the thread's */
	struct book_set set;
	struct book_block *page;		/* being filled; may be NULL */
	struct book_block *full, *full_last;	/* to be written */
	uint32_t n_full, next_no;
	bool is_indexing;
};

static bool is_stopping(struct book *b)
{
	bool is;

	hfs_mutex_lock(&b->lock);
	is = b->is_stopping;
	hfs_mutex_unlock(&b->lock);
	return is;
}

static void nap(struct book *b, uint64_t ns)
{
	hfs_mutex_lock(&b->lock);
	(void)hfs_cond_wait_until(&b->changed, &b->lock, hfs_now_ns() + ns);
	hfs_mutex_unlock(&b->lock);
}

/* ---- writing ---- */

static int put(struct book *b, const char *name, const void *data, size_t n)
{
	int err = -EAGAIN;

	for (unsigned i = 0; i < PUT_TRIES; i++) {
		err = tier_note_put(b->tier, name, data, (uint32_t)n);
		if (err != -EAGAIN)
			break;
		nap(b, 5 * HFS_NS_PER_MS);
	}
	return err;
}

/* The index may lead into it. */
static void block_done(struct book *b, struct book_block *k)
{
	hfs_mutex_lock(&b->lock);
	if (b->has_index || b->is_indexing) {
		k->next = b->kept;
		b->kept = k;
		k = NULL;
	}
	hfs_mutex_unlock(&b->lock);
	free(k);
}

static int page_put(struct book *b, struct book_block *k)
{
	char name[BOOK_NAME_CAP];
	int err;

	if (!k->is_dirty)
		return 0;
	book_page_name(name, k->no);
	err = put(b, name, k->data, k->n_bytes);
	if (err == 0)
		k->is_dirty = false;
	return err;
}

/* All that is full; what cannot be written now waits. Then the page that is being filled: it is written again when it is fuller. */
static void pages_flush(struct book *b)
{
	struct tier_stats st;

	tier_stats_get(b->tier, &st);
	if (st.state != TIER_ON)
		return;
	while (b->full) {
		struct book_block *k = b->full;

		if (page_put(b, k) < 0)
			return;
		b->full = k->next;
		b->n_full--;
		block_done(b, k);
	}
	if (b->page)
		(void)page_put(b, b->page);
}

static const uint8_t *append(struct book *b, const struct book_record *r)
{
	const uint8_t *at = b->page ? book_block_add(b->page, r) : NULL;

	if (at)
		return at;
	if (b->page) {
		b->page->next = NULL;
		*(b->full ? &b->full_last->next : &b->full) = b->page;
		b->full_last = b->page;
		b->n_full++;
		b->page = NULL;
		pages_flush(b);
	}
	if (b->n_full >= FULL_MAX || b->next_no >= PAGES_MAX)
		return NULL;
	b->page = book_block_new();
	if (!b->page)
		return NULL;
	b->page->no = b->next_no++;
	return book_block_add(b->page, r);
}

static void index_add(struct book *b, const uint8_t *at, bool is_newer)
{
	hfs_mutex_lock(&b->lock);
	if (b->has_index || b->is_indexing)
		(void)book_index_put(&b->index, at, is_newer);
	hfs_mutex_unlock(&b->lock);
}

static void take_fresh(struct book *b, const struct book_block *k)
{
	size_t at = sizeof(struct book_raw_page), n;
	struct book_record r;
	const uint8_t *put_at;

	while ((n = book_record_decode(k->data + at, k->n_bytes - at, &r)) > 0) {
		at += n;
		if (book_set_add(&b->set, book_record_hash(&r)) != 1)
			continue;
		put_at = append(b, &r);
		if (!put_at)
			continue;
		index_add(b, put_at, true);
		hfs_mutex_lock(&b->lock);
		b->stats.noted++;
		b->stats.records++;
		hfs_mutex_unlock(&b->lock);
	}
}

/* ---- listings ---- */

struct cutter {
	struct book *b;
	const char *path;
	struct book_list_head head;
	size_t n_bytes;
	bool is_writing;
	uint8_t buf[BOOK_NOTE_BYTES];
};

static int part_end(struct cutter *c)
{
	char name[BOOK_NAME_CAP];
	int err = 0;

	if (c->is_writing) {
		book_list_encode(c->buf, &c->head);
		err = book_list_name(name, c->path, c->head.part_no) ? put(c->b, name, c->buf, c->n_bytes) : -ENAMETOOLONG;
	}
	c->head.part_no++;
	c->head.n_entries = 0;
	c->n_bytes = sizeof(struct book_raw_list);
	return err;
}

/* The first time to learn stamp and number of parts, the second time to write. */
static int cut(struct cutter *c, struct dirsnap *s, bool is_writing)
{
	struct dirsnap_entry e;
	size_t n;

	c->is_writing = is_writing;
	c->head.part_no = c->head.n_entries = 0;
	c->n_bytes = sizeof(struct book_raw_list);
	for (size_t i = 0; i < dirsnap_count(s); i++) {
		dirsnap_entry(s, i, &e);
		if (e.len == 0 || e.len > 255)
			continue;
		if (c->n_bytes + sizeof(struct book_raw_entry) + e.len > sizeof(c->buf))
			HFS_TRY(part_end(c));
		n = book_entry_encode(c->buf + c->n_bytes, e.name, e.len, e.ino, e.type);
		if (!is_writing)
			c->head.stamp = XXH3_64bits_withSeed(c->buf + c->n_bytes, n, c->head.stamp);
		c->n_bytes += n;
		c->head.n_entries++;
	}
	HFS_TRY(part_end(c));
	if (!is_writing)
		c->head.n_parts = c->head.part_no;
	return 0;
}

static bool part_read(struct book *b, const char *path, uint32_t no, uint8_t *buf, struct book_list_head *ret, size_t *ret_n)
{
	char name[BOOK_NAME_CAP];
	int64_t n = book_list_name(name, path, no) ? tier_note_get(b->tier, name, buf) : -ENOENT;

	*ret_n = n > 0 ? (size_t)n : 0;
	return n > 0 && book_list_decode(buf, (size_t)n, ret) && ret->part_no == no && ret->n_parts <= PARTS_MAX;
}

/* Is just this listing there, each part of it? */
static bool list_is_kept(struct cutter *c)
{
	struct book_list_head h;
	size_t n;

	for (uint32_t no = 0; no < c->head.n_parts; no++)
		if (!part_read(c->b, c->path, no, c->buf, &h, &n) || h.stamp != c->head.stamp || h.n_parts != c->head.n_parts)
			return false;
	return true;
}

static void list_write(struct book *b, struct list_job *j)
{
	struct cutter *c = calloc(1, sizeof(*c));
	int err = c ? 0 : -ENOMEM;

	if (err == 0) {
		c->b = b;
		c->path = j->path;
		err = cut(c, j->snap, false);
	}
	if (err == 0 && c->head.n_parts <= PARTS_MAX && !list_is_kept(c))
		err = cut(c, j->snap, true);
	if (err == 0) {
		hfs_mutex_lock(&b->lock);
		b->stats.listed++;
		hfs_mutex_unlock(&b->lock);
	}
	free(c);
}

/* ---- reading what is there ---- */

struct load {
	struct book_set paths; /* of newer pages */
	bool is_first;	       /* fill the set, too */
};

/* How many of the page's records are the newest of their path. From the last one on: it is the newest of the page. */
static uint32_t page_take(struct book *b, struct load *l, const struct book_block *k)
{
	uint16_t places[BOOK_NOTE_BYTES / sizeof(struct book_raw_record)];
	size_t at = sizeof(struct book_raw_page), n;
	uint32_t n_places = 0, n_live = 0;
	struct book_record r;

	_Static_assert(BOOK_NOTE_BYTES <= UINT16_MAX, "places");
	while ((n = book_record_decode(k->data + at, k->n_bytes - at, &r)) > 0) {
		places[n_places++] = (uint16_t)at;
		at += n;
	}
	while (n_places-- > 0) {
		const uint8_t *here = k->data + places[n_places];
		bool is_newest;

		(void)book_record_decode(here, k->n_bytes - places[n_places], &r);
		is_newest = book_set_add(&l->paths, XXH3_64bits(r.path, r.path_bytes)) != 0;
		n_live += is_newest;
		if (l->is_first && book_set_add(&b->set, book_record_hash(&r)) == 1) {
			hfs_mutex_lock(&b->lock);
			b->stats.records++;
			hfs_mutex_unlock(&b->lock);
		}
		if (is_newest)
			index_add(b, here, false);
	}
	return n_live;
}

static uint32_t pages_end(struct book *b)
{
	char name[BOOK_NAME_CAP];
	uint32_t end = 0;

	for (uint32_t no = 0; no < end + GAP_MAX && no < PAGES_MAX; no++) {
		book_page_name(name, no);
		if (tier_note_size(b->tier, name) > 0)
			end = no + 1;
	}
	return end;
}

static void load(struct book *b, bool is_first)
{
	struct load l = {.is_first = is_first};
	uint32_t end = pages_end(b), n_live, n_records;
	char name[BOOK_NAME_CAP];
	struct book_block *k;
	int64_t n;

	if (is_first)
		b->next_no = end;
	for (uint32_t no = end; no-- > 0 && !is_stopping(b);) {
		book_page_name(name, no);
		if ((b->page && b->page->no == no) || tier_note_size(b->tier, name) == 0)
			continue;
		k = book_block_new();
		n = k ? tier_note_get(b->tier, name, k->data) : -ENOMEM;
		if (n < 0 || !book_page_decode(k->data, (size_t)n, &n_records)) {
			free(k);
			continue;
		}
		k->no = no;
		k->n_bytes = (size_t)n;
		k->n_records = n_records;
		n_live = page_take(b, &l, k);
		if (is_first && n_live == 0)
			tier_drop_file(b->tier, name);
		if (is_first && no + 1 == end && k->n_bytes < sizeof(k->data) / 2)
			b->page = k; /* goes on being filled */
		else
			block_done(b, k);
	}
	book_set_finish(&l.paths);
}

static void index_make(struct book *b)
{
	b->is_indexing = true;
	/* What is in memory only is newer than what is on the disk. */
	struct load l = {0};
	if (b->page)
		(void)page_take(b, &l, b->page);
	for (struct book_block *k = b->full; k; k = k->next)
		(void)page_take(b, &l, k);
	book_set_finish(&l.paths);
	load(b, false);
	hfs_mutex_lock(&b->lock);
	b->has_index = true;
	hfs_cond_broadcast(&b->changed);
	hfs_mutex_unlock(&b->lock);
}

/* ---- the thread ---- */

static void round_make(struct book *b)
{
	struct book_block *fresh;
	struct list_job *jobs, *next;

	hfs_mutex_lock(&b->lock);
	fresh = b->fresh;
	b->fresh = b->fresh_last = NULL;
	b->n_fresh = 0;
	jobs = b->jobs;
	b->jobs = b->jobs_last = NULL;
	b->n_jobs = 0;
	hfs_mutex_unlock(&b->lock);
	while (fresh) {
		struct book_block *k = fresh;

		fresh = k->next;
		take_fresh(b, k);
		free(k);
	}
	pages_flush(b);
	for (; jobs; jobs = next) {
		next = jobs->next;
		list_write(b, jobs);
		dirsnap_put(jobs->snap);
		free(jobs);
	}
}

/* Until there is something to do, and a moment more for what comes along. */
static bool await_work(struct book *b)
{
	uint64_t until_ns = 0;
	bool is_index_due;

	hfs_mutex_lock(&b->lock);
	for (;;) {
		is_index_due = b->wants_index && !b->has_index;
		if (b->is_stopping || is_index_due || b->n_fresh > 4)
			break;
		if (until_ns != 0 && hfs_now_ns() >= until_ns)
			break;
		if (!b->fresh && !b->jobs && !b->full) {
			hfs_cond_wait(&b->changed, &b->lock);
			continue;
		}
		if (until_ns == 0)
			until_ns = hfs_now_ns() + ROUND_NS;
		(void)hfs_cond_wait_until(&b->changed, &b->lock, until_ns);
	}
	hfs_mutex_unlock(&b->lock);
	return is_index_due;
}

static void *book_main(void *arg)
{
	struct book *b = arg;
	bool is_end = false;

	pthread_setname_np(pthread_self(), "hfs-book");
	while (!tier_wait_notes(b->tier, 200) && !is_stopping(b))
		;
	load(b, true);
	while (!is_end) {
		bool is_index_due = await_work(b);

		is_end = is_stopping(b);
		if (is_index_due && !is_end)
			index_make(b);
		round_make(b);
	}
	hfs_mutex_lock(&b->lock);
	b->is_ended = true;
	hfs_cond_broadcast(&b->changed);
	hfs_mutex_unlock(&b->lock);
	return NULL;
}

/* ---- life ---- */

int book_create(struct tier *t, uint64_t origin_dev, struct book **ret_b)
{
	struct book *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return -ENOMEM;
	b->tier = t;
	b->origin_dev = origin_dev;
	hfs_mutex_init(&b->lock, HFS_RANK_LEAF);
	hfs_cond_init(&b->changed);
	rc = -pthread_create(&b->thread, NULL, book_main, b);
	if (rc < 0) {
		hfs_cond_finish(&b->changed);
		hfs_mutex_finish(&b->lock);
		free(b);
		return rc;
	}
	*ret_b = b;
	return 0;
}

void book_stop(struct book *b, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;

	hfs_mutex_lock(&b->lock);
	b->is_stopping = true;
	hfs_cond_broadcast(&b->changed);
	while (!b->is_ended && hfs_cond_wait_until(&b->changed, &b->lock, deadline_ns))
		;
	hfs_mutex_unlock(&b->lock);
}

static void blocks_free(struct book_block *k)
{
	while (k) {
		struct book_block *next = k->next;

		free(k);
		k = next;
	}
}

void book_destroy(struct book *b)
{
	if (!b)
		return;
	book_stop(b, 0);
	pthread_join(b->thread, NULL); /* its waits for the tier are bounded */
	blocks_free(b->fresh);
	blocks_free(b->full);
	blocks_free(b->kept);
	free(b->page);
	while (b->jobs) {
		struct list_job *j = b->jobs;

		b->jobs = j->next;
		dirsnap_put(j->snap);
		free(j);
	}
	book_set_finish(&b->set);
	book_index_finish(&b->index);
	hfs_cond_finish(&b->changed);
	hfs_mutex_finish(&b->lock);
	free(b);
}

/* ---- noting ---- */

static bool fresh_add_locked(struct book *b, const struct book_record *r)
{
	struct book_block *k = b->fresh_last;

	if (k && book_block_add(k, r))
		return true;
	if (b->n_fresh >= FRESH_MAX || !(k = book_block_new()))
		return false;
	*(b->fresh_last ? &b->fresh_last->next : &b->fresh) = k;
	b->fresh_last = k;
	b->n_fresh++;
	if (b->n_fresh == 1 || b->n_fresh > 4)
		hfs_cond_broadcast(&b->changed);
	return book_block_add(k, r) != NULL;
}

void book_note(struct book *b, const char *path, const struct origin_attr *attr, const char *link)
{
	size_t path_bytes = strlen(path), link_bytes = link ? strlen(link) : 0;
	struct book_record r = {.attr = *attr, .path = path, .link = link};

	if (path_bytes > BOOK_PATH_MAX || link_bytes > BOOK_LINK_MAX)
		return;
	r.path_bytes = (uint16_t)path_bytes;
	r.link_bytes = (uint16_t)link_bytes;
	if (r.attr.id.dev == b->origin_dev)
		r.attr.id.dev = 0;
	hfs_mutex_lock(&b->lock);
	if (!b->is_stopping)
		(void)fresh_add_locked(b, &r);
	hfs_mutex_unlock(&b->lock);
}

void book_note_list(struct book *b, const char *path, struct dirsnap *s)
{
	size_t n = strlen(path) + 1;
	struct list_job *j = malloc(sizeof(*j) + n);
	bool is_taken = false;

	if (j) {
		*j = (struct list_job){.snap = s};
		memcpy(j->path, path, n);
		hfs_mutex_lock(&b->lock);
		is_taken = !b->is_stopping && b->n_jobs < JOBS_MAX;
		if (is_taken) {
			*(b->jobs_last ? &b->jobs_last->next : &b->jobs) = j;
			b->jobs_last = j;
			b->n_jobs++;
			hfs_cond_broadcast(&b->changed);
		}
		hfs_mutex_unlock(&b->lock);
	}
	if (!is_taken) {
		dirsnap_put(s);
		free(j);
	}
}

/* ---- looks ---- */

static bool await_index_locked(struct book *b) HFS_REQUIRES(b->lock)
{
	uint64_t deadline_ns = hfs_now_ns() + AWAIT_NS;

	if (!b->wants_index) {
		b->wants_index = true;
		hfs_cond_broadcast(&b->changed);
	}
	while (!b->has_index && !b->is_stopping && hfs_cond_wait_until(&b->changed, &b->lock, deadline_ns))
		;
	return b->has_index;
}

bool book_attr(struct book *b, const char *path, struct origin_attr *ret)
{
	struct book_record r;
	bool is_found;

	hfs_mutex_lock(&b->lock);
	is_found = await_index_locked(b) && book_index_find(&b->index, path, &r);
	if (is_found) {
		*ret = r.attr;
		if (ret->id.dev == 0)
			ret->id.dev = b->origin_dev;
	}
	*(is_found ? &b->stats.answered : &b->stats.missed) += 1;
	hfs_mutex_unlock(&b->lock);
	return is_found;
}

int64_t book_link(struct book *b, const char *path, char *buf, size_t cap)
{
	struct book_record r;
	int64_t n = -ENOENT;

	hfs_mutex_lock(&b->lock);
	if (await_index_locked(b) && book_index_find(&b->index, path, &r) && r.link_bytes > 0) {
		n = r.link_bytes < cap ? r.link_bytes : (int64_t)cap;
		memcpy(buf, r.link, (size_t)n);
	}
	*(n >= 0 ? &b->stats.answered : &b->stats.missed) += 1;
	hfs_mutex_unlock(&b->lock);
	return n;
}

static int part_give(const uint8_t *buf, size_t n, const struct book_list_head *h, origin_list_cb cb, void *ctx)
{
	size_t at = sizeof(struct book_raw_list), len, here;
	const char *name;
	uint64_t ino;
	unsigned type;

	for (uint32_t i = 0; i < h->n_entries; i++) {
		here = book_entry_decode(buf + at, n - at, &name, &len, &ino, &type);
		if (here == 0)
			return -ENOENT;
		HFS_TRY(cb(ctx, name, len, ino, type));
		at += here;
	}
	return 0;
}

int book_list(struct book *b, const char *path, origin_list_cb cb, void *ctx)
{
	uint8_t *buf = malloc(BOOK_NOTE_BYTES);
	struct book_list_head first = {.n_parts = 1}, h;
	int rc = buf ? 0 : -ENOMEM;
	size_t n;

	if (rc == 0 && !tier_wait_notes(b->tier, (unsigned)(AWAIT_NS / HFS_NS_PER_MS)))
		rc = -ENOENT;
	for (uint32_t no = 0; rc == 0 && no < first.n_parts; no++) {
		if (!part_read(b, path, no, buf, &h, &n))
			rc = -ENOENT;
		else if (no == 0)
			first = h;
		if (rc == 0 && (h.stamp != first.stamp || h.n_parts != first.n_parts))
			rc = -ENOENT;
		if (rc == 0)
			rc = part_give(buf, n, &h, cb, ctx);
	}
	free(buf);
	hfs_mutex_lock(&b->lock);
	*(rc == 0 ? &b->stats.answered : &b->stats.missed) += 1;
	hfs_mutex_unlock(&b->lock);
	return rc;
}

void book_stats_get(struct book *b, struct book_stats *ret)
{
	hfs_mutex_lock(&b->lock);
	*ret = b->stats;
	hfs_mutex_unlock(&b->lock);
}
