/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/cuda_rt.h - the CUDA runtime, found at run time or not at all.
 *
 * Callers: loader.c (open, on its keeper thread), ring.c (registration), device.c (copies and events).
 * Invariants:
 *  1. A loaded library is never unloaded: its threads and its error state outlive us.
 *  2. After a failed call cudaGetLastError is called in the same library on the same thread, so that the error is
 *     not found later by an innocent call of the application.
 *  3. The test double is accepted only by explicit path.
 */
#ifndef TOOLS_PRELOAD_CUDA_RT_H
#define TOOLS_PRELOAD_CUDA_RT_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/preload/cuda_abi.h"

struct cuda_rt {
#define CUDA_RT_FIELD(name, ret, args) ret(*name) args;
	CUDA_ABI_TABLE(CUDA_RT_FIELD)
#undef CUDA_RT_FIELD
	void *handle;	     /* never closed */
	bool is_fake;	     /* exports CUDA_ABI_FAKE_MARKER */
	int device;	     /* checked to exist */
	int runtime_version; /* 13000 = 13.0; 0: nothing loaded */
	int driver_version;  /* 0: no driver */
	int numa_node;	     /* of the device's host memory; -1 unknown */
	int register_ro;     /* attribute 113; -1 unknown */
	char path[256];	     /* what was loaded */
};

/*
 * Find a runtime in which `device` works and make it the calling thread's current device: explicit_path alone if
 * given; else one that the process has already, else by soname 13, 12, 11.0; the next one is tried when a driver is
 * too old for one. 0, or -ENODEV with the reason (reason_size >= 64) in words. rt's version fields are valid either way.
 */
int cuda_rt_open(struct cuda_rt *rt, const char *explicit_path, int device, char *reason, size_t reason_size)
	__attribute__((warn_unused_result));

/* Write "cudaCall: name (number): text" and clear the thread's last error. */
void cuda_rt_explain(const struct cuda_rt *rt, const char *call, int err, char *ret_text, size_t size);

/* Clear the thread's last error (invariant 2). */
void cuda_rt_clear(const struct cuda_rt *rt);

#endif
