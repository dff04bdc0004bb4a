/* SPDX-License-Identifier: Apache-2.0
 *
 * Test of pattern.c: every class is told apart, at any alignment. A plain main():
 * exit 0 or 1.
 */
#include "tests/lib/pattern.h"

#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(cond)                                                                  \
	do {                                                                         \
		if (!(cond)) {                                                       \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);   \
			failures++;                                                  \
		}                                                                    \
	} while (0)

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void test_round_trip(void)
{
	uint64_t state = 1;

	for (int i = 0; i < 100000; i++) {
		uint64_t r = next_random(&state);
		unsigned id = r % (PATTERN_MAX_ID + 1);
		unsigned version = r / 4096 % (PATTERN_MAX_VERSION + 1);
		uint64_t offset = next_random(&state) % PATTERN_MAX_SIZE / 8 * 8;
		struct pattern_word w = pattern_decode(pattern_word(id, version, offset));
		CHECK(w.id == id && w.version == version && w.offset == offset);
	}
}

static void test_fill_at_any_alignment(void)
{
	unsigned char whole[4096], piece[4096];

	pattern_fill(whole, sizeof(whole), 7, 3, 1ull << 40);
	for (size_t from = 0; from < 20; from++) {
		for (size_t len = 0; len < 40; len++) {
			struct pattern_check c = { .id = 7, .version = 3 };
			pattern_fill(piece, len, 7, 3, (1ull << 40) + from);
			CHECK(!memcmp(piece, whole + from, len));
			CHECK(pattern_check(&c, piece, len, (1ull << 40) + from));
			CHECK(c.bytes == len && c.bad == 0);
		}
	}
}

/* Fills 64 words of (id, version) from `from`, as seen at 8192 of file 7 version 3. */
static struct pattern_check seen(unsigned id, unsigned version, uint64_t from)
{
	unsigned char buf[512];
	struct pattern_check c = { .id = 7, .version = 3 };

	pattern_fill(buf, sizeof(buf), id, version, from);
	pattern_check(&c, buf, sizeof(buf), 8192);
	return c;
}

static void test_classes(void)
{
	struct pattern_check c = seen(7, 3, 8192);

	CHECK(c.count[PATTERN_RIGHT] == 64 && !c.bad);
	c = seen(7, 4, 8192);
	CHECK(c.count[PATTERN_OTHER_VERSION] == 64 && c.first_word.version == 4);
	c = seen(8, 3, 8192);
	CHECK(c.count[PATTERN_OTHER_FILE] == 64 && c.first_word.id == 8);
	c = seen(8, 9, 65536);
	CHECK(c.count[PATTERN_OTHER_FILE] == 64 && c.first_word.offset == 65536);
	c = seen(7, 3, 4096);
	CHECK(c.count[PATTERN_OTHER_OFFSET] == 64 && c.first_word.offset == 4096);
	c = seen(7, 5, 4096);
	CHECK(c.count[PATTERN_OTHER_OFFSET] == 64 && c.first_word.version == 5);
}

static void test_zero_and_garbage(void)
{
	unsigned char buf[800];
	struct pattern_check c = { .id = 7, .version = 3 };
	uint64_t state = 5, r;

	pattern_fill(buf, sizeof(buf), 7, 3, 8192);
	memset(buf + 80, 0, 160);
	CHECK(!pattern_check(&c, buf, sizeof(buf), 8192));
	CHECK(c.count[PATTERN_ZERO] == 20 && c.bad == 20 && c.first_offset == 8192 + 80);
	CHECK(c.first_class == PATTERN_ZERO);
	for (size_t i = 0; i < sizeof(buf); i += 8) {
		r = next_random(&state);
		memcpy(buf + i, &r, 8);
	}
	c = (struct pattern_check){ .id = 7, .version = 3 };
	CHECK(!pattern_check(&c, buf, sizeof(buf), 8192));
	CHECK(c.count[PATTERN_GARBAGE] == 100);
	/* one flipped bit, in a cut word too */
	for (size_t bit = 0; bit < 13 * 8; bit++) {
		pattern_fill(buf, 13, 7, 3, 8192);
		buf[bit / 8] ^= (unsigned char)(1u << bit % 8);
		c = (struct pattern_check){ .id = 7, .version = 3 };
		CHECK(!pattern_check(&c, buf, 13, 8192) && c.bad == 1);
	}
}

static void test_any_one_version(void)
{
	unsigned char buf[512];
	struct pattern_check c = { .id = 7, .is_any_version = true };

	pattern_fill(buf, 509, 7, 900, 3);
	CHECK(pattern_check(&c, buf, 509, 3));
	CHECK(c.has_version && c.version == 900);
	pattern_fill(buf + 256, 256, 7, 901, 512 + 256);
	pattern_fill(buf, 256, 7, 900, 512);
	CHECK(!pattern_check(&c, buf, 512, 512));
	CHECK(c.count[PATTERN_TORN] == 32 && c.first_offset == 768);
	c = (struct pattern_check){ .id = 6, .is_any_version = true };
	pattern_fill(buf, 512, 7, 1, 0);
	CHECK(!pattern_check(&c, buf, 512, 0) && c.count[PATTERN_OTHER_FILE] == 64);
	c = (struct pattern_check){ .id = 6, .is_any_version = true };
	memset(buf, 0, 512);
	CHECK(!pattern_check(&c, buf, 512, 0) && c.count[PATTERN_ZERO] == 64);
}

static void test_holes(void)
{
	unsigned char buf[64] = { 0 };
	struct pattern_check c = { .id = 1 };

	CHECK(pattern_check_zero(&c, buf, 61, 5));
	buf[60] = 1;
	CHECK(!pattern_check_zero(&c, buf, 61, 5) && c.bad == 1 && c.first_offset == 5 + 56);
}

int main(void)
{
	test_round_trip();
	test_fill_at_any_alignment();
	test_classes();
	test_zero_and_garbage();
	test_any_one_version();
	test_holes();
	printf("pattern: %s\n", failures ? "FAILED" : "ok");
	return failures ? 1 : 0;
}
