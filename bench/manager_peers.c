/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The peers of bench_manager; see manager_peers.h. */
#include "manager_peers.h"

#include <stdlib.h>

#include "random.h"
#include "report.h"

#define WORDS_PER_LINE 16

/* Results go here so that no compiler drops the work. */
static volatile uint32_t sink;

bool stack_allocator_create(stack_allocator *stack, int32_t num_blocks) {
    stack->free_blocks = malloc((size_t)num_blocks * sizeof *stack->free_blocks);
    stack->num_free = num_blocks - 1;
    if (stack->free_blocks == NULL) {
        return false;
    }
    for (int32_t i = 0; i < stack->num_free; i++) {
        stack->free_blocks[i] = num_blocks - 1 - i;
    }
    return true;
}

void stack_allocator_destroy(stack_allocator *stack) {
    free(stack->free_blocks);
    stack->free_blocks = NULL;
}

double stack_allocator_cycle(stack_allocator *stack,
                             int32_t *block_ids,
                             int32_t batch,
                             int32_t repeats) {
    int64_t start = bench_now_ns();

    for (int32_t repeat = 0; repeat < repeats; repeat++) {
        for (int32_t i = 0; i < batch; i++) {
            block_ids[i] = stack->free_blocks[--stack->num_free];
        }
        sink = (uint32_t)block_ids[batch - 1];
        for (int32_t i = batch - 1; i >= 0; i--) {
            stack->free_blocks[stack->num_free++] = block_ids[i];
        }
    }
    return (double)(bench_now_ns() - start) / ((double)batch * repeats);
}

static void naive_append(naive_list *list, naive_node *node) {
    naive_node *sentinel = &list->nodes[0];

    node->previous = sentinel->previous;
    node->next = sentinel;
    sentinel->previous->next = node;
    sentinel->previous = node;
}

bool naive_list_create(naive_list *list, int32_t num_blocks, int32_t batch, uint64_t seed) {
    int32_t *order = malloc((size_t)num_blocks * sizeof *order);

    list->nodes = calloc((size_t)num_blocks, sizeof *list->nodes);
    list->taken = calloc((size_t)batch, sizeof(naive_node *));
    list->batch = batch;
    if (order == NULL || list->nodes == NULL || list->taken == NULL) {
        free(order);
        return false;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        order[i] = i;
    }
    for (int32_t i = num_blocks - 1; i > 1; i--) {
        int32_t other = 1 + random_below(&seed, i);
        int32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    list->nodes[0].previous = &list->nodes[0];
    list->nodes[0].next = &list->nodes[0];
    for (int32_t i = 1; i < num_blocks; i++) {
        naive_append(list, &list->nodes[order[i]]);
    }
    free(order);
    return true;
}

void naive_list_destroy(naive_list *list) {
    free(list->nodes);
    free(list->taken);
    list->nodes = NULL;
    list->taken = NULL;
}

double naive_list_cycle(naive_list *list, int32_t repeats) {
    naive_node *sentinel = &list->nodes[0];
    int64_t start = bench_now_ns();

    for (int32_t repeat = 0; repeat < repeats; repeat++) {
        for (int32_t i = 0; i < list->batch; i++) {
            naive_node *node = sentinel->next;
            sentinel->next = node->next;
            node->next->previous = sentinel;
            node->ref_cnt = 1;
            list->taken[i] = node;
        }
        for (int32_t i = 0; i < list->batch; i++) {
            list->taken[i]->ref_cnt = 0;
            naive_append(list, list->taken[i]);
        }
    }
    return (double)(bench_now_ns() - start) / ((double)list->batch * repeats);
}

bool pointer_chase_create(pointer_chase *chase, size_t bytes, uint64_t seed) {
    uint64_t random = seed;
    uint32_t *order;

    chase->num_lines = (uint32_t)(bytes / (WORDS_PER_LINE * sizeof(uint32_t)));
    chase->num_lines = chase->num_lines < 2 ? 2 : chase->num_lines;
    chase->at = 0;
    chase->next = malloc((size_t)chase->num_lines * WORDS_PER_LINE * sizeof *chase->next);
    order = malloc((size_t)chase->num_lines * sizeof *order);
    if (chase->next == NULL || order == NULL) {
        free(chase->next);
        free(order);
        return false;
    }
    for (uint32_t i = 0; i < chase->num_lines; i++) {
        order[i] = i;
    }
    for (uint32_t i = chase->num_lines - 1; i > 0; i--) {
        uint32_t other = (uint32_t)random_below(&random, (int32_t)i + 1);
        uint32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (uint32_t i = 0; i < chase->num_lines; i++) {
        chase->next[(size_t)order[i] * WORDS_PER_LINE] = order[(i + 1) % chase->num_lines];
    }
    free(order);
    return true;
}

void pointer_chase_destroy(pointer_chase *chase) {
    free(chase->next);
    chase->next = NULL;
}

double pointer_chase_run(pointer_chase *chase, int32_t steps) {
    uint32_t at = chase->at;
    int64_t start = bench_now_ns();

    for (int32_t i = 0; i < steps; i++) {
        at = chase->next[(size_t)at * WORDS_PER_LINE];
    }
    chase->at = at;
    return (double)(bench_now_ns() - start) / steps;
}

bool single_queue_create(single_queue *queue, int32_t num_blocks) {
    queue->next = malloc((size_t)num_blocks * sizeof *queue->next);
    queue->num_blocks = num_blocks;
    queue->tail = num_blocks - 1;
    if (queue->next == NULL) {
        return false;
    }
    for (int32_t i = 0; i < num_blocks; i++) {
        queue->next[i] = i + 1 == num_blocks ? -1 : i + 1;
    }
    return true;
}

void single_queue_destroy(single_queue *queue) {
    free(queue->next);
    queue->next = NULL;
}

double single_queue_remove(single_queue *queue, const int32_t *block_ids, int32_t num_blocks) {
    int64_t start = bench_now_ns();

    for (int32_t i = 0; i < num_blocks; i++) {
        int32_t block = block_ids[i];
        int32_t before = 0;

        while (queue->next[before] != block) {
            before = queue->next[before];
        }
        if (block != queue->tail) {
            queue->next[before] = queue->next[block];
            queue->next[queue->tail] = block;
            queue->next[block] = -1;
            queue->tail = block;
        }
    }
    return (double)(bench_now_ns() - start) / num_blocks;
}
