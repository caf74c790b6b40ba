/* SPDX-License-Identifier: Apache-2.0 */
/* Names of language models inside multimodal checkpoints, and shapes of other ranks than 2. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model_folder.h"

#define TENSOR(name, type, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static uint8_t *data;
static struct dk_checkpoint *ck;
static struct dk_err err;

static void end(void)
{
    dk_checkpoint_close(ck);
    free(data);
}

TestSuite(checkpoint_names, .fini = end);

static void open_header(const char *header, size_t data_bytes)
{
    size_t bytes;

    end();
    data = safetensors_make(header, data_bytes, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, "model.safetensors", &ck, &err), 0, "%s", err.text);
}

static void found_as(const char *name, const char *in_file)
{
    const struct dk_tensor *t = dk_checkpoint_find(ck, name);

    cr_assert(t, "%s", name);
    cr_expect_str_eq(t->name, in_file);
    cr_expect_eq(dk_checkpoint_get(ck, name, 1, 0, 0, &t, &err), 0, "%s", err.text);
    cr_expect_str_eq(t->name, in_file);
}

Test(checkpoint_names, plain_names_in_multimodal_files)
{
    open_header("{" TENSOR("model.language_model.norm.weight", "F32", "[1]", 0, 4) "," TENSOR("lm_head.weight", "F32",
                                                                                              "[1]", 4, 8) "}",
                8);
    found_as("model.norm.weight", "model.language_model.norm.weight");
    found_as("lm_head.weight", "lm_head.weight");
    found_as("model.language_model.norm.weight", "model.language_model.norm.weight");
    open_header("{" TENSOR("language_model.model.norm.weight", "F32", "[1]", 0,
                           4) "," TENSOR("language_model.lm_head.weight", "F32", "[1]", 4, 8) "}",
                8);
    found_as("model.norm.weight", "language_model.model.norm.weight");
    found_as("lm_head.weight", "language_model.lm_head.weight");
}

Test(checkpoint_names, the_plain_name_comes_first)
{
    open_header("{" TENSOR("model.language_model.a", "F32", "[1]", 0, 4) "," TENSOR("model.a", "F32", "[1]", 4, 8) "}",
                8);
    found_as("model.a", "model.a");
}

/* Only the start of a name is another one. */
Test(checkpoint_names, other_names_are_taken_as_they_are)
{
    open_header("{" TENSOR("model.language_model.a", "F32", "[1]", 0,
                           4) "," TENSOR("x.language_model.model.b", "F32", "[1]", 4,
                                         8) "," TENSOR("language_model.c", "F32", "[1]", 8, 12) "}",
                12);
    cr_expect_null(dk_checkpoint_find(ck, "a"));
    cr_expect_null(dk_checkpoint_find(ck, "xmodel.a"));
    cr_expect_null(dk_checkpoint_find(ck, "x.model.b"));
    cr_expect_null(dk_checkpoint_find(ck, "model.c"));
    cr_expect_null(dk_checkpoint_find(ck, "c"));
}

Test(checkpoint_names, a_name_that_is_too_long_is_not_there)
{
    char name[700];

    open_header("{" TENSOR("model.a", "F32", "[1]", 0, 4) "}", 4);
    memset(name, 'a', sizeof name - 1);
    memcpy(name, "model.", 6);
    name[sizeof name - 1] = 0;
    cr_expect_null(dk_checkpoint_find(ck, name));
}

/* A weight and its scales have the same prefix, and errors say the name in the file. */
Test(checkpoint_names, scales_of_a_nested_weight)
{
    const struct dk_tensor *w, *s;

    open_header("{" TENSOR("model.language_model.a.weight", "F8_E4M3", "[2,2]", 0,
                           4) "," TENSOR("model.language_model.a.weight_scale_inv", "F32", "[1,1]", 4, 8) "}",
                8);
    cr_assert_eq(dk_checkpoint_get_weight(ck, "model.a.weight", 2, 2, &w, &s, &err), 0, "%s", err.text);
    cr_expect_str_eq(s->name, "model.language_model.a.weight_scale_inv");
    cr_expect_eq(dk_checkpoint_get_weight(ck, "model.a.weight", 2, 3, &w, &s, &err), -EINVAL);
    expect_words(err.text, "'model.language_model.a.weight'|[2, 2]|[2, 3]");
    cr_expect_eq(dk_checkpoint_get_weight(ck, "model.b.weight", 2, 3, &w, &s, &err), -ENOENT);
    expect_words(err.text, "'model.b.weight'");
    open_header("{" TENSOR("model.language_model.a.weight", "F8_E4M3", "[2,2]", 0, 4) "}", 4);
    cr_expect_eq(dk_checkpoint_get_weight(ck, "model.a.weight", 2, 2, &w, &s, &err), -ENOENT);
    expect_words(err.text, "'model.language_model.a.weight'|'model.language_model.a.weight_scale_inv'");
}

static void shape_is(uint32_t rank, const uint64_t *shape, int rc, const char *words)
{
    const struct dk_tensor *t = (const void *)1;

    cr_expect_eq(dk_checkpoint_get_shape(ck, "conv", rank, shape, 0, &t, &err), rc, "%s", err.text);
    cr_expect_eq(t != NULL, rc == 0);
    if (rc < 0)
        expect_words(err.text, words);
}

Test(checkpoint_names, shapes_of_three_dimensions)
{
    open_header("{" TENSOR("conv", "BF16", "[6,1,4]", 0, 48) "," TENSOR("patch", "BF16", "[1,1,1,1,2]", 48, 52) "}",
                52);
    shape_is(3, (const uint64_t[]){6, 1, 4}, 0, NULL);
    shape_is(3, (const uint64_t[]){6, 1, 5}, -EINVAL, "'conv'|[6, 1, 4]|[6, 1, 5]");
    shape_is(3, (const uint64_t[]){6, 4, 1}, -EINVAL, "[6, 1, 4]|[6, 4, 1]");
    shape_is(2, (const uint64_t[]){6, 4}, -EINVAL, "[6, 1, 4]|[6, 4]");
    shape_is(2, (const uint64_t[]){6, 1}, -EINVAL, "[6, 1, 4]|[6, 1]");
    shape_is(1, (const uint64_t[]){24}, -EINVAL, "[6, 1, 4]|[24]");
    cr_expect_eq(dk_checkpoint_find(ck, "patch")->type, DK_DTYPE_COUNT);
}
