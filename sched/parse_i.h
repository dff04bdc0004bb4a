/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/parse_i.h - shared by the parse*.c files only.
 */
#ifndef SCHED_PARSE_I_H
#define SCHED_PARSE_I_H

#include "sched/parse.h"

/* A line that begins with '@'. */
int parse_directive(const char *line, size_t len, struct parse_line *ret_line, struct parse_error *ret_err);

/* The JSON string at the start of the line, decoded into out (at least len bytes). *ret_used: bytes of the line it
 * took. */
int parse_json_string(const char *line, size_t len, char *out, size_t *ret_len, size_t *ret_used,
		      struct parse_error *ret_err);

#endif
