/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/opts.c - see opts.h. One table (options[]) names every option, for --long=VALUE and for the -o list alike; '_' and '-'
 * are the same in names, so that allow_other works as people know it.
 *
 * Invariants:
 *   1. Every refusal is one line on err: object, cause, cure.
 *   2. An option that has no effect in this version is unknown, not ignored: a mount must never run without something
 *      its owner relies on. Ignored are only the words fstab carries for others, and those that ask for what is anyway so.
 *   3. Called before the process has threads (bounded look-ups fork).
 */
#include "fs/opts.h"

#include "cache/base/log.h"
#include "fs/ctldir.h"
#include "fs/opts_value.h"
#include "fs/paths.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define CHUNK_DEFAULT (1ull << 20)
#define CHUNK_MIN     (64ull << 10)
#define CHUNK_MAX     (16ull << 20)
#define MEMORY_CAP    (8ull << 30) /* of the default only */
#define CHUNKS_MIN    4u	   /* one being read, one behind it, and two on their way: below that a reader only waits */
#define REVALIDATE_IMMUTABLE_S 86400.0
#define CACHE_SIZE_MIN (4ull << 20)
#define CACHE_FREE_PCT 10

enum kind { FLAG, SIZE, RATE, SECONDS, PERCENT, MODE, UID, GID, TEXT, IGNORED, READ_WRITE, REMOUNT, HELP, VERSION };

struct option_row {
	const char *name;
	enum kind kind;
	size_t offset; /* in struct hfs_opts */
	const char *value, *help; /* help NULL: not listed */
};

#define AT(field) offsetof(struct hfs_opts, field)

static const struct option_row options[] = {
	{ "memory", SIZE, AT(memory_bytes), "SIZE", "slot pool (default: a quarter of RAM or cgroup limit, at most 8G)" },
	{ "chunk", SIZE, AT(chunk_bytes), "SIZE", "unit of fetching: power of two, 64K to 16M (default 1M)" },
	{ "cache-dir", TEXT, AT(cache_dir), "DIR", "disk tier: keep data there too, over restarts (default: none)" },
	{ "cache-size", SIZE, AT(cache_size_bytes), "SIZE", "what it may take, as du counts; needed with cache-dir" },
	{ "cache-free", PERCENT, AT(cache_free_pct), "PERCENT", "blocks and inodes to leave free there (default 10)" },
	{ "immutable", FLAG, AT(is_immutable), NULL, "the dataset never changes while mounted: no revalidation" },
	{ "revalidate", SECONDS, AT(revalidate_s), "SECS", "how old an attribute may be (default 1)" },
	{ "nocto", FLAG, AT(is_nocto), NULL, "opens are not checked at the origin; a change is noticed within revalidate" },
	{ "origin-timeout", SECONDS, AT(origin_timeout_s), "SECS", "EIO after SECS without answer (default 0: wait)" },
	{ "prefetch-limit", RATE, AT(prefetch_limit_bytes_per_s), "BYTES/s", "most that prefetching may take from the origin (default 0: no limit)" },
	{ "ctl", TEXT, AT(ctl_dir), "DIR", "where the control files are mounted (default: /run/hintfs/MOUNTPOINT-ESCAPED)" },
	{ "uid", UID, AT(ctl_uid), "USER", "owner of the control files (default: who mounts)" },
	{ "gid", GID, AT(ctl_gid), "GROUP", "their group; makes them 0660 unless ctl-mode is given" },
	{ "ctl-mode", MODE, AT(ctl_mode), "MODE", "their mode, octal (default 0600)" },
	{ "allow-other", FLAG, AT(is_allow_other), NULL, "other users may read, as the files' modes allow" },
	{ "log", TEXT, AT(log), "WHERE", "stderr, syslog or a file (default: stderr with -f, else syslog)" },
	{ "foreground", FLAG, AT(is_foreground), NULL, "-f: stay in the foreground" },
	{ "debug", FLAG, AT(is_debug), NULL, "-d: foreground, and log every request" },
	{ "help", HELP, 0, NULL, "-h: this text" },
	{ "version", VERSION, 0, NULL, "-V: version" },
	{ "noexec", FLAG, AT(is_noexec), NULL, "no program may be started from the mount" },
	/* Words of fstab and of mount(8) that mean something to others, or ask for what is so anyway. */
	{ "rw", READ_WRITE, 0, NULL, NULL },
	{ "remount", REMOUNT, 0, NULL, NULL },
	{ "ro", IGNORED, 0, NULL, NULL },
	/* mount.fuse(8) adds these two for root (fstab's types fuse and fuse.hintfs) whenever nobody says otherwise. */
	{ "dev", IGNORED, 0, NULL, NULL },
	{ "suid", IGNORED, 0, NULL, NULL },
	{ "nosuid", IGNORED, 0, NULL, NULL },
	{ "nodev", IGNORED, 0, NULL, NULL },
	{ "exec", IGNORED, 0, NULL, NULL },
	{ "default-permissions", IGNORED, 0, NULL, NULL },
	{ "defaults", IGNORED, 0, NULL, NULL },
	{ "auto", IGNORED, 0, NULL, NULL },
	{ "noauto", IGNORED, 0, NULL, NULL },
	{ "nofail", IGNORED, 0, NULL, NULL },
	{ "user", IGNORED, 0, NULL, NULL },
	{ "users", IGNORED, 0, NULL, NULL },
	{ "nouser", IGNORED, 0, NULL, NULL },
	{ "owner", IGNORED, 0, NULL, NULL },
	{ "group", IGNORED, 0, NULL, NULL },
	{ "async", IGNORED, 0, NULL, NULL },
	{ "atime", IGNORED, 0, NULL, NULL },
	{ "noatime", IGNORED, 0, NULL, NULL },
	{ "nodiratime", IGNORED, 0, NULL, NULL },
	{ "relatime", IGNORED, 0, NULL, NULL },
	{ "_netdev", IGNORED, 0, NULL, NULL },
	{ "comment", IGNORED, 0, NULL, NULL },
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

/* The state of one parse. */
struct parse {
	struct hfs_opts *o;
	FILE *out, *err;
	bool is_mount_helper; /* called as mount.hintfs: -f is "fake", -s -n -v -t are mount(8)'s */
	bool is_fake, is_given[OPTIONS];
	bool is_done; /* -h, -V */
};

static const char examples[] =
	"Examples:\n"
	"  hintfs /nfs/imagenet /mnt/imagenet\n"
	"        mount it; read it as any directory; 'umount /mnt/imagenet' ends it\n"
	"  cat order.txt > /mnt/imagenet/.ctl/order\n"
	"        the paths, one a line, in the order they will be read: fetched just before they are needed\n"
	"  hintfs --memory=16G --immutable --allow-other /nfs/imagenet /mnt/imagenet\n"
	"        a dataset that never changes, for all users\n"
	"  hintfs -o memory=16G,allow-other,gid=train /nfs/imagenet /mnt/imagenet\n"
	"        all users may read, everybody in the group 'train' may write the order\n"
	"  /nfs/imagenet  /mnt/imagenet  hintfs  memory=16G,immutable,_netdev  0 0\n"
	"        the same in /etc/fstab\n";

static const char usage[] =
	"usage: hintfs [options] SOURCE MOUNTPOINT\n\n"
	"Mounts a read-only view of the directory SOURCE at MOUNTPOINT, which fetches ahead in the order that is written to\n"
	"MOUNTPOINT/.ctl/order.\n\n"
	"Options, as --NAME=VALUE or -o NAME=VALUE,NAME,... (sizes take K M G T, powers of 1024):\n";
static const char helper_usage[] =
	"usage: mount.hintfs SOURCE MOUNTPOINT [-o NAME=VALUE,NAME,...] [-fnsv]\n\n"
	"hintfs as mount(8) calls it: mount -t hintfs -o OPTIONS SOURCE MOUNTPOINT, or a line of /etc/fstab.\n"
	"  -f                      fake: check all, mount nothing (here it is not the foreground: that is -o foreground)\n"
	"  -n -s -v -t TYPE        taken from mount(8), without effect\n\n"
	"Options of the -o list (sizes take K M G T, powers of 1024):\n";

/* Called as mount.hintfs some letters mean something else. */
static const char *help_of(const struct option_row *r, bool is_helper)
{
	return is_helper && r->kind == FLAG && r->help[0] == '-' ? strchr(r->help, ':') + 2 : r->help;
}

static void print_help(FILE *out, bool is_helper)
{
	char left[64];

	fputs(is_helper ? helper_usage : usage, out);
	for (size_t i = 0; i < OPTIONS; i++) {
		const struct option_row *r = &options[i];

		if (!r->help)
			continue;
		snprintf(left, sizeof(left), "%s%s%s", r->name, r->value ? "=" : "", r->value ? r->value : "");
		fprintf(out, "  %-23s %s\n", left, help_of(r, is_helper));
	}
	fprintf(out, "Ignored: ro nosuid nodev (always so) dev suid _netdev nofail auto noauto user users defaults noatime x-* comment=*\n\n%s\n"
		     "Exit status: 0 mounted, 1 usage, 2 system error, 32 mount failure.\n",
		examples);
}

__attribute__((format(printf, 2, 3))) static int refuse(struct parse *p, const char *format, ...)
{
	char few[256], *text = NULL;
	va_list args;

	va_start(args, format);
	(void)vsnprintf(few, sizeof(few), format, args);
	va_end(args);
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	hfs_say(p->err, "hintfs: %s\n", text ? text : few);
	free(text);
	return -EINVAL;
}

static char fold(char c)
{
	return c == '_' ? '-' : c;
}

static bool is_name(const char *a, const char *b)
{
	while (*a && fold(*a) == fold(*b))
		a++, b++;
	return *a == '\0' && *b == '\0';
}

static const struct option_row *find(const char *name)
{
	for (size_t i = 0; i < OPTIONS; i++)
		if (is_name(options[i].name, name))
			return &options[i];
	return NULL;
}

/* The nearest listed name, if near enough to be what was meant. */
static const char *nearest(const char *name)
{
	size_t best = strlen(name) / 3 + 2;
	const char *found = NULL;

	for (size_t i = 0; i < OPTIONS; i++) {
		size_t d = opts_value_distance(name, options[i].name);

		if (d < best && d < strlen(options[i].name)) {
			best = d;
			found = options[i].name;
		}
	}
	return found;
}

static int refuse_unknown(struct parse *p, const char *name)
{
	const char *near = nearest(name);

	if (near)
		return refuse(p, "unknown option '%s' (did you mean '%s'?)", name, near);
	return refuse(p, "unknown option '%s'; 'hintfs --help' lists the known ones", name);
}

static int refuse_value(struct parse *p, const struct option_row *row, const char *value, int r)
{
	static const char *const forms[] = {
		[SIZE] = "a size such as 512M or 8G",
		[RATE] = "bytes a second such as 200M",
		[SECONDS] = "seconds such as 1 or 0.5",
		[PERCENT] = "a percentage from 0 to 99",
		[MODE] = "an octal mode within 0666, such as 0660",
		[UID] = "the name or number of a user",
		[GID] = "the name or number of a group",
		[TEXT] = "a value",
	};

	if (r == -ENOENT)
		return refuse(p, "%s=%s: there is no such %s; give %s", row->name, value, row->kind == UID ? "user" : "group",
			      forms[row->kind]);
	return refuse(p, "%s=%s: %s; give %s", row->name, value, r == -ERANGE ? "out of range" : "not understood", forms[row->kind]);
}

static int set_text(char **to, const char *value)
{
	char *copy;

	if (*value == '\0')
		return -EINVAL;
	copy = strdup(value);
	if (!copy)
		return -ENOMEM;
	free(*to);
	*to = copy;
	return 0;
}

static int set_value(void *field, enum kind kind, const char *value)
{
	switch (kind) {
	case SIZE:
		return opts_value_size(value, field);
	case RATE:
		return opts_value_rate(value, field);
	case SECONDS:
		return opts_value_seconds(value, field);
	case PERCENT:
		return opts_value_percent(value, field);
	case MODE:
		return opts_value_mode(value, field);
	case UID:
		return opts_value_uid(value, field);
	case GID:
		return opts_value_gid(value, field);
	default:
		return set_text(field, value);
	}
}

/* One option, from either form. value NULL: none was given. */
static int set_option(struct parse *p, const char *name, const char *value)
{
	const struct option_row *row = find(name);
	void *field;
	int r;

	if (!row) {
		if (strncasecmp(name, "x-", 2) == 0)
			return 0;
		return refuse_unknown(p, name);
	}
	field = (char *)p->o + row->offset;
	p->is_given[row - options] = true;
	switch (row->kind) {
	case IGNORED:
		return 0;
	case READ_WRITE:
		/* mount(8) says rw whenever nobody says ro. */
		if (!p->is_mount_helper)
			fprintf(p->err, "hintfs: note: 'rw' has no effect, the mount is read-only\n");
		return 0;
	case REMOUNT:
		return refuse(p, "remount: the options of a mount can't be changed in place; umount it and mount it again");
	case HELP:
		print_help(p->out, p->is_mount_helper);
		p->is_done = true;
		return 0;
	case VERSION:
		fprintf(p->out, "hintfs %s\n", HINTFS_VERSION);
		p->is_done = true;
		return 0;
	case FLAG:
		if (value)
			return refuse(p, "%s=%s: this option takes no value; leave '=%s' away", row->name, value, value);
		*(bool *)field = true;
		return 0;
	default:
		break;
	}
	if (!value)
		return refuse(p, "%s: a value is missing; write %s=%s", row->name, row->name, row->value);
	r = set_value(field, row->kind, value);
	if (r == -ENOMEM)
		return refuse(p, "%s: out of memory", row->name);
	return r < 0 ? refuse_value(p, row, value, r) : 0;
}

/* "name" or "name=value"; text is changed. */
static int set_pair(struct parse *p, char *text)
{
	char *value = strchr(text, '=');

	if (value)
		*value++ = '\0';
	if (*text == '\0')
		return value ? refuse(p, "'=%s' in the options has no name before the '='", value) : 0;
	return set_option(p, text, value);
}

/* A comma list as fuse and mount(8) write it: "\," is a comma, "\\" a backslash. */
static int set_list(struct parse *p, const char *list)
{
	char *one = malloc(strlen(list) + 1);
	int r = one ? 0 : refuse(p, "out of memory");

	while (one && r == 0 && *list) {
		size_t n = 0;

		while (*list && *list != ',') {
			if (*list == '\\' && (list[1] == ',' || list[1] == '\\'))
				list++;
			one[n++] = *list++;
		}
		one[n] = '\0';
		if (*list == ',')
			list++;
		r = set_pair(p, one);
	}
	free(one);
	return r;
}

/* ---- the command line -------------------------------------------------------------------------------- */

/* "--name" is the next argument's option if it needs a value; getopt_long needs the table in its own form. */
static void fill_long(struct option *to)
{
	for (size_t i = 0; i < OPTIONS; i++) {
		bool has_value = options[i].value != NULL;

		to[i] = (struct option){ .name = options[i].name, .has_arg = has_value ? required_argument : optional_argument,
					 .val = 0x100 + (int)i };
	}
	to[OPTIONS] = (struct option){ 0 };
}

/* getopt said '?' or ':': name what it stumbled over. */
static int refuse_argument(struct parse *p, char **argv, int c)
{
	const char *word = argv[optind - 1];
	char name[64];

	if (optopt >= 0x100 && optopt < 0x100 + (int)OPTIONS)
		return set_option(p, options[optopt - 0x100].name, NULL);
	if (optopt > 0 && c == ':')
		return refuse(p, "-%c: a value is missing; see 'hintfs --help'", optopt);
	if (optopt > 0)
		return refuse(p, "unknown option '-%c'; 'hintfs --help' lists the known ones", optopt);
	word += strspn(word, "-");
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
	if (find(name)) /* allow_other for allow-other */
		return set_option(p, name, strchr(word, '=') ? strchr(word, '=') + 1 : NULL);
	if (strncasecmp(name, "x-", 2) == 0)
		return 0;
	return refuse_unknown(p, name);
}

static int take_short(struct parse *p, int c, const char *value)
{
	switch (c) {
	case 'o':
		return set_list(p, value);
	case 'f':
		if (p->is_mount_helper)
			p->is_fake = true;
		else
			p->o->is_foreground = true;
		return 0;
	case 'd':
		p->o->is_debug = true;
		return 0;
	case 'h':
		return set_option(p, "help", NULL);
	case 'V':
		return set_option(p, "version", NULL);
	case 'N':
		return refuse(p, "-N %s: a mount in another namespace is made there: nsenter --mount=... hintfs SOURCE MOUNTPOINT", value);
	default: /* -s -n -v -t: mount(8)'s own business */
		return 0;
	}
}

/* Sets every option; *ret_first is the index of the first word that is none. */
static int take_arguments(struct parse *p, int argc, char **argv, int *ret_first)
{
	const char *shorts = p->is_mount_helper ? ":o:fdhVsnvt:N:" : ":o:fdhV";
	struct option longs[OPTIONS + 1];
	int c, r = 0;

	fill_long(longs);
	optind = 0; /* glibc: start afresh */
	opterr = 0;
	while (r == 0 && !p->is_done && (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		if (c == '?' || c == ':')
			r = refuse_argument(p, argv, c);
		else if (c >= 0x100)
			r = set_option(p, options[c - 0x100].name, optarg);
		else
			r = take_short(p, c, optarg);
	}
	*ret_first = optind;
	return r;
}

/* ---- what the numbers mean together -------------------------------------------------------------------- */

static int check_chunk(struct parse *p)
{
	struct hfs_opts *o = p->o;
	char text[24];

	if (o->chunk_bytes == 0 && !p->is_given[find("chunk") - options])
		o->chunk_bytes = CHUNK_DEFAULT;
	if (o->chunk_bytes >= CHUNK_MIN && o->chunk_bytes <= CHUNK_MAX && (o->chunk_bytes & (o->chunk_bytes - 1)) == 0)
		return 0;
	return refuse(p, "chunk=%s: must be a power of two from 64K to 16M; 1M suits most datasets",
		      opts_value_size_text(o->chunk_bytes, text, sizeof(text)));
}

static int check_memory(struct parse *p)
{
	struct hfs_opts *o = p->o;
	uint64_t limit = opts_value_memory_limit(), least = CHUNKS_MIN * o->chunk_bytes;
	char a[24], b[24], c[24];

	if (!p->is_given[find("memory") - options]) {
		o->memory_bytes = limit / 4 < MEMORY_CAP ? limit / 4 : MEMORY_CAP;
		o->memory_bytes -= o->memory_bytes % o->chunk_bytes;
		if (o->memory_bytes < least)
			o->memory_bytes = least;
	}
	if (o->memory_bytes < least)
		return refuse(p, "memory=%s: less than one reader needs, which is %u chunks of %s; give memory=%s or a smaller chunk",
			      opts_value_size_text(o->memory_bytes, a, sizeof(a)), CHUNKS_MIN,
			      opts_value_size_text(o->chunk_bytes, b, sizeof(b)), opts_value_size_text(least, c, sizeof(c)));
	if (limit && o->memory_bytes > limit)
		return refuse(p, "memory=%s: more than this machine or cgroup has, which is %lluM; give less",
			      opts_value_size_text(o->memory_bytes, a, sizeof(a)), (unsigned long long)(limit >> 20));
	return 0;
}

static void fill_defaults(struct parse *p)
{
	struct hfs_opts *o = p->o;

	if (!p->is_given[find("revalidate") - options])
		o->revalidate_s = o->is_immutable ? REVALIDATE_IMMUTABLE_S : 1.0;
	if (!p->is_given[find("uid") - options])
		o->ctl_uid = getuid();
	if (!p->is_given[find("gid") - options])
		o->ctl_gid = getgid();
	if (!p->is_given[find("ctl-mode") - options])
		o->ctl_mode = p->is_given[find("gid") - options] ? 0660 : 0600;
	if (!p->is_given[find("cache-free") - options])
		o->cache_free_pct = CACHE_FREE_PCT;
	if (o->is_debug)
		o->is_foreground = true;
}

static int check_combination(struct parse *p)
{
	if (p->o->is_immutable && p->is_given[find("revalidate") - options])
		return refuse(p, "immutable and revalidate=: immutable means that nothing is ever revalidated; give one of them");
	if (p->o->is_immutable && p->o->is_nocto)
		return refuse(p, "immutable and nocto: immutable already leaves the check at open out; give one of them");
	return 0;
}

static int check_cache(struct parse *p)
{
	struct hfs_opts *o = p->o;
	uint64_t least = o->chunk_bytes * CHUNKS_MIN > CACHE_SIZE_MIN ? o->chunk_bytes * CHUNKS_MIN : CACHE_SIZE_MIN;
	bool is_sized = p->is_given[find("cache-size") - options];
	char a[24], b[24];

	if (!o->cache_dir && (is_sized || p->is_given[find("cache-free") - options]))
		return refuse(p, "%s without cache-dir=: there is no disk tier to limit; give cache-dir=DIR too, or leave it away",
			      is_sized ? "cache-size=" : "cache-free=");
	if (o->cache_dir && !is_sized)
		return refuse(p, "cache-dir=%s without cache-size=: say how much of that disk may be taken, such as cache-size=100G",
			      o->cache_dir);
	if (o->cache_dir && o->cache_size_bytes < least)
		return refuse(p, "cache-size=%s: too small to be of use; give at least %s",
			      opts_value_size_text(o->cache_size_bytes, a, sizeof(a)), opts_value_size_text(least, b, sizeof(b)));
	return 0;
}

/* ---- paths ------------------------------------------------------------------------------------------------ */

static int refuse_paths(struct parse *p, const struct paths *paths, const char *source, const char *mountpoint)
{
	switch (paths->problem) {
	case PATHS_SOURCE:
		return refuse(p, "SOURCE %s: %s; give an existing directory that you may enter", source, strerror(-paths->err));
	case PATHS_SOURCE_NOT_DIR:
		return refuse(p, "SOURCE %s: not a directory; give the directory that holds the dataset", source);
	case PATHS_MOUNTPOINT:
		return refuse(p, "MOUNTPOINT %s: %s; make it first: mkdir -p %s", mountpoint, strerror(-paths->err), mountpoint);
	case PATHS_MOUNTPOINT_NOT_DIR:
		return refuse(p, "MOUNTPOINT %s: not a directory; give an (empty) directory", mountpoint);
	case PATHS_SAME:
		return refuse(p, "SOURCE and MOUNTPOINT are the same directory %s; mount somewhere else", paths->source);
	case PATHS_SOURCE_BELOW:
		return refuse(p, "SOURCE %s lies inside MOUNTPOINT %s, which would hide it; mount somewhere else", paths->source,
			      paths->mountpoint);
	case PATHS_MOUNTPOINT_BELOW:
		return refuse(p, "MOUNTPOINT %s lies inside SOURCE %s, so the mount would contain itself; mount somewhere else",
			      paths->mountpoint, paths->source);
	default:
		return refuse(p, "SOURCE %s or MOUNTPOINT %s does not answer (%s); is the server it lies on reachable?", source,
			      mountpoint, strerror(-paths->err));
	}
}

static int take_paths(struct parse *p, int n, char **words)
{
	struct paths *paths;
	int r = 0;

	if (n != 2)
		return refuse(p, "%s; usage: hintfs [options] SOURCE MOUNTPOINT (see 'hintfs --help')",
			      n == 0 ? "SOURCE and MOUNTPOINT are missing" : n == 1 ? "MOUNTPOINT is missing" : "too many arguments");
	if (!words[0][0] || !words[1][0])
		return refuse(p, "%s is empty; usage: hintfs [options] SOURCE MOUNTPOINT", words[0][0] ? "MOUNTPOINT" : "SOURCE");
	paths = calloc(1, sizeof(*paths));
	if (!paths)
		return refuse(p, "out of memory");
	if (p->o->is_immutable && p->o->cache_dir) /* what the disk tier has of it can be served without */
		paths_resolve_away(words[0], words[1], paths);
	else
		paths_resolve(words[0], words[1], paths);
	if (paths->problem != PATHS_OK) {
		r = refuse_paths(p, paths, words[0], words[1]);
	} else {
		p->o->source = strdup(paths->source);
		p->o->mountpoint = strdup(paths->mountpoint);
		if (!p->o->source || !p->o->mountpoint)
			r = refuse(p, "out of memory");
	}
	free(paths);
	return r;
}

/* A path of ours must not lie where our own work would meet it again. */
static int check_outside(struct parse *p, const char *option, const char *path)
{
	if (paths_is_below(path, p->o->mountpoint))
		return refuse(p, "%s=%s lies inside MOUNTPOINT %s, so the daemon would wait for itself; put it elsewhere", option, path,
			      p->o->mountpoint);
	if (paths_is_below(path, p->o->source))
		return refuse(p, "%s=%s lies inside SOURCE %s, where nothing is ever written; put it elsewhere", option, path,
			      p->o->source);
	return 0;
}

/* The control session hides what lies below the directory it is mounted on. */
static int check_hides_nothing(struct parse *p)
{
	const struct hfs_opts *o = p->o;

	if (paths_is_below(o->mountpoint, o->ctl_dir) || paths_is_below(o->source, o->ctl_dir))
		return refuse(p, "ctl=%s holds %s, which the control files would hide; give an empty directory", o->ctl_dir,
			      paths_is_below(o->source, o->ctl_dir) ? o->source : o->mountpoint);
	return 0;
}

static int make_absolute(struct parse *p, const char *option, char **path)
{
	char *absolute;
	int r = paths_absolute(*path, &absolute);

	if (r < 0)
		return refuse(p, "%s=%s: %s; give another path", option, *path, strerror(-r));
	free(*path);
	*path = absolute;
	return check_outside(p, option, absolute);
}

static int take_ctl_dir(struct parse *p)
{
	char *dir;
	int r;

	if (p->o->ctl_dir) {
		r = make_absolute(p, "ctl", &p->o->ctl_dir);
		return r < 0 ? r : check_hides_nothing(p);
	}
	r = ctldir_default(p->o->mountpoint, &dir);
	if (r == -ENOENT)
		return refuse(p, "there is no runtime directory for the control files (XDG_RUNTIME_DIR is unset); give ctl=DIR");
	if (r < 0)
		return refuse(p, "no control directory can be named after %s: %s; give ctl=DIR", p->o->mountpoint, strerror(-r));
	p->o->ctl_dir = dir;
	p->o->is_ctl_default = true;
	return check_outside(p, "ctl", dir);
}

static int take_log(struct parse *p)
{
	struct hfs_opts *o = p->o;

	if (!o->log) {
		o->log = strdup(o->is_foreground ? "stderr" : "syslog");
		return o->log ? 0 : refuse(p, "out of memory");
	}
	if (strcmp(o->log, "syslog") == 0)
		return 0;
	if (strcmp(o->log, "stderr") == 0)
		return o->is_foreground ? 0 : refuse(p, "log=stderr: a daemon has no stderr; add -f, or give log=FILE");
	return make_absolute(p, "log", &o->log);
}

static int parse(struct parse *p, int argc, char **argv)
{
	int first, r = take_arguments(p, argc, argv, &first);

	if (r < 0 || p->is_done)
		return r;
	fill_defaults(p);
	if ((r = check_combination(p)) < 0 || (r = check_chunk(p)) < 0 || (r = check_memory(p)) < 0 ||
	    (r = check_cache(p)) < 0)
		return r;
	if ((r = take_paths(p, argc - first, argv + first)) < 0 || (r = take_ctl_dir(p)) < 0)
		return r;
	if (p->o->cache_dir && (r = make_absolute(p, "cache-dir", &p->o->cache_dir)) < 0)
		return r;
	return take_log(p);
}

int hfs_opts_parse(int argc, char **argv, struct hfs_opts *ret, FILE *out, FILE *err)
{
	const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
	struct parse p = { .o = ret, .out = out, .err = err };
	int r;

	memset(ret, 0, sizeof(*ret));
	name = name ? name + 1 : (argc > 0 ? argv[0] : "hintfs");
	p.is_mount_helper = strncmp(name, "mount.", 6) == 0;
	r = parse(&p, argc, argv);
	if (r < 0)
		hfs_opts_finish(ret);
	return r < 0 ? r : (p.is_done || p.is_fake);
}

void hfs_opts_finish(struct hfs_opts *o)
{
	free(o->source);
	free(o->mountpoint);
	free(o->ctl_dir);
	free(o->log);
	free(o->cache_dir);
	memset(o, 0, sizeof(*o));
}
