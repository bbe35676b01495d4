/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How many prompt tokens of generated chats a prefix cache finds again when a hit may go on into a
 * block, beside hits of whole blocks. No device is needed and nothing is printed.
 *
 * The one idea: turn after turn through a pool that holds all of them, so that what is not found
 * was lost to the ends of blocks and to nothing else; blocks of one token lose nothing. */
#ifndef PKV_BENCH_CHAT_HITS_H
#define PKV_BENCH_CHAT_HITS_H

#include "workload_chat.h"

#define CHAT_HITS_MAX_ERROR 512

typedef struct chat_hits {
    int64_t num_prompt_tokens, num_hit_tokens;
    int64_t num_partial_hits, num_partial_tokens; /* of the hits: what went on into a block */
    int64_t num_copies;
} chat_hits;

/* Serve the chats. min_partial_tokens 0: hits of whole blocks only. Returns false, with a message of
 * up to CHAT_HITS_MAX_ERROR characters, when a call of the manager failed, or its self-check, or
 * something was evicted. */
bool chat_hits_count(const chat_workload *chats,
                     int32_t block_size,
                     int32_t min_partial_tokens,
                     chat_hits *out,
                     char *error);

#endif
