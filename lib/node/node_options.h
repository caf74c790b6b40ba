/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NODE_OPTIONS_H
#define DK_NODE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "net/net.h"

/* Options that every node of the data plane has (attention-worker and duck-firmware). A program's settings struct has
 * one of these named `node`, and its table begins with DK_NODE_OPTIONS. */
struct dk_node_options {
    const char *coordinator; /* URL */
    const char *name;
    const char *port;      /* "vhost" or "af_packet" */
    const char *interface; /* af_packet */
    const char *run_dir;
    const char *isa_name;
    const char *log_level;
    const char *net_fault;
    uint32_t threads; /* of the kernels; at least 1 after the check */
    uint32_t udp_port;
    uint32_t dead_after_ms;
    bool pin, busy_poll, help, version;

    /* made by dk_node_options_check */
    enum dk_isa isa;
    enum dk_port_kind port_kind;
    enum dk_log_level log;
    struct dk_net_faults faults;
};

#define DK_NODE_DEFAULTS                                                                                   \
    {                                                                                                      \
        .coordinator = "tcp://127.0.0.1:7717", .port = "af_packet", .run_dir = "/tmp", .isa_name = "auto", \
        .log_level = "info", .udp_port = 7717, .dead_after_ms = 5000                                       \
    }

/* Their table, over a struct dk_node_options. */
extern const struct dk_option dk_node_option_table[];
#define DK_NODE_OPTIONS(Type)                                                                               \
    {                                                                                                       \
        .name = "node", .type = DK_OPT_GROUP, .offset = offsetof(Type, node), .group = dk_node_option_table \
    }

/* Checks what the table cannot, and fills in what follows. vhost_kind: what --port vhost is on this side. -EINVAL: err
 * names the option. */
int dk_node_options_check(struct dk_node_options *o, enum dk_port_kind vhost_kind, struct dk_err *err);

#endif
