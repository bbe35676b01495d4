/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Statistics: gathering them from where they are counted, and writing them in the Prometheus text
 * format. Nothing is counted here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "manager/manager.h"

/* Slots of blocks in use. Where all groups have one block size a multiplication does. */
static int64_t used_slots(const pkv_manager *manager) {
    const pkv_pool *pool = manager->pool;
    int64_t num_slots = 0;

    for (int32_t g = 1; g < manager->num_groups; g++) {
        if (manager->groups[g].block_size != manager->groups[0].block_size) {
            for (pkv_block_id block = 1; block < pool->num_blocks; block++) {
                const struct pkvi_block_state *state = &pool->states[block];
                num_slots += state->ref_cnt > 0 ? pool->block_sizes[state->group] : 0;
            }
            return num_slots;
        }
    }
    return (int64_t)(pool->num_blocks - 1 - pool->free_queue.num_free) *
           manager->groups[0].block_size;
}

/* Split what one row has in one group: only its end is not written. Blocks there that the caller
 * let drop are not in use, and where another owner shares one the caller's count went back, and it
 * is written. */
static void split_row(const pkv_manager *manager, int32_t g, int32_t row, pkv_stats *stats) {
    int32_t block_size = manager->groups[g].block_size;
    int32_t num_blocks = pkvi_manager_row(manager, g, row)->num_blocks;
    int64_t num_live = manager->rows.num_live[row];
    int64_t most = manager->requests.requests[manager->rows.owner_of[row]].max_num_tokens;

    for (int32_t i = (int32_t)(num_live / block_size); i < num_blocks; i++) {
        pkv_block_id block = pkvi_manager_cells(manager, g, row)[i];
        int64_t begin = (int64_t)i * block_size;
        int64_t end = begin + block_size;
        int64_t reserved;

        if (block == PKV_NULL_BLOCK || manager->pool->states[block].ref_cnt > 1) {
            continue;
        }
        begin = begin < num_live ? num_live : begin;
        reserved = (most < end ? most : end) - begin;
        reserved = reserved > 0 ? reserved : 0;
        stats->num_reserved_slots += reserved;
        stats->num_internal_slots += end - begin - reserved;
        stats->num_live_slots -= end - begin;
    }
}

/* Split the slots in use. */
static void split_slots(const pkv_manager *manager, pkv_stats *stats) {
    stats->num_live_slots = used_slots(manager);
    for (int32_t row = 1; row <= manager->rows.max_rows; row++) {
        for (int32_t g = 0; g < manager->num_groups && manager->rows.storage_of[row] >= 0; g++) {
            split_row(manager, g, row, stats);
        }
    }
}

static void copy_counters(const pkv_manager *manager, pkv_stats *stats) {
    const struct pkvi_counters *counters = &manager->counters;
    const pkv_pool *pool = manager->pool;

    stats->num_lookups = counters->num_lookups;
    stats->num_lookup_tokens = counters->num_lookup_tokens;
    stats->num_hit_tokens = counters->num_hit_tokens;
    stats->num_resumes = counters->num_resumes;
    stats->num_resume_tokens = counters->num_resume_tokens;
    stats->num_resume_hit_tokens = counters->num_resume_hit_tokens;
    stats->num_allocations = counters->num_allocations;
    stats->num_no_free_blocks = counters->num_no_free_blocks;
    stats->num_no_free_rows = counters->num_no_free_rows;
    stats->num_never_fits = counters->num_never_fits;
    stats->num_frees = counters->num_frees;
    stats->num_keys_withdrawn = counters->num_keys_withdrawn;
    stats->num_blocks_allocated = pool->num_blocks_allocated;
    stats->num_blocks_evicted = pool->num_blocks_evicted;
    stats->num_keys_published = pool->num_keys_published;
    stats->num_collisions_rejected = pool->index->num_collisions_rejected;
    stats->num_index_slots_probed = pool->index->num_probes;
    stats->num_events_dropped = pool->events.num_dropped_total;
    stats->num_forks = counters->num_forks;
    stats->num_copies = counters->num_copies;
    stats->num_partial_hits = counters->num_partial_hits;
    stats->num_partial_hit_tokens = counters->num_partial_hit_tokens;
}

pkv_status pkv_get_stats(const pkv_manager *manager, pkv_stats *out) {
    pkv_stats stats = {0};
    const pkv_pool *pool;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pool = manager->pool;
    stats.num_blocks = pool->num_blocks;
    stats.num_free_blocks = pool->free_queue.num_free;
    stats.num_cached_blocks = pool->index->num_keyed;
    stats.num_distinct_keys = pool->index->num_distinct;
    stats.num_pending_blocks = pkvi_manager_count_pending(manager);
    stats.num_requests = manager->requests.num_open;
    stats.num_rows = manager->rows.num_leased;
    if (pool->num_blocks > 1) {
        stats.usage = 1.0 - (double)pool->free_queue.num_free / (double)(pool->num_blocks - 1);
    }
    split_slots(manager, &stats);
    copy_counters(manager, &stats);
    if (pkvi_write_struct(out, &stats, sizeof stats, sizeof stats.struct_size) != PKV_OK) {
        return PKVI_INVALID(manager, "out is NULL or its struct_size is not set");
    }
    return PKV_OK;
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

struct writer {
    char *buffer;
    size_t capacity;
    size_t size; /* bytes wanted so far */
    const char *labels;
};

static void write_text(struct writer *writer, const char *text) {
    for (; *text != '\0'; text++, writer->size++) {
        if (writer->size + 1 < writer->capacity) {
            writer->buffer[writer->size] = *text;
        }
    }
}

static void write_head(struct writer *writer,
                       const char *name,
                       const char *type,
                       const char *help) {
    write_text(writer, "# HELP pagedkv_");
    write_text(writer, name);
    write_text(writer, " ");
    write_text(writer, help);
    write_text(writer, "\n# TYPE pagedkv_");
    write_text(writer, name);
    write_text(writer, " ");
    write_text(writer, type);
    write_text(writer, "\npagedkv_");
    write_text(writer, name);
    if (writer->labels[0] != '\0') {
        write_text(writer, "{");
        write_text(writer, writer->labels);
        write_text(writer, "}");
    }
    write_text(writer, " ");
}

static void write_counter(struct writer *writer,
                          const char *name,
                          const char *help,
                          uint64_t value) {
    char digits[32];

    write_head(writer, name, "counter", help);
    (void)snprintf(digits, sizeof digits, "%" PRIu64 "\n", value);
    write_text(writer, digits);
}

static void write_gauge(struct writer *writer, const char *name, const char *help, int64_t value) {
    char digits[32];

    write_head(writer, name, "gauge", help);
    (void)snprintf(digits, sizeof digits, "%" PRId64 "\n", value);
    write_text(writer, digits);
}

/* A share from 0 to 1 to six places. Digit by digit, since printf writes the point of the program's
 * locale, which need not be a point. */
static void write_ratio(struct writer *writer, const char *name, const char *help, double ratio) {
    char digits[32];
    int32_t millionths = 0;

    if (ratio > 0.0) {
        millionths = ratio < 1.0 ? (int32_t)(ratio * 1e6 + 0.5) : 1000000;
    }
    write_head(writer, name, "gauge", help);
    (void)snprintf(digits, sizeof digits, "%d.%06d\n", millionths / 1000000, millionths % 1000000);
    write_text(writer, digits);
}

static void write_levels(struct writer *writer, const pkv_stats *stats) {
    write_ratio(writer, "usage_ratio", "Share of blocks that are held.", stats->usage);
    write_gauge(writer, "blocks", "Blocks of the pool, null block included.", stats->num_blocks);
    write_gauge(writer, "free_blocks", "Blocks without owner.", stats->num_free_blocks);
    write_gauge(writer, "cached_blocks", "Blocks that carry a key.", stats->num_cached_blocks);
    write_gauge(writer, "distinct_keys", "Different keys cached.", stats->num_distinct_keys);
    write_gauge(writer, "pending_blocks", "Blocks held for a step or swap.",
                stats->num_pending_blocks);
    write_gauge(writer, "requests", "Open requests.", stats->num_requests);
    write_gauge(writer, "rows", "Requests that hold blocks.", stats->num_rows);
    write_gauge(writer, "live_slots", "Slots written.", stats->num_live_slots);
    write_gauge(writer, "reserved_slots", "Slots to be written.", stats->num_reserved_slots);
    write_gauge(writer, "internal_slots", "Slots never written.", stats->num_internal_slots);
    write_gauge(writer, "external_slots", "Slots of no use.", stats->num_external_slots);
}

static void write_counters(struct writer *writer, const pkv_stats *stats) {
    write_counter(writer, "lookups_total", "First admissions.", stats->num_lookups);
    write_counter(writer, "prefix_cache_queries_total", "Tokens of first admissions.",
                  stats->num_lookup_tokens);
    write_counter(writer, "prefix_cache_hits_total", "Tokens of these found cached.",
                  stats->num_hit_tokens);
    write_counter(writer, "resumes_total", "Admissions after a preemption.", stats->num_resumes);
    write_counter(writer, "resume_queries_total", "Tokens of resumes.", stats->num_resume_tokens);
    write_counter(writer, "resume_hits_total", "Tokens of these found cached.",
                  stats->num_resume_hit_tokens);
    write_counter(writer, "allocations_total", "Allocations done.", stats->num_allocations);
    write_counter(writer, "no_free_blocks_total", "Allocations without room.",
                  stats->num_no_free_blocks);
    write_counter(writer, "no_free_rows_total", "Allocations without row.",
                  stats->num_no_free_rows);
    write_counter(writer, "never_fits_total", "Requests larger than the pool.",
                  stats->num_never_fits);
    write_counter(writer, "frees_total", "Tables given back.", stats->num_frees);
    write_counter(writer, "blocks_allocated_total", "Blocks handed out.",
                  stats->num_blocks_allocated);
    write_counter(writer, "blocks_evicted_total", "Of these, cached ones.",
                  stats->num_blocks_evicted);
    write_counter(writer, "keys_published_total", "Blocks cached.", stats->num_keys_published);
    write_counter(writer, "keys_withdrawn_total", "Publications undone.",
                  stats->num_keys_withdrawn);
    write_counter(writer, "collisions_rejected_total", "Equal hashes of other content.",
                  stats->num_collisions_rejected);
    write_counter(writer, "events_dropped_total", "Events lost.", stats->num_events_dropped);
    write_counter(writer, "forks_total", "Requests forked.", stats->num_forks);
    write_counter(writer, "copies_total", "Blocks copied within the cache.", stats->num_copies);
    write_counter(writer, "partial_hits_total", "Hits that went on into a block.",
                  stats->num_partial_hits);
    write_counter(writer, "partial_hit_tokens_total", "Tokens that these went on by.",
                  stats->num_partial_hit_tokens);
}

pkv_status pkv_format_prometheus(
    const pkv_stats *stats, const char *labels, char *buffer, size_t capacity, size_t *size) {
    struct writer writer = {buffer, capacity, 0, labels == NULL ? "" : labels};
    pkv_stats own;
    pkv_status status = pkvi_read_struct(&own, sizeof own, sizeof own.struct_size, stats);

    if (status != PKV_OK) {
        return status;
    }
    if (size == NULL || (capacity > 0 && buffer == NULL)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    write_levels(&writer, &own);
    write_counters(&writer, &own);
    if (capacity > 0) {
        buffer[writer.size < capacity ? writer.size : capacity - 1] = '\0';
    }
    *size = writer.size;
    return writer.size < capacity ? PKV_OK : PKV_ERROR_LIMIT;
}
