/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Configurations and the drawing of small things. Pools are small, so that they are always full;
 * vocabularies are tiny, so that prompts share prefixes by accident and by design. */
#include "support/sim_manager.h"

#include <string.h>

#define NUM_FAMILIES 3

int32_t sim_draw(sim *self, int32_t bound) {
    return test_draw(self->source, bound);
}

int32_t sim_draw_between(sim *self, int32_t low, int32_t high) {
    return test_draw_between(self->source, low, high);
}

bool sim_once_in(sim *self, int32_t n) {
    return test_draw_once_in(self->source, n);
}

void sim_draw_tokens(sim *self, int32_t *tokens, int32_t num_tokens) {
    int32_t family = sim_draw(self, NUM_FAMILIES);
    int32_t num_shared = sim_once_in(self, 2) ? num_tokens : sim_draw(self, num_tokens + 1);
    test_rand shared = {(uint64_t)family};
    test_rand own = {1000 + (uint64_t)sim_draw(self, 256)};

    for (int32_t i = 0; i < num_tokens; i++) {
        uint64_t of_family = test_rand_next(&shared);
        uint64_t value = i < num_shared ? of_family : test_rand_next(&own);
        tokens[i] = (int32_t)(value % (uint64_t)self->vocabulary);
    }
}

int32_t sim_draw_slot(sim *self) {
    int32_t num_open = 0;
    int32_t chosen;

    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        num_open += self->model.requests[i].is_open ? 1 : 0;
    }
    chosen = sim_draw(self, num_open);
    for (int32_t i = 0; i < MODEL_MAX_REQUESTS; i++) {
        if (self->model.requests[i].is_open && chosen-- == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- configuration --------------------------------------------------------------------------- */

static void draw_group(sim *self, pkv_group_config *group, int32_t base) {
    static const int32_t factors[] = {1, 1, 1, 2, 4, 3};
    int32_t kind = sim_draw(self, 5);

    *group = (pkv_group_config){.struct_size = sizeof *group};
    group->block_size = base * factors[sim_draw(self, self->config.num_groups > 1 ? 6 : 3)];
    if (group->block_size > MODEL_MAX_BLOCK_SIZE) {
        group->block_size = base;
    }
    if (kind <= 1) {
        group->eagle = sim_once_in(self, 6);
        return;
    }
    group->kind = kind <= 3 ? PKV_GROUP_SLIDING_WINDOW : PKV_GROUP_CHUNKED_LOCAL;
    group->window = 1 + sim_draw(self, 5 * group->block_size);
    if (group->kind == PKV_GROUP_CHUNKED_LOCAL && !sim_once_in(self, 4)) {
        group->window = group->block_size * (1 + sim_draw(self, 4));
    }
    group->eagle = group->kind == PKV_GROUP_SLIDING_WINDOW && sim_once_in(self, 6);
}

static int32_t alignment_of(const sim *self) {
    int32_t alignment = 1;

    for (int32_t i = 0; i < self->config.num_groups; i++) {
        int32_t multiple = alignment;
        while (multiple % self->groups[i].block_size != 0) {
            multiple += alignment;
        }
        alignment = multiple;
    }
    return alignment;
}

static void draw_groups(sim *self) {
    static const int32_t bases[] = {1, 2, 2, 4, 4, 4, 16};
    int32_t base = bases[sim_draw(self, 7)];
    int32_t alignment;

    self->config.num_groups = sim_once_in(self, 2) ? 1 : 1 + sim_draw(self, 4);
    self->config.block_size = base;
    self->config.groups = self->groups;
    for (int32_t i = 0; i < self->config.num_groups; i++) {
        draw_group(self, &self->groups[i], base);
        if (i > 0 && sim_once_in(self, 3)) {
            self->groups[i] = self->groups[i - 1];
        }
    }
    alignment = alignment_of(self);
    for (int32_t i = 0; i < self->config.num_groups; i++) {
        if (self->groups[i].kind == PKV_GROUP_SLIDING_WINDOW && sim_once_in(self, 3)) {
            self->groups[i].retention_interval = sim_once_in(self, 2)
                                                     ? PKV_RETENTION_TAIL_ONLY
                                                     : alignment * (1 + sim_draw(self, 3));
        }
    }
    if (sim_once_in(self, 8)) { /* the default: one full-attention group */
        self->config.num_groups = 0;
        self->config.groups = NULL;
    }
}

static void draw_sizes(sim *self, bool is_engine) {
    pkv_manager_config *config = &self->config;
    int32_t num_groups = config->num_groups == 0 ? 1 : config->num_groups;
    int32_t most = is_engine ? 160 : 100;

    config->max_model_len =
        sim_once_in(self, 12) ? 1 + sim_draw(self, 8) : sim_draw_between(self, 8, most);
    config->num_blocks = is_engine ? num_groups * sim_draw_between(self, 6, 24) + 2
                                   : 1 + num_groups * sim_draw(self, 16) + sim_draw(self, 16);
    if (sim_once_in(self, 10)) {
        config->num_blocks = sim_draw_between(self, 100, 400);
    }
    config->max_rows = 1 + sim_draw(self, is_engine ? 10 : 7);
    config->max_requests = config->max_rows + sim_draw(self, 14);
    config->max_requests += sim_once_in(self, 4) ? 0 : 4;
    config->max_held_rows = sim_once_in(self, 2) ? 0 : 1 + sim_draw(self, 4);
    config->max_blocks_per_request = 0;
    if (!is_engine && sim_once_in(self, 6)) {
        config->max_blocks_per_request = 1 + sim_draw(self, config->max_model_len);
    }
    config->max_in_flight_tokens = sim_once_in(self, 2) ? 0 : 1 + sim_draw(self, 20);
    config->max_total_tokens = (int64_t)config->max_requests * config->max_model_len;
    if (sim_once_in(self, 6)) {
        config->max_total_tokens = sim_once_in(self, 4) ? 0 : 1 + config->max_total_tokens / 3;
    }
    config->max_media_per_request = sim_once_in(self, 2) ? 0 : 1 + sim_draw(self, MODEL_MAX_MEDIA);
    config->event_capacity = sim_once_in(self, 3)   ? 0
                             : sim_once_in(self, 3) ? 1 + sim_draw(self, 12)
                                                    : MODEL_MAX_EVENTS;
}

/* Let hits go on into blocks, where the rest of the configuration has nothing against it. */
static void draw_partial(sim *self) {
    pkv_manager_config *config = &self->config;
    int32_t block_size = config->num_groups > 0 ? self->groups[0].block_size : config->block_size;
    bool is_possible = !config->disable_prefix_cache && block_size > 1;

    for (int32_t i = 0; i < config->num_groups; i++) {
        is_possible =
            is_possible && !self->groups[i].eagle && self->groups[i].block_size == block_size;
    }
    if (is_possible) {
        config->store_tokens = true;
        config->zero_on_free = false;
        config->min_partial_tokens =
            sim_once_in(self, 2) ? 1 : sim_draw_between(self, 1, block_size - 1);
    }
}

/* Spoil one thing in a legal configuration. */
static void spoil(sim *self, pkv_manager_config *config, pkv_group_config *groups) {
    switch (sim_draw(self, 12)) {
    case 0:
        config->num_blocks = sim_draw(self, 2) - 1;
        break;
    case 1:
        config->max_model_len = sim_draw(self, 2) - 1;
        break;
    case 2:
        config->struct_size = (uint32_t)sim_draw(self, 4);
        break;
    case 3:
        config->num_groups = -1;
        break;
    case 4:
        config->num_groups = 2;
        config->groups = NULL;
        break;
    case 5:
        config->block_size = -1;
        break;
    case 6:
        config->max_rows = -1;
        break;
    case 7:
        config->event_capacity = -1;
        break;
    case 8:
        config->max_total_tokens = -1;
        break;
    case 9:
        config->allocator.release = NULL;
        break;
    case 10:
        config->num_blocks = PKV_MAX_BLOCKS + 1;
        break;
    default:
        groups[0] = (pkv_group_config){.struct_size = sizeof groups[0],
                                       .kind = PKV_GROUP_SLIDING_WINDOW,
                                       .window = sim_draw(self, 2) - 1};
        config->groups = groups;
        config->num_groups = 1;
        break;
    }
}

/* A configuration that is wrong is refused by everybody alike, and nothing is allocated. */
static void refuse_spoilt(sim *self) {
    pkv_manager_config config = self->config;
    pkv_group_config groups[1];
    pkv_manager *manager = (pkv_manager *)&config;
    const char *reason = "";

    spoil(self, &config, groups);
    if (pkv_manager_config_check(&config, &reason) != PKV_ERROR_INVALID_ARGUMENT ||
        reason == NULL || reason[0] == '\0' || pkv_manager_size(&config) != 0 ||
        pkv_manager_create(&config, &manager) != PKV_ERROR_INVALID_ARGUMENT || manager != NULL ||
        self->allocator.num_calls != 0) {
        sim_problem(self->log, "a wrong configuration is not refused: %s", reason);
    }
}

static bool create(sim *self) {
    const char *reason = NULL;
    size_t size = pkv_manager_size(&self->config);

    if (pkv_manager_config_check(&self->config, &reason) != PKV_OK || reason == NULL ||
        reason[0] != '\0' || size == 0) {
        sim_problem(self->log, "a legal configuration is refused: %s", reason);
        return false;
    }
    if (pkv_manager_create(&self->config, &self->manager) != PKV_OK) {
        sim_problem(self->log, "a manager could not be created");
        return false;
    }
    if (self->allocator.num_calls != 1 || self->allocator.live_size != size) {
        sim_problem(self->log, "I26: %lld allocations, %zu bytes of %zu",
                    (long long)self->allocator.num_calls, self->allocator.live_size, size);
    }
    return true;
}

bool sim_open(sim *self,
              test_source *source,
              sim_log *log,
              sim_counts *counts,
              bool is_engine,
              int32_t tier_in) {
    bool has_tier;

    self->source = source;
    self->log = log;
    self->counts = counts;
    self->manager = NULL;
    self->tier = NULL;
    self->step = 0;
    self->num_handles = 0;
    self->has_false_keys = false;
    memset(&self->allocator, 0, sizeof self->allocator);
    memset(&self->config, 0, sizeof self->config);
    memset(self->states, 0, sizeof self->states);
    sim_consumer_clear(&self->consumer);
    sim_say(log, "create");
    self->config.struct_size = sizeof self->config;
    draw_groups(self);
    draw_sizes(self, is_engine);
    has_tier = sim_once_in(self, tier_in);
    self->config.disable_prefix_cache = !has_tier && sim_once_in(self, 12);
    self->config.store_tokens = sim_once_in(self, 2);
    self->config.fill_new_blocks = sim_once_in(self, 3);
    self->config.zero_on_free = sim_once_in(self, 4);
    if (sim_once_in(self, 2)) {
        draw_partial(self);
    }
    self->config.hash_seed = (uint64_t)sim_draw(self, 3);
    self->config.key_secret[0] = (uint64_t)sim_draw(self, 2) * UINT64_C(0x0123456789abcdef);
    self->config.key_secret[1] = (uint64_t)sim_draw(self, 2);
    self->allocator.leaves_garbage = sim_once_in(self, 3);
    self->config.allocator = counting_alloc_hooks(&self->allocator);
    self->vocabulary = 1 + sim_draw(self, 3);
    if (sim_once_in(self, 2)) {
        refuse_spoilt(self);
    }
    if (!create(self)) {
        return false;
    }
    model_manager_init(&self->model, &self->config);
    return !has_tier || sim_open_tier(self);
}

void sim_close(sim *self) {
    int64_t num_objects = self->tier != NULL ? 2 : 1;

    if (self->tier != NULL) {
        sim_close_tier(self);
        sim_compare(self);
    }
    sim_say(self->log, "destroy");
    pkv_manager_destroy(self->manager);
    if (counting_alloc_complaint(&self->allocator) != NULL ||
        self->allocator.num_calls != num_objects) {
        sim_problem(self->log, "I26: %lld allocations, %s", (long long)self->allocator.num_calls,
                    counting_alloc_complaint(&self->allocator));
    }
}
