/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_passes make DIR N: N files of 1 KiB, each full of its own number. Called by tests/mount.
 * mt_passes read DIR N PASSES SELF READERS ORDERS: PASSES times over the files, forward and backward in turns, past the page cache and
 * past what it keeps of earlier passes: every fourth pass all of them, else this reader's share (number % READERS == SELF).
 * The last KEPT files stay open, so that there are always some that the cache wants to throw away. For every other pass the
 * reader writes to its stream in ORDERS what it reads in that pass and the next, and cancels it after the first: what the disk
 * tier holds is worth more than the rest, then less, then goes.
 *
 * A file that changed after it was opened (ESTALE from read) is opened anew, a few times.
 * Exit 0 all right, 1 wrong bytes or size, 2 a call failed (its errno is the last word on stderr). Prints the files read, and how
 * often one had changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE_BYTES 1024u
#define PAGE 4096u
#define KEPT 100u
#define TRIES 10u
#define CHANGED 3

static int failed(const char *what, unsigned number)
{
	int err = errno;

	fprintf(stderr, "mt_passes: %s %05u: %s: errno %d\n", what, number, strerror(err), err);
	return 2;
}

static void fill(uint32_t *words, unsigned number)
{
	for (unsigned i = 0; i < SIZE_BYTES / sizeof(*words); i++)
		words[i] = number;
}

static int make(int dir, unsigned number)
{
	uint32_t words[SIZE_BYTES / sizeof(uint32_t)];
	char name[16];
	int fd;

	snprintf(name, sizeof(name), "%05u", number);
	fill(words, number);
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, words, sizeof(words)) != (ssize_t)sizeof(words) || close(fd) != 0)
		return failed("make", number);
	return 0;
}

/* buf: a page, aligned. The descriptor stays open; negative: an exit status. */
static int check(int dir, unsigned number, void *buf)
{
	uint32_t words[SIZE_BYTES / sizeof(uint32_t)];
	char name[16];
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "%05u", number);
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (fd < 0)
		return -failed("open", number);
	n = pread(fd, buf, PAGE, 0);
	if (n < 0 && errno == ESTALE) {
		close(fd);
		return -CHANGED;
	}
	if (n < 0)
		return -failed("read", number);
	fill(words, number);
	if (n != (ssize_t)sizeof(words) || memcmp(buf, words, sizeof(words)) != 0) {
		fprintf(stderr, "mt_passes: file %05u: %zd bytes, wrong\n", number, n);
		return -1;
	}
	return fd;
}

struct reader {
	int dir;
	unsigned n, self, readers;
	char stream[PAGE];
	void *buf;
	unsigned long done, again;
	int kept[KEPT];
};

/* The I-th file of a pass, or -1 where it is not this reader's. */
static long number_of(const struct reader *r, unsigned turn, unsigned i)
{
	unsigned number = (turn + r->self) % 2 == 0 ? i : r->n - 1 - i;

	return number % r->readers == r->self || turn % 4 == 3 ? (long)number : -1;
}

static int order(const struct reader *r, const char *folder, unsigned turn)
{
	FILE *f = fopen(r->stream, "w");

	if (!f)
		return failed(r->stream, r->self);
	for (unsigned i = 0; i < 2 * r->n && turn % 2 == 1; i++) {
		long number = number_of(r, turn + i / r->n, i % r->n);

		if (number >= 0)
			fprintf(f, "%s/%05ld\n", folder, number);
	}
	return fclose(f) == 0 ? 0 : failed(r->stream, r->self);
}

static int pass(struct reader *r, unsigned turn)
{
	for (unsigned i = 0; i < r->n; i++) {
		long number = number_of(r, turn, i);
		int fd = -CHANGED;

		if (number < 0)
			continue;
		for (unsigned try = 0; try < TRIES && fd == -CHANGED; try++) {
			fd = check(r->dir, (unsigned)number, r->buf);
			r->again += fd == -CHANGED;
		}
		if (fd < 0)
			return -fd;
		if (r->done >= KEPT)
			close(r->kept[r->done % KEPT]);
		r->kept[r->done++ % KEPT] = fd;
	}
	return 0;
}

static int read_all(struct reader *r, char **argv)
{
	unsigned passes = (unsigned)strtoul(argv[4], NULL, 10);
	const char *slash = strrchr(argv[2], '/'), *folder = slash ? slash + 1 : argv[2];
	int rc = 0;

	r->self = (unsigned)strtoul(argv[5], NULL, 10);
	r->readers = (unsigned)strtoul(argv[6], NULL, 10);
	snprintf(r->stream, sizeof(r->stream), "%s/reader%u", argv[7], r->self);
	for (unsigned turn = 0; turn < passes && rc == 0; turn++) {
		rc = order(r, folder, turn);
		if (rc == 0)
			rc = pass(r, turn);
	}
	printf("%lu %lu\n", r->done, r->again);
	return rc;
}

int main(int argc, char **argv)
{
	static struct reader r;
	int rc = 0;

	if (argc < 4 || (strcmp(argv[1], "make") != 0 && argc < 8) || posix_memalign(&r.buf, PAGE, PAGE) != 0)
		return 2;
	r.n = (unsigned)strtoul(argv[3], NULL, 10);
	r.dir = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r.dir < 0)
		return failed(argv[2], 0);
	if (strcmp(argv[1], "make") != 0)
		return read_all(&r, argv);
	for (unsigned i = 0; i < r.n && rc == 0; i++)
		rc = make(r.dir, i);
	return rc;
}
