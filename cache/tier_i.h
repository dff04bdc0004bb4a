/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/tier_i.h - what the tier_*.c files share: the tables, and who may touch them.
 *
 *   tier.c        life, ticks, figures            tier_index.c  key -> entry; chunks present; operations under way
 *   tier_setup.c  the directory, refusals         tier_obj.c    files on disk: descriptors, LRU, death
 *   tier_read.c   readers, their deadline         tier_big.c    sparse data + records
 *   tier_admit.c  the admission queue             tier_pack.c   packs
 *   tier_space.c  budget, drops, culling          tier_adopt.c  what was there; trash
 *   tier_health.c breaker, probe, sync            tier_scrub.c  verify everything
 *   tier_note.c   notes of the owner's            tier_origins.c which dataset a path stands for
 *
 *   entry (a path of a dataset, one generation) --> big (K.d + K.i)
 *                                               \-> pack + offset (N.p), many to one
 *
 * Locks. t->lock (rank TIER) guards everything below "guarded"; never held over I/O, a copy of data, a callback or the log.
 * The *naming* right (naming_enter) serialises creation and removal of names below files/ and packs/; held over I/O,
 * taken without t->lock, by threads of the tier only.
 *
 * 1. A chunk is readable only while its bit (or entry) is there. An operation on it (struct op) is under way from before its
 *    I/O begins until after it has ended; a drop waits for the reads of its chunk, an admission is refused while any is under way.
 * 2. The bit goes off before the record, the record before the data. The data is there before the record, the record before the bit.
 * 3. An object is freed by reap() only: dead, no users, names removed.
 * 4. used_bytes is the sum of what fstat said last of every object; reserved_bytes covers what writes under way may add.
 */
#ifndef CACHE_TIER_I_H
#define CACHE_TIER_I_H

#include "cache/base/arith.h"
#include "cache/base/log.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"
#include "cache/base/workq.h"
#include "cache/tier.h"
#include "cache/tier_format.h"
#include "cache/tier_io.h"

#include <stdatomic.h>

#define TIER_SHARDS 256
#define TIER_SLAB 256
#define TIER_LEAF_CHUNKS 128
#define TIER_CHUNKS_MAX (UINT32_C(1) << 24) /* of a file: 16 TiB at 1 MiB */
#define TIER_DATASETS_MAX 1024
#define TIER_OP_BUCKETS 256
#define TIER_NONE UINT32_MAX
#define TIER_BLOCK 4096
#define TIER_AHEAD_BYTES (UINT64_C(512) << 20)

struct tier_obj {
	struct tier_obj *lru_next, *lru_prev; /* all that live; least recently used first */
	struct tier_obj *fd_next, *fd_prev;   /* while open */
	struct tier_obj *dirty_next, *dead_next;
	int fd_data, fd_index; /* -1: closed; packs have no index */
	int fd_direct;	       /* the data past the page cache, for reads; -1: not opened, or not to be had */
	uint32_t n_users;      /* operations and jobs that hold a pointer */
	uint32_t n_pins;
	uint64_t alloc_bytes, dirty_bytes;
	uint32_t measures, measured; /* tickets: begun, applied */
	bool is_pack, is_dead, is_dirty, is_used, is_readonly, has_names, is_direct_refused;
};

struct tier_leaf {
	uint64_t present[TIER_LEAF_CHUNKS / 64], verified[TIER_LEAF_CHUNKS / 64];
};

struct tier_big {
	struct tier_obj obj; /* first */
	struct tier_key key;
	uint64_t file_id;
	struct hfs_identity id; /* as stored */
	uint32_t chunk_bytes, generation, dataset;
	uint32_t n_chunks, n_present, n_verified, n_leaves;
	struct tier_leaf **leaves;
	bool was_passed; /* never punch */
};

struct tier_pack {
	struct tier_obj obj; /* first */
	uint64_t pack_no;
	uint32_t index; /* in t->packs */
	uint32_t end_bytes, n_live, n_writers;
	uint64_t live_bytes;
	uint32_t first; /* of its entries; TIER_NONE: none */
	uint64_t ahead; /* guarded: windows that were read ahead, a bit each */
	bool is_sealed, is_full;
};

struct tier_entry {
	struct tier_key key;
	struct hfs_identity id; /* as stored */
	union {
		struct tier_big *big;
		struct {
			uint32_t pack, off_bytes; /* TIER_NONE: in none yet */
		} small;
	};
	uint32_t next;			/* in the shard */
	uint32_t pack_next, pack_prev; /* of a small file: in its pack */
	uint16_t path_bytes;
	uint16_t dataset : 15;
	uint16_t is_big : 1;
};
_Static_assert(sizeof(struct tier_entry) <= 80, "memory of a small file");

struct tier_shard {
	uint32_t *heads;
	uint32_t n_heads, n_entries;
};

enum tier_op_kind { TIER_OP_READ, TIER_OP_WRITE, TIER_OP_DROP };

struct tier_op {
	struct tier_op *next;	  /* in its bucket */
	struct tier_op *drop_next; /* TIER_OP_DROP: in t->drops */
	struct tier_obj *obj;
	uint64_t where; /* chunk number, or offset in the pack */
	enum tier_op_kind kind;
	uint32_t item_bytes, item_head; /* drop of an item */
};

struct tier_buf {
	struct tier_buf *next;
	uint8_t data[];
};

struct tier_job; /* tier_read.c */
struct tier_admission;

struct tier {
	/* const after create */
	struct tier_config cfg;
	char *dir;
	const struct tier_io *io;
	uint64_t salt, dataset;
	uint64_t dir_dev, dir_ino, lock_ino;
	int fd_dir, fd_version, fd_files, fd_packs, fd_lock;
	uint32_t pack_bytes; /* size of a segment */
	size_t buf_bytes;
	uint64_t grace_end_ns; /* until when a reader may wait for adoption */
	struct workq *reads, *large_reads, *bg;
	_Atomic bool is_cached_refused; /* the file system cannot say what is in memory */

	struct hfs_mutex lock;
	struct hfs_cond changed; /* state, idle, naming, adoption: rare events, broadcast */
	/* guarded by lock */
	enum tier_state state;
	enum tier_cause cause;
	bool is_adopted, are_packs_adopted, is_adopting, is_adopting_again, has_trash, is_stopping, is_naming, is_logged;
	bool is_care_queued, is_caring, is_sync_queued, is_probe_queued;
	uint64_t error_ns[3];
	uint64_t probe_at_ns, probe_delay_ns, left_ns, hold_until_ns, hold_ns;
	uint64_t check_at_ns, sync_at_ns;

	struct tier_shard shards[TIER_SHARDS];
	struct tier_entry **slabs;
	uint32_t n_slabs, slabs_cap, free_entry;
	uint64_t datasets[TIER_DATASETS_MAX];
	uint32_t n_datasets;
	struct tier_pack **packs;
	uint32_t n_packs, packs_cap, n_to_seal;
	struct tier_pack *active;
	uint64_t last_pack_no;
	struct tier_op *ops[TIER_OP_BUCKETS];
	struct tier_op *drops;
	uint32_t n_drops, n_admissions, n_running;
	struct tier_obj *lru_first, *lru_last, *fd_first, *fd_last, *dirty, *dirty_last, *dead;
	uint32_t n_open;
	struct tier_buf *bufs;
	uint32_t n_bufs;
	uint64_t ahead_bytes; /* that may still be read ahead of packs, see tier_pack_ahead() */
	struct tier_job *waiting; /* readers */
	uint64_t progress_ns;	  /* when a read ended last */
	bool is_final_done;
	struct tier_scrub_state scrub;
	bool is_scrub_ending;

	uint64_t used_bytes, reserved_bytes, base_bytes, trash_bytes, dirty_bytes;
	uint64_t used_inodes;
	int64_t room_bytes, room_inodes; /* above the reserve, by the last statvfs, less what was reserved since */
	uint64_t fs_bytes;
	struct tier_stats stats; /* counters only */
};

static inline struct tier_big *tier_big_of(struct tier_obj *o)
{
	return (struct tier_big *)o;
}

static inline struct tier_pack *tier_pack_of(struct tier_obj *o)
{
	return (struct tier_pack *)o;
}

/* A path of this mount, as the tier knows it. */
struct tier_name {
	struct tier_key key;
	struct hfs_identity id; /* as stored */
	const char *path;
	uint32_t path_bytes;
};
struct tier_name tier_name_of(const struct tier *t, const struct hfs_identity *id, const char *path);
/* As the caller knows it. */
struct hfs_identity tier_identity_out(const struct tier *t, struct hfs_identity id);

/* ---- tier_setup.c ---- */
int tier_setup(struct tier *t, const struct tier_config *cfg, char *why, size_t cap);
/* Note in the lock that its holder ends: who wants the directory next waits. */
void tier_say_ending_main(void *arg);

/* ---- tier_origins.c ---- */
/* Sets t->dataset, by what is recorded for cfg->source or by cfg->dataset; records it. False: by neither. */
bool tier_origins_begin(struct tier *t, const struct tier_config *cfg);

/* ---- tier_index.c; all locked ---- */
struct tier_entry *tier_entry_find(struct tier *t, struct tier_key key);
struct tier_entry *tier_entry_add(struct tier *t, struct tier_key key); /* NULL: no memory; not there yet */
void tier_entry_remove(struct tier *t, struct tier_entry *e);	       /* and from its pack */
/* The item of a small file, whose id and path_bytes are set, stands there. Counts it. */
void tier_entry_join(struct tier *t, struct tier_entry *e, struct tier_pack *p, uint32_t off_bytes);
void tier_entry_leave(struct tier *t, struct tier_entry *e);
struct tier_entry *tier_entry_at(struct tier *t, uint32_t no);
int tier_dataset_index(struct tier *t, uint64_t dataset); /* negative: too many */
bool tier_big_has(const struct tier_big *b, uint64_t chunk_no);
int tier_big_set(struct tier *t, struct tier_big *b, uint32_t chunk_no);
bool tier_big_clear(struct tier *t, struct tier_big *b, uint32_t chunk_no); /* was it there */
void tier_big_verify(struct tier_big *b, uint32_t chunk_no);
uint32_t tier_big_last(const struct tier_big *b, uint32_t below); /* TIER_NONE: none */
void tier_op_begin(struct tier *t, struct tier_op *op, struct tier_obj *o, uint64_t where, enum tier_op_kind kind);
void tier_op_end(struct tier *t, struct tier_op *op);
/* Is one of this kind, or any (kind < 0) under way there? */
bool tier_op_busy(struct tier *t, const struct tier_obj *o, uint64_t where, int kind);
uint64_t tier_index_bytes(const struct tier *t);
void tier_index_finish(struct tier *t);

/* ---- tier_obj.c ---- */
void tier_obj_init(struct tier_obj *o, bool is_pack);
void tier_obj_link_locked(struct tier *t, struct tier_obj *o, bool is_recent);
void tier_obj_use_locked(struct tier *t, struct tier_obj *o);
/* One user less. The last one of an empty file takes it along; of a dead one, sees to it that it is freed. */
void tier_obj_release_locked(struct tier *t, struct tier_obj *o);
/* Out of LRU, index and dirty list; its names and memory go in tier_reap(). */
void tier_obj_kill_locked(struct tier *t, struct tier_obj *o);
void tier_obj_free(struct tier *t, struct tier_obj *o); /* nobody uses or finds it; its descriptors are closed */
/* Descriptors of an object with users. name: to compare with the header; NULL: none. -EBADMSG: it is not what it should be. */
int tier_obj_open(struct tier *t, struct tier_obj *o, const struct tier_name *name);
/* The data of a large file, whose descriptors are open, once more, for reads: a descriptor that is the caller's, or negative errno
 * (-EBADMSG: the name leads to another file now). */
int tier_obj_reopen(struct tier *t, struct tier_obj *o, int flags) HFS_MUST_CHECK;
/* True: fd_direct is open, as long as the object, which is open, has this user. */
bool tier_obj_direct(struct tier *t, struct tier_obj *o);
void tier_obj_adopt_fds(struct tier *t, struct tier_obj *o, int fd_data, int fd_index);
void tier_obj_dirty_locked(struct tier *t, struct tier_obj *o, uint64_t bytes);
void tier_obj_measure(struct tier *t, struct tier_obj *o); /* fstat both, correct used_bytes */
void tier_fds_trim(struct tier *t);
void tier_reap(struct tier *t);
bool tier_naming_enter(struct tier *t); /* false: trouble or shutdown */
void tier_naming_leave(struct tier *t);
int tier_check_file(struct tier *t, int fd, struct stat *ret); /* regular, ours, one name */
int tier_read_full(struct tier *t, int fd, void *buf, size_t n, uint64_t off_bytes); /* -ENODATA: short */
int tier_write_full(struct tier *t, int fd, const void *buf, size_t n, uint64_t off_bytes);
struct tier_buf *tier_buf_get(struct tier *t);
void tier_buf_put(struct tier *t, struct tier_buf *b);
uint64_t tier_random(void);

/* ---- tier_big.c ---- */
int tier_big_create(struct tier *t, const struct tier_name *name, struct tier_big **ret_b);
void tier_big_free(struct tier_big *b);
int tier_big_check_open(struct tier *t, struct tier_big *b, int fd_index, const struct tier_name *name);
/* 0, -EBADMSG (not what it should be), or the errno of a system call. Whole chunk into buf; is_direct: past the page cache, buf is
 * aligned and as large as tier_read_into() says. */
int tier_big_read(struct tier *t, struct tier_big *b, uint32_t chunk_no, void *buf, bool is_direct);
int tier_big_write(struct tier *t, struct tier_big *b, uint32_t chunk_no, const void *data, uint32_t len_bytes);
int tier_big_erase(struct tier *t, struct tier_big *b, uint32_t chunk_no);

/* ---- tier_pack.c ---- */
int tier_pack_create(struct tier *t, struct tier_pack **ret_p);
int tier_pack_check_open(struct tier *t, struct tier_pack *p, int fd);
/* Room for total bytes in the active pack, which is made if need be; +1 user, +1 writer. */
int tier_pack_begin(struct tier *t, uint64_t total_bytes, struct tier_pack **ret_p, uint32_t *ret_off);
void tier_pack_end(struct tier *t, struct tier_pack *p);
void tier_pack_seal_full(struct tier *t, bool is_all);
/* The item at off into buf; *ret_data_off: where in it the data is. name may be NULL. Errors as tier_big_read(); -ENOENT: dead.
 * is_cached: only if it is in memory, else -EAGAIN; waits for no disk. into: where the data is to come then, of the entry's size, not
 * proven before the call says 0; NULL: into buf as well. */
int tier_pack_read(struct tier *t, struct tier_pack *p, uint32_t off_bytes, struct tier_key key, const struct hfs_identity *id,
		   uint32_t path_bytes, const struct tier_name *name, bool is_cached, uint8_t *buf, void *into,
		   uint32_t *ret_data_off);
void tier_pack_ahead(struct tier *t, struct tier_pack *p, uint32_t off_bytes);
void tier_pack_ahead_used_locked(struct tier *t, uint32_t bytes);
int tier_pack_erase(struct tier *t, struct tier_pack *p, uint32_t off_bytes, uint32_t head_bytes, uint32_t item_bytes);
int tier_pack_add_locked(struct tier *t, struct tier_pack *p);
struct tier_pack *tier_pack_new(uint64_t pack_no);
void tier_pack_retire_locked(struct tier *t, struct tier_pack *p); /* nothing more is appended; to be sealed */

/* ---- tier_space.c ---- */
int tier_space_reserve(struct tier *t, uint64_t bytes, uint32_t inodes); /* -ENOSPC */
void tier_space_release(struct tier *t, uint64_t bytes);
void tier_space_measure(struct tier *t); /* statvfs, own directories */
bool tier_space_cull(struct tier *t, uint64_t need_bytes, uint32_t need_inodes, bool may_take_used);
bool tier_space_is_over(struct tier *t);
void tier_space_cull_waste(struct tier *t); /* packs that are mostly dead, when space is short */
void tier_drop_chunk_locked(struct tier *t, struct tier_big *b, uint32_t chunk_no, struct tier_op *op);
void tier_drop_item_locked(struct tier *t, struct tier_entry *e, struct tier_op *op);
void tier_drops_run(struct tier *t);
/* Everything of a big file or a pack is going: say so, then kill it. Without the lock. */
void tier_obj_lose(struct tier *t, struct tier_obj *o);
void tier_care_soon_locked(struct tier *t);

/* ---- tier_adopt.c ---- */
void tier_adopt_main(void *arg);
/* One big file at once, because somebody wants it; on a thread of the tier. */
void tier_adopt_one(struct tier *t, struct tier_key key);
void tier_trash_slice(struct tier *t);

/* ---- tier_health.c ---- */
void tier_error(struct tier *t, int err, bool is_write);
void tier_trouble(struct tier *t, enum tier_state state, enum tier_cause cause); /* at least that bad */
void tier_check(struct tier *t);
void tier_probe_main(void *arg);
void tier_sync_main(void *arg);
void tier_sync_all(struct tier *t);
enum tier_cause tier_cause_of(int err);

/* A system call of a reader's thread, about to begin or just ended: from here on it is timed anew. */
static inline void tier_called(struct tier *t)
{
	workq_progress(t->reads);
	workq_progress(t->large_reads);
}

/* ---- tier_read.c ---- */
void tier_read_wake_locked(struct tier *t); /* readers look again: trouble or shutdown */
void tier_read_drop(void *ctx, void (*fn)(void *arg), void *arg);
/* Verify what is there, on a thread of the tier: 0: good; 1: gone meanwhile; 2: was bad, is dropped; -EIO: not now. */
int tier_read_verify(struct tier *t, struct tier_key key, uint64_t chunk_no);

/* ---- tier_admit.c ---- */
void tier_admit_main(void *arg);
void tier_admit_cancel(void *arg); /* instead of it */

/* ---- tier.c ---- */
void tier_care_main(void *arg);
/* The adopted/lost callbacks. */
void tier_tell_lost(struct tier *t, uint32_t dataset, struct hfs_identity id, uint64_t chunk_no);

#endif
