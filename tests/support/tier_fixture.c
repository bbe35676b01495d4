/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Helpers for tests of tiers; see tier_fixture.h. */
#include "support/tier_fixture.h"

pkv_block_copy tier_copies[TIER_MAX_COPIES];
int32_t tier_copy_groups[TIER_MAX_COPIES];
pkv_block_key tier_copy_keys[TIER_MAX_COPIES];
int32_t tier_copy_tokens[TIER_MAX_COPIES * 16];

pkv_tier *make_tier(pkv_manager *manager, int32_t num_blocks) {
    pkv_tier_config config = {
        .struct_size = sizeof config, .manager = manager, .num_blocks = num_blocks};
    pkv_tier *tier = NULL;

    assert_int_equal(pkv_tier_create(&config, &tier), PKV_OK);
    return tier;
}

void end_tier(pkv_tier *tier) {
    assert_int_equal(pkv_tier_check(tier), PKV_OK);
    pkv_tier_destroy(tier);
}

pkv_swap_plan make_plan(int32_t capacity) {
    pkv_swap_plan plan = {.struct_size = sizeof plan,
                          .capacity = capacity,
                          .copies = tier_copies,
                          .groups = tier_copy_groups,
                          .keys = tier_copy_keys,
                          .token_ids = tier_copy_tokens};
    return plan;
}

const char *plan_text(const pkv_swap_plan *plan) {
    int32_t ids[2 * TIER_MAX_COPIES];

    for (int32_t i = 0; i < plan->num_copies; i++) {
        ids[2 * i] = plan->copies[i].source;
        ids[2 * i + 1] = plan->copies[i].target;
    }
    return ids_text(ids, 2 * plan->num_copies);
}

int32_t look_up_tier(const pkv_tier *tier, pkv_request request, int32_t num_computed) {
    int32_t num_external = -1;

    assert_int_equal(pkv_tier_lookup(tier, request, num_computed, &num_external), PKV_OK);
    return num_external;
}

pkv_tier_stats tier_stats(const pkv_tier *tier) {
    pkv_tier_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(pkv_tier_get_stats(tier, &stats), PKV_OK);
    return stats;
}

pkv_swap out_of(pkv_tier *tier, pkv_request request, int32_t num_copies) {
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_swap swap;

    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_int_equal(plan.num_copies, num_copies);
    return swap;
}

/* Make the device forget all that nobody holds. */
void forget_device(pkv_manager *manager) {
    pkv_block_id ids[256];
    int32_t num_blocks = 0;

    for (pkv_block_id block = 1; block < stats_of(manager).num_blocks; block++) {
        if (manager_block_of(manager, block).is_free) {
            ids[num_blocks++] = block;
        }
    }
    assert_int_equal(pkv_evict_blocks(manager, ids, num_blocks), PKV_OK);
}

/* Put a prompt into the tier and make the device forget it. */
void store_prompt(pkv_manager *manager, pkv_tier *tier, const char *text) {
    pkv_request request = open_prompt(manager, "%s", text);
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_swap swap;

    (void)admit(manager, request);
    assert_int_equal(pkv_swap_out(tier, request, &plan, &swap), PKV_OK);
    assert_int_equal(pkv_swap_commit(tier, swap), PKV_OK);
    end_request(manager, request);
    forget_device(manager);
}

pkv_swap in_of(pkv_tier *tier, pkv_request request, int32_t hit, int32_t num_new) {
    pkv_swap_plan plan = make_plan(TIER_MAX_COPIES);
    pkv_slots_args args = slots_of(0, num_new);
    pkv_swap swap;

    args.num_new_computed_tokens = hit;
    assert_int_equal(pkv_swap_in(tier, request, &args, NULL, &plan, &swap), PKV_OK);
    return swap;
}
