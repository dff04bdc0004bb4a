/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_cmp MODE FILE REFERENCE [OFFSET LENGTH [BLOCK]]: read FILE in the given way and compare it with REFERENCE, which is
 * read with pread. Called by tests/mount.
 *
 * Reads [OFFSET, OFFSET + LENGTH) or less where REFERENCE ends; FILE must end exactly there too.
 * BLOCK: bytes a call (default 128 KiB). `mt_cmp modes` lists the modes.
 * Exit 0 same, 1 different (one line on stderr), 2 a call failed (its errno is the last word on stderr).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u

struct job {
	const char *path;
	int fd;
	uint64_t offset, length; /* what to read; length may reach beyond the end */
	size_t block;
	unsigned char *got; /* room for length + 1 */
};

struct mode {
	const char *name;
	int open_flags;
	ssize_t (*read)(struct job *j, int arg); /* bytes got, or -1 and errno */
	int arg;
};

static int fail(const char *what)
{
	fprintf(stderr, "mt_cmp: %s: %s: errno %d\n", what, strerror(errno), errno);
	return 2;
}

/* Calls step(j, done) until it gives 0 or everything asked for is there. */
static ssize_t repeat(struct job *j, ssize_t (*step)(struct job *, uint64_t done, size_t n))
{
	uint64_t done = 0;

	while (done < j->length) {
		ssize_t n = step(j, done, j->length - done < j->block ? (size_t)(j->length - done) : j->block);

		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += (uint64_t)n;
	}
	return (ssize_t)done;
}

static ssize_t step_read(struct job *j, uint64_t done, size_t n)
{
	return read(j->fd, j->got + done, n);
}

static ssize_t step_pread(struct job *j, uint64_t done, size_t n)
{
	return pread(j->fd, j->got + done, n, (off_t)(j->offset + done));
}

static ssize_t step_readv(struct job *j, uint64_t done, size_t n)
{
	size_t third = n / 3;
	struct iovec v[3] = {
		{j->got + done, third}, {j->got + done + third, third}, {j->got + done + 2 * third, n - 2 * third}};

	return preadv(j->fd, v, 3, (off_t)(j->offset + done));
}

static ssize_t drain(int from, struct job *j, uint64_t done, ssize_t n)
{
	ssize_t have = 0;

	while (have < n) {
		ssize_t k = read(from, j->got + done + have, (size_t)(n - have));

		if (k <= 0)
			return -1;
		have += k;
	}
	return have;
}

static ssize_t step_splice(struct job *j, uint64_t done, size_t n)
{
	static int pipe_fd[2] = {-1, -1};
	off_t at = (off_t)(j->offset + done);

	if (pipe_fd[0] < 0 && pipe2(pipe_fd, O_CLOEXEC) != 0)
		return -1;
	ssize_t k = splice(j->fd, &at, pipe_fd[1], NULL, n < 65536 ? n : 65536, 0);
	return k <= 0 ? k : drain(pipe_fd[0], j, done, k);
}

static int scratch_file(void)
{
	static int fd = -1;

	if (fd < 0)
		fd = memfd_create("mt_cmp", MFD_CLOEXEC);
	return fd;
}

static ssize_t step_sendfile(struct job *j, uint64_t done, size_t n)
{
	off_t at = (off_t)(j->offset + done);
	int out = scratch_file();

	if (out < 0 || lseek(out, 0, SEEK_SET) != 0)
		return -1;
	ssize_t k = sendfile(out, j->fd, &at, n);
	return k <= 0 ? k : pread(out, j->got + done, (size_t)k, 0);
}

/* Out of a read-only mount the target always lies elsewhere; where the kernel refuses that, do as cp(1) does. */
static ssize_t step_copy_range(struct job *j, uint64_t done, size_t n)
{
	static int out = -1;
	off_t at = (off_t)(j->offset + done), zero = 0;

	if (out < 0)
		out = open(getenv("MT_TMP") ? getenv("MT_TMP") : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (out < 0)
		return -1;
	ssize_t k = copy_file_range(j->fd, &at, out, &zero, n, 0);
	if (k < 0 && errno == EXDEV)
		return step_pread(j, done, n);
	return k <= 0 ? k : pread(out, j->got + done, (size_t)k, 0);
}

static ssize_t mode_steps(struct job *j, int arg)
{
	static ssize_t (*const steps[])(struct job *, uint64_t, size_t) = {
		step_read, step_pread, step_readv, step_splice, step_sendfile, step_copy_range};

	if (arg == 0 && lseek(j->fd, (off_t)j->offset, SEEK_SET) < 0)
		return -1;
	return repeat(j, steps[arg]);
}

/* O_DIRECT wants aligned offset, length and memory: read through a bounce buffer over the aligned range. */
static ssize_t mode_direct(struct job *j, int arg)
{
	uint64_t from = j->offset / PAGE * PAGE, done = 0, skip = j->offset - from;
	size_t block = (j->block + PAGE - 1) / PAGE * PAGE;
	unsigned char *buf = NULL;

	(void)arg;
	if (posix_memalign((void **)&buf, PAGE, block) != 0)
		return -1;
	while (done < j->length) {
		ssize_t n = pread(j->fd, buf, block, (off_t)from);

		if (n < 0)
			return -1;
		size_t use = (uint64_t)n > skip ? (size_t)((uint64_t)n - skip) : 0;
		use = use < j->length - done ? use : (size_t)(j->length - done);
		memcpy(j->got + done, buf + skip, use);
		done += use;
		from += (uint64_t)n;
		skip = 0;
		if ((size_t)n < block)
			break;
	}
	free(buf);
	return (ssize_t)done;
}

enum { MAP_ADVICE = 0xff, MAP_IS_PRIVATE = 0x100, MAP_IS_POPULATED = 0x200, MAP_IS_BACKWARDS = 0x400 };

static ssize_t mode_map(struct job *j, int arg)
{
	uint64_t from = j->offset / PAGE * PAGE;
	struct stat st;
	int flags = arg & MAP_IS_PRIVATE ? MAP_PRIVATE : MAP_SHARED;

	if (fstat(j->fd, &st) != 0)
		return -1;
	if ((uint64_t)st.st_size <= j->offset)
		return 0;
	uint64_t end = j->offset + j->length < (uint64_t)st.st_size ? j->offset + j->length : (uint64_t)st.st_size;
	size_t n = (size_t)(end - j->offset), len = (size_t)(end - from);
	unsigned char *p = mmap(NULL, len, PROT_READ, flags | (arg & MAP_IS_POPULATED ? MAP_POPULATE : 0), j->fd, (off_t)from);

	if (p == MAP_FAILED || ((arg & MAP_ADVICE) && madvise(p, len, arg & MAP_ADVICE) != 0))
		return -1;
	const unsigned char *data = p + (j->offset - from);
	if (arg & MAP_IS_BACKWARDS)
		for (size_t i = n; i-- > 0;)
			j->got[i] = data[i];
	else
		memcpy(j->got, data, n);
	munmap(p, len);
	return (ssize_t)n;
}

static ssize_t mode_fadvise(struct job *j, int arg)
{
	int rc = posix_fadvise(j->fd, (off_t)j->offset, (off_t)j->length, arg);

	if (rc != 0) {
		errno = rc;
		return -1;
	}
	return repeat(j, step_pread);
}

static ssize_t mode_readahead(struct job *j, int arg)
{
	(void)arg;
	if (readahead(j->fd, (off_t)j->offset, (size_t)j->length) != 0)
		return -1;
	return repeat(j, step_pread);
}

/* ---- io_uring by its system calls: eight reads in the air ---- */
#define URING_DEPTH 8u

struct uring {
	int fd;
	struct io_uring_params p;
	unsigned char *sq, *cq;
	struct io_uring_sqe *sqes;
};

static int uring_open(struct uring *u)
{
	memset(u, 0, sizeof(*u));
	u->fd = (int)syscall(SYS_io_uring_setup, URING_DEPTH, &u->p);
	if (u->fd < 0)
		return -1;
	u->sq = mmap(NULL, u->p.sq_off.array + u->p.sq_entries * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, u->fd,
		     IORING_OFF_SQ_RING);
	u->cq = mmap(NULL, u->p.cq_off.cqes + u->p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		     MAP_SHARED, u->fd, IORING_OFF_CQ_RING);
	u->sqes = mmap(NULL, u->p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, u->fd,
		       IORING_OFF_SQES);
	return u->sq == MAP_FAILED || u->cq == MAP_FAILED || u->sqes == MAP_FAILED ? -1 : 0;
}

static void uring_put(struct uring *u, struct job *j, uint64_t at, size_t n)
{
	uint32_t *tail = (uint32_t *)(u->sq + u->p.sq_off.tail), mask = *(uint32_t *)(u->sq + u->p.sq_off.ring_mask);
	uint32_t i = *tail & mask;

	memset(&u->sqes[i], 0, sizeof(u->sqes[i]));
	u->sqes[i].opcode = IORING_OP_READ;
	u->sqes[i].fd = j->fd;
	u->sqes[i].off = j->offset + at;
	u->sqes[i].addr = (uint64_t)(uintptr_t)(j->got + at);
	u->sqes[i].len = (uint32_t)n;
	u->sqes[i].user_data = (uint64_t)n;
	((uint32_t *)(u->sq + u->p.sq_off.array))[i] = i;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
}

/* Takes all completions; adds their bytes. -1 and errno when one failed. */
static ssize_t uring_take(struct uring *u)
{
	uint32_t *head = (uint32_t *)(u->cq + u->p.cq_off.head), mask = *(uint32_t *)(u->cq + u->p.cq_off.ring_mask);
	ssize_t sum = 0;

	while (*head != __atomic_load_n((uint32_t *)(u->cq + u->p.cq_off.tail), __ATOMIC_ACQUIRE)) {
		struct io_uring_cqe *c = (struct io_uring_cqe *)(u->cq + u->p.cq_off.cqes) + (*head & mask);

		if (c->res < 0) {
			errno = -c->res;
			return -1;
		}
		sum += c->res;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	}
	return sum;
}

static ssize_t mode_uring(struct job *j, int arg)
{
	struct uring u;
	uint64_t at = 0, sum = 0;

	(void)arg;
	if (uring_open(&u) != 0)
		return -1;
	while (at < j->length) {
		unsigned n = 0;

		for (; n < URING_DEPTH && at < j->length; n++) {
			size_t len = j->length - at < j->block ? (size_t)(j->length - at) : j->block;

			uring_put(&u, j, at, len);
			at += len;
		}
		if (syscall(SYS_io_uring_enter, u.fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) != (long)n)
			return -1;
		ssize_t got = uring_take(&u);
		if (got < 0)
			return -1;
		sum += (uint64_t)got;
	}
	return (ssize_t)sum;
}

static const struct mode modes[] = {
	{"read", 0, mode_steps, 0},
	{"pread", 0, mode_steps, 1},
	{"readv", 0, mode_steps, 2},
	{"splice", 0, mode_steps, 3},
	{"sendfile", 0, mode_steps, 4},
	{"copy_file_range", 0, mode_steps, 5},
	{"direct", O_DIRECT, mode_direct, 0},
	{"mmap_shared", 0, mode_map, 0},
	{"mmap_private", 0, mode_map, MAP_IS_PRIVATE},
	{"mmap_populate", 0, mode_map, MAP_IS_POPULATED},
	{"mmap_backwards", 0, mode_map, MAP_IS_BACKWARDS},
	{"madv_random", 0, mode_map, MADV_RANDOM},
	{"madv_sequential", 0, mode_map, MADV_SEQUENTIAL},
	{"madv_willneed", 0, mode_map, MADV_WILLNEED},
	{"madv_dontneed", 0, mode_map, MADV_DONTNEED},
	{"madv_populate_read", 0, mode_map, MADV_POPULATE_READ},
	{"madv_hugepage", 0, mode_map, MADV_HUGEPAGE},
	{"madv_cold", 0, mode_map, MADV_COLD},
	{"madv_pageout", 0, mode_map, MADV_PAGEOUT},
	{"fadv_random", 0, mode_fadvise, POSIX_FADV_RANDOM},
	{"fadv_sequential", 0, mode_fadvise, POSIX_FADV_SEQUENTIAL},
	{"fadv_willneed", 0, mode_fadvise, POSIX_FADV_WILLNEED},
	{"fadv_dontneed", 0, mode_fadvise, POSIX_FADV_DONTNEED},
	{"fadv_noreuse", 0, mode_fadvise, POSIX_FADV_NOREUSE},
	{"readahead", 0, mode_readahead, 0},
	{"io_uring", 0, mode_uring, 0},
};

static int compare(const struct job *j, ssize_t got, const char *reference)
{
	unsigned char *want = malloc(1 << 20);
	int fd = open(reference, O_RDONLY | O_CLOEXEC);
	uint64_t at = 0;
	int rc = 0;

	if (fd < 0 || !want)
		return fail(reference);
	while (rc == 0 && at < j->length) {
		size_t n = j->length - at < 1 << 20 ? (size_t)(j->length - at) : 1 << 20;
		ssize_t k = pread(fd, want, n, (off_t)(j->offset + at));

		if (k < 0)
			return fail(reference);
		if (k == 0)
			break;
		if (at + (uint64_t)k > (uint64_t)got)
			break; /* said below */
		for (ssize_t i = 0; i < k && rc == 0; i++)
			if (want[i] != j->got[at + (uint64_t)i]) {
				fprintf(stderr, "%s: byte %" PRIu64 " is %02x, must be %02x\n", j->path,
					j->offset + at + (uint64_t)i, j->got[at + (uint64_t)i], want[i]);
				rc = 1;
			}
		at += (uint64_t)k;
	}
	if (rc == 0 && at != (uint64_t)got) {
		fprintf(stderr, "%s: %zd bytes from %" PRIu64 ", reference disagrees at %" PRIu64 "\n", j->path, got, j->offset,
			at);
		rc = 1;
	}
	free(want);
	close(fd);
	return rc;
}

static const struct mode *find_mode(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (strcmp(modes[i].name, name) == 0)
			return &modes[i];
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "modes") == 0) {
		for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
			puts(modes[i].name);
		return 0;
	}
	const struct mode *m = argc >= 4 ? find_mode(argv[1]) : NULL;
	struct job j = {.block = 131072};
	struct stat st;

	if (!m)
		return 2;
	j.path = argv[2];
	j.fd = open(argv[2], O_RDONLY | O_CLOEXEC | m->open_flags);
	if (j.fd < 0)
		return fail(argv[2]);
	if (stat(argv[3], &st) != 0)
		return fail(argv[3]);
	j.offset = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
	/* One byte more than the reference holds: the end is part of the comparison. */
	j.length = argc > 5 ? strtoull(argv[5], NULL, 10) : (uint64_t)st.st_size + 1;
	if (argc > 6)
		j.block = strtoull(argv[6], NULL, 10);
	j.got = malloc(j.length + 1);
	if (!j.got)
		return fail("memory");
	memset(j.got, 0xa5, j.length + 1);
	ssize_t got = m->read(&j, m->arg);
	if (got < 0)
		return fail(m->name);
	return compare(&j, got, argv[3]);
}
