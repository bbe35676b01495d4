/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Draws the slots of the demo as SVG.
 *
 * The one idea: a slot is a square at a fixed place; everything else is text beside the squares. */
#include "fragmentation_picture.h"

#include "plot.h"

#include <stdio.h>

#define LEFT 20
#define TOP 96
#define SLOT 15
#define ROW_HEIGHT 106
#define WIDTH (2 * LEFT + PICTURE_NUM_SLOTS * SLOT)
#define HEIGHT (TOP + PICTURE_NUM_ROWS * ROW_HEIGHT + 14)

static const char *fill_of(char owner, bool is_written) {
    switch (owner) {
    case 'A':
        return is_written ? "#1b6ca8" : "#cfe1ef";
    case 'B':
        return is_written ? "#d98a1f" : "#f8e3c3";
    case 'C':
        return is_written ? "#2f8f60" : "#cde7da";
    default:
        return "#ffffff";
    }
}

static void draw_slot(FILE *file, const picture_row *row, int32_t slot, int32_t y) {
    char owner = row->owner[slot];
    int32_t x = LEFT + slot * SLOT;

    fprintf(file,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"26\" fill=\"%s\" stroke=\"#b8b8b8\" "
            "stroke-width=\"0.7\"/>\n",
            x, y, SLOT, fill_of(owner, row->is_written[slot]));
    if (owner != 0 && row->is_written[slot]) {
        fprintf(file,
                "<text x=\"%.1f\" y=\"%d\" font-size=\"11\" fill=\"white\" "
                "text-anchor=\"middle\">%c</text>\n",
                x + SLOT / 2.0, y + 17, owner);
    }
}

/* Outlines and numbers of the blocks, those of C stressed. */
static void draw_blocks(FILE *file, const picture_row *row, int32_t y) {
    for (int32_t block = 1; block <= PICTURE_NUM_SLOTS / PICTURE_BLOCK_SIZE; block++) {
        int32_t x = LEFT + (block - 1) * PICTURE_BLOCK_SIZE * SLOT;
        bool is_of_c = false;

        for (int32_t i = 0; i < row->num_blocks; i++) {
            is_of_c = is_of_c || row->block_ids[i] == block;
        }
        fprintf(file,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"26\" fill=\"none\" stroke=\"%s\" "
                "stroke-width=\"%s\"/>\n",
                x, y, PICTURE_BLOCK_SIZE * SLOT, is_of_c ? "#0d5a37" : "#333333",
                is_of_c ? "2.5" : "1.5");
        fprintf(file,
                "<text x=\"%d\" y=\"%d\" font-size=\"12\" fill=\"#333333\" "
                "text-anchor=\"middle\">block %d</text>\n",
                x + PICTURE_BLOCK_SIZE * SLOT / 2, y + 42, block);
    }
}

static void draw_row(FILE *file, const picture_row *row, int32_t num_asked, int32_t y) {
    fprintf(file, "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"bold\">%s</text>\n", LEFT,
            y - 10, row->title);
    for (int32_t slot = 0; slot < PICTURE_NUM_SLOTS; slot++) {
        draw_slot(file, row, slot, y);
    }
    if (!row->is_placed) {
        fprintf(file,
                "<text x=\"%d\" y=\"%d\" font-size=\"13\" fill=\"#b5442d\">C asks for %d slots: "
                "%d are free, but the longest free run is %d. Refused.</text>\n",
                LEFT, y + 46, num_asked, row->num_free, row->longest_free);
        return;
    }
    draw_blocks(file, row, y);
    fprintf(file,
            "<text x=\"%d\" y=\"%d\" font-size=\"13\" fill=\"#0d5a37\">C asks for %d slots: %d "
            "are free, and any block will do. Placed; its block table is [",
            LEFT, y + 63, num_asked, row->num_free);
    for (int32_t i = 0; i < row->num_blocks; i++) {
        fprintf(file, "%s%d", i == 0 ? "" : ", ", row->block_ids[i]);
    }
    fprintf(file, "].</text>\n");
}

static void draw_legend(FILE *file, int32_t y) {
    static const struct {
        char owner;
        bool is_written;
        const char *text;
    } entries[] = {
        {'A', true, "A"},   {'B', true, "B"},
        {'C', true, "C"},   {'A', false, "held, not written (pale)"},
        {0, false, "free"},
    };
    int32_t x = LEFT;

    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        fprintf(file,
                "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\" "
                "stroke=\"#b8b8b8\"/>\n<text x=\"%d\" y=\"%d\" font-size=\"13\">%s</text>\n",
                x, y - 12, fill_of(entries[i].owner, entries[i].is_written), x + 20, y,
                entries[i].text);
        x += i < 3 ? 56 : 200;
    }
}

bool picture_draw(const picture_row rows[PICTURE_NUM_ROWS],
                  int32_t num_asked,
                  const char *folder,
                  const char *name) {
    FILE *file = plot_open(folder, name);

    if (file == NULL) {
        return false;
    }
    fprintf(
        file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n"
        "<text x=\"%d\" y=\"30\" font-size=\"18\" font-weight=\"bold\">%d token slots: A, X and "
        "B came, X left, now C asks</text>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, PICTURE_NUM_SLOTS);
    draw_legend(file, 56);
    for (int32_t i = 0; i < PICTURE_NUM_ROWS; i++) {
        draw_row(file, &rows[i], num_asked, TOP + 8 + i * ROW_HEIGHT);
    }
    fprintf(file, "</svg>\n");

    bool is_written = !ferror(file);

    if (fclose(file) != 0 || !is_written) {
        fprintf(stderr, "cannot write %s/%s\n", folder, name);
        return false;
    }
    return true;
}
