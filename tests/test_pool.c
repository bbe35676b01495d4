/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the block pool alone hands out, counts, keys and forgets blocks as vLLM V1's does. Method:
 * small pools through the public API of pool.h; queue, counts and keys are read in full after each
 * change. Refusals of bad input are in test_errors_pool.c. */
#include "support/fixture.h"

#include <stdlib.h>

/* ---- helpers --------------------------------------------------------------------------------- */

static const char *take(pkv_pool *pool, int32_t num_blocks) {
    pkv_block_id block_ids[64];

    assert_true(num_blocks <= 64);
    assert_int_equal(pkv_pool_get_new_blocks(pool, num_blocks, block_ids), PKV_OK);
    return ids_text(block_ids, num_blocks);
}

static pkv_status free_list(pkv_pool *pool, const char *blocks) {
    const prompt *list = prompt_of("%s", blocks);

    return pkv_pool_free_blocks(pool, list->token_ids, list->num_tokens);
}

static pkv_status touch_list(pkv_pool *pool, const char *blocks) {
    const prompt *list = prompt_of("%s", blocks);

    return pkv_pool_touch(pool, list->token_ids, list->num_tokens);
}

static pkv_status evict_list(pkv_pool *pool, const char *blocks) {
    const prompt *list = prompt_of("%s", blocks);

    return pkv_pool_evict_blocks(pool, list->token_ids, list->num_tokens);
}

static pkv_block_key key_of(uint64_t number) {
    return (pkv_block_key){number, number, number};
}

/* Give each of the listed blocks the key of the number at the same place of `numbers`. */
static void key_list(pkv_pool *pool, int32_t group, const char *blocks, const char *numbers) {
    const prompt *block_ids = prompt_of("%s", blocks);
    const prompt *key_numbers = prompt_of("%s", numbers);
    pkv_block_key keys[64];

    assert_int_equal(block_ids->num_tokens, key_numbers->num_tokens);
    for (int32_t i = 0; i < key_numbers->num_tokens; i++) {
        keys[i] = key_of((uint64_t)key_numbers->token_ids[i]);
    }
    assert_int_equal(
        pkv_pool_cache_blocks(pool, group, block_ids->token_ids, keys, NULL, block_ids->num_tokens),
        PKV_OK);
}

/* Blocks that carry the keys of these numbers, up to the first miss. */
static const char *match(const pkv_pool *pool, int32_t group, const char *numbers) {
    const prompt *key_numbers = prompt_of("%s", numbers);
    pkv_block_key keys[64];
    pkv_block_id hits[64];
    int32_t num_hits = -1;

    for (int32_t i = 0; i < key_numbers->num_tokens; i++) {
        keys[i] = key_of((uint64_t)key_numbers->token_ids[i]);
    }
    assert_int_equal(
        pkv_pool_match(pool, group, keys, NULL, key_numbers->num_tokens, hits, &num_hits), PKV_OK);
    return ids_text(hits, num_hits);
}

static pkv_pool_stats pool_stats_of(const pkv_pool *pool) {
    pkv_pool_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(pkv_pool_get_stats(pool, &stats), PKV_OK);
    return stats;
}

/* ---- handing out and freeing ----------------------------------------------------------------- */

static void new_pool_queues_all_blocks_but_the_null_block_in_order(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);

    (void)state;
    assert_string_equal(pool_queue_text(pool), "1 2 3 4 5");
    assert_int_equal(block_of(pool, PKV_NULL_BLOCK).ref_cnt, 0);
    assert_false(block_of(pool, PKV_NULL_BLOCK).is_free);
    assert_string_equal(take(pool, 0), "");
    assert_string_equal(take(pool, 2), "1 2");
    assert_string_equal(take(pool, 3), "3 4 5");
    assert_string_equal(pool_queue_text(pool), "");
}

static void pool_of_one_block_has_nothing_to_hand_out(void **state) {
    pkv_pool *pool = make_small_pool(1, 16);
    pkv_block_id block_id;

    (void)state;
    assert_int_equal(pkv_pool_get_num_free_blocks(pool), 0);
    assert_int_equal(pkv_pool_get_new_blocks(pool, 1, &block_id), PKV_NO_FREE_BLOCKS);
    assert_int_equal(pkv_pool_reset_prefix_cache(pool), PKV_OK);
}

static void get_new_blocks_more_than_free_changes_nothing(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);
    pkv_block_id block_ids[8];
    const char *before;

    (void)state;
    take(pool, 3);
    before = remember_pool_state(pool);
    assert_int_equal(pkv_pool_get_new_blocks(pool, 3, block_ids), PKV_NO_FREE_BLOCKS);
    assert_string_equal(pool_state_text(pool), before);
}

static void free_blocks_keyless_go_to_the_head_keyed_to_the_tail(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);

    (void)state;
    take(pool, 3);
    key_list(pool, 0, "1 2", "10 20");
    assert_int_equal(free_list(pool, "3 2 1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "3 4 5 2 1");
}

static void free_blocks_keeps_list_order_at_both_ends(void **state) {
    pkv_pool *pool = make_small_pool(9, 16);

    (void)state;
    take(pool, 6);
    key_list(pool, 0, "2 4", "20 40");
    assert_int_equal(free_list(pool, "6 2 1 4 3 0 5"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "6 1 3 5 7 8 2 4");
}

static void free_blocks_caching_off_all_go_to_the_head(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 6, .disable_prefix_cache = true};
    pkv_pool *pool = make_pool(&config);

    (void)state;
    take(pool, 3);
    key_list(pool, 0, "1 2", "10 20");
    assert_string_equal(pool_keyed_text(pool), "");
    assert_string_equal(match(pool, 0, "10 20"), "");
    assert_int_equal(free_list(pool, "3 2 1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "3 2 1 4 5");
}

static void free_blocks_of_a_shared_block_keeps_it_out_of_the_queue(void **state) {
    pkv_pool *pool = make_small_pool(4, 16);

    (void)state;
    take(pool, 2);
    assert_int_equal(touch_list(pool, "1"), PKV_OK);
    assert_int_equal(free_list(pool, "2 1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "2 3");
    assert_string_equal(pool_refs_text(pool, 1, 3), "1 0 0");
    assert_int_equal(free_list(pool, "1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "1 2 3");
}

static void free_blocks_named_as_often_as_held_frees_once(void **state) {
    pkv_pool *pool = make_small_pool(4, 16);

    (void)state;
    take(pool, 1);
    assert_int_equal(touch_list(pool, "1 1"), PKV_OK);
    assert_int_equal(block_of(pool, 1).ref_cnt, 3);
    assert_int_equal(free_list(pool, "1 1 1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "1 2 3");
}

/* ---- touching -------------------------------------------------------------------------------- */

static void touch_free_block_leaves_the_queue_and_held_block_moves_nothing(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);

    (void)state;
    take(pool, 5);
    key_list(pool, 0, "1 2 3 4 5", "10 20 30 40 50");
    assert_int_equal(free_list(pool, "5 4 3 2 1"), PKV_OK);

    assert_int_equal(touch_list(pool, "3"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "5 4 2 1");
    assert_int_equal(touch_list(pool, "3 0"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "5 4 2 1");
    assert_string_equal(pool_refs_text(pool, 0, 5), "0 0 0 2 0 0");

    /* Recency is the time of the last free. */
    assert_int_equal(free_list(pool, "3 3"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "5 4 2 1 3");
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void cache_blocks_of_fourteen_tokens_gives_three_keys(void **state) {
    pkv_pool *pool = make_small_pool(11, 4);
    pkv_block_key keys[4];
    const pkv_block_id block_ids[] = {1, 2, 3};

    (void)state;
    take(pool, 4);
    assert_int_equal(compute_keys(keys, 4, "0..13"), 3);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, block_ids, keys, NULL, 2), PKV_OK);
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 2);
    assert_string_equal(pool_keyed_text(pool), "1 2");
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, block_ids + 2, keys + 2, NULL, 1), PKV_OK);
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 3);
    assert_string_equal(pool_keyed_text(pool), "1 2 3");
    assert_true(keys_are_equal(block_of(pool, 3).key, keys[2]));
}

static void cache_blocks_keys_belong_to_their_group(void **state) {
    const int32_t block_sizes[] = {4, 4};
    const pkv_pool_config config = {.struct_size = sizeof config,
                                    .num_blocks = 11,
                                    .num_groups = 2,
                                    .block_sizes = block_sizes};
    pkv_pool *pool = make_pool(&config);

    (void)state;
    take(pool, 5);
    key_list(pool, 0, "1 2", "10 20");
    key_list(pool, 1, "3 4 5", "10 20 30");
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 5);
    assert_string_equal(match(pool, 0, "10 20 30"), "1 2");
    assert_string_equal(match(pool, 1, "10 20 30"), "3 4 5");
    /* The third key is in group 1 only, so both together miss it. */
    assert_string_equal(match(pool, 0, "30"), "");
    assert_string_equal(match(pool, 1, "30"), "5");
    assert_int_equal(block_of(pool, 2).group, 0);
    assert_int_equal(block_of(pool, 5).group, 1);
}

static void cache_blocks_skips_null_blocks(void **state) {
    pkv_pool *pool = make_small_pool(6, 4);

    (void)state;
    take(pool, 2);
    key_list(pool, 0, "0 1 0 2", "10 20 30 40");
    assert_string_equal(pool_keyed_text(pool), "1 2");
    assert_string_equal(match(pool, 0, "10"), "");
    assert_string_equal(match(pool, 0, "20"), "1");
    assert_string_equal(match(pool, 0, "40"), "2");
}

static void evict_blocks_takes_out_exactly_the_named_block(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);

    (void)state;
    /* Blocks 1 and 4 carry key 10, block 2 key 20, block 3 key 30. */
    take(pool, 4);
    key_list(pool, 0, "1 2 3 4", "10 20 30 10");
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 3);

    assert_int_equal(evict_list(pool, "2"), PKV_OK);
    assert_string_equal(match(pool, 0, "20"), "");
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 2);
    assert_string_equal(match(pool, 0, "10"), "1");
    assert_int_equal(evict_list(pool, "1"), PKV_OK);
    assert_string_equal(match(pool, 0, "10"), "4");
    assert_int_equal(evict_list(pool, "3"), PKV_OK);
    assert_string_equal(pool_keyed_text(pool), "4");
    assert_int_equal(evict_list(pool, "4"), PKV_OK);
    assert_int_equal(pool_stats_of(pool).num_distinct_keys, 0);
    assert_string_equal(pool_keyed_text(pool), "");
}

static void evict_blocks_keeps_counts_and_queue(void **state) {
    pkv_pool *pool = make_small_pool(7, 16);

    (void)state;
    take(pool, 5);
    key_list(pool, 0, "1 2 3", "10 20 30");
    assert_int_equal(free_list(pool, "3 2"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "6 3 2");
    assert_int_equal(evict_list(pool, "2 1 0 4 6 2"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "6 3 2");
    assert_string_equal(pool_refs_text(pool, 1, 6), "1 0 0 1 1 0");
    assert_string_equal(pool_keyed_text(pool), "3");

    /* What lost its key while held goes to the head. */
    assert_int_equal(free_list(pool, "1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "1 6 3 2");
}

static void handing_out_a_cached_block_forgets_its_key(void **state) {
    pkv_pool *pool = make_small_pool(3, 16);

    (void)state;
    take(pool, 2);
    key_list(pool, 0, "1 2", "10 20");
    assert_int_equal(free_list(pool, "2 1"), PKV_OK);
    assert_string_equal(match(pool, 0, "10 20"), "1 2");

    assert_string_equal(take(pool, 1), "2");
    assert_string_equal(match(pool, 0, "10 20"), "1");
    assert_string_equal(pool_keyed_text(pool), "1");
    assert_int_equal(pool_stats_of(pool).num_blocks_evicted, 1);
}

static void match_changes_nothing(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);
    const char *before;

    (void)state;
    take(pool, 3);
    key_list(pool, 0, "1 2 3", "10 20 30");
    assert_int_equal(free_list(pool, "3 2 1"), PKV_OK);
    before = remember_pool_state(pool);
    assert_string_equal(match(pool, 0, "10 20 30 40"), "1 2 3");
    assert_string_equal(match(pool, 0, "10 40 30"), "1");
    assert_string_equal(pool_state_text(pool), before);
}

static void store_tokens_match_compares_the_tokens(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 6, .block_size = 2, .store_tokens = true};
    pkv_pool *pool = make_pool(&config);
    const pkv_block_key keys[2] = {{1, 1, 1}, {2, 2, 2}};
    const pkv_block_id block_ids[2] = {1, 2};
    const int32_t tokens[4] = {5, 6, 7, 8};
    const int32_t others[4] = {5, 6, 7, 9};
    pkv_block_id hits[2];
    int32_t num_hits;

    (void)state;
    take(pool, 2);
    assert_int_equal(pkv_pool_cache_blocks(pool, 0, block_ids, keys, tokens, 2), PKV_OK);
    assert_int_equal(pkv_pool_match(pool, 0, keys, tokens, 2, hits, &num_hits), PKV_OK);
    assert_int_equal(num_hits, 2);
    assert_int_equal(pkv_pool_match(pool, 0, keys, others, 2, hits, &num_hits), PKV_OK);
    assert_int_equal(num_hits, 1);
    assert_int_equal(pool_stats_of(pool).num_collisions_rejected, 1);
}

/* ---- acquire --------------------------------------------------------------------------------- */

/* A pool of 5 usable blocks where 1 and 2 are cached under the keys 10 and 20, all free. */
static pkv_pool *make_cached_pool(void) {
    pkv_pool *pool = make_small_pool(6, 16);

    take(pool, 2);
    key_list(pool, 0, "1 2", "10 20");
    assert_int_equal(free_list(pool, "2 1"), PKV_OK);
    assert_string_equal(pool_queue_text(pool), "3 4 5 2 1");
    return pool;
}

static const pkv_block_id cached_hits[] = {1, 2};
static const pkv_block_key cached_keys[] = {{10, 10, 10}, {20, 20, 20}};

static void acquire_touches_hits_before_it_takes_new_blocks(void **state) {
    pkv_pool *pool = make_cached_pool();
    pkv_block_id block_ids[3];

    (void)state;
    assert_int_equal(pkv_pool_acquire(pool, 0, cached_hits, cached_keys, 2, 3, block_ids), PKV_OK);
    assert_string_equal(ids_text(block_ids, 3), "3 4 5");
    assert_string_equal(pool_refs_text(pool, 1, 5), "1 1 1 1 1");
    assert_string_equal(pool_keyed_text(pool), "1 2");
}

static void acquire_counts_free_hits_as_needed(void **state) {
    pkv_pool *pool = make_cached_pool();
    pkv_block_id block_ids[4];
    const char *before = remember_pool_state(pool);

    (void)state;
    assert_int_equal(pkv_pool_acquire(pool, 0, cached_hits, cached_keys, 2, 4, block_ids),
                     PKV_NO_FREE_BLOCKS);
    assert_string_equal(pool_state_text(pool), before);

    /* Held hits cost nothing. */
    assert_int_equal(touch_list(pool, "1 2"), PKV_OK);
    assert_int_equal(pkv_pool_acquire(pool, 0, cached_hits, cached_keys, 2, 3, block_ids), PKV_OK);
    assert_string_equal(pool_refs_text(pool, 1, 5), "2 2 1 1 1");
}

static void acquire_after_a_hit_was_evicted_finds_nothing_and_changes_nothing(void **state) {
    pkv_pool *pool = make_cached_pool();
    pkv_block_id block_ids[1];
    const char *before;

    (void)state;
    take(pool, 4);
    before = remember_pool_state(pool);
    assert_int_equal(pkv_pool_acquire(pool, 0, cached_hits, cached_keys, 2, 0, block_ids),
                     PKV_NOT_FOUND);
    assert_string_equal(pool_state_text(pool), before);
    assert_int_equal(pkv_pool_acquire(pool, 0, cached_hits, cached_keys, 1, 0, NULL), PKV_OK);
    assert_int_equal(block_of(pool, 1).ref_cnt, 1);
}

static void acquire_without_hits_or_new_blocks_is_a_no_op(void **state) {
    pkv_pool *pool = make_cached_pool();
    const char *before = remember_pool_state(pool);

    (void)state;
    assert_int_equal(pkv_pool_acquire(pool, 0, NULL, NULL, 0, 0, NULL), PKV_OK);
    assert_string_equal(pool_state_text(pool), before);
}

/* ---- reset, fills, levels -------------------------------------------------------------------- */

static void reset_prefix_cache_forgets_keys_and_keeps_the_queue(void **state) {
    pkv_pool *pool = make_cached_pool();

    (void)state;
    take(pool, 1);
    assert_int_equal(pkv_pool_reset_prefix_cache(pool), PKV_ERROR_BUSY);
    assert_string_equal(pool_keyed_text(pool), "1 2");
    assert_int_equal(free_list(pool, "3"), PKV_OK);
    assert_int_equal(pkv_pool_reset_prefix_cache(pool), PKV_OK);
    assert_string_equal(pool_keyed_text(pool), "");
    assert_string_equal(match(pool, 0, "10"), "");
    assert_string_equal(pool_queue_text(pool), "3 4 5 2 1");
}

static void fills_list_each_block_handed_out_once(void **state) {
    const pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 6, .fill_new_blocks = true};
    pkv_pool *pool = make_pool(&config);
    pkv_block_id block_ids[8];
    int32_t num_fills;

    (void)state;
    take(pool, 3);
    assert_int_equal(free_list(pool, "2"), PKV_OK);
    take(pool, 1);
    assert_int_equal(pkv_pool_take_fills(pool, 0, block_ids, 2, &num_fills), PKV_MORE);
    assert_string_equal(ids_text(block_ids, num_fills), "1 2");
    assert_int_equal(pkv_pool_take_fills(pool, 0, block_ids, 8, &num_fills), PKV_OK);
    assert_string_equal(ids_text(block_ids, num_fills), "3");
    assert_int_equal(pkv_pool_take_fills(pool, 0, block_ids, 8, &num_fills), PKV_OK);
    assert_int_equal(num_fills, 0);

    assert_int_equal(free_list(pool, "3"), PKV_OK);
    take(pool, 1);
    assert_int_equal(pkv_pool_take_fills(pool, 0, block_ids, 8, &num_fills), PKV_OK);
    assert_string_equal(ids_text(block_ids, num_fills), "3");
}

static void free_queue_read_with_little_room_gives_the_head_and_the_count(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);
    pkv_block_id block_ids[3] = {-1, -1, -1};
    int32_t num_blocks = 0;

    (void)state;
    assert_int_equal(pkv_pool_get_free_queue(pool, block_ids, 2, &num_blocks), PKV_ERROR_LIMIT);
    assert_int_equal(num_blocks, 5);
    assert_string_equal(ids_text(block_ids, 3), "1 2 -1");
}

static void stats_count_levels_and_history(void **state) {
    pkv_pool *pool = make_small_pool(6, 16);
    pkv_pool_stats stats;

    (void)state;
    take(pool, 4);
    key_list(pool, 0, "1 2 3", "10 20 10");
    assert_int_equal(free_list(pool, "4 3 2 1"), PKV_OK);
    take(pool, 3);
    stats = pool_stats_of(pool);
    assert_int_equal(stats.num_blocks, 6);
    assert_int_equal(stats.num_free_blocks, 2);
    assert_int_equal(stats.num_cached_blocks, 2);
    assert_int_equal(stats.num_distinct_keys, 2);
    assert_int_equal(stats.num_blocks_allocated, 7);
    assert_int_equal(stats.num_blocks_evicted, 1);
    assert_int_equal(stats.num_keys_published, 3);
    assert_int_equal(stats.num_collisions_rejected, 0);
    assert_int_equal(stats.num_events_dropped, 0);
}

static void init_in_the_callers_memory_needs_exactly_the_size(void **state) {
    const pkv_pool_config config = {.struct_size = sizeof config,
                                    .num_blocks = 100,
                                    .event_capacity = 10,
                                    .store_tokens = true};
    size_t size = pkv_pool_size(&config);
    unsigned char *memory = aligned_alloc(64, (size + 127) / 64 * 64);
    pkv_pool *pool = NULL;

    (void)state;
    assert_non_null(memory);
    assert_true(size > 0);
    memory[size] = 0x5a;
    assert_int_equal(pkv_pool_init(&config, memory, size - 1, &pool), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_pool_init(&config, memory + 1, size, &pool), PKV_ERROR_INVALID_ARGUMENT);
    assert_null(pool);
    assert_int_equal(pkv_pool_init(&config, memory, size, &pool), PKV_OK);
    assert_string_equal(take(pool, 2), "1 2");
    assert_int_equal(pkv_pool_check(pool), PKV_OK);
    pkv_pool_destroy(pool);
    assert_int_equal(memory[size], 0x5a);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(new_pool_queues_all_blocks_but_the_null_block_in_order),
        fixture_test(pool_of_one_block_has_nothing_to_hand_out),
        fixture_test(get_new_blocks_more_than_free_changes_nothing),
        fixture_test(free_blocks_keyless_go_to_the_head_keyed_to_the_tail),
        fixture_test(free_blocks_keeps_list_order_at_both_ends),
        fixture_test(free_blocks_caching_off_all_go_to_the_head),
        fixture_test(free_blocks_of_a_shared_block_keeps_it_out_of_the_queue),
        fixture_test(free_blocks_named_as_often_as_held_frees_once),
        fixture_test(touch_free_block_leaves_the_queue_and_held_block_moves_nothing),
        fixture_test(cache_blocks_of_fourteen_tokens_gives_three_keys),
        fixture_test(cache_blocks_keys_belong_to_their_group),
        fixture_test(cache_blocks_skips_null_blocks),
        fixture_test(evict_blocks_takes_out_exactly_the_named_block),
        fixture_test(evict_blocks_keeps_counts_and_queue),
        fixture_test(handing_out_a_cached_block_forgets_its_key),
        fixture_test(match_changes_nothing),
        fixture_test(store_tokens_match_compares_the_tokens),
        fixture_test(acquire_touches_hits_before_it_takes_new_blocks),
        fixture_test(acquire_counts_free_hits_as_needed),
        fixture_test(acquire_after_a_hit_was_evicted_finds_nothing_and_changes_nothing),
        fixture_test(acquire_without_hits_or_new_blocks_is_a_no_op),
        fixture_test(reset_prefix_cache_forgets_keys_and_keeps_the_queue),
        fixture_test(fills_list_each_block_handed_out_once),
        fixture_test(free_queue_read_with_little_room_gives_the_head_and_the_count),
        fixture_test(stats_count_levels_and_history),
        fixture_test(init_in_the_callers_memory_needs_exactly_the_size),
    };

    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
