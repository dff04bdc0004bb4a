/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_origins.c - DIR/v1/origins: which dataset the path of a SOURCE stood for when it was there last.
 *
 * Whose data is kept goes by what is mounted at SOURCE; when nothing is mounted there (the server is down), the path alone is left,
 * and it leads here. 64 slots, written in place: a write that is cut off costs what it says, no more.
 *
 * Caller: tier_setup.c, before there are threads.
 */
#include "cache/tier_i.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct search {
	struct tier_raw_origin raw; /* the last one read */
	uint32_t slot_no;	    /* where it stands, or would */
	size_t text_bytes;	    /* 0: not there */
};

/* The slot of the source; else a free one; else one by chance. */
static int find(struct tier *t, int fd, uint64_t source, struct search *s)
{
	uint32_t free_no = TIER_NONE;
	uint64_t here;
	size_t n;
	int err;

	for (uint32_t no = 0; no < TIER_ORIGINS_MAX; no++) {
		memset(&s->raw, 0, sizeof(s->raw));
		err = tier_read_full(t, fd, &s->raw, sizeof(s->raw), (uint64_t)no * sizeof(s->raw));
		if (err < 0 && err != -ENODATA) /* the file may end inside the slot */
			return err;
		n = tier_origin_decode(&s->raw, t->salt, no, &here);
		if (n > 0 && here == source) {
			s->slot_no = no;
			s->text_bytes = n;
			return 0;
		}
		if (n == 0 && free_no == TIER_NONE)
			free_no = no;
	}
	s->slot_no = free_no != TIER_NONE ? free_no : (uint32_t)(tier_random() % TIER_ORIGINS_MAX);
	return 0;
}

static int record(struct tier *t, int fd, const struct tier_config *cfg, uint64_t source, struct search *s)
{
	size_t n;

	if (cfg->dataset_bytes > TIER_ORIGIN_TEXT_MAX ||
	    (s->text_bytes == cfg->dataset_bytes && memcmp(s->raw.text, cfg->dataset, cfg->dataset_bytes) == 0))
		return 0;
	n = tier_origin_encode(&s->raw, t->salt, s->slot_no, source, cfg->dataset, cfg->dataset_bytes);
	return tier_write_full(t, fd, &s->raw, n, (uint64_t)s->slot_no * sizeof(s->raw));
}

static int open_file(struct tier *t)
{
	struct stat st;
	int fd, err;

	for (int i = 0; i < 2; i++) {
		fd = t->io->openat(t->io->ctx, t->fd_version, TIER_ORIGINS_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
		err = fd < 0 ? fd : tier_check_file(t, fd, &st);
		if (err == 0)
			return fd;
		if (fd >= 0)
			(void)t->io->close(t->io->ctx, fd);
		if (err != -EBADMSG && err != -ELOOP)
			break;
		HFS_TRY(t->io->unlinkat(t->io->ctx, t->fd_version, TIER_ORIGINS_NAME, 0)); /* not what it should be */
	}
	return err;
}

bool tier_origins_begin(struct tier *t, const struct tier_config *cfg)
{
	uint64_t source = cfg->source != NULL ? tier_source_hash(t->salt, cfg->source) : 0;
	struct search *s = cfg->source != NULL ? calloc(1, sizeof(*s)) : NULL;
	int fd = s != NULL ? open_file(t) : -ENOENT;
	int err = fd < 0 ? fd : find(t, fd, source, s);
	bool is_known = cfg->dataset_bytes > 0 || cfg->source == NULL;

	t->dataset = tier_dataset_hash(t->salt, cfg->dataset, cfg->dataset_bytes);
	if (err == 0 && cfg->is_source_away && s->text_bytes > 0) {
		t->dataset = tier_dataset_hash(t->salt, s->raw.text, s->text_bytes);
		is_known = true;
	} else if (err == 0 && !cfg->is_source_away) {
		(void)record(t, fd, cfg, source, s); /* without it nothing fails today; a bad disk shows soon enough */
	}
	if (fd >= 0)
		(void)t->io->close(t->io->ctx, fd);
	free(s);
	return is_known;
}

bool tier_is_dataset(const struct tier *t, const void *dataset, size_t dataset_bytes)
{
	return tier_dataset_hash(t->salt, dataset, dataset_bytes) == t->dataset;
}
