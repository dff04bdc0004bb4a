/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/cred.c - see cred.h.
 *
 * The system calls are made directly: libc's setgroups() changes all threads.
 */
#include "cache/cred.h"

#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATUS_PATH_MAX 40

struct gids {
	size_t n;
	gid_t *v; /* owned */
};

struct cred {
	_Atomic uint32_t refs;
	/* const */
	uid_t uid;
	gid_t gid, own_gid;
	struct gids groups, own; /* theirs, and the daemon's to go back to */
};

bool cred_is_refusal(int err)
{
	return err == -EACCES || err == -EPERM;
}

static bool gids_add(struct gids *g, gid_t gid)
{
	gid_t *wider;

	if (g->n % 32 == 0) {
		wider = realloc(g->v, (g->n + 32) * sizeof(*wider));
		if (wider == NULL)
			return false;
		g->v = wider;
	}
	g->v[g->n++] = gid;
	return true;
}

/* The numbers of a line "Groups:\t4 24 ...". */
static bool gids_parse(struct gids *g, const char *text)
{
	unsigned long gid;
	char *end;

	for (;;) {
		gid = strtoul(text, &end, 10);
		if (end == text)
			return true;
		if (g->n < NGROUPS_MAX && !gids_add(g, (gid_t)gid))
			return false;
		text = end;
	}
}

/* False: no memory. A thread that is gone, or somebody else's by now, has no groups. */
static bool groups_of(uint32_t tid, uid_t uid, struct gids *g)
{
	char path[STATUS_PATH_MAX], *line = NULL;
	unsigned fsuid = (unsigned)-1;
	size_t cap = 0;
	bool may = true;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%u/status", tid);
	f = tid != 0 ? fopen(path, "re") : NULL;
	if (f == NULL)
		return true;
	while (may && getline(&line, &cap, f) > 0) {
		if (sscanf(line, "Uid: %*u %*u %*u %u", &fsuid) == 1 && fsuid != uid)
			break;
		if (strncmp(line, "Groups:", 7) == 0)
			may = gids_parse(g, line + 7);
	}
	free(line);
	(void)fclose(f);
	return may;
}

static bool own_groups(struct gids *g)
{
	int n = getgroups(0, NULL);

	g->v = n > 0 ? calloc((size_t)n, sizeof(*g->v)) : NULL;
	if (n > 0 && g->v == NULL)
		return false;
	n = n > 0 ? getgroups(n, g->v) : n;
	g->n = n > 0 ? (size_t)n : 0;
	return n >= 0;
}

struct cred *cred_of_caller(uint32_t uid, uint32_t gid, uint32_t tid)
{
	struct cred *cr;

	if (uid == 0 || geteuid() != 0)
		return NULL;
	cr = calloc(1, sizeof(*cr));
	if (cr == NULL)
		return NULL;
	atomic_init(&cr->refs, 1);
	cr->uid = uid;
	cr->gid = gid;
	cr->own_gid = getegid();
	if (!groups_of(tid, uid, &cr->groups) || !own_groups(&cr->own)) {
		cred_put(cr);
		return NULL;
	}
	return cr;
}

struct cred *cred_get(struct cred *cr)
{
	if (cr != NULL)
		atomic_fetch_add(&cr->refs, 1);
	return cr;
}

void cred_put(struct cred *cr)
{
	if (cr == NULL || atomic_fetch_sub(&cr->refs, 1) != 1)
		return;
	free(cr->groups.v);
	free(cr->own.v);
	free(cr);
}

static int set_groups(const struct gids *g)
{
	return syscall(SYS_setgroups, g->n, g->v) < 0 ? -errno : 0;
}

int cred_assume(const struct cred *cr)
{
	int err = set_groups(&cr->groups);

	if (err < 0)
		return err;
	(void)setfsgid(cr->gid);
	(void)setfsuid(cr->uid); /* takes the capabilities over files away too */
	if (setfsuid((uid_t)-1) == (int)cr->uid)
		return 0;
	cred_drop(cr);
	return -EPERM;
}

void cred_drop(const struct cred *cr)
{
	int err;

	(void)setfsuid(0);
	(void)setfsgid(cr->own_gid);
	err = set_groups(&cr->own);
	assert(err == 0 && setfsuid((uid_t)-1) == 0); /* what was allowed a moment ago */
}
