/* SPDX-License-Identifier: Apache-2.0 */
/* JSON texts as every request and reply there is. What is accepted, written and read again must be the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one(const ProtobufCMessageDescriptor *type, const char *json)
{
    struct dk_err err = {0};
    ProtobufCMessage *m, *again;
    char *first, *second;

    if (dk_json_to_message(type, json, &m, &err) < 0) {
        if (m || !err.text[0])
            abort();
        return;
    }
    first = dk_json_from_message(m, 0);
    if (!first || !protobuf_c_message_check(m) || dk_json_to_message(type, first, &again, &err) < 0)
        abort();
    second = dk_json_from_message(again, 0);
    if (!second || strcmp(first, second))
        abort();
    free(first);
    free(second);
    protobuf_c_message_free_unpacked(m, NULL);
    protobuf_c_message_free_unpacked(again, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *json = malloc(size + 1);

    if (!json)
        return 0;
    if (size)
        memcpy(json, data, size);
    json[size] = 0;
    for (size_t i = 0; dk_services[i]; i++)
        for (unsigned j = 0; j < dk_services[i]->n_methods; j++) {
            one(dk_services[i]->methods[j].input, json);
            one(dk_services[i]->methods[j].output, json);
        }
    free(json);
    return 0;
}
