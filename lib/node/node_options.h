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

#define DK_NODE_FIELD(Type, Field) offsetof(Type, node.Field)
#define DK_NODE_OPTIONS(Type)                                                                                            \
    {"coordinator", DK_OPT_TEXT, DK_NODE_FIELD(Type, coordinator), "URL", "where the coordinator listens", 0, 0,         \
     NULL,          NULL},                                                                                               \
        {"name",                                                                                                         \
         DK_OPT_TEXT,                                                                                                    \
         DK_NODE_FIELD(Type, name),                                                                                      \
         "NAME",                                                                                                         \
         "this node's name in the cluster; the host name if absent",                                                     \
         0,                                                                                                              \
         0,                                                                                                              \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"threads", DK_OPT_U32, DK_NODE_FIELD(Type, threads), "N", "kernel threads; all CPUs if 0 or absent", 0, 256,    \
         NULL,      NULL},                                                                                               \
        {"pin", DK_OPT_FLAG, DK_NODE_FIELD(Type, pin), NULL, "keep each kernel thread on its own CPU", 0, 0,             \
         NULL,  NULL},                                                                                                   \
        {"isa", DK_OPT_TEXT, DK_NODE_FIELD(Type, isa_name), "NAME", "kernels to use",                                    \
         0,     0,           "auto|ref|avx2|avx512",        NULL},                                                       \
        {"port", DK_OPT_TEXT, DK_NODE_FIELD(Type, port), "KIND", "data-plane port", 0, 0, "vhost|af_packet", NULL},      \
        {"interface", DK_OPT_TEXT, DK_NODE_FIELD(Type, interface), "IF", "network interface for --port af_packet", 0, 0, \
         NULL,        NULL},                                                                                             \
        {"udp-port",                                                                                                     \
         DK_OPT_U32,                                                                                                     \
         DK_NODE_FIELD(Type, udp_port),                                                                                  \
         "PORT",                                                                                                         \
         "first UDP port to try for the data plane",                                                                     \
         1,                                                                                                              \
         65000,                                                                                                          \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"run-dir",                                                                                                      \
         DK_OPT_TEXT,                                                                                                    \
         DK_NODE_FIELD(Type, run_dir),                                                                                   \
         "DIR",                                                                                                          \
         "where run-time files may be made; one per cluster with --port vhost",                                          \
         0,                                                                                                              \
         0,                                                                                                              \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"dead-after-ms",                                                                                                \
         DK_OPT_U32,                                                                                                     \
         DK_NODE_FIELD(Type, dead_after_ms),                                                                             \
         "MS",                                                                                                           \
         "silence after which a peer counts as dead",                                                                    \
         100,                                                                                                            \
         600000,                                                                                                         \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"busy-poll",                                                                                                    \
         DK_OPT_FLAG,                                                                                                    \
         DK_NODE_FIELD(Type, busy_poll),                                                                                 \
         NULL,                                                                                                           \
         "never sleep while waiting for frames (dedicated cores)",                                                       \
         0,                                                                                                              \
         0,                                                                                                              \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"net-fault",                                                                                                    \
         DK_OPT_TEXT,                                                                                                    \
         DK_NODE_FIELD(Type, net_fault),                                                                                 \
         "SPEC",                                                                                                         \
         "inject faults on sending, as drop=0.01,dup=0.01,seed=1",                                                       \
         0,                                                                                                              \
         0,                                                                                                              \
         NULL,                                                                                                           \
         NULL},                                                                                                          \
        {"log-level", DK_OPT_TEXT, DK_NODE_FIELD(Type, log_level), "LEVEL", "how much to log",                           \
         0,           0,           "error|warn|info|debug",        NULL},                                                \
        {"version", DK_OPT_FLAG, DK_NODE_FIELD(Type, version), NULL, "print the version and end", 0, 0, NULL, NULL},     \
    {                                                                                                                    \
        "help", DK_OPT_FLAG, DK_NODE_FIELD(Type, help), NULL, "print this and end", 0, 0, NULL, NULL                     \
    }

/* Checks what the table cannot, and fills in what follows. vhost_kind: what --port vhost is on this side. -EINVAL: err
 * names the option. */
int dk_node_options_check(struct dk_node_options *o, enum dk_port_kind vhost_kind, struct dk_err *err);

#endif
