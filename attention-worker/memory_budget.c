/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/memory_budget.h"

#include <stdio.h>

#include "model/model_tensors.h"

/* A size that overflows is more than any host has: it stays at the largest number. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static unsigned long long mib(uint64_t bytes) /* rounded up */
{
    return (bytes >> 20) + ((bytes & 0xfffff) != 0);
}

int dk_memory_divide(const struct dk_memory_budget *b, struct dk_memory_grant *out, struct dk_err *err)
{
    uint64_t per_sequence = ((uint64_t)b->context + b->page_tokens - 1) / b->page_tokens;
    uint64_t states = times(b->state_bytes, b->sequences), one = times(b->page_bytes, per_sequence);
    uint64_t left = minus(b->free_bytes, plus(b->weight_bytes, b->fixed_bytes));
    uint64_t allowed = b->asked_bytes ? b->asked_bytes : left / 2;
    uint64_t pages = times(per_sequence, b->sequences), least = plus(states, one);

    *out = (struct dk_memory_grant){.states_bytes = states, .beyond = allowed < least && !b->asked_bytes};
    if (b->asked_bytes && allowed < least)
        return dk_err_set(
            err, -ENOSPC,
            "--cache-mib %llu: the states of %u sequences take %llu MiB, and the pages of one sequence of "
            "%u positions %llu MiB; start the attention-worker with --cache-mib %llu or more, the "
            "coordinator with a smaller --max-running, or load with a smaller --context",
            mib(allowed), b->sequences, mib(states), b->context, mib(one), mib(least));
    if (b->page_bytes && pages > minus(allowed, states) / b->page_bytes)
        pages = minus(allowed, states) / b->page_bytes;
    pages = pages < per_sequence ? per_sequence : pages;
    out->pages = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
    out->pages_bytes = times(b->page_bytes, out->pages);
    return 0;
}

struct weights {
    struct dk_checkpoint *checkpoint;
    uint64_t bytes;
};

static uint64_t bytes_of(const struct dk_tensor *t)
{
    return t->type == DK_F16 ? 2 * t->bytes : t->bytes;
}

static int weight_add(void *ctx, const struct dk_tensor_want *want)
{
    struct weights *w = ctx;
    const struct dk_tensor *t = want->place == DK_PLACE_WORKER ? dk_checkpoint_find(w->checkpoint, want->name) : NULL;
    char name[192];

    if (!t)
        return 0;
    w->bytes += bytes_of(t);
    if (t->type != DK_F8_E4M3)
        return 0;
    snprintf(name, sizeof(name), "%s_scale_inv", want->name);
    t = dk_checkpoint_find(w->checkpoint, name);
    w->bytes += t ? t->bytes : 0;
    return 0;
}

uint64_t dk_memory_weight_bytes(const struct dk_model_config *c, struct dk_checkpoint *ck, bool full_attention)
{
    struct weights w = {.checkpoint = ck};
    struct dk_model_config loaded = *c;

    if (full_attention)
        loaded.index = (struct dk_index_config){0};
    dk_model_tensors(&loaded, weight_add, &w);
    if (c->tied) {
        const struct dk_tensor *head = dk_checkpoint_find(ck, "model.embed_tokens.weight");

        w.bytes += head ? bytes_of(head) : 0;
    }
    return w.bytes;
}
