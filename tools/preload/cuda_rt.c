/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/preload/cuda_rt.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Newest first: a driver too old for one answers 35 and the next is tried. */
static const char *const sonames[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0" };
#define N_SONAMES (sizeof(sonames) / sizeof(sonames[0]))

void cuda_rt_clear(const struct cuda_rt *rt)
{
	(void)rt->GetLastError();
}

void cuda_rt_explain(const struct cuda_rt *rt, const char *call, int err, char *ret_text, size_t size)
{
	const char *name = rt->GetErrorName(err);
	const char *text = rt->GetErrorString(err);

	snprintf(ret_text, size, "cuda%s: %s (%d): %s", call, name ? name : "?", err, text ? text : "?");
	cuda_rt_clear(rt);
}

static int symbols_resolve(struct cuda_rt *rt, char *reason, size_t size)
{
	/* dlsym gives void *; the union-free copy is the form POSIX sanctions. */
#define CUDA_RT_RESOLVE(name, ret, args)                                                     \
	do {                                                                                 \
		void *sym = dlsym(rt->handle, "cuda" #name);                                 \
		if (!sym) {                                                                  \
			snprintf(reason, size, "%s lacks cuda" #name, rt->path);             \
			return -ENODEV;                                                      \
		}                                                                            \
		memcpy(&rt->name, &sym, sizeof(sym));                                        \
	} while (0);
	CUDA_ABI_TABLE(CUDA_RT_RESOLVE)
#undef CUDA_RT_RESOLVE
	return 0;
}

/* Is the driver there, new enough, and does the device exist? ret_err: the CUDA error, for the fall-through. */
static int device_probe(struct cuda_rt *rt, int device, int *ret_err, char *reason, size_t size)
{
	const char *call = "RuntimeGetVersion";
	int count = 0, value = 0, err;

	err = rt->RuntimeGetVersion(&rt->runtime_version);
	if (!err) {
		call = "DriverGetVersion";
		err = rt->DriverGetVersion(&rt->driver_version);
	}
	if (!err) {
		call = "GetDeviceCount";
		err = rt->GetDeviceCount(&count);
	}
	if (!err && device >= count) {
		snprintf(reason, size, "there is no CUDA device %d: the driver shows %d", device, count);
		*ret_err = CU_SUCCESS;
		return -ENODEV;
	}
	if (!err) {
		call = "SetDevice";
		err = rt->SetDevice(device);
	}
	*ret_err = err;
	if (err) {
		bool has_driver = rt->driver_version || err != CU_ERR_INSUFFICIENT_DRIVER;
		int n = has_driver ? 0 : snprintf(reason, size, "no NVIDIA driver: ");

		cuda_rt_explain(rt, call, err, reason + n, size - (size_t)n);
		return -ENODEV;
	}
	rt->device = device;
	/* Both only inform: an older runtime does not know them. */
	if (!rt->DeviceGetAttribute(&value, CU_ATTR_HOST_NUMA_ID, device))
		rt->numa_node = value;
	else
		cuda_rt_clear(rt);
	if (!rt->DeviceGetAttribute(&value, CU_ATTR_HOST_REGISTER_READ_ONLY, device))
		rt->register_ro = value;
	else
		cuda_rt_clear(rt);
	return 0;
}

/* Try one library. ret_err is the CUDA error that spoke against it, or 0. */
static int library_try(struct cuda_rt *rt, const char *path, int extra_flags, bool is_explicit, int device, int *ret_err,
		       char *reason, size_t size)
{
	int err;

	*ret_err = CU_SUCCESS;
	rt->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | extra_flags);
	if (!rt->handle) {
		const char *text = extra_flags ? NULL : dlerror();

		snprintf(reason, size, "cannot load %s: %s", path, text ? text : "not there");
		return -ENOENT;
	}
	snprintf(rt->path, sizeof(rt->path), "%s", path);
	rt->is_fake = dlsym(rt->handle, CUDA_ABI_FAKE_MARKER) != NULL;
	if (rt->is_fake && !is_explicit) {
		snprintf(reason, size, "%s is a test double and was not asked for", path);
		return -ENODEV;
	}
	err = symbols_resolve(rt, reason, size);
	if (err)
		return err;
	return device_probe(rt, device, ret_err, reason, size);
}

/* A libcudart of any file name that the process has mapped (wheels bundle libcudart-<hash>.so.N). */
static bool mapped_library_find(char *ret_path, size_t size)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char *line = NULL;
	size_t cap = 0;
	bool found = false;

	if (!f)
		return false;
	while (!found && getline(&line, &cap, f) > 0) {
		char *path = strchr(line, '/');
		char *name = path ? strrchr(path, '/') + 1 : NULL;

		if (!name || strncmp(name, "libcudart", 9) != 0)
			continue;
		path[strcspn(path, "\n")] = '\0';
		found = (size_t)snprintf(ret_path, size, "%s", path) < size;
	}
	free(line);
	fclose(f);
	return found;
}

int cuda_rt_open(struct cuda_rt *rt, const char *explicit_path, int device, char *reason, size_t size)
{
	char mapped[sizeof(rt->path)];
	char first[256] = "";
	int cuda_err, err;
	size_t i;

	memset(rt, 0, sizeof(*rt));
	rt->numa_node = -1;
	rt->register_ro = -1;
	if (explicit_path)
		return library_try(rt, explicit_path, 0, true, device, &cuda_err, reason, size) ? -ENODEV : 0;
	for (i = 0; i < N_SONAMES; i++) {
		err = library_try(rt, sonames[i], RTLD_NOLOAD, false, device, &cuda_err, reason, size);
		if (err != -ENOENT)
			return err;
	}
	if (mapped_library_find(mapped, sizeof(mapped))) {
		err = library_try(rt, mapped, RTLD_NOLOAD, false, device, &cuda_err, reason, size);
		if (err != -ENOENT)
			return err;
	}
	for (i = 0; i < N_SONAMES; i++) {
		err = library_try(rt, sonames[i], 0, false, device, &cuda_err, reason, size);
		if (!err)
			return 0;
		/* The newest one's answer says most; "not there" of an older one must not hide it. */
		if (!first[0] || (err != -ENOENT && cuda_err != CU_ERR_INSUFFICIENT_DRIVER))
			snprintf(first, sizeof(first), "%s", reason);
		if (err != -ENOENT && cuda_err != CU_ERR_INSUFFICIENT_DRIVER)
			break;
	}
	snprintf(reason, size, "%s", first);
	return -ENODEV;
}
