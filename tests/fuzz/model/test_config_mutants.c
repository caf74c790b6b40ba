/* SPDX-License-Identifier: Apache-2.0 */
/* How far the changes of json_mutate.h reach into each model type's code: enough are refused for a field of that
 * type, for many different ones, and enough are accepted, so that all the checks of what is accepted run. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_check.h"
#include "config_seeds.h"
#include "json_mutate.h"

#define MUTANTS     1500u /* of a model type */
#define REASONS_MAX 256u

static const struct {
    const char *type;
    uint32_t accepted_min, reasons_min; /* of MUTANTS; three quarters of what was counted */
} cases[] = {
    {"llama", 540, 19},        {"mistral", 640, 12},      {"qwen2", 650, 11},
    {"qwen3", 660, 20},        {"qwen3_moe", 690, 25},    {"qwen3_5", 800, 22},
    {"qwen3_5_text", 580, 27}, {"qwen3_5_moe", 790, 27},  {"qwen3_5_moe_text", 560, 30},
    {"deepseek_v3", 570, 36},  {"deepseek_v32", 560, 38},
};

struct counts {
    uint32_t json, typed, accepted; /* each among those before it */
    uint32_t reasons;               /* fields that were named in a refusal */
    uint64_t hashes[REASONS_MAX];
};

static const char *type_of(const json_t *doc)
{
    const char *type = json_string_value(json_object_get(doc, "model_type"));

    return type ? type : "";
}

/* "input: head_dim is 3; ..." counts as "input: head_dim". */
static void reason_count(struct counts *n, const char *text)
{
    const char *end = strstr(text, " is ");
    uint64_t hash = json_mutate_seed(text, end ? (size_t)(end - text) : strlen(text));

    for (uint32_t i = 0; i < n->reasons; i++)
        if (n->hashes[i] == hash)
            return;
    if (n->reasons < REASONS_MAX)
        n->hashes[n->reasons++] = hash;
}

static void mutant_count(const char *text, size_t bytes, const char *type, struct counts *n)
{
    struct dk_err err = {0};
    bool accepted = config_check(text, bytes, &err);
    json_t *doc = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, NULL);

    n->json += doc != NULL;
    if (doc && !strcmp(type_of(doc), type)) {
        n->typed++;
        n->accepted += accepted;
        if (!accepted)
            reason_count(n, err.text);
    }
    json_decref(doc);
}

static struct counts type_count(const struct config_seeds *all, const char *type)
{
    struct config_seeds own = {.count = 0};
    uint64_t state = json_mutate_seed(type, strlen(type));
    struct counts n = {0};

    for (size_t i = 0; i < all->count; i++)
        if (!strcmp(type_of(all->docs[i]), type))
            own.docs[own.count++] = all->docs[i];
    cr_assert_neq(own.count, 0, "no file of the corpus is %s", type);
    for (uint32_t i = 0; i < MUTANTS; i++) {
        const json_t *other = all->docs[json_mutate_random(&state) % all->count];
        size_t bytes;
        char *text = json_mutate(own.docs[i % own.count], other, &state, &bytes);

        cr_assert_not_null(text);
        mutant_count(text, bytes, type, &n);
        free(text);
    }
    return n;
}

Test(config_mutants, reach_every_model_type)
{
    struct config_seeds all;

    config_seeds_read(CONFIG_CORPUS, &all);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct counts n = type_count(&all, cases[i].type);

        printf("%s: %u of %u are JSON, %u of the type, %u accepted, refused for %u reasons\n", cases[i].type, n.json,
               MUTANTS, n.typed, n.accepted, n.reasons);
        cr_expect_geq(n.json, MUTANTS * 95 / 100, "%s: %u", cases[i].type, n.json);
        cr_expect_geq(n.typed, MUTANTS * 75 / 100, "%s: %u", cases[i].type, n.typed);
        cr_expect_geq(n.accepted, cases[i].accepted_min, "%s: %u", cases[i].type, n.accepted);
        cr_expect_geq(n.reasons, cases[i].reasons_min, "%s: %u", cases[i].type, n.reasons);
    }
    for (size_t i = 0; i < all.count; i++)
        json_decref(all.docs[i]);
}

/* The same seed gives the same documents: a failure can be repeated. */
Test(config_mutants, repeat)
{
    json_t *doc = json_pack("{s:i,s:{s:f},s:[s,s]}", "a", 4, "b", "c", 0.25, "d", "x", "y");
    uint64_t state[2] = {7, 7};
    uint32_t changed = 0;

    for (int i = 0; i < 200; i++) {
        size_t bytes[2];
        char *text[2] = {json_mutate(doc, doc, &state[0], &bytes[0]), json_mutate(doc, doc, &state[1], &bytes[1])};

        cr_assert_str_eq(text[0], text[1]);
        cr_assert_eq(bytes[0], bytes[1]);
        changed += strcmp(text[0], "{\"a\":4,\"b\":{\"c\":0.25},\"d\":[\"x\",\"y\"]}") != 0;
        free(text[0]);
        free(text[1]);
    }
    cr_expect_geq(changed, 100, "%u", changed);
    json_decref(doc);
}
