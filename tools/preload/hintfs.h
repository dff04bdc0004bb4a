/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hintfs.h - batches of a dataset, in the written order, in page-locked host memory.
 *
 * A loader owns a ring of batch slots in one sealed memfd. Its threads read the samples of an order (a
 * control file, see docs/hintfs-preload.1) from a mount into the slots, batch k before batch k + 1, and the
 * caller takes finished batches, copies them to a device or reads them in place, and gives them back.
 *
 *	struct hintfs_opts o = HINTFS_OPTS_INIT;
 *	o.mount = "/mnt/data"; o.order_path = "train.order"; o.batch_samples = 256; o.device = 0;
 *	if (hintfs_loader_open(&o, &l) < 0) ... hintfs_last_error()
 *	while ((r = hintfs_loader_next_batch(l, -1, &b)) == 0) {
 *		hintfs_batch_copy_to_device(b, dst, cap, stream, 0);
 *		hintfs_batch_release(b, stream);
 *	}
 *	hintfs_loader_close(l);
 *
 * Rules that hold for every function here:
 *  1. Results: 0 (or a documented positive value), or a negative errno. The text of this thread's last failure is
 *     hintfs_last_error().
 *  2. Any thread may call any function on one loader at any time, but for close, which must be the last call.
 *     A batch belongs to the thread that took it until release; release may come from another thread.
 *  3. In a child of fork() every call returns -ECHILD and touches nothing. The memory of batches taken before
 *     the fork stays readable there as long as the parent has not released them.
 *  4. Nothing here depends on CUDA at link time. No driver, no device, no libcudart are normal: the ring is then
 *     locked with mlock, or plain, and stats say which and why.
 *  5. A slot is refilled only after release, and after the device has passed every copy and every stream given
 *     to release.
 *  6. Structures that the caller fills begin with struct_size (use the INIT macros): newer fields may follow.
 */
#ifndef HINTFS_H
#define HINTFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HINTFS_API_VERSION 1

#if defined(__GNUC__)
#define HINTFS_API __attribute__((visibility("default")))
#define HINTFS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define HINTFS_API
#define HINTFS_MUST_CHECK
#endif

struct hintfs_loader; /* opaque */

/* What a sample that cannot be read does. */
enum hintfs_on_error {
	HINTFS_ON_ERROR_FAIL = 0, /* next_batch returns its errno when its batch's turn comes, and again until set_epoch */
	HINTFS_ON_ERROR_MARK = 1, /* it keeps its place: length 0, status = the positive errno */
	HINTFS_ON_ERROR_SKIP = 2, /* it is left out: the batch has fewer samples */
};

/* hintfs_opts.flags */
#define HINTFS_OPEN_SPLIT 0x1u	      /* what does not fit a slot comes in pieces, flagged; otherwise -EMSGSIZE */
#define HINTFS_OPEN_DROP_LAST 0x2u    /* with batch_samples: no short batch at the end */
#define HINTFS_OPEN_NO_HINTS 0x4u     /* do not write the order to the mount's control file */
#define HINTFS_OPEN_REQUIRE_CUDA 0x8u /* open fails (-ENODEV) instead of going on without page-locking by CUDA */
#define HINTFS_OPEN_NO_LOCK 0x10u     /* neither CUDA nor mlock: plain memory */

struct hintfs_opts {
	uint32_t struct_size;	      /* sizeof(struct hintfs_opts); HINTFS_OPTS_INIT sets it */
	uint32_t flags;		      /* HINTFS_OPEN_* */
	const char *mount;	      /* the directory that the order's paths are relative to */
	const char *order_path;	      /* file with the order; or, when NULL, */
	const char *order_text;	      /* the order itself, order_text_bytes long (both borrowed during open) */
	uint64_t order_text_bytes;
	const char *ctl_dir;	      /* control directory; NULL: $HINTFS_CTL, else MOUNT/.ctl */
	const char *stream;	      /* write to streams/NAME instead of order */
	const char *cudart_path;      /* this libcudart and no other; NULL: $HINTFS_CUDART, else searched */
	uint64_t batch_bytes;	      /* payload bytes of a slot, and the cut without @batch and batch_samples; 0: computed
				       * from the order when all lengths are written in it, else 64 MiB */
	uint32_t batch_samples;	      /* samples a batch when the order has no @batch marks; 0: cut by bytes */
	uint32_t max_samples;	      /* most samples a slot can describe; 0: computed. At most 1 Mi */
	uint32_t ring_slots;	      /* 1 ... 1024; 0: 4 */
	uint32_t workers;	      /* reading threads, 1 ... 256; 0: 4 */
	uint32_t align_bytes;	      /* samples begin at multiples: a power of two, 1 ... 4096; 0: 64 */
	uint32_t max_open_files;      /* descriptors held at once; 0: 128, never over a quarter of RLIMIT_NOFILE */
	int32_t device;		      /* CUDA device to page-lock for; HINTFS_NO_DEVICE: none */
	uint32_t on_error;	      /* enum hintfs_on_error */
	uint32_t close_timeout_ms;    /* how long close waits for device work on released slots; 0: 10,000 */
	uint32_t reserved;
};
#define HINTFS_NO_DEVICE (-1)
#define HINTFS_OPTS_INIT { .struct_size = (uint32_t)sizeof(struct hintfs_opts), .device = HINTFS_NO_DEVICE }

/* hintfs_batch.flags */
#define HINTFS_BATCH_PARTIAL 0x1u /* less than was asked for: the end came, samples were skipped, or a split */
#define HINTFS_BATCH_LAST 0x2u	  /* nothing follows in this epoch */
#define HINTFS_BATCH_SPLIT 0x4u	  /* the batch of the order goes on in the next slot */

/* sample_flags */
#define HINTFS_SAMPLE_FIRST 0x1u /* begins at the sample's first byte */
#define HINTFS_SAMPLE_FINAL 0x2u /* ends at the sample's last byte; both set: the whole sample */

/*
 * A filled slot. Everything it points to lies in the ring, is valid until release and may be written to by the
 * caller. Metadata block and payload are contiguous: [meta, payload + payload_bytes) is one range. Sample i is
 * payload[offset[i] .. offset[i] + length[i]); bytes between samples are zero.
 */
struct hintfs_batch {
	uint64_t seq;	     /* 0, 1, 2 ... within an epoch */
	uint64_t epoch;	     /* as given to set_epoch, or the order's first label */
	uint64_t number;     /* the order's @batch number; seq without marks */
	uint32_t n;	     /* samples; the arrays below have n items */
	uint32_t flags;	     /* HINTFS_BATCH_* */
	void *meta;	     /* struct hintfs_batch_meta and the arrays */
	uint64_t meta_bytes; /* multiple of 4096; payload == (char *)meta + meta_bytes */
	void *payload;	     /* 4096-aligned */
	uint64_t payload_bytes;
	const uint64_t *offset;	       /* bytes from payload, multiples of align_bytes */
	const uint64_t *length;	       /* bytes; 0 when status is not 0 */
	const uint64_t *sample_id;     /* entry of the order, from 0, comments and marks not counted */
	const uint64_t *source_offset; /* where in the file offset[i] was read from */
	const int32_t *status;	       /* 0 or a positive errno (HINTFS_ON_ERROR_MARK) */
	const uint32_t *sample_flags;  /* HINTFS_SAMPLE_* */
};

/*
 * First bytes of the metadata block, for a consumer that has only the block (a decoder on the device). Native byte
 * order. The arrays' places are in bytes from the start of the block.
 */
struct hintfs_batch_meta {
	char magic[8];		      /*  0: "HINTFSB1" */
	uint64_t seq;		      /*  8 */
	uint64_t epoch;		      /* 16 */
	uint64_t number;	      /* 24 */
	uint64_t payload_bytes;	      /* 32 */
	uint32_t n;		      /* 40 */
	uint32_t flags;		      /* 44 */
	uint32_t meta_bytes;	      /* 48 */
	uint32_t offset_at;	      /* 52: u64[n] */
	uint32_t length_at;	      /* 56: u64[n] */
	uint32_t sample_id_at;	      /* 60: u64[n] */
	uint32_t source_offset_at;    /* 64: u64[n] */
	uint32_t status_at;	      /* 68: i32[n] */
	uint32_t sample_flags_at;     /* 72: u32[n] */
	uint32_t reserved[13];	      /* 76 ... 127: zero */
};

struct hintfs_stats {
	uint32_t struct_size; /* HINTFS_STATS_INIT */
	uint32_t ring_slots;
	uint64_t batches;	/* handed out */
	uint64_t samples;	/* handed out, marked ones included */
	uint64_t bytes;		/* sample bytes handed out */
	uint64_t filled_bytes;	/* sample bytes read into the ring, whether handed out or not */
	uint64_t bad_samples;	/* marked or skipped */
	uint64_t fill_ns;	/* summed over workers: time inside reads and opens */
	uint64_t wait_data_ns;	/* callers waiting in next_batch */
	uint64_t wait_slot_ns;	/* workers waiting because every slot was taken (the consumer is the limit) */
	uint64_t copy_enqueue_ns;
	uint64_t copied_bytes;	/* given to the device's copy engine */
	uint64_t slot_bytes;	/* metadata block + payload room */
	uint64_t ring_bytes;
	uint64_t pinned_bytes;	/* locked by CUDA or mlock */
	uint32_t lost_slots;	/* never used again: their device work could not be confirmed */
	uint32_t busy_workers;	/* inside a read or an open at this moment */
	int32_t numa_node;	/* the device's, or -1 */
	int32_t host_register_ro; /* device attribute 113, or -1 */
	int32_t cuda_runtime_version; /* 13000 = 13.0; 0: none loaded */
	int32_t cuda_driver_version;  /* 0: no driver */
	char backend[16];	/* cuda | host-locked | host | fake (tests only) */
	char reason[256];	/* why it is that one */
	char cudart[256];	/* path or name of the loaded library, or "" */
	char hints[256];	/* "on: FILE", or "off: why" */
};
#define HINTFS_STATS_INIT { .struct_size = (uint32_t)sizeof(struct hintfs_stats) }

/* hintfs_batch_copy_to_device flags */
#define HINTFS_COPY_META 0x1u /* copy [meta, payload + payload_bytes) instead of the payload alone */
#define HINTFS_COPY_SYNC 0x2u /* return when the bytes have arrived */

/*
 * Read the order, make the ring, start the workers. The first batches fill while open returns.
 * -EINVAL option or order (the text names line and column); -ENOENT/-ENOTDIR mount or order file; -EMSGSIZE a
 * written batch does not fit (the text names the bytes needed); -ENOMEM; -ENODEV with HINTFS_OPEN_REQUIRE_CUDA.
 * *ret_loader is written on success only; the caller owns it and must close it.
 */
HINTFS_API int hintfs_loader_open(const struct hintfs_opts *opts, struct hintfs_loader **ret_loader) HINTFS_MUST_CHECK;

/*
 * The next batch in order; each goes to exactly one caller. timeout_ms < 0: wait for ever; 0: do not wait.
 * 0: *ret_batch is set. 1: the epoch is over (every later call says so until set_epoch). -ETIMEDOUT. -ECANCELED after
 * cancel. -EMSGSIZE sample or batch larger than a slot. -EDEADLK: all slots are lost or this wait could never end.
 * Any other errno: a sample failed (HINTFS_ON_ERROR_FAIL), or -ENOMEM.
 */
HINTFS_API int hintfs_loader_next_batch(struct hintfs_loader *l, int timeout_ms,
					struct hintfs_batch **ret_batch) HINTFS_MUST_CHECK;

/*
 * Queue the copy of a batch to device memory of at least the bytes copied, on a CUDA stream of the loader's device
 * (NULL: CUDA's default stream). The calling thread's current device is left as it was.
 * 0; -ENOSPC cap_bytes is too small; -ENODEV CUDA is not in use or failed (the batch stays valid in host memory, the
 * loader goes on without copies, stats say why); -EINVAL.
 */
HINTFS_API int hintfs_batch_copy_to_device(struct hintfs_batch *b, void *dst, uint64_t cap_bytes, void *stream,
					   unsigned flags) HINTFS_MUST_CHECK;

/*
 * Give a batch back; b is invalid from then on. Its slot is refilled once the device has done the copies queued by
 * copy_to_device and, when stream is not NULL, all work queued on that stream by now (for the caller's own copies or
 * kernels that read the ring). -ENODEV: that could not be recorded; the slot is then never used again (lost_slots).
 */
HINTFS_API int hintfs_batch_release(struct hintfs_batch *b, void *stream);

/*
 * Begin an epoch at its first batch, whatever state the last one is in (also after an error or cancel). An order with
 * several @epoch lists takes the one with that label (-ENOENT: none has it); any other order is used for every epoch.
 * Batches still held by callers stay valid until released.
 */
HINTFS_API int hintfs_loader_set_epoch(struct hintfs_loader *l, uint64_t epoch) HINTFS_MUST_CHECK;

/* How many lists (@epoch, times @repeat) the order has, and the label of list i. -ERANGE. */
HINTFS_API int hintfs_loader_epochs(struct hintfs_loader *l, uint64_t *ret_n);
HINTFS_API int hintfs_loader_epoch_label(struct hintfs_loader *l, uint64_t i, uint64_t *ret_label);

/*
 * What the current epoch holds: entries, and bytes as far as known (*ret_known = 1 when every length is written in
 * the order; otherwise a lower bound). Any pointer may be NULL.
 */
HINTFS_API int hintfs_loader_extent(struct hintfs_loader *l, uint64_t *ret_samples, uint64_t *ret_bytes, int *ret_known);

/* Path, relative to the mount, of a sample. *ret_path is valid until close. -ERANGE. */
HINTFS_API int hintfs_loader_sample_path(struct hintfs_loader *l, uint64_t sample_id, const char **ret_path);

/* Fill *s (struct_size set by the caller). Counters run from open on, over all epochs. */
HINTFS_API int hintfs_loader_stats(struct hintfs_loader *l, struct hintfs_stats *s);

/* Stop reading ahead and wake every waiting caller with -ECANCELED. Returns at once. */
HINTFS_API int hintfs_loader_cancel(struct hintfs_loader *l);

/*
 * Stop the workers (a read in progress is waited for), wait for device work on released slots, unlock, unmap, free.
 * Batches still held become invalid. NULL is fine. -ETIMEDOUT: device work did not end; -ENODEV: CUDA refused to
 * unregister. In both cases the ring's memory is left mapped on purpose and everything else is freed.
 */
HINTFS_API int hintfs_loader_close(struct hintfs_loader *l);

/* This thread's last failure in words; "" when there was none. Valid until the thread's next hintfs call. */
HINTFS_API const char *hintfs_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
