/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_bar.c - a progress bar with rate and time to go, on a terminal only. Callers: hintctl_verify.c, hintctl_warm.c.
 */
#include "tools/hintctl_i.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define WIDTH 30

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void bar_begin(struct bar *b, uint64_t done)
{
	*b = (struct bar){.begun_s = now_s(), .first = done, .is_tty = isatty(STDERR_FILENO)};
}

double bar_rate(const struct bar *b, uint64_t done)
{
	double s = now_s() - b->begun_s;

	return s > 0 && done > b->first ? (double)(done - b->first) / s : 0;
}

void bar_draw(struct bar *b, uint64_t done, uint64_t total, bool is_end)
{
	double s = now_s(), rate = bar_rate(b, done);
	char d[32], t[32], r[32], line[WIDTH + 1];
	int filled = total ? (int)((double)done / (double)total * WIDTH) : 0;

	if (!b->is_tty || (!is_end && s - b->drawn_s < 0.1))
		return;
	b->drawn_s = s;
	memset(line, '.', WIDTH);
	memset(line, '#', (size_t)(filled > WIDTH ? WIDTH : filled));
	line[WIDTH] = '\0';
	fprintf(stderr, "\r[%s] %s of %s, %s/s", line, format_bytes(d, (double)done), format_bytes(t, (double)total),
		format_bytes(r, rate));
	if (rate > 0 && total > done && !is_end)
		fprintf(stderr, ", %.0f s to go   ", (double)(total - done) / rate);
	fputs(is_end ? "              \n" : "", stderr);
}
