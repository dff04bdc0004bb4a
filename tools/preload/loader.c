/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/loader.c - the public functions: life cycle, handing out, giving back. What open has to work out is in
 * open.c.
 *
 * Callers: applications (hintfs.h), hintfs-preload, the Python package. loader_i.h has the picture and the invariants.
 */
#include "tools/preload/loader_i.h"

#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static_assert(offsetof(struct slot, pub) == 0, "a batch pointer is a slot pointer");

/* ---- this thread's last error --------------------------------------------------------- */

static _Thread_local char last_error[ERROR_TEXT_BYTES];

int loader_error(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_error, sizeof(last_error), fmt, ap);
	va_end(ap);
	return err;
}

const char *hintfs_last_error(void)
{
	return last_error;
}

/* Rule 3 of hintfs.h: nothing of the loader is touched in a child, not even its lock. */
static int call_enter(const struct hintfs_loader *l)
{
	if (!l)
		return loader_error(-EINVAL, "no loader");
	if (l->pid != getpid())
		return loader_error(-ECHILD, "this loader belongs to the parent process %d", (int)l->pid);
	return 0;
}

/* ---- close ------------------------------------------------------------------------ */

static void fds_close(const int *fds, uint32_t n)
{
	while (n)
		close(fds[--n]);
}

static void workers_stop(struct hintfs_loader *l)
{
	sync_lock(&l->lock);
	l->run = RUN_STOP;
	pthread_cond_broadcast(&l->work_cond);
	pthread_cond_broadcast(&l->ready_cond);
	sync_unlock(&l->lock);
	while (l->n_workers_started)
		sync_check(pthread_join(l->workers[--l->n_workers_started], NULL));
}

/* A batch that was never released may still be read by the device: treat it as released now. */
static void held_slots_drain(struct hintfs_loader *l)
{
	uint32_t i;

	for (i = 0; i < l->n_slots; i++) {
		struct slot *s = &l->slots[i];

		if (s->state != SLOT_OUT || !l->has_keeper)
			continue;
		if (s->is_doubtful) {
			s->state = SLOT_LOST;
			l->n_lost++;
		} else if (s->has_event_work) {
			s->state = SLOT_DRAINING;
			l->n_draining++;
		}
	}
}

/* Takes half-built loaders. */
static int loader_destroy(struct hintfs_loader *l)
{
	int fds[FILES_MAX];
	uint32_t i, n = 0;
	int err;

	workers_stop(l);
	hints_stop(l);
	sync_lock(&l->lock);
	if (l->files && l->slots) {
		n = pack_abandon(l, fds);
		held_slots_drain(l);
	}
	sync_unlock(&l->lock);
	fds_close(fds, n);
	err = device_stop(l);
	ring_destroy(&l->ring);
	for (i = 0; l->slots && i < l->n_slots; i++) {
		free(l->slots[i].samples);
		free(l->slots[i].err_text);
	}
	if (l->root_fd >= 0)
		close(l->root_fd);
	order_finish(&l->order);
	free(l->slots);
	free(l->fifo);
	free(l->files);
	free(l->workers);
	free(l->mount);
	pthread_cond_destroy(&l->keeper_cond);
	pthread_cond_destroy(&l->ready_cond);
	pthread_cond_destroy(&l->work_cond);
	pthread_mutex_destroy(&l->lock);
	free(l);
	return err;
}

int hintfs_loader_close(struct hintfs_loader *l)
{
	int err;

	if (!l)
		return 0;
	err = call_enter(l);
	if (err)
		return err;
	err = loader_destroy(l);
	if (err == -ETIMEDOUT)
		return loader_error(err, "device work on released batches did not end: the ring stays mapped");
	if (err)
		return loader_error(err, "CUDA refused to unregister the ring: it stays mapped");
	return 0;
}

/* ---- open -------------------------------------------------------------------------- */

static struct hintfs_loader *loader_create(const struct hintfs_opts *o)
{
	struct hintfs_loader *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->opts = *o;
	l->pid = getpid();
	l->root_fd = -1;
	l->ring.fd = -1;
	l->align = o->align_bytes;
	l->n_slots = o->ring_slots;
	l->n_workers = o->workers;
	l->max_files = open_files_limit(o->max_open_files);
	l->open_tail = &l->open_head;
	l->rt.numa_node = l->rt.register_ro = -1;
	l->run = RUN_CANCELLED;
	order_init(&l->order);
	sync_mutex_init(&l->lock);
	sync_cond_init(&l->work_cond);
	sync_cond_init(&l->ready_cond);
	sync_cond_init(&l->keeper_cond);
	return l;
}

/* Begin list list_no. REQUIRES lock. */
static void epoch_begin(struct hintfs_loader *l, uint64_t list_no, uint64_t epoch, uint64_t skip)
{
	const struct order_list *list = &l->order.lists[list_no];

	l->list_no = list_no;
	l->epoch = epoch;
	l->generation++;
	l->run_err = 0;
	pack_begin(l, list->first + skip, list->end);
	hints_epoch(l);
	pthread_cond_broadcast(&l->work_cond);
}

static int workers_start(struct hintfs_loader *l)
{
	while (l->n_workers_started < l->n_workers) {
		int err = sync_thread_start(&l->workers[l->n_workers_started], "hintfs-fill", fill_worker, l);

		if (err)
			return loader_error(err, "cannot start thread %u of %u: %s", l->n_workers_started + 1, l->n_workers,
					    strerrordesc_np(-err));
		l->n_workers_started++;
	}
	return 0;
}

int hintfs_loader_open(const struct hintfs_opts *opts, struct hintfs_loader **ret_loader)
{
	struct hintfs_opts o;
	struct hintfs_loader *l;
	uint64_t skip;
	int err = open_opts(opts, &o);

	if (err)
		return err;
	l = loader_create(&o);
	if (!l)
		return loader_error(-ENOMEM, "out of memory");
	err = open_build(l);
	if (err)
		goto fail;
	(void)hints_start(l, l->hints_off, sizeof(l->hints_off)); /* hints only help */
	skip = l->order.start < l->order.lists[0].end ? l->order.start : l->order.lists[0].end;
	sync_lock(&l->lock);
	epoch_begin(l, 0, l->order.lists[0].label, skip);
	sync_unlock(&l->lock);
	err = workers_start(l);
	if (err)
		goto fail;
	/* What the caller lent is not used any more. */
	l->opts.mount = l->opts.order_path = l->opts.order_text = l->opts.ctl_dir = l->opts.stream = l->opts.cudart_path = NULL;
	*ret_loader = l;
	return 0;
fail:
	(void)loader_destroy(l);
	return err;
}

/* ---- batches ------------------------------------------------------------------------ */

/* The head batch is complete: hand it out, drop it, or fail with it. REQUIRES lock. 2: dropped, look again. */
static int head_take(struct hintfs_loader *l, struct slot *s, struct hintfs_batch **ret_batch)
{
	uint32_t i;

	if (s->err) {
		l->run = RUN_FAILED;
		l->run_err = s->err;
		snprintf(l->run_text, sizeof(l->run_text), "%s", s->err_text);
		pthread_cond_broadcast(&l->ready_cond);
		return loader_error(s->err, "%s", s->err_text);
	}
	l->head_seq++;
	if (l->opts.flags & HINTFS_OPEN_DROP_LAST && s->is_short) {
		slot_free(l, s);
		return 2;
	}
	s->state = SLOT_OUT;
	l->figures.batches++;
	l->figures.samples += s->n;
	for (i = 0; i < s->n; i++)
		l->figures.bytes += s->length[i];
	/* The next one may be ready for another caller. */
	pthread_cond_broadcast(&l->ready_cond);
	*ret_batch = &s->pub;
	return 0;
}

/* 3: nothing yet, wait. REQUIRES lock. */
static int batch_try(struct hintfs_loader *l, struct hintfs_batch **ret_batch)
{
	int r = 2;

	while (r == 2) {
		struct slot *s;

		if (l->run == RUN_CANCELLED || l->run == RUN_STOP)
			return loader_error(-ECANCELED, "cancelled");
		if (l->run == RUN_FAILED)
			return loader_error(l->run_err, "%s", l->run_text);
		if (l->head_seq == l->tail_seq) {
			if (l->run == RUN_ENDED)
				return 1;
			if (l->n_lost == l->n_slots)
				return loader_error(-EDEADLK, "all slots are lost: %s", l->reason);
			return 3;
		}
		s = &l->slots[l->fifo[l->head_seq % l->n_slots]];
		if (s->state != SLOT_READY)
			return 3;
		r = head_take(l, s, ret_batch);
	}
	return r;
}

int hintfs_loader_next_batch(struct hintfs_loader *l, int timeout_ms, struct hintfs_batch **ret_batch)
{
	uint64_t start, deadline;
	int r = call_enter(l);

	if (r)
		return r;
	if (!ret_batch)
		return loader_error(-EINVAL, "no place for the batch");
	sync_lock(&l->lock);
	r = batch_try(l, ret_batch);
	if (r == 3) {
		start = sync_now_ns();
		deadline = start + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
		while (r == 3) {
			bool is_over = false;

			if (timeout_ms < 0)
				sync_wait(&l->ready_cond, &l->lock);
			else
				is_over = !sync_wait_until(&l->ready_cond, &l->lock, deadline);
			r = batch_try(l, ret_batch);
			if (r == 3 && is_over)
				r = loader_error(-ETIMEDOUT, "no batch within %d ms", timeout_ms);
		}
		l->figures.wait_data_ns += sync_now_ns() - start;
	}
	sync_unlock(&l->lock);
	return r;
}

/* A batch as given by the caller: really one that is out? */
static int batch_enter(struct hintfs_batch *b, struct slot **ret_slot)
{
	struct slot *s = (struct slot *)b;
	int err;

	if (!b) {
		(void)loader_error(-EINVAL, "no batch");
		return -EINVAL;
	}
	err = call_enter(s->loader);
	if (err)
		return err;
	sync_lock(&s->loader->lock);
	if (s->state != SLOT_OUT)
		err = loader_error(-EINVAL, "this batch was released already");
	sync_unlock(&s->loader->lock);
	*ret_slot = s;
	return err;
}

int hintfs_batch_copy_to_device(struct hintfs_batch *b, void *dst, uint64_t cap_bytes, void *stream, unsigned flags)
{
	struct slot *s;
	int err = batch_enter(b, &s);

	if (err)
		return err;
	if (!dst || flags & ~(HINTFS_COPY_META | HINTFS_COPY_SYNC))
		return loader_error(-EINVAL, "no destination, or unknown flag");
	return device_copy(s->loader, s, dst, cap_bytes, stream, flags);
}

int hintfs_batch_release(struct hintfs_batch *b, void *stream)
{
	struct slot *s;
	struct hintfs_loader *l;
	bool is_in_use;
	int err = batch_enter(b, &s);

	if (err)
		return err;
	l = s->loader;
	is_in_use = device_release(l, s, stream);
	sync_lock(&l->lock);
	if (s->state != SLOT_OUT) {
		err = loader_error(-EINVAL, "this batch was released already");
	} else if (s->is_doubtful) {
		s->state = SLOT_LOST;
		l->n_lost++;
		pthread_cond_broadcast(&l->ready_cond);
		err = -ENODEV;
	} else if (is_in_use) {
		s->state = SLOT_DRAINING;
		l->n_draining++;
		pthread_cond_broadcast(&l->keeper_cond);
	} else {
		slot_free(l, s);
	}
	sync_unlock(&l->lock);
	return err;
}

/* ---- the rest ---------------------------------------------------------------------- */

int hintfs_loader_set_epoch(struct hintfs_loader *l, uint64_t epoch)
{
	int fds[FILES_MAX];
	uint64_t list_no = 0;
	uint32_t n;
	int err = call_enter(l);

	if (err)
		return err;
	if (l->order.n_lists > 1) {
		while (list_no < l->order.n_lists && l->order.lists[list_no].label != epoch)
			list_no++;
		if (list_no == l->order.n_lists)
			return loader_error(-ENOENT, "the order has several lists, none with @epoch %llu", (unsigned long long)epoch);
	}
	sync_lock(&l->lock);
	n = pack_abandon(l, fds);
	epoch_begin(l, list_no, epoch, 0);
	sync_unlock(&l->lock);
	fds_close(fds, n);
	return 0;
}

int hintfs_loader_epochs(struct hintfs_loader *l, uint64_t *ret_n)
{
	int err = call_enter(l);

	if (!err)
		*ret_n = l->order.n_lists;
	return err;
}

int hintfs_loader_epoch_label(struct hintfs_loader *l, uint64_t i, uint64_t *ret_label)
{
	int err = call_enter(l);

	if (!err && i >= l->order.n_lists)
		err = loader_error(-ERANGE, "the order has %llu lists", (unsigned long long)l->order.n_lists);
	if (!err)
		*ret_label = l->order.lists[i].label;
	return err;
}

int hintfs_loader_extent(struct hintfs_loader *l, uint64_t *ret_samples, uint64_t *ret_bytes, int *ret_known)
{
	const struct order_list *list;
	uint64_t bytes = 0, i;
	int known = 1, err = call_enter(l);

	if (err)
		return err;
	sync_lock(&l->lock);
	list = &l->order.lists[l->list_no];
	sync_unlock(&l->lock);
	for (i = list->first; i < list->end; i++) {
		known &= l->order.entries[i].len_bytes != ORDER_TO_END;
		bytes += l->order.entries[i].len_bytes;
	}
	if (ret_samples)
		*ret_samples = list->end - list->first;
	if (ret_bytes)
		*ret_bytes = bytes;
	if (ret_known)
		*ret_known = known;
	return 0;
}

int hintfs_loader_sample_path(struct hintfs_loader *l, uint64_t sample_id, const char **ret_path)
{
	int err = call_enter(l);

	if (!err && sample_id >= l->order.n_entries)
		err = loader_error(-ERANGE, "the order has %llu entries", (unsigned long long)l->order.n_entries);
	if (!err)
		*ret_path = order_path_text(&l->order, l->order.entries[sample_id].path);
	return err;
}

int hintfs_loader_stats(struct hintfs_loader *l, struct hintfs_stats *s)
{
	struct hintfs_stats all;
	int err = call_enter(l);

	if (err)
		return err;
	if (!s || s->struct_size < sizeof(uint32_t) || s->struct_size > 65536)
		return loader_error(-EINVAL, "hintfs_stats.struct_size is not set: use HINTFS_STATS_INIT");
	sync_lock(&l->lock);
	all = l->figures;
	all.busy_workers = l->busy_workers;
	all.lost_slots = l->n_lost;
	snprintf(all.reason, sizeof(all.reason), "%s", l->reason);
	hints_describe(l, all.hints, sizeof(all.hints));
	sync_unlock(&l->lock);
	all.ring_slots = l->n_slots;
	all.slot_bytes = l->ring.slot_bytes;
	all.ring_bytes = l->ring.bytes;
	all.pinned_bytes = l->ring.pinned_bytes;
	all.numa_node = l->rt.numa_node;
	all.host_register_ro = l->rt.register_ro;
	all.cuda_runtime_version = l->rt.runtime_version;
	all.cuda_driver_version = l->rt.driver_version;
	snprintf(all.cudart, sizeof(all.cudart), "%s", l->rt.path);
	snprintf(all.backend, sizeof(all.backend), "%s", ring_backend_name(l->ring.backend));
	if (l->has_rt && !atomic_load(&l->is_cuda_on)) {
		/* Registered once, failed since: do not claim what is not so. */
		snprintf(all.backend, sizeof(all.backend), "host");
		all.pinned_bytes = 0;
	}
	all.struct_size = s->struct_size;
	memcpy(s, &all, s->struct_size < sizeof(all) ? s->struct_size : sizeof(all));
	return 0;
}

int hintfs_loader_cancel(struct hintfs_loader *l)
{
	int err = call_enter(l);

	if (err)
		return err;
	sync_lock(&l->lock);
	if (l->run != RUN_STOP)
		l->run = RUN_CANCELLED;
	hints_cancel(l);
	pthread_cond_broadcast(&l->ready_cond);
	pthread_cond_broadcast(&l->work_cond);
	sync_unlock(&l->lock);
	return 0;
}
