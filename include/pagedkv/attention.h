/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The kernels that write and read the paged cache: write_kv, attention with its plan, merge_states,
 * and the two small ones that keep tables and slots on the device. Moving whole blocks is in
 * transfer.h; who owns which block is decided elsewhere.
 *
 * The one idea: the numbers of a sequence depend on that sequence, the plan's configuration and the
 * instruction set alone. Batch, order, thread count, block size and block numbers never show.
 *
 * Shapes: T query tokens in the batch, S requests, Hq query heads, Hkv key/value heads, D
 * head_size, Dv v_head_size, B block_size, N blocks. Axis order is fixed, strides are free but the
 * innermost, which is 1; every row of D elements starts on a multiple of min(16, 8 * element size)
 * bytes. */
#ifndef PAGEDKV_ATTENTION_H
#define PAGEDKV_ATTENTION_H

#include <pagedkv/batch.h>
#include <pagedkv/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* head_size and v_head_size are multiples of PKV_HEAD_SIZE_STEP, at most PKV_MAX_HEAD_SIZE. */
#define PKV_HEAD_SIZE_STEP 8
#define PKV_MAX_HEAD_SIZE 576
#define PKV_MAX_BLOCK_SIZE 256

/* ---- Which attention a device can do */

/* One kind of attention, for the question below and for the plan. */
typedef struct pkv_attention_shape {
    uint32_t struct_size;
    int32_t num_query_heads; /* a multiple of num_kv_heads; any ratio */
    int32_t num_kv_heads;
    int32_t head_size;
    int32_t v_head_size; /* 0 = head_size */
    int32_t block_size;  /* 1 .. PKV_MAX_BLOCK_SIZE, any number */
    pkv_dtype query_dtype;
    pkv_dtype kv_dtype; /* NONE = query_dtype */
} pkv_attention_shape;

/* Say whether `device` computes attention of this shape.
 * [reads device | O(1) | no allocation]
 *
 * reason  may be NULL; set to a static sentence that names the dimension where the answer is no,
 *         else to NULL.
 *
 * query_dtype is FLOAT32, FLOAT16 or BFLOAT16; kv_dtype the same, or FLOAT8_E4M3 or INT8, or, with
 * FLOAT32 queries, FLOAT16 or BFLOAT16. Returns false for everything else. */
PKV_API bool pkv_attention_supports(const pkv_device *device,
                                    const pkv_attention_shape *shape,
                                    const char **reason);

/* ---- The plan: which piece of work is done by whom */

/* Keys of one work item where the config says 0. */
#define PKV_PLAN_DEFAULT_CHUNK_SIZE 512

/* Query tokens up to which keys are split where the config says 0. */
#define PKV_PLAN_DEFAULT_SPLIT_QUERY_LEN 8

/* Flags of a plan. */
#define PKV_PLAN_THROUGHPUT 1u /* chunks grow with the batch: fewer merges, not batch-invariant */
#define PKV_PLAN_NON_CAUSAL                                                                        \
    2u /* for PKV_ATTENTION_NON_CAUSAL: a query may be longer than its keys */

/* A plan's constants; every size follows from them. */
typedef struct pkv_plan_config {
    uint32_t struct_size;
    uint32_t flags;
    pkv_attention_shape shape;
    int32_t max_requests;      /* of one batch */
    int32_t max_tokens;        /* query tokens of one batch */
    int32_t max_query_len;     /* query tokens of one request; 0 = max_tokens. 1 = decode only */
    int32_t max_seq_len;       /* keys of one request */
    int64_t max_total_seq_len; /* keys of one batch, shared ones counted each time they are read;
                                  0 = max_requests * max_seq_len */
    int32_t
        chunk_size; /* keys of one work item, a multiple of 64; 0 = PKV_PLAN_DEFAULT_CHUNK_SIZE */
    int32_t window; /* the largest window the plan is used with; 0 = none, every key counts */
    int32_t num_workers; /* throughput mode: work items that run at once; 0 = 1 */
    pkv_allocator allocator;
    int32_t max_split_query_len; /* the keys of requests of up to so many query tokens are split
                                    among work items, those of longer ones only where all rows are
                                    one tile; 0 = PKV_PLAN_DEFAULT_SPLIT_QUERY_LEN. Small chunks of
                                    a prefill over a long context want more; the workspace grows */
} pkv_plan_config;

typedef struct pkv_plan pkv_plan;

/* Bytes of a plan object.
 * [any thread | O(1) | no allocation]
 *
 * Returns 0 for a config that pkv_plan_init refuses. */
PKV_API size_t pkv_plan_size(const pkv_plan_config *config);

/* Make a plan in the caller's memory. A plan is immutable: any number of threads and streams may
 * use one. It belongs to no device.
 * [any thread | O(1) | no allocation | all-or-nothing]
 *
 * memory  8-byte aligned, at least pkv_plan_size bytes; the caller's, and the plan's until the last
 *         use of it. pkv_plan_destroy does not release it.
 * out     set on PKV_OK only.
 * reason  may be NULL; set to a static sentence when the config is refused.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (memory and out, too), PKV_ERROR_UNSUPPORTED (the
 * shape, or an unknown member of config), PKV_ERROR_LIMIT (a workspace of more than 2^40 bytes, or
 * more than 2^31 work items). */
PKV_API pkv_status pkv_plan_init(
    const pkv_plan_config *config, void *memory, size_t size, pkv_plan **out, const char **reason);

/* Make a plan with one allocation from config->allocator.
 * [any thread | O(1) | allocates once | all-or-nothing]
 *
 * out, reason  as pkv_plan_init; the plan is to be given to pkv_plan_destroy.
 *
 * Returns as pkv_plan_init, or PKV_ERROR_OUT_OF_MEMORY. */
PKV_API pkv_status pkv_plan_create(const pkv_plan_config *config,
                                   pkv_plan **out,
                                   const char **reason);

/* End a plan. [O(1)]
 *
 * plan  may be NULL. */
PKV_API void pkv_plan_destroy(pkv_plan *plan);

/* Tell how large the caller's two buffers must be, from the maxima only.
 * [reads plan | O(1) | no allocation]
 *
 * plan_size       bytes of host_plan, and of plan_data on the device.   May be NULL.
 * workspace_size  bytes of args.workspace, on the device. One per stream.   May be NULL.
 *
 * Returns PKV_OK, PKV_ERROR_INVALID_ARGUMENT (plan is NULL). */
PKV_API pkv_status pkv_plan_sizes(const pkv_plan *plan, size_t *plan_size, size_t *workspace_size);

/* Write the work list of one batch into the caller's memory.
 * [reads plan | host only | O(work items) | no allocation | all-or-nothing]
 *
 * batch      rows, seq_lens and query_start_loc are read, for max(num_requests, padded_requests)
 *            requests. query_start_loc starts at 0 and never falls. Requests with query length
 *            0 give no work.
 * host_plan  [size] bytes of the caller's, 8-byte aligned. On a CPU device it is args.plan_data;
 *            else upload its first pkv_plan_used_size bytes, on the stream of the operation and
 *            before it, and do not write it again before that copy is done.
 *
 * Lengths are rounded up to chunk_size. The plan serves every batch that pkv_plan_covers accepts.
 *
 * Returns PKV_OK; PKV_ERROR_INVALID_ARGUMENT (a NULL array, query_start_loc that does not start at
 * 0 or falls, a negative row or length, a causal query longer than its sequence);
 * PKV_ERROR_UNSUPPORTED (an unknown member of batch); PKV_ERROR_LIMIT (a maximum of the config, or
 * `size`). host_plan is written on PKV_OK only. */
PKV_API pkv_status pkv_plan_build(const pkv_plan *plan,
                                  const pkv_batch *batch,
                                  void *host_plan,
                                  size_t size);

/* Tell how many bytes of host_plan are in use: what is to be uploaded.
 * [reads host_plan | O(1) | no allocation]
 *
 * Returns 0 for NULL and for what pkv_plan_build has not written. */
PKV_API size_t pkv_plan_used_size(const void *host_plan);

/* Say whether the work list is valid for this batch: the same requests, rows and query lengths, and
 * each length in the same chunk as the length it was built for (without a window also in an earlier
 * one). So it stays valid for up to chunk_size decode steps.
 * [reads plan | host only | O(requests) | no allocation]
 *
 * Returns false also for a list of another plan, and for a batch that pkv_plan_build refuses. */
PKV_API bool pkv_plan_covers(const pkv_plan *plan, const void *host_plan, const pkv_batch *batch);

/* ---- Attention */

/* Flags of attention. */
#define PKV_ATTENTION_NON_CAUSAL                                                                   \
    1u /* every query sees every key (but for the window); the plan too */

/* Query i of a request with q query tokens and n keys stands at position n - q + i. Causal: it sees
 * the keys up to its own position. */
typedef struct pkv_attention_args {
    uint32_t struct_size;
    uint32_t flags;
    pkv_tensor query;  /* [T, Hq, D] FLOAT32, FLOAT16 or BFLOAT16 */
    pkv_tensor output; /* [T, Hq, Dv] query's dtype or FLOAT32; must not overlap any input */
    pkv_tensor lse; /* [T, Hq] FLOAT32, optional: natural log of the denominator, sink included */
    pkv_tensor k_cache; /* [N, Hkv, B, D] */
    pkv_tensor v_cache; /* [N, Hkv, B, Dv]; may be a view of k_cache's memory (MLA) */
    pkv_tensor k_scale; /* FLOAT32: absent, [1], [Hkv] or [N, Hkv, B]; stored value * scale = key */
    pkv_tensor v_scale; /* likewise; scales only with FLOAT8_E4M3 and INT8 */
    const pkv_block_id *block_table; /* row r starts at r * block_table_stride; only the first
                                        ceil(seq_len / B) entries of a row are read, and none that
                                        the window leaves behind */
    int64_t block_table_stride;
    const int32_t *seq_lens;        /* [S] keys, the query tokens' own included; <= planned */
    const int32_t *query_start_loc; /* [S + 1] as planned */
    const void *plan_data;          /* from pkv_plan_build; 8-byte aligned */
    void *workspace;                /* 64-byte aligned; NULL where the size is 0 */
    size_t workspace_size;
    float softmax_scale;       /* 0 = 1 / sqrt(D); otherwise positive and finite */
    float softcap;             /* 0 = none; logit = softcap * tanh(logit / softcap) */
    int32_t window;            /* keys visible up to and including the own one; 0 = all */
    const float *alibi_slopes; /* [Hq] or NULL; adds -slope * |query position - key position| after
                                  the soft cap */
    const float *sinks; /* [Hq] or NULL; one more logit without a value. -inf is no sink. In a
                                  cascade pass them to exactly one call */
    const uint32_t *tree_mask; /* [T, ceil(q / 32)] or NULL: bit b of query token t = it sees key
                                  n - q + b. All keys before those are visible */
    int64_t tree_mask_stride;  /* words from one query token to the next */
} pkv_attention_args;

/* Compute attention of a mixed batch (decode, chunked prefill, verification) over the paged cache.
 * [enqueues on stream | O(rows * visible keys * (D + Dv)) | no allocation | all-or-nothing as to
 * refusals]
 *
 * Logit = softmax_scale * k_scale * (query . key), soft cap, ALiBi, then the mask; accumulation in
 * float. Unused slots and foreign blocks may hold anything, NaN included. A row that sees no key
 * gives output 0 and lse = its sink, or -inf. Rows of output behind the last query token stay as
 * they are. A tree mask excludes window, ALiBi and NON_CAUSAL.
 *
 * A request of q query tokens and q decodes of one token each agree within rounding, not to the
 * byte: the query length belongs to what the numbers of a sequence depend on.
 *
 * The cascade over a shared prefix is two calls and a merge: NON_CAUSAL over the prefix blocks (one
 * request whose query tokens are all of the batch), then each request over its own suffix, both
 * with FLOAT32 output and lse; then pkv_merge_states.
 *
 * A CPU device also checks what is in device memory: lengths against the plan, and each block id
 * that will be read against N. Other devices trust it.
 *
 * Returns PKV_OK; PKV_ERROR_INVALID_ARGUMENT; PKV_ERROR_UNSUPPORTED (what pkv_attention_supports
 * says no to; a dtype, stride, flag or combination, an unknown member of args); PKV_ERROR_LIMIT
 * (workspace too small); nothing was written then. PKV_ERROR_DEVICE (a part may have been written).
 * pkv_device_last_error names the dimension. */
PKV_API pkv_status pkv_attention(pkv_device *device,
                                 const pkv_plan *plan,
                                 const pkv_attention_args *args,
                                 pkv_stream stream);

/* ---- Writing the cache */

/* Flags of write_kv. */
#define PKV_WRITE_ROPE_INTERLEAVED 1u /* rotate pairs (2i, 2i + 1); default NeoX: (i, i + R / 2) */

typedef struct pkv_write_kv_args {
    uint32_t struct_size;
    uint32_t flags;
    pkv_tensor key; /* [T, Hkv, D - E] FLOAT32, FLOAT16 or BFLOAT16; absent with key_tail absent */
    pkv_tensor key_tail; /* [T, Hkv, E] optional: the last E dimensions (MLA: the rotated part) */
    pkv_tensor value;    /* [T, Hkv, Dv] optional; key's dtype */
    pkv_tensor k_cache;  /* [N, Hkv, B, D] */
    pkv_tensor v_cache;  /* [N, Hkv, B, Dv]; absent where value is */
    pkv_tensor k_scale; /* FLOAT32 [1] or [Hkv]: read. [N, Hkv, B]: written, amax / largest value */
    pkv_tensor v_scale;
    const int64_t *slot_mapping; /* [T] block id * B + offset; -1 = this token is not written */
    /* RoPE, fused; absent where cos is. R = rotary size = 2 * cos.shape[1]. */
    pkv_tensor cos, sin;      /* [max_position, R / 2] FLOAT32 */
    const int64_t *positions; /* [T], each < max_position */
    int32_t rotary_offset;    /* first rotated dimension of a head; MLA: D - E */
    pkv_tensor query; /* [T, Hq, D] optional, key's dtype: rotated in place, for every token */
} pkv_write_kv_args;

/* Scatter new keys and values into the cache by slot; rotate and quantise on the way.
 * [enqueues on stream | O(T * (Hkv * (D + Dv) + Hq * D)) | no allocation | all-or-nothing as to
 * refusals]
 *
 * Cache dtype: key's own; FLOAT8_E4M3 or INT8 with scales (absent = 1); FLOAT16 or BFLOAT16 from
 * FLOAT32. Stored = nearest-even(value / scale), saturated at 448 or 127. A scale per token and
 * head is max |value| / 448 (or / 127) over the finite elements; 0 where all are 0, and then 0 is
 * stored. NaN stays NaN in FLOAT8_E4M3 and becomes 0 in INT8. No two tokens may have the same slot.
 *
 * Returns PKV_OK (also for no tokens), PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (dtypes,
 * strides, head and block sizes, an unknown flag or member of args), PKV_ERROR_DEVICE (a part may
 * have been written). A CPU device refuses slots and positions that are out of range before it
 * writes anything. */
PKV_API pkv_status pkv_write_kv(pkv_device *device,
                                const pkv_write_kv_args *args,
                                pkv_stream stream);

/* ---- Merging partial results */

#define PKV_MAX_MERGE_PARTS 64

typedef struct pkv_merge_args {
    uint32_t struct_size;
    int32_t num_parts; /* 1 .. PKV_MAX_MERGE_PARTS */
    const pkv_tensor
        *outputs;           /* [num_parts] of [T, H, Dv] FLOAT32, FLOAT16 or BFLOAT16, all alike */
    const pkv_tensor *lses; /* [num_parts] of [T, H] FLOAT32, natural log */
    pkv_tensor output;      /* [T, H, Dv] parts' dtype or any of the three */
    pkv_tensor lse;         /* [T, H] FLOAT32, optional */
} pkv_merge_args;

/* Merge attention over disjoint sets of keys into attention over their union, in part order.
 * [enqueues on stream | O(parts * T * H * Dv) | no allocation | all-or-nothing as to refusals]
 *
 * A part with lse = -inf is empty: its output is not read. All empty: output 0, lse -inf. The
 * output may be the same view as one of the parts, and lse the same as that part's. The arrays
 * outputs and lses are on the host until the call returns.
 *
 * Returns as pkv_write_kv; num_parts out of range is PKV_ERROR_INVALID_ARGUMENT. */
PKV_API pkv_status pkv_merge_states(pkv_device *device,
                                    const pkv_merge_args *args,
                                    pkv_stream stream);

/* ---- Tables and slots on the device */

typedef struct pkv_table_args {
    uint32_t struct_size;
    pkv_block_id *block_table;  /* [num_rows, num_columns] on the device */
    int64_t block_table_stride; /* entries, >= num_columns */
    int32_t num_rows, num_columns;
    const pkv_table_update *updates; /* on the host until the call returns; no cell twice */
    int32_t num_updates;
} pkv_table_args;

/* Write the changed cells of a block table.
 * [enqueues on stream | O(num_updates) | no allocation | all-or-nothing as to refusals]
 *
 * Returns PKV_OK (also for no updates), PKV_ERROR_INVALID_ARGUMENT (a cell outside of the table or
 * a negative block, too), PKV_ERROR_UNSUPPORTED (an unknown member of args), PKV_ERROR_DEVICE (a
 * part may have been written). */
PKV_API pkv_status pkv_update_block_table(pkv_device *device,
                                          const pkv_table_args *args,
                                          pkv_stream stream);

typedef struct pkv_slot_mapping_args {
    uint32_t struct_size;
    int32_t num_requests, num_tokens; /* num_tokens: entries of slot_mapping, padding included */
    int32_t block_size, num_columns;
    const pkv_block_id *block_table; /* [largest row + 1, num_columns] */
    int64_t block_table_stride;      /* entries from one row to the next, not negative */
    const int32_t *rows;             /* [num_requests] */
    const int32_t *seq_lens;         /* [num_requests]; not read where positions are given */
    const int32_t *query_start_loc;  /* [num_requests + 1] */
    const int64_t *positions;        /* [num_tokens] or NULL: seq_len - query length + i */
    int64_t *slot_mapping;           /* [num_tokens] out */
} pkv_slot_mapping_args;

/* Compute the slot of each query token on the device, where the lengths are known (asynchronous
 * speculative decoding).
 * [enqueues on stream | O(num_tokens) | no allocation | all-or-nothing as to refusals]
 *
 * All arrays are on the device. Tokens behind the last request, positions outside of the table and
 * null blocks give -1.
 *
 * Returns PKV_OK (also for no tokens), PKV_ERROR_INVALID_ARGUMENT, PKV_ERROR_UNSUPPORTED (an
 * unknown member of args), PKV_ERROR_DEVICE. */
PKV_API pkv_status pkv_compute_slot_mapping(pkv_device *device,
                                            const pkv_slot_mapping_args *args,
                                            pkv_stream stream);

#ifdef __cplusplus
}
#endif

#endif
