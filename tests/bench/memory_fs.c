/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/bench/memory_fs.c - the least that a FUSE server can do for a read: answer it from memory that is there.
 *
 * memory_fs MOUNTPOINT BYTES [COUNT]: a mount with one file, "data", of BYTES bytes, or with COUNT files "f0", "f1" ... which are all those
 * bytes; ends with its unmount. Beside it figures.py puts what hintfs reaches from slots: nothing on the same kernel is faster than
 * this through READ requests of 1 MiB; and, of many small files, through a LOOKUP and a READ for each (no OPEN, no RELEASE).
 */
#define FUSE_USE_VERSION 317
#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FILE_INO 2
#define KEPT_S 3600.0

static char *data;
static uint64_t data_bytes, n_files; /* 0: just "data" */

static void fill(fuse_ino_t ino, struct stat *st)
{
	*st = (struct stat){ .st_ino = ino, .st_nlink = 1, .st_mode = ino >= FILE_INO ? S_IFREG | 0444 : S_IFDIR | 0555,
			     .st_size = ino >= FILE_INO ? (off_t)data_bytes : 0 };
}

static void op_init(void *arg, struct fuse_conn_info *conn)
{
	(void)arg;
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_WRITE);
	conn->max_readahead = 1u << 20;
}

/* 0: there is none of that name */
static fuse_ino_t ino_of(const char *name)
{
	char *end;

	if (n_files == 0)
		return strcmp(name, "data") ? 0 : FILE_INO;
	uint64_t i = name[0] == 'f' && name[1] ? strtoull(name + 1, &end, 10) : n_files;
	return i < n_files && *end == '\0' ? FILE_INO + i : 0;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e = { .ino = ino_of(name), .attr_timeout = KEPT_S, .entry_timeout = KEPT_S };

	if (parent != FUSE_ROOT_ID || !e.ino) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	fill(e.ino, &e.attr);
	fuse_reply_entry(req, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	fill(ino, &st);
	fuse_reply_attr(req, &st, KEPT_S);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	if (n_files > 0) {
		fuse_reply_err(req, ENOSYS); /* the kernel asks no more */
		return;
	}
	fi->keep_cache = 1;
	fi->noflush = 1;
	fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	uint64_t at = (uint64_t)off < data_bytes ? (uint64_t)off : data_bytes;

	(void)ino;
	(void)fi;
	fuse_reply_buf(req, data + at, size < data_bytes - at ? size : (size_t)(data_bytes - at));
}

static const struct fuse_lowlevel_ops OPS = {
	.init = op_init, .lookup = op_lookup, .getattr = op_getattr, .open = op_open, .read = op_read
};

int main(int argc, char **argv)
{
	char *words[] = { (char *)"memory_fs", (char *)"-oro,subtype=memory_fs", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	struct fuse_session *se;

	if (argc != 3 && argc != 4)
		return 2;
	data_bytes = strtoull(argv[2], NULL, 10);
	n_files = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
	data = mmap(NULL, data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	se = fuse_session_new(&args, &OPS, sizeof(OPS), NULL);
	if (data == MAP_FAILED || !se)
		return 1;
	memset(data, 1, data_bytes); /* touched, and nobody's zero page */
	if (fuse_session_mount(se, argv[1]) != 0)
		return 1;
	fuse_session_loop_mt(se, NULL);
	fuse_session_destroy(se);
	return 0;
}
