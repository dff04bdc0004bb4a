/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/preload/tree.h - a small dataset on an ordinary directory whose bytes tell file and offset.
 *
 * Callers: the programs of tests/preload. Byte `off` of file n is tree_byte(n, off); files are named f0, f1 ...
 */
#ifndef TESTS_PRELOAD_TREE_H
#define TESTS_PRELOAD_TREE_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tree {
	char dir[64];
	unsigned files;
};

static inline unsigned char tree_byte(unsigned file, uint64_t off)
{
	uint64_t w = ((uint64_t)file << 44 | off >> 3) * 0x9E3779B97F4A7C15u;

	return (unsigned char)((w ^ w >> 32) >> (8 * (off & 3)));
}

/* Stop the program: a test that cannot be set up is no result. */
#define TREE_REQUIRE(x)                                                                    \
	do {                                                                               \
		if (!(x)) {                                                                \
			fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #x);     \
			abort();                                                           \
		}                                                                          \
	} while (0)

static inline void tree_file(const char *path, unsigned n, uint64_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	char buf[65536];
	uint64_t at, i;

	TREE_REQUIRE(fd >= 0);
	for (at = 0; at < bytes; at += i) {
		for (i = 0; i < sizeof(buf) && at + i < bytes; i++)
			buf[i] = (char)tree_byte(n, at + i);
		TREE_REQUIRE(write(fd, buf, i) == (ssize_t)i);
	}
	close(fd);
}

static inline void tree_create(struct tree *t, unsigned files, uint64_t (*size)(unsigned n))
{
	char path[128];

	snprintf(t->dir, sizeof(t->dir), "%s/hintfs-preload-XXXXXX", P_tmpdir);
	TREE_REQUIRE(mkdtemp(t->dir));
	for (t->files = 0; t->files < files; t->files++) {
		snprintf(path, sizeof(path), "%s/f%u", t->dir, t->files);
		tree_file(path, t->files, size(t->files));
	}
}

static inline void tree_destroy(struct tree *t)
{
	char path[128];

	while (t->files) {
		snprintf(path, sizeof(path), "%s/f%u", t->dir, --t->files);
		unlink(path);
	}
	rmdir(t->dir);
}

/* True if data is file n's bytes from off on. */
static inline bool tree_is(unsigned n, uint64_t off, const void *data, uint64_t len)
{
	const unsigned char *p = data;
	uint64_t i;

	for (i = 0; i < len; i++)
		if (p[i] != tree_byte(n, off + i))
			return false;
	return true;
}

#endif
