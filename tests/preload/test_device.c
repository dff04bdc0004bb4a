/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/test_device.c - the CUDA side of libhintfs against the recording double of libcudart.
 *
 * A plain program (exit 0 or 1), so that it runs under TSan too. HINTFS_TEST_CUDART names the double.
 */
#include "tests/preload/fake_cudart.h"
#include "tests/preload/tree.h"
#include "tools/preload/cuda_abi.h"
#include "tools/preload/hintfs.h"

#include <dlfcn.h>
#include <errno.h>

static const char *fake_path;
static void *fake_handle;
static const struct fake_controls *fake;
static struct tree tree;
static unsigned bad;

#define CHECK(x, ...)                                                                     \
	do {                                                                              \
		if (!(x)) {                                                               \
			bad++;                                                            \
			fprintf(stderr, "%s:%d: %s: ", __func__, __LINE__, #x);           \
			fprintf(stderr, __VA_ARGS__);                                     \
			fputc('\n', stderr);                                              \
		}                                                                         \
	} while (0)

#define CALL(name, ret, args) static ret(*cu_##name) args;
CUDA_ABI_TABLE(CALL)
#undef CALL

static void fake_load(void)
{
	void *sym;

	fake_path = getenv("HINTFS_TEST_CUDART");
	TREE_REQUIRE(fake_path);
	fake_handle = dlopen(fake_path, RTLD_NOW | RTLD_LOCAL);
	TREE_REQUIRE(fake_handle);
	fake = dlsym(fake_handle, "fake_controls");
	TREE_REQUIRE(fake);
#define CALL(name, ret, args)                                  \
	sym = dlsym(fake_handle, "cuda" #name);                \
	TREE_REQUIRE(sym);                                     \
	memcpy(&cu_##name, &sym, sizeof(sym));
	CUDA_ABI_TABLE(CALL)
#undef CALL
}

static uint64_t size_small(unsigned n)
{
	return 3000 + 977 * n;
}

static char order[4096];

static struct hintfs_opts opts_base(void)
{
	struct hintfs_opts o = HINTFS_OPTS_INIT;

	o.mount = tree.dir;
	o.order_text = order;
	o.order_text_bytes = strlen(order);
	o.cudart_path = fake_path;
	o.device = 1;
	o.batch_samples = 4;
	o.batch_bytes = 256 << 10;
	o.ring_slots = 2;
	o.workers = 3;
	o.close_timeout_ms = 20000;
	return o;
}

static bool batch_is_right(const struct hintfs_batch *b, const char *payload)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->status[i] || !tree_is((unsigned)b->sample_id[i], b->source_offset[i], payload + b->offset[i], b->length[i]))
			return false;
	return true;
}

/* After close: nothing is left behind and no rule was broken. */
static void report_check(const char *what)
{
	struct fake_report r;

	fake->report(&r);
	CHECK(!r.violations, "%s: %u, first: %s", what, r.violations, r.first);
	CHECK(!r.registrations && !r.events, "%s: %u registrations, %u events left", what, r.registrations, r.events);
	CHECK(!r.uncleared, "%s: %u errors left on their threads", what, r.uncleared);
}

/* Copies on two streams with a delay, a ring of two slots: every byte arrives, no slot is refilled early. */
static void test_copies(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	cu_stream streams[2];
	char *dst[3]; /* a destination a stream: copies on different streams are not ordered */
	int device = -1, round, r;
	uint64_t copied = 0;

	for (r = 0; r < 3; r++)
		TREE_REQUIRE(dst[r] = malloc(256 << 10));
	fake->reset();
	fake->delay_us(300);
	CHECK(cu_StreamCreateWithFlags(&streams[0], 1) == 0 && cu_StreamCreateWithFlags(&streams[1], 1) == 0, "streams");
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_stats(l, &s) == 0 && !strcmp(s.backend, "fake"), "backend %s: %s", s.backend, s.reason);
	CHECK(s.pinned_bytes == s.ring_bytes, "pinned %llu", (unsigned long long)s.pinned_bytes);
	for (round = 0; round < 6; round++) {
		unsigned n = 0;

		while ((r = hintfs_loader_next_batch(l, -1, &b)) == 0) {
			uint64_t len = b->payload_bytes;
			unsigned to = n % 3 == 2 ? 2 : n % 2;

			CHECK(hintfs_batch_copy_to_device(b, dst[to], 256 << 10, to == 2 ? NULL : streams[to], 0) == 0, "%s", hintfs_last_error());
			if (n % 2) { /* a second copy on another stream: the slot must wait for both */
				CHECK(hintfs_batch_copy_to_device(b, dst[0], 256 << 10, streams[0], HINTFS_COPY_SYNC) == 0, "%s",
				      hintfs_last_error());
				CHECK(batch_is_right(b, dst[0]), "device bytes of batch %llu", (unsigned long long)b->seq);
				copied += len;
			}
			CHECK(batch_is_right(b, b->payload), "host bytes");
			CHECK(hintfs_batch_release(b, n % 4 ? NULL : streams[1]) == 0, "%s", hintfs_last_error());
			copied += len;
			n++;
		}
		CHECK(r == 1 && n == 8, "epoch ended with %d after %u batches", r, n);
		CHECK(hintfs_loader_set_epoch(l, (uint64_t)round + 1) == 0, "%s", hintfs_last_error());
	}
	CHECK(hintfs_loader_stats(l, &s) == 0 && s.copied_bytes == copied, "copied %llu", (unsigned long long)s.copied_bytes);
	CHECK(cu_GetDevice(&device) == 0 && device == 0, "the caller's device became %d", device);
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	CHECK(cu_StreamDestroy(streams[0]) == 0 && cu_StreamDestroy(streams[1]) == 0, "streams");
	report_check("copies");
	for (r = 0; r < 3; r++)
		free(dst[r]);
}

/* Metadata and payload in one copy; too small a destination; a released batch. */
static void test_copy_arguments(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	struct hintfs_batch_meta *m;
	char *dst = malloc(1024 << 10);

	fake->reset();
	CHECK(hintfs_loader_open(&o, &l) == 0 && hintfs_loader_next_batch(l, -1, &b) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_batch_copy_to_device(b, dst, b->payload_bytes - 1, NULL, 0) == -ENOSPC, "cap");
	CHECK(hintfs_batch_copy_to_device(b, dst, 1024 << 10, NULL, 8) == -EINVAL, "flag");
	CHECK(hintfs_batch_copy_to_device(b, dst, 1024 << 10, NULL, HINTFS_COPY_META | HINTFS_COPY_SYNC) == 0, "%s",
	      hintfs_last_error());
	m = (struct hintfs_batch_meta *)dst;
	CHECK(!memcmp(m->magic, "HINTFSB1", 8) && m->n == b->n && m->meta_bytes == b->meta_bytes, "metadata");
	CHECK(!memcmp(dst + m->length_at, b->length, b->n * sizeof(*b->length)), "lengths");
	CHECK(batch_is_right(b, dst + m->meta_bytes), "payload behind the metadata");
	CHECK(hintfs_batch_release(b, NULL) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_batch_release(b, NULL) == -EINVAL, "second release");
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	report_check("arguments");
	free(dst);
}

/* While copies are held no slot comes back; when they run, all do. A batch that is held at close counts too. */
static void test_held(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	char *dst = malloc(256 << 10);
	int i;

	fake->reset();
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	fake->hold(1);
	for (i = 0; i < 2; i++) {
		CHECK(hintfs_loader_next_batch(l, -1, &b) == 0, "%s", hintfs_last_error());
		CHECK(hintfs_batch_copy_to_device(b, dst, 256 << 10, NULL, 0) == 0, "%s", hintfs_last_error());
		CHECK(hintfs_batch_release(b, NULL) == 0, "%s", hintfs_last_error());
	}
	CHECK(hintfs_loader_next_batch(l, 30, &b) == -ETIMEDOUT, "a slot came back before its copy was done");
	fake->hold(0);
	CHECK(hintfs_loader_next_batch(l, -1, &b) == 0 && b->seq == 2 && batch_is_right(b, b->payload), "third batch");
	CHECK(hintfs_batch_copy_to_device(b, dst, 256 << 10, NULL, 0) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	report_check("held");
	free(dst);
}

/* Device work that never ends: close says so and leaves the memory where the device can still read it. */
static void test_close_timeout(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	struct fake_report r;
	char *dst = malloc(256 << 10);

	fake->reset();
	o.close_timeout_ms = 1;
	CHECK(hintfs_loader_open(&o, &l) == 0 && hintfs_loader_next_batch(l, -1, &b) == 0, "%s", hintfs_last_error());
	fake->hold(1);
	CHECK(hintfs_batch_copy_to_device(b, dst, 256 << 10, NULL, 0) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_batch_release(b, NULL) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_close(l) == -ETIMEDOUT, "close");
	fake->hold(0);
	CHECK(cu_StreamSynchronize(NULL) == 0, "the held copy");
	fake->report(&r);
	CHECK(!r.violations && r.registrations == 1 && r.copies_done == 1, "%s", r.first);
	fake->reset();
	free(dst);
}

/* Registration in chunks of at most 256 MiB on slot boundaries, undone from the last when one fails. */
static void test_chunks(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l = NULL;
	struct fake_report r;

	o.batch_bytes = 100u << 20;
	o.ring_slots = 5;
	fake->reset();
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	fake->report(&r);
	CHECK(r.registrations == 3 && r.registered_max <= 256u << 20, "%u registrations", r.registrations);
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	report_check("chunks");
	fake->reset();
	fake->inject("HostRegister", 3, 1, 2);
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_stats(l, &s) == 0 && !strncmp(s.backend, "host", 4) && strstr(s.reason, "HostRegister"), "%s: %s",
	      s.backend, s.reason);
	CHECK(fake->calls("HostUnregister") == 2, "%u chunks undone", fake->calls("HostUnregister"));
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	report_check("rollback");
}

/* A slot larger than a chunk: its copy is cut at the registrations' borders. */
static void test_large_slot(void)
{
	const uint64_t bytes = (256u << 20) + 12345;
	struct hintfs_opts o = opts_base();
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	struct fake_report r;
	char path[128], *dst = malloc(bytes + 4096);
	int fd;

	snprintf(path, sizeof(path), "%s/large", tree.dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	TREE_REQUIRE(dst && fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, "end", 3, (off_t)bytes - 3) == 3);
	close(fd);
	fake->reset();
	o.order_text = "large\n";
	o.order_text_bytes = 6;
	o.batch_bytes = 300u << 20;
	o.ring_slots = 2;
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	fake->report(&r);
	CHECK(r.registrations == 4, "%u registrations", r.registrations);
	CHECK(hintfs_loader_next_batch(l, -1, &b) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_batch_copy_to_device(b, dst, bytes + 4096, NULL, HINTFS_COPY_SYNC) == 0, "%s", hintfs_last_error());
	CHECK(!memcmp(dst + bytes - 3, "end", 3) && fake->calls("MemcpyAsync") == 2, "%u copies", fake->calls("MemcpyAsync"));
	CHECK(hintfs_batch_release(b, NULL) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	report_check("large slot");
	unlink(path);
	free(dst);
}

/* One loader's life with copies, whatever fails. Returns batches seen. */
static void life(const char *what, bool is_clean_expected)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l = NULL;
	struct hintfs_batch *b = NULL;
	static char dst[256 << 10];
	struct fake_report r;
	unsigned n = 0;
	int err, closed;

	err = hintfs_loader_open(&o, &l);
	CHECK(err == 0, "%s: %s", what, hintfs_last_error());
	if (err)
		return;
	while ((err = hintfs_loader_next_batch(l, -1, &b)) == 0) {
		int copy = hintfs_batch_copy_to_device(b, dst, sizeof(dst), NULL, 0);

		CHECK(copy == 0 || copy == -ENODEV, "%s: copy: %d", what, copy);
		CHECK(batch_is_right(b, b->payload), "%s: bytes of batch %llu", what, (unsigned long long)b->seq);
		(void)hintfs_batch_release(b, NULL);
		n++;
	}
	(void)hintfs_loader_stats(l, &s);
	fake->report(&r);
	CHECK(err == 1 ? n == 8 : err == -EDEADLK && s.lost_slots == 2, "%s: ended with %d after %u: %s", what, err, n,
	      hintfs_last_error());
	/* A failure that mattered shows in the backend; one that did not leaves it as it is. */
	CHECK(!strcmp(s.backend, "fake") || (!strncmp(s.backend, "host", 4) && r.failures && s.reason[0]), "%s: %s: %s", what,
	      s.backend, s.reason);
	CHECK(strcmp(s.backend, "host") || !s.pinned_bytes, "%s: pinned bytes of plain memory", what);
	closed = hintfs_loader_close(l);
	(void)cu_StreamSynchronize(NULL);
	fake->report(&r);
	CHECK(!r.violations, "%s: %s", what, r.first);
	CHECK(closed == 0 || r.failures, "%s: close: %d", what, closed);
	if (is_clean_expected)
		CHECK(closed || (!r.registrations && !r.events), "%s: %u registrations, %u events left", what,
		      r.registrations, r.events);
}

/* Each call fails with each error, the first, second or third time, once or for good. */
static void test_every_failure(void)
{
	static const char *const names[] = {
#define NAME(name, ret, args) #name,
		CUDA_ABI_TABLE(NAME)
#undef NAME
	};
	static const int errors[] = { 2, 35, 100, 304 };
	char what[128];
	struct fake_report r;
	unsigned total = 0;

	for (size_t c = 0; c < sizeof(names) / sizeof(*names); c++) {
		if (!strncmp(names[c], "GetError", 8))
			continue; /* they cannot fail */
		for (unsigned i = 0; i < 4 * 3 * 2; i++) {
			unsigned nth = i / 4 % 3 + 1, times = i / 12 ? UINT32_MAX : 1;
			int err = errors[i % 4];
			bool is_destroy = !strcmp(names[c], "EventDestroy") || !strcmp(names[c], "HostUnregister");

			snprintf(what, sizeof(what), "%s fails with %d from call %u, %s", names[c], err, nth,
				 times == 1 ? "once" : "for good");
			fake->reset();
			fake->inject(names[c], nth, times, err);
			life(what, !is_destroy);
			fake->report(&r);
			total += r.failures;
			CHECK(!r.uncleared || !strcmp(names[c], "GetLastError") || !strcmp(names[c], "StreamSynchronize"),
			      "%s: %u errors left behind", what, r.uncleared);
		}
	}
	CHECK(total > 200, "only %u failures happened", total);
	fake->reset();
}

/* Required CUDA that fails; devices that do not exist; the double where it was not asked for. */
static void test_refusals(void)
{
	struct hintfs_opts o = opts_base();
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l = NULL;

	fake->reset();
	fake->inject("GetDeviceCount", 1, UINT32_MAX, 35);
	o.flags = HINTFS_OPEN_REQUIRE_CUDA;
	CHECK(hintfs_loader_open(&o, &l) == -ENODEV && strstr(hintfs_last_error(), "35"), "%s", hintfs_last_error());
	report_check("required");
	fake->reset();
	fake->devices(1);
	CHECK(hintfs_loader_open(&o, &l) == -ENODEV && strstr(hintfs_last_error(), "device 1"), "%s", hintfs_last_error());
	report_check("no such device");
	fake->reset();
	o.flags = 0;
	o.cudart_path = NULL;
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_stats(l, &s) == 0 && strcmp(s.backend, "fake"), "%s", s.backend);
	CHECK(!fake->calls("HostRegister"), "the double was used");
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
	o.cudart_path = "/nonexistent/libcudart.so";
	CHECK(hintfs_loader_open(&o, &l) == 0, "%s", hintfs_last_error());
	CHECK(hintfs_loader_stats(l, &s) == 0 && strstr(s.reason, "/nonexistent/libcudart.so"), "%s", s.reason);
	CHECK(hintfs_loader_close(l) == 0, "%s", hintfs_last_error());
}

int main(void)
{
	unsigned i;

	(void)unsetenv("HINTFS_CUDART");
	fake_load();
	tree_create(&tree, 32, size_small);
	for (i = 0; i < 32; i++)
		snprintf(order + strlen(order), sizeof(order) - strlen(order), "f%u\n", i);
	test_copies();
	test_copy_arguments();
	test_held();
	test_close_timeout();
	test_chunks();
	test_large_slot();
	test_every_failure();
	test_refusals();
	tree_destroy(&tree);
	if (bad)
		fprintf(stderr, "%u checks failed\n", bad);
	return bad ? 1 : 0;
}
