/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention (arXiv 2405.04434) and the indexer of DeepSeek-V3.2. */
#include "model/config/config_internal.h"

#define LANES 32u /* weights are packed in panels of so many rows, and a head's parts start at a panel */

static void panel_check(struct dk_json_reader *r, const char *name, uint32_t dim)
{
    if (r->rc == 0 && dim % LANES)
        dk_json_refuse(r, -ENOTSUP, name, "only multiples of 32 are supported");
}

/* null says that q has no low rank; a file without the field would mean the reference's default. */
static void q_rank_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    if (!json_is_null(json_object_get(r->object, "q_lora_rank")))
        dk_json_need(r, "q_lora_rank");
    dk_json_u32(r, "q_lora_rank", 1, DK_WIDTH_MAX, &c->mla.q_rank);
}

static void index_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"index_n_heads", "index_head_dim", "index_topk", "q_lora_rank"};

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    dk_json_u32(r, "index_n_heads", 1, DK_HEADS_MAX, &c->index.heads);
    dk_json_u32(r, "index_head_dim", 2, DK_HEAD_DIM_MAX, &c->index.dim);
    dk_json_u32(r, "index_topk", 1, DK_CONTEXT_MAX, &c->index.top_k);
    if (r->rc == 0 && c->index.dim < c->mla.rope_dim)
        dk_json_refuse(r, -EINVAL, "index_head_dim", "it must be at least qk_rope_head_dim");
}

void dk_config_mla_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};
    struct dk_mla_config *m = &c->mla;
    bool interleaved = true;

    dk_config_flag_refuse(r, "attention_bias", "only false is supported");
    if (dk_json_bool(r, "rope_interleave", &interleaved) && !interleaved)
        dk_json_refuse(r, -ENOTSUP, "rope_interleave", "only true is supported");
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    q_rank_read(r, c);
    dk_json_u32(r, "kv_lora_rank", 1, DK_WIDTH_MAX, &m->kv_rank);
    dk_json_u32(r, "qk_nope_head_dim", 1, DK_HEAD_DIM_MAX, &m->nope_dim);
    dk_json_u32(r, "qk_rope_head_dim", 2, DK_HEAD_DIM_MAX, &m->rope_dim);
    dk_json_u32(r, "v_head_dim", 1, DK_HEAD_DIM_MAX, &m->value_dim);
    panel_check(r, "qk_nope_head_dim", m->nope_dim);
    panel_check(r, "v_head_dim", m->value_dim);
    if (r->rc == 0 && m->rope_dim % 2)
        dk_json_refuse(r, -EINVAL, "qk_rope_head_dim", "it must be even");
    if (r->rc == 0 && m->nope_dim + m->rope_dim > DK_HEAD_DIM_MAX)
        dk_json_refuse(r, -EINVAL, "qk_nope_head_dim", "with qk_rope_head_dim it must not be above 1024");
    c->head_dim = m->nope_dim + m->rope_dim;
    c->kv_heads = c->heads;
    dk_json_u32(r, "num_key_value_heads", 1, DK_HEADS_MAX, &c->kv_heads);
    if (r->rc == 0 && c->kv_heads != c->heads)
        dk_json_refuse(r, -EINVAL, "num_key_value_heads", "latent attention has as many as num_attention_heads");
    if (c->family == DK_FAMILY_DEEPSEEK_V32)
        index_read(r, c);
}
