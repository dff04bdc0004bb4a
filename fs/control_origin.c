/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_origin.c - questions of the control files to the origin, which may hang: asked by a metadata thread,
 * waited for with a deadline by another one. Also what /proc tells of a writer.
 *
 * The question is counted, one reference for each side: whoever comes last frees it, so a question that was given up
 * costs nothing but the thread that hangs.
 */
#include "fs/control_i.h"

#include "cache/base/time.h"
#include "cache/cred.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARENA_MAX (64u << 20) /* names of one directory */
#define POLL_MS 50u	      /* how often an interrupted caller is looked at: a dying one leaves within 1 s */

struct question {
	struct control *c;
	enum origin_question q;
	char *path; /* owned */
	struct origin_answer a;
	unsigned refs; /* c->lock */
	bool is_done;  /* c->lock */
};

void control_origin_answer_finish(struct origin_answer *a)
{
	free(a->path);
	free(a->names);
	free(a->arena);
	*a = (struct origin_answer){0};
}

static void question_put(struct question *q)
{
	struct control *c = q->c;
	unsigned left;

	hfs_mutex_lock(&c->lock);
	left = --q->refs;
	hfs_mutex_unlock(&c->lock);
	if (left > 0)
		return;
	control_origin_answer_finish(&q->a);
	free(q->path);
	free(q);
}

/* ---- asking, on a metadata thread ------------------------------------------------------------------------ */

/* Names are gathered as `TYPE name NUL`, pointers come last: the arena moves while it grows. */
struct gather {
	char *arena;
	size_t used, cap, n;
};

static int gather_name(void *ctx, const char *name, size_t len, uint64_t ino, unsigned type)
{
	struct gather *g = ctx;

	(void)ino;
	if (type != DT_REG && type != DT_DIR && type != DT_UNKNOWN)
		return 0;
	if (g->used + len + 2 > g->cap) {
		size_t cap = g->cap ? g->cap * 2 : 4096;
		char *arena;

		while (cap < g->used + len + 2)
			cap *= 2;
		if (cap > ARENA_MAX)
			return -ENOSPC;
		arena = realloc(g->arena, cap);
		if (!arena)
			return -ENOMEM;
		g->arena = arena;
		g->cap = cap;
	}
	g->arena[g->used++] = (char)type;
	memcpy(g->arena + g->used, name, len);
	g->arena[g->used + len] = '\0';
	g->used += len + 1;
	g->n++;
	return 0;
}

/* Some file systems do not tell the type of an entry. */
static unsigned ask_type(struct origin *o, const char *dir, const char *name)
{
	struct origin_attr attr;
	char *path;
	int rc;

	if (asprintf(&path, "%s%s%s", dir, *dir ? "/" : "", name) < 0)
		return DT_UNKNOWN;
	rc = origin_stat(o, path, false, &attr);
	free(path);
	return rc < 0 ? DT_UNKNOWN : S_ISREG(attr.mode) ? DT_REG : S_ISDIR(attr.mode) ? DT_DIR : DT_UNKNOWN;
}

/* As the full paths sort: a directory's name counts with its slash. */
static int compare_names(const void *a, const void *b)
{
	const struct origin_name *x = a, *y = b;
	size_t x_len = strlen(x->name), y_len = strlen(y->name), n = x_len < y_len ? x_len : y_len;
	int d = memcmp(x->name, y->name, n);
	unsigned char x_next, y_next;

	if (d != 0)
		return d;
	x_next = (unsigned char)(x_len > n ? x->name[n] : x->is_dir ? '/' : '\0');
	y_next = (unsigned char)(y_len > n ? y->name[n] : y->is_dir ? '/' : '\0');
	return (int)x_next - (int)y_next;
}

static int ask_list(struct question *q)
{
	struct origin *o = q->c->h->origin;
	struct gather g = {0};
	int rc = origin_list(o, q->path, gather_name, &g);

	q->a.arena = g.arena;
	q->a.arena_bytes = g.cap;
	if (rc < 0)
		return rc;
	q->a.names = calloc(g.n + 1, sizeof(*q->a.names));
	if (!q->a.names)
		return -ENOMEM;
	for (size_t at = 0; at < g.used;) {
		unsigned type = (unsigned char)g.arena[at];
		const char *name = g.arena + at + 1;
		struct origin_name *n = &q->a.names[q->a.n_names];

		at += strlen(name) + 2;
		if (type == DT_UNKNOWN)
			type = ask_type(o, q->path, name);
		if (type != DT_REG && type != DT_DIR)
			continue;
		n->name = name;
		n->is_dir = type == DT_DIR;
		q->a.n_names++;
	}
	qsort(q->a.names, q->a.n_names, sizeof(*q->a.names), compare_names);
	return 0;
}

static int ask(void *arg)
{
	struct question *q = arg;

	return q->q == ORIGIN_LIST ? ask_list(q) : origin_realpath(q->c->h->origin, q->path, &q->a.path, &q->a.attr);
}

static void answer(void *arg)
{
	struct question *q = arg;
	struct control *c = q->c;

	q->a.err = ask(q);
	if (cred_is_refusal(q->a.err)) /* before anything was gathered: root under root_squash */
		q->a.err = engine_as_guest(c->h->engine, ask, q);
	hfs_mutex_lock(&c->lock);
	q->is_done = true;
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
	question_put(q);
	hfs_mutex_lock(&c->lock);
	c->n_jobs--;
	hfs_cond_broadcast(&c->cond);
	hfs_mutex_unlock(&c->lock);
}

/* ---- waiting for the answer --------------------------------------------------------------------------------- */

static int wait_answer(struct control *c, struct control_req *r, struct question *q, unsigned timeout_ms)
{
	uint64_t deadline = timeout_ms ? hfs_now_ns() + timeout_ms * HFS_NS_PER_MS : UINT64_MAX;
	int rc = 0;

	hfs_mutex_lock(&c->lock);
	while (!q->is_done && rc == 0) {
		uint64_t now = hfs_now_ns(), until = now + POLL_MS * HFS_NS_PER_MS;

		if (atomic_load(&c->is_stopping)) {
			rc = -ESHUTDOWN;
		} else if (now >= deadline) {
			rc = -ETIMEDOUT;
		} else if (r && r->i.is_interrupted) {
			hfs_mutex_unlock(&c->lock);
			if (control_is_dying(r->tid))
				rc = -EINTR;
			hfs_mutex_lock(&c->lock);
			if (rc == 0 && !q->is_done)
				hfs_cond_wait_until(&c->cond, &c->lock, until < deadline ? until : deadline);
		} else {
			until = now + HFS_NS_PER_S;
			hfs_cond_wait_until(&c->cond, &c->lock, until < deadline ? until : deadline);
		}
	}
	if (q->is_done)
		rc = 0;
	hfs_mutex_unlock(&c->lock);
	return rc;
}

int control_origin_ask(struct control *c, struct control_req *r, enum origin_question question, const char *path,
		       size_t len, unsigned timeout_ms, struct origin_answer *ret)
{
	struct question *q = calloc(1, sizeof(*q));
	int rc = -ENOMEM;

	if (!q)
		return -ENOMEM;
	q->c = c;
	q->q = question;
	q->refs = 2;
	q->path = strndup(path, len);
	if (!q->path) {
		free(q);
		return -ENOMEM;
	}
	hfs_mutex_lock(&c->lock);
	c->n_jobs++;
	hfs_mutex_unlock(&c->lock);
	rc = meta_run(c->h->meta, answer, q);
	if (rc < 0) {
		hfs_mutex_lock(&c->lock);
		c->n_jobs--;
		hfs_mutex_unlock(&c->lock);
		free(q->path);
		free(q);
		return rc;
	}
	rc = wait_answer(c, r, q, timeout_ms);
	if (rc == 0) {
		*ret = q->a;
		q->a = (struct origin_answer){0};
	}
	question_put(q);
	return rc;
}

/* ---- what /proc tells ---------------------------------------------------------------------------------------------
 */

static ssize_t read_proc(pid_t tid, const char *name, char *buf, size_t cap)
{
	char path[64];
	ssize_t n;
	int fd;

	if (tid <= 0)
		return -ESRCH;
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, cap - 1);
	close(fd);
	buf[n > 0 ? n : 0] = '\0';
	return n;
}

bool control_is_dying(pid_t tid)
{
	char buf[4096], *line;
	unsigned long long pending;
	ssize_t n = read_proc(tid, "status", buf, sizeof(buf));

	if (n == -ENOENT || n == -ESRCH)
		return tid > 0;
	line = n > 0 ? strstr(buf, "\nSigPnd:") : NULL;
	return line && sscanf(line, "\nSigPnd: %llx", &pending) == 1 && (pending & (1ull << (SIGKILL - 1)));
}

void control_who(pid_t tid, pid_t *ret_tgid, char comm[32])
{
	char buf[4096], *line;
	int tgid;

	*ret_tgid = tid;
	if (read_proc(tid, "comm", comm, 32) <= 0)
		strcpy(comm, "?");
	comm[strcspn(comm, "\n")] = '\0';
	if (read_proc(tid, "status", buf, sizeof(buf)) <= 0)
		return;
	line = strstr(buf, "\nTgid:");
	if (line && sscanf(line, "\nTgid: %d", &tgid) == 1)
		*ret_tgid = tgid;
}

/* The last but one field of stat holds the exit code, set before the files are closed: low 7 bits, the signal. */
bool control_was_killed(pid_t tid)
{
	char buf[2048], *at;
	unsigned field = 2;
	int code;

	if (read_proc(tid, "stat", buf, sizeof(buf)) <= 0)
		return false;
	at = strrchr(buf, ')');
	while (at && field < 52) {
		at = strchr(at + 1, ' ');
		field++;
	}
	return at && sscanf(at, "%d", &code) == 1 && (code & 0x7f) != 0;
}
