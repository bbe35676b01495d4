/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Attention of up to 8 query rows (decode): bound by memory. Included by one file for each
 * instruction set, behind its vector header.
 *
 * The one idea: keys are read row by row in address order and each vector of a key is used for
 * every query row at once; meanwhile the values of the same step are fetched, and while the values
 * are used, the keys of the next step (few_stream.h). Scores stand as [key][row], so that softmax
 * runs over whole vectors and the weights of one key lie side by side.
 *
 * Row counts are padded to 1, 2, 4 or 8 with zero queries, whose results nobody reads. */
#include <string.h>

#include "kernels/cpu/few_walk.h"

/* Accumulators that are in flight at once: enough to hide the latency of a fused multiply-add. */
#define FEW_ACCUMULATORS 8

/* Query rows that share a register block; 8 rows are two groups, which convert the cache twice and
 * in return read half as many weights and query vectors for each multiply-add. */
#define FEW_GROUP 4

/* Keys of a step of the loop over values. */
#define FEW_UNROLL 4

#ifndef VECTOR_LOADS_PAIRS
/* Two vectors of elements that lie side by side; an instruction set may give them in an order that
 * is cheaper, see vector_avx2.h. */
INLINE void vector_load_pair(const unsigned char *source,
                             const pkv_dtype dtype,
                             vector *first,
                             vector *second) {
    *first = vector_load_kv(source, dtype);
    *second = vector_load_kv(source + VECTOR_WIDTH * (int64_t)pkv_dtype_size(dtype), dtype);
}

INLINE bool vector_has_pair_order(const pkv_dtype dtype) {
    (void)dtype;
    return false;
}

INLINE void vector_order_pair(float *pair, const bool is_forth) {
    (void)pair;
    (void)is_forth;
}
#endif

/* sums[token][row] += query row . key, over one vector of each key. */
INLINE void few_multiply(
    vector *sums, const vector *k, const float *query, int64_t pitch, const int num_rows) {
    const int num_tokens = FEW_ACCUMULATORS / num_rows;

    UNROLL
    for (int row = 0; row < num_rows; row++) {
        vector q = vector_keep(vector_load(query + row * pitch));

        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            sums[i * num_rows + row] = vector_fma(k[i], q, sums[i * num_rows + row]);
        }
    }
}

/* scores[key][row] = query row . key, for the tokens and rows of one register block. */
INLINE void few_block(const struct pkvi_cpu_tile *tile,
                      struct few_stream *stream,
                      const unsigned char *const *keys,
                      const float *query,
                      float *scores,
                      int32_t score_pitch,
                      const pkv_dtype dtype,
                      const int num_rows) {
    const int64_t pitch = tile->query_pitch;
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int64_t head_size = tile->op->cache.head_size;
    const int num_tokens = FEW_ACCUMULATORS / num_rows;
    vector sums[FEW_ACCUMULATORS];
    int64_t d = 0;

    UNROLL
    for (int i = 0; i < FEW_ACCUMULATORS; i++) {
        sums[i] = vector_zero();
    }
    for (; d + 2 * VECTOR_WIDTH <= head_size; d += 2 * VECTOR_WIDTH) {
        vector first[FEW_ACCUMULATORS], second[FEW_ACCUMULATORS];

        few_fetch(stream);
        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            vector_load_pair(keys[i] + d * size, dtype, &first[i], &second[i]);
        }
        few_multiply(sums, first, query + d, pitch, num_rows);
        few_multiply(sums, second, query + d + VECTOR_WIDTH, pitch, num_rows);
    }
    for (; d < head_size; d += VECTOR_WIDTH) {
        vector k[FEW_ACCUMULATORS];

        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            k[i] = VECTOR_WIDTH <= PKV_HEAD_SIZE_STEP || d + VECTOR_WIDTH <= head_size
                       ? vector_load_kv(keys[i] + d * size, dtype)
                       : vector_load_kv_half(keys[i] + d * size, dtype);
        }
        few_multiply(sums, k, query + d, pitch, num_rows);
    }
    if (score_pitch == num_rows) {
        vector_store_sums(scores, sums, FEW_ACCUMULATORS);
        return;
    }
    UNROLL
    for (int i = 0; i < num_tokens; i++) {
        vector_store_sums(scores + i * score_pitch, sums + i * num_rows, num_rows);
    }
}

/* Scores of all keys of a step; meanwhile its values are fetched. The last block may score its last
 * key again, behind what anybody reads: so the sum of a key never depends on its neighbours. */
INLINE void few_scores(const struct pkvi_cpu_tile *tile,
                       const struct few_step *rows,
                       float *scores,
                       const pkv_dtype dtype,
                       const int num_rows) {
    const int64_t value_size = tile->op->cache.v_head_size * (int64_t)pkv_dtype_size(dtype);
    const int group = num_rows < FEW_GROUP ? num_rows : FEW_GROUP;
    const int num_tokens = FEW_ACCUMULATORS / group;
    const int64_t num_calls = (tile->op->cache.head_size / (2 * VECTOR_WIDTH)) *
                              ((rows->count + num_tokens - 1) / num_tokens) * (num_rows / group);
    struct few_stream stream = few_start_fetch(rows->value, rows->count, value_size, num_calls);

    for (int32_t t = 0; t < rows->count; t += num_tokens) {
        const unsigned char *keys[FEW_ACCUMULATORS];

        UNROLL
        for (int i = 0; i < num_tokens; i++) {
            int32_t token = t + i < rows->count ? t + i : rows->count - 1;

            keys[i] = rows->key[token];
        }
        UNROLL
        for (int row = 0; row < num_rows; row += group) {
            few_block(tile, &stream, keys, tile->query + row * tile->query_pitch,
                      scores + (int64_t)t * num_rows + row, num_rows, dtype, group);
        }
    }
}

/* Softmax state of the rows: lane i of each vector belongs to row i % num_rows. */
struct few_state {
    float maximum[VECTOR_WIDTH];
    float sum[VECTOR_WIDTH];
    float factor[VECTOR_WIDTH]; /* where has_factor, what the accumulator is multiplied by */
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

/* Values of a slab from one fetch of the next keys to the next. */
#define FETCH_STEP 2

/* sums[row][vector] += weight of the row * the vectors at `value`: pairs, one, or half of one. */
INLINE void few_add(vector *sums,
                    const unsigned char *value,
                    const float *weights,
                    const pkv_dtype dtype,
                    const int num_rows,
                    const int num_vectors,
                    const bool is_half) {
    const int64_t step = VECTOR_WIDTH * (int64_t)pkv_dtype_size(dtype);
    vector v[FEW_ACCUMULATORS];

    if (num_vectors > 1) {
        UNROLL
        for (int i = 0; i < num_vectors; i += 2) {
            vector_load_pair(value + i * step, dtype, &v[i], &v[i + 1]);
        }
    } else {
        v[0] = is_half ? vector_load_kv_half(value, dtype) : vector_load_kv(value, dtype);
    }
    UNROLL
    for (int row = 0; row < num_rows; row++) {
        vector weight = vector_keep(vector_set(weights[row]));

        UNROLL
        for (int i = 0; i < num_vectors; i++) {
            sums[row * num_vectors + i] = vector_fma(weight, v[i], sums[row * num_vectors + i]);
        }
    }
}

/* accumulator[row][0 ...] += sum over keys of weight * value, for `num_vectors` vectors from
 * `column` on and `num_rows` rows; weights and accumulator are those of the first of them. */
INLINE void few_slab(const struct few_step *rows,
                     struct few_stream *stream,
                     const float *weights,
                     int32_t weight_pitch,
                     const float *factor,
                     float *accumulator,
                     int64_t pitch,
                     int64_t offset,
                     const pkv_dtype dtype,
                     const int num_rows,
                     const int num_vectors,
                     const bool is_half) {
    vector sums[FEW_ACCUMULATORS];
    int32_t t = 0;

    UNROLL
    for (int row = 0; row < num_rows; row++) {
        UNROLL
        for (int i = 0; i < num_vectors; i++) {
            vector sum = vector_load(accumulator + row * pitch + i * VECTOR_WIDTH);

            if (factor != NULL) {
                sum = vector_multiply(sum, vector_set(factor[row]));
            }
            sums[row * num_vectors + i] = sum;
        }
    }
    for (; t + FEW_UNROLL <= rows->count; t += FEW_UNROLL) {
        UNROLL
        for (int i = 0; i < FEW_UNROLL; i++) {
            if (i % FETCH_STEP == 0) {
                few_fetch(stream);
            }
            few_add(sums, rows->value[t + i] + offset, weights + (t + i) * weight_pitch, dtype,
                    num_rows, num_vectors, is_half);
        }
    }
    for (; t < rows->count; t++) {
        few_add(sums, rows->value[t] + offset, weights + t * weight_pitch, dtype, num_rows,
                num_vectors, is_half);
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
                       const struct few_step *rows,
                       const struct few_step *next,
                       const float *weights,
                       const struct few_state *state,
                       const pkv_dtype dtype,
                       const int num_rows) {
    const int64_t head_size = tile->op->cache.v_head_size;
    const int64_t size = (int64_t)pkv_dtype_size(dtype);
    const int group = num_rows < FEW_GROUP ? num_rows : FEW_GROUP;
    const int num_vectors = FEW_ACCUMULATORS / group;
    const int64_t num_slabs = (head_size + num_vectors * VECTOR_WIDTH - 1) /
                              (num_vectors * VECTOR_WIDTH) * (num_rows / group);
    const int64_t calls_per_slab = rows->count / FEW_UNROLL * (FEW_UNROLL / FETCH_STEP);
    struct few_stream stream = few_start_fetch(
        next->key, next->count, tile->op->cache.head_size * size, num_slabs * calls_per_slab);

#define FEW_SLAB(num_vectors, is_half)                                                             \
    few_slab(rows, &stream, weights + row, num_rows,                                               \
             state->has_factor ? state->factor + row : NULL,                                       \
             tile->accumulator + row * tile->accumulator_pitch + d, tile->accumulator_pitch,       \
             d * size, dtype, group, num_vectors, is_half)
    for (int row = 0; row < num_rows; row += group) {
        int64_t d = 0;

        for (; d + num_vectors * VECTOR_WIDTH <= head_size; d += num_vectors * VECTOR_WIDTH) {
            FEW_SLAB(num_vectors, false);
        }
        for (; num_vectors > 2 && d + 2 * VECTOR_WIDTH <= head_size; d += 2 * VECTOR_WIDTH) {
            FEW_SLAB(2, false);
        }
        if (d + VECTOR_WIDTH <= head_size) {
            FEW_SLAB(1, false);
            d += VECTOR_WIDTH;
        }
        if (VECTOR_WIDTH > PKV_HEAD_SIZE_STEP && d < head_size) {
            FEW_SLAB(1, true);
        }
    }
#undef FEW_SLAB
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

/* ---- A walk over the keys of tiles, step by step; a kernel brings its scores */

struct few_decode {
    struct few_walk walk;
    struct few_state state[PKVI_CPU_MAX_TILES];
    bool has_passes; /* something stands between scores and weights beside masks */
};

/* Bring rows of floats into the order of columns that vector_load_pair gives, or back. */
INLINE void few_order(float *rows,
                      int64_t head_size,
                      int64_t pitch,
                      const int num_rows,
                      const pkv_dtype dtype,
                      const bool is_forth) {
    for (int row = 0; vector_has_pair_order(dtype) && row < num_rows; row++) {
        for (int64_t d = 0; d + 2 * VECTOR_WIDTH <= head_size; d += 2 * VECTOR_WIDTH) {
            vector_order_pair(rows + row * pitch + d, is_forth);
        }
    }
}

/* Start with nothing seen, and with rows of zeros behind each tile's. */
INLINE void few_begin(struct few_decode *decode,
                      const struct pkvi_cpu_tile *tiles,
                      int32_t num_tiles,
                      const pkv_dtype dtype,
                      const int num_rows) {
    const struct pkvi_cache_shape *cache = &tiles->op->cache;
    const int64_t pitch = tiles->query_pitch;

    for (int32_t i = 0; i < num_tiles; i++) {
        const struct pkvi_cpu_tile *tile = &tiles[i];

        for (int lane = 0; lane < VECTOR_WIDTH; lane++) {
            decode->state[i].maximum[lane] = -INFINITY;
            decode->state[i].sum[lane] = 0.0f;
        }
        for (int32_t row = tile->num_rows; row < num_rows; row++) {
            memset(tile->query + row * pitch, 0, (size_t)pitch * sizeof(float));
        }
        few_order(tile->query, cache->head_size, pitch, num_rows, dtype, true);
        memset(tile->accumulator, 0, (size_t)(num_rows * tile->accumulator_pitch) * sizeof(float));
    }
    decode->has_passes = tiles->second_scale != 1.0f ||
                         cache->k_scale_kind == PKVI_SCALE_TOKEN_HEAD ||
                         cache->v_scale_kind == PKVI_SCALE_TOKEN_HEAD;
    few_start_walk(&decode->walk, tiles, num_tiles);
}

/* Scores of this step become weights, their values are added, and the walk goes on, to the step
 * that is returned; it is empty behind the last. */
INLINE struct few_step few_take(struct few_decode *decode,
                                const struct few_step *now,
                                const pkv_dtype dtype,
                                const int num_rows) {
    struct few_walk *walk = &decode->walk;
    const struct pkvi_cpu_tile *tile = &walk->tiles[walk->index];
    struct few_state *state = &decode->state[walk->index];
    const struct few_step next = few_next(walk);
    const float softcap = tile->op->args.softcap;
    float *scores = tile->scratch->scores;
    int32_t count = now->count;

    if (decode->has_passes) {
        pkvi_cpu_scale_scores(tile, walk->first, count, num_rows, scores);
        if (softcap > 0.0f) {
            soft_cap_scores(softcap, scores, count * num_rows);
        }
        pkvi_cpu_bias_scores(tile, walk->first, count, num_rows, scores);
    }
    if (pkvi_cpu_needs_mask(tile, walk->first, count)) {
        pkvi_cpu_mask_scores(tile, walk->first, count, num_rows, scores);
    }
    few_softmax_rows(state, scores, count * num_rows, num_rows);
    if (decode->has_passes) {
        pkvi_cpu_scale_weights(tile, walk->first, count, num_rows, scores);
    }
    few_values(tile, now, &next, scores, state, dtype, num_rows);
    few_go_on(walk);
    return next;
}

/* Leave maximum and sum of each row in the scratch, and its columns in their order. */
INLINE void few_end(const struct few_decode *decode, const pkv_dtype dtype, const int num_rows) {
    for (int32_t i = 0; i < decode->walk.num_tiles; i++) {
        const struct pkvi_cpu_tile *tile = &decode->walk.tiles[i];
        const struct few_state *state = &decode->state[i];

        few_order(tile->accumulator, tile->op->cache.v_head_size, tile->accumulator_pitch, num_rows,
                  dtype, false);
        for (int row = 0; row < num_rows; row++) {
            float sum = 0.0f;

            for (int lane = row; lane < VECTOR_WIDTH; lane += num_rows) {
                sum += state->sum[lane];
            }
            tile->maximum[row] = state->maximum[row];
            tile->sum[row] = sum;
        }
    }
}

INLINE void few_template(const struct pkvi_cpu_tile *tiles,
                         int32_t num_tiles,
                         const pkv_dtype dtype,
                         const int num_rows) {
    struct few_decode decode;

    few_begin(&decode, tiles, num_tiles, dtype, num_rows);
    for (struct few_step now = few_first(&decode.walk); now.count > 0;) {
        few_scores(&tiles[decode.walk.index], &now, tiles->scratch->scores, dtype, num_rows);
        now = few_take(&decode, &now, dtype, num_rows);
    }
    few_end(&decode, dtype, num_rows);
}

/* One instance for each dtype and padded number of rows. */
#define FEW_INSTANCES(name, dtype)                                                                 \
    static void few_##name(struct pkvi_cpu_tile *tiles, int32_t num_tiles) {                       \
        if (tiles->num_rows == 1) {                                                                \
            few_template(tiles, num_tiles, dtype, 1);                                              \
        } else if (tiles->num_rows == 2) {                                                         \
            few_template(tiles, num_tiles, dtype, 2);                                              \
        } else if (tiles->num_rows <= 4) {                                                         \
            few_template(tiles, num_tiles, dtype, 4);                                              \
        } else {                                                                                   \
            few_template(tiles, num_tiles, dtype, FEW_MAX_ROWS);                                   \
        }                                                                                          \
    }

#define FEW_MAX_ROWS (VECTOR_WIDTH < 8 ? 4 : PKVI_CPU_FEW_ROWS)

FEW_INSTANCES(float32, PKV_DTYPE_FLOAT32)
FEW_INSTANCES(float16, PKV_DTYPE_FLOAT16)
FEW_INSTANCES(bfloat16, PKV_DTYPE_BFLOAT16)
FEW_INSTANCES(e4m3, PKV_DTYPE_FLOAT8_E4M3)
FEW_INSTANCES(int8, PKV_DTYPE_INT8)

static void attend_few(struct pkvi_cpu_tile *tiles, int32_t num_tiles) {
    switch (tiles->op->args.k_cache.dtype) {
    case PKV_DTYPE_FLOAT16:
        few_float16(tiles, num_tiles);
        break;
    case PKV_DTYPE_BFLOAT16:
        few_bfloat16(tiles, num_tiles);
        break;
    case PKV_DTYPE_FLOAT8_E4M3:
        few_e4m3(tiles, num_tiles);
        break;
    case PKV_DTYPE_INT8:
        few_int8(tiles, num_tiles);
        break;
    default:
        few_float32(tiles, num_tiles);
        break;
    }
}
