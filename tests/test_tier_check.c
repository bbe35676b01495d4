/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the checker of a tier notices what it promises to notice, and names its number; and the
 * manager's checker sees the pins.
 * Method: a tier with a swap each way under way is spoilt in one place from the inside; the first
 * number in the checker's text must be the right one. What was spoilt is mended; all is well. */
#include "tier/tier.h"

#include "support/fixture.h"

#include <string.h>

enum { MAX_COPIES = 16 };

static pkv_tier *tier;

static int32_t flight_of_swap(bool is_inward) {
    for (int32_t s = 0; s < tier->max_swaps; s++) {
        if (tier->swaps[s].is_open && tier->swaps[s].is_inward == is_inward) {
            return tier->swaps[s].first_flight;
        }
    }
    return PKVI_NO_FLIGHT;
}

static void spoil_duplicate(int32_t by) {
    tier->pool->index->num_distinct += by;
}
static void spoil_slot_pins(int32_t by) {
    pkv_block_id slot = tier->flights[flight_of_swap(true)].slot;
    tier->pool->states[slot].ref_cnt =
        (tier->pool->states[slot].ref_cnt + (uint32_t)by) & PKV_MAX_REF_CNT;
}
static void spoil_pin_count(int32_t by) {
    tier->num_pins += by;
}
static void spoil_flight(int32_t by) {
    tier->flights[flight_of_swap(false)].is_open = by < 0;
}
static void spoil_link(int32_t by) {
    tier->flights[tier->flights[flight_of_swap(false)].next].previous += by;
}
static void spoil_flight_count(int32_t by) {
    tier->num_flights += by;
}
static void spoil_open_count(int32_t by) {
    tier->holder.num_open += by;
}
static void spoil_target(int32_t by) {
    tier->flights[flight_of_swap(false)].group += by;
}
static void spoil_under_way(int32_t by) {
    tier->flight_of[0] = by > 0 ? flight_of_swap(false) : PKVI_NO_FLIGHT;
}

static const struct {
    const char *number;
    void (*spoil)(int32_t by);
} cases[] = {{"T1", NULL},
             {"T2", spoil_slot_pins},
             {"T2", spoil_pin_count},
             {"T3", spoil_flight},
             {"T3", spoil_link},
             {"T3", spoil_flight_count},
             {"T3", spoil_open_count},
             {"T4", spoil_target},
             {"T5", spoil_under_way}};

static pkv_swap_plan plan_of(pkv_block_copy *copies) {
    return (pkv_swap_plan){
        .struct_size = sizeof(pkv_swap_plan), .capacity = MAX_COPIES, .copies = copies};
}

/* A tier with a swap each way under way. */
static pkv_manager *make_busy(void) {
    pkv_manager *manager = make_small_manager(20, 4);
    pkv_tier_config config = {.struct_size = sizeof config, .manager = manager, .num_blocks = 12};
    pkv_block_copy copies[MAX_COPIES];
    pkv_swap_plan plan = plan_of(copies);
    pkv_slots_args args = slots_of(0, 1);
    pkv_request request = open_prompt(manager, "1..13");
    pkv_block_id blocks[3] = {1, 2, 3};
    pkv_swap swap;

    assert_int_equal(pkv_tier_create(&config, &tier), PKV_OK);
    (void)admit(manager, request);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    assert_int_equal(pkv_free(manager, request), PKV_OK);
    assert_int_equal(pkv_evict_blocks(manager, blocks, 3), PKV_OK);
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_OK);
    request = open_prompt(manager, "21..33");
    (void)admit(manager, request);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_int_equal(pkv_tier_check(tier), PKV_OK);
    return manager;
}

static void checker_names_what_is_broken(void **state) {
    (void)make_busy();
    (void)state;
    for (size_t i = 1; i < sizeof cases / sizeof cases[0]; i++) {
        cases[i].spoil(1);
        assert_int_equal(pkv_tier_check(tier), PKV_ERROR_CORRUPT);
        assert_int_equal(strncmp(pkv_tier_last_error(tier), cases[i].number, 2), 0);
        cases[i].spoil(-1);
        assert_int_equal(pkv_tier_check(tier), PKV_OK);
    }
    pkv_tier_destroy(tier);
}

/* The pool's own check sees a wrong count first, so two slots really get one key. */
static void checker_sees_duplicates(void **state) {
    struct pkvi_publication call = {0};
    pkv_block_key key;
    pkv_block_id slot;

    (void)make_busy();
    (void)state;
    spoil_duplicate(1);
    assert_int_equal(pkv_tier_check(tier), PKV_ERROR_CORRUPT);
    spoil_duplicate(-1);
    key = tier->flights[flight_of_swap(true)].key;
    pkvi_pool_take(tier->pool, 0, 1, &slot);
    pkvi_pool_publish(tier->pool, &call, slot, &key,
                      pkvi_prefix_index_home(tier->pool->index, 0, &key), NULL);
    (void)pkvi_pool_release(tier->pool, &slot, 1, false);
    assert_int_equal(pkv_tier_check(tier), PKV_ERROR_CORRUPT);
    assert_int_equal(strncmp(pkv_tier_last_error(tier), cases[0].number, 2), 0);
    pkv_tier_destroy(tier);
}

static void manager_checker_sees_pins(void **state) {
    pkv_manager *manager = make_busy();
    pkv_block_id block = tier->flights[flight_of_swap(false)].block;

    (void)state;
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    tier->flights[flight_of_swap(false)].block = PKV_NULL_BLOCK;
    assert_int_equal(pkv_manager_check(manager), PKV_ERROR_CORRUPT);
    assert_int_equal(strncmp(pkv_manager_last_error(manager), "I11", 3), 0);
    tier->flights[flight_of_swap(false)].block = block;
    assert_int_equal(pkv_manager_check(manager), PKV_OK);
    pkv_tier_destroy(tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(checker_names_what_is_broken),
        fixture_test(checker_sees_duplicates),
        fixture_test(manager_checker_sees_pins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
