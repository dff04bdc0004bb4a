/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/disk.h - a disk in memory behind struct tier_io: it fails, fills up, hangs and loses power on command.
 *
 * 1. Directories, regular files, one component per name; the root is DISK_DIR. Blocks are allocated as written, punched as asked.
 * 2. Everything since the last fdatasync of a file may be kept, dropped or garbled by disk_power_cut(), sector by sector, in any
 *    combination; a created, removed or renamed name may be kept or not. fdatasync of a file keeps its name.
 * 3. After disk_power_off() no call changes anything: each answers EIO.
 * Any thread.
 */
#ifndef TESTS_FAULT_TIER_DISK_H
#define TESTS_FAULT_TIER_DISK_H

#include "cache/tier_io.h"

#include <stdbool.h>
#include <stdint.h>

#define DISK_DIR "/disk/cache"

struct disk;

struct disk *disk_new(uint64_t bytes, uint32_t inodes);
void disk_free(struct disk *d);
const struct tier_io *disk_io(struct disk *d);

/* Faults. Calls are counted from disk_fail_reset() on; opens, closes and stats included, the lock not. */
void disk_fail_reset(struct disk *d);
void disk_fail_nth(struct disk *d, uint64_t nth, int err, bool is_sticky); /* the nth call from now, 1-based; and all later ones */
void disk_fail_prob(struct disk *d, double p, int err, uint64_t seed);	   /* reads, writes, syncs */
void disk_short(struct disk *d, bool is_on);				   /* reads and writes move at most 4,000 bytes */
uint64_t disk_calls(struct disk *d);
uint64_t disk_failed(struct disk *d); /* how many calls were failed: the proof that the fault was met */
void disk_resize(struct disk *d, uint64_t bytes, uint32_t inodes);
void disk_hang(struct disk *d, bool is_on); /* pread and pwrite of files wait */
void disk_hang_listing(struct disk *d, bool is_on); /* listing a directory that has an index or a pack in it waits */
uint32_t disk_wait_hung(struct disk *d, uint32_t n, unsigned wait_ms); /* until n calls hang; how many do */

void disk_power_off(struct disk *d);
void disk_power_off_at(struct disk *d, uint64_t nth);
void disk_power_cut(struct disk *d, uint64_t seed); /* what is left; the power is on again, all descriptors are gone */

/* What du would say, and what an attacker may do. */
uint64_t disk_used(struct disk *d);
uint64_t disk_used_max(struct disk *d, bool is_reset);
uint32_t disk_fds(struct disk *d);
/* The n-th file with that ending: NULL: none. Valid until the disk changes. */
struct disk_file {
	uint8_t *data;
	uint64_t size;
	const char *name;
};
bool disk_file(struct disk *d, const char *ending, uint32_t n, struct disk_file *ret);
void disk_swap(struct disk *d, const char *ending, uint32_t a, uint32_t b); /* contents */
void disk_cut(struct disk *d, const char *ending, uint32_t n, uint64_t size);
bool disk_remove(struct disk *d, const char *ending, uint32_t n);
void disk_replace_root(struct disk *d, bool is_back); /* another directory at DISK_DIR; or ours again */

#endif
