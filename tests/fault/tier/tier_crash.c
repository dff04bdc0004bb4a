/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_crash.c - power loss: what was not synced is kept, dropped or garbled, sector by sector.
 *
 * Each run fills, replaces, drops and reads at random, loses power at a random call, starts on what is left, and verifies every byte; what
 * was synced and not touched since must still be a hit. tier_crash [RUNS] (500).
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define FILES 24
#define SIZE (8 * MIB)

struct world {
	struct rig_file files[FILES];
	/* Per chunk: on disk and synced, and not dropped or replaced since. */
	bool is_synced[FILES][16], is_put[FILES][16];
	uint64_t rng;
};

static void renew(struct world *w, uint32_t i)
{
	struct rig_file *f = &w->files[i];

	f->no = i;
	f->gen++;
	f->size = i % 2 == 0 ? RIG_CHUNK + 1 + rig_next(&w->rng) % (5 * RIG_CHUNK) : 1 + rig_next(&w->rng) % RIG_CHUNK;
	memset(w->is_synced[i], 0, sizeof(w->is_synced[i]));
	memset(w->is_put[i], 0, sizeof(w->is_put[i]));
}

static void step(struct world *w, struct rig *r)
{
	uint32_t i = (uint32_t)(rig_next(&w->rng) % FILES), dice = (uint32_t)(rig_next(&w->rng) % 100);
	struct rig_file *f = &w->files[i];
	uint32_t c = (uint32_t)(rig_next(&w->rng) % rig_chunks(f));

	if (dice < 60) {
		w->is_put[i][c] = rig_admit(r, f, c) == 0 || w->is_put[i][c];
	} else if (dice < 75) {
		(void)rig_get(r, f, c);
	} else if (dice < 83) {
		rig_drop(r, f, c);
		w->is_put[i][c] = w->is_synced[i][c] = false;
	} else if (dice < 93) {
		renew(w, i);
	} else {
		rig_idle(r, true);
		if (rig_stats(r).state == TIER_ON) /* else the power is off */
			for (uint32_t k = 0; k < FILES; k++)
				for (uint32_t n = 0; n < rig_chunks(&w->files[k]); n++)
					w->is_synced[k][n] = w->is_synced[k][n] || (w->is_put[k][n] && rig_get(r, &w->files[k], n));
	}
}

/* Returns how many synced chunks were found again: all. */
static uint32_t verify(struct world *w, struct disk *d, struct rig *r)
{
	uint32_t n_found = 0;

	rig_open(r);
	for (uint32_t k = 0; k < FILES; k++) {
		for (uint32_t n = 0; n < rig_chunks(&w->files[k]); n++) {
			bool is_hit = rig_get(r, &w->files[k], n);

			n_found += w->is_synced[k][n] && is_hit;
			rig_check(is_hit || !w->is_synced[k][n], "file %u chunk %u was synced and is not found", k, n);
			w->is_put[k][n] = w->is_synced[k][n] = is_hit;
		}
		/* Nobody may see older generations. */
		struct rig_file old = w->files[k];

		old.gen--;
		(void)rig_get_all(r, &old);
	}
	rig_idle(r, true);
	rig_check(rig_stats(r).bytes == disk_used(d), "counted right after a crash: %llu, du %llu",
		  (unsigned long long)rig_stats(r).bytes, (unsigned long long)disk_used(d));
	return n_found;
}

int main(int argc, char **argv)
{
	const uint32_t runs = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 500;
	uint64_t seed = rig_seed(), found = 0, bad = 0, hits = 0;
	struct world *w = rig_alloc(sizeof(*w));
	struct disk *d = NULL;
	struct rig r;

	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	for (uint32_t run = 0; run < runs; run++) {
		if (run % 25 == 0) { /* a disk lives through several crashes */
			if (d != NULL)
				rig_close(&r);
			disk_free(d);
			d = disk_new(64 * MIB, 1000);
			memset(w, 0, sizeof(*w));
			w->rng = seed + run;
			for (uint32_t i = 0; i < FILES; i++)
				renew(w, i);
			rig_init(&r, DISK_DIR, disk_io(d), SIZE);
			rig_open(&r);
		}
		disk_power_off_at(d, 1 + rig_next(&w->rng) % 3000);
		for (uint32_t i = 0; i < 200 && rig_stats(&r).state == TIER_ON; i++)
			step(w, &r);
		disk_power_off(d);
		(void)tier_destroy(r.t, RIG_WAIT_MS); /* writes nothing more */
		disk_power_cut(d, rig_next(&w->rng));
		found += verify(w, d, &r);
		bad += rig_stats(&r).bad;
		hits += rig_stats(&r).hits;
	}
	rig_close(&r);
	disk_free(d);
	free(w);
	rig_check(runs < 50 || (bad > 0 && found > 0), "the crashes left something bad (%llu) and something synced (%llu)",
		  (unsigned long long)bad, (unsigned long long)found);
	(void)printf("ok: %u crashes, %llu synced chunks found again, %llu bad ones refused, %llu hits\n", runs,
		     (unsigned long long)found, (unsigned long long)bad, (unsigned long long)hits);
	return 0;
}
