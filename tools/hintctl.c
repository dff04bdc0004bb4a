/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/hintctl.c - hintctl VERB [MOUNTPOINT] ...: looks into mounts of hintfs and tells them the order.
 *
 * Everything it does can be done with cat and echo on the control files; it adds units, checks and explanations.
 */
#include "tools/hintctl_i.h"

#include "sched/parse.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 256
#define EPOCHS_MAX 1000000u

struct args {
	bool is_json, is_check, is_append, is_lazy, is_one_epoch, wants_help;
	uint64_t epochs; /* 0: not given */
	const char *stream, *output, *order;
	const char *words[WORDS_MAX];
	int n_words;
};

struct verb {
	const char *name, *usage, *help;
	int words_max; /* after the verb, MOUNTPOINT included */
	int (*run)(const struct mounts *m, const struct args *a);
	const char *later; /* not in this version: what to do instead */
};

static int run_list(const struct mounts *m, const struct args *a)
{
	(void)a;
	return verb_list(m);
}

static int run_status(const struct mounts *m, const struct args *a)
{
	const struct mount_row *row = mounts_find(m, a->n_words > 0 ? a->words[0] : NULL);

	return row ? verb_status(row, a->is_json) : EXIT_FAILED;
}

static int run_order(const struct mounts *m, const struct args *a)
{
	const struct mount_row *row;
	const char *file, *mount = NULL;

	if (a->n_words == 0) {
		hfs_say(stderr, "hintctl order: name the FILE with the order, or - for standard input\n");
		return EXIT_USAGE;
	}
	if (a->is_check && a->epochs) {
		hfs_say(stderr, "hintctl order: --check looks at the file as it is: leave --epochs out\n");
		return EXIT_USAGE;
	}
	file = a->words[a->n_words - 1];
	if (a->n_words > 1) {
		mount = a->words[0];
		if (!mounts_has(m, mount) && mounts_has(m, file)) { /* order FILE MOUNTPOINT is understood too */
			mount = file;
			file = a->words[0];
		}
	}
	row = mounts_find(m, mount);
	if (!row)
		return EXIT_FAILED;
	return a->is_check ? verb_check(row, file) : verb_order(row, file, a->stream, a->is_append, a->epochs);
}

static int run_record(const struct mounts *m, const struct args *a)
{
	const struct mount_row *row = mounts_find(m, a->n_words > 0 ? a->words[0] : NULL);

	return row && daemon_answers(row) ? verb_record(row, a->output, a->is_one_epoch) : EXIT_FAILED;
}

static int run_umount(const struct mounts *m, const struct args *a)
{
	const struct mount_row *row = mounts_find(m, a->n_words > 0 ? a->words[0] : NULL);

	return row ? verb_umount(row, a->is_lazy) : EXIT_FAILED;
}

static int run_verify(const struct mounts *m, const struct args *a)
{
	return verb_verify(m, a->n_words > 0 ? a->words[0] : NULL);
}

/* The first word is the mount, if it is one. */
static int run_warm(const struct mounts *m, const struct args *a)
{
	int first = a->n_words > 0 && mounts_has(m, a->words[0]);
	const struct mount_row *row = mounts_find(m, first ? a->words[0] : NULL);

	return row && daemon_answers(row) ? verb_warm(row, a->order, a->words + first, a->n_words - first) : EXIT_FAILED;
}

static const struct verb verbs[] = {
	{"list", "list", "all hintfs mounts that this process sees", 0, run_list, NULL},
	{"status", "status [MOUNTPOINT] [--json]", "what is going on: origin, prefetch, memory, streams", 1, run_status,
	 NULL},
	{"order", "order [MOUNTPOINT] FILE|- [--check] [--append] [--stream NAME] [--epochs K]",
	 "tell the order of reading (grammar: MOUNTPOINT/.ctl/README); --check says what it means and changes nothing;\n"
	 "        --epochs: what was recorded is read K times",
	 2, run_order, NULL},
	{"record", "record [MOUNTPOINT] [-o FILE] [--epoch]",
	 "write down what is read, ready for `order`, until Ctrl-C or until the mount goes; --epoch: one epoch", 1,
	 run_record, NULL},
	{"umount", "umount [MOUNTPOINT] [--lazy]", "unmount; if it is busy, say who keeps it so", 1, run_umount, NULL},
	{"top", NULL, NULL, 0, NULL, "until then: watch hintctl status"},
	{"warm", "warm [MOUNTPOINT] [PATH ...] [--order FILE|-]",
	 "fill the disk tier: with all files, those below the paths, or those of an order; goes on where it was interrupted", WORDS_MAX,
	 run_warm, NULL},
	{"verify", "verify [MOUNTPOINT|CACHE-DIR]", "read and check all that a disk tier has; what is bad is dropped (exit status 3)", 1,
	 run_verify, NULL},
	{"doctor", NULL, NULL, 0, NULL, "until then: hintctl status, and the daemon's log"},
};
#define N_VERBS (sizeof(verbs) / sizeof(verbs[0]))

static void print_help(FILE *out)
{
	fputs("usage: hintctl VERB [MOUNTPOINT] ...\n"
	      "MOUNTPOINT may be left out when there is one hintfs mount.\n\n",
	      out);
	for (size_t i = 0; i < N_VERBS; i++)
		if (verbs[i].run)
			fprintf(out, "  hintctl %s\n        %s\n", verbs[i].usage, verbs[i].help);
	fputs("\nA first order, and a look at what it does:\n"
	      "  find /mnt/data -name '*.tar' | sort > order.txt\n"
	      "  hintctl order --check order.txt        files, bytes, missing names; nothing is changed\n"
	      "  hintctl order order.txt                the same as: cat order.txt > /mnt/data/.ctl/order\n"
	      "  hintctl status\n\n"
	      "No list? Record one run, and feed it back before the next one like it:\n"
	      "  hintctl record -o epoch.txt --epoch    while the script reads\n"
	      "  hintctl order --epochs 10 epoch.txt\n\n"
	      "Environment: HINTFS_CTL is the directory of the control files where MOUNTPOINT/.ctl does not lead to "
	      "them\n"
	      "(a container). Exit status: 0 done, 1 failed, 2 usage, 3 verify: something was bad, 130 warm\n"
	      "was interrupted; the same command goes on.\n",
	      out);
}

static const struct verb *find_verb(const char *name)
{
	const char *names[N_VERBS], *near;

	for (size_t i = 0; i < N_VERBS; i++) {
		if (strcmp(verbs[i].name, name) == 0)
			return &verbs[i];
		names[i] = verbs[i].name;
	}
	near = parse_nearest(name, strlen(name), names, N_VERBS);
	hfs_say(stderr, "hintctl: unknown verb \"%s\"%s%s%s; hintctl --help lists them\n", name,
		near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
	return NULL;
}

static int take_epochs(struct args *a, const char *v)
{
	if (parse_u64(v, strlen(v), &a->epochs) == 0 && a->epochs > 0 && a->epochs <= EPOCHS_MAX)
		return 0;
	hfs_say(stderr, "hintctl: --epochs %s: a whole number from 1 to %u\n", v, EPOCHS_MAX);
	return -EINVAL;
}

static int take_words(struct args *a, int n, char **words)
{
	if (n > WORDS_MAX) {
		hfs_say(stderr, "hintctl: too many arguments; hintctl --help shows what is possible\n");
		return -EINVAL;
	}
	for (int i = 0; i < n; i++)
		a->words[a->n_words++] = words[i];
	return 0;
}

static int parse_args(int argc, char **argv, struct args *a)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},    {"check", no_argument, NULL, 'c'},
		{"append", no_argument, NULL, 'a'},  {"stream", required_argument, NULL, 's'},
		{"lazy", no_argument, NULL, 'l'},    {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'}, {"output", required_argument, NULL, 'o'},
		{"epoch", no_argument, NULL, 'e'},   {"epochs", required_argument, NULL, 'k'},
		{"order", required_argument, NULL, 'O'}, {NULL, 0, NULL, 0},
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "jcas:lhVo:", options, NULL)) != -1) {
		switch (opt) {
		case 'j':
			a->is_json = true;
			break;
		case 'c':
			a->is_check = true;
			break;
		case 'a':
			a->is_append = true;
			break;
		case 's':
			a->stream = optarg;
			break;
		case 'O':
			a->order = optarg;
			break;
		case 'l':
			a->is_lazy = true;
			break;
		case 'o':
			a->output = optarg;
			break;
		case 'e':
			a->is_one_epoch = true;
			break;
		case 'k':
			if (take_epochs(a, optarg) < 0)
				return -EINVAL;
			break;
		case 'h':
			a->wants_help = true;
			break;
		case 'V':
			printf("hintctl %s\n", HINTFS_VERSION);
			exit(EXIT_SUCCESS);
		default:
			hfs_say(stderr, "hintctl --help shows what is possible\n");
			return -EINVAL;
		}
	}
	return take_words(a, argc - optind, argv + optind);
}

static int run_verb(const struct verb *v, struct args *a)
{
	struct mounts m;
	int rc;

	if (!v->run) {
		hfs_say(stderr, "hintctl: \"%s\" is not in this version; %s\n", v->name, v->later);
		return EXIT_USAGE;
	}
	memmove(a->words, a->words + 1, sizeof(a->words) - sizeof(a->words[0]));
	a->n_words--;
	if (a->wants_help) {
		printf("usage: hintctl %s\n  %s\n", v->usage, v->help);
		return EXIT_SUCCESS;
	}
	if (a->n_words > v->words_max) {
		hfs_say(stderr, "hintctl %s: %s is one word too many; usage: hintctl %s\n", v->name, a->words[v->words_max], v->usage);
		return EXIT_USAGE;
	}
	rc = mounts_read(&m, false);
	if (rc < 0) {
		hfs_say(stderr, "hintctl: /proc/self/mountinfo: %s\n", strerror(-rc));
		return EXIT_FAILED;
	}
	rc = v->run(&m, a);
	mounts_finish(&m);
	return rc;
}

int main(int argc, char **argv)
{
	struct args a = {0};
	const struct verb *v;

	if (parse_args(argc, argv, &a) < 0)
		return EXIT_USAGE;
	if (a.n_words == 0) {
		print_help(a.wants_help ? stdout : stderr);
		return a.wants_help ? EXIT_SUCCESS : EXIT_USAGE;
	}
	v = find_verb(a.words[0]);
	return v ? run_verb(v, &a) : EXIT_USAGE;
}
