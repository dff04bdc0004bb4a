/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/visit.c - what an origin thread does with one order: descriptor, slot, data, proof, publish, answer.
 *
 * 1. Publish after proof (law 4): blocks turn valid only after all bytes of the run arrived and a forced statx of the
 *    descriptor, made after the last of them, gave the generation's identity, which was seen before the first of them.
 * 2. A thread blocks in the origin only, never for a slot, a descriptor or another thread: an order that lacks one of
 * these is parked and the thread takes the next.
 * 3. While some origin call is late, an order looks at its file's identity before it takes a slot, so that a hung file
 *    holds threads but no slots.
 * 4. Trouble that may pass (transient errnos, a short read of an unchanged file) is tried again with back-off for at
 * most RETRY_NS, or origin_timeout; then its errno goes to all who wait, and nothing of it stays (law 10).
 *
 * The disk tier: an order that it can answer needs no descriptor and no call of the origin; a miss goes on to the origin in the
 * same visit (visit_tier.c).
 *
 * Lock: functions named _locked hold c->lock and may leave it for the time of an origin call.
 */
#include "cache/visit_i.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "cache/cred.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RUN_BYTES (UINT64_C(1) << 20)	   /* one request's worth: merging more delays the first chunk ... */
#define RUN_BYTES_BUSY (UINT64_C(4) << 20) /* ... which pays only when all threads are at work anyway */
#define RETRY_NS (UINT64_C(600) * HFS_NS_PER_MS)
#define RETRY_DELAY_NS (UINT64_C(20) * HFS_NS_PER_MS)
#define RETRY_DELAY_MAX_NS HFS_NS_PER_S

/* Outcomes beside 0 and negative errnos. */
enum { VISIT_CHANGED = 1, VISIT_SHORT = 2 };

/* ---- trying again ---- */

static bool is_transient(int err)
{
	switch (err) {
	case -EAGAIN:
	case -EINTR:
	case -ETIMEDOUT:
	case -EIO:
	case -ENETUNREACH:
	case -EHOSTUNREACH:
	case -ECONNRESET:
	case -ENOMEM:
		return true;
	default:
		return false;
	}
}

/* Sleeps a while; false: time is up, or shutdown. try counts from 0, since is when the first began. */
static bool back_off(struct cache *c, unsigned try, uint64_t since_ns)
{
	uint64_t limit_ns = since_ns + (c->cfg.origin_timeout_ns != 0 ? c->cfg.origin_timeout_ns : RETRY_NS);
	uint64_t delay_ns = try < 4 ? RETRY_DELAY_NS << (2 * try) : RETRY_DELAY_MAX_NS; /* 20, 80, 320 ms ... */
	uint64_t until_ns = hfs_now_ns() + hfs_min_u64(delay_ns, RETRY_DELAY_MAX_NS);
	bool may;

	if (until_ns > limit_ns)
		return false;
	hfs_mutex_lock(&c->lock);
	c->stats.retries++;
	while (!c->is_stopping && hfs_cond_wait_until(&c->backoff, &c->lock, until_ns))
		;
	may = !c->is_stopping;
	hfs_mutex_unlock(&c->lock);
	workq_progress(c->workq);
	return may;
}

/* origin_open() or origin_open_unproven() */
typedef int (*open_fn)(struct origin *o, const char *path, int *ret_fd, struct origin_attr *ret_attr);

static int open_patiently(struct cache *c, open_fn fn, const char *path, int *ret_fd, struct origin_attr *ret_attr)
{
	uint64_t since_ns = hfs_now_ns();
	unsigned try = 0;
	int err;

	do {
		err = fn(c->cfg.origin, path, ret_fd, ret_attr);
		if (err == -ESTALE && try == 0) /* a directory above was replaced: the next walk starts afresh */
			err = fn(c->cfg.origin, path, ret_fd, ret_attr);
	} while (is_transient(err) && back_off(c, try++, since_ns));
	return err;
}

/* f: NULL for a name that is only prefetched. */
static int open_retrying(struct cache *c, open_fn fn, const struct cache_file *f, const char *path, int *ret_fd,
			 struct origin_attr *ret_attr)
{
	int err = open_patiently(c, fn, path, ret_fd, ret_attr);
	struct cred *cr;

	if (!cred_is_refusal(err))
		return err;
	cr = file_cred(c, f);
	if (cr != NULL && cred_assume(cr) == 0) {
		err = open_patiently(c, fn, path, ret_fd, ret_attr);
		cred_drop(cr);
	}
	cred_put(cr);
	return err;
}

/* ---- descriptors ---- */

/* What an open by path says about a generation that was there before. */
static int judge_open(const struct cache_file *f, int err, const struct origin_attr *attr)
{
	switch (err) {
	case 0:
		return hfs_identity_equal(&attr->id, &f->id) ? 0 : VISIT_CHANGED;
	case -ENOENT:
	case -ENOTDIR:
	case -EISDIR:
	case -ELOOP:
	case -ENXIO:
	case -ESTALE:
		return VISIT_CHANGED;
	default:
		return err;
	}
}

/* Open f's path and see that it is still f. No lock. */
static int open_generation(struct cache *c, struct cache_file *f, int *ret_fd)
{
	struct origin_attr attr = {0};
	char *path = cache_file_path(c, f);
	int fd = -1, err;

	if (path == NULL)
		return -ENOMEM;
	err = open_retrying(c, origin_open, f, path, &fd, &attr);
	err = judge_open(f, err, &attr);
	if (err < 0)
		hfs_log_limited(HFS_LOG_WARNING, "origin: %s cannot be opened: %s; its readers get this error", path,
				strerror(-err));
	free(path);
	if (err != 0 && fd >= 0)
		(void)c->cfg.io->close(c->cfg.io->ctx, fd);
	if (err == 0)
		*ret_fd = fd;
	return err;
}

/* f's descriptor, opened if need be and counted as used. *ret NULL and 0: the fetch was parked. */
static int get_fd_locked(struct cache *c, struct fetch *fe, struct batch *b, struct origin_fd **ret)
	HFS_REQUIRES(c->lock)
{
	struct cache_file *f = fe->file;
	int fd = -1, err;

	*ret = fd_get_locked(c, f);
	if (*ret != NULL)
		return 0;
	if (atomic_load(&f->is_superseded))
		return -ESTALE;
	if (f->is_opening || !fd_reserve_locked(c, b)) {
		fetch_park_locked(c, fe, FETCH_WAIT_FD);
		return 0;
	}
	f->is_opening = true;
	hfs_mutex_unlock(&c->lock);
	fd_close_list(c, b->to_close);
	b->to_close = NULL;
	err = open_generation(c, f, &fd);
	workq_progress(c->workq);
	hfs_mutex_lock(&c->lock);
	f->is_opening = false;
	if (err == 0 && f->ofd != NULL) { /* given meanwhile; ours is closed below */
		*ret = fd_get_locked(c, f);
	} else if (err == 0) {
		*ret = fd_join_locked(c, f, fd);
		fd = *ret != NULL ? -1 : fd;
		err = *ret != NULL ? 0 : -ENOMEM;
	}
	if (err == 0)
		fetch_wake_fd_locked(c, f);
	if (*ret == NULL || fd >= 0) {
		if (fd >= 0) {
			hfs_mutex_unlock(&c->lock);
			(void)c->cfg.io->close(c->cfg.io->ctx, fd);
			hfs_mutex_lock(&c->lock);
		}
		fd_unreserve_locked(c);
	}
	fe->is_probed = true;
	return err;
}

/* The run goes on with the file's present descriptor, if there is one. */
static bool swap_fd_locked(struct cache *c, struct run *run) HFS_REQUIRES(c->lock)
{
	struct origin_fd *fresh = fd_get_locked(c, run->file);

	if (fresh == NULL)
		return false;
	fd_put_locked(c, run->ofd);
	run->ofd = fresh;
	return true;
}

/* The descriptor went stale (NFS): once, look whether the same generation is still there under its path. */
static int reopen(struct cache *c, struct run *run)
{
	struct batch b = {0};
	int fd = -1, err;
	bool may = true, has_swapped = false;

	if (run->has_reopened || atomic_load(&run->file->is_superseded))
		return VISIT_CHANGED;
	run->has_reopened = true;
	hfs_mutex_lock(&c->lock);
	if (run->ofd->file != NULL)
		fd_detach_locked(c, run->ofd);
	if (!swap_fd_locked(c, run)) /* nobody else was quicker */
		may = fd_reserve_locked(c, &b);
	else
		has_swapped = true;
	hfs_mutex_unlock(&c->lock);
	fd_close_list(c, b.to_close);
	if (has_swapped)
		return 0;
	if (!may)
		return -ESTALE;
	err = open_generation(c, run->file, &fd);
	hfs_mutex_lock(&c->lock);
	if (err == 0 && run->file->ofd == NULL && fd_join_locked(c, run->file, fd) != NULL) {
		run->file->ofd->n_users--; /* swap counts it */
		fd = -1;
	} else {
		fd_unreserve_locked(c);
	}
	if (err == 0 && !swap_fd_locked(c, run))
		err = -ESTALE;
	hfs_mutex_unlock(&c->lock);
	if (fd >= 0)
		(void)c->cfg.io->close(c->cfg.io->ctx, fd);
	return err;
}

/* ---- data and proof ---- */

/* Identity of the open file against the generation's. */
static int prove(struct cache *c, const struct cache_file *f, int fd)
{
	struct origin_attr attr;

	HFS_TRY(origin_stat_fd(c->cfg.origin, fd, &attr));
	return hfs_identity_equal(&attr.id, &f->id) ? 0 : VISIT_CHANGED;
}

/* Exactly all bytes of iov, or VISIT_SHORT, or an errno. */
static int read_full(struct cache *c, int fd, struct iovec *iov, int n, uint64_t off_bytes, struct figures *fig)
{
	ssize_t got;

	while (n > 0) {
		workq_progress(c->workq);
		got = c->cfg.io->preadv(c->cfg.io->ctx, fd, iov, n, off_bytes);
		if (got < 0)
			return (int)got;
		fig->reads++;
		fig->bytes += (uint64_t)got;
		if (got == 0)
			return VISIT_SHORT;
		off_bytes += (uint64_t)got;
		for (; n > 0 && (size_t)got >= iov->iov_len; n--, iov++)
			got -= (ssize_t)iov->iov_len;
		if (n > 0) {
			fig->short_reads++;
			iov->iov_base = (uint8_t *)iov->iov_base + got;
			iov->iov_len -= (size_t)got;
		}
	}
	return 0;
}

static int read_pieces(struct cache *c, struct run *run)
{
	struct iovec iov[PIECES_MAX];
	uint64_t end_bytes = 0, from_bytes = 0;
	int n = 0, err;

	for (unsigned i = 0; i < run->n_pieces; i++) {
		const struct piece *p = &run->pieces[i];

		if (n > 0 && p->off_bytes != end_bytes) {
			err = read_full(c, run->ofd->fd, iov, n, from_bytes, &run->fig);
			if (err != 0)
				return err;
			n = 0;
		}
		if (n == 0)
			from_bytes = p->off_bytes;
		iov[n++] = (struct iovec){.iov_base = p->buf, .iov_len = p->len};
		end_bytes = p->off_bytes + p->len;
	}
	return read_full(c, run->ofd->fd, iov, n, from_bytes, &run->fig);
}

static int read_proven(struct cache *c, struct run *run)
{
	int err = read_pieces(c, run), changed;

	if (err < 0)
		return err;
	workq_progress(c->workq);
	changed = prove(c, run->file, run->ofd->fd);
	if (err == VISIT_SHORT)
		run->fig.short_reads++;
	return changed != 0 ? changed : err;
}

/* The whole of it, with patience. 0, VISIT_CHANGED or a negative errno. No lock. */
static int read_run(struct cache *c, struct run *run)
{
	uint64_t since_ns = hfs_now_ns();
	unsigned try = 0;
	int err;

	for (;;) {
		err = read_proven(c, run);
		if (err == -ESTALE) {
			err = reopen(c, run);
			if (err == 0)
				continue;
		}
		if (err == VISIT_SHORT)
			err = -EIO; /* the file is as long as ever and still ends early */
		if (!is_transient(err) || !back_off(c, try++, since_ns))
			return err;
	}
}

/* ---- the run under the lock ---- */

/* What f still lacks and nobody reads, into the run; false: nothing fits, or no slot is free (*ret_wait). */
static bool run_add_locked(struct cache *c, struct run *run, struct fetch *f, enum fetch_state *ret_wait)
	HFS_REQUIRES(c->lock)
{
	struct chunk *ch = f->chunk;
	uint64_t base = ch->no << c->chunk_shift;
	uint32_t len = chunk_len(c, ch->file, ch->no), from, to;
	struct bits lack = f->blocks, set = {{0}}, one;
	unsigned at, n;
	uint8_t *data;

	*ret_wait = FETCH_QUEUED;
	bits_remove(&lack, &ch->valid);
	bits_remove(&lack, &ch->running);
	if (bits_is_empty(&lack) || run->n == RUN_FETCHES_MAX || run->n_pieces == PIECES_MAX)
		return false;
	if (bits_is_empty(&ch->running) && ch->file->n_filling >= c->filling_max) {
		*ret_wait = FETCH_WAIT_FILE;
		return false;
	}
	if (slot_is_none(ch->slot))
		ch->slot = pool_take(c->pool);
	if (slot_is_none(ch->slot)) {
		*ret_wait = FETCH_WAIT_SLOT;
		return false;
	}
	if (bits_is_empty(&ch->running))
		ch->file->n_filling++;
	data = pool_slot_data(c->pool, ch->slot);
	for (at = bits_next_run(&lack, 0, &n); n > 0 && run->n_pieces < PIECES_MAX;
	     at = bits_next_run(&lack, at + n, &n)) {
		from = at * c->block_bytes;
		to = (uint32_t)hfs_min_u64((uint64_t)(at + n) * c->block_bytes, len);
		run->pieces[run->n_pieces++] =
			(struct piece){.off_bytes = base + from, .buf = data + from, .len = to - from};
		run->bytes += to - from;
		f->origin_bytes += to - from;
		c->stats.inflight_bytes += to - from;
		one = bits_range(at, n);
		bits_add(&set, &one);
	}
	bits_add(&ch->running, &set);
	f->has_fetched = true;
	run->fetches[run->n] = f;
	run->sets[run->n++] = set;
	return true;
}

static struct fetch *mergeable_locked(struct cache *c, struct run *run, uint64_t limit_bytes) HFS_REQUIRES(c->lock)
{
	const struct fetch *last = run->fetches[run->n - 1];
	const struct piece *end = &run->pieces[run->n_pieces - 1];
	struct chunk *ch;
	struct fetch *f;

	if (end->off_bytes + end->len != (last->chunk->no + 1) << c->chunk_shift)
		return NULL;
	ch = chunk_find_locked(c, run->file, last->chunk->no + 1);
	if (ch == NULL || (slot_is_none(ch->slot) && pool_slots_free(c->pool) <= c->n_slot_woken))
		return NULL;
	for (f = ch->fetches; f != NULL; f = f->chunk_next)
		if (f->state == FETCH_QUEUED && f->off_bytes == 0 && f->is_demand == last->is_demand &&
		    run->bytes + f->len_bytes <= limit_bytes && !((ch->valid.w[0] | ch->running.w[0]) & 1))
			return f;
	return NULL;
}

/* Followers of the run that are queued too come along. */
static void run_extend_locked(struct cache *c, struct run *run) HFS_REQUIRES(c->lock)
{
	bool is_busy = c->demand.n + c->prefetch.n > c->cfg.threads_working_max;
	uint64_t limit_bytes = is_busy ? RUN_BYTES_BUSY : RUN_BYTES;
	struct fetch *f;
	enum fetch_state wait;

	while (run->n < RUN_FETCHES_MAX && run->n_pieces < PIECES_MAX &&
	       (f = mergeable_locked(c, run, limit_bytes)) != NULL) {
		fetch_list_remove(f); /* its token will find nothing */
		if (f->is_slot_woken) {
			f->is_slot_woken = false;
			c->n_slot_woken--;
		}
		f->state = FETCH_RUNNING;
		f->issued_ns = hfs_now_ns();
		if (!run_add_locked(c, run, f, &wait)) {
			fetch_enqueue_locked(c, f, true);
			return;
		}
	}
}

/* One chunk's share of the run has ended: answer the reads, end or go on with the fetches. */
static void settle_share_locked(struct cache *c, struct chunk *ch, const struct bits *set, int err, struct batch *b)
	HFS_REQUIRES(c->lock)
{
	struct fetch *f, *next;
	struct bits lack;

	bits_remove(&ch->running, set);
	if (bits_is_empty(&ch->running)) {
		ch->file->n_filling--;
		fetch_wake_file_locked(c, ch->file);
	}
	if (err == 0) {
		bits_add(&ch->valid, set);
		read_wake_locked(c, ch, b);
	} else {
		read_fail_locked(c, ch, set, err, b);
	}
	for (f = ch->fetches; f != NULL; f = next) {
		next = f->chunk_next;
		lack = f->blocks;
		bits_remove(&lack, &ch->valid);
		if (f->state == FETCH_JOINED && bits_meet(&f->blocks, set))
			f->has_fetched = true;
		if ((f->state == FETCH_JOINED) && err < 0 && bits_meet(&lack, set))
			fetch_end_locked(c, f, err, b);
		else if (f->state == FETCH_JOINED)
			fetch_review_locked(c, f, b);
	}
}

void run_finish_locked(struct cache *c, struct run *run, int err, struct batch *b)
{
	c->stats.origin_reads += run->fig.reads;
	c->stats.origin_bytes += run->fig.bytes;
	c->stats.short_reads += run->fig.short_reads;
	c->stats.inflight_bytes -= run->bytes;
	for (unsigned i = 0; i < run->n; i++) {
		struct fetch *f = run->fetches[i];
		struct chunk *ch = f->chunk;

		ch->n_holds++;
		settle_share_locked(c, ch, &run->sets[i], err, b);
		if (err < 0) {
			fetch_end_locked(c, f, err, b);
		} else {
			bits_remove(&f->blocks, &run->sets[i]); /* done, even if it is evicted right away */
			fetch_review_locked(c, f, b);
		}
		ch->n_holds--;
		chunk_settle_locked(c, ch);
	}
}

/* A generation's outcome as an errno for those who wait; notes that it was superseded. */
static int verdict_locked(struct cache *c, struct cache_file *f, int err, struct batch *b) HFS_REQUIRES(c->lock)
{
	if (err == VISIT_CHANGED) {
		if (f->ofd != NULL)
			fd_detach_locked(c, f->ofd);
		c->stats.stale++;
		if (file_supersede(f) && b->changed == NULL) {
			cache_file_ref(f);
			b->changed = f;
		}
		return -ESTALE;
	}
	if (err < 0 && err != -ESTALE)
		c->stats.origin_errors++;
	return err;
}

static void log_trouble(struct cache *c, struct cache_file *f, uint64_t off_bytes, int err)
{
	char *path = cache_file_path(c, f);

	hfs_log_limited(HFS_LOG_WARNING, "origin: %s at %llu: %s; its readers get this error",
			path != NULL ? path : "?", (unsigned long long)off_bytes, strerror(-err));
	free(path);
}

static void fail_locked(struct cache *c, struct fetch *f, int err, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct chunk *ch = f->chunk;

	read_fail_locked(c, ch, &f->blocks, err, b);
	fetch_end_locked(c, f, err, b);
	chunk_settle_locked(c, ch);
}

/* The open failed: those who waited for it get its errno too, rather than each a failure of its own. */
static void fail_opening_locked(struct cache *c, struct fetch *f, int err, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct cache_file *file = f->file;
	struct fetch *next;

	cache_file_ref(file);
	fail_locked(c, f, err, b);
	for (f = c->fd_wait.first; f != NULL && file->n_fd_waits > 0; f = next) {
		next = f->next;
		if (f->file == file)
			fail_locked(c, f, err, b);
	}
	file_put_locked(c, file);
}

/* Leaves the lock: is the file still there and as it was? True: go on. */
static bool probe_locked(struct cache *c, struct fetch *f, struct origin_fd *ofd, struct batch *b) HFS_REQUIRES(c->lock)
{
	int err;

	hfs_mutex_unlock(&c->lock);
	err = prove(c, f->file, ofd->fd);
	workq_progress(c->workq);
	hfs_mutex_lock(&c->lock);
	f->is_probed = true;
	if (err <= 0) /* an errno is the read's to meet again, with its patience */
		return true;
	fail_locked(c, f, verdict_locked(c, f->file, err, b), b);
	return false;
}

bool run_begin_locked(struct cache *c, struct fetch *f, struct run *run, struct batch *b)
{
	enum fetch_state wait;

	if (!run_add_locked(c, run, f, &wait)) {
		if (wait == FETCH_WAIT_FILE) {
			fetch_park_locked(c, f, FETCH_WAIT_FILE);
		} else if (wait == FETCH_WAIT_SLOT) {
			fetch_park_locked(c, f, FETCH_WAIT_SLOT);
			if (!pool_is_filling_up(c->pool))
				b->n_starved =
					1; /* the sum over all calls is what counts: they may overtake each other */
			c->starved_ns = hfs_now_ns();
		} else {
			struct chunk *ch = f->chunk;

			fetch_review_locked(c, f, b); /* others were quicker */
			chunk_settle_locked(c, ch);
		}
		return false;
	}
	for (struct fetch *other = f->chunk->fetches; other != NULL; other = other->chunk_next)
		if (other->state == FETCH_WAIT_SLOT) /* it has one now */
			fetch_enqueue_locked(c, other, true);
	return true;
}

static void read_with_fd_locked(struct cache *c, struct fetch *f, struct run *run, struct batch *b)
	HFS_REQUIRES(c->lock)
{
	uint64_t off_bytes = (f->chunk->no << c->chunk_shift) + f->off_bytes;
	int err;

	if (!run_begin_locked(c, f, run, b))
		return;
	run_extend_locked(c, run);
	hfs_mutex_unlock(&c->lock);
	err = read_run(c, run);
	if (err < 0 && err != -ESTALE)
		log_trouble(c, run->file, off_bytes, err);
	hfs_mutex_lock(&c->lock);
	err = verdict_locked(c, run->file, err, b);
	run_finish_locked(c, run, err, b);
}

static void run_locked(struct cache *c, struct fetch *f, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct run run;
	int err;

	run.file = f->file;
	run.n = run.n_pieces = 0;
	run.bytes = 0;
	run.has_reopened = run.is_lent = false;
	run.fig = (struct figures){0};
	if (run_from_tier_locked(c, f, &run, b))
		return;
	err = get_fd_locked(c, f, b, &run.ofd);
	if (run.ofd == NULL) {
		if (err != 0)
			fail_opening_locked(c, f, verdict_locked(c, f->file, err, b), b);
		return;
	}
	cache_file_ref(run.file); /* the fetch may end before the descriptor is put */
	if (f->is_probed || !workq_is_any_late(c->workq) || probe_locked(c, f, run.ofd, b))
		read_with_fd_locked(c, f, &run, b);
	fd_put_locked(c, run.ofd);
	file_put_locked(c, run.file);
}

/* ---- names ---- */

static bool is_generation_known(struct cache *c, const struct hfs_identity *id)
{
	struct cache_file *f = cache_file_find(c, id);

	if (f != NULL)
		cache_file_put(c, f);
	return f != NULL;
}

/*
 * Open the name and learn its identity. Nobody has anything of a generation that is new, so all of a small file will be read
 * now, and the proof after its data is one that what was seen here still held: an older look will do. Everybody else asks. No lock.
 */
static int open_name(struct cache *c, struct fetch *f, int *ret_fd)
{
	int fd = -1, err = open_retrying(c, origin_open_unproven, NULL, f->path, &fd, &f->attr);
	uint64_t size = f->attr.id.size_bytes;

	if (err < 0)
		return err;
	if (size == 0 || size > c->cfg.chunk_bytes || c->cfg.tier != NULL || is_generation_known(c, &f->attr.id))
		err = origin_stat_fd(c->cfg.origin, fd, &f->attr);
	if (err < 0) {
		(void)c->cfg.io->close(c->cfg.io->ctx, fd);
		err = open_retrying(c, origin_open, NULL, f->path, &fd, &f->attr);
	}
	if (err == 0)
		*ret_fd = fd;
	return err;
}

/* Opens, or looks, and makes the generation. True: there is a chunk to fetch. False: ended, or parked. */
static bool resolve_locked(struct cache *c, struct fetch *f, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct origin_fd *ofd;
	struct bits all;
	uint32_t len;
	int fd = -1, err;

	if (!fd_reserve_locked(c, b)) {
		fetch_park_locked(c, f, FETCH_WAIT_FD);
		return false;
	}
	hfs_mutex_unlock(&c->lock);
	fd_close_list(c, b->to_close);
	b->to_close = NULL;
	err = visit_look_up_kept(c, f) ? 0 : open_name(c, f, &fd);
	workq_progress(c->workq);
	if (is_transient(err))
		hfs_log_limited(HFS_LOG_WARNING, "origin: %s cannot be looked up: %s; not prefetched", f->path,
				strerror(-err));
	if (err == 0) {
		f->file = cache_file_get(c, &f->attr.id, f->path);
		err = f->file != NULL ? 0 : -ENOMEM;
	}
	hfs_mutex_lock(&c->lock);
	ofd = err == 0 && fd >= 0 && f->file->ofd == NULL ? fd_join_locked(c, f->file, fd) : NULL;
	if (ofd != NULL) {
		fd_put_locked(c, ofd);
		fetch_wake_fd_locked(c, f->file);
	} else {
		if (fd >= 0) {
			hfs_mutex_unlock(&c->lock);
			(void)c->cfg.io->close(c->cfg.io->ctx, fd);
			hfs_mutex_lock(&c->lock);
		}
		fd_unreserve_locked(c);
	}
	f->is_probed = true;
	if (is_transient(err))
		c->stats.origin_errors++;
	if (err < 0 || c->is_stopping) {
		fetch_end_locked(c, f, err < 0 ? err : -ESHUTDOWN, b);
		return false;
	}
	f->is_small = f->attr.id.size_bytes <= c->cfg.chunk_bytes;
	len = (uint32_t)f->attr.id.size_bytes;
	if (!f->is_small || len == 0) {
		fetch_end_locked(c, f, 0, b);
		return false;
	}
	struct chunk *ch = chunk_get_locked(c, f->file, 0);
	if (ch == NULL) {
		fetch_end_locked(c, f, -ENOMEM, b);
		return false;
	}
	all = chunk_blocks(c, 0, len);
	fetch_attach_locked(ch, f, 0, len, &all);
	return true;
}

/* ---- the job ---- */

static void visit_one_locked(struct cache *c, struct batch *b) HFS_REQUIRES(c->lock)
{
	struct chunk *ch = c->drain;
	struct fetch *f = c->ending.first;

	if (ch != NULL) {
		c->drain = ch->drain_next;
		read_drain_locked(c, ch, b);
		ch->is_draining = false;
		chunk_settle_locked(c, ch);
		return;
	}
	ch = c->lost;
	if (ch != NULL) {
		c->lost = ch->lost_next;
		ch->is_lost = false;
		chunk_tell_lost_locked(c, ch, b);
		chunk_settle_locked(c, ch);
		return;
	}
	if (f != NULL) {
		fetch_list_remove(f);
		ch = f->chunk;
		fetch_end_locked(c, f, -ECANCELED, b);
		chunk_settle_locked(c, ch);
		return;
	}
	f = fetch_take_locked(c);
	if (f == NULL)
		return;
	f->issued_ns = hfs_now_ns();
	if (f->chunk == NULL && !resolve_locked(c, f, b))
		return;
	struct bits lack = f->blocks;

	bits_remove(&lack, &f->chunk->valid);
	bits_remove(&lack, &f->chunk->running);
	if (!bits_is_empty(&lack)) {
		struct cache_file *file = f->file;

		cache_file_ref(file); /* f may be gone after the run */
		file->n_visits++;
		run_locked(c, f, b);
		file->n_visits--;
		if (file->n_filling < c->filling_max && !c->is_stopping)
			fetch_wake_file_locked(c, file);
		file_put_locked(c, file);
		return;
	}
	ch = f->chunk;
	fetch_review_locked(c, f, b);
	chunk_settle_locked(c, ch);
}

void visit_main(void *arg)
{
	struct cache *c = arg;
	struct batch b = {0};

	hfs_mutex_lock(&c->lock);
	c->n_visitors++;
	if (!c->is_stopping) {
		visit_one_locked(c, &b);
		fetch_wake_slots_locked(c);
		if (c->is_stopping) /* it came meanwhile: what this visit left behind */
			fetch_end_all_locked(c, &b);
	}
	hfs_mutex_unlock(&c->lock);
	batch_deliver(c, &b);
	fd_visit_end(c, b.to_close);
}
