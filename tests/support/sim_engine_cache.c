/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The array that stands for the cache on the device, and what steps do to it. */
#include "support/sim_engine.h"

#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b) {
    test_rand generator = {a ^ (b * UINT64_C(0xD6E8FEB86659FD93))};

    return test_rand_next(&generator);
}

void engine_compute_values(engine *self, int32_t slot) {
    const model_request *request = &self->sim.model.requests[slot];
    engine_request *own = &self->requests[slot];
    uint64_t value = mix(request->adapter_id, (uint64_t)request->salt_size);

    for (int32_t i = 0; i < request->salt_size; i++) {
        value = mix(value, request->salt[i]);
    }
    for (int32_t position = 0; position < ENGINE_MAX_TOKENS; position++) {
        value = mix(value, (uint64_t)own->tokens[position]);
        for (int32_t i = 0; i < request->num_media; i++) {
            const pkv_media *media = &request->media[i];
            if (position >= media->offset && position < media->offset + media->num_tokens) {
                value = mix(value, (uint64_t)(position - media->offset));
                value = mix(value, (uint64_t)media->digest[0] << 8 | media->digest[31]);
            }
        }
        own->values[position] = value;
    }
}

static uint64_t value_of(const engine_entry *entry, int32_t group, int32_t position) {
    uint64_t value = mix(entry->values[position], (uint64_t)group + 1);

    return position < entry->first_wrong ? value : ~value;
}

static uint64_t *place(engine *self, int32_t group, pkv_block_id block, int32_t position) {
    return &self->cache[block][position % self->sim.model.groups[group].block_size];
}

static void fill(engine *self, const engine_step *step) {
    for (int32_t i = 0; i < step->num_fills; i++) {
        for (int32_t offset = 0; offset < MODEL_MAX_BLOCK_SIZE; offset++) {
            self->cache[step->fills[i]][offset] = ENGINE_POISON;
        }
    }
}

static void copy(engine *self, const engine_step *step) {
    for (int32_t i = 0; i < step->num_copies; i++) {
        memcpy(self->cache[step->copies[i].target], self->cache[step->copies[i].source],
               sizeof self->cache[0]);
    }
}

static void load(engine *self, const engine_entry *entry) {
    for (int32_t group = 0; group < self->sim.model.num_groups; group++) {
        for (int32_t position = entry->load_first; position < entry->load_end; position++) {
            int32_t column = position / self->sim.model.groups[group].block_size;
            pkv_block_id block = entry->tables[group][column];
            if (block != PKV_NULL_BLOCK) {
                *place(self, group, block, position) = value_of(entry, group, position);
            }
        }
    }
}

static void write_new(engine *self, const engine_entry *entry) {
    for (int32_t group = 0; group < self->sim.model.num_groups; group++) {
        int64_t block_size = self->sim.model.groups[group].block_size;
        for (int32_t i = 0; i < entry->num_new_tokens; i++) {
            int64_t slot = entry->slots[group][i];
            if (slot != PKV_NO_SLOT) {
                self->cache[slot / block_size][slot % block_size] =
                    value_of(entry, group, entry->num_computed_tokens + i);
            }
        }
    }
}

/* Whether attention at position `query` looks at `position`, which is not behind it. */
static bool sees(const pkv_group_config *group, int32_t query, int32_t position) {
    switch (group->kind) {
    case PKV_GROUP_SLIDING_WINDOW:
        return query - position < group->window;
    case PKV_GROUP_CHUNKED_LOCAL:
        return query / group->window == position / group->window;
    case PKV_GROUP_FULL_ATTENTION:
    case PKV_GROUP_RECURRENT:
        break;
    }
    return true;
}

/* All that the queries of an entry can see, through the tables that the device had. */
static void read_all(engine *self, const engine_entry *entry, uint64_t step) {
    int32_t end = entry->num_computed_tokens + entry->num_new_tokens;

    for (int32_t group = 0; group < self->sim.model.num_groups && entry->num_new_tokens > 0;
         group++) {
        const pkv_group_config *config = &self->sim.model.groups[group];
        for (int32_t position = 0; position < end; position++) {
            pkv_block_id block = entry->tables[group][position / config->block_size];
            uint64_t found = block < 0 || block >= self->sim.model.pool.num_blocks
                                 ? ENGINE_GARBAGE
                                 : *place(self, group, block, position);
            if (position < entry->num_computed_tokens &&
                !sees(config, entry->num_computed_tokens, position)) {
                continue;
            }
            if (block == PKV_NULL_BLOCK || found != value_of(entry, group, position)) {
                sim_problem(self->sim.log,
                            "I27: step %llu, request {%u, %u}, group %d, position %d of %d + %d: "
                            "block %d holds %s",
                            (unsigned long long)step, entry->handle.index, entry->handle.generation,
                            group, position, entry->num_computed_tokens, entry->num_new_tokens,
                            block,
                            found == ENGINE_POISON    ? "a fill"
                            : found == ENGINE_GARBAGE ? "what a failed step left"
                                                      : "another token");
                return;
            }
            self->sim.counts->num_reads_verified++;
        }
    }
}

void engine_execute(engine *self, const engine_step *step) {
    fill(self, step);
    copy(self, step);
    engine_run_loads(self, step, true);
    for (int32_t i = 0; i < step->num_entries; i++) {
        load(self, &step->entries[i]);
    }
    for (int32_t i = 0; i < step->num_entries; i++) {
        write_new(self, &step->entries[i]);
    }
    for (int32_t i = 0; i < step->num_entries && !self->sim.log->has_failed; i++) {
        read_all(self, &step->entries[i], step->number);
    }
}

void engine_execute_failing(engine *self, const engine_step *step) {
    fill(self, step);
    engine_run_loads(self, step, false);
    for (int32_t i = 0; i < step->num_copies; i++) {
        for (int32_t offset = 0; offset < MODEL_MAX_BLOCK_SIZE; offset++) {
            self->cache[step->copies[i].target][offset] = ENGINE_GARBAGE;
        }
    }
    for (int32_t i = 0; i < step->num_entries; i++) {
        const engine_entry *entry = &step->entries[i];
        int32_t num_written = sim_draw(&self->sim, entry->num_new_tokens + 1);
        for (int32_t group = 0; group < self->sim.model.num_groups; group++) {
            int64_t block_size = self->sim.model.groups[group].block_size;
            for (int32_t j = 0; j < num_written; j++) {
                int64_t slot = entry->slots[group][j];
                uint64_t *found;
                if (slot == PKV_NO_SLOT) {
                    continue;
                }
                /* Writing again what stands there, as into a cached block, does no harm. */
                found = &self->cache[slot / block_size][slot % block_size];
                if (*found != value_of(entry, group, entry->num_computed_tokens + j)) {
                    *found = ENGINE_GARBAGE;
                }
            }
        }
    }
}

void engine_execute_load(engine *self, int32_t slot) {
    const engine_request *own = &self->requests[slot];
    const model_request *request = &self->sim.model.requests[slot];

    for (int32_t group = 0; group < self->sim.model.num_groups; group++) {
        for (int32_t position = own->load_first; position < own->load_end; position++) {
            int32_t column = position / self->sim.model.groups[group].block_size;
            pkv_block_id block = request->tables[group].ids[column];
            if (block != PKV_NULL_BLOCK) {
                *place(self, group, block, position) =
                    mix(own->values[position], (uint64_t)group + 1);
            }
        }
    }
}
