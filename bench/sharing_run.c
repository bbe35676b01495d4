/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Groups of sequences on a manager; see sharing_run.h. */
#include "sharing_run.h"

#include <pagedkv.h>

#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "report.h"

#define MAX_LEN 2048
#define MAX_ROUNDS 512
#define TIMED_WIDTH 64

typedef struct run {
    const sharing_config *config;
    pkv_manager *manager;
    sharing_result *result;
    uint64_t random;
    bool has_failed;
    int32_t num_tokens; /* of each sequence */
    pkv_request sequences[SHARING_MAX_WIDTH];
    double scores[SHARING_MAX_WIDTH];
    int32_t tokens[MAX_LEN + 1];
} run;

static bool did(run *self, pkv_status status) {
    self->has_failed = self->has_failed || status != PKV_OK;
    return status == PKV_OK;
}

static void allocate(run *self, pkv_request request, int32_t computed, int32_t hit, int32_t count) {
    pkv_slots_args args = {.struct_size = sizeof args,
                           .num_computed_tokens = computed,
                           .num_new_computed_tokens = hit,
                           .num_new_tokens = count};
    pkv_slots slots = {.struct_size = sizeof slots};

    (void)did(self, pkv_allocate_slots(self->manager, request, &args, &slots));
    self->result->num_copies += slots.num_copies;
}

/* Open a request and compute what is not cached. */
static pkv_request admit(run *self, const int32_t *tokens, int32_t num_tokens, bool is_again) {
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = tokens,
                             .num_tokens = num_tokens,
                             .max_num_tokens = MAX_LEN};
    pkv_request request = {0, 0};
    int32_t hit = 0;

    if (did(self, pkv_request_open(self->manager, &args, &request)) &&
        did(self, pkv_get_computed_blocks(self->manager, request, &hit))) {
        allocate(self, request, 0, hit, num_tokens - hit);
        self->result->num_recomputed += is_again ? num_tokens - hit : 0;
    }
    return request;
}

/* One more sequence with the tokens of `parent`, all of which are computed. */
static pkv_request branch(run *self, pkv_request parent) {
    pkv_request child = {0, 0};

    if (!self->config->by_prefix_cache) {
        (void)did(self, pkv_fork(self->manager, parent, self->num_tokens, &child));
        return child;
    }
    (void)did(self,
              pkv_request_get_tokens(self->manager, parent, 0, self->num_tokens, self->tokens));
    return admit(self, self->tokens, self->num_tokens, true);
}

/* Count blocks in use, and what they would be without sharing. */
static void count_blocks(run *self) {
    const pkv_block_id *ids;
    pkv_stats stats = {.struct_size = sizeof stats};
    int32_t count;

    (void)did(self, pkv_get_stats(self->manager, &stats));
    self->result->num_block_steps += stats.num_blocks - 1 - stats.num_free_blocks;
    for (int32_t i = 0; i < self->config->width; i++) {
        (void)did(self, pkv_get_block_table(self->manager, self->sequences[i], 0, &ids, &count));
        self->result->num_column_steps += count;
    }
    self->result->num_sequence_steps += self->config->width;
}

/* Choose the best `width` of width * width continuations. The j-th candidate of a beam is less
 * likely than its first by j times an exponential number. */
static void select_beams(run *self) {
    int32_t width = self->config->width;
    double candidates[SHARING_MAX_WIDTH][SHARING_MAX_WIDTH];
    int32_t parents[SHARING_MAX_WIDTH];
    int32_t num_children[SHARING_MAX_WIDTH] = {0};
    pkv_request old[SHARING_MAX_WIDTH];
    double scores[SHARING_MAX_WIDTH];

    for (int32_t i = 0; i < width; i++) {
        double gap = random_exponential(&self->random, 1.0);
        double best = random_exponential(&self->random, 1.0);
        for (int32_t j = 0; j < width; j++) {
            candidates[i][j] = self->scores[i] - best - gap * j;
        }
    }
    for (int32_t k = 0; k < width; k++) {
        int32_t best = 0;
        for (int32_t i = 1; i < width; i++) {
            best = candidates[i][num_children[i]] > candidates[best][num_children[best]] ? i : best;
        }
        parents[k] = best;
        scores[k] = candidates[best][num_children[best]];
        candidates[best][num_children[best]] = -1e300;
        num_children[best] += num_children[best] + 1 < width ? 1 : 0;
    }
    memcpy(old, self->sequences, sizeof old);
    memset(num_children, 0, sizeof num_children);
    for (int32_t k = 0; k < width && !self->has_failed; k++) {
        bool is_first = num_children[parents[k]]++ == 0;
        self->sequences[k] = is_first ? old[parents[k]] : branch(self, old[parents[k]]);
        self->scores[k] = scores[k];
    }
    for (int32_t i = 0; i < width && !self->has_failed; i++) {
        if (num_children[i] == 0) {
            (void)did(self, pkv_request_close(self->manager, old[i]));
        }
    }
}

static void run_group(run *self, int32_t item_index) {
    const workload_item *item = &self->config->workload->items[item_index];
    int32_t width = self->config->width;
    pkv_block_copy copies[SHARING_MAX_WIDTH * 2];
    int32_t count;

    self->num_tokens = item->num_input_tokens;
    workload_get_tokens(self->config->workload, item_index, 0, self->num_tokens, self->tokens);
    self->sequences[0] = admit(self, self->tokens, self->num_tokens, false);
    for (int32_t i = 1; i < width; i++) {
        self->sequences[i] = branch(self, self->sequences[0]);
        self->scores[i] = 0;
    }
    self->scores[0] = 0;
    for (int32_t t = 0; t < item->num_output_tokens && !self->has_failed; t++) {
        if (self->config->mode == SHARING_BEAM && t > 0) {
            select_beams(self);
        }
        for (int32_t i = 0; i < width && !self->has_failed; i++) {
            int32_t token = (int32_t)(random_next(&self->random) % WORKLOAD_VOCABULARY);
            (void)did(self, pkv_request_append(self->manager, self->sequences[i], &token, 1));
        }
        self->num_tokens++;
        for (int32_t i = 0; i < width && !self->has_failed; i++) {
            allocate(self, self->sequences[i], self->num_tokens - 1, 0, 1);
        }
        (void)did(self, pkv_take_copies(self->manager, 0, copies, SHARING_MAX_WIDTH * 2, &count));
        count_blocks(self);
    }
    for (int32_t i = 0; i < width && !self->has_failed; i++) {
        (void)did(self, pkv_request_close(self->manager, self->sequences[i]));
    }
}

static pkv_manager *make(int32_t num_blocks, int32_t block_size, int32_t max_len, int32_t rows) {
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = num_blocks,
                                 .block_size = block_size,
                                 .max_model_len = max_len,
                                 .max_rows = rows,
                                 .max_requests = rows,
                                 .max_total_tokens = (int64_t)max_len * rows};
    pkv_manager *manager;

    return pkv_manager_create(&config, &manager) == PKV_OK ? manager : NULL;
}

bool sharing_run(const sharing_config *config, sharing_result *out) {
    run *self = calloc(1, sizeof *self);
    bool is_right;

    memset(out, 0, sizeof *out);
    if (self == NULL) {
        return false;
    }
    self->config = config;
    self->result = out;
    self->random = config->seed;
    /* Enough blocks for two full sets of sequences, so that nothing waits. */
    self->manager = make(2 * SHARING_MAX_WIDTH * (MAX_LEN / config->block_size + 2),
                         config->block_size, MAX_LEN, 2 * SHARING_MAX_WIDTH);
    self->has_failed = self->manager == NULL;
    for (int32_t i = 0; i < config->num_groups && i < config->workload->num_items; i++) {
        if (!self->has_failed) {
            run_group(self, i);
        }
    }
    is_right = !self->has_failed && pkv_manager_check(self->manager) == PKV_OK;
    pkv_manager_destroy(self->manager);
    free(self);
    return is_right;
}

/* ---- time ------------------------------------------------------------------------------------ */

static pkv_request open_computed(pkv_manager *manager, int32_t num_tokens, int32_t max_tokens) {
    int32_t *tokens = calloc((size_t)num_tokens, sizeof *tokens);
    pkv_request_args args = {.struct_size = sizeof args,
                             .token_ids = tokens,
                             .num_tokens = num_tokens,
                             .max_num_tokens = max_tokens};
    pkv_slots_args slots = {.struct_size = sizeof slots, .num_new_tokens = num_tokens};
    pkv_request request = {0, 0};

    if (tokens != NULL && pkv_request_open(manager, &args, &request) == PKV_OK) {
        (void)pkv_allocate_slots(manager, request, &slots, NULL);
    }
    free(tokens);
    return request;
}

bool sharing_time_fork(int32_t num_tokens, int32_t num_rounds, double *fork_ns) {
    static double times[MAX_ROUNDS];
    pkv_manager *manager = make(2 * num_tokens / 16, 16, num_tokens + 16, 4);
    pkv_request parent;
    bool is_right = manager != NULL;

    if (!is_right) {
        return false;
    }
    parent = open_computed(manager, num_tokens, num_tokens + 16);
    for (int32_t i = 0; i < num_rounds && is_right; i++) {
        pkv_request child;
        int64_t started = bench_now_ns();
        is_right = pkv_fork(manager, parent, num_tokens, &child) == PKV_OK;
        times[i] = (double)(bench_now_ns() - started);
        is_right = is_right && pkv_request_close(manager, child) == PKV_OK;
    }
    pkv_manager_destroy(manager);
    *fork_ns = is_right ? bench_median(times, num_rounds) : 0;
    return is_right;
}

/* Allocate one token for every sequence and take the copies; the time of it. */
static double time_step(pkv_manager *manager, const pkv_request *requests, int32_t computed) {
    static pkv_block_copy copies[TIMED_WIDTH];
    pkv_slots_args args = {
        .struct_size = sizeof args, .num_computed_tokens = computed, .num_new_tokens = 1};
    int32_t count;
    int64_t started = bench_now_ns();

    for (int32_t i = 0; i < TIMED_WIDTH; i++) {
        (void)pkv_allocate_slots(manager, requests[i], &args, NULL);
    }
    (void)pkv_take_copies(manager, 0, copies, TIMED_WIDTH, &count);
    return (double)(bench_now_ns() - started);
}

bool sharing_time_copies(int32_t num_rounds, double *copy_ns, double *plain_ns) {
    static double with[MAX_ROUNDS], without[MAX_ROUNDS];
    pkv_manager *manager = make(4096, 16, 256, TIMED_WIDTH);
    pkv_request requests[TIMED_WIDTH];
    bool is_right = manager != NULL;

    if (!is_right) {
        return false;
    }
    for (int32_t i = 0; i < num_rounds && is_right; i++) {
        int32_t token = 1;
        requests[0] = open_computed(manager, 100, 256);
        for (int32_t j = 1; j < TIMED_WIDTH; j++) {
            is_right = is_right && pkv_fork(manager, requests[0], 100, &requests[j]) == PKV_OK;
        }
        for (int32_t j = 0; j < TIMED_WIDTH && is_right; j++) {
            is_right = pkv_request_append(manager, requests[j], &token, 1) == PKV_OK;
        }
        with[i] = is_right ? time_step(manager, requests, 100) : 0;
        without[i] = is_right ? time_step(manager, requests, 101) : 0;
        for (int32_t j = 0; j < TIMED_WIDTH && is_right; j++) {
            is_right = pkv_request_close(manager, requests[j]) == PKV_OK;
        }
    }
    pkv_manager_destroy(manager);
    if (is_right) {
        *plain_ns = bench_median(without, num_rounds) / TIMED_WIDTH;
        *copy_ns = (bench_median(with, num_rounds) - bench_median(without, num_rounds)) /
                   (TIMED_WIDTH - 1);
    }
    return is_right;
}
