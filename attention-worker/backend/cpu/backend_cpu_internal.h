/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BACKEND_CPU_INTERNAL_H
#define DK_BACKEND_CPU_INTERNAL_H

#include "attention-worker/backend/cpu/attend_kernels.h"
#include "attention-worker/backend/cpu/backend_cpu.h"

struct dk_backend {
    struct dk_exec *exec;
    const struct dk_kernels *kernels;
    const struct attend_kernels *attend;
    uint32_t threads, rows_max, context;
    float *scratch; /* 64-byte aligned */
    size_t scratch_floats, scratch_used;
    uint32_t slots_used;
};

struct dk_weight {
    enum dk_weight_use use;
    enum dk_dtype type;  /* of table's elements */
    uint32_t rows, cols; /* vector: rows 1; taps: [taps][channels] */
    struct dk_matrix matrix;
    struct dk_matrix *heads; /* [head_count], [rows][cols] each: for linear_heads, and then `matrix` is empty */
    uint32_t head_count;
    float *vector;  /* of taps too, with ATTEND_LANES zeros behind the last */
    uint8_t *table; /* [rows][cols] as stored */
};

/* One block per layer, page and kv head, so that a head's part of a page is one sequential stream: keys
 * [head_dim][key_stride], positions side by side; values [page_tokens][value_stride]. f32; the layouts that
 * attend_kernels.h asks for. */
struct dk_kv {
    struct dk_kv_shape shape;
    uint32_t key_stride, value_stride; /* page_tokens and head_dim, padded */
    float *keys, *values;
    float *scores; /* [threads][ATTEND_QUERIES_MAX][context], scratch of one call */
};

uint32_t cpu_threads(const struct dk_backend_config *c); /* at least 1 */

/* 64-byte aligned floats from the heap, not zeroed; NULL: none left, or the size overflows. */
float *cpu_floats(size_t count);

int cpu_weight_load(struct dk_backend *b, enum dk_weight_use use, const struct dk_tensor *weight,
                    const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
void cpu_weight_free(struct dk_backend *b, struct dk_weight *w);

/* What the stores of these shapes take is added to out; their pages and slots are not read. */
void cpu_kv_bytes(const struct dk_backend_config *c, const struct dk_kv_shape *s, struct dk_stores_bytes *out);
void cpu_latents_bytes(const struct dk_backend_config *c, const struct dk_latents_shape *s,
                       struct dk_stores_bytes *out);
void cpu_picks_bytes(const struct dk_backend_config *c, uint32_t top_k, struct dk_stores_bytes *out);
void cpu_states_bytes(const struct dk_backend_config *c, const struct dk_states_shape *s, struct dk_stores_bytes *out);

int cpu_kv_open(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err);
void cpu_kv_close(struct dk_backend *b, struct dk_kv *kv);
void cpu_kv_copy(struct dk_backend *b, struct dk_kv *kv, uint32_t from_page, uint32_t to_page);
void cpu_attend(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k, struct dk_rows v,
                struct dk_rows y);

/* rows_cpu.c */
void cpu_embed(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids, struct dk_rows y);
void cpu_gather(struct dk_backend *b, struct dk_rows x, uint32_t n, const uint32_t *rows, struct dk_rows y);
void cpu_slice(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t groups, uint32_t first, struct dk_rows y);
void cpu_rmsnorm(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t group, const struct dk_weight *w,
                 float eps, struct dk_rows y);
void cpu_layernorm(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w,
                   const struct dk_weight *bias, float eps, struct dk_rows y);
void cpu_add(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y);
void cpu_bias(struct dk_backend *b, uint32_t n, const struct dk_weight *v, struct dk_rows y);
void cpu_scale(struct dk_backend *b, uint32_t n, float factor, struct dk_rows y);
void cpu_silu_mul(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows up, struct dk_rows y);
void cpu_sigmoid_mul(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows y);
void cpu_rope_angles(struct dk_backend *b, const struct dk_span *spans, uint32_t span_count,
                     const float *inverse_frequency, float factor, struct dk_rows angles);
void cpu_rope(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t head_dim, uint32_t first,
              enum dk_rope_pairs pairs, struct dk_rows angles);

/* heads_cpu.c */
int cpu_weight_load_heads(struct dk_backend *b, const struct dk_heads_part *part, const struct dk_tensor *weight,
                          const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
void cpu_linear_heads(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y);

/* latents_cpu.c, attend_latent_cpu.c, index_cpu.c */
int cpu_latents_open(struct dk_backend *b, const struct dk_latents_shape *shape, struct dk_latents **out,
                     struct dk_err *err);
void cpu_latents_close(struct dk_backend *b, struct dk_latents *l);
void cpu_latents_copy(struct dk_backend *b, struct dk_latents *l, uint32_t from_page, uint32_t to_page);
void cpu_attend_latent(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                       uint32_t span_count, uint32_t heads, float scale, struct dk_rows q_latent, struct dk_rows q_pe,
                       struct dk_rows latent, struct dk_rows k_pe, const struct dk_picks *picks, struct dk_rows y);
int cpu_picks_open(struct dk_backend *b, uint32_t top_k, struct dk_picks **out, struct dk_err *err);
void cpu_picks_close(struct dk_backend *b, struct dk_picks *p);
void cpu_picks_download(struct dk_backend *b, const struct dk_picks *p, uint32_t first, uint32_t n, int32_t *positions);
void cpu_index_select(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                      uint32_t span_count, uint32_t heads, struct dk_rows q, struct dk_rows w, struct dk_rows k,
                      struct dk_picks *picks);

/* states_cpu.c, delta_cpu.c */
int cpu_states_open(struct dk_backend *b, const struct dk_states_shape *shape, struct dk_states **out,
                    struct dk_err *err);
void cpu_states_close(struct dk_backend *b, struct dk_states *s);
void cpu_states_copy(struct dk_backend *b, struct dk_states *s, uint32_t from_slot, uint32_t to_slot);
void cpu_states_download(struct dk_backend *b, const struct dk_states *s, uint32_t layer, uint32_t slot, float *conv,
                         float *recurrent);
void cpu_delta(struct dk_backend *b, struct dk_states *s, uint32_t layer, const struct dk_span *spans,
               uint32_t span_count, const struct dk_delta_weights *w, struct dk_rows x, struct dk_rows b_rows,
               struct dk_rows a_rows, struct dk_rows y);

#endif
