/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_adopt.c - what an earlier process left: read in the background, big files also when a reader wants them
 * first. Believed for nothing but its existence.
 *
 * Packs first (a sealed one by its table, one read; another by a scan from item to item), then big files (header and records).
 * What carries our name but is not ours in form is removed; other names are left alone and counted in the budget. Nothing is
 * admitted before adoption is complete, so that the budget can be held.
 */
#include "cache/tier_i.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW_BYTES 65536
#define TRASH_SLICE 256

static bool may_go_on(struct tier *t)
{
	bool may;

	workq_progress(t->bg);
	hfs_mutex_lock(&t->lock);
	may = !t->is_stopping && t->state != TIER_OFF;
	hfs_mutex_unlock(&t->lock);
	return may;
}

static void count_bad(struct tier *t)
{
	hfs_mutex_lock(&t->lock);
	t->stats.bad++;
	hfs_mutex_unlock(&t->lock);
}

static int open_ours(struct tier *t, int dirfd, const char *name, struct stat *ret_st)
{
	int fd = t->io->openat(t->io->ctx, dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0), err;

	if (fd < 0)
		return fd == -ELOOP || fd == -ENXIO ? -EBADMSG : fd;
	err = tier_check_file(t, fd, ret_st);
	if (err < 0)
		(void)t->io->close(t->io->ctx, fd);
	return err < 0 ? err : fd;
}

/* ---- items of packs ---- */

/* A later item of the same path wins; files of other datasets are kept as well. */
static int adopt_item(struct tier *t, struct tier_pack *p, const struct tier_item *it)
{
	struct tier_entry *e;
	int dataset, err = 0;

	hfs_mutex_lock(&t->lock);
	dataset = tier_dataset_index(t, it->dataset);
	e = dataset < 0 ? NULL : tier_entry_find(t, it->key);
	if (e != NULL && (e->is_big || t->packs[e->small.pack]->pack_no > p->pack_no))
		goto out;
	if (e != NULL)
		tier_entry_leave(t, e);
	else if (dataset >= 0)
		e = tier_entry_add(t, it->key);
	if (e == NULL) {
		err = dataset < 0 ? 0 : -ENOMEM;
		goto out;
	}
	e->id = it->id;
	e->path_bytes = (uint16_t)it->path_bytes;
	e->dataset = (uint16_t)dataset & 0x7fff;
	tier_entry_join(t, e, p, it->off_bytes);
out:
	hfs_mutex_unlock(&t->lock);
	return err;
}

/* 1: done by the table. 0: there is none that holds. */
static int adopt_table(struct tier *t, struct tier_pack *p, int fd, uint64_t size_bytes)
{
	struct tier_raw_trailer trailer;
	struct tier_raw_entry *table;
	struct tier_item it;
	uint32_t n, off_bytes;
	int err;

	if (size_bytes < sizeof(struct tier_raw_pack) + sizeof(trailer))
		return 0;
	HFS_TRY(tier_read_full(t, fd, &trailer, sizeof(trailer), size_bytes - sizeof(trailer)));
	if (!tier_trailer_decode(&trailer, t->salt, p->pack_no, &n, &off_bytes) || off_bytes > TIER_PACK_BYTES_MAX ||
	    n > TIER_PACK_BYTES_MAX / sizeof(struct tier_raw_item) ||
	    off_bytes + (uint64_t)n * sizeof(*table) + sizeof(trailer) != size_bytes)
		return 0;
	table = malloc((n + 1) * sizeof(*table));
	if (table == NULL)
		return -ENOMEM;
	err = tier_read_full(t, fd, table, n * sizeof(*table), off_bytes);
	for (uint32_t i = 0; err == 0 && i < n; i++)
		err = tier_entry_decode(&table[i], t->salt, p->pack_no, &it) ? adopt_item(t, p, &it) : -EBADMSG;
	free(table);
	p->end_bytes = off_bytes;
	return err == -EBADMSG ? 0 : err < 0 ? err : 1; /* a bad table: the scan finds the same */
}

struct window {
	uint8_t *buf;
	uint64_t from, to; /* of the file */
};

/* At least `need` bytes at off in the window, or as many as there are. Returns how many. */
static int64_t look(struct tier *t, int fd, struct window *w, uint64_t off, size_t need, uint64_t size_bytes)
{
	uint64_t to;
	int err;

	if (off >= size_bytes)
		return 0;
	if (off >= w->from && off + need <= w->to)
		return (int64_t)(w->to - off);
	/* After a hop read little: the next item is far. */
	to = hfs_min_u64(size_bytes, off + hfs_max_u64(need, off == w->to ? WINDOW_BYTES : 4096));
	err = tier_read_full(t, fd, w->buf, to - off, off);
	if (err < 0)
		return err;
	w->from = off;
	w->to = to;
	return (int64_t)(to - off);
}

/* From item to item; where none is, on by 64 bytes until one is found: a hole that a crash left loses only itself. */
static int adopt_scan(struct tier *t, struct tier_pack *p, int fd, uint64_t size_bytes)
{
	struct window w = {.buf = malloc(WINDOW_BYTES)};
	uint64_t off = sizeof(struct tier_raw_pack);
	size_t need = sizeof(struct tier_raw_item);
	struct tier_item it;
	int64_t n = 0;
	int got, err = 0;

	if (w.buf == NULL)
		return -ENOMEM;
	size_bytes = hfs_min_u64(size_bytes, TIER_PACK_BYTES_MAX);
	while (err == 0 && (n = look(t, fd, &w, off, need, size_bytes)) > 0) {
		got = tier_item_decode(w.buf + (off - w.from), (size_t)n, t->salt, p->pack_no, (uint32_t)off, &it, &need);
		if (got == 1 && (uint64_t)n >= hfs_min_u64(need, size_bytes - off))
			got = 0; /* the file ends inside it */
		if (got == 1)
			continue;
		need = sizeof(struct tier_raw_item);
		if (got == 0) {
			off += TIER_PACK_ALIGN;
			continue;
		}
		if (it.is_live)
			err = adopt_item(t, p, &it);
		off += tier_item_total(it.path_bytes, it.data_bytes);
		p->end_bytes = (uint32_t)off;
	}
	free(w.buf);
	return n < 0 ? (int)n : err;
}

static int adopt_pack(struct tier *t, const char *name, uint64_t pack_no)
{
	struct tier_pack *p;
	struct stat st;
	int fd = open_ours(t, t->fd_packs, name, &st), err = fd < 0 ? fd : 0;

	if (fd < 0)
		return err;
	p = tier_pack_new(pack_no);
	err = p == NULL ? -ENOMEM : tier_pack_check_open(t, p, fd);
	if (err < 0) {
		free(p);
		(void)t->io->close(t->io->ctx, fd);
		return err;
	}
	p->obj.alloc_bytes = (uint64_t)st.st_blocks * 512;
	p->is_full = p->is_sealed = true; /* no more is appended; a table comes only to what this process wrote */
	hfs_mutex_lock(&t->lock);
	err = tier_pack_add_locked(t, p);
	if (err == 0) {
		tier_obj_link_locked(t, &p->obj, false);
		p->obj.n_users++;
		t->last_pack_no = hfs_max_u64(t->last_pack_no, pack_no);
	}
	hfs_mutex_unlock(&t->lock);
	if (err < 0) {
		free(p);
		(void)t->io->close(t->io->ctx, fd);
		return err;
	}
	err = adopt_table(t, p, fd, (uint64_t)st.st_size);
	if (err == 0)
		err = adopt_scan(t, p, fd, (uint64_t)st.st_size);
	(void)t->io->close(t->io->ctx, fd);
	hfs_mutex_lock(&t->lock);
	p->obj.n_users--;
	if (p->n_live == 0)
		tier_obj_kill_locked(t, &p->obj);
	hfs_mutex_unlock(&t->lock);
	return err < 0 ? err : 0;
}

/* ---- big files ---- */

/* So that it is bad once, and gives its space back. */
static void erase_record(struct tier *t, struct tier_big *b, uint32_t chunk_no)
{
	struct tier_op *op = malloc(sizeof(*op));

	if (op == NULL)
		return;
	hfs_mutex_lock(&t->lock);
	tier_drop_chunk_locked(t, b, chunk_no, op);
	hfs_mutex_unlock(&t->lock);
}

/* First for what is good, before anybody sees the file; then, if any is bad, to erase that. *ret_n_bad. */
static int adopt_records(struct tier *t, struct tier_big *b, int fd, uint64_t size_bytes, bool is_erasing, uint32_t *ret_n_bad)
{
	const uint32_t per = WINDOW_BYTES / sizeof(struct tier_raw_record);
	struct tier_raw_record *raw = malloc(WINDOW_BYTES), zero = {0};
	uint64_t n = (size_bytes - TIER_HEAD_BYTES) / sizeof(*raw);
	struct tier_record r;
	int err = 0;

	if (raw == NULL)
		return -ENOMEM;
	n = hfs_min_u64(n, b->n_chunks);
	for (uint64_t from = 0; err == 0 && from < n; from += per) {
		uint32_t here = (uint32_t)hfs_min_u64(per, n - from);

		err = tier_read_full(t, fd, raw, here * sizeof(*raw), TIER_HEAD_BYTES + from * sizeof(*raw));
		for (uint32_t i = 0; err == 0 && i < here; i++) {
			if (memcmp(&raw[i], &zero, sizeof(zero)) == 0)
				continue;
			if (!tier_record_decode(&raw[i], t->salt, b->file_id, &r) || r.generation != b->generation ||
			    r.chunk_no != from + i) {
				++*ret_n_bad;
				if (is_erasing) {
					count_bad(t);
					erase_record(t, b, (uint32_t)(from + i));
				}
				continue;
			}
			if (is_erasing)
				continue;
			hfs_mutex_lock(&t->lock);
			err = tier_big_set(t, b, r.chunk_no);
			hfs_mutex_unlock(&t->lock);
		}
	}
	free(raw);
	return err;
}

static int link_big(struct tier *t, struct tier_big *b, uint64_t dataset)
{
	struct tier_op *op = malloc(sizeof(*op));
	struct tier_entry *e;
	int err;

	if (op == NULL)
		return -ENOMEM;
	hfs_mutex_lock(&t->lock);
	err = tier_dataset_index(t, dataset);
	/* A small file of that path: one of the two is older. A big one that was superseded is unlinked, while an item may stand in
	 * its pack's table after it died: the big one stays. */
	e = err < 0 ? NULL : tier_entry_find(t, b->key);
	if (e != NULL && e->is_big) {
		err = -EEXIST; /* a reader was faster */
	} else if (e != NULL) {
		tier_drop_item_locked(t, e, op);
		op = NULL;
	}
	b->dataset = err < 0 ? 0 : (uint32_t)err;
	e = err < 0 ? NULL : tier_entry_add(t, b->key);
	if (e != NULL) {
		e->id = b->id;
		e->big = b;
		e->is_big = 1;
		e->dataset = b->dataset & 0x7fff;
		tier_obj_link_locked(t, &b->obj, false);
		b->obj.n_users++;
	} else if (err >= 0) {
		err = -ENOMEM;
	}
	hfs_mutex_unlock(&t->lock);
	free(op);
	return err < 0 ? err : 0;
}

static int read_head(struct tier *t, int fd, struct tier_key key, struct tier_big **ret_b, uint64_t *ret_dataset)
{
	struct tier_raw_head *raw = malloc(sizeof(*raw));
	struct tier_head h;
	struct tier_big *b;
	int err = raw == NULL ? -ENOMEM : tier_read_full(t, fd, raw, sizeof(*raw), 0);

	if (err == -ENODATA || (err == 0 && (!tier_head_decode(raw, sizeof(*raw), t->salt, &h) || !tier_key_equal(h.key, key) ||
					     hfs_div_up(h.id.size_bytes, h.chunk_bytes) > TIER_CHUNKS_MAX)))
		err = -EBADMSG;
	b = err != 0 ? NULL : calloc(1, sizeof(*b));
	if (b != NULL) {
		tier_obj_init(&b->obj, false);
		b->key = key;
		b->file_id = h.file_id;
		b->id = h.id;
		b->chunk_bytes = h.chunk_bytes;
		b->generation = h.generation;
		b->n_chunks = (uint32_t)hfs_div_up(h.id.size_bytes, h.chunk_bytes);
		*ret_b = b;
		*ret_dataset = h.dataset;
	} else if (err == 0) {
		err = -ENOMEM;
	}
	free(raw);
	return err;
}

static int adopt_big(struct tier *t, const char *name, struct tier_key key)
{
	char text[TIER_NAME_CAP];
	struct tier_big *b = NULL;
	struct stat index, data;
	uint64_t dataset = 0;
	uint32_t n_bad = 0;
	int fd = open_ours(t, t->fd_files, name, &index), err = fd < 0 ? fd : 0;

	if (fd < 0)
		return err;
	tier_file_name(text, key, 'd');
	err = t->io->fstatat(t->io->ctx, t->fd_files, text, &data, AT_SYMLINK_NOFOLLOW);
	if (err == -ENOENT || (err == 0 && !S_ISREG(data.st_mode)))
		err = -EBADMSG;
	if (err == 0)
		err = read_head(t, fd, key, &b, &dataset);
	if (err == 0) {
		b->obj.alloc_bytes = ((uint64_t)index.st_blocks + (uint64_t)data.st_blocks) * 512;
		err = adopt_records(t, b, fd, (uint64_t)index.st_size, false, &n_bad);
		if (err == 0)
			err = link_big(t, b, dataset);
		if (err < 0) {
			hfs_mutex_lock(&t->lock);
			t->stats.chunks -= b->n_present;
			hfs_mutex_unlock(&t->lock);
			tier_big_free(b);
			b = NULL;
		}
	}
	if (err == 0 && n_bad > 0)
		err = adopt_records(t, b, fd, (uint64_t)index.st_size, true, &n_bad);
	(void)t->io->close(t->io->ctx, fd);
	if (b == NULL)
		return err;
	hfs_mutex_lock(&t->lock);
	tier_obj_release_locked(t, &b->obj);
	hfs_mutex_unlock(&t->lock);
	return err;
}

/* ---- directories ---- */

static void count_foreign(struct tier *t, int dirfd, const char *name)
{
	struct stat st;

	if (t->io->fstatat(t->io->ctx, dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	hfs_mutex_lock(&t->lock);
	t->trash_bytes += (uint64_t)st.st_blocks * 512;
	hfs_mutex_unlock(&t->lock);
}

/* Names of ours that lead to nothing usable. */
static void remove_bad(struct tier *t, int dirfd, const char *name, bool is_bad)
{
	if (is_bad)
		count_bad(t);
	if (!tier_naming_enter(t))
		return;
	if (t->io->unlinkat(t->io->ctx, dirfd, name, 0) < 0)
		count_foreign(t, dirfd, name);
	tier_naming_leave(t);
}

/* Adoption that was broken off begins anew. */
static bool is_known_big(struct tier *t, struct tier_key key)
{
	const struct tier_entry *e;
	bool is_known;

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, key);
	is_known = e != NULL && e->is_big;
	hfs_mutex_unlock(&t->lock);
	return is_known;
}

static bool is_known_pack(struct tier *t, uint64_t pack_no)
{
	bool is_known = false;

	hfs_mutex_lock(&t->lock);
	for (uint32_t i = 0; t->is_adopting_again && i < t->n_packs; i++)
		is_known = is_known || (t->packs[i] != NULL && t->packs[i]->pack_no == pack_no);
	hfs_mutex_unlock(&t->lock);
	return is_known;
}

static int adopt_file(struct tier *t, const char *name)
{
	char text[TIER_NAME_CAP];
	struct tier_key key;
	struct stat st;
	char kind;
	int err;

	if (!tier_file_name_parse(name, &key, &kind)) {
		count_foreign(t, t->fd_files, name);
		return 0;
	}
	if (kind == 'd') { /* with its index, or left over */
		tier_file_name(text, key, 'i');
		err = t->io->fstatat(t->io->ctx, t->fd_files, text, &st, AT_SYMLINK_NOFOLLOW);
		if (err == -ENOENT)
			remove_bad(t, t->fd_files, name, false);
		return err == -ENOENT ? 0 : err;
	}
	if (is_known_big(t, key))
		return 0;
	err = adopt_big(t, name, key);
	if (err == -EEXIST)
		return 0;
	if (err != -EBADMSG)
		return err;
	remove_bad(t, t->fd_files, name, true);
	tier_file_name(text, key, 'd');
	if (t->io->fstatat(t->io->ctx, t->fd_files, text, &st, AT_SYMLINK_NOFOLLOW) == 0)
		remove_bad(t, t->fd_files, text, false);
	return 0;
}

static int adopt_pack_file(struct tier *t, const char *name)
{
	uint64_t pack_no;
	int err;

	if (!tier_pack_name_parse(name, &pack_no)) {
		count_foreign(t, t->fd_packs, name);
		return 0;
	}
	if (is_known_pack(t, pack_no))
		return 0;
	err = adopt_pack(t, name, pack_no);
	if (err == -EBADMSG)
		remove_bad(t, t->fd_packs, name, true);
	return err == -EBADMSG ? 0 : err;
}

static bool adopt_dir(struct tier *t, int fd, int (*one)(struct tier *t, const char *name))
{
	char *buf = malloc(WINDOW_BYTES);
	ssize_t n = buf == NULL ? -ENOMEM : t->io->rewinddir(t->io->ctx, fd);
	int err = (int)n;
	bool may = err == 0;

	while (may && (n = t->io->getdents(t->io->ctx, fd, buf, WINDOW_BYTES)) > 0) {
		for (ssize_t at = 0; may && at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);

			at += d->d_reclen;
			if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
				continue;
			err = one(t, d->d_name);
			if (err < 0)
				tier_error(t, err, false);
			may = may_go_on(t);
		}
	}
	free(buf);
	if (n < 0)
		tier_error(t, (int)n, false);
	return may && n == 0;
}

void tier_adopt_one(struct tier *t, struct tier_key key)
{
	char text[TIER_NAME_CAP];
	int err;

	if (is_known_big(t, key))
		return;
	tier_file_name(text, key, 'i');
	err = adopt_big(t, text, key);
	if (err < 0 && err != -ENOENT && err != -EBADMSG && err != -EEXIST) /* what is bad is found again, and removed */
		tier_error(t, err, false);
}

/* ---- trash ---- */

struct trash {
	struct tier *t;
	int left; /* entries of this slice */
	bool is_counting;
	uint64_t bytes;
};

static int open_sub(struct tier *t, int dirfd, const char *name)
{
	return t->io->openat(t->io->ctx, dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
}

/* Empties (or measures) a directory; false: more is left. Links are removed, never followed; other file systems not entered. */
static bool empty_dir(struct trash *r, int fd, dev_t dev, int depth)
{
	struct tier *t = r->t;
	char buf[4096] __attribute__((aligned(8)));
	struct stat st;
	ssize_t n = t->io->rewinddir(t->io->ctx, fd);
	int sub;

	if (n < 0 || depth > 32)
		return false;
	while ((n = t->io->getdents(t->io->ctx, fd, buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);

			at += d->d_reclen;
			if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
				continue;
			if (r->left-- <= 0)
				return false;
			if (t->io->fstatat(t->io->ctx, fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != dev)
				continue;
			if (S_ISDIR(st.st_mode)) {
				sub = open_sub(t, fd, d->d_name);
				if (sub < 0)
					continue;
				bool is_empty = empty_dir(r, sub, dev, depth + 1);

				(void)t->io->close(t->io->ctx, sub);
				if (!is_empty)
					return false;
			}
			if (!r->is_counting &&
			    t->io->unlinkat(t->io->ctx, fd, d->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0)
				continue;
			if (st.st_nlink <= 1 || S_ISDIR(st.st_mode))
				r->bytes += (uint64_t)st.st_blocks * 512;
		}
	}
	return n == 0;
}

static void each_trash(struct tier *t, struct trash *r)
{
	char buf[4096] __attribute__((aligned(8)));
	struct stat st;
	ssize_t n;
	int fd, at_fd = open_sub(t, t->fd_dir, "."); /* a position of its own */

	if (at_fd < 0)
		return;
	while ((n = t->io->getdents(t->io->ctx, at_fd, buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *d = (const void *)(buf + at);

			at += d->d_reclen;
			if (strncmp(d->d_name, TIER_TRASH_PREFIX, strlen(TIER_TRASH_PREFIX)) != 0)
				continue;
			fd = open_sub(t, t->fd_dir, d->d_name);
			if (fd < 0)
				continue;
			if (t->io->fstat(t->io->ctx, fd, &st) == 0 && st.st_uid == geteuid() && empty_dir(r, fd, st.st_dev, 0)) {
				r->bytes += (uint64_t)st.st_blocks * 512;
				if (!r->is_counting)
					(void)t->io->unlinkat(t->io->ctx, t->fd_dir, d->d_name, AT_REMOVEDIR);
			}
			(void)t->io->close(t->io->ctx, fd);
		}
	}
	(void)t->io->close(t->io->ctx, at_fd);
}

/* Some entries at a time, from care. */
void tier_trash_slice(struct tier *t)
{
	struct trash r = {.t = t, .left = TRASH_SLICE};

	each_trash(t, &r);
	hfs_mutex_lock(&t->lock);
	t->trash_bytes -= hfs_min_u64(t->trash_bytes, r.bytes);
	t->has_trash = r.left < TRASH_SLICE;
	hfs_mutex_unlock(&t->lock);
}

void tier_adopt_main(void *arg)
{
	struct tier *t = arg;
	struct trash r = {.t = t, .left = 1 << 30, .is_counting = true};
	bool is_done, is_telling = false;

	each_trash(t, &r);
	hfs_mutex_lock(&t->lock);
	t->trash_bytes += r.bytes;
	t->has_trash = r.left < 1 << 30 || r.bytes > 0;
	hfs_mutex_unlock(&t->lock);
	tier_space_measure(t);
	is_done = adopt_dir(t, t->fd_packs, adopt_pack_file);
	if (is_done) {
		hfs_mutex_lock(&t->lock);
		t->are_packs_adopted = true;
		hfs_cond_broadcast(&t->changed);
		hfs_mutex_unlock(&t->lock);
		is_done = adopt_dir(t, t->fd_files, adopt_file);
	}
	tier_space_measure(t);
	hfs_mutex_lock(&t->lock);
	t->is_adopting = false;
	t->is_adopting_again = !is_done;
	if (is_done && !t->is_adopted) {
		t->is_adopted = is_telling = true;
		if (t->state == TIER_ADOPTING)
			t->state = TIER_ON;
	}
	tier_care_soon_locked(t);
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
	if (is_telling && t->cfg.cb.adopted != NULL)
		t->cfg.cb.adopted(t->cfg.cb.ctx);
}
