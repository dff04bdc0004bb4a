/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_big.c - files larger than a chunk: a sparse data file and an index of self-checking records.
 *
 * The bytes of chunk n stand where they stand in the origin's file. All functions do I/O, so none is called under
 * t->lock; the object has a user.
 */
#include "cache/tier_i.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static uint64_t record_off(uint32_t chunk_no)
{
	return TIER_HEAD_BYTES + (uint64_t)chunk_no * sizeof(struct tier_raw_record);
}

static uint64_t chunk_seed(const struct tier *t, const struct tier_big *b, uint32_t chunk_no)
{
	return tier_data_seed(t->salt, b->key, &b->id, b->file_id, b->generation, chunk_no);
}

void tier_big_free(struct tier_big *b)
{
	if (b == NULL)
		return;
	for (uint32_t i = 0; i < b->n_leaves; i++)
		free(b->leaves[i]);
	free(b->leaves);
	free(b);
}

/* What lies there under our name belongs to no entry: it goes. The naming right is held. */
static int create_one(struct tier *t, struct tier_key key, char kind)
{
	char text[TIER_NAME_CAP];
	int fd = -EEXIST;

	tier_file_name(text, key, kind);
	for (int i = 0; i < 2 && fd == -EEXIST; i++) {
		fd = t->io->openat(t->io->ctx, t->fd_files, text, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
		if (fd == -EEXIST)
			HFS_TRY(t->io->unlinkat(t->io->ctx, t->fd_files, text, 0));
	}
	return fd;
}

static void uncreate(struct tier *t, struct tier_key key, char kind, int fd)
{
	char text[TIER_NAME_CAP];

	if (fd < 0)
		return;
	tier_file_name(text, key, kind);
	(void)t->io->close(t->io->ctx, fd);
	(void)t->io->unlinkat(t->io->ctx, t->fd_files, text, 0);
}

static int write_head(struct tier *t, const struct tier_big *b, const struct tier_name *name, int fd_index)
{
	struct tier_raw_head *raw = malloc(sizeof(*raw));
	int err;

	if (raw == NULL)
		return -ENOMEM;
	tier_head_encode(raw, t->salt,
			 &(struct tier_head){.chunk_bytes = b->chunk_bytes,
					     .generation = b->generation,
					     .file_id = b->file_id,
					     .key = b->key,
					     .dataset = t->dataset,
					     .id = b->id,
					     .path = name->path,
					     .path_bytes = name->path_bytes});
	err = tier_write_full(t, fd_index, raw, sizeof(*raw), 0);
	free(raw);
	return err;
}

int tier_big_create(struct tier *t, const struct tier_name *name, struct tier_big **ret_b)
{
	struct tier_big *b = calloc(1, sizeof(*b));
	int fd_data = -1, fd_index = -1, err;

	if (b == NULL)
		return -ENOMEM;
	tier_obj_init(&b->obj, false);
	b->key = name->key;
	b->id = name->id;
	b->chunk_bytes = t->cfg.chunk_bytes;
	b->n_chunks = (uint32_t)hfs_div_up(name->id.size_bytes, b->chunk_bytes);
	b->file_id = tier_random();
	b->generation = (uint32_t)tier_random() | 1;
	err = fd_index = create_one(t, b->key, 'i');
	if (err < 0)
		goto out;
	err = write_head(t, b, name, fd_index);
	if (err < 0)
		goto out;
	err = fd_data = create_one(t, b->key, 'd');
	if (err < 0)
		goto out;
	/* Writing below the end keeps file systems from allocating ahead of it, which du would count. */
	err = t->io->ftruncate(t->io->ctx, fd_data, b->id.size_bytes);
out:
	if (err < 0) {
		uncreate(t, b->key, 'd', fd_data);
		uncreate(t, b->key, 'i', fd_index);
		free(b);
		return err;
	}
	tier_obj_adopt_fds(t, &b->obj, fd_data, fd_index);
	*ret_b = b;
	return 0;
}

int tier_big_check_open(struct tier *t, struct tier_big *b, int fd_index, const struct tier_name *name)
{
	struct tier_raw_head *raw = malloc(sizeof(*raw));
	struct tier_head h;
	struct tier_key key;
	int err;

	if (raw == NULL)
		return -ENOMEM;
	err = tier_read_full(t, fd_index, raw, sizeof(*raw), 0);
	if (err == -ENODATA || (err == 0 && !tier_head_decode(raw, sizeof(*raw), t->salt, &h)))
		err = -EBADMSG;
	if (err != 0)
		goto out;
	key = tier_key_of(h.dataset, h.path, h.path_bytes);
	if (h.file_id != b->file_id || h.generation != b->generation || h.chunk_bytes != b->chunk_bytes ||
	    !tier_key_equal(h.key, b->key) || !tier_key_equal(key, b->key) || !hfs_identity_equal(&h.id, &b->id))
		err = -EBADMSG;
	else if (name != NULL && (h.dataset != t->dataset || h.path_bytes != name->path_bytes ||
				  memcmp(h.path, name->path, h.path_bytes) != 0))
		err = -EBADMSG;
out:
	free(raw);
	return err;
}

/* Past the page cache what is read once costs no second copy and pushes nothing out. Whatever is odd there (alignment, a short
 * answer) is read the usual way; an error is one. */
static int read_data(struct tier *t, struct tier_big *b, uint32_t chunk_no, void *buf, uint32_t len_bytes, bool is_direct)
{
	uint64_t off_bytes = (uint64_t)chunk_no * b->chunk_bytes;
	ssize_t got;

	if (is_direct && tier_obj_direct(t, &b->obj)) {
		tier_called(t);
		got = t->io->pread(t->io->ctx, b->obj.fd_direct, buf, hfs_round_up(len_bytes, TIER_LOAN_ALIGN), off_bytes);
		tier_called(t);
		if (got >= (ssize_t)len_bytes)
			return 0;
		if (got < 0 && got != -EINVAL && got != -EINTR)
			return (int)got;
	}
	return tier_read_full(t, b->obj.fd_data, buf, len_bytes, off_bytes);
}

int tier_big_read(struct tier *t, struct tier_big *b, uint32_t chunk_no, void *buf, bool is_direct)
{
	uint32_t len_bytes = hfs_chunk_len(b->id.size_bytes, b->chunk_bytes, chunk_no);
	struct tier_raw_record raw;
	struct tier_record r;
	int err = tier_read_full(t, b->obj.fd_index, &raw, sizeof(raw), record_off(chunk_no));

	if (err == 0 && (!tier_record_decode(&raw, t->salt, b->file_id, &r) || r.generation != b->generation ||
			 r.chunk_no != chunk_no || r.len_bytes != len_bytes))
		err = -EBADMSG;
	if (err == 0)
		err = read_data(t, b, chunk_no, buf, len_bytes, is_direct);
	if (err == 0 && tier_data_check(chunk_seed(t, b, chunk_no), buf, len_bytes) != r.data_check)
		err = -EBADMSG;
	return err == -ENODATA ? -EBADMSG : err;
}

static int punch_chunk(struct tier *t, struct tier_big *b, uint32_t chunk_no)
{
	return t->io->punch(t->io->ctx, b->obj.fd_data, (uint64_t)chunk_no * b->chunk_bytes, b->chunk_bytes);
}

int tier_big_write(struct tier *t, struct tier_big *b, uint32_t chunk_no, const void *data, uint32_t len_bytes)
{
	struct tier_record r = {.generation = b->generation,
				.len_bytes = len_bytes,
				.chunk_no = chunk_no,
				.data_check = tier_data_check(chunk_seed(t, b, chunk_no), data, len_bytes)};
	struct tier_raw_record raw;
	int err = tier_write_full(t, b->obj.fd_data, data, len_bytes, (uint64_t)chunk_no * b->chunk_bytes);

	if (err == 0) {
		tier_record_encode(&raw, t->salt, b->file_id, &r);
		err = tier_write_full(t, b->obj.fd_index, &raw, sizeof(raw), record_off(chunk_no));
	}
	if (err < 0)
		(void)punch_chunk(t, b, chunk_no);
	return err;
}

int tier_big_erase(struct tier *t, struct tier_big *b, uint32_t chunk_no)
{
	static const struct tier_raw_record zero;
	int err = tier_write_full(t, b->obj.fd_index, &zero, sizeof(zero), record_off(chunk_no));
	int err_punch = punch_chunk(t, b, chunk_no);

	return err < 0 ? err : err_punch;
}
