/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Counts the prefix-cache hits behind fragmentation_granularity.h.
 *
 * The one idea: the pool is large enough for all that the chats ever write, and the library's own
 * counter proves that nothing was evicted. */
#include "fragmentation_granularity.h"

#include "workload_chat.h"

#include <pagedkv/manager.h>

#include <stdio.h>
#include <stdlib.h>

static bool fail(char *error, const char *verb, pkv_status status, const pkv_manager *manager) {
    snprintf(error, GRANULARITY_MAX_ERROR, "%s gave %s: %s", verb, pkv_status_name(status),
             manager != NULL ? pkv_manager_last_error(manager) : "no manager");
    return false;
}

/* Blocks that hold everything: each segment once, per turn what a cut-off hit writes again and a
 * last block, and one whole turn on top. */
static int32_t count_blocks(const chat_workload *chats, int32_t block_size) {
    int64_t num_tokens = chats->max_total_tokens;

    for (int32_t i = 0; i < chats->num_segments; i++) {
        num_tokens += chats->segments[i].num_tokens;
    }
    return (int32_t)(num_tokens / block_size + 2 * (int64_t)chats->num_turns + 2);
}

/* One turn: look the prompt up, compute the rest of it, then the answer, and leave. */
static bool serve_turn(pkv_manager *manager,
                       const chat_workload *chats,
                       int32_t turn_index,
                       int32_t *token_ids,
                       granularity_result *out,
                       char *error) {
    const chat_turn *turn = &chats->turns[turn_index];
    int32_t num_tokens = turn->num_prompt_tokens + turn->num_answer_tokens;
    pkv_request_args args = {
        .struct_size = sizeof(args),
        .token_ids = token_ids,
        .num_tokens = turn->num_prompt_tokens,
        .max_num_tokens = num_tokens,
    };
    pkv_slots_args prompt = {.struct_size = sizeof(prompt)};
    pkv_slots_args answer = {
        .struct_size = sizeof(answer),
        .num_computed_tokens = turn->num_prompt_tokens,
        .num_new_tokens = turn->num_answer_tokens,
    };
    pkv_request request;

    chat_get_tokens(chats, turn_index, 0, num_tokens, token_ids);

    pkv_status status = pkv_request_open(manager, &args, &request);

    if (status != PKV_OK) {
        return fail(error, "pkv_request_open", status, manager);
    }
    status = pkv_get_computed_blocks(manager, request, &prompt.num_new_computed_tokens);
    if (status != PKV_OK) {
        return fail(error, "pkv_get_computed_blocks", status, manager);
    }
    prompt.num_new_tokens = turn->num_prompt_tokens - prompt.num_new_computed_tokens;
    out->num_turns++;
    out->num_prompt_tokens += turn->num_prompt_tokens;
    out->num_hit_tokens += prompt.num_new_computed_tokens;

    status = pkv_allocate_slots(manager, request, &prompt, NULL);
    if (status == PKV_OK) {
        status = pkv_request_append(manager, request, token_ids + turn->num_prompt_tokens,
                                    turn->num_answer_tokens);
    }
    if (status == PKV_OK) {
        status = pkv_allocate_slots(manager, request, &answer, NULL);
    }
    if (status == PKV_OK) {
        status = pkv_request_close(manager, request);
    }
    return status == PKV_OK || fail(error, "serving a turn", status, manager);
}

static bool serve_all(pkv_manager *manager,
                      const chat_workload *chats,
                      granularity_result *out,
                      char *error) {
    pkv_stats stats = {.struct_size = sizeof(stats)};
    int32_t *token_ids = calloc((size_t)chats->max_total_tokens, sizeof(int32_t));
    bool is_good = token_ids != NULL;

    if (!is_good) {
        snprintf(error, GRANULARITY_MAX_ERROR, "no memory for a prompt");
    }
    for (int32_t i = 0; is_good && i < chats->num_turns; i++) {
        is_good = serve_turn(manager, chats, i, token_ids, out, error);
    }
    free(token_ids);
    if (!is_good) {
        return false;
    }

    pkv_status status = pkv_get_stats(manager, &stats);

    if (status != PKV_OK) {
        return fail(error, "pkv_get_stats", status, manager);
    }
    if (stats.num_blocks_evicted != 0) {
        snprintf(error, GRANULARITY_MAX_ERROR,
                 "%llu blocks were evicted from a pool that holds all",
                 (unsigned long long)stats.num_blocks_evicted);
        return false;
    }
    return true;
}

bool granularity_measure(uint64_t seed, int32_t block_size, granularity_result *out, char *error) {
    chat_config chat_settings = {.seed = seed};
    chat_workload chats;
    const char *what = NULL;
    pkv_manager *manager = NULL;

    *out = (granularity_result){.block_size = block_size};
    if (!chat_make(&chat_settings, &chats, &what)) {
        snprintf(error, GRANULARITY_MAX_ERROR, "chats: %s", what);
        return false;
    }

    pkv_manager_config config = {
        .struct_size = sizeof(config),
        .num_blocks = count_blocks(&chats, block_size),
        .block_size = block_size,
        .max_model_len = chats.max_total_tokens,
        .max_rows = 1,
        .max_requests = 1,
        .max_total_tokens = chats.max_total_tokens,
    };
    pkv_status status = pkv_manager_create(&config, &manager);
    bool is_good = status == PKV_OK ? serve_all(manager, &chats, out, error)
                                    : fail(error, "pkv_manager_create", status, NULL);

    pkv_manager_destroy(manager);
    chat_release(&chats);
    return is_good;
}
