/* SPDX-License-Identifier: Apache-2.0
 *
 * See pattern.h. Pure: no I/O, no state but the caller's.
 */
#include "tests/lib/pattern.h"

#include <string.h>

#define KEY 0x68696e7466735f31ull /* keeps the all-zero fields away from zero */
#define MULT1 0xd6e8feb86659fd93ull
#define MULT2 0xa3b195354a39b70dull
#define INDEX_BITS 42
#define VERSION_BITS 10

static uint64_t mix(uint64_t x)
{
	x ^= KEY;
	x = (x ^ (x >> 32)) * MULT1;
	x = (x ^ (x >> 29)) * MULT2;
	return x ^ (x >> 32);
}

/* The inverse of an odd number modulo 2^64, by Newton's iteration. */
static uint64_t inverse(uint64_t odd)
{
	uint64_t x = odd;

	for (int i = 0; i < 6; i++)
		x *= 2 - odd * x;
	return x;
}

static uint64_t unmix(uint64_t x)
{
	x = (x ^ (x >> 32)) * inverse(MULT2);
	x = (x ^ (x >> 29) ^ (x >> 58)) * inverse(MULT1);
	x ^= x >> 32;
	return x ^ KEY;
}

uint64_t pattern_word(unsigned id, unsigned version, uint64_t offset)
{
	return mix((uint64_t)(id & PATTERN_MAX_ID) << (INDEX_BITS + VERSION_BITS) |
		   (uint64_t)(version & PATTERN_MAX_VERSION) << INDEX_BITS |
		   (offset / 8 & ((1ull << INDEX_BITS) - 1)));
}

struct pattern_word pattern_decode(uint64_t word)
{
	uint64_t x = unmix(word);

	return (struct pattern_word){
		.id = (unsigned)(x >> (INDEX_BITS + VERSION_BITS)),
		.version = (unsigned)(x >> INDEX_BITS) & PATTERN_MAX_VERSION,
		.offset = (x & ((1ull << INDEX_BITS) - 1)) * 8,
	};
}

const char *pattern_class_name(enum pattern_class c)
{
	static const char *const names[PATTERN_CLASSES] = {
		"right", "zero", "other_file", "other_version", "other_offset",
		"torn", "garbage",
	};

	return (unsigned)c < PATTERN_CLASSES ? names[c] : "?";
}

static void put_le64(unsigned char *to, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		to[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_le64(const unsigned char *from)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v |= (uint64_t)from[i] << (8 * i);
	return v;
}

void pattern_fill(void *buf, size_t len, unsigned id, unsigned version, uint64_t offset)
{
	unsigned char *to = buf, word[8];

	while (len) {
		size_t skip = offset % 8, n = 8 - skip < len ? 8 - skip : len;
		put_le64(word, pattern_word(id, version, offset));
		memcpy(to, word + skip, n);
		to += n;
		offset += n;
		len -= n;
	}
}

static void note(struct pattern_check *c, enum pattern_class class, uint64_t offset,
		 uint64_t value)
{
	c->count[class]++;
	if (class == PATTERN_RIGHT)
		return;
	if (!c->bad++) {
		c->first_class = class;
		c->first_offset = offset;
		c->first_value = value;
		c->first_word = pattern_decode(value);
	}
}

/* Does the word at `beside` carry on the one decoded as w, step bytes away? */
static bool continues(struct pattern_word w, const unsigned char *beside, int64_t step)
{
	struct pattern_word b = pattern_decode(get_le64(beside));

	return b.id == w.id && b.version == w.version &&
	       b.offset == w.offset + (uint64_t)step;
}

static enum pattern_class classify(const struct pattern_check *c, uint64_t value,
				   uint64_t offset, bool has_neighbour)
{
	struct pattern_word w = pattern_decode(value);
	bool is_id = w.id == c->id, is_place = w.offset == offset;
	bool is_version = w.version == c->version;

	if (!value)
		return PATTERN_ZERO;
	if (is_id && is_place)
		return c->is_any_version ? PATTERN_TORN : PATTERN_OTHER_VERSION;
	if (is_id && (is_version || has_neighbour))
		return PATTERN_OTHER_OFFSET;
	if (has_neighbour || (is_place && is_version))
		return PATTERN_OTHER_FILE;
	return PATTERN_GARBAGE;
}

/* A whole word at `at`, inside buf[0..len). */
static void check_word(struct pattern_check *c, const unsigned char *buf, size_t len,
		       size_t at, uint64_t offset)
{
	uint64_t value = get_le64(buf + at);

	if (c->is_any_version && !c->has_version) {
		struct pattern_word w = pattern_decode(value);
		if (w.id == c->id && w.offset == offset) {
			c->version = w.version;
			c->has_version = true;
		}
	}
	if (value == pattern_word(c->id, c->version, offset) &&
	    (!c->is_any_version || c->has_version)) {
		note(c, PATTERN_RIGHT, offset, value);
		return;
	}
	struct pattern_word w = pattern_decode(value);
	bool has_neighbour = (at + 16 <= len && continues(w, buf + at + 8, 8)) ||
			     (at >= 8 && continues(w, buf + at - 8, -8));
	note(c, classify(c, value, offset, has_neighbour), offset, value);
}

/* Fewer than 8 bytes of a word: too few to decode, so only compared. */
static void check_cut_word(struct pattern_check *c, const unsigned char *at, size_t n,
			   uint64_t offset)
{
	static const unsigned char zeros[8];
	unsigned char want[8];
	uint64_t value = 0;

	for (size_t i = 0; i < n; i++)
		value |= (uint64_t)at[i] << (8 * i);
	/* with no version known yet, any that fits will do */
	unsigned from = c->is_any_version && !c->has_version ? 0 : c->version;
	unsigned to = c->is_any_version && !c->has_version ? PATTERN_MAX_VERSION : c->version;
	for (unsigned v = from; v <= to; v++) {
		pattern_fill(want, n, c->id, v, offset);
		if (!memcmp(want, at, n)) {
			note(c, PATTERN_RIGHT, offset, value);
			return;
		}
	}
	note(c, memcmp(at, zeros, n) ? PATTERN_GARBAGE : PATTERN_ZERO, offset, value);
}

bool pattern_check(struct pattern_check *c, const void *buf, size_t len, uint64_t offset)
{
	const unsigned char *bytes = buf;
	size_t head = (8 - offset % 8) % 8, at;

	if (head > len)
		head = len;
	c->bytes += len;
	/* whole words first: they tell the version for the cut ones */
	for (at = head; at + 8 <= len; at += 8)
		check_word(c, bytes, len, at, offset + at);
	if (head)
		check_cut_word(c, bytes, head, offset);
	if (at < len)
		check_cut_word(c, bytes + at, len - at, offset + at);
	return c->bad == 0;
}

bool pattern_check_zero(struct pattern_check *c, const void *buf, size_t len,
			uint64_t offset)
{
	const unsigned char *bytes = buf;

	c->bytes += len;
	for (size_t at = 0; at < len; at += 8) {
		size_t n = len - at < 8 ? len - at : 8;
		uint64_t value = 0;
		for (size_t i = 0; i < n; i++)
			value |= (uint64_t)bytes[at + i] << (8 * i);
		note(c, value ? PATTERN_GARBAGE : PATTERN_RIGHT, offset + at, value);
	}
	return c->bad == 0;
}
