/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The specification of attention and of merging: plain loops, one element at a time, accumulation
 * in double. Speed is no aim here; a reader is to see what is computed.
 *
 *   logit(i, j) = softmax_scale * k_scale(j) * sum_d query(i, d) * key(j, d)
 *   logit       = softcap * tanh(logit / softcap)                                 where softcap > 0
 *   logit       = logit - slope * |position(i) - j|                               with ALiBi
 *   weight(j)   = exp(logit(j) - maximum) for each key j that query i sees
 *   output(i)   = sum_j weight(j) * v_scale(j) * value(j) / (sum_j weight(j) + exp(sink - maximum))
 *   lse(i)      = maximum + log(sum_j weight(j) + exp(sink - maximum)) */
#include "base/paged.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"

/* ---- What both caches share */

/* Scale of the token at `place` and of `head`. */
static double read_scale(const pkv_tensor *scale,
                         enum pkvi_scale_kind kind,
                         struct pkvi_place place,
                         int32_t head) {
    switch (kind) {
    case PKVI_SCALE_TENSOR:
        return (double)((const float *)scale->data)[0];
    case PKVI_SCALE_HEAD:
        return (double)((const float *)scale->data)[head];
    case PKVI_SCALE_TOKEN_HEAD:
        return (double)((const float *)scale->data)[pkvi_place_element(place, head, scale->stride)];
    case PKVI_SCALE_NONE:
        break;
    }
    return 1.0;
}

/* ---- One query token of one head */

struct row {
    const struct pkvi_attention *op;
    const pkv_block_id *table;
    int64_t token; /* of the batch */
    int64_t query; /* of the request */
    int64_t num_queries;
    int64_t seq_len;
    int64_t position;
    int32_t query_head, kv_head;
    double elements[PKV_MAX_HEAD_SIZE]; /* of the query */
};

/* Whether the row sees key `j`. */
static bool sees(const struct row *row, int64_t j) {
    const pkv_attention_args *args = &row->op->args;
    int64_t tree_start = row->seq_len - row->num_queries;

    if (args->tree_mask != NULL) {
        int64_t bit = j - tree_start;
        const uint32_t *words = args->tree_mask + row->token * args->tree_mask_stride;

        return bit < 0 || (words[bit / 32] >> (bit % 32) & 1u) != 0;
    }
    bool is_behind = args->window > 0 && j <= row->position - args->window;
    bool is_ahead = (args->flags & PKV_ATTENTION_NON_CAUSAL) == 0 && j > row->position;
    return !is_behind && !is_ahead;
}

static void read_query(struct row *row) {
    const pkv_tensor *query = &row->op->args.query;
    int64_t first = row->token * query->stride[0] + row->query_head * query->stride[1];

    for (int32_t d = 0; d < row->op->cache.head_size; d++) {
        row->elements[d] = (double)pkvi_cpu_read(query->data, query->dtype, first + d);
    }
}

static double compute_logit(const struct row *row, int64_t j) {
    const struct pkvi_attention *op = row->op;
    const pkv_attention_args *args = &op->args;
    struct pkvi_place place = pkvi_place_of_position(row->table, op->cache.block_size, j);
    int64_t key = pkvi_place_element(place, row->kv_head, args->k_cache.stride);
    double logit = 0.0;

    for (int32_t d = 0; d < op->cache.head_size; d++) {
        logit += row->elements[d] *
                 (double)pkvi_cpu_read(args->k_cache.data, args->k_cache.dtype, key + d);
    }
    logit *= (double)args->softmax_scale *
             read_scale(&args->k_scale, op->cache.k_scale_kind, place, row->kv_head);
    if (args->softcap > 0.0f) {
        logit = (double)args->softcap * tanh(logit / (double)args->softcap);
    }
    if (args->alibi_slopes != NULL) {
        logit -= (double)args->alibi_slopes[row->query_head] * fabs((double)(row->position - j));
    }
    return logit;
}

static void attend_row(const struct row *row) {
    const struct pkvi_attention *op = row->op;
    const pkv_attention_args *args = &op->args;
    double sink = args->sinks == NULL ? -INFINITY : (double)args->sinks[row->query_head];
    double sum_values[PKV_MAX_HEAD_SIZE] = {0.0};
    double maximum = sink;
    double sum = 0.0;

    for (int64_t j = 0; j < row->seq_len; j++) {
        if (sees(row, j)) {
            maximum = fmax(maximum, compute_logit(row, j));
        }
    }
    if (sink > -INFINITY) {
        sum = exp(sink - maximum);
    }
    for (int64_t j = 0; j < row->seq_len; j++) {
        if (!sees(row, j)) {
            continue;
        }
        struct pkvi_place place = pkvi_place_of_position(row->table, op->cache.block_size, j);
        int64_t value = pkvi_place_element(place, row->kv_head, args->v_cache.stride);
        double weight = exp(compute_logit(row, j) - maximum);

        sum += weight;
        weight *= read_scale(&args->v_scale, op->cache.v_scale_kind, place, row->kv_head);
        for (int32_t d = 0; d < op->cache.v_head_size; d++) {
            sum_values[d] +=
                weight * (double)pkvi_cpu_read(args->v_cache.data, args->v_cache.dtype, value + d);
        }
    }
    int64_t output = row->token * args->output.stride[0] + row->query_head * args->output.stride[1];
    for (int32_t d = 0; d < op->cache.v_head_size; d++) {
        double value = sum == 0.0 ? 0.0 : sum_values[d] / sum;

        pkvi_cpu_write(args->output.data, args->output.dtype, output + d, (float)value);
    }
    if (args->lse.dtype != PKV_DTYPE_NONE) {
        float *lse = args->lse.data;

        lse[row->token * args->lse.stride[0] + row->query_head * args->lse.stride[1]] =
            sum == 0.0 ? -INFINITY : (float)(maximum + log(sum));
    }
}

void pkvi_cpu_reference_attention(const struct pkvi_attention *op) {
    const pkv_attention_args *args = &op->args;
    const struct pkvi_plan_header *header = args->plan_data;

    for (int32_t request = 0; request < header->num_requests; request++) {
        const struct pkvi_plan_request *planned = &pkvi_plan_requests(header)[request];
        struct row row = {
            .op = op,
            .table = args->block_table + planned->table_row * args->block_table_stride,
            .num_queries = planned->num_queries,
            .seq_len = args->seq_lens[request],
        };

        for (row.query = 0; row.query < row.num_queries; row.query++) {
            row.token = planned->query_start + row.query;
            row.position = row.seq_len - row.num_queries + row.query;
            for (row.query_head = 0; row.query_head < op->num_query_heads; row.query_head++) {
                row.kv_head = row.query_head / op->group_size;
                read_query(&row);
                attend_row(&row);
            }
        }
    }
}

/* ---- Merging */

/* One token and head: weights exp(lse - maximum), in part order. */
static void merge_row(const struct pkvi_merge *op, int64_t token, int64_t head) {
    const pkv_merge_args *args = &op->args;
    double weights[PKV_MAX_MERGE_PARTS];
    double sum_values[PKV_MAX_HEAD_SIZE] = {0.0};
    double maximum = -INFINITY;
    double sum = 0.0;

    for (int32_t part = 0; part < args->num_parts; part++) {
        const pkv_tensor *lse = &args->lses[part];
        int64_t index = token * lse->stride[0] + head * lse->stride[1];

        weights[part] = (double)((const float *)lse->data)[index];
        maximum = fmax(maximum, weights[part]);
    }
    for (int32_t part = 0; part < args->num_parts; part++) {
        const pkv_tensor *output = &args->outputs[part];
        int64_t index = token * output->stride[0] + head * output->stride[1];
        double weight = weights[part] == -INFINITY ? 0.0 : exp(weights[part] - maximum);

        sum += weight;
        for (int32_t d = 0; weight != 0.0 && d < op->v_head_size; d++) {
            sum_values[d] += weight * (double)pkvi_cpu_read(output->data, output->dtype, index + d);
        }
    }
    int64_t index = token * args->output.stride[0] + head * args->output.stride[1];
    for (int32_t d = 0; d < op->v_head_size; d++) {
        double value = sum == 0.0 ? 0.0 : sum_values[d] / sum;

        pkvi_cpu_write(args->output.data, args->output.dtype, index + d, (float)value);
    }
    if (args->lse.dtype != PKV_DTYPE_NONE) {
        float *lse = args->lse.data;

        lse[token * args->lse.stride[0] + head * args->lse.stride[1]] =
            sum == 0.0 ? -INFINITY : (float)(maximum + log(sum));
    }
}

void pkvi_cpu_reference_merge(const struct pkvi_merge *op) {
    for (int64_t token = 0; token < op->num_tokens; token++) {
        for (int64_t head = 0; head < op->num_heads; head++) {
            merge_row(op, token, head);
        }
    }
}
