/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* How many prompt tokens a prefix cache finds again at a block size, when nothing is ever evicted.
 * Only full blocks are found, so larger blocks find less of the same chats.
 *
 * The one idea: one seeded set of chats for every block size; block size 1 finds all there is. */
#ifndef PKV_BENCH_FRAGMENTATION_GRANULARITY_H
#define PKV_BENCH_FRAGMENTATION_GRANULARITY_H

#include "chat_hits.h"

#define GRANULARITY_MAX_ERROR CHAT_HITS_MAX_ERROR

typedef struct granularity_result {
    int32_t block_size;
    int32_t num_turns;
    int64_t num_prompt_tokens, num_hit_tokens;
} granularity_result;

/* Serve generated chats turn by turn with the library's manager and count its hits. Returns false
 * with a message. */
bool granularity_measure(uint64_t seed, int32_t block_size, granularity_result *out, char *error);

#endif
