/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/shell.h"

#include "actor/actor.h"
#include "base/clock.h"
#include "base/log.h"
#include "rpc/rpc.h"

/* The control plane's threads push calls into the loop's mailbox; all else happens on the loop's thread. */

#define MAILBOX_CALLS 1024u
#define LINGER_US     200000ull /* time for the last replies to leave */

struct shell {
    struct dk_coordinator *core;
    struct dk_loop_ev *loop;
    struct dk_outbox out;
    struct dk_timer tick, linger;
};

static const ProtobufCServiceDescriptor *const services[] = {&dk__client__descriptor, &dk__membership__descriptor,
                                                             &dk__attention__descriptor, NULL};

static void on_call(void *ctx, struct dk_rpc_call *call)
{
    struct shell *s = ctx;

    if (dk_mailbox_push(dk_loop_ev_mailbox(s->loop), call) < 0)
        dk_rpc_fail(call, -EAGAIN, "the coordinator is overloaded: try again");
}

static void send_replies(struct shell *s)
{
    for (uint32_t i = 0; i < s->out.count; i++) {
        const struct dk_outbox_entry *e = &s->out.entries[i];

        if (e->reply)
            dk_rpc_reply(e->call, e->reply);
        else
            dk_rpc_fail(e->call, dk_errno_from_code(e->code), e->text);
    }
    dk_outbox_clear(&s->out);
}

static void on_message(void *ctx, void *message, uint64_t now_us)
{
    struct shell *s = ctx;

    dk_coordinator_handle(s->core, message, dk_rpc_request(message), now_us, &s->out);
    send_replies(s);
}

static void on_tick(void *ctx, uint64_t now_us)
{
    struct shell *s = ctx;

    dk_coordinator_tick(s->core, now_us, &s->out);
    send_replies(s);
    dk_timer_arm(dk_loop_ev_timers(s->loop), &s->tick, dk_coordinator_deadline(s->core));
}

static void on_deadline(void *ctx, uint64_t now_us)
{
    (void)ctx, (void)now_us; /* the loop ticks after each timer */
}

static void on_lingered(void *ctx, uint64_t now_us)
{
    struct shell *s = ctx;

    (void)now_us;
    dk_loop_ev_stop(s->loop);
}

static void on_signal(void *ctx, int signal)
{
    struct shell *s = ctx;

    dk_log(DK_LOG_INFO, "coordinator.end", "signal=%d", signal);
    dk_coordinator_end(s->core, &s->out);
    send_replies(s);
    if (!s->linger.armed)
        dk_timer_arm(dk_loop_ev_timers(s->loop), &s->linger, dk_now_us() + LINGER_US);
}

int dk_coordinator_run(const struct dk_control_ops *plane, const char *url, const struct dk_coordinator_options *o,
                       struct dk_err *err)
{
    static const struct dk_loop_ev_handlers handlers = {
        .on_message = on_message, .on_tick = on_tick, .on_signal = on_signal};
    struct shell s = {.tick = {.fire = on_deadline}, .linger = {.fire = on_lingered}};
    struct dk_rpc_server *server = NULL;
    void *call;
    int rc;

    s.tick.ctx = s.linger.ctx = &s;
    rc = dk_outbox_init(&s.out, o->parked_max + 3);
    if (rc < 0) {
        dk_err_set(err, rc, "out of memory");
        goto fail;
    }
    rc = dk_coordinator_open(o, dk_now_us(), &s.core, err);
    if (rc < 0)
        goto fail;
    rc = dk_loop_ev_open(&handlers, &s, MAILBOX_CALLS, &s.loop);
    if (rc < 0) {
        dk_err_set(err, rc, "the event loop could not be made");
        goto fail;
    }
    rc = dk_rpc_listen(plane, url, services, on_call, &s, &server, err);
    if (rc < 0)
        goto fail;
    dk_timer_arm(dk_loop_ev_timers(s.loop), &s.tick, dk_coordinator_deadline(s.core));
    dk_log(DK_LOG_INFO, "coordinator.listen", "url=%s version=%s", url, o->version);
    dk_loop_ev_run(s.loop);
    dk_rpc_server_close(server);
    while ((call = dk_mailbox_pop(dk_loop_ev_mailbox(s.loop))))
        dk_rpc_fail(call, dk_errno_from_code(DK__CODE__UNAVAILABLE), "coordinator is ending");
fail:
    dk_loop_ev_close(s.loop);
    dk_coordinator_close(s.core);
    dk_outbox_fini(&s.out);
    return rc;
}
