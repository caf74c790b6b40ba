/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_OPTIONS_H
#define DK_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* A program's or verb's options as one table, from which parsing, --help and shell completion are made. */
enum dk_option_type {
    DK_OPT_FLAG,   /* bool; "--name" alone sets it */
    DK_OPT_TEXT,   /* const char *, points into argv */
    DK_OPT_U32,    /* uint32_t within [least, most] */
    DK_OPT_U64,    /* uint64_t within [least, most] */
    DK_OPT_DOUBLE, /* double within [least, most] */
    DK_OPT_LIST,   /* struct dk_option_list: may be given several times */
    DK_OPT_GROUP,  /* the options of a settings struct inside this one: see group */
};

struct dk_option_list {
    const char *items[32];
    uint32_t count;
};

struct dk_option {
    const char *name; /* without "--" */
    enum dk_option_type type;
    size_t offset;     /* of the field in the settings struct */
    const char *value; /* what --help calls the value: "N", "DIR", "on|off" */
    const char *help;
    double least, most;            /* numbers only */
    const char *choices;           /* "cpu|cuda": the only texts allowed, or NULL */
    bool *given;                   /* set when the option was on the command line, or NULL */
    const struct dk_option *group; /* GROUP: the table of the struct that lies at offset */
};

/* Reads "--name value", "--name=value" and flags into *settings, whose fields hold the defaults before.
 * positional: receives the other arguments in order (up to positional_most), *positional_count their number.
 * "--" ends options. options ends with a NULL name. -EINVAL with *err naming the option and what is allowed. */
int dk_options_parse(const struct dk_option *options, void *settings, int argc, char **argv, const char **positional,
                     int positional_most, int *positional_count, struct dk_err *err);

/* Prints one line per option, with the default taken from *defaults. */
void dk_options_help(const struct dk_option *options, const void *defaults, FILE *out);

#endif
