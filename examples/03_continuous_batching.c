/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A scheduler in a hundred lines: continuous batching with chunked prefill, prefix hits and
 * preemption by recompute. The model is a stand-in, but it reads a real paged cache.
 *
 * The one idea: no phases. Each step moves num_computed_tokens towards the number of tokens. */
#include <pagedkv.h>

#include <stdio.h>
#include <stdlib.h>

enum { num_blocks = 11, block_size = 4, token_budget = 12, num_sequences = 4, max_tokens = 20 };

typedef struct sequence {
    enum { WAITING, RUNNING, FINISHED } state;
    int32_t name, num_tokens, num_computed_tokens, num_scheduled_tokens, token_ids[max_tokens];
    pkv_request request;
} sequence;

static pkv_manager *manager;
static sequence sequences[num_sequences];         /* in the order of their arrival */
static int32_t kv_cache[num_blocks * block_size]; /* the "KV" of a token is one number */

static pkv_status check(pkv_status status) {
    if (status < PKV_OK) { /* above it are outcomes that a scheduler acts upon */
        fprintf(stderr, "%s: %s\n", pkv_status_name(status), pkv_manager_last_error(manager));
        exit(1);
    }
    return status;
}

/* Take blocks for as many tokens as the budget allows, after what the prefix cache has of them. */
static bool allocate(sequence *s, int32_t budget) {
    pkv_slots_args args = {.struct_size = sizeof args};
    if (s->state == WAITING) {
        check(pkv_get_computed_blocks(manager, s->request, &s->num_computed_tokens));
        args.num_new_computed_tokens = s->num_computed_tokens;
        args.full_sequence_must_fit = true; /* or a long prompt would enter and starve halfway */
    }
    int32_t num_missing = s->num_tokens - s->num_computed_tokens;
    args.num_computed_tokens = s->num_computed_tokens - args.num_new_computed_tokens;
    args.num_new_tokens = s->num_scheduled_tokens = num_missing < budget ? num_missing : budget;
    return budget > 0 && check(pkv_allocate_slots(manager, s->request, &args, NULL)) == PKV_OK;
}

/* First come, first served: who runs came before all who wait, so one pass is enough. */
static int32_t schedule(void) {
    int32_t budget = token_budget;
    for (sequence *s = sequences; s < &sequences[num_sequences]; s++) {
        while (s->state == RUNNING && !allocate(s, budget)) {
            /* The youngest, perhaps s itself, waits. Its keys stay: it may hit itself later. */
            sequence *victim = &sequences[num_sequences - 1];
            for (; victim->state != RUNNING; victim--) {
            }
            check(pkv_free(manager, victim->request));
            victim->state = WAITING;
            printf("  %c is preempted\n", victim->name);
        }
        if (s->state == WAITING) {
            if (!allocate(s, budget)) {
                break; /* nobody overtakes */
            }
            s->state = RUNNING;
            printf("  %c enters, %d tokens cached\n", s->name, s->num_computed_tokens);
        }
        budget -= s->state == RUNNING ? s->num_scheduled_tokens : 0;
    }
    return token_budget - budget;
}

/* Write the KV of the new tokens, read all KV through the block table, sample the next token. */
static void run_model(sequence *s) {
    int32_t num_cached = s->num_computed_tokens, next = 0, num_columns;
    const pkv_block_id *block_table;
    check(pkv_get_block_table(manager, s->request, 0, &block_table, &num_columns));
    s->num_computed_tokens += s->num_scheduled_tokens;
    for (int32_t i = 0; i < s->num_computed_tokens; i++) {
        int32_t *kv = &kv_cache[pkv_compute_slot(block_table, block_size, i)];
        *kv = i < num_cached ? *kv : s->token_ids[i];
        check(*kv == s->token_ids[i] ? PKV_OK : PKV_ERROR_CORRUPT); /* cached or not, it is right */
        next = (31 * next + *kv) % 1000;
    }
    if (s->num_computed_tokens == s->num_tokens) { /* else its prompt is not through */
        s->token_ids[s->num_tokens++] = next;
        check(pkv_request_append(manager, s->request, &next, 1));
    }
    if (s->num_tokens == max_tokens) {
        check(pkv_request_close(manager, s->request));
        s->state = FINISHED;
    }
}

int main(void) {
    pkv_manager_config config = {.struct_size = sizeof config, .num_blocks = num_blocks};
    config.block_size = block_size;
    config.max_model_len = max_tokens;
    check(pkv_manager_create(&config, &manager));
    for (sequence *s = sequences; s < &sequences[num_sequences]; s++) {
        pkv_request_args args = {.struct_size = sizeof args, .token_ids = s->token_ids};
        s->name = 'A' + (int32_t)(s - sequences);
        for (; s->num_tokens < 10; s->num_tokens++) { /* the first 8 tokens are common to all */
            s->token_ids[s->num_tokens] = s->num_tokens < 8 ? 1 : s->name;
        }
        args.num_tokens = s->num_tokens;
        check(pkv_request_open(manager, &args, &s->request));
    }
    for (int32_t step = 1; schedule() > 0; step++) {
        printf("step %d:", step);
        for (sequence *s = sequences; s < &sequences[num_sequences]; s++) {
            if (s->state == RUNNING) {
                printf(" %c+%d", s->name, s->num_scheduled_tokens);
                run_model(s);
            }
        }
        printf("\n");
    }
    pkv_manager_destroy(manager);
    return 0;
}
