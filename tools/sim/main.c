/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/sim/main.c - hintfs-sim: what epoch time, hit share and origin traffic would this machine reach with this order?
 *
 * Reads an order and sizes, runs the policies asked for in virtual time, prints a table, JSON or a picture. Exit: 0, 1 usage,
 * 2 input or system.
 */
#include "sched/parse.h"
#include "tools/sim/order.h"
#include "tools/sim/report.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLICIES_MAX 32u

struct options {
	struct order_options order;
	struct sim_config sim;
	uint64_t memory_bytes, disk_bytes;
	double bandwidth, node_bandwidth;
	const char *policies, *plot;
	bool is_json;
};

static const char usage_text[] =
	"usage: hintfs-sim ORDER (--source DIR | --sizes FILE) [options]\n"
	"\n"
	"Replays the order of a training run in virtual time and says how long an epoch takes, what comes from the\n"
	"cache and what from the origin: with hintfs, and with what others do. Nothing is read but ORDER and sizes.\n"
	"\n"
	"What is read\n"
	"  ORDER                  a control file as written to .ctl/order (@batch and @epoch marks); - for stdin.\n"
	"                         No file yet? `hintctl record -o ORDER` writes down a run.\n"
	"  --source DIR           the dataset: names of ORDER are below it; only sizes are looked at\n"
	"  --sizes FILE           or a list of PATH<TAB>BYTES, as find . -type f -printf '%P\\t%s\\n' writes it\n"
	"  --epochs N             play the file again until there are N epochs (default: what the file holds)\n"
	"  --shuffle              the epochs played again are in a new order each\n"
	"  --batch-bytes SIZE     without @batch: cut longer entries into batches of SIZE (default 32M; 0: never)\n"
	"\n"
	"The machine\n"
	"  --memory SIZE          slots (default 8G)           --disk SIZE       disk tier (default 0: none)\n"
	"  --chunk SIZE           page size (default 1M)       --disk-bandwidth BYTES/S  (default 2G)\n"
	"  --latency TIME         of the origin (default 1ms)  --bandwidth BYTES/S       of the origin (default 200M)\n"
	"  --jitter SHARE         of the latency (default 0)   --overhead TIME   of the link, a request (default 0)\n"
	"  --outstanding N        requests at once (default 64)\n"
	"\n"
	"The training script\n"
	"  --compute-per-batch TIME   (default 50ms)           --compute-jitter SHARE    (default 0)\n"
	"  --workers N            loader processes (default 8; 0: the trainer reads by itself)\n"
	"  --prefetch-factor N    batches in hand of each worker (default 2)\n"
	"  --hint-epochs N        further epochs written ahead (default: all at once)\n"
	"\n"
	"Many machines\n"
	"  --nodes K              K such machines share the origin, each takes every K-th batch\n"
	"  --node-bandwidth BYTES/S   what one machine's own link carries (default: no limit)\n"
	"\n"
	"Answer\n"
	"  --policy LIST          names with commas, or all (default hintfs,lru,never-evict); --list-policies\n"
	"  --json                 an object for each policy and epoch     --plot F.png     bars\n"
	"  --seed N               chance (default 1): same input, same answer\n"
	"\n"
	"Example: would 64 GiB of RAM and a 1 TiB SSD do for these shards?\n"
	"  hintfs-sim epoch.order --source /data/imagenet --epochs 3 --shuffle --memory 64G --disk 1T \\\n"
	"             --latency 1ms --bandwidth 200M --compute-per-batch 50ms --workers 8 --policy all\n"
	"Reading the table: `x bound` is seconds over what no policy can beat; 1.000 is the best there is. If the\n"
	"bound itself is too slow, buy bandwidth or cache; if only a policy is, change the policy.\n";

/* ---- words into numbers ------------------------------------------------------------------------------ */

static int parse_time(const char *s, uint64_t *ret)
{
	static const struct {
		const char *unit;
		double ns;
	} units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}};
	char *end;
	double v = strtod(s, &end);

	if (end == s || !isfinite(v) || v < 0)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(end, units[i].unit) == 0 && v * units[i].ns < 1e18) {
			*ret = (uint64_t)(v * units[i].ns);
			return 0;
		}
	return -EINVAL;
}

static int parse_share(const char *s, double *ret)
{
	char *end;
	double v = strtod(s, &end);

	if (end == s || *end || !isfinite(v) || v < 0 || v >= 1)
		return -EINVAL;
	*ret = v;
	return 0;
}

static int parse_number(const char *s, uint64_t least, uint64_t most, uint32_t *ret)
{
	uint64_t v;

	if (parse_u64(s, strlen(s), &v) || v < least || v > most)
		return -EINVAL;
	*ret = (uint32_t)v;
	return 0;
}

/* "200M" or "200M/s". */
static int parse_rate(const char *s, double *ret)
{
	size_t n = strlen(s);
	uint64_t v;

	if (n > 2 && strcmp(s + n - 2, "/s") == 0)
		n -= 2;
	if (parse_size(s, n, &v) || v == 0)
		return -EINVAL;
	*ret = (double)v;
	return 0;
}

enum option_id {
	O_SOURCE = 256, O_SIZES, O_EPOCHS, O_SHUFFLE, O_BATCH_BYTES, O_MEMORY, O_DISK, O_CHUNK, O_DISK_BW, O_LATENCY, O_BANDWIDTH, O_JITTER,
	O_OVERHEAD, O_OUTSTANDING, O_COMPUTE, O_COMPUTE_JITTER, O_WORKERS, O_PREFETCH, O_HINT_EPOCHS, O_NODES, O_NODE_BW, O_POLICY, O_JSON,
	O_PLOT, O_SEED, O_LIST, O_HELP,
};


static const struct option long_options[] = {
	{"source", required_argument, NULL, O_SOURCE},
	{"sizes", required_argument, NULL, O_SIZES},
	{"epochs", required_argument, NULL, O_EPOCHS},
	{"shuffle", no_argument, NULL, O_SHUFFLE},
	{"batch-bytes", required_argument, NULL, O_BATCH_BYTES},
	{"memory", required_argument, NULL, O_MEMORY},
	{"disk", required_argument, NULL, O_DISK},
	{"chunk", required_argument, NULL, O_CHUNK},
	{"disk-bandwidth", required_argument, NULL, O_DISK_BW},
	{"latency", required_argument, NULL, O_LATENCY},
	{"bandwidth", required_argument, NULL, O_BANDWIDTH},
	{"jitter", required_argument, NULL, O_JITTER},
	{"overhead", required_argument, NULL, O_OVERHEAD},
	{"outstanding", required_argument, NULL, O_OUTSTANDING},
	{"compute-per-batch", required_argument, NULL, O_COMPUTE},
	{"compute-jitter", required_argument, NULL, O_COMPUTE_JITTER},
	{"workers", required_argument, NULL, O_WORKERS},
	{"prefetch-factor", required_argument, NULL, O_PREFETCH},
	{"hint-epochs", required_argument, NULL, O_HINT_EPOCHS},
	{"nodes", required_argument, NULL, O_NODES},
	{"node-bandwidth", required_argument, NULL, O_NODE_BW},
	{"policy", required_argument, NULL, O_POLICY},
	{"json", no_argument, NULL, O_JSON},
	{"plot", required_argument, NULL, O_PLOT},
	{"seed", required_argument, NULL, O_SEED},
	{"list-policies", no_argument, NULL, O_LIST},
	{"help", no_argument, NULL, O_HELP},
	{NULL, 0, NULL, 0},
};

/* 0, or what the value should have been like. */
static const char *take_option(struct options *o, int which, const char *v)
{
	static const char size[] = "a size such as 64G", time[] = "a time such as 1ms, 50ms or 2s", rate[] = "bytes a second such as 200M";
	static const char share[] = "a share from 0 to 0.99", number[] = "a whole number in range";
	struct sim_config *c = &o->sim;

	switch (which) {
	case O_SOURCE:
		o->order.source = v;
		return NULL;
	case O_SIZES:
		o->order.sizes = v;
		return NULL;
	case O_EPOCHS:
		return parse_number(v, 1, 100000, &o->order.epochs) ? number : NULL;
	case O_SHUFFLE:
		o->order.is_shuffled = true;
		return NULL;
	case O_BATCH_BYTES:
		return parse_size(v, strlen(v), &o->order.batch_bytes) ? size : NULL;
	case O_MEMORY:
		return parse_size(v, strlen(v), &o->memory_bytes) ? size : NULL;
	case O_DISK:
		return parse_size(v, strlen(v), &o->disk_bytes) ? size : NULL;
	case O_CHUNK:
		return parse_size(v, strlen(v), &o->order.chunk_bytes) ? size : NULL;
	case O_DISK_BW:
		return parse_rate(v, &c->disk_bytes_per_s) ? rate : NULL;
	case O_LATENCY:
		return parse_time(v, &c->latency_ns) ? time : NULL;
	case O_BANDWIDTH:
		return parse_rate(v, &o->bandwidth) ? rate : NULL;
	case O_JITTER:
		return parse_share(v, &c->latency_jitter) ? share : NULL;
	case O_OVERHEAD:
		return parse_time(v, &c->overhead_ns) ? time : NULL;
	case O_OUTSTANDING:
		return parse_number(v, 1, 65536, &c->outstanding) ? number : NULL;
	case O_COMPUTE:
		return parse_time(v, &c->compute_ns) ? time : NULL;
	case O_COMPUTE_JITTER:
		return parse_share(v, &c->compute_jitter) ? share : NULL;
	case O_WORKERS:
		return parse_number(v, 0, 4096, &c->workers) ? number : NULL;
	case O_PREFETCH:
		return parse_number(v, 1, 4096, &c->prefetch) ? number : NULL;
	case O_HINT_EPOCHS:
		return parse_number(v, 0, 1000000, &o->order.hint_epochs) ? number : NULL;
	case O_NODES:
		return parse_number(v, 1, 1000000, &o->order.nodes) ? number : NULL;
	case O_NODE_BW:
		return parse_rate(v, &o->node_bandwidth) ? rate : NULL;
	case O_POLICY:
		o->policies = v;
		return NULL;
	case O_JSON:
		o->is_json = true;
		return NULL;
	case O_PLOT:
		o->plot = v;
		return NULL;
	case O_SEED:
		return parse_u64(v, strlen(v), &c->seed) ? number : NULL;
	}
	return NULL;
}

static int refuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int refuse(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "hintfs-sim: ");
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "; hintfs-sim --help explains\n");
	return 1;
}

static const char *option_name(int which)
{
	for (size_t i = 0; long_options[i].name; i++)
		if (long_options[i].val == which)
			return long_options[i].name;
	return "";
}

static int unknown_option(const char *arg)
{
	const char *words[sizeof(long_options) / sizeof(long_options[0])], *near;
	size_t n = 0;

	while (long_options[n].name) {
		words[n] = long_options[n].name;
		n++;
	}
	while (*arg == '-')
		arg++;
	near = parse_nearest(arg, strcspn(arg, "="), words, n);
	return near ? refuse("unknown option --%s: did you mean --%s?", arg, near) : refuse("unknown option --%s", arg);
}

/* 0: go on; 1: usage; -1: answered. */
static int read_options(struct options *o, int argc, char **argv)
{
	int which;

	opterr = 0;
	while ((which = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
		if (which == 'h' || which == O_HELP) {
			fputs(usage_text, stdout);
			return -1;
		}
		if (which == O_LIST) {
			for (size_t i = 0; sim_policies[i]; i++)
				printf("%-16s %s\n", sim_policies[i]->name, sim_policies[i]->help);
			return -1;
		}
		if (which == ':')
			return refuse("%s needs a value", argv[optind - 1]);
		if (which == '?')
			return unknown_option(argv[optind - 1]);
		const char *want = take_option(o, which, optarg);
		if (want) {
			fprintf(stderr, "hintfs-sim: --%s: %s is not %s\n", option_name(which), optarg, want);
			return 1;
		}
	}
	if (optind == argc)
		return refuse("no order given");
	if (optind + 1 < argc)
		return refuse("one order at a time: %s is too much", argv[optind + 1]);
	o->order.order = argv[optind];
	if (!o->order.source == !o->order.sizes)
		return refuse("sizes are needed: give one of --source DIR and --sizes FILE");
	return 0;
}

/* ---- the machine ---------------------------------------------------------------------------------------- */

static int to_pages(uint64_t bytes, uint64_t chunk, uint32_t *ret)
{
	if (bytes / chunk >= 1u << 28)
		return -ERANGE;
	*ret = (uint32_t)(bytes / chunk);
	return 0;
}

static int machine_of(struct options *o)
{
	uint64_t chunk = o->order.chunk_bytes;
	double share = o->bandwidth / o->order.nodes;

	if (chunk < 65536 || chunk > (16u << 20) || (chunk & (chunk - 1)))
		return refuse("--chunk: a power of two from 64K to 16M is needed");
	if (to_pages(o->memory_bytes, chunk, &o->sim.slots) || to_pages(o->disk_bytes, chunk, &o->sim.disk_pages))
		return refuse("more than 2^28 chunks of cache: use a larger --chunk");
	if (o->sim.slots < 4)
		return refuse("--memory holds fewer than 4 chunks: give more memory or a smaller --chunk");
	o->sim.bandwidth_bytes_per_s = o->node_bandwidth > 0 && o->node_bandwidth < share ? o->node_bandwidth : share;
	/* The origin's work a request is shared like its bandwidth. */
	o->sim.overhead_ns *= o->order.nodes;
	o->sim.epochs_ahead = o->order.hint_epochs;
	o->order.workers = o->sim.workers;
	o->order.seed = o->sim.seed;
	return 0;
}

static int pick_policies(const char *list, const struct sim_policy_ops **ret, size_t *ret_n)
{
	static const char standard[] = "hintfs,lru,never-evict";
	char *copy = strdup(list ? list : standard), *save = NULL;
	const char *names[POLICIES_MAX];
	size_t n = 0, known = 0;
	int rc = 0;

	if (!copy)
		return 2;
	while (known < POLICIES_MAX && sim_policies[known]) {
		names[known] = sim_policies[known]->name;
		known++;
	}
	if (strcmp(copy, "all") == 0)
		for (; n < known; n++)
			ret[n] = sim_policies[n];
	else
		for (char *w = strtok_r(copy, ",", &save); w && rc == 0; w = strtok_r(NULL, ",", &save)) {
			ret[n] = n < POLICIES_MAX ? sim_policy_find(w) : NULL;
			if (!ret[n]) {
				const char *near = parse_nearest(w, strlen(w), names, known);

				rc = near ? refuse("unknown policy %s: did you mean %s?", w, near) :
					    refuse("unknown policy %s: --list-policies names them", w);
			}
			n += rc == 0;
		}
	if (rc == 0 && n == 0)
		rc = refuse("--policy names none");
	free(copy);
	*ret_n = n;
	return rc;
}

/* ---- running --------------------------------------------------------------------------------------------- */

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	fprintf(stderr, "\r%-16s %3" PRIu64 " %% ", (const char *)arg, all ? done * 100 / all : 0);
}

static void describe(const struct options *o, const struct order_info *i)
{
	char x[4][24];

	printf("%" PRIu64 " files, %s; %" PRIu64 " epochs, %" PRIu64 " batches, %" PRIu64 " reads%s\n", i->files,
	       report_bytes((double)i->dataset_bytes, x[0], sizeof(x[0])), i->epochs, i->batches, i->reads,
	       i->is_cut ? " (no @batch marks: files are cut by --batch-bytes, each worker has its own)" : "");
	if (i->missing)
		printf("%" PRIu64 " of %" PRIu64 " entries name files that are not there: passed over\n", i->missing, i->entries);
	printf("cache %s memory + %s disk = %.0f %% of the dataset; origin %s/s", report_bytes((double)o->memory_bytes, x[0], sizeof(x[0])),
	       report_bytes((double)o->disk_bytes, x[1], sizeof(x[1])),
	       i->dataset_bytes ? 100.0 * (double)(o->memory_bytes + o->disk_bytes) / (double)i->dataset_bytes : 0,
	       report_bytes(o->sim.bandwidth_bytes_per_s, x[2], sizeof(x[2])));
	if (o->order.nodes > 1)
		printf(" for this one of %u nodes", o->order.nodes);
	printf(", %.3g ms\n\n", (double)o->sim.latency_ns / 1e6);
}

/* What all nodes together ask of the origin, and what it is that an epoch waits for. */
static void describe_nodes(const struct options *o, const struct report_row *row, const struct sim_bound *b)
{
	struct report_sum s;
	char x[24];
	double load;

	report_sum(&row->res, b, &s);
	load = s.later_s > 0 ? s.later_origin_bytes / s.later_s * o->order.nodes : 0;
	printf("\n%u nodes with %s: the origin carries %s/s, %.0f %% of what it can; an epoch waits for %s\n", o->order.nodes, row->policy,
	       report_bytes(load, x, sizeof(x)), 100 * load / o->bandwidth,
	       s.later_stall_s < 0.05 * s.later_s				     ? "the computing" :
	       o->sim.bandwidth_bytes_per_s < o->bandwidth / o->order.nodes * 0.999 ? "the node's own link" :
	       load > 0.8 * o->bandwidth					     ? "the origin's bandwidth" :
										       "latency");
}

static int report_all(const struct options *o, const struct order_info *info, const struct report_row *rows, size_t n,
		      const struct sim_bound *b)
{
	int rc = 0;

	if (o->is_json) {
		report_json(stdout, rows, n, b);
	} else {
		describe(o, info);
		report_table(stdout, rows, n, b);
		if (o->order.nodes > 1)
			describe_nodes(o, &rows[0], b);
	}
	if (o->plot)
		rc = report_plot(o->plot, rows, n, b);
	if (rc)
		fprintf(stderr, "hintfs-sim: picture %s: %s: choose a path that can be written\n", o->plot, strerror(-rc));
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "hintfs-sim: writing the answer failed: %s\n", strerror(errno));
		rc = -EIO;
	}
	return rc ? 2 : 0;
}

static int run_all(struct options *o, const struct sim_policy_ops **policies, size_t n, const struct sim_work *w,
		   const struct order_info *info)
{
	struct report_row rows[POLICIES_MAX] = {0};
	struct sim_bound b;
	bool is_terminal = isatty(STDERR_FILENO);
	int rc = sim_bound_init(w, &o->sim, &b);
	size_t done = 0;

	for (; rc == 0 && done < n; done++) {
		rows[done].policy = policies[done]->name;
		if (is_terminal) {
			o->sim.progress = show_progress;
			o->sim.progress_arg = (void *)(uintptr_t)policies[done]->name;
		}
		rc = sim_run(w, &o->sim, policies[done], &rows[done].res);
		if (rc)
			break;
	}
	if (is_terminal)
		fprintf(stderr, "\r%-24s\r", "");
	if (rc)
		fprintf(stderr, "hintfs-sim: %s: simulate fewer epochs or a larger --chunk\n", strerror(-rc));
	else
		rc = report_all(o, info, rows, n, &b);
	for (size_t i = 0; i < done; i++)
		sim_result_finish(&rows[i].res);
	sim_bound_finish(&b);
	return rc < 0 ? 2 : rc;
}

int main(int argc, char **argv)
{
	struct options o = {.memory_bytes = 8ULL << 30, .bandwidth = 200.0 * 1024 * 1024};
	const struct sim_policy_ops *policies[POLICIES_MAX];
	struct order_info info;
	struct sim_work w;
	size_t n;
	int rc;

	sim_config_default(&o.sim);
	o.order.chunk_bytes = 1 << 20;
	o.order.batch_bytes = 32 << 20;
	o.order.nodes = 1;
	o.order.hint_epochs = SIM_NONE;
	rc = read_options(&o, argc, argv);
	if (rc)
		return rc < 0 ? 0 : 1;
	rc = machine_of(&o);
	rc = rc ? rc : pick_policies(o.policies, policies, &n);
	if (rc)
		return rc;
	rc = order_load(&o.order, &w, &info);
	if (rc) {
		fprintf(stderr, "hintfs-sim: %s\n", info.message);
		return 2;
	}
	rc = run_all(&o, policies, n, &w, &info);
	sim_work_finish(&w);
	return rc;
}
