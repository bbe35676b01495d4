/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: different managers are independent. Each thread may drive one of its own at the same time,
 * because the library has no state outside of its objects.
 *
 * Method: several threads run the same seeded load, each on its own manager, and fold every block
 * id they are given into a digest; each must equal the digest of a run alone. Under the thread
 * sanitizer a shared variable would be found even where the digests agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <pthread.h>

#include <pagedkv/manager.h>

enum { NUM_THREADS = 4, NUM_SLOTS = 8, NUM_STEPS = 3000, NUM_BLOCKS = 33, MAX_TOKENS = 96 };

/* One thread's load; cmocka's asserts belong to the main thread, so failures are counted. */
typedef struct load {
    pkv_manager *manager;
    pkv_request requests[NUM_SLOTS];
    bool is_open[NUM_SLOTS];
    uint64_t random;
    uint64_t digest;
    int num_errors;
    int num_refusals; /* of the full pool: the load must be large enough to meet it */
} load;

static uint32_t draw(load *self, uint32_t bound) {
    self->random = self->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->random >> 33) % bound;
}

static void fold(load *self, uint64_t value) {
    self->digest = (self->digest ^ value) * 1099511628211u;
}

static void note(load *self, pkv_status status) {
    fold(self, (uint64_t)(int64_t)status);
    self->num_errors += status < PKV_OK;
    self->num_refusals += status == PKV_NO_FREE_BLOCKS;
}

/* Open a request whose first tokens many others share. */
static void open_request(load *self, int slot) {
    int32_t token_ids[MAX_TOKENS];
    const int32_t num_tokens = 1 + (int32_t)draw(self, MAX_TOKENS);
    const int32_t num_shared = (int32_t)draw(self, MAX_TOKENS);
    const pkv_request_args args = {
        .struct_size = sizeof(args), .token_ids = token_ids, .num_tokens = num_tokens};

    for (int32_t i = 0; i < num_tokens; i++) {
        token_ids[i] = i < num_shared ? i : (int32_t)draw(self, 1000);
    }
    note(self, pkv_request_open(self->manager, &args, &self->requests[slot]));
    self->is_open[slot] = true;
}

/* Look up and allocate the whole prompt; fold the block table of what was given. */
static void admit_request(load *self, int slot) {
    const pkv_request request = self->requests[slot];
    pkv_slots_args args = {.struct_size = sizeof(args)};
    pkv_request_info info = {.struct_size = sizeof(info)};
    const pkv_block_id *block_ids = NULL;
    int32_t num_blocks = 0;
    pkv_status status;

    note(self, pkv_get_computed_blocks(self->manager, request, &args.num_new_computed_tokens));
    note(self, pkv_request_get_info(self->manager, request, &info));
    args.num_new_tokens = info.num_tokens - args.num_new_computed_tokens;
    status = pkv_allocate_slots(self->manager, request, &args, NULL);
    note(self, status);
    if (status == PKV_OK) {
        note(self, pkv_get_block_table(self->manager, request, 0, &block_ids, &num_blocks));
        for (int32_t i = 0; i < num_blocks; i++) {
            fold(self, (uint64_t)block_ids[i]);
        }
    }
}

static void *run_load(void *context) {
    load *self = context;
    const pkv_manager_config config = {.struct_size = sizeof(config),
                                       .num_blocks = NUM_BLOCKS,
                                       .block_size = 8,
                                       .max_model_len = MAX_TOKENS,
                                       .max_rows = NUM_SLOTS};

    self->random = 42;
    note(self, pkv_manager_create(&config, &self->manager));
    for (int step = 0; self->num_errors == 0 && step < NUM_STEPS; step++) {
        const int slot = (int)draw(self, NUM_SLOTS);
        if (self->is_open[slot]) {
            note(self, pkv_free(self->manager, self->requests[slot]));
            note(self, pkv_request_close(self->manager, self->requests[slot]));
            self->is_open[slot] = false;
        } else {
            open_request(self, slot);
            admit_request(self, slot);
        }
    }
    note(self, pkv_manager_check(self->manager));
    pkv_manager_destroy(self->manager);
    return NULL;
}

static void managers_in_threads_do_what_one_does_alone(void **state) {
    load alone = {0};
    load loads[NUM_THREADS] = {{0}};
    pthread_t threads[NUM_THREADS];

    (void)state;
    run_load(&alone);
    for (int i = 0; i < NUM_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_load, &loads[i]), 0);
    }
    for (int i = 0; i < NUM_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }

    assert_int_equal(alone.num_errors, 0);
    assert_true(alone.num_refusals > 0);
    for (int i = 0; i < NUM_THREADS; i++) {
        assert_int_equal(loads[i].num_errors, 0);
        assert_true(loads[i].digest == alone.digest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(managers_in_threads_do_what_one_does_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
