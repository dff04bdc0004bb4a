/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/entries.c - the list of a stream as it was written: entries, marks, repeats.
 *
 * An entry takes 16 B, in blocks of 4,096 so that growth wastes nothing; a length of 4 GiB or more is in a
 * side table. Batches cost 4 B each (where they begin); their numbers are runs. A repeat is a
 * descriptor: visit numbers count the unrolled list, sch_visit_entry() folds them back.
 *
 *   list(k) = (list(k-1) + entries[begin_k, end_k)) x times_k, then the entries after the last repeat
 *
 * Callers: sched.c (append, marks), positions.c (spans), wait.c, stats.c.
 * Invariants: side tables are sorted by entry, since everything is appended; a visit's entry never
 * changes once it has been seen, as a repeat's first pass is the list itself.
 */
#include "sched/sched_i.h"

#define MARKS_MAX (1u << 26)
#define VISITS_MAX (1ULL << 48)

void sch_entries_finish(struct sched *s, struct stream *st)
{
	for (uint64_t i = 0; i < st->n_entries; i++) {
		uint32_t file = st->blocks[i / ENTRY_BLOCK][i % ENTRY_BLOCK].file;

		if (!sch_file(s, file))
			continue;
		s->files[file].n_entries--;
		s->n_missing_entries -= s->files[file].state == FILE_MISSING;
	}
	for (uint64_t i = 0; i < st->n_blocks; i++)
		free(st->blocks[i]);
	free(st->blocks);
	free(st->wide);
	free(st->batch_start);
	free(st->runs);
	free(st->epochs);
	free(st->spans);
	s->n_entries_all -= st->n_entries;
	st->blocks = NULL;
	st->wide = NULL;
	st->batch_start = NULL;
	st->runs = NULL;
	st->epochs = NULL;
	st->spans = NULL;
	st->n_blocks = st->n_entries = 0;
	st->n_wide = st->cap_wide = st->n_batches = st->cap_batches = st->n_runs = st->cap_runs = 0;
	st->n_epochs = st->cap_epochs = st->n_spans = st->cap_spans = st->n_repeats = 0;
	st->window_bytes = st->window_batches = 0;
}

/* ---- writing ---------------------------------------------------------------------------- */

static int entries_block(struct stream *st)
{
	struct entry **b;

	if (st->n_entries < st->n_blocks * ENTRY_BLOCK)
		return 0;
	if ((st->n_blocks & (st->n_blocks - 1)) == 0) { /* the table doubles at powers of two */
		b = realloc(st->blocks, (size_t)(st->n_blocks ? st->n_blocks * 2 : 1) * sizeof(*b));
		if (!b)
			return -ENOMEM;
		st->blocks = b;
	}
	st->blocks[st->n_blocks] = malloc(ENTRY_BLOCK * sizeof(struct entry));
	if (!st->blocks[st->n_blocks])
		return -ENOMEM;
	st->n_blocks++;
	return 0;
}

static int entries_add(struct sched *s, struct stream *st, const struct sched_entry *e)
{
	struct entry *to;

	if (!sch_file(s, e->file) || entries_block(st))
		return -ENOSPC;
	to = &st->blocks[st->n_entries / ENTRY_BLOCK][st->n_entries % ENTRY_BLOCK];
	*to = (struct entry){.file = e->file, .len = (uint32_t)e->len_bytes, .off = e->off_bytes};
	if (e->len_bytes >= ENTRY_LEN_WIDE) {
		if (sch_array_grow((void **)&st->wide, &st->cap_wide, st->n_wide + 1, sizeof(*st->wide)))
			return -ENOSPC;
		st->wide[st->n_wide++] = (struct wide_len){st->n_entries, e->len_bytes};
		to->len = ENTRY_LEN_WIDE;
	}
	st->n_entries++;
	s->n_entries_all++;
	if (s->files[e->file].state == FILE_MISSING) { /* named again: ask again */
		s->n_missing_entries -= s->files[e->file].n_entries;
		s->files[e->file].state = FILE_UNKNOWN;
		s->files[e->file].size_bytes = SCHED_SIZE_UNKNOWN;
	}
	s->files[e->file].n_entries++;
	return 0;
}

bool sch_entries_others(const struct sched *s, uint32_t stream)
{
	for (uint32_t i = 0; i < s->n_streams; i++)
		if (i != stream && s->streams[i].is_live && s->streams[i].low_visit < s->streams[i].mat_visit)
			return true;
	return false;
}

int64_t sched_stream_append(struct sched *s, uint32_t stream, const struct sched_entry *e, size_t n)
{
	struct stream *st;
	size_t i;

	if (stream >= s->n_streams || !s->streams[stream].is_live)
		return -EINVAL;
	st = &s->streams[stream];
	/* What comes now belongs between visits that others have there already. */
	if (n && s->pos.n > s->pos.low && st->mat_visit >= sch_visits(st) && sch_entries_others(s, stream))
		s->is_dirty_soon = true;
	for (i = 0; i < n && st->n_entries < s->cfg.entries_max; i++)
		if (entries_add(s, st, &e[i]))
			break;
	if (i == 0 && n > 0)
		return -ENOSPC;
	return (int64_t)i;
}

static int entries_batch(struct stream *st, uint64_t number, bool is_next)
{
	uint32_t epoch = st->n_epochs;
	uint64_t next = 0;

	if (st->n_batches >= MARKS_MAX || st->n_entries >= UINT32_MAX)
		return -ENOSPC;
	if (st->n_batches && (!st->n_epochs || st->epochs[st->n_epochs - 1].batch < st->n_batches))
		next = sch_batch_number(st, st->n_batches - 1) + 1;
	if (is_next)
		number = next;
	if (sch_array_grow((void **)&st->batch_start, &st->cap_batches, st->n_batches + 1, sizeof(uint32_t)))
		return -ENOSPC;
	if (!st->n_runs || number != next || st->runs[st->n_runs - 1].epoch != epoch) {
		if (sch_array_grow((void **)&st->runs, &st->cap_runs, st->n_runs + 1, sizeof(*st->runs)))
			return -ENOSPC;
		st->runs[st->n_runs++] = (struct batch_run){st->n_batches, epoch, number};
	}
	st->batch_start[st->n_batches++] = (uint32_t)st->n_entries;
	return 0;
}

static int entries_epoch(struct stream *st, uint64_t label, bool is_next)
{
	if (st->n_epochs >= MARKS_MAX)
		return -ENOSPC;
	if (is_next)
		label = st->n_epochs ? st->epochs[st->n_epochs - 1].label + 1 : 0;
	if (sch_array_grow((void **)&st->epochs, &st->cap_epochs, st->n_epochs + 1, sizeof(*st->epochs)))
		return -ENOSPC;
	st->epochs[st->n_epochs++] = (struct epoch_mark){st->n_entries, label, st->n_batches};
	return 0;
}

static int entries_any(struct stream *st, bool is_any)
{
	bool is_open = st->n_spans && st->spans[st->n_spans - 1].to == UINT64_MAX;

	if (is_any == is_open)
		return 0;
	if (!is_any) {
		st->spans[st->n_spans - 1].to = st->n_entries;
		return 0;
	}
	if (st->n_spans >= MARKS_MAX ||
	    sch_array_grow((void **)&st->spans, &st->cap_spans, st->n_spans + 1, sizeof(*st->spans)))
		return -ENOSPC;
	st->spans[st->n_spans++] = (struct any_span){st->n_entries, UINT64_MAX};
	return 0;
}

static uint32_t epochs_below(const struct stream *st, uint64_t entry)
{
	uint32_t lo = 0, hi = st->n_epochs;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (st->epochs[mid].entry < entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The end of a pass is a boundary of epochs, unless the list begins with @epoch: then it is that one. */
static uint64_t epochs_own(const struct stream *st)
{
	return epochs_below(st, 1) == 0;
}

static int entries_repeat(struct stream *st, uint64_t times)
{
	struct repeat r = {.end = st->n_entries, .times = times};
	const struct repeat *before = st->n_repeats ? &st->repeats[st->n_repeats - 1] : NULL;

	if (times == 0)
		return -EINVAL;
	if (times == 1 || st->n_entries == 0)
		return 0;
	if (st->n_repeats == REPEATS_MAX)
		return -ENOSPC;
	r.begin = before ? before->end : 0;
	r.unit = (before ? before->visits : 0) + (r.end - r.begin);
	if (times > VISITS_MAX / r.unit)
		return -ENOSPC;
	r.visits = r.unit * times;
	r.epochs_unit = epochs_own(st) + (epochs_below(st, r.end) - epochs_below(st, r.begin));
	if (before)
		r.epochs_unit += before->epochs_unit * before->times;
	st->repeats[st->n_repeats++] = r;
	return 0;
}

static int entries_window(struct sched *s, struct stream *st, bool is_bytes, uint64_t value)
{
	st->window_bytes = is_bytes ? value : 0;
	st->window_batches = is_bytes ? 0 : value;
	st->is_win_stale = true;
	s->run_limit_ns = 0;
	return 0;
}

/* First visit of the epoch (or pass of a repeat) that holds `visit`. */
static uint64_t epoch_first(const struct stream *st, uint64_t visit)
{
	uint64_t epoch = sch_visit_epoch(st, visit), lo = 0, hi = visit;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (sch_visit_epoch(st, mid) < epoch)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/*
 * Reading is past the batch with this number: of the epoch that the reader is in, which says nothing if it is behind the low mark
 * (loaders read ahead of the trainer who says so). Where the epoch before ended a moment ago, its last batches are meant.
 */
static int entries_done_batch(struct sched *s, uint32_t stream, uint64_t number)
{
	struct stream *st = &s->streams[stream];
	uint64_t visits, low, e0, before, v0, v1, w0, w1;

	sch_positions_settle(s);
	visits = sch_visits(st);
	low = st->low_visit;
	if (visits == 0)
		return -EINVAL;
	e0 = epoch_first(st, sch_min64(low, visits - 1));
	if (!sch_batch_find(st, number, e0, &v0, &v1))
		return -EINVAL;
	if (v0 >= low && e0 > 0) {
		before = epoch_first(st, e0 - 1);
		if (sch_batch_find(st, number, before, &w0, &w1) && w0 >= before && w1 <= e0 &&
		    low - w1 < (e0 - before) / 4 && low - w1 < v0 - low)
			return 0;
	}
	sch_progress_done_to(s, stream, v1);
	return 0;
}

int sched_stream_mark(struct sched *s, uint32_t stream, enum sched_mark mark, uint64_t value, uint64_t now_ns)
{
	struct stream *st;

	if (stream >= s->n_streams || !s->streams[stream].is_live)
		return -EINVAL;
	sch_clock(s, now_ns);
	st = &s->streams[stream];
	switch (mark) {
	case SCHED_MARK_BATCH_NEXT:
	case SCHED_MARK_BATCH:
		return entries_batch(st, value, mark == SCHED_MARK_BATCH_NEXT);
	case SCHED_MARK_EPOCH_NEXT:
	case SCHED_MARK_EPOCH:
		return entries_epoch(st, value, mark == SCHED_MARK_EPOCH_NEXT);
	case SCHED_MARK_REPEAT:
		return entries_repeat(st, value);
	case SCHED_MARK_ANY:
	case SCHED_MARK_ORDERED:
		return entries_any(st, mark == SCHED_MARK_ANY);
	case SCHED_MARK_WINDOW_BYTES:
	case SCHED_MARK_WINDOW_BATCHES:
		return entries_window(s, st, mark == SCHED_MARK_WINDOW_BYTES, value);
	case SCHED_MARK_SEEK:
		if (value > sch_visits(st))
			return -EINVAL;
		sch_progress_seek(s, stream, value);
		return 0;
	case SCHED_MARK_DONE:
		if (value >= sch_visits(st))
			return -EINVAL;
		sch_progress_done_to(s, stream, value + 1);
		return 0;
	case SCHED_MARK_DONE_BATCH:
		return entries_done_batch(s, stream, value);
	}
	return -EINVAL;
}

/* ---- reading ---------------------------------------------------------------------------- */

static uint64_t entry_len(const struct stream *st, uint64_t entry)
{
	uint64_t len = st->blocks[entry / ENTRY_BLOCK][entry % ENTRY_BLOCK].len;
	uint32_t lo = 0, hi = st->n_wide;

	if (len != ENTRY_LEN_WIDE)
		return len;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (st->wide[mid].entry < entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < st->n_wide && st->wide[lo].entry == entry ? st->wide[lo].len : len;
}

bool sch_entry_get(const struct stream *st, uint64_t entry, struct sched_entry *ret)
{
	const struct entry *e;

	if (entry >= st->n_entries)
		return false;
	e = &st->blocks[entry / ENTRY_BLOCK][entry % ENTRY_BLOCK];
	*ret = (struct sched_entry){e->file, e->off, entry_len(st, entry)};
	return true;
}

uint64_t sch_visits(const struct stream *st)
{
	const struct repeat *r = st->n_repeats ? &st->repeats[st->n_repeats - 1] : NULL;

	return r ? r->visits + (st->n_entries - r->end) : st->n_entries;
}

uint64_t sch_visit_entry(const struct stream *st, uint64_t visit)
{
	uint64_t v = visit;

	for (uint32_t k = st->n_repeats; k-- > 0;) {
		const struct repeat *r = &st->repeats[k];
		uint64_t inner = r->unit - (r->end - r->begin);

		if (v >= r->visits)
			return r->end + (v - r->visits);
		v %= r->unit;
		if (v >= inner)
			return r->begin + (v - inner);
	}
	return v;
}

/* Epoch boundaries (@epoch marks and ends of a pass of a repeat) before the visit. */
uint64_t sch_visit_epoch(const struct stream *st, uint64_t visit)
{
	uint64_t v = visit, n = 0;

	for (uint32_t k = st->n_repeats; k-- > 0;) {
		const struct repeat *r = &st->repeats[k];
		uint64_t inner = r->unit - (r->end - r->begin);
		uint64_t inner_epochs =
			r->epochs_unit - epochs_own(st) - (epochs_below(st, r->end) - epochs_below(st, r->begin));

		if (v >= r->visits)
			return n + r->epochs_unit * r->times + epochs_below(st, r->end + (v - r->visits) + 1) -
			       epochs_below(st, r->end);
		n += v / r->unit * r->epochs_unit;
		v %= r->unit;
		if (v >= inner)
			return n + inner_epochs + epochs_below(st, r->begin + (v - inner) + 1) -
			       epochs_below(st, r->begin);
	}
	return n + epochs_below(st, v + 1);
}

uint32_t sch_entry_batch(const struct stream *st, uint64_t entry)
{
	uint32_t lo = 0, hi = st->n_batches;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (st->batch_start[mid] <= entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo == 0 ? SCH_NONE : lo - 1;
}

static const struct batch_run *batch_run_of(const struct stream *st, uint32_t ordinal)
{
	uint32_t lo = 0, hi = st->n_runs;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (st->runs[mid].first <= ordinal)
			lo = mid + 1;
		else
			hi = mid;
	}
	return &st->runs[lo - 1];
}

uint64_t sch_batch_number(const struct stream *st, uint32_t ordinal)
{
	const struct batch_run *r = batch_run_of(st, ordinal);

	return r->base + (ordinal - r->first);
}

bool sch_entry_is_any(const struct stream *st, uint64_t entry)
{
	uint32_t lo = 0, hi = st->n_spans;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (st->spans[mid].from <= entry)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 && entry < st->spans[lo - 1].to;
}

/* Lowest batch ordinal >= from with that number. */
static uint32_t batch_by_number(const struct stream *st, uint64_t number, uint32_t from)
{
	for (uint32_t i = 0; i < st->n_runs; i++) {
		const struct batch_run *r = &st->runs[i];
		uint32_t end = i + 1 < st->n_runs ? st->runs[i + 1].first : st->n_batches;
		uint64_t at;

		if (end <= from || number < r->base)
			continue;
		at = number - r->base;
		if (at < end - r->first && r->first + at >= from)
			return r->first + (uint32_t)at;
	}
	return SCH_NONE;
}

/* In the pass of a repeat that holds `from`, else in the next one. */
bool sch_batch_find(const struct stream *st, uint64_t number, uint64_t from, uint64_t *ret_v0, uint64_t *ret_v1)
{
	uint64_t visits = sch_visits(st), entry, start, end, pass = 0;
	uint32_t ordinal, batch;

	if (st->n_batches == 0 || visits == 0)
		return false;
	if (from >= visits)
		from = visits - 1;
	entry = sch_visit_entry(st, from);
	batch = sch_entry_batch(st, entry);
	ordinal = batch_by_number(st, number, batch == SCH_NONE ? 0 : batch);
	if (ordinal == SCH_NONE) { /* the next pass, if there is one, else one that is over */
		ordinal = batch_by_number(st, number, 0);
		if (ordinal == SCH_NONE)
			return false;
		if (st->n_repeats == 1 && st->batch_start[ordinal] < st->repeats[0].end && entry < st->repeats[0].end &&
		    from + st->repeats[0].unit < st->repeats[0].visits)
			pass = 1;
	}
	start = st->batch_start[ordinal];
	end = ordinal + 1 < st->n_batches ? st->batch_start[ordinal + 1] : st->n_entries;
	if (st->n_repeats && start < st->repeats[0].end)
		end = sch_min64(end, st->repeats[0].end); /* a batch does not reach over the end of a pass */
	if (st->n_repeats == 1) {
		const struct repeat *r = &st->repeats[0];

		if (start < r->end)
			pass += from < r->visits ? from / r->unit : r->times - 1;
		start += start < r->end ? pass * r->unit : r->visits - r->end;
		end += st->batch_start[ordinal] < r->end ? pass * r->unit : r->visits - r->end;
	}
	*ret_v0 = start;
	*ret_v1 = sch_max64(end, start);
	return true;
}

void sch_visit_span(const struct sched *s, const struct stream *st, uint64_t visit, struct span *ret)
{
	uint64_t entry = st->n_repeats ? sch_visit_entry(st, visit) : visit, off, len;
	const struct entry *e;
	const struct file *f;

	*ret = (struct span){.file = SCHED_NO_FILE};
	if (entry >= st->n_entries)
		return;
	e = &st->blocks[entry / ENTRY_BLOCK][entry % ENTRY_BLOCK];
	ret->file = sch_file_target(s, e->file);
	f = sch_file(s, ret->file);
	if (!f || f->state == FILE_MISSING)
		return;
	if (f->size_bytes == SCHED_SIZE_UNKNOWN) {
		ret->is_unknown = true;
		ret->end = s->cfg.chunk_bytes;
		ret->n = 1;
		return;
	}
	off = e->off;
	len = entry_len(st, entry);
	if (off >= f->size_bytes)
		return;
	ret->off = off;
	ret->end = f->size_bytes;
	if (len && len < f->size_bytes - off)
		ret->end = off + len;
	ret->first = off >> s->chunk_shift;
	ret->n = ((ret->end - 1) >> s->chunk_shift) - ret->first + 1;
}
