/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl_epochs.c - order --epochs K: a list with one or more epochs, as record writes it, becomes a list of K.
 *
 * One epoch is sent once, with @repeat K after it. Of several the first K are sent; if there are fewer, the last one
 * comes again until there are K, each with its @epoch.
 */
#include "tools/hintctl_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct part {
	size_t begin, end; /* of the lines between two @epoch marks */
	bool has_entries;
};

struct text {
	char *s; /* owned */
	size_t len, cap;
};

static int text_room(struct text *t, size_t more)
{
	size_t cap = t->cap ? t->cap : 65536;
	char *s;

	while (cap - t->len < more)
		if (__builtin_mul_overflow(cap, 2, &cap))
			return -EFBIG;
	if (cap == t->cap)
		return 0;
	s = realloc(t->s, cap);
	if (!s)
		return -ENOMEM;
	t->s = s;
	t->cap = cap;
	return 0;
}

static int text_add(struct text *t, const char *s, size_t len)
{
	int rc = text_room(t, len);

	if (rc == 0)
		memcpy(t->s + t->len, s, len);
	t->len += rc == 0 ? len : 0;
	return rc;
}

static int text_read(struct text *t, int fd)
{
	ssize_t n;
	int rc;

	do {
		rc = text_room(t, 65536);
		if (rc < 0)
			return rc;
		n = read(fd, t->s + t->len, t->cap - t->len);
		if (n < 0 && errno != EINTR)
			return -errno;
		t->len += n > 0 ? (size_t)n : 0;
	} while (n != 0);
	if (t->len > 0 && t->s[t->len - 1] != '\n')
		return text_add(t, "\n", 1);
	return 0;
}

static bool is_word(const char *line, size_t len, const char *word)
{
	size_t n = strlen(word);

	return len >= n && memcmp(line, word, n) == 0 && (len == n || line[n] == ' ' || line[n] == '\t');
}

static int part_new(struct part **v, size_t *n, size_t *cap, size_t begin)
{
	if (*n == *cap) {
		size_t more = *cap ? *cap * 2 : 16;
		struct part *p = reallocarray(*v, more, sizeof(*p));

		if (!p)
			return -ENOMEM;
		*v = p;
		*cap = more;
	}
	(*v)[(*n)++] = (struct part){.begin = begin, .end = begin};
	return 0;
}

/* The epochs that hold entries. -EINVAL: said why. */
static int cut(const struct text *t, const char *file, struct part **ret_v, size_t *ret_n)
{
	size_t cap = 0, n = 0;
	int rc = part_new(ret_v, &n, &cap, 0);

	for (size_t at = 0, next; rc == 0 && at < t->len; at = next) {
		const char *lf = memchr(t->s + at, '\n', t->len - at);
		size_t len = (size_t)(lf - (t->s + at));
		struct part *p = &(*ret_v)[n - 1];

		next = at + len + 1;
		if (is_word(t->s + at, len, "@repeat")) {
			hfs_say(stderr, "hintctl: %s has a @repeat already: --epochs is for a list without\n", file);
			rc = -EINVAL;
		} else if (!is_word(t->s + at, len, "@epoch")) {
			p->end = next;
			p->has_entries |= len > 0 && t->s[at] != '#' && t->s[at] != '@';
		} else if (p->has_entries) {
			rc = part_new(ret_v, &n, &cap, next);
		} else {
			p->begin = p->end = next; /* nothing but comments before it */
		}
	}
	if (rc == 0 && !(*ret_v)[n - 1].has_entries)
		n--;
	if (rc == 0 && n == 0) {
		hfs_say(stderr, "hintctl: %s names nothing that is read\n", file);
		rc = -EINVAL;
	}
	*ret_n = n;
	return rc;
}

static int join(const struct text *in, const struct part *v, size_t n, uint64_t epochs, struct text *out)
{
	char line[48];
	int rc = 0;

	if (n == 1) {
		rc = text_add(out, in->s + v->begin, v->end - v->begin);
		snprintf(line, sizeof(line), "@repeat %llu\n", (unsigned long long)epochs);
		return rc < 0 || epochs == 1 ? rc : text_add(out, line, strlen(line));
	}
	for (uint64_t k = 0; k < epochs && rc == 0; k++) {
		const struct part *p = &v[k < n ? k : n - 1];

		snprintf(line, sizeof(line), "@epoch %llu\n", (unsigned long long)k);
		rc = text_add(out, line, strlen(line));
		if (rc == 0)
			rc = text_add(out, in->s + p->begin, p->end - p->begin);
	}
	return rc;
}

int epochs_make(int fd, const char *file, uint64_t epochs, char **ret_text, size_t *ret_len)
{
	struct text in = {0}, out = {0};
	struct part *v = NULL;
	size_t n = 0;
	int rc = text_read(&in, fd);

	if (rc == 0)
		rc = cut(&in, file, &v, &n);
	if (rc == 0)
		rc = join(&in, v, n, epochs, &out);
	free(in.s);
	free(v);
	if (rc < 0) {
		free(out.s);
		return rc;
	}
	*ret_text = out.s;
	*ret_len = out.len;
	return 0;
}
