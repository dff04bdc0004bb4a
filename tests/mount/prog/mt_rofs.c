/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_rofs DIR: every call that would change something, on names below DIR; prints "call errno-name" for each.
 *
 * The list follows pjdfstest. DIR holds: file (regular), full (directory with an entry), empty (directory), link
 * (symlink to file), none of the other names. Called by test_readers.py as root (permissions must not answer first).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static void say(const char *call, long rc)
{
	printf("%s %s\n", call, rc >= 0 ? "OK" : strerrorname_np(errno));
}

static long bind_socket(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "new"};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return bind(fd, (struct sockaddr *)&a, sizeof(a));
}

static void opens(void)
{
	say("open_wronly", open("file", O_WRONLY));
	say("open_rdwr", open("file", O_RDWR));
	say("open_append", open("file", O_WRONLY | O_APPEND));
	say("open_trunc", open("file", O_RDONLY | O_TRUNC));
	say("open_wronly_trunc", open("file", O_WRONLY | O_TRUNC));
	say("open_creat_new", open("new", O_RDONLY | O_CREAT, 0644));
	say("open_creat_excl_new", open("new", O_RDWR | O_CREAT | O_EXCL, 0644));
	say("open_creat_wronly_old", open("file", O_WRONLY | O_CREAT, 0644));
	say("open_tmpfile", open(".", O_TMPFILE | O_RDWR, 0600));
	say("open_link_wronly", open("link", O_WRONLY));
	say("creat", creat("new", 0644));
	say("access_w", access("file", W_OK));
}

static void names(void)
{
	say("mkdir", mkdir("new", 0755));
	say("mkdirat", mkdirat(AT_FDCWD, "full/new", 0755));
	say("rmdir", rmdir("empty"));
	say("unlink", unlink("file"));
	say("unlink_link", unlink("link"));
	say("unlinkat_dir", unlinkat(AT_FDCWD, "empty", AT_REMOVEDIR));
	say("rename_file", rename("file", "new"));
	say("rename_over", rename("file", "link"));
	say("rename_dir", rename("empty", "full/empty"));
	say("renameat2_exchange", renameat2(AT_FDCWD, "file", AT_FDCWD, "link", RENAME_EXCHANGE));
	say("renameat2_noreplace", renameat2(AT_FDCWD, "file", AT_FDCWD, "new", RENAME_NOREPLACE));
	say("link", link("file", "new"));
	say("linkat_follow", linkat(AT_FDCWD, "link", AT_FDCWD, "new", AT_SYMLINK_FOLLOW));
	say("symlink", symlink("file", "new"));
	say("mknod_reg", mknod("new", S_IFREG | 0644, 0));
	say("mknod_fifo", mknod("new", S_IFIFO | 0644, 0));
	say("mknod_chr", mknod("new", S_IFCHR | 0644, 0x103));
	say("mkfifo", mkfifo("new", 0644));
	say("bind", bind_socket());
}

static void attributes(int fd)
{
	struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}}, set[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	struct timeval tv[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	struct utimbuf ub = {1, 1};

	say("chmod", chmod("file", 0600));
	say("chmod_dir", chmod("empty", 0700));
	say("fchmod", fchmod(fd, 0600));
	say("fchmodat", fchmodat(AT_FDCWD, "link", 0600, 0));
	say("chown", chown("file", 1, 1));
	say("lchown", lchown("link", 1, 1));
	say("fchown", fchown(fd, 1, 1));
	say("utime", utime("file", &ub));
	say("utimes", utimes("file", tv));
	say("utimensat_set", utimensat(AT_FDCWD, "file", set, 0));
	say("utimensat_now", utimensat(AT_FDCWD, "file", now, 0));
	say("utimensat_null", utimensat(AT_FDCWD, "file", NULL, 0));
	say("utimensat_link", utimensat(AT_FDCWD, "link", set, AT_SYMLINK_NOFOLLOW));
	say("futimens", futimens(fd, set));
	say("truncate", truncate("file", 1));
	say("truncate_grow", truncate("file", 1 << 30));
	say("setxattr", setxattr("file", "user.new", "x", 1, 0));
	say("setxattr_old", setxattr("file", "user.key", "x", 1, XATTR_REPLACE));
	say("lsetxattr_trusted", lsetxattr("file", "trusted.new", "x", 1, 0));
	say("fsetxattr", fsetxattr(fd, "user.new", "x", 1, 0));
	say("removexattr", removexattr("file", "user.key"));
	say("fremovexattr", fremovexattr(fd, "user.key"));
}

/* A handle that is open for reading only: these fail before the file system is asked, with the errno POSIX names. */
static void read_only_handle(int fd)
{
	int flags = FS_IMMUTABLE_FL;

	say("fd_write", write(fd, "x", 1));
	say("fd_pwrite", pwrite(fd, "x", 1, 0));
	say("fd_ftruncate", ftruncate(fd, 0));
	say("fd_fallocate", fallocate(fd, 0, 0, 4096));
	say("fd_fallocate_punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	say("fd_copy_file_range", copy_file_range(fd, NULL, fd, &(off_t){1 << 20}, 10, 0));
	say("fd_mmap_shared_write", mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	say("fd_setflags", ioctl(fd, FS_IOC_SETFLAGS, &flags));
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	int fd = open("file", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 2;
	opens();
	names();
	attributes(fd);
	read_only_handle(fd);
	return fflush(stdout) ? 2 : 0;
}
