/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "transport/message_buffer.h"

Test(message_buffer, buffers_are_aligned_limited_and_used_again)
{
    struct dk_buffers b;
    uint32_t first, second;

    cr_assert_eq(dk_buffers_init(&b, 10000, 2), 0);
    first = dk_buffer_take(&b, 10000);
    second = dk_buffer_take(&b, 1);
    cr_assert(first != DK_BUFFER_NONE && second != DK_BUFFER_NONE && first != second);
    cr_assert_eq((uintptr_t)dk_buffer_data(&b, first) % 64, 0);
    memset(dk_buffer_data(&b, first), 1, 10000);
    memset(dk_buffer_data(&b, second), 2, 10000);
    cr_assert_eq(dk_buffer_data(&b, first)[9999], 1);
    cr_assert_eq(dk_buffer_take(&b, 1), DK_BUFFER_NONE);
    dk_buffer_put(&b, first);
    dk_buffer_put(&b, DK_BUFFER_NONE);
    cr_assert_eq(dk_buffer_take(&b, 1), first);
    dk_buffers_fini(&b);
}

Test(message_buffer, memory_of_many_long_messages_goes_back)
{
    struct dk_buffers b;
    uint32_t taken[4];
    size_t bytes = 40 << 20;

    cr_assert_eq(dk_buffers_init(&b, bytes, 4), 0);
    for (int i = 0; i < 4; i++) {
        taken[i] = dk_buffer_take(&b, bytes);
        dk_buffer_data(&b, taken[i])[bytes - 1] = 9;
    }
    for (int i = 0; i < 4; i++)
        dk_buffer_put(&b, taken[i]);
    cr_assert_eq(b.retained_bytes, bytes, "the first fits into what is retained, the others do not");
    cr_assert_eq(dk_buffer_data(&b, taken[0])[bytes - 1], 9);
    cr_assert_eq(dk_buffer_data(&b, taken[3])[bytes - 1], 0, "the system took the page back");
    cr_assert_eq(dk_buffer_take(&b, 1), taken[3]);
    cr_assert_eq(b.retained_bytes, bytes);
    dk_buffers_fini(&b);
}
