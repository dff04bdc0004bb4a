/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/report.h - results of policies as a table, as JSON, as a picture.
 *
 * Callers: tools/sim/main.c.
 */
#ifndef TOOLS_SIM_REPORT_H
#define TOOLS_SIM_REPORT_H

#include "tools/sim/sim.h"

#include <stdio.h>

struct report_row {
	const char *policy;
	struct sim_result res; /* owned by the caller */
};

/* What a policy reached: the first epoch, and the mean of the later ones (of the first, where it is the only one). */
struct report_sum {
	double first_s, later_s, later_bound_s, later_stall_s;
	double later_origin_bytes, later_bound_bytes, later_hit_share;
};
void report_sum(const struct sim_result *r, const struct sim_bound *b, struct report_sum *ret);

void report_table(FILE *f, const struct report_row *rows, size_t n, const struct sim_bound *b);
void report_json(FILE *f, const struct report_row *rows, size_t n, const struct sim_bound *b);
/* A bar for each policy: seconds of a later epoch; the line is the bound. Negative errno. */
int report_plot(const char *path, const struct report_row *rows, size_t n, const struct sim_bound *b)
	__attribute__((warn_unused_result));
/* "12.3G": at most 7 bytes. */
const char *report_bytes(double bytes, char *buf, size_t cap);
const char *report_seconds(double s, char *buf, size_t cap);

#endif
