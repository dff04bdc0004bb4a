/* SPDX-License-Identifier: Apache-2.0 */
/* tools/sim/report.c - see report.h. */
#include "tools/sim/report.h"

#include "tools/sim/png.h"

#include <inttypes.h>
#include <string.h>

const char *report_bytes(double bytes, char *buf, size_t cap)
{
	static const char units[] = "BKMGTPE";
	size_t u = 0;

	while (bytes >= 1000 && u < sizeof(units) - 2) {
		bytes /= 1024;
		u++;
	}
	if (u == 0)
		snprintf(buf, cap, "%.0f", bytes);
	else
		snprintf(buf, cap, bytes < 9.995 ? "%.2f%c" : bytes < 99.95 ? "%.1f%c" : "%.0f%c", bytes, units[u]);
	return buf;
}

const char *report_seconds(double s, char *buf, size_t cap)
{
	if (s < 1)
		snprintf(buf, cap, "%.1f ms", s * 1e3);
	else if (s < 100)
		snprintf(buf, cap, "%.2f s", s);
	else if (s < 7200)
		snprintf(buf, cap, "%.1f min", s / 60);
	else
		snprintf(buf, cap, "%.1f h", s / 3600);
	return buf;
}

void report_sum(const struct sim_result *r, const struct sim_bound *b, struct report_sum *ret)
{
	size_t from = r->n_epochs > 1 ? 1 : 0;
	double n = (double)(r->n_epochs - from), needed = 0;

	*ret = (struct report_sum){.first_s = r->epochs[0].time_s};
	for (size_t e = from; e < r->n_epochs; e++) {
		ret->later_s += r->epochs[e].time_s / n;
		ret->later_stall_s += r->epochs[e].stall_s / n;
		ret->later_origin_bytes += (double)r->epochs[e].origin_bytes / n;
		ret->later_bound_s += b->time_s[e] / n;
		ret->later_bound_bytes += (double)b->bytes[e] / n;
		needed += (double)r->epochs[e].needed_bytes / n;
	}
	if (needed > 0)
		ret->later_hit_share = 1 - ret->later_origin_bytes / needed;
	if (ret->later_hit_share < 0)
		ret->later_hit_share = 0;
}

void report_table(FILE *f, const struct report_row *rows, size_t n, const struct sim_bound *b)
{
	char x[5][24];
	struct report_sum s;

	fprintf(f, "%-16s %11s | %11s %7s %6s %9s %7s\n", "", "1st epoch", "later epoch", "x bound", "stall", "origin", "hits");
	for (size_t i = 0; i < n; i++) {
		report_sum(&rows[i].res, b, &s);
		fprintf(f, "%-16s %11s | %11s %7.3f %5.1f%% %9s %6.1f%%%s\n", rows[i].policy, report_seconds(s.first_s, x[0], sizeof(x[0])),
			report_seconds(s.later_s, x[1], sizeof(x[1])), s.later_bound_s > 0 ? s.later_s / s.later_bound_s : 0,
			s.later_s > 0 ? 100 * s.later_stall_s / s.later_s : 0,
			report_bytes(s.later_origin_bytes, x[2], sizeof(x[2])), 100 * s.later_hit_share,
			rows[i].res.is_deadlock ? "  did not finish" : "");
	}
	if (n == 0)
		return;
	report_sum(&rows[0].res, b, &s);
	fprintf(f, "%-16s %11s | %11s %7.3f %6s %9s\n", "no policy beats", report_seconds(b->time_s[0], x[0], sizeof(x[0])),
		report_seconds(s.later_bound_s, x[1], sizeof(x[1])), 1.0, "", report_bytes(s.later_bound_bytes, x[2], sizeof(x[2])));
}

void report_json(FILE *f, const struct report_row *rows, size_t n, const struct sim_bound *b)
{
	bool is_first = true;

	fprintf(f, "[");
	for (size_t i = 0; i < n; i++)
		for (size_t e = 0; e < rows[i].res.n_epochs; e++) {
			const struct sim_epoch *x = &rows[i].res.epochs[e];

			fprintf(f,
				"%s\n  {\"policy\": \"%s\", \"epoch\": %zu, \"time_s\": %.6f, \"bound_time_s\": %.6f, \"origin_bytes\": %" PRIu64
				", \"bound_bytes\": %" PRIu64 ", \"hit_bytes\": %" PRIu64 ", \"stall_s\": %.6f}",
				is_first ? "" : ",", rows[i].policy, e, x->time_s, b->time_s[e], x->origin_bytes, b->bytes[e], x->hit_bytes,
				x->stall_s);
			is_first = false;
		}
	fprintf(f, "\n]\n");
}

/* ---- picture ------------------------------------------------------------------------------------------ */

enum { WIDTH = 900, ROW = 34, LEFT = 170, RIGHT = 110, TOP = 50, BLUE = 0x3366aa, RED = 0xcc3333, BLACK = 0x222222, GREY = 0x999999 };

int report_plot(const char *path, const struct report_row *rows, size_t n, const struct sim_bound *b)
{
	struct png p;
	struct report_sum s;
	double most = 0, scale;
	int rc = png_init(&p, WIDTH, (uint32_t)(TOP + 30 + n * ROW));

	if (rc)
		return rc;
	for (size_t i = 0; i < n; i++) {
		report_sum(&rows[i].res, b, &s);
		most = s.later_s > most ? s.later_s : most;
	}
	scale = most > 0 ? (WIDTH - LEFT - RIGHT) / most : 0;
	png_text(&p, 10, 14, BLACK, "seconds of a later epoch; the line is what no policy beats");
	for (size_t i = 0; i < n; i++) {
		uint32_t y = (uint32_t)(TOP + i * ROW);
		char text[48];

		report_sum(&rows[i].res, b, &s);
		png_text(&p, 10, y + 6, BLACK, rows[i].policy);
		png_rect(&p, LEFT, y, (uint32_t)(s.later_s * scale) + 1, ROW - 12, strncmp(rows[i].policy, "hintfs", 6) ? GREY : BLUE);
		snprintf(text, sizeof(text), "%.4g s", s.later_s);
		png_text(&p, LEFT + (uint32_t)(s.later_s * scale) + 8, y + 6, BLACK, text);
	}
	if (n)
		png_rect(&p, LEFT + (uint32_t)(s.later_bound_s * scale), TOP - 8, 2, (uint32_t)(n * ROW + 8), RED);
	rc = png_write(&p, path);
	png_finish(&p);
	return rc;
}
