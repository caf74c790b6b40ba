/* SPDX-License-Identifier: Apache-2.0 */
/* Projections with one matrix for each head, cut out of one weight. MLA's absorption (arXiv 2405.04434) needs two such
 * parts of kv_b_proj: the transposed key part brings a query into the latent's space, the value part brings the
 * attended latent out of it.
 *
 * FP8 stays FP8 in both directions: a transposed part is the transposed bytes with the transposed scale blocks. Its
 * place in the whole tensor is transposed too, so that its runs of columns end where scale blocks end, also when a part
 * begins inside one. */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SCALE_BLOCK 128u
/* Output rows that are packed at a time: two panels, which share cache lines of the packed matrix. */
#define UNIT_ROWS (2 * DK_PANEL_ROWS)

struct heads_job {
    struct dk_weight *w;
    const struct dk_heads_part *part;
    const struct dk_tensor *weight, *scales;
    uint32_t cols;       /* of the weight */
    uint8_t *blocks;     /* transposed: [threads][UNIT_ROWS][part->rows] elements */
    uint8_t *scale_rows; /* transposed: the scales, [column blocks][row blocks]; otherwise NULL */
    struct dk_err *errs; /* one per thread */
    uint32_t *heads;     /* one per thread: which head it packs, so where its error is */
};

/* First row of a head's part in the weight. */
static uint32_t row_of_head(const struct dk_heads_part *p, uint32_t head)
{
    return head * p->head_rows + p->first;
}

/* to [cols][rows] = the transposed of from [rows][stride]. */
static void transpose(uint8_t *to, const uint8_t *from, size_t stride, uint32_t rows, uint32_t cols, size_t size)
{
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *at = from + r * stride * size;

        if (size == 1) {
            for (uint32_t c = 0; c < cols; c++)
                to[(size_t)c * rows + r] = at[c];
        } else {
            for (uint32_t c = 0; c < cols; c++)
                memcpy(to + ((size_t)c * rows + r) * size, at + c * size, size);
        }
    }
}

/* Rows [begin, end) of a head's matrix, which are rows of its part of the weight. */
static int pack_rows(const struct heads_job *j, uint32_t head, uint32_t begin, uint32_t end, struct dk_err *err)
{
    struct dk_matrix *m = &j->w->heads[head];
    uint32_t origin = row_of_head(j->part, head) + begin;
    struct dk_matrix_source src = {
        .data = j->weight->data + (size_t)origin * j->cols * dk_dtype_bytes(j->weight->type),
        .type = j->weight->type,
        .row_stride = j->cols,
        .row_origin = origin,
    };

    if (j->scales) {
        src.scale_type = j->scales->type;
        src.scale_stride = j->scales->shape[1];
        src.scales = j->scales->data + origin / SCALE_BLOCK * src.scale_stride * dk_dtype_bytes(src.scale_type);
    }
    return dk_matrix_pack(m, begin, end, 0, m->cols, &src, err);
}

/* Rows [begin, end) of a head's matrix, which are columns of its part of the weight. */
static int pack_columns(const struct heads_job *j, uint32_t head, uint32_t begin, uint32_t end, uint8_t *block,
                        struct dk_err *err)
{
    struct dk_matrix *m = &j->w->heads[head];
    uint32_t origin = row_of_head(j->part, head);
    size_t size = dk_dtype_bytes(j->weight->type);
    struct dk_matrix_source src = {
        .data = block,
        .type = j->weight->type,
        .row_stride = m->cols,
        .row_origin = begin,
        .col_origin = origin,
    };

    transpose(block, j->weight->data + ((size_t)origin * j->cols + begin) * size, j->cols, m->cols, end - begin, size);
    if (j->scales) {
        src.scale_type = j->scales->type;
        src.scale_stride = j->scales->shape[0];
        src.scales = j->scale_rows +
                     (begin / SCALE_BLOCK * src.scale_stride + origin / SCALE_BLOCK) * dk_dtype_bytes(src.scale_type);
    }
    return dk_matrix_pack(m, begin, end, 0, m->cols, &src, err);
}

/* Units of all heads in one line, cut into equal parts: what a thread transposes lies together in the weight, so that
 * the cache lines that its units share are read from memory once. */
static void pack_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct heads_job *j = arg;
    uint32_t units = (j->w->rows + UNIT_ROWS - 1) / UNIT_ROWS, begin, end;
    size_t block_bytes = (size_t)UNIT_ROWS * j->part->rows * dk_dtype_bytes(j->weight->type);
    int rc = 0;

    dk_exec_range(j->part->heads * units, part, parts, &begin, &end);
    for (uint32_t at = begin; at < end && rc == 0; at++) {
        uint32_t head = at / units, row = at % units * UNIT_ROWS;
        uint32_t stop = j->w->rows - row < UNIT_ROWS ? j->w->rows : row + UNIT_ROWS;

        j->heads[part] = head;
        if (j->part->transposed)
            rc = pack_columns(j, head, row, stop, j->blocks + part * block_bytes, &j->errs[part]);
        else
            rc = pack_rows(j, head, row, stop, &j->errs[part]);
    }
}

static int check_part(const struct dk_heads_part *p, const struct dk_tensor *t, const struct dk_tensor *scales,
                      struct dk_err *err)
{
    if (t->rank != 2 || t->shape[1] == 0 || t->shape[1] > UINT32_MAX || t->shape[0] > UINT32_MAX || p->heads == 0 ||
        t->shape[0] != (uint64_t)p->heads * p->head_rows)
        return dk_err_set(err, -EINVAL, "%s: tensor \"%s\" has not the %u rows of %u heads of %u; see config.json",
                          t->file, t->name, p->heads * p->head_rows, p->heads, p->head_rows);
    if (p->rows == 0 || p->first > p->head_rows || p->rows > p->head_rows - p->first || p->first % DK_PANEL_ROWS ||
        p->rows % DK_PANEL_ROWS || p->head_rows % DK_PANEL_ROWS)
        return dk_err_set(err, -EINVAL,
                          "%s: tensor \"%s\": rows %u to %u of %u of a head are not within it, or not multiples of %u; "
                          "this back end needs head dimensions that are",
                          t->file, t->name, p->first, p->first + p->rows, p->head_rows, DK_PANEL_ROWS);
    if (scales && (scales->rank != 2 || scales->shape[0] != (t->shape[0] + SCALE_BLOCK - 1) / SCALE_BLOCK ||
                   scales->shape[1] != (t->shape[1] + SCALE_BLOCK - 1) / SCALE_BLOCK))
        return dk_err_set(err, -EINVAL, "%s: tensor \"%s\" has not one scale for each %ux%u block of \"%s\"",
                          scales->file, scales->name, SCALE_BLOCK, SCALE_BLOCK, t->name);
    return 0;
}

static int alloc_heads(const struct heads_job *j)
{
    const struct dk_heads_part *p = j->part;
    struct dk_weight *w = j->w;

    w->use = DK_WEIGHT_MATRIX;
    w->type = dk_matrix_packed_type(j->weight->type);
    w->rows = p->transposed ? j->cols : p->rows;
    w->cols = p->transposed ? p->rows : j->cols;
    w->heads = calloc(p->heads, sizeof(*w->heads));
    if (!w->heads)
        return -ENOMEM;
    for (; w->head_count < p->heads; w->head_count++) {
        uint32_t col_origin = p->transposed ? row_of_head(p, w->head_count) : 0;

        if (dk_matrix_alloc(&w->heads[w->head_count], w->type, w->rows, w->cols, col_origin, j->scales != NULL) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* What packing needs besides the matrices. */
static int alloc_job(struct heads_job *j, uint32_t threads)
{
    size_t block_bytes = (size_t)UNIT_ROWS * j->part->rows * dk_dtype_bytes(j->weight->type);

    j->errs = calloc(threads, sizeof(*j->errs));
    j->heads = calloc(threads, sizeof(*j->heads));
    if (!j->errs || !j->heads)
        return -ENOMEM;
    if (!j->part->transposed)
        return 0;
    j->blocks = malloc(threads * block_bytes);
    if (!j->blocks)
        return -ENOMEM;
    if (j->scales) {
        uint32_t rows = (uint32_t)j->scales->shape[0], cols = (uint32_t)j->scales->shape[1];
        size_t size = dk_dtype_bytes(j->scales->type);

        j->scale_rows = malloc((size_t)rows * cols * size);
        if (!j->scale_rows)
            return -ENOMEM;
        transpose(j->scale_rows, j->scales->data, cols, rows, cols, size);
    }
    return 0;
}

static void free_job(struct heads_job *j)
{
    free(j->errs);
    free(j->heads);
    free(j->blocks);
    free(j->scale_rows);
}

int cpu_weight_load_heads(struct dk_backend *b, const struct dk_heads_part *part, const struct dk_tensor *weight,
                          const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err)
{
    struct heads_job j = {.part = part, .weight = weight, .scales = scales};
    int rc;

    *out = NULL;
    rc = check_part(part, weight, scales, err);
    if (rc < 0)
        return rc;
    j.cols = (uint32_t)weight->shape[1];
    j.w = calloc(1, sizeof(*j.w));
    rc = j.w ? alloc_heads(&j) : -ENOMEM;
    if (rc == 0)
        rc = alloc_job(&j, b->threads);
    if (rc < 0) {
        dk_err_set(err, rc, "%s: tensor \"%s\": out of memory", weight->file, weight->name);
        goto done;
    }
    dk_exec_run(b->exec, pack_part, &j);
    for (uint32_t i = 0; i < b->threads && rc == 0; i++) {
        if (j.errs[i].rc < 0)
            rc = dk_err_set(err, j.errs[i].rc, "%s: tensor \"%s\", head %u%s: %s", weight->file, weight->name,
                            j.heads[i], part->transposed ? ", rows and columns exchanged" : "", j.errs[i].text);
    }
done:
    free_job(&j);
    if (rc < 0)
        cpu_weight_free(b, j.w);
    else
        *out = j.w;
    return rc;
}

void cpu_linear_heads(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y)
{
    assert(w->heads && x.width == w->head_count * w->cols && y.width == w->head_count * w->rows);
    assert(n <= b->rows_max && x.data != y.data);
    dk_matmul_heads(b->kernels, b->exec, w->head_count, w->heads, n, x.data, x.width, y.data, y.width);
}
