/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_pack.c - files of at most one chunk: self-checking items appended to segments.
 *
 *   created --> active --(no room)--> full --(last writer ended)--> sealed --(last item dead, or culled)--> removed
 *
 * A place is taken under t->lock, the item is written without it, in one call, and the entry made after that. A dropped
 * item is marked dead and the whole blocks of its data are punched; the segment goes when it is empty. Sealing appends
 * a table of what is alive: a hint that saves the next start a scan, each of its entries is checked, and what it names
 * is checked on use like all else.
 *
 * Files that were admitted together are read together, if not in the same order: whoever had to wait for the disk reads the
 * window around ahead, and the others find theirs in memory. That pays as long as it is used, see tier_pack_ahead().
 */
#include "cache/tier_i.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD_WINDOWS 64 /* of a pack: bits of tier_pack.ahead */
#define AHEAD_GAIN 8

struct tier_pack *tier_pack_new(uint64_t pack_no)
{
	struct tier_pack *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return NULL;
	tier_obj_init(&p->obj, true);
	p->pack_no = pack_no;
	p->end_bytes = sizeof(struct tier_raw_pack);
	p->first = TIER_NONE;
	return p;
}

void tier_pack_retire_locked(struct tier *t, struct tier_pack *p)
{
	if (t->active == p)
		t->active = NULL;
	if (p->is_full)
		return;
	p->is_full = true;
	t->n_to_seal++;
	tier_care_soon_locked(t);
}

int tier_pack_add_locked(struct tier *t, struct tier_pack *p)
{
	uint32_t cap = t->packs_cap == 0 ? 16 : t->packs_cap * 2;
	struct tier_pack **packs;

	for (p->index = 0; p->index < t->n_packs; p->index++)
		if (t->packs[p->index] == NULL)
			break;
	if (p->index == t->packs_cap) {
		packs = realloc(t->packs, cap * sizeof(struct tier_pack *));
		if (packs == NULL)
			return -ENOMEM;
		t->packs = packs;
		t->packs_cap = cap;
	}
	if (p->index == t->n_packs)
		t->n_packs++;
	t->packs[p->index] = p;
	return 0;
}

/* Numbers follow the clock where they can, so that later packs win over earlier ones; O_EXCL decides. */
static uint64_t next_pack_no(struct tier *t)
{
	struct timespec ts;
	uint64_t no;

	(void)clock_gettime(CLOCK_REALTIME, &ts);
	no = (uint64_t)ts.tv_sec * HFS_NS_PER_S + (uint64_t)ts.tv_nsec;
	hfs_mutex_lock(&t->lock);
	if (no <= t->last_pack_no)
		no = t->last_pack_no + 1;
	t->last_pack_no = no;
	hfs_mutex_unlock(&t->lock);
	return no;
}

/* The naming right is held. */
int tier_pack_create(struct tier *t, struct tier_pack **ret_p)
{
	struct tier_pack *p = tier_pack_new(next_pack_no(t));
	struct tier_raw_pack raw;
	char text[TIER_NAME_CAP];
	int fd, err;

	if (p == NULL)
		return -ENOMEM;
	tier_pack_name(text, p->pack_no);
	err = fd = t->io->openat(t->io->ctx, t->fd_packs, text, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_NOATIME, 0600);
	if (err >= 0) {
		tier_pack_encode(&raw, t->salt, p->pack_no);
		err = tier_write_full(t, fd, &raw, sizeof(raw), 0);
		if (err == 0) /* no allocation ahead of the end, see tier_big_create() */
			err = t->io->ftruncate(t->io->ctx, fd, t->pack_bytes);
		if (err < 0) {
			(void)t->io->close(t->io->ctx, fd);
			(void)t->io->unlinkat(t->io->ctx, t->fd_packs, text, 0);
		}
	}
	if (err < 0) {
		free(p);
		return err;
	}
	tier_obj_adopt_fds(t, &p->obj, fd, -1);
	*ret_p = p;
	return 0;
}

int tier_pack_check_open(struct tier *t, struct tier_pack *p, int fd)
{
	struct tier_raw_pack raw;
	uint64_t pack_no;
	int err = tier_read_full(t, fd, &raw, sizeof(raw), 0);

	if (err == -ENODATA ||
	    (err == 0 && (!tier_pack_decode(&raw, sizeof(raw), t->salt, &pack_no) || pack_no != p->pack_no)))
		return -EBADMSG;
	return err;
}

/* ---- appending ---- */

/* True: a place in the active pack. */
static bool take_place_locked(struct tier *t, uint64_t total_bytes, struct tier_pack **ret_p, uint32_t *ret_off)
{
	struct tier_pack *p = t->active;

	if (p == NULL)
		return false;
	if (p->end_bytes + total_bytes > t->pack_bytes) {
		tier_pack_retire_locked(t, p);
		return false;
	}
	*ret_p = p;
	*ret_off = p->end_bytes;
	p->end_bytes += (uint32_t)total_bytes;
	p->n_writers++;
	p->obj.n_users++;
	return true;
}

static int make_active(struct tier *t)
{
	struct tier_pack *p = NULL;
	int err = 0;

	if (!tier_naming_enter(t))
		return -EROFS;
	hfs_mutex_lock(&t->lock);
	bool is_there = t->active != NULL;
	hfs_mutex_unlock(&t->lock);
	if (!is_there)
		err = tier_pack_create(t, &p);
	if (err < 0)
		tier_error(t, err, true);
	if (p != NULL) {
		hfs_mutex_lock(&t->lock);
		err = tier_pack_add_locked(t, p);
		if (err == 0) {
			tier_obj_link_locked(t, &p->obj, true);
			t->active = p;
			p->obj.n_users++;
		}
		hfs_mutex_unlock(&t->lock);
		if (err == 0) {
			tier_obj_measure(t, &p->obj);
			hfs_mutex_lock(&t->lock);
			p->obj.n_users--;
			hfs_mutex_unlock(&t->lock);
		}
	}
	tier_naming_leave(t);
	return err;
}

int tier_pack_begin(struct tier *t, uint64_t total_bytes, struct tier_pack **ret_p, uint32_t *ret_off)
{
	bool has_place;

	for (int i = 0; i < 4; i++) {
		hfs_mutex_lock(&t->lock);
		has_place = take_place_locked(t, total_bytes, ret_p, ret_off);
		hfs_mutex_unlock(&t->lock);
		if (has_place)
			return 0;
		HFS_TRY(tier_space_reserve(t, TIER_BLOCK, 1));
		int err = make_active(t);

		tier_space_release(t, TIER_BLOCK);
		HFS_TRY(err);
	}
	return -EAGAIN;
}

void tier_pack_end(struct tier *t, struct tier_pack *p)
{
	hfs_mutex_lock(&t->lock);
	p->n_writers--;
	p->obj.n_users--;
	if (p->is_full)
		tier_care_soon_locked(t);
	hfs_mutex_unlock(&t->lock);
}

/* ---- sealing ---- */

/* Entries of p, encoded; NULL: none or no memory. Data checks are not in them, so nothing is read. */
static struct tier_raw_entry *gather(struct tier *t, const struct tier_pack *p, uint32_t *ret_n)
{
	struct tier_raw_entry *table;
	const struct tier_entry *e;
	uint32_t n = 0, cap;

	hfs_mutex_lock(&t->lock);
	cap = p->n_live;
	hfs_mutex_unlock(&t->lock);
	table = cap > 0 ? malloc(cap * sizeof(*table)) : NULL;
	hfs_mutex_lock(&t->lock);
	for (uint32_t no = table == NULL ? TIER_NONE : p->first; no != TIER_NONE && n < cap; no = e->pack_next) {
		e = tier_entry_at(t, no);
		tier_entry_encode(&table[n++], t->salt, p->pack_no,
				  &(struct tier_item){.key = e->key,
						      .dataset = t->datasets[e->dataset],
						      .id = e->id,
						      .off_bytes = e->small.off_bytes,
						      .data_bytes = (uint32_t)e->id.size_bytes,
						      .path_bytes = e->path_bytes});
	}
	hfs_mutex_unlock(&t->lock);
	*ret_n = n;
	return table;
}

static int write_table(struct tier *t, struct tier_pack *p, struct tier_raw_entry *table, uint32_t n)
{
	const uint64_t bytes = (uint64_t)n * sizeof(*table);
	struct tier_raw_trailer trailer;
	int err;

	tier_trailer_encode(&trailer, t->salt, p->pack_no, n, p->end_bytes);
	HFS_TRY(tier_space_reserve(t, hfs_round_up(bytes + sizeof(trailer), TIER_BLOCK) + TIER_BLOCK, 0));
	err = t->io->ftruncate(t->io->ctx, p->obj.fd_data, p->end_bytes + bytes + sizeof(trailer));
	if (err == 0)
		err = tier_write_full(t, p->obj.fd_data, table, bytes, p->end_bytes);
	if (err == 0)
		err = tier_write_full(t, p->obj.fd_data, &trailer, sizeof(trailer), p->end_bytes + bytes);
	tier_obj_measure(t, &p->obj);
	tier_space_release(t, hfs_round_up(bytes + sizeof(trailer), TIER_BLOCK) + TIER_BLOCK);
	return err;
}

static void seal(struct tier *t, struct tier_pack *p)
{
	uint32_t n = 0;
	struct tier_raw_entry *table = gather(t, p, &n);
	int err = 0;

	if (table != NULL)
		err = tier_obj_open(t, &p->obj, NULL);
	if (table != NULL && err == 0)
		err = write_table(t, p, table, n);
	free(table);
	if (err < 0 && err != -ENOSPC && err != -EBADMSG)
		tier_error(t, err, true); /* an unsealed pack is scanned: nothing is lost */
	hfs_mutex_lock(&t->lock);
	if (table != NULL)
		tier_obj_dirty_locked(t, &p->obj, n * sizeof(*table));
	hfs_mutex_unlock(&t->lock);
}

static struct tier_pack *next_to_seal_locked(struct tier *t)
{
	for (uint32_t i = 0; t->n_to_seal > 0 && i < t->n_packs; i++) {
		struct tier_pack *p = t->packs[i];

		if (p != NULL && p->is_full && !p->is_sealed && p->n_writers == 0)
			return p;
	}
	return NULL;
}

/* is_all: the active one too (shutdown). */
void tier_pack_seal_full(struct tier *t, bool is_all)
{
	struct tier_pack *p;

	hfs_mutex_lock(&t->lock);
	if (is_all && t->active != NULL)
		tier_pack_retire_locked(t, t->active);
	while ((p = next_to_seal_locked(t)) != NULL) {
		p->is_sealed = true;
		t->n_to_seal--;
		if (p->n_live == 0) {
			tier_obj_kill_locked(t, &p->obj);
			continue;
		}
		p->obj.n_users++;
		hfs_mutex_unlock(&t->lock);
		seal(t, p);
		hfs_mutex_lock(&t->lock);
		p->obj.n_users--;
	}
	hfs_mutex_unlock(&t->lock);
}

/* ---- reading, dropping ---- */

static bool can_read_cached(const struct tier *t)
{
	return t->io->pread_cached != NULL && !atomic_load_explicit(&t->is_cached_refused, memory_order_relaxed);
}

/* n bytes: what comes before the data, and the data. */
static int read_cached(struct tier *t, int fd, uint8_t *buf, uint32_t data_off, void *data, size_t n, uint64_t off_bytes)
{
	const struct iovec iov[] = {{.iov_base = buf, .iov_len = data_off}, {.iov_base = data, .iov_len = n - data_off}};
	ssize_t got;

	if (!can_read_cached(t))
		return -EAGAIN;
	got = t->io->pread_cached(t->io->ctx, fd, iov, 2, off_bytes);
	if (got == -EOPNOTSUPP || got == -ENOSYS || got == -EINVAL)
		atomic_store_explicit(&t->is_cached_refused, true, memory_order_relaxed);
	return got == (ssize_t)n ? 0 : -EAGAIN;
}

/*
 * Somebody waits for the disk there: on a thread of the tier. The account begins with TIER_AHEAD_BYTES and gets AHEAD_GAIN bytes for each
 * byte that was found in memory, so a dataset that fits comes in whole, in large reads, and one that does not costs TIER_AHEAD_BYTES once
 * and a few times what was of use.
 */
void tier_pack_ahead(struct tier *t, struct tier_pack *p, uint32_t off_bytes)
{
	const uint64_t window = t->pack_bytes / AHEAD_WINDOWS, no = off_bytes / window;
	bool is_due;

	if (t->io->read_ahead == NULL || no >= AHEAD_WINDOWS || !can_read_cached(t))
		return;
	hfs_mutex_lock(&t->lock);
	is_due = !(p->ahead & UINT64_C(1) << no) && t->ahead_bytes >= window;
	p->ahead ^= UINT64_C(1) << no; /* read ahead and gone again: the next one may */
	t->ahead_bytes -= is_due ? window : 0;
	hfs_mutex_unlock(&t->lock);
	if (is_due)
		t->io->read_ahead(t->io->ctx, p->obj.fd_data, no * window, window);
}

void tier_pack_ahead_used_locked(struct tier *t, uint32_t bytes)
{
	t->ahead_bytes = hfs_min_u64(t->ahead_bytes + (uint64_t)bytes * AHEAD_GAIN, TIER_AHEAD_BYTES);
}

int tier_pack_read(struct tier *t, struct tier_pack *p, uint32_t off_bytes, struct tier_key key,
		   const struct hfs_identity *id, uint32_t path_bytes, const struct tier_name *name, bool is_cached, uint8_t *buf,
		   void *into, uint32_t *ret_data_off)
{
	const uint32_t data_off = tier_item_data_off(path_bytes);
	const char *path = (const char *)buf + sizeof(struct tier_raw_item);
	uint8_t *data = into != NULL ? into : buf + data_off;
	struct tier_item it;
	size_t need;
	const size_t n = data_off + id->size_bytes;
	int err = is_cached ? read_cached(t, p->obj.fd_data, buf, data_off, data, n, off_bytes)
			    : tier_read_full(t, p->obj.fd_data, buf, n, off_bytes);

	assert(into == NULL || is_cached);
	if (err < 0)
		return err == -ENODATA ? -EBADMSG : err;
	if (tier_item_decode(buf, data_off, t->salt, p->pack_no, off_bytes, &it, &need) != 2)
		return -EBADMSG;
	if (!it.is_live)
		return -ENOENT; /* dropped after the table was written */
	if (it.path_bytes != path_bytes || !tier_key_equal(it.key, key) ||
	    !hfs_identity_equal(&it.id, id) || !tier_key_equal(tier_key_of(it.dataset, path, path_bytes), key))
		return -EBADMSG;
	if (name != NULL &&
	    (it.dataset != t->dataset || path_bytes != name->path_bytes || memcmp(path, name->path, path_bytes) != 0))
		return -EBADMSG;
	if (tier_data_check(tier_data_seed(t->salt, key, id, p->pack_no, off_bytes, 0), data, it.data_bytes) != it.data_check)
		return -EBADMSG;
	*ret_data_off = data_off;
	return 0;
}

int tier_pack_erase(struct tier *t, struct tier_pack *p, uint32_t off_bytes, uint32_t head_bytes, uint32_t item_bytes)
{
	uint64_t from = hfs_round_up((uint64_t)off_bytes + head_bytes, TIER_BLOCK);
	uint64_t to = hfs_round_down((uint64_t)off_bytes + item_bytes, TIER_BLOCK);
	int err = tier_write_full(t, p->obj.fd_data, TIER_ITEM_DEAD, 4, off_bytes), err_punch = 0;

	if (from < to)
		err_punch = t->io->punch(t->io->ctx, p->obj.fd_data, from, to - from);
	return err < 0 ? err : err_punch;
}
