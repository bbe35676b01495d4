/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The checks before bench_attention times; see attention_check.h. */
#include "attention_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Query tokens of either end of a request that the reference computes; it is slow. */
#define CHECKED_QUERIES 4

static float value_of_bits(uint32_t bits) {
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exponent and fraction of a narrower float in place, its bias made up for by a product. */
static float widen(uint32_t sign, uint32_t rest, float bias) {
    return value_of_bits(sign << 31 | rest) * bias;
}

float attention_value(const void *values, pkv_dtype dtype, size_t i) {
    uint32_t bits;

    switch (dtype) {
    case PKV_DTYPE_FLOAT16:
        bits = ((const uint16_t *)values)[i];
        return widen(bits >> 15, (bits & 0x7fffu) << 13, 0x1p112f);
    case PKV_DTYPE_BFLOAT16:
        return value_of_bits((uint32_t)((const uint16_t *)values)[i] << 16);
    case PKV_DTYPE_FLOAT8_E4M3:
        bits = ((const uint8_t *)values)[i];
        return widen(bits >> 7, (bits & 0x7fu) << 20, 0x1p120f);
    case PKV_DTYPE_INT8:
        return (float)((const int8_t *)values)[i];
    default:
        return ((const float *)values)[i];
    }
}

double attention_error(
    const void *values, pkv_dtype dtype, const void *wanted, pkv_dtype wanted_dtype, size_t count) {
    double difference = 0.0, total = 0.0;

    for (size_t i = 0; i < count; i++) {
        double right = attention_value(wanted, wanted_dtype, i);
        double error = attention_value(values, dtype, i) - right;

        difference += error * error;
        total += right * right;
    }
    return sqrt(difference / total);
}

double attention_largest_error(pkv_dtype query_dtype) {
    return query_dtype == PKV_DTYPE_FLOAT32 ? 1e-5 : query_dtype == PKV_DTYPE_FLOAT16 ? 1e-3 : 8e-3;
}

static size_t output_size(const attention_setup_config *c) {
    return (size_t)c->num_requests * (size_t)c->query_len *
           (size_t)(c->num_query_heads * c->head_size) * pkv_dtype_size(c->query_dtype);
}

/* `count` query tokens from `first` on of the last request, by themselves: how far the output of
 * the batch is from what the reference computes. Negative where that cannot be computed. */
static double error_of_part(const attention_setup *setup,
                            pkv_device *reference,
                            attention_table table,
                            int32_t first,
                            int32_t count) {
    const attention_setup_config *c = &setup->config;
    int32_t request = c->num_requests - 1, lens[2] = {0, 0}, starts[2] = {0, 0}, row = 0;
    size_t width = (size_t)(c->num_query_heads * c->head_size);
    size_t place = ((size_t)request * (size_t)c->query_len + (size_t)first) * width;
    attention_setup part = *setup;
    double error = -1.0;

    place *= pkv_dtype_size(c->query_dtype);
    part.config.num_requests = 1;
    part.config.query_len = count;
    part.config.seq_len = c->seq_len - c->query_len + first + count;
    part.query = (unsigned char *)setup->query + place;
    part.output = malloc(output_size(&part.config));
    part.tables[table] = setup->tables[table] + (int64_t)request * setup->num_columns;
    part.rows = &row;
    part.seq_lens = lens;
    part.query_start_loc = starts;
    part.plan = NULL;
    part.plan_data = part.workspace = NULL;
    if (part.output != NULL && attention_setup_plan(&part) == NULL &&
        attention_setup_run(&part, reference, table) == PKV_OK) {
        error = attention_error((unsigned char *)setup->output + place, c->query_dtype, part.output,
                                c->query_dtype, width * (size_t)count);
    }
    pkv_plan_destroy(part.plan);
    free(part.plan_data);
    free(part.workspace);
    free(part.output);
    return error;
}

/* Both ends of the last request; decode has one. */
static bool is_right(const attention_setup *setup, pkv_device *reference, attention_table table) {
    int32_t num_queries = setup->config.query_len;
    int32_t count = num_queries < CHECKED_QUERIES ? num_queries : CHECKED_QUERIES;
    double largest = attention_largest_error(setup->config.query_dtype);
    double first = error_of_part(setup, reference, table, 0, count);
    double last = count == num_queries
                      ? first
                      : error_of_part(setup, reference, table, num_queries - count, count);

    return first >= 0.0 && first <= largest && last >= 0.0 && last <= largest;
}

/* The tables of the pool write and read what the contiguous copy gave. */
static const char *check_tables(attention_setup *setup, pkv_device *device, void *contiguous) {
    static const attention_table tables[] = {TABLE_IDENTITY, TABLE_EXTENTS, TABLE_RANDOM};
    static const char *const differs[] = {"identity and contiguous differ",
                                          "extents and contiguous differ",
                                          "random and contiguous differ"};

    for (int i = 0; i < 3; i++) {
        if (attention_setup_fill(setup, device, tables[i]) != PKV_OK ||
            attention_setup_run(setup, device, tables[i]) != PKV_OK) {
            return "a call failed";
        }
        if (memcmp(contiguous, setup->output, output_size(&setup->config)) != 0) {
            return differs[i];
        }
    }
    return NULL;
}

static const char *check(attention_setup *setup,
                         pkv_device *device,
                         pkv_device *reference,
                         void *contiguous) {
    const char *reason;

    if (attention_setup_fill(setup, reference, TABLE_CONTIGUOUS) != PKV_OK ||
        attention_setup_run(setup, device, TABLE_CONTIGUOUS) != PKV_OK) {
        return "a call failed";
    }
    if (!is_right(setup, reference, TABLE_CONTIGUOUS)) {
        return "contiguous is not what the reference computes";
    }
    memcpy(contiguous, setup->output, output_size(&setup->config));
    reason = check_tables(setup, device, contiguous);
    if (reason == NULL && setup->config.query_len == 1 &&
        (attention_setup_run(setup, device, TABLE_ONE_BLOCK) != PKV_OK ||
         !is_right(setup, reference, TABLE_ONE_BLOCK))) {
        reason = "one block everywhere is not what the reference computes";
    }
    return reason;
}

bool attention_check(attention_setup *setup, pkv_device *device, const char *name) {
    const pkv_cpu_config config = {.struct_size = sizeof config, .instructions = PKV_CPU_REFERENCE};
    void *contiguous = malloc(output_size(&setup->config));
    pkv_device *reference = NULL;
    const char *reason = "out of memory";

    if (contiguous != NULL && pkv_device_create_cpu(&config, &reference) == PKV_OK) {
        reason = check(setup, device, reference, contiguous);
    }
    if (reason != NULL) {
        (void)fprintf(stderr, "bench_attention: %s: %s\n", name, reason);
    }
    pkv_device_destroy(reference);
    free(contiguous);
    return reason == NULL;
}
