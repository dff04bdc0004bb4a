/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_format.c - see tier_format.h.
 */
#include "cache/tier_format.h"

#include "cache/base/arith.h"
#include "cache/base/le.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static void put_key(uint8_t raw[16], struct tier_key key)
{
	hfs_le_put(raw, key.lo, 8);
	hfs_le_put(raw + 8, key.hi, 8);
}

static struct tier_key get_key(const uint8_t raw[16])
{
	return (struct tier_key){.lo = hfs_le_get(raw, 8), .hi = hfs_le_get(raw + 8, 8)};
}

static void put_identity(struct tier_raw_identity *raw, const struct hfs_identity *id)
{
	HFS_LE_PUT(raw->dev, id->dev);
	HFS_LE_PUT(raw->ino, id->ino);
	HFS_LE_PUT(raw->size_bytes, id->size_bytes);
	HFS_LE_PUT(raw->mtime_ns, id->mtime_ns);
	HFS_LE_PUT(raw->ctime_ns, id->ctime_ns);
}

static struct hfs_identity get_identity(const struct tier_raw_identity *raw)
{
	return (struct hfs_identity){.dev = HFS_LE_GET(raw->dev),
				     .ino = HFS_LE_GET(raw->ino),
				     .size_bytes = HFS_LE_GET(raw->size_bytes),
				     .mtime_ns = (int64_t)HFS_LE_GET(raw->mtime_ns),
				     .ctime_ns = (int64_t)HFS_LE_GET(raw->ctime_ns)};
}

uint64_t tier_dataset_hash(uint64_t salt, const void *dataset, size_t n)
{
	return XXH3_64bits_withSeed(dataset, n, salt);
}

struct tier_key tier_key_of(uint64_t dataset, const char *path, size_t path_bytes)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(path, path_bytes, dataset);

	return (struct tier_key){.lo = h.low64, .hi = h.high64};
}

uint64_t tier_data_seed(uint64_t salt, struct tier_key key, const struct hfs_identity *id, uint64_t place,
			uint32_t generation, uint64_t chunk_no)
{
	uint8_t raw[84];

	put_key(raw, key);
	put_identity((struct tier_raw_identity *)(raw + 16), id);
	hfs_le_put(raw + 56, place, 8);
	hfs_le_put(raw + 64, generation, 4);
	hfs_le_put(raw + 68, chunk_no, 8);
	hfs_le_put(raw + 76, salt, 8);
	return XXH3_64bits(raw, sizeof(raw));
}

uint64_t tier_data_check(uint64_t seed, const void *data, size_t n)
{
	return XXH3_64bits_withSeed(data, n, seed);
}

/* ---- top ---- */

void tier_top_encode(struct tier_raw_top *raw, uint64_t salt)
{
	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSTIER1", 8);
	HFS_LE_PUT(raw->version, TIER_VERSION);
	HFS_LE_PUT(raw->hash_id, TIER_HASH_XXH3_64);
	HFS_LE_PUT(raw->salt, salt);
	HFS_LE_PUT(raw->check, XXH3_64bits(raw, offsetof(struct tier_raw_top, check)));
}

bool tier_top_decode(const void *buf, size_t n, uint64_t *ret_salt)
{
	const struct tier_raw_top *raw = buf;

	if (n != sizeof(*raw) || memcmp(raw->magic, "HFSTIER1", 8) != 0 || HFS_LE_GET(raw->version) != TIER_VERSION ||
	    HFS_LE_GET(raw->hash_id) != TIER_HASH_XXH3_64)
		return false;
	if (HFS_LE_GET(raw->check) != XXH3_64bits(raw, offsetof(struct tier_raw_top, check)))
		return false;
	*ret_salt = HFS_LE_GET(raw->salt);
	return true;
}

/* ---- origins ---- */

uint64_t tier_source_hash(uint64_t salt, const char *source)
{
	return XXH3_64bits_withSeed(source, strlen(source), salt);
}

static uint64_t origin_check(const struct tier_raw_origin *raw, uint64_t salt, size_t n)
{
	uint64_t head = XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_origin, check), salt);

	return XXH3_64bits_withSeed(raw->text, n, head);
}

size_t tier_origin_encode(struct tier_raw_origin *raw, uint64_t salt, uint32_t slot_no, uint64_t source, const void *text, size_t n)
{
	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSORIG1", 8);
	HFS_LE_PUT(raw->text_bytes, n);
	HFS_LE_PUT(raw->slot_no, slot_no);
	HFS_LE_PUT(raw->source, source);
	memcpy(raw->text, text, n);
	HFS_LE_PUT(raw->check, origin_check(raw, salt, n));
	return offsetof(struct tier_raw_origin, text) + n;
}

size_t tier_origin_decode(const struct tier_raw_origin *raw, uint64_t salt, uint32_t slot_no, uint64_t *ret_source)
{
	size_t n = HFS_LE_GET(raw->text_bytes);

	if (memcmp(raw->magic, "HFSORIG1", 8) != 0 || n == 0 || n > sizeof(raw->text) || HFS_LE_GET(raw->slot_no) != slot_no ||
	    HFS_LE_GET(raw->check) != origin_check(raw, salt, n))
		return 0;
	*ret_source = HFS_LE_GET(raw->source);
	return n;
}

/* ---- big files ---- */

void tier_head_encode(struct tier_raw_head *raw, uint64_t salt, const struct tier_head *h)
{
	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSIDX1\n", 8);
	HFS_LE_PUT(raw->version, TIER_VERSION);
	HFS_LE_PUT(raw->hash_id, TIER_HASH_XXH3_64);
	HFS_LE_PUT(raw->head_bytes, TIER_HEAD_BYTES);
	HFS_LE_PUT(raw->record_bytes, sizeof(struct tier_raw_record));
	HFS_LE_PUT(raw->chunk_bytes, h->chunk_bytes);
	HFS_LE_PUT(raw->generation, h->generation);
	HFS_LE_PUT(raw->file_id, h->file_id);
	put_key(raw->key, h->key);
	HFS_LE_PUT(raw->dataset, h->dataset);
	put_identity(&raw->identity, &h->id);
	HFS_LE_PUT(raw->path_bytes, h->path_bytes);
	memcpy(raw->path, h->path, h->path_bytes);
	HFS_LE_PUT(raw->check, XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_head, check), salt));
}

bool tier_head_decode(const void *buf, size_t n, uint64_t salt, struct tier_head *ret)
{
	const struct tier_raw_head *raw = buf;
	struct tier_head h;

	if (n != sizeof(*raw) || memcmp(raw->magic, "HFSIDX1\n", 8) != 0 || HFS_LE_GET(raw->version) != TIER_VERSION ||
	    HFS_LE_GET(raw->hash_id) != TIER_HASH_XXH3_64 || HFS_LE_GET(raw->head_bytes) != TIER_HEAD_BYTES ||
	    HFS_LE_GET(raw->record_bytes) != sizeof(struct tier_raw_record))
		return false;
	if (HFS_LE_GET(raw->check) != XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_head, check), salt))
		return false;
	h = (struct tier_head){.chunk_bytes = (uint32_t)HFS_LE_GET(raw->chunk_bytes),
			       .generation = (uint32_t)HFS_LE_GET(raw->generation),
			       .file_id = HFS_LE_GET(raw->file_id),
			       .key = get_key(raw->key),
			       .dataset = HFS_LE_GET(raw->dataset),
			       .id = get_identity(&raw->identity),
			       .path_bytes = (uint32_t)HFS_LE_GET(raw->path_bytes),
			       .path = (const char *)raw->path};
	if (h.path_bytes == 0 || h.path_bytes > TIER_HEAD_PATH_MAX || !hfs_is_pow2(h.chunk_bytes) ||
	    h.chunk_bytes < 4096 || h.chunk_bytes > (UINT32_C(16) << 20))
		return false;
	if (h.id.size_bytes > INT64_MAX || hfs_div_up(h.id.size_bytes, h.chunk_bytes) > UINT32_MAX)
		return false;
	*ret = h;
	return true;
}

void tier_record_encode(struct tier_raw_record *raw, uint64_t salt, uint64_t file_id, const struct tier_record *r)
{
	memset(raw, 0, sizeof(*raw));
	HFS_LE_PUT(raw->generation, r->generation);
	HFS_LE_PUT(raw->len_bytes, r->len_bytes);
	HFS_LE_PUT(raw->flags, 1);
	HFS_LE_PUT(raw->chunk_no, r->chunk_no);
	HFS_LE_PUT(raw->data_check, r->data_check);
	HFS_LE_PUT(raw->check, XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_record, check), salt ^ file_id));
}

bool tier_record_decode(const void *buf, uint64_t salt, uint64_t file_id, struct tier_record *ret)
{
	const struct tier_raw_record *raw = buf;

	if (HFS_LE_GET(raw->flags) != 1 || HFS_LE_GET(raw->reserved) != 0)
		return false;
	if (HFS_LE_GET(raw->check) != XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_record, check), salt ^ file_id))
		return false;
	*ret = (struct tier_record){.generation = (uint32_t)HFS_LE_GET(raw->generation),
				    .len_bytes = (uint32_t)HFS_LE_GET(raw->len_bytes),
				    .chunk_no = (uint32_t)HFS_LE_GET(raw->chunk_no),
				    .data_check = HFS_LE_GET(raw->data_check)};
	return true;
}

/* ---- packs ---- */

void tier_pack_encode(struct tier_raw_pack *raw, uint64_t salt, uint64_t pack_no)
{
	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSPACK1", 8);
	HFS_LE_PUT(raw->version, TIER_VERSION);
	HFS_LE_PUT(raw->hash_id, TIER_HASH_XXH3_64);
	HFS_LE_PUT(raw->pack_no, pack_no);
	HFS_LE_PUT(raw->check, XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_pack, check), salt));
}

bool tier_pack_decode(const void *buf, size_t n, uint64_t salt, uint64_t *ret_pack_no)
{
	const struct tier_raw_pack *raw = buf;

	if (n != sizeof(*raw) || memcmp(raw->magic, "HFSPACK1", 8) != 0 || HFS_LE_GET(raw->version) != TIER_VERSION ||
	    HFS_LE_GET(raw->hash_id) != TIER_HASH_XXH3_64)
		return false;
	if (HFS_LE_GET(raw->check) != XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_pack, check), salt))
		return false;
	*ret_pack_no = HFS_LE_GET(raw->pack_no);
	return true;
}

static uint64_t item_check(const struct tier_raw_item *raw, const void *path, uint32_t path_bytes, uint64_t seed)
{
	uint64_t head = XXH3_64bits_withSeed((const uint8_t *)raw + 4, offsetof(struct tier_raw_item, check) - 4, seed);

	return XXH3_64bits_withSeed(path, path_bytes, head);
}

void tier_item_encode(void *buf, uint64_t salt, uint64_t pack_no, const struct tier_item *it)
{
	struct tier_raw_item *raw = buf;

	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, it->is_live ? TIER_ITEM_LIVE : TIER_ITEM_DEAD, 4);
	HFS_LE_PUT(raw->path_bytes, it->path_bytes);
	HFS_LE_PUT(raw->data_bytes, it->data_bytes);
	HFS_LE_PUT(raw->off_bytes, it->off_bytes);
	put_key(raw->key, it->key);
	HFS_LE_PUT(raw->dataset, it->dataset);
	put_identity(&raw->identity, &it->id);
	HFS_LE_PUT(raw->data_check, it->data_check);
	memcpy(raw + 1, it->path, it->path_bytes);
	HFS_LE_PUT(raw->check, item_check(raw, it->path, it->path_bytes, salt ^ pack_no));
}

/* What holds for items and entries alike: they lie inside a pack, and are as long as the file was. */
static bool item_is_sane(const struct tier_item *it)
{
	return it->path_bytes > 0 && it->path_bytes <= TIER_PACK_PATH_MAX && it->data_bytes > 0 &&
	       it->id.size_bytes == it->data_bytes && it->off_bytes % TIER_PACK_ALIGN == 0 &&
	       it->off_bytes >= sizeof(struct tier_raw_pack) &&
	       it->off_bytes + tier_item_total(it->path_bytes, it->data_bytes) <= TIER_PACK_BYTES_MAX;
}

int tier_item_decode(const void *buf, size_t n, uint64_t salt, uint64_t pack_no, uint32_t off_bytes,
		     struct tier_item *ret, size_t *ret_need)
{
	const struct tier_raw_item *raw = buf;
	struct tier_item it;

	if (n < sizeof(*raw))
		return 0;
	it = (struct tier_item){.is_live = memcmp(raw->magic, TIER_ITEM_LIVE, 4) == 0};
	if (!it.is_live && memcmp(raw->magic, TIER_ITEM_DEAD, 4) != 0)
		return 0;
	it.path_bytes = (uint32_t)HFS_LE_GET(raw->path_bytes);
	it.data_bytes = (uint32_t)HFS_LE_GET(raw->data_bytes);
	it.off_bytes = (uint32_t)HFS_LE_GET(raw->off_bytes);
	it.key = get_key(raw->key);
	it.dataset = HFS_LE_GET(raw->dataset);
	it.id = get_identity(&raw->identity);
	it.data_check = HFS_LE_GET(raw->data_check);
	if (it.off_bytes != off_bytes || !item_is_sane(&it))
		return 0;
	*ret_need = tier_item_data_off(it.path_bytes);
	if (*ret_need > n)
		return 1;
	it.path = (const char *)(raw + 1);
	if (HFS_LE_GET(raw->check) != item_check(raw, it.path, it.path_bytes, salt ^ pack_no))
		return 0;
	*ret = it;
	return 2;
}

void tier_entry_encode(struct tier_raw_entry *raw, uint64_t salt, uint64_t pack_no, const struct tier_item *it)
{
	memset(raw, 0, sizeof(*raw));
	put_key(raw->key, it->key);
	HFS_LE_PUT(raw->dataset, it->dataset);
	put_identity(&raw->identity, &it->id);
	HFS_LE_PUT(raw->off_bytes, it->off_bytes);
	HFS_LE_PUT(raw->data_bytes, it->data_bytes);
	HFS_LE_PUT(raw->path_bytes, it->path_bytes);
	HFS_LE_PUT(raw->check, XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_entry, check), salt ^ pack_no));
}

bool tier_entry_decode(const void *buf, uint64_t salt, uint64_t pack_no, struct tier_item *ret)
{
	const struct tier_raw_entry *raw = buf;
	struct tier_item it;

	if (HFS_LE_GET(raw->check) != XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_entry, check), salt ^ pack_no))
		return false;
	it = (struct tier_item){.is_live = true,
				.off_bytes = (uint32_t)HFS_LE_GET(raw->off_bytes),
				.data_bytes = (uint32_t)HFS_LE_GET(raw->data_bytes),
				.path_bytes = (uint32_t)HFS_LE_GET(raw->path_bytes),
				.key = get_key(raw->key),
				.dataset = HFS_LE_GET(raw->dataset),
				.id = get_identity(&raw->identity)};
	if (!item_is_sane(&it))
		return false;
	*ret = it;
	return true;
}

void tier_trailer_encode(struct tier_raw_trailer *raw, uint64_t salt, uint64_t pack_no, uint32_t n, uint32_t table_off)
{
	memset(raw, 0, sizeof(*raw));
	memcpy(raw->magic, "HFSPEND1", 8);
	HFS_LE_PUT(raw->pack_no, pack_no);
	HFS_LE_PUT(raw->n_entries, n);
	HFS_LE_PUT(raw->table_off_bytes, table_off);
	HFS_LE_PUT(raw->check, XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_trailer, check), salt ^ pack_no));
}

bool tier_trailer_decode(const void *buf, uint64_t salt, uint64_t pack_no, uint32_t *ret_n, uint32_t *ret_table_off)
{
	const struct tier_raw_trailer *raw = buf;

	if (memcmp(raw->magic, "HFSPEND1", 8) != 0 || HFS_LE_GET(raw->pack_no) != pack_no)
		return false;
	if (HFS_LE_GET(raw->check) != XXH3_64bits_withSeed(raw, offsetof(struct tier_raw_trailer, check), salt ^ pack_no))
		return false;
	*ret_n = (uint32_t)HFS_LE_GET(raw->n_entries);
	*ret_table_off = (uint32_t)HFS_LE_GET(raw->table_off_bytes);
	return true;
}

/* ---- names ---- */

static bool parse_hex(const char *s, int n, uint64_t *ret)
{
	uint64_t x = 0;

	for (int i = 0; i < n; i++) {
		if (s[i] >= '0' && s[i] <= '9')
			x = x << 4 | (uint64_t)(s[i] - '0');
		else if (s[i] >= 'a' && s[i] <= 'f')
			x = x << 4 | (uint64_t)(s[i] - 'a' + 10);
		else
			return false;
	}
	*ret = x;
	return true;
}

void tier_file_name(char *buf, struct tier_key key, char kind)
{
	(void)snprintf(buf, TIER_NAME_CAP, "%016llx%016llx.%c", (unsigned long long)key.hi, (unsigned long long)key.lo,
		       kind);
}

bool tier_file_name_parse(const char *name, struct tier_key *ret_key, char *ret_kind)
{
	if (strlen(name) != 34 || name[32] != '.' || (name[33] != 'd' && name[33] != 'i'))
		return false;
	if (!parse_hex(name, 16, &ret_key->hi) || !parse_hex(name + 16, 16, &ret_key->lo))
		return false;
	*ret_kind = name[33];
	return true;
}

void tier_pack_name(char *buf, uint64_t pack_no)
{
	(void)snprintf(buf, TIER_NAME_CAP, "%016llx.p", (unsigned long long)pack_no);
}

bool tier_pack_name_parse(const char *name, uint64_t *ret_pack_no)
{
	return strlen(name) == 18 && strcmp(name + 16, ".p") == 0 && parse_hex(name, 16, ret_pack_no);
}
