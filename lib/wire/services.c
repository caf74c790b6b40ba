/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/wire.h"

#include <string.h>

const ProtobufCServiceDescriptor *const dk_services[] = {
    &dk__client__descriptor, &dk__membership__descriptor, &dk__attention__descriptor, &dk__duck__descriptor, NULL,
};

/* The service called name[0..length): "Client" or "dk.Client". */
static const ProtobufCServiceDescriptor *service_find(const char *name, size_t length)
{
    for (size_t i = 0; dk_services[i]; i++) {
        const ProtobufCServiceDescriptor *s = dk_services[i];

        if ((strlen(s->name) == length && !memcmp(s->name, name, length)) ||
            (strlen(s->short_name) == length && !memcmp(s->short_name, name, length)))
            return s;
    }
    return NULL;
}

const ProtobufCMethodDescriptor *dk_method_find(const char *name, const ProtobufCServiceDescriptor **service)
{
    const char *slash = strchr(name, '/');
    const ProtobufCServiceDescriptor *s = slash ? service_find(name, (size_t)(slash - name)) : NULL;
    const ProtobufCMethodDescriptor *m = s ? protobuf_c_service_descriptor_get_method_by_name(s, slash + 1) : NULL;

    if (m && service)
        *service = s;
    return m;
}
