/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes on disk (cache/tier_format.h): pinned, so that a change of the format cannot go unnoticed; and hostile ones refused.
 */
#include "cache/tier_format.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define SALT UINT64_C(0x0123456789abcdef)

static const struct hfs_identity ID = {.dev = 0, .ino = 77, .size_bytes = 3000000, .mtime_ns = -5, .ctime_ns = 1700000000123456789};
static const char PATH[] = "train/\xff\x01name";

static struct tier_head head(void)
{
	uint64_t dataset = tier_dataset_hash(SALT, "server:/x", 9);

	return (struct tier_head){.chunk_bytes = 1 << 20,
				  .generation = 9,
				  .file_id = 0x1122334455667788,
				  .key = tier_key_of(dataset, PATH, sizeof(PATH) - 1),
				  .dataset = dataset,
				  .id = ID,
				  .path = PATH,
				  .path_bytes = sizeof(PATH) - 1};
}

static struct tier_item item(uint32_t off_bytes)
{
	struct tier_head h = head();
	struct tier_item it = {.is_live = true,
			       .off_bytes = off_bytes,
			       .data_bytes = 3000,
			       .path_bytes = h.path_bytes,
			       .key = h.key,
			       .dataset = h.dataset,
			       .id = ID,
			       .data_check = 42,
			       .path = PATH};

	it.id.size_bytes = 3000;
	return it;
}

/* If one of these fails the format has changed: raise TIER_VERSION and change docs/disk_format.md. */
Test(tier_format, bytes_are_pinned)
{
	struct tier_raw_head h;
	struct tier_raw_record r;
	struct tier_raw_top top;
	struct tier_raw_pack pack;
	struct tier_raw_entry entry;
	struct tier_raw_trailer trailer;
	uint8_t raw[4096] = {0};
	struct tier_head mem = head();
	struct tier_item it = item(640);

	tier_head_encode(&h, SALT, &mem);
	cr_assert_eq(memcmp(&h, "HFSIDX1\n\1\0\0\0\1\0\0\0\0\x10\0\0\x20\0\0\0\0\0\x10\0\x9\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 40), 0);
	cr_assert_eq(memcmp(h.identity.mtime_ns, "\xfb\xff\xff\xff\xff\xff\xff\xff", 8), 0, "little-endian two's complement");
	cr_assert_eq(memcmp(h.path, PATH, sizeof(PATH)), 0);
	tier_record_encode(&r, SALT, mem.file_id, &(struct tier_record){.generation = 9, .len_bytes = 65537, .chunk_no = 3, .data_check = 0xabcd});
	cr_assert_eq(memcmp(&r, "\x9\0\0\0\1\0\1\0\1\0\0\0\3\0\0\0\xcd\xab\0\0\0\0\0\0", 24), 0);
	tier_top_encode(&top, SALT);
	cr_assert_eq(memcmp(&top, "HFSTIER1\1\0\0\0\1\0\0\0\xef\xcd\xab\x89\x67\x45\x23\x01", 24), 0);
	tier_pack_encode(&pack, SALT, 0x55);
	cr_assert_eq(memcmp(&pack, "HFSPACK1\1\0\0\0\1\0\0\0\x55\0\0\0\0\0\0\0", 24), 0);
	tier_item_encode(raw, SALT, 0x55, &it);
	cr_assert_eq(memcmp(raw, "HPR1\x0c\0\0\0\xb8\x0b\0\0\x80\x02\0\0", 16), 0);
	cr_assert_eq(memcmp(raw + 96, PATH, sizeof(PATH) - 1), 0);
	tier_entry_encode(&entry, SALT, 0x55, &it);
	tier_trailer_encode(&trailer, SALT, 0x55, 7, 6400);
	cr_assert_eq(memcmp(&trailer, "HFSPEND1\x55\0\0\0\0\0\0\0\7\0\0\0\0\x19\0\0", 24), 0);
	/* All of it, hashes included. */
	XXH64_hash_t all = XXH3_64bits(&h, sizeof(h)) ^ XXH3_64bits(&r, sizeof(r)) ^ XXH3_64bits(&top, sizeof(top)) ^
			   XXH3_64bits(&pack, sizeof(pack)) ^ XXH3_64bits(raw, sizeof(raw)) ^ XXH3_64bits(&entry, sizeof(entry)) ^
			   XXH3_64bits(&trailer, sizeof(trailer)) ^ tier_data_seed(SALT, mem.key, &ID, 1, 2, 3);
	cr_expect_eq(all, UINT64_C(0x9f1521e7a5e2bab4), "%llx", (unsigned long long)all);
}

Test(tier_format, round_trip)
{
	struct tier_raw_head raw;
	struct tier_raw_record raw_record;
	struct tier_head h = head(), got;
	struct tier_record r = {.generation = 1, .len_bytes = 2, .chunk_no = 3, .data_check = 4}, got_record;
	uint64_t salt, no;
	struct tier_raw_top top;
	struct tier_raw_pack pack;

	tier_head_encode(&raw, SALT, &h);
	cr_assert(tier_head_decode(&raw, sizeof(raw), SALT, &got));
	cr_assert(got.chunk_bytes == h.chunk_bytes && got.generation == h.generation && got.file_id == h.file_id &&
		  tier_key_equal(got.key, h.key) && got.dataset == h.dataset && hfs_identity_equal(&got.id, &h.id) &&
		  got.path_bytes == h.path_bytes && memcmp(got.path, h.path, h.path_bytes) == 0);
	cr_assert_not(tier_head_decode(&raw, sizeof(raw), SALT + 1, &got), "of another cache");
	cr_assert_not(tier_head_decode(&raw, sizeof(raw) - 1, SALT, &got));
	tier_record_encode(&raw_record, SALT, 7, &r);
	cr_assert(tier_record_decode(&raw_record, SALT, 7, &got_record) && memcmp(&r, &got_record, sizeof(r)) == 0);
	cr_assert_not(tier_record_decode(&raw_record, SALT, 8, &got_record), "of another file");
	tier_top_encode(&top, SALT);
	cr_assert(tier_top_decode(&top, sizeof(top), &salt) && salt == SALT);
	tier_pack_encode(&pack, SALT, 99);
	cr_assert(tier_pack_decode(&pack, sizeof(pack), SALT, &no) && no == 99);
}

Test(tier_format, every_bit_counts)
{
	struct tier_raw_head h;
	struct tier_raw_record r;
	uint8_t raw[4096] = {0};
	struct tier_head mem = head(), got;
	struct tier_record got_record;
	struct tier_item it = item(640), got_item;
	size_t need, len = tier_item_data_off(it.path_bytes);

	tier_head_encode(&h, SALT, &mem);
	for (size_t bit = 0; bit < sizeof(h) * 8; bit += bit < 1000 ? 1 : 13) {
		((uint8_t *)&h)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_not(tier_head_decode(&h, sizeof(h), SALT, &got), "bit %zu of a header", bit);
		((uint8_t *)&h)[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	tier_record_encode(&r, SALT, 7, &(struct tier_record){.generation = 1, .len_bytes = 2, .chunk_no = 3});
	for (size_t bit = 0; bit < sizeof(r) * 8; bit++) {
		((uint8_t *)&r)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_not(tier_record_decode(&r, SALT, 7, &got_record), "bit %zu of a record", bit);
		((uint8_t *)&r)[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	tier_item_encode(raw, SALT, 5, &it);
	cr_assert_eq(tier_item_decode(raw, len, SALT, 5, 640, &got_item, &need), 2);
	for (size_t bit = 0; bit < len * 8; bit++) {
		raw[bit / 8] ^= (uint8_t)(1u << bit % 8);
		cr_assert_neq(tier_item_decode(raw, len, SALT, 5, 640, &got_item, &need), 2, "bit %zu of an item", bit);
		raw[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

Test(tier_format, an_item_elsewhere_is_none)
{
	uint8_t raw[4096] = {0};
	struct tier_item it = item(640), got;
	size_t need;

	tier_item_encode(raw, SALT, 5, &it);
	cr_assert_eq(tier_item_decode(raw, sizeof(raw), SALT, 6, 640, &got, &need), 0, "in another pack");
	cr_assert_eq(tier_item_decode(raw, sizeof(raw), SALT, 5, 704, &got, &need), 0, "at another place");
	cr_assert_eq(tier_item_decode(raw, 50, SALT, 5, 640, &got, &need), 0, "half a header");
	cr_assert_eq(tier_item_decode(raw, 100, SALT, 5, 640, &got, &need), 1, "half a path");
	cr_assert_eq(need, 96 + it.path_bytes);
	memcpy(raw, TIER_ITEM_DEAD, 4);
	cr_assert_eq(tier_item_decode(raw, sizeof(raw), SALT, 5, 640, &got, &need), 2);
	cr_assert_not(got.is_live);
}

/* With a true check, as an attacker who knows the salt could write them: sizes are still refused. */
Test(tier_format, sizes_from_outside)
{
	uint8_t raw[8192] = {0};
	struct tier_item it = item(640), got;
	struct tier_head h = head(), got_head;
	struct tier_raw_head raw_head;
	struct tier_raw_entry entry;
	size_t need;

	it.data_bytes = 2999;
	tier_item_encode(raw, SALT, 5, &it);
	cr_assert_eq(tier_item_decode(raw, sizeof(raw), SALT, 5, 640, &got, &need), 0, "not as long as the file");
	it = item(0);
	tier_item_encode(raw, SALT, 5, &it);
	cr_assert_eq(tier_item_decode(raw, sizeof(raw), SALT, 5, 0, &got, &need), 0, "over the pack's header");
	it = item(640);
	it.data_bytes = UINT32_MAX;
	it.id.size_bytes = UINT32_MAX;
	tier_entry_encode(&entry, SALT, 5, &it);
	cr_assert_not(tier_entry_decode(&entry, SALT, 5, &got), "beyond the pack");
	h.chunk_bytes = 3 << 20;
	tier_head_encode(&raw_head, SALT, &h);
	cr_assert_not(tier_head_decode(&raw_head, sizeof(raw_head), SALT, &got_head), "not a power of two");
	h = head();
	h.id.size_bytes = UINT64_MAX;
	tier_head_encode(&raw_head, SALT, &h);
	cr_assert_not(tier_head_decode(&raw_head, sizeof(raw_head), SALT, &got_head), "2^64 - 1 bytes");
	h.id.size_bytes = INT64_MAX;
	h.chunk_bytes = 65536;
	tier_head_encode(&raw_head, SALT, &h);
	cr_assert_not(tier_head_decode(&raw_head, sizeof(raw_head), SALT, &got_head), "more chunks than records can count");
}

Test(tier_format, data_is_bound_to_everything)
{
	struct tier_key key = {1, 2};
	struct hfs_identity id = ID, other = ID;
	uint64_t seed = tier_data_seed(SALT, key, &id, 5, 6, 7);

	other.ctime_ns++;
	cr_assert_neq(seed, tier_data_seed(SALT, key, &other, 5, 6, 7));
	cr_assert_neq(seed, tier_data_seed(SALT, (struct tier_key){1, 3}, &id, 5, 6, 7));
	cr_assert_neq(seed, tier_data_seed(SALT, key, &id, 4, 6, 7));
	cr_assert_neq(seed, tier_data_seed(SALT, key, &id, 5, 5, 7));
	cr_assert_neq(seed, tier_data_seed(SALT, key, &id, 5, 6, 8));
	cr_assert_neq(seed, tier_data_seed(SALT + 1, key, &id, 5, 6, 7));
	cr_assert_neq(tier_data_check(seed, "abc", 3), tier_data_check(seed + 1, "abc", 3));
}

Test(tier_format, names)
{
	char name[TIER_NAME_CAP], kind;
	struct tier_key key;
	uint64_t no;
	static const char *const bad[] = {"", ".d", "0123456789abcdef0123456789abcdef.x", "0123456789ABCDEF0123456789abcdef.d",
					  "0123456789abcdef0123456789abcde.d", "0123456789abcdef0123456789abcdef.dd", "../../../../../../../../../../etc.d"};

	tier_file_name(name, (struct tier_key){.lo = 0x10, .hi = 0xfedcba9876543210}, 'i');
	cr_assert_str_eq(name, "fedcba98765432100000000000000010.i");
	cr_assert(tier_file_name_parse(name, &key, &kind) && key.lo == 0x10 && key.hi == 0xfedcba9876543210 && kind == 'i');
	tier_pack_name(name, 0xab);
	cr_assert_str_eq(name, "00000000000000ab.p");
	cr_assert(tier_pack_name_parse(name, &no) && no == 0xab);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(tier_file_name_parse(bad[i], &key, &kind) || tier_pack_name_parse(bad[i], &no), "%s", bad[i]);
}
