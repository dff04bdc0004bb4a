/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_signals WAY RESTART FILE file version SIZE: read a pattern file from begin to end while SIGALRM arrives every
 * millisecond; no call may fail or be short. Called by test_interrupt.py.
 *
 * WAY: read, direct, mmap, write (write(2) out of a mapping with MADV_RANDOM: the fault happens inside the system call).
 * RESTART: 0 or 1, the handler's SA_RESTART. Prints "signals N". Exit 0 right, 1 wrong bytes, 2 a call failed.
 */
#include "tests/mount/prog/pat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define BLOCK (256u << 10)

static volatile sig_atomic_t signals;

static void on_alarm(int signum)
{
	(void)signum;
	signals++;
}

static int start_alarms(int is_restarting)
{
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = is_restarting ? SA_RESTART : 0};
	struct itimerval every = {{0, 1000}, {0, 1000}};

	return sigaction(SIGALRM, &sa, NULL) || setitimer(ITIMER_REAL, &every, NULL) ? -1 : 0;
}

/* Bytes [at, at + n) of the file into buf in the given way; the count or -1. */
static ssize_t take(char way, int fd, const unsigned char *map, unsigned char *buf, size_t n, uint64_t at, int scratch)
{
	if (way == 'm') {
		memcpy(buf, map + at, n);
		return (ssize_t)n;
	}
	if (way == 'w') {
		ssize_t k = pwrite(scratch, map + at, n, 0);

		/* A harmless signal may cut a write to a file short in principle; here it must not even do that. */
		return k == (ssize_t)n ? pread(scratch, buf, n, 0) : k;
	}
	return pread(fd, buf, way == 'd' ? BLOCK : n, (off_t)at);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 3;
	char way = argv[1][0];
	unsigned file = (unsigned)strtoul(argv[4], NULL, 10), version = (unsigned)strtoul(argv[5], NULL, 10);
	uint64_t size = strtoull(argv[6], NULL, 10);
	int fd = open(argv[3], O_RDONLY | O_CLOEXEC | (way == 'd' ? O_DIRECT : 0));
	int scratch = memfd_create("mt_signals", MFD_CLOEXEC);
	unsigned char *map = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0), *buf = NULL;

	if (map == MAP_FAILED || scratch < 0 || posix_memalign((void **)&buf, 4096, BLOCK) != 0)
		return 3;
	madvise(map, size, MADV_RANDOM);
	if (start_alarms(atoi(argv[2])) != 0)
		return 3;
	for (uint64_t at = 0; at < size; at += BLOCK) {
		size_t n = size - at < BLOCK ? (size_t)(size - at) : BLOCK;
		ssize_t got = take(way, fd, map, buf, n, at, scratch);

		if (got != (ssize_t)n) {
			fprintf(stderr, "mt_signals: %zd of %zu bytes at %" PRIu64 ": %s\n", got, n, at,
				got < 0 ? strerror(errno) : "short");
			return 2;
		}
		if (pat_check(buf, n, file, version, at, argv[3]) != 0)
			return 1;
	}
	printf("signals %d\n", (int)signals);
	return 0;
}
