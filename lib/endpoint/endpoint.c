/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint/endpoint.h"

#include <string.h>

#define BURST 64u

int dk_endpoint_open(struct dk_endpoint *e, const struct dk_net_ops *ops, const struct dk_net_config *config,
                     struct dk_err *err)
{
    memset(e, 0, sizeof *e);
    e->ops = ops;
    return ops->open(config, &e->net, err);
}

int dk_endpoint_start(struct dk_endpoint *e, const struct dk_transport_config *config, struct dk_err *err)
{
    struct dk_transport *t;
    int rc = dk_transport_open(config, &t);

    if (rc < 0)
        return dk_err_set(err, rc, "transport: mtu %u, %u peers: %s", config->mtu, config->peers_max, strerror(-rc));
    dk_transport_close(e->transport);
    e->transport = t;
    return 0;
}

void dk_endpoint_close(struct dk_endpoint *e)
{
    dk_transport_close(e->transport);
    if (e->net)
        e->ops->close(e->net);
    memset(e, 0, sizeof *e);
}

static uint32_t frames_in(struct dk_endpoint *e, uint64_t now_us)
{
    struct dk_frame frames[BURST];
    uint32_t n = e->ops->recv(e->net, frames, BURST);

    for (uint32_t i = 0; i < n; i++) {
        if (e->transport)
            dk_transport_input(e->transport, frames[i].port, frames[i].data, frames[i].bytes, now_us);
        e->ops->frame_put(e->net, &frames[i]);
    }
    return n;
}

static uint32_t frames_out(struct dk_endpoint *e, uint64_t now_us)
{
    uint32_t n = 0;

    while (n < BURST) {
        struct dk_frame f;
        size_t bytes;

        if (e->ops->frame_get(e->net, &f) < 0)
            break;
        bytes = dk_transport_output(e->transport, f.data, f.bytes, &f.port, now_us);
        if (!bytes) {
            e->ops->frame_put(e->net, &f);
            break;
        }
        f.bytes = (uint32_t)bytes;
        e->ops->send(e->net, &f);
        n++;
    }
    e->ops->flush(e->net);
    return n;
}

bool dk_endpoint_poll(struct dk_endpoint *e, uint64_t now_us)
{
    uint32_t work = frames_in(e, now_us);

    if (e->transport)
        work += frames_out(e, now_us);
    return work > 0;
}

void dk_endpoint_wait(struct dk_endpoint *e, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    if (e->transport) {
        uint64_t own = dk_transport_deadline(e->transport);

        deadline_us = own < deadline_us ? own : deadline_us;
    }
    e->ops->wait(e->net, worked, now_us, deadline_us);
}

void dk_endpoint_wake(struct dk_endpoint *e)
{
    e->ops->wake(e->net);
}
