/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/rig.c - see rig.h.
 */
#include "tests/fault/tier/rig.h"

#include "cache/base/arith.h"
#include "cache/base/log.h"
#include "cache/base/time.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void rig_check(bool ok, const char *fmt, ...)
{
	va_list args;

	if (ok)
		return;
	(void)fputs("FAILED: ", stderr);
	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	(void)fflush(NULL);
	_exit(1);
}

_Thread_local bool rig_is_allocating;

void *rig_realloc(void *p, size_t n)
{
	rig_is_allocating = true;
	atomic_signal_fence(memory_order_seq_cst); /* the compiler knows realloc and thinks that it does not look */
	p = realloc(p, n);
	atomic_signal_fence(memory_order_seq_cst);
	rig_is_allocating = false;
	rig_check(p != NULL, "no memory");
	return p;
}

void *rig_alloc(size_t n)
{
	return memset(rig_realloc(NULL, n), 0, n);
}

uint64_t rig_next(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t rig_seed(void)
{
	const char *text = getenv("SEED");
	uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : hfs_now_ns() ^ (uint64_t)getpid() << 40;

	(void)printf("SEED=%llu\n", (unsigned long long)seed);
	(void)fflush(stdout);
	return seed;
}

/* ---- files ---- */

void rig_path(const struct rig_file *f, char path[64])
{
	(void)snprintf(path, 64, "train/%02u/sample-%06u.bin", f->no % 100, f->no);
}

struct hfs_identity rig_identity(const struct rig_file *f)
{
	return (struct hfs_identity){.dev = 99,
				     .ino = 1000 + f->no,
				     .size_bytes = f->size,
				     .mtime_ns = INT64_C(1700000000000000000) + f->gen,
				     .ctime_ns = INT64_C(1700000000000000000) + 2 * (int64_t)f->gen};
}

static uint64_t word_at(const struct rig_file *f, uint64_t off)
{
	uint64_t x = (uint64_t)f->no << 40 ^ (uint64_t)f->gen << 32 ^ off;

	return rig_next(&x);
}

void rig_fill(const struct rig_file *f, uint64_t off, void *buf, size_t n)
{
	uint8_t *p = buf;
	uint64_t w;

	while (n > 0) {
		size_t skip = off % 8, len = hfs_min_u64(8 - skip, n);

		w = word_at(f, off - skip);
		memcpy(p, (uint8_t *)&w + skip, len);
		p += len;
		off += len;
		n -= len;
	}
}

bool rig_is_right(const struct rig_file *f, uint64_t off, const void *buf, size_t n)
{
	uint8_t *want = rig_alloc(n);
	bool is_right;

	rig_fill(f, off, want, n);
	is_right = memcmp(want, buf, n) == 0;
	free(want);
	return is_right;
}

uint32_t rig_chunks(const struct rig_file *f)
{
	return (uint32_t)hfs_div_up(f->size, RIG_CHUNK);
}

/* ---- the tier ---- */

static void on_admitted(void *ctx, uint64_t cookie, int err)
{
	struct rig *r = ctx;

	(void)cookie;
	atomic_fetch_add(err == 0 ? &r->n_admitted : &r->n_refused, 1);
	if (err != 0)
		atomic_store(&r->last_err, err);
}

static bool on_must_free(void *ctx, uint64_t bytes)
{
	struct rig *r = ctx;

	(void)bytes;
	atomic_fetch_add(&r->n_asked, 1);
	return r->takes_care;
}

static void on_lost(void *ctx, const struct hfs_identity *id, uint64_t chunk_no)
{
	struct rig *r = ctx;

	(void)chunk_no;
	rig_check(id->dev == 99, "a lost chunk has the identity that the caller knows");
	atomic_fetch_add(&r->n_lost, 1);
}

void rig_init(struct rig *r, const char *dir, const struct tier_io *io, uint64_t size_bytes)
{
	const uint64_t ms = HFS_NS_PER_MS;

	memset(r, 0, sizeof(*r));
	r->dataset = "server:/export/data";
	r->cfg = (struct tier_config){.dir = dir,
				      .origin_dev = 99,
				      .size_bytes = size_bytes,
				      .chunk_bytes = RIG_CHUNK,
				      .io = io,
				      .cb = {.ctx = r, .admitted = on_admitted, .must_free = on_must_free, .lost = on_lost},
				      .read_wait_ns = 20000 * ms,
				      .write_wait_ns = 20000 * ms,
				      .sync_ns = 20 * ms,
				      .check_ns = 20 * ms,
				      .probe_ns = 10 * ms};
}

int rig_try_open(struct rig *r, char *why, size_t cap)
{
	r->cfg.dataset = r->dataset;
	r->cfg.dataset_bytes = strlen(r->dataset);
	return tier_create(&r->cfg, &r->t, why, cap);
}

void rig_open(struct rig *r)
{
	char why[512] = "";
	int err = rig_try_open(r, why, sizeof(why));

	rig_check(err == 0, "open: %s: %s", strerror(-err), why);
	rig_check(tier_wait_adopted(r->t, RIG_WAIT_MS), "adoption ends");
}

void rig_close(struct rig *r)
{
	rig_check(tier_destroy(r->t, RIG_WAIT_MS), "the tier ends");
	rig_check(atomic_load(&r->n_lent) == 0, "everything that was lent is back");
	r->t = NULL;
}

int rig_admit(struct rig *r, const struct rig_file *f, uint32_t chunk_no)
{
	uint32_t len = hfs_chunk_len(f->size, RIG_CHUNK, chunk_no);
	struct hfs_identity id = rig_identity(f);
	uint8_t *data = rig_alloc(len);
	char path[64];
	int err;

	rig_path(f, path);
	rig_fill(f, (uint64_t)chunk_no * RIG_CHUNK, data, len);
	while ((err = tier_admit(r->t, &id, path, chunk_no, data, len, chunk_no)) == -EAGAIN) {
		struct tier_stats s = rig_stats(r);

		if (s.state == TIER_ON && s.queued > 0)
			rig_idle(r, false);
		else if (s.state != TIER_ON)
			break;
	}
	free(data);
	return err;
}

void rig_put(struct rig *r, const struct rig_file *f)
{
	for (uint32_t i = 0; i < rig_chunks(f); i++)
		(void)rig_admit(r, f, i);
	rig_idle(r, false);
}

struct lent {
	struct rig *r;
	uint8_t *buf;
};

/* The disk has let go of it: until now it may have been written, which ASan would see. */
static void lent_back(void *ctx, void *arg)
{
	struct lent *l = arg;

	(void)ctx;
	free(l->buf);
	atomic_fetch_sub(&l->r->n_lent, 1);
	free(l);
}

/* A whole chunk, straight into a buffer of ours. */
static bool get_into(struct rig *r, const struct rig_file *f, uint32_t chunk_no, uint32_t len, const char *path)
{
	const size_t room = (len + TIER_LOAN_ALIGN - 1) / TIER_LOAN_ALIGN * TIER_LOAN_ALIGN;
	struct hfs_identity id = rig_identity(f);
	struct lent *l = rig_alloc(sizeof(*l));
	struct tier_loan loan = {.back = lent_back, .arg = l};
	uint8_t *buf = aligned_alloc(TIER_LOAN_ALIGN, room);
	enum tier_got got;

	rig_check(buf != NULL, "memory");
	*l = (struct lent){.r = r, .buf = buf};
	atomic_fetch_add(&r->n_lent, 1);
	got = tier_read_into(r->t, &id, path, chunk_no, buf, &loan);
	if (got == TIER_LENT) /* l may be gone */
		return false;
	rig_check(got == TIER_MISS || rig_is_right(f, (uint64_t)chunk_no * RIG_CHUNK, buf, len),
		  "WRONG BYTES of file %u generation %u chunk %u", f->no, f->gen, chunk_no);
	lent_back(NULL, l);
	return got == TIER_HIT;
}

bool rig_get(struct rig *r, const struct rig_file *f, uint32_t chunk_no)
{
	uint32_t len = hfs_chunk_len(f->size, RIG_CHUNK, chunk_no);
	uint32_t off = len > 3 ? f->no % 3 : 0; /* not always the whole of it */
	struct hfs_identity id = rig_identity(f);
	uint8_t *buf;
	char path[64];
	bool is_hit;

	rig_path(f, path);
	if (len > 0 && (f->no + chunk_no) % 2 == 0)
		return get_into(r, f, chunk_no, len, path);
	buf = rig_alloc(len);
	is_hit = tier_read(r->t, &id, path, chunk_no, off, len - off, buf);
	rig_check(!is_hit || rig_is_right(f, (uint64_t)chunk_no * RIG_CHUNK + off, buf, len - off),
		  "WRONG BYTES of file %u generation %u chunk %u", f->no, f->gen, chunk_no);
	free(buf);
	return is_hit;
}

uint32_t rig_get_all(struct rig *r, const struct rig_file *f)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < rig_chunks(f); i++)
		n += rig_get(r, f, i);
	return n;
}

void rig_drop(struct rig *r, const struct rig_file *f, uint32_t chunk_no)
{
	struct hfs_identity id = rig_identity(f);
	char path[64];

	rig_path(f, path);
	tier_drop(r->t, &id, path, chunk_no);
}

struct tier_stats rig_stats(struct rig *r)
{
	struct tier_stats s;

	tier_stats_get(r->t, &s);
	return s;
}

void rig_idle(struct rig *r, bool need_synced)
{
	uint64_t deadline_ns = hfs_now_ns() + RIG_WAIT_MS * HFS_NS_PER_MS;
	struct tier_stats s = {.state = TIER_ON};
	bool is_idle = false;

	/* In trouble it does not come to rest. */
	while (!is_idle && s.state == TIER_ON && hfs_now_ns() < deadline_ns) {
		is_idle = tier_wait_idle(r->t, need_synced, 20);
		s = rig_stats(r);
	}
	rig_check(is_idle || s.state != TIER_ON, "the tier comes to rest (state %s, %u queued, %llu not synced)",
		  tier_state_name(s.state), s.queued, (unsigned long long)s.unsynced_bytes);
}
