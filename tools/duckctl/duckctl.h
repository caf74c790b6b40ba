/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_H
#define DUCKCTL_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/options.h"
#include "rpc/rpc.h"
#include "wire/wire.h"

/* Exit codes of every verb. */
enum exit_code {
    EXIT_DONE = 0,
    EXIT_REFUSED = 1,     /* the cluster said no, or the work failed */
    EXIT_USAGE = 2,       /* wrong options or arguments */
    EXIT_UNREACHABLE = 3, /* no coordinator answers */
    EXIT_INTERRUPTED = 130
};

/* Options that every verb has; each verb's settings begin with these. */
struct common_settings {
    const char *name;        /* local cluster */
    const char *coordinator; /* URL; wins over name */
    bool json, help;
};
#define COMMON_OPTIONS(type)                                                                                    \
    {                                                                                                           \
        "name",                                                                                                 \
        DK_OPT_TEXT,                                                                                            \
        offsetof(type, common.name),                                                                            \
        "NAME",                                                                                                 \
        "cluster on this host, made by `duckctl local up`",                                                     \
        0,                                                                                                      \
        0,                                                                                                      \
        NULL,                                                                                                   \
        NULL},                                                                                                  \
        {"coordinator",                                                                                         \
         DK_OPT_TEXT,                                                                                           \
         offsetof(type, common.coordinator),                                                                    \
         "URL",                                                                                                 \
         "coordinator of any other cluster, as tcp://host:7717; wins over --name",                              \
         0,                                                                                                     \
         0,                                                                                                     \
         NULL,                                                                                                  \
         NULL},                                                                                                 \
        {"json", DK_OPT_FLAG, offsetof(type, common.json), NULL, "print one JSON object instead of text", 0, 0, \
         NULL,   NULL},                                                                                         \
    {                                                                                                           \
        "help", DK_OPT_FLAG, offsetof(type, common.help), NULL, "print this help", 0, 0, NULL, NULL             \
    }
#define COMMON_DEFAULTS .common = {.name = "default"}

/* A verb: `duckctl VERB ...`. run gets the arguments after the verb and returns an exit code. */
struct verb {
    const char *group; /* "local" or NULL */
    const char *name;
    const char *arguments; /* for the usage line */
    const char *summary;
    const struct dk_option *options;
    int (*run)(const struct verb *self, int argc, char **argv);
    const char *details; /* more help, may be NULL */
    const void *defaults;
};

extern const struct verb verb_local_up, verb_local_down, verb_local_list, verb_status, verb_stats, verb_load,
    verb_generate, verb_score, verb_inspect, verb_tokenize, verb_detokenize, verb_call, verb_describe, verb_completion;
extern const struct verb *const verbs[]; /* NULL-terminated */

/* Copies defaults, reads the options, handles --help. Returns -1 to go on, else the exit code to return at once. */
int verb_begin(const struct verb *v, void *settings, size_t settings_bytes, int argc, char **argv,
               const char **positional, int positional_most, int *positional_count);
/* rc of an error in the arguments that the option table cannot see: verb_fail makes it EXIT_USAGE. */
#define USAGE_ERROR (-EBADR)
/* Prints "duckctl: text" to stderr (or {"error": ...} to stdout with json) and returns the exit code for rc. */
int verb_fail(bool json, const struct dk_err *err);
/* Ends a usage error: prints the text and where help is, or {"error": ...} if --json is among the arguments. */
int verb_usage(const struct verb *v, const char *text);
/* Whether --json is among the arguments, even if others are wrong. */
bool json_asked(int argc, char **argv);
/* An argument that must be text: USAGE_ERROR if it is not UTF-8. */
int text_check(const char *what, const char *text, struct dk_err *err);
void print_json(json_t *value); /* one line, frees it */

/* Connects to the coordinator that the common settings name, and sees that it answers; from here on Ctrl-C ends calls,
 * not the process. *client: NULL on failure. */
int target_open(const struct common_settings *c, struct dk_rpc_client **client, struct dk_err *err);

/* A call; *reply is freed by protobuf_c_message_free_unpacked. What dk_rpc_call returns, or -EINTR after Ctrl-C: the
 * request may have reached the coordinator. client_call: a method of the Client service. */
int service_call(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                 const ProtobufCMessage *request, uint32_t timeout_ms, ProtobufCMessage **reply, struct dk_err *err);
int client_call(struct dk_rpc_client *c, const char *method, const ProtobufCMessage *request, uint32_t timeout_ms,
                ProtobufCMessage **reply, struct dk_err *err);

/* The attention mode of `load` and `local up`, from their options. A text for verb_usage(), or NULL. */
const char *attention_set(Dk__LoadRequest *q, const char *attention, bool allow_full);
#define ATTENTION_OPTIONS(type)                                                                     \
    {"attention",                                                                                   \
     DK_OPT_TEXT,                                                                                   \
     offsetof(type, attention),                                                                     \
     "MODE",                                                                                        \
     "of models with an indexer: the positions that it selects, or all",                            \
     0,                                                                                             \
     0,                                                                                             \
     "sparse|full",                                                                                 \
     NULL},                                                                                         \
    {                                                                                               \
        "allow-full", DK_OPT_FLAG, offsetof(type, allow_full), NULL,                                \
            "--attention full also beyond the positions that the indexer selects", 0, 0, NULL, NULL \
    }

/* Waits until the cluster is READY or FAILED, showing progress on stderr unless quiet. alive (may be NULL) is asked
 * between polls; a negative result ends the wait. 0; -EINTR; otherwise err. */
int wait_until_ready(struct dk_rpc_client *c, bool quiet, int (*alive)(void *ctx, struct dk_err *err), void *ctx,
                     struct dk_err *err);

/* Set by SIGINT and SIGTERM once catch_interrupts was called. Atomic: a signal's handler may run on any thread. */
extern atomic_int interrupted;
void catch_interrupts(void);

#endif
