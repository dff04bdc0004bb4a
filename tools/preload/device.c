/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/device.c - the CUDA side: registration, copies, and when a slot is free again.
 *
 * Callers: loader.c. The keeper thread makes every call that creates, registers, queries or destroys; the caller's
 * thread only queues copies and records events, and gets its current device back.
 *
 * Invariants
 *  1. The ring is registered before the first copy and unregistered before it is unmapped, by the keeper.
 *  2. One event per slot. Work on a second stream is chained: that stream first waits for the event, then records it
 *     again, so the event always stands for all work queued on the slot.
 *  3. A slot whose event cannot be recorded or queried is LOST: never refilled, as nobody knows what still reads it.
 *  4. After a failure in use, no more copies are queued; batches go on in host memory and the reason is kept.
 */
#include "tools/preload/loader_i.h"

#include <stdio.h>
#include <string.h>

#define POLL_MIN_NS 100000u  /* first look at an event after release: a 1 MiB copy takes about that long */
#define POLL_MAX_NS 2000000u /* then seldom: a slot is tens of milliseconds of work */

static void failure_note(struct hintfs_loader *l, const char *call, int cuda_err)
{
	char text[sizeof(l->reason) - 32];

	cuda_rt_explain(&l->rt, call, cuda_err, text, sizeof(text));
	atomic_store(&l->is_cuda_on, false);
	sync_lock(&l->lock);
	snprintf(l->reason, sizeof(l->reason), "CUDA failed in use: %s", text);
	sync_unlock(&l->lock);
	(void)loader_error(-ENODEV, "%s", text);
}

/* ---- the caller's thread ---------------------------------------------------------- */

/* Make the loader's device current. *ret_old: what to set back, or -1. */
static int device_enter(struct hintfs_loader *l, int *ret_old)
{
	int old = -1, err = l->rt.GetDevice(&old);

	*ret_old = -1;
	if (err) {
		failure_note(l, "GetDevice", err);
		return -ENODEV;
	}
	if (old == l->rt.device)
		return 0;
	err = l->rt.SetDevice(l->rt.device);
	if (err) {
		failure_note(l, "SetDevice", err);
		return -ENODEV;
	}
	*ret_old = old;
	return 0;
}

static void device_leave(struct hintfs_loader *l, int old)
{
	if (old >= 0 && l->rt.SetDevice(old))
		cuda_rt_clear(&l->rt);
}

/* Let the slot's event stand for the work queued on `stream` too (invariant 2). */
static int event_extend(struct hintfs_loader *l, struct slot *s, cu_stream stream)
{
	const char *call = "StreamWaitEvent";
	int err = s->has_event_work ? l->rt.StreamWaitEvent(stream, s->event, 0) : 0;

	if (!err) {
		call = "EventRecord";
		err = l->rt.EventRecord(s->event, stream);
	}
	if (!err) {
		s->has_event_work = true;
		return 0;
	}
	failure_note(l, call, err);
	/* The last way to be sure: wait for the stream here and now. */
	err = l->rt.StreamSynchronize(stream);
	if (err) {
		cuda_rt_clear(&l->rt);
		s->is_doubtful = true;
	}
	return -ENODEV;
}

/* Queue [from, from + len) of the slot, never across a registration. ret_queued: something may be in flight. */
static int range_copy(struct hintfs_loader *l, struct slot *s, char *dst, uint64_t from, uint64_t len, cu_stream stream,
		      bool *ret_queued)
{
	while (len) {
		uint64_t part = ring_chunk_rest(&l->ring, s->slot_no, from);
		int err;

		if (part > len)
			part = len;
		err = l->rt.MemcpyAsync(dst, s->base + from, part, CU_MEMCPY_HOST_TO_DEVICE, stream);
		if (err) {
			failure_note(l, "MemcpyAsync", err);
			return -ENODEV;
		}
		*ret_queued = true;
		dst += part;
		from += part;
		len -= part;
	}
	return 0;
}

int device_copy(struct hintfs_loader *l, struct slot *s, void *dst, uint64_t cap, void *stream, unsigned flags)
{
	uint64_t from = flags & HINTFS_COPY_META ? 0 : l->meta_bytes;
	uint64_t len = l->meta_bytes + s->pub.payload_bytes - from;
	uint64_t start = sync_now_ns();
	bool is_queued = false;
	int old, err, err2;

	if (!atomic_load(&l->is_cuda_on))
		return loader_error(-ENODEV, "no device copies: the ring is not registered with CUDA, or CUDA failed (see stats)");
	if (len > cap)
		return loader_error(-ENOSPC, "the copy needs %llu bytes, the destination has %llu", (unsigned long long)len,
				    (unsigned long long)cap);
	err = device_enter(l, &old);
	if (err)
		return err;
	err = range_copy(l, s, dst, from, len, stream, &is_queued);
	if (is_queued) {
		err2 = event_extend(l, s, stream);
		err = err ? err : err2;
	}
	if (!err && flags & HINTFS_COPY_SYNC) {
		int cuda_err = l->rt.StreamSynchronize(stream);

		if (cuda_err) {
			failure_note(l, "StreamSynchronize", cuda_err);
			err = -ENODEV;
		}
	}
	device_leave(l, old);
	sync_lock(&l->lock);
	l->figures.copy_enqueue_ns += sync_now_ns() - start;
	l->figures.copied_bytes += err ? 0 : len;
	sync_unlock(&l->lock);
	return err;
}

bool device_release(struct hintfs_loader *l, struct slot *s, void *stream)
{
	int old;

	if (stream && l->has_rt && s->event) {
		if (device_enter(l, &old) < 0) {
			s->is_doubtful = true;
		} else {
			(void)event_extend(l, s, stream);
			device_leave(l, old);
		}
	}
	return s->has_event_work || s->is_doubtful;
}

/* ---- the keeper ------------------------------------------------------------------- */

static void reason_set(struct hintfs_loader *l, const char *text)
{
	sync_lock(&l->lock);
	snprintf(l->reason, sizeof(l->reason), "%s", text);
	sync_unlock(&l->lock);
}

static void events_destroy(struct hintfs_loader *l)
{
	uint32_t i;

	for (i = 0; i < l->n_slots; i++) {
		if (l->slots[i].event && l->rt.EventDestroy(l->slots[i].event))
			cuda_rt_clear(&l->rt);
		l->slots[i].event = NULL;
	}
}

static int events_create(struct hintfs_loader *l, char *text, size_t size)
{
	uint32_t i;

	for (i = 0; i < l->n_slots; i++) {
		int err = l->rt.EventCreateWithFlags(&l->slots[i].event, CU_EVENT_DISABLE_TIMING);

		if (err) {
			l->slots[i].event = NULL;
			cuda_rt_explain(&l->rt, "EventCreateWithFlags", err, text, size);
			events_destroy(l);
			return -ENODEV;
		}
	}
	return 0;
}

/* Registered and ready, or -ENODEV with everything undone and the reason set. -ENOMEM: no memory for the ring. */
static int cuda_begin(struct hintfs_loader *l)
{
	char text[sizeof(l->reason)];
	int err;

	err = cuda_rt_open(&l->rt, l->opts.cudart_path, l->opts.device, text, sizeof(text));
	if (!err) {
		err = ring_populate(&l->ring, l->rt.numa_node);
		if (err)
			return err;
		err = events_create(l, text, sizeof(text));
	}
	if (!err) {
		err = ring_register(&l->ring, &l->rt, text, sizeof(text));
		if (err)
			events_destroy(l);
	}
	if (err) {
		reason_set(l, text);
		return -ENODEV;
	}
	snprintf(text, sizeof(text), "%s device %d, runtime %d.%d, driver %d.%d, %.160s", l->rt.is_fake ? "test double:" : "CUDA",
		 l->rt.device, l->rt.runtime_version / 1000, l->rt.runtime_version % 1000 / 10,
		 l->rt.driver_version / 1000, l->rt.driver_version % 1000 / 10, l->rt.path);
	reason_set(l, text);
	l->has_rt = true;
	atomic_store(&l->is_cuda_on, true);
	return 0;
}

/* DRAINING slots: ask each event. REQUIRES lock; drops it for the queries. True: something changed. */
static bool drain_poll(struct hintfs_loader *l)
{
	bool is_changed = false;
	uint32_t i;

	for (i = 0; i < l->n_slots; i++) {
		struct slot *s = &l->slots[i];
		int err;

		if (s->state != SLOT_DRAINING)
			continue;
		sync_unlock(&l->lock); /* the slot is the keeper's while it drains */
		err = l->rt.EventQuery(s->event);
		if (err == CU_ERR_NOT_READY)
			cuda_rt_clear(&l->rt);
		else if (err)
			failure_note(l, "EventQuery", err);
		sync_lock(&l->lock);
		if (err == CU_ERR_NOT_READY)
			continue;
		is_changed = true;
		l->n_draining--;
		if (!err) {
			slot_free(l, s);
			continue;
		}
		s->state = SLOT_LOST;
		l->n_lost++;
		pthread_cond_broadcast(&l->ready_cond);
	}
	return is_changed;
}

/* Until told to stop and nothing drains, or the close timeout is over. REQUIRES lock. */
static void keeper_run(struct hintfs_loader *l)
{
	uint64_t pause_ns = POLL_MIN_NS, deadline = 0;

	while (!l->is_keeper_stop || l->n_draining) {
		uint64_t now = sync_now_ns();

		if (l->is_keeper_stop && !deadline)
			deadline = now + (uint64_t)l->opts.close_timeout_ms * 1000000u;
		if (deadline && now >= deadline)
			return;
		if (!l->n_draining) {
			sync_wait(&l->keeper_cond, &l->lock);
			pause_ns = POLL_MIN_NS;
			continue;
		}
		if (drain_poll(l)) {
			pause_ns = POLL_MIN_NS;
			continue;
		}
		(void)sync_wait_until(&l->keeper_cond, &l->lock, now + pause_ns);
		pause_ns = pause_ns * 2 < POLL_MAX_NS ? pause_ns * 2 : POLL_MAX_NS;
	}
}

static void *keeper_main(void *loader)
{
	struct hintfs_loader *l = loader;
	int err = cuda_begin(l);

	sync_lock(&l->lock);
	l->keeper_result = err;
	l->is_keeper_ready = true;
	pthread_cond_broadcast(&l->keeper_cond);
	if (err) {
		sync_unlock(&l->lock);
		return NULL;
	}
	keeper_run(l);
	l->keeper_result = l->n_draining ? -ETIMEDOUT : 0;
	sync_unlock(&l->lock);
	if (l->keeper_result || l->n_lost) {
		l->ring.is_leaked = true; /* the device may still read it: neither unregister nor unmap */
		if (!l->keeper_result)
			l->keeper_result = -ENODEV;
		return NULL;
	}
	l->keeper_result = ring_unregister(&l->ring, &l->rt);
	events_destroy(l);
	return NULL;
}

/* Without CUDA: populate, then mlock, then say what became of it. */
static int host_begin(struct hintfs_loader *l, const char *why_no_cuda)
{
	int err = ring_populate(&l->ring, -1);

	if (err)
		return err;
	if (l->opts.flags & HINTFS_OPEN_NO_LOCK) {
		snprintf(l->reason, sizeof(l->reason), "%s; not locked, as asked", why_no_cuda);
		return 0;
	}
	err = ring_mlock(&l->ring);
	if (err)
		snprintf(l->reason, sizeof(l->reason), "%.180s; mlock: %s (raise ulimit -l)", why_no_cuda, strerrordesc_np(-err));
	else
		snprintf(l->reason, sizeof(l->reason), "%s", why_no_cuda);
	return 0;
}

int device_start(struct hintfs_loader *l)
{
	char why[sizeof(l->reason)];
	int err;

	if (l->opts.device < 0 || l->opts.flags & HINTFS_OPEN_NO_LOCK)
		return host_begin(l, "no device was asked for");
	err = sync_thread_start(&l->keeper, "hintfs-keeper", keeper_main, l);
	if (err)
		return err;
	l->has_keeper = true;
	sync_lock(&l->lock);
	while (!l->is_keeper_ready)
		sync_wait(&l->keeper_cond, &l->lock);
	err = l->keeper_result;
	snprintf(why, sizeof(why), "%s", l->reason);
	sync_unlock(&l->lock);
	if (!err)
		return 0;
	sync_check(pthread_join(l->keeper, NULL));
	l->has_keeper = false;
	if (err != -ENODEV)
		return err;
	if (l->opts.flags & HINTFS_OPEN_REQUIRE_CUDA)
		return loader_error(-ENODEV, "CUDA is required: %s", why);
	return host_begin(l, why);
}

int device_stop(struct hintfs_loader *l)
{
	if (!l->has_keeper)
		return 0;
	sync_lock(&l->lock);
	l->is_keeper_stop = true;
	pthread_cond_broadcast(&l->keeper_cond);
	sync_unlock(&l->lock);
	sync_check(pthread_join(l->keeper, NULL));
	l->has_keeper = false;
	return l->keeper_result;
}
