/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/fault/tier/tier_kill.c - kill -9 at random moments of filling, replacing, dropping and culling, on a real file system.
 *
 * The child says on a pipe what it has done; the parent kills it after a random number of such words, starts a tier on what is left, and
 * verifies every byte, the budget as du counts it, and that what was on disk before the last word is found again (the page cache
 * survives a killed process). tier_kill [KILLS] (200), in $TMPDIR.
 */
#include "tests/fault/tier/rig.h"

#include "cache/base/log.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define SIZE (12 * MIB)
#define FILES 60

static uint64_t du_bytes;
static uint32_t du_temps;

static int du_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)type;
	(void)at;
	du_bytes += (uint64_t)st->st_blocks * 512;
	du_temps += strstr(path, "probe") != NULL;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

/* Files keep one generation while the process lives; a later process may change them. */
static struct rig_file file(uint32_t no, uint32_t gen)
{
	return (struct rig_file){.no = no, .gen = gen, .size = (no + gen) % 2 == 0 ? (2 + no % 4) * RIG_CHUNK + 9 : 3000 + 500 * no};
}

static void child(const char *dir, uint64_t rng, uint32_t *gens, int out)
{
	struct rig r;

	rig_init(&r, dir, NULL, SIZE);
	rig_open(&r);
	for (;;) {
		uint32_t no = (uint32_t)(rig_next(&rng) % FILES), dice = (uint32_t)(rig_next(&rng) % 100);
		struct rig_file f = file(no, gens[no]);
		uint32_t c = (uint32_t)(rig_next(&rng) % rig_chunks(&f));

		if (dice < 70)
			(void)rig_admit(&r, &f, c);
		else if (dice < 90)
			(void)rig_get(&r, &f, c);
		else
			rig_drop(&r, &f, c);
		if (write(out, "x", 1) != 1)
			_exit(1);
	}
}

static void kill_one(const char *dir, uint64_t *rng, uint32_t *gens)
{
	uint64_t words = 1 + rig_next(rng) % 400;
	int fds[2], status;
	pid_t pid;
	char c;

	rig_check(pipe(fds) == 0, "pipe");
	pid = fork();
	rig_check(pid >= 0, "fork");
	if (pid == 0) {
		(void)close(fds[0]);
		child(dir, *rng, gens, fds[1]);
	}
	(void)close(fds[1]);
	for (uint64_t i = 0; i < words; i++)
		rig_check(read(fds[0], &c, 1) == 1, "the child died by itself");
	rig_check(kill(pid, SIGKILL) == 0, "kill");
	rig_check(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "killed");
	(void)close(fds[0]);
}

int main(int argc, char **argv)
{
	const uint32_t kills = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 200;
	uint64_t seed = rig_seed(), rng = seed, hits = 0, before = 0;
	const char *tmp = getenv("TMPDIR");
	uint32_t gens[FILES] = {0};
	char dir[256], top[256];

	rig_check(hfs_log_open("/dev/null", HFS_LOG_ERROR) == 0, "log");
	(void)snprintf(top, sizeof(top), "%s/tier-kill-XXXXXX", tmp != NULL ? tmp : "/tmp");
	rig_check(mkdtemp(top) != NULL, "mkdtemp %s", top);
	(void)snprintf(dir, sizeof(dir), "%.200s/cache", top);
	for (uint32_t i = 0; i < kills; i++) {
		struct rig r;

		kill_one(dir, &rng, gens);
		du_bytes = du_temps = 0;
		rig_check(nftw(dir, du_one, 16, FTW_PHYS) == 0 || i == 0, "du");
		rig_check(du_bytes <= SIZE, "du %llu above the limit after kill %u", (unsigned long long)du_bytes, i);
		rig_check(du_temps <= 1, "%u temporary files", du_temps);
		/* A tier on what is left; no fork follows while it has threads. */
		rig_init(&r, dir, NULL, SIZE);
		rig_open(&r);
		for (uint32_t no = 0; no < FILES; no++) {
			for (uint32_t gen = gens[no] > 0 ? gens[no] - 1 : 0; gen <= gens[no]; gen++) {
				struct rig_file f = file(no, gen);

				hits += rig_get_all(&r, &f);
			}
			if (rig_next(&rng) % 16 == 0)
				gens[no]++;
		}
		/* A kill cuts a write short, and files are made in steps: no more than was under way. */
		rig_check(rig_stats(&r).bad <= 4, "kill %u left %llu bad ones although the page cache survived", i,
			  (unsigned long long)rig_stats(&r).bad);
		rig_close(&r);
		rig_open(&r);
		before += rig_stats(&r).chunks + rig_stats(&r).files_small;
		rig_close(&r);
	}
	rig_check(nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, "remove");
	rig_check(hits > kills, "something survived the kills");
	(void)printf("ok: %u kills, %llu hits, %.0f entries on average\n", kills, (unsigned long long)hits, (double)before / kills);
	return 0;
}
