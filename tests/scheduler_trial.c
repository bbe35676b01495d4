/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The trial of the scheduler's tests; see the header. */
#include "scheduler_trial.h"

#include <string.h>

static void remember_log(void *context, int level, const char *message) {
    struct trial *trial = context;

    assert_int_equal(level, PKV_LOG_WARNING);
    trial->num_logs++;
    assert_true(strlen(message) < sizeof trial->last_log);
    strcpy(trial->last_log, message);
}

int trial_set_up(void **state) {
    static struct trial trial;

    memset(&trial, 0, sizeof trial);
    *state = &trial;
    return 0;
}

int trial_tear_down(void **state) {
    struct trial *trial = *state;

    int is_sound = trial->manager == NULL || pkv_manager_check(trial->manager) == PKV_OK;
    if (trial->tier != NULL && pkv_tier_check(trial->tier) != PKV_OK) {
        is_sound = 0;
    }
    scheduler_destroy(trial->scheduler);
    pkv_tier_destroy(trial->tier);
    pkv_manager_destroy(trial->manager);
    return is_sound ? 0 : -1;
}

void trial_start(struct trial *trial, int32_t num_blocks) {
    scheduler_config *config = &trial->config;
    pkv_manager_config manager_config = {.struct_size = sizeof manager_config,
                                         .num_blocks = num_blocks,
                                         .max_model_len = 2048,
                                         .block_size = 16,
                                         .max_rows = TRIAL_MAX_REQUESTS,
                                         .max_requests = TRIAL_MAX_REQUESTS,
                                         .max_total_tokens = TRIAL_MAX_REQUESTS * 2048,
                                         .disable_prefix_cache = config->disable_prefix_cache};

    assert_int_equal(pkv_manager_create(&manager_config, &trial->manager), PKV_OK);
    if (trial->num_slots > 0) {
        pkv_tier_config tier_config = {.struct_size = sizeof tier_config,
                                       .manager = trial->manager,
                                       .num_blocks = trial->num_slots};
        assert_int_equal(pkv_tier_create(&tier_config, &trial->tier), PKV_OK);
        config->swapping.tier = trial->tier;
    }
    config->manager = trial->manager;
    config->max_requests = TRIAL_MAX_REQUESTS;
    if (config->max_model_len == 0) {
        config->max_model_len = 2048;
    }
    config->log = remember_log;
    config->log_context = trial;
    assert_int_equal(scheduler_create(config, &trial->scheduler), PKV_OK);
}

scheduler_request *trial_add(struct trial *trial,
                             int32_t content,
                             int32_t num_tokens,
                             int32_t max_output_tokens,
                             int32_t priority) {
    static int32_t token_ids[TRIAL_MAX_PROMPT];

    for (int32_t i = 0; i < num_tokens; i++) {
        token_ids[i] = content * TRIAL_MAX_PROMPT + i;
    }
    scheduler_request_args args = {.token_ids = token_ids,
                                   .num_tokens = num_tokens,
                                   .max_output_tokens = max_output_tokens,
                                   .priority = priority,
                                   .arrival = trial->num_requests};
    scheduler_request **request = &trial->requests[trial->num_requests++];
    assert_int_equal(scheduler_add(trial->scheduler, &args, request), PKV_OK);
    return *request;
}

void trial_expect_step(struct trial *trial, const int32_t *num_tokens) {
    int32_t num_entries = 0;

    assert_int_equal(scheduler_schedule(trial->scheduler, &trial->step), PKV_OK);
    for (; num_tokens[num_entries] != 0; num_entries++) {
        assert_true(num_entries < trial->step->num_entries);
        assert_int_equal(trial->step->entries[num_entries].num_new_tokens, num_tokens[num_entries]);
    }
    assert_int_equal(trial->step->num_entries, num_entries);
}

void trial_complete_accepting(struct trial *trial, int32_t num_accepted) {
    static const int32_t tokens[8] = {7, 8, 9, 10, 11, 12, 13, 14};
    scheduler_output outputs[TRIAL_MAX_REQUESTS] = {{NULL, 0}};

    for (int32_t i = 0; i < trial->step->num_entries; i++) {
        const scheduler_entry *entry = &trial->step->entries[i];
        if (!entry->request->is_prefilling) {
            int32_t accepted = entry->num_drafts < num_accepted ? entry->num_drafts : num_accepted;
            outputs[i] = (scheduler_output){tokens, accepted + 1};
        }
    }
    assert_int_equal(scheduler_complete_step(trial->scheduler, outputs), PKV_OK);
}

void trial_complete(struct trial *trial) {
    trial_complete_accepting(trial, 0);
}

void trial_expect_waiting(struct trial *trial, const int32_t *ids, int32_t num_ids) {
    int32_t num_waiting;
    const scheduler_request *request = scheduler_get_first_waiting(trial->scheduler, &num_waiting);

    assert_int_equal(num_waiting, num_ids);
    for (int32_t i = 0; i < num_ids; i++) {
        assert_int_equal(request->id, ids[i]);
        request = request->next;
    }
    assert_null(request);
}

int32_t trial_count_running(const struct trial *trial) {
    int32_t num_running;

    scheduler_get_running(trial->scheduler, &num_running);
    return num_running;
}

int32_t trial_count_free_blocks(const struct trial *trial) {
    return pkv_pool_get_num_free_blocks(pkv_manager_get_pool(trial->manager));
}

int32_t trial_count_hit_tokens(const struct trial *trial, const scheduler_request *request) {
    int32_t num_tokens = -1;

    assert_int_equal(pkv_get_computed_blocks(trial->manager, request->handle, &num_tokens), PKV_OK);
    return num_tokens;
}
