/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/order.h - an order as the loader uses it: entries, batches (groups) and lists (epochs).
 *
 * Callers: order_parse.c builds it, loader.c reads it; after loading it never changes, so readers need no lock.
 * Memory: 24 B an entry, 16 B a group, and each distinct path once.
 *
 *	entries:  e0 e1 e2 | e3 e4 | e5 ...		sample_id = index here
 *	groups:   @batch 0 | 1     | 0 ...		first entry and number
 *	lists:    @epoch 0 ........| @epoch 1 ...	a run of entries and of groups; @repeat adds references to runs
 *
 * Invariants: group and list bounds never decrease; every path is relative, without "..", at most 4,095 bytes.
 */
#ifndef TOOLS_PRELOAD_ORDER_H
#define TOOLS_PRELOAD_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORDER_ENTRIES_MAX (16u << 20) /* as the daemon's default cap per stream */
#define ORDER_LISTS_MAX (1u << 20)
#define ORDER_PATH_MAX 4095u
#define ORDER_TO_END 0u /* len_bytes of an entry that goes to the end of its file */

struct order_entry {
	uint64_t off_bytes;
	uint64_t len_bytes; /* ORDER_TO_END, or the length */
	uint32_t path;
	uint32_t spare;
};

struct order_group {
	uint64_t first; /* entry */
	uint64_t number;
};

struct order_list {
	uint64_t label;
	uint64_t first, end;	   /* entries */
	uint64_t group, group_end; /* groups; equal: the list has no @batch marks */
};

/* Marks that are only passed on to the daemon: text before entry `at`. */
struct order_note {
	uint64_t at;
	char text[48];
};

struct order {
	struct order_entry *entries;
	uint64_t n_entries, cap_entries;
	struct order_group *groups;
	uint64_t n_groups, cap_groups;
	struct order_list *lists;
	uint64_t n_lists, cap_lists;
	struct order_note *notes;
	uint64_t n_notes, cap_notes;
	char *text; /* all paths, each ended by NUL */
	uint64_t text_bytes, cap_text;
	uint64_t *path_at; /* path -> place in text */
	uint64_t n_paths, cap_paths;
	uint32_t *hash; /* open addressing, path + 1; 0: free */
	uint64_t cap_hash;
	uint64_t start; /* entry that the first list begins with (@seek, @done) */
	/* while building */
	uint64_t next_number, next_label;
};

void order_init(struct order *o);
void order_finish(struct order *o);

/* The number of a path, interned. -ENOMEM, -ENAMETOOLONG, -EXDEV (absolute or ".."), -ENOENT (empty). */
int64_t order_path(struct order *o, const char *path, size_t len);
static inline const char *order_path_text(const struct order *o, uint32_t path)
{
	return o->text + o->path_at[path];
}

/* Append; -ENOMEM, -ENOSPC past a cap. */
int order_entry_add(struct order *o, uint32_t path, uint64_t off_bytes, uint64_t len_bytes) __attribute__((warn_unused_result));
int order_batch(struct order *o, const uint64_t *number) __attribute__((warn_unused_result)); /* NULL: next number */
int order_epoch(struct order *o, const uint64_t *label) __attribute__((warn_unused_result));  /* NULL: next label */
int order_repeat(struct order *o, uint64_t times) __attribute__((warn_unused_result));	      /* -EINVAL for 0 */
int order_note(struct order *o, const char *text) __attribute__((warn_unused_result));
void order_seek(struct order *o, uint64_t entry);
void order_done_batch(struct order *o, uint64_t number);
void order_clear(struct order *o); /* @cancel: forget the list so far, keep the paths */
/* After the last line: close the last list, clip `start`. */
void order_seal(struct order *o);

/* Every regular file below `dir` (relative to root_fd, "" = root), sorted by bytes, one entry each. */
int order_directory_add(struct order *o, int root_fd, const char *dir) __attribute__((warn_unused_result));

struct order_source {
	int root_fd;	   /* the mount: literal names are looked up here, directories are listed */
	const char *mount; /* its path: stripped from absolute paths */
};

/* Parse control-file text. Negative errno; `error` then holds "line:column: cause" (order_parse.c). */
int order_parse(struct order *o, const struct order_source *src, const char *text, size_t bytes, char *error,
		size_t error_size) __attribute__((warn_unused_result));

#endif
