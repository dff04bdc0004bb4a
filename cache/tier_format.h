/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_format.h - bytes on disk: layouts, encoding, decoding, checksums. Pure. docs/disk_format.md is its prose.
 * Used by tier_*.c and by the tests that forge what they please.
 *
 * All numbers are little-endian. Every structure carries an XXH3-64 of itself, seeded with the salt of this cache and with
 * the place where it belongs, so that a true copy in another place is as invalid as a forgery by the content of a file.
 * Decoders take whatever bytes come and say no.
 *
 *   DIR/hintfs-cache   marker, ASCII          DIR/lock         locked for life
 *   DIR/v1/tier        struct tier_top        DIR/v1/files/    K.d data, K.i index; K: 32 hex digits of the key
 *   DIR/trash-*        being removed          DIR/v1/packs/    N.p; N: 16 hex digits of the pack number
 *   DIR/v1/origins     what is where, for a start without the origin
 */
#ifndef CACHE_TIER_FORMAT_H
#define CACHE_TIER_FORMAT_H

#include "cache/base/err.h"
#include "cache/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TIER_VERSION 1
#define TIER_HASH_XXH3_64 1
#define TIER_MARKER_NAME "hintfs-cache"
#define TIER_MARKER_TEXT "This directory is a hintfs disk cache. hintfs may remove anything below v*/ and trash-*/.\n"
#define TIER_LOCK_NAME "lock"
#define TIER_LOCK_ENDING "ending" /* in its text when the holder was told to end */
#define TIER_VERSION_DIR "v1"
#define TIER_TRASH_PREFIX "trash-"
#define TIER_ORIGINS_NAME "origins" /* in the version's directory */

struct tier_key {
	uint64_t lo, hi;
};

static inline bool tier_key_equal(struct tier_key a, struct tier_key b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

/* ---- DIR/v1/tier: 64 bytes ---- */

struct tier_raw_top {
	uint8_t magic[8]; /* "HFSTIER1" */
	uint8_t version[4];
	uint8_t hash_id[4];
	uint8_t salt[8];
	uint8_t reserved[32];
	uint8_t check[8]; /* XXH3-64 of the 56 bytes before */
};
_Static_assert(sizeof(struct tier_raw_top) == 64, "top");
_Static_assert(offsetof(struct tier_raw_top, salt) == 16, "top");
_Static_assert(offsetof(struct tier_raw_top, check) == 56, "top");

/* ---- K.i: header 4096 bytes, then a record of 32 bytes for each chunk ---- */

#define TIER_HEAD_BYTES 4096
#define TIER_HEAD_PATH_MAX 3976

struct tier_raw_identity {
	uint8_t dev[8], ino[8], size_bytes[8], mtime_ns[8], ctime_ns[8];
};
_Static_assert(sizeof(struct tier_raw_identity) == 40, "identity");

struct tier_raw_head {
	uint8_t magic[8]; /* "HFSIDX1\n" */
	uint8_t version[4];
	uint8_t hash_id[4];
	uint8_t head_bytes[4], record_bytes[4]; /* 4096, 32 */
	uint8_t chunk_bytes[4];
	uint8_t generation[4];
	uint8_t file_id[8]; /* random */
	uint8_t key[16];
	uint8_t dataset[8];
	struct tier_raw_identity identity;
	uint8_t path_bytes[4];
	uint8_t reserved[4];
	uint8_t path[TIER_HEAD_PATH_MAX]; /* the rest zero */
	uint8_t check[8];		  /* of the 4088 bytes before, seed: salt */
};
_Static_assert(sizeof(struct tier_raw_head) == TIER_HEAD_BYTES, "head");
_Static_assert(offsetof(struct tier_raw_head, file_id) == 32, "head");
_Static_assert(offsetof(struct tier_raw_head, identity) == 64, "head");
_Static_assert(offsetof(struct tier_raw_head, path) == 112, "head");
_Static_assert(offsetof(struct tier_raw_head, check) == 4088, "head");

struct tier_raw_record {
	uint8_t generation[4];
	uint8_t len_bytes[4];
	uint8_t flags[2]; /* bit 0: present */
	uint8_t reserved[2];
	uint8_t chunk_no[4];
	uint8_t data_check[8]; /* XXH3-64 of the data, seed: tier_data_seed() */
	uint8_t check[8];      /* of the 24 bytes before, seed: salt ^ file_id */
};
_Static_assert(sizeof(struct tier_raw_record) == 32, "record");
_Static_assert(TIER_HEAD_BYTES % sizeof(struct tier_raw_record) == 0 && 512 % sizeof(struct tier_raw_record) == 0,
	       "a record never crosses a sector");
_Static_assert(offsetof(struct tier_raw_record, data_check) == 16, "record");
_Static_assert(offsetof(struct tier_raw_record, check) == 24, "record");

/* ---- N.p: header 64 bytes, records at multiples of 64, at the end a table once it is sealed ---- */

#define TIER_PACK_BYTES_MAX (UINT32_C(64) << 20) /* where the last record ends at the latest; the table comes behind */
#define TIER_PACK_ALIGN 64
#define TIER_PACK_PATH_MAX 4095

struct tier_raw_pack {
	uint8_t magic[8]; /* "HFSPACK1" */
	uint8_t version[4];
	uint8_t hash_id[4];
	uint8_t pack_no[8];
	uint8_t reserved[32];
	uint8_t check[8]; /* of the 56 bytes before, seed: salt */
};
_Static_assert(sizeof(struct tier_raw_pack) == 64, "pack");

#define TIER_ITEM_LIVE "HPR1"
#define TIER_ITEM_DEAD "HPRX"

/* Then the path, then data_bytes of data, then zeros up to the next multiple of 64. */
struct tier_raw_item {
	uint8_t magic[4]; /* not covered by check, so that 4 bytes make it dead */
	uint8_t path_bytes[4];
	uint8_t data_bytes[4];
	uint8_t off_bytes[4]; /* of this item in the pack */
	uint8_t key[16];
	uint8_t dataset[8];
	struct tier_raw_identity identity;
	uint8_t data_check[8]; /* of the data, seed: tier_data_seed() */
	uint8_t check[8];      /* of bytes 4..87 and the path, seed: salt ^ pack_no */
};
_Static_assert(sizeof(struct tier_raw_item) == 96, "item");
_Static_assert(offsetof(struct tier_raw_item, identity) == 40, "item");
_Static_assert(offsetof(struct tier_raw_item, check) == 88, "item");

/* An entry of the table of a sealed pack. */
struct tier_raw_entry {
	uint8_t key[16];
	uint8_t dataset[8];
	struct tier_raw_identity identity;
	uint8_t off_bytes[4], data_bytes[4], path_bytes[4];
	uint8_t reserved[4];
	uint8_t check[8]; /* of the 80 bytes before, seed: salt ^ pack_no */
};
_Static_assert(sizeof(struct tier_raw_entry) == 88, "entry");

struct tier_raw_trailer { /* the last 64 bytes of a sealed pack */
	uint8_t magic[8]; /* "HFSPEND1" */
	uint8_t pack_no[8];
	uint8_t n_entries[4];
	uint8_t table_off_bytes[4]; /* the table ends where the trailer begins */
	uint8_t reserved[32];
	uint8_t check[8]; /* of the 56 bytes before, seed: salt ^ pack_no */
};
_Static_assert(sizeof(struct tier_raw_trailer) == 64, "trailer");

/* ---- DIR/v1/origins: TIER_ORIGINS_MAX slots ---- */

#define TIER_ORIGINS_MAX 64
#define TIER_ORIGIN_SLOT_BYTES 12288
#define TIER_ORIGIN_TEXT_MAX (TIER_ORIGIN_SLOT_BYTES - 32)

struct tier_raw_origin {
	uint8_t magic[8]; /* "HFSORIG1" */
	uint8_t text_bytes[4];
	uint8_t slot_no[4];
	uint8_t source[8]; /* XXH3-64 of the path of SOURCE, seed: salt */
	uint8_t check[8];  /* of the text, seeded with the check of the 24 bytes before, that one seeded with the salt */
	uint8_t text[TIER_ORIGIN_TEXT_MAX]; /* the bytes that name the origin */
};
_Static_assert(sizeof(struct tier_raw_origin) == TIER_ORIGIN_SLOT_BYTES, "origin");
_Static_assert(offsetof(struct tier_raw_origin, source) == 16, "origin");
_Static_assert(offsetof(struct tier_raw_origin, text) == 32, "origin");

/* ---- in memory ---- */

struct tier_head {
	uint32_t chunk_bytes, generation;
	uint64_t file_id;
	struct tier_key key;
	uint64_t dataset;
	struct hfs_identity id; /* as stored: dev 0 is the origin's root */
	uint32_t path_bytes;
	const char *path; /* decode: inside the raw bytes, not terminated */
};

struct tier_record {
	uint32_t generation, len_bytes, chunk_no;
	uint64_t data_check;
};

struct tier_item {
	bool is_live;
	uint32_t off_bytes, data_bytes, path_bytes;
	struct tier_key key;
	uint64_t dataset;
	struct hfs_identity id;
	uint64_t data_check;
	const char *path; /* encode only */
};

/* From the start of an item to the start of its data, and to the next item. */
static inline uint32_t tier_item_data_off(uint32_t path_bytes)
{
	return (uint32_t)sizeof(struct tier_raw_item) + path_bytes;
}

static inline uint64_t tier_item_total(uint32_t path_bytes, uint64_t data_bytes)
{
	uint64_t n = sizeof(struct tier_raw_item) + path_bytes + data_bytes;

	return (n + TIER_PACK_ALIGN - 1) & ~(uint64_t)(TIER_PACK_ALIGN - 1);
}

uint64_t tier_dataset_hash(uint64_t salt, const void *dataset, size_t n);
struct tier_key tier_key_of(uint64_t dataset, const char *path, size_t path_bytes);
/* place: file_id and generation of a big file, pack_no and offset of an item. */
uint64_t tier_data_seed(uint64_t salt, struct tier_key key, const struct hfs_identity *id, uint64_t place,
			uint32_t generation, uint64_t chunk_no);
uint64_t tier_data_check(uint64_t seed, const void *data, size_t n);

void tier_top_encode(struct tier_raw_top *raw, uint64_t salt);
bool tier_top_decode(const void *raw, size_t n, uint64_t *ret_salt);
void tier_head_encode(struct tier_raw_head *raw, uint64_t salt, const struct tier_head *h);
bool tier_head_decode(const void *raw, size_t n, uint64_t salt, struct tier_head *ret);
void tier_record_encode(struct tier_raw_record *raw, uint64_t salt, uint64_t file_id, const struct tier_record *r);
bool tier_record_decode(const void *raw, uint64_t salt, uint64_t file_id, struct tier_record *ret);
void tier_pack_encode(struct tier_raw_pack *raw, uint64_t salt, uint64_t pack_no);
bool tier_pack_decode(const void *raw, size_t n, uint64_t salt, uint64_t *ret_pack_no);
/* The path is copied behind the header: buf has room for tier_item_data_off(). */
void tier_item_encode(void *buf, uint64_t salt, uint64_t pack_no, const struct tier_item *it);
/* n: bytes at hand. 0: no item. 1: header fits, but the path lies beyond n: come again with *ret_need bytes. 2: a valid item. */
int tier_item_decode(const void *buf, size_t n, uint64_t salt, uint64_t pack_no, uint32_t off_bytes, struct tier_item *ret,
		     size_t *ret_need);
void tier_entry_encode(struct tier_raw_entry *raw, uint64_t salt, uint64_t pack_no, const struct tier_item *it);
bool tier_entry_decode(const void *raw, uint64_t salt, uint64_t pack_no, struct tier_item *ret);
void tier_trailer_encode(struct tier_raw_trailer *raw, uint64_t salt, uint64_t pack_no, uint32_t n, uint32_t table_off);
bool tier_trailer_decode(const void *raw, uint64_t salt, uint64_t pack_no, uint32_t *ret_n, uint32_t *ret_table_off);

uint64_t tier_source_hash(uint64_t salt, const char *source);
/* text: 1 to TIER_ORIGIN_TEXT_MAX bytes. Returns how many bytes of raw are to be written. */
size_t tier_origin_encode(struct tier_raw_origin *raw, uint64_t salt, uint32_t slot_no, uint64_t source, const void *text, size_t n);
/* Length of the text; 0: the slot is free or bad. */
size_t tier_origin_decode(const struct tier_raw_origin *raw, uint64_t salt, uint32_t slot_no, uint64_t *ret_source);

/* Names: 32 hex digits and ".d" / ".i"; 16 hex digits and ".p". cap >= TIER_NAME_CAP. */
#define TIER_NAME_CAP 40
void tier_file_name(char *buf, struct tier_key key, char kind);
bool tier_file_name_parse(const char *name, struct tier_key *ret_key, char *ret_kind);
void tier_pack_name(char *buf, uint64_t pack_no);
bool tier_pack_name_parse(const char *name, uint64_t *ret_pack_no);

#endif
