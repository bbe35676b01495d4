/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* The chats of workload_chat.h. Each chat has a generator of its own, seeded by (seed, chat): what
 * a chat says does not depend on how many others there are.
 *
 * The one idea: a turn only ever adds segments below an older one. Going on hangs the next message
 * under the last answer, an edit hangs it under an earlier answer, and a regeneration hangs another
 * answer under the same message. */
#include "workload_chat.h"

#include "random.h"

#include <stdlib.h>
#include <string.h>

/* Spread of the log-normals: lengths of prompts vary more than those of answers. */
#define CHAT_SYSTEM_SIGMA 0.5
#define CHAT_USER_SIGMA 1.0
#define CHAT_ANSWER_SIGMA 0.8

#define CHAT_MAX_SYSTEM_PROMPTS 64

/* The messages and answers that the user sees: the branch of the tree that a chat is on. */
typedef struct chat_branch {
    int32_t messages[CHAT_MAX_DEPTH], answers[CHAT_MAX_DEPTH];
    int32_t depth;
} chat_branch;

typedef struct chat_builder {
    chat_config config; /* defaults filled in */
    chat_workload *chats;
    int32_t system_segments[CHAT_MAX_SYSTEM_PROMPTS];
    double arrival_seconds; /* of the chat that is being made */
} chat_builder;

static int32_t or_default(int32_t value, int32_t value_if_zero) {
    return value == 0 ? value_if_zero : value;
}

static bool fill_in_defaults(const chat_config *config, chat_config *out, const char **error) {
    *out = *config;
    out->num_turns = or_default(config->num_turns, 2000);
    out->num_system_prompts = or_default(config->num_system_prompts, 4);
    out->mean_system_tokens = or_default(config->mean_system_tokens, 600);
    out->mean_user_tokens = or_default(config->mean_user_tokens, 80);
    out->mean_answer_tokens = or_default(config->mean_answer_tokens, 250);
    out->mean_chat_turns = or_default(config->mean_chat_turns, 5);
    out->max_total_tokens = or_default(config->max_total_tokens, 8192);
    out->edit_percent = or_default(config->edit_percent, 10);
    out->regenerate_percent = or_default(config->regenerate_percent, 10);
    out->edit_percent = out->edit_percent < 0 ? 0 : out->edit_percent;
    out->regenerate_percent = out->regenerate_percent < 0 ? 0 : out->regenerate_percent;
    out->chats_per_second = config->chats_per_second == 0 ? 1 : config->chats_per_second;
    out->mean_think_seconds = config->mean_think_seconds == 0 ? 15 : config->mean_think_seconds;

    *error = NULL;
    if (out->num_turns < 1 || out->num_turns > (1 << 26)) {
        *error = "num_turns must be in 1 .. 2^26";
    } else if (out->num_system_prompts < 1 || out->num_system_prompts > CHAT_MAX_SYSTEM_PROMPTS) {
        *error = "num_system_prompts must be in 1 .. 64";
    } else if (out->mean_system_tokens < 1 || out->mean_user_tokens < 1 ||
               out->mean_answer_tokens < 1 || out->mean_chat_turns < 1) {
        *error = "means must be positive";
    } else if (out->mean_system_tokens > (1 << 24) || out->mean_user_tokens > (1 << 24) ||
               out->mean_answer_tokens > (1 << 24)) {
        *error = "means must not exceed 2^24 tokens";
    } else if (out->edit_percent + out->regenerate_percent > 100) {
        *error = "edits and regenerations exceed 100 percent";
    } else if (!(out->chats_per_second > 0) || !(out->mean_think_seconds > 0)) {
        *error = "chats_per_second and mean_think_seconds must be positive";
    } else if (out->max_total_tokens < 8 * out->mean_system_tokens + 2) {
        *error = "max_total_tokens must hold the longest system prompt (8 times the mean) and more";
    }
    return *error == NULL;
}

/* A log-normal length of the given mean, clipped. */
static int32_t draw_length(uint64_t *state, int32_t mean, double sigma) {
    double mu = log((double)mean) - sigma * sigma / 2.0;
    double length = floor(exp(mu + sigma * random_normal(state)) + 0.5);

    if (length < 1.0) {
        return 1;
    }
    return length > 8.0 * mean ? 8 * mean : (int32_t)length;
}

static int32_t add_segment(chat_workload *chats,
                           uint64_t owner,
                           int32_t parent,
                           int32_t num_tokens) {
    chat_segment *segment = &chats->segments[chats->num_segments];

    segment->owner = owner;
    segment->parent = parent;
    segment->first_token = 0;
    segment->num_tokens = num_tokens;
    if (parent >= 0) {
        const chat_segment *before = &chats->segments[parent];

        segment->first_token = before->first_token + before->num_tokens;
    }
    chats->num_segments += 1;
    return chats->num_segments - 1;
}

static int32_t get_end(const chat_workload *chats, int32_t segment) {
    return chats->segments[segment].first_token + chats->segments[segment].num_tokens;
}

/* The k-th system prompt has weight 1 / k: a few are asked for most of the time. */
static int32_t draw_system_prompt(uint64_t *state, int32_t num_system_prompts) {
    double sum = 0.0;
    for (int32_t k = 1; k <= num_system_prompts; k++) {
        sum += 1.0 / k;
    }
    double rest = random_uniform(state) * sum;
    int32_t drawn = 0;
    for (int32_t k = 1; k < num_system_prompts && rest >= 1.0 / k; k++) {
        rest -= 1.0 / k;
        drawn = k;
    }
    return drawn;
}

static chat_turn_kind draw_kind(const chat_config *config, uint64_t *state) {
    int32_t percent = random_below(state, 100);

    if (percent < config->edit_percent) {
        return CHAT_EDIT;
    }
    return percent < config->edit_percent + config->regenerate_percent ? CHAT_REGENERATE
                                                                       : CHAT_FOLLOW_UP;
}

/* Put the next turn of a chat under the right segment of its branch. False: the chat ends here,
 * because the turn would be too long, and nothing was added. */
static bool add_turn(chat_builder *builder, int32_t system, chat_branch *branch, uint64_t *state) {
    const chat_config *config = &builder->config;
    chat_workload *chats = builder->chats;
    chat_turn_kind kind = branch->depth == 0 ? CHAT_FIRST : draw_kind(config, state);
    int32_t num_user_tokens = draw_length(state, config->mean_user_tokens, CHAT_USER_SIGMA);
    int32_t num_answer_tokens = draw_length(state, config->mean_answer_tokens, CHAT_ANSWER_SIGMA);
    double delay_seconds = random_exponential(state, config->mean_think_seconds);
    int32_t level = branch->depth; /* where the message of this turn stands in the branch */

    if (kind == CHAT_EDIT) {
        level = random_below(state, branch->depth);
    } else if (kind == CHAT_REGENERATE) {
        level = branch->depth - 1;
    }
    if (level == CHAT_MAX_DEPTH) {
        return false;
    }
    int32_t parent = level == 0 ? system : branch->answers[level - 1];
    int32_t room = config->max_total_tokens - get_end(chats, parent);
    if (kind == CHAT_FIRST) { /* every chat has a first turn, so it is cut to fit */
        num_user_tokens = num_user_tokens > room / 2 ? room / 2 : num_user_tokens;
        room -= num_user_tokens;
        num_answer_tokens = num_answer_tokens > room ? room : num_answer_tokens;
    }
    int32_t prompt_end = kind == CHAT_REGENERATE ? get_end(chats, branch->messages[level])
                                                 : get_end(chats, parent) + num_user_tokens;
    if (num_answer_tokens > config->max_total_tokens - prompt_end) {
        return false;
    }

    if (kind != CHAT_REGENERATE) {
        branch->messages[level] = add_segment(chats, random_next(state), parent, num_user_tokens);
    }
    branch->answers[level] =
        add_segment(chats, random_next(state), branch->messages[level], num_answer_tokens);
    branch->depth = level + 1;

    chat_turn *turn = &chats->turns[chats->num_turns];
    turn->kind = kind;
    turn->chat = chats->num_chats;
    turn->after = kind == CHAT_FIRST ? -1 : chats->num_turns - 1;
    turn->delay_seconds = kind == CHAT_FIRST ? builder->arrival_seconds : delay_seconds;
    turn->message = branch->messages[level];
    turn->answer = branch->answers[level];
    turn->num_prompt_tokens = prompt_end;
    turn->num_answer_tokens = num_answer_tokens;
    chats->num_turns += 1;
    if (prompt_end + num_answer_tokens > chats->max_total_tokens) {
        chats->max_total_tokens = prompt_end + num_answer_tokens;
    }
    return true;
}

static void add_chat(chat_builder *builder) {
    const chat_config *config = &builder->config;
    chat_branch branch = {.depth = 0};
    uint64_t state = random_mix(config->seed ^ random_mix((uint64_t)builder->chats->num_chats + 1));
    int32_t system = draw_system_prompt(&state, config->num_system_prompts);
    bool goes_on = true;

    builder->arrival_seconds += random_exponential(&state, 1.0 / config->chats_per_second);
    while (goes_on && builder->chats->num_turns < config->num_turns) {
        goes_on = add_turn(builder, builder->system_segments[system], &branch, &state) &&
                  random_uniform(&state) * config->mean_chat_turns >= 1.0;
    }
    builder->chats->num_chats += 1;
}

bool chat_make(const chat_config *config, chat_workload *out, const char **error) {
    chat_builder builder = {.chats = out};

    memset(out, 0, sizeof *out);
    if (!fill_in_defaults(config, &builder.config, error)) {
        return false;
    }
    /* A turn adds two segments at most. */
    size_t num_turns = (size_t)builder.config.num_turns;
    size_t num_segments = 2 * num_turns + (size_t)builder.config.num_system_prompts;
    out->turns = calloc(num_turns, sizeof *out->turns);
    out->segments = calloc(num_segments, sizeof *out->segments);
    if (out->turns == NULL || out->segments == NULL) {
        chat_release(out);
        *error = "no memory for the chats";
        return false;
    }

    uint64_t state = random_mix(builder.config.seed);
    for (int32_t k = 0; k < builder.config.num_system_prompts; k++) {
        uint64_t owner = random_next(&state);
        int32_t num_tokens =
            draw_length(&state, builder.config.mean_system_tokens, CHAT_SYSTEM_SIGMA);

        builder.system_segments[k] = add_segment(out, owner, -1, num_tokens);
    }
    while (out->num_turns < builder.config.num_turns) {
        add_chat(&builder);
    }
    return true;
}

void chat_release(chat_workload *chats) {
    free(chats->turns);
    free(chats->segments);
    memset(chats, 0, sizeof *chats);
}

static int32_t get_token(uint64_t owner, int32_t offset) {
    uint64_t mixed = random_mix(owner + (uint64_t)(uint32_t)offset);

    return (int32_t)(((mixed >> 32) * (uint64_t)CHAT_VOCABULARY) >> 32);
}

void chat_get_tokens(const chat_workload *chats,
                     int32_t turn,
                     int32_t first,
                     int32_t num_tokens,
                     int32_t *token_ids) {
    int32_t position = first + num_tokens;
    int32_t segment_index = chats->turns[turn].answer;

    /* From the answer up to the system prompt, filling from the back. */
    while (position > first) {
        const chat_segment *segment = &chats->segments[segment_index];

        while (position > first && position > segment->first_token) {
            position -= 1;
            token_ids[position - first] =
                get_token(segment->owner, position - segment->first_token);
        }
        segment_index = segment->parent;
    }
}
