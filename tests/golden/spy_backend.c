/* SPDX-License-Identifier: Apache-2.0 */
/* Layers show only their result; the intermediate values of the goldens are seen in the calls to the back end. A layer
 * is told by its order of calls: attend, then the linear that makes the mixer's output, then two adds to the residual
 * stream. */
#include "spy_backend.h"

#include <stdlib.h>
#include <string.h>

static struct {
    const struct dk_backend_ops *inner;
    struct spy_record record;
    uint32_t layer;
    bool mixer_next;
    uint32_t adds;
} spy;

static void keep(struct dk_backend *b, struct dk_rows x, uint32_t n, float **to)
{
    free(*to);
    *to = malloc((size_t)n * x.width * sizeof(float));
    spy.inner->download(b, x, 0, n, *to);
}

static void spy_embed(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids,
                      struct dk_rows y)
{
    spy.inner->embed(b, table, n, ids, y);
    spy.record.rows = n;
    keep(b, y, n, &spy.record.embed);
}

static void spy_attend(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                       uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k,
                       struct dk_rows v, struct dk_rows y)
{
    spy.inner->attend(b, kv, layer, spans, span_count, heads, scale, q, k, v, y);
    spy.layer = layer;
    spy.record.layers = layer + 1;
    spy.mixer_next = true;
    spy.adds = 0;
    keep(b, k, spy.record.rows, &spy.record.k[layer]);
    keep(b, v, spy.record.rows, &spy.record.v[layer]);
}

static void spy_linear(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y)
{
    spy.inner->linear(b, n, x, w, y);
    if (spy.mixer_next)
        keep(b, y, n, &spy.record.mixer_out[spy.layer]);
    spy.mixer_next = false;
}

static void spy_add(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y)
{
    spy.inner->add(b, n, x, y);
    if (++spy.adds == 2)
        keep(b, y, n, &spy.record.out[spy.layer]);
}

static void spy_linear_host(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, float *y)
{
    spy.inner->linear_host(b, n, x, w, y);
    keep(b, x, n, &spy.record.final_norm);
}

const struct dk_backend_ops *spy_backend(const struct dk_backend_ops *inner)
{
    static struct dk_backend_ops ops;

    spy.inner = inner;
    ops = *inner;
    ops.embed = spy_embed;
    ops.attend = spy_attend;
    ops.linear = spy_linear;
    ops.add = spy_add;
    ops.linear_host = spy_linear_host;
    return &ops;
}

struct spy_record *spy_record(void)
{
    return &spy.record;
}

void spy_reset(void)
{
    free(spy.record.embed);
    free(spy.record.final_norm);
    for (int i = 0; i < SPY_LAYERS_MAX; i++) {
        free(spy.record.k[i]);
        free(spy.record.v[i]);
        free(spy.record.mixer_out[i]);
        free(spy.record.out[i]);
    }
    memset(&spy.record, 0, sizeof(spy.record));
}
