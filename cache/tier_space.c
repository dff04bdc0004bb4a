/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_space.c - the budget, the reserve of free space, and giving space back.
 *
 * What du would say: blocks of all objects, of what is under removal (trash), of our directories and small files (base), and
 * what writes under way may add (reserved). Culling starts when that would exceed the budget, or when the file system has less
 * free than the reserve, and goes on to 1/32 of the budget below, so that it does not start again at the next write.
 */
#include "cache/tier_i.h"

#include <fcntl.h>
#include <stdlib.h>

#define CULL_CHUNKS 64
#define WALK_MAX 4096

static uint64_t total_locked(const struct tier *t)
{
	return t->used_bytes + t->reserved_bytes + t->base_bytes + t->trash_bytes;
}

static bool fits_locked(const struct tier *t, uint64_t bytes, uint32_t inodes)
{
	return total_locked(t) + bytes <= t->cfg.size_bytes && t->room_bytes >= (int64_t)bytes &&
	       t->room_inodes >= (int64_t)inodes;
}

int tier_space_reserve(struct tier *t, uint64_t bytes, uint32_t inodes)
{
	bool is_stale, is_held, has_room;

	hfs_mutex_lock(&t->lock);
	is_stale = t->room_bytes < (int64_t)bytes || t->room_inodes < (int64_t)inodes;
	hfs_mutex_unlock(&t->lock);
	if (is_stale)
		tier_space_measure(t);
	hfs_mutex_lock(&t->lock);
	is_held = hfs_now_ns() < t->hold_until_ns;
	has_room = !is_held && fits_locked(t, bytes, inodes);
	if (has_room) {
		t->reserved_bytes += bytes;
		t->room_bytes -= (int64_t)bytes;
		t->room_inodes -= inodes;
	}
	hfs_mutex_unlock(&t->lock);
	return has_room ? 0 : -ENOSPC;
}

void tier_space_release(struct tier *t, uint64_t bytes)
{
	hfs_mutex_lock(&t->lock);
	t->reserved_bytes -= bytes;
	hfs_mutex_unlock(&t->lock);
}

static uint64_t blocks_of(struct tier *t, int dirfd, const char *name)
{
	struct stat st;
	int err = name == NULL ? t->io->fstat(t->io->ctx, dirfd, &st)
			       : t->io->fstatat(t->io->ctx, dirfd, name, &st, AT_SYMLINK_NOFOLLOW);

	return err < 0 ? 0 : (uint64_t)st.st_blocks * 512;
}

void tier_space_measure(struct tier *t)
{
	struct statvfs v;
	uint64_t base_bytes = blocks_of(t, t->fd_dir, NULL) + blocks_of(t, t->fd_version, NULL) +
			      blocks_of(t, t->fd_files, NULL) + blocks_of(t, t->fd_packs, NULL) +
			      blocks_of(t, t->fd_lock, NULL) + blocks_of(t, t->fd_dir, TIER_MARKER_NAME) +
			      blocks_of(t, t->fd_version, "tier") + blocks_of(t, t->fd_version, TIER_ORIGINS_NAME) +
			      2 * TIER_BLOCK; /* the probe's file, a directory that grows */
	int err = t->io->fstatvfs(t->io->ctx, t->fd_dir, &v);
	uint64_t fs_bytes = (uint64_t)v.f_blocks * v.f_frsize;

	if (err < 0) {
		tier_error(t, err, true);
		return;
	}
	hfs_mutex_lock(&t->lock);
	t->base_bytes = base_bytes;
	t->fs_bytes = fs_bytes;
	t->room_bytes = (int64_t)((uint64_t)v.f_bavail * v.f_frsize) - (int64_t)(fs_bytes / 100 * t->cfg.free_pct) -
			(int64_t)t->reserved_bytes;
	/* File systems without a fixed number of inodes say 0. */
	t->room_inodes = v.f_files == 0 ? INT64_MAX / 2
					: (int64_t)v.f_favail - (int64_t)((uint64_t)v.f_files / 100 * t->cfg.free_pct +
									  (uint64_t)v.f_files % 100 * t->cfg.free_pct / 100);
	hfs_mutex_unlock(&t->lock);
}

bool tier_space_is_over(struct tier *t)
{
	bool is_over;

	hfs_mutex_lock(&t->lock);
	is_over = total_locked(t) > t->cfg.size_bytes || t->room_bytes + (int64_t)t->reserved_bytes < 0 || t->room_inodes < 0;
	hfs_mutex_unlock(&t->lock);
	return is_over;
}

/* ---- drops ---- */

void tier_care_soon_locked(struct tier *t)
{
	hfs_mutex_assert_held(&t->lock);
	if (t->is_care_queued || t->is_stopping || t->bg == NULL)
		return;
	t->is_care_queued = workq_run(t->bg, tier_care_main, t, true) == 0;
}

static void queue_drop_locked(struct tier *t, struct tier_op *op)
{
	op->drop_next = t->drops;
	t->drops = op;
	t->n_drops++;
	tier_care_soon_locked(t);
}

void tier_drop_chunk_locked(struct tier *t, struct tier_big *b, uint32_t chunk_no, struct tier_op *op)
{
	tier_op_begin(t, op, &b->obj, chunk_no, TIER_OP_DROP);
	queue_drop_locked(t, op);
}

void tier_drop_item_locked(struct tier *t, struct tier_entry *e, struct tier_op *op)
{
	struct tier_pack *p = t->packs[e->small.pack];

	tier_op_begin(t, op, &p->obj, e->small.off_bytes, TIER_OP_DROP);
	op->item_head = tier_item_data_off(e->path_bytes);
	op->item_bytes = (uint32_t)tier_item_total(e->path_bytes, e->id.size_bytes);
	tier_entry_remove(t, e);
	queue_drop_locked(t, op);
}

static struct tier_op *take_drop_locked(struct tier *t)
{
	for (struct tier_op **at = &t->drops; *at != NULL; at = &(*at)->drop_next) {
		struct tier_op *op = *at;

		if (tier_op_busy(t, op->obj, op->where, TIER_OP_READ) || tier_op_busy(t, op->obj, op->where, TIER_OP_WRITE))
			continue;
		*at = op->drop_next;
		return op;
	}
	return NULL;
}

static int drop_one(struct tier *t, struct tier_op *op)
{
	struct tier_obj *o = op->obj;
	int err = tier_obj_open(t, o, NULL);

	if (err < 0)
		return err;
	if (o->is_pack)
		err = tier_pack_erase(t, tier_pack_of(o), (uint32_t)op->where, op->item_head, op->item_bytes);
	else
		err = tier_big_erase(t, tier_big_of(o), (uint32_t)op->where);
	tier_obj_measure(t, o);
	return err;
}

static bool is_empty_locked(const struct tier *t, struct tier_obj *o)
{
	return o->is_pack && tier_pack_of(o)->n_live == 0 && t->active != tier_pack_of(o) && tier_pack_of(o)->n_writers == 0;
}

void tier_drops_run(struct tier *t)
{
	struct tier_op *op;
	struct tier_obj *o;
	bool is_dead;
	int err;

	for (;;) {
		hfs_mutex_lock(&t->lock);
		op = take_drop_locked(t);
		is_dead = op != NULL && op->obj->is_dead;
		hfs_mutex_unlock(&t->lock);
		if (op == NULL)
			break;
		o = op->obj;
		err = is_dead ? 0 : drop_one(t, op);
		if (err < 0 && err != -EOPNOTSUPP && err != -EBADMSG)
			tier_error(t, err, true);
		hfs_mutex_lock(&t->lock);
		tier_op_end(t, op);
		t->n_drops--;
		t->stats.dropped++;
		/* Without holes only whole files give space back; and what is not as we left it is of no use. */
		if ((err == -EOPNOTSUPP && !o->is_pack) || err == -EBADMSG || is_empty_locked(t, o))
			tier_obj_kill_locked(t, o);
		hfs_cond_broadcast(&t->changed);
		hfs_mutex_unlock(&t->lock);
		free(op);
	}
	tier_reap(t);
}

/* ---- culling ---- */

static void tell_pack(struct tier *t, struct tier_pack *p)
{
	struct hfs_identity *ids;
	const struct tier_entry *e;
	uint32_t n = 0, cap;

	hfs_mutex_lock(&t->lock);
	cap = p->n_live;
	hfs_mutex_unlock(&t->lock);
	ids = cap > 0 ? malloc(cap * sizeof(*ids)) : NULL;
	if (ids == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	for (uint32_t no = p->obj.is_dead ? TIER_NONE : p->first; no != TIER_NONE && n < cap; no = e->pack_next) {
		e = tier_entry_at(t, no);
		if (e->dataset == 0)
			ids[n++] = e->id;
	}
	hfs_mutex_unlock(&t->lock);
	for (uint32_t i = 0; i < n; i++)
		tier_tell_lost(t, 0, ids[i], 0);
	free(ids);
}

/* o has a user. */
void tier_obj_lose(struct tier *t, struct tier_obj *o)
{
	bool is_dead;

	hfs_mutex_lock(&t->lock);
	is_dead = o->is_dead;
	if (!is_dead && !o->is_pack)
		tier_obj_kill_locked(t, o);
	hfs_mutex_unlock(&t->lock);
	if (is_dead)
		return;
	if (!o->is_pack) {
		tier_tell_lost(t, tier_big_of(o)->dataset, tier_big_of(o)->id, UINT64_MAX);
		return;
	}
	if (t->cfg.cb.lost != NULL)
		tell_pack(t, tier_pack_of(o));
	hfs_mutex_lock(&t->lock);
	tier_obj_kill_locked(t, o);
	hfs_mutex_unlock(&t->lock);
}

static bool goal_is_met_locked(const struct tier *t, uint64_t need_bytes, uint32_t need_inodes)
{
	uint64_t slack = t->cfg.size_bytes / 32;
	int64_t room = (int64_t)(need_bytes + hfs_min_u64(slack, t->fs_bytes / 100));

	return total_locked(t) + need_bytes + slack <= t->cfg.size_bytes && t->room_bytes >= room &&
	       t->room_inodes >= (int64_t)need_inodes;
}

static struct tier_obj *victim_locked(struct tier *t, bool may_take_used)
{
	uint32_t walked = 0;

	for (struct tier_obj *o = t->lru_first; o != NULL && walked < WALK_MAX; o = o->lru_next, walked++)
		if (o->is_used && !may_take_used)
			break; /* what is used comes last */
		else if (o->n_users == 0 && o->n_pins == 0)
			return o;
	return NULL;
}

/* From the end, so that what a reader needs first goes last. */
static void cull_chunks(struct tier *t, struct tier_big *b)
{
	uint32_t no = b->n_chunks, n = 0;
	struct tier_op *op;

	for (; n < CULL_CHUNKS; n++) {
		op = malloc(sizeof(*op));
		if (op == NULL)
			break;
		hfs_mutex_lock(&t->lock);
		no = tier_big_last(b, no);
		if (no != TIER_NONE && tier_big_clear(t, b, no))
			tier_drop_chunk_locked(t, b, no, op);
		hfs_mutex_unlock(&t->lock);
		if (no == TIER_NONE) {
			free(op);
			break;
		}
		tier_tell_lost(t, b->dataset, b->id, no);
	}
}

static void cull_one(struct tier *t, struct tier_obj *o, bool is_whole)
{
	struct tier_big *b = o->is_pack ? NULL : tier_big_of(o);
	uint64_t before_bytes, after_bytes;

	hfs_mutex_lock(&t->lock);
	before_bytes = t->used_bytes;
	if (b != NULL && (b->was_passed || b->n_present <= CULL_CHUNKS))
		is_whole = true;
	if (o->is_pack && t->active == tier_pack_of(o))
		tier_pack_retire_locked(t, tier_pack_of(o));
	hfs_mutex_unlock(&t->lock);
	if (b == NULL || is_whole)
		tier_obj_lose(t, o);
	else
		cull_chunks(t, b);
	hfs_mutex_lock(&t->lock);
	tier_obj_release_locked(t, o);
	hfs_mutex_unlock(&t->lock);
	tier_drops_run(t); /* reaps */
	hfs_mutex_lock(&t->lock);
	after_bytes = t->used_bytes;
	if (after_bytes < before_bytes)
		t->stats.culled_bytes += before_bytes - after_bytes;
	hfs_mutex_unlock(&t->lock);
}

static bool is_waste(const struct tier_pack *p)
{
	return p->is_sealed && p->obj.n_users == 0 && p->obj.alloc_bytes > 2 * p->live_bytes + 4 * TIER_BLOCK;
}

/*
 * Items smaller than a block cannot be punched out: where more than half of a pack is dead, what is alive goes with it, and comes again
 * when it is read. 3,229 files of 1,000 bytes fill 4 MiB; a third of them changed every other epoch: 1,000 to 1,600 were kept with three
 * quarters, 1,700 to 2,900 with half.
 */
void tier_space_cull_waste(struct tier *t)
{
	struct tier_obj *o;
	uint32_t from = 0;

	for (;;) {
		o = NULL;
		hfs_mutex_lock(&t->lock);
		if (total_locked(t) >= t->cfg.size_bytes - t->cfg.size_bytes / 8 || t->room_bytes < 0)
			for (; from < t->n_packs && o == NULL; from++)
				if (t->packs[from] != NULL && is_waste(t->packs[from]))
					o = &t->packs[from]->obj;
		if (o != NULL)
			o->n_users++;
		hfs_mutex_unlock(&t->lock);
		if (o == NULL)
			break;
		cull_one(t, o, true);
	}
}

bool tier_space_cull(struct tier *t, uint64_t need_bytes, uint32_t need_inodes, bool may_take_used)
{
	struct tier_obj *o;
	bool is_met;

	tier_space_cull_waste(t);
	for (int i = 0; i < 256; i++) {
		hfs_mutex_lock(&t->lock);
		is_met = goal_is_met_locked(t, need_bytes, need_inodes);
		o = is_met || t->is_stopping ? NULL : victim_locked(t, may_take_used);
		if (o != NULL)
			o->n_users++;
		hfs_mutex_unlock(&t->lock);
		if (o == NULL)
			break;
		cull_one(t, o, need_inodes > 0);
		workq_progress(t->bg);
		tier_space_measure(t);
	}
	hfs_mutex_lock(&t->lock);
	is_met = fits_locked(t, need_bytes, need_inodes);
	hfs_mutex_unlock(&t->lock);
	return is_met;
}
