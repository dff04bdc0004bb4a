/* SPDX-License-Identifier: Apache-2.0
 *
 * slowfs: a read-only pass-through file system that stands for a network
 * origin in tests, quickstart and benchmarks. Shared types of its files:
 *
 *   slowfs.c        options, session, start and stop
 *   slowfs_ops.c    FUSE callbacks; the work of one request and its reply
 *   slowfs_queue.c  when a request runs: latency, link, hang, interrupt
 *   slowfs_rules.c  error, short-read and delay rules; globs; parsing helpers
 *   slowfs_node.c   paths, nodes, open handles
 *   slowfs_log.c    counters and the ordered log
 *   slowfs_ctl.c    control socket
 *
 * A request: callback -> slow_queue_submit -> [hung] -> [timer heap] ->
 * [hung] -> slow_ops_run -> reply. No thread ever sleeps for the delay of one request.
 *
 * Invariants
 *  1. The backing file is read when the request runs, i.e. after its delay:
 *     nothing that slowfs holds can be older than the backing file.
 *  2. Once the `hang` command is answered no request that matches it starts to
 *     run, until `unhang`.
 *  3. A descriptor is held per open handle only. Paths and nodes are never
 *     freed (a test tool: memory grows with the files seen), so FORGET is void.
 *  4. The control socket needs no lock that is held across a backing call.
 *
 * Locks, outermost first: libfuse's req->lock, queue, rules, nodes, log.
 * libfuse's session lock is taken inside queue, by fuse_req_interrupted().
 */
#ifndef HFS_TESTS_SLOWFS_H
#define HFS_TESTS_SLOWFS_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 317
#endif

#include <dirent.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

enum slow_op {
	SLOW_LOOKUP,
	SLOW_GETATTR,
	SLOW_OPEN,
	SLOW_READ,
	SLOW_OPENDIR,
	SLOW_READDIR,
	SLOW_READLINK,
	SLOW_STATFS,
	SLOW_XATTR,
	SLOW_LSEEK,
	SLOW_RELEASE, /* counted and logged; never delayed, hung or failed */
	SLOW_OP_COUNT
};

#define SLOW_MASK(op)  (1u << (op))
#define SLOW_MASK_ALL  (SLOW_MASK(SLOW_RELEASE) - 1)
#define SLOW_MASK_META (SLOW_MASK_ALL & ~SLOW_MASK(SLOW_READ))
#define SLOW_ERR_PENDING (-1) /* log: not yet answered */
#define SLOW_NS_PER_S 1000000000ull

/* What a signal does to a request that is hung or long delayed. */
enum slow_intr {
	SLOW_INTR_KILL,   /* EINTR when the caller is being killed: a hard NFS mount */
	SLOW_INTR_ANY,    /* EINTR at once, whatever the signal */
	SLOW_INTR_IGNORE, /* the signal is not noticed */
};

/* One name below the source, and its counters. Never freed. */
struct slow_path {
	struct slow_path *next; /* hash chain */
	struct slow_node *current;
	atomic_uint_fast64_t count[SLOW_OP_COUNT];
	atomic_uint_fast64_t bytes;
	atomic_uint_fast64_t errors;
	uint64_t hash;
	size_t len;
	char text[]; /* relative to the source, "." is the source itself */
};

/* One inode that a name has shown; a replaced file gets a new node. */
struct slow_node {
	struct slow_path *path;
	struct slow_handle *handles; /* guarded by nodes lock */
	uint64_t dev, ino, btime_ns, generation;
	/* attributes last told to the kernel; guarded by nodes lock */
	bool is_told;
	uint64_t told_size, told_mtime_ns, told_ctime_ns;
	uint64_t told_no; /* how many times it was something else than before */
	bool is_dropped;  /* the kernel has no pages any more of what was told before */
};

struct slow_handle {
	struct slow_handle *next;
	struct slow_node *node;
	int fd;
	unsigned refs; /* guarded by nodes lock */
	uint64_t dropped_no; /* the kernel drops pages when it opens this, as of told_no; 0: it keeps them */
	DIR *dir;
	pthread_mutex_t dir_lock;
	struct dirent *held; /* read from dir, did not fit in the last reply */
	off_t dir_pos;
};

enum slow_stage { SLOW_STAGE_ARRIVED, SLOW_STAGE_DUE };

struct slow_req {
	fuse_req_t req;
	struct slow_node *node;
	struct slow_path *path; /* what rules, counters and log see; LOOKUP: the child */
	struct slow_handle *handle;
	struct fuse_file_info fi;
	enum slow_op op;
	uint64_t seq; /* in the log */
	uint64_t offset, size;
	int whence;
	/* queue */
	struct slow_req *prev, *next; /* hung list */
	size_t heap_at;
	uint64_t due_ns;
	uint64_t order; /* breaks ties of due_ns: first come, first served */
	enum slow_stage stage;
	enum slow_intr intr;
	bool is_interrupted;
	int forced_err;
	char name[]; /* LOOKUP: child; XATTR: attribute or "" for the list */
};

struct slow_hang {
	struct slow_hang *next;
	unsigned ops;
	enum slow_intr intr;
	char glob[];
};

struct slow_queue {
	pthread_mutex_t lock;
	int wake_fd; /* const; an eventfd that ends the leader's sleep */
	pthread_cond_t follow, event;
	/* guarded by lock */
	struct slow_req **heap;
	size_t heap_len, heap_cap;
	struct slow_req *hung;
	size_t hung_count;
	struct slow_hang *hangs;
	uint64_t link_free_ns, next_order, intr_check_ns;
	unsigned followers;
	bool has_leader, is_lead_asleep, is_roused, is_called, is_ended;
	/* atomic */
	atomic_uint_fast64_t unled_ns; /* since when nobody leads, 0: somebody does; written under lock */
	atomic_uint hang_rules;
	atomic_uint waiters; /* control connections that want `event` */
};

enum slow_action { SLOW_DO_ERRNO, SLOW_DO_SHORT, SLOW_DO_DELAY };

struct slow_rule {
	struct slow_rule *next;
	unsigned id, ops;
	enum slow_action action;
	uint64_t value; /* errno, bytes or ns */
	double probability;
	uint64_t every, skip, remaining; /* remaining: UINT64_MAX is for ever */
	uint64_t from, to;               /* [from, to) must meet the request */
	uint64_t seen, hits;
	char glob[];
};

struct slow_rules {
	pthread_mutex_t lock;
	struct slow_rule *list;
	unsigned next_id;
	uint64_t random;
	atomic_uint count;
};

struct slow_record {
	uint64_t seq, start_ns, end_ns, offset, asked, returned;
	struct slow_path *path;
	int err; /* SLOW_ERR_PENDING until answered */
	enum slow_op op;
};

struct slow_log {
	pthread_mutex_t lock;
	struct slow_record *ring;
	size_t cap;
	uint64_t next_seq, first_seq;
	atomic_uint_fast64_t count[SLOW_OP_COUNT];
	atomic_uint_fast64_t bytes, asked_bytes, errors;
	atomic_int_fast64_t handles;
	atomic_uint_fast64_t max_parallel_reads, parallel_reads;
};

struct slow_nodes {
	pthread_mutex_t lock;
	struct slow_path **table;
	size_t table_len, count;
	uint64_t next_generation;
	struct slow_node *root;
};

struct slowfs {
	/* const after start */
	char *source, *mountpoint, *ctl_path;
	struct fuse_session *session;
	unsigned threads;
	bool has_page_cache;
	uint64_t read_ahead_bytes;
	int ready_fd, watch_fd, listen_fd, signal_fd;
	/* settings that the control socket changes */
	atomic_uint_fast64_t latency_ns[SLOW_OP_COUNT];
	atomic_uint_fast64_t bandwidth; /* bytes/s, 0 is no limit */
	atomic_uint_fast64_t attr_ns, entry_ns, dir_ns;
	atomic_int intr; /* enum slow_intr for requests that are only delayed */
	atomic_bool stopping;
	struct slow_queue queue;
	struct slow_rules rules;
	struct slow_log log;
	struct slow_nodes nodes;
};

/* slowfs.c */
void slowfs_stop(struct slowfs *sf) __attribute__((noreturn));

/* slowfs_ops.c */
extern const struct fuse_lowlevel_ops slow_ops;
/* Does the work of r, answers and frees it. */
void slow_ops_run(struct slowfs *sf, struct slow_req *r);
/* Answers r with err and frees it. */
void slow_ops_fail(struct slowfs *sf, struct slow_req *r, int err);

/* slowfs_queue.c */
int slow_queue_init(struct slow_queue *q);
/* Serves until the session ends; negative errno: it could not begin. */
int slow_queue_serve(struct slowfs *sf);
/* Takes r over: runs it now, later, or when it is unhung. */
void slow_queue_submit(struct slowfs *sf, struct slow_req *r);
int slow_queue_hang(struct slowfs *sf, const char *glob, unsigned ops,
		    enum slow_intr intr);
/* glob NULL removes all; returns how many requests go on. */
size_t slow_queue_unhang(struct slowfs *sf, const char *glob);
void slow_queue_set_bandwidth(struct slowfs *sf, uint64_t bytes_per_s);
/* Fails everything parked and from now on runs all at once. */
void slow_queue_drain(struct slowfs *sf);
void slow_queue_print_hung(struct slowfs *sf, FILE *out, size_t *ret_lines);
/* Blocks until pred(arg) holds or deadline_ns passes; true if it holds. pred
 * runs under the queue lock and is asked again after each answered request. */
bool slow_queue_wait(struct slowfs *sf, uint64_t deadline_ns,
		     bool (*pred)(struct slowfs *, void *), void *arg);
void slow_queue_notify(struct slowfs *sf);

/* slowfs_rules.c */
void slow_rules_init(struct slow_rules *rs, uint64_t seed);
/* Parses `op=… glob=… errno=… …`; id, or 0 with *ret_error set. */
unsigned slow_rules_add(struct slow_rules *rs, char *const *words, size_t n,
			const char **ret_error);
bool slow_rules_remove(struct slow_rules *rs, unsigned id);
void slow_rules_clear(struct slow_rules *rs);
void slow_rules_seed(struct slow_rules *rs, uint64_t seed);
void slow_rules_print(struct slow_rules *rs, FILE *out, size_t *ret_lines);
uint64_t slow_rules_delay_ns(struct slow_rules *rs, const struct slow_req *r);
/* errno to fail r with, or 0; *ret_limit is lowered to a short-read size. */
int slow_rules_fault(struct slow_rules *rs, const struct slow_req *r,
		     uint64_t *ret_limit);
bool slow_glob_match(const char *glob, const struct slow_path *p);
bool slow_parse_ops(const char *text, unsigned *ret_mask);
bool slow_parse_intr(const char *text, enum slow_intr *ret_intr);
/* default_unit_ns is the unit of a number without one. */
bool slow_parse_ns(const char *text, uint64_t default_unit_ns, uint64_t *ret_ns);
/* K M G T are powers of 1000 when is_decimal, else of 1024; Ki, KiB and KB
 * always mean what they say. */
bool slow_parse_size(const char *text, bool is_decimal, uint64_t *ret_bytes);
bool slow_parse_u64(const char *text, uint64_t *ret_value);

/* slowfs_node.c */
int slow_nodes_init(struct slow_nodes *ns, const struct statx *root);
struct slow_node *slow_nodes_get(struct slow_nodes *ns, fuse_ino_t ino);
fuse_ino_t slow_nodes_id(struct slow_nodes *ns, const struct slow_node *n);
/* The node of the file that stx describes under this path; a new one if the
 * path showed another file before. NULL: out of memory. */
struct slow_node *slow_nodes_find(struct slow_nodes *ns, const char *path,
				  const struct statx *stx);
/* The record of a path, made if it is new. NULL: out of memory. */
struct slow_path *slow_nodes_path(struct slow_nodes *ns, const char *path);
bool slow_node_is(const struct slow_node *n, const struct statx *stx);
/* Remembers what the kernel is told; true if that differs from before. */
bool slow_node_tell(struct slow_nodes *ns, struct slow_node *n,
		    const struct statx *stx);
/* May the kernel, which opens h, keep the pages that it has? Not before an open after the last change was to drop them, and is through:
 * its answer may come later than those of opens after it, and attributes alone drop nothing if mtime was set back. */
bool slow_node_keeps(struct slow_nodes *ns, struct slow_handle *h);
/* h is read: its open is through. */
void slow_node_opened(struct slow_nodes *ns, struct slow_handle *h);
void slow_nodes_attach(struct slow_nodes *ns, struct slow_node *n,
		       struct slow_handle *h);
void slow_nodes_detach(struct slow_nodes *ns, struct slow_handle *h);
/* A counted handle of n, or NULL; slow_handle_put closes with the last. */
struct slow_handle *slow_nodes_borrow(struct slow_nodes *ns, struct slow_node *n);
void slow_handle_put(struct slow_nodes *ns, struct slow_handle *h);
void slow_stat_from_statx(const struct statx *stx, struct stat *ret_st);
/* "parent/name" into out; 0 or -ENAMETOOLONG. */
int slow_path_join(const struct slow_path *parent, const char *name, char *out,
		   size_t out_len);
/* Calls fn for each path, without the nodes lock. */
void slow_nodes_each(struct slow_nodes *ns,
		     void (*fn)(struct slow_path *p, void *arg), void *arg);

/* slowfs_log.c */
int slow_log_init(struct slow_log *l, size_t cap);
const char *slow_op_name(enum slow_op op);
uint64_t slow_now_ns(void);
void slow_log_start(struct slow_log *l, struct slow_req *r);
void slow_log_end(struct slow_log *l, const struct slow_req *r,
		  uint64_t returned, int err);
/* Records with seq > since, at most max, in order of arrival. */
void slow_log_print(struct slow_log *l, FILE *out, uint64_t since, size_t max,
		    size_t *ret_lines);
void slow_log_print_totals(struct slowfs *sf, FILE *out, size_t *ret_lines);
void slow_log_print_counters(struct slowfs *sf, const char *glob, FILE *out,
			     size_t *ret_lines);
void slow_log_reset(struct slowfs *sf);
/* Prints bytes as printable text: \xHH for the others, \\ for a backslash. */
void slow_print_escaped(FILE *out, const char *text);

/* slowfs_ctl.c */
int slow_ctl_listen(struct slowfs *sf);
int slow_ctl_start(struct slowfs *sf);

#endif
