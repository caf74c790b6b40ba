/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TENSORS_H
#define DK_MODEL_TENSORS_H

#include "model/checkpoint.h"
#include "model/config.h"

/* Every tensor of the language part of a model, as its config.json implies it: for counting parameters and bytes, and
 * for checking a checkpoint without reading a weight. */

enum dk_tensor_place {
    DK_PLACE_WORKER, /* attention, router, shared expert, norms, embedding, head */
    DK_PLACE_DUCKS,  /* experts, dense feed-forward */
};

struct dk_tensor_want {
    const char *name; /* as dk_checkpoint_find() takes it; valid during the call */
    uint32_t rank;
    uint64_t shape[3];
    enum dk_tensor_place place;
    bool linear;    /* a matrix that may be FP8 with block scales */
    uint32_t layer; /* UINT32_MAX: outside the layers */
};

/* Calls fn for each, layer by layer; stops when fn returns something else than 0, and returns that. Experts are listed
 * one by one, also for a checkpoint that has them fused. A tied head is not listed. */
int dk_model_tensors(const struct dk_model_config *c, int (*fn)(void *ctx, const struct dk_tensor_want *t), void *ctx);

/* Parameters of the language part without multi-token prediction, for people. */
uint64_t dk_model_parameters(const struct dk_model_config *c);

/* Checks that every tensor is there with its shape and a type that is supported, with its scales, and marks them used.
 * Reads headers only. Errors of dk_checkpoint_get: the first bad tensor is named, with the count of all. */
int dk_model_tensors_check(const struct dk_model_config *c, struct dk_checkpoint *ck, struct dk_err *err);

/* The part of the release that a tensor belongs to which is not run: "vision", "multi-token prediction"; NULL: none of
 * them. name: as in the file. */
const char *dk_model_tensor_skipped(const struct dk_model_config *c, const char *name);

#endif
