/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: every refusal of pagedkv/tier.h leaves all as it was; a tier is back after a restart, for
 * the configuration that filled it only; hits are verified.
 * Method: managers of the fixture with a tier of a few slots. */
#include "support/tier_fixture.h"

#include <stdlib.h>

/* ---- refusals, restart, life ----------------------------------------------------------------- */

static void refusals_change_nothing(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_tier_config config = {.struct_size = sizeof config,
                              .manager = manager,
                              .num_blocks = 9,
                              .max_swaps = 1,
                              .max_blocks_in_flight = 4};
    pkv_request a = open_prompt(manager, COMMON " 1");
    pkv_request b = open_prompt(manager, "80*4");
    pkv_swap_plan plan = make_plan(2);
    pkv_swap_plan old = {.struct_size = 0};
    pkv_tier *tier = NULL;
    pkv_swap swap = {0, 0};
    const char *before;

    (void)state;
    assert_int_equal(pkv_tier_create(&config, &tier), PKV_OK);
    (void)admit(manager, a);
    (void)admit(manager, b);
    before = remember_pool_state(pkv_tier_get_pool(tier));
    assert_int_equal(pkv_swap_out(tier, a, &plan, &swap), PKV_ERROR_LIMIT);
    assert_int_equal(plan.num_copies, 3);
    plan = make_plan(TIER_MAX_COPIES);
    assert_int_equal(pkv_swap_out(tier, b, &plan, &swap), PKV_ERROR_LIMIT);
    assert_string_equal(pkv_tier_last_error(tier), "max_blocks_in_flight: 4, wanted 5");
    assert_int_equal(pkv_swap_out(tier, a, &old, &swap), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_swap_out(tier, a, &plan, NULL), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_swap_out(tier, (pkv_request){9, 9}, &plan, &swap), PKV_ERROR_STALE_HANDLE);
    assert_int_equal(pkv_swap_out(NULL, a, &plan, &swap), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_equal(pool_state_text(pkv_tier_get_pool(tier)), before);
    swap = out_of(tier, a, 3);
    append_tokens(manager, a, "15*1");
    assert_int_equal(allocate(manager, a, 49, 15), PKV_OK);
    assert_int_equal(pkv_swap_out(tier, a, &plan, &swap), PKV_IN_PROGRESS);
    pkv_tier_destroy(tier);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    assert_int_equal(stats_of(manager).num_pending_blocks, 0);
}

static void configurations_are_checked(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_manager_config without = small_config(8, 16);
    pkv_tier_config config = {.struct_size = sizeof config, .manager = manager, .num_blocks = 1};
    const char *reason = NULL;
    pkv_tier *tier = NULL;
    void *memory;

    (void)state;
    assert_int_equal(pkv_tier_config_check(&config, &reason), PKV_ERROR_INVALID_ARGUMENT);
    assert_string_not_equal(reason, "");
    assert_int_equal(pkv_tier_size(&config), 0);
    config.num_blocks = 9;
    config.max_swaps = -1;
    assert_int_equal(pkv_tier_create(&config, &tier), PKV_ERROR_INVALID_ARGUMENT);
    config.max_swaps = 0;
    config.manager = NULL;
    assert_int_equal(pkv_tier_create(&config, &tier), PKV_ERROR_INVALID_ARGUMENT);
    without.disable_prefix_cache = true;
    config.manager = make_manager(&without);
    assert_int_equal(pkv_tier_create(&config, &tier), PKV_ERROR_UNSUPPORTED);
    config.manager = manager;
    memory = aligned_alloc(64, (pkv_tier_size(&config) + 63) / 64 * 64);
    assert_non_null(memory);
    assert_int_equal(pkv_tier_init(&config, memory, 64, &tier), PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(pkv_tier_init(&config, memory, pkv_tier_size(&config), &tier), PKV_OK);
    end_tier(tier);
    free(memory);
    pkv_tier_destroy(NULL);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
}

/* A store's index after a restart, in another manager of the same configuration. */
static void restart_finds_what_was_stored(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_manager *later = make_small_manager(10, 16);
    pkv_tier *restored = make_tier(later, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_block_id slots[4] = {5, 2, 7, 7};
    int32_t groups[4] = {0, 0, 0, 0};
    uint8_t prints[2][PKV_TIER_FINGERPRINT_SIZE];
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, 7);
    pkv_swap swap;

    (void)state;
    (void)admit(manager, request);
    swap = out_of(tier, request, 3);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_tier_get_fingerprint(tier, prints[0]), PKV_OK);
    assert_int_equal(pkv_tier_get_fingerprint(restored, prints[1]), PKV_OK);
    assert_memory_equal(prints[0], prints[1], sizeof prints[0]);
    tier_copy_keys[3] = tier_copy_keys[0];
    assert_int_equal(pkv_tier_restore(restored, tier_copy_keys, groups, slots, NULL, 4),
                     PKV_ERROR_INVALID_ARGUMENT);
    assert_int_equal(tier_stats(restored).num_cached_blocks, 0);
    slots[3] = 6; /* the same content twice: the first is kept */
    assert_int_equal(pkv_tier_restore(restored, tier_copy_keys, groups, slots, NULL, 4), PKV_OK);
    assert_int_equal(tier_stats(restored).num_cached_blocks, 3);
    request = open_prompt(later, COMMON " 7*3");
    assert_int_equal(look_up_tier(restored, request, 0), 48);
    assert_int_equal(pkv_swap_in(restored, request, &args, NULL, &plan, &swap), PKV_OK);
    assert_int_equal(tier_copies[0].source, 5);
    assert_int_equal(tier_copies[2].source, 7);
    end_tier(restored);
    end_tier(tier);
}

/* Other weights, block size, seed or secret: another fingerprint. */
static void fingerprints_tell_configurations_apart(void **state) {
    uint8_t prints[5][PKV_TIER_FINGERPRINT_SIZE];

    (void)state;
    for (int32_t i = 0; i < 5; i++) {
        pkv_manager_config own = small_config(10, i == 1 ? 8 : 16);
        pkv_tier_config config = {.struct_size = sizeof config, .num_blocks = 8};
        pkv_tier *tier = NULL;

        own.hash_seed = i == 2 ? 1 : 0;
        own.key_secret[1] = i == 3 ? 1 : 0;
        config.identity[31] = i == 4 ? 1 : 0;
        config.manager = make_manager(&own);
        assert_int_equal(pkv_tier_create(&config, &tier), PKV_OK);
        assert_int_equal(pkv_tier_get_fingerprint(tier, prints[i]), PKV_OK);
        for (int32_t j = 0; j < i; j++) {
            assert_memory_not_equal(prints[i], prints[j], sizeof prints[i]);
        }
        end_tier(tier);
    }
}

/* Hits are verified: a key of equal hash and other lineage is no hit, and is counted. */
static void foreign_lineage_is_no_hit(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_block_key keys[3];
    pkv_block_id slot = 1;
    int32_t group = 0;

    (void)state;
    assert_int_equal(compute_keys(keys, 16, COMMON), 3);
    keys[0].lineage ^= 1;
    assert_int_equal(pkv_tier_restore(tier, keys, &group, &slot, NULL, 1), PKV_OK);
    assert_int_equal(look_up_tier(tier, request, 0), 0);
    assert_true(tier_stats(tier).num_collisions_rejected > 0);
    end_tier(tier);
}

static void stored_tokens_are_compared(void **state) {
    pkv_manager_config config = small_config(10, 16);
    pkv_manager *manager;
    pkv_tier *tier;
    pkv_request request;

    (void)state;
    config.store_tokens = true;
    manager = make_manager(&config);
    tier = make_tier(manager, 8);
    store_prompt(manager, tier, COMMON " 7*3");
    request = open_prompt(manager, COMMON " 7*3");
    assert_int_equal(look_up_tier(tier, request, 0), 48);
    assert_int_equal(pkv_swap_commit(tier, in_of(tier, request, 0, 7)), PKV_OK);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(find_hit(manager, request), 48);
    end_tier(tier);
}

/* Two requests were kept and ended; afterwards nobody is admitted, one goes on decoding. Copies end
 * in the middle of that, and their blocks are there for it. */
static void copies_that_end_while_one_decodes_free_their_blocks(void **state) {
    pkv_manager *manager = make_small_manager(9, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request decoding = open_prompt(manager, "16*1");
    pkv_swap swaps[2];

    (void)state;
    (void)admit(manager, decoding);
    for (int32_t i = 0; i < 2; i++) {
        pkv_request request = open_prompt(manager, "48*%d", 5 + i);

        (void)admit(manager, request);
        swaps[i] = out_of(tier, request, 3);
        end_request(manager, request);
    }
    assert_int_equal(tier_stats(tier).num_pinned_blocks, 6);
    assert_int_equal(num_free_blocks(manager), 1);
    for (int32_t length = 17; length <= 8 * 16; length++) {
        append_tokens(manager, decoding, "1");
        if (length == 33) { /* nothing is left but what the copies hold */
            assert_int_equal(allocate(manager, decoding, 32, 1), PKV_NO_FREE_BLOCKS);
            assert_int_equal(stats_of(manager).num_pending_blocks, 6);
        }
        if (length == 33 || length == 81) {
            assert_int_equal(pkv_swap_commit(tier, swaps[length == 81]), PKV_OK);
        }
        assert_int_equal(allocate(manager, decoding, length - 1, 1), PKV_OK);
    }
    assert_int_equal(tier_stats(tier).num_pinned_blocks, 0);
    assert_int_equal(num_free_blocks(manager), 0);
    end_request(manager, decoding);
    end_tier(tier);
}

/* A restart brings the tokens with the keys. Under the right keys, the second block's tokens are
 * others: it is no hit. */
static void restored_tokens_are_compared(void **state) {
    pkv_manager_config config = small_config(10, 16);
    const int32_t groups[3] = {0, 0, 0};
    const pkv_block_id slots[3] = {4, 1, 6};
    pkv_block_key keys[3];
    int32_t token_ids[48];
    pkv_manager *manager;
    pkv_request request;

    (void)state;
    config.store_tokens = true;
    manager = make_manager(&config);
    request = open_prompt(manager, COMMON " 7*3");
    assert_int_equal(pkv_request_get_keys(manager, request, 0, 3, keys), PKV_OK);
    for (int32_t is_wrong = 0; is_wrong < 2; is_wrong++) {
        pkv_tier *tier = make_tier(manager, 8);

        assert_int_equal(pkv_request_get_tokens(manager, request, 0, 48, token_ids), PKV_OK);
        token_ids[20] += is_wrong;
        assert_int_equal(pkv_tier_restore(tier, keys, groups, slots, NULL, 3),
                         PKV_ERROR_INVALID_ARGUMENT);
        assert_int_equal(tier_stats(tier).num_cached_blocks, 0);
        assert_int_equal(pkv_tier_restore(tier, keys, groups, slots, token_ids, 3), PKV_OK);
        assert_int_equal(tier_stats(tier).num_cached_blocks, 3);
        assert_int_equal(look_up_tier(tier, request, 0), is_wrong ? 16 : 48);
        assert_true(tier_stats(tier).num_collisions_rejected == (uint64_t)is_wrong);
        end_tier(tier);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(refusals_change_nothing),
        fixture_test(configurations_are_checked),
        fixture_test(restart_finds_what_was_stored),
        fixture_test(fingerprints_tell_configurations_apart),
        fixture_test(foreign_lineage_is_no_hit),
        fixture_test(stored_tokens_are_compared),
        fixture_test(restored_tokens_are_compared),
        fixture_test(copies_that_end_while_one_decodes_free_their_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
