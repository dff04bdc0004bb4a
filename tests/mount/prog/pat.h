/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pat.h - 64-bit pattern data: each aligned 8-byte word names its file, version and offset.
 *
 * Used by the client programs of tests/mount. A wrong word is classified without a second copy: zero, other file,
 * other version, other offset, garbage.
 *
 * 1. word = mix(file:12 | version:16 | offset/8:36), little-endian; mix is a bijection, so the word can be decoded.
 * 2. A file may end within a word: the last bytes are the first bytes of that word.
 */
#ifndef MOUNT_PAT_H
#define MOUNT_PAT_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PAT_KEY UINT64_C(0x5bd1e995c6a4a793)
#define PAT_MUL UINT64_C(0x9e3779b97f4a7c15)
#define PAT_MUL_INVERSE UINT64_C(0xf1de83e19937733d)

struct pat_id {
	unsigned file, version;
	uint64_t offset;
};

static inline uint64_t pat_mix(uint64_t x)
{
	x ^= PAT_KEY;
	x *= PAT_MUL;
	x ^= x >> 32;
	return x * PAT_MUL;
}

static inline uint64_t pat_unmix(uint64_t x)
{
	x *= PAT_MUL_INVERSE;
	x ^= x >> 32;
	x *= PAT_MUL_INVERSE;
	return x ^ PAT_KEY;
}

static inline uint64_t pat_word(unsigned file, unsigned version, uint64_t offset)
{
	return pat_mix((uint64_t)(file & 0xfff) << 52 | (uint64_t)(version & 0xffff) << 36 |
		       ((offset >> 3) & UINT64_C(0xfffffffff)));
}

static inline struct pat_id pat_decode(uint64_t word)
{
	uint64_t x = pat_unmix(word);

	return (struct pat_id){(unsigned)(x >> 52), (unsigned)(x >> 36 & 0xffff), (x & UINT64_C(0xfffffffff)) << 3};
}

static inline void pat_fill(void *buf, size_t len, unsigned file, unsigned version, uint64_t offset)
{
	unsigned char *p = buf;

	for (size_t i = 0; i < len;) {
		uint64_t at = offset + i, word = pat_word(file, version, at);
		size_t skip = at & 7, n = 8 - skip < len - i ? 8 - skip : len - i;

		memcpy(p + i, (unsigned char *)&word + skip, n);
		i += n;
	}
}

/* What is wrong with the word at `offset`; for messages. */
static inline const char *pat_class(uint64_t word, unsigned file, unsigned version, uint64_t offset)
{
	struct pat_id id = pat_decode(word);

	if (word == 0)
		return "zero";
	if (id.file == file && id.version == version)
		return id.offset == offset ? "right" : "other offset";
	if (id.file == file && id.offset == offset)
		return "other version";
	if (id.offset == offset)
		return "other file";
	return "garbage";
}

/*
 * Compare with what file and version must hold. 0, or -1 after one line on stderr that names the first wrong word.
 * buf may start and end anywhere.
 */
static inline int pat_check(const void *buf, size_t len, unsigned file, unsigned version, uint64_t offset,
			    const char *who)
{
	const unsigned char *p = buf;

	for (size_t i = 0; i < len;) {
		uint64_t at = offset + i, word = pat_word(file, version, at), seen = 0;
		size_t skip = at & 7, n = 8 - skip < len - i ? 8 - skip : len - i;

		if (memcmp(p + i, (unsigned char *)&word + skip, n) != 0) {
			memcpy((unsigned char *)&seen + skip, p + i, n);
			struct pat_id id = pat_decode(seen);

			fprintf(stderr,
				"%s: wrong word at %" PRIu64 ": %s (want file %u version %u; word says file %u version %u "
				"offset %" PRIu64 ")\n",
				who, at & ~UINT64_C(7), n == 8 ? pat_class(seen, file, version, at) : "part of a word",
				file, version, id.file, id.version, id.offset);
			return -1;
		}
		i += n;
	}
	return 0;
}

#endif
