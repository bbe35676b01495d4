/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Contents of hash blocks, told apart by comparing everything that stands in a key: the parent, the
 * tokens, the adapter, the salt, the parts of media. */
#include "support/model.h"

#include <string.h>

void model_contents_clear(model_contents *contents) {
    contents->num_contents = 0;
    contents->first_root = MODEL_NO_CONTENT;
}

bool model_content_is_same(const model_content *a, const model_content *b) {
    if (a->is_opaque || b->is_opaque || a->parent != b->parent || a->num_tokens != b->num_tokens ||
        a->adapter_id != b->adapter_id || a->salt_size != b->salt_size ||
        a->num_media != b->num_media) {
        return false;
    }
    if (memcmp(a->salt, b->salt, (size_t)a->salt_size) != 0) {
        return false;
    }
    for (int32_t i = 0; i < a->num_tokens; i++) {
        if (a->tokens[i] != b->tokens[i]) {
            return false;
        }
    }
    for (int32_t i = 0; i < a->num_media; i++) {
        if (a->media[i].offset != b->media[i].offset ||
            memcmp(a->media[i].digest, b->media[i].digest, sizeof a->media[i].digest) != 0) {
            return false;
        }
    }
    return true;
}

int32_t model_contents_intern(model_contents *contents, const model_content *wanted) {
    int32_t *link = wanted->parent == MODEL_NO_CONTENT
                        ? &contents->first_root
                        : &contents->items[wanted->parent].first_child;
    int32_t index = contents->num_contents;

    while (*link != MODEL_NO_CONTENT) {
        if (model_content_is_same(&contents->items[*link], wanted)) {
            return *link;
        }
        link = &contents->items[*link].next_sibling;
    }
    if (index == MODEL_MAX_CONTENTS) {
        return MODEL_NO_CONTENT;
    }
    *link = index;
    contents->items[index] = *wanted;
    contents->items[index].first_child = MODEL_NO_CONTENT;
    contents->items[index].next_sibling = MODEL_NO_CONTENT;
    contents->has_key[index] = false;
    contents->num_contents++;
    return index;
}

int32_t model_contents_intern_key(model_contents *contents, const pkv_block_key *key) {
    int32_t index = model_contents_find_key(contents, key);
    model_content opaque = {.parent = MODEL_NO_CONTENT, .is_opaque = true};

    if (index != MODEL_NO_CONTENT) {
        return index;
    }
    index = model_contents_intern(contents, &opaque);
    if (index != MODEL_NO_CONTENT) {
        contents->has_key[index] = true;
        contents->keys[index] = *key;
    }
    return index;
}

static bool is_same_hash(const pkv_block_key *a, const pkv_block_key *b) {
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high;
}

int32_t model_contents_find_key(const model_contents *contents, const pkv_block_key *key) {
    for (int32_t i = 0; i < contents->num_contents; i++) {
        if (contents->has_key[i] && is_same_hash(&contents->keys[i], key) &&
            contents->keys[i].lineage == key->lineage) {
            return i;
        }
    }
    return MODEL_NO_CONTENT;
}

bool model_contents_hash_collides(const model_contents *contents, int32_t a, int32_t b) {
    return a != b && contents->has_key[a] && contents->has_key[b] &&
           is_same_hash(&contents->keys[a], &contents->keys[b]);
}
