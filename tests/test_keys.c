/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Goal: a block key is the same number in every process, build and byte order, for ever. Method:
 * golden values. Those of SipHash-2-4 are the published vectors; those of keys were computed by a
 * second program, in another language and on another XXH3 implementation, from the encoding alone:
 *
 *   key(i)      = XXH3-128(seed; parent low, parent high, tokens [, extra low, extra high])
 *   lineage(i)  = SipHash-2-4(secret; parent lineage, tokens [, extra lineage])
 *   extra       = 0, then for each extra: H(extra, tag, payload)
 *   extras      = adapter (tag 1: id), salt (tag 2: digest of the salt, where the block starts at
 *                 token 0), media (tag 3: offset from the block, 32 bytes of digest)
 *
 * with all numbers in little-endian order, tokens of 32 bits, all others of 64. A change that makes
 * one of these values differ makes every stored key worthless: it must not pass. */
#include "support/fixture.h"

#include <string.h>

#include "base/hash.h"

/* ---- golden values --------------------------------------------------------------------------- */

/* SipHash-2-4 of 0, 1, ... 63 bytes 00 01 02 ..., secret 00 01 ... 0f. */
static const uint64_t siphash_vectors[64] = {
    UINT64_C(0x726fdb47dd0e0e31), UINT64_C(0x74f839c593dc67fd), UINT64_C(0x0d6c8009d9a94f5a),
    UINT64_C(0x85676696d7fb7e2d), UINT64_C(0xcf2794e0277187b7), UINT64_C(0x18765564cd99a68d),
    UINT64_C(0xcbc9466e58fee3ce), UINT64_C(0xab0200f58b01d137), UINT64_C(0x93f5f5799a932462),
    UINT64_C(0x9e0082df0ba9e4b0), UINT64_C(0x7a5dbbc594ddb9f3), UINT64_C(0xf4b32f46226bada7),
    UINT64_C(0x751e8fbc860ee5fb), UINT64_C(0x14ea5627c0843d90), UINT64_C(0xf723ca908e7af2ee),
    UINT64_C(0xa129ca6149be45e5), UINT64_C(0x3f2acc7f57c29bdb), UINT64_C(0x699ae9f52cbe4794),
    UINT64_C(0x4bc1b3f0968dd39c), UINT64_C(0xbb6dc91da77961bd), UINT64_C(0xbed65cf21aa2ee98),
    UINT64_C(0xd0f2cbb02e3b67c7), UINT64_C(0x93536795e3a33e88), UINT64_C(0xa80c038ccd5ccec8),
    UINT64_C(0xb8ad50c6f649af94), UINT64_C(0xbce192de8a85b8ea), UINT64_C(0x17d835b85bbb15f3),
    UINT64_C(0x2f2e6163076bcfad), UINT64_C(0xde4daaaca71dc9a5), UINT64_C(0xa6a2506687956571),
    UINT64_C(0xad87a3535c49ef28), UINT64_C(0x32d892fad841c342), UINT64_C(0x7127512f72f27cce),
    UINT64_C(0xa7f32346f95978e3), UINT64_C(0x12e0b01abb051238), UINT64_C(0x15e034d40fa197ae),
    UINT64_C(0x314dffbe0815a3b4), UINT64_C(0x027990f029623981), UINT64_C(0xcadcd4e59ef40c4d),
    UINT64_C(0x9abfd8766a33735c), UINT64_C(0x0e3ea96b5304a7d0), UINT64_C(0xad0c42d6fc585992),
    UINT64_C(0x187306c89bc215a9), UINT64_C(0xd4a60abcf3792b95), UINT64_C(0xf935451de4f21df2),
    UINT64_C(0xa9538f0419755787), UINT64_C(0xdb9acddff56ca510), UINT64_C(0xd06c98cd5c0975eb),
    UINT64_C(0xe612a3cb9ecba951), UINT64_C(0xc766e62cfcadaf96), UINT64_C(0xee64435a9752fe72),
    UINT64_C(0xa192d576b245165a), UINT64_C(0x0a8787bf8ecb74b2), UINT64_C(0x81b3e73d20b49b6f),
    UINT64_C(0x7fa8220ba3b2ecea), UINT64_C(0x245731c13ca42499), UINT64_C(0xb78dbfaf3a8d83bd),
    UINT64_C(0xea1ad565322a1a0b), UINT64_C(0x60e61c23a3795013), UINT64_C(0x6606d7e446282b93),
    UINT64_C(0x6ca4ecb15c5f91e1), UINT64_C(0x9f626da15c9625f3), UINT64_C(0xe51b38608ef25f57),
    UINT64_C(0x958a324ceb064572),
};

/* Digests 00 01 ... 1f and ff fe ... e0. */
#define IMAGE_DIGEST                                                                               \
    {                                                                                              \
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,  \
            25, 26, 27, 28, 29, 30, 31                                                             \
    }
#define SOUND_DIGEST                                                                               \
    {                                                                                              \
        255, 254, 253, 252, 251, 250, 249, 248, 247, 246, 245, 244, 243, 242, 241, 240, 239, 238,  \
            237, 236, 235, 234, 233, 232, 231, 230, 229, 228, 227, 226, 225, 224                   \
    }

static const pkv_media three_items[] = {
    {.digest = IMAGE_DIGEST, .offset = 11, .num_tokens = 10},
    {.digest = SOUND_DIGEST, .offset = 30, .num_tokens = 18},
    {.digest = IMAGE_DIGEST, .offset = 48, .num_tokens = 7},
};
static const pkv_media one_item = {.digest = SOUND_DIGEST, .offset = 4, .num_tokens = 3};
static const pkv_media edge_item = {.digest = IMAGE_DIGEST, .offset = 299, .num_tokens = 2};

typedef struct golden_case {
    const char *name, *tokens;
    pkv_key_args args;
    int32_t num_keys;
    pkv_block_key keys[3];
} golden_case;

static const golden_case golden_cases[] = {
    {.name = "zeroes",
     .tokens = "16*0",
     .args = {.block_size = 16},
     .num_keys = 1,
     .keys = {{UINT64_C(0x86da9cd1ba60ecd5), UINT64_C(0x7b86d8edc64b380a),
               UINT64_C(0xda91cd9f7a019f0a)}}},
    {.name = "counting",
     .tokens = "0..47",
     .args = {.block_size = 16},
     .num_keys = 3,
     .keys = {{UINT64_C(0x0b49a1755bdbc8b2), UINT64_C(0x16d310809c3605d6),
               UINT64_C(0xba39948e6e19d600)},
              {UINT64_C(0xf0c96fbf597b5c92), UINT64_C(0xe18227c6445d18b3),
               UINT64_C(0x3ade79282a48b5b8)},
              {UINT64_C(0x079bd6e1743f9b58), UINT64_C(0xb5f1eeed3322a839),
               UINT64_C(0x63b38f4231080018)}}},
    {.name = "extreme tokens",
     .tokens = "2147483647 -2147483648 -1 0",
     .args = {.block_size = 4},
     .num_keys = 1,
     .keys = {{UINT64_C(0x9080415dd4585836), UINT64_C(0x9a13c0cf5c749e06),
               UINT64_C(0x38ac224b48634f0d)}}},
    {.name = "blocks of one",
     .tokens = "5 6 7",
     .args = {.block_size = 1},
     .num_keys = 3,
     .keys = {{UINT64_C(0xc37a2a648b7b5c36), UINT64_C(0x2970f419b66bf66c),
               UINT64_C(0x815b9e74608f0bdc)},
              {UINT64_C(0xf93eebbb6179ec18), UINT64_C(0xdeabae967b668711),
               UINT64_C(0x323d539bb7289f5b)},
              {UINT64_C(0xa574521a018a2bd7), UINT64_C(0xb62aadc2f42045f6),
               UINT64_C(0xd8fd808d337543d7)}}},
    {.name = "odd block size",
     .tokens = "100..109",
     .args = {.block_size = 5},
     .num_keys = 2,
     .keys = {{UINT64_C(0x09f7d791ad8f2371), UINT64_C(0x318c59f6b89ce137),
               UINT64_C(0x7c8efe6516cb92b0)},
              {UINT64_C(0x849eff81b04386e1), UINT64_C(0xcb96b7d1b203cf93),
               UINT64_C(0x2b68d055304825f3)}}},
    {.name = "long blocks",
     .tokens = "0..599",
     .args = {.block_size = 300},
     .num_keys = 2,
     .keys = {{UINT64_C(0x994927b3ae9b1df6), UINT64_C(0xd0c4cc6f361cd921),
               UINT64_C(0x658b28a600a46d9e)},
              {UINT64_C(0x4bb76535eda57378), UINT64_C(0x1d6b791644674067),
               UINT64_C(0xc84616b7c2a51a1f)}}},
    {.name = "seed",
     .tokens = "16*0 16*1 16*2",
     .args = {.block_size = 16, .hash_seed = UINT64_C(0x0123456789abcdef)},
     .num_keys = 3,
     .keys = {{UINT64_C(0x3121d311eed1279b), UINT64_C(0x9a09486d14e93cdf),
               UINT64_C(0xda91cd9f7a019f0a)},
              {UINT64_C(0x11499a422b090b30), UINT64_C(0xe0b95b86f7912f68),
               UINT64_C(0xb5754a474142b2f6)},
              {UINT64_C(0x9189e4b98a9c36e8), UINT64_C(0x41d654641a0ce12d),
               UINT64_C(0xd199ae68571327c0)}}},
    {.name = "secret",
     .tokens = "16*0 16*1 16*2",
     .args = {.block_size = 16,
              .secret = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)}},
     .num_keys = 3,
     .keys = {{UINT64_C(0x86da9cd1ba60ecd5), UINT64_C(0x7b86d8edc64b380a),
               UINT64_C(0xeb270e91db8caa4c)},
              {UINT64_C(0xaf9decf9cee983f1), UINT64_C(0x879c2ea4fb17d041),
               UINT64_C(0x45c72fd5248baa70)},
              {UINT64_C(0x9f413e126f5a8b65), UINT64_C(0x23688d0686ca4e9f),
               UINT64_C(0x2ab8935a1e28b4a1)}}},
    {.name = "adapter",
     .tokens = "16*0 16*1 16*2",
     .args = {.block_size = 16, .adapter_id = 42},
     .num_keys = 3,
     .keys = {{UINT64_C(0x2c1cc26677204d1a), UINT64_C(0x057f6b703121c3b5),
               UINT64_C(0xdd41206f650fa729)},
              {UINT64_C(0x9d6cf61e6568516c), UINT64_C(0xe5bce49a5d26d6ae),
               UINT64_C(0x0b463e69761a8230)},
              {UINT64_C(0xc69d8b73bdec07b6), UINT64_C(0xa97339eada98415d),
               UINT64_C(0x810ab4d3d1b491d4)}}},
    {.name = "salt",
     .tokens = "16*0 16*1 16*2",
     .args = {.block_size = 16, .salt = "tenant-a", .salt_size = 8},
     .num_keys = 3,
     .keys = {{UINT64_C(0xfd3214b7d8c56c08), UINT64_C(0x375432c5c399908f),
               UINT64_C(0x4f6456322cb32e93)},
              {UINT64_C(0xfa8d8471b3e1b46b), UINT64_C(0x6ea2f2dea525f968),
               UINT64_C(0x436bbe18d714aaaf)},
              {UINT64_C(0xe99f9f4fa5816f10), UINT64_C(0x9ce2e0ee0694d594),
               UINT64_C(0x543934542d6e5662)}}},
    {.name = "media",
     .tokens = "0..10 10*99 21..29 25*99 4*5",
     .args = {.block_size = 16, .media = three_items, .num_media = 3},
     .num_keys = 3,
     .keys = {{UINT64_C(0xa1d850823ed11d79), UINT64_C(0xa36ccb1f2dafdb5a),
               UINT64_C(0xb0d486bedd3c55da)},
              {UINT64_C(0xc1eda07d495b1d6c), UINT64_C(0x07696403aeff5b01),
               UINT64_C(0x3b676c5be6930ff8)},
              {UINT64_C(0xf1212d2d4576e119), UINT64_C(0xd137ee25810ee77b),
               UINT64_C(0x86d34656176b3c63)}}},
    {.name = "odd with extras",
     .tokens = "0..8",
     .args = {.block_size = 3,
              .adapter_id = 7,
              .salt = "s",
              .salt_size = 1,
              .media = &one_item,
              .num_media = 1},
     .num_keys = 3,
     .keys = {{UINT64_C(0xec1e54432658f900), UINT64_C(0xc0562543239b6f96),
               UINT64_C(0x49bfc4e887ea7ccc)},
              {UINT64_C(0x9e88076ff9f627e0), UINT64_C(0x22cdca610efa40a9),
               UINT64_C(0x5b8275213f247788)},
              {UINT64_C(0x6ae235e7b08a8986), UINT64_C(0xf27d2d43665bb1f9),
               UINT64_C(0xabca251e87b9a914)}}},
    {.name = "long with all",
     .tokens = "0..599",
     .args = {.block_size = 300,
              .hash_seed = 9,
              .secret = {1, 2},
              .adapter_id = UINT64_C(1) << 63,
              .salt = "x",
              .salt_size = 1,
              .media = &edge_item,
              .num_media = 1},
     .num_keys = 2,
     .keys = {{UINT64_C(0xd321d3ea55f0d38a), UINT64_C(0xa173c3558081b525),
               UINT64_C(0x6026dc2af656a752)},
              {UINT64_C(0x46dd0337de84e1d5), UINT64_C(0xf13d646a58e63f49),
               UINT64_C(0x01bf53975c96c0b3)}}},
};

/* ---- tests ----------------------------------------------------------------------------------- */

static void siphash_gives_the_published_vectors(void **state) {
    const uint64_t secret[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    unsigned char message[64];

    (void)state;
    for (size_t size = 0; size < 64; size++) {
        message[size] = (unsigned char)size;
        assert_true(pkvi_siphash(secret, message, size) == siphash_vectors[size]);
    }
}

static void block_keys_are_the_golden_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++) {
        const golden_case *golden = &golden_cases[i];
        const prompt *tokens = prompt_of("%s", golden->tokens);
        pkv_key_args args = golden->args;
        pkv_block_key keys[3];
        int32_t num_keys = -1;

        args.struct_size = sizeof args;
        assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens->token_ids,
                                                tokens->num_tokens, keys, &num_keys),
                         PKV_OK);
        assert_int_equal(num_keys, golden->num_keys);
        for (int32_t k = 0; k < num_keys; k++) {
            if (!keys_are_equal(keys[k], golden->keys[k])) {
                fail_msg("key %d of the case '%s' differs", k, golden->name);
            }
        }
    }
}

static void block_keys_of_a_continuation_are_those_of_the_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++) {
        const golden_case *golden = &golden_cases[i];
        const prompt *tokens = prompt_of("%s", golden->tokens);
        pkv_key_args args = golden->args;

        args.struct_size = sizeof args;
        for (int32_t k = 0; k < golden->num_keys; k++) {
            int32_t first_token = k * args.block_size;
            pkv_block_key key;

            assert_int_equal(pkv_compute_block_keys(&args, k == 0 ? NULL : &golden->keys[k - 1],
                                                    first_token, tokens->token_ids + first_token,
                                                    args.block_size, &key, NULL),
                             PKV_OK);
            assert_true(keys_are_equal(key, golden->keys[k]));
        }
    }
}

static void block_keys_partial_block_gets_none(void **state) {
    const pkv_key_args args = {.struct_size = sizeof args, .block_size = 4};
    const prompt *tokens = prompt_of("0..13");
    pkv_block_key keys[4];
    int32_t num_keys;

    (void)state;
    memset(keys, 0x77, sizeof keys);
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens->token_ids, 14, keys, &num_keys),
                     PKV_OK);
    assert_int_equal(num_keys, 3);
    assert_true(keys[3].hash_low == UINT64_C(0x7777777777777777));
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens->token_ids, 3, NULL, &num_keys),
                     PKV_OK);
    assert_int_equal(num_keys, 0);
}

static void block_keys_default_block_size_is_sixteen(void **state) {
    const pkv_key_args args = {.struct_size = sizeof args};
    const prompt *tokens = prompt_of("0..47");
    pkv_block_key keys[3];
    int32_t num_keys;

    (void)state;
    assert_int_equal(pkv_compute_block_keys(&args, NULL, 0, tokens->token_ids, 48, keys, &num_keys),
                     PKV_OK);
    assert_int_equal(num_keys, 3);
    assert_true(keys_are_equal(keys[2], golden_cases[1].keys[2]));
}

static void block_keys_salt_counts_in_the_first_block_only(void **state) {
    const prompt *tokens = prompt_of("16*0 16*1");
    const pkv_block_key parent = {1, 2, 3};
    pkv_key_args args = {.struct_size = sizeof args};
    pkv_block_key plain, salted;

    (void)state;
    assert_int_equal(
        pkv_compute_block_keys(&args, &parent, 16, tokens->token_ids + 16, 16, &plain, NULL),
        PKV_OK);
    args.salt = "salt";
    args.salt_size = 4;
    assert_int_equal(
        pkv_compute_block_keys(&args, &parent, 16, tokens->token_ids + 16, 16, &salted, NULL),
        PKV_OK);
    assert_true(keys_are_equal(plain, salted));
}

static void block_keys_media_before_and_behind_a_block_do_not_count(void **state) {
    const prompt *tokens = prompt_of("16*0");
    const pkv_block_key parent = {1, 2, 3};
    pkv_media items[2] = {{.digest = IMAGE_DIGEST, .offset = 4, .num_tokens = 12},
                          {.digest = SOUND_DIGEST, .offset = 32, .num_tokens = 4}};
    pkv_key_args args = {.struct_size = sizeof args};
    pkv_block_key plain, beside, overlapping;

    (void)state;
    assert_int_equal(
        pkv_compute_block_keys(&args, &parent, 16, tokens->token_ids, 16, &plain, NULL), PKV_OK);
    args.media = items;
    args.num_media = 2;
    assert_int_equal(
        pkv_compute_block_keys(&args, &parent, 16, tokens->token_ids, 16, &beside, NULL), PKV_OK);
    assert_true(keys_are_equal(plain, beside));

    items[0].num_tokens = 13;
    assert_int_equal(
        pkv_compute_block_keys(&args, &parent, 16, tokens->token_ids, 16, &overlapping, NULL),
        PKV_OK);
    assert_false(keys_are_equal(plain, overlapping));
}

static void manager_computes_the_same_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++) {
        const golden_case *golden = &golden_cases[i];
        pkv_manager_config config = small_config(11, golden->args.block_size);
        const pkv_request_args args = {
            .adapter_id = golden->args.adapter_id,
            .salt = golden->args.salt,
            .salt_size = golden->args.salt_size,
            .media = golden->args.media,
            .num_media = golden->args.num_media,
        };
        pkv_manager *manager;
        pkv_request request;
        pkv_block_key keys[3];

        config.hash_seed = golden->args.hash_seed;
        config.key_secret[0] = golden->args.secret[0];
        config.key_secret[1] = golden->args.secret[1];
        manager = make_manager(&config);
        request = open_prompt_as(manager, &args, "%s", golden->tokens);
        assert_int_equal(info_of(manager, request).num_keys, golden->num_keys);
        assert_int_equal(pkv_request_get_keys(manager, request, 0, golden->num_keys, keys), PKV_OK);
        assert_memory_equal(keys, golden->keys, (size_t)golden->num_keys * sizeof keys[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        fixture_test(siphash_gives_the_published_vectors),
        fixture_test(block_keys_are_the_golden_values),
        fixture_test(block_keys_of_a_continuation_are_those_of_the_whole),
        fixture_test(block_keys_partial_block_gets_none),
        fixture_test(block_keys_default_block_size_is_sixteen),
        fixture_test(block_keys_salt_counts_in_the_first_block_only),
        fixture_test(block_keys_media_before_and_behind_a_block_do_not_count),
        fixture_test(manager_computes_the_same_keys),
    };

    return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
