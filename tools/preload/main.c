/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/preload/main.c - hintfs-preload: run an order through the ring and say how fast that was.
 *
 * Sees hintfs.h only. Exit status: 0 every byte was delivered (and verified, if asked); 1 usage; 2 the loader could not be
 * opened; 3 a sample failed or differed; 130 interrupted.
 */
#include "tools/preload/hintfs.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VERIFY_BYTES (1u << 20)
#define PROGRESS_NS 250000000u

enum { EXIT_USAGE = 1, EXIT_OPEN = 2, EXIT_DATA = 3, EXIT_INTERRUPTED = 130 };

struct run {
	struct hintfs_opts opts;
	struct hintfs_loader *loader;
	const char *order;
	char *order_text; /* owned, when the order came from stdin */
	uint64_t epochs;  /* 0: as many as the order has */
	bool is_verify, is_json, is_quiet;
	int root_fd;	  /* --verify */
	char *verify_buf; /* owned */
	/* progress */
	uint64_t start_ns, shown_ns;
	uint64_t batches, samples, bytes, verified_bytes, bad_samples;
	uint64_t total_bytes, total_samples;
	int is_total_known;
	bool is_shown;
};

static atomic_int stop_signal;

static void stop_note(int sig)
{
	atomic_store(&stop_signal, sig);
}

/* First Ctrl-C: stop in order. Second: the default action. */
static void signals_set(void)
{
	struct sigaction sa = { .sa_handler = stop_note, .sa_flags = (int)SA_RESETHAND };

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char usage_text[] =
	"Usage: hintfs-preload [options] MOUNTPOINT ORDER\n"
	"\n"
	"Reads the samples that ORDER names, in that order, from MOUNTPOINT into a ring of batch\n"
	"slots in page-locked memory, as a training job using libhintfs would, and reports the rate.\n"
	"MOUNTPOINT may be any directory; on a hintfs mount the order is written to its control\n"
	"file first, so that the data is fetched ahead. ORDER is a control file, or - for stdin:\n"
	"\n"
	"    wds/shard-000003.tar              a whole file\n"
	"    train.bin<TAB>1048576<TAB>8192    path, offset, length\n"
	"    wds/shard-{000000..000099}.tar    patterns\n"
	"    images/                           all files below a directory\n"
	"    @batch                            the following entries are the next batch\n"
	"\n"
	"What a batch is: the order's @batch marks; or else N samples (--batch); or else as many\n"
	"bytes as fit a slot (--batch-bytes). What is larger than a slot arrives in pieces.\n"
	"\n"
	"  -n, --batch N          samples in a batch\n"
	"  -b, --batch-bytes SIZE payload bytes of a slot (default: what the order needs if it says all\n"
	"                         lengths, else 64M; K M G T are powers of 1024)\n"
	"  -r, --ring N           slots in the ring (default 4)\n"
	"  -w, --workers N        reading threads (default 4)\n"
	"  -d, --device D         CUDA device to lock the ring for: a number, or none (default 0;\n"
	"                         without CUDA the ring is locked by mlock, and the summary says so)\n"
	"      --require-cuda     fail instead\n"
	"  -e, --epochs N         run the order N times (default: as often as it says itself)\n"
	"      --on-error WHAT    fail (default), mark or skip: what a sample that cannot be read does.\n"
	"                         The exit status is 3 whichever it is\n"
	"  -v, --verify           compare every delivered byte with a second read of the file\n"
	"      --stream NAME      write the order to the control directory's streams/NAME\n"
	"      --no-hints         do not write the order to the control file\n"
	"      --json             summary as one JSON object on stdout\n"
	"  -q, --quiet            no progress line\n"
	"  -h, --help             this text      -V, --version\n"
	"\n"
	"Exit status: 0 every byte was delivered, 1 usage, 2 cannot start, 3 bad data, 130 interrupted.\n"
	"Environment: HINTFS_CTL control directory, HINTFS_CUDART the libcudart to load.\n"
	"Example:  cd /mnt/data && find . -name '*.tar' -printf '%P\\n' | shuf | hintfs-preload /mnt/data -\n";

/* ---- options ---------------------------------------------------------------------- */

/* Decimal with K, M, G or T. False: not a number, or out of [min, max]. */
static bool number_parse(const char *s, bool is_size, uint64_t min, uint64_t max, uint64_t *ret)
{
	static const char units[] = "KMGT";
	char *end;
	const char *unit;
	unsigned shift = 0;
	uint64_t v;

	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	v = strtoull(s, &end, 10);
	if (errno)
		return false;
	if (is_size && *end && (unit = strchr(units, *end & ~0x20))) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (*end || v > UINT64_MAX >> shift)
		return false;
	*ret = v << shift;
	return *ret >= min && *ret <= max;
}

static int bad_value(const char *option, const char *value, const char *want)
{
	fprintf(stderr, "hintfs-preload: --%s %s: %s\n", option, value, want);
	return EXIT_USAGE;
}

enum { OPT_REQUIRE_CUDA = 256, OPT_ON_ERROR, OPT_STREAM, OPT_NO_HINTS, OPT_JSON };

static const struct option long_options[] = {
	{ "batch", required_argument, NULL, 'n' },	{ "batch-bytes", required_argument, NULL, 'b' },
	{ "ring", required_argument, NULL, 'r' },	{ "workers", required_argument, NULL, 'w' },
	{ "device", required_argument, NULL, 'd' },	{ "require-cuda", no_argument, NULL, OPT_REQUIRE_CUDA },
	{ "epochs", required_argument, NULL, 'e' },	{ "on-error", required_argument, NULL, OPT_ON_ERROR },
	{ "verify", no_argument, NULL, 'v' },		{ "stream", required_argument, NULL, OPT_STREAM },
	{ "no-hints", no_argument, NULL, OPT_NO_HINTS }, { "json", no_argument, NULL, OPT_JSON },
	{ "quiet", no_argument, NULL, 'q' },		{ "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, 'V' },		{ NULL, 0, NULL, 0 },
};

static int device_parse(struct run *r, const char *s)
{
	uint64_t v;

	if (!strcmp(s, "none")) {
		r->opts.device = HINTFS_NO_DEVICE;
		return 0;
	}
	if (!number_parse(s, false, 0, 1023, &v))
		return bad_value("device", s, "a device number, or none");
	r->opts.device = (int32_t)v;
	return 0;
}

static int on_error_parse(struct run *r, const char *s)
{
	static const char *const words[] = { "fail", "mark", "skip" };

	for (uint32_t i = 0; i < 3; i++)
		if (!strcmp(s, words[i])) {
			r->opts.on_error = i;
			return 0;
		}
	return bad_value("on-error", s, "fail, mark or skip");
}

/* One option. 0, EXIT_USAGE, or -1: done, leave with 0. */
static int option_take(struct run *r, int c)
{
	uint64_t v;

	switch (c) {
	case 'n':
		if (!number_parse(optarg, false, 1, 1u << 20, &v))
			return bad_value("batch", optarg, "a number of samples, 1 to 1048576");
		r->opts.batch_samples = (uint32_t)v;
		return 0;
	case 'b':
		return number_parse(optarg, true, 1, 1ull << 40, &r->opts.batch_bytes) ? 0 :
			bad_value("batch-bytes", optarg, "a size such as 64M, at most 1T");
	case 'r':
		if (!number_parse(optarg, false, 1, 1024, &v))
			return bad_value("ring", optarg, "a number of slots, 1 to 1024");
		r->opts.ring_slots = (uint32_t)v;
		return 0;
	case 'w':
		if (!number_parse(optarg, false, 1, 256, &v))
			return bad_value("workers", optarg, "a number of threads, 1 to 256");
		r->opts.workers = (uint32_t)v;
		return 0;
	case 'e':
		return number_parse(optarg, false, 1, 1u << 20, &r->epochs) ? 0 :
			bad_value("epochs", optarg, "a number, 1 to 1048576");
	case 'd':
		return device_parse(r, optarg);
	case OPT_ON_ERROR:
		return on_error_parse(r, optarg);
	case OPT_STREAM:
		r->opts.stream = optarg;
		return 0;
	case OPT_REQUIRE_CUDA:
		r->opts.flags |= HINTFS_OPEN_REQUIRE_CUDA;
		return 0;
	case OPT_NO_HINTS:
		r->opts.flags |= HINTFS_OPEN_NO_HINTS;
		return 0;
	case OPT_JSON:
		r->is_json = true;
		return 0;
	case 'v':
		r->is_verify = true;
		return 0;
	case 'q':
		r->is_quiet = true;
		return 0;
	case 'h':
		fputs(usage_text, stdout);
		return -1;
	case 'V':
		puts("hintfs-preload " HINTFS_VERSION);
		return -1;
	}
	fputs("Try: hintfs-preload --help\n", stderr);
	return EXIT_USAGE;
}

static int options_parse(struct run *r, int argc, char **argv)
{
	int c, err;

	while ((c = getopt_long(argc, argv, "n:b:r:w:d:e:vqhV", long_options, NULL)) != -1) {
		err = option_take(r, c);
		if (err)
			return err;
	}
	if (argc - optind > 2) {
		fprintf(stderr,
			"hintfs-preload: %s is one word too many: one MOUNTPOINT and one ORDER (a file, or - for stdin)\nTry: hintfs-preload --help\n",
			argv[optind + 2]);
		return EXIT_USAGE;
	}
	if (argc - optind != 2) {
		fputs("hintfs-preload: needs a MOUNTPOINT and an ORDER\nTry: hintfs-preload --help\n", stderr);
		return EXIT_USAGE;
	}
	r->opts.mount = argv[optind];
	r->order = argv[optind + 1];
	return 0;
}

/* stdin into memory: a loader opens its order by path. */
static int stdin_read(struct run *r)
{
	size_t cap = 0, len = 0;
	ssize_t n;

	do {
		if (len == cap) {
			char *more = realloc(r->order_text, cap ? cap * 2 : 65536);

			if (!more)
				return -ENOMEM;
			r->order_text = more;
			cap = cap ? cap * 2 : 65536;
		}
		n = read(STDIN_FILENO, r->order_text + len, cap - len);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n < 0 && atomic_load(&stop_signal))
			return -EINTR;
		len += n > 0 ? (size_t)n : 0;
	} while (n);
	r->opts.order_text = r->order_text;
	r->opts.order_text_bytes = len;
	return 0;
}

/* ---- progress ---------------------------------------------------------------------- */

static void duration_print(FILE *f, double s)
{
	if (s < 100)
		fprintf(f, "%.0f s", s);
	else if (s < 6000)
		fprintf(f, "%.0f min", s / 60);
	else
		fprintf(f, "%.1f h", s / 3600);
}

static void progress_show(struct run *r)
{
	uint64_t now = now_ns();
	double s = (double)(now - r->start_ns) / 1e9, done;

	if (r->is_quiet || now - r->shown_ns < PROGRESS_NS)
		return;
	r->shown_ns = now;
	r->is_shown = true;
	done = r->is_total_known && r->total_bytes ? (double)r->bytes / (double)r->total_bytes :
		r->total_samples ? (double)r->samples / (double)r->total_samples : 0;
	fprintf(stderr, "\r\033[K%5.1f %%  %" PRIu64 " batches  %.1f batches/s  %.3f GB/s", done > 1 ? 100.0 : 100 * done,
		r->batches, (double)r->batches / s, (double)r->bytes / s / 1e9);
	if (done > 0.001 && done < 1) {
		fputs("  ETA ", stderr);
		duration_print(stderr, s * (1 - done) / done);
	}
	fflush(stderr);
}

static void progress_end(struct run *r)
{
	if (r->is_shown)
		fputs("\r\033[K", stderr);
	r->is_shown = false;
}

/* ---- batches ----------------------------------------------------------------------- */

static int sample_differs(struct run *r, const char *path, uint64_t at)
{
	progress_end(r);
	fprintf(stderr, "hintfs-preload: %s: byte %" PRIu64 " differs from a second read of the file\n", path, at);
	return EXIT_DATA;
}

/* Compare one sample with the file, read again through a descriptor of our own. */
static int sample_verify(struct run *r, const char *path, const char *data, uint64_t off, uint64_t len)
{
	int fd = openat(r->root_fd, path, O_RDONLY | O_CLOEXEC), result = 0;
	uint64_t at = 0;

	if (fd < 0) {
		progress_end(r);
		fprintf(stderr, "hintfs-preload: %s: %s\n", path, strerror(errno));
		return EXIT_DATA;
	}
	while (at < len && !result) {
		uint64_t want = len - at < VERIFY_BYTES ? len - at : VERIFY_BYTES;
		ssize_t n = pread(fd, r->verify_buf, want, (off_t)(off + at));

		if (n < 0 && errno == EINTR && !atomic_load(&stop_signal))
			continue;
		if (n <= 0 || memcmp(r->verify_buf, data + at, (size_t)n))
			result = sample_differs(r, path, off + at);
		else
			at += (uint64_t)n;
	}
	close(fd);
	r->verified_bytes += at;
	return result;
}

static int batch_take(struct run *r, const struct hintfs_batch *b)
{
	int result = 0;

	r->batches++;
	for (uint32_t i = 0; i < b->n && !result; i++) {
		const char *path = "?";

		r->bytes += b->length[i];
		r->samples += b->sample_flags[i] & HINTFS_SAMPLE_FINAL ? 1 : 0;
		if (b->status[i]) {
			(void)hintfs_loader_sample_path(r->loader, b->sample_id[i], &path);
			progress_end(r);
			fprintf(stderr, "hintfs-preload: %s: %s\n", path, strerror(b->status[i]));
		} else if (r->is_verify) {
			result = hintfs_loader_sample_path(r->loader, b->sample_id[i], &path) < 0 ? EXIT_DATA :
				sample_verify(r, path, (const char *)b->payload + b->offset[i], b->source_offset[i],
					      b->length[i]);
		}
	}
	return result;
}

/* One epoch: 0, EXIT_DATA or EXIT_INTERRUPTED. */
static int epoch_run(struct run *r)
{
	struct hintfs_batch *b;
	int result = 0;

	while (!result) {
		int err = hintfs_loader_next_batch(r->loader, 100, &b);

		if (atomic_load(&stop_signal))
			result = EXIT_INTERRUPTED;
		if (err == 1)
			return result;
		if (err == -ETIMEDOUT) {
			progress_show(r);
			continue;
		}
		if (err < 0) {
			progress_end(r);
			fprintf(stderr, "hintfs-preload: %s\n", hintfs_last_error());
			return result ? result : EXIT_DATA;
		}
		if (!result)
			result = batch_take(r, b);
		(void)hintfs_batch_release(b, NULL);
		progress_show(r);
	}
	return result;
}

static int epochs_run(struct run *r)
{
	uint64_t lists, label, i, n;
	int result = 0;

	(void)hintfs_loader_epochs(r->loader, &lists);
	n = r->epochs ? r->epochs : lists;
	(void)hintfs_loader_extent(r->loader, &r->total_samples, &r->total_bytes, &r->is_total_known);
	r->total_samples *= n; /* the lists of one order are much alike: good enough for an ETA */
	r->total_bytes *= n;
	for (i = 0; i < n && !result; i++) {
		if (i) {
			(void)hintfs_loader_epoch_label(r->loader, i % lists, &label);
			if (hintfs_loader_set_epoch(r->loader, lists > 1 ? label : i) < 0) {
				fprintf(stderr, "hintfs-preload: %s\n", hintfs_last_error());
				return EXIT_DATA;
			}
		}
		result = epoch_run(r);
	}
	return result;
}

/* ---- summary ----------------------------------------------------------------------- */

/* JSON string; bytes that are not ASCII are passed on as they are. */
static void json_string(const char *s)
{
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			printf("\\u%04x", (unsigned)*s);
		else
			putchar(*s);
	}
	putchar('"');
}

static void summary_json(const struct run *r, const struct hintfs_stats *s, double seconds, int result)
{
	printf("{\"result\":%d,\"batches\":%" PRIu64 ",\"samples\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"bad_samples\":%" PRIu64
	       ",\"verified_bytes\":%" PRIu64 ",\"seconds\":%.6f,\"batches_per_s\":%.3f,\"bytes_per_s\":%.0f",
	       result, r->batches, r->samples, r->bytes, s->bad_samples, r->verified_bytes, seconds,
	       (double)r->batches / seconds, (double)r->bytes / seconds);
	printf(",\"wait_data_s\":%.6f,\"wait_slot_s\":%.6f,\"ring_bytes\":%" PRIu64 ",\"ring_slots\":%u,\"slot_bytes\":%" PRIu64
	       ",\"pinned_bytes\":%" PRIu64, (double)s->wait_data_ns / 1e9, (double)s->wait_slot_ns / 1e9, s->ring_bytes,
	       s->ring_slots, s->slot_bytes, s->pinned_bytes);
	printf(",\"backend\":");
	json_string(s->backend);
	printf(",\"reason\":");
	json_string(s->reason);
	printf(",\"hints\":");
	json_string(s->hints);
	puts("}");
}

static void summary_text(const struct run *r, const struct hintfs_stats *s, double seconds, int result)
{
	printf("%" PRIu64 " batches, %" PRIu64 " samples, %" PRIu64 " bytes in %.3f s: %.1f batches/s, %.3f GB/s\n", r->batches,
	       r->samples, r->bytes, seconds, (double)r->batches / seconds, (double)r->bytes / seconds / 1e9);
	printf("backend %s: %s\n", s->backend, s->reason);
	printf("ring %u x %.1f MiB, %.1f MiB locked; waited %.3f s for data\n", s->ring_slots,
	       (double)s->slot_bytes / 1048576, (double)s->pinned_bytes / 1048576, (double)s->wait_data_ns / 1e9);
	printf("hints %s\n", s->hints);
	if (r->is_verify)
		printf("verified %" PRIu64 " bytes\n", r->verified_bytes);
	if (s->bad_samples)
		printf("%" PRIu64 " samples could not be read\n", s->bad_samples);
	if (result == EXIT_INTERRUPTED)
		puts("interrupted");
}

/* Readers stuck in the mount would hold up close for as long as the mount hangs: leave without it then. */
static void close_or_leave(struct run *r, int result)
{
	struct hintfs_stats s = HINTFS_STATS_INIT;
	struct timespec pause = { .tv_nsec = 10000000 };

	if (result == EXIT_INTERRUPTED) {
		(void)hintfs_loader_cancel(r->loader);
		for (int i = 0; i < 200; i++) {
			if (hintfs_loader_stats(r->loader, &s) < 0 || !s.busy_workers)
				break;
			nanosleep(&pause, NULL);
		}
		if (s.busy_workers) {
			fflush(NULL);
			_exit(result);
		}
	}
	if (hintfs_loader_close(r->loader) < 0)
		fprintf(stderr, "hintfs-preload: %s\n", hintfs_last_error());
}

static int preload(struct run *r)
{
	struct hintfs_stats s = HINTFS_STATS_INIT;
	double seconds;
	int result;

	r->start_ns = now_ns();
	if (hintfs_loader_open(&r->opts, &r->loader) < 0) {
		fprintf(stderr, "hintfs-preload: %s\n", hintfs_last_error());
		return EXIT_OPEN;
	}
	r->start_ns = now_ns();
	result = epochs_run(r);
	seconds = (double)(now_ns() - r->start_ns) / 1e9;
	progress_end(r);
	(void)hintfs_loader_stats(r->loader, &s);
	if (!result && s.bad_samples)
		result = EXIT_DATA;
	(r->is_json ? summary_json : summary_text)(r, &s, seconds > 0 ? seconds : 1e-9, result);
	fflush(stdout);
	close_or_leave(r, result);
	return result;
}

int main(int argc, char **argv)
{
	struct run r = { .opts = HINTFS_OPTS_INIT, .root_fd = -1 };
	int result;

	r.opts.device = 0;
	r.opts.flags = HINTFS_OPEN_SPLIT;
	r.is_quiet = !isatty(STDERR_FILENO);
	result = options_parse(&r, argc, argv);
	if (result)
		return result < 0 ? 0 : result;
	signals_set();
	r.opts.order_path = r.order;
	if (!strcmp(r.order, "-")) {
		result = stdin_read(&r);
		if (result) {
			fprintf(stderr, "hintfs-preload: stdin: %s\n", strerror(-result));
			result = result == -EINTR ? EXIT_INTERRUPTED : EXIT_OPEN;
			goto out;
		}
	}
	if (r.is_verify) {
		r.root_fd = open(r.opts.mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
		r.verify_buf = malloc(VERIFY_BYTES);
		if (r.root_fd < 0 || !r.verify_buf) {
			fprintf(stderr, "hintfs-preload: %s: %s\n", r.opts.mount, strerror(errno));
			result = EXIT_OPEN;
			goto out;
		}
	}
	result = preload(&r);
out:
	free(r.order_text);
	free(r.verify_buf);
	return result;
}
