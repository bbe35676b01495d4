/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Sizing: how many blocks fit on a device, and how long a sequence they hold. It asks no device;
 * the caller knows the bytes. */
#include "manager/group.h"
#include "manager/group_config.h"

/* Blocks that one sequence of `length` tokens needs at most, in all groups. */
static int64_t blocks_of_sequence(const pkv_memory_args *args, int64_t length) {
    int64_t in_flight = args->max_in_flight_tokens == 0 ? length : args->max_in_flight_tokens;
    int64_t total = 0;

    for (int32_t i = 0; i < args->num_groups; i++) {
        pkv_group_config group;
        const char *reason;
        int64_t needed;
        int64_t cap;

        (void)pkvi_group_config_read(args->groups, i, args->block_size, &group, &reason);
        needed = (length + group.block_size - 1) / group.block_size;
        cap =
            pkvi_group_admission_cap(group.kind, group.block_size, group.window, in_flight, length);
        total += needed < cap ? needed : cap;
    }
    return total;
}

/* Longest sequence that fits into `num_usable` blocks, by bisection; need rises with length. */
static int32_t longest_sequence(const pkv_memory_args *args, int64_t num_usable) {
    int64_t fits = 0;
    int64_t too_long = (int64_t)INT32_MAX + 1;

    while (too_long - fits > 1) {
        int64_t middle = fits + (too_long - fits) / 2;
        if (blocks_of_sequence(args, middle) <= num_usable) {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    return (int32_t)fits;
}

static bool add_bytes(uint64_t *sum, uint64_t bytes) {
    if (bytes > UINT64_MAX - *sum) {
        return false;
    }
    *sum += bytes;
    return true;
}

static pkv_status check_memory_args(const pkv_memory_args *args) {
    if (!(args->utilisation > 0.0 && args->utilisation <= 1.0) || args->num_groups < 1 ||
        args->num_groups > PKV_MAX_GROUPS || args->block_size < 1 || args->block_bytes == NULL ||
        (args->num_groups > 1 && args->groups == NULL) || args->max_model_len < 0 ||
        args->max_in_flight_tokens < 0) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < args->num_groups; i++) {
        pkv_group_config group;
        const char *reason;
        pkv_status status =
            pkvi_group_config_read(args->groups, i, args->block_size, &group, &reason);

        if (status != PKV_OK) {
            return status;
        }
        if (args->block_bytes[i] == 0) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }
    return PKV_OK;
}

/* Fill in the plan of checked arguments. `taken` is what others use of `budget`. */
static pkv_status plan_memory(const pkv_memory_args *args,
                              uint64_t budget,
                              uint64_t taken,
                              pkv_memory_plan *plan) {
    int64_t wanted = args->max_model_len == 0 ? 1 : args->max_model_len;
    uint64_t num_needed = (uint64_t)blocks_of_sequence(args, wanted) + 1;
    uint64_t num_blocks;
    uint64_t bytes;

    for (int32_t i = 0; i < args->num_groups; i++) {
        if (args->block_bytes[i] > plan->block_bytes) {
            plan->block_bytes = args->block_bytes[i];
        }
    }
    plan->available_bytes = budget > taken ? budget - taken : 0;
    num_blocks = plan->available_bytes / plan->block_bytes;
    plan->num_blocks = num_blocks < PKV_MAX_BLOCKS ? (int32_t)num_blocks : PKV_MAX_BLOCKS;
    if (plan->num_blocks > 0) {
        plan->max_model_len = longest_sequence(args, plan->num_blocks - 1);
    }
    if (plan->max_model_len >= wanted) {
        return PKV_OK;
    }
    if (num_needed > UINT64_MAX / plan->block_bytes) {
        plan->missing_bytes = UINT64_MAX;
        return PKV_NEVER_FITS;
    }
    bytes = num_needed * plan->block_bytes;
    if (bytes <= plan->available_bytes) {
        return PKV_NEVER_FITS; /* PKV_MAX_BLOCKS is in the way; no memory would do */
    }
    plan->missing_bytes = bytes - plan->available_bytes;
    if (taken > budget && !add_bytes(&plan->missing_bytes, taken - budget)) {
        plan->missing_bytes = UINT64_MAX;
    }
    return PKV_NEVER_FITS;
}

pkv_status pkv_plan_memory(const pkv_memory_args *args, pkv_memory_plan *out) {
    pkv_memory_args own;
    pkv_memory_plan plan = {0};
    uint64_t taken = 0;
    pkv_status status = pkvi_read_struct(&own, sizeof own, sizeof own.struct_size, args);
    pkv_status written;

    if (status != PKV_OK) {
        return status;
    }
    own.utilisation = own.utilisation == 0.0 ? PKV_DEFAULT_UTILISATION : own.utilisation;
    own.block_size = own.block_size == 0 ? PKV_DEFAULT_BLOCK_SIZE : own.block_size;
    own.num_groups = own.num_groups == 0 ? 1 : own.num_groups;
    status = check_memory_args(&own);
    if (status != PKV_OK) {
        return status;
    }
    if (!add_bytes(&taken, own.used_bytes) || !add_bytes(&taken, own.weight_bytes) ||
        !add_bytes(&taken, own.peak_activation_bytes)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    /* 1.0 * (2^64 - 1) rounds up to 2^64, which no uint64_t holds. */
    status =
        plan_memory(&own,
                    own.utilisation >= 1.0 ? own.total_bytes
                                           : (uint64_t)((double)own.total_bytes * own.utilisation),
                    taken, &plan);
    written = pkvi_write_struct(out, &plan, sizeof plan, sizeof plan.struct_size);
    return written == PKV_OK ? status : written;
}
