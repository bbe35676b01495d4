/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Times and prints the stages of attention_stage.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention_check.h"
#include "attention_stage.h"
#include "report.h"

#define BENCH "attention"
#define MAX_ROUNDS 64
#define NUM_TABLES_TIMED 3

static const attention_table tables[NUM_TABLES_TIMED] = {TABLE_CONTIGUOUS, TABLE_IDENTITY,
                                                         TABLE_RANDOM};
static const char *const table_names[NUM_TABLES_TIMED] = {"contiguous", "identity", "random"};

typedef double stage_times[NUM_TABLES_TIMED][NUM_STAGES][MAX_ROUNDS];

bool attention_is_stage(const char *name) {
    for (int i = 0; i < NUM_STAGES; i++) {
        if (strcmp(name, attention_stage_names[i]) == 0) {
            return true;
        }
    }
    return strcmp(name, "all") == 0;
}

static void print_stage(const attention_setup *setup,
                        stage_times times,
                        int t,
                        attention_stage stage,
                        int32_t num_rounds,
                        bench_table *table) {
    const char *dtype = setup->config.kv_dtype == PKV_DTYPE_FLOAT32 ? "float32" : "bfloat16";
    double time = bench_median_of(times[t][stage], num_rounds);
    double share = bench_median_ratio(times[t][stage], times[t][STAGE_FULL], num_rounds);
    double rate = (double)attention_stage_bytes(setup, stage) / time;
    char name[96];

    (void)snprintf(name, sizeof name, "decode %s, %s, stage %s", dtype, table_names[t],
                   attention_stage_names[stage]);
    if (table == NULL) {
        bench_json_line(stdout, BENCH, name, "rate", "GB/s", rate, NULL, NAN);
        bench_json_line(stdout, BENCH, name, "time", "ratio", share, "stage full", 1);
    } else {
        bench_table_row(table, "%s|%.2f|%.2f|%.2f", name, time * 1e-6, rate, share);
    }
}

static bool run_dtype(pkv_device *device,
                      pkv_dtype dtype,
                      const char *stage,
                      int32_t num_rounds,
                      int32_t divide,
                      int64_t (*now)(void),
                      bench_table *table) {
    static stage_times times;
    /* Whole blocks: the stages know no mask. */
    const attention_setup_config c = {dtype, dtype, 8, 1,   8192 / divide / 16 * 16,
                                      16,    32,    8, 128, 0};
    attention_setup setup;
    const char *reason;
    bool is_good = attention_setup_create(&setup, &c, device, &reason) &&
                   attention_check(&setup, device, "stages");

    for (int t = 0; t < NUM_TABLES_TIMED && is_good; t++) {
        is_good = attention_stage_check(&setup, device, tables[t]);
        reason = "put together they are not what the kernel computes";
    }
    /* The first round warms up. */
    for (int32_t round = -1; round < num_rounds && is_good; round++) {
        for (int i = 0; i < NUM_TABLES_TIMED * NUM_STAGES && is_good; i++) {
            int64_t start = now();

            is_good = attention_stage_run(&setup, device, tables[i / NUM_STAGES],
                                          (attention_stage)(i % NUM_STAGES));
            times[i / NUM_STAGES][i % NUM_STAGES][round < 0 ? 0 : round] = (double)(now() - start);
        }
    }
    for (int i = 0; i < NUM_TABLES_TIMED * NUM_STAGES && is_good; i++) {
        if (strcmp(stage, "all") == 0 ||
            strcmp(stage, attention_stage_names[i % NUM_STAGES]) == 0) {
            print_stage(&setup, times, i / NUM_STAGES, (attention_stage)(i % NUM_STAGES),
                        num_rounds, table);
        }
    }
    if (!is_good) {
        (void)fprintf(stderr, "stages: %s\n", reason);
    }
    attention_setup_destroy(&setup);
    return is_good;
}

bool attention_stages_report(pkv_device *device,
                             const char *stage,
                             int32_t num_rounds,
                             int32_t divide,
                             bool json,
                             int64_t (*now)(void)) {
    bench_table table;
    bool is_good;

    bench_table_begin(&table, "<case|ms|GB/s loaded|of the whole");
    is_good =
        run_dtype(device, PKV_DTYPE_FLOAT32, stage, num_rounds, divide, now,
                  json ? NULL : &table) &&
        run_dtype(device, PKV_DTYPE_BFLOAT16, stage, num_rounds, divide, now, json ? NULL : &table);
    if (!json) {
        bench_table_print(&table, stdout, 0);
    }
    return is_good;
}
