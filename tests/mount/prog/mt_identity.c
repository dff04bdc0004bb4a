/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mt_identity HOW ORIGIN MOUNT ROUNDS BYTES [GAP_MS]: change a pattern file at the origin and judge what the mount shows
 * (law 3). Called by test_identity.py, which makes nothing but the two folders; the file is called "data" in both. GAP_MS: a pause
 * before each change in place, for servers whose clock ticks so coarsely that no client can tell two changes in a tick apart.
 *
 * HOW   replace          rename over it, 20 ms apart; 4 openers, and one thread that holds a descriptor and a mapping
 *       overwrite        in place, same length; readers on old handles all the while
 *       overwrite-mtime  the same, and mtime is set back (only ctime tells)
 *       resize           in place, to another size each round: half, one and a half, the same
 *
 * Judged:
 * 1. all words of one handle are of one version ("mixed"), also those of its mapping;
 * 2. an open that begins after a change was complete never shows an older version ("stale"), nor one that is not there yet;
 * 3. open never fails; a read may fail with ESTALE only, and never on a handle opened while the file is at rest;
 * 4. fstat of a handle gives the size of its version, and every read up to there is complete.
 *
 * Prints "opens N complete N estale N held N sigbus N" and exits 0, or says what is wrong and exits 1; 3: could not start.
 */
#include "tests/mount/prog/pat.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OPENERS 4
#define FILE_ID 7u
#define BLOCK (128u << 10)
#define REPLACE_GAP_NS 20000000L

static struct {
	/* const after start */
	char origin[PATH_MAX], origin_new[PATH_MAX], mount[PATH_MAX];
	unsigned rounds;
	uint64_t bytes;
	unsigned long gap_ms;
	/* atomic: `started` goes up before the file changes, `committed` after the change is complete */
	_Atomic unsigned started, committed;
	_Atomic bool is_over;
	_Atomic unsigned opens, complete, estale, held, sigbus;
} g;

static _Thread_local sigjmp_buf on_bus;
static _Thread_local volatile sig_atomic_t expects_bus;

__attribute__((format(printf, 1, 2))) static _Noreturn void wrong(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

static void bus(int signum)
{
	if (!expects_bus)
		_exit(128 + signum);
	siglongjmp(on_bus, 1);
}

/* Sizes of the versions in `resize`; else all the same. */
static bool is_resizing;

static uint64_t size_of(unsigned version)
{
	static const unsigned halves[] = {2, 1, 3};

	return is_resizing ? g.bytes * halves[version % 3] / 2 : g.bytes;
}

/* ---- the writer ---- */
static void write_all(int fd, unsigned version)
{
	unsigned char *buf = malloc(BLOCK);
	uint64_t size = size_of(version);

	if (!buf)
		wrong("no memory");
	for (uint64_t at = 0; at < size;) {
		size_t n = size - at < BLOCK ? (size_t)(size - at) : BLOCK;

		pat_fill(buf, n, FILE_ID, version, at);
		if (pwrite(fd, buf, n, (off_t)at) != (ssize_t)n)
			wrong("write at the origin: %s", strerror(errno));
		at += n;
	}
	free(buf);
}

static void replace(unsigned version)
{
	int fd = open(g.origin_new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		wrong("%s: %s", g.origin_new, strerror(errno));
	write_all(fd, version);
	close(fd);
	atomic_store(&g.started, version);
	if (rename(g.origin_new, g.origin) != 0)
		wrong("rename: %s", strerror(errno));
	atomic_store(&g.committed, version);
}

static void overwrite(unsigned version, bool keeps_mtime)
{
	int fd = open(g.origin, O_WRONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		wrong("%s: %s", g.origin, strerror(errno));
	atomic_store(&g.started, version);
	if (is_resizing && ftruncate(fd, (off_t)size_of(version)) != 0)
		wrong("ftruncate: %s", strerror(errno));
	write_all(fd, version);
	if (keeps_mtime && futimens(fd, (struct timespec[]){{.tv_nsec = UTIME_OMIT}, st.st_mtim}) != 0)
		wrong("futimens: %s", strerror(errno));
	close(fd);
	atomic_store(&g.committed, version);
}

/* ---- a handle of one version ---- */
struct handle {
	int fd;
	unsigned version;
	bool is_known; /* version and size are set */
	uint64_t size;
	unsigned char *map;
};

static bool learn(struct handle *h, const unsigned char *word_bytes)
{
	uint64_t word;

	memcpy(&word, word_bytes, sizeof(word));
	struct pat_id id = pat_decode(word);
	if (id.file != FILE_ID || id.offset != 0)
		wrong("first word %016" PRIx64 " is no pattern: %s", word, word ? "garbage" : "zero");
	h->version = id.version;
	h->is_known = true;
	if (h->size != size_of(h->version))
		wrong("handle says %" PRIu64 " bytes, version %u has %" PRIu64, h->size, h->version, size_of(h->version));
	return true;
}

static void handle_open(struct handle *h, bool is_mapped)
{
	struct stat st;

	*h = (struct handle){.fd = open(g.mount, O_RDONLY | O_CLOEXEC)};
	if (h->fd < 0)
		wrong("open failed: %s", strerror(errno));
	if (fstat(h->fd, &st) != 0)
		wrong("fstat failed: %s", strerror(errno));
	h->size = (uint64_t)st.st_size;
	if (is_mapped) {
		h->map = mmap(NULL, h->size, PROT_READ, MAP_SHARED, h->fd, 0);
		if (h->map == MAP_FAILED)
			wrong("mmap failed: %s", strerror(errno));
	}
	atomic_fetch_add(&g.opens, 1);
}

static void handle_close(struct handle *h)
{
	if (h->map)
		munmap(h->map, h->size);
	close(h->fd);
}

/*
 * Read and judge [at, at + n). False: ESTALE. A buffered read that meets an error on a later page gives the bytes before it
 * and the error next time, so the rest is asked for; no progress before the end would be a shortened file.
 */
static bool handle_read(struct handle *h, unsigned char *buf, uint64_t at, size_t n, const char *who)
{
	size_t want = h->size - at < n ? (size_t)(h->size - at) : n, done = 0;
	ssize_t got = 1;

	while (got > 0 && done < n) {
		got = pread(h->fd, buf + done, n - done, (off_t)(at + done));
		if (got < 0 && errno != ESTALE)
			wrong("%s: read at %" PRIu64 " failed: %s", who, at + done, strerror(errno));
		done += got > 0 ? (size_t)got : 0;
	}
	if (got >= 0 && done != want)
		wrong("%s: %zu bytes at %" PRIu64 " of %" PRIu64 ", must be %zu", who, done, at, h->size, want);
	if (!h->is_known && done >= 8)
		learn(h, buf);
	if (done > 0 && pat_check(buf, done, FILE_ID, h->version, at, who) != 0)
		wrong("mixed (%s)", who);
	return got >= 0;
}

static bool handle_touch(struct handle *h, uint64_t at, size_t n, const char *who)
{
	bool is_there = false;

	n = h->size - at < n ? (size_t)(h->size - at) : n;
	expects_bus = 1;
	if (sigsetjmp(on_bus, 1) == 0) {
		if (pat_check(h->map + at, n, FILE_ID, h->version, at, who) != 0)
			wrong("mixed (%s)", who);
		is_there = true;
	} else {
		atomic_fetch_add(&g.sigbus, 1);
	}
	expects_bus = 0;
	return is_there;
}

/* All of it; false when it became stale on the way. */
static bool handle_read_all(struct handle *h, unsigned char *buf, const char *who)
{
	for (uint64_t at = 0; at < h->size; at += BLOCK)
		if (!handle_read(h, buf, at, BLOCK, who))
			return false;
	if (handle_read(h, buf, h->size, BLOCK, who) == false)
		return false;
	return true;
}

/* ---- replace ---- */
static void *opener(void *arg)
{
	unsigned char *buf = malloc(BLOCK);

	while (buf && !atomic_load(&g.is_over)) {
		struct handle h;
		unsigned lowest = atomic_load(&g.committed);

		handle_open(&h, false);
		unsigned highest = atomic_load(&g.started);
		bool is_complete = handle_read_all(&h, buf, arg);
		if (h.is_known && h.version < lowest)
			wrong("stale: version %u under an open that began after %u was complete", h.version, lowest);
		/* `started` is raised just before the rename, so it may lag behind what open saw by nothing. */
		if (h.is_known && h.version > highest)
			wrong("version %u under an open that ended when %u was the newest", h.version, highest);
		atomic_fetch_add(is_complete ? &g.complete : &g.estale, 1);
		handle_close(&h);
	}
	free(buf);
	return NULL;
}

/* Holds a descriptor and a mapping of one version over many replacements. */
static void *holder(void *arg)
{
	unsigned char *buf = malloc(BLOCK);
	unsigned seed = 1;

	while (buf && !atomic_load(&g.is_over)) {
		struct handle h;

		handle_open(&h, true);
		if (handle_read(&h, buf, 0, 4096, arg)) {
			unsigned until = atomic_load(&g.committed) + 20;

			while (!atomic_load(&g.is_over) && atomic_load(&g.committed) < until) {
				uint64_t at = (uint64_t)rand_r(&seed) % h.size / 8 * 8;

				handle_read(&h, buf, at, 4096, "held descriptor");
				handle_touch(&h, at, 4096, "held mapping");
				atomic_fetch_add(&g.held, 1);
				nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
			}
			/* What was once shown stays. */
			if (!handle_touch(&h, 0, 8, "held mapping") && g.held == 0)
				wrong("the first page of a held mapping is gone");
		}
		handle_close(&h);
	}
	free(buf);
	return NULL;
}

static void run_replace(void)
{
	static char hold[] = "holder";
	static char names[OPENERS][16] = {"opener 0", "opener 1", "opener 2", "opener 3"};
	pthread_t threads[OPENERS + 1];

	for (int i = 0; i < OPENERS; i++)
		if (pthread_create(&threads[i], NULL, opener, names[i]) != 0)
			exit(3);
	if (pthread_create(&threads[OPENERS], NULL, holder, hold) != 0)
		exit(3);
	/* Never made up for: after this thread was kept from running, many changes within one tick of the clock would be alike. */
	for (unsigned v = 2; v < 2 + g.rounds; v++) {
		nanosleep(&(struct timespec){.tv_nsec = REPLACE_GAP_NS}, NULL);
		replace(v);
	}
	atomic_store(&g.is_over, true);
	for (int i = 0; i <= OPENERS; i++)
		pthread_join(threads[i], NULL);
}

/* ---- in place: handles opened at rest, read while the file changes ---- */
struct round {
	struct handle old[OPENERS];
	_Atomic bool is_written;
};

static void *old_reader(void *arg)
{
	struct round *r = arg;
	unsigned char *buf = malloc(BLOCK);
	unsigned seed = atomic_load(&g.committed);

	while (buf && !atomic_load(&r->is_written)) {
		struct handle *h = &r->old[(unsigned)rand_r(&seed) % OPENERS];
		uint64_t at = (uint64_t)rand_r(&seed) % h->size / 8 * 8;

		handle_read(h, buf, at, 4096, "old descriptor");
		handle_touch(h, at, 4096, "old mapping");
		atomic_fetch_add(&g.held, 1);
	}
	free(buf);
	return NULL;
}

/* At rest: open must show `version`, and everything must be readable. */
static void judge_at_rest(struct handle *h, unsigned version, bool is_whole, unsigned char *buf)
{
	handle_open(h, true);
	if (h->size != size_of(version))
		wrong("stale: fstat says %" PRIu64 " bytes, version %u has %" PRIu64, h->size, version, size_of(version));
	if (!(is_whole ? handle_read_all(h, buf, "new descriptor") : handle_read(h, buf, 0, 4096, "new descriptor")))
		wrong("ESTALE on a handle opened while the file is at rest");
	if (h->version != version)
		wrong("stale: version %u under an open that began after %u was complete", h->version, version);
	atomic_fetch_add(&g.complete, 1);
}

static void run_in_place(bool keeps_mtime)
{
	unsigned char *buf = malloc(BLOCK);

	for (unsigned v = 2; buf && v < 2 + g.rounds; v++) {
		struct round r = {.is_written = false};
		struct handle fresh;
		pthread_t reading;

		for (int i = 0; i < OPENERS; i++)
			judge_at_rest(&r.old[i], v - 1, i == 0 && v % 2 == 0, buf);
		if (pthread_create(&reading, NULL, old_reader, &r) != 0)
			exit(3);
		nanosleep(&(struct timespec){.tv_nsec = (long)(g.gap_ms * 1000000)}, NULL);
		overwrite(v, keeps_mtime);
		judge_at_rest(&fresh, v, true, buf);
		atomic_store(&r.is_written, true);
		pthread_join(reading, NULL);
		for (int i = 0; i < OPENERS; i++) {
			if (!handle_read_all(&r.old[i], buf, "old descriptor"))
				atomic_fetch_add(&g.estale, 1);
			for (uint64_t at = 0; at < r.old[i].size; at += BLOCK)
				handle_touch(&r.old[i], at, BLOCK, "old mapping");
			handle_close(&r.old[i]);
		}
		handle_close(&fresh);
	}
	free(buf);
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = bus, .sa_flags = SA_NODEFER};

	if (argc < 6 || argc > 7 || sigaction(SIGBUS, &sa, NULL) != 0)
		return 3;
	snprintf(g.origin, sizeof(g.origin), "%s/data", argv[2]);
	snprintf(g.origin_new, sizeof(g.origin_new), "%s/.data.new", argv[2]);
	snprintf(g.mount, sizeof(g.mount), "%s/data", argv[3]);
	g.rounds = (unsigned)strtoul(argv[4], NULL, 10);
	g.bytes = strtoull(argv[5], NULL, 10) / 16 * 16;
	g.gap_ms = argc == 7 ? strtoul(argv[6], NULL, 10) % 1000 : 0;
	is_resizing = strcmp(argv[1], "resize") == 0;
	replace(1);
	if (strcmp(argv[1], "replace") == 0)
		run_replace();
	else
		run_in_place(strcmp(argv[1], "overwrite-mtime") == 0);
	printf("opens %u complete %u estale %u held %u sigbus %u\n", g.opens, g.complete, g.estale, g.held, g.sigbus);
	return 0;
}
