/* SPDX-License-Identifier: Apache-2.0 */
#include "net/faults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"

/* A reordered frame that nothing overtakes leaves after this time, so that the last frame of a burst is not lost. */
enum { REORDER_RELEASE_US = 1000, REORDER_PASSES_MAX = 4 };

static int probability_parse(const char *value, double *out)
{
    char *end;
    double p;

    errno = 0;
    p = strtod(value, &end);
    if (end == value || *end || errno || !isfinite(p) || p < 0 || p > 1)
        return -EINVAL;
    *out = p;
    return 0;
}

static int number_parse(const char *value, uint64_t most, uint64_t *out)
{
    char *end;
    unsigned long long n;

    if (*value < '0' || *value > '9')
        return -EINVAL;
    errno = 0;
    n = strtoull(value, &end, 10);
    if (*end || errno || n > most)
        return -EINVAL;
    *out = n;
    return 0;
}

static int item_parse(const char *name, const char *value, struct dk_net_faults *out)
{
    uint64_t n = 0;
    int rc;

    if (!strcmp(name, "drop"))
        return probability_parse(value, &out->drop);
    if (!strcmp(name, "dup"))
        return probability_parse(value, &out->dup);
    if (!strcmp(name, "reorder"))
        return probability_parse(value, &out->reorder);
    if (!strcmp(name, "corrupt"))
        return probability_parse(value, &out->corrupt);
    if (!strcmp(name, "delay"))
        return probability_parse(value, &out->delay);
    if (!strcmp(name, "delay_us")) {
        rc = number_parse(value, UINT32_MAX, &n);
        out->delay_us = (uint32_t)n;
        return rc;
    }
    if (!strcmp(name, "seed"))
        return number_parse(value, UINT64_MAX, &out->seed);
    return -ENOENT;
}

int dk_net_faults_parse(const char *text, struct dk_net_faults *out, struct dk_err *err)
{
    struct dk_net_faults faults = {0};
    const char *at = text;

    while (*at) {
        size_t bytes = strcspn(at, ",");
        char item[64], *value;
        int rc;

        if (bytes >= sizeof item)
            return dk_err_set(err, -EINVAL, "net fault \"%.*s\" is too long", 60, at);
        memcpy(item, at, bytes);
        item[bytes] = '\0';
        value = strchr(item, '=');
        if (!value)
            return dk_err_set(err, -EINVAL, "net fault \"%s\" must be name=value", item);
        *value++ = '\0';
        rc = item_parse(item, value, &faults);
        if (rc == -ENOENT)
            return dk_err_set(err, -EINVAL,
                              "no net fault is called \"%s\"; there are drop, dup, reorder, corrupt, delay, delay_us "
                              "and seed",
                              item);
        if (rc < 0)
            return dk_err_set(err, -EINVAL, "net fault %s=%s: %s", item, value,
                              !strcmp(item, "seed") || !strcmp(item, "delay_us") ? "must be a whole number"
                                                                                 : "must be between 0 and 1");
        at += bytes;
        if (*at == ',' && !*++at)
            return dk_err_set(err, -EINVAL, "net faults end with a comma");
    }
    *out = faults;
    return 0;
}

void dk_faults_init(struct dk_fault_injector *f, const struct dk_net_faults *faults, struct dk_net_counters *counters,
                    const struct dk_fault_ops *ops, void *ctx)
{
    memset(f, 0, sizeof *f);
    f->faults = *faults;
    f->rng.state = faults->seed;
    f->counters = counters;
    f->ops = ops;
    f->ctx = ctx;
    f->active = faults->drop > 0 || faults->dup > 0 || faults->reorder > 0 || faults->corrupt > 0 || faults->delay > 0;
}

void dk_faults_fini(struct dk_fault_injector *f)
{
    for (uint32_t i = 0; i < f->held_count; i++)
        f->ops->drop(f->ctx, &f->held[i].frame);
    f->held_count = 0;
}

static bool happens(struct dk_fault_injector *f, double probability)
{
    return probability > 0 && dk_rng_unit(&f->rng) < probability;
}

/* Takes frame number i out and keeps the others in order. */
static struct dk_frame held_take(struct dk_fault_injector *f, uint32_t i)
{
    struct dk_frame frame = f->held[i].frame;

    f->held_count--;
    memmove(&f->held[i], &f->held[i + 1], (f->held_count - i) * sizeof f->held[0]);
    return frame;
}

static bool held_add(struct dk_fault_injector *f, const struct dk_frame *frame, uint64_t release_us, uint32_t passes)
{
    if (f->held_count == DK_FAULTS_HELD_MAX)
        return false;
    f->held[f->held_count++] = (struct dk_fault_held){*frame, release_us, passes};
    return true;
}

static void pass(struct dk_fault_injector *f, struct dk_frame *frame)
{
    f->ops->pass(f->ctx, frame);
    /* Those that waited to be overtaken by this one follow it. They do not overtake each other again. */
    for (uint32_t i = 0; i < f->held_count;) {
        struct dk_frame freed;

        if (f->held[i].passes == 0 || --f->held[i].passes > 0) {
            i++;
            continue;
        }
        freed = held_take(f, i);
        f->counters->fault_reordered++;
        f->ops->pass(f->ctx, &freed);
    }
}

void dk_faults_send(struct dk_fault_injector *f, struct dk_frame *frame, uint64_t now_us)
{
    struct dk_frame copy;
    bool twice;

    if (happens(f, f->faults.drop)) {
        f->counters->fault_dropped++;
        f->ops->drop(f->ctx, frame);
        return;
    }
    /* The copy is made before damage: a doubled frame has at least one good instance. */
    twice = happens(f, f->faults.dup) && f->ops->copy(f->ctx, frame, &copy) == 0;
    if (twice)
        f->counters->fault_duplicated++;
    if (frame->bytes > 0 && happens(f, f->faults.corrupt)) {
        uint64_t bit = dk_rng_next(&f->rng) % ((uint64_t)frame->bytes * 8);

        frame->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        f->counters->fault_corrupted++;
    }
    if (happens(f, f->faults.delay) && held_add(f, frame, now_us + f->faults.delay_us, 0))
        f->counters->fault_delayed++;
    else if (!happens(f, f->faults.reorder) ||
             !held_add(f, frame, now_us + REORDER_RELEASE_US, 1 + dk_rng_next(&f->rng) % REORDER_PASSES_MAX))
        pass(f, frame);
    if (twice)
        pass(f, &copy);
}

void dk_faults_poll(struct dk_fault_injector *f, uint64_t now_us)
{
    for (uint32_t i = 0; i < f->held_count;) {
        struct dk_frame freed;

        if (f->held[i].release_us > now_us) {
            i++;
            continue;
        }
        freed = held_take(f, i);
        f->ops->pass(f->ctx, &freed);
    }
}

uint64_t dk_faults_deadline(const struct dk_fault_injector *f)
{
    uint64_t deadline_us = UINT64_MAX;

    for (uint32_t i = 0; i < f->held_count; i++)
        if (f->held[i].release_us < deadline_us)
            deadline_us = f->held[i].release_us;
    return deadline_us;
}

void dk_faults_forget_port(struct dk_fault_injector *f, uint32_t port)
{
    for (uint32_t i = 0; i < f->held_count;) {
        struct dk_frame frame;

        if (f->held[i].frame.port != port) {
            i++;
            continue;
        }
        frame = held_take(f, i);
        f->ops->drop(f->ctx, &frame);
    }
}
