/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fragments.h"

#include <assert.h>
#include <string.h>

enum { RANGE = DK_RANGE_FRAGMENTS };
_Static_assert((RANGE & (RANGE - 1)) == 0, "positions in the ring are taken modulo a power of two");

static bool set_has(const struct dk_fragment_set *s, uint32_t i)
{
    return s->words[i % RANGE / 64] >> (i % 64) & 1;
}

static void set_add(struct dk_fragment_set *s, uint32_t i)
{
    s->words[i % RANGE / 64] |= UINT64_C(1) << (i % 64);
}

static void set_remove(struct dk_fragment_set *s, uint32_t i)
{
    s->words[i % RANGE / 64] &= ~(UINT64_C(1) << (i % 64));
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void dk_outgoing_init(struct dk_outgoing *o, const struct iovec *parts, int part_count, uint32_t bytes,
                      uint32_t fragment_bytes)
{
    assert(part_count >= 0 && part_count <= DK_PARTS_MAX && bytes > 0);
    for (int i = 0; i < part_count; i++)
        o->parts[i] = parts[i];
    o->part_count = part_count;
    o->bytes = bytes;
    o->fragment_bytes = fragment_bytes;
    o->count = dk_fragment_count(bytes, fragment_bytes);
    dk_outgoing_restart(o);
}

void dk_outgoing_restart(struct dk_outgoing *o)
{
    o->cumulative = o->next = o->in_flight = o->resend_count = 0;
    memset(&o->acked, 0, sizeof o->acked);
    memset(&o->resend, 0, sizeof o->resend);
}

void dk_outgoing_finish(struct dk_outgoing *o)
{
    o->cumulative = o->next = o->count;
    o->in_flight = o->resend_count = 0;
}

bool dk_outgoing_has_new(const struct dk_outgoing *o)
{
    return o->next < o->count && o->next < o->cumulative + RANGE;
}

uint32_t dk_outgoing_pop_resend(struct dk_outgoing *o)
{
    uint32_t i = o->cumulative;

    assert(o->resend_count > 0);
    while (i < o->next) {
        uint64_t word = o->resend.words[i % RANGE / 64] >> (i % 64);

        if (word) {
            i += (uint32_t)__builtin_ctzll(word);
            break;
        }
        i += 64 - i % 64;
    }
    assert(i < o->next);
    set_remove(&o->resend, i);
    o->resend_count--;
    return i;
}

static void mark_acked(struct dk_outgoing *o, uint32_t i)
{
    set_add(&o->acked, i);
    o->in_flight--;
    if (set_has(&o->resend, i)) {
        set_remove(&o->resend, i);
        o->resend_count--;
    }
}

static uint32_t mark_resend(struct dk_outgoing *o, uint32_t from, uint32_t below)
{
    uint32_t marked = 0;

    from = most(from, o->cumulative);
    below = least(below, o->next);
    for (uint32_t i = from; i < below; i++) {
        if (set_has(&o->acked, i) || set_has(&o->resend, i))
            continue;
        set_add(&o->resend, i);
        marked++;
    }
    o->resend_count += marked;
    return marked;
}

uint32_t dk_outgoing_ack(struct dk_outgoing *o, const struct dk_datagram *d, bool nack)
{
    uint32_t before = o->in_flight;

    /* An ack of what was never sent is a lie or comes from before a restart; what it says cannot be used. */
    if (d->highest > o->next)
        return 0;
    for (uint32_t i = o->cumulative; i < d->cumulative; i++)
        if (!set_has(&o->acked, i))
            mark_acked(o, i);
    for (uint32_t i = most(o->cumulative, d->cumulative); i < d->highest; i++) {
        uint32_t bit = i - d->cumulative;

        if (d->bitmap[bit / 8] >> (bit % 8) & 1 && !set_has(&o->acked, i))
            mark_acked(o, i);
    }
    while (o->cumulative < o->next && set_has(&o->acked, o->cumulative))
        set_remove(&o->acked, o->cumulative++);
    if (nack)
        mark_resend(o, d->nack_from, d->nack_below);
    return before - o->in_flight;
}

uint32_t dk_outgoing_resend_below(struct dk_outgoing *o, uint32_t below)
{
    return mark_resend(o, o->cumulative, below);
}

void dk_outgoing_resend_last(struct dk_outgoing *o)
{
    for (uint32_t i = o->next; i-- > o->cumulative;) {
        if (set_has(&o->acked, i))
            continue;
        mark_resend(o, i, i + 1);
        return;
    }
}

uint32_t dk_outgoing_copy(const struct dk_outgoing *o, uint32_t fragment, uint8_t *to)
{
    size_t offset = (size_t)fragment * o->fragment_bytes;
    uint32_t bytes = least(o->bytes - (uint32_t)offset, o->fragment_bytes), left = bytes;

    for (int i = 0; left > 0; i++) {
        const struct iovec *part = &o->parts[i];
        size_t n;

        assert(i < o->part_count);
        if (offset >= part->iov_len) {
            offset -= part->iov_len;
            continue;
        }
        n = part->iov_len - offset < left ? part->iov_len - offset : left;
        memcpy(to, (const uint8_t *)part->iov_base + offset, n);
        to += n;
        left -= (uint32_t)n;
        offset = 0;
    }
    return bytes;
}

enum dk_fragment_verdict dk_incoming_take(struct dk_incoming *in, const struct dk_datagram *d, bool *reordered)
{
    uint32_t i = d->fragment;

    *reordered = false;
    if (in->count == 0) {
        in->bytes = d->message_bytes;
        in->fragment_bytes = d->fragment_bytes;
        in->count = dk_fragment_count(d->message_bytes, d->fragment_bytes);
    } else if (in->bytes != d->message_bytes || in->fragment_bytes != d->fragment_bytes) {
        return DK_FRAGMENT_BAD;
    }
    if (i < in->cumulative || (i < in->highest && set_has(&in->got, i)))
        return DK_FRAGMENT_DUPLICATE;
    if (i - in->cumulative >= RANGE)
        return DK_FRAGMENT_BAD;
    *reordered = i > in->cumulative;
    set_add(&in->got, i);
    in->received++;
    in->highest = most(in->highest, i + 1);
    while (in->cumulative < in->highest && set_has(&in->got, in->cumulative))
        set_remove(&in->got, in->cumulative++);
    return DK_FRAGMENT_NEW;
}

bool dk_incoming_find_gap(struct dk_incoming *in)
{
    uint32_t from = most(in->gap_checked, in->cumulative);
    uint32_t below = in->highest > DK_REORDER_FRAGMENTS ? in->highest - DK_REORDER_FRAGMENTS : 0;
    bool found = false;

    for (uint32_t i = from; i < below && !found; i++)
        found = !set_has(&in->got, i);
    if (found) {
        in->nack_from = in->nack_below ? least(in->nack_from, from) : from;
        in->nack_below = most(in->nack_below, below);
    }
    in->gap_checked = most(in->gap_checked, below);
    return found;
}

void dk_incoming_ask(struct dk_incoming *in, uint32_t below)
{
    in->nack_from = 0;
    in->nack_below = most(in->nack_below, below);
    in->gap_checked = most(in->gap_checked, in->highest);
}

uint32_t dk_incoming_write_ack(struct dk_incoming *in, uint8_t *payload)
{
    struct dk_datagram d = {.cumulative = in->cumulative,
                            .highest = most(in->highest, in->cumulative),
                            .nack_from = in->nack_from,
                            .nack_below = in->nack_below};
    uint8_t *bitmap = dk_datagram_encode_ack(payload, &d);
    uint32_t bits = d.highest - d.cumulative;

    memset(bitmap, 0, (bits + 7) / 8);
    for (uint32_t i = 0; i < bits; i++)
        if (set_has(&in->got, in->cumulative + i))
            bitmap[i / 8] |= (uint8_t)(1u << (i % 8));
    in->nack_from = in->nack_below = 0;
    return DK_ACK_FIXED_BYTES + (bits + 7) / 8;
}
