/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/disk_faults.c - see disk.h: calls that fail or hang, power cuts, what others do to the files.
 */
#include "tests/fault/tier/disk.h"

#include "cache/base/time.h"
#include "tests/fault/tier/disk_i.h"
#include "tests/fault/tier/rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- faults ---- */

void disk_fail_reset(struct disk *d)
{
	hfs_mutex_lock(&d->lock);
	d->calls = d->fail_at = d->off_at = d->failed = 0;
	d->prob = 0;
	d->is_short = false;
	hfs_mutex_unlock(&d->lock);
}

void disk_fail_nth(struct disk *d, uint64_t nth, int err, bool is_sticky)
{
	hfs_mutex_lock(&d->lock);
	d->fail_at = d->calls + nth;
	d->fail_err = err;
	d->is_sticky = is_sticky;
	hfs_mutex_unlock(&d->lock);
}

void disk_fail_prob(struct disk *d, double p, int err, uint64_t seed)
{
	hfs_mutex_lock(&d->lock);
	d->prob = p;
	d->prob_err = err;
	d->rng = seed;
	hfs_mutex_unlock(&d->lock);
}

void disk_short(struct disk *d, bool is_on)
{
	hfs_mutex_lock(&d->lock);
	d->is_short = is_on;
	hfs_mutex_unlock(&d->lock);
}

#define GETTER(type, name, expr)                    \
	type name(struct disk *d)                   \
	{                                           \
		type x;                             \
                                                    \
		hfs_mutex_lock(&d->lock);           \
		x = (expr);                         \
		hfs_mutex_unlock(&d->lock);         \
		return x;                           \
	}
GETTER(uint64_t, disk_calls, d->calls)
GETTER(uint64_t, disk_failed, d->failed)
GETTER(uint64_t, disk_used, d->used - d->other_root->blocks * BLOCK)

uint64_t disk_used_max(struct disk *d, bool is_reset)
{
	uint64_t x;

	hfs_mutex_lock(&d->lock);
	x = d->used_max - d->other_root->blocks * BLOCK;
	if (is_reset)
		d->used_max = d->used;
	hfs_mutex_unlock(&d->lock);
	return x;
}

uint32_t disk_fds(struct disk *d)
{
	uint32_t n = 0;

	hfs_mutex_lock(&d->lock);
	for (int i = 0; i < FDS_MAX; i++)
		n += d->fds[i].node != NULL;
	hfs_mutex_unlock(&d->lock);
	return n;
}

void disk_resize(struct disk *d, uint64_t bytes, uint32_t inodes)
{
	hfs_mutex_lock(&d->lock);
	d->bytes = bytes;
	d->inodes = inodes;
	hfs_mutex_unlock(&d->lock);
}

void disk_hang(struct disk *d, bool is_on)
{
	hfs_mutex_lock(&d->lock);
	d->is_hanging = is_on;
	hfs_cond_broadcast(&d->changed);
	hfs_mutex_unlock(&d->lock);
}

void disk_hang_listing(struct disk *d, bool is_on)
{
	hfs_mutex_lock(&d->lock);
	d->is_hanging_listing = is_on;
	hfs_cond_broadcast(&d->changed);
	hfs_mutex_unlock(&d->lock);
}

uint32_t disk_wait_hung(struct disk *d, uint32_t n, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	uint32_t got;

	hfs_mutex_lock(&d->lock);
	while (d->n_hung < n && hfs_cond_wait_until(&d->changed, &d->lock, deadline_ns))
		;
	got = d->n_hung;
	hfs_mutex_unlock(&d->lock);
	return got;
}

/* ---- power ---- */

void disk_power_off(struct disk *d)
{
	hfs_mutex_lock(&d->lock);
	d->is_off = true;
	hfs_mutex_unlock(&d->lock);
}

void disk_power_off_at(struct disk *d, uint64_t nth)
{
	hfs_mutex_lock(&d->lock);
	d->off_at = d->calls + nth;
	hfs_mutex_unlock(&d->lock);
}

static void cut_write(struct bytes *b, const struct logged *l, uint64_t mood, uint64_t *rng)
{
	uint64_t end = l->off + l->len;
	uint8_t junk[512];

	for (uint64_t from = l->off; from < end;) {
		uint64_t to = (from / 512 + 1) * 512;
		uint64_t dice = rig_next(rng) % 16;

		if (to > end)
			to = end;
		/* mood 0: all kept; 1: all dropped; else sector by sector, 1 in 16 garbled */
		if (mood == 0 || (mood > 1 && dice < 9)) {
			disk_bytes_write(b, l->data + (from - l->off), to - from, from);
		} else if (mood > 1 && dice == 15) {
			for (size_t i = 0; i < sizeof(junk); i++)
				junk[i] = (uint8_t)rig_next(rng);
			disk_bytes_write(b, junk, to - from, from);
		}
		from = to;
	}
}

static void cut_file(struct node *n, uint64_t *rng)
{
	bool is_all = rig_next(rng) % 4 == 0;

	for (struct logged *l = n->log; l != NULL; l = l->next) {
		uint64_t mood = is_all ? 0 : rig_next(rng) % 4;

		if (l->kind == WROTE)
			cut_write(&n->synced, l, mood, rng);
		else if (l->kind == PUNCHED && mood != 1)
			disk_bytes_punch(&n->synced, l->off, l->len);
		else if (l->kind == RESIZED && mood != 1)
			disk_bytes_resize(&n->synced, l->off);
	}
	disk_log_drop(n);
	disk_bytes_copy(&n->now, &n->synced);
	n->is_new = false;
}

static void cut_dir(struct disk *d, struct node *top, struct node *dir, uint64_t *rng)
{
	struct name **at_name = &dir->names, *e;

	while ((e = *at_name) != NULL) {
		bool is_kept = e->is_gone ? e->is_durable && rig_next(rng) % 2 == 0 : e->is_durable || rig_next(rng) % 2 == 0;

		if (is_kept && e->node != NULL) {
			for (struct name *x = dir->names; x != e; x = x->next)
				is_kept = is_kept && strcmp(x->text, e->text) != 0; /* one of a name */
		}
		if (e->node == NULL)
			is_kept = false;
		if (!is_kept) {
			struct node *n = e->node;

			*at_name = e->next;
			free(e);
			if (n != NULL && !n->is_dir) {
				disk_forget_node(top, n);
				disk_node_free(d, n);
			}
			continue;
		}
		e->is_gone = false;
		e->is_durable = true;
		e->node->n_links = 1;
		e->node->is_unlinked = false;
		if (e->node->is_dir)
			cut_dir(d, top, e->node, rng);
		else
			cut_file(e->node, rng);
		at_name = &e->next;
	}
}

static void recount(struct disk *d, struct node *dir)
{
	d->used += (uint64_t)BLOCK;
	d->used_inodes++;
	dir->blocks = 1;
	for (struct name *e = dir->names; e != NULL; e = e->next) {
		if (e->node->is_dir) {
			recount(d, e->node);
			continue;
		}
		e->node->blocks = disk_bytes_blocks(&e->node->now);
		d->used += e->node->blocks * BLOCK;
		d->used_inodes++;
	}
}

void disk_power_cut(struct disk *d, uint64_t seed)
{
	hfs_mutex_lock(&d->lock);
	for (int i = 0; i < FDS_MAX; i++)
		d->fds[i].node = NULL;
	cut_dir(d, d->root, d->root, &seed);
	d->used = (uint64_t)BLOCK; /* the other root */
	d->used_inodes = 1;
	recount(d, d->root);
	d->used_max = d->used;
	d->is_off = false;
	d->off_at = 0;
	hfs_mutex_unlock(&d->lock);
}

/* ---- mischief ---- */

static struct name *nth_name(struct node *dir, const char *ending, uint32_t *n)
{
	size_t len = strlen(ending);
	struct name *found;

	for (struct name *e = dir->names; e != NULL; e = e->next) {
		if (e->is_gone)
			continue;
		if (e->node->is_dir) {
			found = nth_name(e->node, ending, n);
			if (found != NULL)
				return found;
		} else if (strlen(e->text) >= len && strcmp(e->text + strlen(e->text) - len, ending) == 0 && (*n)-- == 0) {
			return e;
		}
	}
	return NULL;
}

bool disk_file(struct disk *d, const char *ending, uint32_t n, struct disk_file *ret)
{
	struct name *e;

	hfs_mutex_lock(&d->lock);
	e = nth_name(d->root, ending, &n);
	if (e != NULL)
		*ret = (struct disk_file){.data = e->node->now.p, .size = e->node->now.size, .name = e->text};
	hfs_mutex_unlock(&d->lock);
	return e != NULL;
}

void disk_swap(struct disk *d, const char *ending, uint32_t a, uint32_t b)
{
	struct name *x, *y;
	struct bytes t;

	hfs_mutex_lock(&d->lock);
	x = nth_name(d->root, ending, &a);
	y = nth_name(d->root, ending, &b);
	if (x != NULL && y != NULL) {
		t = x->node->now;
		x->node->now = y->node->now;
		y->node->now = t;
		(void)disk_node_count(d, x->node);
		(void)disk_node_count(d, y->node);
	}
	hfs_mutex_unlock(&d->lock);
}

void disk_cut(struct disk *d, const char *ending, uint32_t n, uint64_t size)
{
	struct name *e;

	hfs_mutex_lock(&d->lock);
	e = nth_name(d->root, ending, &n);
	rig_check(e != NULL, "a file to cut");
	disk_bytes_resize(&e->node->now, size);
	(void)disk_node_count(d, e->node);
	hfs_mutex_unlock(&d->lock);
}

bool disk_remove(struct disk *d, const char *ending, uint32_t n)
{
	struct name *e;

	hfs_mutex_lock(&d->lock);
	e = nth_name(d->root, ending, &n);
	if (e != NULL) {
		e->is_gone = true;
		e->node->n_links--;
		d->used -= e->node->blocks * BLOCK;
		d->used_inodes--;
		e->node->blocks = 0;
		e->node->is_unlinked = true;
	}
	hfs_mutex_unlock(&d->lock);
	return e != NULL;
}

void disk_replace_root(struct disk *d, bool is_back)
{
	hfs_mutex_lock(&d->lock);
	d->is_replaced = !is_back;
	hfs_mutex_unlock(&d->lock);
}
