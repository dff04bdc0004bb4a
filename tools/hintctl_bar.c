/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_bar.c - a progress bar, with rate and time to go where that is of use, on a terminal only.
 *
 * Callers: hintctl_order.c, hintctl_record.c (the clock only), hintctl_verify.c, hintctl_warm.c.
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

void bar_begin(struct bar *b, uint64_t done, bool has_rate)
{
	*b = (struct bar){.begun_s = now_s(), .first = done, .has_rate = has_rate, .is_tty = isatty(STDERR_FILENO)};
	if (!has_rate) /* what takes no time is drawn at its end only */
		b->drawn_s = b->begun_s;
}

double bar_elapsed_s(const struct bar *b)
{
	return now_s() - b->begun_s;
}

double bar_rate(const struct bar *b, uint64_t done)
{
	double s = bar_elapsed_s(b);

	return s > 0 && done > b->first ? (double)(done - b->first) / s : 0;
}

bool bar_is_due(struct bar *b, double every_s, bool is_end)
{
	double s = now_s();

	if (!b->is_tty || (!is_end && s - b->drawn_s < every_s))
		return false;
	b->drawn_s = s;
	return true;
}

static void draw_rate(const struct bar *b, uint64_t done, uint64_t total, bool is_end)
{
	double rate = bar_rate(b, done);
	char r[32];

	fprintf(stderr, ", %s/s", format_bytes(r, rate));
	if (rate > 0 && total > done && !is_end)
		fprintf(stderr, ", %.0f s to go   ", (double)(total - done) / rate);
	fputs(is_end ? "              \n" : "", stderr);
}

void bar_draw(struct bar *b, uint64_t done, uint64_t total, bool is_end)
{
	char d[32], t[32], line[WIDTH + 1];
	int filled = total ? (int)((double)done / (double)total * WIDTH) : 0;

	if (!bar_is_due(b, 0.1, is_end))
		return;
	memset(line, '.', WIDTH);
	memset(line, '#', (size_t)(filled > WIDTH ? WIDTH : filled));
	line[WIDTH] = '\0';
	if (total || b->has_rate)
		fprintf(stderr, "\r[%s] %s of %s", line, format_bytes(d, (double)done), format_bytes(t, (double)total));
	else
		fprintf(stderr, "\r%s sent", format_bytes(d, (double)done));
	if (b->has_rate)
		draw_rate(b, done, total, is_end);
	else
		fputs(is_end ? "\n" : "   ", stderr);
}
