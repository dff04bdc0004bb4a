/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/origin_i.h - shared by origin.c and origin_*.c only.
 */
#ifndef CACHE_ORIGIN_I_H
#define CACHE_ORIGIN_I_H

#include "cache/base/sync.h"
#include "cache/io.h"
#include "cache/origin.h"

#include <stdbool.h>

#include <stdatomic.h>

#define ORIGIN_DEVS_MAX 64
#define ORIGIN_LINKS_MAX 40

struct origin {
	/* const after create */
	const struct cache_io *io; /* borrowed for life */
	uint64_t root_dev;	   /* as everybody is told; real_dev is given this number */
	char *source;		   /* owned; NULL: the root was open from the start */
	bool (*is_it)(void *ctx);  /* what lies at source now: is it the dataset meant? */
	void *is_it_ctx;
	origin_run_fn run; /* set before the first open; NULL: no other threads */
	void *run_ctx;

	_Atomic uint64_t forced_ns; /* what a forced look takes, of late; 0: not known */
	_Atomic int root_fd; /* -1: not yet; set once */
	/* set before root_fd */
	uint64_t real_dev;
	bool has_openat2;

	struct hfs_mutex lock; /* rank ORIGIN: the table below, a few lines, no I/O */
	struct {
		uint64_t dev;
		bool is_nfs;
	} devs[ORIGIN_DEVS_MAX]; /* what file system a device is: mounts below the root are followed */
	unsigned n_devs;
};

/* The root's descriptor, opened now if it was not yet; -EHOSTUNREACH: it is not there. */
int origin_root(struct origin *o);
/* Open path beneath the root, no component a symbolic link. flags: O_PATH or O_RDONLY and what goes with it;
 * with O_PATH the last component may be a link and is not followed. Owned descriptor or negative errno. */
int origin_path_open(struct origin *o, const char *path, int flags);
/* 0, -ENAMETOOLONG (a component), -EXDEV (absolute or with a ".." component). */
int origin_path_check(const char *path);
/* O_PATH descriptor of path with fresh names above it: on NFS a forced look at the parent comes first. */
int origin_path_open_fresh(struct origin *o, const char *path);
/* Is what fd stands for on NFS? No round trip once its device is known. */
bool origin_is_on_nfs(struct origin *o, int fd);
int origin_fd_stat(struct origin *o, int fd, int flags, struct origin_attr *ret);
void origin_fd_close(struct origin *o, int fd);

/* origin_aside.c: a forced look at fd in another thread; NULL: not worth it. fd stays open until the end. */
struct aside *origin_aside_begin(struct origin *o, int fd);
/* What it saw, waited for. -ECANCELED: there is none, or it has not begun. */
int origin_aside_end(struct aside *a, struct origin_attr *ret);
void origin_aside_learn(struct origin *o, uint64_t took_ns); /* a forced look took so long */

#endif
