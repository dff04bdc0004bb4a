/* SPDX-License-Identifier: Apache-2.0 */
/* sched/rows: against plain arrays, for every mixture of streams, steps and parts of pages. */
#include "sched/sched_i.h"
#include "tests/unit/sched/rnd.h"

#include <criterion/criterion.h>

#define N 5000u
#define WHOLE 255u

static struct sched world; /* what the inline readers want: rows, and streams for their visit_base */
static struct stream streams[SCHED_STREAMS_MAX + 1];
static struct seat seats[N];
static uint32_t n_seats;

static void begin(void)
{
	sch_rows_finish(&world.pos.rows);
	world.pos.rows.whole = WHOLE;
	world.streams = streams;
	streams[1].visit_base = 1ULL << 40;
	n_seats = 0;
	cr_assert_eq(sch_rows_reserve(&world.pos.rows, N), 0);
}

static void compare(void)
{
	for (uint32_t p = 0; p < n_seats; p++) {
		struct block_run r = sch_position_blocks(&world, p);

		cr_assert_eq(sch_position_owner(&world, p), seats[p].stream, "owner of %u", p);
		if (seats[p].stream != SCH_NOBODY)
			cr_assert_eq(sch_position_visit(&world, p),
				     streams[seats[p].stream].visit_base + seats[p].visit, "visit of %u", p);
		cr_assert(r.b0 == seats[p].b0 && r.b1 == seats[p].b1, "blocks of %u", p);
	}
}

static void put(struct seat x)
{
	cr_assert_eq(sch_rows_put(&world.pos.rows, n_seats, &x), 0);
	seats[n_seats++] = x;
}

static void run(uint32_t n, uint32_t stream, uint32_t visit)
{
	cr_assert_eq(sch_rows_run(&world.pos.rows, n_seats, n, stream, visit), n);
	for (uint32_t i = 0; i < n; i++)
		seats[n_seats++] = (struct seat){.visit = visit + i, .stream = (uint16_t)stream, .b1 = WHOLE};
}

/* odds: one in so many is not what the one before leads to; 0: none. */
static void fill(uint32_t odds, uint32_t parts)
{
	uint32_t visit[4] = {0}, stream = 0;

	begin();
	while (n_seats < N - 64) {
		struct seat x = {.b1 = WHOLE};

		if (odds && rnd(odds) == 0)
			stream = rnd(4);
		if (odds && rnd(odds) == 0)
			visit[stream] += rnd(1000);
		if (rnd(8) == 0) {
			uint32_t n = 1 + rnd(40);

			run(n, stream, visit[stream]);
			visit[stream] += n;
			continue;
		}
		x.stream = (uint16_t)stream;
		x.visit = visit[stream];
		visit[stream] += rnd(3) > 0; /* a visit of several pages */
		if (parts && rnd(parts) == 0) {
			x.b0 = (uint8_t)rnd(200);
			x.b1 = (uint8_t)(x.b0 + rnd(50));
		}
		put(x);
	}
}

Test(rows, like_arrays)
{
	static const uint32_t odds[] = {0, 2, 7, 40, 400};

	for (size_t k = 0; k < sizeof(odds) / sizeof(odds[0]); k++)
		for (size_t i = 0; i < sizeof(odds) / sizeof(odds[0]); i++) {
			fill(odds[k], odds[i]);
			compare();
		}
	sch_rows_finish(&world.pos.rows);
}

Test(rows, withdrawn_and_changed)
{
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t gone = rnd(4);

		fill(1 + rnd(60), rnd(20));
		for (uint32_t i = 0; i < 200; i++) {
			uint32_t p = rnd(n_seats);

			seats[p].b0 = (uint8_t)rnd(100);
			seats[p].b1 = (uint8_t)(seats[p].b0 + rnd(100));
			cr_assert_eq(sch_rows_blocks_set(&world.pos.rows, p, seats[p].b0, seats[p].b1), 0);
		}
		sch_rows_withdraw(&world.pos.rows, 0, n_seats, gone);
		for (uint32_t p = 0; p < n_seats; p++)
			if (seats[p].stream == gone)
				seats[p].stream = SCH_NOBODY;
		compare();
		put((struct seat){
			.stream = (uint16_t)gone, .visit = 3, .b1 = WHOLE}); /* it may come back in the same row */
		run(20, gone, 4);
		compare();
	}
	sch_rows_finish(&world.pos.rows);
}

Test(rows, plain_ones_take_twelve_bytes)
{
	begin();
	for (uint32_t i = 0; i < N / 50; i++)
		run(50, 1, i * 50);
	compare();
	cr_assert_eq(sch_rows_bytes(&world.pos.rows),
		     (uint64_t)(N / SCH_ROW + (N % SCH_ROW != 0)) * sizeof(struct row));
	cr_assert_eq(sizeof(struct row), 12);
	sch_rows_finish(&world.pos.rows);
}
