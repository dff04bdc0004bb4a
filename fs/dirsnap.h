/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/dirsnap.h - one listing of a directory, frozen: what readdir of one opendir walks through.
 *
 * Cookies are positions in the snapshot, so they stay right whatever happens to the directory meanwhile. A snapshot is
 * const after dirsnap_finish_list(), counted, and shared by all opendirs that found the same listing fresh enough; the last one of a
 * directory is kept (least recently used go first) to answer `ls` when the origin hangs.
 *
 * Budget: DIRSNAP_BYTES_MAX of memory in all. What is over it lives in an unlinked temporary file, mapped: slower, never wrong.
 *
 * Thread safety: the table has a mutex inside (rank HFS_RANK_LEAF); a snapshot needs none.
 */
#ifndef FS_DIRSNAP_H
#define FS_DIRSNAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIRSNAP_BYTES_MAX (64ull << 20)

struct dirsnap_table;
struct dirsnap;

struct dirsnap_entry {
	const char *name; /* borrowed from the snapshot, NUL-terminated */
	uint16_t len;
	uint8_t type; /* DT_* */
	uint64_t ino;
};

int dirsnap_table_create(struct dirsnap_table **ret_t);
void dirsnap_table_destroy(struct dirsnap_table *t);

/* Build: add entries in order, then publish under the directory's node id, or drop with dirsnap_put(). */
int dirsnap_create(struct dirsnap_table *t, uint64_t node_id, struct dirsnap **ret_s);
int dirsnap_add(struct dirsnap *s, const char *name, size_t len, uint64_t ino, unsigned type);
int dirsnap_publish(struct dirsnap *s, uint64_t now_ns);
void dirsnap_put(struct dirsnap *s); /* NULL is fine */

/* The last published snapshot of the node, +1 reference, or NULL. */
struct dirsnap *dirsnap_find(struct dirsnap_table *t, uint64_t node_id, uint64_t *ret_ns);
size_t dirsnap_count(const struct dirsnap *s);
void dirsnap_entry(const struct dirsnap *s, size_t i, struct dirsnap_entry *ret);
uint64_t dirsnap_bytes(struct dirsnap_table *t); /* memory in use */

#endif
