/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The oracle of attention cases: double precision from the bytes in the pool, through the same
 * table, and a bound on the error of each element that follows from float arithmetic.
 *
 * With u = 2^-24, logit l_j and weight p_j of key j, an error of r_j = u (c_D * scale * sum |q||k|
 * + c |l_j| + c_n) in the logarithm of p_j moves an output element by at most
 *     sum_j p_j |v_j| r_j + |o| sum_j p_j r_j
 * and rounding the result to its dtype adds u_out |o|. c_D grows with the length of the dot
 * product, c_n with the number of keys. Where a device rounds the weights to 16 bits for its matrix
 * instructions, r_j of the output has u_P more; the lse comes from weights that are not rounded. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/attention_case.h"

/* One request's keys and values of one head as numbers. */
struct content {
    double *keys, *values; /* [position][size], scales applied */
    int64_t num_keys;
};

static double scale_at(const struct attention_run *run,
                       const struct attention_buffer *scale,
                       const pkv_tensor *token_scales,
                       int64_t block,
                       int64_t head,
                       int64_t offset) {
    const float *scales = scale->host;

    switch (run->c.scales) {
    case CASE_SCALE_TENSOR:
        return (double)scales[0];
    case CASE_SCALE_HEAD:
        return (double)scales[head];
    case CASE_SCALE_TOKEN:
        scales = token_scales->data;
        return (double)
            scales[block * token_scales->stride[0] + head * token_scales->stride[1] + offset];
    default:
        return 1.0;
    }
}

static void read_content(const struct attention_run *run,
                         int32_t request,
                         int64_t head,
                         struct content *content) {
    const struct attention_case *c = &run->c;
    const int32_t *row =
        (const int32_t *)run->table.host + (int64_t)run->rows[request] * run->num_columns;

    content->num_keys = ((const int32_t *)run->lens.host)[request];
    content->keys = malloc((size_t)(content->num_keys * c->head_size + 1) * sizeof(double));
    content->values = malloc((size_t)(content->num_keys * c->v_head_size + 1) * sizeof(double));
    if (content->keys == NULL || content->values == NULL) {
        abort();
    }
    for (int64_t j = 0; j < content->num_keys; j++) {
        int64_t block = row[j / c->block_size], offset = j % c->block_size;

        /* Behind a window the table may hold anything. */
        if (block < 0 || block >= run->num_blocks) {
            block = 0;
        }
        int64_t key = block * run->k_cache.stride[0] + head * run->k_cache.stride[1] +
                      offset * run->k_cache.stride[2];
        int64_t value = block * run->v_cache.stride[0] + head * run->v_cache.stride[1] +
                        offset * run->v_cache.stride[2];
        double k_scale = scale_at(run, &run->k_scale, &run->k_scales, block, head, offset);
        double v_scale = scale_at(run, &run->v_scale, &run->v_scales, block, head, offset);

        for (int64_t d = 0; d < c->head_size; d++) {
            content->keys[j * c->head_size + d] =
                k_scale * tensor_decode(run->k_cache.data, c->kv_dtype, key + d);
        }
        for (int64_t d = 0; d < c->v_head_size; d++) {
            content->values[j * c->v_head_size + d] =
                v_scale * tensor_decode(run->v_cache.data, c->kv_dtype, value + d);
        }
    }
}

/* A row's place in the case. */
struct place {
    int32_t request;
    int64_t query, token, head;
    int64_t position, seq_len, num_queries;
};

static bool is_visible(const struct attention_run *run, const struct place *place, int64_t j) {
    if (run->c.has_tree) {
        int64_t bit = j - (place->seq_len - place->num_queries);
        const uint32_t *words =
            (const uint32_t *)run->tree.host + place->token * run->args.tree_mask_stride;

        return bit < 0 || (words[bit / 32] & (1u << (bit % 32))) != 0;
    }
    if (run->args.window > 0 && place->position - j >= run->args.window) {
        return false;
    }
    return run->c.non_causal || j <= place->position;
}

/* Sums of products and of their magnitudes, in lanes that the compiler can make a vector of. */
static void dot_product(
    const double *a, const double *b, int64_t count, double *dot, double *magnitude) {
    enum { LANES = 4 };
    double dots[LANES] = {0.0}, magnitudes[LANES] = {0.0};
    int64_t whole = count - count % LANES;

    for (int64_t d = 0; d < whole; d += LANES) {
        double products[LANES];

        for (int lane = 0; lane < LANES; lane++) {
            products[lane] = a[d + lane] * b[d + lane];
        }
        for (int lane = 0; lane < LANES; lane++) {
            dots[lane] += products[lane];
        }
        for (int lane = 0; lane < LANES; lane++) {
            magnitudes[lane] += fabs(products[lane]);
        }
    }
    for (int64_t d = whole; d < count; d++) {
        dots[0] += a[d] * b[d];
        magnitudes[0] += fabs(a[d] * b[d]);
    }
    *dot = (dots[0] + dots[1]) + (dots[2] + dots[3]);
    *magnitude = (magnitudes[0] + magnitudes[1]) + (magnitudes[2] + magnitudes[3]);
}

/* Logit of key j and the bound r_j on the error of log p_j; `raw` becomes at least the logit before
 * the soft cap. */
static double logit_of(const struct attention_run *run,
                       const struct place *place,
                       const double *query,
                       const double *key,
                       int64_t j,
                       double *error,
                       double *raw) {
    const struct attention_case *c = &run->c;
    const double u = 0x1p-24;
    double scale =
        c->softmax_scale != 0.0f ? (double)c->softmax_scale : 1.0 / sqrt((double)c->head_size);
    double dot, magnitude, logit;

    dot_product(query, key, c->head_size, &dot, &magnitude);
    logit = scale * dot;
    *raw = fmax(*raw, logit);
    *error =
        u * (2.0 * sqrt((double)c->head_size) + 8.0) * scale * magnitude + 6.0 * u * fabs(logit);
    if (c->softcap > 0.0f) {
        logit = (double)c->softcap * tanh(logit / (double)c->softcap);
        *error += 6.0 * u * (double)c->softcap;
    }
    if (c->has_alibi) {
        double bias = (double)((const float *)run->slopes.host)[place->head] *
                      fabs((double)(place->position - j));

        logit -= bias;
        *error += 4.0 * u * (bias + fabs(logit));
    }
    *error += u * (16.0 + 2.0 * sqrt((double)place->seq_len));
    return logit;
}

/* Half a unit in the last place, relative, and the smallest step. */
static double rounding_of(pkv_dtype dtype, double value) {
    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        return 0x1p-11 * fabs(value) + 0x1p-25;
    case PKV_DTYPE_BFLOAT16:
        return 0x1p-8 * fabs(value);
    default:
        return 0x1p-22 * fabs(value);
    }
}

/* u_P: what a weight is rounded with. On the CPU of bfloat16 over bfloat16 with more rows than few;
 * on the CUDA device always but for float queries, to the type that multiplies the values: half over
 * a half cache, else bfloat16, since weights of quantised caches carry the scale of the token. */
static double weight_rounding(const struct attention_run *run, const struct place *place) {
    const struct attention_case *c = &run->c;

    if (run->is_cuda) {
        return c->query_dtype == PKV_DTYPE_FLOAT32 ? 0.0
               : c->kv_dtype == PKV_DTYPE_FLOAT16  ? 0x1p-11
                                                   : 0x1p-8;
    }
    bool is_rounded = run->instructions == PKV_CPU_AVX512_BF16 &&
                      c->query_dtype == PKV_DTYPE_BFLOAT16 && c->kv_dtype == PKV_DTYPE_BFLOAT16 &&
                      place->num_queries * c->num_query_heads / c->num_kv_heads > 8;

    return is_rounded ? 0x1p-8 : 0.0;
}

static void note(struct attention_error *out,
                 double *worst,
                 double error,
                 double bound,
                 const char *what,
                 const struct place *place,
                 int64_t d) {
    double ratio = error == 0.0 ? 0.0 : error / (bound + 1e-37);

    if (!(ratio <= *worst)) { /* NaN counts as worse */
        *worst = isnan(ratio) ? INFINITY : ratio;
        (void)snprintf(out->where, sizeof out->where,
                       "%s: request %d query %lld head %lld dim %lld: error %.3g bound %.3g", what,
                       (int)place->request, (long long)place->query, (long long)place->head,
                       (long long)d, error, bound);
    }
}

static void compare_row(const struct attention_run *run,
                        const struct place *place,
                        const double *query,
                        const struct content *content,
                        struct attention_error *out) {
    const struct attention_case *c = &run->c;
    double *restrict sums = calloc((size_t)c->v_head_size, sizeof(double));
    double *restrict spreads = calloc((size_t)c->v_head_size, sizeof(double));
    double weight_error = weight_rounding(run, place);
    double *logits = malloc((size_t)(2 * content->num_keys + 1) * sizeof(double));
    double *errors = logits + content->num_keys;
    double sink = c->has_sinks ? (double)((const float *)run->sinks.host)[place->head] : -INFINITY;
    double maximum = sink, total = 0.0, total_error = 0.0;

    if (sums == NULL || spreads == NULL || logits == NULL) {
        abort();
    }
    for (int64_t j = 0; j < content->num_keys; j++) {
        logits[j] = -INFINITY;
        if (is_visible(run, place, j)) {
            logits[j] = logit_of(run, place, query, content->keys + j * c->head_size, j, &errors[j],
                                 &out->largest_logit);
            maximum = fmax(maximum, logits[j]);
        }
    }
    total = sink > -INFINITY ? exp(sink - maximum) : 0.0;
    for (int64_t j = 0; j < content->num_keys; j++) {
        if (logits[j] == -INFINITY) {
            continue;
        }
        double p = exp(logits[j] - maximum);

        total += p;
        total_error += p * errors[j];
        const double *restrict values = content->values + j * c->v_head_size;
        double spread = p * (errors[j] + weight_error);

        for (int64_t d = 0; d < c->v_head_size; d++) {
            sums[d] += p * values[d];
            spreads[d] += spread * fabs(values[d]);
        }
    }
    for (int64_t d = 0; d < c->v_head_size; d++) {
        double wanted = total == 0.0 ? 0.0 : sums[d] / total;
        double got = tensor_decode(attention_run_output(run, place->token, place->head),
                                   run->args.output.dtype, d);
        double bound = total == 0.0 ? 0.0
                                    : (spreads[d] + fabs(wanted) * total_error) / total +
                                          fabs(wanted) * weight_error;

        out->absolute = fmax(out->absolute, fabs(got - wanted));
        note(out, &out->output, fabs(got - wanted),
             bound + rounding_of(run->args.output.dtype, wanted), "output", place, d);
    }
    if (run->args.lse.dtype != PKV_DTYPE_NONE) {
        double wanted = total == 0.0 ? -INFINITY : maximum + log(total);
        double got = (double)attention_run_lse(run, place->token, place->head);
        double bound = 1e-6 + 0x1p-22 * fabs(wanted) + (total == 0.0 ? 0.0 : total_error / total);

        note(out, &out->lse, got == wanted ? 0.0 : fabs(got - wanted), bound, "lse", place, 0);
    }
    free(sums);
    free(spreads);
    free(logits);
}

void attention_run_compare(const struct attention_run *run, struct attention_error *out) {
    const struct attention_case *c = &run->c;
    const int64_t *stride = run->args.query.stride;
    int32_t group_size = c->num_query_heads / c->num_kv_heads;
    double *query = malloc((size_t)c->head_size * sizeof *query);

    memset(out, 0, sizeof *out);
    out->largest_logit = -INFINITY;
    if (query == NULL) {
        abort();
    }
    for (int32_t i = 0; i < c->num_requests; i++) {
        struct place place = {.request = i,
                              .num_queries = c->query_lens[i],
                              .seq_len = ((const int32_t *)run->lens.host)[i]};

        for (int64_t kv_head = 0; kv_head < c->num_kv_heads; kv_head++) {
            struct content content;

            read_content(run, i, kv_head, &content);
            for (place.query = 0; place.query < place.num_queries; place.query++) {
                place.token = ((const int32_t *)run->starts.host)[i] + place.query;
                place.position = place.seq_len - place.num_queries + place.query;
                for (int32_t member = 0; member < group_size; member++) {
                    place.head = kv_head * group_size + member;
                    for (int64_t d = 0; d < c->head_size; d++) {
                        query[d] =
                            tensor_decode(run->query.host, c->query_dtype,
                                          place.token * stride[0] + place.head * stride[1] + d);
                    }
                    compare_row(run, &place, query, &content, out);
                }
            }
            free(content.keys);
            free(content.values);
        }
    }
    free(query);
    const char *damage = attention_run_damage(run, run->num_tokens);
    if (damage != NULL) {
        out->output = INFINITY;
        (void)snprintf(out->where, sizeof out->where, "%s was written to", damage);
    }
}
