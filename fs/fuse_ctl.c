/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/fuse_ctl.c - the control session: translates FUSE requests for fs/control.h and its answers back. Decides nothing.
 *
 * rw, direct_io, permissions checked by the kernel (default_permissions) against uid=, gid=, ctl-mode=. Its threads are
 * its own, so nothing of the data session can hold a control file up.
 *
 * Node ids. Nothing is kept for a node: the id says what it is. Every LOOKUP of a file gives another id (same st_ino),
 * so that every open has an inode of its own: the kernel holds an inode's lock during a write, and a write to `wait`
 * may take hours.
 *
 *   bits 0-3 kind | 4-15 slot of the stream | 16-39 its serial | 40-63 count of lookups
 *
 * Threads: CTL_THREADS run loop_main(); they never wait but for a request. One at a time receives; a RELEASE is worked
 * off before the next request is received, so that what a program does after close() sees the close.
 */
#include "fs/control.h"
#include "fs/fuse_reply.h"
#include "fs/hintfs.h"
#include "fs/mountinfo.h"

#include "cache/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CTL_THREADS 4
#define WRITE_BYTES_MAX (1u << 20)
#define STOP_WAIT_MS 1000u
#define STARVED_MS 100 /* until a thread without memory for its buffer tries again */
#define INO_STREAMS 1000u /* st_ino of the first stream */

struct control_session {
	struct hintfs *h;
	struct control *control;
	struct fuse_session *se;
	struct timespec started;
	int stop_fd;
	sem_t turn; /* a token, not a lock: who has it polls and receives */
	pthread_t threads[CTL_THREADS];
	unsigned n_threads;
	_Atomic uint32_t n_lookups;
	unsigned minor; /* of the mount, for mountinfo_detach_held() */
	bool is_mounted, is_stopped;
};

/* One request that control.c answers. */
struct ticket {
	struct control_req r;
	fuse_req_t req;
	bool is_write;
};

static struct control_session *session_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* ---- node ids and attributes ------------------------------------------------------------------------------ */

static fuse_ino_t node_id(struct control_session *s, const struct control_node *n)
{
	uint64_t count;

	if (n->kind == CONTROL_ROOT)
		return FUSE_ROOT_ID;
	count = n->kind == CONTROL_STREAMS ? 0 : atomic_fetch_add(&s->n_lookups, 1) + 1;
	return (uint64_t)n->kind | (uint64_t)(n->slot & 0xfff) << 4 | (uint64_t)(n->serial & 0xffffff) << 16 |
	       (count & 0xffffff) << 40;
}

static struct control_node node_of(fuse_ino_t id)
{
	return (struct control_node){.kind = (enum control_kind)(id & 15),
				     .slot = (uint32_t)(id >> 4 & 0xfff),
				     .serial = (uint32_t)(id >> 16 & 0xffffff)};
}

static bool is_dir(enum control_kind kind)
{
	return kind == CONTROL_ROOT || kind == CONTROL_STREAMS;
}

static mode_t mode_of(const struct control_session *s, enum control_kind kind)
{
	mode_t mode = s->h->opts.ctl_mode & 0666;

	if (is_dir(kind)) /* who may read a file may walk to it */
		return S_IFDIR | mode | (mode & 0444) >> 2;
	return S_IFREG | (control_access(kind) & 2 ? mode : mode & 0444);
}

static void fill_stat(const struct control_session *s, const struct control_node *n, struct stat *st)
{
	*st = (struct stat){
		.st_ino = n->kind == CONTROL_STREAM ? INO_STREAMS + n->serial : (ino_t)n->kind,
		.st_mode = mode_of(s, n->kind),
		.st_nlink = is_dir(n->kind) ? 2 : 1,
		.st_uid = s->h->opts.ctl_uid,
		.st_gid = s->h->opts.ctl_gid,
		.st_blksize = 65536,
		.st_atim = s->started,
		.st_mtim = s->started,
		.st_ctim = s->started,
	};
}

static void fill_entry(struct control_session *s, const struct control_node *n, struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){.ino = node_id(s, n)};
	fill_stat(s, n, &e->attr);
}

/* ---- names -------------------------------------------------------------------------------------------------- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct control_session *s = session_of(req);
	struct fuse_entry_param e;
	struct control_node n;
	int rc = control_lookup(s->control, node_of(parent).kind, name, &n);

	if (rc < 0) {
		fuse_reply_errno(req, rc == -EINVAL ? -ENOENT : rc);
		return;
	}
	fill_entry(s, &n, &e);
	fuse_reply_entry(req, &e);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
	(void)ino;
	(void)n;
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	(void)count;
	(void)forgets;
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct control_session *s = session_of(req);
	struct control_node n = node_of(ino);
	struct stat st;

	(void)fi;
	if (!control_node_exists(s->control, &n) && !fi) {
		fuse_reply_errno(req, -ENOENT);
		return;
	}
	fill_stat(s, &n, &st);
	fuse_reply_attr(req, &st, 0);
}

/* Truncating to 0 means something, times are let pass (touch, cp -p), all else is refused. */
static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	struct control_session *s = session_of(req);
	struct control_node n = node_of(ino);
	int rc = 0;

	if (to_set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
		rc = -EPERM;
	} else if (to_set & FUSE_SET_ATTR_SIZE) {
		if (attr->st_size != 0)
			rc = -EINVAL;
		else if (fi)
			control_file_truncate((struct control_file *)(uintptr_t)fi->fh);
		else
			rc = control_truncate(s->control, &n);
	}
	if (rc < 0)
		fuse_reply_errno(req, rc);
	else
		op_getattr(req, ino, fi);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fuse_reply_errno(req, control_remove(session_of(req)->control, node_of(parent).kind, name));
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	(void)parent;
	(void)name;
	(void)mode;
	(void)rdev;
	fuse_reply_errno(req, -EPERM);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	op_mknod(req, parent, name, mode, 0);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	op_mknod(req, parent, name, 0, 0);
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	(void)link;
	op_mknod(req, parent, name, 0, 0);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent, const char *newname,
		      unsigned flags)
{
	(void)newparent;
	(void)newname;
	(void)flags;
	op_mknod(req, parent, name, 0, 0);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	(void)ino;
	op_mknod(req, parent, name, 0, 0);
}

/* ---- directories ---------------------------------------------------------------------------------------------- */

struct listing {
	struct control_session *s;
	fuse_req_t req;
	char *buf; /* owned */
	size_t len, cap;
};

/* The whole directory is made at opendir: names are few, and a listing of one moment needs no cookies of its own. */
static int list_name(void *ctx, const char *name, const struct control_node *n)
{
	struct listing *l = ctx;
	size_t size = fuse_add_direntry(l->req, NULL, 0, name, NULL, 0);
	struct stat st;

	if (l->len + size > l->cap) {
		size_t cap = (l->len + size) * 2;
		char *buf = realloc(l->buf, cap);

		if (!buf)
			return -ENOMEM;
		l->buf = buf;
		l->cap = cap;
	}
	fill_stat(l->s, n, &st);
	fuse_add_direntry(l->req, l->buf + l->len, l->cap - l->len, name, &st, (off_t)(l->len + size));
	l->len += size;
	return 0;
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct control_session *s = session_of(req);
	struct control_node dir = node_of(ino), root = {.kind = CONTROL_ROOT};
	struct listing *l = calloc(1, sizeof(*l));
	int rc = l ? 0 : -ENOMEM;

	if (rc == 0) {
		l->s = s;
		l->req = req;
		rc = list_name(l, ".", &dir);
	}
	if (rc == 0)
		rc = list_name(l, "..", &root);
	if (rc == 0)
		rc = control_list(s->control, dir.kind, list_name, l);
	if (rc == 0) {
		fi->fh = (uint64_t)(uintptr_t)l;
		if (fuse_reply_open(req, fi) != -ENOENT)
			return;
	} else {
		fuse_reply_errno(req, rc);
	}
	if (l)
		free(l->buf);
	free(l);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	const struct listing *l = (const struct listing *)(uintptr_t)fi->fh;
	size_t at = (size_t)off, end;

	(void)ino;
	if (off < 0 || at >= l->len) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	/* Whole entries only: each one's offset field names where the next begins. */
	for (end = at; end < l->len;) {
		uint64_t next;

		memcpy(&next, l->buf + end + offsetof(struct fuse_dirent, off), sizeof(next));
		if (next <= end || next - at > size)
			break;
		end = (size_t)next;
	}
	fuse_reply_buf(req, l->buf + at, end - at);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct listing *l = (struct listing *)(uintptr_t)fi->fh;

	(void)ino;
	free(l->buf);
	free(l);
	fuse_reply_errno(req, 0);
}

/* ---- files ----------------------------------------------------------------------------------------------------------
 */

static int open_node(struct control_session *s, const struct control_node *n, struct fuse_file_info *fi,
		     struct control_file **ret_f)
{
	int rc = control_open(s->control, n, fi->flags, ret_f);

	if (rc < 0)
		return rc;
	fi->fh = (uint64_t)(uintptr_t)*ret_f;
	fi->direct_io = 1; /* errors come from the write itself, and reads work although st_size is 0 */
	/* Who only reads a list may jump (head does); lines that are written have no place but the end. */
	fi->nonseekable = n->kind == CONTROL_WAIT || n->kind == CONTROL_RECORD ||
			  ((n->kind == CONTROL_ORDER || n->kind == CONTROL_STREAM) && (fi->flags & O_ACCMODE) != O_RDONLY);
	return 0;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct control_node n = node_of(ino);
	struct control_file *f = NULL;
	int rc = open_node(session_of(req), &n, fi, &f);

	if (rc < 0)
		fuse_reply_errno(req, rc);
	else if (fuse_reply_open(req, fi) == -ENOENT)
		control_release(f);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	struct control_session *s = session_of(req);
	struct fuse_entry_param e;
	struct control_file *f = NULL;
	struct control_node n;
	int rc = control_make(s->control, node_of(parent).kind, name, &n);

	(void)mode;
	if (rc == 0)
		rc = open_node(s, &n, fi, &f);
	if (rc < 0) {
		fuse_reply_errno(req, rc);
		return;
	}
	fill_entry(s, &n, &e);
	if (fuse_reply_create(req, &e, fi) == -ENOENT)
		control_release(f);
}

static void answer(struct control_req *r, ssize_t result, const char *data)
{
	struct ticket *t = (struct ticket *)r;

	if (result < 0)
		fuse_reply_errno(t->req, (int)result);
	else if (data)
		fuse_reply_buf(t->req, data, (size_t)result);
	else if (t->is_write)
		fuse_reply_write(t->req, (size_t)result);
	else
		fuse_reply_buf(t->req, NULL, 0);
	free(t);
}

static void answer_flush(struct control_req *r, ssize_t result, const char *data)
{
	struct ticket *t = (struct ticket *)r;

	(void)data;
	fuse_reply_errno(t->req, result < 0 ? (int)result : 0);
	free(t);
}

static void on_interrupt(fuse_req_t req, void *data)
{
	control_interrupt(session_of(req)->control, (uint64_t)(uintptr_t)data);
}

/* NULL: the request was answered. */
static struct ticket *ticket_new(fuse_req_t req, void (*done)(struct control_req *, ssize_t, const char *))
{
	struct ticket *t = calloc(1, sizeof(*t));
	uint64_t id;
	int rc;

	if (!t) {
		fuse_reply_errno(req, -ENOMEM);
		return NULL;
	}
	t->req = req;
	t->r.done = done;
	t->r.tid = fuse_req_ctx(req)->pid;
	t->r.uid = fuse_req_ctx(req)->uid;
	t->r.gid = fuse_req_ctx(req)->gid;
	rc = control_req_begin(session_of(req)->control, &t->r, &id);
	if (rc < 0) {
		fuse_reply_errno(req, rc);
		free(t);
		return NULL;
	}
	fuse_req_interrupt_func(req, on_interrupt, (void *)(uintptr_t)id);
	return t;
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct ticket *t = ticket_new(req, answer);

	(void)ino;
	if (t)
		control_read((struct control_file *)(uintptr_t)fi->fh, (uint64_t)off, size, &t->r);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct ticket *t = ticket_new(req, answer);

	(void)ino;
	(void)off;
	if (!t)
		return;
	t->is_write = true;
	control_write((struct control_file *)(uintptr_t)fi->fh, buf, size, &t->r);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct ticket *t = ticket_new(req, answer_flush);

	(void)ino;
	if (t)
		control_flush((struct control_file *)(uintptr_t)fi->fh, &t->r);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	control_release((struct control_file *)(uintptr_t)fi->fh);
	fuse_reply_errno(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	(void)ino;
	(void)datasync;
	(void)fi;
	fuse_reply_errno(req, 0);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	conn->max_write = WRITE_BYTES_MAX;
	conn->no_interrupt = 0;
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.releasedir = op_releasedir,
};

/* ---- life
 * --------------------------------------------------------------------------------------------------------------- */

static struct fuse_session *session_new(struct control_session *s)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *se = NULL;
	bool is_shared = geteuid() == 0 || s->h->opts.is_allow_other;

	if (fuse_opt_add_arg(&args, "hintfs") == 0 &&
	    fuse_opt_add_arg(&args, "-osubtype=hintfs-ctl,fsname=hintfs-control") == 0 &&
	    fuse_opt_add_arg(&args, "-orw,nosuid,nodev,noexec,default_permissions") == 0 &&
	    (!is_shared || fuse_opt_add_arg(&args, "-oallow_other") == 0))
		se = fuse_session_new(&args, &ops, sizeof(ops), s);
	fuse_opt_free_args(&args);
	return se;
}

int control_session_create(struct hintfs *h, struct control_session **ret)
{
	struct control_session *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->h = h;
	(void)sem_init(&s->turn, 0, 1);
	clock_gettime(CLOCK_REALTIME, &s->started);
	s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = s->stop_fd < 0 ? -errno : control_create(h, &s->control);
	if (rc < 0)
		goto fail;
	s->se = session_new(s);
	rc = s->se ? 0 : -EINVAL;
	if (rc == 0 && fuse_session_mount(s->se, h->opts.ctl_dir) != 0) {
		rc = -EIO;
		hfs_log(HFS_LOG_ERROR, "cannot mount the control files on %s: libfuse's message is above",
			h->opts.ctl_dir);
	}
	if (rc < 0)
		goto fail;
	s->is_mounted = true;
	s->minor = mountinfo_minor(h->opts.ctl_dir);
	(void)fcntl(fuse_session_fd(s->se), F_SETFD, FD_CLOEXEC);
	*ret = s;
	return 0;
fail:
	control_session_destroy(s);
	return rc;
}

/* INIT sets what the next receive looks at; a RELEASE must not be overtaken. */
static bool is_ordered(const struct fuse_buf *buf)
{
	uint32_t opcode;

	if ((buf->flags & FUSE_BUF_IS_FD) || buf->size < sizeof(struct fuse_in_header))
		return false;
	opcode = ((const struct fuse_in_header *)buf->mem)->opcode;
	return opcode == FUSE_RELEASE || opcode == FUSE_INIT;
}

/* Without memory for its buffer a thread leaves the turn to the others, who may have one, for a while. */
static void starve(struct control_session *s)
{
	struct pollfd stop = {.fd = s->stop_fd, .events = POLLIN};

	(void)sem_post(&s->turn);
	hfs_log_limited(HFS_LOG_WARNING, "control session: no memory for one more buffer of requests");
	(void)poll(&stop, 1, STARVED_MS);
	while (sem_wait(&s->turn) != 0)
		;
}

/* The next request, or false: the session ends. *ret_is_ordered: it must be worked off before the next is received. */
static bool receive(struct control_session *s, struct fuse_buf *buf, bool *ret_is_ordered)
{
	struct pollfd fds[2] = {{.fd = fuse_session_fd(s->se), .events = POLLIN}, {.fd = s->stop_fd, .events = POLLIN}};
	int rc;

	for (;;) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return false;
		if (fds[1].revents || fuse_session_exited(s->se))
			return false;
		if (!fds[0].revents)
			continue;
		rc = fuse_session_receive_buf(s->se, buf);
		if (rc == -ENOMEM)
			starve(s);
		if (rc == -EINTR || rc == -EAGAIN || rc == -ENOMEM)
			continue;
		if (rc <= 0)
			return false; /* unmounted from outside, or aborted */
		*ret_is_ordered = is_ordered(buf);
		return true;
	}
}

static void *loop_main(void *arg)
{
	struct control_session *s = arg;
	struct fuse_buf buf = {0};
	bool in_order, is_on = true;

	pthread_setname_np(pthread_self(), "hfs-ctl");
	while (is_on) {
		while (sem_wait(&s->turn) != 0)
			;
		is_on = receive(s, &buf, &in_order);
		if (is_on && in_order)
			fuse_session_process_buf(s->se, &buf);
		(void)sem_post(&s->turn);
		if (is_on && !in_order)
			fuse_session_process_buf(s->se, &buf);
	}
	free(buf.mem);
	return NULL;
}

int control_session_start(struct control_session *s)
{
	int rc = 0;

	while (rc == 0 && s->n_threads < CTL_THREADS) {
		rc = -pthread_create(&s->threads[s->n_threads], NULL, loop_main, s);
		s->n_threads += rc == 0;
	}
	return s->n_threads > 0 ? 0 : rc;
}

/* By now the same place may hold the next daemon's mount. Users of what is detached get errors at once. */
static void unmount(struct control_session *s)
{
	if (!s->is_mounted)
		return;
	fuse_session_exit(s->se);
	mountinfo_detach_held(s->h->opts.ctl_dir, s->minor, fuse_session_fd(s->se));
	fuse_reply_cut(s->se);
}

int control_session_fd(const struct control_session *s)
{
	return fuse_session_fd(s->se);
}

void control_session_stop(struct control_session *s)
{
	uint64_t one = 1;
	bool is_quiet;

	if (!s || s->is_stopped)
		return;
	s->is_stopped = true;
	is_quiet = !s->control || control_shutdown(s->control, STOP_WAIT_MS);
	if (s->stop_fd >= 0 && write(s->stop_fd, &one, sizeof(one)) < 0)
		hfs_log(HFS_LOG_ERROR, "control session: threads cannot be told to stop: %s", strerror(errno));
	while (s->n_threads > 0)
		pthread_join(s->threads[--s->n_threads], NULL);
	/* What a thread had received before it stopped. */
	if (s->control && is_quiet)
		is_quiet = control_shutdown(s->control, STOP_WAIT_MS);
	unmount(s);
	if (!is_quiet) { /* somebody hangs in the origin and holds a request: leave him all he may touch; the process is
			    about to end */
		s->control = NULL;
		s->se = NULL;
	}
}

void control_session_destroy(struct control_session *s)
{
	if (!s)
		return;
	control_session_stop(s);
	control_destroy(s->control);
	if (s->se) {
		fuse_reply_forget_mount(s->se);
		fuse_session_destroy(s->se);
	}
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	(void)sem_destroy(&s->turn);
	free(s);
}
