/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/png.h - a small picture: rectangles, text, written as PNG without compression.
 *
 * Callers: tools/sim/report.c. Colours are 0xRRGGBB; what lies outside the picture is cut off.
 */
#ifndef TOOLS_SIM_PNG_H
#define TOOLS_SIM_PNG_H

#include <stdint.h>

struct png {
	uint8_t *rgb; /* owned */
	uint32_t width, height;
};

int png_init(struct png *p, uint32_t width, uint32_t height) __attribute__((warn_unused_result)); /* white; -ENOMEM */
void png_finish(struct png *p);
void png_rect(struct png *p, uint32_t x, uint32_t y, uint32_t w, uint32_t h, uint32_t colour);
/* Glyphs of 5 x 7, doubled: 12 x 14 a character. Lower case, digits, . - _ % ; upper case is shown as lower. */
void png_text(struct png *p, uint32_t x, uint32_t y, uint32_t colour, const char *text);
int png_write(const struct png *p, const char *path) __attribute__((warn_unused_result)); /* negative errno */

#endif
