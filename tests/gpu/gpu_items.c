/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A phase of tests/gpu.sh: more tokens, requests, work items and cells than 16 bits count, more
 * than the second and third dimension of a grid hold. What the CUDA device computes from them must
 * be what the CPU device computes: the same bytes of the cache, the same numbers of attention.
 *
 * The one idea: one token a request, so that `--items N` makes N of everything. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_phase.h"

#include <pagedkv/attention.h>
#include <pagedkv/transfer.h>

enum { HEADS = 2, SIZE = 64, BLOCK = 16 };

/* Request i has the first 1 + i % 7 tokens of block 1 + i % (num_blocks - 1); its own token is the
 * last of them. */
struct problem {
    int32_t count, num_blocks;
    size_t row, pool_count;  /* elements of a token, of the pool */
    float *source;           /* [count][HEADS][SIZE]: keys, also values and queries */
    int64_t *slots;          /* each slot once, then -1 */
    pkv_table_update *cells; /* that make the table */
    int32_t *lens, *starts, *rows;
};

/* Where the answers of one device are, on the host. */
struct answers {
    unsigned char *pool;
    float *output, *lse, *merged;
    pkv_block_id *table;
    int64_t *mapped;
};

static void make_problem(struct problem *p, int32_t count) {
    *p = (struct problem){.count = count, .num_blocks = count / BLOCK + 2, .row = HEADS * SIZE};
    p->pool_count = (size_t)p->num_blocks * BLOCK * p->row;
    p->source = phase_host((size_t)count * p->row * sizeof *p->source);
    p->slots = phase_host((size_t)count * sizeof *p->slots);
    p->cells = phase_host((size_t)count * sizeof *p->cells);
    p->lens = phase_host((size_t)count * sizeof *p->lens);
    p->rows = phase_host((size_t)count * sizeof *p->rows);
    p->starts = phase_host(((size_t)count + 1) * sizeof *p->starts);
    for (size_t i = 0; i < (size_t)count * p->row; i++) {
        p->source[i] = phase_value(5, i);
    }
    for (int32_t i = 0; i < count; i++) {
        p->slots[i] = i % 1000 == 999 ? -1 : BLOCK + i;
        p->cells[i] =
            (pkv_table_update){.row = i, .column = 0, .block_id = 1 + i % (p->num_blocks - 1)};
        p->lens[i] = 1 + i % 7;
        p->rows[i] = i;
        p->starts[i + 1] = i + 1;
    }
}

static void free_problem(struct problem *p) {
    free(p->source);
    free(p->slots);
    free(p->cells);
    free(p->lens);
    free(p->rows);
    free(p->starts);
}

/* ---- Memory of either device */

struct place {
    pkv_device *device;
    bool is_cpu;
};

static void *put(const struct place *place, const void *source, size_t size) {
    if (!place->is_cpu) {
        return phase_upload(source, size);
    }
    /* Operations want rows aligned to 16 bytes. */
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (memory == NULL) {
        phase_stop("host memory", "there is not enough");
    } else {
        memcpy(memory, source, size);
    }
    return memory;
}

/* Bring `size` bytes to the host and give the memory back. */
static void *take(const struct place *place, void *memory, size_t size) {
    void *copy;

    if (!place->is_cpu) {
        copy = phase_fetch(memory, size);
        phase_cuda(cudaFree(memory), "cudaFree");
    } else {
        copy = phase_host(size);
        memcpy(copy, memory, size);
        free(memory);
    }
    return copy;
}

static void drop(const struct place *place, void *memory) {
    free(take(place, memory, 1));
}

static void wait_for(const struct place *place, const char *what) {
    phase_status(place->device, pkv_device_synchronize(place->device, NULL), what);
}

static pkv_tensor view(void *data, pkv_dtype dtype, int64_t count, int64_t heads, int64_t size) {
    return (pkv_tensor){data, dtype, 3, {count, heads, size}, {heads * size, size, 1}};
}

/* Keys (0) or values (1) of the pool. */
static pkv_tensor cache_view(const struct problem *p, void *pool, int half) {
    return (pkv_tensor){
        (unsigned char *)pool + (size_t)half * HEADS * BLOCK * SIZE * 2,
        PKV_DTYPE_FLOAT16,
        4,
        {p->num_blocks, HEADS, BLOCK, SIZE},
        {2 * HEADS * BLOCK * SIZE, BLOCK * SIZE, SIZE, 1},
    };
}

/* ---- The operations */

static void write_pool(const struct place *place, const struct problem *p, void *pool) {
    void *source = put(place, p->source, (size_t)p->count * p->row * sizeof(float));
    void *slots = put(place, p->slots, (size_t)p->count * sizeof *p->slots);
    pkv_write_kv_args args = {.struct_size = sizeof args,
                              .key = view(source, PKV_DTYPE_FLOAT32, p->count, HEADS, SIZE),
                              .slot_mapping = slots};

    args.value = args.key;
    args.k_cache = cache_view(p, pool, 0);
    args.v_cache = cache_view(p, pool, 1);
    phase_status(place->device, pkv_write_kv(place->device, &args, NULL), "pkv_write_kv");
    wait_for(place, "writing");
    drop(place, source);
    drop(place, slots);
}

static void *make_table(const struct place *place, const struct problem *p) {
    pkv_block_id *zeros = phase_host((size_t)p->count * sizeof *zeros);
    void *table = put(place, zeros, (size_t)p->count * sizeof *zeros);
    const pkv_table_args args = {.struct_size = sizeof args,
                                 .block_table = table,
                                 .block_table_stride = 1,
                                 .num_rows = p->count,
                                 .num_columns = 1,
                                 .updates = p->cells,
                                 .num_updates = p->count};

    phase_status(place->device, pkv_update_block_table(place->device, &args, NULL),
                 "pkv_update_block_table");
    wait_for(place, "updating the table");
    free(zeros);
    return table;
}

static int64_t *map_slots(const struct place *place, const struct problem *p, void *table) {
    void *rows = put(place, p->rows, (size_t)p->count * sizeof *p->rows);
    void *lens = put(place, p->lens, (size_t)p->count * sizeof *p->lens);
    void *starts = put(place, p->starts, ((size_t)p->count + 1) * sizeof *p->starts);
    void *slots = put(place, p->slots, (size_t)p->count * sizeof *p->slots);
    const pkv_slot_mapping_args args = {.struct_size = sizeof args,
                                        .num_requests = p->count,
                                        .num_tokens = p->count,
                                        .block_size = BLOCK,
                                        .num_columns = 1,
                                        .block_table = table,
                                        .block_table_stride = 1,
                                        .rows = rows,
                                        .seq_lens = lens,
                                        .query_start_loc = starts,
                                        .slot_mapping = slots};

    phase_status(place->device, pkv_compute_slot_mapping(place->device, &args, NULL),
                 "pkv_compute_slot_mapping");
    wait_for(place, "mapping slots");
    drop(place, rows);
    drop(place, lens);
    drop(place, starts);
    return take(place, slots, (size_t)p->count * sizeof(int64_t));
}

static pkv_plan *make_plan(const struct problem *p, void **host_plan, pkv_attention_args *args) {
    const pkv_plan_config config = {.struct_size = sizeof config,
                                    .shape = {.struct_size = sizeof config.shape,
                                              .num_query_heads = HEADS,
                                              .num_kv_heads = HEADS,
                                              .head_size = SIZE,
                                              .block_size = BLOCK,
                                              .query_dtype = PKV_DTYPE_FLOAT32,
                                              .kv_dtype = PKV_DTYPE_FLOAT16},
                                    .max_requests = p->count,
                                    .max_tokens = p->count,
                                    .max_query_len = 1,
                                    .max_seq_len = BLOCK};
    const pkv_batch batch = {.struct_size = sizeof batch,
                             .num_requests = p->count,
                             .num_tokens = p->count,
                             .rows = p->rows,
                             .seq_lens = p->lens,
                             .query_start_loc = p->starts};
    pkv_plan *plan;
    size_t size;

    phase_status(NULL, pkv_plan_create(&config, &plan, NULL), "pkv_plan_create");
    phase_status(NULL, pkv_plan_sizes(plan, &size, &args->workspace_size), "pkv_plan_sizes");
    *host_plan = phase_host(size);
    phase_status(NULL, pkv_plan_build(plan, &batch, *host_plan, size), "pkv_plan_build");
    return plan;
}

/* Two halves of one whole: merging a part with itself leaves the output as it is. */
static void merge_twice(const struct place *place,
                        const struct problem *p,
                        const pkv_attention_args *args,
                        void *merged) {
    const pkv_tensor outputs[2] = {args->output, args->output}, lses[2] = {args->lse, args->lse};
    const pkv_merge_args merge = {.struct_size = sizeof merge,
                                  .num_parts = 2,
                                  .outputs = outputs,
                                  .lses = lses,
                                  .output = view(merged, PKV_DTYPE_FLOAT32, p->count, HEADS, SIZE)};

    phase_status(place->device, pkv_merge_states(place->device, &merge, NULL), "pkv_merge_states");
    wait_for(place, "merging");
}

static void attend(const struct place *place,
                   const struct problem *p,
                   void *pool,
                   void *table,
                   struct answers *out) {
    size_t num_outputs = (size_t)p->count * p->row, num_lses = (size_t)p->count * HEADS;
    float *zeros = phase_host(num_outputs * sizeof *zeros);
    pkv_attention_args args = {.struct_size = sizeof args};
    void *host_plan;
    pkv_plan *plan = make_plan(p, &host_plan, &args);
    void *query = put(place, p->source, num_outputs * sizeof(float));
    void *output = put(place, zeros, num_outputs * sizeof(float));
    void *lse = put(place, zeros, num_lses * sizeof(float));
    void *lens = put(place, p->lens, (size_t)p->count * sizeof *p->lens);
    void *starts = put(place, p->starts, ((size_t)p->count + 1) * sizeof *p->starts);
    void *plan_data = put(place, host_plan, pkv_plan_used_size(host_plan));
    void *empty = phase_host(args.workspace_size + 64);
    void *workspace = put(place, empty, args.workspace_size + 64);

    args.query = view(query, PKV_DTYPE_FLOAT32, p->count, HEADS, SIZE);
    args.output = view(output, PKV_DTYPE_FLOAT32, p->count, HEADS, SIZE);
    args.lse = (pkv_tensor){lse, PKV_DTYPE_FLOAT32, 2, {p->count, HEADS}, {HEADS, 1}};
    args.k_cache = cache_view(p, pool, 0);
    args.v_cache = cache_view(p, pool, 1);
    args.block_table = table;
    args.block_table_stride = 1;
    args.seq_lens = lens;
    args.query_start_loc = starts;
    args.plan_data = plan_data;
    args.workspace = workspace;
    phase_status(place->device, pkv_attention(place->device, plan, &args, NULL), "pkv_attention");
    wait_for(place, "attention");

    void *merged = put(place, zeros, num_outputs * sizeof(float));
    merge_twice(place, p, &args, merged);
    out->merged = take(place, merged, num_outputs * sizeof(float));
    out->output = take(place, output, num_outputs * sizeof(float));
    out->lse = take(place, lse, num_lses * sizeof(float));
    void *const inputs[] = {query, lens, starts, plan_data, workspace};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        drop(place, inputs[i]);
    }
    free(zeros);
    free(empty);
    free(host_plan);
    pkv_plan_destroy(plan);
}

static void answer(const struct place *place, const struct problem *p, struct answers *out) {
    unsigned char *nothing = phase_host(2 * p->pool_count * 2);
    void *pool = put(place, nothing, 2 * p->pool_count * 2);
    void *table;

    free(nothing);
    write_pool(place, p, pool);
    table = make_table(place, p);
    out->mapped = map_slots(place, p, table);
    attend(place, p, pool, table, out);
    out->table = take(place, table, (size_t)p->count * sizeof(pkv_block_id));
    out->pool = take(place, pool, 2 * p->pool_count * 2);
}

static void free_answers(struct answers *a) {
    free(a->pool);
    free(a->output);
    free(a->lse);
    free(a->merged);
    free(a->table);
    free(a->mapped);
}

/* Float queries over at most 7 keys: 32 units of float cover both sides. */
static double largest_error(const float *a, const float *b, size_t count) {
    double largest = 0.0;

    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)a[i] - (double)b[i]);

        largest = error <= largest ? largest : error; /* a NaN stays */
    }
    return largest;
}

static void compare(const struct problem *p, const struct answers *a, const struct answers *b) {
    const double limit = 32 * 0x1p-24;
    size_t num_outputs = (size_t)p->count * p->row;
    double output = largest_error(a->output, b->output, num_outputs);
    double lse = largest_error(a->lse, b->lse, (size_t)p->count * HEADS);
    double merged = largest_error(a->merged, a->output, num_outputs);

    phase_check(memcmp(a->pool, b->pool, 2 * p->pool_count * 2) == 0, "write_kv: other bytes");
    phase_check(memcmp(a->table, b->table, (size_t)p->count * sizeof *a->table) == 0,
                "update_block_table: other cells");
    phase_check(a->table[p->count - 1] == p->cells[p->count - 1].block_id,
                "update_block_table: the last cell");
    phase_check(memcmp(a->mapped, b->mapped, (size_t)p->count * sizeof *a->mapped) == 0,
                "compute_slot_mapping: other slots");
    phase_metric("attention", "largest difference from the CPU device", output);
    phase_metric("attention, lse", "largest difference from the CPU device", lse);
    phase_check(output <= limit, "attention: %.3g from the CPU device", output);
    phase_check(lse <= 4 * limit, "lse: %.3g from the CPU device", lse);
    phase_check(merged <= limit, "merge_states: %.3g from its parts", merged);
}

int main(int argc, char **argv) {
    int64_t count = 70001;
    const phase_option options[] = {
        {"--items", &count, 100, 1000000, "tokens, requests, items and cells"},
    };
    const pkv_cpu_config config = {.struct_size = sizeof config};
    struct place cuda = {NULL, false}, cpu = {NULL, true};
    struct problem problem;
    struct answers here, there;

    phase_begin("items", "More of everything than 16 bits count, beside the CPU device.", options,
                1, argc, argv);
    cuda.device = phase_device();
    phase_status(NULL, pkv_device_create_cpu(&config, &cpu.device), "pkv_device_create_cpu");
    make_problem(&problem, (int32_t)count);
    answer(&cpu, &problem, &here);
    answer(&cuda, &problem, &there);
    compare(&problem, &there, &here);
    free_answers(&here);
    free_answers(&there);
    free_problem(&problem);
    pkv_device_destroy(cpu.device);
    pkv_device_destroy(cuda.device);
    return phase_end();
}
