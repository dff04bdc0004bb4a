/* SPDX-License-Identifier: Apache-2.0
 *
 * The ways by which a program can read a file, behind one function. Used by the
 * program `pattern`.
 */
#ifndef HFS_TESTS_PATTERN_READ_H
#define HFS_TESTS_PATTERN_READ_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pattern_reader;

/* NULL-terminated: read pread readv mmap-shared … */
extern const char *const pattern_read_modes[];

/* Opens path for reading by `mode` in pieces of at most max_block bytes. 0, or
 * negative errno; -ENOSYS, -EPERM: this kernel or sandbox lacks the way. */
int pattern_reader_open(const char *path, const char *mode, size_t max_block,
			struct pattern_reader **ret_reader);
/* Reads into buf, which is aligned to 4096; bytes as the call gave them, 0 at the
 * end of the file, or negative errno. -EFAULT: a mapping raised SIGBUS. */
ssize_t pattern_reader_get(struct pattern_reader *pr, void *buf, size_t len,
			   uint64_t offset);
void pattern_reader_close(struct pattern_reader *pr);
/* Bytes of the file when it was opened. */
uint64_t pattern_reader_size(const struct pattern_reader *pr);
/* What was not as asked, e.g. a fallback that the kernel forces; or NULL. */
const char *pattern_reader_note(const struct pattern_reader *pr);

#endif
