/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/test_loader.c - the loader's promises on an ordinary directory, without CUDA.
 */
#include "tests/preload/tree.h"
#include "tools/preload/hintfs.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { FILES = 20 };

static struct tree tree;

static uint64_t size_of(unsigned n)
{
	return n == 7 ? 0 : 1000 + 333 * n;
}

static void setup(void)
{
	tree_create(&tree, FILES, size_of);
}

static void teardown(void)
{
	tree_destroy(&tree);
}

static struct hintfs_opts opts_of(const char *order)
{
	struct hintfs_opts o = HINTFS_OPTS_INIT;

	o.mount = tree.dir;
	o.order_text = order;
	o.order_text_bytes = strlen(order);
	o.flags = HINTFS_OPEN_NO_HINTS;
	return o;
}

static struct hintfs_loader *open_ok(const struct hintfs_opts *o)
{
	struct hintfs_loader *l = NULL;

	cr_assert_eq(hintfs_loader_open(o, &l), 0, "%s", hintfs_last_error());
	return l;
}

static struct hintfs_batch *next_ok(struct hintfs_loader *l)
{
	struct hintfs_batch *b = NULL;

	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), 0, "%s", hintfs_last_error());
	return b;
}

static void end_ok(struct hintfs_loader *l)
{
	struct hintfs_batch *b;

	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), 1);
	cr_assert_eq(hintfs_loader_next_batch(l, 0, &b), 1);
}

/* Bytes, alignment, zeroed padding, and that payload_bytes is all of it. */
static void batch_ok(const struct hintfs_batch *b, const unsigned *files, unsigned n, uint64_t align)
{
	const char *payload = b->payload;
	uint64_t at = 0, i;

	cr_assert_eq(b->n, n);
	cr_assert_eq((uintptr_t)b->payload % 4096, 0);
	cr_assert_eq((char *)b->meta + b->meta_bytes, payload);
	for (uint32_t k = 0; k < n; k++) {
		cr_assert_eq(b->offset[k], at);
		cr_assert_eq(b->length[k], size_of(files[k]));
		cr_assert_eq(b->status[k], 0);
		cr_assert_eq(b->sample_flags[k], HINTFS_SAMPLE_FIRST | HINTFS_SAMPLE_FINAL);
		cr_assert(tree_is(files[k], 0, payload + at, b->length[k]));
		at += b->length[k];
		for (i = at; i % align; i++)
			cr_assert_eq(payload[i], 0);
		at = i;
	}
	cr_assert_eq(b->payload_bytes, at);
}

TestSuite(loader, .init = setup, .fini = teardown, .timeout = 60);

Test(loader, batches_by_count_with_a_partial_last_one)
{
	static const uint32_t aligns[] = { 64, 1, 256, 4096 };
	struct hintfs_opts o = opts_of("f{0..19}\n");

	for (int a = 0; a < 4; a++) {
		struct hintfs_loader *l;
		unsigned files[8], k, i;

		o.batch_samples = 8;
		o.align_bytes = aligns[a];
		l = open_ok(&o);
		for (k = 0; k < 3; k++) {
			struct hintfs_batch *b = next_ok(l);
			unsigned n = k == 2 ? 4 : 8;

			for (i = 0; i < n; i++)
				files[i] = 8 * k + i;
			batch_ok(b, files, n, aligns[a]);
			cr_assert_eq(b->seq, k);
			cr_assert_eq(b->number, k);
			cr_assert_eq(b->flags, k == 2 ? HINTFS_BATCH_PARTIAL | HINTFS_BATCH_LAST : 0);
			cr_assert_eq(hintfs_batch_release(b, NULL), 0);
		}
		end_ok(l);
		cr_assert_eq(hintfs_loader_close(l), 0);
	}
}

Test(loader, no_old_bytes_show_in_a_reused_slot)
{
	struct hintfs_opts o = opts_of("@batch\nf19\nf18\n@batch\nf0\n@batch\nf1\nf2\n");
	struct hintfs_loader *l;

	o.ring_slots = 1;
	o.batch_bytes = 64 << 10;
	o.align_bytes = 4096;
	l = open_ok(&o);
	for (int e = 0; e < 3; e++) {
		struct hintfs_batch *b = next_ok(l);

		batch_ok(b, (unsigned[]){ 19, 18 }, 2, 4096);
		hintfs_batch_release(b, NULL);
		b = next_ok(l);
		batch_ok(b, (unsigned[]){ 0 }, 1, 4096);
		cr_assert_eq(b->offset[1] | b->length[1] | b->sample_id[1], 0, "items of an older batch");
		hintfs_batch_release(b, NULL);
		b = next_ok(l);
		batch_ok(b, (unsigned[]){ 1, 2 }, 2, 4096);
		cr_assert_eq(b->flags, HINTFS_BATCH_LAST);
		hintfs_batch_release(b, NULL);
		end_ok(l);
		cr_assert_eq(hintfs_loader_set_epoch(l, (uint64_t)e), 0);
	}
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, marks_epochs_repeats_and_ranges)
{
	struct hintfs_opts o = opts_of("@epoch 4\n@batch 10\nf3\t100\t50\nf3\t0\t-\n@batch\nf4\n@batch 99\n@epoch 6\nf5\n@repeat 2\n");
	struct hintfs_loader *l;
	struct hintfs_batch *b;
	uint64_t n, label, labels[4] = { 4, 6, 7, 8 };

	o.batch_samples = 1;
	l = open_ok(&o);
	cr_assert_eq(hintfs_loader_epochs(l, &n), 0);
	cr_assert_eq(n, 4);
	for (uint64_t i = 0; i < 4; i++) {
		cr_assert_eq(hintfs_loader_epoch_label(l, i, &label), 0);
		cr_assert_eq(label, labels[i]);
	}
	b = next_ok(l);
	cr_assert_eq(b->number, 10);
	cr_assert_eq(b->epoch, 4);
	cr_assert_eq(b->n, 2);
	cr_assert_eq(b->source_offset[0], 100);
	cr_assert_eq(b->length[0], 50);
	cr_assert(tree_is(3, 100, b->payload, 50));
	cr_assert_eq(b->length[1], size_of(3));
	hintfs_batch_release(b, NULL);
	b = next_ok(l);
	cr_assert_eq(b->number, 11);
	cr_assert_eq(b->sample_id[0], 2);
	hintfs_batch_release(b, NULL);
	end_ok(l);
	cr_assert_eq(hintfs_loader_set_epoch(l, 5), -ENOENT);
	cr_assert_eq(hintfs_loader_set_epoch(l, 8), 0);
	b = next_ok(l);
	batch_ok(b, (unsigned[]){ 5 }, 1, 64);
	cr_assert_eq(b->epoch, 8);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, seek_and_done_begin_further_on)
{
	static const char *const orders[] = { "@batch\nf0\nf1\n@batch\nf2\n@done batch 0\n", "f0\nf1\nf2\n@seek 2\n", "f0\nf1\nf2\n@done 1\n" };

	for (int i = 0; i < 3; i++) {
		struct hintfs_opts o = opts_of(orders[i]);
		struct hintfs_loader *l = open_ok(&o);
		struct hintfs_batch *b = next_ok(l);

		batch_ok(b, (unsigned[]){ 2 }, 1, 64);
		cr_assert_eq(b->sample_id[0], 2);
		cr_assert_eq(hintfs_loader_close(l), 0);
	}
}

Test(loader, large_samples_are_refused_or_split)
{
	struct hintfs_opts o = opts_of("f0\nbig\nf1\n");
	const uint64_t bytes = 3 * 65536 + 77;
	struct hintfs_loader *l;
	struct hintfs_batch *b;
	char path[128], needed[32];
	uint64_t at = 0;

	snprintf(path, sizeof(path), "%s/big", tree.dir);
	tree_file(path, 500, bytes);
	snprintf(needed, sizeof(needed), "%llu", (unsigned long long)bytes);
	o.batch_bytes = 65536;
	l = open_ok(&o);
	b = next_ok(l);
	batch_ok(b, (unsigned[]){ 0 }, 1, 64);
	hintfs_batch_release(b, NULL);
	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), -EMSGSIZE);
	cr_assert(strstr(hintfs_last_error(), needed), "%s", hintfs_last_error());
	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), -EMSGSIZE);
	cr_assert_eq(hintfs_loader_close(l), 0);

	o.flags |= HINTFS_OPEN_SPLIT;
	l = open_ok(&o);
	hintfs_batch_release(next_ok(l), NULL);
	while (at < bytes) {
		b = next_ok(l);
		cr_assert_eq(b->sample_id[0], 1);
		cr_assert_eq(b->source_offset[0], at);
		cr_assert(tree_is(500, at, b->payload, b->length[0]));
		cr_assert_eq(!!(b->sample_flags[0] & HINTFS_SAMPLE_FIRST), at == 0);
		at += b->length[0];
		cr_assert_eq(!!(b->sample_flags[0] & HINTFS_SAMPLE_FINAL), at == bytes);
		if (at == bytes) {
			cr_assert_eq(b->n, 2, "the rest of the last piece's slot is used");
			cr_assert(tree_is(1, 0, (char *)b->payload + b->offset[1], b->length[1]));
		}
		hintfs_batch_release(b, NULL);
	}
	end_ok(l);
	cr_assert_eq(hintfs_loader_close(l), 0);
	unlink(path);
}

Test(loader, batches_larger_than_a_slot)
{
	struct hintfs_opts o = opts_of("@batch 3\nf0\t0\t900\nf1\t0\t900\nf2\t0\t900\nf3\t0\t900\nf4\t0\t900\n@batch\nf5\n");
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b;
	unsigned seen = 0;

	o.batch_bytes = 4096;
	cr_assert_eq(hintfs_loader_open(&o, &l), -EMSGSIZE, "known lengths are checked at open");
	cr_assert(strstr(hintfs_last_error(), "4800"), "%s", hintfs_last_error());
	o.flags |= HINTFS_OPEN_SPLIT;
	l = open_ok(&o);
	b = next_ok(l);
	cr_assert_eq(b->n, 4);
	cr_assert_eq(b->number, 3);
	cr_assert_eq(b->flags, HINTFS_BATCH_PARTIAL | HINTFS_BATCH_SPLIT);
	seen += b->n;
	hintfs_batch_release(b, NULL);
	b = next_ok(l);
	cr_assert_eq(b->number, 3);
	cr_assert_eq(b->flags, HINTFS_BATCH_PARTIAL);
	cr_assert_eq(seen + b->n, 5);
	hintfs_batch_release(b, NULL);
	b = next_ok(l);
	cr_assert_eq(b->number, 4);
	cr_assert_eq(b->flags, HINTFS_BATCH_LAST);
	cr_assert_eq(hintfs_loader_close(l), 0);
	/* Without a given size the slot is what the order needs. */
	o = opts_of("@batch\nf0\t0\t900\nf1\t0\t900\n@batch\nf2\t0\t100\n");
	l = open_ok(&o);
	b = next_ok(l);
	cr_assert_eq(b->n, 2);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, what_a_bad_sample_does)
{
	struct hintfs_opts o = opts_of("f0\nnone\nf1\nf2\t5000\t10\nf3\n");
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l;
	struct hintfs_batch *b;
	const int32_t want[] = { 0, ENOENT, 0, ERANGE, 0 };

	o.batch_samples = 5;
	o.on_error = HINTFS_ON_ERROR_MARK;
	l = open_ok(&o);
	b = next_ok(l);
	cr_assert_eq(b->n, 5);
	for (uint32_t i = 0; i < 5; i++) {
		cr_assert_eq(b->status[i], want[i]);
		cr_assert_eq(b->sample_id[i], i);
		cr_assert_eq(b->length[i] == 0, want[i] != 0);
	}
	cr_assert(tree_is(3, 0, (char *)b->payload + b->offset[4], b->length[4]));
	cr_assert_eq(hintfs_loader_stats(l, &s), 0);
	cr_assert_eq(s.bad_samples, 2);
	cr_assert_eq(hintfs_loader_close(l), 0);

	o.on_error = HINTFS_ON_ERROR_SKIP;
	l = open_ok(&o);
	b = next_ok(l);
	batch_ok(b, (unsigned[]){ 0, 1, 3 }, 3, 64);
	cr_assert_eq(b->sample_id[2], 4);
	cr_assert(b->flags & HINTFS_BATCH_PARTIAL);
	hintfs_batch_release(b, NULL);
	end_ok(l);
	cr_assert_eq(hintfs_loader_close(l), 0);

	o.on_error = HINTFS_ON_ERROR_FAIL;
	o.batch_samples = 1;
	l = open_ok(&o);
	hintfs_batch_release(next_ok(l), NULL);
	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), -ENOENT);
	cr_assert(strstr(hintfs_last_error(), "none"), "%s", hintfs_last_error());
	cr_assert_eq(hintfs_loader_set_epoch(l, 1), 0, "an epoch can begin again after a failure");
	batch_ok(next_ok(l), (unsigned[]){ 0 }, 1, 64);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, what_is_not_a_regular_file)
{
	struct hintfs_opts o = opts_of("fifo\nsubdir\nlink\n");
	char path[128];
	struct hintfs_loader *l;
	struct hintfs_batch *b;

	snprintf(path, sizeof(path), "%s/fifo", tree.dir);
	cr_assert_eq(mkfifo(path, 0600), 0);
	snprintf(path, sizeof(path), "%s/subdir", tree.dir);
	cr_assert_eq(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/link", tree.dir);
	cr_assert_eq(symlink("f9", path), 0);
	o.on_error = HINTFS_ON_ERROR_MARK;
	l = open_ok(&o);
	b = next_ok(l);
	cr_assert_eq(b->status[0], EINVAL);
	cr_assert_eq(b->status[1], EISDIR);
	cr_assert_eq(b->status[2], 0);
	cr_assert(tree_is(9, 0, (char *)b->payload + b->offset[2], size_of(9)));
	cr_assert_eq(hintfs_loader_close(l), 0);
	unlink(path);
	snprintf(path, sizeof(path), "%s/subdir", tree.dir);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/fifo", tree.dir);
	unlink(path);
}

Test(loader, drop_last)
{
	struct hintfs_opts o = opts_of("f{0..9}\n");
	struct hintfs_loader *l;
	int n;

	o.batch_samples = 4;
	o.flags |= HINTFS_OPEN_DROP_LAST;
	l = open_ok(&o);
	for (n = 0; n < 2; n++)
		hintfs_batch_release(next_ok(l), NULL);
	end_ok(l);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, cancel_and_held_batches)
{
	struct hintfs_opts o = opts_of("f{0..19}\n");
	struct hintfs_loader *l;
	struct hintfs_batch *held, *b;

	o.batch_samples = 2;
	o.ring_slots = 2;
	l = open_ok(&o);
	held = next_ok(l);
	cr_assert_eq(hintfs_loader_cancel(l), 0);
	cr_assert_eq(hintfs_loader_next_batch(l, -1, &b), -ECANCELED);
	cr_assert_eq(hintfs_loader_set_epoch(l, 1), 0);
	for (int i = 0; i < 3; i++) {
		b = next_ok(l);
		batch_ok(b, (unsigned[]){ 2 * (unsigned)i, 2 * (unsigned)i + 1 }, 2, 64);
		hintfs_batch_release(b, NULL);
	}
	batch_ok(held, (unsigned[]){ 0, 1 }, 2, 64); /* of the old epoch, still valid */
	cr_assert_eq(hintfs_batch_release(held, NULL), 0);
	cr_assert_eq(hintfs_batch_release(held, NULL), -EINVAL);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

static void *cancel_later(void *arg)
{
	struct hintfs_batch *b;

	/* The other thread takes one batch; when the second is asked for, no slot is free: cancel. */
	cr_expect_eq(hintfs_loader_next_batch(arg, -1, &b), -ECANCELED);
	return NULL;
}

Test(loader, cancel_wakes_a_waiting_caller)
{
	struct hintfs_opts o = opts_of("f{0..19}\n");
	struct hintfs_loader *l;
	pthread_t t;

	o.batch_samples = 2;
	o.ring_slots = 1;
	l = open_ok(&o);
	(void)next_ok(l);
	cr_assert_eq(pthread_create(&t, NULL, cancel_later, l), 0);
	cr_assert_eq(hintfs_loader_cancel(l), 0);
	cr_assert_eq(pthread_join(t, NULL), 0);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, every_call_in_a_child_answers_ECHILD)
{
	struct hintfs_opts o = opts_of("f{0..19}\n");
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l = open_ok(&o);
	struct hintfs_batch *b = next_ok(l), *other;
	const char *path;
	uint64_t n;
	int status;
	pid_t pid = fork();

	if (!pid) {
		int ok = hintfs_loader_next_batch(l, -1, &other) == -ECHILD && hintfs_batch_release(b, NULL) == -ECHILD &&
			 hintfs_batch_copy_to_device(b, &n, 8, NULL, 0) == -ECHILD &&
			 hintfs_loader_set_epoch(l, 1) == -ECHILD && hintfs_loader_stats(l, &s) == -ECHILD &&
			 hintfs_loader_cancel(l) == -ECHILD && hintfs_loader_close(l) == -ECHILD &&
			 hintfs_loader_epochs(l, &n) == -ECHILD && hintfs_loader_epoch_label(l, 0, &n) == -ECHILD &&
			 hintfs_loader_extent(l, &n, &n, NULL) == -ECHILD && hintfs_loader_sample_path(l, 0, &path) == -ECHILD;

		_exit(ok && tree_is(0, 0, b->payload, b->length[0]) ? 0 : 1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	cr_assert_eq(hintfs_batch_release(b, NULL), 0);
	cr_assert_eq(hintfs_loader_close(l), 0);
}

Test(loader, options_that_make_no_sense)
{
	struct hintfs_opts good = opts_of("f0\n"), o;
	struct hintfs_loader *l = NULL;

#define REFUSED(change, err)                                                     \
	do {                                                                     \
		o = good;                                                        \
		change;                                                          \
		cr_assert_eq(hintfs_loader_open(&o, &l), err, #change);          \
		cr_assert_null(l);                                               \
		cr_assert(*hintfs_last_error());                                 \
	} while (0)
	REFUSED(o.struct_size = 0, -EINVAL);
	REFUSED(o.mount = NULL, -EINVAL);
	REFUSED(o.mount = "/nonexistent", -ENOENT);
	REFUSED(o.order_text = NULL, -EINVAL);
	REFUSED((o.order_text = NULL, o.order_path = "/nonexistent"), -ENOENT);
	REFUSED(o.align_bytes = 96, -EINVAL);
	REFUSED(o.align_bytes = 8192, -EINVAL);
	REFUSED(o.ring_slots = 5000, -EINVAL);
	REFUSED(o.workers = 257, -EINVAL);
	REFUSED(o.flags = 0x8000, -EINVAL);
	REFUSED(o.on_error = 3, -EINVAL);
	REFUSED(o.flags = HINTFS_OPEN_REQUIRE_CUDA, -EINVAL);
	REFUSED(o.batch_bytes = UINT64_MAX, -EINVAL);
	REFUSED(o.order_text_bytes = 0, -ENODATA);
	REFUSED((o.order_text = "../x\n", o.order_text_bytes = 5), -EXDEV);
	REFUSED((o.order_text = "@what\n", o.order_text_bytes = 6), -EINVAL);
#undef REFUSED
	cr_assert_eq(hintfs_loader_close(NULL), 0);
}

Test(loader, order_and_progress_go_to_the_control_file)
{
	struct hintfs_opts o = opts_of("f0\nf1\t0\t100\n@window 64M\n\"f2\"\nf3\n");
	static const char want[] = "@epoch 0\n@batch 0\nf0\nf1\t0\t100\n@batch 1\n@window 67108864\nf2\nf3\n";
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l;
	char path[128], got[512] = "";
	int fd, n;

	snprintf(path, sizeof(path), "%s/order", tree.dir);
	tree_file(path, 0, 10);
	o.flags = 0;
	o.ctl_dir = tree.dir;
	o.batch_samples = 2;
	l = open_ok(&o);
	for (n = 0; n < 2; n++)
		hintfs_batch_release(next_ok(l), NULL);
	end_ok(l);
	cr_assert_eq(hintfs_loader_stats(l, &s), 0);
	cr_assert(!strncmp(s.hints, "on: ", 4), "%s", s.hints);
	cr_assert_eq(hintfs_loader_close(l), 0);
	fd = open(path, O_RDONLY);
	cr_assert_geq(read(fd, got, sizeof(got) - 1), 0);
	cr_assert(!strncmp(got, want, sizeof(want) - 1), "%s", got);
	cr_assert(strstr(got, "@done batch 1\n"), "%s", got);
	close(fd);
	/* An epoch left early takes its list back. */
	o.ring_slots = 1;
	l = open_ok(&o);
	(void)next_ok(l);
	cr_assert_eq(hintfs_loader_close(l), 0);
	fd = open(path, O_RDONLY);
	cr_assert_eq(read(fd, got, sizeof(got)), 0);
	close(fd);
	unlink(path);
}

/* Closed at once after the last batch, mostly before the thread that writes the hints had its first turn. */
Test(loader, a_short_epoch_is_written_and_marked)
{
	struct hintfs_opts o = opts_of("f0\n");
	char path[128];

	snprintf(path, sizeof(path), "%s/order", tree.dir);
	o.flags = 0;
	o.ctl_dir = tree.dir;
	o.ring_slots = 1;
	o.batch_bytes = 64 << 10;
	for (int i = 0; i < 300; i++) {
		struct hintfs_loader *l;
		char got[512] = "";
		int fd;

		tree_file(path, 0, 10);
		l = open_ok(&o);
		hintfs_batch_release(next_ok(l), NULL);
		end_ok(l);
		cr_assert_eq(hintfs_loader_close(l), 0);
		fd = open(path, O_RDONLY);
		cr_assert_geq(read(fd, got, sizeof(got) - 1), 0);
		close(fd);
		cr_assert_str_eq(got, "@epoch 0\n@batch 0\nf0\n@done batch 0\n", "round %d", i);
	}
	unlink(path);
}

Test(loader, few_descriptors_and_many_files)
{
	struct hintfs_opts o = opts_of("f{0..19}\n@repeat 3\n");
	struct hintfs_loader *l;

	o.max_open_files = 2;
	o.workers = 8;
	o.batch_samples = 20;
	l = open_ok(&o);
	for (uint64_t e = 0; e < 3; e++) {
		struct hintfs_batch *b;

		cr_assert_eq(hintfs_loader_set_epoch(l, e), 0);
		b = next_ok(l);
		cr_assert_eq(b->n, 20);
		for (uint32_t i = 0; i < 20; i++)
			cr_assert(tree_is(i, 0, (char *)b->payload + b->offset[i], size_of(i)));
		hintfs_batch_release(b, NULL);
		end_ok(l);
	}
	cr_assert_eq(hintfs_loader_close(l), 0);
}
