/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Bytes inside of the device's memory that kernels have to leave alone (simt_control.h): blocks
 * that are nobody's, slots behind the end of a sequence. NaN in them shows only where it reaches a
 * result; this shows the access.
 *
 * The one idea: ranges come in one by one and are sorted once, before the next grid, since a kernel
 * asks far more often than a test forbids. */
#include "engine.h"

#include "sanitizer.h"

#include <algorithm>

namespace simt {

namespace {

struct range {
    const char *start, *end;
};

std::vector<range> g_forbidden;
bool g_is_sorted = true;

/* In order, and no two that touch. */
void sort_ranges() {
    size_t num_kept = 0;

    std::sort(g_forbidden.begin(), g_forbidden.end(),
              [](const range &a, const range &b) { return a.start < b.start; });
    for (const range &next : g_forbidden) {
        if (num_kept > 0 && next.start <= g_forbidden[num_kept - 1].end) {
            g_forbidden[num_kept - 1].end = std::max(g_forbidden[num_kept - 1].end, next.end);
        } else {
            g_forbidden[num_kept++] = next;
        }
    }
    g_forbidden.resize(num_kept);
    g_is_sorted = true;
}

} // namespace

void close_forbidden() {
    if (!g_is_sorted) {
        sort_ranges();
    }
#ifdef PKVI_ASAN
    /* Only whole units of 8 bytes can be poisoned without their neighbours. */
    for (const range &closed : g_forbidden) {
        const uintptr_t start = (reinterpret_cast<uintptr_t>(closed.start) + 7) / 8 * 8;
        const uintptr_t end = reinterpret_cast<uintptr_t>(closed.end) / 8 * 8;

        if (start < end) {
            ASAN_POISON_MEMORY_REGION(reinterpret_cast<void *>(start), end - start);
        }
    }
#endif
}

void open_forbidden() {
    for (const range &closed : g_forbidden) {
        ASAN_UNPOISON_MEMORY_REGION(closed.start, static_cast<size_t>(closed.end - closed.start));
    }
}

bool is_forbidden(const char *address, size_t size) {
    if (g_forbidden.empty()) {
        return false;
    }
    const auto next =
        std::upper_bound(g_forbidden.begin(), g_forbidden.end(), address,
                         [](const char *at, const range &closed) { return at < closed.end; });

    return next != g_forbidden.end() && next->start < address + size;
}

} // namespace simt

void simt_forbid(const void *address, size_t size) {
    const char *start = static_cast<const char *>(address);

    if (size > 0) {
        simt::g_forbidden.push_back({start, start + size});
        simt::g_is_sorted = false;
    }
}

void simt_allow_all(void) {
    simt::g_forbidden.clear();
}
