/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A tier and a store joined by nothing but arrays: what a plan of the one says is a transfer of the
 * other. A restart from a file, a file with a flipped byte, a file of other weights, and a store
 * that delays, reorders and fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/memory_store.h"
#include "support/rand.h"
#include "tier_store_engine.h"

enum { JOBS = 4 };

static char folder[64], path[96];

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pkv_tier_store_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store", folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

/* ---- a file ---------------------------------------------------------------------------------- */

enum { NUM_FIRST = 22, NUM_SECOND = 26, NUM_SHARED = 12 };

static pkv_request open_first(void) {
    return open_request(0, NUM_SHARED, NUM_FIRST);
}

static pkv_request open_second(void) {
    return open_request(1, NUM_SHARED, NUM_SECOND);
}

/* Compute two requests that share a prefix, and keep them in the file. While the writes are under
 * way the requests are gone and others write every block that is free. */
static void fill_file(void) {
    struct flight *landed;
    int32_t hit, num_failed, num_others = 0;

    start_manager(1);
    assert_ok(open_file(path, PKV_STORE_REFUSE, false));
    assert_int_equal(restore_tier(), 0);
    const pkv_request first = open_first(), second = open_second();
    assert_ok(compute(first, 0, 0, NUM_FIRST));
    assert_ok(pkv_get_computed_blocks(engine.manager, second, &hit));
    assert_int_equal(hit, NUM_SHARED);
    assert_ok(compute(second, 0, hit, NUM_SECOND - hit));
    assert_int_equal(swap_out(first)->plan.num_copies, 10);
    assert_int_equal(swap_out(second)->plan.num_copies, 6); /* the prefix is under way already */
    assert_ok(pkv_request_close(engine.manager, first));
    assert_ok(pkv_request_close(engine.manager, second));
    while (compute(open_request(2 + num_others, 0, 3), 0, 0, 3) == PKV_OK) {
        num_others++;
    }
    assert_true(num_others > 2);
    assert_true(num_free_blocks() < GROUPS);
    for (int i = 0; i < 2; i++) {
        landed = land(true, &num_failed);
        assert_non_null(landed);
        assert_int_equal(num_failed, 0);
        assert_ok(pkv_swap_commit(engine.tier, landed->swap));
    }
    assert_int_equal(num_free_blocks(), BLOCKS - 1 - GROUPS * num_others);
    stop_engine();
}

/* Bring a request in, and go on with it. */
static void expect_whole(pkv_request request, int32_t num_tokens) {
    struct flight *flight = swap_in(request);
    int32_t num_failed, num_loaded = flight->plan.num_tokens, token = 77;

    assert_int_equal(num_loaded, num_tokens);
    assert_ptr_equal(land(true, &num_failed), flight);
    assert_int_equal(num_failed, 0);
    assert_ok(pkv_swap_commit(engine.tier, flight->swap));
    touch_tokens(request, 0, num_loaded, false);
    assert_ok(compute(request, num_loaded, 0, length_of(request) - num_loaded));
    for (int i = 0; i < 5; i++) {
        assert_ok(pkv_request_append(engine.manager, request, &token, 1));
        assert_ok(compute(request, length_of(request) - 1, 0, 1));
    }
    assert_ok(pkv_request_close(engine.manager, request));
    assert_int_equal(num_free_blocks(), BLOCKS - 1);
}

static void requests_survive_a_restart_in_a_file(void **state) {
    (void)state;
    fill_file();
    start_manager(1);
    assert_ok(open_file(path, PKV_STORE_REFUSE, false));
    assert_int_equal(restore_tier(), 16);
    expect_whole(open_second(), 24);
    assert_ok(pkv_reset_prefix_cache(engine.manager));
    expect_whole(open_first(), 20);
    stop_engine();
}

/* Flip one byte of what the file holds of the block at `position` in the group of full
 * attention. */
static void flip_byte_of(pkv_request request, int32_t position) {
    static unsigned char bytes[1 << 18];
    int32_t tokens[MAX_LEN];
    uint64_t prefix = FIRST_PREFIX, content;
    FILE *file = fopen(path, "r+b");
    size_t size;
    int num_found = 0;

    assert_non_null(file);
    assert_ok(pkv_request_get_tokens(engine.manager, request, 0, position + 1, tokens));
    for (int32_t i = 0; i <= position; i++) {
        prefix = extend_prefix(prefix, tokens[i]);
    }
    content = content_of(prefix, 1, 0);
    size = fread(bytes, 1, sizeof bytes, file);
    assert_true(size > 0 && size < sizeof bytes);
    for (size_t i = 0; i + sizeof content <= size; i++) {
        if (memcmp(bytes + i, &content, sizeof content) == 0) {
            assert_int_equal(fseek(file, (long)i + 3, SEEK_SET), 0);
            assert_int_not_equal(fputc(bytes[i + 3] ^ 0x10, file), EOF);
            num_found++;
        }
    }
    assert_int_equal(num_found, 1);
    assert_int_equal(fclose(file), 0);
}

/* The fifth block of the second request, in full attention, is rotten: only its own tokens and
 * those behind it are computed again. */
static void rotten_block_is_not_used_and_is_computed_again(void **state) {
    const int32_t num_left = 4 * BLOCK_TOKENS;

    (void)state;
    for (int verify_data = 0; verify_data < 2; verify_data++) {
        struct flight *flight;
        int32_t num_failed, hit;

        fill_file();
        start_manager(1);
        const pkv_request request = open_second();
        flip_byte_of(request, num_left + 1);
        assert_ok(open_file(path, PKV_STORE_REFUSE, verify_data != 0));
        assert_int_equal(restore_tier(), 16 - verify_data);
        if (verify_data == 0) { /* the index is whole, the read is not */
            assert_int_equal(look_up(request), 24);
            flight = swap_in(request);
            assert_ptr_equal(land(true, &num_failed), flight);
            assert_int_equal(num_failed, 1);
            for (int32_t i = 0; i < flight->plan.num_copies; i++) {
                assert_true(flight->statuses[i] == PKV_OK ||
                            flight->statuses[i] == PKV_ERROR_CORRUPT);
            }
            assert_ok(pkv_swap_abort(engine.tier, flight->swap));
            evict_failed(flight);
            assert_ok(pkv_free(engine.manager, request));
            assert_int_equal(num_free_blocks(), BLOCKS - 1);
            assert_ok(pkv_get_computed_blocks(engine.manager, request, &hit));
            assert_int_equal(hit, 0);
        }
        expect_whole(request, num_left);
        stop_engine();
        (void)unlink(path);
    }
}

static void file_of_another_fingerprint_is_refused_or_emptied(void **state) {
    (void)state;
    fill_file();
    start_manager(2); /* other weights */
    assert_int_equal(open_file(path, PKV_STORE_REFUSE, false), PKV_ERROR_CORRUPT);
    assert_true(strlen(engine.error) > 10);
    stop_engine();
    start_manager(1); /* it was left as it was */
    assert_ok(open_file(path, PKV_STORE_REFUSE, false));
    assert_int_equal(restore_tier(), 16);
    stop_engine();
    start_manager(2);
    assert_ok(open_file(path, PKV_STORE_EMPTY, false));
    assert_int_equal(restore_tier(), 0);
    const pkv_request request = open_first();
    assert_int_equal(look_up(request), 0);
    assert_ok(compute(request, 0, 0, NUM_FIRST));
    stop_engine();
}

/* ---- a store that delays, reorders and fails ------------------------------------------------- */

struct job {
    pkv_request request;
    int32_t num_computed;
    bool is_open, is_loading;
};

struct walk {
    test_source source;
    struct job jobs[JOBS];
    int num_loaded, num_stored, num_failed_loads, num_failed_stores, num_cancelled, num_orphans;
    int num_no_room;
};

static void end_job(struct job *job) {
    assert_ok(pkv_request_close(engine.manager, job->request));
    job->is_open = false;
    job->is_loading = false;
}

/* Admit a job: what the device has, what the tier has, and the rest is computed at once or, where
 * something is to be loaded, after that. Without room it ends. */
static void admit(struct walk *walk, int index) {
    struct job *job = &walk->jobs[index];
    struct flight *flight = free_flight(false);
    pkv_slots_args args = {.struct_size = sizeof args};
    pkv_status status = PKV_NOT_FOUND;

    assert_ok(pkv_get_computed_blocks(engine.manager, job->request, &args.num_new_computed_tokens));
    job->num_computed = args.num_new_computed_tokens;
    if (flight != NULL) {
        status = pkv_swap_in(engine.tier, job->request, &args, NULL, &flight->plan, &flight->swap);
    }
    if (status == PKV_OK) {
        flight->job = index;
        job->is_loading = true;
        submit(flight);
        return;
    }
    if (status == PKV_NOT_FOUND || status == PKV_IN_PROGRESS) {
        status = compute(job->request, 0, job->num_computed,
                         length_of(job->request) - job->num_computed);
        job->num_computed = length_of(job->request);
    }
    if (status != PKV_OK) {
        assert_int_equal(status, PKV_NO_FREE_BLOCKS);
        walk->num_no_room++;
        end_job(job);
    }
}

/* Act on a transfer that has landed, as an engine would. */
static void settle(struct walk *walk, const struct flight *flight, int32_t num_failed) {
    struct job *job = &walk->jobs[flight->job < 0 ? 0 : flight->job];

    if (flight->is_write) {
        bool is_commit = num_failed == 0 || test_draw(&walk->source, 2) == 0;

        assert_ok(is_commit ? pkv_swap_commit(engine.tier, flight->swap)
                            : pkv_swap_abort(engine.tier, flight->swap));
        evict_failed(flight);
        walk->num_stored += num_failed == 0;
        walk->num_failed_stores += num_failed > 0;
        return;
    }
    assert_ok(num_failed == 0 ? pkv_swap_commit(engine.tier, flight->swap)
                              : pkv_swap_abort(engine.tier, flight->swap));
    evict_failed(flight);
    walk->num_orphans += flight->job < 0;
    walk->num_loaded += num_failed == 0;
    walk->num_failed_loads += num_failed > 0;
    if (flight->job < 0) {
        return; /* its request did not wait for it */
    }
    job->is_loading = false;
    if (num_failed > 0) {
        assert_ok(pkv_free(engine.manager, job->request));
        admit(walk, flight->job);
        return;
    }
    job->num_computed += flight->plan.num_tokens;
    touch_tokens(job->request, 0, job->num_computed, false);
    if (compute(job->request, job->num_computed, 0, length_of(job->request) - job->num_computed) !=
        PKV_OK) {
        walk->num_no_room++;
        end_job(job);
    } else {
        job->num_computed = length_of(job->request);
    }
}

static void keep(struct walk *walk, struct job *job) {
    struct flight *flight = free_flight(true);

    if (flight != NULL &&
        pkv_swap_out(engine.tier, job->request, &flight->plan, &flight->swap) == PKV_OK) {
        flight->job = -1;
        submit(flight);
        if (test_draw(&walk->source, 2) == 0) {
            end_job(job);
        }
    }
}

static void decode(struct walk *walk, struct job *job) {
    int32_t token = test_draw(&walk->source, 3);

    if (length_of(job->request) < MAX_LEN / 2) {
        assert_ok(pkv_request_append(engine.manager, job->request, &token, 1));
        if (compute(job->request, job->num_computed, 0, 1) == PKV_OK) {
            job->num_computed++;
            return;
        }
        walk->num_no_room++;
    }
    end_job(job);
}

static void act_on(struct walk *walk, int index) {
    struct job *job = &walk->jobs[index];
    int choice = test_draw(&walk->source, 8);

    if (!job->is_open) {
        job->request = open_request(test_draw(&walk->source, 3), 4 * test_draw(&walk->source, 3),
                                    test_draw_between(&walk->source, 2, MAX_LEN / 3));
        job->is_open = true;
        admit(walk, index);
    } else if (job->is_loading) {
        for (int i = 0; i < FLIGHTS && choice == 0; i++) {
            struct flight *flight = &engine.flights[i];

            if (flight->is_open && !flight->is_write && flight->job == index) {
                flight->job = -1;
                end_job(job);
                break;
            }
        }
    } else if (choice < 3) {
        keep(walk, job);
    } else if (choice == 3) {
        end_job(job);
    } else {
        decode(walk, job);
    }
}

/* Make the device forget every key, that of blocks under way, too. */
static void forget_device(void) {
    for (pkv_block_id block = 1; block < BLOCKS; block++) {
        assert_ok(pkv_evict_blocks(engine.manager, &block, 1));
    }
}

static void run_walk(struct walk *walk, uint64_t seed) {
    const memory_store_config config = {
        .shape = shape, .seed = seed, .most_polls = 5, .fail_once_in = 25};
    pkv_tier_stats stats = {.struct_size = sizeof stats};
    struct flight *landed;
    int32_t num_failed;

    start_manager(1);
    engine.store = memory_store_create(&config);
    walk->source = test_source_of_seed(seed);
    memset(walk->jobs, 0, sizeof walk->jobs);
    for (int step = 0; step < 300; step++) {
        const struct flight *flight = &engine.flights[test_draw(&walk->source, FLIGHTS)];

        act_on(walk, test_draw(&walk->source, JOBS));
        if (test_draw(&walk->source, 12) == 0) {
            forget_device();
        }
        if (flight->is_open && test_draw(&walk->source, 20) == 0) {
            assert_ok(pkv_store_cancel(&engine.store, flight->ticket));
            walk->num_cancelled++;
        }
        while ((landed = land(false, &num_failed)) != NULL) {
            settle(walk, landed, num_failed);
        }
        assert_ok(pkv_manager_check(engine.manager));
        assert_ok(pkv_tier_check(engine.tier));
    }
    while ((landed = land(true, &num_failed)) != NULL) {
        settle(walk, landed, num_failed);
    }
    for (int i = 0; i < JOBS; i++) {
        if (walk->jobs[i].is_open) {
            end_job(&walk->jobs[i]);
        }
    }
    assert_ok(pkv_tier_get_stats(engine.tier, &stats));
    assert_int_equal(stats.num_swaps, 0);
    assert_int_equal(stats.num_pinned_blocks, 0);
    assert_int_equal(stats.num_free_blocks, SLOTS - 1);
    assert_int_equal(num_free_blocks(), BLOCKS - 1);
    stop_engine();
}

static void store_that_delays_reorders_and_fails_leaks_nothing(void **state) {
    struct walk walk = {.num_loaded = 0};

    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        run_walk(&walk, seed);
    }
    assert_true(walk.num_loaded > 100 && walk.num_failed_loads > 20);
    assert_true(walk.num_stored > 100 && walk.num_failed_stores > 20);
    assert_true(walk.num_cancelled > 20 && walk.num_orphans > 10 && walk.num_no_room > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(requests_survive_a_restart_in_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(rotten_block_is_not_used_and_is_computed_again, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(file_of_another_fingerprint_is_refused_or_emptied, set_up,
                                        tear_down),
        cmocka_unit_test(store_that_delays_reorders_and_fails_leaks_nothing),
    };

    return cmocka_run_group_tests_name("tier and store", tests, NULL, NULL);
}
