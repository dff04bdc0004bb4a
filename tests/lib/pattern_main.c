/* SPDX-License-Identifier: Apache-2.0
 *
 * pattern make|check|read: writes and checks pattern files (pattern.h), by every
 * way a program can read one (pattern_read.h). Called by the tests in Python.
 *
 * Exit: 0 right; 1 wrong bytes; 2 usage, or the file cannot be written; 3 an open
 * or a read failed, or gave too few bytes; 77 this machine lacks the way.
 */
#include "tests/lib/pattern.h"
#include "tests/lib/pattern_read.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK_HALF 65536ull /* a mark is this many pattern bytes on either side */
#define MAX_MARKS 64
#define MAX_BLOCK (1ull << 30)
#define MAX_RANDOM_BLOCKS (1ull << 26)

struct job {
	const char *path, *mode;
	struct pattern_check check;
	uint64_t size, offset, length, block;
	uint64_t marks[MAX_MARKS];
	size_t mark_count;
	bool has_length, is_random, is_in_place;
	uint64_t seed;
};

static const char usage_text[] =
	"usage: pattern make FILE SIZE --id N --version V [--sparse-marks OFF,…] [--in-place]\n"
	"       pattern check FILE [--id N] [--version V | --any-one-version]\n"
	"                     [--offset O] [--length L] [--sparse-marks OFF,…]\n"
	"       pattern read FILE --mode MODE [--block B] [--random SEED] [as check]\n"
	"Sizes take K M G T (1024). A mark is 64 KiB of pattern on either side, the rest\n"
	"of the file a hole. Modes:";

static void __attribute__((noreturn)) usage(void)
{
	fputs(usage_text, stderr);
	for (const char *const *m = pattern_read_modes; *m; m++)
		fprintf(stderr, " %s", *m);
	fputc('\n', stderr);
	exit(2);
}

static void __attribute__((noreturn, format(printf, 2, 3))) fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("pattern: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(status);
}

static bool parse_size(const char *text, char **ret_end, uint64_t *ret)
{
	static const char units[] = "KMGT";
	unsigned long long v;

	errno = 0;
	if (*text < '0' || *text > '9')
		return false;
	v = strtoull(text, ret_end, 0);
	const char *unit = **ret_end ? strchr(units, **ret_end) : NULL;
	int shift = unit ? 10 * (int)(unit - units + 1) : 0;
	*ret_end += unit != NULL;
	if (errno || v > UINT64_MAX >> shift)
		return false;
	*ret = (uint64_t)v << shift;
	return true;
}

static uint64_t size_arg(const char *text)
{
	char *end;
	uint64_t v;

	if (!parse_size(text, &end, &v) || *end)
		fail(2, "bad number: %s", text);
	return v;
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void marks_arg(struct job *j, const char *text)
{
	char *end;

	for (;; text = end + 1) {
		if (j->mark_count == MAX_MARKS ||
		    !parse_size(text, &end, &j->marks[j->mark_count++]) ||
		    (*end && *end != ','))
			fail(2, "bad list of marks");
		if (!*end)
			break;
	}
	qsort(j->marks, j->mark_count, sizeof(j->marks[0]), compare_u64);
}

static unsigned small_arg(const char *text, unsigned max)
{
	uint64_t v = size_arg(text);

	if (v > max)
		fail(2, "%s is over %u", text, max);
	return (unsigned)v;
}

static void parse_options(struct job *j, int argc, char **argv)
{
	static const struct option options[] = {
		{ "id", 1, NULL, 'i' }, { "version", 1, NULL, 'v' },
		{ "any-one-version", 0, NULL, 'a' }, { "offset", 1, NULL, 'o' },
		{ "length", 1, NULL, 'l' }, { "sparse-marks", 1, NULL, 's' },
		{ "mode", 1, NULL, 'm' }, { "block", 1, NULL, 'b' },
		{ "random", 1, NULL, 'r' }, { "in-place", 0, NULL, 'p' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'i': j->check.id = small_arg(optarg, PATTERN_MAX_ID); break;
		case 'v': j->check.version = small_arg(optarg, PATTERN_MAX_VERSION); break;
		case 'a': j->check.is_any_version = true; break;
		case 'o': j->offset = size_arg(optarg); break;
		case 'l': j->length = size_arg(optarg); j->has_length = true; break;
		case 's': marks_arg(j, optarg); break;
		case 'm': j->mode = optarg; break;
		case 'b': j->block = size_arg(optarg); break;
		case 'r': j->seed = size_arg(optarg); j->is_random = true; break;
		case 'p': j->is_in_place = true; break;
		default: usage();
		}
	}
	if (!j->block || j->block > MAX_BLOCK)
		fail(2, "block must be 1 to 1G");
}

/* The stretch that begins at `at`, and whether it is pattern. A file without marks
 * is all pattern. */
static uint64_t stretch_end(const struct job *j, uint64_t at, bool *ret_is_pattern)
{
	*ret_is_pattern = !j->mark_count;
	if (!j->mark_count)
		return UINT64_MAX;
	for (size_t i = 0; i < j->mark_count; i++) {
		uint64_t from = j->marks[i] > MARK_HALF ? j->marks[i] - MARK_HALF : 0;
		uint64_t to = j->marks[i] + MARK_HALF;
		if (at < from)
			return from;
		if (at < to) {
			*ret_is_pattern = true;
			return to;
		}
	}
	return UINT64_MAX;
}

static void write_all(int fd, const char *buf, size_t len, uint64_t offset)
{
	while (len) {
		ssize_t n = pwrite(fd, buf, len, (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			fail(2, "write at %llu: %s", (unsigned long long)offset, strerror(errno));
		buf += n;
		offset += (uint64_t)n;
		len -= (size_t)n;
	}
}

static char *new_buffer(size_t len)
{
	void *buf;

	if (posix_memalign(&buf, 4096, len))
		fail(2, "out of memory");
	return buf;
}

static int make(struct job *j)
{
	int fd = open(j->path, O_WRONLY | O_CREAT | O_CLOEXEC | (j->is_in_place ? 0 : O_TRUNC), 0644);
	char *buf = new_buffer(j->block);
	bool is_pattern;

	if (fd < 0 || ftruncate(fd, (off_t)j->size) < 0)
		fail(2, "%s: %s", j->path, strerror(errno));
	for (uint64_t at = 0, end; at < j->size; at = end) {
		end = stretch_end(j, at, &is_pattern);
		if (end > j->size)
			end = j->size;
		for (uint64_t from = at; is_pattern && from < end;) {
			size_t n = end - from < j->block ? (size_t)(end - from) : j->block;
			pattern_fill(buf, n, j->check.id, j->check.version, from);
			write_all(fd, buf, n, from);
			from += n;
		}
	}
	if (close(fd) < 0)
		fail(2, "%s: %s", j->path, strerror(errno));
	free(buf);
	return 0;
}

static void check_block(struct job *j, const char *buf, size_t len, uint64_t offset)
{
	bool is_pattern;

	for (size_t at = 0, n; at < len; at += n) {
		uint64_t end = stretch_end(j, offset + at, &is_pattern);
		n = end - (offset + at) < len - at ? (size_t)(end - (offset + at)) : len - at;
		if (is_pattern)
			pattern_check(&j->check, buf + at, n, offset + at);
		else
			pattern_check_zero(&j->check, buf + at, n, offset + at);
	}
}

static void __attribute__((noreturn)) read_failed(const struct job *j, uint64_t offset, int err)
{
	const char *name = strerrorname_np(err);

	fail(err == ENOSYS ? 77 : 3, "%s: read at %llu: %s", j->path,
	     (unsigned long long)offset,
	     err == EFAULT ? "SIGBUS" : name ? name : strerror(err));
}

static void read_block(struct job *j, struct pattern_reader *pr, char *buf, uint64_t at,
		       uint64_t end)
{
	size_t n = end - at < j->block ? (size_t)(end - at) : j->block;
	ssize_t got = pattern_reader_get(pr, buf, n, at);

	if (got < 0)
		read_failed(j, at, (int)-got);
	check_block(j, buf, (size_t)got, at);
	if ((size_t)got != n)
		fail(3, "%s: short read at %llu: %zd of %zu", j->path,
		     (unsigned long long)at, got, n);
}

/* 0..n-1 in an order that the seed fixes. */
static uint64_t *shuffled(uint64_t n, uint64_t seed)
{
	uint64_t *order = malloc((n + 1) * sizeof(*order));

	if (!order)
		fail(2, "out of memory");
	for (uint64_t i = 0; i < n; i++)
		order[i] = i;
	for (uint64_t i = n; i > 1; i--) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		uint64_t k = (seed >> 20) % i, swap = order[k];
		order[k] = order[i - 1];
		order[i - 1] = swap;
	}
	return order;
}

static int report(const struct job *j)
{
	const struct pattern_check *c = &j->check;

	if (!c->bad) {
		printf("ok bytes=%llu version=%u\n", (unsigned long long)c->bytes, c->version);
		return 0;
	}
	printf("mismatch offset=%llu class=%s want_id=%u want_version=%u value=%016llx "
	       "got_id=%u got_version=%u got_offset=%llu\n",
	       (unsigned long long)c->first_offset, pattern_class_name(c->first_class), c->id,
	       c->version, (unsigned long long)c->first_value, c->first_word.id,
	       c->first_word.version, (unsigned long long)c->first_word.offset);
	for (int i = 0; i < PATTERN_CLASSES; i++)
		printf("%s=%llu ", pattern_class_name((enum pattern_class)i),
		       (unsigned long long)c->count[i]);
	printf("bytes=%llu\n", (unsigned long long)c->bytes);
	return 1;
}

static void read_range(struct job *j, struct pattern_reader *pr, uint64_t end)
{
	uint64_t blocks = (end - j->offset + j->block - 1) / j->block;
	char *buf = new_buffer(j->block);

	if (j->is_random && blocks > MAX_RANDOM_BLOCKS)
		fail(2, "too many blocks for a random order");
	uint64_t *order = j->is_random ? shuffled(blocks, j->seed) : NULL;
	for (uint64_t i = 0; i < blocks; i++)
		read_block(j, pr, buf, j->offset + (order ? order[i] : i) * j->block, end);
	ssize_t n = end == pattern_reader_size(pr) ? pattern_reader_get(pr, buf, j->block, end) : 0;
	if (n < 0)
		read_failed(j, end, (int)-n);
	if (n > 0)
		fail(3, "%s: %zd bytes after the end", j->path, n);
	free(order);
	free(buf);
}

static int check(struct job *j)
{
	struct pattern_reader *pr = NULL;
	int err = pattern_reader_open(j->path, j->mode, j->block, &pr);

	if (err == -EINVAL || err == -ENOSYS || (err == -EPERM && !strcmp(j->mode, "uring")))
		fail(err == -EINVAL ? 2 : 77, "%s: %s", j->mode, strerrorname_np(-err));
	if (err < 0)
		fail(3, "%s: open: %s", j->path, strerrorname_np(-err));
	uint64_t size = pattern_reader_size(pr), end = size;
	if (j->has_length)
		end = j->length > UINT64_MAX - j->offset ? UINT64_MAX : j->offset + j->length;
	if (j->offset > size || end > size)
		fail(3, "%s: range ends after size %llu", j->path, (unsigned long long)size);
	read_range(j, pr, end);
	if (pattern_reader_note(pr))
		fprintf(stderr, "pattern: %s\n", pattern_reader_note(pr));
	pattern_reader_close(pr);
	return report(j);
}

int main(int argc, char **argv)
{
	struct job j = { .mode = "pread", .block = 1 << 20 };

	if (argc < 3)
		usage();
	parse_options(&j, argc - 1, argv + 1);
	char **rest = argv + 1 + optind;
	int count = argc - 1 - optind;
	bool is_make = !strcmp(argv[1], "make");
	if (count != (is_make ? 2 : 1))
		usage();
	j.path = rest[0];
	if (is_make) {
		j.size = size_arg(rest[1]);
		if (j.size > PATTERN_MAX_SIZE)
			fail(2, "larger than 32T");
		return make(&j);
	}
	if (strcmp(argv[1], "check") && strcmp(argv[1], "read"))
		usage();
	return check(&j);
}
