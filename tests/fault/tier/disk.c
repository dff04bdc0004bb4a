/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/disk.c - see disk.h.
 *
 * A file has its present bytes, its bytes at the last sync, and a log of what was written since.
 */
#include "tests/fault/tier/disk.h"

#include "cache/base/time.h"
#include "tests/fault/tier/disk_i.h"
#include "tests/fault/tier/rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* ---- bytes ---- */

static void bytes_reserve(struct bytes *b, uint64_t size)
{
	uint64_t cap = (size + BLOCK - 1) / BLOCK * BLOCK;

	if (cap <= b->cap)
		return;
	b->p = rig_realloc(b->p, cap);
	b->has = rig_realloc(b->has, cap / BLOCK);
	memset(b->p + b->cap, 0, cap - b->cap);
	memset(b->has + b->cap / BLOCK, 0, (cap - b->cap) / BLOCK);
	b->cap = cap;
}

void disk_bytes_resize(struct bytes *b, uint64_t size)
{
	bytes_reserve(b, size);
	if (size < b->size) {
		memset(b->p + size, 0, b->cap - size);
		for (uint64_t i = (size + BLOCK - 1) / BLOCK; i < b->cap / BLOCK; i++)
			b->has[i] = 0;
	}
	b->size = size;
}

void disk_bytes_write(struct bytes *b, const void *data, uint64_t len, uint64_t off)
{
	if (off + len > b->size)
		disk_bytes_resize(b, off + len);
	memcpy(b->p + off, data, len);
	for (uint64_t i = off / BLOCK; len > 0 && i <= (off + len - 1) / BLOCK; i++)
		b->has[i] = 1;
}

void disk_bytes_punch(struct bytes *b, uint64_t off, uint64_t len)
{
	for (uint64_t i = (off + BLOCK - 1) / BLOCK; (i + 1) * BLOCK <= off + len && i < b->cap / BLOCK; i++) {
		memset(b->p + i * BLOCK, 0, BLOCK);
		b->has[i] = 0;
	}
}

uint64_t disk_bytes_blocks(const struct bytes *b)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < b->cap / BLOCK; i++)
		n += b->has[i];
	return n;
}

void disk_bytes_copy(struct bytes *to, const struct bytes *from)
{
	bytes_reserve(to, from->cap);
	if (to->cap > 0) {
		memset(to->p, 0, to->cap);
		memset(to->has, 0, to->cap / BLOCK);
	}
	if (from->cap > 0) {
		memcpy(to->p, from->p, from->cap);
		memcpy(to->has, from->has, from->cap / BLOCK);
	}
	to->size = from->size;
}

static void bytes_free(struct bytes *b)
{
	free(b->p);
	free(b->has);
}

/* ---- nodes ---- */

static struct node *node_new(struct disk *d, bool is_dir, uint32_t mode)
{
	struct node *n = rig_alloc(sizeof(*n));

	n->ino = ++d->ino;
	n->is_dir = is_dir;
	n->mode = mode;
	n->log_last = &n->log;
	n->is_new = true;
	d->used_inodes++;
	if (is_dir)
		n->blocks = 1;
	d->used += n->blocks * BLOCK;
	return n;
}

void disk_log_drop(struct node *n)
{
	struct logged *l;

	while ((l = n->log) != NULL) {
		n->log = l->next;
		free(l);
	}
	n->log_last = &n->log;
}

static void log_add(struct node *n, enum write_kind kind, uint64_t off, uint64_t len, const void *data)
{
	struct logged *l = rig_alloc(sizeof(*l) + (data != NULL ? len : 0));

	l->kind = kind;
	l->off = off;
	l->len = len;
	if (data != NULL)
		memcpy(l->data, data, len);
	*n->log_last = l;
	n->log_last = &l->next;
}

void disk_node_free(struct disk *d, struct node *n)
{
	d->used -= n->blocks * BLOCK;
	d->used_inodes -= !n->is_unlinked;
	disk_log_drop(n);
	bytes_free(&n->now);
	bytes_free(&n->synced);
	free(n);
}

/* Its blocks are counted anew; false: the disk is full. */
bool disk_node_count(struct disk *d, struct node *n)
{
	uint64_t blocks = n->is_unlinked ? 0 : disk_bytes_blocks(&n->now);

	d->used += (blocks - n->blocks) * BLOCK;
	n->blocks = blocks;
	if (d->used > d->used_max)
		d->used_max = d->used;
	return d->used <= d->bytes;
}

static struct name *name_find(const struct node *dir, const char *text)
{
	for (struct name *n = dir->names; n != NULL; n = n->next)
		if (!n->is_gone && strcmp(n->text, text) == 0)
			return n;
	return NULL;
}

static struct name *name_add(struct disk *d, struct node *dir, const char *text, struct node *node)
{
	struct name **at = &dir->names;
	struct name *n = rig_alloc(sizeof(*n));

	(void)snprintf(n->text, sizeof(n->text), "%s", text);
	n->node = node;
	n->seq = ++d->seq;
	node->n_links++;
	while (*at != NULL)
		at = &(*at)->next;
	*at = n;
	return n;
}

/* ---- calls ---- */

/* Counts; 0, or the errno this call fails with. REQUIRES the lock. */
static int enter(struct disk *d, bool is_io)
{
	d->calls++;
	if (d->off_at != 0 && d->calls >= d->off_at)
		d->is_off = true;
	if (d->is_off)
		return -EIO;
	if (d->fail_at != 0 && (d->calls == d->fail_at || (d->is_sticky && d->calls > d->fail_at))) {
		d->failed++;
		return d->fail_err;
	}
	if (is_io && d->prob > 0 && (double)(rig_next(&d->rng) >> 11) / 9007199254740992.0 < d->prob) {
		d->failed++;
		return d->prob_err;
	}
	return 0;
}

static struct node *node_of(struct disk *d, int fd)
{
	return fd >= FD_BASE && fd < FD_BASE + FDS_MAX ? d->fds[fd - FD_BASE].node : NULL;
}

static int fd_new(struct disk *d, struct node *n)
{
	for (int i = 0; i < FDS_MAX; i++) {
		if (d->fds[i].node == NULL) {
			d->fds[i] = (struct open_file){.node = n};
			n->n_fds++;
			return FD_BASE + i;
		}
	}
	return -EMFILE;
}

static int at(struct disk *d, int dirfd, const char *name, struct node **ret_dir, struct node **ret)
{
	struct node *dir = node_of(d, dirfd);
	struct name *n;

	*ret_dir = dir;
	if (dirfd == AT_FDCWD) {
		*ret = strcmp(name, DISK_DIR) != 0 ? NULL : d->is_replaced ? d->other_root : d->root;
		return *ret == NULL ? -ENOENT : 0;
	}
	if (dir == NULL || !dir->is_dir)
		return -EBADF;
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
		*ret = dir;
		return 0;
	}
	n = name_find(dir, name);
	*ret = n == NULL ? NULL : n->node;
	return n == NULL ? -ENOENT : 0;
}

static int open_locked(struct disk *d, int dirfd, const char *name, int flags, mode_t mode)
{
	struct node *dir, *n;
	int err = enter(d, false);

	if (err == 0)
		err = at(d, dirfd, name, &dir, &n);
	if (err == 0 && (flags & O_EXCL) != 0)
		err = -EEXIST;
	if (err == -ENOENT && (flags & O_CREAT) != 0) {
		if (d->used_inodes >= d->inodes)
			return -ENOSPC;
		n = node_new(d, false, mode);
		(void)name_add(d, dir, name, n);
		err = 0;
	}
	if (err == 0 && (flags & O_DIRECTORY) != 0 && !n->is_dir)
		err = -ENOTDIR;
	if (err == 0 && n->is_dir && (flags & O_ACCMODE) != O_RDONLY)
		err = -EISDIR;
	return err < 0 ? err : fd_new(d, n);
}

static int do_openat(void *ctx, int dirfd, const char *name, int flags, mode_t mode)
{
	struct disk *d = ctx;
	int fd;

	hfs_mutex_lock(&d->lock);
	fd = open_locked(d, dirfd, name, flags, mode);
	hfs_mutex_unlock(&d->lock);
	return fd;
}

static int do_close(void *ctx, int fd)
{
	struct disk *d = ctx;
	struct node *n;

	hfs_mutex_lock(&d->lock);
	n = node_of(d, fd);
	rig_check(n != NULL, "closes a descriptor that is not open");
	d->fds[fd - FD_BASE].node = NULL;
	n->n_fds--;
	hfs_mutex_unlock(&d->lock);
	return 0;
}

static void fill_stat(const struct node *n, struct stat *st)
{
	*st = (struct stat){.st_dev = 7,
			    .st_ino = n->ino,
			    .st_mode = n->mode | (n->is_dir ? S_IFDIR : S_IFREG),
			    .st_nlink = n->n_links,
			    .st_uid = geteuid(),
			    .st_size = (off_t)n->now.size,
			    .st_blocks = (blkcnt_t)n->blocks * (BLOCK / 512)};
}

static int do_fstat(void *ctx, int fd, struct stat *ret)
{
	struct disk *d = ctx;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	if (err == 0 && node_of(d, fd) == NULL)
		err = -EBADF;
	if (err == 0)
		fill_stat(node_of(d, fd), ret);
	hfs_mutex_unlock(&d->lock);
	return err;
}

static int do_fstatat(void *ctx, int dirfd, const char *name, struct stat *ret, int flags)
{
	struct disk *d = ctx;
	struct node *dir, *n;
	int err;

	(void)flags;
	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	if (err == 0)
		err = at(d, dirfd, name, &dir, &n);
	if (err == 0)
		fill_stat(n, ret);
	hfs_mutex_unlock(&d->lock);
	return err;
}

/* Where calls hang. The lock is given up meanwhile. */
static void maybe_hang(struct disk *d) HFS_REQUIRES(d->lock);
static void maybe_hang(struct disk *d)
{
	if (!d->is_hanging)
		return;
	d->n_hung++;
	hfs_cond_broadcast(&d->changed);
	while (d->is_hanging)
		hfs_cond_wait(&d->changed, &d->lock);
	d->n_hung--;
}

static ssize_t do_pread(void *ctx, int fd, void *buf, size_t n, uint64_t off)
{
	struct disk *d = ctx;
	struct node *node;
	ssize_t got;

	hfs_mutex_lock(&d->lock);
	maybe_hang(d);
	got = enter(d, true);
	node = node_of(d, fd);
	if (got == 0 && node == NULL)
		got = -EBADF;
	if (got == 0 && off < node->now.size) {
		if (d->is_short && n > 4000)
			n = 4000;
		got = (ssize_t)(n < node->now.size - off ? n : node->now.size - off);
		memcpy(buf, node->now.p + off, (size_t)got);
	}
	hfs_mutex_unlock(&d->lock);
	return got;
}

/* Every second block is in memory, unless the disk hangs: then nothing is. */
static ssize_t do_pread_cached(void *ctx, int fd, const struct iovec *iov, int n_iov, uint64_t off)
{
	struct disk *d = ctx;
	ssize_t got, sum = 0;

	hfs_mutex_lock(&d->lock);
	bool is_cached = !d->is_hanging && off / 4096 % 2 == 0;
	hfs_mutex_unlock(&d->lock);
	if (!is_cached)
		return -EAGAIN;
	for (int i = 0; i < n_iov; i++) {
		got = do_pread(ctx, fd, iov[i].iov_base, iov[i].iov_len, off + (uint64_t)sum);
		if (got < 0)
			return got;
		sum += got;
		if ((size_t)got < iov[i].iov_len)
			break;
	}
	return sum;
}

static ssize_t do_pwrite(void *ctx, int fd, const void *buf, size_t n, uint64_t off)
{
	struct disk *d = ctx;
	struct node *node;
	ssize_t put;

	hfs_mutex_lock(&d->lock);
	maybe_hang(d);
	put = enter(d, true);
	node = node_of(d, fd);
	if (put == 0 && node == NULL)
		put = -EBADF;
	if (put == 0 && d->used + n > d->bytes + BLOCK)
		put = -ENOSPC;
	if (put == 0) {
		if (d->is_short && n > 4000)
			n = 4000;
		disk_bytes_write(&node->now, buf, n, off);
		log_add(node, WROTE, off, n, buf);
		put = (ssize_t)n;
		(void)disk_node_count(d, node);
	}
	hfs_mutex_unlock(&d->lock);
	return put;
}

static int do_punch(void *ctx, int fd, uint64_t off, uint64_t len)
{
	struct disk *d = ctx;
	struct node *n;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, true);
	n = node_of(d, fd);
	if (err == 0) {
		disk_bytes_punch(&n->now, off, len);
		log_add(n, PUNCHED, off, len, NULL);
		(void)disk_node_count(d, n);
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

static int do_ftruncate(void *ctx, int fd, uint64_t size)
{
	struct disk *d = ctx;
	struct node *n;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, true);
	n = node_of(d, fd);
	if (err == 0) {
		disk_bytes_resize(&n->now, size);
		log_add(n, RESIZED, size, 0, NULL);
		(void)disk_node_count(d, n);
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

static void sync_name(struct node *dir, const struct node *n)
{
	for (struct name *e = dir->names; e != NULL; e = e->next) {
		if (e->node == n && !e->is_gone) {
			e->is_durable = true;
			for (struct name *x = dir->names; x != NULL; x = x->next) /* and with it that the one before is gone */
				x->is_durable = x->is_durable && (x == e || strcmp(x->text, e->text) != 0);
		}
		if (e->node->is_dir)
			sync_name(e->node, n);
	}
}

static int do_fdatasync(void *ctx, int fd)
{
	struct disk *d = ctx;
	struct node *n;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, true);
	n = node_of(d, fd);
	if (err == 0) {
		disk_log_drop(n);
		disk_bytes_copy(&n->synced, &n->now);
		n->is_new = false;
		sync_name(d->root, n);
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

/* The name stays for a power cut that forgets the removal. */
static int do_unlinkat(void *ctx, int dirfd, const char *name, int flags)
{
	struct disk *d = ctx;
	struct node *dir, *n;
	struct name *e;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	if (err == 0)
		err = at(d, dirfd, name, &dir, &n);
	if (err == 0 && n->is_dir != ((flags & AT_REMOVEDIR) != 0))
		err = n->is_dir ? -EISDIR : -ENOTDIR;
	if (err == 0 && n->is_dir)
		for (e = n->names; e != NULL; e = e->next)
			if (!e->is_gone)
				err = -ENOTEMPTY;
	if (err == 0) {
		e = name_find(dir, name);
		e->is_gone = true;
		n->n_links--;
		d->used -= n->blocks * BLOCK; /* for du; whoever has it open keeps the bytes */
		d->used_inodes--;
		n->blocks = 0;
		n->is_unlinked = true;
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

static int do_renameat(void *ctx, int from_dirfd, const char *from, int to_dirfd, const char *to)
{
	struct disk *d = ctx;
	struct node *from_dir, *to_dir, *n, *other;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	if (err == 0)
		err = at(d, from_dirfd, from, &from_dir, &n);
	if (err == 0) {
		(void)at(d, to_dirfd, to, &to_dir, &other);
		name_find(from_dir, from)->is_gone = true;
		n->n_links--;
		(void)name_add(d, to_dir, to, n);
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

static int do_mkdirat(void *ctx, int dirfd, const char *name, mode_t mode)
{
	struct disk *d = ctx;
	struct node *dir, *n;
	int err;

	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	if (err == 0)
		err = at(d, dirfd, name, &dir, &n);
	if (err == 0) {
		err = -EEXIST;
	} else if (err == -ENOENT && dir != NULL) {
		name_add(d, dir, name, node_new(d, true, mode))->is_durable = true;
		err = 0;
	}
	hfs_mutex_unlock(&d->lock);
	return err;
}

static bool has_ours(const struct node *dir)
{
	for (const struct name *e = dir->names; e != NULL; e = e->next)
		if (strlen(e->text) > 2 && (strcmp(e->text + strlen(e->text) - 2, ".i") == 0 ||
					    strcmp(e->text + strlen(e->text) - 2, ".p") == 0))
			return true;
	return false;
}

static ssize_t do_getdents(void *ctx, int fd, void *buf, size_t cap)
{
	struct disk *d = ctx;
	struct open_file *f;
	size_t used = 0;
	ssize_t err;

	hfs_mutex_lock(&d->lock);
	f = &d->fds[fd - FD_BASE];
	if (d->is_hanging_listing && has_ours(f->node)) {
		d->n_hung++;
		hfs_cond_broadcast(&d->changed);
		while (d->is_hanging_listing)
			hfs_cond_wait(&d->changed, &d->lock);
		d->n_hung--;
	}
	err = enter(d, false);
	for (struct name *e = f->node->names; err == 0 && e != NULL; e = e->next) {
		struct dirent64 *out = (void *)((uint8_t *)buf + used);
		size_t len = (offsetof(struct dirent64, d_name) + strlen(e->text) + 1 + 7) / 8 * 8;

		if (e->is_gone || e->seq <= f->dir_seq)
			continue;
		if (used + len > cap)
			break;
		out->d_ino = e->node->ino;
		out->d_off = (off_t)e->seq;
		out->d_reclen = (unsigned short)len;
		out->d_type = e->node->is_dir ? DT_DIR : DT_REG;
		strcpy(out->d_name, e->text);
		used += len;
		f->dir_seq = e->seq;
	}
	hfs_mutex_unlock(&d->lock);
	return err < 0 ? err : (ssize_t)used;
}

static int do_rewinddir(void *ctx, int fd)
{
	struct disk *d = ctx;

	hfs_mutex_lock(&d->lock);
	d->fds[fd - FD_BASE].dir_seq = 0;
	hfs_mutex_unlock(&d->lock);
	return 0;
}

static int do_fstatfs(void *ctx, int fd, struct statfs *ret)
{
	(void)ctx;
	(void)fd;
	*ret = (struct statfs){.f_type = 0xef53};
	return 0;
}

static int do_fstatvfs(void *ctx, int fd, struct statvfs *ret)
{
	struct disk *d = ctx;
	int err;

	(void)fd;
	hfs_mutex_lock(&d->lock);
	err = enter(d, false);
	*ret = (struct statvfs){.f_bsize = BLOCK,
				.f_frsize = BLOCK,
				.f_blocks = d->bytes / BLOCK,
				.f_bavail = d->used > d->bytes ? 0 : (d->bytes - d->used) / BLOCK,
				.f_files = d->inodes,
				.f_favail = d->used_inodes > d->inodes ? 0 : d->inodes - d->used_inodes};
	hfs_mutex_unlock(&d->lock);
	return err;
}

static int do_lock(void *ctx, int fd)
{
	(void)ctx;
	(void)fd;
	return 0;
}

/* ---- life ---- */

struct disk *disk_new(uint64_t bytes, uint32_t inodes)
{
	struct disk *d = rig_alloc(sizeof(*d));

	d->bytes = bytes;
	d->inodes = inodes;
	hfs_mutex_init(&d->lock, HFS_RANK_LEAF);
	hfs_cond_init(&d->changed);
	d->root = node_new(d, true, 0700);
	d->other_root = node_new(d, true, 0700);
	d->root->n_links = d->other_root->n_links = 1;
	d->io = (struct tier_io){.ctx = d,
				 .openat = do_openat,
				 .close = do_close,
				 .fstat = do_fstat,
				 .fstatat = do_fstatat,
				 .pread = do_pread,
				 .pread_cached = do_pread_cached,
				 .pwrite = do_pwrite,
				 .punch = do_punch,
				 .ftruncate = do_ftruncate,
				 .fdatasync = do_fdatasync,
				 .unlinkat = do_unlinkat,
				 .renameat = do_renameat,
				 .mkdirat = do_mkdirat,
				 .getdents = do_getdents,
				 .rewinddir = do_rewinddir,
				 .fstatfs = do_fstatfs,
				 .fstatvfs = do_fstatvfs,
				 .lock = do_lock};
	return d;
}

/* A name that was renamed leads to the node twice; the node goes with its last name. */
void disk_forget_node(struct node *dir, const struct node *n)
{
	for (struct name *e = dir->names; e != NULL; e = e->next) {
		if (e->node == n)
			e->node = NULL;
		else if (e->node != NULL && e->node->is_dir)
			disk_forget_node(e->node, n);
	}
}

static void tree_free(struct disk *d, struct node *top, struct node *dir)
{
	struct name *e;

	while ((e = dir->names) != NULL) {
		struct node *n = e->node;

		dir->names = e->next;
		free(e);
		if (n == NULL)
			continue;
		disk_forget_node(top, n);
		tree_free(d, top, n);
		disk_node_free(d, n);
	}
}

void disk_free(struct disk *d)
{
	if (d == NULL)
		return;
	tree_free(d, d->root, d->root);
	disk_node_free(d, d->root);
	disk_node_free(d, d->other_root);
	hfs_cond_finish(&d->changed);
	hfs_mutex_finish(&d->lock);
	free(d);
}

const struct tier_io *disk_io(struct disk *d)
{
	return &d->io;
}
