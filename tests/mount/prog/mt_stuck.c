/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_stuck MODE FILE file version N STRIDE [BYTES]: N threads, each reads BYTES (default 4096) at its number times STRIDE
 * and checks them against the pattern (pat.h). Called by tests/mount to have many reads parked at once.
 *
 * MODE: read, mmap, direct. All open the file and map it before the first read: "ready" is printed when every thread is
 * about to read. Then a line a thread, "I ok", "I errno NAME" or "I short", and the sum "total N ok N". A fault's error
 * ends the process by SIGBUS. Exit 0 all right, 1 wrong bytes or a short read, 2 an errno, 3 could not start.
 */
#include "tests/mount/prog/pat.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum way { WAY_READ, WAY_MMAP, WAY_DIRECT };

static struct {
	/* const after start */
	enum way way;
	const char *path;
	unsigned file, version, count;
	uint64_t stride;
	size_t bytes;
	int fd;
	pthread_barrier_t ready;
	/* guarded by lock */
	pthread_mutex_t lock;
	unsigned ok, wrong, failed;
} g = {.bytes = 4096, .lock = PTHREAD_MUTEX_INITIALIZER};

static void report(unsigned i, ssize_t got, int err, const void *buf, uint64_t at)
{
	pthread_mutex_lock(&g.lock);
	if (got < 0) {
		g.failed++;
		printf("%u errno %s\n", i, strerrorname_np(err));
	} else if ((size_t)got != g.bytes) {
		g.wrong++;
		printf("%u short %zd\n", i, got);
	} else if (pat_check(buf, g.bytes, g.file, g.version, at, g.path) != 0) {
		g.wrong++;
		printf("%u wrong\n", i);
	} else {
		g.ok++;
		printf("%u ok\n", i);
	}
	fflush(stdout);
	pthread_mutex_unlock(&g.lock);
}

static void *reader(void *arg)
{
	unsigned i = (unsigned)(uintptr_t)arg;
	uint64_t at = i * g.stride;
	unsigned char *buf = NULL, *map = NULL;
	ssize_t got = (ssize_t)g.bytes;

	if (posix_memalign((void **)&buf, 4096, g.bytes) != 0)
		exit(3);
	if (g.way == WAY_MMAP) {
		map = mmap(NULL, g.bytes, PROT_READ, MAP_SHARED, g.fd, (off_t)at);
		if (map == MAP_FAILED)
			exit(3);
	}
	pthread_barrier_wait(&g.ready);
	errno = 0;
	if (map)
		memcpy(buf, map, g.bytes);
	else
		got = pread(g.fd, buf, g.bytes, (off_t)at);
	report(i, got, errno, buf, at);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_attr_t attr;
	pthread_t *threads;

	if (argc < 7)
		return 3;
	g.way = argv[1][0] == 'm' ? WAY_MMAP : argv[1][0] == 'd' ? WAY_DIRECT : WAY_READ;
	g.path = argv[2];
	g.file = (unsigned)strtoul(argv[3], NULL, 10);
	g.version = (unsigned)strtoul(argv[4], NULL, 10);
	g.count = (unsigned)strtoul(argv[5], NULL, 10);
	g.stride = strtoull(argv[6], NULL, 10);
	if (argc > 7)
		g.bytes = strtoull(argv[7], NULL, 10);
	g.fd = open(g.path, O_RDONLY | O_CLOEXEC | (g.way == WAY_DIRECT ? O_DIRECT : 0));
	threads = calloc(g.count, sizeof(*threads));
	if (g.fd < 0 || !threads || pthread_barrier_init(&g.ready, NULL, g.count + 1) != 0 || pthread_attr_init(&attr) != 0 ||
	    pthread_attr_setstacksize(&attr, 65536) != 0)
		return 3;
	/* Small requests only: what counts is how many are parked, not how much they bring. */
	posix_fadvise(g.fd, 0, 0, POSIX_FADV_RANDOM);
	for (unsigned i = 0; i < g.count; i++)
		if (pthread_create(&threads[i], &attr, reader, (void *)(uintptr_t)i) != 0)
			return 3;
	puts("ready");
	fflush(stdout);
	pthread_barrier_wait(&g.ready);
	for (unsigned i = 0; i < g.count; i++)
		pthread_join(threads[i], NULL);
	printf("total %u ok %u\n", g.count, g.ok);
	fflush(stdout);
	return g.wrong ? 1 : g.failed ? 2 : 0;
}
