/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_obj.c - files of the tier on disk: descriptors, order of use, what is not synced, death.
 *
 *   linked --kill--> dead --reap (names removed, last user gone)--> freed
 *
 * The descriptors of an object are opened once, by whoever needs them first, and are closed when it has no users and
 * others need theirs. What is opened is checked: a regular file of ours with one name, with our header in it.
 */
#include "cache/tier_i.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define OBJ_FDS_MAX 3 /* data, index, data past the page cache */

uint64_t tier_random(void)
{
	uint64_t x = 0;

	if (getrandom(&x, sizeof(x), 0) != (ssize_t)sizeof(x))
		x = hfs_now_ns() * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)getpid();
	return x;
}

/* ---- whole reads and writes ---- */

int tier_read_full(struct tier *t, int fd, void *buf, size_t n, uint64_t off_bytes)
{
	ssize_t got;

	while (n > 0) {
		tier_called(t);
		got = t->io->pread(t->io->ctx, fd, buf, n, off_bytes);
		tier_called(t);
		if (got == -EINTR)
			continue;
		if (got < 0)
			return (int)got;
		if (got == 0)
			return -ENODATA;
		buf = (uint8_t *)buf + got;
		n -= (size_t)got;
		off_bytes += (uint64_t)got;
	}
	return 0;
}

int tier_write_full(struct tier *t, int fd, const void *buf, size_t n, uint64_t off_bytes)
{
	ssize_t put;

	while (n > 0) {
		put = t->io->pwrite(t->io->ctx, fd, buf, n, off_bytes);
		if (put == -EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? (int)put : -EIO;
		buf = (const uint8_t *)buf + put;
		n -= (size_t)put;
		off_bytes += (uint64_t)put;
	}
	return 0;
}

struct tier_buf *tier_buf_get(struct tier *t)
{
	struct tier_buf *b;

	hfs_mutex_lock(&t->lock);
	b = t->bufs;
	if (b != NULL) {
		t->bufs = b->next;
		t->n_bufs--;
	}
	hfs_mutex_unlock(&t->lock);
	return b != NULL ? b : malloc(sizeof(*b) + t->buf_bytes);
}

void tier_buf_put(struct tier *t, struct tier_buf *b)
{
	bool is_kept;

	if (b == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	is_kept = t->n_bufs < t->cfg.queue_max && !t->is_stopping;
	if (is_kept) {
		b->next = t->bufs;
		t->bufs = b;
		t->n_bufs++;
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_kept)
		free(b);
}

/* ---- order of use ---- */

void tier_obj_init(struct tier_obj *o, bool is_pack)
{
	o->is_pack = is_pack;
	o->fd_data = o->fd_index = o->fd_direct = -1;
	o->has_names = true;
}

static void lru_remove(struct tier *t, struct tier_obj *o)
{
	*(o->lru_prev != NULL ? &o->lru_prev->lru_next : &t->lru_first) = o->lru_next;
	*(o->lru_next != NULL ? &o->lru_next->lru_prev : &t->lru_last) = o->lru_prev;
	o->lru_next = o->lru_prev = NULL;
}

static void lru_append(struct tier *t, struct tier_obj *o)
{
	o->lru_prev = t->lru_last;
	*(t->lru_last != NULL ? &t->lru_last->lru_next : &t->lru_first) = o;
	t->lru_last = o;
}

void tier_obj_link_locked(struct tier *t, struct tier_obj *o, bool is_recent)
{
	hfs_mutex_assert_held(&t->lock);
	if (is_recent || t->lru_first == NULL) {
		lru_append(t, o);
	} else {
		o->lru_next = t->lru_first;
		t->lru_first->lru_prev = o;
		t->lru_first = o;
	}
	o->is_used = is_recent;
	t->used_bytes += o->alloc_bytes;
	t->used_inodes += o->is_pack ? 1 : 2;
	if (!o->is_pack)
		t->stats.files_big++;
}

void tier_obj_use_locked(struct tier *t, struct tier_obj *o)
{
	if (o->is_dead)
		return;
	o->is_used = true;
	if (t->lru_last == o)
		return;
	lru_remove(t, o);
	lru_append(t, o);
}

void tier_obj_release_locked(struct tier *t, struct tier_obj *o)
{
	hfs_mutex_assert_held(&t->lock);
	assert(o->n_users > 0);
	o->n_users--;
	if (o->n_users == 0 && !o->is_dead && !o->is_pack && tier_big_of(o)->n_present == 0)
		tier_obj_kill_locked(t, o);
	else if (o->n_users == 0 && o->is_dead)
		tier_care_soon_locked(t);
}

/* ---- descriptors ---- */

static void fd_remove(struct tier *t, struct tier_obj *o)
{
	*(o->fd_prev != NULL ? &o->fd_prev->fd_next : &t->fd_first) = o->fd_next;
	*(o->fd_next != NULL ? &o->fd_next->fd_prev : &t->fd_last) = o->fd_prev;
	o->fd_next = o->fd_prev = NULL;
}

static void fd_append(struct tier *t, struct tier_obj *o)
{
	o->fd_prev = t->fd_last;
	*(t->fd_last != NULL ? &t->fd_last->fd_next : &t->fd_first) = o;
	t->fd_last = o;
}

static void close_fd(struct tier *t, int fd)
{
	if (fd >= 0)
		(void)t->io->close(t->io->ctx, fd);
}

/* Closes what has no users and was opened longest ago, until few enough are open. */
void tier_obj_free(struct tier *t, struct tier_obj *o)
{
	assert(o->n_users == 0);
	close_fd(t, o->fd_data);
	close_fd(t, o->fd_index);
	close_fd(t, o->fd_direct);
	if (o->is_pack)
		free(tier_pack_of(o));
	else
		tier_big_free(tier_big_of(o));
}

void tier_fds_trim(struct tier *t)
{
	struct tier_obj *o;
	int fd_data, fd_index, fd_direct;

	for (;;) {
		hfs_mutex_lock(&t->lock);
		o = t->n_open * OBJ_FDS_MAX > t->cfg.fds_max ? t->fd_first : NULL;
		while (o != NULL && o->n_users > 0)
			o = o->fd_next;
		if (o == NULL)
			break;
		fd_remove(t, o);
		t->n_open--;
		fd_data = o->fd_data;
		fd_index = o->fd_index;
		fd_direct = o->fd_direct;
		o->fd_data = o->fd_index = o->fd_direct = -1;
		o->is_direct_refused = false;
		hfs_mutex_unlock(&t->lock);
		close_fd(t, fd_data);
		close_fd(t, fd_index);
		close_fd(t, fd_direct);
	}
	hfs_mutex_unlock(&t->lock);
}

/* Of two threads that opened it, one closes its own again. */
void tier_obj_adopt_fds(struct tier *t, struct tier_obj *o, int fd_data, int fd_index)
{
	bool is_first;

	hfs_mutex_lock(&t->lock);
	is_first = o->fd_data < 0;
	if (is_first) {
		o->fd_data = fd_data;
		o->fd_index = fd_index;
		fd_append(t, o);
		t->n_open++;
	}
	hfs_mutex_unlock(&t->lock);
	if (!is_first) {
		close_fd(t, fd_data);
		close_fd(t, fd_index);
	}
	tier_fds_trim(t);
}

int tier_check_file(struct tier *t, int fd, struct stat *ret)
{
	HFS_TRY(t->io->fstat(t->io->ctx, fd, ret));
	if (!S_ISREG(ret->st_mode) || ret->st_uid != geteuid() || ret->st_nlink > 1)
		return -EBADMSG;
	return 0;
}

/* A name that leads elsewhere, or to something else than a file, is not what it should be. */
static int open_one(struct tier *t, int dirfd, const char *name, bool *ret_is_readonly, struct stat *ret_st)
{
	const int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_NOATIME; /* noting a time may wait for the disk */
	int fd = t->io->openat(t->io->ctx, dirfd, name, flags | O_RDWR, 0), err;

	tier_called(t);
	if (fd == -EROFS) {
		*ret_is_readonly = true;
		fd = t->io->openat(t->io->ctx, dirfd, name, flags | O_RDONLY, 0);
	}
	if (fd == -ELOOP || fd == -ENXIO || fd == -EISDIR || fd == -ENOENT || fd == -EACCES || fd == -EPERM)
		return -EBADMSG;
	if (fd < 0)
		return fd;
	err = tier_check_file(t, fd, ret_st);
	if (err < 0) {
		close_fd(t, fd);
		return err;
	}
	return fd;
}

int tier_obj_open(struct tier *t, struct tier_obj *o, const struct tier_name *name)
{
	bool is_open, is_readonly = false;
	char text[TIER_NAME_CAP];
	struct stat st;
	int fd_data, fd_index = -1, err;

	hfs_mutex_lock(&t->lock);
	is_open = o->fd_data >= 0;
	if (is_open) {
		fd_remove(t, o);
		fd_append(t, o);
	}
	hfs_mutex_unlock(&t->lock);
	if (is_open)
		return 0;
	if (o->is_pack)
		tier_pack_name(text, tier_pack_of(o)->pack_no);
	else
		tier_file_name(text, tier_big_of(o)->key, 'd');
	fd_data = open_one(t, o->is_pack ? t->fd_packs : t->fd_files, text, &is_readonly, &st);
	if (fd_data < 0)
		return fd_data;
	if (o->is_pack) {
		err = tier_pack_check_open(t, tier_pack_of(o), fd_data);
	} else {
		tier_file_name(text, tier_big_of(o)->key, 'i');
		err = fd_index = open_one(t, t->fd_files, text, &is_readonly, &st);
		if (fd_index >= 0)
			err = tier_big_check_open(t, tier_big_of(o), fd_index, name);
	}
	if (err < 0) {
		close_fd(t, fd_data);
		close_fd(t, fd_index);
		return err;
	}
	tier_obj_adopt_fds(t, o, fd_data, fd_index);
	if (is_readonly)
		tier_error(t, -EROFS, true);
	return 0;
}

int tier_obj_reopen(struct tier *t, struct tier_obj *o, int flags)
{
	struct stat st, ours;
	char text[TIER_NAME_CAP];
	int fd, err;

	tier_file_name(text, tier_big_of(o)->key, 'd');
	fd = t->io->openat(t->io->ctx, t->fd_files, text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags, 0);
	tier_called(t);
	if (fd < 0)
		return fd;
	err = tier_check_file(t, fd, &st);
	if (err == 0)
		err = t->io->fstat(t->io->ctx, o->fd_data, &ours);
	if (err == 0 && (st.st_ino != ours.st_ino || st.st_dev != ours.st_dev))
		err = -EBADMSG;
	if (err == 0)
		return fd;
	close_fd(t, fd);
	return err;
}

bool tier_obj_direct(struct tier *t, struct tier_obj *o)
{
	bool is_open, is_refused;
	int fd;

	hfs_mutex_lock(&t->lock);
	is_open = o->fd_direct >= 0;
	is_refused = o->is_direct_refused || o->is_pack;
	hfs_mutex_unlock(&t->lock);
	if (is_open || is_refused)
		return is_open;
	fd = tier_obj_reopen(t, o, O_DIRECT);
	hfs_mutex_lock(&t->lock);
	if (fd < 0) {
		o->is_direct_refused = o->fd_direct < 0;
	} else if (o->fd_direct < 0) {
		o->fd_direct = fd;
		fd = -1;
	}
	is_open = o->fd_direct >= 0;
	hfs_mutex_unlock(&t->lock);
	close_fd(t, fd);
	return is_open;
}

/* Of two that measure at once the later one counts: it sees what the earlier one's caller wrote. */
void tier_obj_measure(struct tier *t, struct tier_obj *o)
{
	struct stat data = {0}, index = {0};
	uint64_t alloc_bytes;
	uint32_t ticket;

	hfs_mutex_lock(&t->lock);
	ticket = ++o->measures;
	hfs_mutex_unlock(&t->lock);
	if (t->io->fstat(t->io->ctx, o->fd_data, &data) < 0)
		return;
	if (o->fd_index >= 0 && t->io->fstat(t->io->ctx, o->fd_index, &index) < 0)
		return;
	alloc_bytes = ((uint64_t)data.st_blocks + (uint64_t)index.st_blocks) * 512;
	hfs_mutex_lock(&t->lock);
	if (ticket > o->measured) {
		if (!o->is_dead || o->has_names)
			t->used_bytes = t->used_bytes - o->alloc_bytes + alloc_bytes;
		o->alloc_bytes = alloc_bytes;
		o->measured = ticket;
	}
	hfs_mutex_unlock(&t->lock);
}

/* ---- not synced ---- */

void tier_obj_dirty_locked(struct tier *t, struct tier_obj *o, uint64_t bytes)
{
	hfs_mutex_assert_held(&t->lock);
	if (o->is_dead)
		return;
	o->dirty_bytes += bytes;
	t->dirty_bytes += bytes;
	if (o->is_dirty)
		return;
	o->is_dirty = true;
	o->dirty_next = NULL;
	*(t->dirty_last != NULL ? &t->dirty_last->dirty_next : &t->dirty) = o;
	t->dirty_last = o;
}

static void dirty_remove(struct tier *t, struct tier_obj *o)
{
	struct tier_obj **at = &t->dirty, *before = NULL;

	if (!o->is_dirty)
		return;
	while (*at != o) {
		before = *at;
		at = &(*at)->dirty_next;
	}
	*at = o->dirty_next;
	if (t->dirty_last == o)
		t->dirty_last = before;
	o->is_dirty = false;
	t->dirty_bytes -= o->dirty_bytes;
	o->dirty_bytes = 0;
}

/* ---- death ---- */

static void forget_big_locked(struct tier *t, struct tier_big *b)
{
	struct tier_entry *e = tier_entry_find(t, b->key);

	if (e != NULL && e->is_big && e->big == b)
		tier_entry_remove(t, e);
	t->stats.chunks -= b->n_present;
	t->stats.files_big--;
	b->n_present = b->n_verified = 0;
	for (uint32_t i = 0; i < b->n_leaves; i++) {
		free(b->leaves[i]);
		b->leaves[i] = NULL;
	}
}

static void forget_pack_locked(struct tier *t, struct tier_pack *p)
{
	while (p->first != TIER_NONE)
		tier_entry_remove(t, tier_entry_at(t, p->first));
	t->packs[p->index] = NULL;
	if (t->active == p)
		t->active = NULL;
	t->n_to_seal -= p->is_full && !p->is_sealed;
	p->is_sealed = true;
}

void tier_obj_kill_locked(struct tier *t, struct tier_obj *o)
{
	hfs_mutex_assert_held(&t->lock);
	if (o->is_dead)
		return;
	if (o->is_pack)
		forget_pack_locked(t, tier_pack_of(o));
	else
		forget_big_locked(t, tier_big_of(o));
	lru_remove(t, o);
	dirty_remove(t, o);
	o->is_dead = true;
	o->dead_next = t->dead;
	t->dead = o;
	tier_care_soon_locked(t);
}

bool tier_naming_enter(struct tier *t)
{
	bool is_mine;

	hfs_mutex_lock(&t->lock);
	while (t->is_naming && !t->is_stopping && t->state != TIER_OFF)
		hfs_cond_wait(&t->changed, &t->lock);
	is_mine = !t->is_naming;
	if (is_mine)
		t->is_naming = true;
	hfs_mutex_unlock(&t->lock);
	return is_mine;
}

void tier_naming_leave(struct tier *t)
{
	hfs_mutex_lock(&t->lock);
	t->is_naming = false;
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}

static void remove_names(struct tier *t, struct tier_obj *o)
{
	char text[TIER_NAME_CAP];

	if (o->is_pack) {
		tier_pack_name(text, tier_pack_of(o)->pack_no);
		(void)t->io->unlinkat(t->io->ctx, t->fd_packs, text, 0);
		return;
	}
	/* The index first: data without records is nothing. */
	tier_file_name(text, tier_big_of(o)->key, 'i');
	(void)t->io->unlinkat(t->io->ctx, t->fd_files, text, 0);
	tier_file_name(text, tier_big_of(o)->key, 'd');
	(void)t->io->unlinkat(t->io->ctx, t->fd_files, text, 0);
}

static struct tier_obj *take_freeable_locked(struct tier *t)
{
	for (struct tier_obj **at = &t->dead; *at != NULL; at = &(*at)->dead_next) {
		struct tier_obj *o = *at;

		if (o->has_names || o->n_users > 0)
			continue;
		*at = o->dead_next;
		if (o->fd_data >= 0) {
			fd_remove(t, o);
			t->n_open--;
		}
		return o;
	}
	return NULL;
}

static struct tier_obj *next_named_locked(struct tier *t)
{
	struct tier_obj *o = t->dead;

	while (o != NULL && !o->has_names)
		o = o->dead_next;
	if (o != NULL)
		o->n_users++; /* nobody else frees it meanwhile */
	return o;
}

/* Names first, for all; then the memory of those nobody uses. Space counts as free only when no descriptor is left. */
void tier_reap(struct tier *t)
{
	struct tier_obj *o;

	if (tier_naming_enter(t)) {
		hfs_mutex_lock(&t->lock);
		while ((o = next_named_locked(t)) != NULL) {
			hfs_mutex_unlock(&t->lock);
			remove_names(t, o);
			hfs_mutex_lock(&t->lock);
			o->has_names = false;
			o->n_users--;
			t->used_bytes -= o->alloc_bytes;
			t->used_inodes -= o->is_pack ? 1 : 2;
		}
		hfs_mutex_unlock(&t->lock);
		tier_naming_leave(t);
	}
	for (;;) {
		hfs_mutex_lock(&t->lock);
		o = take_freeable_locked(t);
		hfs_mutex_unlock(&t->lock);
		if (o == NULL)
			break;
		tier_obj_free(t, o);
	}
}
