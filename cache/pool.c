/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/pool.c - see pool.h.
 */
#include "cache/pool.h"

#include "cache/base/arith.h"
#include "cache/base/err.h"
#include "cache/base/log.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define STEP_BYTES (UINT64_C(16) << 20) /* touched between two calls of ready() */
#define PAGE_BYTES 4096
#define HUGE_BYTES (UINT64_C(2) << 20) /* where the kernel can put a huge page; if its own are larger, nothing is lost */

struct slot {
	uint32_t n_pins;
	uint32_t next_free;
	bool is_released; /* free when the pins go */
	bool is_taken;
};

struct pool {
	/* const after create */
	struct pool_config cfg;
	uint32_t n_total;
	uint8_t *base;
	size_t map_bytes;
	pthread_t thread;
	bool has_thread;
	_Atomic bool is_stopping;

	/* guarded by cfg.lock */
	struct slot *slots;
	uint32_t n_ready, n_free, n_pinned, first_free;
	bool is_all_touched;
};

/*
 * Huge pages where the kernel has them: what the disk tier reads past the page cache is then one piece of memory a chunk, not 256.
 * A disk that takes 254 at most splits each such read, and pays for each piece besides. Measured on a virtio disk, 1 MiB chunks,
 * 16 at a time: 1.1 GB/s into small pages, 2.0 into huge ones. Not a memfd, as the kernel gives these small pages by default.
 */
static int memory_create(struct pool *p)
{
	size_t spare = p->map_bytes >= HUGE_BYTES ? HUGE_BYTES : 0, head;
	uint8_t *all = mmap(NULL, p->map_bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (all == MAP_FAILED)
		return -errno;
	head = spare > 0 ? (size_t)(-(uintptr_t)all % HUGE_BYTES) : 0;
	if (head > 0)
		(void)munmap(all, head);
	if (spare > head)
		(void)munmap(all + head + p->map_bytes, spare - head);
	p->base = all + head;
	(void)madvise(p->base, p->map_bytes, MADV_HUGEPAGE);
	(void)madvise(p->base, p->map_bytes, MADV_DONTFORK);
	(void)madvise(p->base, p->map_bytes, MADV_DONTDUMP);
	return 0;
}

int pool_create(const struct pool_config *cfg, struct pool **ret_p)
{
	uint64_t n = cfg->memory_bytes / cfg->chunk_bytes;
	struct pool *p;
	int err = -ENOMEM;

	if (n == 0 || n >= UINT32_MAX)
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		return -ENOMEM;
	p->cfg = *cfg;
	p->n_total = (uint32_t)n;
	p->map_bytes = (size_t)(n * cfg->chunk_bytes);
	p->first_free = UINT32_MAX;
	p->slots = calloc(n, sizeof(*p->slots));
	if (p->slots != NULL)
		err = memory_create(p);
	if (err < 0) {
		pool_destroy(p);
		return err;
	}
	*ret_p = p;
	return 0;
}

/* ---- touching ---- */

static int touch(uint8_t *from, size_t len)
{
	if (madvise(from, len, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno; /* out of memory, told instead of a SIGBUS later */
	for (size_t i = 0; i < len; i += PAGE_BYTES)
		((_Atomic uint8_t *)from)[i] = 0;
	return 0;
}

static uint32_t hand_in(struct pool *p, uint32_t n, bool is_last)
{
	uint32_t total;

	hfs_mutex_lock(p->cfg.lock);
	for (uint32_t i = 0; i < n; i++) { /* lowest number on top */
		p->slots[p->n_ready + n - 1 - i].next_free = p->first_free;
		p->first_free = p->n_ready + n - 1 - i;
	}
	p->n_ready += n;
	p->n_free += n;
	p->is_all_touched = is_last;
	total = p->n_ready;
	hfs_mutex_unlock(p->cfg.lock);
	return total;
}

static void *touch_main(void *arg)
{
	struct pool *p = arg;
	uint64_t chunk_bytes = p->cfg.chunk_bytes;
	uint32_t step = (uint32_t)hfs_max_u64(1, STEP_BYTES / chunk_bytes);
	uint32_t done = 0, n, total;
	bool is_last = false;
	int err = 0;

	while (!is_last && !atomic_load(&p->is_stopping)) {
		n = (uint32_t)hfs_min_u64(step, p->n_total - done);
		err = touch(p->base + done * chunk_bytes, n * chunk_bytes);
		if (err == -EINTR || err == -EAGAIN)
			continue;
		if (err < 0) {
			hfs_log(HFS_LOG_WARNING,
				"slot pool: only %u of %u slots, the rest is not to be had: %s; "
				"lower memory= or raise the memory limit",
				done, p->n_total, strerror(-err));
			n = 0;
		}
		done += n;
		is_last = done == p->n_total || err < 0;
		total = hand_in(p, n, is_last);
		p->cfg.ready(p->cfg.ctx, total, is_last);
	}
	return NULL;
}

int pool_start(struct pool *p)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&p->thread, NULL, touch_main, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	p->has_thread = err == 0;
	if (err == 0)
		(void)pthread_setname_np(p->thread, "hfs-pool");
	return -err;
}

void pool_stop(struct pool *p)
{
	if (!p->has_thread)
		return;
	atomic_store(&p->is_stopping, true);
	pthread_join(p->thread, NULL);
	p->has_thread = false;
}

void pool_destroy(struct pool *p)
{
	if (p == NULL)
		return;
	pool_stop(p);
	if (p->base != NULL)
		(void)munmap(p->base, p->map_bytes);
	free(p->slots);
	free(p);
}

/* ---- slots ---- */

struct slot_no pool_take(struct pool *p)
{
	uint32_t no = p->first_free;
	struct slot *s;

	if (no == UINT32_MAX)
		return SLOT_NONE;
	s = &p->slots[no];
	assert(!s->is_taken && s->n_pins == 0);
	p->first_free = s->next_free;
	p->n_free--;
	s->is_taken = true;
	s->is_released = false;
	return (struct slot_no){no};
}

static void slot_free(struct pool *p, uint32_t no)
{
	struct slot *s = &p->slots[no];

	s->is_taken = false;
	s->is_released = false;
	s->next_free = p->first_free;
	p->first_free = no;
	p->n_free++;
}

void pool_release(struct pool *p, struct slot_no s)
{
	assert(p->slots[s.no].is_taken && !p->slots[s.no].is_released);
	p->slots[s.no].is_released = true;
	if (p->slots[s.no].n_pins == 0)
		slot_free(p, s.no);
}

void pool_pin(struct pool *p, struct slot_no s)
{
	assert(p->slots[s.no].is_taken);
	if (p->slots[s.no].n_pins++ == 0)
		p->n_pinned++;
}

bool pool_unpin(struct pool *p, struct slot_no s)
{
	assert(p->slots[s.no].n_pins > 0);
	if (--p->slots[s.no].n_pins > 0)
		return false;
	p->n_pinned--;
	if (!p->slots[s.no].is_released)
		return false;
	slot_free(p, s.no);
	return true;
}

uint32_t pool_slots_total(const struct pool *p)
{
	return p->n_total;
}

uint32_t pool_slots_ready(const struct pool *p)
{
	return p->n_ready;
}

uint32_t pool_slots_free(const struct pool *p)
{
	return p->n_free;
}

uint32_t pool_slots_pinned(const struct pool *p)
{
	return p->n_pinned;
}

bool pool_is_filling_up(const struct pool *p)
{
	return !p->is_all_touched;
}

void *pool_slot_data(const struct pool *p, struct slot_no s)
{
	return p->base + (uint64_t)s.no * p->cfg.chunk_bytes;
}
