/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/nohint.c - readers without an order: sequential streams per file, read-ahead, whole files.
 *
 * A file may have several sequential readers at once (processes that share one mapping), so a
 * stream is known by where its next read is expected, not by who reads. Its window starts at 128 KiB and
 * doubles each time a read had to wait, up to a share of the slots; a file above 8 MiB of which 2 MiB have been read
 * in order is fetched to its end, as far as the share goes; where most files that were begun were read to their end, from the
 * first read on. Of several streams the one whose next read is nearest is served first. A gap forward (an mmap that steps over
 * what it does not need) is still sequential; a first read in the middle or at the tail (zip, parquet) is not.
 * Eight reads in a row that continue nothing make a file random: blocks only, no read-ahead. So it stays until most reads go on again: in
 * a file of few chunks one in ten does by chance. A sample may be several reads, each of which continues the one before it: so a stream is
 * fetched only as far as those before it in that file went on average, until it has read more than two of them and a half.
 *
 * Callers: sched.c, demand.c. Invariant: at most SEQS_MAX streams, SEQS_PER_FILE a file.
 */
#include "sched/sched_i.h"

#define SEQS_MAX 4096u
#define SEQS_PER_FILE 8u
#define WINDOW_MIN (128u << 10)
#define GAP_MAX (2u << 20)
#define WHOLE_SIZE (8u << 20)
#define WHOLE_AFTER (2u << 20)
#define ACTIVE_MAX 64u
#define LEARN_MIN 3u  /* files read to their end before the next ones are expected to be */
#define LEARN_MAX 64u /* then older ones count half */
#define RANDOM_AFTER 8u
#define RANDOM_DEEP 8u /* so many more reads that go on than others, and it is not random any more */
#define RUNS_FEW 4u   /* streams that ended before their length says what the next one will be */
#define RUNS_MANY 16u /* then each new one counts a sixteenth */

/* ---- table of streams ------------------------------------------------------------------------ */

static void lru_remove(struct sched *s, uint32_t q)
{
	struct seq *e = &s->seqs[q];

	if (e->prev != SCH_NONE)
		s->seqs[e->prev].next = e->next;
	else
		s->seq_lru.head = e->next;
	if (e->next != SCH_NONE)
		s->seqs[e->next].prev = e->prev;
	else
		s->seq_lru.tail = e->prev;
	s->seq_lru.count--;
}

static void lru_front(struct sched *s, uint32_t q)
{
	struct seq *e = &s->seqs[q];

	e->prev = SCH_NONE;
	e->next = s->seq_lru.head;
	if (e->next != SCH_NONE)
		s->seqs[e->next].prev = q;
	else
		s->seq_lru.tail = q;
	s->seq_lru.head = q;
	s->seq_lru.count++;
}

/* A single long one is a scan, or two samples that lay side by side: it counts twice the usual. */
static void seq_learn(struct file *f, const struct seq *e)
{
	int64_t run = (int64_t)sch_min64((e->got + 4095) >> 12, UINT32_MAX / 4), step;

	f->n_runs = (uint8_t)sch_min32(f->n_runs + 1u, RUNS_MANY);
	if (f->n_runs > RUNS_FEW && run > 2 * (int64_t)f->run_4k)
		run = 2 * (int64_t)f->run_4k;
	run -= (int64_t)f->run_4k;
	step = run / f->n_runs;
	if (step == 0)
		step = (run > 0) - (run < 0);
	f->run_4k = (uint32_t)((int64_t)f->run_4k + step);
}

/* Where the stream will end if it is like the others of its file; 0: nothing is known, or it is longer than they were. */
static uint64_t seq_usual_end(const struct sched *s, const struct seq *e)
{
	const struct file *f = &s->files[e->file];
	uint64_t run = (uint64_t)f->run_4k << 12;

	if (f->n_runs < RUNS_FEW || e->got > 2 * run + run / 2)
		return 0;
	return e->end + (run > e->got ? run - e->got : 0);
}

static void seq_free(struct sched *s, uint32_t q)
{
	uint32_t *link = &s->files[s->seqs[q].file].seq;

	seq_learn(&s->files[s->seqs[q].file], &s->seqs[q]);
	while (*link != q)
		link = &s->seqs[*link].file_next;
	*link = s->seqs[q].file_next;
	lru_remove(s, q);
	s->seqs[q].next = s->free_seq;
	s->free_seq = q;
}

void sch_nohint_forget(struct sched *s, uint32_t file)
{
	while (s->files[file].seq != SCH_NONE)
		seq_free(s, s->files[file].seq);
	s->files[file].n_runs = 0;
	s->files[file].run_4k = 0;
}

void sch_nohint_finish(struct sched *s)
{
	free(s->seqs);
}

/* The file's own oldest makes room if it has too many, else the oldest of all. */
static void seq_make_room(struct sched *s, uint32_t file)
{
	uint32_t n = 0, oldest = SCH_NONE;

	for (uint32_t q = s->files[file].seq; q != SCH_NONE; q = s->seqs[q].file_next, n++)
		if (oldest == SCH_NONE || s->seqs[q].last_ns <= s->seqs[oldest].last_ns)
			oldest = q;
	if (n >= SEQS_PER_FILE)
		seq_free(s, oldest);
	else if (s->seq_lru.count >= SEQS_MAX)
		seq_free(s, s->seq_lru.tail);
}

static void learn(struct sched *s, uint32_t *counter)
{
	++*counter;
	if (s->n_begun < LEARN_MAX)
		return;
	s->n_begun /= 2;
	s->n_through /= 2;
}

/* At most half of the files that were begun are unfinished, the ones that are being read included. */
static bool learned_whole(const struct sched *s)
{
	return s->n_through >= LEARN_MIN && s->n_begun <= 2 * s->n_through;
}

static uint32_t seq_new(struct sched *s, uint32_t file, uint64_t off, uint64_t end)
{
	uint32_t q;

	seq_make_room(s, file);
	q = s->free_seq;
	if (q != SCH_NONE) {
		s->free_seq = s->seqs[q].next;
	} else {
		if (sch_array_grow((void **)&s->seqs, &s->cap_seqs, s->n_seqs + 1, sizeof(*s->seqs)))
			return SCH_NONE;
		q = s->n_seqs++;
	}
	if (off == 0 && s->files[file].size_bytes > s->cfg.chunk_bytes)
		learn(s, &s->n_begun);
	s->seqs[q] = (struct seq){.begin = off,
				  .end = end,
				  .ahead = end,
				  .got = end - off,
				  .window = WINDOW_MIN,
				  .last_ns = s->now_ns,
				  .file = file,
				  .file_next = s->files[file].seq,
				  .n_reads = 1,
				  .is_whole = off == 0 && learned_whole(s)};
	s->files[file].seq = q;
	lru_front(s, q);
	return q;
}

/* The stream that a read at off continues: the nearest whose expected place is not too far. */
static uint32_t seq_find(const struct sched *s, uint32_t file, uint64_t off)
{
	uint32_t best = SCH_NONE;
	uint64_t best_gap = UINT64_MAX;

	for (uint32_t q = s->files[file].seq; q != SCH_NONE; q = s->seqs[q].file_next) {
		const struct seq *e = &s->seqs[q];
		uint64_t back = sch_min64(e->end - e->begin, GAP_MAX);
		uint64_t gap = off >= e->end ? off - e->end : e->end - off;

		if (off < e->end ? gap > back : gap > (e->n_reads > 2 ? GAP_MAX : WINDOW_MIN))
			continue;
		if (gap < best_gap) {
			best = q;
			best_gap = gap;
		}
	}
	return best;
}

/* ---- reads -------------------------------------------------------------------------------------- */

/* How much is read without an order, in pages: files that were touched in this round. */
static void nohint_touch(struct sched *s, struct file *f)
{
	uint64_t pages = f->size_bytes == SCHED_SIZE_UNKNOWN ? 1 : f->size_bytes / s->cfg.chunk_bytes + 1;

	s->access_clock++;
	if (s->access_clock - s->touch_since > 2 * sch_max64(sch_max64(s->touched_pages, s->touched_before), s->slots)) {
		s->touched_before = s->touched_pages;
		s->touched_pages = 0;
		s->touch_since = s->access_clock;
		s->touch_epoch++;
	}
	if (f->touch_epoch == s->touch_epoch + 1)
		return;
	f->touch_epoch = s->touch_epoch + 1;
	s->touched_pages = sch_min64(s->touched_pages + pages, UINT32_MAX / 4);
}

static uint64_t seq_share(const struct sched *s)
{
	uint64_t pages = sch_max64(s->slots / 4, 1);

	return pages * s->cfg.chunk_bytes;
}

static uint64_t nohint_start(const struct sched *s)
{
	double link = 1.25 * s->origin.bytes_per_s * s->origin.latency_ns / (double)SCH_SEC;

	return (uint64_t)(link < 1e12 ? link : 1e12) + s->cfg.chunk_bytes;
}

void sch_nohint_read(struct sched *s, uint32_t file, uint64_t off, uint64_t len, bool is_hinted, bool is_slow)
{
	struct file *f = &s->files[file];
	uint32_t q = seq_find(s, file, off);
	struct seq *e;

	nohint_touch(s, f);
	if (is_hinted)
		return; /* the order knows better what comes next */
	if (q == SCH_NONE) {
		f->strange = (uint8_t)sch_min32(f->strange + 1u, RANDOM_AFTER);
		f->random = (uint8_t)(f->random ? sch_min32(f->random + 1u, RANDOM_DEEP) : f->strange == RANDOM_AFTER ? RANDOM_DEEP : 0);
		(void)seq_new(s, file, off, off + len); /* no memory: no read-ahead */
		return;
	}
	e = &s->seqs[q];
	f->strange = (uint8_t)(f->strange / 2);
	f->random -= f->random > 0;
	e->end = sch_max64(e->end, off + len);
	e->ahead = sch_max64(e->ahead, e->end);
	e->last_ns = s->now_ns;
	e->got += len;
	e->n_reads++;
	if (e->n_reads == 2 && s->origin.bytes_per_s > 0) /* what is on the link, and a chunk */
		e->window = sch_max64(e->window, sch_min64(nohint_start(s), seq_share(s)));
	if (is_slow && e->n_reads > 2)
		e->window = sch_min64(e->window * 2, seq_share(s));
	if (f->size_bytes > WHOLE_SIZE && e->end - e->begin >= WHOLE_AFTER && !seq_usual_end(s, e))
		e->is_whole = true;
	if (e->begin == 0 && !e->is_through && e->end >= f->size_bytes && f->size_bytes > s->cfg.chunk_bytes) {
		e->is_through = true;
		learn(s, &s->n_through);
	}
	lru_remove(s, q);
	lru_front(s, q);
}

/* Would a miss here be part of a sequential read, so that the whole chunk is right? */
bool sch_nohint_is_sequential(const struct sched *s, uint32_t file, uint64_t off)
{
	const struct file *f = &s->files[file];
	uint64_t usual;
	uint32_t q;

	if (f->size_bytes <= s->cfg.chunk_bytes)
		return true;
	if (f->random)
		return false;
	if (off == 0)
		return true;
	/* The read itself has been noted already: it is the second one that tells. */
	q = seq_find(s, file, off);
	if (q == SCH_NONE || s->seqs[q].n_reads < 2)
		return false;
	usual = seq_usual_end(s, &s->seqs[q]);
	return !usual || s->seqs[q].is_whole || usual / s->cfg.chunk_bytes > off / s->cfg.chunk_bytes;
}

/* ---- read-ahead ------------------------------------------------------------------------------------ */

/* Fetch from the stream's mark on, inside one page. 1: moved on, 0: no room. */
static int seq_fetch(struct sched *s, uint32_t q, uint64_t target)
{
	struct seq *e = &s->seqs[q];
	uint64_t chunk_no = e->ahead / s->cfg.chunk_bytes, at = chunk_no * s->cfg.chunk_bytes;
	uint64_t to = sch_min64(target - at, s->cfg.chunk_bytes);
	uint32_t blocks = sch_chunk_blocks(s, e->file, chunk_no), b0, b1, pg;
	struct blocks want = {{0}};
	bool is_bad;

	if (blocks == 0)
		return 0;
	b0 = (uint32_t)((e->ahead - at) / s->block_bytes);
	b1 = (uint32_t)((to - 1) / s->block_bytes);
	if ((e->window >= s->cfg.chunk_bytes && !seq_usual_end(s, e)) || e->is_whole) {
		b1 = blocks - 1;
		to = s->cfg.chunk_bytes;
	}
	pg = sch_page_get(s, e->file, chunk_no);
	if (pg == SCH_NONE)
		return 0;
	sch_blocks_set(&want, b0, sch_min32(b1, blocks - 1));
	is_bad = s->pages[pg].flags & PG_BAD; /* its reader will see; what is behind it may be there */
	if (!is_bad && (!sch_fetch_may(s, false, (b1 - b0 + 1) * s->block_bytes) || sch_fetch_starts(s) ||
			(sch_page_takes_slot(s, pg) && !sch_evict_room(s, EVICT_FOR_GUESS, SCH_NONE)) ||
			sch_fetch_page(s, pg, &want, FETCH_AHEAD, s->now_ns + SCH_MSEC))) {
		sch_page_put(s, pg);
		return 0;
	}
	if (is_bad)
		sch_page_put(s, pg);
	e->ahead = at + to;
	return 1;
}

/* How far a stream is to be fetched; its mark: nowhere. */
static uint64_t seq_target(const struct sched *s, const struct seq *e)
{
	uint64_t size = s->files[e->file].size_bytes, target, usual = seq_usual_end(s, e);

	if ((e->n_reads < 2 && !e->is_whole) || size == SCHED_SIZE_UNKNOWN || s->files[e->file].random)
		return e->ahead;
	if (e->is_whole)
		return sch_min64(e->end + seq_share(s), size);
	target = sch_min64(e->end + e->window, size);
	return usual ? sch_max64(sch_min64(target, usual), e->ahead) : target;
}

void sch_nohint_run(struct sched *s, size_t max)
{
	uint32_t best;

	do {
		uint64_t best_lead = UINT64_MAX;
		uint32_t n = 0;

		best = SCH_NONE;
		for (uint32_t q = s->seq_lru.head; q != SCH_NONE && n < ACTIVE_MAX; q = s->seqs[q].next, n++) {
			const struct seq *e = &s->seqs[q];

			if (e->ahead < seq_target(s, e) && e->ahead - e->end < best_lead) {
				best = q;
				best_lead = e->ahead - e->end;
			}
		}
	} while (best != SCH_NONE && s->n_acts - s->acts_head < max && seq_fetch(s, best, seq_target(s, &s->seqs[best])));
}
