/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book_format.c - see book_format.h.
 */
#include "fs/book_format.h"

#include "cache/base/le.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- attributes ---- */

void book_page_encode(void *buf, uint32_t n_records)
{
	struct book_raw_page *raw = buf;

	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSATTR1", 8);
	HFS_LE_PUT(raw->n_records, n_records);
}

bool book_page_decode(const void *buf, size_t n, uint32_t *ret_n_records)
{
	const struct book_raw_page *raw = buf;

	if (n < sizeof(*raw) || memcmp(raw->magic, "HFSATTR1", 8) != 0)
		return false;
	*ret_n_records = (uint32_t)HFS_LE_GET(raw->n_records);
	return true;
}

void book_record_encode(void *buf, const struct book_record *r)
{
	struct book_raw_record *raw = buf;
	uint8_t *tail = (uint8_t *)buf + sizeof(*raw);
	const struct origin_attr *a = &r->attr;

	HFS_LE_PUT(raw->path_bytes, r->path_bytes);
	HFS_LE_PUT(raw->link_bytes, r->link_bytes);
	HFS_LE_PUT(raw->mode, a->mode);
	HFS_LE_PUT(raw->nlink, a->nlink);
	HFS_LE_PUT(raw->uid, a->uid);
	HFS_LE_PUT(raw->gid, a->gid);
	HFS_LE_PUT(raw->blksize, a->blksize);
	HFS_LE_PUT(raw->dev, a->id.dev);
	HFS_LE_PUT(raw->ino, a->id.ino);
	HFS_LE_PUT(raw->size_bytes, a->id.size_bytes);
	HFS_LE_PUT(raw->mtime_ns, a->id.mtime_ns);
	HFS_LE_PUT(raw->ctime_ns, a->id.ctime_ns);
	HFS_LE_PUT(raw->atime_ns, a->atime_ns);
	HFS_LE_PUT(raw->blocks, a->blocks);
	memcpy(tail, r->path, r->path_bytes);
	if (r->link_bytes > 0)
		memcpy(tail + r->path_bytes, r->link, r->link_bytes);
}

size_t book_record_decode(const void *buf, size_t n, struct book_record *ret)
{
	const struct book_raw_record *raw = buf;

	if (n < sizeof(*raw))
		return 0;
	*ret = (struct book_record){
		.path_bytes = (uint16_t)HFS_LE_GET(raw->path_bytes),
		.link_bytes = (uint16_t)HFS_LE_GET(raw->link_bytes),
		.attr = {.id = {.dev = HFS_LE_GET(raw->dev),
				.ino = HFS_LE_GET(raw->ino),
				.size_bytes = HFS_LE_GET(raw->size_bytes),
				.mtime_ns = (int64_t)HFS_LE_GET(raw->mtime_ns),
				.ctime_ns = (int64_t)HFS_LE_GET(raw->ctime_ns)},
			 .mode = (uint32_t)HFS_LE_GET(raw->mode),
			 .nlink = (uint32_t)HFS_LE_GET(raw->nlink),
			 .uid = (uint32_t)HFS_LE_GET(raw->uid),
			 .gid = (uint32_t)HFS_LE_GET(raw->gid),
			 .blksize = (uint32_t)HFS_LE_GET(raw->blksize),
			 .atime_ns = (int64_t)HFS_LE_GET(raw->atime_ns),
			 .blocks = HFS_LE_GET(raw->blocks)},
	};
	if (book_record_bytes(ret) > n || ret->path_bytes > BOOK_PATH_MAX || ret->link_bytes > BOOK_LINK_MAX ||
	    ret->attr.id.size_bytes > INT64_MAX)
		return 0;
	ret->path = (const char *)buf + sizeof(*raw);
	ret->link = ret->path + ret->path_bytes;
	return book_record_bytes(ret);
}

uint64_t book_record_hash(const struct book_record *r)
{
	const struct origin_attr *a = &r->attr;
	const uint64_t words[] = {a->id.dev, a->id.ino, a->id.size_bytes, (uint64_t)a->id.mtime_ns, (uint64_t)a->id.ctime_ns,
				  a->mode,   a->nlink,	a->uid,		  a->gid,		    r->link_bytes};
	uint64_t hash = XXH3_64bits_withSeed(r->path, r->path_bytes, XXH3_64bits(words, sizeof(words)));

	return r->link_bytes > 0 ? XXH3_64bits_withSeed(r->link, r->link_bytes, hash) : hash;
}

/* ---- listings ---- */

void book_list_encode(void *buf, const struct book_list_head *h)
{
	struct book_raw_list *raw = buf;

	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSLIST1", 8);
	HFS_LE_PUT(raw->stamp, h->stamp);
	HFS_LE_PUT(raw->part_no, h->part_no);
	HFS_LE_PUT(raw->n_parts, h->n_parts);
	HFS_LE_PUT(raw->n_entries, h->n_entries);
}

bool book_list_decode(const void *buf, size_t n, struct book_list_head *ret)
{
	const struct book_raw_list *raw = buf;

	if (n < sizeof(*raw) || memcmp(raw->magic, "HFSLIST1", 8) != 0)
		return false;
	*ret = (struct book_list_head){.stamp = HFS_LE_GET(raw->stamp),
				       .part_no = (uint32_t)HFS_LE_GET(raw->part_no),
				       .n_parts = (uint32_t)HFS_LE_GET(raw->n_parts),
				       .n_entries = (uint32_t)HFS_LE_GET(raw->n_entries)};
	return true;
}

size_t book_entry_encode(void *buf, const char *name, size_t len, uint64_t ino, unsigned type)
{
	struct book_raw_entry *raw = buf;

	HFS_LE_PUT(raw->ino, ino);
	raw->type = (uint8_t)type;
	raw->name_bytes = (uint8_t)len;
	memcpy(raw + 1, name, len);
	return sizeof(*raw) + len;
}

size_t book_entry_decode(const void *buf, size_t n, const char **ret_name, size_t *ret_len, uint64_t *ret_ino, unsigned *ret_type)
{
	const struct book_raw_entry *raw = buf;
	const char *name = (const char *)(raw + 1);

	if (n < sizeof(*raw) || raw->name_bytes == 0 || raw->name_bytes > n - sizeof(*raw) ||
	    memchr(name, '/', raw->name_bytes) || memchr(name, '\0', raw->name_bytes))
		return 0;
	*ret_name = name;
	*ret_len = raw->name_bytes;
	*ret_ino = HFS_LE_GET(raw->ino);
	*ret_type = raw->type;
	return sizeof(*raw) + raw->name_bytes;
}

/* ---- names ---- */

void book_page_name(char *buf, uint32_t no)
{
	(void)snprintf(buf, BOOK_NAME_CAP, "//a/%08x", no);
}

bool book_list_name(char *buf, const char *path, uint32_t part_no)
{
	return snprintf(buf, BOOK_NAME_CAP, "//l/%08x/%s", part_no, path) <= BOOK_PATH_MAX;
}
