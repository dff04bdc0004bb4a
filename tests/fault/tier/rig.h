/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/rig.h - what the tests of the disk tier share: files that know their own bytes, a tier with short times, and
 * the oracle: a read gives the right bytes or nothing.
 */
#ifndef TESTS_FAULT_TIER_RIG_H
#define TESTS_FAULT_TIER_RIG_H

#include "cache/tier.h"
#include "cache/tier_io.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RIG_CHUNK 65536u
#define RIG_WAIT_MS 60000

extern _Thread_local bool rig_is_allocating; /* the tests' own memory never runs out */
void *rig_alloc(size_t n);
void *rig_realloc(void *p, size_t n);
uint64_t rig_next(uint64_t *state); /* splitmix64 */
uint64_t rig_seed(void);	    /* SEED= or of the clock; printed */
/* Ends the program with 1 unless ok. */
void rig_check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* File no in generation gen: its path, identity and bytes follow from these. */
struct rig_file {
	uint32_t no, gen;
	uint64_t size;
};
void rig_path(const struct rig_file *f, char path[64]);
struct hfs_identity rig_identity(const struct rig_file *f);
void rig_fill(const struct rig_file *f, uint64_t off, void *buf, size_t n);
bool rig_is_right(const struct rig_file *f, uint64_t off, const void *buf, size_t n);
uint32_t rig_chunks(const struct rig_file *f);

struct rig {
	struct tier *t;
	struct tier_config cfg;
	const char *dataset;
	_Atomic uint64_t n_admitted, n_refused, n_lost, n_asked;
	_Atomic int last_err;
	_Atomic uint32_t n_lent; /* buffers of rig_get() that the tier may still write to */
	bool takes_care; /* what must_free() answers */
};
/* dir, io and size; everything else to taste before rig_open(). */
void rig_init(struct rig *r, const char *dir, const struct tier_io *io, uint64_t size_bytes);
int rig_try_open(struct rig *r, char *why, size_t cap);
void rig_open(struct rig *r); /* and waits for adoption */
void rig_close(struct rig *r);
/* As rig_close(), but leaves everything as a dying process does: the disk's power must be off. */

/* Queue, waiting for room in the queue; what tier_admit() said. */
int rig_admit(struct rig *r, const struct rig_file *f, uint32_t chunk_no);
/* All chunks, and until they are on disk or were refused. */
void rig_put(struct rig *r, const struct rig_file *f);
/* True: a hit, and the bytes are right. Wrong bytes end the program. */
bool rig_get(struct rig *r, const struct rig_file *f, uint32_t chunk_no);
uint32_t rig_get_all(struct rig *r, const struct rig_file *f); /* chunks hit */
void rig_drop(struct rig *r, const struct rig_file *f, uint32_t chunk_no);
struct tier_stats rig_stats(struct rig *r);
void rig_idle(struct rig *r, bool need_synced);

#endif
