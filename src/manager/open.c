/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The public verbs on a request's tokens and keys: open, append, close, and their readers. Blocks
 * are given and taken in manager.c. */
#include "manager/manager.h"

pkv_status pkvi_manager_stale(const pkv_manager *manager, pkv_request handle) {
    return pkvi_fail(manager->error, PKV_ERROR_STALE_HANDLE, "handle {%u, %u} is not open here",
                     handle.index, handle.generation);
}

/* Check the arguments of an open, after the defaults. */
static pkv_status check_open(const pkv_manager *manager, const pkv_request_args *args) {
    if (args->token_ids == NULL || args->num_tokens < 1) {
        return PKVI_INVALID(manager, "a request needs token_ids and at least one token");
    }
    if (args->max_num_tokens < args->num_tokens || args->max_num_tokens > manager->max_model_len) {
        return PKVI_INVALID(manager,
                            "max_num_tokens %d is not between num_tokens %d and max_model_len %d",
                            args->max_num_tokens, args->num_tokens, manager->max_model_len);
    }
    if (args->salt_size > 0 && args->salt == NULL) {
        return PKVI_INVALID(manager, "salt is NULL though salt_size is not 0");
    }
    if (!pkvi_media_are_valid(args->media, args->num_media)) {
        return PKVI_INVALID(manager,
                            "media must be ascending, not overlapping, and at least a token each");
    }
    for (int32_t g = 0; g < manager->num_groups; g++) {
        const struct pkvi_group *group = &manager->groups[g];
        if (pkvi_group_blocks_for(group, args->max_num_tokens) > group->table.width) {
            return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                             "max_blocks_per_request: %d columns cannot hold %d tokens",
                             group->table.width, args->max_num_tokens);
        }
    }
    return PKV_OK;
}

pkv_status pkv_request_open(pkv_manager *manager, const pkv_request_args *args, pkv_request *out) {
    pkv_request_args own;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkvi_read_struct(&own, sizeof own, sizeof own.struct_size, args);
    if (status != PKV_OK || out == NULL) {
        return pkvi_fail(manager->error, status != PKV_OK ? status : PKV_ERROR_INVALID_ARGUMENT,
                         "args or out is NULL, its struct_size is not set, or a later field is");
    }
    own.max_num_tokens = own.max_num_tokens == 0 ? manager->max_model_len : own.max_num_tokens;
    status = check_open(manager, &own);
    if (status == PKV_OK) {
        status = pkvi_request_open(&manager->requests, &own, manager->error, out);
    }
    PKVI_CHECK_AFTER(manager);
    return status;
}

pkv_status pkv_request_append(pkv_manager *manager,
                              pkv_request handle,
                              const int32_t *token_ids,
                              int32_t num_tokens) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (token_ids == NULL || num_tokens < 1) {
        return PKVI_INVALID(manager, "token_ids is NULL or num_tokens is below 1");
    }
    if (num_tokens > request->max_num_tokens - request->num_tokens) {
        return pkvi_fail(manager->error, PKV_ERROR_LIMIT,
                         "max_num_tokens: %d tokens and %d more pass %d", request->num_tokens,
                         num_tokens, request->max_num_tokens);
    }
    pkvi_request_append(&manager->requests, request, token_ids, num_tokens);
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_request_append_keys(pkv_manager *manager,
                                   pkv_request handle,
                                   const pkv_block_key *keys,
                                   int32_t num_keys) {
    struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (!request->has_caller_keys || num_keys < 0 || (num_keys > 0 && keys == NULL)) {
        return PKVI_INVALID(manager,
                            "opened without has_caller_keys, keys is NULL, or num_keys negative");
    }
    if (num_keys > request->num_tokens / manager->requests.hash_block_size - request->num_keys) {
        return PKVI_INVALID(manager, "%d keys and %d more pass the full hash blocks of %d tokens",
                            request->num_keys, num_keys, request->num_tokens);
    }
    pkvi_request_append_keys(&manager->requests, request, keys, num_keys);
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_request_close(pkv_manager *manager, pkv_request handle) {
    struct pkvi_request *request;
    pkv_status status;

    if (manager == NULL) {
        return PKV_ERROR_INVALID_ARGUMENT;
    }
    status = pkv_free(manager, handle);
    if (status != PKV_OK) {
        return status;
    }
    request = pkvi_manager_request(manager, handle, &status);
    /* Generations come round; what is remembered must not outlive its request. */
    if (manager->lookup->request.index == handle.index) {
        manager->lookup->is_set = false;
    }
    pkvi_request_close(&manager->requests, request);
    PKVI_CHECK_AFTER(manager);
    return PKV_OK;
}

pkv_status pkv_request_get_info(const pkv_manager *manager,
                                pkv_request handle,
                                pkv_request_info *out) {
    pkv_request_info info = {0};
    const struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    info.num_tokens = request->num_tokens;
    info.max_num_tokens = request->max_num_tokens;
    info.num_keys = request->num_keys;
    info.row = request->row;
    info.num_allocations = request->num_allocations;
    info.adapter_id = request->adapter_id;
    status = pkvi_write_struct(out, &info, sizeof info, sizeof info.struct_size);
    return status == PKV_OK ? PKV_OK
                            : PKVI_INVALID(manager, "out is NULL or its struct_size is not set");
}

pkv_status pkv_request_get_tokens(const pkv_manager *manager,
                                  pkv_request handle,
                                  int32_t first_token,
                                  int32_t num_tokens,
                                  int32_t *token_ids) {
    const struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (first_token < 0 || num_tokens < 0 || first_token > request->num_tokens ||
        num_tokens > request->num_tokens - first_token || (num_tokens > 0 && token_ids == NULL)) {
        return PKVI_INVALID(manager, "the request has %d tokens", request->num_tokens);
    }
    pkvi_request_copy_tokens(&manager->requests, request, first_token, num_tokens, token_ids);
    return PKV_OK;
}

pkv_status pkv_request_get_keys(const pkv_manager *manager,
                                pkv_request handle,
                                int32_t first_key,
                                int32_t num_keys,
                                pkv_block_key *keys) {
    const struct pkvi_request *request;
    pkv_status status = PKV_OK;

    request = pkvi_manager_request(manager, handle, &status);
    if (request == NULL) {
        return status;
    }
    if (first_key < 0 || num_keys < 0 || first_key > request->num_keys ||
        num_keys > request->num_keys - first_key || (num_keys > 0 && keys == NULL)) {
        return PKVI_INVALID(manager, "the request has %d keys", request->num_keys);
    }
    for (int32_t i = 0; i < num_keys; i++) {
        keys[i] = *pkvi_request_key(&manager->requests, request, first_key + i);
    }
    return PKV_OK;
}
