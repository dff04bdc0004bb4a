/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/preload/order.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void order_init(struct order *o)
{
	memset(o, 0, sizeof(*o));
}

void order_finish(struct order *o)
{
	free(o->entries);
	free(o->groups);
	free(o->lists);
	free(o->notes);
	free(o->text);
	free(o->path_at);
	free(o->hash);
	order_init(o);
}

/* Room for `need` items in a doubling array. */
static int room(void **array, uint64_t *cap, uint64_t need, size_t item)
{
	uint64_t next = *cap ? *cap : 64;
	size_t bytes;
	void *p;

	if (need <= *cap)
		return 0;
	while (next < need)
		next *= 2;
	if (__builtin_mul_overflow((size_t)next, item, &bytes))
		return -ENOMEM;
	p = realloc(*array, bytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = next;
	return 0;
}

/* FNV-1a: paths are short, and a hostile order only slows its own loader. */
static uint64_t path_hash(const char *p, size_t len)
{
	uint64_t h = 14695981039346656037ull;

	while (len--)
		h = (h ^ (unsigned char)*p++) * 1099511628211ull;
	return h ^ h >> 29;
}

static int hash_grow(struct order *o)
{
	uint64_t cap = o->cap_hash ? o->cap_hash * 2 : 256;
	uint32_t *t;
	uint64_t i;

	if (o->n_paths * 2 < o->cap_hash)
		return 0;
	t = calloc(cap, sizeof(*t));
	if (!t)
		return -ENOMEM;
	for (i = 0; i < o->n_paths; i++) {
		const char *p = order_path_text(o, (uint32_t)i);
		uint64_t at = path_hash(p, strlen(p)) & (cap - 1);

		while (t[at])
			at = (at + 1) & (cap - 1);
		t[at] = (uint32_t)i + 1;
	}
	free(o->hash);
	o->hash = t;
	o->cap_hash = cap;
	return 0;
}

/* Take "./" off and refuse what leaves the mount. Returns the cleaned start or NULL with *ret_err. */
static const char *path_check(const char *p, size_t *len, int *ret_err)
{
	const char *end = p + *len, *part, *slash;

	while (end - p >= 2 && p[0] == '.' && p[1] == '/') {
		p += 2;
		while (p < end && *p == '/')
			p++;
	}
	*len = (size_t)(end - p);
	*ret_err = !*len ? -ENOENT : *len > ORDER_PATH_MAX ? -ENAMETOOLONG : *p == '/' || memchr(p, 0, *len) ? -EXDEV : 0;
	for (part = p; !*ret_err && part < end; part = slash + 1) {
		slash = memchr(part, '/', (size_t)(end - part));
		if (!slash)
			slash = end;
		if (slash - part == 2 && part[0] == '.' && part[1] == '.')
			*ret_err = -EXDEV;
	}
	return *ret_err ? NULL : p;
}

int64_t order_path(struct order *o, const char *path, size_t len)
{
	int err;
	uint64_t at;
	const char *p = path_check(path, &len, &err);

	if (!p)
		return err;
	err = hash_grow(o);
	if (err)
		return err;
	for (at = path_hash(p, len) & (o->cap_hash - 1); o->hash[at]; at = (at + 1) & (o->cap_hash - 1)) {
		const char *q = order_path_text(o, o->hash[at] - 1);

		if (!strncmp(q, p, len) && !q[len])
			return (int64_t)o->hash[at] - 1;
	}
	if (o->n_paths >= UINT32_MAX - 1)
		return -ENOSPC;
	err = room((void **)&o->path_at, &o->cap_paths, o->n_paths + 1, sizeof(*o->path_at));
	if (!err)
		err = room((void **)&o->text, &o->cap_text, o->text_bytes + len + 1, 1);
	if (err)
		return err;
	memcpy(o->text + o->text_bytes, p, len);
	o->text[o->text_bytes + len] = '\0';
	o->path_at[o->n_paths] = o->text_bytes;
	o->text_bytes += len + 1;
	o->hash[at] = (uint32_t)o->n_paths + 1;
	return (int64_t)o->n_paths++;
}

/* The list being written, made on demand. */
static int list_begin(struct order *o, uint64_t label)
{
	int err;

	if (o->n_lists >= ORDER_LISTS_MAX)
		return -ENOSPC;
	err = room((void **)&o->lists, &o->cap_lists, o->n_lists + 1, sizeof(*o->lists));
	if (err)
		return err;
	o->lists[o->n_lists++] = (struct order_list){ .label = label, .first = o->n_entries, .end = o->n_entries,
						      .group = o->n_groups, .group_end = o->n_groups };
	o->next_label = label + 1;
	o->next_number = 0;
	return 0;
}

/* The list being written takes in everything appended since it began. */
static void list_extend(struct order *o)
{
	o->lists[o->n_lists - 1].end = o->n_entries;
	o->lists[o->n_lists - 1].group_end = o->n_groups;
}

int order_entry_add(struct order *o, uint32_t path, uint64_t off_bytes, uint64_t len_bytes)
{
	int err = 0;

	if (o->n_entries >= ORDER_ENTRIES_MAX)
		return -ENOSPC;
	if (!o->n_lists)
		err = list_begin(o, o->next_label);
	if (!err)
		err = room((void **)&o->entries, &o->cap_entries, o->n_entries + 1, sizeof(*o->entries));
	if (err)
		return err;
	o->entries[o->n_entries++] =
		(struct order_entry){ .off_bytes = off_bytes, .len_bytes = len_bytes, .path = path };
	list_extend(o);
	return 0;
}

int order_batch(struct order *o, const uint64_t *number)
{
	int err = 0;

	if (!o->n_lists)
		err = list_begin(o, o->next_label);
	if (!err)
		err = room((void **)&o->groups, &o->cap_groups, o->n_groups + 2, sizeof(*o->groups));
	if (err)
		return err;
	/* Entries before the first mark of a list are a batch of their own, as the daemon sees them: number 0. */
	if (o->lists[o->n_lists - 1].group == o->n_groups && o->lists[o->n_lists - 1].first < o->n_entries) {
		o->groups[o->n_groups++] = (struct order_group){ .first = o->lists[o->n_lists - 1].first };
		o->next_number = 1;
	}
	if (number)
		o->next_number = *number;
	o->groups[o->n_groups++] = (struct order_group){ .first = o->n_entries, .number = o->next_number++ };
	list_extend(o);
	return 0;
}

int order_epoch(struct order *o, const uint64_t *label)
{
	struct order_list *last = o->n_lists ? &o->lists[o->n_lists - 1] : NULL;
	uint64_t next = o->next_label;

	/* A list without entries has not begun: this mark renames it. */
	if (last && last->first == o->n_entries && last->group == o->n_groups) {
		next = last->label;
		o->n_lists--;
	}
	return list_begin(o, label ? *label : next);
}

int order_repeat(struct order *o, uint64_t times)
{
	uint64_t n = o->n_lists, i, k;
	int err;

	if (!times)
		return -EINVAL;
	if (!n || times == 1)
		return 0;
	if (times > ORDER_LISTS_MAX / n)
		return -ENOSPC;
	err = room((void **)&o->lists, &o->cap_lists, n * times + 1, sizeof(*o->lists));
	if (err)
		return err;
	for (k = 1; k < times; k++)
		for (i = 0; i < n; i++) {
			o->lists[o->n_lists] = o->lists[i];
			o->lists[o->n_lists++].label = o->next_label++;
		}
	/* What follows begins a list of its own. */
	return list_begin(o, o->next_label);
}

int order_note(struct order *o, const char *text)
{
	int err = room((void **)&o->notes, &o->cap_notes, o->n_notes + 1, sizeof(*o->notes));

	if (err)
		return err;
	o->notes[o->n_notes].at = o->n_entries;
	snprintf(o->notes[o->n_notes].text, sizeof(o->notes[0].text), "%s", text);
	o->n_notes++;
	return 0;
}

void order_seek(struct order *o, uint64_t entry)
{
	o->start = entry;
}

void order_done_batch(struct order *o, uint64_t number)
{
	uint64_t i;

	for (i = o->n_groups; i-- > 0;)
		if (o->groups[i].number == number) {
			o->start = i + 1 < o->n_groups ? o->groups[i + 1].first : o->n_entries;
			return;
		}
}

void order_clear(struct order *o)
{
	o->n_entries = o->n_groups = o->n_lists = o->n_notes = 0;
	o->start = o->next_number = o->next_label = 0;
}

void order_seal(struct order *o)
{
	struct order_list *last = o->n_lists ? &o->lists[o->n_lists - 1] : NULL;

	if (last && last->first == last->end)
		o->n_lists--;
	if (o->start > o->n_entries)
		o->start = o->n_entries;
}

/* ---- directories ---------------------------------------------------------------- */

struct name_list {
	char **names;
	uint64_t n, cap;
};

static int name_add(struct name_list *l, const char *dir, const char *name)
{
	int err = room((void **)&l->names, &l->cap, l->n + 1, sizeof(*l->names));

	if (err)
		return err;
	if (l->n >= ORDER_ENTRIES_MAX)
		return -ENOSPC;
	if (asprintf(&l->names[l->n], "%s%s%s", dir, *dir ? "/" : "", name) < 0)
		return -ENOMEM;
	l->n++;
	return 0;
}

/* Sort one entry of a directory into files or directories still to list. */
static int name_sort(struct name_list *files, struct name_list *dirs, int dir_fd, const char *dir, const struct dirent *d)
{
	unsigned char type = d->d_type;
	struct stat st;

	if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
		return 0;
	if (type == DT_UNKNOWN) {
		if (fstatat(dir_fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return errno == ENOENT ? 0 : -errno;
		type = S_ISREG(st.st_mode) ? DT_REG : S_ISDIR(st.st_mode) ? DT_DIR : DT_LNK;
	}
	if (type == DT_REG)
		return name_add(files, dir, d->d_name);
	return type == DT_DIR ? name_add(dirs, dir, d->d_name) : 0;
}

static int directory_list(struct name_list *files, struct name_list *dirs, int root_fd, const char *dir)
{
	int fd = openat(root_fd, *dir ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *h = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;
	int err = 0;

	if (!h) {
		err = -errno;
		if (fd >= 0)
			close(fd);
		return err;
	}
	while (!err) {
		errno = 0;
		d = readdir(h);
		if (!d) {
			err = -errno;
			break;
		}
		err = name_sort(files, dirs, dirfd(h), dir, d);
	}
	closedir(h);
	return err;
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct name_list *l)
{
	while (l->n)
		free(l->names[--l->n]);
	free(l->names);
}

int order_directory_add(struct order *o, int root_fd, const char *dir)
{
	struct name_list files = { 0 }, dirs = { 0 };
	size_t len = strlen(dir);
	char *clean = strdup(dir);
	uint64_t i;
	int err = clean ? 0 : -ENOMEM;

	while (!err && len && clean[len - 1] == '/')
		clean[--len] = '\0';
	if (!err)
		err = directory_list(&files, &dirs, root_fd, !strcmp(clean, ".") ? "" : clean);
	while (!err && dirs.n) {
		char *next = dirs.names[--dirs.n];

		err = directory_list(&files, &dirs, root_fd, next);
		free(next);
	}
	if (!err && files.n)
		qsort(files.names, files.n, sizeof(*files.names), name_compare);
	for (i = 0; !err && i < files.n; i++) {
		int64_t path = order_path(o, files.names[i], strlen(files.names[i]));

		err = path < 0 ? (int)path : order_entry_add(o, (uint32_t)path, 0, ORDER_TO_END);
	}
	names_free(&files);
	names_free(&dirs);
	free(clean);
	return err;
}
