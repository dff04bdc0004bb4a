/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_admit.c - the way in: a copy of the chunk in a bounded queue, written by a thread of the tier.
 *
 * Room is reserved before anything is written. When there is none the owner of the policy is asked; if it does not care, what nobody used
 * in this process's life goes. Another generation of the path is killed before the new one is made.
 */
#include "cache/tier_i.h"

#include <stdlib.h>
#include <string.h>

/* What a write may allocate beside its data: record, extents, a block of the directory. */
#define OVERHEAD_BYTES (UINT64_C(4) * TIER_BLOCK)

struct tier_admission {
	struct tier *t;
	struct tier_name name;
	uint64_t chunk_no, cookie;
	uint32_t len_bytes, head_bytes; /* room in front of the data for the header of an item */
	struct tier_buf *buf;
	char path[];
};

/* What the disk said, for the breaker; not what we found there. */
static int of_disk(struct tier *t, int err)
{
	if (err < 0 && err != -EBADMSG && err != -EAGAIN)
		tier_error(t, err, true);
	return err;
}

static int reserve(struct tier *t, uint64_t bytes, uint32_t inodes)
{
	int err = tier_space_reserve(t, bytes, inodes);
	bool is_held;

	if (err != -ENOSPC)
		return err;
	hfs_mutex_lock(&t->lock);
	is_held = hfs_now_ns() < t->hold_until_ns;
	hfs_mutex_unlock(&t->lock);
	if (is_held)
		return err;
	if (t->cfg.cb.must_free != NULL && t->cfg.cb.must_free(t->cfg.cb.ctx, inodes > 0 ? 0 : bytes))
		return err;
	if (!tier_space_cull(t, bytes, inodes, false))
		return err;
	return tier_space_reserve(t, bytes, inodes);
}

/* ---- big files ---- */

static bool is_current(const struct tier *t, const struct tier_entry *e, const struct tier_name *name)
{
	return hfs_identity_equal(&e->id, &name->id) && (!e->is_big || e->big->chunk_bytes == t->cfg.chunk_bytes) &&
	       (e->is_big != 0) == (name->id.size_bytes > t->cfg.chunk_bytes);
}

/* What is kept of another generation (or in another form) goes. op: for a small one; *ret_op_used. */
static void supersede_locked(struct tier *t, struct tier_entry *e, struct tier_op *op, bool *ret_op_used)
{
	*ret_op_used = !e->is_big;
	if (e->is_big)
		tier_obj_kill_locked(t, &e->big->obj);
	else
		tier_drop_item_locked(t, e, op);
}

static bool is_name_taken_locked(const struct tier *t, struct tier_key key)
{
	for (const struct tier_obj *o = t->dead; o != NULL; o = o->dead_next)
		if (!o->is_pack && o->has_names && tier_key_equal(((const struct tier_big *)o)->key, key))
			return true;
	return false;
}

static int publish_big(struct tier *t, struct tier_big *b)
{
	struct tier_entry *e;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_add(t, b->key);
	tier_obj_link_locked(t, &b->obj, true);
	if (e != NULL) {
		e->id = b->id;
		e->big = b;
		e->is_big = 1;
	} else {
		tier_obj_kill_locked(t, &b->obj);
	}
	hfs_mutex_unlock(&t->lock);
	return e != NULL ? 0 : -ENOMEM;
}

/* The naming right is held, so nobody else makes one; the entry may have come meanwhile. */
static int create_named(struct tier *t, const struct tier_name *name)
{
	struct tier_big *b = NULL;
	bool is_there, is_taken;

	hfs_mutex_lock(&t->lock);
	is_there = tier_entry_find(t, name->key) != NULL;
	is_taken = is_name_taken_locked(t, name->key);
	hfs_mutex_unlock(&t->lock);
	if (is_there)
		return 0;
	if (is_taken)
		return -EAGAIN;
	HFS_TRY(of_disk(t, tier_big_create(t, name, &b)));
	return publish_big(t, b);
}

static int create_big(struct tier *t, const struct tier_name *name)
{
	const uint64_t need_bytes = OVERHEAD_BYTES;
	int err = -EAGAIN;

	HFS_TRY(reserve(t, need_bytes, 2));
	for (int i = 0; i < 4 && err == -EAGAIN; i++) {
		tier_reap(t);
		if (!tier_naming_enter(t)) {
			err = -EROFS;
			break;
		}
		err = create_named(t, name);
		tier_naming_leave(t);
	}
	tier_space_release(t, need_bytes);
	return err;
}

/* The file and the right to write the chunk: +1 operation. -ENOENT: to be made first. */
static int begin_big(struct tier *t, struct tier_admission *a, struct tier_op *op, struct tier_big **ret_b)
{
	struct tier_op *drop = malloc(sizeof(*drop));
	struct tier_entry *e;
	bool is_drop_used = false;
	int err = -ENOENT;

	if (drop == NULL)
		return -ENOMEM;
	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, a->name.key);
	if (e != NULL && !is_current(t, e, &a->name)) {
		supersede_locked(t, e, drop, &is_drop_used);
	} else if (e != NULL) {
		err = 0;
		if (tier_big_has(e->big, a->chunk_no))
			err = -EEXIST;
		else if (tier_op_busy(t, &e->big->obj, a->chunk_no, -1))
			err = -EAGAIN;
	}
	if (err == 0) {
		*ret_b = e->big;
		tier_op_begin(t, op, &e->big->obj, a->chunk_no, TIER_OP_WRITE);
		tier_obj_use_locked(t, &e->big->obj);
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_drop_used)
		free(drop);
	return err;
}

/* A chunk that was just found bad comes again at once, while the old one is still being removed: wait for that a little. */
static int begin_big_patiently(struct tier *t, struct tier_admission *a, struct tier_op *op, struct tier_big **ret_b)
{
	int err = begin_big(t, a, op, ret_b);

	for (int i = 0; i < 50 && err == -EAGAIN; i++) {
		tier_drops_run(t);
		hfs_mutex_lock(&t->lock);
		(void)hfs_cond_wait_until(&t->changed, &t->lock, hfs_now_ns() + (i == 0 ? 1 : 10) * HFS_NS_PER_MS);
		hfs_mutex_unlock(&t->lock);
		err = begin_big(t, a, op, ret_b);
	}
	return err;
}

static int admit_big(struct tier *t, struct tier_admission *a)
{
	const uint64_t need_bytes = hfs_round_up(a->len_bytes, TIER_BLOCK) + OVERHEAD_BYTES;
	struct tier_big *b = NULL;
	struct tier_op op;
	bool is_misfit;
	int err = begin_big_patiently(t, a, &op, &b);

	if (err == -ENOENT) {
		HFS_TRY(create_big(t, &a->name));
		err = begin_big_patiently(t, a, &op, &b);
	}
	if (err < 0)
		return err == -ENOENT ? -EAGAIN : err;
	err = reserve(t, need_bytes, 0);
	if (err == 0) {
		err = of_disk(t, tier_obj_open(t, &b->obj, &a->name));
		is_misfit = err == -EBADMSG;
		if (err == 0)
			err = of_disk(t, tier_big_write(t, b, (uint32_t)a->chunk_no, a->buf->data, a->len_bytes));
		if (!is_misfit)
			tier_obj_measure(t, &b->obj);
		else
			tier_obj_lose(t, &b->obj);
		tier_space_release(t, need_bytes);
	}
	hfs_mutex_lock(&t->lock);
	if (err == 0 && b->obj.is_dead)
		err = -ECANCELED;
	if (err == 0)
		err = tier_big_set(t, b, (uint32_t)a->chunk_no);
	if (err == 0)
		tier_obj_dirty_locked(t, &b->obj, a->len_bytes);
	tier_op_end(t, &op);
	hfs_mutex_unlock(&t->lock);
	return err;
}

/* ---- small files ---- */

/* What is kept of another generation is of no use any more, whether there is room for this one or not. */
static int check_small(struct tier *t, const struct tier_name *name)
{
	struct tier_op *drop = malloc(sizeof(*drop));
	bool is_drop_used = false;
	struct tier_entry *e;
	int err = 0;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, name->key);
	if (e != NULL && is_current(t, e, name))
		err = -EEXIST;
	else if (e != NULL && drop != NULL)
		supersede_locked(t, e, drop, &is_drop_used);
	hfs_mutex_unlock(&t->lock);
	if (!is_drop_used)
		free(drop);
	return err;
}

/* The item is written: from now on the path leads to it. */
static int publish_small(struct tier *t, struct tier_admission *a, struct tier_pack *p, uint32_t off_bytes, uint64_t total)
{
	struct tier_op *drop = malloc(sizeof(*drop));
	struct tier_entry *e;
	bool is_drop_used = false;
	int err = drop == NULL ? -ENOMEM : 0;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, a->name.key);
	if (e != NULL && is_current(t, e, &a->name))
		err = -EEXIST;
	else if (p->obj.is_dead)
		err = -ECANCELED;
	if (err == 0 && e != NULL)
		supersede_locked(t, e, drop, &is_drop_used);
	e = err < 0 ? NULL : tier_entry_add(t, a->name.key);
	if (e != NULL) {
		e->id = a->name.id;
		e->path_bytes = (uint16_t)a->name.path_bytes;
		tier_entry_join(t, e, p, off_bytes);
		tier_obj_use_locked(t, &p->obj);
		tier_obj_dirty_locked(t, &p->obj, total);
	} else if (err == 0) {
		err = -ENOMEM;
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_drop_used)
		free(drop);
	return err;
}

static void encode_item(struct tier *t, struct tier_admission *a, const struct tier_pack *p, uint32_t off_bytes, uint64_t total)
{
	uint8_t *data = a->buf->data + a->head_bytes;
	uint64_t seed = tier_data_seed(t->salt, a->name.key, &a->name.id, p->pack_no, off_bytes, 0);

	tier_item_encode(a->buf->data, t->salt, p->pack_no,
			 &(struct tier_item){.is_live = true,
					     .off_bytes = off_bytes,
					     .data_bytes = a->len_bytes,
					     .path_bytes = a->name.path_bytes,
					     .key = a->name.key,
					     .dataset = t->dataset,
					     .id = a->name.id,
					     .data_check = tier_data_check(seed, data, a->len_bytes),
					     .path = a->name.path});
	memset(data + a->len_bytes, 0, total - a->head_bytes - a->len_bytes);
}

static int admit_small(struct tier *t, struct tier_admission *a)
{
	const uint64_t total = tier_item_total(a->name.path_bytes, a->len_bytes);
	const uint64_t need_bytes = hfs_round_up(total, TIER_BLOCK) + OVERHEAD_BYTES;
	struct tier_pack *p;
	uint32_t off_bytes;
	int err;

	HFS_TRY(check_small(t, &a->name));
	HFS_TRY(reserve(t, need_bytes, 0));
	err = tier_pack_begin(t, total, &p, &off_bytes);
	if (err < 0) {
		tier_space_release(t, need_bytes);
		return err;
	}
	err = of_disk(t, tier_obj_open(t, &p->obj, NULL));
	if (err == 0) {
		encode_item(t, a, p, off_bytes, total);
		err = of_disk(t, tier_write_full(t, p->obj.fd_data, a->buf->data, total, off_bytes));
		tier_obj_measure(t, &p->obj);
	} else if (err == -EBADMSG) {
		tier_obj_lose(t, &p->obj);
	}
	if (err == 0) {
		err = publish_small(t, a, p, off_bytes, total);
		if (err < 0) {
			(void)tier_pack_erase(t, p, off_bytes, a->head_bytes, (uint32_t)total);
			tier_obj_measure(t, &p->obj);
		}
	}
	tier_space_release(t, need_bytes);
	tier_pack_end(t, p);
	return err;
}

/* ---- the queue ---- */

static void finish(struct tier_admission *a, int err)
{
	struct tier *t = a->t;
	uint64_t cookie = a->cookie;

	hfs_mutex_lock(&t->lock);
	if (err == 0) {
		t->stats.admitted++;
		t->stats.admitted_bytes += a->len_bytes;
	} else if (err == -ENOSPC) {
		t->stats.skipped_full++;
	}
	hfs_mutex_unlock(&t->lock);
	tier_buf_put(t, a->buf);
	free(a);
	if (t->cfg.cb.admitted != NULL)
		t->cfg.cb.admitted(t->cfg.cb.ctx, cookie, err);
	hfs_mutex_lock(&t->lock);
	t->n_admissions--;
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}

void tier_admit_cancel(void *arg)
{
	finish(arg, -ECANCELED);
}

void tier_admit_main(void *arg)
{
	struct tier_admission *a = arg;
	struct tier *t = a->t;
	bool is_stopping;
	enum tier_state state;
	int err;

	hfs_mutex_lock(&t->lock);
	is_stopping = t->is_stopping;
	state = t->state;
	hfs_mutex_unlock(&t->lock);
	if (is_stopping)
		err = -ECANCELED;
	else if (state != TIER_ON)
		err = -EROFS;
	else
		err = a->head_bytes > 0 ? admit_small(t, a) : admit_big(t, a);
	finish(a, err);
}

static int check_admit(struct tier *t, const struct tier_name *name, uint64_t chunk_no, uint32_t len_bytes)
{
	bool is_big = name->id.size_bytes > t->cfg.chunk_bytes;

	if (name->path_bytes == 0 || name->path_bytes > (is_big ? TIER_HEAD_PATH_MAX : TIER_PACK_PATH_MAX))
		return -ENAMETOOLONG;
	if (name->id.size_bytes > INT64_MAX || hfs_div_up(name->id.size_bytes, t->cfg.chunk_bytes) > TIER_CHUNKS_MAX)
		return -EFBIG;
	if (len_bytes == 0 || len_bytes != hfs_chunk_len(name->id.size_bytes, t->cfg.chunk_bytes, chunk_no))
		return -EINVAL;
	return 0;
}

/* Is there a place in the queue? It is taken then. */
static int enter_queue(struct tier *t, const struct tier_name *name, uint64_t chunk_no)
{
	const struct tier_entry *e;
	int err = 0;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, name->key);
	if (t->is_stopping) {
		err = -ESHUTDOWN;
	} else if (t->state >= TIER_READONLY) {
		t->stats.bypassed[t->cause]++;
		err = -EROFS;
	} else if (e != NULL && is_current(t, e, name) && (!e->is_big || tier_big_has(e->big, chunk_no))) {
		err = -EEXIST;
	} else if (t->state != TIER_ON || t->n_admissions >= t->cfg.queue_max) {
		t->stats.skipped_queue++;
		err = -EAGAIN;
	} else {
		t->n_admissions++;
	}
	hfs_mutex_unlock(&t->lock);
	return err;
}

uint32_t tier_room(struct tier *t)
{
	uint32_t n = 0;

	hfs_mutex_lock(&t->lock);
	if (t->state >= TIER_READONLY || t->is_stopping)
		n = UINT32_MAX; /* refused at once: nobody waits for that */
	else if (t->state == TIER_ON && t->n_admissions < t->cfg.queue_max)
		n = t->cfg.queue_max - t->n_admissions;
	hfs_mutex_unlock(&t->lock);
	return n;
}

static void leave_queue(struct tier *t)
{
	hfs_mutex_lock(&t->lock);
	t->n_admissions--;
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}

int tier_admit(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, const void *data,
	       uint32_t len_bytes, uint64_t cookie)
{
	struct tier_name name = tier_name_of(t, id, path);
	struct tier_admission *a;
	int err;

	HFS_TRY(check_admit(t, &name, chunk_no, len_bytes));
	HFS_TRY(enter_queue(t, &name, chunk_no));
	a = malloc(sizeof(*a) + name.path_bytes + 1);
	if (a == NULL) {
		leave_queue(t);
		return -ENOMEM;
	}
	*a = (struct tier_admission){.t = t, .name = name, .chunk_no = chunk_no, .cookie = cookie, .len_bytes = len_bytes};
	memcpy(a->path, path, name.path_bytes);
	a->path[name.path_bytes] = '\0';
	a->name.path = a->path;
	a->head_bytes = id->size_bytes > t->cfg.chunk_bytes ? 0 : tier_item_data_off(name.path_bytes);
	a->buf = tier_buf_get(t);
	err = a->buf == NULL ? -ENOMEM : 0;
	if (err == 0) {
		memcpy(a->buf->data + a->head_bytes, data, len_bytes);
		err = workq_run(t->bg, tier_admit_main, a, false);
	}
	if (err < 0) {
		tier_buf_put(t, a->buf);
		free(a);
		leave_queue(t);
	}
	return err;
}

/* ---- the way out ---- */

void tier_drop(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no)
{
	struct tier_name name = tier_name_of(t, id, path);
	struct tier_op *op = malloc(sizeof(*op));
	struct tier_entry *e;
	bool is_used = false;

	if (op == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, name.key);
	if (e != NULL && !hfs_identity_equal(&e->id, &name.id))
		e = NULL;
	if (e != NULL && !e->is_big && chunk_no == 0) {
		tier_drop_item_locked(t, e, op);
		is_used = true;
	} else if (e != NULL && e->is_big && chunk_no < e->big->n_chunks && e->big->obj.n_pins == 0 &&
		   tier_big_clear(t, e->big, (uint32_t)chunk_no)) {
		is_used = !e->big->was_passed && (e->big->n_present > 0 || e->big->obj.n_users > 0);
		if (is_used)
			tier_drop_chunk_locked(t, e->big, (uint32_t)chunk_no, op);
		else
			tier_obj_kill_locked(t, &e->big->obj);
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_used)
		free(op);
}

void tier_drop_file(struct tier *t, const char *path)
{
	struct tier_name name = tier_name_of(t, NULL, path);
	struct tier_op *op = malloc(sizeof(*op));
	struct tier_entry *e;
	bool is_used = false;

	if (op == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, name.key);
	if (e != NULL)
		supersede_locked(t, e, op, &is_used);
	hfs_mutex_unlock(&t->lock);
	if (!is_used)
		free(op);
}
