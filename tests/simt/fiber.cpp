/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Stacks, switches and what the address sanitizer has to be told about both (fiber.h). */
#include "fiber.h"

#include "sanitizer.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace simt {

namespace {

/* The address sanitizer puts guards around each variable. */
#ifdef PKVI_ASAN
constexpr size_t stack_bytes = 512 * 1024;
#else
constexpr size_t stack_bytes = 192 * 1024;
#endif
/* What lies above the first frame that a fiber runs. */
constexpr size_t top_bytes = 4096;

fiber *g_from = nullptr; /* the fiber that the last switch left */

} // namespace

#ifndef PKVI_FIBER_UCONTEXT
extern "C" void pkvi_fiber_swap(void **save, void *to);

/* Saves what a function has to preserve: rbp, rbx, r12 to r15, and the control words of SSE and of
 * the x87. */
asm(R"(
.text
.globl pkvi_fiber_swap
.type pkvi_fiber_swap,@function
pkvi_fiber_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    subq $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size pkvi_fiber_swap,.-pkvi_fiber_swap
)");
#endif

void fiber_create(fiber &which) {
    const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, stack_bytes + guard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
        perror("simt: no stack for a thread");
        abort();
    }
    which.stack = static_cast<char *>(memory) + guard;
    which.stack_size = stack_bytes;
}

void fiber_restart(fiber &which, void (*entry)()) {
    /* The outermost frame of the last run never returned and left its guards behind. */
    ASAN_UNPOISON_MEMORY_REGION(which.stack + which.stack_size - top_bytes, top_bytes);
    which.fake_stack = nullptr;
#ifdef PKVI_FIBER_UCONTEXT
    getcontext(&which.context);
    which.context.uc_stack.ss_sp = which.stack;
    which.context.uc_stack.ss_size = which.stack_size;
    which.context.uc_link = nullptr;
    makecontext(&which.context, entry, 0);
#else
    uint32_t sse_control = 0;
    uint16_t x87_control = 0;
    const uintptr_t top = reinterpret_cast<uintptr_t>(which.stack + which.stack_size) & ~63ull;
    void **word = reinterpret_cast<void **>(top);

    asm volatile("stmxcsr %0" : "=m"(sse_control));
    asm volatile("fnstcw %0" : "=m"(x87_control));
    /* As if `entry` had been called: a return address, then aligned as the convention wants. */
    *--word = nullptr;
    *--word = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) {
        *--word = nullptr;
    }
    *--word = reinterpret_cast<void *>(static_cast<uintptr_t>(sse_control) |
                                       static_cast<uintptr_t>(x87_control) << 32);
    which.stack_pointer = word;
#endif
}

/* The stack of whoever starts a grid is learnt from the first switch away from it. */
static void finish_switch(void *fake_stack) {
#ifdef PKVI_ASAN
    const void *bottom = nullptr;
    size_t size = 0;

    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
    g_from->known_stack = bottom;
    g_from->known_size = size;
#else
    (void)fake_stack;
#endif
}

void fiber_arrive() {
    finish_switch(nullptr);
}

void fiber_switch(fiber &from, fiber &to, bool is_last) {
    g_from = &from;
#ifdef PKVI_ASAN
    __sanitizer_start_switch_fiber(is_last ? nullptr : &from.fake_stack,
                                   to.stack != nullptr ? to.stack : to.known_stack,
                                   to.stack != nullptr ? to.stack_size : to.known_size);
#else
    (void)is_last;
#endif
#ifdef PKVI_FIBER_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    pkvi_fiber_swap(&from.stack_pointer, to.stack_pointer);
#endif
    finish_switch(from.fake_stack);
}

void fiber_abandon(fiber &which) {
    ASAN_UNPOISON_MEMORY_REGION(which.stack, which.stack_size);
    (void)which;
}

} // namespace simt
