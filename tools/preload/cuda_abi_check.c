/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/cuda_abi_check.c - compiled only where cuda_runtime_api.h exists; produces no code.
 *
 * Each line of CUDA_ABI_TABLE is compared with the toolkit's prototype. Enum and handle types differ by name from our
 * ints and void pointers, so each prototype is spelled with the toolkit's types and checked for exact equality, and
 * each of those types is checked to have the size that ours has.
 */
#include "tools/preload/cuda_abi.h"

#include <cuda_runtime_api.h>

#define SAME(name, ret, args)                                                                            \
	_Static_assert(__builtin_types_compatible_p(__typeof__(cuda##name), ret args), "cuda" #name " differs from cuda_abi.h")
#define SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #theirs " is not the size of " #ours)
#define VALUE(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #theirs " has another value")

SAME(RuntimeGetVersion, cudaError_t, (int *));
SAME(DriverGetVersion, cudaError_t, (int *));
SAME(GetDeviceCount, cudaError_t, (int *));
SAME(GetDevice, cudaError_t, (int *));
SAME(SetDevice, cudaError_t, (int));
SAME(DeviceGetAttribute, cudaError_t, (int *, enum cudaDeviceAttr, int));
SAME(GetLastError, cudaError_t, (void));
SAME(GetErrorName, const char *, (cudaError_t));
SAME(GetErrorString, const char *, (cudaError_t));
SAME(HostRegister, cudaError_t, (void *, size_t, unsigned int));
SAME(HostUnregister, cudaError_t, (void *));
SAME(MemcpyAsync, cudaError_t, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t));
SAME(StreamCreateWithFlags, cudaError_t, (cudaStream_t *, unsigned int));
SAME(StreamDestroy, cudaError_t, (cudaStream_t));
SAME(StreamSynchronize, cudaError_t, (cudaStream_t));
SAME(StreamWaitEvent, cudaError_t, (cudaStream_t, cudaEvent_t, unsigned int));
SAME(EventCreateWithFlags, cudaError_t, (cudaEvent_t *, unsigned int));
SAME(EventRecord, cudaError_t, (cudaEvent_t, cudaStream_t));
SAME(EventQuery, cudaError_t, (cudaEvent_t));
SAME(EventDestroy, cudaError_t, (cudaEvent_t));

SIZE(cudaError_t, int);
SIZE(enum cudaDeviceAttr, int);
SIZE(enum cudaMemcpyKind, int);
SIZE(cudaStream_t, cu_stream);
SIZE(cudaEvent_t, cu_event);

VALUE(cudaSuccess, CU_SUCCESS);
VALUE(cudaErrorMemoryAllocation, CU_ERR_ALLOC);
VALUE(cudaErrorInsufficientDriver, CU_ERR_INSUFFICIENT_DRIVER);
VALUE(cudaErrorNoDevice, CU_ERR_NO_DEVICE);
VALUE(cudaErrorNotReady, CU_ERR_NOT_READY);
VALUE(cudaHostRegisterPortable, CU_HOST_REGISTER_PORTABLE);
VALUE(cudaMemcpyHostToDevice, CU_MEMCPY_HOST_TO_DEVICE);
VALUE(cudaEventDisableTiming, CU_EVENT_DISABLE_TIMING);
#if CUDART_VERSION >= 11010
VALUE(cudaDevAttrHostRegisterReadOnlySupported, CU_ATTR_HOST_REGISTER_READ_ONLY);
#endif
#if CUDART_VERSION >= 12020
VALUE(cudaDevAttrHostNumaId, CU_ATTR_HOST_NUMA_ID);
#endif
