/* SPDX-License-Identifier: Apache-2.0
 *
 * slowfs [options] SOURCE MOUNTPOINT: start and stop. See slowfs.h and README.md.
 *
 * Stop (signal, `quit`, end of --watch-fd, or the mount gone): parked requests
 * are failed, the mount is detached, the process leaves by _exit(), which closes
 * /dev/fuse and so aborts whatever is left. Nothing here waits for a request.
 */
#include "tests/fault/slowfs.h"

#include "fs/fuse_reply.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define DEFAULT_LOG_RECORDS 1048576

static const char usage_text[] =
	"usage: slowfs [options] SOURCE MOUNTPOINT\n"
	"  --latency=DUR  --latency-meta=DUR  --latency-read=DUR   of a round trip\n"
	"  --bandwidth=RATE      shared by all READs; K M G are 1000s, Ki Mi Gi 1024s\n"
	"  --attr-timeout=DUR --entry-timeout=DUR --dir-timeout=DUR  kernel caches (0)\n"
	"  --attr-cache          the three at 1 h: stat is stale, open is not\n"
	"  --nfs-cache           files 3 s, directories 30 s: nfs(5) acregmin, acdirmin\n"
	"  --page-cache          let the kernel cache pages (default: each read comes here)\n"
	"  --read-ahead=SIZE     of the kernel, with --page-cache (root)\n"
	"  --interrupt=kill|any|ignore  of requests that are delayed 50 ms or more\n"
	"  --rule='glob=… op=… errno=…'  as on the socket; may be repeated\n"
	"  --hang=GLOB           start hung; may be repeated\n"
	"  --seed=N --log-size=RECORDS --threads=N\n"
	"  --ctl=PATH            control socket\n"
	"  --background          return when mounted\n"
	"  --ready-fd=N          a byte is written there when mounted\n"
	"  --watch-fd=N          stop when its other end is closed\n"
	"Durations: 250us 1ms 2s; without a unit ms, for timeouts s.\n";

static void die(const char *what, int err)
{
	if (err)
		fprintf(stderr, "slowfs: %s: %s\n", what, strerror(err));
	else
		fprintf(stderr, "slowfs: %s\n", what);
	exit(1);
}

void slowfs_stop(struct slowfs *sf)
{
	/* whatever blocks below must not keep us: SIGALRM ends the process */
	signal(SIGALRM, SIG_DFL);
	sigset_t alarms;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
	alarm(1);
	if (sf->ctl_path)
		unlink(sf->ctl_path);
	slow_queue_drain(sf);
	umount2(sf->mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW);
	alarm(0); /* a sanitizer's own exit may take a second */
	_exit(0);
}

enum option_id {
	OPT_LATENCY = 256, OPT_LATENCY_META, OPT_LATENCY_READ, OPT_BANDWIDTH,
	OPT_ATTR, OPT_ENTRY, OPT_DIR, OPT_ATTR_CACHE, OPT_NFS_CACHE, OPT_PAGE_CACHE, OPT_DIRECT,
	OPT_READ_AHEAD, OPT_INTERRUPT, OPT_RULE, OPT_HANG, OPT_SEED, OPT_LOG_SIZE,
	OPT_THREADS, OPT_CTL, OPT_BACKGROUND, OPT_READY_FD, OPT_WATCH_FD,
};

static const struct option long_options[] = {
	{ "latency", 1, NULL, OPT_LATENCY },
	{ "latency-meta", 1, NULL, OPT_LATENCY_META },
	{ "latency-read", 1, NULL, OPT_LATENCY_READ },
	{ "bandwidth", 1, NULL, OPT_BANDWIDTH },
	{ "attr-timeout", 1, NULL, OPT_ATTR },
	{ "entry-timeout", 1, NULL, OPT_ENTRY },
	{ "dir-timeout", 1, NULL, OPT_DIR },
	{ "attr-cache", 0, NULL, OPT_ATTR_CACHE },
	{ "nfs-cache", 0, NULL, OPT_NFS_CACHE },
	{ "page-cache", 0, NULL, OPT_PAGE_CACHE },
	{ "direct", 0, NULL, OPT_DIRECT },
	{ "read-ahead", 1, NULL, OPT_READ_AHEAD },
	{ "interrupt", 1, NULL, OPT_INTERRUPT },
	{ "rule", 1, NULL, OPT_RULE },
	{ "hang", 1, NULL, OPT_HANG },
	{ "seed", 1, NULL, OPT_SEED },
	{ "log-size", 1, NULL, OPT_LOG_SIZE },
	{ "threads", 1, NULL, OPT_THREADS },
	{ "ctl", 1, NULL, OPT_CTL },
	{ "background", 0, NULL, OPT_BACKGROUND },
	{ "ready-fd", 1, NULL, OPT_READY_FD },
	{ "watch-fd", 1, NULL, OPT_WATCH_FD },
	{ "help", 0, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

struct startup {
	uint64_t log_records;
	bool is_background;
};

static bool set_latency(struct slowfs *sf, unsigned mask, const char *text)
{
	uint64_t ns;

	if (!slow_parse_ns(text, 1000000, &ns))
		return false;
	for (int op = 0; op < SLOW_RELEASE; op++)
		if (mask & SLOW_MASK(op))
			atomic_store(&sf->latency_ns[op], ns);
	return true;
}

static bool set_timeout(atomic_uint_fast64_t *to, const char *text)
{
	uint64_t ns;

	if (!slow_parse_ns(text, SLOW_NS_PER_S, &ns))
		return false;
	atomic_store(to, ns);
	return true;
}

static bool set_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	return slow_parse_u64(text, ret) && *ret >= min && *ret <= max;
}

/* The process changes to the source directory later. */
static char *absolute(const char *path)
{
	char *cwd = getcwd(NULL, 0), *text = NULL;

	if (*path == '/')
		text = strdup(path);
	else if (!cwd || asprintf(&text, "%s/%s", cwd, path) < 0)
		text = NULL;
	free(cwd);
	return text;
}

static bool add_rule(struct slowfs *sf, char *text)
{
	char *words[32], *save;
	const char *error = NULL;
	size_t n = 0;

	for (char *w = strtok_r(text, " ", &save); w && n < 32; w = strtok_r(NULL, " ", &save))
		words[n++] = w;
	return slow_rules_add(&sf->rules, words, n, &error) != 0;
}

static bool take_option(struct slowfs *sf, struct startup *s, int id, char *arg)
{
	enum slow_intr intr;
	uint64_t n = 0;

	switch (id) {
	case OPT_LATENCY:      return set_latency(sf, SLOW_MASK_ALL, arg);
	case OPT_LATENCY_META: return set_latency(sf, SLOW_MASK_META, arg);
	case OPT_LATENCY_READ: return set_latency(sf, SLOW_MASK(SLOW_READ), arg);
	case OPT_BANDWIDTH:
		if (!slow_parse_size(arg, true, &n))
			return false;
		atomic_store(&sf->bandwidth, n);
		return true;
	case OPT_ATTR:       return set_timeout(&sf->attr_ns, arg);
	case OPT_ENTRY:      return set_timeout(&sf->entry_ns, arg);
	case OPT_DIR:        return set_timeout(&sf->dir_ns, arg);
	case OPT_ATTR_CACHE:
		return set_timeout(&sf->attr_ns, "3600") && set_timeout(&sf->entry_ns, "3600") &&
		       set_timeout(&sf->dir_ns, "3600");
	case OPT_NFS_CACHE:
		return set_timeout(&sf->attr_ns, "3") && set_timeout(&sf->entry_ns, "3") &&
		       set_timeout(&sf->dir_ns, "30");
	case OPT_PAGE_CACHE: sf->has_page_cache = true; return true;
	case OPT_DIRECT:     sf->has_page_cache = false; return true;
	case OPT_READ_AHEAD: return slow_parse_size(arg, false, &sf->read_ahead_bytes) &&
				    sf->read_ahead_bytes <= 1u << 30;
	case OPT_INTERRUPT:
		if (!slow_parse_intr(arg, &intr))
			return false;
		atomic_store(&sf->intr, (int)intr);
		return true;
	case OPT_RULE:       return add_rule(sf, arg);
	case OPT_HANG:       return slow_queue_hang(sf, arg, SLOW_MASK_ALL, SLOW_INTR_KILL) == 0;
	case OPT_SEED:
		if (!slow_parse_u64(arg, &n))
			return false;
		slow_rules_seed(&sf->rules, n);
		return true;
	case OPT_LOG_SIZE:   return set_number(arg, 16, 1u << 28, &s->log_records);
	case OPT_THREADS:
		if (!set_number(arg, 1, 64, &n))
			return false;
		sf->threads = (unsigned)n;
		return true;
	case OPT_CTL:        return (sf->ctl_path = absolute(arg)) != NULL;
	case OPT_BACKGROUND: s->is_background = true; return true;
	case OPT_READY_FD:
	case OPT_WATCH_FD:
		if (!set_number(arg, 0, 1u << 20, &n))
			return false;
		*(id == OPT_READY_FD ? &sf->ready_fd : &sf->watch_fd) = (int)n;
		return fcntl((int)n, F_SETFD, FD_CLOEXEC) == 0;
	default: return false;
	}
}

static void parse_command_line(struct slowfs *sf, struct startup *s, int argc, char **argv)
{
	int id, index = 0;

	while ((id = getopt_long(argc, argv, "fh", long_options, &index)) != -1) {
		if (id == 'h') {
			fputs(usage_text, stdout);
			exit(0);
		}
		if (id == 'f')
			continue; /* the default */
		if (id == '?' || !take_option(sf, s, id, optarg)) {
			if (id != '?')
				fprintf(stderr, "slowfs: bad --%s: %s\n",
					long_options[index].name, optarg ? optarg : "");
			fputs("slowfs: see --help\n", stderr);
			exit(1);
		}
	}
	if (argc - optind != 2) {
		fputs(usage_text, stderr);
		exit(1);
	}
	sf->source = realpath(argv[optind], NULL);
	if (!sf->source)
		die(argv[optind], errno);
	sf->mountpoint = realpath(argv[optind + 1], NULL);
	if (!sf->mountpoint)
		die(argv[optind + 1], errno);
}

/* A comma in SOURCE would end the mount option. */
static void add_mount_options(struct slowfs *sf, struct fuse_args *args)
{
	char *text, *at;

	if (asprintf(&text, "-oro,nosuid,nodev,noatime,subtype=slowfs,fsname=%s", sf->source) < 0)
		die("out of memory", 0);
	at = strstr(text, "fsname=") + strlen("fsname=");
	for (; *at; at++)
		if (*at == ',' || *at == '\\' || *at == '\n')
			*at = '_';
	fuse_opt_add_arg(args, "slowfs");
	fuse_opt_add_arg(args, text);
	if (geteuid() == 0)
		fuse_opt_add_arg(args, "-oallow_other,default_permissions");
	free(text);
}

/* The kernel gives each FUSE mount 128 KiB. Raised before INIT is answered, where
 * the kernel takes the smaller of this and the answer (see on_init). */
static void set_read_ahead(const struct slowfs *sf)
{
	char name[80];
	struct statx root;

	if (!sf->read_ahead_bytes)
		return;
	/* INIT is not answered yet: only a stat that asks nobody returns */
	if (statx(AT_FDCWD, sf->mountpoint, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0, &root) < 0)
		die(sf->mountpoint, errno);
	snprintf(name, sizeof(name), "/sys/class/bdi/%u:%u/read_ahead_kb",
		 root.stx_dev_major, root.stx_dev_minor);
	FILE *f = fopen(name, "we");
	if (f)
		fprintf(f, "%llu\n", (unsigned long long)sf->read_ahead_bytes / 1024);
	if (!f || fclose(f))
		fprintf(stderr, "slowfs: cannot set %s: %s\n", name, strerror(errno));
}

static void raise_descriptor_limit(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
		lim.rlim_cur = lim.rlim_max;
		setrlimit(RLIMIT_NOFILE, &lim);
	}
}

/* Parent of --background: waits for the child's word and returns its outcome. */
static void go_background(struct slowfs *sf)
{
	int fds[2];
	char byte;

	if (pipe2(fds, O_CLOEXEC) < 0)
		die("pipe", errno);
	pid_t child = fork();
	if (child < 0)
		die("fork", errno);
	if (child) {
		close(fds[1]);
		_exit(read(fds[0], &byte, 1) == 1 ? 0 : 1);
	}
	close(fds[0]);
	setsid();
	sf->ready_fd = fds[1];
}

static void block_signals(struct slowfs *sf)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	sf->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	if (sf->signal_fd < 0)
		die("signalfd", errno);
}

static void prepare(struct slowfs *sf, const struct startup *s)
{
	struct statx root;
	int err;

	if (sf->ctl_path && (err = slow_ctl_listen(sf)) < 0)
		die(sf->ctl_path, -err);
	if (chdir(sf->source) < 0)
		die(sf->source, errno);
	if (statx(AT_FDCWD, ".", 0, STATX_BASIC_STATS | STATX_BTIME, &root) < 0)
		die(sf->source, errno);
	if (slow_log_init(&sf->log, s->log_records) < 0 || slow_nodes_init(&sf->nodes, &root) < 0)
		die("out of memory", 0);
}

static int serve(struct slowfs *sf)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);

	add_mount_options(sf, &args);
	sf->session = fuse_session_new(&args, &slow_ops, sizeof(slow_ops), sf);
	if (!sf->session)
		die("cannot make a FUSE session", 0);
	if (fuse_session_mount(sf->session, sf->mountpoint) != 0)
		die("mount failed", 0);
	set_read_ahead(sf);
	if (slow_ctl_start(sf) < 0)
		slowfs_stop(sf);
	if (fuse_reply_init(sf->session) < 0)
		slowfs_stop(sf);
	return slow_queue_serve(sf);
}

int main(int argc, char **argv)
{
	static struct slowfs sf = {
		.threads = 7, .ready_fd = -1, .watch_fd = -1,
		.listen_fd = -1, .signal_fd = -1,
	};
	struct startup s = { .log_records = DEFAULT_LOG_RECORDS };

	slow_rules_init(&sf.rules, 1);
	if (slow_queue_init(&sf.queue) < 0)
		die("out of memory", 0);
	parse_command_line(&sf, &s, argc, argv);
	raise_descriptor_limit();
	prepare(&sf, &s);
	if (s.is_background)
		go_background(&sf);
	block_signals(&sf);
	if (serve(&sf) != 0)
		slowfs_stop(&sf);
	/* unmounted by somebody else: the place may already hold another mount */
	if (sf.ctl_path)
		unlink(sf.ctl_path);
	_exit(0);
}
