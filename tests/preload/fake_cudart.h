/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/fake_cudart.h - controls of the recording test double of libcudart.
 *
 * The double is a shared object of its own that only tests load, by explicit path. Tests find these functions with dlsym
 * in the same object. "Device memory" is the test's own host memory.
 */
#ifndef TESTS_PRELOAD_FAKE_CUDART_H
#define TESTS_PRELOAD_FAKE_CUDART_H

#include <stdint.h>

struct fake_report {
	unsigned violations;	  /* of the rules listed in fake_cudart.c */
	char first[256];	  /* the first one, in words */
	unsigned uncleared;	  /* failures whose thread did not call cudaGetLastError afterwards */
	unsigned registrations;	  /* live now */
	uint64_t registered_bytes;
	uint64_t registered_max;  /* largest single registration so far */
	unsigned events, streams; /* live now, the default stream not counted */
	unsigned copies_queued, copies_done;
	unsigned failures; /* injected so far */
};

struct fake_controls {
	void (*reset)(void);
	/* Let `times` calls of cudaNAME fail with err, beginning with the nth (1 = next). */
	void (*inject)(const char *name, unsigned nth, unsigned times, int err);
	void (*delay_us)(unsigned us);	/* before each copy is done */
	void (*hold)(int is_held);	/* copies wait until this is undone */
	void (*report)(struct fake_report *r);
	unsigned (*calls)(const char *name);
	void (*devices)(int n); /* how many the double shows; 2 at first */
};

/* Exported as `fake_controls`. */

#endif
