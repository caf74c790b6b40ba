/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: layout, memory, and the way from a checkpoint's rows to panels.
 *
 * A panel holds 32 rows, column after column, so that a vector's lanes are rows: a column is widened and multiplied
 * by one x, nothing is added across lanes, and the memory of a matrix is read in one sequential stream. Two panels, a
 * pair, share their columns: 32 elements of the even panel, 32 of the odd one. An FP8 column of a pair is then a cache
 * line, and there are enough independent sums to hide the latency of the multiply-adds. An odd last panel is paired
 * with zeros. Some bytes behind the last column belong to the block: kernels widen ahead.
 *
 * Order inside a panel's column. FP8 and bf16 are widened by looking at two neighbours as one word (16 and 32 bits):
 * the low element of a word goes into one vector, the high one into another. So element 2i of a column is row i and
 * element 2i + 1 is row 16 + i: both vectors come out with their rows in order. fp32 needs no widening: element i is
 * row i. */
#include "kernel/kernel.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "kernel/block.h"
#include "kernel/kernel_internal.h"

/* Where the parts of a source go: panel p of it is panel `first + step * p` of the matrix. */
struct target {
    struct dk_matrix *m;
    uint32_t first, step;
    uint32_t row_begin, row_end, col_begin, col_end; /* rows counted as if step were 1 */
    const char *what;                                /* for messages */
};

enum dk_dtype dk_matrix_packed_type(enum dk_dtype source_type)
{
    return source_type == DK_F16 ? DK_F32 : source_type;
}

size_t dk_matrix_data_bytes(enum dk_dtype packed_type, uint32_t rows, uint32_t cols)
{
    return (size_t)dk_matrix_pairs(rows) * cols * DK_PAIR_ROWS * dk_dtype_bytes(packed_type);
}

static uint32_t first_run(uint32_t cols, uint32_t col_origin)
{
    uint32_t left = DK_RUN_COLS - col_origin % DK_RUN_COLS;

    return cols < left ? cols : left;
}

static uint32_t run_count(uint32_t cols, uint32_t col_origin)
{
    uint32_t first = first_run(cols, col_origin);

    return cols ? 1 + (cols - first + DK_RUN_COLS - 1) / DK_RUN_COLS : 0;
}

size_t dk_matrix_scale_count(uint32_t rows, uint32_t cols, uint32_t col_origin)
{
    return (size_t)dk_matrix_pairs(rows) * 2 * run_count(cols, col_origin);
}

int dk_matrix_alloc(struct dk_matrix *m, enum dk_dtype packed_type, uint32_t rows, uint32_t cols, uint32_t col_origin,
                    int scaled)
{
    size_t count = dk_matrix_scale_count(rows, cols, col_origin);

    assert(packed_type == DK_F8_E4M3 || packed_type == DK_BF16 || packed_type == DK_F32);
    *m = (struct dk_matrix){
        .type = packed_type,
        .rows = rows,
        .cols = cols,
        .run_first = first_run(cols, col_origin),
        .runs = run_count(cols, col_origin),
    };
    m->data = dk_block_alloc(dk_matrix_data_bytes(packed_type, rows, cols) + DK_DATA_SLACK);
    m->scales = dk_alloc_aligned(count, sizeof(float));
    if (!m->data || !m->scales) {
        dk_matrix_free(m);
        return -ENOMEM;
    }
    for (size_t i = 0; !scaled && i < count; i++)
        m->scales[i] = packed_type == DK_F8_E4M3 ? DK_F8_SCALE : 1.0f;
    return 0;
}

void dk_matrix_free(struct dk_matrix *m)
{
    dk_block_free(m->data, dk_matrix_data_bytes(m->type, m->rows, m->cols) + DK_DATA_SLACK);
    free(m->scales);
    memset(m, 0, sizeof *m);
}

/* The first column of a run, and the one behind its last. */
static void run_range(const struct dk_matrix *m, uint32_t run, uint32_t *begin, uint32_t *end)
{
    *begin = run ? m->run_first + (run - 1) * DK_RUN_COLS : 0;
    *end = run ? *begin + DK_RUN_COLS : m->run_first;
    if (*end > m->cols)
        *end = m->cols;
}

static int pack_scales(const struct target *t, const struct dk_matrix_source *src, struct dk_err *err)
{
    struct dk_matrix *m = t->m;

    for (uint32_t run = 0; run < m->runs; run++) {
        uint32_t begin, end, block_col;

        run_range(m, run, &begin, &end);
        begin = begin < t->col_begin ? t->col_begin : begin;
        end = end > t->col_end ? t->col_end : end;
        if (begin >= end)
            continue;
        begin += src->col_origin - t->col_begin;
        end += src->col_origin - t->col_begin;
        block_col = begin / DK_RUN_COLS;
        if ((end - 1) / DK_RUN_COLS != block_col)
            return dk_err_set(err, -EINVAL,
                              "%s: columns %u to %u lie in two scale blocks, the packed matrix has one run for them",
                              t->what, begin, end - 1);
        for (uint32_t row = t->row_begin; row < t->row_end; row += DK_PANEL_ROWS) {
            uint32_t at = src->row_origin + (row - t->row_begin);
            uint32_t block_row = at / DK_RUN_COLS;
            size_t index = (size_t)(block_row - src->row_origin / DK_RUN_COLS) * src->scale_stride +
                           (block_col - src->col_origin / DK_RUN_COLS);
            uint32_t panel = t->first + t->step * (row / DK_PANEL_ROWS);
            float scale = 1.0f;

            if (src->scales)
                dk_widen(&scale, (const uint8_t *)src->scales + index * dk_dtype_bytes(src->scale_type),
                         src->scale_type, 1);
            if (m->type == DK_F8_E4M3)
                scale *= DK_F8_SCALE;
            if (!isfinite(scale) || scale < 0)
                return dk_err_set(err, -EINVAL, "%s: the scale of row %u, column %u (block %u, %u) is %g", t->what, at,
                                  begin, block_row, block_col, (double)scale);
            m->scales[(size_t)panel * m->runs + run] = scale;
        }
    }
    return 0;
}

/* Columns packed at a time: what they become stays in the first-level cache until the last row is in. */
#define BLOCK_COLS 64u

/* Spreads a row's elements over columns that are `step` bytes apart. Returns whether a NaN code was among FP8. */
static bool spread_row(uint8_t *to, size_t step, enum dk_dtype type, const uint8_t *from, uint32_t cols)
{
    float wide[BLOCK_COLS];
    unsigned nan = 0;

    switch (type) {
    case DK_F8_E4M3:
        for (uint32_t c = 0; c < cols; c++) {
            to[c * step] = from[c];
            nan |= (from[c] & 0x7fu) + 1;
        }
        break;
    case DK_BF16:
        for (uint32_t c = 0; c < cols; c++)
            memcpy(to + c * step, from + 2 * c, 2);
        break;
    default:
        dk_widen(wide, from, type, cols);
        for (uint32_t c = 0; c < cols; c++)
            memcpy(to + c * step, &wide[c], 4);
    }
    return nan & 0x80;
}

static int nan_error(const struct target *t, const struct dk_matrix_source *src, uint32_t row, uint32_t col,
                     const uint8_t *from, struct dk_err *err)
{
    while ((*from & 0x7f) != 0x7f) {
        from++;
        col++;
    }
    return dk_err_set(err, -EINVAL, "%s: the FP8 weight of row %u, column %u is a NaN (0x%02x)", t->what,
                      src->row_origin + row - t->row_begin, src->col_origin + col - t->col_begin, *from);
}

/* `rows` rows of one panel, from `from`, which is the part's row `row`; rows beyond them are zero. */
static int pack_panel(const struct target *t, const struct dk_matrix_source *src, uint32_t row, uint32_t rows,
                      const uint8_t *from, struct dk_err *err)
{
    struct dk_matrix *m = t->m;
    size_t size = dk_dtype_bytes(m->type), from_size = dk_dtype_bytes(src->type), step = DK_PAIR_ROWS * size;
    uint32_t panel = t->first + t->step * (row / DK_PANEL_ROWS);

    for (uint32_t col = t->col_begin; col < t->col_end; col += BLOCK_COLS) {
        uint32_t cols = t->col_end - col < BLOCK_COLS ? t->col_end - col : BLOCK_COLS;
        uint8_t *to = m->data + (((size_t)(panel / 2) * m->cols + col) * 2 + panel % 2) * DK_PANEL_ROWS * size;

        for (uint32_t i = 0; i < DK_PANEL_ROWS; i++) {
            uint8_t *at = to + (m->type == DK_F32 ? i : i % 16 * 2 + i / 16) * size;
            const uint8_t *elements = from + (i * src->row_stride + col - t->col_begin) * from_size;

            if (i >= rows) {
                for (uint32_t c = 0; c < cols; c++)
                    memset(at + c * step, 0, size);
            } else if (spread_row(at, step, src->type, elements, cols)) {
                return nan_error(t, src, row + i, col, elements, err);
            }
        }
    }
    return 0;
}

static int pack(const struct target *t, const struct dk_matrix_source *src, struct dk_err *err)
{
    struct dk_matrix *m = t->m;
    int rc;

    if (dk_matrix_packed_type(src->type) != m->type)
        return dk_err_set(err, -EINVAL, "%s: %s weights do not go into a %s matrix", t->what, dk_dtype_name(src->type),
                          dk_dtype_name(m->type));
    if (src->row_origin % DK_PANEL_ROWS)
        return dk_err_set(err, -EINVAL, "%s: begins at row %u, which is not a multiple of %u", t->what, src->row_origin,
                          DK_PANEL_ROWS);
    rc = pack_scales(t, src, err);
    for (uint32_t row = t->row_begin; rc == 0 && row < t->row_end; row += DK_PANEL_ROWS) {
        uint32_t rows = t->row_end - row < DK_PANEL_ROWS ? t->row_end - row : DK_PANEL_ROWS;
        const uint8_t *from = src->data;

        from += (row - t->row_begin) * src->row_stride * dk_dtype_bytes(src->type);
        rc = pack_panel(t, src, row, rows, from, err);
    }
    return rc;
}

int dk_matrix_pack(struct dk_matrix *m, uint32_t row_begin, uint32_t row_end, uint32_t col_begin, uint32_t col_end,
                   const struct dk_matrix_source *src, struct dk_err *err)
{
    struct target t = {m, 0, 1, row_begin, row_end, col_begin, col_end, "matrix"};

    assert(row_begin <= row_end && row_end <= m->rows && col_begin <= col_end && col_end <= m->cols);
    assert(row_begin % DK_PANEL_ROWS == 0 && (row_end % DK_PANEL_ROWS == 0 || row_end == m->rows));
    return pack(&t, src, err);
}

int dk_ffn_alloc(struct dk_ffn *f, enum dk_dtype packed_type, uint32_t hidden, uint32_t width, uint32_t begin,
                 int scaled)
{
    int rc;

    memset(f, 0, sizeof *f);
    f->hidden = hidden;
    f->width = width;
    rc = dk_matrix_alloc(&f->gate_up, packed_type, 2 * DK_PANEL_ROWS * dk_matrix_panels(width), hidden, 0, scaled);
    if (rc < 0)
        goto fail;
    rc = dk_matrix_alloc(&f->down, packed_type, hidden, width, begin, scaled);
    if (rc < 0)
        goto fail;
    return 0;

fail:
    dk_ffn_free(f);
    return rc;
}

void dk_ffn_free(struct dk_ffn *f)
{
    dk_matrix_free(&f->gate_up);
    dk_matrix_free(&f->down);
    memset(f, 0, sizeof *f);
}

int dk_ffn_pack(struct dk_ffn *f, uint32_t begin, uint32_t end, const struct dk_matrix_source *gate,
                const struct dk_matrix_source *up, const struct dk_matrix_source *down, struct dk_err *err)
{
    struct target targets[] = {
        {&f->gate_up, 0, 2, begin, end, 0, f->hidden, "gate"},
        {&f->gate_up, 1, 2, begin, end, 0, f->hidden, "up"},
        {&f->down, 0, 1, 0, f->hidden, begin, end, "down"},
    };
    const struct dk_matrix_source *sources[] = {gate, up, down};
    int rc;

    assert(begin <= end && end <= f->width);
    assert(begin % DK_PANEL_ROWS == 0 && (end % DK_PANEL_ROWS == 0 || end == f->width));
    for (int i = 0; begin < end && i < 3; i++) {
        rc = pack(&targets[i], sources[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

uint64_t dk_ffn_bytes(const struct dk_ffn *f)
{
    const struct dk_matrix *m[] = {&f->gate_up, &f->down};
    uint64_t bytes = 0;

    for (int i = 0; i < 2; i++)
        bytes += dk_matrix_data_bytes(m[i]->type, m[i]->rows, m[i]->cols) +
                 (uint64_t)dk_matrix_pairs(m[i]->rows) * 2 * m[i]->runs * sizeof(float);
    return bytes;
}
