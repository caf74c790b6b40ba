/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in the forms that the CPU reads them in. */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <stdlib.h>
#include <string.h>

static uint64_t elements_of(const struct dk_tensor *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

struct pack_job {
    struct dk_matrix *matrix;
    const struct dk_tensor *weight, *scales;
    struct dk_err *errs; /* one per thread */
};

static void pack_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct pack_job *j = arg;
    struct dk_matrix *m = j->matrix;
    size_t element_bytes = dk_dtype_bytes(j->weight->type);
    struct dk_matrix_source src = {.type = j->weight->type, .row_stride = m->cols};
    uint32_t begin, end;

    dk_exec_range(dk_matrix_panels(m->rows), part, parts, &begin, &end);
    begin *= DK_PANEL_ROWS;
    end = end * DK_PANEL_ROWS < m->rows ? end * DK_PANEL_ROWS : m->rows;
    if (begin >= end)
        return;
    src.data = j->weight->data + (size_t)begin * m->cols * element_bytes;
    src.row_origin = begin;
    if (j->scales) {
        src.scale_type = j->scales->type;
        src.scale_stride = j->scales->shape[1];
        src.scales = j->scales->data + begin / 128 * src.scale_stride * dk_dtype_bytes(src.scale_type);
    }
    j->errs[part].rc = 0;
    dk_matrix_pack(m, begin, end, 0, m->cols, &src, &j->errs[part]);
}

/* Some lanes of the last channels may be read beyond the end. */
static float *turned_taps(const struct dk_tensor *t, uint32_t channels, uint32_t taps)
{
    size_t count = (size_t)channels * taps;
    float *turned = cpu_floats(count + ATTEND_LANES), *as_stored = cpu_floats(count);

    if (!turned || !as_stored) {
        free(turned);
        free(as_stored);
        return NULL;
    }
    dk_widen(as_stored, t->data, t->type, count);
    for (uint32_t c = 0; c < channels; c++) {
        for (uint32_t j = 0; j < taps; j++)
            turned[(size_t)j * channels + c] = as_stored[(size_t)c * taps + j];
    }
    memset(turned + count, 0, ATTEND_LANES * sizeof(float));
    free(as_stored);
    return turned;
}

static int load_matrix(struct dk_backend *b, struct dk_weight *w, const struct dk_tensor *weight,
                       const struct dk_tensor *scales, struct dk_err *err)
{
    struct dk_err *errs = calloc(b->threads, sizeof(*errs));
    struct pack_job j = {.matrix = &w->matrix, .weight = weight, .scales = scales, .errs = errs};
    int rc = -ENOMEM;

    if (!errs)
        goto done;
    rc = dk_matrix_alloc(&w->matrix, dk_matrix_packed_type(weight->type), w->rows, w->cols, 0, scales != NULL);
    if (rc < 0)
        goto done;
    dk_exec_run(b->exec, pack_part, &j);
    for (uint32_t i = 0; i < b->threads && rc == 0; i++) {
        if (errs[i].rc < 0)
            rc = dk_err_set(err, errs[i].rc, "%s: tensor \"%s\": %s", weight->file, weight->name, errs[i].text);
    }
    free(errs);
    return rc;
done:
    free(errs);
    return dk_err_set(err, rc, "%s: tensor \"%s\": out of memory", weight->file, weight->name);
}

int cpu_weight_load(struct dk_backend *b, enum dk_weight_use use, const struct dk_tensor *weight,
                    const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err)
{
    struct dk_weight *w = calloc(1, sizeof(*w));
    int rc = -ENOMEM;

    *out = NULL;
    if (!w)
        goto no_memory;
    w->use = use;
    w->type = weight->type;
    switch (use) {
    case DK_WEIGHT_VECTOR:
    case DK_WEIGHT_ONE_PLUS:
        w->rows = 1;
        w->cols = (uint32_t)elements_of(weight);
        w->vector = cpu_floats(w->cols);
        if (!w->vector)
            goto no_memory;
        dk_widen(w->vector, weight->data, weight->type, w->cols);
        for (uint32_t i = 0; use == DK_WEIGHT_ONE_PLUS && i < w->cols; i++)
            w->vector[i] += 1.0f;
        break;
    case DK_WEIGHT_TAPS:
        w->rows = (uint32_t)weight->shape[weight->rank - 1];
        w->cols = (uint32_t)weight->shape[0];
        w->vector = turned_taps(weight, w->cols, w->rows);
        if (!w->vector)
            goto no_memory;
        break;
    case DK_WEIGHT_TABLE:
        w->rows = (uint32_t)weight->shape[0];
        w->cols = (uint32_t)weight->shape[1];
        w->table = malloc(weight->bytes);
        if (!w->table)
            goto no_memory;
        memcpy(w->table, weight->data, weight->bytes);
        break;
    case DK_WEIGHT_MATRIX:
        w->rows = (uint32_t)weight->shape[0];
        w->cols = (uint32_t)weight->shape[1];
        rc = load_matrix(b, w, weight, scales, err);
        if (rc < 0)
            goto fail;
        break;
    }
    *out = w;
    return 0;
no_memory:
    dk_err_set(err, rc, "%s: tensor \"%s\": out of memory", weight->file, weight->name);
fail:
    cpu_weight_free(b, w);
    return rc;
}

void cpu_weight_free(struct dk_backend *b, struct dk_weight *w)
{
    if (!w)
        return;
    if (w->use == DK_WEIGHT_MATRIX)
        dk_matrix_free(&w->matrix);
    for (uint32_t h = 0; h < w->head_count; h++)
        dk_matrix_free(&w->heads[h]);
    free(w->heads);
    free(w->vector);
    free(w->table);
    free(w);
}
