/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What the benches serve: requests with a prompt length, an output length and tokens, from built-in
 * length tables or from a trace file; multi-turn chats are in workload_chat.h. No scheduler, no
 * clock and no part of the library is here.
 *
 * The one idea: a token is a pure function of (who owns this part of the sequence, position), so
 * two requests share a prefix exactly where their workload says so, and nothing is stored. */
#ifndef PKV_BENCH_WORKLOAD_H
#define PKV_BENCH_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Token ids are drawn from [0, WORKLOAD_VOCABULARY). */
#define WORKLOAD_VOCABULARY 128000

/* Room for the message of a function that fails; always 0-terminated. */
#define WORKLOAD_MAX_ERROR 512

typedef enum workload_format {
    WORKLOAD_TABLE = 0,      /* built in: workload_make_table */
    WORKLOAD_AZURE_CSV = 1,  /* TIMESTAMP,ContextTokens,GeneratedTokens */
    WORKLOAD_MOONCAKE = 2,   /* JSON lines: timestamp, input_length, output_length, hash_ids */
    WORKLOAD_VIDUR_CSV = 3,  /* num_prefill_tokens,num_decode_tokens,... (vidur, vattention) */
    WORKLOAD_TWO_COLUMNS = 4 /* input,output; with or without a header line */
} workload_format;

/* One request. Its sequence is prompt + output: the token at a position belongs to a hash block
 * where the prompt has them (owner: the block's id), else to the request alone. */
typedef struct workload_item {
    double arrival_seconds; /* since the first one, never falling; 0 without arrivals */
    int32_t num_input_tokens, num_output_tokens; /* both >= 1 */
    uint64_t sequence_id;
    int64_t first_hash; /* index into hash_ids */
    int32_t num_hashes; /* 0: none */
    int32_t file_index; /* place among the requests of the table or file */
} workload_item;

typedef struct workload_list {
    char name[64]; /* "sharegpt", or the file's name without its folder */
    workload_format format;
    bool has_arrivals;
    workload_item *items; /* by arrival, else as the file has them */
    int32_t num_items;
    int32_t hash_block_size; /* tokens of a hash block; 0 without hash blocks */
    int64_t *hash_ids;
    int64_t num_hash_ids;
    int32_t max_total_tokens; /* largest prompt + output */
    double mean_input_tokens, mean_output_tokens;
    int64_t num_skipped_items; /* of a file: lines without input or without output tokens */
} workload_list;

/* Name a format for people ("Azure CSV"). Static text. */
const char *workload_format_name(workload_format format);

/* Make a table of `num_items` requests with lengths like those of a known data set: log-normals,
 * rounded, clipped to 1..1024, each tuned so that the table's own mean is the published one.
 *
 * name  "sharegpt" (161.3 in, 337.9 out) or "alpaca" (19.3 in, 58.5 out).
 *
 * Returns false for another name or no memory, with a message. */
bool workload_make_table(
    const char *name, uint64_t seed, int32_t num_items, workload_list *out, char *error);

/* Read a trace file; its format is found from its content, not from its name. Requests are ordered
 * by arrival, equal ones as in the file.
 *
 * Lines without input or output tokens are skipped and counted. Anything else that is not
 * understood fails: the message is "FILE:LINE: what is wrong". Returns false then, and for an empty
 * trace. */
bool workload_read_trace(const char *path, workload_list *out, char *error);

/* Keep only requests of at most `max_total_tokens` prompt + output tokens; means are recomputed.
 * Returns how many were dropped. */
int32_t workload_drop_longer(workload_list *workload, int32_t max_total_tokens);

/* Release what make or read allocated; a zeroed list is a no-op. */
void workload_release(workload_list *workload);

/* The token at `position` (0 <= position < prompt + output) of an item's sequence. */
int32_t workload_get_token(const workload_list *workload, int32_t item_index, int32_t position);

/* Write the tokens [first, first + num_tokens) of an item's sequence. */
void workload_get_tokens(const workload_list *workload,
                         int32_t item_index,
                         int32_t first,
                         int32_t num_tokens,
                         int32_t *token_ids);

#endif
