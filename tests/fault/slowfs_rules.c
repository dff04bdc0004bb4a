/* SPDX-License-Identifier: Apache-2.0
 *
 * Fault rules of slowfs and the small parsers that options and control commands
 * share. Called by slowfs_queue.c (delay), slowfs_ops.c (errors, short reads),
 * slowfs.c and slowfs_ctl.c.
 *
 * A rule is considered for each request that its ops, glob and range match; of
 * those the first `skip` are let through, then every `every`-th fires with
 * `probability`, until `remaining` is used up. The first errno that fires wins;
 * short reads take the smallest; delays add up.
 *
 * Lock: rules->lock guards the list and the generator.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void slow_rules_init(struct slow_rules *rs, uint64_t seed)
{
	pthread_mutex_init(&rs->lock, NULL);
	rs->next_id = 1;
	rs->random = seed;
}

void slow_rules_seed(struct slow_rules *rs, uint64_t seed)
{
	pthread_mutex_lock(&rs->lock);
	rs->random = seed;
	pthread_mutex_unlock(&rs->lock);
}

static double random_unit_locked(struct slow_rules *rs)
{
	uint64_t z = rs->random += 0x9e3779b97f4a7c15ull; /* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

bool slow_glob_match(const char *glob, const struct slow_path *p)
{
	return !strcmp(glob, "*") || fnmatch(glob, p->text, 0) == 0;
}

static bool rule_covers(const struct slow_rule *rule, const struct slow_req *r)
{
	if (!(rule->ops & SLOW_MASK(r->op)))
		return false;
	if (r->op == SLOW_READ &&
	    (r->offset >= rule->to || r->offset + r->size <= rule->from))
		return false;
	return slow_glob_match(rule->glob, r->path);
}

static bool rule_fires_locked(struct slow_rules *rs, struct slow_rule *rule)
{
	if (rule->seen++ < rule->skip || rule->remaining == 0)
		return false;
	if ((rule->seen - rule->skip) % rule->every)
		return false;
	if (rule->probability < 1 && random_unit_locked(rs) >= rule->probability)
		return false;
	if (rule->remaining != UINT64_MAX)
		rule->remaining--;
	rule->hits++;
	return true;
}

uint64_t slow_rules_delay_ns(struct slow_rules *rs, const struct slow_req *r)
{
	uint64_t sum = 0;

	if (!atomic_load(&rs->count))
		return 0;
	pthread_mutex_lock(&rs->lock);
	for (struct slow_rule *rule = rs->list; rule; rule = rule->next)
		if (rule->action == SLOW_DO_DELAY && rule_covers(rule, r) &&
		    rule_fires_locked(rs, rule))
			sum += rule->value;
	pthread_mutex_unlock(&rs->lock);
	return sum;
}

int slow_rules_fault(struct slow_rules *rs, const struct slow_req *r,
		     uint64_t *ret_limit)
{
	int err = 0;

	if (!atomic_load(&rs->count))
		return 0;
	pthread_mutex_lock(&rs->lock);
	for (struct slow_rule *rule = rs->list; rule && !err; rule = rule->next) {
		if (rule->action == SLOW_DO_DELAY || !rule_covers(rule, r) ||
		    !rule_fires_locked(rs, rule))
			continue;
		if (rule->action == SLOW_DO_ERRNO)
			err = (int)rule->value;
		else if (rule->value < *ret_limit)
			*ret_limit = rule->value;
	}
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static bool parse_errno(const char *text, uint64_t *ret_err)
{
	if (slow_parse_u64(text, ret_err))
		return *ret_err > 0 && *ret_err < 4096;
	for (int e = 1; e < 256; e++) {
		const char *name = strerrorname_np(e);
		if (name && !strcmp(name, text)) {
			*ret_err = (uint64_t)e;
			return true;
		}
	}
	return false;
}

static bool parse_range(const char *text, struct slow_rule *rule)
{
	char lo[32];
	const char *dash = strchr(text, '-');

	if (!dash || (size_t)(dash - text) >= sizeof(lo))
		return false;
	memcpy(lo, text, (size_t)(dash - text));
	lo[dash - text] = 0;
	if (!slow_parse_size(lo, false, &rule->from))
		return false;
	rule->to = UINT64_MAX;
	return !dash[1] || slow_parse_size(dash + 1, false, &rule->to);
}

static bool parse_probability(const char *text, double *ret_p)
{
	char *end;
	double p = strtod(text, &end);

	if (end == text || *end || !(p >= 0 && p <= 1))
		return false;
	*ret_p = p;
	return true;
}

/* One `key=value` of a rule; *ret_actions counts the actions given. */
static bool rule_word(struct slow_rule *rule, const char *word, int *ret_actions)
{
	const char *value = strchr(word, '=');
	size_t len = value ? (size_t)(value - word) : 0;

	if (!value)
		return false;
	value++;
#define KEY(name) (len == sizeof(name) - 1 && !memcmp(word, name, len))
	if (KEY("op"))
		return slow_parse_ops(value, &rule->ops);
	if (KEY("errno")) {
		rule->action = SLOW_DO_ERRNO;
		++*ret_actions;
		return parse_errno(value, &rule->value);
	}
	if (KEY("short")) {
		rule->action = SLOW_DO_SHORT;
		++*ret_actions;
		return slow_parse_size(value, false, &rule->value);
	}
	if (KEY("delay")) {
		rule->action = SLOW_DO_DELAY;
		++*ret_actions;
		return slow_parse_ns(value, 1000000, &rule->value);
	}
	if (KEY("prob"))
		return parse_probability(value, &rule->probability);
	if (KEY("every"))
		return slow_parse_u64(value, &rule->every) && rule->every > 0;
	if (KEY("skip"))
		return slow_parse_u64(value, &rule->skip);
	if (KEY("count"))
		return slow_parse_u64(value, &rule->remaining);
	if (KEY("range"))
		return parse_range(value, rule);
#undef KEY
	return false;
}

static struct slow_rule *rule_parse(char *const *words, size_t n,
				    const char **ret_error)
{
	const char *glob = "*";
	int actions = 0;

	for (size_t i = 0; i < n; i++)
		if (!strncmp(words[i], "glob=", 5))
			glob = words[i] + 5;
	struct slow_rule *rule = calloc(1, sizeof(*rule) + strlen(glob) + 1);
	if (!rule) {
		*ret_error = "out of memory";
		return NULL;
	}
	strcpy(rule->glob, glob);
	rule->ops = SLOW_MASK(SLOW_READ);
	rule->probability = 1;
	rule->every = 1;
	rule->remaining = rule->to = UINT64_MAX;
	for (size_t i = 0; i < n; i++) {
		if (strncmp(words[i], "glob=", 5) && !rule_word(rule, words[i], &actions)) {
			*ret_error = words[i];
			free(rule);
			return NULL;
		}
	}
	if (actions != 1) {
		*ret_error = "give exactly one of errno= short= delay=";
		free(rule);
		return NULL;
	}
	return rule;
}

unsigned slow_rules_add(struct slow_rules *rs, char *const *words, size_t n,
			const char **ret_error)
{
	struct slow_rule *rule = rule_parse(words, n, ret_error);
	struct slow_rule **at;

	if (!rule)
		return 0;
	pthread_mutex_lock(&rs->lock);
	unsigned id = rule->id = rs->next_id++;
	for (at = &rs->list; *at; at = &(*at)->next)
		;
	*at = rule;
	atomic_fetch_add(&rs->count, 1);
	pthread_mutex_unlock(&rs->lock);
	return id;
}

bool slow_rules_remove(struct slow_rules *rs, unsigned id)
{
	struct slow_rule **at, *gone;

	pthread_mutex_lock(&rs->lock);
	for (at = &rs->list; *at && (*at)->id != id; at = &(*at)->next)
		;
	gone = *at;
	if (gone) {
		*at = gone->next;
		atomic_fetch_sub(&rs->count, 1);
	}
	pthread_mutex_unlock(&rs->lock);
	free(gone);
	return gone != NULL;
}

void slow_rules_clear(struct slow_rules *rs)
{
	pthread_mutex_lock(&rs->lock);
	while (rs->list) {
		struct slow_rule *gone = rs->list;
		rs->list = gone->next;
		free(gone);
	}
	atomic_store(&rs->count, 0);
	pthread_mutex_unlock(&rs->lock);
}

void slow_rules_print(struct slow_rules *rs, FILE *out, size_t *ret_lines)
{
	static const char *const actions[] = { "errno", "short", "delay_ns" };
	size_t n = 0;

	pthread_mutex_lock(&rs->lock);
	for (struct slow_rule *r = rs->list; r; r = r->next, n++) {
		fprintf(out, "%u\t", r->id);
		slow_print_escaped(out, r->glob);
		fprintf(out, "\t%s=%llu\tseen=%llu\thits=%llu\n", actions[r->action],
			(unsigned long long)r->value, (unsigned long long)r->seen,
			(unsigned long long)r->hits);
	}
	pthread_mutex_unlock(&rs->lock);
	*ret_lines = n;
}

bool slow_parse_ops(const char *text, unsigned *ret_mask)
{
	unsigned mask = 0;

	while (*text) {
		size_t len = strcspn(text, ",");
		unsigned one = 0;
		if (len == 1 && *text == '*')
			one = SLOW_MASK_ALL;
		else if (len == 3 && !strncasecmp(text, "all", 3))
			one = SLOW_MASK_ALL;
		else if (len == 4 && !strncasecmp(text, "meta", 4))
			one = SLOW_MASK_META;
		for (int op = 0; op < SLOW_RELEASE; op++)
			if (strlen(slow_op_name(op)) == len &&
			    !strncasecmp(text, slow_op_name(op), len))
				one = SLOW_MASK(op);
		if (!one)
			return false;
		mask |= one;
		text += len + (text[len] == ',');
	}
	*ret_mask = mask;
	return mask != 0;
}

bool slow_parse_intr(const char *text, enum slow_intr *ret_intr)
{
	static const char *const names[] = { "kill", "any", "ignore" };

	for (int i = 0; i < 3; i++) {
		if (!strcmp(text, names[i])) {
			*ret_intr = (enum slow_intr)i;
			return true;
		}
	}
	return false;
}

/* A non-negative decimal number; *ret_end is what follows it. */
static bool parse_number(const char *text, double *ret_value, const char **ret_end)
{
	char *end;

	if (!(*text >= '0' && *text <= '9') && *text != '.')
		return false;
	*ret_value = strtod(text, &end);
	*ret_end = end;
	return end != text && isfinite(*ret_value);
}

bool slow_parse_ns(const char *text, uint64_t default_unit_ns, uint64_t *ret_ns)
{
	static const struct { const char *name; double ns; } units[] = {
		{ "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 },
	};
	const char *end;
	double value, unit = *text ? (double)default_unit_ns : -1;

	if (!parse_number(text, &value, &end))
		return false;
	if (*end) {
		unit = -1;
		for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
			if (!strcmp(end, units[i].name))
				unit = units[i].ns;
	}
	if (unit < 0 || value * unit > 1e18)
		return false;
	*ret_ns = (uint64_t)(value * unit + 0.5);
	return true;
}

bool slow_parse_size(const char *text, bool is_decimal, uint64_t *ret_bytes)
{
	const char *end, *at;
	double value, base = is_decimal ? 1000 : 1024, unit = 1;

	if (!parse_number(text, &value, &end))
		return false;
	if (*end) {
		static const char letters[] = "KMGT";
		at = strchr(letters, *end == 'k' ? 'K' : *end);
		if (!at || !*at)
			return false;
		if (!strcmp(end + 1, "i") || !strcmp(end + 1, "iB"))
			base = 1024;
		else if (!strcmp(end + 1, "B"))
			base = 1000;
		else if (end[1])
			return false;
		unit = pow(base, (double)(at - letters + 1));
	}
	if (value * unit > 9e18)
		return false;
	*ret_bytes = (uint64_t)(value * unit + 0.5);
	return true;
}

bool slow_parse_u64(const char *text, uint64_t *ret_value)
{
	char *end;

	if (!(*text >= '0' && *text <= '9'))
		return false;
	errno = 0;
	*ret_value = strtoull(text, &end, 10);
	return !*end && !errno;
}
