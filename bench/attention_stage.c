/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The stages of a decode by themselves; see attention_stage.h. */
#include "attention_stage.h"

#include <math.h>
#include <string.h>

#include "attention_check.h"
#include "attention_read.h"

#define CHUNK PKV_PLAN_DEFAULT_CHUNK_SIZE
#define HEAD_SIZE 128
#define GROUP 4
/* What 2^x of the stages gives at least; it is rougher than the kernel's. */
#define LEAST_ERROR 1e-3

const char *const attention_stage_names[NUM_STAGES] = {"read", "qk", "qk+softmax", "pv", "full"};

size_t attention_stage_bytes(const attention_setup *setup, attention_stage stage) {
    return stage == STAGE_READ || stage == STAGE_FULL ? setup->kv_size : setup->kv_size / 2;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))

/* Keeps the compiler from dropping what is computed. */
static volatile float sink;
static volatile uint64_t read_sink;

bool attention_has_stages(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Eight elements from place `i` of a row, as floats. */
TARGET static inline __m256 load_8(const unsigned char *row, int i, bool is_float) {
    if (is_float) {
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    }
    const __m128i codes =
        _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)(const void *)row + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16));
}

TARGET static inline float total_of(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Scores of one block's keys for the four heads of the group. */
TARGET static void score_block(const unsigned char *keys,
                               int32_t num_keys,
                               bool is_float,
                               const float (*query)[HEAD_SIZE],
                               float (*scores)[CHUNK]) {
    const size_t row_size = HEAD_SIZE * (is_float ? sizeof(float) : sizeof(uint16_t));

    for (int32_t key = 0; key < num_keys; key++) {
        __m256 sums[GROUP] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                              _mm256_setzero_ps()};

        for (int i = 0; i < HEAD_SIZE; i += 8) {
            const __m256 x = load_8(keys + (size_t)key * row_size, i, is_float);

            for (int h = 0; h < GROUP; h++) {
                sums[h] = _mm256_fmadd_ps(x, _mm256_loadu_ps(query[h] + i), sums[h]);
            }
        }
        for (int h = 0; h < GROUP; h++) {
            scores[h][key] = total_of(sums[h]);
        }
    }
}

/* 2^x for x <= 0, within some 1e-4: as many instructions as an exact one, nearly. */
TARGET static inline __m256 exp2_8(__m256 x) {
    x = _mm256_max_ps(x, _mm256_set1_ps(-126.0f));
    const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 part = _mm256_sub_ps(x, whole);
    __m256 y = _mm256_set1_ps(0.0096181f);

    y = _mm256_fmadd_ps(y, part, _mm256_set1_ps(0.0555041f));
    y = _mm256_fmadd_ps(y, part, _mm256_set1_ps(0.2402265f));
    y = _mm256_fmadd_ps(y, part, _mm256_set1_ps(0.6931472f));
    y = _mm256_fmadd_ps(y, part, _mm256_set1_ps(1.0f));
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23)));
}

/* Turn the scores of a chunk into weights, 2^(score - the largest). Returns their sum. */
TARGET static float weigh(float *scores, int32_t num_keys, float *largest) {
    __m256 most = _mm256_set1_ps(-3e38f), sum = _mm256_setzero_ps();
    float lanes[8], top;

    for (int32_t i = 0; i + 8 <= num_keys; i += 8) {
        most = _mm256_max_ps(most, _mm256_loadu_ps(scores + i));
    }
    _mm256_storeu_ps(lanes, most);
    top = lanes[0];
    for (int i = 1; i < 8; i++) {
        top = lanes[i] > top ? lanes[i] : top;
    }
    for (int32_t i = 0; i + 8 <= num_keys; i += 8) {
        const __m256 x = exp2_8(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(top)));

        _mm256_storeu_ps(scores + i, x);
        sum = _mm256_add_ps(sum, x);
    }
    *largest = top;
    return total_of(sum);
}

/* Add one block's weighted values to the outputs, 16 columns at a time. */
TARGET static void sum_block(const unsigned char *values,
                             int32_t num_keys,
                             bool is_float,
                             const float (*weights)[CHUNK],
                             float (*outputs)[HEAD_SIZE]) {
    const size_t row_size = HEAD_SIZE * (is_float ? sizeof(float) : sizeof(uint16_t));

    for (int i = 0; i < HEAD_SIZE; i += 16) {
        __m256 sums[GROUP][2];

        for (int h = 0; h < GROUP; h++) {
            sums[h][0] = _mm256_loadu_ps(outputs[h] + i);
            sums[h][1] = _mm256_loadu_ps(outputs[h] + i + 8);
        }
        for (int32_t key = 0; key < num_keys; key++) {
            const __m256 low = load_8(values + (size_t)key * row_size, i, is_float);
            const __m256 high = load_8(values + (size_t)key * row_size, i + 8, is_float);

            for (int h = 0; h < GROUP; h++) {
                const __m256 weight = _mm256_broadcast_ss(&weights[h][key]);

                sums[h][0] = _mm256_fmadd_ps(low, weight, sums[h][0]);
                sums[h][1] = _mm256_fmadd_ps(high, weight, sums[h][1]);
            }
        }
        for (int h = 0; h < GROUP; h++) {
            _mm256_storeu_ps(outputs[h] + i, sums[h][0]);
            _mm256_storeu_ps(outputs[h] + i + 8, sums[h][1]);
        }
    }
}

/* What the stages work on: query and, of one chunk, scores or weights, outputs and the softmax
 * state. */
static struct {
    float query[GROUP][HEAD_SIZE], scores[GROUP][CHUNK], outputs[GROUP][HEAD_SIZE];
    float sums[GROUP], largest[GROUP];
} work;

/* One chunk of one kv head; the line after the slab that is worked on is asked for as it goes. */
static void run_chunk(const attention_setup *setup,
                      attention_table table,
                      attention_stage stage,
                      const pkv_block_id *blocks,
                      int32_t num_blocks,
                      int32_t head) {
    const attention_setup_config *c = &setup->config;
    const pkv_tensor *view = stage == STAGE_PV ? &setup->v_cache[table == TABLE_CONTIGUOUS ? 0 : 1]
                                               : &setup->k_cache[table == TABLE_CONTIGUOUS ? 0 : 1];
    const int64_t element_size = (int64_t)pkv_dtype_size(c->kv_dtype);
    const bool is_float = c->kv_dtype == PKV_DTYPE_FLOAT32;
    const int64_t slab = (int64_t)c->block_size * HEAD_SIZE * element_size;

    memset(work.outputs, 0, sizeof work.outputs);
    for (int32_t i = 0; i < num_blocks; i++) {
        const unsigned char *base = view->data;
        const unsigned char *now =
            base + (blocks[i] * view->stride[0] + head * view->stride[1]) * element_size;
        const int32_t next = i + 1 < num_blocks ? i + 1 : i;
        const unsigned char *ahead =
            base + (blocks[next] * view->stride[0] + head * view->stride[1]) * element_size;

        for (int64_t x = 0; x < slab; x += 64) {
            __builtin_prefetch(ahead + x);
        }
        float(*at)[CHUNK] = (float(*)[CHUNK])(void *)&work.scores[0][i * c->block_size];
        if (stage == STAGE_PV) {
            sum_block(now, c->block_size, is_float, (const float(*)[CHUNK])at, work.outputs);
        } else {
            score_block(now, c->block_size, is_float, (const float(*)[HEAD_SIZE])work.query, at);
        }
    }
    for (int h = 0; h < GROUP && stage == STAGE_QK_SOFTMAX; h++) {
        work.sums[h] = weigh(work.scores[h], num_blocks * c->block_size, &work.largest[h]);
    }
    sink = work.scores[0][0] + work.outputs[GROUP - 1][HEAD_SIZE - 1];
}

bool attention_stage_run(attention_setup *setup,
                         pkv_device *device,
                         attention_table table,
                         attention_stage stage) {
    const attention_setup_config *c = &setup->config;
    const int32_t step = CHUNK / c->block_size;

    if (stage == STAGE_FULL) {
        return attention_setup_run(setup, device, table) == PKV_OK;
    }
    if (stage == STAGE_READ) {
        read_sink = attention_read_traversal(setup, table, 0, 1);
        return true;
    }
    for (int32_t request = 0; request < c->num_requests; request++) {
        const pkv_block_id *row = setup->tables[table] + request * setup->num_columns;

        for (int32_t first = 0; first < setup->num_columns; first += step) {
            const int32_t left = setup->num_columns - first;

            for (int32_t head = 0; head < c->num_kv_heads; head++) {
                run_chunk(setup, table, stage, row + first, left < step ? left : step, head);
            }
        }
    }
    return true;
}
/* Attention of one kv head of a request, from the stages chunk by chunk. */
static void compute_head(const attention_setup *setup,
                         attention_table table,
                         int32_t request,
                         int32_t head,
                         float (*out)[HEAD_SIZE]) {
    const attention_setup_config *c = &setup->config;
    const int32_t step = CHUNK / c->block_size;
    const pkv_block_id *row = setup->tables[table] + request * setup->num_columns;
    const size_t first_head = (size_t)(request * c->num_query_heads + head * GROUP);
    const float scale = 1.44269504f / sqrtf((float)HEAD_SIZE); /* the weights are powers of 2 */
    float sums[GROUP] = {0}, largest[GROUP];

    for (int h = 0; h < GROUP; h++) {
        largest[h] = -INFINITY;
        for (int i = 0; i < HEAD_SIZE; i++) {
            work.query[h][i] =
                scale * attention_value(setup->query, c->query_dtype,
                                        (first_head + (size_t)h) * HEAD_SIZE + (size_t)i);
            out[h][i] = 0.0f;
        }
    }
    for (int32_t first = 0; first < setup->num_columns; first += step) {
        const int32_t left = setup->num_columns - first;
        const int32_t count = left < step ? left : step;

        run_chunk(setup, table, STAGE_QK_SOFTMAX, row + first, count, head);
        run_chunk(setup, table, STAGE_PV, row + first, count, head);
        for (int h = 0; h < GROUP; h++) {
            const float top = fmaxf(largest[h], work.largest[h]);
            const float before = exp2f(largest[h] - top), now = exp2f(work.largest[h] - top);

            sums[h] = sums[h] * before + work.sums[h] * now;
            largest[h] = top;
            for (int i = 0; i < HEAD_SIZE; i++) {
                out[h][i] = out[h][i] * before + work.outputs[h][i] * now;
            }
        }
    }
    for (int h = 0; h < GROUP; h++) {
        for (int i = 0; i < HEAD_SIZE; i++) {
            out[h][i] /= sums[h];
        }
    }
}

bool attention_stage_check(attention_setup *setup, pkv_device *device, attention_table table) {
    const attention_setup_config *c = &setup->config;
    const int32_t request = c->num_requests - 1;
    const size_t size = pkv_dtype_size(c->query_dtype);
    double largest = attention_largest_error(c->query_dtype);
    bool is_right = attention_setup_run(setup, device, table) == PKV_OK;

    largest = largest < LEAST_ERROR ? LEAST_ERROR : largest;
    for (int32_t head = 0; head < c->num_kv_heads && is_right; head++) {
        const size_t place = (size_t)(request * c->num_query_heads + head * GROUP) * HEAD_SIZE;
        float out[GROUP][HEAD_SIZE];

        compute_head(setup, table, request, head, out);
        is_right = attention_error((unsigned char *)setup->output + place * size, c->query_dtype,
                                   out, PKV_DTYPE_FLOAT32, GROUP * HEAD_SIZE) <= largest;
    }
    memset(&work, 0, sizeof work);
    return is_right;
}
#else
bool attention_has_stages(void) {
    return false;
}

bool attention_stage_run(attention_setup *setup,
                         pkv_device *device,
                         attention_table table,
                         attention_stage stage) {
    return stage == STAGE_FULL && attention_setup_run(setup, device, table) == PKV_OK;
}

bool attention_stage_check(attention_setup *setup, pkv_device *device, attention_table table) {
    (void)setup;
    (void)device;
    (void)table;
    return true;
}
#endif
