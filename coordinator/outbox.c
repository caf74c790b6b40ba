/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/outbox.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

int dk_outbox_init(struct dk_outbox *out, uint32_t capacity)
{
    memset(out, 0, sizeof *out);
    out->entries = calloc(capacity, sizeof *out->entries);
    if (!out->entries)
        return -ENOMEM;
    out->capacity = capacity;
    return 0;
}

void dk_outbox_fini(struct dk_outbox *out)
{
    dk_outbox_clear(out);
    free(out->entries);
    memset(out, 0, sizeof *out);
}

void dk_outbox_clear(struct dk_outbox *out)
{
    for (uint32_t i = 0; i < out->count; i++)
        dk_message_free(out->entries[i].reply);
    out->count = 0;
}

/* A call whose answer cannot even be noted stays unanswered; its caller runs into its own time limit. */
static struct dk_outbox_entry *entry_add(struct dk_outbox *out, void *call)
{
    struct dk_outbox_entry *e;

    if (out->count == out->capacity) {
        uint32_t capacity = out->capacity ? 2 * out->capacity : 16;
        struct dk_outbox_entry *grown = realloc(out->entries, capacity * sizeof *grown);

        if (!grown) {
            dk_log(DK_LOG_ERROR, "outbox.memory", "entries=%u", out->count);
            return NULL;
        }
        out->entries = grown;
        out->capacity = capacity;
    }
    e = &out->entries[out->count++];
    memset(e, 0, sizeof *e);
    e->call = call;
    return e;
}

void dk_outbox_reply(struct dk_outbox *out, void *call, void *reply)
{
    struct dk_outbox_entry *e;

    if (!reply) {
        dk_outbox_fail(out, call, DK__CODE__RESOURCE_EXHAUSTED, "the coordinator is out of memory");
        return;
    }
    e = entry_add(out, call);
    if (e)
        e->reply = reply;
    else
        dk_message_free(reply);
}

void dk_outbox_fail(struct dk_outbox *out, void *call, Dk__Code code, const char *format, ...)
{
    struct dk_outbox_entry *e = entry_add(out, call);
    va_list ap;

    if (!e)
        return;
    e->code = code;
    va_start(ap, format);
    vsnprintf(e->text, sizeof e->text, format, ap);
    va_end(ap);
}

void dk_outbox_fail_err(struct dk_outbox *out, void *call, const struct dk_err *err)
{
    dk_outbox_fail(out, call, dk_code_from_errno(err->rc), "%s", err->text);
}

Dk__Status *dk_status_new(Dk__Code code, const char *text)
{
    Dk__Status *s = dk_message_new(&dk__status__descriptor);

    if (!s)
        return NULL;
    s->code = code;
    s->text = strdup(text);
    return s;
}
