/* SPDX-License-Identifier: Apache-2.0 */
/* Where tokens go in and logits come out, and the check of what is sent to the ducks. */
#include "attention-worker/family/gqa_layer.h"

#include <stdio.h>

int dk_token_ends_load(const struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err)
{
    static const char embedding[] = "model.embed_tokens.weight", head[] = "lm_head.weight";
    const struct dk_model_config *config = c->config;
    int rc;

    rc = dk_piece_load(c, DK_WEIGHT_TABLE, embedding, config->vocab, config->hidden, &e->table, err);
    if (rc == 0)
        rc = dk_piece_load(c, DK_WEIGHT_VECTOR, "model.norm.weight", config->hidden, 0, &e->norm, err);
    /* Tied: the same numbers once more, packed for the product. A tied checkpoint may ship a copy of the head; asking
     * for it marks it used. */
    if (rc == 0 && config->tied)
        (void)dk_checkpoint_find(c->checkpoint, head);
    if (rc == 0)
        rc = dk_piece_load(c, DK_WEIGHT_MATRIX, config->tied ? embedding : head, config->vocab, config->hidden,
                           &e->head, err);
    if (rc == 0) {
        rc = c->ops->rows_take(c->backend, config->hidden, &e->chosen);
        if (rc < 0)
            dk_err_set(err, rc, "the back end's scratch is too small for this model");
    }
    return rc;
}

void dk_token_ends_free(const struct dk_piece_context *c, struct dk_token_ends *e)
{
    c->ops->weight_free(c->backend, e->table);
    c->ops->weight_free(c->backend, e->norm);
    c->ops->weight_free(c->backend, e->head);
}

void dk_token_ends_head(const struct dk_piece_context *c, const struct dk_token_ends *e, struct dk_rows x,
                        const uint32_t *rows, uint32_t count, float *logits)
{
    const struct dk_model_config *config = c->config;

    if (count == 0)
        return;
    c->ops->gather(c->backend, x, count, rows, e->chosen);
    c->ops->rmsnorm(c->backend, count, e->chosen, config->hidden, e->norm, config->rms_eps, e->chosen);
    c->ops->linear_host(c->backend, count, e->chosen, e->head, logits);
}

int dk_ffn_tensors_check(const struct dk_piece_context *c, const char *prefix, uint32_t intermediate,
                         struct dk_err *err)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    uint32_t hidden = c->config->hidden;

    for (size_t i = 0; i < 3; i++) {
        const struct dk_tensor *weight, *scales;
        bool down = i == 2;
        char name[128];
        int rc;

        snprintf(name, sizeof(name), "%s.%s.weight", prefix, parts[i]);
        rc = dk_checkpoint_get_weight(c->checkpoint, name, down ? hidden : intermediate, down ? intermediate : hidden,
                                      &weight, &scales, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
