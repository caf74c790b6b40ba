/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/cache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* What forks had copied, in order. */
static struct {
    uint32_t pages[16][2], states[16][2];
    uint32_t page_count, state_count;
} copied;

static void copy_page(void *ctx, uint32_t from, uint32_t to)
{
    copied.pages[copied.page_count][0] = from;
    copied.pages[copied.page_count++][1] = to;
}

static void copy_state(void *ctx, uint32_t from, uint32_t to)
{
    copied.states[copied.state_count][0] = from;
    copied.states[copied.state_count++][1] = to;
}

static const struct dk_cache_store store = {.copy_page = copy_page, .copy_state = copy_state};

static struct dk_cache *open_cache(uint32_t page_tokens, uint32_t pages, uint32_t sequences, uint32_t context)
{
    struct dk_cache_shape shape = {page_tokens, pages, sequences, context};
    struct dk_cache *c;

    cr_assert_eq(dk_cache_open(&shape, &store, &c), 0);
    return c;
}

static int extend(struct dk_cache *c, uint64_t id, uint32_t tokens, const uint32_t **pages)
{
    struct dk_cache_place place = {.pages = *pages};
    int rc = dk_cache_extend(c, id, tokens, &place);

    *pages = place.pages;
    return rc;
}

Test(cache, refuses_empty_shapes)
{
    struct dk_cache *c;

    cr_expect_eq(dk_cache_open(&(struct dk_cache_shape){0, 4, 1, 16}, &store, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(&(struct dk_cache_shape){16, 0, 1, 16}, &store, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(&(struct dk_cache_shape){16, 4, 0, 16}, &store, &c), -EINVAL);
    cr_expect_eq(dk_cache_open(&(struct dk_cache_shape){16, 4, 1, 0}, &store, &c), -EINVAL);
    cr_expect_null(c);
    dk_cache_close(NULL);
}

Test(cache, takes_a_page_only_when_the_last_is_full)
{
    struct dk_cache *c = open_cache(4, 8, 2, 32);
    const uint32_t *pages = NULL;

    cr_assert_eq(extend(c, 7, 1, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 7);
    cr_assert_eq(extend(c, 7, 4, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 7);
    cr_assert_eq(extend(c, 7, 5, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 6);
    cr_expect_neq(pages[0], pages[1]);
    cr_expect_eq(dk_cache_tokens(c, 7), 5);
    /* Less room than there is changes nothing. */
    cr_assert_eq(extend(c, 7, 2, &pages), 0);
    cr_expect_eq(dk_cache_tokens(c, 7), 5);
    cr_expect_eq(dk_cache_pages_free(c), 6);
    cr_expect_eq(extend(c, 7, 0, &pages), -EINVAL);
    dk_cache_close(c);
}

Test(cache, full_is_refused_and_changes_nothing)
{
    struct dk_cache *c = open_cache(4, 3, 2, 32);
    const uint32_t *pages = NULL;
    uint32_t before[2];

    cr_assert_eq(extend(c, 1, 8, &pages), 0);
    memcpy(before, pages, sizeof(before));
    cr_expect_eq(extend(c, 1, 13, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 1), 8);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    cr_expect_arr_eq(pages, before, sizeof(before));
    /* A sequence that could not be opened is not there. */
    cr_expect_eq(extend(c, 2, 5, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 2), 0);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    cr_assert_eq(extend(c, 2, 4, &pages), 0);
    cr_expect_eq(dk_cache_pages_free(c), 0);
    /* Both slots are taken. */
    dk_cache_release(c, 1);
    cr_assert_eq(extend(c, 3, 1, &pages), 0);
    cr_expect_eq(extend(c, 4, 1, &pages), -ENOSPC);
    cr_expect_eq(dk_cache_tokens(c, 4), 0);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    dk_cache_close(c);
}

Test(cache, context_is_a_limit_of_one_sequence)
{
    struct dk_cache *c = open_cache(4, 100, 2, 10);
    const uint32_t *pages = NULL;

    cr_expect_eq(extend(c, 1, 11, &pages), -E2BIG);
    cr_expect_eq(dk_cache_tokens(c, 1), 0);
    cr_assert_eq(extend(c, 1, 10, &pages), 0);
    cr_expect_eq(extend(c, 1, 11, &pages), -E2BIG);
    cr_expect_eq(extend(c, 1, UINT32_MAX, &pages), -E2BIG);
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

            cr_assert_eq(extend(c, 100 + s, tokens, &table[s]), fits ? 0 : -ENOSPC, "round %d", round);
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

Test(cache, a_fork_shares_full_pages_and_copies_the_rest)
{
    struct dk_cache *c = open_cache(4, 8, 3, 32);
    struct dk_cache_place first, second;

    cr_assert_eq(dk_cache_extend(c, 1, 10, &first), 0);
    cr_expect_eq(dk_cache_fork(c, 9, 2), -ENOENT);
    cr_assert_eq(dk_cache_fork(c, 1, 2), 0);
    cr_expect_eq(dk_cache_fork(c, 1, 2), -EEXIST);
    cr_expect_eq(dk_cache_tokens(c, 2), 10);
    cr_expect_eq(dk_cache_pages_free(c), 4);
    cr_assert_eq(dk_cache_extend(c, 2, 10, &second), 0);
    cr_expect_eq(second.pages[0], first.pages[0]);
    cr_expect_eq(second.pages[1], first.pages[1]);
    cr_expect_neq(second.pages[2], first.pages[2]);
    cr_expect_neq(second.state, first.state);
    cr_assert_eq(copied.page_count, 1);
    cr_expect_eq(copied.pages[0][0], first.pages[2]);
    cr_expect_eq(copied.pages[0][1], second.pages[2]);
    cr_assert_eq(copied.state_count, 1);
    cr_expect_eq(copied.states[0][0], first.state);
    cr_expect_eq(copied.states[0][1], second.state);

    /* What is shared goes when the last one goes. */
    dk_cache_release(c, 1);
    cr_expect_eq(dk_cache_pages_free(c), 5);
    dk_cache_release(c, 2);
    cr_expect_eq(dk_cache_pages_free(c), 8);
    dk_cache_close(c);
}

Test(cache, a_fork_at_the_end_of_a_page_copies_no_page)
{
    struct dk_cache *c = open_cache(4, 3, 3, 32);
    struct dk_cache_place first, second;

    cr_assert_eq(dk_cache_extend(c, 1, 8, &first), 0);
    cr_assert_eq(dk_cache_fork(c, 1, 2), 0);
    cr_expect_eq(copied.page_count, 0);
    cr_expect_eq(copied.state_count, 1);
    cr_expect_eq(dk_cache_pages_free(c), 1);
    /* They go on apart. */
    cr_assert_eq(dk_cache_extend(c, 2, 9, &second), 0);
    cr_expect_eq(dk_cache_tokens(c, 1), 8);
    cr_expect_eq(dk_cache_extend(c, 1, 9, &first), -ENOSPC);
    dk_cache_release_all(c);
    cr_expect_eq(dk_cache_pages_free(c), 3);
    dk_cache_close(c);
}

Test(cache, a_fork_that_does_not_fit_changes_nothing)
{
    struct dk_cache *c = open_cache(4, 4, 2, 32);
    struct dk_cache_place place;

    cr_assert_eq(dk_cache_extend(c, 1, 14, &place), 0);
    cr_expect_eq(dk_cache_fork(c, 1, 2), -ENOSPC, "no page for the copy");
    cr_expect_eq(dk_cache_tokens(c, 2), 0);
    dk_cache_release(c, 1);
    cr_assert_eq(dk_cache_extend(c, 1, 4, &place), 0);
    cr_assert_eq(dk_cache_extend(c, 3, 4, &place), 0);
    cr_expect_eq(dk_cache_fork(c, 1, 2), -ENOSPC, "no slot");
    cr_expect_eq(dk_cache_pages_free(c), 2);
    cr_expect_eq(copied.page_count + copied.state_count, 0);
    dk_cache_close(c);
}
