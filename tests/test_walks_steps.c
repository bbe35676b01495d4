/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: an engine of several ranks keeps one table on all of them, an engine whose step fails goes
 * on with what was really computed, and an engine with tables of its own gets the same from the
 * pool alone. Method: as in test_walks.c. What a failed step should have written is never written,
 * so a hit on it reads rubbish and fails the test. */
#include "support/fixture.h"
#include "support/mirror_device.h"

#include <string.h>

/* ---- four ranks ------------------------------------------------------------------------------ */

#define NUM_RANKS 4

static device ranks[NUM_RANKS];

/* The scheduler's process drains once and sends the same cells to every rank. */
static void broadcast_table(pkv_manager *manager) {
    pkv_table_update updates[5];
    int32_t num_updates;
    pkv_status status;

    do {
        status = pkv_take_table_updates(manager, 0, updates, 5, &num_updates);
        for (int32_t rank = 0; rank < NUM_RANKS; rank++) {
            for (int32_t i = 0; i < num_updates; i++) {
                ranks[rank].table[updates[i].row][updates[i].column] = updates[i].block_id;
            }
        }
    } while (status == PKV_MORE);
    assert_int_equal(status, PKV_OK);
}

static void assert_ranks_have_table(const pkv_manager *manager, pkv_request request) {
    const pkv_block_id *table;
    int32_t num_blocks;

    assert_int_equal(pkv_get_block_table(manager, request, 0, &table, &num_blocks), PKV_OK);
    for (int32_t rank = 0; rank < NUM_RANKS; rank++) {
        assert_memory_equal(ranks[rank].table[info_of(manager, request).row], table,
                            (size_t)num_blocks * sizeof *table);
    }
}

static void four_ranks_keep_one_table_and_one_of_them_starts_anew(void **state) {
    pkv_manager *manager = make_walk_manager(61, 4);
    pkv_request requests[5];

    (void)state;
    for (int32_t rank = 0; rank < NUM_RANKS; rank++) {
        ranks[rank] = make_device(0, 4, 0);
    }
    for (int32_t i = 0; i < 5; i++) {
        requests[i] = open_prompt(manager, "0..7 %d*%d", 1 + i, 50 + i);
        admit(manager, requests[i]);
    }
    for (int32_t step = 0; step < 40; step++) {
        pkv_request request = requests[step % 5];

        append_tokens(manager, request, "%d", step);
        assert_int_equal(allocate(manager, request, info_of(manager, request).num_tokens - 1, 1),
                         PKV_OK);
        if (step % 7 == 3) {
            assert_int_equal(pkv_free(manager, request), PKV_OK);
            admit(manager, request);
        }
        if (step == 20) {
            /* Updates cannot be replayed; the whole table is sent once more, to all. */
            memset(ranks[2].table, 0x7b, sizeof ranks[2].table);
            assert_int_equal(pkv_mark_tables_dirty(manager), PKV_OK);
        }
        broadcast_table(manager);
        for (int32_t i = 0; i < 5; i++) {
            assert_ranks_have_table(manager, requests[i]);
        }
    }
}

/* ---- a failed step with another behind it ---------------------------------------------------- */

#define NUM_SEQUENCES 4
#define PROMPT_TOKENS 60
#define CHUNK 16

typedef struct flight {
    step_arrays arrays;
    pkv_batch_entry entries[NUM_SEQUENCES];
    int32_t num_entries;
    uint64_t step;
} flight;

typedef struct pipeline {
    pkv_manager *manager;
    device target;
    pkv_request requests[NUM_SEQUENCES];
    int32_t num_computed[NUM_SEQUENCES];
    flight flights[2]; /* the older first */
    int32_t num_flights;
} pipeline;

/* Schedule the next chunk of every sequence that is not done. */
static void pipeline_schedule(pipeline *own, uint64_t step) {
    flight *next = &own->flights[own->num_flights++];

    memset(next, 0, sizeof *next);
    next->step = step;
    for (int32_t i = 0; i < NUM_SEQUENCES; i++) {
        bool is_new = info_of(own->manager, own->requests[i]).row == PKV_NULL_ROW;
        int32_t first = is_new ? find_hit(own->manager, own->requests[i]) : own->num_computed[i];
        int32_t count = PROMPT_TOKENS - first < CHUNK ? PROMPT_TOKENS - first : CHUNK;
        pkv_slots_args args = slots_of(is_new ? 0 : first, count);

        if (count == 0) {
            continue;
        }
        args.num_new_computed_tokens = is_new ? first : 0;
        args.step = step;
        assert_int_equal(pkv_allocate_slots(own->manager, own->requests[i], &args, NULL), PKV_OK);
        next->entries[next->num_entries++] = (pkv_batch_entry){own->requests[i], first, count};
        own->num_computed[i] = first + count;
    }
    send_table(&own->target, own->manager);
    build_batch(&next->arrays, &own->target, own->manager, next->entries, next->num_entries);
}

/* Run the older flight. */
static void pipeline_run(pipeline *own) {
    flight *oldest = &own->flights[0];

    write_tokens(&own->target, &oldest->arrays, own->manager, oldest->entries);
    read_tokens(&own->target, &oldest->arrays, own->manager, oldest->entries);
    assert_int_equal(pkv_step_complete(own->manager, oldest->step), PKV_OK);
    own->flights[0] = own->flights[1];
    own->num_flights--;
}

/* The older flight failed: everything of it and behind it is taken back. */
static void pipeline_fail(pipeline *own) {
    assert_int_equal(pkv_step_fail(own->manager, own->flights[0].step), PKV_OK);
    for (int32_t i = 0; i < NUM_SEQUENCES; i++) {
        assert_int_equal(pkv_free(own->manager, own->requests[i]), PKV_OK);
        own->num_computed[i] = 0;
    }
    own->num_flights = 0;
}

/* Play a run in which the step `fail_at` fails once, with the next one scheduled behind it. */
static void run_with_failure(uint64_t fail_at) {
    static pipeline own;
    bool has_failed = false;
    uint64_t step = 1;

    memset(&own, 0, sizeof own);
    own.manager = make_walk_manager(81, 8);
    own.target = make_device(0, 8, 0);
    for (int32_t i = 0; i < NUM_SEQUENCES; i++) {
        /* All begin with three equal blocks, so they hit what the first publishes in their step. */
        own.requests[i] = open_prompt(own.manager, "0..23 %d..%d", 100 * (i / 2 + 1) + i,
                                      100 * (i / 2 + 1) + i + PROMPT_TOKENS - 25);
    }
    for (;;) {
        bool is_done = true;

        for (int32_t i = 0; i < NUM_SEQUENCES; i++) {
            is_done = is_done && own.num_computed[i] == PROMPT_TOKENS;
        }
        if (!is_done) {
            pipeline_schedule(&own, step++);
        }
        if (own.num_flights == 2 || (is_done && own.num_flights > 0)) {
            if (own.flights[0].step == fail_at && !has_failed) {
                pipeline_fail(&own);
                has_failed = true;
                step = fail_at;
                continue;
            }
            pipeline_run(&own);
        }
        if (is_done && own.num_flights == 0) {
            break;
        }
    }
    assert_int_equal(has_failed, fail_at != 0);
    for (int32_t i = 0; i < NUM_SEQUENCES; i++) {
        const pkv_batch_entry entry = {own.requests[i], PROMPT_TOKENS - 1, 1};
        step_arrays arrays = {0};

        build_batch(&arrays, &own.target, own.manager, &entry, 1);
        read_tokens(&own.target, &arrays, own.manager, &entry);
        end_request(own.manager, own.requests[i]);
    }
    assert_int_equal(num_free_blocks(own.manager), 80);
}

static void failed_step_with_one_behind_it_is_computed_again(void **state) {
    (void)state;
    for (uint64_t fail_at = 0; fail_at <= 3; fail_at++) {
        run_with_failure(fail_at);
    }
}

/* ---- tables of one's own --------------------------------------------------------------------- */

#define POOL_BLOCK 4
#define MAX_SEQUENCE_BLOCKS 12
#define MAX_LIVE 6

typedef struct sequence {
    int32_t num_tokens, num_blocks;
    int32_t token_ids[MAX_SEQUENCE_BLOCKS * POOL_BLOCK];
    pkv_block_key keys[MAX_SEQUENCE_BLOCKS];
    pkv_block_id table[MAX_SEQUENCE_BLOCKS];
} sequence;

typedef struct own_tables {
    pkv_pool *pool;
    int32_t slots[MAX_SLOTS];
    sequence live[MAX_LIVE]; /* oldest first */
    int32_t num_live;
    int32_t num_hit_blocks;
    uint64_t seed;
} own_tables;

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

/* Read a sequence back, then free its table from the end. */
static void end_oldest(own_tables *own) {
    sequence *oldest = &own->live[0];
    pkv_block_id reversed[MAX_SEQUENCE_BLOCKS];

    for (int32_t position = 0; position < oldest->num_tokens; position++) {
        int64_t slot = pkv_compute_slot(oldest->table, POOL_BLOCK, position);

        assert_int_equal(own->slots[slot], oldest->token_ids[position]);
    }
    for (int32_t i = 0; i < oldest->num_blocks; i++) {
        reversed[i] = oldest->table[oldest->num_blocks - 1 - i];
    }
    assert_int_equal(pkv_pool_free_blocks(own->pool, reversed, oldest->num_blocks), PKV_OK);
    own->num_live--;
    memmove(&own->live[0], &own->live[1], (size_t)own->num_live * sizeof own->live[0]);
}

/* A prompt of one of three families, and its keys. */
static void begin_sequence(own_tables *own, sequence *made) {
    const pkv_key_args args = {.struct_size = sizeof args, .block_size = POOL_BLOCK};
    int32_t family = (int32_t)(next_random(&own->seed) % 3);

    made->num_tokens = 1 + (int32_t)(next_random(&own->seed) % (MAX_SEQUENCE_BLOCKS * POOL_BLOCK));
    for (int32_t i = 0; i < made->num_tokens; i++) {
        made->token_ids[i] = i < 20 ? 1000 * family + i : (int32_t)(next_random(&own->seed) % 3);
    }
    assert_int_equal(
        pkv_compute_block_keys(&args, NULL, 0, made->token_ids, made->num_tokens, made->keys, NULL),
        PKV_OK);
    made->num_blocks = (made->num_tokens + POOL_BLOCK - 1) / POOL_BLOCK;
}

/* Match, acquire, write, publish: all that an engine does to admit a sequence. */
static pkv_status admit_sequence(own_tables *own, sequence *made) {
    int32_t num_full = made->num_tokens / POOL_BLOCK;
    int32_t num_hits = 0;
    pkv_status status;

    assert_int_equal(pkv_pool_match(own->pool, 0, made->keys, NULL,
                                    (made->num_tokens - 1) / POOL_BLOCK, made->table, &num_hits),
                     PKV_OK);
    status = pkv_pool_acquire(own->pool, 0, made->table, made->keys, num_hits,
                              made->num_blocks - num_hits, made->table + num_hits);
    if (status != PKV_OK) {
        return status;
    }
    for (int32_t position = num_hits * POOL_BLOCK; position < made->num_tokens; position++) {
        own->slots[pkv_compute_slot(made->table, POOL_BLOCK, position)] = made->token_ids[position];
    }
    own->num_hit_blocks += num_hits;
    return pkv_pool_cache_blocks(own->pool, 0, made->table + num_hits, made->keys + num_hits, NULL,
                                 num_full - num_hits);
}

static void engine_with_its_own_tables_lives_on_the_pool_alone(void **state) {
    static own_tables own;

    (void)state;
    memset(&own, 0, sizeof own);
    own.pool = make_small_pool(31, POOL_BLOCK);
    own.seed = 7;
    for (int32_t round = 0; round < 3000; round++) {
        sequence made = {0};
        pkv_status status;

        begin_sequence(&own, &made);
        while ((status = admit_sequence(&own, &made)) == PKV_NO_FREE_BLOCKS) {
            end_oldest(&own);
        }
        assert_int_equal(status, PKV_OK);
        if (own.num_live == MAX_LIVE) {
            end_oldest(&own);
        }
        own.live[own.num_live++] = made;
    }
    while (own.num_live > 0) {
        end_oldest(&own);
    }
    assert_int_equal(pkv_pool_get_num_free_blocks(own.pool), 30);
    assert_true(own.num_hit_blocks > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(four_ranks_keep_one_table_and_one_of_them_starts_anew),
        fixture_test(failed_step_with_one_behind_it_is_computed_again),
        fixture_test(engine_with_its_own_tables_lives_on_the_pool_alone),
    };

    return cmocka_run_group_tests_name("walks: steps", tests, NULL, NULL);
}
