/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The operations that only move integers and bytes: block table, slots, whole blocks. One
 * implementation serves every instruction set; the C library's memcpy is the fast one. */
#include <string.h>

#include "base/paged.h"
#include "kernels/cpu/cpu.h"

void pkvi_cpu_update_block_table(const pkv_table_args *op) {
    for (int32_t i = 0; i < op->num_updates; i++) {
        pkv_table_update update = op->updates[i];

        op->block_table[update.row * op->block_table_stride + update.column] = update.block_id;
    }
}

/* Slot of one position; -1 outside of the table. */
static int64_t slot_of(const pkv_slot_mapping_args *op, int32_t row, int64_t position) {
    const pkv_block_id *table = op->block_table + row * op->block_table_stride;

    if (position < 0 || position / op->block_size >= op->num_columns) {
        return PKV_NO_SLOT;
    }
    return pkv_compute_slot(table, op->block_size, position);
}

void pkvi_cpu_compute_slot_mapping(const pkv_slot_mapping_args *op) {
    int32_t token = 0;

    for (int32_t request = 0; request < op->num_requests; request++) {
        int32_t end = op->query_start_loc[request + 1];
        int32_t num_queries = end - op->query_start_loc[request];

        for (int32_t i = 0; i < num_queries && token < op->num_tokens; i++, token++) {
            int64_t position = op->positions != NULL
                                   ? op->positions[token]
                                   : (int64_t)op->seq_lens[request] - num_queries + i;

            op->slot_mapping[token] = slot_of(op, op->rows[request], position);
        }
    }
    for (; token < op->num_tokens; token++) {
        op->slot_mapping[token] = PKV_NO_SLOT;
    }
}

/* ---- Whole blocks: an item is one entry of the list in one layer */

static void move_one(void *context, int32_t item, int32_t worker) {
    const struct pkvi_move *op = context;
    int64_t num_layers = op->source.shape[0];

    (void)worker;
    for (int64_t layer = 0; layer < num_layers; layer++) {
        memcpy(pkvi_block_address(&op->target, layer, op->copies[item].target),
               pkvi_block_address(&op->source, layer, op->copies[item].source),
               (size_t)op->source.shape[2]);
    }
}

void pkvi_cpu_move_blocks(struct pkvi_cpu_device *device, const struct pkvi_move *op) {
    struct pkvi_move move = *op;

    pkvi_cpu_parallel_for(device, op->num_copies, move_one, &move);
}

/* A block may be listed twice, so entries are filled one after another. */
void pkvi_cpu_fill_blocks(struct pkvi_cpu_device *device, const struct pkvi_fill *op) {
    (void)device;
    for (int64_t layer = 0; layer < op->blocks.shape[0]; layer++) {
        for (int32_t i = 0; i < op->num_blocks; i++) {
            memset(pkvi_block_address(&op->blocks, layer, op->block_ids[i]), op->byte,
                   (size_t)op->blocks.shape[2]);
        }
    }
}
