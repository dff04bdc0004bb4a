/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and the ordered log of slowfs. Called by every other file.
 *
 * A record is made when a request arrives and completed when it is answered, so
 * the log is in order of arrival and shows what is still pending. The ring
 * keeps the last `cap` records; seq never goes back, a reset included.
 *
 * Lock: log->lock guards the ring and the seqs. Counters are atomic, relaxed:
 * each is exact, several together are no snapshot.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ADD(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)
#define GET(counter) ((uint64_t)atomic_load_explicit(&(counter), memory_order_relaxed))
#define ZERO(counter) atomic_store_explicit(&(counter), 0, memory_order_relaxed)

static const char *const op_names[SLOW_OP_COUNT] = {
	"LOOKUP", "GETATTR", "OPEN", "READ", "OPENDIR", "READDIR",
	"READLINK", "STATFS", "XATTR", "LSEEK", "RELEASE",
};

const char *slow_op_name(enum slow_op op)
{
	return op_names[op];
}

uint64_t slow_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SLOW_NS_PER_S + (uint64_t)t.tv_nsec;
}

int slow_log_init(struct slow_log *l, size_t cap)
{
	pthread_mutex_init(&l->lock, NULL);
	l->cap = cap;
	l->next_seq = l->first_seq = 1;
	l->ring = calloc(cap, sizeof(*l->ring));
	return l->ring ? 0 : -ENOMEM;
}

static void note_parallel(struct slow_log *l)
{
	uint_fast64_t now = ADD(l->parallel_reads, 1) + 1;
	uint_fast64_t max = GET(l->max_parallel_reads);

	while (now > max &&
	       !atomic_compare_exchange_weak(&l->max_parallel_reads, &max, now))
		;
}

void slow_log_start(struct slow_log *l, struct slow_req *r)
{
	uint64_t now = slow_now_ns();

	ADD(l->count[r->op], 1);
	ADD(r->path->count[r->op], 1);
	if (r->op == SLOW_READ) {
		ADD(l->asked_bytes, r->size);
		note_parallel(l);
	}
	pthread_mutex_lock(&l->lock);
	r->seq = l->next_seq++;
	if (l->next_seq - l->first_seq > l->cap)
		l->first_seq = l->next_seq - l->cap;
	l->ring[r->seq % l->cap] = (struct slow_record){
		.seq = r->seq, .start_ns = now, .op = r->op,
		.path = r->path, .offset = r->offset,
		.asked = r->size, .err = SLOW_ERR_PENDING,
	};
	pthread_mutex_unlock(&l->lock);
}

/* A name or an attribute that is not there is an answer, not a failure. */
static bool is_plain_answer(enum slow_op op, int err)
{
	return (op == SLOW_LOOKUP && err == ENOENT) ||
	       (op == SLOW_XATTR && (err == ENODATA || err == EOPNOTSUPP)) ||
	       (op == SLOW_LSEEK && err == ENXIO);
}

void slow_log_end(struct slow_log *l, const struct slow_req *r,
		  uint64_t returned, int err)
{
	uint64_t now = slow_now_ns();

	if (r->op == SLOW_READ) {
		ADD(l->bytes, returned);
		ADD(r->path->bytes, returned);
		atomic_fetch_sub_explicit(&l->parallel_reads, 1, memory_order_relaxed);
	}
	if (err && !is_plain_answer(r->op, err)) {
		ADD(l->errors, 1);
		ADD(r->path->errors, 1);
	}
	pthread_mutex_lock(&l->lock);
	struct slow_record *rec = &l->ring[r->seq % l->cap];
	if (rec->seq == r->seq) {
		rec->end_ns = now;
		rec->returned = returned;
		rec->err = err;
	}
	pthread_mutex_unlock(&l->lock);
}

void slow_print_escaped(FILE *out, const char *text)
{
	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		if (*c == '\\')
			fputs("\\\\", out);
		else if (*c <= ' ' || *c >= 0x7f)
			fprintf(out, "\\x%02x", *c);
		else
			fputc(*c, out);
	}
}

static void print_record(FILE *out, const struct slow_record *r)
{
	fprintf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t", r->seq,
		r->start_ns, r->end_ns, op_names[r->op]);
	slow_print_escaped(out, r->path->text);
	fprintf(out, "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%d\n", r->offset,
		r->asked, r->returned, r->err);
}

void slow_log_print(struct slow_log *l, FILE *out, uint64_t since, size_t max,
		    size_t *ret_lines)
{
	struct slow_record *copy;
	size_t n = 0;

	pthread_mutex_lock(&l->lock);
	uint64_t first = since < l->first_seq - 1 ? l->first_seq : since + 1;
	uint64_t avail = first < l->next_seq ? l->next_seq - first : 0;
	if (avail > max)
		avail = max;
	copy = malloc((avail + 1) * sizeof(*copy));
	for (; copy && n < avail; n++)
		copy[n] = l->ring[(first + n) % l->cap];
	pthread_mutex_unlock(&l->lock);
	for (size_t i = 0; i < n; i++)
		print_record(out, &copy[i]);
	free(copy);
	*ret_lines = n;
}

void slow_log_print_totals(struct slowfs *sf, FILE *out, size_t *ret_lines)
{
	struct slow_log *l = &sf->log;
	size_t n = 0;

	for (int op = 0; op < SLOW_OP_COUNT; op++, n++)
		fprintf(out, "%s\t%" PRIu64 "\n", op_names[op], GET(l->count[op]));
	pthread_mutex_lock(&sf->queue.lock);
	size_t hung = sf->queue.hung_count, queued = sf->queue.heap_len;
	pthread_mutex_unlock(&sf->queue.lock);
	pthread_mutex_lock(&l->lock);
	uint64_t seq = l->next_seq - 1, lost = l->first_seq - 1;
	pthread_mutex_unlock(&l->lock);
	const struct { const char *name; uint64_t value; } rows[] = {
		{ "bytes", GET(l->bytes) },
		{ "asked_bytes", GET(l->asked_bytes) },
		{ "errors", GET(l->errors) },
		{ "handles", GET(l->handles) },
		{ "parallel_reads", GET(l->parallel_reads) },
		{ "max_parallel_reads", GET(l->max_parallel_reads) },
		{ "hung", hung },
		{ "queued", queued },
		{ "seq", seq },
		{ "log_dropped", lost },
		{ "bandwidth", GET(sf->bandwidth) },
		{ "latency_ns_meta", GET(sf->latency_ns[SLOW_LOOKUP]) },
		{ "latency_ns_read", GET(sf->latency_ns[SLOW_READ]) },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++, n++)
		fprintf(out, "%s\t%" PRIu64 "\n", rows[i].name, rows[i].value);
	*ret_lines = n;
}

struct print_state {
	FILE *out;
	const char *glob;
	size_t lines;
};

static void print_path(struct slow_path *p, void *arg)
{
	struct print_state *s = arg;
	uint64_t any = GET(p->errors);

	for (int op = 0; op < SLOW_OP_COUNT; op++)
		any |= GET(p->count[op]);
	if (!any || (s->glob && !slow_glob_match(s->glob, p)))
		return;
	slow_print_escaped(s->out, p->text);
	for (int op = 0; op < SLOW_OP_COUNT; op++)
		fprintf(s->out, "\t%" PRIu64, GET(p->count[op]));
	fprintf(s->out, "\t%" PRIu64 "\t%" PRIu64 "\n", GET(p->bytes), GET(p->errors));
	s->lines++;
}

void slow_log_print_counters(struct slowfs *sf, const char *glob, FILE *out,
			     size_t *ret_lines)
{
	struct print_state s = { .out = out, .glob = glob, .lines = 1 };

	fputs("path", out);
	for (int op = 0; op < SLOW_OP_COUNT; op++)
		fprintf(out, "\t%s", op_names[op]);
	fputs("\tbytes\terrors\n", out);
	slow_nodes_each(&sf->nodes, print_path, &s);
	*ret_lines = s.lines;
}

static void reset_path(struct slow_path *p, void *arg)
{
	(void)arg;
	for (int op = 0; op < SLOW_OP_COUNT; op++)
		ZERO(p->count[op]);
	ZERO(p->bytes);
	ZERO(p->errors);
}

void slow_log_reset(struct slowfs *sf)
{
	struct slow_log *l = &sf->log;

	for (int op = 0; op < SLOW_OP_COUNT; op++)
		ZERO(l->count[op]);
	ZERO(l->bytes);
	ZERO(l->asked_bytes);
	ZERO(l->errors);
	atomic_store(&l->max_parallel_reads, atomic_load(&l->parallel_reads));
	slow_nodes_each(&sf->nodes, reset_path, NULL);
	pthread_mutex_lock(&l->lock);
	l->first_seq = l->next_seq;
	pthread_mutex_unlock(&l->lock);
}
