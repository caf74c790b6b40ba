/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/score_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_TIMEOUT_MS 10000u
#define TEXT_COLUMNS    18

int score_table_open(struct score_table *t, const Dk__SubmitReply *submitted, struct dk_err *err)
{
    memset(t, 0, sizeof *t);
    t->submitted = submitted;
    t->scores = calloc(submitted->n_prompt_ids + 1, sizeof(Dk__TokenScore *));
    dk__generation_stats__init(&t->stats);
    return t->scores ? 0 : dk_err_set(err, -ENOMEM, "no memory for %zu scores", submitted->n_prompt_ids);
}

void score_table_close(struct score_table *t)
{
    for (size_t i = 0; i < t->count; i++)
        dk_message_free(t->scores[i]);
    free(t->scores);
}

int score_table_event(struct score_table *t, const Dk__Event *e, struct dk_err *err)
{
    for (size_t i = 0; i < e->n_scores; i++) {
        if (t->count + 1 >= t->submitted->n_prompt_ids)
            return dk_err_set(err, -EBADMSG, "more scores came than the prompt has positions");
        t->scores[t->count] = dk_message_clone(e->scores[i]);
        if (!t->scores[t->count])
            return dk_err_set(err, -ENOMEM, "no memory for a score");
        t->nll -= (double)t->scores[t->count++]->logprob;
    }
    if (!e->has_finish)
        return 0;
    t->finish = e->finish;
    if (e->stats)
        t->stats = *e->stats;
    return 1;
}

int score_table_check(const struct score_table *t, struct dk_err *err)
{
    size_t positions = t->submitted->n_prompt_ids ? t->submitted->n_prompt_ids - 1 : 0;

    if (t->finish == DK__FINISH_REASON__CANCEL)
        return dk_err_set(err, -ECANCELED, "the sequence was cancelled");
    if (t->count != positions)
        return dk_err_set(err, -EBADMSG, "%zu scores came for %zu positions", t->count, positions);
    for (size_t i = 0; i < positions; i++)
        if (t->scores[i]->id != t->submitted->prompt_ids[i + 1])
            return dk_err_set(err, -EBADMSG, "the score of position %zu is of token %u, not of the prompt's %u", i + 1,
                              t->scores[i]->id, t->submitted->prompt_ids[i + 1]);
    return 0;
}

/* ---- the table */

/* Texts of tokens, so that frequent ones are asked for once: each id has one place, from which it drives the one that
 * was there. */
struct token_texts {
    struct dk_rpc_client *client;
    struct {
        uint32_t id;
        char *text; /* owned; NULL: none yet */
    } places[4096];
};

/* As in JSON, quotes included: on one line, whatever the token is. */
static char *quoted(const char *text)
{
    json_t *s = json_string(text);
    char *out = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;

    json_decref(s);
    return out;
}

/* *text: until the next call. */
static int text_of(struct token_texts *x, uint32_t id, const char **text, struct dk_err *err)
{
    size_t place = id % (sizeof x->places / sizeof *x->places);
    Dk__DetokenizeRequest q = DK__DETOKENIZE_REQUEST__INIT;
    ProtobufCMessage *m;
    int rc;

    if (!x->places[place].text || x->places[place].id != id) {
        q.n_ids = 1;
        q.ids = &id;
        rc = client_call(x->client, "Detokenize", &q.base, CALL_TIMEOUT_MS, &m, err);
        if (rc < 0)
            return rc;
        free(x->places[place].text);
        x->places[place].id = id;
        x->places[place].text = quoted(((Dk__DetokenizeReply *)m)->text);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    *text = x->places[place].text ? x->places[place].text : "?";
    return 0;
}

static void texts_free(struct token_texts *x)
{
    for (size_t i = 0; i < sizeof x->places / sizeof *x->places; i++)
        free(x->places[i].text);
}

/* Of a terminal: two for CJK, kana, Hangul, full-width forms and everything beyond the basic plane, by the first bytes
 * of UTF-8. */
static int columns_of(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int n = 0;

    for (; *p; p++) {
        bool wide = (*p >= 0xe3 && *p <= 0xed) || *p >= 0xf0 || (*p == 0xef && (p[1] == 0xbc || p[1] == 0xbd));

        if ((*p & 0xc0) != 0x80)
            n += wide ? 2 : 1;
    }
    return n;
}

static int print_row(const struct score_table *t, size_t i, struct token_texts *x, struct dk_err *err)
{
    const Dk__TokenScore *s = t->scores[i];
    const char *text = NULL;
    int rc = text_of(x, s->id, &text, err), pad;

    if (rc < 0)
        return rc;
    pad = TEXT_COLUMNS - columns_of(text);
    printf("%8zu  %8u  %s%*s  %9.5f", i + 1, s->id, text, pad > 0 ? pad : 0, "", (double)s->logprob);
    for (size_t k = 0; k < s->n_top; k++) {
        rc = text_of(x, s->top[k]->id, &text, err);
        if (rc < 0)
            return rc;
        printf("  %u %s %.5f", s->top[k]->id, text, (double)s->top[k]->logprob);
    }
    putchar('\n');
    return 0;
}

int score_table_print(const struct score_table *t, struct dk_rpc_client *c, struct dk_err *err)
{
    struct token_texts x = {.client = c};
    double mean = t->count ? t->nll / (double)t->count : 0;
    int rc = 0;

    printf("position        id  %-*s    logprob%s\n", TEXT_COLUMNS, "text",
           t->count && t->scores[0]->n_top ? "  alternatives: id, text, logprob" : "");
    for (size_t i = 0; rc == 0 && i < t->count; i++)
        rc = print_row(t, i, &x, err);
    texts_free(&x);
    if (rc < 0)
        return rc;
    if (t->count)
        printf("total NLL %.5f over %zu tokens, mean %.5f, perplexity %.5f\n", t->nll, t->count, mean, exp(mean));
    else
        printf("total NLL 0 over 0 tokens: the first token has none before it\n");
    if (fflush(stdout) == EOF)
        return dk_err_set(err, -errno, "standard output: %s", strerror(errno));
    fprintf(stderr, "Score stats: time %.3f s, input_len %u, prefill %.1f tok/s\n", t->stats.time_s, t->stats.input_len,
            t->stats.prefill_tok_s);
    return 0;
}

/* ---- JSON */

static json_t *score_json(const struct score_table *t, size_t i)
{
    const Dk__TokenScore *s = t->scores[i];
    json_t *top = json_array();

    for (size_t k = 0; k < s->n_top; k++)
        json_array_append_new(
            top, json_pack("{s:I,s:f}", "id", (json_int_t)s->top[k]->id, "logprob", (double)s->top[k]->logprob));
    return json_pack("{s:I,s:I,s:f,s:o}", "position", (json_int_t)i + 1, "id", (json_int_t)s->id, "logprob",
                     (double)s->logprob, "top", top);
}

json_t *score_table_json(const struct score_table *t)
{
    json_t *ids = json_array(), *scores = json_array();

    for (size_t i = 0; i < t->submitted->n_prompt_ids; i++)
        json_array_append_new(ids, json_integer(t->submitted->prompt_ids[i]));
    for (size_t i = 0; i < t->count; i++)
        json_array_append_new(scores, score_json(t, i));
    return json_pack("{s:o,s:o,s:f,s:I}", "ids", ids, "scores", scores, "nll", t->nll, "tokens", (json_int_t)t->count);
}
