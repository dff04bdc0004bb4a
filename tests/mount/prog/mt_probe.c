/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_probe: waits for commands on stdin and times each system call of them; one line of answer each. Kept running so that
 * the start of a process is no part of the time. Called by test_hang.py.
 *
 *   hold NAME PATH           open and keep the descriptor under NAME
 *   pread NAME OFFSET N      read from a kept descriptor
 *   open PATH                open, read 4096 bytes at 0, close
 *   stat PATH   statfs PATH   list PATH   cat PATH
 *
 * Answer: "MICROSECONDS COUNT-OR-ERRNO-NAME". Words are separated by TAB.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#define HOLD_MAX 64
#define WORDS_MAX 4

static struct {
	char name[64];
	int fd;
} held[HOLD_MAX];
static size_t held_count;
static char buf[1 << 20];

static long do_hold(char **w)
{
	int fd = open(w[2], O_RDONLY | O_CLOEXEC);

	if (fd < 0 || held_count == HOLD_MAX)
		return -1;
	snprintf(held[held_count].name, sizeof(held[0].name), "%s", w[1]);
	held[held_count++].fd = fd;
	return fd;
}

static long do_pread(char **w)
{
	size_t n = strtoull(w[3], NULL, 10);

	for (size_t i = 0; i < held_count; i++)
		if (strcmp(held[i].name, w[1]) == 0)
			return pread(held[i].fd, buf, n < sizeof(buf) ? n : sizeof(buf), (off_t)strtoull(w[2], NULL, 10));
	errno = EBADF;
	return -1;
}

static long do_open(char **w)
{
	int fd = open(w[1], O_RDONLY | O_CLOEXEC);
	long n;

	if (fd < 0)
		return -1;
	n = pread(fd, buf, 4096, 0);
	close(fd);
	return n;
}

static long do_cat(char **w)
{
	int fd = open(w[1], O_RDONLY | O_CLOEXEC);
	long n, sum = 0;

	if (fd < 0)
		return -1;
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		sum += n;
	close(fd);
	return n < 0 ? -1 : sum;
}

static long do_stat(char **w)
{
	struct stat st;

	return lstat(w[1], &st) == 0 ? (long)st.st_size : -1;
}

static long do_statfs(char **w)
{
	struct statfs st;

	return statfs(w[1], &st) == 0 ? (long)st.f_bsize : -1;
}

/* As `ls -l`: names, then each one's attributes. */
static long do_list(char **w)
{
	DIR *d = opendir(w[1]);
	struct dirent *e;
	struct stat st;
	long n = 0;

	if (!d)
		return -1;
	for (errno = 0; (e = readdir(d)); n++)
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			return -1;
	int err = errno;
	closedir(d);
	errno = err;
	return err ? -1 : n;
}

static const struct {
	const char *name;
	long (*run)(char **words);
	size_t words;
} commands[] = {
	{"hold", do_hold, 3}, {"pread", do_pread, 4},	{"open", do_open, 2}, {"cat", do_cat, 2},
	{"stat", do_stat, 2}, {"statfs", do_statfs, 2}, {"list", do_list, 2},
};

static void answer(char **words, size_t n)
{
	struct timespec a, b;

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(words[0], commands[i].name) != 0 || n != commands[i].words)
			continue;
		clock_gettime(CLOCK_MONOTONIC, &a);
		long rc = commands[i].run(words);
		int err = errno;
		clock_gettime(CLOCK_MONOTONIC, &b);
		int64_t took_us = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
		if (rc < 0)
			printf("%" PRId64 " %s\n", took_us, strerrorname_np(err));
		else
			printf("%" PRId64 " %ld\n", took_us, rc);
		return;
	}
	printf("0 EINVAL\n");
}

int main(void)
{
	char line[8192];

	while (fgets(line, sizeof(line), stdin)) {
		char *words[WORDS_MAX], *save, *word;
		size_t n = 0;

		for (word = strtok_r(line, "\t\n", &save); word && n < WORDS_MAX; word = strtok_r(NULL, "\t\n", &save))
			words[n++] = word;
		if (n > 0)
			answer(words, n);
		fflush(stdout);
	}
	return 0;
}
