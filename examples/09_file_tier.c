/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A cache that survives a restart: a sequence's blocks go to a file, everything ends, begins again,
 * and the sequence goes on from what the file holds, bit for bit as without the break.
 *
 * The one idea: the tier knows which block lies in which slot, the store moves bytes, and what
 * crosses is arrays: a plan is a transfer. The fingerprint of the tier is the identity of the file,
 * so a file of other weights, groups or block sizes is never read. */
#include "tiny_model.h"

enum { prompt_len = 29, num_full = 24, num_after = 12, num_slots = 16, size = sizeof pool[0] };

static const char *path = "09_file_tier.blocks";
static pkv_tier *tier;
static pkv_store store;
static pkv_block_copy copies[num_slots];
static pkv_block_key keys[num_slots];
static int32_t groups[num_slots];
static pkv_swap_plan swap_plan = {sizeof swap_plan, num_slots, 0, 0, copies, groups, keys, NULL};

/* Begin as a process begins: nothing in memory, and whatever the file holds. Returns how much. */
static int32_t begin(void) {
    pkv_file_store_config file_config = {.struct_size = sizeof file_config,
                                         .path = path,
                                         .shape = {1, size, block_size, num_slots},
                                         .mismatch = PKV_STORE_EMPTY};
    pkv_tier_config config = {.struct_size = sizeof config, .num_blocks = num_slots};
    pkv_block_id slots[num_slots];
    pkv_file_store *file;
    int32_t num_stored;

    memset(pool, 0, sizeof pool);
    start();
    config.manager = manager;
    memset(config.identity, 7, sizeof config.identity); /* an engine: a digest of its weights */
    check(pkv_tier_create(&config, &tier));
    check(pkv_tier_get_fingerprint(tier, file_config.identity));
    check(pkv_file_store_create(&file_config, &file, NULL, 0));
    store.struct_size = sizeof store;
    check(pkv_file_store_get_store(file, &store));
    check(pkv_file_store_get_stored(file, keys, groups, slots, num_slots, &num_stored));
    check(pkv_tier_restore(tier, keys, groups, slots, NULL, num_stored));
    return num_stored;
}

static void end(void) {
    check(pkv_tier_check(tier));
    pkv_store_close(&store);
    pkv_tier_destroy(tier);
    stop();
}

/* Do what the plan says. An engine polls between its steps and does not wait. */
static void run_transfer(bool is_write, pkv_swap swap) {
    pkv_tensor blocks = {
        pool, PKV_DTYPE_UINT8, 3, {1, num_blocks, size}, {num_blocks * size, size, 1}};
    pkv_status statuses[num_slots];
    pkv_store_transfer transfer = {sizeof transfer, is_write, swap_plan.num_copies,
                                   blocks,          copies,   keys,
                                   groups,          NULL,     statuses};
    pkv_store_completion completion;
    uint64_t ticket;
    int32_t count;

    check(pkv_store_submit(&store, &transfer, &ticket));
    check(pkv_store_poll(&store, true, &completion, 1, &count));
    check(completion.status); /* an engine: pkv_swap_abort, evict the slots, compute again */
    check(pkv_swap_commit(tier, swap));
}

/* Compute the prompt's full blocks where they were not loaded, then its tail (how many queries run
 * at once may show in the last bit), then decode, each token from the last output. */
static void generate(pkv_request request, int32_t computed, float (*outputs)[head_size]) {
    for (int32_t i = computed < num_full ? -1 : 0; i < num_after; i++) {
        int32_t length = i < 0 ? num_full : prompt_len + i;
        pkv_slots_args args = {.struct_size = sizeof args, computed, length - computed};
        pkv_batch_entry entry = {request, computed, length - computed};

        check(pkv_allocate_slots(manager, request, &args, NULL));
        step(&entry, 1, &outputs[i < 0 ? 0 : i]);
        computed = length;
        if (i >= 0) {
            int32_t token = (int32_t)(outputs[i][0] * 1000) % 50 + 50;
            check(pkv_request_append(manager, request, &token, 1));
        }
    }
}

int main(void) {
    static float before[num_after][head_size], after[num_after][head_size];
    int32_t tokens[prompt_len];
    pkv_request_args request_args = {.struct_size = sizeof request_args, tokens, prompt_len};
    pkv_slots_args args = {.struct_size = sizeof args};
    pkv_request request;
    pkv_swap swap;

    for (int32_t t = 0; t < prompt_len; t++) {
        tokens[t] = 3 * t;
    }
    (void)remove(path);
    printf("first run: %d blocks in the file\n", begin());
    check(pkv_request_open(manager, &request_args, &request));
    generate(request, 0, before);
    check(pkv_swap_out(tier, request, &swap_plan, &swap));
    run_transfer(true, swap);
    printf("stored: %d tokens in %d blocks\n", swap_plan.num_tokens, swap_plan.num_copies);
    end();
    printf("second run: %d blocks in the file\n", begin());
    check(pkv_request_open(manager, &request_args, &request));
    check(pkv_swap_in(tier, request, &args, NULL, &swap_plan, &swap));
    run_transfer(false, swap);
    printf("loaded: %d of %d tokens of the prompt\n", swap_plan.num_tokens, prompt_len);
    generate(request, swap_plan.num_tokens, after);
    bool is_same = memcmp(before, after, sizeof after) == 0;
    printf("%d tokens decoded: %s\n", num_after, is_same ? "bit for bit the same" : "WRONG");
    end();
    (void)remove(path);
    return is_same ? 0 : 1;
}
