/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_trouble.c - the breaker: errors, a disk that fills up, hangs, vanishes, and comes back.
 */
#include "tests/fault/tier/disk.h"
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"
#include "cache/base/time.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const struct rig_file BIG = {.no = 1, .gen = 1, .size = 10 * RIG_CHUNK + 4321};
static const struct rig_file SMALL = {.no = 2, .gen = 1, .size = 30001};

static struct disk *fresh(struct rig *r)
{
	struct disk *d = disk_new(64 * MIB, 1000);

	rig_init(r, DISK_DIR, disk_io(d), 32 * MIB);
	return d;
}

static void expect(struct rig *r, enum tier_state s, const char *what)
{
	rig_check(tier_wait_state(r->t, s, RIG_WAIT_MS), "%s: %s expected, it is %s (%s)", what, tier_state_name(s),
		  tier_state_name(rig_stats(r).state), tier_cause_name(rig_stats(r).cause));
}

static void end(struct rig *r, struct disk *d)
{
	rig_close(r);
	rig_check(disk_fds(d) == 0, "no descriptor is left");
	disk_free(d);
}

/*
 * Admissions are held for a moment after an error for want of space, and what an error met before it was synced is lost: until
 * that moment is over there may be nothing to hit.
 */
static void put_until_used(struct rig *r)
{
	const uint64_t deadline_ns = hfs_now_ns() + RIG_WAIT_MS * HFS_NS_PER_MS;
	uint32_t hits;

	do {
		rig_put(r, &BIG);
		hits = rig_get_all(r, &BIG);
	} while (hits < rig_chunks(&BIG) && hfs_now_ns() < deadline_ns);
	rig_check(hits == rig_chunks(&BIG), "and used again, %u hits, %s", hits, tier_state_name(rig_stats(r).state));
}

static void errors(int err, enum tier_cause cause)
{
	struct rig r;
	struct disk *d = fresh(&r);

	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	disk_fail_nth(d, 1, err, true);
	while (rig_stats(&r).state == TIER_ON) {
		(void)rig_get(&r, &BIG, 3);
		(void)rig_admit(&r, &(struct rig_file){.no = 3, .gen = 1, .size = 1000}, 0);
	}
	rig_check(rig_stats(&r).state >= TIER_READONLY && rig_stats(&r).cause == cause, "the breaker opened because of %s, not %s",
		  tier_cause_name(cause), tier_cause_name(rig_stats(&r).cause));
	rig_check(disk_failed(d) > 0, "the fault was met");
	rig_check(rig_admit(&r, &(struct rig_file){.no = 4, .gen = 1, .size = 1000}, 0) == -EROFS, "no admission meanwhile");
	rig_check(rig_stats(&r).bypassed[cause] > 0, "counted by cause");
	disk_fail_reset(d);
	expect(&r, TIER_ON, "the disk is well again");
	put_until_used(&r);
	end(&r, d);
}

/* Errors now and then: reads are right, the tier goes and comes. */
static void sometimes(double p, uint64_t seed)
{
	uint32_t hits = 0, off = 0;
	struct rig r;
	struct disk *d = fresh(&r);

	rig_open(&r);
	rig_put(&r, &BIG);
	disk_fail_prob(d, p, -EIO, seed);
	for (uint32_t i = 0; i < 400; i++) {
		struct rig_file f = {.no = 10 + i % 20, .gen = 1, .size = i % 2 == 0 ? 3 * RIG_CHUNK : 5000};

		rig_put(&r, &f);
		hits += rig_get_all(&r, &f);
		off += rig_stats(&r).state >= TIER_READONLY;
	}
	rig_check(disk_failed(d) > 0, "the fault was met");
	rig_check(p < 1 || (off > 0 && hits == 0), "a dead disk is given up");
	disk_fail_reset(d);
	expect(&r, TIER_ON, "in the end");
	rig_put(&r, &BIG);
	rig_check(rig_get_all(&r, &BIG) == 11, "it works");
	end(&r, d);
}

static void full(bool is_inodes)
{
	struct rig r;
	struct disk *d = fresh(&r);

	r.cfg.free_pct = 10;
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	/* Somebody else writes: there is not even the reserve left. What we have goes, to give it back. */
	disk_resize(d, is_inodes ? 64 * MIB : disk_used(d) + 64 * 1024, is_inodes ? 13 : 1000);
	for (uint32_t i = 0; i < 10; i++)
		rig_put(&r, &(struct rig_file){.no = 100 + i, .gen = 1, .size = 2 * RIG_CHUNK});
	while (rig_stats(&r).culled_bytes == 0)
		(void)rig_get_all(&r, &SMALL);
	disk_resize(d, 64 * MIB, 1000);
	expect(&r, TIER_ON, "space came back");
	struct tier_stats s;
	do { /* held for a moment after an error */
		rig_put(&r, &(struct rig_file){.no = 200, .gen = 1, .size = 2 * RIG_CHUNK});
		s = rig_stats(&r);
	} while (rig_get_all(&r, &(struct rig_file){.no = 200, .gen = 1, .size = 2 * RIG_CHUNK}) != 2);
	rig_check(s.state == TIER_ON, "and is used");
	end(&r, d);
}

struct reader {
	struct rig *r;
	pthread_t thread;
	uint64_t took_ns;
	bool is_hit;
};

static void *reader_main(void *arg)
{
	struct reader *x = arg;
	uint64_t start_ns = hfs_now_ns();

	x->is_hit = rig_get(x->r, &BIG, 1);
	x->took_ns = hfs_now_ns() - start_ns;
	return NULL;
}

static void hang(void)
{
	struct reader readers[8];
	struct rig r;
	struct disk *d = fresh(&r);

	r.cfg.read_wait_ns = 200 * HFS_NS_PER_MS;
	rig_open(&r);
	rig_put(&r, &BIG);
	rig_put(&r, &SMALL);
	disk_hang(d, true);
	for (int i = 0; i < 8; i++) {
		readers[i] = (struct reader){.r = &r};
		rig_check(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]) == 0, "thread");
	}
	rig_check(disk_wait_hung(d, 1, RIG_WAIT_MS) > 0, "a read hangs");
	for (int i = 0; i < 8; i++) {
		pthread_join(readers[i].thread, NULL);
		rig_check(!readers[i].is_hit, "no reader waits for the hung disk");
		(void)printf("reader %d: %llu ms\n", i, (unsigned long long)(readers[i].took_ns / HFS_NS_PER_MS));
	}
	rig_check(atomic_load(&r.n_lent) > 0, "what was lent stays so while the disk hangs");
	rig_check(rig_stats(&r).state == TIER_OFF && rig_stats(&r).cause == TIER_CAUSE_HANG, "off because of the hang");
	rig_check(!rig_get(&r, &BIG, 2) && rig_stats(&r).read_timeouts <= 8, "later ones do not wait at all");
	rig_check(!tier_lookup(r.t, &(struct hfs_identity){0}, "x", 0), "nor look");
	/* It hangs while the mount ends: not waited for. */
	disk_hang(d, false);
	expect(&r, TIER_ON, "the disk woke up");
	rig_check(rig_stats(&r).chunks == 11 && rig_stats(&r).files_small == 1, "nothing was lost");
	while (rig_get_all(&r, &BIG) != 11 || rig_get_all(&r, &SMALL) != 1) /* on a busy machine 200 ms are little */
		rig_check(rig_stats(&r).bad == 0, "and nothing is bad");
	end(&r, d);
}

/* While nothing runs, this process included, no disk answers. */
static void stop_for_ms(unsigned ms)
{
	const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
	pid_t self = getpid(), pid = fork();

	rig_check(pid >= 0, "fork");
	if (pid == 0) {
		(void)kill(self, SIGSTOP);
		(void)nanosleep(&pause, NULL);
		(void)kill(self, SIGCONT);
		_exit(0);
	}
	rig_check(waitpid(pid, NULL, 0) == pid, "waitpid");
}

static void all_stopped(void)
{
	struct reader reader;
	struct rig r;
	struct disk *d = fresh(&r);

	r.cfg.read_wait_ns = 3 * HFS_NS_PER_S; /* far above what a fork takes on a busy machine, under TSan too */
	rig_open(&r);
	rig_put(&r, &BIG);
	disk_hang(d, true);
	reader = (struct reader){.r = &r};
	rig_check(pthread_create(&reader.thread, NULL, reader_main, &reader) == 0, "thread");
	rig_check(disk_wait_hung(d, 1, RIG_WAIT_MS) > 0, "a read waits for the disk");
	stop_for_ms(4000);
	rig_check(!tier_wait_state(r.t, TIER_OFF, 50), "time in which nobody ran is not the disk's");
	disk_hang(d, false);
	pthread_join(reader.thread, NULL);
	rig_check(reader.is_hit && reader.took_ns > 4000 * HFS_NS_PER_MS, "the read was waited for");
	end(&r, d);
}

static const struct tier_io *fast_io;
static atomic_bool is_slow;

static ssize_t slow_pread(void *ctx, int fd, void *buf, size_t n, uint64_t off_bytes)
{
	if (atomic_load(&is_slow))
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	return fast_io->pread(ctx, fd, buf, n, off_bytes);
}

/* Every call ends in a third of the time that is a hang's, and a read takes 18 of them. */
static void many_calls(void)
{
	struct tier_io io;
	struct rig r;
	struct disk *d = fresh(&r);

	fast_io = disk_io(d);
	io = *fast_io;
	io.pread = slow_pread;
	r.cfg.io = &io;
	r.cfg.read_wait_ns = 300 * HFS_NS_PER_MS;
	rig_open(&r);
	rig_put(&r, &BIG);
	disk_short(d, true);
	atomic_store(&is_slow, true);
	rig_check(!rig_get(&r, &BIG, 1), "too slow for a reader");
	rig_check(rig_stats(&r).state == TIER_ON && rig_stats(&r).read_timeouts == 1, "but it works");
	atomic_store(&is_slow, false);
	end(&r, d);
}

static void hung_writes(void)
{
	struct rig r;
	struct disk *d = fresh(&r);

	r.cfg.write_wait_ns = 400 * HFS_NS_PER_MS;
	rig_open(&r);
	rig_put(&r, &BIG);
	disk_hang(d, true);
	(void)rig_admit(&r, &(struct rig_file){.no = 3, .gen = 1, .size = 1000}, 0);
	rig_check(disk_wait_hung(d, 1, RIG_WAIT_MS) > 0, "a write hangs");
	expect(&r, TIER_OFF, "a hung write is noticed without a reader");
	rig_check(!tier_destroy(r.t, 50), "the end does not wait for it");
	disk_hang(d, false);
	end(&r, d); /* and can be tried again */
}

static void gone(void)
{
	struct rig r;
	struct disk *d = fresh(&r);

	rig_open(&r);
	rig_put(&r, &BIG);
	disk_replace_root(d, false);
	expect(&r, TIER_OFF, "another directory at that path");
	rig_check(rig_stats(&r).cause == TIER_CAUSE_GONE, "cause");
	rig_check(rig_get_all(&r, &BIG) == 0, "bypassed");
	disk_replace_root(d, true);
	expect(&r, TIER_ON, "ours is back");
	rig_check(rig_get_all(&r, &BIG) == 11, "and has what it had");
	end(&r, d);
}

int main(void)
{
	uint64_t seed = rig_seed();

	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	errors(-EIO, TIER_CAUSE_EIO);
	errors(-EROFS, TIER_CAUSE_ROFS);
	errors(-EDQUOT, TIER_CAUSE_DQUOT);
	sometimes(0.1, seed);
	sometimes(1.0, seed);
	full(false);
	full(true);
	hang();
	all_stopped();
	many_calls();
	hung_writes();
	gone();
	(void)puts("ok");
	return 0;
}
