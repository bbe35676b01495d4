/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Checks of the arrays that on other devices are out of the host's sight: lengths against the plan,
 * block ids, slots, positions. They cost a few bytes for each block that is read.
 *
 * The one idea: on the CPU a wrong table is an error code, not a crash; nothing was written yet. */
#include "base/paged.h"
#include "kernels/cpu/cpu.h"

#define REFUSE(device, ...) PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* Block ids of columns [first, end) lie in the pool. */
static pkv_status check_table(pkv_device *device,
                              const pkv_block_id *table,
                              int64_t first,
                              int64_t end,
                              int64_t num_blocks,
                              int32_t request) {
    for (int64_t column = first; column < end; column++) {
        if (table[column] < 0 || table[column] >= num_blocks) {
            return REFUSE(
                device, "block_table of request %d, column %lld: block %d, num_blocks %lld",
                (int)request, (long long)column, (int)table[column], (long long)num_blocks);
        }
    }
    return PKV_OK;
}

static pkv_status check_plan_data(pkv_device *device, const struct pkvi_attention *op) {
    const struct pkvi_plan_header *header = op->args.plan_data;

    if (header->magic != PKVI_PLAN_MAGIC || header->plan_identity != op->plan_identity ||
        header->num_requests < 0 || header->num_requests > op->max_requests) {
        return REFUSE(device, "plan_data was not built by this plan");
    }
    if (header->num_tokens > op->num_tokens) {
        return REFUSE(device, "query.shape[0] (num_tokens) is %lld, the plan has %d tokens",
                      (long long)op->num_tokens, (int)header->num_tokens);
    }
    return PKV_OK;
}

/* One request against its plan. */
static pkv_status check_request(pkv_device *device,
                                const struct pkvi_attention *op,
                                const struct pkvi_plan_header *header,
                                int32_t request) {
    const pkv_attention_args *args = &op->args;
    const struct pkvi_plan_request *planned = &pkvi_plan_requests(header)[request];
    int64_t seq_len = args->seq_lens[request];
    int64_t chunk_size = header->chunk_size;
    int64_t first_key = 0;

    if (args->query_start_loc[request] != planned->query_start ||
        args->query_start_loc[request + 1] - planned->query_start != planned->num_queries) {
        return REFUSE(device, "query_start_loc of request %d is not as planned", (int)request);
    }
    if (seq_len < 0 || seq_len > planned->planned_chunks * chunk_size) {
        return REFUSE(device, "seq_lens[%d] is %lld, planned were at most %lld", (int)request,
                      (long long)seq_len, (long long)(planned->planned_chunks * chunk_size));
    }
    bool is_causal = (args->flags & PKV_ATTENTION_NON_CAUSAL) == 0;
    if (is_causal && seq_len > 0 && planned->num_queries > seq_len) {
        return REFUSE(device, "request %d: %d queries are more than its %lld keys", (int)request,
                      (int)planned->num_queries, (long long)seq_len);
    }
    if (planned->num_queries == 0 || seq_len == 0) {
        return PKV_OK;
    }
    if (args->window > 0) {
        first_key = seq_len - planned->num_queries - args->window + 1;
        first_key = first_key < 0 ? 0 : first_key;
        if (planned->first_chunk > first_key / chunk_size) {
            return REFUSE(device,
                          "seq_lens[%d] is %lld: below the lengths that the windowed plan "
                          "covers",
                          (int)request, (long long)seq_len);
        }
        first_key = first_key < seq_len ? first_key : seq_len;
    }
    return check_table(device, args->block_table + planned->table_row * args->block_table_stride,
                       first_key / op->cache.block_size,
                       pkvi_num_columns(seq_len, op->cache.block_size), op->cache.num_blocks,
                       request);
}

pkv_status pkvi_cpu_check_attention(pkv_device *device, const struct pkvi_attention *op) {
    const struct pkvi_plan_header *header = op->args.plan_data;
    pkv_status status = check_plan_data(device, op);

    for (int32_t request = 0; status == PKV_OK && request < header->num_requests; request++) {
        status = check_request(device, op, header, request);
    }
    return status;
}

pkv_status pkvi_cpu_check_write_kv(pkv_device *device, const struct pkvi_write_kv *op) {
    int64_t num_slots = op->cache.num_blocks * op->cache.block_size;

    for (int64_t token = 0; token < op->num_tokens; token++) {
        int64_t slot = op->args.slot_mapping[token];

        if (slot < PKV_NO_SLOT || slot >= num_slots) {
            return REFUSE(device, "slot_mapping[%lld] is %lld, wanted -1 .. %lld", (long long)token,
                          (long long)slot, (long long)(num_slots - 1));
        }
        bool is_rotated = op->rotary_size > 0 && (slot >= 0 || op->num_query_heads > 0);
        if (is_rotated &&
            (op->args.positions[token] < 0 || op->args.positions[token] >= op->max_position)) {
            return REFUSE(device, "positions[%lld] is %lld, cos and sin have %lld rows",
                          (long long)token, (long long)op->args.positions[token],
                          (long long)op->max_position);
        }
    }
    return PKV_OK;
}

pkv_status pkvi_cpu_check_gather(pkv_device *device, const struct pkvi_gather *op) {
    const pkv_gather_args *args = &op->args;
    pkv_status status = PKV_OK;

    if (args->key_start_loc[0] < 0 || args->key_start_loc[args->num_requests] > op->num_keys) {
        return REFUSE(device, "key_start_loc ends at %d, key or value has %lld rows",
                      (int)args->key_start_loc[args->num_requests], (long long)op->num_keys);
    }
    for (int32_t request = 0; status == PKV_OK && request < args->num_requests; request++) {
        int64_t first = args->first_positions == NULL ? 0 : args->first_positions[request];
        int64_t count = (int64_t)args->key_start_loc[request + 1] - args->key_start_loc[request];

        if (count < 0 || first < 0 || args->rows[request] < 0) {
            return REFUSE(device, "request %d: key_start_loc falls, or a negative position or row",
                          (int)request);
        }
        if (count > 0) {
            status = check_table(
                device, args->block_table + args->rows[request] * args->block_table_stride,
                first / op->cache.block_size, pkvi_num_columns(first + count, op->cache.block_size),
                op->cache.num_blocks, request);
        }
    }
    return status;
}
