/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/preload/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int ring_create(struct ring *r, uint32_t slots, uint64_t slot_bytes)
{
	int err;

	*r = (struct ring){ .fd = -1, .slots = slots, .slot_bytes = slot_bytes };
	if (!slots || !slot_bytes || slot_bytes % RING_PAGE_BYTES)
		return -EINVAL;
	if (__builtin_mul_overflow(slot_bytes, slots, &r->bytes) || r->bytes > INT64_MAX)
		return -EOVERFLOW;
	r->fd = memfd_create("hintfs-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (r->fd < 0)
		return -errno;
	if (ftruncate(r->fd, (off_t)r->bytes) < 0)
		goto fail;
	if (fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		goto fail;
	r->base = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (r->base == MAP_FAILED) {
		r->base = NULL;
		goto fail;
	}
	return 0;
fail:
	err = -errno;
	ring_destroy(r);
	return err;
}

/* Preferred, not bound: a full node then means slower, not dead. Advice only, so the result does not matter. */
static void node_prefer(const struct ring *r, int node)
{
	unsigned long mask[16] = { 0 };
	const unsigned bits = 8 * sizeof(mask[0]);

	if (node < 0 || (unsigned)node >= bits * 16)
		return;
	mask[(unsigned)node / bits] = 1ul << ((unsigned)node % bits);
	(void)syscall(SYS_mbind, r->base, r->bytes, MPOL_PREFERRED, mask, (unsigned long)(bits * 16), 0);
}

int ring_populate(struct ring *r, int numa_node)
{
	uint64_t at;

	node_prefer(r, numa_node);
	if (madvise(r->base, r->bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return errno == EFAULT || errno == EHWPOISON ? -ENOMEM : -errno;
	/* Before Linux 5.14: allocate first (touching could end in SIGBUS), then touch. */
	if (fallocate(r->fd, 0, 0, (off_t)r->bytes) < 0)
		return errno == ENOSPC ? -ENOMEM : -errno;
	for (at = 0; at < r->bytes; at += RING_PAGE_BYTES)
		__atomic_store_n(r->base + at, 0, __ATOMIC_RELAXED);
	return 0;
}

/* Chunk size: whole slots if one fits, else parts of a slot. */
static uint64_t chunk_bytes(const struct ring *r)
{
	if (r->slot_bytes > RING_CHUNK_MAX_BYTES)
		return RING_CHUNK_MAX_BYTES;
	return RING_CHUNK_MAX_BYTES / r->slot_bytes * r->slot_bytes;
}

/* Length of the chunk that begins at `at`: a chunk ends at its size, at the slot's end if parts, at the ring's end. */
static uint64_t chunk_length(const struct ring *r, uint64_t at)
{
	uint64_t len = chunk_bytes(r);
	uint64_t end = r->slot_bytes > RING_CHUNK_MAX_BYTES ? at - at % r->slot_bytes + r->slot_bytes : r->bytes;

	return len < end - at ? len : end - at;
}

uint64_t ring_chunk_rest(const struct ring *r, uint32_t slot_no, uint64_t at)
{
	uint64_t chunk = chunk_bytes(r);
	uint64_t pos, start;

	if (r->slot_bytes > RING_CHUNK_MAX_BYTES) {
		start = (uint64_t)slot_no * r->slot_bytes + at / chunk * chunk;
		return chunk_length(r, start) - at % chunk;
	}
	pos = (uint64_t)slot_no * r->slot_bytes + at;
	start = pos / chunk * chunk;
	return chunk_length(r, start) - (pos - start);
}

/* Unregister the chunks below `end`, last first. Returns how many refused. */
static unsigned chunks_unregister(struct ring *r, const struct cuda_rt *rt, uint64_t end)
{
	uint64_t starts_per_slot = r->slot_bytes > RING_CHUNK_MAX_BYTES ?
		(r->slot_bytes + RING_CHUNK_MAX_BYTES - 1) / RING_CHUNK_MAX_BYTES : 0;
	unsigned bad = 0;

	while (end) {
		uint64_t start;

		if (starts_per_slot) {
			uint64_t slot = (end - 1) / r->slot_bytes;

			start = slot * r->slot_bytes + (end - 1 - slot * r->slot_bytes) / RING_CHUNK_MAX_BYTES * RING_CHUNK_MAX_BYTES;
		} else {
			start = (end - 1) / chunk_bytes(r) * chunk_bytes(r);
		}
		if (rt->HostUnregister(r->base + start)) {
			cuda_rt_clear(rt);
			bad++;
		}
		end = start;
	}
	return bad;
}

int ring_register(struct ring *r, const struct cuda_rt *rt, char *reason, size_t size)
{
	uint64_t at = 0;

	while (at < r->bytes) {
		uint64_t len = chunk_length(r, at);
		int err = rt->HostRegister(r->base + at, len, CU_HOST_REGISTER_PORTABLE);

		if (err) {
			cuda_rt_explain(rt, "HostRegister", err, reason, size);
			r->is_leaked = chunks_unregister(r, rt, at) != 0;
			return -ENODEV;
		}
		at += len;
	}
	r->backend = rt->is_fake ? RING_FAKE : RING_CUDA;
	r->pinned_bytes = r->bytes;
	return 0;
}

int ring_unregister(struct ring *r, const struct cuda_rt *rt)
{
	if (r->backend != RING_CUDA && r->backend != RING_FAKE)
		return 0;
	r->is_leaked |= chunks_unregister(r, rt, r->bytes) != 0;
	r->backend = RING_HOST;
	r->pinned_bytes = 0;
	return r->is_leaked ? -ENODEV : 0;
}

int ring_mlock(struct ring *r)
{
	if (mlock(r->base, r->bytes) < 0)
		return -errno;
	r->backend = RING_HOST_LOCKED;
	r->pinned_bytes = r->bytes;
	return 0;
}

void ring_destroy(struct ring *r)
{
	if (!r)
		return;
	if (r->base && !r->is_leaked)
		(void)munmap(r->base, r->bytes);
	if (r->fd >= 0)
		(void)close(r->fd);
	r->base = NULL;
	r->fd = -1;
}

const char *ring_backend_name(enum ring_backend b)
{
	static const char *const names[] = { "host", "host-locked", "cuda", "fake" };

	return names[b];
}
