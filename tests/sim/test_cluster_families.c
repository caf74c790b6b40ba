/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of models that keep more than keys and values, recurrent states or latents with index keys, when steps end
 * in the middle and when slots are used again. */
#include "step_bench.h"

static const struct family_case {
    const char *model;
    uint32_t duck; /* one that has a part of every layer */
} cases[] = {
    {FIXTURES "/qwen3_5_moe-fp8-tiny", 0}, /* experts 32 wide: nothing of them is on duck 1 */
    {FIXTURES "/deepseek_v32-fp8-tiny", 1},
};

#define EACH_CASE(c) for (const struct family_case *c = cases; c < cases + sizeof cases / sizeof *cases; c++)

/* A decode that ends at a layer, whose state of the layers before it has gone on. */
static void abort_decode(struct bench *b, uint32_t duck, uint32_t layer)
{
    struct bench_refusal refusal = {.duck = duck, .at = layer + 1};
    Dk__NextStepReply *step = cluster_step_new(&b->c, 1);
    Dk__StepResult *r;

    b->c.on_request = bench_refuse_once;
    b->c.ctx = &refusal;
    cluster_step_add(step, 1, b->count, b->golden, 1);
    r = bench_run(b, step);
    b->c.on_request = NULL;
    cr_assert_not_null(r->error, "%s, layer %u", b->model, layer);
    cr_assert_eq(refusal.seen, layer + 1);
    dk__step_result__free_unpacked(r, NULL);
}

Test(cluster_families, an_aborted_decode_cannot_be_sent_again)
{
    EACH_CASE(f)
    {
        struct bench b;

        bench_open(&b, f->model);
        bench_expect(&b, 2, 0, b.prompt, b.count, b.golden[0]); /* stands by */
        for (uint32_t layer = 0; layer < bench_layers(&b); layer++) {
            Dk__NextStepReply *step;
            Dk__StepResult *r;

            bench_expect(&b, 1, 0, b.prompt, b.count, b.golden[0]);
            abort_decode(&b, f->duck, layer);
            step = cluster_step_new(&b.c, 1); /* would apply the token to a state that has it already */
            cluster_step_add(step, 1, b.count, b.golden, 1);
            r = bench_run(&b, step);
            check_error(r, 0, DK__CODE__FAILED_PRECONDITION, "position");
            dk__step_result__free_unpacked(r, NULL);
            bench_expect(&b, 1, 0, b.prompt, b.count, b.golden[0]);
            bench_expect(&b, 1, b.count, b.golden, 1, b.golden[1]);
            bench_expect(&b, 2, b.count + layer, b.golden + layer, 1, b.golden[layer + 1]);
        }
        bench_close(&b);
    }
}

/* As many sequences as there are slots, at different positions; some end, and others get their slots. */
Test(cluster_families, slots_are_used_again_after_release)
{
    EACH_CASE(f)
    {
        uint32_t at[BENCH_SEQUENCES + 1] = {0};
        struct bench b;

        bench_open(&b, f->model);
        for (uint64_t id = 1; id <= BENCH_SEQUENCES; id++) {
            bench_expect(&b, id, 0, b.prompt, b.count, b.golden[0]);
            for (; at[id] < id; at[id]++)
                bench_expect(&b, id, b.count + at[id], b.golden + at[id], 1, b.golden[at[id] + 1]);
        }
        for (uint64_t id = 1; id <= BENCH_SEQUENCES; id += 2) {
            Dk__NextStepReply *step = cluster_step_new(&b.c, 1);
            Dk__StepResult *r;

            bench_release(step, id);
            cluster_step_add(step, 10 + id, 0, b.prompt, b.count);
            r = bench_run(&b, step);
            check_token(r, 0, b.golden[0]);
            dk__step_result__free_unpacked(r, NULL);
        }
        for (uint64_t id = 2; id <= BENCH_SEQUENCES; id += 2)
            bench_expect(&b, id, b.count + at[id], b.golden + at[id], 1, b.golden[at[id] + 1]);
        for (uint64_t id = 1; id <= BENCH_SEQUENCES; id += 2)
            for (uint32_t i = 0; i < 4; i++)
                bench_expect(&b, 10 + id, b.count + i, b.golden + i, 1, b.golden[i + 1]);
        bench_close(&b);
    }
}

/* Rows of several sequences in one step, decoded and new ones, as the scheduler mixes them. */
Test(cluster_families, decodes_beside_a_prompt)
{
    EACH_CASE(f)
    {
        struct bench b;

        bench_open(&b, f->model);
        bench_expect(&b, 1, 0, b.prompt, b.count, b.golden[0]);
        bench_expect(&b, 2, 0, b.prompt, b.count, b.golden[0]);
        bench_expect(&b, 2, b.count, b.golden, 1, b.golden[1]);
        for (uint32_t i = 0; i < 3; i++) {
            Dk__NextStepReply *step = cluster_step_new(&b.c, 3);
            Dk__StepResult *r;

            cluster_step_add(step, 2, b.count + 1 + i, b.golden + 1 + i, 1);
            cluster_step_add(step, 3, 0, b.prompt, b.count);
            cluster_step_add(step, 1, b.count + i, b.golden + i, 1);
            r = bench_run(&b, step);
            check_token(r, 0, b.golden[2 + i]);
            check_token(r, 1, b.golden[0]);
            check_token(r, 2, b.golden[1 + i]);
            dk__step_result__free_unpacked(r, NULL);
        }
        bench_close(&b);
    }
}
