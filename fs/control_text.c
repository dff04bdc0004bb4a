/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_text.c - README, status, metrics. The keys of `status` are never renamed (design §5); figures that one
 * part of the daemon keeps are asked of it, never counted twice.
 */
#include "fs/control_i.h"

#include "cache/base/arith.h"
#include "cache/base/time.h"
#include "cache/tier.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- README ------------------------------------------------------------------------------------------------ */

static const char readme[] =
	"Tell hintfs the order in which you will read; it fetches ahead in that order. A hint never changes what a "
	"read returns.\n"
	"\n"
	"  printf '%s\\n' wds/shard-{000000..000099}.tar > .ctl/order     replace the list\n"
	"  find . -name '*.jpg' | sort >> .ctl/order                     add to it\n"
	"  : > .ctl/order                                                stop\n"
	"\n"
	"One line a file. Columns are separated by TAB, lines end in LF, names are bytes.\n"
	"  wds/shard-000003.tar           the whole file\n"
	"  train.bin TAB 1048576 TAB 8192 path, offset, length (0 or - : to the end)\n"
	"  s-{0000..0099}.tar  {a,b}  A::B  expanded as bash does, unless a file has that literal name\n"
	"  dir/                           all regular files below, sorted\n"
	"  \"a\\tb\\n.tar\"                  a JSON string, for names with TAB or LF\n"
	"  ./#x  ./@x  ./\"x               names that begin with # @ \"\n"
	"  # ...                          ignored, as are empty lines\n"
	"  @batch [N]                     the entries that follow belong to batch N (bare: the next one)\n"
	"  @epoch [N]   @repeat K         a label; the list so far is read K times in all\n"
	"  @any   @ordered                an unordered bag follows; back to order\n"
	"  @window 8G   @window 4 batches how far ahead of the reader to fetch\n"
	"  @seek N   @done N              entry N is next; reading is past batch N (past entry N in a list without "
	"batches)\n"
	"                                 (these two leave the list as it is, also when written with >)\n"
	"  @cancel   @prefix DIR          drop the list; strip DIR from the paths that follow\n"
	"Paths are relative to the mount; the mount's own path is stripped. shard.tar TAB member=... is not yet "
	"supported.\n"
	"\n"
	"Files here\n"
	"  order        the stream \"default\"      streams/N  another stream (rank, worker): open it for writing; rm "
	"= cancel, forget\n"
	"  status       flat `key value` lines    errors     the last 64 rejected lines, with the reason; emptied by > "
	"errors\n"
	"  prefetch     on | off | pause          wait       write \"batch 17\", \"stream N batch 17\" or a path: "
	"returns when in memory\n"
	"  record       accesses as they happen   metrics    Prometheus text\n"
	"  verify       write start or stop: check all that the disk tier has, drop what is bad; read: how far it is\n"
	"Reading order or streams/N gives what is still to be read, in this grammar: written back, it is the same order.\n"
	"At most 1,024 streams with \"default\", 16,777,216 entries in each (@repeat is for more).\n"
	"\n"
	"A bad line fails the write: EINVAL not understood, ENOENT no such file (the first 16 are checked at once, "
	"later ones are\n"
	"counted as missing_entries), EXDEV outside the mount, EISDIR a directory without its slash, ERANGE offset "
	"past the end,\n"
	"EMSGSIZE longer than 65,536 bytes, ENOSPC too many entries, ECANCELED the stream was removed. Lines before it "
	"stay;\n"
	"dash says only \"I/O error\": look into errors.\n"
	"In a container bind this directory (under /run/hintfs) as a second volume; a read-only bind of the data is "
	"fine.\n";

void control_print_readme(struct control *c, FILE *out)
{
	(void)c;
	fputs(readme, out);
}

/* ---- status -------------------------------------------------------------------------------------------------- */

struct figures {
	struct cache_stats cache;
	struct sched_stats sched;
	struct tier_stats tier;
	uint64_t tier_bypass;
	const char *tier_state;
	uint64_t rss_bytes, n_streams;
	double uptime_s;
	char *data; /* lines of the data session; owned, may be NULL */
};

static uint64_t rss_bytes(void)
{
	char buf[128];
	unsigned long long pages = 0;
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	buf[n] = '\0';
	return sscanf(buf, "%*u %llu", &pages) == 1 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static char *data_text(struct control *c)
{
	size_t cap = 16384;
	char *buf;

	if (!c->h->data)
		return NULL;
	buf = malloc(cap);
	if (!buf)
		return NULL;
	buf[0] = '\0';
	(void)data_session_status(c->h->data, buf, cap);
	buf[cap - 1] = '\0';
	return buf;
}

static uint64_t count_streams(struct control *c)
{
	uint64_t n = 0;

	hfs_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < c->n_streams; i++)
		n += c->streams[i] != NULL;
	hfs_mutex_unlock(&c->lock);
	return n;
}

static void gather(struct control *c, struct figures *f)
{
	memset(f, 0, sizeof(*f));
	engine_stats(c->h->engine, &f->cache, &f->sched);
	f->tier_state = engine_tier_stats(c->h->engine, &f->tier) ? tier_state_name(f->tier.state) : "off";
	for (size_t i = 0; i < TIER_CAUSE_N; i++)
		f->tier_bypass += f->tier.bypassed[i];
	f->rss_bytes = rss_bytes();
	f->n_streams = count_streams(c);
	f->uptime_s = (double)(hfs_now_ns() - c->h->started_ns) / 1e9;
	f->data = data_text(c);
}

/* What follows a key on its line in the data session's text; NULL: it has no such line. */
static const char *data_at(const struct figures *f, const char *key)
{
	size_t len = strlen(key);

	for (const char *s = f->data; s && *s; s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL)
		if (strncmp(s, key, len) == 0 && s[len] == ' ')
			return s + len + 1;
	return NULL;
}

/* -1: there is none. */
static double data_value(const struct figures *f, const char *key)
{
	const char *s = data_at(f, key);

	return s ? strtod(s, NULL) : -1;
}

/* A value or a part of a key on one line, without blanks: octal as in /proc/mounts. */
static void print_word(FILE *out, const char *s, bool is_key)
{
	for (; *s; s++) {
		unsigned char ch = (unsigned char)*s;

		if (ch == '\n' || ch == '\\' || (is_key && (ch <= ' ' || ch == '.')))
			fprintf(out, "\\%03o", ch);
		else
			fputc(ch, out);
	}
}

static const char *mode_word(const struct hfs_opts *o)
{
	return o->is_immutable ? "immutable" : o->is_nocto ? "nocto" : "revalidate";
}

static void print_head(struct control *c, const struct figures *f, FILE *out)
{
	fprintf(out, "version %s\nsource ", HINTFS_VERSION);
	print_word(out, c->h->opts.source ? c->h->opts.source : "", false);
	fputs("\nmountpoint ", out);
	print_word(out, c->mount, false);
	fprintf(out, "\nmode %s\npid %ld\nuptime_s %.3f\n", mode_word(&c->h->opts), (long)getpid(), f->uptime_s);
}

#define U64 "%" PRIu64 "\n"

static void print_figures(struct control *c, const struct figures *f, FILE *out)
{
	const struct cache_stats *ca = &f->cache;
	const struct sched_stats *sc = &f->sched;
	double stall_s = data_value(f, "stall_s");

	fprintf(out,
		"origin_bytes " U64 "origin_reads " U64 "origin_errors " U64 "needed_bytes " U64 "demand_misses " U64,
		ca->origin_bytes, ca->origin_reads, ca->origin_errors, sc->needed_bytes, sc->demand_misses);
	fprintf(out, "stall_s %.3f\n", stall_s < 0 ? 0 : stall_s);
	fprintf(out, "prefetch_useful_bytes " U64 "prefetch_late_bytes " U64 "prefetch_wasted_bytes " U64,
		sc->prefetch_useful_bytes, sc->prefetch_late_bytes, sc->prefetch_wasted_bytes);
	fprintf(out, "slots_total %u\nslots_used %u\nslots_pinned %u\n", ca->slots_total, ca->slots_used,
		ca->slots_pinned);
	fprintf(out, "inflight_bytes " U64 "rss_bytes " U64, ca->inflight_bytes, f->rss_bytes);
	fprintf(out,
		"tier_state %s\ntier_bytes " U64 "tier_inodes " U64 "tier_hit_bytes " U64 "tier_bad " U64 "tier_bypass " U64,
		f->tier_state, f->tier.bytes, f->tier.inodes, f->tier.hit_bytes, f->tier.bad, f->tier_bypass);
	fprintf(out, "stale " U64 "late_metadata " U64, ca->stale + atomic_load(&c->h->stale_opens),
		atomic_load(&c->h->late_metadata));
	fprintf(out, "streams " U64 "pending_entries " U64 "missing_entries " U64 "bound_s %.3f\nbound_bytes " U64,
		f->n_streams, sc->pending_entries, sc->missing_entries, sc->bound_s, sc->bound_bytes);
}

/* What readers needed came from the origin or from the disk once, and the rest from slots where it still was. What the kernel's page
 * cache answers is not seen here. */
static void print_tier(struct control *c, const struct figures *f, FILE *out)
{
	static const char *const keys[TIER_CAUSE_N] = {"", "io_error", "no_space", "quota", "read_only", "hang", "gone"};
	const struct tier_stats *t = &f->tier;
	uint64_t disk = t->hit_bytes, origin = f->cache.origin_bytes, needed = f->sched.needed_bytes;
	uint64_t slots = hfs_sub_floor_u64(needed, disk + origin);
	double one = slots + disk + origin > 0 ? 1.0 / (double)(slots + disk + origin) : 0;

	fprintf(out, "share_slots %.4f\nshare_disk %.4f\nshare_origin %.4f\n", (double)slots * one, (double)disk * one,
		(double)origin * one);
	if (!engine_tier(c->h->engine))
		return;
	fputs("tier_dir ", out);
	print_word(out, c->h->opts.cache_dir, false);
	fprintf(out, "\ntier_free_pct %u\ntier_room_bytes " U64 "tier_room_inodes " U64, c->h->opts.cache_free_pct, t->room_bytes,
		t->room_inodes);
	fprintf(out, "tier_cause %s\ntier_size_bytes " U64 "tier_files_big " U64 "tier_files_small " U64 "tier_chunks " U64
		"tier_index_bytes " U64, tier_cause_name(t->cause), t->size_bytes, t->files_big, t->files_small, t->chunks, t->index_bytes);
	fprintf(out, "tier_hits " U64 "tier_misses " U64 "tier_admitted_bytes " U64 "tier_skipped_queue " U64 "tier_skipped_full " U64
		"tier_dropped " U64 "tier_culled_bytes " U64 "tier_read_timeouts " U64 "tier_unsynced_bytes " U64 "tier_queued %u\n",
		t->hits, t->misses, t->admitted_bytes, t->skipped_queue, t->skipped_full, t->dropped, t->culled_bytes, t->read_timeouts,
		t->unsynced_bytes, t->queued);
	for (unsigned i = TIER_CAUSE_NONE + 1; i < TIER_CAUSE_N; i++)
		fprintf(out, "tier_bypass_%s " U64 "tier_errors_%s " U64, keys[i], t->bypassed[i], keys[i], t->errors[i]);
}

static double ratio(double a, double b)
{
	return b > 0 ? a / b : 0;
}

/* What was done, over what had to be; and why readers waited. */
static void print_bounds(const struct figures *f, FILE *out)
{
	static const char *const causes[SCHED_STALLS] = {"late", "tier", "slots", "evicted", "behind", "unnamed"};
	const struct sched_stats *sc = &f->sched;
	double origin = (double)f->cache.origin_bytes;

	fprintf(out, "origin_ratio %.4f\nbound_ratio %.4f\nbound_sample %.6f\n", ratio(origin, (double)sc->needed_bytes),
		ratio(origin, (double)sc->bound_bytes), 1.0 / (double)(1ULL << sc->bound_shift));
	fprintf(out, "read_time_s %.3f\nbound_time_s %.3f\ntime_ratio %.4f\n", sc->read_s, sc->bound_read_s,
		ratio(sc->read_s, sc->bound_read_s));
	for (int i = 0; i < SCHED_STALLS; i++)
		fprintf(out, "stall_%s_s %.6f\n", causes[i], sc->stall_s[i]);
}

static void print_more(struct control *c, const struct figures *f, FILE *out)
{
	static const char *const prefetch[] = {"on", "off", "pause"};
	const struct cache_stats *ca = &f->cache;
	const struct sched_stats *sc = &f->sched;

	fprintf(out, "chunk_bytes " U64 "memory_bytes " U64 "prefetch %s\n", c->h->opts.chunk_bytes,
		c->h->opts.memory_bytes, prefetch[engine_prefetch_get(c->h->engine)]);
	fprintf(out,
		"slots_ready %u\nhit_bytes " U64 "miss_reads " U64 "parked_reads_total " U64 "short_reads " U64
		"retries " U64,
		ca->slots_ready, ca->hit_bytes, ca->miss_reads, ca->parked_reads, ca->short_reads, ca->retries);
	fprintf(out, "lost " U64 "overdue " U64 "shed " U64, ca->lost, ca->overdue, engine_shed_pages(c->h->engine));
	fprintf(out, "oldest_fetch_s %.3f\norigin_threads %u\norigin_threads_busy %u\ndescriptors %u\nfiles " U64,
		(double)ca->oldest_fetch_ns / 1e9, ca->threads, ca->threads_busy, ca->fds, ca->files);
	fprintf(out, "entry_bytes " U64 "origin_bytes_per_s %.0f\norigin_latency_s %.6f\nconcurrency %u\n",
		sc->entry_bytes, sc->origin_bytes_per_s, sc->origin_latency_s, sc->concurrency);
	print_bounds(f, out);
	print_tier(c, f, out);
	fprintf(out, "control_lines " U64 "control_rejected " U64 "control_unchecked " U64, atomic_load(&c->lines),
		atomic_load(&c->rejected), atomic_load(&c->unchecked));
}

/* The data session's own lines, without those that were printed at their place. */
static void print_data(const struct figures *f, FILE *out)
{
	for (const char *s = f->data; s && *s;) {
		const char *lf = strchr(s, '\n');
		size_t n = lf ? (size_t)(lf - s) : strlen(s);

		if (n > 0 && strncmp(s, "stall_s ", 8) != 0)
			fprintf(out, "%.*s\n", (int)n, s);
		s = lf ? lf + 1 : NULL;
	}
}

static void print_key(FILE *out, const struct control_stream *s, const char *key)
{
	fputs("stream.", out);
	print_word(out, s->name, true);
	fprintf(out, ".%s ", key);
}

static void print_stream(struct control *c, const struct control_stream *s, uint64_t window_bytes, FILE *out)
{
	struct sched_stream_stats st = {0};

	if (engine_stream_stats(c->h->engine, s->engine_id, &st) < 0)
		return;
	const struct {
		const char *key;
		uint64_t value;
	} rows[] = {
		{"entries", st.entries},
		{"pending", st.pending},
		{"missing", st.missing},
		{"skipped", st.skipped},
		{"low", st.low},
		{"high", st.high},
		{"epoch", st.epoch},
		{"batch", st.batch},
		{"window_bytes", window_bytes},
		{"is_speculating", st.is_speculating},
		{"accepted_lines", atomic_load(&s->accepted_lines)},
		{"rejected_lines", atomic_load(&s->rejected_lines)},
		{"unchecked_entries", atomic_load(&s->unchecked_entries)},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		print_key(out, s, rows[i].key);
		fprintf(out, U64, rows[i].value);
	}
	print_key(out, s, "tau_s");
	fprintf(out, "%.9f\n", st.tau_s);
	print_key(out, s, "confidence");
	fprintf(out, "%.3f\n", st.confidence);
}

static void print_streams(struct control *c, FILE *out)
{
	uint64_t windows[SCHED_STREAMS_MAX];

	engine_windows(c->h->engine, windows);
	for (uint32_t slot = 0; slot < SCHED_STREAMS_MAX; slot++) {
		struct control_stream *s = NULL;
		bool is_end;

		hfs_mutex_lock(&c->lock);
		is_end = slot >= c->n_streams;
		if (!is_end && c->streams[slot]) {
			s = c->streams[slot];
			s->refs++;
		}
		hfs_mutex_unlock(&c->lock);
		if (s) {
			print_stream(c, s, windows[s->engine_id], out);
			control_stream_put(c, s);
		}
		if (is_end)
			break;
	}
}

void control_print_status(struct control *c, FILE *out)
{
	struct figures f;

	gather(c, &f);
	print_head(c, &f, out);
	print_figures(c, &f, out);
	print_more(c, &f, out);
	print_data(&f, out);
	print_streams(c, out);
	free(f.data);
}

/* ---- metrics ------------------------------------------------------------------------------------------------------
 */

static void metric(FILE *out, const char *mount, const char *name, const char *type, const char *help, double value)
{
	fprintf(out, "# HELP hintfs_%s %s\n# TYPE hintfs_%s %s\nhintfs_%s{mount=\"", name, help, name, type, name);
	for (; *mount; mount++) {
		if (*mount == '\n')
			fputs("\\n", out);
		else if (*mount == '"' || *mount == '\\')
			fprintf(out, "\\%c", *mount);
		else
			fputc(*mount, out);
	}
	fprintf(out, "\"} %.17g\n", value);
}

void control_print_metrics(struct control *c, FILE *out)
{
	struct figures f;
	const char *opens;
	double stall_s;

	gather(c, &f);
	opens = data_at(&f, "opens");
	stall_s = data_value(&f, "stall_s");
	const struct {
		const char *name, *type, *help;
		double value;
	} rows[] = {
		{"uptime_seconds", "gauge", "Seconds since the mount was made.", f.uptime_s},
		{"origin_bytes_total", "counter", "Bytes read from the origin.", (double)f.cache.origin_bytes},
		{"origin_reads_total", "counter", "Reads of the origin.", (double)f.cache.origin_reads},
		{"origin_errors_total", "counter", "Reads of the origin that failed.", (double)f.cache.origin_errors},
		{"needed_bytes_total", "counter", "Bytes that readers needed.", (double)f.sched.needed_bytes},
		{"demand_misses_total", "counter", "Reads that had to wait for the origin.",
		 (double)f.sched.demand_misses},
		{"stall_seconds_total", "counter", "Seconds that readers waited.", stall_s < 0 ? 0 : stall_s},
		{"prefetch_useful_bytes_total", "counter", "Bytes fetched ahead and then read.",
		 (double)f.sched.prefetch_useful_bytes},
		{"prefetch_late_bytes_total", "counter", "Bytes asked for while on their way.",
		 (double)f.sched.prefetch_late_bytes},
		{"prefetch_wasted_bytes_total", "counter", "Bytes fetched ahead and dropped unread.",
		 (double)f.sched.prefetch_wasted_bytes},
		{"slots_total", "gauge", "Slots of the memory pool.", f.cache.slots_total},
		{"slots_used", "gauge", "Slots in use.", f.cache.slots_used},
		{"slots_pinned", "gauge", "Slots being copied out.", f.cache.slots_pinned},
		{"inflight_bytes", "gauge", "Bytes asked of the origin and not yet here.",
		 (double)f.cache.inflight_bytes},
		{"tier_bytes", "gauge", "Bytes the disk tier takes.", (double)f.tier.bytes},
		{"tier_inodes", "gauge", "Inodes the disk tier takes.", (double)f.tier.inodes},
		{"tier_hit_bytes_total", "counter", "Bytes read from the disk tier.", (double)f.tier.hit_bytes},
		{"tier_bad_total", "counter", "Data on the disk tier that failed its check.", (double)f.tier.bad},
		{"tier_bypass_total", "counter", "Reads and admissions that passed the disk tier by.", (double)f.tier_bypass},
		{"opens_unseen", "gauge", "1: the kernel opens files without telling (status: opens none).",
		 opens && strncmp(opens, "none\n", 5) == 0},
		{"rss_bytes", "gauge", "Resident memory of the daemon.", (double)f.rss_bytes},
		{"stale_total", "counter", "Origin files that changed under a reader.",
		 (double)(f.cache.stale + atomic_load(&c->h->stale_opens))},
		{"late_metadata_total", "counter", "Answers from the last snapshot because the origin was late.",
		 (double)atomic_load(&c->h->late_metadata)},
		{"streams", "gauge", "Streams of hints.", (double)f.n_streams},
		{"pending_entries", "gauge", "Entries of orders still to be read.", (double)f.sched.pending_entries},
		{"missing_entries", "gauge", "Entries of orders that are not at the origin.",
		 (double)f.sched.missing_entries},
		{"control_lines_total", "counter", "Control lines accepted.", (double)atomic_load(&c->lines)},
		{"control_rejected_lines_total", "counter", "Control lines refused.",
		 (double)atomic_load(&c->rejected)},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		metric(out, c->mount, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
	free(f.data);
}
