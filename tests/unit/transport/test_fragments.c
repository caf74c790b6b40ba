/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "transport/fragments.h"

static struct dk_outgoing *outgoing_of(uint32_t count)
{
    static struct dk_outgoing one; /* a test has one at a time */
    struct dk_outgoing *o = &one;
    struct iovec part = {NULL, (size_t)count * 10};

    dk_outgoing_init(o, &part, 1, count * 10, 10);
    cr_assert_eq(o->count, count);
    return o;
}

static void send_new(struct dk_outgoing *o, uint32_t count)
{
    while (count--) {
        cr_assert(dk_outgoing_has_new(o));
        o->next++;
        o->in_flight++;
    }
}

static enum dk_fragment_verdict take(struct dk_incoming *in, uint32_t count, uint32_t fragment, bool *reordered)
{
    struct dk_datagram d = {.message_bytes = count * 10, .fragment_bytes = 10, .fragment = fragment};

    return dk_incoming_take(in, &d, reordered);
}

/* Carries the receiver's ack to the sender through its bytes. */
static uint32_t carry_ack(struct dk_incoming *in, struct dk_outgoing *o)
{
    uint8_t payload[DK_ACK_BYTES_MAX];
    struct dk_datagram d = {.cumulative = in->cumulative,
                            .highest = in->highest > in->cumulative ? in->highest : in->cumulative,
                            .nack_from = in->nack_from,
                            .nack_below = in->nack_below,
                            .bitmap = payload + DK_ACK_FIXED_BYTES};
    uint32_t bytes = dk_incoming_write_ack(in, payload);

    cr_assert_eq(bytes, DK_ACK_FIXED_BYTES + (d.highest - d.cumulative + 7) / 8);
    return dk_outgoing_ack(o, &d, true);
}

Test(fragments, copies_across_parts_of_any_length)
{
    char text[] = "the quick brown fox jumps over the lazy dog";
    uint32_t length = sizeof text - 1;

    for (uint32_t a = 0; a <= length; a += 3)
        for (uint32_t b = a; b <= length; b += 5)
            for (uint32_t size = 1; size <= length; size += 4) {
                struct iovec parts[4] = {{text, a}, {text + a, 0}, {text + a, b - a}, {text + b, length - b}};
                struct dk_outgoing *o = calloc(1, sizeof *o);
                uint8_t got[64];
                uint32_t bytes = 0;

                dk_outgoing_init(o, parts, 4, length, size);
                for (uint32_t i = 0; i < o->count; i++)
                    bytes += dk_outgoing_copy(o, i, got + bytes);
                cr_assert_eq(bytes, length);
                cr_assert(!memcmp(got, text, length), "parts at %u and %u, fragments of %u", a, b, size);
                free(o);
            }
}

Test(fragments, only_the_missing_ones_are_sent_again)
{
    struct dk_outgoing *o = outgoing_of(100);
    struct dk_incoming in = {0};
    bool reordered;

    send_new(o, 40);
    for (uint32_t i = 0; i < 40; i++)
        if (i != 3 && i != 17 && i != 18)
            take(&in, 100, i, &reordered);
    cr_assert(dk_incoming_find_gap(&in));
    cr_assert_not(dk_incoming_find_gap(&in), "a gap is asked for once");
    cr_assert_eq(carry_ack(&in, o), 37);
    cr_assert_eq(o->cumulative, 3);
    cr_assert_eq(o->in_flight, 3);
    cr_assert_eq(o->resend_count, 3);
    cr_assert_eq(dk_outgoing_pop_resend(o), 3);
    cr_assert_eq(dk_outgoing_pop_resend(o), 17);
    cr_assert_eq(dk_outgoing_pop_resend(o), 18);
    cr_assert_eq(o->resend_count, 0);
    cr_assert_eq(carry_ack(&in, o), 0, "the same ack again says nothing new");
    cr_assert_eq(o->resend_count, 0, "and asks for nothing");
}

Test(fragments, an_acknowledged_fragment_is_not_sent_again)
{
    struct dk_outgoing *o = outgoing_of(10);
    struct dk_incoming in = {0};
    bool reordered;

    send_new(o, 10);
    cr_assert_eq(dk_outgoing_resend_below(o, 8), 8);
    for (uint32_t i = 0; i < 10; i++)
        if (i != 6)
            take(&in, 10, i, &reordered);
    carry_ack(&in, o);
    cr_assert_eq(o->resend_count, 1);
    cr_assert_eq(dk_outgoing_pop_resend(o), 6);
    dk_outgoing_resend_last(o);
    cr_assert_eq(dk_outgoing_pop_resend(o), 6, "the last that is not acknowledged");
}

Test(fragments, a_gap_is_not_a_loss_until_three_later_ones_came)
{
    struct dk_incoming in = {0};
    bool reordered;

    for (uint32_t i = 1; i <= 3; i++) {
        take(&in, 10, i, &reordered);
        cr_assert(reordered);
        cr_assert_eq(dk_incoming_find_gap(&in), i == 3);
    }
}

Test(fragments, no_more_in_flight_than_the_ring_holds)
{
    struct dk_outgoing *o = outgoing_of(5000);
    struct dk_incoming in = {0};
    bool reordered;

    send_new(o, DK_RANGE_FRAGMENTS);
    cr_assert_not(dk_outgoing_has_new(o));
    for (uint32_t i = 1; i < DK_RANGE_FRAGMENTS; i++)
        cr_assert_eq(take(&in, 5000, i, &reordered), DK_FRAGMENT_NEW);
    cr_assert_eq(take(&in, 5000, DK_RANGE_FRAGMENTS, &reordered), DK_FRAGMENT_BAD);
    carry_ack(&in, o);
    cr_assert_not(dk_outgoing_has_new(o), "the first one holds all up");
    cr_assert_eq(take(&in, 5000, 0, &reordered), DK_FRAGMENT_NEW);
    cr_assert_eq(in.cumulative, DK_RANGE_FRAGMENTS);
    carry_ack(&in, o);
    cr_assert_eq(o->in_flight, 0);
    send_new(o, DK_RANGE_FRAGMENTS);
}

Test(fragments, duplicates_and_strangers_are_told_apart)
{
    struct dk_incoming in = {0};
    struct dk_datagram other = {.message_bytes = 99, .fragment_bytes = 10, .fragment = 2};
    bool reordered;

    cr_assert_eq(take(&in, 10, 0, &reordered), DK_FRAGMENT_NEW);
    cr_assert_not(reordered);
    cr_assert_eq(take(&in, 10, 0, &reordered), DK_FRAGMENT_DUPLICATE);
    cr_assert_eq(take(&in, 10, 5, &reordered), DK_FRAGMENT_NEW);
    cr_assert_eq(take(&in, 10, 5, &reordered), DK_FRAGMENT_DUPLICATE);
    cr_assert_eq(dk_incoming_take(&in, &other, &reordered), DK_FRAGMENT_BAD);
    cr_assert_eq(in.received, 2);
}

Test(fragments, acks_that_lie_change_nothing)
{
    struct dk_outgoing *o = outgoing_of(100);
    uint8_t ones[128];
    struct dk_datagram d = {.cumulative = 0, .highest = 20, .nack_below = UINT32_MAX, .bitmap = ones};

    memset(ones, 0xff, sizeof ones);
    send_new(o, 10);
    cr_assert_eq(dk_outgoing_ack(o, &d, true), 0, "it speaks of fragments that were never sent");
    cr_assert_eq(o->in_flight, 10);
    cr_assert_eq(o->resend_count, 0);
    d.highest = 10;
    d.bitmap = (const uint8_t[]){0, 0};
    cr_assert_eq(dk_outgoing_ack(o, &d, true), 0);
    cr_assert_eq(o->resend_count, 10, "only sent ones are sent again, whatever the range");
}
