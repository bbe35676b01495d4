/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: each promise of pagedkv/tier.h, once, in a small case: what is planned, when it is found,
 * who holds what meanwhile, and every refusal without a change. Field reports about tiers and
 * transfers are cases here, by number.
 * Method: managers of the fixture with a tier of a few slots; tables, queues and plans as text. */
#include "support/tier_fixture.h"

#include <pagedkv/sharing.h>

/* ---- out ------------------------------------------------------------------------------------- */

static void only_full_keyed_blocks_go_out(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_swap swap;

    (void)state;
    assert_int_equal(admit(manager, request), 0);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_string_equal(plan_text(&plan), ids_text((int32_t[]){1, 1, 2, 2, 3, 3}, 6));
    assert_int_equal(plan.num_tokens, 48);
    assert_int_equal(tier_copy_groups[2], 0);
    assert_int_equal(tier_copy_tokens[2 * 16], 2);
    assert_true(keys_are_equal(tier_copy_keys[1], manager_block_of(manager, 2).key));
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(tier_stats(tier).num_cached_blocks, 3);
    /* All of it is there now: nothing is to be copied. */
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_NOT_FOUND);
    assert_int_equal(plan.num_tokens, 48);
    end_tier(tier);
}

/* The victim's blocks are pinned until the commit, and at once free after a detach. */
static void sources_wait_or_are_detached(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request victim = open_prompt(manager, COMMON " 7*9");
    pkv_request next = open_prompt(manager, "64*5");
    pkv_slots_args args = slots_of(0, 64);
    pkv_slots slots = make_slots();
    pkv_swap swap;

    (void)state;
    assert_int_equal(admit(manager, victim), 0);
    swap = out_of(tier, victim, 3);
    assert_int_equal(pkv_free(manager, victim), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 1);
    /* What is short will come back when the swap ends: wait, do not preempt. */
    assert_int_equal(pkv_allocate_slots(manager, next, &args, &slots), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 3);
    assert_int_equal(slots.num_pending_blocks, 3);
    assert_int_equal(stats_of(manager).num_pending_blocks, 3);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_ERROR_BUSY);
    assert_int_equal(look_up_tier(tier, victim, 0), 0);
    assert_int_equal(pkv_swap_detach(tier, swap), PKV_OK);
    assert_int_equal(pkv_swap_detach(tier, swap), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 4);
    assert_int_equal(pkv_allocate_slots(manager, next, &args, &slots), PKV_OK);
    /* The target becomes findable at the commit only. */
    assert_int_equal(look_up_tier(tier, victim, 0), 0);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(look_up_tier(tier, victim, 0), 48);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_ERROR_STALE_HANDLE);
    end_tier(tier);
}

/* A detached swap holds no block of the device, yet a reset waits for it: what it brings would be
 * of the time before. */
static void reset_waits_for_detached_swaps(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON);
    pkv_swap swap;

    (void)state;
    (void)admit(manager, request);
    swap = out_of(tier, request, 3);
    assert_int_equal(pkv_swap_detach(tier, swap), PKV_OK);
    end_request(manager, request);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_ERROR_BUSY);
    assert_int_equal(pkv_tier_reset(tier), PKV_ERROR_BUSY);
    assert_int_equal(pkv_swap_abort(tier, swap), PKV_OK);
    assert_int_equal(pkv_reset_prefix_cache(manager), PKV_OK);
    assert_int_equal(pkv_tier_reset(tier), PKV_OK);
    end_tier(tier);
}

static void blocks_of_steps_under_way_stay(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON);
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_swap swap;

    (void)state;
    assert_int_equal(allocate_in_step(manager, request, 0, 32, 1), PKV_OK);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_NOT_FOUND);
    assert_int_equal(pkv_step_complete(manager, 1), PKV_OK);
    assert_int_equal(allocate_in_step(manager, request, 32, 16, 2), PKV_OK);
    swap = out_of(tier, request, 2);
    assert_int_equal(pkv_step_fail(manager, 2), PKV_OK);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(tier_stats(tier).num_cached_blocks, 2);
    end_tier(tier);
}

/* A key that goes while the block is being copied out says that the content may be wrong. */
static void evicted_sources_are_not_published(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON);
    pkv_swap swap;

    (void)state;
    (void)admit(manager, request);
    swap = out_of(tier, request, 3);
    evict_columns(manager, request, 0, "1");
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(tier_stats(tier).num_cached_blocks, 2);
    assert_int_equal(tier_stats(tier).num_blocks_dropped, 1);
    assert_int_equal(tier_stats(tier).num_free_blocks, 7);
    end_tier(tier);
}

/* PUB-044: two blocks to one slot in one batch. Nobody gets a slot that is a target already. */
static void two_victims_share_no_slot(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier_config config = {.struct_size = sizeof config,
                              .manager = manager,
                              .num_blocks = 2,
                              .max_blocks_in_flight = 4};
    pkv_tier *tier = NULL;
    pkv_request a = open_prompt(manager, "16*1 2");
    pkv_request b = open_prompt(manager, "16*3 4");
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_swap first;
    pkv_swap second;

    (void)state;
    assert_int_equal(pkv_tier_create(&config, &tier), PKV_OK);
    (void)admit(manager, a);
    (void)admit(manager, b);
    first = out_of(tier, a, 1);
    assert_int_equal(pkv_swap_out(tier, b, &plan, &second), PKV_NO_FREE_BLOCKS);
    assert_int_equal(pkv_swap_commit(tier, first), PKV_OK);
    second = out_of(tier, b, 1);
    assert_int_equal(pkv_swap_commit(tier, second), PKV_OK);
    end_request(manager, a);
    a = open_prompt(manager, "16*1 2");
    assert_int_equal(look_up_tier(tier, a, 0), 0);
    end_tier(tier);
}

/* Victims with one prefix: it goes out once, and is kept by the one that finds it there. */
static void shared_blocks_go_out_once(void **state) {
    pkv_manager *manager = make_small_manager(20, 16);
    pkv_tier *tier = make_tier(manager, 9);
    pkv_request a = open_prompt(manager, COMMON " 16*7 1");
    pkv_request b = open_prompt(manager, COMMON " 16*8 1");
    pkv_request c = open_prompt(manager, "80*9");
    pkv_swap swaps[3];

    (void)state;
    (void)admit(manager, a);
    assert_int_equal(admit(manager, b), 48);
    swaps[0] = out_of(tier, a, 4);
    swaps[1] = out_of(tier, b, 1);
    assert_int_equal(pkv_swap_commit(tier, swaps[1]), PKV_OK);
    assert_int_equal(pkv_swap_commit(tier, swaps[0]), PKV_OK);
    assert_int_equal(tier_stats(tier).num_cached_blocks, 5);
    append_tokens(manager, b, "31*8");
    assert_int_equal(allocate(manager, b, 65, 31), PKV_OK);
    swaps[2] = out_of(tier, b, 2);
    assert_int_equal(tier_stats(tier).num_blocks_kept, 4);
    assert_int_equal(pkv_swap_commit(tier, swaps[2]), PKV_OK);
    /* The least recently used goes first: the end of a, and nothing of b's start before its end */
    (void)admit(manager, c);
    swaps[2] = out_of(tier, c, 5);
    assert_int_equal(pkv_swap_commit(tier, swaps[2]), PKV_OK);
    end_request(manager, a);
    end_request(manager, b);
    forget_device(manager);
    b = open_prompt(manager, COMMON " 16*8 1 31*8");
    assert_int_equal(look_up_tier(tier, b, 0), 48);
    end_tier(tier);
}

/* PUB-018: the tier's counters equal what can be counted, after every move. */
static void counters_of_both_media_add_up(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 5);

    (void)state;
    for (int32_t i = 0; i < 100; i++) {
        pkv_request request = open_prompt(manager, "48*%d", i * 7 % 11);
        pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
        pkv_swap swap;
        pkv_status status;

        (void)admit(manager, request);
        status = pkv_swap_out(tier, request, &plan, &swap);
        end_request(manager, request);
        if (status == PKV_OK && i % 3 != 0) {
            assert_int_equal(pkv_swap_detach(tier, swap), PKV_OK);
        }
        assert_int_equal(pkv_tier_check(tier), PKV_OK);
        assert_int_equal(pkv_manager_check(manager), PKV_OK);
        if (status == PKV_OK) {
            assert_int_equal(i % 5 == 0 ? pkv_swap_abort(tier, swap) : pkv_swap_commit(tier, swap),
                             PKV_OK);
        }
        assert_int_equal(tier_stats(tier).num_free_blocks, 4);
        assert_int_equal(num_free_blocks(manager), 4);
    }
    end_tier(tier);
}

/* ---- in -------------------------------------------------------------------------------------- */

static void loaded_blocks_are_published_at_commit(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, 7);
    pkv_slots slots = make_slots();
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    assert_int_equal(look_up_tier(tier, request, 0), 48);
    assert_int_equal(pkv_swap_in(tier, request, &args, &slots, &plan, &swap), PKV_OK);
    assert_int_equal(plan.num_tokens, 48);
    assert_int_equal(plan.num_copies, 3);
    assert_int_equal(slots.num_new_blocks, 1);
    assert_string_equal(keyed_text(manager), "");
    /* Not even the blocks that a later step fills, as long as what is before them may fail. */
    append_tokens(manager, request, "16*4");
    assert_int_equal(allocate(manager, request, 55, 16), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(pkv_cache_blocks(manager, request, 64), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), ids_text((int32_t[]){0, 1, 2}, 3));
    assert_int_equal(pkv_cache_blocks(manager, request, 64), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0),
                        ids_text((int32_t[]){0, 1, 2, 3}, 4));
    end_tier(tier);
}

/* What the device still has is not loaded: the tier brings the rest. */
static void device_and_tier_share_a_prefix(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 16*5 1");
    pkv_request other = open_prompt(manager, "16*0 1");
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 16*5 1");
    (void)admit(manager, other);
    assert_int_equal(find_hit(manager, request), 16);
    assert_int_equal(look_up_tier(tier, request, 16), 48);
    swap = in_of(tier, request, 16, 1);
    assert_int_equal(tier_stats(tier).num_blocks_in, 3);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(num_table_blocks(manager, request, 0), 5);
    end_tier(tier);
}

/* PUB-004: what the lookup found goes before the allocation. One call, so nothing can fall between;
 * with the old number it says so and changes nothing. */
static void evicted_between_lookup_and_load(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, 7);
    pkv_block_id slot = 2;
    pkv_swap swap;
    const char *before;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    args.num_external_computed_tokens = look_up_tier(tier, request, 0);
    assert_int_equal(pkv_tier_evict(tier, &slot, 1), PKV_OK);
    before = remember_state(manager, &request, 1);
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_NOT_FOUND);
    assert_string_equal(state_text(manager, &request, 1), before);
    assert_int_equal(tier_stats(tier).num_blocks_in_flight, 0);
    args.num_external_computed_tokens = 0;
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_OK);
    assert_int_equal(plan.num_tokens, 16);
    end_tier(tier);
}

/* PUB-048, PUB-023: a load that fails. The targets are garbage, go keyless, and the request is
 * computed again. */
static void failed_load_is_computed_again(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    swap = in_of(tier, request, 0, 7);
    assert_int_equal(pkv_swap_abort(tier, swap), PKV_OK);
    assert_string_equal(keyed_text(manager), "");
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(num_free_blocks(manager), 4);
    assert_int_equal(admit(manager, request), 0);
    assert_int_equal(num_free_blocks(manager), 0);
    end_tier(tier);
}

/* The request ends while its blocks are being written: they stay out of the queue until then. */
static void swap_outlives_its_request(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request;
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    for (int32_t commits = 0; commits < 2; commits++) {
        request = open_prompt(manager, COMMON " 7*3");
        swap = in_of(tier, request, 0, 7);
        end_request(manager, request);
        assert_int_equal(num_free_blocks(manager), 1);
        assert_int_equal(stats_of(manager).num_pending_blocks, 3);
        assert_int_equal(commits == 1 ? pkv_swap_commit(tier, swap) : pkv_swap_abort(tier, swap),
                         PKV_OK);
        assert_int_equal(num_free_blocks(manager), 4);
        assert_int_equal(stats_of(manager).num_cached_blocks, commits == 1 ? 3 : 0);
    }
    end_tier(tier);
}

/* PUB-050, PUB-043: nobody may share or cut what is being written. */
static void loading_requests_are_not_forked_or_cut(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_request child;
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    swap = in_of(tier, request, 0, 7);
    assert_int_equal(pkv_fork(manager, request, 48, &child), PKV_ERROR_BUSY);
    assert_int_equal(pkv_truncate(manager, request, 20), PKV_ERROR_BUSY);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_fork(manager, request, 48, &child), PKV_OK);
    assert_int_equal(pkv_truncate(manager, child, 20), PKV_OK);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    end_tier(tier);
}

/* A block that is cut and written anew while it is being copied out is copied first: the pin is an
 * owner like any other. */
static void cut_sources_are_copied_first(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON);
    pkv_slots_args args = slots_of(40, 8);
    pkv_slots slots = make_slots();
    pkv_swap swap;

    (void)state;
    (void)admit(manager, request);
    swap = out_of(tier, request, 3);
    assert_int_equal(pkv_truncate(manager, request, 40), PKV_OK);
    append_tokens(manager, request, "8*9");
    assert_int_equal(pkv_allocate_slots(manager, request, &args, &slots), PKV_OK);
    assert_int_equal(slots.num_copies, 1);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(tier_stats(tier).num_cached_blocks, 3);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    end_tier(tier);
}

/* A preempted request comes back before its first load ended: the old load may not touch the new
 * table. */
static void old_load_leaves_the_new_table_alone(void **state) {
    pkv_manager *manager = make_small_manager(12, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_swap first;
    pkv_swap second;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    first = in_of(tier, request, 0, 7);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    second = in_of(tier, request, 0, 7);
    assert_int_equal(pkv_swap_commit(tier, first), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), "");
    assert_int_equal(pkv_swap_commit(tier, second), PKV_OK);
    assert_string_equal(keyed_columns_text(manager, request, 0), ids_text((int32_t[]){0, 1, 2}, 3));
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    end_tier(tier);
}

/* PUB-049, PUB-021: free slots are no use to the device. */
static void full_device_says_so(void **state) {
    pkv_manager *manager = make_small_manager(5, 16);
    pkv_tier *tier = make_tier(manager, 8);
    pkv_request request = open_prompt(manager, COMMON " 7*3");
    pkv_request holder = open_prompt(manager, "32*9");
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, 7);
    pkv_slots slots = make_slots();
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    (void)admit(manager, holder);
    assert_int_equal(pkv_swap_in(tier, request, &args, &slots, &plan, &swap), PKV_NO_FREE_BLOCKS);
    assert_int_equal(slots.num_missing_blocks, 2);
    assert_int_equal(slots.num_pending_blocks, 0);
    assert_int_equal(tier_stats(tier).num_swaps, 0);
    end_request(manager, holder);
    assert_int_equal(pkv_swap_in(tier, request, &args, &slots, &plan, &swap), PKV_OK);
    end_tier(tier);
}

/* PUB-058: external tokens and the table. PUB-046: the table names blocks of the device only. */
static void table_covers_what_is_loaded(void **state) {
    pkv_manager *manager = make_small_manager(20, 16);
    pkv_tier *tier = make_tier(manager, 40);
    pkv_request request = open_prompt(manager, "200*3");
    const pkv_block_id *table;
    int32_t num_blocks;
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, "200*1");
    store_prompt(manager, tier, "200*2");
    store_prompt(manager, tier, "200*3");
    assert_int_equal(look_up_tier(tier, request, 0), 192);
    swap = in_of(tier, request, 0, 8);
    /* The slots are numbers that no block has: 25 to 36. */
    assert_int_equal(tier_copies[0].source, 25);
    assert_int_equal(tier_copies[11].source, 36);
    assert_int_equal(pkv_get_block_table(manager, request, 0, &table, &num_blocks), PKV_OK);
    assert_int_equal(num_blocks, 13);
    for (int32_t i = 0; i < num_blocks; i++) {
        assert_in_range(table[i], 1, 19);
    }
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    end_tier(tier);
}

/* PUB-016: a lookup that leads to nothing pins nothing. PUB-019: swaps end by calls of the caller,
 * whatever else goes on. */
static void lookups_pin_nothing(void **state) {
    pkv_manager *manager = make_small_manager(10, 16);
    pkv_tier *tier = make_tier(manager, 4);
    pkv_request request = open_prompt(manager, COMMON " 7*3");

    (void)state;
    store_prompt(manager, tier, COMMON " 7*3");
    assert_int_equal(look_up_tier(tier, request, 0), 48);
    end_request(manager, request);
    assert_int_equal(tier_stats(tier).num_free_blocks, 3);
    store_prompt(manager, tier, "48*9");
    assert_int_equal(tier_stats(tier).num_blocks_evicted, 3);
    end_tier(tier);
}

/* Of a windowed group only what the end of the hit sees is loaded. */
static void windows_load_what_they_see(void **state) {
    pkv_group_config groups[2] = {full_group(4), window_group(4, 8)};
    pkv_manager *manager = make_hybrid_manager(60, groups, 2);
    pkv_tier *tier = make_tier(manager, 60);
    pkv_request request = open_prompt(manager, "1..33");
    pkv_swap swap;

    (void)state;
    store_prompt(manager, tier, "1..33");
    assert_int_equal(look_up_tier(tier, request, 0), 32);
    swap = in_of(tier, request, 0, 1);
    /* 8 blocks of the full group, and 2 of the window: position 32 sees from 25 on. */
    assert_int_equal(tier_stats(tier).num_blocks_in, 10);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    end_tier(tier);
}

/* A window of one token sees nothing of the past: there is nothing to bring, and a caller that was
 * offered tokens would look them up for ever. */
static void what_no_token_sees_is_not_offered(void **state) {
    pkv_group_config group = window_group(4, 1);
    pkv_manager *manager = make_hybrid_manager(60, &group, 1);
    pkv_tier *tier = make_tier(manager, 60);
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, 1);
    pkv_request request = open_prompt(manager, "1..33");
    pkv_swap swap;

    (void)state;
    assert_int_equal(look_up_tier(tier, request, 0), 0);
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_NOT_FOUND);
    end_tier(tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(only_full_keyed_blocks_go_out),
        fixture_test(sources_wait_or_are_detached),
        fixture_test(reset_waits_for_detached_swaps),
        fixture_test(blocks_of_steps_under_way_stay),
        fixture_test(evicted_sources_are_not_published),
        fixture_test(two_victims_share_no_slot),
        fixture_test(shared_blocks_go_out_once),
        fixture_test(counters_of_both_media_add_up),
        fixture_test(loaded_blocks_are_published_at_commit),
        fixture_test(device_and_tier_share_a_prefix),
        fixture_test(evicted_between_lookup_and_load),
        fixture_test(failed_load_is_computed_again),
        fixture_test(swap_outlives_its_request),
        fixture_test(loading_requests_are_not_forked_or_cut),
        fixture_test(cut_sources_are_copied_first),
        fixture_test(old_load_leaves_the_new_table_alone),
        fixture_test(full_device_says_so),
        fixture_test(table_covers_what_is_loaded),
        fixture_test(lookups_pin_nothing),
        fixture_test(windows_load_what_they_see),
        fixture_test(what_no_token_sees_is_not_offered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
