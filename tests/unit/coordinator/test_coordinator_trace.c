/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator says before a step how large its trace will be, the worker makes it: both must mean the same. */
#include "step_bench.h"

#include "coordinator/coordinator_internal.h"

#define TENSOR_HEAD_BYTES 96u /* what dk_trace_bytes counts for a tensor beside its data */

static const char *const models[] = {FIXTURES "/qwen3-tiny",           FIXTURES "/qwen3-fp8-tiny",
                                     FIXTURES "/qwen3-moe-fp8-tiny",   FIXTURES "/qwen3_5-fp8-tiny",
                                     FIXTURES "/qwen3_5_moe-fp8-tiny", FIXTURES "/deepseek_v3-fp8-tiny",
                                     FIXTURES "/deepseek_v32-fp8-tiny"};

/* count 0: all layers. */
static void check_size(struct bench *b, const uint32_t *layers, uint32_t count, uint32_t tokens)
{
    Dk__NextStepReply *step = cluster_step_new(&b->c, 1);
    Dk__StepSequence *q = cluster_step_add(step, 1, 0, b->prompt, tokens);
    uint64_t expected = dk_trace_bytes(&b->c.worker.model.config, layers, count, tokens), found = 0;
    Dk__StepResult *r;

    q->has_trace = q->trace = true;
    q->n_trace_layers = count;
    q->trace_layers = count ? malloc(count * sizeof *layers) : NULL;
    if (count)
        memcpy(q->trace_layers, layers, count * sizeof *layers);
    r = bench_run(b, step);
    cr_assert(!r->error && !r->sequences[0]->error);
    for (size_t i = 0; i < r->sequences[0]->n_trace; i++) {
        const Dk__TraceTensor *t = r->sequences[0]->trace[i];
        size_t head = dk__trace_tensor__get_packed_size(t) - t->data.len;

        cr_expect_leq(head + 6, TENSOR_HEAD_BYTES, "%s: %zu bytes beside the data", t->name, head);
        found += t->data.len + TENSOR_HEAD_BYTES;
    }
    cr_expect_eq(found, expected, "%s, %u of %u layers, %u tokens: %llu bytes came, %llu were expected", b->model,
                 count, bench_layers(b), tokens, (unsigned long long)found, (unsigned long long)expected);
    dk__step_result__free_unpacked(r, NULL);
}

Test(trace_size, the_worker_sends_what_the_coordinator_counts)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct bench b;

        bench_open(&b, models[i]);
        check_size(&b, NULL, 0, b.count);
        check_size(&b, NULL, 0, 1);
        for (uint32_t layer = 0; layer < bench_layers(&b); layer++)
            check_size(&b, &layer, 1, b.count - 1);
        check_size(&b, (const uint32_t[]){0, bench_layers(&b) - 1}, 2, b.count);
        bench_close(&b);
    }
}
