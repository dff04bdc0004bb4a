/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/test_stress.c - many threads on one loader: next_batch, copies, releases, set_epoch, cancel, stats.
 *
 * A plain program for TSan. Every batch that is handed out is compared with its files; with the double of libcudart every
 * copy is checked too.
 */
#include "tests/preload/fake_cudart.h"
#include "tests/preload/tree.h"
#include "tools/preload/hintfs.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

enum { FILES = 120, THREADS = 4, EPOCHS = 25 };

static struct tree tree;
static struct hintfs_loader *loader;
static atomic_uint wrong, batches, epochs_over;
static atomic_bool is_over;

static uint64_t size_mixed(unsigned n)
{
	return n % 7 == 0 ? 0 : n % 11 == 0 ? 400000 + n : 1000 + 613 * n;
}

/* "Device memory": outlives the threads, as copies do. */
static char device_memory[1 << 20];

static void batch_use(struct hintfs_batch *b, unsigned seed)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->status[i] || !tree_is((unsigned)b->sample_id[i], b->source_offset[i], (char *)b->payload + b->offset[i], b->length[i]))
			atomic_fetch_add(&wrong, 1);
	if (seed % 3 && hintfs_batch_copy_to_device(b, device_memory, sizeof(device_memory), NULL, seed % 5 ? 0 : HINTFS_COPY_META) == -EINVAL)
		atomic_fetch_add(&wrong, 1);
	if (hintfs_batch_release(b, NULL) < 0)
		atomic_fetch_add(&wrong, 1);
	atomic_fetch_add(&batches, 1);
}

static void *consumer(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	struct hintfs_batch *b;

	while (!atomic_load(&is_over)) {
		int r = hintfs_loader_next_batch(loader, 5, &b);

		if (r == 0)
			batch_use(b, seed++);
		else if (r == 1)
			atomic_fetch_add(&epochs_over, 1);
		else if (r != -ETIMEDOUT && r != -ECANCELED)
			atomic_fetch_add(&wrong, 1);
		if (r)
			sched_yield();
	}
	return NULL;
}

/* Some epochs run to their end, some are left early, some are cancelled. */
static void epochs_drive(void)
{
	struct hintfs_stats s = HINTFS_STATS_INIT;
	unsigned e, seen, over;

	for (e = 1; e <= EPOCHS; e++) {
		seen = atomic_load(&epochs_over);
		while (e % 3 == 0 && atomic_load(&epochs_over) == seen)
			sched_yield();
		over = atomic_load(&epochs_over);
		seen = atomic_load(&batches);
		while (e % 3 == 1 && atomic_load(&batches) < seen + 3 && atomic_load(&epochs_over) == over)
			sched_yield();
		if (e % 5 == 0 && hintfs_loader_cancel(loader) < 0)
			atomic_fetch_add(&wrong, 1);
		if (hintfs_loader_stats(loader, &s) < 0 || hintfs_loader_set_epoch(loader, e) < 0)
			atomic_fetch_add(&wrong, 1);
	}
	seen = atomic_load(&epochs_over);
	while (atomic_load(&epochs_over) == seen)
		sched_yield();
	atomic_store(&is_over, true);
}

static void round_run(const char *cudart, uint32_t batch_samples, const char *ctl)
{
	struct hintfs_opts o = HINTFS_OPTS_INIT;
	pthread_t threads[THREADS];
	uintptr_t i;

	o.mount = tree.dir;
	o.order_text = "f{0..119}\n";
	o.order_text_bytes = strlen(o.order_text);
	o.batch_samples = batch_samples;
	o.batch_bytes = batch_samples ? 1 << 19 : 1 << 17;
	o.flags = HINTFS_OPEN_SPLIT;
	o.ring_slots = 5;
	o.workers = 4;
	o.max_open_files = 16;
	o.device = cudart ? 0 : HINTFS_NO_DEVICE;
	o.cudart_path = cudart;
	o.ctl_dir = ctl;
	TREE_REQUIRE(hintfs_loader_open(&o, &loader) == 0);
	atomic_store(&is_over, false);
	for (i = 0; i < THREADS; i++)
		TREE_REQUIRE(pthread_create(&threads[i], NULL, consumer, (void *)i) == 0);
	epochs_drive();
	for (i = 0; i < THREADS; i++)
		TREE_REQUIRE(pthread_join(threads[i], NULL) == 0);
	if (hintfs_loader_close(loader) < 0)
		atomic_fetch_add(&wrong, 1);
}

int main(void)
{
	const char *path = getenv("HINTFS_TEST_CUDART");
	void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	const struct fake_controls *fake = handle ? dlsym(handle, "fake_controls") : NULL;
	struct fake_report r;
	char ctl[128];

	TREE_REQUIRE(fake);
	tree_create(&tree, FILES, size_mixed);
	/* A control directory of plain files: the hints' thread is part of the stress. */
	snprintf(ctl, sizeof(ctl), "%s/order", tree.dir);
	tree_file(ctl, 0, 0);
	round_run(NULL, 0, tree.dir);
	round_run(NULL, 8, NULL);
	fake->delay_us(20);
	round_run(path, 8, tree.dir);
	round_run(path, 0, NULL);
	fake->report(&r);
	unlink(ctl);
	tree_destroy(&tree);
	if (r.violations || r.registrations || r.events || r.uncleared) {
		fprintf(stderr, "double: %u violations (%s), %u registrations, %u events left\n", r.violations, r.first,
			r.registrations, r.events);
		return 1;
	}
	if (atomic_load(&wrong) || !atomic_load(&batches)) {
		fprintf(stderr, "%u wrong, %u batches\n", atomic_load(&wrong), atomic_load(&batches));
		return 1;
	}
	return 0;
}
