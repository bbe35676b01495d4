/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Parallel sampling and beam search: the continuations of one prompt share its blocks, and a block
 * is copied when the first of them writes into it. In the end each sequence is run alone, and must
 * give the same numbers bit for bit. */
#include "tiny_model.h"

enum { prompt_len = 21, num_steps = 20 };

static const char *const names[] = {"parallel sampling", "beam search"};
static pkv_request beams[width];
static float output[width][head_size];

/* The token that a sequence continues with: its likeliest but `choice`. */
static int32_t sample(const float *logits, int choice) {
    double sum = 0;

    for (int d = 0; d < head_size; d++) {
        sum += (double)logits[d] * (d + 1);
    }
    return (int32_t)(sum < 0 ? -sum * 1000 : sum * 1000) % 90 + choice;
}

static pkv_request open(const int32_t *tokens, int32_t num_tokens) {
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = tokens,
                             .num_tokens = num_tokens,
                             .skip_cache_read = true};
    pkv_request request;

    check(pkv_request_open(manager, &args, &request));
    return request;
}

/* Compute the tokens [computed, computed + count) of n sequences. */
static void run(const pkv_request *requests, int n, int32_t computed, int32_t count) {
    pkv_slots_args args = {
        .struct_size = sizeof args, .num_computed_tokens = computed, .num_new_tokens = count};
    pkv_batch_entry entries[width];

    for (int i = 0; i < n; i++) {
        check(pkv_allocate_slots(manager, requests[i], &args, NULL));
        entries[i] = (pkv_batch_entry){requests[i], computed, count};
    }
    step(entries, n, output);
}

/* Run the tokens of a sequence alone, as they came; whether its last output is the same. */
static bool is_same_alone(pkv_request request, const float *expected) {
    int32_t tokens[prompt_len + num_steps];
    pkv_request alone;
    bool is_same;

    check(pkv_request_get_tokens(manager, request, 0, prompt_len + num_steps, tokens));
    check(pkv_request_close(manager, request));
    alone = open(tokens, prompt_len + num_steps);
    run(&alone, 1, 0, prompt_len);
    for (int32_t length = prompt_len; length < prompt_len + num_steps; length++) {
        run(&alone, 1, length, 1);
    }
    is_same = memcmp(output[0], expected, sizeof output[0]) == 0;
    check(pkv_request_close(manager, alone));
    return is_same;
}

static int generate(bool is_beam) {
    int32_t prompt[prompt_len];
    float last[width][head_size];
    pkv_stats stats = {.struct_size = sizeof stats};
    int num_same = 0;

    for (int i = 0; i < prompt_len; i++) {
        prompt[i] = i * 7 % 60;
    }
    num_copied = 0;
    beams[0] = open(prompt, prompt_len);
    run(beams, 1, 0, prompt_len);
    for (int i = 1; i < width; i++) {
        check(pkv_fork(manager, beams[0], prompt_len, &beams[i]));
        memcpy(output[i], output[0], sizeof output[0]);
    }
    for (int32_t length = prompt_len; length < prompt_len + num_steps; length++) {
        /* Every few tokens a beam dies and the best of the others continues twice. A row must be
         * free for the child, so the dead beam goes first. */
        int dead = length % width, best = (length / 3 + 1) % width;
        if (is_beam && length % 3 == 0 && dead != best) {
            check(pkv_request_close(manager, beams[dead]));
            check(pkv_fork(manager, beams[best], length, &beams[dead]));
            memcpy(output[dead], output[best], sizeof output[dead]);
        }
        for (int i = 0; i < width; i++) {
            int32_t token = sample(output[i], i);
            check(pkv_request_append(manager, beams[i], &token, 1));
        }
        run(beams, width, length, 1);
    }
    memcpy(last, output, sizeof last);
    check(pkv_get_stats(manager, &stats));
    printf("%s: %d sequences in %d blocks, %d copied\n", names[is_beam], width,
           stats.num_blocks - 1 - stats.num_free_blocks, num_copied);
    for (int i = 0; i < width; i++) {
        num_same += is_same_alone(beams[i], last[i]) ? 1 : 0;
    }
    printf("  alone each needs %d; bit for bit the same: %d of %d\n",
           (prompt_len + num_steps + block_size - 1) / block_size, num_same, width);
    return num_same;
}

int main(void) {
    int num_same;

    start();
    num_same = generate(false) + generate(true);
    stop();
    return num_same == 2 * width ? 0 : 1;
}
