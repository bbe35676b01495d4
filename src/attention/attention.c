/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public operations of attention.h: read the args, check every view and number that stands on
 * the host, hand over to the device. No arithmetic on cache contents is here.
 *
 * The one idea: all refusals happen before the backend is called, in the order of the args, and
 * each names the argument. */
#include <math.h>
#include <stdio.h>

#include "attention/plan.h"
#include "device/tensor.h"

/* Refuse with INVALID_ARGUMENT. */
#define REFUSE(device, ...) PKVI_DEVICE_FAIL(device, PKV_ERROR_INVALID_ARGUMENT, __VA_ARGS__)

/* What every operation begins with. */
static pkv_status begin(pkv_device *device,
                        void *own,
                        size_t own_size,
                        size_t least_size,
                        const void *given,
                        pkv_stream stream) {
    if (device == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pkv_status status = pkvi_read_struct(own, own_size, least_size, given);
    if (status != PKV_OK) {
        return PKVI_DEVICE_FAIL(device, status,
                                status == PKV_ERROR_UNSUPPORTED
                                    ? "args: a member is set that this version "
                                      "does not know"
                                    : "args is NULL or args.struct_size is wrong");
    }
    return device->backend->check_stream(device, stream);
}

bool pkv_attention_supports(const pkv_device *device,
                            const pkv_attention_shape *shape,
                            const char **reason) {
    const char *unused = NULL;
    const char **why = reason == NULL ? &unused : reason;
    pkv_attention_shape known;

    *why = "device or shape is NULL, or struct_size is wrong";
    if (device == NULL ||
        pkvi_read_struct(&known, sizeof known, offsetof(pkv_attention_shape, kv_dtype), shape) !=
            PKV_OK) {
        return false;
    }
    *why = pkvi_refuse_attention_shape(&known);
    if (*why == NULL) {
        known.v_head_size = known.v_head_size == 0 ? known.head_size : known.v_head_size;
        known.kv_dtype = known.kv_dtype == PKV_DTYPE_NONE ? known.query_dtype : known.kv_dtype;
        *why = device->backend->refuse_shape(device, &known);
    }
    return *why == NULL;
}

/* ---- attention */

/* Query, output and lse agree with each other and with the caches. */
static pkv_status check_attention_views(pkv_device *device, struct pkvi_attention *op) {
    const pkv_attention_args *args = &op->args;
    const struct pkvi_axis query_axes[] = {{"num_tokens", PKVI_ANY_SIZE},
                                           {"num_query_heads", PKVI_ANY_SIZE},
                                           {"head_size", op->cache.head_size}};
    pkv_status status = pkvi_tensor_check(&device->error, "query", &args->query, PKVI_DTYPES_FLOAT,
                                          3, query_axes, PKVI_ROWS_ALIGNED);

    if (status != PKV_OK) {
        return status;
    }
    if (args->query.shape[0] > INT32_MAX || args->query.shape[1] > INT32_MAX) {
        return REFUSE(device, "query.shape[0] and shape[1] must be below 2^31");
    }
    op->num_tokens = args->query.shape[0];
    op->num_query_heads = (int32_t)args->query.shape[1];
    if (op->num_query_heads < 1 || op->num_query_heads % op->cache.num_kv_heads != 0) {
        return REFUSE(
            device, "query.shape[1] (num_query_heads) is %d, wanted a multiple of num_kv_heads %d",
            (int)op->num_query_heads, (int)op->cache.num_kv_heads);
    }
    op->group_size = op->num_query_heads / op->cache.num_kv_heads;

    const struct pkvi_axis output_axes[] = {{"num_tokens", op->num_tokens},
                                            {"num_query_heads", op->num_query_heads},
                                            {"v_head_size", op->cache.v_head_size}};
    status =
        pkvi_tensor_check(&device->error, "output", &args->output,
                          PKVI_DTYPE_BIT(args->query.dtype) | PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32), 3,
                          output_axes, PKVI_ROWS_ALIGNED);
    if (status == PKV_OK && !pkvi_tensor_is_absent(&args->lse)) {
        status =
            pkvi_tensor_check(&device->error, "lse", &args->lse, PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32),
                              2, output_axes, PKVI_ROWS_PLAIN);
    }
    if (status == PKV_OK && op->num_tokens > 0 && args->output.data == args->query.data) {
        return REFUSE(device, "output must not be query's memory");
    }
    return status;
}

/* The plan belongs to this shape and the flags to the plan. */
static pkv_status check_attention_plan(pkv_device *device,
                                       const pkv_plan *plan,
                                       const struct pkvi_attention *op) {
    const pkv_attention_shape *shape = &plan->config.shape;
    const pkv_attention_args *args = &op->args;
    const struct {
        const char *name;
        int32_t given, planned;
    } pairs[] = {
        {"num_query_heads", op->num_query_heads, shape->num_query_heads},
        {"num_kv_heads", op->cache.num_kv_heads, shape->num_kv_heads},
        {"head_size", op->cache.head_size, shape->head_size},
        {"v_head_size", op->cache.v_head_size, shape->v_head_size},
        {"block_size", op->cache.block_size, shape->block_size},
        {"query.dtype", (int32_t)args->query.dtype, (int32_t)shape->query_dtype},
        {"k_cache.dtype", (int32_t)args->k_cache.dtype, (int32_t)shape->kv_dtype},
    };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].given != pairs[i].planned) {
            return REFUSE(device, "%s is %d, the plan was made for %d", pairs[i].name,
                          (int)pairs[i].given, (int)pairs[i].planned);
        }
    }
    if ((args->flags & PKV_ATTENTION_NON_CAUSAL) != 0 &&
        (plan->config.flags & PKV_PLAN_NON_CAUSAL) == 0) {
        return REFUSE(device, "NON_CAUSAL attention wants a plan with PKV_PLAN_NON_CAUSAL");
    }
    if (plan->config.window > 0 && (args->window == 0 || args->window > plan->config.window)) {
        return REFUSE(device, "window is %d, the plan covers windows up to %d", (int)args->window,
                      (int)plan->config.window);
    }
    if (args->plan_data == NULL || (uintptr_t)args->plan_data % 8 != 0) {
        return REFUSE(device, "plan_data is NULL or not 8-byte aligned");
    }
    if (args->workspace_size < plan->workspace_size) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_LIMIT,
                                "workspace_size is %zu, the plan needs %zu", args->workspace_size,
                                plan->workspace_size);
    }
    if (plan->workspace_size > 0 &&
        (args->workspace == NULL || (uintptr_t)args->workspace % PKVI_ALIGNMENT != 0)) {
        return REFUSE(device, "workspace is NULL or not %d-byte aligned", PKVI_ALIGNMENT);
    }
    return PKV_OK;
}

/* The plain numbers and arrays. */
static pkv_status check_attention_values(pkv_device *device, struct pkvi_attention *op) {
    pkv_attention_args *args = &op->args;

    if ((args->flags & ~PKV_ATTENTION_NON_CAUSAL) != 0) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED, "flags 0x%x has an unknown bit",
                                (unsigned)args->flags);
    }
    if (args->block_table == NULL || args->seq_lens == NULL || args->query_start_loc == NULL) {
        return REFUSE(device, "block_table, seq_lens or query_start_loc is NULL");
    }
    if (args->block_table_stride < 0) {
        return REFUSE(device, "block_table_stride is negative");
    }
    if (args->softmax_scale == 0.0f) {
        args->softmax_scale = (float)(1.0 / sqrt((double)op->cache.head_size));
    }
    if (!(args->softmax_scale > 0.0f) || isinf(args->softmax_scale)) {
        return REFUSE(device, "softmax_scale must be positive and finite, or 0 for the default");
    }
    if (!(args->softcap >= 0.0f) || isinf(args->softcap)) {
        return REFUSE(device, "softcap must be positive and finite, or 0 for none");
    }
    if (args->window < 0) {
        return REFUSE(device, "window is %d, wanted at least 1, or 0 for none", (int)args->window);
    }
    if (args->tree_mask == NULL) {
        return PKV_OK;
    }
    if (args->window > 0 || args->alibi_slopes != NULL || args->flags != 0) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED,
                                "tree_mask excludes window, alibi_slopes and NON_CAUSAL");
    }
    return args->tree_mask_stride < 1 ? REFUSE(device, "tree_mask_stride must be at least 1")
                                      : PKV_OK;
}

pkv_status pkv_attention(pkv_device *device,
                         const pkv_plan *plan,
                         const pkv_attention_args *args,
                         pkv_stream stream) {
    struct pkvi_attention op = {0};
    const char *reason;
    pkv_status status = begin(device, &op.args, sizeof op.args,
                              offsetof(pkv_attention_args, softmax_scale), args, stream);

    if (status != PKV_OK) {
        return status;
    }
    if (plan == NULL) {
        return REFUSE(device, "plan is NULL");
    }
    if (pkvi_tensor_is_absent(&op.args.k_cache) || pkvi_tensor_is_absent(&op.args.v_cache)) {
        return REFUSE(device, "k_cache or v_cache is absent");
    }
    status = pkvi_tensor_check_caches(&device->error, &op.args.k_cache, &op.args.v_cache,
                                      &op.args.k_scale, &op.args.v_scale, &op.cache);
    if (status == PKV_OK) {
        status = check_attention_views(device, &op);
    }
    if (status == PKV_OK) {
        status = check_attention_values(device, &op);
    }
    if (status == PKV_OK) {
        status = check_attention_plan(device, plan, &op);
    }
    if (status != PKV_OK) {
        return status;
    }
    if (!pkv_attention_supports(device, &plan->config.shape, &reason)) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED, "%s", reason);
    }
    op.plan_identity = plan->identity;
    op.max_requests = plan->config.max_requests;
    return device->backend->attention(device, &op, stream);
}

/* ---- write_kv */

static pkv_status check_write_sources(pkv_device *device, struct pkvi_write_kv *op) {
    const pkv_write_kv_args *args = &op->args;
    bool has_key = !pkvi_tensor_is_absent(&args->key);
    bool has_tail = !pkvi_tensor_is_absent(&args->key_tail);
    bool has_value = !pkvi_tensor_is_absent(&args->value);
    pkv_dtype dtype = has_key    ? args->key.dtype
                      : has_tail ? args->key_tail.dtype
                                 : args->value.dtype;
    int64_t tail_size = has_tail && args->key_tail.rank == 3 ? args->key_tail.shape[2] : 0;
    int64_t num_tokens = PKVI_ANY_SIZE;
    pkv_status status = PKV_OK;

    if ((has_key || has_tail) != (op->cache.head_size > 0) ||
        has_value != (op->cache.v_head_size > 0)) {
        return REFUSE(device,
                      "key goes with k_cache and value with v_cache: one of a pair is absent");
    }
    if (tail_size < 0 || tail_size > op->cache.head_size ||
        (!has_key && has_tail && tail_size != op->cache.head_size)) {
        return REFUSE(device, "key_tail.shape[2] is %d, k_cache's head_size %d", (int)tail_size,
                      (int)op->cache.head_size);
    }
    op->tail_size = (int32_t)tail_size;
    const struct {
        const char *name;
        const pkv_tensor *tensor;
        bool is_present;
        int64_t row_size;
    } sources[] = {
        {"key", &args->key, has_key, op->cache.head_size - tail_size},
        {"key_tail", &args->key_tail, has_tail, tail_size},
        {"value", &args->value, has_value, op->cache.v_head_size},
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        const struct pkvi_axis axes[] = {{"num_tokens", num_tokens},
                                         {"num_kv_heads", op->cache.num_kv_heads},
                                         {"head_size", sources[i].row_size}};

        if (!sources[i].is_present) {
            continue;
        }
        status = pkvi_tensor_check(&device->error, sources[i].name, sources[i].tensor,
                                   PKVI_DTYPES_FLOAT & PKVI_DTYPE_BIT(dtype), 3, axes,
                                   PKVI_ROWS_ALIGNED);
        if (status != PKV_OK) {
            return status;
        }
        num_tokens = sources[i].tensor->shape[0];
    }
    op->num_tokens = num_tokens;
    pkv_dtype cache_dtype = op->cache.head_size > 0 ? args->k_cache.dtype : args->v_cache.dtype;
    bool fits = cache_dtype == dtype || dtype == PKV_DTYPE_FLOAT32 ||
                (PKVI_DTYPES_QUANTISED & PKVI_DTYPE_BIT(cache_dtype)) != 0;
    return fits ? PKV_OK
                : PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED,
                                   "a %s cache cannot be written from %s",
                                   pkvi_dtype_name(cache_dtype), pkvi_dtype_name(dtype));
}

static pkv_status check_write_rope(pkv_device *device, struct pkvi_write_kv *op) {
    const pkv_write_kv_args *args = &op->args;
    const struct pkvi_axis cos_axes[] = {{"max_position", PKVI_ANY_SIZE},
                                         {"rotary_size / 2", PKVI_ANY_SIZE}};
    bool has_query = !pkvi_tensor_is_absent(&args->query);

    if (pkvi_tensor_is_absent(&args->cos)) {
        return has_query || !pkvi_tensor_is_absent(&args->sin) || args->positions != NULL ||
                       args->flags != 0 || args->rotary_offset != 0
                   ? REFUSE(device, "query, sin, positions, rotary_offset and flags go with cos, "
                                    "which is absent")
                   : PKV_OK;
    }
    pkv_status status =
        pkvi_tensor_check(&device->error, "cos", &args->cos, PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32), 2,
                          cos_axes, PKVI_ROWS_PLAIN);
    if (status != PKV_OK) {
        return status;
    }
    const struct pkvi_axis sin_axes[] = {{"max_position", args->cos.shape[0]},
                                         {"rotary_size / 2", args->cos.shape[1]}};
    status = pkvi_tensor_check(&device->error, "sin", &args->sin, PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32),
                               2, sin_axes, PKVI_ROWS_PLAIN);
    if (status != PKV_OK) {
        return status;
    }
    if (op->cache.head_size == 0 || args->positions == NULL) {
        return REFUSE(device, "RoPE wants a key and positions");
    }
    int64_t rotary_size = 2 * args->cos.shape[1];
    if (rotary_size < 2 || args->rotary_offset < 0 ||
        args->rotary_offset + rotary_size > op->cache.head_size) {
        return REFUSE(device, "rotary_offset %d + rotary size %d must lie in head_size %d",
                      (int)args->rotary_offset, (int)rotary_size, (int)op->cache.head_size);
    }
    op->rotary_size = (int32_t)rotary_size;
    op->max_position = args->cos.shape[0];
    if (!has_query) {
        return PKV_OK;
    }
    const struct pkvi_axis query_axes[] = {{"num_tokens", op->num_tokens},
                                           {"num_query_heads", PKVI_ANY_SIZE},
                                           {"head_size", op->cache.head_size}};
    pkv_dtype dtype = op->tail_size == op->cache.head_size ? args->key_tail.dtype : args->key.dtype;
    status = pkvi_tensor_check(&device->error, "query", &args->query, PKVI_DTYPE_BIT(dtype), 3,
                               query_axes, PKVI_ROWS_ALIGNED);
    if (status == PKV_OK && args->query.shape[1] > INT32_MAX) {
        return REFUSE(device, "query.shape[1] must be below 2^31");
    }
    op->num_query_heads = (int32_t)args->query.shape[1];
    return status;
}

pkv_status pkv_write_kv(pkv_device *device, const pkv_write_kv_args *args, pkv_stream stream) {
    struct pkvi_write_kv op = {0};
    pkv_status status =
        begin(device, &op.args, sizeof op.args, offsetof(pkv_write_kv_args, cos), args, stream);

    if (status != PKV_OK) {
        return status;
    }
    if ((op.args.flags & ~PKV_WRITE_ROPE_INTERLEAVED) != 0) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED, "flags 0x%x has an unknown bit",
                                (unsigned)op.args.flags);
    }
    status = pkvi_tensor_check_caches(&device->error, &op.args.k_cache, &op.args.v_cache,
                                      &op.args.k_scale, &op.args.v_scale, &op.cache);
    if (status == PKV_OK) {
        status = check_write_sources(device, &op);
    }
    if (status == PKV_OK) {
        status = check_write_rope(device, &op);
    }
    if (status != PKV_OK || op.num_tokens == 0) {
        return status;
    }
    if (op.args.slot_mapping == NULL) {
        return REFUSE(device, "slot_mapping is NULL");
    }
    return device->backend->write_kv(device, &op, stream);
}

/* ---- merge_states */

pkv_status pkv_merge_states(pkv_device *device, const pkv_merge_args *args, pkv_stream stream) {
    struct pkvi_merge op = {0};
    pkv_status status =
        begin(device, &op.args, sizeof op.args, offsetof(pkv_merge_args, lse), args, stream);

    if (status != PKV_OK) {
        return status;
    }
    if (op.args.num_parts < 1 || op.args.num_parts > PKV_MAX_MERGE_PARTS ||
        op.args.outputs == NULL || op.args.lses == NULL) {
        return REFUSE(device, "num_parts is %d, wanted 1 .. %d; outputs and lses must be given",
                      (int)op.args.num_parts, PKV_MAX_MERGE_PARTS);
    }
    const struct pkvi_axis free_axes[] = {{"num_tokens", PKVI_ANY_SIZE},
                                          {"num_heads", PKVI_ANY_SIZE},
                                          {"v_head_size", PKVI_ANY_SIZE}};
    status = pkvi_tensor_check(&device->error, "output", &op.args.output, PKVI_DTYPES_FLOAT, 3,
                               free_axes, PKVI_ROWS_ALIGNED);
    if (status != PKV_OK) {
        return status;
    }
    const int64_t *shape = op.args.output.shape;
    if (shape[1] > INT32_MAX || shape[2] > PKV_MAX_HEAD_SIZE ||
        pkvi_refuse_head_size((int32_t)shape[2]) != NULL) {
        return PKVI_DEVICE_FAIL(device, PKV_ERROR_UNSUPPORTED,
                                "output.shape[2] (v_head_size) must be a multiple of %d up to %d",
                                PKV_HEAD_SIZE_STEP, PKV_MAX_HEAD_SIZE);
    }
    const struct pkvi_axis axes[] = {
        {"num_tokens", shape[0]}, {"num_heads", shape[1]}, {"v_head_size", shape[2]}};
    unsigned dtypes = PKVI_DTYPES_FLOAT;
    for (int32_t part = 0; status == PKV_OK && part < op.args.num_parts; part++) {
        char name[32];

        (void)snprintf(name, sizeof name, "outputs[%d]", (int)part);
        status = pkvi_tensor_check(&device->error, name, &op.args.outputs[part], dtypes, 3, axes,
                                   PKVI_ROWS_ALIGNED);
        if (status == PKV_OK) {
            dtypes = PKVI_DTYPE_BIT(op.args.outputs[part].dtype);
            (void)snprintf(name, sizeof name, "lses[%d]", (int)part);
            status = pkvi_tensor_check(&device->error, name, &op.args.lses[part],
                                       PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32), 2, axes, PKVI_ROWS_PLAIN);
        }
    }
    if (status == PKV_OK && !pkvi_tensor_is_absent(&op.args.lse)) {
        status = pkvi_tensor_check(&device->error, "lse", &op.args.lse,
                                   PKVI_DTYPE_BIT(PKV_DTYPE_FLOAT32), 2, axes, PKVI_ROWS_PLAIN);
    }
    if (status != PKV_OK || shape[0] == 0 || shape[1] == 0) {
        return status;
    }
    op.num_tokens = shape[0];
    op.num_heads = (int32_t)shape[1];
    op.v_head_size = (int32_t)shape[2];
    return device->backend->merge_states(device, &op, stream);
}
