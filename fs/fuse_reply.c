/* SPDX-License-Identifier: Apache-2.0 */
/* fs/fuse_reply.c - see fuse_reply.h. */
#include "fs/fuse_reply.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int fuse_reply_errno(fuse_req_t req, int err)
{
	assert(err <= 0);
	return fuse_reply_err(req, -err);
}

struct timespec fuse_reply_time(int64_t ns)
{
	int64_t s = ns / 1000000000, rest = ns % 1000000000;

	if (rest < 0) {
		rest += 1000000000;
		s--;
	}
	return (struct timespec){ .tv_sec = (time_t)s, .tv_nsec = (long)rest };
}

int fuse_reply_init(struct fuse_session *se)
{
	struct fuse_buf buf = { 0 };
	int rc;

	do
		rc = fuse_session_receive_buf(se, &buf);
	while (rc == -EINTR || rc == -EAGAIN);
	if (rc > 0)
		fuse_session_process_buf(se, &buf);
	free(buf.mem);
	return rc < 0 ? rc : 0;
}

void fuse_reply_cut(struct fuse_session *se)
{
	int fd = fuse_session_fd(se), ends[2];

	if (fd < 0 || pipe2(ends, O_CLOEXEC) < 0)
		return;
	close(ends[0]);
	(void)syscall(SYS_dup3, ends[1], fd, O_CLOEXEC); /* not by libc, which TSan watches: others may use fd, and that is meant */
	close(ends[1]);
}

void fuse_reply_forget_mount(struct fuse_session *se)
{
	struct pollfd p = { .fd = fuse_session_fd(se) };

	if (p.fd < 0)
		return;
	fuse_reply_cut(se);
	if (poll(&p, 1, 0) == 1 && (p.revents & POLLERR))
		fuse_session_unmount(se);
}
