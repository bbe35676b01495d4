/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A device for tests of whole engines: a mirror of one group's block table, kept by table updates
 * alone, and an array of slots in place of the KV cache. Its kernels write each token into its slot
 * and read sequences back through the table.
 *
 * The one idea: a slot holds the token that was written there, so a sequence that was given a block
 * it should not have reads another's tokens, and the test fails there. */
#ifndef PKV_TESTS_SUPPORT_MIRROR_DEVICE_H
#define PKV_TESTS_SUPPORT_MIRROR_DEVICE_H

#include "support/fixture.h"

#define MAX_ENTRIES 16
#define MAX_COLUMNS 64
#define MAX_ROWS 9
#define MAX_SLOTS 4096
#define MAX_BATCH_TOKENS 256

/* One group's part of a device. `window` 0 is full attention. */
typedef struct device {
    int32_t group, block_size, window;
    pkv_block_id table[MAX_ROWS][MAX_COLUMNS]; /* row 0 is the null row */
    int32_t slots[MAX_SLOTS];                  /* the token that was written there */
} device;

/* A batch and its arrays. padded_requests and padded_tokens are the caller's; the rest is built. */
typedef struct step_arrays {
    pkv_batch batch;
    int32_t rows[MAX_ENTRIES], seq_lens[MAX_ENTRIES], query_start_loc[MAX_ENTRIES + 1];
    int64_t slot_mapping[MAX_BATCH_TOKENS];
} step_arrays;

device make_device(int32_t group, int32_t block_size, int32_t window);

/* A manager whose rows and lengths fit into a device. */
pkv_manager *make_walk_manager(int32_t num_blocks, int32_t block_size);

/* Send the changed cells, as the engine does before each step. */
void send_table(device *target, pkv_manager *manager);

void build_batch(step_arrays *arrays,
                 const device *target,
                 const pkv_manager *manager,
                 const pkv_batch_entry *entries,
                 int32_t num_entries);

/* The write kernel: put the tokens of the batch into their slots. Drafts are nobody's tokens. */
void write_tokens(device *target,
                  const step_arrays *arrays,
                  const pkv_manager *manager,
                  const pkv_batch_entry *entries);

/* The attention kernel: follow the device's own table and read all that the last token sees. */
void read_tokens(const device *target,
                 const step_arrays *arrays,
                 const pkv_manager *manager,
                 const pkv_batch_entry *entries);

/* One step on one device: table, batch, write, read. */
void run_step(device *target,
              pkv_manager *manager,
              const pkv_batch_entry *entries,
              int32_t num_entries);

#endif
