/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl status and stats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"

static const struct common_settings defaults = {.name = "default"};

struct only_common {
    struct common_settings common;
};
static const struct dk_option options[] = {COMMON_OPTIONS(struct only_common), {0}};

static const char *enum_name(const ProtobufCEnumDescriptor *d, int value)
{
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(d, value);

    return v ? v->name : "?";
}

/* Sizes and rates in the units that people compare: MB = 1e6 bytes. */
static void print_node(const Dk__NodeStatus *n)
{
    const Dk__NodeInfo *i = n->node;

    printf("%-16s %-6s %-7s %3u cores %2u threads  RAM %6.1f of %6.1f GB free  %-6s", i->name,
           i->kind == DK__NODE_KIND__DUCK ? "duck" : "worker", n->alive ? "alive" : "SILENT", i->cores,
           i->kernel_threads, (double)i->ram_free_bytes / 1e9, (double)i->ram_total_bytes / 1e9, i->isa ? i->isa : "?");
    if (i->has_memory_bytes_per_s)
        printf("  memory %5.1f GB/s", (double)i->memory_bytes_per_s / 1e9);
    if (n->holding && i->kind == DK__NODE_KIND__DUCK)
        printf("  holds %8.2f MB in %u layers", (double)n->holding->bytes / 1e6, n->holding->layers);
    if (n->duck)
        printf("  rows %llu", (unsigned long long)n->duck->rows);
    putchar('\n');
}

/* Only models with an indexer have two modes. */
static const char *attention_text(const Dk__Plan *p)
{
    return !p->has_full_attention ? "" : p->full_attention ? ", attention full" : ", attention sparse";
}

static void print_status(const Dk__StatusReply *r)
{
    printf("state     %s%s%s\n", enum_name(&dk__cluster_state__descriptor, r->state), r->error ? ": " : "",
           r->error && r->error->text ? r->error->text : "");
    if (r->model_dir)
        printf("model     %s (%s)\n", r->model_dir, r->model_type ? r->model_type : "?");
    if (r->plan)
        printf("plan      epoch %llu, %zu ducks share each layer, multiple-of %u, context %u%s\n",
               (unsigned long long)r->plan->epoch, r->plan->n_slots, r->plan->multiple_of, r->plan->context,
               attention_text(r->plan));
    if (r->state == DK__CLUSTER_STATE__LOADING && r->load)
        printf("loading   %.1f of %.1f MB\n", (double)r->load->bytes_done / 1e6, (double)r->load->bytes_total / 1e6);
    printf("sequences %u running, %u queued\n", r->running, r->queued);
    for (size_t i = 0; i < r->n_nodes; i++)
        print_node(r->nodes[i]);
}

/* One row of the table; per operation: a fan-out to the ducks, one per layer and step. */
static void print_operation(const char *name, uint64_t sum_us, uint32_t operations)
{
    printf("  %-10s %10.1f us per layer operation\n", name, operations ? (double)sum_us / operations : 0);
}

static void print_timing(const char *title, const Dk__StepTiming *t)
{
    printf("%s: %u rows in %u layer operations, %.3f s\n", title, t->rows, t->layer_operations,
           (double)t->total_us / 1e6);
    print_operation("prepare", t->prepare_us, t->layer_operations);
    print_operation("send", t->send_us, t->layer_operations);
    print_operation("wait", t->wait_us, t->layer_operations);
    print_operation("meanwhile", t->meanwhile_us, t->layer_operations);
    print_operation("fetch", t->fetch_us, t->layer_operations);
    print_operation("duck max", t->duck_max_us, t->layer_operations);
    printf("  weight_stream %8.2f GB/s over all ducks while the slowest computes\n",
           t->duck_max_us ? (double)t->weight_bytes / 1e3 / (double)t->duck_max_us : 0);
}

static void print_stats(const Dk__StatsReply *r)
{
    printf("steps %llu, prompt tokens %llu, output tokens %llu, sequences done %llu, failed %llu\n",
           (unsigned long long)r->steps, (unsigned long long)r->prompt_tokens, (unsigned long long)r->output_tokens,
           (unsigned long long)r->sequences_done, (unsigned long long)r->sequences_failed);
    if (r->total)
        print_timing("all steps", r->total);
    if (r->last)
        print_timing("last step", r->last);
    for (size_t i = 0; i < r->n_nodes; i++) {
        const Dk__NodeStatus *n = r->nodes[i];
        const Dk__TransportCounters *t = n->transport;

        if (n->duck)
            printf("%-16s requests %llu  rows %llu  expert_rows %llu  refused %llu  weights %.2f MB  compute %.3f s\n",
                   n->node->name, (unsigned long long)n->duck->requests, (unsigned long long)n->duck->rows,
                   (unsigned long long)n->duck->expert_rows, (unsigned long long)n->duck->refused,
                   (double)n->duck->weight_bytes / 1e6, (double)n->duck->compute_us / 1e6);
        if (t)
            printf("%-16s frames sent %llu received %llu  retransmitted %llu  duplicates %llu  corrupt %llu  "
                   "reordered %llu  faults injected: dropped %llu duplicated %llu reordered %llu corrupted %llu "
                   "delayed %llu\n",
                   n->node->name, (unsigned long long)t->frames_sent, (unsigned long long)t->frames_received,
                   (unsigned long long)t->retransmitted, (unsigned long long)t->duplicates,
                   (unsigned long long)t->corrupt, (unsigned long long)t->reordered,
                   (unsigned long long)t->fault_dropped, (unsigned long long)t->fault_duplicated,
                   (unsigned long long)t->fault_reordered, (unsigned long long)t->fault_corrupted,
                   (unsigned long long)t->fault_delayed);
    }
}

/* Both verbs: one call without arguments, its reply printed. */
static int ask(const struct verb *self, int argc, char **argv, const char *method, const ProtobufCMessage *request,
               void (*print)(const ProtobufCMessage *reply))
{
    struct common_settings s;
    struct dk_rpc_client *client = NULL;
    ProtobufCMessage *m;
    struct dk_err err = {0};
    char *text;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    rc = target_open(&s, &client, &err);
    if (rc == 0)
        rc = client_call(client, method, request, 5000, &m, &err);
    dk_rpc_client_close(client);
    if (rc < 0)
        return verb_fail(s.json, &err);
    if (s.json) {
        text = dk_json_from_message(m, 0);
        puts(text ? text : "null");
        free(text);
    } else {
        print(m);
    }
    protobuf_c_message_free_unpacked(m, NULL);
    return EXIT_DONE;
}

static void print_status_message(const ProtobufCMessage *m)
{
    print_status((const Dk__StatusReply *)m);
}

static void print_stats_message(const ProtobufCMessage *m)
{
    print_stats((const Dk__StatsReply *)m);
}

static int run_status(const struct verb *self, int argc, char **argv)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;

    return ask(self, argc, argv, "GetStatus", &q.base, print_status_message);
}

static int run_stats(const struct verb *self, int argc, char **argv)
{
    Dk__StatsRequest q = DK__STATS_REQUEST__INIT;

    return ask(self, argc, argv, "GetStats", &q.base, print_stats_message);
}

const struct verb verb_status = {
    .name = "status",
    .arguments = "[OPTION ...]",
    .summary = "Tell what the cluster is doing, and what each node has and holds.",
    .options = options,
    .defaults = &defaults,
    .run = run_status,
};

const struct verb verb_stats = {
    .name = "stats",
    .arguments = "[OPTION ...]",
    .summary = "Tell where the time went: per layer operation, per duck, on the wire.",
    .options = options,
    .defaults = &defaults,
    .run = run_stats,
};
