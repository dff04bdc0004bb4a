/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/order.h - a control file and the sizes of what it names -> struct sim_work.
 *
 * Callers: tools/sim/main.c, tests/sim. The grammar is sched/parse.h's, patterns included. `@seek`, `@done` say where a reader is and
 * are passed over: in here the readers' places are known.
 */
#ifndef TOOLS_SIM_ORDER_H
#define TOOLS_SIM_ORDER_H

#include "tools/sim/sim.h"

struct order_options {
	const char *order;   /* path of the control file; "-": standard input */
	const char *source;  /* directory whose files are meant, or NULL */
	const char *sizes;   /* file of lines PATH<TAB>BYTES, or NULL */
	uint64_t batch_bytes; /* without @batch: how much of a file is one batch; 0: an entry is a batch */
	uint32_t epochs;     /* 0: as many as the file holds; else play it again until there are that many */
	bool is_shuffled;    /* the epochs played again are in a new order */
	uint32_t nodes;	     /* this node takes every nodes-th batch; 1: all */
	uint32_t workers;    /* each worker reads its own file, where files are cut into batches */
	uint32_t hint_epochs; /* further epochs that are written ahead; SIM_NONE: all at once */
	uint64_t chunk_bytes;
	uint64_t seed;
};

struct order_info {
	uint64_t lines, entries, files, missing, dataset_bytes, reads;
	uint64_t epochs, batches;
	bool is_cut; /* files were cut into batches */
	char message[512]; /* why it failed: object, cause, cure */
};

/* 0 or negative errno with info->message filled in. On 0 sim_work_finish() is the caller's. */
int order_load(const struct order_options *o, struct sim_work *w, struct order_info *info) __attribute__((warn_unused_result));

#endif
