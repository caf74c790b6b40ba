/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/answer_reader.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "duckctl/notice.h"

#define READ_WAIT_MS    200u
#define READ_TIMEOUT_MS 10000u
#define QUIET_US        2000000u /* without an event; then a person is told what is waited for */
#define ASK_AGAIN_US    500000u

int answer_cancel(struct dk_rpc_client *c, uint64_t handle)
{
    Dk__CancelRequest q = DK__CANCEL_REQUEST__INIT;
    ProtobufCMessage *m;
    int before = interrupted, rc;

    interrupted = 0;
    q.handle = handle;
    rc = client_call(c, "Cancel", &q.base, 5000, &m, NULL);
    if (rc == 0)
        protobuf_c_message_free_unpacked(m, NULL);
    if (!interrupted)
        interrupted = before;
    return rc;
}

/* Says on stderr why no event comes. */
static void explain_wait(struct dk_rpc_client *c, const struct answer_sink *sink, struct notice *n)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    ProtobufCMessage *m;
    char text[sizeof n->said];

    if (client_call(c, "GetStatus", &q.base, READ_TIMEOUT_MS, &m, NULL) < 0)
        return;
    notice_text((Dk__StatusReply *)m, text, sizeof text);
    protobuf_c_message_free_unpacked(m, NULL);
    if (notice_changed(n, text))
        fprintf(stderr, "%swaiting: %s\n", sink->in_line && sink->in_line(sink->ctx) && isatty(2) ? "\n" : "", text);
}

int answer_read(struct dk_rpc_client *c, uint64_t handle, const struct answer_sink *sink, struct dk_err *err)
{
    uint64_t cursor = 0, explain_us = dk_now_us() + QUIET_US;
    struct notice notice = {0};
    int rc = 0, ended_rc = 0;

    while (rc == 0) {
        const Dk__Status *failed = NULL;
        Dk__ReadRequest q = DK__READ_REQUEST__INIT;
        ProtobufCMessage *m;
        Dk__ReadReply *r;

        if (interrupted)
            return dk_err_set(err, -EINTR, "%s",
                              answer_cancel(c, handle) == 0
                                  ? "interrupted: the sequence was cancelled"
                                  : "interrupted; the coordinator does not answer, it cancels the "
                                    "sequence when nobody reads its answer for a minute");
        q.handle = handle;
        q.has_cursor = q.has_wait_ms = true;
        q.cursor = cursor;
        q.wait_ms = READ_WAIT_MS;
        rc = client_call(c, "Read", &q.base, READ_TIMEOUT_MS, &m, err);
        if (rc == -EINTR) {
            rc = 0;
            continue;
        }
        if (rc < 0)
            return rc;
        r = (Dk__ReadReply *)m;
        if (r->n_events) {
            explain_us = dk_now_us() + QUIET_US;
        } else if (!sink->quiet && dk_now_us() > explain_us) {
            explain_wait(c, sink, &notice);
            explain_us = dk_now_us() + ASK_AGAIN_US;
        }
        for (size_t i = 0; rc == 0 && i < r->n_events; i++) {
            cursor = r->events[i]->cursor;
            rc = sink->event(sink->ctx, r->events[i], err);
            failed = rc > 0 ? r->events[i]->error : NULL;
        }
        if (failed)
            dk_err_set(err, dk_errno_from_code(failed->code), "%s",
                       failed->text ? failed->text : dk_code_name(failed->code));
        ended_rc = failed ? dk_errno_from_code(failed->code) : 0;
        protobuf_c_message_free_unpacked(m, NULL);
        if (rc < 0)
            answer_cancel(c, handle);
    }
    return rc < 0 ? rc : ended_rc;
}

int answer_take(struct dk_rpc_client *c, uint64_t handle, int rc, const struct answer_sink *sink, struct dk_err *err)
{
    if (rc == 0)
        return answer_read(c, handle, sink, err);
    answer_cancel(c, handle);
    return rc;
}
