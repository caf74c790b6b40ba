/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CONFIG_INTERNAL_H
#define DK_MODEL_CONFIG_INTERNAL_H

#include "model/config.h"
#include "model/json_field.h"

/* The parts of a config.json, each read by a file of its own. r reads the object with the language model's fields: the
 * file itself, or its "text_config". A part that fails leaves the reason in r and the rest of *c half filled. Field
 * names and the values of absent fields are those of the configuration classes of transformers and of the releases'
 * files; where these two differ, the field must be there. */

/* Limits: far above every release, and low enough that no product of sizes overflows. */
#define DK_LAYERS_MAX   512u
#define DK_WIDTH_MAX    (1u << 20) /* hidden and intermediate sizes, ranks */
#define DK_HEADS_MAX    1024u
#define DK_HEAD_DIM_MAX 1024u
#define DK_EXPERTS_MAX  4096u
#define DK_EXPERT_ROWS  (1u << 28) /* experts of a layer times their intermediate size */
#define DK_VOCAB_MAX    (1u << 22)
#define DK_CONTEXT_MAX  (1u << 28)
#define DK_TAPS_MAX     16u /* of a convolution */

_Static_assert(sizeof((struct dk_model_config *)0)->layer_is_moe == DK_LAYERS_MAX, "one flag for each layer");
_Static_assert(sizeof((struct dk_model_config *)0)->mixer == DK_LAYERS_MAX, "one mixer for each layer");

static inline bool dk_family_is_qwen3_5(enum dk_family f)
{
    return f == DK_FAMILY_QWEN3_5 || f == DK_FAMILY_QWEN3_5_MOE;
}

static inline bool dk_family_is_deepseek(enum dk_family f)
{
    return f == DK_FAMILY_DEEPSEEK_V3 || f == DK_FAMILY_DEEPSEEK_V32;
}

/* Refuses a flag that is on. */
void dk_config_flag_refuse(struct dk_json_reader *r, const char *name, const char *allowed);
/* Refuses (-ENOTSUP) a text that is there and is neither a nor b. */
void dk_config_text_check(struct dk_json_reader *r, const char *name, const char *a, const char *b,
                          const char *allowed);

/* In this order: later parts use what earlier ones have read. */
void dk_config_mixers_read(struct dk_json_reader *r, struct dk_model_config *c);    /* mixer[], Gated DeltaNet */
void dk_config_attention_read(struct dk_json_reader *r, struct dk_model_config *c); /* heads of full attention */
void dk_config_mla_read(struct dk_json_reader *r, struct dk_model_config *c);       /* and the indexer */
void dk_config_rope_read(struct dk_json_reader *r, struct dk_model_config *c); /* and context_max, if that changes it */
void dk_config_window_check(struct dk_json_reader *r, const struct dk_model_config *c);
void dk_config_ffn_read(struct dk_json_reader *r, struct dk_model_config *c); /* dense layers, experts, router */
/* top: the whole file. The field may be in either object. */
void dk_config_quantization_read(struct dk_json_reader *r, const struct dk_json_reader *top, struct dk_model_config *c);

#endif
