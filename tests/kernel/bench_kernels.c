/* SPDX-License-Identifier: Apache-2.0 */
/* check_kernels --bench: dk_moe against dk_read of the same memory, call by call in turn, so that both see the same
 * state of a machine that others use too. Weights: at least 1 GiB of experts shaped like those of Qwen3-30B-A3B (hidden
 * 2048, top 8), whole (width 768) or a narrow slice (64), random bytes; every call activates other experts, so nothing
 * is cached. Rows beyond the first share 128 experts, as in a real layer. Printed: medians, and the median of the
 * ratios of neighbours. */
#include "kernel_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HIDDEN    2048u
#define TOP_K     8u
#define LAYER     128u /* experts that the rows of one call choose from */
#define GIB       ((size_t)1 << 30)
#define CALLS_MAX 200u
#define ROWS_MAX  64u

struct bench {
    struct dk_ffn *ffn;
    uint32_t experts, width;
    size_t expert_bytes; /* of weights, both matrices */
    struct dk_rng rng;
    float *x, *y, *weights;
    int32_t *ids;
    void *scratch;
};

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t data_bytes(const struct dk_matrix *m)
{
    return dk_matrix_data_bytes(m->type, m->rows, m->cols);
}

static void fill_matrix(struct dk_rng *rng, struct dk_matrix *m)
{
    for (size_t at = 0; at + 8 <= data_bytes(m); at += 8) {
        uint64_t r = dk_rng_next(rng);

        if (m->type == DK_F8_E4M3) /* lowest bit of the NaN codes away */
            r ^= ((r & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x0101010101010101)) >> 7 &
                 UINT64_C(0x0101010101010101);
        else /* any sign and mantissa, exponents about 1 */
            r = (r & UINT64_C(0x80ff80ff80ff80ff)) | UINT64_C(0x3e003e003e003e00);
        memcpy(m->data + at, &r, 8);
    }
}

static int bench_make(struct bench *b, enum dk_dtype type, uint32_t width, uint32_t experts)
{
    b->width = width;
    b->expert_bytes = 3 * (size_t)HIDDEN * width * dk_dtype_bytes(type);
    b->experts = experts;
    b->ffn = calloc(b->experts, sizeof *b->ffn);
    b->scratch = malloc(dk_moe_scratch_bytes(ROWS_MAX, TOP_K, b->experts, width));
    b->x = malloc(ROWS_MAX * HIDDEN * sizeof *b->x);
    b->y = malloc(ROWS_MAX * HIDDEN * sizeof *b->y);
    b->weights = malloc(ROWS_MAX * TOP_K * sizeof *b->weights);
    b->ids = malloc(ROWS_MAX * TOP_K * sizeof *b->ids);
    if (!b->ffn || !b->scratch || !b->x || !b->y || !b->weights || !b->ids)
        return -ENOMEM;
    for (uint32_t i = 0; i < b->experts; i++) {
        if (dk_ffn_alloc(&b->ffn[i], type, HIDDEN, width, 0, 0) < 0)
            return -ENOMEM;
        fill_matrix(&b->rng, &b->ffn[i].gate_up);
        fill_matrix(&b->rng, &b->ffn[i].down);
    }
    fill_floats(&b->rng, b->x, ROWS_MAX * HIDDEN, STYLE_RANDOM);
    fill_floats(&b->rng, b->weights, ROWS_MAX * TOP_K, STYLE_RANDOM);
    return 0;
}

static void bench_free(struct bench *b)
{
    for (uint32_t i = 0; b->ffn && i < b->experts; i++)
        dk_ffn_free(&b->ffn[i]);
    free(b->ffn);
    free(b->scratch);
    free(b->x);
    free(b->y);
    free(b->weights);
    free(b->ids);
}

static void choose(struct bench *b, uint32_t rows)
{
    uint32_t pool = b->experts < LAYER || rows == 1 ? b->experts : LAYER;
    uint32_t first = (uint32_t)(dk_rng_next(&b->rng) % (b->experts - pool + 1));

    for (uint32_t i = 0; i < rows * TOP_K; i++) {
        bool taken = true;

        while (taken) {
            b->ids[i] = (int32_t)(first + dk_rng_next(&b->rng) % pool);
            taken = false;
            for (uint32_t j = i / TOP_K * TOP_K; j < i; j++)
                taken |= b->ids[j] == b->ids[i];
        }
    }
}

struct reading {
    struct bench *b;
    const struct dk_kernels *k;
    uint32_t first, count;
    uint64_t sums[64];
};

/* Every thread reads its part of every expert, as in dk_moe. */
static void read_part(void *arg, uint32_t part, uint32_t parts)
{
    struct reading *r = arg;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        const struct dk_ffn *f = &r->b->ffn[(r->first + i) % r->b->experts];
        const struct dk_matrix *m[2] = {&f->gate_up, &f->down};

        for (int j = 0; j < 2; j++) {
            size_t begin = data_bytes(m[j]) / 64 * part / parts * 64,
                   end = data_bytes(m[j]) / 64 * (part + 1) / parts * 64;

            sum += dk_read(r->k, m[j]->data + begin, end - begin);
        }
    }
    r->sums[part % 64] = sum;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static void bench_case(struct bench *b, const struct dk_kernels *k, struct dk_exec *e, uint32_t rows)
{
    double moe[CALLS_MAX], plain[CALLS_MAX], ratio[CALLS_MAX], spent = 0;
    uint32_t calls = 0;

    for (int warm = 1; calls < CALLS_MAX && spent < 1.5; warm = 0) {
        struct reading r = {.b = b, .k = k};
        double begin, middle, between, end, bytes;

        choose(b, rows);
        begin = seconds();
        bytes = (double)dk_moe(k, e, b->ffn, b->experts, rows, TOP_K, b->x, b->ids, b->weights, b->y, b->scratch);
        middle = seconds();
        r.count = (uint32_t)(bytes / (double)b->expert_bytes);
        r.first = (uint32_t)(dk_rng_next(&b->rng) % b->experts);
        between = seconds();
        dk_exec_run(e, read_part, &r);
        end = seconds();
        if (warm)
            continue;
        moe[calls] = bytes / (middle - begin) * 1e-9;
        plain[calls] = (double)r.count * (double)b->expert_bytes / (end - between) * 1e-9;
        ratio[calls] = moe[calls] / plain[calls];
        spent += end - begin;
        calls++;
    }
    printf("%-7s %-8s %5u %4u %7u %8.1f %8.1f %7.2f\n", dk_isa_name(dk_kernels_isa(k)),
           dk_dtype_name(b->ffn->down.type), b->width, rows, dk_exec_threads(e), median(moe, calls),
           median(plain, calls), median(ratio, calls));
    fflush(stdout);
}

int bench_kernels(void)
{
    static const uint32_t widths[] = {768, 64}, rows[] = {1, 4, 16, 64};
    static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16};
    uint32_t cpus = dk_cpu_count();

    printf("level   weights  width rows threads  moe GB/s read GB/s ratio\n");
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 2; w++) {
            struct bench b = {.rng = {cases_seed}};
            uint32_t experts = (uint32_t)(GIB / (3 * (size_t)HIDDEN * widths[w] * dk_dtype_bytes(types[t]))) + 1;

            if (bench_make(&b, types[t], widths[w], experts < LAYER ? LAYER : experts) < 0) {
                fprintf(stderr, "not enough memory\n");
                bench_free(&b);
                return 1;
            }
            for (uint32_t threads = 1; threads <= cpus; threads = threads < cpus ? cpus : cpus + 1) {
                struct dk_exec *e;

                if (dk_exec_open(threads, true, &e) < 0)
                    return 1;
                for (enum dk_isa isa = DK_ISA_AVX2; isa <= dk_isa_best(); isa++)
                    for (int r = 0; r < 4; r++)
                        bench_case(&b, dk_kernels_get(isa), e, rows[r]);
                dk_exec_close(e);
            }
            bench_free(&b);
        }
    return 0;
}

int count_kernels(uint32_t width)
{
    struct bench b = {.rng = {cases_seed}};
    struct dk_exec *e;
    uint64_t bytes;

    if (dk_isa_best() < DK_ISA_AVX2 || dk_exec_open(1, false, &e) < 0)
        return 1;
    if (bench_make(&b, DK_F8_E4M3, width, TOP_K) < 0)
        return 1;
    choose(&b, 1);
    bytes = dk_moe(dk_kernels_get(DK_ISA_AVX2), e, b.ffn, b.experts, 1, TOP_K, b.x, b.ids, b.weights, b.y, b.scratch);
    printf("%llu bytes of weights and scales\n", (unsigned long long)bytes);
    bench_free(&b);
    dk_exec_close(e);
    return 0;
}
