/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/cache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

static struct dk_cache *open_cache(uint32_t page_tokens, uint32_t pages, uint32_t sequences, uint32_t context)
{
    struct dk_cache *c;

    cr_assert_eq(dk_cache_open(page_tokens, pages, sequences, context, &c), 0);
    return c;
}

Test(cache, refuses_empty_shapes)
{
    struct dk_cache *c;

    cr_expect_eq(dk_cache_open(0, 4, 1, 16, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(16, 0, 1, 16, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(16, 4, 0, 16, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(16, 4, 1, 0, &c), -EINVAL);
    cr_expect_null(c);
    dk_cache_close(NULL);
}

Test(cache, takes_a_page_only_when_the_last_is_full)
{
    struct dk_cache *c = open_cache(4, 8, 2, 32);
    const uint32_t *pages;

    cr_assert_eq(dk_cache_extend(c, 7, 1, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 7);
    cr_assert_eq(dk_cache_extend(c, 7, 4, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 7);
    cr_assert_eq(dk_cache_extend(c, 7, 5, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 6);
    cr_expect_neq(pages[0], pages[1]);
    cr_expect_eq(dk_cache_tokens(c, 7), 5);
    /* Less room than there is changes nothing. */
    cr_assert_eq(dk_cache_extend(c, 7, 2, &pages), 0);
    cr_expect_eq(dk_cache_tokens(c, 7), 5);
    cr_expect_eq(dk_cache_pages_free(c), 6);
    cr_expect_eq(dk_cache_extend(c, 7, 0, &pages), -EINVAL);
    dk_cache_close(c);
}

Test(cache, full_is_refused_and_changes_nothing)
{
    struct dk_cache *c = open_cache(4, 3, 2, 32);
    const uint32_t *pages;
    uint32_t before[2];

    cr_assert_eq(dk_cache_extend(c, 1, 8, &pages), 0);
    memcpy(before, pages, sizeof(before));
    cr_expect_eq(dk_cache_extend(c, 1, 13, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 1), 8);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    cr_expect_arr_eq(pages, before, sizeof(before));
    /* A sequence that could not be opened is not there. */
    cr_expect_eq(dk_cache_extend(c, 2, 5, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 2), 0);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    cr_assert_eq(dk_cache_extend(c, 2, 4, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 0);
    /* Both slots are taken. */
    dk_cache_release(c, 1);
    cr_assert_eq(dk_cache_extend(c, 3, 1, &pages), 0);
    cr_expect_eq(dk_cache_extend(c, 4, 1, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 4), 0);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    dk_cache_close(c);
}

Test(cache, context_is_a_limit_of_one_sequence)
{
    struct dk_cache *c = open_cache(4, 100, 2, 10);
    const uint32_t *pages;

    cr_expect_eq(dk_cache_extend(c, 1, 11, &pages), -E2BIG);
    cr_expect_eq(dk_cache_tokens(c, 1), 0);
    cr_assert_eq(dk_cache_extend(c, 1, 10, &pages), 0);
    cr_expect_eq(dk_cache_extend(c, 1, 11, &pages), -E2BIG);
    cr_expect_eq(dk_cache_extend(c, 1, UINT32_MAX, &pages), -E2BIG);
    cr_expect_eq(dk_cache_tokens(c, 1), 10);
    dk_cache_close(c);
}

Test(cache, released_pages_are_used_again_and_never_shared)
{
    enum { PAGES = 12, SEQUENCES = 5 };
    struct dk_cache *c = open_cache(2, PAGES, SEQUENCES, 12);
    const uint32_t *table[SEQUENCES] = {0};
    uint32_t random = 1, refused = 0;

    for (int round = 0; round < 2000; round++) {
        bool owned[PAGES] = {0};
        uint32_t used = 0, s;

        random = random * 1664525u + 1013904223u;
        s = (random >> 16) % SEQUENCES;
        if ((random >> 8) % 3 == 0) {
            dk_cache_release(c, 100 + s);
        } else {
            uint32_t tokens = 1 + (random >> 20) % 12;
            uint32_t has = (dk_cache_tokens(c, 100 + s) + 1) / 2, needs = (tokens + 1) / 2;
            bool fits = needs <= has || needs - has <= dk_cache_pages_free(c);

            cr_assert_eq(dk_cache_extend(c, 100 + s, tokens, &table[s]), fits ? 0 : -ENOSPC, "round %d", round);
            refused += !fits;
        }
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            uint32_t pages = (dk_cache_tokens(c, 100 + i) + 1) / 2;

            for (uint32_t p = 0; p < pages; p++) {
                cr_assert_lt(table[i][p], PAGES);
                cr_assert_not(owned[table[i][p]], "round %d: page %u belongs to two", round, table[i][p]);
                owned[table[i][p]] = true;
            }
            used += pages;
        }
        cr_assert_eq(dk_cache_pages_free(c), PAGES - used);
    }
    cr_expect_gt(refused, 100);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        dk_cache_release(c, 100 + i);
    dk_cache_release(c, 999); /* never opened */
    cr_expect_eq(dk_cache_pages_free(c), PAGES);
    dk_cache_close(c);
}
