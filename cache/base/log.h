/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/log.h - one line a trouble: object, cause, consequence, cure. Process-wide, set up once at start.
 *
 * 1. A line is written whole (one write or one syslog call); bytes that are not printable ASCII or well-formed
 *    UTF-8 appear as \xNN, so a file name cannot forge a line.
 * 2. hfs_log_limited() lets 10 lines a second through per call site and then says how many it kept back.
 * 3. A destination that takes nothing now (a full pipe, a stopped terminal) costs lines, never time: readers wait for whoever
 *    logs. The next line that goes through says how many were lost.
 * Before hfs_log_open() lines go to stderr. Any thread; a file or syslog may be slow, so not under a lock.
 */
#ifndef CACHE_BASE_LOG_H
#define CACHE_BASE_LOG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum hfs_log_level { HFS_LOG_ERROR, HFS_LOG_WARNING, HFS_LOG_INFO, HFS_LOG_DEBUG };

/* dest: "stderr", "syslog" or the path of a file to append to. 0 or negative errno (nothing changed). */
int hfs_log_open(const char *dest, enum hfs_log_level max) __attribute__((warn_unused_result));
/* Opens the file as hfs_log_open() would: a descriptor or negative errno. Never waits for the reader of a FIFO. */
int hfs_log_open_file(const char *path) __attribute__((warn_unused_result));
void hfs_log_close(void); /* back to stderr */

void hfs_log(enum hfs_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Zero is a good start. Private to log.c. */
struct hfs_log_limit {
	uint64_t second;
	uint32_t n, suppressed;
};
void hfs_log_limited_at(struct hfs_log_limit *l, enum hfs_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define hfs_log_limited(level, ...)                                    \
	do {                                                           \
		static struct hfs_log_limit hfs_limit_;                \
		hfs_log_limited_at(&hfs_limit_, (level), __VA_ARGS__); \
	} while (0)

/* Escapes src as rule 1 says; always terminated, cut at cap. Returns buf. */
char *hfs_log_escape(char *buf, size_t cap, const char *src, size_t len);

/* One message of a command, for a person at a terminal: escaped as a line of the log is, but for the LFs at its end. Not cut. */
void hfs_say(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
