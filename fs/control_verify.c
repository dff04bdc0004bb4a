/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/control_verify.c - the control file `verify`: start or stop a scrub of the disk tier, and say how far it is.
 *
 * Caller: control.c; hintctl verify writes and reads it.
 */
#include "fs/control_i.h"

#include "cache/tier.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

void control_print_verify(struct control *c, FILE *out)
{
	struct tier *t = engine_tier(c->h->engine);
	struct tier_scrub_state s = {0};

	if (t)
		tier_scrub_get(t, &s);
	fprintf(out, "state %s\n",
		!t		     ? "none"
		: s.is_running	     ? "running"
		: s.n_begun == 0     ? "idle"
		: s.err == -ECANCELED ? "stopped"
		: s.err < 0	     ? "failed"
				     : "done");
	fprintf(out,
		"runs %" PRIu64 "\ndone_bytes %" PRIu64 "\ntotal_bytes %" PRIu64 "\ndone_chunks %" PRIu64 "\nbad_chunks %" PRIu64 "\n",
		s.n_begun, s.now.done_bytes, s.now.total_bytes, s.now.done_chunks, s.now.bad_chunks);
}

/* 0; -EALREADY: is running; -EIO: the tier is off; -ENODEV: there is none; -EINVAL: another word. */
static int obey(struct tier *t, const char *word, size_t n)
{
	if (n == 5 && memcmp(word, "start", 5) == 0)
		return t ? tier_scrub_begin(t) : -ENODEV;
	if (n == 4 && memcmp(word, "stop", 4) == 0) {
		if (t)
			tier_scrub_end(t);
		return t ? 0 : -ENODEV;
	}
	return -EINVAL;
}

ssize_t control_write_verify(struct control_file *f, const char *data, size_t len, pid_t tid)
{
	size_t n = control_word_len(data, len);
	int err = obey(engine_tier(f->c->h->engine), data, n);

	if (err == 0)
		return (ssize_t)len;
	return control_word_refused(&f->c->errors, tid, "verify", data, n, err,
				    err == -ENODEV     ? "there is no disk tier: mount with cache-dir="
				    : err == -EALREADY ? "it is running already"
				    : err == -EINVAL   ? "expected start or stop"
						       : "the disk tier cannot be read now");
}
