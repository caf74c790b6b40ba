/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONTROL_NNG_H
#define DK_CONTROL_NNG_H

#include <nng/nng.h>

#include "net/net.h"

/* The parts of this back end: control_server.c listens, control_client.c dials with NNG. */

int control_listen(const char *url, uint32_t parallel, dk_control_on_request *on_request, void *ctx,
                   struct dk_control_server **out, struct dk_err *err);
void control_server_close(struct dk_control_server *s);
void control_reply(struct dk_control_request *request, const uint8_t *data, size_t bytes);

int control_dial(const char *url, struct dk_control_client **out, struct dk_err *err);
void control_client_close(struct dk_control_client *c);
int control_call(struct dk_control_client *c, const uint8_t *data, size_t bytes, uint32_t timeout_ms,
                 dk_control_on_reply *on_reply, void *ctx);

/* NNG's error number as a negative errno. */
int control_errno(int rv);
/* Refuses addresses that NNG would take and then fail on in an unclear way. -EINVAL, -ENOTSUP. */
int control_url_check(const char *url, struct dk_err *err);
/* nng_close, but never longer than a second: control_nng.c says why. No callback of the socket's may refer to anything
 * that is freed afterwards. */
void control_socket_close(nng_socket socket);

#endif
