/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_health.c - the breaker: when the disk of the cache misbehaves, readers go on from the origin.
 *
 *            3 errors in a window; EROFS          3 more, reads among them
 *        ON ------------------------> READONLY ------------------------> OFF
 *         ^ \_____ hang, directory gone ________________________________/ |
 *         |                        |                                      |
 *         +------- probe: a file written, synced, read back, removed -----+
 *
 * One warning when ON is left, one line when it is reached again. Probes are spaced by probe_ns, doubled each time ON is left, up to
 * 64 times; a quiet time of as much resets that. No space (ENOSPC, EDQUOT) also holds admissions for a while: 1/60 of
 * the window, doubled up to all of it.
 */
#include "cache/tier_i.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum tier_cause tier_cause_of(int err)
{
	switch (-err) {
	case ENOSPC:
		return TIER_CAUSE_NOSPC;
	case EDQUOT:
		return TIER_CAUSE_DQUOT;
	case EROFS:
		return TIER_CAUSE_ROFS;
	default:
		return TIER_CAUSE_EIO;
	}
}

const char *tier_cause_name(enum tier_cause c)
{
	static const char *const names[TIER_CAUSE_N] = {"none", "io-error", "no-space", "quota", "read-only", "hang", "gone"};

	return (unsigned)c < TIER_CAUSE_N ? names[c] : "?";
}

const char *tier_state_name(enum tier_state s)
{
	static const char *const names[] = {"adopting", "on", "read-only", "off"};

	return (unsigned)s < 4 ? names[s] : "?";
}

static void log_trouble(const struct tier *t, enum tier_state state, enum tier_cause cause)
{
	static const char *const cures[TIER_CAUSE_N] = {
		"",
		"look for disk errors in the kernel log",
		"free space there, or lower cache-size",
		"raise the quota, or lower cache-size",
		"remount that file system read-write",
		"look for a dead disk or a stuck file system below it",
		"bring the directory back, or mount again with another cache-dir",
	};

	hfs_log(HFS_LOG_WARNING, "disk cache %s: %s: it is %s now, files are read from the origin meanwhile; %s", t->dir,
		tier_cause_name(cause), state == TIER_OFF ? "bypassed" : "only read from", cures[cause]);
}

static bool step_locked(struct tier *t, enum tier_state state, enum tier_cause cause)
{
	uint64_t now_ns = hfs_now_ns();
	bool is_first;

	hfs_mutex_assert_held(&t->lock);
	if (t->state >= state || t->is_stopping)
		return false;
	is_first = t->state < TIER_READONLY;
	t->state = state;
	t->cause = cause;
	memset(t->error_ns, 0, sizeof(t->error_ns));
	if (is_first) {
		if (t->probe_delay_ns == 0 || now_ns - t->left_ns > 64 * t->cfg.probe_ns + t->probe_delay_ns)
			t->probe_delay_ns = t->cfg.probe_ns;
		else
			t->probe_delay_ns = hfs_min_u64(2 * t->probe_delay_ns, 64 * t->cfg.probe_ns);
		t->left_ns = now_ns;
		t->probe_at_ns = now_ns + t->probe_delay_ns;
	}
	hfs_cond_broadcast(&t->changed);
	tier_read_wake_locked(t);
	if (t->is_logged)
		return false;
	return t->is_logged = true;
}

void tier_trouble(struct tier *t, enum tier_state state, enum tier_cause cause)
{
	bool is_news;

	hfs_mutex_lock(&t->lock);
	is_news = step_locked(t, state, cause);
	hfs_mutex_unlock(&t->lock);
	if (is_news)
		log_trouble(t, state, cause);
}

static void hold_locked(struct tier *t)
{
	uint64_t now_ns = hfs_now_ns();

	if (now_ns < t->hold_until_ns)
		return;
	t->hold_ns = t->hold_ns == 0 || now_ns - t->hold_until_ns > t->cfg.error_window_ns
			     ? t->cfg.error_window_ns / 60
			     : hfs_min_u64(2 * t->hold_ns, t->cfg.error_window_ns);
	t->hold_until_ns = now_ns + t->hold_ns;
	t->room_bytes = 0; /* whatever statvfs said last */
}

void tier_error(struct tier *t, int err, bool is_write)
{
	enum tier_cause cause = tier_cause_of(err);
	enum tier_state state = TIER_READONLY;
	uint64_t now_ns = hfs_now_ns();
	bool is_news = false, is_many;

	if (err == -ENOMEM || err == -EMFILE || err == -ENFILE || err == -ESHUTDOWN || err == -EAGAIN || err == -EISDIR ||
	    err == -EEXIST || err == -EPERM)
		return; /* not the disk's */
	hfs_mutex_lock(&t->lock);
	t->stats.errors[cause]++;
	if (cause == TIER_CAUSE_NOSPC || cause == TIER_CAUSE_DQUOT)
		hold_locked(t);
	is_many = t->error_ns[0] != 0 && now_ns - t->error_ns[0] < t->cfg.error_window_ns && t->error_ns[1] != 0;
	t->error_ns[0] = t->error_ns[1];
	t->error_ns[1] = now_ns;
	if (t->state == TIER_READONLY && !is_write)
		state = TIER_OFF;
	if (is_many || (cause == TIER_CAUSE_ROFS && state == TIER_READONLY))
		is_news = step_locked(t, state, cause);
	hfs_mutex_unlock(&t->lock);
	if (is_news)
		log_trouble(t, state, cause);
}

/* ---- is it still our directory ---- */

void tier_check(struct tier *t)
{
	struct stat dir, lock;
	int err = t->io->fstatat(t->io->ctx, AT_FDCWD, t->dir, &dir, 0);

	if (err == 0)
		err = t->io->fstatat(t->io->ctx, t->fd_dir, TIER_LOCK_NAME, &lock, AT_SYMLINK_NOFOLLOW);
	if (err == -ENOENT || err == -ENOTDIR || err == -ELOOP ||
	    (err == 0 && (dir.st_dev != t->dir_dev || dir.st_ino != t->dir_ino || lock.st_ino != t->lock_ino)))
		tier_trouble(t, TIER_OFF, TIER_CAUSE_GONE);
	else if (err < 0)
		tier_error(t, err, false);
}

/* ---- probing ---- */

static int probe_file(struct tier *t)
{
	uint8_t put[TIER_BLOCK], got[TIER_BLOCK];
	int fd, err;

	memset(put, 0x5a, sizeof(put));
	memset(got, 0, sizeof(got));
	err = t->io->unlinkat(t->io->ctx, t->fd_version, "probe", 0);
	if (err < 0 && err != -ENOENT)
		return err;
	fd = t->io->openat(t->io->ctx, t->fd_version, "probe", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fd;
	err = tier_write_full(t, fd, put, sizeof(put), 0);
	if (err == 0)
		err = t->io->fdatasync(t->io->ctx, fd);
	if (err == 0)
		err = tier_read_full(t, fd, got, sizeof(got), 0);
	if (err == 0 && memcmp(put, got, sizeof(put)) != 0)
		err = -EIO;
	(void)t->io->close(t->io->ctx, fd);
	fd = t->io->unlinkat(t->io->ctx, t->fd_version, "probe", 0);
	return err < 0 ? err : fd;
}

static int probe(struct tier *t)
{
	struct workq_stats s;
	struct stat dir, lock;
	int err = t->io->fstatat(t->io->ctx, AT_FDCWD, t->dir, &dir, 0);

	workq_stats_get(t->reads, &s);
	if (s.late > 0)
		return -EBUSY; /* some call still hangs */
	if (err == 0)
		err = t->io->fstatat(t->io->ctx, t->fd_dir, TIER_LOCK_NAME, &lock, AT_SYMLINK_NOFOLLOW);
	if (err != 0)
		return err;
	if (dir.st_dev != t->dir_dev || dir.st_ino != t->dir_ino || lock.st_ino != t->lock_ino)
		return -ESTALE;
	return probe_file(t);
}

void tier_probe_main(void *arg)
{
	struct tier *t = arg;
	int err = probe(t);
	bool is_back = false;

	hfs_mutex_lock(&t->lock);
	t->is_probe_queued = false;
	if (err == 0 && t->state >= TIER_READONLY) {
		t->state = t->is_adopted ? TIER_ON : TIER_ADOPTING;
		t->cause = TIER_CAUSE_NONE;
		t->is_logged = false;
		memset(t->error_ns, 0, sizeof(t->error_ns));
		is_back = true;
		hfs_cond_broadcast(&t->changed);
		tier_care_soon_locked(t);
	} else {
		t->probe_at_ns = hfs_now_ns() + t->probe_delay_ns;
	}
	hfs_mutex_unlock(&t->lock);
	if (is_back)
		hfs_log(HFS_LOG_INFO, "disk cache %s: works again", t->dir);
}

/* ---- writing out ---- */

static struct tier_obj *take_dirty_locked(struct tier *t, uint64_t *ret_bytes)
{
	struct tier_obj *o = t->dirty;

	if (o == NULL)
		return NULL;
	t->dirty = o->dirty_next;
	if (t->dirty == NULL)
		t->dirty_last = NULL;
	o->is_dirty = false;
	*ret_bytes = o->dirty_bytes;
	o->dirty_bytes = 0;
	o->n_users++;
	return o;
}

/* A sync that failed leaves pages that look fine and are not on disk: nothing of the file is kept. */
static void sync_one(struct tier *t, struct tier_obj *o)
{
	int err = tier_obj_open(t, o, NULL);

	if (err == 0)
		err = t->io->fdatasync(t->io->ctx, o->fd_data);
	if (err == 0 && o->fd_index >= 0)
		err = t->io->fdatasync(t->io->ctx, o->fd_index);
	if (err == -ENOMEM || err == -EMFILE || err == -ENFILE)
		return;
	if (err < 0) {
		if (err != -EBADMSG)
			tier_error(t, err, true);
		tier_obj_lose(t, o);
	}
}

void tier_sync_all(struct tier *t)
{
	uint64_t bytes = 0;
	uint32_t n = 0;
	struct tier_obj *o;

	hfs_mutex_lock(&t->lock);
	for (o = t->dirty; o != NULL; o = o->dirty_next)
		n++;
	hfs_mutex_unlock(&t->lock);
	while (n-- > 0) { /* what gets dirty meanwhile has its turn next time */
		hfs_mutex_lock(&t->lock);
		o = take_dirty_locked(t, &bytes);
		hfs_mutex_unlock(&t->lock);
		if (o == NULL)
			break;
		sync_one(t, o);
		workq_progress(t->bg);
		hfs_mutex_lock(&t->lock);
		tier_obj_release_locked(t, o);
		t->dirty_bytes -= bytes;
		hfs_mutex_unlock(&t->lock);
	}
}

void tier_sync_main(void *arg)
{
	struct tier *t = arg;

	tier_sync_all(t);
	hfs_mutex_lock(&t->lock);
	t->is_sync_queued = false;
	t->sync_at_ns = hfs_now_ns() + t->cfg.sync_ns;
	hfs_cond_broadcast(&t->changed);
	hfs_mutex_unlock(&t->lock);
}
