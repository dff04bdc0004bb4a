/* SPDX-License-Identifier: Apache-2.0
 *
 * FUSE callbacks of slowfs and the work of a request. The callbacks are called
 * by the thread that leads and only describe the request; slow_ops_run() is called by
 * slowfs_queue.c, in any thread, when the request is due.
 *
 * The process stands in the source directory: paths are relative to it.
 *
 * Invariant: whoever takes a slow_req answers it exactly once and frees it, after
 * its log record is complete: who has got the answer finds it in the log.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define STATX_WANTED (STATX_BASIC_STATS | STATX_BTIME)

static struct slowfs *slowfs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* ---- answers ---- */

static void done(struct slowfs *sf, struct slow_req *r, uint64_t returned, int err)
{
	slow_log_end(&sf->log, r, returned, err);
}

void slow_ops_fail(struct slowfs *sf, struct slow_req *r, int err)
{
	done(sf, r, 0, err);
	fuse_reply_err(r->req, err);
	free(r);
}

static double seconds(uint64_t ns)
{
	return (double)ns / (double)SLOW_NS_PER_S;
}

static double attr_seconds(struct slowfs *sf, mode_t mode)
{
	return seconds(S_ISDIR(mode) ? atomic_load(&sf->dir_ns) : atomic_load(&sf->attr_ns));
}

static double entry_seconds(struct slowfs *sf, mode_t mode)
{
	return seconds(S_ISDIR(mode) ? atomic_load(&sf->dir_ns) : atomic_load(&sf->entry_ns));
}

/* ---- the work of each operation: 0 and answered, or an errno ---- */

static int run_lookup(struct slowfs *sf, struct slow_req *r)
{
	struct fuse_entry_param e = { 0 };
	struct statx stx;

	if (statx(AT_FDCWD, r->path->text, AT_SYMLINK_NOFOLLOW, STATX_WANTED, &stx) < 0)
		return errno;
	struct slow_node *n = slow_nodes_find(&sf->nodes, r->path->text, &stx);
	if (!n)
		return ENOMEM;
	slow_node_tell(&sf->nodes, n, &stx);
	slow_stat_from_statx(&stx, &e.attr);
	e.ino = slow_nodes_id(&sf->nodes, n);
	e.generation = n->generation;
	e.attr_timeout = attr_seconds(sf, stx.stx_mode);
	e.entry_timeout = entry_seconds(sf, stx.stx_mode);
	done(sf, r, 0, 0);
	fuse_reply_entry(r->req, &e);
	return 0;
}

/* The inode of the node, through an open handle if there is one: that finds it
 * when its name is gone. A name that shows another inode is ESTALE, as on NFS. */
static int stat_node(struct slowfs *sf, struct slow_node *n, struct statx *ret_stx)
{
	struct slow_handle *h = slow_nodes_borrow(&sf->nodes, n);
	int rc;

	if (h) {
		rc = statx(h->fd, "", AT_EMPTY_PATH, STATX_WANTED, ret_stx) < 0 ? errno : 0;
		slow_handle_put(&sf->nodes, h);
		return rc;
	}
	rc = statx(AT_FDCWD, n->path->text, AT_SYMLINK_NOFOLLOW, STATX_WANTED, ret_stx) < 0
		     ? errno : 0;
	if (rc == ENOENT || rc == ENOTDIR || (!rc && !slow_node_is(n, ret_stx)))
		return ESTALE;
	return rc;
}

static int run_getattr(struct slowfs *sf, struct slow_req *r)
{
	struct statx stx;
	struct stat st;
	int err = stat_node(sf, r->node, &stx);

	if (err)
		return err;
	slow_node_tell(&sf->nodes, r->node, &stx);
	slow_stat_from_statx(&stx, &st);
	done(sf, r, 0, 0);
	fuse_reply_attr(r->req, &st, attr_seconds(sf, stx.stx_mode));
	return 0;
}

static void close_handle(struct slowfs *sf, struct slow_handle *h)
{
	atomic_fetch_sub(&sf->log.handles, 1);
	slow_nodes_detach(&sf->nodes, h);
}

/* Close-to-open: an open sees the present file. The kernel's attributes are
 * dropped when they are old; a replaced file is ESTALE, upon which the VFS looks
 * the name up again. */
static int run_open(struct slowfs *sf, struct slow_req *r)
{
	struct statx stx;
	bool is_dir = r->op == SLOW_OPENDIR;
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	int fd = open(r->path->text, flags | (is_dir ? O_DIRECTORY : 0));

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? ESTALE : errno;
	struct slow_handle *h = calloc(1, sizeof(*h));
	int err = !h ? ENOMEM
		  : statx(fd, "", AT_EMPTY_PATH, STATX_WANTED, &stx) < 0 ? errno
		  : slow_node_is(r->node, &stx) ? 0 : ESTALE;
	if (!err && is_dir && !(h->dir = fdopendir(fd)))
		err = errno;
	if (err) {
		close(fd);
		free(h);
		return err;
	}
	h->fd = fd;
	pthread_mutex_init(&h->dir_lock, NULL);
	slow_nodes_attach(&sf->nodes, r->node, h);
	atomic_fetch_add(&sf->log.handles, 1);
	r->fi.fh = (uintptr_t)h;
	if (!is_dir) {
		bool is_changed = slow_node_tell(&sf->nodes, r->node, &stx);
		r->fi.noflush = 1;
		r->fi.direct_io = !sf->has_page_cache;
		r->fi.keep_cache = sf->has_page_cache && slow_node_keeps(&sf->nodes, h);
		if (is_changed) /* attributes only: takes no page lock, cannot wait for us */
			fuse_lowlevel_notify_inval_inode(
				sf->session, slow_nodes_id(&sf->nodes, r->node), -1, 0);
	}
	done(sf, r, 0, 0);
	if (fuse_reply_open(r->req, &r->fi) == -ENOENT)
		close_handle(sf, h); /* the opener was killed: no RELEASE will come */
	return 0;
}

static char *thread_buffer(size_t size)
{
	static _Thread_local char *buf;
	static _Thread_local size_t cap;

	if (size > cap) {
		char *bigger = realloc(buf, size);
		if (!bigger)
			return NULL;
		buf = bigger;
		cap = size;
	}
	return buf;
}

static int run_read(struct slowfs *sf, struct slow_req *r, uint64_t limit)
{
	uint64_t want = r->size < limit ? r->size : limit, got = 0;
	char *buf = thread_buffer(r->size);

	if (!buf)
		return ENOMEM;
	slow_node_opened(&sf->nodes, r->handle);
	while (got < want) {
		ssize_t n = pread(r->handle->fd, buf + got, want - got,
				  (off_t)(r->offset + got));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		if (n == 0)
			break;
		got += (uint64_t)n;
	}
	done(sf, r, got, 0);
	fuse_reply_buf(r->req, buf, got);
	return 0;
}

static struct dirent *next_entry(struct slow_handle *h)
{
	struct dirent *d = h->held;

	h->held = NULL;
	return d ? d : readdir(h->dir);
}

static int fill_dir_locked(struct slow_req *r, char *buf, size_t *ret_used)
{
	struct slow_handle *h = r->handle;
	struct dirent *d;

	if ((off_t)r->offset != h->dir_pos || !r->offset) {
		h->held = NULL;
		seekdir(h->dir, (long)r->offset);
		h->dir_pos = (off_t)r->offset;
	}
	for (errno = 0; (d = next_entry(h)); h->dir_pos = d->d_off) {
		struct stat st = { .st_ino = d->d_ino, .st_mode = DTTOIF(d->d_type) };
		size_t need = fuse_add_direntry(r->req, buf + *ret_used, r->size - *ret_used,
						d->d_name, &st, d->d_off);
		if (need > r->size - *ret_used) {
			h->held = d;
			return 0;
		}
		*ret_used += need;
	}
	return errno;
}

static int run_readdir(struct slowfs *sf, struct slow_req *r)
{
	char *buf = thread_buffer(r->size);
	size_t used = 0;

	if (!buf)
		return ENOMEM;
	pthread_mutex_lock(&r->handle->dir_lock);
	int err = fill_dir_locked(r, buf, &used);
	pthread_mutex_unlock(&r->handle->dir_lock);
	if (err && !used)
		return err;
	done(sf, r, used, 0);
	fuse_reply_buf(r->req, buf, used);
	return 0;
}

static int run_readlink(struct slowfs *sf, struct slow_req *r)
{
	char text[PATH_MAX + 1];
	ssize_t n = readlink(r->path->text, text, sizeof(text) - 1);

	if (n < 0)
		return errno == ENOENT ? ESTALE : errno;
	text[n] = 0;
	done(sf, r, (uint64_t)n, 0);
	fuse_reply_readlink(r->req, text);
	return 0;
}

static int run_statfs(struct slowfs *sf, struct slow_req *r)
{
	struct statvfs sv;

	if (statvfs(".", &sv) < 0)
		return errno;
	done(sf, r, 0, 0);
	fuse_reply_statfs(r->req, &sv);
	return 0;
}

static int run_xattr(struct slowfs *sf, struct slow_req *r)
{
	char *buf = thread_buffer(r->size + 1);

	if (!buf)
		return ENOMEM;
	ssize_t n = r->name[0] ? lgetxattr(r->path->text, r->name, buf, r->size)
			       : llistxattr(r->path->text, buf, r->size);
	if (n < 0)
		return errno;
	done(sf, r, (uint64_t)n, 0);
	if (r->size)
		fuse_reply_buf(r->req, buf, (size_t)n);
	else
		fuse_reply_xattr(r->req, (size_t)n);
	return 0;
}

static int run_lseek(struct slowfs *sf, struct slow_req *r)
{
	off_t at = lseek(r->handle->fd, (off_t)r->offset, r->whence);

	if (at < 0)
		return errno;
	done(sf, r, (uint64_t)at, 0);
	fuse_reply_lseek(r->req, at);
	return 0;
}

static int run(struct slowfs *sf, struct slow_req *r, uint64_t limit)
{
	switch (r->op) {
	case SLOW_LOOKUP:   return run_lookup(sf, r);
	case SLOW_GETATTR:  return run_getattr(sf, r);
	case SLOW_OPEN:
	case SLOW_OPENDIR:  return run_open(sf, r);
	case SLOW_READ:     return run_read(sf, r, limit);
	case SLOW_READDIR:  return run_readdir(sf, r);
	case SLOW_READLINK: return run_readlink(sf, r);
	case SLOW_STATFS:   return run_statfs(sf, r);
	case SLOW_XATTR:    return run_xattr(sf, r);
	case SLOW_LSEEK:    return run_lseek(sf, r);
	default:            return ENOSYS;
	}
}

void slow_ops_run(struct slowfs *sf, struct slow_req *r)
{
	uint64_t limit = UINT64_MAX;
	int err = slow_rules_fault(&sf->rules, r, &limit);

	if (!err)
		err = run(sf, r, limit);
	if (err)
		slow_ops_fail(sf, r, err);
	else
		free(r);
}

/* ---- callbacks: describe the request and submit it ---- */

/* A request on ino, or NULL and answered. name goes into r->name. */
static struct slow_req *make(fuse_req_t req, enum slow_op op, fuse_ino_t ino,
			     struct fuse_file_info *fi, const char *name)
{
	size_t len = name ? strlen(name) + 1 : 1;
	struct slow_req *r = calloc(1, sizeof(*r) + len);

	if (!r) {
		fuse_reply_err(req, ENOMEM);
		return NULL;
	}
	if (name)
		memcpy(r->name, name, len);
	r->req = req;
	r->op = op;
	r->node = slow_nodes_get(&slowfs_of(req)->nodes, ino);
	r->path = r->node->path;
	if (fi) {
		r->fi = *fi;
		r->handle = (struct slow_handle *)(uintptr_t)fi->fh;
	}
	return r;
}

static void submit(fuse_req_t req, struct slow_req *r)
{
	if (r)
		slow_queue_submit(slowfs_of(req), r);
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	char path[PATH_MAX];
	struct slow_req *r = make(req, SLOW_LOOKUP, parent, NULL, name);

	if (!r)
		return;
	int err = -slow_path_join(r->node->path, name, path, sizeof(path));
	if (!err && !(r->path = slow_nodes_path(&slowfs_of(req)->nodes, path)))
		err = ENOMEM;
	if (err) {
		free(r);
		fuse_reply_err(req, err);
		return;
	}
	submit(req, r);
}

static void on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)fi;
	submit(req, make(req, SLOW_GETATTR, ino, NULL, NULL));
}

static void on_readlink(fuse_req_t req, fuse_ino_t ino)
{
	submit(req, make(req, SLOW_READLINK, ino, NULL, NULL));
}

static void on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if ((fi->flags & O_ACCMODE) != O_RDONLY)
		fuse_reply_err(req, EROFS);
	else
		submit(req, make(req, SLOW_OPEN, ino, fi, NULL));
}

static void on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	submit(req, make(req, SLOW_OPENDIR, ino, fi, NULL));
}

static void submit_range(fuse_req_t req, struct slow_req *r, off_t offset, size_t size)
{
	if (r) {
		r->offset = (uint64_t)offset;
		r->size = size;
		submit(req, r);
	}
}

static void on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	submit_range(req, make(req, SLOW_READ, ino, fi, NULL), offset, size);
}

static void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		       struct fuse_file_info *fi)
{
	submit_range(req, make(req, SLOW_READDIR, ino, fi, NULL), offset, size);
}

static void on_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
		     struct fuse_file_info *fi)
{
	struct slow_req *r = make(req, SLOW_LSEEK, ino, fi, NULL);

	if (r)
		r->whence = whence;
	submit_range(req, r, offset, 0);
}

static void on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct slowfs *sf = slowfs_of(req);
	struct slow_req *r = make(req, SLOW_RELEASE, ino, fi, NULL);

	if (!r)
		return;
	slow_log_start(&sf->log, r);
	close_handle(sf, r->handle);
	done(sf, r, 0, 0);
	fuse_reply_err(req, 0);
	free(r);
	if (atomic_load(&sf->queue.waiters))
		slow_queue_notify(sf);
}

static void on_statfs(fuse_req_t req, fuse_ino_t ino)
{
	submit(req, make(req, SLOW_STATFS, ino, NULL, NULL));
}

static void on_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	submit_range(req, make(req, SLOW_XATTR, ino, NULL, name), 0, size);
}

static void on_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	submit_range(req, make(req, SLOW_XATTR, ino, NULL, NULL), 0, size);
}

/* Nodes are never freed, see slowfs.h. */
static void on_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	(void)ino;
	(void)nlookup;
	fuse_reply_none(req);
}

static void on_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	(void)count;
	(void)forgets;
	fuse_reply_none(req);
}

static void raise_read_ahead(struct slowfs *sf, struct fuse_conn_info *conn)
{
	if (sf->read_ahead_bytes)
		conn->max_readahead = (unsigned)sf->read_ahead_bytes;
}

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
	struct slowfs *sf = userdata;

	fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* not a default of the low-level library: without it one LOOKUP or READDIR at
	 * a time in each directory */
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	/* with it a reader that uses O_DIRECT sends no INTERRUPT */
	fuse_unset_feature_flag(conn, FUSE_CAP_ASYNC_DIO);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_WRITE);
	conn->max_background = 4096;
	conn->congestion_threshold = 4096;
	raise_read_ahead(sf, conn);
	if (sf->ready_fd >= 0) {
		ssize_t n = write(sf->ready_fd, "\n", 1);
		(void)n; /* a parent that has gone needs no word */
		close(sf->ready_fd);
		sf->ready_fd = -1;
	}
}

const struct fuse_lowlevel_ops slow_ops = {
	.init = on_init,
	.lookup = on_lookup,
	.forget = on_forget,
	.forget_multi = on_forget_multi,
	.getattr = on_getattr,
	.readlink = on_readlink,
	.open = on_open,
	.read = on_read,
	.release = on_release,
	.opendir = on_opendir,
	.readdir = on_readdir,
	.releasedir = on_release,
	.statfs = on_statfs,
	.getxattr = on_getxattr,
	.listxattr = on_listxattr,
	.lseek = on_lseek,
};
