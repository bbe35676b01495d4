/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* A block table by hand: 13 tokens of one sequence live in the physical blocks 7, 2, 5 and 8, and
 * each token has one slot. The pool alone is enough for an engine that keeps its own tables.
 *
 * The one idea: logical blocks are in order, physical ones need not be. The block table joins
 * them. */
#include <pagedkv.h>

#include <stdio.h>
#include <stdlib.h>

enum { block_size = 4, num_prompt_tokens = 9, num_tokens = 13 };

static void check(pkv_status status) {
    if (status != PKV_OK) {
        fprintf(stderr, "01_blocks: %s\n", pkv_status_name(status));
        exit(1);
    }
}

static void print_block_table(const pkv_block_id *block_table, int32_t num_blocks, int32_t end) {
    for (int32_t logical = 0; logical < num_blocks; logical++) {
        int32_t rest = end - logical * block_size;
        int32_t num_filled = rest < block_size ? rest : block_size;
        const char *state = num_filled == block_size ? "full" : "partial";

        printf("  logical %d -> #%d %-7s %d/%d\n", logical, block_table[logical], state, num_filled,
               block_size);
    }
}

int main(void) {
    pkv_pool_config config = {
        .struct_size = sizeof config, .num_blocks = 16, .block_size = block_size};
    pkv_pool *pool = NULL;
    check(pkv_pool_create(&config, &pool));

    /* A fresh pool hands out 1, 2, 3, ...; a pool in use does not. Blocks that return without a key
     * go to the head of the free queue in the order given, to be handed out next. */
    pkv_block_id held[7];
    const pkv_block_id returned[] = {7, 2, 5};
    check(pkv_pool_get_new_blocks(pool, 7, held));
    check(pkv_pool_free_blocks(pool, returned, 3));

    pkv_block_id queue[16];
    int32_t num_free_blocks;
    check(pkv_pool_get_free_queue(pool, queue, 16, &num_free_blocks));
    printf("free queue:");
    for (int32_t i = 0; i < num_free_blocks; i++) {
        printf(" %d", queue[i]);
    }

    /* Prefill: 9 tokens need ceil(9 / 4) = 3 blocks; the last one holds a single token. */
    pkv_block_id block_table[4];
    int32_t num_blocks = (num_prompt_tokens + block_size - 1) / block_size;
    check(pkv_pool_get_new_blocks(pool, num_blocks, block_table));
    printf("\n\nprefill of %d tokens:\n", num_prompt_tokens);
    print_block_table(block_table, num_blocks, num_prompt_tokens);

    /* Decode: only a token that finds the last block full takes a new one. */
    printf("\ndecode:\n");
    for (int32_t token = num_prompt_tokens; token < num_tokens; token++) {
        if (token == num_blocks * block_size) {
            check(pkv_pool_get_new_blocks(pool, 1, &block_table[num_blocks]));
            printf("  token %2d: new block #%d at logical %d\n", token, block_table[num_blocks],
                   num_blocks);
            num_blocks += 1;
        } else {
            printf("  token %2d: no new block\n", token);
        }
    }
    print_block_table(block_table, num_blocks, num_tokens);

    /* The slot is all that a kernel needs: number and offset come back by one division. */
    printf("\n  token  physical_block_number  physical_block_offset  slot\n");
    for (int32_t token = 0; token < num_tokens; token++) {
        int64_t slot = pkv_compute_slot(block_table, block_size, token);
        int physical_block_number = (int)(slot / block_size);
        int physical_block_offset = (int)(slot % block_size);

        printf("  %5d  %21d  %21d  %4d\n", token, physical_block_number, physical_block_offset,
               (int)slot);
    }
    pkv_pool_destroy(pool);
    return 0;
}
