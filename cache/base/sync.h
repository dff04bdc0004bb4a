/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/sync.h - mutex and condition variable that abort when misused. Everybody's only locks.
 *
 * 1. A pthread call that fails is a bug: the process aborts with the name of the call.
 * 2. Locks are taken in the order of enum hfs_rank, lower first; two of one rank never at once.
 *    Debug builds (-Dchecks=true) check that, the owner at unlock, and hfs_mutex_assert_held().
 * 3. Conditions use CLOCK_MONOTONIC; wait in a loop on a predicate.
 *
 * Functions say what they need with HFS_REQUIRES(m) / HFS_EXCLUDES(m), checked by clang's -Wthread-safety.
 */
#ifndef CACHE_BASE_SYNC_H
#define CACHE_BASE_SYNC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__clang__)
#define HFS_TSA(x) __attribute__((x))
#else
#define HFS_TSA(x)
#endif
#define HFS_CAPABILITY HFS_TSA(capability("mutex"))
#define HFS_ACQUIRE(...) HFS_TSA(acquire_capability(__VA_ARGS__))
#define HFS_RELEASE(...) HFS_TSA(release_capability(__VA_ARGS__))
#define HFS_REQUIRES(...) HFS_TSA(requires_capability(__VA_ARGS__))
#define HFS_EXCLUDES(...) HFS_TSA(locks_excluded(__VA_ARGS__))
#define HFS_ASSERTS(...) HFS_TSA(assert_capability(__VA_ARGS__))
#define HFS_NO_TSA HFS_TSA(no_thread_safety_analysis)

/* Order of locks. Gaps are for newcomers; two locks that can be held together need different ranks. */
enum hfs_rank {
	HFS_RANK_MAIN = 10,
	HFS_RANK_SESSION = 20,
	HFS_RANK_CONTROL = 30, /* a control handle, stream names */
	HFS_RANK_CONTROL_TABLE = 35,
	HFS_RANK_NODE = 40, /* node table of the data session */
	HFS_RANK_NODE_ONE = 45,
	HFS_RANK_ENGINE = 50,
	HFS_RANK_NAMES = 55,
	HFS_RANK_RECORD = 58,
	HFS_RANK_CACHE = 60, /* chunks, reads, queue, descriptors */
	HFS_RANK_FILE = 70,  /* table of generations */
	HFS_RANK_TIER = 75,
	HFS_RANK_ORIGIN = 78,
	HFS_RANK_POOL = 80,
	HFS_RANK_WORKQ = 85,
	HFS_RANK_LEAF = 90, /* held for a few lines, takes nothing but the log's */
	HFS_RANK_LOG = 100,
};

struct HFS_CAPABILITY hfs_mutex {
	pthread_mutex_t m;
	enum hfs_rank rank;
#ifdef HFS_DEBUG
	uint64_t owner; /* number of the owning thread, 0: free; atomic by __atomic_* */
#endif
};

struct hfs_cond {
	pthread_cond_t c;
};

void hfs_mutex_init(struct hfs_mutex *m, enum hfs_rank rank);
void hfs_mutex_finish(struct hfs_mutex *m);
void hfs_mutex_lock(struct hfs_mutex *m) HFS_ACQUIRE(*m);
void hfs_mutex_unlock(struct hfs_mutex *m) HFS_RELEASE(*m);
/* Debug builds abort unless the calling thread holds m; else nothing. */
void hfs_mutex_assert_held(struct hfs_mutex *m) HFS_ASSERTS(*m);
/* Debug builds abort if the calling thread holds any lock: for callbacks that need a free hand. */
void hfs_assert_no_locks(void);

void hfs_cond_init(struct hfs_cond *c);
void hfs_cond_finish(struct hfs_cond *c);
void hfs_cond_wait(struct hfs_cond *c, struct hfs_mutex *m) HFS_REQUIRES(*m);
/* False: the deadline (CLOCK_MONOTONIC) has passed. */
bool hfs_cond_wait_until(struct hfs_cond *c, struct hfs_mutex *m, uint64_t deadline_ns) HFS_REQUIRES(*m);
void hfs_cond_signal(struct hfs_cond *c);
void hfs_cond_broadcast(struct hfs_cond *c);

#endif
