/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The mirror of a block table, the slots, and the kernels on them; see mirror_device.h. */
#include "support/mirror_device.h"

#include <string.h>

device make_device(int32_t group, int32_t block_size, int32_t window) {
    device made = {.group = group, .block_size = block_size, .window = window};

    memset(made.slots, 0x7b, sizeof made.slots);
    return made;
}

void send_table(device *target, pkv_manager *manager) {
    pkv_table_update updates[8];
    int32_t num_updates;
    pkv_status status;

    do {
        status = pkv_take_table_updates(manager, target->group, updates, 8, &num_updates);
        for (int32_t i = 0; i < num_updates; i++) {
            assert_in_range(updates[i].row, 1, MAX_ROWS - 1);
            assert_in_range(updates[i].column, 0, MAX_COLUMNS - 1);
            target->table[updates[i].row][updates[i].column] = updates[i].block_id;
        }
    } while (status == PKV_MORE);
    assert_int_equal(status, PKV_OK);
}

void build_batch(step_arrays *arrays,
                 const device *target,
                 const pkv_manager *manager,
                 const pkv_batch_entry *entries,
                 int32_t num_entries) {
    arrays->batch = (pkv_batch){.struct_size = sizeof arrays->batch,
                                .max_requests = MAX_ENTRIES,
                                .max_tokens = MAX_BATCH_TOKENS,
                                .padded_requests = arrays->batch.padded_requests,
                                .padded_tokens = arrays->batch.padded_tokens,
                                .rows = arrays->rows,
                                .seq_lens = arrays->seq_lens,
                                .query_start_loc = arrays->query_start_loc,
                                .slot_mapping = arrays->slot_mapping};
    assert_int_equal(pkv_batch_build(manager, target->group, entries, num_entries, &arrays->batch),
                     PKV_OK);
}

void write_tokens(device *target,
                  const step_arrays *arrays,
                  const pkv_manager *manager,
                  const pkv_batch_entry *entries) {
    for (int32_t i = 0; i < arrays->batch.num_requests; i++) {
        int32_t first = arrays->query_start_loc[i];
        int32_t token_ids[256];
        int32_t num_known = info_of(manager, entries[i].request).num_tokens;
        int32_t count = entries[i].num_new_tokens;

        if (entries[i].num_computed_tokens + count > num_known) {
            count = num_known - entries[i].num_computed_tokens; /* drafts are nobody's tokens */
        }
        assert_int_equal(pkv_request_get_tokens(manager, entries[i].request,
                                                entries[i].num_computed_tokens, count, token_ids),
                         PKV_OK);
        for (int32_t t = 0; t < count; t++) {
            int64_t slot = arrays->slot_mapping[first + t];

            assert_in_range(slot, target->block_size, MAX_SLOTS - 1);
            target->slots[slot] = token_ids[t];
        }
    }
}

void read_tokens(const device *target,
                 const step_arrays *arrays,
                 const pkv_manager *manager,
                 const pkv_batch_entry *entries) {
    for (int32_t i = 0; i < arrays->batch.num_requests; i++) {
        const pkv_block_id *row = target->table[arrays->rows[i]];
        int32_t length = info_of(manager, entries[i].request).num_tokens;
        int32_t first = 0;
        int32_t token_ids[256];

        length = arrays->seq_lens[i] < length ? arrays->seq_lens[i] : length;
        if (target->window > 0 && length > target->window) {
            first = length - target->window;
        }
        assert_int_equal(pkv_request_get_tokens(manager, entries[i].request, 0, length, token_ids),
                         PKV_OK);
        for (int32_t position = first; position < length; position++) {
            int64_t slot = pkv_compute_slot(row, target->block_size, position);

            assert_in_range(slot, target->block_size, MAX_SLOTS - 1);
            assert_int_equal(target->slots[slot], token_ids[position]);
        }
    }
}

void run_step(device *target,
              pkv_manager *manager,
              const pkv_batch_entry *entries,
              int32_t num_entries) {
    step_arrays arrays = {0};

    send_table(target, manager);
    build_batch(&arrays, target, manager, entries, num_entries);
    write_tokens(target, &arrays, manager, entries);
    read_tokens(target, &arrays, manager, entries);
}

pkv_manager *make_walk_manager(int32_t num_blocks, int32_t block_size) {
    pkv_manager_config config = small_config(num_blocks, block_size);

    config.max_rows = MAX_ROWS - 1;
    config.max_model_len = 256;
    return make_manager(&config);
}
