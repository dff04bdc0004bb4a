/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_getdents BUFFER-BYTES DIR: all names of DIR by raw getdents64 with a buffer of this size, each ended by NUL, in the
 * order and as often as the kernel gives them. Called by test_differential.py. Exit 0, or the errno.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct linux_dirent64: ino, off, reclen u16, type u8, name */
#define RECLEN_AT 16
#define NAME_AT 19

static void print_names(const unsigned char *buf, size_t n)
{
	uint16_t reclen;

	for (size_t at = 0; at < n; at += reclen) {
		const char *name = (const char *)buf + at + NAME_AT;

		memcpy(&reclen, buf + at + RECLEN_AT, sizeof(reclen));
		fwrite(name, 1, strlen(name) + 1, stdout);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return EINVAL;
	size_t cap = strtoul(argv[1], NULL, 10);
	unsigned char *buf = malloc(cap);
	int fd = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;

	if (fd < 0 || !buf)
		return errno;
	while ((n = syscall(SYS_getdents64, fd, buf, cap)) > 0)
		print_names(buf, (size_t)n);
	return n < 0 ? errno : fflush(stdout) ? errno : 0;
}
