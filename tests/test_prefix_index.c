/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the prefix index finds the oldest block of a key, whatever was inserted and removed, and
 * forgets no entry when probe sequences overlap. Method: the cases of vLLM V1's map by hand, then a
 * long seeded run against a plain array that says who is oldest. */
#include "support/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "pool/prefix_index.h"

#define NUM_BLOCKS 64
#define NUM_GROUPS 2
#define NUM_KEYS 24

typedef struct index_state {
    struct pkvi_prefix_index index;
    struct pkvi_block_entry entries[NUM_BLOCKS];
    struct pkvi_block_state states[NUM_BLOCKS];
    int32_t copy_counts[NUM_BLOCKS];
    void *slots;
} index_state;

/* ---- helpers --------------------------------------------------------------------------------- */

static int index_setup(void **state) {
    index_state *own = calloc(1, sizeof *own);
    struct pkvi_carver measure = {NULL, 0, false};
    struct pkvi_carver carver = {NULL, 0, false};

    if (own == NULL) {
        return -1;
    }
    pkvi_prefix_index_carve(&own->index, &measure, NUM_BLOCKS);
    own->slots = aligned_alloc(PKVI_ALIGNMENT, measure.offset);
    carver.base = own->slots;
    pkvi_prefix_index_carve(&own->index, &carver, NUM_BLOCKS);
    own->index.entries = own->entries;
    own->index.states = own->states;
    own->index.copy_counts = own->copy_counts;
    *state = own;
    return carver.offset == measure.offset ? 0 : -1;
}

static int index_teardown(void **state) {
    index_state *own = *state;
    pkv_block_id culprit = 0;
    const char *problem = pkvi_prefix_index_check(&own->index, NUM_BLOCKS, &culprit);

    if (problem != NULL) {
        print_error("block %d: %s\n", culprit, problem);
    }
    free(own->slots);
    free(own);
    return problem == NULL ? 0 : -1;
}

static pkv_block_key key_of(uint64_t number) {
    return (pkv_block_key){number, number, number};
}

static int32_t insert(index_state *own, pkv_block_id block, int32_t group, pkv_block_key key) {
    own->entries[block].key = key;
    own->states[block].group = (uint8_t)group;
    return pkvi_prefix_index_insert(&own->index, block,
                                    pkvi_prefix_index_home(&own->index, group, &key));
}

static int32_t take_out(index_state *own, pkv_block_id block) {
    int32_t group = (int32_t)own->states[block].group;

    return pkvi_prefix_index_remove(
        &own->index, block, pkvi_prefix_index_home(&own->index, group, &own->entries[block].key));
}

static pkv_block_id find(index_state *own, int32_t group, pkv_block_key key) {
    return pkvi_prefix_index_find(&own->index, group, &key, NULL, 0);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static void prefix_index_one_block_per_key_is_found_until_removed(void **state) {
    index_state *own = *state;

    insert(own, 10, 0, key_of(1));
    insert(own, 11, 0, key_of(2));
    assert_int_equal(find(own, 0, key_of(1)), 10);
    assert_int_equal(find(own, 0, key_of(2)), 11);
    assert_int_equal(find(own, 0, key_of(3)), PKV_NULL_BLOCK);

    assert_int_equal(take_out(own, 10), 0);
    assert_int_equal(find(own, 0, key_of(1)), PKV_NULL_BLOCK);
    assert_int_equal(find(own, 0, key_of(2)), 11);
    assert_int_equal(own->index.num_distinct, 1);
    assert_int_equal(own->index.num_keyed, 1);
}

static void prefix_index_several_blocks_oldest_left_answers(void **state) {
    index_state *own = *state;

    assert_int_equal(insert(own, 20, 0, key_of(1)), 1);
    assert_int_equal(insert(own, 10, 0, key_of(1)), 2);
    assert_int_equal(find(own, 0, key_of(1)), 20);
    assert_int_equal(own->index.num_distinct, 1);

    assert_int_equal(take_out(own, 20), 1);
    assert_int_equal(find(own, 0, key_of(1)), 10);
    assert_int_equal(take_out(own, 10), 0);
    assert_int_equal(find(own, 0, key_of(1)), PKV_NULL_BLOCK);
    assert_int_equal(own->index.num_distinct, 0);
}

static void prefix_index_middle_copy_removed_keeps_age_order(void **state) {
    index_state *own = *state;

    insert(own, 3, 0, key_of(1));
    insert(own, 2, 0, key_of(1));
    insert(own, 1, 0, key_of(1));
    assert_int_equal(pkvi_prefix_index_num_copies(&own->index, 2), 3);

    assert_int_equal(take_out(own, 2), 2);
    assert_int_equal(find(own, 0, key_of(1)), 3);
    /* Inserted again it is the youngest. */
    assert_int_equal(insert(own, 2, 0, key_of(1)), 3);
    assert_int_equal(take_out(own, 3), 2);
    assert_int_equal(find(own, 0, key_of(1)), 1);
    assert_int_equal(take_out(own, 1), 1);
    assert_int_equal(find(own, 0, key_of(1)), 2);
}

static void prefix_index_groups_do_not_see_each_other(void **state) {
    index_state *own = *state;

    insert(own, 1, 0, key_of(7));
    insert(own, 2, 1, key_of(7));
    assert_int_equal(own->index.num_distinct, 2);
    assert_int_equal(find(own, 0, key_of(7)), 1);
    assert_int_equal(find(own, 1, key_of(7)), 2);
    take_out(own, 1);
    assert_int_equal(find(own, 0, key_of(7)), PKV_NULL_BLOCK);
    assert_int_equal(find(own, 1, key_of(7)), 2);
}

static void prefix_index_other_lineage_is_another_key_and_counted(void **state) {
    index_state *own = *state;
    const pkv_block_key honest = {1, 2, 3};
    const pkv_block_key forged = {1, 2, 4};

    insert(own, 1, 0, honest);
    assert_int_equal(own->index.num_collisions_rejected, 0);
    assert_int_equal(find(own, 0, forged), PKV_NULL_BLOCK);
    assert_int_equal(own->index.num_collisions_rejected, 1);

    insert(own, 2, 0, forged);
    assert_int_equal(own->index.num_distinct, 2);
    assert_int_equal(find(own, 0, honest), 1);
    assert_int_equal(find(own, 0, forged), 2);
}

static void prefix_index_match_stops_at_the_first_miss(void **state) {
    index_state *own = *state;
    pkv_block_key keys[20];
    pkv_block_id hits[20];
    struct pkvi_index_query query = {.cursor = {.keys = keys, .key_stride = 1}, .num_keys = 20};

    for (int32_t i = 0; i < 20; i++) {
        keys[i] = key_of(100 + (uint64_t)i);
        if (i != 17) {
            insert(own, 1 + i, 0, keys[i]);
        }
    }
    assert_int_equal(pkvi_prefix_index_match(&own->index, &query, hits), 17);
    for (int32_t i = 0; i < 17; i++) {
        assert_int_equal(hits[i], 1 + i);
    }
    query.num_keys = 0;
    assert_int_equal(pkvi_prefix_index_match(&own->index, &query, hits), 0);
}

static void prefix_index_match_with_stride_reads_every_other_key(void **state) {
    index_state *own = *state;
    pkv_block_key keys[6];
    pkv_block_id hits[3];
    /* The cursor starts with the last key of the first block. */
    const struct pkvi_index_query query = {
        .cursor = {.keys = keys, .key_stride = 2, .offset = 1}, .num_keys = 3, .group = 1};

    for (int32_t i = 0; i < 6; i++) {
        keys[i] = key_of((uint64_t)i);
    }
    insert(own, 5, 1, keys[1]);
    insert(own, 6, 1, keys[3]);
    insert(own, 7, 1, keys[5]);
    assert_int_equal(pkvi_prefix_index_match(&own->index, &query, hits), 3);
    assert_string_equal(ids_text(hits, 3), "5 6 7");
}

static void prefix_index_match_reads_keys_that_lie_in_pieces(void **state) {
    index_state *own = *state;
    static pkv_block_key keys[5 * 8];
    const int32_t pieces[4] = {3, 0, 4, 1};
    pkv_block_id hits[32];
    struct pkvi_index_query query = {
        .cursor = {.keys = keys, .pieces = pieces, .keys_per_piece = 8, .key_stride = 1},
        .num_keys = 32};

    for (int32_t i = 0; i < 32; i++) {
        keys[pieces[i / 8] * 8 + i % 8] = key_of(500 + (uint64_t)i);
        insert(own, 1 + i, 0, key_of(500 + (uint64_t)i));
    }
    for (int32_t first = 0; first < 32; first++) {
        query.cursor.piece = first / 8;
        query.cursor.offset = first % 8;
        query.num_keys = 32 - first;
        assert_int_equal(pkvi_prefix_index_match(&own->index, &query, hits), 32 - first);
        for (int32_t i = first; i < 32; i++) {
            assert_int_equal(hits[i - first], 1 + i);
        }
    }
}

static void prefix_index_stored_tokens_oldest_equal_copy_answers(void **state) {
    index_state *own = *state;
    const pkv_block_key key = key_of(9);
    static int32_t stored[NUM_BLOCKS * 2];
    const int32_t wanted[2] = {30, 31};

    memset(stored, 0, sizeof stored);
    own->index.stored_tokens = stored;
    own->index.tokens_per_block = 2;
    stored[2 * 4] = 30;
    stored[2 * 5] = 30;
    stored[2 * 5 + 1] = 31;
    insert(own, 4, 0, key);
    insert(own, 5, 0, key);
    assert_int_equal(pkvi_prefix_index_find(&own->index, 0, &key, wanted, 2), 5);
    assert_int_equal(own->index.num_collisions_rejected, 1);
    take_out(own, 5);
    assert_int_equal(pkvi_prefix_index_find(&own->index, 0, &key, wanted, 2), PKV_NULL_BLOCK);
}

static void prefix_index_clear_forgets_everything(void **state) {
    index_state *own = *state;

    for (int32_t block = 1; block < 20; block++) {
        insert(own, block, 0, key_of((uint64_t)block / 2));
    }
    pkvi_prefix_index_clear(&own->index, NUM_BLOCKS);
    assert_int_equal(own->index.num_distinct, 0);
    assert_int_equal(own->index.num_keyed, 0);
    for (int32_t block = 1; block < 20; block++) {
        assert_int_equal(find(own, 0, key_of((uint64_t)block / 2)), PKV_NULL_BLOCK);
        assert_false(own->states[block].is_keyed);
    }
}

/* ---- against a plain array ------------------------------------------------------------------- */

typedef struct age_model {
    uint64_t born[NUM_BLOCKS]; /* 0 = not in the index */
    int32_t key[NUM_BLOCKS], group[NUM_BLOCKS];
    uint64_t now;
} age_model;

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static pkv_block_id oldest_in_model(const age_model *model, int32_t group, int32_t key) {
    pkv_block_id oldest = PKV_NULL_BLOCK;

    for (pkv_block_id block = 1; block < NUM_BLOCKS; block++) {
        if (model->born[block] != 0 && model->key[block] == key && model->group[block] == group &&
            (oldest == PKV_NULL_BLOCK || model->born[block] < model->born[oldest])) {
            oldest = block;
        }
    }
    return oldest;
}

static int32_t copies_in_model(const age_model *model, int32_t group, int32_t key) {
    int32_t num_copies = 0;

    for (pkv_block_id block = 1; block < NUM_BLOCKS; block++) {
        num_copies +=
            model->born[block] != 0 && model->key[block] == key && model->group[block] == group;
    }
    return num_copies;
}

/* Put one random block in or take it out, in both, and compare the counts of copies. */
static void change_both(index_state *own, age_model *model, uint64_t *seed) {
    pkv_block_id block = 1 + (pkv_block_id)(next_random(seed) % (NUM_BLOCKS - 1));
    int32_t num_copies;

    if (model->born[block] != 0) {
        num_copies = take_out(own, block);
        model->born[block] = 0;
    } else {
        model->key[block] = (int32_t)(next_random(seed) % NUM_KEYS);
        model->group[block] = (int32_t)(next_random(seed) % NUM_GROUPS);
        model->born[block] = ++model->now;
        /* Multiples of one word: the worst case for a hash that only shifts. */
        num_copies =
            insert(own, block, model->group[block], key_of((uint64_t)model->key[block] << 40));
    }
    assert_int_equal(num_copies, copies_in_model(model, model->group[block], model->key[block]));
}

static void prefix_index_random_changes_agree_with_a_plain_array(void **state) {
    index_state *own = *state;
    static age_model model;
    uint64_t seed = 20260817;

    memset(&model, 0, sizeof model);
    for (int32_t round = 0; round < 20000; round++) {
        pkv_block_id culprit;

        change_both(own, &model, &seed);
        if (round % 64 == 0) {
            assert_null(pkvi_prefix_index_check(&own->index, NUM_BLOCKS, &culprit));
        }
        for (int32_t key = round % 7; key < NUM_KEYS; key += 7) {
            for (int32_t group = 0; group < NUM_GROUPS; group++) {
                assert_int_equal(find(own, group, key_of((uint64_t)key << 40)),
                                 oldest_in_model(&model, group, key));
            }
        }
    }
}

#define index_test(function) cmocka_unit_test_setup_teardown(function, index_setup, index_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        index_test(prefix_index_one_block_per_key_is_found_until_removed),
        index_test(prefix_index_several_blocks_oldest_left_answers),
        index_test(prefix_index_middle_copy_removed_keeps_age_order),
        index_test(prefix_index_groups_do_not_see_each_other),
        index_test(prefix_index_other_lineage_is_another_key_and_counted),
        index_test(prefix_index_match_stops_at_the_first_miss),
        index_test(prefix_index_match_with_stride_reads_every_other_key),
        index_test(prefix_index_match_reads_keys_that_lie_in_pieces),
        index_test(prefix_index_stored_tokens_oldest_equal_copy_answers),
        index_test(prefix_index_clear_forgets_everything),
        index_test(prefix_index_random_changes_agree_with_a_plain_array),
    };

    return cmocka_run_group_tests_name("prefix index", tests, NULL, NULL);
}
