/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of up to 8 query rows (decode): bound by memory. Included by one file for each
 * instruction set, behind its vector header.
 *
 * The one idea: keys are read row by row in address order and each vector of a key is used for
 * every query row at once; meanwhile the values of the same step are fetched, and while the values
 * are used, the keys of the next step. Scores stand as [key][row], so that softmax runs over whole
 * vectors and the weights of one key lie side by side.
 *
 * Row counts are padded to 1, 2, 4 or 8 with zero queries, whose results nobody reads. */
#include <string.h>

#include "kernels/cpu/cpu.h"

/* Accumulators that are in flight at once: enough to hide the latency of a fused multiply-add. */
#define FEW_ACCUMULATORS 8

/* Bytes of a cache line. */
#define LINE 64

/* Steps ahead whose addresses are found, and their pages touched, so that address translation is
 * warm when they come; and the places of the ring that holds them. */
#define TOUCH_STEPS 3
#define RING (TOUCH_STEPS + 1)

/* Fetch a row of `size` bytes. */
INLINE void few_prefetch(const unsigned char *row, int64_t size) {
    for (int64_t x = 0; x < size; x += LINE) {
        __builtin_prefetch(row + x);
    }
}

/* scores[key][row] = query row . key, for the tokens of one register block. */
INLINE void few_block(const struct pkvi_cpu_tile *tile,
                      const unsigned char *const *keys,
                      float *scores,
                      const pkv_dtype dtype,
                      const int num_rows) {
    const float *query = tile->scratch->query;
    const int64_t pitch = tile->query_pitch;
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int64_t head_size = tile->op->cache.head_size;
    const int64_t whole = head_size - head_size % VECTOR_WIDTH;
    const int num_tokens = FEW_ACCUMULATORS / num_rows;
    vector sums[FEW_ACCUMULATORS];

    UNROLL
    for (int i = 0; i < FEW_ACCUMULATORS; i++) {
        sums[i] = vector_zero();
    }
    for (int64_t d = 0; d < head_size; d += VECTOR_WIDTH) {
        vector k[FEW_ACCUMULATORS];

        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            k[i] = VECTOR_WIDTH <= PKV_HEAD_SIZE_STEP || d < whole
                       ? vector_load_kv(keys[i] + d * size, dtype)
                       : vector_load_kv_half(keys[i] + d * size, dtype);
        }
        UNROLL
        for (int row = 0; row < num_rows; row++) {
            vector q = vector_keep(vector_load(query + row * pitch + d));

            UNROLL
            for (int i = 0; i < num_tokens; i++) {
                sums[i * num_rows + row] = vector_fma(k[i], q, sums[i * num_rows + row]);
            }
        }
    }
    vector_store_sums(scores, sums, FEW_ACCUMULATORS);
}

/* Scores of all keys of a step; meanwhile its values are fetched. The last block may score its last
 * key again, behind what anybody reads: so the sum of a key never depends on its neighbours. */
INLINE void few_scores(const struct pkvi_cpu_tile *tile,
                       const struct pkvi_cpu_rows *rows,
                       float *scores,
                       const pkv_dtype dtype,
                       const int num_rows) {
    const int64_t value_size = tile->op->cache.v_head_size * (int64_t)pkv_dtype_size(dtype);
    const int num_tokens = FEW_ACCUMULATORS / num_rows;

    for (int32_t t = 0; t < rows->count; t += num_tokens) {
        const unsigned char *keys[FEW_ACCUMULATORS];

        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            int32_t token = t + i < rows->count ? t + i : rows->count - 1;

            keys[i] = rows->key[token];
            few_prefetch(rows->value[token], value_size);
        }
        few_block(tile, keys, scores + (int64_t)t * num_rows, dtype, num_rows);
    }
}

/* Softmax state of the rows: lane i of each vector belongs to row i % num_rows. */
struct few_state {
    float maximum[VECTOR_WIDTH];
    float sum[VECTOR_WIDTH];
    float factor[VECTOR_WIDTH]; /* what the accumulator is to be multiplied by */
    bool has_factor;
};

/* The largest of each row's lanes, in all of its lanes. */
INLINE void few_fold_maximum(float *lanes, const int num_rows) {
    for (int row = 0; row < num_rows; row++) {
        float largest = lanes[row];

        for (int lane = row + num_rows; lane < VECTOR_WIDTH; lane += num_rows) {
            largest = lanes[lane] > largest ? lanes[lane] : largest;
        }
        for (int lane = row; lane < VECTOR_WIDTH; lane += num_rows) {
            lanes[lane] = largest;
        }
    }
}

/* scores become weights; the state takes them in. `count` is padded with -inf to whole vectors. */
INLINE void few_softmax(struct few_state *state, float *scores, int32_t count, const int num_rows) {
    vector maximum = vector_load(state->maximum);
    vector before = maximum;
    vector sum = vector_load(state->sum);

    for (; count % VECTOR_WIDTH != 0; count++) {
        scores[count] = -INFINITY;
    }
    for (int32_t i = 0; i < count; i += VECTOR_WIDTH) {
        maximum = vector_max(maximum, vector_load(scores + i));
    }
    state->has_factor = vector_any_greater(maximum, before);
    if (state->has_factor) {
        vector_store(state->maximum, maximum);
        few_fold_maximum(state->maximum, num_rows);
        maximum = vector_load(state->maximum);
        vector factor = vector_exp2(
            vector_subtract(before, vector_replace_minus_infinity(maximum, vector_zero())));
        vector_store(state->factor, factor);
        sum = vector_multiply(sum, factor);
    }
    maximum = vector_replace_minus_infinity(maximum, vector_zero());
    for (int32_t i = 0; i < count; i += VECTOR_WIDTH) {
        vector weight = vector_exp2(vector_subtract(vector_load(scores + i), maximum));

        vector_store(scores + i, weight);
        sum = vector_add(sum, weight);
    }
    vector_store(state->sum, sum);
}

/* The same, compiled once for each number of rows. */
#define FEW_SOFTMAX(rows)                                                                          \
    NOINLINE void few_softmax_##rows(struct few_state *state, float *scores, int32_t count) {      \
        few_softmax(state, scores, count, rows);                                                   \
    }
FEW_SOFTMAX(1)
FEW_SOFTMAX(2)
FEW_SOFTMAX(4)
#if VECTOR_WIDTH >= 8
FEW_SOFTMAX(8)
#endif

INLINE void few_softmax_rows(struct few_state *state,
                             float *scores,
                             int32_t count,
                             const int num_rows) {
    if (num_rows == 1) {
        few_softmax_1(state, scores, count);
    } else if (num_rows == 2) {
        few_softmax_2(state, scores, count);
#if VECTOR_WIDTH >= 8
    } else if (num_rows == 8) {
        few_softmax_8(state, scores, count);
#endif
    } else {
        few_softmax_4(state, scores, count);
    }
}

/* The keys of the next step, which are fetched while the values of this one are used: whole rows in
 * address order, which the processor's own prefetcher follows, and evenly over the slabs. */
struct few_ahead {
    const struct pkvi_cpu_rows *rows;
    int64_t row_size;
    int32_t row, rows_per_call;
};

/* Values of a slab from one call to the next. */
#define AHEAD_STEP 8

INLINE void few_fetch_ahead(struct few_ahead *ahead) {
    for (int32_t i = 0; i < ahead->rows_per_call && ahead->row < ahead->rows->count; i++) {
        few_prefetch(ahead->rows->key[ahead->row++], ahead->row_size);
    }
}

/* accumulator[row][column ...] += sum over keys of weight * value, for `num_vectors` vectors; or
 * for the half vector at the end of a row. */
INLINE void few_slab(const struct pkvi_cpu_tile *tile,
                     const struct pkvi_cpu_rows *rows,
                     struct few_ahead *ahead,
                     const float *weights,
                     const struct few_state *state,
                     int64_t column,
                     const pkv_dtype dtype,
                     const int num_rows,
                     const int num_vectors,
                     const bool is_half) {
    float *accumulator = tile->scratch->accumulator + column;
    const int64_t pitch = tile->accumulator_pitch;
    const int64_t offset = column * (int64_t)pkv_dtype_size(dtype);
    const int64_t step = VECTOR_WIDTH * (int64_t)pkv_dtype_size(dtype);
    vector sums[FEW_ACCUMULATORS];

    UNROLL
    for (int row = 0; row < num_rows; row++) {
        UNROLL
        for (int i = 0; i < num_vectors; i++) {
            vector sum = vector_load(accumulator + row * pitch + i * VECTOR_WIDTH);

            if (state->has_factor) {
                sum = vector_multiply(sum, vector_set(state->factor[row]));
            }
            sums[row * num_vectors + i] = sum;
        }
    }
    for (int32_t t = 0; t < rows->count; t++) {
        const unsigned char *value = rows->value[t] + offset;
        vector v[FEW_ACCUMULATORS];

        if (t % AHEAD_STEP == 0) {
            few_fetch_ahead(ahead);
        }
        UNROLL
        for (int i = 0; i < num_vectors; i++) {
            v[i] = is_half ? vector_load_kv_half(value, dtype)
                           : vector_load_kv(value + i * step, dtype);
        }
        UNROLL
        for (int row = 0; row < num_rows; row++) {
            vector weight = vector_set(weights[t * num_rows + row]);

            UNROLL
            for (int i = 0; i < num_vectors; i++) {
                sums[row * num_vectors + i] = vector_fma(weight, v[i], sums[row * num_vectors + i]);
            }
        }
    }
    UNROLL
    for (int row = 0; row < num_rows; row++) {
        UNROLL
        for (int i = 0; i < num_vectors; i++) {
            vector_store(accumulator + row * pitch + i * VECTOR_WIDTH, sums[row * num_vectors + i]);
        }
    }
}

INLINE void few_values(const struct pkvi_cpu_tile *tile,
                       const struct pkvi_cpu_rows *rows,
                       const struct pkvi_cpu_rows *next,
                       const float *weights,
                       const struct few_state *state,
                       const pkv_dtype dtype,
                       const int num_rows) {
    const int64_t head_size = tile->op->cache.v_head_size;
    const int num_vectors = FEW_ACCUMULATORS / num_rows < 4 ? FEW_ACCUMULATORS / num_rows : 4;
    const int64_t whole = head_size - head_size % VECTOR_WIDTH;
    const int64_t num_slabs =
        (head_size + num_vectors * VECTOR_WIDTH - 1) / (num_vectors * VECTOR_WIDTH);
    struct few_ahead ahead = {
        .rows = next,
        .row_size = tile->op->cache.head_size * (int64_t)pkv_dtype_size(dtype),
        .rows_per_call = (int32_t)((AHEAD_STEP + num_slabs - 1) / num_slabs),
    };
    int64_t d = 0;

    for (; d + num_vectors * VECTOR_WIDTH <= whole; d += num_vectors * VECTOR_WIDTH) {
        few_slab(tile, rows, &ahead, weights, state, d, dtype, num_rows, num_vectors, false);
    }
    for (; num_vectors > 1 && d + VECTOR_WIDTH <= whole; d += VECTOR_WIDTH) {
        few_slab(tile, rows, &ahead, weights, state, d, dtype, num_rows, 1, false);
    }
    if (VECTOR_WIDTH > PKV_HEAD_SIZE_STEP && d < head_size) {
        few_slab(tile, rows, &ahead, weights, state, d, dtype, num_rows, 1, true);
    }
}

/* Keys of the step that starts at `first`. */
INLINE int32_t few_count(const struct pkvi_cpu_tile *tile, int64_t first) {
    int64_t left = tile->end_key - first;

    return left <= 0 ? 0 : left < PKVI_CPU_FEW_KEYS ? (int32_t)left : PKVI_CPU_FEW_KEYS;
}

/* softcap * tanh(x / softcap). With y = |x| / softcap it is (1 - e^(-2y)) / (1 + e^(-2y)) and x's
 * sign: no overflow, and exact at both ends. */
NOINLINE void soft_cap_scores(float softcap, float *scores, int32_t count) {
    const vector inner = vector_set(-2.88539008f / softcap); /* -2 log2(e) / softcap */
    const vector one = vector_set(1.0f);

    for (int32_t i = 0; i < count; i += VECTOR_WIDTH) {
        vector x = vector_load(scores + i);
        vector decay = vector_exp2(vector_multiply(vector_magnitude(x), inner));
        vector result = vector_divide(vector_subtract(one, decay), vector_add(one, decay));

        vector_store(scores + i, vector_copy_sign(vector_multiply(vector_set(softcap), result), x));
    }
}

/* ---- A walk over the keys of a tile, step by step; a kernel brings its scores */

/* Where the keys of the step at `first` and of the TOUCH_STEPS behind it are. */
struct few_walk {
    struct pkvi_cpu_rows rows[RING];
    struct few_state state;
    int64_t first, step, found;
};

INLINE void few_find(const struct pkvi_cpu_tile *tile, struct few_walk *walk) {
    int64_t step = (walk->found - tile->first_key) / PKVI_CPU_FEW_KEYS;

    pkvi_cpu_find_rows(tile, walk->found, few_count(tile, walk->found), &walk->rows[step % RING]);
    walk->found += PKVI_CPU_FEW_KEYS;
}

/* Start with nothing seen, and with rows of zeros behind the tile's. */
INLINE void few_begin(struct pkvi_cpu_tile *tile, struct few_walk *walk, const int num_rows) {
    struct pkvi_cpu_scratch *scratch = tile->scratch;

    for (int lane = 0; lane < VECTOR_WIDTH; lane++) {
        walk->state.maximum[lane] = -INFINITY;
        walk->state.sum[lane] = 0.0f;
        walk->state.factor[lane] = 1.0f;
    }
    for (int32_t row = tile->num_rows; row < num_rows; row++) {
        memset(scratch->query + row * tile->query_pitch, 0,
               (size_t)tile->query_pitch * sizeof(float));
    }
    memset(scratch->accumulator, 0, (size_t)(num_rows * tile->accumulator_pitch) * sizeof(float));
    walk->first = walk->found = tile->first_key;
    walk->step = 0;
    for (int i = 0; i < TOUCH_STEPS; i++) {
        few_find(tile, walk);
    }
}

/* The rows whose scores are due. */
INLINE const struct pkvi_cpu_rows *few_now(const struct few_walk *walk) {
    return &walk->rows[walk->step % RING];
}

/* Scores of these rows become weights, their values are added, and the walk goes on. */
INLINE void few_take(struct pkvi_cpu_tile *tile,
                     struct few_walk *walk,
                     const pkv_dtype dtype,
                     const int num_rows) {
    const struct pkvi_cpu_rows *now = few_now(walk);
    const float softcap = tile->op->args.softcap;
    float *scores = tile->scratch->scores;
    int32_t count = now->count;

    pkvi_cpu_scale_scores(tile, walk->first, count, num_rows, scores);
    if (softcap > 0.0f) {
        soft_cap_scores(softcap, scores, count * num_rows);
    }
    pkvi_cpu_bias_scores(tile, walk->first, count, num_rows, scores);
    pkvi_cpu_mask_scores(tile, walk->first, count, num_rows, scores);
    few_softmax_rows(&walk->state, scores, count * num_rows, num_rows);
    pkvi_cpu_scale_weights(tile, walk->first, count, num_rows, scores);
    few_values(tile, now, &walk->rows[(walk->step + 1) % RING], scores, &walk->state, dtype,
               num_rows);
    walk->first += PKVI_CPU_FEW_KEYS;
    walk->step++;
}

/* Leave maximum and sum of each row in the scratch. */
INLINE void few_end(struct pkvi_cpu_tile *tile, const struct few_walk *walk, const int num_rows) {
    for (int row = 0; row < num_rows; row++) {
        float sum = 0.0f;

        for (int lane = row; lane < VECTOR_WIDTH; lane += num_rows) {
            sum += walk->state.sum[lane];
        }
        tile->scratch->maximum[row] = walk->state.maximum[row];
        tile->scratch->sum[row] = sum;
    }
}

INLINE void few_template(struct pkvi_cpu_tile *tile, const pkv_dtype dtype, const int num_rows) {
    struct few_walk walk;

    few_begin(tile, &walk, num_rows);
    while (walk.first < tile->end_key) {
        few_find(tile, &walk);
        few_scores(tile, few_now(&walk), tile->scratch->scores, dtype, num_rows);
        few_take(tile, &walk, dtype, num_rows);
    }
    few_end(tile, &walk, num_rows);
}

/* One instance for each dtype and padded number of rows. */
#define FEW_INSTANCES(name, dtype)                                                                 \
    static void few_##name(struct pkvi_cpu_tile *tile) {                                           \
        if (tile->num_rows == 1) {                                                                 \
            few_template(tile, dtype, 1);                                                          \
        } else if (tile->num_rows == 2) {                                                          \
            few_template(tile, dtype, 2);                                                          \
        } else if (tile->num_rows <= 4) {                                                          \
            few_template(tile, dtype, 4);                                                          \
        } else {                                                                                   \
            few_template(tile, dtype, FEW_MAX_ROWS);                                               \
        }                                                                                          \
    }

#define FEW_MAX_ROWS (VECTOR_WIDTH < 8 ? 4 : 8)

FEW_INSTANCES(float32, PKV_DTYPE_FLOAT32)
FEW_INSTANCES(float16, PKV_DTYPE_FLOAT16)
FEW_INSTANCES(bfloat16, PKV_DTYPE_BFLOAT16)
FEW_INSTANCES(e4m3, PKV_DTYPE_FLOAT8_E4M3)
FEW_INSTANCES(int8, PKV_DTYPE_INT8)

static void attend_few(struct pkvi_cpu_tile *tile) {
    switch (tile->op->args.k_cache.dtype) {
    case PKV_DTYPE_FLOAT16:
        few_float16(tile);
        break;
    case PKV_DTYPE_BFLOAT16:
        few_bfloat16(tile);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        few_e4m3(tile);
        break;
    case PKV_DTYPE_INT8:
        few_int8(tile);
        break;
    default:
        few_float32(tile);
        break;
    }
}
