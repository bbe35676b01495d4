/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Helpers for tests of tiers: a tier of a fixture's manager, a plan's arrays, the verbs in
 * short form. */
#ifndef PKV_TESTS_SUPPORT_TIER_FIXTURE_H
#define PKV_TESTS_SUPPORT_TIER_FIXTURE_H

#include "support/fixture.h"

#include <pagedkv/tier.h>

enum { TIER_MAX_COPIES = 64 };

/* The arrays of every plan that make_plan gives. */
extern pkv_block_copy tier_copies[TIER_MAX_COPIES];
extern int32_t tier_copy_groups[TIER_MAX_COPIES];
extern pkv_block_key tier_copy_keys[TIER_MAX_COPIES];
extern int32_t tier_copy_tokens[TIER_MAX_COPIES * 16];

pkv_tier *make_tier(pkv_manager *manager, int32_t num_blocks);

/* Check and end. */
void end_tier(pkv_tier *tier);

pkv_swap_plan make_plan(int32_t capacity);

/* Source, target, source, target … */
const char *plan_text(const pkv_swap_plan *plan);

int32_t look_up_tier(const pkv_tier *tier, pkv_request request, int32_t num_computed);
pkv_tier_stats tier_stats(const pkv_tier *tier);

/* Swaps that must succeed; a swap-out with that many copies. */
pkv_swap out_of(pkv_tier *tier, pkv_request request, int32_t num_copies);
pkv_swap in_of(pkv_tier *tier, pkv_request request, int32_t hit, int32_t num_new);

/* Make the device forget all that nobody holds. */
void forget_device(pkv_manager *manager);

/* Put a prompt into the tier and make the device forget it. */
void store_prompt(pkv_manager *manager, pkv_tier *tier, const char *text);

#endif
