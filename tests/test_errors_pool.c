/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: bad input to a pool gets a status that says what is wrong, a text, and changes nothing.
 * Method: after each refused call the whole state of the pool is compared with the text of it that
 * was taken before: queue, reference counts, keys, levels. */
#include "support/fixture.h"

#include <stdlib.h>
#include <string.h>

/* ---- helpers --------------------------------------------------------------------------------- */

static pkv_pool *pool;
static const char *before;

static const pkv_block_key key_one = {1, 1, 1};
static const pkv_block_key key_two[2] = {{1, 1, 1}, {2, 2, 2}};

/* Nine usable blocks: 1 held twice and keyed, 2 held and keyed, 3 held without key, 4 free and
 * keyed, the others free. */
static void make_pool_in_use(void) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 10, .event_capacity = 64};
    const pkv_block_id keyed[] = {1, 2, 4};
    const pkv_block_key keys[] = {{1, 1, 1}, {2, 2, 2}, {4, 4, 4}};
    pkv_block_id block_ids[4];

    pool = make_pool(&config);
    assert_int_equal(pkv_pool_get_new_blocks(pool, 4, block_ids), PKV_OK);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, keyed, keys, NULL, 3), PKV_OK);
    assert_int_equal(pkv_pool_touch(pool, keyed, 1), PKV_OK);
    assert_int_equal(pkv_pool_free_blocks(pool, &keyed[2], 1), PKV_OK);
    before = remember_pool_state(pool);
}

/* See that a call was refused as expected and that nothing changed. */
static void refused(pkv_status actual, pkv_status expected) {
    assert_string_equal(pkv_status_name(actual), pkv_status_name(expected));
    assert_true(pkv_pool_last_error(pool)[0] != '\0');
    assert_string_equal(pool_state_text(pool), before);
}

static void invalid(pkv_status actual) {
    refused(actual, PKV_ERROR_INVALID_ARGUMENT);
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static void null_pool_is_invalid_everywhere(void **state) {
    pkv_block_id block_id = 1;
    int32_t count;
    pkv_event event;
    pkv_pool_stats stats = {.struct_size = sizeof stats};
    pkv_block_info info = {.struct_size = sizeof info};
    const pkv_status statuses[] = {
        pkv_pool_match(NULL, 0, &key_one, NULL, 1, &block_id, &count),
        pkv_pool_acquire(NULL, 0, NULL, NULL, 0, 1, &block_id),
        pkv_pool_get_new_blocks(NULL, 1, &block_id),
        pkv_pool_touch(NULL, &block_id, 1),
        pkv_pool_free_blocks(NULL, &block_id, 1),
        pkv_pool_cache_blocks(NULL, 0, &block_id, &key_one, NULL, 1),
        pkv_pool_evict_blocks(NULL, &block_id, 1),
        pkv_pool_reset_prefix_cache(NULL),
        pkv_pool_get_block(NULL, 1, &info),
        pkv_pool_get_free_queue(NULL, &block_id, 1, &count),
        pkv_pool_take_events(NULL, &event, 1, &count, NULL),
        pkv_pool_take_fills(NULL, 0, &block_id, 1, &count),
        pkv_pool_get_stats(NULL, &stats),
        pkv_pool_check(NULL),
    };

    (void)state;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        assert_int_equal(statuses[i], PKV_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(pkv_pool_get_num_free_blocks(NULL), 0);
    assert_string_equal(pkv_pool_last_error(NULL), "");
    pkv_pool_destroy(NULL);
}

static void last_error_is_empty_until_a_call_fails(void **state) {
    (void)state;
    make_pool_in_use();
    assert_string_equal(pkv_pool_last_error(pool), "");
    invalid(pkv_pool_get_new_blocks(pool, -1, NULL));
}

static void get_new_blocks_bad_count_or_output(void **state) {
    pkv_block_id block_ids[10];

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_get_new_blocks(pool, -1, block_ids));
    invalid(pkv_pool_get_new_blocks(pool, 1, NULL));
    assert_int_equal(pkv_pool_get_new_blocks(pool, INT32_MAX, block_ids), PKV_NO_FREE_BLOCKS);
    assert_string_equal(pool_state_text(pool), before);
}

static void lists_of_blocks_with_a_bad_id_or_length(void **state) {
    const pkv_block_id lists[][3] = {{1, -1, 2}, {1, 2, 10}, {INT32_MAX, 1, 2}, {INT32_MIN, 1, 2}};

    (void)state;
    make_pool_in_use();
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        invalid(pkv_pool_touch(pool, lists[i], 3));
        invalid(pkv_pool_free_blocks(pool, lists[i], 3));
        invalid(pkv_pool_evict_blocks(pool, lists[i], 3));
    }
    invalid(pkv_pool_touch(pool, NULL, 1));
    invalid(pkv_pool_free_blocks(pool, NULL, 1));
    invalid(pkv_pool_evict_blocks(pool, NULL, 1));
    invalid(pkv_pool_touch(pool, lists[0], -1));
    invalid(pkv_pool_free_blocks(pool, lists[0], -1));
    invalid(pkv_pool_evict_blocks(pool, lists[0], -1));
    assert_int_equal(pkv_pool_free_blocks(pool, NULL, 0), PKV_OK);
}

static void free_blocks_more_often_than_held(void **state) {
    const pkv_block_id free_already[] = {3, 5};
    const pkv_block_id twice[] = {3, 3};
    const pkv_block_id thrice[] = {1, 2, 1, 3, 1};
    const pkv_block_id nulls[] = {0, 0, 0};

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_free_blocks(pool, free_already, 2));
    assert_non_null(strstr(pkv_pool_last_error(pool), "5"));
    invalid(pkv_pool_free_blocks(pool, twice, 2));
    invalid(pkv_pool_free_blocks(pool, thrice, 5));
    /* Null blocks are not counted. */
    assert_int_equal(pkv_pool_free_blocks(pool, nulls, 3), PKV_OK);
    assert_string_equal(pool_state_text(pool), before);
}

static void touch_beyond_the_most_owners(void **state) {
    int32_t count = PKV_MAX_REF_CNT;
    pkv_block_id *block_ids = malloc((size_t)count * sizeof *block_ids);

    (void)state;
    make_pool_in_use();
    assert_non_null(block_ids);
    for (int32_t i = 0; i < count; i++) {
        block_ids[i] = 3;
    }
    refused(pkv_pool_touch(pool, block_ids, count), PKV_ERROR_LIMIT);
    assert_int_equal(pkv_pool_touch(pool, block_ids, count - 1), PKV_OK);
    assert_int_equal(block_of(pool, 3).ref_cnt, PKV_MAX_REF_CNT);
    before = remember_pool_state(pool);
    refused(pkv_pool_touch(pool, block_ids, 1), PKV_ERROR_LIMIT);
    assert_int_equal(pkv_pool_free_blocks(pool, block_ids, count), PKV_OK);
    assert_int_equal(block_of(pool, 3).ref_cnt, 0);
    free(block_ids);
}

static void cache_blocks_that_cannot_get_a_key(void **state) {
    const pkv_block_id free_block[] = {3, 5};
    const pkv_block_id keyed[] = {3, 2};
    const pkv_block_id twice[] = {3, 3};
    const pkv_block_id out_of_range[] = {3, 10};
    const pkv_block_id good = 3;

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_cache_blocks(pool, 0, free_block, key_two, NULL, 2));
    invalid(pkv_pool_cache_blocks(pool, 0, keyed, key_two, NULL, 2));
    invalid(pkv_pool_cache_blocks(pool, 0, twice, key_two, NULL, 2));
    invalid(pkv_pool_cache_blocks(pool, 0, out_of_range, key_two, NULL, 2));
    invalid(pkv_pool_cache_blocks(pool, 1, &good, key_two, NULL, 1));
    invalid(pkv_pool_cache_blocks(pool, -1, &good, key_two, NULL, 1));
    invalid(pkv_pool_cache_blocks(pool, 0, &good, NULL, NULL, 1));
    invalid(pkv_pool_cache_blocks(pool, 0, NULL, key_two, NULL, 1));
    invalid(pkv_pool_cache_blocks(pool, 0, &good, key_two, NULL, -1));
}

static void match_bad_arguments(void **state) {
    pkv_block_id hits[2];
    int32_t num_hits = 77;

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_match(pool, 1, key_two, NULL, 2, hits, &num_hits));
    invalid(pkv_pool_match(pool, -1, key_two, NULL, 2, hits, &num_hits));
    invalid(pkv_pool_match(pool, 0, NULL, NULL, 2, hits, &num_hits));
    invalid(pkv_pool_match(pool, 0, key_two, NULL, -2, hits, &num_hits));
    invalid(pkv_pool_match(pool, 0, key_two, NULL, 2, NULL, &num_hits));
    invalid(pkv_pool_match(pool, 0, key_two, NULL, 2, hits, NULL));
    assert_int_equal(num_hits, 77);
}

static void acquire_bad_arguments(void **state) {
    const pkv_block_id hits[] = {1, 2};
    const pkv_block_id twice[] = {1, 1};
    const pkv_block_key same_key[2] = {{1, 1, 1}, {1, 1, 1}};
    const pkv_block_id out_of_range[] = {1, 10};
    pkv_block_id new_ids[4];

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_acquire(pool, 1, hits, key_two, 2, 1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, NULL, key_two, 2, 1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, hits, NULL, 2, 1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, hits, key_two, -1, 1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, hits, key_two, 2, -1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, hits, key_two, 2, 1, NULL));
    invalid(pkv_pool_acquire(pool, 0, out_of_range, key_two, 2, 1, new_ids));
    invalid(pkv_pool_acquire(pool, 0, twice, same_key, 2, 1, new_ids));
    assert_non_null(strstr(pkv_pool_last_error(pool), "twice"));
    assert_int_equal(pkv_pool_acquire(pool, 0, hits, key_two, 2, INT32_MAX, new_ids),
                     PKV_NO_FREE_BLOCKS);
    assert_string_equal(pool_state_text(pool), before);
}

static void acquire_of_what_is_no_hit_is_not_found(void **state) {
    const pkv_block_id wrong_key[] = {2, 1};
    const pkv_block_id keyless[] = {3};
    const pkv_block_id null_block[] = {0};
    const pkv_block_key no_key = {0, 0, 0};
    pkv_block_id new_ids[4];

    (void)state;
    make_pool_in_use();
    assert_int_equal(pkv_pool_acquire(pool, 0, wrong_key, key_two, 2, 1, new_ids), PKV_NOT_FOUND);
    assert_int_equal(pkv_pool_acquire(pool, 0, keyless, key_two, 1, 1, new_ids), PKV_NOT_FOUND);
    assert_int_equal(pkv_pool_acquire(pool, 0, keyless, &no_key, 1, 1, new_ids), PKV_NOT_FOUND);
    assert_int_equal(pkv_pool_acquire(pool, 0, null_block, &no_key, 1, 1, new_ids), PKV_NOT_FOUND);
    assert_string_equal(pool_state_text(pool), before);
}

static void tokens_are_needed_where_they_are_stored(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 5, .store_tokens = true};
    pkv_block_id block_id;
    int32_t num_hits;

    (void)state;
    pool = make_pool(&config);
    assert_int_equal(pkv_pool_get_new_blocks(pool, 1, &block_id), PKV_OK);
    before = remember_pool_state(pool);
    invalid(pkv_pool_cache_blocks(pool, 0, &block_id, &key_one, NULL, 1));
    invalid(pkv_pool_match(pool, 0, &key_one, NULL, 1, &block_id, &num_hits));
}

static void readers_bad_arguments(void **state) {
    pkv_block_info info = {.struct_size = sizeof info};
    pkv_pool_stats stats = {.struct_size = 0};
    pkv_block_id block_id;
    pkv_event event;
    int32_t count;

    (void)state;
    make_pool_in_use();
    invalid(pkv_pool_get_block(pool, -1, &info));
    invalid(pkv_pool_get_block(pool, 10, &info));
    invalid(pkv_pool_get_block(pool, 1, NULL));
    invalid(pkv_pool_get_free_queue(pool, NULL, 1, &count));
    invalid(pkv_pool_get_free_queue(pool, &block_id, -1, &count));
    invalid(pkv_pool_get_free_queue(pool, &block_id, 1, NULL));
    invalid(pkv_pool_take_events(pool, NULL, 1, &count, NULL));
    invalid(pkv_pool_take_events(pool, &event, -1, &count, NULL));
    invalid(pkv_pool_take_events(pool, &event, 1, NULL, NULL));
    invalid(pkv_pool_take_fills(pool, 1, &block_id, 1, &count));
    invalid(pkv_pool_take_fills(pool, -1, &block_id, 1, &count));
    invalid(pkv_pool_take_fills(pool, 0, NULL, 1, &count));
    invalid(pkv_pool_take_fills(pool, 0, &block_id, -1, &count));
    invalid(pkv_pool_take_fills(pool, 0, &block_id, 1, NULL));
    invalid(pkv_pool_get_stats(pool, &stats));
    invalid(pkv_pool_get_stats(pool, NULL));
    /* Nothing was drained by a refused call. */
    assert_int_equal(pkv_pool_take_events(pool, &event, 1, &count, NULL), PKV_MORE);
    assert_int_equal(event.sequence_number, 0);
}

/* ---- configuration --------------------------------------------------------------------------- */

static void *refuse_memory(void *context, size_t size, size_t alignment) {
    int32_t *num_calls = context;

    (void)size;
    (void)alignment;
    ++*num_calls;
    return NULL;
}

static void release_nothing(void *context, void *memory, size_t size) {
    (void)context;
    (void)memory;
    (void)size;
}

static void remember_text(void *context, int level, const char *message) {
    assert_int_equal(level, PKV_LOG_ERROR);
    *(const char **)context = message;
}

static void config_out_of_range(void **state) {
    const int32_t bad_sizes[] = {16, 0};
    const int32_t negative_sizes[] = {16, -16};
    const pkv_pool_config configs[] = {
        {.num_blocks = 0},
        {.num_blocks = -1},
        {.num_blocks = PKV_MAX_BLOCKS + 1},
        {.num_blocks = 10, .num_groups = -1},
        {.num_blocks = 10, .num_groups = PKV_MAX_GROUPS + 1},
        {.num_blocks = 10, .block_size = -1},
        {.num_blocks = 10, .event_capacity = -1},
        {.num_blocks = 10, .num_groups = 2, .block_sizes = bad_sizes},
        {.num_blocks = 10, .num_groups = 2, .block_sizes = negative_sizes},
        {.num_blocks = 10, .allocator = {.allocate = refuse_memory}},
        {.num_blocks = 10, .allocator = {.release = release_nothing}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        pkv_pool_config config = configs[i];
        const char *reason = "";
        const char *logged = "";
        pkv_pool *made = (pkv_pool *)&config;

        config.struct_size = sizeof config;
        config.log = remember_text;
        config.log_context = (void *)&logged;
        assert_int_equal(pkv_pool_config_check(&config, &reason), PKV_ERROR_INVALID_ARGUMENT);
        assert_true(reason[0] != '\0');
        assert_int_equal(pkv_pool_size(&config), 0);
        assert_int_equal(pkv_pool_create(&config, &made), PKV_ERROR_INVALID_ARGUMENT);
        assert_null(made);
        assert_string_equal(logged, reason);
    }
    assert_int_equal(pkv_pool_config_check(NULL, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_pool_create(&configs[0], NULL), PKV_ERROR_INVALID_ARGUMENT);
}

static void config_good_gives_an_empty_reason(void **state) {
    const pkv_pool_config config = {.struct_size = sizeof config, .num_blocks = 1};
    const char *reason = "?";

    (void)state;
    assert_int_equal(pkv_pool_config_check(&config, &reason), PKV_OK);
    assert_string_equal(reason, "");
}

static void create_without_memory_is_out_of_memory(void **state) {
    int32_t num_calls = 0;
    pkv_pool_config config = {.struct_size = sizeof config,
                              .num_blocks = 10,
                              .allocator = {refuse_memory, release_nothing, &num_calls}};
    pkv_pool *made = (pkv_pool *)&config;

    (void)state;
    assert_int_equal(pkv_pool_create(&config, &made), PKV_ERROR_OUT_OF_MEMORY);
    assert_null(made);
    assert_int_equal(num_calls, 1);

    /* The largest of everything: a size that no machine has, computed without overflow. */
    config.num_blocks = PKV_MAX_BLOCKS;
    config.block_size = INT32_MAX;
    config.store_tokens = true;
    config.event_capacity = INT32_MAX;
    assert_true(pkv_pool_size(&config) == 0 || pkv_pool_size(&config) > SIZE_MAX / 4);
    assert_int_equal(pkv_pool_create(&config, &made), PKV_ERROR_OUT_OF_MEMORY);
    assert_null(made);
}

static void compute_block_keys_bad_arguments(void **state) {
    const pkv_key_args good = {.struct_size = sizeof good, .block_size = 4};
    const int32_t tokens[8] = {0};
    const pkv_media overlapping[2] = {{.offset = 0, .num_tokens = 3},
                                      {.offset = 2, .num_tokens = 1}};
    const pkv_media empty = {.offset = 0, .num_tokens = 0};
    pkv_key_args args = good;
    pkv_block_key keys[2];
    const pkv_status statuses[] = {
        pkv_compute_block_keys(NULL, NULL, 0, tokens, 8, keys, NULL),
        pkv_compute_block_keys(&good, NULL, 0, NULL, 8, keys, NULL),
        pkv_compute_block_keys(&good, NULL, 0, tokens, -1, keys, NULL),
        pkv_compute_block_keys(&good, NULL, 0, tokens, 8, NULL, NULL),
        pkv_compute_block_keys(&good, NULL, 4, tokens, 8, keys, NULL),
        pkv_compute_block_keys(&good, &key_one, 0, tokens, 8, keys, NULL),
        pkv_compute_block_keys(&good, &key_one, 3, tokens, 8, keys, NULL),
        pkv_compute_block_keys(&good, &key_one, -4, tokens, 8, keys, NULL),
        pkv_compute_block_keys(&good, &key_one, INT32_MAX - 3, tokens, 8, keys, NULL),
    };

    (void)state;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        assert_int_equal(statuses[i], PKV_ERROR_INVALID_ARGUMENT);
    }
    args.block_size = -4;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    args = good;
    args.salt_size = 3;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    args = good;
    args.media = overlapping;
    args.num_media = 2;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    args.media = &empty;
    args.num_media = 1;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    args.media = NULL;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
    args.num_media = -1;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens, 8, keys, NULL),
                     PKV_ERROR_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(null_pool_is_invalid_everywhere),
        fixture_test(last_error_is_empty_until_a_call_fails),
        fixture_test(get_new_blocks_bad_count_or_output),
        fixture_test(lists_of_blocks_with_a_bad_id_or_length),
        fixture_test(free_blocks_more_often_than_held),
        fixture_test(touch_beyond_the_most_owners),
        fixture_test(cache_blocks_that_cannot_get_a_key),
        fixture_test(match_bad_arguments),
        fixture_test(acquire_bad_arguments),
        fixture_test(acquire_of_what_is_no_hit_is_not_found),
        fixture_test(tokens_are_needed_where_they_are_stored),
        fixture_test(readers_bad_arguments),
        fixture_test(config_out_of_range),
        fixture_test(config_good_gives_an_empty_reason),
        fixture_test(create_without_memory_is_out_of_memory),
        fixture_test(compute_block_keys_bad_arguments),
    };

    return cmocka_run_group_tests_name("errors of the pool", tests, NULL, NULL);
}
