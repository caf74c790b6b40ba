/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/token_ends.h"

int dk_token_ends_take(struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err)
{
    return dk_piece_take(c, &(struct dk_piece_rows){&e->chosen, c->config->hidden}, 1, err);
}

int dk_token_ends_load(struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err)
{
    static const char embedding[] = "model.embed_tokens.weight", head[] = "lm_head.weight";
    const struct dk_model_config *config = c->config;
    const struct dk_piece_weight weights[] = {
        {&e->table, embedding, DK_WEIGHT_TABLE, {config->vocab, config->hidden}},
        {&e->norm, "model.norm.weight", dk_piece_norm_use(config), {config->hidden}},
        /* Tied: the same numbers once more, packed for the product. */
        {&e->head, config->tied ? embedding : head, DK_WEIGHT_MATRIX, {config->vocab, config->hidden}},
    };

    /* A tied checkpoint may ship a copy of the head; asking for it marks it used. */
    if (config->tied)
        (void)dk_checkpoint_find(c->checkpoint, head);
    return dk_piece_load(c, DK_PIECE_NO_LAYER, weights, sizeof(weights) / sizeof(weights[0]), err);
}

void dk_token_ends_embed(const struct dk_piece_context *c, const struct dk_token_ends *e)
{
    c->ops->embed(c->backend, e->table, c->batch.rows, c->batch.ids, c->x);
    dk_piece_trace(c, DK_PIECE_NO_LAYER, "embed", 0, c->x);
}

void dk_token_ends_head(const struct dk_piece_context *c, const struct dk_token_ends *e, const uint32_t *rows,
                        uint32_t count, float *logits)
{
    const struct dk_model_config *config = c->config;

    if (count == 0)
        return;
    c->ops->gather(c->backend, c->x, count, rows, e->chosen);
    c->ops->rmsnorm(c->backend, count, e->chosen, config->hidden, e->norm, config->rms_eps, e->chosen);
    c->ops->linear_host(c->backend, count, e->chosen, e->head, logits);
}

void dk_token_ends_norm(const struct dk_piece_context *c, const struct dk_token_ends *e)
{
    c->ops->rmsnorm(c->backend, c->batch.rows, c->x, c->config->hidden, e->norm, c->config->rms_eps, c->h);
}
