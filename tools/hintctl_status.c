/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_status.c - list and status. The keys are the daemon's; JSON has the same, flat, and the streams as an
 * array.
 */
#include "tools/hintctl_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define READ_MS 5000u
#define SHOWN_MAX_BYTES (4 * PATH_MAX + 8) /* a name, escaped */

/* ---- reading -------------------------------------------------------------------------------------------- */

int status_read(const struct mount_row *m, unsigned timeout_ms, struct status *ret)
{
	struct status s = {0};
	char *path = ctl_path(m, "status"), *save, *line;
	int err = -ENOMEM;

	s.text = path ? bounded_read(path, timeout_ms, &err) : NULL;
	free(path);
	if (!s.text)
		return err < 0 ? err : -EIO;
	for (line = strtok_r(s.text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		struct pair *pairs = reallocarray(s.pairs, s.n + 1, sizeof(*pairs));
		char *blank = strchr(line, ' ');

		if (!pairs) {
			free(s.pairs);
			free(s.text);
			return -ENOMEM;
		}
		s.pairs = pairs;
		if (!blank)
			continue;
		*blank = '\0';
		s.pairs[s.n++] = (struct pair){line, blank + 1};
	}
	*ret = s;
	return 0;
}

void status_finish(struct status *s)
{
	free(s->pairs);
	free(s->text);
}

const char *status_text(const struct status *s, const char *key)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->pairs[i].key, key) == 0)
			return s->pairs[i].value;
	return "0";
}

double status_number(const struct status *s, const char *key)
{
	return strtod(status_text(s, key), NULL);
}

const char *status_explain(int err)
{
	switch (err) {
	case -ENOTCONN:
	case -ECONNABORTED:
		return "the daemon is gone; mounting again clears it, or umount";
	case -ETIMEDOUT:
		return "no answer: the daemon hangs or is stopped; its log may tell";
	case -EACCES:
	case -EPERM:
		return "not allowed: the control files belong to the one who mounted (options uid=, gid=, ctl-mode=)";
	case -ENOENT:
		return "no control files there: in a container bind their directory too, or set HINTFS_CTL";
	default:
		return strerror(-err);
	}
}

/* ---- list ------------------------------------------------------------------------------------------------- */

/* A name as a terminal may show it; buf: SHOWN_MAX_BYTES. */
static char *printable(char *buf, const char *name)
{
	return hfs_log_escape(buf, SHOWN_MAX_BYTES, name, strlen(name));
}

int verb_list(const struct mounts *m)
{
	char shown[SHOWN_MAX_BYTES], source[SHOWN_MAX_BYTES];
	int width = 10;

	for (size_t i = 0; i < m->n; i++)
		if ((int)strlen(printable(shown, m->rows[i].mountpoint)) > width)
			width = (int)strlen(shown);
	if (m->n > 0)
		printf("%-*s  %-12s  %s\n", width, "MOUNTPOINT", "STATE", "SOURCE");
	for (size_t i = 0; i < m->n; i++) {
		struct status s = {0};
		char state[64];
		int err = status_read(&m->rows[i], 2000, &s);

		if (err == 0)
			snprintf(state, sizeof(state), "up %.0f s", status_number(&s, "uptime_s"));
		else
			snprintf(state, sizeof(state), "%s",
				 err == -ENOTCONN || err == -ECONNABORTED ? "dead"
				 : err == -ETIMEDOUT			  ? "no answer"
				 : err == -EACCES			  ? "not yours"
									  : "no control");
		printf("%-*s  %-12s  %s\n", width, printable(shown, m->rows[i].mountpoint), state, printable(source, m->rows[i].source));
		if (err == 0)
			status_finish(&s);
	}
	return EXIT_SUCCESS;
}

/* ---- JSON --------------------------------------------------------------------------------------------------- */

/* Bytes that are not UTF-8 become \udcXX, as Python's surrogateescape has them; octal of the daemon is undone. */
static size_t utf8_len(const unsigned char *s)
{
	size_t n = *s < 0x80		     ? 1
		   : *s >= 0xc2 && *s < 0xe0 ? 2
		   : *s >= 0xe0 && *s < 0xf0 ? 3
		   : *s >= 0xf0 && *s < 0xf5 ? 4
					     : 0;

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0)))
		return 0;
	if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90)))
		return 0;
	return n;
}

static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = '\0';
}

static void print_json_string(const char *text)
{
	char *copy = strdup(text);
	const unsigned char *s = (const unsigned char *)copy;

	if (!copy)
		return;
	unescape(copy);
	putchar('"');
	while (*s) {
		size_t n = utf8_len(s);

		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f)
			printf("\\u%04x", *s);
		else if (n == 0)
			printf("\\udc%02x", *s);
		else
			fwrite(s, 1, n, stdout);
		s += n ? n : 1;
	}
	putchar('"');
	free(copy);
}

static bool is_number(const char *s)
{
	size_t digits = *s == '-' ? 1 : 0, n = strspn(s + digits, "0123456789");

	if (n == 0)
		return false;
	s += digits + n;
	if (*s == '.') {
		n = strspn(s + 1, "0123456789");
		if (n == 0)
			return false;
		s += 1 + n;
	}
	return *s == '\0';
}

static void print_json_value(const char *value)
{
	if (is_number(value))
		fputs(value, stdout);
	else
		print_json_string(value);
}

/* "stream.NAME.key": the parts, or false. NAME holds no dot (the daemon writes \056). */
static bool split_key(const char *key, const char **ret_name, size_t *ret_len, const char **ret_key)
{
	const char *dot;

	if (strncmp(key, "stream.", 7) != 0)
		return false;
	dot = strchr(key + 7, '.');
	if (!dot)
		return false;
	*ret_name = key + 7;
	*ret_len = (size_t)(dot - key) - 7;
	*ret_key = dot + 1;
	return true;
}

static void print_json_streams(const struct status *s)
{
	const char *last = NULL, *name, *key;
	size_t last_len = 0, len;

	fputs(", \"stream\": [", stdout);
	for (size_t i = 0; i < s->n; i++) {
		if (!split_key(s->pairs[i].key, &name, &len, &key))
			continue;
		if (!last || last_len != len || memcmp(last, name, len) != 0) {
			char *copy = strndup(name, len);

			fputs(last ? "}, {\"name\": " : "{\"name\": ", stdout);
			print_json_string(copy ? copy : "");
			free(copy);
			last = name;
			last_len = len;
		}
		printf(", \"%s\": ", key);
		print_json_value(s->pairs[i].value);
	}
	fputs(last ? "}]" : "]", stdout);
}

static void print_json(const struct status *s)
{
	const char *name, *key, *comma = "";
	size_t len;

	putchar('{');
	for (size_t i = 0; i < s->n; i++) {
		if (split_key(s->pairs[i].key, &name, &len, &key))
			continue;
		fputs(comma, stdout);
		print_json_string(s->pairs[i].key);
		fputs(": ", stdout);
		if (strcmp(s->pairs[i].key, "version") == 0 || strcmp(s->pairs[i].key, "source") == 0 ||
		    strcmp(s->pairs[i].key, "mountpoint") == 0)
			print_json_string(s->pairs[i].value);
		else
			print_json_value(s->pairs[i].value);
		comma = ", ";
	}
	print_json_streams(s);
	puts("}");
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void print_origin(const struct status *s)
{
	char a[32], b[32], c[32], d[32];

	printf("  origin     %s in %s reads, %s errors; %s/s, latency %.2f ms\n",
	       format_bytes(a, status_number(s, "origin_bytes")), format_count(b, (uint64_t)status_number(s, "origin_reads")),
	       format_count(c, (uint64_t)status_number(s, "origin_errors")),
	       format_bytes(d, status_number(s, "origin_bytes_per_s")), status_number(s, "origin_latency_s") * 1e3);
	if (status_number(s, "oldest_fetch_s") > 1)
		printf("             a read has been waiting for the origin for %.0f s\n",
		       status_number(s, "oldest_fetch_s"));
	printf("  readers    needed %s, %s misses, stalled %.2f s\n", format_bytes(a, status_number(s, "needed_bytes")),
	       format_count(b, (uint64_t)status_number(s, "demand_misses")), status_number(s, "stall_s"));
	printf("  prefetch   %s; useful %s, late %s, wasted %s\n", status_text(s, "prefetch"),
	       format_bytes(a, status_number(s, "prefetch_useful_bytes")),
	       format_bytes(b, status_number(s, "prefetch_late_bytes")),
	       format_bytes(c, status_number(s, "prefetch_wasted_bytes")));
}

static void print_tier(const struct status *s)
{
	static const char *const causes[] = {"io_error", "no_space", "quota", "read_only", "hang", "gone"};
	const char *cause = status_text(s, "tier_cause");
	char a[32], b[32], c[32], key[64];

	printf("  came from  memory %.1f %%, disk tier %.1f %%, origin %.1f %% (what the kernel's page cache answers is not seen)\n",
	       100 * status_number(s, "share_slots"), 100 * status_number(s, "share_disk"), 100 * status_number(s, "share_origin"));
	if (status_number(s, "tier_size_bytes") == 0) {
		printf("  disk tier  none\n");
		return;
	}
	printf("  disk tier  %s%s%s; %s of %s, %s inodes; %s served, %s bad\n", status_text(s, "tier_state"),
	       strcmp(cause, "none") == 0 ? "" : " because of ", strcmp(cause, "none") == 0 ? "" : cause,
	       format_bytes(a, status_number(s, "tier_bytes")), format_bytes(b, status_number(s, "tier_size_bytes")), status_text(s, "tier_inodes"),
	       format_bytes(c, status_number(s, "tier_hit_bytes")), status_text(s, "tier_bad"));
	if (status_number(s, "tier_skipped_full") > 0)
		printf("             %s times no room for more: cache-size=, or %s left above what cache-free= keeps free\n",
		       format_count(a, (uint64_t)status_number(s, "tier_skipped_full")), format_bytes(b, status_number(s, "tier_room_bytes")));
	if (status_number(s, "tier_bypass") == 0)
		return;
	printf("             passed by %s times:", format_count(a, (uint64_t)status_number(s, "tier_bypass")));
	for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
		snprintf(key, sizeof(key), "tier_bypass_%s", causes[i]);
		if (status_number(s, key) > 0)
			printf(" %s %s", causes[i], format_count(a, (uint64_t)status_number(s, key)));
	}
	printf("\n");
}

static void print_memory(const struct status *s)
{
	char a[32], b[32], c[32], d[32], e[32];

	printf("  memory     %s of %s slots of %s used, %s pinned; %s in flight; process %s (all slots are\n"
	       "             taken from the system at the start)\n",
	       format_count(a, (uint64_t)status_number(s, "slots_used")),
	       format_count(b, (uint64_t)status_number(s, "slots_total")), format_bytes(c, status_number(s, "chunk_bytes")),
	       status_text(s, "slots_pinned"), format_bytes(d, status_number(s, "inflight_bytes")),
	       format_bytes(e, status_number(s, "rss_bytes")));
	print_tier(s);
	printf("  trouble    %s stale, %s late metadata\n", status_text(s, "stale"), status_text(s, "late_metadata"));
	printf("  order      %s streams, %s entries pending, %s missing; %s lines taken, %s rejected%s\n",
	       status_text(s, "streams"), format_count(a, (uint64_t)status_number(s, "pending_entries")),
	       format_count(b, (uint64_t)status_number(s, "missing_entries")),
	       format_count(c, (uint64_t)status_number(s, "control_lines")),
	       format_count(d, (uint64_t)status_number(s, "control_rejected")),
	       status_number(s, "control_rejected") > 0 ? " (why: .ctl/errors)" : "");
	if (status_number(s, "bound_s") > 0)
		printf("  to come    at least %.1f s for what the orders name\n", status_number(s, "bound_s"));
	if (status_number(s, "bound_bytes") > 0)
		printf("  so far     %.2f x the least bytes from the origin (%s), %.2f x the least time (%.1f s)\n", status_number(s, "bound_ratio"),
		       format_bytes(a, status_number(s, "bound_bytes")), status_number(s, "time_ratio"), status_number(s, "bound_time_s"));
}

/* The figures of a stream stand together; pair i is its first. */
static const char *stream_text(const struct status *s, size_t i, const char *key)
{
	const char *first, *name, *last;
	size_t first_len, len;

	if (!split_key(s->pairs[i].key, &first, &first_len, &last))
		return "0";
	for (; i < s->n && split_key(s->pairs[i].key, &name, &len, &last); i++) {
		if (len != first_len || memcmp(name, first, len) != 0)
			break;
		if (strcmp(last, key) == 0)
			return s->pairs[i].value;
	}
	return "0";
}

static void print_stream_rows(const struct status *s)
{
	const char *name, *key;
	char shown[1024], stream[4 * 1024 + 8], window[32], tau[32];
	size_t len;
	bool has_head = false;

	for (size_t i = 0; i < s->n; i++) {
		if (!split_key(s->pairs[i].key, &name, &len, &key) || strcmp(key, "entries") != 0)
			continue;
		if (!has_head)
			printf("\n  %-20s %10s %10s %8s %10s %6s %6s %10s %9s %5s\n", "STREAM", "ENTRIES", "PENDING",
			       "MISSING", "AT", "EPOCH", "BATCH", "AHEAD", "EACH", "SURE");
		has_head = true;
		snprintf(shown, sizeof(shown), "%.*s", (int)len, name);
		unescape(shown);
		hfs_log_escape(stream, sizeof(stream), shown, strlen(shown));
		snprintf(tau, sizeof(tau), "%.2f ms", strtod(stream_text(s, i, "tau_s"), NULL) * 1e3);
		printf("  %-20s %10s %10s %8s %10s %6s %6s %10s %9s %4.0f%%%s\n", stream, s->pairs[i].value,
		       stream_text(s, i, "pending"), stream_text(s, i, "missing"),
		       stream_text(s, i, "low"), stream_text(s, i, "epoch"),
		       stream_text(s, i, "batch"),
		       format_bytes(window, strtod(stream_text(s, i, "window_bytes"), NULL)), tau,
		       100 * strtod(stream_text(s, i, "confidence"), NULL),
		       strcmp(stream_text(s, i, "is_speculating"), "0") == 0 ? " (not followed)" : "");
	}
}

int verb_status(const struct mount_row *m, bool is_json)
{
	char shown[SHOWN_MAX_BYTES], source[SHOWN_MAX_BYTES];
	struct status s = {0};
	int err = status_read(m, READ_MS, &s);

	if (err < 0) {
		hfs_say(stderr, "hintctl: %s: %s\n", m->mountpoint, status_explain(err));
		return EXIT_FAILED;
	}
	if (is_json) {
		print_json(&s);
	} else {
		printf("%s on %s: hintfs %s, up %.0f s, %s\n", printable(source, m->source), printable(shown, m->mountpoint),
		       status_text(&s, "version"), status_number(&s, "uptime_s"), status_text(&s, "mode"));
		print_origin(&s);
		print_memory(&s);
		print_stream_rows(&s);
	}
	status_finish(&s);
	return ferror(stdout) || fflush(stdout) != 0 ? EXIT_FAILED : EXIT_SUCCESS;
}
