/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/stop_filter.h"

static void push(struct dk_stop_filter *f, const char *text, const char *expected)
{
    char *out;

    cr_assert_eq(dk_stop_filter_push(f, text, strlen(text)), 0);
    out = dk_stop_filter_take(f);
    cr_assert_str_eq(out ? out : "", expected);
    free(out);
}

Test(stop_filter, holds_back_only_what_could_begin_a_stop)
{
    char *stops[] = {"END", "\n\n"};
    struct dk_stop_filter f;
    char *rest;

    cr_assert_eq(dk_stop_filter_init(&f, stops, 2), 0);
    push(&f, "abE", "ab");
    push(&f, "N", "");
    push(&f, "x", "ENx");
    push(&f, "\n", "");
    push(&f, "EE", "\nE");
    dk_stop_filter_flush(&f);
    rest = dk_stop_filter_take(&f);
    cr_assert_str_eq(rest, "E");
    free(rest);
    dk_stop_filter_fini(&f);
}

Test(stop_filter, drops_the_stop_and_all_after_it)
{
    char *stops[] = {"END", "ND"};
    struct dk_stop_filter f;

    cr_assert_eq(dk_stop_filter_init(&f, stops, 2), 0);
    push(&f, "aE", "a");
    push(&f, "NDxyz", "");
    cr_assert(f.hit);
    push(&f, "more", "");
    dk_stop_filter_flush(&f);
    cr_assert_null(dk_stop_filter_take(&f));
    dk_stop_filter_fini(&f);
}

Test(stop_filter, a_zero_byte_becomes_a_character)
{
    struct dk_stop_filter f;
    char *text;

    cr_assert_eq(dk_stop_filter_init(&f, NULL, 0), 0);
    cr_assert_eq(dk_stop_filter_push(&f, "a\0b", 3), 0);
    text = dk_stop_filter_take(&f);
    cr_assert_str_eq(text, "a\xef\xbf\xbd"
                           "b");
    free(text);
    dk_stop_filter_fini(&f);
}

/* Cutting the text anywhere must not change what comes out. */
Test(stop_filter, pieces_do_not_matter)
{
    char *stops[] = {"aab", "bb", "abab"};
    struct dk_rng rng = {.state = 3};
    uint32_t hits = 0;

    for (int round = 0; round < 2000; round++) {
        char text[40] = {0}, whole[64] = {0}, pieces[64] = {0};
        size_t n = 1 + dk_rng_next(&rng) % 30;
        bool hit[2];

        for (size_t i = 0; i < n; i++)
            text[i] = "abc"[dk_rng_next(&rng) % 3];
        for (int way = 0; way < 2; way++) {
            struct dk_stop_filter f;
            char *to = way ? pieces : whole, *out;

            cr_assert_eq(dk_stop_filter_init(&f, stops, 3), 0);
            for (size_t at = 0; at < n;) {
                size_t piece = way ? 1 + dk_rng_next(&rng) % 3 : 1;

                if (piece > n - at)
                    piece = n - at;
                cr_assert_eq(dk_stop_filter_push(&f, text + at, piece), 0);
                out = dk_stop_filter_take(&f);
                strcat(to, out ? out : "");
                free(out);
                at += piece;
            }
            dk_stop_filter_flush(&f);
            out = dk_stop_filter_take(&f);
            strcat(to, out ? out : "");
            free(out);
            hit[way] = f.hit;
            dk_stop_filter_fini(&f);
        }
        cr_assert_eq(hit[0], hit[1], "%s", text);
        hits += hit[0];
        cr_assert_str_eq(whole, pieces);
        if (!hit[0])
            cr_assert_str_eq(whole, text);
        cr_assert(!strncmp(whole, text, strlen(whole)));
    }
    cr_assert(hits > 200 && hits < 1800, "%u", hits);
}
