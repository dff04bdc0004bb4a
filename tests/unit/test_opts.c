/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: every option in both forms, what is refused and with which words, defaults, and the values' own parsers.
 */
#include "fs/ctldir.h"
#include "fs/opts.h"
#include "fs/opts_value.h"
#include "fs/paths.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARGS_MAX 16

static char base[] = "/tmp/hintfs-opts-XXXXXX";
static char source[64], mountpoint[64];

static void set_up(void)
{
	char *real;

	cr_assert_not_null(mkdtemp(base));
	real = realpath(base, NULL);
	cr_assert_not_null(real);
	snprintf(source, sizeof(source), "%s/src", real);
	snprintf(mountpoint, sizeof(mountpoint), "%s/mnt", real);
	free(real);
	cr_assert_eq(mkdir(source, 0755), 0);
	cr_assert_eq(mkdir(mountpoint, 0755), 0);
	setenv("XDG_RUNTIME_DIR", "/tmp", 1);
}

static void tear_down(void)
{
	rmdir(source);
	rmdir(mountpoint);
	rmdir(base);
}

TestSuite(opts, .init = set_up, .fini = tear_down);

struct outcome {
	int r;
	struct hfs_opts o;
	char *out, *err; /* what was said */
};

/* program, then words up to NULL; "S" and "M" stand for the two directories. */
static struct outcome run(const char *program, const char *const *words)
{
	struct outcome oc;
	char *argv[ARGS_MAX + 1], *copies[ARGS_MAX + 1];
	size_t out_len, err_len;
	FILE *out = open_memstream(&oc.out, &out_len), *err = open_memstream(&oc.err, &err_len);
	int n = 0;

	argv[n++] = strdup(program);
	for (; *words; words++) {
		cr_assert_lt(n, ARGS_MAX);
		argv[n++] = strdup(strcmp(*words, "S") == 0 ? source : strcmp(*words, "M") == 0 ? mountpoint : *words);
	}
	argv[n] = NULL;
	memcpy(copies, argv, sizeof(copies));
	oc.r = hfs_opts_parse(n, argv, &oc.o, out, err);
	fclose(out);
	fclose(err);
	for (int i = 0; i < n; i++)
		free(copies[i]);
	return oc;
}

static void done(struct outcome *oc)
{
	hfs_opts_finish(&oc->o);
	free(oc->out);
	free(oc->err);
}

#define RUN(...) run("hintfs", (const char *const[]){ __VA_ARGS__, NULL })

Test(opts, defaults)
{
	struct outcome oc = RUN("S", "M");

	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_str_eq(oc.err, "");
	cr_assert_str_eq(oc.o.source, source);
	cr_assert_str_eq(oc.o.mountpoint, mountpoint);
	cr_assert_eq(oc.o.chunk_bytes, 1u << 20);
	cr_assert_geq(oc.o.memory_bytes, 4u << 20);
	cr_assert_leq(oc.o.memory_bytes, 8ull << 30);
	cr_assert_eq(oc.o.memory_bytes % oc.o.chunk_bytes, 0);
	cr_assert_float_eq(oc.o.revalidate_s, 1.0, 1e-9);
	cr_assert_float_eq(oc.o.origin_timeout_s, 0.0, 1e-9);
	cr_assert_eq(oc.o.ctl_uid, getuid());
	cr_assert_eq(oc.o.ctl_gid, getgid());
	cr_assert_eq(oc.o.ctl_mode, 0600);
	cr_assert_str_eq(oc.o.log, "syslog");
	cr_assert(!oc.o.is_immutable && !oc.o.is_nocto && !oc.o.is_allow_other && !oc.o.is_foreground && !oc.o.is_debug);
	cr_assert_not_null(strstr(oc.o.ctl_dir, "/hintfs/"));
	done(&oc);
}

/* Each option as --name=value, as --name value and in an -o list gives the same. */
Test(opts, both_forms)
{
	struct outcome oc[4] = {
		RUN("--memory=64M", "--chunk=256K", "--nocto", "--revalidate=2.5", "--origin-timeout=30", "--prefetch-limit=10M/s",
		    "--ctl-mode=0640", "--allow-other", "--log=syslog", "--uid=12", "--gid=34", "S", "M"),
		RUN("--memory", "64M", "--chunk", "256K", "--nocto", "--revalidate", "2.5", "--origin-timeout", "30", "S", "M", "-o",
		    "prefetch-limit=10M,ctl-mode=0640,allow-other,log=syslog,uid=12,gid=34"),
		RUN("-o", "memory=64M,chunk=256K,nocto,revalidate=2.5,origin-timeout=30,prefetch-limit=10M/s,ctl-mode=0640", "-o",
		    "allow_other,log=syslog,uid=12,gid=34", "S", "M"),
		RUN("S", "M", "--memory=64M", "--chunk=256k", "--nocto", "--revalidate=2.5s", "--origin_timeout=30", "--prefetch_limit=10M",
		    "--ctl_mode=640", "--allow_other", "-ouid=12,gid=34,log=syslog"),
	};

	for (size_t i = 0; i < 4; i++) {
		cr_assert_eq(oc[i].r, 0, "%zu: %s", i, oc[i].err);
		cr_assert_eq(oc[i].o.memory_bytes, 64u << 20);
		cr_assert_eq(oc[i].o.chunk_bytes, 256u << 10);
		cr_assert(oc[i].o.is_nocto && oc[i].o.is_allow_other);
		cr_assert_float_eq(oc[i].o.revalidate_s, 2.5, 1e-9);
		cr_assert_float_eq(oc[i].o.origin_timeout_s, 30.0, 1e-9);
		cr_assert_eq(oc[i].o.prefetch_limit_bytes_per_s, 10u << 20);
		cr_assert_eq(oc[i].o.ctl_mode, 0640);
		cr_assert_eq(oc[i].o.ctl_uid, 12);
		cr_assert_eq(oc[i].o.ctl_gid, 34);
		done(&oc[i]);
	}
}

Test(opts, gid_makes_group_writable)
{
	struct outcome oc = RUN("-o", "gid=root", "S", "M");

	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_eq(oc.o.ctl_mode, 0660);
	cr_assert_eq(oc.o.ctl_gid, 0);
	done(&oc);
}

Test(opts, immutable_is_long)
{
	struct outcome oc = RUN("--immutable", "S", "M");

	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_float_eq(oc.o.revalidate_s, 86400.0, 1e-9);
	done(&oc);
}

Test(opts, words_of_fstab_are_ignored)
{
	struct outcome oc = RUN("S", "M", "-o",
				"ro,nosuid,nodev,_netdev,nofail,auto,noauto,user,user=joe,users,defaults,noatime,x-systemd.automount,"
				"x-gvfs-name=a\\,b,X-mount.mkdir,comment=hello,dev,suid,memory=64M,,");

	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_str_eq(oc.err, "");
	cr_assert_eq(oc.o.memory_bytes, 64u << 20);
	done(&oc);
}

Test(opts, remount_is_refused_with_the_cure)
{
	struct outcome oc = RUN("S", "M", "-o", "rw,remount");

	cr_assert_lt(oc.r, 0);
	cr_assert_not_null(strstr(oc.err, "umount it and mount it again"), "%s", oc.err);
	done(&oc);
}

Test(opts, rw_is_said_to_be_read_only_but_not_to_mount8)
{
	static const char *const words[] = { "S", "M", "-o", "rw", NULL };
	struct outcome oc = run("hintfs", words);

	cr_assert_eq(oc.r, 0);
	cr_assert_not_null(strstr(oc.err, "read-only"));
	done(&oc);
	oc = run("/sbin/mount.hintfs", words);
	cr_assert_eq(oc.r, 0);
	cr_assert_str_eq(oc.err, "");
	done(&oc);
}

/* mount(8): helper SOURCE MOUNTPOINT [-sfnv] [-t type] [-o list]; -f is "fake" there. */
Test(opts, as_mount_helper)
{
	static const char *const fake[] = { "S", "M", "-sfnv", "-t", "fuse.hintfs", "-o", "rw,memory=64M", NULL };
	static const char *const real[] = { "S", "M", "-v", "-o", "rw,memory=64M", NULL };
	static const char *const bad_fake[] = { "S", "M", "-f", "-o", "memry=64M", NULL };
	struct outcome oc = run("/sbin/mount.hintfs", fake);

	cr_assert_eq(oc.r, 1, "%s", oc.err);
	done(&oc);
	oc = run("mount.hintfs", real);
	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert(!oc.o.is_foreground);
	done(&oc);
	oc = run("mount.hintfs", bad_fake);
	cr_assert_lt(oc.r, 0);
	done(&oc);
}

Test(opts, comma_and_backslash_escapes)
{
	char want[96];
	struct outcome oc;

	snprintf(want, sizeof(want), "%s/a,b\\c", base);
	{
		char list[128];

		snprintf(list, sizeof(list), "log=%s/a\\,b\\\\c,memory=64M", base);
		oc = RUN("-o", list, "S", "M");
	}
	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_str_eq(oc.o.log, want);
	cr_assert_eq(oc.o.memory_bytes, 64u << 20);
	done(&oc);
}

Test(opts, foreground_logs_to_stderr)
{
	struct outcome oc = RUN("-f", "S", "M");

	cr_assert(oc.o.is_foreground);
	cr_assert_str_eq(oc.o.log, "stderr");
	done(&oc);
	oc = RUN("-d", "S", "M");
	cr_assert(oc.o.is_foreground && oc.o.is_debug);
	done(&oc);
}

Test(opts, help_and_version)
{
	struct outcome oc = RUN("-h");

	cr_assert_eq(oc.r, 1);
	cr_assert_not_null(strstr(oc.out, "memory=SIZE"));
	cr_assert_not_null(strstr(oc.out, "Examples:"));
	cr_assert_str_eq(oc.err, "");
	done(&oc);
	oc = RUN("--version");
	cr_assert_eq(oc.r, 1);
	cr_assert_str_eq(oc.out, "hintfs " HINTFS_VERSION "\n");
	done(&oc);
}

/* One line each, holding the object and the cure. */
Test(opts, refusals)
{
	static const struct {
		const char *words[5], *says, *cure;
	} t[] = {
		{ { NULL }, "SOURCE and MOUNTPOINT are missing", "usage:" },
		{ { "S" }, "MOUNTPOINT is missing", "usage:" },
		{ { "S", "M", "x" }, "too many arguments", "usage:" },
		{ { "", "M" }, "SOURCE is empty", "usage:" },
		{ { "--memry=1G", "S", "M" }, "unknown option 'memry'", "did you mean 'memory'?" },
		{ { "-o", "chnuk=1M", "S", "M" }, "unknown option 'chnuk'", "did you mean 'chunk'?" },
		{ { "-o", "imutable", "S", "M" }, "unknown option 'imutable'", "did you mean 'immutable'?" },
		{ { "-o", "cache-dir=/x", "S", "M" }, "cache-dir=/x without cache-size=", "such as cache-size=100G" },
		{ { "--cache-size=1G", "S", "M" }, "cache-size= without cache-dir=", "give cache-dir=DIR" },
		{ { "--cache-free=20", "S", "M" }, "cache-free= without cache-dir=", "give cache-dir=DIR" },
		{ { "-o", "cache-dir=/x,cache-size=3M", "S", "M" }, "cache-size=3M: too small", "at least 4M" },
		{ { "-o", "cache-dir=/x,cache-size=4M,chunk=2M", "S", "M" }, "cache-size=4M: too small", "at least 8M" },
		{ { "--cache-free=100", "S", "M" }, "cache-free=100: out of range", "0 to 99" },
		{ { "--cache-free=x%", "S", "M" }, "cache-free=x%: not understood", "0 to 99" },
		{ { "--cache-manager=os", "S", "M" }, "unknown option 'cache-manager'", "--help" },
		{ { "-o", "zzzzqqqq", "S", "M" }, "unknown option 'zzzzqqqq'", "--help" },
		{ { "-q", "S", "M" }, "unknown option '-q'", "--help" },
		{ { "-o" }, "-o: a value is missing", "--help" },
		{ { "-o", "=3", "S", "M" }, "'=3'", "no name" },
		{ { "-o", "memory", "S", "M" }, "memory: a value is missing", "memory=SIZE" },
		{ { "S", "M", "--memory" }, "memory: a value is missing", "memory=SIZE" },
		{ { "--memory=12X", "S", "M" }, "memory=12X: not understood", "512M" },
		{ { "--memory=99999999999T", "S", "M" }, "out of range", "512M" },
		{ { "--memory=3M", "S", "M" }, "memory=3M: less than one reader needs", "memory=4M" },
		{ { "--memory=0", "S", "M" }, "less than one reader needs", "memory=4M" },
		{ { "-o", "memory=63M,chunk=16M", "S", "M" }, "4 chunks of 16M", "memory=64M" },
		{ { "--memory=4096T", "S", "M" }, "more than this machine or cgroup has", "give less" },
		{ { "--chunk=32K", "S", "M" }, "chunk=32K", "64K to 16M" },
		{ { "--chunk=0", "S", "M" }, "chunk=0", "64K to 16M" },
		{ { "--chunk=32M", "S", "M" }, "chunk=32M", "64K to 16M" },
		{ { "--chunk=3M", "S", "M" }, "chunk=3M", "power of two" },
		{ { "--revalidate=-1", "S", "M" }, "revalidate=-1", "seconds" },
		{ { "--revalidate=nan", "S", "M" }, "revalidate=nan", "seconds" },
		{ { "--revalidate=1e3", "S", "M" }, "revalidate=1e3", "seconds" },
		{ { "--ctl-mode=0777", "S", "M" }, "ctl-mode=0777", "0666" },
		{ { "--ctl-mode=rw", "S", "M" }, "ctl-mode=rw", "0666" },
		{ { "--uid=no-such-user-x", "S", "M" }, "there is no such user", "name or number" },
		{ { "--gid=no-such-group-x", "S", "M" }, "there is no such group", "name or number" },
		{ { "--uid=4294967295", "S", "M" }, "uid=4294967295", "out of range" },
		{ { "--nocto=yes", "S", "M" }, "takes no value", "=yes" },
		{ { "-o", "immutable,nocto", "S", "M" }, "immutable and nocto", "give one" },
		{ { "-o", "immutable,revalidate=3", "S", "M" }, "immutable and revalidate", "give one" },
		{ { "/no/such/dir", "M" }, "SOURCE /no/such/dir: No such file or directory", "existing directory" },
		{ { "/etc/passwd", "M" }, "SOURCE /etc/passwd: not a directory", "dataset" },
		{ { "S", "/no/such/dir" }, "MOUNTPOINT /no/such/dir: No such file", "mkdir -p" },
		{ { "S", "/etc/passwd" }, "MOUNTPOINT /etc/passwd: not a directory", "directory" },
		{ { "S", "S" }, "same directory", "somewhere else" },
		{ { "S", "/" }, "lies inside MOUNTPOINT /", "somewhere else" },
		{ { "/", "M" }, "lies inside SOURCE /", "somewhere else" },
		{ { "--log=stderr", "S", "M" }, "a daemon has no stderr", "log=FILE" },
		{ { "--ctl=/", "S", "M" }, "would hide", "empty directory" },
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct outcome oc = run("hintfs", t[i].words);

		cr_assert_lt(oc.r, 0, "%zu (%s) was taken", i, t[i].says);
		cr_assert_not_null(strstr(oc.err, t[i].says), "%zu: '%s' is not in '%s'", i, t[i].says, oc.err);
		cr_assert_not_null(strstr(oc.err, t[i].cure), "%zu: '%s' is not in '%s'", i, t[i].cure, oc.err);
		cr_assert_eq(strncmp(oc.err, "hintfs: ", 8), 0);
		cr_assert_eq(strchr(oc.err, '\n'), oc.err + strlen(oc.err) - 1, "%zu: not one line: '%s'", i, oc.err);
		cr_assert_null(oc.o.source);
		done(&oc);
	}
}

Test(opts, own_paths_outside_of_both)
{
	static const char *const names[] = { "log", "ctl", "cache-size=1G,cache-dir" };
	char word[128];

	for (size_t i = 0; i < 3; i++) {
		struct outcome oc;

		snprintf(word, sizeof(word), "%s=%s/x", names[i], source);
		oc = RUN("-o", word, "S", "M");
		cr_assert_lt(oc.r, 0);
		cr_assert_not_null(strstr(oc.err, "lies inside SOURCE"), "%s", oc.err);
		done(&oc);
		snprintf(word, sizeof(word), "%s=%s/a/b", names[i], mountpoint);
		oc = RUN("-o", word, "S", "M");
		cr_assert_lt(oc.r, 0);
		cr_assert_not_null(strstr(oc.err, "lies inside MOUNTPOINT"), "%s", oc.err);
		done(&oc);
	}
}

Test(opts, relative_and_linked_paths_become_absolute)
{
	struct outcome oc;
	char link[96];

	cr_assert_eq(chdir(base), 0);
	snprintf(link, sizeof(link), "%s/link", base);
	cr_assert_eq(symlink("src", link), 0);
	oc = RUN("link/../src/.", "./mnt/", "--log=x/y.log", "--ctl=c");
	unlink(link);
	cr_assert_eq(oc.r, 0, "%s", oc.err);
	cr_assert_str_eq(oc.o.source, source);
	cr_assert_str_eq(oc.o.mountpoint, mountpoint);
	cr_assert_eq(oc.o.log[0], '/');
	cr_assert_not_null(strstr(oc.o.log, "/x/y.log"));
	cr_assert_eq(oc.o.ctl_dir[0], '/');
	done(&oc);
}

/* A mountpoint inside the source under another name is found too: here through a link in the middle. */
Test(opts, mountpoint_inside_source_through_a_link)
{
	char inside[96], link[96], by_link[160];
	struct outcome oc;

	snprintf(inside, sizeof(inside), "%s/in", source);
	snprintf(link, sizeof(link), "%s/link", base);
	snprintf(by_link, sizeof(by_link), "%s/in", link);
	cr_assert_eq(mkdir(inside, 0755), 0);
	cr_assert_eq(symlink("src", link), 0);
	oc = RUN("S", by_link);
	unlink(link);
	rmdir(inside);
	cr_assert_lt(oc.r, 0);
	cr_assert_not_null(strstr(oc.err, "contain itself"), "%s", oc.err);
	done(&oc);
}

Test(opts_value, sizes)
{
	static const struct {
		const char *text;
		int r;
		uint64_t bytes;
	} t[] = {
		{ "0", 0, 0 }, { "1", 0, 1 }, { "4097", 0, 4097 }, { "64K", 0, 65536 }, { "64k", 0, 65536 }, { "1M", 0, 1 << 20 },
		{ "2G", 0, 2ull << 30 }, { "3T", 0, 3ull << 40 }, { "1KiB", 0, 1024 }, { "1MB", 0, 1 << 20 }, { "12B", 0, 12 },
		{ "9223372036854775807", 0, INT64_MAX }, { "9223372036854775808", -ERANGE, 0 }, { "18446744073709551616", -ERANGE, 0 },
		{ "8388608T", -ERANGE, 0 }, { "99999999T", -ERANGE, 0 }, { "", -EINVAL, 0 }, { "K", -EINVAL, 0 }, { "-1", -EINVAL, 0 },
		{ "+1", -EINVAL, 0 }, { " 1", -EINVAL, 0 }, { "1 ", -EINVAL, 0 }, { "1P", -EINVAL, 0 }, { "1KK", -EINVAL, 0 },
		{ "1.5G", -EINVAL, 0 }, { "0x10", -EINVAL, 0 }, { "1K/s", -EINVAL, 0 }, { "1i", -EINVAL, 0 },
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint64_t bytes = 77;

		cr_assert_eq(opts_value_size(t[i].text, &bytes), t[i].r, "%s", t[i].text);
		cr_assert_eq(bytes, t[i].r ? 77 : t[i].bytes, "%s", t[i].text);
	}
}

Test(opts_value, size_text_is_parsed_back)
{
	char buf[24];

	for (uint64_t n = 1; n && n <= 1ull << 52; n *= 2)
		for (uint64_t d = 0; d < 2; d++) {
			uint64_t back;

			cr_assert_eq(opts_value_size(opts_value_size_text(n + d, buf, sizeof(buf)), &back), 0, "%s", buf);
			cr_assert_eq(back, n + d);
		}
}

Test(opts_value, distance)
{
	cr_assert_eq(opts_value_distance("memory", "memory"), 0);
	cr_assert_eq(opts_value_distance("memry", "memory"), 1);
	cr_assert_eq(opts_value_distance("chnuk", "chunk"), 1);
	cr_assert_eq(opts_value_distance("allow_other", "allow-other"), 0);
	cr_assert_eq(opts_value_distance("", "abc"), 3);
	cr_assert_eq(opts_value_distance("kitten", "sitting"), 3);
	cr_assert_eq(opts_value_distance("an option name that is longer than any word of ours may ever become", "x"), SIZE_MAX);
}

/* The names that systemd-escape --path gives. */
Test(ctldir, escape)
{
	static const struct {
		const char *path, *name;
	} t[] = {
		{ "/", "-" }, { "/mnt", "mnt" }, { "/mnt/data", "mnt-data" }, { "//mnt//data/", "mnt-data" },
		{ "/mnt/my-data", "mnt-my\\x2ddata" }, { "/mnt/a b", "mnt-a\\x20b" }, { "/.hidden/x", "\\x2ehidden-x" },
		{ "/a/.b", "a-.b" }, { "/a_b:c.d", "a_b:c.d" }, { "/\xc3\xa4", "\\xc3\\xa4" },
	};
	char *name;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		cr_assert_eq(ctldir_escape(t[i].path, &name), 0);
		cr_assert_str_eq(name, t[i].name);
		free(name);
	}
	cr_assert_eq(ctldir_escape("relative", &name), -EINVAL);
}

Test(paths, below)
{
	cr_assert(paths_is_below("/a/b", "/a"));
	cr_assert(paths_is_below("/a", "/a"));
	cr_assert(paths_is_below("/a", "/"));
	cr_assert(!paths_is_below("/ab", "/a"));
	cr_assert(!paths_is_below("/", "/a"));
}
