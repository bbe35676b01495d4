/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The chats behind fragmentation_granularity.h; their hits are counted in chat_hits.c. */
#include "fragmentation_granularity.h"

#include <stdio.h>

bool granularity_measure(uint64_t seed, int32_t block_size, granularity_result *out, char *error) {
    chat_config chat_settings = {.seed = seed};
    chat_workload chats;
    chat_hits hits;
    const char *what = NULL;
    bool is_good;

    *out = (granularity_result){.block_size = block_size};
    if (!chat_make(&chat_settings, &chats, &what)) {
        snprintf(error, GRANULARITY_MAX_ERROR, "chats: %s", what);
        return false;
    }
    is_good = chat_hits_count(&chats, block_size, 0, &hits, error);
    out->num_turns = chats.num_turns;
    out->num_prompt_tokens = hits.num_prompt_tokens;
    out->num_hit_tokens = hits.num_hit_tokens;
    chat_release(&chats);
    return is_good;
}
