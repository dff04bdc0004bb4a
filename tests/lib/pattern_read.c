/* SPDX-License-Identifier: Apache-2.0
 *
 * See pattern_read.h. One thread only: the SIGBUS guard is process-wide.
 */
#include "tests/lib/pattern_read.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ALIGN 4096
#define URING_DEPTH 8

struct uring {
	int fd;
	void *sq, *cq;
	struct io_uring_sqe *sqes;
	struct io_uring_params params;
	size_t sq_bytes, cq_bytes, sqe_bytes;
};

struct pattern_reader {
	ssize_t (*get)(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset);
	const char *note;
	uint64_t size;
	size_t max_block;
	char *map;       /* whole file, mmap modes */
	char *bounce;    /* direct: aligned, max_block + 2 pages */
	int fd, side;    /* side: memfd or other file that the data passes through */
	int pipe[2];
	struct uring ring;
};

static ssize_t result(ssize_t n)
{
	return n < 0 ? -errno : n;
}

static ssize_t get_read(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	if (lseek(pr->fd, (off_t)offset, SEEK_SET) < 0)
		return -errno;
	return result(read(pr->fd, buf, len));
}

static ssize_t get_pread(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	return result(pread(pr->fd, buf, len, (off_t)offset));
}

/* Uneven pieces, so that no two start alike. */
static ssize_t get_readv(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	size_t a = len / 3, b = len / 2 - a;
	struct iovec iov[] = {
		{ buf, a }, { (char *)buf + a, b }, { (char *)buf + a + b, len - a - b },
	};

	return result(preadv(pr->fd, iov, 3, (off_t)offset));
}

static ssize_t get_direct(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	uint64_t start = offset / ALIGN * ALIGN;
	size_t head = (size_t)(offset - start);
	size_t want = (head + len + ALIGN - 1) / ALIGN * ALIGN;
	ssize_t n = pread(pr->fd, pr->bounce, want, (off_t)start);

	if (n < 0)
		return -errno;
	if ((size_t)n <= head)
		return 0;
	size_t got = (size_t)n - head < len ? (size_t)n - head : len;
	memcpy(buf, pr->bounce + head, got);
	return (ssize_t)got;
}

static sigjmp_buf bus_jump;

static void on_bus(int sig)
{
	siglongjmp(bus_jump, sig);
}

static ssize_t get_mmap(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	struct sigaction act = { .sa_handler = on_bus }, before;

	if (offset >= pr->size)
		return 0;
	if (len > pr->size - offset)
		len = (size_t)(pr->size - offset);
	sigaction(SIGBUS, &act, &before);
	if (sigsetjmp(bus_jump, 1)) {
		sigaction(SIGBUS, &before, NULL);
		return -EFAULT;
	}
	memcpy(buf, pr->map + offset, len);
	sigaction(SIGBUS, &before, NULL);
	return (ssize_t)len;
}

/* The data lies in pr->side at 0..n. */
static ssize_t collect_side(struct pattern_reader *pr, void *buf, size_t n)
{
	for (size_t got = 0; got < n;) {
		ssize_t k = pread(pr->side, (char *)buf + got, n - got, (off_t)got);
		if (k <= 0)
			return k < 0 ? -errno : -EIO;
		got += (size_t)k;
	}
	return (ssize_t)n;
}

static ssize_t get_sendfile(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	off_t at = (off_t)offset;

	if (lseek(pr->side, 0, SEEK_SET) < 0)
		return -errno;
	ssize_t n = sendfile(pr->side, pr->fd, &at, len);
	return n < 0 ? -errno : collect_side(pr, buf, (size_t)n);
}

static ssize_t get_copy(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	loff_t from = (loff_t)offset, to = 0;
	ssize_t n = copy_file_range(pr->fd, &from, pr->side, &to, len, 0);

	if (n < 0 && (errno == EXDEV || errno == EOPNOTSUPP)) {
		/* the kernel copies between file systems of one type only */
		pr->note = "copy_file_range refused across file systems, pread used as cp does";
		pr->get = get_pread;
		return get_pread(pr, buf, len, offset);
	}
	return n < 0 ? -errno : collect_side(pr, buf, (size_t)n);
}

/* splice gives what fits the pipe: short counts are no fault here. */
static ssize_t get_splice(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	loff_t at = (loff_t)offset;
	size_t got = 0;

	while (got < len) {
		ssize_t n = splice(pr->fd, &at, pr->pipe[1], NULL, len - got, 0);
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		while (n > 0) {
			ssize_t k = read(pr->pipe[0], (char *)buf + got, (size_t)n);
			if (k <= 0)
				return k < 0 ? -errno : -EIO;
			got += (size_t)k;
			n -= k;
		}
	}
	return (ssize_t)got;
}

/* ---- io_uring by its three system calls ---- */

static int uring_open(struct uring *u)
{
	u->fd = (int)syscall(SYS_io_uring_setup, URING_DEPTH, &u->params);
	if (u->fd < 0)
		return -errno;
	u->sq_bytes = u->params.sq_off.array + u->params.sq_entries * sizeof(unsigned);
	u->cq_bytes = u->params.cq_off.cqes + u->params.cq_entries * sizeof(struct io_uring_cqe);
	u->sqe_bytes = u->params.sq_entries * sizeof(struct io_uring_sqe);
	u->sq = mmap(NULL, u->sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		     u->fd, IORING_OFF_SQ_RING);
	u->cq = mmap(NULL, u->cq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		     u->fd, IORING_OFF_CQ_RING);
	u->sqes = mmap(NULL, u->sqe_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		       u->fd, IORING_OFF_SQES);
	return u->sq == MAP_FAILED || u->cq == MAP_FAILED || u->sqes == MAP_FAILED ? -ENOMEM : 0;
}

static _Atomic unsigned *ring_word(void *ring, unsigned offset)
{
	return (_Atomic unsigned *)(void *)((char *)ring + offset);
}

static void uring_push(struct uring *u, unsigned nth, int fd, void *buf, size_t len,
		       uint64_t offset)
{
	_Atomic unsigned *tail = ring_word(u->sq, u->params.sq_off.tail);
	unsigned at = atomic_load(tail) & (u->params.sq_entries - 1);

	u->sqes[at] = (struct io_uring_sqe){
		.opcode = IORING_OP_READ, .fd = fd, .off = offset,
		.addr = (uintptr_t)buf, .len = (unsigned)len, .user_data = nth,
	};
	atomic_store(ring_word(u->sq, u->params.sq_off.array + at * (unsigned)sizeof(unsigned)), at);
	atomic_fetch_add(tail, 1);
}

/* Takes n completions into res[user_data]. */
static void uring_reap(struct uring *u, unsigned n, int *res)
{
	_Atomic unsigned *head = ring_word(u->cq, u->params.cq_off.head);
	struct io_uring_cqe *cqes = (void *)((char *)u->cq + u->params.cq_off.cqes);

	for (; n; n--) {
		struct io_uring_cqe *e = &cqes[atomic_load(head) & (u->params.cq_entries - 1)];
		res[e->user_data] = e->res;
		atomic_fetch_add(head, 1);
	}
}

/* Up to 8 reads at once, each a part of the block. */
static ssize_t get_uring(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	size_t part = (len / URING_DEPTH + ALIGN) / ALIGN * ALIGN, got = 0;
	int res[URING_DEPTH] = { 0 };
	unsigned n = 0;

	for (size_t at = 0; at < len; at += part, n++)
		uring_push(&pr->ring, n, pr->fd, (char *)buf + at,
			   len - at < part ? len - at : part, offset + at);
	for (unsigned sent = 0; sent < n;) {
		long k = syscall(SYS_io_uring_enter, pr->ring.fd, n - sent, n,
				 IORING_ENTER_GETEVENTS, NULL, 0);
		if (k < 0 && errno != EINTR)
			return -errno;
		sent += k > 0 ? (unsigned)k : 0;
	}
	uring_reap(&pr->ring, n, res);
	for (unsigned i = 0; i < n; i++) {
		size_t want = len - i * part < part ? len - i * part : part;
		if (res[i] < 0)
			return res[i];
		got += (size_t)res[i];
		if ((size_t)res[i] < want)
			break; /* what follows a short part does not count */
	}
	return (ssize_t)got;
}

/* ---- open and close ---- */

static int open_map(struct pattern_reader *pr, int flags)
{
	if (!pr->size)
		return 0;
	void *map = mmap(NULL, pr->size, PROT_READ, flags, pr->fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	pr->map = map;
	return 0;
}

static int open_map_shared(struct pattern_reader *pr)
{
	return open_map(pr, MAP_SHARED);
}

static int open_map_private(struct pattern_reader *pr)
{
	return open_map(pr, MAP_PRIVATE);
}

static int open_bounce(struct pattern_reader *pr)
{
	return -posix_memalign((void **)&pr->bounce, ALIGN,
			       (pr->max_block / ALIGN + 3) * ALIGN);
}

static int open_memfd(struct pattern_reader *pr)
{
	pr->side = memfd_create("pattern", MFD_CLOEXEC);
	return pr->side < 0 ? -errno : 0;
}

static int open_pipe(struct pattern_reader *pr)
{
	return pipe2(pr->pipe, O_CLOEXEC) < 0 ? -errno : 0;
}

static int open_uring(struct pattern_reader *pr)
{
	return uring_open(&pr->ring);
}

static const struct {
	const char *name;
	ssize_t (*get)(struct pattern_reader *, void *, size_t, uint64_t);
	int (*open)(struct pattern_reader *);
	int flags;
} ways[] = {
	{ "read", get_read, NULL, 0 },
	{ "pread", get_pread, NULL, 0 },
	{ "readv", get_readv, NULL, 0 },
	{ "mmap-shared", get_mmap, open_map_shared, 0 },
	{ "mmap-private", get_mmap, open_map_private, 0 },
	{ "direct", get_direct, open_bounce, O_DIRECT },
	{ "sendfile", get_sendfile, open_memfd, 0 },
	{ "splice", get_splice, open_pipe, 0 },
	{ "copy_file_range", get_copy, open_memfd, 0 },
	{ "uring", get_uring, open_uring, 0 },
};

const char *const pattern_read_modes[] = {
	"read", "pread", "readv", "mmap-shared", "mmap-private", "direct", "sendfile",
	"splice", "copy_file_range", "uring", NULL,
};

static int open_way(struct pattern_reader *pr, const char *path, size_t way)
{
	struct stat st;

	pr->fd = open(path, O_RDONLY | O_CLOEXEC | ways[way].flags);
	if (pr->fd < 0 || fstat(pr->fd, &st) < 0)
		return -errno;
	pr->size = (uint64_t)st.st_size;
	pr->get = ways[way].get;
	return ways[way].open ? ways[way].open(pr) : 0;
}

int pattern_reader_open(const char *path, const char *mode, size_t max_block,
			struct pattern_reader **ret_reader)
{
	size_t way = 0, count = sizeof(ways) / sizeof(ways[0]);
	struct pattern_reader *pr;

	while (way < count && strcmp(ways[way].name, mode))
		way++;
	if (way == count)
		return -EINVAL;
	pr = calloc(1, sizeof(*pr));
	if (!pr)
		return -ENOMEM;
	pr->side = pr->pipe[0] = pr->pipe[1] = pr->ring.fd = -1;
	pr->max_block = max_block;
	int err = open_way(pr, path, way);
	if (err < 0)
		pattern_reader_close(pr);
	else
		*ret_reader = pr;
	return err;
}

static void uring_close(struct uring *u)
{
	if (u->sq && u->sq != MAP_FAILED)
		munmap(u->sq, u->sq_bytes);
	if (u->cq && u->cq != MAP_FAILED)
		munmap(u->cq, u->cq_bytes);
	if (u->sqes && u->sqes != MAP_FAILED)
		munmap(u->sqes, u->sqe_bytes);
	if (u->fd >= 0)
		close(u->fd);
}

void pattern_reader_close(struct pattern_reader *pr)
{
	if (!pr)
		return;
	if (pr->map)
		munmap(pr->map, pr->size);
	free(pr->bounce);
	uring_close(&pr->ring);
	const int fds[] = { pr->fd, pr->side, pr->pipe[0], pr->pipe[1] };
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(pr);
}

ssize_t pattern_reader_get(struct pattern_reader *pr, void *buf, size_t len, uint64_t offset)
{
	return pr->get(pr, buf, len, offset);
}

uint64_t pattern_reader_size(const struct pattern_reader *pr)
{
	return pr->size;
}

const char *pattern_reader_note(const struct pattern_reader *pr)
{
	return pr->note;
}
