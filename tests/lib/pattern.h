/* SPDX-License-Identifier: Apache-2.0
 *
 * Self-describing file content: each 8-byte little-endian word at offset o names
 * (file id, version, o), mixed so that it looks random and can be undone. A wrong
 * word then tells where it came from. Used by C tests and by the program
 * `pattern`, which Python tests call.
 *
 * Word before mixing: id in bits 63..52, version in 51..42, offset / 8 in 41..0.
 * Every 64-bit value decodes to something; a wrong word is taken for a pattern word
 * when two of the three fields are the expected ones (22 bits at least), or when the
 * word beside it continues it; otherwise it is garbage.
 */
#ifndef HFS_TESTS_PATTERN_H
#define HFS_TESTS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATTERN_MAX_ID 4095u
#define PATTERN_MAX_VERSION 1023u
#define PATTERN_MAX_SIZE (1ull << 45)

struct pattern_word {
	unsigned id, version;
	uint64_t offset;
};

enum pattern_class {
	PATTERN_RIGHT,
	PATTERN_ZERO,
	PATTERN_OTHER_FILE,
	PATTERN_OTHER_VERSION,
	PATTERN_OTHER_OFFSET, /* right file; version right or any, wrong place */
	PATTERN_TORN,         /* any one version wanted: this is a second one */
	PATTERN_GARBAGE,
	PATTERN_CLASSES
};

/* What to expect, and what was found so far; zero it, set the first three. */
struct pattern_check {
	unsigned id, version;
	bool is_any_version; /* one version, whichever comes first */
	/* found */
	bool has_version; /* with is_any_version: version is what came first */
	uint64_t bytes;
	uint64_t count[PATTERN_CLASSES]; /* words; a cut word at an end counts as one */
	uint64_t bad; /* sum of count[] without PATTERN_RIGHT */
	/* the first wrong word */
	enum pattern_class first_class;
	uint64_t first_offset, first_value;
	struct pattern_word first_word; /* decoded; only a hint for garbage */
};

uint64_t pattern_word(unsigned id, unsigned version, uint64_t offset);
struct pattern_word pattern_decode(uint64_t word);
const char *pattern_class_name(enum pattern_class c);

/* offset and len need no alignment. */
void pattern_fill(void *buf, size_t len, unsigned id, unsigned version, uint64_t offset);
/* Adds what buf holds to c; true while all was right so far. May be called for
 * pieces in any order. */
bool pattern_check(struct pattern_check *c, const void *buf, size_t len, uint64_t offset);
/* The same for a hole: all bytes zero. */
bool pattern_check_zero(struct pattern_check *c, const void *buf, size_t len,
			uint64_t offset);

#endif
