/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fs/source.c - see source.h.
 */
#include "fs/source.h"

#include "fs/bounded.h"
#include "fs/mountinfo.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 5000

/* In a child: 1: something is in it; 0: empty; negative: cannot be entered. */
static void look(const void *arg, void *answer)
{
	DIR *d = opendir(arg);
	const struct dirent *e;
	int n = 0;

	if (d) {
		while (n == 0 && (e = readdir(d)))
			n = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
		closedir(d);
	} else {
		n = -errno;
	}
	memcpy(answer, &n, sizeof(n));
}

int source_look(const char *path, bool may_be_away, struct source *ret)
{
	struct mountinfo *m = malloc(sizeof(*m));
	int r = m ? mountinfo_above(path, m) : -ENOMEM, n = 0;

	*ret = (struct source){ .path = path };
	if (r == 0) {
		n = snprintf(ret->dataset, sizeof(ret->dataset), "%s\n%s\n%s\n%s", m->fstype, m->source, m->mountpoint, path);
		ret->dataset_bytes = (size_t)n < sizeof(ret->dataset) ? (size_t)n : sizeof(ret->dataset) - 1;
	}
	free(m);
	if (r == 0 && may_be_away) {
		n = 0;
		if (bounded_run(look, path, &n, sizeof(n), LOOK_MS, NULL) < 0)
			n = -ETIMEDOUT;
		ret->is_away = n <= 0;
		if (n < 0)
			ret->dataset_bytes = 0;
	}
	return r;
}
