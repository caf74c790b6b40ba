/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

#include <math.h>

static struct fx fx;

static void start(void)
{
    fx_init(&fx);
    fx_ready(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(ingress, .init = start, .fini = stop);

static Dk__SubmitRequest text_prompt(const char *text)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)text;
    return q;
}

static void refused(Dk__SubmitRequest *q, Dk__Code code, const char *part)
{
    struct answer a;

    fx_submit(&fx, q, &a);
    fx_assert_failed(&a, code, part);
}

Test(ingress, without_a_model_it_says_how_to_load)
{
    struct fx bare;
    struct answer a;
    Dk__SubmitRequest q = text_prompt("hello");
    Dk__TokenizeRequest t = DK__TOKENIZE_REQUEST__INIT;
    Dk__DetokenizeRequest d = DK__DETOKENIZE_REQUEST__INIT;

    fx_init(&bare);
    fx_open(&bare);
    fx_submit(&bare, &q, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "duckctl load");
    t.text = (char *)"x";
    fx_call(&bare, &t, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "duckctl load");
    fx_call(&bare, &d, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "duckctl load");
    fx_close(&bare);
}

Test(ingress, text_becomes_ids)
{
    Dk__SubmitRequest q = text_prompt("hi<|end|>");
    struct answer a;
    Dk__SubmitReply *r;

    fx_submit(&fx, &q, &a);
    r = FX_REPLY(&a, Dk__SubmitReply);
    cr_assert_eq(r->n_prompt_ids, 3);
    cr_assert_eq(r->prompt_ids[0], 'h');
    cr_assert_eq(r->prompt_ids[1], 'i');
    cr_assert_eq(r->prompt_ids[2], FX_END);
    cr_assert(r->handle > 0 && r->handle < 1ull << 53);
    fx_clear(&a);
}

Test(ingress, chat_and_json_give_the_same_prompt)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    Dk__ChatPrompt chat = DK__CHAT_PROMPT__INIT;
    Dk__ChatMessage m = DK__CHAT_MESSAGE__INIT, *messages[] = {&m};
    struct answer a, b;
    Dk__SubmitReply *ra, *rb;

    m.role = (char *)"user";
    m.content = (char *)"Wie geht's?";
    chat.messages = messages;
    chat.n_messages = 1;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_CHAT;
    q.chat = &chat;
    fx_submit(&fx, &q, &a);
    ra = FX_REPLY(&a, Dk__SubmitReply);
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"Wie geht's?\"}]";
    fx_submit(&fx, &q, &b);
    rb = FX_REPLY(&b, Dk__SubmitReply);
    cr_assert_gt(ra->n_prompt_ids, strlen("Wie geht's?") + 10, "the template adds something");
    cr_assert_eq(ra->n_prompt_ids, rb->n_prompt_ids);
    cr_assert_arr_eq(ra->prompt_ids, rb->prompt_ids, ra->n_prompt_ids * sizeof(uint32_t));
    fx_clear(&b);
    /* Thinking off adds the empty thought of this family's template. */
    q.has_thinking = true;
    q.thinking = false;
    fx_submit(&fx, &q, &b);
    rb = FX_REPLY(&b, Dk__SubmitReply);
    cr_assert_gt(rb->n_prompt_ids, ra->n_prompt_ids);
    fx_clear(&a);
    fx_clear(&b);
}

/* Tokens of this model are bytes. */
static bool prompt_says(const Dk__SubmitReply *r, const char *part)
{
    char text[4096];

    cr_assert_lt(r->n_prompt_ids, sizeof text);
    for (size_t i = 0; i < r->n_prompt_ids; i++)
        text[i] = (char)r->prompt_ids[i];
    text[r->n_prompt_ids] = 0;
    return strstr(text, part) != NULL;
}

#define WEATHER                                                                                           \
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather_at\", \"description\": \"It tells.\", " \
    "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]"

Test(ingress, tools_reach_the_template)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    Dk__ChatPrompt chat = DK__CHAT_PROMPT__INIT;
    Dk__ChatMessage m = DK__CHAT_MESSAGE__INIT, *messages[] = {&m};
    struct answer a;

    m.role = (char *)"user";
    m.content = (char *)"hot?";
    chat.messages = messages;
    chat.n_messages = 1;
    fx.c->plan->context = 2048;
    q.tools_json = (char *)WEATHER;
    for (int way = 0; way < 2; way++) {
        q.prompt_case = way ? DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON : DK__SUBMIT_REQUEST__PROMPT_CHAT;
        if (way)
            q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"hot?\"}]";
        else
            q.chat = &chat;
        fx_submit(&fx, &q, &a);
        cr_assert(prompt_says(FX_REPLY(&a, Dk__SubmitReply), "weather_at"));
        fx_clear(&a);
    }
    q.tools_json = NULL;
    fx_submit(&fx, &q, &a);
    cr_assert_not(prompt_says(FX_REPLY(&a, Dk__SubmitReply), "weather_at"));
    fx_clear(&a);
}

Test(ingress, bad_tools)
{
    Dk__SubmitRequest q = text_prompt("x");

    q.tools_json = (char *)WEATHER;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tools_json: goes with chat or messages_json");
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"hot?\"}]";
    q.tools_json = (char *)"[{";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tools_json: line 1");
    q.tools_json = (char *)"{}";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tools_json: must be an array of tools");
    q.tools_json = (char *)"[7]";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tools_json: tools[0] must be an object");
}

static char *rendered(enum dk_chat_format format, const char *tools, enum dk_thinking thinking)
{
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"hot?\"}]", 0, NULL);
    json_t *list = json_loads(tools, 0, NULL);
    char *text;

    cr_assert_eq(dk_chat_render(format, messages, list, thinking, 1, &text, NULL), 0);
    json_decref(messages);
    json_decref(list);
    return text;
}

/* Whether a format takes tools or a switch shows in what it renders. */
Test(ingress, what_a_format_has_no_place_for)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;

    fx.c->plan->context = 1 << 16;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"hot?\"}]";
    q.has_max_tokens = true;
    q.max_tokens = 1;
    for (enum dk_chat_format f = 0; f < DK_CHAT_NONE; f++) {
        char *on = rendered(f, "[]", DK_THINKING_ON), *off = rendered(f, "[]", DK_THINKING_OFF), *with;
        const char *name = dk_chat_format_name(f);

        cr_assert_eq(dk_chat_has_switch(f), strcmp(on, off) != 0, "%s", name);
        free(on);
        free(off);
        fx.c->model.chat = f;
        q.tools_json = (char *)WEATHER;
        if (f >= DK_CHAT_GUESS_QWEN3) {
            refused(&q, DK__CODE__UNIMPLEMENTED, "tools: the model's chat template is not one that is known");
            continue;
        }
        with = rendered(f, WEATHER, DK_THINKING_DEFAULT);
        cr_assert_eq(dk_chat_takes_tools(f), strstr(with, "weather_at") != NULL, "%s", name);
        fx_submit(&fx, &q, &a);
        if (strstr(with, "weather_at"))
            FX_REPLY(&a, Dk__SubmitReply);
        else
            cr_assert(a.code == DK__CODE__INVALID_ARGUMENT && strstr(a.text, "tools_json: the chat format ") &&
                          strstr(a.text, name) && strstr(a.text, "leave --tools out"),
                      "%s: %s", name, a.text);
        fx_clear(&a);
        free(with);
        q.tools_json = (char *)"[]"; /* asks for nothing */
        fx_submit(&fx, &q, &a);
        FX_REPLY(&a, Dk__SubmitReply);
        fx_clear(&a);
    }
}

Test(ingress, bad_prompts)
{
    Dk__SubmitRequest q = text_prompt("");
    uint32_t ids[] = {5, 6, FX_VOCAB, 7};
    Dk__TokenIds list = DK__TOKEN_IDS__INIT;
    Dk__ChatPrompt chat = DK__CHAT_PROMPT__INIT;
    Dk__ChatMessage m = DK__CHAT_MESSAGE__INIT, *messages[] = {&m};

    refused(&q, DK__CODE__INVALID_ARGUMENT, "empty");
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT__NOT_SET;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "prompt is missing");
    list.ids = ids;
    list.n_ids = 4;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_IDS;
    q.ids = &list;
    refused(&q, DK__CODE__INVALID_ARGUMENT,
            "token 2 of the prompt: id 260 is out of range, the model's vocabulary has 260");
    list.n_ids = 0;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "empty");
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "messages_json: line 1");
    q.messages_json = (char *)"{}";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "array");
    m.role = (char *)"user";
    m.content = (char *)"\xff";
    chat.messages = messages;
    chat.n_messages = 1;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_CHAT;
    q.chat = &chat;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "messages[0]: not valid UTF-8");
}

Test(ingress, the_context_bounds_prompt_and_answer)
{
    char text[FX_CONTEXT + 1];
    Dk__SubmitRequest q = text_prompt(text);
    struct fx_told t = {0};

    memset(text, 'x', FX_CONTEXT);
    text[FX_CONTEXT] = 0;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "512 tokens, and the context of 512");
    text[FX_CONTEXT - 3] = 0;
    fx_finish(&fx, fx_submit_text(&fx, text, 100), &t);
    cr_assert_eq(t.token_count, 3);
    cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH);
    cr_assert_eq(t.stats.input_len, FX_CONTEXT - 3);
    cr_assert_eq(t.stats.output_len, 3);
}

Test(ingress, options_are_checked)
{
    Dk__SubmitRequest q = text_prompt("x");
    char *stops[20], longer[300];

#define BAD(field, value, part)                        \
    do {                                               \
        q.has_##field = true;                          \
        q.field = value;                               \
        refused(&q, DK__CODE__INVALID_ARGUMENT, part); \
        q.has_##field = false;                         \
    } while (0)
    BAD(max_tokens, 0, "max_tokens");
    BAD(temperature, -0.1f, "temperature");
    BAD(temperature, NAN, "temperature");
    BAD(temperature, INFINITY, "temperature");
    BAD(top_p, 0, "top_p");
    BAD(top_p, 1.01f, "top_p");
    BAD(top_p, NAN, "top_p");
    BAD(top_k, FX_VOCAB + 1, "top_k");
    BAD(logprobs, 21, "logprobs");
    BAD(prefill_chunk, 0, "prefill_chunk");
    for (int i = 0; i < 20; i++)
        stops[i] = (char *)"s";
    q.stop = stops;
    q.n_stop = 17;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "stop: 17 strings, at most 16");
    q.n_stop = 2;
    stops[1] = (char *)"";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "stop[1]");
    memset(longer, 'a', sizeof longer);
    longer[299] = 0;
    stops[1] = longer;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "stop[1]: must have 1 to 256 bytes, has 299");
    cr_assert_eq(fx.c->sequence_count, 0u);
}

Test(ingress, sampling_defaults_come_from_the_model)
{
    Dk__SubmitRequest q = text_prompt("x");
    struct answer a;
    const Dk__Sampling *s;
    uint64_t seeds[2];

    for (int i = 0; i < 2; i++) {
        fx_submit(&fx, &q, &a);
        fx_clear(&a);
    }
    fx_step(&fx);
    cr_assert_eq(fx.w.step->n_sequences, 2);
    for (int i = 0; i < 2; i++) {
        s = fx.w.step->sequences[i]->sampling;
        cr_assert_float_eq(s->temperature, 0.6, 1e-6);
        cr_assert_float_eq(s->top_p, 0.95, 1e-6);
        cr_assert_eq(s->top_k, 20u);
        cr_assert_not(s->want_logprob);
        seeds[i] = s->seed;
    }
    cr_assert_neq(seeds[0], seeds[1], "seeds are drawn");
    q.has_temperature = q.has_seed = q.has_top_k = q.has_logprobs = true;
    q.temperature = 0;
    q.seed = 99;
    q.top_k = 3;
    q.logprobs = 2;
    fx_submit(&fx, &q, &a);
    fx_clear(&a);
    fx_step(&fx);
    s = fx.w.step->sequences[2]->sampling;
    cr_assert_float_eq(s->temperature, 0, 1e-9);
    cr_assert_float_eq(s->top_p, 0.95, 1e-6);
    cr_assert_eq(s->top_k, 3u);
    cr_assert_eq(s->seed, 99u);
    cr_assert_eq(s->logprobs, 2u);
    cr_assert(s->want_logprob);
}

Test(ingress, a_full_queue_refuses)
{
    Dk__SubmitRequest q = text_prompt("x");
    struct answer a;
    uint32_t most = fx.options.queue_max;

    for (uint32_t i = 0; i < most; i++)
        fx_submit_text(&fx, "x", 5);
    refused(&q, DK__CODE__RESOURCE_EXHAUSTED, "queue is full: 64");
    fx_step(&fx); /* sixteen begin to run */
    for (uint32_t i = 0; i < fx.options.running_max; i++)
        fx_submit_text(&fx, "x", 5);
    refused(&q, DK__CODE__RESOURCE_EXHAUSTED, "queue is full");
    fx_cancel(&fx, fx.c->sequences[70]->id);
    fx_submit(&fx, &q, &a);
    FX_REPLY(&a, Dk__SubmitReply);
    fx_clear(&a);
}

Test(ingress, tokenize_and_back)
{
    Dk__TokenizeRequest q = DK__TOKENIZE_REQUEST__INIT;
    Dk__DetokenizeRequest d = DK__DETOKENIZE_REQUEST__INIT;
    Dk__TokenizeReply *r;
    struct answer a, b;
    uint32_t broken[] = {0xe4, 'x', 0, FX_VOCAB - 1, 'y'}, foreign[] = {1, FX_VOCAB};

    q.text = (char *)"gr\xc3\xbc\xc3\x9f dich<|end|>";
    fx_call(&fx, &q, &a);
    r = FX_REPLY(&a, Dk__TokenizeReply);
    cr_assert_eq(r->n_ids, 12);
    cr_assert_eq(r->ids[2], 0xc3);
    cr_assert_eq(r->ids[11], FX_END);
    d.ids = r->ids;
    d.n_ids = r->n_ids;
    fx_call(&fx, &d, &b);
    cr_assert_str_eq(FX_REPLY(&b, Dk__DetokenizeReply)->text, q.text);
    fx_clear(&a);
    fx_clear(&b);
    d.ids = broken;
    d.n_ids = 5;
    fx_call(&fx, &d, &b);
    cr_assert_str_eq(FX_REPLY(&b, Dk__DetokenizeReply)->text, "\xef\xbf\xbdx\xef\xbf\xbdy");
    fx_clear(&b);
    d.ids = foreign;
    d.n_ids = 2;
    fx_call(&fx, &d, &b);
    fx_assert_failed(&b, DK__CODE__INVALID_ARGUMENT, "ids[1]: 260");
    d.n_ids = 0;
    fx_call(&fx, &d, &b);
    cr_assert_str_eq(FX_REPLY(&b, Dk__DetokenizeReply)->text, "");
    fx_clear(&b);
}

Test(ingress, a_message_of_another_service_is_refused)
{
    Dk__RpcReply q = DK__RPC_REPLY__INIT;
    struct answer a;

    fx_call(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__UNIMPLEMENTED, "RpcReply");
}
