/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse and full attention of models with an indexer. */
#include "coord_fixture.h"

static struct fx fx;

static void start(void)
{
    fx_init(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(attention, .init = start, .fini = stop);

struct mode_load {
    bool full, allow;
    uint32_t context;
};

static void load_mode(struct mode_load m, struct answer *a)
{
    Dk__LoadRequest q = DK__LOAD_REQUEST__INIT;

    q.model_dir = (char *)"/models/bytes";
    q.has_attention = true;
    q.attention = m.full ? DK__ATTENTION_MODE__FULL : DK__ATTENTION_MODE__SPARSE;
    q.has_allow_full = q.allow_full = m.allow;
    q.has_context = m.context > 0;
    q.context = m.context;
    fx_call(&fx, &q, a);
}

static void assert_mode(struct mode_load m, uint32_t context)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    struct answer a;
    const Dk__Plan *p;

    load_mode(m, &a);
    FX_REPLY(&a, Dk__LoadReply);
    fx_clear(&a);
    fx_call(&fx, &q, &a);
    p = FX_REPLY(&a, Dk__StatusReply)->plan;
    cr_assert(p->has_full_attention);
    cr_assert_eq(p->full_attention, m.full);
    cr_assert_eq(p->context, context, "%u, not %u", p->context, context);
    fx_clear(&a);
}

Test(attention, full_attention_ends_where_the_indexer_begins_to_select)
{
    struct answer a;

    fx.index_top_k = 100;
    fx_open(&fx);
    fx_all_beat(&fx);
    assert_mode((struct mode_load){.full = false}, FX_CONTEXT);
    assert_mode((struct mode_load){.full = false, .context = 200}, 200);
    assert_mode((struct mode_load){.full = true}, 100);
    assert_mode((struct mode_load){.full = true, .context = 100}, 100);
    assert_mode((struct mode_load){.full = true, .context = 30}, 30);
    assert_mode((struct mode_load){.full = true, .allow = true}, FX_CONTEXT);
    assert_mode((struct mode_load){.full = true, .allow = true, .context = 101}, 101);
    load_mode((struct mode_load){.full = true, .context = 101}, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT,
                     "attention mode 'full' ends at index_topk = 100 positions, because beyond them the model was "
                     "trained with the indexer's selection; give --allow-full, --attention sparse or --context 100");
    load_mode((struct mode_load){.full = true, .context = FX_CONTEXT + 1}, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "which is what the model can do");
    load_mode((struct mode_load){.allow = true}, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "allow_full");
    cr_assert_eq(fx.c->plan->context, 101u, "the plan of before goes on");
}

Test(attention, an_indexer_that_always_selects_all_bounds_nothing)
{
    fx.index_top_k = FX_CONTEXT + 1;
    fx_open(&fx);
    fx_all_beat(&fx);
    assert_mode((struct mode_load){.full = true}, FX_CONTEXT);
}

Test(attention, full_attention_needs_an_indexer)
{
    struct answer a;

    fx_open(&fx);
    fx_all_beat(&fx);
    load_mode((struct mode_load){.full = true}, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "qwen3 has none");
    load_mode((struct mode_load){.full = false}, &a);
    FX_REPLY(&a, Dk__LoadReply);
    fx_clear(&a);
    cr_assert_not(fx.c->plan->has_full_attention);
}

Test(attention, a_prompt_beyond_full_attention_is_told_why)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    char prompt[101];
    struct answer a;

    fx.index_top_k = 100;
    fx_ready(&fx);
    memset(prompt, 'x', 100);
    prompt[100] = 0;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = prompt;
    load_mode((struct mode_load){.full = true}, &a);
    fx_clear(&a);
    fx_all_beat(&fx);
    fx_submit(&fx, &q, &a);
    cr_assert(strstr(a.text, "attention mode 'full' ends at index_topk = 100 positions"), "%s", a.text);
    cr_assert(strstr(a.text, "; shorten it, or load the model with --attention sparse or --allow-full"), "%s", a.text);
    cr_assert_not(strstr(a.text, "larger context"), "it is no way out: %s", a.text);
    load_mode((struct mode_load){.full = true, .context = 90}, &a);
    fx_clear(&a);
    fx_submit(&fx, &q, &a);
    cr_assert(strstr(a.text, "the context of 90 must hold") && !strstr(a.text, "index_topk"), "%s", a.text);
    cr_assert(strstr(a.text, "; shorten it or load the model with a larger context"), "%s", a.text);
    load_mode((struct mode_load){.full = true, .allow = true, .context = 100}, &a);
    fx_clear(&a);
    fx_submit(&fx, &q, &a);
    cr_assert(strstr(a.text, "the context of 100 must hold") && !strstr(a.text, "index_topk"), "%s", a.text);
    cr_assert(strstr(a.text, "; shorten it or load the model with a larger context"), "%s", a.text);
}

Test(attention, a_prompt_beyond_the_model_cannot_be_helped)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    char prompt[FX_CONTEXT + 1];
    struct answer a;

    fx_ready(&fx);
    memset(prompt, 'x', FX_CONTEXT);
    prompt[FX_CONTEXT] = 0;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = prompt;
    fx_submit(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "; shorten it: the model can do no more");
}
