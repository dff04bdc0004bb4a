/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_flip.c - bit rot and mischief: whatever the files of the tier become, a read gives the right bytes or nothing.
 *
 * Each round fills a tier, changes its files on disk (while it runs, or between two runs), reads everything, and reads again after what was
 * bad has been admitted anew. tier_flip [ROUNDS] (300).
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"
#include "cache/tier_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define FILES 12

struct world {
	struct disk *d;
	struct rig r;
	struct rig_file files[FILES];
	uint64_t rng;
};

static uint64_t dice(struct world *w, uint64_t n)
{
	return rig_next(&w->rng) % n;
}

static struct disk_file file(struct world *w, const char *ending, uint32_t n)
{
	struct disk_file f = {.size = 0};

	(void)disk_file(w->d, ending, n, &f); /* an earlier act may have cost it its life */
	return f;
}

static void flip_bit(struct world *w, const char *ending, uint64_t from, uint64_t to)
{
	struct disk_file f = file(w, ending, (uint32_t)dice(w, strcmp(ending, ".p") == 0 ? 1 : FILES / 2));

	if (to > f.size)
		to = f.size;
	if (from >= to) /* cut before */
		return;
	f.data[from + dice(w, to - from)] ^= (uint8_t)(1u << dice(w, 8));
}

static void flip_data(struct world *w)
{
	flip_bit(w, ".d", 0, UINT64_MAX);
}

static void flip_record(struct world *w)
{
	flip_bit(w, ".i", TIER_HEAD_BYTES, UINT64_MAX);
}

static void flip_head(struct world *w)
{
	flip_bit(w, ".i", 0, TIER_HEAD_BYTES);
}

static void flip_pack(struct world *w)
{
	flip_bit(w, ".p", 0, 200000);
}

static void flip_pack_head(struct world *w)
{
	flip_bit(w, ".p", 0, sizeof(struct tier_raw_pack));
}

static void flip_table(struct world *w)
{
	struct disk_file f = file(w, ".p", 0);

	flip_bit(w, ".p", f.size < 700 ? 0 : f.size - 700, f.size);
}

static void flip_top(struct world *w)
{
	flip_bit(w, "tier", 0, 64);
}

static void swap_data(struct world *w)
{
	disk_swap(w->d, ".d", 0, 1 + (uint32_t)dice(w, FILES / 2 - 1));
}

static void swap_index(struct world *w)
{
	disk_swap(w->d, ".i", 0, 1 + (uint32_t)dice(w, FILES / 2 - 1));
}

static void swap_both(struct world *w)
{
	uint32_t b = 1 + (uint32_t)dice(w, FILES / 2 - 1);

	disk_swap(w->d, ".d", 0, b);
	disk_swap(w->d, ".i", 0, b);
}

/* A chunk and its record stand where another's should: misdirected writes. */
static void swap_chunks(struct world *w)
{
	uint32_t n = (uint32_t)dice(w, FILES / 2);
	struct disk_file d = file(w, ".d", n), i = file(w, ".i", n);
	uint8_t tmp[RIG_CHUNK];

	if (d.size < 2 * RIG_CHUNK || i.size < TIER_HEAD_BYTES + 64)
		return;
	memcpy(tmp, d.data, RIG_CHUNK);
	memcpy(d.data, d.data + RIG_CHUNK, RIG_CHUNK);
	memcpy(d.data + RIG_CHUNK, tmp, RIG_CHUNK);
	if (dice(w, 2) == 0)
		return;
	memcpy(tmp, i.data + TIER_HEAD_BYTES, 32);
	memcpy(i.data + TIER_HEAD_BYTES, i.data + TIER_HEAD_BYTES + 32, 32);
	memcpy(i.data + TIER_HEAD_BYTES + 32, tmp, 32);
}

static const char *any(struct world *w)
{
	static const char *const endings[] = {".d", ".i", ".p", "tier"};

	struct disk_file f;
	const char *ending;

	do
		ending = endings[dice(w, 4)];
	while (!disk_file(w->d, ending, 0, &f));
	return ending;
}

static void cut(struct world *w)
{
	const char *ending = any(w);

	disk_cut(w->d, ending, 0, dice(w, file(w, ending, 0).size + 1));
}

static void extend(struct world *w)
{
	const char *ending = any(w);

	disk_cut(w->d, ending, 0, file(w, ending, 0).size + 1 + dice(w, 100000));
}

static void zero(struct world *w)
{
	struct disk_file f = file(w, any(w), 0);

	if (f.size > 0)
		memset(f.data, 0, f.size);
}

static void junk(struct world *w)
{
	struct disk_file f = file(w, any(w), 0);

	for (uint64_t i = 0; i < f.size; i++)
		f.data[i] = (uint8_t)rig_next(&w->rng);
}

static void remove_one(struct world *w)
{
	const char *ending = any(w);
	struct disk_file f;

	if (disk_file(w->d, ending, 1, &f) || strcmp(ending, "tier") == 0) /* leave one for what comes */
		(void)disk_remove(w->d, ending, 0);
}

/* ---- by somebody who knows the salt: the checks are true, the values are not ---- */

static uint64_t wild(struct world *w, uint64_t now)
{
	switch (dice(w, 8)) {
	case 0: return 0;
	case 1: return UINT32_MAX;
	case 2: return UINT64_MAX;
	case 3: return now + 1;
	case 4: return now - 1;
	case 5: return UINT64_C(1) << dice(w, 64);
	case 6: return rig_next(&w->rng);
	default: return now;
	}
}

static bool get_salt(struct world *w, uint64_t *ret_salt)
{
	struct disk_file top = file(w, "tier", 0);

	return tier_top_decode(top.data, top.size, ret_salt);
}

static void forge_head(struct world *w)
{
	struct disk_file f = file(w, ".i", (uint32_t)dice(w, FILES / 2));
	struct tier_raw_head raw;
	struct tier_head h;
	uint64_t salt;

	if (!get_salt(w, &salt) || f.size < sizeof(raw) || !tier_head_decode(f.data, sizeof(raw), salt, &h))
		return;
	h.chunk_bytes = (uint32_t)wild(w, h.chunk_bytes);
	h.id.size_bytes = wild(w, h.id.size_bytes);
	h.generation = (uint32_t)wild(w, h.generation);
	h.dataset = wild(w, h.dataset);
	tier_head_encode(&raw, salt, &h);
	memcpy(f.data, &raw, sizeof(raw));
	for (uint64_t i = 0; sizeof(raw) + (i + 1) * 32 <= f.size; i++)
		tier_record_encode((struct tier_raw_record *)(f.data + sizeof(raw) + i * 32), salt, h.file_id,
				   &(struct tier_record){.generation = h.generation,
							 .len_bytes = (uint32_t)wild(w, RIG_CHUNK),
							 .chunk_no = (uint32_t)wild(w, i),
							 .data_check = rig_next(&w->rng)});
}

static void forge_item(struct world *w)
{
	struct disk_file f = file(w, ".p", 0);
	char path[TIER_HEAD_PATH_MAX] = "forged";
	struct tier_item it = {.is_live = dice(w, 4) > 0,
			       .off_bytes = 64,
			       .data_bytes = (uint32_t)wild(w, 5000),
			       .path_bytes = (uint32_t)(1 + dice(w, 300)),
			       .key = {rig_next(&w->rng), 1},
			       .id = {.ino = 1, .size_bytes = 5000},
			       .path = path};
	uint64_t salt, pack_no;

	if (!get_salt(w, &salt) || f.size < 8192 || !tier_pack_decode(f.data, 64, salt, &pack_no))
		return;
	it.id.size_bytes = dice(w, 2) == 0 ? it.data_bytes : wild(w, it.data_bytes);
	if (dice(w, 2) == 0)
		it.off_bytes = (uint32_t)wild(w, 64);
	tier_item_encode(f.data + 64, salt, pack_no, &it);
}

static void forge_table(struct world *w)
{
	struct disk_file f = file(w, ".p", 0);
	struct tier_item it = {.is_live = true};
	uint64_t salt, pack_no;
	uint32_t n, off;

	if (!get_salt(w, &salt) || f.size < 8192 || !tier_pack_decode(f.data, 64, salt, &pack_no) ||
	    !tier_trailer_decode(f.data + f.size - 64, salt, pack_no, &n, &off))
		return;
	for (uint32_t i = 0; i < n && off + (uint64_t)(i + 1) * sizeof(struct tier_raw_entry) <= f.size - 64; i++) {
		it.data_bytes = (uint32_t)wild(w, 20000);
		it.id.size_bytes = dice(w, 4) > 0 ? it.data_bytes : wild(w, it.data_bytes);
		it.path_bytes = (uint32_t)wild(w, 26);
		it.off_bytes = (uint32_t)wild(w, 64 * dice(w, 2000));
		it.key = (struct tier_key){rig_next(&w->rng) % 3, 7};
		it.dataset = dice(w, 3);
		if (dice(w, 2) == 0)
			tier_entry_encode((struct tier_raw_entry *)(f.data + off + i * sizeof(struct tier_raw_entry)), salt, pack_no, &it);
	}
	if (dice(w, 2) == 0)
		tier_trailer_encode((struct tier_raw_trailer *)(f.data + f.size - 64), salt, pack_no, (uint32_t)wild(w, n),
				    (uint32_t)wild(w, off));
}

static const struct {
	const char *name;
	void (*act)(struct world *w);
	bool is_always_noticed;
} ACTS[] = {{"a bit of data", flip_data, true},
	    {"a bit of a record", flip_record, true},
	    {"a bit of a header", flip_head, true},
	    {"a bit of a pack", flip_pack, false},
	    {"a bit of a pack's header", flip_pack_head, false},
	    {"a bit of a pack's table", flip_table, false},
	    {"a bit of the top", flip_top, false},
	    {"data of two files", swap_data, true},
	    {"indexes of two files", swap_index, true},
	    {"two files", swap_both, true},
	    {"two chunks", swap_chunks, false},
	    {"cut", cut, false},
	    {"extended", extend, false},
	    {"zeros", zero, false},
	    {"junk", junk, false},
	    {"removed", remove_one, false},
	    {"a forged header", forge_head, false},
	    {"a forged item", forge_item, false},
	    {"a forged table", forge_table, false}};
#define N_ACTS (sizeof(ACTS) / sizeof(ACTS[0]))

static uint32_t get_all(struct world *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < FILES; i++)
		n += rig_get_all(&w->r, &w->files[i]);
	return n;
}

static void put_all(struct world *w)
{
	for (uint32_t i = 0; i < FILES; i++)
		rig_put(&w->r, &w->files[i]);
}

static void run(struct world *w, size_t act, uint32_t times, bool is_running)
{
	uint32_t all = 0, hits;
	uint64_t bad;

	w->d = disk_new(32 * MIB, 1000);
	for (uint32_t i = 0; i < FILES; i++) {
		w->files[i] = (struct rig_file){.no = i, .gen = 1, .size = i % 2 == 0 ? (2 + i % 3) * RIG_CHUNK + 100 : 20000 + 64 * i};
		all += rig_chunks(&w->files[i]);
	}
	rig_init(&w->r, DISK_DIR, disk_io(w->d), 16 * MIB);
	rig_open(&w->r);
	put_all(w);
	rig_check(get_all(w) == all, "all is there");
	if (!is_running || ACTS[act].act == flip_table || ACTS[act].act == forge_table) /* the table comes with the end */
		rig_close(&w->r);
	if (w->r.t != NULL)
		rig_idle(&w->r, true); /* so that nobody but us touches the disk */
	for (uint32_t i = 0; i < times; i++)
		ACTS[act].act(w);
	if (w->r.t == NULL)
		rig_open(&w->r);
	bad = rig_stats(&w->r).bad;
	hits = get_all(w);
	bad += rig_stats(&w->r).bad;
	rig_check(!ACTS[act].is_always_noticed || is_running || times > 1 || (hits < all && bad > 0), "%s: noticed (%u of %u)", ACTS[act].name, hits,
		  all);
	put_all(w);
	rig_check(get_all(w) == all, "%s: what was bad is admitted again and right", ACTS[act].name);
	rig_idle(&w->r, true);
	rig_close(&w->r);
	rig_open(&w->r);
	if (is_running) { /* headers of open files are looked at again at the next start */
		(void)get_all(w);
		put_all(w);
		rig_check(get_all(w) == all, "%s: found at the next start and put right", ACTS[act].name);
		rig_close(&w->r);
		rig_open(&w->r);
	}
	rig_check(get_all(w) == all && rig_stats(&w->r).bad == 0, "%s: and is so after a restart", ACTS[act].name);
	rig_close(&w->r);
	disk_free(w->d);
}

#define SMALL_FILES 16u

/*
 * What is in a pack and in memory (of this disk every second block) is read straight to where it is wanted: not right before it is
 * proven, though the rest of its pack is. Even numbers, as rig_get() lends a buffer for those.
 */
static void in_place(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	uint8_t *bytes = rig_alloc(30001);
	uint32_t n_cached = 0;
	struct disk_file pack;
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	for (uint32_t i = 0; i < SMALL_FILES; i++)
		rig_put(&r, &(struct rig_file){.no = 2 * i, .gen = 1, .size = 30001 - i});
	rig_check(disk_file(d, ".p", 0, &pack), "a pack");
	for (uint32_t i = 0; i < SMALL_FILES; i++) {
		const struct rig_file f = {.no = 2 * i, .gen = 1, .size = 30001 - i};
		char path[64];
		uint8_t *at;

		rig_check(rig_get(&r, &f, 0), "small file %u is there", i);
		rig_fill(&f, 0, bytes, f.size);
		at = memmem(pack.data, pack.size, bytes, f.size);
		rig_check(at != NULL, "small file %u is in the pack", i);
		rig_path(&f, path);
		n_cached += ((uint64_t)(at - pack.data) - tier_item_data_off((uint32_t)strlen(path))) / 4096 % 2 == 0;
		at[i * 1000] ^= 1;
		rig_check(!rig_get(&r, &f, 0) && rig_stats(&r).bad == i + 1, "small file %u: a bit is noticed", i);
	}
	rig_check(n_cached > 0 && n_cached < SMALL_FILES, "some in memory, some not: %u", n_cached);
	rig_close(&r);
	disk_free(d);
	free(bytes);
}

int main(int argc, char **argv)
{
	const uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 300;
	struct world *w = rig_alloc(sizeof(*w));

	w->rng = rig_seed();
	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	in_place();
	for (uint32_t i = 0; i < rounds; i++)
		run(w, i % N_ACTS, i % 5 == 4 ? 20 : 1, i / N_ACTS % 2 == 1);
	free(w);
	(void)printf("ok: %u rounds\n", rounds);
	return 0;
}
