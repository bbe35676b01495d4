/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Stacks and switches between them; it knows nothing of threads of a kernel.
 *
 * The one idea: a switch saves what the calling convention preserves and swaps the stack pointer,
 * some 20 instructions; elsewhere than on x86-64 ucontext does the same with a system call. */
#ifndef PKV_TESTS_SIMT_FIBER_H
#define PKV_TESTS_SIMT_FIBER_H

#include <cstddef>

#if !defined(__x86_64__) || defined(PKVI_SIMT_UCONTEXT)
#define PKVI_FIBER_UCONTEXT 1
#include <ucontext.h>
#endif

namespace simt {

struct fiber {
#ifdef PKVI_FIBER_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer = nullptr;
#endif
    char *stack = nullptr; /* lowest address; nullptr: the stack of whoever starts the grid */
    size_t stack_size = 0;
    void *fake_stack = nullptr; /* of the address sanitizer */
    const void *known_stack = nullptr;
    size_t known_size = 0;
};

/* Give the fiber a stack with a guard page below. Stops the program where there is no memory. */
void fiber_create(fiber &which);

/* Let the next switch to the fiber call `entry`, which calls fiber_arrive first and never
 * returns. */
void fiber_restart(fiber &which, void (*entry)());

void fiber_arrive();

/* Run `to` until something switches back. With `is_last` nothing ever does. */
void fiber_switch(fiber &from, fiber &to, bool is_last);

/* The fiber stopped where it stood: let its stack be used again. */
void fiber_abandon(fiber &which);

} // namespace simt

#endif
