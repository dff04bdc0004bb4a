/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/nomem.h - the N-th allocation fails. A program that links nomem.c with --wrap for malloc, calloc, realloc and strdup
 * (nomem_dep does) sees the calls of all that it links, its own too.
 */
#ifndef TESTS_FAULT_NOMEM_H
#define TESTS_FAULT_NOMEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nomem {
	_Atomic uint64_t n_calls, n_failed; /* since the program set them to 0 */
	_Atomic uint64_t fail_at;	    /* of n_calls; 0: none fails */
	_Atomic bool is_sticky;		    /* all from fail_at on */
	/* Set before there are threads; NULL: none. */
	bool (*is_spared)(void);       /* this call is not counted */
	bool (*realloc_fails)(size_t n); /* this one fails whatever fail_at is */
};
extern struct nomem nomem;

#endif
