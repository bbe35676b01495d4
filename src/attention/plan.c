/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Cutting a batch into work items: pure integers, no device, no allocation. What is done with an
 * item is the kernels' affair.
 *
 * The one idea: where a sequence is cut depends on that sequence and the configuration alone
 * (boundaries at multiples of chunk_size from key 0), and lengths count in whole chunks, so that
 * the list stays valid while sequences grow inside their last chunk. */
#include "attention/plan.h"

#include <string.h>

#include "device/tensor.h"

/* Tails are dealt longest first; so many lengths are told apart. */
#define TAIL_BUCKETS 64

/* Chunks grow to at most so many work items per worker in throughput mode. */
#define THROUGHPUT_ITEMS_PER_WORKER 4

/* ---- Configuration */

static int64_t ceil_divide(int64_t value, int64_t divisor) {
    return (value + divisor - 1) / divisor;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Where it would be more than `limit`: that. Neither factor is negative. */
static int64_t multiply_up_to(int64_t limit, int64_t a, int64_t b) {
    return b > 0 && a > limit / b ? limit : a * b;
}

/* Whether the keys of a request with so many query tokens are split among work items. */
static bool splits_keys(const pkv_plan *plan, int32_t num_queries) {
    return num_queries <= plan->config.max_split_query_len ||
           (int64_t)num_queries * plan->group_size <= PKVI_LARGE_TILE_ROWS;
}

static const char *refuse_config(const pkv_plan_config *config) {
    const char *reason = pkvi_refuse_attention_shape(&config->shape);

    if (reason != NULL) {
        return reason;
    }
    if ((config->flags & ~(PKV_PLAN_THROUGHPUT | PKV_PLAN_NON_CAUSAL)) != 0) {
        return "flags has a bit that is no plan flag";
    }
    if (config->max_requests < 1 || config->max_tokens < 1 || config->max_seq_len < 1) {
        return "max_requests, max_tokens and max_seq_len must be at least 1";
    }
    if (config->max_query_len < 0 || config->max_total_seq_len < 0 || config->window < 0 ||
        config->num_workers < 0 || config->max_split_query_len < 0) {
        return "max_query_len, max_total_seq_len, window, num_workers and max_split_query_len must "
               "not be negative";
    }
    if (config->chunk_size < 0 || config->chunk_size % 64 != 0) {
        return "chunk_size must be a multiple of 64";
    }
    if (!pkvi_allocator_is_valid(&config->allocator)) {
        return "the allocator needs both functions or none";
    }
    return NULL;
}

static void fill_defaults(pkv_plan_config *config) {
    pkv_attention_shape *shape = &config->shape;

    shape->v_head_size = shape->v_head_size == 0 ? shape->head_size : shape->v_head_size;
    shape->kv_dtype = shape->kv_dtype == PKV_DTYPE_NONE ? shape->query_dtype : shape->kv_dtype;
    if (config->max_query_len == 0 || config->max_query_len > config->max_tokens) {
        config->max_query_len = config->max_tokens;
    }
    if (config->max_total_seq_len == 0) {
        config->max_total_seq_len = (int64_t)config->max_requests * config->max_seq_len;
    }
    if (config->chunk_size == 0) {
        config->chunk_size = PKV_PLAN_DEFAULT_CHUNK_SIZE;
    }
    if (config->num_workers == 0) {
        config->num_workers = 1;
    }
    if (config->max_split_query_len == 0) {
        config->max_split_query_len = PKV_PLAN_DEFAULT_SPLIT_QUERY_LEN;
    }
}

/* FNV-1a over the constants that a work list depends on. */
static uint64_t compute_identity(const pkv_plan_config *config) {
    const int64_t values[] = {
        config->shape.num_query_heads,
        config->shape.num_kv_heads,
        config->shape.head_size,
        config->shape.v_head_size,
        config->shape.block_size,
        config->max_requests,
        config->max_tokens,
        config->max_query_len,
        config->max_seq_len,
        config->max_total_seq_len,
        config->chunk_size,
        config->window,
        (int64_t)config->flags,
        config->num_workers,
        config->max_split_query_len,
    };
    uint64_t hash = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        hash = (hash ^ (uint64_t)values[i]) * 0x100000001b3ull;
        hash ^= hash >> 32;
    }
    return hash;
}

/* The two buffers' sizes: an upper bound over every batch that the maxima allow. */
static const char *fill_sizes(pkv_plan *plan) {
    const pkv_plan_config *config = &plan->config;
    int64_t group_size = plan->group_size;
    int64_t max_chunks = config->max_total_seq_len / config->chunk_size + config->max_requests;
    int64_t split_queries = smaller(config->max_query_len, config->max_split_query_len);
    int64_t split_rows = split_queries * group_size;
    int64_t split_tiles = ceil_divide(split_rows, PKVI_LARGE_TILE_ROWS);
    int64_t whole_tiles =
        (int64_t)config->max_tokens * group_size / PKVI_LARGE_TILE_ROWS + config->max_requests;
    const int64_t limit = (int64_t)1 << 40;

    if (split_rows < PKVI_LARGE_TILE_ROWS) {
        split_rows = smaller(PKVI_LARGE_TILE_ROWS, config->max_query_len * group_size);
    }
    plan->max_items = multiply_up_to(limit, max_chunks, split_tiles) + whole_tiles;
    /* No request has more chunks than the longest one, and all have max_tokens between them. */
    int64_t most_chunks = ceil_divide(config->max_seq_len, config->chunk_size);
    int64_t most_rows = multiply_up_to(limit, most_chunks * config->max_tokens, group_size);
    plan->max_partial_rows =
        most_chunks <= 1 ? 0 : smaller(multiply_up_to(limit, max_chunks, split_rows), most_rows);
    if (plan->max_items > INT32_MAX / config->shape.num_kv_heads) {
        return "the maxima give more than 2^31 work items";
    }
    int64_t row_size = config->shape.num_kv_heads * pkvi_partial_floats(config->shape.v_head_size) *
                       (int64_t)sizeof(float);
    if (plan->max_partial_rows > limit / row_size) {
        return "the maxima give a workspace of more than 2^40 bytes; lower max_total_seq_len or "
               "max_query_len, or raise chunk_size";
    }
    plan->plan_size = sizeof(struct pkvi_plan_header) +
                      (size_t)config->max_requests * sizeof(struct pkvi_plan_request) +
                      (size_t)plan->max_items * sizeof(struct pkvi_work_item);
    plan->workspace_size =
        (size_t)ceil_divide(plan->max_partial_rows * row_size, PKVI_ALIGNMENT) * PKVI_ALIGNMENT;
    return NULL;
}

/* Everything that create and size need. `plan` is a local or the caller's memory. */
static pkv_status prepare(const pkv_plan_config *given, pkv_plan *plan, const char **reason) {
    const char *unused = NULL;
    const char **why = reason == NULL ? &unused : reason;
    pkv_plan_config config;
    pkv_status status =
        pkvi_read_struct(&config, sizeof config, offsetof(pkv_plan_config, max_requests), given);

    *why = NULL;
    if (status != PKV_OK) {
        *why = "struct_size is wrong, or a member is set that this version does not know";
        return status;
    }
    *why = refuse_config(&config);
    if (*why != NULL) {
        bool is_shape = pkvi_refuse_attention_shape(&config.shape) != NULL;
        return is_shape ? PKV_ERROR_UNSUPPORTED : PKV_ERROR_INVALID_ARGUMENT;
    }
    fill_defaults(&config);
    memset(plan, 0, sizeof *plan);
    plan->config = config;
    plan->group_size = config.shape.num_query_heads / config.shape.num_kv_heads;
    plan->identity = compute_identity(&config);
    *why = fill_sizes(plan);
    return *why == NULL ? PKV_OK : PKV_ERROR_LIMIT;
}

size_t pkv_plan_size(const pkv_plan_config *config) {
    pkv_plan plan;

    return prepare(config, &plan, NULL) == PKV_OK ? sizeof plan : 0;
}

pkv_status pkv_plan_init(
    const pkv_plan_config *config, void *memory, size_t size, pkv_plan **out, const char **reason) {
    pkv_plan plan;
    pkv_status status = prepare(config, &plan, reason);

    if (status != PKV_OK) {
        return status;
    }
    if (memory == NULL || out == NULL || size < sizeof plan || (uintptr_t)memory % 8 != 0) {
        if (reason != NULL) {
            *reason = "memory must be 8-byte aligned and hold pkv_plan_size bytes";
        }
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    memcpy(memory, &plan, sizeof plan);
    *out = memory;
    return PKV_OK;
}

pkv_status pkv_plan_create(const pkv_plan_config *config, pkv_plan **out, const char **reason) {
    pkv_plan plan;
    pkv_status status = prepare(config, &plan, reason);
    size_t size = (size_t)ceil_divide(sizeof plan, PKVI_ALIGNMENT) * PKVI_ALIGNMENT;

    if (status != PKV_OK) {
        return status;
    }
    if (out == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    void *memory = pkvi_allocate(&plan.config.allocator, size);
    if (memory == NULL) {
        return PKV_ERROR_OUT_OF_MEMORY;
    }
    plan.allocated_size = size;
    memcpy(memory, &plan, sizeof plan);
    *out = memory;
    return PKV_OK;
}

void pkv_plan_destroy(pkv_plan *plan) {
    if (plan != NULL && plan->allocated_size > 0) {
        pkv_allocator allocator = plan->config.allocator;

        pkvi_release(&allocator, plan, plan->allocated_size);
    }
}

pkv_status pkv_plan_sizes(const pkv_plan *plan, size_t *plan_size, size_t *workspace_size) {
    if (plan == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (plan_size != NULL) {
        *plan_size = plan->plan_size;
    }
    if (workspace_size != NULL) {
        *workspace_size = plan->workspace_size;
    }
    return PKV_OK;
}

/* ---- Building */

/* The entries of a batch that a plan looks at. */
static int32_t count_requests(const pkv_batch *batch) {
    return batch->padded_requests > batch->num_requests ? batch->padded_requests
                                                        : batch->num_requests;
}

static int32_t query_length(const pkv_batch *batch, int32_t request) {
    return batch->query_start_loc[request + 1] - batch->query_start_loc[request];
}

/* Read a caller's batch and hold it against the maxima. */
static pkv_status check_batch(const pkv_plan *plan, const pkv_batch *given, pkv_batch *batch) {
    const pkv_plan_config *config = &plan->config;
    pkv_status status =
        pkvi_read_struct(batch, sizeof *batch, offsetof(pkv_batch, slot_mapping), given);
    int64_t total = 0;

    if (status != PKV_OK) {
        return status;
    }
    int32_t num_requests = count_requests(batch);
    if (batch->num_requests < 0 || batch->padded_requests < 0 || batch->query_start_loc == NULL ||
        (num_requests > 0 && (batch->rows == NULL || batch->seq_lens == NULL)) ||
        (batch->max_requests > 0 && num_requests > batch->max_requests)) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    if (num_requests > config->max_requests) {
        return PKV_ERROR_LIMIT;
    }
    if (batch->query_start_loc[0] != 0) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    for (int32_t i = 0; i < num_requests; i++) {
        int32_t seq_len = batch->seq_lens[i];

        if (batch->query_start_loc[i + 1] < batch->query_start_loc[i] || batch->rows[i] < 0 ||
            seq_len < 0) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
        int32_t num_queries = query_length(batch, i);
        if ((config->flags & PKV_PLAN_NON_CAUSAL) == 0 && seq_len > 0 && num_queries > seq_len) {
            return PKV_ERROR_INVALID_ARGUMENT;
        }
        if (num_queries > config->max_query_len || seq_len > config->max_seq_len) {
            return PKV_ERROR_LIMIT;
        }
        total += seq_len;
    }
    bool fits = total <= config->max_total_seq_len &&
                batch->query_start_loc[num_requests] <= config->max_tokens;
    return fits ? PKV_OK : PKV_ERROR_LIMIT;
}

/* Tiles of rows that a request is cut into: pkvi_tile_rows with divisors that the compiler
 * knows. */
static int32_t count_tiles(const pkv_plan *plan, int32_t num_queries) {
    int64_t num_rows = (int64_t)num_queries * plan->group_size;

    return num_rows <= PKVI_SMALL_TILE_ROWS
               ? num_rows > 0
               : (int32_t)((num_rows + PKVI_LARGE_TILE_ROWS - 1) / PKVI_LARGE_TILE_ROWS);
}

/* The chunk length of this batch: the configured one; in throughput mode its smallest doubling that
 * leaves few enough work items, which makes the numbers depend on the batch. */
static int32_t choose_chunk_size(const pkv_plan *plan, const pkv_batch *batch) {
    int64_t chunk_size = plan->config.chunk_size;
    int64_t wanted = (int64_t)plan->config.num_workers * THROUGHPUT_ITEMS_PER_WORKER;

    if ((plan->config.flags & PKV_PLAN_THROUGHPUT) == 0) {
        return plan->config.chunk_size;
    }
    while (chunk_size < plan->config.max_seq_len) {
        int64_t num_items = 0;

        for (int32_t i = 0; i < count_requests(batch); i++) {
            num_items += ceil_divide(batch->seq_lens[i], chunk_size) *
                         count_tiles(plan, query_length(batch, i)) *
                         plan->config.shape.num_kv_heads;
        }
        if (num_items <= wanted) {
            break;
        }
        chunk_size *= 2;
    }
    return (int32_t)smaller(chunk_size, INT32_MAX / 2 / 64 * 64);
}

/* The first chunk that any covered length can see: with a window, of the shortest length that
 * rounds up to the same chunk. */
static int32_t find_first_chunk(const pkv_plan *plan,
                                int32_t num_queries,
                                int32_t planned_chunks,
                                int32_t chunk_size) {
    int64_t shortest = (int64_t)(planned_chunks - 1) * chunk_size + 1;
    int64_t first_key = shortest - num_queries - plan->config.window + 1;

    return plan->config.window == 0 || first_key < 0 ? 0 : (int32_t)(first_key / chunk_size);
}

/* Chunks of a length; 32 bits, since dividing is what the time of a build goes to. */
static int32_t count_chunks(int64_t seq_len, int32_t chunk_size) {
    return (int32_t)(((uint32_t)seq_len + (uint32_t)chunk_size - 1) / (uint32_t)chunk_size);
}

/* Where the next item of each kind goes. */
struct cursors {
    int64_t whole, full;
    int64_t tails[TAIL_BUCKETS]; /* the longest first */
};

static int32_t tail_bucket(int64_t tail, int32_t chunk_size) {
    int64_t missing = (chunk_size - tail) * TAIL_BUCKETS;

    return missing <= UINT32_MAX ? (int32_t)((uint32_t)missing / (uint32_t)chunk_size)
                                 : (int32_t)(missing / chunk_size);
}

/* Describe one request. Returns keys in its last chunk; 0 where each tile walks all keys. */
static int64_t describe_request(const pkv_plan *plan,
                                const pkv_batch *batch,
                                int32_t index,
                                int32_t chunk_size,
                                struct pkvi_plan_request *out) {
    int64_t seq_len = batch->seq_lens[index];
    int32_t num_queries = query_length(batch, index);
    int32_t planned = count_chunks(seq_len, chunk_size);

    memset(out, 0, sizeof *out);
    out->table_row = batch->rows[index];
    out->query_start = batch->query_start_loc[index];
    out->num_queries = num_queries;
    out->planned_chunks = planned;
    if (num_queries == 0 || !splits_keys(plan, num_queries)) {
        return 0;
    }
    out->first_chunk = find_first_chunk(plan, num_queries, planned, chunk_size);
    /* A sequence without keys still has output rows to be zeroed. */
    out->end_chunk = planned == 0 ? 1 : planned;
    return planned == 0 ? 1 : seq_len - (int64_t)(planned - 1) * chunk_size;
}

/* Count the items of each kind and turn the counts into places. */
static int64_t place_items(const pkv_plan *plan,
                           const pkv_batch *batch,
                           int32_t chunk_size,
                           struct cursors *cursors,
                           int64_t *num_partial_rows,
                           int32_t *num_split_requests) {
    int64_t next;

    memset(cursors, 0, sizeof *cursors);
    *num_partial_rows = 0;
    *num_split_requests = 0;
    for (int32_t i = 0; i < count_requests(batch); i++) {
        struct pkvi_plan_request request;
        int64_t tail = describe_request(plan, batch, i, chunk_size, &request);
        int64_t num_tiles = count_tiles(plan, request.num_queries);
        int64_t num_chunks = request.end_chunk - request.first_chunk;

        if (tail == 0) {
            cursors->whole += num_tiles;
            continue;
        }
        cursors->full += (num_chunks - 1) * num_tiles;
        cursors->tails[tail_bucket(tail, chunk_size)] += num_tiles;
        if (num_chunks > 1) {
            *num_partial_rows += num_chunks * request.num_queries * plan->group_size;
            *num_split_requests += 1;
        }
    }
    next = cursors->whole + cursors->full;
    cursors->full = cursors->whole;
    cursors->whole = 0;
    for (int32_t bucket = 0; bucket < TAIL_BUCKETS; bucket++) {
        int64_t count = cursors->tails[bucket];

        cursors->tails[bucket] = next;
        next += count;
    }
    return next;
}

/* Write the items of one request. Later tiles see more keys, so they come first. */
static void write_items(const struct pkvi_plan_request *request,
                        int32_t index,
                        int32_t num_tiles,
                        int64_t *tail_cursor,
                        struct cursors *cursors,
                        struct pkvi_work_item *items) {
    struct pkvi_work_item item = {index, request->table_row, 0, PKVI_ALL_CHUNKS};

    for (int32_t tile = num_tiles - 1; tile >= 0; tile--) {
        item.row_tile = tile;
        if (tail_cursor == NULL) {
            items[cursors->whole++] = item;
            continue;
        }
        struct pkvi_work_item *next = items + cursors->full;
        int32_t last = request->end_chunk - 1;

        for (int32_t chunk = request->first_chunk; chunk < last; chunk++) {
            *next++ = (struct pkvi_work_item){index, item.table_row, tile, chunk};
        }
        cursors->full = next - items;
        item.chunk = last;
        items[(*tail_cursor)++] = item;
    }
}

pkv_status pkv_plan_build(const pkv_plan *plan,
                          const pkv_batch *batch,
                          void *host_plan,
                          size_t size) {
    struct pkvi_plan_header header = {.magic = PKVI_PLAN_MAGIC};
    struct cursors cursors;
    pkv_batch known;
    int64_t next_partial_row = 0;

    if (plan == NULL || host_plan == NULL || (uintptr_t)host_plan % 8 != 0) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    pkv_status status = check_batch(plan, batch, &known);
    if (status != PKV_OK) {
        return status;
    }
    header.plan_identity = plan->identity;
    header.num_requests = count_requests(&known);
    header.num_tokens = known.query_start_loc[header.num_requests];
    header.chunk_size = choose_chunk_size(plan, &known);
    header.is_non_causal = (plan->config.flags & PKV_PLAN_NON_CAUSAL) != 0;
    header.items_offset =
        (int64_t)(sizeof header + (size_t)header.num_requests * sizeof(struct pkvi_plan_request));
    int64_t num_items = place_items(plan, &known, header.chunk_size, &cursors,
                                    &header.num_partial_rows, &header.num_split_requests);
    header.used_size = header.items_offset + num_items * (int64_t)sizeof(struct pkvi_work_item);
    if (num_items > plan->max_items || header.num_partial_rows > plan->max_partial_rows ||
        (uint64_t)header.used_size > size) {
        return PKV_ERROR_LIMIT;
    }
    header.num_items = (int32_t)num_items;

    struct pkvi_plan_request *requests =
        (void *)((unsigned char *)host_plan + sizeof(struct pkvi_plan_header));
    struct pkvi_work_item *items = (void *)((unsigned char *)host_plan + header.items_offset);
    memcpy(host_plan, &header, sizeof header);
    for (int32_t i = 0; i < header.num_requests; i++) {
        struct pkvi_plan_request *request = &requests[i];
        int64_t tail = describe_request(plan, &known, i, header.chunk_size, request);
        int32_t num_chunks = request->end_chunk - request->first_chunk;

        request->first_partial_row = next_partial_row;
        if (num_chunks > 1) {
            next_partial_row += (int64_t)num_chunks * request->num_queries * plan->group_size;
        }
        write_items(request, i, count_tiles(plan, request->num_queries),
                    tail == 0 ? NULL : &cursors.tails[tail_bucket(tail, header.chunk_size)],
                    &cursors, items);
    }
    return PKV_OK;
}

size_t pkv_plan_used_size(const void *host_plan) {
    const struct pkvi_plan_header *header = host_plan;

    return header == NULL || header->magic != PKVI_PLAN_MAGIC ? 0 : (size_t)header->used_size;
}

bool pkv_plan_covers(const pkv_plan *plan, const void *host_plan, const pkv_batch *batch) {
    const struct pkvi_plan_header *header = host_plan;
    pkv_batch known;

    if (plan == NULL || header == NULL || header->magic != PKVI_PLAN_MAGIC ||
        header->plan_identity != plan->identity || check_batch(plan, batch, &known) != PKV_OK ||
        header->num_requests != count_requests(&known)) {
        return false;
    }
    const struct pkvi_plan_request *requests = pkvi_plan_requests(header);
    for (int32_t i = 0; i < header->num_requests; i++) {
        int64_t num_chunks = ceil_divide(known.seq_lens[i], header->chunk_size);
        bool fits = plan->config.window == 0 ? num_chunks <= requests[i].planned_chunks
                                             : num_chunks == requests[i].planned_chunks;

        if (!fits || requests[i].table_row != known.rows[i] ||
            requests[i].query_start != known.query_start_loc[i] ||
            requests[i].num_queries != query_length(&known, i)) {
            return false;
        }
    }
    return true;
}
