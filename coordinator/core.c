/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/core.h"

#include <stdlib.h>

#include "coordinator/coordinator_internal.h"

void dk_coordinator_options_init(struct dk_coordinator_options *o)
{
    *o = (struct dk_coordinator_options){
        .step_rows = 256, .running_max = 16, .queue_max = 64, .parked_max = 128, .version = "", .seed = 1};
}

int dk_coordinator_open(const struct dk_coordinator_options *o, uint64_t now_us, struct dk_coordinator **out,
                        struct dk_err *err)
{
    struct dk_coordinator *c;

    if (!o->running_max || !o->queue_max || !o->parked_max)
        return dk_err_set(err, -EINVAL, "--max-running, --queue and the number of waiting calls must be at least 1");
    if (o->step_rows > DK_PLAN_ROWS_MAX)
        return dk_err_set(err, -EINVAL, "--step-rows %u is more than the %u that a step can have", o->step_rows,
                          DK_PLAN_ROWS_MAX);
    if (o->step_rows <= o->running_max)
        return dk_err_set(err, -EINVAL,
                          "--step-rows %u must be larger than --max-running %u: each running sequence needs a row, and "
                          "new prompts need some too",
                          o->step_rows, o->running_max);
    c = calloc(1, sizeof *c);
    if (!c)
        return dk_err_set(err, -ENOMEM, "out of memory");
    c->options = *o;
    c->now_us = c->start_us = now_us;
    c->tick_us = now_us + DK_TICK_US;
    c->settle_us = now_us + DK_SETTLE_US;
    c->rng.state = o->seed;
    c->state = DK__CLUSTER_STATE__EMPTY;
    c->epoch_last = o->epoch_base;
    /* Handles and steps of an earlier coordinator must not be taken for ours, so both begin at a random number; below
     * 2^53 every JSON reader keeps them exactly. */
    c->sequence_first = c->sequence_next = ((dk_rng_next(&c->rng) & 0x7fffffff) + 1) << 20;
    c->step_next = ((dk_rng_next(&c->rng) & 0x7fffffff) + 1) << 20;
    c->sequences_max = o->running_max + o->queue_max + DK_FINISHED_MAX;
    c->sequences = calloc(c->sequences_max, sizeof(struct dk_sequence *));
    c->released = calloc(2 * (size_t)o->running_max, sizeof *c->released);
    c->parked = calloc((size_t)o->parked_max + 2, sizeof *c->parked);
    dk__step_timing__init(&c->timing_total);
    dk__step_timing__init(&c->timing_last);
    if (!c->sequences || !c->released || !c->parked) {
        dk_coordinator_close(c);
        return dk_err_set(err, -ENOMEM, "out of memory");
    }
    *out = c;
    return 0;
}

void dk_coordinator_close(struct dk_coordinator *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->sequence_count; i++)
        dk_sequence_free(c->sequences[i]);
    free(c->sequences);
    dk_message_free(c->step);
    free(c->released);
    free(c->parked);
    dk_members_fini(c);
    dk_cluster_fini(c);
    free(c);
}

static void time_set(struct dk_coordinator *c, uint64_t now_us)
{
    uint64_t pause_us = now_us > c->now_us ? now_us - c->now_us : 0;

    c->now_us += pause_us;
    if (pause_us <= DK_STALL_US)
        return;
    /* Reading a model's folder can take that long, and the process may have been stopped. What the others sent in the
     * meantime is still to be read. */
    dk_log(DK_LOG_WARN, "coordinator.pause", "us=%llu", (unsigned long long)pause_us);
    c->settle_us += pause_us;
    c->epoch_us += pause_us;
    for (uint32_t i = 0; i < c->member_count; i++) {
        c->members[i].last_us += pause_us;
        c->members[i].link_us += pause_us;
    }
    for (uint32_t i = 0; i < c->sequence_count; i++) {
        c->sequences[i]->contact_us += pause_us;
        c->sequences[i]->unread_us += pause_us;
    }
}

static void look_at_time(struct dk_coordinator *c)
{
    if (c->now_us < c->tick_us)
        return;
    c->tick_us = c->now_us + DK_TICK_US;
    dk_members_tick(c);
    dk_cluster_update(c);
    dk_sequences_tick(c);
}

void dk_coordinator_handle(struct dk_coordinator *c, void *call, const ProtobufCMessage *request, uint64_t now_us,
                           struct dk_outbox *out)
{
    const ProtobufCMessageDescriptor *type = request->descriptor;

    time_set(c, now_us);
    if (c->ending) {
        dk_outbox_fail(out, call, DK__CODE__UNAVAILABLE, "coordinator is ending");
        return;
    }
    if (type == &dk__next_step_request__descriptor)
        dk_next_step_handle(c, call, (const Dk__NextStepRequest *)request, out);
    else if (type == &dk__read_request__descriptor)
        dk_read_handle(c, call, (const Dk__ReadRequest *)request, out);
    else if (type == &dk__heartbeat_request__descriptor)
        dk_heartbeat_handle(c, call, (const Dk__HeartbeatRequest *)request, out);
    else if (type == &dk__leave_request__descriptor)
        dk_leave_handle(c, call, (const Dk__LeaveRequest *)request, out);
    else if (type == &dk__submit_request__descriptor)
        dk_submit_handle(c, call, (const Dk__SubmitRequest *)request, out);
    else if (type == &dk__cancel_request__descriptor)
        dk_cancel_handle(c, call, (const Dk__CancelRequest *)request, out);
    else if (type == &dk__tokenize_request__descriptor)
        dk_tokenize_handle(c, call, (const Dk__TokenizeRequest *)request, out);
    else if (type == &dk__detokenize_request__descriptor)
        dk_detokenize_handle(c, call, (const Dk__DetokenizeRequest *)request, out);
    else if (type == &dk__load_request__descriptor)
        dk_load_handle(c, call, (const Dk__LoadRequest *)request, out);
    else if (type == &dk__status_request__descriptor)
        dk_status_handle(c, call, (const Dk__StatusRequest *)request, out);
    else if (type == &dk__stats_request__descriptor)
        dk_stats_handle(c, call, out);
    else
        dk_outbox_fail(out, call, DK__CODE__UNIMPLEMENTED, "the coordinator does not answer %s", type->short_name);
    look_at_time(c);
    dk_parked_serve(c, out);
}

void dk_coordinator_tick(struct dk_coordinator *c, uint64_t now_us, struct dk_outbox *out)
{
    time_set(c, now_us);
    look_at_time(c);
    dk_parked_serve(c, out);
}

uint64_t dk_coordinator_deadline(const struct dk_coordinator *c)
{
    uint64_t deadline = c->tick_us;

    for (uint32_t i = 0; i < c->parked_count; i++)
        if (c->parked[i].deadline_us < deadline)
            deadline = c->parked[i].deadline_us;
    return deadline;
}

void dk_coordinator_end(struct dk_coordinator *c, struct dk_outbox *out)
{
    c->ending = true;
    for (uint32_t i = 0; i < c->parked_count; i++)
        dk_outbox_fail(out, c->parked[i].call, DK__CODE__UNAVAILABLE, "coordinator is ending");
    c->parked_count = 0;
}
