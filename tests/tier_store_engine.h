/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A process in miniature for tests that join a tier and a store: a manager of two groups, its tier,
 * a store, the memory of the blocks, and swaps whose copies the store runs. Public headers only.
 *
 * The one idea: the "keys and values" of a token are a function of all tokens up to it, of layer
 * and group, so that a block which is not the reader's own past cannot pass for it. */
#ifndef PKV_TESTS_TIER_STORE_ENGINE_H
#define PKV_TESTS_TIER_STORE_ENGINE_H

#include <pagedkv/store.h>
#include <pagedkv/tier.h>

#define assert_ok(call) assert_int_equal(call, PKV_OK)

enum { LAYERS = 2, GROUPS = 2, BLOCK_TOKENS = 4, WINDOW = 13, BLOCK_BYTES = BLOCK_TOKENS * 8 };
enum { BLOCKS = 28, SLOTS = 20, MAX_LEN = 64, MAX_COPIES = 32, FLIGHTS = 4 };

/* A swap, and the transfer that does what its plan says. */
struct flight {
    bool is_open, is_write;
    pkv_swap swap;
    pkv_swap_plan plan;
    uint64_t ticket;
    pkv_block_copy copies[MAX_COPIES];
    pkv_block_key keys[MAX_COPIES];
    int32_t groups[MAX_COPIES], token_ids[MAX_COPIES * BLOCK_TOKENS];
    pkv_status statuses[MAX_COPIES];
    int job; /* the caller's */
};

/* One process with its memory. */
struct engine {
    pkv_manager *manager;
    pkv_tier *tier;
    pkv_file_store *file;
    pkv_store store;
    char error[200];
    unsigned char memory[LAYERS][BLOCKS][BLOCK_BYTES];
    struct flight flights[FLIGHTS];
};

extern struct engine engine;
extern const pkv_store_shape shape;

/* Begin anew: other weights, another fingerprint. */
void start_manager(unsigned char weights);

/* Open a file as the store, under the fingerprint of the tier. */
pkv_status open_file(const char *path, pkv_store_mismatch mismatch, bool verify_data);

/* Tell the tier what the file holds. Returns how many blocks. */
int32_t restore_tier(void);

/* Check and end everything. */
void stop_engine(void);

/* A prompt of which the first num_shared tokens are those of every family. */
pkv_request open_request(int32_t family, int32_t num_shared, int32_t num_tokens);
int32_t length_of(pkv_request request);

/* The prefix that one more token makes; begin with FIRST_PREFIX. */
#define FIRST_PREFIX UINT64_C(1)
uint64_t extend_prefix(uint64_t prefix, int32_t token);

/* Keys and values of the token at the end of a prefix, in one layer of one group. */
uint64_t content_of(uint64_t prefix, int layer, int32_t group);

/* The kernels of a step: write the tokens [first, end), or check those in [first, end) that the
 * token after them sees. */
void touch_tokens(pkv_request request, int32_t first, int32_t end, bool is_write);

/* A step of one request: [computed + hit, computed + hit + count) is computed, all is read. */
pkv_status compute(pkv_request request, int32_t computed, int32_t hit, int32_t count);
int32_t num_free_blocks(void);
int32_t look_up(pkv_request request);

/* A flight with the arrays of its plan; NULL where all are under way. */
struct flight *free_flight(bool is_write);

/* Hand the plan of a swap to the store, array for array. */
void submit(struct flight *flight);

/* The next flight that has landed; NULL where none is under way or, without `wait`, none landed. */
struct flight *land(bool wait, int32_t *num_failed);

/* Forget the slots of the blocks that were not moved. */
void evict_failed(const struct flight *flight);

/* Swaps that must succeed, with their transfers begun. */
struct flight *swap_out(pkv_request request);
struct flight *swap_in(pkv_request request);

#endif
