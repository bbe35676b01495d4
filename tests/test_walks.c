/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: the situations that an engine meets can be played through the public API alone. Method:
 * each test is a small engine: a loop that schedules, and the device of support/mirror_device.h. A
 * sequence that reads anything but its own tokens fails the test. Engines whose steps fail, of
 * several ranks, and with tables of their own are in test_walks_steps.c. */
#include "support/fixture.h"
#include "support/mirror_device.h"

#include <string.h>

/* ---- a mixed step: decodes, a chunk, a hit and a preemption ---------------------------------- */

typedef struct engine_request {
    pkv_request handle;
    int32_t num_computed, num_scheduled, priority;
} engine_request;

typedef struct engine {
    pkv_manager *manager;
    engine_request *running[8];
    int32_t num_running;
    pkv_batch_entry entries[MAX_ENTRIES];
    engine_request *owners[MAX_ENTRIES];
    int32_t num_entries;
    uint64_t step;
} engine;

static void engine_drop_entry(engine *own, const engine_request *request) {
    int32_t num_kept = 0;

    for (int32_t i = 0; i < own->num_entries; i++) {
        if (own->owners[i] != request) {
            own->owners[num_kept] = own->owners[i];
            own->entries[num_kept++] = own->entries[i];
        }
    }
    own->num_entries = num_kept;
}

/* The one of lowest priority, which is the highest number, leaves; withdrawn first if this step had
 * it already. */
static engine_request *engine_preempt(engine *own) {
    int32_t victim_index = 0;
    engine_request *victim;

    for (int32_t i = 1; i < own->num_running; i++) {
        if (own->running[i]->priority > own->running[victim_index]->priority) {
            victim_index = i;
        }
    }
    victim = own->running[victim_index];
    own->running[victim_index] = own->running[--own->num_running];
    if (victim->num_scheduled > 0) {
        assert_int_equal(pkv_unschedule(own->manager, victim->handle, own->step), PKV_OK);
        engine_drop_entry(own, victim);
    }
    assert_int_equal(pkv_free(own->manager, victim->handle), PKV_OK);
    victim->num_computed = 0;
    victim->num_scheduled = 0;
    return victim;
}

/* Schedule `count` tokens of a running request. Returns false when it was preempted itself. */
static bool engine_schedule(engine *own, engine_request *request, int32_t count) {
    pkv_slots_args args = slots_of(request->num_computed, count);
    pkv_status status;

    args.step = own->step;
    while ((status = pkv_allocate_slots(own->manager, request->handle, &args, NULL)) ==
           PKV_NO_FREE_BLOCKS) {
        if (engine_preempt(own) == request) {
            return false;
        }
    }
    assert_int_equal(status, PKV_OK);
    request->num_scheduled = count;
    own->owners[own->num_entries] = request;
    own->entries[own->num_entries++] =
        (pkv_batch_entry){request->handle, request->num_computed, count};
    return true;
}

static pkv_status engine_admit(engine *own, engine_request *request) {
    pkv_slots_args args = slots_of(0, 0);
    pkv_status status;

    args.num_new_computed_tokens = find_hit(own->manager, request->handle);
    args.num_new_tokens =
        info_of(own->manager, request->handle).num_tokens - args.num_new_computed_tokens;
    args.full_sequence_must_fit = true;
    args.step = own->step;
    status = pkv_allocate_slots(own->manager, request->handle, &args, NULL);
    if (status == PKV_OK) {
        request->num_computed = args.num_new_computed_tokens;
        request->num_scheduled = args.num_new_tokens;
        own->running[own->num_running++] = request;
        own->owners[own->num_entries] = request;
        own->entries[own->num_entries++] =
            (pkv_batch_entry){request->handle, request->num_computed, args.num_new_tokens};
    }
    return status;
}

static void engine_run(engine *own, device *target) {
    run_step(target, own->manager, own->entries, own->num_entries);
    assert_int_equal(pkv_step_complete(own->manager, own->step), PKV_OK);
    for (int32_t i = 0; i < own->num_entries; i++) {
        own->owners[i]->num_computed += own->owners[i]->num_scheduled;
        own->owners[i]->num_scheduled = 0;
    }
    own->num_entries = 0;
    own->step++;
}

static void mixed_step_with_a_preempted_victim_that_was_scheduled(void **state) {
    engine own = {.manager = make_walk_manager(13, 4), .step = 1};
    device target = make_device(0, 4, 0);
    engine_request victim = {.handle = open_prompt(own.manager, "0..10"), .priority = 9};
    engine_request first = {.handle = open_prompt(own.manager, "100..107"), .priority = 1};
    engine_request second = {.handle = open_prompt(own.manager, "200..207"), .priority = 2};
    engine_request chunk = {.handle = open_prompt(own.manager, "300..319"), .priority = 3};
    engine_request waiting = {.handle = open_prompt(own.manager, "100..107 7 7"), .priority = 4};

    (void)state;
    assert_int_equal(engine_admit(&own, &victim), PKV_OK);
    assert_int_equal(engine_admit(&own, &first), PKV_OK);
    assert_int_equal(engine_admit(&own, &second), PKV_OK);
    own.running[own.num_running++] = &chunk;
    assert_true(engine_schedule(&own, &chunk, 8));
    engine_run(&own, &target);
    assert_int_equal(num_free_blocks(own.manager), 3);

    /* The victim is scheduled first and fills its third block; the chunk then finds no room. */
    append_tokens(own.manager, victim.handle, "11");
    append_tokens(own.manager, first.handle, "108");
    append_tokens(own.manager, second.handle, "208");
    assert_true(engine_schedule(&own, &victim, 1));
    assert_int_equal(find_hit(own.manager, open_prompt(own.manager, "0..12")), 12);
    assert_true(engine_schedule(&own, &first, 1));
    assert_true(engine_schedule(&own, &second, 1));
    assert_true(engine_schedule(&own, &chunk, 8));
    assert_int_equal(own.num_entries, 3);
    assert_int_equal(own.num_running, 3);
    assert_int_equal(find_hit(own.manager, open_prompt(own.manager, "0..12")), 8);
    assert_int_equal(engine_admit(&own, &waiting), PKV_OK);
    assert_int_equal(waiting.num_computed, 8);
    engine_run(&own, &target);

    /* Who was preempted comes back with what is left of its prefix, and computes the rest anew. */
    assert_int_equal(find_hit(own.manager, victim.handle), 4);
    assert_int_equal(engine_admit(&own, &victim), PKV_NO_FREE_BLOCKS);
    end_request(own.manager, chunk.handle);
    assert_int_equal(engine_admit(&own, &victim), PKV_OK);
    engine_run(&own, &target);
    assert_int_equal(victim.num_computed, 12);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static void two_of_four_drafts_rejected_needs_no_call(void **state) {
    pkv_manager *manager = make_walk_manager(41, 16);
    device target = make_device(0, 16, 0);
    pkv_request request = open_prompt(manager, "0..99");
    pkv_batch_entry entry = {request, 0, 100};
    pkv_slots_args args = slots_of(100, 1 + 4);
    char table[64];

    (void)state;
    admit(manager, request);
    run_step(&target, manager, &entry, 1);
    append_tokens(manager, request, "100");

    args.num_lookahead_tokens = 4;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    strcpy(table, table_text(manager, request, 0));
    entry = (pkv_batch_entry){request, 100, 5};
    run_step(&target, manager, &entry, 1);
    /* Two drafts and the bonus token are accepted: 101 + 3 tokens, 103 of them computed. */
    append_tokens(manager, request, "101 102 103");
    entry = (pkv_batch_entry){request, 101, 2};
    run_step(&target, manager, &entry, 1); /* what the draft pass had written */

    args.num_computed_tokens = 103;
    assert_int_equal(pkv_allocate_slots(manager, request, &args, NULL), PKV_OK);
    assert_string_equal(table_text(manager, request, 0), table);
    entry = (pkv_batch_entry){request, 103, 5};
    run_step(&target, manager, &entry, 1);
    assert_string_equal(keyed_columns_text(manager, request, 0), "0 1 2 3 4 5");
}

/* ---- two kinds of layers, two kernels -------------------------------------------------------- */

static void full_and_window_layers_run_from_two_tables(void **state) {
    const pkv_group_config groups[] = {full_group(8), window_group(4, 8)};
    pkv_manager_config config = small_config(121, 8);
    device full = make_device(0, 8, 0);
    device window = make_device(1, 4, 8);
    pkv_manager *manager;
    pkv_request requests[3];
    int32_t lengths[3] = {0, 0, 0};

    (void)state;
    config.groups = groups;
    config.num_groups = 2;
    config.max_rows = MAX_ROWS - 1;
    config.max_model_len = 256;
    manager = make_manager(&config);
    for (int32_t i = 0; i < 3; i++) {
        requests[i] = open_prompt(manager, "0..15 %d*%d", 3 + 5 * i, 1000 + i);
    }
    for (int32_t step = 0; step < 60; step++) {
        pkv_batch_entry entries[3];
        int32_t num_entries = 0;

        for (int32_t i = 0; i < 3 && i <= step; i++) {
            int32_t first = lengths[i];

            if (lengths[i] == 0) {
                first = admit(manager, requests[i]);
            } else {
                append_tokens(manager, requests[i], "%d", 2000 + step);
                assert_int_equal(allocate(manager, requests[i], first, 1), PKV_OK);
            }
            lengths[i] = info_of(manager, requests[i]).num_tokens;
            entries[num_entries++] = (pkv_batch_entry){requests[i], first, lengths[i] - first};
        }
        run_step(&full, manager, entries, num_entries);
        run_step(&window, manager, entries, num_entries);
    }
    assert_int_equal(find_hit(manager, open_prompt(manager, "0..15 3*1000 9")), 16);
}

/* ---- captured graphs ------------------------------------------------------------------------- */

static void captured_graph_replays_at_its_size_and_pads_with_the_null_row(void **state) {
    pkv_manager *manager = make_walk_manager(61, 4);
    device target = make_device(0, 4, 0);
    pkv_request requests[3];
    step_arrays arrays = {.batch = {.padded_requests = 4, .padded_tokens = 4}};

    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        pkv_batch_entry entry;

        requests[i] = open_prompt(manager, "%d..%d", 100 * i, 100 * i + 5 + i);
        admit(manager, requests[i]);
        entry = (pkv_batch_entry){requests[i], 0, 6 + i};
        run_step(&target, manager, &entry, 1);
    }
    for (int32_t step = 0; step < 30; step++) {
        pkv_batch_entry entries[3];

        for (int32_t i = 0; i < 3; i++) {
            append_tokens(manager, requests[i], "%d", step);
            assert_int_equal(allocate(manager, requests[i], 6 + i + step, 1), PKV_OK);
            entries[i] = (pkv_batch_entry){requests[i], 6 + i + step, 1};
        }
        send_table(&target, manager);
        build_batch(&arrays, &target, manager, entries, 3);
        write_tokens(&target, &arrays, manager, entries);
        read_tokens(&target, &arrays, manager, entries);

        /* The fourth place of the graph reads the null row, length 0, and writes nowhere. */
        assert_int_equal(arrays.rows[3], PKV_NULL_ROW);
        assert_int_equal(arrays.seq_lens[3], 0);
        assert_int_equal(arrays.query_start_loc[4], 3);
        assert_true(arrays.slot_mapping[3] == PKV_NO_SLOT);
    }
    for (int32_t column = 0; column < MAX_COLUMNS; column++) {
        assert_int_equal(target.table[PKV_NULL_ROW][column], PKV_NULL_BLOCK);
    }
}

/* ---- kernels of others ----------------------------------------------------------------------- */

static void kernels_that_index_by_entry_get_tables_in_entry_order(void **state) {
    pkv_manager *manager = make_walk_manager(61, 4);
    device target = make_device(0, 4, 0);
    pkv_request requests[4];
    pkv_batch_entry entries[4];
    step_arrays arrays = {0};
    int32_t indptr[5], last_page_len[4], num_indices;
    pkv_block_id indices[64], padded[4][8];

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        requests[i] = open_prompt(manager, "%d..%d", 100 * i, 100 * i + 3 * i + 2);
        admit(manager, requests[i]);
        entries[3 - i] = (pkv_batch_entry){requests[i], 0, 3 * i + 3};
    }
    run_step(&target, manager, entries, 4);
    build_batch(&arrays, &target, manager, entries, 4);
    assert_int_equal(pkv_export_csr(manager, 0, entries, 4, false, indptr, indices, 64,
                                    last_page_len, &num_indices),
                     PKV_OK);
    assert_int_equal(pkv_export_padded(manager, 0, entries, 4, &padded[0][0], 8, -1), PKV_OK);
    for (int32_t i = 0; i < 4; i++) {
        int32_t num_blocks = indptr[i + 1] - indptr[i];

        assert_int_equal((num_blocks - 1) * 4 + last_page_len[i], arrays.seq_lens[i]);
        assert_memory_equal(indices + indptr[i], padded[i], (size_t)num_blocks * sizeof *indices);
        assert_memory_equal(indices + indptr[i], target.table[arrays.rows[i]],
                            (size_t)num_blocks * sizeof *indices);
        assert_int_equal(padded[i][num_blocks], -1);
        for (int32_t position = 0; position < arrays.seq_lens[i]; position++) {
            int64_t slot = pkv_compute_slot(padded[i], 4, position);

            assert_int_equal(target.slots[slot], 100 * (3 - i) + position);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(mixed_step_with_a_preempted_victim_that_was_scheduled),
        fixture_test(two_of_four_drafts_rejected_needs_no_call),
        fixture_test(full_and_window_layers_run_from_two_tables),
        fixture_test(captured_graph_replays_at_its_size_and_pads_with_the_null_row),
        fixture_test(kernels_that_index_by_entry_get_tables_in_entry_order),
    };

    return cmocka_run_group_tests_name("walks", tests, NULL, NULL);
}
