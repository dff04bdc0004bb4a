/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/main.c - brings one mount up, waits, takes it down.
 *
 * Up, in this order, undone in reverse: options -> what lies at the mountpoint -> control directory -> (fork) -> signals ->
 * origin -> engine -> metadata threads -> data session (mounts) -> control session (mounts) -> threads -> ready.
 *
 * Invariants:
 *   1. Until ready, errors go to stderr, which in the background is the waiting parent's; from then on to the log.
 *   2. After STOP_MS the process is gone, whatever hangs: the guard thread sees to it.
 *   3. This process never opens a file of its own mount.
 */
#include "cache/base/dirlock.h"
#include "cache/base/log.h"
#include "cache/base/time.h"
#include "cache/io.h"
#include "cache/tier.h"
#include "fs/ctldir.h"
#include "fs/engine.h"
#include "fs/hintfs.h"
#include "fs/life.h"
#include "fs/mountinfo.h"
#include "fs/opts.h"
#include "fs/opts_value.h"
#include "fs/source.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STOP_MS	      4000 /* of the 5 s that are promised */
#define ENGINE_END_MS 500  /* for origin threads that are not stuck */

#define DESCRIPTORS_MIN 64u /* a mount takes 13, the rest is for files of the origin and the disk tier */

struct run {
	struct hintfs h;
	struct life life;
	struct life_mounts mounts;
	int ready_fd; /* -1: foreground */
	int ctl_lock; /* of the control directory until it is mounted; a background parent keeps it to its end. -1: none */
};

/* libfuse's own messages, which would go to a stderr that a daemon has not; some come with each request. */
__attribute__((format(printf, 2, 0))) static void from_libfuse(enum fuse_log_level level, const char *format, va_list args)
{
	char text[512];

	vsnprintf(text, sizeof(text), format, args);
	text[strcspn(text, "\n")] = '\0';
	hfs_log_limited(level <= FUSE_LOG_ERR ? HFS_LOG_ERROR : level <= FUSE_LOG_WARNING ? HFS_LOG_WARNING : HFS_LOG_DEBUG, "%s", text);
}

static enum hfs_log_level log_level(const struct hfs_opts *o)
{
	return o->is_debug ? HFS_LOG_DEBUG : HFS_LOG_INFO;
}

/* At the end the device is taken from under its workers, and they say so. */
__attribute__((format(printf, 2, 0))) static void from_libfuse_at_end(enum fuse_log_level level, const char *format, va_list args)
{
	(void)level;
	(void)format;
	(void)args;
}

/* ---- before the fork ----------------------------------------------------------------------------------- */

static bool has_program(const char *name)
{
	const char *path = getenv("PATH");
	char *copy = strdup(path ? path : "/usr/bin:/bin"), *dir, *save, file[4096];
	bool is_found = false;

	for (dir = copy ? strtok_r(copy, ":", &save) : NULL; dir && !is_found; dir = strtok_r(NULL, ":", &save)) {
		snprintf(file, sizeof(file), "%s/%s", dir, name);
		is_found = access(file, X_OK) == 0;
	}
	free(copy);
	return is_found;
}

static int check_fuse(void)
{
	if (access("/dev/fuse", F_OK) < 0) {
		hfs_say(stderr, "hintfs: there is no /dev/fuse: load the module (modprobe fuse); a container needs --device /dev/fuse\n");
		return HFS_EXIT_SYSTEM;
	}
	if (geteuid() == 0)
		return HFS_EXIT_OK;
	if (!has_program("fusermount3")) {
		hfs_say(stderr, "hintfs: fusermount3 is missing, by which users mount: install the package fuse3, or mount as root\n");
		return HFS_EXIT_SYSTEM;
	}
	if (access("/dev/fuse", R_OK | W_OK) < 0) {
		hfs_say(stderr, "hintfs: /dev/fuse may not be opened by this user: chmod 0666 /dev/fuse, or mount as root\n");
		return HFS_EXIT_SYSTEM;
	}
	return HFS_EXIT_OK;
}

/* As fusermount3 reads it: blanks at the ends and comments count for nothing. True also where it cannot be read: then that program says. */
static bool may_allow_other(void)
{
	FILE *f = fopen("/etc/fuse.conf", "re");
	char line[256], word[sizeof(line)], more;
	bool may = f == NULL;

	while (f != NULL && !may && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "#")] = '\0';
		may = sscanf(line, "%255s %c", word, &more) == 1 && strcmp(word, "user_allow_other") == 0;
	}
	if (f != NULL)
		fclose(f);
	return may;
}

/* What fusermount3 refuses a user, said before it is asked: in our words, and with what helps. */
static int check_user(const struct hfs_opts *o)
{
	if (geteuid() == 0)
		return HFS_EXIT_OK;
	if (o->is_allow_other && !may_allow_other()) {
		hfs_say(stderr, "hintfs: allow-other: /etc/fuse.conf forbids it to users; have root add the line user_allow_other there, "
				"or leave allow-other out\n");
		return HFS_EXIT_MOUNT;
	}
	if (access(o->mountpoint, W_OK) < 0 && errno == EACCES) {
		hfs_say(stderr, "hintfs: %s: a user can mount only where he may write; choose a directory of your own, or mount as root\n",
			o->mountpoint);
		return HFS_EXIT_MOUNT;
	}
	return HFS_EXIT_OK;
}

/* A dead mount of ours goes away; whatever else is mounted there stays and is the reason not to. */
static int clear_mountpoint(const struct hfs_opts *o)
{
	struct mountinfo m;
	int r;

	for (;;) {
		switch (mountinfo_state(o->mountpoint, &m)) {
		case MOUNTINFO_NONE:
			return HFS_EXIT_OK;
		case MOUNTINFO_DEAD:
			r = mountinfo_detach(o->mountpoint);
			if (r == 0) {
				hfs_log(HFS_LOG_INFO, "%s: the dead mount of an earlier daemon was taken away", o->mountpoint);
				continue;
			}
			hfs_say(stderr, "hintfs: %s: the dead mount of an earlier daemon can't be taken away (%s); umount -l %s\n",
				o->mountpoint, strerror(-r), o->mountpoint);
			return HFS_EXIT_MOUNT;
		case MOUNTINFO_STUCK:
			hfs_say(stderr, "hintfs: %s: a hintfs is mounted there that does not answer; umount -l %s, then again\n",
				o->mountpoint, o->mountpoint);
			return HFS_EXIT_MOUNT;
		case MOUNTINFO_ALIVE:
			hfs_say(stderr, "hintfs: %s: already mounted, from %s; umount %s first\n", o->mountpoint, m.source, o->mountpoint);
			return HFS_EXIT_MOUNT;
		default:
			hfs_say(stderr, "hintfs: %s: another file system (%s) is mounted there; choose another MOUNTPOINT\n",
				o->mountpoint, m.fstype);
			return HFS_EXIT_MOUNT;
		}
	}
}

/* Found out while somebody can still read it. */
static int check_log(const char *log)
{
	int fd;

	if (strcmp(log, "stderr") == 0 || strcmp(log, "syslog") == 0)
		return HFS_EXIT_OK;
	fd = hfs_log_open_file(log);
	if (fd < 0) {
		hfs_say(stderr, "hintfs: log file %s: %s; give another log=FILE\n", log, strerror(-fd));
		return HFS_EXIT_SYSTEM;
	}
	close(fd);
	return HFS_EXIT_OK;
}

static int prepare(struct run *run)
{
	const struct hfs_opts *o = &run->h.opts;
	bool is_shared = geteuid() == 0 || o->ctl_uid != geteuid() || (o->ctl_mode & 077) != 0;
	int code;

	if ((code = check_fuse()) != 0 || (code = check_log(o->log)) != 0 || (code = clear_mountpoint(o)) != 0 ||
	    (code = check_user(o)) != 0)
		return code;
	if (ctldir_prepare(o->ctl_dir, o->is_ctl_default, is_shared, &run->mounts.is_ctl_dir_ours, &run->ctl_lock, stderr) < 0)
		return HFS_EXIT_MOUNT;
	/* Of several that start at a time one wins: the others waited for its lock, and see its mount now. */
	if ((code = clear_mountpoint(o)) != 0)
		return code;
	run->mounts.mountpoint = o->mountpoint;
	run->mounts.ctl_dir = o->ctl_dir;
	return HFS_EXIT_OK;
}

/* ---- up --------------------------------------------------------------------------------------------------- */

/* The kernel's entries of a changed file are found out at the next open (a generation is a node id): nothing to push. */
static void file_changed(void *ctx, struct cache_file *f)
{
	(void)f;
	(void)ctx;
}

static int run_on_meta(void *ctx, void (*fn)(void *arg), void *arg)
{
	return meta_run(ctx, fn, arg);
}

static int run_aside(void *ctx, void (*fn)(void *arg), void *arg)
{
	return meta_run_aside(ctx, fn, arg);
}

/* Is what lies at SOURCE now the dataset that the disk tier was made for? On whatever thread needs the origin. */
static bool is_our_source(void *ctx)
{
	struct hintfs *h = ctx;
	struct source *s = calloc(1, sizeof(*s));
	bool is = s && h->engine && source_look(h->opts.source, false, s) == 0 &&
		  tier_is_dataset(engine_tier(h->engine), s->dataset, s->dataset_bytes);

	free(s);
	return is;
}

static struct tier_config disk_config(const struct hintfs *h, const struct source *s, const char *const apart[2])
{
	const struct hfs_opts *o = &h->opts;

	return (struct tier_config){
		.dir = o->cache_dir,
		.dataset = s->dataset,
		.dataset_bytes = s->dataset_bytes,
		.source = o->is_immutable ? s->path : NULL,
		.is_source_away = s->is_away,
		.origin_dev = origin_dev(h->origin),
		.size_bytes = o->cache_size_bytes,
		.free_pct = o->cache_free_pct,
		.apart = apart,
		.n_apart = 2,
	};
}

static int make_engine(struct hintfs *h, const struct tier_config *tier, char *why, size_t why_cap)
{
	struct engine_config cfg = {
		.cache = {
			.memory_bytes = h->opts.memory_bytes,
			.chunk_bytes = h->opts.chunk_bytes,
			.origin_timeout_ns = (uint64_t)(h->opts.origin_timeout_s * 1e9),
			.origin = h->origin,
			.io = h->io,
		},
		.tier = tier,
		.tier_why = why,
		.tier_why_cap = why_cap,
		.prefetch_bytes_per_s = h->opts.prefetch_limit_bytes_per_s,
		.seed = hfs_now_ns(),
		.changed = file_changed,
		.ctx = h,
		.run = run_on_meta,
		.run_ctx = h->meta,
	};

	return engine_create(&cfg, &h->engine);
}

static int complain(int code, const char *what, int r, const char *cure)
{
	if (r == -EAGAIN) /* of pthread_create, wherever it was called */
		cure = "no thread can be started; is there a limit on them, or on memory (ulimit -u, ulimit -v, pids.max)?";
	hfs_log(HFS_LOG_ERROR, "%s: %s; %s", what, strerror(-r), cure);
	return code;
}

/* A budget that cannot be spent is no mistake, but may be one. */
static void note_budget(const struct hfs_opts *o)
{
	struct statvfs s;
	uint64_t disk_bytes, free_bytes;
	char size[24];

	if (!o->cache_dir || statvfs(o->cache_dir, &s) < 0)
		return;
	disk_bytes = (uint64_t)s.f_blocks * s.f_frsize;
	free_bytes = (uint64_t)(disk_bytes / 100.0 * o->cache_free_pct);
	if (o->cache_size_bytes > disk_bytes - free_bytes)
		hfs_log(HFS_LOG_WARNING,
			"cache-size=%s: the file system of %s has %.1f GiB in all, of which %u %% stay free (cache-free=): it will take what it can",
			opts_value_size_text(o->cache_size_bytes, size, sizeof(size)), o->cache_dir, (double)disk_bytes / (1u << 30),
			o->cache_free_pct);
}

static int up_engine(struct hintfs *h, const struct source *s)
{
	const char *const apart[2] = {s->path, h->opts.mountpoint};
	struct tier_config disk = disk_config(h, s, apart);
	char why[1024] = "";
	int r = make_engine(h, h->opts.cache_dir ? &disk : NULL, why, sizeof(why));

	if (r == 0) {
		note_budget(&h->opts);
		return HFS_EXIT_OK;
	}
	if (!why[0])
		return complain(HFS_EXIT_SYSTEM, "slot pool and engine", r, "a smaller memory= may help");
	hfs_log(HFS_LOG_ERROR, "%s", why);
	return HFS_EXIT_SYSTEM;
}

/* The origin, unless an immutable dataset of which the disk tier may have enough is not there: then when it comes. */
static int up_origin(struct hintfs *h, struct source *s)
{
	const struct hfs_opts *o = &h->opts;
	int r = 0;

	s->path = o->source;
	if (o->cache_dir)
		r = source_look(o->source, o->is_immutable, s);
	if (r < 0)
		return complain(HFS_EXIT_SYSTEM, o->source, r, "it can't be found out what is mounted there; is /proc mounted?");
	h->is_origin_later = s->is_away;
	if (s->is_away)
		r = origin_create_later(o->source, h->io, is_our_source, h, &h->origin);
	else
		r = origin_create(o->source, h->io, &h->origin);
	return r < 0 ? complain(HFS_EXIT_SYSTEM, o->source, r, "SOURCE can't be opened; is it reachable, may you enter it?") : HFS_EXIT_OK;
}

static int up_storage(struct hintfs *h)
{
	struct source *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return complain(HFS_EXIT_SYSTEM, h->opts.source, -ENOMEM, "free some memory");
	r = up_origin(h, s);
	if (r == 0 && (r = meta_create(&h->meta)) < 0)
		r = complain(HFS_EXIT_SYSTEM, "metadata threads", r, "free some memory");
	if (r == 0) {
		origin_set_runner(h->origin, run_aside, h->meta);
		r = up_engine(h, s);
	}
	if (r == 0 && s->is_away)
		hfs_log(HFS_LOG_WARNING, "%s: not there, or empty: what the disk cache has of it is served until it comes", s->path);
	free(s);
	return r;
}

static void drop_lock(struct run *run)
{
	if (run->ctl_lock >= 0)
		close(run->ctl_lock);
	run->ctl_lock = -1;
}

static int up(struct run *run)
{
	struct hintfs *h = &run->h;
	int r;

	if ((r = up_storage(h)) != 0)
		return r;
	if ((r = data_session_create(h, &h->data)) < 0)
		return complain(HFS_EXIT_MOUNT, h->opts.mountpoint, r, "not mounted");
	life_mounts_note(&run->mounts, data_session_fd(h->data), -1); /* to be taken away should the rest fail */
	if ((r = control_session_create(h, &h->ctl)) < 0)
		return complain(HFS_EXIT_MOUNT, h->opts.ctl_dir, r, "control files not mounted; try another ctl=DIR");
	if (run->ready_fd >= 0)
		life_tie(0); /* nothing asks the origin from here on, and there are mounts to take away: life_ready() tells */
	life_mounts_note(&run->mounts, data_session_fd(h->data), control_session_fd(h->ctl));
	drop_lock(run);
	if ((r = control_session_start(h->ctl)) < 0 || (r = data_session_start(h->data, life_on_end, &run->life)) < 0)
		return complain(HFS_EXIT_SYSTEM, "session threads", r, "free some memory");
	return HFS_EXIT_OK;
}

/* ---- while it runs, and down -------------------------------------------------------------------------------- */

static void log_status(struct hintfs *h)
{
	struct cache_stats c;
	struct sched_stats s;

	engine_stats(h->engine, &c, &s);
	hfs_log(HFS_LOG_INFO,
		"status: up %llu s, origin %llu bytes in %llu reads, %llu errors, slots %u of %u used, %llu bytes in flight, "
		"%llu missed reads, oldest fetch %llu ms, %u threads of which %u at work",
		(unsigned long long)((hfs_now_ns() - h->started_ns) / HFS_NS_PER_S), (unsigned long long)c.origin_bytes,
		(unsigned long long)c.origin_reads, (unsigned long long)c.origin_errors, c.slots_used, c.slots_total,
		(unsigned long long)c.inflight_bytes, (unsigned long long)c.miss_reads,
		(unsigned long long)(c.oldest_fetch_ns / HFS_NS_PER_MS), c.threads, c.threads_busy);
}

static void reopen_log(const struct hfs_opts *o)
{
	int r = hfs_log_open(o->log, log_level(o));

	if (r < 0)
		hfs_log(HFS_LOG_ERROR, "log %s: %s; going on with the old one", o->log, strerror(-r));
	else
		hfs_log(HFS_LOG_INFO, "log reopened");
}

static void serve(struct run *run)
{
	struct hintfs *h = &run->h;

	for (;;) {
		switch (life_wait(&run->life)) {
		case LIFE_REOPEN_LOG:
			reopen_log(&h->opts);
			break;
		case LIFE_STATUS:
			log_status(h);
			break;
		case LIFE_ENDED:
			hfs_log(HFS_LOG_INFO, "%s: unmounted from outside, ending", h->opts.mountpoint);
			return;
		case LIFE_STOP:
			hfs_log(HFS_LOG_INFO, "%s: told to stop, unmounting", h->opts.mountpoint);
			return;
		}
	}
}

/* Also of what is half up. Does not return. */
__attribute__((noreturn)) static void down(struct run *run, int exit_code)
{
	struct hintfs *h = &run->h;
	bool is_quiet = true;
	int r;

	fuse_set_log_func(from_libfuse_at_end);
	r = life_guard(&run->life, &run->mounts, STOP_MS);
	drop_lock(run);
	if (r < 0) /* without a guard nothing may be waited for */
		life_leave(&run->mounts, false, exit_code);
	atomic_store(&h->is_stopping, true);
	if (h->data)
		data_session_stop(h->data);
	if (h->engine)
		engine_shutdown(h->engine);
	if (h->ctl)
		control_session_stop(h->ctl);
	atomic_store(&run->mounts.is_stopped, true);
	if (h->meta)
		meta_shutdown(h->meta);
	/* Threads that hang in the origin may wake up and use the rest: then it stays until the process is gone. */
	is_quiet = meta_destroy(h->meta, ENGINE_END_MS) && data_session_drain(h->data, ENGINE_END_MS);
	if (is_quiet) {
		control_session_destroy(h->ctl);
		data_session_destroy(h->data); /* gives handles back to the engine */
		is_quiet = engine_destroy(h->engine, ENGINE_END_MS);
	}
	if (is_quiet)
		origin_destroy(h->origin);
	if (exit_code == HFS_EXIT_OK) /* else the one line that matters was said */
		hfs_log(HFS_LOG_INFO, "%s: ended%s", h->opts.mountpoint, is_quiet ? "" : " (calls to the origin are left hanging)");
	if (!is_quiet)
		life_leave(&run->mounts, true, exit_code);
	life_clean(&run->mounts);
	exit(exit_code); /* so that leak checkers have their say; the guard still watches */
}

/* The daemon itself, in the foreground or as the child. */
__attribute__((noreturn)) static void be_daemon(struct run *run)
{
	struct hintfs *h = &run->h;
	int r = life_init(&run->life), code;

	if (r < 0) {
		hfs_log(HFS_LOG_ERROR, "signals: %s", strerror(-r));
		life_failed(run->ready_fd, HFS_EXIT_SYSTEM);
		exit(HFS_EXIT_SYSTEM);
	}
	h->started_ns = hfs_now_ns();
	/* Not before: the fork closes what is inherited. The command keeps others away until we are mounted. */
	if (run->mounts.is_ctl_dir_ours)
		run->mounts.ctl_hold = dirlock_hold(run->mounts.ctl_dir);
	code = up(run);
	if (code == 0) {
		r = hfs_log_open(h->opts.log, log_level(&h->opts));
		if (r < 0)
			code = complain(HFS_EXIT_SYSTEM, h->opts.log, r, "give another log=");
	}
	if (code != 0) {
		life_tie(0); /* the command ends when it hears of it, and there may be a mount to take away */
		life_failed(run->ready_fd, code);
		down(run, code);
	}
	hfs_log(HFS_LOG_INFO, "%s: mounted at %s, control files in %s, memory %llu MiB, chunk %llu KiB", h->opts.source, h->opts.mountpoint,
		h->opts.ctl_dir, (unsigned long long)(h->opts.memory_bytes >> 20), (unsigned long long)(h->opts.chunk_bytes >> 10));
	r = life_ready(run->ready_fd);
	if (r < 0) {
		hfs_log(HFS_LOG_ERROR, "the command that started this daemon is gone (%s), ending", strerror(-r));
		down(run, HFS_EXIT_SYSTEM);
	}
	serve(run);
	down(run, HFS_EXIT_OK);
}

/* The exit status of the command; the daemon does not return. */
static int start(struct run *run)
{
	pid_t pid;
	int r = prepare(run);

	if (r != 0)
		return r;
	if (!run->h.opts.is_foreground) {
		pid = life_fork(&run->ready_fd);
		if (pid == 0)
			run->ctl_lock = -1; /* closed with all inherited ones; the parent's keeps it locked */
		if (pid < 0) {
			hfs_say(stderr, "hintfs: no process can be started: %s\n", strerror((int)-pid));
			drop_lock(run);
			run->mounts.ctl_hold = dirlock_hold(run->mounts.ctl_dir);
			life_clean(&run->mounts);
		}
		if (pid != 0)
			return pid < 0 ? HFS_EXIT_SYSTEM : life_parent(pid, run->ready_fd, run->h.opts.source, run->h.opts.mountpoint, stderr);
	}
	be_daemon(run);
}

/* A caller may have closed them. What we open next must not get their numbers: life_ready() puts /dev/null there. */
static int open_stdio(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static bool has_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_max >= DESCRIPTORS_MIN)
		return true;
	hfs_say(stderr, "hintfs: the limit of open files is %u here, which is too few; give at least %u (ulimit -n, LimitNOFILE=)\n",
		(unsigned)r.rlim_max, DESCRIPTORS_MIN);
	return false;
}

int main(int argc, char **argv)
{
	/* Threads that hang in the origin point into it to the end of the process; so long lives this frame in the daemon. */
	struct run run = {.h = {.io = cache_io_system()}, .mounts = {.ctl_hold = -1, .mount_fd = -1, .ctl_fd = -1}, .ready_fd = -1, .ctl_lock = -1};
	int r;

	if (open_stdio() < 0 || !has_descriptors())
		return HFS_EXIT_SYSTEM;
	r = hfs_opts_parse(argc, argv, &run.h.opts, stdout, stderr);

	if (r != 0) {
		r = r < 0 ? HFS_EXIT_USAGE : HFS_EXIT_OK;
	} else {
		fuse_set_log_func(from_libfuse);
		r = start(&run);
	}
	hfs_opts_finish(&run.h.opts);
	return r;
}
