/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel_internal.h"

#define ROWS 200
#define COLS 300

/* Element (row, col) of a packed matrix, by the layout that pack.c describes. */
static const uint8_t *packed_at(const struct dk_matrix *m, uint32_t row, uint32_t col)
{
    uint32_t panel = row / 32, lane = row % 32, place = m->type == DK_F32 ? lane : lane % 16 * 2 + lane / 16;

    return m->data + ((((size_t)(panel / 2) * m->cols + col) * 2 + panel % 2) * 32 + place) * dk_dtype_bytes(m->type);
}

static uint8_t code_at(uint32_t row, uint32_t col)
{
    return (uint8_t)((row * 7 + col * 13) % 126 + (row + col) % 2 * 128);
}

static float scale_at(uint32_t block_row, uint32_t block_col)
{
    return (float)(1 + block_row * 16 + block_col) / 64;
}

static uint8_t weights[ROWS * COLS];
static float scales[8 * 8];

static struct dk_matrix_source make_source(uint32_t row_origin, uint32_t col_origin)
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < COLS; c++)
            weights[r * COLS + c] = code_at(row_origin + r, col_origin + c);
    for (uint32_t r = 0; r < 8; r++)
        for (uint32_t c = 0; c < 8; c++)
            scales[r * 8 + c] = scale_at(row_origin / 128 + r, col_origin / 128 + c);
    return (struct dk_matrix_source){weights, DK_F8_E4M3, COLS, row_origin, col_origin, scales, DK_F32, 8};
}

static void check_packed(const struct dk_matrix *m, uint32_t row_origin, uint32_t col_origin)
{
    for (uint32_t r = 0; r < dk_matrix_pairs(m->rows) * 64; r++)
        for (uint32_t c = 0; c < m->cols; c++) {
            uint32_t run = c < m->run_first ? 0 : 1 + (c - m->run_first) / 128;
            uint8_t want = r < m->rows ? code_at(row_origin + r, col_origin + c) : 0;

            cr_assert_eq(*packed_at(m, r, c), want, "row %u, column %u", r, c);
            if (r < m->rows)
                cr_assert_eq(m->scales[r / 32 * m->runs + run],
                             256 * scale_at((row_origin + r) / 128, (col_origin + c) / 128),
                             "scale of row %u, column %u", r, c);
        }
}

Test(kernel_pack, slices_of_any_origin)
{
    static const uint32_t origins[][2] = {{0, 0}, {32, 64}, {96, 127}, {160, 200}, {64, 1}};

    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++) {
        struct dk_matrix_source src = make_source(origins[i][0], origins[i][1]);
        struct dk_matrix m;

        cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, origins[i][1], 1), 0);
        cr_assert_eq(dk_matrix_scale_count(ROWS, COLS, origins[i][1]), 8u * m.runs);
        cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, NULL), 0);
        check_packed(&m, origins[i][0], origins[i][1]);
        dk_matrix_free(&m);
    }
}

Test(kernel_pack, in_pieces)
{
    static const uint32_t rows[] = {0, 32, 96, 160, ROWS}, cols[] = {0, 5, 28, 28 + 128, 290, COLS};
    struct dk_matrix_source src = make_source(32, 100);
    struct dk_matrix m;

    cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, 100, 1), 0);
    for (int r = 3; r >= 0; r--)
        for (int c = 0; c < 5; c++) {
            struct dk_matrix_source part = src;

            part.data = weights + rows[r] * COLS + cols[c];
            part.row_origin = 32 + rows[r];
            part.col_origin = 100 + cols[c];
            part.scales = scales + (part.row_origin / 128) * 8 + part.col_origin / 128;
            cr_assert_eq(dk_matrix_pack(&m, rows[r], rows[r + 1], cols[c], cols[c + 1], &part, NULL), 0);
        }
    check_packed(&m, 32, 100);
    dk_matrix_free(&m);
}

Test(kernel_pack, gate_and_up_alternate)
{
    struct dk_matrix_source gate = make_source(0, 0), up = gate, down = gate;
    uint8_t *other = malloc(ROWS * COLS);
    struct dk_ffn f;

    cr_assert(other);
    for (int i = 0; i < ROWS * COLS; i++)
        other[i] = weights[i] ^ 0x80;
    up.data = other;
    cr_assert_eq(dk_ffn_alloc(&f, DK_F8_E4M3, 96, 70, 0, 1), 0);
    cr_assert_eq(f.gate_up.rows, 192);
    cr_assert_eq(dk_ffn_pack(&f, 0, 70, &gate, &up, &down, NULL), 0);
    for (uint32_t r = 0; r < 70; r++)
        for (uint32_t c = 0; c < 96; c++) {
            cr_assert_eq(*packed_at(&f.gate_up, r / 32 * 64 + r % 32, c), code_at(r, c));
            cr_assert_eq(*packed_at(&f.gate_up, r / 32 * 64 + 32 + r % 32, c), code_at(r, c) ^ 0x80);
        }
    for (uint32_t r = 0; r < 96; r++)
        for (uint32_t c = 0; c < 70; c++)
            cr_assert_eq(*packed_at(&f.down, r, c), code_at(r, c));
    cr_assert_eq(dk_ffn_bytes(&f), 192 * 96 + 128 * 70 + (6 + 4) * sizeof(float));
    dk_ffn_free(&f);
    free(other);
}

Test(kernel_pack, other_types)
{
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000, 0x3555};
    static const float floats[] = {1.0f, -2.0f, 0x1p-24f, 65504.0f, -0.0f, 0x1.554p-2f};
    uint8_t unaligned[1 + sizeof halves];
    struct dk_matrix_source src = {.data = unaligned + 1, .type = DK_F16, .row_stride = 3};
    struct dk_matrix m;

    memcpy(unaligned + 1, halves, sizeof halves);
    cr_assert_eq(dk_matrix_packed_type(DK_F16), DK_F32);
    cr_assert_eq(dk_matrix_alloc(&m, DK_F32, 2, 3, 0, 0), 0);
    cr_assert_eq(dk_matrix_pack(&m, 0, 2, 0, 3, &src, NULL), 0);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(memcmp(packed_at(&m, i / 3, i % 3), &floats[i], 4), 0, "element %u", i);
    dk_matrix_free(&m);
    src.type = DK_BF16;
    cr_assert_eq(dk_matrix_alloc(&m, DK_BF16, 2, 3, 0, 0), 0);
    cr_assert_eq(dk_matrix_pack(&m, 0, 2, 0, 3, &src, NULL), 0);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(memcmp(packed_at(&m, i / 3, i % 3), &halves[i], 2), 0, "element %u", i);
    src.type = DK_F32;
    cr_assert_eq(dk_matrix_pack(&m, 0, 2, 0, 3, &src, NULL), -EINVAL);
    dk_matrix_free(&m);
}

Test(kernel_pack, bf16_scales)
{
    struct dk_matrix_source src = make_source(0, 0);
    uint8_t bf16[1 + 2 * 64];
    struct dk_matrix m;

    for (int i = 0; i < 64; i++)
        memcpy(bf16 + 1 + 2 * i, (const uint8_t *)&scales[i] + 2, 2);
    src.scales = bf16 + 1;
    src.scale_type = DK_BF16;
    cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, 0, 1), 0);
    cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, NULL), 0);
    check_packed(&m, 0, 0);
    dk_matrix_free(&m);
}

Test(kernel_pack, refuses_nan_codes)
{
    static const uint8_t codes[] = {0x7f, 0xff};

    for (int i = 0; i < 2; i++) {
        struct dk_matrix_source src = make_source(64, 256);
        struct dk_err err = {0};
        struct dk_matrix m;

        weights[77 * COLS + 211] = codes[i];
        cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, 256, 1), 0);
        cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, &err), -EINVAL);
        cr_assert(strstr(err.text, "row 141") && strstr(err.text, "column 467"), "%s", err.text);
        dk_matrix_free(&m);
    }
}

Test(kernel_pack, refuses_bad_scales)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -0.5f, 3e38f};

    for (int i = 0; i < 5; i++) {
        struct dk_matrix_source src = make_source(128, 0);
        struct dk_err err = {0};
        struct dk_matrix m;

        scales[1 * 8 + 2] = bad[i];
        cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, 0, 1), 0);
        cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, &err), -EINVAL, "scale %g", (double)bad[i]);
        cr_assert(strstr(err.text, "row 256") && strstr(err.text, "column 256"), "%s", err.text);
        dk_matrix_free(&m);
    }
}

Test(kernel_pack, refuses_runs_that_do_not_fit)
{
    struct dk_matrix_source src = make_source(0, 0);
    struct dk_err err = {0};
    struct dk_matrix m;

    /* The matrix believes that it begins at column 64 of the whole tensor, the source at 0. */
    cr_assert_eq(dk_matrix_alloc(&m, DK_F8_E4M3, ROWS, COLS, 64, 1), 0);
    cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, &err), -EINVAL);
    src.row_origin = 16;
    src.col_origin = 64;
    cr_assert_eq(dk_matrix_pack(&m, 0, ROWS, 0, COLS, &src, &err), -EINVAL);
    cr_assert(strstr(err.text, "16"), "%s", err.text);
    dk_matrix_free(&m);
}

Test(kernel_pack, sizes)
{
    struct dk_ffn f;

    cr_assert_eq(dk_matrix_data_bytes(DK_F8_E4M3, 33, 10), 64 * 10);
    cr_assert_eq(dk_matrix_data_bytes(DK_BF16, 65, 10), 128 * 10 * 2);
    cr_assert_eq(dk_matrix_data_bytes(DK_F32, 0, 10), 0);
    cr_assert_eq(dk_matrix_scale_count(32, 64, 96), 2 * 2);
    cr_assert_eq(dk_matrix_scale_count(32, 0, 96), 0);
    cr_assert_eq(dk_ffn_alloc(&f, DK_BF16, 64, 0, 32, 0), 0);
    cr_assert_eq(dk_ffn_bytes(&f), 0);
    dk_ffn_free(&f);
    dk_ffn_free(&f);
    /* Big enough for huge pages: still zeroed, aligned, and freed. */
    cr_assert_eq(dk_ffn_alloc(&f, DK_F8_E4M3, 2048, 768, 0, 1), 0);
    cr_assert_eq((uintptr_t)f.gate_up.data % 64, 0);
    for (size_t i = 0; i < dk_matrix_data_bytes(DK_F8_E4M3, 1536, 2048); i += 997)
        cr_assert_eq(f.gate_up.data[i], 0);
    dk_ffn_free(&f);
}

/* Blocks of medium size share slabs: none overlap, all are zeroed, whatever the order in which others went. */
Test(kernel_pack, many_blocks)
{
    enum { COUNT = 200 };
    static struct dk_matrix m[COUNT];
    size_t bytes = dk_matrix_data_bytes(DK_F8_E4M3, 1024, 1000);

    for (uint32_t i = 0; i < 3 * COUNT; i++) {
        struct dk_matrix *at = &m[i * 7 % COUNT];

        dk_matrix_free(at);
        cr_assert_eq(dk_matrix_alloc(at, DK_F8_E4M3, 1024, 1000, 0, 1), 0);
        cr_assert_eq((uintptr_t)at->data % 64, 0);
        for (size_t j = 0; j < bytes; j += bytes - 1) {
            cr_assert_eq(at->data[j], 0);
            at->data[j] = (uint8_t)(i % 251 + 1);
        }
    }
    for (uint32_t i = 2 * COUNT; i < 3 * COUNT; i++) {
        struct dk_matrix *at = &m[i * 7 % COUNT];

        cr_assert_eq(at->data[0], i % 251 + 1);
        cr_assert_eq(at->data[bytes - 1], i % 251 + 1);
        dk_matrix_free(at);
    }
}
