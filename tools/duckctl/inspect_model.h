/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_INSPECT_MODEL_H
#define DUCKCTL_INSPECT_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/dtype.h"
#include "model/chat.h"
#include "model/config.h"
#include "model/tokenizer.h"

/* What a model's folder holds and what it would need, from config.json, the tokenizer's files and the headers of the
 * weight files. No weight is read. */

enum inspect_part_kind {
    PART_WORKER, /* attention, router, shared expert, norms, embedding, head */
    PART_DUCKS,  /* experts, dense feed-forward */
    PART_VISION,
    PART_MTP,     /* multi-token prediction */
    PART_UNKNOWN, /* nothing here asks for it */
    PART_COUNT
};

struct inspect_part {
    uint64_t tensors, parameters, bytes;     /* block scales count as tensors and bytes, not as parameters */
    uint64_t type_bytes[DK_DTYPE_COUNT + 1]; /* by element type; the last one: any other */
};

enum inspect_weights {
    WEIGHTS_NONE,    /* no weight file */
    WEIGHTS_DAMAGED, /* there are some, whose headers cannot be read */
    WEIGHTS_READ
};

struct inspect_flock {
    uint32_t ducks, busy;   /* busy: with a part, when there are more ducks than units */
    uint64_t largest_bytes; /* of one duck: packed weights and scales */
};

#define INSPECT_PROBLEMS_MAX 20u
#define INSPECT_FLOCKS_MAX   8u

struct inspect {
    const char *dir;
    struct dk_model_config config;
    struct dk_generation_config generation;
    struct dk_tokenizer *tokenizer; /* owned; NULL: none */
    enum dk_chat_format chat;
    enum dk_dtype dtype;          /* of what is not FP8, by config.json */
    enum inspect_weights weights; /* READ: the parts are as stored, otherwise computed from config.json */
    struct inspect_part parts[PART_COUNT];
    uint64_t parameters, active; /* of the language part; active: without the experts that a token does not choose */
    uint32_t multiple_of, context;
    struct inspect_flock flocks[INSPECT_FLOCKS_MAX];
    uint32_t flock_count;
    uint64_t token_bytes;    /* of the worker's cache, for a token */
    uint64_t sequence_bytes; /* of the worker's states, for a sequence */
    char problems[INSPECT_PROBLEMS_MAX][500];
    uint32_t problem_count; /* found; only the first INSPECT_PROBLEMS_MAX are kept */
};

struct inspect_wish {
    uint32_t ducks;       /* 0: the usual numbers only */
    uint32_t multiple_of; /* of 32 */
    uint32_t context;     /* 0: the smaller of the model's and 4096 */
};

/* Errors of config.json, and of a context that the model has not; everything else becomes a problem. To be closed even
 * after an error. */
int inspect_open(const char *dir, const struct inspect_wish *wish, struct inspect *out, struct dk_err *err);
void inspect_close(struct inspect *m);

const char *inspect_mixer_name(uint32_t mixer);              /* "attention", "delta", "mla" */
const char *inspect_part_name(enum inspect_part_kind part);  /* "worker", "ducks", "vision", ... */
const char *inspect_rope_name(enum dk_rope_scaling scaling); /* "none", "linear", ... */

/* ---- inspect_text.c, inspect_json.c */
void inspect_print(const struct inspect *m);
json_t *inspect_json(const struct inspect *m); /* a new reference */

#endif
