/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "endpoint/endpoint.h"

void dk_addr_to_wire(const struct dk_addr *from, uint32_t mtu, Dk__DataAddress *to)
{
    dk__data_address__init(to);
    to->instance = from->instance;
    to->mac.data = (uint8_t *)(uintptr_t)from->mac;
    to->mac.len = sizeof from->mac;
    to->ipv4 = from->ipv4;
    to->udp_port = from->udp_port;
    to->mtu = mtu;
}

bool dk_addr_from_wire(const Dk__DataAddress *from, struct dk_addr *to)
{
    if (!from || from->mac.len != sizeof to->mac || !from->udp_port || from->udp_port > UINT16_MAX || !from->instance ||
        !from->ipv4)
        return false;
    memcpy(to->mac, from->mac.data, sizeof to->mac);
    to->ipv4 = from->ipv4;
    to->udp_port = (uint16_t)from->udp_port;
    to->instance = from->instance;
    to->mtu = from->mtu;
    return true;
}

void dk_counters_to_wire(const struct dk_transport_counters *t, const struct dk_net_counters *n,
                         Dk__TransportCounters *to)
{
    dk__transport_counters__init(to);
#define SET(field, v) (to->has_##field = true, to->field = (v))
    SET(frames_sent, t->frames_sent);
    SET(frames_received, t->frames_received);
    SET(messages_sent, t->messages_sent);
    SET(messages_received, t->messages_received);
    SET(retransmitted, t->retransmitted + t->replayed);
    SET(duplicates, t->duplicates);
    SET(corrupt, t->corrupt);
    SET(reordered, t->reordered);
    SET(foreign_instance, t->stale_instance);
    SET(fault_dropped, n->fault_dropped);
    SET(fault_duplicated, n->fault_duplicated);
    SET(fault_reordered, n->fault_reordered);
    SET(fault_corrupted, n->fault_corrupted);
    SET(fault_delayed, n->fault_delayed);
#undef SET
}
