/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched/brace.c - expansion of patterns; rules and invariants in brace.h.
 *
 * A pattern becomes a flat array of nodes:
 *   SEQ  children one after another        count = product
 *   ALT  one of its children               count = sum (each child is a SEQ)
 *   RUN  a number or letter sequence       count = its length
 *   LIT  bytes of the pattern              count = 1
 * and result no. i is read off by dividing: no state between results.
 */
#include "sched/brace.h"

#include "cache/base/arith.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum node_kind { NODE_SEQ, NODE_ALT, NODE_RUN, NODE_LIT };

struct node {
	enum node_kind kind;
	uint32_t next;	/* next child of the same parent, 0: none (node 0 is never a child) */
	uint32_t child; /* first child; 0: none */
	uint64_t count;
	uint64_t before;     /* child of an ALT: results of the children before it */
	uint64_t bytes;	     /* longest result */
	uint32_t off, len;   /* LIT: bytes of the pattern. ALT: its children in b->kids */
	int64_t first, step; /* RUN */
	unsigned width;	     /* RUN: zero padded to this, sign included; 0: not padded */
	bool is_letter;	     /* RUN */
};

struct brace {
	char *text;	    /* owned */
	struct node *nodes; /* owned */
	uint32_t *match;    /* owned while parsing: for '{' the index of its '}', 0: none */
	uint32_t *kids;	    /* owned: children of the ALT nodes, for a search by index */
	uint32_t n, cap, n_kids, cap_kids;
};

/* Longer than any range expression that parse_run() takes; keeps a pattern of nested braces linear. */
#define RUN_TEXT_MAX 64u

static int node_new(struct brace *b, enum node_kind kind, uint32_t *ret)
{
	if (b->n == b->cap) {
		uint32_t cap = b->cap ? b->cap * 2 : 64;
		struct node *nodes = reallocarray(b->nodes, cap, sizeof(*nodes));

		if (!nodes)
			return -ENOMEM;
		b->nodes = nodes;
		b->cap = cap;
	}
	b->nodes[b->n] = (struct node){.kind = kind, .count = kind == NODE_ALT ? 0 : 1};
	*ret = b->n++;
	return 0;
}

/* Pair the braces in one pass; a '}' closes the nearest open '{', as in bash. */
static int match_braces(struct brace *b, uint32_t len)
{
	uint32_t *open = calloc(len + 1, sizeof(*open));
	uint32_t depth = 0;

	if (!open)
		return -ENOMEM;
	for (uint32_t i = 0; i < len; i++) {
		if (b->text[i] == '{')
			open[depth++] = i;
		else if (b->text[i] == '}' && depth > 0)
			b->match[open[--depth]] = i;
	}
	free(open);
	return 0;
}

/* An optional sign and digits; what 64 bits cannot hold is no number, as in bash. */
static bool run_number(const char *s, uint32_t len, int64_t *ret)
{
	uint32_t i = len > 0 && (s[0] == '-' || s[0] == '+');
	int64_t value = 0;

	if (i == len)
		return false;
	for (; i < len; i++) {
		if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, s[i] - '0', &value))
			return false;
	}
	*ret = s[0] == '-' ? -value : value;
	return true;
}

static bool is_letter(const char *s, uint32_t len)
{
	return len == 1 && ((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z'));
}

static bool is_padded(const char *s, uint32_t len)
{
	uint32_t sign = len > 0 && (s[0] == '-' || s[0] == '+');

	return len > sign + 1 && s[sign] == '0';
}

static const char *find_dots(const char *s, uint32_t len)
{
	for (uint32_t i = 0; i + 1 < len; i++)
		if (s[i] == '.' && s[i + 1] == '.')
			return s + i;
	return NULL;
}

/* `first..last` or `first..last..step` between the braces: fill the node, or say that it is none. */
static bool parse_run(const char *s, uint32_t len, struct node *ret)
{
	const char *end = s + len, *dots = len <= RUN_TEXT_MAX ? find_dots(s, len) : NULL;
	int64_t last, step = 1;
	uint64_t span;

	if (!dots)
		return false;
	const char *second = dots + 2, *step_dots = find_dots(second, (uint32_t)(end - second));
	uint32_t first_len = (uint32_t)(dots - s);
	uint32_t last_len = (uint32_t)((step_dots ? step_dots : end) - second);

	if (step_dots && !run_number(step_dots + 2, (uint32_t)(end - step_dots - 2), &step))
		return false;
	if (is_letter(s, first_len) && is_letter(second, last_len)) {
		ret->is_letter = true;
		ret->first = *s;
		last = *second;
	} else if (!run_number(s, first_len, &ret->first) || !run_number(second, last_len, &last)) {
		return false;
	} else if (is_padded(s, first_len) || is_padded(second, last_len)) {
		ret->width = first_len > last_len ? first_len : last_len;
	}
	step = step < 0 ? -step : step == 0 ? 1 : step;
	ret->step = last < ret->first ? -step : step;
	span = last < ret->first ? (uint64_t)ret->first - (uint64_t)last : (uint64_t)last - (uint64_t)ret->first;
	ret->count = hfs_min_u64(span / (uint64_t)step, UINT64_MAX - 1) + 1;
	return true;
}

static int node_add_child(struct brace *b, uint32_t parent, uint32_t *last, uint32_t child)
{
	struct node *p = &b->nodes[parent], *c = &b->nodes[child];
	uint64_t count = c->count;

	if (*last)
		b->nodes[*last].next = child;
	else
		p->child = child;
	*last = child;
	c->before = p->count;
	if (p->kind == NODE_SEQ)
		p->bytes += c->bytes;
	else if (c->bytes > p->bytes)
		p->bytes = c->bytes;
	if (p->kind == NODE_SEQ ? __builtin_mul_overflow(p->count, count, &p->count)
				: __builtin_add_overflow(p->count, count, &p->count))
		return -ENOSPC;
	return p->count > BRACE_RESULTS_MAX ? -ENOSPC : 0;
}

/* List the children of an ALT once it is whole. */
static int list_kids(struct brace *b, uint32_t alt)
{
	b->nodes[alt].off = b->n_kids;
	for (uint32_t c = b->nodes[alt].child; c; c = b->nodes[c].next) {
		if (b->n_kids == b->cap_kids) {
			uint32_t cap = b->cap_kids ? b->cap_kids * 2 : 64;
			uint32_t *kids = reallocarray(b->kids, cap, sizeof(*kids));

			if (!kids)
				return -ENOMEM;
			b->kids = kids;
			b->cap_kids = cap;
		}
		b->kids[b->n_kids++] = c;
	}
	b->nodes[alt].len = b->n_kids - b->nodes[alt].off;
	return 0;
}

static int parse_seq(struct brace *b, uint32_t from, uint32_t to, unsigned depth, uint32_t *ret);

/* End of the list member that starts at i: the next comma of this level, or `to`. */
static uint32_t member_end(const struct brace *b, uint32_t i, uint32_t to)
{
	for (; i < to && b->text[i] != ','; i++)
		if (b->text[i] == '{' && b->match[i])
			i = b->match[i];
	return i;
}

static int parse_alt(struct brace *b, uint32_t from, uint32_t to, unsigned depth, uint32_t *ret)
{
	uint32_t alt = 0, last = 0, seq = 0;
	int rc = node_new(b, NODE_ALT, &alt);

	for (uint32_t i = from; rc == 0; i++) {
		uint32_t end = member_end(b, i, to);

		rc = parse_seq(b, i, end, depth + 1, &seq);
		if (rc == 0)
			rc = node_add_child(b, alt, &last, seq);
		i = end;
		if (end == to)
			break;
	}
	*ret = alt;
	return rc < 0 ? rc : list_kids(b, alt);
}

/* What the brace at i stands for; *ret 0: an ordinary byte. */
static int parse_brace(struct brace *b, uint32_t i, unsigned depth, uint32_t *ret)
{
	uint32_t end = b->match[i];
	struct node run = {.kind = NODE_RUN};
	int rc;

	*ret = 0;
	if (end <= i + 1) /* unmatched, or "{}" */
		return 0;
	if (member_end(b, i + 1, end) < end)
		return depth >= BRACE_DEPTH_MAX ? -ENOSPC : parse_alt(b, i + 1, end, depth, ret);
	if (!parse_run(b->text + i + 1, end - i - 1, &run))
		return 0;
	rc = node_new(b, NODE_RUN, ret);
	if (rc == 0) {
		run.bytes = end - i - 1;
		b->nodes[*ret] = run;
	}
	return rc;
}

static int add_literal(struct brace *b, uint32_t seq, uint32_t *last, uint32_t from, uint32_t to)
{
	uint32_t lit = 0;
	int rc;

	if (from == to)
		return 0;
	rc = node_new(b, NODE_LIT, &lit);
	if (rc < 0)
		return rc;
	b->nodes[lit].off = from;
	b->nodes[lit].len = to - from;
	b->nodes[lit].bytes = to - from;
	return node_add_child(b, seq, last, lit);
}

static int parse_seq(struct brace *b, uint32_t from, uint32_t to, unsigned depth, uint32_t *ret)
{
	uint32_t seq = 0, last = 0, lit = from, node = 0;
	int rc = node_new(b, NODE_SEQ, &seq);

	for (uint32_t i = from; rc == 0 && i < to; i++) {
		if (b->text[i] != '{')
			continue;
		rc = parse_brace(b, i, depth, &node);
		if (rc < 0 || node == 0)
			continue;
		rc = add_literal(b, seq, &last, lit, i);
		if (rc == 0)
			rc = node_add_child(b, seq, &last, node);
		i = b->match[i];
		lit = i + 1;
	}
	if (rc == 0)
		rc = add_literal(b, seq, &last, lit, to);
	*ret = seq;
	return rc;
}

/* The whole: patterns between "::", empty ones left out. */
static int parse_all(struct brace *b, uint32_t len)
{
	uint32_t root = 0, last = 0, seq = 0;
	int rc = node_new(b, NODE_ALT, &root); /* node 0 */

	for (uint32_t i = 0; rc == 0 && i <= len;) {
		const char *sep = i < len ? memmem(b->text + i, len - i, "::", 2) : NULL;
		uint32_t end = sep ? (uint32_t)(sep - b->text) : len;

		if (end > i) {
			rc = parse_seq(b, i, end, 0, &seq);
			if (rc == 0)
				rc = node_add_child(b, root, &last, seq);
		}
		i = end + 2;
	}
	if (rc == 0)
		rc = list_kids(b, root);
	if (rc == 0 && b->nodes[root].bytes * b->nodes[root].count > BRACE_BYTES_MAX)
		rc = -ENOSPC;
	return rc;
}

/* Braces of one pattern never pair with those of the next one: cut them apart before matching. */
static int match_all(struct brace *b, uint32_t len)
{
	struct brace part = *b;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < len;) {
		const char *sep = memmem(b->text + i, len - i, "::", 2);
		uint32_t end = sep ? (uint32_t)(sep - b->text) : len;

		part.text = b->text + i;
		part.match = b->match + i;
		rc = match_braces(&part, end - i);
		for (uint32_t k = i; k < end; k++)
			b->match[k] += b->match[k] ? i : 0;
		i = end + 2;
	}
	return rc;
}

int brace_create(const char *pattern, size_t len, struct brace **ret_b)
{
	struct brace *b;
	int rc = -ENOMEM;

	if (len > UINT32_MAX / 4)
		return -ENOSPC;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->text = malloc(len + 1);
	b->match = calloc(len + 1, sizeof(*b->match));
	if (!b->text || !b->match)
		goto out;
	memcpy(b->text, pattern, len);
	b->text[len] = '\0';
	rc = match_all(b, (uint32_t)len);
	if (rc == 0)
		rc = parse_all(b, (uint32_t)len);
out:
	free(b->match);
	b->match = NULL;
	if (rc < 0) {
		brace_destroy(b);
		return rc;
	}
	*ret_b = b;
	return 0;
}

void brace_destroy(struct brace *b)
{
	if (!b)
		return;
	free(b->text);
	free(b->match);
	free(b->nodes);
	free(b->kids);
	free(b);
}

uint64_t brace_count(const struct brace *b)
{
	return b->nodes[0].count;
}

struct out {
	char *buf;
	size_t len, cap;
};

static void put_bytes(struct out *o, const char *s, size_t len)
{
	if (o->len < o->cap)
		memcpy(o->buf + o->len, s, len < o->cap - o->len ? len : o->cap - o->len);
	o->len += len;
}

static void put_run(struct out *o, const struct node *n, uint64_t index)
{
	int64_t value = n->first + (int64_t)index * n->step;
	uint64_t rest = value < 0 ? (uint64_t)-value : (uint64_t)value;
	char digits[24], letter = (char)value;
	size_t at = sizeof(digits);

	if (n->is_letter) {
		put_bytes(o, &letter, 1);
		return;
	}
	do
		digits[--at] = (char)('0' + rest % 10);
	while ((rest /= 10) != 0);
	while (sizeof(digits) - at + (value < 0) < n->width && at > 1)
		digits[--at] = '0';
	if (value < 0)
		digits[--at] = '-';
	put_bytes(o, digits + at, sizeof(digits) - at);
}

/* Bounded recursion: parse_brace() refuses more than BRACE_DEPTH_MAX levels. */
static void put_node(const struct brace *b, uint32_t no, uint64_t index, struct out *o)
{
	const struct node *n = &b->nodes[no];
	uint64_t rest = n->count;

	if (n->kind == NODE_LIT) {
		put_bytes(o, b->text + n->off, n->len);
	} else if (n->kind == NODE_RUN) {
		put_run(o, n, index);
	} else if (n->kind == NODE_SEQ) {
		for (uint32_t c = n->child; c; c = b->nodes[c].next) {
			rest /= b->nodes[c].count; /* results of the children to the right */
			put_node(b, c, index / rest % b->nodes[c].count, o);
		}
	} else {
		uint32_t low = n->off, high = n->off + n->len; /* the child is in kids[low .. high) */

		while (high - low > 1) {
			uint32_t mid = low + (high - low) / 2;

			if (b->nodes[b->kids[mid]].before <= index)
				low = mid;
			else
				high = mid;
		}
		put_node(b, b->kids[low], index - b->nodes[b->kids[low]].before, o);
	}
}

size_t brace_result(const struct brace *b, uint64_t index, char *buf, size_t cap)
{
	struct out o = {.buf = buf, .cap = cap};

	put_node(b, 0, index, &o);
	return o.len;
}

bool brace_is_pattern(const char *s, size_t len)
{
	return memchr(s, '{', len) || memmem(s, len, "::", 2);
}
