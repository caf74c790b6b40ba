/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_GENERATE_H
#define DUCKCTL_GENERATE_H

#include <jansson.h>
#include <stdbool.h>

#include "duckctl/logits_file.h"
#include "duckctl/trace_file.h"
#include "wire/wire.h"

/* Takes the events of one answer: streams text to stdout, or collects one JSON object. */
struct generate_output {
    bool json, want_logprobs;
    struct logits_file logits; /* not open: not wanted */
    struct trace_file trace;   /* the same */
    json_t *prompt_ids, *token_ids, *logprobs;
    char *text;
    size_t text_bytes;
    bool ends_in_newline, any_text;
    Dk__FinishReason finish;
    Dk__GenerationStats stats;
};

void generate_output_open(struct generate_output *o, bool json, bool want_logprobs, const Dk__SubmitReply *submitted);
/* 1: that was the last event; 0; -ENOMEM, -EIO: err. */
int generate_output_event(struct generate_output *o, const Dk__Event *e, struct dk_err *err);
/* Prints the object or the statistics line. */
void generate_output_end(struct generate_output *o);
void generate_output_close(struct generate_output *o);

#endif
