/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/gpu/gpu_preload.c - libhintfs on a real device: backend "cuda", right bytes, and the rates beside plain copies.
 *
 *	gpu_preload DIR		exit 0 passed, 1 failed, 77 no CUDA device (says why)
 *
 * DIR holds files s0, s1 ... that are read through the ring and copied to the device; each batch is copied back and compared with
 * the file. Then host-to-device GB/s of: plain cudaMemcpy from pageable memory, from cudaHostAlloc memory, and from the
 * ring's slots. It loads the runtime itself for what libhintfs does not need (cudaMalloc, cudaMemcpy, cudaHostAlloc).
 */
#include "tools/preload/hintfs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOT_BYTES (64u << 20)
#define ROUNDS 20

enum { SKIPPED = 77, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, NON_BLOCKING = 1 };

static int (*cu_Malloc)(void **p, size_t n);
static int (*cu_Free)(void *p);
static int (*cu_Memcpy)(void *dst, const void *src, size_t n, int kind);
static int (*cu_HostAlloc)(void **p, size_t n, unsigned flags);
static int (*cu_FreeHost)(void *p);
static int (*cu_StreamCreateWithFlags)(void **s, unsigned flags);
static int (*cu_StreamSynchronize)(void *s);
static int (*cu_StreamDestroy)(void *s);
static int (*cu_SetDevice)(int device);
static int (*cu_GetDevice)(int *device);
static int (*cu_PeekAtLastError)(void);

static bool runtime_load(const char *path)
{
	/* The same library that libhintfs loaded: its name is in the stats. */
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	bool ok = h != NULL;

#define GET(name)                                              \
	do {                                                   \
		void *sym = ok ? dlsym(h, "cuda" #name) : NULL; \
		ok = ok && sym;                                \
		memcpy(&cu_##name, &sym, sizeof(sym));         \
	} while (0)
	GET(Malloc);
	GET(Free);
	GET(Memcpy);
	GET(HostAlloc);
	GET(FreeHost);
	GET(StreamCreateWithFlags);
	GET(StreamSynchronize);
	GET(StreamDestroy);
	GET(SetDevice);
	GET(GetDevice);
	GET(PeekAtLastError);
#undef GET
	return ok;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int failed(const char *what)
{
	fprintf(stderr, "FAILED: %s: %s\n", what, hintfs_last_error());
	return 1;
}

/* Each sample of a batch that came back from the device, against the file. */
static bool batch_is_right(struct hintfs_loader *l, int dir_fd, const struct hintfs_batch *b, const char *back)
{
	char *buf = malloc(1 << 20);
	bool ok = buf != NULL;

	for (uint32_t i = 0; ok && i < b->n; i++) {
		const char *path = "";
		uint64_t at = 0;
		int fd;

		ok = hintfs_loader_sample_path(l, b->sample_id[i], &path) == 0;
		fd = ok ? openat(dir_fd, path, O_RDONLY | O_CLOEXEC) : -1;
		while (fd >= 0 && ok && at < b->length[i]) {
			uint64_t want = b->length[i] - at < 1 << 20 ? b->length[i] - at : 1 << 20;
			ssize_t n = pread(fd, buf, want, (off_t)(b->source_offset[i] + at));

			ok = n > 0 && !memcmp(buf, back + b->offset[i] + at, (size_t)n);
			at += n > 0 ? (uint64_t)n : 0;
		}
		ok = ok && fd >= 0;
		if (fd >= 0)
			close(fd);
	}
	free(buf);
	return ok;
}

/* The whole order through the ring onto the device and back, on a stream of our own. */
static int correctness(struct hintfs_loader *l, int dir_fd, void *device, void *stream, char *back)
{
	struct hintfs_batch *b;
	uint64_t bytes = 0;
	int r;

	while ((r = hintfs_loader_next_batch(l, 60000, &b)) == 0) {
		if (hintfs_batch_copy_to_device(b, device, SLOT_BYTES, stream, HINTFS_COPY_SYNC) < 0)
			return failed("copy");
		if (cu_Memcpy(back, device, b->payload_bytes, DEVICE_TO_HOST))
			return failed("copy back");
		if (!batch_is_right(l, dir_fd, b, back))
			return failed("bytes on the device differ from the file");
		bytes += b->payload_bytes;
		if (hintfs_batch_release(b, stream) < 0)
			return failed("release");
	}
	if (r != 1)
		return failed("next_batch");
	printf("verified %.1f MB on the device\n", (double)bytes / 1e6);
	return 0;
}

/* No synchronisation at all between batches: slots come back by their events only. The last batch is then compared. */
static int streaming(struct hintfs_loader *l, int dir_fd, void *device, void *stream, char *back)
{
	struct hintfs_batch *b;
	uint64_t bytes = 0;
	double start = now_s();
	int r = 0, epoch;

	for (epoch = 1; !r && epoch <= 3; epoch++) {
		if (hintfs_loader_set_epoch(l, (uint64_t)epoch) < 0)
			return failed("set_epoch");
		while ((r = hintfs_loader_next_batch(l, 60000, &b)) == 0) {
			if (hintfs_batch_copy_to_device(b, device, SLOT_BYTES, stream, 0) < 0)
				return failed("copy");
			bytes += b->payload_bytes;
			if (b->flags & HINTFS_BATCH_LAST && epoch == 3) {
				if (cu_StreamSynchronize(stream) || cu_Memcpy(back, device, b->payload_bytes, DEVICE_TO_HOST) ||
				    !batch_is_right(l, dir_fd, b, back))
					return failed("the last batch differs");
			}
			if (hintfs_batch_release(b, NULL) < 0)
				return failed("release");
		}
		if (r != 1)
			return failed("next_batch");
		r = 0;
	}
	printf("files -> ring -> device, overlapped   %7.2f GB/s\n", (double)bytes / (now_s() - start) / 1e9);
	return 0;
}

static double plain_rate(void *device, const void *host)
{
	double start;
	int i;

	if (cu_Memcpy(device, host, SLOT_BYTES, HOST_TO_DEVICE))
		return 0;
	start = now_s();
	for (i = 0; i < ROUNDS; i++)
		if (cu_Memcpy(device, host, SLOT_BYTES, HOST_TO_DEVICE))
			return 0;
	return (double)SLOT_BYTES * ROUNDS / (now_s() - start) / 1e9;
}

/* The same full slot copied again and again: what the link gives from the ring. */
static double ring_rate(struct hintfs_loader *l, void *device, void *stream)
{
	struct hintfs_batch *b;
	double start, rate = 0;
	int i;

	if (hintfs_loader_set_epoch(l, 9) < 0 || hintfs_loader_next_batch(l, 60000, &b) != 0)
		return 0;
	start = now_s();
	for (i = 0; i < ROUNDS; i++)
		if (hintfs_batch_copy_to_device(b, device, SLOT_BYTES, stream, i == ROUNDS - 1 ? HINTFS_COPY_SYNC : 0) < 0)
			break;
	if (i == ROUNDS)
		rate = (double)b->payload_bytes * ROUNDS / (now_s() - start) / 1e9;
	(void)hintfs_batch_release(b, NULL);
	return rate;
}

static int rates(struct hintfs_loader *l, void *device, void *stream)
{
	char *pageable = malloc(SLOT_BYTES);
	void *pinned = NULL;
	double a, b, c;

	if (!pageable || cu_HostAlloc(&pinned, SLOT_BYTES, 0))
		return failed("memory");
	memset(pageable, 1, SLOT_BYTES);
	memset(pinned, 1, SLOT_BYTES);
	a = plain_rate(device, pageable);
	b = plain_rate(device, pinned);
	c = ring_rate(l, device, stream);
	printf("cudaMemcpy from pageable memory       %7.2f GB/s\n", a);
	printf("cudaMemcpy from cudaHostAlloc memory  %7.2f GB/s\n", b);
	printf("copy_to_device from the ring          %7.2f GB/s (%.2f of pinned)\n", c, b > 0 ? c / b : 0);
	free(pageable);
	(void)cu_FreeHost(pinned);
	return a > 0 && b > 0 && c > 0 ? 0 : failed("a rate could not be measured");
}

static int device_checks(struct hintfs_loader *l, const char *dir)
{
	void *device = NULL, *stream = NULL;
	char *back = malloc(SLOT_BYTES);
	int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC), result, current = -1;

	if (!back || dir_fd < 0 || cu_SetDevice(0) || cu_Malloc(&device, SLOT_BYTES) ||
	    cu_StreamCreateWithFlags(&stream, NON_BLOCKING))
		return failed("set-up");
	result = correctness(l, dir_fd, device, stream, back);
	if (!result)
		result = streaming(l, dir_fd, device, stream, back);
	if (!result)
		result = rates(l, device, stream);
	if (!result && (cu_GetDevice(&current) || current != 0 || cu_PeekAtLastError()))
		result = failed("the caller's device or last error was changed");
	(void)cu_StreamDestroy(stream);
	(void)cu_Free(device);
	close(dir_fd);
	free(back);
	return result;
}

int main(int argc, char **argv)
{
	struct hintfs_opts o = HINTFS_OPTS_INIT;
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct hintfs_loader *l;
	int result;

	if (argc != 2)
		return 1;
	o.mount = argv[1];
	o.order_text = "s{0..7}\n";
	o.order_text_bytes = strlen(o.order_text);
	o.batch_bytes = SLOT_BYTES;
	o.flags = HINTFS_OPEN_SPLIT;
	o.workers = 8;
	o.device = 0;
	if (hintfs_loader_open(&o, &l) < 0)
		return failed("open");
	if (hintfs_loader_stats(l, &s) < 0)
		return failed("stats");
	printf("backend %s: %s\n", s.backend, s.reason);
	if (strcmp(s.backend, "cuda")) {
		/* Only a machine without a device may skip; one that has it must get it. */
		bool has_device = access("/dev/nvidiactl", F_OK) == 0 && s.cuda_driver_version;

		(void)hintfs_loader_close(l);
		return has_device ? failed("there is a device, but the backend is not cuda") : SKIPPED;
	}
	printf("attribute 113 (read-only registration) %d, NUMA node %d\n", s.host_register_ro, s.numa_node);
	result = runtime_load(s.cudart) ? device_checks(l, argv[1]) : failed("symbols");
	if (hintfs_loader_close(l) < 0)
		result = failed("close");
	return result;
}
