/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The prefix cache: two requests share the blocks of their system prompt, freed blocks are found
 * again, and the end of a prefix is forgotten before its start. Nothing is computed here: the
 * manager keeps books, an engine would run its model between the calls.
 *
 * The one idea: "free" and "forgotten" are two moments. A free block keeps its content and its key
 * until it is handed out again. */
#include <pagedkv.h>

#include <stdio.h>
#include <stdlib.h>

enum { block_size = 4, num_blocks = 10, num_system_tokens = 8, max_tokens = 28 };

static pkv_manager *manager;

static void check(pkv_status status) {
    if (status != PKV_OK) {
        fprintf(stderr, "02_prefix_cache: %s: %s\n", pkv_status_name(status),
                pkv_manager_last_error(manager));
        exit(1);
    }
}

/* A prompt: the system prompt (tokens 100, 101, ...), then num_user_tokens that only `user`
 * says. */
static pkv_request open_request(int32_t user, int32_t num_shared_tokens, int32_t num_user_tokens) {
    int32_t token_ids[max_tokens];
    pkv_request_args args = {.struct_size = sizeof args, .token_ids = token_ids};
    pkv_request request;

    args.num_tokens = num_shared_tokens + num_user_tokens;
    for (int32_t i = 0; i < args.num_tokens; i++) {
        token_ids[i] = i < num_shared_tokens ? 100 + i : 1000 * user + i;
    }
    check(pkv_request_open(manager, &args, &request));
    return request;
}

static void print_blocks(const pkv_block_id *block_ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        pkv_block_info block = {.struct_size = sizeof block};
        check(pkv_pool_get_block(pkv_manager_get_pool(manager), block_ids[i], &block));
        printf(" #%d%s", block_ids[i], block.is_keyed ? "*" : "");
        if (block.ref_cnt > 0) {
            printf("(%d)", block.ref_cnt);
        }
    }
    printf("\n");
}

static void print_free_queue(const char *when) {
    pkv_block_id queue[num_blocks];
    int32_t num_free_blocks;

    check(pkv_pool_get_free_queue(pkv_manager_get_pool(manager), queue, num_blocks,
                                  &num_free_blocks));
    printf("  free queue %s:", when);
    print_blocks(queue, num_free_blocks);
}

/* What a scheduler does to admit a request: look up, then allocate room for the rest. */
static void admit(const char *name, pkv_request request) {
    pkv_request_info info = {.struct_size = sizeof info};
    pkv_slots_args args = {.struct_size = sizeof args};
    const pkv_block_id *block_table;
    int32_t num_table_blocks;

    check(pkv_request_get_info(manager, request, &info));
    check(pkv_get_computed_blocks(manager, request, &args.num_new_computed_tokens));
    args.num_new_tokens = info.num_tokens - args.num_new_computed_tokens;
    check(pkv_allocate_slots(manager, request, &args, NULL));
    check(pkv_get_block_table(manager, request, 0, &block_table, &num_table_blocks));
    printf("  %s: %d of %d tokens cached; block table", name, args.num_new_computed_tokens,
           info.num_tokens);
    print_blocks(block_table, num_table_blocks);
}

int main(void) {
    pkv_manager_config config = {.struct_size = sizeof config,
                                 .num_blocks = num_blocks,
                                 .block_size = block_size,
                                 .max_model_len = max_tokens};
    check(pkv_manager_create(&config, &manager));

    printf("#4*(2): block 4 has a key, so it can be hit, and ref_cnt 2\n\n");
    printf("sharing: A and B have the same system prompt of %d tokens\n", num_system_tokens);
    pkv_request a = open_request(1, num_system_tokens, 3);
    pkv_request b = open_request(2, num_system_tokens, 5);
    admit("A", a);
    admit("B", b);

    /* A table is freed from its end, so the start of a prefix waits longest. Blocks without a key
     * hold nothing worth keeping and go to the head. */
    printf("\nfreeing: B first, then A\n");
    check(pkv_request_close(manager, b));
    print_free_queue("after B");
    check(pkv_request_close(manager, a));
    print_free_queue("after A");

    printf("\nrevival: C asks what B asked, B's blocks leave the free queue\n");
    pkv_request c = open_request(2, num_system_tokens, 5);
    admit("C", c);
    check(pkv_request_close(manager, c));
    print_free_queue("after C");

    printf("\neviction: D shares nothing and needs 7 of the 9 blocks, 6 are without key\n");
    pkv_request d = open_request(4, 0, 7 * block_size);
    admit("D", d);
    print_free_queue("beside D");
    check(pkv_request_close(manager, d));
    pkv_request e = open_request(2, num_system_tokens, 5);
    admit("E (B's question)", e);

    check(pkv_request_close(manager, e));
    check(pkv_manager_check(manager));
    pkv_manager_destroy(manager);
    return 0;
}
