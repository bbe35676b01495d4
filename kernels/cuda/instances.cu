/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The table of attention kernels, the choice among them and what none of them does. Host code. */
#include "kernels/cuda/instances.h"

#include "kernels/cuda/attention.cuh"

namespace pkvi {

#define DECLARE(name, ...) attention_instance describe_##name();
PKVI_ATTENTION_INSTANCES(DECLARE)
PKVI_ATTENTION_PLAIN_INSTANCES(DECLARE)
#undef DECLARE

/* Filled when the program is loaded: a static of a function would be guarded by the library of C++,
 * which C programs are not linked with. */
#define DESCRIBE(name, ...) describe_##name(),
static const attention_instance all_instances[] = {PKVI_ATTENTION_INSTANCES(DESCRIBE)
                                                       PKVI_ATTENTION_PLAIN_INSTANCES(DESCRIBE)};
#undef DESCRIBE

const attention_instance *attention_instances(int32_t *count) {
    *count = static_cast<int32_t>(sizeof all_instances / sizeof all_instances[0]);
    return all_instances;
}

const attention_instance *find_attention_instance(pkv_dtype query_dtype,
                                                  pkv_dtype kv_dtype,
                                                  int32_t head_size,
                                                  int32_t v_head_size,
                                                  int32_t tile_rows) {
    const bool is_plain = query_dtype == PKV_DTYPE_FLOAT32;
    int32_t count;
    const attention_instance *table = attention_instances(&count);

    if (is_plain && tile_rows == PKVI_SMALL_TILE_ROWS) {
        return nullptr;
    }
    for (int32_t i = 0; i < count; i++) {
        const attention_instance &known = table[i];
        /* Shared keys are one layout, not a class: there is no padding in it. */
        const bool fits =
            known.shares_keys
                ? head_size == known.max_head_size && v_head_size == known.max_v_head_size
                : head_size <= known.max_head_size && v_head_size <= known.max_v_head_size;

        if (known.query_dtype == query_dtype && known.kv_dtype == kv_dtype && fits &&
            known.tile_rows == (is_plain ? 0 : tile_rows)) {
            return &known;
        }
    }
    return nullptr;
}

size_t size_attention_shared(const attention_instance *instance,
                             size_t max_shared_bytes,
                             size_t multiprocessor_shared_bytes,
                             int32_t *num_stages,
                             int32_t *num_query_slots) {
    constexpr size_t reserved_bytes = 1024; /* of each block, by the system */
    const bool is_small = instance->tile_rows == PKVI_SMALL_TILE_ROWS;
    size_t bytes = 0;

    *num_stages = *num_query_slots = 1;
    if (instance->stage_bytes == 0) {
        return 0;
    }
    for (int32_t stages = 4; stages >= 2; stages--) {
        const int32_t slots = is_small ? stages : 1;

        bytes = stages * instance->stage_bytes + slots * instance->query_slot_bytes +
                instance->other_bytes;
        *num_stages = stages;
        *num_query_slots = slots;
        if (bytes <= max_shared_bytes &&
            2 * (bytes + reserved_bytes) <= multiprocessor_shared_bytes) {
            return bytes;
        }
    }
    return bytes <= max_shared_bytes ? bytes : 0;
}

#ifdef PKVI_ATTENTION_LIST
constexpr char no_instance[] = "this test build has no kernel for the head_size and dtypes";
#else
constexpr char no_instance[] =
    "head_size and v_head_size must be at most 256, or 576 and 512 with v_cache a view of k_cache";
#endif

const char *refuse_attention_shape(const pkv_attention_shape *shape, size_t max_shared_bytes) {
    const int32_t tiles[] = {PKVI_SMALL_TILE_ROWS, PKVI_LARGE_TILE_ROWS};

    for (int32_t tile : tiles) {
        if (shape->query_dtype == PKV_DTYPE_FLOAT32 && tile == PKVI_SMALL_TILE_ROWS) {
            continue; /* one kernel for any number of rows */
        }
        const attention_instance *instance = find_attention_instance(
            shape->query_dtype, shape->kv_dtype, shape->head_size, shape->v_head_size, tile);
        int32_t stages, slots;

        if (instance == nullptr) {
            return no_instance;
        }
        if (instance->stage_bytes > 0 &&
            size_attention_shared(instance, max_shared_bytes, max_shared_bytes, &stages, &slots) ==
                0) {
            return "head_size wants more shared memory than a block of this device has";
        }
    }
    return nullptr;
}

const char *refuse_attention_views(const struct pkvi_attention *op) {
    const pkv_tensor *k = &op->args.k_cache, *v = &op->args.v_cache;
    const attention_instance *instance =
        find_attention_instance(op->args.query.dtype, k->dtype, op->cache.head_size,
                                op->cache.v_head_size, PKVI_LARGE_TILE_ROWS);

    if (instance != nullptr && instance->shares_keys &&
        (k->data != v->data || k->stride[0] != v->stride[0] || k->stride[1] != v->stride[1] ||
         k->stride[2] != v->stride[2])) {
        return "head_size 576 wants v_cache to be a view of k_cache: the same data and strides";
    }
    return nullptr;
}

/* Whether every row of a cache starts on 16 bytes and is a multiple of them. */
static bool has_wide_rows(const pkv_tensor *cache) {
    const int64_t size = static_cast<int64_t>(pkv_dtype_size(cache->dtype));

    return reinterpret_cast<uintptr_t>(cache->data) % 16 == 0 &&
           cache->stride[0] * size % 16 == 0 && cache->stride[1] * size % 16 == 0 &&
           cache->stride[2] * size % 16 == 0 && cache->shape[3] * size % 16 == 0;
}

static void fill_strides(const pkv_tensor &tensor, int64_t factor, int axes, int64_t *out) {
    for (int i = 0; i < axes; i++) {
        out[i] = tensor.dtype == PKV_DTYPE_NONE ? 0 : tensor.stride[i] * factor;
    }
}

void fill_attention_parameters(const struct pkvi_attention *op, attention_parameters *out) {
    const pkv_attention_args &args = op->args;
    const int64_t size = static_cast<int64_t>(pkv_dtype_size(args.k_cache.dtype));

    *out = {};
    out->query = static_cast<const unsigned char *>(args.query.data);
    out->k_cache = static_cast<const unsigned char *>(args.k_cache.data);
    out->v_cache = static_cast<const unsigned char *>(args.v_cache.data);
    out->output = static_cast<unsigned char *>(args.output.data);
    out->lse = args.lse.dtype == PKV_DTYPE_NONE ? nullptr : static_cast<float *>(args.lse.data);
    out->workspace = static_cast<float *>(args.workspace);
    out->k_scale = static_cast<const float *>(args.k_scale.data);
    out->v_scale = static_cast<const float *>(args.v_scale.data);
    out->sinks = args.sinks;
    out->alibi_slopes = args.alibi_slopes;
    out->block_table = args.block_table;
    out->seq_lens = args.seq_lens;
    out->plan = static_cast<const pkvi_plan_header *>(args.plan_data);
    out->tree_mask = args.tree_mask;
    fill_strides(args.query, 1, 2, out->query_stride);
    fill_strides(args.output, 1, 2, out->output_stride);
    fill_strides(args.lse, 1, 2, out->lse_stride);
    fill_strides(args.k_cache, size, 3, out->k_stride);
    fill_strides(args.v_cache, size, 3, out->v_stride);
    fill_strides(args.k_scale, 1, 3, out->k_scale_stride);
    fill_strides(args.v_scale, 1, 3, out->v_scale_stride);
    out->block_table_stride = args.block_table_stride;
    out->tree_mask_stride = args.tree_mask_stride;
    out->block_size = pkvi_make_divisor(op->cache.block_size);
    out->group_size = pkvi_make_divisor(op->group_size);
    out->num_kv_heads = pkvi_make_divisor(op->cache.num_kv_heads);
    out->softmax_scale = args.softmax_scale;
    out->softcap = args.softcap;
    out->window = args.window;
    out->head_size = op->cache.head_size;
    out->v_head_size = op->cache.v_head_size;
    out->num_tokens = static_cast<int32_t>(op->num_tokens);
    out->num_query_heads = op->num_query_heads;
    out->k_scale_kind = op->cache.k_scale_kind;
    out->v_scale_kind = op->cache.v_scale_kind;
    out->query_dtype = args.query.dtype;
    out->is_non_causal = (args.flags & PKV_ATTENTION_NON_CAUSAL) != 0;
    out->has_float_output = args.output.dtype == PKV_DTYPE_FLOAT32;
    out->has_wide_rows = has_wide_rows(&args.k_cache) && has_wide_rows(&args.v_cache);
}

} // namespace pkvi
