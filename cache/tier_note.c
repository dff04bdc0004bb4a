/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_note.c - notes of the owner's (fs/book.c: attributes and listings), kept as small files under names that no path has.
 *
 * 1. A note is found by its name alone: its identity is of its content's making, so that another content supersedes it.
 * 2. All else is as with small files: checked on every read, bound to the dataset, counted, culled, adopted, scrubbed.
 *
 * Callers: fs/book*.c. Lock: t->lock for a look into the index only.
 */
#include "cache/tier_i.h"

#include <string.h>

#define NOTE_DEV UINT64_MAX /* no origin's */

int tier_note_put(struct tier *t, const char *name, const void *data, uint32_t len_bytes)
{
	struct hfs_identity id = {.dev = NOTE_DEV, .size_bytes = len_bytes};
	int err;

	if (len_bytes == 0 || len_bytes > TIER_NOTE_BYTES_MAX || strncmp(name, "//", 2) != 0)
		return -EINVAL;
	id.mtime_ns = (int64_t)tier_data_check(t->salt, data, len_bytes);
	err = tier_admit(t, &id, name, 0, data, len_bytes, 0);
	return err == -EEXIST ? 0 : err;
}

/* size_bytes 0: it is not there. */
static struct hfs_identity find(struct tier *t, const char *name)
{
	struct tier_name key = tier_name_of(t, NULL, name);
	const struct tier_entry *e;
	struct hfs_identity id = {0};

	hfs_mutex_lock(&t->lock);
	e = tier_entry_find(t, key.key);
	if (e != NULL && !e->is_big && e->id.dev == NOTE_DEV && e->id.size_bytes <= TIER_NOTE_BYTES_MAX)
		id = e->id;
	hfs_mutex_unlock(&t->lock);
	return id;
}

uint32_t tier_note_size(struct tier *t, const char *name)
{
	return (uint32_t)find(t, name).size_bytes;
}

int64_t tier_note_get(struct tier *t, const char *name, void *buf)
{
	struct hfs_identity id = find(t, name);

	if (id.size_bytes == 0)
		return -ENOENT;
	return tier_read(t, &id, name, 0, 0, (uint32_t)id.size_bytes, buf) ? (int64_t)id.size_bytes : -ENOENT;
}

bool tier_wait_notes(struct tier *t, unsigned wait_ms)
{
	uint64_t deadline_ns = hfs_now_ns() + wait_ms * HFS_NS_PER_MS;
	bool is_known;

	hfs_mutex_lock(&t->lock);
	while (!(is_known = t->are_packs_adopted) && !t->is_stopping && hfs_cond_wait_until(&t->changed, &t->lock, deadline_ns))
		;
	hfs_mutex_unlock(&t->lock);
	return is_known;
}
