/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of weight files, good and bad in one way each. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model_folder.h"

#define THREE                                                               \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                \
    "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"   \
    "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[20,24]}," \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[12,20]}}  "

static int open_bytes(const uint8_t *p, size_t bytes, struct dk_checkpoint **out, struct dk_err *err)
{
    memset(err, 0, sizeof *err);
    return dk_checkpoint_from_memory(p, bytes, "weights.safetensors", out, err);
}

Test(safetensors, three_tensors)
{
    const struct dk_tensor *t;
    struct dk_checkpoint *c;
    struct dk_err err;
    size_t bytes;
    uint8_t *p = safetensors_make(THREE, 24, &bytes);

    cr_assert_eq(open_bytes(p, bytes, &c, &err), 0, "%s", err.text);
    cr_assert_eq(err.rc, 0);
    cr_assert_eq(dk_checkpoint_tensor_count(c), 3);
    for (uint32_t i = 0; i < 3; i++)
        cr_expect_eq(dk_checkpoint_tensor(c, i)->name[0], (char)('a' + i));
    cr_expect_null(dk_checkpoint_tensor(c, 3));
    t = dk_checkpoint_find(c, "b");
    cr_assert(t);
    cr_expect_eq(t->type, DK_F32);
    cr_expect_eq(t->rank, 2);
    cr_expect_eq(t->shape[0], 1);
    cr_expect_eq(t->shape[1], 2);
    cr_expect_eq(t->bytes, 8);
    cr_expect_eq(t->data - p, 8 + (ptrdiff_t)strlen(THREE) + 12);
    cr_expect_eq(t->data[0], (12 * 7 + 3) & 255);
    cr_expect_str_eq(t->file, "weights.safetensors");
    t = dk_checkpoint_find(c, "c");
    cr_assert(t);
    cr_expect_eq(t->type, DK_F8_E4M3);
    cr_expect_eq(t->data[3], (23 * 7 + 3) & 255);
    cr_expect_null(dk_checkpoint_find(c, "d"));
    cr_expect_null(dk_checkpoint_find(c, "__metadata__"));
    dk_checkpoint_close(c);
    free(p);
}

Test(safetensors, every_shorter_file_is_refused)
{
    struct dk_checkpoint *c;
    struct dk_err err;
    char size_text[32];
    size_t bytes;
    uint8_t *p = safetensors_make(THREE, 24, &bytes);

    snprintf(size_text, sizeof size_text, "%zu", bytes);
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *cut = malloc(n ? n : 1); /* exact, so that a sanitizer sees a read beyond the end */

        memcpy(cut, p, n);
        cr_expect_eq(open_bytes(cut, n, &c, &err), -EINVAL, "%zu bytes are accepted", n);
        cr_expect_null(c);
        expect_words(err.text, "weights.safetensors|download it again");
        if (n >= 8 + strlen(THREE)) {
            expect_words(err.text, "cut short");
            expect_words(err.text, size_text); /* how long it should be */
        }
        free(cut);
    }
    free(p);
}

Test(safetensors, longer_file_is_refused)
{
    struct dk_checkpoint *c;
    struct dk_err err;
    size_t bytes;
    uint8_t *p = safetensors_make(THREE, 25, &bytes);

    cr_expect_eq(open_bytes(p, bytes, &c, &err), -EINVAL);
    expect_words(err.text, "longer than its tensors");
    free(p);
}

static const struct bad_header {
    const char *header;
    size_t data_bytes;
    const char *words;
} bad_headers[] = {
    {"[]", 0, "not a safetensors file"},
    {"{", 0, "damaged header"},
    {"{}}", 0, "damaged header"},
    {"{\"a\":1}", 0, "'a'|dtype"},
    {"{\"a\":{}}", 0, "'a'|dtype"},
    {"{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'|dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'a'|shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "'a'|shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "'a'|dimension 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "'a'|dimension 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,\"1\"],\"data_offsets\":[0,4]}}", 4, "'a'|dimension 1"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4.0]}}", 4, "'a'|data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]}}", 4, "damaged header"},
    /* lengths that do not belong to the shape, with and without overflow */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "'a'|2 elements|F32|4 bytes"},
    {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'|1 elements|BF16|4 bytes"},
    {"{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'|1 elements|I64|4 bytes"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "'a'|3 elements|F4|1 bytes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "'a'|too many"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2305843009213693953,2],\"data_offsets\":[0,8]}}", 8, "'a'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4, "'a'"},
    /* places */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
     12, "'a'|'b'|overlap"},
    {"{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
     8, "'a'|'b'|overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "4 bytes before tensor 'a'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[5,9]}}",
     9, "1 bytes before tensor 'b'"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "cut short"},
    /* names */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate|\"a\""},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "name"},
    {"{\"a\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "name"},
    {"{\"a\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "damaged header"},
    {"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "damaged header"},
    {"{\"__metadata__\":3}", 0, "__metadata__"},
};

Test(safetensors, bad_headers)
{
    for (size_t i = 0; i < sizeof bad_headers / sizeof *bad_headers; i++) {
        struct dk_checkpoint *c;
        struct dk_err err;
        size_t bytes;
        uint8_t *p = safetensors_make(bad_headers[i].header, bad_headers[i].data_bytes, &bytes);

        cr_expect_eq(open_bytes(p, bytes, &c, &err), -EINVAL, "accepted: %s", bad_headers[i].header);
        cr_expect_eq(err.rc, -EINVAL);
        expect_words(err.text, "weights.safetensors");
        expect_words(err.text, bad_headers[i].words);
        dk_checkpoint_close(c);
        free(p);
    }
}

Test(safetensors, header_length_out_of_range)
{
    static const uint64_t lengths[] = {100000001, UINT32_MAX, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    struct dk_checkpoint *c;
    struct dk_err err;
    size_t bytes;
    uint8_t *p = safetensors_make(THREE, 24, &bytes);

    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        for (int i = 0; i < 8; i++)
            p[i] = (uint8_t)(lengths[k] >> 8 * i);
        cr_expect_eq(open_bytes(p, bytes, &c, &err), -EINVAL);
        expect_words(err.text, "not a safetensors file");
    }
    for (int i = 0; i < 8; i++)
        p[i] = i == 2; /* 65536: allowed, but more than there is */
    cr_expect_eq(open_bytes(p, bytes, &c, &err), -EINVAL);
    expect_words(err.text, "cut short|65544");
    free(p);
}

Test(safetensors, git_lfs_pointer)
{
    static const char text[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
    struct dk_checkpoint *c;
    struct dk_err err;

    cr_expect_eq(open_bytes((const uint8_t *)text, sizeof text - 1, &c, &err), -EINVAL);
    expect_words(err.text, "Git LFS pointer|git lfs pull");
}

Test(safetensors, deep_nesting_is_an_error_and_no_crash)
{
    size_t depth = 200000, bytes;
    char *header = malloc(depth + 16);
    struct dk_checkpoint *c;
    struct dk_err err;
    uint8_t *p;

    strcpy(header, "{\"a\":");
    memset(header + 5, '[', depth);
    header[5 + depth] = 0;
    p = safetensors_make(header, 0, &bytes);
    cr_expect_eq(open_bytes(p, bytes, &c, &err), -EINVAL);
    free(p);
    free(header);
}

Test(safetensors, odd_but_allowed)
{
    /* no tensors; empty tensors; a number; a type that is not known yet; rank 5; other fields */
    static const char header[] = "{\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                                 "\"number\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":[1]},"
                                 "\"new\":{\"dtype\":\"F2\",\"shape\":[3],\"data_offsets\":[4,5]},"
                                 "\"half\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[5,6]},"
                                 "\"five\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1],\"data_offsets\":[6,8]},"
                                 "\"last\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}";
    const struct dk_tensor *t;
    struct dk_checkpoint *c;
    struct dk_err err;
    size_t bytes;
    uint8_t *p = safetensors_make("{}", 0, &bytes);

    cr_expect_eq(open_bytes(p, bytes, &c, &err), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_tensor_count(c), 0);
    dk_checkpoint_close(c);
    free(p);
    p = safetensors_make(header, 8, &bytes);
    cr_assert_eq(open_bytes(p, bytes, &c, &err), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_tensor_count(c), 6);
    cr_expect_eq(dk_checkpoint_find(c, "number")->rank, 0);
    cr_expect_eq(dk_checkpoint_find(c, "number")->bytes, 4);
    cr_expect_eq(dk_checkpoint_find(c, "new")->type, DK_DTYPE_COUNT);
    cr_expect_eq(dk_checkpoint_find(c, "half")->type, DK_DTYPE_COUNT);
    cr_expect_eq(dk_checkpoint_get(c, "new", 3, 0, 1, &t, &err), -ENOTSUP);
    expect_words(err.text, "weights.safetensors|'new'|F2");
    cr_expect_eq(dk_checkpoint_get(c, "five", 1, 1, 1, &t, &err), -ENOTSUP);
    expect_words(err.text, "'five'|rank 5");
    dk_checkpoint_close(c);
    free(p);
}
