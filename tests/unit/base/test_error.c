/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/error.h"

Test(error, set)
{
    struct dk_err err = {0};

    cr_expect_eq(dk_err_set(&err, -ENOENT, "%s: line %d", "file", 3), -ENOENT);
    cr_expect_eq(err.rc, -ENOENT);
    cr_expect_str_eq(err.text, "file: line 3");
    cr_expect_eq(dk_err_set(NULL, -EIO, "nobody asks"), -EIO);
}

Test(error, prefix_adds_the_place)
{
    struct dk_err err = {0};

    dk_err_set(&err, -EINVAL, "100%% wrong");
    cr_expect_eq(dk_err_prefix(&err, "layer %d", 7), -EINVAL);
    cr_expect_eq(dk_err_prefix(&err, "model"), -EINVAL);
    cr_expect_str_eq(err.text, "model: layer 7: 100% wrong");
    cr_expect_eq(err.rc, -EINVAL);
    cr_expect_eq(dk_err_prefix(NULL, "x"), 0);
}

Test(error, long_texts_are_cut)
{
    char text[2 * sizeof((struct dk_err *)0)->text];
    struct dk_err err;

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    memset(&err, 0x55, sizeof err);
    dk_err_set(&err, -EINVAL, "%s", text);
    cr_expect_eq(strnlen(err.text, sizeof err.text), sizeof err.text - 1);
    memset(text, 'b', sizeof text - 1);
    cr_expect_eq(dk_err_prefix(&err, "%s", text), -EINVAL);
    cr_expect_eq(strnlen(err.text, sizeof err.text), sizeof err.text - 1);
    cr_expect_eq(err.text[0], 'b');
    cr_expect(strstr(err.text, ": aaa"), "a long place leaves room for what was wrong");
}
