/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache/base/log.c - see log.h.
 */
#include "cache/base/log.h"
#include "cache/base/err.h"
#include "cache/base/sync.h"
#include "cache/base/time.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <syslog.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1200
#define LINES_PER_S 10

static struct {
	struct hfs_mutex lock;
	pthread_once_t once;
	enum hfs_log_level max; /* atomic by __atomic_* */
	/* guarded by lock */
	int fd;
	bool is_syslog;
	uint32_t n_lost; /* lines that the destination had no room for, since the last one that it took */
} logger = {.once = PTHREAD_ONCE_INIT, .max = HFS_LOG_INFO, .fd = STDERR_FILENO};

static void init_once(void)
{
	hfs_mutex_init(&logger.lock, HFS_RANK_LOG);
}

static void set_dest(int fd, bool is_syslog)
{
	int old;

	pthread_once(&logger.once, init_once);
	hfs_mutex_lock(&logger.lock);
	old = logger.fd;
	logger.fd = fd;
	logger.is_syslog = is_syslog;
	hfs_mutex_unlock(&logger.lock);
	if (old != STDERR_FILENO && old >= 0)
		(void)close(old);
}

/* A FIFO that nobody reads yet is no reason to wait, nor to fail: with a reader's side of our own it holds the first lines. */
int hfs_log_open_file(const char *path)
{
	const int flags = O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	int fd = open(path, O_WRONLY | flags, 0640);

	if (fd < 0 && errno == ENXIO)
		fd = open(path, O_RDWR | flags, 0640);
	return fd < 0 ? -errno : fd;
}

int hfs_log_open(const char *dest, enum hfs_log_level max)
{
	int fd = STDERR_FILENO;
	bool is_syslog = strcmp(dest, "syslog") == 0;

	if (is_syslog) {
		openlog("hintfs", LOG_PID, LOG_DAEMON);
	} else if (strcmp(dest, "stderr") != 0) {
		fd = hfs_log_open_file(dest);
		if (fd < 0)
			return fd;
	}
	__atomic_store_n(&logger.max, max, __ATOMIC_RELAXED);
	set_dest(fd, is_syslog);
	return 0;
}

void hfs_log_close(void)
{
	set_dest(STDERR_FILENO, false);
}

/* Length of the well-formed UTF-8 sequence at s, 0: none. Overlong forms and surrogates are refused. */
static size_t utf8_len(const unsigned char *s, size_t n)
{
	size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;

	if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	if (s[0] == 0xc2 && s[1] < 0xa0) /* C1 control characters */
		return 0;
	return len;
}

char *hfs_log_escape(char *buf, size_t cap, const char *src, size_t len)
{
	const unsigned char *s = (const unsigned char *)src;
	size_t out = 0;

	for (size_t i = 0; i < len && out + 5 <= cap;) {
		size_t n = s[i] >= 0x20 && s[i] < 0x7f ? 1 : utf8_len(s + i, len - i);

		if (n == 0) {
			out += (size_t)snprintf(buf + out, cap - out, "\\x%02x", s[i]);
			i++;
			continue;
		}
		memcpy(buf + out, s + i, n);
		out += n;
		i += n;
	}
	if (cap > 0)
		buf[out] = '\0';
	return buf;
}

void hfs_say(FILE *to, const char *fmt, ...)
{
	char raw_few[512], text_few[4 * sizeof(raw_few) + 1], *raw = raw_few, *text = text_few;
	char *raw_all = NULL, *text_all = NULL;
	size_t len, ends = 0;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(raw_few, sizeof(raw_few), fmt, args);
	va_end(args);
	if (n < 0)
		return;
	len = (size_t)n;
	if (len >= sizeof(raw_few)) {
		raw_all = malloc(len + 1);
		text_all = malloc(4 * len + 1);
		if (raw_all && text_all) {
			va_start(args, fmt);
			(void)vsnprintf(raw_all, len + 1, fmt, args);
			va_end(args);
			raw = raw_all;
			text = text_all;
		} else { /* its beginning is better than nothing */
			len = sizeof(raw_few) - 1;
			raw_few[len - 1] = '\n';
		}
	}
	while (ends < len && raw[len - 1 - ends] == '\n')
		ends++;
	fprintf(to, "%s%s", hfs_log_escape(text, 4 * len + 1, raw, len - ends), raw + len - ends);
	free(text_all);
	free(raw_all);
}

static int syslog_level(enum hfs_log_level level)
{
	static const int levels[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};

	return levels[level];
}

/* A pipe with room for something takes a whole PIPE_BUF, so what was lost is said in the same call. REQUIRES lock. */
static void put_locked(const char *line, int len)
{
	struct pollfd p = {.fd = logger.fd, .events = POLLOUT};
	char both[LINE_MAX_BYTES + 128];
	int n = 0;

	if (poll(&p, 1, 0) == 0) {
		logger.n_lost++;
		return;
	}
	if (logger.n_lost > 0)
		n = snprintf(both, 64, "hintfs: warning: %u lines of this log were lost\n", logger.n_lost);
	memcpy(both + n, line, (size_t)len);
	logger.n_lost = 0;
	(void)!write(logger.fd, both, (size_t)(n + len)); /* a log that cannot be written has nobody to tell */
}

static void write_line(enum hfs_log_level level, const char *text)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};
	char line[LINE_MAX_BYTES + 64];
	int len = snprintf(line, sizeof(line), "hintfs: %s: %s\n", names[level], text);

	pthread_once(&logger.once, init_once);
	hfs_mutex_lock(&logger.lock);
	if (logger.is_syslog)
		syslog(syslog_level(level), "%s", text);
	else if (len > 0)
		put_locked(line, len);
	hfs_mutex_unlock(&logger.lock);
}

static void __attribute__((format(printf, 3, 0)))
vlog(enum hfs_log_level level, uint32_t suppressed, const char *fmt, va_list ap)
{
	char raw[LINE_MAX_BYTES / 2], text[LINE_MAX_BYTES];
	int len = vsnprintf(raw, sizeof(raw), fmt, ap);

	if (len < 0)
		return;
	if ((size_t)len >= sizeof(raw))
		len = (int)sizeof(raw) - 1;
	if (suppressed != 0 && (size_t)len + 40 < sizeof(raw))
		len += snprintf(raw + len, sizeof(raw) - (size_t)len, " (%u like it suppressed)", suppressed);
	write_line(level, hfs_log_escape(text, sizeof(text), raw, (size_t)len));
}

static bool is_wanted(enum hfs_log_level level)
{
	return level <= __atomic_load_n(&logger.max, __ATOMIC_RELAXED);
}

void hfs_log(enum hfs_log_level level, const char *fmt, ...)
{
	va_list ap;

	if (!is_wanted(level))
		return;
	va_start(ap, fmt);
	vlog(level, 0, fmt, ap);
	va_end(ap);
}

/* True: this line may go; *ret_suppressed lines before it were kept back. */
static bool limit_take(struct hfs_log_limit *l, uint32_t *ret_suppressed)
{
	uint64_t second = hfs_now_ns() / HFS_NS_PER_S + 1; /* 0 means never */
	bool may = false;

	pthread_once(&logger.once, init_once);
	hfs_mutex_lock(&logger.lock);
	if (l->second != second) {
		l->second = second;
		l->n = 0;
	}
	if (l->n < LINES_PER_S) {
		l->n++;
		may = true;
		*ret_suppressed = l->suppressed;
		l->suppressed = 0;
	} else {
		l->suppressed++;
	}
	hfs_mutex_unlock(&logger.lock);
	return may;
}

void hfs_log_limited_at(struct hfs_log_limit *l, enum hfs_log_level level, const char *fmt, ...)
{
	uint32_t suppressed = 0;
	va_list ap;

	if (!is_wanted(level) || !limit_take(l, &suppressed))
		return;
	va_start(ap, fmt);
	vlog(level, suppressed, fmt, ap);
	va_end(ap);
}
