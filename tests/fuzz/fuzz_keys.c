/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Property: the key of a block depends on every token up to its end, on nothing behind, and on each
 * extra; it does not depend on how the run was cut into calls. */
#include <pagedkv/pool.h>

#include "support/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 96
#define MAX_MEDIA 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    pkv_key_args args;
    int32_t num_tokens;
    int32_t tokens[MAX_TOKENS];
    unsigned char salt[4];
    pkv_media media[MAX_MEDIA];
};

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "fuzz_keys: %s\n", what);
        abort();
    }
}

static bool is_same(const pkv_block_key *a, const pkv_block_key *b) {
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high && a->lineage == b->lineage;
}

/* Neither chain agrees. */
static bool is_other(const pkv_block_key *a, const pkv_block_key *b) {
    return (a->hash_low != b->hash_low || a->hash_high != b->hash_high) && a->lineage != b->lineage;
}

static void draw_input(test_source *source, struct input *input) {
    int32_t offset = 0;

    memset(input, 0, sizeof *input);
    input->args.struct_size = sizeof input->args;
    input->args.block_size = 1 + test_draw(source, 20);
    input->args.hash_seed = (uint64_t)test_draw(source, 256);
    input->args.secret[0] = (uint64_t)test_draw(source, 256);
    input->args.secret[1] = (uint64_t)test_draw(source, 256);
    input->args.adapter_id = (uint64_t)test_draw(source, 3);
    input->args.salt_size = (size_t)test_draw(source, 5);
    for (size_t i = 0; i < input->args.salt_size; i++) {
        input->salt[i] = (unsigned char)test_draw(source, 256);
    }
    input->args.salt = input->args.salt_size > 0 ? input->salt : NULL;
    input->args.num_media = test_draw(source, MAX_MEDIA + 1);
    input->args.media = input->args.num_media > 0 ? input->media : NULL;
    for (int32_t i = 0; i < input->args.num_media; i++) {
        input->media[i].digest[test_draw(source, 32)] = (uint8_t)test_draw(source, 256);
        input->media[i].offset = offset + test_draw(source, 16);
        input->media[i].num_tokens = 1 + test_draw(source, 32);
        offset = input->media[i].offset + input->media[i].num_tokens;
    }
    input->num_tokens = test_draw(source, MAX_TOKENS + 1);
    for (int32_t i = 0; i < input->num_tokens; i++) {
        input->tokens[i] = test_draw(source, 4) - 2;
    }
}

static int32_t compute(const struct input *input, pkv_block_key *keys) {
    int32_t num_keys = -1;

    require(pkv_compute_block_keys(&input->args, NULL, 0, input->tokens, input->num_tokens, keys,
                                   &num_keys) == PKV_OK,
            "legal input is refused");
    require(num_keys == input->num_tokens / input->args.block_size, "wrong number of keys");
    return num_keys;
}

/* The same run, a few blocks at a time. */
static void check_pieces(test_source *source,
                         const struct input *input,
                         const pkv_block_key *keys,
                         int32_t num_keys) {
    pkv_block_key piece[MAX_TOKENS];

    for (int32_t first = 0; first < num_keys;) {
        int32_t count = 1 + test_draw(source, num_keys - first);
        int32_t first_token = first * input->args.block_size;
        require(pkv_compute_block_keys(&input->args, first == 0 ? NULL : &keys[first - 1],
                                       first_token, &input->tokens[first_token],
                                       count * input->args.block_size, piece, NULL) == PKV_OK,
                "a piece is refused");
        for (int32_t i = 0; i < count; i++) {
            require(is_same(&piece[i], &keys[first + i]), "keys depend on how the run was cut");
        }
        first += count;
    }
}

/* A changed token changes its block's key and all later ones, in both chains, and no earlier
 * one. */
static void check_token(test_source *source,
                        const struct input *input,
                        const pkv_block_key *keys,
                        int32_t num_keys) {
    struct input changed = *input;
    pkv_block_key other[MAX_TOKENS];
    int32_t position = test_draw(source, input->num_tokens);
    int32_t block = position / input->args.block_size;

    changed.args.salt = input->args.salt != NULL ? changed.salt : NULL;
    changed.args.media = input->args.media != NULL ? changed.media : NULL;
    changed.tokens[position] += 1 + test_draw(source, 1000);
    (void)compute(&changed, other);
    for (int32_t i = 0; i < num_keys; i++) {
        require(i < block ? is_same(&keys[i], &other[i]) : is_other(&keys[i], &other[i]),
                "a changed token changes the wrong keys");
    }
}

/* A changed extra changes every key: adapter, salt; seed and secret change one chain each. */
static void check_extras(const struct input *input, const pkv_block_key *keys, int32_t num_keys) {
    struct input adapted = *input;
    struct input salted = *input;
    struct input seeded = *input;
    struct input secret = *input;
    pkv_block_key of_adapter[MAX_TOKENS];
    pkv_block_key of_salt[MAX_TOKENS];
    pkv_block_key of_seed[MAX_TOKENS];
    pkv_block_key of_secret[MAX_TOKENS];

    adapted.args.adapter_id += 1;
    salted.args.salt = "other";
    salted.args.salt_size = 5;
    seeded.args.hash_seed += 1;
    secret.args.secret[1] += 1;
    (void)compute(&adapted, of_adapter);
    (void)compute(&salted, of_salt);
    (void)compute(&seeded, of_seed);
    (void)compute(&secret, of_secret);
    for (int32_t i = 0; i < num_keys; i++) {
        require(is_other(&keys[i], &of_adapter[i]), "the adapter is not in the key");
        require(is_other(&keys[i], &of_salt[i]), "the salt is not in the key");
        require(is_other(&of_adapter[i], &of_salt[i]), "a salt equals an adapter");
        require(keys[i].hash_low != of_seed[i].hash_low && keys[i].lineage == of_seed[i].lineage,
                "the seed belongs to the 128-bit chain alone");
        require(keys[i].hash_low == of_secret[i].hash_low &&
                    keys[i].lineage != of_secret[i].lineage,
                "the secret belongs to the lineage alone");
    }
}

static void check_refusals(const struct input *input) {
    static const pkv_block_key parent = {1, 2, 3};
    struct input bad = *input;
    pkv_block_key untouched[MAX_TOKENS];
    int32_t num_keys = -7;

    memset(untouched, 0x5A, sizeof untouched);
    bad.args.num_media = -1;
    require(pkv_compute_block_keys(&bad.args, NULL, 0, input->tokens, 1, untouched, &num_keys) ==
                PKV_ERROR_INVALID_ARGUMENT,
            "negative num_media is taken");
    require(pkv_compute_block_keys(&input->args, &parent, 0, input->tokens, 1, untouched,
                                   &num_keys) == PKV_ERROR_INVALID_ARGUMENT,
            "a parent is taken for the first block");
    require(pkv_compute_block_keys(&input->args, NULL, input->args.block_size, input->tokens, 1,
                                   untouched, &num_keys) == PKV_ERROR_INVALID_ARGUMENT,
            "no parent is taken for a later block");
    require(pkv_compute_block_keys(&input->args, NULL, 0, NULL, MAX_TOKENS, untouched, &num_keys) ==
                PKV_ERROR_INVALID_ARGUMENT,
            "NULL tokens are taken");
    require(num_keys == -7 && untouched[0].lineage == UINT64_C(0x5A5A5A5A5A5A5A5A),
            "a refused call wrote its outputs");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    test_source source = test_source_of_bytes(data, size);
    struct input input;
    pkv_block_key keys[MAX_TOKENS];
    int32_t num_keys;

    draw_input(&source, &input);
    num_keys = compute(&input, keys);
    check_pieces(&source, &input, keys, num_keys);
    if (input.num_tokens > 0) {
        check_token(&source, &input, keys, num_keys);
    }
    check_extras(&input, keys, num_keys);
    check_refusals(&input);
    return 0;
}
