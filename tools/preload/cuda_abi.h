/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/cuda_abi.h - the 20 calls of the CUDA runtime that libhintfs uses, declared by ourselves.
 *
 * Used by: cuda_rt.c (dlsym), cuda_abi_check.c (compares each line with cuda_runtime_api.h when the machine has it)
 * and the test double. All arguments are ints, sizes and opaque pointers: equal in ABI from 11.0 to 13.
 *
 * Invariant: one table. A call that is not here is not used.
 */
#ifndef TOOLS_PRELOAD_CUDA_ABI_H
#define TOOLS_PRELOAD_CUDA_ABI_H

#include <stddef.h>

typedef void *cu_stream; /* cudaStream_t */
typedef void *cu_event;	 /* cudaEvent_t */

/* X(name without "cuda", return type, arguments) */
#define CUDA_ABI_TABLE(X)                                                                  \
	X(RuntimeGetVersion, int, (int *version))                                          \
	X(DriverGetVersion, int, (int *version))                                           \
	X(GetDeviceCount, int, (int *count))                                               \
	X(GetDevice, int, (int *device))                                                   \
	X(SetDevice, int, (int device))                                                    \
	X(DeviceGetAttribute, int, (int *value, int attr, int device))                     \
	X(GetLastError, int, (void))                                                       \
	X(GetErrorName, const char *, (int error))                                         \
	X(GetErrorString, const char *, (int error))                                       \
	X(HostRegister, int, (void *ptr, size_t size, unsigned flags))                     \
	X(HostUnregister, int, (void *ptr))                                                \
	X(MemcpyAsync, int, (void *dst, const void *src, size_t count, int kind, cu_stream stream)) \
	X(StreamCreateWithFlags, int, (cu_stream *stream, unsigned flags))                 \
	X(StreamDestroy, int, (cu_stream stream))                                          \
	X(StreamSynchronize, int, (cu_stream stream))                                      \
	X(StreamWaitEvent, int, (cu_stream stream, cu_event event, unsigned flags))        \
	X(EventCreateWithFlags, int, (cu_event *event, unsigned flags))                    \
	X(EventRecord, int, (cu_event event, cu_stream stream))                            \
	X(EventQuery, int, (cu_event event))                                               \
	X(EventDestroy, int, (cu_event event))

enum {
	CU_SUCCESS = 0,
	CU_ERR_ALLOC = 2,
	CU_ERR_INSUFFICIENT_DRIVER = 35,
	CU_ERR_NO_DEVICE = 100,
	CU_ERR_NOT_READY = 600,
	CU_HOST_REGISTER_PORTABLE = 1,
	CU_MEMCPY_HOST_TO_DEVICE = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_ATTR_HOST_REGISTER_READ_ONLY = 113,
	CU_ATTR_HOST_NUMA_ID = 134,
};

/* Exported by the test double only: what makes the backend "fake". */
#define CUDA_ABI_FAKE_MARKER "hintfs_fake_cudart"

#endif
