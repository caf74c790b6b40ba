/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

Test(arena, pieces_are_aligned_and_apart)
{
    struct dk_arena a;
    unsigned char *before = NULL;
    size_t before_size = 0;

    cr_assert_eq(dk_arena_init(&a, 4096), 0);
    for (size_t align = 1; align <= 256; align *= 2) {
        unsigned char *p = dk_arena_take(&a, 10 + align, align);

        cr_assert(p);
        cr_expect_eq((uintptr_t)p % align, 0);
        cr_expect(!before || p >= before + before_size);
        memset(p, (int)align, 10 + align);
        before = p;
        before_size = 10 + align;
    }
    cr_expect(a.used <= a.size);
    dk_arena_fini(&a);
}

Test(arena, full_is_null_and_reset_starts_again)
{
    struct dk_arena a;
    void *first;

    cr_assert_eq(dk_arena_init(&a, 100), 0);
    first = dk_arena_take(&a, 60, 1);
    cr_assert(first);
    cr_expect_null(dk_arena_take(&a, 41, 1));
    cr_expect_null(dk_arena_take(&a, SIZE_MAX, 1));
    cr_expect_null(dk_arena_take(&a, SIZE_MAX - 8, 64));
    cr_expect(dk_arena_take(&a, 40, 1), "a refusal takes nothing");
    cr_expect_null(dk_arena_take(&a, 1, 1));
    cr_expect(dk_arena_take(&a, 0, 1), "nothing fits always");
    dk_arena_reset(&a);
    cr_expect_eq(dk_arena_take(&a, 100, 1), first);
    dk_arena_fini(&a);
    dk_arena_fini(&a);
}

Test(arena, alignment_beyond_the_end)
{
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 64), 0);
    cr_assert(dk_arena_take(&a, 63, 1));
    cr_expect_null(dk_arena_take(&a, 0, 4096), "there is no such address in the block");
    dk_arena_fini(&a);
}

Test(arena, bytes_skipped_for_alignment_count)
{
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 128), 0); /* malloc's blocks start at multiples of 16 */
    cr_assert(dk_arena_take(&a, 1, 1));
    cr_expect_null(dk_arena_take(&a, 113, 16), "15 bytes are skipped, 112 are left");
    cr_expect(dk_arena_take(&a, 112, 16));
    cr_expect_null(dk_arena_take(&a, 1, 1));
    dk_arena_fini(&a);
}

Test(arena, of_no_bytes)
{
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 0), 0);
    cr_expect_null(dk_arena_take(&a, 1, 1));
    dk_arena_fini(&a);
}

Test(arena, alloc_aligned)
{
    static const size_t counts[] = {0, 1, 63, 64, 65, 1000};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        unsigned char *p = dk_alloc_aligned(counts[i], 3);

        cr_assert(p);
        cr_expect_eq((uintptr_t)p % 64, 0);
        for (size_t k = 0; k < 3 * counts[i]; k++)
            cr_assert_eq(p[k], 0);
        free(p);
    }
    cr_expect_null(dk_alloc_aligned(SIZE_MAX / 2, 3));
    cr_expect_null(dk_alloc_aligned(SIZE_MAX, 1));
    cr_expect_null(dk_alloc_aligned(SIZE_MAX - 63, 1));
}
