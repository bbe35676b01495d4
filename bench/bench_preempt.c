/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* bench_preempt: what it costs to take a running request's blocks away and to bring it back, by
 * recomputing its tokens or by swapping its blocks to host memory, over block sizes and links.
 * Planning and copies on the CPU device are measured; the times of link and model are worked out
 * from the numbers that the options name. Then a workload on a bounded pool, with the scheduler
 * that takes the victims itself: preempt_policies.c.
 *
 * Method: one victim, an intruder that uses a share of the pool meanwhile, and the victim again.
 * Rounds are interleaved over the block sizes; medians over the rounds. A plan is made a few times
 * and timed last, so that the caches know it. Its peer, of the same round, is what a recompute asks of
 * the manager for as many blocks: their free for a swap-out, their allocation for a swap-in. */
#include <pagedkv.h>

#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "plot.h"
#include "preempt_policies.h"
#include "report.h"

#define BENCH "preempt"
#define MAX_ROUNDS 101
#define WARM_UPS 6

/* The options, and what follows from them. */
struct setup {
    bool is_json, is_csv;
    const char *out;
    int32_t num_tokens, rounds, num_layers, share;
    double token_kib, copy_us, parameters, teraflops;
    bench_list block_sizes, links;
    preempt_policies policies;
};

/* One block size: what was planned, and the medians of what was measured. */
struct outcome {
    int32_t block_size, num_copies, swapped_tokens;
    int32_t hit_tokens;          /* on the device when the victim comes back */
    int32_t computed_tokens;     /* again, with a tier */
    int32_t recomputed_tokens;   /* again, without */
    double out_ns, in_ns;        /* planning, per block */
    double free_ns, allocate_ns; /* their peers */
    double copy_ms;              /* both ways, on the CPU device */
    double host_mib;
    int32_t num_loads; /* blocks of the swap-in */
    double values[5][MAX_ROUNDS];
};

/* What one round works with. */
struct world {
    const struct setup *setup;
    pkv_manager *manager;
    pkv_tier *tier;
    pkv_device *device;
    void *device_memory, *host_memory;
    int32_t num_blocks, num_slots;
    int64_t block_bytes;
    pkv_block_copy *copies;
    int32_t *tokens;
};

static bool is_ok(pkv_status status, const char *what) {
    if (status != PKV_OK) {
        fprintf(stderr, "bench_preempt: %s: %s\n", what, pkv_status_name(status));
    }
    return status == PKV_OK;
}

static bool make_world(struct world *world, const struct setup *setup, int32_t block_size) {
    pkv_manager_config config = {.struct_size = sizeof config, .block_size = block_size};
    pkv_tier_config tier_config = {.struct_size = sizeof tier_config};
    int32_t columns = setup->num_tokens / block_size + 1;

    memset(world, 0, sizeof *world);
    world->setup = setup;
    world->num_blocks = columns * 2 + 1;
    world->num_slots = columns + 1;
    /* One layer is copied for real; the others would take the same time each. */
    world->block_bytes = (int64_t)(setup->token_kib * 1024 / setup->num_layers) * block_size;
    config.num_blocks = world->num_blocks;
    config.max_model_len = 2 * setup->num_tokens + block_size;
    config.max_total_tokens = 8 * (int64_t)config.max_model_len;
    world->copies = calloc((size_t)columns, sizeof *world->copies);
    world->tokens = calloc((size_t)config.max_model_len, sizeof *world->tokens);
    world->device_memory = calloc((size_t)world->num_blocks, (size_t)world->block_bytes);
    world->host_memory = calloc((size_t)world->num_slots, (size_t)world->block_bytes);
    if (world->copies == NULL || world->tokens == NULL || world->device_memory == NULL ||
        world->host_memory == NULL ||
        !is_ok(pkv_manager_create(&config, &world->manager), "manager") ||
        !is_ok(pkv_device_create_cpu(NULL, &world->device), "device")) {
        return false;
    }
    tier_config.manager = world->manager;
    tier_config.num_blocks = world->num_slots;
    return is_ok(pkv_tier_create(&tier_config, &world->tier), "tier");
}

static void end_world(struct world *world) {
    pkv_tier_destroy(world->tier);
    pkv_manager_destroy(world->manager);
    pkv_device_destroy(world->device);
    free(world->copies);
    free(world->tokens);
    free(world->device_memory);
    free(world->host_memory);
}

static pkv_request open_request(struct world *world, int32_t first, int32_t num_tokens) {
    pkv_request_args args = {
        .struct_size = sizeof args, .token_ids = world->tokens, .num_tokens = num_tokens};
    pkv_request request = {0, 0};

    for (int32_t t = 0; t < num_tokens; t++) {
        world->tokens[t] = first + t;
    }
    (void)is_ok(pkv_request_open(world->manager, &args, &request), "open");
    return request;
}

static bool admit(struct world *world, pkv_request request, int32_t hit, int32_t num_new) {
    pkv_slots_args args = {
        .struct_size = sizeof args, .num_new_computed_tokens = hit, .num_new_tokens = num_new};

    return is_ok(pkv_allocate_slots(world->manager, request, &args, NULL), "allocate");
}

static pkv_tensor bytes_of(void *memory, int64_t count, int64_t size) {
    return (pkv_tensor){memory, PKV_DTYPE_UINT8, 3, {1, count, size}, {count * size, size, 1}};
}

static bool copy(struct world *world, const pkv_swap_plan *plan, bool is_inward) {
    pkv_tensor device = bytes_of(world->device_memory, world->num_blocks, world->block_bytes);
    pkv_tensor host = bytes_of(world->host_memory, world->num_slots, world->block_bytes);

    return is_ok(pkv_swap_blocks(world->device, is_inward ? &host : &device,
                                 is_inward ? &device : &host, plan->copies, plan->num_copies, NULL),
                 "copy");
}

/* Others use a share of the pool, so that part of what the victim left there is gone. */
static bool intrude(struct world *world, int32_t block_size) {
    int64_t num_blocks = (int64_t)(world->num_blocks - 1) * world->setup->share / 100;
    pkv_request intruder;

    if (num_blocks == 0) {
        return true;
    }
    intruder = open_request(world, 1 << 28, (int32_t)num_blocks * block_size);
    return admit(world, intruder, 0, (int32_t)num_blocks * block_size) &&
           is_ok(pkv_request_close(world->manager, intruder), "close");
}

/* One preemption by swap from beginning to end; what a recompute would have done is read off. */
static bool run_round(struct world *world, struct outcome *outcome, int32_t round) {
    int32_t num_tokens = world->setup->num_tokens;
    pkv_request victim = open_request(world, 0, num_tokens);
    pkv_swap_plan plan = {.struct_size = sizeof plan, .copies = world->copies};
    pkv_slots_args args = {.struct_size = sizeof args};
    int64_t start, times[4];
    pkv_swap swap;
    int32_t hit = 0;

    plan.capacity = world->num_slots - 1;
    if (!admit(world, victim, 0, num_tokens)) {
        return false;
    }
    /* Planned and given up until the caches know it, as the other benches of the manager do. */
    for (int32_t i = 0; i < WARM_UPS; i++) {
        start = bench_now_ns();
        if (!is_ok(pkv_swap_out(world->tier, victim, &plan, &swap), "swap out")) {
            return false;
        }
        times[0] = bench_now_ns() - start;
        if (i + 1 < WARM_UPS) {
            (void)is_ok(pkv_swap_abort(world->tier, swap), "abort");
        }
    }
    outcome->num_copies = plan.num_copies;
    outcome->swapped_tokens = plan.num_tokens;
    start = bench_now_ns();
    if (!copy(world, &plan, false)) {
        return false;
    }
    times[1] = bench_now_ns() - start;
    if (!is_ok(pkv_swap_detach(world->tier, swap), "detach") ||
        !is_ok(pkv_free(world->manager, victim), "free") ||
        !is_ok(pkv_swap_commit(world->tier, swap), "commit") ||
        !intrude(world, outcome->block_size) ||
        !is_ok(pkv_get_computed_blocks(world->manager, victim, &hit), "lookup")) {
        return false;
    }
    outcome->hit_tokens = hit;
    outcome->recomputed_tokens = num_tokens - hit;
    args.num_new_computed_tokens = hit;
    for (int32_t i = 0; i < WARM_UPS; i++) {
        start = bench_now_ns();
        if (!is_ok(pkv_swap_in(world->tier, victim, &args, NULL, &plan, &swap),
                   "swap in, with a share so small that nothing was lost")) {
            return false;
        }
        times[2] = bench_now_ns() - start;
        if (i + 1 < WARM_UPS) {
            (void)is_ok(pkv_swap_abort(world->tier, swap), "abort");
            (void)is_ok(pkv_free(world->manager, victim), "free");
        }
    }
    outcome->computed_tokens = num_tokens - hit - plan.num_tokens;
    outcome->num_loads = plan.num_copies;
    start = bench_now_ns();
    if (!copy(world, &plan, true)) {
        return false;
    }
    times[3] = bench_now_ns() - start;
    outcome->values[0][round] = (double)times[0] / outcome->num_copies;
    outcome->values[1][round] = (double)times[2] / plan.num_copies;
    outcome->values[2][round] = (double)(times[1] + times[3]) / 1e6 * world->setup->num_layers;
    outcome->host_mib = (double)outcome->num_copies * (double)world->block_bytes *
                        world->setup->num_layers / (1 << 20);
    return is_ok(pkv_swap_commit(world->tier, swap), "commit") &&
           is_ok(pkv_request_close(world->manager, victim), "close") &&
           is_ok(pkv_reset_prefix_cache(world->manager), "reset") &&
           is_ok(pkv_tier_reset(world->tier), "reset of the tier");
}

/* Nanoseconds a block of allocating that many for a request that hits nothing, and of freeing them,
 * the last of a few times as above. */
static bool time_manager(struct world *world,
                         int32_t num_tokens,
                         double *allocate,
                         double *release) {
    pkv_slots_args args = {.struct_size = sizeof args, .num_new_tokens = num_tokens};
    pkv_request request = open_request(world, 1 << 29, num_tokens);
    int64_t start = 0, between = 0, end = 0;

    for (int32_t i = 0; i < WARM_UPS; i++) {
        start = bench_now_ns();
        if (!is_ok(pkv_allocate_slots(world->manager, request, &args, NULL), "allocate")) {
            return false;
        }
        between = bench_now_ns();
        if (!is_ok(pkv_free(world->manager, request), "free")) {
            return false;
        }
        end = bench_now_ns();
    }
    *allocate = (double)(between - start);
    *release = (double)(end - between);
    return is_ok(pkv_request_close(world->manager, request), "close") &&
           is_ok(pkv_reset_prefix_cache(world->manager), "reset");
}

/* As many blocks as the swaps of this round had. */
static bool run_peers(struct world *world, struct outcome *outcome, int32_t round) {
    double allocate, release, unused;

    if (!time_manager(world, outcome->num_copies * outcome->block_size, &unused, &release) ||
        !time_manager(world, outcome->num_loads * outcome->block_size, &allocate, &unused)) {
        return false;
    }
    outcome->values[3][round] = release / outcome->num_copies;
    outcome->values[4][round] = allocate / outcome->num_loads;
    return true;
}

/* ---- what link and model would take ---------------------------------------------------------- */

static double recompute_ms(const struct setup *setup, int32_t num_tokens) {
    return 2.0 * setup->parameters * 1e9 * num_tokens / (setup->teraflops * 1e12) * 1e3;
}

static double loaded_mib(const struct setup *setup, const struct outcome *outcome) {
    return (outcome->recomputed_tokens - outcome->computed_tokens) * setup->token_kib / 1024;
}

/* Bytes over bandwidth, and a start for each transfer: small blocks pay for being many. */
static double load_ms(const struct setup *setup, const struct outcome *outcome, double link) {
    double transfers = loaded_mib(setup, outcome) * 1024 / setup->token_kib / outcome->block_size *
                       setup->num_layers;

    return loaded_mib(setup, outcome) * 1.048576 / link + transfers * setup->copy_us / 1e3;
}

static double swap_ms(const struct setup *setup, const struct outcome *outcome, double link) {
    return load_ms(setup, outcome, link) + recompute_ms(setup, outcome->computed_tokens);
}

/* ---- reports --------------------------------------------------------------------------------- */

static void print_json(const struct setup *setup, const struct outcome *outcome) {
    char name[64];
    double recompute = recompute_ms(setup, outcome->recomputed_tokens);

    (void)snprintf(name, sizeof name, "block-%d", outcome->block_size);
    bench_json_line(stdout, BENCH, name, "plan of a swap-out", "ns/block", outcome->out_ns,
                    "free of as many blocks", outcome->free_ns);
    bench_json_line(stdout, BENCH, name, "plan of a swap-in", "ns/block", outcome->in_ns,
                    "allocation of as many blocks", outcome->allocate_ns);
    bench_json_line(stdout, BENCH, name, "copies on the CPU, both ways", "ms", outcome->copy_ms,
                    NULL, 0.0);
    bench_json_line(stdout, BENCH, name, "hit on resume", "tokens", outcome->hit_tokens, NULL, 0.0);
    bench_json_line(stdout, BENCH, name, "computed again", "tokens", outcome->computed_tokens,
                    "recompute", outcome->recomputed_tokens);
    for (int32_t i = 0; i < setup->links.num_values; i++) {
        char metric[64];

        (void)snprintf(metric, sizeof metric, "resume, link of %d GB/s", setup->links.values[i]);
        bench_json_line(stdout, BENCH, name, metric, "ms",
                        swap_ms(setup, outcome, setup->links.values[i]), "recompute", recompute);
    }
}

static void print_csv(const struct setup *setup, const struct outcome *outcome, bool is_first) {
    if (is_first) {
        printf("block_size,link_gb_s,recompute_ms,swap_ms,host_mib,link_mib,recomputed_tokens,"
               "computed_tokens,out_ns,in_ns,copy_ms,free_ns,allocate_ns\n");
    }
    for (int32_t i = 0; i < setup->links.num_values; i++) {
        printf("%d,%d,%.4f,%.4f,%.3f,%.3f,%d,%d,%.2f,%.2f,%.3f,%.2f,%.2f\n", outcome->block_size,
               setup->links.values[i], recompute_ms(setup, outcome->recomputed_tokens),
               swap_ms(setup, outcome, setup->links.values[i]), outcome->host_mib,
               outcome->host_mib + loaded_mib(setup, outcome), outcome->recomputed_tokens,
               outcome->computed_tokens, outcome->out_ns, outcome->in_ns, outcome->copy_ms,
               outcome->free_ns, outcome->allocate_ns);
    }
}

/* The two rows that people know, with this run's numbers. */
static void print_choice(const struct setup *setup, const struct outcome *outcome) {
    bench_table table = {0};
    double gflop = 2.0 * setup->parameters;
    int32_t link = setup->links.values[setup->links.num_values - 1];

    printf("\nblocks of %d, link of %d GB/s\n", outcome->block_size, link);
    bench_table_begin(&table, "policy|<what it does|<gain|<price");
    bench_table_row(&table,
                    "recompute|frees the blocks, computes the tokens again|no host memory, no "
                    "link|%d tokens, %.1f TFLOP, %.1f ms",
                    outcome->recomputed_tokens, gflop * outcome->recomputed_tokens / 1e3,
                    recompute_ms(setup, outcome->recomputed_tokens));
    bench_table_row(
        &table,
        "swap|copies the blocks out, later in again|%d tokens, %.1f TFLOP less|%.0f MiB "
        "of host, %.0f MiB of link, %.1f ms",
        outcome->recomputed_tokens - outcome->computed_tokens,
        gflop * (outcome->recomputed_tokens - outcome->computed_tokens) / 1e3, outcome->host_mib,
        outcome->host_mib + loaded_mib(setup, outcome), swap_ms(setup, outcome, link));
    bench_table_print(&table, stdout, 2);
}

static void print_report(const struct setup *setup, const struct outcome *outcomes) {
    bench_table table = {0};

    printf("A victim of %d tokens, %g KiB of cache a token in %d layers; %g G parameters at %g\n"
           "TFLOP/s; %g us a transfer; others use %d%% of the pool meanwhile.\n\n",
           setup->num_tokens, setup->token_kib, setup->num_layers, setup->parameters,
           setup->teraflops, setup->copy_us, setup->share);
    bench_table_begin(&table,
                      "block|link GB/s|recompute ms|swap ms|<cheaper|copies|hit|again, "
                      "swap|plan out ns/block|free|plan in ns/block|allocate|CPU copies ms");
    for (int32_t b = 0; b < setup->block_sizes.num_values; b++) {
        const struct outcome *outcome = &outcomes[b];

        for (int32_t i = 0; i < setup->links.num_values; i++) {
            double swap = swap_ms(setup, outcome, setup->links.values[i]);
            double recompute = recompute_ms(setup, outcome->recomputed_tokens);

            bench_table_row(
                &table, "%d|%d|%.2f|%.2f|%s|%d|%d|%d|%.1f|%.1f|%.1f|%.1f|%.1f", outcome->block_size,
                setup->links.values[i], recompute, swap, swap < recompute ? "swap" : "recompute",
                outcome->num_copies, outcome->hit_tokens, outcome->computed_tokens, outcome->out_ns,
                outcome->free_ns, outcome->in_ns, outcome->allocate_ns, outcome->copy_ms);
        }
    }
    bench_table_print(&table, stdout, 0);
    for (int32_t b = 0; b < setup->block_sizes.num_values; b++) {
        if (outcomes[b].block_size == 16 || setup->block_sizes.num_values == 1) {
            print_choice(setup, &outcomes[b]);
        }
    }
}

static bool plot(const struct setup *setup, const struct outcome *outcomes) {
    FILE *data = plot_open(setup->out, "preempt.dat");
    FILE *script;

    if (data == NULL) {
        return false;
    }
    for (int32_t b = 0; b < setup->block_sizes.num_values; b++) {
        fprintf(data, "%d %.4f", outcomes[b].block_size,
                recompute_ms(setup, outcomes[b].recomputed_tokens));
        for (int32_t i = 0; i < setup->links.num_values; i++) {
            fprintf(data, " %.4f", swap_ms(setup, &outcomes[b], setup->links.values[i]));
        }
        fprintf(data, "\n");
    }
    (void)fclose(data);
    script = plot_begin(setup->out, "preempt", 720, 440);
    if (script == NULL) {
        return false;
    }
    fprintf(script, "set xlabel 'tokens in a block'\nset ylabel 'ms until the victim runs again'\n"
                    "set logscale xy\nplot 'preempt.dat' using 1:2 with linespoints ls 1 title "
                    "'recompute'");
    for (int32_t i = 0; i < setup->links.num_values; i++) {
        fprintf(script, ", '' using 1:%d with linespoints ls %d title 'swap, %d GB/s'", 3 + i,
                2 + i % 7, setup->links.values[i]);
    }
    fprintf(script, "\n");
    return plot_end(script, setup->out, "preempt");
}

/* ---- main ------------------------------------------------------------------------------------ */

static bool measure(const struct setup *setup, struct outcome *outcomes) {
    static struct world worlds[BENCH_MAX_LIST];
    bench_progress progress;
    bool is_right = true;

    for (int32_t b = 0; b < setup->block_sizes.num_values && is_right; b++) {
        outcomes[b].block_size = setup->block_sizes.values[b];
        is_right = make_world(&worlds[b], setup, outcomes[b].block_size) &&
                   run_round(&worlds[b], &outcomes[b], 0) && /* warms up; overwritten below */
                   run_peers(&worlds[b], &outcomes[b], 0);
    }
    bench_progress_begin(&progress);
    for (int32_t round = 0; round < setup->rounds && is_right; round++) {
        bench_progress_update(&progress, "rounds", (double)round / setup->rounds);
        for (int32_t b = 0; b < setup->block_sizes.num_values && is_right; b++) {
            is_right = run_round(&worlds[b], &outcomes[b], round) &&
                       run_peers(&worlds[b], &outcomes[b], round);
        }
    }
    bench_progress_end(&progress);
    for (int32_t b = 0; b < setup->block_sizes.num_values; b++) {
        if (is_right) {
            outcomes[b].out_ns = bench_median(outcomes[b].values[0], setup->rounds);
            outcomes[b].in_ns = bench_median(outcomes[b].values[1], setup->rounds);
            outcomes[b].copy_ms = bench_median(outcomes[b].values[2], setup->rounds);
            outcomes[b].free_ns = bench_median(outcomes[b].values[3], setup->rounds);
            outcomes[b].allocate_ns = bench_median(outcomes[b].values[4], setup->rounds);
        }
        end_world(&worlds[b]);
    }
    return is_right;
}

/* What the two parts share; the second knows whole blocks only. */
static bool measure_policies(struct setup *setup, preempt_row *rows, int32_t *num_rows) {
    setup->policies.token_kib = setup->token_kib;
    setup->policies.parameters = setup->parameters;
    setup->policies.teraflops = setup->teraflops;
    setup->policies.block_copy_us = setup->copy_us * setup->num_layers;
    return setup->policies.num_requests == 0 || setup->is_csv ||
           preempt_policies_run(&setup->policies, rows, num_rows);
}

static void print(const struct setup *setup,
                  const struct outcome *outcomes,
                  const preempt_row *rows,
                  int32_t num_rows) {
    for (int32_t b = 0; b < setup->block_sizes.num_values && (setup->is_json || setup->is_csv);
         b++) {
        if (setup->is_json) {
            print_json(setup, &outcomes[b]);
        } else {
            print_csv(setup, &outcomes[b], b == 0);
        }
    }
    if (setup->is_json) {
        preempt_policies_print_json(BENCH, rows, num_rows);
    } else if (!setup->is_csv) {
        print_report(setup, outcomes);
        if (num_rows > 0) {
            preempt_policies_print(&setup->policies, rows, num_rows);
        }
    }
}

int main(int argc, char **argv) {
    static struct outcome outcomes[BENCH_MAX_LIST];
    static preempt_row rows[PREEMPT_MAX_ROWS];
    int32_t num_rows = 0;
    struct setup setup = {.num_tokens = 2000,
                          .rounds = 11,
                          .num_layers = 32,
                          .share = 80,
                          .token_kib = 128,
                          .copy_us = 2,
                          .parameters = 8,
                          .teraflops = 200,
                          .block_sizes = {6, {8, 16, 32, 64, 128, 256}},
                          .links = {3, {8, 25, 50}},
                          .policies = {.num_requests = 96,
                                       .num_blocks = 601,
                                       .block_size = 16,
                                       .seed = 1,
                                       .links = {4, {1, 3, 8, 50}},
                                       .step_ms = 5}};
    const bench_option options[] = {
        {"tokens", BENCH_INT, &setup.num_tokens, "N", "tokens of the victim", 64, 16384},
        {"block-sizes", BENCH_LIST, &setup.block_sizes, "LIST", "tokens in a block", 1, 1024},
        {"links", BENCH_LIST, &setup.links, "LIST", "GB/s between device and host", 1, 4096},
        {"layers", BENCH_INT, &setup.num_layers, "N", "layers; a transfer is a block of one", 1,
         512},
        {"token-kib", BENCH_DOUBLE, &setup.token_kib, "X", "KiB of cache a token", 1, 4096},
        {"copy-us", BENCH_DOUBLE, &setup.copy_us, "X", "start of a transfer, us", 0, 1000},
        {"parameters", BENCH_DOUBLE, &setup.parameters, "X", "10^9 parameters", 0.01, 10000},
        {"teraflops", BENCH_DOUBLE, &setup.teraflops, "X", "that a prefill reaches", 0.01, 100000},
        {"share", BENCH_INT, &setup.share, "N", "percent of the pool that others use", 60, 100},
        {"rounds", BENCH_INT, &setup.rounds, "N", "rounds", 1, MAX_ROUNDS},
        {"requests", BENCH_INT, &setup.policies.num_requests, "N",
         "requests that the scheduler serves; 0 = not that part", 0, 4096},
        {"pool", BENCH_INT, &setup.policies.num_blocks, "N", "its pool, in blocks of 16", 140,
         65536},
        {"pool-block-size", BENCH_INT, &setup.policies.block_size, "N",
         "tokens in a block of it, as many tokens in all", 1, 1024},
        {"serve-links", BENCH_LIST, &setup.policies.links, "LIST", "GB/s of its links", 1, 4096},
        {"step-ms", BENCH_DOUBLE, &setup.policies.step_ms, "X", "least time of a step", 0.01, 1000},
        {"seed", BENCH_UINT64, &setup.policies.seed, "N", "of its requests", 0, 0},
        {"unordered", BENCH_FLAG, &setup.policies.is_unordered, NULL,
         "its swaps out hold the blocks until they have run", 0, 0},
        {"out", BENCH_STRING, &setup.out, "FOLDER", "write preempt.svg there", 0, 0},
        {"csv", BENCH_FLAG, &setup.is_csv, NULL, "a line for each block size and link", 0, 0},
        {"json", BENCH_FLAG, &setup.is_json, NULL, "JSON lines only", 0, 0}};
    const bench_program program = {
        "bench_preempt", "Preemption by recompute and by swap, over block sizes and links.", NULL,
        options, (int32_t)(sizeof options / sizeof options[0])};
    int exit_code;

    if (!bench_parse_options(&program, argc, argv, &exit_code)) {
        return exit_code;
    }
    setup.policies.num_blocks =
        (setup.policies.num_blocks - 1) * 16 / setup.policies.block_size + 1;
    if (!measure(&setup, outcomes) || !measure_policies(&setup, rows, &num_rows)) {
        return BENCH_EXIT_FAILED;
    }
    print(&setup, outcomes, rows, num_rows);
    if (setup.out != NULL && plot_is_available() &&
        (!bench_make_folder(setup.out) || !plot(&setup, outcomes))) {
        return BENCH_EXIT_FAILED;
    }
    return BENCH_EXIT_OK;
}
