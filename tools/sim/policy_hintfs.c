/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/policy_hintfs.c - the scheduler itself behind the machine's interface, fed as fs/engine.c feeds it.
 */
#include "tools/sim/sim_i.h"

#define ENTRIES_RUN 1024u

struct hintfs {
	struct sim *m;
	struct sched *s;
	uint32_t *streams; /* [rank] */
	bool *is_known;	   /* [file]: the scheduler was told its size */
	struct sched_entry run[ENTRIES_RUN];
};

static void hintfs_destroy(void *st)
{
	struct hintfs *h = st;

	sched_destroy(h->s);
	free(h->streams);
	free(h->is_known);
	free(h);
}

static int hintfs_files(struct hintfs *h)
{
	const struct sim *m = h->m;

	for (uint32_t i = 0; i < m->work->n_files; i++) {
		uint64_t size = m->cfg.is_names_unknown ? SCHED_SIZE_UNKNOWN : m->work->files[i].size_bytes;
		int rc;

		if (m->work->files[i].is_missing)
			size = SCHED_SIZE_UNKNOWN;
		rc = sched_file_add(h->s, i, size);
		if (rc)
			return rc;
		h->is_known[i] = size != SCHED_SIZE_UNKNOWN;
	}
	return 0;
}

static int hintfs_create(struct sim *m, void **ret)
{
	struct sched_config cfg = {.chunk_bytes = m->work->chunk_bytes,
				   .slots = m->cfg.slots,
				   .disk_pages = m->cfg.disk_pages,
				   .inflight_max = 256,
				   .inflight_bytes_max = m->cfg.inflight_bytes_max,
				   .seed = m->cfg.seed};
	struct hintfs *h = calloc(1, sizeof(*h));
	int rc = -ENOMEM;

	if (!h)
		return rc;
	if (!cfg.inflight_bytes_max) /* as the daemon */
		cfg.inflight_bytes_max = (uint64_t)m->cfg.slots * m->work->chunk_bytes / 2;
	if (cfg.inflight_bytes_max < m->work->chunk_bytes)
		cfg.inflight_bytes_max = m->work->chunk_bytes;
	h->m = m;
	*ret = h; /* destroyed by the caller whatever happens */
	h->streams = calloc(m->work->n_ranks, sizeof(*h->streams));
	h->is_known = calloc((size_t)m->work->n_files + 1, sizeof(*h->is_known));
	if (h->streams && h->is_known)
		rc = sched_create(&cfg, &h->s);
	if (rc == 0)
		rc = hintfs_files(h);
	for (uint32_t k = 0; rc == 0 && k < m->work->n_ranks; k++) {
		h->streams[k] = SIM_NONE;
		if (m->work->ranks[k].n_hints)
			rc = sched_stream_create(h->s, &h->streams[k]);
	}
	return rc;
}

static size_t append_run(struct hintfs *h, uint32_t stream, const struct sim_hint *v, size_t n)
{
	size_t k = 0;

	while (k < n && k < ENTRIES_RUN && v[k].kind == SIM_HINT_ENTRY) {
		h->run[k] = v[k].entry;
		k++;
	}
	if (sched_stream_append(h->s, stream, h->run, k) != (int64_t)k)
		sim_breach(h->m, "entries not taken", v[0].entry.file, k);
	return k;
}

static void hintfs_hint(void *st, uint32_t rank, const struct sim_hint *v, size_t n)
{
	struct hintfs *h = st;
	uint32_t stream = h->streams[rank];
	size_t i = 0;

	while (i < n) {
		switch (v[i].kind) {
		case SIM_HINT_ENTRY:
			i += append_run(h, stream, v + i, n - i);
			continue;
		case SIM_HINT_MARK:
			/* A mark that makes no sense is refused, as the control file does; the list goes on. */
			(void)!sched_stream_mark(h->s, stream, v[i].mark, v[i].value, h->m->now_ns);
			break;
		case SIM_HINT_REPLACE:
			sched_stream_replace(h->s, stream);
			break;
		case SIM_HINT_CANCEL:
			sched_stream_cancel(h->s, stream);
			break;
		}
		i++;
	}
}

static void hintfs_open(void *st, uint32_t file, uint64_t reader)
{
	struct hintfs *h = st;

	if (!h->is_known[file])
		sched_file_resolved(h->s, file, 0, h->m->work->files[file].size_bytes, SCHED_NO_FILE, h->m->now_ns);
	h->is_known[file] = true;
	sched_open(h->s, file, reader, h->m->now_ns);
}

static void hintfs_close(void *st, uint32_t file, uint64_t reader)
{
	struct hintfs *h = st;

	sched_close(h->s, file, reader, h->m->now_ns);
}

static void hintfs_read(void *st, uint32_t file, uint64_t off, uint64_t len, uint64_t reader, bool is_miss)
{
	struct hintfs *h = st;

	sched_read(h->s, file, off, len, reader, is_miss, h->m->now_ns);
}

static void hintfs_resolved(void *st, uint32_t file, int err, uint64_t size_bytes)
{
	struct hintfs *h = st;

	h->is_known[file] = err == 0;
	sched_file_resolved(h->s, file, err, err ? 0 : size_bytes, SCHED_NO_FILE, h->m->now_ns);
}

static void hintfs_fetched(void *st, uint32_t file, uint64_t chunk_no, uint32_t off, uint32_t len, int err, uint64_t issued_ns)
{
	struct hintfs *h = st;

	sched_fetched(h->s, file, chunk_no, off, len, err, issued_ns, h->m->now_ns);
}

static void hintfs_shortage(void *st, uint32_t n)
{
	struct hintfs *h = st;

	sched_shortage(h->s, n, h->m->now_ns);
}

static void hintfs_tier_has(void *st, uint32_t file, uint64_t chunk_no, bool has)
{
	struct hintfs *h = st;

	sched_tier_has(h->s, file, chunk_no, has);
}

static size_t hintfs_step(void *st, struct sched_action *out, size_t max)
{
	struct hintfs *h = st;

	return sched_step(h->s, h->m->now_ns, out, max);
}

static uint64_t hintfs_next_ns(void *st)
{
	struct hintfs *h = st;

	return sched_next_ns(h->s);
}

static void hintfs_finish(void *st, struct sim_result *res)
{
	struct hintfs *h = st;

	sched_stats_get(h->s, &res->sched);
	res->bound_s = res->sched.bound_s;
}

const struct sim_policy_ops sim_policy_hintfs = {
	.name = "hintfs",
	.help = "this project's scheduler with the order as hint",
	.create = hintfs_create,
	.destroy = hintfs_destroy,
	.hint = hintfs_hint,
	.open = hintfs_open,
	.close = hintfs_close,
	.read = hintfs_read,
	.resolved = hintfs_resolved,
	.fetched = hintfs_fetched,
	.shortage = hintfs_shortage,
	.tier_has = hintfs_tier_has,
	.step = hintfs_step,
	.next_ns = hintfs_next_ns,
	.finish = hintfs_finish,
	.is_bounded = true,
};

static int hintfs_create_demand(struct sim *m, void **ret)
{
	int rc = hintfs_create(m, ret);

	if (rc == 0)
		sched_set_prefetch(((struct hintfs *)*ret)->s, SCHED_PREFETCH_OFF);
	return rc;
}

/* The order is known, but nothing is fetched before somebody waits for it. */
const struct sim_policy_ops sim_policy_demand = {
	.name = "hintfs-demand",
	.help = "this project's scheduler with prefetch off: the order decides what stays",
	.create = hintfs_create_demand,
	.destroy = hintfs_destroy,
	.hint = hintfs_hint,
	.open = hintfs_open,
	.close = hintfs_close,
	.read = hintfs_read,
	.resolved = hintfs_resolved,
	.fetched = hintfs_fetched,
	.shortage = hintfs_shortage,
	.tier_has = hintfs_tier_has,
	.step = hintfs_step,
	.next_ns = hintfs_next_ns,
	.finish = hintfs_finish,
	.is_bounded = true,
};

/* The same without any hint. */
const struct sim_policy_ops sim_policy_nohint = {
	.name = "hintfs-nohint",
	.help = "this project's scheduler when nobody writes an order",
	.create = hintfs_create,
	.destroy = hintfs_destroy,
	.open = hintfs_open,
	.close = hintfs_close,
	.read = hintfs_read,
	.resolved = hintfs_resolved,
	.fetched = hintfs_fetched,
	.shortage = hintfs_shortage,
	.tier_has = hintfs_tier_has,
	.step = hintfs_step,
	.next_ns = hintfs_next_ns,
	.finish = hintfs_finish,
	.is_bounded = true,
};
