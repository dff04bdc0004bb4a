/* SPDX-License-Identifier: Apache-2.0 */
/* tests/fault/tier/disk_i.h - shared by disk.c (the calls) and disk_faults.c (what goes wrong with them). */
#ifndef TESTS_FAULT_TIER_DISK_I_H
#define TESTS_FAULT_TIER_DISK_I_H

#include "cache/base/sync.h"
#include "cache/tier_io.h"
#include "tests/fault/tier/disk.h"

#include <stddef.h>

#define BLOCK 4096
#define FDS_MAX 4096
#define FD_BASE 100000

enum write_kind { WROTE, PUNCHED, RESIZED };

struct logged {
	struct logged *next;
	enum write_kind kind;
	uint64_t off, len;
	uint8_t data[];
};

struct bytes {
	uint8_t *p;
	uint8_t *has; /* a flag a block */
	uint64_t size, cap;
};

struct node {
	uint64_t ino, blocks;
	bool is_dir;
	uint32_t mode, n_fds;
	struct bytes now, synced;
	struct logged *log, **log_last;
	bool is_new; /* never synced */
	bool is_unlinked; /* open perhaps, but counted no longer */
	struct name *names;
	uint32_t n_links;
};

struct name { /* in a directory */
	struct name *next;
	uint64_t seq;
	struct node *node;
	bool is_gone, is_durable; /* as seen now; as the disk has it */
	char text[64];
};

struct open_file {
	struct node *node;
	uint64_t dir_seq;
};

struct disk {
	struct tier_io io;
	struct hfs_mutex lock;
	struct hfs_cond changed;
	struct node *root, *other_root;
	struct open_file fds[FDS_MAX];
	uint64_t bytes, used, used_max, ino, seq, calls, fail_at, off_at, failed;
	uint32_t inodes, used_inodes, n_hung;
	int fail_err, prob_err;
	double prob;
	uint64_t rng;
	bool is_sticky, is_short, is_hanging, is_hanging_listing, is_off, is_replaced;
};

void disk_bytes_resize(struct bytes *b, uint64_t size);
void disk_bytes_write(struct bytes *b, const void *data, uint64_t len, uint64_t off);
void disk_bytes_punch(struct bytes *b, uint64_t off, uint64_t len);
uint64_t disk_bytes_blocks(const struct bytes *b);
void disk_bytes_copy(struct bytes *to, const struct bytes *from);
void disk_log_drop(struct node *n);
void disk_node_free(struct disk *d, struct node *n);
bool disk_node_count(struct disk *d, struct node *n);
void disk_forget_node(struct node *dir, const struct node *n);

#endif
