/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of up to 64 query rows (prefill, large groups): bound by arithmetic. Included by one
 * file for each instruction set, behind attend_few_template.h.
 *
 * The one idea: lanes are query rows. The query is packed once as [panel][dimension][2 vectors of
 * rows]; keys are converted to float once for each step and broadcast, so that scores come out as
 * [key][row], softmax needs no step across lanes, and nothing but the query is ever transposed.
 * Values are packed as [panel][key][2 vectors of columns], weights are broadcast. */

/* Two vectors: the width of a panel. */
#define PANEL (2 * VECTOR_WIDTH)

/* Rows of the register block: MANY_BLOCK * 2 accumulators, 2 loads, 1 broadcast. */
#ifndef MANY_BLOCK
#define MANY_BLOCK 6
#endif

/* Floats of a row behind the last one, so that rows do not fall on the same cache sets. */
#define MANY_PAD 16

/* ---- Packing */

/* Rows [num_rows, row_pitch) and columns behind head_size are zero. */
NOINLINE void many_pack_query(const struct pkvi_cpu_tile *tile, int32_t row_pitch) {
    const float *query = tile->scratch->query;
    float *packed = tile->scratch->packed_query;
    int32_t head_size = tile->op->cache.head_size;

    for (int32_t panel = 0; panel < row_pitch; panel += PANEL) {
        for (int32_t d = 0; d < head_size; d++) {
            for (int32_t row = panel; row < panel + PANEL; row++) {
                *packed++ =
                    row < tile->num_rows ? query[(int64_t)row * tile->query_pitch + d] : 0.0f;
            }
        }
    }
}

/* Convert one row to floats. */
INLINE void many_convert(float *target,
                         const unsigned char *source,
                         int64_t count,
                         const pkv_dtype dtype) {
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int64_t whole = count - count % VECTOR_WIDTH;
    int64_t d = 0;

    for (; d < whole; d += VECTOR_WIDTH) {
        vector_store(target + d, vector_load_kv(source + d * size, dtype));
    }
    if (d < count) {
        vector_store(target + d, vector_load_kv_half(source + d * size, dtype));
    }
}

/* Keys as [key][pitch]; up to one row of zeros makes their number even. */
INLINE void many_pack_keys(const struct pkvi_cpu_tile *tile,
                           const struct pkvi_cpu_rows *rows,
                           int64_t pitch,
                           const pkv_dtype dtype) {
    float *keys = tile->scratch->keys;

    for (int32_t t = 0; t < rows->count; t++) {
        many_convert(keys + t * pitch, rows->key[t], tile->op->cache.head_size, dtype);
    }
    if (rows->count % 2 != 0) {
        memset(keys + rows->count * pitch, 0, (size_t)pitch * sizeof(float));
    }
}

/* Values as [panel][key][PANEL]; columns behind v_head_size are zero. */
INLINE void many_pack_values(const struct pkvi_cpu_tile *tile,
                             const struct pkvi_cpu_rows *rows,
                             const pkv_dtype dtype) {
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int64_t head_size = tile->op->cache.v_head_size;
    const int64_t whole = head_size - head_size % VECTOR_WIDTH;
    float *values = tile->scratch->values;

    for (int32_t t = 0; t < rows->count; t++) {
        const unsigned char *value = rows->value[t];
        float *target = values + (int64_t)t * PANEL;

        for (int64_t d = 0; d < tile->accumulator_pitch; d += VECTOR_WIDTH) {
            vector v = vector_zero();

            if (d < whole) {
                v = vector_load_kv(value + d * size, dtype);
            } else if (d < head_size) {
                v = vector_load_kv_half(value + d * size, dtype);
            }
            vector_store(target + d / PANEL * (PKVI_CPU_MANY_KEYS * PANEL) + d % PANEL, v);
        }
    }
}

/* ---- Fetching ahead */

/* Rows that a later part of the walk loads: fetched a few lines at a time between register blocks,
 * since this memory is often behind the caches. */
struct many_ahead {
    const unsigned char *const *rows;
    int64_t row_size, offset;
    int32_t count, row, lines_per_call;
};

/* Spread the lines of `count` rows over `num_calls` calls of many_fetch_ahead. */
INLINE struct many_ahead many_spread(const unsigned char *const *rows,
                                     int32_t count,
                                     int64_t row_size,
                                     int64_t num_calls) {
    int64_t num_lines = count * ((row_size + LINE - 1) / LINE);
    struct many_ahead ahead = {
        .rows = rows,
        .row_size = row_size,
        .count = count,
        .lines_per_call = (int32_t)((num_lines + num_calls - 1) / num_calls),
    };

    return ahead;
}

INLINE void many_fetch_ahead(struct many_ahead *ahead) {
    for (int32_t i = 0; i < ahead->lines_per_call && ahead->row < ahead->count; i++) {
        __builtin_prefetch(ahead->rows[ahead->row] + ahead->offset);
        ahead->offset += LINE;
        if (ahead->offset >= ahead->row_size) {
            ahead->offset = 0;
            ahead->row++;
        }
    }
}

/* ---- The register block, used for both products */

/* target[i][0 .. PANEL) += sum over k of left(i, k) * right[k][0 .. PANEL), for i < num_rows.
 * `left` steps by left_row from row to row and by left_k from k to k. */
INLINE void many_block(float *target,
                       int64_t target_pitch,
                       const float *left,
                       const int64_t left_row,
                       const int64_t left_k,
                       const float *right,
                       int64_t num_k,
                       const float *factor,
                       const int num_rows) {
    vector sums[MANY_BLOCK][2];

    UNROLL
    for (int i = 0; i < num_rows; i++) {
        if (factor == NULL) {
            sums[i][0] = vector_zero();
            sums[i][1] = vector_zero();
        } else {
            vector scale = vector_set(factor[i]);

            sums[i][0] = vector_multiply(scale, vector_load(target + i * target_pitch));
            sums[i][1] =
                vector_multiply(scale, vector_load(target + i * target_pitch + VECTOR_WIDTH));
        }
    }
    for (int64_t k = 0; k < num_k; k++) {
        vector right0 = vector_load(right + k * PANEL);
        vector right1 = vector_load(right + k * PANEL + VECTOR_WIDTH);

        UNROLL
        for (int i = 0; i < num_rows; i++) {
            vector scale = vector_set(left[i * left_row + k * left_k]);

            sums[i][0] = vector_fma(scale, right0, sums[i][0]);
            sums[i][1] = vector_fma(scale, right1, sums[i][1]);
        }
    }
    UNROLL
    for (int i = 0; i < num_rows; i++) {
        vector_store(target + i * target_pitch, sums[i][0]);
        vector_store(target + i * target_pitch + VECTOR_WIDTH, sums[i][1]);
    }
}

/* Blocks of MANY_BLOCK rows, then of 4 and 2; num_rows is even. */
INLINE void many_blocks(float *target,
                        int64_t target_pitch,
                        const float *left,
                        const int64_t left_row,
                        const int64_t left_k,
                        const float *right,
                        int64_t num_k,
                        const float *factor,
                        int64_t num_rows,
                        struct many_ahead *ahead) {
    int64_t i = 0;

#define MANY_RUN(rows)                                                                             \
    many_block(target + i * target_pitch, target_pitch, left + i * left_row, left_row, left_k,     \
               right, num_k, factor == NULL ? NULL : factor + i, rows)
    for (; i + MANY_BLOCK <= num_rows; i += MANY_BLOCK) {
        many_fetch_ahead(ahead);
        MANY_RUN(MANY_BLOCK);
    }
    for (; i + 4 <= num_rows; i += 4) {
        MANY_RUN(4);
    }
    for (; i + 2 <= num_rows; i += 2) {
        MANY_RUN(2);
    }
#undef MANY_RUN
}

/* ---- One step of keys */

/* scores[key][row_pitch] of all panels of rows; meanwhile the values of `rows` are fetched. */
NOINLINE void many_scores(const struct pkvi_cpu_tile *tile,
                          const struct pkvi_cpu_rows *rows,
                          int32_t row_pitch,
                          int64_t key_pitch) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int64_t head_size = tile->op->cache.head_size;
    int32_t count = rows->count;
    int64_t num_calls = (row_pitch / PANEL) * (int64_t)(count / MANY_BLOCK + 1);
    struct many_ahead ahead = many_spread(rows->value, count,
                                          tile->op->cache.v_head_size *
                                              (int64_t)pkv_dtype_size(tile->op->args.v_cache.dtype),
                                          num_calls);

    for (int32_t panel = 0; panel < row_pitch; panel += PANEL) {
        many_blocks(scratch->scores + panel, row_pitch, scratch->keys, key_pitch, 1,
                    scratch->packed_query + panel * head_size, head_size, NULL, count + count % 2,
                    &ahead);
    }
}

/* Scores become weights; maximum, sum and factor are per row. */
NOINLINE void many_softmax(struct pkvi_cpu_scratch *scratch, int32_t count, int32_t row_pitch) {
    for (int32_t row = 0; row < row_pitch; row += VECTOR_WIDTH) {
        float *scores = scratch->scores + row;
        vector before = vector_load(scratch->maximum + row);
        vector maximum = before;
        vector sum = vector_zero();

        for (int32_t t = 0; t < count; t++) {
            maximum = vector_max(maximum, vector_load(scores + (int64_t)t * row_pitch));
        }
        vector_store(scratch->maximum + row, maximum);
        maximum = vector_replace_minus_infinity(maximum, vector_zero());
        vector factor = vector_exp2(vector_subtract(before, maximum));
        for (int32_t t = 0; t < count; t++) {
            vector weight =
                vector_exp2(vector_subtract(vector_load(scores + (int64_t)t * row_pitch), maximum));

            vector_store(scores + (int64_t)t * row_pitch, weight);
            sum = vector_add(sum, weight);
        }
        vector_store(scratch->factor + row, factor);
        vector_store(scratch->sum + row, vector_fma(vector_load(scratch->sum + row), factor, sum));
    }
}

/* accumulator = factor * accumulator + weights * values; meanwhile the keys of `next` are
 * fetched. */
NOINLINE void many_values(const struct pkvi_cpu_tile *tile,
                          const struct pkvi_cpu_rows *next,
                          int32_t count,
                          int32_t row_pitch) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int32_t num_rows = tile->num_rows + tile->num_rows % 2;
    int64_t num_calls = (tile->accumulator_pitch / PANEL) * (int64_t)(num_rows / MANY_BLOCK + 1);
    struct many_ahead ahead = many_spread(next->key, next->count,
                                          tile->op->cache.head_size *
                                              (int64_t)pkv_dtype_size(tile->op->args.k_cache.dtype),
                                          num_calls);

    for (int32_t d = 0; d < tile->accumulator_pitch; d += PANEL) {
        many_blocks(scratch->accumulator + d, tile->accumulator_pitch, scratch->scores, 1,
                    row_pitch, scratch->values + (int64_t)d / PANEL * (PKVI_CPU_MANY_KEYS * PANEL),
                    count, scratch->factor, num_rows, &ahead);
    }
}

/* Keys of the step that starts at `first`. */
INLINE int32_t many_count(const struct pkvi_cpu_tile *tile, int64_t first) {
    int64_t left = tile->end_key - first;

    return left <= 0 ? 0 : left < PKVI_CPU_MANY_KEYS ? (int32_t)left : PKVI_CPU_MANY_KEYS;
}

INLINE void many_template(struct pkvi_cpu_tile *tile, const pkv_dtype dtype) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int32_t row_pitch = (tile->num_rows + PANEL - 1) / PANEL * PANEL;
    int64_t key_pitch =
        (tile->op->cache.head_size + VECTOR_WIDTH - 1) / VECTOR_WIDTH * VECTOR_WIDTH + MANY_PAD;
    const float softcap = tile->op->args.softcap;
    struct pkvi_cpu_rows rows[2];
    int current = 0;

    many_pack_query(tile, row_pitch);
    for (int32_t row = 0; row < row_pitch; row++) {
        scratch->maximum[row] = -INFINITY;
        scratch->sum[row] = 0.0f;
    }
    memset(scratch->accumulator, 0,
           (size_t)row_pitch * (size_t)tile->accumulator_pitch * sizeof(float));
    pkvi_cpu_find_rows(tile, tile->first_key, many_count(tile, tile->first_key), &rows[0]);
    for (int64_t first = tile->first_key; first < tile->end_key; first += PKVI_CPU_MANY_KEYS) {
        const struct pkvi_cpu_rows *now = &rows[current];
        struct pkvi_cpu_rows *next = &rows[1 - current];
        int32_t count = now->count;

        pkvi_cpu_find_rows(tile, first + PKVI_CPU_MANY_KEYS,
                           many_count(tile, first + PKVI_CPU_MANY_KEYS), next);
        many_pack_keys(tile, now, key_pitch, dtype);
        many_scores(tile, now, row_pitch, key_pitch);
        pkvi_cpu_scale_scores(tile, first, count, row_pitch, scratch->scores);
        if (softcap > 0.0f) {
            soft_cap_scores(softcap, scratch->scores, count * row_pitch);
        }
        pkvi_cpu_bias_scores(tile, first, count, row_pitch, scratch->scores);
        pkvi_cpu_mask_scores(tile, first, count, row_pitch, scratch->scores);
        many_softmax(scratch, count, row_pitch);
        pkvi_cpu_scale_weights(tile, first, count, row_pitch, scratch->scores);
        many_pack_values(tile, now, dtype);
        many_values(tile, next, count, row_pitch);
        current = 1 - current;
    }
}

#define MANY_INSTANCE(name, dtype)                                                                 \
    static void many_##name(struct pkvi_cpu_tile *tile) {                                          \
        many_template(tile, dtype);                                                                \
    }

MANY_INSTANCE(float32, PKV_DTYPE_FLOAT32)
MANY_INSTANCE(float16, PKV_DTYPE_FLOAT16)
MANY_INSTANCE(bfloat16, PKV_DTYPE_BFLOAT16)
MANY_INSTANCE(e4m3, PKV_DTYPE_FLOAT8_E4M3)
MANY_INSTANCE(int8, PKV_DTYPE_INT8)

static void attend_many(struct pkvi_cpu_tile *tile) {
    switch (tile->op->args.k_cache.dtype) {
    case PKV_DTYPE_FLOAT16:
        many_float16(tile);
        break;
    case PKV_DTYPE_BFLOAT16:
        many_bfloat16(tile);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        many_e4m3(tile);
        break;
    case PKV_DTYPE_INT8:
        many_int8(tile);
        break;
    default:
        many_float32(tile);
        break;
    }
}
