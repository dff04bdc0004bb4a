/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/book_format.h - bytes of the book's notes: attributes and listings of an immutable dataset. Pure; docs/disk_format.md is its prose.
 *
 * Notes are proved by the disk tier (cache/tier.h); still, decoders take whatever bytes come and say no. All numbers are little-endian.
 *
 *   "//a/NNNNNNNN"       a page: head, then records one behind the other; N: 8 hex digits
 *   "//l/NNNNNNNN/PATH"  part N of the listing of the directory PATH: head, then entries
 */
#ifndef FS_BOOK_FORMAT_H
#define FS_BOOK_FORMAT_H

#include "cache/origin.h"
#include "cache/tier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOOK_NOTE_BYTES TIER_NOTE_BYTES_MAX
#define BOOK_NAME_CAP 4112 /* of a note */
#define BOOK_PATH_MAX 4080 /* longer ones are not kept */
#define BOOK_LINK_MAX 4095

struct book_raw_page {
	uint8_t magic[8]; /* "HFSATTR1" */
	uint8_t n_records[4];
	uint8_t reserved[4];
};
_Static_assert(sizeof(struct book_raw_page) == 16, "page");

/* Then path and link, not terminated. dev 0: that of the origin's root. */
struct book_raw_record {
	uint8_t path_bytes[2], link_bytes[2];
	uint8_t mode[4], nlink[4], uid[4], gid[4], blksize[4];
	uint8_t dev[8], ino[8], size_bytes[8], mtime_ns[8], ctime_ns[8], atime_ns[8], blocks[8];
};
_Static_assert(sizeof(struct book_raw_record) == 80, "record");
_Static_assert(offsetof(struct book_raw_record, dev) == 24, "record");

struct book_raw_list {
	uint8_t magic[8]; /* "HFSLIST1" */
	uint8_t stamp[8]; /* XXH3-64 of all entries of all parts: parts of two listings are never mixed */
	uint8_t part_no[4], n_parts[4], n_entries[4];
	uint8_t reserved[4];
};
_Static_assert(sizeof(struct book_raw_list) == 32, "list");

struct book_raw_entry { /* then the name */
	uint8_t ino[8], type, name_bytes;
};
_Static_assert(sizeof(struct book_raw_entry) == 10, "entry");

struct book_record {
	struct origin_attr attr; /* dev as stored */
	const char *path, *link; /* not terminated when decoded */
	uint16_t path_bytes, link_bytes;
};

static inline size_t book_record_bytes(const struct book_record *r)
{
	return sizeof(struct book_raw_record) + r->path_bytes + r->link_bytes;
}

void book_page_encode(void *buf, uint32_t n_records);
/* Behind what is there; buf has room for book_record_bytes(). */
void book_record_encode(void *buf, const struct book_record *r);
/* False: not a page. */
bool book_page_decode(const void *buf, size_t n, uint32_t *ret_n_records);
/* n: bytes left. 0: no record. Else its length; pointers lead into buf. */
size_t book_record_decode(const void *buf, size_t n, struct book_record *ret);
/* Of what the record says, without that which changes while the file does not. */
uint64_t book_record_hash(const struct book_record *r);

struct book_list_head {
	uint64_t stamp;
	uint32_t part_no, n_parts, n_entries;
};

void book_list_encode(void *buf, const struct book_list_head *h);
bool book_list_decode(const void *buf, size_t n, struct book_list_head *ret);
size_t book_entry_encode(void *buf, const char *name, size_t len, uint64_t ino, unsigned type); /* its length */
/* 0: no entry. name is not terminated. */
size_t book_entry_decode(const void *buf, size_t n, const char **ret_name, size_t *ret_len, uint64_t *ret_ino, unsigned *ret_type);

void book_page_name(char *buf, uint32_t no); /* cap BOOK_NAME_CAP */
bool book_list_name(char *buf, const char *path, uint32_t part_no); /* false: too long */

#endif
