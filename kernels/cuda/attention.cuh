/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The attention kernels as the backend sees them: their parameters, the table of instances, shared
 * memory and the refusals. No kernel body is here.
 *
 * The one idea: a kernel is chosen by the types and by a class of head sizes; every other property
 * of a call is a number in one struct that goes to the kernel by value. Which kernel computes a row
 * depends on the row's own request alone: up to 16 packed rows `small`, more `large`; each of the
 * two walks the whole work list and takes what is its own. */
#ifndef PKVI_CUDA_ATTENTION_CUH
#define PKVI_CUDA_ATTENTION_CUH

#include <cuda_runtime_api.h>

#include "device/backend.h"

namespace pkvi {

/* Strides of caches count bytes, all others elements. */
struct attention_parameters {
    const unsigned char *query, *k_cache, *v_cache;
    unsigned char *output;
    float *lse, *workspace;
    const float *k_scale, *v_scale, *sinks, *alibi_slopes;
    const pkv_block_id *block_table;
    const int32_t *seq_lens;
    const pkvi_plan_header *plan;
    const uint32_t *tree_mask;
    int64_t query_stride[2], output_stride[2], lse_stride[2];
    int64_t k_stride[3], v_stride[3], k_scale_stride[3], v_scale_stride[3];
    int64_t block_table_stride, tree_mask_stride;
    pkvi_divisor block_size, group_size, num_kv_heads;
    float softmax_scale, softcap;
    int32_t window, head_size, v_head_size, num_tokens, num_query_heads;
    int32_t k_scale_kind, v_scale_kind; /* pkvi_scale_kind */
    int32_t query_dtype;
    bool is_non_causal, has_float_output;
    bool has_wide_rows; /* each row of a cache starts on 16 bytes and is a multiple of them */
    int32_t num_stages, num_query_slots;
};

/* One kernel of the table. */
struct attention_instance {
    pkv_dtype query_dtype, kv_dtype;
    int32_t max_head_size, max_v_head_size; /* of the class */
    bool shares_keys;                       /* values are the first columns of the keys */
    int32_t tile_rows;                      /* 16: small, 64: large; 0: rows of any request */
    int32_t num_threads;
    void (*kernel)(attention_parameters);
    size_t stage_bytes, query_slot_bytes, other_bytes; /* of dynamic shared memory */
};

/* All instances, for the attributes that are set when the device is made. */
const attention_instance *attention_instances(int32_t *count);

/* The instance for a class of rows, or NULL. `tile_rows` is 16 or 64. FLOAT32 queries have one
 * instance for all rows; it is the answer for 64 and NULL for 16. */
const attention_instance *find_attention_instance(pkv_dtype query_dtype,
                                                  pkv_dtype kv_dtype,
                                                  int32_t head_size,
                                                  int32_t v_head_size,
                                                  int32_t tile_rows);

/* NULL where the shape is computed on a device with so much shared memory for a block. */
const char *refuse_attention_shape(const pkv_attention_shape *shape, size_t max_shared_bytes);

/* NULL where the views suit the instance: shared keys want values that alias the keys. */
const char *refuse_attention_views(const struct pkvi_attention *op);

/* How many stages and query slots fit, so that two blocks live on a multiprocessor where they can.
 * Returns the dynamic shared bytes; 0 where nothing fits. Numbers do not depend on the choice. */
size_t size_attention_shared(const attention_instance *instance,
                             size_t max_shared_bytes,
                             size_t multiprocessor_shared_bytes,
                             int32_t *num_stages,
                             int32_t *num_query_slots);

/* Everything but num_stages and num_query_slots. */
void fill_attention_parameters(const struct pkvi_attention *op, attention_parameters *out);

/* Sum the parts of split requests. Ends at once where nothing was split. */
cudaError_t launch_merge(const attention_parameters &parameters, cudaStream_t stream);
cudaError_t load_merge_kernels();

} // namespace pkvi

#endif
