/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_basic.c - what the tier keeps, forgets, and survives without any fault. On the disk in memory.
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static const struct rig_file BIG = {.no = 1, .gen = 1, .size = 10 * RIG_CHUNK + 4321};
static const struct rig_file SMALL = {.no = 2, .gen = 1, .size = 30001};

static void keeps_over_restart(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	rig_check(rig_get_all(&r, &BIG) == 0 && rig_get_all(&r, &SMALL) == 0, "nothing in an empty tier");
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	rig_check(rig_get_all(&r, &BIG) == 11 && rig_get_all(&r, &SMALL) == 1, "everything is there");
	struct tier_stats s = rig_stats(&r);
	rig_check(s.bytes == disk_used(d), "counted as du counts: %llu, du %llu", (unsigned long long)s.bytes,
		  (unsigned long long)disk_used(d));
	rig_close(&r);
	rig_check(disk_fds(d) == 0, "no descriptor is left");
	for (int i = 0; i < 3; i++) {
		rig_open(&r);
		rig_check(rig_get_all(&r, &BIG) == 11 && rig_get_all(&r, &SMALL) == 1, "everything is there after a restart");
		s = rig_stats(&r);
		rig_check(s.bad == 0, "nothing is bad");
		rig_check(s.bytes == disk_used(d), "counted as du counts after adoption: %llu, du %llu",
			  (unsigned long long)s.bytes, (unsigned long long)disk_used(d));
		rig_close(&r);
	}
	disk_free(d);
}

/* While adoption has hardly begun: big files are found by their name, small ones a moment later; nothing is admitted. */
static void early_readers(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct rig_file changed = BIG;
	char why[256] = "";
	struct rig r;

	changed.gen = 2;
	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	rig_close(&r);
	disk_hang_listing(d, true);
	rig_check(rig_try_open(&r, why, sizeof(why)) == 0, "a start does not wait for adoption: %s", why);
	rig_check(disk_wait_hung(d, 1, RIG_WAIT_MS) == 1 && rig_stats(&r).state == TIER_ADOPTING, "adoption is under way");
	rig_check(rig_get_all(&r, &changed) == 0, "another generation is a miss");
	rig_check(rig_get_all(&r, &BIG) == 11, "a big file is found before adoption came to it");
	rig_check(rig_admit(&r, &(struct rig_file){.no = 9, .gen = 1, .size = 500}, 0) == -EAGAIN, "nothing is admitted yet");
	disk_hang_listing(d, false);
	rig_check(rig_get_all(&r, &SMALL) == 1, "a reader of a small file waits for adoption");
	rig_check(tier_wait_adopted(r.t, RIG_WAIT_MS), "adoption ends");
	rig_check(rig_get_all(&r, &BIG) == 11 && rig_stats(&r).files_big == 1 && rig_stats(&r).bad == 0, "and finds nothing twice");
	rig_check(rig_stats(&r).bytes == disk_used(d), "counted once");
	rig_close(&r);
	disk_free(d);
}

static void generations(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct rig_file new_big = BIG, new_small = SMALL, grown = SMALL;
	struct rig r;

	new_big.gen = new_small.gen = 2;
	grown.gen = 3;
	grown.size = 3 * RIG_CHUNK;
	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	rig_check(rig_get_all(&r, &new_big) == 0 && rig_get_all(&r, &new_small) == 0, "another generation is a miss");
	rig_check(rig_get_all(&r, &BIG) == 11, "asking for another generation costs nothing");
	rig_put(&r, &new_big);
	rig_put(&r, &new_small);
	rig_check(rig_get_all(&r, &BIG) == 0 && rig_get_all(&r, &SMALL) == 0, "the old generation is gone");
	rig_check(rig_get_all(&r, &new_big) == 11 && rig_get_all(&r, &new_small) == 1, "the new one is there");
	rig_put(&r, &grown);
	rig_check(rig_get_all(&r, &new_small) == 0 && rig_get_all(&r, &grown) == 3, "a small file became a big one");
	rig_close(&r);
	rig_open(&r);
	rig_check(rig_get_all(&r, &grown) == 3 && rig_get_all(&r, &new_big) == 11, "the last generation is found again");
	rig_put(&r, &SMALL);
	rig_check(rig_get_all(&r, &SMALL) == 1 && rig_get_all(&r, &grown) == 0, "and back");
	rig_close(&r);
	disk_free(d);
}

static void datasets(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct rig a, b;

	rig_init(&a, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&a);
	rig_put(&a, &BIG);
	rig_put(&a, &SMALL);
	rig_close(&a);
	rig_init(&b, DISK_DIR, disk_io(d), 32 * MIB);
	b.dataset = "other:/export/data";
	rig_open(&b);
	rig_check(rig_get_all(&b, &BIG) == 0 && rig_get_all(&b, &SMALL) == 0, "same names and identities of another dataset");
	rig_put(&b, &BIG);
	rig_put(&b, &SMALL);
	rig_close(&b);
	rig_open(&a);
	rig_check(rig_get_all(&a, &BIG) == 11 && rig_get_all(&a, &SMALL) == 1, "both are kept side by side");
	rig_check(rig_stats(&a).files_big == 2 && rig_stats(&a).files_small == 2, "two of each");
	rig_close(&a);
	disk_free(d);
}

static void drops(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct rig r;
	uint64_t full;

	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	full = disk_used(d);
	uint64_t bits[2];
	struct hfs_identity id = rig_identity(&BIG), small_id = rig_identity(&SMALL);
	char path[64], small_path[64];

	rig_path(&BIG, path);
	rig_path(&SMALL, small_path);
	rig_drop(&r, &BIG, 3);
	rig_drop(&r, &BIG, 3);
	rig_check(tier_map(r.t, &id, path, bits, 2) == 10 && bits[0] == (0x7ff & ~(1 << 3)) && bits[1] == 0, "the map of a big file");
	rig_check(tier_map(r.t, &small_id, small_path, bits, 2) == 1 && bits[0] == 1, "the map of a small file");
	rig_check(tier_map(r.t, &id, small_path, bits, 2) == 0 && bits[0] == 0, "the map of nothing");
	rig_check(!rig_get(&r, &BIG, 3) && rig_get_all(&r, &BIG) == 10, "one chunk is gone at once, the others stay");
	rig_idle(&r, false);
	rig_check(disk_used(d) == full - RIG_CHUNK, "its space is given back");
	rig_check(rig_admit(&r, &BIG, 3) == 0, "it may come back");
	rig_idle(&r, false);
	rig_check(rig_get_all(&r, &BIG) == 11, "and is there");
	rig_drop(&r, &SMALL, 0);
	rig_idle(&r, false);
	rig_check(rig_get_all(&r, &SMALL) == 0, "a small file is dropped");
	rig_check(disk_used(d) < full, "and its blocks given back");
	for (uint32_t i = 0; i < rig_chunks(&BIG); i++)
		rig_drop(&r, &BIG, i);
	rig_idle(&r, false);
	rig_check(rig_stats(&r).files_big == 0 && rig_get_all(&r, &BIG) == 0, "no empty file is kept");
	rig_close(&r);
	rig_open(&r);
	rig_check(rig_get_all(&r, &BIG) == 0 && rig_get_all(&r, &SMALL) == 0, "dropped is dropped after a restart");
	rig_check(rig_stats(&r).bytes == disk_used(d), "counted right");
	rig_close(&r);
	disk_free(d);
}

/* Full: what is in use stays, admission is refused, du is never above the limit; what an earlier process left goes first. */
static void budget(void)
{
	const uint64_t size = 8 * MIB;
	struct disk *d = disk_new(64 * MIB, 10000);
	uint32_t hits = 0;
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), size);
	rig_open(&r);
	for (uint32_t i = 0; i < 40; i++) {
		struct rig_file big = {.no = 100 + i, .gen = 1, .size = 6 * RIG_CHUNK}, small = {.no = 500 + i, .gen = 1, .size = 20000};

		rig_put(&r, &big);
		rig_put(&r, &small);
		rig_check(disk_used_max(d, true) <= size, "du %llu above the limit", (unsigned long long)disk_used_max(d, false));
	}
	rig_check(r.n_asked > 0 && rig_stats(&r).skipped_full > 0, "it became full");
	for (uint32_t i = 0; i < 40; i++) {
		struct rig_file big = {.no = 100 + i, .gen = 1, .size = 6 * RIG_CHUNK};

		hits += rig_get_all(&r, &big);
	}
	rig_check(hits >= size / RIG_CHUNK / 2, "what came first stays: %u chunks", hits);
	rig_close(&r);
	rig_open(&r);
	for (uint32_t i = 0; i < 20; i++) {
		struct rig_file big = {.no = 1000 + i, .gen = 1, .size = 6 * RIG_CHUNK};

		rig_put(&r, &big);
		rig_check(disk_used_max(d, true) <= size, "du above the limit while culling");
		rig_check(i > 10 || rig_get_all(&r, &big) == 6, "after a restart what nobody uses makes room (file %u)", i);
	}
	rig_check(rig_stats(&r).culled_bytes > 0, "something was culled");
	rig_close(&r);
	/* A smaller budget is reached by culling alone. */
	r.cfg.size_bytes = 4 * MIB;
	rig_open(&r);
	rig_idle(&r, false);
	rig_check(disk_used(d) <= 4 * MIB, "culled down to the new limit: %llu", (unsigned long long)disk_used(d));
	rig_check(rig_stats(&r).chunks > 10, "and not to nothing");
	rig_close(&r);
	disk_free(d);
}

/* The owner of the policy drops tiny files, no block of which can be punched: the space comes back all the same. */
static void tiny_files(void)
{
	const uint32_t n = 20000;
	struct disk *d = disk_new(64 * MIB, 1000);
	uint32_t kept = 0, hits = 0;
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), 8 * MIB);
	r.takes_care = true;
	rig_open(&r);
	for (kept = 0; kept < n && r.n_refused == 0; kept++)
		(void)rig_admit(&r, &(struct rig_file){.no = kept, .gen = 1, .size = 1000}, 0);
	rig_idle(&r, false);
	rig_check(r.last_err == -ENOSPC && r.n_asked > 0, "full after %u", kept);
	for (uint32_t i = 0; i < kept; i++)
		if (i % 16 != 0)
			rig_drop(&r, &(struct rig_file){.no = i, .gen = 1, .size = 1000}, 0);
	rig_idle(&r, false);
	for (uint32_t i = 0; i < 2000; i++)
		(void)rig_admit(&r, &(struct rig_file){.no = n + i, .gen = 1, .size = 1000}, 0);
	rig_idle(&r, false);
	for (uint32_t i = 0; i < 2000; i++)
		hits += rig_get(&r, &(struct rig_file){.no = n + i, .gen = 1, .size = 1000}, 0);
	rig_check(hits == 2000, "there is room again: %u of 2000", hits);
	rig_check(r.n_lost > 0, "what went along was told");
	rig_check(disk_used_max(d, false) <= 8 * MIB, "du above the limit");
	rig_close(&r);
	disk_free(d);
}

/* A third of a full tier's tiny files changes each time: what the tier holds of the dataset as it is now does not dwindle. */
static void changing_tiny_files(void)
{
	const uint32_t n_max = 20000;
	struct disk *d = disk_new(64 * MIB, 1000);
	uint32_t *gens = calloc(n_max, sizeof(*gens)), kept, hits;
	struct rig r;

	rig_check(gens != NULL, "memory");
	rig_init(&r, DISK_DIR, disk_io(d), 4 * MIB);
	rig_open(&r);
	for (kept = 0; kept < n_max && r.n_refused == 0; kept++)
		(void)rig_admit(&r, &(struct rig_file){.no = kept, .gen = 1, .size = 1000}, 0);
	rig_idle(&r, false);
	rig_check(r.last_err == -ENOSPC && kept > 1000, "full after %u", kept);
	for (uint32_t round = 0; round < 12; round++) {
		for (uint32_t i = round % 3; i < kept; i += 3)
			gens[i]++;
		for (uint32_t pass = 0; pass < 3; pass++) {
			hits = 0;
			for (uint32_t i = 0; i < kept; i++) {
				struct rig_file f = {.no = i, .gen = 1 + gens[i], .size = 1000};

				if (rig_get(&r, &f, 0))
					hits++;
				else
					(void)rig_admit(&r, &f, 0);
			}
			rig_idle(&r, false);
		}
		rig_check(hits > kept / 2, "round %u: %u of %u", round, hits, kept);
	}
	rig_check(disk_used_max(d, false) <= 4 * MIB, "du above the limit");
	rig_close(&r);
	disk_free(d);
	free(gens);
}

static bool stop_at_once(void *ctx, const struct tier_scrub_progress *p)
{
	(void)p;
	*(int *)ctx += 1;
	return false;
}

static void scrub(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct tier_scrub_progress p;
	struct disk_file f;
	int calls = 0;
	struct rig r;

	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	rig_check(tier_scrub(r.t, NULL, NULL, &p) == 0 && p.done_chunks == 12 && p.bad_chunks == 0, "scrub: all is good");
	rig_check(tier_scrub(r.t, stop_at_once, &calls, &p) == -ECANCELED && calls == 1, "scrub: stopped");
	rig_check(disk_file(d, ".d", 0, &f), "a data file");
	f.data[5 * RIG_CHUNK + 77] ^= 4;
	rig_check(disk_file(d, ".p", 0, &f), "a pack");
	f.data[9000] ^= 1;
	rig_check(tier_scrub(r.t, NULL, NULL, &p) == 0 && p.bad_chunks == 2, "scrub: two are bad");
	rig_check(rig_get_all(&r, &BIG) == 10 && rig_get_all(&r, &SMALL) == 0, "scrub: and dropped");
	rig_check(rig_stats(&r).bad == 2 && r.n_lost == 2, "scrub: counted and told");
	rig_close(&r);
	disk_free(d);
}

static void passthrough(void)
{
	struct disk *d = disk_new(64 * MIB, 1000);
	struct hfs_identity id = rig_identity(&BIG);
	char path[64];
	struct rig r;
	int fd = -1;

	rig_path(&BIG, path);
	rig_init(&r, DISK_DIR, disk_io(d), 32 * MIB);
	rig_open(&r);
	for (uint32_t i = 1; i < rig_chunks(&BIG); i++)
		rig_check(rig_admit(&r, &BIG, i) == 0, "admit");
	rig_idle(&r, false);
	(void)rig_get_all(&r, &BIG);
	rig_check(tier_passthrough_open(r.t, &id, path, &fd) == -ENOENT, "not complete");
	rig_check(rig_admit(&r, &BIG, 0) == 0, "admit");
	rig_idle(&r, false);
	rig_check(tier_passthrough_open(r.t, &id, path, &fd) == -ENOENT, "not verified");
	rig_check(rig_get_all(&r, &BIG) == 11, "verified");
	rig_check(tier_passthrough_open(r.t, &id, path, &fd) == 0, "complete and verified");
	rig_drop(&r, &BIG, 2);
	rig_idle(&r, false);
	rig_check(rig_get_all(&r, &BIG) == 11, "pinned: a drop is not obeyed");
	uint8_t byte;
	rig_check(disk_io(d)->pread(d != NULL ? disk_io(d)->ctx : NULL, fd, &byte, 1, 2 * RIG_CHUNK + 5) == 1 &&
			  rig_is_right(&BIG, 2 * RIG_CHUNK + 5, &byte, 1),
		  "the descriptor shows the file");
	tier_passthrough_close(r.t, &id, path);
	rig_drop(&r, &BIG, 2);
	rig_idle(&r, false);
	rig_check(rig_get_all(&r, &BIG) == 0, "passed through once: unlinked whole, never punched");
	rig_check(disk_io(d)->pread(disk_io(d)->ctx, fd, &byte, 1, 2 * RIG_CHUNK + 5) == 1 &&
			  rig_is_right(&BIG, 2 * RIG_CHUNK + 5, &byte, 1),
		  "who has it open keeps the bytes");
	(void)disk_io(d)->close(disk_io(d)->ctx, fd);
	rig_close(&r);
	disk_free(d);
}

int main(void)
{
	keeps_over_restart();
	early_readers();
	generations();
	datasets();
	drops();
	budget();
	tiny_files();
	changing_tiny_files();
	scrub();
	passthrough();
	(void)puts("ok");
	return 0;
}
