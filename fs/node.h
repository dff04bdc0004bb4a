/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/node.h - node ids: what the kernel calls an inode of the mount.
 *
 * A node is one *generation* of one name: (parent node, name, identity). When the origin file behind a name
 * changes, the name gets a new node; the old one lives on, superseded, until the kernel forgets it. So:
 *   1. A node's kind, size, times and bytes never change (a directory's times and link count may).
 *   2. A node id is never used twice.
 *   3. Looking a name up finds its newest generation only.
 *   4. A child holds a reference to its parent: a node's path can always be built.
 *
 * References: nlookup counts what the kernel holds (LOOKUP, READDIRPLUS; given back by FORGET), refs what
 * the daemon holds (children, handles, requests under way). When both are 0 the node goes; or, with kept_max, it is kept
 * with the youngest so many such nodes: what `immutable` needs to know a file by name that the kernel has forgotten
 * while the origin is away.
 *
 * Thread safety: one mutex (rank HFS_RANK_NODE) inside; every function, any thread. Never held over I/O.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include "cache/cache.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NODE_ROOT_ID 1

struct node_table;

struct node {
	uint64_t id;   /* const */
	uint32_t kind; /* const: mode & S_IFMT */
	/* guarded by the table's lock */
	struct node *parent; /* counted; NULL: root */
	struct node *id_next, *name_next;
	uint64_t nlookup;
	uint32_t refs;
	uint32_t name_hash;
	_Atomic bool is_superseded; /* out of the name table; written under the lock, also read without it, as a hint */
	bool is_kept;	    /* nobody holds it: in the list of the kept ones */
	struct node *kept_prev, *kept_next;
	/* const for files and symlinks; for directories guarded by the table's lock */
	struct origin_attr attr;
	uint64_t attr_ns; /* when the origin said so; guarded */
	/* guarded: set by the first open, cleared by the last release */
	struct cache_file *file; /* counted */
	uint32_t n_open;
	bool was_opened; /* counted for data_noopen.c */
	uint16_t name_len;
	char name[]; /* NUL-terminated, const */
};

int node_table_create(const struct origin_attr *root, uint64_t kept_max, struct node_table **ret_t);
/* Asserts that nothing but the kernel's own counts is left (handles and requests are gone). */
void node_table_destroy(struct node_table *t, struct cache *c);

/* +1 reference, NULL if the kernel made the number up. */
struct node *node_get(struct node_table *t, uint64_t id);
void node_ref(struct node_table *t, struct node *n);
void node_put(struct node_table *t, struct node *n);
void node_forget(struct node_table *t, uint64_t id, uint64_t nlookup);

/*
 * The node for this name with this identity: the present one, or a new generation (the old one becomes superseded and is
 * returned in *ret_old with a reference, else NULL). Returned with +1 reference, and with +1 nlookup if is_lookup.
 * NULL: no memory. For directories the attributes are brought up to date in place.
 */
struct node *node_bind(struct node_table *t, struct node *parent, const char *name, size_t name_len,
		       const struct origin_attr *attr, uint64_t now_ns, bool is_lookup, struct node **ret_old);
/* The present node of a name if it is known: +1 reference, +1 nlookup if is_lookup. */
struct node *node_find(struct node_table *t, struct node *parent, const char *name, size_t name_len, bool is_lookup);
/* The origin says the name is gone, or this is not its newest generation: out of the name table. */
void node_supersede(struct node_table *t, struct node *n);
/* A copy of the attributes, and their age. */
void node_attr_get(struct node_table *t, struct node *n, struct origin_attr *ret, uint64_t *ret_ns);
void node_attr_set(struct node_table *t, struct node *n, const struct origin_attr *attr, uint64_t now_ns);

/* Path relative to the root ("" for it), malloc'd; with `name` appended if not NULL. NULL: no memory. */
char *node_path(struct node_table *t, struct node *n, const char *name, size_t name_len);

/*
 * Count one open handle. The first one installs f (a reference passes to the node) and returns true; later ones keep
 * the node's own and return false, f is then still the caller's.
 */
bool node_open(struct node_table *t, struct node *n, struct cache_file *f, struct cache_file **ret_used);
/* The last one returns the reference to be put. */
struct cache_file *node_close(struct node_table *t, struct node *n);

/* The open generation of the node, +1 reference, or NULL. */
struct cache_file *node_file_ref(struct node_table *t, struct node *n);
/* node_get() and node_file_ref() in one. *ret_f NULL: no handle is open. */
struct node *node_get_open(struct node_table *t, uint64_t id, struct cache_file **ret_f);
/* True for the first call of a node. */
bool node_first_open(struct node_table *t, struct node *n);

struct node_stats {
	uint64_t nodes, lookups, superseded, bytes, kept;
};
void node_stats_get(struct node_table *t, struct node_stats *ret);

#endif
