/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Chats through a manager, one turn after the other; see chat_hits.h. */
#include "chat_hits.h"

#include <pagedkv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const chat_workload *chats;
    pkv_manager *manager;
    chat_hits *result;
    int32_t *tokens;
    uint64_t step;
    char *error; /* CHAT_HITS_MAX_ERROR characters; "" until something fails */
} run;

/* Keeps the first failure. */
static bool did(run *self, pkv_status status, const char *verb) {
    if (status != PKV_OK && self->error[0] == '\0') {
        snprintf(self->error, CHAT_HITS_MAX_ERROR, "%s gave %s: %s", verb, pkv_status_name(status),
                 self->manager != NULL ? pkv_manager_last_error(self->manager) : "no manager");
    }
    return status == PKV_OK;
}

/* One step that computes tokens of one request: allocate, copy, complete. */
static void compute(run *self, pkv_request request, int32_t computed, int32_t hit, int32_t count) {
    pkv_slots_args args = {.struct_size = sizeof args,
                           .num_computed_tokens = computed,
                           .num_new_computed_tokens = hit,
                           .num_new_tokens = count,
                           .step = ++self->step};
    pkv_block_copy copy;
    int32_t num_copies = 0;

    (void)did(self, pkv_allocate_slots(self->manager, request, &args, NULL), "pkv_allocate_slots");
    (void)did(self, pkv_take_copies(self->manager, 0, &copy, 1, &num_copies), "pkv_take_copies");
    (void)did(self, pkv_step_complete(self->manager, self->step), "pkv_step_complete");
}

static void serve_turn(run *self, int32_t index) {
    const chat_turn *turn = &self->chats->turns[index];
    int32_t num_tokens = turn->num_prompt_tokens + turn->num_answer_tokens;
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = self->tokens,
                             .num_tokens = turn->num_prompt_tokens,
                             .max_num_tokens = num_tokens};
    pkv_request request;
    int32_t hit = 0;

    chat_get_tokens(self->chats, index, 0, num_tokens, self->tokens);
    if (!did(self, pkv_request_open(self->manager, &args, &request), "pkv_request_open") ||
        !did(self, pkv_get_computed_blocks(self->manager, request, &hit),
             "pkv_get_computed_blocks")) {
        return;
    }
    self->result->num_prompt_tokens += turn->num_prompt_tokens;
    self->result->num_hit_tokens += hit;
    compute(self, request, 0, hit, turn->num_prompt_tokens - hit);
    (void)did(self,
              pkv_request_append(self->manager, request, self->tokens + turn->num_prompt_tokens,
                                 turn->num_answer_tokens),
              "pkv_request_append");
    compute(self, request, turn->num_prompt_tokens, 0, turn->num_answer_tokens);
    (void)did(self, pkv_request_close(self->manager, request), "pkv_request_close");
}

/* Blocks that hold everything that is ever written, each turn's last and copied ones included. */
static int32_t count_blocks(const chat_workload *chats, int32_t block_size) {
    int64_t num_tokens = chats->max_total_tokens;

    for (int32_t i = 0; i < chats->num_segments; i++) {
        num_tokens += chats->segments[i].num_tokens;
    }
    return (int32_t)(num_tokens / block_size + 3 * (int64_t)chats->num_turns + 2);
}

bool chat_hits_count(const chat_workload *chats,
                     int32_t block_size,
                     int32_t min_partial_tokens,
                     chat_hits *out,
                     char *error) {
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = count_blocks(chats, block_size),
                                 .block_size = block_size,
                                 .max_model_len = chats->max_total_tokens,
                                 .max_rows = 1,
                                 .max_requests = 1,
                                 .max_total_tokens = chats->max_total_tokens,
                                 .store_tokens = true,
                                 .min_partial_tokens = min_partial_tokens};
    run self = {.chats = chats, .result = out, .error = error};
    pkv_stats stats = {.struct_size = sizeof stats};

    memset(out, 0, sizeof *out);
    error[0] = '\0';
    self.tokens = calloc((size_t)chats->max_total_tokens, sizeof *self.tokens);
    if (self.tokens == NULL) {
        snprintf(error, CHAT_HITS_MAX_ERROR, "no memory for a prompt");
        return false;
    }
    if (!did(&self, pkv_manager_create(&config, &self.manager), "pkv_manager_create")) {
        free(self.tokens);
        return false;
    }
    for (int32_t i = 0; i < chats->num_turns && error[0] == '\0'; i++) {
        serve_turn(&self, i);
    }
    (void)did(&self, pkv_manager_check(self.manager), "pkv_manager_check");
    (void)did(&self, pkv_get_stats(self.manager, &stats), "pkv_get_stats");
    out->num_partial_hits = (int64_t)stats.num_partial_hits;
    out->num_partial_tokens = (int64_t)stats.num_partial_hit_tokens;
    out->num_copies = (int64_t)stats.num_copies;
    if (stats.num_blocks_evicted != 0 && error[0] == '\0') {
        snprintf(error, CHAT_HITS_MAX_ERROR, "%llu blocks were evicted from a pool that holds all",
                 (unsigned long long)stats.num_blocks_evicted);
    }
    pkv_manager_destroy(self.manager);
    free(self.tokens);
    return error[0] == '\0';
}
