/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_pattern make FILE file version SIZE   write a pattern file (pat.h)
 * mt_pattern check FILE file version SIZE  read it to its end; exact size and every word, else exit 1
 * mt_pattern selftest                      the checker tells all kinds of wrong words apart
 *
 * Called by tests/mount. Exit 0 right, 1 wrong (one line on stderr), 2 an errno (its number is the last word on stderr).
 */
#include "tests/mount/prog/pat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK (1u << 20)

static int trouble(const char *what)
{
	fprintf(stderr, "mt_pattern: %s: %s: errno %d\n", what, strerror(errno), errno);
	return 2;
}

static int make(const char *path, unsigned file, unsigned version, uint64_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	unsigned char *buf = malloc(BLOCK);
	int rc = 0;

	if (fd < 0 || !buf)
		return trouble(path);
	for (uint64_t at = 0; at < size;) {
		size_t n = size - at < BLOCK ? (size_t)(size - at) : BLOCK;

		pat_fill(buf, n, file, version, at);
		if (write(fd, buf, n) != (ssize_t)n) {
			rc = trouble("write");
			break;
		}
		at += n;
	}
	free(buf);
	close(fd);
	return rc;
}

static int check(const char *path, unsigned file, unsigned version, uint64_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	unsigned char *buf = malloc(BLOCK);
	uint64_t at = 0;
	int rc = 0;

	if (fd < 0 || !buf)
		return trouble(path);
	while (rc == 0) {
		ssize_t n = read(fd, buf, BLOCK);

		if (n < 0)
			rc = trouble("read");
		if (n <= 0)
			break;
		rc = pat_check(buf, (size_t)n, file, version, at, path) ? 1 : 0;
		at += (uint64_t)n;
	}
	if (rc == 0 && at != size) {
		fprintf(stderr, "%s: %" PRIu64 " bytes instead of %" PRIu64 "\n", path, at, size);
		rc = 1;
	}
	free(buf);
	close(fd);
	return rc;
}

static int expect(const char *want, uint64_t word)
{
	const char *is = pat_class(word, 3, 5, 4096);

	if (strcmp(is, want) == 0)
		return 0;
	fprintf(stderr, "selftest: %s is taken for %s\n", want, is);
	return 1;
}

static int selftest(void)
{
	unsigned char buf[64];
	int bad = 0;

	bad |= expect("right", pat_word(3, 5, 4096)) | expect("zero", 0);
	bad |= expect("other offset", pat_word(3, 5, 4104)) | expect("other version", pat_word(3, 6, 4096));
	bad |= expect("other file", pat_word(4, 5, 4096)) | expect("garbage", pat_word(3, 5, 4096) ^ 1);
	for (size_t from = 0; from < 8; from++) {
		pat_fill(buf, 40, 3, 5, 4096 + from);
		bad |= pat_check(buf, 40, 3, 5, 4096 + from, "selftest") != 0;
		buf[39] ^= 0x10;
		if (!freopen("/dev/null", "w", stderr))
			return 1;
		bad |= pat_check(buf, 40, 3, 5, 4096 + from, "selftest") == 0;
	}
	return bad;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "selftest") == 0)
		return selftest();
	if (argc != 6)
		return 2;
	unsigned file = (unsigned)strtoul(argv[3], NULL, 10), version = (unsigned)strtoul(argv[4], NULL, 10);
	uint64_t size = strtoull(argv[5], NULL, 10);

	if (strcmp(argv[1], "make") == 0)
		return make(argv[2], file, version, size);
	return check(argv[2], file, version, size);
}
