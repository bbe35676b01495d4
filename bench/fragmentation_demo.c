/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The two cases that every introduction to paging tells: 2048 slots reserved for 100 tokens, and a
 * request that does not fit although enough slots are free. Both are played on the allocators and
 * on the library; the drawing is in fragmentation_picture.c.
 *
 * The one idea: the story is fixed (who comes, who leaves), what happens is not: each placement is
 * what the allocator answered, and an answer that does not fit the story fails the demo. */
#include "fragmentation_report.h"

#include "buddy.h"
#include "first_fit.h"
#include "fragmentation_picture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TEXTBOOK_RESERVED 2048
#define TEXTBOOK_USED 100

/* The story of the picture: A, X and B come, X leaves, then C asks. Places in the arrays below. */
#define A 0
#define X 1
#define B 2
#define C 3
static const int32_t story_tokens[PICTURE_NUM_REQUESTS] = {14, 16, 12, 24};

static bool fail_status(const char *verb, pkv_status status, const pkv_manager *manager) {
    fprintf(stderr, "demo: %s gave %s: %s\n", verb, pkv_status_name(status),
            manager != NULL ? pkv_manager_last_error(manager) : "");
    return false;
}

/* Open a request of `num_tokens` tokens and give it all its slots. */
static bool place_paged(pkv_manager *manager,
                        int32_t num_tokens,
                        pkv_request *request,
                        const pkv_block_id **block_ids,
                        int32_t *num_blocks) {
    int32_t token_ids[TEXTBOOK_USED] = {0};
    pkv_request_args open = {
        .struct_size = sizeof(open), .token_ids = token_ids, .num_tokens = num_tokens};
    pkv_slots_args slots = {.struct_size = sizeof(slots), .num_new_tokens = num_tokens};
    pkv_status status = pkv_request_open(manager, &open, request);

    if (status == PKV_OK) {
        status = pkv_allocate_slots(manager, *request, &slots, NULL);
    }
    if (status == PKV_OK) {
        status = pkv_get_block_table(manager, *request, 0, block_ids, num_blocks);
    }
    return status == PKV_OK || fail_status("placing a request", status, manager);
}

/* ---- 2048 reserved, 100 used ----------------------------------------------------------------- */

static bool tell_textbook_paged(FILE *file) {
    pkv_manager_config config = {
        .struct_size = sizeof(config),
        .num_blocks = TEXTBOOK_RESERVED / MEMORY_DEFAULT_BLOCK_SIZE,
        .block_size = MEMORY_DEFAULT_BLOCK_SIZE,
        .max_model_len = TEXTBOOK_RESERVED,
        .max_blocks_per_request = TEXTBOOK_RESERVED / MEMORY_DEFAULT_BLOCK_SIZE,
        .max_rows = 1,
    };
    pkv_manager *manager = NULL;
    pkv_status status = pkv_manager_create(&config, &manager);
    const pkv_block_id *block_ids;
    pkv_request request;
    int32_t num_blocks;

    if (status != PKV_OK) {
        return fail_status("pkv_manager_create", status, NULL);
    }

    bool is_good = place_paged(manager, TEXTBOOK_USED, &request, &block_ids, &num_blocks);

    if (is_good) {
        int32_t num_held = num_blocks * MEMORY_DEFAULT_BLOCK_SIZE;

        fprintf(file,
                "  paged        %4d reserved (%d blocks of %d), %d used, %4d wasted: %.1f %%\n\n",
                num_held, num_blocks, MEMORY_DEFAULT_BLOCK_SIZE, TEXTBOOK_USED,
                num_held - TEXTBOOK_USED, 100.0 * (num_held - TEXTBOOK_USED) / num_held);
    }
    pkv_manager_destroy(manager);
    return is_good;
}

static bool tell_textbook(FILE *file) {
    buddy *allocator = buddy_create(TEXTBOOK_RESERVED);
    int64_t offset = allocator != NULL ? buddy_allocate(allocator, TEXTBOOK_RESERVED) : -1;
    int64_t num_held = offset >= 0 ? buddy_get_size(allocator, offset) : 0;

    buddy_destroy(allocator);
    if (num_held < TEXTBOOK_USED) {
        fprintf(stderr, "demo: the buddy allocator refused %d slots\n", TEXTBOOK_RESERVED);
        return false;
    }
    fprintf(file,
            "A request that may become %d tokens long, and ends after %d\n\n"
            "  contiguous   %4" PRId64 " reserved, %d used, %4" PRId64 " wasted: %.1f %%\n",
            TEXTBOOK_RESERVED, TEXTBOOK_USED, num_held, TEXTBOOK_USED, num_held - TEXTBOOK_USED,
            100.0 * (double)(num_held - TEXTBOOK_USED) / (double)num_held);
    return tell_textbook_paged(file);
}

/* ---- 64 slots, requests A, B, C -------------------------------------------------------------- */

/* Mark slots as held by a request, the first `num_written` of them as written. */
static void mark(picture_row *row, int64_t first, int64_t num_held, int32_t num_written, char who) {
    for (int64_t i = 0; i < num_held; i++) {
        row->owner[first + i] = who;
        row->is_written[first + i] = i < num_written;
    }
}

static void count_free(picture_row *row) {
    int32_t length = 0;

    row->num_free = 0;
    row->longest_free = 0;
    for (int32_t slot = 0; slot < PICTURE_NUM_SLOTS; slot++) {
        length = row->owner[slot] == 0 ? length + 1 : 0;
        row->num_free += row->owner[slot] == 0;
        row->longest_free = length > row->longest_free ? length : row->longest_free;
    }
}

static bool expect(bool is_true, const char *what) {
    if (!is_true) {
        fprintf(stderr, "demo: %s\n", what);
    }
    return is_true;
}

static bool play_buddy(picture_row *row) {
    static const char names[] = "AXBC";
    buddy *allocator = buddy_create(PICTURE_NUM_SLOTS);
    int64_t offsets[PICTURE_NUM_REQUESTS];
    bool is_good = allocator != NULL;

    row->title = "contiguous, buddy allocator";
    for (int32_t who = A; is_good && who <= B; who++) {
        offsets[who] = buddy_allocate(allocator, story_tokens[who]);
        is_good = expect(offsets[who] >= 0, "buddy refused A, X or B");
    }
    is_good = is_good && expect(buddy_free(allocator, offsets[X]) > 0, "buddy did not take X back");
    for (int32_t who = A; is_good && who <= B; who += 2) {
        mark(row, offsets[who], buddy_get_size(allocator, offsets[who]), story_tokens[who],
             names[who]);
    }
    if (is_good) {
        count_free(row);
        row->is_placed = buddy_allocate(allocator, story_tokens[C]) >= 0;
        is_good = expect(!row->is_placed && row->num_free >= story_tokens[C],
                         "buddy had to refuse C with enough free slots");
    }
    buddy_destroy(allocator);
    return is_good;
}

static bool play_first_fit(picture_row *row) {
    first_fit *allocator = first_fit_create(PICTURE_NUM_SLOTS);
    int64_t offsets[PICTURE_NUM_REQUESTS];
    bool is_good = allocator != NULL;

    row->title = "contiguous, first fit";
    for (int32_t who = A; is_good && who <= B; who++) {
        offsets[who] = first_fit_allocate(allocator, story_tokens[who]);
        is_good = expect(offsets[who] >= 0, "first fit refused A, X or B");
    }
    is_good = is_good && expect(first_fit_free(allocator, offsets[X], story_tokens[X]),
                                "first fit did not take X back");
    if (is_good) {
        mark(row, offsets[A], story_tokens[A], story_tokens[A], 'A');
        mark(row, offsets[B], story_tokens[B], story_tokens[B], 'B');
        count_free(row);
        row->is_placed = first_fit_allocate(allocator, story_tokens[C]) >= 0;
        is_good = expect(!row->is_placed && row->num_free >= story_tokens[C],
                         "first fit had to refuse C with enough free slots");
    }
    first_fit_destroy(allocator);
    return is_good;
}

/* Mark the blocks of a request in the picture: block b stands at slots (b - 1) * size, since block
 * 0 is the null block and lies outside. */
static void mark_blocks(picture_row *row,
                        const pkv_block_id *block_ids,
                        int32_t num_blocks,
                        int32_t num_tokens,
                        char who) {
    for (int32_t column = 0; column < num_blocks; column++) {
        int32_t num_before = column * PICTURE_BLOCK_SIZE;
        int32_t num_left = num_tokens - num_before;

        mark(row, (int64_t)(block_ids[column] - 1) * PICTURE_BLOCK_SIZE, PICTURE_BLOCK_SIZE,
             num_left, who);
    }
}

static bool play_paged_story(pkv_manager *manager, picture_row *row) {
    pkv_request requests[PICTURE_NUM_REQUESTS];
    const pkv_block_id *block_ids;
    int32_t num_blocks;

    for (int32_t who = A; who <= B; who++) {
        if (!place_paged(manager, story_tokens[who], &requests[who], &block_ids, &num_blocks)) {
            return false;
        }
        if (who != X) {
            mark_blocks(row, block_ids, num_blocks, story_tokens[who], who == A ? 'A' : 'B');
        }
    }

    pkv_status status = pkv_request_close(manager, requests[X]);

    if (status != PKV_OK) {
        return fail_status("pkv_request_close", status, manager);
    }
    count_free(row);
    if (!place_paged(manager, story_tokens[C], &requests[C], &block_ids, &num_blocks)) {
        return false;
    }
    mark_blocks(row, block_ids, num_blocks, story_tokens[C], 'C');
    row->is_placed = true;
    row->num_blocks = num_blocks;
    memcpy(row->block_ids, block_ids, (size_t)num_blocks * sizeof(*block_ids));
    return expect(num_blocks == 2 && abs(block_ids[0] - block_ids[1]) > 1,
                  "C had to get two blocks that are no neighbours");
}

static bool play_paged(picture_row *row) {
    pkv_manager_config config = {
        .struct_size = sizeof(config),
        .num_blocks = PICTURE_NUM_SLOTS / PICTURE_BLOCK_SIZE + 1,
        .block_size = PICTURE_BLOCK_SIZE,
        .max_model_len = PICTURE_NUM_SLOTS,
        .max_rows = PICTURE_NUM_REQUESTS,
        .disable_prefix_cache = true,
    };
    pkv_manager *manager = NULL;
    pkv_status status = pkv_manager_create(&config, &manager);

    row->title = "paged, this library";
    if (status != PKV_OK) {
        return fail_status("pkv_manager_create", status, NULL);
    }

    bool is_good = play_paged_story(manager, row);

    pkv_manager_destroy(manager);
    return is_good;
}

static void print_row(const picture_row *row, FILE *file) {
    fprintf(file, "  %-28s ", row->title);
    for (int32_t slot = 0; slot < PICTURE_NUM_SLOTS; slot++) {
        char owner = row->owner[slot];

        if (slot > 0 && slot % PICTURE_BLOCK_SIZE == 0) {
            putc('|', file);
        }
        putc(owner == 0 ? '.' : row->is_written[slot] ? owner : '-', file);
    }
    if (row->is_placed) {
        fprintf(file, "\n  %-28s C placed in blocks %d and %d\n", "", row->block_ids[0],
                row->block_ids[1]);
    } else {
        fprintf(file, "\n  %-28s C refused: %d slots are free, the longest run is %d\n", "",
                row->num_free, row->longest_free);
    }
}

bool memory_run_demo(FILE *file, const char *folder) {
    static const picture_row nothing;
    picture_row rows[PICTURE_NUM_ROWS] = {nothing, nothing, nothing};

    if (!tell_textbook(file) || !play_buddy(&rows[0]) || !play_first_fit(&rows[1]) ||
        !play_paged(&rows[2])) {
        return false;
    }
    fprintf(file, "%d slots: A (%d tokens), X (%d) and B (%d) came, X left, now C (%d) asks\n\n",
            PICTURE_NUM_SLOTS, story_tokens[A], story_tokens[X], story_tokens[B], story_tokens[C]);
    for (int32_t i = 0; i < PICTURE_NUM_ROWS; i++) {
        print_row(&rows[i], file);
    }
    fprintf(file,
            "\n  a letter: written by that request; '-': held, not written; '.': free. Paged: "
            "blocks of %d;\n  block 0, the null block, lies outside the picture.\n\n",
            PICTURE_BLOCK_SIZE);
    return folder == NULL || picture_draw(rows, story_tokens[C], folder, "fragmentation_demo.svg");
}
