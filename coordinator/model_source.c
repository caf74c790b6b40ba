/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "coordinator/core.h"
#include "model/checkpoint.h"

/* A model's folder on this host. Of the weights only the headers are read. */

static int files_open(void *ctx, const char *dir, struct dk_served_model *out, struct dk_err *err)
{
    struct dk_checkpoint *checkpoint;
    int rc;

    memset(out, 0, sizeof *out);
    rc = dk_model_config_load(dir, &out->config, err);
    if (rc == 0)
        rc = dk_generation_config_load(dir, &out->generation, err);
    for (uint32_t i = 0; rc == 0 && i < out->generation.eos_count; i++)
        if (out->generation.eos[i] >= out->config.vocab)
            rc = dk_err_set(err, -EINVAL,
                            "%s: eos_token_id %u is not in the vocabulary of %u tokens: an answer would never end", dir,
                            out->generation.eos[i], out->config.vocab);
    if (rc == 0)
        rc = dk_chat_format_detect(dir, out->config.family, &out->chat, err);
    if (rc == 0)
        rc = dk_checkpoint_open(dir, &checkpoint, err);
    if (rc < 0)
        return rc;
    out->model_id = dk_checkpoint_id(checkpoint);
    dk_checkpoint_close(checkpoint);
    return dk_tokenizer_open(dir, &out->tokenizer, err);
}

const struct dk_model_source dk_model_source_files = {.open = files_open};
