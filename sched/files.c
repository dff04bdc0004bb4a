/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/files.c - the table of files, block masks, and the events that concern a whole file.
 *
 * Callers: fs/engine.c and tools/sim through sched/sched.h; the rest of sched/.
 * Invariants: n_entries, n_pages, n_aliased and n_acts count every reference to a number, so that
 * sched_file_is_idle() is exact and a number is never reused under somebody.
 */
#include "sched/sched_i.h"

#define FILES_MAX (1u << 30)

/* ---- block masks ------------------------------------------------------------------- */

/* Bits of word w that lie in [b0, b1]. */
static uint64_t blocks_word(uint32_t w, uint32_t b0, uint32_t b1)
{
	uint32_t lo = w * 64, hi = lo + 63;

	if (b1 < lo || b0 > hi)
		return 0;
	lo = b0 > lo ? b0 - lo : 0;
	hi = b1 < hi ? b1 - w * 64 : 63;
	return (~0ULL << lo) & (~0ULL >> (63 - hi));
}

void sch_blocks_set(struct blocks *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		m->w[w] |= blocks_word(w, b0, b1);
}

void sch_blocks_clear(struct blocks *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		m->w[w] &= ~blocks_word(w, b0, b1);
}

bool sch_blocks_all(const struct blocks *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		if (blocks_word(w, b0, b1) & ~m->w[w])
			return false;
	return true;
}

bool sch_blocks_any(const struct blocks *m, uint32_t b0, uint32_t b1)
{
	for (uint32_t w = 0; w < SCH_BLOCKS_MAX / 64; w++)
		if (blocks_word(w, b0, b1) & m->w[w])
			return true;
	return false;
}

bool sch_blocks_empty(const struct blocks *m)
{
	return !sch_blocks_any(m, 0, SCH_BLOCKS_MAX - 1);
}

bool sch_blocks_run(const struct blocks *m, uint32_t from, uint32_t *ret_b0, uint32_t *ret_b1)
{
	uint32_t b = from;

	while (b < SCH_BLOCKS_MAX && !(m->w[b / 64] >> (b % 64) & 1))
		b = (m->w[b / 64] >> (b % 64)) ? b + 1 : (b / 64 + 1) * 64;
	if (b >= SCH_BLOCKS_MAX)
		return false;
	*ret_b0 = b;
	while (b < SCH_BLOCKS_MAX && (m->w[b / 64] >> (b % 64) & 1))
		b++;
	*ret_b1 = b - 1;
	return true;
}

/* ---- table ---------------------------------------------------------------------------- */

/* Bytes of the page; the whole chunk while the size is not known; 0 past the end. */
uint32_t sch_chunk_bytes(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	const struct file *f = sch_file(s, file);
	uint64_t off;

	if (!f)
		return 0;
	if (f->size_bytes == SCHED_SIZE_UNKNOWN)
		return (uint32_t)s->cfg.chunk_bytes;
	if (chunk_no > f->size_bytes / s->cfg.chunk_bytes)
		return 0;
	off = chunk_no * s->cfg.chunk_bytes;
	return (uint32_t)sch_min64(s->cfg.chunk_bytes, f->size_bytes - off);
}

uint32_t sch_chunk_blocks(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t bytes = sch_chunk_bytes(s, file, chunk_no);

	return bytes / s->block_bytes + (bytes % s->block_bytes != 0);
}

static int files_grow(struct sched *s, uint32_t file)
{
	uint32_t n = s->n_files;

	if (file < n)
		return 0;
	if (file >= FILES_MAX)
		return -ENOSPC;
	if (sch_array_grow((void **)&s->files, &n, file + 1, sizeof(*s->files)))
		return -ENOMEM;
	for (uint32_t i = s->n_files; i < n; i++) {
		s->files[i] = (struct file){.alias = SCHED_NO_FILE, .seq = SCH_NONE, .first_page = SCH_NONE};
	}
	s->n_files = n;
	return 0;
}

int sched_file_add(struct sched *s, uint32_t file, uint64_t size_bytes)
{
	struct file *f;
	int err = files_grow(s, file);

	if (err)
		return err;
	f = &s->files[file];
	if (f->state == FILE_FREE) {
		*f = (struct file){
			.alias = SCHED_NO_FILE, .seq = SCH_NONE, .first_page = SCH_NONE, .size_bytes = size_bytes};
		f->key = sch_least_mix(file);
		f->state = size_bytes == SCHED_SIZE_UNKNOWN ? FILE_UNKNOWN : FILE_KNOWN;
		return 0;
	}
	if (size_bytes != SCHED_SIZE_UNKNOWN && f->size_bytes == SCHED_SIZE_UNKNOWN)
		sched_file_resolved(s, file, 0, size_bytes, SCHED_NO_FILE, s->now_ns);
	return 0;
}

void sched_file_key_set(struct sched *s, uint32_t file, uint64_t key)
{
	struct file *f = sch_file(s, file);

	if (f)
		f->key = key;
}

/* The page that stood for the name while it was looked up, if a fetch of it is under way. */
static uint32_t file_resolve_fetch(struct sched *s, uint32_t file)
{
	uint32_t pg = sch_page_find(s, file, 0);
	uint32_t fe;

	if (pg == SCH_NONE || s->pages[pg].frame == SCH_NONE)
		return SCH_NONE;
	fe = s->frames[s->pages[pg].frame].fetches;
	while (fe != SCH_NONE && !s->fetches[fe].is_resolve)
		fe = s->fetches[fe].frame_next;
	return fe;
}

/* The look-up is over and no data follow it: give the slot back. */
static void file_resolve_drop(struct sched *s, uint32_t file)
{
	uint32_t fe = file_resolve_fetch(s, file);
	uint32_t pg;

	if (fe == SCH_NONE)
		return;
	pg = s->frames[s->fetches[fe].frame].page;
	sch_fetch_remove(s, fe);
	if (s->frames[s->pages[pg].frame].fetches == SCH_NONE &&
	    sch_blocks_empty(&s->frames[s->pages[pg].frame].valid))
		sch_frame_free(s, s->pages[pg].frame);
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}

/* Visits of a name that cannot be used are passed over. */
static void file_missing(struct sched *s, uint32_t file)
{
	for (uint32_t i = 0; i < s->n_pages; i++) {
		struct page *pg = &s->pages[i];

		if (!pg->is_live || pg->file != file)
			continue;
		while (pg->is_live && pg->file == file && pg->next != SCH_NONE)
			sch_position_done(s, pg->next);
	}
}

/* A name without any chunk but the first (which stands for it) is the common case: no scan. */
static void file_missing_fast(struct sched *s, uint32_t file)
{
	struct file *f = &s->files[file];
	uint32_t pg = sch_page_find(s, file, 0);

	if (f->n_pages > (pg != SCH_NONE ? 1u : 0u)) {
		file_missing(s, file);
		return;
	}
	while (pg != SCH_NONE && s->pages[pg].is_live && s->pages[pg].file == file && s->pages[pg].next != SCH_NONE)
		sch_position_done(s, s->pages[pg].next);
}

static void file_set_alias(struct sched *s, uint32_t file, uint32_t target)
{
	struct file *f = &s->files[file];

	target = sch_file_target(s, target);
	if (f->alias != SCHED_NO_FILE && sch_file(s, f->alias))
		s->files[f->alias].n_aliased--;
	f->alias = SCHED_NO_FILE;
	if (target == file || !sch_file(s, target) || f->n_aliased)
		return;
	f->alias = target;
	s->files[target].n_aliased++;
}

void sched_file_resolved(struct sched *s, uint32_t file, int err, uint64_t size_bytes, uint32_t alias_of,
			 uint64_t now_ns)
{
	struct file *f = sch_file(s, file);
	bool was_unknown;

	sch_clock(s, now_ns);
	if (!f)
		return;
	was_unknown = f->size_bytes == SCHED_SIZE_UNKNOWN;
	if (err < 0) {
		if (f->state != FILE_MISSING)
			s->n_missing_entries += f->n_entries;
		f->state = FILE_MISSING;
		file_resolve_drop(s, file);
		file_missing_fast(s, file);
		return;
	}
	if (f->state == FILE_MISSING) /* it is there after all */
		s->n_missing_entries -= f->n_entries;
	if (alias_of != SCHED_NO_FILE && alias_of != file) {
		f->state = FILE_KNOWN;
		if (size_bytes != SCHED_SIZE_UNKNOWN)
			f->size_bytes = size_bytes;
		file_resolve_drop(s, file);
		file_set_alias(s, file, alias_of);
		s->is_dirty_soon = true;
		return;
	}
	if (!was_unknown && f->state == FILE_KNOWN)
		return; /* a later size comes as sched_file_changed() */
	if (size_bytes == SCHED_SIZE_UNKNOWN)
		return;
	f->size_bytes = size_bytes;
	sch_windows_stale(s);
	f->state = FILE_KNOWN;
	if (size_bytes > s->cfg.chunk_bytes || size_bytes == 0) {
		file_resolve_drop(s, file); /* nothing follows: more than the first visit can bring */
	}
	/* Visits of the one page that stood for the name must become what the entries say. */
	if ((size_bytes > s->cfg.chunk_bytes || size_bytes == 0) && (f->n_entries || f->n_aliased)) {
		s->is_dirty_soon = true;
		f->stale_in = s->rebuilds + 1;
	}
	if (size_bytes <= s->cfg.chunk_bytes && size_bytes > 0 && sch_page_find(s, file, 0) != SCH_NONE)
		sch_page_clip(s, sch_page_find(s, file, 0));
}

void sch_file_each_page(struct sched *s, uint32_t file, void (*fn)(struct sched *s, uint32_t pg))
{
	uint64_t n = s->files[file].size_bytes / s->cfg.chunk_bytes + 1;

	if (s->files[file].n_pages == 0)
		return;
	if (n <= s->n_pages) {
		for (uint64_t c = 0; c < n; c++) {
			uint32_t pg = sch_page_find(s, file, c);

			if (pg != SCH_NONE)
				fn(s, pg);
		}
	}
	for (uint32_t i = 0; s->files[file].n_pages && n > s->n_pages && i < s->n_pages; i++)
		if (s->pages[i].is_live && s->pages[i].file == file)
			fn(s, i);
}

/* Nothing of the page is valid any more. What is in flight comes back and is ignored. */
static void page_invalidate(struct sched *s, uint32_t pg)
{
	struct page *p = &s->pages[pg];

	if (p->flags & PG_TIER)
		sch_tier_set(s, pg, false);
	p->flags &= (uint8_t)~(PG_ADMIT | PG_BAD);
	if (p->frame != SCH_NONE) {
		while (s->frames[p->frame].fetches != SCH_NONE)
			sch_fetch_remove(s, s->frames[p->frame].fetches);
		s->wasted_bytes += s->frames[p->frame].ahead_bytes;
		sch_frame_free(s, p->frame);
	}
	sch_page_restate(s, pg);
	sch_page_put(s, pg);
}

void sched_file_changed(struct sched *s, uint32_t file, uint64_t size_bytes)
{
	struct file *f = sch_file(s, file);

	if (!f)
		return;
	sch_file_each_page(s, file, page_invalidate);
	if (f->state == FILE_MISSING)
		s->n_missing_entries -= f->n_entries;
	f->key = sch_least_mix(f->key);
	f->size_bytes = size_bytes;
	f->state = size_bytes == SCHED_SIZE_UNKNOWN ? FILE_UNKNOWN : FILE_KNOWN;
	f->random = 0;
	sch_nohint_forget(s, file);
	if (f->n_entries || f->n_aliased)
		s->is_dirty_soon = true;
}

bool sched_file_is_idle(const struct sched *s, uint32_t file)
{
	const struct file *f = sch_file(s, file);

	return !f || (f->n_pages == 0 && f->n_entries == 0 && f->n_aliased == 0 && f->n_acts == 0);
}

uint32_t sched_file_frames(const struct sched *s, uint32_t file)
{
	const struct file *f = sch_file(s, file);

	return f ? f->n_frames + f->n_acts : 0;
}

bool sched_page_is_held(const struct sched *s, uint32_t file, uint64_t chunk_no)
{
	uint32_t pg = sch_page_find(s, file, chunk_no);

	return pg != SCH_NONE && s->pages[pg].frame != SCH_NONE;
}

void sched_file_forget(struct sched *s, uint32_t file)
{
	struct file *f = sch_file(s, file);

	if (!f || !sched_file_is_idle(s, file))
		return;
	if (f->alias != SCHED_NO_FILE && sch_file(s, f->alias))
		s->files[f->alias].n_aliased--;
	sch_nohint_forget(s, file);
	*f = (struct file){.alias = SCHED_NO_FILE, .seq = SCH_NONE, .first_page = SCH_NONE, .state = FILE_FREE};
}
