/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_read.c - readers. The caller waits, a thread of the tier reads and verifies into a buffer of its own, or into
 * one that the caller lends.
 *
 *   queued --> running --> done --(the caller copies)--> freed by who leaves last
 *                 \-- the caller gave up: freed, and the loan given back, when the call returns, if ever
 *
 * What is in a pack and in memory is read and verified by the caller itself, whole chunks straight where they are wanted: that waits
 * for nothing. Whatever is wrong with it is met again, and seen to, by the thread.
 *
 * A reader that waited read_wait_ns goes to the origin. If in that time no read at all ended, and one system call was under way, the disk
 * hangs: the tier is off, and whoever else waits leaves too. Time in which a read had no CPU, or not its turn, says nothing about the
 * disk: a call is timed from its own beginning (tier_called()), and what the waiter oversleeps is not counted, as all may have slept.
 * Where a call is not that old yet the reader waits on for it, up to twice as long.
 */
#include "cache/tier_i.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_SLICES 8 /* of a reader's time, in which it looks whether it overslept */

enum job_kind { JOB_READ, JOB_VERIFY, JOB_PASS, JOB_ADOPT };

struct tier_job {
	struct tier_job *next, **at; /* in t->waiting */
	struct tier *t;
	struct hfs_cond done;
	struct tier_op op;
	struct tier_name name;
	struct tier_buf *buf;
	uint64_t start_ns;
	enum job_kind kind;
	uint32_t item_path_bytes, data_off, dataset;
	int err, fd;
	bool is_done, is_abandoned; /* guarded by t->lock */
	bool is_large;		    /* buf is larger than others */
	void *into;		    /* the caller's, or NULL */
	bool is_in_place;	    /* the data is there, and not in buf */
	struct tier_loan loan;	    /* what to say of it, once abandoned */
	char path[];
};

void tier_read_wake_locked(struct tier *t)
{
	for (struct tier_job *j = t->waiting; j != NULL; j = j->next)
		hfs_cond_signal(&j->done);
}

static void buf_drop(struct tier_job *j)
{
	if (j->is_large)
		free(j->buf);
	else
		tier_buf_put(j->t, j->buf);
	j->buf = NULL;
	j->is_large = false;
}

static void job_free(struct tier_job *j)
{
	buf_drop(j);
	if (j->fd >= 0)
		(void)j->t->io->close(j->t->io->ctx, j->fd);
	hfs_cond_finish(&j->done);
	free(j);
}

static void unwait_locked(struct tier_job *j)
{
	*j->at = j->next;
	if (j->next != NULL)
		j->next->at = j->at;
}

/* ---- on a thread of the tier ---- */

static int pass_open(struct tier *t, struct tier_job *j)
{
	struct stat st;

	j->fd = tier_obj_reopen(t, j->op.obj, 0);
	if (j->fd < 0)
		return j->fd;
	HFS_TRY(t->io->fstat(t->io->ctx, j->fd, &st));
	return (uint64_t)st.st_size == tier_big_of(j->op.obj)->id.size_bytes ? 0 : -EBADMSG;
}

/* What was admitted under a larger chunk size needs more than the usual. */
static bool buf_for(struct tier *t, struct tier_job *j, const struct tier_obj *o)
{
	uint64_t need = o->is_pack ? tier_item_data_off(j->item_path_bytes) + j->name.id.size_bytes
				   : ((const struct tier_big *)o)->chunk_bytes;

	j->is_large = need > t->buf_bytes;
	j->buf = j->is_large ? malloc(sizeof(*j->buf) + need) : tier_buf_get(t);
	return j->buf != NULL;
}

static int perform(struct tier *t, struct tier_job *j, bool *ret_is_all_bad)
{
	struct tier_obj *o = j->op.obj;
	const struct tier_name *name = j->kind == JOB_VERIFY ? NULL : &j->name;
	int err = tier_obj_open(t, o, name);

	*ret_is_all_bad = err == -EBADMSG;
	if (err < 0)
		return err;
	if (j->kind == JOB_PASS) {
		err = pass_open(t, j);
		*ret_is_all_bad = err == -EBADMSG;
		return err;
	}
	if (j->into != NULL && !o->is_pack)
		return tier_big_read(t, tier_big_of(o), (uint32_t)j->op.where, j->into, true);
	if (!buf_for(t, j, o))
		return -ENOMEM;
	if (o->is_pack) {
		if (name != NULL)
			tier_pack_ahead(t, tier_pack_of(o), (uint32_t)j->op.where);
		return tier_pack_read(t, tier_pack_of(o), (uint32_t)j->op.where, j->name.key, &j->name.id, j->item_path_bytes,
				      name, false, j->buf->data, NULL, &j->data_off);
	}
	return tier_big_read(t, tier_big_of(o), (uint32_t)j->op.where, j->buf->data, false);
}

/* The chunk or item is of no use: out of the index, its space given back. True: somebody must be told.
 * *ret_op_used: op belongs to the drop now. */
static bool drop_locked(struct tier *t, struct tier_job *j, struct tier_obj *o, struct tier_op *op, bool *ret_op_used)
{
	struct tier_entry *e = tier_entry_find(t, j->name.key);

	if (o->is_dead || e == NULL)
		return false;
	if (!o->is_pack) {
		if (!tier_big_clear(t, tier_big_of(o), (uint32_t)j->op.where))
			return false;
		*ret_op_used = !tier_big_of(o)->was_passed;
		if (*ret_op_used)
			tier_drop_chunk_locked(t, tier_big_of(o), (uint32_t)j->op.where, op);
		else
			tier_obj_kill_locked(t, o);
		return true;
	}
	if (e->is_big || t->packs[e->small.pack] != tier_pack_of(o) || e->small.off_bytes != j->op.where)
		return false;
	tier_drop_item_locked(t, e, op);
	*ret_op_used = true;
	return true;
}

static void settle_bad(struct tier *t, struct tier_job *j, struct tier_obj *o, bool is_all_bad)
{
	struct tier_op *op = malloc(sizeof(*op));
	bool is_telling = false, is_op_used = false;

	if (op == NULL)
		return;
	if (is_all_bad) {
		tier_obj_lose(t, o);
	} else {
		hfs_mutex_lock(&t->lock);
		is_telling = drop_locked(t, j, o, op, &is_op_used);
		hfs_mutex_unlock(&t->lock);
		if (is_telling)
			tier_tell_lost(t, j->dataset, j->name.id, o->is_pack ? 0 : j->op.where);
	}
	if (!is_op_used)
		free(op);
}

static void finish(struct tier *t, struct tier_job *j, int err)
{
	const struct tier_loan loan = j->loan;
	bool is_abandoned;

	hfs_mutex_lock(&t->lock);
	j->err = err;
	j->is_done = true;
	t->progress_ns = hfs_now_ns();
	is_abandoned = j->is_abandoned;
	hfs_cond_signal(&j->done);
	hfs_mutex_unlock(&t->lock);
	if (!is_abandoned)
		return;
	if (loan.back != NULL)
		loan.back(loan.ctx, loan.arg);
	job_free(j);
}

static void adopt_main(void *arg)
{
	struct tier_job *j = arg;

	tier_adopt_one(j->t, j->name.key);
	finish(j->t, j, 0);
}

static void read_main(void *arg)
{
	struct tier_job *j = arg;
	struct tier *t = j->t;
	struct tier_obj *o = j->op.obj;
	bool is_all_bad = false;
	int err = perform(t, j, &is_all_bad);

	hfs_mutex_lock(&t->lock);
	o->n_users++; /* beyond the operation */
	tier_op_end(t, &j->op);
	if (err == -EBADMSG && o->is_dead)
		err = -ENOENT; /* removed while we looked */
	if (err == 0 && !o->is_pack && !o->is_dead && j->kind != JOB_PASS)
		tier_big_verify(tier_big_of(o), (uint32_t)j->op.where);
	if (err == -EBADMSG)
		t->stats.bad++;
	hfs_mutex_unlock(&t->lock);
	if (err == -EBADMSG)
		hfs_log_limited(HFS_LOG_WARNING,
				"disk cache %s: a chunk of %s failed its check, it is dropped and read from the origin; "
				"look for disk errors if this goes on",
				t->dir, j->kind == JOB_VERIFY ? "a file" : j->path);
	/* After an error of the disk the place is suspect as well: it is written anew elsewhere, or remapped. */
	if (err == -EBADMSG || err == -ENOENT || (err < 0 && tier_cause_of(err) == TIER_CAUSE_EIO && err != -ENOMEM &&
						  err != -EMFILE && err != -ENFILE))
		settle_bad(t, j, o, is_all_bad);
	if (err < 0 && err != -EBADMSG && err != -ENOENT)
		tier_error(t, err, false);
	hfs_mutex_lock(&t->lock);
	tier_obj_release_locked(t, o);
	hfs_mutex_unlock(&t->lock);
	finish(t, j, err);
	tier_fds_trim(t);
}

/* On the caller's thread: done if it is in a pack that is open, in memory, and right. */
static bool read_now(struct tier *t, struct tier_job *j)
{
	struct tier_obj *o = j->op.obj;
	bool is_open, is_right = false;

	if (j->kind != JOB_READ || !o->is_pack)
		return false;
	hfs_mutex_lock(&t->lock);
	is_open = o->fd_data >= 0; /* stays: the operation uses it */
	hfs_mutex_unlock(&t->lock);
	if (is_open && buf_for(t, j, o))
		is_right = tier_pack_read(t, tier_pack_of(o), (uint32_t)j->op.where, j->name.key, &j->name.id, j->item_path_bytes,
					  &j->name, true, j->buf->data, j->into, &j->data_off) == 0;
	if (!is_right) {
		buf_drop(j);
		return false;
	}
	hfs_mutex_lock(&t->lock);
	j->is_in_place = j->into != NULL;
	tier_op_end(t, &j->op);
	tier_pack_ahead_used_locked(t, (uint32_t)j->name.id.size_bytes);
	j->is_done = true;
	unwait_locked(j);
	hfs_mutex_unlock(&t->lock);
	return true;
}

void tier_read_drop(void *ctx, void (*fn)(void *arg), void *arg)
{
	struct tier_job *j = arg;
	struct tier *t = ctx;

	(void)fn;
	hfs_mutex_lock(&t->lock);
	if (j->kind != JOB_ADOPT)
		tier_op_end(t, &j->op);
	hfs_mutex_unlock(&t->lock);
	finish(t, j, -ESHUTDOWN);
}

/* ---- the caller's side ---- */

static struct tier_job *job_new(struct tier *t, enum job_kind kind, const struct tier_name *name, void *into,
				const struct tier_loan *loan)
{
	struct tier_job *j = malloc(sizeof(*j) + name->path_bytes + 1);

	if (j == NULL)
		return NULL;
	*j = (struct tier_job){.t = t, .kind = kind, .name = *name, .fd = -1, .into = into};
	if (loan != NULL)
		j->loan = *loan;
	if (name->path_bytes > 0)
		memcpy(j->path, name->path, name->path_bytes);
	j->path[name->path_bytes] = '\0';
	j->name.path = j->path;
	hfs_cond_init(&j->done);
	return j;
}

/* The entry, if it is this generation and has the chunk. */
static struct tier_entry *find_locked(struct tier *t, const struct tier_name *name, uint64_t chunk_no)
{
	struct tier_entry *e = tier_entry_find(t, name->key);

	if (e == NULL || !hfs_identity_equal(&e->id, &name->id))
		return NULL;
	if (e->is_big && (e->big->chunk_bytes != t->cfg.chunk_bytes || !tier_big_has(e->big, chunk_no)))
		return NULL;
	if (!e->is_big && (chunk_no != 0 || e->id.size_bytes > t->cfg.chunk_bytes))
		return NULL;
	return e;
}

static bool may_wait_locked(const struct tier *t)
{
	return !t->is_adopted && !t->is_stopping && t->state == TIER_ADOPTING && hfs_now_ns() < t->grace_end_ns;
}

/* e NULL: for JOB_ADOPT. */
static void begin_locked(struct tier *t, struct tier_job *j, struct tier_entry *e, uint64_t chunk_no)
{
	struct tier_obj *o;

	if (e != NULL) {
		o = e->is_big ? &e->big->obj : &t->packs[e->small.pack]->obj;
		j->item_path_bytes = e->path_bytes;
		j->dataset = e->dataset;
		tier_op_begin(t, &j->op, o, e->is_big ? chunk_no : e->small.off_bytes, TIER_OP_READ);
		if (j->kind != JOB_VERIFY)
			tier_obj_use_locked(t, o);
	}
	j->start_ns = hfs_now_ns();
	j->next = t->waiting;
	j->at = &t->waiting;
	if (j->next != NULL)
		j->next->at = &j->next;
	t->waiting = j;
}

enum patience { PATIENT, TIMED_OUT, HANG };

/* What of it is over: the reader's time, and the disk's? lost_ns: of the time since j began that does not count. */
static enum patience patience_locked(struct tier *t, const struct tier_job *j, struct workq *q, uint64_t limit_ns, uint64_t lost_ns)
{
	const uint64_t now_ns = hfs_now_ns(), waited_ns = now_ns - j->start_ns - lost_ns;
	struct workq_stats s;

	if (waited_ns < limit_ns)
		return PATIENT;
	if (now_ns - hfs_max_u64(t->progress_ns, j->start_ns) < limit_ns + lost_ns)
		return TIMED_OUT; /* the disk works */
	workq_stats_get(q, &s);
	if (s.oldest_ns >= limit_ns + lost_ns)
		return HANG;
	return waited_ns < 2 * limit_ns ? PATIENT : TIMED_OUT;
}

/* True: j is done and the caller's. False: it is the thread's now. */
static bool wait_job(struct tier *t, struct tier_job *j, struct workq *q, bool is_patient)
{
	const uint64_t limit_ns = t->cfg.read_wait_ns * (is_patient ? 32 : 1), slice_ns = limit_ns / WAIT_SLICES;
	uint64_t lost_ns = 0, end_ns, now_ns;
	enum patience p = PATIENT;
	bool is_done;

	hfs_mutex_lock(&t->lock);
	while (!j->is_done && t->state != TIER_OFF && !t->is_stopping && (p = patience_locked(t, j, q, limit_ns, lost_ns)) == PATIENT) {
		end_ns = hfs_now_ns() + slice_ns;
		if (hfs_cond_wait_until(&j->done, &t->lock, end_ns) || (now_ns = hfs_now_ns()) < end_ns + slice_ns)
			continue;
		lost_ns += now_ns - end_ns;
	}
	is_done = j->is_done;
	unwait_locked(j);
	if (!is_done) {
		j->is_abandoned = true;
		if (p != PATIENT)
			t->stats.read_timeouts++;
		else if (!t->is_stopping)
			t->stats.bypassed[t->cause]++;
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_done && p == HANG)
		tier_trouble(t, TIER_OFF, TIER_CAUSE_HANG);
	return is_done;
}

/* A big file that adoption has not come to yet: its name is known, so look. */
static void adopt_now(struct tier *t, const struct tier_name *name)
{
	struct tier_job *j;
	bool is_due;

	if (name->id.size_bytes <= t->cfg.chunk_bytes)
		return;
	hfs_mutex_lock(&t->lock);
	is_due = !t->is_adopted && t->state == TIER_ADOPTING && !t->is_stopping && tier_entry_find(t, name->key) == NULL;
	hfs_mutex_unlock(&t->lock);
	j = is_due ? job_new(t, JOB_ADOPT, name, NULL, NULL) : NULL;
	if (j == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	begin_locked(t, j, NULL, 0);
	hfs_mutex_unlock(&t->lock);
	if (workq_run(t->reads, adopt_main, j, true) < 0)
		tier_read_drop(t, adopt_main, j);
	if (wait_job(t, j, t->reads, false))
		job_free(j);
}

/* 0: *ret_j is done, to be freed. 1: not there. -EIO: not now. -EBUSY: nor that, and what was lent is not given back yet. */
static int run_job(struct tier *t, enum job_kind kind, struct tier_name *name, uint64_t chunk_no, void *into,
		   const struct tier_loan *loan, struct tier_job **ret_j)
{
	struct tier_job *j = job_new(t, kind, name, into, loan);
	struct tier_entry *e = NULL;
	struct workq *q = t->reads;
	int err = 1;

	if (j == NULL)
		return -EIO;
	if (kind == JOB_READ)
		adopt_now(t, name);
	hfs_mutex_lock(&t->lock);
	if (t->state == TIER_OFF || t->is_stopping) {
		t->stats.bypassed[t->cause]++;
		err = -EIO;
	} else if (kind == JOB_VERIFY) {
		e = tier_entry_find(t, name->key);
		if (e != NULL && e->is_big && !tier_big_has(e->big, chunk_no))
			e = NULL;
		if (e != NULL)
			j->name.id = e->id;
	} else {
		/* Big files have just been looked for; small ones come soon. */
		while ((e = find_locked(t, name, chunk_no)) == NULL && name->id.size_bytes <= t->cfg.chunk_bytes && may_wait_locked(t))
			(void)hfs_cond_wait_until(&t->changed, &t->lock, t->grace_end_ns);
	}
	if (kind == JOB_PASS && e != NULL && (!e->is_big || e->big->n_verified != e->big->n_chunks))
		e = NULL;
	if (e != NULL && e->is_big && kind == JOB_READ)
		q = t->large_reads;
	if (e != NULL)
		begin_locked(t, j, e, chunk_no);
	hfs_mutex_unlock(&t->lock);
	if (e == NULL) {
		job_free(j);
		return err;
	}
	if (read_now(t, j)) {
		*ret_j = j;
		return 0;
	}
	if (workq_run(q, read_main, j, kind != JOB_VERIFY) < 0)
		tier_read_drop(t, read_main, j);
	if (!wait_job(t, j, q, kind == JOB_VERIFY))
		return -EBUSY;
	*ret_j = j;
	return 0;
}

struct tier_name tier_name_of(const struct tier *t, const struct hfs_identity *id, const char *path)
{
	struct tier_name name = {.path = path, .path_bytes = (uint32_t)strnlen(path, TIER_PACK_PATH_MAX + 1)};

	name.key = tier_key_of(t->dataset, path, name.path_bytes);
	if (id != NULL) {
		name.id = *id;
		if (id->dev == t->cfg.origin_dev)
			name.id.dev = 0;
	}
	return name;
}

struct hfs_identity tier_identity_out(const struct tier *t, struct hfs_identity id)
{
	if (id.dev == 0)
		id.dev = t->cfg.origin_dev;
	return id;
}

bool tier_lookup(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no)
{
	struct tier_name name = tier_name_of(t, id, path);
	bool is_there;

	hfs_mutex_lock(&t->lock);
	is_there = t->state != TIER_OFF && !t->is_stopping &&
		   (find_locked(t, &name, chunk_no) != NULL || may_wait_locked(t) ||
		    (t->state == TIER_ADOPTING && id->size_bytes > t->cfg.chunk_bytes));
	if (t->state == TIER_OFF && !t->is_stopping)
		t->stats.bypassed[t->cause]++;
	hfs_mutex_unlock(&t->lock);
	return is_there;
}

bool tier_has_small(struct tier *t, const char *path)
{
	struct tier_name name = tier_name_of(t, NULL, path);
	const struct tier_entry *e;
	bool is;

	hfs_mutex_lock(&t->lock);
	e = t->state == TIER_OFF ? NULL : tier_entry_find(t, name.key);
	is = e != NULL && !e->is_big;
	hfs_mutex_unlock(&t->lock);
	return is;
}

uint64_t tier_map(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t *bits, size_t n_words)
{
	struct tier_name name = tier_name_of(t, id, path);
	const struct tier_leaf *l;
	struct tier_entry *e;
	uint64_t n = 0;

	memset(bits, 0, n_words * sizeof(*bits));
	hfs_mutex_lock(&t->lock);
	e = t->state == TIER_OFF ? NULL : tier_entry_find(t, name.key);
	if (e != NULL && !hfs_identity_equal(&e->id, &name.id))
		e = NULL;
	if (e != NULL && e->is_big && e->big->chunk_bytes == t->cfg.chunk_bytes) {
		for (uint64_t w = 0; w < n_words && w / (TIER_LEAF_CHUNKS / 64) < e->big->n_leaves; w++) {
			l = e->big->leaves[w / (TIER_LEAF_CHUNKS / 64)];
			bits[w] = l != NULL ? l->present[w % (TIER_LEAF_CHUNKS / 64)] : 0;
			n += (uint64_t)__builtin_popcountll(bits[w]);
		}
	} else if (e != NULL && !e->is_big && n_words > 0 && e->id.size_bytes <= t->cfg.chunk_bytes) {
		bits[0] = n = 1;
	}
	hfs_mutex_unlock(&t->lock);
	return n;
}

static void count_read(struct tier *t, bool is_hit, uint32_t len_bytes)
{
	hfs_mutex_lock(&t->lock);
	t->stats.hits += is_hit;
	t->stats.hit_bytes += is_hit ? len_bytes : 0;
	t->stats.misses += !is_hit;
	hfs_mutex_unlock(&t->lock);
}

bool tier_read(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, uint32_t off_bytes,
	       uint32_t len_bytes, void *buf)
{
	struct tier_name name = tier_name_of(t, id, path);
	uint32_t chunk_len = hfs_chunk_len(id->size_bytes, t->cfg.chunk_bytes, chunk_no);
	struct tier_job *j;
	bool is_hit = false;
	int err;

	if (len_bytes == 0 || off_bytes > chunk_len || len_bytes > chunk_len - off_bytes)
		return false;
	err = run_job(t, JOB_READ, &name, chunk_no, NULL, NULL, &j);
	if (err == 0) {
		is_hit = j->err == 0;
		if (is_hit)
			memcpy(buf, j->buf->data + j->data_off + off_bytes, len_bytes);
		job_free(j);
	}
	count_read(t, is_hit, len_bytes);
	return is_hit;
}

enum tier_got tier_read_into(struct tier *t, const struct hfs_identity *id, const char *path, uint64_t chunk_no, void *buf,
			     const struct tier_loan *loan)
{
	struct tier_name name = tier_name_of(t, id, path);
	uint32_t len_bytes = hfs_chunk_len(id->size_bytes, t->cfg.chunk_bytes, chunk_no);
	struct tier_job *j;
	bool is_hit = false;
	int err;

	assert((uintptr_t)buf % TIER_LOAN_ALIGN == 0);
	if (len_bytes == 0)
		return TIER_MISS;
	err = run_job(t, JOB_READ, &name, chunk_no, buf, loan, &j);
	if (err == 0) {
		is_hit = j->err == 0;
		if (is_hit && j->buf != NULL && !j->is_in_place)
			memcpy(buf, j->buf->data + j->data_off, len_bytes);
		job_free(j);
	}
	count_read(t, is_hit, len_bytes);
	return is_hit ? TIER_HIT : err == -EBUSY ? TIER_LENT : TIER_MISS;
}

int tier_read_verify(struct tier *t, struct tier_key key, uint64_t chunk_no)
{
	struct tier_name name = {.key = key};
	struct tier_job *j;
	int err = run_job(t, JOB_VERIFY, &name, chunk_no, NULL, NULL, &j);

	if (err != 0)
		return err == -EBUSY ? -EIO : err;
	err = j->err;
	job_free(j);
	return err == 0 ? 0 : err == -ENOENT ? 1 : err == -EBADMSG ? 2 : err == -ESHUTDOWN ? -EIO : 2;
}

/* ---- passthrough ---- */

/* The pin is taken while the operation still protects the object. */
int tier_passthrough_open(struct tier *t, const struct hfs_identity *id, const char *path, int *ret_fd)
{
	struct tier_name name = tier_name_of(t, id, path);
	struct tier_entry *e;
	struct tier_job *j;
	int err;

	if (id->size_bytes <= t->cfg.chunk_bytes)
		return -EOPNOTSUPP;
	err = run_job(t, JOB_PASS, &name, 0, NULL, NULL, &j);
	if (err != 0)
		return -ENOENT;
	err = j->err;
	if (err == 0) {
		hfs_mutex_lock(&t->lock);
		e = find_locked(t, &name, 0);
		if (e == NULL || !e->is_big || &e->big->obj != j->op.obj || e->big->n_verified != e->big->n_chunks) {
			err = -ENOENT;
		} else {
			e->big->was_passed = true;
			e->big->obj.n_pins++;
			*ret_fd = j->fd;
			j->fd = -1;
		}
		hfs_mutex_unlock(&t->lock);
	}
	job_free(j);
	return err < 0 ? -ENOENT : 0;
}

void tier_passthrough_close(struct tier *t, const struct hfs_identity *id, const char *path)
{
	struct tier_name name = tier_name_of(t, id, path);
	struct tier_entry *e;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, name.key);
	if (e != NULL && e->is_big && hfs_identity_equal(&e->id, &name.id) && e->big->obj.n_pins > 0)
		e->big->obj.n_pins--;
	hfs_mutex_unlock(&t->lock);
}
