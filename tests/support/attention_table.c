/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The table of attention cases; see attention_table.h. Written-out cases first: edges, masks,
 * numbers. Then the product of dtypes, head sizes, group sizes and block sizes, small each. */
#include "support/attention_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define F32 PKV_DTYPE_FLOAT32
#define F16 PKV_DTYPE_FLOAT16
#define BF16 PKV_DTYPE_BFLOAT16
#define E4M3 PKV_DTYPE_FLOAT8_E4M3
#define I8 PKV_DTYPE_INT8

/* Lengths: .num_requests, then query_lens and seq_lens. */
#define ONE(q, n) .num_requests = 1, .query_lens = {q}, .seq_lens = {n}
#define HEADS(q, kv) .num_query_heads = q, .num_kv_heads = kv

static const struct attention_case written[] = {
    /* Lengths around blocks and chunks. */
    {.name = "one key", ONE(1, 1)},
    {.name = "block edges",
     HEADS(4, 2),
     .num_requests = 7,
     .query_lens = {1, 1, 1, 1, 1, 1, 1},
     .seq_lens = {15, 16, 17, 31, 32, 33, 1}},
    {.name = "chunk edges",
     HEADS(4, 2),
     .num_requests = 6,
     .query_lens = {1, 1, 1, 1, 1, 1},
     .seq_lens = {63, 64, 65, 127, 128, 129}},
    {.name = "length 0 among others",
     HEADS(2, 1),
     .num_requests = 4,
     .query_lens = {1, 2, 1, 0},
     .seq_lens = {20, 0, 0, 0}},
    {.name = "all lengths 0", .num_requests = 3, .query_lens = {1, 1, 3}, .seq_lens = {0, 0, 0}},
    {.name = "length 0 with a sink",
     .has_sinks = true,
     .num_requests = 2,
     .query_lens = {1, 1},
     .seq_lens = {0, 5}},
    {.name = "no requests", .num_requests = 0},
    {.name = "query length 0 is a no-op",
     .num_requests = 3,
     .query_lens = {0, 1, 0},
     .seq_lens = {32, 16, 48}},
    {.name = "no lse wanted", .has_lse_off = true, ONE(3, 77)},
    {.name = "garbage behind 3 tokens", .query_dtype = F16, ONE(1, 3), .poison = 0x7f},
    {.name = "infinities in unused slots",
     .query_dtype = BF16,
     HEADS(8, 2),
     ONE(2, 35),
     .poison = 0x7c},
    /* Mixed batches and prefill. */
    {.name = "mixed batch",
     HEADS(8, 2),
     .num_requests = 5,
     .query_lens = {1, 40, 1, 7, 90},
     .seq_lens = {200, 40, 33, 150, 131}},
    {.name = "query = sequence",
     HEADS(4, 1),
     .num_requests = 3,
     .query_lens = {1, 65, 33},
     .seq_lens = {1, 65, 33}},
    {.name = "query = sequence - 1",
     HEADS(4, 4),
     .num_requests = 2,
     .query_lens = {64, 16},
     .seq_lens = {65, 17}},
    {.name = "rows around the tile of 16",
     HEADS(8, 1),
     .num_requests = 4,
     .query_lens = {2, 3, 1, 4},
     .seq_lens = {70, 71, 72, 130}},
    {.name = "rows around the tile of 64",
     HEADS(1, 1),
     .num_requests = 6,
     .query_lens = {16, 17, 63, 64, 65, 129},
     .seq_lens = {80, 80, 100, 100, 100, 200}},
    {.name = "group of 7, long chunked prefill", HEADS(7, 1), ONE(45, 400), .query_dtype = F16},
    {.name = "cached blocks and new queries",
     HEADS(2, 2),
     .num_requests = 2,
     .query_lens = {16, 48},
     .seq_lens = {48, 48}},
    /* Masks. */
    {.name = "non-causal",
     .non_causal = true,
     HEADS(4, 2),
     .num_requests = 3,
     .query_lens = {5, 80, 1},
     .seq_lens = {100, 90, 40}},
    {.name = "non-causal, more queries than keys",
     .non_causal = true,
     HEADS(2, 1),
     .num_requests = 2,
     .query_lens = {50, 3},
     .seq_lens = {20, 2}},
    {.name = "window 1 sees itself only",
     .window = 1,
     HEADS(4, 2),
     .num_requests = 3,
     .query_lens = {1, 3, 30},
     .seq_lens = {100, 64, 65}},
    {.name = "window 2",
     .window = 2,
     .num_requests = 2,
     .query_lens = {1, 70},
     .seq_lens = {17, 130}},
    {.name = "window below a block",
     .window = 7,
     HEADS(4, 1),
     .num_requests = 2,
     .query_lens = {1, 20},
     .seq_lens = {200, 200}},
    {.name = "window of a block",
     .window = 16,
     HEADS(4, 1),
     .num_requests = 3,
     .query_lens = {1, 1, 20},
     .seq_lens = {192, 193, 200}},
    {.name = "window on a chunk edge",
     .window = 64,
     HEADS(2, 1),
     .num_requests = 4,
     .query_lens = {1, 1, 1, 80},
     .seq_lens = {128, 129, 191, 256}},
    {.name = "window above the length",
     .window = 1000,
     HEADS(2, 1),
     .num_requests = 2,
     .query_lens = {1, 30},
     .seq_lens = {100, 90}},
    {.name = "window, non-causal", .window = 20, .non_causal = true, ONE(30, 90)},
    {.name = "window with sinks",
     .window = 33,
     .has_sinks = true,
     HEADS(8, 1),
     .num_requests = 2,
     .query_lens = {1, 10},
     .seq_lens = {300, 75},
     .query_dtype = BF16},
    {.name = "tree of 31", .has_tree = true, HEADS(2, 1), ONE(31, 100)},
    {.name = "tree of 32", .has_tree = true, HEADS(2, 1), ONE(32, 100)},
    {.name = "tree of 33", .has_tree = true, HEADS(2, 2), ONE(33, 33)},
    {.name = "trees in a mixed batch",
     .has_tree = true,
     HEADS(4, 1),
     .num_requests = 4,
     .query_lens = {1, 6, 65, 16},
     .seq_lens = {90, 70, 140, 64}},
    /* What is added to logits. */
    {.name = "soft cap 1", .softcap = 1.0f, HEADS(4, 2), ONE(3, 150), .query_factor = 40.0f},
    {.name = "soft cap 30", .softcap = 30.0f, HEADS(4, 2), ONE(1, 150), .query_factor = 200.0f},
    {.name = "soft cap 50 with e4m3 scales",
     .softcap = 50.0f,
     .query_dtype = F16,
     .kv_dtype = E4M3,
     .scales = CASE_SCALE_HEAD,
     HEADS(4, 2),
     .num_requests = 2,
     .query_lens = {1, 30},
     .seq_lens = {130, 90}},
    {.name = "alibi",
     .has_alibi = true,
     HEADS(12, 3),
     .num_requests = 3,
     .query_lens = {1, 5, 70},
     .seq_lens = {300, 90, 130}},
    {.name = "alibi, non-causal", .has_alibi = true, .non_causal = true, HEADS(3, 1), ONE(20, 70)},
    {.name = "alibi and soft cap", .has_alibi = true, .softcap = 5.0f, HEADS(6, 2), ONE(2, 200)},
    {.name = "sinks",
     .has_sinks = true,
     HEADS(8, 2),
     .num_requests = 3,
     .query_lens = {1, 9, 70},
     .seq_lens = {400, 30, 70}},
    {.name = "a dominant sink, split", .has_sinks = true, .sink = 30.0f, HEADS(4, 1), ONE(1, 300)},
    {.name = "a sink that is nothing",
     .has_sinks = true,
     .sink = -INFINITY,
     HEADS(4, 1),
     ONE(1, 300)},
    {.name = "a very negative sink", .has_sinks = true, .sink = -1e30f, HEADS(4, 1), ONE(1, 300)},
    {.name = "scale given", .softmax_scale = 0.3f, HEADS(2, 1), ONE(2, 70)},
    {.name = "tiny scale", .softmax_scale = 1e-6f, HEADS(2, 1), ONE(2, 70)},
    /* Logit extremes. */
    {.name = "one key dominates", HEADS(4, 1), ONE(1, 200), .query_factor = 3000.0f},
    {.name = "all logits equal", HEADS(4, 1), ONE(1, 3000), .query_factor = 1e-20f},
    {.name = "logits near -10000",
     ONE(2, 150),
     .query_factor = 1.0f,
     .key_offset = -3000.0f,
     .softmax_scale = 1.0f},
    {.name = "products beyond float16",
     .query_dtype = F16,
     HEADS(4, 2),
     ONE(1, 150),
     .query_factor = 1000.0f,
     .key_offset = 300.0f,
     .softmax_scale = 1e-4f},
    /* Scales. */
    {.name = "scale 2^-20",
     .query_dtype = BF16,
     .kv_dtype = E4M3,
     .scales = CASE_SCALE_TENSOR,
     .scale_base = 0x1p-20f,
     HEADS(4, 1),
     ONE(1, 100)},
    {.name = "scale 2^20",
     .query_dtype = F32,
     .kv_dtype = I8,
     .scales = CASE_SCALE_TOKEN,
     .scale_base = 0x1p20f,
     .softmax_scale = 1e-7f,
     HEADS(4, 1),
     ONE(1, 100)},
    {.name = "e4m3 without scales",
     .query_dtype = F16,
     .kv_dtype = E4M3,
     HEADS(2, 1),
     .num_requests = 2,
     .query_lens = {1, 40},
     .seq_lens = {90, 80}},
    {.name = "e4m3, NaN in unused slots",
     .query_dtype = BF16,
     .kv_dtype = E4M3,
     HEADS(8, 2),
     .num_requests = 2,
     .query_lens = {1, 4},
     .seq_lens = {5, 21},
     .poison = 0x7f},
    /* Layouts and orders. */
    {.name = "token-major pools",
     .layout = CASE_TOKEN_MAJOR,
     HEADS(8, 4),
     .num_requests = 2,
     .query_lens = {1, 30},
     .seq_lens = {150, 77}},
    {.name = "wide block stride",
     .layout = CASE_WIDE,
     HEADS(4, 2),
     .num_requests = 2,
     .query_lens = {1, 20},
     .seq_lens = {150, 77}},
    {.name = "identity table", .order = CASE_IDENTITY, HEADS(4, 2), ONE(1, 300)},
    {.name = "descending table", .order = CASE_DESCENDING, HEADS(4, 2), ONE(1, 300)},
    {.name = "interleaved table", .order = CASE_INTERLEAVED, HEADS(4, 2), ONE(20, 300)},
    /* Latent attention: one kv head, 128 query heads, values inside keys. */
    {.name = "mla decode",
     .layout = CASE_LATENT,
     .query_dtype = BF16,
     HEADS(128, 1),
     .head_size = 576,
     .v_head_size = 512,
     .block_size = 64,
     .num_requests = 2,
     .query_lens = {1, 1},
     .seq_lens = {150, 70},
     .chunk_size = 128},
    {.name = "mla decode, few heads, two tokens",
     .layout = CASE_LATENT,
     .query_dtype = F16,
     HEADS(3, 1),
     .head_size = 576,
     .v_head_size = 512,
     .block_size = 16,
     ONE(2, 90)},
    {.name = "qk 192, v 128",
     .head_size = 192,
     .v_head_size = 128,
     HEADS(4, 4),
     .query_dtype = BF16,
     .num_requests = 2,
     .query_lens = {1, 33},
     .seq_lens = {90, 70}},
    {.name = "v larger than qk", .head_size = 64, .v_head_size = 256, HEADS(3, 1), ONE(2, 70)},
    /* Cascade parts. */
    {.name = "float output of bfloat16",
     .query_dtype = BF16,
     .float_output = true,
     HEADS(4, 2),
     .num_requests = 2,
     .query_lens = {1, 20},
     .seq_lens = {90, 70}},
    {.name = "throughput plan",
     .plan_flags = PKV_PLAN_THROUGHPUT,
     HEADS(4, 2),
     .num_requests = 3,
     .query_lens = {1, 1, 9},
     .seq_lens = {900, 30, 300}},
    {.name = "many chunks", HEADS(1, 1), ONE(1, 64 * 130 + 1), .head_size = 8},
};

/* One small mixed case of each combination that the product below names. */
static void make_product_case(struct attention_case *out,
                              pkv_dtype query,
                              pkv_dtype kv,
                              int32_t head_size,
                              int32_t group,
                              int32_t block_size,
                              int index) {
    static char names[512][80];
    int32_t num_kv_heads = group > 16 ? 1 : 2;

    *out = (struct attention_case){
        .name = names[index],
        .query_dtype = query,
        .kv_dtype = kv,
        .num_query_heads = group * num_kv_heads,
        .num_kv_heads = num_kv_heads,
        .head_size = head_size,
        .block_size = block_size,
        .num_requests = 3,
        .query_lens = {1, 2, group > 16 ? 3 : 21},
        .seq_lens = {2 * block_size + 1 > 600 ? 300 : 2 * block_size + 1, 40, 100},
        .scales = kv == E4M3 || kv == I8 ? (enum case_scales)(index % 4) : CASE_SCALE_NONE,
        .layout = index % 3 == 0 ? CASE_TOKEN_MAJOR : CASE_BLOCK_2_HEAD,
        .seed = (uint64_t)index,
    };
    if (kv == I8 && out->scales == CASE_SCALE_NONE) {
        out->softmax_scale = 1e-4f;
    }
    (void)snprintf(names[index], sizeof names[index], "q%d kv%d D%d G%d B%d scales%d", (int)query,
                   (int)kv, (int)head_size, (int)group, (int)block_size, (int)out->scales);
}

const struct attention_case *attention_table(int *count) {
    static const pkv_dtype dtypes[][2] = {{F32, F32},   {F32, F16},   {F32, BF16}, {F32, E4M3},
                                          {F32, I8},    {F16, F16},   {F16, E4M3}, {F16, I8},
                                          {BF16, BF16}, {BF16, E4M3}, {BF16, I8}};
    static const int32_t head_sizes[] = {8,  16,  24,  40,  48,  64,  72,  80,
                                         96, 112, 120, 128, 144, 192, 256, 576};
    static const int32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 71, 128};
    static const int32_t block_sizes[] = {1, 3, 8, 16, 24, 32, 64, 100, 128, 256};
    static struct attention_case cases[512];
    static int num_cases;
    int n = (int)(sizeof written / sizeof written[0]);

    if (num_cases > 0) {
        *count = num_cases;
        return cases;
    }
    for (int i = 0; i < n; i++) {
        cases[i] = written[i];
    }
    /* Every dtype pair with every head size; the other two axes run along. */
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t h = 0; h < sizeof head_sizes / sizeof head_sizes[0]; h++, n++) {
            make_product_case(&cases[n], dtypes[d][0], dtypes[d][1], head_sizes[h],
                              groups[(d + 2 * h) % 9], block_sizes[(d * 3 + h) % 10], n);
        }
        for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++, n++) {
            make_product_case(&cases[n], dtypes[d][0], dtypes[d][1], 64, groups[g],
                              block_sizes[(d + g) % 10], n);
        }
    }
    for (size_t b = 0; b < sizeof block_sizes / sizeof block_sizes[0]; b++, n++) {
        make_product_case(&cases[n], F16, F16, 128, 4, block_sizes[b], n);
    }
    num_cases = n;
    *count = n;
    return cases;
}
