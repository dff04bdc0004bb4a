/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_data.c - the data session: translates FUSE requests for fs/data.h and its answers back. Decides nothing.
 *
 * Threads: the workers of fs/fuse_loop.c call the op_*() below, which never wait; answers are sent from whichever thread has them.
 *
 * The session's flags and why: docs/architecture.md. In short: mounted ro by the kernel; page-cache mode with keep_cache on
 * every open (a node's bytes never change); ASYNC_DIO off, so that a direct read can be killed; no splice.
 */
#include "fs/data.h"
#include "fs/fuse_loop.h"
#include "fs/fuse_reply.h"
#include "fs/mountinfo.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKGROUND_MAX 4096 /* parked read-ahead counts as background: it must not stop other files */
#define WRITE_BYTES_MAX (1u << 20)
#define READ_AHEAD_KB 1024
#define BLKSIZE (1u << 20)
#define DIR_BYTES_MAX (1u << 20)

struct data_session {
	struct hintfs *h;
	struct data_view *view;
	struct fuse_session *se;
	pthread_t loop;
	bool is_mounted, is_running, is_stopped;
	void (*on_end)(void *arg);
	void *on_end_arg;
	unsigned minor; /* of the mount, for mountinfo_detach_held() */
};

/* ---- translating ------------------------------------------------------------------------ */

static void fill_stat(const struct data_entry *e, struct stat *st)
{
	const struct origin_attr *a = &e->attr;

	*st = (struct stat){
		.st_ino = e->ino,
		.st_mode = (a->mode & S_IFMT) | (a->mode & 0777),
		.st_nlink = a->nlink,
		.st_uid = a->uid,
		.st_gid = a->gid,
		.st_size = (off_t)a->id.size_bytes,
		.st_blksize = S_ISREG(a->mode) ? (blksize_t)BLKSIZE : (blksize_t)a->blksize,
		.st_blocks = (blkcnt_t)a->blocks,
		.st_atim = fuse_reply_time(a->atime_ns),
		.st_mtim = fuse_reply_time(a->id.mtime_ns),
		.st_ctim = fuse_reply_time(a->id.ctime_ns),
	};
}

static void fill_param(const struct data_entry *e, struct fuse_entry_param *p)
{
	*p = (struct fuse_entry_param){
		.ino = e->node_id, .attr_timeout = e->timeout_s, .entry_timeout = e->timeout_s
	};
	if (e->node_id)
		fill_stat(e, &p->attr);
}

static size_t dirent_bytes(size_t name_len, bool is_plus)
{
	char name[256];

	memset(name, 'x', sizeof(name));
	name[name_len < sizeof(name) ? name_len : sizeof(name) - 1] = '\0';
	return is_plus ? fuse_add_direntry_plus(NULL, NULL, 0, name, NULL, 0) : fuse_add_direntry(NULL, NULL, 0, name, NULL, 0);
}

static void reply_dirents(fuse_req_t req, const struct data_req *r, const struct data_result *res)
{
	char *buf = malloc(r->size ? r->size : 1);
	size_t at = 0;

	if (!buf) {
		fuse_reply_errno(req, -ENOMEM);
		return;
	}
	for (size_t i = 0; i < res->dirents_n; i++) {
		const struct data_dirent *d = &res->dirents[i];
		struct fuse_entry_param p;

		if (r->is_plus) {
			fill_param(&d->entry, &p);
			p.attr.st_ino = d->ino;
			p.attr.st_mode = d->entry.node_id ? p.attr.st_mode : (mode_t)(d->type << 12);
			at += fuse_add_direntry_plus(req, buf + at, r->size - at, d->name, &p, (off_t)d->cookie);
		} else {
			struct stat st = { .st_ino = d->ino, .st_mode = (mode_t)(d->type << 12) };

			at += fuse_add_direntry(req, buf + at, r->size - at, d->name, &st, (off_t)d->cookie);
		}
	}
	assert(at <= r->size);
	if (fuse_reply_buf(req, buf, at) == -ENOENT) { /* the caller died: the kernel counted nothing */
		for (size_t i = 0; i < res->dirents_n; i++) {
			if (res->dirents[i].entry.node_id)
				data_forget(r->v, res->dirents[i].entry.node_id, 1);
		}
	}
	free(buf);
}

static void reply_open(fuse_req_t req, struct data_req *r, const struct data_result *res)
{
	struct fuse_file_info fi = { .fh = (uint64_t)(uintptr_t)res->handle, .keep_cache = 1, .noflush = 1 };

	if (fuse_reply_open(req, &fi) == -ENOENT) /* the caller died meanwhile: no RELEASE will come */
		data_release(r->v, res->handle, r->tid);
}

static void reply_opendir(fuse_req_t req, struct data_req *r, const struct data_result *res)
{
	struct fuse_file_info fi = { .fh = (uint64_t)(uintptr_t)res->dir };

	if (fuse_reply_open(req, &fi) == -ENOENT)
		data_releasedir(r->v, res->dir);
}

static void reply_entry(fuse_req_t req, struct data_req *r, const struct data_result *res)
{
	struct fuse_entry_param p;

	fill_param(&res->entry, &p);
	if (fuse_reply_entry(req, &p) == -ENOENT && p.ino)
		data_forget(r->v, p.ino, 1);
}

static void reply_xattr(fuse_req_t req, const struct data_req *r, const struct data_result *res)
{
	if (r->size == 0)
		fuse_reply_xattr(req, res->bytes_len);
	else
		fuse_reply_buf(req, res->bytes, res->bytes_len);
}

static void reply(struct data_req *r, int err, const struct data_result *res)
{
	fuse_req_t req = r->fuse;
	struct stat st;

	if (err < 0) {
		fuse_reply_errno(req, err);
		return;
	}
	switch (r->op) {
	case DATA_LOOKUP:
		reply_entry(req, r, res);
		break;
	case DATA_GETATTR:
		fill_stat(&res->entry, &st);
		fuse_reply_attr(req, &st, res->entry.timeout_s);
		break;
	case DATA_READLINK:
		fuse_reply_readlink(req, res->bytes);
		break;
	case DATA_OPEN:
		reply_open(req, r, res);
		break;
	case DATA_READ:
		fuse_reply_iov(req, res->iov, res->iov_n);
		break;
	case DATA_OPENDIR:
		reply_opendir(req, r, res);
		break;
	case DATA_READDIR:
		reply_dirents(req, r, res);
		break;
	case DATA_STATFS:
		fuse_reply_statfs(req, &res->statfs);
		break;
	case DATA_GETXATTR:
	case DATA_LISTXATTR:
		reply_xattr(req, r, res);
		break;
	}
}

/* ---- operations --------------------------------------------------------------------------- */

static struct data_view *view_of(fuse_req_t req)
{
	return ((struct data_session *)fuse_req_userdata(req))->view;
}

/* The number travels, not the pointer: the interrupt may come when the request is long gone. */
static void on_interrupt(fuse_req_t req, void *data)
{
	data_interrupt(view_of(req), (uint64_t)(uintptr_t)data);
}

static bool was_interrupted(const struct data_req *r)
{
	return fuse_req_interrupted(r->fuse);
}

static struct data_req *request(fuse_req_t req, enum data_op op, fuse_ino_t ino)
{
	struct data_req *r = data_req_new(view_of(req));

	if (!r) {
		fuse_reply_errno(req, -ENOMEM);
		return NULL;
	}
	r->op = op;
	r->node_id = ino;
	r->tid = (uint32_t)fuse_req_ctx(req)->pid;
	r->uid = fuse_req_ctx(req)->uid;
	r->gid = fuse_req_ctx(req)->gid;
	r->fuse = req;
	r->reply = reply;
	r->was_interrupted = was_interrupted;
	r->dirent_bytes = dirent_bytes;
	return r;
}

static void submit(fuse_req_t req, struct data_req *r)
{
	fuse_req_interrupt_func(req, on_interrupt, (void *)(uintptr_t)r->id);
	data_submit(r);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct data_req *r = request(req, DATA_LOOKUP, parent);

	if (!r)
		return;
	r->name = name;
	submit(req, r);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	data_forget(view_of(req), ino, nlookup);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		data_forget(view_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct data_req *r = request(req, DATA_GETATTR, ino);

	(void)fi;
	if (r)
		submit(req, r);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct data_req *r = request(req, DATA_READLINK, ino);

	if (r)
		submit(req, r);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if ((fi->flags & O_ACCMODE) != O_RDONLY) {
		fuse_reply_errno(req, -EROFS);
		return;
	}
	struct data_req *r = request(req, DATA_OPEN, ino);
	if (r)
		submit(req, r);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct data_req *r = request(req, DATA_READ, ino);

	if (!r)
		return;
	(void)fi; /* 0 where there was no OPEN: the node says all */
	r->size = size;
	r->off = (uint64_t)off;
	submit(req, r);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	data_release(view_of(req), (struct data_handle *)(uintptr_t)fi->fh, (uint32_t)fuse_req_ctx(req)->pid);
	fuse_reply_errno(req, 0);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct data_req *r = request(req, DATA_OPENDIR, ino);

	(void)fi;
	if (r)
		submit(req, r);
}

static void readdir_any(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi, bool is_plus)
{
	struct data_req *r = request(req, DATA_READDIR, ino);

	if (!r)
		return;
	r->dir = (struct data_dir_handle *)(uintptr_t)fi->fh;
	r->size = size < DIR_BYTES_MAX ? size : DIR_BYTES_MAX;
	r->off = (uint64_t)off;
	r->is_plus = is_plus;
	submit(req, r);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	readdir_any(req, ino, size, off, fi, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	readdir_any(req, ino, size, off, fi, true);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	data_releasedir(view_of(req), (struct data_dir_handle *)(uintptr_t)fi->fh);
	fuse_reply_errno(req, 0);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct data_req *r = request(req, DATA_STATFS, ino);

	if (r)
		submit(req, r);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct data_req *r = request(req, DATA_GETXATTR, ino);

	if (!r)
		return;
	r->name = name;
	r->size = size;
	submit(req, r);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct data_req *r = request(req, DATA_LISTXATTR, ino);

	if (!r)
		return;
	r->size = size;
	submit(req, r);
}

/* Python asks every file whether it is a terminal: answered here, never parked. */
static void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg, struct fuse_file_info *fi, unsigned flags,
		     const void *in_buf, size_t in_bufsz, size_t out_bufsz)
{
	(void)ino, (void)cmd, (void)arg, (void)fi, (void)flags, (void)in_buf, (void)in_bufsz, (void)out_bufsz;
	fuse_reply_errno(req, -ENOTTY);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	static const uint64_t on[] = { FUSE_CAP_ASYNC_READ,	     FUSE_CAP_PARALLEL_DIROPS, FUSE_CAP_READDIRPLUS,
				       FUSE_CAP_READDIRPLUS_AUTO,    FUSE_CAP_CACHE_SYMLINKS,  FUSE_CAP_EXPLICIT_INVAL_DATA,
				       FUSE_CAP_NO_EXPORT_SUPPORT };
	static const uint64_t off[] = { FUSE_CAP_ASYNC_DIO,	 FUSE_CAP_AUTO_INVAL_DATA, FUSE_CAP_SPLICE_READ,
					FUSE_CAP_SPLICE_WRITE,	 FUSE_CAP_SPLICE_MOVE,	   FUSE_CAP_FLOCK_LOCKS,
					FUSE_CAP_POSIX_LOCKS };

	if (fuse_get_feature_flag(conn, FUSE_CAP_NO_OPEN_SUPPORT))
		data_can_no_open(((struct data_session *)userdata)->view);
	for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++)
		(void)fuse_set_feature_flag(conn, on[i]);
	for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++)
		fuse_unset_feature_flag(conn, off[i]);
	conn->max_write = WRITE_BYTES_MAX;
	/* The kernel takes the lesser of this and its own window: raise_read_ahead() may come before or after it. */
	conn->max_readahead = READ_AHEAD_KB * 1024u;
	conn->max_background = BACKGROUND_MAX;
	conn->congestion_threshold = BACKGROUND_MAX * 3 / 4;
	conn->time_gran = 1;
}

static const struct fuse_lowlevel_ops OPS = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.readlink = op_readlink,
	.open = op_open,
	.read = op_read,
	.release = op_release,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.ioctl = op_ioctl,
};

/* ---- the session's life ---------------------------------------------------------------------- */

/* "," and "\" inside a value would end the option. */
static char *escape_option(const char *s)
{
	char *out = malloc(2 * strlen(s) + 1), *p = out;

	for (; p && *s; s++) {
		if (*s == ',' || *s == '\\')
			*p++ = '\\';
		*p++ = *s;
	}
	if (p)
		*p = '\0';
	return out;
}

static struct fuse_session *session_new(struct data_session *s)
{
	const struct hfs_opts *o = &s->h->opts;
	char *source = escape_option(o->source), *list = NULL;
	struct fuse_session *se = NULL;

	if (source && asprintf(&list, "fsname=%s,subtype=hintfs,ro,nosuid,nodev%s%s", source,
			       o->is_noexec ? ",noexec" : "", o->is_allow_other ? ",allow_other,default_permissions" : "") >= 0) {
		char *argv[] = { (char *)"hintfs", (char *)"-o", list, NULL };
		struct fuse_args args = FUSE_ARGS_INIT(3, argv);

		se = fuse_session_new(&args, &OPS, sizeof(OPS), s);
		fuse_opt_free_args(&args);
	}
	free(list);
	free(source);
	return se;
}

int data_session_create(struct hintfs *h, struct data_session **ret)
{
	struct data_session *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->h = h;
	rc = data_view_create(h, &s->view);
	if (rc)
		goto fail;
	s->se = session_new(s);
	if (!s->se) {
		rc = -EINVAL;
		goto fail;
	}
	if (fuse_session_mount(s->se, h->opts.mountpoint) != 0) {
		rc = -EIO;
		hfs_log(HFS_LOG_ERROR, "cannot mount on %s: libfuse's message is above", h->opts.mountpoint);
		goto fail;
	}
	s->is_mounted = true;
	s->minor = mountinfo_minor(h->opts.mountpoint);
	(void)fcntl(fuse_session_fd(s->se), F_SETFD, FD_CLOEXEC);
	*ret = s;
	return 0;
fail:
	data_session_destroy(s);
	return rc;
}

/* Larger requests: the kernel's own window is 128 KiB. Its device is the mount's, whose major number is 0. */
static void raise_read_ahead(const struct data_session *s)
{
	char path[80];
	int fd;

	if (s->minor == 0)
		return;
	snprintf(path, sizeof(path), "/sys/class/bdi/0:%u/read_ahead_kb", s->minor);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	dprintf(fd, "%d\n", READ_AHEAD_KB); /* may fail: then requests are smaller */
	close(fd);
}

static void *loop_main(void *arg)
{
	struct data_session *s = arg;
	int rc;

	pthread_setname_np(pthread_self(), "hfs-fuse"); /* the workers that start from here inherit it */
	rc = fuse_loop_run(s->se, s->on_end, s->on_end_arg);
	if (rc < 0)
		hfs_log(HFS_LOG_ERROR, "%s: the session ended with an error: %s", s->h->opts.mountpoint, strerror(-rc));
	return NULL;
}

int data_session_start(struct data_session *s, void (*on_end)(void *arg), void *arg)
{
	int rc;

	s->on_end = on_end;
	s->on_end_arg = arg;
	rc = -pthread_create(&s->loop, NULL, loop_main, s);
	if (rc)
		return rc;
	s->is_running = true;
	if (geteuid() == 0)
		raise_read_ahead(s);
	return 0;
}

int data_session_fd(const struct data_session *s)
{
	return fuse_session_fd(s->se);
}

void data_session_stop(struct data_session *s)
{
	if (!s || s->is_stopped)
		return;
	s->is_stopped = true;
	data_stop(s->view);
	if (s->is_mounted)
		fuse_session_exit(s->se);
	/* After an unmount from outside the same place may hold the next daemon's mount already. */
	if (s->is_mounted) /* not libfuse's way: that closes the device, which the workers are reading from */
		mountinfo_detach_held(s->h->opts.mountpoint, s->minor, fuse_session_fd(s->se));
	if (s->is_running)
		pthread_join(s->loop, NULL);
	s->is_running = false;
}

bool data_session_drain(struct data_session *s, unsigned wait_ms)
{
	return !s || data_drain(s->view, wait_ms);
}

void data_session_destroy(struct data_session *s)
{
	if (!s)
		return;
	if (s->se) {
		data_session_stop(s);
		fuse_reply_forget_mount(s->se);
		fuse_session_destroy(s->se); /* calls no op: there is no op_destroy */
	}
	data_view_destroy(s->view);
	free(s);
}

size_t data_session_status(struct data_session *s, char *buf, size_t cap)
{
	return data_status(s->view, buf, cap);
}
