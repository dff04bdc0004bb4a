/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_flee FILE N STEP_NS SECONDS: N children, one after the other, each about to pread one block of FILE with O_DIRECT;
 * the I-th is killed I times STEP_NS after it said so: the kill meets its request at every place on the way to where the
 * daemon parks it. Called by tests/mount on a file whose origin hangs.
 *
 * Then prints "left L": children that had not ended SECONDS after the last kill. Exit 0 none, 1 some, 3 could not start.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void flee(int fd, void *buf, atomic_bool *said, uint64_t after_ns)
{
	pid_t pid = fork();
	uint64_t from;

	if (pid < 0)
		exit(3);
	if (pid == 0) {
		atomic_store(said, true);
		_exit(pread(fd, buf, 4096, 0) == 4096 ? 0 : 2);
	}
	while (!atomic_load(said))
		;
	from = now_ns();
	while (now_ns() - from < after_ns)
		;
	kill(pid, SIGKILL);
	atomic_store(said, false);
}

int main(int argc, char **argv)
{
	unsigned n, left;
	uint64_t step_ns, until;
	atomic_bool *said;
	void *buf;
	int fd;

	if (argc < 5)
		return 3;
	fd = open(argv[1], O_RDONLY | O_CLOEXEC | O_DIRECT);
	n = (unsigned)strtoul(argv[2], NULL, 10);
	step_ns = strtoull(argv[3], NULL, 10);
	said = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fd < 0 || said == MAP_FAILED || posix_memalign(&buf, 4096, 4096) != 0)
		return 3;
	for (unsigned i = 0; i < n; i++)
		flee(fd, buf, said, i * step_ns);
	until = now_ns() + strtoull(argv[4], NULL, 10) * 1000000000u;
	for (left = n; left > 0 && now_ns() < until;) {
		if (waitpid(-1, NULL, WNOHANG) > 0)
			left--;
		else
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	printf("left %u\n", left);
	return left > 0;
}
