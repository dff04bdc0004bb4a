/* SPDX-License-Identifier: Apache-2.0 */
/* Node table (fs/node.h): generations, counts, paths. */
#include "fs/node.h"

#include "cache/base/time.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct origin_attr attr(uint32_t mode, uint64_t ino, uint64_t size, int64_t mtime_ns)
{
	return (struct origin_attr){ .id = { .dev = 1, .ino = ino, .size_bytes = size, .mtime_ns = mtime_ns }, .mode = mode, .nlink = 1 };
}

static struct node_table *table(void)
{
	struct origin_attr root = attr(S_IFDIR | 0755, 2, 4096, 1);
	struct node_table *t = NULL;

	cr_assert_eq(node_table_create(&root, 0, &t), 0);
	return t;
}

static struct node *bind(struct node_table *t, struct node *parent, const char *name, struct origin_attr a, struct node **old)
{
	struct node *n = node_bind(t, parent, name, strlen(name), &a, 1, true, old);

	cr_assert_not_null(n);
	return n;
}

Test(node, same_identity_is_the_same_node)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node *a = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 7), &old);

	cr_assert_null(old);
	struct node *b = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 7), &old);
	cr_assert_eq(a, b);
	cr_assert_null(old);
	uint64_t id = a->id;
	node_put(t, a);
	node_put(t, b);
	node_forget(t, id, 1);
	struct node *c = node_get(t, id);
	cr_assert_not_null(c, "one of two lookups is left");
	node_put(t, c);
	node_forget(t, id, 1);
	cr_assert_null(node_get(t, id));
	node_put(t, root);
	node_table_destroy(t, NULL);
}

Test(node, another_identity_is_another_node_and_the_old_one_lives)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node *a = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 7), &old);
	struct node *b = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 8), &old); /* only the time moved */
	struct origin_attr seen;

	cr_assert_neq(a->id, b->id);
	cr_assert_eq(old, a);
	cr_assert(a->is_superseded && !b->is_superseded);
	node_attr_get(t, a, &seen, NULL);
	cr_assert_eq(seen.id.mtime_ns, 7, "a generation never changes");
	struct node *found = node_find(t, root, "f", 1, false);
	cr_assert_eq(found, b);
	struct node *again = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 7), &(struct node *){ NULL });
	cr_assert_neq(again->id, a->id, "an id is never used twice");
	node_table_destroy(t, NULL);
}

Test(node, forgotten_ones_are_kept_up_to_a_number)
{
	struct origin_attr dir = attr(S_IFDIR | 0755, 2, 4096, 1), seen;
	struct node_table *t = NULL;
	struct node_stats stats;
	struct node *old;
	char name[2] = "0";

	cr_assert_eq(node_table_create(&dir, 3, &t), 0);
	struct node *root = node_get(t, NODE_ROOT_ID), *d = bind(t, root, "d", attr(S_IFDIR | 0755, 3, 4096, 1), &old);
	for (; name[0] < '5'; name[0]++) {
		struct node *n = bind(t, d, name, attr(S_IFREG | 0644, 10 + (uint64_t)name[0], 5, 7), &old);
		uint64_t id = n->id;

		node_put(t, n);
		node_forget(t, id, 1);
		node_forget(t, id, 1); /* of a kernel that counts wrongly */
	}
	cr_assert_null(node_find(t, d, "1", 1, false), "the oldest go first");
	struct node *two = node_find(t, d, "2", 1, true);
	cr_assert_not_null(two);
	node_attr_get(t, two, &seen, NULL);
	cr_assert_eq(seen.id.ino, 10 + (uint64_t)'2');
	node_stats_get(t, &stats);
	cr_assert_eq(stats.kept, 2);
	cr_assert_eq(stats.nodes, 1 + 1 + 3);
	struct node *three = bind(t, d, "3", attr(S_IFREG | 0644, 99, 5, 7), &old);
	cr_assert(old && old->is_superseded, "a new generation supersedes a kept one");
	node_put(t, old);
	uint64_t d_id = d->id;
	node_put(t, d);
	node_forget(t, d_id, 1);
	struct node *again = node_find(t, root, "d", 1, false);
	cr_assert_eq(again->id, d_id, "its children hold it");
	node_put(t, again);
	node_put(t, three);
	node_put(t, two);
	node_put(t, root);
	node_table_destroy(t, NULL);
}

Test(node, a_directory_keeps_its_node_while_its_times_move)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node *a = bind(t, root, "d", attr(S_IFDIR | 0755, 10, 4096, 7), &old);
	struct node *b = bind(t, root, "d", attr(S_IFDIR | 0755, 10, 8192, 9), &old);
	struct origin_attr seen;

	cr_assert_eq(a, b);
	node_attr_get(t, a, &seen, NULL);
	cr_assert_eq(seen.id.mtime_ns, 9);
	struct node *c = bind(t, root, "d", attr(S_IFREG | 0644, 10, 8192, 9), &old);
	cr_assert_neq(a->id, c->id, "another kind is another node");
	node_table_destroy(t, NULL);
}

Test(node, a_child_keeps_its_parent_and_its_path)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node *d = bind(t, root, "d", attr(S_IFDIR | 0755, 10, 0, 0), &old);
	struct node *e = bind(t, d, "e", attr(S_IFDIR | 0755, 11, 0, 0), &old);
	struct node *f = bind(t, e, "f", attr(S_IFREG | 0644, 12, 0, 0), &old);
	struct node_stats s;
	const uint64_t d_id = d->id, e_id = e->id, f_id = f->id;

	node_put(t, d);
	node_put(t, e);
	node_forget(t, d_id, 1);
	node_forget(t, e_id, 1);
	char *path = node_path(t, f, NULL, 0), *below = node_path(t, e, "g h", 3), *top = node_path(t, root, "x", 1),
	     *nothing = node_path(t, root, NULL, 0);
	cr_assert_str_eq(path, "d/e/f");
	cr_assert_str_eq(below, "d/e/g h");
	cr_assert_str_eq(top, "x");
	cr_assert_str_eq(nothing, "");
	free(path), free(below), free(top), free(nothing);
	node_put(t, f);
	node_forget(t, f_id, 1);
	node_stats_get(t, &s);
	cr_assert_eq(s.nodes, 1, "the chain goes with its last child");
	cr_assert_eq(s.bytes, 0);
	cr_assert_eq(s.superseded, 0);
	node_put(t, root);
	node_table_destroy(t, NULL);
}

Test(node, made_up_numbers_are_refused)
{
	struct node_table *t = table();

	cr_assert_null(node_get(t, 0));
	cr_assert_null(node_get(t, 77));
	node_forget(t, 77, 5);
	node_forget(t, NODE_ROOT_ID, 1000); /* the root is ours */
	struct node *root = node_get(t, NODE_ROOT_ID);
	cr_assert_not_null(root);
	node_put(t, root);
	node_table_destroy(t, NULL);
}

Test(node, two_hundred_thousand_stay_below_256_bytes_each)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node_stats s;
	const unsigned n = 200000;
	char name[32];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "img%08u.jpg", i);
		node_put(t, bind(t, root, name, attr(S_IFREG | 0644, 100 + i, 30000, i), &old));
	}
	node_stats_get(t, &s);
	cr_assert_eq(s.nodes, n + 1);
	cr_assert_leq(s.bytes / n + 16 /* malloc's */ + 32 /* both tables, half full */, 256, "%lu", (unsigned long)(s.bytes / n));
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "img%08u.jpg", i);
		struct node *f = node_find(t, root, name, strlen(name), false);

		cr_assert_not_null(f);
		cr_assert_eq(f->attr.id.ino, 100 + i);
		node_put(t, f);
	}
	node_put(t, root);
	node_table_destroy(t, NULL);
}

Test(node, get_open_gives_the_open_generation_and_first_open_is_once)
{
	struct node_table *t = table();
	struct node *root = node_get(t, NODE_ROOT_ID), *old;
	struct node *n = bind(t, root, "f", attr(S_IFREG | 0644, 10, 5, 7), &old);
	struct cache_file *f = (void *)1;

	cr_assert_eq(node_get_open(t, n->id, &f), n);
	cr_assert_null(f, "no handle");
	cr_assert(node_first_open(t, n));
	cr_assert_not(node_first_open(t, n));
	node_put(t, n);
	node_put(t, n);
	f = (void *)1;
	cr_assert_null(node_get_open(t, 4711, &f));
	cr_assert_null(f);
	node_forget(t, n->id, 1);
	node_put(t, root);
	node_table_destroy(t, NULL);
}
