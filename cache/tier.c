/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier.c - life of the disk tier, its clock (the ticks of the background queue), its figures.
 *
 *   setup (the only I/O on the caller's thread, O(1)) --> adopting --> on --> shutdown --> seal, sync --> freed
 *
 * Three work queues: reads and large_reads (somebody waits; of whole chunks only a few are read at a time), and bg (adoption, admission,
 * care, sync, probe). Care is what follows from other things: checks, drops, sealing, culling, removal; one at a time.
 */
#include "cache/tier_i.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRACE_NS (2 * HFS_NS_PER_S) /* a reader may wait for adoption, since the start */
#define READS_MAX 16u
#define LARGE_READS_MIN 4u
#define LARGE_READS_BYTES (UINT32_C(8) << 20)

void tier_tell_lost(struct tier *t, uint32_t dataset, struct hfs_identity id, uint64_t chunk_no)
{
	struct hfs_identity out = tier_identity_out(t, id);

	if (dataset == 0 && t->cfg.cb.lost != NULL)
		t->cfg.cb.lost(t->cfg.cb.ctx, &out, chunk_no);
}

/* ---- care ---- */

static void care(struct tier *t, bool is_check)
{
	if (is_check) {
		tier_check(t);
		tier_space_measure(t);
	}
	if (tier_space_is_over(t))
		(void)tier_space_cull(t, 0, 0, true);
	tier_pack_seal_full(t, false);
	tier_drops_run(t);
	tier_space_cull_waste(t);
	hfs_mutex_lock(&t->lock);
	bool has_trash = t->has_trash && t->state != TIER_OFF;
	hfs_mutex_unlock(&t->lock);
	if (has_trash)
		tier_trash_slice(t);
	tier_fds_trim(t);
}

void tier_care_main(void *arg)
{
	struct tier *t = arg;
	bool may, is_check;

	hfs_mutex_lock(&t->lock);
	may = !t->is_stopping && !t->is_caring && t->state != TIER_OFF && !t->is_adopting;
	t->is_care_queued = !may && t->is_caring; /* who is at it begins again */
	if (may)
		t->is_caring = true;
	is_check = hfs_now_ns() >= t->check_at_ns;
	if (is_check)
		t->check_at_ns = hfs_now_ns() + t->cfg.check_ns;
	hfs_mutex_unlock(&t->lock);
	if (!may)
		return;
	care(t, is_check);
	hfs_mutex_lock(&t->lock);
	t->is_caring = false;
	if (t->is_care_queued) {
		t->is_care_queued = false;
		tier_care_soon_locked(t);
	}
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}

/* ---- ticks ---- */

static bool queue_locked(struct tier *t, void (*fn)(void *arg))
{
	return workq_run(t->bg, fn, t, true) == 0;
}

static bool is_adoption_due(const struct tier *t)
{
	return !t->is_adopted && !t->is_adopting && t->state == TIER_ADOPTING;
}

static uint64_t tick_locked(struct tier *t, uint64_t now_ns)
{
	bool is_sync_due = now_ns >= t->sync_at_ns || t->dirty_bytes >= t->cfg.sync_bytes;

	if (t->state >= TIER_READONLY && now_ns >= t->probe_at_ns && !t->is_probe_queued)
		t->is_probe_queued = queue_locked(t, tier_probe_main);
	if (t->dirty != NULL && is_sync_due && !t->is_sync_queued && t->state != TIER_OFF)
		t->is_sync_queued = queue_locked(t, tier_sync_main);
	if (is_adoption_due(t))
		t->is_adopting = queue_locked(t, tier_adopt_main);
	if (now_ns >= t->check_at_ns || t->has_trash)
		tier_care_soon_locked(t);
	return now_ns + hfs_min_u64(hfs_min_u64(t->cfg.check_ns, t->cfg.probe_ns), t->cfg.sync_ns) / 2;
}

static uint64_t tick(void *ctx, uint64_t now_ns)
{
	struct tier *t = ctx;
	struct workq_stats s = {0};
	uint64_t next_ns = UINT64_MAX;
	bool is_off = true;

	hfs_mutex_lock(&t->lock);
	if (t->bg != NULL && !t->is_stopping) {
		next_ns = tick_locked(t, now_ns);
		is_off = t->state == TIER_OFF;
		workq_stats_get(t->bg, &s);
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_off && s.oldest_ns > t->cfg.write_wait_ns)
		tier_trouble(t, TIER_OFF, TIER_CAUSE_HANG);
	return next_ns;
}

/* ---- life ---- */

static void bg_drop(void *ctx, void (*fn)(void *arg), void *arg)
{
	(void)ctx;
	if (fn == tier_admit_main)
		tier_admit_cancel(arg);
}

static void set_defaults(struct tier_config *c)
{
	if (c->io == NULL)
		c->io = tier_io_system();
	if (c->queue_max == 0) /* 64 MiB at most */
		c->queue_max = (uint32_t)hfs_max_u64(2, hfs_min_u64(16, (UINT32_C(64) << 20) / hfs_max_u64(c->chunk_bytes, 1)));
	if (c->fds_max == 0)
		c->fds_max = 128;
	if (c->read_threads_max == 0)
		c->read_threads_max = 64;
	if (c->read_wait_ns == 0)
		c->read_wait_ns = HFS_NS_PER_S;
	if (c->write_wait_ns == 0)
		c->write_wait_ns = 30 * HFS_NS_PER_S;
	if (c->sync_ns == 0)
		c->sync_ns = 5 * HFS_NS_PER_S;
	if (c->sync_bytes == 0)
		c->sync_bytes = UINT64_C(256) << 20;
	if (c->check_ns == 0)
		c->check_ns = HFS_NS_PER_S;
	if (c->error_window_ns == 0)
		c->error_window_ns = 60 * HFS_NS_PER_S;
	if (c->probe_ns == 0)
		c->probe_ns = HFS_NS_PER_S;
}

/* Segments as large as is useful for the budget, and large enough for the largest item. */
static uint32_t pack_bytes_for(const struct tier_config *c)
{
	const uint64_t mib = UINT64_C(1) << 20;
	uint64_t least = hfs_round_up(c->chunk_bytes + 2 * TIER_BLOCK, mib);

	return (uint32_t)hfs_min_u64(TIER_PACK_BYTES_MAX,
				     hfs_max_u64(least, hfs_round_down(c->size_bytes / 16, mib)));
}

static char *absolute(const char *dir)
{
	char *cwd, *path = NULL;

	if (dir[0] == '/')
		return strdup(dir);
	cwd = getcwd(NULL, 0);
	if (cwd != NULL && asprintf(&path, "%s/%s", cwd, dir) < 0)
		path = NULL;
	free(cwd);
	return path;
}

static void close_dirs(struct tier *t)
{
	const int fds[] = {t->fd_packs, t->fd_files, t->fd_version, t->fd_lock, t->fd_dir};

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			(void)t->io->close(t->io->ctx, fds[i]);
}

static void tier_free(struct tier *t)
{
	struct tier_obj *o;
	struct tier_buf *b;
	struct tier_op *op;

	while ((op = t->drops) != NULL) {
		t->drops = op->drop_next;
		op->obj->n_users--;
		free(op);
	}
	while ((o = t->lru_first) != NULL) {
		t->lru_first = o->lru_next;
		tier_obj_free(t, o);
	}
	while ((o = t->dead) != NULL) {
		t->dead = o->dead_next;
		tier_obj_free(t, o);
	}
	while ((b = t->bufs) != NULL) {
		t->bufs = b->next;
		free(b);
	}
	tier_index_finish(t);
	close_dirs(t);
	hfs_cond_finish(&t->changed);
	hfs_mutex_finish(&t->lock);
	free(t->dir);
	free(t);
}

/*
 * Whole chunks at a time: enough for a disk to be busy, no more. A disk serves what it is asked for side by side, so that the first
 * chunk of sixteen, for which a reader waits, comes as late as the last. 1 GiB of shards, one reader without hints, speed by raw disk:
 * 0.69 with 16 of 1 MiB at a time, 0.95 with 8, 0.91 with 6; four readers 1.10, 1.17, 1.16.
 */
static uint32_t large_reads_max(const struct tier_config *c)
{
	return (uint32_t)hfs_min_u64(READS_MAX, hfs_max_u64(LARGE_READS_MIN, LARGE_READS_BYTES / c->chunk_bytes));
}

static int reads_create(struct tier *t, const char *name, uint32_t working_max, struct workq **ret_q)
{
	return workq_create(&(struct workq_config){.name = name,
						   .threads_max = t->cfg.read_threads_max,
						   .working_max = working_max,
						   .late_ns = t->cfg.read_wait_ns,
						   .ctx = t,
						   .drop = tier_read_drop},
			    ret_q);
}

static int start_queues(struct tier *t)
{
	struct workq *bg = NULL;
	int err = reads_create(t, "tier-read", READS_MAX, &t->reads);

	if (err == 0)
		err = reads_create(t, "tier-large", large_reads_max(&t->cfg), &t->large_reads);
	if (err == 0)
		err = workq_create(&(struct workq_config){.name = "tier-bg",
							  .threads_max = 8,
							  .working_max = 3,
							  .late_ns = t->cfg.write_wait_ns / 4,
							  .ctx = t,
							  .tick = tick,
							  .drop = bg_drop},
				   &bg);
	if (err < 0) {
		(void)workq_destroy(t->large_reads, 1000);
		(void)workq_destroy(t->reads, 1000);
		return err;
	}
	hfs_mutex_lock(&t->lock);
	t->bg = bg;
	t->is_adopting = queue_locked(t, tier_adopt_main);
	hfs_mutex_unlock(&t->lock);
	workq_tick_soon(bg);
	return 0;
}

int tier_create(const struct tier_config *cfg, struct tier **ret_t, char *ret_why, size_t why_cap)
{
	struct tier *t = calloc(1, sizeof(*t));
	int err;

	if (t == NULL)
		return -ENOMEM;
	t->cfg = *cfg;
	set_defaults(&t->cfg);
	t->io = t->cfg.io;
	t->fd_dir = t->fd_version = t->fd_files = t->fd_packs = t->fd_lock = -1;
	t->free_entry = TIER_NONE;
	hfs_mutex_init(&t->lock, HFS_RANK_TIER);
	hfs_cond_init(&t->changed);
	t->dir = absolute(cfg->dir);
	err = t->dir == NULL ? -ENOMEM : tier_setup(t, &t->cfg, ret_why, why_cap);
	if (err < 0)
		goto fail;
	t->datasets[t->n_datasets++] = t->dataset;
	t->cfg.dataset = NULL; /* not ours any longer */
	t->cfg.source = NULL;
	t->cfg.apart = NULL;
	t->cfg.dir = t->dir;
	t->pack_bytes = pack_bytes_for(&t->cfg);
	t->ahead_bytes = TIER_AHEAD_BYTES;
	t->buf_bytes = t->cfg.chunk_bytes + sizeof(struct tier_raw_item) + TIER_PACK_PATH_MAX + TIER_PACK_ALIGN;
	t->grace_end_ns = hfs_now_ns() + GRACE_NS;
	t->sync_at_ns = hfs_now_ns() + t->cfg.sync_ns;
	err = start_queues(t);
	if (err < 0)
		goto fail;
	*ret_t = t;
	return 0;
fail:
	tier_free(t);
	return err;
}

void tier_shutdown(struct tier *t)
{
	hfs_mutex_lock(&t->lock);
	if (!t->is_stopping) /* not here: that disk may hang */
		(void)queue_locked(t, tier_say_ending_main);
	t->is_stopping = true;
	hfs_cond_broadcast(&t->changed);
	tier_read_wake_locked(t);
	hfs_mutex_unlock(&t->lock);
}

/* The last job: what is not on disk yet goes there. */
static void final_main(void *arg)
{
	struct tier *t = arg;
	bool is_on;

	hfs_mutex_lock(&t->lock);
	/* Writers and care end by themselves, they have seen is_stopping. */
	while (t->n_admissions > 0 || t->is_caring || t->is_adopting)
		hfs_cond_wait(&t->changed, &t->lock);
	is_on = t->state == TIER_ON;
	hfs_mutex_unlock(&t->lock);
	if (is_on) {
		tier_drops_run(t);
		tier_pack_seal_full(t, true);
		tier_sync_all(t);
	}
	if (is_on)
		tier_reap(t);
	hfs_mutex_lock(&t->lock);
	t->is_final_done = true;
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}

bool tier_destroy(struct tier *t, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_done;

	if (t == NULL)
		return true;
	tier_shutdown(t);
	hfs_mutex_lock(&t->lock);
	is_done = !queue_locked(t, final_main); /* no memory: then without */
	while (!is_done && !t->is_final_done && hfs_cond_wait_until(&t->changed, &t->lock, deadline_ns))
		;
	is_done = is_done || t->is_final_done;
	hfs_mutex_unlock(&t->lock);
	if (!is_done)
		return false;
	if (!workq_destroy(t->reads, wait_ms) || !workq_destroy(t->large_reads, wait_ms) || !workq_destroy(t->bg, wait_ms))
		return false;
	tier_free(t);
	return true;
}

/* ---- figures ---- */

void tier_stats_get(struct tier *t, struct tier_stats *ret)
{
	hfs_mutex_lock(&t->lock);
	*ret = t->stats;
	ret->state = t->state;
	ret->cause = t->cause;
	ret->bytes = t->used_bytes + t->base_bytes + t->trash_bytes - hfs_min_u64(t->base_bytes, 2 * TIER_BLOCK);
	ret->inodes = t->used_inodes + 7;
	ret->size_bytes = t->cfg.size_bytes;
	ret->room_bytes = t->room_bytes > 0 ? (uint64_t)t->room_bytes : 0;
	ret->room_inodes = t->room_inodes > 0 ? (uint64_t)t->room_inodes : 0;
	ret->index_bytes = tier_index_bytes(t);
	ret->unsynced_bytes = t->dirty_bytes;
	ret->queued = t->n_admissions;
	hfs_mutex_unlock(&t->lock);
}

static bool is_idle_locked(const struct tier *t, bool need_synced)
{
	if (t->n_admissions > 0 || t->n_drops > 0 || t->is_care_queued || t->is_caring || t->dead != NULL || t->is_adopting)
		return false;
	return !need_synced || (t->dirty == NULL && !t->is_sync_queued && t->dirty_bytes == 0);
}

bool tier_wait_idle(struct tier *t, bool need_synced, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_idle;

	hfs_mutex_lock(&t->lock);
	while (!(is_idle = is_idle_locked(t, need_synced))) {
		if (need_synced)
			t->sync_at_ns = 0;
		if (t->dead != NULL)
			tier_care_soon_locked(t);
		workq_tick_soon(t->bg);
		if (!hfs_cond_wait_until(&t->changed, &t->lock, hfs_min_u64(deadline_ns, hfs_now_ns() + 50 * HFS_NS_PER_MS)) &&
		    hfs_now_ns() >= deadline_ns)
			break;
	}
	hfs_mutex_unlock(&t->lock);
	return is_idle;
}

bool tier_wait_state(struct tier *t, enum tier_state s, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_there;

	hfs_mutex_lock(&t->lock);
	while (!(is_there = t->state == s) && hfs_cond_wait_until(&t->changed, &t->lock, deadline_ns))
		;
	hfs_mutex_unlock(&t->lock);
	return is_there;
}

bool tier_wait_adopted(struct tier *t, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_adopted;

	hfs_mutex_lock(&t->lock);
	while (!(is_adopted = t->is_adopted) && hfs_cond_wait_until(&t->changed, &t->lock, deadline_ns))
		;
	hfs_mutex_unlock(&t->lock);
	return is_adopted;
}
