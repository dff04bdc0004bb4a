/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/cred.h - on whose behalf the origin is asked where the daemon itself is refused.
 *
 * Under an NFS server's root_squash a daemon that is root is nobody: it may not open what its own caller may. So a call that
 * was refused is made once more with the file system identity of the user behind it (fsuid, fsgid, groups), which only the
 * thread that makes it takes on. That never gives anybody more than the origin grants them.
 *
 * A struct cred is const and counted. Callers: fs/data*.c (requests), cache/visit.c (files opened again, prefetches).
 */
#ifndef CACHE_CRED_H
#define CACHE_CRED_H

#include <stdbool.h>
#include <stdint.h>

struct cred;

/* Whether another user might get another answer: -EACCES, -EPERM. */
bool cred_is_refusal(int err);
/* The user of a thread that waits for us; tid 0, or one that is not theirs any more: without supplementary groups. NULL: no use
 * (we are not root, or they are), or no memory. */
struct cred *cred_of_caller(uint32_t uid, uint32_t gid, uint32_t tid);
struct cred *cred_get(struct cred *cr); /* NULL is NULL */
void cred_put(struct cred *cr);

/* From here to cred_drop() this thread is that user for file systems. Nothing else may run in between. */
int cred_assume(const struct cred *cr) __attribute__((warn_unused_result));
void cred_drop(const struct cred *cr);

#endif
