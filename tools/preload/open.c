/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/open.c - what has to be worked out before a loader can run: options, order, slot size, ring.
 *
 * Callers: hintfs_loader_open. Nothing here runs beside another thread of the loader, but for the keeper that
 * device_start waits for; so no lock is taken.
 */
#include "tools/preload/loader_i.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEFAULT_BATCH_BYTES (64u << 20)
#define COMPUTED_MAX_BYTES (1ull << 30) /* a slot larger than this must be asked for */
#define RING_MAX_BYTES (1ull << 40)
#define SAMPLES_MAX (1u << 20)
#define BYTE_CUT_SAMPLES 16384u
#define ORDER_MAX_BYTES (4ull << 30)
#define SAMPLE_META_BYTES (4 * sizeof(uint64_t) + 2 * sizeof(uint32_t))

static_assert(sizeof(struct hintfs_batch_meta) == 128, "the metadata header is part of the interface");
static_assert(offsetof(struct hintfs_batch_meta, sample_flags_at) == 72, "the metadata header is part of the interface");

/* ---- open: options ------------------------------------------------------------------ */

int open_opts(const struct hintfs_opts *given, struct hintfs_opts *o)
{
	const uint32_t known = HINTFS_OPEN_SPLIT | HINTFS_OPEN_DROP_LAST | HINTFS_OPEN_NO_HINTS |
			       HINTFS_OPEN_REQUIRE_CUDA | HINTFS_OPEN_NO_LOCK;

	if (!given || given->struct_size < offsetof(struct hintfs_opts, reserved) || given->struct_size > 4096)
		return loader_error(-EINVAL, "hintfs_opts.struct_size is not set: use HINTFS_OPTS_INIT");
	memset(o, 0, sizeof(*o));
	memcpy(o, given, given->struct_size < sizeof(*o) ? given->struct_size : sizeof(*o));
	if (!o->mount || (!o->order_path && !o->order_text))
		return loader_error(-EINVAL, "mount and order_path (or order_text) must be set");
	if (o->flags & ~known || o->on_error > HINTFS_ON_ERROR_SKIP)
		return loader_error(-EINVAL, "unknown flag or on_error value");
	if (o->flags & HINTFS_OPEN_REQUIRE_CUDA && (o->device < 0 || o->flags & HINTFS_OPEN_NO_LOCK))
		return loader_error(-EINVAL, "HINTFS_OPEN_REQUIRE_CUDA needs a device and contradicts HINTFS_OPEN_NO_LOCK");
	o->ring_slots = o->ring_slots ? o->ring_slots : 4;
	o->workers = o->workers ? o->workers : 4;
	o->align_bytes = o->align_bytes ? o->align_bytes : 64;
	o->close_timeout_ms = o->close_timeout_ms ? o->close_timeout_ms : 10000;
	if (o->ring_slots > 1024 || o->workers > 256 || o->batch_samples > SAMPLES_MAX || o->max_samples > SAMPLES_MAX)
		return loader_error(-EINVAL, "at most 1,024 ring_slots, 256 workers, %u samples a batch", SAMPLES_MAX);
	if (o->align_bytes > RING_PAGE_BYTES || o->align_bytes & (o->align_bytes - 1))
		return loader_error(-EINVAL, "align_bytes is a power of two up to 4096, not %u", o->align_bytes);
	if (o->batch_bytes > RING_MAX_BYTES)
		return loader_error(-EINVAL, "batch_bytes is at most 1 TiB");
	if (!o->cudart_path) {
		o->cudart_path = secure_getenv("HINTFS_CUDART");
		if (o->cudart_path && !*o->cudart_path)
			o->cudart_path = NULL;
	}
	return 0;
}

uint32_t open_files_limit(uint32_t asked)
{
	struct rlimit r;
	uint64_t n = asked ? asked : 128;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY && n > r.rlim_cur / 4)
		n = r.rlim_cur / 4;
	return n < 2 ? 2 : n > FILES_MAX ? FILES_MAX : (uint32_t)n;
}

/* ---- open: order -------------------------------------------------------------------- */

static int text_read(const char *path, char **ret_text, size_t *ret_bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY), err = 0;
	size_t cap = 1u << 16, len = 0;
	char *text = malloc(cap);
	ssize_t n = 1;

	if (fd < 0 || !text)
		err = fd < 0 ? -errno : -ENOMEM;
	while (!err && n) {
		if (len == cap) {
			char *more = cap < ORDER_MAX_BYTES ? realloc(text, cap * 2) : NULL;

			if (!more) {
				err = cap < ORDER_MAX_BYTES ? -ENOMEM : -EFBIG;
				break;
			}
			text = more;
			cap *= 2;
		}
		n = read(fd, text + len, cap - len);
		if (n < 0 && errno != EINTR)
			err = -errno;
		len += n > 0 ? (size_t)n : 0;
	}
	if (fd >= 0)
		close(fd);
	if (err) {
		free(text);
		return loader_error(err, "%s: %s", path, strerrordesc_np(-err));
	}
	*ret_text = text;
	*ret_bytes = len;
	return 0;
}

static int order_load(struct hintfs_loader *l)
{
	struct order_source src = { .root_fd = l->root_fd, .mount = l->mount };
	const char *name = l->opts.order_text ? "order" : l->opts.order_path;
	char error[256] = "";
	char *text = NULL;
	size_t bytes = l->opts.order_text_bytes;
	int err = 0;

	if (!l->opts.order_text)
		err = text_read(l->opts.order_path, &text, &bytes);
	if (err)
		return err;
	err = order_parse(&l->order, &src, text ? text : l->opts.order_text, bytes, error, sizeof(error));
	free(text);
	if (err)
		return loader_error(err, "%s: %s", name, error);
	if (!l->order.n_lists)
		return loader_error(-ENODATA, "%s: names no file", name);
	return 0;
}

/* ---- open: how large a slot must be --------------------------------------------------- */

struct need {
	uint64_t bytes;	  /* largest batch, as far as lengths are written */
	uint64_t samples; /* most samples in a batch */
	uint64_t number;  /* of the largest */
	bool is_known;	  /* all lengths are written */
};

static void need_batch(const struct hintfs_loader *l, struct need *n, uint64_t first, uint64_t end, uint64_t number)
{
	uint64_t bytes = 0, i;

	for (i = first; i < end; i++) {
		uint64_t len = l->order.entries[i].len_bytes;

		if (len == ORDER_TO_END)
			n->is_known = false;
		else if (__builtin_add_overflow(len, l->align - 1, &len) ||
			 __builtin_add_overflow(bytes, len & ~(uint64_t)(l->align - 1), &bytes))
			bytes = UINT64_MAX;
		if (bytes == UINT64_MAX)
			break;
	}
	if (bytes > n->bytes) {
		n->bytes = bytes;
		n->number = number;
	}
	if (end - first > n->samples)
		n->samples = end - first;
}

static struct need need_find(const struct hintfs_loader *l)
{
	struct need n = { .is_known = true };
	uint64_t i, k;

	for (i = 0; i < l->order.n_lists; i++) {
		const struct order_list *list = &l->order.lists[i];

		if (list->group != list->group_end) {
			for (k = list->group; k < list->group_end; k++)
				need_batch(l, &n, l->order.groups[k].first,
					   k + 1 < list->group_end ? l->order.groups[k + 1].first : list->end,
					   l->order.groups[k].number);
		} else if (l->opts.batch_samples) {
			for (k = list->first; k < list->end; k += l->opts.batch_samples)
				need_batch(l, &n, k, list->end - k < l->opts.batch_samples ? list->end : k + l->opts.batch_samples,
					   (k - list->first) / l->opts.batch_samples);
		} else {
			uint64_t samples = list->end - list->first;

			n.is_known = false; /* the slot is what cuts */
			samples = samples < BYTE_CUT_SAMPLES ? samples : BYTE_CUT_SAMPLES;
			n.samples = n.samples > samples ? n.samples : samples;
		}
	}
	return n;
}

static int capacity_choose(struct hintfs_loader *l)
{
	bool is_split = l->opts.flags & HINTFS_OPEN_SPLIT;
	struct need n = need_find(l);
	uint64_t cap = l->opts.batch_bytes, samples = l->opts.max_samples;

	if (!cap) {
		cap = n.is_known && n.bytes ? n.bytes : n.bytes > DEFAULT_BATCH_BYTES ? n.bytes : DEFAULT_BATCH_BYTES;
		if (cap > COMPUTED_MAX_BYTES && is_split)
			cap = RING_CHUNK_MAX_BYTES;
	}
	if (!is_split && (n.bytes > cap || (!l->opts.batch_bytes && cap > COMPUTED_MAX_BYTES)))
		return loader_error(-EMSGSIZE, "batch %llu needs %llu bytes: set batch_bytes to that, or allow splitting",
				    (unsigned long long)n.number, (unsigned long long)n.bytes);
	if (!samples)
		samples = n.samples < SAMPLES_MAX ? n.samples : SAMPLES_MAX;
	l->max_samples = samples ? (uint32_t)samples : 1;
	l->payload_cap = (cap + RING_PAGE_BYTES - 1) & ~(uint64_t)(RING_PAGE_BYTES - 1);
	l->meta_bytes = (sizeof(struct hintfs_batch_meta) + l->max_samples * SAMPLE_META_BYTES + RING_PAGE_BYTES - 1) &
			~(uint64_t)(RING_PAGE_BYTES - 1);
	return 0;
}

/* ---- open: slots -------------------------------------------------------------------- */

/* Lay the arrays out in the slot's metadata block and tell the block where they are. */
static void slot_layout(struct hintfs_loader *l, struct slot *s, uint32_t slot_no)
{
	struct hintfs_batch_meta *m;
	uint64_t n = l->max_samples, at = sizeof(*m);

	s->loader = l;
	s->slot_no = slot_no;
	s->base = l->ring.base + slot_no * l->ring.slot_bytes;
	m = (struct hintfs_batch_meta *)s->base;
	memcpy(m->magic, "HINTFSB1", sizeof(m->magic));
	m->meta_bytes = (uint32_t)l->meta_bytes;
	m->offset_at = (uint32_t)at;
	m->length_at = (uint32_t)(at += n * sizeof(uint64_t));
	m->sample_id_at = (uint32_t)(at += n * sizeof(uint64_t));
	m->source_offset_at = (uint32_t)(at += n * sizeof(uint64_t));
	m->status_at = (uint32_t)(at += n * sizeof(uint64_t));
	m->sample_flags_at = (uint32_t)(at + n * sizeof(uint32_t));
	s->offset = (uint64_t *)(s->base + m->offset_at);
	s->length = (uint64_t *)(s->base + m->length_at);
	s->sample_id = (uint64_t *)(s->base + m->sample_id_at);
	s->source_offset = (uint64_t *)(s->base + m->source_offset_at);
	s->status = (int32_t *)(s->base + m->status_at);
	s->sample_flags = (uint32_t *)(s->base + m->sample_flags_at);
	s->pub.meta = s->base;
	s->pub.meta_bytes = l->meta_bytes;
	s->pub.payload = s->base + l->meta_bytes;
	s->pub.offset = s->offset;
	s->pub.length = s->length;
	s->pub.sample_id = s->sample_id;
	s->pub.source_offset = s->source_offset;
	s->pub.status = s->status;
	s->pub.sample_flags = s->sample_flags;
}

static int slots_create(struct hintfs_loader *l)
{
	uint64_t slot_bytes = l->meta_bytes + l->payload_cap, total;
	uint32_t i;
	int err;

	if (__builtin_mul_overflow(slot_bytes, l->n_slots, &total) || total > RING_MAX_BYTES)
		return loader_error(-EINVAL, "a ring of %u slots of %llu bytes is over 1 TiB", l->n_slots,
				    (unsigned long long)slot_bytes);
	err = ring_create(&l->ring, l->n_slots, slot_bytes);
	if (err)
		return loader_error(err, "a ring of %llu bytes: %s", (unsigned long long)total, strerrordesc_np(-err));
	l->slots = calloc(l->n_slots, sizeof(*l->slots));
	l->fifo = calloc(l->n_slots, sizeof(*l->fifo));
	l->files = calloc(l->order.n_paths ? l->order.n_paths : 1, sizeof(struct file *));
	l->workers = calloc(l->n_workers, sizeof(*l->workers));
	if (!l->slots || !l->fifo || !l->files || !l->workers)
		return loader_error(-ENOMEM, "out of memory");
	for (i = 0; i < l->n_slots; i++) {
		l->slots[i].samples = calloc(l->max_samples, sizeof(struct sample));
		l->slots[i].err_text = calloc(1, ERROR_TEXT_BYTES);
		if (!l->slots[i].samples || !l->slots[i].err_text)
			return loader_error(-ENOMEM, "out of memory");
	}
	err = device_start(l);
	if (err)
		return err == -ENODEV ? err : loader_error(err, "a ring of %llu bytes: %s", (unsigned long long)total,
							   strerrordesc_np(-err));
	for (i = 0; i < l->n_slots; i++)
		slot_layout(l, &l->slots[i], i);
	return 0;
}

/* ---- all of it, in order -------------------------------------------------------------- */

static int mount_open(struct hintfs_loader *l)
{
	l->mount = strdup(l->opts.mount);
	if (!l->mount)
		return loader_error(-ENOMEM, "out of memory");
	l->root_fd = open(l->mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (l->root_fd < 0)
		return loader_error(-errno, "%s: %s", l->mount, strerrordesc_np(errno));
	return 0;
}

int open_build(struct hintfs_loader *l)
{
	int err = mount_open(l);

	if (!err)
		err = order_load(l);
	if (!err)
		err = capacity_choose(l);
	if (!err)
		err = slots_create(l);
	return err;
}
