/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* One case of paged attention for tests: its numbers, its memory, the call through the public API,
 * and the comparison with an oracle in double precision that shares no code with the library.
 *
 * The one idea: logical content depends on (seed, request, position, head) alone, never on where it
 * lies; what lies nowhere is poison. So the same case can be run under another block order, block
 * size, batch or device, and must give the same bytes or the same numbers. */
#ifndef TESTS_SUPPORT_ATTENTION_CASE_H
#define TESTS_SUPPORT_ATTENTION_CASE_H

#include <pagedkv/attention.h>

#include "support/tensor_fill.h"

#define CASE_MAX_REQUESTS 16

enum case_scales { CASE_SCALE_NONE, CASE_SCALE_TENSOR, CASE_SCALE_HEAD, CASE_SCALE_TOKEN };
enum case_order { CASE_SHUFFLED, CASE_IDENTITY, CASE_DESCENDING, CASE_INTERLEAVED };
enum case_layout {
    CASE_BLOCK_2_HEAD,  /* [block][2][head][token][dim], the recommended one */
    CASE_TOKEN_MAJOR,   /* [block][token][head][dim], two pools */
    CASE_WIDE,          /* as the first, with a gap that makes the block stride odd and large */
    CASE_PADDED,        /* as the first, with poison behind the last column of each row */
    CASE_LATENT,        /* one head; the values are the first v_head_size columns of the keys */
    CASE_SCALES_INSIDE, /* as the first, behind each block's data its scales, one a token and head */
};

/* Zero means default: one head of each, block_size 16, float32, shuffled blocks. */
struct attention_case {
    const char *name;
    pkv_dtype query_dtype, kv_dtype; /* NONE: FLOAT32; query_dtype */
    bool float_output;               /* FLOAT32 output whatever the query is */
    int32_t num_query_heads, num_kv_heads, head_size, v_head_size, block_size;
    int32_t num_requests;
    int32_t query_lens[CASE_MAX_REQUESTS], seq_lens[CASE_MAX_REQUESTS];
    int32_t chunk_size, window;
    int32_t split_query_len; /* of the plan */
    uint32_t plan_flags;
    bool non_causal, has_alibi, has_sinks, has_tree, has_lse_off;
    bool has_tree_holes; /* every third query sees none of the query tokens, itself neither */
    float softcap, softmax_scale;
    float sink; /* every head's, where not 0; else varied */
    enum case_scales scales;
    float scale_base; /* of scales; 0 = 1 / 8 */
    enum case_order order;
    enum case_layout layout;
    bool is_strided;     /* gaps between heads and tokens of query and output, and tokens of lse */
    float query_factor;  /* 0 = 1 */
    float key_offset;    /* added to every key element */
    float query_offset;  /* added to every query element */
    int poison;          /* byte of everything unused; 0 = 0xff */
    bool has_infinities; /* unused elements of the pool are +inf and -inf by turns (NaN in e4m3) */
    /* What the case claims of its logits, before the soft cap; 0 = nothing. */
    float all_logits_below, some_logit_above;
    uint64_t seed;
    uint64_t request_ids[CASE_MAX_REQUESTS]; /* content of request i; 0 = i + 1 */
};

/* Where a device's memory is. All NULL: in the host's. */
struct attention_memory {
    void *(*allocate)(void *context, size_t size);
    void (*release)(void *context, void *memory, size_t size);
    void (*upload)(void *context, void *target, const void *source, size_t size);
    void (*download)(void *context, void *target, const void *source, size_t size);
    void *context;
};

/* Host memory with guard pages behind it, and its twin on the device (the same where host =
 * device). */
struct attention_buffer {
    void *host, *device;
    size_t size;
};

struct attention_run {
    struct attention_case c; /* defaults filled in */
    const struct attention_memory *memory;
    int32_t num_tokens, num_blocks, num_columns;
    pkv_plan *plan;
    struct attention_buffer pool, k_scale, v_scale, query, output, lse, table, lens, starts, sinks,
        slopes, tree, plan_data, workspace;
    const char *changed_input;     /* that the last call wrote to, or NULL */
    pkv_attention_args args;       /* device pointers */
    pkv_tensor k_cache, v_cache;   /* host views */
    pkv_tensor k_scales, v_scales; /* host views of scales of tokens; absent where there are none */
    int32_t rows[CASE_MAX_REQUESTS];
    pkv_batch batch;
    pkv_cpu_instructions instructions; /* of the device that ran it last */
    bool is_cuda;                      /* that device */
};

/* Worst ratio of an error to its bound. At most 1 where the case is right. */
struct attention_error {
    double output, lse;
    double absolute;      /* largest |error| of the output, for reports */
    double largest_logit; /* of all visible keys, before the soft cap */
    char where[192];
};

/* The shape of a case whose defaults are filled in. */
pkv_attention_shape attention_case_shape(const struct attention_case *c);

void attention_run_create(struct attention_run *run,
                          const struct attention_case *c,
                          const struct attention_memory *memory);
void attention_run_destroy(struct attention_run *run);

/* Refill output and lse with canaries, run, bring the results to the host, and the inputs, to see
 * that they are as they were. */
pkv_status attention_run_execute(struct attention_run *run, pkv_device *device);

/* What the last call wrote to beside output and lse of the first num_tokens tokens, or NULL. */
const char *attention_run_damage(const struct attention_run *run, int64_t num_tokens);

/* Compare every element with the oracle; checks canaries and that inputs are untouched. */
void attention_run_compare(const struct attention_run *run, struct attention_error *out);

/* Output row and lse of one token and head on the host. */
const void *attention_run_output(const struct attention_run *run, int64_t token, int64_t head);
float attention_run_lse(const struct attention_run *run, int64_t token, int64_t head);
size_t attention_run_row_size(const struct attention_run *run);

#endif
