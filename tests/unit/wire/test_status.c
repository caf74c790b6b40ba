/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

#include "wire/wire.h"

Test(status, every_code_survives_the_way_there_and_back)
{
    for (unsigned i = 0; i < dk__code__descriptor.n_values; i++) {
        Dk__Code code = (Dk__Code)dk__code__descriptor.values[i].value;

        cr_assert_eq(dk_code_from_errno(dk_errno_from_code(code)), code, "%s", dk_code_name(code));
        cr_assert_str_eq(dk_code_name(code), dk__code__descriptor.values[i].name);
        cr_assert_eq(dk_errno_from_code(code) == 0, code == DK__CODE__OK);
    }
    cr_assert_eq(dk__code__descriptor.n_values, 12);
}

Test(status, errnos_go_to_the_code_of_their_meaning)
{
    cr_assert_eq(dk_code_from_errno(-EINVAL), DK__CODE__INVALID_ARGUMENT);
    cr_assert_eq(dk_code_from_errno(-EMSGSIZE), DK__CODE__INVALID_ARGUMENT);
    cr_assert_eq(dk_code_from_errno(-ENOENT), DK__CODE__NOT_FOUND);
    cr_assert_eq(dk_code_from_errno(-ESTALE), DK__CODE__FAILED_PRECONDITION);
    cr_assert_eq(dk_code_from_errno(-EAGAIN), DK__CODE__RESOURCE_EXHAUSTED);
    cr_assert_eq(dk_code_from_errno(-ENOMEM), DK__CODE__RESOURCE_EXHAUSTED);
    cr_assert_eq(dk_code_from_errno(-ECONNREFUSED), DK__CODE__UNAVAILABLE);
    cr_assert_eq(dk_code_from_errno(-ETIMEDOUT), DK__CODE__DEADLINE_EXCEEDED);
    cr_assert_eq(dk_code_from_errno(-ECANCELED), DK__CODE__CANCELLED);
    cr_assert_eq(dk_code_from_errno(-ENOTSUP), DK__CODE__UNIMPLEMENTED);
    cr_assert_eq(dk_code_from_errno(-EBADMSG), DK__CODE__DATA_LOSS);
    cr_assert_eq(dk_code_from_errno(-EXDEV), DK__CODE__INTERNAL, "unknown ones are INTERNAL");
    cr_assert_eq(dk_errno_from_code((Dk__Code)99), -EIO);
    cr_assert_str_eq(dk_code_name((Dk__Code)99), "UNKNOWN_CODE");
}

Test(services, methods_are_found_by_name)
{
    const ProtobufCServiceDescriptor *s = NULL;
    size_t methods = 0;

    for (size_t i = 0; dk_services[i]; i++)
        for (unsigned j = 0; j < dk_services[i]->n_methods; j++, methods++) {
            char name[100], full[100];

            snprintf(name, sizeof name, "%s/%s", dk_services[i]->short_name, dk_services[i]->methods[j].name);
            snprintf(full, sizeof full, "%s/%s", dk_services[i]->name, dk_services[i]->methods[j].name);
            cr_assert_eq(dk_method_find(name, &s), &dk_services[i]->methods[j], "%s", name);
            cr_assert_eq(s, dk_services[i]);
            cr_assert_eq(dk_method_find(full, NULL), &dk_services[i]->methods[j], "%s", full);
        }
    cr_assert_eq(methods, 15);
}

Test(services, other_names_are_not_found)
{
    static const char *const names[] = {"",
                                        "/",
                                        "Client",
                                        "Client/",
                                        "/Submit",
                                        "Client/submit",
                                        "Clien/Submit",
                                        "Clients/Submit",
                                        "x.Client/Submit",
                                        "dk.Client.Submit",
                                        "Client/Submit/",
                                        "Attention/Submit"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_null(dk_method_find(names[i], NULL), "%s", names[i]);
}
