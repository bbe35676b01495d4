/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* What bench_manager compares the library with, in the same run: a stack of block numbers (the
 * floor of any allocator), a walk through memory (the floor of any structure of that footprint), a
 * list as one writes it first, and a singly linked free queue. Nothing here is part of the
 * library. */
#ifndef PKV_BENCH_MANAGER_PEERS_H
#define PKV_BENCH_MANAGER_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stack allocator: no keys, no references, no order but last in, first out. */
typedef struct stack_allocator {
    int32_t *free_blocks;
    int32_t num_free;
} stack_allocator;

bool stack_allocator_create(stack_allocator *stack, int32_t num_blocks);
void stack_allocator_destroy(stack_allocator *stack);

/* Take and give back `batch` blocks, `repeats` times; ns a block. */
double stack_allocator_cycle(stack_allocator *stack,
                             int32_t *block_ids,
                             int32_t batch,
                             int32_t repeats);

/* A list as one writes it first: a node of 64 bytes a block that holds links, count and key
 * together, in an order shuffled over memory. */
typedef struct naive_node {
    struct naive_node *previous, *next;
    int32_t ref_cnt;
    unsigned char rest[44];
} naive_node;

typedef struct naive_list {
    naive_node *nodes; /* element 0 is the sentinel */
    naive_node **taken;
    int32_t batch;
} naive_list;

bool naive_list_create(naive_list *list, int32_t num_blocks, int32_t batch, uint64_t seed);
void naive_list_destroy(naive_list *list);

/* Take a batch from the head and append it, `repeats` times; ns a block. */
double naive_list_cycle(naive_list *list, int32_t repeats);

/* A chase: a random cycle through `bytes` of memory, one step a cache line. */
typedef struct pointer_chase {
    uint32_t *next; /* [num_lines][16], only the first of each line is used */
    uint32_t num_lines;
    uint32_t at;
} pointer_chase;

bool pointer_chase_create(pointer_chase *chase, size_t bytes, uint64_t seed);
void pointer_chase_destroy(pointer_chase *chase);

/* Follow `steps` pointers; ns a step. */
double pointer_chase_run(pointer_chase *chase, int32_t steps);

/* A free queue that is linked forwards only: to take a block out of the middle it walks from the
 * head to the one before. */
typedef struct single_queue {
    int32_t *next; /* [num_blocks]; element 0 is the head */
    int32_t tail;
    int32_t num_blocks;
} single_queue;

bool single_queue_create(single_queue *queue, int32_t num_blocks);
void single_queue_destroy(single_queue *queue);

/* Take each of `block_ids` out and append it; ns a block. */
double single_queue_remove(single_queue *queue, const int32_t *block_ids, int32_t num_blocks);

#endif
