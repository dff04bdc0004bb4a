/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/opts.h - the command line: `hintfs [options] SOURCE MOUNTPOINT`, and the same as `-o` list.
 *
 * Long options and -o names are one table (fs/opts.c). Unknown names are refused with the nearest known one.
 */
#ifndef FS_OPTS_H
#define FS_OPTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum hfs_exit { HFS_EXIT_OK = 0, HFS_EXIT_USAGE = 1, HFS_EXIT_SYSTEM = 2, HFS_EXIT_MOUNT = 32 };

struct hfs_opts {
	char *source;	  /* absolute, symlinks resolved; owned */
	char *mountpoint; /* absolute, symlinks resolved; owned */
	uint64_t memory_bytes;
	uint64_t chunk_bytes;
	bool is_immutable, is_nocto;
	double revalidate_s;	 /* attribute and entry lifetime; immutable: 86,400 */
	double origin_timeout_s; /* 0: wait */
	char *ctl_dir;		 /* where the control session is mounted; owned; filled in by default rule */
	bool is_ctl_default;	 /* by that rule */
	uid_t ctl_uid;
	gid_t ctl_gid;
	mode_t ctl_mode; /* of control files */
	bool is_allow_other, is_noexec;
	char *log; /* stderr | syslog | FILE; owned */
	uint64_t prefetch_limit_bytes_per_s; /* 0: none */
	char *cache_dir; /* disk tier; owned; NULL: none */
	uint64_t cache_size_bytes;
	uint32_t cache_free_pct; /* of blocks and of inodes there */
	bool is_foreground, is_debug;
};

/*
 * Parse argv into *ret (zeroed by the callee). 0: go on. 1: everything is said and done (-h, -V): exit 0.
 * < 0: a message naming object, cause and cure went to err; exit HFS_EXIT_USAGE.
 * Resolves paths, fills defaults (memory: a quarter of RAM or of the cgroup limit, at most 8 GiB), checks budgets and
 * that the numbers fit together. Does not touch the mount.
 */
int hfs_opts_parse(int argc, char **argv, struct hfs_opts *ret, FILE *out, FILE *err);
void hfs_opts_finish(struct hfs_opts *o);

#endif
