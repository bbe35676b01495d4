/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of up to 64 query rows (prefill, large groups): bound by arithmetic. Included by one
 * file for each instruction set, behind attend_few_template.h.
 *
 * The one idea: lanes are query rows. The query is packed once as [panel][dimension][2 vectors of
 * rows]; each element of a key is broadcast, so that scores come out as [key][row], softmax needs
 * no step across lanes, and nothing but the query is ever transposed. Values are packed as
 * [panel][key][2 vectors of columns], weights are broadcast. Both products are one register block.
 *
 * Where VECTOR_HAS_PAIRS is set, an element may be a pair of bfloat16 whose products are added
 * to a float (attend_avx512bf16.h); everything here but packing and softmax is the same for it. */

/* Two vectors: the width of a panel. */
#define PANEL (2 * VECTOR_WIDTH)

/* Rows of the register block: 12 sums, 2 vectors of the right side and 1 of the left are 15
 * registers, and 8 loads for 12 multiply-adds stay below what a core can load meanwhile. */
#define MANY_BLOCK 6

/* Floats of a row behind the last one, so that rows do not fall on the same cache sets. */
#define MANY_PAD 16

/* Bytes of an element of the left side: a float or a pair. */
#define MANY_ELEMENT 4

/* Rows rounded up to panels, and the columns of the accumulator that hold something. */
INLINE int32_t many_panels(int32_t count) {
    return (count + PANEL - 1) / PANEL * PANEL;
}

/* ---- Packing */

#if VECTOR_HAS_TRANSPOSE
/* Panels of rows by blocks of VECTOR_WIDTH x VECTOR_WIDTH. */
NOINLINE void many_pack_query(const struct pkvi_cpu_tile *tile, int32_t row_pitch) {
    float *packed = tile->scratch->packed_query;
    int32_t head_size = tile->op->cache.head_size;

    for (int32_t row = 0; row < row_pitch; row += VECTOR_WIDTH) {
        const float *query = tile->scratch->query + (int64_t)row * tile->query_pitch;
        float *target = packed + (int64_t)(row / PANEL * PANEL) * head_size + row % PANEL;

        for (int32_t d = 0; d < head_size; d += VECTOR_WIDTH) {
            vector block[VECTOR_WIDTH];

            UNROLL
            for (int i = 0; i < VECTOR_WIDTH; i++) {
                block[i] = row + i < tile->num_rows ? vector_load(query + i * tile->query_pitch + d)
                                                    : vector_zero();
            }
            vector_transpose(block);
            UNROLL
            for (int i = 0; i < VECTOR_WIDTH; i++) {
                vector_store(target + (int64_t)(d + i) * PANEL, block[i]);
            }
        }
    }
}
#else
/* Rows [num_rows, row_pitch) are zero. */
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
#endif

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

/* Keys as rows of floats, whose addresses take the place of the cache's. */
INLINE void many_pack_keys(const struct pkvi_cpu_tile *tile,
                           struct pkvi_cpu_rows *rows,
                           const pkv_dtype dtype) {
    const int32_t head_size = tile->op->cache.head_size;
    const int64_t pitch = (head_size + VECTOR_WIDTH - 1) / VECTOR_WIDTH * VECTOR_WIDTH + MANY_PAD;
    float *keys = tile->scratch->keys;

    for (int32_t t = 0; t < rows->count; t++) {
        many_convert(keys + t * pitch, rows->key[t], head_size, dtype);
        rows->key[t] = (const unsigned char *)(const void *)(keys + t * pitch);
    }
}

/* Values as [panel][key][PANEL]; columns behind v_head_size are zero. */
INLINE void many_pack_values(const struct pkvi_cpu_tile *tile,
                             const struct pkvi_cpu_rows *rows,
                             const pkv_dtype dtype) {
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int32_t head_size = tile->op->cache.v_head_size;
    const int64_t whole = head_size - head_size % VECTOR_WIDTH;
    float *values = tile->scratch->values;

    for (int32_t t = 0; t < rows->count; t++) {
        const unsigned char *value = rows->value[t];
        float *target = values + (int64_t)t * PANEL;

        for (int64_t d = 0; d < many_panels(head_size); d += VECTOR_WIDTH) {
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

/* Rows that a later part of the walk loads: whole rows between register blocks, into the second
 * cache, since the first is full of what the products use. */
struct many_ahead {
    const unsigned char *const *rows;
    int64_t row_size;
    int32_t count, row, rows_per_call;
};

/* Spread `count` rows over the register blocks of a product of `num_rows` x `num_columns`. */
INLINE struct many_ahead many_spread(const unsigned char *const *rows,
                                     int32_t count,
                                     int64_t row_size,
                                     int32_t num_rows,
                                     int32_t num_columns) {
    int32_t num_calls = num_columns / PANEL * (num_rows / MANY_BLOCK + 1);
    struct many_ahead ahead = {
        .rows = rows,
        .row_size = row_size,
        .count = count,
        .rows_per_call = (count + num_calls - 1) / num_calls,
    };

    return ahead;
}

INLINE void many_fetch_ahead(struct many_ahead *ahead) {
    for (int32_t i = 0; i < ahead->rows_per_call && ahead->row < ahead->count; i++, ahead->row++) {
        for (int64_t x = 0; x < ahead->row_size; x += LINE) {
            __builtin_prefetch(ahead->rows[ahead->row] + x, 0, 2);
        }
    }
}

/* ---- The register block, used for both products */

/* The left side: element (i, k) stands in rows[i] at k, or in line k at i. */
struct many_left {
    const unsigned char *const *rows; /* NULL: lines */
    const unsigned char *lines;
    int64_t line_size;
};

INLINE vector many_broadcast(const struct many_left *left, int i, int64_t k, const bool has_rows) {
    float element;

    memcpy(&element,
           has_rows ? left->rows[i] + k * MANY_ELEMENT
                    : left->lines + k * left->line_size + i * MANY_ELEMENT,
           sizeof element);
    return vector_set(element);
}

INLINE vector many_multiply_add(vector a, vector b, vector sum, const bool is_pairs) {
#if VECTOR_HAS_PAIRS
    if (is_pairs) {
        return vector_dot_pairs(a, b, sum);
    }
#endif
    (void)is_pairs;
    return vector_fma(a, b, sum);
}

/* target[i][0 .. PANEL) = sum over k of left(i, k) * right[k][0 .. PANEL) for i < num_rows; with
 * `factor`, behind factor[i] * target[i]. */
INLINE void many_block(float *target,
                       int64_t target_pitch,
                       const struct many_left left,
                       const float *right,
                       int64_t num_k,
                       const float *factor,
                       const bool is_pairs,
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
    UNROLL_BY_4
    for (int64_t k = 0; k < num_k; k++) {
        vector right0 = vector_load(right + k * PANEL);
        vector right1 = vector_load(right + k * PANEL + VECTOR_WIDTH);

        UNROLL
        for (int i = 0; i < num_rows; i++) {
            vector element = many_broadcast(&left, i, k, factor == NULL);

            sums[i][0] = many_multiply_add(element, right0, sums[i][0], is_pairs);
            sums[i][1] = many_multiply_add(element, right1, sums[i][1], is_pairs);
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
                        struct many_left left,
                        const float *right,
                        int64_t num_k,
                        const float *factor,
                        const bool is_pairs,
                        int64_t num_rows,
                        struct many_ahead *ahead) {
    int64_t i = 0;

#define MANY_RUN(count)                                                                            \
    many_block(target + i * target_pitch, target_pitch, left, right, num_k,                        \
               factor == NULL ? NULL : factor + i, is_pairs, count);                               \
    i += count;                                                                                    \
    left.rows = factor == NULL ? left.rows + count : NULL;                                         \
    left.lines = factor == NULL ? NULL : left.lines + count * MANY_ELEMENT
    while (i + MANY_BLOCK <= num_rows) {
        many_fetch_ahead(ahead);
        MANY_RUN(MANY_BLOCK);
    }
    if (i + 4 <= num_rows) {
        MANY_RUN(4);
    }
    if (i + 2 <= num_rows) {
        MANY_RUN(2);
    }
#undef MANY_RUN
}

/* ---- One step of keys */

/* scores[key][row_pitch] of all panels of rows, of `num_k` elements a row; meanwhile the values
 * of `rows` are fetched. An odd last key is used twice. */
INLINE void many_scores(const struct pkvi_cpu_tile *tile,
                        struct pkvi_cpu_rows *rows,
                        int32_t row_pitch,
                        int64_t num_k,
                        const bool is_pairs) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int32_t count = rows->count + rows->count % 2;
    const struct many_left left = {.rows = rows->key};
    struct many_ahead ahead = many_spread(rows->value, rows->count,
                                          tile->op->cache.v_head_size *
                                              (int64_t)pkv_dtype_size(tile->op->args.v_cache.dtype),
                                          count, row_pitch);

    rows->key[count - 1] = rows->key[rows->count - 1];
    for (int32_t panel = 0; panel < row_pitch; panel += PANEL) {
        many_blocks(scratch->scores + panel, row_pitch, left, scratch->packed_query + panel * num_k,
                    num_k, NULL, is_pairs, count, &ahead);
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

/* accumulator = factor * accumulator + weights * values, of `num_k` lines of weights; meanwhile
 * the keys of `next` are fetched. `max_k` is num_k of a full step. */
INLINE void many_values(const struct pkvi_cpu_tile *tile,
                        const struct pkvi_cpu_rows *next,
                        const float *weights,
                        int64_t num_k,
                        int64_t max_k,
                        const bool is_pairs) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int32_t num_rows = tile->num_rows + tile->num_rows % 2;
    int32_t num_columns = many_panels(tile->op->cache.v_head_size);
    const struct many_left left = {
        .lines = (const unsigned char *)(const void *)weights,
        .line_size = (int64_t)many_panels(tile->num_rows) * MANY_ELEMENT,
    };
    struct many_ahead ahead = many_spread(next->key, next->count,
                                          tile->op->cache.head_size *
                                              (int64_t)pkv_dtype_size(tile->op->args.k_cache.dtype),
                                          num_rows, num_columns);

    for (int32_t d = 0; d < num_columns; d += PANEL) {
        many_blocks(scratch->accumulator + d, tile->accumulator_pitch, left,
                    scratch->values + d * max_k, num_k, scratch->factor, is_pairs, num_rows,
                    &ahead);
    }
}

/* ---- The walk over the keys of a tile, the same for every kind of keys and
 * values */

struct many_kind {
    void (*pack_query)(const struct pkvi_cpu_tile *tile, int32_t row_pitch);
    /* scores[key][row_pitch]; may change the addresses of keys. */
    void (*scores)(const struct pkvi_cpu_tile *tile, struct pkvi_cpu_rows *now, int32_t row_pitch);
    void (*softmax)(struct pkvi_cpu_scratch *scratch, int32_t count, int32_t row_pitch);
    void (*values)(const struct pkvi_cpu_tile *tile,
                   const struct pkvi_cpu_rows *now,
                   const struct pkvi_cpu_rows *next);
};

/* Addresses of the keys of the step that starts at `first`; none behind the end. */
INLINE void many_find(const struct pkvi_cpu_tile *tile, int64_t first, struct pkvi_cpu_rows *out) {
    int64_t left = tile->end_key - first;

    pkvi_cpu_find_rows(tile, first,
                       left <= 0                   ? 0
                       : left < PKVI_CPU_MANY_KEYS ? (int32_t)left
                                                   : PKVI_CPU_MANY_KEYS,
                       NULL, out);
}

NOINLINE void many_walk(struct pkvi_cpu_tile *tile, const struct many_kind *kind) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;
    int32_t row_pitch = many_panels(tile->num_rows);
    const float softcap = tile->op->args.softcap;
    struct pkvi_cpu_rows rows[2];
    int current = 0;

    tile->accumulator_pitch = many_panels(tile->op->cache.v_head_size) + MANY_PAD;
    kind->pack_query(tile, row_pitch);
    for (int32_t row = 0; row < row_pitch; row++) {
        scratch->maximum[row] = -INFINITY;
        scratch->sum[row] = scratch->rounded_sum[row] = 0.0f;
    }
    memset(scratch->accumulator, 0,
           (size_t)row_pitch * (size_t)tile->accumulator_pitch * sizeof(float));
    many_find(tile, tile->first_key, &rows[0]);
    for (int64_t first = tile->first_key; first < tile->end_key; first += PKVI_CPU_MANY_KEYS) {
        struct pkvi_cpu_rows *now = &rows[current], *next = &rows[1 - current];
        int32_t count = now->count;

        many_find(tile, first + PKVI_CPU_MANY_KEYS, next);
        kind->scores(tile, now, row_pitch);
        pkvi_cpu_scale_scores(tile, first, count, row_pitch, scratch->scores);
        if (softcap > 0.0f) {
            soft_cap_scores(softcap, scratch->scores, count * row_pitch);
        }
        pkvi_cpu_bias_scores(tile, first, count, row_pitch, scratch->scores);
        if (pkvi_cpu_needs_mask(tile, first, count)) {
            pkvi_cpu_mask_scores(tile, first, count, row_pitch, scratch->scores);
        }
        kind->softmax(scratch, count, row_pitch);
        pkvi_cpu_scale_weights(tile, first, count, row_pitch, scratch->scores);
        kind->values(tile, now, next);
        current = 1 - current;
    }
}

/* ---- Floats */

NOINLINE void many_float_scores(const struct pkvi_cpu_tile *tile,
                                struct pkvi_cpu_rows *now,
                                int32_t row_pitch) {
    many_scores(tile, now, row_pitch, tile->op->cache.head_size, false);
}

NOINLINE void many_float_values(const struct pkvi_cpu_tile *tile,
                                const struct pkvi_cpu_rows *next,
                                int32_t count) {
    many_values(tile, next, tile->scratch->scores, count, PKVI_CPU_MANY_KEYS, false);
}

/* Keys that are floats already are used where they lie. */
#define MANY_KIND(name, dtype)                                                                     \
    static void many_scores_##name(const struct pkvi_cpu_tile *tile, struct pkvi_cpu_rows *now,    \
                                   int32_t row_pitch) {                                            \
        if (dtype != PKV_DTYPE_FLOAT32) {                                                          \
            many_pack_keys(tile, now, dtype);                                                      \
        }                                                                                          \
        many_float_scores(tile, now, row_pitch);                                                   \
    }                                                                                              \
    static void many_values_##name(const struct pkvi_cpu_tile *tile,                               \
                                   const struct pkvi_cpu_rows *now,                                \
                                   const struct pkvi_cpu_rows *next) {                             \
        many_pack_values(tile, now, dtype);                                                        \
        many_float_values(tile, next, now->count);                                                 \
    }                                                                                              \
    static const struct many_kind many_##name = {many_pack_query, many_scores_##name,              \
                                                 many_softmax, many_values_##name};

MANY_KIND(float32, PKV_DTYPE_FLOAT32)
MANY_KIND(float16, PKV_DTYPE_FLOAT16)
MANY_KIND(bfloat16, PKV_DTYPE_BFLOAT16)
MANY_KIND(e4m3, PKV_DTYPE_FLOAT8_E4M3)
MANY_KIND(int8, PKV_DTYPE_INT8)

static void attend_many(struct pkvi_cpu_tile *tile) {
    switch (tile->op->args.k_cache.dtype) {
    case PKV_DTYPE_FLOAT16:
        many_walk(tile, &many_float16);
        break;
    case PKV_DTYPE_BFLOAT16:
        many_walk(tile, &many_bfloat16);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        many_walk(tile, &many_e4m3);
        break;
    case PKV_DTYPE_INT8:
        many_walk(tile, &many_int8);
        break;
    default:
        many_walk(tile, &many_float32);
        break;
    }
}
