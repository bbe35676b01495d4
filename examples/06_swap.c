/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Preemption by swap: a sequence goes out to host memory, others use every block of the device, it
 * comes back, and each token it then makes is what it would have been, bit for bit.
 *
 * The one idea: the tier plans copies, pkv_swap_blocks runs them, a commit makes the targets
 * findable. The victim is detached: its blocks are free before its copy has run, since that stands
 * before their next writes on the stream. */
#include "tiny_model.h"

enum { prompt_len = 29, num_before = 8, num_after = 12, num_slots = 16 };

static _Alignas(64) float host[num_slots][2][num_floats];
static pkv_tier *tier;

static pkv_tensor bytes_of(void *memory, int64_t count) {
    const int64_t size = 2 * num_floats * (int64_t)sizeof(float);
    return (pkv_tensor){memory, PKV_DTYPE_UINT8, 3, {1, count, size}, {count * size, size, 1}};
}

/* Compute the tokens [computed, computed + count) of a sequence, of which `hit` are cached. */
static void run(pkv_request request, int32_t computed, int32_t hit, int32_t count, float *output) {
    static float outputs[width][head_size];
    pkv_slots_args args = {.struct_size = sizeof args,
                           .num_computed_tokens = computed,
                           .num_new_computed_tokens = hit,
                           .num_new_tokens = count};
    pkv_batch_entry entry = {request, computed + hit, count};

    check(pkv_allocate_slots(manager, request, &args, NULL));
    step(&entry, 1, outputs);
    memcpy(output, outputs[0], sizeof outputs[0]);
}

/* The next token follows from the last output, so that one wrong bit changes all that comes. */
static void decode(pkv_request request, int32_t num_tokens, float *output) {
    int32_t token = (int32_t)(output[0] * 1000) % 50 + 50;

    check(pkv_request_append(manager, request, &token, 1));
    run(request, num_tokens, 0, 1, output);
}

static pkv_request open(int32_t first, int32_t num_tokens) {
    int32_t tokens[max_len];
    pkv_request_args args = {.struct_size = sizeof args, tokens, num_tokens};
    pkv_request request;

    for (int32_t t = 0; t < num_tokens; t++) {
        tokens[t] = first + t;
    }
    check(pkv_request_open(manager, &args, &request));
    return request;
}

/* Prefill and decode; with a swap in the middle or without. */
static void generate(bool is_swapped, float (*outputs)[head_size]) {
    pkv_request request = open(0, prompt_len);
    const pkv_tensor blocks = bytes_of(pool, num_blocks), slots = bytes_of(host, num_slots);
    pkv_block_copy copies[num_slots];
    pkv_swap_plan plan_of_swap = {sizeof plan_of_swap, num_slots, 0, 0, copies, NULL, NULL, NULL};
    pkv_slots_args args = {.struct_size = sizeof args};
    pkv_swap swap;
    float output[head_size];
    int32_t num_tokens = prompt_len;

    run(request, 0, 0, prompt_len, output);
    for (int i = 0; i < num_before; i++) {
        decode(request, num_tokens++, output);
    }
    if (is_swapped) {
        check(pkv_swap_out(tier, request, &plan_of_swap, &swap));
        check(pkv_swap_blocks(device, &blocks, &slots, copies, plan_of_swap.num_copies, NULL));
        check(pkv_swap_detach(tier, swap)); /* from now on the blocks serve others */
        check(pkv_free(manager, request));
        check(pkv_swap_commit(tier, swap)); /* when the copy has run */
        printf("out: %d of %d tokens in %d blocks\n", plan_of_swap.num_tokens, num_tokens,
               plan_of_swap.num_copies);
        for (int i = 0; i < 9; i++) { /* others need all blocks of the device */
            float ignored[head_size];
            pkv_request other = open(1000 * (i + 1), max_len);
            run(other, 0, 0, max_len, ignored);
            check(pkv_request_close(manager, other));
        }
        /* Back: find, allocate, pin and plan in one call; then load, and compute the tail again. */
        check(pkv_swap_in(tier, request, &args, NULL, &plan_of_swap, &swap));
        check(pkv_swap_blocks(device, &slots, &blocks, copies, plan_of_swap.num_copies, NULL));
        check(pkv_swap_commit(tier, swap));
        printf("in: %d tokens loaded, %d computed again\n", plan_of_swap.num_tokens,
               num_tokens - plan_of_swap.num_tokens);
        run(request, plan_of_swap.num_tokens, 0, num_tokens - plan_of_swap.num_tokens, output);
    }
    for (int i = 0; i < num_after; i++) {
        decode(request, num_tokens++, output);
        memcpy(outputs[i], output, sizeof output);
    }
    check(pkv_request_close(manager, request));
}

int main(void) {
    static float swapped[num_after][head_size], alone[num_after][head_size];
    pkv_tier_config config = {.struct_size = sizeof config, .num_blocks = num_slots};

    start();
    config.manager = manager;
    check(pkv_tier_create(&config, &tier));
    generate(true, swapped);
    check(pkv_reset_prefix_cache(manager));
    generate(false, alone);
    bool is_same = memcmp(swapped, alone, sizeof alone) == 0;
    printf("%d tokens after the swap: %s\n", num_after, is_same ? "bit for bit the same" : "WRONG");
    check(pkv_tier_check(tier));
    pkv_tier_destroy(tier);
    stop();
    return is_same ? 0 : 1;
}
