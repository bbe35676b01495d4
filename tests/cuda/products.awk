# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# How many products a matrix kernel has, from its template arguments: what the rules over machine
# code and those over PTX compare with. Loaded beside either.

# Products of 16 x 8 x 16 of a tile: S of each key warp's share, then its share of the columns.
function expected_products(head, value, key_warps, tile_keys) {
    tile_keys = head <= 128 ? 64 : 32
    return tile_keys / key_warps / 8 * head / 16 + value / key_warps / 8 * tile_keys / 16
}
