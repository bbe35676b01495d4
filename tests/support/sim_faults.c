/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Calls that are wrong whatever the state is: NULL, structs of wrong sizes, fields of later
 * versions. None may change anything, which the comparison after this step shows. */
#include "support/sim_manager.h"

#include <string.h>

#define LATER_SIZE 512

struct fault {
    const char *name;
    pkv_status status, expected;
};

static void judge_faults(sim *self, const struct fault *faults, size_t num_faults) {
    for (size_t i = 0; i < num_faults; i++) {
        sim_say(self->log, "fault %s", faults[i].name);
        (void)sim_judge(self, faults[i].status, MODEL_STATUS(faults[i].expected));
    }
}

#define FAULT(call, expected)                                                                      \
    { #call, call, expected }
#define INVALID(call) FAULT(call, PKV_ERROR_INVALID_ARGUMENT)

/* No manager. */
static void without_manager(sim *self) {
    pkv_request request = {0, 1};
    pkv_block_id id = 1;
    const pkv_block_id *ids;
    int32_t count;
    int32_t token = 1;
    uint64_t dropped;
    pkv_event event;
    pkv_table_update update;
    pkv_block_copy copy;
    pkv_block_key key = {0, 0, 0};
    pkv_request_args open = {.struct_size = sizeof open, .token_ids = &token, .num_tokens = 1};
    pkv_slots_args args = {.struct_size = sizeof args, .num_new_tokens = 1};
    pkv_stats stats = {.struct_size = sizeof stats};
    pkv_request_info info = {.struct_size = sizeof info};
    pkv_batch batch = {.struct_size = sizeof batch};
    const struct fault faults[] = {
        INVALID(pkv_request_open(NULL, &open, &request)),
        INVALID(pkv_request_append(NULL, request, &token, 1)),
        INVALID(pkv_request_append_keys(NULL, request, &key, 1)),
        INVALID(pkv_request_close(NULL, request)),
        INVALID(pkv_request_get_info(NULL, request, &info)),
        INVALID(pkv_request_get_tokens(NULL, request, 0, 1, &token)),
        INVALID(pkv_request_get_keys(NULL, request, 0, 1, &key)),
        INVALID(pkv_get_computed_blocks(NULL, request, &count)),
        INVALID(pkv_get_computed_block_ids(NULL, request, 0, &id, 1, &count)),
        INVALID(pkv_allocate_slots(NULL, request, &args, NULL)),
        INVALID(pkv_get_new_block_ids(NULL, request, 0, &ids, &count)),
        INVALID(pkv_cache_blocks(NULL, request, 1)),
        INVALID(pkv_remove_skipped_blocks(NULL, request, 1)),
        INVALID(pkv_free(NULL, request)),
        INVALID(pkv_fork(NULL, request, 1, &request)),
        INVALID(pkv_truncate(NULL, request, 1)),
        INVALID(pkv_take_copies(NULL, 0, &copy, 1, &count)),
        INVALID(pkv_free_after(NULL, request, 1)),
        INVALID(pkv_step_complete(NULL, 1)),
        INVALID(pkv_step_fail(NULL, 1)),
        INVALID(pkv_unschedule(NULL, request, 1)),
        INVALID(pkv_evict_blocks(NULL, &id, 1)),
        INVALID(pkv_reset_prefix_cache(NULL)),
        INVALID(pkv_get_num_common_prefix_blocks(NULL, request, 0, &count)),
        INVALID(pkv_get_block_table(NULL, request, 0, &ids, &count)),
        INVALID(pkv_take_table_updates(NULL, 0, &update, 1, &count)),
        INVALID(pkv_mark_tables_dirty(NULL)),
        INVALID(pkv_batch_build(NULL, 0, NULL, 0, &batch)),
        INVALID(pkv_export_padded(NULL, 0, NULL, 0, &id, 1, 0)),
        INVALID(pkv_export_csr(NULL, 0, NULL, 0, false, &count, &id, 1, &count, &count)),
        INVALID(pkv_take_fills(NULL, 0, &id, 1, &count)),
        INVALID(pkv_take_events(NULL, &event, 1, &count, &dropped)),
        INVALID(pkv_get_stats(NULL, &stats)),
        INVALID(pkv_manager_check(NULL)),
    };

    judge_faults(self, faults, sizeof faults / sizeof faults[0]);
    pkv_manager_destroy(NULL);
    if (pkv_manager_get_pool(NULL) != NULL || pkv_manager_last_error(NULL) == NULL) {
        sim_problem(self->log, "no manager has a pool, or no text of its last error");
    }
}

/* Missing outputs and arrays, negative counts, groups that are not there. */
static void with_bad_arguments(sim *self) {
    pkv_manager *manager = self->manager;
    pkv_block_id id = 1;
    int32_t count;
    int32_t token = 1;
    pkv_event event;
    pkv_table_update update;
    pkv_batch batch = {.struct_size = sizeof batch};
    pkv_request_args open = {.struct_size = sizeof open, .token_ids = &token, .num_tokens = 1};
    pkv_request request;
    const struct fault faults[] = {
        INVALID(pkv_request_open(manager, NULL, &request)),
        INVALID(pkv_request_open(manager, &open, NULL)),
        INVALID(pkv_step_complete(manager, 0)),
        INVALID(pkv_step_fail(manager, 0)),
        INVALID(pkv_evict_blocks(manager, NULL, 1)),
        INVALID(pkv_evict_blocks(manager, &id, -1)),
        INVALID(pkv_evict_blocks(manager, &id, INT32_MIN)),
        INVALID(pkv_take_table_updates(manager, 0, NULL, 1, &count)),
        INVALID(pkv_take_table_updates(manager, 0, &update, -1, &count)),
        INVALID(pkv_take_table_updates(manager, 0, &update, 1, NULL)),
        INVALID(pkv_take_table_updates(manager, -1, &update, 1, &count)),
        INVALID(pkv_take_fills(manager, 0, NULL, 1, &count)),
        INVALID(pkv_take_fills(manager, 0, &id, 1, NULL)),
        INVALID(pkv_take_fills(manager, 0, &id, -1, &count)),
        INVALID(pkv_take_events(manager, NULL, 1, &count, NULL)),
        INVALID(pkv_take_events(manager, &event, -1, &count, NULL)),
        INVALID(pkv_take_events(manager, &event, 1, NULL, NULL)),
        INVALID(pkv_batch_build(manager, 0, NULL, 1, &batch)),
        INVALID(pkv_batch_build(manager, 0, NULL, -1, &batch)),
        INVALID(pkv_batch_build(manager, 0, NULL, 0, NULL)),
        INVALID(pkv_export_padded(manager, 0, NULL, 1, &id, 1, 0)),
        INVALID(pkv_export_padded(manager, 0, NULL, -1, &id, 1, 0)),
        INVALID(pkv_export_padded(manager, INT32_MAX, NULL, 0, &id, 1, 0)),
        INVALID(pkv_export_csr(manager, 0, NULL, 1, false, &count, &id, 1, &count, &count)),
        INVALID(pkv_export_csr(manager, -1, NULL, 0, false, &count, &id, 1, &count, &count)),
        INVALID(pkv_get_stats(manager, NULL)),
    };

    judge_faults(self, faults, sizeof faults / sizeof faults[0]);
}

/* The same for calls on a request that is there. */
static void with_bad_arguments_of(sim *self, const model_request *own) {
    pkv_manager *manager = self->manager;
    pkv_request request = own->handle;
    pkv_block_id id = 1;
    const pkv_block_id *ids;
    int32_t count;
    int32_t token = 1;
    pkv_block_key key;
    const struct fault faults[] = {
        INVALID(pkv_request_append(manager, request, NULL, 1)),
        INVALID(pkv_request_append(manager, request, &token, 0)),
        INVALID(pkv_request_append(manager, request, &token, INT32_MIN)),
        INVALID(pkv_request_append_keys(manager, request, NULL, 1)),
        INVALID(pkv_request_append_keys(manager, request, &key, -1)),
        INVALID(pkv_request_get_info(manager, request, NULL)),
        INVALID(pkv_request_get_tokens(manager, request, -1, 1, &token)),
        INVALID(pkv_request_get_tokens(manager, request, own->num_tokens, 1, &token)),
        INVALID(pkv_request_get_tokens(manager, request, INT32_MAX, INT32_MAX, &token)),
        INVALID(pkv_request_get_tokens(manager, request, 0, 1, NULL)),
        INVALID(pkv_request_get_keys(manager, request, 0, own->num_keys + 1, &key)),
        INVALID(pkv_request_get_keys(manager, request, 1, INT32_MAX, &key)),
        INVALID(pkv_get_computed_blocks(manager, request, NULL)),
        INVALID(pkv_get_computed_block_ids(manager, request, -1, &id, 1, &count)),
        INVALID(pkv_get_computed_block_ids(manager, request, 0, &id, -1, &count)),
        INVALID(pkv_get_computed_block_ids(manager, request, 0, &id, 1, NULL)),
        INVALID(pkv_allocate_slots(manager, request, NULL, NULL)),
        INVALID(pkv_get_new_block_ids(manager, request, 0, NULL, &count)),
        INVALID(pkv_get_new_block_ids(manager, request, 0, &ids, NULL)),
        INVALID(pkv_get_new_block_ids(manager, request, self->model.num_groups, &ids, &count)),
        INVALID(pkv_get_block_table(manager, request, 0, NULL, &count)),
        INVALID(pkv_get_block_table(manager, request, 0, &ids, NULL)),
        INVALID(pkv_get_block_table(manager, request, -1, &ids, &count)),
        INVALID(pkv_get_num_common_prefix_blocks(manager, request, 0, NULL)),
        INVALID(pkv_get_num_common_prefix_blocks(manager, request, -1, &count)),
        INVALID(pkv_cache_blocks(manager, request, -1)),
        INVALID(pkv_cache_blocks(manager, request, INT32_MAX)),
        INVALID(pkv_remove_skipped_blocks(manager, request, INT32_MIN)),
        INVALID(pkv_unschedule(manager, request, 0)),
    };

    judge_faults(self, faults, sizeof faults / sizeof faults[0]);
}

/* A struct that ends too early, or has a later version's field set. */
static void with_wrong_sizes(sim *self, const model_request *own) {
    union {
        unsigned char bytes[LATER_SIZE];
        uint32_t struct_size;
        pkv_slots_args args;
        pkv_request_args open;
    } later;
    union {
        unsigned char bytes[LATER_SIZE];
        uint32_t struct_size;
        pkv_stats stats;
        pkv_slots slots;
        pkv_request_info info;
    } out;
    static const int32_t token = 1;
    pkv_request request;

    memset(&later, 0, sizeof later);
    later.struct_size = LATER_SIZE;
    later.args.num_new_tokens = 1;
    later.bytes[LATER_SIZE - 1] = 1;
    memset(&out, 0, sizeof out);
    {
        const struct fault faults[] = {
            FAULT(pkv_allocate_slots(self->manager, own->handle, &later.args, NULL),
                  PKV_ERROR_UNSUPPORTED),
            INVALID(pkv_get_stats(self->manager, &out.stats)),
            INVALID(pkv_request_get_info(self->manager, own->handle, &out.info)),
        };
        judge_faults(self, faults, sizeof faults / sizeof faults[0]);
    }
    memset(&later, 0, sizeof later);
    later.struct_size = LATER_SIZE;
    later.open.token_ids = &token;
    later.open.num_tokens = 1;
    later.bytes[LATER_SIZE - 8] = 1;
    {
        const struct fault faults[] = {
            FAULT(pkv_request_open(self->manager, &later.open, &request), PKV_ERROR_UNSUPPORTED),
        };
        judge_faults(self, faults, 1);
    }
    later.struct_size = 3;
    {
        pkv_slots_args args = {.struct_size = sizeof args, .num_new_tokens = 1};
        const struct fault faults[] = {
            INVALID(pkv_request_open(self->manager, &later.open, &request)),
            INVALID(pkv_allocate_slots(self->manager, own->handle, &later.args, NULL)),
            INVALID(pkv_allocate_slots(self->manager, own->handle, &args, &out.slots)),
        };
        judge_faults(self, faults, sizeof faults / sizeof faults[0]);
    }
}

void sim_call_faults(sim *self) {
    int32_t slot = sim_draw_slot(self);

    sim_say(self->log, "faults");
    without_manager(self);
    with_bad_arguments(self);
    if (slot >= 0) {
        with_bad_arguments_of(self, &self->model.requests[slot]);
        with_wrong_sizes(self, &self->model.requests[slot]);
    }
}
