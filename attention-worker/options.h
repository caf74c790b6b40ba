/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/error.h"
#include "net/net.h"

struct worker_options {
    const char *coordinator; /* URL */
    const char *name;
    const char *port; /* "vhost" or "af_packet" */
    const char *interface;
    const char *run_dir;
    const char *isa_name;
    const char *log_level;
    const char *net_fault;
    uint32_t threads;
    uint32_t udp_port;
    uint32_t dead_after_ms;
    uint64_t cache_mib; /* for keys and values; 0: what the plan needs */
    bool pin, busy_poll, help, version;

    enum dk_isa isa;
    enum dk_port_kind port_kind; /* VHOST or AF_PACKET */
    struct dk_net_faults faults;
};

int worker_options_parse(int argc, char **argv, struct worker_options *o, struct dk_err *err);
void worker_options_help(void);

#endif
