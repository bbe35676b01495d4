/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The waiting queue: a doubly linked list through the requests themselves, kept in order. What the
 * order means is said in the header; who moves requests in and out is scheduler.c. */
#include "scheduler_queue.h"

#include <stdio.h>
#include <string.h>

/* vLLM breaks ties of priority and arrival by the request's name, which is text: r10 is before
 * r2. */
static int compare_names(const scheduler_request *left, const scheduler_request *right) {
    char left_name[16], right_name[16];

    snprintf(left_name, sizeof left_name, "r%d", (int)left->id);
    snprintf(right_name, sizeof right_name, "r%d", (int)right->id);
    return strcmp(left_name, right_name);
}

bool scheduler_request_precedes(const scheduler_request *left, const scheduler_request *right) {
    if (left->priority != right->priority) {
        return left->priority < right->priority;
    }
    if (left->arrival != right->arrival) {
        return left->arrival < right->arrival;
    }
    return compare_names(left, right) < 0;
}

/* Link the request in front of `next`; NULL means at the end. */
static void insert_before(scheduler_queue *queue,
                          scheduler_request *next,
                          scheduler_request *request) {
    scheduler_request *previous = next != NULL ? next->previous : queue->last;

    request->previous = previous;
    request->next = next;
    if (previous != NULL) {
        previous->next = request;
    } else {
        queue->first = request;
    }
    if (next != NULL) {
        next->previous = request;
    } else {
        queue->last = request;
    }
    queue->num_requests++;
}

/* Searched from the end, where most newcomers belong. */
static void insert_by_priority(scheduler_queue *queue, scheduler_request *request) {
    scheduler_request *next = NULL;
    scheduler_request *previous = queue->last;

    while (previous != NULL && scheduler_request_precedes(request, previous)) {
        next = previous;
        previous = previous->previous;
    }
    insert_before(queue, next, request);
}

void scheduler_queue_add(scheduler_queue *queue, scheduler_request *request) {
    if (queue->policy == SCHEDULER_PRIORITY) {
        insert_by_priority(queue, request);
    } else {
        insert_before(queue, NULL, request);
    }
}

void scheduler_queue_return(scheduler_queue *queue, scheduler_request *request) {
    if (queue->policy == SCHEDULER_PRIORITY) {
        insert_by_priority(queue, request);
    } else {
        insert_before(queue, queue->first, request);
    }
}

void scheduler_queue_remove(scheduler_queue *queue, scheduler_request *request) {
    if (request->previous != NULL) {
        request->previous->next = request->next;
    } else {
        queue->first = request->next;
    }
    if (request->next != NULL) {
        request->next->previous = request->previous;
    } else {
        queue->last = request->previous;
    }
    request->previous = NULL;
    request->next = NULL;
    queue->num_requests--;
}
