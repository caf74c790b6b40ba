/* SPDX-License-Identifier: Apache-2.0 */
#include "transport_rig.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct dk_addr rig_address(uint32_t i)
{
    return (struct dk_addr){.mac = {2, 0, 0, 0, 1, (uint8_t)i},
                            .ipv4 = 0x0a000001 + i,
                            .udp_port = (uint16_t)(7000 + i),
                            .instance = 100 + i};
}

static void wire_pass(void *ctx, struct dk_frame *f)
{
    struct rig *r = ctx;
    struct rig_wire *w = &r->wire[(r->wire_at + r->wire_count++) % RIG_FRAMES_MAX];

    w->frame = (uint32_t)(uintptr_t)f->handle;
    w->bytes = f->bytes;
    w->to = f->port;
    w->due_us = r->now_us + RIG_DELAY_US;
    r->frames++;
}

static void wire_drop(void *ctx, struct dk_frame *f)
{
    struct rig *r = ctx;

    r->free[r->free_count++] = (uint32_t)(uintptr_t)f->handle;
}

static int frame_take(struct rig *r, struct dk_frame *f)
{
    uint32_t i;

    if (r->free_count == 0)
        return -EAGAIN;
    i = r->free[--r->free_count];
    f->handle = (void *)(uintptr_t)i;
    f->data = r->pool + (size_t)i * RIG_FRAME_BYTES;
    f->bytes = RIG_FRAME_BYTES;
    return 0;
}

static int wire_copy(void *ctx, const struct dk_frame *from, struct dk_frame *to)
{
    if (frame_take(ctx, to) < 0)
        return -EAGAIN;
    memcpy(to->data, from->data, from->bytes);
    to->bytes = from->bytes;
    to->port = from->port;
    return 0;
}

static const struct dk_fault_ops wire_ops = {wire_pass, wire_drop, wire_copy};

void rig_init(struct rig *r, const struct dk_net_faults *faults)
{
    static const struct dk_net_faults none;

    memset(r, 0, sizeof *r);
    r->now_us = 1000000;
    r->pool = malloc((size_t)RIG_FRAMES_MAX * RIG_FRAME_BYTES);
    assert(r->pool);
    for (uint32_t i = 0; i < RIG_FRAMES_MAX; i++)
        r->free[r->free_count++] = RIG_FRAMES_MAX - 1 - i;
    dk_faults_init(&r->injector, faults ? faults : &none, &r->faults, &wire_ops, r);
}

void rig_fini(struct rig *r)
{
    dk_faults_fini(&r->injector);
    for (uint32_t i = 0; i < r->count; i++)
        dk_transport_close(r->ends[i]);
    free(r->pool);
}

void rig_add(struct rig *r, struct dk_transport_config *config)
{
    int rc;

    config->own = r->addresses[r->count] = rig_address(r->count);
    rc = dk_transport_open(config, &r->ends[r->count]);
    assert(rc == 0);
    (void)rc;
    r->count++;
}

void rig_join(struct rig *r, uint32_t a, uint32_t b, uint32_t *peer_of_a, uint32_t *peer_of_b)
{
    int rc = dk_transport_peer_add(r->ends[a], &r->addresses[b], b, peer_of_a);

    rc += dk_transport_peer_add(r->ends[b], &r->addresses[a], a, peer_of_b);
    assert(rc == 0);
    (void)rc;
}

void rig_send(struct rig *r, uint32_t i)
{
    struct dk_frame f;
    size_t bytes;

    while (frame_take(r, &f) == 0) {
        bytes = dk_transport_output(r->ends[i], f.data, f.bytes, &f.port, r->now_us);
        f.bytes = (uint32_t)bytes;
        if (bytes == 0 || (r->filter && !r->filter(r->ctx, i, f.port, f.data, f.bytes))) {
            wire_drop(r, &f);
            if (bytes == 0)
                return;
            continue;
        }
        dk_faults_send(&r->injector, &f, r->now_us);
    }
    r->overflow++;
}

static void events_hand_out(struct rig *r, uint32_t i)
{
    struct dk_transport_event event;

    for (;;) {
        dk_transport_event(r->ends[i], &event);
        if (event.type == DK_EVENT_NONE)
            return;
        if (r->on_event)
            r->on_event(r->ctx, r, i, &event);
        else
            dk_transport_event_done(r->ends[i], &event);
    }
}

bool rig_step(struct rig *r)
{
    uint64_t next_us = UINT64_MAX, deadline_us;

    for (uint32_t i = 0; i < r->count; i++) {
        rig_send(r, i);
        events_hand_out(r, i);
        deadline_us = dk_transport_deadline(r->ends[i]);
        next_us = deadline_us < next_us ? deadline_us : next_us;
    }
    deadline_us = dk_faults_deadline(&r->injector);
    next_us = deadline_us < next_us ? deadline_us : next_us;
    if (r->wire_count > 0 && r->wire[r->wire_at].due_us < next_us)
        next_us = r->wire[r->wire_at].due_us;
    if (next_us == UINT64_MAX)
        return false;
    if (next_us > r->now_us)
        r->now_us = next_us;
    dk_faults_poll(&r->injector, r->now_us);
    while (r->wire_count > 0 && r->wire[r->wire_at].due_us <= r->now_us) {
        struct rig_wire *w = &r->wire[r->wire_at];

        r->wire_at = (r->wire_at + 1) % RIG_FRAMES_MAX;
        r->wire_count--;
        if (w->to < r->count)
            dk_transport_input(r->ends[w->to], 0, r->pool + (size_t)w->frame * RIG_FRAME_BYTES, w->bytes, r->now_us);
        r->free[r->free_count++] = w->frame;
    }
    for (uint32_t i = 0; i < r->count; i++)
        events_hand_out(r, i);
    return true;
}

void rig_run(struct rig *r, const bool *stop, uint64_t for_us)
{
    uint64_t end_us = r->now_us + for_us;

    while (!(stop && *stop) && r->now_us < end_us && rig_step(r))
        ;
}
