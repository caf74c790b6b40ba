/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_OPTIONS_H
#define DUCK_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/error.h"
#include "net/net.h"

struct duck_options {
    const char *coordinator; /* URL */
    const char *name;
    const char *port;      /* "vhost" or "af_packet" */
    const char *interface; /* af_packet */
    const char *run_dir;
    const char *isa_name;
    const char *log_level;
    const char *net_fault;
    uint32_t threads;
    uint32_t udp_port;
    uint32_t dead_after_ms;
    uint64_t reserve_mib; /* RAM that weights never take */
    bool pin, busy_poll, help, version;

    /* made by duck_options_parse */
    enum dk_isa isa;
    enum dk_port_kind port_kind;
    struct dk_net_faults faults;
};

/* Reads the command line and checks it. -EINVAL: *err says which option and what it takes. */
int duck_options_parse(int argc, char **argv, struct duck_options *o, struct dk_err *err);
void duck_options_help(void);

#endif
