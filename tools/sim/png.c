/* SPDX-License-Identifier: Apache-2.0 */
/* tools/sim/png.c - see png.h. The zlib stream holds stored blocks (RFC 1950, 1951), one a line of pixels. */
#include "tools/sim/png.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Five columns a glyph, bit 0 is the top row. */
static const char glyph_chars[] = "abcdefghijklmnopqrstuvwxyz0123456789.-_%;";
static const uint8_t glyphs[][5] = {
	{0x20, 0x54, 0x54, 0x54, 0x78}, {0x7f, 0x48, 0x44, 0x44, 0x38}, {0x38, 0x44, 0x44, 0x44, 0x20}, {0x38, 0x44, 0x44, 0x48, 0x7f},
	{0x38, 0x54, 0x54, 0x54, 0x18}, {0x08, 0x7e, 0x09, 0x01, 0x02}, {0x0c, 0x52, 0x52, 0x52, 0x3e}, {0x7f, 0x08, 0x04, 0x04, 0x78},
	{0x00, 0x44, 0x7d, 0x40, 0x00}, {0x20, 0x40, 0x44, 0x3d, 0x00}, {0x7f, 0x10, 0x28, 0x44, 0x00}, {0x00, 0x41, 0x7f, 0x40, 0x00},
	{0x7c, 0x04, 0x18, 0x04, 0x78}, {0x7c, 0x08, 0x04, 0x04, 0x78}, {0x38, 0x44, 0x44, 0x44, 0x38}, {0x7c, 0x14, 0x14, 0x14, 0x08},
	{0x08, 0x14, 0x14, 0x18, 0x7c}, {0x7c, 0x08, 0x04, 0x04, 0x08}, {0x48, 0x54, 0x54, 0x54, 0x20}, {0x04, 0x3f, 0x44, 0x40, 0x20},
	{0x3c, 0x40, 0x40, 0x20, 0x7c}, {0x1c, 0x20, 0x40, 0x20, 0x1c}, {0x3c, 0x40, 0x30, 0x40, 0x3c}, {0x44, 0x28, 0x10, 0x28, 0x44},
	{0x0c, 0x50, 0x50, 0x50, 0x3c}, {0x44, 0x64, 0x54, 0x4c, 0x44}, {0x3e, 0x51, 0x49, 0x45, 0x3e}, {0x00, 0x42, 0x7f, 0x40, 0x00},
	{0x42, 0x61, 0x51, 0x49, 0x46}, {0x21, 0x41, 0x45, 0x4b, 0x31}, {0x18, 0x14, 0x12, 0x7f, 0x10}, {0x27, 0x45, 0x45, 0x45, 0x39},
	{0x3c, 0x4a, 0x49, 0x49, 0x30}, {0x01, 0x71, 0x09, 0x05, 0x03}, {0x36, 0x49, 0x49, 0x49, 0x36}, {0x06, 0x49, 0x49, 0x29, 0x1e},
	{0x00, 0x60, 0x60, 0x00, 0x00}, {0x08, 0x08, 0x08, 0x08, 0x08}, {0x40, 0x40, 0x40, 0x40, 0x40}, {0x23, 0x13, 0x08, 0x64, 0x62},
	{0x00, 0x56, 0x36, 0x00, 0x00},
};

int png_init(struct png *p, uint32_t width, uint32_t height)
{
	*p = (struct png){.width = width, .height = height, .rgb = malloc((size_t)width * height * 3)};
	if (!p->rgb)
		return -ENOMEM;
	memset(p->rgb, 0xff, (size_t)width * height * 3);
	return 0;
}

void png_finish(struct png *p)
{
	free(p->rgb);
	p->rgb = NULL;
}

void png_rect(struct png *p, uint32_t x, uint32_t y, uint32_t w, uint32_t h, uint32_t colour)
{
	for (uint32_t j = y; j < y + h && j < p->height; j++)
		for (uint32_t i = x; i < x + w && i < p->width; i++) {
			uint8_t *at = p->rgb + ((size_t)j * p->width + i) * 3;

			at[0] = (uint8_t)(colour >> 16);
			at[1] = (uint8_t)(colour >> 8);
			at[2] = (uint8_t)colour;
		}
}

void png_text(struct png *p, uint32_t x, uint32_t y, uint32_t colour, const char *text)
{
	for (; *text; text++, x += 12) {
		char c = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
		const char *at = strchr(glyph_chars, c);

		for (uint32_t i = 0; at && i < 5; i++)
			for (uint32_t j = 0; j < 7; j++)
				if (glyphs[at - glyph_chars][i] >> j & 1)
					png_rect(p, x + 2 * i, y + 2 * j, 2, 2, colour);
	}
}

/* ---- file ------------------------------------------------------------------------------------------ */

static uint32_t crc(uint32_t c, const uint8_t *v, size_t n)
{
	c = ~c;
	for (size_t i = 0; i < n; i++) {
		c ^= v[i];
		for (int k = 0; k < 8; k++)
			c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
	}
	return ~c;
}

static uint8_t *put32(uint8_t *at, uint32_t v)
{
	for (int i = 3; i >= 0; i--)
		*at++ = (uint8_t)(v >> (8 * i));
	return at;
}

/* data - 4 holds the type, data - 8 is room for the length, data + n for the checksum. */
static void chunk_write(FILE *f, uint8_t *data, uint32_t n, const char *type)
{
	put32(data - 8, n);
	memcpy(data - 4, type, 4);
	put32(data + n, crc(0, data - 4, n + 4));
	fwrite(data - 8, 1, n + 12, f);
}

static uint32_t lines_pack(const struct png *p, uint8_t *out)
{
	uint32_t line = p->width * 3 + 1, a = 1, b = 0;
	uint8_t *at = out;

	*at++ = 0x78;
	*at++ = 0x01;
	for (uint32_t y = 0; y < p->height; y++) {
		*at++ = y + 1 == p->height; /* the last block */
		*at++ = (uint8_t)line;
		*at++ = (uint8_t)(line >> 8);
		*at++ = (uint8_t)~line;
		*at++ = (uint8_t)(~line >> 8);
		at[0] = 0; /* filter: none */
		memcpy(at + 1, p->rgb + (size_t)y * p->width * 3, line - 1);
		for (uint32_t i = 0; i < line; i++) {
			a = (a + at[i]) % 65521;
			b = (b + a) % 65521;
		}
		at += line;
	}
	return (uint32_t)(put32(at, b << 16 | a) - out);
}

int png_write(const struct png *p, const char *path)
{
	static const uint8_t format[] = {8, 2, 0, 0, 0}; /* 8 bits a channel, RGB */
	static const uint8_t magic[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
	size_t room = (size_t)p->height * (p->width * 3 + 6) + 64;
	uint8_t head[40], *body;
	FILE *f;
	int rc = 0;

	if (p->width * 3 + 1 > 65535) /* a stored block's length has 16 bits */
		return -EINVAL;
	body = malloc(room);
	f = body ? fopen(path, "wbe") : NULL;
	if (!f) {
		rc = body ? -errno : -ENOMEM;
		free(body);
		return rc;
	}
	fwrite(magic, 1, sizeof(magic), f);
	memcpy(put32(put32(head + 8, p->width), p->height), format, sizeof(format));
	chunk_write(f, head + 8, 13, "IHDR");
	chunk_write(f, body + 8, lines_pack(p, body + 8), "IDAT");
	chunk_write(f, head + 8, 0, "IEND");
	rc = ferror(f) ? -EIO : 0;
	if (fclose(f) && rc == 0)
		rc = -errno;
	free(body);
	return rc;
}
