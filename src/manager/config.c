/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Life of a manager: reading and checking its configuration, laying everything out in one block of
 * memory, creation and destruction. */
#include <string.h>

#include "manager/group_config.h"
#include "manager/manager.h"

/* A configuration with its defaults put in, and what follows from it. The groups stay where the
 * caller has them; read_group reads one of them with its defaults. */
struct plan {
    pkv_manager_config config;
    int32_t hash_block_size; /* greatest common divisor of block sizes */
    int32_t alignment;       /* least common multiple */
    int32_t widest_block;
    struct pkvi_request_sizes sizes;
};

static int32_t greatest_common_divisor(int32_t a, int32_t b) {
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static pkv_status read_group(const pkv_manager_config *config,
                             int32_t index,
                             pkv_group_config *group,
                             const char **reason) {
    return pkvi_group_config_read(config->groups, index, config->block_size, group, reason);
}

/* Read the groups; compute what their block sizes have in common. */
static pkv_status plan_groups(struct plan *plan, const char **reason) {
    int64_t alignment = 1;

    plan->hash_block_size = 0;
    plan->widest_block = 0;
    for (int32_t i = 0; i < plan->config.num_groups; i++) {
        pkv_group_config group;
        pkv_status status = read_group(&plan->config, i, &group, reason);

        if (status != PKV_OK) {
            return status;
        }
        plan->hash_block_size = greatest_common_divisor(group.block_size, plan->hash_block_size);
        plan->widest_block =
            group.block_size > plan->widest_block ? group.block_size : plan->widest_block;
        alignment = alignment / greatest_common_divisor((int32_t)alignment, group.block_size) *
                    group.block_size;
        if (alignment > INT32_MAX) {
            *reason = "the least common multiple of the block sizes is too large";
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }
    plan->alignment = (int32_t)alignment;
    for (int32_t i = 0; i < plan->config.num_groups; i++) {
        pkv_group_config group;
        (void)read_group(&plan->config, i, &group, reason);
        if (group.retention_interval > 0 && group.retention_interval % plan->alignment != 0) {
            *reason = "retention_interval must be a multiple of all block sizes";
            return PKV_ERROR_INVALID_ARGUMENT;
        }
    }
    return PKV_OK;
}

static void put_defaults(pkv_manager_config *config) {
    int64_t requests;

    config->block_size = config->block_size == 0 ? PKV_DEFAULT_BLOCK_SIZE : config->block_size;
    config->num_groups = config->num_groups == 0 ? 1 : config->num_groups;
    config->max_rows = config->max_rows == 0 ? PKV_DEFAULT_MAX_ROWS : config->max_rows;
    requests = (int64_t)config->max_rows * PKV_DEFAULT_REQUESTS_PER_ROW;
    requests = requests > INT32_MAX ? INT32_MAX : requests;
    config->max_requests = config->max_requests == 0 ? (int32_t)requests : config->max_requests;
    config->max_held_rows = config->max_held_rows == 0 ? config->max_rows : config->max_held_rows;
    config->max_in_flight_tokens =
        config->max_in_flight_tokens == 0 ? config->max_model_len : config->max_in_flight_tokens;
    config->max_media_per_request = config->max_media_per_request == 0
                                        ? PKV_DEFAULT_MAX_MEDIA_PER_REQUEST
                                        : config->max_media_per_request;
}

static const char *config_problem(const pkv_manager_config *config) {
    if (config->num_blocks < 1 || config->num_blocks > PKV_MAX_BLOCKS) {
        return "num_blocks must be 1 to PKV_MAX_BLOCKS, the null block included";
    }
    if (config->max_model_len < 1) {
        return "max_model_len must be given";
    }
    if (config->block_size < 1 || config->num_groups < 1 || config->num_groups > PKV_MAX_GROUPS) {
        return "block_size is negative, or num_groups is not 1 to PKV_MAX_GROUPS";
    }
    if (config->num_groups > 1 && config->groups == NULL) {
        return "groups is NULL though num_groups is above 1";
    }
    if (config->max_rows < 1 || config->max_rows > PKV_MAX_REF_CNT / 4 ||
        config->max_held_rows < 1 || config->max_held_rows > PKV_MAX_REF_CNT / 4) {
        return "max_rows and max_held_rows must be positive and below PKV_MAX_REF_CNT / 4";
    }
    if (config->max_requests < config->max_rows) {
        return "max_requests must be at least max_rows";
    }
    if (config->max_blocks_per_request < 0 || config->max_in_flight_tokens < 1 ||
        config->max_total_tokens < 0 || config->max_media_per_request < 1 ||
        config->event_capacity < 0) {
        return "a maximum or capacity is negative";
    }
    if (!pkvi_allocator_is_valid(&config->allocator)) {
        return "the allocator must have both functions or neither";
    }
    if (config->min_partial_tokens < 0 ||
        (config->min_partial_tokens > 0 &&
         (!config->store_tokens || config->disable_prefix_cache))) {
        return "min_partial_tokens is negative, or needs store_tokens and a prefix cache";
    }
    return NULL;
}

/* Whether hits may continue into a block. */
static pkv_status check_partial(const struct plan *plan, const char **reason) {
    if (plan->config.min_partial_tokens == 0) {
        return PKV_OK;
    }
    if (plan->hash_block_size != plan->alignment) {
        *reason = "min_partial_tokens needs one block size in all groups";
        return PKV_ERROR_UNSUPPORTED;
    }
    for (int32_t i = 0; i < plan->config.num_groups; i++) {
        pkv_group_config group;

        (void)read_group(&plan->config, i, &group, reason);
        if (group.eagle) {
            *reason = "min_partial_tokens and eagle exclude each other: the last block of a hit is "
                      "to be computed again";
            return PKV_ERROR_UNSUPPORTED;
        }
    }
    if (plan->config.zero_on_free) {
        *reason = "min_partial_tokens and zero_on_free exclude each other: a copy brings rows of "
                  "others along";
        return PKV_ERROR_UNSUPPORTED;
    }
    if (plan->config.min_partial_tokens >= plan->alignment) {
        *reason = "min_partial_tokens must be below the block size";
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return PKV_OK;
}

static pkv_status make_plan(const pkv_manager_config *config,
                            struct plan *plan,
                            const char **reason) {
    pkv_status status = pkvi_read_struct(&plan->config, sizeof plan->config,
                                         sizeof plan->config.struct_size, config);
    const char *problem;
    int64_t slots;

    *reason = "";
    if (status != PKV_OK) {
        *reason = status == PKV_ERROR_UNSUPPORTED ? "a field of a later version is set"
                                                  : "config is NULL or its struct_size is not set";
        return status;
    }
    put_defaults(&plan->config);
    problem = config_problem(&plan->config);
    if (problem != NULL) {
        *reason = problem;
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = plan_groups(plan, reason);
    if (status == PKV_OK) {
        status = check_partial(plan, reason);
    }
    if (status != PKV_OK) {
        return status;
    }
    slots = (int64_t)plan->config.num_blocks * plan->widest_block * PKV_DEFAULT_TOKENS_PER_SLOT;
    slots = slots < plan->config.max_model_len ? plan->config.max_model_len : slots;
    plan->sizes.max_requests = plan->config.max_requests;
    plan->sizes.max_model_len = plan->config.max_model_len;
    plan->sizes.max_media = plan->config.max_media_per_request;
    plan->sizes.hash_block_size = plan->hash_block_size;
    plan->sizes.alignment = plan->alignment;
    plan->sizes.max_total_tokens =
        plan->config.max_total_tokens == 0 ? slots : plan->config.max_total_tokens;
    plan->sizes.computes_keys = !plan->config.disable_prefix_cache;
    plan->sizes.hash_keys = (struct pkvi_hash_keys){
        plan->config.hash_seed, {plan->config.key_secret[0], plan->config.key_secret[1]}};
    if (!pkvi_request_sizes_fit(&plan->sizes)) {
        *reason = "max_total_tokens is too large";
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    return PKV_OK;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* Columns of a row: enough for max_model_len, unless the configuration says otherwise. */
static int32_t row_width(const struct plan *plan, int32_t block_size) {
    if (plan->config.max_blocks_per_request > 0) {
        return plan->config.max_blocks_per_request;
    }
    return (int32_t)(((int64_t)plan->config.max_model_len + block_size - 1) / block_size);
}

static void set_group(struct pkvi_group *group,
                      const struct plan *plan,
                      const pkv_group_config *config) {
    int64_t cap =
        pkvi_group_admission_cap(config->kind, config->block_size, config->window,
                                 plan->config.max_in_flight_tokens, plan->config.max_model_len);

    group->kind = config->kind;
    group->block_size = config->block_size;
    group->window = config->window;
    group->eagle = config->eagle;
    group->retention_interval = config->retention_interval;
    group->key_stride = config->block_size / plan->hash_block_size;
    group->alignment = plan->alignment;
    group->need =
        (int32_t)(((int64_t)config->window - 1 + config->block_size - 1) / config->block_size);
    group->max_admitted_blocks = cap > INT32_MAX ? INT32_MAX : (int32_t)cap;
}

/* The first group of equal spec; groups of one class are looked up together. */
static int32_t class_of(const struct pkvi_group *groups, int32_t index) {
    for (int32_t i = 0; i < index; i++) {
        if (groups[i].kind == groups[index].kind && groups[i].window == groups[index].window &&
            groups[i].block_size == groups[index].block_size &&
            groups[i].eagle == groups[index].eagle) {
            return i;
        }
    }
    return index;
}

static pkv_pool *build_pool(const struct plan *plan,
                            struct pkvi_carver *carver,
                            const int32_t *block_sizes) {
    pkv_pool_config config = {0};

    config.num_blocks = plan->config.num_blocks;
    config.num_groups = plan->config.num_groups;
    config.block_size = plan->widest_block; /* decides the room for stored tokens */
    config.block_sizes = block_sizes;
    config.event_capacity = plan->config.event_capacity;
    config.disable_prefix_cache = plan->config.disable_prefix_cache;
    config.store_tokens = plan->config.store_tokens;
    config.fill_new_blocks = plan->config.fill_new_blocks || plan->config.zero_on_free;
    return pkvi_pool_build(&config, carver);
}

/* Lay a manager out in `carver` and, where that has memory, build it. NULL while measuring. */
static pkv_manager *build(const struct plan *plan, struct pkvi_carver *carver) {
    size_t num_groups = (size_t)plan->config.num_groups;
    int32_t num_storages = plan->config.max_rows + plan->config.max_held_rows;
    pkv_manager *manager = pkvi_carve(carver, 1, sizeof *manager);
    pkv_manager layout;
    int32_t *block_sizes = pkvi_carve(carver, num_groups, sizeof *block_sizes);
    struct pkvi_child_index children = {0};
    pkv_block_id **block_ids;
    pkv_block_id *sources;

    memset(&layout, 0, sizeof layout);
    layout.groups = pkvi_carve(carver, num_groups, sizeof *layout.groups);
    layout.lookup = pkvi_carve(carver, 1, sizeof *layout.lookup);
    layout.error = pkvi_carve(carver, 1, sizeof *layout.error);
    block_ids = pkvi_carve(carver, num_groups, sizeof *block_ids);
    sources = pkvi_carve(carver, num_groups, sizeof *sources);
    pkvi_row_map_carve(&layout.rows, carver, plan->config.max_rows, plan->config.max_held_rows);
    pkvi_request_map_carve(&layout.requests, carver, &plan->sizes);
    pkvi_copy_list_carve(&layout.copies, carver, plan->config.num_blocks);
    for (int32_t i = 0; i < plan->config.num_groups; i++) {
        struct pkvi_group group;
        pkv_group_config config;
        pkv_block_id *found;
        const char *reason;

        memset(&group, 0, sizeof group);
        (void)read_group(&plan->config, i, &config, &reason);
        set_group(&group, plan, &config);
        pkvi_table_carve(&group.table, carver, num_storages, row_width(plan, config.block_size));
        found = pkvi_carve(carver, (size_t)group.table.width, sizeof *found);
        if (manager != NULL) {
            layout.groups[i] = group;
            layout.groups[i].class_index = class_of(layout.groups, i);
            block_sizes[i] = config.block_size;
            block_ids[i] = found;
        }
    }
    layout.pool = build_pool(plan, carver, block_sizes);
    if (plan->config.min_partial_tokens > 0) {
        pkvi_child_index_carve(&children, carver, plan->config.num_blocks);
    }
    if (manager == NULL) {
        return NULL;
    }
    layout.pool->children = children;
    memset(layout.lookup, 0, sizeof *layout.lookup);
    memset(layout.error, 0, sizeof *layout.error);
    layout.lookup->block_ids = block_ids;
    layout.lookup->sources = sources;
    layout.num_groups = plan->config.num_groups;
    layout.max_model_len = plan->config.max_model_len;
    layout.min_partial_tokens = plan->config.min_partial_tokens;
    layout.zero_on_free = plan->config.zero_on_free;
    layout.allocator = plan->config.allocator;
    *manager = layout;
    return manager;
}

static size_t measure(const struct plan *plan) {
    struct pkvi_carver carver = {NULL, 0, false};

    (void)build(plan, &carver);
    return carver.overflowed ? 0 : carver.offset;
}

/* ---- life ------------------------------------------------------------------------------------ */

pkv_status pkv_manager_config_check(const pkv_manager_config *config, const char **reason) {
    struct plan plan;
    const char *text;
    pkv_status status = make_plan(config, &plan, &text);

    if (reason != NULL) {
        *reason = text;
    }
    return status;
}

size_t pkv_manager_size(const pkv_manager_config *config) {
    struct plan plan;
    const char *reason;

    return make_plan(config, &plan, &reason) == PKV_OK ? measure(&plan) : 0;
}

pkv_status pkv_manager_init(const pkv_manager_config *config,
                            void *memory,
                            size_t size,
                            pkv_manager **out) {
    struct plan plan;
    const char *reason;
    struct pkvi_carver carver = {memory, 0, false};
    size_t needed;
    pkv_status status;

    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = NULL;
    status = make_plan(config, &plan, &reason);
    if (status != PKV_OK) {
        return status;
    }
    needed = measure(&plan);
    if (!pkvi_memory_fits(memory, size, needed)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = build(&plan, &carver);
    (*out)->memory_size = needed;
    return PKV_OK;
}

pkv_status pkv_manager_create(const pkv_manager_config *config, pkv_manager **out) {
    struct plan plan;
    const char *reason;
    size_t size;
    void *memory;
    pkv_status status;

    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    *out = NULL;
    status = make_plan(config, &plan, &reason);
    if (status != PKV_OK) {
        PKVI_LOG_REFUSED(config, reason);
        return status;
    }
    size = measure(&plan);
    memory = size == 0 ? NULL : pkvi_allocate(&plan.config.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    status = pkv_manager_init(config, memory, size, out);
    if (status != PKV_OK) {
        pkvi_release(&plan.config.allocator, memory, size);
        return status;
    }
    (*out)->owns_memory = true;
    return PKV_OK;
}

void pkv_manager_destroy(pkv_manager *manager) {
    if (manager != NULL && manager->owns_memory) {
        pkv_allocator allocator = manager->allocator;
        pkvi_release(&allocator, manager, manager->memory_size);
    }
}

const char *pkv_manager_last_error(const pkv_manager *manager) {
    return manager == NULL ? "" : manager->error->text;
}

const pkv_pool *pkv_manager_get_pool(const pkv_manager *manager) {
    return manager == NULL ? NULL : manager->pool;
}
