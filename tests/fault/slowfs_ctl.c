/* SPDX-License-Identifier: Apache-2.0
 *
 * Control socket of slowfs: one command a line, one answer: a line `ok N` with N
 * lines after it, or a line `error TEXT`. README.md lists the commands. A thread
 * a connection, so a `wait-…` blocks only its own connection, and no command
 * waits for a backing file or a parked request (invariant 4).
 *
 * The listening thread also takes the signals and the end of --watch-fd.
 */
#include "tests/fault/slowfs.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_WORDS 32
#define MAX_LINE 16384

struct answer {
	struct slowfs *sf;
	FILE *out; /* the lines of the answer */
	size_t lines;
	const char *error;
};

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Undoes slow_print_escaped(); any other backslash stays, for globs. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		int hi = s[0] == '\\' && s[1] == 'x' ? hex_digit(s[2]) : -1;
		int lo = hi >= 0 ? hex_digit(s[3]) : -1;
		if (lo >= 0) {
			*to++ = (char)(hi << 4 | lo);
			s += 3;
		} else if (s[0] == '\\' && s[1] == '\\') {
			*to++ = *s++;
		} else {
			*to++ = *s;
		}
	}
	*to = 0;
}

static size_t split(char *line, char **words)
{
	char *save, *word;
	size_t n = 0;

	for (word = strtok_r(line, " \t\r\n", &save); word && n < MAX_WORDS;
	     word = strtok_r(NULL, " \t\r\n", &save)) {
		unescape(word);
		words[n++] = word;
	}
	return n;
}

static void cmd_latency(struct answer *a, char **w, size_t n)
{
	unsigned mask;
	uint64_t ns;

	if (n != 3 || !slow_parse_ops(w[1], &mask) || !slow_parse_ns(w[2], 1000000, &ns)) {
		a->error = "usage: latency all|meta|OP[,OP] DURATION";
		return;
	}
	for (int op = 0; op < SLOW_RELEASE; op++)
		if (mask & SLOW_MASK(op))
			atomic_store(&a->sf->latency_ns[op], ns);
}

static void cmd_bandwidth(struct answer *a, char **w, size_t n)
{
	uint64_t rate;

	if (n != 2 || !slow_parse_size(w[1], true, &rate))
		a->error = "usage: bandwidth BYTES_PER_SECOND (K M G decimal, Ki Mi Gi binary, 0 = none)";
	else
		slow_queue_set_bandwidth(a->sf, rate);
}

static void cmd_timeout(struct answer *a, char **w, size_t n)
{
	uint64_t ns;

	if (n != 3 || !slow_parse_ns(w[2], SLOW_NS_PER_S, &ns))
		a->error = "usage: timeout attr|entry|dir DURATION";
	else if (!strcmp(w[1], "attr"))
		atomic_store(&a->sf->attr_ns, ns);
	else if (!strcmp(w[1], "entry"))
		atomic_store(&a->sf->entry_ns, ns);
	else if (!strcmp(w[1], "dir"))
		atomic_store(&a->sf->dir_ns, ns);
	else
		a->error = "usage: timeout attr|entry|dir DURATION";
}

static void cmd_hang(struct answer *a, char **w, size_t n)
{
	enum slow_intr intr = SLOW_INTR_KILL;
	unsigned ops = SLOW_MASK_ALL;
	bool is_good = n >= 2;

	for (size_t i = 2; is_good && i < n; i++)
		is_good = !strncmp(w[i], "op=", 3) ? slow_parse_ops(w[i] + 3, &ops)
						   : slow_parse_intr(w[i], &intr);
	if (!is_good)
		a->error = "usage: hang GLOB [kill|any|ignore] [op=OP[,OP]]";
	else if (slow_queue_hang(a->sf, w[1], ops, intr) < 0)
		a->error = "out of memory";
}

static void cmd_unhang(struct answer *a, char **w, size_t n)
{
	if (n > 2) {
		a->error = "usage: unhang [GLOB]";
		return;
	}
	fprintf(a->out, "%zu\n", slow_queue_unhang(a->sf, n == 2 ? w[1] : NULL));
	a->lines = 1;
}

static void cmd_hung(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	slow_queue_print_hung(a->sf, a->out, &a->lines);
}

static void cmd_rule(struct answer *a, char **w, size_t n)
{
	unsigned id = slow_rules_add(&a->sf->rules, w + 1, n - 1, &a->error);

	if (id) {
		fprintf(a->out, "%u\n", id);
		a->lines = 1;
	}
}

static void cmd_unrule(struct answer *a, char **w, size_t n)
{
	uint64_t id;

	if (n != 2 || !slow_parse_u64(w[1], &id) ||
	    !slow_rules_remove(&a->sf->rules, (unsigned)id))
		a->error = "no such rule; usage: unrule ID";
}

static void cmd_rules(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	slow_rules_print(&a->sf->rules, a->out, &a->lines);
}

static void cmd_clear(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	slow_rules_clear(&a->sf->rules);
}

static void cmd_seed(struct answer *a, char **w, size_t n)
{
	uint64_t seed;

	if (n != 2 || !slow_parse_u64(w[1], &seed))
		a->error = "usage: seed N";
	else
		slow_rules_seed(&a->sf->rules, seed);
}

static void cmd_counters(struct answer *a, char **w, size_t n)
{
	slow_log_print_counters(a->sf, n > 1 ? w[1] : NULL, a->out, &a->lines);
}

static void cmd_totals(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	slow_log_print_totals(a->sf, a->out, &a->lines);
}

static void cmd_log(struct answer *a, char **w, size_t n)
{
	uint64_t since = 0, max = UINT32_MAX;

	if (n > 3 || (n > 1 && !slow_parse_u64(w[1], &since)) ||
	    (n > 2 && !slow_parse_u64(w[2], &max)))
		a->error = "usage: log [SINCE_SEQ [MAX]]";
	else
		slow_log_print(&a->sf->log, a->out, since, max, &a->lines);
}

static void cmd_reset(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	slow_log_reset(a->sf);
}

struct goal {
	unsigned ops;
	uint64_t target;
	bool is_gauge_max; /* true: wait until at most target */
};

static bool hung_reached(struct slowfs *sf, void *arg)
{
	const struct goal *g = arg;

	return g->is_gauge_max ? sf->queue.hung_count <= g->target
			       : sf->queue.hung_count >= g->target;
}

static bool ops_reached(struct slowfs *sf, void *arg)
{
	const struct goal *g = arg;
	uint64_t sum = 0;

	for (int op = 0; op < SLOW_OP_COUNT; op++)
		if (g->ops & SLOW_MASK(op))
			sum += atomic_load(&sf->log.count[op]);
	return sum >= g->target;
}

static bool handles_reached(struct slowfs *sf, void *arg)
{
	const struct goal *g = arg;

	return atomic_load(&sf->log.handles) <= (int64_t)g->target;
}

/* wait-hung N, wait-hung-max N, wait-handles-max N, wait-op OP N; each takes a
 * last word TIMEOUT, 10 s when absent. */
static void cmd_wait(struct answer *a, char **w, size_t n)
{
	bool (*pred)(struct slowfs *, void *) = hung_reached;
	struct goal g = { .is_gauge_max = !strcmp(w[0], "wait-hung-max") };
	uint64_t timeout_ns = 10 * SLOW_NS_PER_S;
	size_t at = 1;
	bool is_good = true;

	if (!strcmp(w[0], "wait-handles-max"))
		pred = handles_reached;
	if (!strcmp(w[0], "wait-op")) {
		pred = ops_reached;
		if (n > 1 && !strcasecmp(w[1], "RELEASE"))
			g.ops = SLOW_MASK(SLOW_RELEASE);
		else
			is_good = n > 1 && slow_parse_ops(w[1], &g.ops);
		at = 2;
	}
	is_good = is_good && (n == at + 1 || n == at + 2) && slow_parse_u64(w[at], &g.target) &&
		  (n == at + 1 || slow_parse_ns(w[at + 1], SLOW_NS_PER_S, &timeout_ns));
	if (!is_good)
		a->error = "usage: wait-hung|wait-hung-max|wait-handles-max N [TIMEOUT], wait-op OP[,OP] N [TIMEOUT]";
	else if (!slow_queue_wait(a->sf, slow_now_ns() + timeout_ns, pred, &g))
		a->error = "timeout";
}

static void cmd_ping(struct answer *a, char **w, size_t n)
{
	(void)w;
	(void)n;
	fprintf(a->out, "%d\n", getpid());
	a->lines = 1;
}

static const struct {
	const char *name;
	void (*run)(struct answer *a, char **words, size_t n);
} commands[] = {
	{ "ping", cmd_ping }, { "latency", cmd_latency }, { "bandwidth", cmd_bandwidth },
	{ "timeout", cmd_timeout }, { "hang", cmd_hang }, { "unhang", cmd_unhang },
	{ "hung", cmd_hung }, { "rule", cmd_rule }, { "unrule", cmd_unrule },
	{ "rules", cmd_rules }, { "clear", cmd_clear }, { "seed", cmd_seed },
	{ "counters", cmd_counters }, { "totals", cmd_totals }, { "log", cmd_log },
	{ "reset", cmd_reset }, { "wait-hung", cmd_wait }, { "wait-hung-max", cmd_wait },
	{ "wait-handles-max", cmd_wait }, { "wait-op", cmd_wait },
};

static void dispatch(struct answer *a, char **words, size_t n)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(words[0], commands[i].name)) {
			commands[i].run(a, words, n);
			return;
		}
	}
	a->error = "unknown command";
}

/* Answers one line; false when the connection is to end. */
static bool answer_line(struct slowfs *sf, FILE *conn, char *line)
{
	char *words[MAX_WORDS], *text = NULL;
	size_t len = 0, n = split(line, words);
	struct answer a = { .sf = sf, .out = open_memstream(&text, &len) };

	if (n && !strcmp(words[0], "quit")) {
		fputs("ok 0\n", conn);
		fflush(conn);
		slowfs_stop(sf);
	}
	if (!a.out)
		return false;
	if (n)
		dispatch(&a, words, n);
	else
		a.error = "empty line";
	fclose(a.out);
	if (a.error)
		fprintf(conn, "error %s\n", a.error);
	else
		fprintf(conn, "ok %zu\n%s", a.lines, text);
	free(text);
	return fflush(conn) == 0;
}

struct connection {
	struct slowfs *sf;
	int fd;
};

static void *connection_main(void *arg)
{
	struct connection c = *(struct connection *)arg;
	char *line = malloc(MAX_LINE);
	FILE *in = fdopen(c.fd, "r");
	FILE *out = fdopen(dup(c.fd), "w");

	prctl(PR_SET_NAME, "slowfs-ctl");
	free(arg);
	while (in && out && line && fgets(line, MAX_LINE, in) &&
	       answer_line(c.sf, out, line))
		;
	if (out)
		fclose(out);
	if (in)
		fclose(in);
	else
		close(c.fd);
	free(line);
	return NULL;
}

static void accept_one(struct slowfs *sf)
{
	struct connection *c = malloc(sizeof(*c));
	int fd = accept4(sf->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	pthread_t thread;

	if (c && fd >= 0) {
		*c = (struct connection){ sf, fd };
		if (pthread_create(&thread, NULL, connection_main, c) == 0) {
			pthread_detach(thread);
			return;
		}
	}
	free(c);
	if (fd >= 0)
		close(fd);
}

static void *listen_main(void *arg)
{
	struct slowfs *sf = arg;
	struct pollfd fds[] = {
		{ .fd = sf->signal_fd, .events = POLLIN },
		{ .fd = sf->watch_fd, .events = POLLIN },
		{ .fd = sf->listen_fd, .events = POLLIN },
	};

	prctl(PR_SET_NAME, "slowfs-listen");
	for (;;) {
		if (poll(fds, 3, -1) < 0)
			continue;
		if (fds[0].revents || fds[1].revents)
			slowfs_stop(sf);
		if (fds[2].revents & POLLIN)
			accept_one(sf);
	}
	return NULL;
}

int slow_ctl_listen(struct slowfs *sf)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	if (strlen(sf->ctl_path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, sf->ctl_path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	unlink(sf->ctl_path);
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 64) < 0) {
		int err = errno;
		close(fd);
		return -err;
	}
	sf->listen_fd = fd;
	return 0;
}

int slow_ctl_start(struct slowfs *sf)
{
	pthread_t thread;
	int err = pthread_create(&thread, NULL, listen_main, sf);

	if (err)
		return -err;
	pthread_detach(thread);
	return 0;
}
