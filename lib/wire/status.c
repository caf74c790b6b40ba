/* SPDX-License-Identifier: Apache-2.0 */
/* errno <-> Code. Each code has one errno that stands for it when it comes from the wire (the first of its rows), and
 * other errnos that mean the same to a caller. */
#include "wire/wire.h"

static const struct {
    int errno_value;
    Dk__Code code;
} rows[] = {
    {0, DK__CODE__OK},
    {EINVAL, DK__CODE__INVALID_ARGUMENT},
    {EMSGSIZE, DK__CODE__INVALID_ARGUMENT},
    {E2BIG, DK__CODE__INVALID_ARGUMENT},
    {ERANGE, DK__CODE__INVALID_ARGUMENT},
    {EDOM, DK__CODE__INVALID_ARGUMENT},
    {ENAMETOOLONG, DK__CODE__INVALID_ARGUMENT},
    {EISDIR, DK__CODE__INVALID_ARGUMENT},
    {EFBIG, DK__CODE__INVALID_ARGUMENT},
    {ENOENT, DK__CODE__NOT_FOUND},
    {ENOTDIR, DK__CODE__NOT_FOUND},
    {ENODEV, DK__CODE__NOT_FOUND},
    {ESRCH, DK__CODE__NOT_FOUND},
    {EBUSY, DK__CODE__FAILED_PRECONDITION},
    {ESTALE, DK__CODE__FAILED_PRECONDITION},
    {EEXIST, DK__CODE__FAILED_PRECONDITION},
    {EALREADY, DK__CODE__FAILED_PRECONDITION},
    {EACCES, DK__CODE__FAILED_PRECONDITION},
    {EPERM, DK__CODE__FAILED_PRECONDITION},
    {EADDRINUSE, DK__CODE__FAILED_PRECONDITION},
    {ENOSPC, DK__CODE__RESOURCE_EXHAUSTED},
    {ENOMEM, DK__CODE__RESOURCE_EXHAUSTED},
    {ENOBUFS, DK__CODE__RESOURCE_EXHAUSTED},
    {EAGAIN, DK__CODE__RESOURCE_EXHAUSTED},
    {EHOSTUNREACH, DK__CODE__UNAVAILABLE},
    {EHOSTDOWN, DK__CODE__UNAVAILABLE},
    {ENETUNREACH, DK__CODE__UNAVAILABLE},
    {ECONNREFUSED, DK__CODE__UNAVAILABLE},
    {ECONNRESET, DK__CODE__UNAVAILABLE},
    {ECONNABORTED, DK__CODE__UNAVAILABLE},
    {ENOTCONN, DK__CODE__UNAVAILABLE},
    {EPIPE, DK__CODE__UNAVAILABLE},
    {ETIME, DK__CODE__DEADLINE_EXCEEDED}, /* first: -ETIMEDOUT from a call means that nobody answered */
    {ETIMEDOUT, DK__CODE__DEADLINE_EXCEEDED},
    {ECANCELED, DK__CODE__CANCELLED},
    {ENOSYS, DK__CODE__UNIMPLEMENTED},
    {ENOTSUP, DK__CODE__UNIMPLEMENTED},
    {EBADMSG, DK__CODE__DATA_LOSS},
    {EILSEQ, DK__CODE__DATA_LOSS},
    {EIO, DK__CODE__INTERNAL},
    {EPROTONOSUPPORT, DK__CODE__VERSION_MISMATCH},
};

Dk__Code dk_code_from_errno(int rc)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].errno_value == -rc)
            return rows[i].code;
    return DK__CODE__INTERNAL;
}

int dk_errno_from_code(Dk__Code code)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].code == code)
            return -rows[i].errno_value;
    return -EIO;
}

const char *dk_code_name(Dk__Code code)
{
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(&dk__code__descriptor, (int)code);

    return v ? v->name : "UNKNOWN_CODE";
}
