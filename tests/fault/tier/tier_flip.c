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
	    {"removed", remove_one, false}};
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
	if (!is_running || act == 5) /* the table comes with the end */
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

int main(int argc, char **argv)
{
	const uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 300;
	struct world *w = rig_alloc(sizeof(*w));

	w->rng = rig_seed();
	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	for (uint32_t i = 0; i < rounds; i++)
		run(w, i % N_ACTS, i % 5 == 4 ? 20 : 1, i / N_ACTS % 2 == 1);
	free(w);
	(void)printf("ok: %u rounds\n", rounds);
	return 0;
}
