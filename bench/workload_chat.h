/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Seeded multi-turn chats: who asks what after which answer. Chats share system prompts; a turn
 * goes on, edits an earlier message, or asks for the last answer once more. No clock and no part of
 * the library is here: a turn that waits for an answer says so, and the bench decides when that
 * comes.
 *
 * The one idea: a chat is a tree of segments (system prompt, message, answer, ...), and a token is
 * a function of its segment and its place in it. Two prompts have equal tokens exactly as far as
 * they run through the same segments. */
#ifndef PKV_BENCH_WORKLOAD_CHAT_H
#define PKV_BENCH_WORKLOAD_CHAT_H

#include <stdbool.h>
#include <stdint.h>

/* Token ids are drawn from [0, CHAT_VOCABULARY). */
#define CHAT_VOCABULARY 128000

/* Most messages between the system prompt and the end of a chat. */
#define CHAT_MAX_DEPTH 64

typedef enum chat_turn_kind {
    CHAT_FIRST = 0,      /* opens a chat: system prompt, message */
    CHAT_FOLLOW_UP = 1,  /* everything so far, its answer included, and one more message */
    CHAT_EDIT = 2,       /* an earlier message is replaced, what followed it is gone */
    CHAT_REGENERATE = 3, /* the same prompt again, another answer */
    CHAT_NUM_KINDS = 4
} chat_turn_kind;

/* Zero a whole one and set what differs. Lengths are log-normals of the given mean (before clipping
 * to [1, 8 * mean]). */
typedef struct chat_config {
    uint64_t seed;
    int32_t num_turns;          /* of all chats together; 0 = 2000 */
    int32_t num_system_prompts; /* 0 = 4; the k-th is drawn with weight 1 / k */
    int32_t mean_system_tokens; /* 0 = 600 */
    int32_t mean_user_tokens;   /* 0 = 80 */
    int32_t mean_answer_tokens; /* 0 = 250 */
    int32_t mean_chat_turns;    /* 0 = 5; geometric, at least 1 */
    int32_t max_total_tokens;   /* a turn that would exceed it ends its chat; 0 = 8192 */
    int32_t edit_percent;       /* of the turns after the first; 0 = 10, -1 = none */
    int32_t regenerate_percent; /* 0 = 10, -1 = none */
    double chats_per_second;    /* new chats, Poisson; 0 = 1 */
    double mean_think_seconds;  /* between an answer and the next turn, exponential; 0 = 15 */
} chat_config;

/* A run of tokens that prompts share as a whole or not at all. */
typedef struct chat_segment {
    uint64_t owner;      /* what its tokens are a function of */
    int32_t parent;      /* segment before it; -1 for a system prompt */
    int32_t first_token; /* position: first_token of the parent + its num_tokens */
    int32_t num_tokens;
} chat_segment;

/* One request. Its prompt ends with the segment `message`, its output is the segment `answer`. */
typedef struct chat_turn {
    chat_turn_kind kind;
    int32_t chat;
    int32_t after;        /* the turn whose answer it waits for; -1: none, it opens a chat */
    double delay_seconds; /* after that answer; of an opening turn: since the start of time */
    int32_t message, answer;
    int32_t num_prompt_tokens, num_answer_tokens; /* both >= 1 */
} chat_turn;

/* Turns stand chat by chat, so `after` is always the turn before, or -1. */
typedef struct chat_workload {
    chat_turn *turns;
    chat_segment *segments;
    int32_t num_turns, num_segments, num_chats;
    int32_t max_total_tokens; /* largest prompt + answer */
} chat_workload;

/* Make the chats.
 *
 * error  set to a static text on failure. Returns false for a configuration that makes no sense, or
 *        without memory; *out is zeroed then. */
bool chat_make(const chat_config *config, chat_workload *out, const char **error);

/* Release what chat_make allocated; a zeroed workload is a no-op. */
void chat_release(chat_workload *chats);

/* Write the tokens [first, first + num_tokens) of a turn's prompt and answer. */
void chat_get_tokens(const chat_workload *chats,
                     int32_t turn,
                     int32_t first,
                     int32_t num_tokens,
                     int32_t *token_ids);

#endif
