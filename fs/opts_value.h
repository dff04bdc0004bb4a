/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/opts_value.h - values of options: sizes, rates, seconds, modes, users, groups; the nearest known name; how much memory
 * this process may have. Called by fs/opts.c only. Pure but for the user database and /proc.
 *
 * Every parser takes the whole text or refuses it: 0, or -EINVAL (not of that form), -ERANGE (form right, value not
 * representable), -ENOENT (no such user or group). *ret is written on success only.
 */
#ifndef FS_OPTS_VALUE_H
#define FS_OPTS_VALUE_H

#include "cache/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Decimal number with K, M, G or T (powers of 1024, either case, "KiB" and "B" too). */
HFS_MUST_CHECK int opts_value_size(const char *text, uint64_t *ret_bytes);
/* The same, "/s" may follow. */
HFS_MUST_CHECK int opts_value_rate(const char *text, uint64_t *ret_bytes_per_s);
/* Decimal seconds, a fraction and a final "s" allowed; 0 ... 1e9. */
HFS_MUST_CHECK int opts_value_seconds(const char *text, double *ret_s);
/* 0 ... 99, a final "%" allowed. */
HFS_MUST_CHECK int opts_value_percent(const char *text, uint32_t *ret_pct);
/* Octal, within 0666. */
HFS_MUST_CHECK int opts_value_mode(const char *text, mode_t *ret_mode);
/* Name or number. */
HFS_MUST_CHECK int opts_value_uid(const char *text, uid_t *ret_uid);
HFS_MUST_CHECK int opts_value_gid(const char *text, gid_t *ret_gid);

/* As people write it: 256M, 1536K, 4097. buf of 24 bytes is enough; returns buf. */
const char *opts_value_size_text(uint64_t bytes, char *buf, size_t cap);

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; '_' is '-'. Words over 63 bytes: SIZE_MAX. */
size_t opts_value_distance(const char *a, const char *b);

/* RAM, or the lowest cgroup (v1, v2) limit above this process if that is less. 0: unknown. */
uint64_t opts_value_memory_limit(void);

#endif
