/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_order.c - order: sends a file to the control file, shows how far it is, and repeats what the daemon
 * says to a bad line.
 */
#include "tools/hintctl_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_NAME_MAX 128u
#define PIECE_BYTES (256u * 1024)

struct transfer {
	uint64_t sent, total; /* total 0: unknown */
	struct bar bar;
};

/* 0, or the negative errno of the write that failed. */
static int send_piece(int out, const char *data, size_t len, struct transfer *t)
{
	while (len > 0) {
		ssize_t n = write(out, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		watch_progress();
		data += n;
		len -= (size_t)n;
		t->sent += (uint64_t)n;
		bar_draw(&t->bar, t->sent, t->total, false);
	}
	return 0;
}

static int send_epochs(const char *text, size_t len, int out, struct transfer *t)
{
	int rc = 0;

	t->total = len;
	for (size_t at = 0, n; at < len && rc == 0; at += n) {
		n = len - at < PIECE_BYTES ? len - at : PIECE_BYTES;
		rc = send_piece(out, text + at, n, t);
	}
	return rc;
}

static int send_all(int in, int out, struct transfer *t, bool *ret_is_input)
{
	char *buf = malloc(PIECE_BYTES);
	int rc = buf ? 0 : -ENOMEM;
	ssize_t n;

	*ret_is_input = false;
	for (; rc == 0; watch_end()) { /* whoever writes the input may take as long as he likes */
		n = read(in, buf, PIECE_BYTES);
		if (n == 0)
			break;
		watch_progress();
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			*ret_is_input = true;
			rc = -errno;
		} else {
			rc = send_piece(out, buf, (size_t)n, t);
		}
	}
	free(buf);
	return rc;
}

/* The newest block of .ctl/errors that names our pid: three lines, the first not indented. */
static bool print_reason(const struct mount_row *m)
{
	char *path = ctl_path(m, "errors"), tag[32], *text, *at, *found = NULL;
	int err;

	text = path ? bounded_read(path, 5000, &err) : NULL;
	free(path);
	if (!text)
		return false;
	snprintf(tag, sizeof(tag), " pid %d ", (int)getpid());
	for (at = text; (at = strstr(at, tag)) != NULL; at++)
		found = at;
	while (found && found > text && found[-1] != '\n')
		found--;
	if (found) {
		char *end = strchr(found, '\n');

		while (end && strncmp(end + 1, "    ", 4) == 0)
			end = strchr(end + 1, '\n');
		fwrite(found, 1, end ? (size_t)(end - found) + 1 : strlen(found), stderr);
	}
	free(text);
	return found != NULL;
}

static int open_order(const struct mount_row *m, const char *stream, bool is_append, char **ret_path)
{
	char *name = NULL, *path;
	int fd;

	if (stream && asprintf(&name, "streams/%s", stream) < 0)
		return -ENOMEM;
	path = ctl_path(m, name ? name : "order");
	free(name);
	if (!path)
		return -ENOMEM;
	fd = open(path, O_WRONLY | O_CLOEXEC | (stream ? O_CREAT : 0) | (is_append ? O_APPEND : O_TRUNC), 0600);
	*ret_path = path;
	return fd < 0 ? -errno : fd;
}

static int finish(const struct mount_row *m, int out, int rc, bool is_input, const char *file, const char *path,
		  struct transfer *t)
{
	char sent[32];

	watch_progress();
	if (close(out) < 0 && rc == 0)
		rc = -errno;
	watch_end();
	bar_draw(&t->bar, t->sent, t->total, true);
	if (rc == 0) {
		if (t->bar.is_tty)
			fprintf(stderr, "%s taken in %.2f s\n", format_bytes(sent, (double)t->sent), bar_elapsed_s(&t->bar));
		return EXIT_SUCCESS;
	}
	if (is_input) {
		hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(-rc));
		return EXIT_FAILED;
	}
	hfs_say(stderr, "hintctl: %s: %s; the lines before the bad one were taken\n", path, strerror(-rc));
	if (!print_reason(m))
		hfs_say(stderr, "hintctl: see %s/.ctl/errors\n", m->mountpoint);
	return EXIT_FAILED;
}

static int send(int in, int out, const char *text, size_t len, struct transfer *t, bool *ret_is_input)
{
	*ret_is_input = false;
	return text ? send_epochs(text, len, out, t) : send_all(in, out, t, ret_is_input);
}

static const char *cure_of(int err)
{
	switch (err) {
	case -ENOENT:
		return "; in a container bind the control directory too, or set HINTFS_CTL";
	case -ENOSPC:
		return "; there are as many streams as there may be: rm those in .ctl/streams that are done with";
	case -EACCES:
		return "; the control files belong to the one who mounted (options uid=, gid=, ctl-mode=)";
	default:
		return "";
	}
}

static bool is_stream_name(const char *name)
{
	size_t len = strlen(name);

	if (len > 0 && len <= STREAM_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
		return true;
	hfs_say(stderr, "hintctl order: --stream \"%s\": a name has 1 to %u bytes and no slash\n", name, STREAM_NAME_MAX);
	return false;
}

int verb_order(const struct mount_row *m, const char *file, const char *stream, bool is_append, uint64_t epochs)
{
	bool is_stdin = strcmp(file, "-") == 0, is_input;
	struct transfer t = {0};
	int in, out, rc;
	char *path = NULL, *text = NULL;
	size_t len = 0;
	struct stat st;

	if (stream && !is_stream_name(stream))
		return EXIT_USAGE;
	in = is_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
	if (in < 0) {
		hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(errno));
		return EXIT_FAILED;
	}
	rc = epochs ? epochs_make(in, file, epochs, &text, &len) : 0;
	if (rc < 0) { /* before the list is touched */
		if (rc != -EINVAL)
			hfs_say(stderr, "hintctl: %s: %s\n", file, strerror(-rc));
		rc = EXIT_FAILED;
		goto out;
	}
	if (fstat(in, &st) == 0 && S_ISREG(st.st_mode))
		t.total = (uint64_t)st.st_size;
	bar_begin(&t.bar, 0, false);
	if (!daemon_answers(m)) {
		rc = EXIT_FAILED;
		goto out;
	}
	watch_begin(m, "its daemon does not take the order");
	out = open_order(m, stream, is_append, &path);
	if (out < 0) {
		hfs_say(stderr, "hintctl: %s: %s%s\n", path ? path : "order", strerror(-out), cure_of(out));
		rc = EXIT_FAILED;
	} else {
		rc = send(in, out, text, len, &t, &is_input);
		rc = finish(m, out, rc, is_input, file, path, &t);
	}
	watch_end();
out:
	free(path);
	free(text);
	if (!is_stdin)
		close(in);
	return rc;
}
