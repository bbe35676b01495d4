/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Built-in length tables, the tokens of every workload, and what all workloads share. Files are
 * read in workload_trace.c.
 *
 * The one idea: a table is tuned after its normals are drawn, so that its own mean, not only its
 * expectation, is the published one for every seed. */
#include "workload.h"

#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_LENGTH 1
#define MAX_LENGTH 1024

/* Owners of tokens; each kind has its own domain, so that equal ids of two kinds never agree. */
#define DOMAIN_HASH UINT64_C(0x68617368)
#define DOMAIN_OWN UINT64_C(0x6f776e)

typedef struct length_model {
    double sigma, mean;
} length_model;

typedef struct table_model {
    const char *name;
    length_model input, output;
} table_model;

static const table_model table_models[] = {
    {"sharegpt", {1.3, 161.3}, {0.9, 337.9}},
    {"alpaca", {0.6, 19.3}, {1.0, 58.5}},
};

const char *workload_format_name(workload_format format) {
    switch (format) {
    case WORKLOAD_TABLE:
        return "built-in table";
    case WORKLOAD_AZURE_CSV:
        return "Azure CSV";
    case WORKLOAD_MOONCAKE:
        return "Mooncake JSON lines";
    case WORKLOAD_VIDUR_CSV:
        return "vidur CSV";
    case WORKLOAD_TWO_COLUMNS:
        return "two-column CSV";
    }
    return "unknown";
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int32_t clipped_length(double mu, double sigma, double normal) {
    double length = exp(mu + sigma * normal);

    if (length >= MAX_LENGTH) {
        return MAX_LENGTH;
    }
    return length < MIN_LENGTH ? MIN_LENGTH : (int32_t)(length + 0.5);
}

static double mean_length(double mu, double sigma, const double *normals, int32_t num_normals) {
    double sum = 0.0;

    for (int32_t i = 0; i < num_normals; i++) {
        sum += clipped_length(mu, sigma, normals[i]);
    }
    return sum / num_normals;
}

/* Find the mu that gives the wanted mean. The mean rises with mu, in steps of 1 / num_normals, so
 * halving an interval finds it. */
static double tune_mu(length_model model, const double *normals, int32_t num_normals) {
    double low = 0.0;
    double high = log(MAX_LENGTH);

    for (int32_t round = 0; round < 48; round++) {
        double middle = 0.5 * (low + high);

        if (mean_length(middle, model.sigma, normals, num_normals) < model.mean) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return 0.5 * (low + high);
}

static void fill_table(const table_model *model,
                       uint64_t seed,
                       double *normals,
                       workload_item *items,
                       int32_t num_items) {
    double *input_normals = normals;
    double *output_normals = normals + num_items;
    uint64_t state = random_mix(seed);

    for (int32_t i = 0; i < num_items; i++) {
        input_normals[i] = random_normal(&state);
        output_normals[i] = random_normal(&state);
    }

    double input_mu = tune_mu(model->input, input_normals, num_items);
    double output_mu = tune_mu(model->output, output_normals, num_items);

    for (int32_t i = 0; i < num_items; i++) {
        items[i] = (workload_item){
            .num_input_tokens = clipped_length(input_mu, model->input.sigma, input_normals[i]),
            .num_output_tokens = clipped_length(output_mu, model->output.sigma, output_normals[i]),
            .sequence_id = random_mix(seed ^ random_mix((uint64_t)i)),
            .file_index = i,
        };
    }
}

bool workload_make_table(
    const char *name, uint64_t seed, int32_t num_items, workload_list *out, char *error) {
    const table_model *model = NULL;

    *out = (workload_list){.format = WORKLOAD_TABLE};
    for (size_t i = 0; i < sizeof(table_models) / sizeof(table_models[0]); i++) {
        if (strcmp(name, table_models[i].name) == 0) {
            model = &table_models[i];
        }
    }
    if (model == NULL || num_items < 1) {
        snprintf(error, WORKLOAD_MAX_ERROR, "no table '%s'; there are sharegpt and alpaca", name);
        return false;
    }

    double *normals = calloc(2 * (size_t)num_items, sizeof(double));

    out->items = calloc((size_t)num_items, sizeof(workload_item));
    if (normals == NULL || out->items == NULL) {
        free(normals);
        workload_release(out);
        snprintf(error, WORKLOAD_MAX_ERROR, "no memory for %d requests", num_items);
        return false;
    }
    snprintf(out->name, sizeof(out->name), "%s", name);
    out->num_items = num_items;
    fill_table(model, seed, normals, out->items, num_items);
    free(normals);
    workload_drop_longer(out, INT32_MAX);
    return true;
}

/* ---- what all workloads share ---------------------------------------------------------------- */

int32_t workload_drop_longer(workload_list *workload, int32_t max_total_tokens) {
    double input_sum = 0.0;
    double output_sum = 0.0;
    int32_t num_kept = 0;

    workload->max_total_tokens = 0;
    for (int32_t i = 0; i < workload->num_items; i++) {
        workload_item item = workload->items[i];
        int32_t num_tokens = item.num_input_tokens + item.num_output_tokens;

        if (num_tokens > max_total_tokens) {
            continue;
        }
        if (num_tokens > workload->max_total_tokens) {
            workload->max_total_tokens = num_tokens;
        }
        input_sum += item.num_input_tokens;
        output_sum += item.num_output_tokens;
        workload->items[num_kept++] = item;
    }

    int32_t num_dropped = workload->num_items - num_kept;

    workload->num_items = num_kept;
    workload->mean_input_tokens = num_kept > 0 ? input_sum / num_kept : 0.0;
    workload->mean_output_tokens = num_kept > 0 ? output_sum / num_kept : 0.0;
    return num_dropped;
}

void workload_release(workload_list *workload) {
    free(workload->items);
    free(workload->hash_ids);
    workload->items = NULL;
    workload->hash_ids = NULL;
    workload->num_items = 0;
    workload->num_hash_ids = 0;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int32_t make_token(uint64_t domain, uint64_t owner, int32_t position) {
    uint64_t mixed = random_mix(random_mix(domain ^ owner) + (uint64_t)position);

    return (int32_t)(((mixed >> 32) * (uint64_t)WORKLOAD_VOCABULARY) >> 32);
}

int32_t workload_get_token(const workload_list *workload, int32_t item_index, int32_t position) {
    const workload_item *item = &workload->items[item_index];

    if (item->num_hashes > 0 && position < item->num_input_tokens) {
        int32_t block = position / workload->hash_block_size;
        int64_t hash_id = workload->hash_ids[item->first_hash + block];

        return make_token(DOMAIN_HASH, (uint64_t)hash_id, position % workload->hash_block_size);
    }
    return make_token(DOMAIN_OWN, item->sequence_id, position);
}

void workload_get_tokens(const workload_list *workload,
                         int32_t item_index,
                         int32_t first,
                         int32_t num_tokens,
                         int32_t *token_ids) {
    for (int32_t i = 0; i < num_tokens; i++) {
        token_ids[i] = workload_get_token(workload, item_index, first + i);
    }
}
