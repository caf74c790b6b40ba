/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/notice.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

bool notice_changed(struct notice *n, const char *text)
{
    if (!*text || !strncmp(n->said, text, sizeof n->said - 1))
        return false;
    dk_text_copy(n->said, sizeof n->said, text);
    return true;
}

void notice_text(const Dk__StatusReply *r, char *out, size_t size)
{
    const ProtobufCEnumValue *state = protobuf_c_enum_descriptor_get_value(&dk__cluster_state__descriptor,
                                                                           (int)r->state);
    const char *name = state ? state->name : "?";

    if (r->error && r->error->text && *r->error->text)
        snprintf(out, size, "%s: %s", name, r->error->text);
    else if (r->state == DK__CLUSTER_STATE__LOADING)
        snprintf(out, size, "%s: the model is not ready yet", name);
    else if (r->state != DK__CLUSTER_STATE__READY)
        snprintf(out, size, "%s", name);
    else if (r->queued)
        snprintf(out, size, "%s: %u running, %u queued", name, r->running, r->queued);
    else
        snprintf(out, size, "%s: the next token is being computed", name);
}
