/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/fake_cudart.c - a libcudart that records, checks and fails on request. Tests only.
 *
 * A thread per stream does the queued work in order, after a programmable delay. Rules that are checked; each breach is
 * a violation:
 *  1. A copy's source lies within one registered range.
 *  2. The source's bytes are the same when the copy is queued and when it runs: nothing was refilled too early.
 *  3. Registrations are page-aligned, at most 256 MiB, apart from each other, mapped and resident.
 *  4. Unregister names a live registration that is still mapped and has no copy in flight.
 *  5. Events and streams are used between create and destroy only.
 * Besides, a failed call leaves an error on its thread that cudaGetLastError must fetch (`uncleared`).
 */
#include "tests/preload/fake_cudart.h"

#include "tools/preload/cuda_abi.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096u
#define CHUNK_MAX (256u << 20)
#define ERR_INVALID_VALUE 1
#define ERR_INVALID_HANDLE 400
#define ERR_ALREADY_REGISTERED 712
#define ERR_NOT_REGISTERED 713

EXPORT extern const int hintfs_fake_cudart;
const int hintfs_fake_cudart = 1;

/* ---- state ------------------------------------------------------------------------- */

enum { CALLS_MAX = 20, RANGES_MAX = 256, OBJECTS_MAX = 4096 };

static const char *const call_names[CALLS_MAX] = {
#define FAKE_NAME(name, ret, args) #name,
	CUDA_ABI_TABLE(FAKE_NAME)
#undef FAKE_NAME
};

struct event {
	uint64_t recorded, done; /* counts of EventRecord */
	bool is_destroyed;	 /* kept until reset: queued work may still name it */
};

enum op_kind { OP_COPY, OP_RECORD, OP_WAIT };

struct op {
	struct op *next;
	enum op_kind kind;
	char *dst;
	const char *src;
	size_t len;
	uint64_t sum;
	struct event *event;
	uint64_t count;
};

struct stream {
	pthread_t thread;
	struct op *head, **tail;
	unsigned busy; /* queued or running */
	bool is_stop;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct fake_report report;
	struct {
		char *base;
		size_t len;
		unsigned in_flight;
	} ranges[RANGES_MAX];
	struct event *events[OBJECTS_MAX];
	struct stream *streams[OBJECTS_MAX];
	struct stream *default_stream;
	unsigned calls[CALLS_MAX];
	struct {
		unsigned from, to;
		int err;
	} inject[CALLS_MAX];
	unsigned delay;
	int is_held, devices;
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .devices = 2 };

static _Thread_local int thread_error;
static _Thread_local int thread_device;

static void violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void violation(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (!fake.report.violations++)
		vsnprintf(fake.report.first, sizeof(fake.report.first), fmt, ap);
	va_end(ap);
}

static int call_no(const char *name)
{
	int i;

	for (i = 0; i < CALLS_MAX; i++)
		if (!strcmp(call_names[i], name))
			return i;
	abort();
}

static int fail(int err)
{
	if (err && !thread_error)
		fake.report.uncleared++;
	if (err)
		thread_error = err;
	return err;
}

/* Every call begins here: lock, count, and fail if asked to. */
static int enter(const char *name)
{
	int i = call_no(name);

	pthread_mutex_lock(&fake.lock);
	fake.calls[i]++;
	if (!fake.inject[i].err || fake.calls[i] < fake.inject[i].from || fake.calls[i] >= fake.inject[i].to)
		return 0;
	fake.report.failures++;
	return fail(fake.inject[i].err);
}

static int leave(int err)
{
	pthread_mutex_unlock(&fake.lock);
	return err;
}

static uint64_t sum_of(const char *p, size_t len)
{
	uint64_t sum = 1469598103934665603u;
	size_t i;

	for (i = 0; i + 8 <= len; i += 8) {
		uint64_t w;

		memcpy(&w, p + i, 8);
		sum = (sum ^ w) * 1099511628211u;
	}
	for (; i < len; i++)
		sum = (sum ^ (unsigned char)p[i]) * 1099511628211u;
	return sum;
}

static int range_of(const char *p, size_t len)
{
	int i;

	for (i = 0; i < RANGES_MAX; i++)
		if (fake.ranges[i].base && p >= fake.ranges[i].base &&
		    p + len <= fake.ranges[i].base + fake.ranges[i].len)
			return i;
	return -1;
}

/* ---- streams ------------------------------------------------------------------------ */

static void copy_run(struct op *o)
{
	unsigned us = fake.delay;
	int range;
	bool is_same;

	while (fake.is_held)
		pthread_cond_wait(&fake.cond, &fake.lock);
	pthread_mutex_unlock(&fake.lock);
	if (us)
		usleep(us);
	is_same = sum_of(o->src, o->len) == o->sum;
	memcpy(o->dst, o->src, o->len);
	pthread_mutex_lock(&fake.lock);
	if (!is_same)
		violation("the source of a copy of %zu bytes changed between queue and run", o->len);
	range = range_of(o->src, o->len);
	if (range >= 0)
		fake.ranges[range].in_flight--;
	fake.report.copies_done++;
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&fake.lock);
	while (s->head || !s->is_stop) {
		struct op *o = s->head;

		if (!o) {
			pthread_cond_wait(&fake.cond, &fake.lock);
			continue;
		}
		s->head = o->next;
		if (!s->head)
			s->tail = &s->head;
		if (o->kind == OP_COPY)
			copy_run(o);
		else if (o->kind == OP_RECORD)
			o->event->done = o->count > o->event->done ? o->count : o->event->done;
		else
			while (o->event->done < o->count)
				pthread_cond_wait(&fake.cond, &fake.lock);
		free(o);
		s->busy--;
		pthread_cond_broadcast(&fake.cond);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

static struct stream *stream_new(void)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		abort();
	s->tail = &s->head;
	if (pthread_create(&s->thread, NULL, stream_main, s))
		abort();
	return s;
}

/* The stream behind a handle, or NULL. The default stream comes to life when it is used first. */
static struct stream *stream_find(cu_stream handle)
{
	int i;

	if (!handle) {
		if (!fake.default_stream)
			fake.default_stream = stream_new();
		return fake.default_stream;
	}
	for (i = 0; i < OBJECTS_MAX; i++)
		if (fake.streams[i] == handle)
			return handle;
	violation("a stream that does not exist");
	return NULL;
}

static struct event *event_find(cu_event handle)
{
	int i;

	for (i = 0; handle && i < OBJECTS_MAX; i++)
		if (fake.events[i] == handle && !fake.events[i]->is_destroyed)
			return handle;
	violation("an event that does not exist");
	return NULL;
}

static void op_queue(struct stream *s, struct op op)
{
	struct op *o = malloc(sizeof(*o));

	if (!o)
		abort();
	*o = op;
	o->next = NULL;
	*s->tail = o;
	s->tail = &o->next;
	s->busy++;
	pthread_cond_broadcast(&fake.cond);
}

/* ---- the 20 calls ------------------------------------------------------------------- */

#define FAKE_PROTOTYPE(name, ret, args) EXPORT ret cuda##name args;
CUDA_ABI_TABLE(FAKE_PROTOTYPE)

int cudaRuntimeGetVersion(int *version)
{
	int err = enter("RuntimeGetVersion");

	if (!err)
		*version = 13000;
	return leave(err);
}

int cudaDriverGetVersion(int *version)
{
	int err = enter("DriverGetVersion");

	if (!err)
		*version = 13000;
	return leave(err);
}

int cudaGetDeviceCount(int *count)
{
	int err = enter("GetDeviceCount");

	if (!err)
		*count = fake.devices;
	return leave(err);
}

int cudaGetDevice(int *device)
{
	int err = enter("GetDevice");

	if (!err)
		*device = thread_device;
	return leave(err);
}

int cudaSetDevice(int device)
{
	int err = enter("SetDevice");

	if (!err && (device < 0 || device >= fake.devices))
		err = fail(101);
	if (!err)
		thread_device = device;
	return leave(err);
}

int cudaDeviceGetAttribute(int *value, int attr, int device)
{
	int err = enter("DeviceGetAttribute");

	(void)attr;
	(void)device;
	if (!err)
		*value = 0;
	return leave(err);
}

int cudaGetLastError(void)
{
	int err = enter("GetLastError"), last = thread_error;

	if (last)
		fake.report.uncleared--;
	thread_error = 0;
	return leave(err ? err : last);
}

const char *cudaGetErrorName(int error)
{
	(void)enter("GetErrorName");
	leave(0);
	return error == 2 ? "cudaErrorMemoryAllocation" : error == 35 ? "cudaErrorInsufficientDriver" :
	       error == 100 ? "cudaErrorNoDevice" : error == 304 ? "cudaErrorOperatingSystem" : "cudaErrorOther";
}

const char *cudaGetErrorString(int error)
{
	(void)enter("GetErrorString");
	leave(0);
	return error ? "injected by the test double" : "no error";
}

static bool is_resident(char *p, size_t len)
{
	unsigned char *pages = malloc(len / PAGE);
	bool is_all = pages && mincore(p, len, pages) == 0;
	size_t i;

	for (i = 0; is_all && i < len / PAGE; i++)
		is_all = pages[i] & 1;
	free(pages);
	return is_all;
}

int cudaHostRegister(void *ptr, size_t size, unsigned flags)
{
	int err = enter("HostRegister"), i, at = -1;
	char *p = ptr;

	if (err)
		return leave(err);
	if (flags != CU_HOST_REGISTER_PORTABLE)
		violation("registered with flags %u", flags);
	if ((uintptr_t)p % PAGE || size % PAGE || !size || size > CHUNK_MAX)
		violation("a registration of %zu bytes at %p", size, ptr);
	else if (!is_resident(p, size))
		violation("registered before it was populated");
	for (i = 0; i < RANGES_MAX; i++) {
		if (!fake.ranges[i].base)
			at = i;
		else if (p < fake.ranges[i].base + fake.ranges[i].len && fake.ranges[i].base < p + size) {
			violation("overlapping registrations");
			return leave(fail(ERR_ALREADY_REGISTERED));
		}
	}
	if (at < 0)
		abort();
	fake.ranges[at].base = p;
	fake.ranges[at].len = size;
	fake.ranges[at].in_flight = 0;
	fake.report.registrations++;
	fake.report.registered_bytes += size;
	if (size > fake.report.registered_max)
		fake.report.registered_max = size;
	return leave(0);
}

int cudaHostUnregister(void *ptr)
{
	int err = enter("HostUnregister"), i;

	if (err)
		return leave(err);
	for (i = 0; i < RANGES_MAX && fake.ranges[i].base != ptr; i++)
		;
	if (i == RANGES_MAX || !ptr) {
		violation("unregister of %p, which is not registered", ptr);
		return leave(fail(ERR_NOT_REGISTERED));
	}
	if (!is_resident(ptr, fake.ranges[i].len))
		violation("unmapped before it was unregistered");
	if (fake.ranges[i].in_flight)
		violation("unregistered with %u copies in flight", fake.ranges[i].in_flight);
	fake.ranges[i].base = NULL;
	fake.report.registrations--;
	fake.report.registered_bytes -= fake.ranges[i].len;
	return leave(0);
}

int cudaMemcpyAsync(void *dst, const void *src, size_t count, int kind, cu_stream stream)
{
	int err = enter("MemcpyAsync"), range;
	struct stream *s;

	if (err)
		return leave(err);
	s = stream_find(stream);
	range = range_of(src, count);
	if (range < 0)
		violation("a copy of %zu bytes from outside every registered range", count);
	if (!s || range < 0 || kind != CU_MEMCPY_HOST_TO_DEVICE)
		return leave(fail(ERR_INVALID_VALUE));
	fake.ranges[range].in_flight++;
	fake.report.copies_queued++;
	op_queue(s, (struct op){ .kind = OP_COPY, .dst = dst, .src = src, .len = count, .sum = sum_of(src, count) });
	return leave(0);
}

int cudaStreamCreateWithFlags(cu_stream *stream, unsigned flags)
{
	int err = enter("StreamCreateWithFlags"), i;

	(void)flags;
	if (err)
		return leave(err);
	for (i = 0; i < OBJECTS_MAX && fake.streams[i]; i++)
		;
	if (i == OBJECTS_MAX)
		abort();
	*stream = fake.streams[i] = stream_new();
	fake.report.streams++;
	return leave(0);
}

static void stream_stop(struct stream *s)
{
	s->is_stop = true;
	pthread_cond_broadcast(&fake.cond);
	pthread_mutex_unlock(&fake.lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&fake.lock);
	free(s);
}

int cudaStreamDestroy(cu_stream stream)
{
	int err = enter("StreamDestroy"), i;

	for (i = 0; !err && i < OBJECTS_MAX; i++)
		if (stream && fake.streams[i] == stream) {
			fake.streams[i] = NULL;
			fake.report.streams--;
			stream_stop(stream);
			return leave(0);
		}
	if (!err)
		violation("destroy of a stream that does not exist");
	return leave(err);
}

int cudaStreamSynchronize(cu_stream stream)
{
	int err = enter("StreamSynchronize");
	struct stream *s = err ? NULL : stream_find(stream);

	if (!err && !s)
		err = fail(ERR_INVALID_HANDLE);
	while (!err && s->busy)
		pthread_cond_wait(&fake.cond, &fake.lock);
	return leave(err);
}

int cudaStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
	int err = enter("StreamWaitEvent");
	struct stream *s = err ? NULL : stream_find(stream);
	struct event *e = err ? NULL : event_find(event);

	(void)flags;
	if (!err && (!s || !e))
		err = fail(ERR_INVALID_HANDLE);
	if (!err)
		op_queue(s, (struct op){ .kind = OP_WAIT, .event = e, .count = e->recorded });
	return leave(err);
}

int cudaEventCreateWithFlags(cu_event *event, unsigned flags)
{
	int err = enter("EventCreateWithFlags"), i;

	if (err)
		return leave(err);
	if (flags != CU_EVENT_DISABLE_TIMING)
		violation("an event with timing");
	for (i = 0; i < OBJECTS_MAX && fake.events[i]; i++)
		;
	if (i == OBJECTS_MAX)
		abort();
	*event = fake.events[i] = calloc(1, sizeof(struct event));
	fake.report.events++;
	return leave(0);
}

int cudaEventRecord(cu_event event, cu_stream stream)
{
	int err = enter("EventRecord");
	struct stream *s = err ? NULL : stream_find(stream);
	struct event *e = err ? NULL : event_find(event);

	if (!err && (!s || !e))
		err = fail(ERR_INVALID_HANDLE);
	if (!err)
		op_queue(s, (struct op){ .kind = OP_RECORD, .event = e, .count = ++e->recorded });
	return leave(err);
}

int cudaEventQuery(cu_event event)
{
	int err = enter("EventQuery");
	struct event *e = err ? NULL : event_find(event);

	if (!err && !e)
		err = fail(ERR_INVALID_HANDLE);
	if (!err && e->done < e->recorded)
		err = CU_ERR_NOT_READY;
	return leave(err);
}

int cudaEventDestroy(cu_event event)
{
	int err = enter("EventDestroy"), i;
	struct event *e = err ? NULL : event_find(event);

	if (err || !e)
		return leave(err ? err : fail(ERR_INVALID_HANDLE));
	fake.report.events--;
	if (e->done < e->recorded) {
		violation("an event destroyed before it was reached");
		e->is_destroyed = true;
		return leave(0);
	}
	for (i = 0; fake.events[i] != e; i++)
		;
	fake.events[i] = NULL;
	free(e);
	return leave(0);
}

/* ---- controls ----------------------------------------------------------------------- */

static void control_reset(void)
{
	int i;

	pthread_mutex_lock(&fake.lock);
	fake.is_held = 0;
	pthread_cond_broadcast(&fake.cond);
	if (fake.default_stream)
		stream_stop(fake.default_stream);
	fake.default_stream = NULL;
	for (i = 0; i < OBJECTS_MAX; i++) {
		if (fake.streams[i])
			stream_stop(fake.streams[i]);
		free(fake.events[i]);
		fake.streams[i] = NULL;
		fake.events[i] = NULL;
	}
	memset(fake.ranges, 0, sizeof(fake.ranges));
	memset(fake.calls, 0, sizeof(fake.calls));
	memset(fake.inject, 0, sizeof(fake.inject));
	memset(&fake.report, 0, sizeof(fake.report));
	fake.delay = 0;
	fake.devices = 2;
	thread_error = 0;
	thread_device = 0;
	pthread_mutex_unlock(&fake.lock);
}

static void control_inject(const char *name, unsigned nth, unsigned times, int err)
{
	int i = call_no(name);

	pthread_mutex_lock(&fake.lock);
	fake.inject[i].from = fake.calls[i] + nth;
	fake.inject[i].to = times > UINT32_MAX - fake.inject[i].from ? UINT32_MAX : fake.inject[i].from + times;
	fake.inject[i].err = err;
	pthread_mutex_unlock(&fake.lock);
}

static void control_delay(unsigned us)
{
	pthread_mutex_lock(&fake.lock);
	fake.delay = us;
	pthread_mutex_unlock(&fake.lock);
}

static void control_hold(int is_held)
{
	pthread_mutex_lock(&fake.lock);
	fake.is_held = is_held;
	pthread_cond_broadcast(&fake.cond);
	pthread_mutex_unlock(&fake.lock);
}

static void control_report(struct fake_report *r)
{
	pthread_mutex_lock(&fake.lock);
	*r = fake.report;
	pthread_mutex_unlock(&fake.lock);
}

static unsigned control_calls(const char *name)
{
	unsigned n;

	pthread_mutex_lock(&fake.lock);
	n = fake.calls[call_no(name)];
	pthread_mutex_unlock(&fake.lock);
	return n;
}

static void control_devices(int n)
{
	pthread_mutex_lock(&fake.lock);
	fake.devices = n;
	pthread_mutex_unlock(&fake.lock);
}

EXPORT extern const struct fake_controls fake_controls;
const struct fake_controls fake_controls = {
	.reset = control_reset,	  .inject = control_inject, .delay_us = control_delay,	   .hold = control_hold,
	.report = control_report, .calls = control_calls,   .devices = control_devices,
};
