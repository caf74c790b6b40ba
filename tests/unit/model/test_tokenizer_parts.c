/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces the tokenizer is made of: tables, merges, normal form, pre-tokenizer. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/pretokenize.h"
#include "model/text_utf8.h"
#include "model/tokenizer/tokenizer_internal.h"

static uint32_t rng_next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

Test(token_maps, texts)
{
    enum { COUNT = 5000 };
    static char texts[COUNT][12];
    struct dk_text_map m;
    uint32_t id, old = 0;

    cr_assert_eq(dk_text_map_init(&m, COUNT), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        snprintf(texts[i], sizeof texts[i], "%u", i * 7919);
        cr_assert_eq(dk_text_map_put(&m, texts[i], strlen(texts[i]), i, &old), 0);
    }
    cr_assert_eq(dk_text_map_put(&m, "0", 1, 77, &old), -EEXIST);
    cr_assert_eq(old, 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        cr_assert_eq(dk_text_map_get(&m, texts[i], strlen(texts[i]), &id), 0);
        cr_assert_eq(id, i);
    }
    cr_assert_eq(dk_text_map_get(&m, "79190x", 5, &id), 0, "only the given bytes count");
    cr_assert_eq(dk_text_map_get(&m, "79190x", 6, &id), -ENOENT);
    cr_assert_eq(dk_text_map_get(&m, "", 0, &id), -ENOENT);
    dk_text_map_fini(&m);
    cr_assert_eq(dk_text_map_get(&m, "0", 1, &id), -ENOENT, "an empty map has nothing");
}

Test(token_maps, pairs)
{
    struct dk_pair_map m;

    cr_assert_eq(dk_pair_map_init(&m, 10000), 0);
    for (uint32_t i = 0; i < 10000; i++)
        dk_pair_map_put(&m, dk_pair_key(i % 100, i / 100), i, i + 1);
    dk_pair_map_put(&m, dk_pair_key(3, 2), 5, 6);
    for (uint32_t i = 0; i < 10000; i++) {
        const struct dk_pair_slot *s = dk_pair_map_get(&m, dk_pair_key(i % 100, i / 100));

        cr_assert_not_null(s);
        cr_assert_eq(s->first, i == 203 ? 5 : i);
        cr_assert_eq(s->second, i == 203 ? 6 : i + 1);
    }
    cr_assert_null(dk_pair_map_get(&m, dk_pair_key(100, 0)));
    dk_pair_map_fini(&m);
}

Test(byte_alphabet, every_byte_has_one_character)
{
    for (unsigned i = 0; i < 256; i++)
        cr_assert_eq(dk_char_byte(dk_byte_char((uint8_t)i)), (int)i, "byte %02x", i);
    cr_assert_eq(dk_byte_char(' '), 0x120);
    cr_assert_eq(dk_byte_char('\n'), 0x10A);
    cr_assert_eq(dk_byte_char(0xAD), 0x143);
    cr_assert_eq(dk_char_byte(0x144), -1);
    cr_assert_eq(dk_char_byte(' '), -1);
    cr_assert_eq(dk_char_byte(0xA0), -1);
}

/* Merges over an alphabet of 3 letters, with ranks from a seed, so that words of every length have many conflicts. */
static void make_bpe(struct dk_bpe *b, uint32_t seed)
{
    uint32_t id = 3;

    memset(b, 0, sizeof *b);
    for (unsigned i = 0; i < 256; i++)
        b->byte_id[i] = i >= 'a' && i <= 'c' ? i - 'a' : DK_NO_TOKEN;
    cr_assert_eq(dk_pair_map_init(&b->merges, 400), 0);
    for (uint32_t rank = 0; rank < 300; rank++) {
        uint64_t key = dk_pair_key(rng_next(&seed) % id, rng_next(&seed) % id);

        if (!dk_pair_map_get(&b->merges, key))
            dk_pair_map_put(&b->merges, key, rank, id++);
    }
}

/* The definition, word for word: again and again the lowest rank, the leftmost of equals. */
static size_t merge_plainly(const struct dk_bpe *b, uint32_t *ids, size_t n)
{
    for (;;) {
        const struct dk_pair_slot *best = NULL;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            const struct dk_pair_slot *s = dk_pair_map_get(&b->merges, dk_pair_key(ids[i], ids[i + 1]));

            if (s && (!best || s->first < best->first)) {
                best = s;
                at = i;
            }
        }
        if (!best)
            return n;
        ids[at] = best->second;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

Test(bpe, short_and_long_words_merge_as_defined)
{
    struct dk_bpe_scratch scratch = {0};
    uint32_t seed = 12345;

    for (uint32_t round = 0; round < 40; round++) {
        struct dk_bpe b;

        make_bpe(&b, round + 1);
        for (size_t length = 0; length < 130; length++) {
            struct dk_id_list got = {0};
            uint8_t word[130];
            uint32_t want[130];
            size_t n = 0;

            for (size_t i = 0; i < length; i++) {
                word[i] = (uint8_t)('a' + rng_next(&seed) % 4); /* 'd' has no token */
                if (word[i] != 'd')
                    want[n++] = word[i] - 'a';
            }
            n = merge_plainly(&b, want, n);
            cr_assert_eq(dk_bpe_word(&b, &scratch, word, length, &got), 0);
            cr_assert_eq(got.count, n, "round %u, length %zu", round, length);
            cr_assert(n == 0 || memcmp(got.ids, want, n * sizeof *want) == 0, "round %u, length %zu", round, length);
            free(got.ids);
        }
        dk_pair_map_fini(&b.merges);
    }
    dk_bpe_scratch_fini(&scratch);
}

Test(bpe, work_grows_hardly_faster_than_the_word)
{
    struct dk_bpe_scratch scratch = {0};
    size_t bytes = 1 << 20;
    uint8_t *word = malloc(bytes);
    struct dk_bpe b;

    make_bpe(&b, 3);
    for (uint32_t i = 0; i < 15; i++) { /* aa, aaaa, ... and ab, abab, ... */
        dk_pair_map_put(&b.merges, i ? dk_pair_key(999 + i, 999 + i) : dk_pair_key(0, 0), i, 1000 + i);
        dk_pair_map_put(&b.merges, i ? dk_pair_key(1999 + i, 1999 + i) : dk_pair_key(0, 1), 500 + i, 2000 + i);
    }
    for (unsigned kind = 0; kind < 3; kind++) {
        struct dk_id_list got = {0};
        uint32_t seed = 9;

        for (size_t i = 0; i < bytes; i++)
            word[i] = kind == 0 ? 'a' : kind == 1 ? (uint8_t)("ab"[i % 2]) : (uint8_t)('a' + rng_next(&seed) % 3);
        scratch.steps = 0;
        cr_assert_eq(dk_bpe_word(&b, &scratch, word, bytes, &got), 0);
        /* At most 2 n pushes and 2 n pops, of at most log2(2 n) + 1 moves each; quadratic work would be 10^12. */
        cr_assert_gt(scratch.steps, bytes / 2, "hardly anything was merged");
        cr_assert_leq(scratch.steps, 4 * (uint64_t)bytes * 22, "%llu", (unsigned long long)scratch.steps);
        free(got.ids);
    }
    dk_pair_map_fini(&b.merges);
    dk_bpe_scratch_fini(&scratch);
    free(word);
}

static void expect_nfc(const char *text, const char *want)
{
    char *out = NULL;
    size_t bytes = 0;

    cr_assert_eq(dk_nfc(text, strlen(text), &out, &bytes), 0);
    if (!out) {
        cr_expect_str_eq(text, want);
        return;
    }
    cr_expect(bytes == strlen(want) && memcmp(out, want, bytes) == 0, "\"%s\" gives \"%.*s\"", text, (int)bytes, out);
    free(out);
}

Test(nfc, composes_and_orders)
{
    expect_nfc("", "");
    expect_nfc("plain", "plain");
    expect_nfc("e\xCC\x81", "\xC3\xA9");
    expect_nfc("\xC3\xA9", "\xC3\xA9");
    expect_nfc("o\xCC\x82\xCC\xA3", "\xE1\xBB\x99");                    /* marks are put in order first */
    expect_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"); /* Hangul */
    expect_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* U+0958 is excluded from composition */
    expect_nfc("\xF0\x9D\x85\x9F", "\xF0\x9D\x85\x98\xF0\x9D\x85\xA5"); /* so is U+1D15F */
    expect_nfc("\xEF\xBF\xBD\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80");
}

/* The hang limit is the check: exchanging neighbours would need 10^11 steps for this. */
Test(nfc, a_long_run_of_marks_is_sorted, .timeout = 200)
{
    enum { PAIRS = 300000 };
    char *text = malloc(4 * PAIRS + 1), *out;
    size_t bytes;

    text[0] = 'x';
    for (size_t i = 0; i < PAIRS; i++)
        memcpy(text + 1 + 4 * i, "\xCC\x95\xCC\x96", 4); /* classes 232 and 220 */
    cr_assert_eq(dk_nfc(text, 4 * PAIRS + 1, &out, &bytes), 0);
    cr_assert_eq(bytes, 4 * PAIRS + 1);
    for (size_t i = 0; i < PAIRS; i++) {
        cr_assert_eq(memcmp(out + 1 + 2 * i, "\xCC\x96", 2), 0, "mark %zu", i);
        cr_assert_eq(memcmp(out + 1 + 2 * (PAIRS + i), "\xCC\x95", 2), 0, "mark %zu", i);
    }
    free(out);
    free(text);
}

static int add_word(void *ctx, const char *word, size_t bytes)
{
    char *to = ctx;

    snprintf(to + strlen(to), 200 - strlen(to), "[%.*s]", (int)bytes, word);
    return 0;
}

static void expect_words(struct dk_pretokenizer *p, const char *text, const char *want)
{
    struct dk_pretokenize_scratch scratch;
    char got[200] = "";

    cr_assert_eq(dk_pretokenize_scratch_init(&scratch, p), 0);
    cr_assert_eq(dk_pretokenize(p, &scratch, text, strlen(text), add_word, got), 0);
    cr_expect_str_eq(got, want);
    dk_pretokenize_scratch_fini(&scratch);
}

#define MVS "\xE1\xA0\x8E" /* U+180E, which is no white space to the reference */

/* Expected: what the tokenizers library gives for the same text. */
Test(pretokenize, behaviors)
{
    static const char text[] = "ab  cd" MVS " e12x\n\xC2\xBD"
                               "3 ";
    static const char *const want[] = {
        [DK_SPLIT_ISOLATED] = "[ab][ ][ ][cd" MVS "][ ][e12x][\n][\xC2\xBD"
                              "3][ ]",
        [DK_SPLIT_REMOVED] = "[ab][cd" MVS "][e12x][\xC2\xBD"
                             "3]",
        [DK_SPLIT_MERGED_WITH_PREVIOUS] = "[ab ][ ][cd" MVS " ][e12x\n][\xC2\xBD"
                                          "3 ]",
        [DK_SPLIT_MERGED_WITH_NEXT] = "[ab][ ][ cd" MVS "][ e12x][\n\xC2\xBD"
                                      "3][ ]",
        [DK_SPLIT_CONTIGUOUS] = "[ab][  ][cd" MVS "][ ][e12x][\n][\xC2\xBD"
                                "3][ ]",
    };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct dk_pretokenizer p = {
            .count = 2,
            .stages = {{.kind = DK_STAGE_SPLIT, .behavior = (enum dk_split_behavior)i}, {.kind = DK_STAGE_BYTES}}};

        cr_assert_eq(dk_pattern_compile("\\s", 2, "test", &p.stages[0].pattern, NULL), 0);
        expect_words(&p, text, want[i]);
        dk_pretokenizer_fini(&p);
    }
}

Test(pretokenize, digits)
{
    static const char text[] = "ab  cd e12x\n\xC2\xBD"
                               "3 ";
    struct dk_pretokenizer p = {.count = 2, .stages = {{.kind = DK_STAGE_DIGITS}, {.kind = DK_STAGE_BYTES}}};

    p.stages[0].behavior = DK_SPLIT_ISOLATED;
    expect_words(&p, text, "[ab  cd e][1][2][x\n][\xC2\xBD][3][ ]");
    p.stages[0].behavior = DK_SPLIT_CONTIGUOUS;
    expect_words(&p, text,
                 "[ab  cd e][12][x\n][\xC2\xBD"
                 "3][ ]");
}

Test(pretokenize, byte_level)
{
    struct dk_pretokenizer p = {.count = 2, .stages = {{.kind = DK_STAGE_DIGITS}, {.kind = DK_STAGE_BYTES}}};

    cr_assert_eq(dk_byte_level_pattern(&p.stages[1].pattern, NULL), 0);
    expect_words(&p, "a" MVS MVS " b" MVS, "[a][" MVS MVS "][ b][" MVS "]");
    p.stages[1].prefix_space = true;
    expect_words(&p, "ab 12c", "[ ab][ ][ 1][ 2][ c]");
    expect_words(&p, "a" MVS, "[ a][" MVS "]");
    dk_pretokenizer_fini(&p);
}

Test(pretokenize, hostile_text_ends_with_an_error)
{
    struct dk_pretokenizer p = {.count = 2, .stages = {{.kind = DK_STAGE_SPLIT}, {.kind = DK_STAGE_BYTES}}};
    struct dk_pretokenize_scratch scratch;
    char text[61], got[200] = "";

    memset(text, 'a', 60);
    text[60] = 'c';
    cr_assert_eq(dk_pattern_compile("(?:a+)+[bd]", 11, "test", &p.stages[0].pattern, NULL), 0);
    cr_assert_eq(dk_pretokenize_scratch_init(&scratch, &p), 0);
    cr_assert_eq(dk_pretokenize(&p, &scratch, text, 61, add_word, got), -E2BIG);
    dk_pretokenize_scratch_fini(&scratch);
    dk_pretokenizer_fini(&p);
}
